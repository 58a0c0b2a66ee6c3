"""Peak memory of `compare --layers errors` on a network with gigabytes of weights in external data.

    python -m tests.benchmarks.big_weights [--gigabytes 3] [--layers errors]

A chain of MatMuls of 2048×8192 with seeded weights, 4 samples in batches of 1, 2 threads. Printed are seconds and peak
resident memory, of all processes together, in multiples of the weights, and where there is `nvidia-smi` the peak of the
GPU's memory in use over what was in use before. It needs about three times the weights of disk and several times of
memory: run it alone.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import onnx
import psutil
from onnx import TensorProto, helper

from tests.benchmarks import measure

WIDE, NARROW = 8192, 2048
FILE = "weights.bin"


def write(folder: Path, gigabytes: float) -> int:
    """Writes the network and its data; returns the bytes of its weights."""
    rng, nodes, weights, offset = np.random.default_rng(0), [], [], 0
    pairs = max(1, round(gigabytes * 2**30 / (2 * 4 * WIDE * NARROW)))
    with open(folder / FILE, "wb") as file:
        for number in range(2 * pairs):
            shape = (NARROW, WIDE) if number % 2 == 0 else (WIDE, NARROW)
            array = rng.standard_normal(shape, dtype=np.float32) / np.sqrt(shape[0]).astype(np.float32)
            file.write(array.tobytes())
            tensor = TensorProto(
                name=f"w{number}", data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL
            )
            for key, value in (("location", FILE), ("offset", offset), ("length", array.nbytes)):
                tensor.external_data.add(key=key, value=str(value))
            weights.append(tensor)
            offset += array.nbytes
    value = "x"
    for number in range(2 * pairs):
        last = number == 2 * pairs - 1
        nodes.append(helper.make_node("MatMul", [value, f"w{number}"], [f"m{number}"], f"/{number}/MatMul"))
        nodes.append(helper.make_node("Tanh", [f"m{number}"], ["y" if last else f"t{number}"], f"/{number}/Tanh"))
        value = f"t{number}"
    given, result = ([helper.make_tensor_value_info(name, 1, ["batch", 8, NARROW])] for name in ("x", "y"))
    graph = helper.make_graph(nodes, "big", given, result, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "big.onnx").write_bytes(model.SerializeToString())
    onnx.load(folder / "big.onnx", load_external_data=False)
    np.savez(folder / "data.npz", x=rng.standard_normal((4, 8, NARROW), dtype=np.float32))
    return offset


def peak_bytes(process: subprocess.Popen, found: dict[str, int]) -> None:
    """Notes the most that the process and its children had resident, and its largest process."""
    with_children = psutil.Process(process.pid)
    while process.poll() is None:
        try:
            private = [one.memory_full_info().uss for one in with_children.children(recursive=True)]
        except psutil.NoSuchProcess:
            continue
        found["resident"] = max(found.get("resident", 0), measure.resident_bytes(process.pid))
        found["private"] = max(found.get("private", 0), sum(private))
        time.sleep(0.05)


def device_bytes() -> int:
    """The memory of the first GPU that is in use; 0 where nothing can say."""
    if shutil.which("nvidia-smi") is None:
        return 0
    said = subprocess.run(
        ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"],
        capture_output=True,
        text=True,
        check=False,
    )
    return int(said.stdout) << 20 if said.returncode == 0 else 0


def peak_device_bytes(process: subprocess.Popen, found: dict[str, int]) -> None:
    """Notes the most of the GPU's memory that was in use while the process ran."""
    while process.poll() is None and shutil.which("nvidia-smi"):
        found["device"] = max(found.get("device", 0), device_bytes())
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=3.0)
    parser.add_argument("--layers", default="errors", choices=["shares", "errors", "none"])
    arguments = parser.parse_args()
    print(measure.machine())
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        weights = write(folder, arguments.gigabytes)
        words = [
            sys.executable,
            "-m",
            "trt_tui",
            "compare",
            str(folder / "big.onnx"),
            "--data",
            str(folder / "data.npz"),
            "--calib-data",
            str(folder / "data.npz"),
            "--batch",
            "1",
            "--layers",
            arguments.layers,
        ]
        caches = {f"XDG_{kind}_HOME": str(folder / kind) for kind in ("CACHE", "STATE")}
        since, found, before = time.perf_counter(), {}, device_bytes()
        with subprocess.Popen(
            words,
            env={**os.environ, **caches, "OMP_NUM_THREADS": "2"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            watches = [
                threading.Thread(target=watch, args=(process, found)) for watch in (peak_bytes, peak_device_bytes)
            ]
            for watch in watches:
                watch.start()
            _, said = process.communicate()
            for watch in watches:
                watch.join()
        seconds = time.perf_counter() - since
        if process.returncode:
            sys.exit(said)
    rows = [
        (
            f"compare --layers {arguments.layers}",
            seconds,
            weights / 1e9,
            found["resident"] / 1e9,
            found["resident"] / weights,
            found["private"] / weights,
            (found.get("device", before) - before) / weights,
        )
    ]
    print(
        measure.table(
            ["", "s", "weights GB", "peak GB", "peak / weights", "private / weights", "device / weights"], rows
        )
    )


if __name__ == "__main__":
    main()
