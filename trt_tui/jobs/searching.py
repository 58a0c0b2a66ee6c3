"""The search as a job: the search says what to evaluate, the bench measures it, and engines confirm the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from trt_tui.core.engines.preview import Preview
from trt_tui.core.measure.comparison import Caveat, ExportedFound, ExportedRun, Verdict
from trt_tui.core.measure.judgement import HeldOut, Judgement, judge
from trt_tui.core.measure.shares import Impact
from trt_tui.core.measure.target import Target
from trt_tui.core.measure.target_result import Outcome, TargetResult, judge_accuracy
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.smooth import Smooth
from trt_tui.core.network.layers import Group
from trt_tui.core.network.network import Network
from trt_tui.core.search import DOWNWARDS, Evaluation, Search, Space, upcoming
from trt_tui.core.search.front import front
from trt_tui.core.search.ranges import LEAST_GAIN
from trt_tui.core.search.space import made_beside
from trt_tui.errors import CancelledError, InputError, TrtTuiError
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.searched_engines import Engines, Workshop, timed_as
from trt_tui.jobs.steps import Steps
from trt_tui.jobs.triage import Looks, Triage, gap_said, unexplained
from trt_tui.words import first_few, milliseconds

MAX_ROUNDS = 4
"""How often a search goes on because an exported file misses the target."""

NEED_NO_RANKING = ("start", "all raised")
"""The steps of a search that show whether there is anything to find."""


class Bench(Looks, Workshop, Protocol):
    """How a search measures.

    Attributes:
        builds: Whether engines can run here.
        checks: Whether the user has given a command that judges configs.
    """

    builds: bool
    checks: bool

    def verdict(self, config: PrecisionConfig) -> Steps[Verdict]:
        """Returns a config's whole verdict at the judged outputs."""

    def judge_ahead(self, likely: Callable[[int, float], Sequence[PrecisionConfig]]) -> Steps[None]:
        """Has other processes, where there are any, judge at once what is asked for and what may be asked for next.

        Args:
            likely: So many configs at most, what is asked for first, found in so many seconds.
        """

    def times(self, space: Space) -> Mapping[str, float]:
        """What each candidate takes in the engine with all of them raised, in ms; empty where none is known and timed.
        """

    def macs(self, space: Space) -> Mapping[str, float]:
        """The multiply-accumulates of each candidate; 0 where they are unknown."""

    def impacts(self, config: PrecisionConfig, names: Sequence[str]) -> Steps[Mapping[str, Impact]]:
        """Returns what some groups of a config do to the judged outputs, by name."""

    def free(self, config: PrecisionConfig, kinds: str) -> Mapping[str, PrecisionConfig]:
        """A config with moves that cost nothing at run time, by what they are.

        Args:
            kinds: "form": operators and scaled channels; "bias": corrected biases.
        """

    def ranges(self, groups: Sequence[Group], config: PrecisionConfig) -> Mapping[str, Mapping[str, float]]:
        """Other ranges (amax) for the codes that some groups read in a config than the calibrated ones, by tensor and
        method."""

    def executed(self, config: PrecisionConfig) -> Steps[ExportedRun]:
        """Returns the execution of a config's exported file on the samples of the search."""

    def preview(self, config: PrecisionConfig) -> Steps[Preview | None]:
        """Returns what the builder would make of a config and what its choices do; None if that is not known here."""

    def check(self, config: PrecisionConfig) -> Steps[int]:
        """Returns the exit code of the user's command for a config."""

    def report(self, work: SearchJob, heard: bool = False) -> None:
        """Called before each evaluation, and before each build with ``heard``: then the progress must be sent."""


class SearchJob:
    """One search, from the first evaluation to the confirmation.

    Args:
        targets: The tolerances, with their bases.

    Raises:
        InputError: an option makes no sense for this network; see `trt_tui.core.search.Search` and `Space`.
    """

    def __init__(self, network: Network, request: rq.FindConfig, targets: Sequence[Target], bench: Bench) -> None:
        if not targets and not bench.checks:
            raise InputError("a search needs a tolerance", "", "Give --tolerance, or --check.")
        self.network, self.request, self.targets, self.bench = network, request, tuple(targets), bench
        self.space = Space(network, request.config, request.higher, request.rungs, fixed=frozenset(request.fixed))
        self.impacts: Mapping[str, Impact] = {}
        self.costs = bench.macs(self.space)
        self.engines = Engines(bench, lambda: self.targets, lambda: bench.report(self, heard=True))
        self.latency: Callable[[PrecisionConfig], float] | None = None
        self._previews = request.preview
        self._triages = True
        self._with: tuple[Space, Search] | None = None
        self.confirmed: bool | None = None
        self.exported: ExportedFound | None = None
        self._rounds = 0
        self.remarks: list[str] = []
        # An impossible search is refused before anything is measured for it.
        timed = request.max_latency is not None and bench.builds
        if timed and request.max_builds < 2:
            raise InputError("a latency budget needs engines", "latencies are estimated from two of them, at least",
                             "Raise --max-builds, or use --max-fp32.")
        self.search = self._make(latency=(lambda config: 0.0) if timed else None)

    def _make(self, known: Sequence[Evaluation] = (), latency: Callable[[PrecisionConfig], float] | None = None,
              ranges: Mapping[str, Mapping[str, float]] | None = None, margins: Sequence[float] = ()) -> Search:
        request = self.request
        return Search(self.space, method=request.method, costs=self.costs, impacts=self.impacts, ranges=ranges,
                      max_raised=request.max_raised, max_latency=request.max_latency, latency=latency, known=known,
                      margins=margins)

    def steps(self) -> Steps[None]:
        """Does the work; `progress` and `ended` tell at any time how far it is."""
        if self.request.max_latency is not None:
            yield from self._estimate_latency()
        if self.request.method == "lower":
            yield from self._order()
        going_on = True
        while going_on:
            yield from self._evaluate(NEED_NO_RANKING)
            if self.search.asked is not None and not self.impacts and self._needs_ranking:
                if self.request.free:
                    yield from self._improve_free()
                if self.search.asked is not None:
                    yield from self._rank()
            yield from self._evaluate()
            going_on = (yield from self._withdrawn()) or (yield from self._missed_as_exported()) or (
                yield from self._refuted())

    @property
    def _needs_ranking(self) -> bool:
        """Whether what each group does to the outputs is of use to this search."""
        request = self.request
        return request.method not in DOWNWARDS or request.free or request.ranges

    def _evaluate(self, only: Sequence[str] = ()) -> Steps[None]:
        """Evaluates what the search asks for, as long as one of some steps asks; all of them where none is named."""
        while (config := self.search.ask()) is not None and (asked := self.search.asked) is not None and (
                not only or asked.step in only):
            self.bench.report(self)
            yield from self.bench.judge_ahead(partial(upcoming, self.search, only=only))
            verdict = yield from self.bench.verdict(config)
            judgement = self._judged(verdict)
            if self.bench.checks:
                judgement = _checked(judgement, (yield from self.bench.check(config)), bool(self.targets))
            self.search.tell(judgement)

    def _judged(self, verdict: Verdict) -> Judgement:
        if self.targets:
            return judge(self.targets, verdict)
        broken = verdict.bad > 0 or any(caveat.fails for caveat in verdict.caveats)
        energy = verdict.energy if verdict.energy is not None and not broken else math.inf
        score = math.inf if energy == 0 else -10 * math.log10(energy) if math.isfinite(energy) else -math.inf
        return Judgement(not broken, score, verdict, energy)

    def _improve_free(self) -> Steps[None]:
        """Tries what costs nothing at run time; biases are corrected for what was kept of the rest."""
        for kinds in ("form", "bias"):
            start = self.space.config((), free=self.search.board.free)
            found = self.bench.free(start, kinds)
            if not found or self.search.asked is None:
                continue
            more = {name: made_beside(self.network, start, config) for name, config in found.items()}
            self.space = replace(self.space, free={**self.space.free, **more})
            self.search = self._make(self.search.evaluations, self.latency, None, self.search.margins)
            yield from self._evaluate(("free",))

    def _rank(self) -> Steps[None]:
        """Measures what each group does to the judged outputs, then other ranges for those that matter most."""
        start = self.space.config((), free=self.search.board.free)
        self.impacts = yield from self.bench.impacts(start, self.space.candidates)
        known, margins = self.search.evaluations, self.search.margins
        self.search = self._make(known, self.latency, None, margins)
        if not self.request.ranges:
            return
        shares = self.search.ranking.shares
        groups = [self.network.group(name) for name in self.search.ranking.order
                  if not shares or shares.get(name, 0.0) >= LEAST_GAIN]
        scaled = {tensor for move in start.of(Smooth).values() for tensor in move.ranges}
        groups = [group for group in groups if (sites := group.ranged(start.precision_of(group)))
                  and scaled.isdisjoint(site.tensor for site in sites)]
        if groups:
            self.search = self._make(known, self.latency, self.bench.ranges(groups, start), margins)

    # -- the exported file ----------------------------------------------------------------------------------------

    def _missed_as_exported(self) -> Steps[bool]:
        """Executes the exported file of what was found; True if it misses the target, so that the search goes on with
        a margin by which the simulation was better. After `MAX_ROUNDS` the result is not met as exported."""
        found, best = self.search.result, self.search.best
        simulated = best.judgement.verdict if best is not None else None
        self.exported = None
        if not self.targets or not found.met or best is None or simulated is None:
            return False
        run = yield from self.bench.executed(found.config)
        accuracy = run.accuracy
        told = judge_accuracy(self.targets, accuracy) if accuracy is not None else None
        if accuracy is None or told is None:
            why = run.missing or "it has no value for this target, which is inside the network"
            self.exported = ExportedFound(run.executor, None, why)
            return False
        missed = [target for target in self.targets if not target.reached(accuracy)]
        figures = ", ".join(target.measured(accuracy) for target in missed or self.targets)
        expected = ", ".join(target.measured(simulated) for target in missed or self.targets)
        self.exported = ExportedFound(run.executor, told.outcome.passes, figures, expected)
        if told.outcome.passes or self._rounds >= MAX_ROUNDS:
            return False
        margins = list(self.search.margins or [-math.inf] * len(self.targets))
        for place, target in enumerate(self.targets):
            gap = _gap(target, simulated, accuracy)
            if target in missed and not math.isfinite(gap):
                return False
            if target in missed:
                margins[place] = max(gap, margins[place])
        self._rounds += 1
        said = " and ".join(f"{margin:.2g}" for margin in margins if math.isfinite(margin))
        self.remarks.append(f"the exported network with {len(best.raised)} raised yields {figures} in {run.executor} "
                            f"where {expected} was simulated; went on with a margin of {said}")
        self.search.tighten(margins)
        return True

    # -- engines ------------------------------------------------------------------------------------------------

    def _estimate_latency(self) -> Steps[None]:
        self.latency = yield from self.engines.estimate(self.space, self.remarks)
        self.search = self._make(self.search.evaluations, self.latency)

    def _order(self) -> Steps[None]:
        """What saves most time is lowered first: by the layers' times in the engine of all raised, where one can be
        built and one is left to confirm the result."""
        times: Mapping[str, float] = {}
        every = self.space.config(self.space.candidates)
        known = self.engines.has(every)  # for a latency budget
        if self.bench.builds and (known or self.engines.builds + 2 <= self.request.max_builds):
            try:
                yield from self.engines.of(every)
                times = self.bench.times(self.space)
            except CancelledError:
                raise
            except TrtTuiError as error:
                self.remarks.append(f"the engine of all raised could not be built: {error.title}")
        self.costs = times or self.bench.macs(self.space)
        by = ("the time that each takes in the engine of all raised" if times else "multiply-accumulates, since no "
              "engine's layers were timed" if any(self.costs.values()) else "the network alone: its sizes are open")
        self.remarks.append(f"lowered in the order of {by}")
        self.search = self._make(self.search.evaluations, self.latency)

    def _withdrawn(self) -> Steps[bool]:
        """Takes raises back that change nothing in the engine, as its builder says without a GPU; True if there were
        any, so that the search goes on without them. Where nothing else meets the tolerance, they stand and it is said.
        """
        found = self.search.result
        if self._with is not None and not found.met:
            self.space, self.search = self._with
            self._with, self._previews = None, False
            self.remarks[-1] += "; nothing else meets the tolerance, so kept"
            return False
        if not self._previews or not found.met or found.best is None or not found.best.raised:
            return False
        preview = yield from self.bench.preview(found.config)
        idle = [name for name in found.best.raised if preview is not None and name in (preview.no_effect or ())]
        if preview is None or not idle:
            return False
        self.remarks.append(f"{first_few(idle)} in {self.request.higher.label}: no effect on the engine (preview "
                            f"{preview.name})")
        before = (self.space, self.search)
        try:
            self.space = replace(self.space, fixed=self.space.fixed | frozenset(idle))
        except InputError:  # there is nothing else to raise
            self._previews = False
            return False
        self._with = self._with or before
        self.remarks[-1] += ": searched without"
        known = [one for one in self.search.evaluations if not set(idle).intersection(one.raised)]
        self.search = self._make(known, self.latency, self.search.trying, self.search.margins)
        return True

    def _refuted(self) -> Steps[bool]:
        """Builds what was found; True if the engine misses what was simulated or estimated, so that the search goes on.

        What falls short of the tolerance is built where there is a latency to keep to, and the search goes on from
        there with better estimates until it comes to the same again. What was found stands where its engine fails.
        """
        found, budget = self.search.result, self.request.max_latency
        best = found.best
        if best is None:
            return False
        timed = budget is not None and best.latency is not None and best.latency <= budget
        if not self.bench.builds or not (self.targets and found.met or timed):
            return False
        known = timed and timed_as(found.config) in self.engines.times
        if not self.engines.has(found.config) and self.engines.builds >= self.request.max_builds:
            if self.request.max_builds:
                self.remarks.append(f"not confirmed by an engine: {self.engines.builds} builds are used up "
                                    "(--max-builds)")
            return False
        try:
            engine = yield from self.engines.of(found.config)
        except CancelledError:
            raise
        except TrtTuiError as error:
            cause = f" ({error.cause})" if error.cause else ""
            self.remarks.append(f"its engine could not be built: {error.title}{cause}")
            return False
        if not engine.as_asked:
            self.remarks.append(self.engines.unlike_asked(engine))
            return False
        raised = len(best.raised)
        if budget is not None and best.latency is not None and timed and engine.latency_ms is not None:
            latency = engine.latency_ms[0]
            if latency > budget:
                self.remarks.append(f"the engine with {raised} raised takes {milliseconds(latency)} where "
                                    f"{milliseconds(best.latency)} were estimated: more than {milliseconds(budget)}; "
                                    "went on with better estimates")
            if latency > budget or not found.met and not known:
                self.search.tighten(self.search.margins)
                return True
        if not self.targets:
            return False
        if engine.verdict is None or any(target.reached(engine.verdict) is None for target in self.targets):
            self.remarks.append("its engine was built but cannot be judged by this tolerance")
            return False
        told = judge_accuracy(self.targets, engine.verdict)
        assert told is not None, "all that the targets need was measured"
        self.confirmed = told.outcome.passes
        simulated = best.judgement.verdict
        if self.confirmed or not found.met or simulated is None:
            return False
        if unexplained(simulated, engine.verdict):
            return (yield from self._triaged(found.config, simulated, engine.verdict))
        margins, gaps = list(self.search.margins or [-math.inf] * len(self.targets)), []
        for place, target in enumerate(self.targets):
            if not target.reached(engine.verdict):
                gap = _gap(target, simulated, engine.verdict)
                if not math.isfinite(gap):
                    self.remarks.append(f"its engine yields {target.measured(engine.verdict)}, which the simulation "
                                        "does not: no margin helps")
                    return False
                margins[place] = gap
                gaps.append(f"{target.measured(engine.verdict)} where {target.measured(simulated)} was simulated; went "
                            f"on with a margin of {gap:.2g}")
        if not gaps:  # it fails whatever its values are, and no margin helps
            self.remarks.append(f"its engine: {told.text}")
            return False
        self.remarks.append(f"the engine with {raised} raised: {'; '.join(gaps)}")
        self.confirmed = None
        self.search.tighten(margins)
        return True

    def _triaged(self, config: PrecisionConfig, simulated: Verdict, engine: Verdict) -> Steps[bool]:
        """Looks for where an engine does what rounding does not explain; True if fusion barriers mend it, so that the
        search goes on with them. Such a gap is no margin."""
        said = f"its engine: {gap_said(simulated, engine)}"
        if not self._triages:
            self.remarks.append(said)
            return False
        self._triages = False
        triage = Triage(self.network, config, simulated, self.bench, self.engines.of,
                        lambda: self.request.max_builds - self.engines.builds)
        triaged = yield from triage.run()
        self.remarks.append("; ".join((said, *triaged.said)))
        if not triaged.barriers:
            return False
        known, trying, margins = self.search.evaluations, self.search.trying, self.search.margins
        self.space = replace(self.space, start=self.space.start.with_moves(triaged.barriers))
        self.search = self._make(known, self.latency, trying, margins)
        self.confirmed = None
        return True

    # -- how far it is ------------------------------------------------------------------------------------------

    def progress(self, job: int) -> ev.SearchProgress:
        """The event that reports how far it is."""
        search, best = self.search, self.search.best
        asked = search.asked
        config = search.config_of(best) if best is not None else self.space.start
        return ev.SearchProgress(
            job, len(search.evaluations), tuple(asked.raised) if asked is not None else (),
            asked.about if asked is not None else "", asked.step if asked is not None else "",
            search.evaluations[-1] if search.evaluations else None, best, config,
            best is not None and best.judged(search.margins).passed and search.fits(best))

    def ended(self, job: int, stopped: bool = False, held_out: HeldOut | None = None,
              settled: Verdict | None = None) -> ev.SearchEnded:
        """The event that reports what was found so far.

        Args:
            settled: The verdict of the result with the interval of the metric; None without a metric.
        """
        tried = [self.search.config_of(one) for one in self.search.evaluations]
        result = self.search.result
        told: TargetResult | None = None
        best = result.best
        if best is not None and best.judgement.verdict is not None:
            # A command that says no, or a missed target, is not changed by the interval of the metric.
            exact = settled if settled is not None and best.passed else best.judgement.verdict
            verdict = self._with_caveats(exact)
            result = replace(result, best=replace(best, judgement=replace(best.judgement, verdict=verdict)))
            told = best.judgement.target_result if exact is verdict and exact is not settled else judge_accuracy(
                self.targets, verdict)
        return ev.SearchEnded(job, result, self.search.how, tuple(self.search.evaluations),
                              len(self.space.candidates), bool(self.impacts), self.confirmed, tuple(self.remarks),
                              stopped, held_out, self.engines.yielded(tried), self._front(), told, self.exported)

    def _with_caveats(self, verdict: Verdict) -> Verdict:
        """Returns an accuracy with the reason why the exported file was not executed, or why it misses the target."""
        exported = self.exported
        if exported is None or exported.met:
            return verdict
        kind = "not executed" if exported.met is None else "not met as exported"
        caveat = Caveat(kind, exported.text, fails=exported.met is False)
        return replace(verdict, caveats=(*verdict.caveats, caveat))

    def _front(self) -> dict[int, PrecisionConfig]:
        """The configs of the evaluations that no other beats, by place; without those that are not finite."""
        finite = [(place, one) for place, one in enumerate(self.search.evaluations) if one.score > -math.inf]
        costs = [one.latency if one.latency is not None else sum(self.costs.get(name, 0.0) for name in one.raised)
                 for _, one in finite]
        return {finite[place][0]: self.search.config_of(finite[place][1])
                for place in front([(cost, one.score) for cost, (_, one) in zip(costs, finite, strict=True)])}


def _checked(judgement: Judgement, code: int, bounded: bool) -> Judgement:
    """A judgement combined with that of the user's command: exit code 0 passes."""
    said = "the check passes" if code == 0 else f"the check fails (exit code {code})"
    result = judgement.target_result
    if code != 0:
        result = TargetResult(Outcome.FAIL, (said, *result.reasons))
    return replace(judgement, passed=judgement.passed and code == 0, result=result,
                   figure=f"{judgement.figure}, {said}" if bounded else said)


def _gap(target: Target, simulated: Verdict, engine: Verdict) -> float:
    """How far a target's score of what was simulated is above the engine's, at the outputs that the engine has (others
    may be judged inside); NaN where one of them has none."""
    outputs = {name: one for name, one in simulated.outputs.items() if name in engine.outputs}
    before, after = target.score(replace(simulated, outputs=outputs)), target.score(engine)
    return math.nan if before is None or after is None else before - after
