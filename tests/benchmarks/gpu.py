"""What-ifs, shares, sweeps, errors at the groups and searches on a GPU beside plain runs with inputs on the device.

    python -m tests.benchmarks.gpu NETWORK.onnx DATA.npz [...] [--batch 8] [--groups 8] [--rounds 15] [--search TEXT]
        [--memory MB] [--pieces N]

Runs of ONNX Runtime's CUDA provider, TF32 off; a pass goes over all samples, outputs back on the host. Prints one line
of JSON for each network (milliseconds, medians, and ratios; seconds where it says so), and last one table of all. A
what-if raises one group; the mean is over groups spread evenly over the network, after the config without them. The
worst one raises the first group, so that no piece of the network is shared. A sweep is the exact share of every group
that can be INT8; a search is the whole command for a tolerance, without
engines, INT8 among FP16. With ``--memory`` the arena of each session is no larger than that (plain runs aside), and
how what-ifs ran is told.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np


def median_ms(run: Callable[[], object], rounds: int) -> float:
    """The median of some rounds behind three to warm up."""
    times = []
    for round_ in range(rounds + 3):
        since = time.perf_counter()
        run()
        if round_ >= 3:
            times.append(1e3 * (time.perf_counter() - since))
    return statistics.median(times)


def plain(model: Path, batches: list[dict[str, np.ndarray]], rounds: int) -> float:
    """A plain FP32 run of all batches, inputs and outputs bound on the device."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model), providers=[("CUDAExecutionProvider", {"use_tf32": "0"})])
    held = [
        {name: onnxruntime.OrtValue.ortvalue_from_numpy(array, "cuda", 0) for name, array in batch.items()}
        for batch in batches
    ]

    def run() -> None:
        for batch in held:
            binding = session.io_binding()
            for name, value in batch.items():
                binding.bind_ortvalue_input(name, value)
            for output in session.get_outputs():
                binding.bind_output(output.name, "cpu")
            session.run_with_iobinding(binding)

    return median_ms(run, rounds)


def measured(
    model: Path,
    data: Path,
    batch: int,
    groups: int,
    rounds: int,
    data_form: bool,
    levels: list[str],
    memory: int | None = None,
    pieces: int | None = None,
) -> dict[str, float]:
    """Milliseconds of what-ifs and shares, INT8 among FP32 and among FP16."""
    from dataclasses import replace

    from tests.measuring import measure_shares
    from trt_tui.backends.onnxruntime import OnnxRuntimeBackend
    from trt_tui.core.calibration.calibration import calibrate
    from trt_tui.core.data.samples import load_samples
    from trt_tui.core.measure import piecewise_runner
    from trt_tui.core.measure.group_errors import measure_group_errors
    from trt_tui.core.measure.judged_outputs import select_judged_outputs
    from trt_tui.core.measure.simulation import Analysis
    from trt_tui.core.moves.config import PrecisionConfig
    from trt_tui.core.network.layers import FusionGroup
    from trt_tui.core.network.network import open_network
    from trt_tui.core.precision import Precision

    backend = OnnxRuntimeBackend("cuda")
    if memory is not None:
        backend.cuda_options["gpu_mem_limit"] = str(memory << 20)
    if pieces is not None:
        piecewise_runner.DEVICE_PIECES = pieces
    if not data_form:
        backend.capabilities = replace(backend.capabilities, has_device=False)
    network = open_network(model, lambda: backend)
    samples = load_samples(str(data), network.inputs, batch=batch)
    ranges = calibrate(network.model, network.calibrated_tensors, samples, backend).ranges
    found: dict[str, float] = {}
    for label, other in (("FP32", Precision.FP32), ("FP16", Precision.FP16)):
        config = PrecisionConfig.from_precision(Precision.INT8, other)
        quantizable = [group for group in network.groups if group.is_quantizable]
        with Analysis(network, backend, samples, select_judged_outputs(network), boundary_type=other) as analysis:
            since = time.perf_counter()
            *_, first = analysis.measure_accuracy(config, ranges)
            found[f"first what-if among {label}"] = 1e3 * (time.perf_counter() - since)
            worst = first.value.worst_output
            found[f"SQNR among {label}"] = (worst[1].errors.sqnr_db if worst is not None else None) or float("nan")
            spread = [quantizable[index * len(quantizable) // rounds] for index in range(rounds)]

            def take(
                raised: list[FusionGroup], analysis: Analysis = analysis, config: PrecisionConfig = config
            ) -> float:
                """Milliseconds of a what-if."""
                since = time.perf_counter()
                list(analysis.measure_accuracy(config.with_group_precision(raised, Precision.FP32), ranges))
                return 1e3 * (time.perf_counter() - since)

            for _ in range(3):
                take([])
            found[f"what-if among {label}"] = statistics.mean([take([group]) for _ in range(2) for group in spread])
            found[f"worst what-if among {label}"] = statistics.median(
                (take([]), take(quantizable[:1]))[1] for _ in range(rounds)
            )
            levels.append(
                f"{analysis.execution_mode.name}: {analysis.execution_mode.reason}"
                if analysis.execution_mode is not None
                else ""
            )
            since = time.perf_counter()
            measure_shares(analysis, config, ranges, order=[group.name for group in quantizable[:groups]], exact=True)
            found[f"share among {label}"] = 1e3 * (time.perf_counter() - since) / (min(groups, len(quantizable)) + 1)
            found[f"groups among {label}"] = len(quantizable)
            since = time.perf_counter()
            measure_shares(analysis, config, ranges, order=[group.name for group in quantizable], exact=True)
            found[f"sweep among {label}, s"] = time.perf_counter() - since
            since = time.perf_counter()
            for _ in measure_group_errors(analysis, {"int8": config}, ranges):
                pass
            found[f"errors at the groups among {label}, s"] = time.perf_counter() - since
    return found


def searched(model: Path, data: Path, batch: int, tolerance: str) -> tuple[float, str]:
    """Seconds of ``trt-tui search``, opening and calibration in it, and what it says it has found."""
    with tempfile.TemporaryDirectory() as folder:
        since = time.perf_counter()
        command = [
            sys.executable,
            "-m",
            "trt_tui",
            "search",
            str(model),
            "--data",
            str(data),
            "--batch",
            str(batch),
            "--tolerance",
            tolerance,
            "--backend",
            "onnxruntime",
            "-o",
            f"{folder}/p.json",
        ]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "XDG_CACHE_HOME": folder})
        took = time.perf_counter() - since
        if done.returncode not in (0, 1):
            raise RuntimeError(done.stderr)
        return took, " ".join(done.stdout.split("\n\n")[0].split())


COLUMNS = (
    "plain",
    "what-if among FP32",
    "worst what-if among FP32",
    "what-if among FP16",
    "worst what-if among FP16",
    "share among FP32",
    "share among FP16",
    "sweep among FP32, s",
    "sweep among FP16, s",
    "errors at the groups among FP16, s",
    "search, s",
)


def table(records: list[dict[str, object]]) -> str:
    """All records as Markdown: figures that are ratios too with those in brackets."""

    def cell(record: dict[str, object], column: str) -> str:
        ratio = record.get(f"{column}, in plain runs")
        return str(record.get(column, "")) + (f" ({ratio})" if ratio is not None else "")

    rows = [["network", "samples", *COLUMNS], ["---"] * (2 + len(COLUMNS))]
    rows += [
        [str(record["network"]), str(record["samples"]), *(cell(record, column) for column in COLUMNS)]
        for record in records
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="networks, each followed by its data")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--search", metavar="TOLERANCE", help="also time a search for it")
    parser.add_argument("--memory", type=int, metavar="MB", help="the most that the arena of a session takes")
    parser.add_argument("--pieces", type=int, help="the pieces of the network; 1 for one CUDA graph")
    parser.add_argument("--control-flow", action="store_true", help="gates as control flow, as on a CPU")
    arguments = parser.parse_args()
    records = []
    for model, data in zip(arguments.files[::2], arguments.files[1::2], strict=True):
        arrays = dict(np.load(data))
        count = len(next(iter(arrays.values())))
        batches = [
            {name: array[start : start + arguments.batch] for name, array in arrays.items()}
            for start in range(0, count, arguments.batch)
        ]
        record: dict[str, object] = {"network": model.stem, "samples": count, "control flow": arguments.control_flow}
        base = plain(model, batches, arguments.rounds)
        record["plain"] = round(base, 2)
        levels: list[str] = []
        for name, value in measured(
            model,
            data,
            arguments.batch,
            arguments.groups,
            arguments.rounds,
            not arguments.control_flow,
            levels,
            arguments.memory,
            arguments.pieces,
        ).items():
            record[name] = round(value, 2)
            if name.startswith(("what-if", "worst what-if", "share")):
                record[f"{name}, in plain runs"] = round(value / base, 2)
        if arguments.search:
            seconds, said = searched(model, data, arguments.batch, arguments.search)
            record |= {"search, s": round(seconds, 2), "found": said}
        records.append(record)
        print(json.dumps({**record, "levels": levels}), flush=True)
    print(table(records))


if __name__ == "__main__":
    main()
