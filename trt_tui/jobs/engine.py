"""The jobs that build the engine of a config, measure it and the errors inside it, or write it to a file.

A builder times kernels and takes the fastest, so two builds of one config may differ. Each further build here times all
kernels again: with the timing cache of another build it would yield the same engine. The worst engine counts, and is
stored in the cache with its timings.
"""

import math
import shlex
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trt_tui.backends.registry import get_engine_builder
from trt_tui.core.data.samples import JudgedFeeds
from trt_tui.core.engines.builder_warnings import list_known_warnings, short_message_lines
from trt_tui.core.engines.fallback_ladder import LOWEST_EFFORT, BuildError
from trt_tui.core.engines.inspector import EngineReport, find_first_different_kernel, read_engine_report
from trt_tui.core.engines.kernel_results import find_kernel_results
from trt_tui.core.execution import translate_steps
from trt_tui.core.exporters.trtexec import command_file_names, trtexec_command_lines
from trt_tui.core.lowering.lowering_checks import reduces_precision
from trt_tui.core.measure.engine_errors import (
    ReadGroupResults,
    make_engine_output_reader,
    make_kernel_output_reader,
    measure_engine_errors,
)
from trt_tui.core.measure.results import (
    FP32_ENGINE,
    MARKED,
    UNFUSED,
    Caveat,
    EngineErrors,
    EngineResult,
    RepeatedBuild,
    failed_build_result,
)
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.layer_moves import BarrierMove
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.errors import BackendUnavailableError, CancelledError, InputError, TrtTuiError
from trt_tui.files.scratch import create_scratch_folder
from trt_tui.files.writing import write_file_atomically
from trt_tui.formatting import add_decibel_unit, decibels_text, duration_text
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibration import collect_ranges_to_write, ensure_ranges
from trt_tui.jobs.engine_build import BuiltEngine, EngineBuilder, lower_for_builder, report_known_defects
from trt_tui.jobs.executions import execute_exported_file, judge_engine, make_build_settings, measure_engine_accuracy
from trt_tui.jobs.scheduler import JobReporter, Reporter, choose_next_job_step, get_executor
from trt_tui.jobs.steps import Progress, ProgressSteps, Steps, Urgency, Wait
from trt_tui.jobs.store import EngineCache, ResultStore
from trt_tui.workspace import BuildPlan, Workspace, can_run_engines, find_shape_profile


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
        fp32_result = yield from _build_and_send_fp32_engine(workspace, store, reporter, fp32,
                                                             is_optional=config != fp32)
        if config == fp32:
            reporter.send(ev.EngineBuilt(reporter.job, fp32, fp32_result))
            return
    if request.with_marked_engine:
        yield from get_engine(workspace, store, reporter, config)
    else:
        yield from build_and_send_engine(workspace, store, reporter, config)
    if request.with_marked_engine or builder.capabilities.debug_tensors:
        yield from send_engine_errors(workspace, store, reporter, config, request.with_marked_engine)


def get_engine(workspace: Workspace, store: ResultStore, reporter: JobReporter,
               config: PrecisionConfig) -> Steps[EngineResult]:
    """Returns and sends the stored result of a config's engine, which is built and measured if there is none."""
    result = store.load_engine_result(workspace, config)
    if result is None:
        return (yield from build_and_send_engine(workspace, store, reporter, config))
    reporter.send(ev.EngineBuilt(reporter.job, config, result))
    return result


def build_and_send_engine(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                          config: PrecisionConfig) -> Steps[EngineResult]:
    """Builds and measures the engine of a config, and sends and returns the result.

    If each config is built several times, workers make the builds in parallel.
    """
    result = None
    if choose_build_plan(workspace, config).builds_per_config > 1:
        yield from build_engines_in_parallel(workspace, store, reporter, (config,))
        result = store.load_engine_result(workspace, config)
    result = result or (yield from _build_and_store_engine(
        workspace, store, EngineBuilder(workspace, store.engines, reporter), config))
    reporter.send(ev.EngineBuilt(reporter.job, config, result))
    return result


def _build_and_send_fp32_engine(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                                fp32_config: PrecisionConfig, is_optional: bool) -> Steps[EngineResult]:
    """Builds and measures the FP32 engine, or takes it from the store. Sends and returns the result.

    Args:
        is_optional: True to continue without the engine if the build fails. An FP32 engine that TensorRT has refused is
            then not built again.
    """
    result = store.load_engine_result(workspace,
                                      fp32_config) or (workspace.refused_fp32_engine if is_optional else None)
    if result is None:
        builder = EngineBuilder(workspace, store.engines, reporter, phase_prefix="FP32 engine: ")
        try:
            result = yield from _build_and_store_engine(workspace, store, builder, fp32_config)
        except TrtTuiError as error:
            if not is_optional or isinstance(error, CancelledError | BackendUnavailableError):
                raise
            result = failed_build_result(builder.title, error)
            workspace.refused_fp32_engine = result if isinstance(error, BuildError) and error.is_refused else None
    reporter.send(ev.ValueMeasured(reporter.job, FP32_ENGINE, None, result))
    return result


def _build_and_store_engine(workspace: Workspace, store: ResultStore, builder: EngineBuilder,
                            config: PrecisionConfig) -> Steps[EngineResult]:
    """Builds, measures and stores the engine of a config, and sends the short forms of the builder's messages."""
    result = yield from judge_worst_engine(builder, config)
    result = replace(result, builder_warnings=list_known_warnings(builder.printed))
    _send_short_messages(builder)
    store.save_engine_result(workspace, config, result)
    return result


def _send_short_messages(builder: EngineBuilder) -> None:
    """Sends the short form of the messages of a build, unless the user sees the raw messages (``--verbose``)."""
    for line in short_message_lines(builder.printed) if not builder.workspace.options.verbose else ():
        builder.reporter.send(ev.LogMessage(builder.reporter.job, line))


def choose_build_plan(workspace: Workspace, config: PrecisionConfig) -> BuildPlan:
    """Returns the build plan for a config. An FP32 config, to which others are compared, is strongly typed and built
    once."""
    return workspace.plan if reduces_precision(workspace.network, config) else replace(
        workspace.plan, weakly_typed=False, builds_per_config=1)


# -- several builds ---------------------------------------------------------------------------------------------------


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


def judge_worst_engine(builder: EngineBuilder, config: PrecisionConfig) -> Steps[EngineResult]:
    """Builds and measures the engine of a config as often as the build plan requests. Returns the worst result.

    An engine that cannot run here is built once.

    Raises:
        TrtTuiError: The first build failed. If a later build fails, the error is logged and the build is ignored.
    """
    worst_build, feeds = WorstBuild(builder, config), builder.workspace.find_judged_feeds(config)
    for build_number in range(max(1, worst_build.build_count)):
        worst_build.add((yield from _judge_one_build(builder, config, build_number, feeds)))
        if not worst_build.can_run_engine:
            break
    return worst_build.store()


def _judge_one_build(builder: EngineBuilder, config: PrecisionConfig, build_number: int,
                     feed_indices: Sequence[int]) -> Steps[BuildOutput | TrtTuiError]:
    """Builds and measures the engine of a config once. Returns its result, or the error with which the build failed.

    A further build (``build_number`` above 0) uses neither the engine cache nor a timing cache.
    """
    plan = choose_build_plan(builder.workspace, config)
    try:
        if not build_number:
            return BuildOutput((yield from judge_engine(builder, config, feed_indices, plan)))
        with create_scratch_folder() as folder:
            cache, fresh_plan = EngineCache(folder / "engines"), replace(
                plan, settings=plan.settings.without_timing_cache())
            fresh_builder = EngineBuilder(builder.workspace, cache, builder.reporter, builder.ranges,
                                          f"build {build_number + 1} of {plan.builds_per_config}: ", builder.printed)
            result = yield from judge_engine(fresh_builder, config, feed_indices, fresh_plan)
            return BuildOutput(result, cache.read_all_records(), cache.read_timing_caches())
    except CancelledError:
        raise
    except TrtTuiError as error:
        return error


class WorstBuild:
    """The worst of several builds of one config.

    Args:
        builder: The builder, whose cache gets the engine and the timing caches of the worst build.
    """

    def __init__(self, builder: EngineBuilder, config: PrecisionConfig) -> None:
        self.build_count = choose_build_plan(builder.workspace, config).builds_per_config
        self._builder = builder
        self._worst: BuildOutput | None = None
        self._builds: list[RepeatedBuild] = []
        self._added_count = 0
        self._first_report: EngineReport | None = None

    def add(self, build: BuildOutput | TrtTuiError) -> None:
        """Adds the next build. Raises the error of a failed first build; that of a later build is logged."""
        self._added_count += 1
        if not isinstance(build, TrtTuiError):
            self._first_report = self._first_report or build.result.engine_report
            self._builds.append(_summarize_build(build.result, self._first_report))
            if self._worst is None or engine_badness_key(build.result) > engine_badness_key(self._worst.result):
                self._worst = build
        elif self._worst is None:
            raise build
        else:
            self._builder.reporter.send(ev.LogMessage(
                self._builder.reporter.job,
                f"build {self._added_count} of {self.build_count} failed: {build.title}", "warning"))

    @property
    def can_run_engine(self) -> bool:
        return self._worst is not None and self._worst.result.accuracy is not None

    def store(self) -> EngineResult:
        """Stores the engine of the worst build. Returns its result, with a summary of each build if there are several.
        """
        assert self._worst is not None, "the first build failed"
        cache = self._builder.cache
        if cache is not None:
            for key, data in self._worst.engines.items():
                cache.write(key, data)
            for name, data in self._worst.timing_caches.items():
                cache.write_timing_cache(name, data)
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
        self._ranges, self._feeds_by_config, self._cache, self._wake = ranges, dict(feeds_by_config), cache, wake

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": None, "_wake": None}

    def describe_item(self, item: ConfigBuild) -> str:
        return f"build {item[1] + 1} of a config" if item[1] else "the build of a config"

    def run_item(self, context: Workspace,
                 item: ConfigBuild) -> Generator[Wait | None, None, BuildOutput | TrtTuiError]:
        config, build_number = item
        if context.builder is None:
            context.builder = get_engine_builder(context.options.backend, plugins=context.options.production.plugins)
        try:
            builder = EngineBuilder(context, self._cache or EngineCache(), Reporter(self._wake), self._ranges)
        except BackendUnavailableError as error:
            return error
        build = yield from translate_steps(
            _judge_one_build(builder, config, build_number, self._feeds_by_config[config]),
            lambda step: step if isinstance(step, Wait) else None)
        if isinstance(build, TrtTuiError):
            return build
        return replace(build, result=replace(build.result, builder_warnings=list_known_warnings(builder.printed)))


def build_engines_in_parallel(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                              configs: Sequence[PrecisionConfig]) -> Steps[None]:
    """Builds the engines of several configs on workers and stores the results; without workers nothing is built.

    A config whose first build fails is built again in this process.
    """
    build_counts = {config: choose_build_plan(workspace, config).builds_per_config for config in dict.fromkeys(configs)
                    if store.load_engine_result(workspace, config) is None}
    items = [(config, index) for config, builds in build_counts.items() for index in range(builds)]
    if workspace.worker_pool is None or workspace.worker_pool.failure_reason or len(items) < 2:
        return
    executor, start_time = get_executor(workspace, reporter, for_engines=True), time.monotonic()
    results: dict[ConfigBuild, BuildOutput | TrtTuiError] = {}
    task = BuildTask(workspace.ranges, {config: workspace.find_judged_feeds(config) for config in build_counts},
                     store.engines, reporter.wake)
    for finished in executor.map(task, items):
        if finished is not None:
            (config, _), builds = finished[0], build_counts[finished[0][0]]
            results[finished[0]] = finished[1]
            if all((config, index) in results for index in range(builds)):
                outputs = [results.pop((config, index)) for index in range(builds)]
                if not isinstance(outputs[0], TrtTuiError):
                    worst_build = WorstBuild(EngineBuilder(workspace, store.engines, reporter), config)
                    for output in outputs:
                        worst_build.add(output)
                    store.save_engine_result(workspace, config, worst_build.store())
                build_counts.pop(config)
        done = len(items) - (sum(build_counts.values()) - len(results))
        reporter.send_progress(f"building {len(items)} engines{executor.location_text}", done, len(items), start_time)
        yield choose_next_job_step(executor, Urgency.BUILD)


# -- production -----------------------------------------------------------------------------------------------------


def run_write_engine_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                         request: rq.WriteEngine) -> Steps[None]:
    """Builds the engine of a config and writes it to a file, without measuring its accuracy."""
    plan, network = workspace.plan, workspace.network
    builder = EngineBuilder(workspace, None if plan.settings.builder_options.timing_cache else store.engines, reporter)
    report_known_defects(workspace, reporter, request.config, workspace.build_target)
    builder.ranges, no_data_reason = collect_ranges_to_write(workspace, store, reporter, request.config,
                                                     request.config_calibration)
    workspace.require_unchanged_files()
    data_shapes = {}
    if workspace.options.data is not None:
        data_profile = find_shape_profile(network, workspace.data_sets.judged_samples, workspace.feeds)
        data_shapes = {name: shapes for name, shapes in data_profile.items() if name not in plan.settings.profile}
    settings = replace(plan.settings, tf32=request.config.tf32, profile={**data_shapes, **plan.settings.profile})
    engine = yield from builder.build(request.config, replace(plan, settings=settings))
    write_file_atomically(Path(request.path), engine.data)
    _send_short_messages(builder)
    info_lines = (*_engine_info_lines(builder, engine), *(
        f"{name}: {' to '.join('x'.join(map(str, shape)) for shape in (shapes[0], shapes[2]))}, as in "
        "the data (--shapes sets another profile)" for name, shapes in data_shapes.items()))
    deviation = "" if engine.attempts[-1].has_requested_precisions else engine.attempts[-1].description
    info_lines = (*info_lines, *_trtexec_command_lines(workspace, request, builder.ranges))
    reporter.send(
        ev.EngineWritten(reporter.job, request.path, len(engine.data), info_lines, deviation, no_data_reason))


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


def _engine_info_lines(builder: EngineBuilder, engine: BuiltEngine) -> tuple[str, ...]:
    """Returns the lines that describe a written engine: builder, origin, options and failed attempts."""
    backend, settings = builder.backend, builder.workspace.plan.settings
    compute_capability = settings.compute_capability
    builder_text = f"{backend.name} {backend.version}"
    builder_text += (f" for compute capability {compute_capability[0]}.{compute_capability[1]}"
                     if compute_capability is not None else f" on {backend.device}")
    origin_text = "taken from the engine cache" if engine.origin == "engine cache" else (
        f"built in {duration_text(engine.seconds)}" + " with a timing cache" * (engine.origin == "timing cache"))
    limit_lines = () if can_run_engines(backend, settings) else ("It cannot run on this machine.",)
    request_lines = (f"requested: {', '.join(options_text)}", ) if (
        options_text := settings.builder_options.requested_option_texts) else ()
    attempt_lines = [f"failed {attempt.description}: {attempt.failure_reason}" for attempt in engine.attempts[:-1]]
    attempt_lines += [f"built with {engine.attempts[-1].description}"
                      ] if engine.attempts[-1].name == LOWEST_EFFORT else []
    return (f"{builder_text}, {origin_text}", *request_lines, *attempt_lines, *limit_lines, *engine.notes)


# -- errors inside an engine ------------------------------------------------------------------------------------------


def send_engine_errors(workspace: Workspace, store: ResultStore, reporter: JobReporter, config: PrecisionConfig,
                       use_marked_engine: bool = False) -> Steps[EngineErrors | None]:
    """Measures, stores and sends the errors at the groups inside the engine of a config. Returns them.

    Returns None if the config has no engine, or the engine was not built as requested.

    Args:
        use_marked_engine: True to measure a second engine with the groups' results as outputs; False for the engine as
            built.
    """
    backend, result = workspace.builder, store.load_engine_result(workspace, config)
    if (backend is None or result is None or result.accuracy is None or not result.is_built_as_requested
            or not can_run_engines(backend, workspace.plan.settings)):
        return None
    source = MARKED if use_marked_engine else UNFUSED
    if result.engine_errors is not None and result.engine_errors.source == source:
        reporter.send(ev.EngineErrorsMeasured(reporter.job, config, result.engine_errors))
        return result.engine_errors
    try:
        errors = yield from (_measure_marked_engine_errors if use_marked_engine else _measure_debug_tensor_errors)(
            EngineBuilder(workspace, store.engines, reporter, phase_prefix="marked engine: "), config)
    except (CancelledError, BackendUnavailableError):
        raise
    except TrtTuiError as error:  # reported once, in place of the values
        errors = EngineErrors(source, missing_reason=": ".join(filter(None, (error.title, error.cause))))
    else:
        store.save_engine_result(workspace, config, replace(result, engine_errors=errors))
    reporter.send(ev.EngineErrorsMeasured(reporter.job, config, errors))
    return errors


def _measure_debug_tensor_errors(builder: EngineBuilder, config: PrecisionConfig) -> Steps[EngineErrors]:
    """Returns the errors at the kernel results of the engine as built, read from its debug tensors."""
    workspace, backend = builder.workspace, builder.backend
    network, engine = workspace.network, (yield from _build_as_requested(builder, config))
    lowered = lower_for_builder(network, config, builder.ranges, backend.capabilities, backend.name,
                                workspace.plan.weakly_typed)
    with backend.load_engine(engine.data) as runner:
        text = runner.inspect()
        ends = find_kernel_results(read_engine_report(text, network), network, lowered.model, text)
        ends = {group: end for group, end in ends.items() if end.tensor not in network.blocking_plugins}
        tensors = {group: end.tensor for group, end in ends.items()}
        return (yield from builder.reporter.follow(_measure_group_errors_in_engine(
            workspace, config, UNFUSED, make_kernel_output_reader(runner, ends), tensors)))


def _measure_marked_engine_errors(builder: EngineBuilder, config: PrecisionConfig) -> Steps[EngineErrors]:
    """Returns the errors at the groups of a marked engine, which has every group's result as an output."""
    workspace, result_tensors = builder.workspace, find_results_usable_as_outputs(builder.workspace.network)
    engine = yield from _build_as_requested(builder, add_group_results_as_outputs(workspace.network, config))
    with builder.backend.load_engine(engine.data) as runner:
        errors = yield from builder.reporter.follow(_measure_group_errors_in_engine(
            workspace, config, MARKED, make_engine_output_reader(runner, result_tensors), result_tensors))
        accuracy = yield from builder.reporter.follow(measure_engine_accuracy(
            workspace.analysis, runner, workspace.find_judged_feeds(config)))
    return replace(errors, accuracy=accuracy)


def find_results_usable_as_outputs(network: Network) -> dict[str, str]:
    """Returns the result tensor of each group that can become an output of an engine, by group name."""
    output_names = {info.name for info in network.outputs}
    return {
        group.name: group.final_tensor
        for group in network.groups
        if group.final_tensor not in network.blocking_plugins and (
            group.final_tensor in output_names or not BarrierMove().refusal_reason(network, group.final_tensor))
    }


def add_group_results_as_outputs(network: Network, config: PrecisionConfig) -> PrecisionConfig:
    """Returns a config in which every group's result is an output."""
    output_names = {info.name for info in network.outputs}
    return config.with_moves(
        {tail: BarrierMove()
         for tail in find_results_usable_as_outputs(network).values()
         if tail not in output_names})


def _measure_group_errors_in_engine(workspace: Workspace, config: PrecisionConfig, error_source: str,
                                    read_group_results: ReadGroupResults,
                                    result_by_group: Mapping[str, str]) -> ProgressSteps[EngineErrors]:
    feed_indices = workspace.find_group_error_feeds(config)
    errors = EngineErrors(error_source)
    group_names = [group.name for group in workspace.network.groups]
    for done, groups in enumerate(
            measure_engine_errors(workspace.analysis, config, read_group_results, result_by_group, feed_indices), 1):
        errors = EngineErrors(
            error_source, dict(groups), tuple(name for name in group_names if name not in groups),
            workspace.count_samples(feed_indices[:done]))
        yield Progress("errors inside the engine", done, len(feed_indices))
    return errors if errors.group_errors else replace(
        errors, missing_reason="no debug tensor of the engine can be assigned to a group",
        hidden_groups=tuple(group_names))


def _build_as_requested(builder: EngineBuilder, config: PrecisionConfig) -> Steps[BuiltEngine]:
    """Builds the engine of a config without the fallback ladder, or takes it from the cache."""
    workspace = builder.workspace
    settings = make_build_settings(workspace.analysis, workspace.find_judged_feeds(config), workspace.plan, config,
                                   debug_tensors=builder.backend.capabilities.debug_tensors)
    return builder.build(config, replace(workspace.plan, settings=settings, strict=True),
                         workspace.analysis.extra_outputs)
