"""Shares on few samples first, beside those on all: runs, seconds, and how near they are.

    python -m tests.benchmarks.shares [demo] [vit] [bert6] [resnet50] [--samples 32] [--static] [--other fp16]

INT8 among ``--other``; the encoder is judged by its hidden states. A run is one of all samples: half of them count as
half a run. Times are processor times of one thread: "work" is that of the sweep in runs of a whole config, of which an
exact sweep that shares nothing takes one a group; "left" is what is forecast to be left, beside what is, at 10, 20, 35,
50 and 75 % of it. ``--static`` fixes the batch (8) in the network. "in order" counts pairs of groups whose exact
shares differ by more than 2 points. "held" is the part of the intervals of shares on some samples that hold the
exact share.
"""

import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from tests import networks
from tests.benchmarks import measure
from tests.benchmarks import networks as big
from trt_tui import demo
from trt_tui.backends.onnxruntime import OnnxRuntimeBackend
from trt_tui.core.calibration.calibration import calibrate
from trt_tui.core.data.samples import Samples, load_samples
from trt_tui.core.measure.group_sweep import GroupSweep
from trt_tui.core.measure.judged_outputs import select_judged_outputs
from trt_tui.core.measure.results import ErrorShare
from trt_tui.core.measure.simulation import Analysis
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision

NAMES = ("demo", "vit", "bert6", "resnet50")
BATCH, CALIBRATING = 8, 16


def prepared(name: str, directory: Path, folder: Path, samples: int) -> Path:
    """The network; beside it judged.npz and calibration.npz are written."""
    if name == "demo":
        judged, calibration = (dict(np.load(path)) for path in (demo.samples_path(), demo.calibration_path()))
        arrays = {"image": judged["image"][:samples]}, {"image": calibration["image"][:CALIBRATING]}
        path = demo.network_path()
    elif name == "vit":
        path = folder / "vit.onnx"
        onnx.save(networks.vit(), path)
        image = networks.random_images(np.random.default_rng(0), (samples + CALIBRATING, 3, 32, 32))
        arrays = {"image": image[:samples]}, {"image": image[samples:]}
    else:
        path = getattr(big, name)(directory)
        batches = {"bert6": big.bert6_batches, "resnet50": big.resnet50_batches}[name]
        arrays = tuple(
            {key: np.concatenate([feed[key] for feed in feeds]) for key in feeds[0]}
            for feeds in (batches(samples // BATCH, seed=1), batches(CALIBRATING // BATCH, seed=2))
        )
    for file, one in zip(("judged", "calibration"), arrays, strict=True):
        np.savez(folder / f"{file}.npz", **one)
    return path


def with_static_batch(path: Path, folder: Path) -> Path:
    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = BATCH
    del model.graph.value_info[:]
    onnx.save(model, folder / "static.onnx")
    return folder / "static.onnx"


def swept(
    analysis: Analysis, config: PrecisionConfig, ranges: dict[str, float], exact: bool
) -> tuple[GroupSweep, dict[str, ErrorShare], float, float, str]:
    """The sweep, what it says of each group, its seconds, those to the first figure of every group, and how true the
    time left was."""
    sweep, since, mapped = GroupSweep(analysis, config, ranges, measures_all_samples=exact), time.process_time(), 0.0
    rounded, course = analysis.make_config_feed(config, ranges), []
    for done, total in sweep.measure_groups():
        course.append((time.process_time() - since, done, total))
        if not mapped and sweep.has_estimate_of_every_group:
            mapped = course[-1][0]
    del rounded
    whole, left = course[-1][0], []
    for part in (0.1, 0.2, 0.35, 0.5, 0.75):
        now, done, total = next(one for one in course if one[0] >= part * whole)
        left.append(f"{now / done * (total - done) / (whole - now):.1f}" if done and now < whole else "")
    return (
        sweep,
        {name: sweep.estimate_error_share(name) for name in sweep.measured_groups},
        whole,
        mapped,
        " ".join(left),
    )


def plain(path: Path, samples: Samples) -> float:
    """Seconds of one run of all samples in plain ONNX Runtime, on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    session.run(None, samples.read_feed(0))
    since = time.process_time()
    for index in range(len(samples)):
        session.run(None, samples.read_feed(index))
    return time.process_time() - since


def row(name: str, directory: Path, samples: int, static: bool, other: Precision) -> list[object]:
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        path = prepared(name, directory, folder, samples)
        if static:
            path = with_static_batch(path, folder)
        network, backend = open_network(path), OnnxRuntimeBackend("cpu", 1)
        judged, calibrating = (
            load_samples(str(folder / f"{file}.npz"), network.inputs, batch=BATCH) for file in ("judged", "calibration")
        )
        ranges = calibrate(network.model, network.calibrated_tensors, calibrating, backend).ranges
        outputs = select_judged_outputs(network, ("last_hidden_state",) if name == "bert6" else ())
        config = PrecisionConfig.from_precision(Precision.INT8, other)
        with Analysis(network, backend, judged, outputs, boundary_type=other) as analysis:
            for _ in analysis.measure_accuracy(PrecisionConfig.from_precision(Precision.FP32), {}):
                pass
            since = time.process_time()
            list(analysis.measure_accuracy(config, ranges))
            run_s = time.process_time() - since
            few, near, near_s, mapped, left = swept(analysis, config, ranges, False)
            _, exact, exact_s, _, _ = swept(analysis, config, ranges, True)
        true = {one: known.fraction for one, known in exact.items()}
        error = {one: abs(near[one].fraction - true[one]) for one in true}
        matter = [one for one in true if true[one] >= 0.01]
        pairs = [(one, two) for one in true for two in true if true[one] - true[two] > 0.02]
        ordered = sum(near[one].fraction > near[two].fraction for one, two in pairs)
        partial = [one for one in true if near[one].half_width]
        held = sum(error[one] <= near[one].half_width for one in partial)
        assert few.planner is not None
        runs = few.planner.measured_count / (len(true) * few.planner.sample_count)
        return [
            name,
            len(true),
            runs,
            near_s / (len(true) * run_s),
            near_s / exact_s,
            mapped / plain(path, judged),
            left,
            f"{sum(error[one] <= 0.02 for one in matter)} of {len(matter)}",
            100 * max((error[one] for one in matter), default=0.0),
            f"{ordered} of {len(pairs)}",
            f"{held} of {len(partial)}",
        ]


def main() -> None:
    parser = measure.parser(__doc__, NAMES)
    parser.add_argument("--samples", type=int, default=32, help="a multiple of 8")
    parser.add_argument("--static", action="store_true")
    parser.add_argument("--other", default="fp16", choices=["fp32", "fp16"])
    arguments = parser.parse_args()
    print(measure.machine(), flush=True)
    header = [
        "",
        "groups",
        "runs / exact",
        "work / exact, nothing shared",
        "seconds / exact",
        "first map in plain runs",
        "left",
        "within 2 points, of those >= 1 %",
        "largest error there, points",
        "in order",
        "held",
    ]
    for name in arguments.networks:
        print(
            measure.table(
                header,
                [row(name, arguments.directory, arguments.samples, arguments.static, Precision(arguments.other))],
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
