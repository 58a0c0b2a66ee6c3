"""The effect of FP16 overflow on the judged outputs: whether they stay the same if values become infinite.

A value beyond FP16's range may do no harm: the Tanh behind the cube in a GELU saturates, a Clip or a Where replaces the
value, or no judged output depends on it. A kernel may round such a value to infinity or keep it in FP32; the result is
the same. The network is executed twice in FP32, with and without infinities in place of these values, and the judged
outputs are compared element by element.

Only operators that compute each value by itself, or move values, may read the infinities. The kernel of another
operator may compute NaN from them: a Winograd convolution subtracts infinities.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Protocol

import numpy as np
import onnx_ir as ir

from trt_tui.core.calibration.network_probe import NetworkProbe
from trt_tui.core.data.adaptive_runner import FP32_RUNS
from trt_tui.core.data.samples import Samples
from trt_tui.core.measure.fp16_range import Fp16Overflow, Fp16RangeState
from trt_tui.core.measure.judged_outputs import JudgedOutput, take_judged_slice
from trt_tui.core.measure.tensor_cache import TensorCache
from trt_tui.core.network.layers import Layer
from trt_tui.core.network.naming import value_name
from trt_tui.core.network.network import Network
from trt_tui.core.network.operators import COPIES, POINTWISE
from trt_tui.core.network.reachability import iterate_reachable
from trt_tui.core.network.subgraphs import list_subgraphs
from trt_tui.core.precision import FP16_OVERFLOW
from trt_tui.core.runner import Backend, Runner
from trt_tui.errors import InputError, OutOfMemoryError

MAX_RELATIVE_CHANGE = 2.0**-16
"""The change of a judged value that counts as none, relative to the value or to the RMS of its tensor."""

_TRANSPARENT_OPERATORS = POINTWISE | COPIES | {
    "And", "Cast", "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Mod", "Not", "Or",
    "Shape", "Size", "Xor"}
"""The operators that may read an infinity."""

_SATURATION_TEXTS = {
    **dict.fromkeys(("Tanh", "Sigmoid", "HardSigmoid", "Erf", "Softsign"), "saturates"),
    **dict.fromkeys(("Clip", "Min", "Max"), "limits the values"), "Where": "selects other values"}
"""The operators that may hide an infinity, each with its effect in words."""

_MAX_SATURATION_DISTANCE = 6
"""The maximum number of layers between an overflow and the layer that is named as the reason why it is harmless."""

_Site = tuple[str, str]
"""A tensor that FP16 rounds, and the layer that reads it in FP16; "" if its producer rounds it for all readers."""


class OverflowContext(Protocol):
    """The parts of a simulation that the measurement of the effect of overflow needs."""

    network: Network
    samples: Samples
    backend: Backend
    judged_outputs: tuple[JudgedOutput, ...]
    metric_tensors: tuple[str, ...]


class OverflowEffect:
    """The measurement of the effect of FP16 overflow on the judged outputs.

    One loaded graph serves all configs: a runtime input for each rounded tensor says whether a config rounds it. Each
    result is kept, and so are the outputs without overflow.
    """

    def __init__(self, context: OverflowContext) -> None:
        self._context = context
        self._gates: dict[_Site, str] = {}
        self._runner: Runner | None = None
        self._results: dict[tuple[frozenset[_Site], int], bool] = {}
        self._references = TensorCache()
        context.samples.memory_fallbacks.register_session_release(FP32_RUNS, self.unload_session)

    def mark_harmless_overflows(self, overflows: Sequence[Fp16Overflow],
                                feed_indices: Sequence[int]) -> list[Fp16Overflow]:
        """Returns the overflows of a config, with a mark on those that do not change the judged outputs.

        The tensors are harmless if the judged outputs of all feeds stay the same while all of them overflow. A value
        inside an operator, such as a partial sum, is harmless only if no judged output depends on it.
        """
        network = self._context.network
        used = [not self._judged_layers.isdisjoint(network.get_group(value.group_name).layers) for value in overflows]
        sites = frozenset((value.tensor, reader) for value, is_used in zip(overflows, used, strict=True)
                          if value.tensor and is_used for reader in value.readers or ("",))
        are_harmless = bool(sites) and all(self._is_feed_unchanged(sites, index) for index in feed_indices)
        return [replace(value, state=Fp16RangeState.HARMLESS, harmless_reason=self._harmless_reason(value, is_used))
                if not is_used or value.tensor and are_harmless else value
                for value, is_used in zip(overflows, used, strict=True)]

    def _harmless_reason(self, value: Fp16Overflow, is_used: bool) -> str:
        if not is_used:
            return "no judged output depends on it"
        layer = _find_saturating_layer(self._context.network, value)
        reason = f"{layer.op_type} {layer.name} {_SATURATION_TEXTS[layer.op_type]}, so " if layer is not None else ""
        return f"{reason}no judged output changes on these samples"

    @cached_property
    def _judged_layers(self) -> frozenset[str]:
        """The layers that the judged outputs depend on."""
        network = self._context.network
        judged_layers = filter(None, map(network.producer.get, self._judged_tensors))
        return frozenset(iterate_reachable(judged_layers, lambda name: filter(None, map(
            network.producer.get, network.input_tensors(name)))))

    @property
    def _judged_tensors(self) -> tuple[str, ...]:
        context = self._context
        return tuple(dict.fromkeys((*(output.tensor for output in context.judged_outputs), *context.metric_tensors)))

    def unload_session(self) -> bool:
        """Frees the inference session, and returns True if there was one. It is loaded again before its next use."""
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()
        return runner is not None

    def _is_feed_unchanged(self, sites: frozenset[_Site], feed_index: int) -> bool:
        key = sites, feed_index
        if key not in self._results:
            try:
                self._results[key] = self._measure_feed(sites, feed_index)
            except OutOfMemoryError:
                raise
            except InputError:  # an index that was computed from an infinity, for example
                self._results[key] = False
        return self._results[key]

    def _measure_feed(self, sites: frozenset[_Site], feed_index: int) -> bool:
        if self._runner is None or not sites <= self._gates.keys():
            self.unload_session()
            if not sites <= self._gates.keys():
                self._references.clear()
            self._load_session(sites | self._gates.keys())
        if self._runner is None:
            return False
        feed = self._context.samples.read_feed(feed_index)
        if feed_index not in self._references:
            self._references.put(feed_index, self._runner.run({**feed, **self._make_gate_feed(frozenset())}))
        reference = self._references.get(feed_index)
        outputs = self._runner.run({**feed, **self._make_gate_feed(sites)})
        judged = [(output, self._output_names[output.tensor]) for output in self._context.judged_outputs]
        pairs = [tuple(take_judged_slice(arrays[name], output) for arrays in (outputs, reference))
                 for output, name in judged]
        judged_names = {name for _, name in judged}
        pairs += [(outputs[name], reference[name]) for name in outputs if name not in judged_names]
        return all(_are_arrays_equal(*pair) for pair in pairs)

    def _make_gate_feed(self, sites: frozenset[_Site]) -> dict[str, np.ndarray]:
        used = {info.name for info in self._runner.inputs} if self._runner is not None else set()
        return {name: np.array(site in sites) for site, name in self._gates.items() if name in used}

    def _load_session(self, sites: frozenset[_Site]) -> None:
        """Loads the graph with a gate for each site. No session is loaded if the effect of a site cannot be measured.
        """
        context, probe = self._context, NetworkProbe(self._context.network.model)
        graph = probe.model.graph
        values = {value_name(value): value for value in (
            *graph.inputs, *graph.initializers.values(), *(output for node in graph for output in node.outputs))
                  if value.name}
        if any(tensor not in values or values[tensor].dtype is not ir.DataType.FLOAT for tensor, _ in sites):
            return
        rounded, self._gates = self._insert_infinities(probe, values, sites)
        judged = {tensor: rounded.get(tensor, values[tensor]) for tensor in self._judged_tensors}
        self._output_names = {tensor: probe.add_output(value) for tensor, value in judged.items()}
        operands = _find_exposed_operands(graph, set(self._gates.values()), judged.values())
        if operands is None:
            self._gates = {}  # so that later sites are measured without this one
            return
        zero, infinity = probe.add_constant(np.float32(0)), probe.add_constant(np.float32(np.inf))
        one = probe.add_constant(np.float32(1))
        for value in operands:
            is_finite = probe.append_operator("Less", probe.append_operator("Abs", value), infinity,
                                              dtype=ir.DataType.BOOL)
            probe.add_reductions(probe.append_operator("Where", is_finite, zero, one), "ReduceSum")
        graph.sort()  # the roundings of inputs and constants are behind the layers that read them
        self._runner = probe.load_probe_runner(context.backend, context.samples)

    @staticmethod
    def _insert_infinities(probe: NetworkProbe, values: dict[str, ir.Value], sites: frozenset[_Site]
                           ) -> tuple[dict[str, ir.Value], dict[_Site, str]]:
        """Replaces the tensors of sites by tensors whose values beyond FP16 are infinite where a gate is open.

        Returns the new values of tensors whose producer rounds them, and the names of the gates.
        """
        limit, infinity = probe.add_constant(np.float32(FP16_OVERFLOW)), probe.add_constant(np.float32(np.inf))
        uses = {tensor: list(values[tensor].uses()) for tensor, _ in sites}
        rounded: dict[str, ir.Value] = {}
        gates: dict[_Site, str] = {}
        for number, (tensor, reader) in enumerate(sorted(sites)):  # the reader "" comes first
            gate = probe.add_input(f"trt_tui_overflows_{number}", ir.DataType.BOOL, 0)
            gates[tensor, reader] = value_name(gate)
            value = rounded.get(tensor, values[tensor])
            is_large = probe.append_operator("GreaterOrEqual", probe.append_operator("Abs", value), limit,
                                             dtype=ir.DataType.BOOL)
            overflows = probe.append_operator("And", is_large, gate, dtype=ir.DataType.BOOL)
            result = probe.append_operator("Where", overflows, probe.append_operator("Mul", value, infinity), value)
            result.shape = value.shape
            for use in uses[tensor]:
                if reader in ("", use.node.name):
                    use.node.replace_input_with(use.idx, result)
            if not reader:
                rounded[tensor] = result
        return rounded, gates


def _find_saturating_layer(network: Network, value: Fp16Overflow) -> Layer | None:
    """Returns the nearest layer behind a tensor that limits or replaces its values; None if none is near."""
    pending = [(name, 0) for name in value.readers or network.consumers.get(value.tensor, ())]
    while pending:
        name, distance = pending.pop(0)
        layer = network.get_layer(name)
        if layer.op_type in _SATURATION_TEXTS:
            return layer
        if distance < _MAX_SATURATION_DISTANCE:
            pending += [(reader, distance + 1) for tensor in layer.outputs
                        for reader in network.consumers.get(tensor, ())]
    return None


def _find_exposed_operands(graph: ir.Graph, gates: set[str], judged_values: Iterable[ir.Value]
                           ) -> list[ir.Value] | None:
    """Returns the float operands behind gates of the operators that must not read new infinities.

    Operators count only if a judged output depends on them. None if a tensor behind a gate is read by control flow.
    """
    def list_read_nodes(node: ir.Node) -> Iterator[ir.Node]:
        inner = (inner_node for subgraph in list_subgraphs(node) for inner_node in subgraph.all_nodes())
        return _list_producers(value for member in (node, *inner) for value in member.inputs if value is not None)

    needed = set(iterate_reachable(_list_producers(judged_values), list_read_nodes))
    exposed: list[ir.Value] = []
    for value in iterate_reachable((value for value in graph.inputs if value.name in gates), lambda value: (
            output for use in value.uses() if use.node in needed for output in use.node.outputs)):
        for node in {use.node for use in value.uses()}:
            if node.graph is not graph or list_subgraphs(node):
                return None
            if (node in needed and not _may_read_infinity(node) and value.dtype is ir.DataType.FLOAT
                    and value not in exposed):
                exposed.append(value)
    return exposed


def _list_producers(values: Iterable[ir.Value]) -> Iterator[ir.Node]:
    return (node for value in values if (node := value.producer()) is not None)


def _may_read_infinity(node: ir.Node) -> bool:
    """Returns True if every kernel of an operator computes the same from infinities. A Cast to integers does not."""
    target = ir.DataType(node.attributes.get_int("to", 0) or 0) if node.op_type == "Cast" else ir.DataType.FLOAT
    return not node.domain and node.op_type in _TRANSPARENT_OPERATORS and (
        target.is_floating_point() or target is ir.DataType.BOOL)


def _are_arrays_equal(array: np.ndarray, reference: np.ndarray) -> bool:
    """Returns True if two arrays have equal values, NaN and infinities, apart from the order of FP32 sums."""
    if array.shape != reference.shape:
        return False
    if reference.dtype.kind != "f":
        return np.array_equal(array, reference)
    first, second = array.astype(np.float64), reference.astype(np.float64)
    is_finite = np.isfinite(second)
    if not np.array_equal(first[~is_finite], second[~is_finite], equal_nan=True):
        return False
    first, second = first[is_finite], second[is_finite]
    rms = float(np.sqrt(np.square(second).mean())) if second.size else 0.0
    return bool(np.all(np.abs(first - second) <= MAX_RELATIVE_CHANGE * (np.abs(second) + rms)))
