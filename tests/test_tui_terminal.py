"""The program in a real terminal, from the command to the saved session: trt_tui.tui.app through tmux."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.terminal,
              pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")]

PATIENCE_S = 120


class Terminal:
    """One program in a tmux window of its own."""

    def __init__(self, folder: Path, *arguments: str, size: tuple[int, int] = (80, 24)) -> None:
        self.name = f"trt-tui-{uuid.uuid4().hex[:8]}"
        program = shlex.join((sys.executable, "-m", "trt_tui", *arguments))
        environment = {"XDG_STATE_HOME": folder / "state", "XDG_CACHE_HOME": folder / "cache", "OMP_NUM_THREADS": "2",
                       "PYTHONPATH": Path(__file__).parents[1], "TERM": "screen-256color", "LC_ALL": "C.UTF-8"}
        settings = " ".join(f"{key}={shlex.quote(str(value))}" for key, value in environment.items())
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", str(size[0]), "-y", str(size[1]),
                  f"env {settings} {program}; echo code $?; sleep 600")

    def tmux(self, *arguments: str) -> str:
        return subprocess.run(("tmux", "-u", "-L", self.name, *arguments), check=True, text=True, encoding="utf-8",
                              capture_output=True, timeout=20).stdout

    def keys(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    @property
    def screen(self) -> str:
        return self.tmux("capture-pane", "-p")

    def wait_for(self, *texts: str) -> str:
        """The screen, once it shows all of the texts."""
        end = time.monotonic() + PATIENCE_S
        while not all(text in (screen := self.screen) for text in texts):
            assert time.monotonic() < end, f"never saw {texts} in:\n{screen}"
            time.sleep(0.1)
        return screen

    def close(self) -> None:
        subprocess.run(("tmux", "-L", self.name, "kill-server"), capture_output=True, timeout=20)


@pytest.fixture
def demo(tmp_path) -> Iterator:
    """Opens the bundled network in a terminal, again and again."""
    terminals: list[Terminal] = []

    def start() -> Terminal:
        terminals.append(Terminal(tmp_path, "demo", "--no-preview", "--whatif-samples", "8"))
        return terminals[-1]

    yield start
    for terminal in terminals:
        terminal.close()


def test_from_the_verdict_to_a_saved_session(demo):
    terminal = demo()
    screen = terminal.wait_for("INT8 all", "FAIL", "█", "try")
    assert "PASS" in next(line for line in screen.splitlines() if "FP16 all" in line)
    assert all(len(line) <= 80 for line in screen.splitlines()) and len(screen.splitlines()) == 24
    terminal.keys("Space")
    terminal.wait_for("c1 · 1 FP32", "FP32↑")
    terminal.keys("?")
    terminal.wait_for("Move up")
    terminal.keys("Escape")
    terminal.wait_for("c1 · 1 FP32")
    terminal.close()  # as when the connection is lost
    again = demo()
    again.wait_for("Resumed: c1", "1 FP32")
    again.keys("q")
    again.wait_for("code 0")


def test_a_split_arrow_key_changes_nothing(demo):
    terminal = demo()
    terminal.wait_for("INT8 all", "FAIL")
    terminal.keys("Escape")
    time.sleep(0.3)
    terminal.keys("[", "B")
    terminal.keys("y")
    terminal.wait_for("copied")
    assert "c0 = INT8" in terminal.screen
