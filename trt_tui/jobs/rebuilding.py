"""The same config built several times: what varies from build to build, and the worst of them as the config's engine.

A builder measures kernels and takes the fastest, so that two builds may differ. Each further build here measures all of
them anew: with the timing cache of another build it would come to the same engine. The engine that counts is kept in
the cache with the timings that it came from.
"""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from trt_tui.core.measure.analysis import Analysis
from trt_tui.core.measure.comparison import EngineResult, OneBuild
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.runner import EngineBackend
from trt_tui.errors import CancelledError, TrtTuiError
from trt_tui.files.scratch import scratch_folder
from trt_tui.jobs.engine_building import BuilderLine, BuildProgress
from trt_tui.jobs.judging import build_and_judge
from trt_tui.jobs.steps import Wait
from trt_tui.jobs.store import EngineCache
from trt_tui.workspace import Plan


def build_several(
    analysis: Analysis, backend: EngineBackend, config: PrecisionConfig, ranges: Mapping[str, float],
    feeds: Sequence[int], plan: Plan, *, quick: bool, cache: EngineCache | None, wake: Callable[[], None],
) -> Generator[BuildProgress | BuilderLine | Wait | EngineResult, None, None]:
    """`trt_tui.jobs.judging.build_and_judge` as often as the plan says, once for a quick build or an engine that cannot
    run here; yields the worst of the results last.

    Raises:
        TrtTuiError: as `build_and_judge` of the first build; a later one that fails is said, and counts for nothing.
    """
    results: list[EngineResult] = []
    folders: list[Path | None] = []
    with contextlib.ExitStack() as held:
        for number in range(1 if quick else max(1, plan.builds)):
            folder = held.enter_context(scratch_folder()) if number else None
            anew = plan if folder is None else replace(plan, settings=plan.settings.untimed())
            own = EngineCache(folder / "engines") if folder is not None else cache
            try:
                for step in build_and_judge(analysis, backend, config, ranges, feeds, anew, quick=quick, cache=own,
                                            wake=wake):
                    if isinstance(step, EngineResult):
                        results.append(step)
                        folders.append(folder)
                    else:
                        yield _numbered(step, number, plan.builds) if number else step
            except CancelledError:
                raise
            except TrtTuiError as error:
                if not number:
                    raise
                yield BuilderLine("warning", f"build {number + 1} of {plan.builds} failed: {error.title}")
            if results[0].verdict is None:
                break
        worst = max(range(len(results)), key=lambda place: badness(results[place]))
        if (folder := folders[worst]) is not None and cache is not None:
            _adopt(folder, cache)
    builds = tuple(map(_one, results)) if len(results) > 1 else ()
    yield replace(results[worst], builds=builds)


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


def _numbered(step: BuildProgress | BuilderLine | Wait, number: int, builds: int
              ) -> BuildProgress | BuilderLine | Wait:
    return replace(step, phase=f"build {number + 1} of {builds}: {step.phase}") if isinstance(step, BuildProgress) \
        else step


def _adopt(folder: Path, cache: EngineCache) -> None:
    """Puts the engine of a further build, and its timings, in the place of the first one's."""
    for path in (folder / "engines").glob("*/*"):
        cache.write(path.name, path.read_bytes())
    timings = cache.folder.parent / "timing"
    for path in (folder / "timing").glob("*.cache"):
        with contextlib.suppress(OSError):
            timings.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, timings / path.name)
