"""The one rule for PASS, PASS?, FAIL? and FAIL."""

import math
from dataclasses import replace

import pytest

from trt_tui.core.measure.error_metrics import AccuracyIntervals, ConfidenceInterval
from trt_tui.core.measure.results import Accuracy, Caveat, ErrorMetrics, OutputErrors
from trt_tui.core.measure.target import MIN_SAMPLES_OF_MAXIMUM, check_targets, judge_accuracy, parse_target
from trt_tui.core.measure.user_metric import SCRAMBLED, SHUFFLED

OVERFLOW = Caveat("overflow", "conv overflows FP16 with 70000", fails_run=True)
MAY_OVERFLOW = Caveat("may overflow", "scores may overflow FP16")
GAP = Caveat("known gap", "engines differ by 2 dB here", gap_db=2.0)


def accuracy(sqnr=25.0, interval=(24.0, 26.0), samples=64, total=None, caveats=(), metric=None, **errors):
    worst = {"sqnr": ConfidenceInterval(
        *interval), "cosine": ConfidenceInterval(0.998, 0.9995)} if interval is not None else {}
    spread = AccuracyIntervals(worst_output=worst) if worst else None
    return Accuracy({"y": OutputErrors(ErrorMetrics(sqnr, 0.999, max_abs=0.05, **errors))}, metric or {}, None, samples,
                    samples if total is None else total, intervals=spread, caveats=tuple(caveats))


@pytest.mark.parametrize(("text", "judged", "outcome", "reason"), [
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
    ("sqnr>=20", accuracy(caveats=[OVERFLOW]), "FAIL", "70000"),
    ("sqnr>=20", accuracy(caveats=[MAY_OVERFLOW]), "PASS?", "may overflow"),
    ("sqnr>=30", accuracy(caveats=[MAY_OVERFLOW]), "FAIL", ""),
    ("sqnr>=20", accuracy(caveats=[GAP]), "PASS", ""),
    ("sqnr>=23.5", accuracy(caveats=[GAP]), "PASS?", "engines differ"),
    ("metric>=0.5", accuracy(caveats=[GAP], metric={"f1": 0.9}), "PASS?", "engines differ"),
    ("max_abs<=0.1", accuracy(samples=MIN_SAMPLES_OF_MAXIMUM), "PASS", ""),
    ("max_abs<=0.1", accuracy(samples=9), "PASS?", "probability of up to 10 %"),
    ("max_abs<=0.01", accuracy(samples=2, interval=None), "FAIL", ""),
    ("max_abs<=0.01", accuracy(samples=2, total=64, interval=None), "FAIL", ""),
    ("max_abs<=0.1", accuracy(samples=30, total=64, interval=None), "PASS?", "30 of 64"),
])
def test_the_outcome_and_its_reason(text, judged, outcome, reason):
    target = parse_target(text)
    result = judge_accuracy([target], judged)
    assert result.outcome.value == outcome, result
    assert reason in "; ".join(result.reasons) and bool(reason) is bool(result.reasons)
    assert result.passes is outcome.startswith("PASS") and result.text.startswith(outcome)
    judgement = check_targets([target], judged)
    assert judgement.passes is result.passes and judgement.measured_outcome == result


@pytest.mark.parametrize(("draws", "reason"), [
    (None, "is not measured"), (199, "fails, or never changes"), (0, "fewer than 8 batches")])
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
    assert result.outcome.value == "FAIL" and result.reasons == (OVERFLOW.text, "25.0 dB misses SQNR ≥ 30 dB")
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
    assert [reason.partition(": ")[0] for reason in result.reasons] == ["SQNR ≥ 24.5 dB", "cosine ≥ 0.9985"]
    assert judge_accuracy([sqnr, parse_target("cosine>=0.9995")], accuracy()).outcome.value == "FAIL?"
    assert judge_accuracy([sqnr, parse_target("cosine>=0.9999")], accuracy()).outcome.value == "FAIL"
    assert judge_accuracy([sqnr, parse_target("cosine>=0.9995")], accuracy(nan=1)).reasons == ("1 NaN or Inf",)


def test_each_part_of_a_metric_is_judged_by_its_own_interval():
    """The part that is nearest to its bound need not be the one whose interval spans it."""
    base = {"f1": 0.9, "f1/a": 0.9, "f1/b": 0.9}
    spread = AccuracyIntervals(
        metric=dict.fromkeys(("f1", "f1/a", "f1/b"), ConfidenceInterval(0.8, 0.9)),
        metric_gains={"f1": ConfidenceInterval(-0.011, -0.009), "f1/a": ConfidenceInterval(-0.012, -0.008),
                      "f1/b": ConfidenceInterval(-0.05, 0.03)}, metric_draws=199)
    judged = replace(accuracy(metric={"f1": 0.89, "f1/a": 0.89, "f1/b": 0.895}), intervals=spread)
    result = judge_accuracy([parse_target("metric[*]>=base-0.02").with_base_values(base)], judged)
    assert result.outcome.value == "PASS?" and len(result.reasons) == 1 and result.reasons[0].startswith("f1/b ≥")
    many = replace(judged, metric={f"f1/{n}": 0.9 for n in range(80)}, intervals=None)
    told = judge_accuracy([parse_target("metric[*]>=0.5")],
                          replace(many, intervals=AccuracyIntervals(metric_draws=None))).reasons
    assert len(told) == 6 and told[-1] == "75 more reasons"


@pytest.mark.parametrize(("cosine", "outcome"), [(0.95, "PASS"), (0.4, "PASS?"), (-1.0, "PASS?"), (None, "PASS")])
def test_a_metric_that_passes_on_other_outputs_than_those_of_fp32_is_doubted(cosine, outcome):
    judged = Accuracy({"a": OutputErrors(ErrorMetrics(25.0, 0.999)), "y": OutputErrors(ErrorMetrics(0.6, cosine))},
                      {"f1": 0.9}, 1.0, 64, 64, intervals=AccuracyIntervals(
                          metric={"f1": ConfidenceInterval(0.89, 0.91)}, metric_draws=199,
                          agreement_interval=ConfidenceInterval(0.97, 1.0)))
    for text in ("metric>=0.85", "agreement>=0.9"):
        result = judge_accuracy([parse_target(text)], judged)
        assert result.outcome.value == outcome and ("y no longer resembles" in result.text) is (outcome == "PASS?")
    assert judge_accuracy([parse_target("metric>=0.95")], judged).outcome.value == "FAIL"
    doubts = judge_accuracy([parse_target("sqnr>=0.5")], judged).reasons
    assert not any("resembles" in reason for reason in doubts), "the user has bounded the error itself"


def test_a_target_that_a_meaningless_run_meets_is_trivial():
    shuffled = Accuracy({"y": OutputErrors(ErrorMetrics(22.0))}, {"f1": 2.6}, None, 64, 64)
    judged = replace(accuracy(metric={"f1": 2.7}), meaningless_accuracies={SHUFFLED: shuffled})
    result = judge_accuracy([parse_target("sqnr>=20")], judged)
    assert result.outcome.value == "PASS?" and "another sample (22.0 dB)" in result.text
    assert judge_accuracy([parse_target("sqnr>=23")], judged).outcome.value == "PASS"
    assert judge_accuracy([parse_target("sqnr>=30")], judged).outcome.value == "FAIL"
    assert "metric 2.6" in judge_accuracy([parse_target("metric>=2.5")], judged).text
    scrambled = Accuracy({}, {"f1": 3.9}, None, 64, 64)
    judged = replace(judged, meaningless_accuracies={SHUFFLED: shuffled, SCRAMBLED: scrambled})
    assert "in any order (metric 3.9" in judge_accuracy([parse_target("metric>=2.65")], judged).text
