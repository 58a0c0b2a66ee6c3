"""Layerwise errors of INT8 against FP32: this program beside ONNX Runtime's and Polygraphy's, and beside the limit.

    python -m tests.benchmarks.layerwise [bert6] [resnet50] [--rounds N] [--only-ours | --command]

Data are 4 batches of 8. The limit is the time of one plain run of each network, and the larger of their peaks. A pass
of ours runs a loaded graph over all batches. The others load, run and compare in one call; so their times stand beside
ours with loading. ``--command`` measures `trt-tui compare --runs int8 --layers errors` as a whole, from its start with
empty caches (opening, calibration, accuracy and errors of INT8), beside ONNX Runtime's alone, both from the start of a
process to its exit. With ``--other fp32`` all that is not INT8 is FP32, as in ONNX Runtime's.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks import measure, prepared
from tests.benchmarks.measure import Contestant
from tests.networks import Handed

MODULE = "tests.benchmarks.layerwise"
OTHERS = {"qdq_loss_debug": "qdq_loss_debug", "Polygraphy, all marked": "polygraphy"}


def ours(name: str, folder: str, kind: str):
    """Sums at all groups, without an activation leaving the session; ``kind`` is accumulated or isolated (both)."""
    from trt_tui.backends.onnxruntime import OnnxRuntimeBackend
    from trt_tui.core.lowering.gated.assembly import build_gated_graph
    from trt_tui.core.measure.error_metrics import ErrorSums
    from trt_tui.core.precision import Precision

    network, ranges = prepared.opened(folder)
    gated = build_gated_graph(
        network, float_types=(), boundary_types=(Precision.FP32,), with_reference=True, with_isolated=kind == "isolated"
    )
    runner = OnnxRuntimeBackend("cpu").load(gated.model, low_memory=True)
    gates = gated.make_feed(prepared.INT8, ranges)
    fetch = list(gated.sums_outputs.values())
    feeds = prepared.batches(name)

    def run() -> str:
        pooled = {table: ErrorSums() for table in fetch}
        for feed in feeds:
            for table, rows in runner.run({**feed, **gates}, fetch).items():
                pooled[table].merge_table(rows)
        return (
            f"{len(gated.measured_groups)} groups, "
            f"{pooled[fetch[0]].compute_metrics_of_each_tensor()[-1].sqnr_db:.1f} dB at the last"
        )

    return run


def qdq_loss_debug(name: str, folder: str):
    """ONNX Runtime's qdq_loss_debug on the network that its own quantizer made (`quantizer`)."""
    from onnxruntime.quantization import qdq_loss_debug as debug

    feeds = prepared.batches(name)

    def run() -> str:
        activations = []
        for file in ("fp32.onnx", "ort_int8.onnx"):
            marked = Path(folder) / f"marked_{file}"
            debug.modify_model_output_intermediate_tensors(Path(folder) / file, marked)
            activations.append(debug.collect_activations(str(marked), Handed(feeds)))
        matched = debug.create_activation_matching(activations[1], activations[0])
        return f"{len(debug.compute_activation_error(matched))} tensors"

    return run


def polygraphy(name: str, folder: str):
    """Polygraphy's comparator on both networks with all outputs marked."""
    from polygraphy import constants
    from polygraphy.backend.onnx import BytesFromOnnx, ModifyOutputs, OnnxFromPath
    from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
    from polygraphy.comparator import Comparator, CompareFunc
    from polygraphy.logger import G_LOGGER

    G_LOGGER.module_severity = G_LOGGER.CRITICAL
    feeds = prepared.batches(name)

    def run() -> str:
        runners = [
            OnnxrtRunner(
                SessionFromOnnx(
                    BytesFromOnnx(ModifyOutputs(OnnxFromPath(str(Path(folder) / file)), outputs=constants.MARK_ALL))
                ),
                name=file,
            )
            for file in ("fp32.onnx", "int8.onnx")
        ]
        results = Comparator.run(runners, data_loader=feeds)
        compared = Comparator.compare_accuracy(results, compare_func=CompareFunc.simple(check_error_stat="mean"))
        return f"{len(next(iter(compared[0].values()))[0])} tensors"

    return run


def command(name: str, folder: str, other: str):
    """The command that measures errors alone, with caches of its own for each pass."""
    return _in_process(
        "-m",
        "trt_tui",
        "compare",
        f"{folder}/fp32.onnx",
        "--data",
        f"{folder}/data.npz",
        "--calib-data",
        f"{folder}/data.npz",
        "--batch",
        "8",
        "--runs",
        "int8",
        "--layers",
        "errors",
        "--other",
        other,
    )


def peer(name: str, folder: str):
    """ONNX Runtime's qdq_loss_debug in a process of its own."""
    return _in_process("-c", f"from {MODULE} import qdq_loss_debug; print(qdq_loss_debug({name!r}, {folder!r})())")


def _in_process(*arguments: str):
    """A pass runs Python with some arguments; the compiled modules of earlier passes are used."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}

    def run() -> str:
        with tempfile.TemporaryDirectory() as text:
            caches = {f"XDG_{kind}_HOME": f"{text}/{kind.lower()}" for kind in ("CACHE", "STATE")}
            done = subprocess.run(
                [sys.executable, *arguments], env={**environment, **caches}, capture_output=True, text=True, check=True
            )
        return done.stdout.splitlines()[0]

    return run


def quantizer(name: str, folder: str):
    """Makes ort_int8.onnx, which qdq_loss_debug needs; its pass does nothing."""
    from onnxruntime.quantization import QuantType, quantize_static

    quantize_static(
        str(Path(folder) / "fp32.onnx"),
        str(Path(folder) / "ort_int8.onnx"),
        Handed(prepared.batches(name)[:1]),
        per_channel=True,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        op_types_to_quantize=["Conv", "MatMul", "Gemm"],
        extra_options={"ActivationSymmetric": True},
    )
    return lambda: None


def report(name: str, directory: Path, rounds: int, only_ours: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        prepared.prepare(name, str(directory), folder)
        results = measure.compete(
            [
                Contestant("plain FP32", "tests.benchmarks.prepared", "plain", (name, folder, "fp32.onnx")),
                Contestant("plain INT8", "tests.benchmarks.prepared", "plain", (name, folder, "int8.onnx")),
                Contestant("trt-tui accumulated", MODULE, "ours", (name, folder, "accumulated")),
                Contestant("trt-tui accumulated and isolated", MODULE, "ours", (name, folder, "isolated")),
            ],
            rounds,
        )
        if not only_ours:
            measure.once(Contestant("quantizer", MODULE, "quantizer", (name, folder)))
            for label, function in OTHERS.items():
                try:
                    results[label] = measure.once(Contestant(label, MODULE, function, (name, folder)))
                except RuntimeError as error:
                    print(f"\n{name}: {error}, so it has no row.")
    plain = [results["plain FP32"], results["plain INT8"]]
    limit_s, limit_mb = sum(one.median_s for one in plain), max(one.peak_mb for one in plain)
    rows = [("limit", limit_s, 1.0, "", round(limit_mb), 1.0, "")]
    for label, one in results.items():
        loads = label.startswith(("trt-tui", "plain"))
        whole = one.median_s + (one.prepared_s if loads else 0)
        rows.append(
            (
                label,
                one.median_s,
                one.median_s / limit_s,
                whole,
                round(one.peak_mb),
                one.peak_mb / limit_mb,
                one.said or "",
            )
        )
    print(f"\n### {name}\n")
    print(measure.table(["", "run s", "/ limit", "with loading s", "peak MB", "/ limit", "what"], rows))
    if not only_ours:
        own = results["trt-tui accumulated"]
        for label in OTHERS.keys() & results.keys():
            other = results[label]
            print(
                f"\n{label}: {other.median_s / (own.median_s + own.prepared_s):.1f} times the time of trt-tui "
                f"accumulated with loading, {other.peak_bytes / own.peak_bytes:.1f} times its memory."
            )


def whole(name: str, directory: Path, rounds: int, other: str) -> None:
    """Prints what the whole command takes beside qdq_loss_debug, whose quantizing is not counted: medians."""
    with tempfile.TemporaryDirectory() as folder:
        prepared.prepare(name, str(directory), folder)
        measure.once(Contestant("quantizer", MODULE, "quantizer", (name, folder)))
        sides = (
            ("compare --layers errors", "command", (name, folder, other)),
            ("qdq_loss_debug", "peer", (name, folder)),
        )
        results = [
            measure.once(Contestant(label, MODULE, function, words))
            for _ in range(rounds)
            for label, function, words in sides
        ]
        ours, theirs = (sorted(results[first::2], key=lambda one: one.median_s)[rounds // 2] for first in (0, 1))
    rows = [
        (
            one.name,
            one.median_s,
            one.median_s / theirs.median_s,
            one.processor_s,
            one.processor_s / theirs.processor_s,
            round(one.peak_mb),
            one.peak_mb / theirs.peak_mb,
            one.said or "",
        )
        for one in (ours, theirs)
    ]
    print(f"\n### {name}\n")
    print(
        measure.table(
            ["", "s", "/ qdq_loss_debug", "processor s", "/ qdq_loss_debug", "peak MB", "/ qdq_loss_debug", "what"],
            rows,
        )
    )


def main() -> None:
    parser = measure.parser(__doc__, prepared.NAMES, rounds=5)
    parser.add_argument("--only-ours", action="store_true", help="leave the other tools out")
    parser.add_argument("--command", action="store_true", help="the whole command beside qdq_loss_debug")
    parser.add_argument("--other", default="fp16", help="with --command: the precision of all that is not INT8")
    arguments = parser.parse_args()
    print(measure.machine())
    for name in arguments.networks:
        if arguments.command:
            whole(name, arguments.directory, arguments.rounds, arguments.other)
            continue
        report(name, arguments.directory, arguments.rounds, arguments.only_ours)


if __name__ == "__main__":
    main()
