"""The jobs that build the engine of a config, and measure it or write it to a file."""

import contextlib
import shlex
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trt_tui.backends.registry import get_engine_builder
from trt_tui.core.data.samples import JudgedFeeds
from trt_tui.core.engines.builder_warnings import list_known_warnings, short_message_lines
from trt_tui.core.engines.fallback_ladder import LOWEST_EFFORT, BuildError
from trt_tui.core.exporters.trtexec import command_file_names, trtexec_command_lines
from trt_tui.core.lowering.lowering_checks import reduces_precision
from trt_tui.core.measure.results import FP32_ENGINE, EngineResult, failed_build_result
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.core.runner import EngineBackend
from trt_tui.errors import BackendUnavailableError, CancelledError, InputError, TrtTuiError
from trt_tui.files.writing import write_file_atomically
from trt_tui.formatting import builder_title, duration_text
from trt_tui.jobs import engine_errors
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibration import collect_ranges_to_write, ensure_ranges
from trt_tui.jobs.engine_build import (
    BuilderMessage,
    BuildProgress,
    BuiltEngine,
    build_engine,
    report_known_defects,
)
from trt_tui.jobs.executors import choose_next_job_step, get_executor
from trt_tui.jobs.exported_run import execute_exported_file
from trt_tui.jobs.repeated_builds import (
    BuildOutput,
    WorstBuildReducer,
    build_and_judge_engine_once,
    build_and_judge_repeatedly,
    failed_build_text,
)
from trt_tui.jobs.scheduler import JobReporter
from trt_tui.jobs.steps import Steps, Urgency, Wait
from trt_tui.jobs.store import EngineCache, ResultStore
from trt_tui.workspace import BuildPlan, Workspace, can_run_engines, find_shape_profile

BuildSteps = Generator[BuildProgress | BuilderMessage | Wait | EngineResult, None, None]
"""The generator of the steps of a build. The last step is the result."""


def run_build_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                  request: rq.BuildEngine) -> Steps[None]:
    """Builds and measures the engine of a config, after the FP32 engine. Without a builder, the exported file is
    executed."""
    config, builder = request.config, workspace.builder
    ensure_ranges(workspace, store, reporter, [config])
    if builder is None:
        executed = yield from execute_exported_file(workspace, store, reporter, config, Urgency.BUILD)
        reporter.send(ev.ExportedFileExecuted(reporter.job, config, executed))
        return
    if can_run_engines(builder, workspace.plan.settings):
        fp32 = PrecisionConfig.from_precision(Precision.FP32)
        yield from build_engines_in_parallel(workspace, store, reporter,
                                             (fp32, config, *request.later_configs))
        fp32_result = yield from _build_and_send_fp32_engine(workspace, store, reporter, builder, fp32,
                                                             is_optional=config != fp32)
        if config == fp32:
            reporter.send(ev.EngineBuilt(reporter.job, fp32, fp32_result))
            return
    cached = store.load_engine_result(workspace, config) if request.with_marked_engine else None
    if cached is None or cached.failure_reason:
        yield from build_and_judge_config(workspace, store, reporter, config)
    else:
        reporter.send(ev.EngineBuilt(reporter.job, config, cached))
    if request.with_marked_engine or builder.capabilities.debug_tensors:
        yield from engine_errors.send_engine_errors(workspace, store, reporter, config, request.with_marked_engine)


def build_and_judge_config(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                           config: PrecisionConfig) -> Steps[EngineResult]:
    """Builds and measures the engine of a config, and sends and returns the result.

    If each config is built several times, workers make the builds in parallel.
    """
    if _choose_build_plan(workspace, config).builds_per_config > 1:
        yield from build_engines_in_parallel(workspace, store, reporter, (config,))
        if (cached := store.load_engine_result(workspace, config)) is not None:
            reporter.send(ev.EngineBuilt(reporter.job, config, cached))
            return cached
    return (yield from
            _run_and_report_build(workspace, store, reporter, config,
                                  start_build(workspace, workspace.ranges, config, store.engines, reporter.wake)))


def start_build(workspace: Workspace, ranges: Mapping[str, float], config: PrecisionConfig,
                cache: EngineCache, wake: Callable[[], None]) -> BuildSteps:
    """Returns the steps that build and measure the engine of a config with the workspace's builder."""
    return build_and_judge_repeatedly(workspace.analysis, _require_builder(workspace), config, ranges,
                                      workspace.find_judged_feeds(config), _choose_build_plan(workspace, config),
                                      cache=cache, wake=wake)


def _choose_build_plan(workspace: Workspace, config: PrecisionConfig) -> BuildPlan:
    """Returns the build plan for a config. An FP32 config, to which others are compared, is strongly typed and built
    once."""
    return workspace.plan if reduces_precision(workspace.network, config) else replace(
        workspace.plan, weakly_typed=False, builds_per_config=1)


ConfigBuild = tuple[PrecisionConfig, int]
"""A config with the index of one of its builds, from 0."""


class BuildTask:
    """The task that builds and measures the engine of a config. Its result is an error if the build fails.

    Args:
        feeds_by_config: The feeds that judge the engine of each config.
        cache: The engine cache; a worker uses the cache of its user instead.
        wake: A function that is called when the build can continue; not used on workers.
    """

    def __init__(self, ranges: Mapping[str, float], feeds_by_config: Mapping[PrecisionConfig, JudgedFeeds],
                 cache: EngineCache | None = None, wake: Callable[[], None] | None = None) -> None:
        self._ranges, self._feeds_by_config, self._cache, self._wake = (ranges, dict(feeds_by_config), cache,
                                                                        wake or _do_nothing_on_wake)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": None, "_wake": _do_nothing_on_wake}

    def describe_item(self, item: ConfigBuild) -> str:
        return f"build {item[1] + 1} of a config" if item[1] else "the build of a config"

    def run_item(self, context: Workspace,
                 item: ConfigBuild) -> Generator[Wait | None, None, BuildOutput | TrtTuiError]:
        config, index = item
        options = context.options
        printed: list[tuple[str, str]] = []
        if context.builder is None:
            context.builder = get_engine_builder(options.backend, plugins=options.production.plugins)
        try:
            cache = self._cache or EngineCache()
            with contextlib.closing(
                    build_and_judge_engine_once(context.analysis,
                                                _require_builder(context), config, self._ranges,
                                                self._feeds_by_config[config],
                                                _choose_build_plan(context, config), index, cache=cache,
                                                wake=self._wake)) as steps:
                for step in steps:
                    if isinstance(step, BuildOutput):
                        engine_remarks = list_known_warnings(printed)
                        return replace(step, result=replace(step.result, builder_warnings=engine_remarks))
                    if isinstance(step, BuilderMessage):
                        printed.append((step.level, step.text))
                    yield step if isinstance(step, Wait) else None
        except CancelledError:
            raise
        except TrtTuiError as error:
            return error
        raise AssertionError("a build ends with a result")


def _do_nothing_on_wake() -> None:
    """Does nothing. On workers, this function replaces the function that wakes the scheduler."""


def build_engines_in_parallel(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                              configs: Sequence[PrecisionConfig]) -> Steps[int]:
    """Builds the engines of several configs on workers and stores the results; without workers nothing is built.

    Returns the number of configs whose engine is stored. A config whose first build fails is built again in this
    process.
    """
    build_counts = {config: _choose_build_plan(workspace, config).builds_per_config for config in dict.fromkeys(configs)
                    if store.load_engine_result(workspace, config) is None}
    items = [(config, index) for config, builds in build_counts.items() for index in range(builds)]
    if workspace.worker_pool is None or workspace.worker_pool.failure_reason or len(items) < 2:
        return 0
    executor, start_time, kept_count = get_executor(workspace, reporter, for_engines=True), time.monotonic(), 0
    results: dict[ConfigBuild, BuildOutput | TrtTuiError] = {}
    task = BuildTask(workspace.ranges, {config: workspace.find_judged_feeds(config) for config in build_counts},
                     store.engines, reporter.wake)
    for finished in executor.map(task, items):
        if finished is not None:
            (config, _), builds = finished[0], build_counts[finished[0][0]]
            results[finished[0]] = finished[1]
            if all((config, index) in results for index in range(builds)):
                result = _find_worst_build(store, reporter, [results.pop((config, index)) for index in range(builds)])
                if result is not None:
                    store.save_engine_result(workspace, config, result)
                    kept_count += 1
                build_counts.pop(config)
        done = len(items) - (sum(build_counts.values()) - len(results))
        reporter.send_progress(f"building {len(items)} engines{executor.location_text}", done, len(items), start_time)
        yield choose_next_job_step(executor, Urgency.BUILD)
    return kept_count


def _find_worst_build(store: ResultStore, reporter: JobReporter,
                      builds: Sequence[BuildOutput | TrtTuiError]) -> EngineResult | None:
    """Stores the worst of several builds of a config and returns its result; None if the first build failed."""
    if isinstance(builds[0], TrtTuiError):
        return None
    repeated_builds = WorstBuildReducer(store.engines)
    for index, build in enumerate(builds):
        if isinstance(build, TrtTuiError):
            reporter.send(ev.LogMessage(reporter.job, failed_build_text(index, len(builds), build), "warning"))
        else:
            repeated_builds.add_build(build)
    return repeated_builds.store_worst_result()


def _build_and_send_fp32_engine(workspace: Workspace, store: ResultStore, reporter: JobReporter, builder: EngineBackend,
                                fp32_config: PrecisionConfig, is_optional: bool) -> Steps[EngineResult]:
    """Builds and measures the FP32 engine, or takes it from the store. Sends and returns the result.

    Args:
        is_optional: True to continue without the engine if the build fails. An FP32 engine that TensorRT has refused is
            then not built again.
    """
    result = store.load_engine_result(workspace,
                                      fp32_config) or (workspace.refused_fp32_engine if is_optional else None)
    if result is None:
        try:
            build_steps = start_build(workspace, workspace.ranges, fp32_config, store.engines, reporter.wake)
            result = yield from _run_and_report_build(workspace, store, reporter, fp32_config, build_steps,
                                                      "FP32 engine: ")
        except (CancelledError, BackendUnavailableError):
            raise
        except TrtTuiError as error:
            if not is_optional:
                raise
            result = failed_build_result(builder_title(builder.name, builder.version), error)
            workspace.refused_fp32_engine = result if isinstance(error, BuildError) and error.is_refused else None
    reporter.send(ev.Measured(reporter.job, FP32_ENGINE, None, result))
    return result


def _run_and_report_build(workspace: Workspace, store: ResultStore, reporter: JobReporter, config: PrecisionConfig,
                          build_steps: BuildSteps, phase_prefix: str = "") -> Steps[EngineResult]:
    """Runs the steps of a build, reports the progress, and sends and returns the result.
    """
    start_time, phase = time.monotonic(), ""
    printed: list[tuple[str, str]] = []
    with contextlib.closing(build_steps):
        for step in build_steps:
            match step:
                case EngineResult():
                    step = replace(step, builder_warnings=list_known_warnings(printed))
                    _send_short_messages(workspace, reporter, printed)
                    store.save_engine_result(workspace, config, step)
                    if not phase_prefix:
                        reporter.send(ev.EngineBuilt(reporter.job, config, step))
                    return step
                case BuilderMessage():
                    printed.append((step.level, step.text))
                    reporter.send(step.make_log_message(reporter.job))
                case BuildProgress():
                    start_time = time.monotonic() if step.phase != phase else start_time
                    phase = step.phase
                    reporter.send_progress(phase_prefix + phase, step.done, step.total, start_time)
                    yield Urgency.BUILD
                case Wait():
                    yield step
    raise AssertionError("a build ends with a result")


def _send_short_messages(workspace: Workspace, reporter: JobReporter, messages: Sequence[tuple[str, str]]) -> None:
    """Sends the short form of the messages of a build, unless the user sees the raw messages (``--verbose``)."""
    for line in short_message_lines(messages) if not workspace.options.verbose else ():
        reporter.send(ev.LogMessage(reporter.job, line))


# -- production -----------------------------------------------------------------------------------------------------


def run_write_engine_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                         request: rq.WriteEngine) -> Steps[None]:
    """Builds the engine of a config and writes it to a file, without measuring its accuracy."""
    builder, plan, network = _require_builder(workspace), workspace.plan, workspace.network
    report_known_defects(workspace, reporter, request.config, workspace.build_target)
    ranges, no_data_reason = collect_ranges_to_write(workspace, store, reporter, request.config,
                                                     request.config_calibration)
    workspace.require_unchanged_files()
    data_shapes = {}
    if workspace.options.data is not None:
        data_profile = find_shape_profile(network, workspace.data_sets.judged_samples, workspace.feeds)
        data_shapes = {name: shapes for name, shapes in data_profile.items() if name not in plan.settings.profile}
    settings = replace(plan.settings, tf32=request.config.tf32, profile={**data_shapes, **plan.settings.profile})
    cache = None if settings.builder_options.timing_cache else store.engines
    start_time = time.monotonic()
    printed: list[tuple[str, str]] = []
    with contextlib.closing(
            build_engine(builder, network, request.config, ranges, settings, cache=cache, wake=reporter.wake,
                         weakly_typed=plan.weakly_typed, strict=plan.strict)) as build_steps:
        for step in build_steps:
            match step:
                case BuiltEngine():
                    write_file_atomically(Path(request.path), step.data)
                    _send_short_messages(workspace, reporter, printed)
                    info_lines = (*_engine_info_lines(workspace, builder, step), *(
                        f"{name}: {' to '.join('x'.join(map(str, shape)) for shape in (shapes[0], shapes[2]))}, as in "
                        "the data (--shapes sets another profile)" for name, shapes in data_shapes.items()))
                    deviation = "" if step.attempts[-1].has_requested_precisions else step.attempts[-1].description
                    info_lines = (*info_lines, *_trtexec_command_lines(workspace, request, ranges))
                    reporter.send(
                        ev.EngineWritten(reporter.job, request.path, len(step.data), info_lines, deviation,
                                         no_data_reason))
                case BuilderMessage():
                    if step.is_raw:
                        printed.append((step.level, step.text))
                    reporter.send(step.make_log_message(reporter.job))
                case BuildProgress():
                    reporter.send_progress(step.phase, step.done, step.total, start_time)
                    yield Urgency.BUILD
                case Wait():
                    yield step


def _require_builder(workspace: Workspace) -> EngineBackend:
    if workspace.builder is None:
        raise BackendUnavailableError(
            "no TensorRT here can build an engine", "trt-tui doctor shows why",
            "Write -o typed.onnx instead, or name a backend: --backend tensorrt-rtx builds without a GPU.")
    return workspace.builder


def _trtexec_command_lines(workspace: Workspace, request: rq.WriteEngine, ranges: Mapping[str, float]) -> list[str]:
    """Returns the trtexec command lines that build the same engine."""
    path = Path(request.path)
    script = path.with_name(f"{path.name}.sh")
    info_lines = [
        f"The same config with trtexec (`trt-tui export --format trtexec -o {script.name}` writes the files it "
        "names):"
    ]
    try:
        files = replace(command_file_names("trtexec", script), engine=path.name)
        lines = trtexec_command_lines(workspace.network, request.config, ranges, files, workspace.shape_profile,
                                      workspace.options.production)
    except InputError as error:
        return [f"trtexec cannot express this config: {error.title}"]
    for line in lines:
        info_lines += [f"  # {line.release}", f"  {shlex.join(line.argv) if line.argv else '# ' + line.refusal_reason}"]
    return info_lines


def _engine_info_lines(workspace: Workspace, builder: EngineBackend, engine: BuiltEngine) -> tuple[str, ...]:
    """Returns the lines that describe a written engine: builder, origin, options and failed attempts."""
    settings = workspace.plan.settings
    compute_capability = settings.compute_capability
    builder_text = f"{builder.name} {builder.version}"
    builder_text += (f" for compute capability {compute_capability[0]}.{compute_capability[1]}"
                     if compute_capability is not None else f" on {builder.device}")
    origin_text = "taken from the engine cache" if engine.origin == "engine cache" else (
        f"built in {duration_text(engine.seconds)}" + " with a timing cache" * (engine.origin == "timing cache"))
    limit_lines = () if can_run_engines(builder, settings) else ("It cannot run on this machine.",)
    request_lines = (f"requested: {', '.join(options_text)}", ) if (
        options_text := settings.builder_options.requested_option_texts) else ()
    attempt_lines = [f"failed {attempt.description}: {attempt.failure_reason}" for attempt in engine.attempts[:-1]]
    attempt_lines += [f"built with {engine.attempts[-1].description}"
                      ] if engine.attempts[-1].name == LOWEST_EFFORT else []
    return (f"{builder_text}, {origin_text}", *request_lines, *attempt_lines, *limit_lines, *engine.notes)
