"""The user's metric: a Python function that computes a number from outputs and labels.

It is computed on all samples, on bootstrap draws of the samples, and by part.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trt_tui.core.data.batches import join_batches
from trt_tui.core.data.samples import Samples
from trt_tui.core.data.userscript import UserFunction, split_script_spec
from trt_tui.core.measure.error_metrics import (
    METRIC_RESAMPLE_COUNT,
    MIN_SAMPLES,
    AccuracyIntervals,
    compute_metric_interval,
    draw_resamples,
    drop_missing_intervals,
    pair_each_sample_with_another,
)
from trt_tui.errors import InputError, exception_text


class Metric:
    """A metric: a function ``(outputs, labels) -> float | mapping of names to floats`` with a check of its result."""

    def __init__(self, function: UserFunction) -> None:
        self._function = function

    @property
    def name(self) -> str:
        """The name of the metric: ``FILE.py:FUNCTION``, without the folder."""
        return str(self._function)

    def __call__(self, outputs: Mapping[str, np.ndarray], labels: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Calls the metric function, and returns its checked numbers by name, the headline first.

        A single number has the name of the metric.

        Args:
            outputs: The network's outputs by name, first axis samples.
            labels: The labels by name, rows for the same samples.

        Raises:
            InputError: the function raised an error, or did not return a finite number or a mapping of names to finite
                numbers.
        """
        returned_value: object = self._function(dict(outputs), dict(labels))
        if not isinstance(returned_value, Mapping):
            return {self.name: self._parse_number(returned_value, "")}
        try:
            items = list(returned_value.items())
        except Exception as error:
            raise self._invalid_result_error(
                f"a {type(returned_value).__name__} that cannot be read: {exception_text(error)}"
            ) from error
        if not items:
            raise self._invalid_result_error("an empty mapping")
        parts = {}
        for key, value in items:
            if not isinstance(key, str):
                raise self._invalid_result_error(f"a mapping with the key {_describe_value(key)}")
            parts[key] = self._parse_number(value, f" for {key!r}")
        return parts

    def _parse_number(self, value: object, location: str) -> float:
        try:
            array = np.asarray(value)
        except Exception:  # an object's own __array__ may raise anything
            raise self._invalid_result_error(f"{_describe_value(value)}{location}") from None
        if array.size != 1 or array.dtype.kind not in "biuf":
            raise self._invalid_result_error(f"{_describe_value(value)}{location}")
        number = float(array.reshape(()))
        if not math.isfinite(number):
            raise self._invalid_result_error(f"{number}{location}")
        return number

    def _invalid_result_error(self, returned_text: str) -> InputError:
        return InputError(
            f"Metric {self.name} returned {returned_text}",
            "A metric returns a finite number, or a mapping of names to finite numbers (the first is the headline).",
            f"Correct {self._function.path}.",
        )


def _describe_value(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and type {value.dtype}"
    try:
        text = repr(value)
    except Exception:  # the `repr` of a user's class may fail
        return type(value).__name__
    return f"{type(value).__name__} {text}" if value is not None and len(text) <= 40 else type(value).__name__


def load_metric(metric_spec: str) -> Metric:
    """Loads a metric from ``FILE.py:FUNCTION``.

    Raises:
        InputError: the text has another form, the file cannot be loaded, or it has no such function.
    """
    path, function = split_script_spec(metric_spec) or (None, None)
    if path is None or function is None:
        raise InputError(
            f"Not a metric: {metric_spec}",
            "A metric is given as FILE.py:FUNCTION.",
            "For example: --metric metric.py:accuracy",
        )
    user_function = UserFunction(path, function)
    user_function.check_parameters("outputs", "labels")
    return Metric(user_function)


@dataclass(frozen=True)
class MetricPartRow:
    """One part of a metric, in FP32 and in each run.

    Attributes:
        reference_value: The value in FP32.
        run_values: The value in each run; None if the run has no such part.
        max_drop: By how much the worst run is below FP32; negative if every run is above. None if no run has the part.
    """

    part_name: str
    reference_value: float
    run_values: tuple[float | None, ...]
    max_drop: float | None


def metric_part_rows(
    reference_metric: Mapping[str, float], run_metrics: Sequence[Mapping[str, float]]
) -> list[MetricPartRow]:
    """Returns one row for each part of a metric: first the headline, then the parts, the largest drop of any run first.

    Args:
        reference_metric: The metric and its parts in FP32, the headline first.
        run_metrics: The metric and its parts in each run. A part that was not measured is absent.
    """
    rows = [
        MetricPartRow(
            name, base, run_values, max((base - figure for figure in run_values if figure is not None), default=None)
        )
        for name, base in reference_metric.items()
        for run_values in [tuple(run.get(name) for run in run_metrics)]
    ]
    return rows[:1] + sorted(rows[1:], key=lambda row: -row.max_drop if row.max_drop is not None else float("inf"))


FeedOutputs = Sequence[Mapping[str, np.ndarray]]
"""The outputs of a run by name, feed by feed."""

SHUFFLED, SCRAMBLED = "shuffled", "scrambled"
"""Names of meaningless outputs. Shuffled: each sample has the outputs of another sample. Scrambled: the values of each
output are in random order, as in a random answer with the same values."""


class MetricScorer:
    """The user's metric together with the samples, labels and reference that it is computed from.

    Args:
        output_names: The outputs that the metric receives.
        get_reference: Returns the outputs of the reference for a feed.
    """

    def __init__(
        self,
        metric: Metric,
        samples: Samples,
        output_names: Sequence[str],
        get_reference: Callable[[int], Mapping[str, np.ndarray]],
    ) -> None:
        self._metric = metric
        self._samples = samples
        self._reference = get_reference
        self.output_names = tuple(output_names)
        self._reference_draws: dict[tuple[int, ...], list[dict[str, float]]] = {}
        self._reference_metrics: dict[tuple[int, ...], dict[str, float]] = {}

    def compute_metric(self, feed_outputs: FeedOutputs, feed_indices: Sequence[int]) -> dict[str, float]:
        """Returns the metric and its parts for the outputs of some feeds, headline first.

        Raises:
            InputError: the metric fails.
        """
        return self._metric(*self._join_outputs_and_labels(feed_outputs, feed_indices))

    def compute_reference_metric(self, feed_indices: Sequence[int]) -> dict[str, float]:
        """Returns the metric of the reference on some feeds, which is computed only once."""
        key = tuple(feed_indices)
        if key not in self._reference_metrics:
            self._reference_metrics[key] = self.compute_metric([self._reference(feed) for feed in key], key)
        return self._reference_metrics[key]

    def resample_metric(self, feed_outputs: FeedOutputs, feed_indices: Sequence[int]) -> Iterator[dict[str, float]]:
        """Yields the metric and its parts on each bootstrap draw of the samples; {} for a draw on which the metric
        fails.

        If the rows of an array are not the samples, whole feeds are drawn; see `trt_tui.core.measure.error_metrics`.
        """
        joined_outputs, labels = self._join_outputs_and_labels(feed_outputs, feed_indices)
        sample_count = self._count_samples_if_separable(joined_outputs, labels, feed_indices)
        count = sample_count or len(feed_indices)
        draws = draw_resamples(count, METRIC_RESAMPLE_COUNT) if count >= MIN_SAMPLES else ()
        for numbers in draws:
            try:
                yield (
                    self._metric(
                        *(
                            {name: array[numbers] for name, array in arrays.items()}
                            for arrays in (joined_outputs, labels)
                        )
                    )
                    if sample_count
                    else self.compute_metric(
                        [feed_outputs[number] for number in numbers], [feed_indices[number] for number in numbers]
                    )
                )
            except InputError:  # for example, if no sample of a class was drawn
                yield {}

    def score_meaningless_outputs(self, feed_indices: Sequence[int]) -> dict[str, dict[str, float]]:
        """Returns the metric of meaningless outputs: the reference outputs of other samples, and shuffled values.

        The keys are `SHUFFLED` and `SCRAMBLED`.

        A key is absent if the metric fails on these outputs, or if there is only one sample to shuffle.
        """
        outputs = [self._reference(feed) for feed in feed_indices]
        joined_outputs, labels = self._join_outputs_and_labels(outputs, feed_indices)
        count = self._count_samples_if_separable(joined_outputs, labels, feed_indices)
        other_samples = pair_each_sample_with_another(count or len(feed_indices))
        metrics_by_kind: dict[str, dict[str, float]] = {}
        with contextlib.suppress(InputError):
            if count > 1:
                metrics_by_kind[SHUFFLED] = self._metric(
                    {name: array[other_samples] for name, array in joined_outputs.items()}, labels
                )
            elif len(feed_indices) > 1:
                metrics_by_kind[SHUFFLED] = self.compute_metric(
                    [outputs[position] for position in other_samples], feed_indices
                )
        with contextlib.suppress(InputError):
            rng = np.random.default_rng(len(feed_indices))
            metrics_by_kind[SCRAMBLED] = self.compute_metric(
                [
                    {
                        name: rng.permutation(arrays[name].ravel()).reshape(arrays[name].shape)
                        for name in self.output_names
                    }
                    for arrays in outputs
                ],
                feed_indices,
            )
        return metrics_by_kind

    def _count_samples_if_separable(
        self, joined_outputs: Mapping[str, np.ndarray], labels: Mapping[str, np.ndarray], feed_indices: Sequence[int]
    ) -> int:
        """Returns the number of samples if the rows of all arrays are the samples; 0 if not."""
        rows = sum(self._samples.count_samples_of_feed(feed) for feed in feed_indices)
        return rows if all(len(array) == rows for array in (*joined_outputs.values(), *labels.values())) else 0

    def measure_metric_intervals(
        self, feed_outputs: FeedOutputs, feed_indices: Sequence[int], intervals: AccuracyIntervals
    ) -> Iterator[AccuracyIntervals]:
        """Measures the confidence intervals of the metric; yields the intervals of the accuracy after each bootstrap
        draw.

        Only the last item has the intervals of the metric and of its difference from FP32.
        """
        key = tuple(feed_indices)
        if key not in self._reference_draws:
            base: list[dict[str, float]] = []
            for value in self.resample_metric([self._reference(feed) for feed in feed_indices], feed_indices):
                base.append(value)
                yield intervals
            self._reference_draws[key] = base
        run_draws: list[dict[str, float]] = []
        for value in self.resample_metric(feed_outputs, feed_indices):
            run_draws.append(value)
            yield intervals
        base = self._reference_draws[key]
        names = dict.fromkeys(name for draw in run_draws for name in draw)
        count = self._count_samples_if_separable(
            *self._join_outputs_and_labels(feed_outputs, feed_indices), feed_indices
        ) or len(feed_indices)
        reference_score, shuffled = (
            self.compute_reference_metric(feed_indices),
            self.score_meaningless_outputs(feed_indices).get(SHUFFLED, {}),
        )
        losses = {name: reference_score[name] - shuffled[name] for name in reference_score if name in shuffled}
        metric = {
            name: compute_metric_interval([draw.get(name) for draw in run_draws], count, losses.get(name))
            for name in names
        }
        gains = {
            name: compute_metric_interval(
                [
                    run_metric[name] - reference_metric[name]
                    if name in run_metric and name in reference_metric
                    else None
                    for run_metric, reference_metric in zip(run_draws, base, strict=True)
                ],
                count,
                losses.get(name),
            )
            for name in names
        }
        yield replace(
            intervals,
            metric=drop_missing_intervals(metric),
            metric_gains=drop_missing_intervals(gains),
            metric_draws=len(run_draws),
        )

    def _join_outputs_and_labels(
        self, feed_outputs: FeedOutputs, feed_indices: Sequence[int]
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        labels = [self._samples.read_labels(feed) for feed in feed_indices]
        return (
            {name: join_batches(name, [arrays[name] for arrays in feed_outputs]) for name in self.output_names},
            {name: join_batches(name, [arrays[name] for arrays in labels]) for name in labels[0]},
        )
