"""Targets, and the one rule for PASS, PASS?, FAIL? and FAIL."""

import itertools
import math
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.refusals import refused
from tests.texts import lacking, numbers
from trt_tui.core.measure.error_metrics import AccuracyIntervals, ConfidenceInterval
from trt_tui.core.measure.judged_outputs import INTEGER_KIND, AxisSlice, JudgedOutput
from trt_tui.core.measure.results import (
    PARTLY_JUDGED_OUTPUT,
    SIMULATION_GAP,
    Accuracy,
    Caveat,
    ErrorMetrics,
    OutputErrors,
)
from trt_tui.core.measure.target import (
    MIN_SAMPLES_OF_MAXIMUM,
    check_targets,
    choose_default_target,
    judge_accuracy,
    parse_target,
)
from trt_tui.core.measure.user_metric import SCRAMBLED, SHUFFLED, metric_part_rows
from trt_tui.errors import InputError
from trt_tui.formatting import mark_figures_as_simulated


def verdict(sqnr=25.0, cosine=0.999, metric=None, agreement=None, **errors):
    output = OutputErrors(ErrorMetrics(sqnr, cosine, **errors))
    return Accuracy({"y": output}, {"f1": metric} if metric is not None else {}, agreement, 8, 8)


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("sqnr>=20", 20),
        (" sqnr >= 2e1 ", 20),
        ("cosine>=0.999", 0.999),
        ("agreement>=.99", 0.99),
        ("metric>=0.8", 0.8),
        ("metric>=base-0.01", 0.89),
        ("metric >= base - 1%", 0.891),
        ("metric>=base+0.05", 0.95),
    ],
)
def test_targets_are_read(text, bound):
    target = parse_target(text).with_base_values({"f1": 0.9})
    assert target.bound == pytest.approx(bound) and target.text == text.strip()
    read = replace(parse_target(text), source="")
    assert replace(parse_target(read.text), source="") == read


@pytest.mark.parametrize(
    ("text", "why"),
    [
        *(
            (text, "")
            for text in (
                "",
                "sqnr",
                "sqnr>20",
                "sqnr>=base-1",
                "metric>=",
                "metric>=base",
                "sqnr>=1.2.3",
                "sqnr>=--3",
                "metric>=base-1%%",
                "sqnr>=nan",
                "cosine>=1.5",
                "agreement>=150%",
                "mismatch<=-0.1",
                "sqnr>=1e999",
                "mse<=1e400",
                "metric>=1e999",
            )
        ),
        *((text, "cannot be a percentage") for text in ("sqnr>=20%", "metric>=90%", "max_abs<=1%")),
        ("sqnr<=20", "the higher"),
        ("f1<=20", "the higher"),
        ("sqnr[y]>=20", "has no parts"),
        ("f1>=90%", "percentage"),
        ("y:f1>=2", "all outputs"),
        ("max_abs>=1e-2", "the lower"),
        ("y:metric>=0.5", "all outputs"),
        ("metric>=base--1%", "two signs"),
        ("metric>=base+-1", "two signs"),
        ("metric>=base-+1%", "two signs"),
        ("max_abs<=-1", "never below 0"),
        ("y:mean_abs<=-1e-3", "never below 0"),
        ("mse<=-2", "never below 0"),
        ("y:agreement>=0.5", "all outputs"),
        ("max_abs<=base-1", "no baseline"),
        (":sqnr>=20", "a target is one name"),
    ],
)
def test_what_is_no_target_is_refused_with_examples(text, why):
    with pytest.raises(InputError, match="is not a valid target") as refused:
        parse_target(text)
    assert why in refused.value.cause and refused.value.next_step and (why or "=" in refused.value.next_step)


@pytest.mark.parametrize(
    ("text", "judged", "reached"),
    [
        ("sqnr>=20", verdict(20.0), True),
        ("sqnr>=20", verdict(19.9), False),
        ("sqnr>=20", verdict(None, 1.0, exact=True), True),
        ("cosine>=0.999", verdict(None, 1.0, exact=True), True),
        ("sqnr>=20", verdict(None, None, nan=1), False),
        ("metric>=0.5", verdict(metric=0.6), True),
        ("metric>=0.5", verdict(metric=0.6, nan=1), False),
        ("metric>=0.5", verdict(), None),
        ("agreement>=0.9", verdict(agreement=0.95), True),
        ("agreement>=0.9", verdict(), None),
        ("sqnr>=20", verdict(None, None), False),
        ("sqnr>=20", Accuracy({}), None),
        ("metric>=base-0.1", verdict(metric=0.6), None),
    ],
)
def test_whether_a_target_is_reached(text, judged, reached):
    assert parse_target(text).is_met_by(judged) is reached


def outline(shape, operator="Gemm", cast_count=0):
    """A network with one layer and a number of Casts behind it, which are in no group."""
    tensors = [f"y{number}" for number in range(cast_count)] + ["y"]
    layers = [SimpleNamespace(name="head", op_type=operator, inputs=("x",), outputs=(tensors[0],))]
    layers += [
        SimpleNamespace(name=f"cast {read}", op_type="Cast", inputs=(read,), outputs=(made,))
        for read, made in itertools.pairwise(tensors)
    ]
    return SimpleNamespace(
        shape=lambda tensor: shape if tensor == "y" else None,
        layers=tuple(layers),
        find_group=lambda name: SimpleNamespace(operator=operator) if name == "head" else None,
    )


DEFAULTS = [
    ("f1", True, (JudgedOutput("y", "y"),), ("n", 1000), "metric"),
    ("f1", False, (JudgedOutput("y", "y"),), ("n", 1000), "agreement"),
    (None, True, (JudgedOutput("y", "y"),), ("n", 1000), "agreement"),
    (None, False, (JudgedOutput("y", "y"),), ("n", 4), "sqnr"),
    (None, False, (JudgedOutput("y", "y"),), ("n", 3, 8, 8), "sqnr"),
    (None, False, (JudgedOutput("y[:, 4:]", "y", (AxisSlice(1, 4),)),), ("n", 1000), "sqnr"),
    (None, False, (JudgedOutput("y", "y"), JudgedOutput("z", "z")), ("n", 1000), "sqnr"),
    (None, False, (JudgedOutput("y", "y"),), None, "sqnr"),
]


def test_what_divides_by_its_norm_is_no_classifier():
    assert choose_default_target(None, (JudgedOutput("y", "y"),), outline(("n", 384), "Div"), False).kind == "sqnr"
    assert choose_default_target(None, (JudgedOutput("y", "y"),), outline(("n", 1000, 1, 1)), False).kind == "agreement"


@pytest.mark.parametrize("cast_count", [1, 2])
def test_a_classifier_in_fp16_whose_scores_are_cast_to_fp32_is_a_classifier(cast_count):
    judged = (JudgedOutput("y", "y"),)
    assert choose_default_target(None, judged, outline(("n", 1000), "Gemm", cast_count), False).kind == "agreement"
    assert choose_default_target(None, judged, outline(("n", 1000), "Div", cast_count), False).kind == "sqnr"


@pytest.mark.parametrize(("metric", "labels", "judged", "shape", "kind"), DEFAULTS)
def test_the_default_target(metric, labels, judged, shape, kind):
    target = choose_default_target(metric, judged, outline(shape), labels)
    assert target.kind == kind and target.description
    if kind == "metric":
        assert target.bound is None and target.with_base_values({"f1": 93.0}).bound == pytest.approx(92.07)


def errors(sqnr=25.0, cosine=0.999, mse=1e-4, max_abs=0.05, mean_abs=0.01, **more):
    return OutputErrors(ErrorMetrics(sqnr, cosine, mse, max_abs, mean_abs, **more))


EXACT = OutputErrors(ErrorMetrics(None, 1.0, 0.0, 0.0, 0.0, exact=True))
BOTH = Accuracy(
    {
        "boxes:0[:, 0:4]": errors(46.0, 0.99999, max_abs=0.2),
        "scores": errors(8.0, 0.9, mse=1e-2),
        "class": OutputErrors(ErrorMetrics(mismatch=0.25)),
    },
    {"f1": 0.8},
    0.95,
    8,
    8,
)
JUDGED = (
    JudgedOutput("boxes:0[:, 0:4]", "boxes:0"),
    JudgedOutput("scores", "scores"),
    JudgedOutput("class", "class", kind=INTEGER_KIND),
)
NETWORK = SimpleNamespace(shape=lambda tensor: None, layers=())
ALL_EXACT = Accuracy({"y": EXACT}, {}, 1.0, 8, 8)
BROKEN = Accuracy({"y": OutputErrors(ErrorMetrics(nan=3))}, {"f1": 0.8}, 0.95, 8, 8)


@pytest.mark.parametrize(
    ("text", "figure", "margin", "score", "noise"),
    [
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
    ],
)
def test_margins_scores_and_noise(text, figure, margin, score, noise):
    target = parse_target(text)
    assert target.measured_value(BOTH) == pytest.approx(figure) and target.margin_to_bound(BOTH) == pytest.approx(
        margin
    )
    assert target.margin_score(BOTH) == pytest.approx(score) and target.normalized_loss(BOTH) == pytest.approx(noise)
    assert target.is_met_by(BOTH) is (margin >= 0) and target.description and target.measured_value_text(BOTH)
    told = check_targets([target], BOTH)
    assert told.passes is (margin >= 0) and told.lowest_score == target.margin_score(BOTH)
    assert told.comparable_loss == pytest.approx(noise if noise is not None else -score)


def test_the_worst_cosine_need_not_be_at_the_worst_sqnr():
    """A wrong scale costs decibels and no cosine."""
    verdict = Accuracy({"scaled": errors(10.5, 0.9999), "turned": errors(15.0, 0.984)}, {}, None, 8, 8)
    target = parse_target("cosine>=0.999")
    assert target.measured_value(verdict) == 0.984 and not target.is_met_by(verdict)
    assert parse_target("scaled:cosine>=0.999").is_met_by(verdict)


@pytest.mark.parametrize(
    ("text", "bound"), [("agreement>=99%", 0.99), ("mismatch<=1 %", 0.01), ("cosine>=99.9%", 0.999)]
)
def test_shares_may_be_written_in_percent(text, bound):
    assert parse_target(text).bound == pytest.approx(bound)


@pytest.mark.parametrize("text", ["class:sqnr>=20", "class:cosine>=0.5", "class:max_abs<=1", "scores:mismatch<=0.1"])
def test_what_an_output_has_no_figure_for_is_not_known(text):
    assert parse_target(text).is_met_by(BOTH) is None
    with pytest.raises(InputError, match="cannot be checked"):
        check_targets([parse_target(text)], BOTH)


def test_a_share_of_a_negative_base_lies_below_it():
    target = parse_target("metric>=base-1%")
    assert target.with_base_values({"f1": -0.5}).bound == pytest.approx(-0.505)
    assert (
        target.margin_to_bound(BOTH) is None
        and target.normalized_loss(BOTH) is None
        and target.margin_score(BOTH) is None
    )
    with pytest.raises(InputError, match="cannot be checked"):
        check_targets([target], BOTH)
    target = target.with_base_values({"f1": 0.8})
    assert target.margin_to_bound(BOTH) == pytest.approx(0.008) and check_targets([target], BOTH).passes


@pytest.mark.parametrize("text", ["sqnr>=20", "y:sqnr>=20", "cosine>=0.999", "max_abs<=0.1", "y:mse<=0", "cosine>=1"])
def test_an_exact_copy_meets_every_bound(text):
    target = parse_target(text)
    assert target.is_met_by(ALL_EXACT) and target.margin_to_bound(ALL_EXACT) >= 0
    assert target.margin_score(ALL_EXACT) == math.inf and target.normalized_loss(ALL_EXACT) == 0


@pytest.mark.parametrize("text", ["sqnr>=20", "y:cosine>=0.9", "max_abs<=9", "metric>=0.5", "agreement>=0.9"])
def test_nan_falls_short_of_every_bound_by_infinity(text):
    target = parse_target(text)
    assert (
        target.is_met_by(BROKEN) is False and target.margin_to_bound(BROKEN) == target.margin_score(BROKEN) == -math.inf
    )
    told = check_targets([target], BROKEN)
    assert not told.passes and "3 NaN" in told.value_text
    assert told.comparable_loss == math.inf


def test_several_targets_must_all_be_met_and_the_tightest_gives_the_score():
    targets = [parse_target(text) for text in ("boxes:0[:, 0:4]:sqnr>=40", "scores:sqnr>=5", "max_abs<=0.3")]
    told = check_targets(targets, BOTH)
    assert told.passes and told.lowest_score == pytest.approx(3.0)
    figure = re.compile(r"(~?[\d.]+)(?: dB)? at (boxes:0\[:, 0:4\]|scores)")
    boxes, figures = "boxes:0[:, 0:4]", ("46.0", "8.0", "0.200")
    for text, mark in ((told.value_text, ""), (mark_figures_as_simulated(told.value_text), "~")):
        found = figure.findall(text)
        assert found == [
            (f"{mark}{value}", place) for value, place in zip(figures, (boxes, "scores", boxes), strict=True)
        ]
    assert told.comparable_loss == pytest.approx(10**-0.3) and told.accuracy is BOTH
    failing = check_targets([*targets, parse_target("agreement>=0.99")], BOTH)
    assert not failing.passes and failing.lowest_score == pytest.approx(-4.0)
    assert failing.value_text.startswith(f"{told.value_text}, ") and failing.value_text.endswith("agreement 95.0%")


def test_an_output_that_is_not_judged_is_refused_with_those_that_are():
    with refused(title="score is not a judged output", cause="scores"):
        parse_target("score:sqnr>=20").refuse_if_unmeasurable(JUDGED, NETWORK, None)
    assert parse_target("score:sqnr>=20").is_met_by(BOTH) is None


@pytest.mark.parametrize(
    ("text", "metric", "title"),
    [
        ("metric>=0.5", None, "needs a metric"),
        ("agreement>=0.9", None, "needs a classifier"),
        ("class:sqnr>=20", None, "bounds a value"),
        ("scores:mismatch<=0.1", None, "bounds a value"),
        ("psnr>=20", None, "is not a known value"),
        ("f1>=93", None, "is not a known value"),
        ("f1>=93", "f1", ""),
        ("metric[f1/8]>=9", None, "needs a metric"),
        ("nothing:mismatch<=0.1", None, "is not a judged output"),
        ("metric>=0.5", "f1", ""),
        ("mismatch<=0.1", None, ""),
        ("class:mismatch<=0.1", None, ""),
        ("scores:max_abs<=0.1", None, ""),
        ("sqnr>=20", None, ""),
    ],
)
def test_a_target_of_what_is_not_measured_is_refused(text, metric, title):
    if not title:
        return parse_target(text).refuse_if_unmeasurable(JUDGED, NETWORK, metric)
    with pytest.raises(InputError, match=title):
        parse_target(text).refuse_if_unmeasurable(JUDGED, NETWORK, metric)


def test_who_asks_for_agreement_beside_class_ids_is_told_of_their_mismatch():
    with refused(title="needs a classifier", next_step="mismatch<=0.01"):
        parse_target("agreement>=0.9").refuse_if_unmeasurable(JUDGED, NETWORK, None)


FP32_PARTS = {"f1": 90.0, "f1/3": 95.0, "f1/8": 85.0, "f1/9": 90.0}


def scored(**parts):
    return Accuracy(
        {"y": errors()}, {"f1": 89.0, **{f"f1/{name[1]}": value for name, value in parts.items()}}, None, 8, 8
    )


@pytest.mark.parametrize(
    ("text", "judged", "reached", "figure", "margin"),
    [
        ("metric[f1/8]>=base-1%", scored(p3=90, p8=84.5, p9=90), True, 84.5, 0.35),
        ("metric[f1/8]>=base-1", scored(p3=95, p8=83.9, p9=90), False, 83.9, -0.1),
        ("metric[f1/8]>=80", scored(p3=0, p8=84, p9=0), True, 84, 4),
        ("metric[*]>=base-2%", scored(p3=93.2, p8=83.5, p9=89), True, 93.2, 0.1),
        ("metric[*]>=base-2%", scored(p3=95, p8=82.0, p9=90), False, 82.0, -1.3),
        ("metric[*]>=84", scored(p3=95, p8=85.0, p9=84.5), True, 84.5, 0.5),
        ("f1>=88", scored(p8=0), True, 89, 1),
        ("f1>=base-1%", scored(), False, 89, -0.1),
        ("f1/8>=base-1", scored(p8=85), True, 85, 1),
        ("f1[f1/8]>=86", scored(p8=85), False, 85, -1),
        ("metric[f1/8]>=80", scored(p3=90), None, None, None),
    ],
)
def test_targets_on_parts(text, judged, reached, figure, margin):
    target = parse_target(text)
    assert target.description and replace(target, source="").text
    target = target.with_base_values(FP32_PARTS)
    assert target.is_met_by(judged) is reached and target.measured_value(judged) == figure and target.text == text
    assert (
        target.margin_to_bound(judged) == (margin if margin is None else pytest.approx(margin)) and target.description
    )
    if figure is not None:
        assert (
            f"{figure:.4g}"[:4] in target.measured_value_text(judged)
            and check_targets([target], judged).passes is reached
        )


@pytest.mark.parametrize(
    ("text", "met"),
    [("metric[*]>=base-2%", False), ("metric[*]>=9", False), ("metric[f1/8]>=9", False), ("metric[f1/3]>=9", True)],
)
def test_a_part_that_a_run_loses_is_missed(text, met):
    """Only FP32 predicts a class on these samples."""
    target, judged = parse_target(text).with_base_values(FP32_PARTS), scored(p3=95, p9=90)
    assert target.is_met_by(replace(judged, reference_metric=FP32_PARTS)) is met
    result = judge_accuracy([target], replace(judged, reference_metric=FP32_PARTS))
    assert result.passes is met and ("f1/8" in result.text) is not met


def test_unknown_parts_are_refused_with_near_names():
    with refused("no part f1/7", cause="4 parts: f1, f1/3", next_step="f1/"):
        parse_target("metric[f1/7]>=9").with_base_values(FP32_PARTS)
    assert (
        parse_target("metric[f1/7]>=9").with_base_values({"f1": 1.0}, covers_all_samples=False).bound == 9
    )  # of the first feed alone
    assert parse_target("accuracy>=9").with_base_values({"score.py:accuracy": 9.5}).part_name is None


def test_a_part_has_an_interval_of_its_own():
    spread = AccuracyIntervals(
        metric={"f1": ConfidenceInterval(80, 95), "f1/8": ConfidenceInterval(80, 86)},
        metric_gains={"f1": ConfidenceInterval(-5, 0), "f1/8": ConfidenceInterval(-4, 1)},
    )
    judged = replace(scored(p3=95, p8=84), intervals=spread)
    for text, between in (("metric[f1/8]>=83", (80, 86)), ("metric[f1/8]>=base-2", (81, 86)), ("f1>=88", (80, 95))):
        target = parse_target(text).with_base_values(FP32_PARTS)
        assert (
            target.confidence_interval(judged) == ConfidenceInterval(*between)
            and target.is_met_by_whole_interval(judged) is None
        )


def test_the_worst_drop_comes_first():
    rows = metric_part_rows(
        FP32_PARTS, [{"f1": 89.0, "f1/3": 95.0, "f1/8": 80.0}, {"f1": 85.0, "f1/3": 88.0, "f1/8": 84.0}]
    )
    assert [(row.part_name, row.max_drop) for row in rows] == [
        ("f1", 5.0),
        ("f1/3", 7.0),
        ("f1/8", 5.0),
        ("f1/9", None),
    ]


OVERFLOW = Caveat("overflow", "conv overflows FP16 with 70000", fails_run=True)
MAY_OVERFLOW = Caveat("may overflow", "scores may overflow FP16")
PARTLY_JUDGED = Caveat(PARTLY_JUDGED_OUTPUT, "the output y is not judged")
GAP = Caveat("known gap", "engines differ by 2 dB here", gap_db=2.0)
ORDINARY_GAP = replace(GAP, kind=SIMULATION_GAP)


def accuracy(sqnr=25.0, interval=(24.0, 26.0), samples=64, total=None, caveats=(), metric=None, **errors):
    worst = (
        {"sqnr": ConfidenceInterval(*interval), "cosine": ConfidenceInterval(0.998, 0.9995)}
        if interval is not None
        else {}
    )
    spread = AccuracyIntervals(worst_output=worst) if worst else None
    return Accuracy(
        {"y": OutputErrors(ErrorMetrics(sqnr, 0.999, max_abs=0.05, **errors))},
        metric or {},
        None,
        samples,
        samples if total is None else total,
        intervals=spread,
        caveats=tuple(caveats),
    )


def test_a_metric_reads_outputs_that_are_judged_in_part():
    judged = accuracy(caveats=[PARTLY_JUDGED], metric={"f1": 0.9})
    reasons = {
        text: judge_accuracy([parse_target(one) for one in text.split()], judged).reasons
        for text in ("metric>=0.5", "sqnr>=20", "metric>=0.5 sqnr>=20")
    }
    assert [PARTLY_JUDGED.text in texts for texts in reasons.values()] == [False, True, True]


@pytest.mark.parametrize(
    ("text", "judged", "outcome", "reason"),
    [
        ("sqnr>=20", accuracy(), "PASS", ""),
        ("sqnr>=25.5", accuracy(), "FAIL?", "24.0 to 26.0 dB spans the target"),
        ("sqnr>=24.5", accuracy(), "PASS?", "24.0 to 26.0 dB spans the target"),
        ("sqnr>=30", accuracy(), "FAIL", ""),
        ("sqnr>=24.9", accuracy(interval=(20.0, 24.5)), "PASS?", "spans"),
        ("sqnr>=20", accuracy(interval=None, samples=5), "PASS?", "5 samples are too few"),
        ("sqnr>=30", accuracy(interval=None, samples=1), "FAIL?", "1 sample is too few"),
        ("sqnr>=20", accuracy(interval=None, samples=9), "PASS?", "samples cannot be told apart"),
        ("sqnr>=20", accuracy(interval=None, samples=3, total=64), "PASS?", "measured on 3 of 64 samples"),
        ("sqnr>=30", accuracy(interval=None, samples=3, total=64), "FAIL?", "measured on 3 of 64 samples"),
        ("sqnr>=20", accuracy(nan=2, inf=1), "FAIL", "3 NaN or Inf"),
        ("sqnr>=20", accuracy(None, interval=None, samples=2, nan=2), "FAIL", "2 NaN or Inf"),
        ("y:sqnr>=20", accuracy(None), "FAIL", "zero throughout"),
        ("sqnr>=20", replace(accuracy(None), outputs={"y": OutputErrors(ErrorMetrics())}), "FAIL", "infinities"),
        ("sqnr>=20", accuracy(caveats=[OVERFLOW]), "FAIL", "70000"),
        ("sqnr>=20", accuracy(caveats=[MAY_OVERFLOW]), "PASS?", "may overflow"),
        ("sqnr>=20", accuracy(caveats=[PARTLY_JUDGED]), "PASS?", "is not judged"),
        ("sqnr>=30", accuracy(caveats=[MAY_OVERFLOW]), "FAIL", ""),
        ("sqnr>=20", accuracy(caveats=[GAP]), "PASS", ""),
        ("sqnr>=23.5", accuracy(caveats=[GAP]), "PASS?", "engines differ"),
        ("metric>=0.5", accuracy(caveats=[GAP], metric={"f1": 0.9}), "PASS?", "engines differ"),
        ("sqnr>=23.5", accuracy(caveats=[ORDINARY_GAP]), "PASS?", "engines differ"),
        ("mse<=0.0011", accuracy(caveats=[ORDINARY_GAP], mse=0.001), "PASS?", "engines differ"),
        ("max_abs<=0.055", accuracy(samples=MIN_SAMPLES_OF_MAXIMUM, caveats=[ORDINARY_GAP]), "PASS", ""),
        ("max_abs<=0.1", accuracy(samples=MIN_SAMPLES_OF_MAXIMUM), "PASS", ""),
        ("max_abs<=0.1", accuracy(samples=9), "PASS?", "probability of up to 10 %"),
        ("max_abs<=0.01", accuracy(samples=2, interval=None), "FAIL", ""),
        ("max_abs<=0.01", accuracy(samples=2, total=64, interval=None), "FAIL", ""),
        ("max_abs<=0.1", accuracy(samples=30, total=64, interval=None), "PASS?", "30 of 64"),
    ],
)
def test_the_outcome_and_its_reason(text, judged, outcome, reason):
    target = parse_target(text)
    result = judge_accuracy([target], judged)
    assert result.outcome.value == outcome, result
    assert reason in "; ".join(result.reasons) and bool(reason) is bool(result.reasons)
    assert result.passes is outcome.startswith("PASS") and result.text.startswith(outcome)
    judgement = check_targets([target], judged)
    assert judgement.passes is result.passes and judgement.measured_outcome == result


@pytest.mark.parametrize(
    ("draws", "reason"), [(None, "is not measured"), (199, "fails, or never changes"), (0, "fewer than 8 batches")]
)
def test_a_metric_without_an_interval_says_why(draws, reason):
    judged = replace(accuracy(metric={"f1": 0.9}), intervals=AccuracyIntervals(metric_draws=draws))
    result = judge_accuracy([parse_target("metric>=0.8")], judged)
    assert result.outcome.value == "PASS?" and reason in result.text


def test_what_was_not_measured_has_no_result():
    assert judge_accuracy([], accuracy()) is None
    assert judge_accuracy([parse_target("sqnr>=20"), parse_target("metric>=0.5")], accuracy()) is None


def test_a_run_that_overflows_and_misses_says_both_and_ranks_last():
    targets = [parse_target("sqnr>=30"), parse_target("cosine>=0.5")]
    judged = accuracy(caveats=[OVERFLOW, MAY_OVERFLOW])
    result = judge_accuracy(targets, judged)
    overflow, missed = result.reasons
    assert result.outcome.value == "FAIL" and overflow == OVERFLOW.text and not lacking(missed, "25.0 dB", "≥ 30 dB")
    judgement = check_targets([parse_target("sqnr>=20"), targets[1]], judged)
    assert not judgement.passes and judgement.lowest_score == -math.inf and judgement.comparable_loss == math.inf
    assert judgement.target_scores == (-math.inf, -math.inf), "no margin lets it pass"


def test_a_run_that_overflows_fails_although_its_metric_is_not_measured_and_names_no_target_that_it_meets():
    judged = accuracy(caveats=[OVERFLOW])
    for targets in ([parse_target("sqnr>=20")], [parse_target("sqnr>=20"), parse_target("metric>=0.5")]):
        assert judge_accuracy(targets, judged).text == f"FAIL: {OVERFLOW.text}"


def test_of_several_targets_the_worst_decides_and_reasons_name_them():
    sqnr, cosine = parse_target("sqnr>=24.5"), parse_target("cosine>=0.9985")
    result = judge_accuracy([sqnr, cosine], accuracy())
    assert result.outcome.value == "PASS?"
    assert [numbers(reason)[0] for reason in result.reasons] == [24.5, 0.9985]
    assert judge_accuracy([sqnr, parse_target("cosine>=0.9995")], accuracy()).outcome.value == "FAIL?"
    assert judge_accuracy([sqnr, parse_target("cosine>=0.9999")], accuracy()).outcome.value == "FAIL"
    (reason,) = judge_accuracy([sqnr, parse_target("cosine>=0.9995")], accuracy(nan=1)).reasons
    assert reason.startswith("1 NaN")


def test_each_part_of_a_metric_is_judged_by_its_own_interval():
    """The part that is nearest to its bound need not be the one whose interval spans it."""
    base = {"f1": 0.9, "f1/a": 0.9, "f1/b": 0.9}
    spread = AccuracyIntervals(
        metric=dict.fromkeys(("f1", "f1/a", "f1/b"), ConfidenceInterval(0.8, 0.9)),
        metric_gains={
            "f1": ConfidenceInterval(-0.011, -0.009),
            "f1/a": ConfidenceInterval(-0.012, -0.008),
            "f1/b": ConfidenceInterval(-0.05, 0.03),
        },
        metric_draws=199,
    )
    judged = replace(accuracy(metric={"f1": 0.89, "f1/a": 0.89, "f1/b": 0.895}), intervals=spread)
    result = judge_accuracy([parse_target("metric[*]>=base-0.02").with_base_values(base)], judged)
    assert result.outcome.value == "PASS?" and len(result.reasons) == 1 and result.reasons[0].startswith("f1/b ≥")
    many = replace(judged, metric={f"f1/{n}": 0.9 for n in range(80)}, intervals=None)
    told = judge_accuracy(
        [parse_target("metric[*]>=0.5")], replace(many, intervals=AccuracyIntervals(metric_draws=None))
    ).reasons
    assert len(told) == 6 and told[-1] == "75 more reasons"


@pytest.mark.parametrize(("cosine", "outcome"), [(0.95, "PASS"), (0.4, "PASS?"), (-1.0, "PASS?"), (None, "PASS")])
def test_a_metric_that_passes_on_other_outputs_than_those_of_fp32_is_doubted(cosine, outcome):
    judged = Accuracy(
        {"a": OutputErrors(ErrorMetrics(25.0, 0.999)), "y": OutputErrors(ErrorMetrics(0.6, cosine))},
        {"f1": 0.9},
        1.0,
        64,
        64,
        intervals=AccuracyIntervals(
            metric={"f1": ConfidenceInterval(0.89, 0.91)},
            metric_draws=199,
            agreement_interval=ConfidenceInterval(0.97, 1.0),
        ),
    )
    for text in ("metric>=0.85", "agreement>=0.9"):
        result = judge_accuracy([parse_target(text)], judged)
        assert result.outcome.value == outcome and ("no longer resembles" in result.text) is (outcome == "PASS?")
    assert judge_accuracy([parse_target("metric>=0.95")], judged).outcome.value == "FAIL"
    doubts = judge_accuracy([parse_target("sqnr>=0.5")], judged).reasons
    assert not any("resembles" in reason for reason in doubts), "the user has bounded the error itself"


@pytest.mark.parametrize(
    ("mismatch", "targets", "outcome"),
    [
        (1.0, ["sqnr>=20"], "PASS?"),
        (0.3, ["sqnr>=20"], "PASS"),
        (1.0, ["sqnr>=20", "mismatch<=1"], "PASS"),
        (1.0, ["sqnr>=20", "ids:mismatch<=1"], "PASS"),
    ],
)
def test_class_ids_that_differ_are_a_doubt_unless_a_target_bounds_them(mismatch, targets, outcome):
    ids = OutputErrors(ErrorMetrics(mismatch=mismatch))
    certain = ConfidenceInterval(mismatch, mismatch)
    judged = replace(
        accuracy(sqnr=60.0),
        outputs={"y": OutputErrors(ErrorMetrics(60.0, 1.0)), "ids": ids},
        intervals=AccuracyIntervals(
            {"ids": {"mismatch": certain}}, {"sqnr": ConfidenceInterval(59.0, 61.0), "mismatch": certain}
        ),
    )
    result = judge_accuracy([parse_target(text) for text in targets], judged)
    assert result.outcome.value == outcome and ("ids" in result.text) is (outcome == "PASS?")


def test_a_target_that_a_meaningless_run_meets_is_trivial():
    shuffled = Accuracy({"y": OutputErrors(ErrorMetrics(22.0))}, {"f1": 2.6}, None, 64, 64)
    judged = replace(accuracy(metric={"f1": 2.7}), meaningless_accuracies={SHUFFLED: shuffled})
    result = judge_accuracy([parse_target("sqnr>=20")], judged)
    assert result.outcome.value == "PASS?" and "(22.0 dB)" in result.text
    assert judge_accuracy([parse_target("sqnr>=23")], judged).outcome.value == "PASS"
    assert judge_accuracy([parse_target("sqnr>=30")], judged).outcome.value == "FAIL"
    assert "metric 2.6" in judge_accuracy([parse_target("metric>=2.5")], judged).text
    scrambled = Accuracy({}, {"f1": 3.9}, None, 64, 64)
    judged = replace(judged, meaningless_accuracies={SHUFFLED: shuffled, SCRAMBLED: scrambled})
    assert "(metric 3.9" in judge_accuracy([parse_target("metric>=2.65")], judged).text
