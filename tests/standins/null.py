"""A backend that computes in double precision with onnx's own reference of each operator, but for what splits float32
values, which it computes in that.

Its figures are the same on every machine and with every release of ONNX Runtime. A network is loaded at once, and what
two runs in a row share is computed once, so that sweeps over small networks are quick.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from trt_tui.core.data.adaptive_runner import AdaptiveRunner
from trt_tui.core.engines.fallback_ladder import BuildError
from trt_tui.core.lowering.typed_network import lower_from_source_model
from trt_tui.core.measure.results import ExportedRun
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.core.runner import (
    BackendCapabilities,
    BuildSettings,
    BuildStep,
    DebugTensor,
    ExecutionMode,
    LayerConstraints,
    TensorInfo,
)
from trt_tui.errors import CancelledError
from trt_tui.jobs.engine_build import measure_engine_accuracy
from trt_tui.jobs.scheduler import JobReporter, Steps, Urgency, override_urgency
from trt_tui.jobs.store import ResultStore
from trt_tui.workspace import Workspace

Values = dict[str, np.ndarray | None]
_LOW = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
_SPLITTING = ("split", "rest", "summed")
"""How the nodes begin that `trt_tui.core.lowering.rulebook.veltkamp_split_factor` is made for."""

LOADED = "runner"
"""The key of a model's metadata under which its runner is, if the model does not change."""

_AROUND = ("QuantizeLinear", "DequantizeLinear", "Cast", "Identity")
_TYPES = {TensorProto.FLOAT: np.dtype(np.float64), TensorProto.BFLOAT16: _LOW[1]}


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if array.dtype in (np.float32, *_LOW) else array


def _cast(value: np.ndarray, to: int) -> np.ndarray:
    with np.errstate(over="ignore"):
        return value.astype(_TYPES.get(to) or helper.tensor_dtype_to_np_dtype(to))


@cache
def _operator(node: bytes, opsets: tuple[tuple[str, int], ...]) -> Callable[..., tuple[np.ndarray, ...]]:
    """What onnx's reference does for a node whose tensors are t0, t1 and so on."""
    proto, given = onnx.NodeProto.FromString(node), dict(opsets)
    attributes = {one.name: helper.get_attribute_value(one) for one in proto.attribute}
    if proto.op_type == "Conv" and attributes.keys() <= {"kernel_shape", "pads", "strides", "group"}:
        return partial(_conv, **attributes)
    if proto.op_type == "Gelu" and attributes == {"approximate": b"tanh"}:
        return _gelu
    ends = [
        [helper.make_empty_tensor_value_info(name) for name in dict.fromkeys(filter(None, names))]
        for names in (proto.input, proto.output)
    ]
    if proto.op_type in ("QuantizeLinear", "DequantizeLinear"):
        given = {"": max(given[""], 19)}  # the oldest that the reference has; it holds those before
    return ReferenceEvaluator(helper.make_graph([proto], "node", *ends), opsets=given).rt_nodes_[0].run


def _conv(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | None = None,
    *,
    kernel_shape: Sequence[int] = (),
    pads: Sequence[int] = (),
    strides: Sequence[int] = (),
    group: int = 1,
) -> tuple[np.ndarray]:
    """A Conv as one product, where the reference takes a loop in Python."""
    axes = range(2, x.ndim)
    around = [
        (0, 0),
        (0, 0),
        *(zip(pads[: len(axes)], pads[len(axes) :], strict=True) if pads else [(0, 0)] * len(axes)),
    ]
    seen = np.lib.stride_tricks.sliding_window_view(np.pad(x, around), weight.shape[2:], tuple(axes))
    seen = seen[(..., *(slice(None, None, step) for step in strides or [1] * len(axes)), *[slice(None)] * len(axes))]
    inner = [1, *range(x.ndim, seen.ndim)]
    parts = [
        np.moveaxis(np.tensordot(one, own, (inner, range(1, x.ndim))), -1, 1)
        for one, own in zip(np.split(seen, group, axis=1), np.split(weight, group), strict=True)
    ]
    result = np.concatenate(parts, axis=1)
    return (result if bias is None else result + bias.reshape(-1, *[1] * len(axes)),)


def _gelu(x: np.ndarray) -> tuple[np.ndarray]:
    """A Gelu with the constants of the operator's definition, which the reference executes node by node."""
    inner, cube = np.float64(np.float32(2 / np.pi)), np.float64(np.float32(0.044715))
    return (0.5 * x * (1 + np.tanh(np.sqrt(inner) * (x + cube * (x * x * x)))),)


class _Node:
    """One operator. FLOAT tensors are held in double precision; of half ones results are rounded again."""

    def __init__(self, proto: onnx.NodeProto, opsets: Mapping[str, int]) -> None:
        self.proto, self.inputs, self.outputs = proto, list(proto.input), [name for name in proto.output if name]
        self.branches: dict[str, _Graph] = {}
        self._known: list[tuple[list[np.ndarray | None], tuple[np.ndarray, ...]]] = []
        attributes = {one.name: one for one in proto.attribute}
        if proto.op_type == "If":
            self.branches = {name: _Graph(one.g, opsets) for name, one in attributes.items()}
            self.inputs += [name for one in self.branches.values() for name in one.captured]
        elif proto.op_type == "Cast":
            self._to = attributes["to"].i
        self._opsets = dict(opsets)

    @cached_property
    def _reference(self) -> Callable[..., tuple[np.ndarray, ...]]:
        plain = onnx.NodeProto()
        plain.CopyFrom(self.proto)
        plain.ClearField("name")
        called = {name: f"t{place}" for place, name in enumerate(dict.fromkeys((*plain.input, *plain.output))) if name}
        plain.input[:], plain.output[:] = (
            [called.get(name, "") for name in names] for names in (plain.input, plain.output)
        )
        return _operator(plain.SerializeToString(deterministic=True), tuple(sorted(self._opsets.items())))

    def run(self, values: Values) -> None:
        """Adds its results to ``values``; they are those of before where its inputs are."""
        inputs = [values[name] if name else None for name in self.inputs]
        results = next(
            (
                results
                for known, results in self._known
                if all(one is other for one, other in zip(inputs, known, strict=True))
            ),
            None,
        )
        if results is None:
            results = self._computed(inputs)
            self._known = [(inputs, results), *self._known[:1]]
        values.update(zip(self.outputs, results, strict=False))

    def _computed(self, inputs: list[np.ndarray | None]) -> tuple[np.ndarray, ...]:
        operator = self.proto.op_type
        if operator == "If":
            branch = self.branches["then_branch" if inputs[0] else "else_branch"]
            return tuple(branch.run(dict(zip(self.inputs, inputs, strict=True)), branch.results))
        if operator == "Cast":
            return (_cast(inputs[0], self._to),)
        if self.proto.name.rstrip("0123456789#") in _SPLITTING:
            inputs = [one.astype(np.float32) for one in inputs]
            return (_wide(np.multiply(*inputs) if operator == "Mul" else np.subtract(*inputs)),)
        low = next((one.dtype for one in inputs if one is not None and one.dtype in _LOW), None)
        results = self._reference(*(one if one is None else _wide(one) for one in inputs))
        return tuple(
            one.astype(low) if low is not None and one.dtype == np.float64 else _wide(np.asarray(one))
            for one in results
        )


class _Graph:
    """Nodes in order, of which a run does those that it needs."""

    def __init__(self, proto: onnx.GraphProto, opsets: Mapping[str, int]) -> None:
        self.constants: Values = {one.name: _wide(numpy_helper.to_array(one)) for one in proto.initializer}
        self.nodes = [_Node(node, opsets) for node in proto.node]
        self.results = [one.name for one in proto.output]
        made = {name for node in self.nodes for name in node.outputs} | self.constants.keys()
        read = {name for node in self.nodes for name in node.inputs if name} | set(self.results)
        self.captured = sorted(read - made - {one.name for one in proto.input})
        self._needed: dict[tuple[str, ...], list[_Node]] = {}

    def run(self, fed: Values, wanted: Sequence[str]) -> list[np.ndarray]:
        values = {**self.constants, **fed}
        for node in self._for(tuple(wanted)):
            node.run(values)
        return [values[name] for name in wanted]

    def _for(self, wanted: tuple[str, ...]) -> list[_Node]:
        if wanted not in self._needed:
            needed, nodes = set(wanted), []
            for node in reversed(self.nodes):
                if needed.intersection(node.outputs):
                    nodes.append(node)
                    needed.update(node.inputs)
            self._needed[wanted] = nodes[::-1]
        return self._needed[wanted]


class NullRunner:
    """A loaded network."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._graph = _Graph(model.graph, {one.domain: one.version for one in model.opset_import})
        self.inputs, self.outputs = (tuple(map(_info, values)) for values in (model.graph.input, model.graph.output))
        self._types = {info.name: info.dtype for info in self.outputs}
        self._fed: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}

    def run(self, feed: Mapping[str, np.ndarray], fetch: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        names = list(fetch) if fetch is not None else list(self._types)
        with np.errstate(all="ignore"):
            found = self._graph.run({name: self._same(name, array) for name, array in feed.items()}, names)
        return {name: array.astype(self._types[name]) for name, array in zip(names, found, strict=True)}

    def _same(self, name: str, array: np.ndarray) -> np.ndarray:
        """The array of an earlier run that is equal to this one, so that nothing is computed twice for it."""
        earlier = self._fed.setdefault(name, [])
        for given, held in earlier:
            if given is array or np.array_equal(given, array):
                return held
        held = _wide(np.asarray(array)).copy()
        earlier[:] = [(np.array(array), held), *earlier[:2]]
        return held

    def close(self) -> None:
        pass

    def __enter__(self) -> NullRunner:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class NullBackend:
    """Loads networks for `NullRunner`."""

    name, version, provider = "null", "1.0", "cpu"
    capabilities = BackendCapabilities(can_execute=True, computes_in_fp16=False)

    def get_host_backend(self) -> None:
        return None

    def load(
        self,
        model: ir.Model,
        *,
        low_memory: bool = False,
        optimize: bool = True,
        on_mode_change: Callable[[ExecutionMode], None] | None = None,
        few_executions: bool = False,
        frees_tensors_early: bool = False,
        first_piece: object = None,
    ) -> NullRunner:
        return model.meta.get(LOADED) or _runner(ir.to_proto(model).SerializeToString(deterministic=True))


@lru_cache(maxsize=16)
def _runner(model: bytes) -> NullRunner:
    """What was loaded before, with what it has computed."""
    return NullRunner(onnx.load_from_string(model))


def _info(value: onnx.ValueInfoProto) -> TensorInfo:
    kind = value.type.tensor_type
    shape = tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in kind.shape.dim)
    return TensorInfo(value.name, helper.tensor_dtype_to_np_dtype(kind.elem_type), shape)


@dataclass(frozen=True)
class NullBuilder:
    """Builds engines that the null backend runs: Softmax in a fused region with the products beside it, what follows a
    product within it, a reformat and a Q on their own; times by what a layer computes in.

    Attributes:
        runs: Its engines can run here.
        worse: Noise on the outputs of engines with INT8, relative to their root mean square.
        check: The same of all others.
        otherwise: Precisions that nodes compute in, whatever the types are.
        cannot: Nodes that it has no kernel for in INT8.
        fails: The builder's last words: no engine is built.
    """

    name: str = "tensorrt"
    version: str = "11.4.0.21"
    device: str = "NVIDIA H200"
    runs: bool = True
    worse: float = 0.0
    check: float = 1e-5
    otherwise: Mapping[str, Precision] = field(default_factory=dict)
    cannot: tuple[str, ...] = ()
    fails: str = ""

    @property
    def capabilities(self) -> BackendCapabilities:
        return BackendCapabilities(can_execute=self.runs, computes_in_fp16=True, reports_progress=True)

    @property
    def cache_identity(self) -> tuple[object, ...]:
        return (repr(self),)

    def build(
        self,
        model_path: Path,
        settings: BuildSettings,
        constraints: LayerConstraints | None = None,
        *,
        on_step: BuildStep | None = None,
        on_message: Callable[[str, str], None] | None = None,
    ) -> bytes:
        if on_message is not None:
            on_message("info", "[MemUsageChange] Init CUDA: CPU +2, GPU +0")
        if self.fails:
            raise BuildError("TensorRT could not build the engine", self.fails, "Free device memory.", is_refused=False)
        if on_step is not None and not on_step("Timing tactics", 1, 2):
            raise CancelledError("stopped")
        built = onnx.load(model_path)
        for layer in _engine_layers(built, {}):
            for node in self.cannot if layer["Inputs"][0]["Datatype"] == "Int8" else ():
                if f"[ONNX Layer: {node}]" in layer["Metadata"]:
                    raise BuildError(
                        "TensorRT could not build the engine",
                        f"Could not find any implementation for node {layer['Name']}.",
                    )
        return built.SerializeToString(deterministic=True)

    def load_engine(self, data: bytes) -> NullEngine:
        return NullEngine(self, onnx.load_from_string(data))


class NullEngine(NullRunner):
    """A loaded engine of a `NullBuilder`."""

    device_memory = 12_600_000
    profiles = ()

    def __init__(self, builder: NullBuilder, model: onnx.ModelProto) -> None:
        super().__init__(model)
        quantized = any(node.op_type == "QuantizeLinear" for node in model.graph.node)
        self._noise = builder.worse if quantized else builder.check
        self._layers = _engine_layers(model, builder.otherwise)

    def run(self, feed: Mapping[str, np.ndarray], fetch: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        noise = np.random.default_rng(0)
        return {
            name: array + self._noise * np.sqrt(np.mean(array**2)) * noise.standard_normal(array.shape)
            for name, array in super().run(feed, fetch).items()
        }

    def latency_ms(self, feed: Mapping[str, np.ndarray]) -> float:
        return 1.02 * sum(self.layer_times_ms(feed, 1).values())

    def select_profile(self, index: int | None) -> None:
        pass

    def graph_latency_ms(self, feed: Mapping[str, np.ndarray]) -> float:
        return 0.98 * self.latency_ms(feed)

    def layer_times_ms(self, feed: Mapping[str, np.ndarray], run_count: int) -> dict[str, float]:
        halved = {"Int8": 4, "Half": 2}
        return {layer["Name"]: 0.02 / halved.get(layer["Inputs"][0]["Datatype"], 1) for layer in self._layers}

    def read_debug_tensors(self, feed: Mapping[str, np.ndarray], names: Container[str]) -> dict[str, DebugTensor]:
        """Nothing, as of engines that were not built to tell."""
        return {}

    def inspect(self) -> str:
        return json.dumps({"Layers": self._layers})


def _engine_layers(model: onnx.ModelProto, otherwise: Mapping[str, Precision]) -> list[dict[str, Any]]:
    """Engine layers in the words of TensorRT 11's inspector."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    kinds = {one.name: one.type.tensor_type.elem_type for one in (*graph.input, *graph.value_info, *graph.output)}
    words = {TensorProto.FLOAT16: "Half", TensorProto.BFLOAT16: "BFloat16", TensorProto.INT8: "Int8"}
    made = {name: node for node in graph.node for name in node.output}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    layers: list[dict[str, Any]] = []
    taken: set[str] = set()

    def layer(kind: str, nodes: Sequence[onnx.NodeProto], name: str = "") -> None:
        taken.update(node.name for node in nodes)
        before = [made.get(tensor) for tensor in nodes[0].input[:2]]
        quantized = all(one is not None and one.op_type == "DequantizeLinear" for one in before)
        word = "Int8" if quantized else words.get(kinds.get(nodes[0].output[0], 1), "Float")
        asked = next((otherwise[node.name] for node in nodes if node.name in otherwise), None)
        word = {Precision.FP16: "Half", Precision.FP32: "Float"}.get(asked, word) if asked is not None else word
        metadata = "" if name.startswith("Reformatting") else "\x1f".join(f"[ONNX Layer: {one.name}]" for one in nodes)
        layers.append(
            {
                "Name": name or " + ".join(one.name for one in nodes),
                "LayerType": kind,
                "Metadata": metadata,
                "Inputs": [{"Name": nodes[0].input[0], "Datatype": word}],
                "Outputs": [{"Name": nodes[-1].output[0], "Datatype": word}],
            }
        )

    def inside(tensor: str) -> onnx.NodeProto | None:
        """The node behind the Q, DQ and Cast in front of a tensor."""
        node = made.get(tensor)
        while node is not None and node.op_type in _AROUND:
            node = made.get(node.input[0])
        return node

    def following(node: onnx.NodeProto) -> onnx.NodeProto | None:
        after = readers.get(node.output[0], [])
        while len(after) == 1 and after[0].op_type in _AROUND:
            after = readers.get(after[0].output[0], [])
        return after[0] if len(after) == 1 else None

    for node in graph.node:
        if node.op_type == "Softmax":
            first, last = inside(node.input[0]), following(node)
            region = [one for one in (first, node, last) if one is not None]
            layer("Myelin", region, f"{{ForeignNode[{region[0].name}...{region[-1].name}]}}")
    for node in graph.node:
        if node.op_type in ("MatMul", "Gemm", "Conv") and node.name not in taken:
            nodes = [node]
            while (after := following(nodes[-1])) is not None and after.op_type in ("Add", "Relu", "Gelu"):
                nodes.append(after)
            if not any(one["LayerType"] == "Reformat" for one in layers):
                layer(
                    "Reformat",
                    [node],
                    f"Reformatting CopyNode for Input Tensor 0 to {' + '.join(one.name for one in nodes)}",
                )
            layer("gemm", nodes)
    for node in graph.node:
        if node.name not in taken and node.op_type not in (*_AROUND, "Constant", "Shape"):
            layer("kgen", [node])
    if first := next((node for node in graph.node if node.op_type == "QuantizeLinear"), None):
        layer("Quantize", [first])
    return layers


def execute(
    workspace: Workspace,
    store: ResultStore,
    report: JobReporter,
    config: PrecisionConfig,
    urgency: Urgency,
    feeds: Sequence[int] | None = None,
) -> Steps[ExportedRun]:
    """In place of `trt_tui.jobs.engine.execute_exported_file`: the null backend executes what is exported, in
    this process."""
    analysis = workspace.analysis
    typed = lower_from_source_model(workspace.network, config, workspace.ranges).model
    with AdaptiveRunner(analysis.backend, typed, analysis.samples, "the exported network") as runner:
        accuracy = yield from override_urgency(
            urgency, measure_engine_accuracy(analysis, runner, feeds or workspace.feeds)
        )
    return ExportedRun(accuracy, "ONNX Runtime 1.0 CPU", "cpu")
