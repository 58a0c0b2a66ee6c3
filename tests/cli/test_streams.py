"""trt_tui.cli.streams: full, closed and broken stdout and stderr, in the program as a shell runs it"""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.driven import save_mlp
from trt_tui.cli.streams import print_report
from trt_tui.formatting import EscapingTextStream

FULL = Path("/dev/full")

pytestmark = [pytest.mark.shares_cache, pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")]


@pytest.fixture
def shell(tmp_path):
    """Runs a command as a shell does, with redirections after it; returns its exit code, stdout and stderr."""
    options = save_mlp(tmp_path)
    words = {
        "compare": f"compare {options.model} --data {options.data} --batch 4 --layers none",
        "inspect": f"inspect {options.model}",
        "--help": "--help",
        "build": f"build {options.model} --precision fp16 -o {tmp_path}/typed.onnx",
        "search": f"search {options.model} --data {options.data} --batch 4 --tolerance 'sqnr>=10' --max-builds 0",
    }

    def run(command: str, rest: str) -> tuple[int, str, str]:
        program = f"{sys.executable} -m trt_tui {words[command]}"
        ran = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {program} {rest}"],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=dict(os.environ),
            timeout=120,
        )
        assert "Traceback" not in ran.stderr and "Exception ignored" not in ran.stderr, ran.stderr
        return ran.returncode, ran.stdout, ran.stderr

    return run


@pytest.mark.parametrize("command", ["--help", "compare"])
def test_a_full_stdout_is_said(shell, command):
    code, _, told = shell(command, ">/dev/full")
    assert code == 2 and told.count("stdout cannot be") == 1 and "No space left" in told


def test_a_closed_stdout_is_said_and_nothing_gets_its_number(shell, tmp_path):
    code, _, told = shell("compare", f"--json {tmp_path}/out.json >&-")
    assert code == 2 and "stdout cannot be" in told
    assert (tmp_path / "out.json").read_text().startswith("{") and (tmp_path / "out.json").read_text().endswith("}\n")


def test_files_are_written_before_a_stdout_that_is_full(shell, tmp_path):
    code, _, told = shell("search", f"-o - --markdown {tmp_path}/report.md >/dev/full")
    assert code == 2 and "stdout cannot be" in told
    assert (tmp_path / "report.md").read_text()


@pytest.mark.parametrize("rest", ["2>/dev/full", "2>&- <&-"])
def test_a_stderr_that_takes_nothing_costs_messages_and_nothing_more(shell, tmp_path, rest):
    code, shown, _ = shell("build", rest)
    assert code == 0 and shown == f"{tmp_path}/typed.onnx\n"


def test_a_stderr_that_is_closed_leaves_the_exit_code(shell):
    code, shown, _ = shell("compare", "--target 'sqnr>=500' 2>&-")
    assert code == 1 and "\nINT8 " in shown


def test_a_reader_that_has_gone_away_is_no_error(shell):
    code, _, told = shell("inspect", "| true")
    assert code == 0 and not told


def test_a_reader_that_has_gone_away_leaves_the_exit_code(shell, tmp_path):
    code, _, told = shell("compare", f"--target 'sqnr>=500' --markdown - --json {tmp_path}/out.json | true")
    assert code == 1 and "Target not met" in told and (tmp_path / "out.json").exists()


def test_all_of_them_closed(shell, tmp_path):
    assert shell("build", "<&- >&- 2>&-")[0] == 2
    assert (tmp_path / "typed.onnx").exists()


@pytest.mark.parametrize("plain", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {}])
def test_verdicts_have_colours_in_a_terminal_alone(monkeypatch, plain):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in plain.items():
        monkeypatch.setenv(name, value)
    for terminal in (True, False):
        out = io.StringIO()
        monkeypatch.setattr(sys, "stdout", EscapingTextStream(out))
        monkeypatch.setattr(os, "isatty", lambda descriptor, terminal=terminal: terminal)
        print_report("run  FAIL of it  PASS?\n\x1b[31m  FAIL, nothing in INT8")
        passes, fails = (
            ("\x1b[32m\x1b[1mPASS?\x1b[0m", "\x1b[31m\x1b[1mFAIL\x1b[0m")
            if terminal and not plain
            else ("PASS?", "FAIL")
        )
        assert out.getvalue() == f"run  FAIL of it  {passes}\n\\x1b[31m  {fails}, nothing in INT8\n"
