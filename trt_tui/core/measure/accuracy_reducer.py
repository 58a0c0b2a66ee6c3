"""The reduction of the outputs of a run, simulated or from an engine, to one accuracy over all samples."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trt_tui.core.data.batches import SampleName
from trt_tui.core.data.samples import Samples
from trt_tui.core.lowering.gated.error_sums import SAMPLE_SUM_COLUMNS
from trt_tui.core.measure import error_metrics
from trt_tui.core.measure.error_metrics import (
    AccuracyIntervals,
    BootstrapSampler,
    ErrorMetrics,
    ErrorSums,
    finite_or_none,
    flatten_each_sample,
)
from trt_tui.core.measure.judged_outputs import INTEGER_KIND, JudgedOutput, find_unmasked_elements, take_judged_slice
from trt_tui.core.measure.results import Accuracy, Caveat, OutputErrors
from trt_tui.core.measure.simulation_limits import FailedRunOutputs
from trt_tui.core.measure.user_metric import MetricScorer
from trt_tui.errors import InputError, TrtTuiError


def convert_to_comparable_array(output: Any) -> np.ndarray:
    """Returns an output of ONNX Runtime as an array whose elements have a fixed size.

    ONNX Runtime returns strings as an object array, and a single string as a `str`.
    """
    if isinstance(output, np.ndarray) and output.dtype.kind != "O":
        return output
    return np.asarray(output, np.str_)


class AccuracyReducer:
    """The sums from which the accuracy of one run is computed, collected feed by feed.

    Args:
        samples: The judged samples.
        feed_indices: The indices of the feeds that are judged. Feeds that are added besides count only if they contain
            NaN or Inf.
        compared_feeds: The feeds among them whose errors are also computed by themselves; () for none.
        judged_outputs: The outputs at which errors are computed.
        get_reference: Returns the judged tensors of the reference for a feed.
        classifier_output: The judged output at which top-1 agreement is counted; None if there is none.
        metric_scorer: The user's metric; None without a metric.

    Attributes:
        bootstrap_sampler: The sums of each sample, from which confidence intervals follow.
    """

    def __init__(
        self,
        samples: Samples,
        feed_indices: Sequence[int],
        judged_outputs: Sequence[JudgedOutput],
        get_reference: Callable[[int], Mapping[str, np.ndarray]],
        *,
        compared_feeds: Sequence[int] = (),
        classifier_output: JudgedOutput | None = None,
        metric_scorer: MetricScorer | None = None,
    ) -> None:
        self._samples = samples
        self._get_reference = get_reference
        self._classifier_output = classifier_output
        self._metric_scorer = metric_scorer
        self.bootstrap_sampler = BootstrapSampler()
        self._failures: list[Caveat] = []
        self._judged_feeds, self._compared_feeds = frozenset(feed_indices), frozenset(compared_feeds)
        self.judged_outputs = tuple(judged_outputs)
        self.error_sums, self._compared_sums = (
            {judged_output.name: ErrorSums() for judged_output in judged_outputs if judged_output.kind != INTEGER_KIND}
            for _ in range(2)
        )
        self.worst_samples: dict[str, tuple[SampleName, float]] = {}
        self.metric_outputs: dict[int, Mapping[str, np.ndarray]] = {}
        self.added_samples = 0
        self.total_samples = sum(samples.count_samples_of_feed(index) for index in feed_indices)

    def add_feed_outputs(
        self,
        feed_index: int,
        outputs: Mapping[str, np.ndarray],
        precomputed_sums: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Adds the outputs of a run for one feed to the sums from which its accuracy is computed.

        Args:
            precomputed_sums: The sums that the graph computed itself, by judged output: `SAMPLE_SUM_COLUMNS`, Σref² and
                the largest |ref| of each sample, all finite. The tensors of these outputs are not read.

        Raises:
            TrtTuiError: a judged float tensor has another shape than the reference.
        """
        rows = self._samples.count_samples_of_feed(feed_index)
        reference = self._get_reference(feed_index)
        if isinstance(outputs, FailedRunOutputs):
            self._failures.append(outputs.caveat)
        is_judged = feed_index in self._judged_feeds
        for judged_output in self.judged_outputs:
            if not is_judged and (judged_output.kind == INTEGER_KIND or judged_output.tensor not in outputs):
                continue
            expected = take_judged_slice(reference[judged_output.tensor], judged_output)
            if precomputed_sums and judged_output.name in precomputed_sums:
                columns = precomputed_sums[judged_output.name].T
                count = np.full(columns.shape[1], expected.size / columns.shape[1])
                self._add_error_sums(
                    feed_index,
                    judged_output.name,
                    {"count": count, **dict(zip((*SAMPLE_SUM_COLUMNS, "ref2", "ref_max"), columns, strict=True))},
                    rows,
                )
                continue
            got = take_judged_slice(outputs[judged_output.tensor], judged_output)
            if judged_output.kind == INTEGER_KIND:
                self.bootstrap_sampler.add_integer_output(judged_output.name, expected, got, rows)
                continue
            if expected.shape != got.shape and not is_judged:
                continue
            if expected.shape != got.shape:
                raise TrtTuiError(
                    f"{judged_output.name} changed its shape",
                    f"{expected.shape} in the reference, {got.shape} here",
                    "Judge a tensor before the operator that selects values, with --judge.",
                )
            counted = find_unmasked_elements(
                judged_output, self._samples, feed_index, reference[judged_output.tensor], outputs[judged_output.tensor]
            )
            if counted is None:
                sums = error_metrics.compute_error_sums_by_name(expected, got, rows)
            else:
                sums = error_metrics.compute_error_sums_by_name(
                    np.where(counted, expected, 0), np.where(counted, got, 0), rows
                )
                sums["count"] = flatten_each_sample(counted, rows).sum(1)
            self._add_error_sums(feed_index, judged_output.name, sums, rows)
            if judged_output is self._classifier_output and is_judged:
                top, now = expected.reshape(rows, -1), got.reshape(rows, -1)
                has_new_nan = (np.isnan(now) & ~np.isnan(top)).any(1)  # argmax takes NaN for the largest score
                agrees = (top.argmax(1) == now.argmax(1)) & ~has_new_nan
                self.bootstrap_sampler.agreements.append(agrees.astype(np.float64)[:, None])
        if self._metric_scorer is not None and is_judged:
            self.metric_outputs[feed_index] = {name: outputs[name] for name in self._metric_scorer.output_names}
        self.added_samples += rows * is_judged

    def _add_error_sums(
        self,
        feed_index: int,
        output_name: str,
        sums: Mapping[str, np.ndarray],
        sample_count: int,
    ) -> None:
        """Adds the error sums of a judged output over one feed, and updates its worst sample.

        Of a feed that is not judged only NaN and Inf count.

        Args:
            sums: The sums of each row, by name; see `error_metrics.compute_error_sums_by_name`.
        """
        pooled = {name: values.max() if name.endswith("_max") else values.sum() for name, values in sums.items()}
        is_judged = feed_index in self._judged_feeds
        if not is_judged:
            pooled = {"nan": pooled.get("nan", 0), "inf": pooled.get("inf", 0), "diff2": math.nan}
            if not pooled["nan"] + pooled["inf"]:
                return
        self.error_sums[output_name].merge_sums(pooled)
        if feed_index in self._compared_feeds:
            self._compared_sums[output_name].merge_sums(pooled)
        if len(sums["count"]) != sample_count:
            sums = {name: sums[name].sum(keepdims=True) for name in error_metrics.SAMPLE_SUMS}
        if is_judged:
            self.bootstrap_sampler.add_float_output_sums(output_name, sums)
        if len(sums["count"]) == sample_count:
            sqnrs_db = error_metrics.compute_sqnr_db_by_sample(sums)
            lowest = int(np.argmin(np.where(np.isnan(sqnrs_db), np.inf, sqnrs_db)))
            if sqnrs_db[lowest] < self.worst_samples.get(output_name, (None, math.inf))[1]:
                self.worst_samples[output_name] = (
                    self._samples.sample_name(feed_index, lowest),
                    float(sqnrs_db[lowest]),
                )

    def compute_accuracy(self, with_metric: bool = True) -> Accuracy:
        """Returns the accuracy over all feeds that were added so far.

        Raises:
            InputError: a judged slice contains no element of any sample, or the metric fails.
        """
        outputs = {}
        for judged_output in self.judged_outputs:
            if judged_output.kind == INTEGER_KIND:
                differ, count = self.bootstrap_sampler.count_mismatches(judged_output.name)
                outputs[judged_output.name] = OutputErrors(
                    ErrorMetrics(mismatch=differ / (count or 1), exact=differ == 0)
                )
                continue
            if self.added_samples == self.total_samples and not self.error_sums[judged_output.name]["count"]:
                raise InputError(f"{judged_output.name} selects no values of the output", "", "Judge another slice.")
            name, worst = self.worst_samples.get(judged_output.name, (None, math.inf))
            outputs[judged_output.name] = OutputErrors(
                self.error_sums[judged_output.name].compute_error_metrics(),
                name,
                finite_or_none(worst),
            )
        metric, reference_metric, compared_metric = {}, {}, {}
        if self._metric_scorer is not None and with_metric and self.metric_outputs and not self._failures:
            # On some of the feeds a metric may fail, for example if all their samples are of one class. It has no value
            # then. On all samples its error is raised.
            ignored_errors = [InputError] if self.added_samples < self.total_samples else []
            with contextlib.suppress(*ignored_errors):
                reference_metric = self._metric_scorer.compute_reference_metric([*self.metric_outputs])
                metric = self._compute_metric(self._metric_scorer, self.metric_outputs)
                compared = {
                    feed: outputs for feed, outputs in self.metric_outputs.items() if feed in self._compared_feeds
                }
                if compared:
                    compared_metric = self._compute_metric(self._metric_scorer, compared)
        agreements = self.bootstrap_sampler.agreements
        noise = [sums.noise_to_signal_ratio for sums in self.error_sums.values()] or [
            judged_output.errors.mismatch or 0.0 for judged_output in outputs.values()
        ]
        spread = self.bootstrap_sampler.compute_intervals() if self.added_samples == self.total_samples else None
        compared_outputs = (
            {name: OutputErrors(sums.compute_error_metrics()) for name, sums in self._compared_sums.items()}
            if self._compared_feeds
            else {}
        )
        return Accuracy(
            outputs,
            metric,
            float(np.concatenate(agreements).mean()) if agreements else None,
            self.added_samples,
            self.total_samples,
            sum(noise) if noise else None,
            spread,
            caveats=tuple(self._failures[:1]),
            reference_metric=reference_metric,
            compared_outputs=compared_outputs,
            compared_metric=compared_metric,
        )

    def resample_metric_interval(self, accuracy: Accuracy) -> Iterator[Accuracy]:
        """Yields the accuracy of all feeds after each bootstrap draw of the metric, and last with the interval of the
        metric.

        Yields nothing without a metric, or if the metric failed.
        """
        if self._metric_scorer is None or not accuracy.metric:
            return
        for spread in self._metric_scorer.measure_metric_intervals(
            [*self.metric_outputs.values()], [*self.metric_outputs], accuracy.intervals or AccuracyIntervals()
        ):
            yield replace(accuracy, intervals=spread)

    @staticmethod
    def _compute_metric(
        metric_scorer: MetricScorer, outputs_by_feed: Mapping[int, Mapping[str, np.ndarray]]
    ) -> dict[str, float]:
        try:
            return metric_scorer.compute_metric([*outputs_by_feed.values()], [*outputs_by_feed])
        except InputError:
            # A metric is not called on NaN and Inf: the outputs already show that the run is broken.
            if all(
                np.isfinite(array).all()
                for arrays in outputs_by_feed.values()
                for array in arrays.values()
                if array.dtype.kind != "U"
            ):
                raise
            return {}
