import math

import numpy as np
import pytest

from tests.measuring import errors_between
from trt_tui.core.data.samples import load_samples
from trt_tui.core.measure.bootstrap import (
    FEWEST,
    METRIC_RESAMPLES,
    RESAMPLES,
    Drawing,
    Interval,
    Spread,
    drawn,
    interval,
    of_draws,
)
from trt_tui.core.measure.comparison import OutputErrors, Verdict
from trt_tui.core.measure.metrics import sample_sums
from trt_tui.core.measure.scoring import Scoring
from trt_tui.core.measure.target import parse_target
from trt_tui.core.measure.user_metric import MetricResult
from trt_tui.core.runner import TensorInfo
from trt_tui.errors import InputError

RNG = np.random.default_rng(3)
REFERENCE = RNG.normal(size=(24, 5)).astype(np.float32)
TEST = REFERENCE + RNG.normal(size=(24, 5)).astype(np.float32) * np.linspace(0.01, 0.2, 24, dtype=np.float32)[:, None]


def drawing(reference=REFERENCE, test=TEST, rows=8, shared=False):
    made = Drawing()
    for start in range(0, len(reference), rows):
        part = slice(start, start + rows)
        made.add_float("y", sample_sums(reference[part], test[part], 0 if shared else rows))
    return made


def test_an_interval_is_that_of_figures_taken_anew_on_what_is_drawn():
    spread = drawing().spread()
    again = [errors_between(REFERENCE[numbers], TEST[numbers]) for numbers in drawn(24, RESAMPLES)]
    for kind in ("sqnr_db", "cosine", "mse", "mean_abs"):
        expected, found = interval(np.array([getattr(one, kind) for one in again])), spread.outputs["y"][
            kind.removesuffix("_db")]
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high)), kind
    assert spread.worst == spread.outputs["y"] and spread.draws is None


def test_the_worst_of_two_outputs_is_taken_draw_by_draw():
    made = drawing()
    for start in range(0, 24, 8):
        part = slice(start, start + 8)
        made.add_float("z", sample_sums(REFERENCE[part], REFERENCE[part] * (0.85 if start else 0.999), 8))
        made.add_integer("class", np.arange(8), np.arange(8) + (start > 0), 8)
        made.add_agreement(np.arange(8) < 6)
    spread = made.spread()
    assert spread.worst["sqnr"].high <= min(one["sqnr"].high for one in spread.outputs.values() if "sqnr" in one)
    assert spread.outputs["class"].keys() == {"mismatch"} and 0 < spread.worst["mismatch"].low < 2 / 3
    assert 0.5 < spread.agreement.low < 0.75 < spread.agreement.high < 1


def test_without_samples_apart_feeds_are_drawn_and_few_have_no_interval():
    assert drawing(rows=8, shared=True).spread() is None, "three feeds"
    feeds = drawing(rows=3, shared=True).spread().outputs["y"]["mse"]
    samples = drawing(rows=3).spread().outputs["y"]["mse"]
    assert feeds.low != samples.low and feeds.low < errors_between(REFERENCE, TEST).mse < feeds.high
    assert drawing(REFERENCE[:FEWEST - 1], TEST[:FEWEST - 1], FEWEST - 1).spread() is None
    assert Drawing().spread() is None


def test_exact_and_broken_samples_have_ends_that_are_not_finite():
    test = REFERENCE.copy()
    test[:2] += 1
    assert drawing(test=test).spread().worst["sqnr"].high == math.inf, "an eighth of the draws has neither"
    assert drawing(test=REFERENCE).spread().worst["sqnr"] == Interval(math.inf, math.inf)
    test[5] = np.nan
    assert drawing(test=test).spread().worst["sqnr"].low == -math.inf


@pytest.mark.parametrize(("text", "spread", "settled"), [
    ("sqnr>=20", Spread(worst={"sqnr": Interval(19, 21)}), False),
    ("sqnr>=20", Spread(worst={"sqnr": Interval(20, 21)}), True),
    ("sqnr>=20", Spread(worst={"sqnr": Interval(18, 20)}), False),
    ("y:sqnr>=20", Spread({"y": {"sqnr": Interval(20.5, 21)}}, {"sqnr": Interval(1, 99)}), True),
    ("mse<=0.1", Spread(worst={"mse": Interval(0.05, 0.1)}), True),
    ("mse<=0.1", Spread(worst={"mse": Interval(0.1, 0.2)}), False),
    ("max_abs<=0.1", Spread(worst={"mse": Interval(0, 1)}), True),
    ("agreement>=0.9", Spread(agreement=Interval(0.8, 0.95)), False),
    ("metric>=base-1%", Spread(metric=Interval(0.7, 0.9), gain=Interval(-0.006, 0)), True),
    ("metric>=base-1%", Spread(metric=Interval(0.7, 0.9), gain=Interval(-0.02, 0)), False),
    ("metric>=0.75", Spread(metric=Interval(0.7, 0.9), gain=Interval(-0.006, 0)), False),
    ("sqnr>=20", None, True),
])
def test_a_verdict_is_settled_where_its_interval_lies_on_one_side(text, spread, settled):
    verdict = Verdict({"y": OutputErrors(errors_between(REFERENCE, TEST))}, {"f1": 0.79}, 0.9, 24, 24, spread=spread)
    target = parse_target(text).with_base({"f1": 0.8})
    assert target.settled(verdict) is settled
    assert (target.interval(verdict) is None) is (spread is None or text.startswith("max_abs"))


@pytest.fixture
def scoring(tmp_path):
    """A metric (mean of the output where the label is 1) over 24 samples in feeds of 4."""
    np.savez(tmp_path / "data.npz", x=REFERENCE, label=(np.arange(24) % 4 == 0).astype(np.int64))
    samples = load_samples(str(tmp_path / "data.npz"), [TensorInfo("x", np.dtype(np.float32), ("n", 5))], batch=4)

    class Mean:
        name, calls = "mean", 0

        def __call__(self, outputs, labels):
            Mean.calls += 1
            chosen = outputs["y"][labels["label"] == 1]
            if not len(chosen):
                raise InputError("none of the class")
            return MetricResult(float(chosen.mean()), {})

    return Scoring(Mean(), samples, ["y"], lambda feed: {"y": REFERENCE[4 * feed:4 * feed + 4]}), Mean


def test_a_metric_is_drawn_with_its_labels_and_held_against_fp32_draw_by_draw(scoring):
    scoring, metric = scoring
    feeds = list(range(6))
    outputs = [{"y": TEST[4 * feed:4 * feed + 4]} for feed in feeds]
    *waiting, spread = scoring.spread(outputs, feeds, Spread())
    assert len(waiting) == metric.calls == 2 * METRIC_RESAMPLES and all(one == Spread() for one in waiting)
    label = np.arange(24) % 4 == 0
    values = [(TEST[n][label[n]].mean(), REFERENCE[n][label[n]].mean()) for n in drawn(24, METRIC_RESAMPLES)
              if label[n].any()]
    expected = interval(np.array([a for a, _ in values]))
    assert spread.draws == METRIC_RESAMPLES
    assert (spread.metric.low, spread.metric.high) == pytest.approx((expected.low, expected.high))
    assert spread.gain.high - spread.gain.low < (spread.metric.high - spread.metric.low) / 3
    list(scoring.spread(outputs, feeds, Spread()))
    assert metric.calls == 3 * METRIC_RESAMPLES, "FP32's draws are kept"


def test_a_metric_that_fails_on_many_draws_has_no_interval():
    assert of_draws([1.0] * 89 + [None] * 11) is None
    assert of_draws([1.0] * 90 + [None] * 10) == Interval(1.0, 1.0)
    assert of_draws([]) is None
