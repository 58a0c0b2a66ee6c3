"""Outputs that hardly vary between samples, and targets that a meaningless run meets."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.texts import lacking, numbers
from trt_tui import demo
from trt_tui.core.data.batches import SampleName
from trt_tui.core.data.samples import load_samples
from trt_tui.core.measure.error_metrics import (
    AccuracyIntervals,
    ConfidenceInterval,
    ErrorMetrics,
    pair_each_sample_with_another,
)
from trt_tui.core.measure.judged_outputs import INTEGER_KIND, JudgedOutput
from trt_tui.core.measure.results import SIMULATION_GAP, Accuracy, OutputErrors
from trt_tui.core.measure.simulation import measure_sample_dependence
from trt_tui.core.measure.target import judge_accuracy, parse_target
from trt_tui.core.measure.user_metric import SHUFFLED, MetricScorer
from trt_tui.core.runner import TensorInfo

RNG = np.random.default_rng(5)


def dependence(folder, outputs, batch, judged=None, metric=None):
    """Of outputs by name, first axis samples, in feeds of a batch; each feed yields its part of them."""
    count = len(next(iter(outputs.values())))
    label = np.arange(count)
    np.savez(folder / "data.npz", x=np.zeros((count, 1), np.float32), label=label)
    samples = load_samples(str(folder / "data.npz"), [TensorInfo("x", np.dtype(np.float32), ("n", 1))], batch=batch)
    judged = judged or [JudgedOutput(name, name) for name in outputs]

    def reference(feed):
        part = slice(feed * batch, (feed + 1) * batch)
        return {name: array[part] if len(array) == count else array for name, array in outputs.items()}

    scoring = MetricScorer(metric, samples, list(outputs), reference) if metric else None
    classifier = judged[0] if judged[0].kind != INTEGER_KIND and next(iter(outputs.values())).ndim == 2 else None
    return measure_sample_dependence(samples, range(len(samples)), judged, reference, classifier, scoring)


def caveats(found, *names, total=16):
    """What a run with 30 dB at each output, and 5 dB in its worst sample, has to say of a dependence."""
    errors = OutputErrors(ErrorMetrics(30.0), worst_sample=SampleName(3), worst_sqnr_db=5.0)
    return list(found.make_output_caveats(Accuracy(dict.fromkeys(names, errors), total=total)))


@pytest.mark.parametrize("batch", [1, 4, 12, 5])
@pytest.mark.parametrize("level", [0, -20, -120, -220])
def test_the_variation_is_that_of_the_formula_at_any_level(tmp_path, batch, level):
    constant, varying = RNG.normal(size=(1, 3, 7)), RNG.normal(size=(12, 3, 7))
    array = constant + 10 ** (level / 20) * varying
    found = dependence(tmp_path, {"y": array}, batch).variations_db["y"]
    deviations = array - array.mean(0)
    expected = 10 * math.log10((deviations**2).sum() / (array**2).sum() * 12 / 11)
    assert found == pytest.approx(expected, abs=0.01 if level > -200 else 1)


def test_equal_samples_do_not_vary_and_a_single_one_tells_nothing(tmp_path):
    assert dependence(tmp_path, {"y": np.ones((8, 5), np.float32)}, 2).variations_db == {"y": -math.inf}
    assert dependence(tmp_path, {"y": np.zeros((8, 5), np.float32)}, 2).variations_db == {"y": -math.inf}
    alone = dependence(tmp_path, {"y": np.ones((1, 5), np.float32)}, 1)
    assert (
        alone.variations_db == {}
        and alone.meaningless_accuracies[SHUFFLED].outputs == {}
        and caveats(alone, "y", total=1) == []
    )


def test_only_what_fp16_could_not_tell_apart_is_steady(tmp_path):
    """Boxes in pixels on a grid vary by -40 dB here, and are no dead head."""
    grid = np.linspace(0, 640, 200)[None]
    outputs = {
        "boxes": grid + 4 * RNG.normal(size=(16, 200)),
        "dead": grid + 1e-2 * RNG.normal(size=(16, 200)),
        "scores": RNG.normal(size=(16, 4)),
    }
    found = dependence(tmp_path, outputs, 4)
    assert -45 < found.variations_db["boxes"] < -35 and abs(found.variations_db["scores"]) < 2
    little, caveat = caveats(found, *outputs)
    assert caveat.kind == "steady output" and caveat.text.startswith("dead hardly varies") and not caveat.fails_run
    assert caveat.gap_db is None and caveats(found, "boxes", "scores") == [little]
    assert little.text.startswith("boxes varies little") and little.gap_db == -found.variations_db["boxes"]


def test_what_varies_in_an_output_makes_a_pass_uncertain_if_it_misses_the_target(tmp_path):
    scores = 3.4 + 0.2 * RNG.normal(size=(32, 1))
    found = dependence(tmp_path, {"score": scores, "other": RNG.normal(size=(32, 1))}, 4)
    level_db = found.variations_db["score"]
    assert -30 < level_db < -20
    errors = {name: OutputErrors(ErrorMetrics(sqnr_db, 0.9999)) for name, sqnr_db in (("score", 40.0), ("other", 35.0))}
    interval = AccuracyIntervals(worst_output={"sqnr": ConfidenceInterval(34.5, 36)})
    run = Accuracy(errors, {"f1": 0.9}, 0.9, 32, 32, intervals=interval)
    run = replace(run, caveats=tuple(found.make_output_caveats(run)))
    (caveat,) = run.caveats
    assert caveat.text.startswith("score varies little") and f"{40 + level_db:.1f} dB" in caveat.text
    for target, is_doubted in ((40 + level_db + 0.1, True), (40 + level_db - 0.1, False)):
        outcome = judge_accuracy([parse_target(f"sqnr>={target:.2f}")], run)
        assert outcome.passes and (caveat.text in outcome.reasons) is is_doubted, target
    assert caveat.text not in judge_accuracy([parse_target("agreement>=0.5")], run).reasons


def test_a_few_samples_that_decide_an_sqnr_make_a_pass_uncertain_if_another_sample_misses_the_target(tmp_path):
    loud = np.where(np.arange(16) % 5 == 0, 100.0, 1.0)[:, None]
    outputs = {"few": loud * RNG.normal(size=(16, 50)), "all": RNG.normal(size=(16, 50)), "class": np.arange(16)}
    judged = [JudgedOutput("class", "class", kind=INTEGER_KIND), JudgedOutput("all", "all"), JudgedOutput("few", "few")]
    for batch in (1, 4, 16):
        (caveat,) = caveats(dependence(tmp_path, outputs, batch, judged), "all", "few")
        assert numbers(caveat.text)[:3] == [4, 16, 99] and not lacking(caveat.text, "of few", "#3 alone has 5.0")
    errors = OutputErrors(ErrorMetrics(30.0, 0.9995))
    spread = AccuracyIntervals(worst_output={"sqnr": ConfidenceInterval(29, 31), "cosine": ConfidenceInterval(0.99, 1)})
    run = Accuracy({"few": errors}, {"f1": 0.9}, 0.9, 16, 16, intervals=spread, caveats=(caveat,))
    for text, is_doubted in (
        ("sqnr>=20", True),
        ("sqnr>=4.9", False),
        ("cosine>=0.99", True),
        ("agreement>=0.5", False),
    ):
        outcome = judge_accuracy([parse_target(text)], run)
        assert outcome.passes and (caveat.text in outcome.reasons) is is_doubted, text


def test_large_outputs_are_looked_at_in_part(tmp_path):
    array = 1 + 0.1 * RNG.normal(size=(4, 700, 700)).astype(np.float32)
    assert dependence(tmp_path, {"y": array}, 2).variations_db["y"] == pytest.approx(-20, abs=0.2)


@pytest.mark.parametrize("batch", [1, 3, 12])
def test_the_shuffled_run_gives_each_sample_what_another_one_has(tmp_path, batch):
    class Right:
        name = "right"

        def __call__(self, outputs, labels):
            return {"right": float((outputs["y"][:, 0] == labels["label"]).mean())}

    array = np.concatenate([np.arange(12)[:, None], np.full((12, 4), 20.0)], 1)
    integers = np.arange(12)
    judged = [JudgedOutput("y", "y"), JudgedOutput("class", "class", kind=INTEGER_KIND)]
    shuffled = dependence(tmp_path, {"y": array, "class": integers}, batch, judged, Right()).meaningless_accuracies[
        SHUFFLED
    ]
    assert shuffled.metric == {"right": 0.0} and shuffled.outputs["class"].errors.mismatch == 1.0
    assert 12 < shuffled.outputs["y"].errors.sqnr_db < 25 and shuffled.agreement == 1.0, "always the class 1"
    assert (pair_each_sample_with_another(12) != np.arange(12)).all() and sorted(
        pair_each_sample_with_another(12)
    ) == list(range(12))


def test_what_is_not_of_single_samples_is_exchanged_between_feeds_or_not_at_all(tmp_path):
    found = dependence(tmp_path, {"y": RNG.normal(size=(8, 3)), "shared": RNG.normal(size=(5, 2))}, 8)
    assert set(found.meaningless_accuracies[SHUFFLED].outputs) == {"y"} and "shared" not in found.variations_db
    found = dependence(tmp_path, {"y": RNG.normal(size=(8, 3)), "shared": RNG.normal(size=(5, 2))}, 2)
    assert (
        found.meaningless_accuracies[SHUFFLED].outputs["shared"].errors.exact
        and found.variations_db["shared"] == -math.inf
    )


def network(path, scale):
    """A Gemm with weights of a scale before large biases: the smaller the scale, the less the output varies."""
    weights = {
        "w1": RNG.normal(size=(16, 32)) * scale,
        "b1": np.abs(RNG.normal(size=32)) + 1,
        "w2": RNG.normal(size=(32, 12)) * 0.2,
        "b2": RNG.normal(size=12),
    }
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "w2", "b2"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 12])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    np.savez(path.with_suffix(".npz"), x=RNG.normal(size=(64, 16)).astype(np.float32), label=np.arange(64) % 12)
    return ["compare", path, "--data", path.with_suffix(".npz"), "--batch", 4, "--layers", "none", "--no-preview"]


def test_an_output_that_hardly_varies_is_no_certain_pass(run, tmp_path):
    command = network(tmp_path / "dead.onnx", 1e-6)
    out = tmp_path / "out.json"
    code, text, err = run(*command, "--target", "sqnr>=20", "--json", out, "--markdown", tmp_path / "out.md")
    assert code == 0, err
    (variation,) = (line for line in text.splitlines() if line.strip().startswith("FP16: variation of y"))
    assert not lacking(variation, ": -1", ": ~-")
    (outcome,) = (line for line in text.splitlines() if line.strip().startswith("FP16: PASS?"))
    assert not lacking(outcome, ": y ", "(variation: -1", "another sample")
    record = json.loads(out.read_text())["runs"]["fp16"]
    output = record["outputs"]["y"]
    assert output["variation_db"] < -100 and output["varying_sqnr_db"] < 0 and record["result"]["outcome"] == "PASS?"
    assert [one["kind"] for one in record["caveats"]] == [SIMULATION_GAP, "steady output"]
    assert "hardly varies" in (tmp_path / "out.md").read_text()


def test_an_output_that_varies_is_a_certain_pass(run, tmp_path):
    code, text, err = run(*network(tmp_path / "live.onnx", 0.5), "--target", "sqnr>=12")
    assert code == 0, err
    assert "PASS" in text and "?" not in text and "vari" not in text


def test_a_target_on_a_meaningless_metric_is_trivial(run, tmp_path):
    """The network knows nothing of the labels, so outputs of other samples are right as often."""
    (tmp_path / "metric.py").write_text(
        "def right(outputs, labels):\n    return 100.0 * float((outputs['y'].argmax(1) == labels['label']).mean())\n"
    )
    command = network(tmp_path / "blind.onnx", 0.5)
    code, text, err = run(*command, "--metric", f"{tmp_path / 'metric.py'}:right", "--target", "metric>=0")
    assert code == 0, err
    assert not lacking(text, "PASS?: right ≥ 0.0000", "another sample (right"), text


def test_a_target_from_a_reference_on_wrong_inputs_is_trivial(run, tmp_path):
    """On inputs times 255 FP32's own f1 is 2: less than what the same values in any order have."""
    folder = Path(demo.__file__).parent
    data = dict(np.load(folder / "samples.npz"))
    data["image"] = data["image"] * np.float32(255)
    np.savez(tmp_path / "wrong.npz", **{name: array[:12] for name, array in data.items()})
    code, text, err = run(
        *f"compare {folder}/scenes.onnx --data {tmp_path}/wrong.npz --metric {folder / 'metric.py'}:f1".split(),
        *"--layers none --no-preview --runs fp16".split(),
    )
    assert code == 0, err
    assert not lacking(text, "is met even", "in any order"), text
    assert not [line for line in text.splitlines() if line.endswith("PASS")]
