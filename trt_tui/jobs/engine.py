"""The jobs that build the engines of configs, measure them and the errors inside them, or write them to files.

A builder times kernels and takes the fastest, so two builds of one config may differ. Each further build here times all
kernels again: with the timing cache of another build it would yield the same engine. The worst engine counts, and is
stored in the cache with its timings.

Where no engine is built, the exported file of a config is executed in ONNX Runtime, in a process of its own.
"""

import math
import os
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from trt_tui.backends.onnxruntime import ExportedFileRunner, truncates_fp16_quantization
from trt_tui.backends.registry import get_engine_builder
from trt_tui.core.data.samples import JudgedFeeds
from trt_tui.core.engines.fallback_ladder import (
    LOWEST_EFFORT,
    BuildError,
    list_known_warnings,
    short_message_lines,
)
from trt_tui.core.engines.inspector import find_kernel_results, read_engine_report
from trt_tui.core.exporters.formats import write_export
from trt_tui.core.lowering.network_rewrite import (
    reduces_precision,
    tensorrt_operators_text,
)
from trt_tui.core.measure.judged_outputs import list_tensor_outputs
from trt_tui.core.measure.results import (
    FP32_ENGINE,
    MARKED,
    UNFUSED,
    Accuracy,
    Caveat,
    EngineErrors,
    EngineResult,
    ExportedRun,
    Run,
    RunKind,
    failed_build_result,
)
from trt_tui.core.measure.run_sources import AccuracyReducer, RunSource
from trt_tui.core.measure.simulation import Analysis
from trt_tui.core.measure.stages import (
    ReadGroupResults,
    measure_engine_errors,
    read_kernel_outputs,
    read_marked_outputs,
)
from trt_tui.core.moves.config import BarrierMove, PrecisionConfig
from trt_tui.core.network.network import Network
from trt_tui.core.network.operators import is_random
from trt_tui.core.precision import Precision
from trt_tui.core.runner import map_generator_items
from trt_tui.errors import BackendUnavailableError, CancelledError, TrtTuiError
from trt_tui.files.writing import create_scratch_folder, write_file_atomically
from trt_tui.formatting import add_decibel_unit, decibels_text, duration_text, name_list_text, value_range_text
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibration import collect_ranges_for_export, ensure_ranges
from trt_tui.jobs.child_exit import ChildProcess, diagnose_exit
from trt_tui.jobs.engine_build import (
    BuiltEngine,
    EngineBuilder,
    build_and_measure_engine,
    cast_to_declared_types,
    lower_for_builder,
    make_build_settings,
    measure_engine_accuracy,
    report_known_defects,
)
from trt_tui.jobs.scheduler import (
    JobReporter,
    Progress,
    ProgressSteps,
    Reporter,
    Steps,
    Urgency,
    WaitStep,
    choose_next_job_step,
    get_executor,
    run_to_last_value,
    start_thread,
)
from trt_tui.jobs.store import EngineCache, ResultStore
from trt_tui.workspace import BuildPlan, Workspace, can_run_engines, find_shape_profile

LOG_BYTES = 4096
"""The number of bytes at the end of the process's output that are searched for the reason of a crash."""

_STORE_KIND = "exported network"
"""The name under which executions of exported files are stored."""


class _NotExecutedError(TrtTuiError):
    """An error because an exported file was not executed. Its title is the reason."""


def execute_exported_file(
    workspace: Workspace,
    store: ResultStore,
    reporter: JobReporter,
    config: PrecisionConfig,
    urgency: Urgency,
    feed_indices: Sequence[int] | None = None,
) -> Steps[ExportedRun]:
    """Returns the result of the exported file of a config on the judged samples. A stored result is not measured again.

    The executed bytes are those that ``export --format onnx`` writes. `trt_tui.backends.onnxruntime` names the
    exceptions. Nothing is built: an `ExportedRun` has neither a latency nor a size, and it confirms no engine.

    If the file cannot be written or executed, no error is raised, and the result contains the reason.

    Args:
        feed_indices: The feeds to execute, whose result is not stored; None for all feeds that values are measured on.

    Raises:
        CancelledError: The job was stopped.
    """
    cached = store.load_result(workspace, _STORE_KIND, config, ExportedRun) if feed_indices is None else None
    if cached is not None:
        return cached
    backend = workspace.backend
    exported_run = ExportedRun(None, f"ONNX Runtime {backend.version} {backend.provider.upper()}", backend.provider)
    reporter.send_progress("exporting the network", 0, 0)
    yield urgency
    try:
        with create_scratch_folder() as folder:
            path = folder / "exported.onnx"
            _write_executable_export(workspace, config, path)
            yield urgency
            accuracy, options = yield from _measure_exported_file_accuracy(
                workspace, reporter, config, path, urgency, feed_indices or workspace.find_judged_feeds(config)
            )
            exported_run = replace(
                exported_run,
                options=options,
                executor_name=" ".join(filter(None, (exported_run.executor_name, options))),
            )
    except CancelledError:
        raise
    except TrtTuiError as error:
        return replace(exported_run, missing_reason=": ".join(filter(None, (error.title, error.cause))))
    if truncates_fp16_quantization():
        caveat = Caveat(
            "no engine", f"{exported_run.executor_name} truncates FP16 values, so it quantized them in FP32"
        )
        accuracy = replace(accuracy, caveats=(*accuracy.caveats, caveat))
    exported_run = replace(exported_run, accuracy=accuracy)
    if feed_indices is None:
        store.save_result(workspace, _STORE_KIND, config, exported_run)
    return exported_run


def load_stored_exported_run(workspace: Workspace, store: ResultStore, config: PrecisionConfig) -> ExportedRun | None:
    return store.load_result(workspace, _STORE_KIND, config, ExportedRun)


def _write_executable_export(workspace: Workspace, config: PrecisionConfig, path: Path) -> None:
    network = workspace.network
    random_nodes = [node.name or node.op_type for node in network.model.graph.all_nodes() if is_random(node)]
    if random_nodes:
        raise _NotExecutedError(
            f"it draws random numbers in {name_list_text(random_nodes, max_count=2)}, so two runs differ by chance"
        )
    if network.blocking_plugins:
        raise _NotExecutedError("it holds plugins, which ONNX Runtime does not have")
    if texts := tensorrt_operators_text(network, config):
        raise _NotExecutedError(
            f"its layers in {texts} contain operators of TensorRT, which ONNX Runtime does not have"
        )
    write_export("onnx", path, network, config, workspace.ranges)


def _measure_exported_file_accuracy(
    workspace: Workspace,
    reporter: JobReporter,
    config: PrecisionConfig,
    path: Path,
    urgency: Urgency,
    feed_indices: Sequence[int],
) -> Steps[tuple[Accuracy, str]]:
    """Executes an exported file in a separate process. Returns its accuracy at the network's outputs, and the options
    with which it could be loaded."""
    analysis, options = workspace.analysis, workspace.options
    names = tuple(
        name
        for name in list_tensor_outputs(workspace.network)
        if name in {info.name for info in workspace.network.outputs}
    )
    if not any(output.tensor in names for output in analysis.judged_outputs):
        raise _NotExecutedError("no judged tensor is an output of the exported network")
    process = _ExportedRunProcess(
        partial(
            ExportedFileRunner,
            str(path),
            workspace.backend.provider,
            tf32=config.tf32,
            threads=options.threads,
            operators=tuple(map(os.path.abspath, options.ort_ops)),
        ),
        names,
        reporter.wake,
    )
    source = _ExportedFileRun(analysis, process, names, urgency)
    try:
        partials = analysis.compare(source, feed_indices, with_caveats=False)
        accuracy = yield from reporter.run_steps(run_to_last_value(partials, "executing the exported network"), urgency)
    finally:
        process.close()
    return accuracy, source.options


class _ExportedFileRun(RunSource):
    """The run of an exported file in another process."""

    def __init__(
        self, analysis: Analysis, process: "_ExportedRunProcess", output_names: Sequence[str], urgency: Urgency
    ) -> None:
        super().__init__(Run("exported network", RunKind.EXPORTED_FILE), output_names)
        self._analysis, self._process, self.options = analysis, process, ""
        self._blocked_urgencies = frozenset(item for item in Urgency if item > urgency)

    def measure(self, reducer: AccuracyReducer, feed_indices: Sequence[int]) -> Iterator[WaitStep | None]:
        self.options = yield from self._process.wait_for_answer(self._blocked_urgencies)
        for index in feed_indices:
            samples = self._analysis.samples
            self._process.request_answer(dict(samples.read_full_feed(index)))
            outputs = samples.remove_padding((yield from self._process.wait_for_answer(self._blocked_urgencies)), index)
            reducer.add_feed_outputs(index, cast_to_declared_types(self._analysis, outputs))
            yield None


class _ExportedRunProcess(ChildProcess):
    """The client of a process that executes an exported file (`trt_tui.jobs.exported_process`).

    Args:
        load_file: The function that loads the file in the process.
        names: The names of the requested outputs.
        wake: A function that a thread calls when there is an answer, or the process has ended.
    """

    def __init__(
        self, load_file: Callable[[], ExportedFileRunner], names: Sequence[str], wake: Callable[[], None]
    ) -> None:
        self._log = tempfile.TemporaryFile()
        super().__init__("trt_tui.jobs.exported_process", stdout=self._log, stderr=self._log)
        self._wake = wake
        self.request_answer((load_file, names))

    def request_answer(self, message: object) -> None:
        self.send(message)
        self._answer: Future[Any] = start_thread(self.pipe.recv, self._wake)

    def wait_for_answer(self, blocked_urgencies: frozenset[Urgency]) -> Generator[WaitStep, None, Any]:
        """Waits for the answer to the last message and returns it.

        The answer to the first message is the options of the file. The answer to a feed is its outputs.

        Raises:
            TrtTuiError: ONNX Runtime refused the file, or the process has ended.
        """
        yield WaitStep(self._answer.done, blocked_urgencies)
        try:
            answer = self._answer.result()
        except (EOFError, OSError):
            self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - LOG_BYTES))
            text = self._log.read().decode(errors="replace")
            exit_diagnosis = diagnose_exit(self.process.wait(), text)
            raise _NotExecutedError(
                f"ONNX Runtime crashed on the exported file: {exit_diagnosis.reason.rstrip('.')}"
            ) from None
        if isinstance(answer, TrtTuiError):
            raise answer
        return answer

    def close(self) -> None:
        self.process.kill()
        wait([self._answer])
        self.process.wait()
        super().close()
        self._log.close()


def run_build_job(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, request: rq.BuildEngine
) -> Steps[None]:
    """Builds and measures the engine of a config, after the FP32 engine. Without a builder, the exported file is
    executed."""
    config, builder = request.config, workspace.builder
    ensure_ranges(workspace, store, reporter, [config])
    if builder is None:
        executed = yield from execute_exported_file(workspace, store, reporter, config, Urgency.BUILD)
        reporter.send(ev.ExportedFileExecuted(reporter.job, config, executed))
        return
    if can_run_engines(builder, workspace.build_plan.settings):
        fp32 = PrecisionConfig.from_precision(Precision.FP32)
        yield from build_engines_in_parallel(workspace, store, reporter, (fp32, config, *request.later_configs))
        fp32_result = yield from _build_and_send_fp32_engine(
            workspace, store, reporter, fp32, is_optional=config != fp32
        )
        if config == fp32:
            reporter.send(ev.EngineBuilt(reporter.job, fp32, fp32_result))
            return
    yield from get_or_build_engine(workspace, store, reporter, config, rebuild=not request.with_marked_engine)
    if request.with_marked_engine or builder.capabilities.debug_tensors:
        yield from send_engine_errors(workspace, store, reporter, config, request.with_marked_engine)


def get_or_build_engine(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, config: PrecisionConfig, rebuild: bool = False
) -> Steps[EngineResult]:
    """Sends and returns the result of a config's engine. An engine without a stored result is built and measured.

    If each config is built several times, workers make the builds in parallel.

    Args:
        rebuild: True to build and measure the engine even if its result is stored.
    """
    result = None if rebuild else store.load_engine_result(workspace, config)
    if result is None and choose_build_plan(workspace, config).builds_per_config > 1:
        yield from build_engines_in_parallel(workspace, store, reporter, (config,))
        result = store.load_engine_result(workspace, config)
    result = result or (
        yield from _build_and_store_engine(workspace, store, EngineBuilder(workspace, store.engines, reporter), config)
    )
    reporter.send(ev.EngineBuilt(reporter.job, config, result))
    return result


def _build_and_send_fp32_engine(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, fp32_config: PrecisionConfig, is_optional: bool
) -> Steps[EngineResult]:
    """Builds and measures the FP32 engine, or takes it from the store. Sends and returns the result.

    Args:
        is_optional: True to continue without the engine if the build fails. An FP32 engine that TensorRT has refused is
            then not built again.
    """
    result = store.load_engine_result(workspace, fp32_config) or (
        workspace.refused_fp32_engine if is_optional else None
    )
    if result is None:
        builder = EngineBuilder(workspace, store.engines, reporter, phase_prefix="FP32 engine: ")
        try:
            result = yield from _build_and_store_engine(workspace, store, builder, fp32_config)
        except TrtTuiError as error:
            if not is_optional or isinstance(error, CancelledError | BackendUnavailableError):
                raise
            result = failed_build_result(builder.title, error)
            workspace.refused_fp32_engine = result if isinstance(error, BuildError) and error.is_refused else None
    reporter.send_value(FP32_ENGINE, None, result)
    return result


def _build_and_store_engine(
    workspace: Workspace, store: ResultStore, builder: EngineBuilder, config: PrecisionConfig
) -> Steps[EngineResult]:
    """Builds, measures and stores the engine of a config, and sends the short forms of the builder's messages."""
    result = yield from build_and_measure_worst_engine(builder, config)
    result = replace(result, builder_warnings=list_known_warnings(builder.printed))
    _send_short_messages(builder)
    store.save_engine_result(workspace, config, result)
    return result


def _send_short_messages(builder: EngineBuilder) -> None:
    """Sends the short form of the messages of a build, unless the user sees the raw messages (``--verbose``)."""
    for line in short_message_lines(builder.printed) if not builder.workspace.options.verbose else ():
        builder.reporter.log(line)


def choose_build_plan(workspace: Workspace, config: PrecisionConfig) -> BuildPlan:
    """Returns the build plan for a config.

    A config in FP32 is only compared with other configs. It is strongly typed and built once.
    """
    return (
        workspace.build_plan
        if reduces_precision(workspace.network, config)
        else replace(workspace.build_plan, weakly_typed=False, builds_per_config=1)
    )


# -- several builds ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BuildOutput:
    """The result of one build.

    Attributes:
        files: The engine and the timing cache of a further build (`EngineCache.read_all_files`). The cache holds those
            of the first build until the worst build is stored.
    """

    result: EngineResult
    files: Mapping[str, bytes] = field(default_factory=dict)


def build_and_measure_worst_engine(builder: EngineBuilder, config: PrecisionConfig) -> Steps[EngineResult]:
    """Builds and measures the engine of a config as often as the build plan requests. Returns the worst result.

    An engine that cannot run here is built once.

    Raises:
        TrtTuiError: The first build failed. If a later build fails, the error is logged and the build is ignored.
    """
    feeds, builds = builder.workspace.find_judged_feeds(config), list[BuildOutput | TrtTuiError]()
    for build_number in range(max(1, choose_build_plan(builder.workspace, config).builds_per_config)):
        builds.append((yield from _build_and_measure_once(builder, config, build_number, feeds)))
        worst = _choose_worst_build(builds)
        if worst is None or worst.result.accuracy is None:
            break
        builds = [
            build if isinstance(build, TrtTuiError) or build is worst else BuildOutput(build.result) for build in builds
        ]
    return _store_worst_build(builder, builds)


def _build_and_measure_once(
    builder: EngineBuilder, config: PrecisionConfig, build_number: int, feed_indices: Sequence[int]
) -> Steps[BuildOutput | TrtTuiError]:
    """Builds and measures the engine of a config once. Returns its result, or the error with which the build failed.

    A further build (``build_number`` above 0) uses neither the engine cache nor a timing cache.
    """
    plan = choose_build_plan(builder.workspace, config)
    try:
        if not build_number:
            return BuildOutput((yield from build_and_measure_engine(builder, config, feed_indices, plan)))
        with create_scratch_folder() as folder:
            cache, fresh_plan = (
                EngineCache(folder / "engines"),
                replace(plan, settings=plan.settings.with_builder_options(timing_cache="")),
            )
            fresh_builder = EngineBuilder(
                builder.workspace,
                cache,
                builder.reporter,
                builder.ranges,
                f"build {build_number + 1} of {plan.builds_per_config}: ",
                builder.printed,
            )
            result = yield from build_and_measure_engine(fresh_builder, config, feed_indices, fresh_plan)
            return BuildOutput(result, cache.read_all_files())
    except CancelledError:
        raise
    except TrtTuiError as error:
        return error


def _choose_worst_build(builds: Sequence[BuildOutput | TrtTuiError]) -> BuildOutput | None:
    """Returns the build with the worst engine. The first build wins a tie; None if all builds failed."""
    return max(
        (build for build in builds if not isinstance(build, TrtTuiError)),
        key=lambda build: worst_last_sort_key(build.result),
        default=None,
    )


def _store_worst_build(builder: EngineBuilder, builds: Sequence[BuildOutput | TrtTuiError]) -> EngineResult:
    """Stores the files of the worst of several builds of a config in the cache of the builder, and returns the result
    of this build.

    If there are several builds, the result contains the results of all. The error of a failed first build is raised,
    and that of a later build is logged.
    """
    for number, build in enumerate(builds, 1):
        if isinstance(build, TrtTuiError):
            if number == 1:
                raise build
            builder.reporter.log(f"build {number} of {len(builds)} failed: {build.title}", "warning")
    results = tuple(build.result for build in builds if not isinstance(build, TrtTuiError))
    worst = _choose_worst_build(builds)
    assert worst is not None, "the first build did not fail"
    if builder.cache is not None:
        builder.cache.write_files(worst.files)
    if len(results) < 2:
        return worst.result
    result, caveat = replace(worst.result, repeated_builds=results), build_spread_caveat(results)
    if caveat is None or result.accuracy is None:
        return result
    return replace(result, accuracy=replace(result.accuracy, caveats=(*result.accuracy.caveats, caveat)))


def build_spread_caveat(results: Sequence[EngineResult]) -> Caveat | None:
    """Returns the caveat that the engines of one config differ in SQNR.

    None if fewer than two SQNRs are known, or all are equal.
    """
    sqnr_values = [
        result.worst_errors.sqnr_db
        for result in results
        if result.worst_errors is not None and result.worst_errors.sqnr_db is not None
    ]
    if len(sqnr_values) < 2 or min(sqnr_values) == max(sqnr_values):
        return None
    ends = add_decibel_unit(value_range_text(*(decibels_text(end(sqnr_values), mark="") for end in (min, max))))
    return Caveat(
        "builds differ",
        f"{len(sqnr_values)} builds of this config differ by {max(sqnr_values) - min(sqnr_values):.1f} dB "
        f"({ends}), which is more than the margin to the target",
        gap_db=max(sqnr_values) - min(sqnr_values),
    )


def worst_last_sort_key(engine_result: EngineResult) -> tuple[float, float, float]:
    """Returns the sort key of an engine among the engines of one config. The worst engine is last.

    An engine with other precisions than requested is worse, then one with a larger judged error, then a slower one.
    """
    accuracy = engine_result.accuracy
    if accuracy is None:
        return 2.0, math.inf, 0.0
    energy = accuracy.judged_error if accuracy.judged_error is not None and not accuracy.nonfinite_count else math.inf
    return (
        float(not engine_result.is_built_as_requested),
        energy,
        engine_result.latency_ms[0] if engine_result.latency_ms is not None else 0.0,
    )


ConfigBuild = tuple[PrecisionConfig, int]
"""A config with the index of one of its builds, from 0."""


class BuildTask:
    """The task that builds and measures one engine of a config per item. If the build fails, its result is the error.

    Args:
        feeds_by_config: The feeds that judge the engine of each config.
        cache: The engine cache; a worker uses the cache of its user instead.
        wake: A function that is called when the build can continue; not used on workers.
    """

    item_text = "the build of a config"

    def __init__(
        self,
        ranges: Mapping[str, float],
        feeds_by_config: Mapping[PrecisionConfig, JudgedFeeds],
        cache: EngineCache | None = None,
        wake: Callable[[], None] | None = None,
    ) -> None:
        self._ranges, self._feeds_by_config, self._cache, self._wake = ranges, dict(feeds_by_config), cache, wake

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": None, "_wake": None}

    def run_item(
        self, context: Workspace, item: ConfigBuild
    ) -> Generator[WaitStep | None, None, BuildOutput | TrtTuiError]:
        config, build_number = item
        if context.builder is None:
            context.builder = get_engine_builder(context.options.backend, plugins=context.options.production.plugins)
        try:
            builder = EngineBuilder(context, self._cache or EngineCache(), Reporter(self._wake), self._ranges)
        except BackendUnavailableError as error:
            return error
        build = yield from map_generator_items(
            _build_and_measure_once(builder, config, build_number, self._feeds_by_config[config]),
            lambda step: step if isinstance(step, WaitStep) else None,
        )
        if isinstance(build, TrtTuiError):
            return build
        return replace(build, result=replace(build.result, builder_warnings=list_known_warnings(builder.printed)))


def build_engines_in_parallel(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, configs: Sequence[PrecisionConfig]
) -> Steps[None]:
    """Builds the engines of several configs on workers and stores the results. Without workers, nothing is built.

    A config whose first build fails is built again in this process.
    """
    build_counts = {
        config: choose_build_plan(workspace, config).builds_per_config
        for config in dict.fromkeys(configs)
        if store.load_engine_result(workspace, config) is None
    }
    items = [(config, index) for config, builds in build_counts.items() for index in range(builds)]
    if workspace.worker_pool is None or workspace.worker_pool.failure_reason or len(items) < 2:
        return
    executor = get_executor(workspace, reporter, for_engines=True)
    results: dict[ConfigBuild, BuildOutput | TrtTuiError] = {}
    task = BuildTask(
        workspace.ranges,
        {config: workspace.find_judged_feeds(config) for config in build_counts},
        store.engines,
        reporter.wake,
    )
    for finished in executor.map(task, items):
        if finished is not None:
            (config, _), builds = finished[0], build_counts[finished[0][0]]
            results[finished[0]] = finished[1]
            if all((config, index) in results for index in range(builds)):
                outputs = [results.pop((config, index)) for index in range(builds)]
                if not isinstance(outputs[0], TrtTuiError):
                    store.save_engine_result(
                        workspace,
                        config,
                        _store_worst_build(EngineBuilder(workspace, store.engines, reporter), outputs),
                    )
                build_counts.pop(config)
        done = len(items) - (sum(build_counts.values()) - len(results))
        reporter.send_progress(f"building {len(items)} engines{executor.location_text}", done, len(items))
        yield choose_next_job_step(executor, Urgency.BUILD)


# -- production --------------------------------------------------------------------------------------------------------


def run_write_engine_job(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, request: rq.WriteEngine
) -> Steps[None]:
    """Builds the engine of a config and writes it to a file, without measuring its accuracy."""
    plan, network = workspace.build_plan, workspace.network
    builder = EngineBuilder(workspace, None if plan.settings.builder_options.timing_cache else store.engines, reporter)
    report_known_defects(workspace, reporter, request.config, workspace.build_target)
    builder.ranges, no_data_reason = collect_ranges_for_export(
        workspace, store, reporter, request.config, request.config_calibration
    )
    workspace.require_unchanged_files()
    data_shapes = {}
    if workspace.options.data is not None:
        data_profile = find_shape_profile(network, workspace.data_sets.judged_samples, workspace.feeds)
        data_shapes = {name: shapes for name, shapes in data_profile.items() if name not in plan.settings.profile}
    settings = replace(plan.settings, tf32=request.config.tf32, profile={**data_shapes, **plan.settings.profile})
    engine = yield from builder.build(request.config, replace(plan, settings=settings))
    write_file_atomically(Path(request.path), engine.data)
    _send_short_messages(builder)
    info_lines = (
        *_engine_info_lines(builder, engine),
        *(
            f"{name}: {' to '.join('x'.join(map(str, shape)) for shape in (shapes[0], shapes[2]))}, as in "
            "the data (--shapes sets another profile)"
            for name, shapes in data_shapes.items()
        ),
    )
    deviation = "" if engine.attempts[-1].has_requested_precisions else engine.attempts[-1].changes_text
    reporter.send(ev.ConfigExported(reporter.job, (request.path,), info_lines, no_data_reason, deviation))


def _engine_info_lines(builder: EngineBuilder, engine: BuiltEngine) -> tuple[str, ...]:
    """Returns the lines that describe a written engine: builder, origin, options and failed attempts."""
    backend, settings = builder.backend, builder.workspace.build_plan.settings
    compute_capability = settings.compute_capability
    builder_text = f"{backend.name} {backend.version}"
    builder_text += (
        f" for compute capability {compute_capability[0]}.{compute_capability[1]}"
        if compute_capability is not None
        else f" on {backend.device}"
    )
    origin_text = (
        "taken from the engine cache"
        if engine.origin == "engine cache"
        else (f"built in {duration_text(engine.seconds)}" + " with a timing cache" * (engine.origin == "timing cache"))
    )
    limit_lines = () if can_run_engines(backend, settings) else ("It cannot run on this machine.",)
    request_lines = (
        (f"requested: {', '.join(options_text)}",)
        if (options_text := settings.builder_options.requested_option_texts)
        else ()
    )
    attempt_lines = [f"failed {attempt.changes_text}: {attempt.failure_reason}" for attempt in engine.attempts[:-1]]
    attempt_lines += (
        [f"built with {engine.attempts[-1].changes_text}"] if engine.attempts[-1].name == LOWEST_EFFORT else []
    )
    return (f"{builder_text}, {origin_text}", *request_lines, *attempt_lines, *limit_lines, *engine.notes)


# -- errors inside an engine -------------------------------------------------------------------------------------------


def send_engine_errors(
    workspace: Workspace,
    store: ResultStore,
    reporter: JobReporter,
    config: PrecisionConfig,
    use_marked_engine: bool,
) -> Steps[None]:
    """Measures, stores and sends the errors at the groups inside the engine of a config.

    Nothing is sent if the config has no engine, or the engine was not built as requested.

    Args:
        use_marked_engine: True to measure a second engine with the groups' results as outputs; False for the engine as
            built.
    """
    backend, result = workspace.builder, store.load_engine_result(workspace, config)
    if (
        backend is None
        or result is None
        or result.accuracy is None
        or not result.is_built_as_requested
        or not can_run_engines(backend, workspace.build_plan.settings)
    ):
        return
    source = MARKED if use_marked_engine else UNFUSED
    if result.engine_errors is not None and result.engine_errors.source == source:
        reporter.send(ev.EngineBuilt(reporter.job, config, result))
        return
    try:
        errors = yield from (_measure_marked_engine_errors if use_marked_engine else _measure_debug_tensor_errors)(
            EngineBuilder(workspace, store.engines, reporter, phase_prefix="marked engine: "), config
        )
    except (CancelledError, BackendUnavailableError):
        raise
    except TrtTuiError as error:  # reported once, in place of the values
        errors = EngineErrors(source, missing_reason=": ".join(filter(None, (error.title, error.cause))))
    else:
        store.save_engine_result(workspace, config, replace(result, engine_errors=errors))
    reporter.send(ev.EngineBuilt(reporter.job, config, replace(result, engine_errors=errors)))


def _measure_debug_tensor_errors(builder: EngineBuilder, config: PrecisionConfig) -> Steps[EngineErrors]:
    """Returns the errors at the kernel results of the engine as built, read from its debug tensors."""
    workspace, backend = builder.workspace, builder.backend
    network, engine = workspace.network, (yield from _build_engine_as_requested(builder, config))
    lowered = lower_for_builder(
        network, config, builder.ranges, backend.capabilities, backend.name, workspace.build_plan.weakly_typed
    )
    with backend.load_engine(engine.data) as runner:
        text = runner.inspect()
        ends = find_kernel_results(read_engine_report(text, network), network, lowered.model, text)
        ends = {group: end for group, end in ends.items() if end.tensor not in network.blocking_plugins}
        tensors = {group: end.tensor for group, end in ends.items()}
        return (
            yield from builder.reporter.run_steps(
                _measure_group_errors_in_engine(
                    workspace, config, UNFUSED, partial(read_kernel_outputs, runner, ends), tensors
                )
            )
        )


def _measure_marked_engine_errors(builder: EngineBuilder, config: PrecisionConfig) -> Steps[EngineErrors]:
    """Returns the errors at the groups of a marked engine, which has every group's result as an output."""
    workspace, result_tensors = builder.workspace, find_results_usable_as_outputs(builder.workspace.network)
    engine = yield from _build_engine_as_requested(builder, add_group_results_as_outputs(workspace.network, config))
    with builder.backend.load_engine(engine.data) as runner:
        errors = yield from builder.reporter.run_steps(
            _measure_group_errors_in_engine(
                workspace, config, MARKED, partial(read_marked_outputs, runner, result_tensors), result_tensors
            )
        )
        accuracy = yield from builder.reporter.run_steps(
            measure_engine_accuracy(workspace.analysis, runner, workspace.find_judged_feeds(config))
        )
    return replace(errors, accuracy=accuracy)


def find_results_usable_as_outputs(network: Network) -> dict[str, str]:
    """Returns the result tensor of each group that can become an output of an engine, by group name."""
    output_names = {info.name for info in network.outputs}
    return {
        group.name: group.final_tensor
        for group in network.groups
        if group.final_tensor not in network.blocking_plugins
        and (group.final_tensor in output_names or not BarrierMove().refusal_reason(network, group.final_tensor))
    }


def add_group_results_as_outputs(network: Network, config: PrecisionConfig) -> PrecisionConfig:
    """Returns a config in which every group's result is an output."""
    output_names = {info.name for info in network.outputs}
    return config.with_moves(
        {tail: BarrierMove() for tail in find_results_usable_as_outputs(network).values() if tail not in output_names}
    )


def _measure_group_errors_in_engine(
    workspace: Workspace,
    config: PrecisionConfig,
    error_source: str,
    read_group_results: ReadGroupResults,
    result_by_group: Mapping[str, str],
) -> ProgressSteps[EngineErrors]:
    feed_indices = workspace.find_group_error_feeds(config)
    errors = EngineErrors(error_source)
    group_names = [group.name for group in workspace.network.groups]
    for done, groups in enumerate(
        measure_engine_errors(workspace.analysis, config, read_group_results, result_by_group, feed_indices), 1
    ):
        errors = EngineErrors(
            error_source,
            dict(groups),
            tuple(name for name in group_names if name not in groups),
            workspace.count_samples(feed_indices[:done]),
        )
        yield Progress("errors inside the engine", done, len(feed_indices))
    return (
        errors
        if errors.group_errors
        else replace(
            errors,
            missing_reason="no debug tensor of the engine can be assigned to a fused layer",
            hidden_groups=tuple(group_names),
        )
    )


def _build_engine_as_requested(builder: EngineBuilder, config: PrecisionConfig) -> Steps[BuiltEngine]:
    """Returns the engine of a config, from the cache or built without the fallback ladder."""
    workspace = builder.workspace
    settings = make_build_settings(
        workspace.analysis,
        workspace.find_judged_feeds(config),
        workspace.build_plan,
        config,
        debug_tensors=builder.backend.capabilities.debug_tensors,
    )
    return builder.build(
        config, replace(workspace.build_plan, settings=settings, strict=True), workspace.analysis.extra_outputs
    )
