"""Seeded random inputs for networks without data.

Floats are drawn from N(0, 1), and booleans are true. The values of other inputs depend on their name and type:

- ``mask``: ones.
- ``position``: a count along the last axis.
- ``type`` or ``segment``: 0 and 1.
- ``id`` or ``token``: integers from 0 to 99.
- All others: integers from 0 to 255 for uint8, and from 0 to 7 for other types.
"""

import math
import os
import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from trt_tui.core.data.array_files import DataPart, StoredArray
from trt_tui.core.data.batches import (
    BatchLayout,
    StoredFeeds,
    choose_default_batch_size,
    is_float,
    iterate_feed_rows,
)
from trt_tui.core.data.shapes import first_dimension, shape_text
from trt_tui.core.runner import Dimension, TensorInfo
from trt_tui.errors import InputError

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
    """Builds a source of seeded random inputs and returns it with its batch size. Each feed has other values, which are
    the same each time.

    The arguments are those of `trt_tui.core.data.samples.load_samples`.

    Raises:
        InputError: The size of a dimension is unknown, more samples than the limit are requested, or a feed does not
            fit in memory.
    """
    size_by_name = _find_sizes_of_named_dimensions(inputs, shapes)
    lead = next((info for info in inputs if info.shape is None or info.shape and info.shape[0] != 0), None)
    first = first_dimension(lead) if lead else 1
    static = isinstance(first, int)
    if isinstance(first, int):
        size = first
    else:
        requested_size = shapes[lead.name][0] if lead and shapes.get(lead.name) else None
        named_size = size_by_name.get(first) if isinstance(first, str) else None
        size = batch or requested_size or named_size or choose_default_batch_size(limit or MIN_RANDOM_SAMPLES)
    concrete_shapes: dict[str, tuple[int, ...]] = {}
    sample_inputs = set()
    for info in inputs:
        shape: Sequence[Dimension] | None = shapes.get(info.name, info.shape)
        shape = (None, None) if shape is None else shape
        sizes = [
            dim if isinstance(dim, int) else size_by_name.get(dim) if isinstance(dim, str) else None for dim in shape
        ]
        if None in sizes[1:]:
            raise InputError(
                f"Input '{info.name}' has sizes that are not known: {shape_text(info.shape) if info.shape else '?'}",
                "Random inputs need all sizes.",
                f"Give samples with --data, or sizes with --shapes "
                f"{info.name}:{_example_shape_text(info.shape, size)}.",
            )
        own_first = first_dimension(info)
        if sizes and not isinstance(own_first, int):
            shares_name = own_first is not None and own_first == first
            if not static and (info is lead or shares_name or sizes[0] is None):
                sample_inputs.add(info.name)
        concrete_shapes[info.name] = tuple(size if known_size is None else known_size for known_size in sizes)
    total = limit or max(MIN_RANDOM_SAMPLES, 4 * size)
    if limit is not None and limit > max(MAX_RANDOM_SAMPLES, size):
        raise InputError(f"{limit:,} random samples are too many",
                         f"at most {MAX_RANDOM_SAMPLES:,} are made; they say nothing about accuracy",
                         "Use fewer with --samples, or give samples with --data.")
    _check_feed_memory(inputs, concrete_shapes, size)
    rows = [size] * (math.ceil(total / size) if static else total // size)
    if not static and total % size:
        rows.append(total % size)
    parts = [DataPart("seeded random inputs", {
        info.name: _store_random_array(info, (count, *concrete_shapes[info.name][1:]) if info.name in sample_inputs else
                                       concrete_shapes[info.name], seed, feed_index) for info in inputs
    }) for feed_index, count in enumerate(rows)]
    layouts = [BatchLayout(count, None, dict.fromkeys(sample_inputs), frozenset()) for count in rows]
    return StoredFeeds(inputs, parts, layouts, list(iterate_feed_rows(layouts, size, None))), size


def _check_feed_memory(inputs: Sequence[TensorInfo], shapes: Mapping[str, tuple[int, ...]], row_count: int) -> None:
    """Refuses random feeds that need more than half of the machine's memory, because the system would end the process.

    Raises:
        InputError: A feed needs more memory than that.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    sizes = {info.name: max(4, info.dtype.itemsize) * math.prod(shapes[info.name]) for info in inputs}
    if sum(sizes.values()) > memory // 2:
        name = max(sizes, key=sizes.__getitem__)
        raise InputError(f"Random inputs of shape {shape_text(shapes[name])} do not fit in memory",
                         f"a batch of {row_count:,} takes {sum(sizes.values()):,} bytes, most of it input '{name}'; "
                         f"the machine has {memory:,}", "Use a smaller --batch or --shapes.")


def _find_sizes_of_named_dimensions(inputs: Sequence[TensorInfo], shapes: Mapping[str, tuple[int,
                                                                                             ...]]) -> dict[str, int]:
    """Returns the size of each named dimension for which a shape was given."""
    size_by_name: dict[str, int] = {}
    for info in inputs:
        for dimension, size in zip(info.shape or (), shapes.get(info.name, ()), strict=False):
            if isinstance(dimension, str):
                size_by_name.setdefault(dimension, size)
    return size_by_name


def _store_random_array(input_info: TensorInfo, shape: tuple[int, ...], seed: int, feed_index: int) -> StoredArray:
    """Returns an input of a feed, whose values are drawn when it is loaded."""
    def load() -> np.ndarray:
        rng = np.random.default_rng([seed, feed_index, zlib.crc32(input_info.name.encode())])
        try:
            return _draw_random_array(rng, input_info.name.lower(), input_info.dtype, shape)
        except (MemoryError, ValueError, OverflowError) as error:
            raise InputError(f"Random inputs of shape {shape_text(shape)} do not fit in memory",
                             f"Input '{input_info.name}': {error}", "Use a smaller --batch or --shapes.") from None

    return StoredArray(input_info.dtype, shape, load)


def _draw_random_array(rng: np.random.Generator, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    if dtype.kind == "b" or "mask" in name:
        return np.ones(shape, dtype)
    if is_float(dtype):
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


def _example_shape_text(shape: Sequence[Dimension] | None, batch_size: int) -> str:
    if not shape:
        return "1x3x224x224"
    sizes = [batch_size if isinstance(shape[0], (str, type(None))) else shape[0]]
    return "x".join(str(size) for size in [*sizes, *(dim if isinstance(dim, int) else 128 for dim in shape[1:])])
