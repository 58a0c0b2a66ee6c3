"""The ONNX Runtime backend, which executes the reference and the simulation, and loads exported files.

Random operators are replaced by nodes with the same output in every execution. A seed would not suffice: the generators
of ONNX Runtime continue from one execution to the next. The numbers of a batch would therefore depend on earlier
executions. The replacing nodes read numbers in order from a fixed table, from an offset that depends on the attributes
of the original node. Nodes with the same attributes, seed included, get the same numbers.

An exported file is loaded as in a user's own program. Two settings differ from the defaults, so that the results are
those of the ONNX standard. On processors without VNNI, the default INT8 kernels saturate their sums at 16 bits, which
no TensorRT engine does. Some releases (1.23.2 to 1.28.0) truncate FP16 values in a QuantizeLinear, which must round
them.

GPU execution in ONNX Runtime with I/O binding for all inputs and outputs, as one CUDA graph if the network allows
it.

An array that is fed again, such as weights or samples, is copied to the device once. Its copy is found by the identity
of the array and freed with the array. The modes, from the fastest:

- A CUDA graph for the first shapes that occur twice. It needs a network without control flow and without nodes on the
  CPU. Addresses are fixed at capture, so every input has a separate buffer, and changed inputs are copied there.
- Bound inputs and outputs.

A network in pieces has one `IoBindingRunner` for each piece. The results between pieces stay on the device as
`DeviceResult`. The CUDA graphs and copies of all networks are enqueued on one CUDA stream, so that the host waits once
for all pieces.

Copies that the last execution did not need are kept up to `MAX_IDLE_COPY_BYTES`. With a CUDA graph, whose buffers hold
the inputs, this limit applies to all copies. The device therefore holds the inputs once, plus copies up to the limit.
Results that stay on the device count against the same limit.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import math
import os
import re
import threading
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from trt_tui.backends.cuda import copy_device_memory, find_first_device, get_shared_stream, synchronize_stream
from trt_tui.core.network.model_editing import value_name
from trt_tui.core.network.operators import is_random
from trt_tui.core.runner import BackendCapabilities, ClosingContext, DeviceTensor, ExecutionMode, Runner, TensorInfo
from trt_tui.errors import (
    FAILED_ALLOCATION,
    BackendUnavailableError,
    InputError,
    RunFailedError,
    convert_memory_error,
    wrong_shape_error,
)
from trt_tui.files.reading import check_regular_file

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
"""The execution providers of ONNX Runtime, by the names that backends use."""

MAX_IR_VERSION = 10
"""The newest version of the ONNX file format that all supported releases read. Later versions do not change the
computation."""


def quantize_in_fp32(model: ir.Model) -> ir.Model:
    """Returns a model whose QuantizeLinear nodes read FP32 in place of FP16; ``model`` itself if there are no such
    nodes."""
    if not any(map(_quantizes_fp16, model.graph.all_nodes())):
        return model
    model = model.clone()
    for node in list(model.graph.all_nodes()):
        if _quantizes_fp16(node):
            _insert_casts_to_fp32(node)
    return model


def _quantizes_fp16(node: ir.Node) -> bool:
    """Returns True if a node is a QuantizeLinear that reads FP16 or an undeclared type."""
    return (
        node.op_type == "QuantizeLinear"
        and not node.domain
        and node.inputs[1] is not None
        and node.inputs[1].dtype is not ir.DataType.FLOAT
    )


def _insert_casts_to_fp32(node: ir.Node) -> None:
    """Inserts Casts to FP32 before the value and the scale of a QuantizeLinear."""
    for index in range(2):
        cast = ir.node("Cast", [node.inputs[index]], {"to": ir.DataType.FLOAT})
        cast.outputs[0].name = f"{node.outputs[0].name}__fp32_input_{index}"
        node.prepend(cast)
        node.replace_input_with(index, cast.outputs[0])


_ONE_IN_FP16 = 0x3C00
"""The bits of the number 1 in FP16, by which the text of a network gives it."""


@functools.cache
def truncates_fp16_quantization() -> bool:
    """Returns True if the installed ONNX Runtime truncates FP16 values in a QuantizeLinear (1.23.2 to 1.28.0)."""
    import onnxruntime

    model = onnx.parser.parse_model(f"""<ir_version: {MAX_IR_VERSION}, opset_import: ["" : 19]>
        probe (float16[1] x) => (int8[1] y)
        <float16 scale = {{{_ONE_IN_FP16}}}, int8 zero_point = {{0}}> {{ y = QuantizeLinear(x, scale, zero_point) }}""")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=[PROVIDERS["cpu"]])
    (quantized,) = session.run(None, {"x": np.array([0.75], np.float16)})
    return int(quantized[0]) == 0


_MIN_SHARED_WEIGHT_BYTES = 1024
"""The size in bytes from which an initializer is shared with the inference session in memory instead of being
serialized."""

_MIN_FED_WEIGHT_BYTES = 1 << 16
"""The size in bytes from which an initializer becomes an input of each execution in a low-memory inference session. The
session then makes no copy of the initializer."""

_CUDA_GRAPH_ARGUMENTS = {"enable_fallback": 0, "disabled_optimizers": ["MatMulAddFusion"]}
"""The arguments of inference sessions that capture CUDA graphs.

MatMulAddFusion is off, because the resulting Gemm first copies its bias to the whole result, which takes longer than an
Add.
"""

_TRANSPOSE_OPTIMIZER = "TransposeOptimizer_CPUExecutionProvider"
"""The optimizer that is disabled for networks with a cubic Resize.

It moves a Transpose behind the Resize if that reduces the number of transposed values. ONNX Runtime then refuses to
execute the Resize.
"""

_RELU_NETWORK = """<ir_version: 8, opset_import: ["" : 17]> one (float[1] x) => (float[1] y) { y = Relu(x) }"""
"""A network of one node, which shows if a provider works."""

_WRONG_SHAPE_MESSAGES = {
    "": re.compile(
        r"OrtValue provided for output '(?P<name>[^']*)'.*?has shape \{(?P<declared>[^}]*)\} but the "
        r"computed output shape for this run is \{(?P<computed>[^}]*)\}"
    ),
    "the result of ": re.compile(  # some releases name the node
        r".*while running \w+ node\. Name:'(?P<name>[^']*)'.*OrtValue shape verification failed\. "
        r"Current shape:\{(?P<declared>[^}]*)\} Requested shape:\{(?P<computed>[^}]*)\}"
    ),
}
"""The patterns of ONNX Runtime messages about an output of a subgraph whose shape differs from its declared shape.

The key is the text before the name of the tensor in the resulting error.
"""

_GATE_NODE_NAME = re.compile(r"Name:'if/([^'#]+)")
"""The pattern of the name of an If that executes a fusion group in one of several precisions."""

_LOADING_REMEDIES = {
    "NOT_IMPLEMENTED": "It has no kernel for the types of that node here, BF16 often: export the network in FP32 or "
    "FP16, or judge its engine.",
    "is under development": "Export the network at an older opset, or install a newer ONNX Runtime.",
}
"""The next steps after ONNX Runtime refuses a network, by a part of its error message."""


class OnnxRuntimeBackend:
    """The backend that executes networks in ONNX Runtime.

    Args:
        provider: "cpu" or "cuda"; by default "cuda" if it works here, and "cpu" if not.
        threads: The number of threads of one operator; None for ONNX Runtime's default, all cores.
        operators: The paths of custom operator libraries. Their code runs in this process.

    Raises:
        BackendUnavailableError: ONNX Runtime is not installed, or the provider does not work here.
        InputError: A library does not load.
    """

    name = "onnxruntime"
    cuda_options: dict[str, str]
    """The options of the CUDA provider. A change applies to networks loaded afterwards."""

    def __init__(
        self, provider: str | None = None, threads: int | None = None, *, operators: Sequence[str] = ()
    ) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise BackendUnavailableError(
                "ONNX Runtime is not installed",
                str(error),
                "pip install 'trt-tui[cpu]' (or 'trt-tui[gpu]' for an NVIDIA GPU)",
            ) from None
        self._ort = onnxruntime
        self.version = onnxruntime.__version__
        if provider is None:
            provider = "cpu" if _cuda_failure_reason() else "cuda"
        elif provider == "cuda" and (fault := _cuda_failure_reason()):
            raise BackendUnavailableError("ONNX Runtime has no CUDA provider here", fault, "pip install 'trt-tui[gpu]'")
        self.provider = provider
        self.cuda_options = {"use_tf32": "0"}
        self._threads = threads
        self._operators = tuple(map(os.path.abspath, operators))
        for path in operators:
            check_regular_file(path)
            try:
                onnxruntime.SessionOptions().register_custom_ops_library(os.path.abspath(path))
            except Exception as error:
                raise InputError(
                    f"--ort-ops {path} does not load",
                    _first_error_line(error),
                    f"It has to export RegisterCustomOps, built for ONNX Runtime {self.version}.",
                ) from None
        self.capabilities = BackendCapabilities(
            can_execute=True, computes_in_fp16=provider == "cuda", has_device=provider == "cuda"
        )

    def get_host_backend(self) -> OnnxRuntimeBackend | None:
        """Returns the same backend with the CPU provider; None if this backend already uses it."""
        if self.provider == "cpu":
            return None
        return OnnxRuntimeBackend("cpu", self._threads, operators=self._operators)

    def load(
        self,
        model: ir.Model,
        *,
        low_memory: bool = False,
        on_mode_change: Callable[[ExecutionMode], None] | None = None,
        optimize: bool = True,
        few_executions: bool = False,
        frees_tensors_early: bool = False,
        first_piece: Runner | None = None,
    ) -> OnnxRuntimeRunner:
        """Loads a network. Its large weights are shared with ``model`` and not copied.

        Args:
            low_memory: True for the lowest peak memory: no memory pattern, no constant folding, and large weights fed
                to each execution.
            on_mode_change: A function that is called with the execution mode whenever the mode changes. If it is given
                and there is a GPU, inputs stay on the GPU, and an execution is a CUDA graph if possible.
            optimize: False to keep every operator as written, without fusion.
            few_executions: True to capture no CUDA graph.
            frees_tensors_early: True to execute operators on a CPU in the order of the graph. Reductions behind each
                layer then free its tensor at once. By default ONNX Runtime may execute them after all layers.
            first_piece: The runner of the first piece of the network, with which this piece shares its device copies.

        Raises:
            OutOfMemoryError: An allocation failed.
            InputError: ONNX Runtime refuses the network.
        """
        # Threads that spin after an execution take cores from the next work: another part of the graph, or the app.
        entries = {"session.disable_quant_qdq": "1", "session.intra_op.allow_spinning": "0"}
        options = _create_session_options(4, entries, self._operators, self._threads)
        levels = self._ort.GraphOptimizationLevel
        options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimize else levels.ORT_DISABLE_ALL
        arguments: dict[str, Any] = {"enable_fallback": 0}
        if truncates_fp16_quantization():
            model = quantize_in_fp32(model)
        inputs = [value_name(value) for value in model.graph.inputs]
        if low_memory:
            options.enable_mem_pattern = False
            arguments["disabled_optimizers"] = ["ConstantFolding"]
        if frees_tensors_early and self.provider == "cpu":
            options.execution_order = self._ort.ExecutionOrder.PRIORITY_BASED
        if any(
            node.op_type == "Resize" and node.attributes.get_string("mode", "nearest") == "cubic"
            for node in model.graph.all_nodes()
        ):
            arguments["disabled_optimizers"] = [*arguments.get("disabled_optimizers", ()), _TRANSPOSE_OPTIMIZER]
        if on_mode_change is not None and self.provider == "cuda":
            options.enable_mem_reuse = False  # planning memory reuse takes time quadratic in the number of nodes
        proto, weights, names, arrays = _serialize_without_weights(
            model, _MIN_FED_WEIGHT_BYTES if low_memory else math.inf
        )
        values = [self._ort.OrtValue.ortvalue_from_numpy(array) for array in arrays]
        if names:
            options.add_external_initializers(names, values)
        try:
            try:
                session = self._create_inference_session(proto, options, arguments)
            except self._ort.capi.onnxruntime_pybind11_state.RuntimeException as error:
                if not optimize or FAILED_ALLOCATION.search(str(error)):
                    raise
                # An optimizer of this release fails on the graph.
                options.graph_optimization_level = levels.ORT_DISABLE_ALL
                session = self._create_inference_session(proto, options, arguments)
        except Exception as error:
            if FAILED_ALLOCATION.search(str(error)):
                raise convert_memory_error(_first_error_line(error)) from None
            remedy = next(
                (remedy for text, remedy in _LOADING_REMEDIES.items() if text in str(error)),
                "Check it with onnx.checker; operators of other domains need their library.",
            )
            raise InputError("ONNX Runtime refuses this network", _first_error_line(error), remedy) from None
        io_binding_runner, first_binding = None, getattr(first_piece, "io_binding_runner", None)
        if on_mode_change is not None and self.provider == "cuda":
            io_binding_runner = IoBindingRunner(
                self._ort,
                session,
                None
                if few_executions
                else lambda shapes: self._create_inference_session(
                    _set_static_input_shapes(proto, shapes), options, _CUDA_GRAPH_ARGUMENTS, capture_graphs=True
                ),
                on_mode_change,
                first_binding.device_copies if first_binding is not None else None,
            )
        bf16_inputs = [value_name(value) for value in model.graph.inputs if value.dtype == ir.DataType.BFLOAT16]
        return OnnxRuntimeRunner(session, (values, arrays), inputs, weights, io_binding_runner, bf16_inputs)

    def _create_inference_session(
        self, model_bytes: bytes, options: Any, session_arguments: Mapping[str, Any], *, capture_graphs: bool = False
    ) -> Any:
        """Creates an inference session.

        Args:
            capture_graphs: True for a session that captures CUDA graphs. Such a session refuses control flow and nodes
                on the CPU.
        """
        graph_options = (
            {"enable_cuda_graph": "1", "user_compute_stream": str(get_cuda_graph_stream())} if capture_graphs else {}
        )
        providers = _list_providers(self.provider, {**self.cuda_options, **graph_options})
        with DEVICE_LOCK:
            session = self._ort.InferenceSession(model_bytes, options, providers=providers, **session_arguments)
        if (
            self.provider == "cuda" and PROVIDERS["cuda"] not in session.get_providers()
        ):  # some releases ignore ``enable_fallback``
            raise RuntimeError("the CUDA provider did not start")
        session.disable_fallback()
        return session


class OnnxRuntimeRunner(ClosingContext):
    """A network that is loaded in ONNX Runtime.

    Args:
        session_arrays: The arrays that the inference session reads without owning them.
        inputs: The names of the inputs that callers feed, in order.
        weights: The weights that are fed to every execution in addition.
        io_binding_runner: The runner with all inputs and outputs bound on the device; None to pass arrays.
        bf16_inputs: The names of BF16 inputs, which the inference session takes as FP32.
    """

    def __init__(
        self,
        session: Any,
        session_arrays: object,
        inputs: Sequence[str],
        weights: Mapping[str, np.ndarray],
        io_binding_runner: IoBindingRunner | None = None,
        bf16_inputs: Sequence[str] = (),
    ) -> None:
        self._session = session
        self._bf16_inputs = tuple(bf16_inputs)
        self._session_arrays = session_arrays
        self._uses_device = io_binding_runner is not None or session.get_providers()[0] == PROVIDERS["cuda"]
        self._weights = dict(weights)
        self.io_binding_runner = io_binding_runner
        infos = {value.name: _read_tensor_info(value) for value in session.get_inputs()}
        self.inputs = tuple(infos[name] for name in inputs if name in infos)
        self.outputs = tuple(_read_tensor_info(value) for value in session.get_outputs())

    def run(
        self, feed: Mapping[str, np.ndarray | DeviceTensor], fetch: Sequence[str] | None = None
    ) -> dict[str, np.ndarray]:
        names = list(fetch) if fetch is not None else [info.name for info in self.outputs]
        return self._execute(feed, names, keep_results=False)

    def run_keeping_results(
        self, feed: Mapping[str, np.ndarray | DeviceTensor]
    ) -> dict[str, np.ndarray | DeviceTensor]:
        return self._execute(feed, [info.name for info in self.outputs], keep_results=True)

    def _execute(self, feed: Mapping[str, Any], names: Sequence[str], *, keep_results: bool) -> dict[str, Any]:
        full_feed = {**self._weights, **feed}
        full_feed.update(
            (name, feed[name].astype(np.float32))
            for name in self._bf16_inputs
            if isinstance(feed.get(name), np.ndarray)
        )
        try:
            with DEVICE_LOCK if self._uses_device else contextlib.nullcontext():
                results = (
                    self._session.run(names, full_feed)
                    if self.io_binding_runner is None
                    else (self.io_binding_runner.run(full_feed, names, keep_results=keep_results))
                )
            return dict(zip(names, results, strict=True))
        except Exception as error:
            if FAILED_ALLOCATION.search(str(error)):
                raise convert_memory_error(_first_error_line(error)) from None
            for subject, message in _WRONG_SHAPE_MESSAGES.items():
                if match := message.search(str(error)):
                    shapes = (match[field].replace(",", "×") for field in ("declared", "computed"))
                    group = _GATE_NODE_NAME.search(str(error))  # inside its If, tensors have names of their own
                    tensor = f"the result of {group[1]}" if group else subject + match["name"].partition("#")[0]
                    raise wrong_shape_error(tensor, *shapes) from None
            raise RunFailedError(
                "ONNX Runtime could not run the network",
                _first_error_line(error),
                "Check the data's shapes and types against the network's inputs. Samples lie along the first axis of each "
                "input; if an input has its batch on another axis, give --batch with the size of the data.",
            ) from None

    def close(self) -> None:
        """Frees the inference session and the weights."""
        if self.io_binding_runner is not None:
            self.io_binding_runner.close()
        self._session = None
        self._session_arrays = None
        self._weights = {}


def _create_session_options(
    log_severity_level: int,
    entries: Mapping[str, str] | None = None,
    operators: Sequence[str] = (),
    threads: int | None = None,
) -> Any:
    """Creates the options of an inference session.

    Args:
        entries: Entries of the session config.
        operators: The paths of custom operator libraries.
        threads: The number of threads of one operator; None for ONNX Runtime's default.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = log_severity_level
    for entry, value in (entries or {}).items():
        options.add_session_config_entry(entry, value)
    for path in operators:
        options.register_custom_ops_library(path)
    if threads:
        options.intra_op_num_threads = threads
    return options


def _list_providers(provider: str, cuda_options: Mapping[str, str]) -> list[str | tuple[str, Mapping[str, str]]]:
    """Returns the providers of an inference session, the preferred one first."""
    return [*([(PROVIDERS["cuda"], cuda_options)] if provider == "cuda" else []), PROVIDERS["cpu"]]


@functools.cache
def _cuda_failure_reason() -> str:
    """Returns the reason why the CUDA provider does not work here; "" if it works.

    ONNX Runtime lists the provider if it was built with CUDA, and silently falls back to the CPU if libraries of the
    provider are missing. A network of one node is therefore executed on the provider.
    """
    import onnxruntime

    available = onnxruntime.get_available_providers()
    if PROVIDERS["cuda"] not in available:
        return f"it offers {', '.join(available)}"
    try:
        find_first_device()
    except BackendUnavailableError as error:
        return f"{error.title}: {error.cause}"
    with contextlib.redirect_stdout(io.StringIO()):  # ``preload_dlls`` prints the libraries that it does not find
        onnxruntime.preload_dlls()
    libraries = Path(onnxruntime.__file__).parent / "capi"
    try:
        for name in ("libonnxruntime_providers_shared.so", "libonnxruntime_providers_cuda.so"):
            ctypes.CDLL(str(libraries / name), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        return str(error)
    try:
        session = onnxruntime.InferenceSession(
            onnx.parser.parse_model(_RELU_NETWORK).SerializeToString(),
            _create_session_options(4),
            providers=[PROVIDERS["cuda"]],
            enable_fallback=0,
        )
        session.run(None, {"x": np.zeros(1, np.float32)})
    except Exception as error:
        return _first_error_line(error)
    return "" if PROVIDERS["cuda"] in session.get_providers() else "it does not start"


def _read_tensor_info(node_arg: Any) -> TensorInfo:
    return TensorInfo(node_arg.name, np.dtype(NUMPY_TYPES.get(node_arg.type, object)), tuple(node_arg.shape))


def _first_error_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _serialize_without_weights(
    model: ir.Model, min_fed_bytes: float
) -> tuple[bytes, dict[str, np.ndarray], list[str], list[np.ndarray]]:
    """Returns a serialized model without its large initializers, which are unchanged afterwards.

    Initializers without a reader are left out: ONNX Runtime drops them first, and then fails to find them by name. An
    initializer in a file that cannot be passed as an array is read here, so that ONNX Runtime opens no file.

    Args:
        min_fed_bytes: The minimum size of initializers that become graph inputs.

    Returns:
        The bytes; the arrays of the initializers that are fed to every execution, by input name; the names of those
        that are declared as external, and their arrays.
    """
    graph, weights, names, arrays = model.graph, dict[str, np.ndarray](), list[str](), list[np.ndarray]()
    initializers, input_count = dict(graph.initializers), len(graph.inputs)
    tensors = {name: tensor for name, value in initializers.items() if (tensor := value.const_value) is not None}
    try:
        for name, value in initializers.items():
            tensor = tensors[name]
            if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
                del graph.initializers[name]
                continue
            is_large = tensor.dtype != ir.DataType.STRING and tensor.nbytes >= _MIN_SHARED_WEIGHT_BYTES
            array = tensor.numpy() if is_large else None
            if array is None or array.dtype.kind not in "fiub":
                if isinstance(tensor, ir.ExternalTensor):
                    value.const_value = ir.Tensor(tensor.numpy().copy(), dtype=tensor.dtype, name=name)
            elif tensor.nbytes >= min_fed_bytes and not value.is_graph_output():
                weights[name] = np.ascontiguousarray(array)
                del graph.initializers[name]
                value.const_value = None
                if not value.is_graph_input():
                    graph.inputs.append(value)
            else:
                names.append(name)
                arrays.append(np.ascontiguousarray(array))
                value.const_value = ir.ExternalTensor(
                    "weights", 0, tensor.nbytes, tensor.dtype, shape=ir.Shape(array.shape), name=name
                )
        proto: onnx.ModelProto = ir.to_proto(model)
    finally:
        graph.inputs[input_count:] = []
        graph.initializers.clear()
        for name, value in initializers.items():
            value.const_value = tensors[name]
            graph.initializers[name] = value
    if random_outputs := {
        value_name(node.outputs[0]): (node.outputs[0].dtype or ir.DataType.FLOAT).value
        for node in model.graph.all_nodes()
        if is_random(node)
    }:
        make_random_nodes_deterministic(proto.graph, random_outputs, model.opset_imports.get("", 1))
    _expose_bf16_interface_as_fp32(proto.graph)
    proto.ir_version = min(proto.ir_version, MAX_IR_VERSION)
    return proto.SerializeToString(), weights, names, arrays


def _expose_bf16_interface_as_fp32(graph: onnx.GraphProto) -> None:
    """Turns BF16 inputs and outputs of a graph into FP32 with a Cast, since ONNX Runtime does not exchange BF16 with
    numpy."""

    def make_cast_node(source: str, result: str, element_type: int) -> onnx.NodeProto:
        return onnx.helper.make_node("Cast", [source], [result], name=f"{result}__cast", to=element_type)

    for value in graph.input:
        if value.type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16:
            _rename_value(graph, value.name, inner := f"{value.name}__bf16")
            graph.node.insert(0, make_cast_node(value.name, inner, onnx.TensorProto.BFLOAT16))
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    for value in graph.output:
        if value.type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16:
            _rename_value(graph, value.name, inner := f"{value.name}__bf16_result")
            graph.node.append(make_cast_node(inner, value.name, onnx.TensorProto.FLOAT))
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT


def _rename_value(graph: onnx.GraphProto, old_name: str, new_name: str) -> None:
    for node in graph.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                if name == old_name:
                    names[index] = new_name
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename_value(attribute.g, old_name, new_name)


def _set_static_input_shapes(model_bytes: bytes, shapes: Mapping[str, tuple[int, ...]]) -> bytes:
    """Returns a serialized model with static input shapes, so that values computed from shapes become constants."""
    model = onnx.ModelProto.FromString(model_bytes)
    for value in model.graph.input:
        if value.name in shapes:
            del value.type.tensor_type.shape.dim[:]
            for size in shapes[value.name]:
                value.type.tensor_type.shape.dim.add().dim_value = size
    shaped_proto: bytes = model.SerializeToString()
    return shaped_proto


class ExportedFileRunner:
    """An exported file that is loaded in ONNX Runtime, with the fusions, quantized kernels and other optimizations that
    ONNX Runtime chooses.

    Args:
        path: The path of the ONNX file.
        provider: A key of `PROVIDERS`.
        tf32: True if the CUDA provider may compute FP32 in TF32, according to the config.
        threads: The number of threads of one operator; None for ONNX Runtime's default.
        operators: The paths of custom operator libraries.

    Attributes:
        options: The options other than the defaults that ONNX Runtime needed to load the file, as a text that follows
            its name; "" if it needed none.

    Raises:
        InputError: ONNX Runtime refuses the file.
        OutOfMemoryError: An allocation failed.
        BackendUnavailableError: The provider does not work here.
    """

    def __init__(
        self, path: str, provider: str, *, tf32: bool = False, threads: int | None = None, operators: Sequence[str] = ()
    ) -> None:
        import onnxruntime

        from trt_tui.core.exporters.onnx import NORMALISATION_FUSIONS

        if truncates_fp16_quantization():
            copy_path = Path(path).with_name(f"fp32_quantization_{Path(path).name}")
            ir.save(quantize_in_fp32(ir.load(path)), copy_path)
            path = str(copy_path)
        if provider == "cuda":
            OnnxRuntimeBackend("cuda")  # loads the provider's libraries; raises an error if it does not work
        providers = _list_providers(provider, {"use_tf32": str(int(tf32))})
        # With the first entry INT8 sums do not saturate, but some operators lack a kernel. The second entry keeps every
        # Q/DQ pair. ONNX Runtime 1.32 fuses a LayerNormalization in FP16 whose input comes from an FP32 layer into a
        # node of two types, and then refuses that node.
        failure = None
        for entry, disabled, self.options in (
            ("session.x64quantprecision", (), ""),
            ("session.disable_quant_qdq", (), "with session.disable_quant_qdq set to 1"),
            (
                "session.x64quantprecision",
                NORMALISATION_FUSIONS,
                f"without its optimizers {' and '.join(NORMALISATION_FUSIONS)}",
            ),
        ):
            options = _create_session_options(3, {entry: "1"}, operators, threads)
            try:
                self._session = onnxruntime.InferenceSession(
                    path, options, providers=providers, disabled_optimizers=list(disabled)
                )
                break
            except Exception as error:
                failure = failure or _translate_onnxruntime_error("ONNX Runtime refuses the exported file", error)
        else:
            assert failure is not None
            raise failure
        self._session.disable_fallback()
        if PROVIDERS[provider] not in self._session.get_providers():
            raise InputError("ONNX Runtime refuses the exported file", f"its provider {provider} did not start")

    def run(self, feed: Mapping[str, np.ndarray], output_names: Sequence[str]) -> dict[str, np.ndarray]:
        """Executes the exported network once. Returns the named outputs.

        Raises:
            InputError: ONNX Runtime cannot execute the file.
            OutOfMemoryError: An allocation failed.
        """
        input_names = {info.name for info in self._session.get_inputs()}
        try:
            results = self._session.run(
                list(output_names), {name: array for name, array in feed.items() if name in input_names}
            )
        except Exception as error:
            raise _translate_onnxruntime_error("ONNX Runtime could not execute the exported file", error) from None
        return dict(zip(output_names, results, strict=True))


def _translate_onnxruntime_error(title: str, error: Exception) -> InputError:
    if FAILED_ALLOCATION.search(str(error)):
        raise convert_memory_error(_first_error_line(error)) from None
    return InputError(title, _first_error_line(error))


_TABLE_SIZE = 65521
"""The number of values in a table of random numbers: a prime, so that a tensor axis is unlikely to repeat the table."""


_CAST_LIKE_OPSET, _RANGE_OPSET = 15, 11
"""The opsets that introduced CastLike and Range."""


def make_random_nodes_deterministic(graph: onnx.GraphProto, random_outputs: Mapping[str, int], opset: int) -> None:
    """Replaces random nodes by nodes that yield the same numbers for the same shapes in every execution, also in
    subgraphs.

    Args:
        random_outputs: The first outputs of the nodes to replace, with their element types; FP32 if the type is
            unknown. A Multinomial is not replaced, since networks use it only to choose at random.
        opset: The opset of the model. Below 11 no node is replaced, since Range does not exist.
    """
    if opset < _RANGE_OPSET:
        return
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        for attribute in node.attribute:
            for subgraph in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                make_random_nodes_deterministic(subgraph, random_outputs, opset)
        element_type = random_outputs.get(node.output[0]) if node.output and node.op_type != "Multinomial" else None
        graph.node.extend([node] if element_type is None else _make_deterministic_nodes(node, element_type, opset))


_RANDOM_TENSOR_TEXT = """
    count = ReduceProd <keepdims = 0> (shape)
    stop = Add (start, count)
    positions = Range (start, stop, step)
    indices = Mod (positions, size)
    numbers = Gather (table, indices)
    random = Reshape (numbers, shape)
"""
"""The nodes that read FP32 numbers from a table in the shape of a random tensor."""

_BERNOULLI_TEXT = "probability = Cast <to = 1> (data) drawn = Less (random, probability)"
_DROPOUT_TEXT = """
    rate = Where (training, ratio, zero)
    mask = GreaterOrEqual (random, rate)
    kept_share = Sub (one, rate)
    kept_factor = Reciprocal (kept_share)
    factor = Where (mask, kept_factor, zero)
"""


def _make_deterministic_nodes(node: onnx.NodeProto, element_type: int, opset: int) -> list[onnx.NodeProto]:
    """Returns the nodes that replace a random node.

    Args:
        element_type: The element type of the output.
    """
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    key = " ".join((node.op_type, *(f"{name}={value}" for name, value in sorted(attributes.items()))))
    normal_numbers, uniform_numbers = _make_random_number_tables()
    low, high = attributes.get("low", 0.0), attributes.get("high", 1.0)
    table = (
        normal_numbers * attributes.get("scale", 1.0) + attributes.get("mean", 0.0)
        if node.op_type.startswith("RandomNormal")
        else uniform_numbers * (high - low) + low
    )
    constants = {
        "table": table.astype(np.float32),
        "start": np.int64(zlib.crc32(key.encode()) % _TABLE_SIZE),
        "step": np.int64(1),
        "size": np.int64(_TABLE_SIZE),
        "zero": np.float32(0),
        "one": np.float32(1),
        "ratio": np.float32(0.5),
        "shape": np.array(attributes.get("shape", ()), np.int64),
    }
    names = dict(zip(("data", "stored_ratio", "training"), node.input, strict=False))
    has_input_type = "dtype" not in attributes and bool(node.input)
    to_type = attributes.get("dtype") or (element_type if has_input_type else TensorProto.FLOAT)
    cast = "CastLike ({}, data)" if has_input_type and opset >= _CAST_LIKE_OPSET else f"Cast <to = {to_type}> ({{}})"
    text = ("" if "shape" in attributes else "shape = Shape (data)") + _RANDOM_TENSOR_TEXT
    if node.op_type == "Dropout":
        text += "ratio = Cast <to = 1> (stored_ratio)" if names["stored_ratio"] else ""
        text += f"{_DROPOUT_TEXT} typed_factor = {cast.format('factor')} result = Mul (data, typed_factor)"
    elif node.op_type == "Bernoulli":
        text += f"{_BERNOULLI_TEXT} result = {cast.format('drawn')}"
    else:
        text += f"result = {cast.format('random')}"
    nodes = onnx.parser.parse_function(f'<domain: "trt_tui", opset_import: ["": {opset}]> f () => () {{ {text} }}').node
    computed = {name for new_node in nodes for name in new_node.output}
    read = {name for new_node in nodes for name in new_node.input} - computed
    names |= dict(zip(("result", "mask"), filter(None, node.output), strict=False))
    names = {name: names.get(name) or f"{node.output[0]}__chance_{name}" for name in (*computed, *read)}
    for new_node in nodes:
        new_node.name = names[new_node.output[0]]
        for values in (new_node.input, new_node.output):
            values[:] = [names[name] for name in values]
    return [
        *(
            helper.make_node("Constant", [], [names[name]], value=numpy_helper.from_array(np.asarray(array)))
            for name, array in constants.items()
            if name in read
        ),
        *nodes,
    ]


@functools.cache
def _make_random_number_tables() -> tuple[np.ndarray, np.ndarray]:
    """Returns the tables of normal and of uniform FP32 numbers."""
    random = np.random.default_rng(0)
    return random.standard_normal(_TABLE_SIZE, np.float32), random.random(_TABLE_SIZE, np.float32)


_ShapesKey = tuple[tuple[str, tuple[int, ...]], ...]
"""The shapes of a feed, by input."""

DEVICE = "cuda"

DEVICE_LOCK = threading.RLock()
"""The lock of all work on the device. While one thread captures a CUDA graph, other threads must not call CUDA."""

RUNS_BEFORE_CAPTURE = 2
"""The number of executions with the same shapes before a CUDA graph is captured."""

MAX_IDLE_COPY_BYTES = 1 << 30
"""The maximum size of the device copies of arrays that the last execution did not need, and of kept results."""

CUDA_GRAPH_MODE, BOUND_MODE = "CUDA graph", "bound inputs and outputs"
"""The names of the two execution modes on a GPU."""

NUMPY_TYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(int16)": np.int16,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
    "tensor(uint16)": np.uint16,
    "tensor(uint32)": np.uint32,
    "tensor(uint64)": np.uint64,
    "tensor(bool)": np.bool_,
}
"""The numpy types of elements, by ONNX Runtime's name of the type of a tensor."""

_MAX_REASON_CHARACTERS = 160

_MESSAGE_FRAME = re.compile(
    r"^\d+ : [A-Z_]+ : |Exception during initialization: |/\S+\.(cc|h):\d+ .*?\) ?(\[with .*?\] )?"
)
"""The parts of ONNX Runtime messages around the actual text: error codes and positions in its source."""

_HOST_ONLY_KINDS = "OUS"
"""The numpy kinds of arrays that cannot be copied to a device: objects and strings."""


class DeviceResult:
    """A result of an execution that stays on the device. Nothing writes to it after the execution.

    Attributes:
        value: The OrtValue with the result.
        stream: The CUDA stream that writes the result; None if the result is complete.
    """

    def __init__(self, value: Any, stream: int | None) -> None:
        self.value, self.stream, self.nbytes = value, stream, int(value.tensor_size_in_bytes())
        self.shape, self.dtype = tuple(value.shape()), _ort_value_dtype(value)

    def to_host(self) -> np.ndarray:
        """Returns the result as a host array."""
        with DEVICE_LOCK:
            if self.stream is not None:
                synchronize_stream(self.stream)
            array: np.ndarray = self.value.numpy()
            return array


_Fed = np.ndarray | DeviceResult
"""A value that is fed to an execution."""


class DeviceArrayCopies:
    """Copies of numpy arrays in GPU memory, found by the identity of the array. A copy is freed with its array.

    Attributes:
        total_bytes: The size of all copies.
        result_bytes: The size of all results that stay on the device and are still in use.
        max_idle_bytes: The maximum size of the copies that the last execution did not need, and of the results.
        stream: The CUDA stream whose work may still read a freed copy; None if there is no such work.
    """

    def __init__(self, ort: Any) -> None:
        self._ort = ort
        self._copies: dict[int, tuple[weakref.ref[np.ndarray], Any]] = {}
        self.total_bytes, self.max_idle_bytes = 0, MAX_IDLE_COPY_BYTES
        self.result_bytes = 0
        self.stream: int | None = None

    def __len__(self) -> int:
        return len(self._copies)

    def get_device_copy(self, array: _Fed) -> Any:
        """Returns the device copy of an array, an OrtValue. The copy is made if there is none."""
        if isinstance(array, DeviceResult):
            return array.value
        cached = self._copies.get(id(array))
        if cached is not None and cached[0]() is array:
            return cached[1]
        if self.stream is not None:  # the new copy may get the memory of a freed one
            synchronize_stream(self.stream)
        value = _copy_to_device(self._ort, array)
        key, size = id(array), array.nbytes
        self._copies[key] = weakref.ref(array, lambda _: self._drop_device_copy(key, size)), value
        self.total_bytes += size
        return value

    def _drop_device_copy(self, array_id: int, byte_count: int) -> None:
        if self._copies.pop(array_id, None) is not None:
            self.total_bytes -= byte_count

    def keep_result(self, value: Any, stream: int | None = None) -> DeviceResult:
        """Returns a result that stays on the device. While it is in use, it counts against `max_idle_bytes`."""
        result = DeviceResult(value, stream)
        self.result_bytes += result.nbytes
        weakref.finalize(result, self._subtract_result_bytes, result.nbytes).atexit = False
        return result

    def _subtract_result_bytes(self, byte_count: int) -> None:
        self.result_bytes -= byte_count

    def free_unused_copies(self, used_arrays: Iterable[_Fed] = ()) -> None:
        """Frees the oldest device copies of unused arrays, until they and the kept results take at most
        `max_idle_bytes`."""
        if self.total_bytes + self.result_bytes <= self.max_idle_bytes:
            return
        used_sizes = {id(array): array.nbytes for array in used_arrays if id(array) in self._copies}
        idle_bytes = self.total_bytes + self.result_bytes - sum(used_sizes.values())
        for key in [key for key in self._copies if key not in used_sizes]:
            if idle_bytes <= self.max_idle_bytes:
                return
            array = self._copies[key][0]()
            if array is not None:
                self._drop_device_copy(key, array.nbytes)
                idle_bytes -= array.nbytes

    def free_all_device_copies(self) -> None:
        self._copies.clear()
        self.total_bytes = 0


class IoBindingRunner:
    """The executions of one network on a GPU with I/O binding for all inputs and outputs.

    Args:
        session: An inference session for any shapes, with CUDA as its first provider.
        make_capturing_session: A function that creates an inference session that captures CUDA graphs for given input
            shapes; None to capture no graph.
        on_mode_change: A function that is called with the execution mode whenever the mode changes.
        device_copies: The device copies of the other pieces of the same network; None for a network in one piece.
    """

    def __init__(
        self,
        ort: Any,
        session: Any,
        make_capturing_session: Callable[[Mapping[str, tuple[int, ...]]], Any] | None,
        on_mode_change: Callable[[ExecutionMode], None],
        device_copies: DeviceArrayCopies | None = None,
    ) -> None:
        self._ort = ort
        self._session = session
        self._make_capturing_session = make_capturing_session
        self._on_mode_change = on_mode_change
        self.device_copies = device_copies if device_copies is not None else DeviceArrayCopies(ort)
        self._captured_graph: _CapturedCudaGraph | None = None
        self._shape_counts: Counter[_ShapesKey] = Counter()
        self.mode = ExecutionMode(BOUND_MODE)
        """The execution mode: a CUDA graph for the first shapes that occurred twice, bound inputs for other shapes."""

    def run(self, feed: Mapping[str, _Fed], output_names: Sequence[str], *, keep_results: bool = False) -> list[_Fed]:
        """Executes the network once. Returns the outputs in the order of ``output_names``.

        If device memory runs out, the CUDA graph and all copies that this execution does not need are freed, and the
        network is executed again. From then on, no idle copies are kept.

        Args:
            keep_results: True for outputs that stay on the device, False for host arrays.
        """
        try:
            return self._run_without_retry(feed, output_names, keep_results)
        except Exception as error:
            if not FAILED_ALLOCATION.search(str(error)):
                raise
            reason = _short_error_text(error)
        self._captured_graph = self._make_capturing_session = None
        self.device_copies.max_idle_bytes = 0
        self.device_copies.free_unused_copies(feed.values())
        results = self._run_without_retry(feed, output_names, keep_results)
        self._set_execution_mode(ExecutionMode(BOUND_MODE, reason))
        return results

    def _run_without_retry(
        self, feed: Mapping[str, _Fed], output_names: Sequence[str], keep_results: bool
    ) -> list[_Fed]:
        copies = self.device_copies
        if (
            self._captured_graph is not None
            and (changed_names := self._captured_graph.find_changed_inputs(feed)) is not None
        ):
            results = self._captured_graph.replay(feed, changed_names, output_names, copies, keep_results)
            copies.free_unused_copies()
            return results
        if copies.stream is not None:  # pieces before this one may have a CUDA graph
            synchronize_stream(copies.stream)
        binding = self._bind_inputs(feed)
        for name in output_names:
            binding.bind_output(name, DEVICE if keep_results else "cpu")
        self._session.run_with_iobinding(binding)
        results = (
            [copies.keep_result(value) for value in binding.get_outputs()]
            if keep_results
            else list(binding.copy_outputs_to_cpu())
        )
        copies.free_unused_copies(feed.values())
        if self._make_capturing_session is not None:
            self._shape_counts[_input_shapes_key(feed)] += 1
            if self._shape_counts[_input_shapes_key(feed)] == RUNS_BEFORE_CAPTURE:
                self._capture_cuda_graph(feed)
        return results

    def _bind_inputs(self, feed: Mapping[str, _Fed]) -> Any:
        binding = self._session.io_binding()
        for name, array in feed.items():
            if array.dtype.kind in _HOST_ONLY_KINDS:
                binding.bind_cpu_input(name, array)
            else:
                binding.bind_ortvalue_input(name, self.device_copies.get_device_copy(array))
        return binding

    def _capture_cuda_graph(self, feed: Mapping[str, _Fed]) -> None:
        """Captures a CUDA graph for the shapes of a feed, if the network can be captured. Later executions with these
        shapes use the graph."""
        make_session, self._make_capturing_session = self._make_capturing_session, None
        self._shape_counts.clear()
        assert make_session is not None
        try:
            names = [output.name for output in self._session.get_outputs()]
            binding = self._bind_inputs(feed)
            for name in names:
                binding.bind_output(name, DEVICE)
            self._session.run_with_iobinding(binding)
            output_slots = dict(zip(names, binding.get_outputs(), strict=True))
            del binding
            self.device_copies.free_unused_copies()
            session = make_session(dict(_input_shapes_key(feed)))
            self.device_copies.stream = get_cuda_graph_stream()
            self._captured_graph = _CapturedCudaGraph(self._ort, session, feed, output_slots, self.device_copies.stream)
        except Exception as error:  # nodes on the CPU, control flow, strings, no memory: inputs and outputs stay bound
            self._set_execution_mode(ExecutionMode(BOUND_MODE, f"no CUDA graph: {_short_error_text(error)}"))
        else:
            self._set_execution_mode(ExecutionMode(CUDA_GRAPH_MODE))

    def _set_execution_mode(self, mode: ExecutionMode) -> None:
        self.mode = mode
        self._on_mode_change(mode)

    def close(self) -> None:
        self.device_copies.free_all_device_copies()
        self._captured_graph = self._session = self._make_capturing_session = None


class _CapturedCudaGraph:
    """A captured CUDA graph of a network with fixed shapes. Every input and output has a separate buffer.

    Args:
        output_slots: The buffers of all outputs, by name.
        stream: The CUDA stream of the inference session, on which inputs and results are copied too; None if the
            session has a stream of its own.
    """

    def __init__(
        self, ort: Any, session: Any, feed: Mapping[str, _Fed], output_slots: Mapping[str, Any], stream: int | None
    ) -> None:
        self._ort, self._session, self._stream = ort, session, stream
        self._binding = session.io_binding()
        self._input_slots = {
            name: _allocate_like(ort, array.value) if isinstance(array, DeviceResult) else _copy_to_device(ort, array)
            for name, array in feed.items()
        }
        self._output_slots = dict(output_slots)
        self._last_feed: dict[str, _Fed] = {
            name: array for name, array in feed.items() if not isinstance(array, DeviceResult)
        }
        self._shapes = {name: array.shape for name, array in feed.items()}
        for name, slot in self._input_slots.items():
            self._binding.bind_ortvalue_input(name, slot)
        for name, slot in self._output_slots.items():
            self._binding.bind_ortvalue_output(name, slot)
        self._session.run_with_iobinding(self._binding)  # this execution is captured
        self._replay_options = ort.RunOptions()
        if stream is not None:
            self._replay_options.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def find_changed_inputs(self, feed: Mapping[str, _Fed]) -> list[str] | None:
        """Returns the names of the inputs whose arrays differ from those of the last feed. If a shape differs from the
        captured shape, returns None."""
        changed_names = [name for name, array in feed.items() if self._last_feed.get(name) is not array]
        has_same_shapes = len(feed) == len(self._shapes) and all(
            self._shapes.get(name) == feed[name].shape for name in changed_names
        )
        return changed_names if has_same_shapes else None

    def replay(
        self,
        feed: Mapping[str, _Fed],
        changed_inputs: Sequence[str],
        output_names: Sequence[str],
        device_copies: DeviceArrayCopies,
        keep_results: bool,
    ) -> list[_Fed]:
        """Copies the changed inputs to their buffers and replays the graph. Returns the named outputs, copied from
        their buffers to other device memory or to the host."""
        regions = []
        for name in changed_inputs:
            array = feed[name]
            source = device_copies.get_device_copy(array)
            if not isinstance(array, DeviceResult):  # a result would stay in use
                self._last_feed[name] = array
            regions.append((source.data_ptr(), self._input_slots[name].data_ptr(), array.nbytes))
        if regions:
            copy_device_memory(regions, self._stream)
        self._session.run_with_iobinding(self._binding, self._replay_options)
        slots = [self._output_slots[name] for name in output_names]
        if not keep_results:
            if self._stream is not None:
                synchronize_stream(self._stream)
            return [slot.numpy() for slot in slots]
        results = [device_copies.keep_result(_allocate_like(self._ort, slot), self._stream) for slot in slots]
        copy_device_memory(
            [
                (slot.data_ptr(), result.value.data_ptr(), result.nbytes)
                for slot, result in zip(slots, results, strict=True)
            ],
            self._stream,
        )
        return list(results)


def get_cuda_graph_stream() -> int | None:
    """Returns the CUDA stream for all CUDA graphs of this process; None without a GPU."""
    return get_shared_stream() if DEVICE == "cuda" else None


def _input_shapes_key(feed: Mapping[str, _Fed]) -> _ShapesKey:
    return tuple((name, array.shape) for name, array in feed.items())


def _copy_to_device(ort: Any, array: np.ndarray) -> Any:
    return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), DEVICE, 0)


def _allocate_like(ort: Any, value: Any) -> Any:
    """Returns device memory for a tensor of the same shape and type, an OrtValue."""
    return ort.OrtValue.ortvalue_from_shape_and_type(value.shape(), _ort_value_dtype(value), DEVICE, 0)


def _ort_value_dtype(value: Any) -> np.dtype:
    """Returns the numpy type of the elements of an OrtValue."""
    return np.dtype(NUMPY_TYPES[value.data_type()])


def _short_error_text(error: Exception) -> str:
    """Returns the message of an ONNX Runtime error in one line, without error codes and positions in its source."""
    text = " ".join(str(error).split()) or type(error).__name__
    if FAILED_ALLOCATION.search(text):
        return "the GPU memory is too small"
    text = _MESSAGE_FRAME.sub("", text.rpartition("[ONNXRuntimeError] : ")[2]).partition(" ; ")[0]
    return text if len(text) <= _MAX_REASON_CHARACTERS else f"{text[:_MAX_REASON_CHARACTERS]}…"
