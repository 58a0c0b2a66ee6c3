"""The jobs that write files or read those of other programs: exports, bundles, stages, dumps and engines."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import onnx_ir as ir

from trt_tui.backends.registry import find_gpu_text, get_engine_builder, missing_builder_reason
from trt_tui.core.builder_options import BuilderOptions
from trt_tui.core.data.adaptive_runner import AdaptiveRunner
from trt_tui.core.data.input_files import refuse_overwriting_inputs
from trt_tui.core.data.samples import JudgedFeeds
from trt_tui.core.data.tensor_files import open_dump, write_run_results
from trt_tui.core.engines.inspector import (
    EngineReport,
    find_first_different_kernel,
    read_engine_report,
    read_profile_report,
)
from trt_tui.core.exporters.bundle import (
    FP32_FILE,
    MAX_FEEDS,
    MAX_SAMPLE_BYTES,
    TYPED_FILE,
    BundleContents,
    SampleRun,
    check_tensor_names,
    extract_subgraph,
    find_group_boundary_tensors,
    write_bundle,
    write_subgraph,
)
from trt_tui.core.exporters.formats import write_export
from trt_tui.core.exporters.registry import EXPORT_FORMATS
from trt_tui.core.lowering.network_rewrite import refuse_cubic_grid_samples, replace_all_file_precisions
from trt_tui.core.lowering.typed_network import lower_from_source_model
from trt_tui.core.measure.dump_comparison import (
    TensorDifference,
    TensorSummary,
    comparison_advice_lines,
    find_common_tensors,
    find_min_mask_magnitude,
    measure_tensor_difference,
    sort_in_network_order,
    summarize_tensor,
)
from trt_tui.core.measure.judged_outputs import list_tensor_outputs
from trt_tui.core.measure.results import Accuracy, EngineResult, Run, RunKind, RunResult, failed_build_result
from trt_tui.core.measure.run_sources import (
    IndexedRunSource,
    IterableRunSource,
    TensorCache,
    check_dump_shape,
    no_common_tensors_error,
    open_dump_run,
    open_file_run,
)
from trt_tui.core.measure.simulation import Analysis, SimulatedConfig
from trt_tui.core.measure.simulation_limits import attribute_failures_to_rounding
from trt_tui.core.measure.stages import (
    PRODUCTION_STAGE,
    STABILITY,
    STAGES,
    InputDifference,
    StageResult,
    Variation,
    batch_difference_text,
    compare_input_over_feeds,
    measure_output_spreads,
)
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.known_defects import BuildTarget, parse_release
from trt_tui.core.network.model_editing import add_outputs
from trt_tui.core.network.model_file import read_model
from trt_tui.core.network.qdq.rewrites import has_half_precision
from trt_tui.core.precision import Precision
from trt_tui.core.runner import EngineRunner
from trt_tui.errors import BackendUnavailableError, CancelledError, InputError, TrtTuiError
from trt_tui.files.reading import read_bytes
from trt_tui.files.writing import (
    fill_folder_atomically,
    open_atomic_writer,
    require_empty_folder,
    write_file_atomically,
)
from trt_tui.formatting import builder_title
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibration import (
    add_ranges_set_by_config,
    collect_calibration_for_export,
    collect_ranges_for_export,
    ensure_ranges,
)
from trt_tui.jobs.comparison import measure_final_accuracy, send_reference_metric
from trt_tui.jobs.engine import get_or_build_engine
from trt_tui.jobs.engine_build import (
    EngineBuilder,
    EngineRun,
    add_engine_performance,
    lower_for_builder,
    make_build_settings,
    report_known_defects,
    timing_cache_path,
)
from trt_tui.jobs.opening import WorkspaceSlot
from trt_tui.jobs.scheduler import JobReporter, Reporter, Steps, Urgency, override_urgency, run_to_last_value
from trt_tui.jobs.store import ResultStore
from trt_tui.workspace import Workspace, can_run_engines


def run_dump_comparison_job(
    slot: WorkspaceSlot, store: ResultStore, reporter: JobReporter, request: rq.CompareDumps
) -> Steps[None]:
    """Compares all common tensors of two dumps.

    Raises:
        InputError: A dump cannot be read, the dumps do not match each other, or they do not match the network.
    """
    reporter.send(ev.JobProgress(reporter.job, "reading the dumps", 0, 0))
    yield Urgency.OPENING
    first, second = open_dump(request.reference.file_path), open_dump(request.run.file_path)
    yield Urgency.OPENING
    common_names, only_in_reference, only_in_run = find_common_tensors(first, second)
    network = slot.workspace.network if slot.workspace is not None else None
    inputs = [info.name for info in network.inputs] if network is not None else []
    if network is not None and not any(network.has_tensor(name) for name in common_names):
        raise no_common_tensors_error(
            first.source,
            common_names,
            network.name,
            [layer_output for layer in network.layers for layer_output in layer.outputs],
        )
    for name in common_names:
        if network is not None and network.has_tensor(name):
            check_dump_shape(first, network, name)
    mask, tensor_errors = find_min_mask_magnitude(network), list[TensorDifference]()
    for index, name in enumerate(common_names):
        for result in measure_tensor_difference(first, second, name, request.threshold, mask):
            if result is not None:
                tensor_errors.append(result)
            reporter.send_progress(request.phase, index, len(common_names))
            yield Urgency.BUILD
    reference, run = (
        replace(run, name=run.name or dump.source, files=dump.files)
        for run, dump in ((request.reference, first), (request.run, second))
    )
    ordered = sort_in_network_order(tensor_errors, network, request.scaled_tensors)
    advice_texts = comparison_advice_lines(ordered, first.source, second.source, inputs, network is not None)
    reporter.send(
        ev.DumpsCompared(
            reporter.job,
            reference,
            run,
            len(first.iterations),
            tuple(ordered),
            only_in_reference,
            only_in_run,
            tuple(advice_texts),
            store.network_sha256(network) if network is not None else "",
        )
    )


def run_dump_inspection_job(
    slot: WorkspaceSlot, store: ResultStore, reporter: JobReporter, request: rq.InspectDump
) -> Steps[None]:
    """Summarizes each tensor of a dump.

    Raises:
        InputError: The dump cannot be read.
    """
    dump, summaries = open_dump(request.file_path), list[TensorSummary]()
    for index, name in enumerate(dump.tensor_names):
        for summary in summarize_tensor(dump, name):
            summaries += [summary] if summary is not None else []
            reporter.send_progress(request.phase, index, len(dump.tensor_names))
            yield Urgency.BUILD
    reporter.send(ev.DumpInspected(reporter.job, dump.source, len(dump.iterations), tuple(summaries)))


def run_save_outputs_job(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, request: rq.SaveOutputs
) -> Steps[None]:
    """Executes each config on all samples, calibration samples included, and writes the outputs as a dump."""
    network, samples = workspace.network, workspace.samples
    path = Path(request.path)
    refuse_overwriting_inputs([path], [network.path, *network.external_files])
    ensure_ranges(workspace, store, reporter, list(request.runs.values()))
    names = list_tensor_outputs(network)
    analysis = Analysis(
        network,
        workspace.backend,
        samples,
        workspace.judged_outputs,
        boundary_type=workspace.options.other,
        extra_tensors=names,
    )
    written = dict.fromkeys((*names, *analysis.fetched_tensors))
    runs = (
        (
            name,
            (
                {tensor: outputs[tensor] for tensor in written}
                for outputs in analysis.execute_config(config, workspace.ranges)
            ),
        )
        for name, config in request.runs.items()
    )
    with contextlib.closing(analysis), open_atomic_writer(path) as stream:
        for done, _ in enumerate(write_run_results(stream, runs), 1):
            reporter.send_progress(request.phase, done, len(samples) * len(request.runs))
            yield Urgency.BUILD
    reporter.send(ev.ConfigExported(reporter.job, (request.path,)))


def run_engine_inspection_job(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, request: rq.ReadEngineFile
) -> Steps[None]:
    """Reads and sends the layers of an engine file, of the inspector's JSON file, or of a profile.

    Raises:
        InputError: The file is none of these, or the engine is from another release.
        BackendUnavailableError: No TensorRT works here to load the engine.
    """
    yield from ()
    file = Path(request.path)
    data = read_bytes(file)
    if data.lstrip()[:1] == b"[":
        reporter.send(ev.EngineFileRead(reporter.job, read_profile_report(file, workspace.network)))
        return
    if file.suffix.lower() == ".json" or data[:1] == b"{" and b'"Layers"' in data[:4096]:
        text = data.decode("utf-8", "replace")
    else:
        text = _inspect_engine(workspace, data)
    reporter.send(ev.EngineFileRead(reporter.job, read_engine_report(text, workspace.network)))


def _inspect_engine(workspace: Workspace, engine_bytes: bytes) -> str:
    builder = get_engine_builder(workspace.options.backend, plugins=workspace.options.production.plugins)
    if builder is None:
        raise BackendUnavailableError(
            "no TensorRT here can load an engine",
            "trt-tui doctor shows why",
            "Give the JSON of trtexec --exportLayerInfo instead of the engine.",
        )
    with builder.load_engine(engine_bytes) as runner:
        return runner.inspect()


# -- stages -----------------------------------------------------------------------------------------------------------

CONFIG_SIMULATED, CONFIG_BUILT = "the simulated config", "the config's engine"
"""The names of the runs that production is compared with, besides FP32."""


def run_stages_job(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, request: rq.MeasureStages
) -> Steps[None]:
    """Measures the stages in their order, and sends each when it is measured.

    Raises:
        InputError: A file cannot be read or does not match the network. This error comes before any execution.
        BackendUnavailableError: An engine file is named, and no TensorRT works here.
    """
    sources = {run.name: source for run in request.runs if (source := _open_run_source(workspace, run)) is not None}
    yield Urgency.ACCURACY
    inputs = _compare_production_inputs(workspace, request)
    configs = [run.config for run in request.runs if run.config is not None]
    if any(run.name == PRODUCTION_STAGE for run in request.runs):
        configs.append(request.config)
    ensure_ranges(workspace, store, reporter, configs)
    sources |= {
        run.name: SimulatedConfig(workspace.analysis, run.config, workspace.ranges, run.name)
        for run in request.runs
        if run.kind is RunKind.SIMULATED_CONFIG and run.config is not None
    }
    yield from send_reference_metric(workspace, store, reporter, configs)
    recorded_runs: list[IndexedRunSource] = []
    engine_runs: list[IndexedRunSource] = []
    reports: list[EngineReport] = []
    batch_texts: list[str] = []
    for run in request.runs:
        stage, source = StageResult(run, _stage_effect_text(run)), sources.get(run.name)
        if source is None:
            source, failure_reason = yield from _build_engine_run(workspace, store, reporter, run)
            if source is None:
                run = replace(run, unavailable_reason=failure_reason)
                reporter.send_value(STAGES, run.name, replace(stage, run=run))
                continue
        try:
            recorded = yield from _record_run_outputs(workspace, reporter, source)
            if run.config is None:
                accuracy = yield from _compare_recorded_runs(workspace, recorded, None)
                result = (
                    (yield from _measure_engine_file(EngineBuilder(workspace, None, reporter), source, accuracy))
                    if isinstance(source, EngineRun)
                    else RunResult(accuracy)
                )
                stage = replace(stage, result=result)
            if isinstance(source, EngineRun):
                engine_runs.append(recorded)
                built = (
                    store.load_engine_result(workspace, run.config) if run.config is not None else stage.engine_result
                )
                reports += [built.engine_report] if built is not None and built.engine_report is not None else []
                batch_texts += _compare_batch_sizes(workspace, source)
        finally:
            source.close()
        if run.kind is RunKind.SIMULATED_CONFIG:
            yield from _send_simulated_accuracy(workspace, store, reporter, run.config_name, run.config)
        if recorded_runs and any(
            output.tensor in recorded.available_tensors & recorded_runs[-1].available_tensors
            for output in workspace.analysis.judged_outputs
        ):
            stage = replace(
                stage, accuracy_to_previous=(yield from _compare_recorded_runs(workspace, recorded, recorded_runs[-1]))
            )
        recorded_runs.append(recorded)
        if run.name == PRODUCTION_STAGE:
            comparisons = yield from _compare_production_outputs(workspace, store, reporter, request, recorded_runs)
            stage = replace(stage, other_accuracies=comparisons, input_differences=inputs)
        reporter.send_value(STAGES, run.name, stage)
    if len(engine_runs) > 1 or batch_texts:
        different = next(
            filter(None, (find_first_different_kernel(first, second) for first, second in combinations(reports, 2))), ""
        )
        spreads = (
            measure_output_spreads(workspace.analysis, engine_runs, _find_common_feeds(workspace, *engine_runs))
            if len(engine_runs) > 1
            else ()
        )
        reporter.send_value(
            STABILITY,
            None,
            Variation(tuple(run.run.name for run in engine_runs), spreads, different, tuple(batch_texts)),
        )


def _compare_batch_sizes(workspace: Workspace, source: EngineRun) -> list[str]:
    """Returns a sentence about the outputs of a batch and of its samples alone; [] if the engine takes one batch size."""
    samples = workspace.data_sets.judged_samples
    names, feed = samples.per_sample_array_names, source.make_feed(workspace.feeds[0])
    rows = samples.count_rows_of_full_feed(workspace.feeds[0])
    if rows < 2 or not any(name in names for name in feed):
        return []
    outputs = [name for name in sorted(source.available_tensors) if workspace.network.is_float_tensor(name)]
    batched = source.runner.run(feed, outputs)
    try:
        single = [
            source.runner.run(
                {name: array[row : row + 1] if name in names else array for name, array in feed.items()}, outputs
            )
            for row in range(rows)
        ]
    except TrtTuiError:  # the profile of the engine has no batch of one sample
        return []
    per_sample = [name for name in outputs if batched[name].ndim and len(batched[name]) == rows]
    joined = {name: np.concatenate([result[name] for result in single]) for name in per_sample}
    return [batch_difference_text(source.run.name, rows, {name: batched[name] for name in per_sample}, joined)]


def _record_run_outputs(
    workspace: Workspace, reporter: JobReporter, source: IterableRunSource
) -> Steps[IndexedRunSource]:
    """Executes a run on the samples in use. Returns its outputs, which are kept."""
    tensors, feeds = source.available_tensors & {*workspace.analysis.fetched_tensors}, workspace.feeds.all_feeds
    recorded = TensorCache()
    for done, (index, outputs) in enumerate(zip(feeds, source.iterate_outputs(feeds), strict=True), 1):
        recorded.put_tensors(index, {tensor: outputs[tensor] for tensor in tensors})
        reporter.send(ev.JobProgress(reporter.job, f"stage {source.run.name}", done, len(feeds)))
        yield Urgency.ACCURACY
    return IndexedRunSource(source.run, tensors, recorded.get_tensors)


def _find_common_feeds(workspace: Workspace, *recorded_runs: IndexedRunSource) -> JudgedFeeds:
    """Returns the feeds that judge every one of some runs. All feeds judge a run without a config."""
    return workspace.find_judged_feeds(
        *(recorded.run.config for recorded in recorded_runs if recorded.run.config is not None)
    )


def _compare_recorded_runs(
    workspace: Workspace, recorded: IndexedRunSource, reference: IndexedRunSource | None
) -> Steps[Accuracy]:
    """Returns the accuracy of a run against another run.

    Args:
        reference: The other run; None for the reference of the workspace.
    """
    is_judged = reference is None
    feeds = _find_common_feeds(workspace, recorded, *([reference] if reference is not None else []))
    return override_urgency(
        Urgency.ACCURACY,
        run_to_last_value(
            workspace.analysis.compare(
                recorded, feeds, reference=reference, with_metric=is_judged, with_caveats=is_judged
            )
        ),
    )


def _send_simulated_accuracy(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, run: str, config: PrecisionConfig | None
) -> Steps[None]:
    """Sends the accuracy of a config with all its caveats, as other jobs send it."""
    assert config is not None, "a simulated run has a config"
    accuracy = yield from measure_final_accuracy(workspace, store, reporter, config, Urgency.ACCURACY)
    reporter.send(ev.AccuracyMeasured(reporter.job, run, config, accuracy, True))


def _stage_effect_text(run: Run) -> str:
    """Returns the change that a stage makes to the outputs as a short text, such as "quantization" or "the build"."""
    if run.kind is RunKind.NETWORK_FILE:
        return _network_difference_text(run.file_path)
    if run.kind is RunKind.DUMP:
        return "the engine of production" if run.name == PRODUCTION_STAGE else "the export"
    return "its precisions" if run.kind is RunKind.SIMULATED_CONFIG else "the build"


def _network_difference_text(file_path: str) -> str:
    """Returns the difference of another network file as text: quantization, 16-bit types, or another change."""
    graph = read_model(Path(file_path))[0].graph
    kinds = {node.op_type for node in graph}
    if any("Quantize" in kind for kind in kinds):
        return "quantization"
    if has_half_precision(graph):
        return "its 16-bit types"
    return "changes of the network"


def _open_run_source(workspace: Workspace, run: Run) -> IterableRunSource | None:
    """Returns the source of the outputs of a run from a file; None for a config."""
    network, analysis = workspace.network, workspace.analysis
    if run.kind is RunKind.ENGINE_FILE:
        return EngineRun(run, _load_engine_file(workspace, run.file_path), analysis)
    if run.config is not None:
        return None
    source = open_file_run(run, network, workspace.samples, workspace.backend, workspace.judged_outputs)
    if not any(output.tensor in source.available_tensors for output in workspace.judged_outputs):
        raise no_common_tensors_error(
            Path(run.file_path).name,
            sorted(source.available_tensors),
            network.name,
            [output.tensor for output in workspace.judged_outputs],
        )
    return source


def _load_engine_file(workspace: Workspace, file_path: str) -> EngineRunner:
    if workspace.builder is None:
        raise BackendUnavailableError(
            "no TensorRT here can load an engine",
            "trt-tui doctor shows why",
            "Run it where it was built for, with --save-outputs of Polygraphy, and give --outputs.",
        )
    try:
        return workspace.builder.load_engine(read_bytes(Path(file_path)))
    except InputError as error:
        raise InputError(f"{Path(file_path).name}: {error.title}", error.cause, error.next_step) from None


def _build_engine_run(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, run: Run
) -> Steps[tuple[EngineRun | None, str]]:
    """Builds and loads the engine of a config. Returns its run, or None and the reason why there is no engine."""
    config = run.config
    assert config is not None, "a built run has a config"
    builder, analysis = workspace.builder, workspace.analysis
    if builder is None:
        return None, missing_builder_reason(workspace.options.backend)
    try:
        result = yield from get_or_build_engine(workspace, store, reporter, config)
    except (CancelledError, BackendUnavailableError):
        raise
    except TrtTuiError as error:
        result = failed_build_result(builder_title(builder.name, builder.version), error)
        reporter.send(ev.EngineBuilt(reporter.job, config, result))
    if result.failure_reason:
        return None, result.failure_reason
    if not can_run_engines(builder, workspace.build_plan.settings):
        capability = workspace.build_plan.settings.compute_capability
        gpu_text = f" for compute capability {'.'.join(map(str, capability))}" if capability is not None else ""
        return None, f"built{gpu_text}, and it cannot run on this machine: {find_gpu_text()}"
    settings = make_build_settings(analysis, workspace.find_judged_feeds(config), workspace.build_plan, config)
    engine = yield from EngineBuilder(workspace, store.engines, Reporter(reporter.wake)).build(
        config, replace(workspace.build_plan, settings=settings), analysis.extra_outputs
    )
    return EngineRun(run, builder.load_engine(engine.data), analysis), ""


def _measure_engine_file(builder: EngineBuilder, source: EngineRun, accuracy: Accuracy) -> Steps[EngineResult]:
    """Returns the result of an engine file: its accuracy, latency and layers."""
    workspace, runner = builder.workspace, source.runner
    assert isinstance(runner, EngineRunner), "it was loaded by a builder"
    result = EngineResult(
        accuracy,
        builder.title,
        engine_bytes=Path(source.run.file_path).stat().st_size,
        device_name=builder.backend.device,
    )
    return builder.reporter.run_steps(
        add_engine_performance(
            result,
            runner,
            workspace.network,
            source.make_feed(workspace.feeds[0]),
            workspace.data_sets.judged_samples.count_rows_of_full_feed(workspace.feeds[0]),
        ),
        Urgency.ACCURACY,
    )


# -- the stage of production -------------------------------------------------------------------------------------------


def _compare_production_outputs(
    workspace: Workspace,
    store: ResultStore,
    reporter: JobReporter,
    request: rq.MeasureStages,
    recorded_runs: Sequence[IndexedRunSource],
) -> Steps[tuple[tuple[str, Accuracy], ...]]:
    """Returns the accuracy of production against the simulation and the engine of the config, by name of the reference.

    Production is the last run. If engine files are named, they replace the engine of the config.
    """
    production, config = recorded_runs[-1], request.config
    references = [recorded for recorded in recorded_runs if recorded.run.kind is RunKind.ENGINE_FILE]
    sources: list[IterableRunSource] = [SimulatedConfig(workspace.analysis, config, workspace.ranges, CONFIG_SIMULATED)]
    if (
        workspace.builder is not None
        and can_run_engines(workspace.builder, workspace.build_plan.settings)
        and not references
    ):
        engine_run, _ = yield from _build_engine_run(
            workspace, store, reporter, Run(CONFIG_BUILT, RunKind.BUILT_ENGINE, config=config)
        )
        sources += [engine_run] if engine_run is not None else []
    for source in sources:
        try:
            references.append((yield from _record_run_outputs(workspace, reporter, source)))
        finally:
            source.close()
        if source.run.kind is RunKind.SIMULATED_CONFIG:
            yield from _send_simulated_accuracy(workspace, store, reporter, "config", config)
    comparisons = []
    for reference in references:
        comparisons.append((reference.run.name, (yield from _compare_recorded_runs(workspace, production, reference))))
    return tuple(comparisons)


def _compare_production_inputs(workspace: Workspace, request: rq.MeasureStages) -> tuple[InputDifference, ...]:
    """Returns the differences between the inputs in production and the inputs of the samples.

    The inputs in production are in a separate file, or beside the outputs. The result is () if no inputs were dumped.

    Raises:
        InputError: The file contains no input of the network, or the inputs of other samples.
    """
    outputs = next((run.file_path for run in request.runs if run.name == PRODUCTION_STAGE), None)
    spec = request.inputs_path or outputs
    if spec is None:
        return ()
    dump, names = open_dump(spec), [info.name for info in workspace.network.inputs]
    dumped_names = [name for name in names if name in dump.tensor_names]
    if not dumped_names:
        if request.inputs_path is None:
            return ()
        raise no_common_tensors_error(
            dump.source,
            dump.tensor_names,
            workspace.network.name,
            names,
            "takes",
            "Name the arrays after the network's inputs, or name another file.",
        )
    samples = workspace.samples
    dumped_inputs = open_dump_run(
        Run("", RunKind.DUMP, file_path=spec), dump, workspace.network, samples, uses_inputs=True
    )

    def iterate_input_pairs(input_name: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for index in range(len(samples)):
            yield samples.read_feed(index)[input_name], dumped_inputs.get_outputs(index)[input_name]

    return tuple(compare_input_over_feeds(name, iterate_input_pairs(name)) for name in dumped_names)


# -- exports ----------------------------------------------------------------------------------------------------------


def run_export_job(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, request: rq.ExportConfig
) -> Steps[None]:
    """Writes a config in the format of another tool."""
    path, network, config = Path(request.path), workspace.network, request.config
    export_format = EXPORT_FORMATS[request.kind]
    reporter.send(ev.JobProgress(reporter.job, request.phase, 0, 0))
    yield Urgency.BUILD
    shapes = workspace.shape_profile if export_format.has_build_commands else workspace.requested_shape_ranges
    written_config = config if export_format.keeps_file_precision else replace_all_file_precisions(network, config)
    calibration, no_data_reason = collect_calibration_for_export(
        workspace,
        store,
        reporter,
        written_config,
        request.config_calibration,
        all_tensors=export_format.needs_all_ranges,
        needs_ranges=not export_format.can_lack_ranges,
    )
    workspace.require_unchanged_files()
    if not export_format.can_lack_ranges:
        refuse_cubic_grid_samples(network, "TensorRT")
    report_known_defects(workspace, reporter, config, workspace.build_target)
    ranges = add_ranges_set_by_config(calibration.range_table, config)
    written = write_export(
        request.kind,
        path,
        network,
        config,
        ranges,
        shapes=shapes,
        builder_options=workspace.options.production,
        calibration=calibration,
        target_entries=request.target_entries,
    )
    reporter.send(ev.ConfigExported(reporter.job, tuple(map(str, written.paths)), written.notes, no_data_reason))


def _make_bundle_target(workspace: Workspace, release_name: str) -> BuildTarget:
    """Returns the release for which a bundle is built. If the exact release is unknown, returns the family of
    releases."""
    target = workspace.build_target
    if target.release is not None and target.release.family == release_name:
        return target
    return replace(target, release=parse_release(release_name))


def run_write_text_job(
    slot: WorkspaceSlot, store: ResultStore, reporter: JobReporter, request: rq.WriteTextFile
) -> Steps[None]:
    """Writes a text file. No network needs to be open, and a file of an open network is never overwritten."""
    if (workspace := slot.workspace) is not None:
        refuse_overwriting_inputs([request.path], [workspace.network.path, *workspace.network.external_files])
    write_file_atomically(Path(request.path), request.text)
    reporter.send(ev.ConfigExported(reporter.job, (request.path,)))
    yield from ()


def run_write_bundle_job(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, request: rq.WriteBundle
) -> Steps[None]:
    """Writes a bundle into a new folder, which appears complete or not at all."""
    destination, network, config = Path(request.path), workspace.network, request.config
    reporter.send(ev.JobProgress(reporter.job, request.phase, 0, 0))
    yield Urgency.BUILD
    require_empty_folder(destination)
    report_known_defects(workspace, reporter, config, _make_bundle_target(workspace, request.release))
    calibration, no_data_reason = collect_calibration_for_export(
        workspace, store, reporter, config, request.config_calibration
    )
    ranges = add_ranges_set_by_config(calibration.range_table, config)
    workspace.require_unchanged_files()
    iterations = yield from _collect_bundle_sample_runs(workspace, reporter, config, ranges)
    bundle = BundleContents(
        request.release,
        network,
        config,
        ranges,
        request.config_text,
        calibration.method,
        workspace.shape_profile,
        _choose_bundle_builder_options(workspace, store, request, ranges),
        workspace.samples.source,
        iterations,
        request.with_samples,
        request.comparison_report,
    )
    with fill_folder_atomically(destination) as folder:
        written_paths = write_bundle(folder, bundle)
    paths = [destination / path.relative_to(folder) for path in written_paths]
    reporter.send(ev.ConfigExported(reporter.job, (str(destination), *map(str, paths)), (), ""))


def _choose_bundle_builder_options(
    workspace: Workspace, store: ResultStore, request: rq.WriteBundle, ranges: Mapping[str, float]
) -> BuilderOptions:
    """Returns the builder options of a bundle, with the timing cache of an earlier build of the config if there is one.

    The timing cache is added only if the options name none, and the bundle is for the installed release.
    """
    production, builder = workspace.options.production, workspace.builder
    if (
        production.timing_cache
        or builder is None
        or builder.name != "tensorrt"
        or not builder.version.startswith(f"{request.release}.")
    ):
        return production
    plan, network, config = workspace.build_plan, workspace.network, request.config
    constraints = lower_for_builder(network, config, ranges, builder.capabilities, builder.name).constraints
    settings = make_build_settings(workspace.analysis, workspace.find_judged_feeds(config), plan, config)
    timing_cache = timing_cache_path(settings, builder, network, constraints, store.engines)
    return replace(production, timing_cache=str(timing_cache)) if timing_cache.is_file() else production


def _collect_bundle_sample_runs(
    workspace: Workspace, reporter: JobReporter, config: PrecisionConfig, ranges: Mapping[str, float]
) -> Steps[list[SampleRun]]:
    """Returns the first judged feeds with the network's outputs in FP32 and in the simulation of the config."""
    network, samples = workspace.network, workspace.data_sets.judged_samples
    names = list_tensor_outputs(network)
    analysis = Analysis(
        network,
        workspace.backend,
        samples,
        workspace.judged_outputs,
        boundary_type=workspace.options.other,
        extra_tensors=names,
    )
    iterations: list[SampleRun] = []
    feed_indices = workspace.find_judged_feeds(config)[:MAX_FEEDS]
    with contextlib.closing(analysis):
        runs = zip(
            analysis.execute_config(PrecisionConfig.from_precision(Precision.FP32), {}, feed_indices),
            analysis.execute_config(config, ranges, feed_indices),
            strict=True,
        )
        for done, (index, (reference, simulated)) in enumerate(zip(feed_indices, runs, strict=True), 1):
            iteration = SampleRun(
                samples.read_full_feed(index),
                *(
                    {name: samples.pad_rows(outputs[name], index) for name in names}
                    for outputs in (reference, simulated)
                ),
            )
            if iterations and sum(item.size_bytes for item in (*iterations, iteration)) > MAX_SAMPLE_BYTES:
                break
            iterations.append(iteration)
            reporter.send_progress("samples for the bundle", done, len(feed_indices))
            yield Urgency.BUILD
    return iterations


def run_write_subgraph_job(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, request: rq.WriteSubgraph
) -> Steps[None]:
    """Writes a subgraph of the network into a new folder, which appears complete or not at all."""
    destination, network = Path(request.path), workspace.network
    require_empty_folder(destination)
    start, stop = (
        find_group_boundary_tensors(network, network.get_group(request.group))
        if request.group
        else (request.start_tensors, request.stop_tensors)
    )
    check_tensor_names(network, (*start, *stop))
    reporter.send(ev.JobProgress(reporter.job, request.phase, 0, 0))
    yield Urgency.BUILD
    ranges, no_data_reason = collect_ranges_for_export(
        workspace, store, reporter, request.config, request.config_calibration
    )
    typed_model = lower_from_source_model(network, request.config, ranges).model
    iterations = _collect_subgraph_sample_runs(workspace, request.config, typed_model, start, stop)
    workspace.require_unchanged_files()
    with fill_folder_atomically(destination) as folder:
        written_paths = write_subgraph(
            folder, network, {FP32_FILE: network.model, TYPED_FILE: typed_model}, start, stop, iterations
        )
    reporter.send(
        ev.ConfigExported(
            reporter.job,
            (str(destination), *(str(destination / path.name) for path in written_paths)),
            (),
            no_data_reason,
        )
    )


def _collect_subgraph_sample_runs(
    workspace: Workspace,
    config: PrecisionConfig,
    typed_model: ir.Model,
    start_tensors: Sequence[str],
    stop_tensors: Sequence[str],
) -> list[SampleRun]:
    """Returns the inputs of a subgraph on the first judged feeds, with its outputs in FP32 and in the typed network."""
    network, samples = workspace.network, workspace.data_sets.judged_samples
    produced = {value.name for node in network.model.graph for value in node.outputs}
    output_names = {output.name for output in network.model.graph.outputs}
    read_names = [name for name in dict.fromkeys((*start_tensors, *stop_tensors)) if name in produced]
    extended_model = add_outputs(network.model, [name for name in read_names if name not in output_names])
    iterations: list[SampleRun] = []
    piece_model = extract_subgraph(typed_model, start_tensors, stop_tensors)
    with (
        AdaptiveRunner(workspace.backend, extended_model, samples) as fp32,
        workspace.backend.load(piece_model) as lowered,
    ):
        for index in workspace.find_judged_feeds(config)[:MAX_FEEDS]:
            feed: Mapping[str, np.ndarray] = samples.read_full_feed(index)
            values = {**feed, **fp32.run(feed, read_names)}
            inputs = {name: values[name] for name in start_tensors}
            reference = {name: values[name] for name in stop_tensors}
            with attribute_failures_to_rounding(network):
                iteration = SampleRun(inputs, reference, lowered.run(inputs, list(stop_tensors)))
            if iterations and sum(item.size_bytes for item in (*iterations, iteration)) > MAX_SAMPLE_BYTES:
                break
            iterations.append(iteration)
    return iterations
