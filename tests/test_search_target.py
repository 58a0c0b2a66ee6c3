"""trt_tui.core.measure.target: targets of one output, upper bounds, margins, and judging by several"""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from trt_tui.core.measure.comparison import Errors, OutputErrors, Verdict
from trt_tui.core.measure.judge import INTEGER, Judged
from trt_tui.core.measure.target import judge, parse_target
from trt_tui.errors import InputError


def errors(sqnr=25.0, cosine=0.999, mse=1e-4, max_abs=0.05, mean_abs=0.01, **more):
    return OutputErrors(Errors(sqnr, cosine, mse, max_abs, mean_abs, **more))


EXACT = OutputErrors(Errors(None, 1.0, 0.0, 0.0, 0.0, exact=True))
BOTH = Verdict({"boxes:0[:, 0:4]": errors(46.0, 0.99999, max_abs=0.2), "scores": errors(8.0, 0.9, mse=1e-2),
                "class": OutputErrors(Errors(mismatch=0.25))}, {"f1": 0.8}, 0.95, 8, 8)
JUDGED = (Judged("boxes:0[:, 0:4]", "boxes:0"), Judged("scores", "scores"), Judged("class", "class", kind=INTEGER))
NETWORK = SimpleNamespace(shape=lambda tensor: None, layers=())
ALL_EXACT = Verdict({"y": EXACT}, {}, 1.0, 8, 8)
BROKEN = Verdict({"y": OutputErrors(Errors(nan=3))}, {"f1": 0.8}, 0.95, 8, 8)


@pytest.mark.parametrize(("text", "figure", "margin", "score", "noise"), [
    ("sqnr>=20", 8.0, -12.0, -12.0, 10**1.2),
    ("boxes:0[:, 0:4]:sqnr>=40", 46.0, 6.0, 6.0, 10**-0.6),
    ("scores:cosine>=0.8", 0.9, 0.1, 10 * math.log10(2), 0.5),
    ("cosine>=0.99", 0.9, -0.09, -10.0, 10.0),
    ("max_abs<=1e-1", 0.2, -0.1, -20 * math.log10(2), 4.0),
    ("scores:max_abs <= 0.1", 0.05, 0.05, 20 * math.log10(2), 0.25),
    ("scores:mean_abs<=0.02", 0.01, 0.01, 20 * math.log10(2), 0.25),
    ("mse<=1e-3", 1e-2, -9e-3, -10.0, 10.0),
    ("mismatch<=0.5", 0.25, 0.25, 25.0, None),
    ("class:mismatch<=0.2", 0.25, -0.05, -5.0, None),
    ("agreement>=0.9", 0.95, 0.05, 5.0, None),
    ("metric>=0.5", 0.8, 0.3, 60.0, None),
])
def test_margins_scores_and_noise(text, figure, margin, score, noise):
    target = parse_target(text)
    assert target.figure(BOTH) == pytest.approx(figure) and target.margin(BOTH) == pytest.approx(margin)
    assert target.score(BOTH) == pytest.approx(score) and target.noise(BOTH) == pytest.approx(noise)
    assert target.reached(BOTH) is (margin >= 0) and target.shown and target.measured(BOTH)
    told = judge([target], BOTH)
    assert told.passed is (margin >= 0) and told.score == target.score(BOTH)
    assert told.error == pytest.approx(noise if noise is not None else -score)


def test_the_worst_cosine_need_not_be_at_the_worst_sqnr():
    """A wrong scale costs decibels and no cosine."""
    verdict = Verdict({"scaled": errors(10.5, 0.9999), "turned": errors(15.0, 0.984)}, {}, None, 8, 8)
    target = parse_target("cosine>=0.999")
    assert target.figure(verdict) == 0.984 and not target.reached(verdict)
    assert parse_target("scaled:cosine>=0.999").reached(verdict)


@pytest.mark.parametrize(("text", "bound"), [
    ("agreement>=99%", 0.99), ("mismatch<=1 %", 0.01), ("cosine>=99.9%", 0.999)])
def test_shares_may_be_written_in_percent(text, bound):
    assert parse_target(text).bound == pytest.approx(bound)


@pytest.mark.parametrize("text", ["sqnr>=20%", "metric>=90%", "max_abs<=1%"])
def test_percent_of_nothing_is_refused(text):
    with pytest.raises(InputError, match="is no target") as caught:
        parse_target(text)
    assert "no share" in caught.value.cause


@pytest.mark.parametrize("text", ["cosine>=1.5", "agreement>=150%", "mismatch<=-0.1"])
def test_bounds_that_nothing_can_meet_are_refused(text):
    with pytest.raises(InputError, match="is no target"):
        parse_target(text)


@pytest.mark.parametrize("text", ["class:sqnr>=20", "class:cosine>=0.5", "class:max_abs<=1", "scores:mismatch<=0.1"])
def test_what_an_output_has_no_figure_for_is_not_known(text):
    assert parse_target(text).reached(BOTH) is None
    with pytest.raises(InputError, match="is not known"):
        judge([parse_target(text)], BOTH)


def test_a_share_of_a_negative_base_lies_below_it():
    target = parse_target("metric>=base-1%").with_base(-0.5)
    assert target.bound == pytest.approx(-0.505)
    assert parse_target("metric>=base-1%").with_base(0.5).bound == pytest.approx(0.495)


@pytest.mark.parametrize("text", ["sqnr>=20", "y:sqnr>=20", "cosine>=0.999", "max_abs<=0.1", "y:mse<=0", "cosine>=1"])
def test_an_exact_copy_meets_every_bound(text):
    target = parse_target(text)
    assert target.reached(ALL_EXACT) and target.margin(ALL_EXACT) >= 0
    assert target.score(ALL_EXACT) == math.inf and target.noise(ALL_EXACT) == 0


@pytest.mark.parametrize("text", ["sqnr>=20", "y:cosine>=0.9", "max_abs<=9", "metric>=0.5", "agreement>=0.9"])
def test_nan_falls_short_of_every_bound_by_infinity(text):
    target = parse_target(text)
    assert target.reached(BROKEN) is False and target.margin(BROKEN) == target.score(BROKEN) == -math.inf
    told = judge([target], BROKEN)
    assert not told.passed and "3 NaN" in told.figure
    assert told.error == math.inf


def test_several_targets_must_all_be_met_and_the_tightest_gives_the_score():
    targets = [parse_target(text) for text in ("boxes:0[:, 0:4]:sqnr>=40", "scores:sqnr>=5", "max_abs<=0.3")]
    told = judge(targets, BOTH)
    assert told.passed and told.score == pytest.approx(3.0)
    assert told.figure == "46.0 dB at boxes:0[:, 0:4], 8.0 dB at scores, max_abs .200"
    assert told.error == pytest.approx(10**-0.3) and told.verdict is BOTH
    failing = judge([*targets, parse_target("agreement>=0.99")], BOTH)
    assert not failing.passed and failing.score == pytest.approx(-4.0)
    assert failing.figure.endswith("max_abs .200, same top class in 95.0%")


def test_a_metric_against_its_base():
    target = parse_target("metric>=base-1%")
    assert target.margin(BOTH) is None and target.noise(BOTH) is None and target.score(BOTH) is None
    with pytest.raises(InputError, match="not known"):
        judge([target], BOTH)
    based = target.with_base(0.8)
    assert based.margin(BOTH) == pytest.approx(0.008) and judge([based], BOTH).passed


@pytest.mark.parametrize(("text", "why"), [
    ("sqnr<=20", "the higher"), ("max_abs>=1e-2", "the lower"), ("y:metric>=0.5", "all outputs"),
    ("y:agreement>=0.5", "all outputs"), ("max_abs<=base-1", "no base"), (":sqnr>=20", "bounds one figure")])
def test_what_is_no_target_is_refused(text, why):
    with pytest.raises(InputError) as refused:
        parse_target(text)
    assert why in refused.value.cause


def test_an_output_that_is_not_judged_is_refused_with_those_that_are():
    with pytest.raises(InputError) as refused:
        parse_target("score:sqnr>=20").require_measurable(JUDGED, NETWORK, None)
    assert "score is not a judged output" in refused.value.title and "scores" in refused.value.cause
    assert parse_target("score:sqnr>=20").reached(BOTH) is None


@pytest.mark.parametrize(("text", "metric", "title"), [
    ("metric>=0.5", None, "needs a metric"), ("agreement>=0.9", None, "needs a classifier"),
    ("class:sqnr>=20", None, "bounds a figure"), ("scores:mismatch<=0.1", None, "bounds a figure"),
    ("nothing:mismatch<=0.1", None, "is not a judged output"), ("metric>=0.5", "f1", ""), ("mismatch<=0.1", None, ""),
    ("class:mismatch<=0.1", None, ""), ("scores:max_abs<=0.1", None, ""), ("sqnr>=20", None, "")])
def test_a_target_of_what_is_not_measured_is_refused(text, metric, title):
    if not title:
        return parse_target(text).require_measurable(JUDGED, NETWORK, metric)
    with pytest.raises(InputError, match=title):
        parse_target(text).require_measurable(JUDGED, NETWORK, metric)


def test_floats_are_not_bounded_where_integers_alone_are_judged():
    with pytest.raises(InputError, match="bounds a figure"):
        parse_target("max_abs<=0.1").require_measurable(JUDGED[2:], NETWORK, None)


@pytest.mark.parametrize("text", ["sqnr>=1e999", "mse<=1e400", "metric>=1e999"])
def test_infinite_bounds_are_refused(text):
    with pytest.raises(InputError, match="is no target"):
        parse_target(text)


@pytest.mark.parametrize("text", ["max_abs<=0.01", "y:sqnr>=20", "class:mismatch<=0.1"])
def test_targets_are_written_as_they_are_read(text):
    target = parse_target(text)
    assert target.text == text
    assert type(target)(target.kind, target.value, output=target.output).text == text
