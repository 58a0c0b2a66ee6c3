"""Statistics of inputs and labels over a selection of samples, which guards compare."""

from collections import Counter
from collections.abc import Collection, Iterator

import numpy as np

from trt_tui.core.data.samples import Samples
from trt_tui.core.guards.guard import InputStats, LabelClassFacts, UnfitLabels
from trt_tui.core.measure.error_metrics import flatten_each_sample

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
    """Yields the numbers of evenly spaced feeds that together hold about the given number of samples."""
    feed_count = max(1, -(-max_samples // max(1, samples.count_samples_of_feed(0))))
    step = max(1, len(samples) // feed_count)
    return iter(range(0, len(samples), step)[:feed_count])


def measure_input_stats(samples: Samples) -> dict[str, InputStats]:
    """Measures the statistics of all inputs with floats or bytes, by input name.

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
    return {name: InputStats(*np.moveaxis(np.stack(rows), 1, 0)) for name, rows in stats_by_input.items()
            if len({row.shape for row in rows}) == 1}


def count_samples_if_all_equal(samples: Samples) -> int:
    """Returns the number of samples if there are several and all compared samples have equal inputs; 0 if not.

    Raises:
        InputError: The data cannot be read.
    """
    first: dict[str, bytes] | None = None
    for index in select_evenly_spaced_feeds(samples, MAX_SAMPLES):
        rows = samples.count_samples_of_feed(index)
        arrays = {name: array if array.ndim and len(array) == rows else np.stack([array] * rows)
                  for name, array in samples.read_feed(index).items()}
        for row in range(rows):
            values = {name: np.ascontiguousarray(array[row]).tobytes() for name, array in arrays.items()}
            first = values if first is None else first
            if values != first:
                return 0
    return samples.count if samples.count > 1 else 0


def count_samples_with_byte_images(samples: Samples) -> dict[str, int]:
    """Counts the compared samples of each float input whose values are all those of images in bytes.

    The values are whole numbers from 0 to 255, one of them is above 127, and two axes of a sample have at least
    `MIN_IMAGE_SIZE` values.

    Raises:
        InputError: The data cannot be read.
    """
    counts: dict[str, int] = {}
    largest: dict[str, float] = {}
    for index in select_evenly_spaced_feeds(samples, MAX_SAMPLES):
        rows = samples.count_samples_of_feed(index)
        for name, array in samples.read_feed(index).items():
            is_image = array.dtype.kind == "f" and array.ndim > 2 and len(array) == rows and array.size and sum(
                size >= MIN_IMAGE_SIZE for size in array.shape[1:]) > 1
            if not is_image or counts.get(name) == 0 or array.min() < 0 or array.max() > 255 or not (
                    np.equal(np.rint(array), array).all()):
                counts[name] = 0
                continue
            counts[name] = counts.get(name, 0) + rows
            largest[name] = max(largest.get(name, 0.0), float(array.max()))
    return {name: count for name, count in counts.items() if count and largest[name] > 127}


def find_unfit_labels(samples: Samples, output_name: str, class_count: int, *, per_pixel: bool,
                      mask_names: Collection[str] = ()) -> tuple[UnfitLabels, ...]:
    """Finds arrays of labels that do not fit the classes of an output; see `trt_tui.core.guards.data_guards`.

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
        arrays = [samples.read_labels(index)[name] for index in
                  select_evenly_spaced_feeds(samples, MAX_LABELLED_SAMPLES)]
        arrays = [array.reshape([len(array), *(size for size in array.shape[1:] if size != 1)]) for array in arrays]
        if any(array.dtype.kind not in "iuf" or not len(array) for array in arrays):
            continue
        if not per_pixel and all(array.ndim == 2 and _is_one_hot(array) for array in arrays):
            if (columns := arrays[0].shape[1]) != class_count:
                found.append(UnfitLabels(name, output_name, class_count, one_hot_size=columns))
            continue
        if any(array.dtype.kind == "f" or array.ndim != (3 if per_pixel else 1) for array in arrays):
            continue
        counts: Counter[int] = Counter()
        for array in arrays:
            for row in array:
                counts.update(np.unique(row).tolist())
        if not per_pixel and len(counts) == sum(counts.values()) > 1:
            continue  # numbers of samples
        ignored = {-1, -100} | ({255} if class_count <= 255 and all(
            value < 200 for value in counts if value != 255) else set())
        inside = sum(count for value, count in counts.items() if 0 <= value < class_count)
        outside = {value: count for value, count in counts.items()
                   if not 0 <= value < class_count and value not in ignored}
        if outside and inside >= sum(outside.values()):
            found.append(UnfitLabels(name, output_name, class_count, tuple(sorted(outside)), 0 in counts))
    return tuple(found)


def _is_one_hot(array: np.ndarray) -> bool:
    """Returns True if each row of an array has a single 1 and zeros."""
    return bool(((array == 0) | (array == 1)).all() and (array.sum(1) == 1).all() and array.shape[1] > 1)


def _measure_channel_stats(sample: np.ndarray) -> np.ndarray:
    """Returns mean, standard deviation, smallest and largest value of each channel of a sample, float64 ``(4,
    channels)``."""
    axes = (0, sample.ndim - 1) if sample.ndim > 1 else ()
    axis = next((axis for axis in axes if sample.shape[axis] <= MAX_CHANNELS), None)
    flat = sample.reshape(1, -1) if axis is None else np.moveaxis(sample, axis, 0).reshape(sample.shape[axis], -1)
    selected = flat[:, ::max(1, flat.shape[1] // MAX_VALUES_PER_CHANNEL)].astype(np.float64)
    return np.stack([selected.mean(1), selected.std(1), flat.min(1).astype(np.float64), flat.max(1).astype(np.float64)])


def count_samples_by_label_class(calibration_samples: Samples, judged_samples: Samples,
                                 mask_names: Collection[str] = ()) -> tuple[LabelClassFacts, ...]:
    """Counts the samples of each class, for every array of labels that contains class numbers in both sets of samples.

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
            LabelClassFacts(name, dict(judged_counts), judged_sample_count, dict(calibration_counts),
                            calibration_sample_count))
    return tuple(class_facts)


def _count_samples_by_class(samples: Samples, label_name: str) -> tuple[Counter[int], int]:
    """Returns the number of samples with each class, and the number of samples checked.

    Both are empty if the labels are not class numbers.
    """
    counts: Counter[int] = Counter()
    sample_count = 0
    for index in select_evenly_spaced_feeds(samples, MAX_LABELLED_SAMPLES):
        rows = samples.count_samples_of_feed(index)
        labels = samples.read_labels(index)[label_name]
        if labels.dtype.kind not in "iub" or not labels.ndim or len(labels) != rows:
            return Counter(), 0
        for row in flatten_each_sample(labels, rows):
            counts.update(int(value) for value in np.unique(row) if value >= 0)
        sample_count += rows
        if len(counts) > 4 * MAX_CLASSES:
            return Counter(), 0
    if 255 in counts and all(value < 200 for value in counts if value != 255):
        del counts[255]  # 255 marks ignored pixels in segmentation data
    return counts, sample_count
