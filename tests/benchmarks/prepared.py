"""What the benchmarks of the simulation prepare for a network: ranges, the typed INT8 network, and its data."""

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path

import onnx_ir as ir

from tests.benchmarks import measure, networks
from tests.benchmarks.measure import Contestant
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import Network, open_network
from trt_tui.core.precision import Precision

NAMES = ("bert6", "resnet50")
FP32 = PrecisionConfig.from_precision(Precision.FP32)
FP16 = PrecisionConfig.from_precision(Precision.FP16)
INT8 = PrecisionConfig.from_precision(Precision.INT8, other_precision=Precision.FP32)
INT8_FP16 = PrecisionConfig.from_precision(Precision.INT8, other_precision=Precision.FP16)


def batches(name: str) -> list[networks.Feeds]:
    """4 batches of 8."""
    return networks.resnet50_batches() if name == "resnet50" else networks.bert6_batches()


def model_path(name: str, directory: Path) -> Path:
    return networks.resnet50(directory) if name == "resnet50" else networks.bert6(directory)


def prepare(name: str, directory: str, folder: str) -> None:
    """Writes ranges.json, fp32.onnx (a link) and int8.onnx into ``folder``."""
    from trt_tui.backends.onnxruntime import OnnxRuntimeBackend
    from trt_tui.core.calibration.calibration import calibrate
    from trt_tui.core.data.samples import load_samples
    from trt_tui.core.lowering.typed_network import lower_to_typed_network

    target = Path(folder)
    path = model_path(name, Path(directory))
    (target / "fp32.onnx").symlink_to(path.resolve())
    data = networks.save_batches(batches(name), target / "data.npz")
    network = open_network(path)
    samples = load_samples(data, network.inputs, batch=8)
    ranges = calibrate(network.model, network.calibrated_tensors, samples, OnnxRuntimeBackend("cpu")).ranges
    (target / "ranges.json").write_text(json.dumps(ranges))
    ir.save(lower_to_typed_network(network, INT8, ranges).model, target / "int8.onnx")


def opened(folder: str) -> tuple[Network, dict[str, float]]:
    """The network and its ranges."""
    return open_network(Path(folder) / "fp32.onnx"), json.loads((Path(folder) / "ranges.json").read_text())


def plain(name: str, folder: str, file: str):
    """A plain run of a file by ONNX Runtime's defaults; the pass returns nothing."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(Path(folder) / file), providers=["CPUExecutionProvider"])
    feeds = batches(name)

    def run() -> None:
        for feed in feeds:
            session.run(None, feed)

    return run


def main(about: str, rounds: int, module: str, function: str, labels: Iterable[str]) -> None:
    """A program: tables of contestants beside a plain FP32 run: seconds and peak memory, and what the last pass said.

    Args:
        about: Its docstring.
        function: Of ``module``; it is given the network's name, the prepared folder and a label.
    """
    arguments = measure.parser(about, NAMES, rounds).parse_args()
    print(measure.machine())
    for name in arguments.networks:
        with tempfile.TemporaryDirectory() as folder:
            prepare(name, str(arguments.directory), folder)
            results = measure.compete(
                [
                    Contestant("plain FP32", "tests.benchmarks.prepared", "plain", (name, folder, "fp32.onnx")),
                    *(Contestant(label, module, function, (name, folder, label)) for label in labels),
                ],
                arguments.rounds,
            )
        plain = results["plain FP32"]
        rows = [
            (
                label,
                one.median_s,
                one.median_s / plain.median_s,
                round(one.peak_mb),
                one.peak_mb / plain.peak_mb,
                one.said or "",
            )
            for label, one in results.items()
        ]
        print(f"\n### {name}\n")
        print(measure.table(["", "s", "/ plain", "peak MB", "/ plain", "what"], rows))
