"""Users' scripts run in the child process and nowhere else: what they print and how they end touches no command."""

import os
import re
import signal
import textwrap

import pytest

from tests.driven import save_mlp
from trt_tui.jobs.child_exit import diagnose_exit
from trt_tui.jobs.client import child_log_path

pytestmark = pytest.mark.spawned

SCRIPT = """
import os, sys
import numpy as np

open({place!r}, "a").write(f"{{os.getpid()}} {{os.getppid()}}\\n")
print("printed")
os.write(1, b"printed by a library\\n")

def load_data():
    print("printed")
    {body}
    for seed in range(4):
        rng = np.random.default_rng(seed)
        yield {{"x": rng.standard_normal((4, 16), dtype=np.float32), "labels": np.arange(4)}}

def metric(outputs, labels):
    print("printed")
    return 1.0
"""


@pytest.fixture
def scripted(run, tmp_path, monkeypatch):
    """Runs a command with a script as data and metric; its code and words, and the processes that ran the script."""
    monkeypatch.chdir(tmp_path)
    model = save_mlp(tmp_path).model

    def run_it(*arguments, body="pass"):
        script, place = tmp_path / "script.py", tmp_path / "ran"
        place.write_text("")
        script.write_text(textwrap.dedent(SCRIPT).format(place=str(place), body=body))
        places = {"DATA": str(script), "METRIC": f"{script}:metric", "MODEL": model}
        told = run(*(places.get(one, one) for one in arguments))
        return *told, [tuple(map(int, line.split())) for line in place.read_text().splitlines()]

    return run_it


COMMANDS = {
    "compare": ["compare", "MODEL", "--data", "DATA", "--metric", "METRIC", "--layers", "none"],
    "build": ["build", "MODEL", "--data", "DATA", "--precision", "int8", "-o", "typed.onnx"],
    "build with other data to calibrate on": [
        *"build MODEL --data mlp.npz --calib-data DATA --precision int8 -o typed.onnx".split()
    ],
    "export": ["export", "MODEL", "--data", "DATA", "--precision", "int8", "--format", "trtexec", "-o", "out.sh"],
    "export of shapes alone": [*"export MODEL --data DATA --precision fp16 --format polygraphy -o out.py".split()],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_script_runs_in_the_child_alone_and_its_words_go_to_the_log(scripted, command):
    code, out, err, ran = scripted(*COMMANDS[command])
    assert code == 0, err
    assert ran and all(pid != os.getpid() and parent == os.getpid() for pid, parent in ran), (os.getpid(), ran)
    assert "printed" not in out + err
    log = child_log_path().read_text()
    assert "printed\n" in log and "printed by a library\n" in log


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("os.abort()", r"script\.py crashed in it.*SIGABRT; line 11, in load_data"),
        ("os._exit(7)", "exit code 7"),
        ("raise ValueError('no such sample')", "ValueError: no such sample"),
    ],
)
def test_how_a_script_ends_is_told(scripted, tmp_path, body, told):
    code, out, err, _ = scripted(*COMMANDS["build"], body=body)
    assert code == 2 and out == "", err
    assert err.startswith("Error: ") and re.search(told, err) and "  Next: " in err, err
    assert not (tmp_path / "typed.onnx").exists()


def test_without_need_of_data_no_script_is_run(scripted):
    code, _, err, ran = scripted("build", "MODEL", "--data", "DATA", "--precision", "fp16", "-o", "typed.onnx")
    assert code == 0 and ran == [], err


def test_a_script_that_crashes_while_it_is_loaded_is_named():
    trace = """Fatal Python error: Segmentation fault

Current thread 0x00007f0c46494b80 (most recent call first):
  File "/venv/site-packages/broken/__init__.py", line 3 in start
  File "/home/user/metric.py", line 2 in <module>
  File "<frozen importlib._bootstrap_external>", line 940 in exec_module
  File "/venv/site-packages/trt_tui/core/userscript.py", line 71 in __init__
  File "/venv/site-packages/trt_tui/core/metric.py", line 80 in load_metric
"""
    death = diagnose_exit(-signal.SIGSEGV, trace)
    assert "metric.py crashed" in death.reason and "line 2, in <module>" in death.reason
    assert death.next_step == "Correct /home/user/metric.py."
    assert "library" in diagnose_exit(-signal.SIGSEGV, trace.replace("userscript", "analysis")).reason
