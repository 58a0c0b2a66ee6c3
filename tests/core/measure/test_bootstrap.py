import math
import tracemalloc

import numpy as np
import pytest

from tests.measuring import errors_between
from trt_tui.core.data.samples import load_samples
from trt_tui.core.measure.error_metrics import (
    METRIC_RESAMPLE_COUNT,
    MIN_SAMPLES,
    RESAMPLE_COUNT,
    SAMPLE_SUMS,
    AccuracyIntervals,
    BootstrapSampler,
    ConfidenceInterval,
    compute_error_sums_by_name,
    compute_metric_interval,
    draw_resamples,
    percentile_interval,
    rate_interval,
)
from trt_tui.core.measure.results import Accuracy, OutputErrors
from trt_tui.core.measure.target import parse_target
from trt_tui.core.measure.user_metric import Metric, MetricScorer
from trt_tui.core.runner import TensorInfo
from trt_tui.errors import InputError

RNG = np.random.default_rng(3)
REFERENCE = RNG.normal(size=(24, 5)).astype(np.float32)
TEST = REFERENCE + RNG.normal(size=(24, 5)).astype(np.float32) * np.linspace(0.01, 0.2, 24, dtype=np.float32)[:, None]


def drawing(reference=REFERENCE, test=TEST, rows=8, shared=False):
    made = BootstrapSampler()
    for start in range(0, len(reference), rows):
        part = slice(start, start + rows)
        made.add_float_output_sums("y", compute_error_sums_by_name(reference[part], test[part], 0 if shared else rows))
    return made


def test_an_interval_is_that_of_figures_taken_anew_on_what_is_drawn():
    spread = drawing().compute_intervals()
    again = [errors_between(REFERENCE[numbers], TEST[numbers]) for numbers in draw_resamples(24, RESAMPLE_COUNT)]
    for kind in ("sqnr_db", "cosine", "mse", "mean_abs"):
        expected, found = (
            percentile_interval(np.array([getattr(one, kind) for one in again]), 24),
            spread.outputs["y"][kind.removesuffix("_db")],
        )
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high)), kind
    assert spread.worst_output == spread.outputs["y"] and spread.metric_draws is None


def test_the_worst_of_two_outputs_is_taken_draw_by_draw():
    made = drawing()
    for start in range(0, 24, 8):
        part = slice(start, start + 8)
        made.add_float_output_sums(
            "z", compute_error_sums_by_name(REFERENCE[part], REFERENCE[part] * (0.85 if start else 0.999), 8)
        )
        made.add_integer_output("class", np.arange(8), np.arange(8) + (start > 0), 8)
        made.agreements.append(np.arange(8)[:, None] < 6.0)
    spread = made.compute_intervals()
    assert spread.worst_output["sqnr"].high <= min(one["sqnr"].high for one in spread.outputs.values() if "sqnr" in one)
    assert spread.outputs["class"].keys() == {"mismatch"} and 0 < spread.worst_output["mismatch"].low < 2 / 3
    assert 0.5 < spread.agreement_interval.low < 0.75 < spread.agreement_interval.high < 1


def test_without_samples_apart_feeds_are_drawn_and_few_have_no_interval():
    assert drawing(rows=8, shared=True).compute_intervals() is None, "three feeds"
    feeds = drawing(rows=3, shared=True).compute_intervals().outputs["y"]["mse"]
    samples = drawing(rows=3).compute_intervals().outputs["y"]["mse"]
    assert feeds.low != samples.low and feeds.low < errors_between(REFERENCE, TEST).mse < feeds.high
    assert drawing(REFERENCE[: MIN_SAMPLES - 1], TEST[: MIN_SAMPLES - 1], MIN_SAMPLES - 1).compute_intervals() is None
    assert BootstrapSampler().compute_intervals() is None


def test_exact_and_broken_samples_have_ends_that_are_not_finite():
    test = REFERENCE.copy()
    test[:2] += 1
    assert drawing(test=test).compute_intervals().worst_output["sqnr"].high == math.inf, (
        "an eighth of the draws has neither"
    )
    assert drawing(test=REFERENCE).compute_intervals().worst_output["sqnr"] == ConfidenceInterval(math.inf, math.inf)
    test[5] = np.nan
    assert drawing(test=test).compute_intervals().worst_output["sqnr"].low == -math.inf


@pytest.mark.parametrize(
    ("text", "spread", "side"),
    [
        ("sqnr>=20", AccuracyIntervals(worst_output={"sqnr": ConfidenceInterval(19, 21)}), None),
        ("sqnr>=20", AccuracyIntervals(worst_output={"sqnr": ConfidenceInterval(20, 21)}), True),
        ("sqnr>=20", AccuracyIntervals(worst_output={"sqnr": ConfidenceInterval(18, 20)}), None),
        ("sqnr>=20", AccuracyIntervals(worst_output={"sqnr": ConfidenceInterval(18, 19)}), False),
        (
            "y:sqnr>=20",
            AccuracyIntervals({"y": {"sqnr": ConfidenceInterval(20.5, 21)}}, {"sqnr": ConfidenceInterval(1, 99)}),
            True,
        ),
        ("mse<=0.1", AccuracyIntervals(worst_output={"mse": ConfidenceInterval(0.05, 0.1)}), True),
        ("mse<=0.1", AccuracyIntervals(worst_output={"mse": ConfidenceInterval(0.1, 0.2)}), None),
        ("max_abs<=0.1", AccuracyIntervals(worst_output={"mse": ConfidenceInterval(0, 1)}), None),
        ("agreement>=0.9", AccuracyIntervals(agreement_interval=ConfidenceInterval(0.8, 0.95)), None),
        (
            "metric>=base-1%",
            AccuracyIntervals(
                metric={"f1": ConfidenceInterval(0.7, 0.9)}, metric_gains={"f1": ConfidenceInterval(-0.006, 0)}
            ),
            True,
        ),
        (
            "metric>=base-1%",
            AccuracyIntervals(
                metric={"f1": ConfidenceInterval(0.7, 0.9)}, metric_gains={"f1": ConfidenceInterval(-0.02, 0)}
            ),
            None,
        ),
        (
            "metric>=0.75",
            AccuracyIntervals(
                metric={"f1": ConfidenceInterval(0.7, 0.9)}, metric_gains={"f1": ConfidenceInterval(-0.006, 0)}
            ),
            None,
        ),
        ("sqnr>=20", None, None),
    ],
)
def test_on_which_side_of_the_bound_an_interval_lies(text, spread, side):
    verdict = Accuracy(
        {"y": OutputErrors(errors_between(REFERENCE, TEST))}, {"f1": 0.79}, 0.9, 24, 24, intervals=spread
    )
    target = parse_target(text).with_base_values({"f1": 0.8})
    assert target.is_met_by_whole_interval(verdict) is side
    assert (target.confidence_interval(verdict) is None) is (spread is None or text.startswith("max_abs"))


def mean_interval(values, draws):
    """The interval of a mean as a metric has it, on draws of the samples that are the same for every data set."""
    every = values[:, np.stack([*draw_resamples(values.shape[1], draws)])].mean(2)
    return [percentile_interval(one, values.shape[1]) for one in every]


@pytest.mark.parametrize("count", [MIN_SAMPLES, 16, 64])
@pytest.mark.parametrize("draws", [METRIC_RESAMPLE_COUNT, RESAMPLE_COUNT])
def test_the_interval_of_a_mean_holds_it_in_95_of_100_cases(count, draws):
    """With 100 draws and plain percentiles it was 88 of 100 with 8 samples, and 92 with 64."""
    values = np.random.default_rng(count).normal(size=(1000, count))
    held = np.mean([one.low <= 0 <= one.high for one in mean_interval(values, draws)])
    assert 0.935 <= held <= 0.975


@pytest.mark.parametrize(("count", "rate"), [(8, 0.95), (16, 0.9), (64, 0.99), (64, 0.8), (256, 0.95)])
def test_the_interval_of_a_metric_that_counts_samples_holds_it_in_95_of_100_cases(count, rate):
    """Samples that are all right say little of how many others are wrong: the draws alone held 33 % of (8, 0.95)."""
    values = (np.random.default_rng(count).random((1000, count)) < rate).astype(float)
    draws = values[:, np.stack([*draw_resamples(count, METRIC_RESAMPLE_COUNT)])].mean(2)
    held = np.mean(
        [one.low <= rate <= one.high for one in (compute_metric_interval(list(row), count, 1.0) for row in draws)]
    )
    counts, times = np.unique(values.sum(axis=1), return_counts=True)
    spreads = [rate_interval(int(one), count) for one in counts]
    exact = np.average([one.low <= rate <= one.high for one in spreads], weights=times)
    assert held >= 0.92 and exact >= 0.95


def test_the_interval_of_a_rate_is_the_exact_one():
    """Values of Clopper and Pearson's interval by R's binom.test."""
    for events, count, low, high in (
        (8, 8, 0.63058, 1),
        (64, 64, 0.94399, 1),
        (95, 100, 0.88717, 0.98357),
        (0, 5, 0, 0.52182),
        (1, 2, 0.01258, 0.98742),
    ):
        found = rate_interval(events, count)
        assert (found.low, found.high) == pytest.approx((low, high), abs=1e-5)


def test_samples_that_all_agree_leave_room_for_others():
    made = BootstrapSampler()
    made.agreements.append(np.ones((64, 1)))
    made.add_integer_output("class", np.arange(64), np.arange(64), 64)
    made.add_integer_output("map", np.zeros((64, 9), int), np.zeros((64, 9), int), 64)
    spread = made.compute_intervals()
    assert spread.agreement_interval.low == pytest.approx(0.944, abs=1e-3)
    assert (
        spread.outputs["class"]["mismatch"].high
        == spread.worst_output["mismatch"].high
        == pytest.approx(0.056, abs=1e-3)
    )
    assert spread.outputs["map"]["mismatch"] == rate_interval(0, 64 * 9), "of 576 elements none differs"


@pytest.fixture
def scoring(tmp_path):
    """A metric (mean of the output where the label is 1) over 24 samples in feeds of 4."""
    np.savez(tmp_path / "data.npz", x=REFERENCE, label=(np.arange(24) % 4 == 0).astype(np.int64))
    samples = load_samples(str(tmp_path / "data.npz"), [TensorInfo("x", np.dtype(np.float32), ("n", 5))], batch=4)

    class Mean:
        path, calls = tmp_path / "mean.py", 0

        def __call__(self, outputs, labels):
            Mean.calls += 1
            chosen = outputs["y"][labels["label"] == 1]
            if not len(chosen):
                raise InputError("none of the class")
            return float(chosen.mean())

    return MetricScorer(Metric(Mean()), samples, ["y"], lambda feed: {"y": REFERENCE[4 * feed : 4 * feed + 4]}), Mean


def test_a_metric_is_drawn_with_its_labels_and_held_against_fp32_draw_by_draw(scoring):
    scoring, metric = scoring
    feeds = list(range(6))
    outputs = [{"y": TEST[4 * feed : 4 * feed + 4]} for feed in feeds]
    *waiting, spread = scoring.measure_metric_intervals(outputs, feeds, AccuracyIntervals())
    assert len(waiting) == 2 * METRIC_RESAMPLE_COUNT and all(one == AccuracyIntervals() for one in waiting)
    assert metric.calls == len(waiting) + 3, "and the reference, shuffled and scrambled"
    label = np.arange(24) % 4 == 0
    values = [
        (TEST[n][label[n]].mean(), REFERENCE[n][label[n]].mean())
        for n in draw_resamples(24, METRIC_RESAMPLE_COUNT)
        if label[n].any()
    ]
    expected = percentile_interval(np.array([a for a, _ in values]), 24)
    assert spread.metric_draws == METRIC_RESAMPLE_COUNT
    (interval,), (gain,) = spread.metric.values(), spread.metric_gains.values()
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high))
    assert gain.high - gain.low < (interval.high - interval.low) / 3
    list(scoring.measure_metric_intervals(outputs, feeds, AccuracyIntervals()))
    assert metric.calls == 3 * METRIC_RESAMPLE_COUNT + 5, "the draws of FP32 are kept"


def test_a_metric_that_fails_on_many_draws_has_no_interval():
    assert compute_metric_interval([1.0, *[0.5] * 88] + [None] * 11, 24) is None
    assert compute_metric_interval([1.0, *[0.5] * 89] + [None] * 10, 24) is not None
    assert compute_metric_interval([], 24) is None


def test_a_metric_that_no_draw_changes_may_lose_what_was_not_seen():
    """Of 64 samples without a loss up to 5.6 % of others may be lost; each loses a part of what all of them lose."""
    assert compute_metric_interval([90.0] * 199, 64, 80.0) == ConfidenceInterval(
        pytest.approx(90 - 80 * 0.056, abs=0.01), 90.0
    )
    assert compute_metric_interval([90.0] * 199, 64, -5.0) == ConfidenceInterval(90.0, 90.0), (
        "a metric that other outputs do not worsen"
    )
    assert compute_metric_interval([90.0] * 199, 64) is None, "what all of them lose is not known"


@pytest.mark.parametrize("count", [8, 1000, 4097, 70001])
def test_draws_one_by_one_are_those_made_at_once(count):
    assert (
        np.stack(list(draw_resamples(count, 9))) == np.random.default_rng(count).integers(0, count, (9, count))
    ).all()


def test_many_samples_are_drawn_from_in_little_memory():
    drawing = BootstrapSampler()
    drawing.add_float_output_sums("y", dict.fromkeys(SAMPLE_SUMS, np.ones(10_000)))
    tracemalloc.start()
    assert drawing.compute_intervals() is not None
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6, "all draws at once take 80 MB"
