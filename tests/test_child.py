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
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.jobs import client, previewing
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.client import Client, log_path
from trt_tui.jobs.orders import Order, Subject
from trt_tui.jobs.previewer import Previewer

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
    path.write_text(textwrap.dedent(f"""
        import ctypes, itertools, os, pathlib, signal, subprocess, sys, time
        def load_data():
            {starts}
            told = pathlib.Path(__file__).with_suffix('.new')
            told.write_text(f'{{os.getpid()}} {{other}}')
            told.rename(told.with_suffix('.ids'))
            {then}
            yield {{}}
    """))
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
    program = subprocess.Popen([sys.executable, "-m", "trt_tui", "compare", options.model, "--data", str(data)],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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
from trt_tui.jobs.lifeline import tie
tie(int(sys.argv[1]))
print('lived on')
"""
    reading, writing = os.pipe()
    os.close(writing)
    run = subprocess.run([sys.executable, "-c", code, str(reading)], pass_fds=(reading,), start_new_session=True,
                         capture_output=True, text=True)
    os.close(reading)
    assert run.returncode == -signal.SIGKILL and not run.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the interpreter must get to run")
def test_an_order_is_wanted_before_it_can_be_taken_up(monkeypatch):
    class Inbox(list):
        def __setitem__(self, place, orders):
            assert [order.number for order in orders] == [previewer.wanted]
            super().__setitem__(place, orders)

    previewer, inbox = Previewer(), Inbox()
    order = Order(3, Subject("network.onnx", ""), PrecisionConfig(), {}, {})
    monkeypatch.setattr(os, "_exit", lambda code: None)
    previewer.listen(SimpleNamespace(recv=Mock(side_effect=[order, EOFError])), threading.Event(), inbox)
    assert inbox == [order]


def test_a_previewer_that_is_held_does_nothing_takes_any_order_and_goes_with_its_program(tmp_path):
    asked, told = previewing._Asked(), threading.Event()
    order = Order(1, Subject(str(tmp_path / "none.onnx"), ""), PrecisionConfig(),
                  dict.fromkeys(map(str, range(99999)), 1.0), {})
    asked.hold(True)
    asked.send(order, told.set, 0)  # more than a pipe holds
    process = psutil.Process(asked._process.process.pid)
    assert in_time(lambda: process.status() == psutil.STATUS_STOPPED)
    used = process.cpu_times()
    assert not told.wait(0.1) and process.cpu_times() == used and not asked.done(1)
    asked.hold(False)
    assert told.wait(LIMIT_S) and asked.taken(1).refused
    asked.hold(True)
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
    assert driven.until_type(ev.Died).exit_code == -signal.SIGSEGV
    assert gone(ids(data)[1])


def test_a_killed_child_is_reported_and_the_session_goes_on(session, tmp_path):
    driven = session(save_resnet(tmp_path, samples=64))
    driven.start()
    driven.until(lambda e: isinstance(e, ev.VerdictMeasured) and e.run == "int8")
    known, calibration = driven.measured("int8").verdict, driven.calibration
    os.kill(driven.child_pid, signal.SIGKILL)
    died = driven.until_type(ev.Died)
    assert died.exit_code == -signal.SIGKILL
    assert not driven.busy and driven.error is died
    assert driven.measured("int8").verdict.samples >= known.samples and driven.child_pid is None
    driven.automatic = False
    seen = len(driven.seen)
    driven.toggle([driven.outline.groups[0]])
    driven.compare(layers=False)
    driven.until_idle()
    assert driven.measured("config").verdict.samples == 48
    assert not of(driven.seen[seen:], ev.Opened, ev.Calibrated, ev.Failed)
    assert driven.calibration is calibration


def test_a_request_that_meets_a_dead_child_is_answered(session, tmp_path):
    driven = session(save_mlp(tmp_path), automatic=False).settled()
    os.kill(driven.child_pid, signal.SIGKILL)
    while driven.child_pid is not None:
        time.sleep(0.01)
    driven.compare(layers=False)
    driven.until_type(ev.Died)
    driven.until_idle()
    assert driven.measured("int8").verdict.samples == 12


def test_a_stop_leaves_a_child_that_heeds_it_alive(session, tmp_path):
    driven = session(save_resnet(tmp_path, samples=400))
    driven.start()
    driven.until(lambda e: isinstance(e, ev.VerdictMeasured))
    pid = driven.child_pid
    driven.stop()
    driven.until_type(ev.Cancelled)
    assert not driven.busy and driven.child_pid == pid
    driven.build()
    driven.until_type(ev.ExportedExecuted)


STUCK = "ctypes.PyDLL(None).sleep(3600)"


def test_a_stuck_child_is_killed_after_the_grace_and_reported_as_stopped(session, tmp_path):
    data = script(tmp_path, starts=STARTS, then=STUCK)
    driven = session(replace(save_mlp(tmp_path), data=str(data)))
    driven.start()
    pid, other = ids(data)
    driven.stop()
    driven.until_type(ev.Cancelled)
    assert gone(pid) and gone(other) and not driven.busy and driven.child_pid is None
    assert not of(driven.seen, ev.Died) and driven.error is None


def test_what_libraries_print_goes_to_the_log(session, tmp_path, capfd):
    script = tmp_path / "noisy.py"
    script.write_text(textwrap.dedent("""
        import os
        import numpy as np
        def load_data():
            os.write(1, b'native to stdout\\n')
            os.write(2, b'native to stderr\\n')
            print('from python')
            for i in range(8):
                yield {'x': np.full((4, 16), i, np.float32)}
    """))
    session(replace(save_mlp(tmp_path), data=str(script)), automatic=False).settled()
    text = log_path().read_text()
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
    driven.until(lambda e: isinstance(e, ev.VerdictMeasured))
    pid = driven.child_pid
    driven.close()
    assert gone(pid)


@pytest.fixture
def stuck(tmp_path):
    """A client whose child holds the interpreter in native code for an hour, and its events."""
    data = script(tmp_path, starts=STARTS, then=STUCK)
    events: queue.Queue[ev.Event] = queue.Queue()
    client = Client(events.put)
    client.send(rq.Open(replace(save_mlp(tmp_path), data=str(data))))
    ids(data)
    yield client, events
    client.close()


def test_a_stop_is_answered_though_the_next_process_does_not_read_yet(tmp_path, monkeypatch):
    """Requests of more than a pipe holds wait for a process that starts; nobody waits for them"""
    popen = subprocess.Popen
    monkeypatch.setattr(client.subprocess, "Popen", lambda command, **more: popen(["sleep", "60"], **more))
    monkeypatch.setattr(client, "GRACE_S", 0.1)
    events: queue.Queue[ev.Event] = queue.Queue()
    large = rq.WriteText(str(tmp_path / "out.txt"), "x" * (1 << 20))
    asking = Client(events.put, lambda: [large])
    since = time.monotonic()
    jobs = [asking.send(large) for _ in range(3)]
    asking.stop(jobs[:1])
    assert events.get(timeout=LIMIT_S) == ev.Cancelled(jobs[0]) and time.monotonic() - since < 1
    asking.stop(jobs[1:])
    assert [events.get(timeout=LIMIT_S) for _ in jobs[1:]] == list(map(ev.Cancelled, jobs[1:]))
    asking.close()
    assert events.empty()


def until_ended(events: queue.Queue[ev.Event], *jobs: int) -> list[ev.Event]:
    """All events until some jobs have ended, none of which tells of a death."""
    seen: list[ev.Event] = []
    while not set(jobs) <= {event.job for event in of(seen, ev.Done, ev.Cancelled)}:
        seen.append(events.get(timeout=LIMIT_S))
    assert not of(seen, ev.Died, ev.Failed)
    return seen


def test_what_is_asked_between_a_stop_and_the_kill_is_answered_by_a_new_child(stuck, tmp_path):
    client, events = stuck
    client.stop()
    after = client.send(rq.Open(save_mlp(tmp_path)))
    seen = until_ended(events, 1, after)
    assert [(type(one), one.job) for one in of(seen, ev.Cancelled, ev.Done)] == [(ev.Cancelled, 1), (ev.Done, after)]


def test_a_stop_is_told_when_the_grace_is_over_though_the_process_takes_its_time_to_end(stuck, monkeypatch):
    client, events = stuck
    ended = threading.Event()
    wait = client._child.process.wait
    monkeypatch.setattr(client._child.process, "wait", lambda *_: ended.wait(LIMIT_S) and wait())
    timers = []
    monkeypatch.setattr(threading, "Timer", lambda seconds, function, arguments: timers.append(
        (seconds, lambda: function(*arguments))) or threading.Thread())
    client.stop()
    (seconds, over), = timers
    assert seconds <= 1.0
    over()
    assert [event.job for event in of(until_ended(events, 1), ev.Cancelled)] == [1]
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
