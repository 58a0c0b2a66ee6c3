"""trt_tui.jobs.child_exit, and allocations that fail: what is told of a child that ended"""

import signal
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from tests.driven import DrivenWorker, save_mlp
from trt_tui.core.measure import simulation
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.jobs import child_exit
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.client import child_log_path
from trt_tui.options import Options

pytestmark = pytest.mark.spawned


KILLED = -signal.SIGKILL
BAD_ALLOC = "terminate called after throwing an instance of 'std::bad_alloc'"


@pytest.mark.parametrize(
    ("exit_code", "log", "memory", "reason"),
    [
        (KILLED, "", True, "SIGKILL"),
        (-signal.SIGSEGV, "", False, "SIGSEGV"),
        (-signal.SIGABRT, "assertion failed", False, "SIGABRT"),
        (-signal.SIGABRT, BAD_ALLOC, True, "SIGABRT"),
        (-signal.SIGTERM, "", False, "SIGTERM"),
        (3, "", False, "3"),
    ],
)
def test_memory_is_named_only_where_it_may_be_the_reason(exit_code, log, memory, reason):
    told = child_exit.diagnose_exit(exit_code, log)
    assert reason in told.reason
    assert (child_exit.LESS_MEMORY_STEP in told.next_step) is memory


def dying(tmp_path, how: str) -> Options:
    script = tmp_path / "dying.py"
    script.write_text(f"import os, signal\ndef load_data():\n    {how}\n    yield {{}}\n")
    return replace(save_mlp(tmp_path), data=str(script))


@pytest.mark.parametrize(
    ("how", "says"),
    [("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"), ("os.abort()", "SIGABRT"), ("os._exit(3)", "exit code 3")],
)
def test_a_crash_is_not_told_as_lack_of_memory(tmp_path, session, how, says):
    child_log_path().parent.mkdir(parents=True, exist_ok=True)
    child_log_path().write_text(f"{BAD_ALLOC} in a program that had this process id before\n")
    driven = session(dying(tmp_path, how))
    driven.start()
    error = driven.until_type(ev.ChildProcessDied).error
    assert says in error.cause and "emory" not in str(error), str(error)


def test_what_a_library_says_of_memory_is_told(tmp_path, session):
    driven = session(dying(tmp_path, f'os.write(2, b"{BAD_ALLOC}"), os.abort()'))
    driven.start()
    error = driven.until_type(ev.ChildProcessDied).error
    assert (
        "Memory ran out" in error.cause and error.next_step == child_exit.LESS_MEMORY_STEP and BAD_ALLOC in error.cause
    )


@pytest.mark.parametrize("lean", [True, False])
def test_an_allocation_that_fails_in_onnx_runtime_is_out_of_memory(backend, lean):
    graph = onnx.parser.parse_graph("g (int64[1] n) => (float[N] y) { y = ConstantOfShape(n) }")
    model = onnx.helper.make_model(graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 17)])
    with (
        backend.load(ir.from_proto(model), low_memory=lean) as runner,
        pytest.raises(InputError, match="out of memory") as raised,
    ):
        runner.run({"n": np.array([1 << 50])})
    assert "--batch" in raised.value.next_step


@pytest.mark.parametrize(
    ("error", "title", "cause"),
    [
        (MemoryError("Unable to allocate 3 TiB"), "out of memory", "3 TiB"),
        (OSError(28, "No space left on device", "/tmp/x"), "the system refused: No space left on device", "at /tmp/x"),
        (OSError(24, "Too many open files"), "the system refused: Too many open files", ""),
    ],
)
def test_faults_of_the_system_are_told_and_are_no_defects(tmp_path, monkeypatch, error, title, cause):
    worker = DrivenWorker(tmp_path)
    worker.answer(rq.OpenNetwork(save_mlp(tmp_path)))

    def fails(*_, **__):
        raise error

    monkeypatch.setattr(simulation.Analysis, "measure_accuracy", fails)
    failed = worker.answer(rq.MeasureWhatIf(PrecisionConfig.from_precision(Precision.FP16)))[-1]
    assert isinstance(failed, ev.JobFailed) and failed.error.title == title and cause in failed.error.cause
    assert failed.error.next_step and "defect" not in failed.error.next_step and failed.error.exit_code == 2
