"""trt_tui.core.engines.ends, core.measure.engine_errors, agreement.parting and the debug listener."""

import json
import pickle
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import ml_dtypes
import numpy as np
import pytest

from tests.measuring import verdict
from trt_tui.backends.tensorrt.debug import listener
from trt_tui.core.engines.ends import KernelEnd, Scale, Written, kernel_ends, readings
from trt_tui.core.engines.listing import read_listing
from trt_tui.core.hands import Here
from trt_tui.core.lowering.strong import lower_strong
from trt_tui.core.measure.agreement import engine_remarks, inside_words, parting, what_to_check
from trt_tui.core.measure.comparison import (
    MARKED,
    UNFUSED,
    EngineErrors,
    EngineResult,
    Errors,
    GroupErrors,
    OutputErrors,
    Verdict,
)
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.core.runner import Handed
from trt_tui.errors import InputError
from trt_tui.jobs import build, rebuilding
from trt_tui.jobs.engine_building import BuildProgress
from trt_tui.jobs.store import EngineCache
from trt_tui.workspace import Plan

FOLDER = Path(__file__).parent / "listings"
FP32, FP16, BF16, FP8, INT8 = (Precision(one) for one in ("fp32", "fp16", "bf16", "fp8", "int8"))


@pytest.mark.parametrize(("network_name", "listed", "precision", "ends"), [
    ("odd_kernels", "odd-int8", INT8, {
        "/stem/Conv": ("/stem/Relu_output_0", True), "/block/one/Conv": ("/block/one/Relu_output_0", True)}),
    ("odd_kernels", "odd-fp16", FP16, {
        "/stem/Conv": ("/stem/Relu_output_0", False), "/depthwise/Conv": ("/depthwise/Relu_output_0", False)}),
    ("attention_block", "attention-fp16", FP16, {
        "/q/MatMul": ("/q/Transpose_output_0", False), "/values/MatMul": ("/values/MatMul_output_0", False),
        "/scores/MatMul": None, "/Softmax": None})])
def test_groups_are_judged_where_kernels_end(named_network, network_name, listed, precision, ends) -> None:
    """By the rows of real builders, whose tensors have names of their own: codes with the scale of their Q, results
    behind copies as those copies; what stays inside a kernel is absent."""
    network = named_network(network_name)
    ranges = {tensor: 1.0 + place / 8 for place, tensor in enumerate(network.activations)}
    typed = lower_strong(network, PrecisionConfig.uniform(precision), ranges).model
    report = read_listing((FOLDER / f"{listed}.txt").read_text("utf-8"), network)
    found = kernel_ends(report, network, typed, json.dumps({"Layers": []}))
    for group, end in ends.items():
        if end is None:
            assert group not in found
            continue
        (written,) = found[group].written
        assert (found[group].tensor, written.scale is not None) == end
        if written.scale is not None:
            assert float(written.scale.values) == pytest.approx(ranges[end[0]] / 127, rel=2e-3)


def test_memory_is_read_as_the_inspector_lays_it_out_where_that_fits() -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    channels_last = np.ascontiguousarray(values.transpose(0, 2, 1)).reshape(2, 3, 4)

    def read(array, precision, *written, shape=(2, 3, 4)):
        return readings({"n": Handed(array, precision)}, KernelEnd("t", written), shape)

    plain, strided = read(channels_last, FP16, Written("n", None, (12, 1, 3)))
    assert np.array_equal(plain, channels_last) and np.array_equal(strided, values)
    assert len(read(values, FP16, Written("n", None, (99, 1, 3)))) == 1
    assert read(values, FP16, Written("n"), shape=(2, 3, 5)) == read(values, FP16, Written("other")) == []
    codes = Written("n", Scale(np.float32([1, 2, 3]), 1))
    assert read(values, INT8, codes, Written("other"))[0][1, 2, 3] == 3 * values[1, 2, 3]
    assert read(values, FP16, codes) == [], "a float where codes were expected"


@pytest.mark.parametrize(("word", "dtype", "precision"), [
    ("FLOAT", np.float32, FP32), ("HALF", np.float16, FP16), ("BF16", ml_dtypes.bfloat16, BF16),
    ("FP8", ml_dtypes.float8_e4m3fn, FP8), ("INT8", np.int8, INT8), ("INT32", np.int32, None)])
def test_the_listener_takes_every_type_of_values(word, dtype, precision) -> None:
    places = SimpleNamespace(HOST=0, DEVICE=1)
    heard = listener(SimpleNamespace(IDebugListener=type("IDebugListener", (), {}), TensorLocation=places), {"t"})
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

        def build_and_judge(*arguments, cache, **options):
            db = next(left)
            yield BuildProgress("building")
            if isinstance(db, Exception):
                raise db
            cache.write("ab" * 32, str(db).encode())
            cache.timing_cache("x").write_text(str(db))
            worst = {"y": OutputErrors(Errors(sqnr_db=db))}
            yield EngineResult(Verdict(worst, energy=10 ** (-db / 10)), "TensorRT", (1.0, 1.0, 1.0))

        monkeypatch.setattr(rebuilding, "build_and_judge", build_and_judge)

    return make


def test_the_worst_of_several_builds_counts_and_its_engine_is_the_one_kept(scripted, tmp_path) -> None:
    """One that fails later counts for nothing; what the worst was built with takes the place of the first."""
    scripted(30.0, InputError("no luck"), 20.0, 25.0)
    cache = EngineCache(tmp_path / "engines")
    steps = list(rebuilding.build_several(None, None, None, {}, (), Plan(builds=4), quick=False, cache=cache,
                                          wake=print))
    assert [one.errors.sqnr_db for one in steps[-1].builds] == [30.0, 20.0, 25.0]
    assert steps[-1].verdict.worst[1].errors.sqnr_db == 20.0
    assert any("build 2 of 4 failed: no luck" in str(one) for one in steps)
    assert cache.read("ab" * 32) == b"20.0" and cache.timing_cache("x").read_text() == "20.0"
    assert engine_remarks(steps[-1]) == ["built 3 times: 20.0 to 30.0 dB, 1.00 ms to 1.00 ms; the worst is shown"]


@pytest.mark.parametrize(("script", "figures", "kept"), [
    ((30.0, 20.0, 25.0), [30.0, 20.0, 25.0], b"20.0"), ((20.0, InputError("no luck"), 25.0), [20.0, 25.0], b"20.0"),
    ((InputError("no luck"), 20.0, 25.0), None, None)])
def test_several_builds_are_made_by_workers_at_once(monkeypatch, scripted, named_network, tmp_path, script, figures,
                                                    kept) -> None:
    """They come to the same, whoever is done first; a first build that fails is left to this process."""
    class LastFirst(Here):
        def work(self, errand, items):
            yield from [one for one in super().work(pickle.loads(pickle.dumps(errand)), items) if one][::-1]

    scripted(*script)
    config, results, sent = PrecisionConfig.uniform(FP16), {}, []
    workspace = SimpleNamespace(network=named_network("attention_block"), plan=Plan(builds=3), ranges={}, feeds=(),
                                analysis=None, builder=Mock(), options=Mock(), others=SimpleNamespace(lost=""))
    cache = EngineCache(tmp_path / "engines")
    store = SimpleNamespace(engines=cache, engine=lambda workspace, config: results.get(config),
                            keep_engine=lambda workspace, config, result: results.update({config: result}))
    monkeypatch.setattr(build, "hands_of", lambda workspace, report, engines: LastFirst(workspace))
    monkeypatch.setattr(build, "EngineCache", lambda: cache)  # as on the same host
    report = SimpleNamespace(wake=print, send=sent.append, progress=lambda *at: None, job=1)
    steps = build.ahead(workspace, store, report, (config,))
    with pytest.raises(StopIteration) as ended:
        while True:
            next(steps)
    assert ended.value.value == len(results) == (figures is not None)
    if figures:
        assert [one.errors.sqnr_db for one in results[config].builds] == figures
        assert results[config].verdict.worst[1].errors.sqnr_db == min(figures) and cache.read("ab" * 32) == kept
    assert [note.text for note in sent] == ["build 2 of 3 failed: no luck"] * (figures == [20.0, 25.0])


def test_the_first_group_that_parts_is_named_and_a_fusion_is_told_from_a_kernel(named_network) -> None:
    network = named_network("attention_block")
    names = [group.name for group in network.groups]
    simulated = {name: GroupErrors(FP16, Errors(sqnr_db=60.0)) for name in names}
    sound = {name: Errors(sqnr_db=58.0) for name in names}
    assert parting(network, simulated, EngineErrors(UNFUSED, sound)) is parting(network, simulated, None) is None
    for wrong in (Errors(sqnr_db=20.0), Errors(nan=3)):
        parts = parting(network, simulated, EngineErrors(UNFUSED, {**sound, names[4]: wrong, names[6]: wrong}))
        assert parts.group == names[4] and parts.said.startswith("⚡ kernel, not rounding: ")
    inside = EngineErrors(MARKED, sound, (), 1, verdict(59.0))
    assert "not the engine as built" in inside_words(inside, len(names))
    lines = what_to_check(network, PrecisionConfig.uniform(FP16), verdict(60.0),
                          EngineResult(verdict(20.0), "TensorRT", inside=inside), parts=parts)
    assert any("fusion barriers find which" in line for line in lines) and any(names[4] in line for line in lines)
    assert inside_words(EngineErrors(UNFUSED, missing="its listing cannot be read"), 8) == (
        "layer by layer not known: its listing cannot be read")
