"""The samples that judge runs, and those that a search does not use, so that its result can be checked on them."""

import json
from dataclasses import dataclass, replace

import numpy as np
import onnx
import pytest

from tests import networks
from tests.driven import DrivenWorker, of, save_mlp, values
from trt_tui.core.data.samples import choose_held_out_feeds, find_feeds_with_shared_samples, load_samples
from trt_tui.core.measure.group_sweep import SAMPLE_ERRORS, SINGLE_SAMPLES
from trt_tui.core.measure.target import HeldOutResult, HeldOutValue, Outcome, TargetOutcome, TargetResult
from trt_tui.core.moves.config import PrecisionConfig, RangeMove
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.options import Options


@dataclass
class Feeds:
    """Samples in feeds of given sizes."""

    counts: tuple[int, ...]

    def __len__(self):
        return len(self.counts)

    def count_samples_of_feed(self, index):
        return self.counts[index]


@pytest.mark.parametrize(
    ("counts", "held_out"),
    [
        ((4,) * 11, 0),
        ((4,) * 12, 16),
        ((1,) * 64, 16),
        ((8,) * 12, 24),
        ((1,) * 400, 100),
        ((64,), 0),
        ((32, 32), 32),
        ((48, 8), 0),
    ],
)
def test_about_a_quarter_is_held_out_in_whole_batches(counts, held_out):
    choice = choose_held_out_feeds(Feeds(counts))
    assert sum(counts[index] for index in choice.feed_indices) == held_out
    assert bool(choice.refusal_reason) is (held_out == 0)
    assert choice == choose_held_out_feeds(Feeds(counts)), "the seed is fixed"


def test_feeds_that_calibrate_are_never_held_out():
    choice = choose_held_out_feeds(Feeds((1,) * 80), range(60))
    assert set(choice.feed_indices) == set(range(60, 80))
    assert choose_held_out_feeds(Feeds((1,) * 80), range(66)).refusal_reason.startswith("too few")


def test_shared_samples_are_found_in_other_batches_and_files(tmp_path):
    options = save_mlp(tmp_path, samples=16)
    inputs = open_network(options.model).inputs
    values = np.load(options.data)["x"]
    np.savez(tmp_path / "some.npz", x=values[[13, 1, 2]])
    samples = load_samples(options.data, inputs, batch=4)
    assert find_feeds_with_shared_samples(samples, load_samples(str(tmp_path / "some.npz"), inputs, batch=1)) == {0, 3}
    np.savez(tmp_path / "none.npz", x=values + 1)
    assert not find_feeds_with_shared_samples(samples, load_samples(str(tmp_path / "none.npz"), inputs))


@pytest.mark.parametrize(
    ("before", "passes", "after"),
    [
        (Outcome.PASS, True, Outcome.PASS),
        (Outcome.PASS, False, Outcome.UNCERTAIN_FAIL),
        (Outcome.UNCERTAIN_PASS, False, Outcome.UNCERTAIN_FAIL),
        (Outcome.FAIL, False, Outcome.FAIL),
    ],
)
def test_a_miss_on_held_out_samples_is_no_pass(before, passes, after):
    value = HeldOutValue("sqnr>=20", "20.4 dB", "19.9 to 21.0 dB", "19.1 dB", "18.2 to 20.0 dB")
    held_out = HeldOutResult(TargetResult(passes, -0.9 if not passes else 0.4), 16, 48, (value,))
    outcome = TargetOutcome(before, ("a reason",)).with_missed_check(held_out.miss_text)
    assert outcome.outcome is after
    assert ("16 held-out samples" in outcome.text and "~19.1 dB (18.2 to 20.0 dB)" in outcome.text) is (
        before.passes and not passes
    )


# -- samples that calibrate -------------------------------------------------------------------------------------------

FP16, INT8 = (PrecisionConfig.from_precision(precision) for precision in (Precision.FP16, Precision.INT8))
RUNS = {"fp16": FP16, "int8": INT8}


def save_product(folder, rows=64, seed=0, **changed):
    """Writes one product of 16 ones, and rows for it in batches of 8 of which some are multiplied by a factor.

    Batches 0, 4, ... calibrate.
    """
    builder = networks.Builder(seed)
    product = builder.node("MatMul", ["x", builder.weight("w", np.ones((16, 4), np.float32))], "/fc", output="y")
    model = builder.model([networks.floats("x", "N", 16)], [networks.floats(product, "N", 4)])
    onnx.save(model, folder / "product.onnx")
    x = np.random.default_rng(seed).uniform(0, 1, size=(rows, 16)).astype(np.float32)
    for row, factor in changed.items():
        x[int(row.removeprefix("row"))] *= factor
    np.savez(folder / "x.npz", x=x)
    return Options(str(folder / "product.onnx"), str(folder / "x.npz"), batch=8, whatif_samples=0)


def opened(folder, options):
    worker = DrivenWorker(folder)
    worker.answer(rq.OpenNetwork(options))
    return worker


def accuracies(worker, request=None):
    events = worker.answer(request or rq.CompareRuns(RUNS, with_group_errors=False))
    assert not of(events, ev.JobFailed), events
    return {event.run: event.accuracy for event in of(events, ev.AccuracyMeasured) if event.final}


def test_a_run_is_judged_on_all_samples_that_did_not_calibrate_it(tmp_path):
    """FP16 rounds row 3 worst, which calibrates INT8. Runs are compared on the samples that judge both."""
    options = save_product(tmp_path)
    x = np.load(options.data)["x"]
    x[3, ::2], x[3, 1::2] = 3e4, -2.999e4
    np.savez(options.data, x=x)
    measured = accuracies(opened(tmp_path, options))
    fp16, int8 = measured["fp16"], measured["int8"]
    assert (fp16.samples, fp16.total, int8.samples, int8.total) == (64, 64, 48, 48)
    assert fp16.outputs["y"].worst_sample.index == 3 and int8.outputs["y"].worst_sample.index not in (
        *range(8),
        *range(32, 40),
    )
    others, name = fp16.accuracy_on_compared_samples, fp16.worst_output[0]
    assert others.outputs[name].errors.max_abs < fp16.outputs[name].errors.max_abs / 100
    assert int8.accuracy_on_compared_samples is int8


@pytest.mark.parametrize("row", [3, 35, 12])
def test_nan_and_inf_count_on_every_sample(row, tmp_path):
    """Rows 3 and 35 calibrate, so that INT8 does not clip them, and overflows where its result is written in FP16."""
    measured = accuracies(opened(tmp_path, save_product(tmp_path, **{f"row{row}": 2e4})))
    for run in ("fp16", "int8") if row != 12 else ("fp16",):
        accuracy = measured[run]
        assert accuracy.nonfinite_count and accuracy.outputs["y"].worst_sample.index == row, run
        assert any(caveat.kind == "overflow" for caveat in accuracy.caveats), run


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ("cache", 64),
        ("config file", 48),
        ("config file of other samples", 64),
        ("other ranges", 64),
        ("calib_data", 64),
        ("moves", 64),
        ("measured", 48),
        ("measured moves", 48),
    ],
)
def test_ranges_of_other_samples_leave_no_sample_out(given, count, tmp_path):
    options = save_product(tmp_path)
    if given == "calib_data":
        np.savez(tmp_path / "calibration.npz", x=np.load(options.data)["x"][:20] * 0.9)
        options = replace(options, calib_data=str(tmp_path / "calibration.npz"))
    worker, config_file = opened(tmp_path, options), tmp_path / "precision.json"
    move = RangeMove(1.0, "user" if given == "moves" else "entropy")
    config = INT8.with_range("x", move) if "moves" in given or "config file" in given else INT8
    if given == "cache":
        cache = tmp_path / "int8.cache"
        worker.answer(rq.ExportConfig(str(cache), INT8, "calibration-cache"))
        worker = opened(tmp_path, replace(options, calib_cache=str(cache)))
    elif "config file" in given:
        worker.answer(rq.ExportConfig(str(config_file), config, "json"))
        worker = DrivenWorker(tmp_path)
        loaded = of(worker.answer(rq.OpenNetwork(options, config=str(config_file))), ev.ConfigRead)[-1].loaded
        calibration = replace(loaded.calibration, **{"data_sha256": ""} if given.endswith("other samples") else {})
        worker.answer(rq.UseRanges(calibration, True, config_file.name))
        config = loaded.config
    elif given in ("other ranges", "measured"):
        accuracies(worker)
        measured = worker.workspace.calibration
        worker = opened(tmp_path, options)
        worker.answer(rq.UseRanges(measured if given == "measured" else replace(measured, data_sha256="")))
    measured = accuracies(worker, rq.CompareRuns({"fp16": FP16, "int8": config}, with_group_errors=False))
    assert (measured["fp16"].samples, measured["int8"].samples) == (64, count)


def test_a_search_of_fp16_uses_all_samples_and_one_of_int8_checks_its_result_on_those_that_calibrate(tmp_path):
    options = save_product(tmp_path)
    x = np.load(options.data)["x"]
    x[3, ::2], x[3, 1::2] = 3e4, -2.999e4
    np.savez(options.data, x=x)
    worker = opened(tmp_path, options)
    goal = rq.FindMixedPrecisionConfig(FP16, ("max_abs<=0.1",), try_ranges=False, try_zero_cost=False, hold_out=False)
    (start,) = of(worker.answer(goal), ev.SearchEnded)
    assert start.result.best_evaluation.target_result.accuracy.samples == 64 and start.result.config != FP16
    goal = replace(goal, config=INT8, higher_precision=Precision.FP16, tolerances=("max_abs<=0.02",))
    (ended,) = of(worker.answer(goal), ev.SearchEnded)
    assert ended.result.best_evaluation.passes and ended.result.best_evaluation.raised_groups, (
        "FP16 is near where nothing calibrates"
    )
    assert ended.held_out.sample_count == 16 and not ended.held_out.target_result.passes


def test_runs_do_not_speak_of_ranges_that_they_do_not_need(run, tmp_path):
    """With one batch, the same samples calibrate INT8 and judge it."""
    options = save_product(tmp_path, rows=8)
    command = ("compare", options.model, "--data", options.data, "--layers", "none", "--no-preview")
    _, out, err = run(*command, "--batch", 8, "--runs", "fp16", "--json", tmp_path / "fp16.json")
    assert "calib" not in (out + err).lower() and json.loads((tmp_path / "fp16.json").read_text())["samples"] == 8
    _, out, err = run(*command, "--batch", 8, "--runs", "int8")
    assert "calibrates and is judged" in err
    for precision, warns in ((Precision.FP16, False), (Precision.INT8, True)):
        config = tmp_path / f"{precision}.json"
        assert (
            run(
                *f"export {options.model} --precision {precision} --format json -o {config}".split(),
                *(("--data", options.data) if warns else ()),
            )[0]
            == 0
        )
        _, out, err = run("preflight", options.model, "--data", options.data, "--config", config)
        assert ("few-samples: " in out + err) is warns, out + err


def test_the_worst_sample_is_named_by_its_file(run, tmp_path):
    options = save_product(tmp_path, row12=2e4)
    x = np.load(options.data)["x"]
    for folder, rows in (("files", 9), ("same batches", 8)):
        (tmp_path / folder).mkdir()
        np.savez(tmp_path / folder / "a.npz", x=x[:rows])
        np.savez(tmp_path / folder / "b.npz", x=x[rows:])
    for data, name, record_name in (
        (options.data, "#12", {"index": 12}),
        (tmp_path / "files", "b.npz #3", {"index": 3, "file": "b.npz"}),
        (tmp_path / "same batches", "b.npz #4", {"index": 4, "file": "b.npz"}),
    ):
        code, out, _ = run(
            *("compare", options.model, "--data", data, *"--batch 4 --layers none --no-preview".split()),
            *f"--target sqnr>=20 --json {tmp_path}/out.json --markdown {tmp_path}/out.md".split(),
        )
        runs = json.loads((tmp_path / "out.json").read_text())["runs"]
        assert code == 1 and f"NaN {name} " in out, out
        assert {
            key: value for key, value in runs["fp16"]["outputs"]["y"]["worst_sample"].items() if key != "sqnr_db"
        } == record_name
        assert f"NaN {name}" in (tmp_path / "out.md").read_text()
    options = replace(options, data=str(tmp_path / "files"), batch=4)
    worker = opened(tmp_path, options)
    errors = values(worker.answer(rq.MeasureSampleErrors(FP16)), SAMPLE_ERRORS)[-1]
    worst = errors.names[errors.worst_position]
    assert str(worst) == "b.npz #3" and len(errors.names) == 64 and str(errors.names[8]) == "a.npz #8"
    alone = values(worker.answer(rq.MeasureSingleSample(FP16, {"fp16": FP16}, worst)), SINGLE_SAMPLES)[-1]
    assert alone.name == worst and np.isnan(alone.values_by_run["fp16"])


@pytest.mark.parametrize(("rows", "sample"), [(64, "40"), (64, "worst"), (16, "9")])
def test_a_search_on_one_sample_looks_for_nan_where_it_calibrates_too(rows, sample, tmp_path):
    """Row 3 calibrates, so that INT8 does not clip it, and overflows where its result is written in FP16. The searched
    sample itself is large enough to be accurate."""
    options = save_product(tmp_path, rows=rows, row3=2e4, **({} if sample == "worst" else {f"row{sample}": 1e3}))
    worker = opened(tmp_path, options)
    goal = rq.FindMixedPrecisionConfig(INT8, ("cosine>=0.1",), try_ranges=False, try_zero_cost=False, sample=sample)
    (ended,) = of(worker.answer(goal), ev.SearchEnded)
    held_out = ended.held_out
    assert (
        not ended.result.is_met
        or ended.result.best_evaluation.raised_groups
        or (held_out is not None and not held_out.target_result.passes)
    )
