"""One search, one result: from the app and from the command, whatever was measured before, and as the export yields."""

import json
import math
from dataclasses import replace

import pytest

from tests.driven import DrivenWorker, of, save_mlp, save_resnet
from tests.texts import lacking
from trt_tui.core.measure.results import Accuracy, ErrorMetrics, ExportedRun, OutputErrors, RunKind
from trt_tui.core.measure.target import HeldOutResult, TargetResult, parse_target
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.config_file import read_config
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.core.search.search import Search
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs import search_job
from trt_tui.session.search_status import SearchStatus, evaluation_table, make_search_request

INT8 = PrecisionConfig.from_precision(Precision.INT8)
FP16 = PrecisionConfig.from_precision(Precision.FP16)


def found(events) -> ev.SearchEnded:
    assert isinstance(events[-1], ev.JobDone), events[-1]
    return of(events, ev.SearchEnded)[-1]


def decibels(verdict: Accuracy) -> float:
    return verdict.worst_output[1].errors.sqnr_db


# -- the app and the command ------------------------------------------------------------------------------------------


def in_the_app(session, options, target) -> SearchStatus:
    """What a session of the app finds, once it has measured what it measures by itself and looked at some rows."""
    driven = session(replace(options, whatif_samples=8), target=target, resume=False).settled()
    for group in driven.outline.groups[1:3]:
        driven.request_group_details(group)
        driven.until_idle()
    driven.toggle_fp32([driven.outline.groups[0]])
    driven.until_idle()
    driven.undo()
    driven.until_idle()
    driven.start_search(make_search_request(driven.config, (target,)))
    driven.until_type(ev.SearchEnded)
    driven.until_idle()
    found, ended = driven.search_status, driven.search_status.end_event
    assert ended.has_other_samples and driven.config == found.request.config != found.best_config
    driven.set_config(found.best_config)
    driven.until_idle()
    shown = driven.results.get_results_or_empty(found.best_config)
    assert shown.exported_run.accuracy.samples == 8, "values on other samples are not mixed"
    assert shown.accuracy is None or shown.accuracy.samples == 8
    return driven.search_status


def test_the_app_and_the_command_find_the_same(session, run, tmp_path, monkeypatch):
    options, target = save_mlp(tmp_path, samples=96), "sqnr>=38"
    app = in_the_app(session, options, target)
    assert app.is_finished and app.best_config.moves, app.end_event

    def command(cache):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache))
        out = tmp_path / f"{cache}.json"
        code, _, errors = run(
            *f"search {options.model} --data {options.data} --batch 4 --tolerance {target} -o {out}".split(),
            "--markdown",
            str(tmp_path / f"{cache}.md"),
        )
        assert code in (0, 1), errors
        return json.loads(out.read_text()), (tmp_path / f"{cache}.md").read_text()

    warm, cold = command("cache"), command("other")
    assert warm == command("other") == cold, "neither what the app has measured nor a search before changes anything"
    evidence = cold[0]["evidence"]["search"]
    assert evidence["evaluations"] == len(app.end_event.evaluations) and evidence["met"] == app.is_target_met
    assert evidence["said"] == app.end_event.result.summary and evidence["exported_network"]["met"] is not None
    assert read_config(tmp_path / "other.json", open_network(options.model).build_outline()).config == app.best_config


def test_a_result_does_not_depend_on_what_was_measured_before(tmp_path):
    options, goal = save_resnet(tmp_path, samples=12, size=8), make_search_request(INT8, ("sqnr>=40",))
    ended = []
    for folder, before in (
        ("cold", ()),
        (
            "warm",
            (
                rq.MeasureWhatIf(INT8, with_shares=True),
                rq.CompareRuns({"fp16": FP16, "int8": INT8}, True, "int8"),
                rq.BuildEngine(INT8),
            ),
        ),
    ):
        worker = DrivenWorker(tmp_path / folder)
        worker.answer(rq.OpenNetwork(options))
        for request in before:
            worker.answer(request)
        for group in worker.network.groups[:3] if before else ():
            worker.answer(rq.MeasureTensorStats(group.name))
            worker.answer(rq.MeasureRemedies(group.name, INT8))
        ended.append(replace(found(worker.answer(goal)), job=0))
    assert ended[0] == ended[1]


def test_samples_of_a_search_are_all_that_are_judged(tmp_path):
    worker = DrivenWorker(tmp_path)
    worker.answer(rq.OpenNetwork(replace(save_mlp(tmp_path, samples=96), whatif_samples=8)))
    workspace = worker.workspace
    searched = workspace.make_search_view(True, True)
    assert searched.full_workspace is workspace and workspace.judged_sample_count == 8
    assert searched.judged_sample_count == 52 and len(searched.held_out_feeds) * 4 == 20
    assert (
        searched.analysis is workspace.analysis
        and searched.fingerprint.data_sha256 != workspace.fingerprint.data_sha256
    )
    assert workspace.make_search_view(True, False).judged_sample_count == 72
    assert workspace.make_search_view(False, False).judged_sample_count == 96
    shown = worker.answer(make_search_request(INT8, ("sqnr>=27",)))
    samples = {event.verdict.samples for event in of(shown, ev.AccuracyMeasured)}
    assert samples <= {8} and {event.result.accuracy.samples for event in of(shown, ev.ExportedFileExecuted)} == {8}


@pytest.mark.parametrize(("method", "tries"), [("auto", True), ("greedy", True), ("lower", False), ("scoped", False)])
def test_defaults_of_a_request_depend_on_the_method_alone(method, tries):
    asked = make_search_request(INT8, ("sqnr>=40",), method=method)
    assert (asked.try_ranges, asked.try_zero_cost, asked.max_builds) == (tries, tries, 3)
    assert not make_search_request(INT8, (), sample="worst").hold_out


# -- the exported file ------------------------------------------------------------------------------------------------


@pytest.fixture
def opened(tmp_path):
    worker = DrivenWorker(tmp_path)
    worker.answer(rq.OpenNetwork(save_resnet(tmp_path, samples=12, size=8)))
    return worker


@pytest.fixture
def exports(opened, monkeypatch):
    """Has exported files yield so many decibels less than was simulated, by the number of raised groups."""

    def make(worse):
        def execute(workspace, store, report, config, urgency, feeds=None):
            verdict = None
            for partial in workspace.analysis.measure_accuracy(config, workspace.ranges, workspace.feeds):
                verdict = partial.value
                yield urgency
            outputs = {
                name: OutputErrors(
                    replace(
                        one.errors,
                        exact=False,
                        sqnr_db=(one.errors.sqnr_db if one.errors.sqnr_db is not None else 90.0)
                        - worse(len(config.precision_moves)),
                    )
                )
                for name, one in verdict.outputs.items()
            }
            return ExportedRun(replace(verdict, outputs=outputs, intervals=None), "ONNX Runtime 1 CPU", "cpu")

        monkeypatch.setattr(search_job, "execute_exported_file", execute)
        return opened

    return make


def test_a_result_that_is_met_is_met_by_its_export_too(opened, tmp_path):
    """Between what is simulated and what its export yields lies a target that the simulation alone meets."""
    goal = make_search_request(INT8, ("sqnr>=40",))
    first = found(opened.answer(goal)).result
    run = of(opened.answer(rq.BuildEngine(first.config)), ev.ExportedFileExecuted)[-1].result
    low, high = sorted((decibels(run.accuracy), decibels(first.best_evaluation.target_result.accuracy)))
    for bound in (low, (low + high) / 2, high - 1e-4, high + 1e-4):
        ended = found(opened.answer(replace(goal, tolerances=(f"sqnr>={bound:.6f}",))))
        again = of(opened.answer(rq.BuildEngine(ended.result.config)), ev.ExportedFileExecuted)[-1].result
        reached = parse_target(f"sqnr>={bound:.6f}").is_met_by(again.accuracy)
        assert ended.exported.is_met is reached is SearchStatus(goal, end_event=ended).is_target_met


def test_where_an_export_misses_the_search_goes_on_with_the_difference(exports):
    worker = exports(lambda raised: 3.0)
    ended = found(worker.answer(make_search_request(INT8, ("sqnr>=40",), try_zero_cost=False)))
    assert ended.exported.is_met and SearchStatus(make_search_request(INT8, ()), end_event=ended).is_target_met
    assert ended.result.best_evaluation.score >= 3.0
    assert not lacking(ended.remarks[0], "margin of 3", "exported network", "was simulated")
    # The config that was tried first fails, though its simulation passes.
    ((missed, checks),) = ended.missed_checks.items()
    text = checks[RunKind.EXPORTED_FILE]
    assert ended.evaluations[missed].target_result.target_outcome.passes and "network yields" in text
    rows = evaluation_table(ended, worker.network, make_search_request(INT8, ("sqnr>=40",)), {})
    assert "FAIL" in rows[1 + missed] and rows[0][-1] == "missed check" and rows[1 + missed][-1] == text
    held_out = HeldOutResult(TargetResult(False, -1.0), 16, 48, ())
    rows = evaluation_table(
        replace(ended, held_out=held_out), worker.network, make_search_request(INT8, ("sqnr>=40",)), {}
    )
    configs = [evaluation.config for evaluation in ended.evaluations]
    assert "FAIL?" in rows[1 + configs.index(ended.result.config)]
    assert ended.missed_runs_text(ended.result.config) == ""
    assert ended.missed_runs_text(ended.evaluations[missed].config) == text


def test_a_result_without_the_margin_of_its_export_is_not_met(exports, monkeypatch):
    """A rate of 100 % has no margin of 9 points, so the simulated pass of the result must not stand."""
    worker, opened = exports(lambda raised: 1000.0), []
    continue_with = Search.require_score_margins

    def require_unreachable_margins(self, margins):
        opened.append(margins)
        continue_with(self, [math.nan] * len(margins))  # even FP32, which is exact, does not have it

    monkeypatch.setattr(Search, "require_score_margins", require_unreachable_margins)
    request = make_search_request(INT8, ("sqnr>=40",), try_zero_cost=False)
    ended = found(worker.answer(request))
    assert len(opened) == 1 and not ended.result.is_met and ended.result.best_evaluation.passes
    assert ended.exported.is_met is False and ended.target_outcome.outcome.value == "FAIL"
    assert not SearchStatus(request, end_event=ended).is_target_met


def test_after_some_rounds_it_is_not_met_as_exported(exports, monkeypatch):
    monkeypatch.setattr(search_job, "MAX_EXPORT_ROUNDS", 1)
    worker = exports(lambda raised: 8.0 * raised)
    request = make_search_request(INT8, ("sqnr>=40",), try_zero_cost=False)
    ended = found(worker.answer(request))
    assert (
        ended.result.best_evaluation.passes
        and ended.exported.is_met is False
        and not SearchStatus(request, end_event=ended).is_target_met
    )
    assert ended.target_outcome.outcome.value == "FAIL" and ended.missed_runs_text(ended.result.config)
    text = ended.exported.exported_result_text
    assert not lacking(text, "not met as", ended.exported.value_text, ended.exported.simulated_text)
    record = SearchStatus(request, end_event=ended).make_search_record(worker.network)
    assert record["exported_network"]["met"] is False and record["result"]["outcome"] == "FAIL" and not record["met"]


def test_an_export_that_yields_nan_is_no_margin(exports, monkeypatch):
    worker = exports(lambda raised: float("nan"))

    def execute(workspace, store, report, config, urgency, feeds=None):
        yield urgency
        return ExportedRun(
            Accuracy({"logits": OutputErrors(ErrorMetrics(nan=4))}, samples=12), "ONNX Runtime 1 CPU", "cpu"
        )

    monkeypatch.setattr(search_job, "execute_exported_file", execute)
    ended = found(worker.answer(make_search_request(INT8, ("sqnr>=40",))))
    assert ended.exported.is_met is False and "4 NaN" in ended.exported.exported_result_text and len(ended.remarks) <= 1


def test_what_is_not_executed_is_a_reason_for_doubt(exports, monkeypatch):
    worker = exports(lambda raised: 0.0)

    def execute(workspace, store, report, config, urgency, feeds=None):
        yield urgency
        return ExportedRun(None, "ONNX Runtime 1 CPU", "cpu", missing_reason="it has no kernel for BF16")

    monkeypatch.setattr(search_job, "execute_exported_file", execute)
    request = make_search_request(INT8, ("sqnr>=40",))
    ended = found(worker.answer(request))
    assert SearchStatus(request, end_event=ended).is_target_met and ended.target_outcome.outcome.value == "PASS?"
    assert any("for BF16" in reason for reason in ended.target_outcome.reasons)
    assert [one.kind for one in ended.result.best_evaluation.target_result.accuracy.caveats][-1] == "not executed"


def test_the_command_says_that_it_is_not_met_as_exported(run, tmp_path, monkeypatch):
    options = save_resnet(tmp_path, samples=12, size=8)
    code, out, _ = run(
        *f"search {options.model} --data {options.data} --batch 4 --tolerance sqnr>=38".split(),
        *f"-o {tmp_path}/p.json".split(),
    )
    assert "exported network yields" in out
    assert json.loads((tmp_path / "p.json").read_text())["evidence"]["search"]["exported_network"]["met"] is True
    assert code == 0
