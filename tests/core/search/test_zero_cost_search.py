"""The trials of zero-cost changes in a search: those that gain most first, within a budget, and none that loses."""

import json
import math
import re
from types import SimpleNamespace

import pytest

from tests.driven import DrivenWorker, of, save_resnet, values
from trt_tui.core.engines.group_implementations import Kernel, Preview
from trt_tui.core.measure.results import Accuracy
from trt_tui.core.measure.target import TargetResult
from trt_tui.core.measure.zero_cost_kinds import TrialBudget, find_network_refusal_reasons
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.constant_moves import BiasCorrectionMove, SmoothQuantMove
from trt_tui.core.precision import Precision
from trt_tui.core.search import Evaluation, ZeroCostEffort
from trt_tui.core.search.search import try_zero_cost_changes
from trt_tui.jobs import comparison
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.scheduler import Urgency

INT8 = PrecisionConfig.from_precision(Precision.INT8, Precision.FP32)
MOVE = BiasCorrectionMove("AAAAAA==")


def key(name):
    return ("bias", name)


class Space:
    """A search space of stages, in which each set has the moves on some subjects.

    Attributes:
        fixed: The tensors whose range a set fixes, by the name of the set.
    """

    start_config = SimpleNamespace(precision_of=lambda group: Precision.INT8)

    def __init__(self, *stages, fixed=(), measured=()):
        self.fixed = dict(fixed)
        self.network = SimpleNamespace(
            get_group=lambda name: SimpleNamespace(
                calibrated_qdq_sites=lambda precision: [SimpleNamespace(tensor=name)]
            )
        )
        stages = [
            {name: {key(subject): MOVE for subject in subjects} for name, subjects in stage.items()} for stage in stages
        ]
        self.zero_cost_stages = tuple(zip(stages, measured or (0,) * len(stages), strict=True))

    def find_fixed_range_tensors(self, names):
        return frozenset(tensor for name in names for tensor in self.fixed.get(name, ()))


def run_pass(
    space, gains, *, budget=24, bound=-math.inf, scores=None, ranges=None, range_gains=None, score_of_ranges=None
):
    """Runs the pass. The loss is 10 minus the gains of the sets and ranges, and passes from a bound on."""
    asked = []

    def evaluate(raised=(), about="", *, step_name, range_moves=None, zero_cost_sets=()):
        chosen = {tensor: choice.method for tensor, choice in (range_moves or {}).items()}
        asked.append((*zero_cost_sets, *chosen.items()))
        loss = (
            10.0
            - sum(gains[name] for name in zero_cost_sets)
            - sum((range_gains or {})[choice] for choice in chosen.items())
        )
        score = (scores or {}).get(zero_cost_sets, -loss)
        score = (score_of_ranges or {}).get(next(iter(chosen.values()), ""), score)
        return Evaluation(
            (),
            range_moves or {},
            zero_cost_sets=zero_cost_sets,
            target_result=TargetResult(loss <= bound, score, loss=loss),
        )
        yield

    search = SimpleNamespace(
        search_space=space,
        evaluate=evaluate,
        ranges=ranges or {},
        ranges_order=[*(ranges or ())],
        zero_cost_effort=ZeroCostEffort(budget=budget),
    )
    assert not [*try_zero_cost_changes(search)]
    return search, asked[1:]


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


def test_a_change_that_raises_the_value_of_the_target_is_taken_although_the_error_grows():
    scores = {(): -10.0, ("error",): -10.0, ("metric",): -9.0, ("metric", "error"): -9.0}
    context, asked = run_pass(Space({"error": "a", "metric": "b"}), {"error": 3, "metric": -1}, scores=scores)
    assert context.zero_cost_sets == ("metric", "error") == asked[-1], "of equal values the smaller error decides"
    ranges, gains = {"t": {"mse": 1.0, "entropy": 2.0}}, {("t", "mse"): 1, ("t", "entropy"): -1}
    context, _ = run_pass(
        Space(), {}, ranges=ranges, range_gains=gains, score_of_ranges={"mse": -10.0, "entropy": -8.0}
    )
    assert context.chosen_ranges["t"].method == "entropy"


def test_what_meets_the_tolerance_ends_the_trials():
    space = Space({"one": "a", "two": "b"}, {"bias": "c"})
    context, asked = run_pass(space, {"one": 5, "two": 1, "bias": 1}, bound=5.0)
    assert asked == [("one",)] and context.zero_cost_sets == ("one",)
    assert context.zero_cost_effort.text.endswith("; the tolerance was met without the rest")


@pytest.mark.parametrize(
    ("budget", "kept", "tried"), [(1, ("a",), 1), (2, ("b",), 2), (3, ("b",), 3), (4, ("b", "c"), 3)]
)
def test_the_budget_bounds_the_trials_and_is_named(budget, kept, tried):
    space = Space({name: name for name in "abc"})
    context, asked = run_pass(space, {"a": 1, "b": 3, "c": 2}, budget=budget)
    effort = context.zero_cost_effort
    assert len(asked) == budget == effort.evaluations and effort.tried == tried and context.zero_cost_sets == kept
    assert f"tried {tried} of 3 zero-cost changes in {budget} simulated config" in effort.text
    rest = "the rest was" if tried < 3 else "further combinations were"
    assert f"; the budget is used up, and {rest} not tried" in effort.text


RANGES = {"t": {"entropy": 1.0, "mse": 2.0}, "u": {"entropy": 1.0}}
RANGE_GAINS = {("t", "entropy"): 4, ("t", "mse"): 1, ("u", "entropy"): 1}


def test_ranges_that_give_more_come_before_a_change_that_would_fix_them():
    """In either order the later pass loses what both would have gained, so the one that gives more decides."""
    space = Space({"equal": "a"}, fixed={"equal": "t"})
    context, asked = run_pass(space, {"equal": 3}, ranges=RANGES, range_gains=RANGE_GAINS)
    assert asked == [
        ("equal",),
        (("t", "entropy"),),
        (("t", "mse"),),
        (("t", "entropy"), ("u", "entropy")),
        ("equal", ("u", "entropy")),
    ]
    assert context.zero_cost_sets == () and {*context.chosen_ranges} == {"t", "u"}
    context, asked = run_pass(space, {"equal": 7}, ranges=RANGES, range_gains=RANGE_GAINS)
    assert context.zero_cost_sets == ("equal",) and {*context.chosen_ranges} == {"u"}
    assert asked[-1] == ("equal", ("u", "entropy"))
    effort = context.zero_cost_effort
    assert (effort.tried, effort.total, effort.evaluations) == (2, 2, 5)


def test_ranges_and_changes_of_other_tensors_add_up():
    context, asked = run_pass(
        Space({"form": "a"}, {"bias": "b"}), {"form": 2, "bias": 1}, ranges=RANGES, range_gains=RANGE_GAINS
    )
    assert asked[-2:] == [
        ("form", ("t", "entropy"), ("u", "entropy")),
        ("form", "bias", ("t", "entropy"), ("u", "entropy")),
    ]
    assert context.zero_cost_sets == ("form", "bias") and {*context.chosen_ranges} == {"t", "u"}


def test_what_chooses_among_variants_counts_in_the_budget():
    space = Space({"form": "a"}, {"bias": "b"}, measured=(3, 1))
    context, asked = run_pass(space, {"form": 1, "bias": 1}, budget=6)
    assert context.zero_cost_effort.evaluations == 6 and not context.zero_cost_effort.is_exhausted
    context, asked = run_pass(space, {"form": 1, "bias": 1}, budget=5)
    assert asked == [("form",)] and context.zero_cost_effort.is_exhausted
    context, asked = run_pass(Space({"form": "a"}), {"form": 1}, budget=2, ranges=RANGES, range_gains=RANGE_GAINS)
    assert asked == [("form",), (("t", "entropy"),)] and context.zero_cost_effort.is_exhausted
    assert context.chosen_ranges["t"].method == "entropy" and context.zero_cost_sets == ()


def test_a_kind_that_the_budget_does_not_allow_is_not_measured():
    budget = TrialBudget(3)
    assert [budget.reserve_configs(count) for count in (2, 2, 1)] == [True, False, True]
    assert budget.used == 3 and budget.is_exceeded


def test_times_belong_to_no_result():
    assert ZeroCostEffort(1, 2, seconds=3.0) == ZeroCostEffort(1, 2, seconds=4.0)
    assert "3" not in ZeroCostEffort(1, 2, seconds=3.0).text


def test_the_command_prints_the_effort_with_its_time_and_files_hold_it_without(run, tmp_path):
    options = save_resnet(tmp_path, samples=12, size=8)
    code, out, err = run(
        *f"search {options.model} --data {options.data} --batch 4 --tolerance sqnr>=50 --no-ranges".split(),
        *f"--no-preview -o {tmp_path}/p.json --markdown {tmp_path}/p.md".split(),
    )
    assert code in (0, 1), err
    (line,) = [line for line in out.splitlines() if line.strip().startswith("tried ")]
    assert re.search("zero-cost changes? in [0-9]+ simulated configs of at most 96", line), line
    effort = json.loads((tmp_path / "p.json").read_text())["evidence"]["search"]["zero_cost"]
    assert 0 < effort["tried"] <= effort["evaluations"] <= effort["budget"] == 96
    assert f"tried {effort['tried']} of {effort['changes']} zero-cost change" in line
    assert effort["said"] in (tmp_path / "p.md").read_text() and " s;" not in effort["said"]


# -- the values of changes before they are made ------------------------------------------------------------------------


@pytest.fixture
def worker(tmp_path):
    worker = DrivenWorker(tmp_path)
    worker.answer(rq.OpenNetwork(save_resnet(tmp_path, samples=12, size=16)))
    return worker


def test_values_of_changes_stream_in_and_are_those_of_a_whatif(worker):
    group = next(group.name for group in worker.network.groups if group.is_quantizable)
    events = values(worker.answer(rq.MeasureZeroCostChanges(group, INT8)), ev.ZERO_COST_CHANGES)
    assert [event.is_complete for event in events] == [False] * (len(events) - 1) + [True]
    known = [sum(change.accuracy is not None for change in event.changes) for event in events]
    assert known == sorted(known) and known[0] == 0 and known[-1] == len(events[-1].changes) >= 2
    scopes = [change.is_for_network for change in events[-1].changes]
    assert scopes == sorted(scopes) and {*scopes} == {False, True}
    assert all(change.added_kernels is None for change in events[-1].changes), "no preview was requested"
    for change in events[-1].changes:
        measured = of(worker.answer(rq.MeasureWhatIf(change.config)), ev.AccuracyMeasured)[-1].accuracy
        assert measured == change.accuracy


def proposed(label, subjects, error, family="", kind=SmoothQuantMove, f1=None):
    moves = {subject: kind("0.5", "AAAAAA==") for subject in subjects}
    accuracy = None if error is None else Accuracy({}, {} if f1 is None else {"f1": f1}, judged_error=error)
    return ev.ZeroCostChange(label, INT8.with_moves(moves), "", family, accuracy=accuracy)


def test_lists_show_the_best_strength():
    weak, strong, other = (
        proposed("0.5", "ab", 0.2, "SmoothQuant"),
        proposed("0.75", "abc", 0.1, "SmoothQuant"),
        proposed("bias", (), 0.1),
    )
    assert comparison.list_distinct_changes([weak, strong, other]) == [strong, other]
    unmeasured = proposed("0.5", "ab", None, "SmoothQuant")
    assert comparison.list_distinct_changes([unmeasured, other]) == [unmeasured, other]
    assert comparison.list_distinct_changes([unmeasured, strong]) == [strong]
    higher = proposed("0.5", "ab", 0.2, "SmoothQuant", f1=0.75)
    lower = proposed("1", "ab", 0.1, "SmoothQuant", f1=0.6)
    assert comparison.list_distinct_changes([lower, higher]) == [higher], "the metric decides"


def test_short_labels_fit_into_the_detail_pane(worker):
    remedies = {
        remedy.short_label or remedy.label
        for group in worker.network.groups
        if group.is_quantizable
        for remedy in values(worker.answer(rq.MeasureRemedies(group.name, INT8)), ev.REMEDIES)[-1]
    }
    assert {"bias correction", "equalization"} <= remedies
    assert all(len(label.removesuffix(" range")) <= 15 for label in remedies)
    assert 1 <= sum(label.startswith("SmoothQ") for label in remedies) <= 3


def test_added_kernels_are_those_of_previews(worker, monkeypatch):
    class Client:
        def __init__(self, *arguments):
            pass

        def preview_config(self, config):
            yield Urgency.REMEDIES
            return Preview(kernels=(Kernel("gemm", (), (), ()),) * (3 + len(config.moves)))

    monkeypatch.setattr(comparison, "PreviewClient", Client)
    monkeypatch.setattr(comparison, "is_tensorrt_rtx_installed", lambda: True)
    event = values(worker.answer(rq.MeasureZeroCostChanges("", INT8, use_preview=True)), ev.ZERO_COST_CHANGES)[-1]
    assert [change.added_kernels for change in event.changes] == [len(change.config.moves) for change in event.changes]


def test_a_network_without_possible_changes_gets_reasons(worker):
    plain = PrecisionConfig.from_precision(Precision.FP32)
    event = values(worker.answer(rq.MeasureZeroCostChanges("", plain)), ev.ZERO_COST_CHANGES)[-1]
    assert event.is_complete and not event.changes
    reasons = find_network_refusal_reasons(worker.network, plain)
    assert all(reasons.values()) and reasons["bias correction"] == "it does not run in INT8"
    assert find_network_refusal_reasons(worker.network, INT8)["bias correction"] == ""
