"""Judged outputs: the tensors, or parts of them, that a run is judged by.

A mean over a whole output hides a part that is broken (boxes in pixels beside scores up to 1, small objects beside
large ones), so Concats at the end of the network are judged part by part. If an output was selected (ArgMax, TopK,
NonMaxSuppression) or turned into integers, the float tensors that decided it are judged, and the integers by the
fraction that differs.
"""

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from trt_tui.core.measure.parts import FLOAT_TYPES, parts_of
from trt_tui.core.network.layers import Outline
from trt_tui.core.network.network import Network
from trt_tui.core.network.operators import ANCHORS
from trt_tui.core.network.sizes import Shapes
from trt_tui.errors import InputError

FLOAT = "float"
INTEGER = "integer"

SELECTORS = frozenset(("ArgMax", "ArgMin", "TopK", "NonMaxSuppression", "NonZero", "Unique", "Compress"))
"""Operators that select or order values: one selection that flips moves everything behind it."""

MOST_PARTS = 16
"""A Concat that would make more parts than this is not taken apart."""

_WHOLE_NUMBER = re.compile(r"[+-]?\d+")


@dataclass(frozen=True)
class AxisSlice:
    """``start:stop`` along one axis, as numpy reads it (negative counts from the end); ``stop`` None: to the end."""

    axis: int
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True)
class Judged:
    """What a run is judged by.

    Attributes:
        name: How reports call it: the tensor's name, with the slice where it is a part.
        tensor: The tensor; an output of the network or a tensor computed on the way.
        slices: At most one cut per axis, by axis; empty for the whole tensor. No axis is dropped.
        kind: `FLOAT` (judged by its error) or `INTEGER` (by the fraction that differs).
        mask: An input or label by which elements count, see `trt_tui.core.measure.masks`; "" where all do.
        hidden_from: The magnitude from which FP32's values are masks, which do not count where a run masks them too;
            0.0 where all do.
        note: Where the part comes from, or why this tensor is judged in place of an output; "" if neither applies.
    """

    name: str
    tensor: str
    slices: tuple[AxisSlice, ...] = ()
    kind: str = FLOAT
    note: str = ""
    mask: str = ""
    hidden_from: float = 0.0


def take(array: np.ndarray, judged: Judged) -> np.ndarray:
    """The judged part of a tensor's value, a view of the same rank and dtype."""
    index = [slice(None)] * array.ndim
    for cut in judged.slices:
        index[cut.axis] = slice(cut.start, cut.stop)
    return array[tuple(index)]


def tensor_outputs(network: Network) -> tuple[str, ...]:
    """The outputs that are tensors; sequences, maps and optionals are neither compared nor given to a metric.

    Nor does what only an engine can run, behind a plugin.
    """
    return tuple(info.name for info in network.outputs if info.name not in network.behind
                 and isinstance(network.value(info.name).type, ir.TensorType))


def kept_tensors(network: Network, judged: Sequence[Judged], inner: bool = False) -> tuple[str, ...]:
    """Tensors before plugins, which an engine yields beside its outputs, so that it is judged by what is simulated.

    A metric is given them too, of whatever ran.

    Args:
        inner: The metric needs judged tensors inside the network, such as those before NMS.
    """
    outputs = {info.name for info in network.outputs}
    return tuple(dict.fromkeys(one.tensor for one in judged if (network.behind or inner) and one.tensor not in outputs))


def left_out(network: Network) -> tuple[str, ...]:
    """Notes on the outputs that are no tensors."""
    whole = set(tensor_outputs(network))
    kinds: dict[type, str] = {ir.SequenceType: "a sequence of tensors", ir.OptionalType: "an optional value"}
    return tuple(f"{info.name}: made behind {network.behind[info.name]}, a plugin, by engines alone: not judged"
                 if info.name in network.behind else
                 f"{info.name}: {kinds.get(type(network.value(info.name).type), 'no tensor')}, which is not judged"
                 for info in network.outputs if info.name not in whole)


_SCORES = frozenset(("Gemm", "MatMul", "Conv", "Softmax", "LogSoftmax", "GlobalAveragePool"))
"""Operators that compute class scores; an output of anything else (a division by its norm) is no classifier's."""


def class_scores(network: Outline, judged: Sequence[Judged]) -> Judged | None:
    """The judged output with a classifier's scores, ``(samples, classes)`` or with axes of 1 behind; None without."""
    floats = [one for one in judged if one.kind == FLOAT]
    if len(floats) != 1 or floats[0].slices or floats[0].mask:
        return None
    shape = network.shape(floats[0].tensor)
    if shape is None or len(shape) < 2 or not isinstance(shape[1], int) or shape[1] < 2:
        return None
    if any(size != 1 for size in shape[2:]):
        return None
    layer = next((one for one in reversed(network.layers) if floats[0].tensor in one.outputs), None)
    group = network.group_of(layer.name) if layer is not None else None
    return floats[0] if group is not None and group.operator in _SCORES else None


def judged_outputs(network: Network, spec: Sequence[str] = (), labels: Sequence[str] = ()) -> tuple[Judged, ...]:
    """What the network is judged by.

    Args:
        spec: ``TENSOR``, ``TENSOR[slice]`` or ``TENSOR@MASK`` texts; they replace the default altogether.

    Raises:
        InputError: a text of ``spec`` names no tensor that can be judged, or the network has no such output.
    """
    if spec:
        return _unmasked(network, _unique(_parse(network, text, labels) for text in spec))
    found = _unique(one for info in network.outputs for one in _of_output(network, info.name))
    if not found:
        raise InputError(f"{network.name} has no output that can be judged",
                         "; ".join(left_out(network)) or "none of its outputs is a tensor computed from the inputs",
                         "Name a tensor with --judge.")
    return _unmasked(network, found)


def _unmasked(network: Network, judged: Sequence[Judged]) -> tuple[Judged, ...]:
    """Judged outputs, with masks that a Where put into them left out: FP16 holds no -3.4e38, and none is missed."""
    found = []
    for one in judged:
        beyond = network.hidden_from(one.tensor) if one.kind == FLOAT else 0.0
        said = f"masked values, beyond ±{beyond:.2g}, are not judged" if beyond else ""
        found.append(replace(one, hidden_from=beyond, note="; ".join(filter(None, (one.note, said)))))
    return tuple(found)


def _unique(judged: Iterable[Judged]) -> tuple[Judged, ...]:
    first: dict[tuple[str, tuple[AxisSlice, ...], str], Judged] = {}
    for one in judged:
        first.setdefault((one.tensor, one.slices, one.mask), one)
    return tuple(first.values())


# -- the default --------------------------------------------------------------------------------------------------


def _of_output(network: Network, name: str) -> list[Judged]:
    value = network.value(name)
    if name in network.behind:
        return _before_plugins(network, name)
    if name not in network.producer or name in network.static or not isinstance(value.type, ir.TensorType):
        return []
    integer = value.dtype not in FLOAT_TYPES
    before, selector = _before_selection(network, name, integer)
    judged = []
    what = "text" if value.dtype is ir.DataType.STRING else "integers"
    if integer:
        judged.append(Judged(name, name, kind=INTEGER, note=f"{what}: judged by the fraction that differs"))
    elif not before:
        return _parts(network, name)
    why = f"{name} is selected by {selector}" if selector else f"{name} holds {what}"
    for tensor in before:
        parts = _parts(network, tensor)
        judged.extend(Judged(p.name, p.tensor, p.slices, p.kind, "; ".join(filter(None, (
            f"{why}: judged before it", p.note)))) for p in parts)
    return judged


def _before_plugins(network: Network, output: str) -> list[Judged]:
    """The last float tensors that can be simulated on the way to an output behind a plugin, in network order."""
    plugin = network.layer(network.behind[output])
    why = f"{output} is made by {plugin.name} ({plugin.op_type}), a plugin, by engines alone: judged before it"
    found: set[str] = set()
    stack, seen = [output], {output}
    while stack:
        for name in network.reads(network.producer[stack.pop()]):
            if name in network.behind and name not in seen:
                seen.add(name)
                stack.append(name)
            elif name in network.producer and name not in network.static and name not in network.behind \
                    and network.value(name).dtype in FLOAT_TYPES:
                found.add(name)
    judged = []
    for tensor in sorted(found, key=lambda name: (network.layer(network.producer[name]).index, name)):
        before, _ = _before_selection(network, tensor, False)
        judged += [part for name in before or [tensor] for part in _parts(network, name)]
    return [Judged(one.name, one.tensor, one.slices, one.kind, "; ".join(filter(None, (why, one.note))))
            for one in judged]


def _before_selection(network: Network, output: str, integer: bool) -> tuple[list[str], str]:
    """The last computed float tensors before a selection that an output comes from, in network order; the selector.

    For a float output: those that decided a selection between the output and the nearest Conv or MatMul.
    For an integer output: the nearest ones.
    """
    nearest, selector = _deciding(network, output, integer)
    final: set[str] = set()
    done: set[str] = set()
    while nearest:
        name = nearest.pop()
        if name in done:
            continue
        done.add(name)
        earlier, _ = _deciding(network, name, False)
        if earlier:
            nearest |= earlier
        else:
            final.add(name)
    order = sorted(final, key=lambda name: (network.layer(network.producer[name]).index, name))
    return order, selector


def _deciding(network: Network, output: str, integer: bool) -> tuple[set[str], str]:
    """The first floats met on the way back from an integer output, or from a selector behind a float one."""
    found: set[str] = set()
    selectors: list[str] = []
    stack = [(output, integer)]  # a tensor, and whether the floats right before it decided what was selected
    seen = set(stack)
    while stack:
        tensor, deciding = stack.pop()
        if tensor not in network.producer:
            continue
        layer = network.layer(network.producer[tensor])
        if not deciding and layer.op_type in ANCHORS:
            continue
        if layer.op_type in SELECTORS:
            deciding = True
            selectors.append(layer.op_type)
        for name in network.reads(layer.name):
            if name in network.static or name not in network.producer:
                continue
            if deciding and network.value(name).dtype in FLOAT_TYPES:
                found.add(name)
            elif (name, deciding) not in seen:
                seen.add((name, deciding))
                stack.append((name, deciding))
    return found, selectors[0] if selectors else ""


def _parts(network: Network, tensor: str) -> list[Judged]:
    """The parts that Concats before a tensor make of it; the whole tensor where there are none."""
    shape = network.shape(tensor) or ()
    found = parts_of(network, Shapes(network), tensor, MOST_PARTS)
    if len(found) < 2:
        return [Judged(tensor, tensor)]
    judged = []
    for ranges, source in found:
        slices = tuple(AxisSlice(axis, *ends) for axis, ends in sorted(ranges.items()) if ends != (0, shape[axis]))
        judged.append(Judged(tensor + slice_text(slices, len(shape)), tensor, slices, note=f"from {source}"))
    return judged


def slice_text(slices: Sequence[AxisSlice], rank: int) -> str:
    """Cuts as numpy writes them, such as ``[:, 4:]``; "" for the whole tensor."""
    if not slices:
        return ""
    texts = [":"] * (max(cut.axis for cut in slices) + 1)
    for cut in slices:
        start = str(cut.start) if cut.start or cut.stop is not None else ""
        texts[cut.axis] = f"{start}:{'' if cut.stop is None else cut.stop}"
    return f"[{', '.join(texts[:rank] if rank else texts)}]"


# -- named by the user --------------------------------------------------------------------------------------------


def _parse(network: Network, text: str, labels: Sequence[str]) -> Judged:
    tensor, slices, mask = text.strip(), None, ""
    if not network.has_tensor(tensor) and "@" in tensor:
        tensor, _, mask = (part.strip() for part in tensor.rpartition("@"))
        _check_mask(network, text, mask, labels)
    if not network.has_tensor(tensor):
        match = re.fullmatch(r"(.*\S)\s*\[([^\[\]]*)\]", tensor)
        if match is not None:
            tensor, slices = match.group(1), match.group(2)
    if not network.has_tensor(tensor):
        known = [layer_output for layer in network.layers for layer_output in layer.outputs
                 if network.is_float(layer_output)]
        near = difflib.get_close_matches(tensor, known, 3, 0.5)
        raise InputError(f"--judge {text}: {network.name} has no tensor {tensor}",
                         f"Did you mean {', '.join(near)}?" if near else "",
                         "Name an output or a tensor as the file does, for example --judge "
                         f"'{next((i.name for i in network.outputs), 'out')}[:, 4:]'.")
    if tensor not in network.producer or tensor in network.static:
        what = "computed from constants and shapes alone" if tensor in network.producer else "an input or a constant"
        raise InputError(f"--judge {text}: {tensor} is {what}", "no precision changes it",
                         "Name a tensor that the network computes from its inputs.")
    if tensor in network.behind:
        raise InputError(f"--judge {text}: {tensor} is made behind {network.behind[tensor]}, a plugin",
                         "the simulation ends there", "Judge a tensor before it, or give its library with --ort-ops.")
    if not network.is_float(tensor) and network.value(tensor).dtype not in FLOAT_TYPES:
        dtype = network.value(tensor).dtype
        raise InputError(f"--judge {text}: {tensor} is not a float tensor",
                         f"its type is {dtype.name if dtype is not None else 'unknown'}",
                         "Name a float tensor; integer outputs are judged by themselves.")
    shape = network.shape(tensor)
    cuts = _parse_slices(text, slices, shape) if slices is not None else ()
    name = tensor + slice_text(cuts, len(shape or ())) + (f"@{mask}" if mask else "")
    where = f", where {mask} is not 0" if mask else ""
    return Judged(name, tensor, cuts, note=f"named by --judge{where}", mask=mask)


def _check_mask(network: Network, text: str, mask: str, labels: Sequence[str]) -> None:
    """Refuses a mask that no sample will bring."""
    known = [*(info.name for info in network.inputs), *labels]
    if mask not in known:
        near = difflib.get_close_matches(mask, known, 3, 0.5) or known
        raise InputError(f"--judge {text}: there is no {mask or 'name behind @'}",
                         f"a mask is an input of the network or another array of the data: {', '.join(near)}",
                         "Write it as --judge 'TENSOR@MASK', for example last_hidden_state@attention_mask.")


def _parse_slices(text: str, slices: str, shape: tuple[int | str | None, ...] | None) -> tuple[AxisSlice, ...]:
    def refuse(cause: str) -> InputError:
        return InputError(f"--judge {text}: [{slices}] is no slice of it", cause,
                          "Write it as numpy does, for example [:, 4:] or [0, 1:3].")

    items = [item.strip() for item in slices.split(",")]
    if items and items[-1] == "" and len(items) > 1:
        items.pop()
    if items.count("...") > 1:
        raise refuse("... may be used only once")
    if "..." in items:
        if shape is None:
            raise refuse("the tensor's rank is unknown, so ... cannot be used")
        place = items.index("...")
        items[place:place + 1] = [":"] * (len(shape) - len(items) + 1)
    if shape is not None and len(items) > len(shape):
        raise refuse(f"it has {len(items)} axes, the tensor has {len(shape)}: ({', '.join(map(str, shape))})")
    cuts = []
    for axis, item in enumerate(items):
        bounds = [part.strip() for part in item.split(":")]
        if len(bounds) > 2:
            raise refuse("steps are not supported")
        if item == "" or any(bound and not _WHOLE_NUMBER.fullmatch(bound) for bound in bounds):
            raise refuse(f"'{item}' is neither a whole number nor start:stop")
        size = shape[axis] if shape is not None else None
        cut = _cut(axis, bounds, size if isinstance(size, int) else None)
        if cut is None:
            raise refuse(f"axis {axis} has {size} entries, and '{item}' takes none of them"
                         if isinstance(size, int) else f"'{item}' takes nothing")
        if cut.start or cut.stop is not None:
            cuts.append(cut)
    return tuple(cuts)


def _cut(axis: int, bounds: list[str], size: int | None) -> AxisSlice | None:
    """The cut of one index or ``start:stop``, counted from the front where the size is known; None if it is empty."""
    if len(bounds) == 1:
        index = int(bounds[0])
        if size is not None and not -size <= index < size:
            return None
        start, stop = index, index + 1 or None
    else:
        start, stop = int(bounds[0] or 0), int(bounds[1]) if bounds[1] else None
    if size is not None:
        start, stop, _ = slice(start, stop).indices(size)
        return None if stop <= start else AxisSlice(axis, start, None if stop == size else stop)
    if stop is not None and stop <= start and (stop < 0) == (start < 0):
        return None
    return AxisSlice(axis, start, stop)
