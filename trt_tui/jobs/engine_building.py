"""Building engines in a thread of the child process, with caches of engines and of measured tactics."""

import hashlib
import os
import re
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from trt_tui.core.engines.failures import BuildFailed, ParseFailed
from trt_tui.core.engines.rungs import EASED, FREE, PREFER, Ladder, Rung, one_line
from trt_tui.core.exporters.onnx import export_typed
from trt_tui.core.lowering.ends import with_outputs
from trt_tui.core.lowering.releases import refuse_codes, refuse_cubic_grids
from trt_tui.core.lowering.strong import lower_strong
from trt_tui.core.lowering.told import lower_told
from trt_tui.core.lowering.weak import lower_weak
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import Layer
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.core.runner import (
    LEAST_LEVEL,
    TIMINGS_REFUSED,
    BuildSettings,
    Capabilities,
    EngineBackend,
    Told,
)
from trt_tui.errors import InputError, TrtTuiError
from trt_tui.files.scratch import scratch_folder
from trt_tui.jobs.steps import Wait
from trt_tui.jobs.store import EngineCache

REPORT_S = 0.1
"""Least time between two reports of a build."""


@dataclass(frozen=True)
class BuildProgress:
    """How far a build is; ``total`` 0 means that the end is unknown."""

    phase: str
    done: int = 0
    total: int = 0


@dataclass(frozen=True)
class BuilderLine:
    """A line that the builder printed."""

    level: str
    text: str


@dataclass(frozen=True)
class Engine:
    """A built engine.

    Attributes:
        seconds: Duration of the build; 0 if it came from the cache.
        origin: "cold", "timing cache" or "engine cache".
        notes: Notes of the lowering.
        rungs: What was tried; the engine was built on the last. Only one if it was built as asked.
    """

    data: bytes
    seconds: float
    origin: str
    notes: tuple[str, ...] = ()
    rungs: tuple[Rung, ...] = (Rung(),)


@dataclass(frozen=True)
class Lowered:
    """What a backend builds from: the ONNX model, and what to tell beside it if the graph's types do not decide."""

    model: ir.Model
    told: Told | None
    notes: tuple[str, ...]


def lower_for(network: Network, config: PrecisionConfig, ranges: Mapping[str, float], capabilities: Capabilities,
              backend: str, weak: bool = False, gpu: tuple[int, int] | None = None) -> Lowered:
    """Lowers a config to the form that a backend's release takes.

    Args:
        backend: Its name and version, for messages.
        weak: Precisions layer by layer and implicit quantization, in place of types and Q/DQ.
        gpu: The compute capability to build for, where it is not that of the GPU here.

    Raises:
        InputError: the release or the GPU cannot honour the config; says what and why.
    """
    if Precision.BF16 in {*config.assignment(network).values()} and not capabilities.bf16:
        raise InputError("this config asks for BF16", f"{backend} has no BF16", "Use FP16 or FP32 for those layers.")
    takes = {*capabilities.codes, *((Precision.FP16_SUMS_FP32,) if capabilities.strong and not weak else ())}
    refuse_codes(network, config, takes, backend, gpu or capabilities.gpu)
    if not capabilities.cubic_grids:
        refuse_cubic_grids(network, backend)
    if weak:
        if not capabilities.weak:
            raise InputError("--weak cannot be honoured", f"{backend} is strongly typed only: it takes no precision "
                             "per layer and no dynamic range", "Leave out --weak.")
        weakly = lower_weak(network, config, ranges)
        return Lowered(weakly.model, weakly, tuple(weakly.notes))
    if capabilities.strong:
        typed = lower_strong(network, config, ranges)
        return Lowered(typed.model, None, typed.notes)
    typed, told = lower_told(network, config, ranges)
    return Lowered(typed.model, told, typed.notes)


def build_engine(
    backend: EngineBackend, network: Network, config: PrecisionConfig, ranges: Mapping[str, float],
    settings: BuildSettings, *, cache: EngineCache | None, wake: Callable[[], None], weak: bool = False,
    strict: bool = False, kept: Sequence[str] = (),
) -> Generator[BuildProgress | BuilderLine | Wait | Engine, None, None]:
    """Builds a config's engine, or takes it from the cache; yields the `Engine` last.

    If the builder refuses what is asked, it goes down the rungs of `trt_tui.core.engines.rungs`. The build runs in a
    thread. When the generator is closed, it asks the builder to stop and waits for it.

    Args:
        cache: Holds engines and timing caches; with None it builds anew and keeps nothing.
        wake: Called from the thread when there is something to yield.
        strict: Build as asked or not at all.
        kept: Tensors that the engine is to yield too, see `trt_tui.core.measure.judge.kept_tensors`.

    Raises:
        InputError: the release cannot honour the config, or refuses the network.
        NoEngine: the build failed on every rung; the cause names them all, ``rungs`` holds them.
    """
    rung, tried, ladder = Rung(), [], None
    first: BuildFailed | ParseFailed | None = None
    while True:
        yield BuildProgress("lowering")
        lowered = lower_for(network, rung.config(network, config), ranges, backend.capabilities,
                            f"{backend.name} {backend.version}", weak, settings.compute_capability)
        eases = settings.production.optimization_level != LEAST_LEVEL
        ladder = ladder or _ladder(network, config, lowered.told, eases)
        lowered = replace(lowered, told=_loosened(lowered.told, rung, network),
                          model=with_outputs(lowered.model, kept))
        try:
            effort = settings.eased() if rung.name == EASED else settings
            engine = yield from _built(backend, network, lowered, effort, cache, wake)
        except (BuildFailed, ParseFailed) as error:
            tried.append(replace(rung, failed=one_line(error.cause or error.title)))
            first = first or error
            following = None if strict or not _refused(error, lowered.told) else ladder.below(rung, _names(error))
            if following is None or following.name == EASED and isinstance(error, ParseFailed):  # no effort parses more
                raise _failed(first, tried, network, eases) from None
            rung = following
            yield BuilderLine("warning", f"the build failed ({tried[-1].failed}); now with {rung.said}")
        else:
            yield replace(engine, rungs=(*tried, rung))
            return


def _built(backend: EngineBackend, network: Network, lowered: Lowered, settings: BuildSettings,
           cache: EngineCache | None, wake: Callable[[], None],
           ) -> Generator[BuildProgress | BuilderLine | Wait, None, Engine]:
    """Builds once, or takes the engine from the cache; returns it."""
    with scratch_folder() as folder:
        written = export_typed(lowered.model, network, folder / "network.onnx")
        key = _engine_key(backend, (written.path, *written.data), lowered.told, settings)
        known = cache.read(key) if cache is not None else None
        if known is not None:
            return Engine(known, 0.0, "engine cache", lowered.notes)
        if cache is not None and not settings.production.timing_cache:
            timings = str(timing_cache_of(settings, backend, network, lowered.told, cache))
            settings = replace(settings, production=replace(settings.production, timing_cache=timings))
        timings = settings.production.timing_cache
        warm = bool(timings) and os.path.isfile(timings)
        build = _Build(backend, written.path, settings, lowered.told, wake)
        build.start()
        try:
            while not build.ended:
                yield Wait(build.news)
                yield from build.taken()
        finally:
            build.stop()
            build.join()
        yield from build.taken()
        if build.error is not None:
            raise build.error
        if cache is not None:
            if timings:
                cache.seal_timings(Path(timings))
            cache.write(key, build.data)
            cache.trim()
        origin = "timing cache" if warm and not build.refused else "cold"
        return Engine(build.data, build.seconds, origin, lowered.notes)


def _refused(error: BuildFailed | ParseFailed, told: Told | None) -> bool:
    """Whether other precisions may help: not if a parser refuses the network of a release that takes them beside it."""
    return error.refused if isinstance(error, BuildFailed) else told is None and bool(error.node)


def _names(error: BuildFailed | ParseFailed) -> str:
    """The part of an error that names layers."""
    return error.node if isinstance(error, ParseFailed) else error.cause


def _ladder(network: Network, config: PrecisionConfig, told: Told | None, eases: bool) -> Ladder:
    """The rungs of a config, by what the builder is told if it builds as asked."""
    if told is None or not told.flags:
        return Ladder(network, config, False, False, eases)
    return Ladder(network, config, True, bool(told.precisions or told.output_types), eases)


def _loosened(told: Told | None, rung: Rung, network: Network) -> Told | None:
    """What a rung keeps of what the builder would be told as asked."""
    if told is None:
        return None
    told = told.without(layer for name in rung.let_go for layer in network.group(name).layers)
    if rung.name == FREE:
        return replace(told, precisions={}, output_types={}, constraints="")
    return replace(told, constraints="prefer") if rung.name == PREFER else told


def _failed(error: BuildFailed | ParseFailed, tried: Sequence[Rung], network: Network, eases: bool) -> Exception:
    """The first error, with the node that it names, with what else was tried, and with the least effort as a way out
    where the build was refused and that was not tried."""
    named = _with_node(error, network)
    if isinstance(error, BuildFailed) and error.refused and eases and not any(rung.name == EASED for rung in tried):
        error.next_step = f"{error.next_step} Or build with --optimization-level {LEAST_LEVEL}."
    lines = [error.cause, *(f"also failed, with {rung.said}: {rung.failed}" for rung in tried[1:])]
    error.cause = "\n".join(filter(None, lines))
    error.rungs = tuple(tried)
    return named


class _Build(threading.Thread):
    """A build in a thread, whose messages can be taken at any time."""

    def __init__(self, backend: EngineBackend, model: Path, settings: BuildSettings, told: Told | None,
                 wake: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self.backend, self.model, self.settings, self.told = backend, model, settings, told
        self.data = b""
        self.error: Exception | None = None
        self.seconds = 0.0
        self.refused = False
        """TensorRT did not accept the timing cache."""
        self.ended = False
        """Set before the last wake: the thread itself may be alive for a moment after that."""
        self._wake = wake
        self._lock = threading.Lock()
        self._said: list[BuilderLine] = []
        self._step = BuildProgress("building")
        self._changed = True
        self._stopped = False
        self._woke = 0.0

    def run(self) -> None:
        start = time.perf_counter()
        try:
            self.data = self.backend.build(self.model, self.settings, self.told, step=self._on_step,
                                           message=self._on_message)
        except Exception as error:
            self.error = error
        finally:
            self.seconds = time.perf_counter() - start
            with self._lock:
                self.ended = True
            self._wake()

    def news(self) -> bool:
        return self._changed or self.ended

    def taken(self) -> list[BuildProgress | BuilderLine]:
        """What has come since the last call."""
        with self._lock:
            said, self._said = self._said, []
            self._changed = False
            return [*said, self._step]

    def stop(self) -> None:
        self._stopped = True

    def _on_step(self, phase: str, done: int, total: int) -> bool:
        with self._lock:
            self._step = BuildProgress(f"building: {phase}", done, total)
            self._changed = True
        self._report()
        return not self._stopped

    def _on_message(self, level: str, text: str) -> None:
        with self._lock:
            self._said.append(BuilderLine(level, text))
            self.refused = self.refused or bool(TIMINGS_REFUSED.search(text))
            self._changed = True
        self._report()

    def _report(self) -> None:
        now = time.monotonic()
        if now - self._woke >= REPORT_S:
            self._woke = now
            self._wake()


def _engine_key(backend: EngineBackend, files: tuple[Path, ...], told: Told | None, settings: BuildSettings) -> str:
    digest = hashlib.sha256()
    for path in files:
        with open(path, "rb") as stream:
            for block in iter(lambda: stream.read(1 << 24), b""):
                digest.update(block)
    return EngineCache.key(digest.hexdigest(), backend.stamp, _told_key(told),
                           sorted(settings.profile.items()), settings.tf32, settings.production.key,
                           settings.compute_capability, *["hands out"] * settings.hands_out)


def _told_key(told: Told | None) -> tuple[object, ...] | None:
    if told is None:
        return None
    return (sorted(told.precisions.items()), sorted(told.output_types.items()), sorted(told.ranges.items()),
            sorted(told.flags), told.constraints, sorted(told.inner.items()), sorted(told.constants.items()))


def timing_cache_of(settings: BuildSettings, backend: EngineBackend, network: Network, told: Told | None,
                    cache: EngineCache) -> Path:
    """The file of measured tactics that a build reads and extends.

    A timing cache is bound to GPU, release and flags. One that another network filled makes releases without a progress
    monitor (before 10) print errors, so there it is bound to the network too.
    """
    bound = [backend.stamp, settings.tf32, settings.production.key, settings.compute_capability,
             sorted(told.flags) if told is not None else "typed"]
    if not backend.capabilities.reports_progress:
        bound.append(network.structure_sha256)
    return cache.timing_cache(*bound)


def _with_node(error: Exception, network: Network) -> Exception:
    """The error, with the ONNX node of the layer that its text names, or that the last message before it names."""
    if not isinstance(error, TrtTuiError) or " at node " in error.title:
        return error
    details = error.details if isinstance(error, BuildFailed) else ()
    for text, how in ((error.cause, "it failed at"), *((line, "it was at") for line in reversed(details))):
        named = _named(text.rpartition(" for ")[2], network) or _named(text, network)
        if named is not None:
            error.title = f"{error.title}: {how} {named.name} ({named.op_type})"
            error.args = (error.title,)
            break
    return error


def _named(text: str, network: Network) -> Layer | None:
    """The layer that a text names first ("... for node conv1 + relu1"), of several the one with the longest name."""
    found = [(match.start(), -len(layer.name), layer) for layer in network.layers if layer.name in text
             and (match := re.search(rf"(?<![\w/]){re.escape(layer.name)}(?![^\W_]|/)", text))]
    return min(found, key=lambda one: one[:2])[2] if found else None
