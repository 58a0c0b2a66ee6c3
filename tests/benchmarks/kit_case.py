"""What the comparisons with other kits share: environments, samples, errors, and rows in processes of their own.

A case is a folder with a network and calibration samples; the held-out samples lie in a folder inside. A row is a
process in the environment of its kit: ``python -m MODULE --row KIT ROW FOLDER``. It writes files and prints lines of
results. Seconds and processor seconds count from the start of the process, imports included, to the repaired file.
The peak memory is that of the process and its children until then.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

AIMET = ("torch==2.13.0", "aimet-onnx==2.42", "onnxscript")
MODELOPT = ("torch==2.13.0", "onnx==1.21.*", "onnxruntime==1.24.*", "nvidia-modelopt[onnx]")
ENVIRONMENTS = {"aimet": AIMET, "modelopt": MODELOPT}
ROOT = Path(__file__).parents[2]
HELD_OUT = "held-out"
_START = "KIT_ROW_START"
_SAMPLING_S = 0.1
ELAPSED_LIMIT = 10
"""The limit of elapsed seconds, in limits of processor seconds, for a machine that does other things."""
Feeds = list[dict[str, np.ndarray]]


# -- in all environments -----------------------------------------------------------------------------------------------


def read_feeds(folder: Path, part: str) -> Feeds:
    """The feeds of a part: ``calib``, ``calib-expected``, and ``judge``, ``judge-expected`` in the held-out folder."""
    feeds = []
    for path in sorted(folder.glob(f"{part}-[0-9]*.npz")):
        with np.load(path) as data:
            feeds.append(dict(data))
    return feeds


def sqnr_db(folder: Path, part: str, run: Callable[[dict[str, np.ndarray]], Sequence[np.ndarray]]) -> float:
    """The SQNR of the worst float output over the feeds of a part, as the commands of the program compute it."""
    sums: dict[int, np.ndarray] = {}
    for feed, expected in zip(read_feeds(folder, part), read_feeds(folder, f"{part}-expected"), strict=True):
        for index, (array, exact) in enumerate(zip(run(feed), expected.values(), strict=True)):
            sums[index] = sums.get(index, np.zeros(2)) + [
                np.square(np.float64(array) - exact).sum(),
                np.square(np.float64(exact)).sum(),
            ]
    return float(-10 * np.log10(max(error / energy for error, energy in sums.values())))


def file_db(folder: Path, part: str, model: Path) -> float:
    """The SQNR of a file in ONNX Runtime, with Q/DQ executed as written."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    types = {entry.name: np.float16 if "float16" in entry.type else None for entry in session.get_inputs()}
    return sqnr_db(
        folder,
        part,
        lambda feed: session.run(
            None, {name: array.astype(types[name]) if types[name] else array for name, array in feed.items()}
        ),
    )


def spent() -> dict[str, float]:
    """Seconds and processor seconds of this process and its ended children since its start."""
    return {"seconds": time.time() - float(os.environ[_START]), "processor_s": sum(os.times()[:4])}


def say(**values: object) -> None:
    """A line that `run_row` reads. The values of later lines replace those of earlier ones."""
    print("ROW " + json.dumps(values), flush=True)


# -- in the environment of the program ---------------------------------------------------------------------------------


def environment(directory: Path, name: str) -> str:
    """The interpreter of an environment with the packages of a kit, which is made at its first use."""
    python, packages = directory / name / "bin" / "python", ENVIRONMENTS[name]
    if not (directory / name / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", str(directory / name)], check=True)
        for end in range(1, len(packages) + 1, len(packages) - 1):  # torch first, so that a small build of it is taken
            subprocess.run([python, "-m", "pip", "install", "-q", *packages[:end]], check=True)
        (directory / name / "complete").touch()
    return str(python)


def make_network(name: str, directory: Path, samples: int) -> tuple[Path, Path]:
    """The network and its samples, which are exported in AIMET's environment, since that has torch."""
    model, data = directory / f"kits-{name}.onnx", directory / f"kits-{name}.npz"
    if not model.exists() or not data.exists():
        command = [
            environment(directory, "aimet"),
            "-m",
            "tests.benchmarks.kit_networks",
            name,
            str(directory),
            str(samples),
        ]
        subprocess.run(command, check=True, cwd=ROOT)
    return model, data


def split_feeds(data: Path, batch: int, samples: int) -> dict[str, dict[int, dict[str, np.ndarray]]]:
    """The feeds of both parts by number. Every other batch calibrates."""
    with np.load(data) as arrays:
        rows = dict(arrays)
    parts: dict[str, dict[int, dict[str, np.ndarray]]] = {"calib": {}, "judge": {}}
    for index in range(min(samples, *(len(array) for array in rows.values())) // batch):
        parts["judge" if index % 2 else "calib"][index] = {
            name: array[index * batch : (index + 1) * batch] for name, array in rows.items()
        }
    return parts


def write_case(model: Path, data: Path, folder: Path, batch: int, samples: int) -> None:
    """Writes the network, and feeds and FP32 outputs of both parts."""
    import onnx
    import onnxruntime

    held_out = folder / HELD_OUT
    held_out.mkdir(parents=True, exist_ok=True)
    for path in (*folder.iterdir(), *held_out.iterdir()):
        if path.is_file():
            path.unlink()
    onnx.save(onnx.load(model), folder / "model.onnx")
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    for part, feeds in split_feeds(data, batch, samples).items():
        place = find_place(folder, part)
        for index, feed in feeds.items():
            outputs = {f"{number:02}": array for number, array in enumerate(session.run(None, feed))}
            np.savez(place / f"{part}-{index:04}.npz", **feed)
            np.savez(place / f"{part}-expected-{index:04}.npz", **outputs)
        np.savez(
            place / f"{part}.npz",
            **{name: np.concatenate([feed[name] for feed in feeds.values()]) for name in next(iter(feeds.values()))},
        )


def find_place(folder: Path, part: str) -> Path:
    return folder / HELD_OUT if part == "judge" else folder


def find_changed_samples(data: Path, folder: Path, batch: int, samples: int) -> str:
    """How the samples of a written case differ from those of the arguments; empty if they do not differ.

    Stored rows hold only for the samples with which they were measured.
    """
    for part, feeds in split_feeds(data, batch, samples).items():
        stored = read_feeds(find_place(folder, part), part)
        sizes = [[len(next(iter(feed.values()))) for feed in one] for one in (stored, feeds.values())]
        if sizes[0] != sizes[1]:
            there, asked = (f"{len(one)} batches of {'/'.join(map(str, sorted(set(one)))) or 0}" for one in sizes)
            return f"they have {there} in the part {part}; --batch and --samples give {asked}"
        for one, other in zip(stored, feeds.values(), strict=True):
            if set(one) != set(other) or any(not np.array_equal(one[name], other[name]) for name in one):
                return f"the part {part} holds other values than {data.name}"
    return ""


def run_row(module: str, kit: str, row: str, folder: Path, directory: Path, limit_s: float) -> dict[str, Any]:
    """The values of a row and its peak memory in MB; ``failed`` is the reason if it did not end.

    Args:
        limit_s: The most processor seconds.
    """
    try:
        python = sys.executable if kit == "ours" else environment(directory, kit)
    except subprocess.CalledProcessError as error:
        return {"failed": f"{kit} cannot be installed: {error}"[:90]}
    kept = folder / "caches" / row.replace(" ", "-")
    shutil.rmtree(kept, ignore_errors=True)  # a row that is measured again starts with an empty cache
    caches = {f"XDG_{kind}_HOME": str(kept / kind) for kind in ("CACHE", "STATE")}
    return run_process([python, "-m", module, "--row", kit, row, str(folder)], limit_s, caches)


def run_process(command: Sequence[str], limit_s: float, variables: dict[str, str] | None = None) -> dict[str, Any]:
    """The values that a process says, with its peak memory until it says its seconds."""
    import psutil

    from tests.benchmarks import measure

    values: dict[str, Any] = {}
    errors: list[str] = []
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={
            **os.environ,
            **(variables or {}),
            _START: repr(time.time()),
            "ORT_DISABLE_TELEMETRY": "1",
            "PYTHONPATH": str(ROOT),
        },
    )

    def read_values() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("ROW "):
                values.update(json.loads(line[4:]))

    def read_errors() -> None:
        assert process.stderr is not None
        errors.extend(line.strip() for line in process.stderr if line.strip())

    readers = [threading.Thread(target=read, daemon=True) for read in (read_values, read_errors)]
    for reader in readers:
        reader.start()
    deadline, peak = time.monotonic() + ELAPSED_LIMIT * limit_s, 0
    while process.poll() is None:
        family = _family(process.pid)
        if "ended" not in values:
            peak = max(peak, measure.resident_bytes(process.pid))
        if (
            sum(_processor_s(member) for member in family[1:]) + (_processor_s(family[0], True) if family else 0)
            > limit_s
            or time.monotonic() > deadline
        ):
            values["failed"] = (
                f"not done in {limit_s:.0f} processor seconds"
                if time.monotonic() <= deadline
                else (f"not done in {ELAPSED_LIMIT * limit_s:.0f} s")
            )
            for member in reversed(family):
                try:
                    member.kill()
                except psutil.NoSuchProcess:
                    continue
            process.wait()
        time.sleep(_SAMPLING_S)
    for reader in readers:
        reader.join()
    if process.returncode and "failed" not in values:
        values["failed"] = (errors or [f"exit code {process.returncode}"])[-1][:90]
    return {**values, "mb": peak / 1e6}


def _family(pid: int) -> list[Any]:
    import psutil

    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _processor_s(process: Any, with_ended_children: bool = False) -> float:
    import psutil

    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(
        times.user + times.system + (times.children_user + times.children_system if with_ended_children else 0)
    )


def parse_arguments(about: str | None, names: Sequence[str], default: Sequence[str]) -> argparse.Namespace:
    """The arguments that the comparisons share; prints the machine."""
    from tests.benchmarks import measure

    parser = measure.parser(about, (*names, "MODEL.onnx=DATA.npz"), default=default)
    parser.add_argument("--limit", type=float, default=240, help="processor seconds for each row")
    parser.add_argument("--samples", type=int, default=64, help="of which half calibrate")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--only", action="append", help="only rows with this text, and those that they need")
    parser.add_argument("--resume", action="store_true", help="keep the rows that were measured before")
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    print(measure.machine(), "\n")
    return arguments


def list_networks(arguments: argparse.Namespace) -> Iterator[tuple[str, Path, Path]]:
    """The name, the file and the samples of each network of the arguments."""
    for name in arguments.networks:
        model, _, data = name.partition("=")
        paths = (Path(model), Path(data)) if data else make_network(name, arguments.directory, arguments.samples)
        yield Path(model).stem, *paths
