"""trt_tui.core.search and trt_tui.core.measure.simulation on networks that run"""

import itertools
import math

import numpy as np
import onnx
import pytest

from tests import networks
from tests.measuring import measure_impacts, measure_shares
from tests.networks import Builder, floats
from trt_tui.core.calibration.calibration import calibrate
from trt_tui.core.data.samples import load_samples
from trt_tui.core.measure.judged_outputs import select_judged_outputs
from trt_tui.core.measure.simulation import Analysis
from trt_tui.core.measure.target import check_targets, parse_target
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.core.search import Search, SearchSpace

FP32 = PrecisionConfig.from_precision(Precision.FP32)
INT8 = PrecisionConfig.from_precision(Precision.INT8, Precision.FP32)


class Simulated:
    """A network with its ranges, verdicts of configs, and how many runs they took."""

    def __init__(self, folder, model, arrays, backend, batch=8, **options):
        path, data = folder / "network.onnx", folder / "samples.npz"
        onnx.save(model, path)
        np.savez(data, **arrays)
        self.network = open_network(path)
        samples = load_samples(str(data), self.network.inputs, batch=batch)
        self.ranges = calibrate(self.network.model, self.network.calibrated_tensors, samples, backend).ranges
        options.setdefault("boundary_type", Precision.FP32)
        self.analysis = Analysis(self.network, backend, samples, select_judged_outputs(self.network), **options)
        self.runs = 0
        runs = self.analysis.execute_feeds

        def counted(*arguments, **options):
            for result in runs(*arguments, **options):
                self.runs += 1
                yield result

        self.analysis.execute_feeds = counted

    def verdict(self, config, feeds=None):
        *_, partial = self.analysis.measure_accuracy(config, self.ranges, feeds)
        return partial.value

    def impacts(self, config=INT8, **options):
        return measure_impacts(self.analysis, config, self.ranges, **options)

    def decibels(self, config):
        return self.verdict(config).worst_output[1].errors.sqnr_db


@pytest.fixture
def simulated(tmp_path, backend):
    made = []

    def simulate(model, arrays, **options):
        made.append(Simulated(tmp_path, model, arrays, backend, **options))
        return made[-1]

    yield simulate
    for one in made:
        one.analysis.close()


def vectors(count, seed=0):
    return {"x": np.random.default_rng(seed).standard_normal((count, 16), dtype=np.float32)}


def test_impacts_are_what_a_group_does_alone_and_what_goes_with_it(simulated):
    one = simulated(networks.chain(0), vectors(24))
    shares = measure_shares(one.analysis, INT8, one.ranges, measures_all_samples=True)
    found = one.impacts(measures_all_samples=True)
    assert set(found) == {group.name for group in one.network.groups}
    base = one.verdict(INT8)
    for group in one.network.groups:
        share = shares[group.name]
        assert share.samples == 24
        if not group.is_quantizable:
            assert (share.fraction, found[group.name]) == (0.0, 0.0)
            continue
        only = one.verdict(FP32.with_group_precision([group], Precision.INT8))
        without = one.verdict(INT8.with_group_precision([group], Precision.FP32))
        assert found[group.name] == pytest.approx(only.judged_error, rel=1e-9)
        assert share.fraction == pytest.approx((base.judged_error - without.judged_error) / base.judged_error)
        assert share.sqnr_if_raised_db == pytest.approx(without.worst_output[1].errors.sqnr_db)
    assert one.analysis.session_count == 1


def test_impacts_of_a_group_that_overflows_are_infinite_alone(simulated):
    b = Builder(0)
    big = b.node("MatMul", ["x", b.weight("w", np.full((16, 16), 3e4, np.float32))], "/big")
    small = b.node("MatMul", [big, b.weight("by", np.eye(16, dtype=np.float32) * np.float32(1e-5))], "/small")
    b.node("MatMul", [b.node("Relu", [small], "/relu"), b.kernel("v", (16, 4), 16)], "/head", output="y")
    model = b.model([floats("x", "batch", 16)], [floats("y", "batch", 4)])
    one = simulated(model, vectors(8), boundary_type=Precision.FP16)
    fp16 = PrecisionConfig.from_precision(Precision.FP16)
    found = one.impacts(fp16)
    assert [name for name, impact in found.items() if math.isinf(impact)] == ["/big/MatMul", "/small/MatMul"]
    shares = measure_shares(one.analysis, fp16, one.ranges)
    assert all(share.fraction == 0.0 for share in shares.values())  # raising one alone mends nothing
    search = Search(SearchSpace(one.network, fp16), sensitivities=found)
    while (config := search.propose_config()) is not None:
        search.record_target_result(check_targets([parse_target("sqnr>=50")], one.verdict(config)))
    assert search.result.is_met and search.result.best_evaluation.raised_groups == ("/big/MatMul", "/small/MatMul")


def brute_force(one, space, target):
    """The size of the smallest set that meets a target."""
    for count in range(len(space.candidates) + 1):
        for names in itertools.combinations(space.candidates, count):
            if target.is_met_by(one.verdict(space.build_config(names))):
                return count


@pytest.mark.parametrize("seed", range(5))
def test_auto_finds_at_most_one_group_more_than_brute_force(simulated, seed):
    image = {"image": networks.random_images(np.random.default_rng(seed), (8, 3, 8, 8))}
    one = (
        simulated(networks.small_resnet(seed, size=8), image)
        if seed == 4
        else simulated(networks.chain(seed), vectors(8, seed))
    )
    space = SearchSpace(one.network, INT8)
    impacts, start = one.impacts(), one.decibels(INT8)
    assert len(space.candidates) == 7
    for more in (3, 8):
        target = parse_target(f"sqnr>={start + more:.3f}")
        search = Search(space, sensitivities=impacts)
        while (config := search.propose_config()) is not None:
            search.record_target_result(check_targets([target], one.verdict(config)))
        assert search.result.is_met and target.is_met_by(one.verdict(search.result.config))
        assert len(search.result.best_evaluation.raised_groups) <= brute_force(one, space, target) + 1


@pytest.mark.parametrize("higher", [Precision.FP32, Precision.FP16])
def test_a_vision_transformer_from_int8_to_either_precision(simulated, higher):
    image = {"image": networks.random_images(np.random.default_rng(0), (8, 3, 32, 32))}
    one = simulated(networks.vit_block(), image, boundary_type=Precision.FP16)
    start = PrecisionConfig.from_precision(Precision.INT8, Precision.FP16)
    space = SearchSpace(one.network, start, higher)
    target = parse_target(f"sqnr>={one.decibels(start) + 3:.2f}")
    search = Search(space, sensitivities=one.impacts(start))
    while (config := search.propose_config()) is not None:
        search.record_target_result(check_targets([target], one.verdict(config)))
    result = search.result
    assert result.is_met and {choice.precision for choice in result.config.precision_moves.values()} == {higher}
    assert 0 < len(result.best_evaluation.raised_groups) < len(space.candidates) / 2
    assert one.analysis.session_count == 1 and all("dB" in text for text in result.raise_reasons.values())
