"""Pools the judged outputs of a run, be it of the simulation or of an engine."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trt_tui.core.data.samples import Samples
from trt_tui.core.lowering.gated.compared import COLUMNS
from trt_tui.core.measure import metrics
from trt_tui.core.measure.bootstrap import Drawing, Spread, rows_of
from trt_tui.core.measure.comparison import Caveat, Errors, OutputErrors, Verdict
from trt_tui.core.measure.failed_runs import FailedRun
from trt_tui.core.measure.judge import INTEGER, Judged, take
from trt_tui.core.measure.masks import kept_elements
from trt_tui.core.measure.metrics import Sums
from trt_tui.core.measure.scoring import Scoring
from trt_tui.errors import InputError, TrtTuiError


def comparable(value: Any) -> np.ndarray:
    """An output as an array of fixed element size: strings arrive as objects, a single one as a str."""
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
        return value
    return np.asarray(value, np.str_)


class Tally:
    """Pools the judged outputs of one run over feeds.

    Args:
        samples: The judged samples.
        feeds: Numbers of the feeds that are to be added.
        judged: What errors are taken at.
        reference: Yields the FP32 network's judged tensors for a feed.
        classifier: The judged output whose largest class is compared.
        scoring: The user's metric; None without one.
    """

    def __init__(
        self,
        samples: Samples,
        feeds: Sequence[int],
        judged: Sequence[Judged],
        reference: Callable[[int], Mapping[str, np.ndarray]],
        *,
        classifier: Judged | None = None,
        scoring: Scoring | None = None,
    ) -> None:
        self._samples = samples
        self._reference = reference
        self._classifier = classifier
        self._scoring = scoring
        self._drawing = Drawing()
        self._failures: list[Caveat] = []
        self.judged = tuple(judged)
        self.sums = {one.name: Sums() for one in judged if one.kind != INTEGER}
        self.differ = {one.name: [0, 0] for one in judged if one.kind == INTEGER}
        self.worst: dict[str, tuple[int, float]] = {}
        self.kept: list[Mapping[str, np.ndarray]] = []
        self.indices: list[int] = []
        self.samples = 0
        self.agreed = 0
        self.total = sum(samples.rows(index) for index in feeds)

    def add(self, index: int, test: Mapping[str, np.ndarray], sums: Mapping[str, np.ndarray] | None = None) -> None:
        """Adds the outputs of a run for one feed.

        Args:
            sums: What the run compared itself, by judged output: `COLUMNS`, Σref² and the largest |ref| of each
                sample, all finite. Their tensors are not looked at.

        Raises:
            TrtTuiError: a judged float tensor has another shape than in FP32.
        """
        rows = self._samples.rows(index)
        reference = self._reference(index)
        if isinstance(test, FailedRun):
            self._failures.append(test.caveat)
        for one in self.judged:
            expected = take(reference[one.tensor], one)
            if sums and one.name in sums:
                self._add_sums(one.name, sums[one.name], expected, rows)
                continue
            got = take(test[one.tensor], one)
            if expected.shape != got.shape:
                if one.kind == INTEGER:
                    self._drawing.add_integer(one.name, expected, got, rows)
                    self.differ[one.name][0] += expected.size
                    self.differ[one.name][1] += expected.size
                    continue
                raise TrtTuiError(f"{one.name} changed its shape", f"{expected.shape} in what it is held against, "
                                  f"{got.shape} here",
                                  "Judge a tensor before the operator that selects values, with --judge.")
            if one.kind == INTEGER:
                self._drawing.add_integer(one.name, expected, got, rows)
                self.differ[one.name][0] += int(np.count_nonzero(expected != got))
                self.differ[one.name][1] += expected.size
                continue
            counts = kept_elements(one, self._samples, index, reference[one.tensor], test[one.tensor])
            if counts is None:
                self.sums[one.name].add(expected, got)
                each_sums = metrics.sample_sums(expected, got, rows)
            else:
                self.sums[one.name].add(expected[counts], got[counts])
                each_sums = metrics.sample_sums(np.where(counts, expected, 0), np.where(counts, got, 0), rows)
                each_sums[:, -1] = rows_of(counts, rows).sum(1)
            self._add_samples(one.name, each_sums, expected, rows)
            if one is self._classifier:
                top, now = expected.reshape(rows, -1).argmax(1), got.reshape(rows, -1).argmax(1)
                self.agreed += int(np.count_nonzero(top == now))
                self._drawing.add_agreement(top == now)
        if self._scoring is not None:
            self.kept.append({name: test[name] for name in self._scoring.names})
            self.indices.append(index)
        self.samples += rows

    def _add_sums(self, name: str, sums: np.ndarray, expected: np.ndarray, rows: int) -> None:
        """Adds what a run compared itself."""
        columns = dict(zip((*COLUMNS, "ref2", "ref_max"), sums.T, strict=True))
        self.sums[name].merge({column: values.max() if column.endswith("_max") else values.sum()
                               for column, values in columns.items()} | {"count": expected.size})
        counts = np.full(len(sums), expected.size / len(sums))
        each = np.stack([columns["diff2"], columns["ref2"], columns["test2"], columns["diff1"], counts], axis=1)
        self._add_samples(name, each if len(sums) == rows else each.sum(0, keepdims=True), expected, rows)

    def _add_samples(self, name: str, sums: np.ndarray, expected: np.ndarray, rows: int) -> None:
        """Adds the sums of samples (`metrics.sample_sums`)."""
        self._drawing.add_float(name, sums)
        if expected.ndim and len(expected) == rows:
            each = metrics.sample_sqnr_db(sums)
            lowest = int(np.argmin(np.where(np.isnan(each), np.inf, each)))
            if each[lowest] < self.worst.get(name, (None, math.inf))[1]:
                self.worst[name] = (self.samples + lowest, float(each[lowest]))

    def verdict(self, with_metric: bool = True) -> Verdict:
        """What is pooled so far.

        Raises:
            InputError: a judged slice takes nothing of any sample, or the metric fails.
        """
        outputs = {}
        for one in self.judged:
            if one.kind == INTEGER:
                differ, count = self.differ[one.name]
                outputs[one.name] = OutputErrors(Errors(mismatch=differ / count if count else 0.0, exact=differ == 0))
                continue
            if self.samples == self.total and not self.sums[one.name].count:
                raise InputError(f"{one.name} selects nothing of what the network computes", "", "Judge another slice.")
            index, worst = self.worst.get(one.name, (None, math.inf))
            outputs[one.name] = OutputErrors(self.sums[one.name].errors(), index,
                                             worst if math.isfinite(worst) else None)
        metric = {}
        if self._scoring is not None and with_metric and self.kept and not self._failures:
            metric = self._metric(self._scoring)
        agreement = self.agreed / self.samples if self._classifier is not None and self.samples else None
        noise = [sums.noise for sums in self.sums.values()] or [one.errors.mismatch or 0.0 for one in outputs.values()]
        spread = self._drawing.spread() if self.samples == self.total else None
        return Verdict(outputs, metric, agreement, self.samples, self.total, sum(noise) if noise else None, spread,
                       caveats=tuple(self._failures[:1]))

    def noise(self) -> tuple[np.ndarray, np.ndarray]:
        """Noise and signal of each sample at each output that the judged error is made of; see `Drawing.noise`."""
        return self._drawing.noise()

    def settled(self, verdict: Verdict) -> Iterator[Verdict]:
        """Yields the verdict of all feeds after each draw of the metric, and last with the metric's interval.

        Yields nothing without a metric, or if the metric failed.
        """
        if self._scoring is None or not verdict.metric:
            return
        for spread in self._scoring.spread(self.kept, self.indices, verdict.spread or Spread()):
            yield replace(verdict, spread=spread)

    def _metric(self, scoring: Scoring) -> dict[str, float]:
        try:
            return scoring.score(self.kept, self.indices)
        except InputError:
            # A metric is not called on NaN and Inf: the outputs already show that the run is broken.
            if all(np.isfinite(array).all() for one in self.kept for array in one.values() if array.dtype.kind != "U"):
                raise
            return {}
