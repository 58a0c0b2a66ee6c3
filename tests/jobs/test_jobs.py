"""trt_tui.jobs: the worker's order of work, stops, results kept by content, and the child process itself"""

import os
import queue
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

from tests import networks
from tests.core.measure.test_free import transformer
from tests.driven import DrivenWorker, of, save_mlp, values
from tests.jobs.test_child import in_time
from tests.refusals import refused
from trt_tui.backends import onnxruntime as backend
from trt_tui.core.engines.group_implementations import (
    Preview,
    PreviewRefusal,
    PreviewRequest,
    choose_compute_capability,
)
from trt_tui.core.lowering.typed_network import lower_from_source_model
from trt_tui.core.measure.causes import GROUP_DETAILS
from trt_tui.core.measure.fp16_range import _MagnitudeSession
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.errors import BackendUnavailableError, InputError
from trt_tui.jobs import calibration, engine_preview, scheduler
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.comparison import MIN_RAISED_SHARE
from trt_tui.jobs.opening import WorkspaceSlot, open_worker_pool, require_builder
from trt_tui.jobs.scheduler import Urgency, WaitStep
from trt_tui.jobs.store import ResultCache
from trt_tui.options import Options
from trt_tui.workspace import Workspace

FP16 = PrecisionConfig.from_precision(Precision.FP16)
INT8 = PrecisionConfig.from_precision(Precision.INT8)
RUNS = {"fp16": FP16, "int8": INT8}
EVERYTHING = rq.CompareRuns(RUNS, with_group_errors=True, shares_run="int8")
MEASURED = (
    ev.AccuracyMeasured,
    ev.GroupErrorsMeasured,
    ev.ErrorSharesMeasured,
    ev.ValueMeasured,
    ev.EngineBuilt,
)


@pytest.fixture
def opened(tmp_path):
    """A worker with an MLP open; reports are not held back."""

    def open_it(options=None):
        worker = DrivenWorker(tmp_path)
        events = worker.answer(rq.OpenNetwork(options or save_mlp(tmp_path)))
        assert isinstance(events[-1], ev.JobDone), events[-1]
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
    monkeypatch.setattr(scheduler, "MIN_REPORT_INTERVAL_S", 0.0)


def raised(worker, *positions):
    groups = [group for group in worker.network.groups if group.is_quantizable]
    return INT8.with_group_precision([groups[i] for i in positions], Precision.FP32)


def ends(events, job):
    return [
        type(one) for one in events if one.job == job and isinstance(one, ev.JobDone | ev.JobCancelled | ev.JobFailed)
    ]


def test_a_comparison_measures_verdicts_layers_and_the_shares_of_every_run(opened):
    worker = opened()
    names = {group.name for group in worker.network.groups}
    events = worker.answer(EVERYTHING)
    assert of(events, ev.CalibrationReady)
    for run, config in RUNS.items():
        verdicts = [e for e in of(events, ev.AccuracyMeasured) if e.run == run]
        assert verdicts[0].accuracy.samples == 4 and not verdicts[0].final
        assert verdicts[-1].final and verdicts[-1].accuracy.samples == (12 if config == INT8 else 16)
        assert verdicts[-1].config == config
        layers = [e for e in of(events, ev.GroupErrorsMeasured) if e.run == run]
        assert layers[-1].final and set(layers[-1].groups) == names
        shares = {}
        for event in of(events, ev.ErrorSharesMeasured):
            if event.run == run:
                shares.update(event.shares)
        assert set(shares) == names
    first_fp16_share = next(
        i for i, e in enumerate(events) if isinstance(e, ev.ErrorSharesMeasured) and e.run == "fp16"
    )
    last_int8_share = max(i for i, e in enumerate(events) if isinstance(e, ev.ErrorSharesMeasured) and e.run == "int8")
    assert last_int8_share < first_fp16_share
    assert ends(events, worker.last) == [ev.JobDone]


def test_what_the_cursor_asks_for_comes_before_anything_else_is_measured(opened, tmp_path):
    worker = opened(replace(save_mlp(tmp_path), exact=True))
    worker.ask(EVERYTHING)
    worker.ask(rq.MeasureTensorStats(worker.network.groups[0].name))
    worker.ask(rq.MeasureRemedies(worker.network.groups[0].name, INT8))
    measured = of(worker.finish(), *MEASURED)
    first = next(i for i, e in enumerate(measured) if isinstance(e, ev.AccuracyMeasured))
    assert list(dict.fromkeys(e.kind for e in measured[:first])) == [GROUP_DETAILS, ev.REMEDIES]
    assert {e.kind for e in of(measured[first:], ev.ValueMeasured)} <= {ev.RAISED_ACCURACIES}
    assert [(type(e), e.run) for e in measured[first : first + 2]] == [
        (ev.AccuracyMeasured, "fp16"),
        (ev.AccuracyMeasured, "int8"),
    ]


def test_rows_are_flipped_one_by_one_after_all_else_the_changed_ones_first(opened):
    worker = opened()
    groups = worker.network.groups
    config = INT8.with_group_precision([groups[0]], Precision.FP32)
    flips, what_if = worker.ask(rq.MeasureToggles(config)), worker.ask(rq.MeasureWhatIf(config, with_shares=True))
    events = worker.finish()
    assert [event.job for event in events if isinstance(event, ev.JobDone)] == [what_if, flips]
    shares = {
        name: share.fraction for event in of(events, ev.ErrorSharesMeasured) for name, share in event.shares.items()
    }
    found = [event for event in of(events, ev.AccuracyMeasured) if event.run == "flip"]
    assert found[0].config == INT8 and all(event.accuracy.samples == event.accuracy.total for event in found)
    worst = sorted((name for name in shares if shares[name] >= MIN_RAISED_SHARE), key=lambda name: -shares[name])
    assert [event.config for event in found[1:]] == [
        config.with_group_precision([worker.network.get_group(name)], Precision.FP32) for name in worst
    ]
    alone = of(worker.answer(rq.MeasureWhatIf(found[-1].config)), ev.AccuracyMeasured)[-1]
    assert alone.accuracy == found[-1].accuracy


@pytest.mark.parametrize(
    "moment", [ev.AccuracyMeasured, ev.GroupErrorsMeasured, ev.ErrorSharesMeasured, ev.ValueMeasured]
)
def test_short_requests_are_answered_within_a_comparison_that_goes_on(opened, moment):
    worker = opened()
    group = worker.network.groups[0].name
    long = worker.ask(EVERYTHING)
    requests = rq.MeasureRemedies(group, INT8), rq.MeasureTensorStats(group), rq.MeasureWhatIf(raised(worker, 0))
    short = worker.once(lambda event: isinstance(event, moment), lambda: [*map(worker.ask, requests)])
    events = worker.finish()
    order = [event.job for event in events if isinstance(event, ev.JobDone)]
    tried, looked, what_if = short[0]
    if moment is not ev.ValueMeasured:  # there little is left to do, of the same urgency or none
        assert order.index(what_if) < order.index(looked) < order.index(tried) < order.index(long)
    assert {tried, looked, what_if, long} == set(order)
    mine = [event for event in events if event.job == long]
    assert {e.run for e in of(mine, ev.AccuracyMeasured) if e.final} == set(RUNS)
    assert {e.run for e in of(mine, ev.GroupErrorsMeasured) if e.final} == set(RUNS)
    assert {e.run for e in of(mine, ev.ErrorSharesMeasured) if e.done == e.total} == set(RUNS)
    options = values([e for e in events if e.job == tried], ev.REMEDIES)[-1]
    assert [option.key for option in options] == ["9", "9", "=", "space", "r", "r", "r"]
    assert all(option.accuracy.samples == 12 for option in options)


def test_others_are_held_off_while_somebody_waits_and_only_then():
    """A long job holds nothing back, but for the what-if that comes between its steps. It is said which one waits."""
    log, events = [], []

    def start(request, report):
        for _ in range(3):
            log.append(type(request))
            if isinstance(request, rq.MeasureToggles) and len(log) == 2:
                steps.inbox.append((2, rq.MeasureWhatIf(INT8)))
            yield Urgency.WHAT_IF if isinstance(request, rq.MeasureWhatIf) else Urgency.BACKGROUND

    steps = scheduler.Scheduler(start, events.append, pause_others=log.append)
    steps.inbox.append((1, rq.MeasureToggles(INT8)))
    while steps.run_next_step():
        pass
    assert log == [*[rq.MeasureToggles] * 2, True, *[rq.MeasureWhatIf] * 3, False, rq.MeasureToggles]
    assert of(events, ev.JobStarted) == [ev.JobStarted(1), ev.JobStarted(2, (1,)), ev.JobStarted(1)]
    steps.inbox.append((3, rq.MeasureWhatIf(INT8)))
    while steps.run_next_step():
        pass
    assert log[-2:] == [rq.MeasureWhatIf, False]


def test_the_time_left_is_that_of_the_job_without_the_pauses_in_which_others_ran(monkeypatch):
    """Steps of 1 s with a what-if of 50 s and another phase of 3 s between them, then a pass of its own."""
    clock, left = [0.0], []
    monkeypatch.setattr(scheduler, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def start(request, report):
        report.is_report_due = lambda kind: True
        if isinstance(request, rq.MeasureWhatIf):
            clock[0] += 50.0
            return
        for phase, done, seconds in (("a", 1, 1), ("b", 1, 3), ("a", 2, 1), ("a", 3, 1), ("a", 1, 2)):
            clock[0] += seconds
            report.send_progress(phase, done, 4)
            if done == 2:
                steps.inbox.append((2, rq.MeasureWhatIf(INT8)))
            yield Urgency.BACKGROUND

    steps = scheduler.Scheduler(start, lambda event: isinstance(event, ev.JobProgress) and left.append(event.left_s))
    steps.inbox.append((1, rq.MeasureToggles(INT8)))
    while steps.run_next_step():
        pass
    assert clock == [58.0] and left == [3.0, 9.0, 2.0, 1.0, 6.0]


def test_a_toggle_tells_its_verdict_then_what_the_builder_makes_of_it_then_who_owns_what(opened, tmp_path, monkeypatch):
    answers = []
    monkeypatch.setattr(
        engine_preview,
        "_CONNECTION",
        SimpleNamespace(
            set_paused=lambda held: None,
            cancel_request=lambda: None,
            is_idle=lambda: True,
            send_request=lambda *order: SimpleNamespace(done=lambda: bool(answers), result=lambda: answers.pop()),
        ),
    )
    monkeypatch.setattr(engine_preview, "is_tensorrt_rtx_installed", lambda: True)
    worker = opened(replace(save_mlp(tmp_path), exact=True))
    for request in (rq.MeasureWhatIf(INT8, with_shares=True), rq.PreviewEngine(INT8, with_effects=False)):
        worker.ask(request)
    told = of(worker.finish(), *MEASURED, ev.EnginePreviewed)
    assert {type(event) for event in told} == {ev.AccuracyMeasured} and told[-1].final
    worker.ask(rq.MeasureTensorStats(worker.network.groups[0].name))
    assert values(worker.finish(), GROUP_DETAILS)
    answers.append(Preview())
    told = of(worker.finish(), *MEASURED, ev.EnginePreviewed)
    assert [type(event) for event in told][:2] == [ev.EnginePreviewed, ev.ErrorSharesMeasured]
    worker.ask(rq.CompareRuns({"fp16": FP16}, with_group_errors=False, shares_run="fp16"))
    worker.ask(rq.PreviewEngine(FP16, with_effects=False, after_opening=True))
    answers.append(Preview())
    kinds = [type(event) for event in of(worker.finish(), *MEASURED, ev.EnginePreviewed)]
    assert kinds.index(ev.ErrorSharesMeasured) < kinds.index(ev.EnginePreviewed)


def test_a_preview_waits_for_the_one_that_another_job_has_requested(opened, monkeypatch):
    connection, sent, answers = engine_preview._PreviewConnection(), [], queue.SimpleQueue()
    process = SimpleNamespace(poll=lambda: None, send_signal=lambda number: None)
    connection._process = SimpleNamespace(process=process, send=sent.append, pipe=SimpleNamespace(recv=answers.get))
    monkeypatch.setattr(engine_preview, "_CONNECTION", connection)
    worker = opened()
    client = engine_preview.PreviewClient(worker.workspace, worker.store, SimpleNamespace(wake=lambda: None), {})
    first, second = client.preview_config(FP16), client.preview_config(raised(worker, 0))
    assert not next(first).ready() and len(sent) == 1
    wait = next(second)
    assert not wait.ready() and len(sent) == 1
    answers.put(Preview("1.7.1", refusal=PreviewRefusal("no")))
    assert in_time(wait.ready)
    with pytest.raises(StopIteration) as answer:
        next(first)
    assert answer.value.value.refusal.title == "no" and wait.ready()
    assert not next(second).ready()
    assert [one.config for one in sent if isinstance(one, PreviewRequest)] == [FP16, raised(worker, 0)]
    second.close()
    assert sent[2:] == [None] and not connection.is_idle(), "a cancelled request is answered too"
    answers.put(Preview())
    assert in_time(connection.is_idle)


def test_the_gpu_of_previews_can_be_chosen(opened, monkeypatch):
    worker = opened()

    def requested(config):
        client = engine_preview.PreviewClient(worker.workspace, worker.store, SimpleNamespace(wake=lambda: None), {})
        return client._make_preview_request(config).requested_capability, client._preview_cache_key(config)

    default, key = requested(FP16)
    assert default is None
    for gpu in (gpus := ((7, 5), (8, 6), (12, 0))):
        worker.workspace.options = replace(worker.workspace.options, compute_capability=gpu)
        assert requested(FP16)[0] == gpu and requested(FP16)[1] != key
        assert choose_compute_capability(gpus, (9, 0), gpu) == gpu


def test_only_the_last_of_rapid_changes_is_measured(opened, runs):
    worker = opened()
    worker.answer(rq.CompareRuns(RUNS, with_group_errors=False))
    before = runs["run"]
    jobs = [worker.ask(rq.MeasureWhatIf(raised(worker, *range(n)))) for n in (1, 2, 1, 0, 3, 2)]
    events = worker.finish()
    assert [e.job for e in of(events, ev.AccuracyMeasured) if e.final] == [jobs[-1]]
    assert all(ends(events, job) == [ev.JobDone] for job in jobs)
    assert runs["run"] - before == len(worker.feeds.all_feeds)


def test_shares_in_the_background_give_way_to_everything(opened, talkative):
    worker = opened()
    first = worker.ask(rq.MeasureWhatIf(raised(worker, 0), with_shares=True))
    second = worker.once(
        lambda event: isinstance(event, ev.JobProgress) and "shares" in event.phase,
        lambda: [
            worker.ask(rq.BuildEngine(raised(worker, 1))),
            worker.ask(rq.CompareRuns(RUNS, with_group_errors=True)),
        ],
    )
    events = worker.finish()
    assert [event.job for event in of(events, ev.JobDone)] == [*second[0], first]
    assert values(events, ev.RAISED_ACCURACIES)


def test_a_newer_what_if_replaces_the_shares_of_the_older_one(opened, talkative):
    worker = opened()
    old, new = raised(worker, 0), raised(worker, 1)
    first = worker.ask(rq.MeasureWhatIf(old, with_shares=True))
    second = worker.once(
        lambda event: isinstance(event, ev.ErrorSharesMeasured),
        lambda: worker.ask(rq.MeasureWhatIf(new, with_shares=True)),
    )
    events = worker.finish()
    assert [event.job for event in events if isinstance(event, ev.JobDone)] == [first, second[0]]
    after = events[events.index(next(e for e in events if ends([e], first))) :]
    assert not [e for e in after if e.job == first and isinstance(e, MEASURED)]
    assert {e.key if isinstance(e, ev.ValueMeasured) else e.config for e in of(after, *MEASURED)} == {new}
    # Background work: the errors at the groups of the changed config follow its shares.
    kinds = [
        type(e)
        for e in of(after, ev.AccuracyMeasured, ev.ErrorSharesMeasured, ev.ValueMeasured, ev.GroupErrorsMeasured)
    ]
    assert kinds[0] is ev.AccuracyMeasured and kinds[-1] is ev.GroupErrorsMeasured
    assert kinds.index(ev.ErrorSharesMeasured) < kinds.index(ev.ValueMeasured) < kinds.index(ev.GroupErrorsMeasured)


def test_the_shares_of_the_changed_config_come_first_and_the_comparison_still_ends(opened):
    worker = opened()
    changed = raised(worker, 0)
    long = worker.ask(EVERYTHING)
    asked = worker.once(
        lambda event: isinstance(event, ev.AccuracyMeasured),
        lambda: worker.ask(rq.MeasureWhatIf(changed, with_shares=True)),
    )
    events = worker.finish()
    assert [e.job for e in of(events, ev.JobDone)] == [asked[0], long]
    assert of(events, ev.ErrorSharesMeasured)[0].config == changed
    mine = [event for event in events if event.job == long]
    assert {e.run for e in of(mine, ev.ErrorSharesMeasured) if e.done == e.total} == set(RUNS)


def test_a_sweep_for_statistics_gives_way_and_is_made_again(opened):
    worker = opened()
    looked = worker.ask(rq.MeasureTensorStats(worker.network.groups[0].name))
    asked = worker.once(
        lambda event: isinstance(event, ev.JobProgress), lambda: worker.ask(rq.MeasureWhatIf(raised(worker, 0)))
    )
    events = worker.finish()
    assert [e.job for e in of(events, ev.JobDone)] == [asked[0], looked]
    assert len(values(events, GROUP_DETAILS)) == 1


def test_progress_is_reported_at_most_ten_times_a_second(opened, tmp_path):
    worker = opened(save_mlp(tmp_path, samples=400))
    started = time.monotonic()
    progress = of(worker.answer(rq.CompareRuns(RUNS, with_group_errors=False)), ev.JobProgress)
    spent = time.monotonic() - started
    # One more for each phase, since its end is always reported.
    assert len(progress) <= spent / scheduler.MIN_REPORT_INTERVAL_S + 1 + len({event.phase for event in progress})


PHASES = {
    "reading the network": rq.OpenNetwork,
    "hashing the network": rq.OpenNetwork,
    "calibrating": rq.CompareRuns,
    "comparing with FP32": rq.CompareRuns,
    "per-layer errors": rq.CompareRuns,
    "shares": rq.CompareRuns,
    "raising the worst layers one by one": rq.CompareRuns,
    "what-if": rq.MeasureWhatIf,
    "activation statistics": rq.MeasureTensorStats,
    "other ranges": rq.MeasureRemedies,
    "trying": rq.MeasureRemedies,
    "exporting the network": rq.BuildEngine,
    "executing the exported network": rq.BuildEngine,
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_stop_ends_every_phase_before_its_next_run(tmp_path, talkative, runs, phase):
    options = save_mlp(tmp_path)
    worker = DrivenWorker(tmp_path)
    if PHASES[phase] is not rq.OpenNetwork:
        worker.answer(rq.OpenNetwork(options))
    group = worker.network.groups[0].name if worker.workspace is not None else ""
    job = worker.ask(
        {
            rq.OpenNetwork: rq.OpenNetwork(options),
            rq.CompareRuns: EVERYTHING,
            rq.MeasureWhatIf: rq.MeasureWhatIf(INT8),
            rq.MeasureTensorStats: rq.MeasureTensorStats(group),
            rq.MeasureRemedies: rq.MeasureRemedies(group, INT8),
            rq.BuildEngine: rq.BuildEngine(INT8),
        }[PHASES[phase]]
    )
    stopped = worker.once(
        lambda event: isinstance(event, ev.JobProgress) and event.phase.startswith(phase),
        lambda: (worker.stop(), runs["run"]),
    )
    events = worker.finish()
    assert stopped, f"no progress of phase {phase}"
    assert ends(events, job) == [ev.JobCancelled] and events[-1] == ev.JobCancelled(job)
    assert runs["run"] - stopped[0][1] <= 1
    if PHASES[phase] is rq.OpenNetwork:
        assert ends(worker.answer(rq.OpenNetwork(options)), worker.last) == [ev.JobDone]
    again = worker.answer(EVERYTHING)
    assert ends(again, worker.last) == [ev.JobDone]
    assert {e.run for e in of(again, ev.AccuracyMeasured) if e.final} == set(RUNS)


def test_a_stop_ends_waiting_jobs_too_and_not_those_that_come_after_it(opened):
    worker = opened()
    first, second = worker.ask(EVERYTHING), worker.ask(rq.MeasureWhatIf(raised(worker, 0)))
    worker.stop()
    third = worker.ask(rq.MeasureTensorStats(worker.network.groups[0].name))
    events = worker.finish()
    assert ends(events, first) == ends(events, second) == [ev.JobCancelled]
    assert ends(events, third) == [ev.JobDone]


def test_a_stop_of_one_job_leaves_the_others(opened):
    worker = opened()
    first, second = worker.ask(EVERYTHING), worker.ask(rq.MeasureWhatIf(raised(worker, 0)))
    worker.step()
    worker.stop(first)
    events = worker.finish()
    assert ends(events, first) == [ev.JobCancelled] and ends(events, second) == [ev.JobDone]


class Unruly:
    """Steps of requests as a test gives them, by request type, in a scheduler of its own; what it sends is kept."""

    def __init__(self, **steps):
        self.sent = []
        self.scheduler = scheduler.Scheduler(
            lambda request, report: steps[type(request).__name__](self, request), self.sent.append
        )

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


@pytest.mark.parametrize(
    "error",
    [
        ValueError("in finally"),
        OSError("disk"),
        MemoryError(),
        SystemExit(3),
        BrokenPipeError("its own"),
        KeyboardInterrupt(),
    ],
)
@pytest.mark.parametrize("how", ["stopped", "replaced"])
def test_an_exception_while_a_job_is_closed_ends_no_other(how, error, capsys):
    unruly = Unruly(MeasureWhatIf=closes_with(error), MeasureTensorStats=two_steps)
    unruly.ask(rq.MeasureWhatIf(INT8), rq.MeasureTensorStats("group"))
    for _ in range(3):
        assert unruly.scheduler.run_next_step()
    if how == "stopped":
        unruly.scheduler.stop_jobs([1])
    else:
        unruly.ask(rq.MeasureWhatIf(FP16))
        unruly.scheduler.run_next_step()
        unruly.scheduler.stop_jobs([3])
    while unruly.scheduler.run_next_step():
        pass
    first = ev.JobCancelled(1) if how == "stopped" else ev.JobDone(1, was_replaced=True)
    assert ends(unruly.sent, 1) == [type(first)] and first in unruly.sent and ends(unruly.sent, 2) == [ev.JobDone]
    assert type(error).__name__ in capsys.readouterr().err, "the log says what was raised"


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (BrokenPipeError("of a script"), ev.JobFailed),
        (SystemExit(1), ev.JobFailed),
        (KeyboardInterrupt(), ev.JobCancelled),
        (ValueError(), ev.JobFailed),
    ],
)
def test_whatever_a_step_raises_ends_its_own_job_alone(error, end):
    def raises(unruly, request):
        yield Urgency.WHAT_IF
        raise error

    unruly = Unruly(MeasureWhatIf=raises, MeasureTensorStats=two_steps)
    unruly.ask(rq.MeasureWhatIf(INT8), rq.MeasureTensorStats("group"))
    while unruly.scheduler.run_next_step():
        pass
    assert ends(unruly.sent, 1) == [end] and ends(unruly.sent, 2) == [ev.JobDone]


def test_what_cannot_tell_whether_it_is_ready_is_asked_for_its_next_step():
    def waits(unruly, request):
        yield WaitStep(lambda: 1 / 0)
        raise InputError("the process is gone", "", "")

    unruly = Unruly(MeasureWhatIf=waits, MeasureTensorStats=two_steps)
    unruly.ask(rq.MeasureWhatIf(INT8), rq.MeasureTensorStats("group"))
    while unruly.scheduler.run_next_step():
        pass
    assert ends(unruly.sent, 1) == [ev.JobFailed] and ends(unruly.sent, 2) == [ev.JobDone]


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
        unruly.scheduler.stop_jobs([1, 2, 3])  # what the thread that reads the pipe does meanwhile
        unruly.scheduler.stop_jobs([1])
        assert [event.job for event in of(unruly.sent, ev.JobCancelled)] == [1, 3] and not closed
        yield Urgency.WHAT_IF
        assert sorted(closed) == ["FindMixedPrecisionConfig", "MeasureRemedies", "MeasureTensorStats"]
        unruly.scheduler.stop_jobs([4])

    unruly = Unruly(
        MeasureTensorStats=suspended,
        FindMixedPrecisionConfig=suspended,
        MeasureRemedies=suspended,
        MeasureWhatIf=runs_long,
    )
    unruly.ask(rq.MeasureTensorStats("group"), rq.FindMixedPrecisionConfig(INT8, ("sqnr>=20",)))
    for _ in range(4):
        unruly.scheduler.run_next_step()
    unruly.ask(rq.MeasureRemedies("group", INT8))
    unruly.scheduler.run_next_step()
    unruly.ask(rq.MeasureWhatIf(INT8))
    while unruly.scheduler.run_next_step():
        pass
    assert [ends(unruly.sent, job) for job in (1, 2, 3)] == [[ev.JobCancelled]] * 3
    assert ends(unruly.sent, 4) == [ev.JobDone] and not unruly.scheduler._reported_stopped


def test_a_stopped_job_that_had_not_begun_is_not_taken_for_replaced(opened):
    worker = opened()
    first = worker.ask(rq.MeasureWhatIf(INT8))
    worker.stop()
    second = worker.ask(rq.MeasureWhatIf(FP16))
    events = worker.finish()
    assert ends(events, first) == [ev.JobCancelled] and ends(events, second) == [ev.JobDone]


def test_opening_that_was_stopped_while_hashing_is_made_up_for(tmp_path, talkative):
    worker = DrivenWorker(tmp_path)
    worker.ask(rq.OpenNetwork(save_mlp(tmp_path)))
    worker.once(lambda event: isinstance(event, ev.NetworkOpened), worker.stop)
    assert not of(worker.finish(), ev.FilesHashed)
    events = worker.answer(rq.CompareRuns(RUNS, with_group_errors=False))
    assert len(of(events, ev.FilesHashed)) == 1 and ends(events, worker.last) == [ev.JobDone]


def test_runs_in_turn_measure_the_largest_values_of_each_feed_once(opened, tmp_path, monkeypatch):
    worker, feeds, sessions = opened(save_mlp(tmp_path)), [], set()

    def record(session, feed_index):
        feeds.append(feed_index)
        sessions.add(session)
        return measure(session, feed_index)

    measure = _MagnitudeSession.measure_feed_magnitudes
    monkeypatch.setattr(_MagnitudeSession, "measure_feed_magnitudes", record)
    worker.answer(rq.CompareRuns({"fp16": FP16, "int8": INT8}, with_group_errors=False))
    assert sorted(feeds) == [0, 1, 2, 3] and len(sessions) == 1


def test_no_share_is_sent_that_a_few_more_samples_would_change(opened, talkative, tmp_path):
    worker = opened(save_mlp(tmp_path, samples=48))
    events = of(
        worker.answer(rq.CompareRuns({"int8": INT8}, with_group_errors=False, shares_run="int8")),
        ev.ErrorSharesMeasured,
    )
    sent = [share for event in events for share in event.shares.values()]
    assert {name for event in events for name in event.shares} == {group.name for group in worker.network.groups}
    assert all(share.samples >= 8 or share.unknown_reason for share in sent)
    assert not any(
        share.unknown_reason or (share.half_width or 0) > 0.2
        for event in events[:-1]
        for share in event.shares.values()
    )


@pytest.mark.parametrize("exact", [False, True])
def test_interrupted_shares_are_kept(opened, runs, talkative, tmp_path, exact):
    worker = opened(replace(save_mlp(tmp_path), exact=exact))
    groups = len(worker.network.groups)
    worker.answer(rq.CompareRuns(RUNS))
    one = rq.CompareRuns({"int8": INT8}, with_group_errors=False, shares_run="int8")
    job, begun = worker.ask(one), runs["run"]
    told = []

    def stop(event):
        told.extend(event.shares if isinstance(event, ev.ErrorSharesMeasured) else ())
        if len(told) >= groups - 1 and event.job == job:
            worker.stop()

    worker.wire.on_event = stop
    worker.finish()
    measured = runs["run"] - begun
    assert measured >= groups - 1
    worker.wire.on_event = lambda event: None
    before = runs["run"]
    shares = of(worker.answer(one), ev.ErrorSharesMeasured)[-1]
    assert shares.done == shares.total == groups
    again, resumed = of(worker.answer(one), ev.ErrorSharesMeasured)[-1], runs["run"] - before
    assert set(again.shares) == {group.name for group in worker.network.groups}
    assert all(one.samples == 12 if exact else one.samples >= 8 for one in again.shares.values())
    raised_together = len(values(worker.wire.events, ev.RAISED_ACCURACIES)[-1])
    if exact:  # the config's own runs are not made again, nor those of groups that were told
        assert resumed <= (1 + raised_together) * len(worker.feeds)


def test_no_export_takes_the_place_of_another_and_none_waits_for_a_comparison(opened, tmp_path):
    worker = opened()
    long = worker.ask(EVERYTHING)
    paths = [str(tmp_path / name) for name in ("one.onnx", "two.onnx", "one.json", "two.json")]
    jobs = [worker.ask(rq.ExportConfig(path, INT8, "onnx")) for path in paths[:2]]
    jobs += [worker.ask(rq.WriteTextFile(path, path)) for path in paths[2:]]
    events = worker.finish()
    assert [event.paths for event in of(events, ev.ConfigExported)] == [(path,) for path in paths[2:] + paths[:2]]
    assert [event.job for event in events if isinstance(event, ev.JobDone)][-1] == long
    assert Path(paths[2]).read_text() == paths[2]


def test_a_defect_ends_the_job_and_not_the_worker(opened, monkeypatch):
    worker = opened()
    monkeypatch.setattr(calibration, "collect_tensor_stats", lambda *args, **kwargs: 1 / 0)
    events = worker.answer(rq.MeasureTensorStats(worker.network.groups[0].name))
    assert isinstance(events[-1], ev.JobFailed) and "ZeroDivisionError" in events[-1].error.title
    assert "Traceback" in events[-1].detail
    assert ends(worker.answer(rq.MeasureWhatIf(INT8)), worker.last) == [ev.JobDone]


def test_what_stood_in_the_way_of_opening_is_said_again(tmp_path):
    worker = DrivenWorker(tmp_path)
    failed = worker.answer(rq.OpenNetwork(Options(str(tmp_path / "none.onnx"))))[-1]
    assert isinstance(failed, ev.JobFailed) and "none.onnx" in failed.error.title
    assert worker.answer(rq.MeasureWhatIf(INT8))[-1].error.title == failed.error.title


def figures(events):
    return [
        (type(e), {k: v for k, v in vars(e).items() if k != "job"})
        for e in of(events, *MEASURED)
        if getattr(e, "final", True) and getattr(e, "done", 0) == getattr(e, "total", 0)
    ]


def test_a_job_gets_the_open_network_or_the_error_of_its_opening(mlp):
    slot, workspace = WorkspaceSlot(), Workspace(mlp)
    with refused("no network is open"):
        slot.require_workspace()
    slot.open_error = InputError("it is gone", "", "Open another.")
    with refused("it is gone"):
        slot.require_workspace()
    slot.workspace = workspace
    assert slot.require_workspace() is workspace


def test_an_engine_needs_a_builder_and_a_pool_of_workers_the_option_for_it(mlp):
    with refused("can build an engine", cause="ONNX Runtime builds none", kind=BackendUnavailableError):
        require_builder(replace(mlp, backend="onnxruntime"), pytest.fail)
    assert open_worker_pool(mlp, None) is None
    working = SimpleNamespace(failure_reason="")
    assert open_worker_pool(replace(mlp, workers="2"), working) is working


def test_what_was_measured_once_is_known_the_next_time(opened, runs):
    worker = opened()
    first = figures(worker.answer(EVERYTHING))
    built = worker.answer(rq.BuildEngine(INT8))
    assert of(built, ev.ExportedFileExecuted)
    before = dict(runs)
    again = opened()
    events = again.answer(EVERYTHING)
    assert runs == before
    second = figures(events)
    assert [f for f in second if f[0] is ev.AccuracyMeasured] == [f for f in first if f[0] is ev.AccuracyMeasured]
    assert [f for f in second if f[0] is ev.GroupErrorsMeasured] == [f for f in first if f[0] is ev.GroupErrorsMeasured]
    assert {run: sum(len(e.shares) for e in of(events, ev.ErrorSharesMeasured) if e.run == run) for run in RUNS} == {
        run: len(again.network.groups) for run in RUNS
    }
    assert of(events, ev.ExportedFileExecuted)[0].result == of(built, ev.ExportedFileExecuted)[0].result


@pytest.mark.parametrize(
    ("model", "data", "changed"),
    [
        (3, 0, {}),
        (0, 5, {}),
        (0, 0, {"whatif_samples": 4}),
        (0, 0, {"batch": 2}),
        (0, 0, {"calib_method": "percentile"}),
        (0, 0, {"judge": (networks.mlp().graph.node[1].output[0],)}),
    ],
    ids=str,
)
def test_what_depends_on_something_else_is_measured_anew(opened, runs, tmp_path, model, data, changed):
    opened().answer(rq.CompareRuns({"int8": INT8}, with_group_errors=False))
    files = {
        field: getattr(save_mlp(tmp_path, seed=seed, name=f"seed{seed}"), field)
        for field, seed in (("model", model), ("data", data))
    }
    worker = opened(replace(save_mlp(tmp_path), **files, **changed))
    before = runs["run"]
    events = worker.answer(rq.CompareRuns({"int8": INT8}, with_group_errors=False))
    assert runs["run"] > before and of(events, ev.AccuracyMeasured)[-1].final


def test_other_ranges_and_other_configs_are_measured_anew(opened, runs):
    worker = opened()
    worker.answer(rq.CompareRuns(RUNS, with_group_errors=False))
    measured = worker.workspace.calibration
    halved = replace(measured, ranges={tensor: amax / 2 for tensor, amax in measured.ranges.items()})
    known = worker.answer(rq.MeasureWhatIf(INT8))
    for request in (rq.UseRanges(halved), None):
        if request is not None:
            worker.answer(request)
        before = runs["run"]
        events = worker.answer(rq.MeasureWhatIf(INT8 if request is not None else raised(worker, 0)))
        assert runs["run"] == before + len(worker.feeds.all_feeds)
        assert of(events, ev.AccuracyMeasured)[-1].accuracy != of(known, ev.AccuracyMeasured)[-1].accuracy
    before = runs["run"]
    worker.answer(rq.MeasureWhatIf(FP16))
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
        events = opened(labelled(tmp_path, labels, *body)).answer(
            rq.CompareRuns({"int8": INT8}, with_group_errors=False)
        )
        seen.append(of(events, ev.AccuracyMeasured)[-1].accuracy.headline_metric)
        assert of(events, ev.ReferenceMetricMeasured)[-1].metric == {"metric.py:score": seen[-1]}
    assert seen == [1.0, 0.0, 0.25]


def test_a_metric_is_measured_anew_in_another_environment(opened, tmp_path, monkeypatch):
    options, seen = labelled(tmp_path, np.ones(16), "import os\n    return float(os.environ['FACTOR'])"), []
    for factor in "12":
        monkeypatch.setenv("FACTOR", factor)
        events = opened(options).answer(EVERYTHING)
        seen.append(of(events, ev.AccuracyMeasured)[-1].accuracy.headline_metric)
    assert seen == [1.0, 2.0]


def test_a_metric_reads_a_label_without_axes(opened, tmp_path):
    events = opened(labelled(tmp_path, 4)).answer(EVERYTHING)
    assert of(events, ev.AccuracyMeasured)[-1].accuracy.headline_metric == 0.0


def test_a_metric_that_fails_on_the_first_feed_is_measured_on_all(opened, tmp_path):
    body = "assert len(labels['y']) > 8\n    return 1.0"
    events = opened(labelled(tmp_path, np.ones(16), body)).answer(EVERYTHING)
    assert of(events, ev.AccuracyMeasured)[-1].accuracy.headline_metric == 1.0


def test_a_cache_that_cannot_be_read_or_written_is_no_error(opened, tmp_path):
    worker = opened()
    worker.answer(EVERYTHING)
    for path in (tmp_path / "results").glob("*/*"):
        path.write_bytes(b"\xc1 nonsense")
    assert ends(opened().answer(EVERYTHING), 2) == [ev.JobDone]
    blocked = opened()
    blocked.store.results.folder = tmp_path / "mlp.onnx" / "results"
    assert ends(blocked.answer(EVERYTHING), 2) == [ev.JobDone]


def test_the_cache_drops_what_was_used_longest_ago(tmp_path):
    cache = ResultCache(tmp_path, limit_bytes=2500)
    for name in "abc":
        cache.put(cache.make_key(name), name * 1000)
    old = tmp_path / cache.make_key("b")[:2] / cache.make_key("b")
    os.utime(old, ns=(1, 1))
    cache.trim_to_size_limit()
    assert [cache.get(cache.make_key(name), str) is not None for name in "abc"] == [True, False, True]


def test_free_ways_out_of_what_is_as_in_the_file_leave_it(opened, tmp_path):
    """A SmoothQuant takes the norm and all that reads it along, a corrected bias its own layer."""
    rows = networks.Handed({"x": one} for one in np.random.default_rng(0).standard_normal((4, 2, 6, 16)).astype("f4"))
    onnx.save(transformer(operator=True), tmp_path / "fp32.onnx")
    quantize_static(
        tmp_path / "fp32.onnx",
        tmp_path / "int8.onnx",
        rows,
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QInt8,
        op_types_to_quantize=["MatMul", "Gemm"],
        extra_options={"ActivationSymmetric": True},
    )
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(1).standard_normal((8, 6, 16)).astype("f4"))
    worker = opened(Options(str(tmp_path / "int8.onnx"), str(tmp_path / "x.npz"), whatif_samples=0))
    network, given = worker.network, PrecisionConfig.from_precision(Precision.FILE)
    for name, free in (
        ("/norm/LayerNormalization", ["SmoothQuant"]),
        ("/gemm/Gemm", ["SmoothQuant", "bias correction"]),
    ):
        events = worker.answer(rq.MeasureRemedies(name, given))
        ways = [one for one in values(events, ev.REMEDIES)[-1] if one.key == ev.ZERO_COST_KEY]
        assert all(one.label.startswith(label) for one, label in zip(ways, free, strict=True))
        assert all(one.label.endswith(", no longer in file precision") for one in ways)
        for one in ways:
            left = {group.name for group in network.groups if one.config.precision_of(group) is Precision.FILE}
            smooth = "Smooth" in one.label
            assert left == {"/in/MatMul", *(() if smooth else ("/norm/LayerNormalization", "/matmul/MatMul"))}
            assert lower_from_source_model(network, one.config, worker.workspace.ranges).model is not None
