"""Stages on the way to production, each run on the judged samples and held against FP32 and the stage before."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from trt_tui.core.data.dumps import open_dump
from trt_tui.core.data.samples import Samples
from trt_tui.core.engines.group_implementations import find_group_implementations
from trt_tui.core.measure.analysis import Analysis
from trt_tui.core.measure.judged_outputs import list_tensor_outputs
from trt_tui.core.measure.production_inputs import InputDifference, compare_input_over_feeds
from trt_tui.core.measure.reference import (
    DumpedOutputs,
    ExternalOutputs,
    no_common_tensors_error,
    open_external_outputs,
)
from trt_tui.core.measure.results import Accuracy, EngineResult, failed_build_result
from trt_tui.core.measure.stages import (
    BUILT_STAGE,
    ENGINE_STAGE,
    NETWORK_STAGE,
    OUTPUTS_STAGE,
    PRODUCTION_STAGE,
    SIMULATED_STAGE,
    StageResult,
    StageSpec,
)
from trt_tui.core.measure.tensor_cache import TensorCache
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.half_precision import has_half_precision
from trt_tui.core.network.model_file import read_model
from trt_tui.core.runner import EngineRunner, Runner
from trt_tui.errors import BackendUnavailableError, CancelledError, InputError, TrtTuiError
from trt_tui.files.reading import read_bytes
from trt_tui.formatting import builder_title, name_list_text
from trt_tui.jobs import build
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.accuracy import measure_accuracy, send_reference_metric
from trt_tui.jobs.calibration import ensure_ranges
from trt_tui.jobs.engine_accuracy import cast_to_declared_types, make_build_settings, time_engine_layers
from trt_tui.jobs.engine_build import BuiltEngine, build_engine
from trt_tui.jobs.scheduler import JobReporter
from trt_tui.jobs.steps import Steps, Urgency, Wait
from trt_tui.jobs.store import ResultStore
from trt_tui.jobs.timing import EngineTiming, time_engine
from trt_tui.workspace import Workspace, can_run_engines

CONFIG_SIMULATED, CONFIG_BUILT = "the simulated config", "the config's engine"
"""What production is held against beside FP32."""


class _StageSource(Protocol):
    """What yields the tensors of a stage, for the judged feeds one after another."""

    tensors: frozenset[str]

    def compute_outputs(self, feed_index: int) -> dict[str, np.ndarray]: ...

    def close(self) -> None: ...


@dataclass
class _StageTensors:
    """What a stage has yielded."""

    tensors: frozenset[str]
    held_outputs: TensorCache


class _SimulatedStage:
    """A config in the simulation."""

    def __init__(self, workspace: Workspace, config: PrecisionConfig) -> None:
        self.tensors = frozenset(workspace.analysis.fetched_tensors)
        self._output_iterator = workspace.analysis.execute_config(config, workspace.ranges, workspace.feeds)

    def compute_outputs(self, feed_index: int) -> dict[str, np.ndarray]:
        return next(self._output_iterator)

    def close(self) -> None:
        self._output_iterator.close()  # type: ignore[attr-defined]


class _ExternalStage:
    """A dump, or another network."""

    def __init__(self, outputs: ExternalOutputs, samples: Samples) -> None:
        self.tensors, self._outputs, self._samples = outputs.available_tensors, outputs, samples

    def compute_outputs(self, feed_index: int) -> dict[str, np.ndarray]:
        return self._outputs.get_outputs(self._samples, feed_index)

    def close(self) -> None:
        self._outputs.close()


class _EngineStage:
    """A loaded engine.

    Raises:
        InputError: it takes other inputs than the network, or yields none of its outputs.
    """

    def __init__(self, runner: Runner, analysis: Analysis, name: str) -> None:
        network = analysis.network
        network_inputs = {info.name: info for info in network.inputs}
        if unknown := [info.name for info in runner.inputs if info.name not in network_inputs]:
            raise InputError(f"{name} takes an input that {network.name} has not: {unknown[0]}",
                             f"{name} takes {name_list_text([info.name for info in runner.inputs])}, {network.name} "
                             f"{name_list_text(list(network_inputs))}", "Name the engine of this network.")
        names = (*list_tensor_outputs(network), *analysis.extra_outputs)
        output_names = {info.name for info in runner.outputs}
        self.tensors = frozenset(names) & output_names
        if not self.tensors:
            raise no_common_tensors_error(name, [info.name for info in runner.outputs], network.name, names)
        self._input_types = {info.name: info.dtype for info in runner.inputs}
        self.runner, self._analysis = runner, analysis

    def get_engine_feed(self, feed_index: int) -> dict[str, np.ndarray]:
        """A feed in the types that the engine takes."""
        feed = self._analysis.samples.read_feed(feed_index)
        return {name: feed[name].astype(dtype, copy=False) for name, dtype in self._input_types.items()}

    def compute_outputs(self, feed_index: int) -> dict[str, np.ndarray]:
        return cast_to_declared_types(self._analysis,
                                      self.runner.run(self.get_engine_feed(feed_index), sorted(self.tensors)))

    def close(self) -> None:
        self.runner.close()


def run_stages_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                   request: rq.MeasureStages) -> Steps[None]:
    """Measures the stages in their order; each is sent as it is known.

    Raises:
        InputError: a file of theirs cannot be read or does not fit the network; before anything is run.
        BackendUnavailableError: an engine is named, and no TensorRT works here.
    """
    sources = {spec.name: _open_stage_source(workspace, spec) for spec in request.stages}
    yield Urgency.ACCURACY
    inputs = _compare_production_inputs(workspace, request)
    ensure_ranges(workspace, store, reporter, list(request.configs.values()))
    yield from send_reference_metric(workspace, store, reporter)
    finished: dict[str, _StageTensors] = {}
    previous: _StageTensors | None = None
    for stage_spec in request.stages:
        config = request.configs.get(stage_spec.run_name)
        stage = StageResult(stage_spec.name, stage_spec.kind, _stage_effect_text(stage_spec), stage_spec.file_path,
                            config)
        source = sources[stage_spec.name]
        if stage_spec.kind == SIMULATED_STAGE and config is not None:
            source = _SimulatedStage(workspace, config)
        if stage_spec.kind == BUILT_STAGE and config is not None:
            source, failed = yield from _build_engine_stage(workspace, store, reporter, config)
            if source is None:
                reporter.send(ev.StageMeasured(reporter.job, replace(stage, failure_reason=failed)))
                continue
        assert source is not None, "what is not built was opened"
        try:
            stage_tensors, accuracy, previous_accuracy = yield from _measure_stage(workspace, reporter, stage_spec.name,
                                                                                   source, previous)
            if stage_spec.kind == ENGINE_STAGE and isinstance(source, _EngineStage):
                engine = yield from _measure_engine_file(workspace, reporter, source, accuracy, stage_spec)
                stage = replace(stage, engine_result=engine)
        finally:
            source.close()
        if stage_spec.kind == SIMULATED_STAGE and config is not None:
            yield from _send_simulated_accuracy(workspace, store, reporter, stage_spec.run_name, config)
        stage = replace(stage, accuracy_to_previous=previous_accuracy,
                        accuracy=None if config is not None else accuracy)
        finished[stage_spec.name] = previous = stage_tensors
        if stage_spec.name == PRODUCTION_STAGE:
            comparisons = yield from _compare_production_outputs(workspace, store, reporter, request, finished)
            stage = replace(stage, other_accuracies=comparisons, input_differences=inputs)
        reporter.send(ev.StageMeasured(reporter.job, stage))


def _send_simulated_accuracy(workspace: Workspace, store: ResultStore, reporter: JobReporter, run: str,
                             config: PrecisionConfig) -> Steps[None]:
    """Sends the verdict of a config with all its caveats, as every other job sends it."""
    latest = Accuracy({})
    for accuracy in measure_accuracy(workspace, store, reporter, config):
        latest = accuracy
        yield Urgency.ACCURACY
    reporter.send(ev.AccuracyMeasured(reporter.job, run, config, latest, True))


def _stage_effect_text(stage_spec: StageSpec) -> str:
    """What a stage does to the outputs, in a word or two."""
    if stage_spec.kind == SIMULATED_STAGE:
        return "its precisions"
    if stage_spec.kind in (BUILT_STAGE, ENGINE_STAGE):
        return "the build"
    if stage_spec.kind == NETWORK_STAGE:
        return _network_difference_text(stage_spec.file_path)
    return "what production runs" if stage_spec.name == PRODUCTION_STAGE else "the export"


def _network_difference_text(file_path: str) -> str:
    """What another network has that makes it differ: Q/DQ, types of 16 bits, or neither."""
    graph = read_model(Path(file_path))[0].graph
    kinds = {node.op_type for node in graph}
    if any("Quantize" in kind or "Integer" in kind or kind.startswith("QLinear") for kind in kinds):
        return "quantization"
    if has_half_precision(graph):
        return "its 16-bit types"
    return "what was changed in the network"


def _open_stage_source(workspace: Workspace, stage_spec: StageSpec) -> _StageSource | None:
    """A stage of a file, ready to be run, or of the simulation; None for what is to be built."""
    network, analysis = workspace.network, workspace.analysis
    if stage_spec.kind == ENGINE_STAGE:
        return _EngineStage(_load_engine_file(workspace, stage_spec.file_path), analysis,
                            Path(stage_spec.file_path).name)
    if stage_spec.kind in (NETWORK_STAGE, OUTPUTS_STAGE):
        outputs = open_external_outputs(stage_spec.file_path, network, lambda: workspace.samples,
                                        lambda: workspace.backend, workspace.judged_outputs)
        if not any(output.tensor in outputs.available_tensors for output in workspace.judged_outputs):
            raise no_common_tensors_error(outputs.name, sorted(outputs.available_tensors), network.name,
                                          [output.tensor for output in workspace.judged_outputs])
        return _ExternalStage(outputs, analysis.samples)
    return None


def _load_engine_file(workspace: Workspace, file_path: str) -> EngineRunner:
    if workspace.builder is None:
        raise BackendUnavailableError("no TensorRT works here to load an engine", "trt-tui doctor says why",
                                      "Run it where it was built for, with --save-outputs of Polygraphy, and give "
                                      "--outputs.")
    try:
        return workspace.builder.load_engine(read_bytes(Path(file_path)))
    except InputError as error:
        raise InputError(f"{Path(file_path).name}: {error.title}", error.cause, error.next_step) from None


def _measure_stage(workspace: Workspace, reporter: JobReporter, stage_name: str, stage_source: _StageSource,
                   previous_tensors: _StageTensors | None) -> Steps[tuple[_StageTensors, Accuracy, Accuracy | None]]:
    """Runs a stage; returns what it yields, its verdict, and that against the stage before."""
    analysis, feed_indices = workspace.analysis, workspace.feeds
    judged_outputs = [output for output in analysis.judged_outputs if output.tensor in stage_source.tensors]
    common_outputs = [
        output for output in judged_outputs
        if previous_tensors is not None and output.tensor in previous_tensors.tensors
    ]
    scored = set(analysis.metric_tensors) <= stage_source.tensors and not isinstance(stage_source, _SimulatedStage)
    tally = analysis.make_accuracy_reducer(feed_indices, judged_outputs, has_metric_outputs=scored)
    previous_tally = analysis.make_accuracy_reducer(
        feed_indices, common_outputs, get_reference=previous_tensors.held_outputs.get,
        has_metric_outputs=False) if previous_tensors and common_outputs else None
    held_outputs, kept_tensors = TensorCache(), stage_source.tensors & set(analysis.fetched_tensors)
    for done, index in enumerate(feed_indices, 1):
        outputs = stage_source.compute_outputs(index)
        tally.add_feed_outputs(index, outputs)
        if previous_tally is not None:
            previous_tally.add_feed_outputs(index, outputs)
        held_outputs.put(index, {tensor: outputs[tensor] for tensor in kept_tensors})
        reporter.send(ev.JobProgress(reporter.job, f"stage {stage_name}", done, len(feed_indices)))
        yield Urgency.ACCURACY
    accuracy = analysis.add_caveats(tally.compute_accuracy(), feed_indices)
    for settled in tally.resample_metric_interval(accuracy):
        accuracy = settled
        yield Urgency.ACCURACY
    return _StageTensors(
        kept_tensors, held_outputs), accuracy, previous_tally.compute_accuracy() if previous_tally is not None else None


def _build_engine_stage(workspace: Workspace, store: ResultStore, reporter: JobReporter, config: PrecisionConfig
                        ) -> Steps[tuple[_StageSource | None, str]]:
    """Returns a config's engine, built and loaded, or why there is none."""
    builder, analysis = workspace.builder, workspace.analysis
    if builder is None:
        return None, "no TensorRT works here (trt-tui doctor says why)"
    try:
        result = store.load_engine_result(workspace, config) or (yield from build.build_and_judge_config(
            workspace, store, reporter, config))
    except (CancelledError, BackendUnavailableError):
        raise
    except TrtTuiError as error:
        result = failed_build_result(builder_title(builder.name, builder.version), error)
    reporter.send(ev.EngineBuilt(reporter.job, config, result))
    if result.failure_reason:
        return None, result.failure_reason
    if not can_run_engines(builder, workspace.plan.settings):
        return None, "built, and it cannot run on this machine"
    settings = make_build_settings(analysis, workspace.feeds, workspace.plan, config)
    engine: BuiltEngine | None = None
    for step in build_engine(builder, workspace.network, config, workspace.ranges, settings, cache=store.engines,
                             wake=reporter.wake, weakly_typed=workspace.plan.weakly_typed, strict=workspace.plan.strict,
                             kept_tensors=analysis.extra_outputs):
        if isinstance(step, BuiltEngine):
            engine = step
        elif isinstance(step, Wait):
            yield step
    assert engine is not None, "a build ends with an engine"
    return _EngineStage(builder.load_engine(engine.data), analysis, CONFIG_BUILT), ""


def _measure_engine_file(workspace: Workspace, reporter: JobReporter, source: _EngineStage, accuracy: Accuracy,
                         stage_spec: StageSpec) -> Steps[EngineResult]:
    """Returns what an engine in a file is: its figures, latency, and what became of each layer."""
    builder, runner = workspace.builder, source.runner
    assert builder is not None and isinstance(runner, EngineRunner), "it was loaded by a builder"
    feed = source.get_engine_feed(workspace.feeds[0])
    steps = time_engine(runner, feed, workspace.data_sets.judged_samples.count_samples_of_feed(workspace.feeds[0]))
    timing: EngineTiming | None = None
    while timing is None:
        try:
            step = next(steps)
        except StopIteration as stop:
            timing = stop.value
        else:
            reporter.send(ev.JobProgress(reporter.job, step.phase, step.done, step.total))
            yield Urgency.ACCURACY
    engine_report, missing = time_engine_layers(runner, workspace.network, feed)
    return EngineResult(
        accuracy, builder_title(builder.name, builder.version), timing.latency_ms,
        Path(stage_spec.file_path).stat().st_size,
        measurement_note="; ".join(filter(None, (*timing.missing_parts, missing))), cuda_graph_ms=timing.graph_ms,
        profile_latencies=timing.profiles, device_name=builder.device, device_memory_bytes=runner.device_memory,
        engine_report=engine_report, implementations=find_group_implementations(engine_report, workspace.network)
        if engine_report is not None else {})


# -- production -------------------------------------------------------------------------------------------------------


def _compare_production_outputs(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                                request: rq.MeasureStages,
                                finished_stages: dict[str, _StageTensors]) -> Steps[tuple[tuple[str, Accuracy], ...]]:
    """Returns the verdicts of production against the simulation of the config, engines that were named, and its own."""
    production, config = finished_stages[PRODUCTION_STAGE], request.configs["config"]
    references = {
        spec.name: finished_stages[spec.name]
        for spec in request.stages
        if spec.kind == ENGINE_STAGE and spec.name in finished_stages
    }
    sources: dict[str, _StageSource] = {CONFIG_SIMULATED: _SimulatedStage(workspace, config)}
    if workspace.builder is not None and can_run_engines(workspace.builder, workspace.plan.settings) and not references:
        engine_stage, _ = yield from _build_engine_stage(workspace, store, reporter, config)
        sources |= {CONFIG_BUILT: engine_stage} if engine_stage is not None else {}
    for name, source in sources.items():
        try:
            references[name], *_ = yield from _measure_stage(workspace, reporter, name, source, None)
        finally:
            source.close()
        if name == CONFIG_SIMULATED:
            yield from _send_simulated_accuracy(workspace, store, reporter, "config", config)
    return tuple(
        (name, _compare_stages(workspace, stage_tensors, production)) for name, stage_tensors in references.items())


def _compare_stages(workspace: Workspace, first: _StageTensors, second: _StageTensors) -> Accuracy:
    """The verdict of the second against the first."""
    analysis, feed_indices = workspace.analysis, workspace.feeds
    judged_outputs = [output for output in analysis.judged_outputs if output.tensor in first.tensors & second.tensors]
    tally = analysis.make_accuracy_reducer(feed_indices, judged_outputs, get_reference=first.held_outputs.get,
                                           has_metric_outputs=False)
    for index in feed_indices:
        tally.add_feed_outputs(index, second.held_outputs.get(index))
    return tally.compute_accuracy()


def _compare_production_inputs(workspace: Workspace, request: rq.MeasureStages) -> tuple[InputDifference, ...]:
    """How the inputs that production was given differ from those here; none where it has dumped none.

    They come from a file of their own, or stand beside the outputs.

    Raises:
        InputError: the file holds none of the inputs, or not those of these samples.
    """
    outputs = next((stage_spec.file_path for stage_spec in request.stages if stage_spec.name == PRODUCTION_STAGE), None)
    spec = request.inputs_path or outputs
    if spec is None:
        return ()
    dump, names = open_dump(spec), [info.name for info in workspace.network.inputs]
    dumped_names = [name for name in names if name in dump.tensor_names]
    if not dumped_names:
        if request.inputs_path is None:
            return ()
        raise no_common_tensors_error(dump.source, dump.tensor_names, workspace.network.name, names, "takes",
                                      "Name the arrays after the network's inputs, or name another file.")
    dumped_inputs = DumpedOutputs(dump, workspace.network, workspace.samples, uses_inputs=True)

    def iterate_input_pairs(input_name: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        samples = workspace.samples
        for index in range(len(samples)):
            yield samples.read_feed(index)[input_name], dumped_inputs.get_outputs(samples, index)[input_name]

    return tuple(compare_input_over_feeds(name, iterate_input_pairs(name)) for name in dumped_names)

