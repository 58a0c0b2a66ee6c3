"""``trt-tui search`` beside Polygraphy's ``debug precision`` on a GPU: wall time, engines built, layers.

    python -m tests.benchmarks.search_peer [--db 20] [--level L] [--tactic-sources=-CUBLAS,+JIT_CONVOLUTIONS,...]
        [--model MODEL.onnx --data DATA.npz] [--batch B] [--out FOLDER]

Both have the same question: all INT8 among FP16, which layers must run in FP32 so that the engine's output has that
SQNR against ONNX Runtime's FP32, on the same samples and with the same ranges. Polygraphy 0.50 marks the first or last
layers of a weakly typed network (TensorRT up to 10) by halving and builds an engine for each try; its ``--check`` is
this program with ``--judge``. The bundled network where no other is named.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from tests.benchmarks import measure
from trt_tui import demo
from trt_tui.backends.onnxruntime import OnnxRuntimeBackend
from trt_tui.core.data.samples import load_samples, split_samples
from trt_tui.core.lowering.weak_typing import find_source_layer
from trt_tui.core.measure.error_metrics import ErrorSums
from trt_tui.core.network.network import Network, open_network

POLYGRAPHY = (sys.executable, "-c", "import sys; from polygraphy.tools import main; sys.exit(main())")
TRT_TUI = (sys.executable, "-m", "trt_tui")


def judge(folder: Path, engine: Path, least_db: float) -> int:
    """Exit code 0 where an engine's outputs have that SQNR; each call leaves a line in ``folder``."""
    from trt_tui.backends.tensorrt import TensorRTBackend

    sums: dict[str, ErrorSums] = {}
    with TensorRTBackend("tensorrt").load_engine(engine.read_bytes()) as runner:
        for path in sorted(folder.glob("feed*.npz")):
            with np.load(path) as feed, np.load(path.with_name(path.name.replace("feed", "fp32"))) as expected:
                for name, array in runner.run(dict(feed)).items():
                    sums.setdefault(name, ErrorSums()).add_tensor_pair(expected[name], array)
    worst = min(one.compute_error_metrics().sqnr_db for one in sums.values())
    with open(folder / "tries.txt", "a") as stream:
        stream.write(f"{worst:.2f} dB\n")
    return 0 if worst >= least_db else 1


def prepare(arguments: argparse.Namespace, folder: Path) -> tuple[Network, dict[str, tuple[int, ...]]]:
    """Leaves feeds, FP32 outputs and the calibration cache in a folder; returns the network and its inputs' shapes."""
    network = open_network(arguments.model or demo.network_path())
    samples = load_samples(arguments.data or demo.samples_path(), network.inputs, batch=arguments.batch, limit=40)
    calibration = (
        None if arguments.model else load_samples(demo.calibration_path(), network.inputs, batch=arguments.batch)
    )
    judged = split_samples(samples, calibration).judged_samples
    with OnnxRuntimeBackend("cpu").load(network.model) as runner:
        for index in range(len(judged)):
            feed = judged.read_feed(index)
            np.savez(folder / f"feed{index:03}.npz", **feed)
            np.savez(folder / f"fp32{index:03}.npz", **runner.run(feed))
    shapes = {name: array.shape for name, array in judged.read_feed(0).items()}
    command = (
        *TRT_TUI,
        "export",
        str(network.path),
        *data_options(arguments),
        "--precision",
        "int8",
        "--format",
        "calibration-cache",
        "-o",
        str(folder / "ranges.cache"),
    )
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return network, shapes


def data_options(arguments: argparse.Namespace) -> tuple[str, ...]:
    data = arguments.data or demo.samples_path()
    calibration = () if arguments.model else ("--calib-data", str(demo.calibration_path()))
    batch = ("--batch", str(arguments.batch)) if arguments.batch else ()
    return "--data", str(data), *calibration, *batch, "--samples", "40"


def polygraphy(
    arguments: argparse.Namespace, network: Network, shapes: dict[str, tuple[int, ...]], direction: str, folder: Path
) -> tuple[object, ...]:
    """A row: what ``debug precision`` took and marked."""
    (folder / "tries.txt").unlink(missing_ok=True)
    check = [sys.executable, "-m", "tests.benchmarks.search_peer", "--judge", str(folder), "--db", str(arguments.db)]
    entries = [f"{name}:[{','.join(map(str, shape))}]" for name, shape in shapes.items()]
    command = [
        *POLYGRAPHY,
        "debug",
        "precision",
        str(Path(network.path).resolve()),
        "--mode",
        "bisect",
        "--direction",
        direction,
        "--int8",
        "--fp16",
        "--calibration-cache",
        str(folder / "ranges.cache"),
        *(word for key in ("min", "opt", "max") for word in (f"--trt-{key}-shapes", *entries)),
    ]
    command += ["--builder-optimization-level", str(arguments.level)] if arguments.level is not None else []
    command += (
        ["--tactic-sources", *(source[1:] for source in arguments.tactic_sources.split(",") if source[0] == "+")]
        if arguments.tactic_sources
        else []
    )
    paths = [os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])]
    since = time.perf_counter()
    done = subprocess.run(
        [*command, "--check", *check],
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    took = time.perf_counter() - since
    (folder / f"polygraphy-{direction}.log").write_text(done.stdout)
    tries = (folder / "tries.txt").read_text().split("\n")[:-1] if (folder / "tries.txt").exists() else []
    label = f"Polygraphy, {'first' if direction == 'forward' else 'last'} layers"
    found = re.search(r"try running the (first|last) (\d+) layer", done.stdout)
    if not found:
        return label, f"{took:.0f}", len(tries), "none found", "", tries[-1] if tries else "no engine built"
    count = int(found[2])
    groups = marked_groups(network, count, direction)
    reached = [one for one in tries if float(one.split()[0]) >= arguments.db]
    return label, f"{took:.0f}", len(tries), f"{count} TensorRT layers", len(groups), reached[-1] if reached else ""


def marked_groups(network: Network, count: int, direction: str) -> set[str]:
    """Fusion groups that can be INT8 with a layer among the first or last ones of TensorRT's network."""
    from polygraphy.backend.trt import NetworkFromOnnxPath

    _, definition, _parser = NetworkFromOnnxPath(str(network.path))()
    names = {layer.name for layer in network.layers}
    layers = [definition.get_layer(index) for index in range(definition.num_layers)]
    chosen = layers[:count] if direction == "forward" else layers[-count:]
    found = set()
    for layer in chosen:
        name = find_source_layer(layer.name, getattr(layer, "metadata", ""), names)
        group = network.find_group(name) if name is not None else None
        if group is not None and group.is_quantizable:
            found.add(group.name)
    return found


def ours(arguments: argparse.Namespace, network: Network, folder: Path, weak: bool) -> tuple[object, ...]:
    """A row: what ``trt-tui search`` took and raised, from an empty cache on."""
    label = "trt-tui search" + (" --weak" if weak else "")
    home = folder / label.replace(" ", "_")
    home.mkdir(parents=True)
    command = [
        *TRT_TUI,
        "search",
        str(network.path),
        *data_options(arguments),
        "--precision",
        "int8",
        "--no-ranges",
        "--tolerance",
        f"sqnr>={arguments.db}",
        "--backend",
        "tensorrt",
        "-o",
        str(home / "precision.json"),
        "--markdown",
        str(home / "report.md"),
        *(["--weak"] if weak else []),
    ]
    command += [f"--trtexec=--builderOptimizationLevel={arguments.level}"] if arguments.level is not None else []
    command += [f"--trtexec=--tacticSources={arguments.tactic_sources}"] if arguments.tactic_sources else []
    since = time.perf_counter()
    done = subprocess.run(
        command,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "XDG_CACHE_HOME": str(home), "XDG_STATE_HOME": str(home)},
    )
    took = time.perf_counter() - since
    (home / "log.txt").write_text(done.stdout)
    if done.returncode not in (0, 1):
        return label, f"{took:.0f}", "", f"exit code {done.returncode}", "", done.stdout.strip().splitlines()[-1]
    config = json.loads((home / "precision.json").read_text())
    raised = {network.find_group(name).name for name, layer in config["layers"].items() if layer["precision"] == "fp32"}
    built = len(list((home / "trt-tui" / "engines").glob("*/*")))
    confirmed = "meets it too" in (home / "report.md").read_text()
    return (
        label,
        f"{took:.0f}",
        f"{built} + FP32 engine",
        f"{len(raised)} groups",
        len(raised),
        "met as built" if done.returncode == 0 and confirmed else "not met as built",
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", nargs="?", type=Path, default=Path("polygraphy_debug.engine"))
    parser.add_argument("--judge", type=Path, help="judge this engine by what lies in the folder")
    parser.add_argument("--db", type=float, default=20.0)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--level", type=int)
    parser.add_argument("--tactic-sources")
    parser.add_argument("--out", type=Path, default=Path("trt-tui-search-peer"))
    arguments = parser.parse_args()
    if arguments.judge:
        return judge(arguments.judge, arguments.engine, arguments.db)
    print(measure.machine())
    arguments.out.mkdir(parents=True, exist_ok=True)
    folder = arguments.out.resolve()
    network, shapes = prepare(arguments, folder)
    rows = []
    for row in (
        lambda: ours(arguments, network, folder, False),
        lambda: ours(arguments, network, folder, True),
        lambda: polygraphy(arguments, network, shapes, "forward", folder),
        lambda: polygraphy(arguments, network, shapes, "reverse", folder),
    ):
        rows.append(row())
        print(rows[-1], flush=True)
    print(f"\n### {network.name}, sqnr>={arguments.db:g} dB\n")
    print(measure.table(["", "s", "engines", "in FP32", "groups that could be INT8", ""], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
