"""Building a config with a backend, and judging what came out by its own outputs."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from trt_tui.core.data.fitted import fitted
from trt_tui.core.engines.inspector import EngineReport, read_inspector
from trt_tui.core.engines.made import made_of
from trt_tui.core.engines.rungs import EASED, REASON
from trt_tui.core.lowering.ends import ending_in
from trt_tui.core.measure.agreement import made_otherwise
from trt_tui.core.measure.analysis import Analysis
from trt_tui.core.measure.comparison import EngineResult, Verdict
from trt_tui.core.measure.failed_runs import FailedRun, failed_caveat
from trt_tui.core.measure.judge import Judged, tensor_outputs
from trt_tui.core.measure.tally import comparable
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.core.runner import BuildSettings, EngineBackend, EngineRunner, Runner
from trt_tui.errors import InputError, RunFailedError, TrtTuiError
from trt_tui.jobs.engine_building import BuilderLine, BuildProgress, Engine, build_engine
from trt_tui.jobs.steps import Wait
from trt_tui.jobs.store import EngineCache
from trt_tui.jobs.timing import timed
from trt_tui.words import builder_title, first_few
from trt_tui.workspace import Plan, profile_of, runs_here

PROFILED_RUNS = 10

TYPED = "runs of the typed network"
"""What is run in a config's types; not on the host, where other types are computed."""

_SAME_IN_FP32 = 1e-4
"""Rows of one batch that FP32 makes of the same sample are closer than this."""


def build_and_judge(
    analysis: Analysis, backend: EngineBackend, config: PrecisionConfig, ranges: Mapping[str, float],
    feeds: Sequence[int], plan: Plan, *, quick: bool, cache: EngineCache | None, wake: Callable[[], None],
) -> Generator[BuildProgress | BuilderLine | Wait | EngineResult, None, None]:
    """Builds a config's engine and judges it as built; yields the `EngineResult` last.

    Only tensors before plugins, by which it is judged, are marked as outputs for this. Latency is measured without a
    profiler, the time of each layer in separate runs.

    Args:
        quick: Build with the lowest effort.
        cache: See `trt_tui.jobs.engine_building.build_engine`.

    Raises:
        InputError: the release cannot honour the config, or refuses the network.
        TrtTuiError: the build or a run failed.
    """
    network, samples = analysis.network, analysis.samples
    settings = settings_of(analysis, feeds, plan, config, quick=quick, hands_out=backend.capabilities.hands_out)
    engine: Engine | None = None
    kept = analysis.kept
    for step in build_engine(backend, network, config, ranges, settings, cache=cache, wake=wake, weak=plan.weak,
                             strict=plan.strict, kept=kept):
        if isinstance(step, Engine):
            engine = step
        else:
            yield step
    if engine is None:
        raise AssertionError("a build ends with an engine")
    result = EngineResult(None, builder_title(backend.name, backend.version), None, len(engine.data), engine.seconds,
                          "; ".join((*engine.notes, *_asked_note(plan), *_eased_note(engine), *_kept_note(kept))),
                          backend.device,
                          origin=engine.origin, quick=quick, rungs=engine.rungs,
                          otherwise=made_otherwise(network, config, engine.rungs[-1], {}))
    if not runs_here(backend, settings):
        target = settings.compute_capability
        where = f" for compute capability {target[0]}.{target[1]}" if target else ""
        note = "; ".join(filter(None, (f"built{where}; it cannot run on this machine", result.note)))
        yield replace(result, note=note)
        return
    yield BuildProgress("loading the engine")
    with backend.load_engine(engine.data) as runner:
        # FP32 as built checks the build: whatever errors are taken against, it is held against FP32 as simulated.
        own = config == PrecisionConfig.uniform(Precision.FP32)
        verdict = yield from judge_as_built(analysis, runner, feeds, own=own)
        differ = unequal_rows(analysis, runner, feeds[0])
        shapes: dict[str, Verdict] = {}
        lacking: list[str] = []
        for name, other in plan.others.items():
            phase = f"judging at the {name} shape"
            try:
                shapes[name] = yield from judge_as_built(other, runner, range(len(other.samples)), phase)
            except TrtTuiError as error:  # the verdict so far is kept
                lacking.append(f"not judged at the {name} shape: {error.title}")
        feed = samples.feed(feeds[0])
        timing = yield from timed(runner, feed, samples.rows(feeds[0]))
        yield BuildProgress("timing the layers")
        report, missing = layers_report(runner, network, feed)
        lacking += timing.lacking
        note = "; ".join(filter(None, (f"batch {samples.rows(feeds[0])}", result.note, *lacking, missing)))
        made = made_of(report, network) if report is not None else {}
        result = replace(result, verdict=verdict, latency_ms=timing.latency_ms, graph_ms=timing.graph_ms,
                         profiles=timing.profiles, device_memory=runner.device_memory, note=note, report=report,
                         made=made, shapes=shapes, rows_differ=differ,
                         otherwise=made_otherwise(network, config, engine.rungs[-1], made))
    if not result.as_asked:
        simulated = yield from _simulated(analysis, config, result.otherwise, ranges, feeds)
        result = replace(result, simulated=simulated)
    yield result


def settings_of(analysis: Analysis, feeds: Sequence[int], plan: Plan, config: PrecisionConfig, *, quick: bool = False,
                hands_out: bool = False) -> BuildSettings:
    """How a config's engine is built to be judged on some feeds; ``quick`` with the lowest effort."""
    settings = replace(plan.settings, tf32=config.tf32, production=plan.settings.production.judged,
                       hands_out=hands_out)
    if quick:
        settings = settings.quick()
    return replace(settings, profile={**profile_of(analysis.network, analysis.samples, feeds), **settings.profile})


def _simulated(analysis: Analysis, config: PrecisionConfig, otherwise: Mapping[str, Precision],
               ranges: Mapping[str, float], feeds: Sequence[int]) -> Generator[BuildProgress, None, Verdict | None]:
    """Returns the simulated verdict of what was built in place of a config; None if it cannot be simulated."""
    for name, precision in otherwise.items():
        config = config.with_groups([analysis.network.group(name)], precision, REASON)
    verdict: Verdict | None = None
    try:
        for partial in analysis.verdict(config, ranges, feeds):
            verdict = partial.value
            yield BuildProgress("simulating what was made", partial.done, len(feeds))
    except InputError:
        return None
    return verdict


def _asked_note(plan: Plan) -> list[str]:
    production = plan.settings.production
    weights = ", judged with its weights in it" if production.strip_plan else ""
    return [f"built with {', '.join(production.said)}{weights}"] if production.said else []


def _eased_note(engine: Engine) -> tuple[str, ...]:
    if engine.rungs[-1].name != EASED:
        return ()
    return (f"the builder failed at its own effort ({engine.rungs[0].failed}): built with {engine.rungs[-1].said}, so "
            "neither latency nor size is the best",)


def _kept_note(kept: Sequence[str]) -> list[str]:
    return [f"yields {first_few(kept)} beside its outputs, to be judged by them"] if kept else []


def judged_run(analysis: Analysis, model: ir.Model, feeds: Sequence[int]
               ) -> Generator[BuildProgress, None, Verdict]:
    """Runs a lowered network as it is written, with the backend that simulates; returns its verdict.

    Raises:
        InputError: the network is refused.
    """
    network = analysis.network
    if network.behind or analysis.kept:
        model = ending_in(model, [*tensor_outputs(network), *analysis.kept])
    with fitted(analysis.backend, model, analysis.samples, TYPED, host=False, optimize=False) as runner:
        return (yield from judge_as_built(analysis, runner, feeds, "judging the export"))


def judge_as_built(analysis: Analysis, runner: Runner, feeds: Sequence[int],
            phase: str = "judging the build", own: bool = False) -> Generator[BuildProgress, None, Verdict]:
    """Yields steps; returns the verdict at the network's own outputs."""
    names = (*tensor_outputs(analysis.network), *analysis.kept)
    judged: list[Judged] = [one for one in analysis.judged if one.tensor in names]
    tally = analysis.tally(feeds, judged, against=analysis.own if own else None)
    for done, index in enumerate(feeds, 1):
        try:
            outputs = as_declared(analysis, runner.run(analysis.samples.feed(index), names))
        except RunFailedError as error:
            outputs = FailedRun(analysis.own(index), failed_caveat(analysis.network, None, error))
        tally.add(index, outputs)
        yield BuildProgress(phase, done, len(feeds))
    verdict: Verdict = tally.verdict()
    if not own:
        verdict = analysis.with_caveats(verdict, feeds)
    for settled in tally.settled(verdict):
        verdict = settled
        yield BuildProgress(phase, len(feeds), len(feeds))
    return verdict


def unequal_rows(analysis: Analysis, runner: Runner, index: int) -> tuple[str, ...]:
    """The float outputs at which a batch of one sample, repeated, comes out of an engine with rows that differ in any
    bit; none where FP32 of the network itself treats its samples together."""
    rows, feed = analysis.samples.rows(index), analysis.samples.feed(index)
    if rows < 2 or not any(array.ndim and len(array) == rows for array in feed.values()):
        return ()
    same = {name: np.repeat(array[:1], rows, axis=0) if array.ndim and len(array) == rows else array
            for name, array in feed.items()}
    names = tensor_outputs(analysis.network)

    def differ(found: Mapping[str, np.ndarray], tolerance: float) -> list[str]:
        return [name for name, array in found.items() if array.ndim and len(array) == rows and array.dtype.kind == "f"
                and not np.allclose(array[1:], array[:1], rtol=tolerance, atol=tolerance, equal_nan=True)]

    found = differ(runner.run(same, names), 0.0)
    found = [name for name in found if name in analysis.network.producer]
    if found:
        with fitted(analysis.backend, ending_in(analysis.network.model, found), analysis.samples, lean=True,
                    few=True) as reference:
            together = differ(reference.run(same, found), _SAME_IN_FP32)
        found = [name for name in found if name not in together]
    return tuple(found)


def as_declared(analysis: Analysis, outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs in the types that the network declares (an engine may return INT32 for INT64)."""
    network = analysis.network
    types = {info.name: info.dtype for info in network.outputs}
    types |= dict.fromkeys(analysis.kept, np.dtype(np.float32))
    return {name: array.astype(types[name], copy=False) if array.dtype.kind != "U" else array
            for name, array in ((name, comparable(value)) for name, value in outputs.items())}


def layers_report(runner: EngineRunner, network: Network, feed: Mapping[str, np.ndarray]
                  ) -> tuple[EngineReport | None, str]:
    """The engine's layers with their times, and what of that is missing and why; the verdict is kept in any case."""
    try:
        report = read_inspector(runner.inspect(), network)
    except InputError as error:
        return None, f"its layers are unknown: {error.title}"
    try:
        return report.timed(runner.layer_times_ms(feed, PROFILED_RUNS)), ""
    except TrtTuiError as error:
        return report, f"its layers could not be timed: {error.title}"
