"""The app end to end in a real terminal: tmux types, and reads the screen."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path

import onnx
import pytest

pytestmark = [
    pytest.mark.terminal,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
]


class Terminal:
    """A tmux server of its own with one window."""

    def __init__(self, command: str, size: tuple[int, int], environment: dict[str, str], folder: Path) -> None:
        self.socket = f"trt-tui-{uuid.uuid4().hex[:8]}"
        exports = " ".join(f"{name}={value}" for name, value in environment.items())
        self._tmux("-f", os.devnull, "new-session", "-d", "-x", str(size[0]), "-y", str(size[1]), "-c", str(folder),
                   f"env {exports} {command}; echo ended with $?; sleep 600")

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-L", self.socket, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def press(self, *keys: str) -> None:
        for key in keys:
            self._tmux("send-keys", key)
            time.sleep(0.15)

    def screen(self) -> str:
        return self._tmux("capture-pane", "-p")

    def wait_for(self, *texts: str, seconds: float = 60) -> str:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            screen = self.screen()
            if all(text in screen for text in texts):
                return screen
            time.sleep(0.2)
        raise AssertionError(f"{texts} did not appear:\n{self.screen()}")

    def close(self) -> None:
        subprocess.run(["tmux", "-L", self.socket, "kill-server"], capture_output=True)


@pytest.fixture
def terminal(tmp_path: Path):
    opened: list[Terminal] = []

    def start(command: str, size: tuple[int, int] = (80, 24)) -> Terminal:
        environment = {"XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CACHE_HOME": str(tmp_path / "cache"),
                       "TERM": "xterm-256color"}
        opened.append(Terminal(command, size, environment, tmp_path))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def _line(screen: str, start: str) -> str:
    return next(line for line in screen.splitlines() if line.strip().startswith(start))


def test_the_main_job(terminal, tmp_path: Path) -> None:
    app = terminal(f"{sys.executable} -m trt_tui demo --no-preview")
    screen = app.wait_for("INT8 all", "FAIL", "PASS")
    assert "PASS" in _line(screen, "FP16 all") and "FAIL" in _line(screen, "INT8 all")
    app.press("t")
    app.wait_for("Worst first", "raised to")
    app.wait_for("22.3 dB", seconds=90)
    app.press("g", "Escape", "Home", "space")
    app.wait_for("c1", "FP32↑")
    app.press("Down", "space")
    screen = app.wait_for("c2", "2 up")
    deadline = time.monotonic() + 30
    while "PASS" not in _line(app.screen(), "c2") and time.monotonic() < deadline:
        time.sleep(0.2)
    assert "PASS" in _line(app.screen(), "c2"), app.screen()
    app.press("z")
    app.wait_for("c1", "1 up")
    app.press(".")
    app.wait_for("c2", "2 up")
    app.press("q")
    app.wait_for("ended with 0", seconds=10)

    again = terminal(f"{sys.executable} -m trt_tui demo --no-preview")
    again.wait_for("2 up", "PASS", "Resumed")
    again.press("e", "Enter", "Enter")
    written = tmp_path / "scenes.precision.json"
    deadline = time.monotonic() + 20
    while not written.exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    config = json.loads(written.read_text())
    assert config["format"] == "trt-tui/precision-config"
    raised = {name for move in config["moves"] if move.get("precision") == "fp32" for name in move["layers"]}
    assert {"/enc1/widen/conv/Conv", "/enc1/residual/depthwise/conv/Conv"} <= raised
    again.press("q")
    again.wait_for("ended with 0", seconds=10)

    from trt_tui import demo

    command = [sys.executable, "-m", "trt_tui", "build", str(demo.network_path()), "--config", str(written)]
    for name in ("one.onnx", "two.onnx"):
        subprocess.run([*command, "-o", str(tmp_path / name)], check=True, capture_output=True)
    assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()
    onnx.checker.check_model(onnx.load(tmp_path / "one.onnx"), full_check=True)


def test_a_broken_file_is_explained(terminal, tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no network")
    app = terminal(f"{sys.executable} -m trt_tui broken.onnx")
    app.wait_for("is not a complete ONNX file")
    app.press("Escape", "q")
    app.wait_for("ended with", seconds=10)
