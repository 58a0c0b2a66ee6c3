"""Error metrics of pairs of tensors, pooled over samples in float64.

`ERROR_METRICS` is the only table of these metrics. A metric is a formula over sums. `ErrorSums` computes the sums in
numpy, `trt_tui.core.lowering.gated` computes them in the graph, and the bootstrap draws them.

The values of an accuracy have confidence intervals, by the bootstrap over samples with expanded percentile intervals.

As many samples as there are get drawn with replacement, and each value is computed from each draw (Efron and
Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13). The percentiles are chosen so that the interval of a
mean is as wide as Student's t interval (Hesterberg, What Teachers Should Know About the Bootstrap, 2015, section 5.3).
With 8 samples the plain percentiles cover 88 %, the expanded ones 95 %. As with every interval of few samples, coverage
is lower for values that a few samples dominate. Noise energies with a lognormal distribution of sigma 1 are covered in
85 % of cases with 8 samples, and in 95 % with 256. All runs on the same samples use the same draws, so the intervals of
two runs can be compared.

If all samples have the same value, all draws have that value too, and the interval would have no width. Rates of
samples, such as the top-1 agreement, therefore have the exact binomial interval of Clopper and Pearson (1934). A metric
that is equal on all draws is widened by the rate of losses that this interval allows if none was observed.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, Literal

import numpy as np

from trt_tui.core.lowering.gated.error_sums import ERROR_SUM_COLUMNS
from trt_tui.formatting import (
    NOT_MEASURED,
    SIMULATED_MARK,
    add_decibel_unit,
    cosine_text,
    decibels_text,
    mismatch_text,
    number_text,
)

SAMPLE_SUMS = ("diff2", "ref2", "test2", "diff1", "count")
"""The sums of `ErrorSums` that are also computed for each sample. Maxima are not among them, because samples that were
not measured may exceed them by any amount."""

MISMATCH_SUMS = ("differ", "count")
"""The sums of integer outputs: the number of elements that differ, and the number of all elements."""

RunTable = Literal[
    "runs", "stages", "dumps", "outputs", "engines", "configs", "search", "simulated", "built", "config list"
]
"""The tables of runs. Printed: "runs", "stages" and "dumps". In Markdown also: "outputs" (the judged outputs)
and "engines". Both: "configs" (side by side) and "search" (its engines). In the app: "simulated" and "built" (the two
sides of the header) and "config list"."""


@dataclass(frozen=True, kw_only=True)
class BoundedValue:
    """A value of an accuracy that a target can bound, with its name, unit and format.

    Attributes:
        name: The name in targets and intervals.
        title: The title of the value alone.
        description: The name of the value in a target; "" for ``title``.
        is_share: True if the value is between 0 and 1 and may be written in percent.
        unit: "dB" or "".
        format_value: Returns the text of a value without its unit.
    """

    name: str
    title: str
    description: str = ""
    is_higher_better: bool = True
    is_share: bool = False
    unit: str = ""
    format_value: Callable[[float], str] = number_text

    def value_text(self, value: float, mark: str = "") -> str:
        """Returns the text of a value without its unit, with a mark such as "~" before a number. Words like ``exact``
        get no mark."""
        text = self.format_value(value)
        return text if text.isalpha() else mark + text

    def value_with_unit_text(self, value: float, mark: str = "") -> str:
        """Returns the text of a value with its unit, and with a mark such as "~" before the number."""
        text = self.value_text(value, mark)
        return add_decibel_unit(text) if self.unit else text


@dataclass(frozen=True, kw_only=True)
class ErrorMetric(BoundedValue):
    """An error metric: its formula over sums, its format, and the tables that show it in a column.

    Attributes:
        key: The key in records, and the attribute of `ErrorMetrics` if there is one.
        sums: The names of the arguments of ``formula``: sums of `ErrorSums` or `MISMATCH_SUMS`.
        formula: Computes the metric, element by element of float64 arrays; not finite if it is undefined.
        exact_value: The value of an exact copy.
        noise_ratio: Returns the error energy at a value relative to that at a bound; None if the metric is not an
            energy.
        is_always_recorded: True if records have null for an undefined value.
        heading: The heading of its columns; "" for ``title``.
        tables: The tables with a column of the metric.
    """

    key: str
    sums: tuple[str, ...]
    formula: Callable[..., Any]
    exact_value: float = 0.0
    noise_ratio: Callable[[float, float], float] | None = None
    is_always_recorded: bool = False
    heading: str = ""
    tables: tuple[RunTable, ...] = ()

    @property
    def is_for_integers_only(self) -> bool:
        """True if the metric is measured at integer outputs only."""
        return "differ" in self.sums

    @property
    def is_maximum(self) -> bool:
        """True if the metric is a maximum, which a sample that was not measured may exceed by any amount."""
        return any(name.endswith("_max") for name in self.sums)

    @property
    def column_heading(self) -> str:
        return self.heading or self.title


def _sqnr_db(diff2: Any, ref2: Any) -> Any:
    """Returns 10·log10(Σref² / Σ(test-ref)²): infinite for an exact copy, minus infinity if the test is not finite."""
    return np.where(np.isfinite(diff2), np.where(diff2 == 0, np.inf, 10 * np.log10(ref2 / diff2)), -np.inf)


def _cosine(diff2: Any, ref2: Any, test2: Any) -> Any:
    """Returns the cosine similarity, from Σref·test = (Σref² + Σtest² - Σ(test-ref)²) / 2.

    This formula loses no digits if the two tensors are close.
    """
    energy = ref2 * test2
    cosine = np.where(energy > 0, (ref2 + test2 - diff2) / 2 / np.sqrt(energy), np.nan)
    return np.where(diff2 == 0, 1.0, np.clip(cosine, -1, 1))


def _energy_ratio(value: float, bound: float) -> float:
    if value == 0:
        return 0.0
    return value / bound if bound > 0 else math.inf


def _squared_ratio(value: float, bound: float) -> float:
    return _energy_ratio(value, bound) ** 2


ERROR_METRICS = {
    metric.name: metric
    for metric in (
        ErrorMetric(
            name="sqnr",
            key="sqnr_db",
            title="SQNR",
            unit="dB",
            sums=("diff2", "ref2"),
            formula=_sqnr_db,
            format_value=lambda value: decibels_text(value, exact=value == math.inf, mark=""),
            exact_value=math.inf,
            noise_ratio=lambda value, bound: 10 ** min(300.0, (bound - value) / 10),
            is_always_recorded=True,
            tables=("runs", "outputs", "stages", "configs", "config list", "simulated", "built", "dumps"),
        ),
        ErrorMetric(
            name="cosine",
            key="cosine",
            title="cosine",
            is_share=True,
            sums=("diff2", "ref2", "test2"),
            formula=_cosine,
            format_value=cosine_text,
            exact_value=1.0,
            noise_ratio=lambda value, bound: _energy_ratio(1 - value, 1 - bound),
            is_always_recorded=True,
            tables=("runs", "outputs", "stages", "dumps"),
        ),
        ErrorMetric(
            name="mse",
            key="mse",
            title="MSE",
            is_higher_better=False,
            sums=("diff2", "count"),
            formula=np.divide,
            noise_ratio=_energy_ratio,
            tables=("stages",),
        ),
        ErrorMetric(
            name="max_abs",
            key="max_abs",
            title="max error",
            description="largest error",
            heading="max abs",
            is_higher_better=False,
            sums=("diff_max", "count"),
            formula=lambda diff_max, count: np.where(count > 0, diff_max, np.nan),
            noise_ratio=_squared_ratio,
            tables=("outputs", "stages", "dumps"),
        ),
        ErrorMetric(
            name="mean_abs",
            key="mean_abs",
            title="mean error",
            heading="mean abs",
            is_higher_better=False,
            sums=("diff1", "count"),
            formula=np.divide,
            noise_ratio=_squared_ratio,
            tables=("outputs", "dumps"),
        ),
        ErrorMetric(
            name="mismatch",
            key="mismatch",
            title="differing",
            description="share that differs",
            heading="differ",
            is_higher_better=False,
            is_share=True,
            sums=MISMATCH_SUMS,
            formula=np.divide,
            format_value=mismatch_text,
            tables=("outputs",),
        ),
    )
}
"""All error metrics by name, in the order of columns and records."""


def finite_or_none(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def list_error_columns(table: RunTable) -> list[ErrorMetric]:
    return [metric for metric in ERROR_METRICS.values() if table in metric.tables]


def compute_noise_to_signal_ratios(noise: np.ndarray | float, signal: np.ndarray | float) -> np.ndarray:
    """Returns Σ(test-ref)² / Σref² element by element: 0 for an exact copy, infinite if it is not finite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(np.equal(noise, 0), 0.0, np.divide(noise, signal))
    return np.where(np.isfinite(ratios), ratios, math.inf)


def compute_metric_values(sums: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns the values of all error metrics whose sums are present, by name: float64 in the shape of the sums."""
    arrays = {name: np.asarray(value, np.float64) for name, value in sums.items()}
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return {
            name: np.asarray(metric.formula(*(arrays[sum_name] for sum_name in metric.sums)))
            for name, metric in ERROR_METRICS.items()
            if arrays.keys() >= set(metric.sums)
        }


MIN_LOSSLESS_SQNR_DB = 40.0
"""The SQNR of the isolated error in FP16 below which a cause is named. One rounding leaves 60 to 75 dB."""


@dataclass(frozen=True)
class ErrorMetrics:
    """The errors of one tensor (or part of one) against the reference, pooled over samples.

    Attributes:
        sqnr_db: 10·log10(Σref² / Σ(test-ref)²) in dB; None if the error is exactly zero or a value is not finite.
        cosine: Cosine similarity of the two tensors, each joined over all samples; 1 for an exact copy.
        mse: Mean squared error, in the squared unit of the tensor.
        max_abs: Largest absolute difference.
        mean_abs: Mean absolute difference.
        mismatch: Fraction of elements that differ, for integer tensors.
        nan: Number of NaN in the test tensor.
        inf: Number of infinities in the test tensor that the reference does not have.
        exact: True if the difference is zero everywhere.
        other_values: By key, the values of all other `ERROR_METRICS`.
    """

    sqnr_db: float | None = None
    cosine: float | None = None
    mse: float | None = None
    max_abs: float | None = None
    mean_abs: float | None = None
    mismatch: float | None = None
    nan: int = 0
    inf: int = 0
    exact: bool = False
    other_values: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_values(cls, values: Mapping[str, Any], exact: bool) -> "ErrorMetrics":
        """Builds error metrics from values by their keys in records, including the counts of NaN and Inf."""
        own_values = {key: value for key, value in values.items() if hasattr(cls, key)}
        return cls(
            **own_values,
            exact=exact,
            other_values={key: value for key, value in values.items() if key not in own_values},
        )

    def value(self, metric: ErrorMetric) -> float | None:
        """Returns the value of an error metric, also for an exact copy; None if it was not measured or is not finite."""
        return metric.exact_value if self.exact else self.recorded_value(metric)

    def recorded_value(self, metric: ErrorMetric) -> float | None:
        """Returns the value of an error metric as stored. The SQNR of an exact copy is stored as None."""
        return self.other_values.get(metric.key, getattr(self, metric.key, None))

    def value_text(self, metric: ErrorMetric, mark: str = "") -> str:
        """Returns the text of an error metric in a table, with a mark such as "~" before the number."""
        if metric.key == "sqnr_db":
            return self.sqnr_text(mark)
        value = self.recorded_value(metric)
        return NOT_MEASURED if value is None else metric.value_text(value, mark)

    @property
    def is_lossy(self) -> bool:
        """True if values are not finite, or more is lost than one rounding to FP16 explains."""
        return (
            self.nonfinite_count > 0 or not self.exact and (self.sqnr_db is None or self.sqnr_db < MIN_LOSSLESS_SQNR_DB)
        )

    @property
    def nonfinite_count(self) -> int:
        return self.nan + self.inf

    @property
    def reference_rms(self) -> float | None:
        """The root mean square of the reference; None if the error is exactly zero or not finite."""
        if self.mse is None or self.sqnr_db is None:
            return None
        return math.sqrt(self.mse * 10 ** (self.sqnr_db / 10))

    @property
    def comparable_sqnr_db(self) -> float:
        """The SQNR in dB for comparisons: infinite for an exact copy, minus infinity for NaN, Inf or a reference
        without signal."""
        if self.exact:
            return math.inf
        return self.sqnr_db if self.sqnr_db is not None and not self.nonfinite_count else -math.inf

    def sqnr_text(self, prefix: str = SIMULATED_MARK) -> str:
        """Returns the text of the SQNR in the format of `trt_tui.formatting.decibels_text`, by default marked as
        simulated."""
        return decibels_text(self.sqnr_db, exact=self.exact, nan=self.nan, inf=self.inf, mark=prefix)


class ErrorSums(dict[str, Any]):
    """The sums over the elements of tensor pairs from which the `ERROR_METRICS` of float outputs are computed, by the
    names of `ERROR_SUM_COLUMNS`.

    Each sum is a number, or an array with the sums of several tensors.
    """

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(ERROR_SUM_COLUMNS, 0.0))

    def add_tensor_pair(self, reference: np.ndarray, test: np.ndarray) -> None:
        """Adds the error sums of a reference array and a test array of the same shape."""
        sums = compute_error_sums_by_name(np.ravel(reference)[None], np.ravel(test)[None], 1)
        self.merge_sums({name: float(values[0]) for name, values in sums.items()})

    def merge_sums(self, other_sums: Mapping[str, Any]) -> None:
        """Adds sums that were computed elsewhere (inside a graph), by name. Of maxima the larger one is kept."""
        for name, value in other_sums.items():
            # + 0.0, since the largest of 0 and -0 may be -0
            self[name] = np.fmax(self[name], value) + 0.0 if name.endswith("_max") else self[name] + value

    def merge_table(self, table: np.ndarray) -> None:
        """Adds a table with a row for each tensor and the columns `ERROR_SUM_COLUMNS`."""
        self.merge_sums(dict(zip(ERROR_SUM_COLUMNS, table.T, strict=True)))

    @property
    def noise_to_signal_ratio(self) -> float:
        """The noise-to-signal ratio Σ(test-ref)² / Σref², as `compute_noise_to_signal_ratios` computes it."""
        return float(compute_noise_to_signal_ratios(self["diff2"], self["ref2"]))

    def compute_error_metrics(self) -> ErrorMetrics:
        return self.compute_metrics_of_each_tensor()[0]

    def compute_metrics_of_each_tensor(self) -> list[ErrorMetrics]:
        """Returns the error metrics of each tensor. If its sums are not finite, only the counts of NaN and Inf are set."""
        values = compute_metric_values(self)
        columns = {ERROR_METRICS[name].key: np.ravel(array).tolist() for name, array in values.items()}
        states = zip(*(np.ravel(self[name]).tolist() for name in _STATE_SUMS), strict=True)
        return [
            ErrorMetrics(nan=int(nan), inf=int(inf))
            if nan or inf or not (math.isfinite(noise) and math.isfinite(signal))
            else ErrorMetrics.from_values(
                {key: column[index] for key, column in columns.items() if math.isfinite(column[index])},
                exact=noise == 0,
            )
            for index, (nan, inf, noise, signal) in enumerate(states)
        ]


_STATE_SUMS = ("nan", "inf", "diff2", "ref2")
"""The sums that tell whether a tensor is finite and exact."""


def compute_error_sums_by_name(reference: np.ndarray, test: np.ndarray, sample_count: int) -> dict[str, np.ndarray]:
    """Returns each sum of `ErrorSums` for each sample of two arrays, by the name of the sum: float64 ``(samples,)``.

    There is a single row if the first axis is not that of the samples. Infinities in both arrays, as in a mask, are
    neither signal nor noise.
    """
    expected = flatten_each_sample(np.asarray(reference, np.float64), sample_count)
    actual = flatten_each_sample(np.asarray(test, np.float64), sample_count)
    sums = {
        "count": np.full(len(expected), expected.shape[1], np.float64),
        "ref_max": np.maximum(expected.max(axis=1, initial=0.0), -expected.min(axis=1, initial=0.0)),
    }
    with np.errstate(invalid="ignore", over="ignore"):
        difference = actual - expected
        if not math.isfinite(float(difference.sum())):
            sums |= {
                name: (is_broken(actual) & ~is_broken(expected)).sum(axis=1)
                for name, is_broken in (("nan", np.isnan), ("inf", np.isinf))
            }
            same = expected == actual
            difference[same] = 0.0
            both = same & np.isinf(expected)
            expected, actual = np.where(both, 0.0, expected), np.where(both, 0.0, actual)
        sums |= {
            name: np.einsum("ij,ij->i", values, values)  # by one thread; a BLAS dot product would wake others
            for name, values in (("diff2", difference), ("ref2", expected), ("test2", actual))
        }
        size = np.abs(difference, out=difference)
        return {**sums, "diff1": size.sum(axis=1), "diff_max": size.max(axis=1, initial=0.0)}


def compute_sqnr_db_by_sample(sums: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the SQNR of each sample in dB from its sums (`SAMPLE_SUMS`), float64.

    inf for an exact copy, -inf if the test is not finite. NaN if the reference is zero throughout and the test is not,
    because no ratio describes this error.
    """
    sqnrs_db = compute_metric_values(sums)["sqnr"]
    sqnrs_db[(sums["ref2"] == 0) & (sums["diff2"] != 0) & np.isfinite(sums["diff2"])] = np.nan
    return sqnrs_db


def flatten_each_sample(array: np.ndarray, sample_count: int) -> np.ndarray:
    """Returns an array with one row for each sample; a single row if its first axis is not that of the samples."""
    return array.reshape(sample_count if array.ndim and len(array) == sample_count else 1, -1)


CONFIDENCE = 0.95
"""The confidence of all intervals. Each of the two tails has half of the remaining probability."""

RESAMPLE_COUNT = 999
"""The number of draws for values that are computed from sums of each sample."""

METRIC_RESAMPLE_COUNT = 199
"""The number of draws for the user's metric, which is called once for each. With 8 samples the ends of the interval are
the smallest and the largest draw. This is the smallest number of draws that then covers 95 %."""

MIN_SAMPLES = 8
"""The minimum number of samples for an interval. Fewer samples say too little about others."""

MAX_MATRIX_SAMPLES = 4096
"""The maximum number of samples for which the draws are kept as a matrix."""

MIN_VALID_DRAW_SHARE = 0.9
"""The minimum share of draws on which the metric must succeed. It may fail on a draw that lacks a class."""


@dataclass(frozen=True)
class ConfidenceInterval:
    """The 95 % confidence interval of one value, from ``low`` to ``high`` in the unit of the value.

    An end may be infinite, as the SQNR of an exact copy is.
    """

    low: float
    high: float


@dataclass(frozen=True)
class AccuracyIntervals:
    """The confidence intervals of all values of an accuracy. The keys of error metrics are their names in targets.

    Attributes:
        outputs: By judged output and error metric: the intervals of the `ERROR_METRICS` that follow from `SAMPLE_SUMS`
            or `MISMATCH_SUMS`.
        worst_output: By error metric: the interval of the worst value over the judged outputs.
        agreement_interval: The interval of the top-1 agreement.
        metric: The intervals of the user's metric and its parts, by part; a part without an interval is absent.
        metric_gains: The intervals of the differences between the metric and that of the FP32 network on the same draw,
            by part.
        metric_draws: How often the metric was called; None if it was not called.
    """

    outputs: Mapping[str, Mapping[str, ConfidenceInterval]] = field(default_factory=dict)
    worst_output: Mapping[str, ConfidenceInterval] = field(default_factory=dict)
    agreement_interval: ConfidenceInterval | None = None
    metric: Mapping[str, ConfidenceInterval] = field(default_factory=dict)
    metric_gains: Mapping[str, ConfidenceInterval] = field(default_factory=dict)
    metric_draws: int | None = None


def draw_resamples(sample_count: int, resample_count: int) -> Iterator[np.ndarray]:
    """Yields bootstrap draws: sample indices with repetitions, ``(sample_count,)`` integers for each draw.

    The random seed is ``sample_count``. The draws are yielded one by one, because all draws of a million samples take 8
    GB.
    """
    rng = np.random.default_rng(sample_count)
    return (rng.integers(0, sample_count, sample_count) for _ in range(resample_count))


def pair_each_sample_with_another(sample_count: int) -> np.ndarray:
    """Returns for each sample the index of another, randomly chosen sample, ``(sample_count,)``.

    The random seed is ``sample_count``.
    """
    order = np.random.default_rng(sample_count).permutation(sample_count)
    other_samples = np.empty_like(order)
    other_samples[order] = np.roll(order, 1)
    return other_samples


@functools.lru_cache(maxsize=2)
def _count_occurrences_in_resamples(sample_count: int) -> np.ndarray:
    """Returns the number of occurrences of each sample in each bootstrap draw, float64 ``(RESAMPLE_COUNT,
    sample_count)``."""
    return np.stack(
        [np.bincount(numbers, minlength=sample_count) for numbers in draw_resamples(sample_count, RESAMPLE_COUNT)]
    ).astype(np.float64)


def _sum_over_resamples(sample_sums: np.ndarray) -> np.ndarray:
    """Returns the sums over the samples of each bootstrap draw, float64 ``(RESAMPLE_COUNT, columns)``.

    Args:
        sample_sums: The sums of each sample, ``(samples, columns)``.
    """
    if len(sample_sums) <= MAX_MATRIX_SAMPLES and np.isfinite(sample_sums).all():
        result: np.ndarray = _count_occurrences_in_resamples(len(sample_sums)) @ sample_sums
        return result
    return np.stack([sample_sums[numbers].sum(0) for numbers in draw_resamples(len(sample_sums), RESAMPLE_COUNT)])


_NORMAL_QUANTILE = 1.959964
"""Half the width, in standard deviations, of the interval that contains 95 % of a normal distribution."""


def student_t_quantile(degrees_of_freedom: float) -> float:
    """Returns half the width of the 95 % interval of Student's t distribution.

    Accurate to 1 % from 3 degrees of freedom on. Source: Abramowitz and Stegun, Handbook of Mathematical Functions,
    26.7.5.

    Args:
        degrees_of_freedom: At least 1.
    """
    if degrees_of_freedom < 1.5:
        return 12.706
    if degrees_of_freedom < 2.5:
        return 4.303
    normal_quantile = _NORMAL_QUANTILE
    terms = (
        (normal_quantile**3 + normal_quantile) / 4,
        (5 * normal_quantile**5 + 16 * normal_quantile**3 + 3 * normal_quantile) / 96,
        (3 * normal_quantile**7 + 19 * normal_quantile**5 + 17 * normal_quantile**3 - 15 * normal_quantile) / 384,
        (
            79 * normal_quantile**9
            + 776 * normal_quantile**7
            + 1482 * normal_quantile**5
            - 1920 * normal_quantile**3
            - 945 * normal_quantile
        )
        / 92160,
    )
    return normal_quantile + sum(term / degrees_of_freedom**power for power, term in enumerate(terms, 1))


def percentile_interval(resample_values: np.ndarray, sample_count: int) -> ConfidenceInterval | None:
    """Returns the confidence interval of a value from its bootstrap draws, by expanded percentiles; None if a draw is
    NaN.

    Args:
        resample_values: The value on each draw, one axis.
        sample_count: The number of samples that were drawn from, at least 2.
    """
    if not len(resample_values) or np.isnan(resample_values).any():
        return None
    ordered = np.sort(resample_values)
    below = NormalDist().cdf(-math.sqrt(sample_count / (sample_count - 1)) * student_t_quantile(sample_count - 1))
    lower_rank = max(1, math.floor((len(ordered) + 1) * below))
    return ConfidenceInterval(float(ordered[lower_rank - 1]), float(ordered[-lower_rank]))


def upper_bound_of_rate(event_count: int, sample_count: int) -> float:
    """Returns the upper end of the exact 95 % confidence interval of a rate (Clopper and Pearson).

    At this rate, ``event_count`` events or fewer in ``sample_count`` samples have a probability of 2.5 %. Source:
    Clopper and Pearson, The Use of Confidence or Fiducial Limits, 1934.
    """
    if event_count >= sample_count:
        return 1.0
    numbers = np.arange(event_count + 1, dtype=np.float64)
    ways = np.array(
        [
            math.lgamma(sample_count + 1) - math.lgamma(number + 1) - math.lgamma(sample_count - number + 1)
            for number in numbers
        ]
    )
    low, high = event_count / sample_count, 1.0
    while high - low > 1e-9:
        rate = (low + high) / 2
        at_most = np.exp(ways + numbers * math.log(rate) + (sample_count - numbers) * math.log1p(-rate)).sum()
        low, high = (rate, high) if at_most > (1 - CONFIDENCE) / 2 else (low, rate)
    return high


def rate_interval(event_count: int, sample_count: int) -> ConfidenceInterval:
    """Returns the exact 95 % confidence interval of a rate (Clopper and Pearson), from the events counted in some
    samples."""
    return ConfidenceInterval(
        1 - upper_bound_of_rate(sample_count - event_count, sample_count),
        upper_bound_of_rate(event_count, sample_count),
    )


class BootstrapSampler:
    """The error sums of each sample in one run, and the confidence intervals that follow from them.

    If the rows of a judged output are not the samples of the batch, whole feeds are drawn instead of samples.

    Attributes:
        agreements: The top-1 agreement of the samples of each feed: float64 ``(samples, 1)``, 1 if run and reference
            have the same top class.
    """

    def __init__(self) -> None:
        self._float_sums: dict[str, list[np.ndarray]] = {}
        self._mismatch_sums: dict[str, list[np.ndarray]] = {}
        self.agreements: list[np.ndarray] = []

    def add_float_output_sums(self, output_name: str, sums: Mapping[str, np.ndarray]) -> None:
        """Adds the error sums (`SAMPLE_SUMS`) of each sample of one feed at a judged float output."""
        self._float_sums.setdefault(output_name, []).append(np.stack([sums[name] for name in SAMPLE_SUMS], axis=1))

    def add_integer_output(
        self, output_name: str, reference: np.ndarray, output: np.ndarray, sample_count: int
    ) -> None:
        """Adds the mismatches of one feed at a judged integer output. If two arrays differ in shape, every element is a
        mismatch."""
        if reference.shape == output.shape:
            differ = flatten_each_sample(
                np.asarray(reference != output), sample_count
            )  # comparing two single texts gives a bool
            sums = np.stack([differ.sum(1), np.full(len(differ), differ.shape[1])], 1).astype(np.float64)
        else:
            sums = np.full((1, 2), float(reference.size))
        self._mismatch_sums.setdefault(output_name, []).append(sums)

    def count_mismatches(self, output_name: str) -> tuple[float, float]:
        """Returns the number of elements that differ at a judged integer output, and the number of all its elements."""
        totals = sum((sums.sum(0) for sums in self._mismatch_sums.get(output_name, ())), np.zeros(2))
        return float(totals[0]), float(totals[1])

    def noise_and_signal_by_sample(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns Σ(test-ref)² and Σref² of each sample at each float output, two float64 arrays ``(samples,
        outputs)``.

        If the rows of an output are not samples, each row of the arrays is a feed. If all judged outputs are integers,
        the arrays count the differing elements and all elements.
        """
        _, units = self._join_error_sums_of_outputs([*(self._float_sums or self._mismatch_sums).values()])
        return np.stack([unit_sums[:, 0] for unit_sums in units], 1), np.stack(
            [unit_sums[:, 1] for unit_sums in units], 1
        )

    @staticmethod
    def _join_error_sums_of_outputs(sums_by_output: Sequence[Sequence[np.ndarray]]) -> tuple[bool, list[np.ndarray]]:
        """Joins the error sums of each output over all feeds, with one row for each sample, or one row for each feed.

        The bool is True if all outputs have one row for each sample. The rows are feeds if not.
        """
        alike = all(len({len(sums) for sums in feed}) == 1 for feed in zip(*sums_by_output, strict=True))
        return alike, [
            np.concatenate(feed_sums if alike else [sums.sum(0, keepdims=True) for sums in feed_sums])
            for feed_sums in sums_by_output
        ]

    def compute_intervals(self) -> AccuracyIntervals | None:
        """Returns the confidence intervals of the accuracy; None with fewer than `MIN_SAMPLES` samples."""
        names = [*self._float_sums, *self._mismatch_sums]
        sums_by_output = [
            *self._float_sums.values(),
            *self._mismatch_sums.values(),
            *([self.agreements] if self.agreements else []),
        ]
        if not sums_by_output:
            return None
        is_by_sample, units = self._join_error_sums_of_outputs(sums_by_output)
        count = len(units[0])
        if count < MIN_SAMPLES:
            return None
        pooled = _sum_over_resamples(np.concatenate(units, 1))
        columns = np.split(pooled, np.cumsum([unit.shape[1] for unit in units])[:-1], 1)
        values_by_output = {
            name: compute_metric_values(
                dict(zip(SAMPLE_SUMS if name in self._float_sums else MISMATCH_SUMS, sums.T, strict=True))
            )
            for name, sums in zip(names, columns, strict=False)
        }
        # Draws of samples without a mismatch are all 0, however few their values.
        rates = {
            name: rate_interval(round(unit[:, 0].sum()), round(unit[:, 1].sum()))
            for name, unit in zip(names, units, strict=False)
            if name in self._mismatch_sums and ((unit[:, 1] == 1).all() or not unit[:, 0].any())
        }
        worst = {
            kind: percentile_interval((np.min if metric.is_higher_better else np.max)(kind_values, 0), count)
            for kind, metric in ERROR_METRICS.items()
            if (kind_values := [output[kind] for output in values_by_output.values() if kind in output])
        }
        if rates and (drawn_worst := worst["mismatch"]) is not None:
            worst["mismatch"] = ConfidenceInterval(
                drawn_worst.low, max(drawn_worst.high, *(output_values.high for output_values in rates.values()))
            )
        agreement = rate_interval(round(units[-1].sum()), count) if self.agreements and is_by_sample else None
        return AccuracyIntervals(
            {
                name: {"mismatch": rates[name]}
                if name in rates
                else drop_missing_intervals(
                    {kind: percentile_interval(values, count) for kind, values in output_values.items()}
                )
                for name, output_values in values_by_output.items()
            },
            drop_missing_intervals(worst),
            agreement,
        )


def drop_missing_intervals(intervals: Mapping[str, ConfidenceInterval | None]) -> dict[str, ConfidenceInterval]:
    """Returns the intervals that are known, by name."""
    return {kind: interval for kind, interval in intervals.items() if interval is not None}


def compute_metric_interval(
    resample_values: Sequence[float | None], sample_count: int, max_metric_loss: float | None = None
) -> ConfidenceInterval | None:
    """Returns the confidence interval of the user's metric from its bootstrap draws; None if it failed on too many
    draws.

    Args:
        resample_values: The metric on each draw; None for a draw on which it failed.
        sample_count: The number of samples that were drawn from.
        max_metric_loss: The loss of the metric if all samples were lost; None if unknown. It widens an interval without
            width by the rate that `upper_bound_of_rate` allows if no sample was lost.
    """
    valid_values = [draw for draw in resample_values if draw is not None]
    if not valid_values or len(valid_values) < math.ceil(MIN_VALID_DRAW_SHARE * len(resample_values)):
        return None
    metric_interval = percentile_interval(np.array(valid_values), sample_count)
    if metric_interval is None or metric_interval.low < metric_interval.high:
        return metric_interval
    return (
        None
        if max_metric_loss is None
        else ConfidenceInterval(
            metric_interval.low - max(0.0, max_metric_loss) * upper_bound_of_rate(0, sample_count), metric_interval.high
        )
    )
