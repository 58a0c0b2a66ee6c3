"""The user's metric on the outputs of a run: on all samples, and on draws of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from trt_tui.core.data.samples import Samples
from trt_tui.core.measure.bootstrap import FEWEST, METRIC_RESAMPLES, Spread, drawn, of_draws
from trt_tui.core.measure.user_metric import Metric
from trt_tui.errors import InputError

Outputs = Sequence[Mapping[str, np.ndarray]]
"""The outputs of a run by name, feed by feed."""


class Scoring:
    """Calls a metric with outputs and labels of the same samples.

    Args:
        names: The outputs that it is given.
        reference: Yields the FP32 network's outputs for a feed.
    """

    def __init__(self, metric: Metric, samples: Samples, names: Sequence[str],
                 reference: Callable[[int], Mapping[str, np.ndarray]]) -> None:
        self._metric = metric
        self._samples = samples
        self._reference = reference
        self.names = tuple(names)
        self._reference_draws: dict[tuple[int, ...], list[float | None]] = {}

    def score(self, outputs: Outputs, feeds: Sequence[int]) -> dict[str, float]:
        """The metric and its parts, the headline first.

        Raises:
            InputError: the metric fails.
        """
        return self._parts(*self._joined(outputs, feeds))

    def draws(self, outputs: Outputs, feeds: Sequence[int]) -> Iterator[float | None]:
        """Yields the headline on each draw of the samples, None if the metric fails on it.

        If the rows of an array are not the samples, whole feeds are drawn; see `trt_tui.core.measure.bootstrap`.
        """
        rows = sum(self._samples.rows(feed) for feed in feeds)
        found, labels = self._joined(outputs, feeds)
        apart = all(len(array) == rows for array in (*found.values(), *labels.values()))
        count = rows if apart else len(feeds)
        for numbers in drawn(count, METRIC_RESAMPLES) if count >= FEWEST else ():
            try:
                if apart:
                    parts = self._parts({name: array[numbers] for name, array in found.items()},
                                        {name: array[numbers] for name, array in labels.items()})
                else:
                    parts = self.score([outputs[number] for number in numbers], [feeds[number] for number in numbers])
                yield next(iter(parts.values()))
            except InputError:  # if no sample of a class was drawn, for one
                yield None

    def spread(self, outputs: Outputs, feeds: Sequence[int], spread: Spread) -> Iterator[Spread]:
        """Yields a spread after each draw, and last one with the intervals of the metric and of its gain over FP32."""
        key = tuple(feeds)
        if key not in self._reference_draws:
            base: list[float | None] = []
            for value in self.draws([self._reference(feed) for feed in feeds], feeds):
                base.append(value)
                yield spread
            self._reference_draws[key] = base
        found: list[float | None] = []
        for value in self.draws(outputs, feeds):
            found.append(value)
            yield spread
        gains = [None if a is None or b is None else a - b
                 for a, b in zip(found, self._reference_draws[key], strict=True)]
        yield replace(spread, metric=of_draws(found), gain=of_draws(gains), draws=len(found))

    def _joined(self, outputs: Outputs, feeds: Sequence[int]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        labels = [self._samples.labels(feed) for feed in feeds]
        return ({name: np.concatenate([np.atleast_1d(one[name]) for one in outputs]) for name in self.names},
                {name: np.concatenate([one[name] for one in labels]) for name in labels[0]})

    def _parts(self, outputs: Mapping[str, np.ndarray], labels: Mapping[str, np.ndarray]) -> dict[str, float]:
        result = self._metric(outputs, labels)
        return dict(result.parts) or {self._metric.name: result.value}
