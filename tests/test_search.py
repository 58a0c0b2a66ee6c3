import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from tests.refusals import refused
from trt_tui.core.measure.comparison import Errors, GroupErrors, Share
from trt_tui.core.measure.judgement import Judgement
from trt_tui.core.measure.shares import Impact
from trt_tui.core.moves.choice import Choice
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.keeping import with_kept
from trt_tui.core.moves.range_choice import RangeChoice
from trt_tui.core.network.layers import Group, Kind, Layer, Site
from trt_tui.core.precision import Precision
from trt_tui.core.search import (
    SEARCH_METHODS,
    Evaluation,
    Outcome,
    Ranking,
    Search,
    Space,
    lowest,
    upcoming,
)
from trt_tui.core.search.ranking import best_ranking
from trt_tui.errors import InputError
from trt_tui.words import milliseconds

INT8 = PrecisionConfig.uniform(Precision.INT8)
FP32 = Precision.FP32


def toy(count, operators=(), names=()):
    """A network of groups g0, g1, ... that can all be INT8, and no layers behind them."""
    groups = []
    for number in range(count):
        name = names[number] if number < len(names) else f"g{number}"
        operator = operators[number] if number < len(operators) else "Gemm"
        refusals = {} if operator == "Gemm" else {Precision.INT8: f"no INT8 {operator}"}
        groups.append(Group(name, operator, (name,), (f"t{number}",), (f"t{number + 1}",), f"t{number + 1}",
                            (Site(name, 0, f"t{number}", "input"),), refusals))
    by_name = {group.name: group for group in groups}
    layers = tuple(Layer(name, "Gemm", "", number, (f"t{number}",), (f"t{number + 1}",), Kind.COMPUTE)
                   for number, name in enumerate(by_name))
    return SimpleNamespace(name="toy", groups=tuple(groups), group=by_name.__getitem__, group_of=by_name.get,
                           layers=layers, has_layer=by_name.__contains__)


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
        self.counts[config.key()] = self.counts.get(config.key(), 0) + 1
        energy = self.energy({*config.groups, *config.held})
        score = -10 * math.log10(energy / abs(self.bound)) if energy and math.isfinite(energy) else math.inf
        score = -math.inf if math.isinf(energy) else score
        figure = f"{energy / self.bound:.2f} of what is allowed"
        return Judgement(energy <= self.bound, score, loss=energy, figure=figure)

    def impacts(self):
        everything, start = frozenset(self.names), self.energy(())
        return {name: Impact((start - self.energy({name})) / start, energy=self.energy(everything - {name}), samples=8)
                for name in self.names}

    def smallest(self):
        return next(count for count in range(len(self.names) + 1)
                    if any(self.energy(some) <= self.bound for some in itertools.combinations(self.names, count)))

    def search(self, method="auto", start=INT8, higher=FP32, **options):
        options.setdefault("impacts", self.impacts())
        return Search(Space(self.network, start, higher), method=method, **options)


def finish(search, evaluate):
    while (config := search.ask()) is not None:
        search.tell(evaluate(config))
    return search.result


@pytest.mark.parametrize("method", SEARCH_METHODS)
def test_what_a_search_may_ask_for_next_is_known_ahead(method):
    """With four judged at once it comes to the same in fewer rounds; where only what passes decides, two are enough to
    know the next in any case."""
    noise, rounds, known = Noise(12, 1), 0, set()
    search, alone = noise.search(method), noise.search(method)
    while (config := search.ask()) is not None:
        before = search.asked, list(search.evaluations), search.outcome
        ahead = upcoming(search, 4)
        assert ahead[0] == config and len(set(ahead)) == len(ahead) <= 4
        assert (search.asked, search.evaluations, search.outcome) == before
        assert upcoming(search, 4, only=("nothing",)) == []
        if config not in known:
            rounds += 1
            known.update(ahead)
        search.tell(noise(config))
        assert method in ("auto", "greedy") or search.ask() in (None, *ahead)
    assert search.result == finish(alone, noise) and rounds < 0.7 * len(search.evaluations)


@pytest.mark.parametrize("method", SEARCH_METHODS)
@pytest.mark.parametrize("seed", range(6))
def test_no_config_is_evaluated_twice_and_what_is_found_passes(method, seed):
    noise = Noise(9, seed)
    search = noise.search(method)
    result = finish(search, noise)
    assert set(noise.counts.values()) == {1} and len(noise.counts) == result.evaluations == len(search.evaluations)
    assert result.outcome is Outcome.MET and result.met and search.ask() is None
    assert noise.energy(result.config.groups) <= noise.bound
    assert set(result.config.groups) == set(result.best.raised)
    assert {choice.reason for choice in result.config.groups.values()} == {f"search:{method}"}


@pytest.mark.parametrize("method", SEARCH_METHODS)
@pytest.mark.parametrize("seed", range(4))
def test_a_criterion_without_any_order_is_borne(method, seed):
    noise, rng = Noise(7, seed), np.random.default_rng(seed)
    everything = len(noise.names)

    def whimsical(config):
        told = noise(config)
        passed = len(config.groups) == everything or bool(config.groups) and rng.random() < 0.3
        return Judgement(passed, told.score, loss=rng.random())

    result = finish(noise.search(method), whimsical)
    assert result.met and set(noise.counts.values()) == {1}


@pytest.mark.parametrize("method", SEARCH_METHODS)
def test_nothing_that_was_found_can_be_taken_back(method):
    for seed in range(5):
        noise = Noise(8, seed, together=0)
        noise.alone = np.abs(noise.alone)  # so that a larger set of raised groups never does worse
        noise.bound = 0.2 * noise.energy(())
        raised = set(finish(noise.search(method), noise).best.raised)
        assert all(noise.energy(raised - {name}) > noise.bound for name in raised)


@pytest.mark.parametrize("method", SEARCH_METHODS)
def test_a_search_goes_on_from_its_list_of_evaluations(method):
    noise = Noise(8, 3)
    whole = noise.search(method)
    expected = finish(whole, noise)
    for done in range(len(whole.evaluations)):
        stored = msgspec.msgpack.encode(whole.evaluations[:done])
        known = msgspec.msgpack.decode(stored, type=list[Evaluation])
        again = Noise(8, 3)
        resumed = again.search(method, known=known)
        result = finish(resumed, again)
        assert len(again.counts) == len(whole.evaluations) - done
        assert result.config == expected.config and resumed.evaluations == whole.evaluations


@pytest.mark.parametrize("method", SEARCH_METHODS)
def test_the_best_so_far_is_there_at_any_moment(method):
    noise = Noise(8, 2)
    search = noise.search(method)
    assert search.result.best is None and search.result.config == INT8 and search.result.said
    seen = []
    while (config := search.ask()) is not None:
        seen.append(search.tell(noise(config)))
        passing = [one for one in seen if one.passed]
        best = search.result.best
        assert len(search.evaluations) == len(seen) and best in seen
        if passing:
            assert best.passed and len(best.raised) == min(len(one.raised) for one in passing)
        else:
            assert best.score == max(one.score for one in seen)
        assert search.result.met is bool(passing)


def test_ask_names_the_same_config_until_it_is_told_of():
    noise = Noise(5, 0)
    search = noise.search()
    assert search.ask() == search.ask() == INT8
    search.tell(noise(search.ask()))
    assert search.ask() != INT8 and search.asked.raised == frozenset(noise.names)
    done = noise.search(known=[Evaluation((), Judgement(True, 1.0))])
    assert done.ask() is None
    with pytest.raises(ValueError, match="nothing was asked"):
        done.tell(Judgement(True, 0.0))


def additive(weights, allowed):
    """A criterion that sums the weights of the groups that are not raised."""
    noise = Noise(len(weights), 0)
    noise.energy = lambda raised: float(sum(w for w, name in zip(weights, noise.names, strict=True)
                                            if name not in raised))
    noise.bound = allowed
    return noise


WEIGHTS = [0, 0, 8, 0, 0, 4, 0, 2]


@pytest.mark.parametrize(("method", "raised", "most"), [
    ("bisect", 6, 3), ("bisect-reverse", 6, 3), ("linear", 6, 6), ("linear-reverse", 6, 6), ("worst-first", 2, 2)])
def test_prefixes_as_polygraphy_finds_them(method, raised, most):
    noise = additive(WEIGHTS, 2)
    search = noise.search(method, take_back=False)
    assert len(finish(search, noise).best.raised) == raised
    assert len(search.evaluations) - 2 <= most
    noise = additive(WEIGHTS, 2)
    assert finish(noise.search(method), noise).best.raised == ("g2", "g5")


@pytest.mark.parametrize(("method", "order", "sticks"), [
    ("scoped", [], {"g2", "g5", "g6"}), ("lower", ["g6"], {"g0", "g2", "g5"})])
def test_downwards_what_sticks_stays(method, order, sticks):
    noise = additive([1, 0, 8, 0, 0, 4, 2.5, 0.5], 3.2)
    search = noise.search(method, costs={"g6": 5.0})
    result = finish(search, noise)
    assert set(result.best.raised) == sticks == {row.layer for row in result.rows if row.sticks}
    assert [row.layer for row in result.rows] == list(dict.fromkeys([*order, *noise.names]))
    assert result.outcome is Outcome.MET


def test_downwards_nothing_is_taken_back_and_a_start_that_passes_is_tried_all_the_same():
    """Two errors that cancel: alone each is too much, so that the first sticks, though none of them has to."""
    noise = Noise(2, 0)
    noise.energy = lambda raised: {0: 0.1, 1: 9.0, 2: 0.0}[len(set(raised))]
    noise.bound = 1.0
    result = finish(noise.search("scoped"), noise)
    assert [row.sticks for row in result.rows] == [True, True] and result.best.raised == ("g0", "g1") and result.met


def test_the_table_of_scoped_is_whole_whatever_is_remembered():
    """The last try is the start, known from before; with a margin layers are tried anew."""
    noise = additive([0, 0, 0, 9], 3)
    search = noise.search("scoped")
    assert finish(search, noise).best.raised == ("g3",)
    assert [row.sticks for row in search.result.rows] == [False, False, False, True]
    noise = additive([1, 1, 1, 9], 3)
    search = noise.search("scoped")
    finish(search, noise)
    search.tighten((1.7,))  # two of the small ones are too much now
    rows = finish(search, noise).rows
    assert [row.layer for row in rows] == noise.names and [row.sticks for row in rows] == [False, False, True, True]


@pytest.mark.parametrize("together", [0.1, 0.4])
def test_auto_against_brute_force_on_noise(together):
    for seed, allowed in itertools.product(range(10), (0.4, 0.1)):
        noise = Noise(8, seed, allowed, together)
        assert len(finish(noise.search(), noise).best.raised) <= noise.smallest() + 1


@pytest.mark.parametrize("end", ["bisect", "bisect-reverse"])
def test_auto_finds_no_more_than_a_run_of_first_or_last_layers(end):
    """Three neighbours at one end pass together and gain nothing alone, so that greedy does not see them."""
    noise = additive([1.0] * 12, 0)
    names = noise.names if end == "bisect" else noise.names[::-1]
    others = names[3:]

    def judged(config):
        left = 0 if set(names[:3]) <= set(config.groups) else len(set(others) - set(config.groups))
        return Judgement(left <= 2, 2.0 - left, loss=float(left), figure=f"{left} left")

    run = finish(noise.search(end, take_back=False), judged).best.raised
    assert len(finish(noise.search(), judged).best.raised) <= len(run) == 3


@pytest.mark.parametrize("score", [1.0, 30.0])
def test_a_criterion_that_says_no_more_than_yes_or_no(score):
    noise = additive(WEIGHTS, 2)

    def command(config):
        return Judgement(noise(config).passed, score if noise.energy(config.groups) <= 2 else score - 2)

    result = finish(noise.search(), command)
    assert result.best.raised == ("g2", "g5") and "score" in result.said and result.evaluations < 14


def test_auto_says_what_it_does_and_why():
    noise = Noise(6, 0)
    assert "causes alone" in noise.search().how
    assert "error shares" in noise.search(impacts={name: Share(one.owns) for name, one in noise.impacts().items()}).how
    errors = {name: GroupErrors(Precision.INT8, isolated=Errors(sqnr_db=10.0 + number))
              for number, name in enumerate(noise.names)}
    halving = noise.search(impacts={}, errors=errors)
    assert "halving" in halving.how and halving.ranking.order == tuple(noise.names)
    nothing = noise.search(impacts={})
    assert "nothing is known" in nothing.how and noise.search("greedy").how == "greedy"
    for search in (halving, nothing):
        assert finish(search, Noise(6, 0)).met


def test_rankings():
    impacts = {"a": Impact(0.5, energy=1.0), "b": Impact(0.1, energy=3.0), "c": Impact(-0.2, energy=0.0)}
    assert best_ranking("abc", impacts).order == ("b", "a", "c")
    assert best_ranking("abc", {name: Share(one.owns) for name, one in impacts.items()}).order == ("a", "b", "c")
    assert best_ranking("cab", {}).order == ("c", "a", "b")
    errors = {"a": GroupErrors(Precision.INT8, isolated=Errors(exact=True, cosine=1.0)),
              "b": GroupErrors(Precision.INT8, isolated=Errors(nan=3)),
              "c": GroupErrors(Precision.INT8, isolated=Errors(sqnr_db=20.0))}
    assert best_ranking("abc", {"a": Share(0.0)}, errors).order == ("b", "c", "a")
    assert best_ranking("ab", {"a": Impact(0.0, energy=0.1), "b": Impact(0.0, energy=math.inf)}).order == ("b", "a")


@pytest.mark.parametrize("method", SEARCH_METHODS)
def test_what_brings_about_nan_is_raised_first(method):
    noise = Noise(8, 1)
    finite = noise.energy
    noise.energy = lambda raised: math.inf if {"g3", "g6"} - set(raised) else finite(raised)
    noise.bound = 0.5 * finite({"g3", "g6"})
    search = noise.search(method)
    result = finish(search, noise)
    assert result.met and {"g3", "g6"} <= set(result.best.raised)
    if method in ("auto", "greedy", "worst-first"):
        assert set(search.ranking.order[:2]) == {"g3", "g6"}


REST = {Precision.FP8: 0.5, Precision.FP16: 0.1, FP32: 0.0}
"""What is left of a group's noise on each rung."""


@pytest.mark.parametrize(("loss", "products", "had"), [(0.0, True, True), (9.0, True, False), (0.0, False, False)])
def test_tf32_is_had_by_all_that_stay_in_fp32_or_by_none(loss, products, had):
    noise = Noise(6, 1, together=0)
    if not products:
        noise.network.groups = tuple(replace(group, sites=()) for group in noise.network.groups)
        noise.network.group = {group.name: group for group in noise.network.groups}.__getitem__

    def evaluate(config):
        told = noise(config)
        return replace(told, passed=False) if config.tf32 and loss else told

    search = Search(Space(noise.network, INT8, FP32, (Precision.TF32,)), impacts=noise.impacts())
    result = finish(search, evaluate)
    tried = [one for one in search.evaluations if one.rungs]
    assert result.met and result.config.tf32 is had and len(tried) == products
    assert {one.precision for one in result.config.groups.values()} == {FP32}, "it is a setting of the whole engine"
    assert not had or set(result.best.rungs.values()) == {Precision.TF32} and "TF32" in result.said
    with pytest.raises(InputError, match="TF32 is no rung"):
        Space(noise.network, replace(INT8, tf32=True), FP32, (Precision.TF32,))


@pytest.mark.parametrize("seed", range(4))
def test_what_was_raised_ends_on_the_lowest_rungs_that_do(seed):
    noise = Noise(9, seed, together=0, operators=["Gemm"] * 8 + ["Softmax"])
    left = noise.alone.copy()

    def evaluate(config):
        for number, group in enumerate(noise.network.groups):
            chosen = config.groups.get(group.name)
            noise.alone[number] = left[number] * (REST[chosen.precision] if chosen else 1)
        told = noise(PrecisionConfig(FP32, FP32).with_moves({}))
        noise.alone[:] = left
        return told

    noise.network.group("g8").refusals[Precision.FP8] = "no FP8 Softmax"
    straight = finish(Search(Space(noise.network, INT8), impacts=noise.impacts()), evaluate)
    search = Search(Space(noise.network, INT8, FP32, (Precision.FP8, Precision.FP16)), impacts=noise.impacts())
    result = finish(search, evaluate)
    assert result.met and set(result.best.raised) == set(straight.best.raised) and result.best.rungs
    given = {name: one.precision for name, one in result.config.groups.items()}
    assert given == {name: result.best.rungs.get(name, FP32) for name in result.best.raised}
    assert "g8" not in given or given["g8"] is not Precision.FP8
    below = {Precision.FP16: Precision.FP8, FP32: Precision.FP16}
    lower = [{**given, name: below[one]} for name, one in given.items()
             if one in below and below[one] in search.space.rungs_of(name)]
    others = [INT8.with_moves({name: Choice(one) for name, one in some.items()}) for some in lower]
    assert lower and not any(evaluate(one).passed for one in others), "none of them could be lower"
    assert "groups raised, " in result.said and evaluate(result.config).passed

    def latency(config):
        return sum({Precision.FP8: 1, Precision.FP16: 2, FP32: 4}[one.precision] for one in config.groups.values())

    tight = Search(search.space, impacts=noise.impacts(), latency=latency, max_latency=latency(result.config))
    found = finish(tight, evaluate)
    assert latency(result.config) < latency(straight.config)
    assert found.met and found.best.latency == latency(found.config) <= latency(result.config)
    assert f"about {milliseconds(found.best.latency)}" in found.said


def test_each_group_starts_on_the_lowest_rung_that_it_can_have():
    network = toy(3, ["Gemm", "Gemm", "Softmax"])
    network.group("g1").refusals[Precision.INT4] = "its 10 inputs do not divide"
    network.group("g2").refusals[Precision.INT4] = "no INT4 Softmax"
    start = lowest(network, (Precision.INT4, Precision.INT8), Precision.FP16)
    assert list(start.assignment(network).values()) == [Precision.INT4, Precision.INT8, Precision.FP16]


def test_nothing_to_do():
    noise = additive(WEIGHTS, 100)
    search = noise.search()
    result = finish(search, noise)
    assert result.outcome is Outcome.NOTHING_TO_DO and result.met and result.evaluations == 1
    assert result.config == INT8 and "already" in result.said and "0.14 of what" in result.said


def test_a_tolerance_that_nothing_meets_is_said_at_once_with_the_figure():
    noise = additive(WEIGHTS, -1)
    result = finish(noise.search(higher=Precision.FP16), noise)
    assert result.outcome is Outcome.UNREACHABLE and not result.met and result.evaluations == 2
    assert "all 8 groups in FP16" in result.said and "-0.00 of what" in result.said


def test_a_network_with_nothing_to_lower_is_refused():
    for network, start in ((toy(0), INT8), (toy(3), PrecisionConfig.uniform(FP32))):
        with pytest.raises(InputError, match="no layer to raise to FP32"):
            Space(network, start)


def test_unknown_methods_and_empty_budgets_are_refused():
    noise = Noise(4, 0)
    with pytest.raises(InputError, match="no search method 'magic'"):
        noise.search("magic")
    with pytest.raises(InputError, match="latency"):
        noise.search(max_latency=1.0)
    start = with_kept(noise.network, INT8, ["g0", "g1"])
    with pytest.raises(InputError, match="budget of 1"):
        noise.search(start=start, max_raised=1)


def test_only_what_lies_below_the_higher_precision_is_a_candidate():
    network = toy(4, ("Gemm", "Softmax", "Gemm", "Gemm"))
    start = INT8.with_groups([network.group("g2")], Precision.FP16).with_groups([network.group("g3")], FP32)
    assert Space(network, start).candidates == ("g0", "g1", "g2")
    assert Space(network, start, Precision.FP16).candidates == ("g0",)
    config = Space(network, start, Precision.FP16).config(["g0"], reason="search:auto")
    assert config.groups["g0"].precision is Precision.FP16 and config.groups["g3"].precision is FP32


def test_kept_layers_are_raised_for_good_and_say_so():
    noise = additive(WEIGHTS, 1)
    start = with_kept(noise.network, INT8, ["g0", "g7"])
    result = finish(noise.search(start=start, max_raised=4), noise)
    assert set(result.config.groups) == {"g2", "g5"} and result.config.held == {"g0", "g7"} and result.met
    with refused("no layer to raise", cause="kept as they are"):
        Space(noise.network, with_kept(noise.network, INT8, [f"g{number}" for number in range(8)]))


def with_ranges(weights, allowed, better):
    """`additive`, where a range of ``better`` halves what a tensor's group adds."""
    noise = additive(weights, allowed)
    ranged = []

    def judged(config):
        noise.counts[config.key()] = noise.counts.get(config.key(), 0) + 1
        ranged.append(dict(config.ranges))
        halved = {f"g{tensor[1:]}" for tensor, choice in config.ranges.items() if choice.amax == better}
        energy = sum(w / (2 if name in halved else 1) for w, name in zip(weights, noise.names, strict=True)
                     if name not in config.groups)
        return Judgement(energy <= allowed, allowed - energy, loss=energy)

    return noise, judged


def test_other_ranges_come_before_higher_precisions():
    trying = {f"t{number}": {"entropy": 0.5, "mse": 0.7} for number in range(8)}
    noise, judged = with_ranges(WEIGHTS, 7, better=0.7)
    search = noise.search(ranges=trying)
    result = finish(search, judged)
    assert result.met and not result.config.groups and set(noise.counts.values()) == {1}
    assert all(choice == RangeChoice(0.7, "mse") for choice in result.config.ranges.values())
    noise, judged = with_ranges(WEIGHTS, 3, better=0.7)
    search = noise.search(ranges=trying)
    result = finish(search, judged)
    assert result.best.raised == ("g2",) and "t5" in result.config.ranges
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(search.evaluations), type=list[Evaluation])
    assert noise.search(ranges=trying, known=stored).ask() is None


def test_ranges_that_do_worse_are_not_taken():
    noise, judged = with_ranges(WEIGHTS, 3, better=0.123)
    result = finish(noise.search(ranges={"t2": {"mse": 0.7}, "t5": {"mse": 0.7}}), judged)
    assert result.met and not result.config.ranges


def test_a_budget_of_layers_gives_the_best_reachable_and_says_that_it_falls_short():
    noise = additive([1, 2, 8, 0, 3, 4, 0, 2], 2)
    for budget in range(4):
        result = finish(noise.search(max_raised=budget), noise)
        assert result.outcome is Outcome.SHORT and not result.met and "short of the tolerance" in result.said
        assert set(result.config.groups) == set(["g2", "g5", "g4"][:budget])
    enough = finish(noise.search(max_raised=5), noise)
    assert enough.met and enough.outcome is Outcome.MET and len(enough.config.groups) == 5
    unreachable = additive([1, 2, 8], -1)
    result = finish(unreachable.search(max_raised=1), unreachable)
    assert result.outcome is Outcome.SHORT and set(result.config.groups) == {"g2"} and "even with all 3:" in result.said


@pytest.mark.parametrize("allowed", [20, 2])
def test_a_budget_that_nothing_keeps_is_said(allowed):
    noise = additive([1, 2, 8], allowed)
    result = finish(noise.search(latency=lambda config: 5.0, max_latency=4.0), noise)
    assert result.outcome is Outcome.SHORT and not result.met
    assert result.said.startswith("nothing stays within the budget") and "5.00 ms" in result.said


def test_a_group_that_the_start_raises_in_part_counts_once():
    noise = additive([1, 8, 1], 2)
    start = PrecisionConfig(other=Precision.FP16).with_groups([noise.network.group("g1")], Precision.FP16)

    def judged(config):
        left = noise.energy([name for name, choice in config.groups.items() if choice.precision is FP32])
        return Judgement(left <= 2, 2 - left, loss=left)

    result = finish(noise.search(start=start, max_raised=1), judged)
    assert result.met and result.best.raised == ("g1",)


def test_a_budget_of_latency():
    noise = additive([1, 2, 8, 0, 3, 4, 0, 2], 6)

    def latency(config):
        return 10 + sum(100 if name == "g2" else 1 for name in config.groups)

    assert "g2" in finish(noise.search(), noise).config.groups
    result = finish(noise.search(latency=latency, max_latency=12.5), noise)
    assert set(result.config.groups) == {"g4", "g5"} and result.outcome is Outcome.SHORT
    assert result.best.latency == 12
    roomy = finish(noise.search(latency=latency, max_latency=112.5), noise)
    assert roomy.met and roomy.best.latency <= 112.5


def test_a_budget_where_the_start_is_not_finite():
    noise = Noise(8, 1)
    finite = noise.energy
    noise.energy = lambda raised: math.inf if {"g3", "g6"} - set(raised) else finite(raised)
    noise.bound = 1e-9
    search = noise.search(max_raised=3)
    result = finish(search, noise)
    assert {"g3", "g6"} < set(result.config.groups) and math.isfinite(result.best.error)
    assert len(search.evaluations) < 3 * len(noise.names)


@pytest.mark.parametrize("method", SEARCH_METHODS)
def test_a_margin_goes_on_from_what_is_known(method):
    noise = Noise(8, 4)
    search = noise.search(method)
    before = finish(search, noise)
    margin = before.best.score + 2
    search.tighten((margin,))
    after = finish(search, noise)
    assert after.met and after.best.score >= margin and set(noise.counts.values()) == {1}
    fresh = Noise(8, 4)
    assert finish(fresh.search(method, margins=(margin,)), fresh).config == after.config
    search.tighten((1e9,))
    assert finish(search, noise).outcome in (Outcome.UNREACHABLE, Outcome.MET)


def test_a_margin_beyond_reach_says_so():
    noise = additive(WEIGHTS, 2)
    noise_energy = noise.energy
    noise.energy = lambda raised: noise_energy(raised) + 0.5
    search = noise.search()
    assert finish(search, noise).met
    search.tighten((50.0,))
    result = finish(search, noise)
    assert result.outcome is Outcome.UNREACHABLE and "margin of 50" in result.said and not result.met


def test_every_raised_group_says_why():
    noise = additive(WEIGHTS, 2)
    result = finish(noise.search(), noise)
    assert list(result.why) == ["g2", "g5"]
    assert "without it ~5.00 of what is allowed (fails), with it ~1.00" in result.why["g2"]
    assert "its share is 57% of" in result.why["g2"]
    unknown = noise.search("linear", impacts={}, ranking=Ranking(tuple(noise.names)))
    while not unknown.result.best or not unknown.result.best.raised:
        unknown.tell(noise(unknown.ask()))
    assert unknown.result.why["g7"] == "raised by linear" and "not over" in unknown.result.said


@pytest.mark.parametrize("method", SEARCH_METHODS)
@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_evaluated_twice_with_everything_at_once(method, seed):
    operators = ("Gemm", "LayerNorm", "Gemm", "Gemm", "Softmax", "Gemm", "Gemm")
    noise = Noise(7, seed, operators=operators)
    trying = {f"t{number}": {"entropy": 0.5, "mse": 0.7} for number in range(7)}
    options = {"ranges": trying, "max_raised": 3}
    search = noise.search(method, **options)
    for told in range(6):
        if search.ask() is not None:
            search.tell(noise(search.ask()))
        if told == 3:
            search.tighten((0.5,))
    resumed = noise.search(method, known=search.evaluations, margins=(0.5,), **options)
    result = finish(resumed, noise)
    resumed.tighten((1.0,))
    result = finish(resumed, noise)
    assert set(noise.counts.values()) == {1} and len(result.config.groups) <= 3
    assert result.evaluations == len(noise.counts) and result.outcome is not Outcome.SEARCHING
