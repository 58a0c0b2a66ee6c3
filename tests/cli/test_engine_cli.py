"""trt_tui.cli.main: engines built, compared and shown by commands; data on stdout, the rest on stderr, exit codes."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT, TESTS, standins
from tests.schemas import mismatches
from tests.texts import lacking
from trt_tui import demo

REAL_JSON = TESTS / "inspector" / "8.6-h200-scenes-fp16.json"


def elsewhere(release: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess:
    """Runs a command in a process of its own, where a release's stand-in is installed."""
    return subprocess.run(
        [sys.executable, "-m", "trt_tui", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        env={**os.environ, **standins.environment(release), **variables},
        text=True,
        timeout=120,
    )


def installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


RAISED = "/fc2/MatMul raised to FP16"
PROFILE = "--trtexec=--profile=1 --minShapes=x:5x16 --optShapes=x:6x16 --maxShapes=x:8x16"


def test_build_writes_an_engine_with_options_of_trtexec(command, mlp, config, tmp_path) -> None:
    engine, cache = tmp_path / "model.engine", tmp_path / "team.cache"
    done = command(
        "10.16.1",
        *f"build {mlp.model} --config {config} -o {engine} --shapes x:1x16:4x16:8x16 --trtexec".split(),
        f"--timingCacheFile={cache} --builderOptimizationLevel=0",
        "--trtexec",
        "--tacticSources=-CUBLAS,-CUDNN,+JIT_CONVOLUTIONS --refit --stripWeights --memPoolSize=workspace:0.5G",
    )
    assert done.returncode == 0, done.stderr
    assert not lacking(done.stderr, "level 0", "-CUBLAS, -CUDNN, +JIT_CONVOLUTIONS", "REFIT, STRIP_PLAN", "512 MiB")
    assert done.stdout == f"{engine}\n"
    header = standins.header(engine.read_bytes())
    assert header["release"] == "10.16.1" and header["profiles"] == [{"x": [[1, 16], [4, 16], [8, 16]]}]
    assert header["config"]["network_flags"] == ["STRONGLY_TYPED"]
    assert set(header["config"]["flags"]) == {"REFIT", "STRIP_PLAN"}
    assert header["config"]["pools"] == {"WORKSPACE": 512 << 20}
    assert header["config"]["builder_optimization_level"] == 0 and cache.stat().st_size > 0
    assert header["config"]["tactic_sources"] == ["CUBLAS_LT", "EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS"]
    assert not lacking(done.stderr, "10.16.1", "Stand-in GPU")

    shown = command("10.16.1", "inspect", mlp.model, "--engine", engine)
    assert shown.returncode == 0, shown.stderr
    assert "fc1" in shown.stdout and "INT8" in shown.stdout and "FP32" in shown.stdout
    assert not re.search("error|warning", shown.stderr, re.I)
    other = command("11.4.0", "inspect", mlp.model, "--engine", engine, "--backend", "tensorrt")
    assert other.returncode == 2 and other.stdout.count("\n") <= 1
    assert not lacking(other.stderr, "11.4.0", "Stand-in GPU", "Version tag", "Next: ")


@pytest.mark.parametrize(
    ("release", "variables", "arguments", "code", "said"),
    [
        ("11.4.0", {}, ["--weak", "--shapes", "x:4x16"], 2, "--weak is not possible"),
        ("10.16.1", {"STANDIN_FAULT": "no gpu"}, [], 3, "no TensorRT here can build an engine"),
        ("10.16.1", {"STANDIN_FAULT": "segfault"}, ["--shapes", "x:4x16"], 2, "SIGSEGV"),
    ],
)
def test_a_build_that_cannot_be_leaves_no_file(
    command, mlp, tmp_path, release, variables, arguments, code, said
) -> None:
    engine = tmp_path / "model.engine"
    done = command(release, "build", mlp.model, "--precision", "fp16", "-o", engine, *arguments, **variables)
    assert done.returncode == code and said in done.stderr, done.stderr
    assert done.stdout == "" and "Traceback" not in done.stderr and "Next: " in done.stderr
    assert not engine.exists()


@pytest.mark.rtx
def test_the_real_rtx_builds_for_a_gpu_that_is_not_here(run, mlp, config, tmp_path) -> None:
    if not installed("tensorrt_rtx"):
        pytest.skip("TensorRT-RTX is not installed")
    engine = tmp_path / "model.engine"
    build = ("build", mlp.model, "--config", config, "--backend", "tensorrt-rtx", "--compute-capability")
    code, out, err = run(*build, "8.9", "-o", engine, "--shapes", "x:1x16:4x16:8x16")
    assert code == 0 and out == f"{engine}\n" and engine.stat().st_size > 10_000, err
    assert "8.9" in err
    code, _, err = run(*build, "3.5", "-o", tmp_path / "b.engine", "--shapes", "x:4x16")
    assert code == 2 and "3.5" in err and not (tmp_path / "b.engine").exists()


def test_without_tensorrt_the_way_out_is_said(run, mlp, tmp_path) -> None:
    if installed("tensorrt"):
        pytest.skip("TensorRT is installed")
    code, out, err = run("build", mlp.model, "--precision", "fp16", "-o", tmp_path / "model.engine")
    assert code == 3 and out == "" and "--backend tensorrt-rtx" in err
    code, _, err = run("inspect", mlp.model, "--engine", mlp.data)
    assert code == 3 and "--exportLayerInfo" in err


def test_compare_builds_and_judges_the_engines(command, mlp, config, tmp_path) -> None:
    done = command(
        "10.16.1",
        *f"compare {mlp.model} --data {mlp.data} --batch 4 --config {config} --engines".split(),
        PROFILE,
        *f"--json - --markdown {tmp_path}/out.md --layers none".split(),
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert mismatches(record, "comparison-v1") == []
    engines = {name: run for name, run in record["runs"].items() if run["source"] == "engine"}
    assert set(engines) == {"fp32-engine", "fp16-engine", "int8-engine", "config-engine"}
    assert set(record["runs"]) - set(engines) == {"fp16", "int8", "config"}
    for name, run in engines.items():
        samples = 12 if name == "int8-engine" else 16  # the config gives its ranges
        assert run["backend"] == "TensorRT 10.16.1" and run["gpu"] == "Stand-in GPU" and run["samples"] == samples
        first, other = run["profiles"]
        assert other["shapes"] == {"x": {"min": [5, 16], "opt": [6, 16], "max": [8, 16]}}
        assert (first["samples"], other["samples"]) == (4, 6) and "profile x:5x16:6x16:8x16" in run["note"]
        for times in (run["latency_ms"], run["cuda_graph_ms"], other["latency_ms"], other["cuda_graph_ms"]):
            assert times["min"] <= times["median"] <= times["max"]
        assert other["samples_per_s"] == 6e3 / min(other["latency_ms"]["median"], other["cuda_graph_ms"]["median"])
        assert run["engine_bytes"] > 0 and run["device_memory_bytes"] > 0 and run["outputs"]["y"]
        assert run["computed_in"] and set(run["engine_layers"]) == set(engines["int8-engine"]["engine_layers"])
    layers = engines["config-engine"]["engine_layers"]
    assert [one["precision"] for one in layers.values()] == ["fp32", "int8", "int8"]
    assert engines["config-engine"]["computed_in"]["INT8"]["layers"] == 2
    assert 0 < engines["config-engine"]["computed_in"]["INT8"]["time"] < 1
    markdown = (tmp_path / "out.md").read_text()
    assert not lacking(markdown, "engine", "10.16.1", "6x16 (5x16 to 8x16)")
    assert run["layers_read"]["how"] == "unfused" and len(run["layers"]) == 3
    for release, carried in (("10", True), ("11", False)):
        bundle = command(
            "10.16.1",
            *f"bundle {mlp.model} --data {mlp.data} --config {config} --batch 4".split(),
            PROFILE,
            *f"--for {release} -o {tmp_path}/{release}".split(),
        )
        assert bundle.returncode == 0, bundle.stderr
        assert (tmp_path / release / "timing.cache").is_file() is carried, "the tactics measured here, for this release"


def test_compare_looks_into_a_marked_engine(command, mlp, tmp_path) -> None:
    done = command(
        "8.6.1",
        *f"compare {mlp.model} --data {mlp.data} --batch 4 --engines --marked --json {tmp_path}/out.json".split(),
        *f"--markdown {tmp_path}/out.md --layers errors".split(),
    )
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "out.json").read_text())
    assert mismatches(record, "comparison-v1") == []
    run = record["runs"]["int8-engine"]
    assert run["layers_read"]["how"] == "marked" and run["layers_read"]["hidden"] == []
    assert set(run["layers"]) == {one["group"] for one in record["runs"]["int8"]["layers"].values()}
    assert all("marked engine" in text for text in (done.stdout, (tmp_path / "out.md").read_text()))
    refused = command("8.6.1", "compare", mlp.model, "--data", mlp.data, "--marked")
    assert refused.returncode == 2 and refused.stderr.startswith("Error: --marked ")


def test_compare_shows_a_table_of_engines(command, mlp) -> None:
    done = command("8.6.1", "compare", mlp.model, "--data", mlp.data, "--batch", 4, "--engines", "--layers", "none")
    assert done.returncode == 0, done.stderr
    rows, by = [line.split("  ")[0] for line in done.stdout.splitlines()], " (TensorRT 8.6.1, Stand-in GPU)"
    assert [row for row in rows if row.startswith(("FP32", "FP16", "INT8"))][:5] == [
        f"FP32 engine{by}",
        "FP16",
        f"FP16 engine{by}",
        "INT8",
        f"INT8 engine{by}",
    ]
    assert any(row.startswith("engine layers") for row in rows)


def test_inspect_reads_trtexecs_json_without_tensorrt(run) -> None:
    code, out, err = run("inspect", demo.network_path(), "--engine", REAL_JSON)
    assert (code, err) == (0, "")
    assert not lacking(out, "45 engine layers", "34 FP16", "6 reformat", "5 idle", "/enc1/widen")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"Layers": ["a"]}', "names of its layers only"),
        ('{"Bindings": []}', "not the layer information"),
        ('{"Layers": [3, {}]}', "not the layer information"),
    ],
)
def test_inspect_refuses_other_json(run, mlp, tmp_path, content, said) -> None:
    path = tmp_path / "layers.json"
    path.write_text(content)
    code, _, err = run("inspect", mlp.model, "--engine", path)
    assert code == 2 and said in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("release", "fault", "lines"),
    [
        ("11.4.0", "", [r"yes +tensorrt +11\.4\.0 +builds and runs engines on Stand-in GPU"]),
        ("10.16.1", "no gpu", [r"no +tensorrt +10\.16\.1 +no GPU is visible"]),
        (
            "rtx-1.7.1",
            "no gpu",
            [
                r"yes +tensorrt-rtx +1\.7\.1\.116 +builds engines for a named compute capability, cannot "
                r"run them: no GPU is visible"
            ],
        ),
    ],
)
def test_doctor_says_what_tensorrt_can_do_here(release, fault, lines) -> None:
    done = elsewhere(release, "doctor", STANDIN_FAULT=fault)
    assert done.returncode == 0 and done.stderr == ""
    for line in lines:
        assert re.search(line, done.stdout), done.stdout


@pytest.mark.parametrize(
    ("kind", "files"),
    [
        ("trtexec", {"out.sh", "out.sh.typed.onnx", "out.sh.base.onnx", "out.sh.cache"}),
        ("polygraphy", {"out.sh", "out.sh.base.onnx", "out.sh.cache"}),
        ("modelopt", {"out.sh", "out.sh.base.onnx", "out.sh.cache"}),
    ],
)
def test_export_writes_what_the_tool_needs(run, mlp, config, tmp_path, kind, files) -> None:
    folder = tmp_path / "exported"
    folder.mkdir()
    shapes = () if kind == "modelopt" else ("--shapes", "x:1x16:4x16:8x16")
    code, out, err = run("export", mlp.model, "--config", config, "--format", kind, "-o", folder / "out.sh", *shapes)
    assert code == 0, err
    assert {path.name for path in folder.iterdir()} == files
    assert {Path(line).name for line in out.splitlines()} == files
    text = (folder / "out.sh").read_text()
    if kind == "trtexec":
        assert "--noTF32" in text and "--optShapes=x:4x16" in text and "--onnx=out.sh.typed.onnx" in text
        assert "sh out.sh 11" in text
    elif kind == "modelopt":
        exclusions = json.loads(text)
        assert "/fc1/Gemm" in json.dumps(exclusions).replace("\\\\", "")
    else:
        compile(text, "out.sh", "exec")


@pytest.fixture
def compared(command, mlp):
    """Compares where something is refused: the command, and the runs of its record, which is always written."""

    def compare(release: str, fault: str, *more: object) -> tuple[subprocess.CompletedProcess, dict]:
        out = Path(mlp.model).with_suffix(".json")
        done = command(
            release,
            *f"compare {mlp.model} --data {mlp.data} --batch 4 --engines --layers none --json {out}".split(),
            "--markdown",
            out.with_suffix(".md"),
            *more,
            STANDIN_FAULT=fault,
        )
        record = json.loads(out.read_text())
        assert mismatches(record, "comparison-v1") == [] and "Traceback" not in done.stderr
        assert record["runs"]["int8"]["source"] == "simulated" and record["runs"]["int8"]["outputs"]["y"]
        return done, record["runs"]

    return compare


def told(tmp_path) -> list[dict]:
    """What the engines in the cache were told."""
    paths = (tmp_path / "cache" / "trt-tui" / "engines").glob("*/*")
    return [standins.cached_header(path)["config"] for path in paths]


def table_row(markdown: str, title: str) -> list[str]:
    """The cells of the first row of a Markdown table that begins with a title."""
    return next(line for line in markdown.splitlines() if line.startswith(f"| {title} |")).split("|")[1:-1]


def rungs(run: dict) -> list[str]:
    return [one["rung"] for one in run["rungs"]]


@pytest.mark.parametrize("release", ["8.6.1", "11.4.0"])
def test_an_int8_layer_that_the_message_names_is_raised_and_figures_are_of_what_was_made(
    compared, mlp, release
) -> None:
    done, runs = compared(release, "no int8: /fc2/MatMul")
    assert done.returncode == 0
    engine = runs["int8-engine"]
    assert rungs(engine) == ["asked", "named"] and engine["as_asked"] is False
    assert "/fc2/MatMul" in engine["rungs"][0]["failed"]
    assert engine["rungs"][1]["raised"] == engine["made_otherwise"] == {"/fc2/MatMul": "fp16"}
    assert engine["engine_layers"]["/fc2/MatMul"]["precision"] == "fp16"
    made, asked = engine["made_simulated"]["outputs"]["y"]["sqnr_db"], runs["int8"]["outputs"]["y"]["sqnr_db"]
    assert made != asked and abs(engine["outputs"]["y"]["sqnr_db"] - made) < 1
    assert runs["fp16-engine"]["rungs"] == [{"rung": "asked", "said": "as requested"}]
    assert not {"as_asked", "made_otherwise", "made_simulated", "failed"} & runs["fp16-engine"].keys()
    text, by = Path(mlp.model).with_suffix(".md").read_text(), f" (TensorRT {release}, Stand-in GPU)"
    assert text.count("/fc2/MatMul in FP16") == 1 and RAISED in text and f"{by}, other" in text
    titles = [line.split("  ")[0] for line in done.stdout.splitlines()]
    assert f"INT8 engine{by}" not in titles, "no figure of what was made stands as one of what was requested"
    other = f"INT8 engine{by}, other precision"
    assert {other, f"{other}, simulated", f"FP16 engine{by}"} <= set(titles)
    assert not lacking(done.stdout, RAISED, "/fc2/MatMul in FP16")


def test_told_precisions_are_preferred_and_then_not_told(compared, mlp, tmp_path) -> None:
    done, runs = compared("8.6.1", "no constraints")
    engine = runs["fp16-engine"]
    assert rungs(engine) == ["asked", "eased", "prefer", "free"]
    assert engine["as_asked"] is False and engine["outputs"]["y"]
    (config,) = [one for one in told(tmp_path) if one["flags"]]
    assert config["flags"] == ["FP16"] and config["layer_precisions"] == config["output_types"] == {}
    assert rungs(runs["int8-engine"]) == ["asked", "eased"], "nothing is told there that could be left to the builder"
    assert done.returncode == 1 and "Engine of int8 " in done.stderr
    assert runs["int8-engine"]["failed"] and "outputs" not in runs["int8-engine"]
    row = ["INT8 engine", "not built"]
    assert [cell.strip() for cell in table_row(Path(mlp.model).with_suffix(".md").read_text(), row[0])][:2] == row
    assert any(re.split("  +", line.strip()) == row for line in done.stdout.splitlines())


def test_where_no_engine_can_be_built_the_simulation_is_written_and_the_exit_code_says_so(compared) -> None:
    done, runs = compared("10.16.1", "out of memory")
    assert done.returncode == 2 and "~" in done.stdout and done.stdout.count("not built") >= 3
    for run in ("fp32-engine", "fp16-engine", "int8-engine"):
        assert "out of device memory" in runs[run]["failed"]
        assert rungs(runs[run]) == ["asked"], "a lack of memory is no reason to ask for something else"


def test_a_crash_of_the_library_is_a_row_too(compared) -> None:
    done, runs = compared("10.16.1", "segfault")
    assert done.returncode == 2 and "background process" in runs["int8-engine"]["failed"]


def test_strict_builds_as_asked_or_not_at_all_whatever_is_known(compared) -> None:
    fault = "no int8: /fc2/MatMul"
    assert compared("10.16.1", fault)[1]["int8-engine"]["as_asked"] is False
    done, runs = compared("10.16.1", fault, "--strict")
    assert done.returncode == 1 and rungs(runs["int8-engine"]) == ["asked"] and runs["int8-engine"]["failed"]
    assert "failed" not in runs["fp16-engine"]


def test_build_says_what_it_wrote_in_place_of_what_was_asked(command, mlp, tmp_path) -> None:
    engine = tmp_path / "out.engine"
    words = ("build", mlp.model, "--data", mlp.data, "--batch", 4, "--precision", "int8", "-o", engine)
    refused = command("11.4.0", *words, "--strict", STANDIN_FAULT="no int8: /fc2/MatMul")
    assert refused.returncode == 2 and not engine.exists() and "/fc2/MatMul" in refused.stderr
    done = command("11.4.0", *words, STANDIN_FAULT="no int8: /fc2/MatMul")
    assert done.returncode == 1 and done.stdout == f"{engine}\n"
    assert RAISED in done.stderr
    layers = standins.header(engine.read_bytes())["layers"]
    assert {layer["precision"] for layer in layers if "/fc2/MatMul" in layer["nodes"]} == {"Half"}


def test_a_search_is_not_confirmed_by_an_engine_of_another_config(command, mlp, tmp_path) -> None:
    done = command(
        "8.6.1",
        *f"search {mlp.model} --data {mlp.data} --batch 4 --tolerance sqnr>=10 -o {tmp_path}/found.json".split(),
        *f"--markdown {tmp_path}/found.md".split(),
        STANDIN_FAULT="no int8: /fc2/MatMul",
    )
    assert done.returncode == 0, done.stderr
    search = json.loads((tmp_path / "found.json").read_text())["evidence"]["search"]
    assert "confirmed_by_engine" not in search and search["remarks"] and "simulated only" in done.stdout
    for text in (done.stdout, (tmp_path / "found.md").read_text()):
        assert not lacking(text, *search["remarks"], RAISED)
