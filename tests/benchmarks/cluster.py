"""Sweeps and engine builds on 1, 2, 4 ... workers of a local cluster: seconds, bytes that moved, and whether equal.

    python -m tests.benchmarks.cluster NETWORK.onnx DATA.npz [--gpus 1,2] [--cores 1x16,4x4] [--samples 64] [--builds 4]
                                       [--backend tensorrt-rtx --compute-capability 8.9]

A sweep is the exact share of every group in INT8 among FP16, workers warm: the time behind a first one of few groups.
Builds are of so many configs, without any cache of engines or timings. ``4x2`` is 4 workers of 2 threads. Prints a line
of JSON for each number of workers, with what it took beside the first of them.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from trt_tui.backends.registry import get_builder
from trt_tui.cluster.crew import Hired
from trt_tui.cluster.hiring import Hiring
from trt_tui.core.calibration.calibrate import calibrate
from trt_tui.core.hands import Hands
from trt_tui.core.measure.group_sweep import GroupSweep, Swept
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.jobs.build import Building
from trt_tui.options import Options
from trt_tui.workspace import Workspace

INT8 = PrecisionConfig.uniform(Precision.INT8, Precision.FP16)
START_S = 120.0


def hirings(gpus: str, cores: str) -> Iterator[tuple[str, Hiring]]:
    """Who is asked, with a name."""
    for number in filter(None, gpus.split(",")):
        yield f"{number} GPU", Hiring(gpus=tuple(map(str, range(int(number)))), workers=int(number))
    for text in filter(None, cores.split(",")):
        workers, threads = map(int, text.split("x"))
        yield f"{workers} x {threads} threads", Hiring(workers=workers, threads=threads)


class Bench:
    """A workspace, and a cluster that has it open too."""

    def __init__(self, workspace: Workspace, hiring: Hiring) -> None:
        self.workspace, self.woken = workspace, threading.Event()
        since = time.perf_counter()
        self.hired = Hired(hiring)
        self.hired.share(workspace)
        while self.hired.cluster.able() < hiring.workers:
            assert time.perf_counter() - since < START_S, [*self.hired.told()]
            time.sleep(0.02)
        self.start_s = time.perf_counter() - since

    def hands(self, engines: bool = False) -> Hands[Workspace]:
        """They, with what wakes us."""
        return self.hired.hands(self.workspace, self.woken.set, engines)

    def taken(self, hands: Hands[Workspace], steps: Any) -> None:
        """Takes steps to their end."""
        for _ in steps:
            while not hands.ready():
                self.woken.wait(60)
                self.woken.clear()

    def swept(self, ranges: dict[str, float], order: list[str] | None = None) -> tuple[float, Swept]:
        """A sweep over some groups, all by default."""
        hands, since = self.hands(), time.perf_counter()
        sweep = GroupSweep(self.workspace.analysis, INT8, ranges, order=order, feeds=self.workspace.feeds, exact=True,
                           hands=hands)
        self.taken(hands, sweep.steps())
        return time.perf_counter() - since, sweep.swept

    def built(self, ranges: dict[str, float], configs: list[PrecisionConfig]) -> float:
        """Seconds of builds of some configs, each judged."""
        hands, since = self.hands(engines=True), time.perf_counter()
        self.taken(hands, hands.work(Building(ranges), configs))
        return time.perf_counter() - since


def main() -> None:
    """Measures what is asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--gpus", default="")
    parser.add_argument("--cores", default="")
    parser.add_argument("--samples", type=int, default=0)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--builds", type=int, default=0)
    parser.add_argument("--backend", default="onnxruntime")
    parser.add_argument("--compute-capability", default="")
    arguments = parser.parse_args()
    capability = tuple(map(int, arguments.compute_capability.split("."))) if arguments.compute_capability else None
    workspace = Workspace(Options(arguments.model, data=arguments.data, batch=arguments.batch,
                                  whatif_samples=arguments.samples, backend=arguments.backend,
                                  compute_capability=capability))
    workspace.identify(workspace.network.sha256())
    workspace.builder = get_builder(arguments.backend)
    network = workspace.network
    ranges = calibrate(network.model, network.activations, workspace.calibrating, workspace.backend).ranges
    first: dict[str, Any] = {}
    for name, hiring in hirings(arguments.gpus, arguments.cores):
        with tempfile.TemporaryDirectory() as cache:
            os.environ["XDG_CACHE_HOME"] = cache  # which workers inherit
            bench = Bench(workspace, hiring)
            groups = [group.name for group in network.groups]
            bench.swept(ranges, groups[:2 * hiring.workers])
            moved = bench.hired.cluster.traffic
            moved.errands = moved.items = moved.results = 0
            sweep_s, swept = bench.swept(ranges)
            line = {"network": network.name, "workers": name, "provider": workspace.backend.provider,
                    "samples": workspace.judged_count, "groups": len(swept.groups), "start s": round(bench.start_s, 2),
                    "sweep s": round(sweep_s, 2), "moved": asdict(moved)}
            first.setdefault("swept", (sweep_s, swept))
            line["times as fast"] = round(first["swept"][0] / sweep_s, 2)
            line["equal"] = swept == first["swept"][1]
            if arguments.builds:
                configs = [INT8.with_groups(network.groups[:count], Precision.FP32)
                           for count in range(arguments.builds)]
                build_s = bench.built(ranges, configs)
                first.setdefault("built", build_s)
                line |= {"builds": len(configs), "builds s": round(build_s, 2),
                         "builds, times as fast": round(first["built"] / build_s, 2)}
            bench.hired.close()
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
