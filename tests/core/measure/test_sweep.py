"""Shares on a few samples first: trt_tui.core.measure.group_sweep and group_sweep."""

import numpy as np
import onnx
import pytest

from tests import networks
from tests.measuring import measure_shares
from tests.networks.build import Builder, floats
from trt_tui.core.calibration.calibration import calibrate
from trt_tui.core.data.batches import SampleName
from trt_tui.core.data.samples import load_samples
from trt_tui.core.measure.group_sweep import (
    FIRST_SAMPLES,
    MAX_HALF_WIDTH,
    MIN_RELEVANT_SHARE,
    SECOND_SAMPLES,
    GroupSweep,
    SweepPlanner,
    draw_stratified_samples,
    estimate_sum_over_all_samples,
    student_t_quantile,
)
from trt_tui.core.measure.judged_outputs import select_judged_outputs
from trt_tui.core.measure.simulation import Analysis
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
            assert after.samples[: len(before.samples)] == before.samples
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


@pytest.mark.parametrize(
    ("count", "step", "sizes"),
    [
        (128, 1, [8, 64]),
        (96, 3, [9, 66]),
        (96, 8, [8, 64]),
        (32, 1, [8, 32]),
        (8, 1, [8]),
        (6, 4, [6]),
        (20, 12, [12, 20]),
    ],
)
def test_stages_are_multiples_of_the_batch_up_to_all(count, step, sizes):
    planner = SweepPlanner(["a"], np.ones(count), step=step)
    assert [len(draw.samples) for draw in planner.sample_draws] == sizes


def population(noise, count=64, groups=40, seed=0):
    """The error of samples, and what groups add to it: few own most; ``noise`` is of a group's share from sample to
    sample."""
    rng = np.random.default_rng(seed)
    energies = rng.lognormal(0, 0.5, count)
    shares = np.sort(np.r_[0.3, 0.2, 0.1, np.zeros(groups - 3) + 0.002])[rng.permutation(groups)]
    of_samples = shares[:, None] * (1 + noise * rng.standard_normal((groups, count)))
    return energies, of_samples * energies / energies.sum()


def run(energies, added, **options):
    """A sweep to its end; how many samples it had run, and how many it expected in all, after each."""
    sweep, course = SweepPlanner([str(i) for i in range(len(added))], energies, **options), []
    while asked := sweep.plan_next_measurements():
        for name, units in asked.items():
            sweep.add_error_contributions(name, added[int(name)][list(units)])
            course.append(
                (sweep.measured_count, sweep.measured_count + sum(sweep.estimate_remaining_samples().values()))
            )
    return sweep, course


@pytest.mark.parametrize("noise", [0.2, 0.5])
@pytest.mark.parametrize("count", [64, 200])
@pytest.mark.parametrize("seed", range(4))
def test_what_matters_is_known_well_enough_in_few_runs(noise, count, seed):
    energies, added = population(noise, count, seed=seed)
    sweep, course = run(energies, added)
    exact = added.sum(1)
    found = {int(name): sweep.estimate_group_contribution(name) for name in sweep.group_names}
    counts = {int(name): len(values) for name, values in sweep.contributions.items()}
    assert course[-1][0] <= 0.3 * added.size and len(sweep.settled_groups) == len(added)
    assert course[-1][0] == course[-1][1]
    for i in np.flatnonzero(exact >= 0.01):
        value, half_width = found[i]
        assert abs(value - exact[i]) <= max(0.02, 1.3 * half_width)
        assert counts[i] == SECOND_SAMPLES or half_width <= MAX_HALF_WIDTH
    for one, other in ((i, j) for i in found for j in found if exact[i] - exact[j] > 0.04):
        assert found[one][0] > found[other][0]
    for i, (value, half_width) in found.items():
        assert (
            counts[i] == SECOND_SAMPLES
            or counts[i] == FIRST_SAMPLES
            and (half_width <= MAX_HALF_WIDTH or value + half_width < MIN_RELEVANT_SHARE)
        )
    whole, _ = run(energies, added, measures_all_samples=True)
    assert [whole.estimate_group_contribution(name)[0] for name in whole.group_names] == pytest.approx(exact)
    assert all(whole.estimate_group_contribution(name)[1] == 0 for name in whole.group_names)


def test_the_order_of_results_does_not_change_where_a_sweep_ends():
    energies, added = population(0.3)
    ends = []
    for reverse in (False, True):
        sweep = SweepPlanner([str(i) for i in range(len(added))], energies)
        while asked := sweep.plan_next_measurements():
            for name in sorted(asked, reverse=reverse):
                sweep.add_error_contributions(name, added[int(name)][list(asked[name])])
        ends.append((sweep.measured_count, [sweep.estimate_group_contribution(name)[0] for name in sweep.group_names]))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("noise", [0.2, 3.0, 12.0])
def test_the_expected_number_of_samples_is_nearly_right_after_a_third_of_them(noise):
    for seed in range(7):
        _, course = run(*population(noise, seed=seed))
        total = course[-1][0]
        done, expected = next(one for one in course if one[0] >= total / 3)
        assert 0.5 <= (expected - done) / (total - done) <= 2


def test_what_is_not_finite_is_settled_at_once():
    energies, added = population(0.1)
    added[5, :] = -np.inf
    sweep, _ = run(energies, added)
    value, _ = sweep.estimate_group_contribution("5")
    assert value == -np.inf and len(sweep.contributions["5"]) == FIRST_SAMPLES and "5" in sweep.settled_groups


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
        found[exact] = sweep, {name: sweep.estimate_error_share(name) for name in sweep.measured_groups}
    (few, near), (every, exact) = found[False], found[True]
    assert few.state.by_sample and not every.state.by_sample and len(exact) == 10
    inside = 0
    for name, known in exact.items():
        value, one = known.fraction, near[name]
        assert known.samples == 64 and known.half_width == 0
        assert one.samples % (8 if batch == 8 else 1) == 0
        if value >= 0.01:
            assert abs(one.fraction - value) <= 0.02 and one.sqnr_if_raised_db == pytest.approx(
                known.sqnr_if_raised_db, abs=0.3
            )
        inside += abs(one.fraction - value) <= one.half_width + 1e-6
    assert inside >= 9 and few.planner.measured_count <= 0.5 * 640
    order = sorted(exact, key=lambda name: -exact[name].fraction)
    assert sorted(order[:3], key=lambda name: -near[name].fraction) == order[:3]
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
    share = sweep.estimate_error_share(name)
    assert share.samples == 48 and share.fraction == pytest.approx(1.0)
    analysis.close()


def test_an_output_with_time_before_the_batch_is_judged_by_feeds(tmp_path, backend):
    """As of a recogniser of texts that reads one image at a time."""
    b = Builder(0)
    features = b.node("MatMul", ["x", b.kernel("w", (8, 5), 8)], "/fc")
    b.node("Transpose", [features], "/time", output="y", perm=[1, 0, 2])
    model = b.model([floats("x", 1, 6, 8)], [floats("y", 6, 1, 5)])
    inputs = {"x": np.random.default_rng(0).standard_normal((24, 6, 8), dtype=np.float32)}
    analysis, ranges = opened(tmp_path, backend, model, inputs, 1)
    sweep = GroupSweep(analysis, INT8, ranges)
    for _ in sweep.measure_groups():
        pass
    share = sweep.estimate_error_share(sweep.measured_groups[0])
    assert not sweep.state.by_sample and share.samples == 24 and share.fraction == pytest.approx(1.0)
    *_, last = analysis.measure_accuracy(INT8, ranges)
    exact, lowered = (
        [one["y"] for one in runs]
        for runs in (
            analysis.execute_config(PrecisionConfig.from_precision(Precision.FP32), ranges),
            analysis.execute_config(INT8, ranges),
        )
    )
    noise = [
        np.square(got - expected).sum() / np.square(expected).sum()
        for expected, got in zip(exact, lowered, strict=True)
    ]
    assert last.value.outputs["y"].worst_sample == SampleName(int(np.argmax(noise)))
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
    assert [again.estimate_error_share(name) for name in again.measured_groups] == [
        whole.estimate_error_share(name) for name in whole.measured_groups
    ]
    analysis.close()
