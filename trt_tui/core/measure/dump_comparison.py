"""Comparison of a run, such as a dump, with a reference at all tensors of both, a piece of each tensor at a time.

The threshold applies to the relative error of a tensor: the norm of the difference divided by the norm of the
reference. A relative error of 0.1 is an SQNR of 20 dB. Integers, such as the ids of classes, have no such error: the
fraction that differs takes its place. Integers of 8 bits are quantized values, and are compared as numbers. Behind a
wrong layer all other layers are wrong too. So an error begins at a tensor only if it is at least twice the error of the
tensors from which it is computed.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trt_tui.core.data.tensor_files import Dump, DumpTensor
from trt_tui.core.measure.error_metrics import ErrorMetrics, ErrorSums
from trt_tui.core.measure.run_sources import no_common_tensors_error
from trt_tui.core.network.layers import LayerKind
from trt_tui.core.network.model_editing import iterate_reachable
from trt_tui.core.network.network import FP16_MASK_VALUE, Network
from trt_tui.core.precision import FP16_MAX
from trt_tui.errors import InputError
from trt_tui.formatting import add_decibel_unit, counted_noun_text, mismatch_text, name_list_text

BLOCK_ELEMENTS = 1 << 18
"""The number of elements that are compared at a time."""

MIN_MASK_MAGNITUDE = 1e6
"""The minimum magnitude of a constant that may be a mask. It is above 65504 of FP16, because a product may exceed that.
"""

BF16_RELATIVE_STEP = 2.0**-8
"""The relative error of a number rounded to BF16. Masks that differ by no more are equal."""

MAX_MASK_ELEMENTS = 1 << 20
"""The maximum number of elements of a constant that may be a mask."""

ERROR_GROWTH = 2.0
"""The minimum ratio of a tensor's error to the errors of the tensors it is computed from, for an error to begin there.
"""


MAX_INPUT_ERROR = 0.3
"""The maximum relative error of the inputs of a layer at which the error of its result shows what the layer adds. From
larger errors, results deviate in no proportion to them."""


@dataclass(frozen=True)
class TensorDifference:
    """The difference of one tensor between two dumps.

    Attributes:
        shape: The shape in the first iteration.
        relative_error: Norm of the difference divided by the norm of the first. Infinite if only one of the two has a
            NaN or an infinity, if only the first is zero throughout, or if both are NaN throughout. For integers the
            fraction that differs.
        max_relative_error, mean_relative_error: Of |difference| / |first| over elements whose first is not zero; None
            if there are none.
        exceeds_threshold: True if the relative error is above the threshold.
        begins_error: True if the relative error is above the threshold, and at least twice that of the tensors from
            which this one is computed.
        added_error: The relative error that the layer adds to those of the tensors from which this one is computed; 0
            if these errors are too large to tell.
        group_name: The fusion group that computes the tensor; "" without a network.
        reader_groups: If the tensor has NaN or infinities, the groups that read it, also through copies. A value beyond
            the range of 16 bits overflows again in these groups.
        first_nonfinite_count: Number of NaN and infinities in the first that the second does not have; `errors` counts
            the reverse.
        common_nan_count: Number of elements that are NaN in both. They are not compared.
        masked_count: Number of elements that are masks in both. They are not errors, even if one of them is clamped.
        is_scaled: True if the network of one dump has other channel factors (SmoothQuant), so that the error says
            nothing.
        is_missing_in_network: True if the network lacks the tensor, because an export has added it, like a Cast or a
            quantized weight.
        unmeasured_groups: If the error begins here, the groups between this tensor and the compared tensors from which
            it is computed. None of their tensors is compared, so the error may begin in any of them.
        is_origin_unknown: True if most groups of the network are unmeasured groups, and no compared tensor precedes
            them.
    """

    tensor: str
    shape: tuple[int, ...]
    errors: ErrorMetrics
    relative_error: float
    max_relative_error: float | None
    mean_relative_error: float | None
    exceeds_threshold: bool
    begins_error: bool = False
    added_error: float = 0.0
    group_name: str = ""
    reader_groups: tuple[str, ...] = ()
    first_nonfinite_count: int = 0
    common_nan_count: int = 0
    is_missing_in_network: bool = False
    masked_count: int = 0
    is_scaled: bool = False
    unmeasured_groups: tuple[str, ...] = ()
    is_origin_unknown: bool = False

    @property
    def nonfinite_count(self) -> int:
        """The number of NaN and infinities that only one of the two dumps has."""
        return self.first_nonfinite_count + self.errors.nonfinite_count

    @property
    def sqnr_text(self) -> str:
        """The SQNR of the tensor in dB as a text; "NaN" if it has no meaning."""
        unknown = self.nonfinite_count or self.common_nan_count and math.isinf(self.relative_error)
        return "NaN" if unknown else self.errors.sqnr_text("")

    @property
    def mismatch_text(self) -> str:
        """The fraction of integers that differ as a text; "" if none differs, and for other tensors."""
        return f"{mismatch_text(self.errors.mismatch)} of its integers differ" if self.errors.mismatch else ""


@dataclass(frozen=True)
class TensorSummary:
    """The values of one tensor of a dump over all iterations.

    Attributes:
        shape: The shape in the first iteration.
        minimum, maximum, mean: Over the finite values; None if there are none.
    """

    tensor: str
    type_name: str
    shape: tuple[int, ...]
    minimum: float | None
    maximum: float | None
    mean: float | None
    nan_count: int
    inf_count: int


def find_common_tensors(
    first_dump: Dump, second_dump: Dump
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Returns the tensors that two dumps have in common, the tensors of the first alone, and those of the second alone.

    Raises:
        InputError: there is no common tensor, a common tensor differs in shape or is not numeric, or the numbers of
            iterations differ.
    """
    both = tuple(name for name in first_dump.tensor_names if name in second_dump.iterations[0])
    if not both:
        raise no_common_tensors_error(
            first_dump.source,
            first_dump.tensor_names,
            second_dump.source,
            second_dump.tensor_names,
            "has",
            "Dump the same tensors of both: polygraphy run --onnx-outputs '*' --save-outputs.",
        )
    counts = len(first_dump.iterations), len(second_dump.iterations)
    if counts[0] != counts[1]:
        raise InputError(
            f"{first_dump.source} and {second_dump.source} hold different numbers of iterations",
            f"{counts[0]} in {first_dump.source}, {counts[1]} in {second_dump.source}",
            "Run both on the same inputs (polygraphy run --load-inputs).",
        )
    for number, (first_iteration, second_iteration) in enumerate(
        zip(first_dump.iterations, second_dump.iterations, strict=True)
    ):
        differ = [name for name in both if first_iteration[name].shape != second_iteration[name].shape]
        if differ:
            name = differ[0]
            first_shape, second_shape = (
                "x".join(map(str, side[name].shape)) or "a single value" for side in (first_iteration, second_iteration)
            )
            raise InputError(
                f"{counted_noun_text(len(differ), 'tensor')} of "
                f"{first_dump.source} and {second_dump.source} have different "
                "shapes",
                f"{name} is {first_shape} in {first_dump.source} and {second_shape} in {second_dump.source}, iteration "
                f"{number}",
                "Run both on the same inputs, in the same batches.",
            )
        for dump, arrays in ((first_dump, first_iteration), (second_dump, second_iteration)):
            if strange := [name for name in both if arrays[name].dtype.kind in "USVcmM"]:
                raise InputError(
                    f"{strange[0]} holds no real numbers",
                    f"{arrays[strange[0]].dtype} in {dump.source}",
                    "Leave the tensor out of the dump.",
                )
    return (
        both,
        tuple(name for name in first_dump.tensor_names if name not in both),
        tuple(name for name in second_dump.tensor_names if name not in both),
    )


def summarize_tensor(dump: Dump, tensor: str) -> Iterator[TensorSummary | None]:
    """Summarizes a tensor of a dump; yields None after each piece, and the result last.

    Raises:
        TrtTuiError: the values cannot be read.
    """
    values, stored = DumpTensor(dump, tensor), dump.iterations[0][tensor]
    minimum, maximum, total, count, nan_count, inf_count = math.inf, -math.inf, 0.0, 0, 0, 0
    for index in range(len(dump.iterations) if stored.dtype.kind in "biuf" else 0):
        for block in _iterate_array_blocks(values.read_iteration(index)):
            finite = block[np.isfinite(block)]
            if finite.size:
                minimum, maximum = min(minimum, float(finite.min())), max(maximum, float(finite.max()))
                total += float(finite.sum())
            count += finite.size
            nan_count += int(np.isnan(block).sum())
            inf_count += int(np.isinf(block).sum())
            yield None
    yield TensorSummary(
        tensor,
        stored.dtype.name,
        stored.shape,
        minimum if count else None,
        maximum if count else None,
        total / count if count else None,
        nan_count,
        inf_count,
    )


def find_min_mask_magnitude(network: Network | None) -> float:
    """Returns the magnitude from which a value in a dump counts as a mask: half of the smallest mask in the network.

    It is half of the largest FP32 number without a network, and if the network has no mask.
    """
    masks = (
        [
            network.constant_amax(name)
            for name in network.constant_tensors
            if math.prod(size for size in network.shape(name) or () if isinstance(size, int)) <= MAX_MASK_ELEMENTS
            and network.is_mask(name)
        ]
        if network is not None
        else []
    )
    return min((float(amax) / 2 for amax in masks if amax >= MIN_MASK_MAGNITUDE), default=2.0**127)


def measure_tensor_difference(
    first_dump: Dump,
    second_dump: Dump,
    tensor: str,
    error_threshold: float,
    min_mask_magnitude: float = 2.0**127,
) -> Iterator[TensorDifference | None]:
    """Compares a tensor of a dump with that of a first one; yields None after each piece, and the result last.

    An FP16 network has its masks (-3.4e38 before a Softmax) clamped to the range of FP16, which is not an error.

    Args:
        min_mask_magnitude: See `find_min_mask_magnitude`.

    Raises:
        TrtTuiError: the outputs cannot be read or computed.
    """
    sums, first_bad, nan_in_both, masked, differing = ErrorSums(), 0, 0, 0, 0
    relative_sum, relative_max, relative_count = 0.0, 0.0, 0
    shapes = []
    dump_tensors = [DumpTensor(dump, tensor) for dump in (first_dump, second_dump)]
    for index in range(len(first_dump.iterations)):
        arrays = [dump_tensor.read_iteration(index) for dump_tensor in dump_tensors]
        shapes.append(arrays[0].shape)
        holds_ids = all(array.dtype.kind == "b" or array.dtype.kind in "iu" and array.itemsize > 1 for array in arrays)
        differing += int(np.count_nonzero(arrays[0] != arrays[1]))
        for expected, actual in zip(*map(_iterate_array_blocks, arrays), strict=True):
            both_nan = np.isnan(expected) & np.isnan(actual)
            same = (expected == actual) | both_nan
            nan_in_both += int(np.count_nonzero(both_nan))
            first_bad += int(np.count_nonzero(~np.isfinite(expected) & ~same))
            masks = _find_masked_elements(expected, actual, min_mask_magnitude)
            masked += int(np.count_nonzero(masks))
            left_out = same & ~np.isfinite(actual) | masks
            expected, actual = np.where(left_out, 0, (expected, actual))
            sums.add_tensor_pair(expected, actual)
            counted = np.isfinite(expected) & np.isfinite(actual) & (expected != 0)
            relative = np.abs(actual[counted] / expected[counted] - 1)
            relative_sum += float(relative.sum())
            relative_max = max(relative_max, float(relative.max(initial=0.0)))
            relative_count += relative.size
            yield None
    nothing_compared, noise = 0 < nan_in_both == sums["count"], sums.noise_to_signal_ratio
    errors = ErrorMetrics() if nothing_compared else sums.compute_error_metrics()
    share = math.inf if errors.nonfinite_count or first_bad or nothing_compared else math.sqrt(noise)
    if holds_ids:
        share, relative_count = differing / max(1, sums["count"]), 0
        errors = ErrorMetrics(mismatch=share, exact=differing == 0)
    yield TensorDifference(
        tensor,
        shapes[0],
        errors,
        share,
        relative_max if relative_count else None,
        relative_sum / relative_count if relative_count else None,
        share > error_threshold,
        first_nonfinite_count=first_bad,
        common_nan_count=nan_in_both,
        masked_count=masked,
    )


def _find_masked_elements(expected: np.ndarray, actual: np.ndarray, min_mask_magnitude: float) -> np.ndarray:
    """Returns True for elements that are a mask in both arrays: the same mask, or one clamped for FP16 or BF16.

    Other large values that differ are compared, because they may be activations.
    """
    sizes = np.abs(expected), np.abs(actual)
    larger, smaller = np.maximum(*sizes), np.minimum(*sizes)
    is_clamped = (smaller >= FP16_MASK_VALUE / 2) & (smaller <= FP16_MAX) | (smaller >= 2.0**126)
    is_same = smaller >= larger * (1 - BF16_RELATIVE_STEP)
    masked: np.ndarray = (
        (larger >= min_mask_magnitude)
        & (is_clamped | is_same)
        & (np.signbit(expected) == np.signbit(actual))
        & np.isfinite(expected)
        & np.isfinite(actual)
    )
    return masked


def _iterate_array_blocks(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the values of an array, float64 and flat, in C order, `BLOCK_ELEMENTS` of them at a time."""
    flat = array.reshape(-1)
    for start in range(0, len(flat), BLOCK_ELEMENTS):
        yield flat[start : start + BLOCK_ELEMENTS].astype(np.float64)


def sort_in_network_order(
    differences: Sequence[TensorDifference], network: Network | None, scaled_tensors: Collection[str] = ()
) -> list[TensorDifference]:
    """Sorts the compared tensors in network order, and marks the tensors at which errors begin.

    Tensors that the network lacks come last. Without a network the order stays, and a tensor counts as computed from
    all tensors before it.

    Args:
        scaled_tensors: Tensors whose channels a config scales. Only NaN and infinities count there.
    """
    if network is None:
        result, largest = [], 0.0
        for difference in differences:
            result.append(replace(difference, begins_error=_is_error_origin(difference, [largest])))
            largest = max(largest, difference.relative_error)
        return result
    layer_indices = {name: layer.index for layer in network.layers for name in layer.outputs}
    own = sorted(
        (difference for difference in differences if network.has_tensor(difference.tensor)),
        key=lambda item: layer_indices.get(item.tensor, -1),
    )
    own = [
        replace(difference, is_scaled=True, exceeds_threshold=bool(difference.nonfinite_count))
        if difference.tensor in scaled_tensors
        else difference
        for difference in own
    ]
    relative_errors = {
        difference.tensor: difference.relative_error
        for difference in own
        if not difference.is_scaled or difference.exceeds_threshold
    }
    compared_groups = {_find_producer_group(network, difference.tensor) for difference in own}
    result = []
    for difference in own:
        before, passed_groups = _find_nearest_measured_tensors(network, difference.tensor, relative_errors)
        input_errors = [relative_errors[name] for name in before]
        begins_error = _is_error_origin(difference, input_errors)
        unmeasured = passed_groups - compared_groups if begins_error else set()
        result.append(
            replace(
                difference,
                begins_error=begins_error,
                added_error=_compute_added_error(difference.relative_error, max(input_errors, default=0.0)),
                group_name=_find_producer_group(network, difference.tensor),
                reader_groups=_find_reader_groups(network, difference.tensor) if difference.nonfinite_count else (),
                unmeasured_groups=tuple(group.name for group in network.groups if group.name in unmeasured),
                is_origin_unknown=2 * len(unmeasured) >= len(network.groups) and not before,
            )
        )
    return [
        *result,
        *(
            replace(difference, is_missing_in_network=True)
            for difference in differences
            if not network.has_tensor(difference.tensor)
        ),
    ]


def _find_reader_groups(network: Network, tensor: str) -> tuple[str, ...]:
    """Returns the groups that compute with a tensor, also through copies of it, in network order."""
    readers = network.graph.readers
    copies = iterate_reachable(
        [tensor],
        lambda name: [
            output
            for layer in map(network.get_layer, readers.get(name, ()))
            for output in layer.outputs
            if layer.kind is LayerKind.COPY or network.find_group(layer.name) is None
        ],
    )
    reading_layers = {reader for name in copies for reader in readers.get(name, ())}
    return tuple(group.name for group in network.groups if not reading_layers.isdisjoint(group.layers))


def _is_error_origin(difference: TensorDifference, input_errors: Sequence[float]) -> bool:
    """Returns True if the error of a tensor arises in the tensor itself and not in its inputs.

    Args:
        input_errors: The relative errors of the tensors from which it is computed.
    """
    return (
        difference.exceeds_threshold
        and difference.relative_error >= ERROR_GROWTH * max(input_errors, default=0.0)
        and not any(map(math.isinf, input_errors))
    )


def _compute_added_error(relative_error: float, input_error: float) -> float:
    """Returns the error that a layer adds. Errors of roundings are independent, so their squares add up."""
    if math.isinf(input_error) or input_error > MAX_INPUT_ERROR and relative_error < ERROR_GROWTH * input_error:
        return 0.0
    return math.inf if math.isinf(relative_error) else math.sqrt(max(relative_error**2 - input_error**2, 0.0))


def _find_producer_group(network: Network, tensor: str) -> str:
    """Returns the name of the group that computes a tensor; "" if there is none."""
    group = network.find_group(network.producer[tensor]) if tensor in network.producer else None
    return group.name if group is not None else ""


def _find_nearest_measured_tensors(
    network: Network, tensor: str, measured_tensors: Mapping[str, float]
) -> tuple[set[str], set[str]]:
    """Returns the nearest measured tensors on all paths back from a tensor, and the groups on these paths."""

    def list_read_tensors(name: str) -> Sequence[str]:
        return network.input_tensors(network.producer[name]) if name in network.producer else ()

    passed = list(
        iterate_reachable(
            [tensor], lambda name: [read for read in list_read_tensors(name) if read not in measured_tensors]
        )
    )
    return (
        {read for name in passed for read in list_read_tensors(name) if read in measured_tensors},
        {_find_producer_group(network, name) for name in passed} - {""},
    )


def comparison_advice_lines(
    differences: Sequence[TensorDifference],
    first_source: str,
    second_source: str,
    input_names: Sequence[str] = (),
    has_network: bool = False,
) -> list[str]:
    """Returns sentences about the errors between two dumps, and about the next steps.

    Args:
        input_names: Names of the network's inputs, as far as they are known.
        has_network: True if the network is known.
    """
    lines = []
    if nan := [difference.tensor for difference in differences if difference.common_nan_count]:
        lines.append(
            f"Both dumps have NaN at the same places of {name_list_text(nan, 4)}: these values are not compared."
        )
    if scaled := [
        difference.tensor for difference in differences if difference.is_scaled and not difference.exceeds_threshold
    ]:
        lines.append(f"The config scales the channels of {name_list_text(scaled, 4)} (SmoothQuant): not compared.")
    if masked := [difference.tensor for difference in differences if difference.masked_count]:
        lines.append(f"Values that are masks in both, like -3.4e38, are not compared: {name_list_text(masked, 4)}.")
    if over := [difference for difference in differences if difference.exceeds_threshold]:
        return lines + _advice_lines_above_threshold(
            over, differences, first_source, second_source, input_names, has_network
        )
    worst = max(
        (difference for difference in differences if not difference.is_scaled),
        key=lambda item: item.relative_error,
        default=differences[0],
    )
    return [
        *lines,
        f"No tensor is over the threshold; the largest error is at {worst.tensor}: {_tensor_error_text(worst)}.",
    ]


def _advice_lines_above_threshold(
    differences_above_threshold: Sequence[TensorDifference],
    differences: Sequence[TensorDifference],
    first_source: str,
    second_source: str,
    input_names: Sequence[str],
    has_network: bool,
) -> list[str]:
    """Returns the sentences of `comparison_advice_lines` about tensors above the threshold, beginning with the
    earliest."""
    earliest, begins = (
        differences_above_threshold[0],
        [nonfinite_source for nonfinite_source in differences_above_threshold if nonfinite_source.begins_error],
    )
    if earliest.is_missing_in_network:
        return [
            f"No tensor of the network is over the threshold, but "
            f"{name_list_text([nonfinite_source.tensor for nonfinite_source in differences_above_threshold], 4)}: "
            "an exported network has these besides, such as quantized weights. The network has no layer for them."
        ]
    lines = [f"First over the threshold: {earliest.tensor}, {_tensor_error_text(earliest)}."]
    if earliest.tensor in input_names:
        return [*lines, "That is an input: the two runs had different inputs. Compare the data preparation first."]
    if earliest.nonfinite_count:
        sides = (
            (earliest.first_nonfinite_count, first_source, second_source),
            (earliest.errors.nonfinite_count, second_source, first_source),
        )
        lines += [
            f"{nonfinite_source} has {count} NaN or Inf there that {other_source} lacks."
            for count, nonfinite_source, other_source in sides
            if count
        ]
        lines.append(
            "Common causes are a value beyond the 16-bit range and an infinite scale. Keep that "
            "layer and those that read its result in FP32, or in BF16, which has the range of FP32."
        )
    elif earliest is differences[0] and len(differences) > 1:
        lines.append("It is the first tensor of both: the inputs may differ. Compare those first.")
    if len(begins) > 1 or begins and begins[0] is not earliest:
        lines.append(
            f"Errors begin at "
            f"{name_list_text([nonfinite_source.tensor for nonfinite_source in begins], 4)}; the others over the "
            f"threshold are "
            "computed from these."
        )
    if unmeasured := list(dict.fromkeys(group for difference in begins for group in difference.unmeasured_groups)):
        lines.append(
            f"{counted_noun_text(len(unmeasured), 'fused layer')} before "
            f"{name_list_text([item.tensor for item in begins if item.unmeasured_groups], 4)} "
            f"{'has' if len(unmeasured) == 1 else 'have'} no tensor in both dumps: the error may begin in any "
            "of them. Save all tensors (polygraphy run --onnx-outputs '*'), or rank the layers: trt-tui "
            "compare MODEL --data D."
        )
    if not begins:
        lines.append(
            "The error grows gradually and never doubles at one tensor: no single layer causes it. Begin "
            "with the precision of the whole network."
        )
    elif groups := find_groups_to_raise_to_fp32(differences):
        lines.append(f"Try FP32 for {name_list_text(list(groups), 4)}: -o writes that.")
    elif has_network:
        lines += [] if unmeasured else ["No fused layer computes it, so no precision can repair it."]
    else:
        lines.append(
            f"Try FP32 for the layers that compute {'these' if len(begins) > 1 else 'it'}: --model names the "
            "layers, and -o then writes that."
        )
    return lines


def _tensor_error_text(difference: TensorDifference) -> str:
    figure = difference.mismatch_text or add_decibel_unit(difference.sqnr_text)
    return (
        figure
        if math.isinf(difference.relative_error) or difference.mismatch_text
        else f"{figure} (relative error {difference.relative_error:.3g})"
    )


def find_groups_to_raise_to_fp32(differences: Sequence[TensorDifference]) -> tuple[str, ...]:
    """Returns the groups to keep in FP32, those that add the largest errors first.

    They are the groups at which errors begin, and those that add a larger error than each of these. If errors begin
    nowhere, they are all groups whose tensors exceed the threshold. Unmeasured groups before an error are included. If
    no compared tensor precedes an error, and most of the network does, its groups are left out. If only one of the
    dumps is finite at a tensor, the groups that read the tensor are included.
    """
    over = [difference for difference in differences if difference.exceeds_threshold and difference.group_name]
    begins = [difference for difference in over if difference.begins_error]
    largest = max((difference.added_error for difference in begins), default=-1.0)
    chosen = [
        difference
        for difference in over
        if not difference.is_origin_unknown and (difference.begins_error or difference.added_error > largest)
    ]
    return tuple(
        dict.fromkeys(
            group
            for difference in sorted(chosen, key=lambda item: -item.added_error)
            for group in (difference.group_name, *difference.unmeasured_groups, *difference.reader_groups)
        )
    )
