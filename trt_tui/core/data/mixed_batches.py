"""Samples of several feeds put together in one, for figures that are taken on some samples only."""

from collections.abc import Sequence

import numpy as np

from trt_tui.core.data.samples import Samples

SamplePosition = tuple[int, int]
"""A sample: the number of its feed, and its row there."""


def can_mix_samples(samples: Samples, feed_indices: Sequence[int]) -> bool:
    """Whether the rows of every input are the samples in these feeds, all of one shape, so that they can be mixed."""
    shapes = set()
    for index in feed_indices:
        feed, rows = samples.read_feed(index), samples.count_samples_of_feed(index)
        if not feed.keys() <= samples.per_sample_array_names or any(array.shape[:1] != (rows, )
                                                                    for array in feed.values()):
            return False
        shapes.add(tuple(sorted((name, array.shape[1:]) for name, array in feed.items())))
    return len(shapes) == 1


class _MixedFeeds:
    """Feeds of rows of other feeds; the one that was asked for last is kept."""

    def __init__(self, samples: Samples, batches: Sequence[Sequence[SamplePosition]]) -> None:
        self._samples, self._batches = samples, batches
        self._cached_feed: tuple[int, dict[str, np.ndarray]] | None = None

    @property
    def per_sample_array_names(self) -> frozenset[str]:
        """As `Samples.per_sample_array_names`."""
        return self._samples.per_sample_array_names

    def count_samples_of_feed(self, feed_index: int) -> int:
        """As `Samples.count_samples_of_feed`."""
        return len(self._batches[feed_index])

    def read_feed(self, feed_index: int) -> dict[str, np.ndarray]:
        """As `Samples.read_feed`."""
        if self._cached_feed is None or self._cached_feed[0] != feed_index:
            source_feeds = {
                feed: self._samples.read_feed(feed)
                for feed in {feed
                             for feed, _ in self._batches[feed_index]}
            }
            names = next(iter(source_feeds.values()))
            self._cached_feed = feed_index, {
                name: np.stack([source_feeds[feed][name][row]
                                for feed, row in self._batches[feed_index]])
                for name in names
            }
        return self._cached_feed[1]

    def first_sample_index(self, feed_index: int) -> int:
        """As `FeedSource.first_sample_index`, of its first sample."""
        feed, row = self._batches[feed_index][0]
        return self._samples.feed_position(feed)[1] + row

    @property
    def total_sample_count(self) -> int:
        """As `Samples.total_sample_count`."""
        return self._samples.total_sample_count

    def read_labels(self, feed_index: int) -> dict[str, np.ndarray]:
        """As `Samples.read_labels`; one that is given whole with each batch is that of the first sample's feed."""
        source_labels = {
            feed: self._samples.read_labels(feed)
            for feed in {feed
                         for feed, _ in self._batches[feed_index]}
        }
        first_labels = source_labels[self._batches[feed_index][0][0]]
        return {name: np.stack([source_labels[feed][name][row] for feed, row in self._batches[feed_index]])
                if name in self._samples.per_sample_array_names else array for name, array in first_labels.items()}


def mix_samples_into_batches(samples: Samples, positions_by_batch: Sequence[Sequence[SamplePosition]]) -> Samples:
    """Samples whose feeds are rows of others, see `can_mix_samples`; they read the same data.

    Args:
        positions_by_batch: The samples of each feed, in their order.
    """
    return Samples(_MixedFeeds(samples, positions_by_batch), range(len(positions_by_batch)), source=samples.source,
                   batch=samples.batch, is_random=samples.is_random, label_names=samples.label_names,
                   warnings=samples.warnings, memory_fallbacks=samples.memory_fallbacks)
