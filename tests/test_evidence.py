"""The result of an engine built elsewhere: a bundle's verify.sh writes it, and ``compare --evidence`` reads it."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

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


def reread(path: Path, network, outputs: dict, simulated: dict):
    """Reads the evidence with other errors at the output of the network."""
    record = json.loads(path.read_text())
    record["outputs"]["y"], record["simulated"]["y"] = outputs, simulated
    other = path.with_name("other.json")
    other.write_text(json.dumps(record))
    return read_engine_evidence(other, network)


EXACT, WITHOUT_SIGNAL = {"exact": True, "max_abs": 0.0, "mean_abs": 0.0}, {"sqnr_db": None, "max_abs": 1e3,
                                                                        "mean_abs": 100.0}


@pytest.mark.parametrize(("outputs", "simulated", "blame"), [
    ({"sqnr_db": 3.0}, EXACT, "far from the exact simulation, which rounding does not explain"),
    ({"sqnr_db": 59.0}, EXACT, "which rounding does not explain"),
    ({"sqnr_db": 90.0}, EXACT, ""),
    (EXACT, EXACT, ""),
    (EXACT, {"sqnr_db": 60.0}, ""),
    (WITHOUT_SIGNAL, EXACT, "an error of 1000 without an SQNR, which rounding does not explain"),
    (WITHOUT_SIGNAL, {"sqnr_db": 60.0}, "which rounding does not explain"),
    (WITHOUT_SIGNAL, {"max_abs": 1.0, "mean_abs": 0.1}, "which rounding does not explain"),
    (WITHOUT_SIGNAL, {"max_abs": 900.0, "mean_abs": 99.0}, ""),
    ({"nan": 1}, EXACT, "a kernel error, not rounding"),
    ({"nan": 1}, {"nan": 1}, ""),
    ({"sqnr_db": 3.0}, {"inf": 1}, ""),
])
def test_an_engine_is_blamed_for_what_its_simulation_does_not_have(evidence, mlp, outputs, simulated, blame) -> None:
    read = reread(evidence("10.16.1"), open_network(mlp.model), outputs, simulated)
    line = next(line for line in read.lines if line.startswith("  y: "))
    assert (blame in line) if blame else ("rounding" not in line)
    assert "inf dB" not in line and "nan" not in line


def test_integers_are_not_blamed_and_outputs_without_errors_are_listed(evidence, mlp) -> None:
    read = reread(evidence("10.16.1"), open_network(mlp.model), {"sqnr_db": 3.0}, EXACT)
    integers = replace(read, integer_outputs=frozenset(["y"]), missing_outputs=("z", "mask"))
    assert "near ties of integers may explain" in integers.lines[1] and "rounding" not in integers.lines[1]
    assert "not in the file: z, mask" in integers.lines[-1] and integers.to_record()["missing_outputs"] == ["z", "mask"]
    assert "its simulation is not in the file" in replace(read, simulated={}).lines[1]


def test_outputs_of_the_network_that_the_file_lacks_are_found(evidence, mlp) -> None:
    path, network = evidence("10.16.1"), open_network(mlp.model)
    assert read_engine_evidence(path, network).missing_outputs == ()
    outputs = (*network.outputs, replace(network.outputs[0], name="other"))
    outline = SimpleNamespace(name=network.name, structure_sha256=network.structure_sha256, outputs=outputs,
                              inputs=network.inputs, layers=network.layers, groups=network.groups)
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "layers": []}))
    read = read_engine_evidence(path, outline)
    assert read.missing_outputs == ("other",) and "not in the file: other" in read.lines[-1]


HOSTILE = [
    (lambda record: record.update(network="0" * 64), "another network"),
    (lambda record: record.update(format="x"), "format and version"),
    (lambda record: record.update(outputs={}), "not a table of outputs"),
    (lambda record: record.update(outputs={"y": 3}), "has no errors"),
    (lambda record: record["outputs"]["y"].update(sqnr_db="1e3"), "not a valid number"),
    (lambda record: record["outputs"]["y"].update(max_abs=-1), "not a valid number"),
    (lambda record: record["outputs"]["y"].update(mean_abs=True), "not a valid number"),
    (lambda record: record["outputs"]["y"].update(max_abs=10**400), "not a valid number"),
    (lambda record: record["outputs"]["y"].update(sqnr_db=-10**400), "not a valid number"),
    (lambda record: record["simulated"]["y"].update(mean_abs=10**400), "not a valid number"),
    (lambda record: record["outputs"]["y"].update(sqnr_db=1e308), "not a valid number"),
    (lambda record: record["outputs"]["y"].update(nan=-1), "not a count"),
    (lambda record: record["outputs"]["y"].update(nan=10**4000), "not a count"),
    (lambda record: record["outputs"]["y"].update(inf=10**30), "not a count"),
    (lambda record: record["outputs"]["y"].update(exact=True), "an exact result has no error"),
    (lambda record: record["outputs"].update(y={"exact": True, "max_abs": 3.0}), "an exact result has no error"),
    (lambda record: record["outputs"].update(y={"max_abs": 0.0}), "a result without an error is exact"),
    (lambda record: record["outputs"].update(y={}), "has no errors"),
    (lambda record: record["simulated"].update(y={"nan": 0}), "has no errors"),
    (lambda record: record.update(outputs={"other": record["outputs"]["y"]}), "names outputs that"),
    (lambda record: record["simulated"].update(other=record["outputs"]["y"]), "names outputs that"),
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
    path = tmp_path / "names.json"
    for expected_code in (0, 2):
        path.write_text(json.dumps(record))
        code, out, err = run("compare", mlp.model, "--data", mlp.data, "--layers", "none", "--no-preview", "--evidence",
                             path)
        assert code == expected_code and "\x1b" not in out + err, err
        record["outputs"]["\x1b[2J"] = record["outputs"]["y"]
    assert "names outputs that" in err and "verify.sh" in err
