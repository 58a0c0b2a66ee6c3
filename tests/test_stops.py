"""trt_tui.jobs.client: a stop is bounded whatever the child does: it is asked, then killed, and nothing waits for it"""

from __future__ import annotations

import queue
import subprocess
import textwrap
import threading
import time
from dataclasses import replace

import pytest

from tests.driven import LIMIT_S, isolate, save_mlp
from trt_tui.jobs import messages as m
from trt_tui.jobs.client import Client


@pytest.fixture(autouse=True)
def _isolated(monkeypatch, tmp_path):
    isolate(monkeypatch, tmp_path)


@pytest.fixture
def stuck(tmp_path):
    """A client whose child holds the interpreter in native code for an hour; its events, and its child."""
    script = tmp_path / "stuck.py"
    script.write_text(textwrap.dedent("""
        import ctypes, pathlib
        def load_data():
            pathlib.Path(__file__).with_suffix('.started').touch()
            ctypes.PyDLL(None).sleep(3600)
            yield {}
    """))
    events: queue.Queue[m.Event] = queue.Queue()
    client = Client(events.put)
    client.send(m.Open(replace(save_mlp(tmp_path), data=str(script))))
    deadline = time.monotonic() + LIMIT_S
    while not script.with_suffix(".started").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    yield client, events
    client.close()


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
    assert seconds <= 1.5, "with what follows it is within 2 s"
    over()
    seen = []
    while not isinstance((event := events.get(timeout=LIMIT_S)), m.Cancelled):
        seen.append(event)
    assert event.job == 1 and not any(isinstance(one, m.Died | m.Failed) for one in seen)
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
