"""Damaged files given to every reader: each is read, or refused with an `InputError`; nothing else comes through.

    python -m tests.fuzz.readers --cases 20000 --seed 1

A case that ends otherwise, or takes over `SLOW_S`, is printed with its reader and seed and kept in the folder named
with ``--keep``. The program may take `OUT_OF_MEMORY_PATTERN` bytes of address space at most.
"""

import argparse
import base64
import collections
import copy
import io
import json
import random
import resource
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tests import networks
from trt_tui.core.calibration.cache import read_calibration_cache, select_network_ranges, write_calibration_cache
from trt_tui.core.calibration.calibration import Calibration
from trt_tui.core.data.batches import parse_shapes
from trt_tui.core.data.samples import load_samples
from trt_tui.core.data.tensor_files import DumpTensor, open_dump, write_run_results
from trt_tui.core.engines.inspector import read_engine_report, read_profile_report
from trt_tui.core.exporters import formats
from trt_tui.core.importers.any_config import read_any_config
from trt_tui.core.moves.config import PrecisionConfig, RangeMove
from trt_tui.core.moves.config_file import config_text, read_config
from trt_tui.core.network.network import Network, open_network
from trt_tui.core.precision import Precision
from trt_tui.core.runner import TensorInfo
from trt_tui.errors import InputError
from trt_tui.jobs.store import ResultCache
from trt_tui.session.history import ChangeHistory, ConfigNames, SavedSession, SessionFolder

SLOW_S = 20.0
MEMORY = 8 << 30
INPUTS = [TensorInfo("x", np.dtype("float32"), ("N", 3)), TensorInfo("mask", np.dtype("int64"), ("N",))]

NASTY_BYTES = (
    b"-1",
    b"0",
    b"True",
    b"None",
    b"null",
    b"NaN",
    b"Infinity",
    b"1e999",
    b"9" * 5000,
    b"99999999999999999999",
    b"[]",
    b"{}",
    b"[" * 3000,
    b"(" * 300,
    b'"',
    b"\\ud800",
    b"\xff\xfe",
    b"\x00" * 8,
    b"\x1b[31m",
    b"tf32",
    b"fp8",
    b"\n",
    b",",
    b"\xff" * 8,
    b"PK\x03\x04",
    b"PK\x01\x02",
    b"|O",
    b"<U0",
    b">f8",
    b"'",
    b"#",
)
NASTY_VALUES = (
    None,
    True,
    False,
    -1,
    0,
    1,
    2**31,
    -(2**63),
    10**300,
    10**4000,
    0.5,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    "\ud800",
    "\x1b]0;x\x07",
    "tf32",
    "fp8",
    "fp32",
    "int8",
    "a" * 5000,
    [],
    [[]],
    [1],
    {},
    {"": None},
    {"precision": []},
    {"polygraphy_class": "ndarray"},
    {"polygraphy_class": 1, "array": "x"},
    {"amax": -1},
    {"array": [], "x": {}},
)


@dataclass(frozen=True)
class Reader:
    """What is read: its file's name, sound contents, whether these are JSON, and how it is read to its end."""

    name: str
    file: str
    sound: tuple[bytes, ...]
    read: Callable[[Path], object]
    is_json: bool = False


def readers(network: Network) -> tuple[Reader, ...]:
    """Every reader of files that come from elsewhere, the network's aside."""
    outline = network.build_outline()
    config = (
        PrecisionConfig()
        .with_group_precision(network.groups[:1], Precision.FP32)
        .with_range(network.calibrated_tensors[0], RangeMove(2.5, "entropy"))
    )
    ranges = dict.fromkeys(network.calibrated_tensors, 1.5)

    def told(kind: str) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            formats.write_export(kind, Path(folder) / "told", network, config, ranges)
            return (Path(folder) / "told").read_bytes()

    def imported(path: Path) -> None:
        read_any_config(path, network, force=True).config.precision_by_group(network)

    def configs(path: Path) -> None:
        for force in (False, True):
            loaded = read_config(path, network, force=force, sha256="")
            loaded.config.precision_by_group(network)
            config_text(network, loaded.config, tolerance=loaded.tolerance, sha256="").encode()

    def sessions(path: Path) -> None:
        store = SessionFolder(path.parent)
        saved = store.load_session(path.stem, str(outline.path), outline)
        store.release_session_lock()
        if saved is not None:
            for one in (saved.to_change_history().state.config, *saved.to_config_names()):
                one.precision_by_group(network)
        elif store.load_failures:
            raise InputError(*store.load_failures)
        else:
            raise AssertionError("a session was lost without a word")

    def results(path: Path) -> None:
        cache = ResultCache(path.parent)
        (path.parent / "00").mkdir(exist_ok=True)
        path.replace(path.parent / "00" / path.name)
        found = cache.get(path.name, Calibration)
        (path.parent / "00" / path.name).rename(path)
        if found is None:
            raise InputError("no result")
        dict(found.ranges)

    return (
        Reader("npz", "data.npz", (_npz(zipfile.ZIP_STORED), _npz(zipfile.ZIP_DEFLATED)), _read_samples),
        Reader("inputs JSON", "data.json", (_inputs_json(),), _read_samples, True),
        Reader("dump", "dump.json", (_run_results(), _trtexec_outputs()), _read_dump, True),
        Reader(
            "config",
            "precision.json",
            (
                config_text(
                    network, config, _Ranges(ranges), evidence={"simulated": {"x": 1}}, tolerance="sqnr>=20", sha256=""
                ).encode(),
            ),
            configs,
            True,
        ),
        Reader(
            "another tool's config",
            "told",
            (
                told("trtexec"),
                told("polygraphy"),
                b"polygraphy convert a.onnx --fp16 --int8 --layer-precisions a:float32 --tf32",
                b"quantize_mode: int8\nnodes_to_exclude: [a, b]\nop_types_to_exclude_fp16: [Conv]\n",
                b"from modelopt.onnx.quantization import quantize\nNAMES = ('a', 'b')\nquantize('a.onnx', 'int8', "
                b"nodes_to_exclude=NAMES, **{'calibration_method': 'max'})\n",
                b"config.set_flag(trt.BuilderFlag.FP16)\nfor i in range(network.num_layers):\n    if "
                b"network[i].name in ['a', 'b']:\n        network[i].precision = trt.float32\n",
            ),
            imported,
        ),
        Reader("ModelOpt's lists", "lists", (told("modelopt"),), imported, True),
        Reader(
            "cache",
            "a.cache",
            (_cache(ranges),),
            lambda path: select_network_ranges(read_calibration_cache(path), ranges),
        ),
        Reader("session", "abc.json", (_session(outline, config),), sessions, True),
        Reader(
            "layers of an engine",
            "layers.json",
            (_layers(network),),
            lambda path: read_engine_report(path.read_bytes().decode("utf-8", "replace"), network),
            True,
        ),
        Reader(
            "profile of an engine",
            "p.profile.json",
            (_profile(network),),
            lambda path: read_profile_report(path, outline),
            True,
        ),
        Reader("results", "00ff", (_results(ranges),), results),
        Reader(
            "shapes",
            "shapes.txt",
            (b"x:1x3:4x3:8x3", b"mask:16"),
            lambda path: parse_shapes([path.read_bytes().decode("utf-8", "replace")], INPUTS),
        ),
    )


class _Ranges:
    method, samples, data_sha256 = "minmax", 4, "ab"

    def __init__(self, ranges: dict[str, float]) -> None:
        self.ranges = ranges
        self.ranges_by_type: dict[str, dict[str, float]] = {}


def _read_dump(path: Path) -> None:
    dump = open_dump(str(path))
    for name in dump.tensor_names:
        for index in range(len(dump.iterations)):
            DumpTensor(dump, name).read_iteration(index)


def _read_samples(path: Path) -> None:
    samples = load_samples(path, INPUTS, limit=64)
    for index in range(min(len(samples), 8)):
        samples.read_feed(index)
        samples.read_labels(index)


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def _arrays() -> dict[str, np.ndarray]:
    return {"x": np.arange(24, dtype=np.float32).reshape(8, 3), "mask": np.ones(8, np.int64), "y": np.arange(8)}


def _npz(method: int, change: Callable[[bytes], bytes] = bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, array in _arrays().items():
            archive.writestr(f"{name}.npy", change(_npy(array)))
    return buffer.getvalue()


def _inputs_json() -> bytes:
    feed = {
        name: {"array": base64.b64encode(_npy(array)).decode(), "polygraphy_class": "ndarray"}
        for name, array in _arrays().items()
    }
    return json.dumps([feed, {**feed, "y": [0]}]).encode()


def _run_results() -> bytes:
    stream = io.BytesIO()
    list(write_run_results(stream, [("trt", [_arrays(), _arrays()])]))
    return stream.getvalue()


def _trtexec_outputs() -> bytes:
    return json.dumps(
        [
            {"name": name, "dimensions": "x".join(map(str, array.shape)), "values": array.reshape(-1).tolist()}
            for name, array in _arrays().items()
        ]
    ).encode()


def _cache(ranges: dict[str, float]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        write_calibration_cache(Path(folder) / "c", ranges)
        return (Path(folder) / "c").read_bytes()


def _results(ranges: dict[str, float]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        ResultCache(Path(folder)).put("00ff", Calibration("minmax", 4, "ab", ranges))
        return (Path(folder) / "00" / "00ff").read_bytes()


def _session(outline: Any, config: PrecisionConfig) -> bytes:
    history = ChangeHistory(PrecisionConfig())
    history.push_config(config)
    with tempfile.TemporaryDirectory() as folder:
        saved = SavedSession.from_state(outline, history, ConfigNames([(config, "first")]), "sqnr>=20")
        SessionFolder(Path(folder)).save_session("abc", saved)
        return (Path(folder) / "abc.json").read_bytes()


def _layers(network: Network) -> bytes:
    tensor = {"Name": "t", "Dimensions": [1, 2], "Format/Datatype": "Row major linear FP16"}
    return json.dumps(
        {
            "Layers": [
                {
                    "Name": layer.name,
                    "LayerType": "gemm",
                    "Inputs": [tensor],
                    "Outputs": [tensor],
                    "Weights": {"Type": "Half"},
                    "TacticName": "sm80",
                    "Metadata": f"[ONNX Layer: {layer.name}]",
                }
                for layer in network.layers
            ]
        }
    ).encode()


def _profile(network: Network) -> bytes:
    layers = [
        {"name": layer.name, "timeMs": 2.0, "averageMs": 0.5, "medianMs": 0.5, "percentage": 9.0}
        for layer in network.layers
    ]
    return json.dumps([{"count": 4}, *layers]).encode()


def damaged(reader: Reader, rng: random.Random) -> bytes:
    """A sound file of a reader, with one to four damages."""
    if reader.name == "npz" and rng.random() < 0.5:  # inside of the members, so that checksums hold
        method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
        return _npz(method, lambda member: _bytes(member, rng, 128) if rng.random() < 0.5 else member)
    data = rng.choice(reader.sound)
    if reader.is_json and rng.random() < 0.6:
        return _value(data, rng)
    return _bytes(data, rng)


def _bytes(data: bytes, rng: random.Random, within: int | None = None) -> bytes:
    raw = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        end = min(len(raw), within or len(raw))
        place = rng.randrange(end + 1)
        length = rng.choice((0, 1, 2, 4, 8, rng.randrange(end + 1)))
        match rng.randrange(6):
            case 0 if raw:
                raw[place % len(raw)] ^= 1 << rng.randrange(8)
            case 1 if within is None:
                del raw[place:]
            case 2:
                del raw[place : place + length]
            case 3:
                raw[place:place] = rng.choice(NASTY_BYTES)
            case 4:
                raw[place : place + length] = rng.choice(NASTY_BYTES)
            case _:
                other = rng.randrange(end + 1)
                raw[place : place + length] = raw[other : other + length]
    return bytes(raw)


def _value(data: bytes, rng: random.Random) -> bytes:
    """JSON with some of its values, keys or entries replaced."""
    record = json.loads(data)
    for _ in range(rng.randint(1, 3)):
        places = list(_places(record))
        holder, key = rng.choice(places)
        match rng.randrange(5) if isinstance(holder, dict) else 0:
            case 1:
                del holder[key]
            case 2:
                holder[rng.choice(("", "\ud800", "unknown", key + "x"))] = holder.pop(key)
            case 3:
                holder[key] = copy.deepcopy(rng.choice(places)[0])
            case _:
                holder[key] = copy.deepcopy(rng.choice(NASTY_VALUES))
        if not any(_places(record)):
            break
    return json.dumps(record).replace(str(10**4000), "9" * 5000).encode()


def _places(value: Any):
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


def run(cases: int, seed: int, folder: Path, keep: Path | None = None) -> tuple[collections.Counter, list[str]]:
    """Damages and reads files; returns how many were read and refused by each reader, and what went wrong."""
    network = opened(folder)
    every = readers(network)
    counts: collections.Counter = collections.Counter()
    wrong: list[str] = []
    for reader in every:
        for sound in reader.sound:
            (folder / reader.file).write_bytes(sound)
            reader.read(folder / reader.file)
        (folder / reader.file).unlink()
    for case in range(cases):
        reader = every[case % len(every)]
        rng = random.Random(f"{seed} {case}")
        content = damaged(reader, rng)
        path = folder / reader.file
        path.write_bytes(content)
        since = time.monotonic()
        try:
            reader.read(path)
            outcome = "read"
        except InputError as error:
            outcome = "refused"
            if not error.title or not str(error).strip():
                wrong.append(f"{reader.name}, case {case}: refused without a word")
        except BaseException:
            outcome = "wrong"
            wrong.append(f"{reader.name}, case {case} of seed {seed}:\n{traceback.format_exc(limit=-4)}")
        if (took := time.monotonic() - since) > SLOW_S:
            outcome = "wrong"
            wrong.append(f"{reader.name}, case {case} of seed {seed}: took {took:.0f} s")
        if outcome == "wrong" and keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            (keep / f"{seed}-{case}-{reader.file}").write_bytes(content)
        counts[f"{reader.name}, {outcome}"] += 1
        path.unlink(missing_ok=True)
    return counts, wrong


def opened(folder: Path) -> Network:
    onnx.save(networks.mlp(), folder / "net.onnx")
    return open_network(folder / "net.onnx")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path)
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with tempfile.TemporaryDirectory() as folder:
        counts, wrong = run(arguments.cases, arguments.seed, Path(folder), arguments.keep)
    for name, count in sorted(counts.items()):
        print(f"{count:7} {name}")
    for one in wrong:
        print(one)
    print(f"{arguments.cases} damaged files, {len(wrong)} went wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
