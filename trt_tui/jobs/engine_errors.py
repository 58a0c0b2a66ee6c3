"""Errors inside an engine, at the groups: of the engine as built where its release hands out what kernels hand on;
where it is asked for, of a second engine that has every group's result as an output."""

import contextlib
import time
from collections.abc import Generator, Mapping
from dataclasses import replace

from trt_tui.core.engines.ends import kernel_ends
from trt_tui.core.engines.inspector import read_inspector
from trt_tui.core.measure.comparison import MARKED, UNFUSED, EngineErrors, Verdict
from trt_tui.core.measure.engine_errors import Read, measure_inside, through_kernels, through_outputs
from trt_tui.core.moves.barrier import Barrier
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import Network
from trt_tui.core.runner import EngineRunner
from trt_tui.errors import BackendUnavailableError, CancelledError, TrtTuiError
from trt_tui.jobs import events as ev
from trt_tui.jobs.engine_building import BuilderLine, BuildProgress, Engine, build_engine, lower_for
from trt_tui.jobs.judging import judge_as_built, settings_of
from trt_tui.jobs.scheduler import Report
from trt_tui.jobs.steps import Steps, Urgency, Wait
from trt_tui.jobs.store import Store
from trt_tui.workspace import Workspace, runs_here


def measure(workspace: Workspace, store: Store, report: Report, config: PrecisionConfig, marked: bool = False
            ) -> Steps[EngineErrors | None]:
    """Measures the errors inside a config's engine, keeps and sends them; returns them, or None where there is no such
    engine, or none that is of the config as asked.

    Args:
        marked: Of a second engine with the groups' results as outputs; else of the engine as built.
    """
    builder, known = workspace.builder, store.engine(workspace, config)
    if builder is None or known is None or known.verdict is None or not known.as_asked or not runs_here(
            builder, workspace.plan.settings):
        return None
    how = MARKED if marked else UNFUSED
    if known.inside is not None and known.inside.how == how:
        report.send(ev.EngineErrorsMeasured(report.job, config, known.inside))
        return known.inside
    try:
        found = yield from (_marked if marked else _unfused)(workspace, store, report, config)
    except (CancelledError, BackendUnavailableError):
        raise
    except TrtTuiError as error:  # said once, in the place of the figures
        found = EngineErrors(how, missing=": ".join(filter(None, (error.title, error.cause))))
    else:
        store.keep_engine(workspace, config, replace(known, inside=found))
    report.send(ev.EngineErrorsMeasured(report.job, config, found))
    return found


def _unfused(workspace: Workspace, store: Store, report: Report, config: PrecisionConfig) -> Steps[EngineErrors]:
    """Returns the errors at the ends of the kernels of the engine as built."""
    network, builder = workspace.network, workspace.builder
    assert builder is not None  # `measure` has asked for it
    data = yield from _built(workspace, store, report, config)
    lowered = lower_for(network, config, workspace.ranges, builder.capabilities, builder.name, workspace.plan.weak)
    with builder.load_engine(data) as runner:
        text = runner.inspect()
        ends = kernel_ends(read_inspector(text, network), network, lowered.model, text)
        ends = {group: end for group, end in ends.items() if end.tensor not in network.behind}
        tensors = {group: end.tensor for group, end in ends.items()}
        return (yield from _errors(workspace, report, UNFUSED, through_kernels(runner, ends), tensors))


def _marked(workspace: Workspace, store: Store, report: Report, config: PrecisionConfig) -> Steps[EngineErrors]:
    """Returns the errors of a second engine with every group's result as an output."""
    network, builder = workspace.network, workspace.builder
    assert builder is not None
    tails = marked_tensors(network)
    data = yield from _built(workspace, store, report, with_marks(network, config))
    with builder.load_engine(data) as runner:
        found = yield from _errors(workspace, report, MARKED, through_outputs(runner, tails), tails)
        verdict = yield from _judged(workspace, report, runner)
    return replace(found, verdict=verdict)


def marked_tensors(network: Network) -> dict[str, str]:
    """The result of each group that an engine can have as an output, by group name."""
    own = {info.name for info in network.outputs}
    return {group.name: group.tail for group in network.groups if group.tail not in network.behind
            and (group.tail in own or not Barrier().refused(network, group.tail))}


def with_marks(network: Network, config: PrecisionConfig) -> PrecisionConfig:
    """A config with every group's result as an output."""
    own = {info.name for info in network.outputs}
    return config.with_moves({tail: Barrier() for tail in marked_tensors(network).values() if tail not in own})


def _errors(workspace: Workspace, report: Report, how: str, read: Read, tensors: Mapping[str, str]
            ) -> Steps[EngineErrors]:
    since, feeds, found = time.monotonic(), workspace.feeds, EngineErrors(how)
    every = [group.name for group in workspace.network.groups]
    for done, groups in enumerate(measure_inside(workspace.analysis, read, tensors, feeds), 1):
        found = EngineErrors(how, dict(groups), tuple(name for name in every if name not in groups),
                             sum(workspace.data.judged.rows(index) for index in feeds[:done]))
        report.progress("errors inside the engine", done, len(feeds), since)
        yield Urgency.BUILD
    return found if found.groups else replace(
        found, missing="the engine hands on no result of a group that can be told", hidden=tuple(every))


def _built(workspace: Workspace, store: Store, report: Report, config: PrecisionConfig) -> Steps[bytes]:
    """Returns the engine of a config, as asked, from the cache where it is known."""
    builder, plan, analysis = workspace.builder, workspace.plan, workspace.analysis
    assert builder is not None
    settings = settings_of(analysis, workspace.feeds, plan, config, hands_out=builder.capabilities.hands_out)
    steps = build_engine(builder, workspace.network, config, workspace.ranges, settings, cache=store.engines,
                         wake=report.wake, weak=plan.weak, strict=True, kept=analysis.kept)
    since = time.monotonic()
    with contextlib.closing(steps):
        for step in steps:
            match step:
                case Engine():
                    return step.data
                case BuilderLine():
                    report.send(ev.Note(report.job, f"{step.level}: {step.text}"))
                case BuildProgress():
                    report.progress(f"engine to look into: {step.phase}", step.done, step.total, since)
                    yield Urgency.BUILD
                case Wait():
                    yield step
    raise AssertionError("a build ends with an engine")


def _judged(workspace: Workspace, report: Report, runner: EngineRunner) -> Steps[Verdict]:
    """Returns what an engine yields at the judged outputs."""
    since = time.monotonic()
    steps: Generator[BuildProgress, None, Verdict] = judge_as_built(workspace.analysis, runner, workspace.feeds)
    while True:
        try:
            step = next(steps)
        except StopIteration as ended:
            verdict: Verdict = ended.value
            return verdict
        report.progress(step.phase, step.done, step.total, since)
        yield Urgency.BUILD
