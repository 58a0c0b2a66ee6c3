"""The user's metric on the outputs of a run: on all samples, and on draws of them."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from trt_tui.core.data.samples import Samples
from trt_tui.core.measure.bootstrap import FEWEST, METRIC_RESAMPLES, Interval, Spread, drawn, of_draws, other_of_each
from trt_tui.core.measure.user_metric import Metric, MetricResult
from trt_tui.errors import InputError

Outputs = Sequence[Mapping[str, np.ndarray]]
"""The outputs of a run by name, feed by feed."""

SHUFFLED, SCRAMBLED = "shuffled", "scrambled"
"""Outputs that mean nothing: those of another sample for each sample; and the values of each output in any order, which
is what a random answer with the same values is."""


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
        self._reference_draws: dict[tuple[int, ...], list[dict[str, float]]] = {}
        self._meaningless: dict[tuple[int, ...], dict[str, dict[str, float]]] = {}

    def score(self, outputs: Outputs, feeds: Sequence[int]) -> dict[str, float]:
        """The metric and its parts, the headline first.

        Raises:
            InputError: the metric fails.
        """
        return self._parts(*self._joined(outputs, feeds))

    def draws(self, outputs: Outputs, feeds: Sequence[int]) -> Iterator[dict[str, float]]:
        """Yields the metric and its parts on each draw of the samples, nothing of it if the metric fails on it.

        If the rows of an array are not the samples, whole feeds are drawn; see `trt_tui.core.measure.bootstrap`.
        """
        found, labels = self._joined(outputs, feeds)
        apart = self._count(found, labels, feeds)
        count = apart or len(feeds)
        draws = drawn(count, METRIC_RESAMPLES) if count >= FEWEST else ()
        if apart:
            yield from (self._named(result) if result is not None else {}
                        for result in self._metric.on_draws(found, labels, draws))
            return
        for numbers in draws:
            try:
                yield self.score([outputs[number] for number in numbers], [feeds[number] for number in numbers])
            except InputError:  # for one, if no sample of a class was drawn
                yield {}

    def meaningless(self, feeds: Sequence[int]) -> dict[str, dict[str, float]]:
        """The reference's metric and its parts on outputs that mean nothing, by `SHUFFLED` and `SCRAMBLED`.

        A key is absent where the metric fails on that, or where there is a single sample to shuffle.
        """
        key = tuple(feeds)
        if key not in self._meaningless:
            outputs = [self._reference(feed) for feed in feeds]
            found, labels = self._joined(outputs, feeds)
            count = self._count(found, labels, feeds)
            others = other_of_each(count or len(feeds))
            known: dict[str, dict[str, float]] = {}
            with contextlib.suppress(InputError):
                if count > 1:
                    known[SHUFFLED] = self._parts({name: array[others] for name, array in found.items()}, labels)
                elif len(feeds) > 1:
                    known[SHUFFLED] = self.score([outputs[at] for at in others], feeds)
            with contextlib.suppress(InputError):
                rng = np.random.default_rng(len(feeds))
                known[SCRAMBLED] = self.score([{name: rng.permutation(one[name].ravel()).reshape(one[name].shape)
                                                for name in self.names} for one in outputs], feeds)
            self._meaningless[key] = known
        return self._meaningless[key]

    def _count(self, found: Mapping[str, np.ndarray], labels: Mapping[str, np.ndarray], feeds: Sequence[int]) -> int:
        """The number of samples if they can be told apart in all arrays, else 0."""
        rows = sum(self._samples.rows(feed) for feed in feeds)
        return rows if all(len(array) == rows for array in (*found.values(), *labels.values())) else 0

    def spread(self, outputs: Outputs, feeds: Sequence[int], spread: Spread) -> Iterator[Spread]:
        """Yields a spread after each draw, and last one with the intervals of the metric and of its gain over FP32."""
        key = tuple(feeds)
        if key not in self._reference_draws:
            base: list[dict[str, float]] = []
            for value in self.draws([self._reference(feed) for feed in feeds], feeds):
                base.append(value)
                yield spread
            self._reference_draws[key] = base
        found: list[dict[str, float]] = []
        for value in self.draws(outputs, feeds):
            found.append(value)
            yield spread
        base = self._reference_draws[key]
        names = dict.fromkeys(name for one in found for name in one)
        count = self._count(*self._joined(outputs, feeds), feeds) or len(feeds)
        whole, shuffled = self.score([self._reference(feed) for feed in feeds], feeds), self.meaningless(feeds).get(
            SHUFFLED, {})
        losses = {name: whole[name] - shuffled[name] for name in whole if name in shuffled}
        metric = {name: of_draws([one.get(name) for one in found], count, losses.get(name)) for name in names}
        gains = {name: of_draws([here[name] - there[name] if name in here and name in there else None
                                 for here, there in zip(found, base, strict=True)], count, losses.get(name))
                 for name in names}
        headline = next(iter(names), "")
        yield replace(spread, metric=metric.get(headline), gain=gains.get(headline), draws=len(found),
                      parts=_known(metric, headline), part_gains=_known(gains, headline))

    def _joined(self, outputs: Outputs, feeds: Sequence[int]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        labels = [self._samples.labels(feed) for feed in feeds]
        return ({name: np.concatenate([np.atleast_1d(one[name]) for one in outputs]) for name in self.names},
                {name: np.concatenate([one[name] for one in labels]) for name in labels[0]})

    def _parts(self, outputs: Mapping[str, np.ndarray], labels: Mapping[str, np.ndarray]) -> dict[str, float]:
        return self._named(self._metric(outputs, labels))

    def _named(self, result: MetricResult) -> dict[str, float]:
        return dict(result.parts) or {self._metric.name: result.value}


def _known(intervals: Mapping[str, Interval | None], headline: str) -> dict[str, Interval]:
    """Those that there are, without the headline's."""
    return {name: one for name, one in intervals.items() if one is not None and name != headline}
