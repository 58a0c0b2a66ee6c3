"""The measurement of facts that guards check: statistics of inputs and labels, FP32 executions, and range mismatches."""

from collections import Counter
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from trt_tui.core.calibration.calibration import calibrate, collect_tensor_stats
from trt_tui.core.calibration.tensor_collection import NetworkProbe, RunProgress
from trt_tui.core.data.batches import first_dimension
from trt_tui.core.data.samples import Samples, can_mix_samples, iterate_sample_hashes
from trt_tui.core.guards.guards import (
    MAX_RANGE_RATIO,
    GuardFacts,
    InputStats,
    LabelClassFacts,
    UnfitLabels,
    is_range_mismatched,
)
from trt_tui.core.measure.error_metrics import ErrorSums, flatten_each_sample
from trt_tui.core.measure.judged_outputs import FLOAT_KIND, take_judged_slice
from trt_tui.core.measure.simulation import Analysis
from trt_tui.core.runner import Backend
from trt_tui.errors import TrtTuiError
from trt_tui.formatting import counted_noun_text

MAX_SAMPLES = 64
"""Maximum number of samples whose inputs are checked, spread evenly over the data."""

MAX_LABELLED_SAMPLES = 1024
"""Maximum number of samples whose labels are checked."""

MAX_VALUES_PER_CHANNEL = 1 << 18
"""Number of values per channel above which the mean and deviation of a sample use only every nth value."""

MAX_CHANNELS = 16
"""Maximum size of an axis that counts as the channel axis."""

MAX_CLASSES = 1000

MIN_IMAGE_SIZE = 8
"""Minimum size of the two axes of an image."""


def select_evenly_spaced_feeds(samples: Samples, max_samples: int) -> Iterator[int]:
    """Yields the indices of evenly spaced feeds with about the given number of samples in total."""
    feed_count = max(1, -(-max_samples // max(1, samples.count_samples_of_feed(0))))
    step = max(1, len(samples) // feed_count)
    return iter(range(0, len(samples), step)[:feed_count])


def measure_input_stats(samples: Samples) -> dict[str, InputStats]:
    """Measures the statistics of all float and byte inputs, by input name.

    Raises:
        InputError: The data cannot be read.
    """
    stats_by_input: dict[str, list[np.ndarray]] = {}
    for index in select_evenly_spaced_feeds(samples, MAX_SAMPLES):
        rows = samples.count_samples_of_feed(index)
        for name, array in samples.read_feed(index).items():
            if array.size and (array.dtype.kind == "f" or array.dtype == np.uint8):
                sample_arrays = array if array.ndim and len(array) == rows else array[None]
                stats_by_input.setdefault(name, []).extend(map(_measure_channel_stats, sample_arrays))
    return {
        name: InputStats(*np.moveaxis(np.stack(rows), 1, 0))
        for name, rows in stats_by_input.items()
        if len({row.shape for row in rows}) == 1
    }


def count_samples_if_all_equal(samples: Samples) -> int:
    """Returns the number of samples if all compared samples are equal; 0 if they differ or there is only one.

    Raises:
        InputError: The data cannot be read.
    """
    hashes = (
        digest
        for index in select_evenly_spaced_feeds(samples, MAX_SAMPLES)
        for digest in iterate_sample_hashes(samples, index)
    )
    first = next(hashes, None)
    return samples.count if samples.count > 1 and all(digest == first for digest in hashes) else 0


def count_samples_with_byte_images(samples: Samples) -> dict[str, int]:
    """Returns the number of compared samples of each float input whose samples are all byte images.

    In a byte image, all values are whole numbers from 0 to 255, one of them is above 127, and two axes have at least
    `MIN_IMAGE_SIZE` values.

    Raises:
        InputError: The data cannot be read.
    """
    counts: dict[str, int] = {}
    largest: dict[str, float] = {}
    for index in select_evenly_spaced_feeds(samples, MAX_SAMPLES):
        rows = samples.count_samples_of_feed(index)
        for name, array in samples.read_feed(index).items():
            is_image = (
                array.dtype.kind == "f"
                and array.ndim > 2
                and len(array) == rows
                and array.size
                and sum(size >= MIN_IMAGE_SIZE for size in array.shape[1:]) > 1
            )
            if (
                not is_image
                or counts.get(name) == 0
                or array.min() < 0
                or array.max() > 255
                or not (np.equal(np.rint(array), array).all())
            ):
                counts[name] = 0
                continue
            counts[name] = counts.get(name, 0) + rows
            largest[name] = max(largest.get(name, 0.0), float(array.max()))
    return {name: count for name, count in counts.items() if count and largest[name] > 127}


def find_unfit_labels(
    samples: Samples, output_name: str, class_count: int, *, per_pixel: bool, mask_names: Collection[str] = ()
) -> tuple[UnfitLabels, ...]:
    """Finds arrays of labels that do not fit the classes of an output.

    Args:
        per_pixel: True if the output has classes for each pixel.
        mask_names: Names of arrays that are masks and not labels.

    Raises:
        InputError: The data cannot be read.
    """
    found = []
    for name in samples.label_names:
        if name in mask_names or name not in samples.per_sample_array_names:
            continue
        arrays = [
            samples.read_labels(index)[name] for index in select_evenly_spaced_feeds(samples, MAX_LABELLED_SAMPLES)
        ]
        arrays = [array.reshape([len(array), *(size for size in array.shape[1:] if size != 1)]) for array in arrays]
        if any(array.dtype.kind not in "iuf" or not len(array) for array in arrays):
            continue
        if not per_pixel and all(array.ndim == 2 and _is_one_hot(array) for array in arrays):
            if (columns := arrays[0].shape[1]) != class_count:
                found.append(UnfitLabels(name, output_name, class_count, one_hot_size=columns))
            continue
        if any(array.dtype.kind == "f" or array.ndim != (3 if per_pixel else 1) for array in arrays):
            continue
        counts = Counter(value for array in arrays for row in array for value in np.unique(row).tolist())
        if not per_pixel and len(counts) == sum(counts.values()) > 1:
            continue  # numbers of samples
        ignored = {-1, -100} | (
            {255} if class_count <= 255 and all(value < 200 for value in counts if value != 255) else set()
        )
        inside = sum(count for value, count in counts.items() if 0 <= value < class_count)
        outside = {
            value: count for value, count in counts.items() if not 0 <= value < class_count and value not in ignored
        }
        if outside and inside >= sum(outside.values()):
            found.append(UnfitLabels(name, output_name, class_count, tuple(sorted(outside)), 0 in counts))
    return tuple(found)


def _is_one_hot(array: np.ndarray) -> bool:
    """Returns True if each row of an array has a single 1 and otherwise zeros."""
    return bool(((array == 0) | (array == 1)).all() and (array.sum(1) == 1).all() and array.shape[1] > 1)


def _measure_channel_stats(sample: np.ndarray) -> np.ndarray:
    """Returns mean, standard deviation, minimum and maximum of each channel of a sample, float64 ``(4, channels)``."""
    axes = (0, sample.ndim - 1) if sample.ndim > 1 else ()
    axis = next((axis for axis in axes if sample.shape[axis] <= MAX_CHANNELS), None)
    flat = sample.reshape(1, -1) if axis is None else np.moveaxis(sample, axis, 0).reshape(sample.shape[axis], -1)
    selected = flat[:, :: max(1, flat.shape[1] // MAX_VALUES_PER_CHANNEL)].astype(np.float64)
    return np.stack([selected.mean(1), selected.std(1), flat.min(1).astype(np.float64), flat.max(1).astype(np.float64)])


def count_samples_by_label_class(
    calibration_samples: Samples, judged_samples: Samples, mask_names: Collection[str] = ()
) -> tuple[LabelClassFacts, ...]:
    """Counts the calibration and the judged samples of each class, for every label array with class numbers in both.

    Args:
        mask_names: Names of arrays that are masks and not labels.

    Raises:
        InputError: The data cannot be read.
    """
    class_facts = []
    for name in judged_samples.label_names:
        if name in mask_names or name not in calibration_samples.label_names:
            continue
        judged_counts, judged_sample_count = _count_samples_by_class(judged_samples, name)
        classes = len(judged_counts)
        if not 2 <= classes <= MAX_CLASSES or sum(judged_counts.values()) < 2 * classes:
            continue
        calibration_counts, calibration_sample_count = _count_samples_by_class(calibration_samples, name)
        class_facts.append(
            LabelClassFacts(
                name, dict(judged_counts), judged_sample_count, dict(calibration_counts), calibration_sample_count
            )
        )
    return tuple(class_facts)


def _count_samples_by_class(samples: Samples, label_name: str) -> tuple[Counter[int], int]:
    """Returns the number of samples with each class, and the number of checked samples.

    The first is empty and the second is 0 if the labels are not class numbers.
    """
    counts: Counter[int] = Counter()
    sample_count = 0
    for index in select_evenly_spaced_feeds(samples, MAX_LABELLED_SAMPLES):
        rows = samples.count_samples_of_feed(index)
        labels = samples.read_labels(index)[label_name]
        if labels.dtype.kind not in "iub" or not labels.ndim or len(labels) != rows:
            return Counter(), 0
        counts.update(int(value) for row in flatten_each_sample(labels, rows) for value in np.unique(row) if value >= 0)
        sample_count += rows
        if len(counts) > 4 * MAX_CLASSES:
            return Counter(), 0
    if 255 in counts and all(value < 200 for value in counts if value != 255):
        del counts[255]  # 255 marks ignored pixels in segmentation data
    return counts, sample_count


MAX_COMPARED_SAMPLES = 4


def measure_batch_dependence(analysis: Analysis, feed_indices: Sequence[int]) -> Generator[None, None, GuardFacts]:
    """Measures the SQNR between FP32 outputs of single samples and of the same samples in a batch.

    Yields between two executions.
    """
    samples = analysis.samples
    feed_index = next((index for index in feed_indices if samples.count_samples_of_feed(index) > 1), None)
    if feed_index is None:
        return GuardFacts(no_batch_reason="each batch has one sample")
    if not can_mix_samples(samples, [feed_index]):
        return GuardFacts(no_batch_reason="the inputs have no row for each sample")
    rows = range(min(samples.count_samples_of_feed(feed_index), MAX_COMPARED_SAMPLES))
    fixed_size = next(
        (
            size
            for info in analysis.network.inputs
            if info.name in samples.per_sample_array_names and isinstance(size := first_dimension(info), int)
        ),
        1,
    )
    alone = analysis.copy_with_batches([[(feed_index, row)] * fixed_size for row in rows])
    outputs = [output for output in analysis.judged_outputs if output.kind == FLOAT_KIND]
    sums = {output.name: ErrorSums() for output in outputs}
    try:
        in_batch = analysis.get_fp32_outputs(feed_index)
        yield
        for row in rows:
            outputs_alone = alone.get_fp32_outputs(row)
            for output in outputs:
                expected, got = (
                    take_judged_slice(tensors[output.tensor], output) for tensors in (in_batch, outputs_alone)
                )
                if expected.shape[:1] == (samples.count_samples_of_feed(feed_index),) and (
                    got.shape == (fixed_size, *expected.shape[1:])
                ):
                    sums[output.name].add_tensor_pair(expected[row], got[0])
            yield
    except TrtTuiError as error:
        return GuardFacts(no_batch_reason=f"single samples are not executed: {error.title}")
    differences = {
        name: output_sums.compute_error_metrics().comparable_sqnr_db
        for name, output_sums in sums.items()
        if output_sums["count"]
    }
    if not differences:
        return GuardFacts(no_batch_reason="no float output has a row for each sample")
    return GuardFacts(
        batch_sqnr_db=differences,
        compared_batch=counted_noun_text(samples.count_rows_of_full_feed(feed_index), "sample"),
    )


MAX_CHECKED_SAMPLES = 32
"""Maximum number of samples with which ranges are compared."""

MAX_CHECKED_RANGES = 24
"""Maximum number of ranges below the largest magnitude that are compared with the choices of all methods."""

CLIPPING_FACTOR = 1.1
"""Multiple of the range from which a value counts as clipped; see `trt_tui.core.guards.guards`."""

RangeMismatches = dict[str, tuple[float, float]]


def find_mismatched_ranges(
    model: ir.Model,
    ranges: Mapping[str, float],
    samples: Samples,
    backend: Backend,
    *,
    method_clips: bool,
    progress: RunProgress | None = None,
) -> tuple[RangeMismatches, frozenset[str], int]:
    """Finds ranges that contradict the values in samples.

    Args:
        ranges: The amax by tensor name.
        method_clips: True if the range method may choose an amax below the largest magnitude.

    Returns:
        The mismatched ranges (amax in use and expected amax by tensor), the compared tensors, and the number of
            samples.

    Raises:
        InputError: The network cannot be executed on these data.
    """
    selected_samples = samples.select_feeds(list(select_evenly_spaced_feeds(samples, MAX_CHECKED_SAMPLES)))
    minmax_ranges = calibrate(model, list(ranges), selected_samples, backend, progress=progress).ranges
    compared = {tensor: amax for tensor, amax in ranges.items() if amax > 0 and minmax_ranges[tensor] > 0}
    mismatches: RangeMismatches = {
        tensor: (amax, minmax_ranges[tensor])
        for tensor, amax in compared.items()
        if is_range_mismatched(amax, minmax_ranges[tensor], minmax_ranges[tensor])
    }
    below = sorted(
        (tensor for tensor in mismatches if mismatches[tensor][0] < mismatches[tensor][1]),
        key=lambda tensor: mismatches[tensor][0] / mismatches[tensor][1],
    )
    if method_clips and below:
        checked_tensors = below[:MAX_CHECKED_RANGES]
        for tensor, stats in collect_tensor_stats(
            model, checked_tensors, selected_samples, backend, progress=progress
        ).items():
            min_amax = min(stats.ranges.values())
            if is_range_mismatched(mismatches[tensor][0], min_amax, minmax_ranges[tensor]):
                mismatches[tensor] = (mismatches[tensor][0], min_amax)
            else:
                del mismatches[tensor]
        for tensor in below[MAX_CHECKED_RANGES:]:  # these ranges are closer to the samples than all checked ones
            amax, reached = mismatches[tensor]
            if (
                not any(checked in mismatches for checked in checked_tensors)
                or reached / amax < MAX_RANGE_RATIO * MAX_RANGE_RATIO
            ):
                del mismatches[tensor]
    return mismatches, frozenset(compared), selected_samples.count


def measure_clipped_shares(
    model: ir.Model, ranges: Mapping[str, float], samples: Samples, backend: Backend
) -> Iterator[dict[str, float]]:
    """Measures the share of values above `CLIPPING_FACTOR` times the range of their tensor. Yields the shares by tensor
    after each feed.

    Args:
        ranges: The amax by tensor name, above 0.

    Raises:
        InputError: The network cannot be executed on these data.
    """
    probe = NetworkProbe(model)
    outputs = {}
    for tensor, amax in ranges.items():
        value = probe.find_or_add_fp32_value(tensor)
        over = probe.append_operator(
            "ThresholdedRelu", probe.append_operator("Abs", value), alpha=amax * CLIPPING_FACTOR
        )
        outputs[tensor] = (
            *probe.add_reductions(probe.append_operator("Sign", over), "ReduceSum"),
            probe.add_shape_output(tensor),
        )
    counts, sizes = dict.fromkeys(ranges, 0.0), dict.fromkeys(ranges, 0)
    with probe.load_output_runner(backend, samples) as runner:
        for feed in samples.iterate_feeds():
            scalars = runner.run(feed)
            for tensor, (over_name, shape_name) in outputs.items():
                counts[tensor] += float(scalars[over_name])
                sizes[tensor] += int(np.prod(scalars[shape_name]))
            yield {tensor: counts[tensor] / max(1, sizes[tensor]) for tensor in ranges}
