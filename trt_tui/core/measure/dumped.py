"""Two dumps of tensors, one held against the other, tensor by tensor, a piece of each at a time.

Errors are of the second against the first. What exceeds the threshold is the relative error of a tensor, the norm of
the difference by the norm of the first: 0.1 is an SQNR of 20 dB. Behind a layer that is wrong all others are wrong too,
so an error begins where it is at least twice that of what the tensor is computed from.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trt_tui.core.data.dumps import Dump
from trt_tui.core.data.encoded import Encoded
from trt_tui.core.data.stored import Member, reading
from trt_tui.core.measure.comparison import Errors
from trt_tui.core.measure.metrics import Sums
from trt_tui.core.measure.reference import nothing_common
from trt_tui.core.network.layers import Kind
from trt_tui.core.network.network import FP16_MASK, Network
from trt_tui.core.precision import FP16_MAX
from trt_tui.errors import InputError
from trt_tui.words import first_few, plural, with_unit

BLOCK = 1 << 18
"""Elements that are compared at a time."""

MIN_MASK = 1e6
"""The least magnitude of a constant that is looked at as a mask: a product may be larger than FP16's 65504."""

BF16_STEP = 2.0**-8
"""The relative error of a number rounded to BF16: masks that differ by no more are the same."""

MAX_MASK_SIZE = 1 << 20
"""The largest number of elements of a constant that is looked at as a mask."""

BEGINS = 2.0
"""An error begins where it is this much of that of what the tensor is computed from."""


@dataclass(frozen=True)
class TensorErrors:
    """How a tensor of one dump differs from that of the other.

    Attributes:
        shape: In the first iteration.
        relative: Norm of the difference by the norm of the first; infinite if one of the two has a NaN or an infinity
            that the other has not, if the first is zero throughout and the second is not, or if both are NaN
            throughout.
        max_relative, mean_relative: Of |difference| by |first|, over elements whose first is not zero; None without.
        over: The relative error is over the threshold.
        begins: It is, and at least twice that of what the tensor is computed from.
        group: The layers that TensorRT fuses around the one that makes it; "" without a network.
        readers: The groups that read it, copies between left out, if it has NaN or infinities: a value beyond the range
            of 16 bits overflows again where they read it.
        first_bad: Count of NaN and infinities in the first that the second does not have; `errors` counts the reverse.
        nan_in_both: Count of elements that are NaN in both, which nothing is said of.
        masked: Count of elements that are masks in both, which are no errors even where one of them is clamped.
        scaled: An exported network holds it with other channel factors (SmoothQuant): its error says nothing.
        foreign: The network has no such tensor: an export has added it, like a Cast or a quantized weight.
    """

    name: str
    shape: tuple[int, ...]
    errors: Errors
    relative: float
    max_relative: float | None
    mean_relative: float | None
    over: bool
    begins: bool = False
    group: str = ""
    readers: tuple[str, ...] = ()
    first_bad: int = 0
    nan_in_both: int = 0
    foreign: bool = False
    masked: int = 0
    scaled: bool = False

    @property
    def bad(self) -> int:
        """Count of NaN and infinities that only one of the two has."""
        return self.first_bad + self.errors.bad

    @property
    def figure(self) -> str:
        """The SQNR in dB, or "NaN" if it says nothing."""
        unknown = self.bad or self.nan_in_both and math.isinf(self.relative)
        return "NaN" if unknown else self.errors.figure("")


@dataclass
class _Relative:
    """Relative errors of elements, pooled."""

    total: float = 0.0
    count: int = 0
    largest: float = 0.0

    def add(self, first: np.ndarray, second: np.ndarray) -> None:
        counted = np.isfinite(first) & np.isfinite(second) & (first != 0)
        each = np.abs(second[counted] / first[counted] - 1)
        if each.size:
            self.total += float(each.sum())
            self.count += each.size
            self.largest = max(self.largest, float(each.max()))


def common_tensors(first: Dump, second: Dump) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The tensors of both in the first one's order, those of the first alone, and those of the second alone.

    Raises:
        InputError: there is none of both, they have other shapes in one, or there are more iterations of one.
    """
    both = tuple(name for name in first.names if name in second.iterations[0])
    if not both:
        raise nothing_common(first.source, first.names, second.source, second.names, "has",
                             "Dump the same tensors of both: polygraphy run --onnx-outputs '*' --save-outputs.")
    counts = len(first.iterations), len(second.iterations)
    if counts[0] != counts[1]:
        raise InputError(f"{first.source} and {second.source} hold different numbers of iterations",
                         f"{counts[0]} in {first.source}, {counts[1]} in {second.source}",
                         "Run both on the same inputs (polygraphy run --load-inputs).")
    for number, (one, other) in enumerate(zip(first.iterations, second.iterations, strict=True)):
        differ = [name for name in both if one[name].shape != other[name].shape]
        if differ:
            name = differ[0]
            there, here = ("x".join(map(str, side[name].shape)) or "a single value" for side in (one, other))
            raise InputError(f"{plural(len(differ), 'tensor')} of {first.source} and {second.source} have different "
                             "shapes", f"{name} is {there} in {first.source} and {here} in {second.source}, iteration "
                             f"{number}", "Run both on the same inputs, in the same batches.")
        if strange := [name for name in both if {one[name].dtype.kind, other[name].dtype.kind} & set("USV")]:
            raise InputError(f"{strange[0]} holds no numbers", f"{one[strange[0]].dtype} in {first.source}",
                             "Leave it out of the dump.")
    return (both, tuple(name for name in first.names if name not in both),
            tuple(name for name in second.names if name not in both))


def smallest_mask(network: Network | None) -> float:
    """The magnitude from which values of a dump are masks: half of the smallest mask that the network holds.

    Without a network, and where it has none, half of FP32's largest number.
    """
    masks = [network.constant_amax(name) for name in network.constants
             if math.prod(size for size in network.shape(name) or () if isinstance(size, int)) <= MAX_MASK_SIZE
             and network.is_mask(name)] if network is not None else []
    return min((float(amax) / 2 for amax in masks if amax >= MIN_MASK), default=2.0**127)


def compare_tensor(first: Dump, second: Dump, name: str, threshold: float, mask: float = 2.0**127
                   ) -> Iterator[TensorErrors | None]:
    """Compares a tensor over all iterations; yields None after each piece, and the result last.

    An FP16 network has its masks (-3.4e38 before a Softmax) clamped to what FP16 holds: that is no error.

    Args:
        mask: See `smallest_mask`.

    Raises:
        InputError: it cannot be read.
    """
    sums, relative, first_bad, nan_in_both, masked = Sums(), _Relative(), 0, 0, 0
    for one, other in zip(first.iterations, second.iterations, strict=True):
        with reading(f"{name} of {first.source} or {second.source}"):
            for expected, found in zip(_blocks(one[name]), _blocks(other[name]), strict=True):
                both_nan = np.isnan(expected) & np.isnan(found)
                same = (expected == found) | both_nan
                nan_in_both += int(np.count_nonzero(both_nan))
                first_bad += int(np.count_nonzero(~np.isfinite(expected) & ~same))
                masks = _masked(expected, found, mask)
                masked += int(np.count_nonzero(masks))
                left_out = same & ~np.isfinite(found) | masks
                expected, found = np.where(left_out, 0, (expected, found))
                sums.add(expected, found)
                relative.add(expected, found)
                yield None
    errors, noise = sums.errors(), sums.noise
    nothing_compared = 0 < nan_in_both == sums.count
    share = math.inf if errors.bad or first_bad or nothing_compared or math.isnan(noise) else math.sqrt(noise)
    yield TensorErrors(name, first.iterations[0][name].shape, errors, share,
                       relative.largest if relative.count else None,
                       relative.total / relative.count if relative.count else None, share > threshold,
                       first_bad=first_bad, nan_in_both=nan_in_both, masked=masked)


def _masked(expected: np.ndarray, found: np.ndarray, mask: float) -> np.ndarray:
    """Returns True where both hold a mask: the same one, or one of them as it is clamped for FP16 or BF16.

    Large values that differ otherwise are compared: they may be activations.
    """
    sizes = np.abs(expected), np.abs(found)
    larger, smaller = np.maximum(*sizes), np.minimum(*sizes)
    is_clamped = (smaller >= FP16_MASK / 2) & (smaller <= FP16_MAX) | (smaller >= 2.0**126)
    is_same = smaller >= larger * (1 - BF16_STEP)
    masked: np.ndarray = ((larger >= mask) & (is_clamped | is_same) & (np.signbit(expected) == np.signbit(found))
                          & np.isfinite(expected) & np.isfinite(found))
    return masked


def _blocks(member: Member) -> Iterator[np.ndarray]:
    """The values of an array, float64 and flat, in C order, `BLOCK` of them at a time."""
    if isinstance(member, Encoded) and not (member.header.fortran and len(member.shape) > 1):
        left, size = b"", BLOCK * member.dtype.itemsize
        for piece in member.raw():
            left += piece
            while len(left) >= size:
                yield np.frombuffer(left[:size], member.dtype).astype(np.float64)
                left = left[size:]
        if left:
            yield np.frombuffer(left, member.dtype).astype(np.float64)
        return
    flat = member.load().reshape(-1)
    for start in range(0, len(flat), BLOCK):
        yield flat[start:start + BLOCK].astype(np.float64)


def placed(found: Sequence[TensorErrors], network: Network | None, scaled: Collection[str] = ()
           ) -> list[TensorErrors]:
    """The tensors in network order, with where errors begin; behind them those that the network does not have.

    Without a network they stay in their order, and whatever stands before a tensor counts as what it is computed from.

    Args:
        scaled: Tensors whose channels a config scales: only NaN and infinities count there.
    """
    if network is None:
        result, largest = [], 0.0
        for one in found:
            result.append(replace(one, begins=_begins(one, [largest])))
            largest = max(largest, one.relative)
        return result
    place = {name: layer.index for layer in network.layers for name in layer.outputs}
    own = sorted((one for one in found if network.has_tensor(one.name)), key=lambda one: place.get(one.name, -1))
    own = [replace(one, scaled=True, over=bool(one.bad)) if one.name in scaled else one for one in own]
    known = {one.name: one.relative for one in own if not one.scaled or one.over}
    result = []
    for one in own:
        group = network.group_of(network.producer[one.name]) if one.name in network.producer else None
        before = [known[name] for name in _nearest(network, one.name, known)]
        result.append(replace(one, begins=_begins(one, before), group=group.name if group is not None else "",
                              readers=_readers(network, one.name) if one.bad else ()))
    return [*result, *(replace(one, foreign=True) for one in found if not network.has_tensor(one.name))]


def _readers(network: Network, tensor: str) -> tuple[str, ...]:
    """The groups that compute with a tensor, through copies of it, in network order."""
    found: set[str] = set()
    stack, seen = [tensor], {tensor}
    while stack:
        for name in network.graph.readers.get(stack.pop(), ()):
            layer, group = network.layer(name), network.group_of(name)
            if group is not None and layer.kind is not Kind.COPY:
                found.add(group.name)
                continue
            found |= {group.name} if group is not None else set()
            stack += [output for output in layer.outputs if output not in seen]
            seen.update(layer.outputs)
    return tuple(group.name for group in network.groups if group.name in found)


def _begins(one: TensorErrors, before: Sequence[float]) -> bool:
    """Returns True if an error begins at a tensor that is computed from tensors of these relative errors."""
    return one.over and one.relative >= BEGINS * max(before, default=0.0) and not any(map(math.isinf, before))


def _nearest(network: Network, tensor: str, known: Mapping[str, float]) -> set[str]:
    """The known tensors that a tensor is computed from, each way back to the first one met."""
    found: set[str] = set()
    stack, seen = [tensor], {tensor}
    while stack:
        name = stack.pop()
        if name not in network.producer:
            continue
        for read in network.reads(network.producer[name]):
            if read in known:
                found.add(read)
            elif read not in seen:
                seen.add(read)
                stack.append(read)
    return found


def advice(found: Sequence[TensorErrors], first: str, second: str, inputs: Sequence[str] = (),
           named: bool = False) -> list[str]:
    """What the errors say and what to try, in sentences.

    Args:
        inputs: Names of the network's inputs, as far as they are known.
        named: The network is known.
    """
    lines = []
    if nan := [one.name for one in found if one.nan_in_both]:
        lines.append(f"Both dumps have NaN at the same places of {first_few(nan, 4)}: nothing is compared there.")
    if scaled := [one.name for one in found if one.scaled and not one.over]:
        lines.append(f"The config scales the channels of {first_few(scaled, 4)} (SmoothQuant): not compared.")
    if masked := [one.name for one in found if one.masked]:
        lines.append(f"Values that are masks in both, like -3.4e38, are not compared: {first_few(masked, 4)}.")
    if over := [one for one in found if one.over]:
        return lines + _advice_on(over, found, first, second, inputs, named)
    worst = max((one for one in found if not one.scaled), key=lambda one: one.relative, default=found[0])
    return [*lines, f"No tensor is over the threshold; the largest error is at {worst.name}: {_figure(worst)}."]


def _advice_on(over: Sequence[TensorErrors], found: Sequence[TensorErrors], first: str, second: str,
               inputs: Sequence[str], named: bool) -> list[str]:
    """The sentences of `advice` about tensors over the threshold; the first of them is the earliest."""
    earliest, begins = over[0], [one for one in over if one.begins]
    if earliest.foreign:
        return [f"No tensor of the network is over the threshold, but {first_few([one.name for one in over], 4)}: "
                "an exported network has these besides, such as quantized weights. The network has no layer for them."]
    lines = [f"First over the threshold: {earliest.name}, {_figure(earliest)}."]
    if earliest.name in inputs:
        return [*lines, "That is an input: both were not given the same. Compare what prepares the data first."]
    if earliest.bad:
        sides = ((earliest.first_bad, first, second), (earliest.errors.bad, second, first))
        lines += [f"{one} has {count} NaN or Inf there that {other} has not." for count, one, other in sides if count]
        lines.append("Mostly that is a value that left the range of 16 bits, or a scale that is infinite. Keep that "
                     "layer and those that read its result in FP32, or in BF16, which has the range of FP32.")
    elif earliest is found[0] and len(found) > 1:
        lines.append("It is the first tensor of both: the inputs may differ. Compare those first.")
    if len(begins) > 1 or begins and begins[0] is not earliest:
        lines.append(f"Errors begin at {first_few([one.name for one in begins], 4)}; the others over the threshold are "
                     "computed from these.")
    if not begins:
        lines.append("It grows from tensor to tensor, and nowhere to twice what it was: no single layer makes it. "
                     "Begin with what the whole network runs in.")
    elif groups := groups_to_raise(found):
        lines.append(f"Try FP32 for {first_few(list(groups), 4)}: --script and -o write that.")
    elif named:
        lines.append("No fused layer makes it, so no precision mends it.")
    else:
        lines.append(f"Try FP32 for what makes {'these' if len(begins) > 1 else 'it'}: --model names the layers, and "
                     "--script and -o then write that.")
    return lines


def _figure(one: TensorErrors) -> str:
    figure = with_unit(one.figure)
    return figure if math.isinf(one.relative) else f"{figure} (relative error {one.relative:.3g})"


def groups_to_raise(found: Sequence[TensorErrors]) -> tuple[str, ...]:
    """The groups that a fix keeps in FP32: where errors begin, else all that make a tensor over the threshold.

    If only one of the dumps is finite there, also those that read it.
    """
    over = [one for one in found if one.over and one.group]
    return tuple(dict.fromkeys(
        group for one in [one for one in over if one.begins] or over for group in (one.group, *one.readers)))
