"""From a toggle to the new output error, in plain FP32 runs of the same samples.

    python -m tests.benchmarks.whatif [bert6] [resnet50] [--rounds N]

A pass gives the next group another precision, runs the loaded graph over 4 batches of 8, in pieces as the app does, and
takes the output's error against the FP32 outputs. Gates are all FP32 or all INT8 but for that group.
"""

import itertools

from tests.benchmarks import prepared

CONFIGS = {"FP32": prepared.FP32, "INT8, others FP32": prepared.INT8, "FP16": prepared.FP16,
           "INT8, others FP16": prepared.INT8_FP16}


def toggle(name: str, folder: str, label: str):
    """A pass toggles one group."""
    import onnxruntime

    from trt_tui.backends.onnxruntime import OnnxRuntimeBackend
    from trt_tui.core.lowering.gated.lower import lower_gated
    from trt_tui.core.measure.metrics import Sums
    from trt_tui.core.measure.piecewise import Piecewise
    from trt_tui.core.precision import Precision

    config = CONFIGS[label]
    other = Precision.FP16 if "FP16" in label else Precision.FP32
    network, ranges = prepared.opened(folder)
    gated = lower_gated(network, others=(other,))
    runner = Piecewise.load(OnnxRuntimeBackend("cpu"), gated)
    feeds = prepared.batches(name)
    fp32 = gated.feeds(prepared.FP32, ranges)
    outputs = list(gated.outputs.values())
    reference = [runner.run({**feed, **fp32}, outputs) for feed in feeds]
    del fp32
    groups = itertools.cycle(group for group in network.groups if group.quantizable)
    raised = Precision.INT8 if label == "FP32" else Precision.FP32
    sessions, make = [], onnxruntime.InferenceSession
    onnxruntime.InferenceSession = lambda *rest, **named: sessions.append(1) or make(*rest, **named)

    def run() -> str:
        gates = gated.feeds(config.with_groups([next(groups)], raised), ranges)
        sums = {output: Sums() for output in outputs}
        for feed, expected in zip(feeds, reference, strict=True):
            for output, array in runner.run({**feed, **gates}, outputs).items():
                sums[output].add(expected[output], array)
        worst = min(one.errors().sqnr_db for one in sums.values())
        return f"{worst:.1f} dB, {len(sessions)} sessions"

    return run


if __name__ == "__main__":
    prepared.main(__doc__, 7, "tests.benchmarks.whatif", "toggle", CONFIGS)
