"""Batches: how data are cut into feeds.

Whatever their kind, data arrive as *parts*: an npz file, or one feed of a JSON or script. Each part is cut into
feeds of one batch by one rule:

- The *lead* input is the first one, in the network's order, whose first dimension is static and whose array holds
  several batches of it; failing that, the first input that has a dimension.
- The lead is cut into steps of the network's batch: its own static first dimension (a remainder is an error), or
  the batch size asked for where that dimension is dynamic (the last feed may be smaller).
- Another input with a static first dimension is cut into as many feeds as the lead, or repeated if its array is
  exactly one batch; anything else is an error.
- Another input with a dynamic first dimension is cut like the lead if it has as many rows. One row of an input that
  shares the dimension's name with the lead is broadcast to the rows of each feed; otherwise the array is repeated
  whole, unless the shared name says that it had to have the lead's rows (an error).
- Arrays that are no input are labels: those with as many rows as the lead are cut with it, others are given whole.
"""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from trt_tui.core.data.array_files import DataPart, StoredArray
from trt_tui.core.data.element_types import cast_to_input_type, is_castable
from trt_tui.core.data.shapes import first_dimension, shape_text
from trt_tui.core.runner import TensorInfo
from trt_tui.errors import InputError
from trt_tui.formatting import counted_noun_text

DEFAULT_BATCH = 8
"""Largest batch that a dynamic network is given when none is asked for."""


def choose_default_batch_size(sample_count: int) -> int:
    """The batch of a dynamic network for so many samples: few enough that there are four feeds."""
    return min(DEFAULT_BATCH, max(1, sample_count // 4))


@dataclass(frozen=True)
class BatchLayout:
    """How the arrays of one part are cut.

    Attributes:
        lead_rows: Rows of the lead's first axis; 1 where no input has a dimension.
        rows_per_feed: Rows per feed; None where the batch is dynamic.
        rows_per_feed_by_array: Of every cut array the rows per feed; None where they are the lead's.
        broadcast_inputs: Inputs of one row that are broadcast to the rows of each feed.
    """

    lead_rows: int
    rows_per_feed: int | None
    rows_per_feed_by_array: dict[str, int | None]
    broadcast_inputs: frozenset[str]


@dataclass(frozen=True)
class FeedRows:
    """One feed: rows ``start`` to ``stop`` of the lead of a part.

    Attributes:
        part_index: Number of the part.
        feed_index_in_part: Number of the feed within its part.
        first_sample: Number of its first sample over all parts.
    """

    part_index: int
    feed_index_in_part: int
    start: int
    stop: int
    first_sample: int


def _row_count_text(row_count: int, batch_count: int | None) -> str:
    return counted_noun_text(row_count, "row") + (
        f" ({batch_count} batch{'es' * (batch_count > 1)} of {row_count // batch_count})" if batch_count else "")


def find_batch_layout(part: DataPart, inputs: Sequence[TensorInfo]) -> BatchLayout:
    """How a part is cut, whose inputs are checked here, by the rule of this module's docstring.

    Raises:
        InputError: they do not fit.
    """
    _check_input_arrays(part, inputs)
    arrays_by_name = part.arrays
    batched = [info for info in inputs if arrays_by_name[info.name].shape]
    batches = {info.name: _count_static_batches(info, arrays_by_name[info.name], part.source) for info in batched}
    filled = [info for info in batched if first_dimension(info) != 0]
    lead = next((info for info in filled if (batches[info.name] or 0) > 1), filled[0] if filled else None)
    if lead is None:
        return BatchLayout(1, 1, {}, frozenset())
    lead_size = first_dimension(lead)
    rows = arrays_by_name[lead.name].shape[0]
    if rows == 0:
        raise InputError(f"{part.source}: input '{lead.name}' has no samples", "Its first axis is 0.",
                         "Give at least one sample.")
    steps: dict[str, int | None] = {lead.name: None}
    broadcast = set()
    for info in batched:
        if info is lead:
            continue
        name, own_rows, count = info.name, arrays_by_name[info.name].shape[0], batches[info.name]
        if count is not None:
            if count == 1:
                continue
            own_size = first_dimension(info)
            if count != batches[lead.name] or not isinstance(own_size, int):
                raise InputError(
                    f"{part.source}: inputs '{lead.name}' and '{name}' disagree about the number of samples",
                    f"'{lead.name}' has {_row_count_text(rows, batches[lead.name])}, "
                    f"'{name}' {_row_count_text(own_rows, count)}.",
                    "Give the same number of samples for both, or one batch of the input that is to be repeated.",
                )
            steps[name] = own_size
        elif own_rows == rows:
            steps[name] = None
        elif isinstance(lead_size, str) and first_dimension(info) == lead_size:
            if own_rows != 1:
                raise InputError(
                    f"{part.source}: inputs '{lead.name}' and '{name}' disagree about the number of samples",
                    f"Both have the first dimension {lead_size}, but {rows} and {own_rows} rows.",
                    "Give the same number of samples for both.",
                )
            broadcast.add(name)
    labels = {name for name in arrays_by_name if name not in {info.name for info in inputs}}
    steps.update({name: None for name in labels if arrays_by_name[name].shape[:1] == (rows,)})
    return BatchLayout(rows, lead_size if isinstance(lead_size, int) else None, steps, frozenset(broadcast))


def _count_static_batches(input_info: TensorInfo, stored_array: StoredArray, source_title: str) -> int | None:
    """How many batches the array of an input with a static first dimension holds; None for any other input."""
    size = first_dimension(input_info)
    if not isinstance(size, int) or size == 0:
        return None
    rows = stored_array.shape[0]
    if rows % size:
        raise InputError(
            f"{source_title}: input "
            f"'{input_info.name}' has {rows} samples, not a multiple of the network's batch of {size}",
            f"The network's batch is fixed: {shape_text(input_info.shape or ())}.",
            f"Give {rows - rows % size or size} samples, or export the network with a dynamic batch.",
        )
    return rows // size


def _check_input_arrays(part: DataPart, inputs: Sequence[TensorInfo]) -> None:
    for info in inputs:
        stored_array = part.arrays.get(info.name)
        if stored_array is None:
            near = difflib.get_close_matches(info.name, part.arrays, n=1)
            raise InputError(
                f"{part.source}: input '{info.name}' is missing",
                f"It has: {', '.join(part.arrays)}.",
                f"Rename '{near[0]}' to '{info.name}'." if near else "Name the arrays after the network's inputs: "
                f"{', '.join(network_input.name for network_input in inputs)}.",
            )
        if not is_castable(stored_array.dtype, info.dtype):
            raise InputError(
                f"{part.source}: input '{info.name}' is {stored_array.dtype}, the network takes {info.dtype}",
                "That cast could change the values.",
                f"Convert the array to {info.dtype}.",
            )
        if info.shape is None:
            continue
        if len(stored_array.shape) != len(info.shape):
            raise InputError(
                f"{part.source}: input '{info.name}' has {len(stored_array.shape)} dimensions, the network takes "
                f"{len(info.shape)}",
                f"The array is {shape_text(stored_array.shape)}, the network takes {shape_text(info.shape)}.",
                "The first axis of an array is samples: add it with array[None]."
                if len(stored_array.shape) == len(info.shape) - 1
                else "Reshape the array.",
            )
        for axis, (size, expected_size) in enumerate(zip(stored_array.shape, info.shape, strict=True)):
            if (axis or expected_size == 0) and isinstance(expected_size, int) and size != expected_size:
                raise InputError(
                    f"{part.source}: input '{info.name}' has size {size} in dimension {axis}, the network takes "
                    f"{expected_size}",
                    f"The array is {shape_text(stored_array.shape)}, the network takes {shape_text(info.shape)}.",
                    "Reshape or resize the array.",
                )


def iterate_feed_rows(layouts: Iterable[BatchLayout], batch_size: int, sample_limit: int | None) -> Iterator[FeedRows]:
    """The feeds of all parts, at most ``sample_limit`` samples; ``batch_size`` is the rows per feed where that is not
    fixed."""
    first_sample = 0
    for part_index, layout in enumerate(layouts):
        step = layout.rows_per_feed or batch_size
        for index, start in enumerate(range(0, layout.lead_rows, step)):
            if sample_limit is not None and first_sample >= sample_limit:
                return
            stop = min(start + step, layout.lead_rows)
            if layout.rows_per_feed is None and sample_limit is not None:
                stop = min(stop, start + sample_limit - first_sample)
            yield FeedRows(part_index, index, start, stop, first_sample)
            first_sample += stop - start


@dataclass
class StoredFeeds:
    """Feeds that are read from parts; the part that was read last stays open."""

    inputs: Sequence[TensorInfo]
    parts: list[DataPart]
    layouts: list[BatchLayout]
    feed_rows: list[FeedRows]
    _open_part: tuple[int, dict[str, np.ndarray]] | None = field(default=None, repr=False)

    @property
    def per_sample_array_names(self) -> frozenset[str]:
        names_by_layout = [
            {name
             for name, step in layout.rows_per_feed_by_array.items()
             if step in (None, layout.rows_per_feed)} | layout.broadcast_inputs
            for layout in self.layouts
        ]
        return frozenset(names_by_layout[0].intersection(*names_by_layout[1:])) if names_by_layout else frozenset()

    def count_samples_of_feed(self, feed_index: int) -> int:
        """Number of samples in a feed."""
        return self.feed_rows[feed_index].stop - self.feed_rows[feed_index].start

    def first_sample_index(self, feed_index: int) -> int:
        """Number of a feed's first sample, over all parts."""
        return self.feed_rows[feed_index].first_sample

    @property
    def total_sample_count(self) -> int:
        """Samples of all parts that were read."""
        return sum(layout.lead_rows for layout in self.layouts)

    def read_feed(self, feed_index: int) -> dict[str, np.ndarray]:
        """The inputs of a feed by name, in the types the network takes; errors as `Samples.read_feed`."""
        feed_rows = self.feed_rows[feed_index]
        source = self.parts[feed_rows.part_index].source
        broadcast = self.layouts[feed_rows.part_index].broadcast_inputs
        feed = {}
        for info in self.inputs:
            array = self._read_feed_rows(feed_rows, info.name)
            if info.name in broadcast:
                array = np.broadcast_to(array, (feed_rows.stop - feed_rows.start, *array.shape[1:]))
            feed[info.name] = cast_to_input_type(array, info, source, feed_rows.first_sample)
        return feed

    def read_labels(self, feed_index: int) -> dict[str, np.ndarray]:
        """The labels of a feed by name."""
        feed_rows = self.feed_rows[feed_index]
        names = set(self.parts[feed_rows.part_index].arrays) - {info.name for info in self.inputs}
        return {name: np.array(self._read_feed_rows(feed_rows, name), subok=False) for name in sorted(names)}

    def _read_feed_rows(self, feed_rows: FeedRows, array_name: str) -> np.ndarray:
        if self._open_part is None or self._open_part[0] != feed_rows.part_index:
            self._open_part = None
            self._open_part = (feed_rows.part_index, self.parts[feed_rows.part_index].load_arrays())
        array, steps = self._open_part[1][array_name], self.layouts[feed_rows.part_index].rows_per_feed_by_array
        if array_name not in steps:
            return array
        step = steps[array_name]
        return array[feed_rows.start:feed_rows.stop] if step is None else array[feed_rows.feed_index_in_part
                                                                                * step:(feed_rows.feed_index_in_part
                                                                                        + 1) * step]
