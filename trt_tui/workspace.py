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

from trt_tui.backends.cuda import first_device
from trt_tui.backends.registry import get_backend
from trt_tui.core.calibration.calibrate import Calibration
from trt_tui.core.calibration.statistics import TensorStats
from trt_tui.core.data.dumps import dump_files
from trt_tui.core.data.portions import Portions
from trt_tui.core.data.samples import DataSets, Samples, load_samples, split
from trt_tui.core.data.shapes import ShapeRange, further_profiles, parse_shapes
from trt_tui.core.data.userscript import annotations_of, script_files, split_spec
from trt_tui.core.data.watched import Source, StampedFiles, data_files, known_digest
from trt_tui.core.hands import Hands
from trt_tui.core.measure.analysis import Analysis
from trt_tui.core.measure.comparison import EngineResult
from trt_tui.core.measure.judge import Judged, judged_outputs
from trt_tui.core.measure.reference import (
    NothingCommonError,
    Outputs,
    is_network,
    judged_against,
    open_outputs,
)
from trt_tui.core.measure.user_metric import Metric, load_metric
from trt_tui.core.moves.bias_correction import BiasCorrection
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import Outline
from trt_tui.core.network.network import Network, open_network
from trt_tui.core.network.sizes import sized
from trt_tui.core.runner import Backend, BuildSettings, EngineBackend, FixedShape, Level
from trt_tui.errors import InputError
from trt_tui.files.reading import digest
from trt_tui.options import Options

LEAST_CHOOSING, LEAST_HELD_OUT = 32, 16
"""Samples are held out of a search where at least so many are left to choose on, and at least so many are held out."""


class ReplacedError(InputError):
    """A file was replaced after it was read.

    Attributes:
        files: Names of those files, without their folders.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self.files = tuple(Path(path).name for path in paths)
        super().__init__(f"{', '.join(self.files)}: replaced after it was read", "figures of both would be mixed",
                         "Run the command again.")


@dataclass(frozen=True)
class Plan:
    """How to build and judge engines.

    Attributes:
        settings: Everything about a build except precisions.
        weak: Precisions layer by layer and implicit quantization.
        strict: Build as asked or not at all, in place of going down the rungs of `trt_tui.core.engines.rungs`.
        builds: How often each config is built; the worst counts.
        others: Samples of other shapes at which engines are judged too, by their names ("min", "max").
    """

    settings: BuildSettings = field(default_factory=BuildSettings)
    weak: bool = False
    strict: bool = False
    others: Mapping[str, Analysis] = field(default_factory=dict)
    builds: int = 1


class Others(Protocol):
    """Other processes that do errands."""

    @property
    def lost(self) -> str:
        """Why there are none any more, "" while there are."""

    def able(self, engines: bool = False) -> int:
        """How many take part now, in what depends on the builder and the GPU or in the rest."""

    def hands(self, workspace: Workspace, wake: Callable[[], None], engines: bool) -> Hands[Workspace]:
        """They for one job, with what is open in the workspace open there too.

        Args:
            wake: Called from another thread when there is something to go on with.
            engines: Only those with the same builder and GPU take part.
        """

    def share(self, workspace: Workspace) -> None:
        """Has them open what is open here, as far as they have not.

        Raises:
            TrtTuiError: a scheduler that was named does not answer.
        """

    def told(self) -> Iterator[tuple[str, str]]:
        """What there is to tell since it was asked last: level ("info", "warning") and text."""


class Workspace:
    """See the module's docstring. The network is read at once, everything else when it is first asked for.

    Attributes:
        inputs: The files that were read, as they were then.
        portions: What is known of runs that memory does not suffice for.
        others: Other processes that do errands; None where none were asked for.
        builder: What builds engines; None while it is not started, or where only ONNX Runtime works.
        calibration: The ranges in use; None while nothing has needed any.
        source: What figures are of; None while it is not hashed.
        expected: What an earlier process had opened: this has to be the same.
        statistics: What tensors hold, as far as it is measured.
        channel_amax: Largest magnitudes of channels by tensor, as far as they are measured.
        corrections: Shifts of biases by config, calibration method and group, as far as they are measured.
        refused: The FP32 engine, where the builder has refused it.
        codes: Exit codes of the user's check command, by all that they depend on.
        together: Values of several tensors that were measured in one pass, by all that was taken out in it: runtimes
            fuse what is not taken out, so values differ in the last bits between passes.

    Raises:
        InputError: the network cannot be read. Each part says so where its option cannot be honoured.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        cache = (options.calib_cache,) if options.calib_cache is not None else ()
        self.inputs = StampedFiles.of((options.model, *cache, *data_files(options.data),
                                       *data_files(options.calib_data), *_metric_files(self.options)))
        self.inputs |= StampedFiles.of((*options.production.plugins, *options.ort_ops))
        reference = options.reference
        if reference is not None and not is_network(reference):
            self.inputs |= StampedFiles.of(dump_files(reference))
        self.network: Network = open_network(
            options.model, partial(get_backend, operators=options.ort_ops), operators=bool(options.ort_ops),
            reference=reference if reference is not None and is_network(reference) else None)
        self.inputs |= StampedFiles.of(self.network.external_files)
        self.portions = Portions()
        self.others: Others | None = None
        self.builder: EngineBackend | None = None
        self.calibration: Calibration | None = None
        self.source: Source | None = None
        self.expected: Source | None = None
        self.statistics: dict[str, TensorStats] = {}
        self.channel_amax: dict[str, np.ndarray] = {}
        self.corrections: dict[tuple[PrecisionConfig, str], dict[str, BiasCorrection]] = {}
        self.refused: EngineResult | None = None
        self.codes: dict[str, int] = {}
        self.together: dict[object, Any] = {}
        self._whole: Workspace | None = None
        self._replaced: tuple[str, ...] = ()
        self._looked = 0.0

    # -- parts ----------------------------------------------------------------------------------------------------

    @cached_property
    def backend(self) -> Backend:
        """The backend that simulates and computes the reference."""
        return get_backend(self.options.threads, operators=self.options.ort_ops)

    @cached_property
    def operators(self) -> tuple[str, ...]:
        """SHA-256 of each library of operators that what simulates was given."""
        return tuple(map(digest, self.options.ort_ops))

    @cached_property
    def shapes(self) -> dict[str, ShapeRange]:
        """The profile that was asked for, by input name."""
        return parse_shapes(self.options.shapes, self.network.inputs) if self.options.shapes else {}

    @cached_property
    def samples(self) -> Samples:
        """All samples of ``--data``, or random ones."""
        return self._load(self.options.data, self.options.samples, self.reads_labels)

    @property
    def reads_labels(self) -> bool:
        """Whether a metric, or a mask of what is judged, reads arrays that are no input."""
        return self.options.metric is not None or any("@" in one for one in self.options.judge)

    @cached_property
    def given(self) -> Samples | None:
        """The samples of ``--calib-data``."""
        return self._load(self.options.calib_data) if self.options.calib_data is not None else None

    @cached_property
    def data(self) -> DataSets:
        """The samples that calibrate and those that are judged."""
        return split(self.samples, self.given)

    @property
    def fp32(self) -> ir.Model:
        """The network in FP32."""
        return self.network.model

    @property
    def calibrating(self) -> Samples:
        """The samples that calibrate; ``--data`` is not read where others were given for that."""
        return self.given if self.given is not None else self.data.calibration

    @cached_property
    def metric(self) -> Metric | None:
        """The user's metric.

        Raises:
            InputError: it cannot be loaded, or there are no labels.
        """
        metric = load_metric(self.options.metric, _image_size(self.samples)) if self.options.metric else None
        if metric is not None and not self.samples.has_labels:
            raise InputError("a metric needs labels", f"{self.samples.source} holds no array that is no input",
                             "Add the labels to the data file, or leave out --metric.")
        return metric

    @cached_property
    def judgeable(self) -> tuple[Judged, ...]:
        """Where errors could be measured, were the reference to have all of it."""
        return judged_outputs(self.network, self.options.judge, self.samples.label_names)

    @cached_property
    def against(self) -> Outputs | None:
        """What errors are taken against; None for FP32 of the network itself.

        Raises:
            InputError: what was named for it cannot be used.
        """
        spec = self.options.reference
        if spec is None:
            return None
        try:
            found = open_outputs(spec, self.network, lambda: self.samples, lambda: self.backend, self.judgeable)
        except NothingCommonError:
            if self.network.given is None:
                raise
            return None  # its weights are FP32's
        self.inputs |= StampedFiles.of(found.files)
        return found

    @cached_property
    def against_sha256(self) -> tuple[str, ...]:
        """Hashes of the files that errors are taken against, with the runner; empty for FP32 of the network itself."""
        return (self.against.name, *map(digest, self.against.files)) if self.against is not None else ()

    @cached_property
    def judged(self) -> tuple[Judged, ...]:
        """Where errors are measured."""
        if self.against is None:
            return self.judgeable
        return judged_against(self.judgeable, self.against, self.network, bool(self.options.judge))

    @cached_property
    def feeds(self) -> list[int]:
        """Feeds that every figure is taken on: the first ones that hold ``--whatif-samples``; all for 0, less every
        third where some are to be held out and there are enough."""
        return self._chosen(self.options.whatif_samples, self.options.hold_out)

    def for_search(self, hold_out: bool) -> Workspace:
        """Returns the same workspace with all values taken on the samples of a search; itself if they are the same.

        A search takes all judged samples, however many other values are taken on, so that its result depends on the
        data alone. What is open is shared.

        Args:
            hold_out: Leave every third batch for the result, if there are enough.
        """
        feeds = self._chosen(0, hold_out)
        if feeds == self.feeds:
            return self
        _ = self.analysis, self.plan  # opened once
        other = copy.copy(self)
        other._whole = self
        other.__dict__["feeds"] = feeds
        other.__dict__.pop("held_out", None)
        if self.source is not None:
            other.source = replace(self.source, data_sha256=other._data_sha256())
        return other

    @property
    def whole(self) -> Workspace:
        """The workspace of which this is the view of a search; itself if it is no view."""
        return self._whole if self._whole is not None else self

    def _chosen(self, wanted: int, hold_out: bool) -> list[int]:
        judged = self.data.judged
        chosen: list[int] = []
        rows = 0
        for index in range(len(judged)):
            if wanted and rows >= wanted:
                break
            chosen.append(index)
            rows += judged.rows(index)
        if hold_out and len(chosen) == len(judged):
            two_thirds = [index for index in chosen if index % 3 != 2]
            choosing = sum(judged.rows(index) for index in two_thirds)
            if choosing >= LEAST_CHOOSING and rows - choosing >= LEAST_HELD_OUT:
                return two_thirds
        return chosen

    @cached_property
    def held_out(self) -> list[int]:
        """The judged feeds that no figure is taken on, up to four times the samples that they are taken on; none where
        they are too few to say anything."""
        judged, used = self.data.judged, frozenset(self.feeds)
        held: list[int] = []
        rows = 0
        for index in range(len(judged)):
            if index not in used and rows < 4 * self.judged_count:
                held.append(index)
                rows += judged.rows(index)
        return held if rows >= LEAST_HELD_OUT else []

    @property
    def judged_count(self) -> int:
        """How many samples every figure is taken on."""
        return sum(self.data.judged.rows(index) for index in self.feeds)

    @cached_property
    def analysis(self) -> Analysis:
        """The simulation on the judged samples."""
        return Analysis(self.network, self.backend, self.data.judged, self.judged, metric=self.metric,
                        other=self.options.other, against=self.against)

    @property
    def level(self) -> Level | None:
        """How the simulation runs on a device, None while that is not known."""
        return self.analysis.level if "analysis" in self.__dict__ else None

    @cached_property
    def plan(self) -> Plan:
        """How engines are built here, and what other shapes they are judged at.

        Raises:
            InputError: the data has no such shape.
        """
        options = self.options
        settings = BuildSettings(
            {name: (one.min, one.opt, one.max) for name, one in self.shapes.items()},
            compute_capability=options.compute_capability, production=options.production,
            further=tuple({name: (one.min, one.opt, one.max) for name, one in profile.items()} for profile in
                          further_profiles(options.production.profiles, self.network.inputs, {})))
        return Plan(settings, options.weak, options.strict, {where: _at(self, where) for where in options.judge_at},
                    options.builds)

    def read(self) -> Iterator[None]:
        """Reads all parts, and yields between them."""
        _ = self.backend, self.samples
        yield
        _ = self.data, self.metric, self.judged, self.plan, self.analysis

    @property
    def ranges(self) -> Mapping[str, float]:
        """The calibrated amax by tensor name, in the tensors' own units, with those that other code types have of their
        own (`trt_tui.core.calibration.ranges`); empty while nothing is calibrated."""
        return self.calibration.by_codes if self.calibration is not None else {}

    @property
    def profile(self) -> dict[str, ShapeRange]:
        """The least, usual and largest shape of the dynamic inputs: as asked for, else as the data has it."""
        if self.options.data is None:
            return self.shapes
        judged = self.data.judged
        found = profile_of(self.network, judged, range(len(judged)))
        return {**{name: ShapeRange(*one) for name, one in found.items()}, **self.shapes}

    @cached_property
    def outline(self) -> Outline:
        """The network without its weights, what the file leaves open of its sizes as the samples have it."""
        return sized(self.network, {name: array.shape for name, array in self.samples.feed(0).items()})

    def close(self) -> None:
        """Frees the sessions of the simulation."""
        parts = self.__dict__  # a part that was never asked for is not made for this
        if "analysis" in parts:
            self.analysis.close()
        for other in self.plan.others.values() if "plan" in parts else ():
            other.close()

    def _load(self, spec: str | None, limit: int | None = None, reads_labels: bool = False) -> Samples:
        options = self.options
        samples = load_samples(spec, self.network.inputs, batch=options.batch, limit=limit, seed=options.seed,
                               shapes={name: one.opt for name, one in self.shapes.items()} or None,
                               reads_labels=reads_labels)
        samples.portions = self.portions
        return samples

    # -- what was read ----------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Watches what the metric has imported since, too."""
        self.inputs |= StampedFiles.of(_metric_files(self.options))

    def require_unchanged(self, since_s: float = 0.0) -> None:
        """Refuses to go on if a file was replaced after it was read; checks at most once in ``since_s`` seconds.

        Raises:
            ReplacedError: it is, or was found so before.
        """
        now = time.monotonic()
        if not self._replaced and now - self._looked >= since_s:
            self._looked = now
            self._replaced = self.inputs.replaced()
        if self._replaced:
            raise ReplacedError(self._replaced)

    def identify(self, sha256: str) -> Source:
        """Sets the hashes of what figures are of, compares them with what was expected, and returns them.

        Args:
            sha256: Of the network and its external data.
        """
        source = self.source = Source(sha256, self._data_sha256(), self.inputs)
        self.inputs.hash_contents()
        if (known := self.expected) is not None:
            changed = self.inputs.differing(known.files)
            if source.sha256 != known.sha256:
                changed = (*changed, self.options.model)
            if source.data_sha256 != known.data_sha256:
                changed = (*changed, self.options.data or "the samples")
            self._replaced = tuple(dict.fromkeys(changed))
        return source

    def metric_stamp(self) -> tuple[object, ...]:
        """What a metric's figures depend on: its name and the content of its files."""
        return (self.options.metric, *map(known_digest, _metric_files(self.options))) if self.metric is not None else ()

    def _data_sha256(self) -> str:
        """Of the samples and labels that figures are taken on."""
        judged = self.data.judged
        labels = hashlib.sha256()
        for index in self.feeds:
            labels.update(repr(judged.rows(index)).encode())
            for name, array in sorted(judged.labels(index).items()):
                labels.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
        return judged.take(self.feeds).sha256() + labels.hexdigest()


def _at(workspace: Workspace, where: str) -> Analysis:
    """The simulation at another shape of the profile ("min" or "max")."""
    options = workspace.options
    if not workspace.shapes:
        raise InputError(f"there is no {where} shape to judge at", "no profile was given",
                         "Give --shapes NAME:MIN:OPT:MAX.")
    wanted: dict[str, FixedShape] = {name: getattr(one, where) for name, one in workspace.shapes.items()}
    rows = max(shape[0] for shape in wanted.values() if shape) if any(wanted.values()) else 1
    limit = max(options.whatif_samples, rows) if options.whatif_samples else None
    samples = load_samples(options.data, workspace.network.inputs, seed=options.seed, shapes=wanted,
                           reads_labels=workspace.reads_labels,
                           limit=min(filter(None, (options.samples, limit)), default=None))
    for name, shape in wanted.items():
        if (there := samples.feed(0)[name].shape) != shape:
            raise InputError(f"the data has no {where} shape of input {name}",
                             f"it gives {'x'.join(map(str, there))}, the profile {'x'.join(map(str, shape))}",
                             "Give data of that shape, or leave --judge-at out.")
    return Analysis(workspace.network, workspace.backend, samples, workspace.judged, metric=workspace.metric)


def _image_size(samples: Samples) -> tuple[int, int] | None:
    """Height and width of the first input of four axes, channels in front or behind; None where there is none."""
    for array in samples.feed(0).values():
        if array.ndim == 4:
            height, width = array.shape[2:] if array.shape[1] <= array.shape[3] else array.shape[1:3]
            return int(height), int(width)
    return None


def _metric_files(options: Options) -> tuple[str, ...]:
    """The metric's file, what it has imported from its folder, and what it has read."""
    metric = options.metric or ""
    if (annotations := annotations_of(metric)) is not None:
        return (str(annotations),)
    spec = split_spec(metric)
    return tuple(map(str, script_files(spec[0]))) if spec is not None else ()


def runs_here(backend: EngineBackend, settings: BuildSettings) -> bool:
    """Whether engines of a backend can run on this machine: it has a GPU, and they are built for that GPU."""
    target = settings.compute_capability
    return backend.capabilities.runs and (target is None or target == first_device().compute_capability)


def profile_of(network: Network, samples: Samples, feeds: Sequence[int],
               ) -> dict[str, tuple[FixedShape, FixedShape, FixedShape]]:
    """The least, first and largest shape of each dynamic input in some feeds of the samples."""
    dynamic = [info.name for info in network.inputs
               if info.shape is not None and not all(isinstance(size, int) for size in info.shape)]
    shapes = {name: [samples.feed(index)[name].shape for index in feeds] for name in dynamic}
    return {name: (tuple(map(min, zip(*found, strict=True))), found[0], tuple(map(max, zip(*found, strict=True))))
            for name, found in shapes.items()}
