"""trt_tui.session.results: figures by what a config decides"""

import pytest

from tests import local
from tests.measuring import verdict
from trt_tui.core.measure.results import (
    MAX_RECENT_RESULTS,
    Accuracy,
    EngineResult,
    ErrorShare,
    RunKind,
)
from trt_tui.core.measure.target import Outcome, TargetOutcome
from trt_tui.core.moves.config import PrecisionConfig, RangeMove
from trt_tui.core.precision import Precision
from trt_tui.jobs import events as ev
from trt_tui.session.results import MAX_RECENT_CONFIGS, SessionResults, find_decisive_outcome

MLP = local.outline("mlp")
INT8 = PrecisionConfig.from_precision(Precision.INT8)


def measured(config: PrecisionConfig, one: Accuracy, final: bool = False) -> ev.AccuracyMeasured:
    return ev.AccuracyMeasured(1, "config", config, one, final)


def test_configs_that_decide_the_same_are_one_whoever_chose():
    ours = INT8.with_group_precision(MLP.groups[:1], Precision.FP32).with_range("x", RangeMove(1.0))
    searched = INT8.with_group_precision(MLP.groups[:1], Precision.FP32, "search:greedy")
    searched = searched.with_range("x", RangeMove(1.0, "mse"))
    results = SessionResults()
    results.store_event_results(measured(ours, verdict(20.0)))
    results.store_event_results(ev.ErrorSharesMeasured(1, "config", searched, {"a": ErrorShare(0.5)}, 1, 2))
    results.store_event_results(ev.ErrorSharesMeasured(1, "config", ours, {"b": ErrorShare(0.25)}, 2, 2))
    assert list(results) == [ours] and results[searched].accuracy == verdict(20.0)
    assert set(results[ours].shares) == {"a", "b"}


def test_what_is_not_known_is_not_kept():
    results = SessionResults()
    assert results.get_results_or_empty(INT8).accuracy is None and INT8 not in results and not results


def test_a_verdict_on_fewer_samples_takes_the_place_of_none_on_more():
    results = SessionResults()
    for event in (measured(INT8, verdict(20.0, samples=8)), measured(INT8, verdict(30.0, samples=4))):
        results.store_event_results(event)
    assert results[INT8].accuracy == verdict(20.0, samples=8)
    results.store_event_results(measured(INT8, verdict(25.0, samples=4), final=True))
    assert results[INT8].accuracy == verdict(25.0, samples=4)


def test_an_accuracy_of_another_job_takes_the_place_of_one_on_fewer_samples_alone():
    results, group = SessionResults(), MLP.groups[0].name
    results.store_event_results(measured(INT8, verdict(20.0, samples=4)))
    for db, samples, kept_db in ((30.0, 8, 30.0), (40.0, 8, 30.0), (50.0, 4, 30.0)):
        accuracies = {INT8: verdict(db, samples=samples)}
        results.store_event_results(ev.ValueMeasured(2, ev.REMEDIES, (group, INT8), (), accuracies))
        assert results[INT8].accuracy == verdict(kept_db, samples=8)


def test_of_many_configs_those_shown_those_listed_and_what_was_built_are_kept():
    """A session makes some 30 configs per 100 keys: the rows that a key would toggle, and what a list offers."""
    configs = [INT8.with_range("x", RangeMove(1.0 + step)) for step in range(1000)]
    shown, listed, built = configs[0], configs[5], configs[7]
    results = SessionResults(lambda config: config is listed)
    results.store_engine_result(built, EngineResult(verdict(20.0), "TensorRT 10.0"))
    for config in configs:
        results.store_event_results(measured(config, verdict(20.0)))
        results.store_event_results(ev.ErrorSharesMeasured(1, "config", config, {"a": ErrorShare(0.5)}, 1, 1))
        results.store_event_results(ev.ValueMeasured(2, ev.REMEDIES, ("a", config), ()))
        results.store_event_results(
            ev.ValueMeasured(2, ev.ZERO_COST_CHANGES, ("a", config), ev.ZeroCostChanges((), True))
        )
        assert results.get_results_or_empty(shown).shares
    assert {shown, listed, built, *configs[-MAX_RECENT_CONFIGS + 1 :]} == {*results}
    assert results[listed].accuracy == verdict(20.0) and results[built].engine_result is not None
    assert not results[listed].shares and not results[built].shares and results[configs[-1]].shares
    assert [key for _, key in results.get_values(ev.REMEDIES)] == configs[-MAX_RECENT_RESULTS:]
    assert len(results.get_values(ev.ZERO_COST_CHANGES)) == MAX_RECENT_RESULTS


def test_a_way_out_that_was_tried_is_a_result_of_its_config():
    raised = INT8.with_group_precision(MLP.groups[:1], Precision.FP32)
    results = SessionResults()
    options = tuple(ev.Remedy("FP32", config, key="space", accuracy=verdict(40.0)) for config in (raised, INT8))
    results.store_event_results(measured(INT8, verdict(20.0)))
    results.store_event_results(
        ev.ValueMeasured(
            2, ev.REMEDIES, (MLP.groups[0].name, INT8), options, {option.config: option.accuracy for option in options}
        )
    )
    remedies = results.get_values(ev.REMEDIES)[MLP.groups[0].name, INT8]
    assert [(remedy.config, remedy.shown_accuracy) for remedy in remedies] == [
        (option.config, option.accuracy) for option in options
    ]
    assert results[raised].accuracy == verdict(40.0) and results[INT8].accuracy == verdict(20.0)


def test_an_event_that_measures_nothing_is_refused():
    with pytest.raises(TypeError, match="JobDone"):
        SessionResults().store_event_results(ev.JobDone(1))


PASS, PASS_IN_DOUBT, FAIL_IN_DOUBT, FAIL = Outcome


@pytest.mark.parametrize(
    ("simulated", "executed", "decisive"),
    [
        (PASS, PASS, "simulated"),
        (PASS, PASS_IN_DOUBT, "executed"),
        (PASS_IN_DOUBT, PASS, "simulated"),
        (PASS_IN_DOUBT, PASS_IN_DOUBT, "simulated"),
        (PASS, FAIL_IN_DOUBT, "executed"),
        (PASS_IN_DOUBT, FAIL, "executed"),
        (FAIL, PASS, "simulated"),
        (FAIL, PASS_IN_DOUBT, "simulated"),
        (FAIL, FAIL, "executed"),
    ],
)
def test_an_exported_network_takes_certainty_away_and_gives_none(simulated, executed, decisive) -> None:
    results = {
        name: TargetOutcome(outcome, () if outcome is PASS else (name,))
        for name, outcome in (("simulated", simulated), ("executed", executed))
    }
    outcomes = {RunKind.SIMULATED_CONFIG: results["simulated"], RunKind.EXPORTED_FILE: results["executed"]}
    assert find_decisive_outcome(outcomes) is results[decisive]
    built = TargetOutcome(PASS)
    assert find_decisive_outcome({**outcomes, RunKind.BUILT_ENGINE: built}) is built
