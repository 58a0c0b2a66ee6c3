"""trt_tui.jobs: the worker's order of work, stops, results kept by content, and the child process itself"""

import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

from tests import networks
from tests.driven import DrivenWorker, of, save_mlp
from tests.test_free import transformer
from trt_tui.backends import onnxruntime as backend
from trt_tui.core.engines.preview import Preview
from trt_tui.core.lowering.strong import lower_strong
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.jobs import events as ev
from trt_tui.jobs import previewing, scheduler, statistics
from trt_tui.jobs import requests as rq
from trt_tui.jobs.shares import LEAST_OWNED
from trt_tui.jobs.steps import Urgency, Wait
from trt_tui.jobs.store import ResultCache
from trt_tui.options import Options

FP16 = PrecisionConfig.uniform(Precision.FP16)
INT8 = PrecisionConfig.uniform(Precision.INT8)
RUNS = {"fp16": FP16, "int8": INT8}
EVERYTHING = rq.Compare(RUNS, layers=True, shares_of="int8")
MEASURED = (ev.VerdictMeasured, ev.LayersMeasured, ev.SharesMeasured, ev.RaisedMeasured, ev.WaysOutMeasured,
            ev.StatsMeasured, ev.Built)


@pytest.fixture
def opened(tmp_path):
    """A worker with an MLP open; reports are not held back."""

    def open_it(options=None):
        worker = DrivenWorker(tmp_path)
        events = worker.answer(rq.Open(options or save_mlp(tmp_path)))
        assert isinstance(events[-1], ev.Done), events[-1]
        return worker

    return open_it


@pytest.fixture
def runs(monkeypatch):
    """Counts how often ONNX Runtime is asked to load and to run."""
    counted = {"load": 0, "run": 0}
    load, run = backend.OnnxRuntimeBackend.load, backend.OnnxRuntimeRunner.run

    def counting_load(self, *args, **kwargs):
        counted["load"] += 1
        return load(self, *args, **kwargs)

    def counting_run(self, *args, **kwargs):
        counted["run"] += 1
        return run(self, *args, **kwargs)

    monkeypatch.setattr(backend.OnnxRuntimeBackend, "load", counting_load)
    monkeypatch.setattr(backend.OnnxRuntimeRunner, "run", counting_run)
    return counted


@pytest.fixture
def talkative(monkeypatch):
    monkeypatch.setattr(scheduler, "REPORT_S", 0.0)


def raised(worker, *positions):
    groups = [group for group in worker.network.groups if group.quantizable]
    return INT8.with_groups([groups[i] for i in positions], Precision.FP32)


def ends(events, job):
    return [type(one) for one in events if one.job == job and isinstance(one, ev.Done | ev.Cancelled | ev.Failed)]


def test_a_comparison_measures_verdicts_layers_and_the_shares_of_every_run(opened):
    worker = opened()
    names = {group.name for group in worker.network.groups}
    events = worker.answer(EVERYTHING)
    assert of(events, ev.Calibrated)
    for run, config in RUNS.items():
        verdicts = [e for e in of(events, ev.VerdictMeasured) if e.run == run]
        assert verdicts[0].verdict.samples == 4 and not verdicts[0].final
        assert verdicts[-1].final and verdicts[-1].verdict.samples == worker.workspace.data.judged.count == 12
        assert verdicts[-1].config == config
        layers = [e for e in of(events, ev.LayersMeasured) if e.run == run]
        assert layers[-1].final and layers[-1].samples == 12 and set(layers[-1].groups) == names
        shares = {}
        for event in of(events, ev.SharesMeasured):
            if event.run == run:
                shares.update(event.shares)
        assert set(shares) == names
    first_fp16_share = next(i for i, e in enumerate(events) if isinstance(e, ev.SharesMeasured) and e.run == "fp16")
    last_int8_share = max(i for i, e in enumerate(events) if isinstance(e, ev.SharesMeasured) and e.run == "int8")
    assert last_int8_share < first_fp16_share
    assert ends(events, worker.last) == [ev.Done]


def test_the_first_verdicts_come_before_anything_else_is_measured(opened):
    worker = opened()
    worker.ask(EVERYTHING)
    worker.ask(rq.Stats(worker.network.groups[0].name))
    worker.ask(rq.TryWaysOut(worker.network.groups[0].name, INT8))
    measured = of(worker.finish(), *MEASURED)
    assert [(type(e), e.run) for e in measured[:2]] == [(ev.VerdictMeasured, "fp16"), (ev.VerdictMeasured, "int8")]
    looked = next(i for i, e in enumerate(measured) if isinstance(e, ev.StatsMeasured))
    mapped = {name for e in measured[:looked] if isinstance(e, ev.SharesMeasured) for name in e.shares}
    assert mapped == {group.name for group in worker.network.groups}, "what every group owns comes before a look at one"
    assert any(isinstance(e, ev.LayersMeasured) for e in measured[looked:])


def test_rows_are_flipped_one_by_one_after_all_else_the_changed_ones_first(opened):
    worker = opened()
    groups = worker.network.groups
    config = INT8.with_groups([groups[0]], Precision.FP32)
    flips, what_if = worker.ask(rq.TryFlips(config)), worker.ask(rq.WhatIf(config, shares=True))
    events = worker.finish()
    assert [event.job for event in events if isinstance(event, ev.Done)] == [what_if, flips]
    shares = {name: share.owns for event in of(events, ev.SharesMeasured) for name, share in event.shares.items()}
    found = [event for event in of(events, ev.VerdictMeasured) if event.run == "flip"]
    assert found[0].config == INT8 and all(event.verdict.samples == event.verdict.total for event in found)
    worst = sorted((name for name in shares if shares[name] >= LEAST_OWNED), key=lambda name: -shares[name])
    assert [event.config for event in found[1:]] == [
        config.with_groups([worker.network.group(name)], Precision.FP32) for name in worst]
    alone = of(worker.answer(rq.WhatIf(found[-1].config)), ev.VerdictMeasured)[-1]
    assert alone.verdict == found[-1].verdict


@pytest.mark.parametrize("moment", [ev.VerdictMeasured, ev.LayersMeasured, ev.SharesMeasured, ev.RaisedMeasured])
def test_short_requests_are_answered_within_a_comparison_that_goes_on(opened, moment):
    worker = opened()
    group = worker.network.groups[0].name
    long = worker.ask(EVERYTHING)
    requests = rq.TryWaysOut(group, INT8), rq.Stats(group), rq.WhatIf(raised(worker, 0))
    short = worker.once(lambda event: isinstance(event, moment), lambda: [*map(worker.ask, requests)])
    events = worker.finish()
    order = [event.job for event in events if isinstance(event, ev.Done)]
    tried, looked, what_if = short[0]
    if moment is not ev.RaisedMeasured:  # there little is left to do, of the same urgency or none
        assert order.index(what_if) < order.index(looked) < order.index(tried) < order.index(long)
    assert {tried, looked, what_if, long} == set(order)
    mine = [event for event in events if event.job == long]
    assert {e.run for e in of(mine, ev.VerdictMeasured) if e.final} == set(RUNS)
    assert {e.run for e in of(mine, ev.LayersMeasured) if e.final} == set(RUNS)
    assert {e.run for e in of(mine, ev.SharesMeasured) if e.done == e.total} == set(RUNS)
    options = [e for e in events if e.job == tried and isinstance(e, ev.WaysOutMeasured)][-1].options
    assert [option.key for option in options] == ["9", "=", "space", "r", "r", "r"]
    assert all(option.verdict.samples == 12 for option in options)


def test_others_are_held_off_while_somebody_waits_and_only_then():
    """A long job holds nothing back, but for the what-if that comes between its steps."""
    log = []

    def start(request, report):
        for _ in range(3):
            log.append(type(request))
            if isinstance(request, rq.Calibrate) and len(log) == 2:
                steps.inbox.append((2, rq.WhatIf(INT8)))
            yield Urgency.WHAT_IF if isinstance(request, rq.WhatIf) else Urgency.BACKGROUND

    steps = scheduler.Scheduler(start, {rq.Calibrate: Urgency.BACKGROUND, rq.WhatIf: Urgency.WHAT_IF},
                                lambda event: None, hold=log.append)
    steps.inbox.append((1, rq.Calibrate("minmax")))
    while steps.step():
        pass
    assert log == [*[rq.Calibrate] * 2, True, *[rq.WhatIf] * 3, False, rq.Calibrate]
    steps.inbox.append((3, rq.WhatIf(INT8)))
    while steps.step():
        pass
    assert log[-2:] == [rq.WhatIf, False]


def test_a_toggle_tells_its_verdict_then_what_the_builder_makes_of_it_then_who_owns_what(opened, monkeypatch):
    answers = []
    monkeypatch.setattr(previewing, "_PROCESS", SimpleNamespace(
        hold=lambda held: None, number=lambda: 1, send=lambda *order: None, call_off=lambda number: None,
        done=lambda number: bool(answers), taken=lambda number: answers.pop()))
    monkeypatch.setattr(previewing, "is_installed", lambda: True)
    worker = opened()
    for request in (rq.WhatIf(INT8, shares=True), rq.PreviewEngine(INT8, effects=False)):
        worker.ask(request)
    told = of(worker.finish(), *MEASURED, ev.EnginePreviewed)
    assert {type(event) for event in told} == {ev.VerdictMeasured} and told[-1].final
    worker.ask(rq.Stats(worker.network.groups[0].name))
    assert of(worker.finish(), ev.StatsMeasured)
    answers.append(Preview())
    told = of(worker.finish(), *MEASURED, ev.EnginePreviewed)
    assert [type(event) for event in told][:2] == [ev.EnginePreviewed, ev.SharesMeasured]
    worker.ask(rq.Compare({"fp16": FP16}, layers=False, shares_of="fp16"))
    worker.ask(rq.PreviewEngine(FP16, effects=False, opening=True))
    answers.append(Preview())
    kinds = [type(event) for event in of(worker.finish(), *MEASURED, ev.EnginePreviewed)]
    assert kinds.index(ev.SharesMeasured) < kinds.index(ev.EnginePreviewed)


def test_only_the_last_of_rapid_changes_is_measured(opened, runs):
    worker = opened()
    worker.answer(rq.Compare(RUNS, layers=False))
    before = runs["run"]
    jobs = [worker.ask(rq.WhatIf(raised(worker, *range(n)))) for n in (1, 2, 1, 0, 3, 2)]
    events = worker.finish()
    assert [e.job for e in of(events, ev.VerdictMeasured) if e.final] == [jobs[-1]]
    assert all(ends(events, job) == [ev.Done] for job in jobs)
    assert runs["run"] - before == len(worker.feeds)


def test_shares_in_the_background_give_way_to_everything(opened, talkative):
    worker = opened()
    first = worker.ask(rq.WhatIf(raised(worker, 0), shares=True))
    second = worker.once(lambda event: isinstance(event, ev.Progress) and "shares" in event.phase, lambda: [
        worker.ask(rq.Build(raised(worker, 1))), worker.ask(rq.Compare(RUNS, layers=True))])
    events = worker.finish()
    assert [event.job for event in of(events, ev.Done)] == [*second[0], first]
    assert of(events, ev.RaisedMeasured)


def test_a_newer_what_if_replaces_the_shares_of_the_older_one(opened, talkative):
    worker = opened()
    old, new = raised(worker, 0), raised(worker, 1)
    first = worker.ask(rq.WhatIf(old, shares=True))
    second = worker.once(lambda event: isinstance(event, ev.SharesMeasured),
                         lambda: worker.ask(rq.WhatIf(new, shares=True)))
    events = worker.finish()
    assert [event.job for event in events if isinstance(event, ev.Done)] == [first, second[0]]
    after = events[events.index(next(e for e in events if ends([e], first))):]
    assert not [e for e in after if e.job == first and isinstance(e, MEASURED)]
    assert {e.config for e in of(after, *MEASURED)} == {new}
    # Background work: the errors at the groups of the changed config follow its shares.
    kinds = [type(e) for e in of(after, ev.VerdictMeasured, ev.SharesMeasured, ev.RaisedMeasured, ev.LayersMeasured)]
    assert kinds[0] is ev.VerdictMeasured and kinds[-1] is ev.LayersMeasured
    assert kinds.index(ev.SharesMeasured) < kinds.index(ev.RaisedMeasured) < kinds.index(ev.LayersMeasured)


def test_the_shares_of_the_changed_config_come_first_and_the_comparison_still_ends(opened):
    worker = opened()
    changed = raised(worker, 0)
    long = worker.ask(EVERYTHING)
    asked = worker.once(lambda event: isinstance(event, ev.VerdictMeasured),
                        lambda: worker.ask(rq.WhatIf(changed, shares=True)))
    events = worker.finish()
    assert [e.job for e in of(events, ev.Done)] == [asked[0], long]
    assert of(events, ev.SharesMeasured)[0].config == changed
    mine = [event for event in events if event.job == long]
    assert {e.run for e in of(mine, ev.SharesMeasured) if e.done == e.total} == set(RUNS)


def test_a_sweep_for_statistics_gives_way_and_is_made_again(opened):
    worker = opened()
    looked = worker.ask(rq.Stats(worker.network.groups[0].name))
    asked = worker.once(lambda event: isinstance(event, ev.Progress), lambda: worker.ask(rq.WhatIf(raised(worker, 0))))
    events = worker.finish()
    assert [e.job for e in of(events, ev.Done)] == [asked[0], looked]
    assert len(of(events, ev.StatsMeasured)) == 1


def test_progress_is_reported_at_most_ten_times_a_second(opened, tmp_path):
    worker = opened(save_mlp(tmp_path, samples=400))
    started = time.monotonic()
    progress = of(worker.answer(rq.Compare(RUNS, layers=False)), ev.Progress)
    spent = time.monotonic() - started
    # One more for each phase, since its end is always reported.
    assert len(progress) <= spent / scheduler.REPORT_S + 1 + len({event.phase for event in progress})


PHASES = {
    "reading the network": rq.Open,
    "hashing the network": rq.Open,
    "calibrating": rq.Compare,
    "comparing with FP32": rq.Compare,
    "per-layer errors": rq.Compare,
    "shares": rq.Compare,
    "cumulative FP32 sweep": rq.Compare,
    "what-if": rq.WhatIf,
    "activation statistics": rq.Stats,
    "other ranges": rq.TryWaysOut,
    "trying": rq.TryWaysOut,
    "exporting the network": rq.Build,
    "executing the exported network": rq.Build,
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_stop_ends_every_phase_before_its_next_run(tmp_path, talkative, runs, phase):
    options = save_mlp(tmp_path)
    worker = DrivenWorker(tmp_path)
    if PHASES[phase] is not rq.Open:
        worker.answer(rq.Open(options))
    group = worker.network.groups[0].name if worker.workspace is not None else ""
    job = worker.ask({rq.Open: rq.Open(options), rq.Compare: EVERYTHING, rq.WhatIf: rq.WhatIf(INT8),
                      rq.Stats: rq.Stats(group), rq.TryWaysOut: rq.TryWaysOut(group, INT8),
                      rq.Build: rq.Build(INT8)}[PHASES[phase]])
    stopped = worker.once(lambda event: isinstance(event, ev.Progress) and event.phase.startswith(phase),
                          lambda: (worker.stop(), runs["run"]))
    events = worker.finish()
    assert stopped, f"no progress of phase {phase}"
    assert ends(events, job) == [ev.Cancelled] and events[-1] == ev.Cancelled(job)
    assert runs["run"] - stopped[0][1] <= 1
    if PHASES[phase] is rq.Open:
        assert ends(worker.answer(rq.Open(options)), worker.last) == [ev.Done]
    again = worker.answer(EVERYTHING)
    assert ends(again, worker.last) == [ev.Done]
    assert {e.run for e in of(again, ev.VerdictMeasured) if e.final} == set(RUNS)


def test_a_stop_ends_waiting_jobs_too_and_not_those_that_come_after_it(opened):
    worker = opened()
    first, second = worker.ask(EVERYTHING), worker.ask(rq.WhatIf(raised(worker, 0)))
    worker.stop()
    third = worker.ask(rq.Stats(worker.network.groups[0].name))
    events = worker.finish()
    assert ends(events, first) == ends(events, second) == [ev.Cancelled]
    assert ends(events, third) == [ev.Done]


def test_a_stop_of_one_job_leaves_the_others(opened):
    worker = opened()
    first, second = worker.ask(EVERYTHING), worker.ask(rq.WhatIf(raised(worker, 0)))
    worker.step()
    worker.stop(first)
    events = worker.finish()
    assert ends(events, first) == [ev.Cancelled] and ends(events, second) == [ev.Done]


class Unruly:
    """Steps of requests as a test gives them, by request type, in a scheduler of its own; what it sends is kept."""

    def __init__(self, **steps):
        self.sent = []
        self.scheduler = scheduler.Scheduler(lambda request, report: steps[type(request).__name__](self, request), {},
                                             self.sent.append)

    def ask(self, *requests):
        for request in requests:
            self.scheduler.inbox.append((self.asked + 1, request))
            self.asked += 1

    asked = 0


def closes_with(error):
    def steps(unruly, request):
        try:
            while True:
                yield Urgency.WHAT_IF
        finally:
            raise error

    return steps


def two_steps(unruly, request):
    yield Urgency.BACKGROUND
    yield Urgency.BACKGROUND


@pytest.mark.parametrize("error", [ValueError("in finally"), OSError("disk"), MemoryError(), SystemExit(3),
                                   BrokenPipeError("its own"), KeyboardInterrupt()])
@pytest.mark.parametrize("how", ["stopped", "replaced"])
def test_an_exception_while_a_job_is_closed_ends_no_other(how, error, capsys):
    unruly = Unruly(WhatIf=closes_with(error), Stats=two_steps)
    unruly.ask(rq.WhatIf(INT8), rq.Stats("group"))
    for _ in range(3):
        assert unruly.scheduler.step()
    if how == "stopped":
        unruly.scheduler.stop([1])
    else:
        unruly.ask(rq.WhatIf(FP16))
        unruly.scheduler.step()
        unruly.scheduler.stop([3])
    while unruly.scheduler.step():
        pass
    first = ev.Cancelled(1) if how == "stopped" else ev.Done(1, replaced=True)
    assert ends(unruly.sent, 1) == [type(first)] and first in unruly.sent and ends(unruly.sent, 2) == [ev.Done]
    assert type(error).__name__ in capsys.readouterr().err, "the log says what was raised"


@pytest.mark.parametrize("error", [BrokenPipeError("of a script"), SystemExit(1), KeyboardInterrupt(), ValueError()])
def test_whatever_a_step_raises_ends_its_own_job_alone(error):
    def raises(unruly, request):
        yield Urgency.WHAT_IF
        raise error

    unruly = Unruly(WhatIf=raises, Stats=two_steps)
    unruly.ask(rq.WhatIf(INT8), rq.Stats("group"))
    while unruly.scheduler.step():
        pass
    assert ends(unruly.sent, 1) == [ev.Failed] and ends(unruly.sent, 2) == [ev.Done]


def test_what_cannot_tell_whether_it_is_ready_is_asked_for_its_next_step():
    def waits(unruly, request):
        yield Wait(lambda: 1 / 0)
        raise InputError("the process is gone", "", "")

    unruly = Unruly(WhatIf=waits, Stats=two_steps)
    unruly.ask(rq.WhatIf(INT8), rq.Stats("group"))
    while unruly.scheduler.step():
        pass
    assert ends(unruly.sent, 1) == [ev.Failed] and ends(unruly.sent, 2) == [ev.Done]


def test_a_stop_is_answered_while_the_step_of_another_job_runs():
    """A search tells what it found when it ends, and a job in its own step ends after that: those are not answered"""
    closed = []

    def suspended(unruly, request):
        try:
            while True:
                yield Urgency.BACKGROUND
        finally:
            closed.append(type(request).__name__)

    def runs_long(unruly, request):
        yield Urgency.WHAT_IF
        unruly.scheduler.stop([1, 2, 3])  # what the thread that reads the pipe does meanwhile
        unruly.scheduler.stop([1])
        assert [event.job for event in of(unruly.sent, ev.Cancelled)] == [1, 3] and not closed
        yield Urgency.WHAT_IF
        assert sorted(closed) == ["FindConfig", "Stats", "TryWaysOut"]
        unruly.scheduler.stop([4])

    unruly = Unruly(Stats=suspended, FindConfig=suspended, TryWaysOut=suspended, WhatIf=runs_long)
    unruly.ask(rq.Stats("group"), rq.FindConfig(INT8, ("sqnr>=20",)))
    for _ in range(4):
        unruly.scheduler.step()
    unruly.ask(rq.TryWaysOut("group", INT8), rq.WhatIf(INT8))
    while unruly.scheduler.step():
        pass
    assert [ends(unruly.sent, job) for job in (1, 2, 3)] == [[ev.Cancelled]] * 3
    assert ends(unruly.sent, 4) == [ev.Done] and not unruly.scheduler._answered


def test_a_stopped_job_that_had_not_begun_is_not_taken_for_replaced(opened):
    worker = opened()
    first = worker.ask(rq.WhatIf(INT8))
    worker.stop()
    second = worker.ask(rq.WhatIf(FP16))
    events = worker.finish()
    assert ends(events, first) == [ev.Cancelled] and ends(events, second) == [ev.Done]


def test_opening_that_was_stopped_while_hashing_is_made_up_for(tmp_path, talkative):
    worker = DrivenWorker(tmp_path)
    worker.ask(rq.Open(save_mlp(tmp_path)))
    worker.once(lambda event: isinstance(event, ev.Opened), worker.stop)
    assert not of(worker.finish(), ev.Hashed)
    events = worker.answer(rq.Compare(RUNS, layers=False))
    assert len(of(events, ev.Hashed)) == 1 and ends(events, worker.last) == [ev.Done]


@pytest.mark.parametrize("exact", [False, True])
def test_interrupted_shares_are_kept(opened, runs, talkative, tmp_path, exact):
    worker = opened(replace(save_mlp(tmp_path), exact=exact))
    groups = len(worker.network.groups)
    worker.answer(rq.Compare(RUNS))
    one = rq.Compare({"int8": INT8}, layers=False, shares_of="int8")
    job, begun = worker.ask(one), runs["run"]
    told = []

    def stop(event):
        told.extend(event.shares if isinstance(event, ev.SharesMeasured) else ())
        if len(told) >= groups - 1 and event.job == job:
            worker.stop()

    worker.wire.on_event = stop
    worker.finish()
    measured = runs["run"] - begun
    assert measured >= groups - 1
    worker.wire.on_event = lambda event: None
    before = runs["run"]
    shares = of(worker.answer(one), ev.SharesMeasured)[-1]
    assert shares.done == shares.total == groups
    again, resumed = of(worker.answer(one), ev.SharesMeasured)[-1], runs["run"] - before
    assert set(again.shares) == {group.name for group in worker.network.groups}
    assert all(one.samples == 12 if exact else one.samples >= 8 for one in again.shares.values())
    raised_together = len(of(worker.wire.events, ev.RaisedMeasured)[-1].order)
    if exact:  # the config's own runs are not made again, nor those of groups that were told
        assert resumed <= (1 + raised_together) * len(worker.feeds)


def test_no_export_takes_the_place_of_another_and_none_waits_for_a_comparison(opened, tmp_path):
    worker = opened()
    long = worker.ask(EVERYTHING)
    paths = [str(tmp_path / name) for name in ("one.onnx", "two.onnx", "one.json", "two.json")]
    jobs = [worker.ask(rq.Export("onnx", path, INT8)) for path in paths[:2]]
    jobs += [worker.ask(rq.WriteText(path, path)) for path in paths[2:]]
    events = worker.finish()
    assert [event.paths for event in of(events, ev.Exported)] == [(path,) for path in paths[2:] + paths[:2]]
    assert [event.job for event in events if isinstance(event, ev.Done)][-1] == long
    assert Path(paths[2]).read_text() == paths[2]


def test_a_defect_ends_the_job_and_not_the_worker(opened, monkeypatch):
    worker = opened()
    monkeypatch.setattr(statistics, "collect_stats", lambda *args, **kwargs: 1 / 0)
    events = worker.answer(rq.Stats(worker.network.groups[0].name))
    assert isinstance(events[-1], ev.Failed) and "ZeroDivisionError" in events[-1].title
    assert "Traceback" in events[-1].detail
    assert ends(worker.answer(rq.WhatIf(INT8)), worker.last) == [ev.Done]


def test_what_stood_in_the_way_of_opening_is_said_again(tmp_path):
    worker = DrivenWorker(tmp_path)
    failed = worker.answer(rq.Open(Options(str(tmp_path / "none.onnx"))))[-1]
    assert isinstance(failed, ev.Failed) and "none.onnx" in failed.title
    assert worker.answer(rq.WhatIf(INT8))[-1].title == failed.title


def figures(events):
    return [(type(e), {k: v for k, v in vars(e).items() if k != "job"}) for e in of(events, *MEASURED)
            if getattr(e, "final", True) and getattr(e, "done", 0) == getattr(e, "total", 0)]


def test_what_was_measured_once_is_known_the_next_time(opened, runs):
    worker = opened()
    first = figures(worker.answer(EVERYTHING))
    built = worker.answer(rq.Build(INT8))
    assert of(built, ev.ExportedExecuted)
    before = dict(runs)
    again = opened()
    events = again.answer(EVERYTHING)
    assert runs == before
    second = figures(events)
    assert [f for f in second if f[0] is ev.VerdictMeasured] == [f for f in first if f[0] is ev.VerdictMeasured]
    assert [f for f in second if f[0] is ev.LayersMeasured] == [f for f in first if f[0] is ev.LayersMeasured]
    assert {run: sum(len(e.shares) for e in of(events, ev.SharesMeasured) if e.run == run) for run in RUNS} == {
        run: len(again.network.groups) for run in RUNS}
    assert of(events, ev.ExportedExecuted)[0].result == of(built, ev.ExportedExecuted)[0].result


@pytest.mark.parametrize(("model", "data", "changed"), [
    (3, 0, {}), (0, 5, {}), (0, 0, {"whatif_samples": 4}), (0, 0, {"batch": 2}),
    (0, 0, {"calib_method": "percentile"}), (0, 0, {"judge": (networks.mlp().graph.node[1].output[0],)})], ids=str)
def test_what_depends_on_something_else_is_measured_anew(opened, runs, tmp_path, model, data, changed):
    opened().answer(rq.Compare({"int8": INT8}, layers=False))
    files = {field: getattr(save_mlp(tmp_path, seed=seed, name=f"seed{seed}"), field)
             for field, seed in (("model", model), ("data", data))}
    worker = opened(replace(save_mlp(tmp_path), **files, **changed))
    before = runs["run"]
    events = worker.answer(rq.Compare({"int8": INT8}, layers=False))
    assert runs["run"] > before and of(events, ev.VerdictMeasured)[-1].final


def test_other_ranges_and_other_configs_are_measured_anew(opened, runs):
    worker = opened()
    worker.answer(rq.Compare(RUNS, layers=False))
    measured = worker.workspace.calibration
    halved = replace(measured, ranges={tensor: amax / 2 for tensor, amax in measured.ranges.items()})
    known = worker.answer(rq.WhatIf(INT8))
    for request in (rq.UseRanges(halved), None):
        if request is not None:
            worker.answer(request)
        before = runs["run"]
        events = worker.answer(rq.WhatIf(INT8 if request is not None else raised(worker, 0)))
        assert runs["run"] == before + len(worker.feeds)
        assert of(events, ev.VerdictMeasured)[-1].verdict != of(known, ev.VerdictMeasured)[-1].verdict
    before = runs["run"]
    worker.answer(rq.WhatIf(FP16))
    assert runs["run"] == before, "ranges are nothing to a config without INT8"


def labelled(folder, labels, body="return float((labels['y'] == 1).mean())"):
    options = save_mlp(folder)
    x = np.load(options.data)["x"]
    np.savez(options.data, x=x, y=np.asarray(labels))
    script = folder / "metric.py"
    script.write_text(f"def score(outputs, labels):\n    {body}\n")
    return replace(options, metric=f"{script}:score")


def test_other_labels_and_another_metric_are_measured_anew(opened, tmp_path):
    seen = []
    for labels, *body in ((np.ones(16),), (np.zeros(16),), (np.zeros(16), "return 0.25")):
        events = opened(labelled(tmp_path, labels, *body)).answer(rq.Compare({"int8": INT8}, layers=False))
        seen.append(of(events, ev.VerdictMeasured)[-1].verdict.headline)
        assert of(events, ev.ReferenceMeasured)[-1].metric == {"metric.py:score": seen[-1]}
    assert seen == [1.0, 0.0, 0.25]


def test_a_cache_that_cannot_be_read_or_written_is_no_error(opened, tmp_path):
    worker = opened()
    worker.answer(EVERYTHING)
    for path in (tmp_path / "results").glob("*/*"):
        path.write_bytes(b"\xc1 nonsense")
    assert ends(opened().answer(EVERYTHING), 2) == [ev.Done]
    blocked = opened()
    blocked.store.results.folder = tmp_path / "mlp.onnx" / "results"
    assert ends(blocked.answer(EVERYTHING), 2) == [ev.Done]


def test_the_cache_drops_what_was_used_longest_ago(tmp_path):
    cache = ResultCache(tmp_path, limit_bytes=2500)
    for name in "abc":
        cache.put(cache.key(name), name * 1000)
    old = tmp_path / cache.key("b")[:2] / cache.key("b")
    os.utime(old, ns=(1, 1))
    cache.trim()
    assert [cache.get(cache.key(name), str) is not None for name in "abc"] == [True, False, True]


def test_free_ways_out_of_what_is_as_in_the_file_leave_it(opened, tmp_path):
    """A SmoothQuant takes the norm and all that reads it along, a corrected bias its own layer."""
    rows = networks.Handed({"x": one} for one in np.random.default_rng(0).standard_normal((4, 2, 6, 16)).astype("f4"))
    onnx.save(transformer(operator=True), tmp_path / "fp32.onnx")
    quantize_static(tmp_path / "fp32.onnx", tmp_path / "int8.onnx", rows, quant_format=QuantFormat.QDQ,
                    activation_type=QuantType.QInt8, op_types_to_quantize=["MatMul", "Gemm"],
                    extra_options={"ActivationSymmetric": True})
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(1).standard_normal((8, 6, 16)).astype("f4"))
    worker = opened(Options(str(tmp_path / "int8.onnx"), str(tmp_path / "x.npz"), whatif_samples=0))
    network, given = worker.network, PrecisionConfig.uniform(Precision.FILE)
    for name, free in (("/norm/LayerNormalization", ["SmoothQuant 0.5", "SmoothQuant 0.25", "SmoothQuant 0.75"]),
                       ("/gemm/Gemm", ["SmoothQuant 0.5", "SmoothQuant 0.25", "SmoothQuant 0.75", "bias correction"])):
        events = worker.answer(rq.TryWaysOut(name, given))
        ways = [one for one in of(events, ev.WaysOutMeasured)[-1].options if one.key == ev.FREE_KEY]
        assert [one.label for one in ways] == [f"{label}, no longer as in the file" for label in free]
        for one in ways:
            left = {group.name for group in network.groups if one.config.precision_of(group) is Precision.FILE}
            smooth = "Smooth" in one.label
            assert left == {"/in/MatMul", *(() if smooth else ("/norm/LayerNormalization", "/matmul/MatMul"))}
            assert lower_strong(network, one.config, worker.workspace.ranges).model is not None
