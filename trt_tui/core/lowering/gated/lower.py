"""Putting a gated graph together: inputs, the reference branch, the gated one, sums."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from trt_tui.core.lowering.gated.bodies import emit_as_is
from trt_tui.core.lowering.gated.compared import Compared, emit_compared
from trt_tui.core.lowering.gated.control_flow import ControlFlow
from trt_tui.core.lowering.gated.data_flow import DataFlow
from trt_tui.core.lowering.gated.data_sums import DataSums
from trt_tui.core.lowering.gated.emitter import BranchTensors, Emitter
from trt_tui.core.lowering.gated.gated import Gated
from trt_tui.core.lowering.gated.inputs import GatedInputs
from trt_tui.core.lowering.gated.order import in_reading_order
from trt_tui.core.lowering.gated.rounding import Rounding
from trt_tui.core.lowering.gated.sums import Rows, SumsEmitter
from trt_tui.core.lowering.rules import Offer, typed_results
from trt_tui.core.network.layers import Group, Kind
from trt_tui.core.network.naming import name_of
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision

_REMEMBERED_BYTES = 1 << 28
"""Weights up to this size are kept for one feed more than the last."""


def lower_gated(
    network: Network,
    *,
    floats: Collection[Precision] = (Precision.FP16,),
    others: Collection[Precision] = (Precision.FP16,),
    codes: Collection[Precision] = (Precision.INT8,),
    outputs: Sequence[str] = (),
    reference: bool = False,
    isolated: bool = False,
    measured: Sequence[str] | None = None,
    constants: bool = False,
    operators: bool = False,
    data: bool = False,
    compared: Sequence[Compared] = (),
    padded: Mapping[str, tuple[bool, ...]] | None = None,
) -> Gated:
    """Builds a gated graph.

    Args:
        floats: The float precisions below FP32 that groups can be given.
        others: What may surround layers that read codes.
        codes: The precisions of these.
        outputs: Tensors to yield from each branch; the network's outputs by default.
        reference: Add the FP32 branch and the sums of the accumulated error at each measured group.
        isolated: Add each measured group with its inputs taken from the reference, and its sums; needs ``reference``.
        measured: Groups to take sums at; all that can be simulated by default.
        constants: Scales and biases that moves change are fed; see `Offer`.
        operators: Decomposed normalisations can be run as the operator rounds.
        data: Gates are data, with no control flow; sums are not finite where tensors are not, and what FP16 cannot hold
            is always counted.
        compared: What is compared in the graph with a reference that is fed; with ``data`` only.
        padded: Tensors of which a mask that is fed says what sums count, by name which axes the mask has.

    Raises:
        TrtTuiError: groups wait for each other.
    """
    if isolated and not reference:
        raise ValueError("the isolated branch reads the reference")
    offer = replace(Offer.of(floats, others, codes), constants=constants, operators=operators)
    outputs = tuple(outputs) or tuple(info.name for info in network.outputs)
    names = tuple(measured) if measured is not None else tuple(
        group.name for group in network.groups if group.tail not in network.behind)
    emitter = Emitter(network)
    _share_inputs(emitter)
    inputs = GatedInputs(emitter, offer, data=data)
    flow = (DataFlow if data else ControlFlow)(emitter, inputs, Rounding(emitter))
    for layer in network.layers:
        # Without a reference shape arithmetic follows the test branch's tensors.
        if reference or layer.kind is Kind.CONSTANT:
            emitter.copy_layer(layer, emitter.values, emitter.nodes, f"{'ref' if reference else 'shared'}/{layer.name}")
    test = _emit_test(emitter, flow, frozenset(outputs))
    for tensor, factors in inputs.factors.items():
        if tensor in test:  # errors are taken in the network's own units
            test[tensor] = flow.rounding.scaled("Mul", test[tensor], factors, emitter.nodes)
    graph_outputs: list[ir.Value] = []
    for tensor in outputs:
        graph_outputs.append(_as_output(emitter, test[tensor], f"test/{tensor}"))
        if reference:
            graph_outputs.append(_as_output(emitter, emitter.values[tensor], f"reference/{tensor}"))
    for one in compared:
        rank = len(network.shape(one.tensor) or ())
        other = emitter.input(f"reference/{one.name}", ir.DataType.FLOAT, ir.Shape([None] * rank))
        sums = emit_compared(emitter, one, test[one.tensor], other)
        graph_outputs.append(_as_output(emitter, sums, f"compared/{one.name}"))
    counting: str | None = None
    padding: dict[tuple[bool, ...], ir.Value] = {}
    if reference:
        kinds = ("accumulated", "isolated")[:1 + isolated]
        padding = {axes: emitter.input(f"present/{''.join('01'[has] for has in axes)}", ir.DataType.BOOL,
                                       ir.Shape([None if has else 1 for has in axes]))
                   for axes in dict.fromkeys((padded or {}).values())}
        share = _share(emitter, next(iter(padding.values()))) if padding else None
        present = {tensor: padding[axes] for tensor, axes in (padded or {}).items()}
        emit: Rows
        if isinstance(flow, DataFlow):
            emit = DataSums(emitter, flow, present, share)
        else:
            gate = emitter.input("counting", ir.DataType.BOOL)
            counting, emit = name_of(gate), SumsEmitter(emitter, flow, gate, present, share)
        graph_outputs += emit.tables([network.group(name) for name in names], test, kinds)
    return Gated(
        _model(emitter, graph_outputs), network, offer,
        gates=inputs.gate_names(),
        scale_inputs=inputs.scale_names(),
        weight_inputs=inputs.stand_for,
        factor_inputs=inputs.factors_of,
        compared={one.name: f"compared/{one.name}" for one in compared},
        references={one.name: f"reference/{one.name}" for one in compared},
        edges=flow.edges if isinstance(flow, DataFlow) else {},
        splitters={name_of(value): made_for for made_for, value in inputs.splitters.items()},
        results={name: _results(network, network.group(name)) for name in inputs.forms},
        outputs={tensor: f"test/{tensor}" for tensor in outputs},
        reference={tensor: f"reference/{tensor}" for tensor in outputs} if reference else {},
        accumulated="sums/accumulated" if reference else None,
        isolated="sums/isolated" if isolated else None,
        measured=names,
        counting=counting,
        present={axes: name_of(value) for axes, value in padding.items()},
        remembers=2 if data or inputs.bytes_of_weights <= _REMEMBERED_BYTES else 1)


def _share(emitter: Emitter, mask: ir.Value) -> ir.Value:
    """How much of a mask is true, of one: float64."""
    numbers = emitter.add(emitter.nodes, "Cast", [mask], "present/numbers", to=int(ir.DataType.DOUBLE))
    return emitter.add(emitter.nodes, "ReduceMean", [numbers], "present/share", keepdims=0)


def _share_inputs(emitter: Emitter) -> None:
    graph = emitter.network.model.graph
    for value in graph.inputs:
        copy = ir.Value(name=value.name, type=value.type, shape=value.shape)
        emitter.values[name_of(value)] = copy
        emitter.inputs.append(copy)
    for name, value in graph.initializers.items():
        assert value.const_value is not None  # as of every initializer that is no input
        emitter.values[name] = emitter.constant(name, value.const_value)


def _emit_test(emitter: Emitter, flow: ControlFlow | DataFlow, requested: frozenset[str]) -> dict[str, ir.Value]:
    """The gated branch; returns its tensors by the network's names."""
    network = emitter.network
    shared = {info.name for info in network.inputs} | network.static
    test = {name: value for name, value in emitter.values.items() if name in shared}
    for unit in in_reading_order(network):
        if not isinstance(unit, Group):
            if not all(not tensor or tensor in test for tensor in unit.outputs):
                emitter.copy_layer(unit, test, emitter.nodes, f"test/{unit.name}")
            continue
        inner = [t for name in unit.layers for t in network.layer(name).outputs if t in requested]
        wanted = tuple(dict.fromkeys((*unit.outputs, unit.tail, *inner)))
        if unit.name in flow.inputs.gates:
            test.update(flow.group(unit, test, wanted))
        else:
            local = BranchTensors(test)
            emit_as_is(emitter, flow.inputs, unit, local, emitter.nodes)
            test.update({tensor: local[tensor] for tensor in wanted})
    return test


def _as_output(emitter: Emitter, value: ir.Value, name: str) -> ir.Value:
    result = emitter.add(emitter.nodes, "Identity", [value], name)
    result.name = name
    result.type, result.shape = value.type, value.shape
    return result


def _results(network: Network, group: Group) -> frozenset[str]:
    return frozenset(tensor for name in group.layers for tensor in typed_results(network, network.layer(name)))


def _model(emitter: Emitter, outputs: Sequence[ir.Value]) -> ir.Model:
    base = emitter.network.model
    nodes, initializers = emitter.used(outputs)
    graph = ir.Graph(emitter.inputs, outputs, nodes=nodes, initializers=initializers,
                     opset_imports=dict(base.graph.opset_imports), name="gated")
    graph.sort()
    return ir.Model(graph, ir_version=max(base.ir_version, 8))
