"""ONNX Runtime's telemetry stays off, whatever the environment says: nothing of it is left in the user's folders."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.driven import save_mlp


def run_in(folder: Path, value: str, *words: str) -> subprocess.CompletedProcess:
    """Runs Python with all of the user's folders under ``folder``, and telemetry asked for by ``value``."""
    places = {
        "HOME": folder,
        "XDG_CACHE_HOME": folder / "cache",
        "XDG_STATE_HOME": folder / "state",
        "TMPDIR": folder / "tmp",
    }
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        **{name: str(place) for name, place in places.items()},
        "OMP_NUM_THREADS": "1",
        "ORT_DISABLE_TELEMETRY": value,
    }
    return subprocess.run([sys.executable, *words], env=environment, cwd=ROOT, capture_output=True, text=True)


def left_by_others(folder: Path) -> list[str]:
    """Files under a folder that do not lie in this program's own cache and state."""
    ours = (folder / "cache" / "trt-tui", folder / "state" / "trt-tui")
    return [str(path) for path in folder.rglob("*") if path.is_file() and not any(o in path.parents for o in ours)]


def test_a_comparison_leaves_nothing_of_it(tmp_path):
    options = save_mlp(tmp_path)
    home = tmp_path / "home"
    run = run_in(
        home, "0", "-m", "trt_tui", "compare", options.model, "--data", options.data, "--batch", "4", "--layers", "none"
    )
    assert run.returncode == 0, run.stderr
    assert list((home / "cache" / "trt-tui").rglob("*")), "the child process ran there"
    assert not left_by_others(home)


def test_doctor_leaves_nothing_of_it(tmp_path):
    run_in(tmp_path, "", "-m", "trt_tui", "doctor")
    assert not left_by_others(tmp_path)


@pytest.mark.parametrize("module", ["trt_tui.cli.main", "tests.benchmarks.search", "tests.networks.seeding"])
def test_every_program_turns_it_off_before_onnx_runtime_is_loaded(tmp_path, module):
    code = f"""
import os, sys

class Watched:
    def find_spec(self, name, path=None, target=None):
        if name == "onnxruntime":
            assert os.environ["ORT_DISABLE_TELEMETRY"] == "1"

sys.meta_path.insert(0, Watched())
try:
    import {module}
except ModuleNotFoundError as error:
    assert error.name in ("torch", "sklearn", "onnxscript"), error
assert os.environ["ORT_DISABLE_TELEMETRY"] == "1"
"""
    run = run_in(tmp_path, "0", "-c", code)
    assert run.returncode == 0, run.stderr
