"""The assembly of a gated graph from inputs, the reference branch, the gated test branch and error sums."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from trt_tui.core.lowering.gated.emitter import BranchTensors, NodeEmitter
from trt_tui.core.lowering.gated.error_sums import (
    SUMS_OUTPUTS,
    ComparedTensor,
    ControlFlowErrorSumsEmitter,
    DataFlowErrorSumsEmitter,
    ErrorSumsEmitter,
    emit_error_sums_per_sample,
)
from trt_tui.core.lowering.gated.gated_graph import GatedGraph, GatedGraphInputs
from trt_tui.core.lowering.gated.gates import ControlFlowEmitter, DataFlowEmitter
from trt_tui.core.lowering.gated.group_body import emit_ungated_group
from trt_tui.core.lowering.gated.rounding import RoundingEmitter
from trt_tui.core.lowering.rulebook import GatedFeatures, find_compute_type_results
from trt_tui.core.network.layers import FusionGroup, Layer, LayerKind
from trt_tui.core.network.model_editing import prune_model, value_name
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.errors import TrtTuiError

_MAX_KEPT_WEIGHT_BYTES = 1 << 28
"""The maximum size of weights of which two feeds are kept instead of one."""


def sort_by_dependency(network: Network) -> list[FusionGroup | Layer]:
    """Returns fusion groups and ungrouped layers in dependency order: each follows the producers of its inputs.

    Raises:
        TrtTuiError: the groups depend on each other in a cycle.
    """
    units = {layer.name: network.find_group(layer.name) or layer for layer in network.layers}
    order: list[FusionGroup | Layer] = []
    begun: dict[str, FusionGroup | Layer] = {}
    placed: set[str] = set()
    for layer in network.layers:
        stack = [(units[layer.name], False)]
        while stack:
            unit, complete = stack.pop()
            if unit.name in placed:
                continue
            if complete:
                placed.add(unit.name)
                order.append(begun.pop(unit.name))
                continue
            if unit.name in begun:
                raise _cycle_error(network, list(begun)[list(begun).index(unit.name) :])
            begun[unit.name] = unit
            stack.append((unit, True))
            stack.extend((units[name], False) for name in _list_layer_dependencies(network, unit))
    return order


def _list_layer_dependencies(network: Network, group_or_layer: FusionGroup | Layer) -> Iterable[str]:
    """Yields the outside layers that compute the inputs of a group or layer."""
    layer_names = (
        (*group_or_layer.layers, *group_or_layer.shape_layers)
        if isinstance(group_or_layer, FusionGroup)
        else (group_or_layer.name,)
    )
    own = set(layer_names)
    for name in layer_names:
        for tensor in network.input_tensors(name):
            producer = network.producer.get(tensor)
            if producer is not None and producer not in own:
                yield producer


def _cycle_error(network: Network, group_names: Sequence[str]) -> TrtTuiError:
    return TrtTuiError(
        f"fused layers of {network.name} depend on each other",
        " → ".join((*group_names, group_names[0])),
        "This is a defect of trt-tui; please report it with the network's structure.",
    )


def build_gated_graph(
    network: Network,
    *,
    float_types: Collection[Precision] = (Precision.FP16,),
    boundary_types: Collection[Precision] = (Precision.FP16,),
    quantized_types: Collection[Precision] = (Precision.INT8,),
    outputs: Sequence[str] = (),
    with_reference: bool = False,
    with_isolated: bool = False,
    with_accumulated: bool = True,
    measured_groups: Sequence[str] | None = None,
    editable_constants: bool = False,
    norm_operators: bool = False,
    gates_as_data: bool = False,
    compared_tensors: Sequence[ComparedTensor] = (),
    mask_axes: Mapping[str, tuple[bool, ...]] | None = None,
    expects_finite_sums: bool = False,
    extreme_tensors: Mapping[str, Sequence[str]] | None = None,
    shape_tensors: Sequence[str] = (),
) -> GatedGraph:
    """Builds the gated graph of a network with the requested precisions, branches and error sums.

    Args:
        float_types: The float precisions below FP32 that groups can have.
        boundary_types: The float types that can surround quantized layers.
        quantized_types: The quantized types that layers can have, and TF32.
        outputs: Tensors that each branch returns; by default the outputs of the network.
        with_reference: Adds the FP32 branch and the sums of errors at each measured group.
        with_isolated: Adds the isolated branch and its sums; needs ``with_reference``.
        with_accumulated: Adds the sums of the accumulated error at each measured group; needs ``with_reference``. False
            leaves out the test branch.
        measured_groups: Groups whose errors are summed; by default all that can be simulated.
        editable_constants: Makes scales and biases that moves change inputs of the graph; see `GatedFeatures`.
        norm_operators: Lets decomposed normalisations be computed with the roundings of the operator.
        gates_as_data: Builds gates as Where nodes instead of If nodes; see `trt_tui.core.lowering.gated.gates`. Sums of
            tensors with NaN or infinities are then not finite. Values that FP16 cannot represent are always counted.
        compared_tensors: Tensors that are compared in the graph with a reference input; only with ``gates_as_data``.
        mask_axes: The axes of the presence mask of a tensor, by tensor name. The mask is an input of the graph and
            selects the elements that count in the sums.
        expects_finite_sums: Computes the sums in float32 only, where gates are control flow. They are not finite if
            float32 cannot represent them.
        extreme_tensors: Tensors of the FP32 branch whose extremes are an output, by measured group; see
            `trt_tui.core.lowering.gated.error_sums.ErrorSumsEmitter.emit_error_tables`.
        shape_tensors: Tensors of the FP32 branch whose shapes are outputs, named ``shape/<tensor>``.

    Raises:
        TrtTuiError: the groups depend on each other in a cycle.
    """
    if with_isolated and not with_reference:
        raise ValueError("the isolated branch reads the reference")
    features = replace(
        GatedFeatures.from_precisions(float_types, boundary_types, quantized_types),
        editable_constants=editable_constants,
        norm_operators=norm_operators,
    )
    outputs = tuple(outputs) or tuple(info.name for info in network.outputs)
    names = (
        tuple(measured_groups)
        if measured_groups is not None
        else tuple(group.name for group in network.groups if group.final_tensor not in network.blocking_plugins)
    )
    emitter = NodeEmitter(network)
    _add_network_inputs(emitter)
    inputs = GatedGraphInputs(emitter, features, gates_as_data=gates_as_data)
    flow = (DataFlowEmitter if gates_as_data else ControlFlowEmitter)(emitter, inputs, RoundingEmitter(emitter))
    for layer in network.layers:
        # Without a reference branch, shape arithmetic uses the tensors of the test branch.
        if with_reference or layer.kind is LayerKind.CONSTANT:
            emitter.copy_layer(
                layer, emitter.values, emitter.nodes, f"{'ref' if with_reference else 'shared'}/{layer.name}"
            )
    test_tensors = _emit_test_branch(emitter, flow, frozenset(outputs))
    for tensor, value in test_tensors.items():  # errors are measured in the units of the network
        test_tensors[tensor] = flow.rounding.scale_channels(
            "Mul", value, inputs.find_channel_divisor_input(tensor), emitter.nodes
        )
    graph_outputs: list[ir.Value] = []
    for tensor in outputs:
        if with_accumulated:
            graph_outputs.append(_add_output(emitter, test_tensors[tensor], f"test/{tensor}"))
        if with_reference:
            graph_outputs.append(_add_output(emitter, emitter.values[tensor], f"reference/{tensor}"))
    for compared_tensor in compared_tensors:
        rank = len(network.shape(compared_tensor.tensor) or ())
        reference_value = emitter.add_input(
            f"reference/{compared_tensor.name}", ir.DataType.FLOAT, ir.Shape([None] * rank)
        )
        sums = emit_error_sums_per_sample(
            emitter, compared_tensor, test_tensors[compared_tensor.tensor], reference_value
        )
        graph_outputs.append(_add_output(emitter, sums, f"compared/{compared_tensor.name}"))
    counting: str | None = None
    padding: dict[tuple[bool, ...], ir.Value] = {}
    if with_reference:
        kinds = ["accumulated"] * with_accumulated + ["isolated"] * with_isolated
        for tensor in shape_tensors:  # in front of the sums, which ONNX Runtime then computes first
            shape = emitter.add_operator(emitter.nodes, "Shape", [emitter.values[tensor]], f"shape/{tensor}")
            shape.name, shape.dtype, shape.shape = f"shape/{tensor}", ir.DataType.INT64, ir.Shape([None])
            graph_outputs.append(shape)
        padding = {
            axes: emitter.add_input(
                f"present/{''.join('01'[has] for has in axes)}",
                ir.DataType.BOOL,
                ir.Shape([None if has else 1 for has in axes]),
            )
            for axes in dict.fromkeys((mask_axes or {}).values())
        }
        share = _emit_true_fraction(emitter, next(iter(padding.values()))) if padding else None
        present = {tensor: padding[axes] for tensor, axes in (mask_axes or {}).items()}
        sums_emitter: ErrorSumsEmitter
        if isinstance(flow, DataFlowEmitter):
            sums_emitter = DataFlowErrorSumsEmitter(flow, present, share)
        else:
            gate = emitter.add_input("counting", ir.DataType.BOOL)
            counting, sums_emitter = (
                value_name(gate),
                ControlFlowErrorSumsEmitter(flow, gate, present, share, expects_finite_sums),
            )
        graph_outputs += sums_emitter.emit_error_tables(
            [network.get_group(name) for name in names], test_tensors, kinds, extreme_tensors
        )
    return GatedGraph(
        _build_model(emitter, graph_outputs),
        network,
        features,
        gates={
            group: {kind: value_name(value) for kind, value in gates.items()} for group, gates in inputs.gates.items()
        },
        scale_inputs={key: value_name(value) for key, value in inputs.scales.items()},
        weight_inputs=inputs.weight_inputs,
        factor_inputs=inputs.factor_input_names,
        compared_outputs={
            compared_tensor.name: f"compared/{compared_tensor.name}" for compared_tensor in compared_tensors
        },
        reference_inputs={
            compared_tensor.name: f"reference/{compared_tensor.name}" for compared_tensor in compared_tensors
        },
        edge_gates=flow.edge_gates if isinstance(flow, DataFlowEmitter) else {},
        split_inputs={value_name(value): group_and_count for group_and_count, value in inputs.split_factors.items()},
        results_by_group={
            name: _list_compute_type_results(network, network.get_group(name)) for name in inputs.operand_types
        },
        test_outputs={tensor: f"test/{tensor}" for tensor in outputs} if with_accumulated else {},
        reference_outputs={tensor: f"reference/{tensor}" for tensor in outputs} if with_reference else {},
        accumulated_sums=SUMS_OUTPUTS["accumulated"] if with_reference and with_accumulated else None,
        isolated_sums=SUMS_OUTPUTS["isolated"] if with_isolated else None,
        measured_groups=names,
        counting_gate=counting,
        mask_inputs={axes: value_name(value) for axes, value in padding.items()},
        kept_feeds=2 if gates_as_data or inputs.weight_input_bytes <= _MAX_KEPT_WEIGHT_BYTES else 1,
    )


def _emit_true_fraction(emitter: NodeEmitter, mask: ir.Value) -> ir.Value:
    """Returns the fraction of true elements of a mask, float64."""
    numbers = emitter.add_operator(emitter.nodes, "Cast", [mask], "present/numbers", to=int(ir.DataType.DOUBLE))
    return emitter.add_operator(emitter.nodes, "ReduceMean", [numbers], "present/share", keepdims=0)


def _add_network_inputs(emitter: NodeEmitter) -> None:
    graph = emitter.network.model.graph
    for value in graph.inputs:
        copy = ir.Value(name=value.name, type=value.type, shape=value.shape)
        emitter.values[value_name(value)] = copy
        emitter.inputs.append(copy)
    for name, value in graph.initializers.items():
        assert value.const_value is not None  # initializers among the inputs were removed
        emitter.values[name] = emitter.add_shared_constant(name, value.const_value)


def _emit_test_branch(
    emitter: NodeEmitter, flow_emitter: ControlFlowEmitter | DataFlowEmitter, requested_outputs: frozenset[str]
) -> dict[str, ir.Value]:
    """Emits the branch that executes the config and is compared with the reference. Returns its tensors by network
    name."""
    network = emitter.network
    shared = {info.name for info in network.inputs} | network.static_tensors
    test_tensors = {name: value for name, value in emitter.values.items() if name in shared}
    for unit in sort_by_dependency(network):
        if not isinstance(unit, FusionGroup):
            if not all(not tensor or tensor in test_tensors for tensor in unit.outputs):
                emitter.copy_layer(unit, test_tensors, emitter.nodes, f"test/{unit.name}")
            continue
        inner = [
            output for name in unit.layers for output in network.get_layer(name).outputs if output in requested_outputs
        ]
        requested_tensors = tuple(dict.fromkeys((*unit.outputs, unit.final_tensor, *inner)))
        if unit.name in flow_emitter.inputs.gates:
            test_tensors.update(flow_emitter.emit_group(unit, test_tensors, requested_tensors))
        else:
            local = BranchTensors({}, test_tensors)
            emit_ungated_group(emitter, flow_emitter.inputs, unit, local, emitter.nodes)
            test_tensors.update({tensor: local[tensor] for tensor in requested_tensors})
    return test_tensors


def _add_output(emitter: NodeEmitter, value: ir.Value, name: str) -> ir.Value:
    result = emitter.add_operator(emitter.nodes, "Identity", [value], name)
    result.name = name
    result.type, result.shape = value.type, value.shape
    return result


def _list_compute_type_results(network: Network, group: FusionGroup) -> frozenset[str]:
    return frozenset(
        tensor for name in group.layers for tensor in find_compute_type_results(network, network.get_layer(name))
    )


def _build_model(emitter: NodeEmitter, outputs: Sequence[ir.Value]) -> ir.Model:
    base = emitter.network.model
    graph = ir.Graph(
        emitter.inputs,
        outputs,
        nodes=emitter.nodes,
        initializers=list(emitter.initializers.values()),
        opset_imports=dict(base.graph.opset_imports),
        name="gated",
    )
    graph.sort()
    model = ir.Model(graph, ir_version=max(base.ir_version, 8))
    prune_model(model)
    return model
