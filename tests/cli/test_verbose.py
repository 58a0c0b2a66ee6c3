"""--verbose: raw messages of TensorRT and CUDA appear with it only; without it the short form of a warning"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests import ROOT, standins
from tests.texts import lacking, numbers
from trt_tui.cli.main import main
from trt_tui.core.engines.fallback_ladder import MAX_LISTED_WARNINGS, short_message_lines
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision

INT8 = PrecisionConfig.from_precision(Precision.INT8)
NO_CUDA = "CUDA initialization failure with error: 35"
SHORT = "the NVIDIA driver is too old for its CUDA release"
REFUSED_CACHE = "Failed to deserialize timing cache"

pytestmark = pytest.mark.usefixtures("placed")


@pytest.mark.parametrize("name", sorted(main.commands))
def test_every_command_takes_it(run, name):
    assert any("--verbose" in parameter.opts for parameter in main.commands[name].params)
    code, shown, _ = run(name, "--help")
    assert code == 0 and shown.count("  --verbose ") == 1


def arguments_of(name: str, mlp) -> list[object]:
    """A command on a network, at a TensorRT whose driver does not start."""
    data = [mlp.model, "--data", mlp.data]
    return {
        "compare": ["compare", *data, "--layers", "none"],
        "search": ["search", *data, "--tolerance", "sqnr>=-100", "-o", "found.json"],
        "preflight": ["preflight", *data],
        "build": ["build", *data, "--precision", "int8", "--backend", "tensorrt", "-o", "model.engine"],
        "inspect": ["inspect", mlp.model, "--engine", "model.plan", "--backend", "tensorrt"],
        "export": ["export", *data, "--precision", "int8", "--format", "onnx", "-o", "typed.onnx"],
    }[name]


@pytest.mark.parametrize(
    ("name", "code", "reads_tensorrt"),
    [
        ("compare", 0, True),
        ("search", 0, True),
        ("preflight", 0, True),
        ("build", 3, True),
        ("inspect", 3, True),
        ("export", 0, False),
    ],
)
def test_the_message_of_a_driver_that_does_not_start(command, mlp, name, code, reads_tensorrt):
    Path("model.plan").write_bytes(b"engine")
    quiet, verbose = (
        command("8.6.1", *arguments_of(name, mlp), *more, STANDIN_FAULT="wrong driver") for more in ((), ("--verbose",))
    )
    assert quiet.returncode == verbose.returncode == code, quiet.stderr + verbose.stderr
    assert NO_CUDA not in quiet.stdout + quiet.stderr and NO_CUDA not in verbose.stdout
    assert (f"{NO_CUDA}. Please check your CUDA installation\n" in verbose.stderr) == reads_tensorrt
    if code:
        assert f"Why: {SHORT}\n" in quiet.stderr and "nvidia-smi" in quiet.stderr


def test_doctor_lists_the_message_below_its_short_form():
    def doctor(*more):
        environment = {**os.environ, **standins.environment("8.6.1"), "STANDIN_FAULT": "wrong driver"}
        done = subprocess.run(
            [sys.executable, "-m", "trt_tui", "doctor", *more],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert SHORT in doctor() and NO_CUDA not in doctor()
    shown = doctor("--verbose")
    assert shown.index(SHORT) < shown.index(NO_CUDA)


@pytest.mark.parametrize("release", ["8.6.1", "11.4.0"])
def test_the_lines_of_a_build(command, mlp, release):
    Path("bad.cache").write_bytes(b"not a timing cache")
    build = (
        *f"build {mlp.model} --precision fp16 --shapes x:4x16 -o model.engine".split(),
        "--trtexec=--timingCacheFile=bad.cache",
    )
    quiet = command(release, *build)
    assert quiet.returncode == 0 and not any(
        line.startswith(("info: ", "warning: ", "error: ")) for line in quiet.stderr.splitlines()
    ), quiet.stderr
    assert REFUSED_CACHE not in quiet.stderr
    assert not lacking(quiet.stderr, "printed 2 warnings", "--verbose")
    Path("bad.cache").write_bytes(b"not a timing cache")
    verbose = command(release, *build, "--verbose")
    assert verbose.returncode == 0 and f"warning: {REFUSED_CACHE}" in verbose.stderr, verbose.stderr
    assert "info: Engine generation" in verbose.stderr and "TensorRT printed" not in verbose.stderr
    assert verbose.stdout == quiet.stdout == "model.engine\n"


@pytest.mark.parametrize("more", [(), ("--verbose",)])
def test_a_comparison_with_engines(command, mlp, more):
    done = command("10.16.1", "compare", mlp.model, "--data", mlp.data, "--layers", "none", "--engines", *more)
    assert done.returncode == 0 and ("info: Engine generation" in done.stderr) == bool(more), done.stderr
    assert "Engine generation" not in done.stdout and "(TensorRT 10.16.1" in done.stdout


@pytest.mark.parametrize("verbose", [False, True])
def test_the_log_of_the_app(standin, session, mlp, verbose):
    """The lines of a build that fails are there in any case: they may hold the reason."""
    standin("8.6.1")
    driven = session(replace(mlp, verbose=verbose, strict=True), automatic=False)
    driven.settled()
    driven.request_build(config=INT8)
    driven.until_idle()
    assert driven.error is None, driven.error
    assert any(line.startswith("info: Engine generation") for line in driven.log) == verbose


def test_the_log_of_the_app_after_a_build_that_failed(standin, session, mlp):
    standin("8.6.1", STANDIN_FAULT="fail: /fc2/MatMul")
    driven = session(replace(mlp, strict=True), automatic=False)
    driven.settled()
    driven.request_build(config=INT8)
    driven.until_idle()
    assert driven.error is not None, "it was to fail"
    assert any(line.startswith("error: ") for line in driven.log) and any("failed" in line for line in driven.log)


@pytest.mark.parametrize(
    ("messages", "lines"),
    [
        ([], []),
        ([("info", "building")], []),
        (
            [
                ("error", "cudaError 35: too old"),
                ("error", "cudaError 35: too old"),
                ("warning", "no cache"),
                ("warning", "slow"),
            ],
            ["TensorRT printed 1 error and 2 warnings during the build; --verbose shows them."],
        ),
        (
            [("warning", "Missing scale and zero-point for tensor /act1/Relu_output_0, expect fall back to non-int8")],
            [
                "warnings of parser and builder:",
                "  no range for /act1/Relu_output_0: its producer and consumers fall back from INT8",
                "TensorRT printed 1 warning during the build; --verbose shows them.",
            ],
        ),
    ],
)
def test_the_short_form_names_known_warnings_and_counts_the_rest(messages, lines):
    assert short_message_lines(messages) == lines


def test_the_short_form_is_short():
    messages = [
        ("warning", f"No implementation of layer /fc{number} obeys the requested constraints") for number in range(20)
    ]
    lines = short_message_lines(messages)
    assert len(lines) == MAX_LISTED_WARNINGS + 3 and numbers(lines[-2]) == [20 - MAX_LISTED_WARNINGS]
