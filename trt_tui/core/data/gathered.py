"""Samples of several feeds put together in one, for figures that are taken on some samples only."""

from collections.abc import Sequence

import numpy as np

from trt_tui.core.data.samples import Samples

Place = tuple[int, int]
"""A sample: the number of its feed, and its row there."""


def separable(samples: Samples, feeds: Sequence[int]) -> bool:
    """Whether the rows of every input are the samples in these feeds, all of one shape, so that they can be mixed."""
    shapes = set()
    for index in feeds:
        feed, rows = samples.feed(index), samples.rows(index)
        if not feed.keys() <= samples.by_sample or any(array.shape[:1] != (rows,) for array in feed.values()):
            return False
        shapes.add(tuple(sorted((name, array.shape[1:]) for name, array in feed.items())))
    return len(shapes) == 1


class _Gathered:
    """Feeds of rows of other feeds; the one that was asked for last is kept."""

    def __init__(self, samples: Samples, batches: Sequence[Sequence[Place]]) -> None:
        self._samples, self._batches = samples, batches
        self._last: tuple[int, dict[str, np.ndarray]] | None = None

    @property
    def by_sample(self) -> frozenset[str]:
        """As `Samples.by_sample`."""
        return self._samples.by_sample

    def rows(self, index: int) -> int:
        """As `Samples.rows`."""
        return len(self._batches[index])

    def feed(self, index: int) -> dict[str, np.ndarray]:
        """As `Samples.feed`."""
        if self._last is None or self._last[0] != index:
            whole = {feed: self._samples.feed(feed) for feed in {feed for feed, _ in self._batches[index]}}
            names = next(iter(whole.values()))
            self._last = index, {name: np.stack([whole[feed][name][row] for feed, row in self._batches[index]])
                                 for name in names}
        return self._last[1]

    def first(self, index: int) -> int:
        """As `Feeds.first`, of its first sample."""
        feed, row = self._batches[index][0]
        return self._samples.place(feed)[1] + row

    @property
    def total(self) -> int:
        """As `Samples.total`."""
        return self._samples.total

    def labels(self, index: int) -> dict[str, np.ndarray]:
        """As `Samples.labels`; one that is given whole with each batch is that of the first sample's feed."""
        whole = {feed: self._samples.labels(feed) for feed in {feed for feed, _ in self._batches[index]}}
        first = whole[self._batches[index][0][0]]
        return {name: np.stack([whole[feed][name][row] for feed, row in self._batches[index]])
                if name in self._samples.by_sample else array for name, array in first.items()}


def gathered(samples: Samples, batches: Sequence[Sequence[Place]]) -> Samples:
    """Samples whose feeds are rows of others, see `separable`; they read the same data.

    Args:
        batches: The samples of each feed, in their order.
    """
    return Samples(_Gathered(samples, batches), range(len(batches)), source=samples.source, batch=samples.batch,
                   random=samples.random, label_names=samples.label_names, warnings=samples.warnings,
                   portions=samples.portions)
