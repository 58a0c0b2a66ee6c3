"""`tests.standins`: the API and the words of the stand-ins; `tests.test_tensorrt_backend` builds and runs with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import standins

WEAK, STRONG = standins.RELEASES[:2], standins.RELEASES[1:]


def said(release: str, check: str) -> dict:
    """What a function of `tests.standins.checks` prints in a process that has the stand-in."""
    done = subprocess.run([sys.executable, "-m", "tests.standins.checks", check], cwd=Path(__file__).parent.parent,
                          env={**os.environ, **standins.environment(release)}, timeout=120, capture_output=True,
                          text=True)
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


@pytest.mark.parametrize("release", WEAK)
def test_weak_typing_obeys_layer_precisions(release: str) -> None:
    found = said(release, "told")
    assert found["precisions"] == {"conv1 + relu1": "Int8", "fc": "Float"}
    assert found["refused"].startswith("IBuilder::buildSerializedNetwork: Error Code 4") and "int8" in found["refused"]
    assert found["no range"].endswith("Could not find any implementation for node fc.)")


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
