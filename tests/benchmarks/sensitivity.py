"""The impact of one group at the judged outputs, in plain FP32 runs of the same samples.

    python -m tests.benchmarks.sensitivity [bert6] [resnet50] [--rounds N]

A pass measures the next group of an all-INT8 config over 4 batches of 8 on one loaded session: only this group lowered,
or both ways (only-this and all-but-this), which is two runs and is given for each of them.
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

from tests.benchmarks import measure, prepared
from tests.benchmarks.measure import Contestant

MODULE = "tests.benchmarks.sensitivity"
WAYS = {"only this, others FP32": (prepared.INT8, False), "both ways, others FP32": (prepared.INT8, True),
        "only this, others FP16": (prepared.INT8_FP16, False)}


def impact(name: str, folder: str, label: str):
    """A pass measures one group."""
    from trt_tui.backends.onnxruntime import OnnxRuntimeBackend
    from trt_tui.core.analysis import Analysis
    from trt_tui.core.judge import judged_outputs
    from trt_tui.core.samples import load_samples

    config, owns = WAYS[label]
    network, ranges = prepared.opened(folder)
    samples = load_samples(str(Path(folder) / "data.npz"), network.inputs, batch=8)
    outputs = judged_outputs(network, ("last_hidden_state",) if name == "bert6" else ())
    analysis = Analysis(network, OnnxRuntimeBackend("cpu"), samples, outputs, other=config.other)
    order = [group.name for group in network.groups if group.quantizable]

    def measured():
        for _ in itertools.count():
            for partial in analysis.impacts(config, ranges, order=order, few=len(samples), top=0, owns=owns):
                if partial.value:
                    yield partial.value

    groups = measured()

    def run() -> str:
        (group, one), = next(groups).items()
        return f"{group}: {one.energy:.3g}"

    return run


def report(name: str, directory: Path, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        prepared.prepare(name, str(directory), folder)
        results = measure.compete([
            Contestant("plain FP32", "tests.benchmarks.prepared", "plain", (name, folder, "fp32.onnx")),
            *(Contestant(label, MODULE, "impact", (name, folder, label)) for label in WAYS),
        ], rounds)
    plain = results["plain FP32"]
    rows = []
    for label, one in results.items():
        runs = 2 if label in WAYS and WAYS[label][1] else 1
        rows.append((label, one.median_s / runs, one.median_s / runs / plain.median_s, round(one.peak_mb),
                     one.peak_mb / plain.peak_mb))
    print(f"\n### {name}, each run of a group\n")
    print(measure.table(["", "s", "/ plain", "peak MB", "/ plain"], rows))


def main() -> None:
    arguments = measure.parser(__doc__.partition("\n")[0], rounds=9).parse_args()
    print(measure.machine())
    for name in arguments.networks or prepared.NAMES:
        report(name, arguments.directory, arguments.rounds)


if __name__ == "__main__":
    main()
