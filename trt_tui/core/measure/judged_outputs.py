"""Judged outputs: the tensors, or parts of tensors, at which a run is compared with the reference.

A mean over a whole output hides a broken part (boxes in pixels beside scores up to 1, small objects beside large ones).
So Concats at the end of the network are judged part by part. If an output results from a selection (ArgMax, TopK,
NonMaxSuppression) or is an integer, the float tensors that decide it are judged. Integers are judged by the fraction
that differs.
"""

import difflib
import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from trt_tui.core.measure.concat_parts import FLOAT_TYPES, find_concat_parts
from trt_tui.core.network.folded_shapes import FoldedShapes
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.network.network import Network
from trt_tui.core.network.operators import PRODUCTS
from trt_tui.core.network.reachability import iterate_reachable
from trt_tui.errors import InputError

FLOAT_KIND = "float"
INTEGER_KIND = "integer"

SELECTION_OPERATORS = frozenset(("ArgMax", "ArgMin", "TopK", "NonMaxSuppression", "NonZero", "Unique", "Compress"))
"""Operators that select or order values. One changed selection shifts all values behind it."""

MAX_JUDGED_PARTS = 16
"""The maximum number of parts. A Concat is not divided if more parts would result."""

_INTEGER_PATTERN = re.compile(r"[+-]?\d+")


@dataclass(frozen=True)
class AxisSlice:
    """A slice ``start:stop`` along one axis, as in numpy: negative indices count from the end, ``stop`` None means the
    end."""

    axis: int
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True)
class JudgedOutput:
    """A tensor, or a part of one, at which a run is compared with the reference.

    Attributes:
        name: The name in reports: the name of the tensor, with the slice if it is a part.
        tensor: The tensor; an output of the network or a tensor inside the network.
        slices: At most one slice per axis, by axis; empty for the whole tensor. No axis is dropped.
        kind: `FLOAT_KIND` (judged by its error) or `INTEGER_KIND` (by the fraction that differs).
        mask: The input or label that selects the elements that count, see `trt_tui.core.measure.masks`; "" if all
            count.
        mask_threshold: The magnitude from which FP32 values are masks. Such an element does not count if the run masks
            it too. 0.0 if all elements count.
        note: The origin of the part, or the reason why this tensor is judged in place of an output; "" if neither
            applies.
    """

    name: str
    tensor: str
    slices: tuple[AxisSlice, ...] = ()
    kind: str = FLOAT_KIND
    note: str = ""
    mask: str = ""
    mask_threshold: float = 0.0


def take_judged_slice(array: np.ndarray, judged_output: JudgedOutput) -> np.ndarray:
    """Returns the judged part of a tensor's value as a view with the same rank and dtype."""
    index = [slice(None)] * array.ndim
    for cut in judged_output.slices:
        index[cut.axis] = slice(cut.start, cut.stop)
    return array[tuple(index)]


def list_tensor_outputs(network: Network) -> tuple[str, ...]:
    """Returns the names of the network outputs that are tensors and can be simulated.

    Sequences, maps and optional values are neither compared nor passed to a metric. The same holds for outputs behind a
    plugin that only an engine can execute.
    """
    return tuple(info.name for info in network.outputs if info.name not in network.blocking_plugins
                 and isinstance(network.ir_value(info.name).type, ir.TensorType))


def find_judged_inner_tensors(network: Network, judged_outputs: Sequence[JudgedOutput]) -> tuple[str, ...]:
    """Returns the judged tensors inside the network that an engine must yield in addition to its outputs.

    An engine with a plugin is judged at the tensors before the plugin, which are simulated too. A metric receives these
    tensors from every run.
    """
    outputs = {info.name for info in network.outputs}
    return tuple(
        dict.fromkeys(
            judged_output.tensor
            for judged_output in judged_outputs
            if network.blocking_plugins and judged_output.tensor not in outputs))


def find_unjudged_outputs(network: Network, judged_outputs: Sequence[JudgedOutput] | None = None) -> dict[str, str]:
    """Returns the reason why a network output is not judged, by name of the output.

    Args:
        judged_outputs: The judged outputs, if the default selection is reduced to those that a reference has.
    """
    reasons: dict[str, str] = {}
    whole = set(list_tensor_outputs(network))
    kinds: dict[type, str] = {ir.SequenceType: "a sequence of tensors", ir.OptionalType: "an optional value"}
    judged_tensors = None if judged_outputs is None else {output.tensor for output in judged_outputs}
    for name in (info.name for info in network.outputs):
        if name in network.blocking_plugins:
            reasons[name] = f"computed after the plugin {network.blocking_plugins[name]}, in engines only"
        elif name not in whole:
            reasons[name] = kinds.get(type(network.ir_value(name).type), "no tensor")
        elif judged_tensors is not None:
            selected = {output.tensor for output in _select_judged_tensors(network, name)}
            if selected and judged_tensors.isdisjoint(selected):
                reasons[name] = "the reference lacks it"
    return reasons


def unjudged_output_notes(network: Network) -> tuple[str, ...]:
    """Returns a note for each network output that is not judged, because it is not a tensor or comes from a plugin."""
    return tuple(f"{name}: {reason}: not judged" for name, reason in find_unjudged_outputs(network).items())


_SCORE_OPERATORS = frozenset(("Gemm", "MatMul", "Conv", "Softmax", "LogSoftmax", "GlobalAveragePool"))
"""Operators that compute class scores. An output of another operator, such as a division by its norm, is not a
classifier."""


def find_class_score_output(network: NetworkOutline, judged_outputs: Sequence[JudgedOutput]) -> JudgedOutput | None:
    """Returns the judged output with the scores of a classifier; None if there is none.

    Its shape is ``(samples, classes)``, possibly with more axes of size 1.
    """
    float_outputs = [candidate for candidate in judged_outputs if candidate.kind == FLOAT_KIND]
    if len(float_outputs) != 1 or float_outputs[0].slices or float_outputs[0].mask:
        return None
    shape = network.shape(float_outputs[0].tensor)
    if shape is None or len(shape) < 2 or not isinstance(shape[1], int) or shape[1] < 2:
        return None
    if any(size != 1 for size in shape[2:]):
        return None
    producers = {tensor: candidate for candidate in network.layers for tensor in candidate.outputs}
    layer = producers.get(float_outputs[0].tensor)
    while layer is not None and layer.op_type in ("Cast", "Identity"):  # files in FP16 cast their outputs
        layer = producers.get(layer.inputs[0])
    group = network.find_group(layer.name) if layer is not None else None
    return float_outputs[0] if group is not None and group.operator in _SCORE_OPERATORS else None


def select_judged_outputs(
    network: Network, judge_texts: Sequence[str] = (), label_names: Sequence[str] = ()) -> tuple[JudgedOutput, ...]:
    """Selects the judged outputs of a network: the tensors named by the user, or a default selection.

    Args:
        judge_texts: ``TENSOR``, ``TENSOR[slice]`` or ``TENSOR@MASK`` texts; they replace the default altogether.

    Raises:
        InputError: a text names no tensor that can be judged, or the network has no such output.
    """
    if judge_texts:
        return _exclude_masked_values(
            network, _remove_duplicates(_parse_judged_output(network, text, label_names) for text in judge_texts))
    selected = _remove_duplicates(output for info in network.outputs
                                  for output in _select_judged_tensors(network, info.name))
    if not selected:
        raise InputError(
            f"{network.name} has no output that can be judged", "; ".join(unjudged_output_notes(network))
            or "none of its outputs is a tensor computed from the inputs", "Name a tensor with --judge.")
    return _exclude_masked_values(network, selected)


def _exclude_masked_values(network: Network, judged_outputs: Sequence[JudgedOutput]) -> tuple[JudgedOutput, ...]:
    """Returns judged outputs with a threshold that leaves out the mask values written by a Where operator of the
    network.

    FP16 cannot represent a mask value such as -3.4e38, and no reader of the output needs it.
    """
    unmasked_outputs = []
    for output in judged_outputs:
        beyond = network.mask_magnitude_threshold(output.tensor) if output.kind == FLOAT_KIND else 0.0
        mask_note = f"masked values, outside ±{beyond:.2g}, are not judged" if beyond else ""
        unmasked_outputs.append(
            replace(output, mask_threshold=beyond, note="; ".join(filter(None, (output.note, mask_note)))))
    return tuple(unmasked_outputs)


def _remove_duplicates(judged_outputs: Iterable[JudgedOutput]) -> tuple[JudgedOutput, ...]:
    first: dict[tuple[str, tuple[AxisSlice, ...], str], JudgedOutput] = {}
    for output in judged_outputs:
        first.setdefault((output.tensor, output.slices, output.mask), output)
    return tuple(first.values())


# -- default selection ------------------------------------------------------------------------------------------------


def _select_judged_tensors(network: Network, output_name: str) -> list[JudgedOutput]:
    value = network.ir_value(output_name)
    if output_name in network.blocking_plugins:
        return _select_judged_tensors_before_plugins(network, output_name)
    if output_name not in network.producer or output_name in network.static_tensors or not isinstance(
            value.type, ir.TensorType):
        return []
    integer = value.dtype not in FLOAT_TYPES
    before, selector = _find_tensors_before_selection(network, output_name, integer)
    selected = []
    value_kind = "text" if value.dtype is ir.DataType.STRING else "integers"
    if integer:
        selected.append(
            JudgedOutput(output_name, output_name, kind=INTEGER_KIND,
                         note=f"{value_kind}: judged by the fraction that differs"))
    elif not before:
        return _split_tensor_into_concat_parts(network, output_name)
    reason = f"{output_name} is selected by {selector}" if selector else f"{output_name} holds {value_kind}"
    for tensor in before:
        parts = _split_tensor_into_concat_parts(network, tensor)
        selected += [replace(part, note="; ".join(filter(None, (f"{reason}: judged before it", part.note))))
                     for part in parts]
    return selected


def _select_judged_tensors_before_plugins(network: Network, output_name: str) -> list[JudgedOutput]:
    """Returns the last float tensors before an output behind a plugin that can be simulated, in network order."""
    plugin = network.get_layer(network.blocking_plugins[output_name])
    reason = (f"{output_name} is computed by the plugin {plugin.name} ({plugin.op_type}), in engines only: judged "
              "before it")
    def list_read_tensors(name: str) -> Sequence[str]:
        return network.input_tensors(network.producer[name])

    behind = iterate_reachable([output_name], lambda name: [
        read for read in list_read_tensors(name) if read in network.blocking_plugins])
    tensors = {name for tensor in behind for name in list_read_tensors(tensor)
               if name in network.producer and name not in network.static_tensors
               and name not in network.blocking_plugins and network.ir_value(name).dtype in FLOAT_TYPES}
    parts = []
    for tensor in sorted(tensors, key=lambda name: (network.get_layer(network.producer[name]).index, name)):
        before, _ = _find_tensors_before_selection(network, tensor, False)
        parts += [part for name in before or [tensor] for part in _split_tensor_into_concat_parts(network, name)]
    return [replace(part, note="; ".join(filter(None, (reason, part.note)))) for part in parts]


def _find_tensors_before_selection(network: Network, output_name: str, is_integer: bool) -> tuple[list[str], str]:
    """Returns the float tensors before a selection (such as ArgMax) that an output depends on, and the selecting
    operator.

    The tensors are in network order. For a float output, selections between the output and the nearest Conv or MatMul
    count. For an integer output, the nearest float tensors decide.
    """
    nearest, selector = _find_nearest_floats_before_selection(network, output_name, is_integer)
    find_earlier = functools.cache(lambda name: _find_nearest_floats_before_selection(network, name, False)[0])
    final = [name for name in iterate_reachable(nearest, find_earlier) if not find_earlier(name)]
    return sorted(final, key=lambda name: (network.get_layer(network.producer[name]).index, name)), selector


def _find_nearest_floats_before_selection(network: Network, output_name: str, is_integer: bool) -> tuple[set[str], str]:
    """Returns the nearest float tensors before an integer output, or before a selection that leads to a float output.

    The second value is the type of the selecting operator, "" without a selection.
    """
    deciding_tensors: set[str] = set()
    selectors: list[str] = []
    stack = [(output_name, is_integer)]  # a tensor, and True if the floats right before it decided the selection
    visited = set(stack)
    while stack:
        tensor, deciding = stack.pop()
        if tensor not in network.producer:
            continue
        layer = network.get_layer(network.producer[tensor])
        if not deciding and layer.op_type in PRODUCTS:
            continue
        if layer.op_type in SELECTION_OPERATORS:
            deciding = True
            selectors.append(layer.op_type)
        for name in network.input_tensors(layer.name):
            if name in network.static_tensors or name not in network.producer:
                continue
            if deciding and network.ir_value(name).dtype in FLOAT_TYPES:
                deciding_tensors.add(name)
            elif (name, deciding) not in visited:
                visited.add((name, deciding))
                stack.append((name, deciding))
    return deciding_tensors, selectors[0] if selectors else ""


def _split_tensor_into_concat_parts(network: Network, tensor: str) -> list[JudgedOutput]:
    """Returns one judged output for each part of a tensor that Concats join, and one for the whole tensor without
    Concats."""
    shape = network.shape(tensor) or ()
    parts = find_concat_parts(network, FoldedShapes(network), tensor, MAX_JUDGED_PARTS)
    if len(parts) < 2:
        return [JudgedOutput(tensor, tensor)]
    selected = []
    for ranges, source in parts:
        slices = tuple(AxisSlice(axis, *ends) for axis, ends in sorted(ranges.items()) if ends != (0, shape[axis]))
        selected.append(JudgedOutput(tensor + slice_text(slices, len(shape)), tensor, slices, note=f"from {source}"))
    return selected


def slice_text(slices: Sequence[AxisSlice], rank: int) -> str:
    """Returns slices in the notation of numpy, such as ``[:, 4:]``; "" for the whole tensor."""
    if not slices:
        return ""
    texts = [":"] * (max(cut.axis for cut in slices) + 1)
    for cut in slices:
        start = str(cut.start) if cut.start or cut.stop is not None else ""
        texts[cut.axis] = f"{start}:{'' if cut.stop is None else cut.stop}"
    return f"[{', '.join(texts[:rank] if rank else texts)}]"


# -- selection by the user --------------------------------------------------------------------------------------------


def _parse_judged_output(network: Network, judge_text: str, label_names: Sequence[str]) -> JudgedOutput:
    tensor, slices, mask = judge_text.strip(), None, ""
    if not network.has_tensor(tensor) and "@" in tensor:
        tensor, _, mask = (part.strip() for part in tensor.rpartition("@"))
        _refuse_unknown_mask(network, judge_text, mask, label_names)
    if not network.has_tensor(tensor):
        match = re.fullmatch(r"(.*\S)\s*\[([^\[\]]*)\]", tensor)
        if match is not None:
            tensor, slices = match.group(1), match.group(2)
    if not network.has_tensor(tensor):
        tensor_names = [layer_output for layer in network.layers for layer_output in layer.outputs
                        if network.is_float(layer_output)]
        near = difflib.get_close_matches(tensor, tensor_names, 3, 0.5)
        raise InputError(f"--judge {judge_text}: {network.name} has no tensor {tensor}",
                         f"Did you mean {', '.join(near)}?" if near else "",
                         "Name an output or a tensor as the file does, for example --judge "
                         f"'{next((i.name for i in network.outputs), 'out')}[:, 4:]'.")
    if tensor not in network.producer or tensor in network.static_tensors:
        origin = "computed from constants and shapes alone" if tensor in network.producer else "an input or a constant"
        raise InputError(f"--judge {judge_text}: {tensor} is {origin}", "no precision changes it",
                         "Name a tensor that the network computes from its inputs.")
    if tensor in network.blocking_plugins:
        raise InputError(f"--judge {judge_text}: {tensor} is computed after the plugin "
                         f"{network.blocking_plugins[tensor]}",
                         "the simulation ends there", "Judge a tensor before it, or give its library with --ort-ops.")
    if not network.is_float(tensor) and network.ir_value(tensor).dtype not in FLOAT_TYPES:
        dtype = network.ir_value(tensor).dtype
        raise InputError(f"--judge {judge_text}: {tensor} is not a float tensor",
                         f"its type is {dtype.name if dtype is not None else 'unknown'}",
                         "Name a float tensor; integer outputs are judged by themselves.")
    shape = network.shape(tensor)
    cuts = _parse_axis_slices(judge_text, slices, shape) if slices is not None else ()
    name = tensor + slice_text(cuts, len(shape or ())) + (f"@{mask}" if mask else "")
    mask_note = f", where {mask} is not 0" if mask else ""
    return JudgedOutput(name, tensor, cuts, note=f"named by --judge{mask_note}", mask=mask)


def _refuse_unknown_mask(network: Network, judge_text: str, mask_name: str, label_names: Sequence[str]) -> None:
    """Raises an error if a mask is neither an input of the network nor an array of the data."""
    mask_names = [*(info.name for info in network.inputs), *label_names]
    if mask_name not in mask_names:
        near = difflib.get_close_matches(mask_name, mask_names, 3, 0.5) or mask_names
        raise InputError(f"--judge {judge_text}: there is no {mask_name or 'name after @'}",
                         f"a mask is an input of the network or another array of the data: {', '.join(near)}",
                         "Write it as --judge 'TENSOR@MASK', for example last_hidden_state@attention_mask.")


def _parse_axis_slices(judge_text: str, slices_text: str,
                       shape: tuple[int | str | None, ...] | None) -> tuple[AxisSlice, ...]:
    def make_slice_error(cause: str) -> InputError:
        return InputError(f"--judge {judge_text}: [{slices_text}] is not a slice of it", cause,
                          "Write it as numpy does, for example [:, 4:] or [0, 1:3].")

    items = [item.strip() for item in slices_text.split(",")]
    if items and items[-1] == "" and len(items) > 1:
        items.pop()
    if items.count("...") > 1:
        raise make_slice_error("... may be used only once")
    if "..." in items:
        if shape is None:
            raise make_slice_error("the tensor's rank is unknown, so ... cannot be used")
        index = items.index("...")
        items[index:index + 1] = [":"] * (len(shape) - len(items) + 1)
    if shape is not None and len(items) > len(shape):
        raise make_slice_error(f"it has {len(items)} axes, the tensor has {len(shape)}: ({', '.join(map(str, shape))})")
    cuts = []
    for axis, item in enumerate(items):
        bounds = [part.strip() for part in item.split(":")]
        if len(bounds) > 2:
            raise make_slice_error("steps are not supported")
        if item == "" or any(bound_text and not _INTEGER_PATTERN.fullmatch(bound_text) for bound_text in bounds):
            raise make_slice_error(f"'{item}' is neither a whole number nor start:stop")
        size = shape[axis] if shape is not None else None
        cut = _parse_axis_slice(axis, bounds, size if isinstance(size, int) else None)
        if cut is None:
            raise make_slice_error(f"axis {axis} has {size} entries, and '{item}' selects none of them"
                                   if isinstance(size, int) else f"'{item}' selects nothing")
        if cut.start or cut.stop is not None:
            cuts.append(cut)
    return tuple(cuts)


def _parse_axis_slice(axis: int, bound_texts: list[str], size: int | None) -> AxisSlice | None:
    """Returns the slice along one axis for an index or ``start:stop``; None if it is empty.

    Negative indices are converted to positive ones if the size of the axis is known.
    """
    if len(bound_texts) == 1:
        index = int(bound_texts[0])
        if size is not None and not -size <= index < size:
            return None
        start, stop = index, index + 1 or None
    else:
        start, stop = int(bound_texts[0] or 0), int(bound_texts[1]) if bound_texts[1] else None
    if size is not None:
        start, stop, _ = slice(start, stop).indices(size)
        return None if stop <= start else AxisSlice(axis, start, None if stop == size else stop)
    if stop is not None and stop <= start and (stop < 0) == (start < 0):
        return None
    return AxisSlice(axis, start, stop)
