"""What the program writes, held against who reads it: a matrix of files and readers, each cell run.

    python -m tests.benchmarks.round_trips [--modelopt PYTHON] [--rtx] [--folder FOLDER]

Prints a Markdown table with what each reader said of each file, and exits with 1 if a cell says something else than
`CELLS` expects. ModelOpt runs in an environment of its own, whose Python is named: ``pip install
"nvidia-modelopt[onnx]"`` brings it. The cells of `QUICK` readers are run by
``tests/core/exporters/test_round_trips.py`` too.
"""

import argparse
import contextlib
import io
import logging
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import qdq_loss_debug
from onnxruntime.quantization.calibrate import CalibrationDataReader

from tests import networks, rtx
from trt_tui.core.calibration.cache import read_calibration_cache
from trt_tui.core.calibration.calibration import Calibration
from trt_tui.core.data.samples import load_samples
from trt_tui.core.data.tensor_files import DumpTensor, open_dump
from trt_tui.core.exporters import formats
from trt_tui.core.exporters.bundle import BundleContents, SampleRun, write_bundle
from trt_tui.core.importers.any_config import read_any_config
from trt_tui.core.moves.config import BarrierMove, KeepRuleMove, NormRewriteMove, PrecisionConfig, RangeMove
from trt_tui.core.moves.config_file import config_text
from trt_tui.core.moves.constant_moves import BiasCorrectionMove, SmoothQuantMove, encode_vector
from trt_tui.core.network.network import Network, open_network
from trt_tui.core.precision import Precision
from trt_tui.errors import TrtTuiError

CHANNELS = 16
FP32, FP16, INT8 = Precision.FP32, Precision.FP16, Precision.INT8


def every_kind() -> onnx.ModelProto:
    """A network with a place for every kind of move: products with biases, a decomposed LayerNorm, a Concat, Softmax.

    Input ``x`` float32 (4, 16), output ``y`` (4, 32).
    """
    b = networks.Builder(opset=17)

    def linear(source: str, name: str, inputs: int = CHANNELS, outputs: int = CHANNELS) -> str:
        product = b.node("MatMul", [source, b.kernel(f"{name}.weight", (inputs, outputs), inputs)], f"/{name}")
        return b.node("Add", [b.vector(f"{name}.bias", outputs), product], f"/{name}")

    x = linear("x", "in")
    x = b.node("Sub", [x, b.node("ReduceMean", [x], "/norm/mean", axes=[-1])], "/norm/centred")
    squared = b.node("Pow", [x, b.weight("two", np.array(2, np.float32))], "/norm/square")
    variance = b.node("ReduceMean", [squared], "/norm/variance", axes=[-1])
    root = b.node(
        "Sqrt", [b.node("Add", [variance, b.weight("eps", np.array(1e-6, np.float32))], "/norm/eps")], "/norm/root"
    )
    x = b.node("Mul", [b.node("Div", [x, root], "/norm/divided"), b.vector("scale", CHANNELS)], "/norm/scaled")
    x = b.node("Add", [x, b.vector("shift", CHANNELS)], "/norm/shifted")
    both = b.node(
        "Concat", [linear(x, "left"), b.node("Softmax", [linear(x, "right")], "/softmax", axis=-1)], "/both", axis=-1
    )
    b.node("Identity", [linear(both, "out", 2 * CHANNELS, 2 * CHANNELS)], "/end", output="y")
    return b.model([networks.floats("x", 4, CHANNELS)], [networks.floats("y", 4, 2 * CHANNELS)], name="every_kind")


def every_move(network: Network, *, free: bool = True) -> PrecisionConfig:
    """A config of `every_kind` with FP32, FP16 and INT8.

    Args:
        free: With a move of every kind; else of precisions alone.
    """
    named = {group.name: group for group in network.groups}
    config = PrecisionConfig.from_precision(INT8, FP16).with_group_precision(
        [named["/right/MatMul"], named["/both/Concat"]], FP32
    )
    if not free:
        return config
    norm = next(name for name in named if name.startswith("/norm"))
    read = [one.activation for one in network.zero_cost_support.channel_scalings[norm].readers]
    half = np.full(CHANNELS, 2, np.float32)
    config = config.with_moves({norm: NormRewriteMove("LayerNormalization")})
    config = config.with_moves({norm: SmoothQuantMove(0.5, encode_vector(half), dict.fromkeys(read, 1.25))})
    config = config.with_moves({"/out/MatMul": BiasCorrectionMove(encode_vector(np.zeros(2 * CHANNELS, np.float32)))})
    config = config.with_moves({named["/left/MatMul"].final_tensor: BarrierMove(), "x": RangeMove(2.5)})
    return config.with_moves({"/softmax/Softmax": KeepRuleMove("softmax", FP32)})


# -- what is written -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Written:
    """The files, and what they were made from."""

    folder: Path
    network: Network
    config: PrecisionConfig
    ranges: dict[str, float]
    x: np.ndarray

    def path(self, row: str) -> Path:
        """Returns the file of a row."""
        return self.folder / ROWS[row]


ROWS = {
    "precision.json": "precision.json",
    "trtexec script": "build",
    "polygraphy script": "script",
    "polygraphy command": "command",
    "ModelOpt's lists": "lists",
    "calibration cache": "ranges",
    "typed network": "build.typed.onnx",
    "base network": "build.base.onnx",
    "bundle": "bundle",
    "bundle's build.sh": "bundle/build.sh",
    "bundle for 8.6: build.sh": "old/build.sh",
    "bundle's inputs.json": "bundle/inputs.json",
    "bundle's reference.json": "bundle/reference.json",
}
"""The files by what they are. Their names have no ending where a user chooses them: content tells what they are."""


def write_all(folder: Path) -> Written:
    """Writes every file of `MAX_GROUP_ROWS`."""
    path = folder / "every_kind.onnx"
    onnx.save(every_kind(), path)
    network = open_network(path)
    x = np.random.default_rng(0).standard_normal((4, CHANNELS)).astype(np.float32)
    session = networks.quiet_session(onnx.load(path))
    config = every_move(network)
    ranges = {tensor: 1.5 + place for place, tensor in enumerate(network.calibrated_tensors)}
    calibration = Calibration("minmax", 4, "", ranges)
    text = config_text(network, config, calibration)
    (folder / "precision.json").write_text(text)
    for kind, name in (
        ("trtexec", "build"),
        ("polygraphy", "script"),
        ("modelopt", "lists"),
        ("calibration-cache", "ranges"),
    ):
        formats.write_export(kind, folder / name, network, config, ranges, calibration=calibration)
    heading = (folder / "script").read_text().split('"""')[1].replace("\\\\", "\\")
    (folder / "command").write_text(heading[heading.index("polygraphy convert") :].split("\n\n")[0] + "\n")
    (y,) = session.run(None, {"x": x})
    for release, name in (("10", "bundle"), ("8.6", "old")):
        (folder / name).mkdir()
        write_bundle(
            folder / name,
            BundleContents(
                release,
                network,
                config,
                ranges,
                text,
                "minmax",
                sample_source="four samples",
                sample_runs=[SampleRun({"x": x}, {"y": y}, {"y": y + np.float32(1e-2)})],
            ),
        )
    return Written(folder, network, config, ranges, x)


# -- who reads it ----------------------------------------------------------------------------------------------------


def as_config(written: Written, path: Path) -> str:
    """Reads a file as ``--config`` does, and compares what comes of it with what was written."""
    loaded, wanted = read_any_config(path, written.network), written.config
    before, now = wanted.precision_by_group(written.network), loaded.config.precision_by_group(written.network)
    others = [name for name in before if before[name] is not now[name]]
    same = not others and (loaded.config.tf32, loaded.config.other) == (wanted.tf32, wanted.other)
    told = {**written.ranges, **{tensor: one.amax for tensor, one in wanted.range_moves.items()}}
    wrong = [
        tensor
        for tensor, amax in loaded.calibration.ranges.items()
        if not np.isclose(amax, told[tensor], rtol=1e-6) and tensor not in loaded.config.range_moves
    ]
    said = [
        "the same precisions" if same else f"other precisions: {', '.join(others) or 'the defaults'}",
        f"{len(loaded.calibration.ranges)} ranges" + (f", other ones for {', '.join(wrong)}" if wrong else ""),
    ]
    said += ["every move"] if loaded.config.moves == wanted.moves else []
    said += [line.split(": not read: ")[1] for line in loaded.warnings if ": not read: " in line]
    return "; ".join(said)


def as_model(written: Written, path: Path) -> str:
    """Opens a network, and says what it has of its own."""
    network = open_network(path)
    given = [group.file_precision.label for group in network.groups if group.file_precision is not None]
    return f"opened, {' '.join(f'{given.count(one)} {one}' for one in sorted(set(given))) or 'all FP32'}"


def as_cache(written: Written, path: Path) -> str:
    """Reads a calibration cache, and compares it with the ranges."""
    found = read_calibration_cache(path)
    told = {**written.ranges, "x": 2.5}
    return (
        "the same ranges"
        if found.keys() == told.keys() and all(np.isclose(found[name], told[name], rtol=1e-6) for name in told)
        else f"other ranges: {found}"
    )


def as_data(written: Written, path: Path) -> str:
    """Reads inputs as ``--data`` does, or outputs as ``--reference`` does, and compares them."""
    if path.name == "inputs.json":
        feed = load_samples(path, written.network.inputs).read_feed(0)
        return "the same inputs" if np.array_equal(feed["x"], written.x) else "other inputs"
    exact = networks.quiet_session(onnx.load(written.network.path)).run(["y"], {"x": written.x})[0]
    y = DumpTensor(open_dump(str(path)), "y").read_iteration(0)
    return "the same outputs" if np.array_equal(y, exact) else "other outputs"


def by_polygraphy(written: Written, path: Path) -> str:
    """Has Polygraphy read a file: parse a command, or inspect a network or data."""
    from polygraphy.tools._main import main as polygraphy
    from polygraphy.tools.registry import TOOL_REGISTRY

    if path.name == "command":
        convert = next(tool for tool in TOOL_REGISTRY if tool.name == "convert")
        parser = argparse.ArgumentParser()
        convert.setup_parser(parser.add_subparsers())
        words = path.read_text().replace("\\\n", " ").split()
        taken = parser.parse_args(words[1:])
        return f"taken: int8 {taken.int8}, tf32 {taken.tf32}, {taken.trt_network_postprocess_script}"
    kind = "data" if path.suffix == ".json" else "model"
    out = io.StringIO()
    with contextlib.redirect_stdout(out), mock.patch("sys.argv", ["polygraphy", "inspect", kind, str(path)]):
        code = polygraphy()
    assert not code, out.getvalue()
    lines = [line.split("] ")[-1].strip() for line in out.getvalue().splitlines()]
    return "; ".join(line for line in lines if line.endswith("(s) ----") or line.startswith("===="))


def by_onnxruntime(written: Written, path: Path) -> str:
    """Runs a network in ONNX Runtime, and says how far its output is from FP32."""
    session = networks.quiet_session(onnx.load(path))
    reference = networks.quiet_session(onnx.load(written.network.path)).run(["y"], {"x": written.x})[0]
    error = session.run(["y"], {"x": written.x})[0] - reference
    return f"runs, {10 * np.log10((reference**2).sum() / max((error**2).sum(), 1e-30)):.0f} dB"


class _Feeds(CalibrationDataReader):
    def __init__(self, feeds: list[dict[str, np.ndarray]]) -> None:
        self.feeds = iter(feeds)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.feeds, None)


def by_loss_debugger(written: Written, path: Path) -> str:
    """Has ``qdq_loss_debug`` match activations and weights with the FP32 network, the weights after ONNX Runtime has
    written the file anew."""
    exact = path.with_name(path.name.replace("typed", "base"))
    activations, weights = matched(exact, path, {"x": written.x}, written.folder)
    pairs = [node for node in onnx.load(path).graph.node if node.op_type == "QuantizeLinear"]
    stored = {one.name for one in onnx.load(path).graph.initializer}
    makers = {output: node for node in onnx.load(path).graph.node for output in node.output}
    ends = [node.input[0] for node in pairs]
    ends = [makers[one].input[0] if one in makers and makers[one].op_type == "Cast" else one for one in ends]
    count = sum(one in stored for one in ends)
    return f"activations {len(activations)} of {len(set(ends) - stored)}, weights {len(weights)} of {count}"


def matched(exact: Path, typed: Path, feed: dict[str, np.ndarray], folder: Path) -> tuple[set[str], set[str]]:
    """The activations and weights that ``qdq_loss_debug`` matches, with their values in the FP32 network."""
    collected = []
    for name, path in (("exact", exact), ("typed", typed)):
        more = folder / f"{name}.more.onnx"
        qdq_loss_debug.modify_model_output_intermediate_tensors(path, more)
        collected.append(qdq_loss_debug.collect_activations(str(more), _Feeds([feed])))
    found = qdq_loss_debug.create_activation_matching(collected[1], collected[0])
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath, options.log_severity_level = str(folder / "stored.onnx"), 3
    onnxruntime.InferenceSession(str(typed), options, providers=["CPUExecutionProvider"])
    logging.disable(logging.ERROR)
    try:
        weights = qdq_loss_debug.create_weight_matching(str(exact), str(folder / "stored.onnx"))
    finally:
        logging.disable(logging.NOTSET)
    return {name for name, one in found.items() if "float" in one}, set(weights)


def by_rtx(written: Written, path: Path) -> str:
    """Builds a network with TensorRT-RTX."""
    import onnx_ir as ir

    return f"built, {len(rtx.layers(ir.load(path)).splitlines())} lines of layers"


def by_modelopt(python: str) -> Callable[[Written, Path], str]:
    """Returns a reader that has ModelOpt do what the lists say, and compares the layers that it made."""

    def read(written: Written, path: Path) -> str:
        script = (
            "import json, numpy as np\nDATA = {'x': np.load('x.npy')}\n"
            f"exec('\\n'.join(json.load(open({path.name!r}))['_usage']))\n"
        )
        np.save(written.folder / "x.npy", written.x)
        done = subprocess.run([python, "-c", script], cwd=written.folder, capture_output=True, text=True, check=False)
        if done.returncode:
            return "refused: " + done.stderr.strip().splitlines()[-1]
        made = open_network(written.folder / f"{path.name}.base.typed.onnx")
        given = {
            group.name: group.file_precision.nearest_precision.label
            for group in made.groups
            if group.file_precision is not None
        }
        asked = written.config.precision_by_group(written.network)
        others = [
            f"{name} {asked[name].label} as {given[name]}"
            for name in asked
            if name in given and asked[name].label != given[name]
        ]
        return f"made, other than asked: {', '.join(others)}" if others else "made as asked"

    return read


Reader = Callable[[Written, Path], str]
QUICK: dict[str, Reader] = {
    "--config": as_config,
    "MODEL": as_model,
    "--calib-cache": as_cache,
    "--data, --reference": as_data,
    "Polygraphy": by_polygraphy,
    "ONNX Runtime": by_onnxruntime,
    "qdq_loss_debug": by_loss_debugger,
}
SLOW: dict[str, Reader] = {"TensorRT-RTX": by_rtx}

_LACKS = (
    "the same precisions",
    "2 ranges",
    "written as LayerNormalization",
    "smoothed (0.5)",
    "bias corrected",
    "fusion barrier",
    "the keep rule of 1 row",
)
_NO_CONFIG = ("refused: ", "is a network, not a config", "--precision file")
CELLS: dict[tuple[str, str], tuple[str, ...]] = {
    ("precision.json", "--config"): ("the same precisions", "3 ranges", "every move"),
    ("trtexec script", "--config"): _LACKS,
    ("polygraphy script", "--config"): _LACKS,
    ("polygraphy command", "--config"): _LACKS,
    ("polygraphy command", "Polygraphy"): ("taken: int8 True, tf32 None, ['script']",),
    ("ModelOpt's lists", "--config"): _LACKS,
    ("ModelOpt's lists", "ModelOpt"): ("made as asked",),
    ("calibration cache", "--config"): ("refused: ", "is a calibration cache", "--calib-cache"),
    ("calibration cache", "--calib-cache"): ("the same ranges",),
    ("typed network", "--config"): _NO_CONFIG,
    ("typed network", "MODEL"): ("opened, 1 FP16 3 FP32 3 INT8",),
    ("typed network", "Polygraphy"): ("Node",),
    ("typed network", "ONNX Runtime"): ("runs, ",),
    ("typed network", "qdq_loss_debug"): ("activations 3 of 3, weights 3 of 3",),
    ("typed network", "TensorRT-RTX"): ("built, ",),
    ("base network", "--config"): _NO_CONFIG,
    ("base network", "MODEL"): ("opened, all FP32",),
    ("base network", "Polygraphy"): ("Node",),
    ("base network", "ONNX Runtime"): ("runs, ",),
    ("base network", "TensorRT-RTX"): ("built, ",),
    ("bundle", "--config"): ("refused: ", "is a folder", "bundle/precision.json"),
    ("bundle's build.sh", "--config"): ("refused: ", "strongly typed", "bundle/precision.json"),
    ("bundle for 8.6: build.sh", "--config"): ("the same precisions", "network.onnx has its own Q/DQ nodes"),
    ("bundle's inputs.json", "--data, --reference"): ("the same inputs",),
    ("bundle's reference.json", "--data, --reference"): ("the same outputs",),
    ("bundle's inputs.json", "Polygraphy"): ("Data (1 iterations)",),
    ("bundle's reference.json", "Polygraphy"): ("Run Results (1 runners)",),
}
"""What each cell has to say, in parts."""


def say(written: Written, row: str, reader: str, readers: dict[str, Reader]) -> str:
    """Returns what a reader says of a file; a refusal is what it refuses it with."""
    try:
        return readers[reader](written, written.path(row))
    except TrtTuiError as error:
        return f"refused: {error.title}. {error.next_step}"


def main() -> int:
    """Prints the matrix."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modelopt", metavar="PYTHON")
    parser.add_argument("--rtx", action="store_true")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    readers = {
        **QUICK,
        **(SLOW if options.rtx else {}),
        **({"ModelOpt": by_modelopt(options.modelopt)} if options.modelopt else {}),
    }
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        written, failed = write_all(folder), 0
        print("| file | reader | says | |\n| --- | --- | --- | --- |")
        for (row, reader), wanted in CELLS.items():
            if reader in readers:
                said = say(written, row, reader, readers)
                good = all(part in said for part in wanted)
                failed += not good
                said = said.replace("|", "/").replace(f"{folder}/", "")
                print(f"| {row} | {reader} | {said} | {'as expected' if good else 'NOT AS EXPECTED'} |")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
