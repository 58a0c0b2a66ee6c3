"""trt_tui.jobs.client and .lifeline: how a child process starts, is stopped and dies, and goes with its program."""

import os
import queue
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import psutil
import pytest

from tests.driven import LIMIT_S, of, save_mlp, save_resnet
from trt_tui.core.engines.group_implementations import PreviewNetwork, PreviewRequest
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.jobs import client, engine_preview
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.client import JobClient, child_log_path
from trt_tui.jobs.preview_server import PreviewServer

pytestmark = pytest.mark.spawned

BUSY = {
    "native code that holds the interpreter": "ctypes.PyDLL(None).sleep(3600)",
    "one bytecode that takes for ever": "sum(itertools.repeat(0))",
    "a loop": "while True: pass",
    "signals ignored": "[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15, 29)]; ctypes.PyDLL(None).sleep(3600)",
}


def script(folder: Path, *, starts: str, then: str) -> Path:
    """A data script that starts a process, writes down both ids, and does something."""
    path = folder / "data.py"
    path.write_text(
        textwrap.dedent(f"""
        import ctypes, itertools, os, pathlib, signal, subprocess, sys, time
        def load_data():
            {starts}
            told = pathlib.Path(__file__).with_suffix('.new')
            told.write_text(f'{{os.getpid()}} {{other}}')
            told.rename(told.with_suffix('.ids'))
            {then}
            yield {{}}
    """)
    )
    return path


def in_time(true: Callable[[], bool], seconds: float = LIMIT_S / 4) -> bool:
    """Whether something becomes true, within the limit."""
    deadline = time.monotonic() + seconds
    while not (is_true := true()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return is_true


def ids(path: Path) -> list[int]:
    """The process ids that a script has written down."""
    assert in_time(path.with_suffix(".ids").exists, LIMIT_S)
    return [int(word) for word in path.with_suffix(".ids").read_text().split()]


def gone(pid: int) -> bool:
    """Whether a process ends, within the limit."""
    return in_time(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


STARTS = "other = subprocess.Popen(['sleep', '3600']).pid"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the interpreter must get to run")
@pytest.mark.parametrize("busy", BUSY)
def test_a_child_goes_with_its_program_whatever_it_is_doing(tmp_path, busy):
    options = save_mlp(tmp_path)
    data = script(tmp_path, starts=STARTS, then=BUSY[busy])
    program = subprocess.Popen(
        [sys.executable, "-m", "trt_tui", "compare", options.model, "--data", str(data)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        child, other = ids(data)
        assert psutil.Process(child).ppid() == program.pid
        program.kill()
        program.wait()
        assert gone(child) and gone(other)
    finally:
        program.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the pipe of requests tells")
def test_a_child_whose_program_ended_while_it_started_ends(tmp_path):
    code = """
import os, sys
from trt_tui.jobs.child_exit import tie_process_to_parent
tie_process_to_parent(int(sys.argv[1]))
print('lived on')
"""
    reading, writing = os.pipe()
    os.close(writing)
    run = subprocess.run(
        [sys.executable, "-c", code, str(reading)],
        pass_fds=(reading,),
        start_new_session=True,
        capture_output=True,
        text=True,
    )
    os.close(reading)
    assert run.returncode == -signal.SIGKILL and not run.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the interpreter must get to run")
def test_an_order_is_wanted_before_it_can_be_taken_up(monkeypatch):
    previewer, seen = PreviewServer(), []
    inbox = SimpleNamespace(put=lambda taken: seen.append((taken, previewer.is_wanted)))
    order = PreviewRequest(PreviewNetwork("network.onnx", ""), PrecisionConfig(), {}, {})
    monkeypatch.setattr(os, "_exit", lambda code: None)
    previewer.receive_requests(SimpleNamespace(recv=Mock(side_effect=[order, None, EOFError])), inbox)
    assert seen == [(order, True)] and not previewer.is_wanted


def test_a_previewer_that_is_held_does_nothing_takes_any_order_and_goes_with_its_program(tmp_path):
    asked, told = engine_preview._PreviewConnection(), threading.Event()
    order = PreviewRequest(
        PreviewNetwork(str(tmp_path / "none.onnx"), ""),
        PrecisionConfig(),
        dict.fromkeys(map(str, range(99999)), 1.0),
        {},
    )
    asked.set_paused(True)
    answer = asked.send_request(order, told.set, 0)  # more than a pipe holds
    process = psutil.Process(asked._process.process.pid)
    assert in_time(lambda: process.status() == psutil.STATUS_STOPPED)
    used = process.cpu_times()
    assert not told.wait(0.1) and process.cpu_times() == used and not answer.done()
    asked.set_paused(False)
    assert told.wait(LIMIT_S) and answer.result().refusal
    asked.set_paused(True)
    assert in_time(lambda: process.status() == psutil.STATUS_STOPPED)
    asked._process.lifeline.close()
    assert gone(process.pid)


FORKS = "other = os.fork() or time.sleep(3600)"
"""A fork holds all that its parent had open, the pipe too."""


@pytest.mark.parametrize("starts", [STARTS, FORKS])
def test_what_a_child_has_started_goes_with_it_and_its_death_is_reported(session, tmp_path, starts):
    data = script(tmp_path, starts=starts, then="os.kill(os.getpid(), signal.SIGSEGV)")
    driven = session(replace(save_mlp(tmp_path), data=str(data)))
    driven.start()
    assert driven.until_type(ev.ChildProcessDied).exit_code == -signal.SIGSEGV
    assert gone(ids(data)[1])


def test_a_killed_child_is_reported_and_the_session_goes_on(session, tmp_path):
    driven = session(save_resnet(tmp_path, samples=64))
    driven.start()
    driven.until(lambda e: isinstance(e, ev.AccuracyMeasured) and e.run == "int8")
    known, calibration = driven.get_run_results("int8").accuracy, driven.calibration
    os.kill(driven.child_pid, signal.SIGKILL)
    died = driven.until_type(ev.ChildProcessDied)
    assert died.exit_code == -signal.SIGKILL
    assert not driven.is_busy and driven.error is died
    assert driven.get_run_results("int8").accuracy.samples >= known.samples and driven.child_pid is None
    driven.automatic = False
    seen = len(driven.seen)
    driven.toggle_fp32([driven.outline.groups[0]])
    driven.request_comparison(with_group_errors=False)
    driven.until_idle()
    assert driven.get_run_results("config").accuracy.samples == 48
    assert not of(driven.seen[seen:], ev.NetworkOpened, ev.CalibrationReady, ev.JobFailed)
    assert driven.calibration is calibration


def test_a_request_that_meets_a_dead_child_is_answered(session, tmp_path):
    driven = session(save_mlp(tmp_path), automatic=False).settled()
    os.kill(driven.child_pid, signal.SIGKILL)
    while driven.child_pid is not None:
        time.sleep(0.01)
    driven.request_comparison(with_group_errors=False)
    driven.until_type(ev.ChildProcessDied)
    driven.until_idle()
    assert driven.get_run_results("int8").accuracy.samples == 12


def test_a_stop_leaves_a_child_that_heeds_it_alive(session, tmp_path):
    driven = session(save_resnet(tmp_path, samples=400))
    driven.start()
    driven.until(lambda e: isinstance(e, ev.AccuracyMeasured))
    pid = driven.child_pid
    driven.stop_jobs()
    driven.until_type(ev.JobCancelled)
    assert not driven.is_busy and driven.child_pid == pid
    driven.request_build()
    driven.until_type(ev.ExportedFileExecuted)


STUCK = "ctypes.PyDLL(None).sleep(3600)"


def test_a_stuck_child_is_killed_after_the_grace_and_reported_as_stopped(session, tmp_path):
    data = script(tmp_path, starts=STARTS, then=STUCK)
    driven = session(replace(save_mlp(tmp_path), data=str(data)))
    driven.start()
    pid, other = ids(data)
    driven.stop_jobs()
    driven.until_type(ev.JobCancelled)
    assert gone(pid) and gone(other) and not driven.is_busy and driven.child_pid is None
    assert not of(driven.seen, ev.ChildProcessDied) and driven.error is None


def test_what_libraries_print_goes_to_the_log(session, tmp_path, capfd):
    script = tmp_path / "noisy.py"
    script.write_text(
        textwrap.dedent("""
        import os
        import numpy as np
        def load_data():
            os.write(1, b'native to stdout\\n')
            os.write(2, b'native to stderr\\n')
            print('from python')
            for i in range(8):
                yield {'x': np.full((4, 16), i, np.float32)}
    """)
    )
    session(replace(save_mlp(tmp_path), data=str(script)), automatic=False).settled()
    text = child_log_path().read_text()
    assert "native to stdout" in text and "native to stderr" in text and "from python" in text
    shown = capfd.readouterr()
    assert shown.out == shown.err == ""


def test_a_log_that_cannot_be_written_is_no_error(session, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    driven = session(save_mlp(tmp_path), automatic=False).settled()
    assert driven.outline is not None


def test_close_ends_a_child_that_is_at_work(session, tmp_path):
    driven = session(save_resnet(tmp_path, samples=400))
    driven.start()
    driven.until(lambda e: isinstance(e, ev.AccuracyMeasured))
    pid = driven.child_pid
    driven.close()
    assert gone(pid)


@pytest.fixture
def stuck(tmp_path):
    """A client whose child holds the interpreter in native code for an hour, and its events."""
    data = script(tmp_path, starts=STARTS, then=STUCK)
    events: queue.Queue[ev.Event] = queue.Queue()
    client = JobClient(events.put)
    client.send_request(rq.OpenNetwork(replace(save_mlp(tmp_path), data=str(data))))
    ids(data)
    yield client, events
    client.close()


def test_a_stop_is_answered_though_the_next_process_does_not_read_yet(tmp_path, monkeypatch):
    """Requests of more than a pipe holds wait for a process that starts; nobody waits for them"""
    popen = subprocess.Popen
    monkeypatch.setattr(client.subprocess, "Popen", lambda command, **more: popen(["sleep", "60"], **more))
    monkeypatch.setattr(client, "STOP_GRACE_S", 0.1)
    events: queue.Queue[ev.Event] = queue.Queue()
    large = rq.WriteTextFile(str(tmp_path / "out.txt"), "x" * (1 << 20))
    asking = JobClient(events.put, lambda: [large])
    since = time.monotonic()
    jobs = [asking.send_request(large) for _ in range(3)]
    asking.stop_jobs(jobs[:1])
    assert events.get(timeout=LIMIT_S) == ev.JobCancelled(jobs[0]) and time.monotonic() - since < 1
    asking.stop_jobs(jobs[1:])
    assert [events.get(timeout=LIMIT_S) for _ in jobs[1:]] == list(map(ev.JobCancelled, jobs[1:]))
    asking.close()
    assert events.empty()


def until_ended(events: queue.Queue[ev.Event], *jobs: int) -> list[ev.Event]:
    """All events until some jobs have ended, none of which tells of a death."""
    seen: list[ev.Event] = []
    while not set(jobs) <= {event.job for event in of(seen, ev.JobDone, ev.JobCancelled)}:
        seen.append(events.get(timeout=LIMIT_S))
    assert not of(seen, ev.ChildProcessDied, ev.JobFailed)
    return seen


def test_what_is_asked_between_a_stop_and_the_kill_is_answered_by_a_new_child(stuck, tmp_path):
    client, events = stuck
    client.stop_jobs()
    after = client.send_request(rq.OpenNetwork(save_mlp(tmp_path)))
    seen = until_ended(events, 1, after)
    assert [(type(one), one.job) for one in of(seen, ev.JobCancelled, ev.JobDone)] == [
        (ev.JobCancelled, 1),
        (ev.JobDone, after),
    ]


def test_a_stop_is_told_when_the_grace_is_over_though_the_process_takes_its_time_to_end(stuck, monkeypatch):
    client, events = stuck
    ended = threading.Event()
    wait = client._child.process.wait
    monkeypatch.setattr(client._child.process, "wait", lambda *_: ended.wait(LIMIT_S) and wait())
    timers = []
    monkeypatch.setattr(
        threading,
        "Timer",
        lambda seconds, function, arguments: (
            timers.append((seconds, lambda: function(*arguments))) or threading.Thread()
        ),
    )
    client.stop_jobs()
    ((seconds, over),) = timers
    assert seconds <= 1.0
    over()
    assert [event.job for event in of(until_ended(events, 1), ev.JobCancelled)] == [1]
    ended.set()
    assert wait() < 0


def test_the_end_of_the_program_does_not_wait_for_a_child_that_takes_its_time(stuck, monkeypatch):
    client, _ = stuck
    waited = []
    wait = client._child.process.wait

    def slow(timeout=None):
        waited.append(timeout)
        if threading.current_thread() is not threading.main_thread():
            return wait()
        raise subprocess.TimeoutExpired("child", timeout)

    monkeypatch.setattr(client._child.process, "wait", slow)
    client.close()
    assert len([one for one in waited if one is not None]) == 2 and sum(filter(None, waited)) <= 1.0
    assert wait() < 0


@pytest.mark.parametrize("is_busy", [True, False])
def test_a_sigint_to_the_background_process_alone_is_a_cancellation(tmp_path, is_busy):
    options = save_mlp(tmp_path)
    events, data = queue.Queue(), script(tmp_path, starts="other = 0", then="time.sleep(3600)")
    child = JobClient(events.put)
    try:
        child.send_request(rq.OpenNetwork(replace(options, data=str(data)) if is_busy else options))
        if is_busy:
            pid, _ = ids(data)
        else:
            while not isinstance(events.get(timeout=LIMIT_S), ev.JobDone):
                pass
            pid = child._child.process.pid
        os.kill(pid, signal.SIGINT)
        if not is_busy:
            child.send_request(rq.OpenNetwork(options))
        ended = (ev.JobDone, ev.JobCancelled, ev.JobFailed, ev.ChildProcessDied)
        while not isinstance(event := events.get(timeout=LIMIT_S), ended):
            pass
        assert isinstance(event, ev.JobCancelled if is_busy else ev.JobDone)
    finally:
        child.close()
