"""Shares on a few samples first: trt_tui.core.measure.sampling, sweep and group_sweep."""

import numpy as np
import onnx
import pytest

from tests import networks
from tests.measuring import measure_shares
from tests.networks.build import Builder, floats
from trt_tui.core.calibration.calibrate import calibrate
from trt_tui.core.data.samples import load_samples
from trt_tui.core.measure import sweep as sweeps
from trt_tui.core.measure.analysis import Analysis
from trt_tui.core.measure.group_sweep import GroupSweep
from trt_tui.core.measure.judge import judged_outputs
from trt_tui.core.measure.sampling import drawn, estimate, t_quantile
from trt_tui.core.measure.sweep import Sweep
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision

INT8 = PrecisionConfig.uniform(Precision.INT8, Precision.FP32)


def test_estimates_are_unbiased_and_intervals_hold_what_they_say():
    rng = np.random.default_rng(3)
    energies = rng.lognormal(0, 1, 40)
    added = energies * (0.3 + 0.2 * rng.standard_normal(40)) / energies.sum()
    found = {size: [] for size in (4, 8, 16, 40)}
    for seed in range(250):
        stages = drawn(energies, list(found), seed)
        for before, after in zip(stages, stages[1:], strict=False):
            assert after.units[:len(before.units)] == before.units
        for stage in stages:
            assert len(set(stage.units)) == len(stage.units) and stage.parts.sum() == pytest.approx(1)
            found[len(stage.units)].append(estimate(added[list(stage.units)], stage))
    for size, pairs in found.items():
        values, halves = np.array(pairs).T
        error = np.abs(values - added.sum())
        assert values.mean() == pytest.approx(added.sum(), abs=4 * values.std() / np.sqrt(len(values)) + 1e-12)
        assert (error <= halves + 1e-12).mean() >= 0.88 and (size == 40) == (halves.max() == 0)
    assert found[16] != found[8] and np.std(found[16], 0)[0] < np.std(found[4], 0)[0]


def test_quantiles_are_those_of_student():
    for freedom, expected in ((1, 12.706), (2, 4.303), (3, 3.182), (7, 2.365), (31, 2.040), (1e6, 1.960)):
        assert t_quantile(freedom) == pytest.approx(expected, rel=0.005)


def test_sizes_are_multiples_of_the_batch_up_to_all():
    assert sweeps.sizes(32, 3) == [3, 8, 16, 24, 32]
    assert sweeps.sizes(96, 8, 8) == [8, 16, 24, 32, 48, 64, 96]
    assert sweeps.sizes(6, 1, 4) == [4, 6] and sweeps.sizes(8, 9) == [8]


def population(noise, count=64, groups=40, seed=0):
    """The error of samples, and what groups add to it: few own most; ``noise`` is of a group's share from sample to
    sample."""
    rng = np.random.default_rng(seed)
    energies = rng.lognormal(0, 0.5, count)
    shares = np.sort(np.r_[0.3, 0.2, 0.1, np.zeros(groups - 3) + 0.002])[rng.permutation(groups)]
    of_samples = shares[:, None] * (1 + noise * rng.standard_normal((groups, count)))
    return energies, of_samples * energies / energies.sum()


def run(energies, added, first=4, **options):
    """A sweep to its end; how many samples it had run, and how many it expected in all, after each."""
    sweep, course = Sweep([str(i) for i in range(len(added))], energies, first=first, **options), []
    while asked := sweep.ask():
        for name, units in asked.items():
            sweep.tell(name, added[int(name)][list(units)])
            course.append((sweep.done, sweep.done + sum(sweep.left().values())))
    return sweep, course


@pytest.mark.parametrize(("noise", "most"), [(0.2, 0.25), (0.5, 0.35)])
@pytest.mark.parametrize("seed", range(4))
def test_what_matters_is_known_well_enough_in_few_runs(noise, most, seed):
    energies, added = population(noise, seed=seed)
    sweep, course = run(energies, added)
    exact = added.sum(1)
    found = {int(name): sweep.figure(name) for name in sweep.names}
    assert course[-1][0] <= most * added.size and len(sweep.settled) == len(added)
    assert all(abs(found[i].value - exact[i]) <= 0.02 for i in np.flatnonzero(exact >= 0.01))
    for one, other in ((i, j) for i in found for j in found if exact[i] - exact[j] > 0.02):
        assert found[one].value > found[other].value
    assert {figure.units for figure in found.values()} - {8, 16, 24, 32, 48, 64} == set()
    whole, _ = run(energies, added, exact=True)
    assert [whole.figure(name).value for name in whole.names] == pytest.approx(exact)
    assert all(whole.figure(name).half == 0 for name in whole.names)


@pytest.mark.parametrize("noise", [0.2, 3.0, 12.0])
def test_time_left_is_true_after_a_tenth_of_the_work(noise):
    """Few groups decide how long it takes; so it is true in most cases, and not far off in any."""
    ratios = []
    for seed in range(7):
        _, course = run(*population(noise, seed=seed))  # a run of a sample takes a second
        total = course[-1][0]
        done, expected = next(one for one in course if one[0] >= total / 10)
        ratios.append((expected - done) / (total - done))
    assert 1 / 1.5 <= np.median(ratios) <= 1.5 and max(ratios) <= 2.2 and min(ratios) >= 0.5


def test_what_is_not_finite_is_settled_at_once():
    energies, added = population(0.1)
    added[5, :] = -np.inf
    sweep, _ = run(energies, added)
    figure = sweep.figure("5")
    assert figure.value == -np.inf and figure.settled and figure.units == 4


def opened(tmp_path, backend, model, inputs, batch, **options):
    onnx.save(model, tmp_path / "network.onnx")
    np.savez(tmp_path / "data.npz", **inputs)
    network = open_network(tmp_path / "network.onnx")
    samples = load_samples(str(tmp_path / "data.npz"), network.inputs, batch=batch)
    ranges = calibrate(network.model, network.activations, samples, backend).ranges
    return Analysis(network, backend, samples, judged_outputs(network), other=Precision.FP32), ranges


def chain(batch):
    """Ten MatMuls whose outputs are joined, each with an error of its own; the batch is fixed if it is a number."""
    b = Builder(1)
    parts = [b.node("MatMul", ["x", b.kernel(f"w{number}", (64, 64), 64)], f"/fc{number}") for number in range(10)]
    hidden = [b.node("Tanh", [part], f"/tanh{number}") for number, part in enumerate(parts)]
    total = hidden[0]
    for number, part in enumerate(hidden[1:]):
        total = b.node("Add", [total, part], f"/add{number}", output="y" if number == 8 else None)
    return b.model([floats("x", batch, 64)], [floats("y", batch, 64)])


@pytest.mark.parametrize("batch", ["batch", 8])
def test_shares_on_few_samples_are_near_those_on_all(tmp_path, backend, batch):
    inputs = {"x": np.random.default_rng(0).standard_normal((64, 64), dtype=np.float32)}
    analysis, ranges = opened(tmp_path, backend, chain(batch), inputs, 8)
    config = PrecisionConfig.uniform(Precision.FP32, Precision.FP32)
    groups = [group for group in analysis.network.groups if group.quantizable]
    coarse = config.with_groups(groups[:3], Precision.INT4).with_groups(groups[3:], Precision.INT8)
    found = {}
    for exact in (False, True):
        sweep = GroupSweep(analysis, coarse, ranges, exact=exact)
        for _ in sweep.steps():
            pass
        found[exact] = sweep, {name: sweep.of(name) for name in sweep.active}
    (few, near), (every, exact) = found[False], found[True]
    assert few.swept.apart and not every.swept.apart and len(exact) == 10
    inside = 0
    for name, known in exact.items():
        value, one = known.figure.value, near[name]
        assert known.samples == 64 and known.figure.half == 0
        assert one.samples == one.figure.units and one.samples % (8 if batch == 8 else 1) == 0
        if value >= 0.01:
            assert abs(one.figure.value - value) <= 0.02 and one.worst_db == pytest.approx(known.worst_db, abs=0.3)
        inside += abs(one.figure.value - value) <= one.figure.half + 1e-6
    assert inside >= 9 and few.sweep.done <= 0.5 * 640
    order = sorted(exact, key=lambda name: -exact[name].figure.value)
    assert sorted(order[:3], key=lambda name: -near[name].figure.value) == order[:3]
    analysis.close()


def test_samples_that_a_network_mixes_stay_in_their_feeds(tmp_path, backend):
    b = Builder(0)
    mixed = b.node("Sub", ["x", b.node("ReduceMean", ["x"], "/mean", axes=[0], keepdims=1)], "/centre")
    b.node("MatMul", [mixed, b.kernel("w", (16, 8), 16)], "/fc", output="y")
    model = b.model([floats("x", "batch", 16)], [floats("y", "batch", 8)])
    inputs = {"x": np.random.default_rng(0).standard_normal((48, 16), dtype=np.float32)}
    analysis, ranges = opened(tmp_path, backend, model, inputs, 4)
    sweep = GroupSweep(analysis, INT8, ranges)
    for _ in sweep.steps():
        pass
    shares = measure_shares(analysis, INT8, ranges, exact=True)
    assert not sweep.swept.apart and sweep.sweep.count == 12
    (name,) = sweep.active
    assert sweep.of(name).figure.value == pytest.approx(shares[name].owns) == 1.0
    analysis.close()


def test_a_sweep_goes_on_from_what_was_measured(tmp_path, backend):
    inputs = networks.feeds(networks.chain(2), n=24)
    analysis, ranges = opened(tmp_path, backend, networks.chain(2), inputs, 8)
    whole = GroupSweep(analysis, INT8, ranges)
    steps = sum(1 for _ in whole.steps())
    cut = GroupSweep(analysis, INT8, ranges)
    for _, _ in zip(range(steps // 2), cut.steps(), strict=False):
        pass
    again = GroupSweep(analysis, INT8, ranges, known=cut.swept)
    runs = [done for done, _ in again.steps()]
    assert 0 < runs[-1] < whole.sweep.done
    assert [again.of(name) for name in again.active] == [whole.of(name) for name in whole.active]
    analysis.close()
