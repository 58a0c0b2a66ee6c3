"""The child process: opens the network, measures, reports.

A request becomes a task: a generator that does one step (mostly one run of one batch) at a time and yields how urgent
its next one is, or what it waits for while a thread builds an engine. After each step the most urgent task goes on, so
that a what-if or a look at a layer is answered in the middle of a long comparison. A newer request of a kind replaces
the older one. Requests arrive on a pipe that a thread reads; when the program at the other end is gone, the process
ends.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import hashlib
import math
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

import numpy as np

import trt_tui
from trt_tui.backends.registry import get_backend, get_builder
from trt_tui.core.calibration.cache import match_cache, read_cache
from trt_tui.core.calibration.calibrate import Calibration, calibrate
from trt_tui.core.calibration.methods import METHODS
from trt_tui.core.calibration.statistics import collect_stats
from trt_tui.core.data.samples import DataSets, load_samples, split
from trt_tui.core.data.shapes import ShapeRange, parse_shapes
from trt_tui.core.data.userscript import script_files, split_spec
from trt_tui.core.data.watched import Inputs, Source, data_files, stamp
from trt_tui.core.lowering.lowered import cannot_lower, lowers
from trt_tui.core.lowering.rules import ARITHMETIC
from trt_tui.core.measure.analysis import Analysis, Partial
from trt_tui.core.measure.comparison import EngineResult, GroupErrors, Share, Verdict, builder_title, unbuilt
from trt_tui.core.measure.judge import Judged, judged_outputs, left_out
from trt_tui.core.measure.layers import measure_layers
from trt_tui.core.measure.metric import Metric, load_metric
from trt_tui.core.measure.shares import Impact, measure_cumulative, measure_impacts, measure_shares
from trt_tui.core.measure.target import Target, parse_target
from trt_tui.core.moves.config import PrecisionConfig, step
from trt_tui.core.moves.range_choice import RangeChoice
from trt_tui.core.network.layers import Group
from trt_tui.core.network.network import Network, open_network
from trt_tui.core.network.preview import preview
from trt_tui.core.precision import Precision
from trt_tui.core.runner import Backend, BuildSettings, EngineBackend
from trt_tui.errors import (
    BackendUnavailableError,
    CancelledError,
    InputError,
    TrtTuiError,
    memory_error,
    system_error,
    text_of,
)
from trt_tui.files.reading import digest
from trt_tui.files.scratch import clear_scratch
from trt_tui.files.writing import write_atomic
from trt_tui.jobs import messages as m
from trt_tui.jobs.building import Plan, build_and_judge, profile_of, run_typed, runs_here
from trt_tui.jobs.cache import EngineCache, ResultCache
from trt_tui.jobs.engines import QUICK_LEVEL, Engine, Said, Step, Wait, build_engine
from trt_tui.jobs.lifeline import end_process, tie
from trt_tui.jobs.prepare import has_data, prepare
from trt_tui.jobs.searching import Bench, SearchJob, check_words, run_check
from trt_tui.options import Options

T = TypeVar("T")

LOOKS_S = 1.0
"""How often it is looked whether what was opened is still there, within a job."""

REPORT_S = 0.1
"""Least time between two reports of one kind."""

RAISED_ROWS = 12
"""For how many of the worst groups the error is measured with everything down to there raised."""

RANKED_ROWS = 8
"""A search ranks all groups by their impact on as many feeds as hold so many samples."""

LEAST_OWNED = 0.002
"""Groups that own less are not raised together with the worst ones."""


class Urgency(IntEnum):
    """Which step goes first: the lower number."""

    OPENING = 0
    WHAT_IF = 1
    FIRST_VERDICT = 2
    STATS = 3
    BUILD = 4
    VERDICT = 5
    OPTIONS = 6
    SEARCH = 7
    LAYERS = 8
    BACKGROUND = 9


_FIRST_STEP = {m.WhatIf: Urgency.WHAT_IF, m.Compare: Urgency.FIRST_VERDICT, m.Stats: Urgency.STATS,
               m.Build: Urgency.BUILD, m.WriteEngine: Urgency.BUILD, m.TryOptions: Urgency.OPTIONS,
               m.Search: Urgency.SEARCH}

Steps = Iterator[Urgency | Wait]


@dataclass
class _Task:
    job: int
    request: m.Request
    steps: Steps | None = None
    urgency: Urgency = Urgency.OPENING
    waits: Wait | None = None

    @property
    def rank(self) -> tuple[int, int]:
        """Tasks of one urgency go on in turn of their numbers; in the background the newest goes first."""
        return (self.urgency, -self.job if self.urgency is Urgency.BACKGROUND else self.job)


def _first_urgency(request: m.Request) -> Urgency:
    return _FIRST_STEP.get(type(request), Urgency.OPENING)


class _ReplacedError(InputError):
    """What was opened has been replaced since."""


class _GiveWay(Exception):
    """Something more urgent waits; the task starts again after it."""


class Worker:
    """Answers requests; see the module's docstring."""

    def __init__(self, pipe: Connection, cache: ResultCache | None = None, engines: EngineCache | None = None) -> None:
        self.pipe = pipe
        self.cache = cache or ResultCache()
        self.engines = engines or EngineCache()
        self.inbox: deque[tuple[int, m.Request]] = deque()
        self.arrived = threading.Event()
        self.tasks: list[_Task] = []
        self.stop_before = 0
        self.options: Options | None = None
        self.network: Network | None = None
        self.backend: Backend | None = None
        self.builder: EngineBackend | None = None
        self.plan = Plan()
        self.unchecked: EngineResult | None = None
        self.data: DataSets | None = None
        self.metric: Metric | None = None
        self.judged: tuple[Judged, ...] = ()
        self.feeds: list[int] = []
        self.failure: TrtTuiError | None = None
        self.inputs = Inputs()
        self.known: Source | None = None
        self.replaced: tuple[str, ...] = ()
        self.looked = 0.0
        self.sha256 = ""
        self.data_sha256 = ""
        self.calibration: Calibration | None = None
        self.other_ranges: dict[str, dict[str, float]] = {}
        self.checked: dict[str, int] = {}
        self.analysis: Analysis | None = None
        self._reported: dict[str, float] = {}

    # -- the loop -----------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Reads the pipe until the other end closes it, then ends the process; run by a thread."""
        with contextlib.suppress(EOFError, OSError):
            while (received := self.pipe.recv()) is not None:
                if isinstance(received, m.Stop):
                    self.stop_before = max(self.stop_before, received.before)
                else:
                    self.inbox.append(received)
                self.arrived.set()
        end_process()

    def serve(self) -> None:
        """Works on what `listen` takes in, for ever."""
        while True:
            self.arrived.clear()
            if not self.step():
                self.arrived.wait()

    def step(self) -> bool:
        """Does one step of the most urgent task; False where there is none to do."""
        self._take_in()
        ready = [task for task in self.tasks if task.waits is None or task.waits.ready()]
        if not ready:
            return False
        self._advance(min(ready, key=lambda task: task.rank))
        return True

    def _take_in(self) -> None:
        """Makes tasks of the requests that have come, and ends those that were replaced or stopped."""
        while self.inbox:
            job, request = self.inbox.popleft()
            self._end_stopped()
            for older in [task for task in self.tasks if type(task.request) is type(request)]:
                self._end(older, m.Done(older.job))
            self.tasks.append(_Task(job, request, urgency=_first_urgency(request)))
        self._end_stopped()

    def _end_stopped(self) -> None:
        for task in [task for task in self.tasks if task.job < self.stop_before]:
            self._end(task, m.Cancelled(task.job))

    def _advance(self, task: _Task) -> None:
        """Does one step of a task."""
        try:
            if task.steps is None:
                task.steps = self._steps(task.job, task.request)
            elif not isinstance(task.request, m.Open):
                self._check_inputs(LOOKS_S)
            following = next(task.steps)
            task.waits = following if isinstance(following, Wait) else None
            if task.waits is None:
                task.urgency = following
            return
        except StopIteration:
            ending: m.Event = m.Done(task.job)
        except _GiveWay:
            task.steps = None
            return
        except CancelledError:
            ending = m.Cancelled(task.job)
        except _ReplacedError as error:
            ending = m.Replaced(task.job, error.title, error.cause, error.next_step, int(error.exit_code),
                                files=tuple(Path(name).name for name in self.replaced))
        except TrtTuiError as error:
            if isinstance(task.request, m.Open):
                self.failure = error
            ending = m.Failed(task.job, error.title, error.cause, error.next_step, int(error.exit_code),
                              rungs=getattr(error, "rungs", ()))
        except BrokenPipeError:
            raise
        except (MemoryError, OSError) as error:
            traceback.print_exc()
            told = memory_error(error) if isinstance(error, MemoryError) else system_error(error)
            ending = m.Failed(task.job, told.title, told.cause, told.next_step, int(told.exit_code))
        except Exception as error:
            traceback.print_exc()
            ending = m.Failed(task.job, f"unexpected {type(error).__name__}", text_of(error),
                              "This is a defect of trt-tui; the log has the traceback.",
                              detail=traceback.format_exc())
        self._end(task, ending)

    def _end(self, task: _Task, ending: m.Event) -> None:
        self.tasks.remove(task)
        if task.steps is not None:
            task.steps.close()
        if self.network is not None:
            self.inputs |= Inputs.of(self._metric_files())  # some of it may have been imported by this job
        self._send(ending)

    def _send(self, event: m.Event) -> None:
        self.pipe.send(event)

    def _due(self, kind: str) -> bool:
        """Whether enough time has passed since the last report of a kind."""
        now = time.monotonic()
        if now - self._reported.get(kind, 0.0) < REPORT_S:
            return False
        self._reported[kind] = now
        return True

    def _progress(self, job: int, phase: str, done: int, total: int, since: float) -> None:
        if done == total or self._due("progress"):
            left = (time.monotonic() - since) / done * (total - done) if done and total > done else None
            self._send(m.Progress(job, phase, done, total, left))

    def _sweeping(self, job: int, phase: str, gives_way: m.Request | None = None) -> Callable[[int, int], None]:
        """A progress callback that ends a sweep over the samples when its job is stopped.

        With ``gives_way``, the request that is answered, it also ends it when something more urgent has come.
        """
        since = time.monotonic()

        def progress(done: int, total: int) -> None:
            self._progress(job, phase, done, total, since)
            if job < self.stop_before:
                raise CancelledError("stopped")
            if gives_way is not None and any(
                    type(later) is type(gives_way) or _first_urgency(later) < _first_urgency(gives_way)
                    for _, later in tuple(self.inbox)):
                raise _GiveWay

        return progress

    # -- requests -----------------------------------------------------------------------------------------------

    def _steps(self, job: int, request: m.Request) -> Steps:
        if isinstance(request, m.Open):
            yield from self._open(job, request)
            return
        if isinstance(request, m.Prepare):
            self._prepare(job, request)
            return
        if self.network is None:
            raise self.failure or InputError("no network is open", "opening it was stopped", "Open it again.")
        if not self.sha256:
            yield from self._identify(job)
        self._check_inputs()
        match request:
            case m.Calibrate():
                self._calibrate(job, request.method)
            case m.UseRanges():
                if self.options.calib_cache is not None and request.fill:
                    self._take_cache(job, self.options.calib_method, request.calibration)
                else:
                    self.calibration = request.calibration
                    self._send(m.Calibrated(job, request.calibration))
            case m.Compare():
                yield from self._compare(job, request)
            case m.WhatIf():
                yield from self._what_if(job, request)
            case m.TryOptions():
                yield from self._try_options(job, request)
            case m.Stats():
                yield from self._stats(job, request)
            case m.Build():
                yield from self._build(job, request)
            case m.WriteEngine():
                yield from self._write_engine(job, request)
            case m.Search():
                yield from self._search(job, request)

    def _prepare(self, job: int, request: m.Prepare) -> None:
        self._send(m.Progress(job, "reading the network and the data", 0, 0))
        prepared = prepare(open_network(request.options.model, get_backend), request,
                           self._sweeping(job, f"calibrating ({request.options.calib_method})"))
        self._send(replace(prepared, job=job))

    def _check_inputs(self, since: float = 0.0) -> None:
        """Refuses to go on where a file that was read is another one now; not looked at twice within ``since`` seconds.

        Raises:
            InputError: it is, or was found so before.
        """
        now = time.monotonic()
        if not self.replaced and now - self.looked >= since:
            self.looked = now
            self.replaced = self.inputs.replaced()
        if self.replaced:
            names = ", ".join(Path(name).name for name in self.replaced)
            raise _ReplacedError(f"{names}: replaced after it was read", "figures of both would stand together",
                                 "Run the command again.")

    def _open(self, job: int, request: m.Open) -> Steps:
        options = self.options = request.options
        inputs = Inputs.of((options.model, *([options.calib_cache] if options.calib_cache is not None else ()),
                            *data_files(options.data), *data_files(options.calib_data), *self._metric_files()))
        self._send(m.Progress(job, "reading the network", 0, 0))
        first_look = preview(options.model) if self.network is None else None
        if first_look is not None:
            self._send(m.Previewed(job, first_look))
        network = open_network(options.model, get_backend)
        inputs |= Inputs.of(network.external_files)
        if request.structure and network.structure_sha256 != request.structure:
            self.network = None
            raise InputError(f"{options.model} is another network now", "its structure changed since it was opened",
                             "Quit, and open it anew; the figures shown are those of the network as it was.")
        yield Urgency.OPENING
        backend = get_backend()
        shapes = parse_shapes(options.shapes, network.inputs) if options.shapes else {}
        optimum = {name: one.opt for name, one in shapes.items()}
        samples = load_samples(options.data, network.inputs, batch=options.batch, limit=options.samples,
                               seed=options.seed, shapes=optimum or None)
        yield Urgency.OPENING
        calibration = None
        if options.calib_data is not None:
            calibration = load_samples(options.calib_data, network.inputs, batch=options.batch, seed=options.seed,
                                       shapes=optimum or None)
        data = split(samples, calibration)
        metric = load_metric(options.metric) if options.metric else None
        if metric is not None and not samples.has_labels:
            raise InputError("a metric needs labels", f"{samples.source} holds no array that is no input",
                             "Add the labels to the data file, or leave out --metric.")
        judged = judged_outputs(network, options.judge)
        self.network, self.backend, self.data = network, backend, data
        self.metric = metric
        self.judged = judged
        self.plan = self._plan(shapes)
        self.unchecked = None
        self.calibration = self.failure = None
        self.inputs, self.replaced, self.known = inputs | Inputs.of(self._metric_files()), (), request.known
        self.other_ranges.clear()
        self.sha256 = self.data_sha256 = ""
        self.feeds = self._chosen_feeds(options.whatif_samples)
        if self.analysis is not None:
            self.analysis.close()
        self.analysis = Analysis(network, backend, data.judged, judged, metric=metric, other=options.other)
        warnings = [*network.notes, *data.warnings, *samples.warnings]
        if samples.has_labels and metric is None:
            warnings.append(f"The data hold labels ({', '.join(samples.label_names)}) and no --metric uses them.")
        warnings += [f"{one.name}: {one.note}" for one in judged if "judged" in one.note]
        warnings += [*left_out(network), *filter(None, [cannot_lower(network)])]
        profile = profile_of(network, data.judged, range(len(data.judged))) if options.data is not None else {}
        shapes = {**{name: ShapeRange(*one) for name, one in profile.items()}, **shapes}
        counted = sum(data.judged.rows(i) for i in self.feeds)
        device = getattr(backend, "provider", "").upper()
        self._send(m.Opened(
            job, network.outline(), judged,
            m.DataSummary(samples.source, data.judged.count, data.calibration.count, counted, samples.random,
                          tuple(samples.label_names), tuple(dict.fromkeys(warnings)), shapes),
            m.BackendSummary("ONNX Runtime", backend.version, device, backend.capabilities.real_fp16),
            metric.name if metric is not None else None))
        yield Urgency.OPENING
        self.builder = get_builder(options.backend, lambda text: self._send(m.Note(job, text)))
        if self.builder is not None:
            self._send(m.BuilderReady(job, m.BuilderSummary(
                self.builder.name, self.builder.version, self.builder.device,
                runs_here(self.builder, self.plan.settings), self.builder.capabilities.reports_progress)))
        yield from self._identify(job)

    def _differing(self, known: Source) -> tuple[str, ...]:
        """What is not as it was when an earlier process opened it."""
        changed = self.inputs.differing(known.files)
        if self.sha256 != known.sha256:
            changed = (*changed, self.options.model)
        if self.data_sha256 != known.data_sha256:
            changed = (*changed, self.options.data or "the samples")
        return tuple(dict.fromkeys(changed))

    def _metric_files(self) -> tuple[str, ...]:
        """The metric's file, and what it has imported from its folder."""
        split = split_spec(self.options.metric) if self.options.metric else None
        return tuple(map(str, script_files(split[0]))) if split is not None else ()

    def _plan(self, shapes: Mapping[str, ShapeRange]) -> Plan:
        """How engines are built here, and what other shapes they are judged at."""
        options, others = self.options, {}
        for where in options.judge_at:
            if not shapes:
                raise InputError(f"there is no {where} shape to judge at", "no profile was given",
                                 "Give --shapes NAME:MIN:OPT:MAX.")
            wanted = {name: getattr(one, where) for name, one in shapes.items()}
            rows = max(shape[0] for shape in wanted.values() if shape) if any(wanted.values()) else 1
            limit = max(options.whatif_samples, rows) if options.whatif_samples else None
            samples = load_samples(options.data, self.network.inputs, seed=options.seed, shapes=wanted,
                                   limit=min(filter(None, (options.samples, limit)), default=None))
            for name, shape in wanted.items():
                if (there := samples.feed(0)[name].shape) != shape:
                    raise InputError(f"the data has no {where} shape of input {name}",
                                     f"it gives {'x'.join(map(str, there))}, the profile {'x'.join(map(str, shape))}",
                                     "Give data of that shape, or leave --judge-at out.")
            others[where] = Analysis(self.network, self.backend, samples, self.judged, metric=self.metric)
        settings = BuildSettings(
            {name: (one.min, one.opt, one.max) for name, one in shapes.items()},
            timing_cache=Path(options.timing_cache) if options.timing_cache else None,
            tactic_sources=options.tactic_sources, compute_capability=options.compute_capability,
            optimization_level=options.optimization_level)
        return Plan(settings, options.weak, options.strict, others)

    def _identify(self, job: int) -> Steps:
        """Hashes the network, and the samples and labels in use."""
        self._send(m.Progress(job, "hashing the network and the data", 0, 0))
        sha256 = self._network_sha256()
        yield Urgency.OPENING
        judged = self.data.judged
        labels = hashlib.sha256()
        for index in self.feeds:
            labels.update(repr(judged.rows(index)).encode())
            for name, array in sorted(judged.labels(index).items()):
                labels.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
        self.data_sha256 = judged.take(self.feeds).sha256() + labels.hexdigest()
        self.sha256 = sha256
        if self.known is not None:
            self.replaced = self._differing(self.known)
        self._send(m.Hashed(job, Source(sha256, self.data_sha256, self.inputs)))
        yield Urgency.OPENING

    def _chosen_feeds(self, wanted: int) -> list[int]:
        """Feeds that every figure is taken on: the first ones that hold ``wanted`` samples; all for 0."""
        judged = self.data.judged
        chosen, rows = [], 0
        for index in range(len(judged)):
            if wanted and rows >= wanted:
                break
            chosen.append(index)
            rows += judged.rows(index)
        return chosen

    def _network_sha256(self) -> str:
        files = (self.network.path, *self.network.external_files)
        stamps = [(str(file.resolve()), stamp(file)) for file in files]
        key = self.cache.key("sha256", stamps)
        known = self.cache.get(key, str)
        if known is None:
            known = self.network.sha256()
            self.cache.put(key, known)
        return known

    def _key(self, kind: str, config: PrecisionConfig, *more: object) -> str:
        """The name under which a result is kept: all that it depends on."""
        ranges = tuple(sorted(self.ranges.items())) if self._quantizes(config) else ()
        return self.cache.key(trt_tui.__version__, ARITHMETIC, kind, self.sha256, self.data_sha256,
                              [one.name for one in self.judged], self._metric_stamp(), self.backend.name,
                              self.backend.version, getattr(self.backend, "provider", ""), ranges, config.key(), more)

    def _quantizes(self, config: PrecisionConfig) -> bool:
        return any(config.precision_of(group) is Precision.INT8 for group in self.network.groups)

    def _metric_stamp(self) -> tuple:
        if self.metric is None:
            return ()
        return (self.options.metric, *map(digest, self._metric_files()))

    def _ranges(self, job: int, configs: Sequence[PrecisionConfig]) -> None:
        """Sees to it that ranges are there if any config needs them."""
        if self.calibration is None and any(self._quantizes(config) for config in configs):
            self._calibrate(job, self.options.calib_method)

    def _calibrate(self, job: int, method: str) -> None:
        if method not in METHODS:
            raise InputError(f"unknown calibration method {method}", f"there are: {', '.join(METHODS)}",
                             "Choose one with --calib-method.")
        if self.options.calib_cache is not None:
            self._take_cache(job, method)
            return
        self.calibration = self._measured_ranges(job, method)
        self._send(m.Calibrated(job, self.calibration))

    def _take_cache(self, job: int, method: str, given: Calibration | None = None) -> None:
        """Takes the ranges of the cache named; what it lacks is taken from a config, or calibrated where data are."""
        fitting, warnings = match_cache(read_cache(self.options.calib_cache), self.network.activations)
        for warning in warnings:
            self._send(m.Note(job, warning, "warning"))
        rest = given
        if rest is None and has_data(self.options) and set(self.network.activations) - set(fitting):
            rest = self._measured_ranges(job, method)
        if rest is None:
            rest = Calibration("cache", 0, "", {})
        self.calibration = replace(rest, ranges={**rest.ranges, **fitting})
        self._send(m.Calibrated(job, self.calibration))

    def _measured_ranges(self, job: int, method: str) -> Calibration:
        source = self.data.calibration
        key = self.cache.key("calibration", trt_tui.__version__, self.sha256, source.sha256(), len(source), method,
                             self.backend.version)
        calibration = self.cache.get(key, Calibration)
        if calibration is None:
            calibration = calibrate(self.network.model, self.network.activations, source, self.backend, method=method,
                                    progress=self._sweeping(job, f"calibrating ({method})"))
            self.cache.put(key, calibration)
        return calibration

    @property
    def ranges(self) -> dict[str, float]:
        return self.calibration.ranges if self.calibration is not None else {}

    # -- comparing ----------------------------------------------------------------------------------------------

    def _compare(self, job: int, request: m.Compare) -> Steps:
        yield from self._verdicts(job, request.runs)
        yield from self._reference_metric(job)
        for config in request.runs.values():
            known = self._known_engine(config)
            if known is not None:
                self._send(m.Built(job, config, known))
        known = self._known_engine(PrecisionConfig.uniform(Precision.FP32)) if self.builder is not None else None
        if known is not None:
            self._send(m.Checked(job, known))
        if request.layers:
            yield Urgency.LAYERS
            yield from self._layers(job, request.runs, Urgency.LAYERS)
        if request.shares_of is not None:
            yield Urgency.BACKGROUND
            for run in sorted(request.runs, key=lambda run: run != request.shares_of):
                yield from self._shares(job, run, request.runs[run])

    def _known(self, kind: str, config: PrecisionConfig, type_: type[T]) -> T | None:
        return self.cache.get(self._key(kind, config), type_)

    def _keep(self, kind: str, config: PrecisionConfig, value: object) -> None:
        self.cache.put(self._key(kind, config), value)

    def _verdicts(self, job: int, runs: Mapping[str, PrecisionConfig]) -> Steps:
        """The verdict of each run: all on the first feed, then all of them one feed further at a time."""
        since, done = time.monotonic(), 0
        measuring: dict[str, Iterator[Partial]] = {}

        def go_on(run: str) -> None:
            nonlocal done
            config, partial = runs[run], next(measuring[run])
            if partial.final:
                self._keep("verdict", config, partial.value)
            if partial.final or partial.done == 1 or self.metric is None and self._due(f"verdict {run}"):
                self._send(m.VerdictMeasured(job, run, config, partial.value, partial.final))
            done += 1
            self._progress(job, "comparing with FP32", done, len(self.feeds) * len(measuring), since)

        for run, config in runs.items():
            self._ranges(job, [config])  # only now: FP16's first verdict need not wait for it
            known = self._known("verdict", config, Verdict)
            if known is not None:
                self._send(m.VerdictMeasured(job, run, config, known, True))
                continue
            measuring[run] = self.analysis.verdict(config, self.ranges, self.feeds)
            go_on(run)
            yield Urgency.FIRST_VERDICT
        if measuring and self.metric is not None and len(self.feeds) > 1:
            score = self.analysis.reference_metric(self.feeds[:1])
            self._send(m.ReferenceMeasured(job, score, self.data.judged.rows(self.feeds[0])))
        yield Urgency.VERDICT
        for _ in self.feeds[1:]:
            for run in measuring:
                go_on(run)
                yield Urgency.VERDICT

    def _reference_metric(self, job: int) -> Steps:
        fp32 = PrecisionConfig.uniform(Precision.FP32)
        score = self._known("metric", fp32, dict[str, float])
        if score is None:
            analysis = self.analysis
            for index in self.feeds if self.metric is not None else ():
                analysis.reference(index)
                yield Urgency.VERDICT
            score = analysis.reference_metric(self.feeds)
            self._keep("metric", fp32, score)
        self._send(m.ReferenceMeasured(job, score, self._judged_count()))
        return score

    def _judged_count(self) -> int:
        return sum(self.data.judged.rows(i) for i in self.feeds)

    def _layers(self, job: int, runs: Mapping[str, PrecisionConfig], urgency: Urgency) -> Steps:
        """Errors at the groups."""
        since = time.monotonic()
        configs: dict[str, PrecisionConfig] = {}
        for run, config in runs.items():
            known = self._known("layers", config, dict[str, GroupErrors])
            if known is not None:
                self._send(m.LayersMeasured(job, run, config, known, self._judged_count(), True))
            else:
                configs[run] = config
        if not configs:
            return
        names = list(configs)
        for partial in measure_layers(self.analysis, configs, self.ranges, feeds=self.feeds):
            feed, position = divmod(partial.done - 1, len(names))
            run, final = names[position], feed + 1 == len(self.feeds)
            if final:
                self._keep("layers", configs[run], partial.value[run])
            if final or feed == 0 or self._due(f"layers {run}"):
                samples = sum(self.data.judged.rows(i) for i in self.feeds[:feed + 1])
                self._send(m.LayersMeasured(job, run, configs[run], partial.value[run], samples, final))
            self._progress(job, "errors at the groups", partial.done, partial.total, since)
            yield urgency

    def _suspects(self, config: PrecisionConfig) -> list[str]:
        """All groups, those first that are bad alone, as far as that is known."""
        base = replace(config, moves={})
        known = (self._known("layers", config, dict[str, GroupErrors])
                 or self._known("layers", base, dict[str, GroupErrors]) or {})

        def badness(name: str) -> float:
            errors = known[name].isolated if name in known else None
            if errors is None:
                return 0.0
            if errors.sqnr_db is None:
                return 1e9 if errors.exact else -1e9
            return errors.sqnr_db

        return sorted((group.name for group in self.network.groups), key=badness)

    def _shares(self, job: int, run: str, config: PrecisionConfig) -> Steps:
        """What each group owns; what was measured before an interruption is not measured again."""
        shares = self._known("shares", config, dict[str, Share]) or {}
        order = self._suspects(config)
        total, before, since = len(order), len(shares), time.monotonic()
        unsent: dict[str, Share] = dict(shares)
        remaining = [name for name in order if name not in shares]
        if remaining:
            if shares:
                self._send(m.SharesMeasured(job, run, config, unsent, before, total))
                unsent = {}
            try:
                for partial in measure_shares(self.analysis, config, self.ranges, order=remaining, feeds=self.feeds):
                    shares.update(partial.value)
                    unsent.update(partial.value)
                    if unsent and self._due("shares"):
                        self._send(m.SharesMeasured(job, run, config, unsent, len(shares), total))
                        unsent = {}
                    done = len(shares) - before
                    self._progress(job, f"what each group owns ({run})", done, total - before, since)
                    if self._due("shares kept"):
                        self._keep("shares", config, shares)
                    yield Urgency.BACKGROUND
            finally:
                self._keep("shares", config, shares)
        self._send(m.SharesMeasured(job, run, config, unsent, len(shares), total))
        yield from self._raised(job, config, shares)

    def _raised(self, job: int, config: PrecisionConfig, shares: Mapping[str, Share]) -> Steps:
        """The error with the worst groups raised together."""
        worst = sorted(shares, key=lambda name: -shares[name].owns)
        order = tuple(name for name in worst if shares[name].owns >= LEAST_OWNED)[:RAISED_ROWS]
        if not order:
            return
        verdicts = self._known("raised", config, tuple[Verdict, ...])
        if verdicts is None:
            since = time.monotonic()
            for partial in measure_cumulative(self.analysis, config, self.ranges, order, self.feeds):
                verdicts = partial.value
                self._progress(job, "raising the worst groups together", partial.done, partial.total, since)
                yield Urgency.BACKGROUND
            self._keep("raised", config, verdicts)
        self._send(m.RaisedMeasured(job, config, order, verdicts))

    # -- what if ------------------------------------------------------------------------------------------------

    def _one_verdict(self, job: int, config: PrecisionConfig, phase: str) -> Iterator[Verdict]:
        """Yields the verdict of one config, complete in the end; progress is told where the phase has a name."""
        known = self._known("verdict", config, Verdict)
        if known is not None:
            yield known
            return
        since = time.monotonic()
        for partial in self.analysis.verdict(config, self.ranges, self.feeds):
            if partial.final:
                self._keep("verdict", config, partial.value)
            if phase:
                self._progress(job, phase, partial.done, partial.total, since)
            yield partial.value

    def _what_if(self, job: int, request: m.WhatIf) -> Steps:
        config = request.config
        self._ranges(job, [config])
        for verdict in self._one_verdict(job, config, "what-if"):
            final = verdict.samples >= self._judged_count()
            if final or self._due("what-if"):
                self._send(m.VerdictMeasured(job, "config", config, verdict, final))
            yield Urgency.WHAT_IF
        if request.shares:
            yield Urgency.BACKGROUND
            yield from self._shares(job, "config", config)
            yield from self._layers(job, {"config": config}, Urgency.BACKGROUND)

    def _try_options(self, job: int, request: m.TryOptions) -> Steps:
        group, config = self.network.group(request.group), request.config
        self._ranges(job, [config])
        wanted: list[tuple[str, str, PrecisionConfig]] = []
        now = config.precision_of(group)
        higher = step(group, now, up=True)
        if higher is not now and higher is not Precision.FP32:
            wanted.append(("=", higher.label, config.with_groups([group], higher)))
        if now is not Precision.FP32:
            wanted.append(("space", Precision.FP32.label, config.with_groups([group], Precision.FP32)))
        if now is Precision.INT8:
            ranges = self._group_ranges(job, request, [group])
            for method in METHODS:
                if method == self.calibration.method:
                    continue
                changed = config
                for tensor, by_method in ranges.items():
                    changed = changed.with_range(tensor, RangeChoice(by_method[method], method))
                wanted.append(("r", f"{method} range", changed))
        options: list[m.Option] = []
        for key, label, changed in wanted:
            for verdict in self._one_verdict(job, changed, f"trying {label}"):
                if verdict.samples >= self._judged_count():
                    options.append(m.Option(key, label, changed, verdict))
                yield Urgency.OPTIONS
            self._send(m.OptionsMeasured(job, group.name, config, tuple(options)))
        if not wanted:
            self._send(m.OptionsMeasured(job, group.name, config, ()))

    def _group_ranges(self, job: int, request: m.Request, groups: Sequence[Group]) -> dict[str, dict[str, float]]:
        """The ranges of the activations of some groups by every method, by tensor."""
        tensors = dict.fromkeys(site.tensor for group in groups for site in group.activations())
        missing = [tensor for tensor in tensors if tensor not in self.other_ranges]
        if missing:
            stats = collect_stats(self.network.model, missing, self.data.calibration, self.backend,
                                  progress=self._sweeping(job, "other ranges", request))
            self.other_ranges.update({tensor: dict(one.ranges) for tensor, one in stats.items()})
        return {tensor: self.other_ranges[tensor] for tensor in tensors}

    def _stats(self, job: int, request: m.Stats) -> Steps:
        group = self.network.group(request.group)
        named = (*(site.tensor for site in group.activations()), *group.inputs[:2], group.tail)
        tensors = [tensor for tensor in dict.fromkeys(named) if self.network.is_float(tensor)]
        axes = {}
        for site in group.activations():
            layer = self.network.layer(site.layer)
            rank = len(self.network.shape(site.tensor) or ())
            axes[site.tensor] = 1 if layer.op_type in ("Conv", "ConvTranspose") or rank < 2 else rank - 1
        stats = collect_stats(self.network.model, tensors, self.data.calibration, self.backend, channel_axes=axes,
                              progress=self._sweeping(job, "looking at the values", request))
        self.other_ranges.update({tensor: dict(one.ranges) for tensor, one in stats.items()})
        self._send(m.StatsMeasured(job, group.name, stats))
        yield Urgency.STATS

    # -- searching ----------------------------------------------------------------------------------------------

    def _search(self, job: int, request: m.Search) -> Steps:
        """Finds the smallest fix. Nothing that was measured before, by an interrupted search too, is measured again."""
        targets = [parse_target(text) for text in request.tolerances]
        self._check_targets(targets)
        if not lowers(self.network, request.config):
            why = cannot_lower(self.network) or "every layer is in FP32 already"
            raise InputError("there is nothing to search", why,
                             "Begin with a config that lowers layers, such as --precision int8.")
        if request.check is not None:
            check_words(request.check)
        runs = self.builder is not None and runs_here(self.builder, self.plan.settings)
        bench = Bench(
            verdict=lambda config: self._search_verdict(job, config),
            impacts=lambda config, names: self._impacts(job, config, names, request.shares),
            ranges=lambda groups: self._ranges_to_try(job, request, groups),
            build=(lambda config: self._search_engine(job, config)) if runs else None,
            built=lambda config: self._known_engine(config) is not None,
            check=(lambda config: self._checked(request.check, config)) if request.check is not None else None,
            report=lambda work, heard: self._send(work.progress(job)) if heard or self._due("search") else None)
        work = SearchJob(self.network, request, targets, bench)
        self._ranges(job, [request.config])
        if any(target.kind == "metric" for target in targets):
            score = yield from self._reference_metric(job)
            base = next(iter(score.values()), None)
            work.targets = tuple(target.with_base(base) for target in targets)
        try:
            yield from work.steps()
        except (GeneratorExit, CancelledError):
            self._send(work.ended(job, stopped=True))
            raise
        self._send(work.ended(job))

    def _check_targets(self, targets: Sequence[Target]) -> None:
        """Refuses a tolerance that nothing measured here can meet or miss."""
        for target in targets:
            target.check(self.judged, self.network, self.metric.name if self.metric is not None else None)

    def _search_verdict(self, job: int, config: PrecisionConfig) -> Iterator[Urgency]:
        """Returns the whole verdict of a config."""
        whole = None
        for verdict in self._one_verdict(job, config, ""):
            whole = verdict
            yield Urgency.SEARCH
        return whole

    def _search_engine(self, job: int, config: PrecisionConfig) -> Iterator[Urgency | Wait]:
        """Returns the engine of a config, built where none is known; its simulated verdict is sent too."""
        verdict = yield from self._search_verdict(job, config)
        self._send(m.VerdictMeasured(job, "config", config, verdict, True))
        known = self._known_engine(config)
        if known is None:
            return (yield from self._made(job, config, self._building(config, False), False))
        self._send(m.Built(job, config, known))
        return known

    def _impacts(self, job: int, config: PrecisionConfig, names: Sequence[str], shares: bool) -> Iterator[Urgency]:
        """Returns what some groups do to the judged outputs, by name: all on few samples, the worst ones on all.

        With ``shares`` what each group owns is measured where it is not known, and sent as it comes.
        """
        owned = self._known("shares", config, dict[str, Share]) or {}
        owns = shares and not owned.keys() >= set(names)
        both = self._known("impacts", config, dict[str, Impact]) or {}
        kind = "impacts" if owns else "impacts alone"
        found = both if owns else {**(self._known(kind, config, dict[str, Impact]) or {}), **both}
        order, few, rows = [name for name in self._suspects(config) if name in names], 0, 0
        while few < len(self.feeds) and rows < RANKED_ROWS:
            rows += self.data.judged.rows(self.feeds[few])
            few += 1
        since, unsent = time.monotonic(), dict(found) if owns else {}
        try:
            for partial in measure_impacts(self.analysis, config, self.ranges, known=found, order=order,
                                           feeds=self.feeds, few=few, owns=owns):
                found = {**found, **partial.value} if partial.value else found
                if owns:
                    unsent.update(partial.value)
                if unsent and self._due("shares"):
                    self._send(m.SharesMeasured(job, "config", config, unsent, len(found), len(order)))
                    unsent = {}
                self._progress(job, "what each group does to the outputs", partial.done, partial.total, since)
                if self._due("impacts kept"):
                    self._keep(kind, config, found)
                yield Urgency.SEARCH
        finally:
            self._keep(kind, config, found)
        if unsent:
            self._send(m.SharesMeasured(job, "config", config, unsent, len(found), len(order)))
        return {name: replace(one, owns=owned[name].owns, kept_db=owned[name].kept_db)
                if math.isnan(one.owns) and name in owned else one for name, one in found.items()}

    def _ranges_to_try(self, job: int, request: m.Search, groups: Sequence[Group]) -> dict[str, dict[str, float]]:
        """The ranges of the inputs of some groups by other methods than the calibration's."""
        known = self._group_ranges(job, request, groups)
        return {tensor: {method: amax for method, amax in by_method.items() if amax != self.ranges.get(tensor)}
                for tensor, by_method in known.items()}

    def _checked(self, command: str, config: PrecisionConfig) -> Iterator[Urgency | Wait]:
        """Returns the exit code of the user's command for a config.

        It is asked once in this process, and not kept for longer: what else it reads may have changed.
        """
        files = [digest(word) for word in check_words(command)]
        key = self._key("check", config, command, files)
        code = self.checked.get(key)
        if code is None:
            fetched: dict[str, list[np.ndarray]] = {}
            for outputs in self.analysis.outputs(config, self.ranges, self.feeds):
                for tensor, array in outputs.items():
                    fetched.setdefault(tensor, []).append(np.atleast_1d(array))
                yield Urgency.SEARCH
            joined = {tensor: np.concatenate(arrays) for tensor, arrays in fetched.items()}
            code = yield from run_check(command, self.network, config, self.ranges, joined, self.arrived.set)
            self.checked[key] = code
        yield Urgency.SEARCH
        return code

    # -- building -----------------------------------------------------------------------------------------------

    def _build(self, job: int, request: m.Build) -> Steps:
        self._ranges(job, [request.config])
        if self.builder is None:
            yield from self._made(job, request.config, run_typed(
                self.analysis, request.config, self.ranges, self.feeds), request.quick)
            return
        fp32 = PrecisionConfig.uniform(Precision.FP32)
        if runs_here(self.builder, self.plan.settings):
            checks = request.config == fp32
            known = yield from self._check(job, fp32, tolerant=not checks)
            if checks:
                self._send(m.Built(job, fp32, known))
                return
        yield from self._made(job, request.config, self._building(request.config, request.quick), request.quick)

    def _check(self, job: int, fp32: PrecisionConfig, tolerant: bool) -> Steps:
        """Returns the FP32 engine.

        Args:
            tolerant: Go on without it where it cannot be had; one that TensorRT refuses is not tried again for that.
        """
        known = self._known_engine(fp32) or (self.unchecked if tolerant else None)
        if known is None:
            try:
                known = yield from self._made(job, fp32, self._building(fp32, False), False, "FP32 check: ")
            except (CancelledError, BackendUnavailableError):
                raise
            except TrtTuiError as error:
                if not tolerant:
                    raise
                known = unbuilt(builder_title(self.builder.name, self.builder.version), error)
                self.unchecked = known if getattr(error, "refused", False) else None
        self._send(m.Checked(job, known))
        return known

    def _write_engine(self, job: int, request: m.WriteEngine) -> Steps:
        if self.builder is None:
            raise BackendUnavailableError(
                "no TensorRT works here to build an engine", "trt-tui doctor says why",
                "Write -o typed.onnx instead, or name a backend: --backend tensorrt-rtx builds without a GPU.")
        self._ranges(job, [request.config])
        taken = profile_of(self.network, self.data.judged, self.feeds) if self.options.data is not None else {}
        taken = {name: shapes for name, shapes in taken.items() if name not in self.plan.settings.profile}
        settings = replace(self.plan.settings, tf32=request.config.tf32,
                           profile={**taken, **self.plan.settings.profile})
        if request.quick:
            settings = replace(settings, optimization_level=QUICK_LEVEL)
        cache = None if settings.timing_cache is not None else self.engines
        since = time.monotonic()
        with contextlib.closing(build_engine(self.builder, self.network, request.config, self.ranges, settings,
                                             cache=cache, wake=self.arrived.set, weak=self.plan.weak,
                                             strict=self.plan.strict)) as making:
            for made in making:
                match made:
                    case Engine():
                        write_atomic(Path(request.path), made.data)
                        about = (*self._about(made), *(
                            f"{name}: {' to '.join('x'.join(map(str, one)) for one in (shapes[0], shapes[2]))}, as the "
                            "data has it (--shapes sets another profile)" for name, shapes in taken.items()))
                        otherwise = made.rungs[-1].said if len(made.rungs) > 1 else ""
                        self._send(m.Wrote(job, request.path, len(made.data), about, otherwise))
                    case Said():
                        self._send(m.Note(job, f"{made.level}: {made.text}"))
                    case Step():
                        self._progress(job, made.phase, made.done, made.total, since)
                        yield Urgency.BUILD
                    case Wait():
                        yield made

    def _about(self, engine: Engine) -> tuple[str, ...]:
        builder, target = self.builder, self.plan.settings.compute_capability
        made = f"{builder.name} {builder.version}"
        made += f" for compute capability {target[0]}.{target[1]}" if target is not None else f" on {builder.device}"
        took = "taken from the engine cache" if engine.origin == "engine cache" else (
            f"built in {engine.seconds:.1f} s" + (" with a timing cache" if engine.origin == "timing cache" else ""))
        cannot = () if runs_here(builder, self.plan.settings) else ("It cannot run on this machine.",)
        tried = [f"failed {rung.said}: {rung.failed}" for rung in engine.rungs[:-1]]
        return (f"{made}, {took}", *tried, *cannot, *engine.notes)

    def _building(self, config: PrecisionConfig, quick: bool) -> Iterator[Step | Said | Wait | EngineResult]:
        told = any(config.precision_of(group) is not Precision.FP32 for group in self.network.groups)
        plan = self.plan if told else replace(self.plan, weak=False)
        return build_and_judge(self.analysis, self.builder, config, self.ranges, self.feeds, plan,
                               quick=quick, cache=self.engines, wake=self.arrived.set)

    def _made(self, job: int, config: PrecisionConfig, making: Iterator[Step | Said | Wait | EngineResult], quick: bool,
              prefix: str = "") -> Steps:
        """Reports how a build goes on and what it made; returns that. A preview is not kept."""
        since, phase = time.monotonic(), ""
        with contextlib.closing(making):
            for made in making:
                match made:
                    case EngineResult():
                        if not quick:
                            self.cache.put(self._engine_key(config), made)
                        if not prefix:
                            self._send(m.Built(job, config, made))
                        return made
                    case Said():
                        self._send(m.Note(job, f"{made.level}: {made.text}"))
                    case Step():
                        since = time.monotonic() if made.phase != phase else since
                        phase = made.phase
                        self._progress(job, prefix + phase, made.done, made.total, since)
                        yield Urgency.BUILD
                    case Wait():
                        yield made
        raise AssertionError("a build ends with a result")

    def _known_engine(self, config: PrecisionConfig) -> EngineResult | None:
        return self.cache.get(self._engine_key(config), EngineResult)

    def _engine_key(self, config: PrecisionConfig) -> str:
        settings = self.plan.settings
        stamp = getattr(self.builder, "stamp", ())
        return self._key("engine", config, stamp, sorted(settings.profile.items()), settings.tactic_sources,
                         settings.compute_capability, settings.optimization_level, self.plan.weak, self.plan.strict,
                         sorted(self.plan.others))


def main(argv: Sequence[str]) -> None:
    """Entry of the child process: file descriptors of the pipe, the log and the lifeline."""
    requests, log, lifeline = (int(text) for text in argv)
    tie(lifeline)
    os.set_inheritable(requests, False)
    gc.set_threshold(100_000, 20, 50)  # a big network is many small objects that all stay
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False)
    sys.stderr = open(2, "w", buffering=1, closefd=False)
    faulthandler.enable(sys.stderr, all_threads=False)  # where an abort or a crash came from stands in the log
    with Connection(requests) as pipe:
        worker = Worker(pipe)
        clear_scratch()
        worker.cache.trim()
        worker.engines.trim()
        threading.Thread(target=worker.listen, daemon=True).start()
        with contextlib.suppress(BrokenPipeError):
            worker.serve()


if __name__ == "__main__":
    main(sys.argv[1:])
