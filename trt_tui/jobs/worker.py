"""The child process: opens the network, measures, reports.

It takes requests from one pipe, in order, and reports events on it. One request is long (`Compare`, `Build`); the short
ones (`WhatIf`, `TryOptions`, `Stats`) are answered between two runs of a long one, and a newer request of a kind
replaces the older. A second pipe carries job numbers: every job up to the number stops before its next run. When the
program at the other end is gone, the process ends.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import trt_tui
from trt_tui.backends.registry import get_backend
from trt_tui.core.analysis import Analysis
from trt_tui.core.calibration import METHODS, Calibration, calibrate, collect_stats, match_cache, read_cache
from trt_tui.core.comparison import GroupErrors, Share, Verdict
from trt_tui.core.judge import judged_outputs
from trt_tui.core.metric import load_metric
from trt_tui.core.network import Network, open_network
from trt_tui.core.precision import Precision, PrecisionConfig, RangeChoice, step
from trt_tui.core.runner import Backend
from trt_tui.core.samples import DataSets, load_samples, parse_shapes, split
from trt_tui.errors import CancelledError, InputError, TrtTuiError
from trt_tui.jobs import messages as m
from trt_tui.jobs.building import build_and_judge
from trt_tui.jobs.cache import ResultCache

_LONG = m.Compare | m.Build | m.Open | m.UseRanges | m.Calibrate
_REPORT_S = 0.1
"""Least time between two reports of one kind."""

RAISED_ROWS = 12
"""For how many of the worst groups the error is measured with everything down to there raised."""


class Worker:
    """Answers requests one after the other; see the module's docstring."""

    def __init__(self, pipe: Connection, cache: ResultCache | None = None) -> None:
        self.pipe = pipe
        self.cache = cache or ResultCache()
        self.queue: deque[tuple[int, m.Request]] = deque()
        self.stop_before = 0
        self.options: m.Options | None = None
        self.network: Network | None = None
        self.backend: Backend | None = None
        self.data: DataSets | None = None
        self.calibration: Calibration | None = None
        self.other_ranges: dict[str, dict[str, float]] = {}
        self.analyses: dict[tuple[Precision, Precision], Analysis] = {}
        self.shares_known: dict[tuple, dict[str, Share]] = {}
        self._last_report = 0.0
        self._started = 0.0

    # -- the loop -----------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Answers until the other end closes the pipe."""
        while True:
            try:
                if not self.queue:
                    self.queue.append(self.pipe.recv())
                job, request = self.queue.popleft()
                self._answer(job, request)
            except (EOFError, BrokenPipeError, ConnectionResetError):
                return

    def _answer(self, job: int, request: m.Request) -> None:
        if job < self.stop_before:
            self._send(m.Cancelled(job))
            return
        outer = self._started
        self._started = time.monotonic()
        try:
            for _ in self._handle(job, request):
                if job < self.stop_before:
                    raise CancelledError("stopped")
                if self._superseded(request):
                    break
                if isinstance(request, m.Compare | m.Build):
                    self._answer_short_ones()
            self._send(m.Done(job))
        except CancelledError:
            self._send(m.Cancelled(job))
        except TrtTuiError as error:
            self._send(m.Failed(job, error.title, error.cause, error.next_step, int(error.exit_code)))
        except MemoryError as error:
            self._send(m.Failed(job, "out of memory", str(error), "Use fewer samples or a smaller batch (--batch).", 2))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except Exception as error:
            traceback.print_exc()
            self._send(m.Failed(job, f"unexpected {type(error).__name__}", str(error),
                                "This is a defect of trt-tui; the log pane has the traceback.", 2,
                                traceback.format_exc()))
        finally:
            self._started = outer

    def _drain(self) -> None:
        while self.pipe.poll():
            self.queue.append(self.pipe.recv())

    def _superseded(self, request: m.Request) -> bool:
        self._drain()
        return any(type(later) is type(request) for _, later in self.queue)

    def _answer_short_ones(self) -> None:
        self._drain()
        waiting, self.queue = self.queue, deque()
        short = [(j, r) for j, r in waiting if not isinstance(r, _LONG)]
        self.queue.extend((j, r) for j, r in waiting if isinstance(r, _LONG))
        for position, (job, request) in enumerate(short):
            if any(type(later) is type(request) for _, later in short[position + 1:]):
                self._send(m.Done(job))
                continue
            self._answer(job, request)

    def _send(self, event: m.Event) -> None:
        self.pipe.send(event)

    def _due(self) -> bool:
        """Whether enough time has passed for another report."""
        now = time.monotonic()
        if now - self._last_report < _REPORT_S:
            return False
        self._last_report = now
        return True

    def _progress(self, job: int, phase: str, done: int, total: int, since: float) -> None:
        left = None
        if done and total > done:
            left = (time.monotonic() - since) / done * (total - done)
        self._send(m.Progress(job, phase, done, total, left))

    # -- requests -----------------------------------------------------------------------------------------------

    def _handle(self, job: int, request: m.Request) -> Iterator[None]:
        if isinstance(request, m.Open):
            yield from self._open(job, request.options)
            return
        if self.network is None:
            raise InputError("no network is open", "", "Open one first.")
        if self.data is None:
            raise InputError("there are no samples", "", "Name some with --data.")
        match request:
            case m.Calibrate():
                yield from self._calibrate(job, request.method)
            case m.UseRanges():
                self.calibration = request.calibration
                self._send(m.Calibrated(job, request.calibration))
                yield
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

    def _open(self, job: int, options: m.Options) -> Iterator[None]:
        self.options = options
        self._send(m.Progress(job, "reading the network", 0, 0))
        network = open_network(options.model)
        yield
        backend = get_backend(options.backend)
        shapes = parse_shapes(options.shapes, network.inputs) if options.shapes else {}
        optimum = {name: one.opt for name, one in shapes.items()}
        if options.samples is not None and options.samples < 1:
            raise InputError(f"--samples {options.samples}", "at least one sample is needed", "Give a positive number.")
        samples = load_samples(options.data, network.inputs, batch=options.batch, limit=options.samples,
                               seed=options.seed, shapes=optimum or None)
        yield
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
        self.calibration = None
        self.feeds = self._chosen_feeds(options.whatif_samples)
        for analysis in self.analyses.values():
            analysis.close()
        self.analyses.clear()
        warnings = [*network.notes, *data.warnings, *samples.warnings]
        if samples.has_labels and metric is None:
            warnings.append(f"The data hold labels ({', '.join(samples.label_names)}) and no --metric uses them.")
        warnings += [one.note for one in judged if one.note]
        counted = sum(data.judged.rows(i) for i in self.feeds)
        device = getattr(backend, "provider", "").upper()
        self._send(m.Opened(
            job, network.outline(), judged,
            m.DataSummary(samples.source, data.judged.count, data.calibration.count, counted, samples.random,
                          tuple(samples.label_names), tuple(dict.fromkeys(warnings))),
            m.BackendSummary("ONNX Runtime", backend.version, device, backend.capabilities.real_fp16),
            metric.name if metric is not None else None))
        yield
        self._send(m.Progress(job, "hashing the network and the data", 0, 0))
        self.sha256 = self._network_sha256()
        self.data_sha256 = data.judged.sha256()
        self._send(m.Hashed(job, self.sha256))
        yield

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
        stamps = [(str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns) for f in files]
        key = self.cache.key("sha256", stamps)
        known = self.cache.get(key, str)
        if known is None:
            known = self.network.sha256()
            self.cache.put(key, known)
        return known

    def _key(self, kind: str, config: PrecisionConfig, *more: object) -> str:
        ranges = tuple(sorted(self.calibration.ranges.items())) if self.calibration is not None else ()
        return self.cache.key(trt_tui.__version__, kind, self.sha256, self.data_sha256, tuple(self.feeds),
                              [one.name for one in self.judged], self._metric_stamp(), self.backend.name,
                              self.backend.version, getattr(self.backend, "provider", ""), ranges, config.key(), more)

    def _metric_stamp(self) -> tuple:
        if self.metric is None:
            return ()
        path = Path(self.options.metric.rpartition(":")[0])
        return (self.options.metric, path.read_bytes() if path.is_file() else b"")

    def _analysis(self, config: PrecisionConfig) -> Analysis:
        """The loaded simulation that offers what a config asks for; one is kept at a time."""
        used = {config.quantized, config.other, *(c.precision for c in config.groups.values())}
        lower = Precision.BF16 if Precision.BF16 in used else Precision.FP16
        if {Precision.BF16, Precision.FP16} <= used:
            raise InputError("one config asks for FP16 and BF16", "the simulation holds one 16-bit type at a time",
                             "Use one of the two.")
        other = config.other if config.other in (Precision.FP32, lower) else lower
        if not any(config.precision_of(g) is Precision.INT8 for g in self.network.groups):
            known = [one for one in self.analyses.values() if one.lower is lower]
            if known:
                return known[0]
        if (lower, other) not in self.analyses:
            for analysis in self.analyses.values():
                analysis.close()
            self.analyses.clear()
            self.analyses[lower, other] = Analysis(
                self.network, self.backend, self.data.judged, self.judged, metric=self.metric, lower=lower, other=other)
        return self.analyses[lower, other]

    def _ranges(self, job: int, configs: Sequence[PrecisionConfig]) -> Iterator[None]:
        """Sees to it that ranges are there if any config needs them."""
        if self.calibration is None and any(
                config.precision_of(group) is Precision.INT8 for config in configs for group in self.network.groups):
            yield from self._calibrate(job, self.options.calib_method)

    def _calibrate(self, job: int, method: str) -> Iterator[None]:
        if method not in METHODS:
            raise InputError(f"unknown calibration method {method}", f"there are: {', '.join(METHODS)}",
                             "Choose one with --calib-method.")
        if self.options.calib_cache is not None:
            fitting, warnings = match_cache(read_cache(self.options.calib_cache), self.network.activations)
            for warning in warnings:
                self._send(m.Note(job, warning, "warning"))
            self.calibration = Calibration("cache", 0, "", fitting)
            self._send(m.Calibrated(job, self.calibration))
            return
        source = self.data.calibration
        key = self.cache.key("calibration", trt_tui.__version__, self.sha256, source.sha256(), len(source), method,
                             self.backend.version)
        calibration = self.cache.get(key, Calibration)
        if calibration is None:
            since = time.monotonic()

            def progress(done: int, total: int) -> None:
                self._progress(job, f"calibrating ({method})", done, total, since)
                if job < self.stop_before:
                    raise CancelledError("stopped")

            calibration = calibrate(self.network.model, self.network.activations, source, self.backend, method=method,
                                    progress=progress)
            self.cache.put(key, calibration)
        self.calibration = calibration
        self._send(m.Calibrated(job, calibration))
        yield

    @property
    def ranges(self) -> dict[str, float]:
        return self.calibration.ranges if self.calibration is not None else {}

    # -- comparing ----------------------------------------------------------------------------------------------

    def _compare(self, job: int, request: m.Compare) -> Iterator[None]:
        yield from self._ranges(job, list(request.runs.values()))
        yield from self._verdicts(job, request)
        if request.layers:
            yield from self._layers(job, request)
        if request.shares_of is not None:
            config = request.runs[request.shares_of]
            yield from self._shares(job, request.shares_of, config, "what each group owns")

    def _verdicts(self, job: int, request: m.Compare) -> Iterator[None]:
        since = time.monotonic()
        waiting: dict[str, Iterator] = {}
        for run, config in request.runs.items():
            known = self.cache.get(self._key("verdict", config), Verdict)
            if known is not None:
                self._send(m.VerdictMeasured(job, run, config, known, True))
            else:
                waiting[run] = self._analysis(config).verdict(config, self.ranges, self.feeds)
        metric_key = self._key("reference metric", PrecisionConfig.uniform(Precision.FP32))
        metric = self.cache.get(metric_key, dict[str, float])
        done = 0
        for position in range(len(self.feeds)):
            for run, measured in waiting.items():
                partial = next(measured)
                final = position + 1 == len(self.feeds)
                if final:
                    self.cache.put(self._key("verdict", request.runs[run]), partial.value)
                if final or position == 0 or not partial.value.metric:
                    self._send(m.VerdictMeasured(job, run, request.runs[run], partial.value, final))
                done += 1
                self._progress(job, "comparing with FP32", done, len(self.feeds) * len(waiting), since)
                yield
            if metric is None and waiting and position in (0, len(self.feeds) - 1):
                analysis = self._analysis(next(iter(request.runs.values())))
                score = analysis.reference_metric(self.feeds[:position + 1])
                self._send(m.ReferenceMeasured(job, score, position + 1))
                if position + 1 == len(self.feeds):
                    self.cache.put(metric_key, score)
        if metric is not None:
            self._send(m.ReferenceMeasured(job, metric, len(self.feeds)))

    def _judged_count(self) -> int:
        return sum(self.data.judged.rows(i) for i in self.feeds)

    def _layers(self, job: int, request: m.Compare) -> Iterator[None]:
        since = time.monotonic()
        missing: dict[str, PrecisionConfig] = {}
        for run, config in request.runs.items():
            known = self.cache.get(self._key("layers", config), dict[str, GroupErrors])
            if known is not None:
                self._send(m.LayersMeasured(job, run, config, known, self._judged_count(), True))
            else:
                missing[run] = config
        by_kind: dict[int, dict[str, PrecisionConfig]] = {}
        for run, config in missing.items():
            by_kind.setdefault(id(self._analysis(config)), {})[run] = config
        for configs in by_kind.values():
            analysis = self._analysis(next(iter(configs.values())))
            samples = 0
            for partial in analysis.layers(configs, self.ranges, feeds=self.feeds):
                samples += self.data.judged.rows(self.feeds[partial.done - 1])
                for run, groups in partial.value.items():
                    if partial.final or partial.done == 1 or self._due():
                        self._send(m.LayersMeasured(job, run, configs[run], groups, samples, partial.final))
                    if partial.final:
                        self.cache.put(self._key("layers", configs[run]), groups)
                self._progress(job, "errors at the groups", partial.done, partial.total, since)
                yield

    def _isolated_order(self, config: PrecisionConfig) -> list[str]:
        """Groups by how bad they are alone, as far as that is known."""
        known = self.cache.get(self._key("layers", config), dict[str, GroupErrors])
        if known is None:
            known = self.cache.get(self._key("layers", self._base(config)), dict[str, GroupErrors]) or {}

        def badness(name: str) -> float:
            errors = known[name].isolated if name in known else None
            if errors is None:
                return 0.0
            if errors.bad or errors.sqnr_db is None and not errors.exact:
                return -1e9
            return 1e9 if errors.exact else errors.sqnr_db

        return sorted((group.name for group in self.network.groups), key=badness)

    @staticmethod
    def _base(config: PrecisionConfig) -> PrecisionConfig:
        return replace(config, groups={}, ranges={})

    def _shares(self, job: int, run: str, config: PrecisionConfig, phase: str) -> Iterator[None]:
        key = self._key("shares", config)
        shares = self.cache.get(key, dict[str, Share]) or self.shares_known.setdefault((key,), {})
        order = self._isolated_order(config)
        total = len(order)
        if shares:
            self._send(m.SharesMeasured(job, run, config, dict(shares), len(shares), total))
        since = time.monotonic()
        remaining = [name for name in order if name not in shares]
        already = len(shares)
        pending: dict[str, Share] = {}
        if remaining:
            analysis = self._analysis(config)
            for partial in analysis.shares(config, self.ranges, order=remaining, feeds=self.feeds):
                shares.update(partial.value)
                pending.update(partial.value)
                if self._due():
                    self._send(m.SharesMeasured(job, run, config, pending, len(shares), total))
                    pending = {}
                    self._progress(job, phase, len(shares) - already, total - already, since)
                yield
            self._send(m.SharesMeasured(job, run, config, pending, len(shares), total))
            self.cache.put(key, shares)
        yield from self._raised(job, config, shares)

    def _raised(self, job: int, config: PrecisionConfig, shares: dict[str, Share]) -> Iterator[None]:
        order = [n for n in sorted(shares, key=lambda n: -shares[n].owns) if shares[n].owns >= 0.002][:RAISED_ROWS]
        if not order:
            return
        key = self._key("raised", config, tuple(order))
        known = self.cache.get(key, tuple[tuple[float | None, ...], tuple[float | None, ...]])
        decibels: list[float | None] = []
        scores: list[float | None] = []
        if known is not None:
            decibels, scores = list(known[0]), list(known[1])
        else:
            since = time.monotonic()
            for partial in self._analysis(config).raised(config, self.ranges, order, self.feeds):
                worst = partial.value.worst
                decibels.append(worst[1].errors.sqnr_db if worst is not None else None)
                scores.append(partial.value.headline)
                self._progress(job, "raising the worst groups together", partial.done, partial.total, since)
                yield
            self.cache.put(key, (tuple(decibels), tuple(scores)))
        self._send(m.RaisedMeasured(job, config, tuple(order), tuple(decibels), tuple(scores)))
        yield

    # -- what if ------------------------------------------------------------------------------------------------

    def _one_verdict(self, job: int, config: PrecisionConfig, phase: str) -> Iterator[Verdict]:
        """Yields the verdict of one config, complete in the end."""
        key = self._key("verdict", config)
        known = self.cache.get(key, Verdict)
        if known is not None:
            yield known
            return
        since = time.monotonic()
        for partial in self._analysis(config).verdict(config, self.ranges, self.feeds):
            if partial.final:
                self.cache.put(key, partial.value)
            self._progress(job, phase, partial.done, partial.total, since)
            yield partial.value

    def _what_if(self, job: int, request: m.WhatIf) -> Iterator[None]:
        yield from self._ranges(job, [request.config])
        verdict = None
        for verdict in self._one_verdict(job, request.config, "what-if"):
            if verdict.samples < self._judged_count() and self._due():
                self._send(m.VerdictMeasured(job, "config", request.config, verdict, False))
            yield
        if verdict is not None:
            self._send(m.VerdictMeasured(job, "config", request.config, verdict, True))
        if request.shares:
            yield from self._shares(job, "config", request.config, "what each group owns now")

    def _try_options(self, job: int, request: m.TryOptions) -> Iterator[None]:
        group, config = self.network.group(request.group), request.config
        yield from self._ranges(job, [config])
        wanted: list[tuple[str, str, PrecisionConfig]] = []
        now = config.precision_of(group)
        higher = step(group, now, up=True)
        if higher is not now and higher is not Precision.FP32:
            wanted.append(("=", higher.label, config.with_groups([group], higher)))
        if now is not Precision.FP32:
            wanted.append(("space", Precision.FP32.label, config.with_groups([group], Precision.FP32)))
        if now is Precision.INT8:
            ranges = yield from self._group_ranges(job, group)
            for method in METHODS:
                if method == self.calibration.method:
                    continue
                changed = config
                for tensor, by_method in ranges.items():
                    changed = changed.with_range(tensor, RangeChoice(by_method[method], method))
                wanted.append(("r", f"{method} range", changed))
        options: list[m.Option] = []
        for key, label, changed in wanted:
            verdicts = []
            for verdict in self._one_verdict(job, changed, f"trying {label}"):
                verdicts = [verdict]
                yield
            options.append(m.Option(key, label, changed, verdicts[0]))
            self._send(m.OptionsMeasured(job, group.name, config, tuple(options)))
        if not wanted:
            self._send(m.OptionsMeasured(job, group.name, config, ()))

    def _group_ranges(self, job: int, group) -> Iterator[None]:
        """The ranges of a group's activations by every method; returns them by tensor."""
        tensors = [site.tensor for site in group.activations()]
        missing = [t for t in dict.fromkeys(tensors) if t not in self.other_ranges]
        if missing:
            since = time.monotonic()
            stats = collect_stats(self.network.model, missing, self.data.calibration, self.backend,
                                  progress=lambda d, t: self._progress(job, "other ranges", d, t, since))
            self.other_ranges.update({tensor: dict(one.ranges) for tensor, one in stats.items()})
        yield
        return {tensor: self.other_ranges[tensor] for tensor in tensors}

    def _stats(self, job: int, request: m.Stats) -> Iterator[None]:
        group = self.network.group(request.group)
        tensors = list(dict.fromkeys([*(site.tensor for site in group.activations()), *group.inputs[:2], group.tail]))
        axes = {}
        for site in group.activations():
            layer = self.network.layer(site.layer)
            rank = len(self.network.shape(site.tensor) or ())
            axes[site.tensor] = 1 if layer.op_type in ("Conv", "ConvTranspose") or rank < 2 else rank - 1
        since = time.monotonic()
        stats = collect_stats(self.network.model, tensors, self.data.calibration, self.backend, channel_axes=axes,
                              progress=lambda d, t: self._progress(job, "looking at the values", d, t, since))
        self.other_ranges.update({tensor: dict(one.ranges) for tensor, one in stats.items()})
        self._send(m.StatsMeasured(job, group.name, stats))
        yield

    # -- building -----------------------------------------------------------------------------------------------

    def _build(self, job: int, request: m.Build) -> Iterator[None]:
        yield from self._ranges(job, [request.config])
        analysis = self._analysis(request.config)
        since = time.monotonic()
        for step_ in build_and_judge(analysis, request.config, self.ranges, self.feeds):
            if isinstance(step_, tuple):
                phase, done, total = step_
                self._progress(job, phase, done, total, since)
                yield
            else:
                self._send(m.Built(job, request.config, step_))
                yield


def main(argv: Sequence[str]) -> int:
    """Entry of the child process: file descriptors of the two pipes and the log."""
    requests, control, log = (int(text) for text in argv)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False)
    sys.stderr = open(2, "w", buffering=1, closefd=False)
    with ExitStack() as stack:
        pipe = stack.enter_context(Connection(requests))
        stops = stack.enter_context(Connection(control, writable=False))
        worker = Worker(pipe)

        def listen() -> None:
            while True:
                try:
                    worker.stop_before = max(worker.stop_before, stops.recv())
                except (EOFError, OSError):
                    os._exit(0)  # the program at the other end is gone

        threading.Thread(target=listen, daemon=True).start()
        worker.serve()
        worker.cache.trim()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
