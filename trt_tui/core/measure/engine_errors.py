"""Errors inside an engine: what it computes at the groups, held against FP32 of the network."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from trt_tui.core.data.fitted import fitted
from trt_tui.core.engines.ends import KernelEnd, readings
from trt_tui.core.lowering.ends import ending_in
from trt_tui.core.measure.analysis import Analysis
from trt_tui.core.measure.comparison import Errors
from trt_tui.core.measure.masks import common_mask, kept_rows
from trt_tui.core.measure.metrics import Sums
from trt_tui.core.runner import EngineRunner, Runner
from trt_tui.errors import TrtTuiError

Read = Callable[[Mapping[str, np.ndarray], Mapping[str, np.ndarray]], Mapping[str, Sequence[np.ndarray]]]
"""Gives for a feed, and FP32's tensors of it, what the engine has for each group: one array, or several readings."""


def through_kernels(runner: EngineRunner, ends: Mapping[str, KernelEnd]) -> Read:
    """A function that reads the ends of kernels of an engine as built."""
    names = {one.name for end in ends.values() for one in end.written}

    def read(feed: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray]) -> Mapping[str, Sequence[np.ndarray]]:
        handed = runner.handed_on(feed, names)
        return {group: readings(handed, end, reference[end.tensor].shape) for group, end in ends.items()}

    return read


def through_outputs(runner: Runner, tails: Mapping[str, str]) -> Read:
    """A function that reads the outputs of an engine that has the groups' results among them."""
    def read(feed: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray]) -> Mapping[str, Sequence[np.ndarray]]:
        found = runner.run(feed, list(tails.values()))
        return {group: [found[tensor].astype(np.float32, copy=False).reshape(reference[tensor].shape)]
                for group, tensor in tails.items() if found[tensor].size == reference[tensor].size}

    return read


def measure_inside(analysis: Analysis, read: Read, tensors: Mapping[str, str], feeds: Sequence[int]
                   ) -> Iterator[dict[str, Errors]]:
    """Yields the accumulated errors by group name after each feed, pooled so far; a group is absent of which nothing
    could be read.

    Where there are several readings, the first feed decides for the one that comes nearest to FP32. What the judged
    outputs' mask leaves out does not count at those tensors that have its axes.

    Args:
        tensors: The tensor of the network that each group is judged at.
    """
    network, samples = analysis.network, analysis.samples
    mask = common_mask(analysis.judged)
    sums: dict[str, Sums] = {}
    chosen: dict[str, int] = {}
    wanted = list(dict.fromkeys(tensors.values()))
    if not wanted:
        return
    with fitted(analysis.backend, ending_in(network.model, wanted), samples, lean=True, few=True) as runner:
        for index in feeds:
            feed = samples.feed(index)
            reference = runner.run(feed, wanted)
            for group, arrays in read(feed, reference).items():
                tensor = tensors[group]
                counts = _counts(analysis, mask, tensor, index, reference[tensor].shape)
                each = [_sums(reference[tensor], array, counts) for array in arrays]
                if not each:
                    continue
                if group not in chosen:
                    chosen[group] = each.index(min(each, key=lambda one: one.noise))
                if chosen[group] < len(each):
                    one = each[chosen[group]]
                    sums.setdefault(group, Sums()).merge({name: getattr(one, name) for name in vars(one)})
            yield {group: one.errors() for group, one in sums.items()}


def _counts(analysis: Analysis, mask: str, tensor: str, index: int, shape: tuple[int, ...]) -> np.ndarray | None:
    """Which elements count, bool in the tensor's shape; None for all."""
    axes = analysis.padded.get(tensor) if mask else None
    if axes is None:
        return None
    kept = kept_rows(mask, analysis.samples, index)
    if kept.ndim != sum(axes):
        raise TrtTuiError(f"{mask} does not fit {tensor}", f"its shape is {kept.shape}, the tensor's {shape}", "")
    sizes = [size if has else 1 for has, size in zip(axes, shape, strict=True)]
    return np.broadcast_to(kept.reshape(sizes), shape)


def _sums(reference: np.ndarray, test: np.ndarray, counts: np.ndarray | None) -> Sums:
    sums = Sums()
    if counts is None:
        sums.add(reference, test)
    else:
        sums.add(reference[counts], test[counts])
    return sums
