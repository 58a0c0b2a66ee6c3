"""The workspace: a network with its data, its judged outputs and its backends, as the options name them.

It is opened in the child process and nowhere else: data and metrics may be scripts of the user's, and libraries crash.
"""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from trt_tui.backends.cuda import find_first_device
from trt_tui.backends.registry import get_simulation_backend
from trt_tui.core.calibration.calibration import Calibration
from trt_tui.core.calibration.statistics import TensorStats
from trt_tui.core.data.dumps import list_dump_files
from trt_tui.core.data.input_files import FileStamps, Fingerprint, cached_file_sha256, list_data_files
from trt_tui.core.data.memory_fallbacks import MemoryFallbacks
from trt_tui.core.data.samples import Samples, SampleSplit, load_samples, split_samples
from trt_tui.core.data.shapes import ShapeRange, parse_additional_profiles, parse_shapes
from trt_tui.core.data.userscript import find_annotations_path, list_script_files, split_script_spec
from trt_tui.core.execution import Executor
from trt_tui.core.measure.analysis import Analysis
from trt_tui.core.measure.judged_outputs import JudgedOutput, select_judged_outputs
from trt_tui.core.measure.reference import (
    NoCommonTensorsError,
    is_network_file,
    open_file_run,
    select_outputs_in_reference,
)
from trt_tui.core.measure.results import EngineResult
from trt_tui.core.measure.run_sources import IndexedRunSource
from trt_tui.core.measure.runs import Run, RunKind
from trt_tui.core.measure.user_metric import Metric, load_metric
from trt_tui.core.moves.bias_correction_move import BiasCorrectionMove
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.folded_shapes import build_outline_for_input_sizes
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.network.network import Network, open_network
from trt_tui.core.runner import Backend, BuildSettings, EngineBackend, ExecutionMode, FixedShape
from trt_tui.errors import InputError
from trt_tui.files.reading import file_sha256
from trt_tui.options import Options

MIN_CHOICE_SAMPLES, MIN_HELD_OUT_SAMPLES = 32, 16
"""Samples are held out of a search where at least so many are left to choose on, and at least so many are held out."""


class FileReplacedError(InputError):
    """A file was replaced after it was read.

    Attributes:
        files: Names of those files, without their folders.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self.files = tuple(Path(path).name for path in paths)
        super().__init__(f"{', '.join(self.files)}: replaced after it was read", "figures of both would be mixed",
                         "Run the command again.")


@dataclass(frozen=True)
class BuildPlan:
    """How to build and judge engines.

    Attributes:
        settings: Everything about a build except precisions.
        weakly_typed: Precisions layer by layer and implicit quantization.
        strict: Build as asked or not at all, in place of going down the rungs of
        `trt_tui.core.engines.fallback_ladder`.
        builds_per_config: How often each config is built; the worst counts.
        other_shapes: Samples of other shapes at which engines are judged too, by their names ("min", "max").
    """

    settings: BuildSettings = field(default_factory=BuildSettings)
    weakly_typed: bool = False
    strict: bool = False
    other_shapes: Mapping[str, Analysis] = field(default_factory=dict)
    builds_per_config: int = 1


class WorkerPool(Protocol):
    """Other processes that do errands."""

    @property
    def failure_reason(self) -> str:
        """Why there are none any more, "" while there are."""

    def count_workers(self, for_engines: bool = False) -> int:
        """How many take part now, in what depends on the builder and the GPU or in the rest."""

    def make_executor(self, workspace: Workspace, wake_caller: Callable[[], None],
                      for_engines: bool) -> Executor[Workspace]:
        """They for one job, with what is open in the workspace open there too.

        Args:
            wake_caller: Called from another thread when there is something to go on with.
            for_engines: Only those with the same builder and GPU take part.
        """

    def open_workspace_on_workers(self, workspace: Workspace) -> None:
        """Has them open what is open here, as far as they have not.

        Raises:
            TrtTuiError: a scheduler that was named does not answer.
        """

    def take_new_messages(self) -> Iterator[tuple[str, str]]:
        """What there is to tell since it was asked last: level ("info", "warning") and text."""


class Workspace:
    """See the module's docstring. The network is read at once, everything else when it is first asked for.

    Attributes:
        stamped_files: The files that were read, as they were then.
        memory_fallbacks: What is known of runs that memory does not suffice for.
        worker_pool: Other processes that do errands; None where none were asked for.
        builder: What builds engines; None while it is not started, or where only ONNX Runtime works.
        calibration: The ranges in use; None while nothing has needed any.
        source: What figures are of; None while it is not hashed.
        expected_fingerprint: What an earlier process had opened: this has to be the same.
        statistics: What tensors hold, as far as it is measured.
        channel_amax: Largest magnitudes of channels by tensor, as far as they are measured.
        bias_corrections: Shifts of biases by config, calibration method and group, as far as they are measured.
        refused_fp32_engine: The FP32 engine, where the builder has refused it.
        check_exit_codes: Exit codes of the user's check command, by all that they depend on.
        one_pass_values: Values of several tensors that were measured in one pass, by all that was taken out in it:
            runtimes fuse what is not taken out, so values differ in the last bits between passes.

    Raises:
        InputError: the network cannot be read. Each part says so where its option cannot be honoured.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        cache = (options.calib_cache,) if options.calib_cache is not None else ()
        self.stamped_files = FileStamps.from_paths(
            (options.model, *cache, *list_data_files(options.data), *list_data_files(options.calib_data),
             *_list_metric_files(self.options)))
        self.stamped_files |= FileStamps.from_paths((*options.production.plugins, *options.ort_ops))
        reference = options.reference
        if reference is not None and not is_network_file(reference):
            self.stamped_files |= FileStamps.from_paths(list_dump_files(reference))
        self.network: Network = open_network(
            options.model, partial(get_simulation_backend,
                                   operators=options.ort_ops), has_operator_library=bool(options.ort_ops),
            reference=reference if reference is not None and is_network_file(reference) else None)
        self.stamped_files |= FileStamps.from_paths(self.network.external_files)
        self.memory_fallbacks = MemoryFallbacks()
        self.worker_pool: WorkerPool | None = None
        self.builder: EngineBackend | None = None
        self.calibration: Calibration | None = None
        self.fingerprint: Fingerprint | None = None
        self.expected_fingerprint: Fingerprint | None = None
        self.statistics: dict[str, TensorStats] = {}
        self.channel_amax: dict[str, np.ndarray] = {}
        self.bias_corrections: dict[tuple[PrecisionConfig, str], dict[str, BiasCorrectionMove]] = {}
        self.refused_fp32_engine: EngineResult | None = None
        self.check_exit_codes: dict[str, int] = {}
        self.one_pass_values: dict[object, Any] = {}
        self._full_workspace: Workspace | None = None
        self._replaced_files: tuple[str, ...] = ()
        self._last_check_s = 0.0

    # -- parts ----------------------------------------------------------------------------------------------------

    @cached_property
    def backend(self) -> Backend:
        """The backend that simulates and computes the reference."""
        return get_simulation_backend(self.options.threads, operators=self.options.ort_ops)

    @cached_property
    def operator_library_hashes(self) -> tuple[str, ...]:
        """SHA-256 of each library of operators that what simulates was given."""
        return tuple(map(file_sha256, self.options.ort_ops))

    @cached_property
    def requested_shape_ranges(self) -> dict[str, ShapeRange]:
        """The profile that was asked for, by input name."""
        return parse_shapes(self.options.shapes, self.network.inputs) if self.options.shapes else {}

    @cached_property
    def samples(self) -> Samples:
        """All samples of ``--data``, or random ones."""
        return self._load_samples(self.options.data, self.options.samples, self.reads_labels)

    @property
    def reads_labels(self) -> bool:
        """Whether a metric, or a mask of what is judged, reads arrays that are no input."""
        return self.options.metric is not None or any("@" in item for item in self.options.judge)

    @cached_property
    def calib_data_samples(self) -> Samples | None:
        """The samples of ``--calib-data``."""
        return self._load_samples(self.options.calib_data) if self.options.calib_data is not None else None

    @cached_property
    def data_sets(self) -> SampleSplit:
        """The samples that calibrate and those that are judged."""
        return split_samples(self.samples, self.calib_data_samples)

    @property
    def fp32_model(self) -> ir.Model:
        """The network in FP32."""
        return self.network.model

    @property
    def calibration_samples(self) -> Samples:
        """The samples that calibrate; ``--data`` is not read where others were given for that."""
        return self.calib_data_samples if self.calib_data_samples is not None else self.data_sets.calibration_samples

    @cached_property
    def metric(self) -> Metric | None:
        """The user's metric.

        Raises:
            InputError: it cannot be loaded, or there are no labels.
        """
        metric = load_metric(self.options.metric, _find_image_size(self.samples)) if self.options.metric else None
        if metric is not None and not self.samples.has_labels:
            raise InputError("a metric needs labels", f"{self.samples.source} holds no array that is no input",
                             "Add the labels to the data file, or leave out --metric.")
        return metric

    @cached_property
    def judgeable_outputs(self) -> tuple[JudgedOutput, ...]:
        """Where errors could be measured, were the reference to have all of it."""
        return select_judged_outputs(self.network, self.options.judge, self.samples.label_names)

    @cached_property
    def reference_source(self) -> IndexedRunSource | None:
        """The run that is the reference; None for FP32 of the network itself.

        Raises:
            InputError: what was named for it cannot be used.
        """
        spec = self.options.reference
        if spec is None:
            return None
        run = Run("", RunKind.NETWORK_FILE if is_network_file(spec) else RunKind.DUMP, file_path=spec)
        try:
            source = open_file_run(run, self.network, self.samples, self.data_sets.judged_samples, self.backend,
                                   self.judgeable_outputs)
        except NoCommonTensorsError:
            if self.network.source_model is None:
                raise
            return None  # its weights are FP32's
        self.stamped_files |= FileStamps.from_paths(source.run.files)
        return source

    @cached_property
    def reference_hashes(self) -> tuple[str, ...]:
        """Hashes of the files that errors are taken against, with the runner; empty for FP32 of the network itself."""
        run = self.reference_source.run if self.reference_source is not None else None
        return (run.name, *map(file_sha256, run.files)) if run is not None else ()

    @cached_property
    def judged_outputs(self) -> tuple[JudgedOutput, ...]:
        """Where errors are measured."""
        if self.reference_source is None:
            return self.judgeable_outputs
        return select_outputs_in_reference(self.judgeable_outputs, self.reference_source, self.network,
                                           bool(self.options.judge))

    @cached_property
    def feeds(self) -> list[int]:
        """Feeds that every figure is taken on: the first ones that hold ``--whatif-samples``; all for 0, less every
        third where some are to be held out and there are enough."""
        return self._choose_feeds(self.options.whatif_samples, self.options.hold_out)

    def make_search_view(self, hold_out: bool) -> Workspace:
        """Returns the same workspace with all values taken on the samples of a search; itself if they are the same.

        A search takes all judged samples, however many other values are taken on, so that its result depends on the
        data alone. What is open is shared.

        Args:
            hold_out: Leave every third batch for the result, if there are enough.
        """
        feed_indices = self._choose_feeds(0, hold_out)
        if feed_indices == self.feeds:
            return self
        _ = self.analysis, self.plan  # opened once
        view = copy.copy(self)
        view._full_workspace = self
        view.__dict__["feeds"] = feed_indices
        view.__dict__.pop("held_out", None)
        if self.fingerprint is not None:
            view.fingerprint = replace(self.fingerprint, data_sha256=view._hash_judged_data())
        return view

    @property
    def full_workspace(self) -> Workspace:
        """The workspace of which this is the view of a search; itself if it is no view."""
        return self._full_workspace if self._full_workspace is not None else self

    def _choose_feeds(self, sample_count: int, hold_out: bool) -> list[int]:
        judged_samples = self.data_sets.judged_samples
        feed_indices: list[int] = []
        rows = 0
        for index in range(len(judged_samples)):
            if sample_count and rows >= sample_count:
                break
            feed_indices.append(index)
            rows += judged_samples.count_samples_of_feed(index)
        if hold_out and len(feed_indices) == len(judged_samples):
            two_thirds = [index for index in feed_indices if index % 3 != 2]
            choice_rows = sum(judged_samples.count_samples_of_feed(index) for index in two_thirds)
            if choice_rows >= MIN_CHOICE_SAMPLES and rows - choice_rows >= MIN_HELD_OUT_SAMPLES:
                return two_thirds
        return feed_indices

    @cached_property
    def held_out(self) -> list[int]:
        """The judged feeds that no figure is taken on, up to four times the samples that they are taken on; none where
        they are too few to say anything."""
        judged_samples, used_feeds = self.data_sets.judged_samples, frozenset(self.feeds)
        feed_indices: list[int] = []
        rows = 0
        for index in range(len(judged_samples)):
            if index not in used_feeds and rows < 4 * self.judged_sample_count:
                feed_indices.append(index)
                rows += judged_samples.count_samples_of_feed(index)
        return feed_indices if rows >= MIN_HELD_OUT_SAMPLES else []

    @property
    def judged_sample_count(self) -> int:
        """How many samples every figure is taken on."""
        return sum(self.data_sets.judged_samples.count_samples_of_feed(index) for index in self.feeds)

    @cached_property
    def analysis(self) -> Analysis:
        """The simulation on the judged samples."""
        return Analysis(self.network, self.backend, self.data_sets.judged_samples, self.judged_outputs,
                        metric=self.metric, boundary_type=self.options.other, reference_source=self.reference_source)

    @property
    def execution_mode(self) -> ExecutionMode | None:
        """How the simulation runs on a device, None while that is not known."""
        return self.analysis.execution_mode if "analysis" in self.__dict__ else None

    @cached_property
    def plan(self) -> BuildPlan:
        """How engines are built here, and what other shapes they are judged at.

        Raises:
            InputError: the data has no such shape.
        """
        options = self.options
        settings = BuildSettings(
            {
                name: (shape_range.min, shape_range.opt, shape_range.max)
                for name, shape_range in self.requested_shape_ranges.items()
            }, compute_capability=options.compute_capability, builder_options=options.production, more_profiles=tuple(
                {name: (shape_range.min, shape_range.opt, shape_range.max)
                 for name, shape_range in profile.items()}
                for profile in parse_additional_profiles(options.production.profiles, self.network.inputs, {})))
        return BuildPlan(settings, options.weak, options.strict,
                         {shape_name: _open_shape_analysis(self, shape_name)
                          for shape_name in options.judge_at}, options.builds)

    def read_all_parts(self) -> Iterator[None]:
        """Reads all parts, and yields between them."""
        _ = self.backend, self.samples
        yield
        _ = self.data_sets, self.metric, self.judged_outputs, self.plan, self.analysis

    @property
    def ranges(self) -> Mapping[str, float]:
        """The calibrated amax by tensor name, in the tensors' own units, with those that other code types have of their
        own (`trt_tui.core.calibration.calibration`); empty while nothing is calibrated."""
        return self.calibration.range_table if self.calibration is not None else {}

    @property
    def shape_profile(self) -> dict[str, ShapeRange]:
        """The least, usual and largest shape of the dynamic inputs: as asked for, else as the data has it."""
        if self.options.data is None:
            return self.requested_shape_ranges
        judged_samples = self.data_sets.judged_samples
        data_profile = find_shape_profile(self.network, judged_samples, range(len(judged_samples)))
        return {**{name: ShapeRange(*shapes) for name, shapes in data_profile.items()}, **self.requested_shape_ranges}

    @cached_property
    def outline(self) -> NetworkOutline:
        """The network without its weights, what the file leaves open of its sizes as the samples have it."""
        return build_outline_for_input_sizes(self.network,
                                             {name: array.shape
                                              for name, array in self.samples.read_feed(0).items()})

    def close(self) -> None:
        """Frees the sessions of the simulation."""
        parts = self.__dict__  # a part that was never asked for is not made for this
        if "analysis" in parts:
            self.analysis.close()
        for analysis in self.plan.other_shapes.values() if "plan" in parts else ():
            analysis.close()

    def _load_samples(self, spec: str | None, limit: int | None = None, reads_labels: bool = False) -> Samples:
        options = self.options
        samples = load_samples(
            spec, self.network.inputs, batch=options.batch, limit=limit, seed=options.seed,
            shapes={name: shape_range.opt
                    for name, shape_range in self.requested_shape_ranges.items()} or None, reads_labels=reads_labels)
        samples.memory_fallbacks = self.memory_fallbacks
        return samples

    # -- what was read ----------------------------------------------------------------------------------------------

    def update_file_stamps(self) -> None:
        """Watches what the metric has imported since, too."""
        self.stamped_files |= FileStamps.from_paths(_list_metric_files(self.options))

    def require_unchanged_files(self, interval_s: float = 0.0) -> None:
        """Refuses to go on if a file was replaced after it was read; checks at most once in ``interval_s`` seconds.

        Raises:
            ReplacedError: it is, or was found so before.
        """
        now = time.monotonic()
        if not self._replaced_files and now - self._last_check_s >= interval_s:
            self._last_check_s = now
            self._replaced_files = self.stamped_files.find_replaced_files()
        if self._replaced_files:
            raise FileReplacedError(self._replaced_files)

    def set_fingerprint(self, sha256: str) -> Fingerprint:
        """Sets the hashes of what figures are of, compares them with what was expected, and returns them.

        Args:
            sha256: Of the network and its external data.
        """
        source = self.fingerprint = Fingerprint(sha256, self._hash_judged_data(), self.stamped_files)
        self.stamped_files.hash_files()
        if (expected := self.expected_fingerprint) is not None:
            changed = self.stamped_files.find_files_changed_since(expected.files)
            if source.sha256 != expected.sha256:
                changed = (*changed, self.options.model)
            if source.data_sha256 != expected.data_sha256:
                changed = (*changed, self.options.data or "the samples")
            self._replaced_files = tuple(dict.fromkeys(changed))
        return source

    def metric_cache_key(self) -> tuple[object, ...]:
        """What a metric's figures depend on: its name and the content of its files."""
        return (self.options.metric,
                *map(cached_file_sha256, _list_metric_files(self.options))) if self.metric is not None else ()

    def _hash_judged_data(self) -> str:
        """Of the samples and labels that figures are taken on."""
        judged_samples = self.data_sets.judged_samples
        labels = hashlib.sha256()
        for index in self.feeds:
            labels.update(repr(judged_samples.count_samples_of_feed(index)).encode())
            for name, array in sorted(judged_samples.read_labels(index).items()):
                labels.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
        return judged_samples.select_feeds(self.feeds).hash_inputs() + labels.hexdigest()


def _open_shape_analysis(workspace: Workspace, shape_name: str) -> Analysis:
    """The simulation at another shape of the profile ("min" or "max")."""
    options = workspace.options
    if not workspace.requested_shape_ranges:
        raise InputError(f"there is no {shape_name} shape to judge at", "no profile was given",
                         "Give --shapes NAME:MIN:OPT:MAX.")
    shapes: dict[str, FixedShape] = {
        name: getattr(shape_range, shape_name)
        for name, shape_range in workspace.requested_shape_ranges.items()
    }
    rows = max(shape[0] for shape in shapes.values() if shape) if any(shapes.values()) else 1
    limit = max(options.whatif_samples, rows) if options.whatif_samples else None
    samples = load_samples(options.data, workspace.network.inputs, seed=options.seed, shapes=shapes,
                           reads_labels=workspace.reads_labels,
                           limit=min(filter(None, (options.samples, limit)), default=None))
    for name, shape in shapes.items():
        if (actual_shape := samples.read_feed(0)[name].shape) != shape:
            raise InputError(f"the data has no {shape_name} shape of input {name}",
                             f"it gives {'x'.join(map(str, actual_shape))}, the profile {'x'.join(map(str, shape))}",
                             "Give data of that shape, or leave --judge-at out.")
    return Analysis(workspace.network, workspace.backend, samples, workspace.judged_outputs, metric=workspace.metric)


def _find_image_size(samples: Samples) -> tuple[int, int] | None:
    """Height and width of the first input of four axes, channels in front or behind; None where there is none."""
    for array in samples.read_feed(0).values():
        if array.ndim == 4:
            height, width = array.shape[2:] if array.shape[1] <= array.shape[3] else array.shape[1:3]
            return int(height), int(width)
    return None


def _list_metric_files(options: Options) -> tuple[str, ...]:
    """The metric's file, what it has imported from its folder, and what it has read."""
    metric = options.metric or ""
    if (annotations := find_annotations_path(metric)) is not None:
        return (str(annotations),)
    spec = split_script_spec(metric)
    return tuple(map(str, list_script_files(spec[0]))) if spec is not None else ()


def can_run_engines(backend: EngineBackend, settings: BuildSettings) -> bool:
    """Whether engines of a backend can run on this machine: it has a GPU, and they are built for that GPU."""
    compute_capability = settings.compute_capability
    return backend.capabilities.can_execute and (compute_capability is None
                                                 or compute_capability == find_first_device().compute_capability)


def find_shape_profile(network: Network, samples: Samples, feed_indices: Sequence[int],
                       ) -> dict[str, tuple[FixedShape, FixedShape, FixedShape]]:
    """The least, first and largest shape of each dynamic input in some feeds of the samples."""
    dynamic = [info.name for info in network.inputs
               if info.shape is not None and not all(isinstance(size, int) for size in info.shape)]
    shapes = {name: [samples.read_feed(index)[name].shape for index in feed_indices] for name in dynamic}
    return {
        name: (tuple(map(min, zip(*feed_shapes,
                                  strict=True))), feed_shapes[0], tuple(map(max, zip(*feed_shapes, strict=True))))
        for name, feed_shapes in shapes.items()
    }
