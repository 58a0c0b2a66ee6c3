"""The job that locates the operator which an engine computes wrongly, and writes the folder of a bug report."""

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from trt_tui.core.builder_options import TACTIC_SOURCES
from trt_tui.core.engines.engine_cells import (
    EngineCell,
    find_different_cell,
    find_suspect_kernels,
    kernel_text,
)
from trt_tui.core.engines.group_implementations import GroupImplementation, find_group_implementations
from trt_tui.core.engines.inspector import read_engine_report
from trt_tui.core.exporters.bundle import SampleRun
from trt_tui.core.exporters.fault_report import write_fault_report
from trt_tui.core.lowering.implicit_quantization import lower_to_implicit_quantization
from trt_tui.core.lowering.source_typed_network import lower_from_source_model
from trt_tui.core.measure.error_metrics import ErrorSums
from trt_tui.core.measure.fault_location import (
    FaultReport,
    LocationOutcome,
    LocationResult,
    PieceState,
    Workaround,
)
from trt_tui.core.measure.judged_outputs import list_tensor_outputs
from trt_tui.core.measure.location_search import plan_fault_location
from trt_tui.core.measure.runs import Run, RunKind
from trt_tui.core.moves.barrier_move import BarrierMove
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.rewrite_move import RewriteMove
from trt_tui.core.network.network import Network
from trt_tui.core.network.operator_functions import list_function_operators, list_operators_with_function
from trt_tui.core.network.target_release import installed_release
from trt_tui.core.precision import FLOAT_PRECISIONS, Precision, precision_rank
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.core.runner import MIN_OPTIMIZATION_LEVEL, Backend, BuildSettings, EngineRunner
from trt_tui.errors import BackendUnavailableError, CancelledError, InputError, TrtTuiError
from trt_tui.files.reading import read_bytes
from trt_tui.files.scratch import create_scratch_folder
from trt_tui.files.writing import fill_folder_atomically, require_empty_folder
from trt_tui.formatting import builder_title, name_list_text
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibration import ensure_ranges
from trt_tui.jobs.engine_accuracy import EngineRun, cast_to_declared_types, make_build_settings
from trt_tui.jobs.engine_build import BuilderMessage, BuiltEngine, build_engine
from trt_tui.jobs.network_part import NetworkPart
from trt_tui.jobs.piece_probe import PieceProbe, TimeLimit, measure_latency_ms
from trt_tui.jobs.scheduler import JobReporter
from trt_tui.jobs.steps import Steps, Urgency, Wait
from trt_tui.jobs.store import ResultStore
from trt_tui.workspace import Workspace, can_run_engines

_OTHER_LEVELS = (2, MIN_OPTIMIZATION_LEVEL)
"""The optimization levels that are tried as workarounds."""


def run_fault_location_job(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                           request: rq.LocateFault) -> Steps[None]:
    """Locates the fault of an engine, tries the workarounds, writes the folder, and sends the report.

    Raises:
        BackendUnavailableError: No TensorRT here can build and execute engines.
        InputError: The engine cannot be loaded, or the folder is not empty.
    """
    builder = workspace.builder
    if builder is None or not can_run_engines(builder, workspace.plan.settings):
        raise BackendUnavailableError("a fault cannot be located here", "pieces of the network must be built and "
                                      "executed, and no TensorRT here can do that; trt-tui doctor shows why",
                                      "Run it on the GPU that the engine was built for.")
    if request.folder:
        require_empty_folder(Path(request.folder))
    limit = TimeLimit(request.max_seconds)
    yield Urgency.BUILD
    ensure_ranges(workspace, store, reporter, [request.config])
    build_start_time = time.monotonic()
    data = read_bytes(Path(request.engine_path)) if request.engine_path else (
        yield from _build_engine_of_config(workspace, store, reporter, request.config))
    limit.last_build_s = time.monotonic() - build_start_time
    with builder.load_engine(data) as runner:
        config = infer_engine_config(workspace.network, request.config, find_group_implementations(
            read_engine_report(runner.inspect(), workspace.network), workspace.network))
        ensure_ranges(workspace, store, reporter, [config])
        worst = choose_worst_feed(workspace, runner, request.engine_path, limit.has_time,
                                  reporter.make_progress_callback("comparing the engine with FP32"))
        feed = worst.feed
        latency_ms = measure_latency_ms(runner, feed)
    with create_scratch_folder() as scratch:
        probe = PieceProbe(workspace, store, reporter, config, feed, scratch, limit)
        result = yield from _locate(probe, data, request.max_builds)
        repeated = repeat_first_sample(workspace, feed) if (result.outcome is LocationOutcome.NO_FAULT
                                                            and limit.has_time()) else None
        if repeated is not None:
            rows_probe = PieceProbe(workspace, store, reporter, config, repeated, scratch, limit,
                                    checks_rows=True)
            rows_result = yield from _locate(rows_probe, data, request.max_builds)
            if rows_result.outcome not in (LocationOutcome.NO_FAULT, LocationOutcome.NOT_JUDGED):
                probe, result = rows_probe, rows_result
        cells = [probe.cells[index] for index in result.piece.cells if index < len(probe.cells)]
        workarounds: tuple[Workaround, ...] = ()
        if result.outcome in (LocationOutcome.FOUND, LocationOutcome.SPREAD, LocationOutcome.VANISHES,
                              LocationOutcome.UNFINISHED):
            workarounds = yield from _try_workarounds(probe, cells, result)
    name = Path(request.engine_path).name if request.engine_path else "the engine of the config"
    different = [text for rebuilt in probe.rebuilt_cells if (text := find_different_cell(probe.cells, rebuilt))]
    outcome_text = result.describe_outcome([cell.name for cell in probe.cells])
    report = FaultReport(name, builder_title(builder.name, builder.version), builder.device,
                         "; ".join((outcome_text, *worst.notes)), result,
                         fp32_backend_text=describe_fp32_backend(workspace.backend),
                         all_cell_names=tuple(cell.name for cell in probe.cells), latency_ms=latency_ms,
                         builds=probe.build_count,
                         different_kernel=different[0] if different else "",
                         suspect_kernels=_list_suspect_kernels(probe, result), workarounds=workarounds,
                         is_timing_cache_refused=probe.is_timing_cache_refused,
                         approximated_operators=probe.list_approximated_operators(), feed_notes=worst.notes)
    part = None
    if result.outcome not in (LocationOutcome.NO_FAULT, LocationOutcome.NOT_JUDGED, LocationOutcome.NOT_BUILT):
        part = probe.get_part(result.piece.cells, is_limited=False)
        report = _describe_piece(report, probe, part, cells)
    report = replace(report, seconds=time.monotonic() - limit.start_time)
    if request.folder and part is not None:
        report = _write_folder(workspace, Path(request.folder), report, part)
    reporter.send(ev.FaultLocated(reporter.job, request.config, report))


def _locate(probe: PieceProbe, data: bytes, max_builds: int) -> Steps[LocationResult]:
    """Runs the steps of a location. The first piece is the engine itself."""
    verdict = yield from probe.judge_engine(data)
    plan = plan_fault_location(len(probe.cells), max_builds, reads_cells=probe.reads_cells,
                               finds_largest_ratio=not probe.checks_rows, has_time=probe.limit.can_build)
    piece, was_refused = next(plan), False
    while True:
        probe.reporter.send(ev.LogMessage(
            probe.reporter.job, f"piece of {len(piece.cells)} of {len(probe.cells)} fused layers"
            f"{f', rebuild {piece.rebuild}' if piece.rebuild else ''}: {verdict.description}"))
        if probe.is_timing_cache_refused and not was_refused:
            probe.reporter.send(ev.LogMessage(probe.reporter.job, "TensorRT does not use the timing cache; no further "
                                              "build of the location gets one"))
        was_refused = probe.is_timing_cache_refused
        try:
            piece = plan.send(verdict)
        except StopIteration as stop:
            result: LocationResult = stop.value
            return result
        verdict = yield from probe.judge_piece(piece)


def infer_engine_config(network: Network, config: PrecisionConfig,
                        implementations: Mapping[str, GroupImplementation]) -> PrecisionConfig:
    """Returns a config with the float precisions that an engine reports for its groups.

    A group keeps its precision in the config if the engine reports none. If it reports only the types around a fused
    region, the lowest of them counts.
    """
    changed: dict[Precision, list[str]] = {}
    for group in network.groups:
        implementation = implementations.get(group.name)
        precision = None
        if implementation is not None:
            precision = implementation.precision or min(implementation.possible_precisions, key=precision_rank,
                                                        default=None)
        requested = group.resolve_file_precision(config.precision_of(group))
        if precision is not None and precision not in (requested, requested.value_type) and (
                precision in group.allowed_precisions):
            changed.setdefault(precision, []).append(group.name)
    for precision, names in changed.items():
        config = config.with_group_precision(map(network.get_group, names), precision, "engine")
    return config


@dataclass(frozen=True)
class WorstFeed:
    """The feed with the largest error of an engine against FP32.

    Attributes:
        compared_count, total_count: The number of feeds that were compared, and of all feeds.
        missing_outputs: The float outputs of the network that the engine lacks.
    """

    feed: dict[str, np.ndarray]
    compared_count: int
    total_count: int
    missing_outputs: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What the choice leaves out, as text."""
        return tuple(filter(None, (
            f"judged on the worst of the first {self.compared_count} of {self.total_count} batches: the limit of time "
            "was reached" if self.compared_count < self.total_count else "",
            f"not judged, because the engine lacks them: {name_list_text(self.missing_outputs)}"
            if self.missing_outputs else "")))


def choose_worst_feed(workspace: Workspace, runner: EngineRunner, engine_path: str = "",
                      has_time: Callable[[], bool] = lambda: True,
                      progress: Callable[[int, int], None] = lambda done, total: None) -> WorstFeed:
    """Executes the engine on all feeds. Returns the feed with the largest error against FP32.

    Args:
        engine_path: The file of the engine, for messages.
        has_time: A function that returns False once no further feed may be compared.

    Raises:
        InputError: The network has no float output, or the engine is of another network.
    """
    analysis, samples = workspace.analysis, workspace.data_sets.judged_samples
    names = [name for name in list_tensor_outputs(workspace.network) if workspace.network.is_any_float(name)]
    if not names:
        raise InputError("the network has no float output", "an error is measured at float outputs",
                         "Export the network with the scores before its last operator as an output.")
    source = EngineRun(Run("the engine", RunKind.BUILT_ENGINE, file_path=engine_path), runner, analysis)
    judged = [name for name in names if name in source.available_tensors]
    if not judged:
        raise InputError(f"the engine has no float output of {workspace.network.name}",
                         f"it yields {name_list_text(sorted(source.available_tensors))}, the float outputs are "
                         f"{name_list_text(names)}", "Name an engine with one of them.")
    worst, largest_ratio, count = workspace.feeds[0], -1.0, 0
    for index in workspace.feeds:
        if count and not has_time():
            break
        reference = analysis.get_fp32_outputs(index)
        outputs = cast_to_declared_types(analysis, samples.remove_padding(runner.run(source.make_feed(index), judged),
                                                                          index))
        sums = ErrorSums()
        for name in judged:
            if name in reference and reference[name].shape == outputs[name].shape:
                sums.add_tensor_pair(reference[name], outputs[name])
        ratio = sums.noise_to_signal_ratio
        if ratio > largest_ratio or math.isnan(ratio):
            worst, largest_ratio = index, math.inf if math.isnan(ratio) else ratio
        count += 1
        progress(count, len(workspace.feeds))
    return WorstFeed(samples.read_full_feed(worst), count, len(workspace.feeds),
                     tuple(name for name in names if name not in judged))


def repeat_first_sample(workspace: Workspace, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
    """Returns a feed whose batch repeats its first sample; None for a batch of one sample."""
    names = workspace.data_sets.judged_samples.per_sample_array_names
    rows = {len(array) for name, array in feed.items() if name in names and array.ndim}
    if len(rows) != 1 or rows == {1}:
        return None
    return {name: np.repeat(array[:1], len(array), axis=0) if name in names and array.ndim else array
            for name, array in feed.items()}


def _build_engine_of_config(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                            config: PrecisionConfig) -> Steps[bytes]:
    """Returns the engine of a config: that of the engine cache, or a new one."""
    assert workspace.builder is not None
    settings = make_build_settings(workspace.analysis, workspace.feeds, workspace.plan, config,
                                   debug_tensors=workspace.builder.capabilities.debug_tensors)
    with closing(build_engine(workspace.builder, workspace.network, config, workspace.ranges, settings,
                              cache=store.engines, wake=reporter.wake, weakly_typed=workspace.plan.weakly_typed,
                              strict=workspace.plan.strict, kept_tensors=workspace.analysis.extra_outputs)) as steps:
        for step in steps:
            if isinstance(step, BuiltEngine):
                return step.data
            if isinstance(step, BuilderMessage):
                reporter.send(step.make_log_message(reporter.job))
            elif isinstance(step, Wait):
                yield step
    raise AssertionError("a build ends with an engine")


def describe_fp32_backend(backend: Backend) -> str:
    """Returns the name of the backend that computes pieces in FP32 for comparison, with its provider."""
    title = builder_title(backend.name, backend.version)
    return (f"{title} on CUDA, TF32 off" if backend.capabilities.has_device else
            f"{title} on the CPU; no FP32 values of CUDA, because ONNX Runtime has no CUDA provider here")


def _list_suspect_kernels(probe: PieceProbe, result: LocationResult) -> tuple[str, ...]:
    """Returns the kernels in which faulty builds of the whole network differ from sound ones."""
    if result.outcome is not LocationOutcome.UNSTABLE:
        return ()
    engines = [probe.cells, *probe.rebuilt_cells]
    states = [verdict.state for piece, verdict in result.verdicts if piece.cells == result.piece.cells]
    faulty, sound = ([cells for cells, state in zip(engines, states, strict=False) if (state is PieceState.FAULTY)
                      is is_faulty] for is_faulty in (True, False))
    return tuple(map(kernel_text, find_suspect_kernels(faulty, sound)))


# -- workarounds -----------------------------------------------------------------------------------------------------


def list_changed_configs(network: Network, config: PrecisionConfig, cells: list[EngineCell],
                         precisions: Collection[Precision]) -> Iterator[tuple[str, PrecisionConfig]]:
    """Yields the changes of a config that may avoid a fault in some cells, the cheapest first.

    Args:
        precisions: The float precisions that the builder supports.
    """
    names = {name for cell in cells for name in cell.layers}
    groups = [group for group in network.groups if names.intersection(group.layers)]
    tensors = list(dict.fromkeys(tensor for group in groups for tensor in (*group.inputs, group.final_tensor)
                                 if not BarrierMove().refusal_reason(network, tensor)))
    if tensors:
        yield f"fusion barriers at {', '.join(tensors[:4])}", config.with_moves(
            {tensor: BarrierMove("location") for tensor in tensors})
    current = {config.precision_of(group) for group in groups}
    for precision in sorted(precisions, key=precision_rank):
        allowed = [group for group in groups if precision in group.allowed_precisions]
        if allowed and any(precision_rank(precision) > precision_rank(item.value_type) for item in current):
            yield f"{precision.label} for {', '.join(group.name for group in allowed[:4])}", \
                config.with_group_precision(allowed, precision, "location")
    norms = {group.name: network.zero_cost_support.norms[group.name] for group in groups
             if group.name in network.zero_cost_support.norms}
    for name in norms:
        for operator in ("LayerNormalization", "RMSNormalization"):
            move = RewriteMove(operator, "location")
            if not move.refusal_reason(network, name):
                yield f"{operator} as one operator at {name}", config.with_moves({name: move})


def _operator_function_text(network: Network, operators: Sequence[str]) -> str:
    """Returns a phrase such as "Mish written as its ONNX function (Softplus, Tanh, Mul)"."""
    texts = [f"{operator} written as its ONNX function ({', '.join(list_function_operators(network.model, operator))})"
             for operator in operators]
    return " and ".join(texts)


def _list_changed_settings(settings: BuildSettings) -> Iterator[tuple[str, BuildSettings]]:
    """Yields the changes of the build settings that may avoid a kernel: other tactic sources and other levels."""
    options = settings.builder_options
    sources = options.tactic_sources or TACTIC_SOURCES
    for source in sources if len(sources) > 1 else ():
        yield f"no tactics of {source}", replace(settings, builder_options=replace(
            options, timing_cache="", tactic_sources=tuple(item for item in sources if item != source)))
    for level in _OTHER_LEVELS:
        if level != options.optimization_level:
            yield f"optimization level {level}", replace(settings, builder_options=replace(
                options, timing_cache="", optimization_level=level))


def _list_raised_configs(probe: PieceProbe,
                         precisions: Collection[Precision]) -> Iterator[tuple[str, PrecisionConfig]]:
    """Yields the configs without NaN or Inf in the simulation: the fewest groups in a type with a larger range."""
    groups = probe.find_groups_to_raise()
    for precision in precisions if groups else ():
        if precision is not Precision.FP16 and all(precision in group.allowed_precisions for group in groups):
            yield f"{precision.label} for {', '.join(group.name for group in groups[:4])}" + (
                f" and {len(groups) - 4} more" if len(groups) > 4 else ""), probe.config.with_group_precision(
                    groups, precision, "location")


def _try_workarounds(probe: PieceProbe, cells: list[EngineCell],
                    result: LocationResult) -> Steps[tuple[Workaround, ...]]:
    """Builds the whole network with each workaround, as long as there is time.

    If the simulation explains an overflow, only other precisions are tried.
    """
    settings, builder = probe.make_settings(), probe.workspace.builder
    precisions = [precision for precision in FLOAT_PRECISIONS if precision is not Precision.BF16
                  or builder is not None and builder.capabilities.supports_bf16]
    configs = (_list_raised_configs(probe, precisions) if result.explanation else
               list_changed_configs(probe.network, probe.config, cells, precisions))
    operators = () if result.explanation else list_operators_with_function(
        (probe.network.get_layer(name).op_type for cell in cells for name in cell.layers), probe.network.opset)
    changes = [*((text, config, settings, ()) for text, config in configs),
               *((_operator_function_text(probe.network, operators), probe.config, settings, operators)
                 for _ in operators[:1]),
               *((text, probe.config, changed, ()) for text, changed in _list_changed_settings(settings)
                 if not result.explanation)]
    workarounds = []
    for text, config, changed_settings, rewritten_operators in changes:
        if not probe.limit.can_build():
            workarounds.append(Workaround(text, failure_reason="not tried: the limit of time is reached"))
            continue
        try:
            ensure_ranges(probe.workspace, probe.store, probe.reporter, [config])
            verdict, latency_ms = yield from probe.measure_whole(config, changed_settings, rewritten_operators)
            workarounds.append(Workaround(text, verdict, latency_ms))
        except (CancelledError, BackendUnavailableError):
            raise
        except TrtTuiError as error:  # the next workaround may be possible
            workarounds.append(Workaround(text, failure_reason=error.title))
    return tuple(workarounds)


# -- the report -----------------------------------------------------------------------------------------------------


def _describe_piece(report: FaultReport, probe: PieceProbe, part: NetworkPart, cells: list[EngineCell]) -> FaultReport:
    """Returns a report with the description of its smallest piece."""
    types = dict.fromkeys(f"{'+'.join(filter(None, dict.fromkeys(signature[3]))) or '?'} > "
                          f"{'+'.join(filter(None, dict.fromkeys(signature[4]))) or '?'}"
                          for cell in cells for signature in cell.signatures)
    layers = tuple((name, probe.network.get_layer(name).op_type)
                   for name in probe.list_layers(report.result.piece.cells))
    return replace(report, cell_names=tuple(cell.name for cell in cells), layers=layers,
                   kernel_names=tuple(dict.fromkeys(name for cell in cells for name in cell.kernel_names)),
                   types_text=", ".join(types).upper(), inputs=tuple(part.feed), outputs=tuple(part.expected))


def _write_folder(workspace: Workspace, destination: Path, report: FaultReport, part: NetworkPart) -> FaultReport:
    """Writes the folder of the bug report. Returns the report with its paths."""
    builder = workspace.builder
    assert builder is not None
    is_typed = builder.capabilities.strongly_typed and not workspace.plan.weakly_typed
    typed_model = lower_from_source_model(part.network, part.config, workspace.ranges).model
    outputs = {name: array.astype(part.fp32_outputs[name].dtype) for name, array in part.expected.items()}
    sample_run = SampleRun(part.feed, outputs, {name: part.predicted[name] for name in outputs})
    precisions = {precision.value_type for precision in part.config.precision_by_group(part.network).values()}
    constraints = None
    if precisions & QUANTIZED_TYPES.keys():
        precisions.add(part.config.other)
    elif not is_typed:
        constraints = lower_to_implicit_quantization(part.network, part.config, workspace.ranges)
    if part.config.tf32:
        precisions.add(Precision.TF32)
    with fill_folder_atomically(destination) as folder:
        paths = write_fault_report(folder, part.network, typed_model, sample_run, report, is_typed, precisions,
                                   workspace.plan.settings.builder_options, installed_release(
                                       builder.name, builder.version).family, constraints)
    state_count = report.result.count_verdicts(PieceState.FAULTY)
    assert state_count, "a report is written of a fault"
    return replace(report, written_paths=(str(destination), *(str(destination / path.relative_to(folder))
                                                              for path in paths)))
