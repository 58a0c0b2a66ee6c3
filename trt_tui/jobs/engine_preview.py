"""The preview job, which requests the engine layers of a config from a separate process and stores the answer on disk."""

import importlib.util
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial

from trt_tui.backends.cuda import find_first_device
from trt_tui.backends.registry import find_installed_version
from trt_tui.core.calibration.calibration import ranges_comparison_key
from trt_tui.core.engines.group_implementations import (
    Preview,
    PreviewNetwork,
    PreviewRefusal,
    PreviewRequest,
    find_groups_splitting_mha,
    find_possibly_ineffective_groups,
    find_split_attention_groups,
    is_same_engine,
)
from trt_tui.core.lowering.network_rewrite import quantizes_activations
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.runner import FixedShape
from trt_tui.errors import BackendUnavailableError, CancelledError, FileReplacedError, TrtTuiError
from trt_tui.files.reading import file_sha256
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.calibration import collect_ranges_for_export
from trt_tui.jobs.child_exit import ChildProcess, diagnose_exit
from trt_tui.jobs.scheduler import JobReporter, Steps, Urgency, WaitStep, start_thread
from trt_tui.jobs.store import FileCache, ResultStore
from trt_tui.workspace import Workspace, find_shape_profile

BACKGROUND_NICENESS = 5
"""The niceness of the preview process if other work has priority. The process is paused while a user waits for a job.
"""

URGENCIES_AFTER_EFFECTS = frozenset({Urgency.GROUP_ERRORS, Urgency.BACKGROUND, Urgency.TOGGLES})
"""The urgencies of jobs that wait while the builder lists the effects of moves.

These jobs run without a request of the user. Waiting ends both sooner.
"""

URGENCIES_AFTER_PREVIEW = URGENCIES_AFTER_EFFECTS | {Urgency.FIRST_SHARES}
"""The urgencies of jobs that wait while the builder lists the preview of a config; the first error shares wait too."""


NOT_INSTALLED = PreviewRefusal(
    "TensorRT-RTX is not installed",
    "",
    "pip install 'trt-tui[rtx]' shows how the builder runs each layer, without a GPU.",
    is_rtx_missing=True,
)


def run_preview_job(
    workspace: Workspace, store: ResultStore, reporter: JobReporter, request: rq.PreviewEngine
) -> Steps[None]:
    """Sends the preview of a config, and then the effects of its moves on the engine."""
    config = request.config
    if not is_tensorrt_rtx_installed():
        reporter.send(ev.EnginePreviewed(reporter.job, config, Preview(refusal=NOT_INSTALLED)))
        return
    if request.after_opening:
        yield Urgency.GROUP_ERRORS
    try:
        ranges, _ = collect_ranges_for_export(workspace, store, reporter, config, request.config_calibration)
        client = PreviewClient(workspace, store, reporter, ranges, request.low_priority)
        preview = yield from client.preview_config(config, URGENCIES_AFTER_PREVIEW)
        for level, text in preview.raw_messages:
            reporter.log(f"{level}: {text}", "raw")
        reporter.send(ev.EnginePreviewed(reporter.job, config, preview))
        if request.with_effects and preview.refusal is None and preview.ineffective_groups is None:
            reporter.send(
                ev.EnginePreviewed(reporter.job, config, (yield from client.add_move_effects(config, preview)))
            )
    except (CancelledError, FileReplacedError):
        raise
    except TrtTuiError as error:  # all other jobs continue without a preview
        refusal = PreviewRefusal(error.title, error.cause, error.next_step)
        reporter.send(ev.EnginePreviewed(reporter.job, config, Preview(refusal=refusal)))


def is_tensorrt_rtx_installed() -> bool:
    return importlib.util.find_spec("tensorrt_rtx") is not None


def preview_mismatch_reason(workspace: Workspace) -> str:
    """Returns the reason why previews do not apply to the builder of a workspace; "" if they do.

    Weakly typed releases fuse layers differently from TensorRT-RTX, which is strongly typed.
    """
    builder = workspace.builder
    if builder is None or builder.capabilities.strongly_typed and not workspace.build_plan.weakly_typed:
        return ""
    return "weakly typed builds fuse layers differently from TensorRT-RTX, which makes the previews"


def set_preview_process_paused(is_paused: bool) -> None:
    """Pauses the preview process, or continues the process. It is paused while the user waits for another job."""
    _CONNECTION.set_paused(is_paused)


class PreviewClient:
    """The client of the preview process, which returns the previews of the configs of one network.

    Args:
        reporter: The reporter that another thread wakes when there is an answer.
        ranges: The amax by tensor, in the tensors' own units.
        low_priority: True if the user waits for another job.
    """

    def __init__(
        self,
        workspace: Workspace,
        store: ResultStore,
        reporter: JobReporter,
        ranges: Mapping[str, float],
        low_priority: bool = False,
    ) -> None:
        self.network, self._store, self._reporter, self._ranges = workspace.network, store, reporter, ranges
        self._workspace, self._niceness = workspace, BACKGROUND_NICENESS if low_priority else 0
        source = workspace.fingerprint
        sha256 = source.sha256 if source is not None else store.network_sha256(workspace.network)
        options = workspace.options
        self._preview_network = PreviewNetwork(
            str(workspace.network.path),
            sha256,
            options.reference if workspace.network.weights_source_name else None,
            tuple(options.ort_ops),
            tuple((path, file_sha256(path)) for path in options.production.plugins),
        )
        self._profile, self._requested_capability = _choose_optimization_profile(workspace), options.compute_capability
        self._gpu_capability: tuple[int, int] | None = None
        with suppress(BackendUnavailableError):  # without a GPU, the user has to name a compute capability
            self._gpu_capability = find_first_device().compute_capability

    def preview_config(
        self, config: PrecisionConfig, blocked_urgencies: frozenset[Urgency] = URGENCIES_AFTER_EFFECTS
    ) -> Steps[Preview]:
        """Returns the preview of a config, or a preview with the reason why there is none.

        Args:
            blocked_urgencies: The urgencies of jobs that wait until the answer arrives.
        """
        key = self._preview_cache_key(config)
        cached = self._store.results.get(key, Preview)
        if cached is not None:
            return cached
        request = self._make_preview_request(config)
        while not _CONNECTION.is_idle():
            yield WaitStep(_CONNECTION.is_idle, blocked_urgencies=blocked_urgencies)
        try:
            answer = _CONNECTION.send_request(request, self._reporter.wake, self._niceness)
            yield WaitStep(answer.done, blocked_urgencies=blocked_urgencies)
            preview = answer.result()
        finally:
            _CONNECTION.cancel_request()
        if preview.refusal is None:
            self._store_preview(config, preview)
        return preview

    def add_move_effects(self, config: PrecisionConfig, preview: Preview) -> Steps[Preview]:
        """Returns a preview with the effects that the moves of its config have on the engine.

        The effect of a move is the difference between this preview and the preview of the config without the move.
        """
        network = self.network
        ineffective: set[str] = set()
        pending: list[Sequence[FusionGroup]] = [find_possibly_ineffective_groups(network, config, preview)]
        while group_sets := [groups for groups in pending if groups]:
            pending = []
            for groups in group_sets:
                reduced_preview = yield from self.preview_config(config.without_group_precision(groups))
                if reduced_preview.refusal is None and is_same_engine(preview, reduced_preview):
                    ineffective.update(group.name for group in groups)
                elif reduced_preview.refusal is None and len(groups) > 1:
                    half = len(groups) // 2
                    pending += [groups[:half], groups[half:]]
        split_groups: tuple[str, ...] = ()
        if candidates := [
            group for group in find_split_attention_groups(network, config, preview) if group.name not in ineffective
        ]:
            reduced_preview = yield from self.preview_config(config.without_group_precision(candidates))
            split_groups = find_groups_splitting_mha(network, candidates, reduced_preview)
        preview = replace(
            preview,
            ineffective_groups=tuple(group.name for group in network.groups if group.name in ineffective),
            mha_breakers=split_groups,
        )
        self._store_preview(config, preview)
        return preview

    def _store_preview(self, config: PrecisionConfig, preview: Preview) -> None:
        """Stores a preview. Raises the errors of `ResultStore.save_result`."""
        self._workspace.require_unchanged_files()
        self._store.results.put(self._preview_cache_key(config), preview)

    def _make_preview_request(self, config: PrecisionConfig) -> PreviewRequest:
        return PreviewRequest(
            self._preview_network, config, self._ranges, self._profile, self._gpu_capability, self._requested_capability
        )

    def _preview_cache_key(self, config: PrecisionConfig) -> str:
        """Returns the cache key of a preview. The key contains the ranges, because kernels are fused only if scales are
        equal."""
        ranges = ranges_comparison_key(self._ranges) if quantizes_activations(self.network, config) else ()
        return FileCache.make_key(
            "preview, code",
            self._preview_network,
            config.comparison_key,
            ranges,
            sorted(self._profile.items()),
            self._gpu_capability,
            self._requested_capability,
            find_installed_version("tensorrt-rtx"),
        )


def _choose_optimization_profile(workspace: Workspace) -> dict[str, tuple[FixedShape, FixedShape, FixedShape]]:
    """Returns the shapes of the dynamic inputs, from ``--shapes`` or else from the data."""
    network = workspace.network
    requested = {
        name: (shape_range.min, shape_range.opt, shape_range.max)
        for name, shape_range in workspace.requested_shape_ranges.items()
    }
    dynamic = {info.name for info in network.inputs if info.shape is not None and info.has_open_size}
    if dynamic <= requested.keys():
        return requested
    return {**find_shape_profile(network, workspace.data_sets.judged_samples, workspace.feeds), **requested}


class _PreviewConnection:
    """The connection to the preview process, which starts with the first request and again after a crash.

    The process answers one request at a time, also if the request was cancelled.
    """

    def __init__(self) -> None:
        self._process: ChildProcess | None = None
        self._answer: Future[Preview] | None = None
        self._is_paused = False

    def is_idle(self) -> bool:
        """Returns True if the process is not busy with a request."""
        return self._answer is None or self._answer.done()

    def send_request(self, request: PreviewRequest, wake: Callable[[], None], niceness: int) -> Future[Preview]:
        """Sends a request and returns the future answer. If the process ends, the answer is a preview with the reason."""
        if self._process is not None and self._process.process.poll() is not None:
            self._process.close()
            self._process = None
        if self._process is None:
            self._process = ChildProcess("trt_tui.jobs.preview_server", niceness)
            self.set_paused(self._is_paused)
        self._process.send(request)
        self._answer = start_thread(partial(_receive_preview, self._process), wake)
        return self._answer

    def set_paused(self, is_paused: bool) -> None:
        """Pauses or continues the process, and also a process that is started later."""
        self._is_paused = is_paused
        if self._process is not None:  # no effect after its end
            self._process.process.send_signal(signal.SIGSTOP if is_paused else signal.SIGCONT)

    def cancel_request(self) -> None:
        """Cancels the last request, if it has no answer yet."""
        if self._process is not None and not self.is_idle():
            self._process.send(None)


def _receive_preview(process: ChildProcess) -> Preview:
    try:
        preview: Preview = process.pipe.recv()
    except (EOFError, OSError):
        exit_diagnosis = diagnose_exit(process.process.wait(), "")
        return Preview(
            refusal=PreviewRefusal("the preview process ended", exit_diagnosis.reason, "The log contains its output.")
        )
    return preview


_CONNECTION = _PreviewConnection()
