"""A session whose child process is a table: the same stores and the same changes, with answers that are computed here.

Each quantizable group of the network has a fixed noise power in INT8 and a small one in FP16; the judged error is
their sum, so that shares, what-ifs and verdicts agree with each other as real ones do.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import onnx

from trt_tui.core.calibration.calibrate import Calibration
from trt_tui.core.calibration.statistics import TensorStats, TopChannels
from trt_tui.core.data.watched import Source, StampedFiles
from trt_tui.core.engines.inspector import COMPUTE, QDQ, REFORMAT, EngineLayer, EngineReport
from trt_tui.core.measure.comparison import EngineResult, Errors, GroupErrors, OutputErrors, Share, Verdict
from trt_tui.core.measure.judge import Judged
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import Group, Outline
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.jobs import messages as m
from trt_tui.jobs.summaries import BackendSummary, BuilderSummary, DataSummary
from trt_tui.options import Options
from trt_tui.session.saved import SavedSessions
from trt_tui.session.session import Session

SAMPLES = 64
_NOISE = (0.046, 0.021, 0.0080, 0.0046, 0.0027, 0.0012, 0.0004, 0.00005)
_METHODS = {"minmax": 1.0, "percentile": 0.4, "entropy": 0.35, "mse": 0.3}


H200 = BuilderSummary("tensorrt", "11.4.0.21", "NVIDIA H200", True)
"""A TensorRT whose engines run here."""

NO_GPU = BuilderSummary("tensorrt-rtx", "1.7.1.35", "", False)
"""A TensorRT-RTX that builds on a machine without a GPU."""


def outline_of(model: onnx.ModelProto, name: str) -> Outline:
    """The outline of a test network."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        onnx.save(model, path)
        outline = open_network(path).outline()
    return outline


class FakeClient:
    """In place of the child process: numbers jobs, remembers what was asked."""

    pid = 4242

    def __init__(self) -> None:
        self.sent: list[m.Request] = []
        self.stopped = 0
        self.closed = False

    def send(self, request: m.Request) -> int:
        self.sent.append(request)
        return len(self.sent)

    def stop(self) -> None:
        self.stopped += 1

    def close(self) -> None:
        self.closed = True


class FakeSession(Session):
    """See the module's docstring.

    Args:
        outline: The network.
        answers: Names of the requests that are answered: all by default; the others stay running.
        worst: Names of the groups with the highest noise, the noisiest first; the first quantizable ones by default.
        nan: Groups that give NaN in FP16.
        random: Whether the inputs are random ones.
        metric: Whether there is a metric.
        builder: What builds engines; ONNX Runtime runs the typed network when None.
        worse_db: How many dB an engine is worse than simulated.
        check_db: How far the FP32 engine is from FP32.
        otherwise: Groups that an engine computes in another precision than asked, whatever is asked.
    """

    def __init__(self, options: Options, deliver: Callable[[m.Event], None], *, outline: Outline, store: Path,
                 answers: Iterable[str] = ("Open", "Compare", "WhatIf", "TryWaysOut", "Stats", "Build", "Export",
                                          "WriteText"),
                 worst: tuple[str, ...] = (), nan: tuple[str, ...] = (), random: bool = False, metric: bool = True,
                 partial: bool = False, builder: BuilderSummary | None = None, worse_db: float = 0.2,
                 check_db: float = 96.1, otherwise: Mapping[str, Precision] | None = None,
                 **session_options: object) -> None:
        super().__init__(options, deliver, store=SavedSessions(store), **session_options)
        self._client = FakeClient()
        self.deliver = deliver
        self.known = outline
        self.answers = set(answers)
        self.nan = set(nan)
        self.is_random = random
        self.has_metric = metric
        self.partial = partial
        self.known_builder = builder
        self.worse_db, self.check_db, self.otherwise = worse_db, check_db, dict(otherwise or {})
        order = [*worst, *(g.name for g in outline.groups if g.quantizable and g.name not in worst)]
        self.noise = {name: _NOISE[min(i, len(_NOISE) - 1)] for i, name in enumerate(order)}

    def ask(self, request: m.Request) -> None:
        super().ask(request)
        job = len(self._client.sent)
        if type(request).__name__ in self.answers:
            for event in self.answer(job, request):
                self.deliver(event)

    def answer(self, job: int, request: m.Request) -> Iterator[m.Event]:
        """The events that answer a request."""
        yield from getattr(self, f"_answer_{type(request).__name__.lower()}")(job, request)
        yield m.Done(job)

    # -- figures ------------------------------------------------------------------------------------------------

    def part(self, group: Group, config: PrecisionConfig) -> float:
        """The noise power of one group in a config."""
        precision = config.precision_of(group)
        if precision is Precision.INT8:
            power = self.noise.get(group.name, 0.0)
            ranges = [config.ranges[s.tensor].method for s in group.activations() if s.tensor in config.ranges]
            return power * (_METHODS[ranges[0]] if ranges else 1.0)
        return 2e-8 if precision in (Precision.FP16, Precision.BF16) else 0.0

    def energy(self, config: PrecisionConfig) -> float:
        return sum(self.part(group, config) for group in self.known.groups)

    def verdict(self, config: PrecisionConfig, samples: int = SAMPLES, offset: float = 0.0) -> Verdict:
        energy = self.energy(config)
        nan = 17 if any(config.precision_of(self.known.group_by_name[n]) is Precision.FP16 for n in self.nan) else 0
        decibels = None if energy == 0 or nan else -10 * math.log10(energy) + offset
        errors = Errors(decibels, cosine=1 - energy / 2, nan=nan, exact=energy == 0 and not nan)
        metric = {"f1": 0.873 - 2.2 * energy} if self.has_metric else {}
        agreement = None if self.has_metric else 1 - 1.5 * energy
        worst = None if decibels is None else decibels - 6.1
        return Verdict({self.known.outputs[0].name: OutputErrors(errors, 37, worst)}, metric, agreement, samples,
                       SAMPLES, energy)

    def shares(self, config: PrecisionConfig) -> dict[str, Share]:
        energy = self.energy(config)
        found = {}
        for group in self.known.groups:
            part = self.part(group, config)
            kept = energy - part
            found[group.name] = Share(part / energy if energy else 0.0, -10 * math.log10(kept) if kept > 0 else None,
                                      -10 * math.log10(part) if part else None)
        return found

    def stats_of(self, group: Group) -> dict[str, TensorStats]:
        histogram = [0] * 64
        for index in range(18, 46):
            histogram[index] = int(40000 * math.exp(-((index - 38) / 3.0) ** 2)) + (3 if index > 41 else 0)
        top = TopChannels(2, 384, (7, 211, 30), 9.4)
        ranges = {name: 41.2 * factor for name, factor in _METHODS.items()}
        return {tensor: TensorStats(41.2, 0.47, 2.1, 9.7, 500_000, 12, tuple(histogram), 0.0, 0.002, 0, ranges, top)
                for tensor in (*group.inputs, group.tail)}

    # -- answers ------------------------------------------------------------------------------------------------

    def _answer_open(self, job: int, request: m.Open) -> Iterator[m.Event]:
        warnings = ("random inputs: give samples with --data",) if self.is_random else ()
        data = DataSummary("samples.npz", SAMPLES, 128, 32, self.is_random,
                           ("labels",) if self.has_metric else (), warnings, "d" * 64)
        backend = BackendSummary("ONNX Runtime", "1.31", "CPU", False)
        judged = (Judged(self.known.outputs[0].name, self.known.outputs[0].name),)
        yield m.Opened(job, self.known, judged, data, backend, "f1" if self.has_metric else None)
        if self.known_builder is not None:
            yield m.BuilderReady(job, self.known_builder)
        yield m.Hashed(job, Source("a" * 64, "b" * 64, StampedFiles()))

    def _answer_compare(self, job: int, request: m.Compare) -> Iterator[m.Event]:
        yield m.Calibrated(job, Calibration("minmax", 128, "d" * 64, {}))
        yield m.ReferenceMeasured(job, {"f1": 0.873} if self.has_metric else {}, SAMPLES)
        for index, (run, config) in enumerate(request.runs.items()):
            yield m.Progress(job, "comparing", index, len(request.runs), 8.0)
            if self.partial:
                yield m.VerdictMeasured(job, run, config, self.verdict(config, 4, 0.4), False)
                continue
            yield m.VerdictMeasured(job, run, config, self.verdict(config), True)
            if request.layers:
                yield m.LayersMeasured(job, run, config, self.errors(config), SAMPLES, True)
        if request.shares_of is not None and not self.partial:
            yield from self._measure_shares(job, request.shares_of, request.runs[request.shares_of])

    def errors(self, config: PrecisionConfig) -> Mapping[str, GroupErrors]:
        found, total, dead = {}, 1e-9, False
        for group in self.known.groups:
            part = self.part(group, config)
            total += part
            precision = config.precision_of(group)
            dead = dead or (group.name in self.nan and precision is Precision.FP16)
            warning = "max 1.2e5 exceeds FP16's 65504" if group.name in self.nan else ""
            found[group.name] = GroupErrors(
                precision,
                Errors(nan=17) if dead else Errors(-10 * math.log10(total)),
                Errors(-10 * math.log10(part) if part else None, exact=not part), 3.0, warning)
        return found

    def _measure_shares(self, job: int, run: str, config: PrecisionConfig) -> Iterator[m.Event]:
        shares = self.shares(config)
        yield m.SharesMeasured(job, run, config, shares, len(shares), len(shares))
        order = sorted((n for n, s in shares.items() if s.owns > 0.001), key=lambda n: -shares[n].owns)
        verdicts, raised = [], config
        for name in order:
            raised = raised.with_groups([self.known.group_by_name[name]], Precision.FP32)
            verdicts.append(self.verdict(raised))
        yield m.RaisedMeasured(job, config, tuple(order), tuple(verdicts))

    def _answer_whatif(self, job: int, request: m.WhatIf) -> Iterator[m.Event]:
        yield m.Progress(job, "what-if", SAMPLES, SAMPLES)
        yield m.VerdictMeasured(job, "config", request.config, self.verdict(request.config), True)
        if request.shares:
            yield from self._measure_shares(job, "config", request.config)

    def _answer_trywaysout(self, job: int, request: m.TryWaysOut) -> Iterator[m.Event]:
        group = self.known.group_by_name[request.group]
        options = []
        for key, precision in (("=", Precision.FP16), ("space", Precision.FP32)):
            config = request.config.with_groups([group], precision)
            if config != request.config:
                options.append(m.WayOut(key, precision.label, config, self.verdict(config)))
        yield m.WaysOutMeasured(job, request.group, request.config, tuple(options))

    def _answer_stats(self, job: int, request: m.Stats) -> Iterator[m.Event]:
        yield m.StatsMeasured(job, request.group, self.stats_of(self.known.group_by_name[request.group]))

    def _answer_export(self, job: int, request: m.Export | m.WriteText) -> Iterator[m.Event]:
        yield m.Exported(job, (request.path,))

    _answer_writetext = _answer_export

    def _answer_build(self, job: int, request: m.Build) -> Iterator[m.Event]:
        verdict = self.verdict(request.config, offset=-self.worse_db)
        builder = self.known_builder
        if builder is None:
            yield m.Built(job, request.config,
                          EngineResult(verdict, "ONNX Runtime", (4.21, 4.05, 4.9), 23_000_000, 1.9,
                                       "FP16 is computed in FP32 on the CPU provider"))
            return
        backend = f"TensorRT {builder.version}"
        if not builder.runs:
            yield m.Built(job, request.config, EngineResult(
                None, backend, None, 23_000_000, 1.9, "built for compute capability 8.9; it cannot run on this machine",
                origin="cold"))
            return
        fp32 = PrecisionConfig.uniform(Precision.FP32)
        yield m.Fp32EngineJudged(job, EngineResult(
            self.fp32_verdict(), backend, (3.7, 3.66, 3.81), 88_000_000, 41.0, "batch 8",
            builder.device, 8_400_000, self.report(fp32), origin="cold"))
        report = self.report(request.config)
        median = sum(layer.ms for layer in report.layers)
        yield m.Built(job, request.config, EngineResult(
            verdict, backend, (median, 0.97 * median, 1.1 * median), 23_000_000, 5.1 if request.quick else 26.3,
            "batch 8", builder.device, 12_600_000, report, report.made(self.known),
            "cold" if request.quick else "timing cache", request.quick))

    def fp32_verdict(self) -> Verdict:
        errors = Errors(self.check_db, cosine=1.0)
        return Verdict({self.known.outputs[0].name: OutputErrors(errors, 3, self.check_db - 2)},
                       {"f1": 0.873} if self.has_metric else {}, None if self.has_metric else 1.0, SAMPLES, SAMPLES)

    def report(self, config: PrecisionConfig) -> EngineReport:
        """An engine layer for each group; each Softmax forms a fused region with its neighbours; Q/DQ and reformats."""
        groups = self.known.groups
        cores = [i for i, group in enumerate(groups) if group.operator == "Softmax"]
        inside = {i: core for core in cores for i in (core - 1, core, core + 1)}
        layers: list[EngineLayer] = []
        for index, group in enumerate(groups):
            macs = sum(self.known.layer_by_name[name].macs or 0 for name in group.layers)
            if inside.get(index) == index:
                nodes = tuple(name for near in groups[index - 1:index + 2] for name in near.layers)
                layers.append(EngineLayer(f"{{ForeignNode[{nodes[0]}...{nodes[-1]}]}}", "Myelin", COMPUTE, None, nodes,
                                          True, ms=0.021))
            elif index not in inside:
                precision = self.otherwise.get(group.name, config.precision_of(group))
                time = (0.004 + macs * 2e-7) * (0.5 if precision is Precision.INT8 else 1)
                layers.append(EngineLayer(" + ".join(group.layers), "gemm" if group.quantizable else "kgen", COMPUTE,
                                          precision, group.layers, ms=time))
        first = next(layer for layer in layers if layer.type == "gemm")
        layers.append(EngineLayer(f"Reformatting CopyNode for Input Tensor 0 to {first.name}", "Reformat", REFORMAT,
                                  None, ms=0.003))
        layers.append(EngineLayer(f"{first.nodes[0]}__q", "Scale", QDQ, None, ms=0.002))
        return EngineReport(tuple(layers))
