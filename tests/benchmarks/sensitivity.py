"""The impact of one group at the judged outputs, in plain FP32 runs of the same samples.

    python -m tests.benchmarks.sensitivity [bert6] [resnet50] [--rounds N]

A pass measures the next group of an all-INT8 config over 4 batches of 8 on one loaded session: only this group lowered,
or only this one raised.
"""

import itertools
from pathlib import Path

from tests.benchmarks import prepared

WAYS = {
    "only this, others FP32": (prepared.INT8, True),
    "all but this, others FP32": (prepared.INT8, False),
    "only this, others FP16": (prepared.INT8_FP16, True),
}


def impact(name: str, folder: str, label: str):
    """A pass measures one group."""
    from trt_tui.backends.onnxruntime import OnnxRuntimeBackend
    from trt_tui.core.data.samples import load_samples
    from trt_tui.core.measure.group_sweep import GroupSweep
    from trt_tui.core.measure.judged_outputs import select_judged_outputs
    from trt_tui.core.measure.simulation import Analysis

    config, lowered = WAYS[label]
    network, ranges = prepared.opened(folder)
    samples = load_samples(str(Path(folder) / "data.npz"), network.inputs, batch=8)
    outputs = select_judged_outputs(network, ("last_hidden_state",) if name == "bert6" else ())
    analysis = Analysis(network, OnnxRuntimeBackend("cpu"), samples, outputs, boundary_type=config.other)
    order = [group.name for group in network.groups if group.is_quantizable]

    def measured():
        for _ in itertools.count():
            sweep = GroupSweep(
                analysis, config, ranges, group_order=order, reduces_groups=lowered, measures_all_samples=True
            )
            for _ in sweep.measure_groups():
                for group in sweep.updated_groups:
                    yield group, sweep.estimate_error_share(group)
                sweep.updated_groups.clear()

    groups = measured()

    def run() -> str:
        group, one = next(groups)
        return f"{group}: {one.fraction:.3g}"

    return run


if __name__ == "__main__":
    prepared.main(__doc__, 9, "tests.benchmarks.sensitivity", "impact", WAYS)
