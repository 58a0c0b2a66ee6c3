"""The job that measures errors at the groups inside an engine, from debug tensors or from a marked engine.

Debug tensors belong to the engine as built; only some releases have them. A marked engine is a second engine with every
group's result as an output; it is built only on request.
"""

import contextlib
import time
from collections.abc import Generator, Mapping
from dataclasses import replace

from trt_tui.core.engines.inspector import read_engine_report
from trt_tui.core.engines.kernel_results import find_kernel_results
from trt_tui.core.measure.engine_errors import (
    ReadGroupResults,
    make_engine_output_reader,
    make_kernel_output_reader,
    measure_engine_errors,
)
from trt_tui.core.measure.results import MARKED, UNFUSED, Accuracy, EngineErrors
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.layer_moves import BarrierMove
from trt_tui.core.network.network import Network
from trt_tui.core.runner import EngineRunner
from trt_tui.errors import BackendUnavailableError, CancelledError, TrtTuiError
from trt_tui.jobs import events as ev
from trt_tui.jobs.engine_accuracy import make_build_settings, measure_engine_accuracy
from trt_tui.jobs.engine_build import BuilderMessage, BuildProgress, BuiltEngine, build_engine, lower_for_builder
from trt_tui.jobs.scheduler import JobReporter
from trt_tui.jobs.steps import Steps, Urgency, Wait
from trt_tui.jobs.store import ResultStore
from trt_tui.workspace import Workspace, can_run_engines


def send_engine_errors(workspace: Workspace, store: ResultStore, reporter: JobReporter, config: PrecisionConfig,
                       use_marked_engine: bool = False) -> Steps[EngineErrors | None]:
    """Measures, stores and sends the errors at the groups inside the engine of a config. Returns them.

    Returns None if the config has no engine, or the engine was not built as requested.

    Args:
        use_marked_engine: True to measure a second engine with the groups' results as outputs; False for the engine as
            built.
    """
    builder, result = workspace.builder, store.load_engine_result(workspace, config)
    if (builder is None or result is None or result.accuracy is None or not result.is_built_as_requested
            or not can_run_engines(builder, workspace.plan.settings)):
        return None
    source = MARKED if use_marked_engine else UNFUSED
    if result.engine_errors is not None and result.engine_errors.source == source:
        reporter.send(ev.EngineErrorsMeasured(reporter.job, config, result.engine_errors))
        return result.engine_errors
    try:
        errors = yield from (_measure_marked_engine_errors if use_marked_engine else _measure_debug_tensor_errors)(
            workspace, store, reporter, config)
    except (CancelledError, BackendUnavailableError):
        raise
    except TrtTuiError as error:  # reported once, in place of the values
        errors = EngineErrors(source, missing_reason=": ".join(filter(None, (error.title, error.cause))))
    else:
        store.save_engine_result(workspace, config, replace(result, engine_errors=errors))
    reporter.send(ev.EngineErrorsMeasured(reporter.job, config, errors))
    return errors


def _measure_debug_tensor_errors(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                                 config: PrecisionConfig) -> Steps[EngineErrors]:
    """Returns the errors at the kernel results of the engine as built, read from its debug tensors."""
    network, builder = workspace.network, workspace.builder
    assert builder is not None  # `send_engine_errors` has checked it
    data = yield from _build_engine_bytes(workspace, store, reporter, config)
    lowered = lower_for_builder(network, config, workspace.ranges, builder.capabilities, builder.name,
                                workspace.plan.weakly_typed)
    with builder.load_engine(data) as runner:
        text = runner.inspect()
        ends = find_kernel_results(read_engine_report(text, network), network, lowered.model, text)
        ends = {group: end for group, end in ends.items() if end.tensor not in network.blocking_plugins}
        tensors = {group: end.tensor for group, end in ends.items()}
        return (yield from _measure_group_errors_in_engine(workspace, reporter, config, UNFUSED,
                                                           make_kernel_output_reader(runner, ends), tensors))


def _measure_marked_engine_errors(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                                  config: PrecisionConfig) -> Steps[EngineErrors]:
    """Returns the errors at the groups of a marked engine, which has every group's result as an output."""
    network, builder = workspace.network, workspace.builder
    assert builder is not None
    result_tensors = find_results_usable_as_outputs(network)
    data = yield from _build_engine_bytes(workspace, store, reporter, add_group_results_as_outputs(network, config))
    with builder.load_engine(data) as runner:
        errors = yield from _measure_group_errors_in_engine(workspace, reporter, config, MARKED,
                                                            make_engine_output_reader(runner, result_tensors),
                                                            result_tensors)
        accuracy = yield from _measure_engine_accuracy(workspace, reporter, runner, config)
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


def _measure_group_errors_in_engine(workspace: Workspace, reporter: JobReporter, config: PrecisionConfig,
                                    error_source: str, read_group_results: ReadGroupResults,
                                    result_by_group: Mapping[str, str]) -> Steps[EngineErrors]:
    start_time, feed_indices = time.monotonic(), workspace.find_group_error_feeds(config)
    errors = EngineErrors(error_source)
    group_names = [group.name for group in workspace.network.groups]
    for done, groups in enumerate(
            measure_engine_errors(workspace.analysis, config, read_group_results, result_by_group, feed_indices), 1):
        errors = EngineErrors(
            error_source, dict(groups), tuple(name for name in group_names if name not in groups),
            workspace.count_samples(feed_indices[:done]))
        reporter.send_progress("errors inside the engine", done, len(feed_indices), start_time)
        yield Urgency.BUILD
    return errors if errors.group_errors else replace(
        errors, missing_reason="no debug tensor of the engine can be assigned to a group",
        hidden_groups=tuple(group_names))


def _build_engine_bytes(workspace: Workspace, store: ResultStore, reporter: JobReporter,
                        config: PrecisionConfig) -> Steps[bytes]:
    """Returns the engine of a config, built as requested or taken from the cache."""
    builder, plan, analysis = workspace.builder, workspace.plan, workspace.analysis
    assert builder is not None
    settings = make_build_settings(analysis, workspace.find_judged_feeds(config), plan, config,
                                   debug_tensors=builder.capabilities.debug_tensors)
    steps = build_engine(builder, workspace.network, config, workspace.ranges, settings, cache=store.engines,
                         wake=reporter.wake, weakly_typed=plan.weakly_typed, strict=True,
                         kept_tensors=analysis.extra_outputs)
    start_time = time.monotonic()
    with contextlib.closing(steps):
        for step in steps:
            match step:
                case BuiltEngine():
                    return step.data
                case BuilderMessage():
                    reporter.send(step.make_log_message(reporter.job))
                case BuildProgress():
                    reporter.send_progress(f"marked engine: {step.phase}", step.done, step.total, start_time)
                    yield Urgency.BUILD
                case Wait():
                    yield step
    raise AssertionError("a build ends with an engine")


def _measure_engine_accuracy(workspace: Workspace, reporter: JobReporter, runner: EngineRunner,
                             config: PrecisionConfig) -> Steps[Accuracy]:
    """Returns the accuracy of an engine at the judged outputs."""
    start_time = time.monotonic()
    steps: Generator[BuildProgress, None, Accuracy] = measure_engine_accuracy(workspace.analysis, runner,
                                                                              workspace.find_judged_feeds(config))
    while True:
        try:
            step = next(steps)
        except StopIteration as stop:
            accuracy: Accuracy = stop.value
            return accuracy
        reporter.send_progress(step.phase, step.done, step.total, start_time)
        yield Urgency.BUILD
