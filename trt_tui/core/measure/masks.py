"""Masks of judged outputs: which elements count, padding left out; there, and at the groups whose tensors it fits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from trt_tui.core.data.samples import Samples
from trt_tui.core.measure.judge import Judged, take
from trt_tui.core.network.network import Network
from trt_tui.errors import InputError


def kept_elements(judged: Judged, samples: Samples, index: int, shape: tuple[int, ...]) -> np.ndarray | None:
    """Which elements of the judged part of a tensor count in a feed: bool, of the part's shape; None for all.

    A mask has the tensor's leading axes (or 1 in their place) and holds for all the others: ``(samples, tokens)`` for
    ``(samples, tokens, features)``. What is not 0 counts.

    Args:
        shape: Of the whole tensor.

    Raises:
        InputError: the data have no such array, or its shape does not fit.
    """
    if not judged.mask:
        return None
    given = {**samples.labels(index), **samples.feed(index)}
    if judged.mask not in given:
        raise InputError(f"--judge {judged.name}: the data have no {judged.mask}", f"they have {', '.join(given)}",
                         "Name an input or another array of the data behind @.")
    mask = given[judged.mask]
    fits = mask.ndim <= len(shape) and all(a in (1, b) for a, b in zip(mask.shape, shape, strict=False))
    if not fits:
        sizes, others = ("x".join(map(str, one)) for one in (mask.shape, shape))
        raise InputError(f"--judge {judged.name}: {judged.mask} does not fit {judged.tensor}",
                         f"its shape is {sizes}, the tensor's {others}: the leading axes have to be the same",
                         "Name a mask such as (samples, tokens) for a tensor (samples, tokens, features).")
    counts = np.reshape(mask != 0, mask.shape + (1,) * (len(shape) - mask.ndim))
    return take(np.broadcast_to(counts, shape), judged)


def common_mask(judged: Iterable[Judged]) -> str:
    """The one mask that judged outputs have, "" where none has one, or they have several."""
    masks = {one.mask for one in judged if one.mask}
    return masks.pop() if len(masks) == 1 else ""


def kept_rows(mask: str, samples: Samples, index: int) -> np.ndarray:
    """The mask of a feed, bool: what is not 0 counts."""
    kept: np.ndarray = {**samples.labels(index), **samples.feed(index)}[mask] != 0
    return kept


def axes_of_mask(network: Network, mask: str, samples: Samples, tensors: Sequence[str]) -> dict[str, tuple[bool, ...]]:
    """Which axes of tensors are those of a mask: for each axis of a tensor whether the mask has it, in its order.

    The first axis of both is that of the samples. The second one of a mask is the only other axis of the tensor with
    the same size, by number or by name: where several have it, as in attention's scores, or none is known to, the
    tensor is left out.
    """
    if any(info.name == mask for info in network.inputs):
        sizes = network.shape(mask)
    else:  # an array of the data: its first axis is that of the inputs
        first = next((info.shape[0] for info in network.inputs if info.shape), None)
        sizes = (first, *kept_rows(mask, samples, 0).shape[1:])
    found: dict[str, tuple[bool, ...]] = {}
    for tensor in tensors:
        shape = network.shape(tensor)
        if not sizes or not shape or sizes[0] is None or shape[0] != sizes[0] or len(sizes) > 2:
            continue
        at = [axis for axis, size in enumerate(shape) if axis and size is not None and size == sizes[-1]]
        if len(sizes) == 1:
            found[tensor] = (True,) + (False,) * (len(shape) - 1)
        elif len(at) == 1:
            found[tensor] = tuple(axis in (0, at[0]) for axis in range(len(shape)))
    return found
