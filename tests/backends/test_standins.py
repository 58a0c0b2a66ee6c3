"""`tests.standins`: the API and the words of the stand-ins; `test_tensorrt_backend` builds and runs with them."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import trt_tui
from tests import ROOT, standins


def said(release: str, check: str, real: bool = False) -> dict:
    """What a function of `tests.standins.checks` prints in a process that has the stand-in, or the real package."""
    about = {"STANDIN_RELEASE": release} if real else standins.environment(release)
    done = subprocess.run(
        [sys.executable, "-m", "tests.standins.checks", check],
        cwd=ROOT,
        env={**os.environ, **about},
        timeout=120,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("release", standins.RELEASES)
def test_a_class_has_the_members_of_its_release_and_no_other(release: str) -> None:
    found = said(release, "members")
    assert found["extra"] == [] and found["lacking"] == []
    assert found["unknown"] == {
        "module": "AttributeError",
        "class": "AttributeError",
        "instance": "AttributeError",
        "set": "AttributeError",
        "method set": "AttributeError",
        "constructor": "TypeError",
        "monitor": "TypeError" if release != "8.6.1" else "AttributeError",
    }


CALLED = {
    "builder": "Builder",
    "network": "INetworkDefinition",
    "parser": "OnnxParser",
    "config": "IBuilderConfig",
    "engine": "ICudaEngine",
    "context": "IExecutionContext",
    "inspector": "EngineInspector",
    "tensor": "ITensor",
    "cache": "ITimingCache",
    "shapes": "IOptimizationProfile",
    "trt": "",
}
"""Classes by what the backend calls their objects."""

TARGETS = {"num_compute_capabilities", "set_compute_capability", "ComputeCapability"}
LACKED = {
    "8.6.1": {
        "progress_monitor",
        "set_all_tensors_debug_state",
        "set_debug_listener",
        "unfused_tensors_debug_state",
        "mark_unfused_tensors_as_debug_tensors",
        "load_initializer",
        "load_model_proto",
        "parse_model_proto",
        "IAttentionInputLayer",
        "IDebugListener",
        "IProgressMonitor",
        *TARGETS,
    },
    "10.16.1": TARGETS,
    "11.4.0": TARGETS,
    "rtx-1.7.1": set(),
}
"""What the backend names and a release has not; it asks whether that is there, or is another's alone."""


@pytest.mark.parametrize("release", LACKED)
def test_the_backend_names_what_a_release_declares_or_is_known_to_lack(release: str) -> None:
    api = {
        name: {one.removesuffix("()").partition("=")[0] for one in members}
        for name, members in json.loads(
            (Path(standins.__file__).parent / "api" / f"{release}.json").read_text()
        ).items()
    }
    lacked, named = set(), 0
    source = (Path(trt_tui.__file__).parent / "backends" / "tensorrt.py").read_text("utf-8")
    for node in ast.walk(ast.parse(source)):
        owner = node.value if isinstance(node, ast.Attribute) else None
        called = (ast.unparse(owner) if owner is not None else "").rpartition(".")[2].lstrip("_")
        if called in CALLED and not node.attr.startswith("__") and node.attr != "USE_TENSORRT_RTX":
            named += 1
            declared = api[CALLED[called]] | (api.keys() if called == "trt" else set())
            lacked |= {node.attr} - declared
    assert lacked == LACKED[release] and named > 100


@pytest.mark.parametrize("release", standins.RELEASES[:3])
def test_the_parser_tells_the_node_it_does_not_take(release: str) -> None:
    found = said(release, "refused")
    assert found["foreign"]["node"] == 1 and "Plugin not found" in found["foreign"]["desc"]
    assert found["bias"]["node"] == 0 and found["garbage"]["node"] == -1
    assert (found["foreign"]["name"], "Conv" in found) == (("", False) if release == "8.6.1" else ("plug", True))


@pytest.mark.rtx("1.7.1")
def test_networks_are_parsed_and_refused_as_the_real_tensorrt_rtx_does() -> None:
    assert said("rtx-1.7.1", "layers") == said("rtx-1.7.1", "layers", real=True)
    ours, real = (said("rtx-1.7.1", "refused", one) for one in (False, True))
    assert len(ours) == 13 and ours.keys() == real.keys()
    for name, error in ours.items():
        assert real[name]["desc"].startswith(error["desc"])  # the real one goes on with places in its source
        assert {**real[name], "desc": ""} == {**error, "desc": ""}


@pytest.mark.rtx("1.7.1")
def test_the_rtx_api_is_that_of_the_package_installed() -> None:
    import tensorrt_rtx as real

    api = json.loads((Path(standins.__file__).parent / "api" / "rtx-1.7.1.json").read_text())
    for name in ("Builder", "IBuilderConfig", "ICudaEngine", "IExecutionContext", "LayerType", "ParserError"):
        public = {member for member in dir(getattr(real, name)) if not member.startswith("_")}
        assert {member.removesuffix("()") for member in api[name]} - {"__init__"} == public


def test_a_listing_is_reduced_to_names() -> None:
    from tests.standins import reduce_api

    listing = {"IThing": {"__init__": "", "run": "run(self) -> bool"}, "float32": "DataType", "f": ""}
    assert reduce_api.reduce(listing) == {"": ["float32=DataType", "f"], "IThing": ["__init__", "run()"]}
