"""The search as an ask/tell object: it names the next config to evaluate and is told the evaluation.

One `Search` runs one strategy, then the `revert` pass. It remembers all evaluations, so no config is evaluated twice:
what a strategy asks for again is answered from memory. Strategies decide by these answers alone. A search is therefore
resumed from a list of evaluations by running the strategy again, until it asks for something new. A stricter criterion
takes effect in the same way.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeVar

from trt_tui.core.measure.comparison import GroupErrors, Share
from trt_tui.core.measure.judgement import Judgement
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.range_choice import RangeChoice
from trt_tui.core.precision import Precision, rank
from trt_tui.core.search import auto, bisect, downwards, greedy, linear, worst_first
from trt_tui.core.search.board import Board, LoweredLayer
from trt_tui.core.search.evaluation import Course, Evaluation, Trial, TrialKey
from trt_tui.core.search.free import improve_free
from trt_tui.core.search.ranges import improve_ranges
from trt_tui.core.search.ranking import Ranking, best_ranking
from trt_tui.core.search.revert import revert
from trt_tui.core.search.rungs import settle
from trt_tui.core.search.space import Space
from trt_tui.errors import InputError
from trt_tui.words import milliseconds, percent, plural, simulated

T = TypeVar("T")

SEARCH_METHODS: dict[str, Callable[[Board], Course]] = {
    "auto": auto.auto,
    "greedy": greedy.greedy,
    "bisect": bisect.forward,
    "bisect-reverse": bisect.reverse,
    "linear": linear.forward,
    "linear-reverse": linear.reverse,
    "worst-first": worst_first.worst_first,
    "scoped": downwards.scoped,
    "lower": downwards.lower,
}
"""The strategies, by the names that users give."""

DOWNWARDS = ("scoped", "lower")
"""Those that begin with everything raised; see `trt_tui.core.search.downwards`."""


class Outcome(str, Enum):
    """How a search ended; or that it has not ended."""

    SEARCHING = "searching"
    MET = "met"
    NOTHING_TO_DO = "nothing to do"
    UNREACHABLE = "unreachable"
    SHORT = "short"


@dataclass(frozen=True)
class Result:
    """The best result so far; final unless ``outcome`` is `Outcome.SEARCHING`.

    Attributes:
        config: The start with the raised groups and replaced ranges, whose reason is ``search:<method>``.
        best: Its evaluation; None while nothing is evaluated.
        met: Whether it meets the tolerance with the margin, within the budgets.
        why: Why each group is raised, by its name, in network order.
        said: The outcome in one line.
        rows: What a strategy of `trt_tui.core.search.downwards` has tried, in that order.
    """

    config: PrecisionConfig
    best: Evaluation | None
    outcome: Outcome
    met: bool
    why: Mapping[str, str]
    evaluations: int
    said: str
    rows: tuple[LoweredLayer, ...] = ()


class Search:
    """See the module's docstring.

    Args:
        method: A name of `SEARCH_METHODS`.
        impacts: Of the groups in the start config, by name; see `trt_tui.core.measure.analysis.Analysis.impacts`.
        errors: Errors at the groups; the ranking is made from these if there are no impacts.
        ranking: The ranking to use, in place of the best that impacts and errors allow.
        ranges: Ranges to try before groups are raised: amax by tensor and method.
        max_raised: Budget: at most this many groups above their defaults, including those of the start.
        max_latency: Budget in the unit of ``latency``.
        latency: Estimates a config's latency.
        margins: For each tolerance the lowest score that passes; the criterion itself must be met too.
        known: Earlier evaluations in the same space, under the same criterion.
        take_back: Run the `revert` pass.
        costs: See `Board`.

    Raises:
        InputError: the method is unknown, or a budget makes no sense.
    """

    def __init__(
        self,
        space: Space,
        *,
        method: str = "auto",
        impacts: Mapping[str, Share] | None = None,
        errors: Mapping[str, GroupErrors] | None = None,
        ranking: Ranking | None = None,
        ranges: Mapping[str, Mapping[str, float]] | None = None,
        max_raised: int | None = None,
        max_latency: float | None = None,
        latency: Callable[[PrecisionConfig], float] | None = None,
        margins: Sequence[float] = (),
        known: Sequence[Evaluation] = (),
        take_back: bool = True,
        costs: Mapping[str, float] | None = None,
    ) -> None:
        if method not in SEARCH_METHODS:
            raise InputError(f"there is no search method {method!r}", "", f"Choose from {', '.join(SEARCH_METHODS)}.")
        if max_latency is not None and latency is None:
            raise InputError("a latency budget needs a latency", "none was measured or can be estimated here",
                             "Use --max-fp32, or a backend that times what it builds.")
        if max_raised is not None and max_raised < len(space.already):
            raise InputError(f"a budget of {max_raised} layers is used up before the search",
                             f"the start raises {len(space.already)} already", "Raise --max-fp32, or take layers back.")
        self.space = space
        self.method = method
        self.margins = tuple(margins)
        self.latency = latency
        self.max_raised = max_raised
        self.max_latency = max_latency
        self.take_back = take_back
        self.costs = dict(costs or {})
        self.impacts = dict(impacts or {})
        self.trying = {tensor: dict(methods) for tensor, methods in (ranges or {}).items()}
        self.ranking = ranking or best_ranking(space.candidates, self.impacts, errors)
        self.evaluations: list[Evaluation] = []
        self._memory: dict[TrialKey, Evaluation] = {}
        self._latencies: dict[tuple[frozenset[str], tuple[tuple[str, Precision], ...]], float] = {}
        for one in known:
            self._remember(one)
        self._restart()

    # -- ask and tell -------------------------------------------------------------------------------------------

    def ask(self) -> PrecisionConfig | None:
        """The config to evaluate next, the same until `tell` is called; None when the search is over."""
        return None if self._asked is None else self.config_of(self._asked)

    @property
    def asked(self) -> Trial | None:
        """What `ask` names, as a difference from the start."""
        return self._asked

    def tell(self, judgement: Judgement) -> Evaluation:
        """Takes the judgement of what was asked; returns the evaluation."""
        trial = self._asked
        if trial is None:
            raise ValueError("nothing was asked")
        evaluation = Evaluation(self.space.ordered(trial.raised), judgement, dict(trial.ranges or {}), trial.about,
                                trial.step, rungs=dict(trial.rungs), free=trial.free or ())
        evaluation = self._remember(evaluation)
        self._advance(evaluation)
        return evaluation

    def tighten(self, margins: Sequence[float]) -> None:
        """Goes on with a stricter criterion: each score at least its margin. Nothing is evaluated again, but latencies
        are estimated anew."""
        self.margins = tuple(margins)
        self._latencies.clear()
        known, self.evaluations, self._memory = self.evaluations, [], {}
        for one in known:
            self._remember(one)
        self._restart()

    def copied(self) -> Search:
        """Another that has come to the same."""
        other = copy.copy(self)
        other.evaluations, other._memory = list(self.evaluations), dict(self._memory)
        other._restart()
        return other

    def _remember(self, evaluation: Evaluation) -> Evaluation:
        if evaluation.key not in self._memory:
            if self.latency is not None:
                evaluation = replace(evaluation, latency=self._latency(frozenset(evaluation.raised), evaluation.rungs))
            self._memory[evaluation.key] = evaluation
            self.evaluations.append(evaluation)
        return self._memory[evaluation.key]

    def _restart(self) -> None:
        self.outcome = Outcome.SEARCHING
        self.board = Board(self.space.candidates, self.ranking, self._fits, costs=self.costs)
        self._plan = self._steps()
        self._advance(None)

    def _advance(self, answer: Evaluation | None) -> None:
        """Lets the strategy go on until it asks for a config that is not known."""
        while True:
            try:
                trial = next(self._plan) if answer is None else self._plan.send(answer.judged(self.margins))
            except StopIteration:
                self._asked = None
                return
            ranges = self.board.ranges if trial.ranges is None else trial.ranges
            free = self.board.free if trial.free is None else trial.free
            self._asked = replace(trial, ranges=dict(ranges), free=free)
            answer = self._memory.get(self._asked.key)
            if answer is None:
                return

    # -- the plan -----------------------------------------------------------------------------------------------

    def _steps(self) -> Generator[Trial, Evaluation, None]:
        board, everything = self.board, frozenset(self.space.candidates)
        board.start = yield Trial(frozenset(), step="start")
        down = self.method in DOWNWARDS
        if board.start.passed and not down:  # what is raised beside it only takes longer
            self.outcome = Outcome.NOTHING_TO_DO if self._fits(frozenset()) else Outcome.SHORT
            return
        full = yield Trial(everything, step="all raised", free=())
        if not full.passed and not self.has_budget:
            self.outcome = Outcome.UNREACHABLE
            return
        if self.space.free:
            yield from _labelled(improve_free(board, self.space), "free")
        if self.trying:
            yield from _labelled(improve_ranges(board, self.space, self.trying), "ranges")
        if full.passed:
            found: frozenset[str] = frozenset()
            if not (yield Trial(found, step="ranges")).passed or down:
                found = yield from _labelled(SEARCH_METHODS[self.method](board), self.method)
            if self.take_back and not down:
                found = yield from _labelled(revert(board, found), "revert")
            yield from _labelled(settle(board, self.space, found), "rungs")
        if not self._meets(self.best):
            yield from _labelled(greedy.fill(board), "budget")
        self.outcome = Outcome.MET if self._meets(self.best) else Outcome.SHORT

    @property
    def how(self) -> str:
        """What the method does and why, in words."""
        return auto.choice(self.board) if self.method == "auto" else self.method

    # -- what is known ------------------------------------------------------------------------------------------

    @property
    def has_budget(self) -> bool:
        """Whether the groups raised or the latency are limited."""
        return self.max_raised is not None or self.max_latency is not None

    def fits(self, evaluation: Evaluation) -> bool:
        """Whether it is within the budgets."""
        return self._fits(frozenset(evaluation.raised), evaluation.rungs)

    def _fits(self, raised: frozenset[str], rungs: Mapping[str, Precision] | None = None) -> bool:
        if self.max_raised is not None and len(self.space.already | raised) > self.max_raised:
            return False
        if self.max_latency is None:
            return True
        latency = self._latency(raised, rungs or {})
        return latency is None or latency <= self.max_latency

    def _latency(self, raised: frozenset[str], rungs: Mapping[str, Precision]) -> float | None:
        if self.latency is None:
            return None
        key = raised, tuple(sorted(rungs.items()))
        if key not in self._latencies:
            self._latencies[key] = self.latency(self.config_of(Trial(raised, rungs=dict(rungs))))
        return self._latencies[key]

    def _meets(self, evaluation: Evaluation | None) -> bool:
        return (evaluation is not None and evaluation.judged(self.margins).passed
                and self.fits(evaluation))

    def config_of(self, one: Trial | Evaluation) -> PrecisionConfig:
        """The config of a trial or of an evaluation."""
        return self.space.config(self.space.ordered(one.raised), one.ranges, f"search:{self.method}",
                                 one.rungs, one.free or ())

    @property
    def best(self) -> Evaluation | None:
        """Of those that meet the tolerance within the budgets, the fastest where latencies were measured, then the one
        with the fewest groups, on the lowest rungs, then the highest score.

        If none does: the one within the budgets with the highest score. After a strategy of `DOWNWARDS` it is one with
        the groups that stick.
        """
        settled = self.board.settled
        stuck = [one for one in self.evaluations if frozenset(one.raised) == settled and self.fits(one)]
        return min(stuck or self.evaluations, key=self._badness, default=None)

    def _badness(self, evaluation: Evaluation) -> tuple[float, ...]:
        fits = self.fits(evaluation)
        count, score = len(evaluation.raised), -evaluation.score
        if fits and evaluation.judged(self.margins).passed:
            height = sum(rank(evaluation.rungs.get(name, self.space.higher)) for name in evaluation.raised)
            return 0, evaluation.latency or 0.0, count, height, score
        return (1, score, count) if fits else (2, count, score)

    @property
    def result(self) -> Result:
        """The best so far, at any moment."""
        best, met = self.best, self._meets(self.best)
        if best is not None and best.ranges:
            best = replace(best, ranges=self._in_use(best))
        config = self.config_of(best) if best is not None else self.space.start
        why = {name: self.why(name, best) for name in best.raised} if best is not None else {}
        return Result(config, best, self.outcome, met, why, len(self.evaluations), self._said(best, met),
                      tuple(self.board.rows))

    def _in_use(self, best: Evaluation) -> dict[str, RangeChoice]:
        """The ranges by which a layer reads codes: if all readers of a tensor are raised, its range does nothing."""
        config = self.config_of(best)
        read = {site.tensor for group in self.space.network.groups
                for site in group.ranged(config.precision_of(group))}
        return {tensor: choice for tensor, choice in best.ranges.items() if tensor in read}

    def why(self, name: str, best: Evaluation) -> str:
        """Why a group of the best set is raised: what happens without it, its share, and who raised it."""
        reasons = []
        if without := self._without(name, best):
            low, high = without
            verb = "fails" if not low.judged(self.margins).passed else "passes"
            reasons.append(f"without it {_figure(low)} ({verb}), with it {_figure(high)}")
        share = self.impacts.get(name)
        if share is not None and math.isfinite(share.owns):
            reasons.append(f"its share is {percent(share.owns)} of the error at the start")
        return "; ".join(reasons) or f"raised by {self.method}"

    def _without(self, name: str, best: Evaluation) -> tuple[Evaluation, Evaluation] | None:
        """Two evaluations that differ in this group only, as close to the best set as there are."""
        near = frozenset(best.raised)
        pairs = []
        for high in self.evaluations:
            raised = frozenset(high.raised)
            if name in raised:
                rungs = {one: rung for one, rung in high.rungs.items() if one != name}
                low = self._memory.get(Trial(raised - {name}, high.ranges, rungs=rungs, free=high.free).key)
                if low is not None:
                    pairs.append((len(raised ^ near), low, high))
        return min(pairs, key=lambda pair: pair[0])[1:] if pairs else None

    def _said(self, best: Evaluation | None, met: bool) -> str:
        if best is None:
            return "nothing was evaluated"
        higher, total = self.space.higher.label, len(self.space.candidates)
        count, ranges, figure = len(best.raised), len(best.ranges), _figure(best)
        changed = [f"{count} of {total} groups in {higher}"] if count or not (ranges or best.free) else []
        if best.rungs:
            changed = [f"{count} of {total} groups raised, {best.in_words(self.space.higher)},"]
        changed += best.free
        changed += [f"{plural(ranges, 'other range')}"] if ranges else []
        first = ", ".join(one.rstrip(",") for one in changed[:-1])
        set_so = f"{first} and {changed[-1]}" if first else changed[-1]
        verb = "s" if ranges + len(best.free) == 1 and not count else ""
        margins = [f"{margin:.2g}" for margin in self.margins if math.isfinite(margin)]
        beyond = f" (with a margin of {' and '.join(margins)})" if margins else ""
        if self.outcome is Outcome.NOTHING_TO_DO:
            return f"the start already meets the tolerance: {figure}"
        full = next((one for one in self.evaluations if len(one.raised) == total), None)
        if self.outcome is Outcome.UNREACHABLE and full is not None:
            return f"the tolerance{beyond} cannot be met, even with all {total} groups in {higher}: {_figure(full)}"
        if met:
            said = f"{set_so} meet{verb} the tolerance{beyond}: {figure}"
            if self.max_latency is not None and best.latency is not None:
                said += f", about {milliseconds(best.latency)}"
        elif not self.fits(best):
            said = f"nothing stays within the budget: {set_so}: {figure}"
            if best.latency is not None:
                said += f", about {milliseconds(best.latency)}"
        else:
            said = f"short of the tolerance{beyond} with {set_so}: {figure}"
            if full is not None and not full.judged(self.margins).passed:
                said += f"; even with all {total}: {_figure(full)}"
        if self.outcome is Outcome.SEARCHING:
            said += "; the search is not over"
        return said


def _figure(evaluation: Evaluation) -> str:
    return simulated(evaluation.judgement.figure) or f"score {evaluation.score:+.3g}"


def _labelled(steps: Generator[Trial, Evaluation, T], step: str) -> Generator[Trial, Evaluation, T]:
    """The same trials, each with the name of who asks for it."""
    try:
        trial = next(steps)
        while True:
            trial = steps.send((yield trial if trial.step else replace(trial, step=step)))
    except StopIteration as stop:
        found: T = stop.value
        return found
