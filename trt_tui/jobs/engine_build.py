"""The build and the measurement of one engine.

A build lowers a config and makes the attempts of the fallback ladder, in a thread of the background process. It uses an
engine cache and timing caches. The engine is measured by its accuracy, its latency, its memory and the times of its
layers.
"""

import hashlib
import os
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import onnx_ir as ir

from trt_tui.core.builder_options import BuilderOptions
from trt_tui.core.data.adaptive_runner import AdaptiveRunner
from trt_tui.core.engines.fallback_ladder import (
    LADDER_REASON,
    LOWEST_EFFORT,
    NO_PRECISIONS,
    PREFERRED_PRECISIONS,
    BuildAttempt,
    BuildError,
    FallbackLadder,
    NetworkParseError,
    find_layers_in_message,
    join_lines,
)
from trt_tui.core.engines.group_implementations import find_group_implementations
from trt_tui.core.engines.inspector import EngineReport, read_engine_report
from trt_tui.core.exporters.onnx import export_typed_network
from trt_tui.core.lowering.network_rewrite import (
    refuse_cubic_grid_samples,
    refuse_unsupported_precisions,
)
from trt_tui.core.lowering.typed_network import lower_from_source_model
from trt_tui.core.lowering.weak_typing import lower_to_explicit_quantization, lower_to_implicit_quantization
from trt_tui.core.measure.engine_agreement import find_groups_in_other_precision, find_unquantized_groups_caveat
from trt_tui.core.measure.judged_outputs import list_tensor_outputs
from trt_tui.core.measure.results import (
    Accuracy,
    EngineResult,
    ProfileLatency,
    Run,
    RunKind,
)
from trt_tui.core.measure.run_sources import IndexedRunSource, convert_to_comparable_array, no_common_tensors_error
from trt_tui.core.measure.simulation import Analysis
from trt_tui.core.measure.simulation_limits import FailedRunOutputs, run_failure_caveat
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.known_defects import BuildTarget, known_defect_warnings
from trt_tui.core.network.model_editing import add_outputs, extract_subgraph_of_outputs
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.core.runner import (
    MIN_OPTIMIZATION_LEVEL,
    TIMING_CACHE_REFUSED,
    BackendCapabilities,
    BuildSettings,
    EngineBackend,
    EngineRunner,
    FixedShape,
    LayerConstraints,
    Runner,
)
from trt_tui.errors import BackendUnavailableError, InputError, RunFailedError, TrtTuiError
from trt_tui.files.writing import create_scratch_folder
from trt_tui.formatting import builder_title, name_list_text
from trt_tui.jobs.scheduler import (
    JobReporter,
    Progress,
    ProgressSteps,
    Reporter,
    Steps,
    WaitStep,
    run_to_last_value,
    start_thread,
)
from trt_tui.jobs.store import EngineCache
from trt_tui.workspace import BuildPlan, Workspace, can_run_engines, find_shape_profile

T = TypeVar("T")


def cast_to_declared_types(analysis: Analysis, outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns outputs in the types that the network declares. An engine may return INT32 for INT64."""
    network = analysis.network
    types = {info.name: info.dtype for info in network.outputs}
    types |= dict.fromkeys(analysis.extra_outputs, np.dtype(np.float32))
    return {
        name: array.astype(types[name], copy=False) if array.dtype.kind != "U" else array
        for name, array in ((name, convert_to_comparable_array(value)) for name, value in outputs.items())
    }


@dataclass(frozen=True)
class BuiltEngine:
    """A built engine, or one from the engine cache.

    Attributes:
        seconds: The duration of the build; 0 if the engine is from the cache.
        origin: "cold", "timing cache" or "engine cache".
        notes: The notes of the lowering.
        attempts: The build attempts, of which the last succeeded. A single attempt means that the engine was built as
            requested.
    """

    data: bytes
    seconds: float
    origin: str
    notes: tuple[str, ...] = ()
    attempts: tuple[BuildAttempt, ...] = (BuildAttempt(),)


@dataclass(frozen=True)
class BuilderInput:
    """The input of a builder: the lowered ONNX model and the layer constraints.

    Attributes:
        constraints: None if the types of the graph decide the precisions.
    """

    model: ir.Model
    constraints: LayerConstraints | None
    notes: tuple[str, ...]


def report_known_defects(
    workspace: Workspace, reporter: JobReporter, config: PrecisionConfig, target: BuildTarget
) -> None:
    """Sends a warning for each known defect of the target release that affects a written file or engine of a config."""
    warnings, note = known_defect_warnings(workspace.network, target, config.precision_of)
    for text in warnings:
        reporter.log(text, "warning")
    if note:
        reporter.log(note, "note")


def lower_for_builder(
    network: Network,
    config: PrecisionConfig,
    ranges: Mapping[str, float],
    capabilities: BackendCapabilities,
    backend_title: str,
    weakly_typed: bool = False,
    compute_capability: tuple[int, int] | None = None,
) -> BuilderInput:
    """Lowers a config to the form that the release of a builder accepts.

    Args:
        backend_title: The name and version of the backend, for messages.
        weakly_typed: True for layer precisions and implicit quantization in place of types and Q/DQ.
        compute_capability: The compute capability to build for; None for that of the GPU here.

    Raises:
        InputError: The release or the GPU does not support the config. The message has the reason.
    """
    if Precision.BF16 in {*config.precision_by_group(network).values()} and not capabilities.supports_bf16:
        raise InputError(
            "this config contains BF16", f"{backend_title} has no BF16", "Use FP16 or FP32 for those layers."
        )
    supported_types = {
        *capabilities.quantized_types,
        *((Precision.FP16_ACC_FP32,) if capabilities.strongly_typed and not weakly_typed else ()),
    }
    refuse_unsupported_precisions(
        network, config, supported_types, backend_title, compute_capability or capabilities.gpu_compute_capability
    )
    if not capabilities.supports_cubic_grids:
        refuse_cubic_grid_samples(network, backend_title)
    if weakly_typed:
        if not capabilities.weakly_typed:
            raise InputError(
                "--weak is not possible",
                f"{backend_title} is strongly typed only: it accepts neither precisions per layer nor dynamic ranges",
                "Leave out --weak.",
            )
        implicit_model = lower_to_implicit_quantization(network, config, ranges)
        return BuilderInput(implicit_model.model, implicit_model, tuple(implicit_model.notes))
    if capabilities.strongly_typed:
        typed_model = lower_from_source_model(network, config, ranges)
        return BuilderInput(typed_model.model, None, typed_model.notes)
    typed_model, constraints = lower_to_explicit_quantization(network, config, ranges)
    return BuilderInput(typed_model.model, constraints, typed_model.notes)


class EngineBuilder:
    """The builder of engines for the configs of a workspace. It reports the progress and the messages of builds.

    A build runs in a thread. If the steps of a build are closed, the builder is stopped, and they wait for its end.

    Args:
        cache: The cache of engines and timing caches; None to build again and to keep nothing.
        ranges: The amax by tensor, in the tensors' own units; None for the ranges of the workspace.
        phase_prefix: The text before the phases of the progress.
        printed: The list that collects levels and texts of what the builder prints; None for a new one.

    Raises:
        BackendUnavailableError: No backend of the workspace builds engines.
    """

    def __init__(
        self,
        workspace: Workspace,
        cache: EngineCache | None,
        reporter: Reporter,
        ranges: Mapping[str, float] | None = None,
        phase_prefix: str = "",
        printed: list[tuple[str, str]] | None = None,
    ) -> None:
        if workspace.builder is None:
            raise BackendUnavailableError(
                "no TensorRT here can build an engine",
                "trt-tui doctor shows why",
                "Write -o typed.onnx instead, or name a backend: --backend tensorrt-rtx builds without a GPU.",
            )
        self.workspace, self.backend, self.cache, self.reporter = workspace, workspace.builder, cache, reporter
        self.ranges, self.phase_prefix = workspace.ranges if ranges is None else ranges, phase_prefix
        self.printed: list[tuple[str, str]] = [] if printed is None else printed

    @property
    def title(self) -> str:
        """The name and release of the builder."""
        return builder_title(self.backend.name, self.backend.version)

    def build(self, config: PrecisionConfig, plan: BuildPlan, kept_tensors: Sequence[str] = ()) -> Steps[BuiltEngine]:
        """Builds the engine of a config, or takes it from the cache.

        If the builder refuses the config, the attempts of the fallback ladder follow
        (`trt_tui.core.engines.fallback_ladder`), unless the plan is strict.

        Args:
            kept_tensors: Tensors that become outputs of the engine too
                (`trt_tui.core.measure.judged_outputs.find_judged_inner_tensors`).

        Raises:
            InputError: The release does not support the config, or refuses the network.
            NoEngineError: Every attempt failed. The cause names all attempts, and ``attempts`` contains them.
        """
        return self.run_steps(self._run_build_attempts(config, plan, kept_tensors))

    def run_steps(self, steps: ProgressSteps[T]) -> Steps[T]:
        """Runs the steps of a build or of a measurement, sends their progress, and returns their result."""
        return self.reporter.run_steps(steps, phase_prefix=self.phase_prefix)

    def report_message(self, level: str, text: str, is_raw: bool = False) -> None:
        """Reports a message about a build. Raw messages are those that the builder prints, in any thread."""
        if is_raw:
            self.printed.append((level, text))
        self.reporter.log(f"{level}: {text}", "raw" if is_raw else "info")

    def _run_build_attempts(
        self, config: PrecisionConfig, plan: BuildPlan, kept_tensors: Sequence[str]
    ) -> ProgressSteps[BuiltEngine]:
        network, backend, settings = self.workspace.network, self.backend, plan.settings
        attempt, attempts, ladder = BuildAttempt(), [], None
        first_error: BuildError | NetworkParseError | None = None
        while True:
            yield Progress("writing the network")
            lowered = lower_for_builder(
                network,
                attempt.derive_attempt_config(network, config),
                self.ranges,
                backend.capabilities,
                f"{backend.name} {backend.version}",
                plan.weakly_typed,
                settings.compute_capability,
            )
            can_ease = settings.builder_options.optimization_level != MIN_OPTIMIZATION_LEVEL
            ladder = ladder or _make_fallback_ladder(network, config, lowered.constraints, can_ease)
            lowered = replace(
                lowered,
                constraints=_adapt_constraints_to_attempt(lowered.constraints, attempt, network),
                model=add_outputs(lowered.model, kept_tensors),
            )
            try:
                engine = yield from self._build_or_load(
                    lowered,
                    settings.with_builder_options(optimization_level=MIN_OPTIMIZATION_LEVEL)
                    if attempt.name == LOWEST_EFFORT
                    else settings,
                )
            except (BuildError, NetworkParseError) as error:
                attempts.append(replace(attempt, failure_reason=join_lines(error.cause or error.title)))
                first_error = first_error or error
                # Other precisions do not help if the parser refuses a network whose precisions stand beside the graph.
                # It ignores the optimization level too.
                failed_part, can_retry = (
                    (error.cause, error.is_refused)
                    if isinstance(error, BuildError)
                    else (error.node, lowered.constraints is None and bool(error.node))
                )
                next_attempt = (
                    ladder.choose_next_attempt(attempt, failed_part) if (can_retry and not plan.strict) else None
                )
                if next_attempt is None or next_attempt.name == LOWEST_EFFORT and isinstance(error, NetworkParseError):
                    raise _complete_build_error(first_error, attempts, network, can_ease) from None
                attempt = next_attempt
                self.report_message(
                    "warning", f"the build failed ({attempts[-1].failure_reason}); now with {attempt.changes_text}"
                )
            else:
                return replace(engine, attempts=(*attempts, attempt))

    def _build_or_load(self, lowered: BuilderInput, settings: BuildSettings) -> ProgressSteps[BuiltEngine]:
        """Builds the engine of one attempt, or takes it from the cache."""
        network, backend, cache = self.workspace.network, self.backend, self.cache
        with create_scratch_folder() as folder:
            written = export_typed_network(lowered.model, network, folder / "network.onnx")
            key = _engine_cache_key(backend, (written.path, *written.data_files), lowered.constraints, settings)
            cached = cache.read(key) if cache is not None else None
            if cached is not None:
                return BuiltEngine(cached, 0.0, "engine cache", lowered.notes)
            if cache is not None and not settings.builder_options.timing_cache:
                timing_cache = str(timing_cache_path(settings, backend, network, lowered.constraints, cache))
                settings = settings.with_builder_options(timing_cache=timing_cache)
            timing_cache = settings.builder_options.timing_cache
            is_cache_warm = bool(timing_cache) and os.path.isfile(timing_cache)
            yield Progress("building")
            is_stopped, printed_before, start_time = threading.Event(), len(self.printed), time.perf_counter()

            def report_step(phase: str, done: int, total: int) -> bool:
                self.reporter.send_progress(f"{self.phase_prefix}building: {phase}", done, total)
                return not is_stopped.is_set()

            build = start_thread(
                lambda: (
                    backend.build(
                        written.path,
                        settings,
                        lowered.constraints,
                        on_step=report_step,
                        on_message=partial(self.report_message, is_raw=True),
                    ),
                    time.perf_counter(),
                ),
                self.reporter.wake,
            )
            try:
                yield WaitStep(build.done)
            finally:
                is_stopped.set()
                wait([build])
            data, end_time = build.result()
            if cache is not None:
                cache.write(key, data)
                cache.trim_to_size_limit()
            is_refused = any(TIMING_CACHE_REFUSED.search(text) for _, text in self.printed[printed_before:])
            origin = "timing cache" if is_cache_warm and not is_refused else "cold"
            return BuiltEngine(data, end_time - start_time, origin, lowered.notes)


def _make_fallback_ladder(
    network: Network, config: PrecisionConfig, constraints: LayerConstraints | None, can_lower_effort: bool
) -> FallbackLadder:
    """Returns the fallback ladder of a config, given the layer constraints of the first attempt."""
    has_flags = constraints is not None and bool(constraints.precision_flags)
    has_layer_precisions = constraints is not None and bool(constraints.precisions or constraints.output_types)
    return FallbackLadder(network, config, has_flags, has_flags and has_layer_precisions, can_lower_effort)


def _adapt_constraints_to_attempt(
    constraints: LayerConstraints | None, attempt: BuildAttempt, network: Network
) -> LayerConstraints | None:
    """Returns the layer constraints of a build attempt, derived from the constraints of the requested config."""
    if constraints is None:
        return None
    constraints = constraints.without_layer_precisions(
        layer for name in attempt.unconstrained for layer in network.get_group(name).layers
    )
    if attempt.name == NO_PRECISIONS:
        return replace(constraints, precisions={}, output_types={}, constraint_mode="")
    return replace(constraints, constraint_mode="prefer") if attempt.name == PREFERRED_PRECISIONS else constraints


def _complete_build_error(
    error: BuildError | NetworkParseError, attempts: Sequence[BuildAttempt], network: Network, can_lower_effort: bool
) -> Exception:
    """Returns the first build error, completed with its node, the other failed attempts, and a further next step.

    The further next step is optimization level 0, if the build was refused and this level was not tried.
    """
    named_error = _add_node_to_error_title(error, network)
    if (
        isinstance(error, BuildError)
        and error.is_refused
        and can_lower_effort
        and not any(attempt.name == LOWEST_EFFORT for attempt in attempts)
    ):
        error.next_step += f" Or build with --trtexec --builderOptimizationLevel={MIN_OPTIMIZATION_LEVEL}."
    lines = [
        error.cause,
        *(f"also failed, with {attempt.changes_text}: {attempt.failure_reason}" for attempt in attempts[1:]),
    ]
    error.cause = "\n".join(filter(None, lines))
    error.attempts = tuple(attempts)
    return named_error


def _engine_cache_key(
    backend: EngineBackend, model_files: tuple[Path, ...], constraints: LayerConstraints | None, settings: BuildSettings
) -> str:
    digest = hashlib.sha256()
    for path in model_files:
        with open(path, "rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return EngineCache.make_key(
        digest.hexdigest(),
        backend.cache_identity,
        _layer_constraints_key(constraints),
        sorted(settings.profile.items()),
        settings.tf32,
        settings.builder_options.comparison_key,
        settings.compute_capability,
        *["hands out"] * settings.debug_tensors,
    )


def _layer_constraints_key(constraints: LayerConstraints | None) -> tuple[object, ...] | None:
    if constraints is None:
        return None
    return (
        sorted(constraints.precisions.items()),
        sorted(constraints.output_types.items()),
        sorted(constraints.ranges.items()),
        sorted(constraints.precision_flags),
        constraints.constraint_mode,
        sorted(constraints.inner_ranges.items()),
        sorted(constraints.constant_ranges.items()),
    )


def timing_cache_path(
    settings: BuildSettings,
    backend: EngineBackend,
    network: Network,
    constraints: LayerConstraints | None,
    cache: EngineCache,
) -> Path:
    """Returns the path of the timing cache that a build reads and extends.

    A timing cache is bound to the GPU, the release and the builder flags. Releases without a progress monitor (before
    10) print errors about a timing cache of another network, so there it is bound to the network too.
    """
    key_parts = [
        backend.cache_identity,
        settings.tf32,
        settings.builder_options.comparison_key,
        settings.compute_capability,
        sorted(constraints.precision_flags) if constraints is not None else "typed",
    ]
    if not backend.capabilities.reports_progress:
        key_parts.append(network.structure_sha256)
    return cache.timing_cache_path(*key_parts)


def _add_node_to_error_title(error: Exception, network: Network) -> Exception:
    """Returns a build error with the failing ONNX node in its title, if its text or the last messages name the node."""
    if not isinstance(error, TrtTuiError) or " at node " in error.title:
        return error
    details = error.details if isinstance(error, BuildError) else ()
    for text, phrase in ((error.cause, "it failed at"), *((line, "it was at") for line in reversed(details))):
        names = find_layers_in_message(text.rpartition(" for ")[2], network) or find_layers_in_message(text, network)
        if names:
            layer = network.get_layer(names[0])
            error.title = f"{error.title}: {phrase} {layer.name} ({layer.op_type})"
            error.args = (error.title,)
            break
    return error


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


def build_and_measure_engine(
    builder: EngineBuilder, config: PrecisionConfig, feed_indices: Sequence[int], plan: BuildPlan
) -> Steps[EngineResult]:
    """Builds the engine of a config and measures its accuracy and latency.

    Apart from the network's outputs, only judged tensors before plugins become outputs of the engine. Latency is
    measured without a profiler, and the time of each layer in separate executions.

    Raises:
        InputError: The release does not support the config, or refuses the network.
        TrtTuiError: The build or an execution failed.
    """
    analysis, backend = builder.workspace.analysis, builder.backend
    plan.settings.builder_options.check_builder_support(backend.name, backend.version)  # also those of production alone
    settings = make_build_settings(
        analysis, feed_indices, plan, config, debug_tensors=backend.capabilities.debug_tensors
    )
    kept_tensors = analysis.extra_outputs
    engine = yield from builder.build(config, replace(plan, settings=settings), kept_tensors)
    result = EngineResult(
        None,
        builder.title,
        None,
        len(engine.data),
        engine.seconds,
        _build_note(engine, plan.settings.builder_options, kept_tensors),
        backend.device,
        build_origin=engine.origin,
        attempts=engine.attempts,
        other_precisions=find_groups_in_other_precision(analysis.network, config, engine.attempts[-1], {}),
    )
    if can_run_engines(backend, settings):
        return (
            yield from builder.run_steps(_measure_built_engine(builder, config, feed_indices, plan, engine, result))
        )
    compute_capability = settings.compute_capability
    capability_text = (
        f" for compute capability {compute_capability[0]}.{compute_capability[1]}" if compute_capability else ""
    )
    return replace(
        result,
        measurement_note="; ".join(
            filter(None, (f"built{capability_text}; it cannot run on this machine", result.measurement_note))
        ),
    )


def _measure_built_engine(
    builder: EngineBuilder,
    config: PrecisionConfig,
    feed_indices: Sequence[int],
    plan: BuildPlan,
    engine: BuiltEngine,
    result: EngineResult,
) -> ProgressSteps[EngineResult]:
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
                shape_accuracies[name] = yield from measure_engine_accuracy(
                    shape_analysis, runner, range(len(shape_analysis.samples)), phase
                )
            except TrtTuiError as error:  # the verdict so far is kept
                missing_parts.append(f"not measured at the {name} shape: {error.title}")
        feed = analysis.samples.read_full_feed(feed_indices[0])
        batch = analysis.samples.count_rows_of_full_feed(feed_indices[0])
        note = "; ".join(filter(None, (f"batch {batch}", result.measurement_note, *missing_parts)))
        result = yield from add_engine_performance(
            replace(
                result,
                accuracy=accuracy,
                measurement_note=note,
                shape_accuracies=shape_accuracies,
                unequal_outputs=unequal_outputs,
            ),
            runner,
            network,
            feed,
            batch,
        )
    if plan.weakly_typed:
        caveats = find_unquantized_groups_caveat(network, config, result.implementations)
        result = replace(result, accuracy=replace(accuracy, caveats=(*accuracy.caveats, *caveats)))
    result = replace(
        result,
        other_precisions=find_groups_in_other_precision(network, config, engine.attempts[-1], result.implementations),
    )
    if result.is_built_as_requested:
        return result
    return replace(
        result,
        simulated_accuracy=(
            yield from _simulate_built_config(analysis, config, result.other_precisions, builder.ranges, feed_indices)
        ),
    )


def add_engine_performance(
    result: EngineResult, runner: EngineRunner, network: Network, feed: Mapping[str, np.ndarray], sample_count: int
) -> ProgressSteps[EngineResult]:
    """Returns the result of an engine with its latency, its memory and its layers.

    A part that cannot be measured is only noted, so that the measured accuracy is kept.
    """
    result = yield from add_engine_latencies(result, runner, feed, sample_count)
    yield Progress("timing the layers")
    engine_report, missing = _time_engine_layers(runner, network, feed)
    return replace(
        result,
        device_memory_bytes=runner.device_memory,
        engine_report=engine_report,
        implementations=find_group_implementations(engine_report, network) if engine_report is not None else {},
        measurement_note="; ".join(filter(None, (result.measurement_note, missing))),
    )


def make_build_settings(
    analysis: Analysis,
    feed_indices: Sequence[int],
    plan: BuildPlan,
    config: PrecisionConfig,
    *,
    debug_tensors: bool = False,
) -> BuildSettings:
    """Returns the build settings of an engine that is measured on some feeds. The engine includes its weights, even if
    the options exclude them."""
    data_profile = find_shape_profile(analysis.network, analysis.samples, feed_indices)
    return replace(
        plan.settings.with_builder_options(strip_plan=False),
        tf32=config.tf32,
        debug_tensors=debug_tensors,
        profile={**data_profile, **plan.settings.profile},
    )


def _simulate_built_config(
    analysis: Analysis,
    config: PrecisionConfig,
    deviating_precisions: Mapping[str, Precision],
    ranges: Mapping[str, float],
    feed_indices: Sequence[int],
) -> ProgressSteps[Accuracy | None]:
    """Returns the simulated accuracy of a config with the precisions that TensorRT has built; None if the simulation
    refuses them."""
    for name, precision in deviating_precisions.items():
        config = config.with_group_precision([analysis.network.get_group(name)], precision, LADDER_REASON)
    try:
        return (
            yield from run_to_last_value(
                analysis.measure_accuracy(config, ranges, feed_indices), "simulating the built precisions"
            )
        )
    except InputError:
        return None


def _build_note(engine: BuiltEngine, builder_options: BuilderOptions, extra_outputs: Sequence[str]) -> str:
    """Returns the differences between the build of an engine and a default build as text; "" if there are none."""
    weights = ", measured with its weights" if builder_options.strip_plan else ""
    options_text, attempt = ", ".join(builder_options.requested_option_texts), engine.attempts[-1]
    return "; ".join(
        filter(
            None,
            (
                *engine.notes,
                options_text and f"built with {options_text}{weights}",
                f"the builder failed at its default optimization level ({engine.attempts[0].failure_reason}): built with "
                f"{attempt.changes_text}, so neither latency nor size is the best"
                if attempt.name == LOWEST_EFFORT
                else "",
                f"built with the additional outputs {name_list_text(extra_outputs)}, which are judged"
                if extra_outputs
                else "",
            ),
        )
    )


def measure_lowered_network_accuracy(
    analysis: Analysis, model: ir.Model, feed_indices: Sequence[int]
) -> ProgressSteps[Accuracy]:
    """Returns the accuracy of a lowered network. The simulation backend executes its operators exactly as written.

    Raises:
        InputError: The backend refuses the network.
    """
    network = analysis.network
    if network.blocking_plugins or analysis.extra_outputs:
        model = extract_subgraph_of_outputs(model, [*list_tensor_outputs(network), *analysis.extra_outputs])
    with AdaptiveRunner(
        analysis.backend, model, analysis.samples, TYPED_NETWORK_RUNS, allow_host=False, optimize=False
    ) as runner:
        return (
            yield from measure_engine_accuracy(
                analysis, runner, feed_indices, "measuring the export", Run("the export", RunKind.TYPED_NETWORK)
            )
        )


def measure_engine_accuracy(
    analysis: Analysis,
    runner: Runner,
    feed_indices: Sequence[int],
    phase: str = "measuring the engine",
    run: Run = ENGINE_RUN,
    against_own_fp32: bool = False,
) -> ProgressSteps[Accuracy]:
    """Executes an engine on some feeds, yields the progress, and returns the accuracy at the judged outputs.

    Args:
        against_own_fp32: True to compare with FP32 of the network, whatever the reference.

    Raises:
        InputError: The engine lacks an output, whose error could not be measured.
    """
    source = EngineRun(run, runner, analysis)
    if missing := [
        name
        for name in (*list_tensor_outputs(analysis.network), *analysis.extra_outputs)
        if name not in source.available_tensors
    ]:
        raise InputError(
            f"the built engine lacks outputs of {analysis.network.name}: {name_list_text(missing)}",
            f"it yields {name_list_text([info.name for info in runner.outputs])}",
            "Report this network.",
        )
    return (
        yield from run_to_last_value(
            analysis.compare(
                source,
                feed_indices,
                reference=analysis.make_fp32_run() if against_own_fp32 else None,
                with_caveats=not against_own_fp32,
            ),
            phase,
        )
    )


class EngineRun(IndexedRunSource):
    """The execution of a loaded engine, or of another network that a backend executes as written.

    Raises:
        InputError: The engine has an input that the network lacks, or none of the network's outputs.
    """

    def __init__(self, run: Run, runner: Runner, analysis: Analysis) -> None:
        network, name = analysis.network, Path(run.file_path).name or run.name
        network_inputs = {info.name: info for info in network.inputs}
        if unknown := [info.name for info in runner.inputs if info.name not in network_inputs]:
            raise InputError(
                f"{name} has an input that {network.name} lacks: {unknown[0]}",
                f"{name} takes {name_list_text([info.name for info in runner.inputs])}, {network.name} "
                f"{name_list_text(list(network_inputs))}",
                "Name the engine of this network.",
            )
        names = (*list_tensor_outputs(network), *analysis.extra_outputs)
        super().__init__(run, {info.name for info in runner.outputs}.intersection(names), self._execute_feed)
        if not self.available_tensors:
            raise no_common_tensors_error(name, [info.name for info in runner.outputs], network.name, names)
        self._input_types = {info.name: info.dtype for info in runner.inputs}
        self.runner, self._analysis = runner, analysis

    def make_feed(self, feed_index: int) -> dict[str, np.ndarray]:
        """Returns a feed in the input types of the engine, filled up to a fixed batch."""
        feed = self._analysis.samples.read_full_feed(feed_index)
        return {name: feed[name].astype(dtype, copy=False) for name, dtype in self._input_types.items()}

    def _execute_feed(self, feed_index: int) -> Mapping[str, np.ndarray]:
        try:
            outputs = self.runner.run(self.make_feed(feed_index), sorted(self.available_tensors))
        except RunFailedError as error:
            return FailedRunOutputs(
                self._analysis.get_fp32_outputs(feed_index), run_failure_caveat(self._analysis.network, None, error)
            )
        return cast_to_declared_types(self._analysis, self._analysis.samples.remove_padding(outputs, feed_index))

    def close(self) -> None:
        self.runner.close()


def find_batch_dependent_outputs(analysis: Analysis, runner: Runner, feed_index: int) -> tuple[str, ...]:
    """Returns the float outputs of an engine in which equal samples of one batch get different values.

    The batch repeats one sample. Outputs at which FP32 of the network itself mixes the samples of a batch are left out.
    """
    rows, feed = analysis.samples.count_rows_of_full_feed(feed_index), analysis.samples.read_full_feed(feed_index)
    if rows < 2 or not any(array.ndim and len(array) == rows for array in feed.values()):
        return ()
    repeated_feed = {
        name: np.repeat(array[:1], rows, axis=0) if array.ndim and len(array) == rows else array
        for name, array in feed.items()
    }
    names = list_tensor_outputs(analysis.network)

    def find_outputs_with_unequal_rows(outputs: Mapping[str, np.ndarray], tolerance: float) -> list[str]:
        return [
            name
            for name, array in outputs.items()
            if array.ndim
            and len(array) == rows
            and array.dtype.kind == "f"
            and not np.allclose(array[1:], array[:1], rtol=tolerance, atol=tolerance, equal_nan=True)
        ]

    unequal = find_outputs_with_unequal_rows(runner.run(repeated_feed, names), 0.0)
    unequal = [name for name in unequal if name in analysis.network.producer]
    if unequal:
        with AdaptiveRunner(
            analysis.backend,
            extract_subgraph_of_outputs(analysis.network.model, unequal),
            analysis.samples,
            low_memory=True,
            few_executions=True,
        ) as reference:
            grouped = find_outputs_with_unequal_rows(reference.run(repeated_feed, unequal), _MAX_FP32_ROW_ERROR)
        unequal = [name for name in unequal if name not in grouped]
    return tuple(unequal)


def _time_engine_layers(
    runner: EngineRunner, network: Network, feed: Mapping[str, np.ndarray]
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


def add_engine_latencies(
    result: EngineResult, runner: EngineRunner, feed: Mapping[str, np.ndarray], sample_count: int
) -> ProgressSteps[EngineResult]:
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
                    if len({shape for other_profile in runner.profiles for shape in other_profile[name]}) > 1
                },
                count_samples_of_reshaped_feed(feed, profile_feed, sample_count),
                enqueued,
                graph_times,
                "; ".join(missing),
            )
        )
    return replace(
        result,
        latency_ms=latency,
        cuda_graph_ms=graph,
        profile_latencies=tuple(profiles),
        measurement_note="; ".join(filter(None, (result.measurement_note, *missing_parts))),
    )


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
    """Returns a feed in other shapes. Along each axis the values are cut off or repeated, so that indices stay valid."""
    reshaped = dict(feed)
    for name, shape in shapes.items():
        array = feed[name]
        for axis, size in enumerate(shape):
            if array.shape[axis] != size:
                array = np.take(array, np.arange(size) % max(1, array.shape[axis]), axis=axis)
        reshaped[name] = np.ascontiguousarray(array)
    return reshaped


def count_samples_of_reshaped_feed(
    feed: Mapping[str, np.ndarray], reshaped_feed: Mapping[str, np.ndarray], sample_count: int
) -> int:
    """Returns the number of samples in a reshaped feed. Inputs with one row per sample determine it."""
    sizes = [len(reshaped_feed[name]) for name, array in feed.items() if array.ndim and len(array) == sample_count]
    return max(sizes, default=sample_count)
