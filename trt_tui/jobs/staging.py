"""Stages on the way to production, each run on the judged samples and held against FP32 and the stage before."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from trt_tui.core.data.dumps import open_dump
from trt_tui.core.data.samples import Samples
from trt_tui.core.engines.made import made_of
from trt_tui.core.measure.analysis import Analysis
from trt_tui.core.measure.comparison import EngineResult, Verdict, unbuilt
from trt_tui.core.measure.held import Held
from trt_tui.core.measure.inputs import InputDifference, compare_inputs
from trt_tui.core.measure.judge import tensor_outputs
from trt_tui.core.measure.reference import DumpedOutputs, Outputs, nothing_common, open_outputs
from trt_tui.core.measure.stages import BUILT, ENGINE, NETWORK, OUTPUTS, PRODUCTION, SIMULATED, Asked, Stage
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.low_floats import has_low_floats
from trt_tui.core.network.reading import read_model
from trt_tui.core.runner import EngineRunner, Runner
from trt_tui.errors import BackendUnavailableError, CancelledError, InputError, TrtTuiError
from trt_tui.files.reading import read_bytes
from trt_tui.jobs import build
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibrating import ensure_ranges
from trt_tui.jobs.engine_building import Engine, build_engine
from trt_tui.jobs.judging import as_declared, layers_report, settings_of
from trt_tui.jobs.scheduler import Report
from trt_tui.jobs.steps import Steps, Urgency, Wait
from trt_tui.jobs.store import Store
from trt_tui.jobs.timing import Timing, timed
from trt_tui.jobs.verdicts import reference_metric, verdict_of
from trt_tui.words import builder_title, first_few
from trt_tui.workspace import Workspace, runs_here

CONFIG_SIMULATED, CONFIG_BUILT = "the simulated config", "the config's engine"
"""What production is held against beside FP32."""


class _Source(Protocol):
    """What yields the tensors of a stage, for the judged feeds one after another."""

    tensors: frozenset[str]

    def outputs(self, index: int) -> dict[str, np.ndarray]: ...

    def close(self) -> None: ...


@dataclass
class _Ran:
    """What a stage has yielded."""

    tensors: frozenset[str]
    held: Held


class _Simulated:
    """A config in the simulation."""

    def __init__(self, workspace: Workspace, config: PrecisionConfig) -> None:
        self.tensors = frozenset(workspace.analysis.tensors)
        self._runs = workspace.analysis.outputs(config, workspace.ranges, workspace.feeds)

    def outputs(self, index: int) -> dict[str, np.ndarray]:
        return next(self._runs)

    def close(self) -> None:
        self._runs.close()  # type: ignore[attr-defined]


class _Given:
    """A dump, or another network."""

    def __init__(self, outputs: Outputs, samples: Samples) -> None:
        self.tensors, self._outputs, self._samples = outputs.tensors, outputs, samples

    def outputs(self, index: int) -> dict[str, np.ndarray]:
        return self._outputs.outputs(self._samples, index)

    def close(self) -> None:
        self._outputs.close()


class _Engine:
    """A loaded engine.

    Raises:
        InputError: it takes other inputs than the network, or yields none of its outputs.
    """

    def __init__(self, runner: Runner, analysis: Analysis, name: str) -> None:
        network = analysis.network
        own = {info.name: info for info in network.inputs}
        if unknown := [info.name for info in runner.inputs if info.name not in own]:
            raise InputError(f"{name} takes an input that {network.name} has not: {unknown[0]}",
                             f"{name} takes {first_few([info.name for info in runner.inputs])}, {network.name} "
                             f"{first_few(list(own))}", "Name the engine of this network.")
        names = (*tensor_outputs(network), *analysis.kept)
        yields = {info.name for info in runner.outputs}
        self.tensors = frozenset(names) & yields
        if not self.tensors:
            raise nothing_common(name, [info.name for info in runner.outputs], network.name, names)
        self._types = {info.name: info.dtype for info in runner.inputs}
        self.runner, self._analysis = runner, analysis

    def feed(self, index: int) -> dict[str, np.ndarray]:
        """A feed in the types that the engine takes."""
        feed = self._analysis.samples.feed(index)
        return {name: feed[name].astype(dtype, copy=False) for name, dtype in self._types.items()}

    def outputs(self, index: int) -> dict[str, np.ndarray]:
        return as_declared(self._analysis, self.runner.run(self.feed(index), sorted(self.tensors)))

    def close(self) -> None:
        self.runner.close()


def run(workspace: Workspace, store: Store, report: Report, request: rq.MeasureStages) -> Steps[None]:
    """Measures the stages in their order; each is sent as it is known.

    Raises:
        InputError: a file of theirs cannot be read or does not fit the network; before anything is run.
        BackendUnavailableError: an engine is named, and no TensorRT works here.
    """
    opened = {one.name: _opened(workspace, one) for one in request.stages}
    yield Urgency.VERDICT
    inputs = _inputs(workspace, request)
    ensure_ranges(workspace, store, report, list(request.configs.values()))
    yield from reference_metric(workspace, store, report)
    ran: dict[str, _Ran] = {}
    before: _Ran | None = None
    for asked in request.stages:
        config = request.configs.get(asked.run)
        stage = Stage(asked.name, asked.kind, _cause(asked), asked.file, config)
        source = opened[asked.name]
        if asked.kind == SIMULATED and config is not None:
            source = _Simulated(workspace, config)
        if asked.kind == BUILT and config is not None:
            source, failed = yield from _built(workspace, store, report, config)
            if source is None:
                report.send(ev.StageMeasured(report.job, replace(stage, failed=failed)))
                continue
        assert source is not None, "what is not built was opened"
        try:
            found, verdict, beside = yield from _measured(workspace, report, asked.name, source, before)
            if asked.kind == ENGINE and isinstance(source, _Engine):
                engine = yield from _judged_engine(workspace, report, source, verdict, asked)
                stage = replace(stage, engine=engine)
        finally:
            source.close()
        if asked.kind == SIMULATED and config is not None:
            yield from _send_simulated(workspace, store, report, asked.run, config)
        stage = replace(stage, before=beside, verdict=None if config is not None else verdict)
        ran[asked.name] = before = found
        if asked.name == PRODUCTION:
            others = yield from _beside(workspace, store, report, request, ran)
            stage = replace(stage, beside=others, inputs=inputs)
        report.send(ev.StageMeasured(report.job, stage))


def _send_simulated(workspace: Workspace, store: Store, report: Report, run: str, config: PrecisionConfig
                    ) -> Steps[None]:
    """Sends the verdict of a config with all its caveats, as every other job sends it."""
    whole = Verdict({})
    for verdict in verdict_of(workspace, store, report, config):
        whole = verdict
        yield Urgency.VERDICT
    report.send(ev.VerdictMeasured(report.job, run, config, whole, True))


def _cause(asked: Asked) -> str:
    """What a stage does to the outputs, in a word or two."""
    if asked.kind == SIMULATED:
        return "its precisions"
    if asked.kind in (BUILT, ENGINE):
        return "the build"
    if asked.kind == NETWORK:
        return _of_network(asked.file)
    return "what production runs" if asked.name == PRODUCTION else "the export"


def _of_network(file: str) -> str:
    """What another network has that makes it differ: Q/DQ, types of 16 bits, or neither."""
    graph = read_model(Path(file))[0].graph
    kinds = {node.op_type for node in graph}
    if any("Quantize" in kind or "Integer" in kind or kind.startswith("QLinear") for kind in kinds):
        return "quantization"
    if has_low_floats(graph):
        return "its 16-bit types"
    return "what was changed in the network"


def _opened(workspace: Workspace, asked: Asked) -> _Source | None:
    """A stage of a file, ready to be run, or of the simulation; None for what is to be built."""
    network, analysis = workspace.network, workspace.analysis
    if asked.kind == ENGINE:
        return _Engine(_loaded(workspace, asked.file), analysis, Path(asked.file).name)
    if asked.kind in (NETWORK, OUTPUTS):
        outputs = open_outputs(asked.file, network, lambda: workspace.samples, lambda: workspace.backend,
                               workspace.judged)
        if not any(one.tensor in outputs.tensors for one in workspace.judged):
            raise nothing_common(outputs.name, sorted(outputs.tensors), network.name,
                                 [one.tensor for one in workspace.judged])
        return _Given(outputs, analysis.samples)
    return None


def _loaded(workspace: Workspace, file: str) -> EngineRunner:
    if workspace.builder is None:
        raise BackendUnavailableError("no TensorRT works here to load an engine", "trt-tui doctor says why",
                                      "Run it where it was built for, with --save-outputs of Polygraphy, and give "
                                      "--outputs.")
    try:
        return workspace.builder.load_engine(read_bytes(Path(file)))
    except InputError as error:
        raise InputError(f"{Path(file).name}: {error.title}", error.cause, error.next_step) from None


def _measured(workspace: Workspace, report: Report, name: str, source: _Source, before: _Ran | None
              ) -> Steps[tuple[_Ran, Verdict, Verdict | None]]:
    """Runs a stage; returns what it yields, its verdict, and that against the stage before."""
    analysis, feeds = workspace.analysis, workspace.feeds
    judged = [one for one in analysis.judged if one.tensor in source.tensors]
    common = [one for one in judged if before is not None and one.tensor in before.tensors]
    scored = set(analysis.scored) <= source.tensors and not isinstance(source, _Simulated)
    tally = analysis.tally(feeds, judged, scored=scored)
    beside = analysis.tally(feeds, common, against=before.held.get, scored=False) if before and common else None
    held, needed = Held(), source.tensors & set(analysis.tensors)
    for done, index in enumerate(feeds, 1):
        found = source.outputs(index)
        tally.add(index, found)
        if beside is not None:
            beside.add(index, found)
        held.put(index, {tensor: found[tensor] for tensor in needed})
        report.send(ev.Progress(report.job, f"stage {name}", done, len(feeds)))
        yield Urgency.VERDICT
    verdict = analysis.with_caveats(tally.verdict(), feeds)
    for settled in tally.settled(verdict):
        verdict = settled
        yield Urgency.VERDICT
    return _Ran(needed, held), verdict, beside.verdict() if beside is not None else None


def _built(workspace: Workspace, store: Store, report: Report, config: PrecisionConfig
           ) -> Steps[tuple[_Source | None, str]]:
    """Returns a config's engine, built and loaded, or why there is none."""
    builder, analysis = workspace.builder, workspace.analysis
    if builder is None:
        return None, "no TensorRT works here (trt-tui doctor says why)"
    try:
        result = store.engine(workspace, config) or (yield from build.build(workspace, store, report, config))
    except (CancelledError, BackendUnavailableError):
        raise
    except TrtTuiError as error:
        result = unbuilt(builder_title(builder.name, builder.version), error)
    report.send(ev.Built(report.job, config, result))
    if result.failed:
        return None, result.failed
    if not runs_here(builder, workspace.plan.settings):
        return None, "built, and it cannot run on this machine"
    settings = settings_of(analysis, workspace.feeds, workspace.plan, config)
    engine: Engine | None = None
    for step in build_engine(builder, workspace.network, config, workspace.ranges, settings, cache=store.engines,
                             wake=report.wake, weak=workspace.plan.weak, strict=workspace.plan.strict,
                             kept=analysis.kept):
        if isinstance(step, Engine):
            engine = step
        elif isinstance(step, Wait):
            yield step
    assert engine is not None, "a build ends with an engine"
    return _Engine(builder.load_engine(engine.data), analysis, CONFIG_BUILT), ""


def _judged_engine(workspace: Workspace, report: Report, source: _Engine, verdict: Verdict, asked: Asked
                   ) -> Steps[EngineResult]:
    """Returns what an engine in a file is: its figures, latency, and what became of each layer."""
    builder, runner = workspace.builder, source.runner
    assert builder is not None and isinstance(runner, EngineRunner), "it was loaded by a builder"
    feed = source.feed(workspace.feeds[0])
    steps = timed(runner, feed, workspace.data.judged.rows(workspace.feeds[0]))
    timing: Timing | None = None
    while timing is None:
        try:
            step = next(steps)
        except StopIteration as ended:
            timing = ended.value
        else:
            report.send(ev.Progress(report.job, step.phase, step.done, step.total))
            yield Urgency.VERDICT
    layers, missing = layers_report(runner, workspace.network, feed)
    return EngineResult(
        verdict, builder_title(builder.name, builder.version), timing.latency_ms, Path(asked.file).stat().st_size,
        note="; ".join(filter(None, (*timing.lacking, missing))), graph_ms=timing.graph_ms, profiles=timing.profiles,
        device=builder.device, device_memory=runner.device_memory,
        report=layers, made=made_of(layers, workspace.network) if layers is not None else {})


# -- production -------------------------------------------------------------------------------------------------------


def _beside(workspace: Workspace, store: Store, report: Report, request: rq.MeasureStages, ran: dict[str, _Ran]
            ) -> Steps[tuple[tuple[str, Verdict], ...]]:
    """Returns the verdicts of production against the simulation of the config, engines that were named, and its own."""
    production, config = ran[PRODUCTION], request.configs["config"]
    against = {one.name: ran[one.name] for one in request.stages if one.kind == ENGINE and one.name in ran}
    sources: dict[str, _Source] = {CONFIG_SIMULATED: _Simulated(workspace, config)}
    if workspace.builder is not None and runs_here(workspace.builder, workspace.plan.settings) and not against:
        built, _ = yield from _built(workspace, store, report, config)
        sources |= {CONFIG_BUILT: built} if built is not None else {}
    for name, source in sources.items():
        try:
            against[name], *_ = yield from _measured(workspace, report, name, source, None)
        finally:
            source.close()
        if name == CONFIG_SIMULATED:
            yield from _send_simulated(workspace, store, report, "config", config)
    return tuple((name, _between(workspace, other, production)) for name, other in against.items())


def _between(workspace: Workspace, first: _Ran, second: _Ran) -> Verdict:
    """The verdict of the second against the first."""
    analysis, feeds = workspace.analysis, workspace.feeds
    judged = [one for one in analysis.judged if one.tensor in first.tensors & second.tensors]
    tally = analysis.tally(feeds, judged, against=first.held.get, scored=False)
    for index in feeds:
        tally.add(index, second.held.get(index))
    return tally.verdict()


def _inputs(workspace: Workspace, request: rq.MeasureStages) -> tuple[InputDifference, ...]:
    """How the inputs that production was given differ from those here; none where it has dumped none.

    They come from a file of their own, or stand beside the outputs.

    Raises:
        InputError: the file holds none of the inputs, or not those of these samples.
    """
    outputs = next((one.file for one in request.stages if one.name == PRODUCTION), None)
    spec = request.inputs or outputs
    if spec is None:
        return ()
    dump, names = open_dump(spec), [info.name for info in workspace.network.inputs]
    there = [name for name in names if name in dump.names]
    if not there:
        if request.inputs is None:
            return ()
        raise nothing_common(dump.source, dump.names, workspace.network.name, names, "takes",
                             "Name the arrays after the network's inputs, or name another file.")
    given = DumpedOutputs(dump, workspace.network, workspace.samples, inputs=True)

    def pairs(name: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        samples = workspace.samples
        for index in range(len(samples)):
            yield samples.feed(index)[name], given.outputs(samples, index)[name]

    return tuple(compare_inputs(name, pairs(name)) for name in there)

