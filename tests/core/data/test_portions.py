"""trt_tui.core.data.adaptive_runner: what memory does not suffice for goes in portions, or another way, with the same
figures"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

from tests.measuring import measure_shares
from tests.networks import Builder, floats
from trt_tui.backends.onnxruntime import OnnxRuntimeBackend, OnnxRuntimeRunner
from trt_tui.core.calibration.calibration import calibrate
from trt_tui.core.data.adaptive_runner import AdaptiveRunner
from trt_tui.core.data.memory_fallbacks import MemoryFallbacks
from trt_tui.core.data.samples import load_samples
from trt_tui.core.measure import simulation
from trt_tui.core.measure.group_errors import measure_group_errors
from trt_tui.core.measure.judged_outputs import select_judged_outputs
from trt_tui.core.measure.simulation import Analysis
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.core.runner import ExecutionMode
from trt_tui.errors import OutOfMemoryError

INT8 = PrecisionConfig.from_precision(Precision.INT8)
WORDS = (
    "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running Conv node. "
    "bfc_arena.cc:376 Available memory of 1024 is smaller than requested bytes of 4096"
)


class Short(OnnxRuntimeBackend):
    """A backend without memory for more than ``most`` samples of ``x`` at a time.

    Attributes:
        runs: The numbers of samples that were run.
    """

    def __init__(self, most: int, *, device: bool = False, spare: bool = False) -> None:
        super().__init__("cpu", threads=2)
        self.capabilities = replace(self.capabilities, has_device=device)
        self.most, self.spare, self.runs = most, spare, []

    def get_host_backend(self):
        return OnnxRuntimeBackend("cpu", threads=2) if self.spare else None

    def _create_inference_session(self, model_bytes, options, session_arguments, *, capture_graphs=False):
        session = super()._create_inference_session(model_bytes, options, session_arguments)
        run = session.run

        def within(names, feeds):
            if (rows := len(feeds.get("x", ()))) > self.most:
                raise RuntimeError(WORDS)
            self.runs.append(rows)
            return run(names, feeds)

        session.run = within
        return session


@pytest.fixture
def sampled(tmp_path):
    """A network of two outputs, one with the samples along its second axis, which is not declared; seven samples in
    feeds of five and two."""

    def samples_of(batch="batch", mean=False):
        b, rng = Builder(), np.random.default_rng(0)

        def weight(name, *shape):
            return b.weight(name, rng.standard_normal(shape).astype(np.float32) / 3)

        x = b.node("Conv", ["x", weight("w1", 8, 3, 3, 3)], name="/1/Conv", pads=[1, 1, 1, 1])
        x = b.node("Conv", [b.node("Relu", [x], name="/1/Relu"), weight("w2", 4, 8, 3, 3)], name="/2/Conv")
        x = b.node("Relu", [x], name="/2/Relu")
        b.node("Transpose", [x], output="turned", perm=[1, 0, 2, 3])
        b.node("MatMul", [b.node("Flatten", [x]), weight("w3", 64, 5)], output="y")
        outputs = [floats("turned", None, None, None, None), floats("y", batch, 5)]
        if mean:
            b.node("ReduceMean", ["y"], output="mean", keepdims=0)
            outputs.append(floats("mean"))
        onnx.save(b.model([floats("x", batch, 3, 6, 6)], outputs), tmp_path / "network.onnx")
        count = 7 if isinstance(batch, str) else 2 * batch
        np.savez(tmp_path / "samples.npz", x=rng.standard_normal((count, 3, 6, 6)).astype(np.float32))
        network = open_network(tmp_path / "network.onnx")
        return network, load_samples(str(tmp_path / "samples.npz"), network.inputs, batch=5)

    return samples_of


def figures(backend, network, samples):
    """All that runs of a network over samples yield, and how what-ifs ran."""
    ranges = {
        method: calibrate(network.model, network.calibrated_tensors, samples, backend, method=method).ranges
        for method in ("minmax", "entropy")
    }
    with Analysis(network, backend, samples, select_judged_outputs(network, ["turned", "y"])) as analysis:
        for _ in analysis.measure_magnitudes():
            pass
        magnitudes = analysis.get_magnitudes()
        *_, verdict = analysis.measure_accuracy(INT8, ranges["minmax"])
        shares = measure_shares(analysis, INT8, ranges["minmax"], measures_all_samples=True)
        *_, layers = measure_group_errors(analysis, {"int8": INT8}, ranges["minmax"])
        return [
            *ranges.values(),
            magnitudes.tensor_magnitudes,
            magnitudes.inner_magnitudes,
            {name: share.fraction for name, share in shares.items()},
            {name: one.errors.sqnr_db for name, one in verdict.value.outputs.items()},
            {name: (one.accumulated.sqnr_db, one.ref_max) for name, one in layers.value["int8"].items()},
            {name: one.isolated.sqnr_db for name, one in layers.value["int8"].items() if one.isolated},
        ], analysis.execution_mode


def alike(one, other):
    for before, now in zip(one, other, strict=True):
        assert before.keys() == now.keys()
        for name, value in before.items():
            assert now[name] == pytest.approx(value, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize(("most", "device", "compared"), [(2, False, 1), (3, True, 1), (1, True, 10_000)])
def test_a_batch_that_memory_does_not_suffice_for_goes_in_portions_with_the_same_figures(
    sampled, monkeypatch, most, device, compared
):
    monkeypatch.setattr(simulation, "MIN_COMPARED_ELEMENTS", compared)
    network, samples = sampled()
    whole, level = figures(Short(99, device=device), network, samples)
    assert level is None and not list(samples.memory_fallbacks.take_messages())
    short = Short(most, device=device)
    parts, level = figures(short, network, samples)
    alike(whole, parts)
    assert level == ExecutionMode(f"{most} sample{'s' * (most > 1)} at a time", level.reason)
    assert "too small" in level.reason and set(short.runs) <= {0, 1, 2, 3}
    said = list(samples.memory_fallbacks.take_messages())
    assert {text.split(":")[0] for text in said} == {"Runs in FP32", "Errors at the fused layers"}


@pytest.mark.parametrize("most", [1, 2, 3])
def test_partial_sums_beyond_fp16_are_those_of_the_whole_batch(sampled, tmp_path, most):
    network, _ = sampled()
    np.savez(tmp_path / "large.npz", x=1e5 * np.load(tmp_path / "samples.npz")["x"])

    def magnitudes(most):
        samples = load_samples(str(tmp_path / "large.npz"), network.inputs, batch=5)
        with Analysis(network, Short(most), samples, select_judged_outputs(network, ["y"])) as analysis:
            for _ in analysis.measure_magnitudes():
                pass
            return analysis.get_magnitudes(), samples.memory_fallbacks.get_fallback_state("runs in FP32").max_rows

    (whole, _), (parts, rows) = magnitudes(99), magnitudes(most)
    assert rows == most and {"/1/Conv", "/2/Conv"} <= whole.inner_magnitudes.keys()
    alike([whole.tensor_magnitudes, whole.inner_magnitudes], [parts.tensor_magnitudes, parts.inner_magnitudes])


@pytest.mark.parametrize(("batch", "most"), [("batch", 0), (4, 3)])
def test_what_cannot_be_divided_goes_in_ways_that_take_less_of_a_device_and_at_last_on_the_host(sampled, batch, most):
    network, samples = sampled(batch)
    expected, _ = figures(Short(99), network, samples)
    found, level = figures(Short(most, device=True, spare=True), network, samples)
    alike(expected, found)
    assert level.name == "on the CPU" and "GPU memory" in level.reason
    with pytest.raises(OutOfMemoryError) as caught:
        figures(Short(most, device=True), network, samples)
    assert "smaller than requested" in caught.value.cause
    samples.memory_fallbacks, judged = MemoryFallbacks(), select_judged_outputs(network, ["y"])
    with Analysis(network, Short(most, device=True), samples, judged) as analysis, pytest.raises(OutOfMemoryError):
        list(analysis.measure_accuracy(INT8, expected[0]))


def test_what_is_one_value_of_several_samples_is_not_put_together(sampled):
    network, samples = sampled(mean=True)
    for spare in (False, True):
        samples.memory_fallbacks = MemoryFallbacks()
        with AdaptiveRunner(Short(2, device=True, spare=spare), network.model, samples) as runner:
            if spare:
                assert runner.run(samples.read_feed(0))["mean"].shape == ()
                continue
            with pytest.raises(OutOfMemoryError, match="5 samples at a time, and mean is a single value for several"):
                runner.run(samples.read_feed(0))
            whole = runner.run(samples.read_feed(0), ["y", "turned"])
    assert whole["y"].shape == (5, 5) and whole["turned"].shape == (4, 5, 4, 4)


@pytest.mark.parametrize(
    ("most", "node", "why"),
    [
        (2, ("RandomNormalLike", {}), "smaller than requested"),
        (1, ("ReduceMean", {"axes": [0]}), "the sample axis of y is unknown"),
    ],
)
def test_what_differs_in_portions_is_not_divided(opened, tmp_path, most, node, why):
    b = Builder()
    b.node(node[0], ["x"], output="y", **node[1])
    network = opened(b.model([floats("x", "batch", 4)], [floats("y", None, 4)]))
    np.savez(tmp_path / "samples.npz", x=np.ones((4, 4), np.float32))
    samples = load_samples(str(tmp_path / "samples.npz"), network.inputs, batch=4)
    with AdaptiveRunner(Short(most), network.model, samples) as one:
        with pytest.raises(OutOfMemoryError) as caught:
            one.run(samples.read_feed(0))
    assert why in caught.value.cause


def test_what_is_loaded_for_other_runs_is_freed_first(sampled):
    network, samples = sampled()
    backend = Short(99)
    with Analysis(network, backend, samples, select_judged_outputs(network, ["y"])) as analysis:
        ranges = dict.fromkeys(network.calibrated_tensors, 4.0)
        *_, before = analysis.measure_accuracy(INT8, ranges)
        assert analysis.session_count == 1
        backend.most = 3
        with AdaptiveRunner(backend, network.model, samples) as runner:
            runner.run(samples.read_feed(0))
        assert samples.memory_fallbacks.get_fallback_state("runs in FP32").max_rows == 3
        backend.most = 99
        *_, after = analysis.measure_accuracy(INT8, ranges)
        assert analysis.session_count == 2 and after.value == before.value


class Single(OnnxRuntimeBackend):
    """A backend without memory for two sessions at a time.

    Attributes:
        runners: All that were loaded.
    """

    def __init__(self) -> None:
        super().__init__("cpu", threads=2)
        self.capabilities = replace(self.capabilities, has_device=True)
        self.runners: list[OnnxRuntimeRunner] = []

    def load(self, model, **options):
        if any(runner._session is not None for runner in self.runners):
            raise OutOfMemoryError("out of memory", WORDS, "")
        self.runners.append(super().load(model, **options))
        return self.runners[-1]


def test_magnitudes_are_measured_after_the_what_ifs_where_memory_does_not_suffice_for_both(sampled, tmp_path):
    network, _ = sampled()
    samples = load_samples(str(tmp_path / "samples.npz"), network.inputs, batch=2)
    judged, fp16 = select_judged_outputs(network, ["y"]), PrecisionConfig.from_precision(Precision.FP16)
    with Analysis(network, OnnxRuntimeBackend("cpu", threads=2), samples, judged) as analysis:
        *_, expected = analysis.measure_accuracy(fp16, {})
        magnitudes = analysis.get_magnitudes()
    backend = Single()
    with Analysis(network, backend, samples, judged) as analysis:
        for _ in range(2):
            *_, found = analysis.measure_accuracy(fp16, {})
            assert found.value == expected.value
        assert analysis.get_magnitudes() == magnitudes and analysis.execution_mode is None
    assert samples.memory_fallbacks.get_fallback_state("runs in FP32").max_rows is None
    assert samples.memory_fallbacks.has_freed_sessions and len(backend.runners) == 5
