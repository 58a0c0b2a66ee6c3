"""What may import what, and what a start pulls in."""

import json
import pkgutil
import subprocess
import sys

import pytest

import trt_tui.core
from tests import ROOT

HEAVY = {"onnxruntime", "tensorrt", "tensorrt_rtx", "polygraphy", "textual", "click", "torch"}


def loaded_by(code: str) -> set[str]:
    """Top-level modules that a clean interpreter has loaded after some code."""
    report = "import json, sys; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    run = subprocess.run([sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    return set(json.loads(run.stdout.splitlines()[-1]))


def test_core_loads_no_backend_and_no_user_interface():
    names = [info.name for info in pkgutil.walk_packages(trt_tui.core.__path__, "trt_tui.core.")]
    assert "trt_tui.core.lowering.gated" in names
    assert not loaded_by(f"import {', '.join(names)}") & HEAVY


def test_session_and_jobs_load_no_user_interface():
    loaded = loaded_by("import trt_tui.session.search_report, trt_tui.jobs.server, trt_tui.cli.headless_session")
    assert not loaded & (HEAVY - {"onnxruntime"} | {"mpmath"}), "mpmath comes with sympy, see trt_tui.lazy_imports"


def test_what_is_loaded_late_is_not_loaded_by_a_look_at_all_modules():
    """Polygraphy looks so as it is imported; "mpmath" comes with sympy."""
    assert "mpmath" not in loaded_by(
        "import trt_tui.jobs.server, inspect, sys\nassert 'sympy' in sys.modules\ninspect.getmodule(sys._getframe())"
    )
    assert "mpmath" in loaded_by("import trt_tui, sympy\nassert sympy.Symbol('n').name == 'n'")


@pytest.mark.parametrize("arguments", [["--help"], ["compare", "--help"], ["--version"], []])
def test_help_loads_nothing_heavy(arguments):
    code = f"""
from trt_tui.cli.main import main
try:
    main({arguments!r})
except SystemExit:
    pass
"""
    assert not loaded_by(code) & {"numpy", "onnx", "onnx_ir", "textual", "onnxruntime", "msgspec", "platformdirs"}


def test_everything_but_running_works_without_a_backend():
    code = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in ('onnxruntime', 'tensorrt', 'tensorrt_rtx'):
            raise ModuleNotFoundError(f'No module named {name!r}', name=name)

sys.meta_path.insert(0, Blocked())
import trt_tui.session.session, trt_tui.cli.headless_session, trt_tui.jobs.server
from trt_tui.cli.main import main
from trt_tui import demo
try:
    main(['inspect', str(demo.network_path())])
except SystemExit as stop:
    assert stop.code == 0, stop.code
"""
    assert "onnxruntime" not in loaded_by(code)
