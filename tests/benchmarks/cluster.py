"""Sweeps and engine builds on 1, 2, 4 ... workers of a local cluster: seconds, bytes that moved, and whether equal.

    python -m tests.benchmarks.cluster NETWORK.onnx DATA.npz [--gpus 1,2] [--cores 1x16,4x4] [--samples 64]
        [--builds 4] [--no-sweep] [--backend tensorrt-rtx --compute-capability 8.9]
        [--optimization-level 0] [--tactic-sources=+A,-B]

A sweep is the exact share of every group in INT8 among FP16, workers warm: the time behind a first one of few groups.
Builds are of so many configs, each without a cache of engines or timings, in workers that have built before; beside
them stands the time of one. ``4x2`` is 4 workers of 2 threads. Prints a line of JSON for each number of workers, with
what it took beside the first of them.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterator
from typing import Any

from trt_tui.backends.registry import get_engine_builder
from trt_tui.cluster.cluster import ClusterSpec, ClusterWorkerPool
from trt_tui.core.builder_options import BuilderOptions
from trt_tui.core.calibration.calibration import calibrate
from trt_tui.core.measure.group_sweep import GroupSweep, GroupSweepState
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.core.runner import Executor
from trt_tui.errors import TrtTuiError
from trt_tui.jobs.engine import BuildOutput, BuildTask, ConfigBuild
from trt_tui.jobs.scheduler import WaitStep
from trt_tui.options import Options
from trt_tui.workspace import Workspace

INT8 = PrecisionConfig.from_precision(Precision.INT8, Precision.FP16)
START_S = 120.0


class Cold(BuildTask):
    """Builds that find no engine and no timing of another."""

    def run_item(
        self, context: Workspace, item: ConfigBuild
    ) -> Generator[WaitStep | None, None, BuildOutput | TrtTuiError]:
        """See `BuildTask`."""
        with tempfile.TemporaryDirectory() as cache:
            os.environ["XDG_CACHE_HOME"] = cache
            return (yield from super().run_item(context, item))


def hirings(gpus: str, cores: str) -> Iterator[tuple[str, ClusterSpec]]:
    """Who is asked, with a name."""
    for number in filter(None, gpus.split(",")):
        yield f"{number} GPU", ClusterSpec(gpus=tuple(map(str, range(int(number)))), workers=int(number))
    for text in filter(None, cores.split(",")):
        workers, threads = map(int, text.split("x"))
        yield f"{workers} x {threads} threads", ClusterSpec(workers=workers, threads=threads)


class Bench:
    """A workspace, and a cluster that has it open too."""

    def __init__(self, workspace: Workspace, hiring: ClusterSpec) -> None:
        self.workspace, self.woken = workspace, threading.Event()
        since = time.perf_counter()
        self.hired = ClusterWorkerPool(hiring)
        self.hired.open_workspace_on_workers(workspace)
        while self.hired.count_workers() < hiring.workers:
            assert time.perf_counter() - since < START_S, [*self.hired.take_new_messages()]
            time.sleep(0.02)
        self.start_s = time.perf_counter() - since

    def hands(self, engines: bool = False) -> Executor[Workspace]:
        """They, with what wakes us."""
        return self.hired.make_executor(self.workspace, self.woken.set, engines)

    def taken(self, hands: Executor[Workspace], steps: Any) -> Iterator[Any]:
        """Takes steps to their end, and yields them."""
        for step in steps:
            yield step
            while not hands.is_ready():
                self.woken.wait(60)
                self.woken.clear()

    def swept(self, ranges: dict[str, float], order: list[str] | None = None) -> tuple[float, GroupSweepState]:
        """A sweep over some groups, all by default."""
        hands, since = self.hands(), time.perf_counter()
        sweep = GroupSweep(
            self.workspace.analysis,
            INT8,
            ranges,
            group_order=order,
            feed_indices=self.workspace.feeds,
            measures_all_samples=True,
            executor=hands,
        )
        _ = [*self.taken(hands, sweep.measure_groups())]
        return time.perf_counter() - since, sweep.state

    def built(self, ranges: dict[str, float], configs: list[PrecisionConfig]) -> float:
        """Seconds of builds of some configs, each judged."""
        from tests.benchmarks import cluster  # as workers import it

        hands, since = self.hands(engines=True), time.perf_counter()
        building = cluster.Cold(ranges, dict.fromkeys(configs, self.workspace.feeds))
        for made in self.taken(hands, hands.map(building, [(config, 0) for config in configs])):
            if made is not None:
                assert isinstance(made[1], BuildOutput), made[1]
                print(
                    f"# {made[1].result.build_s or 0:.1f} s, {made[1].result.engine_bytes} bytes",
                    file=sys.stderr,
                    flush=True,
                )
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
    parser.add_argument("--optimization-level", type=int)
    parser.add_argument("--tactic-sources", default="")
    parser.add_argument("--no-sweep", action="store_true")
    arguments = parser.parse_args()
    capability = tuple(map(int, arguments.compute_capability.split("."))) if arguments.compute_capability else None
    production = BuilderOptions(
        optimization_level=arguments.optimization_level,
        tactic_sources=tuple(filter(None, arguments.tactic_sources.split(","))),
    )
    workspace = Workspace(
        Options(
            arguments.model,
            data=arguments.data,
            batch=arguments.batch,
            whatif_samples=arguments.samples,
            backend=arguments.backend,
            compute_capability=capability,
            production=production,
        )
    )
    workspace.set_fingerprint(workspace.network.sha256())
    workspace.builder = get_engine_builder(arguments.backend)
    network = workspace.network
    ranges = calibrate(
        network.model, network.calibrated_tensors, workspace.calibration_samples, workspace.backend
    ).ranges
    groups = [group.name for group in network.groups]
    first: dict[str, Any] = {}
    for name, hiring in hirings(arguments.gpus, arguments.cores):
        bench = Bench(workspace, hiring)
        line: dict[str, Any] = {
            "network": network.name,
            "workers": name,
            "provider": workspace.backend.provider,
            "samples": workspace.judged_sample_count,
            "groups": len(groups),
            "start s": round(bench.start_s, 2),
        }
        moved = bench.hired.transfer_counts
        if not arguments.no_sweep:
            bench.swept(ranges, groups[: 2 * hiring.workers])
            moved["items"] = moved["results"] = 0
            sweep_s, swept = bench.swept(ranges)
            first.setdefault("swept", (sweep_s, swept))
            line |= {
                "sweep s": round(sweep_s, 2),
                "times as fast": round(first["swept"][0] / sweep_s, 2),
                "equal": swept == first["swept"][1],
            }
        if arguments.builds:
            line["builder"] = workspace.builder.version
            made = [
                base.with_group_precision(network.groups[:count], Precision.FP32)
                for base in (PrecisionConfig.from_precision(Precision.FP16), INT8)
                for count in range(max(hiring.workers, arguments.builds))
            ]
            half = len(made) // 2
            warm_s = bench.built(ranges, made[: hiring.workers])
            one_s = bench.built(ranges, made[half : half + 1])
            build_s = bench.built(ranges, made[half : half + arguments.builds])
            first.setdefault("built", (one_s, build_s))
            line |= {
                "builds": arguments.builds,
                "first build s": round(warm_s, 2),
                "one build s": round(one_s, 2),
                "builds s": round(build_s, 2),
                "builds, times one": round(build_s / first["built"][0], 2),
                "builds, times as fast": round(first["built"][1] / build_s, 2),
            }
        line["moved"] = dict(moved)
        bench.hired.close()
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
