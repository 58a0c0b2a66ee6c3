"""Building a config with a backend, and judging what came out by its own outputs."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from trt_tui.core.data.adaptive_runner import load_adaptive_runner
from trt_tui.core.engines.fallback_ladder import LADDER_REASON, LOWEST_EFFORT
from trt_tui.core.engines.group_implementations import find_group_implementations
from trt_tui.core.engines.inspector import EngineReport, read_engine_report
from trt_tui.core.lowering.ends import extract_subgraph_of_outputs
from trt_tui.core.measure.accuracy_reducer import convert_to_comparable_array
from trt_tui.core.measure.analysis import Analysis
from trt_tui.core.measure.engine_agreement import find_groups_in_other_precision
from trt_tui.core.measure.failed_runs import FailedRunOutputs, run_failure_caveat
from trt_tui.core.measure.judged_outputs import JudgedOutput, list_tensor_outputs
from trt_tui.core.measure.results import Accuracy, EngineResult
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.core.runner import BuildSettings, EngineBackend, EngineRunner, Runner
from trt_tui.errors import InputError, RunFailedError, TrtTuiError
from trt_tui.formatting import builder_title, name_list_text
from trt_tui.jobs.engine_build import BuilderMessage, BuildProgress, BuiltEngine, build_engine
from trt_tui.jobs.steps import Wait
from trt_tui.jobs.store import EngineCache
from trt_tui.jobs.timing import time_engine
from trt_tui.workspace import BuildPlan, can_run_engines, find_shape_profile

PROFILING_RUNS = 10

TYPED_NETWORK_RUNS = "runs of the typed network"
"""What is run in a config's types; not on the host, where other types are computed."""

_MAX_FP32_ROW_ERROR = 1e-4
"""Rows of one batch that FP32 makes of the same sample are closer than this."""


def build_and_judge_engine(
    analysis: Analysis, backend: EngineBackend, config: PrecisionConfig, ranges: Mapping[str, float],
    feed_indices: Sequence[int], plan: BuildPlan, *, quick: bool, cache: EngineCache | None, wake: Callable[[], None],
) -> Generator[BuildProgress | BuilderMessage | Wait | EngineResult, None, None]:
    """Builds a config's engine and judges it as built; yields the `EngineResult` last.

    Only tensors before plugins, by which it is judged, are marked as outputs for this. Latency is measured without a
    profiler, the time of each layer in separate runs.

    Args:
        quick: Build with the lowest effort.
        cache: See `trt_tui.jobs.engine_build.build_engine`.

    Raises:
        InputError: the release cannot honour the config, or refuses the network.
        TrtTuiError: the build or a run failed.
    """
    network, samples = analysis.network, analysis.samples
    settings = make_build_settings(analysis, feed_indices, plan, config, quick=quick,
                                   debug_tensors=backend.capabilities.debug_tensors)
    engine: BuiltEngine | None = None
    kept_tensors = analysis.extra_outputs
    for step in build_engine(backend, network, config, ranges, settings, cache=cache, wake=wake,
                             weakly_typed=plan.weakly_typed, strict=plan.strict, kept_tensors=kept_tensors):
        if isinstance(step, BuiltEngine):
            engine = step
        else:
            yield step
    if engine is None:
        raise AssertionError("a build ends with an engine")
    result = EngineResult(
        None, builder_title(backend.name, backend.version), None, len(engine.data), engine.seconds, "; ".join(
            (*engine.notes, *_builder_options_note(plan), *_low_effort_note(engine),
             *_extra_outputs_note(kept_tensors))), backend.device, build_origin=engine.origin, is_quick_build=quick,
        attempts=engine.attempts, other_precisions=find_groups_in_other_precision(network, config, engine.attempts[-1],
                                                                                  {}))
    if not can_run_engines(backend, settings):
        compute_capability = settings.compute_capability
        capability_text = (f" for compute capability {compute_capability[0]}.{compute_capability[1]}"
                           if compute_capability else "")
        note = "; ".join(
            filter(None, (f"built{capability_text}; it cannot run on this machine", result.measurement_note)))
        yield replace(result, measurement_note=note)
        return
    yield BuildProgress("loading the engine")
    with backend.load_engine(engine.data) as runner:
        # FP32 as built checks the build: whatever errors are taken against, it is held against FP32 as simulated.
        against_own_fp32 = config == PrecisionConfig.from_precision(Precision.FP32)
        accuracy = yield from measure_engine_accuracy(analysis, runner, feed_indices, against_own_fp32=against_own_fp32)
        unequal_outputs = find_batch_dependent_outputs(analysis, runner, feed_indices[0])
        shape_accuracies: dict[str, Accuracy] = {}
        missing_parts: list[str] = []
        for name, shape_analysis in plan.other_shapes.items():
            phase = f"judging at the {name} shape"
            try:
                shape_accuracies[name] = yield from measure_engine_accuracy(shape_analysis, runner,
                                                                            range(len(shape_analysis.samples)), phase)
            except TrtTuiError as error:  # the verdict so far is kept
                missing_parts.append(f"not judged at the {name} shape: {error.title}")
        feed = samples.read_feed(feed_indices[0])
        timing = yield from time_engine(runner, feed, samples.count_samples_of_feed(feed_indices[0]))
        yield BuildProgress("timing the layers")
        engine_report, missing = time_engine_layers(runner, network, feed)
        missing_parts += timing.missing_parts
        note = "; ".join(
            filter(None, (f"batch {samples.count_samples_of_feed(feed_indices[0])}", result.measurement_note,
                          *missing_parts, missing)))
        implementations = find_group_implementations(engine_report, network) if engine_report is not None else {}
        result = replace(
            result, accuracy=accuracy, latency_ms=timing.latency_ms, cuda_graph_ms=timing.graph_ms,
            profile_latencies=timing.profiles, device_memory_bytes=runner.device_memory, measurement_note=note,
            engine_report=engine_report, implementations=implementations, shape_accuracies=shape_accuracies,
            unequal_outputs=unequal_outputs,
            other_precisions=find_groups_in_other_precision(network, config, engine.attempts[-1], implementations))
    if not result.is_built_as_requested:
        simulated = yield from _simulate_built_config(analysis, config, result.other_precisions, ranges, feed_indices)
        result = replace(result, simulated_accuracy=simulated)
    yield result


def make_build_settings(analysis: Analysis, feed_indices: Sequence[int], plan: BuildPlan, config: PrecisionConfig, *,
                        quick: bool = False, debug_tensors: bool = False) -> BuildSettings:
    """How a config's engine is built to be judged on some feeds; ``quick`` with the lowest effort."""
    settings = replace(plan.settings, tf32=config.tf32,
                       builder_options=plan.settings.builder_options.options_for_measured_engine,
                       debug_tensors=debug_tensors)
    if quick:
        settings = settings.with_low_build_effort()
    return replace(settings,
                   profile={**find_shape_profile(analysis.network, analysis.samples, feed_indices), **settings.profile})


def _simulate_built_config(analysis: Analysis, config: PrecisionConfig, deviating_precisions: Mapping[str, Precision],
                           ranges: Mapping[str, float],
                           feed_indices: Sequence[int]) -> Generator[BuildProgress, None, Accuracy | None]:
    """Returns the simulated verdict of what was built in place of a config; None if it cannot be simulated."""
    for name, precision in deviating_precisions.items():
        config = config.with_group_precision([analysis.network.get_group(name)], precision, LADDER_REASON)
    accuracy: Accuracy | None = None
    try:
        for partial in analysis.measure_accuracy(config, ranges, feed_indices):
            accuracy = partial.value
            yield BuildProgress("simulating what was made", partial.done_count, len(feed_indices))
    except InputError:
        return None
    return accuracy


def _builder_options_note(plan: BuildPlan) -> list[str]:
    production = plan.settings.builder_options
    weights = ", judged with its weights in it" if production.strip_plan else ""
    return [f"built with {', '.join(production.requested_option_texts)}{weights}"
            ] if production.requested_option_texts else []


def _low_effort_note(engine: BuiltEngine) -> tuple[str, ...]:
    if engine.attempts[-1].name != LOWEST_EFFORT:
        return ()
    return ((
        f"the builder failed at its own effort "
        f"({engine.attempts[0].failure_reason}): built with {engine.attempts[-1].description}, so "
        "neither latency nor size is the best", ))


def _extra_outputs_note(extra_outputs: Sequence[str]) -> list[str]:
    return [f"yields {name_list_text(extra_outputs)} beside its outputs, to be judged by them"] if extra_outputs else []


def measure_lowered_network_accuracy(analysis: Analysis, model: ir.Model, feed_indices: Sequence[int]
                                     ) -> Generator[BuildProgress, None, Accuracy]:
    """Runs a lowered network as it is written, with the backend that simulates; returns its verdict.

    Raises:
        InputError: the network is refused.
    """
    network = analysis.network
    if network.blocking_plugins or analysis.extra_outputs:
        model = extract_subgraph_of_outputs(model, [*list_tensor_outputs(network), *analysis.extra_outputs])
    with load_adaptive_runner(analysis.backend, model, analysis.samples, TYPED_NETWORK_RUNS, allow_host=False,
                              optimize=False) as runner:
        return (yield from measure_engine_accuracy(analysis, runner, feed_indices, "judging the export"))


def measure_engine_accuracy(analysis: Analysis, runner: Runner, feed_indices: Sequence[int],
                            phase: str = "judging the build",
                            against_own_fp32: bool = False) -> Generator[BuildProgress, None, Accuracy]:
    """Yields steps; returns the verdict at the network's own outputs."""
    names = (*list_tensor_outputs(analysis.network), *analysis.extra_outputs)
    judged_outputs: list[JudgedOutput] = [output for output in analysis.judged_outputs if output.tensor in names]
    tally = analysis.make_accuracy_reducer(feed_indices, judged_outputs,
                                           get_reference=analysis.get_fp32_outputs if against_own_fp32 else None)
    for done, index in enumerate(feed_indices, 1):
        try:
            outputs = cast_to_declared_types(analysis, runner.run(analysis.samples.read_feed(index), names))
        except RunFailedError as error:
            outputs = FailedRunOutputs(analysis.get_fp32_outputs(index),
                                       run_failure_caveat(analysis.network, None, error))
        tally.add_feed_outputs(index, outputs)
        yield BuildProgress(phase, done, len(feed_indices))
    accuracy: Accuracy = tally.compute_accuracy()
    if not against_own_fp32:
        accuracy = analysis.add_caveats(accuracy, feed_indices)
    for settled in tally.resample_metric_interval(accuracy):
        accuracy = settled
        yield BuildProgress(phase, len(feed_indices), len(feed_indices))
    return accuracy


def find_batch_dependent_outputs(analysis: Analysis, runner: Runner, feed_index: int) -> tuple[str, ...]:
    """The float outputs at which a batch of one sample, repeated, comes out of an engine with rows that differ in any
    bit; none where FP32 of the network itself treats its samples together."""
    rows, feed = analysis.samples.count_samples_of_feed(feed_index), analysis.samples.read_feed(feed_index)
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
    """The outputs in the types that the network declares (an engine may return INT32 for INT64)."""
    network = analysis.network
    types = {info.name: info.dtype for info in network.outputs}
    types |= dict.fromkeys(analysis.extra_outputs, np.dtype(np.float32))
    return {name: array.astype(types[name], copy=False) if array.dtype.kind != "U" else array
            for name, array in ((name, convert_to_comparable_array(value)) for name, value in outputs.items())}


def time_engine_layers(runner: EngineRunner, network: Network, feed: Mapping[str, np.ndarray]
                       ) -> tuple[EngineReport | None, str]:
    """The engine's layers with their times, and what of that is missing and why; the verdict is kept in any case."""
    try:
        engine_report = read_engine_report(runner.inspect(), network)
    except InputError as error:
        return None, f"its layers are unknown: {error.title}"
    try:
        return engine_report.with_layer_times(runner.layer_times_ms(feed, PROFILING_RUNS)), ""
    except TrtTuiError as error:
        return engine_report, f"its layers could not be timed: {error.title}"
