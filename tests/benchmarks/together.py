"""The candidates of one step of a search, each group in turn in another precision, evaluated in several ways.

    python -m tests.benchmarks.together [bert6] [resnet50] [MODEL.onnx=DATA.npz ...] [--every N] [--rounds N]

Ways, each in processor time of one thread and in elapsed time, the medians of the rounds:

- one after the other: the whole gated graph for each candidate;
- in pieces: what candidates have in common before the first group that differs is computed once, as the program does;
- two stacked: a bound. Candidates beside each other along the batch cannot cost less than as many samples in one batch;
  that each has weights of its own comes on top. Told is what the plain network takes for two batches as one.
- two at a time: two runs of one session at once, one thread each; its processor time is that of both.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from tests.benchmarks import measure, networks, prepared
from trt_tui.backends.onnxruntime import OnnxRuntimeBackend
from trt_tui.core.calibration.calibration import calibrate
from trt_tui.core.data.samples import Samples, load_samples
from trt_tui.core.lowering.gated.assembly import build_gated_graph
from trt_tui.core.measure.piecewise_runner import PiecewiseRunner
from trt_tui.core.network.network import Network, open_network
from trt_tui.core.precision import Precision

FEEDS = 2


def opened(text: str, directory: Path, folder: Path) -> tuple[Network, Samples]:
    """A network and its data; `FEEDS` batches of 8 where the batch is open."""
    model, _, data = text.partition("=")
    if not data:
        model = str(prepared.model_path(text, directory))
        data = str(networks.save_batches(prepared.batches(text), folder / f"{text}.npz"))
    network = open_network(Path(model))
    fixed = any(isinstance(info.shape[0], int) for info in network.inputs if info.shape)
    return network, load_samples(data, network.inputs, batch=None if fixed else 8, limit=8 * FEEDS)


def ways(network: Network, samples: Samples, other: Precision, every: int) -> dict[str, Callable[[], float]]:
    """What takes one step in each way, by name; each returns by how much it is to be multiplied."""
    backend = OnnxRuntimeBackend("cpu", threads=1)
    ranges = calibrate(network.model, network.calibrated_tensors, samples, backend).ranges
    gated = build_gated_graph(network, boundary_types=(other,))
    base = prepared.INT8 if other is Precision.FP32 else prepared.INT8_FP16
    groups = [group for group in network.groups if group.is_quantizable][::every]
    outputs, feeds = (
        list(gated.test_outputs.values()),
        [samples.read_feed(index) for index in range(min(FEEDS, len(samples)))],
    )
    held = gated.make_feed(base, ranges)
    whole, pieces = backend.load(gated.model, low_memory=True), PiecewiseRunner.load_in_pieces(backend, gated)
    plain = backend.load(network.model)

    def step(run: Callable[..., object]) -> None:
        for group in groups:
            fed = gated.make_feed(base.with_group_precision([group], other), ranges)
            for feed in feeds:
                run({**held, **feed, **fed}, outputs)

    def alone() -> float:
        step(whole.run)
        return 1.0

    def shared() -> float:
        step(pieces.run)
        return 1.0

    def threads() -> float:
        with ThreadPoolExecutor(2) as pool:
            step(lambda *what: pool.submit(whole.run, *what))
        return 1.0

    def repeated(count: int) -> Callable[[], float]:
        fed = {name: np.concatenate([array] * count) for name, array in feeds[0].items()}

        def run() -> float:
            for _ in range(max(1, len(groups) // 4)):
                plain.run(fed)
            return 1 / count

        return run

    found = {"one after the other": alone, "in pieces": shared, "two at a time": threads}
    if any(not isinstance(info.shape[0], int) for info in network.inputs if info.shape):
        found |= {"plain, 8 samples": repeated(1), "plain, 16 samples (two stacked)": repeated(2)}
    return found


def main() -> None:
    parser = measure.parser(__doc__, prepared.NAMES, rounds=3)
    parser.add_argument("--every", type=int, default=1, help="only every Nth group")
    arguments = parser.parse_args()
    print(measure.machine())
    for name in arguments.networks:
        for other in (Precision.FP32, Precision.FP16):
            with tempfile.TemporaryDirectory() as folder:
                contestants = ways(*opened(name, arguments.directory, Path(folder)), other, arguments.every)
                times: dict[str, list[tuple[float, float]]] = {label: [] for label in contestants}
                for round_ in range(1 + arguments.rounds):
                    for label, run in contestants.items():
                        began, cpu = time.perf_counter(), time.process_time()
                        factor = run()
                        if round_:
                            times[label].append(
                                (factor * (time.process_time() - cpu), factor * (time.perf_counter() - began))
                            )
            print(f"\n### {name}, INT8 among {other.label}\n")
            print(
                measure.table(
                    ["", "processor s", "elapsed s"],
                    [
                        (label, *(statistics.median(column) for column in zip(*taken, strict=True)))
                        for label, taken in times.items()
                    ],
                )
            )


if __name__ == "__main__":
    main()
