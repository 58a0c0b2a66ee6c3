"""trt_tui.demo: the bundled network breaks in INT8 for a reason that three layers in FP32 cure"""

import numpy as np
import onnx
import pytest

from tests.measuring import measure_shares
from trt_tui import demo
from trt_tui.backends.onnxruntime import OnnxRuntimeBackend
from trt_tui.core.calibration.calibration import calibrate
from trt_tui.core.data.samples import load_samples, split_samples
from trt_tui.core.measure.judged_outputs import select_judged_outputs
from trt_tui.core.measure.simulation import Analysis
from trt_tui.core.measure.user_metric import load_metric
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision

FP16 = PrecisionConfig.from_precision(Precision.FP16)
INT8 = PrecisionConfig.from_precision(Precision.INT8)


@pytest.fixture(scope="module")
def analysis():
    network = open_network(demo.network_path())
    samples = load_samples(str(demo.samples_path()), network.inputs, limit=32)
    metric = load_metric(demo.metric_spec())
    with Analysis(
        network, OnnxRuntimeBackend(threads=2), samples, select_judged_outputs(network), metric=metric
    ) as made:
        yield made


@pytest.fixture(scope="module")
def ranges(analysis):
    network = analysis.network
    calibration = load_samples(str(demo.calibration_path()), network.inputs)
    return calibrate(network.model, network.calibrated_tensors, calibration, analysis.backend).ranges


def f1(analysis, config, ranges):
    *_, partial = analysis.measure_accuracy(config, ranges)
    return partial.value.headline_metric


def test_int8_loses_ten_points_and_three_layers_bring_it_back(analysis, ranges):
    base = next(iter(analysis.measure_reference_metric().values()))
    fp16, int8 = f1(analysis, FP16, ranges), f1(analysis, INT8, ranges)
    assert abs(base - fp16) < 0.5 and fp16 - int8 >= 10
    shares = measure_shares(analysis, INT8, ranges, feed_indices=[0])
    worst = sorted(shares, key=lambda name: -shares[name].fraction)[:3]
    raised = INT8.with_group_precision([analysis.network.get_group(name) for name in worst], Precision.FP32)
    assert fp16 - f1(analysis, raised, ranges) < 1


def test_there_are_enough_samples_and_they_are_apart(analysis):
    samples, calibration = np.load(demo.samples_path()), np.load(demo.calibration_path())
    image = analysis.network.inputs[0].name
    judged = load_samples(str(demo.samples_path()), analysis.network.inputs)
    assert judged.count >= 64 and judged.label_names
    seen = {array.tobytes() for array in calibration[image]}
    assert not any(array.tobytes() in seen for array in samples[image])
    kept_apart = split_samples(judged, load_samples(str(demo.calibration_path()), analysis.network.inputs))
    assert kept_apart.judged_samples.count == len(samples[image]) and not kept_apart.warnings


def test_it_is_small():
    weights = onnx.load(demo.network_path()).graph.initializer
    assert sum(onnx.numpy_helper.to_array(tensor).nbytes for tensor in weights) <= 2 << 20
    assert demo.samples_path().stat().st_size + demo.calibration_path().stat().st_size <= 4 << 20
