"""The README's examples: what it shows is printed, what it says to type is taken."""

import re
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import networks
from trt_tui import demo

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()
TOP = TEXT.split("\n## ", 1)[0]
NUMPY = re.search(r"```python\n(.*?)```", TOP, re.S)[1]
PRINTED = re.search(r"```\n\$ (trt-tui compare .*?)\n(.*?)```", TOP, re.S)
ROWS = re.findall(r"^\| ([^|`]+) \| `trt-tui (.*?)` \|$", TOP, re.M)

METRIC = """
def f1(outputs, labels):
    return 100.0 * float((next(iter(outputs.values())).argmax(1) == labels["labels"]).mean())
"""


def test_the_first_lines_hold_what_a_newcomer_needs():
    assert len(TOP.rstrip().splitlines()) <= 40
    assert len(NUMPY.splitlines()) == 4 and len(PRINTED[2].splitlines()) == 12 and len(ROWS) == 5
    assert (Path(demo.__file__).parents[2] / re.search(r"!\[.*?\]\((.*?)\)", TOP)[1]).is_file()


def figures(line: str) -> list[float]:
    return [float(one) for one in re.findall(r"(?<![\w.])\d*\.?\d+", line)]


def test_compare_prints_what_is_shown(run, monkeypatch):
    monkeypatch.chdir(Path(demo.__file__).parent)
    code, out, err = run(*shlex.split(PRINTED[1], comments=True)[1:], "--layers", "none")  # they stand below
    assert code == 0, err
    shown, printed = PRINTED[2].splitlines(), out.splitlines()[:12]
    for one, other in zip(shown, printed, strict=True):
        one, other = (re.sub(r"Runtime [\d.]+ \w+", "Runtime", line) for line in (one, other))
        assert re.sub(r"~?[\d.#±]+", "", one).split() == re.sub(r"~?[\d.#±]+", "", other).split()
        assert figures(other) == pytest.approx(figures(one), rel=0.1, abs=1)


def requirements(extra: str) -> list[Requirement]:
    """What a checkout needs with an extra, as its metadata say."""
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*map(Requirement, project["dependencies"]), *map(Requirement, project["optional-dependencies"][extra])]


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
@pytest.mark.parametrize("extra", ["cpu", "test"])
def test_the_readmes_commands_install_one_tested_version_of_each_requirement(extra, python):
    lines = (ROOT / "tests" / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    pinned = {}
    for pin in pins:
        if pin.marker is None or pin.marker.evaluate({"python_version": python}):
            assert re.fullmatch(r"==[^*,]+", str(pin.specifier)) and canonicalize_name(pin.name) not in pinned, pin
            pinned[canonicalize_name(pin.name)] = str(pin.specifier).removeprefix("==")
    for one in requirements(extra):
        assert pinned[canonicalize_name(one.name)] in one.specifier, one
    command, = (line for line in TEXT.splitlines() if f"'.[{extra}]'" in line and "-m venv" in line)
    assert " -c tests/constraints.txt " in command


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with what the README's commands name; its samples are made by the README's lines."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    dataset = [SimpleNamespace(x=rng.random((3, 32, 32), dtype=np.float32), label=at % 10) for at in range(16)]
    exec(NUMPY, {"dataset": dataset, "preprocess": lambda one: one.x})
    model = networks.small_resnet()
    for name in ("model.onnx", "quantized.onnx", "fp32.onnx"):
        onnx.save(model, name)
    Path("metric.py").write_text(METRIC)
    Path("trtexec.sh").write_text("trtexec --onnx=model.onnx --fp16 --saveEngine=model.plan\n")
    Path("production.plan").write_bytes(b"no engine")
    return tmp_path


@pytest.mark.parametrize(("trouble", "command"), ROWS)
def test_each_trouble_has_a_command_that_is_taken(run, folder, trouble, command):
    code, _, err = run(*shlex.split(command))
    if "--engine" in command:
        assert code in (2, 3) and "No such option" not in err  # there is no engine, and here nothing that loads one
        return
    assert code == 0, err
    assert not re.search("-o (.*)", command) or Path(shlex.split(command)[-1]).exists()
    shutil.rmtree("bundle", ignore_errors=True)
