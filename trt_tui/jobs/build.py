"""Engines of configs: built and judged, or built and written to a file."""

import contextlib
import shlex
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trt_tui.backends.registry import get_builder
from trt_tui.core.engines.failures import BuildFailed
from trt_tui.core.engines.remarks import remarks
from trt_tui.core.engines.rungs import EASED
from trt_tui.core.exporters.production import files_beside, trtexec_lines
from trt_tui.core.lowering.lowered import lowers
from trt_tui.core.measure.comparison import EngineResult, unbuilt
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.core.runner import EngineBackend
from trt_tui.errors import BackendUnavailableError, CancelledError, InputError, TrtTuiError
from trt_tui.files.writing import write_atomic
from trt_tui.jobs import engine_errors
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibrating import ensure_ranges, ranges_to_write
from trt_tui.jobs.engine_building import BuilderLine, BuildProgress, Engine, build_engine
from trt_tui.jobs.exported_run import execute
from trt_tui.jobs.rebuilding import Made, Several, build_one, build_several, failed_words
from trt_tui.jobs.scheduler import Report
from trt_tui.jobs.spreading import following, hands_of
from trt_tui.jobs.steps import Steps, Urgency, Wait
from trt_tui.jobs.store import EngineCache, Store
from trt_tui.words import builder_title, duration
from trt_tui.workspace import Plan, Workspace, profile_of, runs_here

Making = Generator[BuildProgress | BuilderLine | Wait | EngineResult, None, None]
"""A build under way; its result comes last."""


def run(workspace: Workspace, store: Store, report: Report, request: rq.Build) -> Steps[None]:
    """Builds a config and judges what came out, after the FP32 engine; without a builder its export is executed."""
    config, builder = request.config, workspace.builder
    ensure_ranges(workspace, store, report, [config])
    if builder is None:
        executed = yield from execute(workspace, store, report, config, Urgency.BUILD)
        report.send(ev.ExportedExecuted(report.job, config, executed))
        return
    if runs_here(builder, workspace.plan.settings):
        fp32 = PrecisionConfig.uniform(Precision.FP32)
        yield from ahead(workspace, store, report, (fp32, config, *request.ahead) if not request.quick else ())
        checked = yield from _check(workspace, store, report, builder, fp32, tolerant=config != fp32)
        if config == fp32:
            report.send(ev.Built(report.job, fp32, checked))
            return
    known = store.engine(workspace, config) if request.marked else None
    if known is None or known.failed:
        yield from build(workspace, store, report, config, request.quick)
    else:
        report.send(ev.Built(report.job, config, known))
    if request.marked or builder.capabilities.hands_out and not request.quick:
        yield from engine_errors.measure(workspace, store, report, config, request.marked)


def build(workspace: Workspace, store: Store, report: Report, config: PrecisionConfig, quick: bool = False
          ) -> Steps[EngineResult]:
    """Returns a config's engine, built and judged, and sends it. A quick one is not kept.

    Several builds of one config are made at once where other processes are.
    """
    if not quick and _plan(workspace, config).builds > 1:
        yield from ahead(workspace, store, report, (config,))
        if (known := store.engine(workspace, config)) is not None:
            report.send(ev.Built(report.job, config, known))
            return known
    return (yield from _made(workspace, store, report, config,
                             making(workspace, workspace.ranges, config, quick, store.engines, report.wake), quick))


def making(workspace: Workspace, ranges: Mapping[str, float], config: PrecisionConfig, quick: bool, cache: EngineCache,
           wake: Callable[[], None]) -> Making:
    """The build of a config by the workspace's builder."""
    return build_several(workspace.analysis, _builder(workspace), config, ranges, workspace.feeds,
                         _plan(workspace, config), quick=quick, cache=cache, wake=wake)


def _plan(workspace: Workspace, config: PrecisionConfig) -> Plan:
    """The workspace's, but for what others are held against."""
    return workspace.plan if lowers(workspace.network, config) else replace(workspace.plan, weak=False, builds=1)


Build = tuple[PrecisionConfig, int]
"""One of the builds of a config, the first of them 0."""


class Building:
    """An errand: a build of a config, judged, or why there is none.

    Args:
        feeds: It is judged on these.
        cache: Holds engines; in another process that of its user.
        wake: Called when there is something to go on with; in another process nobody waits for it.
    """

    def __init__(self, ranges: Mapping[str, float], feeds: Sequence[int], cache: EngineCache | None = None,
                 wake: Callable[[], None] | None = None) -> None:
        self._ranges, self._feeds, self._cache, self._wake = ranges, tuple(feeds), cache, wake or _nobody

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": None, "_wake": _nobody}

    def words(self, item: Build) -> str:
        """See `trt_tui.core.hands.Errand`."""
        return f"build {item[1] + 1} of a config" if item[1] else "the build of a config"

    def do(self, subject: Workspace, item: Build) -> Generator[Wait | None, None, Made | TrtTuiError]:
        """See `trt_tui.core.hands.Errand`."""
        config, number = item
        options = subject.options
        printed: list[tuple[str, str]] = []
        if subject.builder is None:
            subject.builder = get_builder(options.backend, plugins=options.production.plugins)
        try:
            cache = self._cache or EngineCache()
            with contextlib.closing(build_one(subject.analysis, _builder(subject), config, self._ranges, self._feeds,
                                              _plan(subject, config), number, quick=False, cache=cache,
                                              wake=self._wake)) as steps:
                for made in steps:
                    if isinstance(made, Made):
                        told = remarks(printed, subject.network)
                        return replace(made, result=replace(made.result, remarks=told))
                    if isinstance(made, BuilderLine):
                        printed.append((made.level, made.text))
                    yield made if isinstance(made, Wait) else None
        except CancelledError:
            raise
        except TrtTuiError as error:
            return error
        raise AssertionError("a build ends with a result")


def _nobody() -> None:
    """Wakes nobody."""


def ahead(workspace: Workspace, store: Store, report: Report, configs: Sequence[PrecisionConfig]) -> Steps[int]:
    """Has other processes make several builds at once, where there are any; returns how many configs have an engine of
    that. One whose first build fails there is built again here.
    """
    wanted = {config: _plan(workspace, config).builds for config in dict.fromkeys(configs)
              if store.engine(workspace, config) is None}
    items = [(config, number) for config, builds in wanted.items() for number in range(builds)]
    if workspace.others is None or workspace.others.lost or len(items) < 2:
        return 0
    hands, since, kept = hands_of(workspace, report, engines=True), time.monotonic(), 0
    found: dict[Build, Made | TrtTuiError] = {}
    for made in hands.work(Building(workspace.ranges, workspace.feeds, store.engines, report.wake), items):
        if made is not None:
            (config, _), builds = made[0], wanted[made[0][0]]
            found[made[0]] = made[1]
            if all((config, number) in found for number in range(builds)):
                result = _worst(store, report, [found.pop((config, number)) for number in range(builds)])
                if result is not None:
                    store.keep_engine(workspace, config, result)
                    kept += 1
                wanted.pop(config)
        done = len(items) - (sum(wanted.values()) - len(found))
        report.progress(f"building {len(items)} engines{hands.words}", done, len(items), since)
        yield following(hands, Urgency.BUILD)
    return kept


def _worst(store: Store, report: Report, builds: Sequence[Made | TrtTuiError]) -> EngineResult | None:
    """The worst of the builds of a config, which is kept; None if the first failed."""
    if isinstance(builds[0], TrtTuiError):
        return None
    several = Several(store.engines)
    for number, made in enumerate(builds):
        if isinstance(made, TrtTuiError):
            report.send(ev.Note(report.job, failed_words(number, len(builds), made), "warning"))
        else:
            several.add(made)
    return several.result()


def _check(workspace: Workspace, store: Store, report: Report, builder: EngineBackend, fp32: PrecisionConfig,
           tolerant: bool) -> Steps[EngineResult]:
    """Returns the FP32 engine, and sends it.

    Args:
        tolerant: Go on without it where it cannot be had; one that TensorRT refuses is not tried again for that.
    """
    known = store.engine(workspace, fp32) or (workspace.refused if tolerant else None)
    if known is None:
        try:
            build = making(workspace, workspace.ranges, fp32, False, store.engines, report.wake)
            known = yield from _made(workspace, store, report, fp32, build, False, "FP32 engine: ")
        except (CancelledError, BackendUnavailableError):
            raise
        except TrtTuiError as error:
            if not tolerant:
                raise
            known = unbuilt(builder_title(builder.name, builder.version), error)
            workspace.refused = known if isinstance(error, BuildFailed) and error.refused else None
    report.send(ev.Fp32EngineJudged(report.job, known))
    return known


def _made(workspace: Workspace, store: Store, report: Report, config: PrecisionConfig, making: Making, quick: bool,
          prefix: str = "") -> Steps[EngineResult]:
    """Reports how a build goes on and what it made; returns that. A quick one is not kept."""
    since, phase = time.monotonic(), ""
    printed: list[tuple[str, str]] = []
    with contextlib.closing(making):
        for made in making:
            match made:
                case EngineResult():
                    made = replace(made, remarks=remarks(printed, workspace.network))
                    if not quick:
                        store.keep_engine(workspace, config, made)
                    if not prefix:
                        report.send(ev.Built(report.job, config, made))
                    return made
                case BuilderLine():
                    printed.append((made.level, made.text))
                    report.send(ev.Note(report.job, f"{made.level}: {made.text}"))
                case BuildProgress():
                    since = time.monotonic() if made.phase != phase else since
                    phase = made.phase
                    report.progress(prefix + phase, made.done, made.total, since)
                    yield Urgency.BUILD
                case Wait():
                    yield made
    raise AssertionError("a build ends with a result")


# -- production -----------------------------------------------------------------------------------------------------


def write(workspace: Workspace, store: Store, report: Report, request: rq.WriteEngine) -> Steps[None]:
    """Builds a config's engine and writes it, unjudged."""
    builder, plan, network = _builder(workspace), workspace.plan, workspace.network
    ranges, needless = ranges_to_write(workspace, store, report, request.config, request.given)
    workspace.require_unchanged()
    taken = {}
    if workspace.options.data is not None:
        found = profile_of(network, workspace.data.judged, workspace.feeds)
        taken = {name: shapes for name, shapes in found.items() if name not in plan.settings.profile}
    settings = replace(plan.settings, tf32=request.config.tf32, profile={**taken, **plan.settings.profile})
    if request.quick:
        settings = settings.quick()
    cache = None if settings.production.timing_cache else store.engines
    since = time.monotonic()
    with contextlib.closing(build_engine(builder, network, request.config, ranges, settings, cache=cache,
                                         wake=report.wake, weak=plan.weak, strict=plan.strict)) as making:
        for made in making:
            match made:
                case Engine():
                    write_atomic(Path(request.path), made.data)
                    about = (*_about(workspace, builder, made), *(
                        f"{name}: {' to '.join('x'.join(map(str, one)) for one in (shapes[0], shapes[2]))}, as the "
                        "data has it (--shapes sets another profile)" for name, shapes in taken.items()))
                    otherwise = "" if made.rungs[-1].as_asked else made.rungs[-1].said
                    about = (*about, *_quick(request.quick), *_with_trtexec(workspace, request, ranges))
                    report.send(ev.EngineWritten(report.job, request.path, len(made.data), about, otherwise, needless))
                case BuilderLine():
                    report.send(ev.Note(report.job, f"{made.level}: {made.text}"))
                case BuildProgress():
                    report.progress(made.phase, made.done, made.total, since)
                    yield Urgency.BUILD
                case Wait():
                    yield made


def _builder(workspace: Workspace) -> EngineBackend:
    if workspace.builder is None:
        raise BackendUnavailableError(
            "no TensorRT works here to build an engine", "trt-tui doctor says why",
            "Write -o typed.onnx instead, or name a backend: --backend tensorrt-rtx builds without a GPU.")
    return workspace.builder


def _quick(quick: bool) -> tuple[str, ...]:
    return ("A quick build, with the lowest effort: not for production.",) if quick else ()


def _with_trtexec(workspace: Workspace, request: rq.WriteEngine, ranges: Mapping[str, float]) -> list[str]:
    """The trtexec command lines that build the same."""
    path, production = Path(request.path), workspace.options.production
    script = path.with_name(f"{path.name}.sh")
    if request.quick:
        production = workspace.plan.settings.quick().production
    told = [f"The same config with trtexec (`trt-tui export --format trtexec -o {script.name}` writes the files it "
            "names):"]
    try:
        files = replace(files_beside("trtexec", script), engine=path.name)
        lines = trtexec_lines(workspace.network, request.config, ranges, files, workspace.profile, production)
    except InputError as error:
        return [f"trtexec cannot be told the same: {error.title}"]
    for line in lines:
        told += [f"  # {line.release}", f"  {shlex.join(line.argv) if line.argv else '# ' + line.refused}"]
    return told


def _about(workspace: Workspace, builder: EngineBackend, engine: Engine) -> tuple[str, ...]:
    """What to know of an engine, in lines."""
    settings = workspace.plan.settings
    target = settings.compute_capability
    made = f"{builder.name} {builder.version}"
    made += f" for compute capability {target[0]}.{target[1]}" if target is not None else f" on {builder.device}"
    took = "taken from the engine cache" if engine.origin == "engine cache" else (
        f"built in {duration(engine.seconds)}" + " with a timing cache" * (engine.origin == "timing cache"))
    cannot = () if runs_here(builder, settings) else ("It cannot run on this machine.",)
    asked = (f"asked for: {', '.join(said)}",) if (said := settings.production.said) else ()
    tried = [f"failed {rung.said}: {rung.failed}" for rung in engine.rungs[:-1]]
    tried += [f"built with {engine.rungs[-1].said}"] if engine.rungs[-1].name == EASED else []
    return (f"{made}, {took}", *asked, *tried, *cannot, *engine.notes)
