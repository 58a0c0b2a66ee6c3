"""Shares on a few samples first: trt_tui.core.measure.sample_draws, sweep and group_sweep."""

import numpy as np
import onnx
import pytest

from tests import networks
from tests.measuring import measure_shares
from tests.networks.build import Builder, floats
from trt_tui.core.calibration.calibration import calibrate
from trt_tui.core.data.samples import load_samples
from trt_tui.core.measure import sweep_plan as sweeps
from trt_tui.core.measure.analysis import Analysis
from trt_tui.core.measure.group_sweep import GroupSweep
from trt_tui.core.measure.judged_outputs import select_judged_outputs
from trt_tui.core.measure.sample_draws import (
    draw_stratified_samples,
    estimate_sum_over_all_samples,
    p_value_of_sum_at_most,
    student_t_quantile,
    student_t_tail,
)
from trt_tui.core.measure.sweep_plan import SweepPlanner
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision

INT8 = PrecisionConfig.from_precision(Precision.INT8, Precision.FP32)


def test_estimates_are_unbiased_and_intervals_hold_what_they_say():
    rng = np.random.default_rng(3)
    energies = rng.lognormal(0, 1, 40)
    added = energies * (0.3 + 0.2 * rng.standard_normal(40)) / energies.sum()
    found = {size: [] for size in (4, 8, 16, 40)}
    for seed in range(250):
        stages = draw_stratified_samples(energies, list(found), seed)
        for before, after in zip(stages, stages[1:], strict=False):
            assert after.samples[:len(before.samples)] == before.samples
        for stage in stages:
            assert len(set(stage.samples)) == len(stage.samples) and stage.part_probabilities.sum() == pytest.approx(1)
            found[len(stage.samples)].append(estimate_sum_over_all_samples(added[list(stage.samples)], stage))
    for size, pairs in found.items():
        values, halves = np.array(pairs).T
        error = np.abs(values - added.sum())
        assert values.mean() == pytest.approx(added.sum(), abs=4 * values.std() / np.sqrt(len(values)) + 1e-12)
        assert (error <= halves + 1e-12).mean() >= 0.88 and (size == 40) == (halves.max() == 0)
    assert found[16] != found[8] and np.std(found[16], 0)[0] < np.std(found[4], 0)[0]


def test_quantiles_are_those_of_student():
    for freedom, expected in ((1, 12.706), (2, 4.303), (3, 3.182), (7, 2.365), (31, 2.040), (1e6, 1.960)):
        assert student_t_quantile(freedom) == pytest.approx(expected, rel=0.005)


def test_tails_are_those_of_student():
    for freedom, value, expected in ((7, 2.365, 0.025), (7, 4.785, 0.001), (15, 2.947, 0.005), (31, 3.375, 0.001)):
        assert student_t_tail(value, freedom) == pytest.approx(expected, rel=0.04)
        assert student_t_tail(-value, freedom) == pytest.approx(1 - expected, rel=0.001)


def test_p_values_are_rarely_small_if_the_hypothesis_is_true():
    rng = np.random.default_rng(5)
    energies = rng.lognormal(0, 0.5, 40)
    values = energies * (0.3 + 0.3 * rng.standard_normal(40))
    few, every = zip(*(draw_stratified_samples(energies, [12, 40], seed) for seed in range(400)), strict=True)
    p_values = [p_value_of_sum_at_most(values[list(draw.samples)], draw, values.sum()) for draw in few]
    assert np.mean(np.array(p_values) < 0.05) <= 0.09 and 0.4 <= np.median(p_values) <= 0.6
    whole = values[list(every[0].samples)]
    assert p_value_of_sum_at_most(whole, every[0], values.sum() * 0.999) == 0.0
    assert p_value_of_sum_at_most(whole, every[0], values.sum() * 1.001) == 1.0
    assert p_value_of_sum_at_most(values[:3], draw_stratified_samples(energies, [3], 0)[0], -1e9) == 1.0


def test_sizes_are_multiples_of_the_batch_up_to_all():
    assert sweeps.choose_draw_sizes(32, 3) == [3, 8, 16, 24, 32]
    assert sweeps.choose_draw_sizes(96, 8, 8) == [8, 16, 24, 32, 48, 64, 96]
    assert sweeps.choose_draw_sizes(6, 1, 4) == [4, 6] and sweeps.choose_draw_sizes(8, 9) == [8]


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
    sweep, course = SweepPlanner([str(i) for i in range(len(added))], energies, first_size=first, **options), []
    while asked := sweep.plan_next_measurements():
        for name, units in asked.items():
            sweep.add_error_contributions(name, added[int(name)][list(units)])
            course.append(
                (sweep.measured_count, sweep.measured_count + sum(sweep.estimate_remaining_samples().values())))
    return sweep, course


@pytest.mark.parametrize(("noise", "most"), [(0.2, 0.25), (0.5, 0.35)])
@pytest.mark.parametrize("seed", range(4))
def test_what_matters_is_known_well_enough_in_few_runs(noise, most, seed):
    energies, added = population(noise, seed=seed)
    sweep, course = run(energies, added)
    exact = added.sum(1)
    found = {int(name): sweep.estimate_group_contribution(name) for name in sweep.group_names}
    assert course[-1][0] <= most * added.size and len(sweep.settled_groups) == len(added)
    assert all(abs(found[i].value - exact[i]) <= 0.02 for i in np.flatnonzero(exact >= 0.01))
    for one, other in ((i, j) for i in found for j in found if exact[i] - exact[j] > 0.02):
        assert found[one].value > found[other].value
    assert {figure.samples for figure in found.values()} - {8, 16, 24, 32, 48, 64} == set()
    whole, _ = run(energies, added, measures_all_samples=True)
    assert [whole.estimate_group_contribution(name).value for name in whole.group_names] == pytest.approx(exact)
    assert all(whole.estimate_group_contribution(name).half_width == 0 for name in whole.group_names)


def sets_of(values):
    """The groups above 1 %, and the first twenty of them."""
    relevant = [int(i) for i in np.argsort(-values, kind="stable") if values[i] >= 0.01]
    return set(relevant), set(relevant[:20])


def estimates_of(sweep):
    return np.array([sweep.estimate_group_contribution(name).value for name in sweep.group_names])


@pytest.mark.parametrize("heavy", [False, True])
@pytest.mark.parametrize("relative_noise", [0.1, 0.2])
def test_sets_of_a_sweep_that_ends_with_known_sets_are_those_of_all_samples(relative_noise, heavy):
    """Shares lie on both sides of 1 % and of the twentieth row, at every distance from them."""
    early = right = 0
    for seed in range(80):
        rng = np.random.default_rng(seed)
        groups, energies = int(rng.integers(4, 40)), rng.lognormal(0, 0.5, 64)
        shares = np.exp(rng.uniform(np.log(0.001), np.log(0.4), groups))
        noise = rng.standard_t(3, (groups, 64)) / 3 ** 0.5 if heavy else rng.standard_normal((groups, 64))
        added = shares[:, None] * (1 + relative_noise * noise) * energies / energies.sum()
        sweep, plain = run(energies, added, ends_with_known_sets=True)[0], run(energies, added)[0]
        assert sweep.measured_count <= plain.measured_count
        if sweep.measured_count < plain.measured_count:
            early += 1
            right += sets_of(estimates_of(sweep)) == sets_of(added.sum(1))
        else:
            assert (estimates_of(sweep) == estimates_of(plain)).all()
    assert early >= 8 and right >= 0.95 * early


def test_a_sweep_does_not_end_while_a_row_may_change_its_set():
    energies = np.random.default_rng(0).lognormal(0, 0.5, 64)
    noise = np.random.default_rng(1).standard_normal((30, 64))

    def measured_counts(shares):
        added = (shares[:, None] + 0.06 * shares.max() * noise[:len(shares)]) * energies / energies.sum()
        return [run(energies, added, ends_with_known_sets=ends)[0].measured_count for ends in (False, True)]

    plain, early = measured_counts(np.r_[np.full(20, 0.6), np.full(10, 0.3)])
    assert early < plain
    plain, early = measured_counts(np.r_[np.full(19, 0.6), 0.302, np.full(10, 0.3)])  # rows 20 and 21 may change places
    assert early == plain
    plain, early = measured_counts(np.r_[np.full(9, 0.6), 0.3])
    assert early < plain
    plain, early = measured_counts(np.r_[np.full(9, 0.6), 0.011])  # the last may be below 1 %
    assert early == plain


def test_a_sweep_does_not_end_with_a_share_whose_interval_is_too_wide_to_be_shown():
    energies, wide = np.ones(64), []
    for seed in range(8):
        noise = np.random.default_rng(seed).standard_normal((2, 64))
        added = (np.array([[0.6], [0.1]]) + 0.35 * noise) * energies / energies.sum()
        plain, early = (run(energies, added, ends_with_known_sets=ends)[0] for ends in (False, True))
        assert early.measured_count <= plain.measured_count
        wide += [estimate.half_width for name in ("0", "1") if (
            estimate := early.estimate_group_contribution(name)).value >= 0.01]
    assert max(wide) <= 0.2 and len(wide) >= 8


def test_the_order_of_results_does_not_change_where_a_sweep_ends():
    energies, added = population(0.3)
    ends = []
    for reverse in (False, True):
        sweep = SweepPlanner([str(i) for i in range(len(added))], energies, first_size=4, ends_with_known_sets=True)
        while asked := sweep.plan_next_measurements():
            for name in sorted(asked, reverse=reverse):
                sweep.add_error_contributions(name, added[int(name)][list(asked[name])])
        ends.append((sweep.measured_count, estimates_of(sweep).tolist()))
    assert ends[0] == ends[1]


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
    figure = sweep.estimate_group_contribution("5")
    assert figure.value == -np.inf and figure.samples == 4 and "5" in sweep.settled_groups


def opened(tmp_path, backend, model, inputs, batch, **options):
    onnx.save(model, tmp_path / "network.onnx")
    np.savez(tmp_path / "data.npz", **inputs)
    network = open_network(tmp_path / "network.onnx")
    samples = load_samples(str(tmp_path / "data.npz"), network.inputs, batch=batch)
    ranges = calibrate(network.model, network.calibrated_tensors, samples, backend).ranges
    return Analysis(network, backend, samples, select_judged_outputs(network), boundary_type=Precision.FP32), ranges


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
    config = PrecisionConfig.from_precision(Precision.FP32, Precision.FP32)
    groups = [group for group in analysis.network.groups if group.is_quantizable]
    coarse = config.with_group_precision(groups[:3], Precision.INT4).with_group_precision(groups[3:], Precision.INT8)
    found = {}
    for exact in (False, True):
        sweep = GroupSweep(analysis, coarse, ranges, measures_all_samples=exact)
        for _ in sweep.measure_groups():
            pass
        found[exact] = sweep, {name: sweep.estimate_group_effect(name) for name in sweep.measured_groups}
    (few, near), (every, exact) = found[False], found[True]
    assert few.state.by_sample and not every.state.by_sample and len(exact) == 10
    inside = 0
    for name, known in exact.items():
        value, one = known.estimate.value, near[name]
        assert known.sample_count == 64 and known.estimate.half_width == 0
        assert one.sample_count == one.estimate.samples and one.sample_count % (8 if batch == 8 else 1) == 0
        if value >= 0.01:
            assert abs(one.estimate.value - value) <= 0.02 and one.worst_db == pytest.approx(known.worst_db, abs=0.3)
        inside += abs(one.estimate.value - value) <= one.estimate.half_width + 1e-6
    assert inside >= 9 and few.planner.measured_count <= 0.5 * 640
    order = sorted(exact, key=lambda name: -exact[name].estimate.value)
    assert sorted(order[:3], key=lambda name: -near[name].estimate.value) == order[:3]
    analysis.close()


def test_samples_that_a_network_mixes_stay_in_their_feeds(tmp_path, backend):
    b = Builder(0)
    mixed = b.node("Sub", ["x", b.node("ReduceMean", ["x"], "/mean", axes=[0], keepdims=1)], "/centre")
    b.node("MatMul", [mixed, b.kernel("w", (16, 8), 16)], "/fc", output="y")
    model = b.model([floats("x", "batch", 16)], [floats("y", "batch", 8)])
    inputs = {"x": np.random.default_rng(0).standard_normal((48, 16), dtype=np.float32)}
    analysis, ranges = opened(tmp_path, backend, model, inputs, 4)
    sweep = GroupSweep(analysis, INT8, ranges)
    for _ in sweep.measure_groups():
        pass
    shares = measure_shares(analysis, INT8, ranges, measures_all_samples=True)
    assert not sweep.state.by_sample and sweep.planner.sample_count == 12
    (name,) = sweep.measured_groups
    assert shares[name].fraction == 1.0
    effect = sweep.estimate_group_effect(name)  # it ends with 8 feeds, because the only share is surely above 1 %
    assert effect.sample_count == 32 and abs(effect.estimate.value - 1.0) <= effect.estimate.half_width
    analysis.close()


def test_a_sweep_goes_on_from_what_was_measured(tmp_path, backend):
    inputs = networks.feeds(networks.chain(2), n=24)
    analysis, ranges = opened(tmp_path, backend, networks.chain(2), inputs, 8)
    whole = GroupSweep(analysis, INT8, ranges)
    steps = sum(1 for _ in whole.measure_groups())
    cut = GroupSweep(analysis, INT8, ranges)
    for _, _ in zip(range(steps // 2), cut.measure_groups(), strict=False):
        pass
    again = GroupSweep(analysis, INT8, ranges, earlier_state=cut.state)
    runs = [done for done, _ in again.measure_groups()]
    assert 0 < runs[-1] < whole.planner.measured_count
    assert [again.estimate_group_effect(name)
            for name in again.measured_groups] == [whole.estimate_group_effect(name) for name in whole.measured_groups]
    analysis.close()
