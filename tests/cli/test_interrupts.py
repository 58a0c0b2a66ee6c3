"""trt_tui.cli.interrupts: SIGTERM and SIGHUP stop every command as ctrl-C does, and what was measured is kept"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import ROOT
from tests.driven import LIMIT_S, save_mlp, stuck_data
from trt_tui.cli import interrupts

BOTH = [signal.SIGTERM, signal.SIGHUP]


@pytest.fixture
def program(tmp_path):
    """Starts commands on a network whose data wait for ever where ``stuck``, in a program that a test can signal."""
    started = []

    def start(*words, stuck: bool = True, ignored: tuple[int, ...] = (), code: str = ""):
        options = save_mlp(tmp_path)
        data = options.data
        if stuck:
            data = stuck_data(tmp_path)
        arguments = [str(word) for word in (words[0], options.model, *words[1:], "--data", data, "--batch", "4")]
        code = f"{code}\nfrom trt_tui.cli.main import main\nmain({arguments!r})"

        def set_signals() -> None:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)

        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=set_signals,
            cwd=ROOT,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


COMMANDS = {
    "compare": ["compare"],
    "search": ["search", "--tolerance", "sqnr>=10", "-o"],
    "build": ["build", "--precision", "int8", "-o"],
    "export": ["export", "--precision", "int8", "--format", "onnx", "-o"],
}


@pytest.mark.parametrize(("command", "number"), zip(COMMANDS, [signal.SIGINT, *BOTH, signal.SIGTERM], strict=True))
def test_every_command_ends_with_130_and_leaves_nothing(program, tmp_path, command, number):
    words = COMMANDS[command]
    process = program(*words, *([tmp_path / "out.onnx"] if words[-1] == "-o" else []))
    wait_for(tmp_path / "stuck.started")
    process.send_signal(number)
    shown, told = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130 and told.strip().endswith("Stopped.") and not shown, told
    assert not list(tmp_path.glob("*out*"))


SLOW_SHARES = """
import pathlib, time, trt_tui.cli.headless_session as headless
from trt_tui.jobs import events as ev
drain, whole = headless.Session.apply_event, []
def apply(self, event):
    drain(self, event)
    if isinstance(event, ev.ErrorSharesMeasured) and not whole:
        whole.append(event)
        pathlib.Path({told!r}).touch()
        time.sleep(60)
headless.Session.apply_event = apply
"""
"""Waits in the middle of a comparison, after the verdicts are known."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_what_a_comparison_has_measured_is_written(program, tmp_path, number):
    out, there, told_at = tmp_path / "out.json", tmp_path / "there.md", tmp_path / "shares"
    there.write_text("whole")
    process = program(
        "compare", "--json", out, "--markdown", there, stuck=False, code=SLOW_SHARES.format(told=str(told_at))
    )
    wait_for(told_at)
    process.send_signal(number)
    shown, told = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130 and "Stopped; " in told and "\nINT8 " in shown, told
    runs = json.loads(out.read_text())["runs"]
    assert all(run["outputs"] for run in runs.values())
    assert there.read_text() == "whole" and f"{there} is left as it was" in told


STUCK = """
import ctypes, pathlib, signal, trt_tui.cli.headless_session as headless
from trt_tui.files.writing import open_atomic_writer
def answer(*_):
    with open_atomic_writer({out!r}) as stream:
        stream.write(b'half')
        pathlib.Path({told!r}).touch()
        signal.pthread_sigmask(signal.SIG_BLOCK, (1, 2, 15))  # so that it does not return early
        ctypes.CDLL(None).sleep(3600)
headless.HeadlessSession.request_answer = answer
"""
"""Native code in the program itself that lets no signal handler of Python run."""


def test_native_code_in_the_program_is_ended_too_and_leaves_nothing(program, tmp_path):
    out, told_at = tmp_path / "out.onnx", tmp_path / "stuck"
    process = program(
        *f"export --precision fp16 --format onnx -o {out}".split(),
        stuck=False,
        code=STUCK.format(out=str(out), told=str(told_at)),
    )
    wait_for(told_at)
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130 and told.strip() == "Stopped."
    assert not list(tmp_path.glob("*out*")) and not list(tmp_path.glob(".*"))


def test_a_hangup_that_is_ignored_stays_ignored(program, tmp_path):
    process = program("build", "--precision", "int8", "-o", tmp_path / "t.onnx", ignored=(signal.SIGHUP,))
    wait_for(tmp_path / "stuck.started")
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)


@pytest.fixture
def restored():
    """Handlers as they were: those of a program that was interrupted are left in place."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *BOTH)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    interrupts._end_start_times.clear()


def test_interrupts_wait_for_what_is_being_finished_but_not_for_ever(monkeypatch, restored):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup may have started the tests
    with interrupts.raise_signals_as_interrupts():
        with interrupts.defer_interrupts():
            os.kill(os.getpid(), signal.SIGTERM)
        with interrupts.defer_interrupts():
            monkeypatch.setattr(interrupts, "MAX_END_S", 0.0)
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGHUP)
                time.sleep(1)


def test_the_second_of_two_interrupts_does_not_tear_what_the_first_began(restored):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with interrupts.raise_signals_as_interrupts():
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGHUP)
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.01)


def test_the_signals_are_left_to_an_app():
    before = {number: signal.getsignal(number) for number in BOTH}
    with interrupts.raise_signals_as_interrupts():
        assert signal.getsignal(signal.SIGTERM) is not before[signal.SIGTERM]
        interrupts.restore_signal_handlers()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert {number: signal.getsignal(number) for number in BOTH} == before
