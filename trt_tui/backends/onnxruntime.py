"""ONNX Runtime: the reference and the simulation."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from trt_tui.backends.cuda import first_device
from trt_tui.backends.onnxruntime_chance import without_chance
from trt_tui.backends.onnxruntime_device import BOUND, GRAPH_RUNS, BoundRuns
from trt_tui.core.network.chance import draws
from trt_tui.core.network.naming import name_of
from trt_tui.core.runner import Capabilities, Level, TensorInfo
from trt_tui.errors import (
    FAILED_ALLOCATION,
    BackendUnavailableError,
    InputError,
    RunFailedError,
    TrtTuiError,
    memory_error,
    wrong_size_error,
)
from trt_tui.files.reading import regular

_HELD_OUTSIDE_BYTES = 1024
"""Initializers of this size or larger are shared with the session in memory instead of being serialized."""

_FED_BYTES = 1 << 16
"""In lean sessions, initializers of this size or larger are fed to each run, so that the session does not copy them."""

_CUDA = "CUDAExecutionProvider"

_CAPTURING = {"enable_fallback": 0, "disabled_optimizers": ["MatMulAddFusion"]}
"""Arguments of sessions that capture. A Gemm copies its bias into all of its result first: longer than an Add."""

_MOVING = "TransposeOptimizer_CPUExecutionProvider"
"""Moves a Transpose behind a cubic Resize to fewer values, which ONNX Runtime then refuses to run."""

_WRONG_SIZE = re.compile(r"OrtValue provided for output '(?P<name>[^']*)'.*?has shape \{(?P<declared>[^}]*)\} but the "
                         r"computed output shape for this run is \{(?P<found>[^}]*)\}")
"""What it says where an output of a branch has another shape than the file declares."""

_LACKING = ("It has no kernel for the types of that node here, BF16 often: export the network in FP32 or FP16, or "
            "judge its engine.")

_TYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16,
          "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(int16)": np.int16, "tensor(int8)": np.int8,
          "tensor(uint8)": np.uint8, "tensor(uint16)": np.uint16, "tensor(uint32)": np.uint32,
          "tensor(uint64)": np.uint64, "tensor(bool)": np.bool_}


class OnnxRuntimeBackend:
    """Runs networks with ONNX Runtime.

    Args:
        provider: "cpu" or "cuda"; the best that works here by default.
        threads: Threads of one operator; ONNX Runtime's default (all cores) when None.
        operators: Libraries of custom operators; code of theirs runs in this process.

    Raises:
        BackendUnavailableError: ONNX Runtime is not installed, or has no such provider.
        InputError: a library does not load.
    """

    name = "onnxruntime"
    cuda_options: dict[str, str]
    """Options of the CUDA provider, for networks that are loaded from then on."""

    def __init__(self, provider: str | None = None, threads: int | None = None, *, operators: Sequence[str] = ()
                 ) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise BackendUnavailableError(
                "ONNX Runtime is not installed", str(error),
                "pip install 'trt-tui[cpu]' (or 'trt-tui[gpu]' for an NVIDIA GPU)") from None
        self._ort = onnxruntime
        self.version = onnxruntime.__version__
        if provider is None:
            provider = "cpu" if _cuda_fault() else "cuda"
        elif provider == "cuda" and (fault := _cuda_fault()):
            raise BackendUnavailableError("ONNX Runtime has no CUDA provider here", fault, "pip install 'trt-tui[gpu]'")
        self.provider = provider
        self.cuda_options = {"use_tf32": "0"}
        self._threads = threads
        self._operators = tuple(map(os.path.abspath, operators))
        for path in operators:
            regular(path)
            try:
                onnxruntime.SessionOptions().register_custom_ops_library(os.path.abspath(path))
            except Exception as error:
                raise InputError(f"--ort-ops {path} does not load", _first_line(error), "It has to export "
                                 f"RegisterCustomOps, built for ONNX Runtime {self.version}.") from None
        self.capabilities = Capabilities(runs=True, builds=False, real_fp16=provider == "cuda",
                                         device=provider == "cuda")

    def on_host(self) -> OnnxRuntimeBackend | None:
        """The same with the CPU provider; see `trt_tui.core.runner.Backend`."""
        if self.provider == "cpu":
            return None
        return OnnxRuntimeBackend("cpu", self._threads, operators=self._operators)

    def load(self, model: ir.Model, *, lean: bool = False, bound: Callable[[Level], None] | None = None,
             optimize: bool = True, few: bool = False) -> OnnxRuntimeRunner:
        """Loads a network; its big weights are shared with ``model``, not copied.

        Args:
            lean: For the lowest peak memory: no memory pattern, constant folding off, big weights fed to each run.
            bound: Given, what is fed stays on the GPU, where there is one, and a run is a CUDA graph where it can be;
                it is called with how runs are made whenever that changes.
            optimize: False keeps every operator as written (no fusion).
            few: No CUDA graph is made.

        Raises:
            OutOfMemoryError: an allocation failed.
            InputError: ONNX Runtime refuses the network.
        """
        options = self._options()
        levels = self._ort.GraphOptimizationLevel
        options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimize else levels.ORT_DISABLE_ALL
        arguments: dict[str, Any] = {"enable_fallback": 0}
        inputs = [name_of(value) for value in model.graph.inputs]
        if lean:
            options.enable_mem_pattern = False
            arguments["disabled_optimizers"] = ["ConstantFolding"]
        if any(_cubic(node) for node in model.graph.all_nodes()):
            arguments["disabled_optimizers"] = [*arguments.get("disabled_optimizers", ()), _MOVING]
        if bound is not None and self.provider == "cuda":
            options.enable_mem_reuse = False  # planning it takes time that grows with the square of the nodes
        with _fed_weights(model, _FED_BYTES if lean else None) as weights:
            proto, names, arrays = _without_weights(model)
        values = [self._ort.OrtValue.ortvalue_from_numpy(array) for array in arrays]
        if names:
            options.add_external_initializers(names, values)
        try:
            session = self._session(proto, options, arguments)
        except Exception as error:
            if FAILED_ALLOCATION.search(str(error)):
                raise memory_error(_first_line(error)) from None
            raise InputError("ONNX Runtime does not take this network", _first_line(error),
                             _LACKING if "NOT_IMPLEMENTED" in str(error) else
                             "Check it with onnx.checker; operators of other domains need their library.") from None
        runs = None
        if bound is not None and self.provider == "cuda":
            runs = BoundRuns(self._ort, session, None if few else lambda shapes: self._session(
                _of_shapes(proto, shapes), options, _CAPTURING, graphs=True), bound)
        wide = [name_of(value) for value in model.graph.inputs if value.dtype == ir.DataType.BFLOAT16]
        return OnnxRuntimeRunner(session, (values, arrays), inputs, weights, runs, wide)

    def best_level(self) -> str:
        """How networks can run here at best, with the reason if that is no CUDA graph: a network of one node is run."""
        x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1]))
        node = ir.node("Relu", [x])
        y = node.outputs[0]
        y.name, y.type, y.shape = "y", x.type, x.shape
        levels: list[Level] = []
        model = ir.Model(ir.Graph([x], [y], nodes=[node], opset_imports={"": 17}), ir_version=8)
        try:
            with self.load(model, bound=levels.append) as runner:
                for _ in range(GRAPH_RUNS):
                    runner.run({"x": np.ones(1, np.float32)})
        except TrtTuiError as error:
            return f"{error.title}: {error.cause}"
        return ", ".join(filter(None, (levels[-1].name, levels[-1].reason))) if levels else BOUND

    def _session(self, proto: bytes, options: Any, arguments: Mapping[str, Any], *, graphs: bool = False) -> Any:
        """A session; with ``graphs`` one that captures CUDA graphs: it takes no node on the CPU and no control flow."""
        providers: list[str | tuple[str, dict[str, str]]] = ["CPUExecutionProvider"]
        if self.provider == "cuda":
            providers.insert(0, (_CUDA, self.cuda_options | ({"enable_cuda_graph": "1"} if graphs else {})))
        session = self._ort.InferenceSession(proto, options, providers=providers, **arguments)
        if self.provider == "cuda" and _CUDA not in session.get_providers():  # some releases ignore the argument
            raise RuntimeError("the CUDA provider did not start")
        session.disable_fallback()
        return session

    def _options(self) -> Any:
        options = self._ort.SessionOptions()
        options.log_severity_level = 4
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        # Threads that spin after a run take cores from what runs next: another piece of the graph, or the app.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        for path in self._operators:
            options.register_custom_ops_library(path)
        if self._threads:
            options.intra_op_num_threads = self._threads
        return options


class OnnxRuntimeRunner:
    """One loaded network.

    Args:
        kept_alive: Arrays that the session reads but does not own.
        inputs: Names of the inputs that a run is given, in order.
        weights: What every run is fed in addition.
        bound: Runs with everything on the device; None where arrays are handed over.
        wide: Inputs in BF16, which the session takes as FP32.
    """

    def __init__(self, session: Any, kept_alive: object, inputs: Sequence[str], weights: Mapping[str, np.ndarray],
                 bound: BoundRuns | None = None, wide: Sequence[str] = ()) -> None:
        self._session = session
        self._wide = tuple(wide)
        self._kept_alive = kept_alive
        self._weights = dict(weights)
        self._bound = bound
        known = {one.name: _info(one) for one in session.get_inputs()}
        self.inputs = tuple(known[name] for name in inputs if name in known)
        self.outputs = tuple(_info(one) for one in session.get_outputs())

    def run(self, feeds: Mapping[str, np.ndarray], fetch: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Runs once; see `trt_tui.core.runner.Runner`."""
        names = list(fetch) if fetch is not None else [info.name for info in self.outputs]
        fed = {**self._weights, **feeds}
        fed.update((name, feeds[name].astype(np.float32)) for name in self._wide if name in feeds)
        try:
            results = self._session.run(names, fed) if self._bound is None else self._bound.run(fed, names)
            return dict(zip(names, results, strict=True))
        except Exception as error:
            if FAILED_ALLOCATION.search(str(error)):
                raise memory_error(_first_line(error)) from None
            if wrong := _WRONG_SIZE.search(str(error)):
                name = wrong["name"].partition("#")[0]
                raise wrong_size_error(name, *(wrong[one].replace(",", "×") for one in ("declared", "found"))) from None
            raise RunFailedError("ONNX Runtime could not run the network", _first_line(error),
                                 "Check the data's shapes and types against the network's inputs.") from None

    def close(self) -> None:
        """Frees the session and the weights."""
        if self._bound is not None:
            self._bound.close()
        self._session = None
        self._kept_alive = None
        self._weights = {}

    def __enter__(self) -> OnnxRuntimeRunner:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@functools.cache
def _cuda_fault() -> str:
    """Why the CUDA provider does not work here, "" if it does.

    ONNX Runtime lists the provider if it was built with it, and silently falls back to the CPU if the provider's
    libraries are missing. A network of one node is therefore run on it.
    """
    import onnxruntime

    available = onnxruntime.get_available_providers()
    if _CUDA not in available:
        return f"it offers {', '.join(available)}"
    try:
        first_device()
    except BackendUnavailableError as error:
        return f"{error.title}: {error.cause}"
    if hasattr(onnxruntime, "preload_dlls"):
        with contextlib.redirect_stdout(io.StringIO()):  # it prints which libraries it does not find
            onnxruntime.preload_dlls()
    libraries = Path(onnxruntime.__file__).parent / "capi"
    try:
        for name in ("libonnxruntime_providers_shared.so", "libonnxruntime_providers_cuda.so"):
            ctypes.CDLL(str(libraries / name), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        return str(error)
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy")
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "one", [x], [y]), ir_version=8,
                                   opset_imports=[onnx.helper.make_opsetid("", 17)])
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=[_CUDA],
                                               enable_fallback=0)
        session.run(None, {"x": np.zeros(1, np.float32)})
    except Exception as error:
        return _first_line(error)
    return "" if _CUDA in session.get_providers() else "it does not start"


def _info(value: Any) -> TensorInfo:
    return TensorInfo(value.name, np.dtype(_TYPES.get(value.type, object)), tuple(value.shape))


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _cubic(node: ir.Node) -> bool:
    """Whether a node is a Resize by cubic interpolation."""
    return node.op_type == "Resize" and node.attributes.get_string("mode", "nearest") == "cubic"


def _weight(value: ir.Value) -> ir.TensorProtocol:
    """The array of an initializer."""
    assert value.const_value is not None
    return value.const_value


@contextlib.contextmanager
def _fed_weights(model: ir.Model, least: int | None) -> Iterator[dict[str, np.ndarray]]:
    """Makes inputs of initializers that take some bytes, of none without a number; yields their arrays by input name,
    which every run is fed. The model is as it was behind that."""
    graph = model.graph
    before, inputs = dict(graph.initializers), list(graph.inputs)
    taken: dict[ir.Value, ir.TensorProtocol] = {}
    weights = {}
    try:
        for name, value in before.items() if least is not None else ():
            tensor = _weight(value)
            if tensor.nbytes < (least or 0) or tensor.dtype == ir.DataType.STRING or value.is_graph_output():
                continue
            array = tensor.numpy()
            if array.dtype.kind not in "fiub":
                continue
            weights[name] = np.ascontiguousarray(array)
            taken[value] = tensor
            del graph.initializers[name]
            value.const_value = None
            if not value.is_graph_input():
                graph.inputs.append(value)
        yield weights
    finally:
        if taken:
            graph.inputs[len(inputs):] = []
            for value, tensor in taken.items():
                value.const_value = tensor
            graph.initializers.clear()
            graph.initializers.update(before)


def _without_weights(model: ir.Model) -> tuple[bytes, list[str], list[np.ndarray]]:
    """The serialized model with its big initializers declared as external, and their names and arrays.

    Initializers that nothing reads are left out: ONNX Runtime drops them first, then fails to find them by name.
    What lies in a file and cannot be passed as an array is read here, so that ONNX Runtime opens no file.
    """
    names, arrays = [], []
    initializers = model.graph.initializers
    before = dict(initializers)
    stored = {name: _weight(value) for name, value in before.items()}
    try:
        for name, value in before.items():
            tensor = stored[name]
            if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
                del initializers[name]
                continue
            held = tensor.dtype != ir.DataType.STRING and tensor.nbytes >= _HELD_OUTSIDE_BYTES
            array = tensor.numpy() if held else None
            if array is not None and array.dtype.kind in "fiub":
                names.append(name)
                arrays.append(np.ascontiguousarray(array))
                value.const_value = ir.ExternalTensor("weights", 0, tensor.nbytes, tensor.dtype,
                                                      shape=ir.Shape(array.shape), name=name)
            elif isinstance(tensor, ir.ExternalTensor):
                value.const_value = ir.Tensor(tensor.numpy().copy(), dtype=tensor.dtype, name=name)
        proto: onnx.ModelProto = ir.to_proto(model)
    finally:
        initializers.clear()
        for name, value in before.items():
            value.const_value = stored[name]
            initializers[name] = value
    if drawn := {name_of(node.outputs[0]): (node.outputs[0].dtype or ir.DataType.FLOAT).value
                 for node in model.graph.all_nodes() if draws(node)}:
        without_chance(proto.graph, drawn, model.opset_imports.get("", 1))
    _bf16_as_floats(proto.graph)
    return proto.SerializeToString(), names, arrays


def _bf16_as_floats(graph: onnx.GraphProto) -> None:
    """Lets inputs and outputs in BF16, which ONNX Runtime does not exchange with numpy, be FP32 behind a Cast."""
    def cast(source: str, result: str, to: int) -> onnx.NodeProto:
        return onnx.helper.make_node("Cast", [source], [result], name=f"{result}__cast", to=to)

    for value in graph.input:
        if value.type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16:
            _rename(graph, value.name, inner := f"{value.name}__bf16")
            graph.node.insert(0, cast(value.name, inner, onnx.TensorProto.BFLOAT16))
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    for value in graph.output:
        if value.type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16:
            _rename(graph, value.name, inner := f"{value.name}__bf16_result")
            graph.node.append(cast(inner, value.name, onnx.TensorProto.FLOAT))
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT


def _rename(graph: onnx.GraphProto, old: str, new: str) -> None:
    """Gives a value another name wherever nodes, also those of subgraphs, have it."""
    for node in graph.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                if name == old:
                    names[index] = new
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename(attribute.g, old, new)


def _of_shapes(proto: bytes, shapes: Mapping[str, tuple[int, ...]]) -> bytes:
    """A serialized model with fixed shapes of its inputs, so that what is computed from shapes is a constant."""
    model = onnx.ModelProto.FromString(proto)
    for value in model.graph.input:
        if value.name in shapes:
            del value.type.tensor_type.shape.dim[:]
            for size in shapes[value.name]:
                value.type.tensor_type.shape.dim.add().dim_value = size
    shaped: bytes = model.SerializeToString()
    return shaped
