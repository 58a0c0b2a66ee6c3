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

from trt_tui.core.data.element_types import cast, castable
from trt_tui.core.data.shapes import first_dimension, shape_text
from trt_tui.core.data.stored import Member, Part
from trt_tui.core.runner import TensorInfo
from trt_tui.errors import InputError
from trt_tui.words import plural

DEFAULT_BATCH = 8
"""Largest batch that a dynamic network is given when none is asked for."""


def default_batch(total: int) -> int:
    """The batch of a dynamic network for so many samples: few enough that there are four feeds."""
    return min(DEFAULT_BATCH, max(1, total // 4))


@dataclass(frozen=True)
class Layout:
    """How the arrays of one part are cut.

    Attributes:
        rows: Rows of the lead's first axis; 1 where no input has a dimension.
        step: Rows per feed; None where the batch is dynamic.
        steps: Of every cut array the rows per feed; None where they are the lead's.
        broadcast: Inputs of one row that are broadcast to the rows of each feed.
    """

    rows: int
    step: int | None
    steps: dict[str, int | None]
    broadcast: frozenset[str]


@dataclass(frozen=True)
class FeedRows:
    """One feed: rows ``start`` to ``stop`` of the lead of a part.

    Attributes:
        part: Number of the part.
        index: Number of the feed within its part.
        first_sample: Number of its first sample over all parts.
    """

    part: int
    index: int
    start: int
    stop: int
    first_sample: int


def _cut_words(rows: int, batches: int | None) -> str:
    return plural(rows, "row") + (f" ({batches} batch{'es' * (batches > 1)} of {rows // batches})" if batches else "")


def layout_of(part: Part, inputs: Sequence[TensorInfo]) -> Layout:
    """How a part is cut, whose inputs are checked here, by the rule of this module's docstring.

    Raises:
        InputError: they do not fit.
    """
    _check_inputs(part, inputs)
    members = part.members
    batched = [info for info in inputs if members[info.name].shape]
    batches = {info.name: _static_batches(info, members[info.name], part.source) for info in batched}
    filled = [info for info in batched if first_dimension(info) != 0]
    lead = next((info for info in filled if (batches[info.name] or 0) > 1), filled[0] if filled else None)
    if lead is None:
        return Layout(1, 1, {}, frozenset())
    lead_size = first_dimension(lead)
    rows = members[lead.name].shape[0]
    if rows == 0:
        raise InputError(f"{part.source}: input '{lead.name}' has no samples", "Its first axis is 0.",
                         "Give at least one sample.")
    steps: dict[str, int | None] = {lead.name: None}
    broadcast = set()
    for info in batched:
        if info is lead:
            continue
        name, own_rows, count = info.name, members[info.name].shape[0], batches[info.name]
        if count is not None:
            if count == 1:
                continue
            own_size = first_dimension(info)
            if count != batches[lead.name] or not isinstance(own_size, int):
                raise InputError(
                    f"{part.source}: inputs '{lead.name}' and '{name}' disagree about the number of samples",
                    f"'{lead.name}' has {_cut_words(rows, batches[lead.name])}, "
                    f"'{name}' {_cut_words(own_rows, count)}.",
                    "Give the same number of samples for both, or one batch of the one that is to be repeated.",
                )
            steps[name] = own_size
        elif own_rows == rows:
            steps[name] = None
        elif isinstance(lead_size, str) and first_dimension(info) == lead_size:
            if own_rows != 1:
                raise InputError(
                    f"{part.source}: inputs '{lead.name}' and '{name}' disagree about the number of samples",
                    f"Both begin with the dimension {lead_size}, but have {rows} and {own_rows} rows.",
                    "Give the same number of samples for both.",
                )
            broadcast.add(name)
    labels = {name for name in members if name not in {info.name for info in inputs}}
    steps.update({name: None for name in labels if members[name].shape[:1] == (rows,)})
    return Layout(rows, lead_size if isinstance(lead_size, int) else None, steps, frozenset(broadcast))


def _static_batches(info: TensorInfo, member: Member, source: str) -> int | None:
    """How many batches the array of an input with a static first dimension holds; None for any other input."""
    size = first_dimension(info)
    if not isinstance(size, int) or size == 0:
        return None
    rows = member.shape[0]
    if rows % size:
        raise InputError(
            f"{source}: input '{info.name}' has {rows} samples, no multiple of the network's batch of {size}",
            f"The network's batch is fixed: {shape_text(info.shape or ())}.",
            f"Give {rows - rows % size or size} samples, or export the network with a dynamic batch.",
        )
    return rows // size


def _check_inputs(part: Part, inputs: Sequence[TensorInfo]) -> None:
    for info in inputs:
        member = part.members.get(info.name)
        if member is None:
            near = difflib.get_close_matches(info.name, part.members, n=1)
            raise InputError(
                f"{part.source}: input '{info.name}' is missing",
                f"It has: {', '.join(part.members)}.",
                f"Rename '{near[0]}' to '{info.name}'." if near else "Name the arrays after the network's inputs: "
                f"{', '.join(each.name for each in inputs)}.",
            )
        if not castable(member.dtype, info.dtype):
            raise InputError(
                f"{part.source}: input '{info.name}' is {member.dtype}, the network takes {info.dtype}",
                "That cast could change the values.",
                f"Convert the array to {info.dtype}.",
            )
        if info.shape is None:
            continue
        if len(member.shape) != len(info.shape):
            raise InputError(
                f"{part.source}: input '{info.name}' has {len(member.shape)} dimensions, the network takes "
                f"{len(info.shape)}",
                f"The array is {shape_text(member.shape)}, the network takes {shape_text(info.shape)}.",
                "The first axis of an array is samples: add it with array[None]."
                if len(member.shape) == len(info.shape) - 1
                else "Reshape the array.",
            )
        for axis, (size, wanted) in enumerate(zip(member.shape, info.shape, strict=True)):
            if (axis or wanted == 0) and isinstance(wanted, int) and size != wanted:
                raise InputError(
                    f"{part.source}: input '{info.name}' has size {size} in dimension {axis}, the network takes "
                    f"{wanted}",
                    f"The array is {shape_text(member.shape)}, the network takes {shape_text(info.shape)}.",
                    "Reshape or resize the array.",
                )


def cuts(layouts: Iterable[Layout], batch: int, limit: int | None) -> Iterator[FeedRows]:
    """The feeds of all parts, at most ``limit`` samples; ``batch`` is the rows per feed where that is not fixed."""
    first_sample = 0
    for number, layout in enumerate(layouts):
        step = layout.step or batch
        for index, start in enumerate(range(0, layout.rows, step)):
            if limit is not None and first_sample >= limit:
                return
            stop = min(start + step, layout.rows)
            if layout.step is None and limit is not None:
                stop = min(stop, start + limit - first_sample)
            yield FeedRows(number, index, start, stop, first_sample)
            first_sample += stop - start


@dataclass
class StoredFeeds:
    """Feeds that are read from parts; the part that was read last stays open."""

    inputs: Sequence[TensorInfo]
    parts: list[Part]
    layouts: list[Layout]
    cuts: list[FeedRows]
    _open: tuple[int, dict[str, np.ndarray]] | None = field(default=None, repr=False)

    @property
    def by_sample(self) -> frozenset[str]:
        """As `trt_tui.core.data.samples.Samples.by_sample`."""
        cut = [{name for name, step in layout.steps.items() if step in (None, layout.step)} | layout.broadcast
               for layout in self.layouts]
        return frozenset(cut[0].intersection(*cut[1:])) if cut else frozenset()

    def rows(self, index: int) -> int:
        """Number of samples in a feed."""
        return self.cuts[index].stop - self.cuts[index].start

    def first(self, index: int) -> int:
        """Number of a feed's first sample, over all parts."""
        return self.cuts[index].first_sample

    @property
    def total(self) -> int:
        """Samples of all parts that were read."""
        return sum(layout.rows for layout in self.layouts)

    def feed(self, index: int) -> dict[str, np.ndarray]:
        """The inputs of a feed by name, in the types the network takes; errors as `Samples.feed`."""
        cut = self.cuts[index]
        source = self.parts[cut.part].source
        broadcast = self.layouts[cut.part].broadcast
        feed = {}
        for info in self.inputs:
            array = self._rows_of(cut, info.name)
            if info.name in broadcast:
                array = np.broadcast_to(array, (cut.stop - cut.start, *array.shape[1:]))
            feed[info.name] = cast(array, info, source, cut.first_sample)
        return feed

    def labels(self, index: int) -> dict[str, np.ndarray]:
        """The labels of a feed by name."""
        cut = self.cuts[index]
        names = set(self.parts[cut.part].members) - {info.name for info in self.inputs}
        return {name: np.array(self._rows_of(cut, name), subok=False) for name in sorted(names)}

    def _rows_of(self, cut: FeedRows, name: str) -> np.ndarray:
        if self._open is None or self._open[0] != cut.part:
            self._open = None
            self._open = (cut.part, self.parts[cut.part].load())
        array, steps = self._open[1][name], self.layouts[cut.part].steps
        if name not in steps:
            return array
        step = steps[name]
        return array[cut.start : cut.stop] if step is None else array[cut.index * step : (cut.index + 1) * step]
