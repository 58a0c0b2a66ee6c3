"""Bundles: what they hold for each release, and that Polygraphy passes what is as tested and fails what is not."""

import os
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from polygraphy.comparator import RunResults
from polygraphy.tools._main import main as polygraphy

from tests.driven import save_resnet
from trt_tui.cli.headless_session import HeadlessSession
from trt_tui.core.data.tensor_files import open_dump
from trt_tui.core.exporters import bundle
from trt_tui.core.exporters.bundle import SampleRun, compute_tolerances
from trt_tui.core.moves.config_file import read_config
from trt_tui.core.network.network import open_network
from trt_tui.session.session import Session

ALWAYS = {
    "network.onnx",
    "precision.json",
    "build.sh",
    "verify.sh",
    "report.md",
    "inputs.json",
    "reference.json",
    "ranges.cache",
    "SHA256SUMS",
}


@pytest.fixture
def called(tmp_path, monkeypatch):
    """Runs a script of a folder with stand-ins for the tools: what each was given, call by call, and the exit code."""
    tools, log = tmp_path / "tools", tmp_path / "called"
    tools.mkdir()
    for name in ("polygraphy", "trtexec", "python3"):
        (tools / name).write_text(f'#!/bin/sh\nprintf "%s\\n" {name} "$@" "" >>"{log}"\n')
        (tools / name).chmod(0o755)

    def call(script: Path, *arguments: str) -> tuple[int, list[list[str]]]:
        log.write_text("")
        done = subprocess.run(
            ["sh", str(script), *arguments],
            env={**os.environ, "PATH": f"{tools}:/usr/bin:/bin"},
            capture_output=True,
            check=False,
            timeout=60,
        )
        return done.returncode, [one.splitlines() for one in log.read_text().split("\n\n") if one]

    return call


def judged(folder: Path, arguments: list[str], monkeypatch) -> int:
    """Polygraphy's exit code for a command line, in this process."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit) as stop:
        raise SystemExit(polygraphy())
    return int(stop.value.code or 0)


def spoil(path: Path, factor: float = -1) -> None:
    """Multiplies the first weight of a network."""
    model = onnx.load(path)
    weights = next(one for one in model.graph.initializer if len(one.dims) == 2)
    array = onnx.numpy_helper.to_array(weights)
    weights.CopyFrom(onnx.numpy_helper.from_array((array * factor).astype(array.dtype), weights.name))
    onnx.save(model, path)


def advised(folder: Path) -> list[list[str]]:
    """The commands that `verify.sh` advises where there are no samples, each as words."""
    done = subprocess.run(["sh", folder / "verify.sh", "--onnxrt"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "no samples" in done.stderr
    return [shlex.split(line) for line in done.stderr.splitlines() if line.startswith("    ")]


@pytest.mark.parametrize(
    ("release", "more", "built_by"),
    [
        ("8.6", {"precisions.py", "layers.py"}, "polygraphy"),
        ("10", set(), "trtexec"),
        ("11", {"samples"}, "trtexec"),
        ("rtx", {"no_tf32.py", "layers.py"}, "polygraphy"),
    ],
)
def test_a_bundle_is_whole_and_polygraphy_passes_it(run, mlp, called, tmp_path, monkeypatch, release, more, built_by):
    folder = tmp_path / "out"
    code, out, err = run(
        *f"bundle {mlp.model} --data {mlp.data} --batch 4 --precision int8 --range x=2.5 --for {release}".split(),
        *f"-o {folder}".split(),
    )
    assert code == 0, err
    assert read_config(folder / "precision.json", open_network(mlp.model)).config.range_moves["x"].amax == 2.5
    there = {path.name for path in folder.iterdir()}
    assert there == ALWAYS | more
    assert {Path(line) for line in out.splitlines()} == {path for path in folder.rglob("*") if path.is_file()}
    code, ((tool, *argv), *layers) = called(folder / "build.sh", "--more")
    assert (code, tool, argv[-1]) == (0, built_by, "--more")
    if built_by == "trtexec":
        assert "--exportLayerInfo=model.engine.graph.json" in argv and "--profilingVerbosity=detailed" in argv
        assert not layers
    else:
        assert "--profiling-verbosity detailed" in " ".join(argv)
        assert layers == [["python3", "layers.py", "model.engine", "model.engine.graph.json"]]
    assert ("--stronglyTyped" in argv) == (release == "10") and ("--int8" in argv) == (release == "8.6")
    code, (argv,) = called(folder / "verify.sh", "--onnxrt")
    assert code == 0 and judged(folder, argv, monkeypatch) == 0
    feeds = [folder / "inputs.json", folder / "reference.json"]
    bundled = [one.read_bytes() for one in feeds]
    feeds[1].unlink()
    _, own = advised(folder)
    assert judged(folder, [mlp.model if word == "MODEL" else word for word in own], monkeypatch) == 0
    assert judged(folder, argv, monkeypatch) == 0
    spoil(folder / "network.onnx")
    assert judged(folder, argv, monkeypatch) == 1
    for one, content in zip(feeds, bundled, strict=True):
        one.write_bytes(content)
    assert judged(folder, argv, monkeypatch) == 1
    report = (folder / "report.md").read_text()
    assert "| y |" in report and "svg" not in report


def test_a_bundle_holds_what_its_config_needs_alone(run, mlp, tmp_path, monkeypatch):
    """Also if the background process has time for other work before the config is measured."""
    run_request = HeadlessSession.run_request
    monkeypatch.setattr(HeadlessSession, "run_request", lambda *arguments: (time.sleep(1), run_request(*arguments)))
    folder = tmp_path / "out"
    code, _, err = run(*f"bundle {mlp.model} --data {mlp.data} --batch 4 --precision fp16 --for 10 -o {folder}".split())
    assert code == 0, err
    assert not (folder / "ranges.cache").exists() and "| INT8 |" not in (folder / "report.md").read_text()


def test_the_outputs_of_the_runs_that_are_named_are_written(run, mlp, tmp_path):
    common = ("compare", mlp.model, "--data", mlp.data, "--layers", "none", "--no-preview", "--save-outputs")
    for spec, runners in (
        ("one.json:fp32", ("fp32",)),
        ("two.json:int8,fp32", ("int8", "fp32")),
        ("all.json", ("fp32", "fp16", "int8")),
    ):
        assert run(*common, tmp_path / spec)[0] == 0
        path = tmp_path / spec.partition(":")[0]
        assert [name for name, _ in RunResults.load(str(path)).items()] == list(runners)
        titles = [f"{path.name}:{name}" if len(runners) > 1 else path.name for name in runners]
        assert [open_dump(f"{path}:{name}").source for name in runners] == titles
    for spec, said in (("no.json:fp31", "no run fp31"), ("no.json:", "no run without a name")):
        code, _, err = run(*common, tmp_path / spec)
        assert code == 2 and said in err and "--save-outputs" in err
    assert not list(tmp_path.glob("*:*")) and not (tmp_path / "no.json").exists()


def test_another_network_fails(run, mlp, called, tmp_path, monkeypatch):
    folder = tmp_path / "out"
    assert (
        run("bundle", mlp.model, "--data", mlp.data, "--batch", 4, "--precision", "fp16", "--for", "11", "-o", folder)[
            0
        ]
        == 0
    )
    _, (argv,) = called(folder / "verify.sh", "--onnxrt")
    code, calls = called(folder / "verify.sh", "--trtexec")
    assert code == 0 and len(calls) == 4  # a run for each feed of the one output
    spoil(folder / "network.onnx", np.float16(1.02))
    assert judged(folder, argv, monkeypatch) == 1
    for at, (tool, *argv) in enumerate(calls):
        given = dict(word.partition("=")[::2] for word in argv)
        assert tool == "trtexec" and given["--accuracyAlgorithm"] == "l1" and float(given["--accuracyThreshold"]) > 0
        for option, shape in (("--loadInputs", (4, 16)), ("--loadRefOutputs", (4, 4))):
            name, _, file = given[option].partition(":")
            assert name in "xy" and (folder / file).stat().st_size == 4 * np.prod(shape), at


def test_a_file_that_was_changed_is_found_before_anything_is_executed(run, mlp, called, tmp_path):
    """Also where the change is too small for the tolerance, or in a file that the check itself does not read."""
    folder = tmp_path / "out"
    code, _, err = run(
        "bundle", mlp.model, "--data", mlp.data, "--batch", 4, "--precision", "fp16", "--for", "11", "-o", folder
    )
    assert code == 0, err
    listed = [line.split("  ", 1)[1] for line in (folder / "SHA256SUMS").read_text().splitlines()]
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {*listed} == files - {"SHA256SUMS"} and len(listed) == len(files) - 1
    (folder / "timing.cache").write_bytes(b"tactics")  # as each build does
    assert called(folder / "verify.sh", "--onnxrt")[0] == 0
    for name in sorted({*listed} - {"verify.sh"}):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content + b" ")
        for mode in ("--onnxrt", "--engine", "--trtexec"):
            assert called(folder / "verify.sh", mode) == (1, []), (name, mode)
        done = subprocess.run(["sh", folder / "verify.sh"], capture_output=True, text=True, timeout=60, check=False)
        assert f"{name}: FAILED" in done.stderr and "remove SHA256SUMS" in done.stderr
        (folder / name).write_bytes(content)
    (folder / "network.onnx").write_bytes((folder / "network.onnx").read_bytes() + b" ")
    (folder / "SHA256SUMS").unlink()
    code, calls = called(folder / "verify.sh", "--onnxrt")
    assert code == 0 and len(calls) == 1


def test_checksums_are_those_of_sha256sum_for_any_name(tmp_path):
    for name in ("a b", "a\\b", "a\nb", "plain.so"):
        (tmp_path / name).write_text(name)
    (tmp_path / "SHA256SUMS").write_text(bundle.checksum_text(tmp_path))
    assert subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=tmp_path, check=False).returncode == 0
    (tmp_path / "a\nb").write_text("other")
    assert subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=tmp_path, check=False).returncode == 1


def test_samples_stay_out_and_nothing_is_overwritten(run, mlp, called, tmp_path, monkeypatch):
    folder = tmp_path / "out"
    command = ("bundle", mlp.model, "--data", mlp.data, "--batch", 4, "--precision", "fp16", "-o", folder)
    assert "Missing option '--for'" in run(*command)[2]
    export_bundle = Session.export_bundle
    with monkeypatch.context() as app:  # which asks whether the bundle contains samples
        app.setattr(
            Session,
            "export_bundle",
            lambda session, path, release, _, calibration: export_bundle(session, path, release, False, calibration),
        )
        assert run(*command, "--for", "10")[0] == 0
    there = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert not there.keys() & {"inputs.json", "reference.json", "samples"}
    assert called(folder / "verify.sh")[0] == 2
    again, _ = advised(folder)
    assert again[:2] == ["trt-tui", "bundle"]
    monkeypatch.chdir(folder)
    words = [{"MODEL": mlp.model, "D": mlp.data}.get(word, word) for word in again[1:]]
    assert run(*words, "--batch", 4)[0] == 0
    _, (argv,) = called(folder / "whole" / "verify.sh", "--onnxrt")
    for name in ("inputs.json", "reference.json"):
        shutil.copy(folder / "whole" / name, folder)
    assert judged(folder, argv, monkeypatch) == 0
    for name in ("inputs.json", "reference.json"):
        (folder / name).unlink()
    shutil.rmtree(folder / "whole")
    code, _, err = run(*command, "--for", "10")
    assert code == 2 and "already exists" in err
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == there
    for more, said in (
        (("--precision", "int8", "--for", "10"), "needs ranges"),
        (("--precision", "fp8", "--for", "8.6", "--data", mlp.data), "no FP8"),
        (
            (*command[6:8], "--for", "8.6", "--trtexec=--hardwareCompatibilityLevel=sameComputeCapability"),
            "TensorRT 8.6 has no hardware compatibility same",
        ),
        ((*command[6:8], "--for", "10", "--trtexec=--stripWeights"), "has its weights"),
        ((*command[6:8], "--for", "9.1"), "9.1 is another one"),
        ((*command[6:8], "--for", "ten"), "is not a TensorRT release"),
    ):
        code, _, err = run("bundle", mlp.model, *more, "-o", tmp_path / "none")
        assert code == 2 and said in err and not (tmp_path / "none").exists(), err
    assert not list(tmp_path.glob(".*.tmp"))


@pytest.mark.parametrize(
    ("reference", "simulated", "expected"),
    [
        (np.float32([1, -3]), np.float32([1.5, -3]), 2 * 0.25 + 2e-4),
        (np.float32([1, -3]), np.float32([np.nan, 0]), 2e-4),
        (np.int64([1, 3]), np.int64([1, 3]), 2e-2),
        (np.float32([0, 0]), np.float32([0, 0]), 1e-12),
        (np.float32([np.inf, 0]), np.float32([0, 0]), None),
        (np.float32([-3.4e38, 0]), np.float32([-65504, 0]), None),
    ],
)
def test_what_an_engine_may_be_off_by(reference, simulated, expected):
    found, unjudged = compute_tolerances([SampleRun({}, {"y": reference}, {"y": simulated})], {"y": 1.7e38})
    assert (found, unjudged) == (({}, ["y"]) if expected is None else ({"y": pytest.approx(expected)}, []))


@pytest.mark.parametrize("precision", [pytest.param("int8", marks=pytest.mark.onnxruntime("1.31")), "fp16"])
def test_a_piece_shows_its_fault_by_itself(run, called, tmp_path, monkeypatch, precision):
    options, folder = save_resnet(tmp_path), tmp_path / "piece"
    start, stop = "/relu/Relu_output_0", "/layer1/Add_output_0"
    code, out, err = run(
        *f"subgraph {options.model} --data {options.data} --batch 4 --precision {precision} --from {start}".split(),
        *f"--to {stop} -o {folder}".split(),
    )
    assert code == 0, err
    names = {"fp32.onnx", "typed.onnx", "inputs.json", "reference.json", "run.sh"}
    assert {Path(line).name for line in out.splitlines()} == {path.name for path in folder.iterdir()} == names
    for name in ("fp32.onnx", "typed.onnx"):
        graph = onnx.load(folder / name).graph
        onnx.checker.check_model(str(folder / name), full_check=True)
        ends = [one for one in (*graph.input, *graph.output)]
        assert [one.name for one in ends] == [start, stop]
        assert {one.type.tensor_type.elem_type for one in ends} == {onnx.TensorProto.FLOAT}
    _, (argv,) = called(folder / "run.sh", "--onnxrt")
    assert judged(folder, argv, monkeypatch) == 0
    fp32 = [str(folder / "fp32.onnx") if one == "typed.onnx" else one for one in argv]
    fp32[fp32.index("--atol") + 1] = "1e-5"  # what FP32 really makes of what really goes in
    assert judged(folder, fp32, monkeypatch) == 0
    code, calls = called(folder / "run.sh", "--reduce")
    assert code == 0 and [one[1] for one in calls] == ["run", "data", "debug"] and "--strongly-typed" in calls[2]
    assert calls[0][-2:] == ["--onnx-outputs", "*"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--from", "/relu/Relu_output", "--to", "/layer1/Add_output_0"), "Did you mean /relu/Relu_output_0"),
        (("--from", "/layer1/relu1/Relu_output_0", "--to", "/layer1/Add_output_0"), "alone"),
        (("--from", "image"), "Missing option '--to'"),
    ],
)
def test_a_piece_that_is_none_is_refused(run, tmp_path, more, said):
    options = save_resnet(tmp_path)
    code, _, err = run(
        "subgraph", options.model, "--data", options.data, "--precision", "fp16", *more, "-o", tmp_path / "piece"
    )
    assert code == 2 and said in err and "Traceback" not in err and not (tmp_path / "piece").exists(), err
