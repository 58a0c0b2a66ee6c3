"""Samples: the input data and labels of a network, feed by feed.

Data come from an ``.npz``, a folder of ``.npz`` files, a Polygraphy inputs JSON, a script with ``load_data()``, or
seeded random inputs. `trt_tui.core.data.batches` describes their division into feeds.

Only the requested feed is in memory; see `trt_tui.core.data.tensor_files`. The feeds of JSON files and scripts are kept
in an unnamed temporary file.

A search can leave samples out, so that its result can be checked on them.

Networks without data get seeded random inputs.

Floats are drawn from N(0, 1), and booleans are true. The values of other inputs depend on their name and type:

- ``mask``: ones.
- ``position``: a count along the last axis.
- ``type`` or ``segment``: 0 and 1.
- ``id`` or ``token``: integers from 0 to 99.
- All others: integers from 0 to 255 for uint8, and from 0 to 7 for other types.
"""

from __future__ import annotations

import hashlib
import math
import os
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trt_tui.core.data.batches import (
    BatchLayout,
    BatchPadding,
    SampleName,
    StoredFeeds,
    choose_default_batch_size,
    find_batch_layout,
    first_dimension,
    incomplete_batch_error,
    is_float,
    iterate_feed_rows,
    shape_text,
    unknown_input_error,
)
from trt_tui.core.data.memory_fallbacks import MemoryFallbacks
from trt_tui.core.data.tensor_files import DATA_FORMATS, DataPart, StoredArray, read_data_parts
from trt_tui.core.runner import Dimension, TensorInfo
from trt_tui.errors import InputError
from trt_tui.formatting import counted_noun_text, name_list_text

MIN_RANDOM_SAMPLES = 32
"""Minimum number of random samples if no number is requested."""

MAX_RANDOM_SAMPLES = 1 << 16
"""Maximum number of random samples. Random samples say nothing about accuracy, so more of them have no use."""


def make_random_feeds(
    inputs: Sequence[TensorInfo],
    *,
    batch: int | None,
    limit: int | None,
    seed: int,
    shapes: Mapping[str, tuple[int, ...]],
) -> tuple[StoredFeeds, int]:
    """Builds a source of seeded random feeds and returns it with its batch size. Feeds differ from each other, but not
    between runs.

    The arguments are those of `trt_tui.core.data.samples.load_samples`.

    Raises:
        InputError: The size of a dimension is unknown, more samples than the limit are requested, or a feed does not
            fit in memory.
    """
    size_by_name = _find_sizes_of_named_dimensions(inputs, shapes)
    lead = next((info for info in inputs if info.shape is None or info.shape and info.shape[0] != 0), None)
    first = first_dimension(lead) if lead else 1
    static = isinstance(first, int)
    requested_size = shapes[lead.name][0] if lead and shapes.get(lead.name) else None
    size = (
        first
        if isinstance(first, int)
        else batch
        or requested_size
        or size_by_name.get(first)
        or (choose_default_batch_size(limit or MIN_RANDOM_SAMPLES))
    )
    concrete_shapes: dict[str, tuple[int, ...]] = {}
    sample_inputs = set()
    for info in inputs:
        shape = shapes.get(info.name, (None, None) if info.shape is None else info.shape)
        sizes = [dim if isinstance(dim, int) else size_by_name.get(dim) for dim in shape]
        if None in sizes[1:]:
            raise InputError(
                f"Input '{info.name}' has sizes that are not known: {shape_text(info.shape) if info.shape else '?'}",
                "Random inputs need all sizes.",
                f"Give samples with --data, or sizes with --shapes "
                f"{info.name}:{_example_shape_text(info.shape, size)}.",
            )
        own_first = first_dimension(info)
        if (
            sizes
            and not isinstance(own_first, int)
            and not static
            and (info is lead or own_first == first is not None or sizes[0] is None)
        ):
            sample_inputs.add(info.name)
        concrete_shapes[info.name] = tuple(size if known_size is None else known_size for known_size in sizes)
    total = limit or max(MIN_RANDOM_SAMPLES, 4 * size)
    if limit is not None and limit > max(MAX_RANDOM_SAMPLES, size):
        raise InputError(
            f"{limit:,} random samples are too many",
            f"at most {MAX_RANDOM_SAMPLES:,} are made; they say nothing about accuracy",
            "Use fewer with --samples, or give samples with --data.",
        )
    _check_feed_memory(inputs, concrete_shapes, size)
    rows = [size if static else min(size, total - start) for start in range(0, total, size)]
    parts = [
        DataPart(
            "seeded random inputs",
            {
                info.name: _make_random_stored_array(
                    info,
                    (count, *concrete_shapes[info.name][1:])
                    if info.name in sample_inputs
                    else concrete_shapes[info.name],
                    seed,
                    feed_index,
                )
                for info in inputs
            },
        )
        for feed_index, count in enumerate(rows)
    ]
    layouts = [BatchLayout(count, None, dict.fromkeys(sample_inputs), frozenset()) for count in rows]
    return StoredFeeds(inputs, parts, layouts, list(iterate_feed_rows(layouts, size, None))), size


def _check_feed_memory(inputs: Sequence[TensorInfo], shapes: Mapping[str, tuple[int, ...]], row_count: int) -> None:
    """Refuses random feeds that need more than half of the machine's memory. The system would end the process.

    Raises:
        InputError: A feed needs more memory than that.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    sizes = {info.name: max(4, info.dtype.itemsize) * math.prod(shapes[info.name]) for info in inputs}
    if sum(sizes.values()) > memory // 2:
        name = max(sizes, key=sizes.__getitem__)
        raise InputError(
            f"Random inputs of shape {shape_text(shapes[name])} do not fit in memory",
            f"a batch of {row_count:,} takes {sum(sizes.values()):,} bytes, most of it input '{name}'; "
            f"the machine has {memory:,}",
            "Use a smaller --batch or --shapes.",
        )


def _find_sizes_of_named_dimensions(
    inputs: Sequence[TensorInfo], shapes: Mapping[str, tuple[int, ...]]
) -> dict[Dimension, int]:
    """Returns the size of each named dimension for which a shape was given."""
    return {
        dimension: size
        for info in reversed(inputs)
        for dimension, size in reversed([*zip(info.shape or (), shapes.get(info.name, ()), strict=False)])
        if isinstance(dimension, str)
    }


def _make_random_stored_array(
    input_info: TensorInfo, shape: tuple[int, ...], seed: int, feed_index: int
) -> StoredArray:
    """Returns a random input of a feed. Its values are drawn when the array is loaded."""

    def load() -> np.ndarray:
        rng = np.random.default_rng([seed, feed_index, zlib.crc32(input_info.name.encode())])
        return _draw_random_array(rng, input_info.name.lower(), input_info.dtype, shape)

    return StoredArray(input_info.dtype, shape, load)


def _draw_random_array(rng: np.random.Generator, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    if dtype.kind == "b" or "mask" in name:
        return np.ones(shape, dtype)
    if is_float(dtype):
        return rng.standard_normal(shape, np.float32).astype(dtype)
    if "position" in name and shape:
        return np.broadcast_to(np.arange(shape[-1]), shape).astype(dtype)
    value_counts = {"type": 2, "segment": 2, "id": 100, "token": 100}
    default = 256 if dtype == np.uint8 else 8
    values = next((count for word, count in value_counts.items() if word in name), default)
    return rng.integers(0, values, shape).astype(dtype)


def _example_shape_text(shape: Sequence[Dimension] | None, batch_size: int) -> str:
    if not shape:
        return "1x3x224x224"
    sizes = [batch_size if isinstance(shape[0], (str, type(None))) else shape[0]]
    return "x".join(str(size) for size in [*sizes, *(dim if isinstance(dim, int) else 128 for dim in shape[1:])])


RANDOM_WARNING = "Random inputs say nothing about accuracy on real data: give --data D.npz"
MAX_FEEDS = 1 << 22
"""Maximum number of feeds into which data are divided."""

MAX_LABEL_MISMATCH_SHARE = 1 / 16
"""Difference between label rows and samples, as a share of the samples, up to which each row is assumed to belong to a
sample."""

MIN_CHECKED_LABELS = 8
"""Number of samples from which labels can be refused. With fewer samples, another table of a metric can have nearly as
many rows by chance."""

SamplePosition = tuple[int, int]
"""The position of a sample: the number of its feed, and its row there."""


class Samples:
    """The input feeds of a network by number, with their labels if there are any.

    A feed is a dictionary with one batch of each input of the network. Only the requested feed is in memory. The object
    must not be used from several threads at once.

    Attributes:
        source: The title in messages, such as ``samples.npz`` or ``seeded random inputs``.
        batch: Rows of the lead input in a full feed.
        is_random: True if the inputs are random.
        label_names: Names of the labels, sorted.
        warnings: Warnings for the user that apply as long as these data are used.
        padding: The padding of feeds with fewer samples than the fixed batch of the network; None if all feeds are
            full, or may have any size.
        memory_fallbacks: The memory fallbacks of executions with these data, shared with selections and mixtures of
            them.
    """

    def __init__(
        self,
        feed_source: StoredFeeds | _MixedFeeds,
        indices: Sequence[int],
        *,
        source: str,
        batch: int,
        is_random: bool = False,
        label_names: Sequence[str] = (),
        warnings: Sequence[str] = (),
        padding: BatchPadding | None = None,
        memory_fallbacks: MemoryFallbacks | None = None,
    ) -> None:
        self._feed_source = feed_source
        self._indices = tuple(indices)
        self._digest: str | None = None
        self.source = source
        self.batch = batch
        self.is_random = is_random
        self.label_names = tuple(label_names)
        self.warnings = tuple(warnings)
        self.padding = padding
        self.memory_fallbacks = memory_fallbacks if memory_fallbacks is not None else MemoryFallbacks()

    def __len__(self) -> int:
        return len(self._indices)

    @property
    def count(self) -> int:
        """Number of samples: rows of the lead input over all feeds."""
        return sum(self._feed_source.count_samples_of_feed(index) for index in self._indices)

    @property
    def per_sample_array_names(self) -> frozenset[str]:
        """Names of the inputs and labels that have one row per sample in every feed."""
        return self._feed_source.per_sample_array_names

    def count_samples_of_feed(self, feed_index: int) -> int:
        return self._feed_source.count_samples_of_feed(self._indices[feed_index])

    def feed_position(self, feed_index: int) -> tuple[int, int]:
        """Returns the position of a feed in the data: its number among all feeds, and the number of its first sample."""
        return self._indices[feed_index], self._feed_source.first_sample_index(self._indices[feed_index])

    def sample_name(self, feed_index: int, row: int = 0) -> SampleName:
        """Returns the name of the sample in a row of a feed."""
        return self._feed_source.sample_name(self._indices[feed_index], row)

    def find_sample(self, name: SampleName) -> SamplePosition:
        """Returns the position of a sample.

        Raises:
            InputError: The data have no such sample.
        """
        names = [self.sample_name(index) for index in range(len(self))]
        for index, first in enumerate(names):
            if first.file == name.file and 0 <= (row := name.index - first.index) < self.count_samples_of_feed(index):
                return index, row
        ends = {first.file: first.index + self.count_samples_of_feed(index) - 1 for index, first in enumerate(names)}
        known = name_list_text([f"{SampleName(0, file)} to #{end}" for file, end in ends.items()], 6)
        raise InputError(f"sample {name} does not exist", f"{self.source} has {known}", "Name one of them.")

    @property
    def total_sample_count(self) -> int:
        """Number of samples in all data that were read, including samples left out by `select_feeds` and the limit."""
        return self._feed_source.total_sample_count

    def read_feed(self, feed_index: int) -> dict[str, np.ndarray]:
        """Reads the inputs of a feed by name, in the types of the network's inputs.

        Raises:
            InputError: The data cannot be read any more, or contain NaN or an infinity. The error names array and
                sample.
        """
        return self._feed_source.read_feed(self._indices[feed_index])

    def is_padded(self, feed_index: int) -> bool:
        """Returns True if a feed has fewer samples than the fixed batch of the network."""
        return self.padding is not None and self.count_samples_of_feed(feed_index) < self.padding.batch_size

    def read_full_feed(self, feed_index: int) -> dict[str, np.ndarray]:
        """Reads a feed as the network receives it: filled up to a fixed batch. Raises the errors of `read_feed`."""
        feed = self.read_feed(feed_index)
        return dict(self.padding.pad_feed(feed)[0]) if self.padding is not None else feed

    def count_rows_of_full_feed(self, feed_index: int) -> int:
        """Returns the number of samples in `read_full_feed`, including copies."""
        count = self.count_samples_of_feed(feed_index)
        return max(count, self.padding.batch_size) if self.padding is not None else count

    def pad_rows(self, array: np.ndarray, feed_index: int) -> np.ndarray:
        """Returns an array with the rows of a feed's samples, filled up as in `read_full_feed`."""
        is_short = self.is_padded(feed_index) and array.ndim and len(array) == self.count_samples_of_feed(feed_index)
        return self.padding.pad_rows(array) if self.padding is not None and is_short else array

    def remove_padding(self, outputs: Mapping[str, np.ndarray], feed_index: int) -> dict[str, np.ndarray]:
        """Returns the outputs of an execution of `read_full_feed` with the rows of the feed's samples only."""
        if self.padding is None or not self.is_padded(feed_index):
            return dict(outputs)
        rows = self.count_samples_of_feed(feed_index)
        return {name: self.padding.remove_padding(array, rows) for name, array in outputs.items()}

    def iterate_feeds(self) -> Iterator[dict[str, np.ndarray]]:
        """Yields the feeds, one at a time. Raises the errors of `read_feed`."""
        return map(self.read_feed, range(len(self)))

    def read_labels(self, feed_index: int) -> dict[str, np.ndarray]:
        """Reads the labels of a feed by name: the rows of the feed's samples, or the whole array if its rows are not
        samples."""
        return self._feed_source.read_labels(self._indices[feed_index])

    def select_feeds(self, feed_indices: Sequence[int]) -> Samples:
        """Returns new samples with only the given feeds, which read the same data."""
        return Samples(
            self._feed_source,
            [self._indices[index] for index in feed_indices],
            source=self.source,
            batch=self.batch,
            is_random=self.is_random,
            label_names=self.label_names,
            warnings=self.warnings,
            padding=self.padding,
            memory_fallbacks=self.memory_fallbacks,
        )

    def hash_inputs(self) -> str:
        """Returns the hash of all input values in the order and types that the network receives. Labels are not
        included.

        The same rows divided into other batches have the same hash, unless an array is repeated for every batch. All
        data are read once. Raises the errors of `read_feed`.
        """
        if self._digest is None:
            hashes: dict[str, tuple[tuple[int, ...], Any]] = {}
            for feed in self.iterate_feeds():
                for name, array in feed.items():
                    row_shape = array.shape[1:]
                    previous_shape, digest = hashes.get(name, (None, hashlib.sha256()))
                    if previous_shape != row_shape:
                        digest.update(f"{array.dtype}{row_shape}".encode())
                    digest.update(
                        array.reshape(-1).view(np.uint8).data if array.dtype.kind != "O" else str(array).encode()
                    )
                    hashes[name] = (row_shape, digest)
            total = hashlib.sha256()
            for name, (_, digest) in sorted(hashes.items()):
                total.update(name.encode() + b"\0" + digest.digest())
            self._digest = total.hexdigest()
        return self._digest


def load_samples(
    spec: str | Path | None,
    inputs: Sequence[TensorInfo],
    *,
    outputs: Sequence[TensorInfo] = (),
    batch: int | None = None,
    limit: int | None = None,
    seed: int = 0,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    reads_labels: bool = True,
) -> Samples:
    """Opens the input data of a network, and checks their types and shapes.

    Args:
        spec: An ``.npz``, a folder of ``.npz`` (or of Polygraphy ``.json``), a Polygraphy inputs ``.json``, ``FILE.py``
            with ``load_data()``, or ``FILE.py:FUNCTION``; None for seeded random inputs. The function of a script
            returns or yields dictionaries of arrays, and may yield without end.
        inputs: The inputs of the network.
        outputs: Its outputs. If each has one row per sample of a fixed batch, the last feed is filled up
            (`trt_tui.core.data.batches`). Without outputs, a remainder is refused.
        batch: Batch size of a network with a dynamic batch, at least 1. The default is that of ``shapes``. Without
            shapes, it is at most 8 and small enough for four feeds.
        limit: Maximum number of samples, at least 1; rounded up to a whole batch if the batch of the network is static.
        seed: Seed of random inputs, not negative.
        shapes: Concrete shapes by input name. They give the sizes of dynamic dimensions of random inputs, including
            inputs that share a dimension's name.
        reads_labels: True if a metric or a mask reads labels. If False, labels that fit no sample only cause a warning.

    Raises:
        InputError: The data cannot be read or do not fit the inputs. This function checks types and shapes of all data
            and reads the first feed. NaN and infinities in other feeds are found when those feeds are read.
    """
    if not inputs:
        raise InputError("The network has no inputs", "There is no input to feed.", "Give a network with inputs.")
    shapes = dict(shapes or {})
    for name in shapes:
        if name not in {info.name for info in inputs}:
            raise unknown_input_error(name, inputs)
    if spec is None:
        random_source, size = make_random_feeds(inputs, batch=batch, limit=limit, seed=seed, shapes=shapes)
        samples = Samples(
            random_source,
            range(len(random_source.feed_rows)),
            source="seeded random inputs",
            batch=size,
            is_random=True,
            warnings=[RANDOM_WARNING],
        )
    else:
        samples = _load_stored_samples(str(spec), inputs, outputs, batch, limit, shapes, reads_labels)
    samples.read_feed(0)
    return samples


def _load_stored_samples(
    spec: str,
    inputs: Sequence[TensorInfo],
    outputs: Sequence[TensorInfo],
    batch_size: int | None,
    sample_limit: int | None,
    shapes: Mapping[str, tuple[int, ...]],
    reads_labels: bool,
) -> Samples:
    parts: list[DataPart] = []
    layouts: list[BatchLayout] = []
    warnings: list[str] = []
    total = 0
    input_names = {info.name for info in inputs}
    fixed_batch = _find_common_batch(inputs, outputs)
    for part in read_data_parts(spec, sample_limit, warnings):
        if layouts and layouts[-1].has_incomplete_last_batch:
            lead = next(info for info in inputs if first_dimension(info) == layouts[-1].rows_per_feed)
            raise incomplete_batch_error(lead, layouts[-1].lead_rows, parts[-1].source)
        layout = find_batch_layout(part, inputs, allows_remainder=fixed_batch is not None)
        if parts and set(part.arrays) - input_names != set(parts[0].arrays) - input_names:
            differing = (set(part.arrays) ^ set(parts[0].arrays)) - input_names
            raise InputError(
                f"{part.source} and {parts[0].source} have different labels",
                f"Only one of them has: {', '.join(sorted(differing))}.",
                "Give the same labels everywhere.",
            )
        _check_label_rows(part, layout, input_names, warnings, reads_labels)
        parts.append(part)
        layouts.append(layout)
        total += layout.lead_rows
        if sample_limit is not None and total >= sample_limit:
            break
    source = Path(spec).name or spec
    if not parts:
        raise InputError(f"{source} gave no samples", next_step=f"Give {DATA_FORMATS}.")
    if batch_size is None:
        batch_size = next((shapes[info.name][0] for info in inputs if shapes.get(info.name)), None)
    dynamic_batch = batch_size or choose_default_batch_size(min(total, sample_limit or total))
    feed_count = sum(-(-layout.lead_rows // (layout.rows_per_feed or dynamic_batch)) for layout in layouts)
    if min(feed_count, sample_limit or feed_count) > MAX_FEEDS:
        raise InputError(
            f"{source} would need {feed_count:,} feeds",
            f"at most {MAX_FEEDS:,} are possible",
            "Use fewer with --samples, or a larger --batch.",
        )
    feed_rows = list(iterate_feed_rows(layouts, dynamic_batch, sample_limit))
    label_names = sorted(set(parts[0].arrays) - input_names)
    stored_feeds = StoredFeeds(inputs, parts, layouts, feed_rows)
    padding = None
    if (
        fixed_batch is not None
        and layouts[-1].has_incomplete_last_batch
        and feed_rows[-1].part_index == len(parts) - 1
        and (feed_rows[-1].stop == layouts[-1].lead_rows)
    ):
        padding = BatchPadding(fixed_batch, stored_feeds.per_sample_array_names)
        count = feed_rows[-1].first_sample + feed_rows[-1].stop - feed_rows[-1].start
        warnings.append(
            f"the number of samples, {count}, is not a multiple of the network's fixed batch of {fixed_batch}: "
            "the last batch is filled up with copies of its last sample, which no error and no metric counts"
        )
    return Samples(
        stored_feeds,
        range(len(feed_rows)),
        source=source,
        batch=layouts[0].rows_per_feed or dynamic_batch,
        label_names=label_names,
        warnings=warnings,
        padding=padding,
    )


def _find_common_batch(inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]) -> int | None:
    """Returns the fixed batch of a network if each output has one row per sample; None if not."""
    sizes = {size for info in inputs if isinstance(size := first_dimension(info), int) and size > 0}
    if not outputs or len(sizes) != 1 or any(first_dimension(info) not in sizes for info in outputs):
        return None
    return sizes.pop()


def _check_label_rows(
    part: DataPart, layout: BatchLayout, input_names: Collection[str], warnings: list[str], needs_labels: bool
) -> None:
    """Warns about arrays besides the inputs whose number of rows is not that of the samples.

    Args:
        needs_labels: True if anything reads labels.

    Raises:
        InputError: Labels are read, and the number of rows is so close to that of the samples that each row probably
            belongs to a sample.
    """
    for name, stored_array in part.arrays.items():
        if name in input_names or name in layout.rows_per_feed_by_array or stored_array.shape[:1] in ((), (1,)):
            continue
        rows, samples = stored_array.shape[0], layout.lead_rows
        sizes_text = f"{counted_noun_text(rows, 'row')} for {counted_noun_text(samples, 'sample')}"
        if (
            needs_labels
            and samples >= MIN_CHECKED_LABELS
            and abs(rows - samples) <= max(1, samples * MAX_LABEL_MISMATCH_SHARE)
        ):
            raise InputError(
                f"{part.source}: label '{name}' has {sizes_text}",
                "The labels cannot be assigned to samples, so the metric would be wrong.",
                "Give one row for each sample. A table that does not belong to samples is better read by the metric "
                "itself.",
            )
        warning = f"Label '{name}' has {sizes_text}" + (
            ", so it is not cut into samples: the metric gets all of it with each batch. If each row belongs to a "
            "sample, the metric is wrong."
            if needs_labels
            else "; it is not used here."
        )
        if not any(issued_warning.startswith(f"Label '{name}' ") for issued_warning in warnings):
            warnings.append(warning)


@dataclass(frozen=True)
class SampleSplit:
    """The calibration samples, and the samples that runs are judged on.

    Attributes:
        judged_samples: All samples. A run is judged on those that did not calibrate it.
        calibrating_feeds: The feeds among them that calibrate, and that do not judge a run with measured ranges.
        warnings: Warnings for the user that apply as long as these data are used.
        calibration_warning: A warning about a run with measured ranges; "" if there is none.
    """

    calibration_samples: Samples
    judged_samples: Samples
    calibrating_feeds: frozenset[int]
    warnings: tuple[str, ...]
    calibration_warning: str = ""

    @property
    def other_feeds(self) -> list[int]:
        """The judged feeds that do not calibrate."""
        return [index for index in range(len(self.judged_samples)) if index not in self.calibrating_feeds]

    @property
    def other_samples(self) -> Samples:
        """The judged samples that do not calibrate."""
        return self.judged_samples.select_feeds(self.other_feeds) if self.calibrating_feeds else self.judged_samples


def split_samples(samples: Samples, calibration_samples: Samples | None = None) -> SampleSplit:
    """Chooses the calibration samples.

    Without calibration data, feeds 0, 4, 8, ... calibrate, and the others judge runs with measured ranges. A single
    feed does both, with a warning. Calibration data equal to the samples (by `Samples.hash_inputs`) cause a warning
    too.

    Raises:
        InputError: The calibration data cannot be read.
    """
    if calibration_samples is not None:
        warnings = tuple(dict.fromkeys((*samples.warnings, *calibration_samples.warnings)))
        is_same = calibration_samples.count == samples.count and (
            calibration_samples.hash_inputs() == samples.hash_inputs()
        )
        return SampleSplit(
            calibration_samples,
            samples,
            frozenset(),
            warnings,
            "The same samples calibrate and are judged: the errors shown are too good" if is_same else "",
        )
    if len(samples) == 1:
        return SampleSplit(
            samples,
            samples,
            frozenset(),
            samples.warnings,
            "One feed both calibrates and is judged: the errors shown are too good",
        )
    calibrating = range(0, len(samples), 4)
    return SampleSplit(samples.select_feeds(calibrating), samples, frozenset(calibrating), samples.warnings)


class JudgedFeeds(tuple[int, ...]):
    """The indices of the feeds that judge a run, ascending.

    Attributes:
        searched_feeds: Further feeds that are only searched for NaN and Inf, because they calibrated the run.
        compared_feeds: The feeds that judge every run, if they are fewer: runs are compared with each other on them.
    """

    searched_feeds: tuple[int, ...] = ()
    compared_feeds: tuple[int, ...] = ()

    @classmethod
    def from_indices(
        cls, judged: Iterable[int], searched: Iterable[int] = (), compared: Iterable[int] = ()
    ) -> JudgedFeeds:
        feeds = cls(judged)
        feeds.searched_feeds = tuple(searched)
        feeds.compared_feeds = compared_feeds if (compared_feeds := tuple(compared)) != feeds else ()
        return feeds

    @property
    def all_feeds(self) -> list[int]:
        """The feeds that judge the run or are searched, ascending."""
        return sorted((*self, *self.searched_feeds))

    @property
    def cache_key(self) -> tuple[tuple[int, ...], ...]:
        """Returns the part of a cache key that depends on the feeds."""
        return tuple(self), self.searched_feeds, self.compared_feeds


def can_mix_samples(samples: Samples, feed_indices: Sequence[int]) -> bool:
    """Returns True if single samples of different feeds can be combined into new batches.

    Every input must have one row per sample in these feeds, and all rows must have the same shape.
    """
    shapes = set()
    for index in feed_indices:
        feed, rows = samples.read_feed(index), samples.count_samples_of_feed(index)
        if not feed.keys() <= samples.per_sample_array_names or any(
            array.shape[:1] != (rows,) for array in feed.values()
        ):
            return False
        shapes.add(tuple(sorted((name, array.shape[1:]) for name, array in feed.items())))
    return len(shapes) == 1


class _MixedFeeds:
    """A source of feeds whose rows come from different feeds of other samples. The feed that was read last stays in
    memory."""

    def __init__(self, samples: Samples, batches: Sequence[Sequence[SamplePosition]]) -> None:
        self._samples, self._batches = samples, batches
        self._cached_feed: tuple[int, dict[str, np.ndarray]] | None = None

    @property
    def per_sample_array_names(self) -> frozenset[str]:
        return self._samples.per_sample_array_names

    def count_samples_of_feed(self, feed_index: int) -> int:
        return len(self._batches[feed_index])

    def read_feed(self, feed_index: int) -> dict[str, np.ndarray]:
        if self._cached_feed is None or self._cached_feed[0] != feed_index:
            self._cached_feed = feed_index, self._stack_rows(feed_index, self._samples.read_feed)
        return self._cached_feed[1]

    def read_labels(self, feed_index: int) -> dict[str, np.ndarray]:
        return self._stack_rows(feed_index, self._samples.read_labels)

    def _stack_rows(self, feed_index: int, read: Callable[[int], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """Returns the arrays of a mixed feed. An array without a row per sample comes from the feed of the first
        sample."""
        batch = self._batches[feed_index]
        arrays = {feed: read(feed) for feed in dict.fromkeys(feed for feed, _ in batch)}
        return {
            name: np.stack([arrays[feed][name][row] for feed, row in batch])
            if name in self._samples.per_sample_array_names
            else array
            for name, array in arrays[batch[0][0]].items()
        }

    def first_sample_index(self, feed_index: int) -> int:
        """Returns the number of a feed's first sample in the original data."""
        feed, row = self._batches[feed_index][0]
        return self._samples.feed_position(feed)[1] + row

    def sample_name(self, feed_index: int, row: int) -> SampleName:
        return self._samples.sample_name(*self._batches[feed_index][row])

    @property
    def total_sample_count(self) -> int:
        return self._samples.total_sample_count


def mix_samples_into_batches(samples: Samples, positions_by_batch: Sequence[Sequence[SamplePosition]]) -> Samples:
    """Builds new samples whose feeds combine single samples of other feeds.

    `can_mix_samples` tests whether this is possible. The new samples read the same data.

    Args:
        positions_by_batch: The samples of each feed in order.
    """
    return Samples(
        _MixedFeeds(samples, positions_by_batch),
        range(len(positions_by_batch)),
        source=samples.source,
        batch=samples.batch,
        is_random=samples.is_random,
        label_names=samples.label_names,
        warnings=samples.warnings,
        padding=samples.padding,
        memory_fallbacks=samples.memory_fallbacks,
    )


HELD_OUT_SHARE = 0.25
"""The share of the samples that a search does not use."""

MIN_SEARCH_SAMPLES, MIN_HELD_OUT_SAMPLES = 32, 16
"""The minimum numbers of samples for the choices of a search, and of held-out samples. If either is not reached, no
samples are held out.

Together they are three quarters of 64: of 64 samples without separate calibration samples, a quarter calibrates."""

_DRAW_SEED = 0
"""The seed of the draw. It is fixed, so that the same data are always divided in the same way."""


@dataclass(frozen=True)
class HeldOutChoice:
    """The feeds that a search does not use.

    Attributes:
        feed_indices: Indices of whole feeds, ascending; () if nothing is held out.
        refusal_reason: The reason why nothing is held out; "" if something is.
    """

    feed_indices: tuple[int, ...] = ()
    refusal_reason: str = ""


def choose_held_out_feeds(samples: Samples, calibrating_feeds: Collection[int] = ()) -> HeldOutChoice:
    """Draws feeds with about a quarter of the samples, at least `MIN_HELD_OUT_SAMPLES` samples.

    Whole feeds are drawn, because fixed batches cannot be divided.

    Args:
        calibrating_feeds: Feeds with samples that also calibrate. They are never held out, because ranges were chosen
            on them.
    """
    counts = [samples.count_samples_of_feed(index) for index in range(len(samples))]
    total = sum(counts)
    count_text = counted_noun_text(total, "judged sample")
    if total < MIN_SEARCH_SAMPLES + MIN_HELD_OUT_SAMPLES:
        return HeldOutChoice(refusal_reason=f"{count_text} are fewer than {MIN_SEARCH_SAMPLES + MIN_HELD_OUT_SAMPLES}")
    goal, held_out, row_count = max(HELD_OUT_SHARE * total, MIN_HELD_OUT_SAMPLES), list[int](), 0
    for index in np.random.default_rng(_DRAW_SEED).permutation(len(samples)).tolist():
        if row_count >= goal:
            break
        if index not in calibrating_feeds and total - row_count - counts[index] >= MIN_SEARCH_SAMPLES:
            held_out.append(index)
            row_count += counts[index]
    if row_count < MIN_HELD_OUT_SAMPLES:
        return HeldOutChoice(
            refusal_reason=(
                "too few of the judged samples are not calibration samples too"
                if calibrating_feeds
                else f"{count_text} in {len(samples)} batch{'' if len(samples) == 1 else 'es'} cannot be divided"
            )
        )
    return HeldOutChoice(tuple(sorted(held_out)))


def find_feeds_with_shared_samples(samples: Samples, other_samples: Samples) -> frozenset[int]:
    """Returns the indices of the feeds with at least one sample that is also among the other samples.

    Samples are compared by the values of all inputs. All data are read once. Raises the errors of `Samples.read_feed`.
    """
    other_hashes = {
        digest for index in range(len(other_samples)) for digest in iterate_sample_hashes(other_samples, index)
    }
    return frozenset(
        index for index in range(len(samples)) if not other_hashes.isdisjoint(iterate_sample_hashes(samples, index))
    )


def iterate_sample_hashes(samples: Samples, feed_index: int) -> Iterator[bytes]:
    """Yields the hash of the inputs of each sample of a feed. Arrays without a row per sample belong to every sample.
    Raises the errors of `Samples.read_feed`."""
    feed = samples.read_feed(feed_index)
    for row in range(samples.count_samples_of_feed(feed_index)):
        digest = hashlib.sha256()
        for name, array in sorted(feed.items()):
            values = array[row] if name in samples.per_sample_array_names else array
            content = (
                repr(values.tolist()).encode() if array.dtype.hasobject else np.ascontiguousarray(values).tobytes()
            )
            digest.update(f"{name} {array.dtype} {np.shape(values)}".encode() + content)
        yield digest.digest()
