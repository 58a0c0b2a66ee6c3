"""Masks of judged outputs: which elements count, padding left out."""

from __future__ import annotations

import numpy as np

from trt_tui.core.data.samples import Samples
from trt_tui.core.measure.judge import Judged, take
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
