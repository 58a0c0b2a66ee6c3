"""trt_tui.core.search and trt_tui.core.measure.analysis on networks that run"""

import itertools
import math

import numpy as np
import onnx
import pytest

from tests import networks
from tests.measuring import measure_impacts, measure_shares
from tests.networks import Builder, floats
from trt_tui.core.calibration.calibrate import calibrate
from trt_tui.core.data.samples import load_samples
from trt_tui.core.measure.analysis import Analysis
from trt_tui.core.measure.comparison import Share
from trt_tui.core.measure.judge import judged_outputs
from trt_tui.core.measure.judgement import judge
from trt_tui.core.measure.shares import Impact
from trt_tui.core.measure.target import parse_target
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.core.search import Search, Space

FP32 = PrecisionConfig.uniform(Precision.FP32)
INT8 = PrecisionConfig.uniform(Precision.INT8, Precision.FP32)


class Simulated:
    """A network with its ranges, verdicts of configs, and how many runs they took."""

    def __init__(self, folder, model, arrays, backend, batch=8, **options):
        path, data = folder / "network.onnx", folder / "samples.npz"
        onnx.save(model, path)
        np.savez(data, **arrays)
        self.network = open_network(path)
        samples = load_samples(str(data), self.network.inputs, batch=batch)
        self.ranges = calibrate(self.network.model, self.network.activations, samples, backend).ranges
        options.setdefault("other", Precision.FP32)
        self.analysis = Analysis(self.network, backend, samples, judged_outputs(self.network), **options)
        self.runs = 0
        runs = self.analysis._runs

        def counted(*arguments, **options):
            for result in runs(*arguments, **options):
                self.runs += 1
                yield result

        self.analysis._runs = counted

    def verdict(self, config, feeds=None):
        *_, partial = self.analysis.verdict(config, self.ranges, feeds)
        return partial.value

    def impacts(self, config=INT8, **options):
        return measure_impacts(self.analysis, config, self.ranges, **options)

    def decibels(self, config):
        return self.verdict(config).worst[1].errors.sqnr_db


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
    found = one.impacts(exact=True)
    assert set(found) == {group.name for group in one.network.groups}
    base = one.verdict(INT8)
    for group in one.network.groups:
        impact = found[group.name]
        assert impact.samples == 24
        if not group.quantizable:
            assert (impact.owns, impact.energy, impact.impact_db) == (0.0, 0.0, None)
            continue
        only = one.verdict(FP32.with_groups([group], Precision.INT8))
        without = one.verdict(INT8.with_groups([group], Precision.FP32))
        assert impact.energy == pytest.approx(only.energy, rel=1e-9)
        assert impact.impact_db == pytest.approx(only.worst[1].errors.sqnr_db)
        assert impact.owns == pytest.approx((base.energy - without.energy) / base.energy)
        assert impact.kept_db == pytest.approx(without.worst[1].errors.sqnr_db)
    assert one.analysis.sessions == 1


def test_impacts_of_a_group_that_overflows_are_infinite_alone(simulated):
    b = Builder(0)
    big = b.node("MatMul", ["x", b.weight("w", np.full((16, 16), 3e4, np.float32))], "/big")
    small = b.node("MatMul", [big, b.weight("by", np.eye(16, dtype=np.float32) * np.float32(1e-5))], "/small")
    b.node("MatMul", [b.node("Relu", [small], "/relu"), b.kernel("v", (16, 4), 16)], "/head", output="y")
    model = b.model([floats("x", "batch", 16)], [floats("y", "batch", 4)])
    one = simulated(model, vectors(8), other=Precision.FP16)
    fp16 = PrecisionConfig.uniform(Precision.FP16)
    found = one.impacts(fp16)
    overflowing = [name for name, impact in found.items() if math.isinf(impact.energy)]
    assert overflowing == ["/big/MatMul", "/small/MatMul"] and found["/big/MatMul"].impact_db is None
    assert all(impact.owns == 0.0 for impact in found.values())  # raising one alone mends nothing
    search = Search(Space(one.network, fp16), impacts=found)
    while (config := search.ask()) is not None:
        search.tell(judge([parse_target("sqnr>=50")], one.verdict(config)))
    assert search.result.met and search.result.best.raised == ("/big/MatMul", "/small/MatMul")


def test_impacts_are_shares_and_shares_stay_as_they_were(simulated):
    one = simulated(networks.chain(3), vectors(8))
    shares = measure_shares(one.analysis, INT8, one.ranges)
    found = one.impacts()
    assert all(isinstance(impact, Impact) and isinstance(impact, Share) for impact in found.values())
    assert {n: (s.owns, s.kept_db) for n, s in shares.items()} == {n: (i.owns, i.kept_db) for n, i in found.items()}


def brute_force(one, space, target):
    """The size of the smallest set that meets a target."""
    for count in range(len(space.candidates) + 1):
        for names in itertools.combinations(space.candidates, count):
            if target.reached(one.verdict(space.config(names))):
                return count


@pytest.mark.parametrize("seed", range(10))
def test_auto_finds_at_most_one_group_more_than_brute_force(simulated, seed):
    image = {"image": networks.random_images(np.random.default_rng(seed), (8, 3, 32, 32))}
    one = simulated(networks.small_resnet(seed), image) if seed % 5 == 4 else simulated(
        networks.chain(seed), vectors(8, seed))
    space = Space(one.network, INT8)
    impacts, start = one.impacts(), one.decibels(INT8)
    assert len(space.candidates) == 7
    for more in (3, 8):
        target = parse_target(f"sqnr>={start + more:.3f}")
        search = Search(space, impacts=impacts)
        while (config := search.ask()) is not None:
            search.tell(judge([target], one.verdict(config)))
        assert search.result.met and target.reached(one.verdict(search.result.config))
        assert len(search.result.best.raised) <= brute_force(one, space, target) + 1


@pytest.mark.parametrize("higher", [Precision.FP32, Precision.FP16])
def test_a_vision_transformer_from_int8_to_either_precision(simulated, higher):
    image = {"image": networks.random_images(np.random.default_rng(0), (8, 3, 32, 32))}
    one = simulated(networks.vit(), image, other=Precision.FP16)
    start = PrecisionConfig.uniform(Precision.INT8, Precision.FP16)
    space = Space(one.network, start, higher)
    target = parse_target(f"sqnr>={one.decibels(start) + 3:.2f}")
    search = Search(space, impacts=one.impacts(start))
    while (config := search.ask()) is not None:
        search.tell(judge([target], one.verdict(config)))
    result = search.result
    assert result.met and {choice.precision for choice in result.config.groups.values()} == {higher}
    assert 0 < len(result.best.raised) < len(space.candidates) / 2
    assert one.analysis.sessions == 1 and all("dB" in text for text in result.why.values())
