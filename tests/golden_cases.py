"""Six small networks with their data, and the commands whose texts and files are kept in ``tests/golden``."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import struct
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from tests import networks

Command = tuple[str, ...]
SCORE = Path(__file__).parent / "standins" / "score.py"
DATA = ("--data", "data.npz")
EXPORTS = {
    "trtexec": "trtexec.sh",
    "polygraphy": "polygraphy.py",
    "modelopt": "modelopt.sh",
    "calibration-cache": "calibration.cache",
    "markdown": "config.md",
}
"""The file that each format writes."""


@dataclass(frozen=True)
class GoldenCase:
    """A network with its data, and what is run on it.

    Attributes:
        write_files: Writes ``model.onnx``, ``data.npz`` and what else is needed into a folder.
        options: Options of ``compare`` and ``search``.
        tolerance: Tolerance of a search; "" for none.
        formats: Formats in which the config of that search is exported.
        commands: Further commands, after the others.
        keys: Keys that are pressed before each drawing of the app; () for a case without a screen.
    """

    write_files: Callable[[Path], None]
    options: Command = DATA
    tolerance: str = ""
    formats: Sequence[str] = ()
    commands: Sequence[Command] = ()
    keys: Sequence[str] = ("", "n", "8 2")

    def command_lines(self) -> list[Command]:
        """Returns the commands in the order in which they are run, without the program's name."""
        listed: list[Command] = []
        if self.keys:
            listed = [
                ("inspect", "model.onnx", "--nodes"),
                ("scheme", "model.onnx", "--precision", "int8", "--json", "scheme.json"),
                ("preflight", "model.onnx", *self.options, "--json", "preflight.json"),
                ("compare", "model.onnx", *self.options, "--json", "compare.json", "--markdown", "compare.md"),
            ]
        if self.tolerance:
            listed.append(
                (
                    "search",
                    "model.onnx",
                    *self.options,
                    "--tolerance",
                    self.tolerance,
                    "-o",
                    "found.json",
                    "--markdown",
                    "search.md",
                )
            )
        for name in self.formats:
            listed.append(("export", "model.onnx", "--config", "found.json", "--format", name, "-o", EXPORTS[name]))
        return [*listed, *self.commands]


def _save(folder: Path, model: onnx.ModelProto, **data: np.ndarray) -> None:
    onnx.save(model, folder / "model.onnx")
    np.savez(folder / "data.npz", **data)


def _images(model: onnx.ModelProto, count: int) -> dict[str, np.ndarray]:
    return networks.feeds(model, seed=1, n=count)


def write_float(folder: Path) -> None:
    """A residual classifier with labels; one channel of its first Conv is much larger than the others."""
    model = networks.small_resnet()
    images = _images(model, 16)
    runner = networks.quiet_session(model)
    labels = runner.run(None, images)[0].argmax(axis=1)
    _save(folder, model, **images, labels=labels)
    (folder / "metric.py").write_text(SCORE.read_text())


def write_quantized(folder: Path) -> None:
    """A convolutional network that ONNX Runtime has quantized."""
    model = networks.quantized()
    _save(folder, model, **_images(model, 16))


def write_dynamic(folder: Path) -> None:
    """An encoder of texts with a mask, whose batch and length are left open."""
    model = networks.bert()
    _save(folder, model, **networks.feeds(model, seed=1, n=12, sequence=10))


def write_plugin(folder: Path) -> None:
    """A network that ends in a plugin of TensorRT, which ONNX Runtime cannot run."""
    model = networks.small_resnet()
    (output,) = model.graph.output
    model.graph.node.append(helper.make_node("TopKLast_TRT", [output.name], ["best"], "best", domain="TRT", k=3))
    model.graph.output.append(helper.make_tensor_value_info("best", TensorProto.INT32, ["N", 3]))
    del model.graph.output[0]
    model.opset_import.append(helper.make_opsetid("TRT", 1))
    _save(folder, model, **_images(model, 16))


def write_detector(folder: Path) -> None:
    """Boxes and class scores of a 4 x 4 grid, with COCO annotations of 16 images and the metric of the page."""
    from tests.core.measure.test_detection import write_script

    write_script(folder, **{"INPUT_SIZE": (16, 16), "MIN_SCORE, MAX_BOXES": (0.001, 8)})  # draws take as long as boxes
    builder = networks.Builder(0)
    cells = builder.node("Relu", [builder.conv("images", (3, 16), "/stem", size=4, stride=4)], "/stem")
    cells = builder.node("Relu", [builder.conv(cells, (16, 16), "/body")], "/body")
    for name, channels, activation in (("boxes", 4, "Softplus"), ("scores", 3, "Sigmoid")):
        values = builder.conv(cells, (16, channels), f"/{name}", size=1, bias=True)
        shape = builder.weight(f"{name}.shape", np.array([0, channels, -1]))
        rows = builder.node("Reshape", [values, shape], f"/{name}")
        rows = builder.node("Transpose", [rows], f"/{name}", perm=[0, 2, 1])
        builder.node(activation, [rows], f"/{name}", output=name)
    model = builder.model(
        [networks.floats("images", "N", 3, 16, 16)],
        [networks.floats("boxes", "N", "cells", 4), networks.floats("scores", "N", "cells", 3)],
    )
    images = networks.feeds(model, seed=1, n=16)
    boxes, scores = networks.quiet_session(model).run(None, images)
    numbers = np.arange(1, 17)
    _save(folder, model, **images, image_id=numbers)
    annotations = []
    for image, best in zip(numbers, scores.max(axis=2).argsort(axis=1)[:, -3:], strict=True):
        for cell in best:
            x, y, width, height = (float(value) for value in boxes[image - 1, cell])
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": int(image),
                    "iscrowd": 0,
                    "category_id": int(scores[image - 1, cell].argmax()),
                    "area": width * height,
                    "bbox": [x - width / 2, y - height / 2, width, height],
                }
            )
    (folder / "instances.json").write_text(
        json.dumps(
            {
                "images": [{"id": int(number), "width": 16, "height": 16} for number in numbers],
                "categories": [{"id": number, "name": name} for number, name in enumerate(("cat", "dog", "bird"))],
                "annotations": annotations,
            }
        )
    )


def write_dumps(folder: Path) -> None:
    """Two dumps of one network, the second with a Conv in FP16 whose output is also scaled wrongly."""
    model = networks.small_resnet()
    image = networks.feeds(model, seed=1, n=16)
    _save(folder, model, **image)
    names = [name for node in model.graph.node for name in node.output]
    marked = onnx.ModelProto.FromString(model.SerializeToString())
    del marked.graph.output[:]
    marked.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    values = dict(zip(names, networks.quiet_session(marked).run(None, image), strict=True))
    rng = np.random.default_rng(0)
    np.savez(folder / "first.npz", **values)
    np.savez(
        folder / "second.npz",
        **{
            name: value
            + np.float32(0.3 if position in (4, 5) else 0.001)
            * rng.standard_normal(value.shape, np.float32)
            * value.std()
            for position, (name, value) in enumerate(values.items())
        },
    )


CASES = {
    "float": GoldenCase(
        write_float, (*DATA, "--metric", "metric.py:score", "--target", "metric>=base-0.1"), "sqnr>=38", tuple(EXPORTS)
    ),
    "quantized": GoldenCase(write_quantized),
    "dynamic": GoldenCase(write_dynamic, (*DATA, "--judge", "logits")),
    "plugin": GoldenCase(write_plugin),
    "detector": GoldenCase(write_detector, (*DATA, "--metric", "coco_map.py:mean_ap")),
    "dumps": GoldenCase(
        write_dumps,
        keys=(),
        commands=(
            ("dumps", "first.npz", "second.npz", "--model", "model.onnx", "--json", "compare.json", "-o", "fix.json"),
            ("export", "model.onnx", "--config", "fix.json", "--format", "polygraphy", "-o", "fix.py"),
        ),
    ),
}


# -- comparing texts ------------------------------------------------------------------------------------------------

VOLATILE = (
    (re.compile(r"(?<![\w.])(?:[0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{64})(?!\w)"), "HASH"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?([+-]\d\d:\d\d|Z)?"), "TIME"),
    (re.compile(r'("trt_tui": )"[^"]*"'), r'\1"VERSION"'),
    (re.compile(r"^\d+ tried; best so far.*\n", re.MULTILINE), ""),
    (re.compile(r" \(\d\S* \w+ with the measurement of the changes\)"), " (SECONDS)"),
    (re.compile(r"(✓ .*?)\b\d+\.\d s\b"), r"\1SECONDS"),
    (re.compile(r'("(?:seconds|duration_s|took_s)": )[\d.e+-]+'), r"\1SECONDS"),
)
"""What differs from run to run, and the word in its place; progress is told by the clock."""
_HEX_FLOAT = re.compile(r"(?<=: )([0-9a-f]{8})$", re.MULTILINE)
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?(?![\w])%?")
_BASE64 = re.compile(r"[A-Za-z0-9+/]{20,}={0,2}(?=\")")
TOLERANCE, RELATIVE_TOLERANCE = 0.05, 0.01
"""How far a value may be from the golden one: so many dB (or units), or such a share of it."""


def normalise(text: str) -> str:
    """Returns a text with fixed words for hashes and times, hexadecimal ranges as numbers, and at most two spaces
    between words."""
    for pattern, word in VOLATILE:
        text = pattern.sub(word, text)
    text = _HEX_FLOAT.sub(lambda match: repr(struct.unpack(">f", bytes.fromhex(match[1]))[0]), text)
    lines = (re.sub(r"(?<=\S) {2,}|─{2,}", lambda match: match[0][:2], line).rstrip() for line in text.splitlines())
    return "\n".join(lines) + "\n"


@functools.cache
def sum_order() -> str:
    """Returns a digest of all tensors of the cases in FP32. Processors with other vector instructions add in another
    order, which depends on the shapes of a layer."""
    digest = hashlib.sha256()
    for case in CASES.values():
        with tempfile.TemporaryDirectory() as folder:
            case.write_files(Path(folder))
            model = onnx.load(Path(folder) / "model.onnx")
            data = next(path for name in ("data.npz", "first.npz") if (path := Path(folder) / name).exists())
            arrays = dict(np.load(data))
        del model.graph.output[:]
        model.graph.output.extend(
            onnx.ValueInfoProto(name=name)
            for node in model.graph.node
            for name in node.output
            if name and not node.domain
        )
        try:
            session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        except onnxruntime.capi.onnxruntime_pybind11_state.Fail:
            continue  # a plugin
        rows = {
            info.name: info.shape[0] if info.shape and isinstance(info.shape[0], int) else 4
            for info in session.get_inputs()
        }
        if rows.keys() <= arrays.keys():
            for array in session.run(None, {name: arrays[name][:count] for name, count in rows.items()}):
                digest.update(np.asarray(array).tobytes())
    return digest.hexdigest()[:16]


def differences(golden: str, text: str, has_same_sums: bool = True) -> list[str]:
    """Returns the lines in which two normalised texts differ by more than the tolerances; both forms of each.

    Args:
        has_same_sums: False if another order of sums made the golden text. Rounding flips then change small values and
            the order of near equals, so that only the lines without their values are compared, in any order.
    """
    first, second = golden.splitlines(), text.splitlines()
    if not has_same_sums:
        first, second = (
            sorted(re.sub(r" +", " ", _NUMBER.sub("#", _BASE64.sub("#", line))) for line in lines)
            for lines in (first, second)
        )
    differing = []
    for number in range(max(len(first), len(second))):
        pair = [lines[number] if number < len(lines) else "" for lines in (first, second)]
        if not _same(*pair):
            differing += [f"{number + 1}: - {pair[0]}", f"{number + 1}: + {pair[1]}"]
    return differing


def _same(golden: str, line: str) -> bool:
    if golden == line:
        return True
    values, others = _NUMBER.findall(golden), _NUMBER.findall(line)
    if len(values) != len(others) or [*_NUMBER.split(golden)] != [*_NUMBER.split(line)]:
        return False
    return all(map(_near, values, others))


def _near(golden: str, value: str) -> bool:
    """Returns True if two numbers are equal, or near each other where they are no whole numbers."""
    if golden == value:
        return True
    if golden.endswith("%") and value.endswith("%"):
        return abs(float(golden[:-1]) - float(value[:-1])) <= 1
    if golden.lstrip("+-").isdigit() and value.lstrip("+-").isdigit():
        return False
    first, second = float(golden), float(value)
    return abs(first - second) <= max(TOLERANCE if abs(first) >= 1 else 0, RELATIVE_TOLERANCE * abs(first), 1e-6)
