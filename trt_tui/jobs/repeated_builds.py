"""Repeated builds of one config: the variation between builds, and the worst build as the engine of the config.

A builder times kernels and takes the fastest, so two builds may differ. Each further build here times all kernels
again: with the timing cache of another build it would yield the same engine. The worst engine is stored in the cache
with its timings.
"""

import contextlib
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trt_tui.core.engines.inspector import EngineReport, find_first_different_kernel
from trt_tui.core.measure.analysis import Analysis
from trt_tui.core.measure.results import Caveat, EngineResult, RepeatedBuild
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.runner import EngineBackend
from trt_tui.errors import CancelledError, TrtTuiError
from trt_tui.files.scratch import create_scratch_folder
from trt_tui.formatting import add_decibel_unit, decibels_text
from trt_tui.jobs.engine_accuracy import build_and_judge_engine
from trt_tui.jobs.engine_build import BuilderMessage, BuildProgress
from trt_tui.jobs.steps import Wait
from trt_tui.jobs.store import EngineCache
from trt_tui.workspace import BuildPlan


@dataclass(frozen=True)
class BuildOutput:
    """The result of one build.

    Attributes:
        engines: The engines of a further build, by cache key. The cache holds those of the first build until the worst
            build is stored.
        timing_caches: The timing caches of a further build, by file name.
    """

    result: EngineResult
    engines: Mapping[str, bytes] = field(default_factory=dict)
    timing_caches: Mapping[str, bytes] = field(default_factory=dict)


def build_and_judge_engine_once(
    analysis: Analysis, backend: EngineBackend, config: PrecisionConfig, ranges: Mapping[str, float],
    feed_indices: Sequence[int], plan: BuildPlan, build_number: int, *, cache: EngineCache | None,
    wake: Callable[[], None],
) -> Generator[BuildProgress | BuilderMessage | Wait | BuildOutput, None, None]:
    """Builds and measures the engine of a config once. Yields the `BuildOutput` last.

    A further build (``build_number`` above 0) uses neither the engine cache nor a timing cache. Everything else is as
    in `trt_tui.jobs.engine_accuracy.build_and_judge_engine`.
    """
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(create_scratch_folder()) if build_number else None
        fresh_plan = plan if folder is None else replace(plan, settings=plan.settings.without_timing_cache())
        own_cache = EngineCache(folder / "engines") if folder is not None else cache
        for step in build_and_judge_engine(analysis, backend, config, ranges, feed_indices, fresh_plan,
                                           cache=own_cache, wake=wake):
            if isinstance(step, EngineResult):
                yield BuildOutput(
                    step,
                    *((own_cache.read_all_records(),
                       own_cache.read_timing_caches()) if folder is not None and own_cache is not None else ()))
            elif build_number and isinstance(step, BuildProgress):
                yield replace(step, phase=f"build {build_number + 1} of {plan.builds_per_config}: {step.phase}")
            else:
                yield step


def build_and_judge_repeatedly(
    analysis: Analysis, backend: EngineBackend, config: PrecisionConfig, ranges: Mapping[str, float],
    feed_indices: Sequence[int], plan: BuildPlan, *, cache: EngineCache | None,
    wake: Callable[[], None],
) -> Generator[BuildProgress | BuilderMessage | Wait | EngineResult, None, None]:
    """Builds and measures the engine of a config as often as the build plan requests. Yields the worst result last.

    An engine that cannot run here is built once.

    Raises:
        TrtTuiError: The first build failed. If a later build fails, the error is logged and the build is ignored.
    """
    reducer = WorstBuildReducer(cache)
    for build_number in range(max(1, plan.builds_per_config)):
        try:
            for step in build_and_judge_engine_once(analysis, backend, config, ranges, feed_indices, plan, build_number,
                                                    cache=cache, wake=wake):
                if isinstance(step, BuildOutput):
                    reducer.add_build(step)
                else:
                    yield step
        except CancelledError:
            raise
        except TrtTuiError as error:
            if not build_number:
                raise
            yield BuilderMessage("warning", failed_build_text(build_number, plan.builds_per_config, error),
                                 is_raw=False)
        if not reducer.can_run_engine:
            break
    yield reducer.store_worst_result()


def failed_build_text(build_number: int, build_count: int, error: TrtTuiError) -> str:
    return f"build {build_number + 1} of {build_count} failed: {error.title}"


class WorstBuildReducer:
    """The reducer that keeps the worst of several builds of one config.

    Args:
        cache: The cache for the engine and the timing caches of the worst build; None to store nothing.
    """

    def __init__(self, cache: EngineCache | None) -> None:
        self._cache = cache
        self._worst: BuildOutput | None = None
        self._builds: list[RepeatedBuild] = []
        self._first_report: EngineReport | None = None

    def add_build(self, build: BuildOutput) -> None:
        self._first_report = self._first_report or build.result.engine_report
        self._builds.append(_summarize_build(build.result, self._first_report))
        if self._worst is None or engine_badness_key(build.result) > engine_badness_key(self._worst.result):
            self._worst = build

    @property
    def can_run_engine(self) -> bool:
        return self._worst is not None and self._worst.result.accuracy is not None

    def store_worst_result(self) -> EngineResult:
        """Stores the engine of the worst build. Returns its result, with a summary of each build if there are several.
        """
        assert self._worst is not None, "the first build failed"
        if self._cache is not None:
            for key, data in self._worst.engines.items():
                self._cache.write(key, data)
            for name, data in self._worst.timing_caches.items():
                self._cache.write_timing_cache(name, data)
        if len(self._builds) < 2:
            return self._worst.result
        result = replace(self._worst.result, repeated_builds=tuple(self._builds))
        caveat = build_spread_caveat(self._builds)
        if caveat is None or result.accuracy is None:
            return result
        return replace(result, accuracy=replace(result.accuracy, caveats=(*result.accuracy.caveats, caveat)))


def build_spread_caveat(builds: Sequence[RepeatedBuild]) -> Caveat | None:
    """Returns the caveat that the builds of one config differ; None if fewer than two SQNRs are finite, or all are
    equal."""
    sqnr_values = [
        build.worst_output_errors.sqnr_db
        for build in builds
        if build.worst_output_errors is not None and build.worst_output_errors.sqnr_db is not None
    ]
    if len(sqnr_values) < 2 or min(sqnr_values) == max(sqnr_values):
        return None
    ends = (
        f"{decibels_text(min(sqnr_values), mark='')} to {add_decibel_unit(decibels_text(max(sqnr_values), mark=''))}")
    return Caveat(
        "builds differ",
        f"{len(sqnr_values)} builds of this config differ by {max(sqnr_values) - min(sqnr_values):.1f} dB "
        f"({ends}), which is more than the margin to the target", gap_db=max(sqnr_values) - min(sqnr_values))


def engine_badness_key(engine_result: EngineResult) -> tuple[float, float, float]:
    """Returns the sort key of build results, the worst last: by other precisions than requested, then judged error,
    then latency."""
    accuracy = engine_result.accuracy
    if accuracy is None:
        return 2.0, math.inf, 0.0
    energy = accuracy.judged_error if accuracy.judged_error is not None and not accuracy.nonfinite_count else math.inf
    return float(not engine_result.is_built_as_requested
                 ), energy, engine_result.latency_ms[0] if engine_result.latency_ms is not None else 0.0


def _summarize_build(result: EngineResult, first_report: EngineReport | None) -> RepeatedBuild:
    accuracy, report = result.accuracy, result.engine_report
    return RepeatedBuild(accuracy.worst_errors if accuracy is not None else None,
                         result.latency_ms[0] if result.latency_ms is not None else None, result.build_s,
                         result.engine_bytes,
                         {name: output.errors.sqnr_db for name, output in accuracy.outputs.items()}
                         if accuracy is not None else {},
                         find_first_different_kernel(first_report, report)
                         if first_report is not None and report is not None else "")
