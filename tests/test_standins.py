"""`tests.standins`: stand-ins for TensorRT's Python package, through Polygraphy's own loaders and runner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import standins

WEAK, STRONG = standins.RELEASES[:2], standins.RELEASES[1:]


def run(release: str, check: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess:
    """Runs a function of `tests.standins.checks` in a process that has the stand-in."""
    environment = {**os.environ, **standins.environment(release), **variables}
    return subprocess.run([sys.executable, "-m", "tests.standins.checks", check, *map(str, arguments)], timeout=120,
                          env=environment, capture_output=True, text=True, cwd=Path(__file__).parent.parent)


def said(release: str, check: str, *arguments: object, **variables: str) -> dict:
    """What the check prints."""
    done = run(release, check, *arguments, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("release", standins.RELEASES)
def test_a_class_has_the_members_of_its_release_and_no_other(release: str) -> None:
    found = said(release, "members")
    assert found["extra"] == [] and found["lacking"] == []
    assert found["unknown"] == {"module": "AttributeError", "class": "AttributeError", "instance": "AttributeError",
                                "set": "AttributeError", "method set": "AttributeError", "constructor": "TypeError",
                                "monitor": "TypeError" if release != "8.6.1" else "AttributeError"}


@pytest.mark.parametrize("release", standins.RELEASES)
def test_polygraphy_builds_and_runs_a_network(release: str, tmp_path: Path) -> None:
    found = said(release, "build_and_run", tmp_path / "timing.cache")
    assert found["difference"] == 0 and found["largest"] > 0
    assert found["config"]["timing_cache"]["found"] == 0 and found["cached"]["missed"] == (
        0 if not release.startswith("rtx") else found["config"]["timing_cache"]["missed"])
    assert set(found["times"]) == set(found["layers"]) and min(found["times"].values()) > 0
    assert ("FP16" in found["config"]["flags"]) == (release in WEAK) and "TF32" not in found["config"]["flags"]
    assert "failed to set shape to: (5, 3, 4, 4)" in found["out of profile"]


@pytest.mark.parametrize("release", standins.RELEASES)
def test_the_inspector_speaks_as_its_release(release: str) -> None:
    found = json.loads(said(release, "inspect")["information"])
    layers = {layer["Name"]: layer for layer in found["Layers"]}
    if release in WEAK:
        assert found["Bindings"] == ["x", "y"]
        conv = layers["w + w_q + conv1 + relu1"]
        nodes = ("w_q", "w_dq", "x_dq", "conv1", "relu1")
        metadata = "\x1e".join(f"[ONNX Layer: {node}]" for node in nodes)
        assert conv.get("Metadata") == (metadata if release == "10.16.1" else None)
        assert "Int8" in conv["Inputs"][0]["Format/Datatype"] and "FP16" in conv["Outputs"][0]["Format/Datatype"]
        assert "Reformatting CopyNode for Output Tensor 0 to " in " ".join(layers)
    else:
        assert [one["Name"] for one in found["I/O Tensors"]] == ["x", "y"]
        assert layers["conv1_myl0_1"]["Inputs"][0]["Datatype"] == "Int8"
        assert layers["conv1_myl0_1"]["Metadata"].split("\x1f")[-1] == "[ONNX Layer: conv1]"
    region = "{ForeignNode[mm...mm2]}"
    assert (region in layers) == (release == "8.6.1")
    assert any(name.startswith("__myl_") for name in layers) == (release != "8.6.1")


@pytest.mark.parametrize("release", standins.RELEASES)
def test_the_parser_names_the_node_it_does_not_take(release: str) -> None:
    found = said(release, "refused")
    assert found["foreign"]["node"] == 1 and "Plugin not found" in found["foreign"]["desc"]
    assert found["bias"]["node"] == 0 and "Int32" in found["bias"]["desc"]
    assert found["garbage"]["node"] == -1
    if release != "8.6.1":
        assert (found["foreign"]["name"], found["foreign"]["operator"]) == ("plug", "MyOp")
    if release in STRONG:
        assert "must be of same type" in found["mixed"]["desc"] and "conv1" in found["mixed"]["desc"]


@pytest.mark.parametrize("release", STRONG)
def test_a_progress_monitor_stops_a_build(release: str) -> None:
    found = said(release, "cancelled", STANDIN_STEP_SECONDS="0.01")
    assert found["engine"] is None and any("cancelled" in text for text in found["messages"])
    assert found["phases"]["Timing graph nodes"] == "Computing profile costs" and found["open"] == []
    assert found["threads"] >= 2


@pytest.mark.parametrize("release", standins.RELEASES)
def test_faults(release: str) -> None:
    found = said(release, "faults", "fail: conv1", "out of memory", *(["no gpu"] if release[0].isdigit() else []))
    assert "Could not find any implementation for node conv1" in found.pop("fail: conv1")
    assert "OutOfMemory" in found.pop("out of memory")
    assert all("error: 35" in message for message in found.values())
    assert run(release, "faults", "segfault").returncode == -signal.SIGSEGV


def test_an_engine_of_another_release_or_gpu_is_refused(tmp_path: Path) -> None:
    for number, release in enumerate(standins.RELEASES):
        found = said(release, "engines", tmp_path / "engine")
        assert found["own"] == "" and "incompatible device" in found["gpu"] and "magicTag" in found["cut"]
        assert ("Version tag does not match" in found["other"]) == (number > 0)


@pytest.mark.parametrize("release", WEAK)
def test_weak_typing_obeys_layer_precisions(release: str) -> None:
    found = said(release, "told")
    assert found["precisions"] == {"conv1 + relu1": "Int8", "fc": "Float"}
    assert found["refused"].startswith("IBuilder::buildSerializedNetwork: Error Code 4") and "int8" in found["refused"]
    assert found["no range"].endswith("Could not find any implementation for node fc.)")


@pytest.mark.parametrize("release", ["8.6.1", "11.4.0"])
def test_int64_is_int32_before_tensorrt_10(release: str) -> None:
    dtype = "INT32" if release == "8.6.1" else "INT64"
    assert said(release, "integers") == {"dtype": dtype, "given": dtype.lower(), "values": [4, 2**20 + 4]}


@pytest.mark.rtx
def test_nodes_become_the_layers_that_tensorrt_rtx_makes_of_them() -> None:
    real = pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")
    found = said("rtx-1.7.1", "layers")
    for name, expected in found["layers"].items():
        network = real.Builder(log := real.Logger(real.Logger.INTERNAL_ERROR)).create_network(0)
        assert real.OnnxParser(network, log).parse(bytes.fromhex(found["models"][name]))
        layers = [network.get_layer(index) for index in range(network.num_layers)]
        assert [[layer.type.name, layer.metadata] for layer in layers if layer.metadata] == expected


@pytest.mark.rtx
def test_the_rtx_api_is_that_of_the_package_installed() -> None:
    real = pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")
    if not real.__version__.startswith("1.7.1"):
        pytest.skip(f"TensorRT-RTX {real.__version__} is another release")
    api = json.loads((Path(standins.__file__).parent / "api" / "rtx-1.7.1.json").read_text())
    for name in ("Builder", "IBuilderConfig", "ICudaEngine", "IExecutionContext", "LayerType", "ParserError"):
        public = {member for member in dir(getattr(real, name)) if not member.startswith("_")}
        assert {member.removesuffix("()") for member in api[name]} - {"__init__"} == public


def test_a_listing_is_reduced_to_names() -> None:
    from tests.standins import reduce_api

    listing = {"IThing": {"__init__": "", "run": "run(self) -> bool"}, "float32": "DataType", "f": ""}
    assert reduce_api.reduce(listing) == {"": ["float32=DataType", "f"], "IThing": ["__init__", "run()"]}
