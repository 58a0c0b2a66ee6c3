"""Engines on a GPU: the FP32 engine, cold and warm builds, latency, actual precisions, simulated against real error.

    python -m tests.benchmarks.engines NAME=MODEL.onnx=DATA.npz ... [--out FOLDER] [--budget S] [--configs N]
        [--tactic-sources=-CUBLAS,-CUDNN] [--level L] [--batch B] [--part I/N] [--times]
    python -m tests.benchmarks.engines --summary FOLDER/engines.jsonl ...

``demo`` alone stands for the bundled network. Every fourth batch calibrates, the rest judges; the labelled ones of the
bundled network are its own. Rows go to FOLDER/engines.jsonl as they come, so that an interrupted run loses nothing.
With ``--times`` one config is built cold, with the timing cache it leaves, and taken from the engine cache.
"""

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from tests.driven import run_to_end
from tests.measuring import measure_shares
from trt_tui import demo
from trt_tui.backends.onnxruntime import OnnxRuntimeBackend
from trt_tui.backends.tensorrt import TensorRTBackend
from trt_tui.core.builder_options import BuilderOptions
from trt_tui.core.calibration.calibration import calibrate
from trt_tui.core.data.samples import load_samples, split_samples
from trt_tui.core.engines.group_implementations import has_unrequested_precision
from trt_tui.core.measure.engine_agreement import engine_sqnr_gap_db
from trt_tui.core.measure.judged_outputs import select_judged_outputs
from trt_tui.core.measure.results import Accuracy, EngineResult
from trt_tui.core.measure.simulation import Analysis
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import Network, open_network
from trt_tui.core.precision import Precision
from trt_tui.core.runner import BuildSettings
from trt_tui.errors import TrtTuiError
from trt_tui.jobs.engine_build import EngineBuilder, build_and_measure_engine
from trt_tui.jobs.scheduler import Reporter
from trt_tui.jobs.store import EngineCache
from trt_tui.workspace import BuildPlan

FP32 = PrecisionConfig.from_precision(Precision.FP32)
FP16 = PrecisionConfig.from_precision(Precision.FP16)


class Case:
    """One network with its data, ranges and simulation."""

    def __init__(self, text: str, batch: int | None) -> None:
        self.name, _, rest = text.partition("=")
        model, _, data = rest.partition("=")
        simulation = OnnxRuntimeBackend("cpu")
        bundled = not model
        self.network = open_network(demo.network_path() if bundled else model)
        samples = load_samples(demo.samples_path() if bundled else data, self.network.inputs, batch=batch, limit=40)
        calibration = load_samples(demo.calibration_path(), self.network.inputs, batch=batch) if bundled else None
        sets = split_samples(samples, calibration)
        self.ranges = calibrate(
            self.network.model, self.network.calibrated_tensors, sets.calibration_samples, simulation
        ).ranges
        self.feeds = list(range(len(sets.other_samples)))
        self.judged = select_judged_outputs(self.network, ())
        self.samples, self.simulation = sets.other_samples, simulation
        self._analyses: dict[Precision, Analysis] = {}

    def analysis(self, config: PrecisionConfig) -> Analysis:
        other = config.other if config.quantized is Precision.INT8 else Precision.FP16
        if other not in self._analyses:
            self._analyses[other] = Analysis(
                self.network, self.simulation, self.samples, self.judged, boundary_type=other
            )
        return self._analyses[other]

    def simulated(self, config: PrecisionConfig) -> Accuracy:
        verdict = Accuracy({})
        for partial in self.analysis(config).measure_accuracy(config, self.ranges, self.feeds):
            verdict = partial.value
        return verdict

    def ranking(self, config: PrecisionConfig) -> list[str]:
        """Groups by what they own of the config's error on two batches, most first."""
        shares = measure_shares(self.analysis(config), config, self.ranges, feeds=self.feeds[:2])
        return sorted(shares, key=lambda name: -shares[name].fraction)


def configs(case: Case, count: int, other: str) -> Iterator[tuple[str, PrecisionConfig]]:
    """FP16, all INT8, worst layers returned, prefixes and suffixes, random sets: named, the first ``count`` of them."""
    network: Network = case.network
    base = PrecisionConfig.from_precision(Precision.INT8, Precision.FP16 if other == "fp16" else Precision.FP32)
    plain = PrecisionConfig.from_precision(Precision.INT8, Precision.FP32)
    quantizable = [group for group in network.groups if group.is_quantizable]
    worst = [network.get_group(name) for name in case.ranking(base) if network.get_group(name).is_quantizable]
    half = len(quantizable) // 2
    rng = np.random.default_rng(0)

    def drawn(share: float) -> list:
        return [group for group in quantizable if rng.random() < share]

    def raised(groups, start=base, to=Precision.FP32) -> PrecisionConfig:
        return start.with_group_precision(groups, to)

    quarter = max(3, len(worst) // 4)
    made = [
        ("FP16", FP16),
        ("INT8", base),
        ("worst 2 in FP32", raised(worst[:2])),
        ("worst quarter in FP32", raised(worst[:quarter])),
        ("first half in FP32", raised(quantizable[:half])),
        ("random half in FP32", raised(drawn(0.5))),
        ("last half in FP32", raised(quantizable[half:])),
        ("INT8, others FP32", plain),
        ("worst half in FP32", raised(worst[:half])),
        ("random quarter in FP32", raised(drawn(0.25))),
        ("random three quarters in FP32", raised(drawn(0.75))),
        ("worst quarter, others FP32", raised(worst[:quarter], plain)),
    ]
    made = list({config: (label, config) for label, config in reversed(made)}.values())[::-1]
    yield from itertools.islice(made, count)


def built(
    case: Case,
    backend: TensorRTBackend,
    config: PrecisionConfig,
    plan: BuildPlan,
    cache: EngineCache | None,
    log: list[str],
) -> EngineResult:
    analysis = case.analysis(config)
    workspace = SimpleNamespace(network=analysis.network, analysis=analysis, builder=backend, ranges=case.ranges)
    builder = EngineBuilder(workspace, cache, Reporter())
    try:
        return run_to_end(build_and_measure_engine(builder, config, case.feeds, plan))
    finally:
        log += [f"{level}: {text}" for level, text in builder.printed if level != "info"]


def decibel(verdict: Accuracy | None) -> float | None:
    worst = verdict.worst_output if verdict is not None else None
    return worst[1].errors.sqnr_db if worst is not None else None


def measure(case: Case, backend: TensorRTBackend, arguments: argparse.Namespace, out: Path, deadline: float) -> list:
    cache = EngineCache(out / "cache" / "engines")
    sources = tuple(arguments.tactic_sources.split(",")) if arguments.tactic_sources else ()
    settings = BuildSettings(builder_options=BuilderOptions(tactic_sources=sources, optimization_level=arguments.level))
    rows = []
    part, parts = map(int, arguments.part.split("/"))
    chosen = [("FP32", FP32, False)]
    chosen += [(label, one, False) for label, one in configs(case, arguments.configs, arguments.other)]
    if backend.capabilities.weakly_typed:
        chosen += [
            (f"{label}, weak", config, True)
            for label, config, _ in chosen
            if label in ("INT8", "worst quarter in FP32")
        ]
    for label, config, weak in chosen[part::parts]:
        if time.monotonic() > deadline:
            print(f"{case.name}: out of time before {label}", flush=True)
            break
        log: list[str] = []
        row = {"network": case.name, "config": label, "weak": weak}
        try:
            simulated = case.simulated(config)
            result = built(case, backend, config, BuildPlan(settings, weakly_typed=weak, strict=True), cache, log)
        except TrtTuiError as error:
            row |= {"error": error.title, "cause": error.cause[:2000], "log": log[-5:]}
        else:
            worse = [
                group.name
                for group in case.network.groups
                if has_unrequested_precision(group, config, result.implementations)
            ]
            row |= {
                "simulated": decibel(simulated),
                "engine": decibel(result.accuracy),
                "gap": engine_sqnr_gap_db(simulated, result.accuracy),
                "bad": result.accuracy.nonfinite_count,
                "ms": result.latency_ms,
                "mb": result.engine_bytes / 1e6,
                "build_s": result.build_s,
                "origin": result.build_origin,
                "device_memory": result.device_memory_bytes,
                "computed_in": result.engine_report.precision_shares() if result.engine_report else None,
                "made": len(result.implementations),
                "regions": sum(made.in_fused_region for made in result.implementations.values()),
                "known": sum(made.precision is not None for made in result.implementations.values()),
                "groups": len(case.network.groups),
                "not_as_asked": worse[:20],
                "log": log[-5:],
            }
        rows.append(row)
        print(json.dumps(row), flush=True)
        with open(out / "engines.jsonl", "a") as stream:
            stream.write(json.dumps(row) + "\n")
    if arguments.times:
        rows.append(times(case, backend, settings, out))
    return rows


def times(case: Case, backend: TensorRTBackend, settings: BuildSettings, out: Path) -> dict:
    """Seconds of one config's build: cold, with the timing cache of that build, and from the engine cache."""
    config = PrecisionConfig.from_precision(Precision.INT8, Precision.FP16)
    row = {"network": case.name, "config": "times"}
    with tempfile.TemporaryDirectory() as folder:
        cache = EngineCache(Path(folder) / "engines")
        for label in ("cold", "timing cache", "engine cache"):
            start = time.perf_counter()
            result = built(case, backend, config, BuildPlan(settings, strict=True), cache, [])
            row[label] = {
                "build_s": result.build_s,
                "origin": result.build_origin,
                "whole_s": time.perf_counter() - start,
            }
            if label == "cold":
                for file in cache.folder.glob("*/*"):
                    file.unlink()
    print(json.dumps(row), flush=True)
    with open(out / "engines.jsonl", "a") as stream:
        stream.write(json.dumps(row) + "\n")
    return row


def ranks(values: list[float]) -> np.ndarray:
    order = np.argsort(np.argsort(values))
    return order.astype(float)


def summary(rows: list[dict]) -> str:
    """Spearman's correlation of simulated with engine error, and the median absolute difference, by network."""
    lines = ["", "| network | configs | Spearman | median gap dB | largest gap dB |", "| --- | --- | --- | --- | --- |"]
    for name in dict.fromkeys(row["network"] for row in rows):
        pairs = [
            (row["simulated"], row["engine"])
            for row in rows
            if row["network"] == name
            and not row.get("weak")
            and row["config"] != "FP32"
            and row.get("engine") is not None
            and row.get("simulated") is not None
        ]
        if len(pairs) < 2:
            continue
        simulated, engine = map(list, zip(*pairs, strict=True))
        rho = float(np.corrcoef(ranks(simulated), ranks(engine))[0, 1])
        gaps = np.abs(np.subtract(simulated, engine))
        lines.append(f"| {name} | {len(pairs)} | {rho:.3f} | {np.median(gaps):.2f} | {gaps.max():.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*")
    parser.add_argument("--summary", nargs="+", type=Path, default=())
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "trt-tui-engines")
    parser.add_argument("--budget", type=float, default=1e9)
    parser.add_argument("--configs", type=int, default=12)
    parser.add_argument("--tactic-sources")
    parser.add_argument("--level", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--other", default="fp16", choices=["fp16", "fp32"], help="what surrounds INT8 layers")
    parser.add_argument("--part", default="0/1", metavar="I/N", help="every Nth config, from the Ith on")
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--backend", default="tensorrt")
    arguments = parser.parse_args()
    if arguments.summary:
        print(summary([json.loads(line) for path in arguments.summary for line in path.read_text().splitlines()]))
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    backend = TensorRTBackend(arguments.backend)
    print(f"{backend.name} {backend.version} on {backend.device}", flush=True)
    deadline = time.monotonic() + arguments.budget
    rows = []
    for text in arguments.networks:
        start = time.monotonic()
        case = Case(text, arguments.batch)
        print(f"{case.name}: opened and calibrated in {time.monotonic() - start:.1f} s", flush=True)
        rows += measure(case, backend, arguments, arguments.out, deadline)
    print(summary(rows))


if __name__ == "__main__":
    main()
