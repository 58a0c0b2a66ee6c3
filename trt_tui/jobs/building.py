"""Building a config's typed network with a backend, and judging what came out by its own outputs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from trt_tui.core.analysis import Analysis
from trt_tui.core.comparison import EngineResult
from trt_tui.core.exporters.onnx import export_typed
from trt_tui.core.lowering.typed import lower_typed
from trt_tui.core.network import Network
from trt_tui.core.precision import Precision, PrecisionConfig
from trt_tui.core.runner import Runner
from trt_tui.errors import InputError

WARM_UPS = 3
TIMED_RUNS = 50
TIMED_SECONDS = 10.0
"""Timing ends after `TIMED_RUNS` runs or this long, with at least 5 runs."""


def build_and_judge(analysis: Analysis, config: PrecisionConfig, ranges: Mapping[str, float],
                    feeds: Sequence[int]) -> Iterator[tuple[str, int, int] | EngineResult]:
    """Yields progress as (phase, done, total), and the `EngineResult` last.

    An engine is judged at its outputs: judged tensors inside the network are left to the simulation.

    Raises:
        InputError: the typed network is refused.
    """
    network, backend, samples = analysis.network, analysis.backend, analysis.samples
    used = set(config.assignment(network).values())
    if Precision.BF16 in used | {config.other} and not backend.capabilities.real_fp16:
        raise InputError("this config asks for BF16", "ONNX Runtime's CPU provider has no BF16 Conv or MatMul",
                         "Export the typed network and build it with TensorRT; the what-if simulates BF16 meanwhile.")
    yield ("lowering", 0, 0)
    since = time.perf_counter()
    typed = lower_typed(network, config, ranges)
    size = typed_bytes(typed.model)
    yield ("building with ONNX Runtime", 0, 0)
    with backend.load(typed.model) as runner:
        build_s = time.perf_counter() - since
        names = [info.name for info in network.outputs]
        tally = analysis.tally(feeds, [one for one in analysis.judged if one.tensor in names])
        for done, index in enumerate(feeds, 1):
            tally.add(index, runner.run(samples.feed(index), names))
            yield ("judging the build", done, len(feeds))
        latency = None
        for latency in _timed(runner, samples.feed(feeds[0])):
            yield ("timing", latency[3], TIMED_RUNS)
    note = f"typed ONNX run by ONNX Runtime, batch {samples.rows(feeds[0])}"
    if not backend.capabilities.real_fp16 and (Precision.FP16 in used | {config.other}):
        note += "; FP16 is computed in FP32 here, so its loss is the simulation's"
    times = latency[:3] if latency else None
    yield EngineResult(tally.verdict(), f"ONNX Runtime {backend.version}", times, size, build_s, note)


def _timed(runner: Runner, feed: Mapping) -> Iterator[tuple[float, float, float, int]]:
    """Yields (median, minimum, maximum, runs) in milliseconds."""
    for _ in range(WARM_UPS):
        runner.run(feed)
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < TIMED_RUNS and (len(times) < 5 or time.perf_counter() - start < TIMED_SECONDS):
        before = time.perf_counter()
        runner.run(feed)
        times.append((time.perf_counter() - before) * 1e3)
        yield (statistics.median(times), min(times), max(times), len(times))


def write_typed(network: Network, config: PrecisionConfig, ranges: Mapping[str, float],
                path: Path) -> tuple[Path, list[str]]:
    """Writes the typed network; returns its path and what to tell the user.

    Raises:
        InputError: a range is missing, or the file cannot be written.
    """
    typed = lower_typed(network, config, ranges)
    written = export_typed(typed.model, network, path)
    counts: dict[str, int] = {}
    for precision in config.assignment(network).values():
        counts[precision.label] = counts.get(precision.label, 0) + 1
    lines = [", ".join(f"{count} groups in {label}" for label, count in sorted(counts.items())), *typed.notes]
    return written.path, lines


def typed_bytes(model: ir.Model) -> int:
    """Size in bytes of the typed network's weights and graph, as a file would hold it."""
    weights = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)
    return weights + 64 * len(model.graph)
