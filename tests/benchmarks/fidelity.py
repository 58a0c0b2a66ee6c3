"""How far FP16 engines are from their simulation: mixes of FP16 and FP32 on whole networks, and single products.

    python -m tests.benchmarks.fidelity prepare FOLDER NAME=MODEL.onnx=DATA.npz=BATCH=LEVEL ...   ranges, FP32 outputs
    python -m tests.benchmarks.fidelity gather FOLDER OUT [NAME ...] [--done ENGINES.json] [--workers N] [--seconds S]
        [--tactic-sources=+A,-B]                                  all networks and "products", or those that are named
    python -m tests.benchmarks.fidelity show FOLDER OUT [NAME ...]      simulated against what was gathered
    python -m tests.benchmarks.fidelity codes FOLDER OUT                what INT8 kernels do between a sum and codes

``demo`` as a model stands for the bundled network. ``gather`` needs TensorRT and a GPU, the others neither. It builds
every mix of every network and every single product, several at a time, and writes OUT/engines.json (SQNR by sample in
dB, groups in FP16, seconds), OUT/errors.npz (engine minus FP32, of the first samples), OUT/products.npz (outputs of the
single products) and OUT/layers.json (what the inspector tells of each engine).
"""

import argparse
import functools
import json
import multiprocessing
import os
import shutil
import tempfile
import time
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.driven import run_to_end
from trt_tui import demo
from trt_tui.backends.onnxruntime import OnnxRuntimeBackend
from trt_tui.core.builder_options import BuilderOptions
from trt_tui.core.calibration.calibration import calibrate
from trt_tui.core.data.samples import Samples, load_samples
from trt_tui.core.lowering.gated.assembly import build_gated_graph
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import Network, open_network
from trt_tui.core.precision import Precision
from trt_tui.core.runner import BuildSettings
from trt_tui.workspace import BuildPlan, find_shape_profile

JUDGED = 16
FAITHFUL = 100.0
"""Engines of more dB were asked for FP16 where the builder took FP32."""
KEPT_BYTES = 400_000
"""Of each mix the errors of as many samples are kept as fit in here, but of one at least."""


@functools.cache
def simulation() -> OnnxRuntimeBackend:
    return OnnxRuntimeBackend("cpu")


class Case:
    """A prepared network.

    Attributes:
        level: The builder's optimization level.
        ranges: Calibrated amax by tensor.
        reference: FP32 outputs by name, the samples of all feeds one after the other.
    """

    def __init__(self, folder: Path, name: str) -> None:
        told = json.loads((folder / name / "case.json").read_text())
        self.name, self.level, self.ranges = name, told["level"], told["ranges"]
        model = folder / told["model"] if told["model"] != "demo" else demo.network_path()
        data = folder / told["data"] if told["data"] != "demo" else demo.samples_path()
        self.network: Network = open_network(model, simulation)
        self.samples: Samples = load_samples(data, self.network.inputs, batch=told["batch"], limit=JUDGED)
        with np.load(folder / name / "reference.npz") as stored:
            self.reference = {key.replace("|", "/"): stored[key] for key in stored.files}


def mixes(network: Network) -> dict[str, tuple[PrecisionConfig, int | None]]:
    """Configs by name, and the builder's level where it is not that of the others."""
    fp16, fp32 = PrecisionConfig.from_precision(Precision.FP16), PrecisionConfig.from_precision(Precision.FP32)
    able = [group for group in network.groups if Precision.FP16 in group.allowed_precisions]
    products = {group.name: depth for group in able if (depth := depth_of(network, group.layers))}
    middle = float(np.median([*products.values()]))
    rng = np.random.default_rng(0)

    def lowered(chosen) -> tuple[PrecisionConfig, None]:
        return fp32.with_group_precision([group for group in able if chosen(group)], Precision.FP16), None

    def drawn(share: float) -> tuple[PrecisionConfig, None]:
        names = {group.name for group in able if rng.random() < share}
        return lowered(lambda group: group.name in names)

    def some(number: int) -> tuple[PrecisionConfig, None]:
        chance = np.random.default_rng(number)
        names = chance.choice([group.name for group in able], max(1, round(len(able) * 0.8**number)), replace=False)
        return lowered(lambda group: group.name in names)

    half = {group.name for group in able[: len(able) // 2]}
    int8 = PrecisionConfig.from_precision(Precision.INT8, Precision.FP16)
    quantizable = [group for group in network.groups if group.is_quantizable]
    return {
        "FP16": (fp16, None),
        "INT8": (int8, None),
        "first half in FP16": lowered(lambda group: group.name in half),
        "last half in FP16": lowered(lambda group: group.name not in half),
        "random half": drawn(0.5),
        "another half": drawn(0.5),
        "random quarter": drawn(0.25),
        "three quarters": drawn(0.75),
        "long sums in FP16": lowered(lambda group: products.get(group.name, 0) > middle),
        "all but long sums in FP16": lowered(lambda group: products.get(group.name, 0) <= middle),
        "products in FP16": lowered(lambda group: group.name in products),
        "all but products in FP16": lowered(lambda group: group.name not in products),
        "INT8, half in FP16": (int8.with_group_precision(quantizable[::2], Precision.FP16), None),
        "FP16, level 3": (fp16, 3),
        **{f"drawn {number}": some(number) for number in range(1, 19)},
    }


def depth_of(network: Network, layers) -> int:
    """The number of products that the longest sum of these layers adds; 0 without a Conv, MatMul or Gemm."""
    longest = 0
    for layer in map(network.get_layer, layers):
        shapes = [network.shape(tensor) for tensor in layer.inputs]
        if layer.op_type == "Conv" and shapes[1]:
            longest = max(longest, int(np.prod(shapes[1][1:])))
        elif layer.op_type in ("MatMul", "Gemm") and shapes[1]:
            size = shapes[1][-1 if network.node(layer.name).attributes.get_int("transB", 0) else -2]
            longest = max(longest, size if isinstance(size, int) else 0)
    return longest


def product(what: str, depth: int, data: str) -> tuple[onnx.ModelProto, np.ndarray]:
    """One Conv or MatMul, and its input.

    Args:
        what: "conv1", "conv3" (3x3), "bias" (3x3 with a bias as large as eight results), "even" (as large as one),
            "skip" (3x3, plus the input times one, ReLU), "block" (the same with a bias as large as a result),
            "depthwise" (5x5), "between" (depthwise 3x3 with a bias between two identities of 1x1), "turned"
            (ConvTranspose 2x2 with a bias), "matmul", "gemm" (with a bias), "pair" (of two computed tensors). Behind
            "int8-" the same in INT8; with "-codes" a ReLU and an identity in INT8 follow, and tell codes.
        data: "normal", or "positive" (absolute values, as behind a ReLU), or "drift" (both operands have a mean).
    """
    rng = np.random.default_rng(depth)
    kind, what = what, what.removeprefix("int8-").removesuffix("-codes")

    def normal(shape: int | tuple[int, ...]) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    spread = np.float32(1 / np.sqrt(depth))
    nodes, weights = [], {}
    mean = np.float32(0.3 if data == "drift" else 0)
    if what in ("matmul", "gemm", "pair"):
        x = normal((1, 256, depth) if what != "gemm" else (256, depth))
        weights["w"] = (normal((depth, 128)) + mean) * spread
        if what == "gemm":
            weights["b"] = normal(128) * 4
            nodes.append(helper.make_node("Gemm", ["x", "w", "b"], ["y"], name="product"))
        elif what == "pair":
            nodes += [
                helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1], name="turn"),
                helper.make_node("MatMul", ["x", "t"], ["y"], name="product"),
            ]
            weights.clear()
            x = normal((4, 128, depth)) * np.float32(depth**-0.25)
        else:
            nodes.append(helper.make_node("MatMul", ["x", "w"], ["y"], name="product"))
    else:
        size = {"conv1": 1, "depthwise": 5, "turned": 1}.get(what, 3)
        alone, adds = what in ("depthwise", "between"), what in ("skip", "block")
        channels = max(depth // size**2, 1) if not alone else 64
        out = channels if alone or adds else 64
        x = normal((2, channels, 14, 14))
        weights["w"] = (normal((out, 1 if alone else channels, size, size)) + mean) * spread
        inputs = ["x", "w"]
        if what == "between":
            weights["one"] = np.eye(out, dtype=np.float32).reshape(out, out, 1, 1)
            nodes.append(helper.make_node("Conv", ["x", "one"], ["before"], name="before", kernel_shape=[1, 1]))
            inputs[0] = "before"
        if what in ("bias", "even", "block", "between", "turned"):
            weights["b"] = normal(out) * (8 if what == "bias" else 1)
            inputs.append("b")
        result = {"between": "behind"}.get(what, "p" if adds else "y")
        if what == "turned":
            weights["w"] = normal((channels, out, 2, 2)) * spread
            nodes.append(
                helper.make_node("ConvTranspose", inputs, ["y"], name="product", kernel_shape=[2, 2], strides=[2, 2])
            )
        else:
            nodes.append(
                helper.make_node(
                    "Conv",
                    inputs,
                    [result],
                    name="product",
                    kernel_shape=[size, size],
                    pads=[size // 2] * 4,
                    group=channels if alone else 1,
                )
            )
        if what == "between":
            nodes.append(helper.make_node("Conv", ["behind", "one"], ["y"], name="after", kernel_shape=[1, 1]))
        if adds:
            nodes += [
                helper.make_node("Add", ["p", "x"], ["s"], name="sum"),
                helper.make_node("Relu", ["s"], ["y"], name="relu"),
            ]
    if kind.endswith("-codes"):
        nodes[-1].output[0] = "r"
        if what != "skip":
            nodes.append(helper.make_node("Relu", ["r"], ["q"], name="relu"))
        last = nodes[-1].output[0]
        if what == "gemm":
            weights["identity"] = np.eye(128, dtype=np.float32)
            nodes.append(helper.make_node("Gemm", [last, "identity"], ["y"], name="told"))
        else:
            weights["identity"] = np.eye(out, dtype=np.float32).reshape(out, out, 1, 1)
            nodes.append(helper.make_node("Conv", [last, "identity"], ["y"], name="told", kernel_shape=[1, 1]))
    x = np.abs(x) if data == "positive" else x + mean
    graph = helper.make_graph(
        nodes,
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model), np.asarray(x, np.float32)


def products() -> list[tuple[str, int, str]]:
    """The single products that are built: what, how many values are summed, the kind of data."""
    depths = (64, 576, 1152, 4608)
    found = [("conv3", depth, data) for depth in depths[1:] for data in ("normal", "positive")]
    found += [("conv1", depth, data) for depth in (32, 64, 256, 576, 1152, 4608) for data in ("normal", "positive")]
    found += [("matmul", depth, data) for depth in (32, *depths, 384, 1536) for data in ("normal", "positive")]
    found += [("pair", depth, "normal") for depth in (32, 64, 128, 576)]
    found += [("gemm", depth, "normal") for depth in (384, 2048)]
    found += [
        ("conv3", 1152, "drift"),
        ("matmul", 1536, "drift"),
        ("bias", 576, "normal"),
        ("skip", 576, "normal"),
        ("depthwise", 25, "normal"),
        ("between", 9, "normal"),
        ("block", 576, "normal"),
    ]
    found += [("even", 9 * channels, "normal") for channels in (1, 3, 4, 8, 12, 24, 32, 40, 48, 64)]
    found += [("turned", depth, "normal") for depth in (24, 48, 72, 128)]
    found += [("conv1", depth, "normal") for depth in (12, 24, 48, 72)]
    found += [(f"int8-{what}{tail}", 576, "normal") for what in ("conv3", "bias", "skip") for tail in ("", "-codes")]
    found += [(f"int8-gemm{tail}", 384, "normal") for tail in ("", "-codes")]
    return found


def product_config(what: str) -> tuple[PrecisionConfig, dict[str, float]]:
    """What a single product is built in, and ranges of its tensors: round numbers near what they hold."""
    if not what.startswith("int8-"):
        return PrecisionConfig.from_precision(Precision.FP16), {}
    result = 24.0 if "bias" in what or "gemm" in what else 4.0
    ranges = {"x": 4.0, "p": 4.0, "q": result, "r": 6.0 if "skip" in what else result}
    return PrecisionConfig.from_precision(Precision.INT8, Precision.FP16), ranges


def backend_here() -> Any:
    from trt_tui.backends.tensorrt import TensorRTBackend

    return TensorRTBackend("tensorrt")


class Worker:
    """What a process holds between tasks."""

    def __init__(self, folder: Path, sources: tuple[str, ...] | None) -> None:
        self.backend = backend_here()
        self.folder, self.sources = folder, sources
        self._cases: dict[str, Case] = {}

    def engine(self, network: Network, config: PrecisionConfig, ranges, profile, level: int | None):
        from trt_tui.jobs.engine_build import EngineBuilder
        from trt_tui.jobs.scheduler import Reporter

        production = BuilderOptions(optimization_level=level, tactic_sources=self.sources or ())
        settings = BuildSettings(profile=profile, builder_options=production)
        workspace = SimpleNamespace(network=network, builder=self.backend, ranges=ranges)
        steps = EngineBuilder(workspace, None, Reporter()).build(config, BuildPlan(settings, strict=True))
        return run_to_end(steps)

    def mix(self, name: str, label: str) -> dict[str, Any]:
        if name not in self._cases:
            self._cases[name] = Case(self.folder, name)
        case = self._cases[name]
        config, level = mixes(case.network)[label]
        feeds = range(len(case.samples))
        profile = find_shape_profile(case.network, case.samples, feeds)
        engine = self.engine(case.network, config, case.ranges, profile, case.level if level is None else level)
        found: dict[str, list[np.ndarray]] = {tensor: [] for tensor in case.reference}
        with self.backend.load_engine(engine.data) as runner:
            layers = runner.inspect()
            for index in feeds:
                for tensor, array in runner.run(case.samples.read_feed(index), list(case.reference)).items():
                    found[tensor].append(np.asarray(array, np.float32))
        errors, decibels = {}, {}
        for tensor, arrays in found.items():
            wanted = case.reference[tensor]
            error = np.concatenate(arrays) - wanted
            decibels[tensor] = sqnr(wanted, error).tolist()
            kept = max(1, KEPT_BYTES // max(1, 2 * error[0].size))
            size = float(np.abs(error).max()) or 1.0
            errors[f"{name}|{label}|{tensor.replace('/', '_')}|{size!r}"] = (error[:kept] / size).astype(np.float16)
        return {
            "network": name,
            "mix": label,
            "seconds": engine.seconds,
            "sqnr": decibels,
            "fp16": [group.name for group in case.network.groups if config.precision_of(group) is Precision.FP16],
            "errors": errors,
            "layers": layers,
        }

    def product(self, what: str, depth: int, data: str) -> dict[str, Any]:
        model, x = product(what, depth, data)
        with tempfile.TemporaryDirectory() as folder:
            onnx.save(model, Path(folder) / "product.onnx")
            network = open_network(Path(folder) / "product.onnx")
            engine = self.engine(network, *product_config(what), {}, 1)
        with self.backend.load_engine(engine.data) as runner:
            return {
                "product": f"{what}|{depth}|{data}",
                "seconds": engine.seconds,
                "layers": runner.inspect(),
                "y": runner.run({"x": x}, ["y"])["y"],
            }


def sqnr(wanted: np.ndarray, error: np.ndarray) -> np.ndarray:
    """dB by sample, along the first axis."""
    axes = tuple(range(1, wanted.ndim))
    power = np.square(wanted, dtype=np.float64).sum(axes)
    noise = np.square(error, dtype=np.float64).sum(axes)
    return 10 * np.log10(np.maximum(power, 1e-300) / np.maximum(noise, 1e-300))


_worker: Worker | None = None


def _start(folder: Path, sources: tuple[str, ...] | None) -> None:
    global _worker
    _worker = Worker(folder, sources)


def _do(task: tuple[str, tuple]) -> dict[str, Any]:
    assert _worker is not None
    kind, arguments = task
    try:
        return _worker.mix(*arguments) if kind == "mix" else _worker.product(*arguments)
    except Exception as error:  # the others go on
        return {"failed": f"{kind} {arguments}", "why": f"{error}: {traceback.format_exc()[-1500:]}"}


def gather(
    folder: Path,
    out: Path,
    only: list[str],
    done: list[dict[str, Any]],
    workers: int,
    seconds: float,
    sources: tuple[str, ...] | None,
) -> None:
    """Builds what is not among the rows that are done; mixes of floats before those of INT8."""
    began = time.monotonic()
    had = {row.get("product") or f"{row['network']}|{row['mix']}" for row in done if "failed" not in row}
    names = [name for path in sorted(folder.glob("*/case.json")) if (name := path.parent.name) in only or not only]
    tasks: list[tuple[str, tuple]] = [("product", one) for one in products() if "products" in only or not only]
    labels = {name: sorted(mixes(Case(folder, name).network), key=lambda label: "INT8" in label) for name in names}
    for index in range(max(map(len, labels.values()), default=0)):
        tasks += [("mix", (name, labels[name][index])) for name in names if index < len(labels[name])]
    tasks = [(kind, what) for kind, what in tasks if "|".join(map(str, what)) not in had]
    rows, layers, errors, outputs = [], {}, {}, {}
    out.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    with context.Pool(workers, _start, (folder, sources)) as pool:
        found = pool.imap_unordered(_do, tasks)
        for _ in tasks:
            try:
                made = found.next(max(0.1, seconds - (time.monotonic() - began)))
            except multiprocessing.TimeoutError:
                print("out of time", flush=True)
                break
            if "failed" in made:
                print(made["failed"], made["why"], flush=True)
                rows.append(made)
                continue
            label = made.get("product") or f"{made['network']}|{made['mix']}"
            layers[label] = made.pop("layers")
            if "product" in made:
                outputs[label] = made.pop("y")
            else:
                errors.update(made.pop("errors"))
                print(label, {k: round(float(np.mean(v)), 2) for k, v in made["sqnr"].items()}, flush=True)
            rows.append(made)
        pool.terminate()
    (out / "engines.json").write_text(json.dumps(rows))
    (out / "layers.json").write_text(json.dumps(layers))
    np.savez_compressed(out / "errors.npz", **errors)
    np.savez_compressed(out / "products.npz", **outputs)
    print(f"{len(rows)} of {len(tasks)} in {time.monotonic() - began:.0f} s", flush=True)


def show(folder: Path, out: Path, names: list[str]) -> None:
    """Simulated less engine (dB over all samples), with products summed in FP32 and as kernels for FP16 sum them; ranks
    and medians of the mixes without INT8 that the builder took for more than FP32."""
    rows = [row for row in json.loads((out / "engines.json").read_text()) if "mix" in row]
    print("| network | mix | output | engine | sums in FP32 | sums in FP16 |\n" + "| --- " * 6 + "|")
    for name in names or sorted({row["network"] for row in rows}):
        case = Case(folder, name)
        gated = build_gated_graph(case.network)
        gates = {one["sums"]: np.array(False) for one in gated.gates.values() if "sums" in one}
        noises: dict[str, list[np.ndarray]] = {tensor: [] for tensor in case.reference}
        powers = {tensor: energy(wanted) for tensor, wanted in case.reference.items()}
        with simulation().load(gated.model) as runner:
            for row in (row for row in rows if row["network"] == name):
                config, _ = mixes(case.network)[row["mix"]]
                fed = gated.make_feed(config, case.ranges)
                made = [
                    [
                        runner.run(
                            {**case.samples.read_feed(index), **fed, **more},
                            [gated.test_outputs[tensor] for tensor in case.reference],
                        )
                        for index in range(len(case.samples))
                    ]
                    for more in (gates, {})
                ]
                for tensor, wanted in case.reference.items():
                    power = powers[tensor]
                    found = [power / 10 ** (np.array(row["sqnr"][tensor], np.float64) / 10)]
                    found += [
                        energy(np.concatenate([one[gated.test_outputs[tensor]] for one in way]) - wanted)
                        for way in made
                    ]
                    engine, *levels = (decibel(power, noise) for noise in found)
                    if "INT8" not in row["mix"] and engine < FAITHFUL:
                        noises[tensor].append(np.array(found))
                    print(
                        f"| {name} | {row['mix']} | {tensor} | {engine:.2f} | "
                        + " | ".join(f"{level - engine:+.2f}" for level in levels)
                        + " |",
                        flush=True,
                    )
        for tensor, ones in noises.items():
            engine, *ways = np.moveaxis(np.array(ones), 1, 0)  # each by mix and sample
            gaps = [
                [
                    abs(decibel(powers[tensor], one) - decibel(powers[tensor], other))
                    for one, other in zip(way, engine, strict=True)
                ]
                for way in ways
            ]
            print(
                f"| {name} | median and largest size, {len(ones)} mixes | {tensor} | | "
                + " | ".join(f"{np.median(gap):.2f}, {max(gap):.2f}" for gap in gaps)
                + " |"
            )
            print(
                f"| {name} | ranks | {tensor} | | "
                + " | ".join(ranks(powers[tensor], engine, way) for way in ways)
                + " |",
                flush=True,
            )


def energy(array: np.ndarray) -> np.ndarray:
    """Sum of squares by sample, along the first axis."""
    return np.square(array, dtype=np.float64).reshape(len(array), -1).sum(1)


def ranks(power: np.ndarray, engine: np.ndarray, simulated: np.ndarray) -> str:
    """Spearman's correlation with its 95 % interval (bootstrap over mixes and samples), and of the pairs that engines
    set at least 0.5 dB apart how many stand in their order (`noises` by mix and sample)."""
    rng = np.random.default_rng(0)

    def levels(chosen: np.ndarray, samples: np.ndarray) -> list[np.ndarray]:
        return [10 * np.log10(power[samples].sum() / way[chosen][:, samples].sum(1)) for way in (engine, simulated)]

    count, size = engine.shape
    draws = [rank_correlation(*levels(rng.integers(0, count, count), rng.integers(0, size, size))) for _ in range(2000)]
    low, high = np.nanpercentile(draws, [2.5, 97.5])
    one, other = levels(np.arange(count), np.arange(size))
    apart = [(a, b) for a in range(count) for b in range(a) if abs(one[a] - one[b]) >= 0.5]
    agree = sum((one[a] > one[b]) == (other[a] > other[b]) for a, b in apart)
    return f"{rank_correlation(one, other):.3f} [{low:.2f}, {high:.2f}], {agree} of {len(apart)} pairs"


def rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's; equal values share their mean rank."""
    places = []
    for array in (one, other):
        _, inverse, counts = np.unique(array, return_inverse=True, return_counts=True)
        places.append((np.cumsum(counts) - (counts + 1) / 2)[inverse.reshape(-1)])
    return float(np.corrcoef(np.stack(places))[0, 1])


def codes(out: Path) -> None:
    """Of the codes that INT8 kernels of single products yield, how many in a thousand differ from what is computed: in
    FP32 from the sum to the codes, with FP16 once behind the bias, with FP16 before and behind the bias."""

    def half(array: np.ndarray) -> np.ndarray:
        return array.astype(np.float16).astype(np.float32)

    with np.load(out / "products.npz") as stored:
        told = {key: stored[key] for key in stored.files if "-codes|" in key}
    print("| product | codes | FP32 | FP16 behind the bias | FP16 before and behind |\n" + "| --- " * 5 + "|")
    for key, result in told.items():
        what, depth, data = key.split("|")
        model, x = product(what, int(depth), data)
        ranges = product_config(what)[1]
        held = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
        step, weight = np.float32(ranges["x"] / 127), held["w"]
        read = np.clip(np.rint(x / step), -128, 127)
        kernel = weight.reshape(len(weight), -1).T if "gemm" not in what else weight
        steps = (np.abs(kernel).max(0) / 127).astype(np.float32)
        padded = np.pad(read, ((0, 0), (0, 0), (1, 1), (1, 1))) if "gemm" not in what else read
        columns = (
            padded
            if "gemm" in what
            else np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
            .transpose(0, 2, 3, 1, 4, 5)
            .reshape(*x.shape[:1], *x.shape[2:], -1)
        )
        exact = columns.astype(np.float64) @ np.rint(kernel / steps).astype(np.float64)
        scaled = (exact * (step * steps)).astype(np.float32)
        bias = held.get("b", np.zeros(kernel.shape[1], np.float32))
        skip = (read * step).transpose(0, 2, 3, 1) if "skip" in what else np.float32(0)
        last = np.float32(ranges["r" if "skip" in what else "q"] / 127)
        found = np.rint((result if "gemm" in what else result.transpose(0, 2, 3, 1)) / last)
        ways = (scaled + bias + skip, half(half(scaled + bias) + skip), half(half(half(scaled) + half(bias)) + skip))
        differ = [1e3 * np.mean(np.clip(np.rint(np.maximum(way, 0) / last), -128, 127) != found) for way in ways]
        print(f"| {what} | {found.size} | " + " | ".join(f"{one:.2f}" for one in differ) + " |")


def decibel(power: np.ndarray, noise: np.ndarray) -> float:
    return float(10 * np.log10(power.sum() / noise.sum()))


def prepare(folder: Path, texts: list[str]) -> None:
    for text in texts:
        name, model, data, batch, level = text.split("=")
        (folder / name).mkdir(parents=True, exist_ok=True)
        network = open_network(demo.network_path() if model == "demo" else model, simulation)
        samples = load_samples(
            demo.samples_path() if model == "demo" else data, network.inputs, batch=int(batch) or None, limit=JUDGED
        )
        ranges = calibrate(network.model, network.calibrated_tensors, samples, simulation()).ranges
        outputs: dict[str, list[np.ndarray]] = {}
        with simulation().load(network.model) as runner:
            for index in range(len(samples)):
                for tensor, array in runner.run(samples.read_feed(index)).items():
                    outputs.setdefault(tensor, []).append(array)
        np.savez(
            folder / name / "reference.npz",
            **{tensor.replace("/", "|"): np.concatenate(arrays) for tensor, arrays in outputs.items()},
        )
        for path in (model, data):
            if path != "demo" and not (folder / Path(path).name).exists():
                shutil.copy(path, folder)
        (folder / name / "case.json").write_text(
            json.dumps(
                {
                    "model": model if model == "demo" else Path(model).name,
                    "data": data if data == "demo" else Path(data).name,
                    "batch": int(batch) or None,
                    "level": int(level),
                    "ranges": dict(ranges),
                }
            )
        )
        print(f"{name}: {len(samples)} feeds, {len(network.groups)} groups, {len(mixes(network))} mixes", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["prepare", "gather", "show", "codes"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--done", type=Path)
    parser.add_argument("--tactic-sources")
    arguments = parser.parse_args()
    if arguments.what == "prepare":
        prepare(arguments.folder, arguments.rest)
        return
    if arguments.what == "show":
        show(arguments.folder, Path(arguments.rest[0]), arguments.rest[1:])
        return
    if arguments.what == "codes":
        codes(Path(arguments.rest[0]))
        return
    sources = tuple(arguments.tactic_sources.split(",")) if arguments.tactic_sources else None
    done = json.loads(arguments.done.read_text()) if arguments.done else []
    gather(
        arguments.folder,
        Path(arguments.rest[0]),
        arguments.rest[1:],
        done,
        arguments.workers,
        arguments.seconds,
        sources,
    )


if __name__ == "__main__":
    main()
