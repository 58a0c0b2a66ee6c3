"""trt_tui.backends.tensorrt and .registry: the contract on each release, and what keeps a backend from working.

What a backend that builds has to do is in `tests.standins.contract`, which runs in a process of each release.
"""

import ctypes
import json
import os
import re
import subprocess
import sys
from types import ModuleType

import pytest

from tests import ROOT, standins
from trt_tui.backends import cuda, registry
from trt_tui.backends.tensorrt import import_tensorrt, translate_build_error, translate_engine_load_error
from trt_tui.errors import BackendUnavailableError, ExitCode

CONTRACT = "tests/standins/contract.py"


def run(command: list[str], release: str, **variables: str) -> subprocess.CompletedProcess:
    plain = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # it needs none of the plugins
    environment = {**os.environ, **plain, **(standins.environment(release) if release else {}), **variables}
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120 if release else 500,
    )  # real builds take minutes


@pytest.mark.parametrize("release", standins.RELEASES)
def test_every_release_keeps_the_contract(release: str) -> None:
    name = "tensorrt-rtx" if release.startswith("rtx") else "tensorrt"
    done = run(["pytest", "-q", "-p", "no:cacheprovider", CONTRACT], release, CONTRACT=name)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("name", registry.BUILDER_NAMES)
def test_what_is_installed_keeps_the_contract(name: str) -> None:
    detail = next(state.detail for state in registry.diagnose_backends() if state.name == name)
    if "runs engines on" not in detail:
        pytest.skip(f"{name}: {detail}")
    done = run(["pytest", "-q", "-p", "no:cacheprovider", CONTRACT], "", CONTRACT=name)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def module(monkeypatch):
    """Puts a package of a version in place, or none."""

    def put(version: str | None, name: str = "tensorrt") -> None:
        made = ModuleType(name) if version is not None else None
        if version:
            made.__version__ = version
        monkeypatch.setitem(sys.modules, name, made)

    return put


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("tensorrt", "8.6.1"),
        ("tensorrt", "8.6.1.post1"),
        ("tensorrt", "10.0"),
        ("tensorrt", "11.99.1.2"),
        ("tensorrt-rtx", "1.0.0.21"),
    ],
)
def test_known_releases_are_served(module, name, version) -> None:
    module(version, name.replace("-", "_"))
    assert import_tensorrt(name).__version__ == version


@pytest.mark.parametrize(
    ("name", "version"), [("tensorrt", "12.0.0"), ("tensorrt", "8.5.3"), ("tensorrt", "7.2"), ("tensorrt-rtx", "2.0")]
)
def test_other_releases_are_refused_and_what_is_served_is_said(module, name, version) -> None:
    module(version, name.replace("-", "_"))
    with pytest.raises(BackendUnavailableError, match=f"trt-tui does not support .*{version}") as raised:
        import_tensorrt(name)
    assert raised.value.exit_code == 3 and "it supports" in raised.value.cause


def test_a_package_that_is_missing_or_broken_is_told_apart(module) -> None:
    module("")
    with pytest.raises(BackendUnavailableError, match="tensorrt does not load"):
        import_tensorrt("tensorrt")
    module(None)
    with pytest.raises(BackendUnavailableError, match="tensorrt (is not installed|does not load)") as raised:
        import_tensorrt("tensorrt")
    assert "trt-tui[tensorrt]" in raised.value.next_step


class Driver:
    """A driver library that answers cuInit and counts GPUs."""

    def __init__(self, init: int = 0, count: int = 0) -> None:
        self.init, self.count = init, count

    def cuInit(self, flags: int) -> int:
        return self.init

    def cuDeviceGetCount(self, count) -> int:
        count._obj.value = self.count
        return 0

    def cuGetErrorString(self, code: int, text) -> int:
        text._obj.value = b"system has unsupported display driver / cuda driver combination"
        return 0


@pytest.mark.parametrize(
    ("driver", "title", "cause"),
    [
        (None, "no NVIDIA driver", "libcuda.so.1 does not load"),
        (Driver(100), "no GPU is visible", ""),
        (Driver(0, 0), "no GPU is visible", ""),
        (Driver(803), "driver does not work", r"unsupported display.*\(803\)"),
    ],
)
def test_without_a_gpu_the_reason_is_said(monkeypatch, driver, title, cause) -> None:
    def load(name: str):
        if driver is None:
            raise OSError("libcuda.so.1: cannot open shared object file")
        return driver

    monkeypatch.setattr(ctypes, "CDLL", load)
    with pytest.raises(BackendUnavailableError, match=title) as raised:
        cuda.find_first_device()
    assert re.search(cause, raised.value.cause) and raised.value.next_step


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        ("Could not find any implementation for node /bloom/0/MatMul.", False),
        ("Could not find any implementation for node room.conv + oomph.", False),
        ("TensorRT encountered OOM while building", True),
        ("Error Code 2: OutOfMemory (Requested amount)", True),
        ("Cuda error 2", True),
        ("Cuda error 209", False),
        ("CUDA out of memory", True),
    ],
)
def test_a_lack_of_memory_is_told_from_names_that_look_like_it(text, memory) -> None:
    error = translate_build_error([("error", text)], (), RuntimeError("Invalid Engine"))
    assert ("device memory" in error.title) == memory and error.cause == text


def test_the_reason_of_a_build_is_not_that_there_is_no_gpu() -> None:
    driver, reason = ("error", "CUDA driver version is insufficient for CUDA runtime version"), ("error", "no kernel")
    end = "error", "Invalid Engine. Please ensure"
    assert translate_build_error([driver, reason, end], (), RuntimeError()).cause == "no kernel"
    assert translate_build_error([driver, end], (), RuntimeError()).cause == driver[1]
    launch = ("error", "MyelinCheckException: graph_jit.cpp:278: CHECK(status == CUDA_SUCCESS) failed.")
    told = [translate_build_error([launch], (), RuntimeError(), runs) for runs in (False, True)]
    assert ["--refit" in error.next_step for error in told] == [True, False]
    assert [error.is_refused for error in told] == [False, True]


@pytest.mark.parametrize(
    ("text", "code", "title"),
    [
        (
            "Error Code 1: Cuda Runtime (CUDA driver version is insufficient for CUDA runtime version)",
            ExitCode.BACKEND_UNAVAILABLE,
            "does not start",
        ),
        (
            "CUDA initialization failure with error: 35. Please check your CUDA installation",
            ExitCode.BACKEND_UNAVAILABLE,
            "does not start",
        ),
        (
            "CUDA initialization failure with error: 2. Please check your CUDA installation",
            ExitCode.BAD_INPUT,
            "device memory",
        ),
        ("Error Code 1: Serialization (magicTag)", ExitCode.BAD_INPUT, "cannot load this engine"),
    ],
)
def test_a_driver_that_fails_is_not_the_files_fault(text, code, title) -> None:
    error = translate_engine_load_error("tensorrt 10.16.1", "it", [("error", text)], None)
    assert error.exit_code == code and title in error.title and text in (error.cause, error.raw_message)
    assert ("driver" in error.cause) == (code == 3)


PROBE = """
import json, sys
from trt_tui.backends.registry import diagnose_backends, get_engine_builder
from trt_tui.errors import BackendUnavailableError
notes = []
found = get_engine_builder("auto", lambda error: notes.append([error.title, error.cause, error.raw_message]))
try:
    named = get_engine_builder("tensorrt").name
except BackendUnavailableError as error:
    named = str(error)
print(json.dumps([found and found.name, notes, named,
                  {one.name: [one.works, one.detail, one.remedy, one.raw_message] for one in diagnose_backends()}]))
"""


def probed(release: str, **variables: str) -> list:
    environment = {**os.environ, **standins.environment(release), **variables}
    done = subprocess.run(
        [sys.executable, "-c", PROBE], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_auto_takes_tensorrt_where_it_works() -> None:
    found, notes, named, states = probed("11.4.0")
    assert (found, notes, named) == ("tensorrt", [], "tensorrt")
    works, state, *rest = states["tensorrt"]
    assert works is True and "Stand-in GPU" in state and rest == ["", ""]


def test_auto_and_doctor_say_that_a_builder_does_not_start() -> None:
    found, notes, named, states = probed("8.6.1", STANDIN_FAULT="wrong driver")
    ((title, cause, raw),) = notes
    assert found is None and "tensorrt 8.6.1" in title and "driver" in cause and "error: 35" in raw
    assert named.startswith(f"{title}\n{cause}\n") and "error: 35" not in named
    works, state, *_ = states["tensorrt"]
    assert works is False and "Stand-in GPU" in state and state.endswith(f": {cause}")
    assert "error: 35" in states["tensorrt"][3]


def test_auto_leaves_tensorrt_without_a_gpu_and_says_so() -> None:
    found, notes, named, states = probed("10.16.1", STANDIN_FAULT="no gpu")
    ((title, *_),) = notes
    assert found is None and "no GPU" in title and named.startswith(title)
    assert states["tensorrt"][0] is False and title in states["tensorrt"][1]
