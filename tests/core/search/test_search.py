import itertools
import math
import pickle
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.refusals import refused
from trt_tui.core.measure.target import TargetResult
from trt_tui.core.moves.config import PrecisionConfig, PrecisionMove, RangeMove
from trt_tui.core.moves.keep_rules import apply_keep_rules
from trt_tui.core.network.layers import FusionGroup, Layer, LayerKind, QdqSite
from trt_tui.core.precision import Precision
from trt_tui.core.search import SEARCH_METHODS, Evaluation, Search, SearchOutcome, SearchSpace, lowest_precision_config
from trt_tui.errors import InputError
from trt_tui.formatting import milliseconds_text

INT8 = PrecisionConfig.from_precision(Precision.INT8)
FP32 = Precision.FP32


class Toy(SimpleNamespace):
    """Networks are keys of caches."""

    __hash__ = object.__hash__


def toy(count, operators=(), names=()):
    """A network of groups g0, g1, ... that can all be INT8, and no layers behind them."""
    groups = []
    for number in range(count):
        name = names[number] if number < len(names) else f"g{number}"
        operator = operators[number] if number < len(operators) else "Gemm"
        refusals = {} if operator == "Gemm" else {Precision.INT8: f"no INT8 {operator}"}
        groups.append(
            FusionGroup(
                name,
                operator,
                (name,),
                (f"t{number}",),
                (f"t{number + 1}",),
                f"t{number + 1}",
                (QdqSite(name, 0, f"t{number}", "input"),),
                refusals,
            )
        )
    by_name = {group.name: group for group in groups}
    layers = tuple(
        Layer(name, "Gemm", "", number, (f"t{number}",), (f"t{number + 1}",), LayerKind.COMPUTE)
        for number, name in enumerate(by_name)
    )
    return Toy(
        name="toy",
        groups=tuple(groups),
        get_group=by_name.__getitem__,
        find_group=by_name.get,
        layers=layers,
        has_layer=by_name.__contains__,
    )


class Noise:
    """A criterion in which every group that is not raised adds a noise vector, with what two of them do together.

    Attributes:
        counts: How often each config was judged.
    """

    def __init__(self, count, seed, allowed=0.2, together=0.2, operators=()):
        rng = np.random.default_rng(seed)
        self.network = toy(count, operators)
        self.names = [group.name for group in self.network.groups]
        size = np.exp(rng.normal(0, 1.2, count))
        self.alone = size[:, None] * rng.normal(size=(count, 32))
        pair = np.sqrt(size[:, None] * size[None, :])[..., None]
        self.pairs = together * pair * rng.normal(size=(count, count, 32))
        self.bound = allowed * self.energy(())
        self.counts = {}

    def energy(self, raised):
        low = [number for number, name in enumerate(self.names) if name not in raised]
        total = self.alone[low].sum(0)
        for one, other in itertools.combinations(low, 2):
            total = total + self.pairs[one, other]
        return float((total**2).sum())

    def __call__(self, config):
        self.counts[config.comparison_key] = self.counts.get(config.comparison_key, 0) + 1
        energy = self.energy({*config.precision_moves, *config.groups_fixed_by_rule})
        score = -10 * math.log10(energy / abs(self.bound)) if energy and math.isfinite(energy) else math.inf
        score = -math.inf if math.isinf(energy) else score
        figure = f"{energy / self.bound:.2f} of what is allowed"
        return TargetResult(energy <= self.bound, score, loss=energy, value_text=figure)

    def impacts(self):
        everything = frozenset(self.names)
        return {name: self.energy(everything - {name}) for name in self.names}

    def smallest(self):
        return next(
            count
            for count in range(len(self.names) + 1)
            if any(self.energy(some) <= self.bound for some in itertools.combinations(self.names, count))
        )

    def search(self, method="auto", start=INT8, higher=FP32, **options):
        options.setdefault("sensitivities", self.impacts())
        return Search(SearchSpace(self.network, start, higher), method_name=method, **options)


def finish(search, evaluate):
    while (config := search.propose_config()) is not None:
        search.record_target_result(evaluate(config))
    return search.result


@pytest.mark.parametrize("method", SEARCH_METHODS)
def test_what_a_search_may_ask_for_next_is_known_ahead(method):
    """With four judged at once it comes to the same in fewer rounds; where only what passes decides, two are enough to
    know the next in any case."""
    noise, rounds, known = Noise(12, 1), 0, set()
    search, alone = noise.search(method), noise.search(method)
    while (config := search.propose_config()) is not None:
        before = search.current_trial, list(search.evaluations), search.outcome
        ahead = search.predict_next_configs(4)
        assert ahead[0] == config and len(set(ahead)) == len(ahead) <= 4
        assert (search.current_trial, search.evaluations, search.outcome) == before
        assert search.predict_next_configs(4, step_names=("nothing",)) == []
        if config not in known:
            rounds += 1
            known.update(ahead)
        search.record_target_result(noise(config))
        assert method in ("auto", "greedy") or search.propose_config() in (None, *ahead)
    assert search.result == finish(alone, noise) and rounds < 0.7 * len(search.evaluations)


@pytest.mark.parametrize("method", SEARCH_METHODS)
def test_what_comes_next_is_known_although_guesses_may_leave_nothing_to_ask_for(method):
    """Errors of pairs of layers make a larger set worse at times, so that a copy of the search can be at its end."""
    noise = Noise(8, 0, together=0.8)
    search = noise.search(method)
    while (config := search.propose_config()) is not None:
        assert search.predict_next_configs(4)[0] == config
        search.record_target_result(noise(config))


@pytest.mark.parametrize("method", SEARCH_METHODS)
@pytest.mark.parametrize("seed", range(6))
def test_no_config_is_evaluated_twice_and_what_is_found_passes(method, seed):
    noise = Noise(9, seed)
    search = noise.search(method)
    result = finish(search, noise)
    assert set(noise.counts.values()) == {1} and len(noise.counts) == len(search.evaluations)
    assert result.outcome is SearchOutcome.MET and result.is_met and search.propose_config() is None
    assert noise.energy(result.config.precision_moves) <= noise.bound
    assert set(result.config.precision_moves) == set(result.best_evaluation.raised_groups)
    assert {choice.reason for choice in result.config.precision_moves.values()} == {f"search:{method}"}


@pytest.mark.parametrize("method", SEARCH_METHODS)
@pytest.mark.parametrize("seed", range(4))
def test_a_criterion_without_any_order_is_borne(method, seed):
    noise, rng = Noise(7, seed), np.random.default_rng(seed)
    everything = len(noise.names)

    def whimsical(config):
        told = noise(config)
        passed = len(config.precision_moves) == everything or bool(config.precision_moves) and rng.random() < 0.3
        return TargetResult(passed, told.lowest_score, loss=rng.random())

    result = finish(noise.search(method), whimsical)
    assert result.is_met and set(noise.counts.values()) == {1}


@pytest.mark.parametrize("method", SEARCH_METHODS)
def test_a_search_goes_on_from_its_list_of_evaluations(method):
    noise = Noise(8, 3)
    whole = noise.search(method)
    expected = finish(whole, noise)
    for done in range(len(whole.evaluations)):
        known = pickle.loads(pickle.dumps(whole.evaluations[:done]))
        again = Noise(8, 3)
        resumed = again.search(method)
        resumed.restart(known)
        result = finish(resumed, again)
        assert len(again.counts) == len(whole.evaluations) - done
        assert result.config == expected.config and resumed.evaluations == whole.evaluations


@pytest.mark.parametrize("method", SEARCH_METHODS)
def test_the_best_so_far_is_there_at_any_moment(method):
    noise = Noise(8, 2)
    search = noise.search(method)
    assert search.result.best_evaluation is None and search.result.config == INT8 and search.result.summary
    seen = []
    while (config := search.propose_config()) is not None:
        seen.append(search.record_target_result(noise(config)))
        passing = [one for one in seen if one.passes]
        best = search.result.best_evaluation
        assert len(search.evaluations) == len(seen) and best in seen
        if passing:
            assert best.passes and len(best.raised_groups) == min(len(one.raised_groups) for one in passing)
        else:
            assert best.score == max(one.score for one in seen)
        assert search.result.is_met is bool(passing)


def test_ask_names_the_same_config_until_it_is_told_of():
    noise = Noise(5, 0)
    search = noise.search()
    assert search.propose_config() == search.propose_config() == INT8
    search.record_target_result(noise(search.propose_config()))
    assert search.propose_config() != INT8 and search.current_trial.raised_groups == tuple(noise.names)
    done = noise.search()
    done.restart([Evaluation(target_result=TargetResult(True, 1.0))])
    assert done.propose_config() is None
    with pytest.raises(ValueError, match="nothing was requested"):
        done.record_target_result(TargetResult(True, 0.0))


def additive(weights, allowed):
    """A criterion that sums the weights of the groups that are not raised."""
    noise = Noise(len(weights), 0)
    noise.energy = lambda raised: float(
        sum(w for w, name in zip(weights, noise.names, strict=True) if name not in raised)
    )
    noise.bound = allowed
    return noise


WEIGHTS = [0, 0, 8, 0, 0, 4, 0, 2]


@pytest.mark.parametrize(
    ("method", "raised", "most"),
    [("bisect", 6, 3), ("bisect-reverse", 6, 3), ("linear", 6, 6), ("linear-reverse", 6, 6), ("worst-first", 2, 2)],
)
def test_prefixes_as_polygraphy_finds_them(method, raised, most):
    noise = additive(WEIGHTS, 2)
    search = noise.search(method)
    assert finish(search, noise).best_evaluation.raised_groups == ("g2", "g5")
    tried = [one for one in search.evaluations if one.step_name == method]
    assert len(tried) <= most and min(len(one.raised_groups) for one in tried if one.passes) == raised


@pytest.mark.parametrize(
    ("method", "order", "sticks"), [("scoped", [], {"g2", "g5", "g6"}), ("lower", ["g6"], {"g0", "g2", "g5"})]
)
def test_downwards_what_sticks_stays(method, order, sticks):
    noise = additive([1, 0, 8, 0, 0, 4, 2.5, 0.5], 3.2)
    search = noise.search(method, costs={"g6": 5.0})
    result = finish(search, noise)
    assert (
        set(result.best_evaluation.raised_groups)
        == sticks
        == {row.layer_name for row in result.reduction_steps if row.stays_higher}
    )
    assert [row.layer_name for row in result.reduction_steps] == list(dict.fromkeys([*order, *noise.names]))
    assert result.outcome is SearchOutcome.MET


def test_downwards_nothing_is_taken_back_and_a_start_that_passes_is_tried_all_the_same():
    """Two errors that cancel: alone each is too much, so that the first sticks, though none of them has to."""
    noise = Noise(2, 0)
    noise.energy = lambda raised: {0: 0.1, 1: 9.0, 2: 0.0}[len(set(raised))]
    noise.bound = 1.0
    result = finish(noise.search("scoped"), noise)
    assert (
        [row.stays_higher for row in result.reduction_steps] == [True, True]
        and result.best_evaluation.raised_groups == ("g0", "g1")
        and result.is_met
    )


def test_the_table_of_scoped_is_whole_whatever_is_remembered():
    """The last try is the start, known from before; with a margin layers are tried anew."""
    noise = additive([0, 0, 0, 9], 3)
    search = noise.search("scoped")
    assert finish(search, noise).best_evaluation.raised_groups == ("g3",)
    assert [row.stays_higher for row in search.result.reduction_steps] == [False, False, False, True]
    noise = additive([1, 1, 1, 9], 3)
    search = noise.search("scoped")
    finish(search, noise)
    search.require_score_margins((1.7,))  # two of the small ones are too much now
    rows = finish(search, noise).reduction_steps
    assert [row.layer_name for row in rows] == noise.names and [row.stays_higher for row in rows] == [
        False,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize("together", [0.1, 0.4])
def test_auto_against_brute_force_on_noise(together):
    for seed, allowed in itertools.product(range(10), (0.4, 0.1)):
        noise = Noise(8, seed, allowed, together)
        assert len(finish(noise.search(), noise).best_evaluation.raised_groups) <= noise.smallest() + 1


@pytest.mark.parametrize("method", SEARCH_METHODS)
def test_no_layer_stays_raised_without_need_and_each_shows_the_value_without_it(method):
    """Errors of pairs of layers make a larger set worse at times, so that an early trial does not hold at the end."""
    for seed, lower in itertools.product(range(12), ((), (Precision.FP16,))):
        noise = Noise(8, seed, together=0.8)
        search = Search(
            SearchSpace(noise.network, INT8, FP32, lower), method_name=method, sensitivities=noise.impacts()
        )
        result = finish(search, noise)
        raised = set(result.best_evaluation.raised_groups)
        for name in raised:
            energy = noise.energy(raised - {name})
            assert result.is_met and energy > noise.bound
            assert f"without it ~{energy / noise.bound:.2f} of what is allowed (fails)" in result.raise_reasons[name]
        assert {row.layer_name: row.stays_higher for row in result.reduction_steps} in (
            {},
            {name: name in raised for name in noise.names},
        )


def test_a_layer_that_only_the_margin_needs_says_so():
    noise = additive([1, 1, 8, 0], 2)
    search = noise.search()
    assert finish(search, noise).best_evaluation.raised_groups == ("g2",)
    search.require_score_margins((1.7,))
    reasons = finish(search, noise).raise_reasons
    assert len(reasons) == 2 and "(fails)" in reasons.pop("g2")
    assert "passes, but without the margin" in next(iter(reasons.values()))


@pytest.mark.parametrize("end", ["bisect", "bisect-reverse"])
def test_auto_finds_no_more_than_a_run_of_first_or_last_layers(end):
    """Three neighbours at one end pass together and gain nothing alone, so that greedy does not see them."""
    noise = additive([1.0] * 12, 0)
    names = noise.names if end == "bisect" else noise.names[::-1]
    others = names[3:]

    def judged(config):
        left = 0 if set(names[:3]) <= set(config.precision_moves) else len(set(others) - set(config.precision_moves))
        return TargetResult(left <= 2, 2.0 - left, loss=float(left), value_text=f"{left} left")

    search = noise.search(end)
    finish(search, judged)
    run = min(len(one.raised_groups) for one in search.evaluations if one.passes and one.step_name == end)
    assert len(finish(noise.search(), judged).best_evaluation.raised_groups) <= run == 3


@pytest.mark.parametrize("score", [1.0, 30.0])
def test_a_criterion_that_says_no_more_than_yes_or_no(score):
    noise = additive(WEIGHTS, 2)

    def command(config):
        return TargetResult(noise(config).passes, score if noise.energy(config.precision_moves) <= 2 else score - 2)

    search = noise.search()
    result = finish(search, command)
    assert result.best_evaluation.raised_groups == ("g2", "g5")
    assert "score" in result.summary and len(search.evaluations) < 14


def test_auto_says_what_it_does_and_why():
    noise = Noise(6, 0)
    assert "error alone" in noise.search().method_text
    nothing = noise.search(sensitivities={})
    assert "no values of its layers are known" in nothing.method_text and noise.search("greedy").method_text == "greedy"
    assert finish(nothing, noise).is_met


@pytest.mark.parametrize(
    ("errors", "order"),
    [
        ({"g0": 1.0, "g1": 3.0, "g2": 0.0}, ["g1", "g0", "g2"]),
        ({"g0": 0.1, "g2": math.inf}, ["g2", "g0", "g1"]),
        ({"g1": 0.0}, ["g0", "g1", "g2"]),
        ({}, ["g0", "g1", "g2"]),
    ],
)
def test_the_most_suspicious_is_what_errs_most_alone(errors, order):
    assert Noise(3, 0).search(sensitivities=errors).order_by_expected_effect() == order


@pytest.mark.parametrize("method", SEARCH_METHODS)
def test_what_brings_about_nan_is_raised_first(method):
    noise = Noise(8, 1)
    finite = noise.energy
    noise.energy = lambda raised: math.inf if {"g3", "g6"} - set(raised) else finite(raised)
    noise.bound = 0.5 * finite({"g3", "g6"})
    search = noise.search(method)
    result = finish(search, noise)
    assert result.is_met and {"g3", "g6"} <= set(result.best_evaluation.raised_groups)
    if method in ("auto", "greedy", "worst-first"):
        assert set(search.order_by_expected_effect()[:2]) == {"g3", "g6"}


REST = {Precision.FP8: 0.5, Precision.FP16: 0.1, FP32: 0.0}
"""What is left of a group's noise on each rung."""


@pytest.mark.parametrize(("loss", "products", "had"), [(0.0, True, True), (9.0, True, False), (0.0, False, False)])
def test_tf32_is_had_by_all_that_stay_in_fp32_or_by_none(loss, products, had):
    noise = Noise(6, 1, together=0)
    if not products:
        noise.network.groups = tuple(replace(group, sites=()) for group in noise.network.groups)
        noise.network.get_group = {group.name: group for group in noise.network.groups}.__getitem__

    def evaluate(config):
        told = noise(config)
        return replace(told, passes=False) if config.tf32 and loss else told

    search = Search(SearchSpace(noise.network, INT8, FP32, (Precision.TF32,)), sensitivities=noise.impacts())
    result = finish(search, evaluate)
    tried = [one for one in search.evaluations if one.precisions and one.step_name == "intermediate precision"]
    assert result.is_met and result.config.tf32 is had and len(tried) == products
    assert {one.precision for one in result.config.precision_moves.values()} == {FP32}, (
        "it is a setting of the whole engine"
    )
    assert not had or set(result.best_evaluation.precisions.values()) == {Precision.TF32} and "TF32" in result.summary
    with pytest.raises(InputError, match="TF32 cannot be an intermediate"):
        SearchSpace(noise.network, replace(INT8, tf32=True), FP32, (Precision.TF32,))


@pytest.mark.parametrize("seed", range(4))
def test_what_was_raised_ends_on_the_lowest_rungs_that_do(seed):
    noise = Noise(9, seed, together=0, operators=["Gemm"] * 8 + ["Softmax"])
    left = noise.alone.copy()

    def evaluate(config):
        for number, group in enumerate(noise.network.groups):
            chosen = config.precision_moves.get(group.name)
            noise.alone[number] = left[number] * (REST[chosen.precision] if chosen else 1)
        told = noise(PrecisionConfig(FP32, FP32).with_moves({}))
        noise.alone[:] = left
        return told

    noise.network.get_group("g8").refusal_reasons[Precision.FP8] = "no FP8 Softmax"
    straight = finish(Search(SearchSpace(noise.network, INT8), sensitivities=noise.impacts()), evaluate)
    search = Search(
        SearchSpace(noise.network, INT8, FP32, (Precision.FP8, Precision.FP16)), sensitivities=noise.impacts()
    )
    result = finish(search, evaluate)
    assert (
        result.is_met
        and set(result.best_evaluation.raised_groups) == set(straight.best_evaluation.raised_groups)
        and result.best_evaluation.precisions
    )
    given = {name: one.precision for name, one in result.config.precision_moves.items()}
    assert given == {
        name: result.best_evaluation.precisions.get(name, FP32) for name in result.best_evaluation.raised_groups
    }
    assert "g8" not in given or given["g8"] is not Precision.FP8
    below = {Precision.FP16: Precision.FP8, FP32: Precision.FP16}
    lower = [
        {**given, name: below[one]}
        for name, one in given.items()
        if one in below and below[one] in search.search_space.intermediate_precisions(name)
    ]
    others = [INT8.with_moves({name: PrecisionMove(one) for name, one in some.items()}) for some in lower]
    assert lower and not any(evaluate(one).passes for one in others), "none of them could be lower"
    assert "fused layers raised, " in result.summary and evaluate(result.config).passes

    def latency(config):
        return sum(
            {Precision.FP8: 1, Precision.FP16: 2, FP32: 4}[one.precision] for one in config.precision_moves.values()
        )

    tight = Search(
        search.search_space, sensitivities=noise.impacts(), estimate_latency=latency, max_latency=latency(result.config)
    )
    found = finish(tight, evaluate)
    assert latency(result.config) < latency(straight.config)
    assert found.is_met and found.best_evaluation.estimated_latency == latency(found.config) <= latency(result.config)
    assert f"about {milliseconds_text(found.best_evaluation.estimated_latency)}" in found.summary


def test_each_group_starts_on_the_lowest_rung_that_it_can_have():
    network = toy(3, ["Gemm", "Gemm", "Softmax"])
    network.get_group("g1").refusal_reasons[Precision.INT4] = "its 10 inputs do not divide"
    network.get_group("g2").refusal_reasons[Precision.INT4] = "no INT4 Softmax"
    start = lowest_precision_config(network, (Precision.INT4, Precision.INT8), Precision.FP16)
    assert list(start.precision_by_group(network).values()) == [Precision.INT4, Precision.INT8, Precision.FP16]


def test_nothing_to_do():
    noise = additive(WEIGHTS, 100)
    search = noise.search()
    result = finish(search, noise)
    assert result.outcome is SearchOutcome.NOTHING_TO_DO and result.is_met and len(search.evaluations) == 1
    assert result.config == INT8 and "already" in result.summary and "0.14 of what" in result.summary


def test_a_tolerance_that_nothing_meets_is_said_at_once_with_the_figure():
    noise = additive(WEIGHTS, -1)
    search = noise.search(higher=Precision.FP16)
    result = finish(search, noise)
    assert result.outcome is SearchOutcome.UNREACHABLE and not result.is_met and len(search.evaluations) == 2
    assert "all 8 fused layers in FP16" in result.summary and "-0.00 of what" in result.summary


def test_a_network_with_nothing_to_lower_is_refused():
    for network, start in ((toy(0), INT8), (toy(3), PrecisionConfig.from_precision(FP32))):
        with pytest.raises(InputError, match="no layer to raise to FP32"):
            SearchSpace(network, start)


def test_unknown_methods_and_empty_budgets_are_refused():
    noise = Noise(4, 0)
    with pytest.raises(InputError, match="unknown search method 'magic'"):
        noise.search("magic")
    with pytest.raises(InputError, match="latency"):
        noise.search(max_latency=1.0)
    start = apply_keep_rules(noise.network, INT8, ["g0", "g1"])
    with pytest.raises(InputError, match="budget of 1"):
        noise.search(start=start, max_raised=1)


def test_only_what_lies_below_the_higher_precision_is_a_candidate():
    network = toy(4, ("Gemm", "Softmax", "Gemm", "Gemm"))
    start = INT8.with_group_precision([network.get_group("g2")], Precision.FP16).with_group_precision(
        [network.get_group("g3")], FP32
    )
    assert SearchSpace(network, start).candidates == ("g0", "g1", "g2")
    assert SearchSpace(network, start, Precision.FP16).candidates == ("g0",)
    config = SearchSpace(network, start, Precision.FP16).build_config(["g0"], reason="search:auto")
    assert config.precision_moves["g0"].precision is Precision.FP16 and config.precision_moves["g3"].precision is FP32


def test_kept_layers_are_raised_for_good_and_say_so():
    noise = additive(WEIGHTS, 1)
    start = apply_keep_rules(noise.network, INT8, ["g0", "g7"])
    result = finish(noise.search(start=start, max_raised=4), noise)
    assert (
        set(result.config.precision_moves) == {"g2", "g5"}
        and result.config.groups_fixed_by_rule == {"g0", "g7"}
        and result.is_met
    )
    with refused("no layer to raise", cause="except those kept by rule"):
        SearchSpace(noise.network, apply_keep_rules(noise.network, INT8, [f"g{number}" for number in range(8)]))


def with_ranges(weights, allowed, better):
    """`additive`, where a range of ``better`` halves what a tensor's group adds."""
    noise = additive(weights, allowed)
    ranged = []

    def judged(config):
        noise.counts[config.comparison_key] = noise.counts.get(config.comparison_key, 0) + 1
        ranged.append(dict(config.range_moves))
        halved = {f"g{tensor[1:]}" for tensor, choice in config.range_moves.items() if choice.amax == better}
        energy = sum(
            w / (2 if name in halved else 1)
            for w, name in zip(weights, noise.names, strict=True)
            if name not in config.precision_moves
        )
        return TargetResult(energy <= allowed, allowed - energy, loss=energy)

    return noise, judged


def test_other_ranges_come_before_higher_precisions():
    trying = {f"t{number}": {"entropy": 0.5, "mse": 0.7} for number in range(8)}
    noise, judged = with_ranges(WEIGHTS, 7, better=0.7)
    search = noise.search(ranges=trying)
    result = finish(search, judged)
    assert result.is_met and not result.config.precision_moves and set(noise.counts.values()) == {1}
    assert all(choice == RangeMove(0.7, "mse") for choice in result.config.range_moves.values())
    noise, judged = with_ranges(WEIGHTS, 3, better=0.7)
    search = noise.search(ranges=trying)
    result = finish(search, judged)
    assert result.best_evaluation.raised_groups == ("g2",) and "t5" in result.config.range_moves
    search.restart(pickle.loads(pickle.dumps(search.evaluations)))
    assert search.propose_config() is None


def test_ranges_that_do_worse_are_not_taken():
    noise, judged = with_ranges(WEIGHTS, 3, better=0.123)
    result = finish(noise.search(ranges={"t2": {"mse": 0.7}, "t5": {"mse": 0.7}}), judged)
    assert result.is_met and not result.config.range_moves


def test_a_budget_of_layers_gives_the_best_reachable_and_says_that_it_falls_short():
    noise = additive([1, 2, 8, 0, 3, 4, 0, 2], 2)
    for budget in range(4):
        result = finish(noise.search(max_raised=budget), noise)
        assert result.outcome is SearchOutcome.SHORT and not result.is_met and "tolerance not met" in result.summary
        assert set(result.config.precision_moves) == set(["g2", "g5", "g4"][:budget])
    enough = finish(noise.search(max_raised=5), noise)
    assert enough.is_met and enough.outcome is SearchOutcome.MET and len(enough.config.precision_moves) == 5
    unreachable = additive([1, 2, 8], -1)
    result = finish(unreachable.search(max_raised=1), unreachable)
    assert (
        result.outcome is SearchOutcome.SHORT
        and set(result.config.precision_moves) == {"g2"}
        and "even with all 3:" in result.summary
    )


@pytest.mark.parametrize("allowed", [20, 2])
def test_a_budget_that_nothing_keeps_is_said(allowed):
    noise = additive([1, 2, 8], allowed)
    result = finish(noise.search(estimate_latency=lambda config: 5.0, max_latency=4.0), noise)
    assert result.outcome is SearchOutcome.SHORT and not result.is_met
    assert result.summary.startswith("no config stays within the budget") and "5.00 ms" in result.summary


def test_a_group_that_the_start_raises_in_part_counts_once():
    noise = additive([1, 8, 1], 2)
    start = PrecisionConfig(other=Precision.FP16).with_group_precision([noise.network.get_group("g1")], Precision.FP16)

    def judged(config):
        left = noise.energy([name for name, choice in config.precision_moves.items() if choice.precision is FP32])
        return TargetResult(left <= 2, 2 - left, loss=left)

    result = finish(noise.search(start=start, max_raised=1), judged)
    assert result.is_met and result.best_evaluation.raised_groups == ("g1",)


def test_a_budget_of_latency():
    noise = additive([1, 2, 8, 0, 3, 4, 0, 2], 6)

    def latency(config):
        return 10 + sum(100 if name == "g2" else 1 for name in config.precision_moves)

    assert "g2" in finish(noise.search(), noise).config.precision_moves
    result = finish(noise.search(estimate_latency=latency, max_latency=12.5), noise)
    assert set(result.config.precision_moves) == {"g4", "g5"} and result.outcome is SearchOutcome.SHORT
    assert result.best_evaluation.estimated_latency == 12
    roomy = finish(noise.search(estimate_latency=latency, max_latency=112.5), noise)
    assert roomy.is_met and roomy.best_evaluation.estimated_latency <= 112.5


def test_a_budget_where_the_start_is_not_finite():
    noise = Noise(8, 1)
    finite = noise.energy
    noise.energy = lambda raised: math.inf if {"g3", "g6"} - set(raised) else finite(raised)
    noise.bound = 1e-9
    search = noise.search(max_raised=3)
    result = finish(search, noise)
    assert {"g3", "g6"} < set(result.config.precision_moves) and math.isfinite(result.best_evaluation.comparable_loss)
    assert len(search.evaluations) < 3 * len(noise.names)


@pytest.mark.parametrize("method", SEARCH_METHODS)
def test_a_margin_goes_on_from_what_is_known(method):
    noise = Noise(8, 4)
    search = noise.search(method)
    before = finish(search, noise)
    margin = before.best_evaluation.score + 2
    search.require_score_margins((margin,))
    after = finish(search, noise)
    assert after.is_met and after.best_evaluation.score >= margin and set(noise.counts.values()) == {1}
    fresh = Noise(8, 4)
    strict = fresh.search(method)
    strict.require_score_margins((margin,))
    assert finish(strict, fresh).config == after.config
    search.require_score_margins((1e9,))
    assert finish(search, noise).outcome in (SearchOutcome.UNREACHABLE, SearchOutcome.MET)


def test_a_margin_beyond_reach_says_so():
    noise = additive(WEIGHTS, 2)
    noise_energy = noise.energy
    noise.energy = lambda raised: noise_energy(raised) + 0.5
    search = noise.search()
    assert finish(search, noise).is_met
    search.require_score_margins((50.0,))
    result = finish(search, noise)
    assert result.outcome is SearchOutcome.UNREACHABLE and "margin of 50" in result.summary and not result.is_met


def test_every_raised_group_says_why():
    noise = additive(WEIGHTS, 2)
    result = finish(noise.search(), noise)
    assert list(result.raise_reasons) == ["g2", "g5"]
    assert "without it ~5.00 of what is allowed (fails), with it ~1.00" in result.raise_reasons["g2"]
    unknown = noise.search("linear", sensitivities={})
    while not unknown.result.best_evaluation or not unknown.result.best_evaluation.raised_groups:
        unknown.record_target_result(noise(unknown.propose_config()))
    assert unknown.result.raise_reasons["g7"] == "raised by linear" and "has not finished" in unknown.result.summary


@pytest.mark.parametrize("method", SEARCH_METHODS)
@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_evaluated_twice_with_everything_at_once(method, seed):
    operators = ("Gemm", "LayerNorm", "Gemm", "Gemm", "Softmax", "Gemm", "Gemm")
    noise = Noise(7, seed, operators=operators)
    trying = {f"t{number}": {"entropy": 0.5, "mse": 0.7} for number in range(7)}
    options = {"ranges": trying, "max_raised": 3}
    search = noise.search(method, **options)
    for told in range(6):
        if search.propose_config() is not None:
            search.record_target_result(noise(search.propose_config()))
        if told == 3:
            search.require_score_margins((0.5,))
    resumed = noise.search(method, **options)
    resumed.margins = (0.5,)
    resumed.restart(search.evaluations)
    result = finish(resumed, noise)
    resumed.require_score_margins((1.0,))
    result = finish(resumed, noise)
    assert set(noise.counts.values()) == {1} and len(result.config.precision_moves) <= 3
    assert len(resumed.evaluations) == len(noise.counts) and result.outcome is not SearchOutcome.SEARCHING
