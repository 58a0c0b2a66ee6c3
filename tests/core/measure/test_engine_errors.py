"""trt_tui.core.engines.inspector, core.measure.engine_errors, agreement.parting and the debug listener."""

import json
import pickle
from types import SimpleNamespace
from unittest.mock import Mock

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from tests import TESTS
from tests.driven import run_to_end
from tests.measuring import verdict
from trt_tui.backends.tensorrt import make_debug_listener
from trt_tui.core.engines.inspector import (
    KernelOutput,
    KernelResult,
    decode_kernel_result,
    find_kernel_results,
    read_layer_listing,
)
from trt_tui.core.lowering.typed_network import lower_from_source_model
from trt_tui.core.measure.engine_agreement import (
    engine_errors_text,
    engine_variation_notes,
    find_engine_divergence,
    suggest_engine_checks,
)
from trt_tui.core.measure.results import (
    MARKED,
    UNFUSED,
    Accuracy,
    EngineErrors,
    EngineResult,
    ErrorMetrics,
    GroupErrors,
    OutputErrors,
)
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.qdq.steps import QdqStep
from trt_tui.core.precision import Precision
from trt_tui.core.runner import DebugTensor, LocalExecutor
from trt_tui.errors import InputError
from trt_tui.jobs import engine
from trt_tui.jobs.engine_build import EngineBuilder
from trt_tui.jobs.scheduler import Reporter, Urgency
from trt_tui.jobs.store import EngineCache
from trt_tui.workspace import BuildPlan

FOLDER = TESTS / "listings"
FP32, FP16, BF16, FP8, INT8 = (Precision(one) for one in ("fp32", "fp16", "bf16", "fp8", "int8"))


@pytest.mark.parametrize(
    ("network_name", "listed", "precision", "ends"),
    [
        (
            "odd_kernels",
            "odd-int8",
            INT8,
            {"/stem/Conv": ("/stem/Relu_output_0", True), "/block/one/Conv": ("/block/one/Relu_output_0", True)},
        ),
        (
            "odd_kernels",
            "odd-fp16",
            FP16,
            {"/stem/Conv": ("/stem/Relu_output_0", False), "/depthwise/Conv": ("/depthwise/Relu_output_0", False)},
        ),
        (
            "attention_block",
            "attention-fp16",
            FP16,
            {
                "/q/MatMul": ("/q/Transpose_output_0", False),
                "/values/MatMul": ("/values/MatMul_output_0", False),
                "/scores/MatMul": None,
                "/Softmax": None,
            },
        ),
    ],
)
def test_groups_are_judged_where_kernels_end(named_network, network_name, listed, precision, ends) -> None:
    """By the rows of real builders, whose tensors have names of their own: codes with the scale of their Q, results
    behind copies as those copies; what stays inside a kernel is absent."""
    network = named_network(network_name)
    ranges = {tensor: 1.0 + place / 8 for place, tensor in enumerate(network.calibrated_tensors)}
    typed = lower_from_source_model(network, PrecisionConfig.from_precision(precision), ranges).model
    report = read_layer_listing((FOLDER / f"{listed}.txt").read_text("utf-8"), network)
    found = find_kernel_results(report, network, typed, json.dumps({"Layers": []}))
    for group, end in ends.items():
        if end is None:
            assert group not in found
            continue
        (written,) = found[group].possible_outputs
        assert (found[group].tensor, written.quantize_step is not None) == end
        if written.quantize_step is not None:
            assert float(written.quantize_step.scale) == pytest.approx(ranges[end[0]] / 127, rel=2e-3)


def test_memory_is_read_as_the_inspector_lays_it_out_where_that_fits() -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    channels_last = np.ascontiguousarray(values.transpose(0, 2, 1)).reshape(2, 3, 4)

    def read(array, precision, *written, shape=(2, 3, 4)):
        return decode_kernel_result({"n": DebugTensor(array, precision)}, KernelResult("t", written), shape)

    plain, strided = read(channels_last, FP16, KernelOutput("n", None, (12, 1, 3)))
    assert np.array_equal(plain, channels_last) and np.array_equal(strided, values)
    assert len(read(values, FP16, KernelOutput("n", None, (99, 1, 3)))) == 1
    assert read(values, FP16, KernelOutput("n"), shape=(2, 3, 5)) == read(values, FP16, KernelOutput("other")) == []
    codes = KernelOutput("n", QdqStep("quantize", ir.DataType.INT8, np.float32([1, 2, 3])))
    assert read(values, INT8, codes, KernelOutput("other"))[0][1, 2, 3] == 3 * values[1, 2, 3]
    assert read(values, FP16, codes) == [], "a float where codes were expected"


@pytest.mark.parametrize(
    ("word", "dtype", "precision"),
    [
        ("FLOAT", np.float32, FP32),
        ("HALF", np.float16, FP16),
        ("BF16", ml_dtypes.bfloat16, BF16),
        ("FP8", ml_dtypes.float8_e4m3fn, FP8),
        ("INT8", np.int8, INT8),
        ("INT32", np.int32, None),
    ],
)
def test_the_listener_takes_every_type_of_values(word, dtype, precision) -> None:
    places = SimpleNamespace(HOST=0, DEVICE=1)
    heard = make_debug_listener(
        SimpleNamespace(IDebugListener=type("IDebugListener", (), {}), TensorLocation=places), {"t"}
    )
    array = np.array([[1, -2, 3]], dtype)
    for name in ("t", "other"):
        heard.process_debug_tensor(array.ctypes.data, 0, SimpleNamespace(name=word), array.shape, name, 0)
    array[:] = 0
    assert list(heard.found) == (["t"] if precision else [])
    if precision:
        assert heard.found["t"].precision is precision and heard.found["t"].values.tolist() == [[1, -2, 3]]


@pytest.fixture
def scripted(monkeypatch):
    """Builds that come to what a script says, in dB or with an error."""

    def make(*script):
        left = iter(script)

        def judge(builder, *arguments):
            db = next(left)
            yield Urgency.BUILD
            if isinstance(db, Exception):
                raise db
            builder.cache.write("ab" * 32, str(db).encode())
            builder.cache.timing_cache_path("x").write_text(str(db))
            worst = {"y": OutputErrors(ErrorMetrics(sqnr_db=db))}
            return EngineResult(Accuracy(worst, judged_error=10 ** (-db / 10)), "TensorRT", (1.0, 1.0, 1.0))

        monkeypatch.setattr(engine, "build_and_measure_engine", judge)

    return make


def workspace_of(network, builds: int, **more):
    return SimpleNamespace(
        network=network,
        build_plan=BuildPlan(builds_per_config=builds),
        ranges={},
        find_judged_feeds=lambda config: (),
        analysis=None,
        builder=Mock(),
        options=Mock(),
        **more,
    )


def test_the_worst_of_several_builds_counts_and_its_engine_is_the_one_kept(scripted, named_network, tmp_path) -> None:
    """One that fails later counts for nothing; what the worst was built with takes the place of the first, though the
    engines lie on another disk."""
    scripted(30.0, InputError("no luck"), 20.0, 25.0)
    (tmp_path / "disk" / "engines").mkdir(parents=True)
    (tmp_path / "engines").symlink_to(tmp_path / "disk" / "engines")
    cache = EngineCache(tmp_path / "engines")
    report, sent = Reporter(), []
    report.send = sent.append
    builder = EngineBuilder(workspace_of(named_network("attention_block"), 4), cache, report)
    result = run_to_end(engine.build_and_measure_worst_engine(builder, PrecisionConfig.from_precision(FP16)))
    assert [one.worst_errors.sqnr_db for one in result.repeated_builds] == [30.0, 20.0, 25.0]
    assert result.accuracy.worst_output[1].errors.sqnr_db == 20.0
    assert [one.text for one in sent] == ["build 2 of 4 failed: no luck"]
    assert cache.read("ab" * 32) == b"20.0" and cache.timing_cache_path("x").read_text() == "20.0"
    assert engine_variation_notes(result) == ["built 3 times: 20.0 to 30.0 dB, 1.00 ms; the worst is shown"]


@pytest.mark.parametrize(
    ("script", "figures", "kept"),
    [
        ((30.0, 20.0, 25.0), [30.0, 20.0, 25.0], b"20.0"),
        ((20.0, InputError("no luck"), 25.0), [20.0, 25.0], b"20.0"),
        ((InputError("no luck"), 20.0, 25.0), None, None),
    ],
)
def test_several_builds_are_made_by_workers_at_once(
    monkeypatch, scripted, named_network, tmp_path, script, figures, kept
) -> None:
    """They come to the same, whoever is done first; a first build that fails is left to this process."""

    class LastFirst(LocalExecutor):
        def map(self, errand, items):
            yield from [one for one in super().map(pickle.loads(pickle.dumps(errand)), items) if one][::-1]

    scripted(*script)
    config, results, sent = PrecisionConfig.from_precision(FP16), {}, []
    workspace = workspace_of(named_network("attention_block"), 3, worker_pool=SimpleNamespace(failure_reason=""))
    cache = EngineCache(tmp_path / "engines")
    store = SimpleNamespace(
        engines=cache,
        load_engine_result=lambda workspace, config: results.get(config),
        save_engine_result=lambda workspace, config, result: results.update({config: result}),
    )
    monkeypatch.setattr(engine, "get_executor", lambda workspace, report, for_engines: LastFirst(workspace))
    monkeypatch.setattr(
        engine,
        "EngineCache",  # as on the same host
        lambda folder=None: EngineCache(folder) if folder is not None else cache,
    )
    report = SimpleNamespace(wake=print, log=lambda text, level: sent.append(text), send_progress=lambda *at: None)
    steps = engine.build_engines_in_parallel(workspace, store, report, (config,))
    run_to_end(steps)
    assert len(results) == (figures is not None)
    if figures:
        assert [one.worst_errors.sqnr_db for one in results[config].repeated_builds] == figures
        assert results[config].accuracy.worst_output[1].errors.sqnr_db == min(figures) and cache.read("ab" * 32) == kept
    assert sent == ["build 2 of 3 failed: no luck"] * (figures == [20.0, 25.0])


def test_the_first_group_that_parts_is_named_and_a_fusion_is_told_from_a_kernel(named_network) -> None:
    network = named_network("attention_block")
    names = [group.name for group in network.groups]
    simulated = {name: GroupErrors(FP16, ErrorMetrics(sqnr_db=60.0)) for name in names}
    sound = {name: ErrorMetrics(sqnr_db=58.0) for name in names}
    assert (
        find_engine_divergence(network, simulated, EngineErrors(UNFUSED, sound))
        is find_engine_divergence(network, simulated, None)
        is None
    )
    for wrong in (ErrorMetrics(sqnr_db=20.0), ErrorMetrics(nan=3)):
        parts = find_engine_divergence(
            network, simulated, EngineErrors(UNFUSED, {**sound, names[4]: wrong, names[6]: wrong})
        )
        assert parts.group_name == names[4] and parts.divergence_description.startswith(
            "⚡ kernel error, not rounding: "
        )
    inside = EngineErrors(MARKED, sound, (), 1, verdict(59.0))
    assert "not the engine as built" in engine_errors_text(inside, len(names))
    lines = suggest_engine_checks(
        network,
        PrecisionConfig.from_precision(FP16),
        verdict(60.0),
        EngineResult(verdict(20.0), "TensorRT", engine_errors=inside),
        divergence=parts,
    )
    assert any("fusion barriers locate it" in line for line in lines) and any(names[4] in line for line in lines)
    assert engine_errors_text(EngineErrors(UNFUSED, missing_reason="its listing cannot be read"), 8) == (
        "errors layer by layer unknown: its listing cannot be read"
    )
