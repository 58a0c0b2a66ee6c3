"""The build of engines in a thread of the background process, with an engine cache and timing caches."""

import hashlib
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import onnx_ir as ir

from trt_tui.core.engines.fallback_ladder import (
    LOWEST_EFFORT,
    NO_PRECISIONS,
    PREFERRED_PRECISIONS,
    BuildAttempt,
    BuildError,
    FallbackLadder,
    NetworkParseError,
    join_lines,
)
from trt_tui.core.exporters.onnx import export_typed_network
from trt_tui.core.lowering.explicit_quantization import lower_to_explicit_quantization
from trt_tui.core.lowering.implicit_quantization import lower_to_implicit_quantization
from trt_tui.core.lowering.lowering_checks import refuse_cubic_grid_samples, refuse_unsupported_precisions
from trt_tui.core.lowering.source_typed_network import lower_from_source_model
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.known_defects import known_defect_warnings
from trt_tui.core.network.layers import Layer
from trt_tui.core.network.model_outputs import add_outputs
from trt_tui.core.network.network import Network
from trt_tui.core.network.target_release import BuildTarget
from trt_tui.core.precision import Precision
from trt_tui.core.runner import (
    MIN_OPTIMIZATION_LEVEL,
    TIMING_CACHE_REFUSED,
    BackendCapabilities,
    BuildSettings,
    EngineBackend,
    LayerConstraints,
)
from trt_tui.errors import BackendUnavailableError, InputError, TrtTuiError
from trt_tui.files.scratch import create_scratch_folder
from trt_tui.formatting import builder_title
from trt_tui.jobs import events as ev
from trt_tui.jobs.scheduler import JobReporter, Reporter
from trt_tui.jobs.steps import Progress, ProgressSteps, Steps, Wait
from trt_tui.jobs.store import EngineCache
from trt_tui.workspace import BuildPlan, Workspace

T = TypeVar("T")

MIN_REPORT_INTERVAL_S = 0.1
"""The minimum time in seconds between two progress reports of a build."""


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
    """The input of a builder: the lowered ONNX model, and the layer constraints; None if the types of the graph decide.
    """

    model: ir.Model
    constraints: LayerConstraints | None
    notes: tuple[str, ...]


def report_known_defects(workspace: Workspace, reporter: JobReporter, config: PrecisionConfig,
                         target: BuildTarget) -> None:
    """Sends a warning for each known defect of the target release that a written file or engine of a config has."""
    warnings, note = known_defect_warnings(workspace.network, target, config.precision_of)
    for text in warnings:
        reporter.send(ev.LogMessage(reporter.job, text, "warning"))
    if note:
        reporter.send(ev.LogMessage(reporter.job, note, "note"))


def lower_for_builder(network: Network, config: PrecisionConfig, ranges: Mapping[str, float],
                      capabilities: BackendCapabilities, backend_title: str, weakly_typed: bool = False,
                      compute_capability: tuple[int, int] | None = None) -> BuilderInput:
    """Lowers a config to the form that the release of a builder takes.

    Args:
        backend_title: The name and version of the backend, for messages.
        weakly_typed: True for layer precisions and implicit quantization in place of types and Q/DQ.
        compute_capability: The compute capability to build for; None for that of the GPU here.

    Raises:
        InputError: The release or the GPU does not support the config. The message has the reason.
    """
    if Precision.BF16 in {*config.precision_by_group(network).values()} and not capabilities.supports_bf16:
        raise InputError("this config contains BF16", f"{backend_title} has no BF16",
                         "Use FP16 or FP32 for those layers.")
    supported_types = {
        *capabilities.quantized_types,
        *((Precision.FP16_ACC_FP32, ) if capabilities.strongly_typed and not weakly_typed else ())
    }
    refuse_unsupported_precisions(network, config, supported_types, backend_title, compute_capability
                                  or capabilities.gpu_compute_capability)
    if not capabilities.supports_cubic_grids:
        refuse_cubic_grid_samples(network, backend_title)
    if weakly_typed:
        if not capabilities.weakly_typed:
            raise InputError(
                "--weak is not possible", f"{backend_title} is strongly typed only: it accepts "
                                          "neither precisions per layer nor dynamic ranges", "Leave out --weak.")
        implicit_model = lower_to_implicit_quantization(network, config, ranges)
        return BuilderInput(implicit_model.model, implicit_model, tuple(implicit_model.notes))
    if capabilities.strongly_typed:
        typed_model = lower_from_source_model(network, config, ranges)
        return BuilderInput(typed_model.model, None, typed_model.notes)
    typed_model, constraints = lower_to_explicit_quantization(network, config, ranges)
    return BuilderInput(typed_model.model, constraints, typed_model.notes)


class EngineBuilder:
    """The builder of engines for the configs of a workspace, which reports its progress and messages by itself.

    A build runs in a thread. If the steps of a build are closed, the builder is stopped, and they wait for its end.

    Args:
        cache: The cache of engines and timing caches; None to build again and to keep nothing.
        ranges: The amax by tensor, in the tensors' own units; None for the ranges of the workspace.
        phase_prefix: The text before the phases of the progress.
        printed: The list that collects levels and texts of what the builder prints; None for a new one.

    Raises:
        BackendUnavailableError: No backend of the workspace builds engines.
    """

    def __init__(self, workspace: Workspace, cache: EngineCache | None, reporter: Reporter,
                 ranges: Mapping[str, float] | None = None, phase_prefix: str = "",
                 printed: list[tuple[str, str]] | None = None) -> None:
        if workspace.builder is None:
            raise BackendUnavailableError(
                "no TensorRT here can build an engine", "trt-tui doctor shows why",
                "Write -o typed.onnx instead, or name a backend: --backend tensorrt-rtx builds without a GPU.")
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
        return self.follow(self._build_attempts(config, plan, kept_tensors))

    def follow(self, steps: ProgressSteps[T]) -> Steps[T]:
        """Reports the progress of a part of a build, or of a measurement of its engine."""
        return self.reporter.follow(steps, phase_prefix=self.phase_prefix)

    def report_message(self, level: str, text: str, is_raw: bool = False) -> None:
        """Reports a message about a build. Raw messages are those that the builder prints."""
        if is_raw:
            self.printed.append((level, text))
        self.reporter.send(ev.LogMessage(self.reporter.job, f"{level}: {text}", "raw" if is_raw else "info"))

    def _build_attempts(self, config: PrecisionConfig, plan: BuildPlan,
                        kept_tensors: Sequence[str]) -> ProgressSteps[BuiltEngine]:
        network, backend, settings = self.workspace.network, self.backend, plan.settings
        attempt, attempts, ladder = BuildAttempt(), [], None
        first_error: BuildError | NetworkParseError | None = None
        while True:
            yield Progress("lowering")
            lowered = lower_for_builder(network, attempt.derive_attempt_config(network, config), self.ranges,
                                        backend.capabilities, f"{backend.name} {backend.version}", plan.weakly_typed,
                                        settings.compute_capability)
            can_ease = settings.builder_options.optimization_level != MIN_OPTIMIZATION_LEVEL
            ladder = ladder or _make_fallback_ladder(network, config, lowered.constraints, can_ease)
            lowered = replace(lowered, constraints=_adapt_constraints_to_attempt(lowered.constraints, attempt, network),
                              model=add_outputs(lowered.model, kept_tensors))
            try:
                engine = yield from self._build_or_load(
                    lowered, settings.with_lowest_build_effort() if attempt.name == LOWEST_EFFORT else settings)
            except (BuildError, NetworkParseError) as error:
                attempts.append(replace(attempt, failure_reason=join_lines(error.cause or error.title)))
                first_error = first_error or error
                next_attempt = None if plan.strict or not _can_retry_with_other_precisions(
                    error, lowered.constraints) else ladder.choose_next_attempt(attempt, _failed_layer_text(error))
                if next_attempt is None or next_attempt.name == LOWEST_EFFORT and isinstance(
                        error, NetworkParseError):  # the parser ignores the optimization level
                    raise _complete_build_error(first_error, attempts, network, can_ease) from None
                attempt = next_attempt
                self.report_message(
                    "warning", f"the build failed ({attempts[-1].failure_reason}); now with {attempt.description}")
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
                settings = replace(settings, builder_options=replace(settings.builder_options,
                                                                     timing_cache=timing_cache))
            timing_cache = settings.builder_options.timing_cache
            is_cache_warm = bool(timing_cache) and os.path.isfile(timing_cache)
            build = _BuildThread(backend, written.path, settings, lowered.constraints, self.reporter.wake)
            build.start()
            try:
                while not build.has_ended:
                    yield Wait(build.has_messages)
                    yield self._report_messages(build)
            finally:
                build.request_stop()
                build.join()
            yield self._report_messages(build)
            if build.error is not None:
                raise build.error
            if cache is not None:
                if timing_cache:
                    cache.add_timing_cache_checksum(Path(timing_cache))
                cache.write(key, build.data)
                cache.trim_to_size_limit()
            origin = "timing cache" if is_cache_warm and not build.cache_refused else "cold"
            return BuiltEngine(build.data, build.seconds, origin, lowered.notes)

    def _report_messages(self, build: "_BuildThread") -> Progress:
        """Reports the new messages of a build, and returns its progress."""
        messages, progress = build.take_messages()
        for level, text in messages:
            self.report_message(level, text, is_raw=True)
        return progress


def _can_retry_with_other_precisions(error: BuildError | NetworkParseError,
                                     constraints: LayerConstraints | None) -> bool:
    """Returns True if other precisions may avoid a build error.

    They cannot if the parser refuses a network whose precisions are passed beside the graph.
    """
    return error.is_refused if isinstance(error, BuildError) else constraints is None and bool(error.node)


def _failed_layer_text(error: BuildError | NetworkParseError) -> str:
    return error.node if isinstance(error, NetworkParseError) else error.cause


def _make_fallback_ladder(network: Network, config: PrecisionConfig, constraints: LayerConstraints | None,
                          can_lower_effort: bool) -> FallbackLadder:
    """Returns the fallback ladder of a config, given the layer constraints of the first attempt."""
    if constraints is None or not constraints.precision_flags:
        return FallbackLadder(network, config, False, False, can_lower_effort)
    return FallbackLadder(network, config, True, bool(constraints.precisions or constraints.output_types),
                          can_lower_effort)


def _adapt_constraints_to_attempt(constraints: LayerConstraints | None, attempt: BuildAttempt,
                                  network: Network) -> LayerConstraints | None:
    """Returns the layer constraints of a build attempt, derived from the constraints of the requested config."""
    if constraints is None:
        return None
    constraints = constraints.without_layer_precisions(layer for name in attempt.unconstrained
                                                       for layer in network.get_group(name).layers)
    if attempt.name == NO_PRECISIONS:
        return replace(constraints, precisions={}, output_types={}, constraint_mode="")
    return replace(constraints, constraint_mode="prefer") if attempt.name == PREFERRED_PRECISIONS else constraints


def _complete_build_error(error: BuildError | NetworkParseError, attempts: Sequence[BuildAttempt], network: Network,
                          can_lower_effort: bool) -> Exception:
    """Returns the first build error, completed with its node, the other failed attempts, and a further next step.

    The further next step is optimization level 0, if the build was refused and this level was not tried.
    """
    named_error = _add_node_to_error_title(error, network)
    if isinstance(error, BuildError) and error.is_refused and can_lower_effort and not any(attempt.name == LOWEST_EFFORT
                                                                                           for attempt in attempts):
        error.next_step += f" Or build with --trtexec --builderOptimizationLevel={MIN_OPTIMIZATION_LEVEL}."
    lines = [
        error.cause, *(f"also failed, with {attempt.description}: {attempt.failure_reason}" for attempt in attempts[1:])
    ]
    error.cause = "\n".join(filter(None, lines))
    error.attempts = tuple(attempts)
    return named_error


class _BuildThread(threading.Thread):
    """A thread that builds an engine and makes its messages available while it runs."""

    def __init__(self, backend: EngineBackend, model: Path, settings: BuildSettings,
                 constraints: LayerConstraints | None, wake: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self.backend, self.model, self.settings, self.constraints = backend, model, settings, constraints
        self.data = b""
        self.error: Exception | None = None
        self.seconds = 0.0
        self.cache_refused = False
        """True if TensorRT did not accept the timing cache."""
        self.has_ended = False
        """True from shortly before the last call of ``wake``. The thread may still be alive for a moment."""
        self._wake = wake
        self._lock = threading.Lock()
        self._messages: list[tuple[str, str]] = []
        self._progress = Progress("building")
        self._has_changed = True
        self._stop_requested = False
        self._last_wake_s = 0.0

    def run(self) -> None:
        start = time.perf_counter()
        try:
            self.data = self.backend.build(self.model, self.settings, self.constraints, on_step=self._on_step,
                                           on_message=self._on_message)
        except Exception as error:
            self.error = error
        finally:
            self.seconds = time.perf_counter() - start
            with self._lock:
                self.has_ended = True
            self._wake()

    def has_messages(self) -> bool:
        return self._has_changed or self.has_ended

    def take_messages(self) -> tuple[list[tuple[str, str]], Progress]:
        """Returns the levels and texts of the messages since the last call, and the progress."""
        with self._lock:
            messages, self._messages = self._messages, []
            self._has_changed = False
            return messages, self._progress

    def request_stop(self) -> None:
        self._stop_requested = True

    def _on_step(self, phase: str, done: int, total: int) -> bool:
        with self._lock:
            self._progress = Progress(f"building: {phase}", done, total)
            self._has_changed = True
        self._wake_if_report_due()
        return not self._stop_requested

    def _on_message(self, level: str, text: str) -> None:
        with self._lock:
            self._messages.append((level, text))
            self.cache_refused = self.cache_refused or bool(TIMING_CACHE_REFUSED.search(text))
            self._has_changed = True
        self._wake_if_report_due()

    def _wake_if_report_due(self) -> None:
        now = time.monotonic()
        if now - self._last_wake_s >= MIN_REPORT_INTERVAL_S:
            self._last_wake_s = now
            self._wake()


def _engine_cache_key(backend: EngineBackend, model_files: tuple[Path, ...], constraints: LayerConstraints | None,
                      settings: BuildSettings) -> str:
    digest = hashlib.sha256()
    for path in model_files:
        with open(path, "rb") as stream:
            for block in iter(lambda: stream.read(1 << 24), b""):
                digest.update(block)
    return EngineCache.make_key(digest.hexdigest(), backend.cache_identity, _layer_constraints_key(constraints),
                                sorted(settings.profile.items()), settings.tf32,
                                settings.builder_options.comparison_key, settings.compute_capability,
                                *["hands out"] * settings.debug_tensors)


def _layer_constraints_key(constraints: LayerConstraints | None) -> tuple[object, ...] | None:
    if constraints is None:
        return None
    return (sorted(constraints.precisions.items()), sorted(constraints.output_types.items()),
            sorted(constraints.ranges.items()), sorted(constraints.precision_flags), constraints.constraint_mode,
            sorted(constraints.inner_ranges.items()), sorted(constraints.constant_ranges.items()))


def timing_cache_path(settings: BuildSettings, backend: EngineBackend, network: Network,
                      constraints: LayerConstraints | None, cache: EngineCache) -> Path:
    """Returns the path of the timing cache that a build reads and extends.

    A timing cache is bound to the GPU, the release and the builder flags. Releases without a progress monitor (before
    10) print errors about a timing cache of another network, so there it is bound to the network too.
    """
    key_parts = [
        backend.cache_identity, settings.tf32, settings.builder_options.comparison_key, settings.compute_capability,
        sorted(constraints.precision_flags) if constraints is not None else "typed"
    ]
    if not backend.capabilities.reports_progress:
        key_parts.append(network.structure_sha256)
    return cache.timing_cache_path(*key_parts)


def _add_node_to_error_title(error: Exception, network: Network) -> Exception:
    """Adds the failing ONNX node to the title of a build error, if the error text or the last messages name the node.
    Returns the error."""
    if not isinstance(error, TrtTuiError) or " at node " in error.title:
        return error
    details = error.details if isinstance(error, BuildError) else ()
    for text, phrase in ((error.cause, "it failed at"), *((line, "it was at") for line in reversed(details))):
        layer = _find_layer_named_in_text(text.rpartition(" for ")[2], network) or _find_layer_named_in_text(
            text, network)
        if layer is not None:
            error.title = f"{error.title}: {phrase} {layer.name} ({layer.op_type})"
            error.args = (error.title,)
            break
    return error


def _find_layer_named_in_text(text: str, network: Network) -> Layer | None:
    """Returns the layer that a text such as "... for node conv1 + relu1" names first; None if the text names no layer.

    If several layer names match at the same position, the longest counts.
    """
    candidates = [(match.start(), -len(layer.name), layer) for layer in network.layers if layer.name in text
                  and (match := re.search(rf"(?<![\w/]){re.escape(layer.name)}(?![^\W_]|/)", text))]
    return min(candidates, key=lambda candidate: candidate[:2])[2] if candidates else None
