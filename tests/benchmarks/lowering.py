"""Lowering a network of 2,000 nodes: seconds, and memory beside the size of the weights.

python -m tests.benchmarks.lowering [--nodes 2000] [--rounds N]
"""

import argparse
import tempfile
from pathlib import Path

import onnx

from tests import networks
from tests.benchmarks import measure
from tests.benchmarks.measure import Contestant

MODULE = "tests.benchmarks.lowering"


def lower(path: str, kind: str):
    """A pass lowers the opened network; it says by how many bytes memory grew."""
    import psutil

    from trt_tui.core.lowering.gated.assembly import build_gated_graph
    from trt_tui.core.lowering.typed_network import lower_to_typed_network
    from trt_tui.core.moves.config import PrecisionConfig
    from trt_tui.core.network.network import open_network
    from trt_tui.core.precision import Precision

    network = open_network(path)
    ranges = dict.fromkeys(network.calibrated_tensors, 4.0)
    lowerings = {
        "typed INT8 in FP16": lambda: lower_to_typed_network(
            network, PrecisionConfig.from_precision(Precision.INT8), ranges
        ),
        "typed INT8 in FP32": lambda: lower_to_typed_network(
            network, PrecisionConfig.from_precision(Precision.INT8, other_precision=Precision.FP32), ranges
        ),
        "typed FP16": lambda: lower_to_typed_network(network, PrecisionConfig.from_precision(Precision.FP16), ranges),
        "gated": lambda: build_gated_graph(network),
        "gated with all sums": lambda: build_gated_graph(network, with_reference=True, with_isolated=True),
    }
    kept = []

    def run() -> int:
        before = psutil.Process().memory_info().rss
        kept.append(lowerings[kind]())
        grown = psutil.Process().memory_info().rss - before
        kept.clear()
        return grown

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print(measure.machine())
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        model = networks.many_layers(arguments.nodes)
        weights = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
        onnx.save(model, path)
        for kind in ("typed INT8 in FP16", "typed INT8 in FP32", "typed FP16", "gated", "gated with all sums"):
            # The first pass counts: later ones find converted opsets and weights' ranges already made.
            one = measure.compete([Contestant(kind, MODULE, "lower", (str(path), kind))], arguments.rounds, False)[kind]
            rows.append((kind, one.seconds[0], one.median_s, round(one.said / 1e6), round(one.peak_mb)))
    print(f"\n{arguments.nodes} nodes, {weights / 1e6:.0f} MB of weights\n")
    print(measure.table(["", "first s", "median s", "grows by MB", "peak MB"], rows))


if __name__ == "__main__":
    main()
