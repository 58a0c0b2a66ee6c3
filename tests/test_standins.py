"""`tests.standins`: the API and the words of the stand-ins; `tests.test_tensorrt_backend` builds and runs with them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import standins


def said(release: str, check: str, real: bool = False) -> dict:
    """What a function of `tests.standins.checks` prints in a process that has the stand-in, or the real package."""
    about = {"STANDIN_RELEASE": release} if real else standins.environment(release)
    done = subprocess.run([sys.executable, "-m", "tests.standins.checks", check], cwd=Path(__file__).parent.parent,
                          env={**os.environ, **about}, timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("release", standins.RELEASES)
def test_a_class_has_the_members_of_its_release_and_no_other(release: str) -> None:
    found = said(release, "members")
    assert found["extra"] == [] and found["lacking"] == []
    assert found["unknown"] == {"module": "AttributeError", "class": "AttributeError", "instance": "AttributeError",
                                "set": "AttributeError", "method set": "AttributeError", "constructor": "TypeError",
                                "monitor": "TypeError" if release != "8.6.1" else "AttributeError"}


@pytest.mark.parametrize("release", standins.RELEASES[:3])
def test_the_parser_tells_the_node_it_does_not_take(release: str) -> None:
    found = said(release, "refused")
    assert found["foreign"]["node"] == 1 and "Plugin not found" in found["foreign"]["desc"]
    assert found["bias"]["node"] == 0 and found["garbage"]["node"] == -1
    assert (found["foreign"]["name"], "Conv" in found) == (("", False) if release == "8.6.1" else ("plug", True))


@pytest.mark.rtx
def test_networks_are_parsed_and_refused_as_the_real_tensorrt_rtx_does() -> None:
    pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")
    assert said("rtx-1.7.1", "layers") == said("rtx-1.7.1", "layers", real=True)
    ours, real = (said("rtx-1.7.1", "refused", one) for one in (False, True))
    assert len(ours) == 13 and ours.keys() == real.keys()
    for name, error in ours.items():
        assert real[name]["desc"].startswith(error["desc"])  # the real one goes on with places in its source
        assert {**real[name], "desc": ""} == {**error, "desc": ""}


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
