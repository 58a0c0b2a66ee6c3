"""Processor seconds and peak memory of `inspect` and `compare` on a chain of many small nodes.

    python -m tests.benchmarks.many_nodes [--nodes 3000 6000 30000]

Blocks of Conv, Relu, Add and Mul with 8 channels, 4 random samples, no errors at the layers. The arithmetic is next to
nothing, so what is printed is what each node costs. Seconds of two sizes tell whether a part grows with the square.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import psutil
from onnx import TensorProto, helper, numpy_helper

CHANNELS = 8
SHAPE = ["batch", CHANNELS, 4, 4]


def write(path: Path, nodes: int) -> None:
    """Writes a network of so many nodes, in blocks of four."""
    rng, made, weights, x = np.random.default_rng(0), [], [], "x"
    for block in range(nodes // 4):
        weight = (0.3 * rng.standard_normal((CHANNELS, CHANNELS, 1, 1))).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"b{block}.w"))
        for kind, inputs in (("Conv", [x, f"b{block}.w"]), ("Relu", [f"b{block}.Conv"]), ("Add", [f"b{block}.Relu", x]),
                             ("Mul", [f"b{block}.Add", "factor"])):
            made.append(helper.make_node(kind, inputs, [f"b{block}.{kind}"], f"/b{block}/{kind}"))
        x = f"b{block}.Mul"
    weights.append(numpy_helper.from_array(np.float32(0.7), "factor"))
    given, result = (helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in ("x", x))
    graph = helper.make_graph(made, "many", [given], [result], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def measure(*arguments: str) -> tuple[float, float]:
    """Runs a command with nothing stored; returns processor seconds and peak MB of its processes together."""
    seconds: dict[int, float] = {}
    peak = 0
    with subprocess.Popen([sys.executable, "-m", "trt_tui", *arguments], stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            resident = 0
            try:
                for one in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)):
                    times = one.cpu_times()
                    seconds[one.pid] = times.user + times.system
                    resident += one.memory_info().rss
            except psutil.Error:  # it has just ended
                pass
            peak = max(peak, resident)
            time.sleep(0.1)
    if process.returncode:
        raise SystemExit(f"{arguments[0]} failed")
    return sum(seconds.values()), peak / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[3000, 6000])
    for nodes in parser.parse_args().nodes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "many.onnx"
            write(path, nodes)
            for name, more in (("inspect", ()), ("compare", ("--samples", "4", "--layers", "none", "--no-preview",
                                                             "--seed", str(time.time_ns())))):
                seconds, peak = measure(name, str(path), *more)
                print(f"{nodes:6} nodes  {name:8} {seconds:7.1f} s of processor ({1e3 * seconds / nodes:.2f} ms a node)"
                      f"  {peak:6.0f} MB ({1024 * peak / nodes:.0f} kB a node)", flush=True)


if __name__ == "__main__":
    main()
