"""The division of data into feeds of one batch.

Data of every kind arrive as *parts*: an npz file, or one feed of a JSON file or a script. Each part is divided into
feeds of one batch by the same rule:

- The *lead* input is the first one, in the network's order, whose first dimension is static and whose array holds
  several batches. Failing that, it is the first input that has a dimension.
- The lead is divided into steps of the network's batch. If its first dimension is static, that is the batch, and the
  last feed may be smaller if it can be filled up (`trt_tui.core.data.batches`); if not, a remainder is an error. If the
  dimension is dynamic, the requested batch size is used, and the last feed may be smaller.
- Another input with a static first dimension is divided into as many feeds as the lead. It is repeated if its array is
  exactly one batch. Any other length is an error. With a remainder, both have the same batch and the same rows.
- Another input with a dynamic first dimension is divided like the lead if it has as many rows. If it has one row and
  shares the dimension's name with the lead, the row is broadcast to the rows of each feed. If it has several rows and
  shares the name, it should have the rows of the lead, and another number is an error. In all other cases the whole
  array is repeated.
- Arrays that are not inputs are labels. Labels with as many rows as the lead are divided with it; all others are passed
  whole.

An array is cast to the type of its input if numpy calls the cast safe (``uint8`` to ``float32``, ``int32`` to
``int64``). Casts between floating-point types are allowed too, and casts between integer types if the values fit. Other
casts are errors.

Copies of the last sample fill a feed up that has fewer samples than the fixed batch of a network, for an execution
only. Everywhere else such a feed has only the rows of its samples: inputs, labels and outputs. No count, error or
metric includes the copies.

Shapes of network inputs: the parser of ``--shapes``, and shapes in messages.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from trt_tui.core.data.tensor_files import DataPart, StoredArray
from trt_tui.core.runner import Dimension, TensorInfo
from trt_tui.errors import InputError
from trt_tui.formatting import counted_noun_text

MAX_DIMENSION_SIZE = (1 << 31) - 1
"""Maximum size of one dimension in ``--shapes``."""


@dataclass(frozen=True)
class ShapeRange:
    """The minimum, optimum and maximum shape of an input in an optimization profile."""

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]


_SHAPE_PATTERN = r"\d+(?:x\d+)*"
_SHAPE_RANGE = re.compile(
    rf"(?P<name>.+?):(?P<min>{_SHAPE_PATTERN}):(?P<opt>{_SHAPE_PATTERN}):(?P<max>{_SHAPE_PATTERN})"
)
_FIXED_SHAPE = re.compile(rf"(?P<name>.+):(?P<opt>{_SHAPE_PATTERN})")


def parse_shapes(shape_texts: Sequence[str], inputs: Sequence[TensorInfo]) -> dict[str, ShapeRange]:
    """Parses ``NAME:MIN:OPT:MAX`` or ``NAME:SHAPE`` with shapes such as ``1x3x224x224``. Names may contain colons.

    Raises:
        InputError: The text has another form, the input is unknown or repeated, or shapes do not fit the input or each
            other.
    """
    by_name = {info.name: info for info in inputs}
    ranges: dict[str, ShapeRange] = {}
    for text in shape_texts:
        matches = [match for match in (_SHAPE_RANGE.fullmatch(text), _FIXED_SHAPE.fullmatch(text)) if match]
        if not matches:
            raise InputError(
                f"Not a shape: {text}",
                "Shapes are given as NAME:MIN:OPT:MAX or NAME:SHAPE.",
                "For example: --shapes input:1x3x224x224:8x3x224x224:32x3x224x224",
            )
        match = next((match for match in matches if match["name"] in by_name), None)
        if match is None:
            raise unknown_input_error(matches[0]["name"], inputs)
        info = by_name[match["name"]]
        if info.name in ranges:
            raise InputError(f"Shapes of input '{info.name}' are given twice", next_step="Name them once.")
        min_shape, opt_shape, max_shape = (
            _parse_shape(match.groupdict().get(key) or match["opt"]) for key in ("min", "opt", "max")
        )
        for shape in (min_shape, opt_shape, max_shape):
            _check_shape(shape, info, text)
        for axis, (low, middle, high) in enumerate(zip(min_shape, opt_shape, max_shape, strict=True)):
            if not low <= middle <= high:
                raise InputError(
                    f"Shapes of input '{info.name}' are out of order in dimension {axis}: {low}, {middle}, {high}",
                    "MIN must not exceed OPT, nor OPT exceed MAX.",
                    f"Correct {text}.",
                )
        ranges[info.name] = ShapeRange(min_shape, opt_shape, max_shape)
    return {**ranges, **_infer_shape_ranges(ranges, inputs)}


def parse_additional_profiles(
    profile_texts: Sequence[str], inputs: Sequence[TensorInfo], first_profile: Mapping[str, ShapeRange]
) -> tuple[dict[str, ShapeRange], ...]:
    """Parses the optimization profiles after the first, each written like ``--shapes`` with commas between inputs.

    Args:
        first_profile: The first profile. Inputs that an additional profile does not name keep their shapes from it.

    Raises:
        InputError: The errors of `parse_shapes`.
    """
    return tuple({**first_profile, **parse_shapes(re.split(r"(?<=\d),", text), inputs)} for text in profile_texts)


def _infer_shape_ranges(known_ranges: Mapping[str, ShapeRange], inputs: Sequence[TensorInfo]) -> dict[str, ShapeRange]:
    """Infers the shape ranges of inputs whose dynamic dimensions all share their names with inputs that have a shape
    range."""
    sizes = {
        size: triple
        for info in inputs
        if (known := known_ranges.get(info.name)) is not None and info.shape is not None
        for size, *triple in zip(info.shape, known.min, known.opt, known.max, strict=True)
        if isinstance(size, str)
    }
    implied = {}
    for info in inputs:
        open_sizes = [size for size in info.shape or () if not isinstance(size, int)]
        if info.name not in known_ranges and open_sizes and all(size in sizes for size in open_sizes):
            triples = [(size, size, size) if isinstance(size, int) else sizes[str(size)] for size in info.shape or ()]
            implied[info.name] = ShapeRange(
                *(tuple(triple[shape_index] for triple in triples) for shape_index in range(3))
            )
    return implied


def _parse_shape(text: str) -> tuple[int, ...]:
    return tuple(MAX_DIMENSION_SIZE + 1 if len(size) > 18 else int(size) for size in text.split("x"))


def _check_shape(shape: tuple[int, ...], input_info: TensorInfo, text: str) -> None:
    fits = all(0 < size <= MAX_DIMENSION_SIZE for size in shape) and (
        input_info.shape is None
        or len(shape) == len(input_info.shape)
        and all(
            not isinstance(expected_size, int) or size == expected_size
            for size, expected_size in zip(shape, input_info.shape, strict=True)
        )
    )
    if not fits:
        raise InputError(
            f"Shape {shape_text(shape)} does not fit input '{input_info.name}'",
            (f"The network takes {shape_text(input_info.shape)}; sizes" if input_info.shape is not None else "Sizes")
            + f" are from 1 to {MAX_DIMENSION_SIZE}.",
            f"Correct {text}.",
        )


def first_dimension(input_info: TensorInfo) -> Dimension:
    """Returns the first dimension of an input; None if the input is a scalar or its shape is unknown."""
    return input_info.shape[0] if input_info.shape else None


def shape_text(shape: Sequence[Dimension]) -> str:
    """Returns a shape as text for messages, such as ``[1, 3, ?]``."""
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


def join_batches(name: str, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the arrays of all batches joined along the first axis. A scalar becomes one row.

    Raises:
        InputError: The arrays differ in another axis.
    """
    try:
        return np.concatenate([np.atleast_1d(array) for array in arrays])
    except ValueError:
        shapes = list(dict.fromkeys(shape_text(np.shape(array)) for array in arrays))
        raise InputError(
            f"The batches of {name} cannot be joined into one array",
            f"Their shapes differ: {', '.join(shapes[:3])}.",
            "Pad the samples to one shape, or judge by another value than the metric or the check command.",
        ) from None


def unknown_input_error(name: str, inputs: Sequence[TensorInfo]) -> InputError:
    """Returns the error for a name that is not an input of the network."""
    return InputError(
        f"The network has no input '{name}'",
        f"It has: {', '.join(info.name for info in inputs)}.",
        "Correct the name.",
    )


def is_float(dtype: np.dtype) -> bool:
    """Returns True if an element type is floating-point, including the types of ml_dtypes."""
    return dtype.kind == "f" or dtype.name.startswith(("bfloat16", "float8", "float4"))


def is_castable(source_type: np.dtype, target_type: np.dtype) -> bool:
    """Returns True if arrays of one type are accepted for an input of another type.

    Values are checked later, by `cast_to_input_type`.
    """
    if target_type.kind in "OUST":  # string tensors
        return source_type.kind in "US"
    both_float = is_float(source_type) and is_float(target_type)
    both_integer = source_type.kind in "iu" and target_type.kind in "iu"
    return both_float or both_integer or np.can_cast(source_type, target_type, "safe")


def cast_to_input_type(
    array: np.ndarray, input_info: TensorInfo, source_title: str, first_sample_index: int
) -> np.ndarray:
    """Returns a new contiguous copy of an array in the type of a network input.

    Raises:
        InputError: The array contains NaN, an infinity, or an integer outside the range of the type.
    """
    with np.errstate(over="ignore"):
        result = np.array(array, dtype=input_info.dtype, order="C", subok=False)
    is_invalid = None
    if is_float(input_info.dtype):
        is_invalid = ~np.isfinite(result)
    elif input_info.dtype.kind in "iu" and array.dtype != input_info.dtype:
        is_invalid = result != array
    if is_invalid is not None and is_invalid.any():
        position = tuple(int(i) for i in np.argwhere(is_invalid)[0])
        value = array[position]
        sample = first_sample_index + (position[0] if position else 0)
        finite = bool(np.isfinite(np.asarray(value, np.float64)))
        raise InputError(
            f"{source_title}: input '{input_info.name}' holds {value} at sample {sample}",
            f"{input_info.dtype} cannot hold it."
            if finite
            else "Errors cannot be measured on data that are not finite.",
            "Correct or remove that sample.",
        )
    return result


@dataclass(frozen=True)
class BatchPadding:
    """The padding that fills the last feed of a network with a fixed batch.

    Attributes:
        batch_size: Rows of a full feed.
        array_names: Names of the arrays with one row per sample.
    """

    batch_size: int
    array_names: frozenset[str]

    def pad_feed(
        self, feed: Mapping[str, np.ndarray], extra_names: Collection[str] = ()
    ) -> tuple[Mapping[str, np.ndarray], int | None]:
        """Returns a full feed, and the number of its samples without padding; None if the feed was full.

        Args:
            extra_names: Names of more inputs with one row per sample.
        """
        rows = next((len(array) for name, array in feed.items() if name in self.array_names and array.ndim), 0)
        if not 0 < rows < self.batch_size:
            return feed, None
        return {
            name: self.pad_rows(array)
            if array.ndim and len(array) == rows and (name in self.array_names or name in extra_names)
            else array
            for name, array in feed.items()
        }, rows

    def pad_rows(self, array: np.ndarray) -> np.ndarray:
        """Returns an array with its last row repeated up to a full batch."""
        missing = self.batch_size - len(array)
        return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)]) if missing > 0 else array

    def remove_padding(self, array: np.ndarray, sample_count: int) -> np.ndarray:
        """Returns the rows of the samples of an output. An output whose first axis is not the batch is unchanged."""
        is_batch = isinstance(array, np.ndarray) and array.ndim > 0 and len(array) == self.batch_size
        return array[:sample_count] if is_batch else array


DEFAULT_BATCH = 8
"""Maximum batch size of a dynamic network if no batch size is requested."""


def choose_default_batch_size(sample_count: int) -> int:
    """Returns the default batch size of a dynamic network: at most 8, and small enough for four feeds."""
    return min(DEFAULT_BATCH, max(1, sample_count // 4))


@dataclass(frozen=True)
class BatchLayout:
    """The division of the arrays in one data part (an npz file, or one feed of a script) into feeds.

    Attributes:
        lead_rows: Rows of the lead input's first axis; 1 if no input has a dimension.
        rows_per_feed: Rows per feed; None if the batch is dynamic.
        rows_per_feed_by_array: Rows per feed of each divided array; None if they are the rows of the lead.
        broadcast_inputs: Inputs with one row, which is broadcast to the rows of each feed.
    """

    lead_rows: int
    rows_per_feed: int | None
    rows_per_feed_by_array: dict[str, int | None]
    broadcast_inputs: frozenset[str]

    @property
    def has_incomplete_last_batch(self) -> bool:
        """True if the last feed has fewer rows than the fixed batch of the network."""
        return self.rows_per_feed is not None and bool(self.lead_rows % self.rows_per_feed)


@dataclass(frozen=True)
class SampleName:
    """The name of a sample for users.

    Attributes:
        index: The index of the sample in its file, from 0.
        file: The name of the file; "" unless the data are several files.
    """

    index: int
    file: str = ""

    def __str__(self) -> str:
        return f"{self.file} #{self.index}".lstrip()

    @classmethod
    def from_text(cls, text: str) -> SampleName | None:
        """Reads a name as ``__str__`` writes it, or an index alone; None if the text is neither."""
        file, _, index = text.rpartition("#")
        return cls(int(index), file.strip()) if index.strip().isdecimal() else None


@dataclass(frozen=True)
class FeedRows:
    """The rows of one feed within its data part: ``start`` to ``stop`` along the lead input.

    Attributes:
        part_index: Number of the part.
        feed_index_in_part: Number of the feed within its part.
        first_sample: Number of the feed's first sample over all parts.
    """

    part_index: int
    feed_index_in_part: int
    start: int
    stop: int
    first_sample: int


def _row_count_text(row_count: int, batch_count: int | None) -> str:
    return counted_noun_text(row_count, "row") + (
        f" ({batch_count} batch{'es' * (batch_count > 1)} of {row_count // batch_count})" if batch_count else ""
    )


def find_batch_layout(part: DataPart, inputs: Sequence[TensorInfo], *, allows_remainder: bool = False) -> BatchLayout:
    """Checks the arrays of a data part against the network's inputs and determines how they are divided into feeds.

    Args:
        allows_remainder: True if the last feed of a fixed batch may be smaller.

    Raises:
        InputError: The arrays do not fit the inputs or each other.
    """
    _check_input_arrays(part, inputs)
    arrays_by_name = part.arrays
    batched = [info for info in inputs if arrays_by_name[info.name].shape]
    batches = {
        info.name: _count_static_batches(info, arrays_by_name[info.name], part.source, allows_remainder)
        for info in batched
    }
    filled = [info for info in batched if first_dimension(info) != 0]
    lead = next((info for info in filled if (batches[info.name] or 0) > 1), filled[0] if filled else None)
    if lead is None:
        return BatchLayout(1, 1, {}, frozenset())
    lead_size = first_dimension(lead)
    rows = arrays_by_name[lead.name].shape[0]
    if rows == 0:
        raise InputError(
            f"{part.source}: input '{lead.name}' has no samples", "Its first axis is 0.", "Give at least one sample."
        )
    steps: dict[str, int | None] = {lead.name: None}
    broadcast = set()
    for info in batched:
        if info is lead:
            continue
        name, own_rows, count = info.name, arrays_by_name[info.name].shape[0], batches[info.name]
        if count is not None:
            own_size = first_dimension(info)
            assert isinstance(own_size, int), "else the batches are not counted"
            has_incomplete_last_batch = (
                bool(own_rows % own_size) or isinstance(lead_size, int) and bool(rows % lead_size)
            )
            if count == 1 and own_rows == own_size:
                continue
            if count != batches[lead.name] or has_incomplete_last_batch and (own_rows, own_size) != (rows, lead_size):
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


def incomplete_batch_error(input_info: TensorInfo, row_count: int, source_title: str) -> InputError:
    """Returns the error for an input whose rows are not a multiple of the network's fixed batch."""
    size = first_dimension(input_info)
    assert isinstance(size, int), "the batch is fixed"
    return InputError(
        f"{source_title}: input '{input_info.name}' has {counted_noun_text(row_count, 'sample')}, "
        "not a multiple of the network's batch of "
        f"{size}",
        f"The network's batch is fixed: {shape_text(input_info.shape or ())}.",
        f"Give {row_count - row_count % size or size} samples, or export the network with a dynamic batch.",
    )


def _count_static_batches(
    input_info: TensorInfo, stored_array: StoredArray, source_title: str, allows_remainder: bool
) -> int | None:
    """Counts the batches in the array of an input with a static first dimension; None for any other input."""
    size = first_dimension(input_info)
    if not isinstance(size, int) or size == 0:
        return None
    rows = stored_array.shape[0]
    if rows % size and not allows_remainder:
        raise incomplete_batch_error(input_info, rows, source_title)
    return -(-rows // size)


def _check_input_arrays(part: DataPart, inputs: Sequence[TensorInfo]) -> None:
    for info in inputs:
        stored_array = part.arrays.get(info.name)
        if stored_array is None:
            near = difflib.get_close_matches(info.name, part.arrays, n=1)
            raise InputError(
                f"{part.source}: input '{info.name}' is missing",
                f"It has: {', '.join(part.arrays)}.",
                f"Rename '{near[0]}' to '{info.name}'."
                if near
                else "Name the arrays after the network's inputs: "
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
                f"{part.source}: input '{info.name}' has {counted_noun_text(len(stored_array.shape), 'dimension')}, "
                "the network takes "
                f"{len(info.shape)}",
                f"The array is {shape_text(stored_array.shape)}, the network takes {shape_text(info.shape)}.",
                "The first axis of an array is samples: add it with array[None]."
                if len(stored_array.shape) == len(info.shape) - 1
                else "Reshape the array; --batch sets how many rows the network reads at once.",
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
    """Yields the rows of each feed over all data parts, up to ``sample_limit`` samples.

    ``batch_size`` is the number of rows per feed of a part with a dynamic batch.
    """
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
    """A source of feeds that reads them from data parts. The arrays of the part that was read last stay loaded."""

    inputs: Sequence[TensorInfo]
    parts: list[DataPart]
    layouts: list[BatchLayout]
    feed_rows: list[FeedRows]
    _open_part: tuple[int, dict[str, np.ndarray]] | None = field(default=None, repr=False)

    @cached_property
    def per_sample_array_names(self) -> frozenset[str]:
        """Names of the arrays with one row per sample, as in `Samples.per_sample_array_names`."""
        names_by_layout = [
            {name for name, step in layout.rows_per_feed_by_array.items() if step in (None, layout.rows_per_feed)}
            | layout.broadcast_inputs
            for layout in self.layouts
        ]
        return frozenset(names_by_layout[0].intersection(*names_by_layout[1:])) if names_by_layout else frozenset()

    def count_samples_of_feed(self, feed_index: int) -> int:
        return self.feed_rows[feed_index].stop - self.feed_rows[feed_index].start

    def first_sample_index(self, feed_index: int) -> int:
        """Returns the number of a feed's first sample over all data that were read."""
        return self.feed_rows[feed_index].first_sample

    def sample_name(self, feed_index: int, row: int) -> SampleName:
        feed_rows = self.feed_rows[feed_index]
        file = self.parts[feed_rows.part_index].file
        return SampleName(feed_rows.first_sample - self._first_samples_by_file[file] + row, file)

    @cached_property
    def _first_samples_by_file(self) -> dict[str, int]:
        """The number of the first sample of each file over all parts."""
        return {self.parts[rows.part_index].file: rows.first_sample for rows in reversed(self.feed_rows)}

    @property
    def total_sample_count(self) -> int:
        """Number of samples in all data parts, including samples beyond the limit."""
        return sum(layout.lead_rows for layout in self.layouts)

    def read_feed(self, feed_index: int) -> dict[str, np.ndarray]:
        """Reads the inputs of a feed by name, in the types of the network's inputs. Raises the errors of
        `Samples.read_feed`."""
        feed_rows = self.feed_rows[feed_index]
        source = self.parts[feed_rows.part_index].source
        broadcast = self.layouts[feed_rows.part_index].broadcast_inputs
        feed = {}
        for info in self.inputs:
            array = self._read_feed_rows(feed_rows, info.name)
            if info.name in broadcast:
                array = np.broadcast_to(array, (feed_rows.stop - feed_rows.start, *array.shape[1:]))
            feed[info.name] = cast_to_input_type(array, info, source, self.sample_name(feed_index, 0).index)
        return feed

    def read_labels(self, feed_index: int) -> dict[str, np.ndarray]:
        """Reads the labels of a feed, as in `Samples.read_labels`."""
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
        return (
            array[feed_rows.start : feed_rows.stop]
            if step is None
            else array[feed_rows.feed_index_in_part * step : (feed_rows.feed_index_in_part + 1) * step]
        )
