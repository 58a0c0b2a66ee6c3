"""The reshaping of channel ids along blocks of axes, such as the axes that a Reshape merges into one axis."""

import math
from collections.abc import Sequence

import numpy as np

from trt_tui.core.network.layers import Shape

MAX_CHANNEL_IDS = 1 << 20
"""The maximum number of channel ids of one tensor; a tensor with more stays unscaled."""

Block = tuple[tuple[int, int], tuple[int, int]]
"""A range of axes before a Reshape, and the range of axes with the same elements behind it."""


def reshape_channel_ids(
    channel_ids: np.ndarray, before: Shape, after: Shape, blocks: Sequence[Block]
) -> np.ndarray | str:
    """Returns the channel ids after a Reshape, or the reason why the channels cannot be traced through it.

    The sizes of blocks with different ids must be known.
    """
    source, result = [1] * len(before), [1] * len(after)
    for old, new in blocks:
        if any(size > 1 for size in channel_ids.shape[slice(*old)]):
            source[slice(*old)], result[slice(*new)] = (
                [size for size in shape[slice(*axes)] if isinstance(size, int)]
                for shape, axes in ((before, old), (after, new))
            )
    if math.prod(source) > MAX_CHANNEL_IDS:
        return "it has too many channels to be followed"
    reshaped = np.broadcast_to(channel_ids, source).reshape(result)
    for axis in range(reshaped.ndim):
        first = np.take(reshaped, [0], axis)
        if reshaped.shape[axis] > 1 and (reshaped == first).all():
            reshaped = first
    return reshaped


def has_equal_sizes(before: Shape, after: Shape) -> bool:
    """Returns True if all sizes of a block are known and have the same product."""
    old_sizes, new_sizes = ([size for size in shape if isinstance(size, int)] for shape in (before, after))
    return (len(old_sizes), len(new_sizes)) == (len(before), len(after)) and math.prod(old_sizes) == math.prod(
        new_sizes
    )


def match_all_blocks(before: Shape, after: Shape) -> list[Block]:
    """Returns the blocks of a Reshape: ranges of axes before and after it with equal numbers of elements."""
    blocks = _match_blocks(before, after)
    taken = sum(stop - start for (start, stop), _ in blocks), sum(stop - start for _, (start, stop) in blocks)
    ends = len(before), len(after)
    right = [
        ((ends[0] - old[1], ends[0] - old[0]), (ends[1] - new[1], ends[1] - new[0]))
        for old, new in _match_blocks(before[taken[0] :][::-1], after[taken[1] :][::-1])
    ]
    rest = (
        (taken[0], min([ends[0], *(old[0] for old, _ in right)])),
        (taken[1], min([ends[1], *(new[0] for _, new in right)])),
    )
    return [*blocks, rest, *right]


def _match_blocks(before: Shape, after: Shape) -> list[Block]:
    """Returns the leading blocks of axes with equal products, each as a range of axes before and after the Reshape."""
    blocks: list[Block] = []
    old = new = 0
    while old < len(before) and new < len(after):
        start = old, new
        first, second = before[old], after[new]
        old, new = old + 1, new + 1
        while first != second and isinstance(first, int) and isinstance(second, int):
            grows_old = first < second
            size = before[old : old + 1] if grows_old else after[new : new + 1]
            if not size or not isinstance(size[0], int) or not first or not second:
                return blocks
            if grows_old:
                first, old = first * size[0], old + 1
            else:
                second, new = second * size[0], new + 1
        if first is None or first != second:
            return blocks
        blocks.append(((start[0], old), (start[1], new)))
    return blocks
