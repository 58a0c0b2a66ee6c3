"""TensorRT for real: engines of the bundled network built and judged on a GPU.

    python -m pytest -m gpu

TACTIC_SOURCES names the tactic sources to build with, where some of TensorRT's libraries are missing;
OPTIMIZATION_LEVEL=0 makes the builds quick.
"""

import ast
import functools
import json
import os
import shlex
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests import driven
from tests.networks.refused import REFUSED
from trt_tui import demo
from trt_tui.core.builder_options import TACTIC_SOURCES, BuilderOptions
from trt_tui.core.engines.group_implementations import has_unrequested_precision
from trt_tui.core.engines.inspector import COMPUTE, EngineLayer, read_engine_report
from trt_tui.core.measure.engine_agreement import (
    MIN_FP32_SQNR_DB,
    engine_sqnr_gap_db,
    engine_variation_notes,
    fp32_engine_fault_text,
)
from trt_tui.core.measure.results import EngineResult
from trt_tui.core.moves.config import BarrierMove, PrecisionConfig
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.core.runner import BuildSettings, LayerConstraints
from trt_tui.errors import InputError, TrtTuiError
from trt_tui.jobs import events as ev
from trt_tui.jobs.engine_build import add_engine_latencies
from trt_tui.options import Options

LEVEL = int(os.environ["OPTIMIZATION_LEVEL"]) if "OPTIMIZATION_LEVEL" in os.environ else None
SOURCES = tuple(os.environ["TACTIC_SOURCES"].split(",")) if "TACTIC_SOURCES" in os.environ else None
WAIT_S = 400.0


@functools.cache
def unavailable() -> str:
    """Why engines cannot run here, "" where they can."""
    from trt_tui.backends.registry import diagnose_backends

    state = next(one for one in diagnose_backends() if one.name == "tensorrt")
    return "" if state.works else f"TensorRT does not run here: {state.detail}"


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(unavailable()), reason=unavailable())]

TOLD_NOTHING = LayerConstraints({}, {}, {}, frozenset())
TACTICS = tuple(f"{'+' if source in SOURCES else '-'}{source}" for source in TACTIC_SOURCES) if SOURCES else ()
SOURCE_WORDS = [f"--trtexec=--tacticSources={','.join(TACTICS)}"] if TACTICS else []
EFFORT = [*([f"--trtexec=--builderOptimizationLevel={LEVEL}"] if LEVEL is not None else []), *SOURCE_WORDS]
BUNDLED = [str(demo.network_path()), "--data", str(demo.samples_path()), "--calib-data", str(demo.calibration_path())]
PROFILE = {"image": ((1, 1, 96, 96), (4, 1, 96, 96), (8, 1, 96, 96))}
FP32 = PrecisionConfig.from_precision(Precision.FP32)
FP16 = PrecisionConfig.from_precision(Precision.FP16)
INT8 = PrecisionConfig.from_precision(Precision.INT8, Precision.FP16)


def options(**changes) -> Options:
    given = {
        "metric": demo.metric_spec(),
        "whatif_samples": 16,
        "backend": "tensorrt",
        "production": BuilderOptions(tactic_sources=TACTICS, optimization_level=LEVEL),
    }
    paths = (demo.network_path(), demo.samples_path(), demo.calibration_path())
    return Options(*map(str, paths), **given | changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The caches that the tests of this file share."""
    return tmp_path_factory.mktemp("engines")


@pytest.fixture
def open_session(folder, monkeypatch, tmp_path):
    """Opens the bundled network in a session with a child process."""
    monkeypatch.setattr(driven, "LIMIT_S", WAIT_S)
    driven.isolate(monkeypatch, tmp_path, folder)
    opened = []

    def start(**changes) -> driven.DrivenSession:
        session = driven.DrivenSession(options(**changes), tmp_path, automatic=False)
        opened.append(session)
        session.start()
        session.until_idle()
        assert session.error is None, session.error
        return session

    yield start
    for session in opened:
        session.close()


def build(session: driven.DrivenSession, config: PrecisionConfig):
    """The engine's result and the simulated verdict of a config."""
    session.history.push_config(config)
    session.request_build()
    session.until_idle()
    assert session.error is None, (session.error, session.log[-20:])
    result = session.results[config].engine_result
    session.request_comparison(with_group_errors=False)
    session.until_idle()
    return result, session.results[config].accuracy


def test_engines_do_what_is_simulated(open_session):
    one = open_session()
    fp16, simulated = build(one, FP16)
    check = one.results.fp32_engine
    assert fp32_engine_fault_text(check) == "" and check.accuracy.worst_output[1].errors.sqnr_db > MIN_FP32_SQNR_DB
    assert abs(engine_sqnr_gap_db(simulated, fp16.accuracy)) < 6 and not fp16.accuracy.nonfinite_count
    int8, simulated = build(one, INT8)
    assert abs(engine_sqnr_gap_db(simulated, int8.accuracy)) < 1
    assert abs(int8.accuracy.headline_metric - simulated.headline_metric) < 3
    assert int8.latency_ms[1] <= int8.latency_ms[0] <= int8.latency_ms[2]
    print("enqueued, as a CUDA graph:", int8.latency_ms, int8.cuda_graph_ms, int8.measurement_note)
    assert int8.cuda_graph_ms is not None and int8.cuda_graph_ms[0] > 0
    assert int8.engine_bytes > 100_000 and int8.device_memory_bytes > 0 and int8.device_name
    outline = one.outline
    assert {made.precision for made in int8.implementations.values()} >= {Precision.INT8, Precision.FP16}
    as_asked = [
        group
        for group in outline.groups
        if group.name in int8.implementations and not has_unrequested_precision(group, INT8, int8.implementations)
    ]
    assert len(as_asked) >= 0.7 * len(outline.groups)
    assert sum(layer.ms or 0 for layer in int8.engine_report.layers) > 0
    worst = [outline.get_group(name) for name in ("/enc1/widen/conv/Conv", "/enc1/residual/depthwise/conv/Conv")]
    mixed = INT8.with_group_precision(worst, Precision.FP32)
    result, simulated = build(one, mixed)
    assert abs(engine_sqnr_gap_db(simulated, result.accuracy)) < 1
    assert result.accuracy.headline_metric > int8.accuracy.headline_metric + 10
    assert all(result.implementations[group.name].precision is Precision.FP32 for group in worst)


@pytest.mark.parametrize("config", [INT8, FP16], ids=["int8", "fp16"])
def test_a_marked_engine_is_looked_into_group_by_group(open_session, config):
    """8.6 hands out nothing of an engine as built: a second one has every group's result as an output."""
    one = open_session(metric=None)
    one.request_comparison(with_shares=False)
    one.until_idle()
    one.request_build(config=config, with_marked_engine=True)
    one.until_idle()
    assert one.error is None, (one.error, one.log[-20:])
    engine, known = one.results[config].engine_result, one.results[config]
    assert engine.is_built_as_requested and engine.engine_errors is not None
    inside = engine.engine_errors
    assert (inside.source, inside.missing_reason) == ("marked", ""), (inside, one.log[-20:])
    assert (
        len(inside.group_errors) + len(inside.hidden_groups) == len(one.outline.groups)
        and len(inside.group_errors) > 30
    )
    gaps = {
        name: known.group_errors[name].accumulated.sqnr_db - errors.sqnr_db
        for name, errors in inside.group_errors.items()
        if errors.sqnr_db is not None and known.group_errors[name].accumulated.sqnr_db is not None
    }
    print(config.quantized.value, {name: round(gap, 1) for name, gap in gaps.items()})
    print(
        "as built",
        engine.accuracy.worst_output[1].errors.sqnr_db,
        "marked",
        inside.accuracy.worst_output[1].errors.sqnr_db,
        "simulated",
        known.accuracy.worst_output[1].errors.sqnr_db,
        one.find_engine_divergence("int8" if config is INT8 else "fp16"),
    )
    assert np.median(list(gaps.values())) < (1 if config is INT8 else 8)


def test_a_fusion_barrier_is_built_and_judged(open_session):
    """Its tensor is bound beside the outputs, and nobody reads it."""
    one = open_session(metric=None)
    group = one.outline.get_group("/enc1/residual/depthwise/conv/Conv")
    plain, simulated = build(one, INT8)
    barred, _ = build(one, INT8.with_moves({group.final_tensor: BarrierMove()}))
    assert barred.is_built_as_requested and set(barred.accuracy.outputs) == set(plain.accuracy.outputs)
    assert abs(engine_sqnr_gap_db(simulated, barred.accuracy)) < 1


def test_several_builds_lie_close_and_treat_identical_samples_alike(open_session):
    one = open_session(metric=None, builds=3)
    result, simulated = build(one, INT8)
    print(engine_variation_notes(result), result.repeated_builds)
    assert len(result.repeated_builds) == 3 and not result.unequal_outputs
    figures = [built.worst_errors.sqnr_db for built in result.repeated_builds]
    assert min(figures) == result.accuracy.worst_output[1].errors.sqnr_db and max(figures) - min(figures) < 1
    assert abs(engine_sqnr_gap_db(simulated, result.accuracy)) < 1


@pytest.mark.parametrize(
    "asked",
    [
        BuilderOptions(refit=True),
        BuilderOptions(workspace=512, sparsity=True),
        BuilderOptions(hardware_compatibility="ampere+"),
    ],
)
def test_an_engine_is_as_production_asks_and_runs_as_a_cuda_graph(asked):
    from trt_tui.backends.tensorrt import TensorRTBackend

    backend = TensorRTBackend("tensorrt")
    told = TOLD_NOTHING if not backend.capabilities.strongly_typed else None
    more = {"image": ((16, 1, 96, 96), (32, 1, 96, 96), (32, 1, 96, 96))}
    settings = BuildSettings(
        PROFILE, builder_options=replace(asked, optimization_level=0, tactic_sources=TACTICS), more_profiles=(more,)
    )
    feeds = {"image": np.ones((4, 1, 96, 96), np.float32)}
    with backend.load_engine(backend.build(demo.network_path(), settings, told)) as runner:
        assert runner._engine.refittable == asked.refit
        assert runner._engine.hardware_compatibility_level.name == (
            "AMPERE_PLUS" if asked.hardware_compatibility else "NONE"
        )
        before = runner.run(feeds)
        times = [np.median([take(feeds) for _ in range(30)]) for take in (runner.latency_ms, runner.graph_latency_ms)]
        print(asked.requested_option_texts, "enqueued and as a CUDA graph, ms:", times)
        assert min(times) > 0
        for name, value in runner.run(feeds).items():
            np.testing.assert_array_equal(value, before[name])
        timed = driven.run_to_end(add_engine_latencies(EngineResult(None, "TensorRT"), runner, feeds, 4))
        profiles = timed.profile_latencies
        print(*timed.profile_latency_lines, sep="\n")
        assert [one.batch_samples for one in profiles] == [4, 32] and runner.profiles == (PROFILE, more)
        assert profiles[1].samples_per_s > profiles[0].samples_per_s and not timed.measurement_note
        layers = read_engine_report(runner.inspect(), open_network(demo.network_path())).layers
        assert layers and not [one.name for one in layers if "[profile" in one.name]


def test_what_a_release_lacks_is_refused_by_name(open_session):
    from trt_tui.backends.tensorrt import TensorRTBackend

    backend = TensorRTBackend("tensorrt")
    if backend.capabilities.strongly_typed:
        pytest.skip("this release has all of it")
    with pytest.raises(InputError, match="has no STRIP_PLAN"):
        backend.build(
            demo.network_path(), BuildSettings(PROFILE, builder_options=BuilderOptions(strip_plan=True)), TOLD_NOTHING
        )
    one = open_session(metric=None)
    one.history.push_config(PrecisionConfig.from_precision(Precision.FP16_ACC_FP32))
    one.request_build()
    one.until_idle()
    assert one.error is not None and "has no FP16+" in one.error.error.title


def test_the_engine_cache_spares_the_build(open_session, folder):
    one = open_session()
    first, _ = build(one, INT8)
    for file in (folder / "trt-tui" / "results").glob("*/*"):
        file.unlink()
    again = open_session()
    second, _ = build(again, INT8)
    assert second.build_origin == "engine cache" and second.build_s == 0
    assert second.engine_bytes == first.engine_bytes
    assert second.accuracy.worst_output[1].errors == first.accuracy.worst_output[1].errors


def test_a_build_is_stopped_within_seconds_and_the_next_one_works(open_session, tmp_path, monkeypatch):
    driven.isolate(monkeypatch, tmp_path)  # caches of its own: this build starts cold
    session = open_session()
    session.history.push_config(FP16)
    session.request_build()
    session.until(lambda event: isinstance(event, ev.JobProgress) and "building" in event.phase)
    time.sleep(2)
    since = time.monotonic()
    session.stop_jobs()
    session.until_idle()
    assert time.monotonic() - since < 3  # 2 s, and what a busy machine adds
    assert FP16 not in session.results or session.results[FP16].engine_result is None
    result, _ = build(session, FP32)
    assert result.accuracy is not None


def test_weak_and_explicit_builds_of_one_config(open_session):
    explicit, simulated = build(open_session(), INT8)
    weak, _ = build(open_session(weak=True), INT8)
    assert not weak.accuracy.nonfinite_count
    assert abs(engine_sqnr_gap_db(simulated, explicit.accuracy)) < 1
    assert (
        weak.accuracy.headline_metric > explicit.accuracy.headline_metric - 5
    )  # INT8 is allowed there, and demanded nowhere


def test_a_foreign_engine_and_a_feed_beyond_the_profile_are_refused(open_session, tmp_path):
    from trt_tui.backends.tensorrt import TensorRTBackend

    backend = TensorRTBackend("tensorrt")
    with pytest.raises(InputError, match="cannot load this engine"):
        backend.load_engine(b"no engine" * 100)
    with pytest.raises(InputError, match="builds for the GPU it runs on"):
        backend.build(demo.network_path(), BuildSettings(PROFILE, compute_capability=(8, 9)), TOLD_NOTHING)
    told = TOLD_NOTHING if not backend.capabilities.strongly_typed else None
    settings = BuildSettings(PROFILE, builder_options=BuilderOptions(optimization_level=0, tactic_sources=TACTICS))
    with backend.load_engine(backend.build(demo.network_path(), settings, told)) as runner:
        assert runner.run({"image": np.zeros((4, 1, 96, 96), np.float32)})
        with pytest.raises(TrtTuiError, match="could not run"):
            runner.run({"image": np.zeros((9, 1, 96, 96), np.float32)})


def test_an_engine_file_is_written_and_inspected(tmp_path, monkeypatch, folder):
    driven.isolate(monkeypatch, tmp_path, folder)
    engine = tmp_path / "scenes.engine"
    said = command(
        *f"build {demo.network_path()} --precision fp16 -o {engine} --backend tensorrt".split(),
        *"--shapes image:1x1x96x96:4x1x96x96:8x1x96x96".split(),
        *EFFORT,
    )
    assert engine.stat().st_size > 100_000 and "built in" in said
    told = command("inspect", demo.network_path(), "--engine", engine, "--backend", "tensorrt")
    assert "/enc1/widen/conv/Conv" in told and "FP16" in told


def test_the_batch_may_be_any_of_the_profile(open_session):
    one = open_session(shapes=("image:1x1x96x96:4x1x96x96:8x1x96x96",), judge_at=("min", "max"), metric=None)
    result, _ = build(one, FP16)
    assert set(result.shape_accuracies) == {"min", "max"}
    for verdict in result.shape_accuracies.values():
        assert verdict.worst_output[1].errors.sqnr_db == pytest.approx(
            result.accuracy.worst_output[1].errors.sqnr_db, abs=3
        )


POLYGRAPHY = "import sys; from polygraphy.tools import main; sys.exit(main())"


def command(*words: object, codes: tuple[int, ...] = (0,)) -> str:
    """What a command line of trt-tui prints; fails with its output where it ends with another exit code."""
    from click.testing import CliRunner

    from trt_tui.cli.main import main

    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code in codes, done.output
    return done.output


def polygraphy(folder: Path, *words: str) -> str:
    """Runs Polygraphy's command-line tool in a folder; returns what it prints."""
    effort = ["--builder-optimization-level", str(LEVEL)] if LEVEL is not None else []
    effort += ["--tactic-sources", *SOURCES] if SOURCES else []
    done = subprocess.run(
        [sys.executable, "-c", POLYGRAPHY, *words, *effort], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def compute_layers(engine: Path) -> list[EngineLayer]:
    """The layers that compute of a serialized engine of the bundled network, built with detailed verbosity."""
    from trt_tui.backends.tensorrt import TensorRTBackend
    from trt_tui.core.network.network import open_network

    with TensorRTBackend("tensorrt").load_engine(engine.read_bytes()) as runner:
        report = read_engine_report(runner.inspect(), open_network(demo.network_path()))
    return [layer for layer in report.layers if layer.kind == COMPUTE]


def told_of(layer: EngineLayer) -> str:
    """What the inspector tells of an engine layer, in a line."""
    return f"{layer.precision.label if layer.precision else '?'} {layer.type} {layer.name} {layer.kernel_name}"


def decibels(engine: Path) -> float:
    """SQNR of a serialized engine of the bundled network on 16 samples, by its one output."""
    from trt_tui.backends.onnxruntime import OnnxRuntimeBackend
    from trt_tui.backends.tensorrt import TensorRTBackend
    from trt_tui.core.measure.error_metrics import ErrorSums
    from trt_tui.core.network.network import open_network

    with np.load(demo.samples_path()) as data:
        images = data["image"][:16]
    network, sums = open_network(demo.network_path()), ErrorSums()
    with (
        OnnxRuntimeBackend("cpu").load(network.model) as reference,
        TensorRTBackend("tensorrt").load_engine(engine.read_bytes()) as runner,
    ):
        for start in range(0, 16, 4):
            feed = {"image": images[start : start + 4]}
            (expected,), (got,) = reference.run(feed).values(), runner.run(feed).values()
            sums.add_tensor_pair(expected, got)
    return sums.compute_error_metrics().sqnr_db


def _weak() -> bool:
    """Whether the TensorRT that runs here builds weakly typed networks."""
    from trt_tui.backends.tensorrt import TensorRTBackend

    return not unavailable() and TensorRTBackend("tensorrt").capabilities.weakly_typed


needs_weak = pytest.mark.skipif(not _weak(), reason=unavailable() or "this TensorRT is strongly typed only")


@needs_weak
def test_polygraphy_builds_from_the_script_what_is_simulated(open_session, tmp_path, monkeypatch, folder):
    """The exported command as it stands in the script; the two worst layers in FP32 come out as told.

    INT8 is allowed there and demanded nowhere: how much of it an engine has, and whether it rounds results to INT8 too,
    is TensorRT's choice, which differs by GPU. So an engine may be far better than simulated; that of the mixed config,
    whose two layers lose most, is never as bad as all INT8 is simulated to be.
    """
    one = open_session(shapes=("image:1x1x96x96:4x1x96x96:8x1x96x96",))
    worst = [one.outline.get_group(name) for name in ("/enc1/widen/conv/Conv", "/enc1/residual/depthwise/conv/Conv")]
    built, simulated = {}, {}
    for label, config in (("int8", INT8), ("mixed", INT8.with_group_precision(worst, Precision.FP32))):
        one.history.push_config(config)
        one.request_comparison(with_group_errors=False)
        one.until_idle()
        simulated[label] = one.results[config].accuracy.worst_output[1].errors.sqnr_db
        path = tmp_path / label / "scenes.py"
        path.parent.mkdir()
        one.written("polygraphy", path)
        text = ast.get_docstring(ast.parse(path.read_text()))
        words = shlex.split(text[text.index("polygraphy convert") :].partition("\n\n")[0].replace("\\\n", " "))
        said = polygraphy(path.parent, *words[1:], "--profiling-verbosity", "detailed")
        assert "Loading calibration cache" in said and "Saving calibration cache" not in said, said[-4000:]
        engine = path.parent / words[words.index("-o") + 1]
        built[label] = decibels(engine)
        layers = compute_layers(engine)
        print(f"{label}: {built[label]:.2f} dB built, {simulated[label]:.2f} simulated")
        print(*map(told_of, layers), sep="\n")
        if label == "mixed":
            for group in worst:
                own = [layer for layer in layers if group.name in layer.network_layers]
                assert own, f"no engine layer names {group.name}: " + "; ".join(map(told_of, layers))
                low = [layer for layer in own if layer.precision not in (Precision.FP32, None)]
                assert not low, f"{group.name} is told FP32: " + "; ".join(map(told_of, low))
    floor = simulated["int8"] - 3
    assert built["int8"] > floor and built["mixed"] > floor, f"{built=} {simulated=}"


@needs_weak
def test_polygraphy_takes_the_calibration_cache(tmp_path, monkeypatch, folder):
    driven.isolate(monkeypatch, tmp_path, folder)
    command("export", *BUNDLED, "--precision", "int8", "--format", "calibration-cache", "-o", tmp_path / "scenes.cache")
    before = (tmp_path / "scenes.cache").read_bytes()
    shapes = [
        word
        for key, batch in (("min", 1), ("opt", 4), ("max", 8))
        for word in (f"--trt-{key}-shapes", f"image:[{batch},1,96,96]")
    ]
    polygraphy(
        tmp_path,
        *f"convert {demo.network_path()} -o scenes.engine --int8 --calibration-cache scenes.cache".split(),
        *shapes,
    )
    assert (tmp_path / "scenes.cache").read_bytes() == before  # nothing was calibrated
    assert 5 < decibels(tmp_path / "scenes.engine") < 80


@needs_weak
def test_a_bundle_is_built_and_verified_and_production_is_what_was_tested(tmp_path, monkeypatch, folder):
    """The folder's own scripts with Polygraphy; then the outputs of its engine as those of production."""
    driven.isolate(monkeypatch, tmp_path, folder)
    made, tools = tmp_path / "made", tmp_path / "tools"
    command("bundle", *BUNDLED, "--precision", "int8", "--batch", 8, "--for", "8.6", "-o", made)
    tools.mkdir()
    (tools / "polygraphy").write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{POLYGRAPHY}" "$@"\n')
    (tools / "polygraphy").chmod(0o755)
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "PYTHON": sys.executable}

    def ran(*words: str, code: int = 0) -> None:
        done = subprocess.run(words, cwd=made, env=env, capture_output=True, text=True, check=False)
        told = f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
        print(told)
        assert done.returncode == code, f"exit code {code} was expected of {told}"

    effort = ["--builder-optimization-level", str(LEVEL)] if LEVEL is not None else []
    effort += ["--tactic-sources", *SOURCES] if SOURCES else []
    ran("sh", "verify.sh", "--onnxrt")
    ran("sh", "build.sh", *effort)
    ran("sh", "verify.sh")
    ran(
        *f"{tools}/polygraphy run model.engine --model-type engine --trt --load-inputs inputs.json".split(),
        *"--save-outputs prod.json".split(),
    )
    judging = [
        *f"compare {demo.network_path()} --data {made}/inputs.json --config {made}/precision.json".split(),
        *"--layers none --backend tensorrt".split(),
        *EFFORT,
    ]
    said = command(*judging, "--outputs", made / "prod.json", codes=(0, 1))
    print(said)
    assert "production agrees" in said, said
    said = command(*judging, "--engine", made / "model.engine", codes=(0, 1))
    print(said)
    assert "model.engine" in said, said
    network = onnx.load(made / "network.onnx")
    bias = next(one for one in network.graph.initializer if one.name == "head.bias")
    bias.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(bias) + np.float32(50), bias.name))
    onnx.save(network, made / "network.onnx")
    (made / "SHA256SUMS").unlink()  # or the change is found before anything is executed
    ran("sh", "build.sh", *effort)
    ran("sh", "verify.sh", code=1)


def test_engine_files_are_compared_for_stability(tmp_path, monkeypatch, folder):
    driven.isolate(monkeypatch, tmp_path, folder)
    engines = [tmp_path / "a.plan", tmp_path / "b.plan"]
    for engine, level in zip(engines, (0, 1), strict=True):
        command(
            "build",
            *BUNDLED,
            *f"--precision fp16 --batch 8 -o {engine} --backend tensorrt".split(),
            f"--trtexec=--builderOptimizationLevel={level}",
            *SOURCE_WORDS,
        )
    record = tmp_path / "comparison.json"
    said = command(
        "compare",
        *BUNDLED,
        *"--batch 8 --layers none --backend tensorrt".split(),
        *SOURCE_WORDS,
        *(word for engine in engines for word in ("--engine", engine)),
        "--json",
        record,
        codes=(0, 1),
    )
    print(said)
    stability = json.loads(record.read_text())["stability"]
    assert stability["engines"] == ["a.plan", "b.plan"], stability
    assert stability["outputs"] and all(spread["spread_db"] < 1 for spread in stability["outputs"].values()), stability


@needs_weak
def test_the_script_of_two_dumps_builds(tmp_path, monkeypatch, folder):
    """Dumps of all tensors, of FP32 and of another with one tensor spoilt: the script raises where it begins."""
    driven.isolate(monkeypatch, tmp_path, folder)
    from polygraphy.comparator import RunResults

    model = str(demo.network_path())
    command("bundle", *BUNDLED, "--precision", "fp16", "--batch", 1, "--for", "8.6", "-o", tmp_path / "made")
    subprocess.run(
        [
            sys.executable,
            "-c",
            POLYGRAPHY,
            *f"run {model} --onnxrt --onnx-outputs * --load-inputs made/inputs.json --save-outputs a.json".split(),
        ],
        cwd=tmp_path,
        check=True,
    )
    results = RunResults.load(str(tmp_path / "a.json"))
    spoilt = "/enc2/widen/conv/Conv_output_0"
    for _, iterations in results.items():
        for one in iterations:
            one[spoilt] = one[spoilt] * np.float32(1.5)
    results.save(str(tmp_path / "b.json"))
    said = command(
        "dumps", tmp_path / "a.json", tmp_path / "b.json", "--model", model, "-o", tmp_path / "fix.json", codes=(1,)
    )
    command("export", model, "--config", tmp_path / "fix.json", "--format", "polygraphy", "-o", tmp_path / "fix.py")
    assert "/enc2/widen" in said
    polygraphy(
        tmp_path,
        *f"convert {model} -o fixed.engine --fp16 --precision-constraints obey".split(),
        *"--trt-network-postprocess-script fix.py --trt-min-shapes image:[4,1,96,96]".split(),
        *"--trt-opt-shapes image:[4,1,96,96] --trt-max-shapes image:[4,1,96,96]".split(),
        *"--profiling-verbosity detailed".split(),
    )
    layers = [one for one in compute_layers(tmp_path / "fixed.engine") if "/enc2/widen/conv/Conv" in one.network_layers]
    print(*map(told_of, compute_layers(tmp_path / "fixed.engine")), sep="\n")
    assert layers and all(one.precision in (Precision.FP32, None) for one in layers)
    assert decibels(tmp_path / "fixed.engine") > 30


def test_a_search_is_confirmed_by_engines(tmp_path, monkeypatch, folder):
    driven.isolate(monkeypatch, tmp_path, folder)
    told = command(
        "search",
        *BUNDLED,
        *f"--metric {demo.metric_spec()} --precision int8 --no-ranges --no-free --backend tensorrt".split(),
        *EFFORT,
        *f"--tolerance metric>=base-0.5 -o {tmp_path}/found.json --markdown {tmp_path}/found.md".split(),
    )
    assert ") meets" in told
    found = json.loads((tmp_path / "found.json").read_text())
    raised = [name for move in found["moves"] if move["kind"] == "precision" for name in move["layers"]]
    assert 1 <= sum(name.endswith("/Conv") for name in raised) <= 3
    assert "ms" in (tmp_path / "found.md").read_text()


def test_a_latency_that_no_engine_keeps_is_said(tmp_path, monkeypatch, folder):
    driven.isolate(monkeypatch, tmp_path, folder)
    said = command(
        "search",
        *BUNDLED,
        *"--precision int8 --no-ranges --backend tensorrt".split(),
        *EFFORT,
        *f"--tolerance sqnr>=25 --max-latency 0.001 -o {tmp_path}/found.json".split(),
        codes=(1,),
    )
    assert "no config stays" in said


@needs_weak
@pytest.mark.parametrize("make", REFUSED, ids=lambda make: make.__name__)
def test_what_is_refused_as_asked_is_built_on_a_lower_rung_or_is_a_row_with_its_reason(
    make, tmp_path, monkeypatch, folder
) -> None:
    """Which rung it takes is TensorRT's word; that its figures stand by what was made, and the others too, is ours."""
    from click.testing import CliRunner

    from trt_tui.cli.main import main

    driven.isolate(monkeypatch, tmp_path, folder)
    model, out = make(), tmp_path / "out.json"
    onnx.save(model, tmp_path / "model.onnx")
    given = model.graph.input[0]
    shape = [dim.dim_value for dim in given.type.tensor_type.shape.dim]
    data = np.random.default_rng(0).standard_normal((8, *shape[1:]), dtype=np.float32)
    np.savez(tmp_path / "data.npz", **{given.name: data})
    words = [
        *f"compare {tmp_path}/model.onnx --data {tmp_path}/data.npz --engines --layers none".split(),
        *f"--backend tensorrt --json {out}".split(),
        *EFFORT,
    ]
    done = CliRunner().invoke(main, words)
    assert done.exit_code in (0, 1), done.output
    runs = json.loads(out.read_text())["runs"]
    assert runs["fp32-engine"]["outputs"] and runs["fp16-engine"]["outputs"]
    for name in ("fp16", "int8"):
        engine = runs[f"{name}-engine"]
        print(make.__name__, name, [rung["said"] for rung in engine["rungs"]], engine.get("failed", ""))
        assert engine["rungs"][0]["rung"] == "asked" and ("failed" in engine) == ("outputs" not in engine)
        beside = engine.get("made_simulated") if engine.get("as_asked") is False else runs[name]
        if "outputs" not in engine or beside is None:
            continue
        for output, errors in engine["outputs"].items():
            if errors["sqnr_db"] is not None and name == "int8":
                assert errors["sqnr_db"] > beside["outputs"][output]["sqnr_db"] - 3
    assert done.exit_code == (1 if "failed" in runs["int8-engine"] or "failed" in runs["fp16-engine"] else 0)
