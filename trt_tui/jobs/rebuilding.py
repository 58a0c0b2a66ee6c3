"""The same config built several times: what varies from build to build, and the worst of them as the config's engine.

A builder measures kernels and takes the fastest, so that two builds may differ. Each further build here measures all of
them anew: with the timing cache of another build it would come to the same engine. The engine that counts is kept in
the cache with the timings that it came from.
"""

import contextlib
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trt_tui.core.measure.analysis import Analysis
from trt_tui.core.measure.comparison import Caveat, EngineResult, OneBuild
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.runner import EngineBackend
from trt_tui.errors import CancelledError, TrtTuiError
from trt_tui.files.scratch import scratch_folder
from trt_tui.jobs.engine_building import BuilderLine, BuildProgress
from trt_tui.jobs.judging import build_and_judge
from trt_tui.jobs.steps import Wait
from trt_tui.jobs.store import EngineCache
from trt_tui.words import decibels, with_unit
from trt_tui.workspace import Plan


@dataclass(frozen=True)
class Made:
    """What came of one build.

    Attributes:
        engines: Of a further build what the cache is to hold in place of the first one's, by key.
        timings: Of a further build its measured tactics, by the name of their file.
    """

    result: EngineResult
    engines: Mapping[str, bytes] = field(default_factory=dict)
    timings: Mapping[str, bytes] = field(default_factory=dict)


def build_one(
    analysis: Analysis, backend: EngineBackend, config: PrecisionConfig, ranges: Mapping[str, float],
    feeds: Sequence[int], plan: Plan, number: int, *, quick: bool, cache: EngineCache | None, wake: Callable[[], None],
) -> Generator[BuildProgress | BuilderLine | Wait | Made, None, None]:
    """`trt_tui.jobs.judging.build_and_judge`, anew if it is not the first (0); yields a `Made` last."""
    with contextlib.ExitStack() as held:
        folder = held.enter_context(scratch_folder()) if number else None
        anew = plan if folder is None else replace(plan, settings=plan.settings.untimed())
        own = EngineCache(folder / "engines") if folder is not None else cache
        for step in build_and_judge(analysis, backend, config, ranges, feeds, anew, quick=quick, cache=own, wake=wake):
            if isinstance(step, EngineResult):
                yield Made(step, *((own.records(), own.timings()) if folder is not None and own is not None else ()))
            elif number and isinstance(step, BuildProgress):
                yield replace(step, phase=f"build {number + 1} of {plan.builds}: {step.phase}")
            else:
                yield step


def build_several(
    analysis: Analysis, backend: EngineBackend, config: PrecisionConfig, ranges: Mapping[str, float],
    feeds: Sequence[int], plan: Plan, *, quick: bool, cache: EngineCache | None, wake: Callable[[], None],
) -> Generator[BuildProgress | BuilderLine | Wait | EngineResult, None, None]:
    """`build_one` as often as the plan says, once for a quick build or an engine that cannot run here; yields the worst
    of the results last.

    Raises:
        TrtTuiError: as `build_and_judge` of the first build; a later one that fails is said, and counts for nothing.
    """
    several = Several(cache)
    for number in range(1 if quick else max(1, plan.builds)):
        try:
            for step in build_one(analysis, backend, config, ranges, feeds, plan, number, quick=quick, cache=cache,
                                  wake=wake):
                if isinstance(step, Made):
                    several.add(step)
                else:
                    yield step
        except CancelledError:
            raise
        except TrtTuiError as error:
            if not number:
                raise
            yield BuilderLine("warning", failed_words(number, plan.builds, error))
        if not several.runs:
            break
    yield several.result()


def failed_words(number: int, builds: int, error: TrtTuiError) -> str:
    """That a further build failed."""
    return f"build {number + 1} of {builds} failed: {error.title}"


class Several:
    """The worst of the builds of a config, in the order in which they are added.

    Args:
        cache: Takes the engine of the worst, with its timings.
    """

    def __init__(self, cache: EngineCache | None) -> None:
        self._cache = cache
        self._worst: Made | None = None
        self._builds: list[OneBuild] = []

    def add(self, made: Made) -> None:
        """Takes one more."""
        self._builds.append(_one(made.result))
        if self._worst is None or badness(made.result) > badness(self._worst.result):
            self._worst = made

    @property
    def runs(self) -> bool:
        """Whether the engine can run here."""
        return self._worst is not None and self._worst.result.verdict is not None

    def result(self) -> EngineResult:
        """The worst, with what each of several came to."""
        assert self._worst is not None, "the first build failed"
        if self._cache is not None:
            for key, data in self._worst.engines.items():
                self._cache.write(key, data)
            for name, data in self._worst.timings.items():
                self._cache.put_timings(name, data)
        if len(self._builds) < 2:
            return self._worst.result
        result = replace(self._worst.result, builds=tuple(self._builds))
        caveat = build_spread_caveat(self._builds)
        if caveat is None or result.verdict is None:
            return result
        return replace(result, verdict=replace(result.verdict, caveats=(*result.verdict.caveats, caveat)))


def build_spread_caveat(builds: Sequence[OneBuild]) -> Caveat | None:
    """Returns the caveat that builds of one config lie apart; None if fewer than two have a finite SQNR."""
    known = [build.errors.sqnr_db for build in builds if build.errors is not None and build.errors.sqnr_db is not None]
    if len(known) < 2 or min(known) == max(known):
        return None
    ends = f"{decibels(min(known), mark='')} to {with_unit(decibels(max(known), mark=''))}"
    return Caveat("builds differ", f"{len(known)} builds of this config lie {max(known) - min(known):.1f} dB apart "
                  f"({ends}), which is more than the margin to the target", gap_db=max(known) - min(known))


def badness(result: EngineResult) -> tuple[float, float, float]:
    """The order of what builds came to, the worst last: not as asked, then by the judged error, then by latency."""
    verdict = result.verdict
    if verdict is None:
        return 2.0, math.inf, 0.0
    energy = verdict.energy if verdict.energy is not None and not verdict.bad else math.inf
    return float(not result.as_asked), energy, result.latency_ms[0] if result.latency_ms is not None else 0.0


def _one(result: EngineResult) -> OneBuild:
    worst = result.verdict.worst if result.verdict is not None else None
    return OneBuild(worst[1].errors if worst is not None else None,
                    result.latency_ms[0] if result.latency_ms is not None else None, result.build_s, result.bytes)
