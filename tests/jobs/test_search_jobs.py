"""trt_tui.jobs.search_job and the worker's search: order of work, what is kept, stops, engines, commands, latency"""

import math
import sys
import textwrap
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from tests import networks
from tests.driven import LIMIT_S, DrivenWorker, of, save_mlp, save_resnet
from tests.texts import lacking
from trt_tui.backends import onnxruntime as backend
from trt_tui.core.engines.fallback_ladder import NO_PRECISIONS, BuildAttempt, BuildError
from trt_tui.core.engines.group_implementations import GroupImplementation, Kernel, Preview
from trt_tui.core.lowering.typed_network import lower_to_typed_network
from trt_tui.core.measure.error_metrics import METRIC_RESAMPLE_COUNT
from trt_tui.core.measure.results import Accuracy, Caveat, EngineResult, ErrorMetrics, OutputErrors, RunKind
from trt_tui.core.measure.simulation import Analysis
from trt_tui.core.measure.target import HeldOutResult, HeldOutValue, Outcome, TargetOutcome, TargetResult, parse_target
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.constant_moves import BiasCorrectionMove, RoundingMove
from trt_tui.core.moves.keep_rules import apply_keep_rules
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.core.runner import BackendCapabilities, LocalExecutor
from trt_tui.core.search import ReductionStep, SearchOutcome, SearchSpace
from trt_tui.core.search.search import ALONE_STEP, RANGES_STEP
from trt_tui.formatting import milliseconds_text
from trt_tui.jobs import engine, scheduler, search_job
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.scheduler import WaitStep
from trt_tui.jobs.search_job import LatencyModel
from trt_tui.session.comparison_report import precision_json_text
from trt_tui.session.history import ConfigNames, SavedSession
from trt_tui.session.search_status import SearchStatus, evaluation_table, held_out_result_text

INT8 = PrecisionConfig.from_precision(Precision.INT8)
FP32 = PrecisionConfig.from_precision(Precision.FP32)
GOAL = rq.FindMixedPrecisionConfig(INT8, ("sqnr>=42",))
CLOSE = replace(GOAL, try_zero_cost=False)
"""A search whose result meets the tolerance by less than 3 dB."""


@pytest.fixture(autouse=True)
def _told(monkeypatch):
    monkeypatch.setattr(scheduler, "MIN_REPORT_INTERVAL_S", 0.0)


@pytest.fixture
def options(tmp_path):
    return save_resnet(tmp_path, samples=12)


def opened_worker(options, *folders):
    worker = DrivenWorker(*folders)
    assert isinstance(worker.answer(rq.OpenNetwork(options))[-1], ev.JobDone)
    return worker


@contextmanager
def counted_runs():
    """Counts how often ONNX Runtime runs."""
    counted = []
    run = backend.OnnxRuntimeRunner.run
    with mock.patch.object(
        backend.OnnxRuntimeRunner,
        "run",
        lambda self, *args, **kwargs: (counted.append(1), run(self, *args, **kwargs))[1],
    ):
        yield counted


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """What the first search of a process finds, and how many runs it takes; others find its measurements."""
    folder = tmp_path_factory.mktemp("first")
    worker = opened_worker(save_resnet(folder, samples=12), folder, folder / "results")
    with counted_runs() as runs, mock.patch.object(scheduler, "MIN_REPORT_INTERVAL_S", 0.0):
        return SimpleNamespace(folder=folder / "results", ended=found(worker.answer(GOAL)), cost=len(runs))


@pytest.fixture
def opened(tmp_path, options, first):
    return lambda: opened_worker(options, tmp_path, first.folder)


@pytest.fixture
def runs():
    with counted_runs() as counted:
        yield counted


def found(events) -> ev.SearchEnded:
    assert isinstance(events[-1], ev.JobDone), events[-1]
    return of(events, ev.SearchEnded)[-1]


def test_a_search_streams_evaluations_then_what_it_found(opened):
    worker = opened()
    events = worker.answer(GOAL)
    ended = found(events)
    assert (
        ended.result.outcome is SearchOutcome.MET
        and 1 <= len(ended.result.best_evaluation.raised_groups) < ended.candidate_count
    )
    progress = of(events, ev.SearchProgress)
    assert [one.done for one in progress] == sorted(one.done for one in progress)
    assert progress[0].result.best_evaluation is None
    assert progress[-1].result.is_met and progress[-1].result.config.precision_moves
    assert ended.confirmed is None and ended.used_method
    keys = [one.config_key for one in ended.evaluations]
    assert len(set(keys)) == len(keys)


def test_the_figures_of_a_search_are_those_of_a_whatif(opened):
    worker = opened()
    ended = found(worker.answer(GOAL))
    verdict = of(worker.answer(rq.MeasureWhatIf(ended.result.config)), ev.AccuracyMeasured)[-1].accuracy
    assert verdict == ended.result.best_evaluation.target_result.accuracy
    assert parse_target(*GOAL.tolerances).is_met_by(verdict)
    for name in ended.result.best_evaluation.raised_groups:
        assert "without it" in ended.result.raise_reasons[name] and "(fails)" in ended.result.raise_reasons[name]


def test_the_reason_for_a_raise_is_the_value_of_the_result_without_it_alone(opened):
    """A raised layer takes the range of its input out of the result. The layer alone, lowered, has the range of the
    start."""
    worker, (target,) = opened(), map(parse_target, CLOSE.tolerances)
    result = found(worker.answer(CLOSE)).result
    assert len(result.best_evaluation.used_ranges) < len(result.best_evaluation.range_moves)
    for name, reason in result.raise_reasons.items():
        config = result.config.without_group_precision([worker.network.get_group(name)])
        accuracy = of(worker.answer(rq.MeasureWhatIf(config)), ev.AccuracyMeasured)[-1].accuracy
        assert reason.startswith(f"without it ~{target.measured_value_text(accuracy)} (fails)")


def test_what_is_met_already_and_what_cannot_be_met_are_said_at_once(opened):
    worker = opened()
    ended = found(worker.answer(replace(GOAL, tolerances=("sqnr>=10",))))
    assert ended.result.outcome is SearchOutcome.NOTHING_TO_DO and ended.result.config == INT8
    assert len(ended.evaluations) == 1 and not ended.used_method
    ended = found(worker.answer(replace(GOAL, tolerances=("sqnr>=90",), higher_precision=Precision.FP16)))
    assert ended.result.outcome is SearchOutcome.UNREACHABLE and len(ended.evaluations) == 2
    assert "dB" in ended.result.summary


def test_several_tolerances_must_all_be_met(opened):
    worker = opened()
    one = found(worker.answer(GOAL)).result
    both = found(worker.answer(replace(GOAL, tolerances=(*GOAL.tolerances, "cosine>=0.99999")))).result
    assert both.is_met and len(both.best_evaluation.raised_groups) > len(one.best_evaluation.raised_groups)
    assert parse_target("cosine>=0.99999").is_met_by(both.best_evaluation.target_result.accuracy)


def test_what_is_free_goes_before_what_is_raised(opened):
    worker = opened()
    lone = found(worker.answer(replace(GOAL, try_zero_cost=False, try_ranges=False))).result
    ended = found(worker.answer(replace(GOAL, try_ranges=False)))
    assert ended.result.is_met and ended.result.best_evaluation.zero_cost_sets[-1] == "bias correction"
    assert (
        len(ended.result.best_evaluation.raised_groups) < len(lone.best_evaluation.raised_groups)
        and "bias correction" in ended.result.summary
    )
    assert "GPTQ" in ended.result.summary and ended.result.config.get_moves(RoundingMove)
    made = ended.result.config.get_moves(BiasCorrectionMove)
    assert made and not made.keys() & set(ended.result.best_evaluation.raised_groups)
    steps = list(dict.fromkeys(one.step_name for one in ended.evaluations))
    assert steps[:3] == ["start", "all raised", ALONE_STEP]


def test_rows_as_in_the_file_leave_it_for_what_is_free(options, tmp_path):
    """A file with ranges four times too wide: ranges of the samples come first, then corrected biases beside them."""
    plain = open_network(options.model)
    wide = dict.fromkeys(plain.calibrated_tensors, 40.0)
    onnx.save(
        ir.to_proto(
            lower_to_typed_network(plain, PrecisionConfig.from_precision(Precision.INT8, Precision.FP32), wide).model
        ),
        tmp_path / "wide.onnx",
    )
    options = replace(options, model=str(tmp_path / "wide.onnx"))
    worker = DrivenWorker(tmp_path)
    worker.answer(rq.OpenNetwork(options))
    start = PrecisionConfig.from_precision(Precision.FILE)
    ended = found(worker.answer(replace(GOAL, config=start, try_ranges=False)))
    tried = [one.zero_cost_sets for one in ended.evaluations]
    assert tried[:2] == [(), ()] and [sets.split(",")[0] for sets in tried[2]] == ["recalibration"]
    assert all(sets[0] == tried[2][0] for sets in tried[3:])
    assert any(sets[-1] == "bias correction" for sets in tried[3:])
    best, config = ended.result.best_evaluation, ended.result.config
    assert (
        ended.result.is_met
        and "recalibration" in best.zero_cost_sets[0]
        and ended.evaluations[0].target_result.lowest_score < 20
    )
    left = {name for name, one in config.precision_moves.items() if one.precision is Precision.INT8}
    assert left and all(config.precision_moves[name].reason == "search:auto" for name in left | set(best.raised_groups))
    assert all(config.precision_moves[name].precision is Precision.FP32 for name in best.raised_groups)


def test_kept_layers_and_ranges_are_heeded(opened):
    worker = opened()
    start = apply_keep_rules(worker.network, GOAL.config, ["/fc/Gemm"])
    ended = found(worker.answer(replace(GOAL, config=start, try_ranges=False)))
    config = ended.result.config
    assert config.groups_fixed_by_rule == {"/fc/Gemm"} and not config.range_moves
    assert ended.candidate_count == len(worker.network.groups) - 1
    assert not [one for one in ended.evaluations if one.step_name == RANGES_STEP]
    tried = found(worker.answer(GOAL)).evaluations
    assert {choice.method for one in tried for choice in one.range_moves.values()} >= {"percentile", "entropy", "mse"}


@pytest.mark.parametrize(
    ("changed", "title"),
    [
        ({"tolerances": ("metric>=0.5",)}, "needs a metric"),
        ({"tolerances": ("nowhere:sqnr>=5",)}, "not a judged output"),
        ({"tolerances": ()}, "needs a tolerance"),
        ({"method": "guess"}, "unknown search method"),
        ({"max_latency": 1.0}, "needs a latency"),
        ({"config": FP32}, "nothing to do"),
        ({"check_command": ""}, "empty"),
        ({"check_command": "'x"}, "cannot be read"),
        ({"tolerances": (), "check_command": "no-such-program-here"}, "the check command does not start"),
    ],
)
def test_a_search_that_makes_no_sense_is_refused(opened, changed, title):
    worker = opened()
    events = worker.answer(replace(GOAL, **changed))
    assert isinstance(events[-1], ev.JobFailed) and title in events[-1].error.title, events[-1]
    assert not of(events, ev.SearchEnded)


def test_a_whatif_goes_first_and_background_work_waits(opened):
    worker = opened()
    search = worker.ask(GOAL)
    for _ in range(12):
        assert worker.step()
    whatif = worker.ask(
        rq.MeasureWhatIf(INT8.with_group_precision(worker.network.groups[:1], Precision.FP32), with_shares=True)
    )
    events = worker.finish()
    order = [
        one.job for one in events if isinstance(one, ev.AccuracyMeasured | ev.ErrorSharesMeasured | ev.SearchEnded)
    ]
    assert order[0] == whatif and order.index(search) < len(order) - 1
    shares = [place for place, event in enumerate(events) if isinstance(event, ev.ErrorSharesMeasured)]
    assert events.index(of(events, ev.SearchEnded)[0]) < min(shares), "nobody has asked for shares by a key"


def test_a_stopped_search_says_its_best_and_goes_on_later(options, tmp_path, first, runs):
    spent = 0
    for at in (1, 3, 8):
        worker = opened_worker(options, tmp_path)
        worker.ask(GOAL)
        worker.once(lambda event, at=at: isinstance(event, ev.SearchProgress) and event.done == at, worker.stop)
        events = worker.finish()
        assert isinstance(events[-1], ev.JobCancelled) and isinstance(events[-2], ev.SearchEnded)
        assert events[-2].result.outcome is SearchOutcome.SEARCHING and events[-2].result.best_evaluation is not None
        assert len(events[-2].evaluations) >= at
        assert spent < len(runs) < first.cost
        spent = len(runs)
    again = found(opened_worker(options, tmp_path).answer(GOAL))
    assert again.result == first.ended.result and again.evaluations == first.ended.evaluations
    assert len(runs) - first.cost <= 36, "what was measured is not measured again, but for what three stops cut off"


def test_workers_measure_what_a_search_may_request_next(options, tmp_path, first, monkeypatch):
    worker, ahead = opened_worker(options, tmp_path), []
    worker.workspace.worker_pool = SimpleNamespace(
        failure_reason="",
        count_workers=lambda: 3,
        take_new_messages=list,
        make_executor=lambda workspace, *more: LocalExecutor(workspace),
    )
    monkeypatch.setattr(search_job, "MIN_PARALLEL_S", 0.0)

    def measure(workspace, store, reporter, configs, urgency):
        ahead.append(configs)
        yield urgency

    monkeypatch.setattr(search_job, "measure_accuracies_in_parallel", measure)
    ended = found(worker.answer(GOAL))
    tried = [ended.result.config, *(ended.evaluations[index].config for index in ended.pareto_front)]
    assert max(map(len, ahead)) == 3 and all(len(set(configs)) == len(configs) for configs in ahead)
    assert any(config in configs[1:] for configs in ahead for config in tried), "some guesses come true"
    assert replace(first.ended, job=ended.job) == ended


def test_a_second_search_by_another_method_measures_only_what_is_new(options, tmp_path, first, runs):
    worker = opened_worker(options, tmp_path)
    assert found(worker.answer(GOAL)).result == first.ended.result
    runs.clear()
    again = found(worker.answer(GOAL))
    assert again.result == first.ended.result and not runs
    other = found(worker.answer(replace(GOAL, method="scoped")))
    new = {one.config_key for one in other.evaluations} - {one.config_key for one in again.evaluations}
    assert new and len(runs) == len(new) * len(worker.feeds.all_feeds)


def test_the_table_of_scoped_and_the_front_are_those_of_a_run_by_hand(opened):
    """Each layer is lowered in its turn, stays so where the outputs still meet the threshold, and else is raised for
    good; of all configs on the way the front holds those that no other beats."""
    worker = opened()
    ended = found(worker.answer(replace(GOAL, method="scoped", try_ranges=False, try_zero_cost=False)))
    network, target, tried = worker.network, parse_target(*GOAL.tolerances), {}

    def by_hand(raised: set[str]) -> Accuracy:
        config = INT8.with_group_precision([network.get_group(name) for name in raised], Precision.FP32)
        verdict = of(worker.answer(rq.MeasureWhatIf(config)), ev.AccuracyMeasured)[-1].accuracy
        macs = sum(network.get_layer(layer).macs or 0 for name in raised for layer in network.get_group(name).layers)
        tried[frozenset(raised)] = (macs, target.margin_score(verdict))
        return verdict

    candidates = SearchSpace(network, INT8).candidates
    raised, rows = set(candidates), []
    by_hand(set())
    by_hand(raised)
    for name in candidates:
        verdict = by_hand(raised - {name})
        sticks = not target.is_met_by(verdict)
        rows.append(ReductionStep(name, target.measured_value_text(verdict), sticks))
        raised -= set() if sticks else {name}
    assert all(not target.is_met_by(by_hand(raised - {name})) for name in raised), "the last pass finds each one needed"
    assert list(ended.result.reduction_steps) == rows and set(ended.result.best_evaluation.raised_groups) == raised
    points = set(tried.values())
    unbeaten = {
        one for one in points if not any(other != one and other[0] <= one[0] and other[1] >= one[1] for other in points)
    }
    assert {
        tried[frozenset(ended.evaluations[place].config.find_raised_groups(network))] for place in ended.pareto_front
    } == unbeaten
    assert all(set(one.config.find_raised_groups(network)) == set(one.raised_groups) for one in ended.evaluations)


@pytest.fixture
def script(tmp_path):
    """A check that passes where the file's Gemm has no Q/DQ before it; it notes what it was given."""
    path = tmp_path / "check.py"
    path.write_text(
        textwrap.dedent(f"""
        import sys
        import numpy as np
        import onnx
        model, outputs = onnx.load(sys.argv[1]), np.load(sys.argv[2])
        with open({str(tmp_path / "seen")!r}, "a") as log:
            log.write(f"{{len(model.graph.node)}} {{dict((k, outputs[k].shape) for k in outputs)}}\\n")
        makes = {{name: node.op_type for node in model.graph.node for name in node.output}}
        fc = next(node for node in model.graph.node if node.op_type == "Gemm")
        sys.exit(4 if makes.get(fc.input[0]) == "DequantizeLinear" else 0)
    """)
    )
    return f'{sys.executable} {path} "$TRT_TUI_MODEL" "$TRT_TUI_OUTPUTS"'


def finish(worker, job):
    """Works until a job has ended, through what threads do meanwhile."""
    while not any(
        isinstance(event, ev.JobDone | ev.JobFailed | ev.JobCancelled) and event.job == job
        for event in worker.wire.events
    ):
        worker.scheduler.arrival_event.clear()
        if not worker.step():
            assert worker.scheduler.arrival_event.wait(LIMIT_S)
    return [event for event in worker.wire.events if event.job == job]


def test_a_check_command_decides(opened, script, tmp_path):
    worker = opened()
    ended = found(
        finish(
            worker,
            worker.ask(replace(GOAL, tolerances=(), check_command=script, try_ranges=False, try_zero_cost=False)),
        )
    )
    assert ended.result.is_met and ended.result.best_evaluation.raised_groups == ("/fc/Gemm",)
    assert "exit code 4" in ended.evaluations[0].target_result.value_text
    assert 20 < ended.evaluations[0].score < 60, "without a tolerance the error is the score"
    seen = (tmp_path / "seen").read_text().splitlines()
    assert len(seen) == len(ended.evaluations) and "(8, 10)" in seen[0]
    again = found(
        finish(
            worker,
            worker.ask(replace(GOAL, tolerances=(), check_command=script, try_ranges=False, try_zero_cost=False)),
        )
    )
    assert again.result == ended.result and (tmp_path / "seen").read_text().splitlines() == seen


def test_a_check_beside_a_tolerance_needs_both(opened, script):
    worker = opened()
    ended = found(
        finish(worker, worker.ask(replace(GOAL, check_command=script, try_ranges=False, try_zero_cost=False)))
    )
    assert ended.result.is_met and "/fc/Gemm" in ended.result.best_evaluation.raised_groups
    assert parse_target(*GOAL.tolerances).is_met_by(ended.result.best_evaluation.target_result.accuracy)
    assert "the check passes" in ended.result.best_evaluation.target_result.value_text


def test_a_running_check_is_killed_with_its_search(opened):
    worker = opened()
    job = worker.ask(replace(GOAL, tolerances=(), check_command="sleep 1000"))
    while not any(task.wait is not None for task in worker.scheduler.scheduled_jobs):
        assert worker.step()
    worker.stop()
    events = finish(worker, job)
    assert isinstance(events[-1], ev.JobCancelled) and events[-2].result.best_evaluation is None


@pytest.fixture
def with_builder(opened, monkeypatch):
    """A worker whose engines are the simulation, some decibels worse."""

    def make(worse_db: float, latency=lambda config: 1.0, bad: bool = False, times=()):
        """With times of groups in ms."""
        worker = opened()
        worker.workspace.builder = SimpleNamespace(
            name="tensorrt",
            version="11.4",
            device="H200",
            cache_identity=("tensorrt", "11.4"),
            capabilities=BackendCapabilities(True, True, True),
        )
        worker.built = []

        def making(builder, config):
            worker.built.append(config)
            verdict = None
            for partial in worker.workspace.analysis.measure_accuracy(config, worker.workspace.ranges, worker.feeds):
                verdict = partial.value
            name, one = next(iter(verdict.outputs.items()))
            decibels = one.errors.sqnr_db - worse_db if one.errors.sqnr_db is not None else 90.0
            errors = ErrorMetrics(nan=3) if bad else ErrorMetrics(decibels, 1.0)
            made = Accuracy({name: OutputErrors(errors)}, {}, None, verdict.samples, verdict.total)
            yield from ()
            return EngineResult(
                made,
                "TensorRT 11.4",
                (latency(config), 0.9, 1.2),
                10**6,
                4.0,
                build_origin="cold",
                implementations={name: GroupImplementation(None, False, (), ms) for name, ms in dict(times).items()},
            )

        monkeypatch.setattr(engine, "build_and_measure_worst_engine", making)
        return worker

    return make


def test_an_engine_confirms_what_was_found(with_builder):
    worker = with_builder(0.05)
    events = worker.answer(GOAL)
    ended = found(events)
    assert ended.confirmed is True and worker.built == [ended.result.config]
    assert {one.estimated_latency for one in ended.evaluations} == {None}
    assert of(events, ev.EngineBuilt)[-1].config == ended.result.config
    simulated = of(events, ev.AccuracyMeasured)[-1]
    assert (
        simulated.config == ended.result.config
        and simulated.accuracy == ended.result.best_evaluation.target_result.accuracy
    )
    again = worker.answer(GOAL)
    assert found(again).confirmed and len(worker.built) == 1 and of(again, ev.EngineBuilt)


def test_the_gap_of_other_engines_is_no_doubt_in_a_result_that_its_engine_confirms(with_builder):
    ended = found(with_builder(0.05).answer(replace(CLOSE, tolerances=("sqnr>=44",))))
    assert ended.confirmed and ended.result.best_evaluation.score < 1.1, "within the gap of engines in INT8"
    assert ended.target_outcome.passes and "than simulated" not in ended.target_outcome.text


def test_where_the_engine_fails_the_search_goes_on_with_the_difference(with_builder):
    worker = with_builder(3.0)
    ended = found(worker.answer(CLOSE))
    assert ended.confirmed is True and 2 <= len(worker.built) <= 3
    assert ended.result.best_evaluation.score >= 3.0 and "margin of 3" in ended.remarks[0]
    assert len(worker.built[-1].precision_moves) > len(worker.built[0].precision_moves)


def test_at_most_so_many_engines_are_built(with_builder):
    worker = with_builder(3.0)
    ended = found(worker.answer(replace(CLOSE, max_builds=1)))
    assert len(worker.built) == 1 and ended.confirmed is None and ended.result.best_evaluation.score >= 3.0
    assert "--max-builds" in ended.remarks[-1]
    worker = with_builder(0.0)
    assert found(worker.answer(replace(GOAL, tolerances=("sqnr>=38",), max_builds=0))).confirmed is None
    assert not worker.built


@pytest.mark.parametrize("most", [1, 2, 3])
def test_engines_that_are_known_count_as_built(with_builder, most):
    worker = with_builder(3.0)
    first = found(worker.answer(replace(GOAL, max_builds=most)))
    built = len(worker.built)
    again = found(worker.answer(replace(GOAL, max_builds=most)))
    assert replace(again, job=first.job) == first and len(worker.built) == built


@pytest.mark.parametrize("how", ["no engine", "other precisions", "no value"])
def test_what_was_found_stands_but_is_uncertain_where_its_engine_does_not_judge_it(how, with_builder, monkeypatch):
    worker = with_builder(0.0)
    making = engine.build_and_measure_worst_engine

    def failing(builder, config):
        if how == "no engine":
            raise BuildError("TensorRT could not build the engine", "no tactic for conv1", "")
        made = yield from making(builder, config)
        attempts = (BuildAttempt(failure_reason="no tactic for conv1"), BuildAttempt(NO_PRECISIONS))
        return replace(made, accuracy=None) if how == "no value" else replace(made, attempts=attempts)

    monkeypatch.setattr(engine, "build_and_measure_worst_engine", failing)
    events = worker.answer(GOAL)
    ended = found(events)
    assert ended.result.is_met and ended.confirmed is None and not of(events, ev.JobFailed)
    assert ended.target_outcome.outcome is Outcome.UNCERTAIN_PASS
    assert ("no tactic for conv1" in ended.remarks[-1]) is (how != "no value")


def test_stopped_while_an_engine_is_built_it_is_not_the_last_word(with_builder, monkeypatch):
    worker = with_builder(0.0)

    def endless(builder, config):
        worker.stop()
        while True:
            yield WaitStep(lambda: True)

    monkeypatch.setattr(engine, "build_and_measure_worst_engine", endless)
    events = worker.answer(GOAL)
    assert isinstance(events[-1], ev.JobCancelled)
    ended = of(events, ev.SearchEnded)[-1]
    assert ended.was_stopped and ended.result.is_met
    assert not SearchStatus(GOAL, end_event=ended).is_finished
    heard = of(events, ev.SearchProgress)[-1]
    assert heard.result.best_evaluation == ended.result.best_evaluation and heard.result.is_met, (
        "what was found is told before the build"
    )


def test_the_margin_is_that_of_the_tolerance_that_the_engine_misses(with_builder):
    worker = with_builder(3.0)
    both = ("cosine>=0.9", *CLOSE.tolerances)
    ended = found(worker.answer(replace(CLOSE, tolerances=both)))
    assert ended.confirmed is True
    _, scores = zip(*((one.raised_groups, one.target_result.target_scores) for one in ended.evaluations), strict=True)
    assert all(len(one) == 2 for one in scores) and ended.result.best_evaluation.target_result.target_scores[1] >= 3.0
    assert "margin of 3" in ended.remarks[0] and "cosine" not in ended.remarks[0]
    alone = found(with_builder(3.0).answer(CLOSE))
    assert ended.result.best_evaluation.raised_groups == alone.result.best_evaluation.raised_groups


def without_preview(self, config):
    return None
    yield


@pytest.mark.parametrize(
    ("latency_ms", "max_builds", "max_latency", "stays"),
    [
        (0.9, 3, None, ""),
        (1.0, 3, None, ""),
        (1.1, 3, None, "because the engine would be slower"),
        (1.1, 2, None, ""),
        (1.1, 3, 9.0, ""),
    ],
)
def test_unused_qdq_are_taken_out_only_if_the_engine_is_as_fast_without(
    with_builder, monkeypatch, latency_ms, max_builds, max_latency, stays
):
    """Within the builds that the confirmation and a latency budget leave; without engines the preview decides."""
    is_built = max_builds == 3 and max_latency is None
    unused = "/layer2/conv1/Conv"

    def preview(self, config):
        groups = self.workspace.network.groups
        in_int8 = config.precision_of(self.workspace.network.get_group(unused)) is Precision.INT8
        made = {
            group.name: GroupImplementation(
                Precision.FP16 if group.name == unused and in_int8 else config.precision_of(group), False, ()
            )
            for group in groups
        }
        kernels = tuple(Kernel("kgen", (), (), (str(index),)) for index in range(len(groups) + in_int8))
        return Preview(
            "1.7.1",
            (8, 9),
            implementations=made,
            kernels=kernels,
            conversion_count=int(in_int8),
            ineffective_groups=(),
            mha_breakers=(),
        )
        yield

    for name in ("preview_config", "preview_engine"):
        monkeypatch.setattr(search_job.SearchJob, name, preview)
    worker = with_builder(
        0.0,
        lambda config: 1.0 if config.precision_of(worker.network.get_group(unused)) is Precision.INT8 else latency_ms,
    )
    changed = INT8.with_group_precision([worker.network.get_group(unused)], Precision.FP16)
    goal = replace(GOAL, use_preview=True, max_builds=max_builds, max_latency=max_latency, try_zero_cost=False)
    ended = found(worker.answer(goal))
    removal = ended.qdq_removals[0]
    assert removal.config == changed and removal.rejection == stays and len(worker.built) <= max_builds
    assert (removal.kernels, removal.conversions) == ((9, 8), (1, 0))
    assert removal.latencies_ms == ((1.0, latency_ms) if is_built else None)
    assert (worker.built[:2] == [INT8, changed]) is is_built
    assert ended.result.is_met and ended.confirmed is True and worker.built[-1] == ended.result.config
    assert unused not in ended.result.best_evaluation.raised_groups
    result_precision = ended.result.config.precision_of(worker.network.get_group(unused))
    assert result_precision is (Precision.INT8 if stays else Precision.FP16)
    times = " to ".join(dict.fromkeys(map(milliseconds_text, (1.0, latency_ms))))
    assert (f", {times} (" in ended.remarks[0]) is ("times of engines" in ended.remarks[0]) is is_built


def test_a_config_without_unused_qdq_that_cannot_be_built_is_not_taken(with_builder, monkeypatch):
    worker = with_builder(0.0)
    unused = worker.network.groups[2].name

    def preview(self, config):
        made = {unused: GroupImplementation(Precision.FP16, False, ())}
        return Preview("1.7.1", (8, 9), implementations=made, ineffective_groups=(), mha_breakers=())
        yield

    for name in ("preview_config", "preview_engine"):
        monkeypatch.setattr(search_job.SearchJob, name, preview)
    start = engine.build_and_measure_worst_engine

    def failing(builder, config):
        if config.precision_of(worker.network.get_group(unused)) is not Precision.INT8:
            raise BuildError("TensorRT could not build the engine", "no tactic", "")
        return (yield from start(builder, config))

    monkeypatch.setattr(engine, "build_and_measure_worst_engine", failing)
    ended = found(worker.answer(replace(GOAL, use_preview=True, tolerances=("sqnr>=10",))))
    assert ended.result.config == INT8 and "no engine" in ended.qdq_removals[0].rejection
    assert ended.confirmed is True and worker.built == [INT8]


def test_a_search_that_waits_for_a_preview_says_so_until_it_arrives(opened, monkeypatch):
    def preview_config(config):
        yield scheduler.Urgency.SEARCH
        return Preview("1.7.1", (8, 9), ineffective_groups=(), mha_breakers=())

    monkeypatch.setattr(search_job, "is_tensorrt_rtx_installed", lambda: True)
    monkeypatch.setattr(search_job, "preview_mismatch_reason", lambda workspace: "")
    monkeypatch.setattr(search_job, "PreviewClient", lambda *_: SimpleNamespace(preview_config=preview_config))
    answers = of(opened().answer(replace(CLOSE, use_preview=True)), ev.JobProgress, ev.SearchProgress)
    places = [place for place, one in enumerate(answers) if isinstance(one, ev.JobProgress) and one.phase == "preview"]
    assert places and all(isinstance(answers[place + 1], ev.SearchProgress) for place in places)


@pytest.mark.parametrize(("tolerance", "idle_place"), [("sqnr>=40", None), ("sqnr>=40", -1), ("sqnr>=37", 0)])
def test_a_raise_without_effect_is_withdrawn_if_the_search_can_do_without(opened, monkeypatch, tolerance, idle_place):
    asked, idle = [], []

    def preview(self, config):
        raised = config.find_raised_groups(self.workspace.network)
        asked.append(config)
        if not idle and idle_place is not None:
            idle.append(raised[idle_place])
        return Preview(
            "1.7.1", (8, 9), ineffective_groups=tuple(name for name in idle if name in raised), mha_breakers=()
        )
        yield

    goal = replace(GOAL, tolerances=(tolerance,), try_zero_cost=False, try_ranges=False)
    plain = found(opened().answer(goal))
    monkeypatch.setattr(search_job.SearchJob, "preview_engine", preview)
    monkeypatch.setattr(search_job.SearchJob, "preview_config", without_preview)
    ended = found(opened().answer(replace(goal, use_preview=True)))
    assert asked[0] == plain.result.config and plain.result.is_met and ended.result.is_met
    if idle_place is None:
        assert ended.result == plain.result and not ended.remarks and len(asked) == 1
        return
    (remark,) = ended.remarks
    assert remark.startswith(f"{idle[0]} in FP32") and "(preview RTX 1.7, SM89)" in remark
    assert (ended.result.config == plain.result.config) is ("; kept" in remark) is bool(idle_place)
    assert idle_place or asked[-1] == ended.result.config


def test_a_margin_out_of_reach_is_said(with_builder):
    worker = with_builder(5.5)
    ended = found(worker.answer(replace(GOAL, higher_precision=Precision.FP16, tolerances=("sqnr>=60",))))
    assert not ended.result.is_met and ended.confirmed is False and ended.result.outcome is SearchOutcome.UNREACHABLE
    assert "margin" in ended.result.summary
    assert ended.result.best_evaluation.passes and ended.target_outcome.outcome is Outcome.FAIL
    assert "its engine" in ended.target_outcome.text


@pytest.mark.parametrize("bad", [False, True])
def test_a_gap_that_rounding_does_not_explain_is_no_margin(with_builder, bad):
    worker = with_builder(20.05, bad=bad)
    ended = found(worker.answer(replace(GOAL, max_builds=3)))
    assert ended.confirmed is ended.result.is_met is False and len(worker.built) == 1
    assert len(ended.remarks) == 1 and ("NaN" if bad else "rounding") in ended.remarks[0]


def test_lowering_begins_with_what_takes_most_time_in_the_engine_of_all_raised(with_builder):
    names = SearchSpace(with_builder(0.0).network, INT8).candidates
    times = {name: float(place) for place, name in enumerate(names)}  # ms: the last layer takes most
    worker = with_builder(0.0, times=times)
    goal = replace(GOAL, method="lower", try_ranges=False, try_zero_cost=False)
    ended = found(worker.answer(goal))
    assert worker.built[0] == SearchSpace(worker.network, INT8).build_config(names)
    assert [row.layer_name for row in ended.result.reduction_steps] == list(
        reversed(names)
    ) and "time" in ended.remarks[0]
    worker = with_builder(0.0)
    assert "multiply-accumulates" in found(worker.answer(replace(goal, max_builds=1))).remarks[0]


def test_int8_that_passes_simulated_and_fails_as_built_is_searched(with_builder):
    worker = with_builder(3.0)
    ended = found(worker.answer(replace(GOAL, tolerances=("sqnr>=33",), try_zero_cost=False)))
    assert worker.built[0] == INT8 and ended.result.best_evaluation.raised_groups and ended.confirmed


def test_a_latency_budget_is_estimated_from_two_engines_and_kept(with_builder, opened):
    failed = of(with_builder(0.0).answer(replace(GOAL, max_latency=1.5, max_builds=1)), ev.JobFailed)
    assert "needs engines" in failed[0].error.title
    total = len(opened().network.groups)
    worker = with_builder(0.0, latency=lambda config: 1.0 + len(config.precision_moves) / total)
    free = found(worker.answer(GOAL))
    worker.built.clear()
    ended = found(worker.answer(replace(GOAL, max_latency=1.05)))
    assert ended.result.outcome in (SearchOutcome.SHORT, SearchOutcome.MET)
    assert (
        ended.result.best_evaluation.estimated_latency
        <= 1.05
        < 1.0 + len(free.result.best_evaluation.raised_groups) / total
    )
    assert {INT8, SearchSpace(worker.network, INT8).build_config([g.name for g in worker.network.groups])} <= set(
        worker.built
    )
    assert len(worker.built) <= 3


@pytest.mark.parametrize("unmet", [{"check_command": "false", "max_latency": 9.0}, {"max_latency": 0.5}])
def test_an_engine_that_meets_the_target_mends_no_failed_check_and_no_missed_budget(with_builder, unmet):
    worker = with_builder(0.0, latency=lambda config: 1.0)
    ended = found(worker.answer(replace(GOAL, tolerances=("sqnr>=10",), max_builds=9, **unmet)))
    assert ended.confirmed and not ended.result.is_met


def test_an_engine_slower_than_estimated_sends_the_search_on(with_builder, opened):
    total = len(opened().network.groups)

    def latency(config):  # what lies between the ends is slower than their difference tells
        return 1.0 + len(config.precision_moves) / total + (0.02 if 0 < len(config.precision_moves) < total else 0.0)

    worker = with_builder(0.0, latency)
    free = found(worker.answer(GOAL))
    raised = len(free.result.best_evaluation.raised_groups)
    worker.built.clear()
    budget = 1.0 + raised / total + 0.01
    ended = found(worker.answer(replace(GOAL, max_latency=budget, max_builds=9)))
    assert "more than" in ended.remarks[0] and "ms were estimated" in ended.remarks[0]
    assert not ended.result.is_met and ended.result.outcome is SearchOutcome.SHORT
    assert latency(ended.result.config) <= budget and ended.result.best_evaluation.estimated_latency <= budget
    assert len(ended.result.best_evaluation.raised_groups) < raised and ended.result.config in worker.built
    assert ended.confirmed is False  # it was built and judged, and falls short
    ended = found(worker.answer(replace(GOAL, max_latency=1.9, max_builds=9)))
    assert ended.confirmed and ended.result.is_met and not ended.remarks


def test_latency_goes_from_one_end_to_the_other(options):
    network = open_network(options.model)
    space = SearchSpace(network, INT8)
    names = space.candidates
    low, high = (EngineResult(None, "", (ms, ms, ms)) for ms in (2.0, 5.0))
    measured = {}

    def fitted(low, high, measured):
        model = LatencyModel(measured)
        model.fit_to_engines(space, low, high)
        return model.estimate_latency_ms

    estimate = fitted(low, high, measured)
    assert estimate(space.start_config) == 2.0 and estimate(space.build_config(names)) == pytest.approx(5.0)
    steps = [estimate(space.build_config(names[:count])) for count in range(len(names) + 1)]
    assert steps == sorted(steps)
    middle = space.build_config(names[: len(names) // 2])
    before, between = estimate(middle), space.build_config(names[: len(names) // 2 - 1])
    measured[middle] = before + 0.5  # it was built, and is slower than it was thought to be
    assert estimate(middle) == before + 0.5 and before < estimate(space.build_config(names[:-1])) < 5.0
    assert steps[len(names) // 2 - 1] < estimate(between) < before + 0.5
    timed = [
        replace(engine, implementations={names[0]: GroupImplementation(None, False, (), ms)})
        for engine, ms in ((low, 0.1), (high, 0.4))
    ]
    assert fitted(*timed, {})(space.build_config(names[:1])) == pytest.approx(5.0)
    assert fitted(*timed, {})(space.build_config(names[1:])) == pytest.approx(2.0)
    rungs = dict.fromkeys(names, Precision.FP16)  # INT8 has 1 byte, FP16 2, FP32 4
    assert fitted(low, high, {})(space.build_config(names, precisions=rungs)) == pytest.approx(3.0)
    fp8 = dict.fromkeys(names, Precision.FP8)
    assert fitted(low, high, {})(space.build_config(names, precisions=fp8)) == 2.0


@pytest.mark.shares_cache
def test_a_session_takes_what_was_found_as_one_change(options, session):
    session = session(options, target="sqnr>=42", resume=False).settled()
    before = session.config
    session.start_search(replace(GOAL, config=before))
    session.until_type(ev.SearchEnded)
    assert session.config == before != session.search_status.best_config and session.search_status.is_finished
    found = session.search_status
    session.set_config(found.best_config, found.find_move_reasons(found.best_config))
    assert session.config == session.search_status.best_config
    raised = session.config.find_raised_groups(session.outline)
    assert raised and session.history.state.choice_reasons.keys() == {*raised, *session.config.range_moves}
    assert session.get_run_results("config").accuracy == session.search_status.best_evaluation.target_result.accuracy
    text = precision_json_text(session)
    assert '"search:auto"' in text and '"why"' in text and '"tolerance": "sqnr>=42"' in text
    session.undo()
    assert session.config == before and not session.history.can_undo


@pytest.mark.parametrize("passes", [True, False])
def test_a_session_passes_no_result_that_misses_the_target_on_held_out_samples(passes, options, session, monkeypatch):
    outcome = TargetOutcome(Outcome.PASS if passes else Outcome.UNCERTAIN_FAIL)
    value = HeldOutValue("sqnr>=40", "41 dB", "", "39 dB", "38 to 40 dB")
    held_out = HeldOutResult(TargetResult(passes, -1.0, measured_outcome=outcome), 16, 48, (value,))
    session = session(options, target="sqnr>=42", resume=False).settled()
    apply_event = session.apply_event
    monkeypatch.setattr(
        session,
        "apply_event",
        lambda event: apply_event(replace(event, held_out=held_out) if isinstance(event, ev.SearchEnded) else event),
    )
    session.start_search(replace(GOAL, config=session.config))
    session.until_type(ev.SearchEnded)
    status = session.search_status

    def check_outcome():
        outcome = session.config_target_outcomes(status.best_config)[RunKind.SIMULATED_CONFIG]
        assert outcome.passes if passes else outcome.outcome is Outcome.UNCERTAIN_FAIL
        assert any("16 held-out samples" in reason for reason in outcome.reasons) is not passes

    session.set_config(status.best_config)
    assert session.config == status.end_event.result.config
    check_outcome()
    session.save_session()
    session.session_writer.flush()
    saved = session.session_folder.name
    session.undo()
    assert not any(
        "held-out" in reason
        for outcome in session.config_target_outcomes(session.config).values()
        for reason in outcome.reasons
    )
    names = ConfigNames(session.config_names.items())  # of a session that was saved before the search
    monkeypatch.setattr(SavedSession, "to_config_names", lambda _: names)
    session.resume_session(saved)
    check_outcome()


@pytest.mark.shares_cache
def test_a_search_on_one_sample_leaves_the_values_of_all_samples_on_the_screen(options, session):
    session = session(options, target="sqnr>=42", resume=False).settled()
    session.start_search(replace(CLOSE, config=session.config, sample="worst"))
    session.until_type(ev.SearchEnded)
    status = session.search_status
    assert status.sample_count < session.get_run_results("config").accuracy.samples
    assert session.results.get_results_or_empty(status.best_config).accuracy is None
    assert all("of the search" in status.move_reasons[name] for name in status.best_evaluation.raised_groups)


def test_a_metric_is_searched_for_by_its_base(tmp_path):
    options = save_mlp(tmp_path)
    data = dict(np.load(options.data))
    network = onnx.load(options.model)
    labels = networks.quiet_session(network).run(None, data)[0].argmax(1)
    np.savez(options.data, **data, labels=labels)
    script = tmp_path / "metric.py"
    script.write_text(
        "def score(outputs, labels):\n    y = next(iter(outputs.values()))\n"
        "    right = y.argmax(1) == labels['labels']\n"
        "    return {'accuracy': float(right.mean()), 'first': float(right[:4].mean())}\n"
    )
    worker = DrivenWorker(tmp_path)
    worker.answer(rq.OpenNetwork(replace(options, metric=f"{script}:score")))
    ended = found(worker.answer(rq.FindMixedPrecisionConfig(INT8, ("metric>=base-0.0",), try_ranges=False)))
    assert ended.result.is_met and ended.result.best_evaluation.target_result.accuracy.metric["accuracy"] == 1.0
    assert set(ended.result.best_evaluation.target_result.accuracy.metric) == {"accuracy", "first"}


def held_out_of(folder, options, **changed):
    worker = DrivenWorker(folder)
    worker.answer(rq.OpenNetwork(replace(options, whatif_samples=0, hold_out=True, **changed)))
    return worker, worker.answer(replace(GOAL, tolerances=("sqnr>=25",)))


def test_what_was_chosen_is_tried_on_samples_held_out(run, tmp_path):
    """Three batches are much larger than any that calibrates: what the others are content with clips there.

    Only they do not calibrate, so they are held out.
    """
    options = save_mlp(tmp_path, samples=96)
    arrays = dict(np.load(options.data))
    rows = np.isin(np.arange(96) // 8, [2, 5, 8])
    inside = {name: array[~rows] for name, array in arrays.items()}
    np.savez(tmp_path / "calibration.npz", **inside)
    np.savez(
        options.data,
        **{
            name: np.where(rows.reshape(-1, *[1] * (array.ndim - 1)), 30 * array, array)
            for name, array in arrays.items()
        },
    )
    given = replace(options, calib_data=str(tmp_path / "calibration.npz"), batch=8)
    worker, events = held_out_of(tmp_path, given)
    ended = found(events)
    assert [list(worker.workspace.feeds), worker.workspace.held_out_feeds] == [[0, 1, 3, 4, 6, 7, 9, 10, 11], [2, 5, 8]]
    assert ended.result.best_evaluation.passes and not ended.result.is_met
    assert (ended.held_out.sample_count, ended.held_out.search_samples) == (24, 72)
    assert not ended.held_out.target_result.passes and ended.held_out.target_result.lowest_score < -5
    finding = SearchStatus(GOAL, end_event=ended)
    record = finding.make_search_record(None)
    assert not finding.is_target_met and record["held_out"]["met"] is False
    (value,) = record["held_out"]["values"]
    assert all("dB" in value[key] for key in ("searched", "searched_interval", "held_out", "held_out_interval"))
    assert ended.target_outcome.outcome is Outcome.UNCERTAIN_FAIL and record["result"]["outcome"] == "FAIL?"
    assert "24 held-out samples" in record["said"] and record["met"] is False
    assert any("24 held-out samples" in reason for reason in ended.target_outcome.reasons)
    assert value["held_out"] in held_out_result_text(ended.held_out) and "72 samples" in held_out_result_text(
        ended.held_out
    )
    files = (options.model, "--data", options.data, "--calib-data", given.calib_data, "--batch", 8)
    config, report = tmp_path / "p.json", tmp_path / "p.md"
    code, out, err = run("search", *files, "--tolerance", "sqnr>=25", "-o", config, "--markdown", report)
    missed = "not met on 24 held-out samples"
    assert code == 1 and out.startswith(f"sqnr>=25: {missed}")
    assert all(missed in line for line in (err.splitlines()[-1], report.read_text().splitlines()[2]))
    assert run("compare", *files, "--config", config, "--layers", "none", "--no-preview")[0] == 1


@pytest.mark.parametrize("target", ["metric>=base-0.5", "agreement>=50%"])
def test_metric_and_agreement_are_measured_on_held_out_samples_with_their_labels(target, tmp_path):
    """The samples keep their labels, and the base of a metric there is that of FP32 on them."""
    options = save_mlp(tmp_path, samples=96)
    data = dict(np.load(options.data))
    labels = networks.quiet_session(onnx.load(options.model)).run(None, data)[0].argmax(1)
    np.savez(options.data, **data, labels=labels)
    script = tmp_path / "metric.py"
    script.write_text(
        "def score(outputs, labels):\n    y = next(iter(outputs.values()))\n"
        "    return float((y.argmax(1) == labels['labels']).mean())\n"
    )
    worker = DrivenWorker(tmp_path)
    worker.answer(rq.OpenNetwork(replace(options, metric=f"{script}:score", whatif_samples=8)))
    ended = found(worker.answer(replace(GOAL, tolerances=(target,), try_ranges=False)))
    assert (ended.held_out.sample_count, ended.held_out.search_samples) == (20, 52)
    (value,) = ended.held_out.values
    assert value.target == target and value.searched and value.held_out
    assert value.searched_interval and value.held_out_interval and ended.held_out.target_result.passes
    view = worker.workspace.make_search_view(True, True)
    assert not worker.workspace.data_sets.calibrating_feeds & {*view.held_out_feeds, *view.feeds}
    assert not set(view.held_out_feeds) & set(view.feeds)


def test_few_samples_are_not_held_out(tmp_path):
    worker, events = held_out_of(tmp_path, save_mlp(tmp_path, samples=40), batch=4)
    assert found(events).held_out is None and worker.workspace.held_out_feeds == []


def test_samples_that_calibrate_are_not_held_out_and_the_search_says_so(tmp_path):
    options = save_mlp(tmp_path, samples=64)
    worker, events = held_out_of(tmp_path, replace(options, calib_data=options.data))
    ended = found(events)
    assert ended.held_out is None and worker.workspace.held_out_feeds == []
    assert any(not lacking(remark, "held-out", "calibration") for remark in ended.remarks)


def test_a_layer_that_overflows_is_raised_although_the_values_meet_the_tolerance(options, tmp_path, monkeypatch):
    """A run with a caveat that fails it meets no tolerance, whatever its values are."""
    worker = opened_worker(options, tmp_path)
    culprit = worker.network.groups[4]
    measure = Analysis.measure_accuracy

    def with_overflow(self, config, ranges, feeds=None, **more):
        for partial in measure(self, config, ranges, feeds, **more):
            caveat = Caveat("overflow", f"{culprit.name} overflows", fails_run=True)
            overflows = config.precision_of(culprit) is not Precision.FP32
            yield replace(partial, value=replace(partial.value, caveats=(caveat,) if overflows else ()))

    monkeypatch.setattr(Analysis, "measure_accuracy", with_overflow)
    ended = found(worker.answer(replace(GOAL, tolerances=("sqnr>=10",))))
    start, *_ = ended.evaluations
    assert (
        not start.passes
        and start.score == -math.inf
        and start.target_result.target_outcome.reasons == (f"{culprit.name} overflows",)
    )
    assert ended.result.outcome is SearchOutcome.MET and ended.result.best_evaluation.raised_groups == (culprit.name,)
    assert ended.target_outcome.outcome.value in ("PASS", "PASS?")


def test_the_metric_of_what_is_found_has_an_interval_and_parts_have_values(tmp_path, monkeypatch):
    """A target on each part, which needs FP32's parts, shows a value in every row."""
    options = save_resnet(tmp_path, samples=32)
    images = np.load(options.data)["image"]
    np.savez(options.data, image=images, label=np.arange(32) % 3)
    script = tmp_path / "metric.py"
    script.write_text(
        textwrap.dedent("""
        def score(outputs, labels):
            top = next(iter(outputs.values())).max(1)
            every = {f"score/{one}": float(top[labels["label"] == one].sum()) for one in range(3)}
            return {"score": float(top.mean()), **every}
        """)
    )
    worker = DrivenWorker(tmp_path)
    assert isinstance(worker.answer(rq.OpenNetwork(replace(options, metric=f"{script}:score")))[-1], ev.JobDone)
    request = replace(GOAL, tolerances=("metric[*]>=base-90%",))
    events = worker.answer(request)
    ended = found(events)
    spread = of(events, ev.AccuracyMeasured)[-1].accuracy.intervals
    assert spread.metric_draws == METRIC_RESAMPLE_COUNT and spread.metric_gains.keys() == {
        "score",
        *(f"score/{n}" for n in range(3)),
    }
    assert ended.target_outcome is not None and "not measured" not in ended.target_outcome.text
    base = of(events, ev.ReferenceMetricMeasured)[-1].metric
    rows = evaluation_table(ended, worker.network, request, base)
    assert all(row[4].startswith("score") for row in rows[1:]), rows
