"""The conversion of models to another opset, with corrections that onnx's version converter lacks.

A conversion to a higher opset changes neither the result of an operator nor its reading by TensorRT's parser. Therefore
`tests/core/network/test_opset_changes.py` lists each change of a schema with what keeps the meaning. It compares its
table with the schemas of the installed onnx and fails if a change is missing.

Sources:

- Meaning: the schemas of onnx 1.23; the tests run operators of both versions in ONNX Runtime.
- Parser: network definitions that the parsers of TensorRT-RTX 1.4.0 and 1.7.1 create from an operator at each opset,
  compared layer by layer with their attributes. They differ for GridSample (RTX 1.4 only), and for a Resize of opset 10
  that shrinks by nearest values. onnx-tensorrt's importers read attributes by name with ONNX's defaults.
- GridSample: onnx-tensorrt pull request 1060 and TensorRT issue 4646. TensorRT 10.13.3, 11.1 and RTX 1.5 read "linear"
  and "cubic" as nearest; RTX 1.4 and 1.7.1 read an absent mode as linear, at opset 16 and at 20.

Each adapter is listed with the opset that changed the operator. A node that the new opset cannot express is refused
with its name.
"""

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir

from trt_tui.core.network.graph import register_constant, stored_tensor
from trt_tui.core.network.model_editing import FreshNames, assign_node_names
from trt_tui.core.network.model_file import SMALL_TENSOR_BYTES
from trt_tui.core.network.operators import move_plugins_to_own_domain, restore_plugin_domains
from trt_tui.formatting import name_list_text

NEWEST_WRITTEN_OPSET = 23
"""The highest opset that a network is converted to; RMSNormalization was introduced in it."""


def drop_batch_normalisation_outputs(model: ir.Model, source_opset: int, target_opset: int) -> None:
    """Removes the two outputs of BatchNormalization that opset 14 removed, in place.

    Raises:
        ValueError: a node reads one of these outputs.
    """
    if not source_opset < 14 <= target_opset:
        return
    for node in model.graph.all_nodes():
        if node.op_type == "BatchNormalization" and not node.domain and len(node.outputs) > _MAX_BATCH_NORM_OUTPUTS:
            if any(output.uses() or output.is_graph_output() for output in node.outputs[_MAX_BATCH_NORM_OUTPUTS:]):
                raise ValueError(
                    f"{node.name} (BatchNormalization) is in training mode, and its saved statistics are "
                    "read, which newer opsets do not have"
                )
            node.resize_outputs(_MAX_BATCH_NORM_OUTPUTS)


class OpsetError(ValueError):
    """The error for a node that has no equivalent in the requested opset.

    Args:
        next_step: The next step for the user, as a sentence; "" to advise a newer export.
    """

    def __init__(self, message: str, next_step: str = "") -> None:
        super().__init__(message)
        self.next_step = next_step


CUBIC_GRID_NOTE = (
    "{} (GridSample) has mode cubic: from opset 20 on the parsers of TensorRT up to 11.1 and of "
    "TensorRT-RTX up to 1.5 read it as nearest"
)
"""The note for users on a cubic GridSample. Source: `trt_tui.core.network.opset_conversion`."""

CUBIC_GRID_NEXT_STEP = "Export the network with an opset from 16 to 19, which names the mode bicubic."


def adapt_converted_operators(model: ir.Model, source_opset: int) -> None:
    """Corrects operators whose meaning was changed by onnx's version converter, in place.

    Raises:
        ValueError: no operator of the new opset has the meaning of a node.
    """
    target_opset = model.graph.opset_imports[""]
    fresh_names = FreshNames(model.graph)
    for node in list(model.graph.all_nodes()):
        if node.op_type in ADAPTERS and not node.domain:
            changed_opset, adapter = ADAPTERS[node.op_type]
            if source_opset < changed_opset <= target_opset:
                adapter(node, fresh_names)


def parser_difference_notes(model: ir.Model, target_opset: int) -> list[str]:
    """Returns notes for users on nodes that TensorRT's parser reads differently from ONNX Runtime in the original
    opset.

    The conversion preserves the meaning in ONNX Runtime.
    """
    if model.graph.opset_imports.get("", 0) >= ADAPTERS["Resize"][0] or target_opset < ADAPTERS["Resize"][0]:
        return []
    resize_names = [
        node.name or ""
        for node in model.graph.all_nodes()
        if node.op_type == "Resize"
        and not node.domain
        and node.attributes.get_string("mode", "nearest") == "nearest"
        and _read_resize_scales(node, 1).min(initial=1) < 1
    ]
    return (
        [
            f"{name_list_text(resize_names, max_count=2)} (Resize of opset 10) shrinks by nearest values: halfway between "
            "two values ONNX Runtime takes the second, TensorRT's parser the first. Files written here follow ONNX Runtime "
            "for both."
        ]
        if resize_names
        else []
    )


def _read_resize_scales(node: ir.Node, input_index: int) -> np.ndarray:
    """Returns the scale factors of a Resize; a factor of 1 if they are computed or absent."""
    scales = stored_tensor(node.inputs[input_index]) if len(node.inputs) > input_index else None
    return np.ones(1) if scales is None else scales.numpy()


def drop_linear_grid_sample_modes(model: ir.Model) -> list[str]:
    """Removes the default mode "linear" from GridSamples of opset 20 or later, and returns the names of these nodes.

    TensorRT's parser reads "linear" as nearest, and an absent mode as linear; in ONNX both mean linear.
    """
    linear_nodes = _find_grid_samples(model, "linear")
    for node in linear_nodes:
        del node.attributes["mode"]
    return [node.name or "" for node in linear_nodes]


def find_cubic_grid_samples(model: ir.Model) -> list[str]:
    """Returns the names of the GridSamples whose mode "cubic" TensorRT's parser may read as nearest."""
    return [node.name or "" for node in _find_grid_samples(model, "cubic")]


def _find_grid_samples(model: ir.Model, mode: str) -> list[ir.Node]:
    """Returns the GridSamples of opset 20 or later with a given mode."""
    if model.graph.opset_imports.get("", 0) < GRID_MODE_OPSET:
        return []
    return [
        node
        for node in model.graph.all_nodes()
        if node.op_type == "GridSample" and not node.domain and node.attributes.get_string("mode", "") == mode
    ]


def _adapt_grid_sample(node: ir.Node, fresh_names: FreshNames) -> None:
    """Adapts a GridSample to opset 20, which renamed the modes. TensorRT's parser reads only the older names."""
    mode = node.attributes.get_string("mode", "")
    if mode in ("cubic", "bicubic"):
        raise OpsetError(
            CUBIC_GRID_NOTE.format(node.name),
            "Give no layer FP8, INT4, MXFP8, NVFP4 or BF16, and write no normalisation as "
            "RMSNormalization: all else is written at opset 19 or lower, which names the mode bicubic.",
        )
    if mode in ("linear", "bilinear"):
        del node.attributes["mode"]


def _adapt_batch_normalisation(node: ir.Node, fresh_names: FreshNames) -> None:
    """Sets the training mode of a BatchNormalization with several outputs. Before opset 14, several outputs implied it."""
    if len(node.outputs) > 1:
        node.attributes["training_mode"] = ir.AttrInt64("training_mode", 1)


def _adapt_resize(node: ir.Node, fresh_names: FreshNames) -> None:
    """Sets the modes of a Resize or Upsample from opset 10 or lower that preserve its meaning since opset 11.

    Coordinates count from the corner. A position between two values takes the value before it, in ONNX Runtime as in
    TensorRT; if the operator shrinks, ONNX Runtime takes the value behind it.
    """
    node.attributes["coordinate_transformation_mode"] = ir.AttrString("coordinate_transformation_mode", "asymmetric")
    if node.attributes.get_string("mode", "nearest") != "nearest":
        return
    scale_values = _read_resize_scales(node, 2)
    if scale_values.min(initial=1) < 1 < scale_values.max(initial=1):
        raise ValueError(
            f"{node.name} ({node.op_type}) takes the nearest value both up and down, which newer opsets do not support"
        )
    node.attributes["nearest_mode"] = ir.AttrString(
        "nearest_mode", "ceil" if scale_values.min(initial=1) < 1 else "floor"
    )


def _adapt_group_normalisation(node: ir.Node, fresh_names: FreshNames) -> None:
    """Repeats the scale and bias of a GroupNormalization. They have a value per group before opset 21 and per channel
    since.
    """
    groups = node.attributes.get_int("num_groups", 1)
    data = node.inputs[0]
    channels = data.shape[1] if data is not None and data.shape is not None and len(data.shape) > 1 else None
    if not isinstance(channels, int):
        raise ValueError(
            f"{node.name} (GroupNormalization) has a scale for each group, and how many channels a group "
            "has is not known"
        )
    for index in range(1, 3) if channels != groups else ():
        constant = stored_tensor(value := node.inputs[index])
        if value is None or constant is None:
            raise ValueError(f"{node.name} (GroupNormalization) computes its scale or bias for each group")
        assert isinstance(node.graph, ir.Graph)  # functions are inlined
        name = fresh_names.make_unique_name(f"{value.name}_per_channel")
        repeated = np.repeat(constant.numpy(), channels // groups)
        node.replace_input_with(index, register_constant(node.graph, name, ir.tensor(repeated)))


def _adapt_hardmax(node: ir.Node, fresh_names: FreshNames) -> None:
    """Sets the axis of a Hardmax, which is 1 by default before opset 13 and the last axis since.

    Before opset 13, Hardmax works over all axes from the given axis on; since then, it works over that axis only.
    """
    rank = len(node.inputs[0].shape or ()) if node.inputs[0] is not None else 0
    if node.attributes.get_int("axis", 1) not in (-1, rank - 1):
        raise ValueError(f"{node.name} (Hardmax) works over several axes, which newer opsets do not support")
    node.attributes["axis"] = ir.AttrInt64("axis", -1)


_MAX_BATCH_NORM_OUTPUTS = 3
GRID_MODE_OPSET = 20


ADAPTERS: dict[str, tuple[int, Callable[[ir.Node, FreshNames], object]]] = {
    "BatchNormalization": (14, _adapt_batch_normalisation),
    "Resize": (11, _adapt_resize),
    "Hardmax": (13, _adapt_hardmax),
    "GroupNormalization": (21, _adapt_group_normalisation),
    "GridSample": (20, _adapt_grid_sample),
    # An input replaced the attribute. onnx's version converter keeps the attribute if the mode needs no value.
    "Pad": (11, lambda node, fresh_names: node.attributes.pop("value", None)),
}
"""The opset that changed an operator, with the function that corrects the node, by operator as the converter writes it.
"""


def find_ir_version(opset: int) -> int:
    """Returns the IR version that was introduced together with an opset. For an opset that onnx does not know, it is
    that of opset 22.
    """
    try:
        return onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)])
    except ValueError:
        return 10


def detach_big_weights(model: ir.Model) -> tuple[onnx.ModelProto, dict[str, ir.Value]]:
    """Returns a model as protobuf with its big weights turned into graph inputs, and these weights by name.

    A weight is big from 1 KiB on. Without these weights, size limits of protobuf and copies do not matter. The given
    model does not change.
    """
    graph = model.graph
    inputs = list(graph.inputs)
    initializers = dict(graph.initializers)
    big: dict[str, ir.Value] = {}
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is not None and (tensor.nbytes > SMALL_TENSOR_BYTES or isinstance(tensor, ir.ExternalTensor)):
            value.shape = value.shape or ir.Shape(tensor.shape.numpy())
            value.dtype = value.dtype or tensor.dtype
            big[name] = graph.initializers.pop(name)
    graph.inputs.extend(big.values())
    try:
        return ir.to_proto(model), big
    finally:
        graph.inputs[:] = inputs
        graph.initializers.clear()
        graph.initializers.update(initializers)


def attach_big_weights(proto: onnx.ModelProto, weights: dict[str, ir.Value]) -> ir.Model:
    """Builds a model from a protobuf message and its detached big weights."""
    model = ir.from_proto(proto)
    graph = model.graph
    inputs = list(graph.inputs)
    graph.inputs[:] = [value for value in inputs if value.name not in weights]
    for value in inputs:
        weight = weights.get(value.name or "")
        if weight is not None and weight.name:
            value.const_value, value.shape, value.type = weight.const_value, weight.shape, weight.type
            graph.initializers[weight.name] = value
    return model


def convert_opset(model: ir.Model, opset: int) -> ir.Model:
    """Returns the model converted to a higher opset, by onnx's version converter and the corrections of this module.

    Raises:
        Exception: any error that the converter raises for an operator that it cannot convert; a ValueError for a node
            whose meaning the new opset cannot express, and for an opset whose changes have not been reviewed.
    """
    if opset > NEWEST_WRITTEN_OPSET:
        raise ValueError(f"no network is raised above opset {NEWEST_WRITTEN_OPSET}")
    before_opset = model.graph.opset_imports[""]
    drop_batch_normalisation_outputs(model, before_opset, opset)
    with move_plugins_to_own_domain(model):
        skeleton, weights = detach_big_weights(model)
    converted_model = attach_big_weights(onnx.version_converter.convert_version(skeleton, opset), weights)
    restore_plugin_domains(converted_model)
    _restore_names_of_replaced_nodes(model.graph, converted_model.graph)
    adapt_converted_operators(converted_model, before_opset)
    node_by_name = {node.name: node for node in model.graph}
    for node in converted_model.graph:
        if node.name in node_by_name:
            node.metadata_props.update(node_by_name[node.name].metadata_props)
            node.meta.update(node_by_name[node.name].meta)
    assign_node_names(converted_model.graph)
    converted_model.ir_version = max(model.ir_version, find_ir_version(opset))
    drop_initializer_inputs(converted_model.graph)
    return converted_model


def _restore_names_of_replaced_nodes(source_graph: ir.Graph, converted_graph: ir.Graph) -> None:
    """Restores the names of nodes that the converter replaced, such as Upsample by Resize, and of their outputs."""
    node_names = {node.name for node in converted_graph}
    tensor_names = {value.name for node in converted_graph for value in node.outputs} | set(
        converted_graph.initializers
    )
    lost_nodes = [node for node in source_graph if node.name not in node_names]
    for node in converted_graph:
        if node.name:
            continue
        old_node = next(
            (
                candidate
                for candidate in lost_nodes
                if candidate.op_type == node.op_type or (candidate.op_type, node.op_type) == ("Upsample", "Resize")
            ),
            None,
        )
        if old_node is None:
            continue
        lost_nodes.remove(old_node)
        node.name = old_node.name
        for new_value, value in zip(node.outputs, old_node.outputs, strict=False):
            if value.name and value.name not in tensor_names:
                new_value.name = value.name


def drop_initializer_inputs(graph: ir.Graph) -> None:
    """Removes initializers from the graph inputs. Old files list every weight there."""
    graph.inputs[:] = [value for value in graph.inputs if value.name not in graph.initializers]
