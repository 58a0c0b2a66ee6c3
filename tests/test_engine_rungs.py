"""Engines that TensorRT refuses as asked: the rungs that are tried, and what stands in reports, on stand-ins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import standins
from tests.driven import isolate, save_mlp
from tests.schemas import mismatches

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def _isolated(monkeypatch, tmp_path):
    isolate(monkeypatch, tmp_path)


@pytest.fixture
def mlp(tmp_path):
    return save_mlp(tmp_path)


def command(release: str, fault: str, *arguments: object) -> subprocess.CompletedProcess:
    """Runs a command where a release's stand-in is installed that refuses something."""
    environment = {**os.environ, **standins.environment(release), "STANDIN_FAULT": fault}
    return subprocess.run([sys.executable, "-m", "trt_tui", *map(str, arguments)], cwd=ROOT, env=environment,
                          capture_output=True, text=True, timeout=120)


def compared(release: str, fault: str, mlp, *more: object) -> tuple[subprocess.CompletedProcess, dict]:
    """A comparison with engines, and the runs of its record, which is always written and fits its schema."""
    out = Path(mlp.model).with_suffix(".json")
    done = command(release, fault, "compare", mlp.model, "--data", mlp.data, "--batch", 4, "--engines", "--no-layers",
                   "--json", out, "--markdown", out.with_suffix(".md"), *more)
    record = json.loads(out.read_text())
    assert mismatches(record, "comparison-v1") == [] and "Traceback" not in done.stderr
    assert record["runs"]["int8"]["source"] == "simulated" and record["runs"]["int8"]["outputs"]["y"]
    return done, record["runs"]


def told(tmp_path) -> list[dict]:
    """What the engines in the cache were told."""
    paths = (tmp_path / "cache" / "trt-tui" / "engines").glob("*/*")
    return [standins.header(path.read_bytes())["config"] for path in paths]


def rungs(run: dict) -> list[str]:
    return [one["rung"] for one in run["rungs"]]


@pytest.mark.parametrize("release", ["8.6.1", "11.4.0"])
def test_an_int8_layer_that_the_message_names_is_raised_and_the_figures_are_of_what_was_made(mlp, release) -> None:
    done, runs = compared(release, "no int8: /fc2/MatMul", mlp)
    assert done.returncode == 0
    engine = runs["int8-engine"]
    assert rungs(engine) == ["asked", "named"] and engine["as_asked"] is False
    assert "Could not find any implementation" in engine["rungs"][0]["failed"]
    assert engine["rungs"][1]["raised"] == engine["made_otherwise"] == {"/fc2/MatMul": "fp16"}
    assert engine["engine_layers"]["/fc2/MatMul"]["precision"] == "fp16"
    made, asked = engine["made_simulated"]["outputs"]["y"]["sqnr_db"], runs["int8"]["outputs"]["y"]["sqnr_db"]
    assert made != asked and abs(engine["outputs"]["y"]["sqnr_db"] - made) < 1
    assert runs["fp16-engine"]["rungs"] == [{"rung": "asked", "said": "as asked"}]
    assert not {"as_asked", "made_otherwise", "made_simulated", "failed"} & runs["fp16-engine"].keys()
    text = Path(mlp.model).with_suffix(".md").read_text()
    assert "## How the INT8 engine was built" in text and "| /fc2/MatMul raised to FP16 | built |" in text
    assert "INT8 engine, otherwise" in text and "| `/fc2/MatMul` | FP16 |" in text
    titles = [line.split("  ")[0] for line in done.stdout.splitlines()]
    assert "INT8 engine" not in titles, "no figure of what was made stands as one of what was asked"
    assert {"INT8 engine, otherwise", "INT8 engine, otherwise, simulated", "FP16 engine"} <= set(titles)
    assert "INT8 engine: NOT of the config asked for; what was tried:" in done.stdout
    assert "  built in another precision than asked: /fc2/MatMul in FP16" in done.stdout


def test_told_precisions_are_preferred_and_then_not_told(mlp, tmp_path) -> None:
    done, runs = compared("8.6.1", "no constraints", mlp)
    engine = runs["fp16-engine"]
    assert rungs(engine) == ["asked", "prefer", "free"] and engine["as_asked"] is False and engine["outputs"]["y"]
    (config,) = [one for one in told(tmp_path) if one["flags"]]
    assert config["flags"] == ["FP16"] and config["layer_precisions"] == config["output_types"] == {}
    assert rungs(runs["int8-engine"]) == ["asked"], "nothing is told there that could be let go"
    assert done.returncode == 1 and "Engine of int8 not built: TensorRT could not build" in done.stderr
    assert runs["int8-engine"]["failed"] and "outputs" not in runs["int8-engine"]
    assert "INT8 engine, not built" in Path(mlp.model).with_suffix(".md").read_text()
    assert any(" ".join(line.split()) == "INT8 engine not built" for line in done.stdout.splitlines())


def test_where_no_engine_can_be_built_the_simulation_is_written_and_the_exit_code_says_so(mlp) -> None:
    done, runs = compared("10.16.1", "out of memory", mlp)
    assert done.returncode == 2 and "~" in done.stdout and done.stdout.count("not built") >= 3
    for run in ("fp32-engine", "fp16-engine", "int8-engine"):
        assert "ran out of device memory" in runs[run]["failed"]
        assert rungs(runs[run]) == ["asked"], "a lack of memory is no reason to ask for something else"


def test_a_crash_of_the_library_is_a_row_too(mlp) -> None:
    done, runs = compared("10.16.1", "segfault", mlp)
    assert done.returncode == 2 and "child process" in runs["int8-engine"]["failed"]


def test_strict_builds_as_asked_or_not_at_all_whatever_is_known(mlp) -> None:
    fault = "no int8: /fc2/MatMul"
    assert compared("10.16.1", fault, mlp)[1]["int8-engine"]["as_asked"] is False
    done, runs = compared("10.16.1", fault, mlp, "--strict")
    assert done.returncode == 1 and rungs(runs["int8-engine"]) == ["asked"] and runs["int8-engine"]["failed"]
    assert "failed" not in runs["fp16-engine"]


def test_build_says_what_it_wrote_in_place_of_what_was_asked(mlp, tmp_path) -> None:
    engine = tmp_path / "out.engine"
    words = ("build", mlp.model, "--data", mlp.data, "--batch", 4, "--precision", "int8", "-o", engine)
    refused = command("11.4.0", "no int8: /fc2/MatMul", *words, "--strict")
    assert refused.returncode == 2 and not engine.exists() and "it failed at /fc2/MatMul" in refused.stderr
    done = command("11.4.0", "no int8: /fc2/MatMul", *words)
    assert done.returncode == 1 and done.stdout == f"{engine}\n"
    assert "Not the engine of this config" in done.stderr and "/fc2/MatMul raised to FP16" in done.stderr
    layers = standins.header(engine.read_bytes())["layers"]
    assert {layer["precision"] for layer in layers if "/fc2/MatMul" in layer["nodes"]} == {"Half"}


def test_a_search_is_not_confirmed_by_an_engine_of_another_config(mlp, tmp_path) -> None:
    done = command("8.6.1", "no int8: /fc2/MatMul", "search", mlp.model, "--data", mlp.data, "--batch", 4,
                   "--tolerance", "sqnr>=10", "-o", tmp_path / "found.json", "--markdown", tmp_path / "found.md")
    assert done.returncode == 0, done.stderr
    assert "its engine meets it" not in done.stdout and "built as asked, was judged" in done.stdout
    assert "which is not of the config found, meets it" in done.stdout
    search = json.loads((tmp_path / "found.json").read_text())["evidence"]["search"]
    assert "confirmed_by_engine" not in search and "/fc2/MatMul raised to FP16" in " ".join(search["remarks"])
    assert "which is not of the config found" in (tmp_path / "found.md").read_text()
