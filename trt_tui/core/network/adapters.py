"""What onnx's version converter leaves as it was though its meaning changed, put right behind it.

Each adapter stands with the opset that changed the operator. What has no form in newer opsets is refused with the
node's name. `trt_tui.core.network.opset_changes` lists all changes, with their sources.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trt_tui.core.network.constants import constant_tensor
from trt_tui.core.network.naming import FreshNames, name_of
from trt_tui.words import first_few


def prepare(model: ir.Model, before: int, after: int) -> None:
    """Removes the two outputs of BatchNormalizations that opset 14 no longer has; the model is changed.

    Raises:
        ValueError: something reads one of them.
    """
    if not before < 14 <= after:
        return
    for node in model.graph.all_nodes():
        if node.op_type == "BatchNormalization" and not node.domain and len(node.outputs) > _BATCH_NORM_OUTPUTS:
            if any(output.uses() or output.is_graph_output() for output in node.outputs[_BATCH_NORM_OUTPUTS:]):
                raise ValueError(f"{node.name} (BatchNormalization) is in training mode, and its saved statistics are "
                                 "read, which newer opsets do not have")
            node.resize_outputs(_BATCH_NORM_OUTPUTS)


class OpsetError(ValueError):
    """A node whose meaning an opset cannot express for the runtimes that read it.

    Args:
        next_step: The way out, as a sentence; "" for a newer export.
    """

    def __init__(self, message: str, next_step: str = "") -> None:
        super().__init__(message)
        self.next_step = next_step


CUBIC_READ_AS_NEAREST = ("{} (GridSample) has mode cubic: from opset 20 on the parsers of TensorRT up to 11.1 and of "
                         "TensorRT-RTX up to 1.5 read it as nearest")
"""Source: `trt_tui.core.network.opset_changes`."""

OLDER_CUBIC = "Export the network with an opset from 16 to 19, which names the mode bicubic."


def adapt(model: ir.Model, before: int) -> None:
    """Puts operators right that a conversion from an opset left with another meaning; the model is changed.

    Raises:
        ValueError: an operator means what no operator of the new opset does.
    """
    after = model.graph.opset_imports[""]
    names = FreshNames(model.graph)
    for node in list(model.graph.all_nodes()):
        change = _CHANGED.get(node.op_type) if node.domain == "" else None
        if change is not None and before < change.opset <= after:
            change.adapter(node, names)


def reading_notes(model: ir.Model, after: int) -> list[str]:
    """Returns what TensorRT's parser reads otherwise than ONNX Runtime, whose reading a conversion keeps."""
    if model.graph.opset_imports.get("", 0) >= _CHANGED["Resize"].opset or after < _CHANGED["Resize"].opset:
        return []
    found = [node.name or "" for node in model.graph.all_nodes() if node.op_type == "Resize" and not node.domain
             and node.attributes.get_string("mode", "nearest") == "nearest" and _least_scale(node) < 1]
    return [f"{first_few(found, most=2)} (Resize of opset 10) shrinks by nearest values: ONNX Runtime takes the value "
            "behind a place between two, TensorRT's parser the one before. Files that are written here say what ONNX "
            "Runtime does, for both."] if found else []


def _least_scale(node: ir.Node) -> float:
    """Returns the least scale of a Resize of opset 10; 1.0 if it is computed."""
    scales = constant_tensor(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] is not None else None
    return 1.0 if scales is None else float(scales.numpy().min(initial=1))


def leave_out_linear_modes(model: ir.Model) -> list[str]:
    """Leaves the mode out of GridSamples of opset 20 or later where it is the default, linear; returns their names.

    TensorRT's parser reads "linear" as nearest, and an absent mode as linear; ONNX means linear by both.
    """
    if model.graph.opset_imports.get("", 0) < _GRID_MODES:
        return []
    found = [node for node in model.graph.all_nodes() if node.op_type == "GridSample" and not node.domain
             and node.attributes.get_string("mode", "") == "linear"]
    for node in found:
        del node.attributes["mode"]
    return [node.name or "" for node in found]


def cubic_grids(model: ir.Model) -> list[str]:
    """Returns the names of the GridSamples whose mode TensorRT's parser may read as nearest."""
    if model.graph.opset_imports.get("", 0) < _GRID_MODES:
        return []
    return [node.name or "" for node in model.graph.all_nodes() if node.op_type == "GridSample" and not node.domain
            and node.attributes.get_string("mode", "") == "cubic"]


def _grid_mode(node: ir.Node, names: FreshNames) -> None:
    """GridSample spells its modes otherwise since opset 20, and TensorRT's parser knows the older words alone."""
    mode = node.attributes.get_string("mode", "")
    if mode in ("cubic", "bicubic"):
        raise OpsetError(CUBIC_READ_AS_NEAREST.format(node.name),
                         "Give no layer FP8, INT4 or BF16, and write no normalisation as RMSNormalization: all else is "
                         "written at opset 19 or lower, which names the mode bicubic.")
    if mode in ("linear", "bilinear"):
        del node.attributes["mode"]


def _padding_alone(node: ir.Node, names: FreshNames) -> None:
    """The value of a Pad is an input since opset 11; the converter leaves the attribute where the mode needs none."""
    node.attributes.pop("value", None)


def _in_training(node: ir.Node, names: FreshNames) -> None:
    """More outputs than one meant training mode."""
    if len(node.outputs) > 1:
        node.attributes["training_mode"] = ir.AttrInt64("training_mode", 1)


def _old_resize(node: ir.Node, names: FreshNames) -> None:
    """Resize-10 and Upsample count from the corner, and take the value before a place between two (ONNX Runtime, as
    TensorRT; where they shrink, the one behind)."""
    node.attributes["coordinate_transformation_mode"] = ir.AttrString("coordinate_transformation_mode", "asymmetric")
    if node.attributes.get_string("mode", "nearest") != "nearest":
        return
    scales = constant_tensor(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] is not None else None
    known = np.ones(1) if scales is None else scales.numpy()
    if known.min(initial=1) < 1 < known.max(initial=1):
        raise ValueError(f"{node.name} ({node.op_type}) takes the nearest value both up and down, which newer opsets "
                         "have no form of")
    node.attributes["nearest_mode"] = ir.AttrString("nearest_mode", "ceil" if known.min(initial=1) < 1 else "floor")


def _per_channel(node: ir.Node, names: FreshNames) -> None:
    """GroupNormalization has a scale and a bias for each channel since opset 21, for each group before."""
    groups = node.attributes.get_int("num_groups", 1)
    data = node.inputs[0]
    channels = data.shape[1] if data is not None and data.shape is not None and len(data.shape) > 1 else None
    if not isinstance(channels, int):
        raise ValueError(f"{node.name} (GroupNormalization) has a scale for each group, and how many channels a group "
                         "has is not known")
    for index, value in enumerate(node.inputs[1:3], 1):
        if value is not None and channels != groups:
            node.replace_input_with(index, _repeated(node, value, channels // groups, names))


def _repeated(node: ir.Node, value: ir.Value, times: int, names: FreshNames) -> ir.Value:
    """Each element of a vector some times, one behind the other."""
    stored = constant_tensor(value)
    if stored is not None:
        return _stored(node, np.repeat(stored.numpy(), times), names.new(f"{name_of(value)}_per_channel"))
    column = _before(node, "Reshape", [value, _stored(node, np.array([-1, 1]), names.new("column"))], names)
    ones = _stored(node, np.array([1, times]), names.new("times"))
    return _before(node, "Reshape", [_before(node, "Expand", [column, ones], names),
                                     _stored(node, np.array([-1]), names.new("whole"))], names)


def _coerced(node: ir.Node, names: FreshNames) -> None:
    """Below opset 13 Hardmax works over all axes from its own on, since then over that one."""
    axis = node.attributes.get_int("axis", 1)
    node.attributes["axis"] = ir.AttrInt64("axis", -1)
    (source,), (result,) = node.inputs, node.outputs
    assert source is not None
    shape = _before(node, "Shape", [source], names)
    node.replace_input_with(0, _before(node, "Flatten", [source], names, axis=axis))
    reshaped = ir.Node("", "Reshape", [result, shape], name=names.new(f"{node.name}_reshaped"))
    graph = _graph(node)
    graph.insert_after(node, reshaped)
    new, = reshaped.outputs
    new.type, new.shape = result.type, result.shape
    users = [use for use in result.uses() if use.node is not reshaped]
    for use in users:
        use.node.replace_input_with(use.idx, new)
    for index, value in enumerate(graph.outputs):
        if value is result:
            graph.outputs[index] = new
    new.name, result.name = result.name, names.new(f"{name_of(result)}_flat")
    result.shape = None


def _before(node: ir.Node, operator: str, inputs: list[ir.Value], names: FreshNames, **attributes: int) -> ir.Value:
    new = ir.node(operator, inputs, attributes, name=names.new(f"{node.name}_{operator.lower()}"))
    _graph(node).insert_before(node, new)
    output = new.outputs[0]
    output.name = names.new(f"{new.name}_output")
    source = inputs[0]
    output.type = ir.TensorType(ir.DataType.INT64) if operator == "Shape" else source.type
    return output


def _stored(node: ir.Node, array: np.ndarray, name: str) -> ir.Value:
    tensor = ir.tensor(array, name=name)
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)
    _graph(node).register_initializer(value)
    return value


def _graph(node: ir.Node) -> ir.Graph:
    assert isinstance(node.graph, ir.Graph)  # functions are inlined
    return node.graph


_BATCH_NORM_OUTPUTS = 3
_GRID_MODES = 20


@dataclass(frozen=True)
class _Change:
    opset: int
    adapter: Callable[[ir.Node, FreshNames], None]


_CHANGED = {"BatchNormalization": _Change(14, _in_training), "Resize": _Change(11, _old_resize),
            "Hardmax": _Change(13, _coerced), "GroupNormalization": _Change(21, _per_channel),
            "GridSample": _Change(20, _grid_mode), "Pad": _Change(11, _padding_alone)}
"""By operator as the converter writes it: the opset that changed it, and what puts it right."""

ADAPTED = frozenset(_CHANGED)
"""The operators that have an adapter."""
