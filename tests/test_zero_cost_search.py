"""The trials of zero-cost changes in a search: those that gain most first, within a budget, and none that loses."""

import json
import math
import re

import pytest

from tests.driven import DrivenWorker, of, save_resnet
from trt_tui.core.engines.preview import Kernel, Preview
from trt_tui.core.measure.target_outcome import TargetResult
from trt_tui.core.measure.zero_cost_kinds import find_network_refusal_reasons
from trt_tui.core.moves.bias_correction_move import BiasCorrectionMove
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.core.search.strategy_protocol import Evaluation, StrategyContext, ZeroCostEffort
from trt_tui.core.search.zero_cost_passes import try_zero_cost_moves
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs import zero_cost_moves
from trt_tui.jobs.steps import Urgency

INT8 = PrecisionConfig.from_precision(Precision.INT8, Precision.FP32)
MOVE = BiasCorrectionMove("AAAAAA==")


def key(name):
    return ("bias", name)


class Space:
    """A search space of stages, in which each set has the moves on some subjects."""

    def __init__(self, *stages):
        self.zero_cost_stages = tuple({name: {key(subject): MOVE for subject in subjects}
                                       for name, subjects in stage.items()} for stage in stages)


def run_pass(space, gains, *, budget=24, bound=-math.inf, scores=None):
    """Runs the pass. The loss is 10 minus the gains of the sets, and passes from a bound on."""
    context = StrategyContext((), None, lambda groups: True, zero_cost_effort=ZeroCostEffort(budget=budget))
    trials, asked = try_zero_cost_moves(context, space), []
    evaluation = None
    try:
        while True:
            trial = trials.send(evaluation)
            asked.append(trial.zero_cost_sets)
            loss = 10.0 - sum(gains[name] for name in trial.zero_cost_sets)
            score = (scores or {}).get(trial.zero_cost_sets, -loss)
            evaluation = Evaluation((), TargetResult(loss <= bound, score, loss=loss),
                                    zero_cost_sets=trial.zero_cost_sets)
    except StopIteration:
        return context, asked[1:]


def test_the_best_is_kept_first_and_the_next_is_tried_on_top_of_it():
    space = Space({"small": "a", "large": "b", "bad": "c", "middle": "d"})
    context, asked = run_pass(space, {"small": 1, "large": 4, "bad": -2, "middle": 2})
    assert asked == [("small",), ("large",), ("bad",), ("middle",), ("large", "middle"), ("large", "middle", "small")]
    assert context.zero_cost_sets == ("large", "middle", "small")
    effort = context.zero_cost_effort
    assert (effort.tried, effort.total, effort.evaluations, effort.is_exhausted) == (4, 4, 6, False)
    assert effort.text == "tried 4 of 4 zero-cost changes in 6 simulated configs of at most 24"


def test_of_two_sets_on_one_subject_the_better_is_kept():
    context, asked = run_pass(Space({"weak": "ab", "strong": "bc", "other": "d"}), {"weak": 2, "strong": 3, "other": 1})
    assert context.zero_cost_sets == ("strong", "other") and ("strong", "weak") not in asked


def test_a_later_stage_is_tried_on_top_of_what_was_kept():
    context, asked = run_pass(Space({"form": "a"}, {"bias": "b"}), {"form": 1, "bias": 1})
    assert asked == [("form",), ("form", "bias")] and context.zero_cost_sets == ("form", "bias")
    context, asked = run_pass(Space({"form": "a"}, {"bias": "b"}), {"form": -1, "bias": 1})
    assert asked == [("form",), ("bias",)] and context.zero_cost_sets == ("bias",)


def test_a_change_that_worsens_the_value_of_the_target_is_not_taken():
    """The judged error falls and the metric falls too: the metric decides."""
    context, _ = run_pass(Space({"form": "a"}), {"form": 1}, scores={(): -10.0, ("form",): -10.5})
    assert context.zero_cost_sets == ()


def test_what_meets_the_tolerance_ends_the_trials():
    space = Space({"one": "a", "two": "b"}, {"bias": "c"})
    context, asked = run_pass(space, {"one": 5, "two": 1, "bias": 1}, bound=5.0)
    assert asked == [("one",)] and context.zero_cost_sets == ("one",)
    assert context.zero_cost_effort.text.endswith("; the tolerance was met without the rest")


@pytest.mark.parametrize(("budget", "kept", "tried"), [(1, ("a",), 1), (2, ("b",), 2), (3, ("b",), 3),
                                                      (4, ("b", "c"), 3)])
def test_the_budget_bounds_the_trials_and_is_named(budget, kept, tried):
    space = Space({name: name for name in "abc"})
    context, asked = run_pass(space, {"a": 1, "b": 3, "c": 2}, budget=budget)
    effort = context.zero_cost_effort
    assert len(asked) == budget == effort.evaluations and effort.tried == tried and context.zero_cost_sets == kept
    assert f"tried {tried} of 3 zero-cost changes in {budget} simulated config" in effort.text
    rest = "the rest was" if tried < 3 else "further combinations were"
    assert f"(--free-budget), and {rest} not tried" in effort.text


def test_times_belong_to_no_result():
    assert ZeroCostEffort(1, 2, seconds=3.0) == ZeroCostEffort(1, 2, seconds=4.0, predicted_s=5.0)
    assert "3" not in ZeroCostEffort(1, 2, seconds=3.0).text


def test_the_command_prints_the_effort_with_its_time_and_files_hold_it_without(run, tmp_path):
    options = save_resnet(tmp_path, samples=12)
    code, out, err = run(
        "search", options.model, "--data", options.data, "--batch", "4", "--tolerance", "sqnr>=50", "--no-ranges",
        "--free-budget", "1", "--no-preview", "-o", str(tmp_path / "p.json"), "--markdown", str(tmp_path / "p.md"))
    assert code in (0, 1), err
    (line,) = [line for line in out.splitlines() if "zero-cost change" in line]
    assert re.search("zero-cost changes? in 1 simulated config of at most 1; the budget is used up", line), line
    assert "predicted" in line
    effort = json.loads((tmp_path / "p.json").read_text())["evidence"]["search"]["zero_cost"]
    assert (effort["tried"], effort["evaluations"], effort["budget"]) == (1, 1, 1)
    assert f"tried 1 of {effort['changes']} zero-cost change" in line
    assert effort["said"] in (tmp_path / "p.md").read_text() and " s;" not in effort["said"]


@pytest.mark.parametrize("words", [["--no-free", "--free-budget", "3"], ["--lower", "--free-budget", "3"],
                                   ["--no-hold-out", "--held-out"], ["--sample", "1", "--held-out"]])
def test_options_without_effect_are_refused(words, run, tmp_path):
    options = save_resnet(tmp_path, samples=12)
    code, _, err = run("search", options.model, "--data", options.data, "--tolerance", "sqnr>=50", *words,
                               "-o", str(tmp_path / "p.json"))
    assert code == 2 and words[-1 if words[-1] != "3" else -2] in err


# -- the values of changes before they are made ------------------------------------------------------------------------


@pytest.fixture
def worker(tmp_path):
    worker = DrivenWorker(tmp_path)
    worker.answer(rq.OpenNetwork(save_resnet(tmp_path, samples=12)))
    return worker


def test_values_of_changes_stream_in_and_are_those_of_a_whatif(worker):
    group = next(group.name for group in worker.network.groups if group.is_quantizable)
    events = of(worker.answer(rq.MeasureZeroCostChanges(group, INT8)), ev.ZeroCostChangesMeasured)
    assert [event.is_complete for event in events] == [False] * (len(events) - 1) + [True]
    known = [sum(change.accuracy is not None for change in event.changes) for event in events]
    assert known == sorted(known) and known[0] == 0 and known[-1] == len(events[-1].changes) >= 2
    scopes = [change.is_for_network for change in events[-1].changes]
    assert scopes == sorted(scopes) and {*scopes} == {False, True}
    assert all(change.added_kernels is None for change in events[-1].changes), "no preview was requested"
    for change in events[-1].changes:
        measured = of(worker.answer(rq.MeasureWhatIf(change.config)), ev.AccuracyMeasured)[-1].accuracy
        assert measured == change.accuracy


def test_added_kernels_are_those_of_previews(worker, monkeypatch):
    class Client:
        def __init__(self, *arguments):
            pass

        def preview_config(self, config):
            yield Urgency.REMEDIES
            return Preview(kernels=(Kernel("gemm", (), (), ()),) * (3 + len(config.moves)))

    monkeypatch.setattr(zero_cost_moves, "PreviewClient", Client)
    monkeypatch.setattr(zero_cost_moves, "is_tensorrt_rtx_installed", lambda: True)
    event = of(worker.answer(rq.MeasureZeroCostChanges("", INT8, use_preview=True)), ev.ZeroCostChangesMeasured)[-1]
    assert [change.added_kernels for change in event.changes] == [len(change.config.moves) for change in event.changes]


def test_a_network_without_possible_changes_gets_reasons(worker):
    plain = PrecisionConfig.from_precision(Precision.FP32)
    event = of(worker.answer(rq.MeasureZeroCostChanges("", plain)), ev.ZeroCostChangesMeasured)[-1]
    assert event.is_complete and not event.changes
    reasons = find_network_refusal_reasons(worker.network, plain)
    assert all(reasons.values()) and reasons["bias correction"] == "it does not run in INT8"
    assert find_network_refusal_reasons(worker.network, INT8)["bias correction"] == ""
