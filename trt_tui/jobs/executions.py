"""The executions of what configs become: the accuracy and latency of engines, and the accuracy of exported files."""

import os
import queue
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from trt_tui.backends.onnxruntime_exported import ExportedFileRunner
from trt_tui.backends.onnxruntime_releases import truncates_fp16_quantization
from trt_tui.core.data.adaptive_runner import load_adaptive_runner
from trt_tui.core.engines.fallback_ladder import LADDER_REASON, LOWEST_EFFORT
from trt_tui.core.engines.group_implementations import find_group_implementations
from trt_tui.core.engines.inspector import EngineReport, read_engine_report
from trt_tui.core.exporters.formats import write_export
from trt_tui.core.lowering.lowering_checks import tensorrt_operators_text
from trt_tui.core.measure.accuracy_reducer import AccuracyReducer, convert_to_comparable_array
from trt_tui.core.measure.analysis import Analysis, Fp32Run
from trt_tui.core.measure.engine_agreement import find_groups_in_other_precision, find_unquantized_groups_caveat
from trt_tui.core.measure.failed_runs import FailedRunOutputs, run_failure_caveat
from trt_tui.core.measure.judged_outputs import list_tensor_outputs
from trt_tui.core.measure.reference import no_common_tensors_error
from trt_tui.core.measure.results import NO_ENGINE_DOUBT, Accuracy, Caveat, EngineResult, ExportedRun, ProfileLatency
from trt_tui.core.measure.run_sources import IndexedRunSource, RunSource
from trt_tui.core.measure.runs import Run, RunKind
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.model_outputs import extract_subgraph_of_outputs
from trt_tui.core.network.network import Network
from trt_tui.core.network.randomness import is_random
from trt_tui.core.precision import Precision
from trt_tui.core.runner import BuildSettings, EngineRunner, FixedShape, Runner
from trt_tui.errors import CancelledError, InputError, RunFailedError, TrtTuiError
from trt_tui.files.scratch import create_scratch_folder
from trt_tui.formatting import name_list_text
from trt_tui.jobs.child_exit import ChildProcess, diagnose_exit
from trt_tui.jobs.engine_build import BuiltEngine, EngineBuilder
from trt_tui.jobs.scheduler import JobReporter, take_last_value
from trt_tui.jobs.steps import Progress, ProgressSteps, Steps, Urgency, Wait
from trt_tui.jobs.store import ResultStore
from trt_tui.workspace import BuildPlan, Workspace, can_run_engines, find_shape_profile

PROFILING_RUNS = 10

ENGINE_RUN = Run("the engine", RunKind.BUILT_ENGINE)
"""The run of an engine of the config at hand."""

WARM_UP_RUNS = 3
TIMED_RUNS = 50
"""The number of timed executions."""

LatencyTimes = tuple[float, float, float]
"""The median, minimum and maximum latency in milliseconds."""

TYPED_NETWORK_RUNS = "runs of the typed network"
"""The name of the executions of a typed network. They have no fallback to the host, which computes in other types."""

_MAX_FP32_ROW_ERROR = 1e-4
"""The maximum difference between the FP32 results of equal samples of one batch."""


def judge_engine(builder: EngineBuilder, config: PrecisionConfig, feed_indices: Sequence[int],
                 plan: BuildPlan) -> Steps[EngineResult]:
    """Builds the engine of a config and measures its accuracy and latency.

    Apart from the network's outputs, only judged tensors before plugins become outputs of the engine. Latency is
    measured without a profiler, and the time of each layer in separate executions.

    Raises:
        InputError: The release does not support the config, or refuses the network.
        TrtTuiError: The build or an execution failed.
    """
    analysis, backend = builder.workspace.analysis, builder.backend
    plan.settings.builder_options.check_builder_support(backend.name, backend.version)  # also those of production alone
    settings = make_build_settings(analysis, feed_indices, plan, config,
                                   debug_tensors=backend.capabilities.debug_tensors)
    kept_tensors = analysis.extra_outputs
    engine = yield from builder.build(config, replace(plan, settings=settings), kept_tensors)
    result = EngineResult(
        None, builder.title, None, len(engine.data), engine.seconds, "; ".join(
            (*engine.notes, *_builder_options_note(plan), *_low_effort_note(engine),
             *_extra_outputs_note(kept_tensors))), backend.device, build_origin=engine.origin,
        attempts=engine.attempts,
        other_precisions=find_groups_in_other_precision(analysis.network, config, engine.attempts[-1], {}))
    if can_run_engines(backend, settings):
        return (yield from builder.follow(_measure_engine(builder, config, feed_indices, plan, engine, result)))
    compute_capability = settings.compute_capability
    capability_text = (f" for compute capability {compute_capability[0]}.{compute_capability[1]}"
                       if compute_capability else "")
    return replace(result, measurement_note="; ".join(
        filter(None, (f"built{capability_text}; it cannot run on this machine", result.measurement_note))))


def _measure_engine(builder: EngineBuilder, config: PrecisionConfig, feed_indices: Sequence[int], plan: BuildPlan,
                    engine: BuiltEngine, result: EngineResult) -> ProgressSteps[EngineResult]:
    """Returns the result of a built engine with its accuracy and latency."""
    analysis, network = builder.workspace.analysis, builder.workspace.network
    yield Progress("loading the engine")
    with builder.backend.load_engine(engine.data) as runner:
        # The FP32 engine checks the build. It is compared with FP32 in ONNX Runtime, whatever the reference.
        against_own_fp32 = config == PrecisionConfig.from_precision(Precision.FP32)
        accuracy = yield from measure_engine_accuracy(analysis, runner, feed_indices, against_own_fp32=against_own_fp32)
        unequal_outputs = find_batch_dependent_outputs(analysis, runner, feed_indices[0])
        shape_accuracies: dict[str, Accuracy] = {}
        missing_parts: list[str] = []
        for name, shape_analysis in plan.other_shapes.items():
            phase = f"measuring at the {name} shape"
            try:
                shape_accuracies[name] = yield from measure_engine_accuracy(shape_analysis, runner,
                                                                            range(len(shape_analysis.samples)), phase)
            except TrtTuiError as error:  # the verdict so far is kept
                missing_parts.append(f"not measured at the {name} shape: {error.title}")
        feed = analysis.samples.read_full_feed(feed_indices[0])
        batch = analysis.samples.count_rows_of_full_feed(feed_indices[0])
        note = "; ".join(filter(None, (f"batch {batch}", result.measurement_note, *missing_parts)))
        result = yield from add_engine_performance(
            replace(result, accuracy=accuracy, measurement_note=note, shape_accuracies=shape_accuracies,
                    unequal_outputs=unequal_outputs), runner, network, feed, batch)
    if plan.weakly_typed:
        caveats = find_unquantized_groups_caveat(network, config, result.implementations)
        result = replace(result, accuracy=replace(accuracy, caveats=(*accuracy.caveats, *caveats)))
    result = replace(result, other_precisions=find_groups_in_other_precision(
        network, config, engine.attempts[-1], result.implementations))
    if result.is_built_as_requested:
        return result
    return replace(result, simulated_accuracy=(yield from _simulate_built_config(
        analysis, config, result.other_precisions, builder.ranges, feed_indices)))


def add_engine_performance(result: EngineResult, runner: EngineRunner, network: Network, feed: Mapping[str, np.ndarray],
                           sample_count: int) -> ProgressSteps[EngineResult]:
    """Returns the result of an engine with its latency, its memory and its layers.

    A part that cannot be measured is only noted, so that the measured accuracy is kept.
    """
    result = yield from add_engine_latencies(result, runner, feed, sample_count)
    yield Progress("timing the layers")
    engine_report, missing = _time_engine_layers(runner, network, feed)
    return replace(
        result, device_memory_bytes=runner.device_memory, engine_report=engine_report,
        implementations=find_group_implementations(engine_report, network) if engine_report is not None else {},
        measurement_note="; ".join(filter(None, (result.measurement_note, missing))))


def make_build_settings(analysis: Analysis, feed_indices: Sequence[int], plan: BuildPlan, config: PrecisionConfig, *,
                        debug_tensors: bool = False) -> BuildSettings:
    """Returns the build settings of an engine that is measured on some feeds."""
    settings = replace(plan.settings, tf32=config.tf32,
                       builder_options=plan.settings.builder_options.options_for_measured_engine,
                       debug_tensors=debug_tensors)
    return replace(settings,
                   profile={**find_shape_profile(analysis.network, analysis.samples, feed_indices), **settings.profile})


def _simulate_built_config(analysis: Analysis, config: PrecisionConfig, deviating_precisions: Mapping[str, Precision],
                           ranges: Mapping[str, float],
                           feed_indices: Sequence[int]) -> ProgressSteps[Accuracy | None]:
    """Returns the simulated accuracy of a config with the precisions that TensorRT has built; None if the simulation
    refuses them."""
    for name, precision in deviating_precisions.items():
        config = config.with_group_precision([analysis.network.get_group(name)], precision, LADDER_REASON)
    try:
        return (yield from take_last_value(analysis.measure_accuracy(config, ranges, feed_indices),
                                           "simulating the built precisions"))
    except InputError:
        return None


def _builder_options_note(plan: BuildPlan) -> list[str]:
    production = plan.settings.builder_options
    weights = ", measured with its weights" if production.strip_plan else ""
    return [f"built with {', '.join(production.requested_option_texts)}{weights}"
            ] if production.requested_option_texts else []


def _low_effort_note(engine: BuiltEngine) -> tuple[str, ...]:
    if engine.attempts[-1].name != LOWEST_EFFORT:
        return ()
    return ((
        f"the builder failed at its default optimization level ({engine.attempts[0].failure_reason}): built with "
        f"{engine.attempts[-1].description}, so neither latency nor size is the best", ))


def _extra_outputs_note(extra_outputs: Sequence[str]) -> list[str]:
    return [f"built with the additional outputs {name_list_text(extra_outputs)}, which are "
            "judged"] if extra_outputs else []


def measure_lowered_network_accuracy(analysis: Analysis, model: ir.Model, feed_indices: Sequence[int]
                                     ) -> ProgressSteps[Accuracy]:
    """Executes a lowered network with every operator as written in the simulation backend. Returns its accuracy.

    Raises:
        InputError: The backend refuses the network.
    """
    network = analysis.network
    if network.blocking_plugins or analysis.extra_outputs:
        model = extract_subgraph_of_outputs(model, [*list_tensor_outputs(network), *analysis.extra_outputs])
    with load_adaptive_runner(analysis.backend, model, analysis.samples, TYPED_NETWORK_RUNS, allow_host=False,
                              optimize=False) as runner:
        return (yield from measure_engine_accuracy(analysis, runner, feed_indices, "measuring the export",
                                                   Run("the export", RunKind.TYPED_NETWORK)))


def measure_engine_accuracy(analysis: Analysis, runner: Runner, feed_indices: Sequence[int],
                            phase: str = "measuring the engine", run: Run = ENGINE_RUN,
                            against_own_fp32: bool = False) -> ProgressSteps[Accuracy]:
    """Executes an engine on some feeds, yields the progress, and returns the accuracy at the judged outputs.

    Args:
        against_own_fp32: True to compare with FP32 of the network, whatever the reference.

    Raises:
        InputError: The engine lacks an output, whose error could not be measured.
    """
    source = EngineRun(run, runner, analysis)
    if missing := [name for name in (*list_tensor_outputs(analysis.network), *analysis.extra_outputs)
                   if name not in source.available_tensors]:
        raise InputError(f"the built engine lacks outputs of {analysis.network.name}: {name_list_text(missing)}",
                         f"it yields {name_list_text([info.name for info in runner.outputs])}", "Report this network.")
    return (yield from take_last_value(analysis.compare(
        source, feed_indices, reference=Fp32Run(analysis) if against_own_fp32 else None,
        with_caveats=not against_own_fp32), phase))


class EngineRun(IndexedRunSource):
    """The execution of a loaded engine, or of another network that a backend executes as written.

    Raises:
        InputError: The engine has an input that the network lacks, or none of the network's outputs.
    """

    def __init__(self, run: Run, runner: Runner, analysis: Analysis) -> None:
        network, name = analysis.network, Path(run.file_path).name or run.name
        network_inputs = {info.name: info for info in network.inputs}
        if unknown := [info.name for info in runner.inputs if info.name not in network_inputs]:
            raise InputError(f"{name} has an input that {network.name} lacks: {unknown[0]}",
                             f"{name} takes {name_list_text([info.name for info in runner.inputs])}, {network.name} "
                             f"{name_list_text(list(network_inputs))}", "Name the engine of this network.")
        names = (*list_tensor_outputs(network), *analysis.extra_outputs)
        super().__init__(run, {info.name for info in runner.outputs}.intersection(names))
        if not self.available_tensors:
            raise no_common_tensors_error(name, [info.name for info in runner.outputs], network.name, names)
        self._input_types = {info.name: info.dtype for info in runner.inputs}
        self.runner, self._analysis = runner, analysis

    def make_feed(self, feed_index: int) -> dict[str, np.ndarray]:
        """Returns a feed in the input types of the engine, filled up to a fixed batch."""
        feed = self._analysis.samples.read_full_feed(feed_index)
        return {name: feed[name].astype(dtype, copy=False) for name, dtype in self._input_types.items()}

    def get_outputs(self, feed_index: int) -> Mapping[str, np.ndarray]:
        try:
            outputs = self.runner.run(self.make_feed(feed_index), sorted(self.available_tensors))
        except RunFailedError as error:
            return FailedRunOutputs(self._analysis.get_fp32_outputs(feed_index),
                                    run_failure_caveat(self._analysis.network, None, error))
        return cast_to_declared_types(self._analysis, self._analysis.samples.remove_padding(outputs, feed_index))

    def close(self) -> None:
        self.runner.close()


def find_batch_dependent_outputs(analysis: Analysis, runner: Runner, feed_index: int) -> tuple[str, ...]:
    """Returns the float outputs of an engine whose rows differ in any bit for a batch of equal samples.

    The batch repeats one sample. Outputs at which FP32 of the network itself mixes the samples of a batch are left out.
    """
    rows, feed = analysis.samples.count_rows_of_full_feed(feed_index), analysis.samples.read_full_feed(feed_index)
    if rows < 2 or not any(array.ndim and len(array) == rows for array in feed.values()):
        return ()
    repeated_feed = {name: np.repeat(array[:1], rows, axis=0) if array.ndim and len(array) == rows else array
                     for name, array in feed.items()}
    names = list_tensor_outputs(analysis.network)

    def find_outputs_with_unequal_rows(outputs: Mapping[str, np.ndarray], tolerance: float) -> list[str]:
        return [name for name, array in outputs.items() if array.ndim and len(array) == rows and array.dtype.kind == "f"
                and not np.allclose(array[1:], array[:1], rtol=tolerance, atol=tolerance, equal_nan=True)]

    unequal = find_outputs_with_unequal_rows(runner.run(repeated_feed, names), 0.0)
    unequal = [name for name in unequal if name in analysis.network.producer]
    if unequal:
        with load_adaptive_runner(analysis.backend, extract_subgraph_of_outputs(analysis.network.model, unequal),
                                  analysis.samples, low_memory=True, few_executions=True) as reference:
            grouped = find_outputs_with_unequal_rows(reference.run(repeated_feed, unequal), _MAX_FP32_ROW_ERROR)
        unequal = [name for name in unequal if name not in grouped]
    return tuple(unequal)


def cast_to_declared_types(analysis: Analysis, outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns outputs in the types that the network declares. An engine may return INT32 for INT64."""
    network = analysis.network
    types = {info.name: info.dtype for info in network.outputs}
    types |= dict.fromkeys(analysis.extra_outputs, np.dtype(np.float32))
    return {name: array.astype(types[name], copy=False) if array.dtype.kind != "U" else array
            for name, array in ((name, convert_to_comparable_array(value)) for name, value in outputs.items())}


def _time_engine_layers(runner: EngineRunner, network: Network, feed: Mapping[str, np.ndarray]
                        ) -> tuple[EngineReport | None, str]:
    """Returns the engine layers with their times, and a text about missing parts ("" if nothing is missing)."""
    try:
        engine_report = read_engine_report(runner.inspect(), network)
    except InputError as error:
        return None, f"its layers are unknown: {error.title}"
    try:
        return engine_report.with_layer_times(runner.layer_times_ms(feed, PROFILING_RUNS)), ""
    except TrtTuiError as error:
        return engine_report, f"its layers could not be timed: {error.title}"


def add_engine_latencies(result: EngineResult, runner: EngineRunner, feed: Mapping[str, np.ndarray],
                         sample_count: int) -> ProgressSteps[EngineResult]:
    """Returns the result of an engine with its latencies, with inputs and outputs on the device.

    They are those of enqueued executions and of executions as one CUDA graph. If there are several optimization
    profiles, those in each profile are added.

    Args:
        sample_count: The number of samples in the feed.
    """
    latency, graph, missing_parts = yield from _time_enqueue_and_cuda_graph(runner, feed)
    profiles: list[ProfileLatency] = []
    for index, profile in enumerate(runner.profiles):
        profile_feed = reshape_feed(feed, {name: opt_shape for name, (_, opt_shape, _) in profile.items()})
        runner.select_profile(index)
        try:
            enqueued, graph_times, missing = yield from _time_enqueue_and_cuda_graph(runner, profile_feed)
        finally:
            runner.select_profile(None)
        profiles.append(
            ProfileLatency(
                {
                    name: shapes
                    for name, shapes in profile.items()
                    if len({shape
                            for other_profile in runner.profiles
                            for shape in other_profile[name]}) > 1
                }, count_samples_of_reshaped_feed(feed, profile_feed, sample_count), enqueued, graph_times,
                "; ".join(missing)))
    return replace(result, latency_ms=latency, cuda_graph_ms=graph, profile_latencies=tuple(profiles),
                   measurement_note="; ".join(filter(None, (result.measurement_note, *missing_parts))))


def _time_enqueue_and_cuda_graph(
    runner: EngineRunner, feed: Mapping[str, np.ndarray]
) -> ProgressSteps[tuple[LatencyTimes | None, LatencyTimes | None, tuple[str, ...]]]:
    try:
        latency = yield from measure_latency(lambda: runner.latency_ms(feed))
    except TrtTuiError as error:
        return None, None, (f"its latency could not be measured: {error.title}",)
    try:
        graph = yield from measure_latency(lambda: runner.graph_latency_ms(feed))
    except TrtTuiError as error:
        return latency, None, (f"not timed as a CUDA graph: {error.cause or error.title}",)
    return latency, graph, ()


def measure_latency(time_run_ms: Callable[[], float]) -> ProgressSteps[LatencyTimes]:
    """Measures the latency over `TIMED_RUNS` executions, after `WARM_UP_RUNS`. Yields the progress."""
    for _ in range(WARM_UP_RUNS):
        time_run_ms()
    times: list[float] = []
    while len(times) < TIMED_RUNS:
        times.append(time_run_ms())
        yield Progress("timing", len(times), TIMED_RUNS)
    return (statistics.median(times), min(times), max(times))


def reshape_feed(feed: Mapping[str, np.ndarray], shapes: Mapping[str, FixedShape]) -> dict[str, np.ndarray]:
    """Returns a feed in other shapes. Along each axis the values are cut off or repeated, so that indices stay valid.
    """
    reshaped = dict(feed)
    for name, shape in shapes.items():
        array = feed[name]
        for axis, size in enumerate(shape):
            if array.shape[axis] != size:
                array = np.take(array, np.arange(size) % max(1, array.shape[axis]), axis=axis)
        reshaped[name] = np.ascontiguousarray(array)
    return reshaped


def count_samples_of_reshaped_feed(feed: Mapping[str, np.ndarray], reshaped_feed: Mapping[str, np.ndarray],
                                   sample_count: int) -> int:
    """Returns the number of samples in a reshaped feed, from the first axis of an input whose first axis counts the
    samples."""
    sizes = [len(reshaped_feed[name]) for name, array in feed.items() if array.ndim and len(array) == sample_count]
    return max(sizes, default=sample_count)


# -- exported files ---------------------------------------------------------------------------------------------------

LOG_BYTES = 4096
"""The number of bytes at the end of the process's output that are searched for the reason of a crash."""

_STORE_KIND = "exported network"
"""The name under which executions of exported files are stored."""


class _NotExecutedError(TrtTuiError):
    """An exported file was not executed; the title is the reason."""


def execute_exported_file(workspace: Workspace, store: ResultStore, reporter: JobReporter, config: PrecisionConfig,
                          urgency: Urgency, feed_indices: Sequence[int] | None = None) -> Steps[ExportedRun]:
    """Executes the exported file of a config on the judged samples, or takes the result from the store. Returns the
    result.

    The executed bytes are those that ``export --format onnx`` writes. `trt_tui.backends.onnxruntime_exported` lists the
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
    reporter.send_progress("exporting the network", 0, 0, time.monotonic())
    yield urgency
    try:
        with create_scratch_folder() as folder:
            path = folder / "exported.onnx"
            _export_onnx(workspace, config, path)
            yield urgency
            accuracy, options = yield from _measure_exported_file_accuracy(
                workspace, reporter, config, path, urgency, feed_indices or workspace.find_judged_feeds(config))
            exported_run = replace(exported_run, options=options,
                                   executor_name=" ".join(filter(None, (exported_run.executor_name, options))))
    except CancelledError:
        raise
    except TrtTuiError as error:
        return replace(exported_run, missing_reason=": ".join(filter(None, (error.title, error.cause))))
    rounding_text = (" with FP16 values quantized in FP32, because this release truncates them"
                     if truncates_fp16_quantization() else "")
    caveat = Caveat("no engine", f"{exported_run.executor_name} executed it{rounding_text}, and {NO_ENGINE_DOUBT}")
    exported_run = replace(exported_run, accuracy=replace(accuracy, caveats=(*accuracy.caveats, caveat)))
    if feed_indices is None:
        store.save_result(workspace, _STORE_KIND, config, exported_run)
    return exported_run


def find_stored_exported_run(workspace: Workspace, store: ResultStore, config: PrecisionConfig) -> ExportedRun | None:
    return store.load_result(workspace, _STORE_KIND, config, ExportedRun)


def _export_onnx(workspace: Workspace, config: PrecisionConfig, path: Path) -> None:
    network = workspace.network
    random_nodes = [node.name or node.op_type for node in network.model.graph.all_nodes() if is_random(node)]
    if random_nodes:
        raise _NotExecutedError(
            f"it draws random numbers in {name_list_text(random_nodes, max_count=2)}, so two runs differ by chance")
    if network.blocking_plugins:
        raise _NotExecutedError("it holds plugins, which ONNX Runtime does not have")
    if texts := tensorrt_operators_text(network, config):
        raise _NotExecutedError(
            f"its layers in {texts} contain operators of TensorRT, which ONNX Runtime does not have")
    write_export("onnx", path, network, config, workspace.ranges)


def _measure_exported_file_accuracy(workspace: Workspace, reporter: JobReporter, config: PrecisionConfig, path: Path,
                                    urgency: Urgency, feed_indices: Sequence[int]) -> Steps[tuple[Accuracy, str]]:
    """Executes an exported file in a separate process. Returns its accuracy at the network's outputs, and the options
    that the file needed to load."""
    analysis, options = workspace.analysis, workspace.options
    names = tuple(name for name in list_tensor_outputs(workspace.network) if name in
                  {info.name for info in workspace.network.outputs})
    if not any(output.tensor in names for output in analysis.judged_outputs):
        raise _NotExecutedError("no judged tensor is an output of the exported network")
    process = _ExportedRunProcess(
        partial(ExportedFileRunner, str(path), workspace.backend.provider, tf32=config.tf32, threads=options.threads,
                operators=tuple(map(os.path.abspath, options.ort_ops))), names, reporter.wake)
    source = _ExportedFileRun(analysis, process, names, urgency)
    try:
        partials = analysis.compare(source, feed_indices, with_caveats=False)
        accuracy = yield from reporter.follow(take_last_value(partials, "executing the exported network"), urgency)
    finally:
        process.close()
    return accuracy, source.options


class _ExportedFileRun(RunSource):
    """The run of an exported file that another process executes."""

    def __init__(self, analysis: Analysis, process: "_ExportedRunProcess", output_names: Sequence[str],
                 urgency: Urgency) -> None:
        super().__init__(Run("exported network", RunKind.EXPORTED_FILE), output_names)
        self._analysis, self._process, self.options = analysis, process, ""
        self._answer_wait = Wait(process.has_answer, frozenset(item for item in Urgency if item > urgency))

    def measure(self, reducer: AccuracyReducer, feed_indices: Sequence[int]) -> Iterator[Wait | None]:
        yield self._answer_wait
        self.options = self._process.take_answer()
        for index in feed_indices:
            samples = self._analysis.samples
            self._process.send(dict(samples.read_full_feed(index)))
            yield self._answer_wait
            outputs = samples.remove_padding(self._process.take_answer(), index)
            reducer.add_feed_outputs(index, cast_to_declared_types(self._analysis, outputs))
            yield None


class _ExportedRunProcess(ChildProcess):
    """The client of a process that executes an exported file (`trt_tui.jobs.exported_process`).

    Args:
        load_file: The function that loads the file in the process.
        names: The names of the requested outputs.
        wake: A function that a thread calls when there is an answer, or the process has ended.
    """

    def __init__(self, load_file: Callable[[], ExportedFileRunner], names: Sequence[str],
                 wake: Callable[[], None]) -> None:
        self._log = tempfile.TemporaryFile()
        super().__init__("trt_tui.jobs.exported_process", stdout=self._log, stderr=self._log)
        self._wake = wake
        self._has_ended = False
        self._answers = queue.SimpleQueue[Any]()
        self.send((load_file, names))
        self._thread = threading.Thread(target=self._read_answers, daemon=True)
        self._thread.start()

    def has_answer(self) -> bool:
        """Returns True if there is an answer, or will never be one."""
        return self._has_ended or not self._answers.empty()

    def take_answer(self) -> Any:
        """Returns the next answer of the process: first the options of the file, then the outputs for each feed.

        Raises:
            TrtTuiError: ONNX Runtime refused the file, or the process has ended.
        """
        if self._answers.empty():
            self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - LOG_BYTES))
            text = self._log.read().decode(errors="replace")
            exit_diagnosis = diagnose_exit(self.process.wait(), text, None, None)
            raise _NotExecutedError(f"ONNX Runtime crashed on the exported file: {exit_diagnosis.reason.rstrip('.')}")
        answer = self._answers.get()
        if isinstance(answer, TrtTuiError):
            raise answer
        return answer

    def close(self) -> None:
        self.process.kill()
        self.stop_sending()
        self._thread.join()
        self.process.wait()
        self.pipe.close()
        self.lifeline.close()
        self._log.close()

    def _read_answers(self) -> None:
        for answer in self.receive_messages():
            self._answers.put(answer)
            self._wake()
        self._has_ended = True
        self._wake()

