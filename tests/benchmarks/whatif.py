"""From a toggle to the new output error, in plain FP32 runs of the same samples.

    python -m tests.benchmarks.whatif [bert6] [resnet50] [--rounds N]

A pass gives one of seven groups, spread evenly over the network, another precision, runs the loaded graph over 4
batches of 8, in pieces as the app does, and takes the output's error against the FP32 outputs. Gates are all FP32 or
all INT8 but for that group.
"""

import itertools

from tests.benchmarks import prepared

SPREAD = 7
"""The number of groups that are toggled."""

CONFIGS = {
    "FP32": prepared.FP32,
    "INT8, others FP32": prepared.INT8,
    "FP16": prepared.FP16,
    "INT8, others FP16": prepared.INT8_FP16,
}


def toggle(name: str, folder: str, label: str):
    """A pass toggles one group."""
    import onnxruntime

    from trt_tui.backends.onnxruntime import OnnxRuntimeBackend
    from trt_tui.core.lowering.gated.assembly import build_gated_graph
    from trt_tui.core.measure.error_metrics import ErrorSums
    from trt_tui.core.measure.piecewise_runner import PiecewiseRunner
    from trt_tui.core.precision import Precision

    config = CONFIGS[label]
    other = Precision.FP16 if "FP16" in label else Precision.FP32
    network, ranges = prepared.opened(folder)
    gated = build_gated_graph(network, boundary_types=(other,))
    runner = PiecewiseRunner.load_in_pieces(OnnxRuntimeBackend("cpu"), gated)
    feeds = prepared.batches(name)
    fp32 = gated.make_feed(prepared.FP32, ranges)
    outputs = list(gated.test_outputs.values())
    reference = [runner.run({**feed, **fp32}, outputs) for feed in feeds]
    del fp32
    quantizable = [group for group in network.groups if group.is_quantizable]
    groups = itertools.cycle(quantizable[index * len(quantizable) // SPREAD] for index in range(SPREAD))
    raised = Precision.INT8 if label == "FP32" else Precision.FP32
    sessions, make = [], onnxruntime.InferenceSession
    onnxruntime.InferenceSession = lambda *rest, **named: sessions.append(1) or make(*rest, **named)

    def run() -> str:
        gates = gated.make_feed(config.with_group_precision([next(groups)], raised), ranges)
        sums = {output: ErrorSums() for output in outputs}
        for feed, expected in zip(feeds, reference, strict=True):
            for output, array in runner.run({**feed, **gates}, outputs).items():
                sums[output].add_tensor_pair(expected[output], array)
        worst = min(one.compute_error_metrics().sqnr_db for one in sums.values())
        return f"{worst:.1f} dB, {len(sessions)} sessions"

    return run


if __name__ == "__main__":
    prepared.main(__doc__, 7, "tests.benchmarks.whatif", "toggle", CONFIGS)
