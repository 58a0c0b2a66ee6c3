"""trt_tui.session.results: figures by what a config decides"""

import pytest

from tests import local
from tests.measuring import verdict
from trt_tui.core.measure.comparison import EngineResult, Share, Verdict
from trt_tui.core.moves.config import PrecisionConfig, RangeChoice
from trt_tui.core.precision import Precision
from trt_tui.jobs import events as ev
from trt_tui.session.results import Results

MLP = local.outline("mlp")
INT8 = PrecisionConfig.uniform(Precision.INT8)


def measured(config: PrecisionConfig, one: Verdict, final: bool = False) -> ev.VerdictMeasured:
    return ev.VerdictMeasured(1, "config", config, one, final)


def test_configs_that_decide_the_same_are_one_whoever_chose():
    ours = INT8.with_groups(MLP.groups[:1], Precision.FP32).with_range("x", RangeChoice(1.0))
    searched = INT8.with_groups(MLP.groups[:1], Precision.FP32, "search:greedy")
    searched = searched.with_range("x", RangeChoice(1.0, "mse"))
    results = Results()
    results.take(measured(ours, verdict(20.0)))
    results.take(ev.SharesMeasured(1, "config", searched, {"a": Share(0.5)}, 1, 2))
    results.take(ev.SharesMeasured(1, "config", ours, {"b": Share(0.25)}, 2, 2))
    assert list(results) == [ours] and results[searched].verdict == verdict(20.0)
    assert set(results[ours].shares) == {"a", "b"}


def test_what_is_not_known_is_not_kept():
    results = Results()
    assert results.of(INT8).verdict is None and INT8 not in results and not results


def test_a_verdict_on_fewer_samples_takes_the_place_of_none_on_more():
    results = Results()
    for event in (measured(INT8, verdict(20.0, samples=8)), measured(INT8, verdict(30.0, samples=4))):
        results.take(event)
    assert results[INT8].verdict == verdict(20.0, samples=8)
    results.take(measured(INT8, verdict(25.0, samples=4), final=True))
    assert results[INT8].verdict == verdict(25.0, samples=4)


def test_a_way_out_that_was_tried_is_a_result_of_its_config():
    raised = INT8.with_groups(MLP.groups[:1], Precision.FP32)
    results = Results()
    options = tuple(ev.WayOut("space", "FP32", config, verdict(40.0)) for config in (raised, INT8))
    results.take(measured(INT8, verdict(20.0)))
    results.take(ev.WaysOutMeasured(2, MLP.groups[0].name, INT8, options))
    assert results.ways_out[MLP.groups[0].name, INT8] == options
    assert results[raised].verdict == verdict(40.0) and results[INT8].verdict == verdict(20.0)


def test_a_preview_takes_the_place_of_no_engine_built_in_full():
    preview, full = EngineResult(verdict(20.0), "TensorRT", quick=True), EngineResult(verdict(21.0), "TensorRT")
    results = Results()
    assert results.built(INT8, preview) and results.built(INT8, full) and not results.built(INT8, preview)
    assert results[INT8].engine is full


def test_an_event_that_measures_nothing_is_refused():
    with pytest.raises(TypeError, match="Done"):
        Results().take(ev.Done(1))
