"""trt_tui.jobs.lifeline: a child and all it has started go with the program, and what it has started goes with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.driven import LIMIT_S, DrivenSession, isolate, save_mlp
from trt_tui.jobs import messages as m

BUSY = {
    "native code that holds the interpreter": "ctypes.PyDLL(None).sleep(3600)",
    "one bytecode that takes for ever": "sum(itertools.repeat(0))",
    "a loop": "while True: pass",
    "signals ignored": "[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15, 29)]; ctypes.PyDLL(None).sleep(3600)",
}


@pytest.fixture(autouse=True)
def _isolated(monkeypatch, tmp_path):
    isolate(monkeypatch, tmp_path)


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


def ids(path: Path) -> list[int]:
    """The process ids that a script has written down."""
    deadline = time.monotonic() + LIMIT_S
    while not path.with_suffix(".ids").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return [int(word) for word in path.with_suffix(".ids").read_text().split()]


def gone(pid: int) -> bool:
    """Whether a process ends, within the limit."""
    deadline = time.monotonic() + LIMIT_S / 4
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


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


FORKS = "other = os.fork() or time.sleep(3600)"
"""A fork holds all that its parent had open, the pipe too."""


@pytest.mark.parametrize("starts", [STARTS, FORKS])
def test_what_a_child_has_started_goes_with_it_and_its_death_is_reported(tmp_path, starts):
    data = script(tmp_path, starts=starts, then="os.kill(os.getpid(), signal.SIGSEGV)")
    driven = DrivenSession(replace(save_mlp(tmp_path), data=str(data)), tmp_path)
    try:
        driven.start()
        assert driven.until_type(m.Died).exit_code == -signal.SIGSEGV
        assert gone(ids(data)[1])
    finally:
        driven.close()
