"""The app in a real terminal whose shell stops it, goes on with it, ends it and leads its streams elsewhere."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import onnx
import psutil
import pytest

from tests import networks
from tests.test_hostile_names import hostile_mlp
from tests.test_tui_terminal import Terminal

pytestmark = [pytest.mark.terminal,
              pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")]

PROGRAM = f"{shlex.quote(sys.executable)} -m trt_tui"


class Shell(Terminal):
    """An interactive shell in a tmux window."""

    def __init__(self, folder: Path, size: tuple[int, int] = (80, 24)) -> None:
        self.name = f"trt-tui-shell-{os.getpid()}-{time.monotonic_ns()}"
        environment = {"XDG_STATE_HOME": folder / "state", "XDG_CACHE_HOME": folder / "cache", "OMP_NUM_THREADS": "2",
                       "PYTHONPATH": Path(__file__).parents[1], "TERM": "screen-256color", "LC_ALL": "C.UTF-8",
                       "PS1": "ready> "}
        settings = " ".join(f"{key}={shlex.quote(str(value))}" for key, value in environment.items())
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", str(size[0]), "-y", str(size[1]), "-c", str(folder),
                  f"env {settings} bash --norc --noprofile -i")
        self.wait_for("ready>")

    def type(self, line: str) -> None:
        self.tmux("send-keys", "-l", line)
        self.keys("Enter")

    @property
    def in_alternate_screen(self) -> bool:
        return self.tmux("display-message", "-p", "#{alternate_on}").strip() == "1"

    def app(self) -> psutil.Process:
        """The process of the app, the shell's child."""
        shell = psutil.Process(int(self.tmux("display-message", "-p", "#{pane_pid}")))
        return next(one for one in shell.children(recursive=True) if one.cmdline()[1:3] == ["-m", "trt_tui"])


@pytest.fixture
def shell(tmp_path):
    opened = []

    def start(**options) -> Shell:
        opened.append(Shell(tmp_path, **options))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def until(happened, what: str) -> None:
    end = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < end, f"never {what}"
        time.sleep(0.1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_restores_the_terminal_and_saves_the_session(shell, number):
    one = shell()
    one.type(f"{PROGRAM} demo --no-preview --whatif-samples 4; echo code $?")
    one.wait_for("INT8 all", "FAIL")
    one.keys("Space")
    one.wait_for("config c1")
    app = one.app()
    child = app.children()
    assert one.in_alternate_screen and child
    app.send_signal(number)
    one.wait_for(f"code {128 + number}")
    assert not one.in_alternate_screen
    one.type("echo it is $((20 + 3))")
    one.wait_for("it is 23")  # what is typed is echoed and run: the terminal's modes are back
    until(lambda: not any(process.is_running() for process in child), "ended the worker")
    one.type(f"clear; {PROGRAM} demo --no-preview --whatif-samples 4; echo code $?")
    one.wait_for("Resumed: c1")
    one.keys("q")
    one.wait_for("code 0")


def test_it_is_stopped_and_gone_on_with(shell):
    one = shell()
    one.type(f"{PROGRAM} demo --no-preview --whatif-samples 4; echo code $?")
    one.wait_for("INT8 all", "FAIL")
    one.keys("C-z")
    one.wait_for("Stopped")
    assert not one.in_alternate_screen
    one.type("fg")
    one.wait_for("INT8 all", "FAIL", "? keys")
    for number in (signal.SIGSTOP, signal.SIGTSTP):
        app = one.app()
        app.send_signal(number)
        until(lambda app=app: app.status() == psutil.STATUS_STOPPED, "stopped")
        one.keys("Enter")
        one.type("clear; fg")
        one.wait_for("INT8 all", "FAIL", "? keys")
        assert one.in_alternate_screen
    one.keys("Space")
    one.wait_for("config c1")
    one.keys("?")
    one.wait_for("Move up")
    one.keys("C-z")
    one.wait_for("Stopped")
    one.type("fg")
    one.wait_for("Move up")
    one.keys("Escape")
    until(lambda: "Move up" not in one.screen, "closed the help")
    one.keys("q")
    until(lambda: not one.in_alternate_screen, "left")


def test_it_draws_where_stderr_goes_elsewhere(shell, tmp_path):
    one = shell()
    one.type(f"{PROGRAM} demo --no-preview --whatif-samples 4 2>log; echo code $?")
    one.wait_for("INT8 all", "FAIL")
    one.keys("q")
    one.wait_for("code 0")
    assert (tmp_path / "log").read_text() == ""


@pytest.mark.parametrize(("around", "why"), [
    ("{} </dev/null", "stdin is no terminal"), ("{} | cat", "stdout is no terminal"),
    ("TERM=dumb {}", "TERM is dumb"), ("{} <&-", "stdin is no terminal")])
def test_it_says_why_it_does_not_open(shell, around, why):
    one = shell()
    one.type(around.format(f"{PROGRAM} demo") + "; echo code ${PIPESTATUS[0]}")
    screen = one.wait_for("code 2")
    assert why in screen and "needs a terminal" in screen and not one.in_alternate_screen


def test_bytes_that_are_no_utf8_are_no_key(shell):
    one = shell()
    one.type(f"{PROGRAM} demo --no-preview --whatif-samples 4; echo code $?")
    one.wait_for("INT8 all", "FAIL")
    one.tmux("send-keys", "-H", "e9", "ff", "c3")
    time.sleep(0.5)
    one.keys("Space")
    one.wait_for("config c1")
    one.keys("q")
    one.wait_for("code 0")


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_hostile_names_reach_no_terminal(shell, tmp_path, size):
    onnx.save(hostile_mlp(), tmp_path / "net.onnx")
    one = shell(size=size)
    one.tmux("set-option", "-g", "set-clipboard", "on")
    one.tmux("set-option", "-g", "allow-rename", "on")
    one.type(f"{PROGRAM} net.onnx; echo code $?")
    one.wait_for("random inputs", "x1b]0;owned")
    one.keys("Down", "Down", "Down", "y")
    one.wait_for("copied")
    one.keys("q")
    one.wait_for("code 0")
    one.type(f"clear; {PROGRAM} inspect net.onnx; echo code $?")
    one.wait_for("x1b]0;owned", "code 0")
    assert "owned" not in one.tmux("display-message", "-p", "#{pane_title} #{window_name}")
    buffers = subprocess.run(("tmux", "-L", one.name, "show-buffer"), capture_output=True, text=True).stdout
    assert "owned" not in buffers or "\\x1b" in buffers


@pytest.mark.parametrize("size", [(0, 0), (0, 80), (24, 0)])
def test_a_terminal_that_tells_no_size_is_drawn_on_and_left(tmp_path, size):
    """As over a serial line, or from a program that made the terminal and did not size it."""
    ours, its = os.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    onnx.save(networks.mlp(), tmp_path / "mlp.onnx")
    environment = {key: value for key, value in os.environ.items() if key not in ("LINES", "COLUMNS")}
    environment |= {"XDG_STATE_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "TERM": "xterm-256color"}
    app = subprocess.Popen([sys.executable, "-m", "trt_tui", str(tmp_path / "mlp.onnx")], stdin=its, stdout=its,
                           stderr=its, env=environment, start_new_session=True)
    os.close(its)
    written, end, asked = b"", time.monotonic() + 60, False
    try:
        while app.poll() is None and time.monotonic() < end and len(written) < 1_000_000:
            if select.select([ours], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):  # Linux tells so that the other side is closed
                    written += os.read(ours, 1 << 16)
            if not asked and b"INT8 all" in written:
                os.write(ours, b"q")
                asked = True
        assert asked and app.wait(5) == 0, written[-500:]
    finally:
        app.kill()
        app.wait()
        os.close(ours)
    assert len(written) < 1_000_000
