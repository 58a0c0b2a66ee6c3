"""The workspace: the opened network, its data, its judged outputs and its backends.

A workspace is opened only in the background process and in workers of a cluster. Data and metrics may be scripts of the
user, and libraries can crash.
"""

from __future__ import annotations

import copy
import hashlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import onnx_ir as ir

from trt_tui.backends.cuda import find_first_device
from trt_tui.backends.registry import find_installed_version, get_simulation_backend
from trt_tui.core.calibration.calibration import Calibration, TensorStats
from trt_tui.core.data.batches import ShapeRange, parse_additional_profiles, parse_shapes
from trt_tui.core.data.input_files import FileStamps, Fingerprint, cached_file_sha256, list_data_files
from trt_tui.core.data.memory_fallbacks import MemoryFallbacks
from trt_tui.core.data.samples import (
    MIN_HELD_OUT_SAMPLES,
    HeldOutChoice,
    JudgedFeeds,
    Samples,
    SampleSplit,
    choose_held_out_feeds,
    find_feeds_with_shared_samples,
    load_samples,
    split_samples,
)
from trt_tui.core.data.tensor_files import list_dump_files
from trt_tui.core.data.userscript import list_script_files, split_script_spec
from trt_tui.core.measure.judged_outputs import (
    JudgedOutput,
    find_partly_judged_output_reasons,
    find_unjudged_output_reasons,
    select_judged_outputs,
)
from trt_tui.core.measure.results import EngineResult, Run, RunKind
from trt_tui.core.measure.run_sources import (
    IndexedRunSource,
    NetworkRun,
    is_network_file,
    open_file_run,
    reproduction_failure_reason,
    select_outputs_in_reference,
)
from trt_tui.core.measure.simulation import Analysis, PartialResult
from trt_tui.core.measure.user_metric import Metric, load_metric
from trt_tui.core.moves.config import MoveKey, PrecisionConfig
from trt_tui.core.moves.move import Move
from trt_tui.core.network.known_defects import BuildTarget
from trt_tui.core.network.layers import NetworkOutline, ReferenceWeights
from trt_tui.core.network.network import Network, open_network
from trt_tui.core.runner import Backend, BuildSettings, EngineBackend, ExecutionMode, Executor, FixedShape
from trt_tui.errors import FileReplacedError, InputError, RunFailedError
from trt_tui.files.reading import file_sha256
from trt_tui.options import Options


@dataclass(frozen=True)
class BuildPlan:
    """The settings with which engines are built and measured.

    Attributes:
        settings: All settings of a build except the precisions.
        weakly_typed: True to set the precision of each layer and to quantize implicitly (``--weak``).
        strict: True to build only the requested config, without the fallback ladder
            (`trt_tui.core.engines.fallback_ladder`).
        builds_per_config: The number of engines built for each config; the worst counts.
        other_shapes: The simulations on samples of other shapes at which engines are also measured, by shape name
            ("min", "max").
    """

    settings: BuildSettings = field(default_factory=BuildSettings)
    weakly_typed: bool = False
    strict: bool = False
    other_shapes: Mapping[str, Analysis] = field(default_factory=dict)
    builds_per_config: int = 1


class WorkerPool(Protocol):
    """The workers that execute tasks for a workspace."""

    @property
    def failure_reason(self) -> str:
        """The reason why no workers exist any more; "" while there are workers."""

    def count_workers(self, for_engines: bool = False) -> int:
        """Returns the number of workers that are ready.

        Args:
            for_engines: True to count only the workers with the same builder and GPU as this process.
        """

    def make_executor(
        self, workspace: Workspace, wake_caller: Callable[[], None], for_engines: bool
    ) -> Executor[Workspace]:
        """Returns the executor of one job. Its workers have the network and data of the workspace open.

        Args:
            wake_caller: A function that another thread calls when the job can continue.
            for_engines: True to use only the workers with the same builder and GPU as this process.
        """

    def open_workspace_on_workers(self, workspace: Workspace) -> None:
        """Opens the network and data of a workspace on all workers, unless they are already open there.

        Raises:
            TrtTuiError: The scheduler named by the user does not answer.
        """

    def take_new_messages(self) -> Iterator[tuple[str, str]]:
        """Yields the messages since the last call, each with its level ("info", "warning") and text."""


class Workspace:
    """The opened network with its data, its judged outputs, its backends and the results measured so far.

    The constructor reads the network. `check_reference_weights` decides which weights its FP32 has, and follows before
    any other part is read. Each other part is read at its first use.

    Attributes:
        stamped_files: The files that were read, with their size and time at that moment.
        memory_fallbacks: The smaller batches and other forms of the graph found after memory ran out.
        worker_pool: The workers that execute tasks; None if the user requested none.
        builder: The backend that builds engines; None if no builder is started, or only ONNX Runtime works here.
        calibration: The ranges in use; None if nothing is calibrated yet.
        fingerprint: The hashes of the network and data that results belong to; None if they are not hashed yet.
        expected_fingerprint: The fingerprint of an earlier process, which this workspace must equal; None if there is
            none.
        statistics: The tensor statistics measured so far, by tensor.
        refused_fp32_engine: The result of the FP32 build that the builder refused; None if no FP32 build was refused.
        given_moves: The moves of the config file.
        check_results: The results of the user's check command, by cache key.
        separate_pass_values: Values of several tensors measured in one pass, by all tensors read in that pass. Runtimes
            fuse layers whose tensors are not read, so values differ in the last bits between passes. Values for
            zero-cost moves of single rows are kept here too (`ProposalContext.get_measured_values`).

    Raises:
        InputError: The network cannot be read. Each other part raises this error if its option cannot be used.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        cache = (options.calib_cache,) if options.calib_cache is not None else ()
        self.stamped_files = FileStamps.from_paths(
            (
                options.model,
                *cache,
                *list_data_files(options.data),
                *list_data_files(options.calib_data),
                *_list_metric_files(self.options),
            )
        )
        self.stamped_files |= FileStamps.from_paths((*options.production.plugins, *options.ort_ops))
        reference = options.reference
        if reference is not None and not is_network_file(reference):
            self.stamped_files |= FileStamps.from_paths(list_dump_files(reference))
        self.network = self._open_network()
        self.memory_fallbacks = MemoryFallbacks()
        self.worker_pool: WorkerPool | None = None
        self.builder: EngineBackend | None = None
        self.calibration: Calibration | None = None
        self.fingerprint: Fingerprint | None = None
        self.expected_fingerprint: Fingerprint | None = None
        self.statistics: dict[str, TensorStats] = {}
        self.refused_fp32_engine: EngineResult | None = None
        self.given_moves: Mapping[MoveKey, Move] = {}
        self.check_results: dict[str, Any] = {}
        self.separate_pass_values: dict[object, Any] = {}
        self._full_workspace: Workspace | None = None
        self._replaced_files: tuple[str, ...] = ()
        self._last_check_s = 0.0

    # -- the network ----------------------------------------------------------------------------------------------

    def _open_network(self, reference: str | None = None) -> Network:
        options = self.options
        network = open_network(
            options.model,
            partial(get_simulation_backend, operators=options.ort_ops),
            has_operator_library=bool(options.ort_ops),
            reference=reference,
        )
        self.stamped_files |= FileStamps.from_paths(network.external_files)
        return network

    def check_reference_weights(self) -> Iterator[None]:
        """Gives FP32 the weights of the reference if they reproduce its outputs. Yields after each execution.

        The file must be quantized or typed, and the reference another network. The network with the weights of the
        reference is executed on all judged samples, whose outputs are kept. If its outputs differ from those of the
        reference by more than FP32 rounding, FP32 means the weights of the file, and the network has the reason.

        Raises:
            InputError: The reference or the data cannot be used.
        """
        reference, file_network = self.options.reference, self.network
        if reference is None or not is_network_file(reference) or file_network.source_model is None:
            return
        _ = self.feeds, self.metric, self.reference_source  # their errors are not those of the weights
        refusal_reason = ""
        try:
            self.use_reference_weights(reference)
            for accuracy in self.analysis.compare(
                self.analysis.make_fp32_run(),
                self.find_judged_feeds(),
                reference=self.analysis.make_rounded_reference(),
                with_metric=False,
                with_metric_interval=False,
                with_caveats=False,
            ):
                assert isinstance(accuracy, PartialResult), "the simulation waits for nobody"
                if refusal_reason := reproduction_failure_reason(accuracy.value, self.network):
                    break
                yield
        except (InputError, RunFailedError) as error:
            refusal_reason = ": ".join(filter(None, (error.title, error.cause)))
        if refusal_reason:
            if (analysis := self.__dict__.pop("analysis", None)) is not None:
                analysis.close()
            for part in ("judgeable_outputs", "judged_outputs"):
                self.__dict__.pop(part, None)
            if isinstance(self.reference_source, NetworkRun) and self.reference_source.name_mismatch is not None:
                raise self.reference_source.name_mismatch
            self.network = file_network.with_reference_weights(ReferenceWeights(Path(reference).name, refusal_reason))

    def use_reference_weights(self, reference: str) -> None:
        """Gives FP32 the weights of a reference without a check, before any other part of the workspace is read."""
        self.network = self._open_network(reference).with_reference_weights(ReferenceWeights(Path(reference).name))

    # -- parts ----------------------------------------------------------------------------------------------------

    @cached_property
    def backend(self) -> Backend:
        """The backend that executes the simulation and the reference."""
        return get_simulation_backend(self.options.threads, operators=self.options.ort_ops)

    @cached_property
    def requested_shape_ranges(self) -> dict[str, ShapeRange]:
        """The shape ranges requested by ``--shapes``, by input name."""
        return parse_shapes(self.options.shapes, self.network.inputs) if self.options.shapes else {}

    @cached_property
    def samples(self) -> Samples:
        """All samples of ``--data``, or random samples if no data is given."""
        return self._load_samples(self.options.data, self.options.samples, self.reads_labels)

    @property
    def reads_labels(self) -> bool:
        """True if the metric, or a mask of a judged output, reads arrays that are not network inputs."""
        return self.options.metric is not None or any("@" in item for item in self.options.judge)

    @cached_property
    def calib_data_samples(self) -> Samples | None:
        return self._load_samples(self.options.calib_data) if self.options.calib_data is not None else None

    @cached_property
    def data_sets(self) -> SampleSplit:
        return split_samples(self.samples, self.calib_data_samples)

    @property
    def fp32_model(self) -> ir.Model:
        return self.network.model

    @property
    def calibration_samples(self) -> Samples:
        """The samples for calibration. ``--data`` is not read if ``--calib-data`` is given."""
        return self.calib_data_samples if self.calib_data_samples is not None else self.data_sets.calibration_samples

    @cached_property
    def metric(self) -> Metric | None:
        """The user's metric; None if no metric is given.

        Raises:
            InputError: The metric cannot be loaded, or the data has no labels.
        """
        metric = load_metric(self.options.metric) if self.options.metric else None
        if metric is not None and not self.samples.label_names:
            raise InputError(
                "a metric needs labels",
                f"{self.samples.source} contains only inputs",
                "Add the labels to the data file, or leave out --metric.",
            )
        return metric

    @cached_property
    def judgeable_outputs(self) -> tuple[JudgedOutput, ...]:
        """The outputs selected by ``--judge``, including outputs that the reference may lack."""
        return select_judged_outputs(self.network, self.options.judge, self.samples.label_names)

    @cached_property
    def reference_source(self) -> IndexedRunSource | None:
        """The run that is the reference; None for FP32 of the network itself.

        Raises:
            InputError: The reference named by the user cannot be used.
        """
        spec = self.options.reference
        if spec is None:
            return None
        run = Run("", RunKind.NETWORK_FILE if is_network_file(spec) else RunKind.DUMP, file_path=spec)
        source = open_file_run(run, self.network, self.samples, self.backend, self.judgeable_outputs)
        self.stamped_files |= FileStamps.from_paths(source.run.files)
        return source

    @cached_property
    def operator_and_reference_hashes(self) -> tuple[str, ...]:
        """The SHA-256 of each custom operator library, then the name and the file hashes of an external reference."""
        run = self.reference_source.run if self.reference_source is not None else None
        return *map(file_sha256, self.options.ort_ops), *((run.name, *map(file_sha256, run.files)) if run else ())

    @cached_property
    def judged_outputs(self) -> tuple[JudgedOutput, ...]:
        """The judged outputs: the outputs at which errors are measured. The reference has each of them."""
        if self.reference_source is None:
            return self.judgeable_outputs
        return select_outputs_in_reference(
            self.judgeable_outputs, self.reference_source, self.network, bool(self.options.judge)
        )

    @cached_property
    def feeds(self) -> JudgedFeeds:
        """The feeds that judge every config, which are those that do not calibrate.

        Calibrating feeds in use are only searched for NaN and Inf.

        They are the first feeds with ``--whatif-samples`` samples in total; 0 means all. If samples are held out, these
        are left out (`choose_held_out_feeds`).
        """
        return self._choose_feeds(self.options.whatif_samples, self.options.hold_out)

    def find_judged_feeds(self, *configs: PrecisionConfig) -> JudgedFeeds:
        """Returns the feeds on which all given configs can be judged: the feeds in use that calibrated none of them.

        The samples of a search are the same for all of its configs.
        """
        if self._full_workspace is not None or any(map(self.is_calibrated_on_data, configs)):
            return self.feeds
        return JudgedFeeds.from_indices(self.feeds.all_feeds, compared=self.feeds)

    def is_calibrated_on_data(self, config: PrecisionConfig) -> bool:
        """Returns True if feeds of ``--data`` calibrate a config: they determine one of its ranges or moves."""
        if not self.data_sets.calibrating_feeds:
            return False
        given = self.calibration.given_tensors if self.calibration is not None else ()
        known_tensors = {*given, *config.range_moves}
        return any(
            move.has_measured_values and self.given_moves.get(key) != move for key, move in config.moves.items()
        ) or any(
            site.tensor not in known_tensors
            for group in self.network.groups
            for site in group.calibrated_qdq_sites(config.precision_of(group))
        )

    def make_search_view(self, calibrates: bool, hold_out: bool) -> Workspace:
        """Returns a view of the workspace that measures all values on the samples of a search.

        A search uses all samples that judge each of its configs, even if ``--whatif-samples`` limits the samples of
        other values. Its result therefore depends on the data alone. The view shares all opened parts.

        Args:
            calibrates: True if the calibration samples determine any config of the search.
            hold_out: True to leave feeds out of the search if the data has enough samples. The result of the search is
                measured on these feeds.
        """
        _ = self.analysis, self.build_plan  # opened before the copy, so that the view shares them
        view = copy.copy(self)
        feeds = self._choose_feeds(0, hold_out)
        view.__dict__["feeds"] = feeds if calibrates else JudgedFeeds.from_indices(feeds.all_feeds, compared=feeds)
        view._full_workspace = self
        view.__dict__.pop("held_out_feeds", None)
        if self.fingerprint is not None:
            view.fingerprint = replace(self.fingerprint, data_sha256=view._hash_judged_data())
        return view

    @property
    def full_workspace(self) -> Workspace:
        """The workspace that this view of a search was made of; this workspace itself if it is not a view."""
        return self._full_workspace if self._full_workspace is not None else self

    def choose_held_out_feeds(self) -> HeldOutChoice:
        """Returns the judged feeds that a search leaves out. Feeds with samples that also calibrate are not among
        them."""
        data = self.data_sets
        choice = choose_held_out_feeds(data.other_samples, self._shared_feeds)
        return replace(choice, feed_indices=tuple(data.other_feeds[index] for index in choice.feed_indices))

    @cached_property
    def _shared_feeds(self) -> frozenset[int]:
        """The judged feeds with samples that ``--calib-data`` contains too."""
        other_samples = self.calib_data_samples if self.options.data is not None else None
        return (
            find_feeds_with_shared_samples(self.data_sets.judged_samples, other_samples)
            if other_samples is not None
            else (frozenset())
        )

    def _choose_feeds(self, sample_count: int, hold_out: bool) -> JudgedFeeds:
        data = self.data_sets
        feed_indices = self._take_first_feeds(data.other_feeds, sample_count or math.inf)
        is_limited = len(feed_indices) < len(data.other_feeds)
        calibrating = [index for index in sorted(data.calibrating_feeds) if not is_limited or index < feed_indices[-1]]
        held_out = self.choose_held_out_feeds().feed_indices if hold_out and not is_limited else ()
        return JudgedFeeds.from_indices([index for index in feed_indices if index not in held_out], calibrating)

    @cached_property
    def held_out_feeds(self) -> list[int]:
        """The indices of the held-out feeds: judged feeds that no value is measured on, and that do not calibrate.

        They have at most about four times as many samples as `feeds`. The list is empty if fewer than
        `MIN_HELD_OUT_SAMPLES` samples are left.
        """
        used_feeds = frozenset(self.feeds)
        unused_feeds = [index for index in self.data_sets.other_feeds if index not in used_feeds]
        feed_indices = self._take_first_feeds(unused_feeds, 4 * self.judged_sample_count)
        return feed_indices if self.count_samples(feed_indices) >= MIN_HELD_OUT_SAMPLES else []

    def _take_first_feeds(self, feed_indices: Sequence[int], max_samples: float) -> list[int]:
        """Returns the first of some judged feeds, up to the feed that completes a number of samples."""
        counts_before = accumulate(map(self.data_sets.judged_samples.count_samples_of_feed, feed_indices), initial=0)
        return [index for index, before in zip(feed_indices, counts_before, strict=False) if before < max_samples]

    def find_group_error_feeds(self, *configs: PrecisionConfig) -> tuple[int, ...]:
        """Returns the indices of the feeds on which errors at the groups of some configs are measured.

        These are the feeds that are not filled up with copies, if there are any.

        Errors inside the network are summed over whole tensors, so that copies of a sample would count.
        """
        feeds = self.find_judged_feeds(*configs)
        return tuple(index for index in feeds if not self.data_sets.judged_samples.is_padded(index)) or tuple(feeds)

    @property
    def judged_sample_count(self) -> int:
        """The number of samples that judge every config."""
        return self.count_samples(self.feeds)

    def count_samples(self, feed_indices: Iterable[int]) -> int:
        """Returns the number of samples in some of the judged feeds."""
        return sum(map(self.data_sets.judged_samples.count_samples_of_feed, feed_indices))

    @cached_property
    def analysis(self) -> Analysis:
        """The simulation on the judged samples."""
        return self.make_analysis(self.data_sets.judged_samples, self.reference_source)

    def make_analysis(self, samples: Samples, reference_source: IndexedRunSource | None = None) -> Analysis:
        """Returns the simulation on some samples, with the judged outputs, the metric and their reasons for doubt."""
        judged = self.judged_outputs
        return Analysis(
            self.network,
            self.backend,
            samples,
            judged,
            metric=self.metric,
            boundary_type=self.options.other,
            reference_source=reference_source,
            unjudged_outputs=find_unjudged_output_reasons(self.network, None if self.options.judge else judged),
            partly_judged_outputs={} if self.options.judge else find_partly_judged_output_reasons(self.network),
        )

    @property
    def execution_mode(self) -> ExecutionMode | None:
        """The execution mode of the simulation on its device; None if nothing has been executed yet."""
        return self.analysis.execution_mode if "analysis" in self.__dict__ else None

    @property
    def build_target(self) -> BuildTarget:
        """The release and the GPU that engines are built for: of ``--for``, or else of the TensorRT installed here."""
        builder = self.builder
        if builder is None:
            return self.options.make_build_target("tensorrt", find_installed_version("tensorrt"))
        return self.options.make_build_target(
            builder.name, builder.version, builder.capabilities.gpu_compute_capability
        )

    @cached_property
    def build_plan(self) -> BuildPlan:
        """The build plan of engines, with the simulations at the other shapes of ``--judge-at``.

        Raises:
            InputError: The data has no samples of such a shape.
        """
        options = self.options
        settings = BuildSettings(
            {
                name: (shape_range.min, shape_range.opt, shape_range.max)
                for name, shape_range in self.requested_shape_ranges.items()
            },
            compute_capability=options.compute_capability,
            builder_options=options.production,
            more_profiles=tuple(
                {name: (shape_range.min, shape_range.opt, shape_range.max) for name, shape_range in profile.items()}
                for profile in parse_additional_profiles(options.production.profiles, self.network.inputs, {})
            ),
        )
        return BuildPlan(
            settings,
            options.weak,
            options.strict,
            {shape_name: _open_shape_analysis(self, shape_name) for shape_name in options.judge_at},
            options.builds,
        )

    @property
    def ranges(self) -> Mapping[str, float]:
        """The calibrated amax by tensor name, in the tensors' own units; empty if nothing is calibrated.

        Quantized types with ranges different from INT8 have their own entries (`trt_tui.core.calibration.calibration`).
        """
        return self.calibration.range_table if self.calibration is not None else {}

    @property
    def shape_profile(self) -> dict[str, ShapeRange]:
        """The smallest, usual and largest shape of each dynamic input, from ``--shapes`` or else from the data."""
        if self.options.data is None:
            return self.requested_shape_ranges
        judged_samples = self.data_sets.judged_samples
        data_profile = find_shape_profile(self.network, judged_samples, range(len(judged_samples)))
        return {**{name: ShapeRange(*shapes) for name, shapes in data_profile.items()}, **self.requested_shape_ranges}

    @cached_property
    def outline(self) -> NetworkOutline:
        """The network outline. Dynamic dimensions of the file have the sizes of the samples."""
        return self.network.build_outline_for_input_sizes(
            {name: array.shape for name, array in self.samples.read_full_feed(0).items()}
        )

    def close(self) -> None:
        """Frees the inference sessions of the simulation."""
        parts = self.__dict__  # reading a property would open a part that was never used
        if "analysis" in parts:
            self.analysis.close()
        for analysis in self.build_plan.other_shapes.values() if "build_plan" in parts else ():
            analysis.close()

    def _load_samples(self, spec: str | None, limit: int | None = None, reads_labels: bool = False) -> Samples:
        options = self.options
        samples = load_samples(
            spec,
            self.network.inputs,
            outputs=self.network.outputs,
            batch=options.batch,
            limit=limit,
            seed=options.seed,
            reads_labels=reads_labels,
            shapes={name: shape_range.opt for name, shape_range in self.requested_shape_ranges.items()} or None,
        )
        samples.memory_fallbacks = self.memory_fallbacks
        return samples

    # -- input files ------------------------------------------------------------------------------------------------

    def update_file_stamps(self) -> None:
        """Adds the stamps of files that the metric has imported or read since the last call."""
        self.stamped_files |= FileStamps.from_paths(_list_metric_files(self.options))

    def require_unchanged_files(self, interval_s: float = 0.0) -> None:
        """Raises an error if a file was replaced after it was read.

        The files are checked at most once in ``interval_s`` seconds.

        Raises:
            FileReplacedError: A file was replaced, now or at an earlier check.
        """
        now = time.monotonic()
        if not self._replaced_files and now - self._last_check_s >= interval_s:
            self._last_check_s = now
            self._replaced_files = self.stamped_files.find_replaced_files()
        if self._replaced_files:
            names = tuple(Path(path).name for path in self._replaced_files)
            error = FileReplacedError(
                f"{', '.join(names)}: replaced after it was read",
                "the results would mix both versions",
                "Run the command again.",
            )
            error.files = names
            raise error

    def set_fingerprint(self, sha256: str) -> Fingerprint:
        """Computes, stores and returns the fingerprint of the network and the judged data.

        Files that differ from `expected_fingerprint` are reported as replaced by the next `require_unchanged_files`.

        Args:
            sha256: The hash of the network and its external data.
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
        """Returns the part of a cache key that depends on the metric: its name, the hashes of its files, and the
        environment variables if its code reads any."""
        if self.metric is None:
            return ()
        files = _list_metric_files(self.options)
        code = b"".join(Path(file).read_bytes() for file in files if file.endswith(".py") and os.path.isfile(file))
        environment = sorted(os.environ.items()) if b"environ" in code or b"getenv" in code else ()
        return self.options.metric, *map(cached_file_sha256, files), *environment

    def _hash_judged_data(self) -> str:
        """Returns the hash of the samples in use with their labels, and with their names in several files."""
        judged_samples, feeds = self.data_sets.judged_samples, self.feeds.all_feeds
        labels = hashlib.sha256()
        for index in feeds:
            first_name = judged_samples.sample_name(index)  # results name their worst sample
            labels.update(f"{judged_samples.count_samples_of_feed(index)}{first_name.file and first_name}".encode())
            for name, array in sorted(judged_samples.read_labels(index).items()):
                labels.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
        return judged_samples.select_feeds(feeds).hash_inputs() + labels.hexdigest()


def _open_shape_analysis(workspace: Workspace, shape_name: str) -> Analysis:
    """Opens the simulation at another shape of the profile ("min" or "max")."""
    options = workspace.options
    if not workspace.requested_shape_ranges:
        raise InputError(
            f"there is no {shape_name} shape to judge at", "no profile was given", "Give --shapes NAME:MIN:OPT:MAX."
        )
    shapes: dict[str, FixedShape] = {
        name: getattr(shape_range, shape_name) for name, shape_range in workspace.requested_shape_ranges.items()
    }
    rows = max(shape[0] for shape in shapes.values() if shape) if any(shapes.values()) else 1
    limit = max(options.whatif_samples, rows) if options.whatif_samples else None
    samples = load_samples(
        options.data,
        workspace.network.inputs,
        seed=options.seed,
        shapes=shapes,
        reads_labels=workspace.reads_labels,
        limit=min(filter(None, (options.samples, limit)), default=None),
    )
    for name, shape in shapes.items():
        if (actual_shape := samples.read_feed(0)[name].shape) != shape:
            raise InputError(
                f"the data has no {shape_name} shape of input {name}",
                f"it gives {'x'.join(map(str, actual_shape))}, the profile {'x'.join(map(str, shape))}",
                "Give data of that shape, or leave --judge-at out.",
            )
    return workspace.make_analysis(samples)


def _list_metric_files(options: Options) -> tuple[str, ...]:
    """Returns the file of the metric, the modules it has imported from its folder, and the files it has read."""
    spec = split_script_spec(options.metric or "")
    return tuple(map(str, list_script_files(spec[0]))) if spec is not None else ()


def can_run_engines(backend: EngineBackend, settings: BuildSettings) -> bool:
    """Returns True if engines of a backend can run on this machine: a GPU is present, and engines are built for that
    GPU."""
    compute_capability = settings.compute_capability
    return backend.capabilities.can_execute and (
        compute_capability is None or compute_capability == find_first_device().compute_capability
    )


def find_shape_profile(
    network: Network,
    samples: Samples,
    feed_indices: Sequence[int],
) -> dict[str, tuple[FixedShape, FixedShape, FixedShape]]:
    """Returns the smallest, first and largest shape of each dynamic input over some feeds, searched ones included."""
    if isinstance(feed_indices, JudgedFeeds):
        feed_indices = (*feed_indices, *feed_indices.searched_feeds)
    dynamic = [info.name for info in network.inputs if info.shape is not None and info.has_open_size]
    shapes = {name: [samples.read_full_feed(index)[name].shape for index in feed_indices] for name in dynamic}
    return {
        name: (
            tuple(map(min, zip(*feed_shapes, strict=True))),
            feed_shapes[0],
            tuple(map(max, zip(*feed_shapes, strict=True))),
        )
        for name, feed_shapes in shapes.items()
    }
