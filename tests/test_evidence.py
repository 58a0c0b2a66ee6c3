"""The result of an engine built elsewhere: a bundle's verify.sh writes it, and ``compare --evidence`` reads it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from polygraphy.comparator import RunResults

from tests import standins
from tests.schemas import mismatches
from trt_tui.core.data.polygraphy_json import RunResultsWriter
from trt_tui.core.importers.engine_evidence import read_engine_evidence
from trt_tui.core.network.network import open_network
from trt_tui.errors import InputError


@pytest.fixture
def evidence(run, mlp, tmp_path):
    """Writes a bundle, and the result of an engine whose outputs a function makes of the reference."""

    def write(release: str, change=lambda array: array * np.float32(1.01)) -> Path:
        folder = tmp_path / f"bundle-{release}"
        family = {"10.16.1": "10", "11.4.0": "11", "8.6.1": "8.6"}[release]
        code, _, err = run("export", mlp.model, "--data", mlp.data, "--batch", 4, "--precision", "fp16", "--format",
                           "bundle", "--for", family, "-o", folder)
        assert code == 0, err
        reference = next(iter(RunResults.load(str(folder / "reference.json")).items()))[1]
        with open(folder / "outputs.json", "wb") as stream, RunResultsWriter(stream) as writer:
            writer.begin_runner("trt")
            for iteration in reference:
                writer.add_iteration({"y": change(np.asarray(iteration["y"]))})
        (folder / "model.engine.graph.json").write_text(json.dumps({"Layers": [
            {"Name": "fc1", "LayerType": "gemm", "Metadata": "[ONNX Layer: /fc1/Gemm]", "TacticName": "k", "Weights":
             {"Type": "Half", "Count": 512}, "Inputs": [{"Name": "x", "Format/Datatype": "Half"}],
             "Outputs": [{"Name": "a", "Dimensions": [4, 32], "Format/Datatype": "Half"}]}]}))
        done = subprocess.run([sys.executable, "evidence.py", "model.engine.graph.json"], cwd=folder, text=True,
                              env={**os.environ, **standins.environment(release)}, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return folder / "result.json"

    return write


@pytest.mark.parametrize("release", ["8.6.1", "10.16.1", "11.4.0"])
def test_an_engine_from_elsewhere_is_shown_beside_its_simulation(evidence, run, mlp, tmp_path, release) -> None:
    path, record_path = evidence(release), tmp_path / "comparison.json"
    text = path.read_text()
    assert "Count" not in text and len(text) < 8000, "no weights and no samples"
    written = json.loads(text)
    assert written["release"] == release and written["outputs"]["y"]["sqnr_db"] == pytest.approx(40, abs=0.1)
    code, out, err = run("compare", mlp.model, "--data", mlp.data, "--layers", "none", "--no-preview", "--evidence",
                         path, "--json", record_path)
    assert code == 0, err
    assert f"result.json: TensorRT {release}" in out and "1 engine layer" in out
    line = next(line for line in out.splitlines() if line.startswith("  y: "))
    assert "40.0 dB as built there" in line and "simulated on the same samples" in line
    assert "which rounding does not explain" in line, "FP16 of this network has 60 dB"
    record = json.loads(record_path.read_text())
    assert record["evidence"][0]["outputs"]["y"]["engine"]["sqnr_db"] == pytest.approx(40, abs=0.1)
    assert not mismatches(record, "comparison-v1")


def test_an_engine_as_good_as_its_simulation_is_not_blamed_and_nan_is(evidence, mlp) -> None:
    network = open_network(mlp.model)
    sound = read_engine_evidence(evidence("10.16.1", lambda array: array.astype(np.float16).astype(np.float32)),
                                 network)
    assert not any("rounding" in line for line in sound.lines)
    broken = sound.outputs["y"]
    lines = type(sound)("f", "b", "", "", {"y": type(broken)(nan=3)}, sound.simulated).lines
    assert "kernel error, not rounding" in lines[1]


HOSTILE = [
    (lambda record: record.update(network="0" * 64), "another network"),
    (lambda record: record.update(format="x"), "format and version"),
    (lambda record: record.update(outputs={}), "not a table of outputs"),
    (lambda record: record.update(outputs={"y": 3}), "has no errors"),
    (lambda record: record["outputs"]["y"].update(sqnr_db="1e3"), "not a valid number"),
    (lambda record: record["outputs"]["y"].update(max_abs=-1), "not a valid number"),
    (lambda record: record["outputs"]["y"].update(mean_abs=True), "not a valid number"),
    (lambda record: record["outputs"]["y"].update(nan=-1), "not a count"),
    (lambda record: record["outputs"]["y"].update(exact=True), "an exact result has no error"),
    (lambda record: record.update(gpu="x" * 5000), "not a short text"),
    (lambda record: record.update(gpu=["x"]), "not a short text"),
    (lambda record: record.update(builder="other"), "builder is unknown"),
    (lambda record: record.update(layers=[{"Name": "a", "Inputs": 3}]), "layers cannot be read"),
    (lambda record: record.update(layers={"a": 1}), "not a list of engine layers"),
    (lambda record: record["outputs"]["y"].update(sqnr_db=float("nan")), "not a number"),
    (lambda record: record.update(deep=[[[[[[[[[[1]]]]]]]]]]), "nested too deeply"),
]


def test_a_file_from_elsewhere_is_checked(evidence, mlp, tmp_path) -> None:
    text, network = evidence("10.16.1").read_text(), open_network(mlp.model)
    path = tmp_path / "hostile.json"
    for spoil, cause in HOSTILE:
        record = json.loads(text)
        spoil(record)
        path.write_text(json.dumps(record))
        with pytest.raises(InputError) as raised:
            read_engine_evidence(path, network)
        assert cause in f"{raised.value.title} {raised.value.cause}", cause
    for content in (b"", b"[]", b"\xff\xfe", b"{" * 2000, b"[" * 100_000, b'{"a": 1', text[:200].encode()):
        path.write_bytes(content)
        with pytest.raises(InputError):
            read_engine_evidence(path, network)


def test_names_from_elsewhere_reach_no_terminal_as_they_are(evidence, run, mlp, tmp_path) -> None:
    record = json.loads(evidence("10.16.1").read_text())
    record["gpu"] = "\x1b[31mGPU\n"
    record["outputs"]["\x1b[2J"] = record["outputs"]["y"]
    path = tmp_path / "names.json"
    path.write_text(json.dumps(record))
    code, out, err = run("compare", mlp.model, "--data", mlp.data, "--layers", "none", "--no-preview", "--evidence",
                         path)
    assert code == 0 and "\x1b" not in out + err, err
