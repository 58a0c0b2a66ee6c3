"""Samples: where a network's input data and labels come from, and how they are cut into feeds.

Data are an ``.npz``, a folder of them, a Polygraphy inputs JSON, a script with ``load_data()``, or seeded random
inputs. Whatever the kind, they arrive as *parts*: an npz file, or one feed of a JSON or script. Each part is cut into
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

Nothing is held in memory but the feed asked for, see `trt_tui.core.data.stored`: the feeds of JSON files and scripts
are kept in an unnamed temporary file.

Element types: an array is cast to its input's type where numpy calls that safe (``uint8`` to ``float32``, ``int32`` to
``int64``), between floating-point types, and between integer types if the values fit. Other casts are errors.
"""

from __future__ import annotations

import difflib
import hashlib
import math
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from trt_tui.core.data.inputs_json import polygraphy_feeds
from trt_tui.core.data.stored import KINDS, Member, Part, Spool, npz_part, reading, spooled_part
from trt_tui.core.data.userscript import UserFunction, split_spec
from trt_tui.core.runner import Dimension, TensorInfo
from trt_tui.errors import InputError
from trt_tui.files.reading import regular

DEFAULT_BATCH = 8
"""Largest batch that a dynamic network is given when none is asked for."""
RANDOM_SAMPLES = 32
"""Least number of random samples made when no number is asked for."""
MAX_SCRIPT_FEEDS = 1024
"""Most feeds taken from a script when no number of samples is asked for."""
RANDOM_WARNING = "Random inputs: the figures say nothing about accuracy on real data"
MOST_FEEDS = 1 << 22
"""Most feeds that data may be cut into."""
LARGEST_SIZE = (1 << 31) - 1
"""Largest size of one dimension that ``--shapes`` takes."""


# ------------------------------------------------------------------------------------------------------------- parts


def _parts(spec: str, limit: int | None, warnings: list[str]) -> Iterator[Part]:
    """The parts of a data spec, read as they are asked for; may be endless for a script with a limit."""
    script = split_spec(spec)
    if script is not None and not Path(spec).is_dir():
        yield from _script_parts(UserFunction(script[0], script[1] or "load_data"), limit, warnings)
        return
    path = Path(spec)
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in (".npz", ".json"))
        if not files:
            raise InputError(f"Folder {path} holds no .npz file", next_step=f"Give {KINDS}.")
        for file in files:
            yield from _file_parts(file, f"{path.name}/{file.name}")
    elif path.exists():
        yield from _file_parts(path, path.name)
    else:
        raise InputError(f"Data not found: {spec}", next_step=f"Give {KINDS}.")


def _file_parts(path: Path, source: str) -> Iterator[Part]:
    with reading(source):
        empty = regular(path).st_size == 0
        archive = zipfile.is_zipfile(path)
    if empty:
        raise InputError(f"{source} is empty", next_step=f"Give {KINDS}.")
    if archive or path.suffix == ".npz":
        yield npz_part(path, source)
    elif path.suffix == ".json":
        spool = Spool()
        for index, feed in enumerate(polygraphy_feeds(path, source)):
            yield spooled_part(feed, f"{source}, feed {index}", spool)
    else:
        hint = "A single .npy has no input name: save it with numpy.savez. " if path.suffix == ".npy" else ""
        raise InputError(f"{source} is no data file that can be read", next_step=f"{hint}Give {KINDS}.")


def _script_parts(function: UserFunction, limit: int | None, warnings: list[str]) -> Iterator[Part]:
    spool = Spool()
    feeds = function.iterate()
    for index, feed in enumerate(feeds):
        if limit is None and index == MAX_SCRIPT_FEEDS:
            warnings.append(f"{function} gave over {MAX_SCRIPT_FEEDS} feeds; the rest is not used")
            return
        yield spooled_part(feed, f"{function}, feed {index}", spool)


# -------------------------------------------------------------------------------------------------- cutting of parts


@dataclass(frozen=True)
class _Layout:
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
class _Cut:
    """One feed: rows ``start`` to ``stop`` of the lead of a part."""

    part: int
    index: int
    start: int
    stop: int
    first_sample: int


def _first_dimension(info: TensorInfo) -> Dimension:
    return info.shape[0] if info.shape else None


def _static_batches(info: TensorInfo, member: Member, source: str) -> int | None:
    """How many batches the array of an input with a static first dimension holds; None for any other input."""
    size = _first_dimension(info)
    if not isinstance(size, int) or size == 0:
        return None
    rows = member.shape[0]
    if rows % size:
        raise InputError(
            f"{source}: input '{info.name}' has {rows} samples, no whole number of the network's batches of {size}",
            f"The network's batch is fixed: {_shape_text(info.shape)}.",
            f"Give {rows - rows % size or size} samples, or export the network with a dynamic batch.",
        )
    return rows // size


def _layout(part: Part, inputs: Sequence[TensorInfo]) -> _Layout:
    """Checks the inputs of a part and decides how it is cut, by the rule of this module's docstring."""
    _check_inputs(part, inputs)
    members = part.members
    batched = [info for info in inputs if members[info.name].shape]
    batches = {info.name: _static_batches(info, members[info.name], part.source) for info in batched}
    filled = [info for info in batched if _first_dimension(info) != 0]
    lead = next((info for info in filled if (batches[info.name] or 0) > 1), filled[0] if filled else None)
    if lead is None:
        return _Layout(1, 1, {}, frozenset())
    lead_size = _first_dimension(lead)
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
            if count != batches[lead.name]:
                raise InputError(
                    f"{part.source}: inputs '{lead.name}' and '{name}' disagree about the number of samples",
                    f"'{lead.name}' has {rows} rows, '{name}' has {own_rows}: {count} batches of "
                    f"{_first_dimension(info)}.",
                    "Give the same number of samples for both, or one batch of the one that is to be repeated.",
                )
            steps[name] = _first_dimension(info)
        elif own_rows == rows:
            steps[name] = None
        elif isinstance(lead_size, str) and _first_dimension(info) == lead_size:
            if own_rows != 1:
                raise InputError(
                    f"{part.source}: inputs '{lead.name}' and '{name}' disagree about the number of samples",
                    f"Both begin with the dimension {lead_size}, but have {rows} and {own_rows} rows.",
                    "Give the same number of samples for both.",
                )
            broadcast.add(name)
    labels = {name for name in members if name not in {info.name for info in inputs}}
    steps.update({name: None for name in labels if members[name].shape[:1] == (rows,)})
    return _Layout(rows, lead_size if isinstance(lead_size, int) else None, steps, frozenset(broadcast))


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
        if not _castable(member.dtype, info.dtype):
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
                f"The array is {_shape_text(member.shape)}, the network takes {_shape_text(info.shape)}.",
                "The first axis of an array is samples: add it with array[None]."
                if len(member.shape) == len(info.shape) - 1
                else "Reshape the array.",
            )
        for axis, (size, wanted) in enumerate(zip(member.shape, info.shape, strict=True)):
            if (axis or wanted == 0) and isinstance(wanted, int) and size != wanted:
                raise InputError(
                    f"{part.source}: input '{info.name}' has size {size} in dimension {axis}, the network takes "
                    f"{wanted}",
                    f"The array is {_shape_text(member.shape)}, the network takes {_shape_text(info.shape)}.",
                    "Reshape or resize the array.",
                )


def _shape_text(shape: Sequence[Dimension]) -> str:
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


def _is_float(dtype: np.dtype) -> bool:
    return dtype.kind == "f" or dtype.name.startswith(("bfloat16", "float8", "float4"))


def _castable(source: np.dtype, target: np.dtype) -> bool:
    if target.kind in "OUST":  # string tensors
        return source.kind in "US"
    both_float = _is_float(source) and _is_float(target)
    both_integer = source.kind in "iu" and target.kind in "iu"
    return both_float or both_integer or np.can_cast(source, target, "safe")


def _cast(array: np.ndarray, info: TensorInfo, source: str, first_sample: int) -> np.ndarray:
    """A fresh contiguous array of the input's type.

    Raises:
        InputError: the array holds NaN or an infinity, or an integer that the type cannot hold.
    """
    with np.errstate(over="ignore"):
        result = np.array(array, dtype=info.dtype, order="C", subok=False)
    bad = None
    if _is_float(info.dtype):
        bad = ~np.isfinite(result)
    elif info.dtype.kind in "iu" and array.dtype != info.dtype:
        bad = result != array
    if bad is not None and bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        value = array[where]
        sample = first_sample + (where[0] if where else 0)
        finite = bool(np.isfinite(np.asarray(value, np.float64)))
        raise InputError(
            f"{source}: input '{info.name}' holds {value} at sample {sample}",
            f"{info.dtype} cannot hold it." if finite else "Errors cannot be measured on data that are not finite.",
            "Correct or remove that sample.",
        )
    return result


# ---------------------------------------------------------------------------------------------------------- readers


class _Reader(Protocol):
    """Makes feeds by number."""

    def rows(self, index: int) -> int: ...

    def feed(self, index: int) -> dict[str, np.ndarray]: ...

    def labels(self, index: int) -> dict[str, np.ndarray]: ...


@dataclass
class _StoredReader:
    inputs: Sequence[TensorInfo]
    parts: list[Part]
    layouts: list[_Layout]
    cuts: list[_Cut]
    _open: tuple[int, dict[str, np.ndarray]] | None = field(default=None, repr=False)

    def rows(self, index: int) -> int:
        return self.cuts[index].stop - self.cuts[index].start

    def feed(self, index: int) -> dict[str, np.ndarray]:
        cut = self.cuts[index]
        source = self.parts[cut.part].source
        broadcast = self.layouts[cut.part].broadcast
        feed = {}
        for info in self.inputs:
            array = self._rows_of(cut, info.name)
            if info.name in broadcast:
                array = np.broadcast_to(array, (cut.stop - cut.start, *array.shape[1:]))
            feed[info.name] = _cast(array, info, source, cut.first_sample)
        return feed

    def labels(self, index: int) -> dict[str, np.ndarray]:
        cut = self.cuts[index]
        names = set(self.parts[cut.part].members) - {info.name for info in self.inputs}
        return {name: np.array(self._rows_of(cut, name), subok=False) for name in sorted(names)}

    def _rows_of(self, cut: _Cut, name: str) -> np.ndarray:
        if self._open is None or self._open[0] != cut.part:
            self._open = None
            self._open = (cut.part, self.parts[cut.part].load())
        array, steps = self._open[1][name], self.layouts[cut.part].steps
        if name not in steps:
            return array
        step = steps[name]
        return array[cut.start : cut.stop] if step is None else array[cut.index * step : (cut.index + 1) * step]


@dataclass(frozen=True)
class _RandomReader:
    """Seeded random inputs, made anew for each feed.

    Floats are N(0, 1). Inputs whose name contains ``mask`` are ones, ``position`` counts along the last axis, and
    ``type`` or ``segment`` draws from 0 and 1. Other integers draw from 0 to 99 if the name contains ``id`` or
    ``token``, from 0 to 255 for uint8, else from 0 to 7; booleans are true.
    """

    inputs: Sequence[TensorInfo]
    shapes: Mapping[str, tuple[int, ...]]
    cut: frozenset[str]
    sizes: tuple[int, ...]
    seed: int

    def rows(self, index: int) -> int:
        return self.sizes[index]

    def feed(self, index: int) -> dict[str, np.ndarray]:
        feed = {}
        for info in self.inputs:
            shape = self.shapes[info.name]
            if info.name in self.cut:
                shape = (self.sizes[index], *shape[1:])
            rng = np.random.default_rng([self.seed, index, zlib.crc32(info.name.encode())])
            try:
                feed[info.name] = _random_array(rng, info.name.lower(), info.dtype, shape)
            except (MemoryError, ValueError, OverflowError) as error:
                raise InputError(f"Random inputs of shape {_shape_text(shape)} do not fit in memory",
                                 f"Input '{info.name}': {error}", "Use a smaller --batch or --shapes.") from None
        return feed

    def labels(self, index: int) -> dict[str, np.ndarray]:
        return {}


def _random_array(rng: np.random.Generator, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    if dtype.kind == "b" or "mask" in name:
        return np.ones(shape, dtype)
    if _is_float(dtype):
        return rng.standard_normal(shape, np.float32).astype(dtype)
    if "position" in name and shape:
        return np.broadcast_to(np.arange(shape[-1]), shape).astype(dtype)
    if "type" in name or "segment" in name:
        values = 2
    elif "id" in name or "token" in name:
        values = 100
    else:
        values = 256 if dtype == np.uint8 else 8
    return rng.integers(0, values, shape).astype(dtype)


# ---------------------------------------------------------------------------------------------------------- Samples


class Samples:
    """Feeds by number: each a dictionary of the network's inputs, one batch each, with labels where there are any.

    Only the feed asked for is in memory. Not for use from several threads at once.

    Attributes:
        source: What to show: ``samples.npz``, ``seeded random inputs``.
        batch: Rows of the lead input in a full feed.
        random: Whether the inputs are random.
        label_names: Names of the labels, sorted.
        warnings: What the user is to know about these data, for as long as they are used.
    """

    def __init__(
        self,
        reader: _Reader,
        indices: Sequence[int],
        *,
        source: str,
        batch: int,
        random: bool = False,
        label_names: Sequence[str] = (),
        warnings: Sequence[str] = (),
    ) -> None:
        self._reader = reader
        self._indices = tuple(indices)
        self._digest: str | None = None
        self.source = source
        self.batch = batch
        self.random = random
        self.label_names = tuple(label_names)
        self.warnings = tuple(warnings)

    def __len__(self) -> int:
        """Number of feeds."""
        return len(self._indices)

    @property
    def count(self) -> int:
        """Number of samples: rows of the lead input over all feeds."""
        return sum(self._reader.rows(index) for index in self._indices)

    @property
    def has_labels(self) -> bool:
        return bool(self.label_names)

    def rows(self, index: int) -> int:
        """Number of samples in a feed."""
        return self._reader.rows(self._indices[index])

    def feed(self, index: int) -> dict[str, np.ndarray]:
        """The inputs of a feed by name, in the types the network takes.

        Raises:
            InputError: the data cannot be read any more, or hold NaN or an infinity; names array and sample.
        """
        return self._reader.feed(self._indices[index])

    def feeds(self, indices: Sequence[int] | None = None) -> Iterator[dict[str, np.ndarray]]:
        """The feeds of the given numbers (all by default), one at a time. Raises as `feed`."""
        return (self.feed(index) for index in (range(len(self)) if indices is None else indices))

    def labels(self, index: int) -> dict[str, np.ndarray]:
        """The labels of a feed by name: the same rows, or the whole array where its rows are not the samples'."""
        return self._reader.labels(self._indices[index])

    def take(self, indices: Sequence[int]) -> Samples:
        """The given feeds as samples of their own; reads the same data."""
        return Samples(
            self._reader,
            [self._indices[index] for index in indices],
            source=self.source,
            batch=self.batch,
            random=self.random,
            label_names=self.label_names,
            warnings=self.warnings,
        )

    def sha256(self) -> str:
        """Hash of the input values in their order, as the network gets them; labels are left out.

        The same rows cut into other batches have the same hash, unless an array is repeated for every batch. Reads all
        data once. Raises as `feed`.
        """
        if self._digest is None:
            hashes: dict[str, tuple[tuple[int, ...], Any]] = {}
            for feed in self.feeds():
                for name, array in feed.items():
                    kind = array.shape[1:]
                    known, digest = hashes.get(name, (None, hashlib.sha256()))
                    if known != kind:
                        digest.update(f"{array.dtype}{kind}".encode())
                    digest.update(array.reshape(-1).view(np.uint8) if array.dtype.kind != "O" else str(array).encode())
                    hashes[name] = (kind, digest)
            total = hashlib.sha256()
            for name, (_, digest) in sorted(hashes.items()):
                total.update(name.encode() + b"\0" + digest.digest())
            self._digest = total.hexdigest()
        return self._digest


def load_samples(
    spec: str | Path | None,
    inputs: Sequence[TensorInfo],
    *,
    batch: int | None = None,
    limit: int | None = None,
    seed: int = 0,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Samples:
    """Opens data for a network.

    Args:
        spec: An ``.npz``, a folder of ``.npz`` (or of Polygraphy ``.json``), a Polygraphy inputs ``.json``,
            ``FILE.py`` with ``load_data()``, or ``FILE.py:FUNCTION``; None for seeded random inputs. A script's
            function returns or yields dictionaries of arrays; it may yield for ever.
        inputs: The network's inputs.
        batch: Batch of a network whose batch is dynamic. By default that of ``shapes``, else at most `DEFAULT_BATCH`
            and few enough that there are four feeds.
        limit: Most samples to use; rounded up to a whole batch where the network's batch is static.
        seed: Seed of random inputs.
        shapes: Concrete shapes by input name. Dynamic dimensions of random inputs take their sizes from here, inputs
            that share a dimension's name included.

    Raises:
        InputError: the data cannot be read or do not fit the inputs. Types and shapes of all data are checked here,
            values (NaN, infinities) of a feed when it is read; the first feed is read here.
    """
    if not inputs:
        raise InputError("The network has no inputs", "There is nothing to feed.", "Give a network with inputs.")
    for name, value in (("batch size", batch), ("number of samples", limit)):
        if value is not None and value < 1:
            raise InputError(f"The {name} must be at least 1, not {value}")
    if seed < 0:
        raise InputError(f"The seed must not be negative: {seed}", next_step="Give 0 or more with --seed.")
    shapes = dict(shapes or {})
    for name in shapes:
        if name not in {info.name for info in inputs}:
            raise _unknown_input(name, inputs)
    samples = (
        _random_samples(inputs, batch, limit, seed, shapes)
        if spec is None
        else _stored_samples(str(spec), inputs, batch, limit, shapes)
    )
    samples.feed(0)
    return samples


def _default_batch(total: int) -> int:
    return min(DEFAULT_BATCH, max(1, total // 4))


def _stored_samples(
    spec: str,
    inputs: Sequence[TensorInfo],
    batch: int | None,
    limit: int | None,
    shapes: Mapping[str, tuple[int, ...]],
) -> Samples:
    parts: list[Part] = []
    layouts: list[_Layout] = []
    warnings: list[str] = []
    total = 0
    input_names = {info.name for info in inputs}
    for part in _parts(spec, limit, warnings):
        layout = _layout(part, inputs)
        if parts and set(part.members) - input_names != set(parts[0].members) - input_names:
            differing = (set(part.members) ^ set(parts[0].members)) - input_names
            raise InputError(
                f"{part.source} and {parts[0].source} have different labels",
                f"Only one of them has: {', '.join(sorted(differing))}.",
                "Give the same labels everywhere.",
            )
        parts.append(part)
        layouts.append(layout)
        total += layout.rows
        if limit is not None and total >= limit:
            break
    source = Path(spec).name or spec
    if not parts:
        raise InputError(f"{source} gave no samples", next_step=f"Give {KINDS}.")
    if batch is None:
        batch = next((shapes[info.name][0] for info in inputs if shapes.get(info.name)), None)
    dynamic_batch = batch or _default_batch(min(total, limit or total))
    feeds = sum(-(-layout.rows // (layout.step or dynamic_batch)) for layout in layouts)
    if min(feeds, limit or feeds) > MOST_FEEDS:
        raise InputError(f"{source} would be cut into {feeds:,} feeds", f"at most {MOST_FEEDS:,} are taken",
                         "Use fewer with --samples, or a larger --batch.")
    cuts = list(_cuts(layouts, dynamic_batch, limit))
    label_names = sorted(set(parts[0].members) - input_names)
    for name in label_names:
        member = parts[0].members[name]
        if name not in layouts[0].steps and member.shape[:1] not in ((), (1,)):
            warnings.append(
                f"Label '{name}' has {member.shape[0]} rows for {layouts[0].rows} samples: given whole with each batch"
            )
    return Samples(
        _StoredReader(inputs, parts, layouts, cuts),
        range(len(cuts)),
        source=source,
        batch=layouts[0].step or dynamic_batch,
        label_names=label_names,
        warnings=warnings,
    )


def _cuts(layouts: Iterable[_Layout], batch: int, limit: int | None) -> Iterator[_Cut]:
    first_sample = 0
    for number, layout in enumerate(layouts):
        step = layout.step or batch
        for index, start in enumerate(range(0, layout.rows, step)):
            if limit is not None and first_sample >= limit:
                return
            stop = min(start + step, layout.rows)
            if layout.step is None and limit is not None:
                stop = min(stop, start + limit - first_sample)
            yield _Cut(number, index, start, stop, first_sample)
            first_sample += stop - start


def _random_samples(
    inputs: Sequence[TensorInfo],
    batch: int | None,
    limit: int | None,
    seed: int,
    shapes: Mapping[str, tuple[int, ...]],
) -> Samples:
    known: dict[str, int] = {}
    for info in inputs:
        for dimension, size in zip(info.shape or (), shapes.get(info.name, ()), strict=False):
            if isinstance(dimension, str):
                known.setdefault(dimension, size)
    lead = next((info for info in inputs if info.shape is None or info.shape and info.shape[0] != 0), None)
    first = _first_dimension(lead) if lead else 1
    static = isinstance(first, int)
    if static:
        size = first
    else:
        given = shapes.get(lead.name, (None,))[0]
        size = batch or given or known.get(first) or _default_batch(limit or RANDOM_SAMPLES)
    concrete: dict[str, tuple[int, ...]] = {}
    cut = set()
    for info in inputs:
        shape = shapes.get(info.name, info.shape)
        shape = (None, None) if shape is None else shape
        sizes = [dim if isinstance(dim, int) else known.get(dim) for dim in shape]
        if None in sizes[1:]:
            raise InputError(
                f"Input '{info.name}' has sizes that are not known: {_shape_text(info.shape) if info.shape else '?'}",
                "Random inputs need all sizes.",
                f"Give samples with --data, or sizes with --shapes {info.name}:{_example_shape(info.shape, size)}.",
            )
        own_first = _first_dimension(info)
        if sizes and not isinstance(own_first, int):
            shares_name = own_first is not None and own_first == first
            if not static and (info is lead or shares_name or sizes[0] is None):
                cut.add(info.name)
            sizes[0] = size if sizes[0] is None else sizes[0]
        concrete[info.name] = tuple(sizes)
    total = limit or max(RANDOM_SAMPLES, 4 * size)
    sizes = [size] * (math.ceil(total / size) if static else total // size)
    if not static and total % size:
        sizes.append(total % size)
    return Samples(
        _RandomReader(inputs, concrete, frozenset(cut), tuple(sizes), seed),
        range(len(sizes)),
        source="seeded random inputs",
        batch=size,
        random=True,
        warnings=[RANDOM_WARNING],
    )


def _example_shape(shape: Sequence[Dimension] | None, batch: int) -> str:
    if not shape:
        return "1x3x224x224"
    sizes = [batch if isinstance(shape[0], (str, type(None))) else shape[0]]
    return "x".join(str(size) for size in [*sizes, *(dim if isinstance(dim, int) else 128 for dim in shape[1:])])


# ------------------------------------------------------------------------------------- calibrating and judging


@dataclass(frozen=True)
class DataSets:
    """Which feeds calibrate and which are judged.

    Attributes:
        warnings: What the user is to know for as long as these data are used.
    """

    calibration: Samples
    judged: Samples
    warnings: tuple[str, ...]


def split(samples: Samples, calibration: Samples | None = None) -> DataSets:
    """Decides which feeds calibrate and which are judged.

    Without calibration data feeds 0, 4, 8, ... calibrate and the others are judged; a single feed does both, with a
    warning. Given calibration data equal to the samples (by `Samples.sha256`), there is a warning.

    Raises:
        InputError: given calibration data cannot be read.
    """
    warnings = list(samples.warnings)
    if calibration is not None:
        warnings += [text for text in calibration.warnings if text not in warnings]
        if calibration.count == samples.count and calibration.sha256() == samples.sha256():
            warnings.append("The same samples calibrate and are judged: the errors shown are too good")
        return DataSets(calibration, samples, tuple(warnings))
    if len(samples) == 1:
        warnings.append("One feed both calibrates and is judged: the errors shown are too good")
        return DataSets(samples, samples, tuple(warnings))
    calibrating = range(0, len(samples), 4)
    judged = [index for index in range(len(samples)) if index % 4]
    return DataSets(samples.take(calibrating), samples.take(judged), tuple(warnings))


# ---------------------------------------------------------------------------------------------------- --shapes


@dataclass(frozen=True)
class ShapeRange:
    """The least, usual and largest shape of an input."""

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]


_SHAPE = r"\d+(?:x\d+)*"
_RANGE = re.compile(rf"(?P<name>.+?):(?P<min>{_SHAPE}):(?P<opt>{_SHAPE}):(?P<max>{_SHAPE})")
_FIXED = re.compile(rf"(?P<name>.+):(?P<opt>{_SHAPE})")


def parse_shapes(texts: Sequence[str], inputs: Sequence[TensorInfo]) -> dict[str, ShapeRange]:
    """Reads ``NAME:MIN:OPT:MAX`` or ``NAME:SHAPE``, shapes like ``1x3x224x224``; names may contain colons.

    Raises:
        InputError: another form, an unknown or repeated input, or shapes that do not fit it or each other.
    """
    by_name = {info.name: info for info in inputs}
    ranges: dict[str, ShapeRange] = {}
    for text in texts:
        matches = [match for match in (_RANGE.fullmatch(text), _FIXED.fullmatch(text)) if match]
        if not matches:
            raise InputError(
                f"Not a shape: {text}",
                "Shapes are given as NAME:MIN:OPT:MAX or NAME:SHAPE.",
                "For example: --shapes input:1x3x224x224:8x3x224x224:32x3x224x224",
            )
        match = next((match for match in matches if match["name"] in by_name), None)
        if match is None:
            raise _unknown_input(matches[0]["name"], inputs)
        info = by_name[match["name"]]
        if info.name in ranges:
            raise InputError(f"Shapes of input '{info.name}' are given twice", next_step="Give them once.")
        least, usual, most = (_parse_shape(match.groupdict().get(key) or match["opt"]) for key in ("min", "opt", "max"))
        for shape in (least, usual, most):
            _check_shape(shape, info, text)
        for axis, (low, middle, high) in enumerate(zip(least, usual, most, strict=True)):
            if not low <= middle <= high:
                raise InputError(
                    f"Shapes of input '{info.name}' are out of order in dimension {axis}: {low}, {middle}, {high}",
                    "MIN must not exceed OPT, nor OPT exceed MAX.",
                    f"Correct {text}.",
                )
        ranges[info.name] = ShapeRange(least, usual, most)
    return {**ranges, **_implied(ranges, inputs)}


def _implied(ranges: Mapping[str, ShapeRange], inputs: Sequence[TensorInfo]) -> dict[str, ShapeRange]:
    """Shapes of the other inputs whose open dimensions all have names that inputs with a shape have too."""
    sizes: dict[str, tuple[int, int, int]] = {}
    for info in inputs:
        if info.name in ranges and info.shape is not None:
            one = ranges[info.name]
            sizes |= {size: found for size, *found in zip(info.shape, one.min, one.opt, one.max, strict=True)
                      if isinstance(size, str)}
    implied = {}
    for info in inputs:
        open_sizes = [size for size in info.shape or () if not isinstance(size, int)]
        if info.name not in ranges and open_sizes and all(size in sizes for size in open_sizes):
            implied[info.name] = ShapeRange(*(
                tuple(size if isinstance(size, int) else sizes[size][place] for size in info.shape)
                for place in range(3)))
    return implied


def _parse_shape(text: str) -> tuple[int, ...]:
    return tuple(LARGEST_SIZE + 1 if len(size) > 18 else int(size) for size in text.split("x"))


def _check_shape(shape: tuple[int, ...], info: TensorInfo, text: str) -> None:
    fits = all(0 < size <= LARGEST_SIZE for size in shape) and (
        info.shape is None
        or len(shape) == len(info.shape)
        and all(not isinstance(wanted, int) or size == wanted for size, wanted in zip(shape, info.shape, strict=True))
    )
    if not fits:
        raise InputError(
            f"Shape {_shape_text(shape)} does not fit input '{info.name}'",
            (f"The network takes {_shape_text(info.shape)}; sizes" if info.shape is not None else "Sizes")
            + f" are from 1 to {LARGEST_SIZE}.",
            f"Correct {text}.",
        )


def _unknown_input(name: str, inputs: Sequence[TensorInfo]) -> InputError:
    return InputError(
        f"The network has no input '{name}'",
        f"It has: {', '.join(info.name for info in inputs)}.",
        "Correct the name.",
    )
