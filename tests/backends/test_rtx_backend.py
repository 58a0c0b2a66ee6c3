"""trt_tui.backends.tensorrt on the real TensorRT-RTX: see `tests.standins.real_rtx`."""

import os
import subprocess
import sys

import pytest

from tests import ROOT


@pytest.mark.rtx
def test_the_backend_on_the_real_tensorrt_rtx() -> None:
    pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/standins/real_rtx.py"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
