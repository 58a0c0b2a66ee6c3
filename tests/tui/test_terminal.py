"""The program in a real terminal, from the command to the saved session: tmux types, and reads the screen."""

import contextlib
import fcntl
import json
import math
import os
import select
import shlex
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import termios
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import psutil
import pytest
from rich.ansi import AnsiDecoder
from rich.console import Console

from tests import ROOT, networks
from tests.cli.test_hostile_names import hostile_mlp
from tests.driven import LIMIT_S
from trt_tui.tui.state.marks import RUNNING_MARK

pytestmark = [pytest.mark.terminal, pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")]

SLOW = 5000
"""Bytes a second."""

PROGRAM = f"{shlex.quote(sys.executable)} -m trt_tui"


def until(happened: Callable[[], object], what: str, shown: Callable[[], str] = str) -> None:
    end = time.monotonic() + 2 * LIMIT_S
    while not happened():
        assert time.monotonic() < end, f"never {what}:\n{shown()}"
        time.sleep(0.1)


class Shell:
    """An interactive shell in a tmux window."""

    def __init__(self, folder: Path, size: tuple[int, int] = (80, 24), term: str = "screen-256color") -> None:
        self.name = f"trt-tui-{uuid.uuid4().hex[:8]}"
        environment = {
            "XDG_STATE_HOME": folder / "state",
            "XDG_CACHE_HOME": folder / "cache",
            "OMP_NUM_THREADS": "2",
            "PYTHONPATH": ROOT,
            "TERM": term,
            "LC_ALL": "C.UTF-8",
            "PS1": "ready> ",
        }
        settings = " ".join(f"{key}={shlex.quote(str(value))}" for key, value in environment.items())
        self.tmux(
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            str(size[0]),
            "-y",
            str(size[1]),
            "-c",
            str(folder),
            f"env -u COLUMNS -u LINES {settings} bash --norc --noprofile -i",
        )  # readline sets both
        self.wait_for("ready>")

    def tmux(self, *arguments: str) -> str:
        return subprocess.run(
            ("tmux", "-u", "-L", self.name, *arguments),
            check=True,
            text=True,
            encoding="utf-8",
            capture_output=True,
            timeout=20,
        ).stdout

    def type(self, line: str) -> None:
        self.tmux("send-keys", "-l", line)
        self.keys("Enter")

    def run(self, words: str, rest: str = "") -> None:
        """Starts the program on a clear screen; the shell tells how it ended."""
        self.type(f"clear; {PROGRAM} {words} {rest}; echo code $?")

    def keys(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    @property
    def screen(self) -> str:
        return self.tmux("capture-pane", "-p")

    def wait_for(self, *texts: str) -> str:
        """The screen, once it shows all of the texts."""
        looks: list[str] = []

        def shows() -> bool:
            looks.append(self.screen)
            return all(text in looks[-1] for text in texts)

        until(shows, f"showed {texts}", lambda: looks[-1])
        return looks[-1]

    @property
    def in_alternate_screen(self) -> bool:
        return self.tmux("display-message", "-p", "#{alternate_on}").strip() == "1"

    def app(self) -> psutil.Process:
        """The process of the app, the shell's child."""
        shell = psutil.Process(int(self.tmux("display-message", "-p", "#{pane_pid}")))
        return next(one for one in shell.children(recursive=True) if one.cmdline()[1:3] == ["-m", "trt_tui"])

    def close(self) -> None:
        subprocess.run(("tmux", "-L", self.name, "kill-server"), capture_output=True, timeout=20)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Callable[..., Shell]]:
    opened: list[Shell] = []

    def start(**options) -> Shell:
        opened.append(Shell(tmp_path, **options))
        return opened[-1]

    onnx.save(networks.mlp(), tmp_path / "mlp.onnx")
    yield start
    for one in opened:
        one.close()


MLP = "mlp.onnx --no-preview"


@pytest.mark.parametrize(
    ("no_terminal", "term", "why"),
    [
        ((0,), "xterm", "stdin is not a terminal"),
        ((1,), "xterm", "stdout is not a terminal"),
        ((), "dumb", "TERM is dumb"),
    ],
)
def test_it_says_why_it_does_not_open(run, monkeypatch, no_terminal, term, why):
    monkeypatch.setattr(os, "isatty", lambda descriptor: descriptor not in no_terminal)
    monkeypatch.setenv("TERM", term)
    code, out, err = run("demo")
    assert code == 2 and why in err and "Next: " in err and not out


def test_it_is_stopped_gone_on_with_ended_by_signals_and_resumed(shell, tmp_path):
    one = shell()
    one.run(MLP, "<&-")
    one.wait_for("stdin is not a terminal", "code 2")
    one.run(MLP, "2>log")
    one.wait_for(" INT8  ", "PASS")
    one.tmux("send-keys", "-H", "e9", "ff", "c3")  # no UTF-8
    one.keys("Escape")  # an arrow key in two pieces
    time.sleep(0.3)
    one.keys("[", "B")
    one.keys("y")
    one.wait_for("copied", "c0 = INT8")
    one.keys("Space")
    one.wait_for("c1 · 1 FP32")
    one.keys("e")
    one.wait_for("enter chooses the format")
    one.keys("Enter")
    time.sleep(0.3)  # keys that come at once answer one question
    one.keys("Enter")
    written = tmp_path / "mlp.precision.json"
    until(written.exists, "exported")
    assert [move["precision"] for move in json.loads(written.read_text())["moves"]] == ["fp32"]
    one.wait_for("Wrote")
    one.wait_for("f1 keys")
    one.keys("?")
    one.wait_for("Move up")
    one.keys("C-z")
    one.wait_for("Stopped")
    assert not one.in_alternate_screen
    one.type("fg")
    one.wait_for("Move up")
    one.keys("Escape")
    until(lambda: "Move up" not in one.screen, "closed the help")
    for number in (signal.SIGSTOP, signal.SIGTSTP):
        app = one.app()
        app.send_signal(number)
        until(lambda app=app: app.status() == psutil.STATUS_STOPPED, "stopped")
        one.keys("Enter")
        one.type("clear; fg; echo code $?")
        one.wait_for(" INT8  ", "f1 keys")
        assert one.in_alternate_screen
    for number in (signal.SIGTERM, signal.SIGHUP):
        one.wait_for("c1 · 1 FP32")
        app = one.app()
        child = app.children()
        assert one.in_alternate_screen and child
        app.send_signal(number)
        one.wait_for(f"code {128 + number}")
        assert not one.in_alternate_screen
        one.type("echo it is $((20 + 3))")
        one.wait_for("it is 23")  # what is typed is echoed and run: the terminal's modes are back
        until(lambda child=child: not any(process.is_running() for process in child), "ended the worker")
        if number is signal.SIGTERM:
            assert (tmp_path / "log").read_text() == ""
            one.run(MLP)
            one.wait_for(" INT8  ", "Resumed: c1")


def own_terminal() -> None:
    """Makes standard input the controlling terminal, whose loss is not ignored as under nohup."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@contextlib.contextmanager
def on_a_line(folder: Path, size: tuple[int, int], **variables: str) -> Iterator[tuple[subprocess.Popen, int]]:
    """The app on a pseudo-terminal of some rows and columns that is its controlling one, and our end of it."""
    ours, its = os.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    onnx.save(networks.mlp(), folder / "mlp.onnx")
    environment = {key: value for key, value in os.environ.items() if key not in ("LINES", "COLUMNS")}
    environment |= {"XDG_STATE_HOME": str(folder), "XDG_CACHE_HOME": str(folder), "TERM": "xterm-256color"}
    environment |= variables
    app = subprocess.Popen(
        [sys.executable, "-m", "trt_tui", str(folder / "mlp.onnx"), "--no-preview", "--whatif-samples", "4"],
        stdin=its,
        stdout=its,
        stderr=its,
        env=environment,
        start_new_session=True,
        preexec_fn=own_terminal,
    )
    os.close(its)
    try:
        yield app, ours
    finally:
        app.kill()
        app.wait()
        with contextlib.suppress(OSError):
            os.close(ours)


def read(ours: int) -> bytes:
    """What was written within a tenth of a second."""
    if not select.select([ours], [], [], 0.1)[0]:
        return b""
    with contextlib.suppress(OSError):  # Linux tells so that the other side is closed
        return os.read(ours, 1 << 16)
    return b""


def read_until_values(read_some: Callable[[], bytes]) -> bytes:
    """What is written up to the first values."""
    written, end = b"", time.monotonic() + LIMIT_S
    while b"PASS" not in written and b"FAIL" not in written:
        assert time.monotonic() < end and len(written) < 1_000_000, written[-500:]
        written += read_some()
    return written


@pytest.mark.parametrize("size", [(0, 0), (24, 0)])
def test_a_terminal_that_tells_no_size_is_drawn_on_and_left_by_a_key_or_by_its_loss(tmp_path, monkeypatch, size):
    """As over a serial line, or from a program that made the terminal and did not size it, also under nohup."""
    if is_lost := size == (24, 0):
        monkeypatch.setattr(sys.modules[__name__], "own_terminal", lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    with on_a_line(tmp_path, size) as (app, ours):
        written = read_until_values(lambda: read(ours))
        if is_lost:
            os.close(ours)
            assert app.wait(LIMIT_S) == 128 + signal.SIGHUP
            return
        os.write(ours, b"q")
        end = time.monotonic() + LIMIT_S
        while app.poll() is None and time.monotonic() < end and len(written) < 1_000_000:
            written += read(ours)
        assert app.wait(5) == 0, written[-500:]
    assert b"\x1b[m" in written[: written.rindex(b"\x1b[?1049l")][-200:], "the shell gets its own colours back"
    assert len(written) < 1_000_000


def test_it_is_used_over_a_line_of_5_kilobytes_a_second_and_leaves_no_process_when_that_is_lost(tmp_path):
    """What makes keys slow on such a line are the bytes of a move, of a page and of going back."""
    with on_a_line(tmp_path, (24, 80), COLORTERM="truecolor") as (app, ours):

        def drawn(rate: float, quiet_s: float = 0.4, *, waits: bool = False) -> tuple[bytes, float]:
            """What is written, read at so many bytes a second, until that pauses; and seconds up to its last byte.

            Args:
                waits: Until the first byte, since others may have the processor.
            """
            written, begun = b"", time.monotonic()
            last = begun
            while (now := time.monotonic()) < begun + LIMIT_S and (now < last + quiet_s or waits and not written):
                if select.select([ours], [], [], 0.05)[0]:
                    block = os.read(ours, 200)
                    written, last = written + block, now
                    time.sleep(len(block) / rate)
            return written, last - begun

        def pressed(key: str, rate: float = math.inf) -> tuple[int, float]:
            os.write(ours, key.encode())
            written, seconds = drawn(rate, waits=True)
            return len(written), seconds

        opened = read_until_values(lambda: drawn(SLOW)[0]) + drawn(SLOW, 1.0)[0]
        assert opened.startswith(b"opening mlp.onnx"), "said before the app is loaded"
        # Details of a row that arrive late are drawn at its first visits.
        moves = [pressed(key, SLOW) for key in "jjkjkjkjkjkjk"]
        pages = {key: (pressed(key), pressed("\x1b")) for key in "e?85"}
        for _ in range(100):  # until the queue of its writer is full, as nobody reads
            os.write(ours, b"jk")
            time.sleep(0.01)
        child = psutil.Process(app.pid).children()
        os.close(ours)
        assert child and app.wait(LIMIT_S) == 128 + signal.SIGHUP
        until(lambda: not any(process.is_running() for process in child), "ended the worker")
    assert 0 < statistics.median(count for count, _ in moves) <= 768, moves
    assert min(seconds for _, seconds in moves) < 0.5, moves  # the least, since others may have the processor
    assert all(0 < count <= 8000 for both in pages.values() for count, _ in both), pages


def test_what_is_written_cell_by_cell_is_what_a_repaint_shows_and_hostile_names_reach_no_terminal(shell, tmp_path):
    onnx.save(hostile_mlp(), tmp_path / "net.onnx")
    one = shell(term="xterm-256color")
    for option in ("set-clipboard", "allow-rename"):
        one.tmux("set-option", "-g", option, "on")

    def drawn() -> list[list[tuple]]:
        """The cells of the screen with their colours, of blanks that behind them, once it stands still."""
        shown: list[str] = []
        until(
            lambda: shown.append(one.tmux("capture-pane", "-p", "-e")) or shown[-10:] == shown[-1:] * 10, "stood still"
        )
        lines = [
            [
                (mark, style.bgcolor if mark == " " else style)
                for text, style, _ in line.render(Console(), end="")
                for mark in text
            ]
            for line in AnsiDecoder().decode(shown[-1])
        ]
        for cells in lines:  # tmux leaves out cells at the end of a line that were erased instead of written
            while cells and cells[-1][0] == " ":
                cells.pop()
        return lines

    one.run(f"{MLP} --whatif-samples 4")
    one.wait_for(" INT8  ", "PASS")
    for keys, shown in ((("Space",), "c1 · 1 FP32"), (("t",), "Worst"), (("c",), "esc close")):
        one.keys(*keys)
        one.wait_for(shown)
        before = drawn()
        one.keys("C-l")
        pairs = list(zip(before, drawn(), strict=True))
        differing = [number for number, (cells, repainted) in enumerate(pairs) if cells != repainted]
        for cells, repainted in (pairs[number] for number in differing):
            # Only the line of the running jobs may differ: a job that ends meanwhile changes its words.
            words, repainted_words = ("".join(mark for mark, _ in line) for line in (cells, repainted))
            assert RUNNING_MARK in {*words, *repainted_words} and words != repainted_words, words
    one.keys("Escape")
    one.wait_for("f1 keys")
    one.tmux("resize-window", "-x", "120", "-y", "40")
    one.wait_for("4 Configs", "f1 keys")
    assert len(one.screen.splitlines()) == 40
    one.keys("q")
    one.wait_for("code 0")
    one.run("net.onnx --no-preview")
    one.wait_for("random inputs", "x1b]0;owned")
    one.keys("Down", "Down", "Down", "y")
    one.wait_for("copied")
    assert "owned" not in one.tmux("display-message", "-p", "#{pane_title} #{window_name}")
    buffers = subprocess.run(("tmux", "-L", one.name, "show-buffer"), capture_output=True, text=True).stdout
    assert "owned" not in buffers or "\\x1b" in buffers
