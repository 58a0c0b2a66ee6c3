"""Masks of judged outputs: which elements count, padding left out; there, and at the groups whose tensors it fits."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from trt_tui.core.calibration.sweep import Probe
from trt_tui.core.data.samples import Samples
from trt_tui.core.measure.judge import Judged, take
from trt_tui.core.network.network import FP16_MASK, Network
from trt_tui.core.runner import Backend
from trt_tui.errors import InputError

_MASK = FP16_MASK / 2
"""A mask is of this magnitude at least in every type: half of what stands for one in FP16."""


def kept_elements(judged: Judged, samples: Samples, index: int, whole: np.ndarray, found: np.ndarray | None = None
                  ) -> np.ndarray | None:
    """Which elements of the judged part of a tensor count in a feed: bool, of the part's shape; None for all.

    A mask has the tensor's leading axes (or 1 in their place) and holds for all the others: ``(samples, tokens)`` for
    ``(samples, tokens, features)``. What is not 0 counts, and what the network itself masked does not; where that is
    no mask any more in a run, it does.

    Args:
        whole: The whole tensor in FP32.
        found: The whole tensor in the run that is judged, of the same shape; without it masks are FP32's alone.

    Raises:
        InputError: the data have no such array, or its shape does not fit.
    """
    shown = _shown(judged, whole, found) if judged.hidden_from else None
    if not judged.mask:
        return shown
    shape = whole.shape
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
    kept = take(np.broadcast_to(counts, shape), judged)
    return kept if shown is None else kept & shown


def _shown(judged: Judged, whole: np.ndarray, found: np.ndarray | None) -> np.ndarray:
    """Which elements of the judged part are no masks of the network's own; NaN is none."""
    expected = take(whole, judged)
    masked = np.abs(expected) >= judged.hidden_from
    if found is not None:
        got = take(found, judged)
        masked &= (np.abs(got) >= min(judged.hidden_from, _MASK)) & (np.signbit(got) == np.signbit(expected))
    shown: np.ndarray = ~masked
    return shown


def refuse_nan(judged: Sequence[Judged], samples: Samples, index: int, result: Mapping[str, np.ndarray], whose: str
               ) -> None:
    """Refuses NaN in tensors that errors are to be taken against.

    NaN counts unless every judgement of its tensor leaves it out as padding.

    Args:
        result: Whole tensors of a feed by name.
        whose: What yielded them, for people.

    Raises:
        InputError: NaN stands where it counts.
    """
    for tensor, array in result.items():
        if array.dtype.kind != "f" or not np.isnan(array).any():
            continue
        parts = [(take(array, one), kept_elements(one, samples, index, array))
                 for one in judged if one.tensor == tensor]
        if not parts or any(counts is None or np.isnan(part[counts]).any() for part, counts in parts):
            raise InputError(f"{whose} yields NaN at {tensor}",
                             f"feed {index} of {samples.source} causes it",
                             "No precision can be judged against it: check the network and the data.")


def common_mask(judged: Iterable[Judged]) -> str:
    """The one mask that judged outputs have, "" where none has one, or they have several."""
    masks = {one.mask for one in judged if one.mask}
    return masks.pop() if len(masks) == 1 else ""


def kept_rows(mask: str, samples: Samples, index: int) -> np.ndarray:
    """The mask of a feed, bool: what is not 0 counts."""
    kept: np.ndarray = {**samples.labels(index), **samples.feed(index)}[mask] != 0
    return kept


def axes_of_mask(network: Network, backend: Backend, samples: Samples, mask: str, tensors: Sequence[str]
                 ) -> dict[str, tuple[bool, ...]]:
    """Which axes of tensors are those of a mask: for each axis of a tensor whether the mask has it, in its order.

    They are told by their sizes in the first feed and the last, which are run for it. The first axis of both is that of
    the samples. The second one of a mask is the only other axis of the tensor with the same size: where several have
    it, as in attention's scores, or none has, the tensor is left out.
    """
    possible: dict[str, set[int]] = {}
    ranks: dict[str, int] = {}
    for index in sorted({0, len(samples) - 1}):
        sizes = kept_rows(mask, samples, index).shape
        for tensor, shape in _shapes(network, backend, samples, index, tensors).items():
            fits = len(sizes) in (1, 2) and shape[:1] == sizes[:1]
            at = {axis for axis, size in enumerate(shape) if axis and size == sizes[-1]} if fits else set()
            at = {0} if fits and len(sizes) == 1 else at
            possible[tensor] = possible.get(tensor, at) & at
            ranks[tensor] = len(shape)
    return {tensor: tuple(axis == 0 or axis in at for axis in range(ranks[tensor]))
            for tensor, at in possible.items() if len(at) == 1}


def _shapes(network: Network, backend: Backend, samples: Samples, index: int, tensors: Sequence[str]
            ) -> dict[str, tuple[int, ...]]:
    """The shapes of float tensors in a feed."""
    probe = Probe(network.model)
    outputs = {tensor: probe.emit(probe.apply("Shape", probe.float_value(tensor), dtype=ir.DataType.INT64))
               for tensor in dict.fromkeys(tensors)}
    with probe.load(backend, samples) as runner:
        found = runner.run(samples.feed(index))
    return {tensor: tuple(map(int, found[name])) for tensor, name in outputs.items()}
