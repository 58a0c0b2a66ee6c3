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

from tests import networks
from tests.driven import LIMIT_S
from tests.test_hostile_names import hostile_mlp
from trt_tui.tui.state.marks import DONE_MARK, RUNNING_MARK

pytestmark = [pytest.mark.terminal,
              pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")]

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
        environment = {"XDG_STATE_HOME": folder / "state", "XDG_CACHE_HOME": folder / "cache", "OMP_NUM_THREADS": "2",
                       "PYTHONPATH": Path(__file__).parents[1], "TERM": term, "LC_ALL": "C.UTF-8",
                       "PS1": "ready> "}
        settings = " ".join(f"{key}={shlex.quote(str(value))}" for key, value in environment.items())
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", str(size[0]), "-y", str(size[1]), "-c", str(folder),
                  f"env {settings} bash --norc --noprofile -i")
        self.wait_for("ready>")

    def tmux(self, *arguments: str) -> str:
        return subprocess.run(("tmux", "-u", "-L", self.name, *arguments), check=True, text=True, encoding="utf-8",
                              capture_output=True, timeout=20).stdout

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

    def line(self, start: str) -> str:
        """The line of the screen that starts so."""
        return next((line for line in self.screen.splitlines() if line.strip().startswith(start)), "")

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
DEMO = "demo --no-preview --whatif-samples 8"


def test_the_main_job(shell, tmp_path):
    one = shell()
    one.run(DEMO)
    screen = one.wait_for(" INT8  ", "FAIL", "█", "try")
    assert all(len(line) <= 80 for line in screen.splitlines()) and len(screen.splitlines()) == 24
    assert "PASS" in one.line("FP16  ") and "FAIL" in one.line("INT8  ")
    one.keys("t")
    one.wait_for("Worst first")
    until(lambda: "enc1/widen" in one.line(">█"), "had the worst on top", lambda: one.screen)
    one.keys("Space")
    one.wait_for("c1 · 1 FP32")
    one.keys("Down")
    until(lambda: "depthwise" in one.line(">"), "had the next below", lambda: one.screen)
    one.keys("Space")
    one.wait_for("c2 · 2 FP32")
    until(lambda: "PASS" in one.line("c2"), "met the target")
    one.keys("z")
    one.wait_for("c1 · 1 FP32")
    one.keys(".")
    one.wait_for("c2 · 2 FP32")
    one.keys("e")
    one.wait_for("enter chooses the format")
    one.keys("Enter")
    time.sleep(0.3)  # keys that come at once answer one question
    one.keys("Enter")
    written = tmp_path / "scenes.precision.json"
    until(written.exists, "exported")
    config = json.loads(written.read_text())
    raised = {name for move in config["moves"] if move.get("precision") == "fp32" for name in move["layers"]}
    assert {"/enc1/widen/conv/Conv", "/enc1/residual/depthwise/conv/Conv"} <= raised
    one.wait_for("enter closes this")
    one.keys("Enter")
    until(lambda: "enter closes this" not in one.screen, "closed the dialog", lambda: one.screen)
    one.keys("q")
    one.wait_for("code 0")


def test_a_broken_file_is_explained(shell, tmp_path):
    (tmp_path / "broken.onnx").write_bytes(b"no network")
    one = shell()
    one.run("broken.onnx")
    one.wait_for("is not a complete ONNX file")
    one.keys("Escape", "q")
    one.wait_for("code")


def test_a_signal_restores_the_terminal_and_saves_the_session(shell):
    one = shell()
    for number, shown in ((signal.SIGTERM, "PASS"), (signal.SIGHUP, "Resumed: c1")):
        one.run(MLP)
        one.wait_for(" INT8  ", shown)
        if number is signal.SIGTERM:
            one.keys("Space")
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


def test_it_is_stopped_and_gone_on_with(shell):
    one = shell()
    one.run(MLP)
    one.wait_for(" INT8  ", "PASS")
    one.keys("C-z")
    one.wait_for("Stopped")
    assert not one.in_alternate_screen
    one.type("fg")
    one.wait_for(" INT8  ", "f1 keys")
    for number in (signal.SIGSTOP, signal.SIGTSTP):
        app = one.app()
        app.send_signal(number)
        until(lambda app=app: app.status() == psutil.STATUS_STOPPED, "stopped")
        one.keys("Enter")
        one.type("clear; fg")
        one.wait_for(" INT8  ", "f1 keys")
        assert one.in_alternate_screen
    one.keys("Space")
    one.wait_for("c1 · 1 FP32")
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


def test_bytes_that_are_no_keys_change_nothing_and_it_draws_where_stderr_goes_elsewhere(shell, tmp_path):
    one = shell()
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
    one.keys("q")
    one.wait_for("code 0")
    assert (tmp_path / "log").read_text() == ""


def test_it_says_why_it_does_not_open(shell):
    one = shell()
    for around, why in (("{} </dev/null", "stdin is not a terminal"), ("{} | cat", "stdout is not a terminal"),
                        ("TERM=dumb {}", "TERM is dumb"), ("{} <&-", "stdin is not a terminal")):
        one.type("clear; " + around.format(f"{PROGRAM} demo") + "; echo code ${PIPESTATUS[0]}")
        one.wait_for(why, "terminal", "Next: ", "code 2")
        assert not one.in_alternate_screen
        one.type("clear")  # the next reason may be the same
        until(lambda: "code 2" not in one.screen, "cleared the screen")


def test_hostile_names_reach_no_terminal(shell, tmp_path):
    onnx.save(hostile_mlp(), tmp_path / "net.onnx")
    one = shell(size=(120, 40))
    one.tmux("set-option", "-g", "set-clipboard", "on")
    one.tmux("set-option", "-g", "allow-rename", "on")
    one.run("net.onnx --no-preview")
    one.wait_for("random inputs", "x1b]0;owned")
    one.keys("Down", "Down", "Down", "y")
    one.wait_for("copied")
    one.keys("q")
    one.wait_for("code 0")
    one.run("inspect net.onnx")
    one.wait_for("x1b]0;owned", "code 0")
    assert "owned" not in one.tmux("display-message", "-p", "#{pane_title} #{window_name}")
    buffers = subprocess.run(("tmux", "-L", one.name, "show-buffer"), capture_output=True, text=True).stdout
    assert "owned" not in buffers or "\\x1b" in buffers


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
    app = subprocess.Popen([sys.executable, "-m", "trt_tui", str(folder / "mlp.onnx"), "--no-preview",
                            "--whatif-samples", "4"], stdin=its, stdout=its, stderr=its, env=environment,
                           start_new_session=True, preexec_fn=own_terminal)
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


@pytest.mark.parametrize("size", [(0, 0), (24, 0)])
def test_a_terminal_that_tells_no_size_is_drawn_on_and_left(tmp_path, size):
    """As over a serial line, or from a program that made the terminal and did not size it."""
    with on_a_line(tmp_path, size) as (app, ours):
        written, end, asked = b"", time.monotonic() + LIMIT_S, False
        while app.poll() is None and time.monotonic() < end and len(written) < 1_000_000:
            written += read(ours)
            if not asked and b"PASS" in written:
                os.write(ours, b"q")
                asked = True
        assert asked and app.wait(5) == 0, written[-500:]
    assert b"\x1b[m" in written[:written.rindex(b"\x1b[?1049l")][-200:], "the shell gets its own colours back"
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

        opened, end = b"", time.monotonic() + LIMIT_S
        while b"PASS" not in opened and b"FAIL" not in opened:
            assert time.monotonic() < end, opened[-500:]
            opened += drawn(SLOW)[0]
        opened += drawn(SLOW, 1.0)[0]
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


def test_the_app_ends_without_its_terminal_also_where_hangups_are_ignored(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "own_terminal", lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    with on_a_line(tmp_path, (24, 80)) as (app, ours):
        opened, end = b"", time.monotonic() + LIMIT_S
        while b"PASS" not in opened and b"FAIL" not in opened:
            assert time.monotonic() < end, opened[-500:]
            opened += read(ours)
        os.close(ours)
        assert app.wait(LIMIT_S) == 128 + signal.SIGHUP


def test_what_is_written_cell_by_cell_is_what_a_whole_repaint_shows(shell):
    one = shell(term="xterm-256color")

    def drawn() -> list[list[tuple]]:
        """The cells of the screen with their colours, of blanks that behind them, once it stands still."""
        shown: list[str] = []
        until(lambda: shown.append(one.tmux("capture-pane", "-p", "-e")) or shown[-10:] == shown[-1:] * 10,
              "stood still")
        lines = [[(mark, style.bgcolor if mark == " " else style)
                  for text, style, _ in line.render(Console(), end="") for mark in text]
                 for line in AnsiDecoder().decode(shown[-1])]
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
            assert {RUNNING_MARK, DONE_MARK} & {*words, *repainted_words} and words != repainted_words, words
