"""ONNX Runtime's CUDA provider for real: the reference and the simulation are those of the CPU.

python -m pytest -m gpu tests/backends/test_cuda_gpu.py
"""

import re

import numpy as np
import onnx
import pytest

from tests import networks
from tests.core.lowering.test_block_scales import TYPES, identity, simulate
from tests.core.measure.test_device_pieces import assert_pieces_equal_whole
from trt_tui import demo
from trt_tui.backends.onnxruntime import OnnxRuntimeBackend, _cuda_failure_reason
from trt_tui.core.calibration.calibration import calibrate
from trt_tui.core.data.memory_fallbacks import MemoryFallbacks
from trt_tui.core.data.samples import load_samples
from trt_tui.core.measure.error_metrics import ErrorSums
from trt_tui.core.measure.group_errors import measure_group_errors
from trt_tui.core.measure.judged_outputs import select_judged_outputs
from trt_tui.core.measure.simulation import Analysis
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(_cuda_failure_reason()), reason=f"no CUDA provider: {_cuda_failure_reason()}"),
]

NAMES = ["demo", "small_resnet", "light_resnet50", "bert", "vit"]
FP16 = PrecisionConfig.from_precision(Precision.FP16)
INT8 = PrecisionConfig.from_precision(Precision.INT8, Precision.FP16)


@pytest.fixture(scope="module")
def cuda() -> OnnxRuntimeBackend:
    return OnnxRuntimeBackend("cuda")


@pytest.fixture
def sampled(named_network, tmp_path):
    """A network of `BACKEND_NAMES` with a few samples."""

    def samples_of(name: str):
        network = named_network(name)
        if name == "demo":
            with np.load(demo.samples_path()) as data:
                arrays = {"image": data["image"][:16]}
        else:
            arrays = networks.feeds(onnx.load(network.path), n=8, **({"sequence": 8} if name == "bert" else {}))
        np.savez(tmp_path / "samples.npz", **arrays)
        return network, load_samples(str(tmp_path / "samples.npz"), network.inputs, batch=8)

    return samples_of


def ended(partials):
    *_, partial = partials
    return partial.value


def decibels(expected, got) -> float:
    """SQNR of the worst output."""
    worst = np.inf
    for name, array in expected.items():
        if array.dtype.kind == "f":
            sums = ErrorSums()
            sums.add_tensor_pair(array, got[name])
            worst = min(worst, sums.compute_error_metrics().sqnr_db or np.inf)
    return worst


@pytest.mark.parametrize("name", NAMES)
def test_fp32_is_that_of_the_cpu(name, sampled, backend, cuda):
    """With TF32 it would be some 60 dB."""
    network, samples = sampled(name)
    feed = samples.read_feed(0)
    with backend.load(network.model) as cpu, cuda.load(network.model) as gpu:
        assert decibels(cpu.run(feed), gpu.run(feed)) > 90


@pytest.mark.parametrize("name", NAMES)
def test_what_is_simulated_is_what_the_cpu_simulates(name, sampled, backend, cuda):
    network, samples = sampled(name)
    ranges = calibrate(network.model, network.calibrated_tensors, samples, backend).ranges
    figures = {}
    for one in (backend, cuda):
        own = calibrate(network.model, network.calibrated_tensors, samples, one).ranges
        assert own == pytest.approx(ranges, rel=1e-3, abs=1e-6)
        analysis = Analysis(network, one, samples, select_judged_outputs(network, ()), boundary_type=Precision.FP16)
        verdicts = [ended(analysis.measure_accuracy(config, ranges)) for config in (FP16, INT8)]
        layers = ended(measure_group_errors(analysis, {"int8": INT8}, ranges))["int8"]
        analysis.close()
        figures[one.provider] = (
            [verdict.worst_output[1].errors.sqnr_db for verdict in verdicts],
            {group: error.accumulated.sqnr_db for group, error in layers.items()},
        )
    on_cpu, on_gpu = figures["cpu"], figures["cuda"]
    assert on_gpu[0] == pytest.approx(on_cpu[0], abs=2.0)  # INT8 rounds ties the other way here and there
    assert on_gpu[1].keys() == on_cpu[1].keys()
    apart = [
        abs(on_gpu[1][group] - value)
        for group, value in on_cpu[1].items()
        if value is not None and on_gpu[1][group] is not None and value < 90
    ]
    assert len(apart) > 3 and np.median(apart) < 0.5


@pytest.mark.parametrize("name", ["small_resnet", "bert", "vit"])
def test_pieces_give_the_bits_of_the_whole_graph(name, sampled, backend, cuda):
    network, samples = sampled(name)
    assert_pieces_equal_whole(
        cuda, network, samples, calibrate(network.model, network.calibrated_tensors, samples, backend).ranges
    )


@pytest.mark.parametrize(
    ("name", "limits"), [("demo", (16, 1)), ("bert", (1,)), ("light_resnet50", (16, 1))]
)  # its batch is fixed
def test_with_less_memory_runs_go_another_way_with_the_same_figures(name, limits, sampled, cuda):
    network, samples = sampled(name)
    expected, levels = None, []
    for megabytes in (None, *limits):
        short = OnnxRuntimeBackend("cuda")
        if megabytes is not None:
            short.cuda_options["gpu_mem_limit"] = str(megabytes << 20)  # of each session's arena
        samples.memory_fallbacks = MemoryFallbacks()
        ranges = calibrate(network.model, network.calibrated_tensors, samples, short).ranges
        with Analysis(
            network, short, samples, select_judged_outputs(network, ()), boundary_type=Precision.FP16
        ) as analysis:
            for _ in range(3):  # so that a graph is captured
                verdicts = [ended(analysis.measure_accuracy(config, ranges)) for config in (FP16, INT8)]
            layers = ended(measure_group_errors(analysis, {"int8": INT8}, ranges))["int8"]
            levels.append(
                f"{megabytes} MB: {analysis.execution_mode.name}; {'; '.join(samples.memory_fallbacks.take_messages())}"
            )
            figures = [verdict.worst_output[1].errors.sqnr_db for verdict in verdicts]
            figures.append(np.median([one.accumulated.sqnr_db or np.inf for one in layers.values()]))
        print(name, levels[-1], *(round(float(one), 2) for one in figures), analysis.execution_mode.reason)
        expected = expected or figures
        assert figures == pytest.approx(expected, abs=2.0)
    assert levels[0].startswith("None MB: CUDA graph;")
    assert any(re.search("at a time|handed over|control flow|on the CPU", level) for level in levels[1:])


@pytest.mark.parametrize("precision", TYPES)
@pytest.mark.parametrize("data", [False, True])
def test_scales_of_blocks_are_those_of_the_cpu(precision, data, opened):
    network, size = identity(opened, precision)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, size)).astype(np.float32) * np.float32(2.0) ** rng.integers(-40, 40, (64, 1))
    x[0, 3], x[1] = np.nan, 0
    found, expected = (
        simulate(
            OnnxRuntimeBackend(provider),
            network,
            PrecisionConfig(precision, Precision.FP32),
            {"x": x.astype(np.float32)},
            {"x": 8.0},
            data,
        )
        for provider in ("cuda", "cpu")
    )
    np.testing.assert_array_equal(found, expected)
