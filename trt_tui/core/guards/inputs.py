"""Figures of inputs and labels of some samples, which guards compare."""

from collections import Counter
from collections.abc import Collection, Iterator

import numpy as np

from trt_tui.core.data.samples import Samples
from trt_tui.core.guards.facts import ClassFacts, SampleStats
from trt_tui.core.measure.bootstrap import rows_of

MOST_SAMPLES = 64
"""Inputs are looked at on so many samples, spread evenly over the data."""

MOST_LABELLED = 1024
"""Labels are looked at on so many samples."""

MOST_VALUES = 1 << 18
"""Means and deviations of a sample are taken on every nth value of each channel where it has more than this."""

MOST_CHANNELS = 16
"""An axis with more entries than this counts no channels."""

MOST_CLASSES = 1000


def spread_over(samples: Samples, most: int) -> Iterator[int]:
    """Numbers of feeds that hold about so many samples, spread evenly."""
    wanted = max(1, -(-most // max(1, samples.rows(0))))
    step = max(1, len(samples) // wanted)
    return iter(range(0, len(samples), step)[:wanted])


def input_stats(samples: Samples) -> dict[str, SampleStats]:
    """Figures of the inputs that hold floats or bytes, by name.

    Raises:
        InputError: the data cannot be read.
    """
    found: dict[str, list[np.ndarray]] = {}
    for index in spread_over(samples, MOST_SAMPLES):
        rows = samples.rows(index)
        for name, array in samples.feed(index).items():
            if array.size and (array.dtype.kind == "f" or array.dtype == np.uint8):
                whole = array if array.ndim and len(array) == rows else array[None]
                found.setdefault(name, []).extend(map(_figures, whole))
    return {name: SampleStats(*np.moveaxis(np.stack(rows), 1, 0)) for name, rows in found.items()
            if len({one.shape for one in rows}) == 1}


def count_equal_samples(samples: Samples) -> int:
    """Returns the number of samples if there are several and every input is the same in all that are looked at, else 0.

    Raises:
        InputError: the data cannot be read.
    """
    first: dict[str, bytes] | None = None
    for index in spread_over(samples, MOST_SAMPLES):
        rows = samples.rows(index)
        arrays = {name: array if array.ndim and len(array) == rows else np.stack([array] * rows)
                  for name, array in samples.feed(index).items()}
        for row in range(rows):
            values = {name: np.ascontiguousarray(array[row]).tobytes() for name, array in arrays.items()}
            first = values if first is None else first
            if values != first:
                return 0
    return samples.count if samples.count > 1 else 0


def _figures(sample: np.ndarray) -> np.ndarray:
    """Mean, deviation, least and largest value of each channel of a sample, float64 ``(4, channels)``."""
    axes = (0, sample.ndim - 1) if sample.ndim > 1 else ()
    axis = next((axis for axis in axes if sample.shape[axis] <= MOST_CHANNELS), None)
    flat = sample.reshape(1, -1) if axis is None else np.moveaxis(sample, axis, 0).reshape(sample.shape[axis], -1)
    some = flat[:, ::max(1, flat.shape[1] // MOST_VALUES)].astype(np.float64)
    return np.stack([some.mean(1), some.std(1), flat.min(1).astype(np.float64), flat.max(1).astype(np.float64)])


def class_facts(calibrating: Samples, judged: Samples, masks: Collection[str] = ()) -> tuple[ClassFacts, ...]:
    """Which classes the samples have, for each array of labels that names classes in both.

    Args:
        masks: Arrays that are no labels.

    Raises:
        InputError: the data cannot be read.
    """
    found = []
    for name in judged.label_names:
        if name in masks or name not in calibrating.label_names:
            continue
        there, samples = _classes(judged, name)
        classes = len(there)
        if not 2 <= classes <= MOST_CLASSES or sum(there.values()) < 2 * classes:
            continue
        here, calibrate = _classes(calibrating, name)
        found.append(ClassFacts(name, dict(there), samples, dict(here), calibrate))
    return tuple(found)


def _classes(samples: Samples, name: str) -> tuple[Counter[int], int]:
    """How many samples have a class, by class, and how many were looked at; none where the labels name none."""
    counts: Counter[int] = Counter()
    looked = 0
    for index in spread_over(samples, MOST_LABELLED):
        rows = samples.rows(index)
        labels = samples.labels(index)[name]
        if labels.dtype.kind not in "iub" or not labels.ndim or len(labels) != rows:
            return Counter(), 0
        for row in rows_of(labels, rows):
            counts.update(int(value) for value in np.unique(row) if value >= 0)
        looked += rows
        if len(counts) > 4 * MOST_CLASSES:
            return Counter(), 0
    if 255 in counts and all(value < 200 for value in counts if value != 255):
        del counts[255]  # what segmentation data leave out
    return counts, looked
