"""One search, one result: from the app and from the command, whatever was measured before, and as the export yields."""

import json
from dataclasses import replace

import pytest

from tests.driven import DrivenWorker, of, save_mlp, save_resnet
from trt_tui.core.measure.comparison import Errors, ExportedRun, OutputErrors, Verdict
from trt_tui.core.measure.target import parse_target
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.file import read_config
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.jobs import bench, searching
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.session.finding import Finding, search_request

INT8 = PrecisionConfig.uniform(Precision.INT8)
FP16 = PrecisionConfig.uniform(Precision.FP16)


def found(events) -> ev.SearchEnded:
    assert isinstance(events[-1], ev.Done), events[-1]
    return of(events, ev.SearchEnded)[-1]


def decibels(verdict: Verdict) -> float:
    return verdict.worst[1].errors.sqnr_db


# -- the app and the command ------------------------------------------------------------------------------------------


def in_the_app(session, options, target) -> Finding:
    """What a session of the app finds, once it has measured what it measures by itself and looked at some rows."""
    driven = session(replace(options, whatif_samples=8), target=target, resume=False).settled()
    for group in driven.outline.groups[1:3]:
        driven.look_at(group)
        driven.until_idle()
    driven.toggle([driven.outline.groups[0]])
    driven.until_idle()
    driven.undo()
    driven.until_idle()
    driven.search(search_request(driven.config, (target,)))
    driven.until_type(ev.SearchEnded)
    driven.until_idle()
    ended, shown = driven.finding.ended, driven.results.of(driven.finding.config)
    assert ended.other_samples and (driven.config == driven.finding.config) is driven.finding.met
    assert shown.executed.accuracy.samples == 8, "values on other samples are not mixed"
    assert shown.verdict is None or shown.verdict.samples == 8
    return driven.finding


@pytest.mark.parametrize(("save", "target"), [(save_resnet, "sqnr>=39"), (save_mlp, "sqnr>=38")])
def test_the_app_and_the_command_find_the_same(session, run, tmp_path, monkeypatch, save, target):
    options = save(tmp_path, samples=96)
    app = in_the_app(session, options, target)
    assert app.finished and app.config.moves, app.ended

    def command(cache):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache))
        out = tmp_path / f"{cache}.json"
        code, _, errors = run("search", options.model, "--data", options.data, "--batch", "4", "--tolerance", target,
                              "-o", str(out), "--markdown", str(tmp_path / f"{cache}.md"))
        assert code in (0, 1), errors
        return json.loads(out.read_text()), (tmp_path / f"{cache}.md").read_text()

    warm, cold = command("cache"), command("other")
    assert warm == command("other") == cold, "neither what the app has measured nor a search before changes anything"
    evidence = cold[0]["evidence"]["search"]
    assert evidence["evaluations"] == len(app.ended.evaluations) and evidence["met"] == app.met
    assert evidence["said"] == app.ended.result.said and evidence["exported_network"]["met"] is not None
    assert read_config(tmp_path / "other.json", open_network(options.model).outline()).config == app.config


def test_a_result_does_not_depend_on_what_was_measured_before(tmp_path):
    options, goal = save_resnet(tmp_path, samples=12), search_request(INT8, ("sqnr>=40",))
    ended = []
    for folder, before in (("cold", ()), ("warm", (rq.WhatIf(INT8, shares=True), rq.Compare(
            {"fp16": FP16, "int8": INT8}, True, "int8"), rq.Build(INT8)))):
        worker = DrivenWorker(tmp_path / folder)
        worker.answer(rq.Open(options))
        for request in before:
            worker.answer(request)
        for group in worker.network.groups[:3] if before else ():
            worker.answer(rq.Stats(group.name))
            worker.answer(rq.TryWaysOut(group.name, INT8))
        ended.append(replace(found(worker.answer(goal)), job=0))
    assert ended[0] == ended[1]


def test_samples_of_a_search_are_all_that_are_judged(tmp_path):
    worker = DrivenWorker(tmp_path)
    worker.answer(rq.Open(replace(save_mlp(tmp_path, samples=96), whatif_samples=8)))
    workspace = worker.workspace
    searched = workspace.for_search(True)
    assert searched.whole is workspace and workspace.judged_count == 8
    assert searched.judged_count == 48 and len(searched.held_out) * 4 == 24
    assert searched.analysis is workspace.analysis and searched.source.data_sha256 != workspace.source.data_sha256
    every = workspace.for_search(False)
    assert every.judged_count == 72 and every.for_search(False) is every
    shown = worker.answer(search_request(INT8, ("sqnr>=27",)))
    samples = {event.verdict.samples for event in of(shown, ev.VerdictMeasured)}
    assert samples <= {8} and {event.result.accuracy.samples for event in of(shown, ev.ExportedExecuted)} == {8}


@pytest.mark.parametrize(("method", "tries"), [("auto", True), ("greedy", True), ("lower", False), ("scoped", False)])
def test_defaults_of_a_request_depend_on_the_method_alone(method, tries):
    asked = search_request(INT8, ("sqnr>=40",), method=method)
    assert (asked.ranges, asked.free, asked.max_builds) == (tries, tries, 3)
    assert not search_request(INT8, (), sample="worst").hold_out


# -- the exported file ------------------------------------------------------------------------------------------------


@pytest.fixture
def opened(tmp_path):
    worker = DrivenWorker(tmp_path)
    worker.answer(rq.Open(save_resnet(tmp_path, samples=12)))
    return worker


@pytest.fixture
def exports(opened, monkeypatch):
    """Has exported files yield so many decibels less than was simulated, by the number of raised groups."""
    def make(worse):
        def execute(workspace, store, report, config, urgency, feeds=None):
            verdict = None
            for partial in workspace.analysis.verdict(config, workspace.ranges, workspace.feeds):
                verdict = partial.value
                yield urgency
            outputs = {name: OutputErrors(replace(one.errors, exact=False, sqnr_db=(
                one.errors.sqnr_db if one.errors.sqnr_db is not None else 90.0) - worse(len(config.groups))))
                for name, one in verdict.outputs.items()}
            return ExportedRun("ONNX Runtime 1 CPU", "cpu", replace(verdict, outputs=outputs, spread=None))

        monkeypatch.setattr(bench, "execute", execute)
        return opened
    return make


def test_a_result_that_is_met_is_met_by_its_export_too(opened, tmp_path):
    """Between what is simulated and what its export yields lies a target that the simulation alone meets."""
    goal = search_request(INT8, ("sqnr>=40",))
    first = found(opened.answer(goal)).result
    run = of(opened.answer(rq.Build(first.config)), ev.ExportedExecuted)[-1].result
    low, high = sorted((decibels(run.accuracy), decibels(first.best.judgement.verdict)))
    for bound in (low, (low + high) / 2, high - 1e-4, high + 1e-4):
        ended = found(opened.answer(replace(goal, tolerances=(f"sqnr>={bound:.6f}",))))
        again = of(opened.answer(rq.Build(ended.result.config)), ev.ExportedExecuted)[-1].result
        reached = parse_target(f"sqnr>={bound:.6f}").reached(again.accuracy)
        assert ended.exported.met is reached is Finding(goal, ended=ended).met


def test_where_an_export_misses_the_search_goes_on_with_the_difference(exports):
    worker = exports(lambda raised: 3.0)
    ended = found(worker.answer(search_request(INT8, ("sqnr>=40",))))
    assert ended.exported.met and Finding(search_request(INT8, ()), ended=ended).met
    assert ended.result.best.score >= 3.0 and "went on with a margin of 3" in ended.remarks[0]
    assert "exported network" in ended.remarks[0] and "was simulated" in ended.remarks[0]


def test_after_some_rounds_it_is_not_met_as_exported(exports, monkeypatch):
    monkeypatch.setattr(searching, "MAX_ROUNDS", 1)
    worker = exports(lambda raised: 3.0 * raised)
    request = search_request(INT8, ("sqnr>=40",))
    ended = found(worker.answer(request))
    assert ended.result.met and ended.exported.met is False and not Finding(request, ended=ended).met
    assert ended.target_result.outcome.value == "FAIL"
    assert "not met as exported" in ended.exported.text and ended.exported.text.count(" dB") == 2
    record = Finding(request, ended=ended).record(worker.network)
    assert record["exported_network"]["met"] is False and record["result"]["outcome"] == "FAIL" and not record["met"]


def test_an_export_that_yields_nan_is_no_margin(exports, monkeypatch):
    worker = exports(lambda raised: float("nan"))

    def execute(workspace, store, report, config, urgency, feeds=None):
        yield urgency
        return ExportedRun("ONNX Runtime 1 CPU", "cpu", Verdict({"logits": OutputErrors(Errors(nan=4))}, samples=12))

    monkeypatch.setattr(bench, "execute", execute)
    ended = found(worker.answer(search_request(INT8, ("sqnr>=40",))))
    assert ended.exported.met is False and "4 NaN or Inf" in ended.exported.text and len(ended.remarks) <= 1


def test_what_is_not_executed_is_a_reason_for_doubt(exports, monkeypatch):
    worker = exports(lambda raised: 0.0)

    def execute(workspace, store, report, config, urgency, feeds=None):
        yield urgency
        return ExportedRun("ONNX Runtime 1 CPU", "cpu", missing="it has no kernel for BF16")

    monkeypatch.setattr(bench, "execute", execute)
    request = search_request(INT8, ("sqnr>=40",))
    ended = found(worker.answer(request))
    assert Finding(request, ended=ended).met and ended.target_result.outcome.value == "PASS?"
    assert any("no kernel for BF16" in reason for reason in ended.target_result.reasons)
    assert [one.kind for one in ended.result.best.judgement.verdict.caveats][-1] == "not executed"


def test_the_command_says_that_it_is_not_met_as_exported(run, tmp_path, monkeypatch):
    options = save_resnet(tmp_path, samples=12)
    code, out, _ = run("search", options.model, "--data", options.data, "--batch", "4", "--tolerance", "sqnr>=38",
                       "-o", str(tmp_path / "p.json"))
    assert "the exported network yields" in out
    assert json.loads((tmp_path / "p.json").read_text())["evidence"]["search"]["exported_network"]["met"] is True
    assert code == 0
