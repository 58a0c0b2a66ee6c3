"""Quantized and typed files as they are: ONNX Runtime's run, the simulation of `file`, and what TensorRT-RTX builds.

    python -m tests.benchmarks.as_given FILE.onnx=DATA.npz[=REFERENCE.onnx] ... [--samples N] [--no-rtx]
    python -m tests.benchmarks.as_given --quantize FOLDER NETWORK.onnx=DATA.npz ...

Prints a Markdown table. Figures are SQNR in dB of the worst output over the judged samples: against the FP32 network
(REFERENCE, else the FP32 form of the file with its own weights, marked "own") of the file run with every Q/DQ as
written (``session.disable_quant_qdq=1``), by ONNX Runtime's default options, and simulated as in the file; and of the
simulation against the run as written. The last figure is taken with ONNX Runtime's other optimizations and without, and
followed by what these alone change. Then the export in ``file`` and the kernels that TensorRT-RTX names for compute
capability 8.9, with the type of what each multiplies. With ``--quantize`` ONNX Runtime's quantizer makes the files of
FP32 networks, calibrated with the samples that are not judged.
"""

import argparse
import collections
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import version_converter
from onnxruntime import quantization
from onnxruntime.quantization.shape_inference import quant_pre_process

from tests import rtx
from tests.benchmarks import measure
from tests.networks import Handed
from trt_tui.backends.onnxruntime import OnnxRuntimeBackend
from trt_tui.core.data.samples import SampleSplit, load_samples, split_samples
from trt_tui.core.lowering.gated.assembly import build_gated_graph
from trt_tui.core.lowering.typed_network import lower_from_source_model
from trt_tui.core.measure.error_metrics import ErrorSums
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import Network, open_network
from trt_tui.core.precision import Precision
from trt_tui.errors import TrtTuiError

Feeds = Mapping[str, np.ndarray]
Outputs = list[dict[str, np.ndarray]]

FILE = Precision.FILE
PER_CHANNEL_OPSET = 13
"""The first opset whose Q and DQ have scales along an axis."""

INT8 = {"activation_type": quantization.QuantType.QInt8, "weight_type": quantization.QuantType.QInt8}
QDQ = {"quant_format": quantization.QuantFormat.QDQ}
SYMMETRIC = {"extra_options": {"ActivationSymmetric": True}}
STATIC = {
    "qdq": {**QDQ, **INT8, **SYMMETRIC, "per_channel": True},
    "qdq_uint8": {**QDQ, "activation_type": quantization.QuantType.QUInt8, "weight_type": quantization.QuantType.QInt8},
}
"""What ONNX Runtime's static quantizer is asked for, by what its file is called."""

FLOATS = ("Float", "Half", "BFloat16")
"""What TensorRT-RTX calls the float types."""

ORT_TYPES = {"tensor(float16)": np.float16, "tensor(float)": np.float32, "tensor(double)": np.float64}


def options(**entries: str) -> onnxruntime.SessionOptions:
    made = onnxruntime.SessionOptions()
    made.log_severity_level = 4
    made.intra_op_num_threads = 1
    for name, value in entries.items():
        made.add_session_config_entry(f"session.{name}", value)
    return made


def run(path: Path, feeds: Sequence[Feeds], chosen: onnxruntime.SessionOptions) -> Outputs:
    """What ONNX Runtime computes from a file; floats are handed over in the types of its inputs."""
    session = onnxruntime.InferenceSession(path, chosen, providers=["CPUExecutionProvider"])
    kinds = {one.name: ORT_TYPES.get(one.type) for one in session.get_inputs()}
    names = [one.name for one in session.get_outputs()]
    return [
        dict(
            zip(
                names,
                session.run(
                    names,
                    {name: feed[name] if kind is None else feed[name].astype(kind) for name, kind in kinds.items()},
                ),
                strict=True,
            )
        )
        for feed in feeds
    ]


def simulated(network: Network, feeds: Sequence[Feeds], config: PrecisionConfig) -> Outputs:
    gated = build_gated_graph(network, float_types=(Precision.FP16, FILE), boundary_types=(FILE,))
    with OnnxRuntimeBackend("cpu").load(gated.model, low_memory=True) as runner:
        fetched = [
            runner.run({**feed, **gated.make_feed(config, {})}, list(gated.test_outputs.values())) for feed in feeds
        ]
    return [{tensor: one[name] for tensor, name in gated.test_outputs.items()} for one in fetched]


def sqnr_db(expected: Outputs, found: Outputs) -> float:
    """Of the worst float output; NaN where one holds NaN."""
    worst = np.inf
    for name in expected[0]:
        if expected[0][name].dtype.kind != "f":
            continue
        sums = ErrorSums()
        for one, other in zip(expected, found, strict=True):
            sums.add_tensor_pair(one[name].astype(np.float32), other[name].astype(np.float32))
        errors = sums.compute_error_metrics()
        if errors.nan or errors.inf:
            return np.nan
        if errors.sqnr_db is not None:
            worst = min(worst, errors.sqnr_db)
    return worst


def kernels(listing: str) -> str:
    """How many kernels of each kind an engine has, generated elementwise ones apart, as "12 gemm Int8"."""
    counted: collections.Counter[str] = collections.Counter()
    generated = 0
    for line in listing.splitlines()[1:]:
        kind = re.search(r"LayerType: (\w+)", line)
        if kind is None or kind[1] == "kgen":
            generated += kind is not None
            continue
        types = [
            re.findall(r"Datatype: (\w+)", part)[:1]
            for part in re.findall(r"(?:Inputs|Constants): \[(.*?)\](?=, (?:Constants|Outputs))", line)
        ]
        found = list(dict.fromkeys(one[0] for one in types if one))
        found = found[:1] + [one for one in found[1:] if not one.startswith(FLOATS)]  # scales lie among the constants
        counted[" ".join((kind[1], " × ".join(found)))] += 1
    return ", ".join([*(f"{count} {name}" for name, count in counted.most_common()), f"{generated} generated"])


def built(network: Network, sample: Feeds) -> str:
    """The export as in the file, built by TensorRT-RTX."""
    try:
        model = lower_from_source_model(network, PrecisionConfig.from_precision(FILE), {}).model
        started = time.monotonic()
        listing = rtx.layers(model, {name: array.shape for name, array in sample.items()})
    except (TrtTuiError, AssertionError) as error:
        return " ".join(f"no: {error}".split())[:160]
    return f"{time.monotonic() - started:.1f} s: {kernels(listing)}"


def attempt(make, *arguments: object) -> Outputs | None:
    try:
        return make(*arguments)
    except Exception as error:
        print(f"  {make.__name__}: {' '.join(str(error).split())[:400]}", file=sys.stderr)
        return None


def row(text: str, samples: int, with_rtx: bool) -> tuple[str, ...]:
    path, data, reference = ([Path(one) for one in text.split("=")] + [None])[:3]
    print(path.name, file=sys.stderr)
    try:
        network = open_network(path, lambda: OnnxRuntimeBackend("cpu"))
    except TrtTuiError as error:
        network = None
        refused = f"refused: {error.cause}"
    plain = network if network is not None else open_network(reference)
    sets = load_sets(plain, data, samples)
    feeds = [sets.judged_samples.read_feed(index) for index in range(len(sets.judged_samples))]
    as_written = attempt(run, path, feeds, options(disable_quant_qdq="1"))
    by_default = attempt(run, path, feeds, options())
    literal = options(disable_quant_qdq="1")
    literal.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    unoptimized = attempt(run, path, feeds, literal)
    ours = expected = None
    if reference is not None:
        expected = attempt(run, reference, feeds, options())
    elif network is not None:
        expected = simulated(network, feeds, PrecisionConfig.from_precision(Precision.FP32))
    if network is not None:
        ours = attempt(simulated, network, feeds, PrecisionConfig.from_precision(FILE))

    def figure(first: Outputs | None, second: Outputs | None) -> str:
        return "-" if first is None or second is None else f"{sqnr_db(first, second):.1f}"

    holds = refused if network is None else held(network)
    return (
        path.stem + " (own)" * (reference is None),
        holds,
        figure(expected, as_written),
        figure(expected, by_default),
        figure(expected, ours),
        figure(as_written, ours),
        figure(unoptimized, ours),
        figure(as_written, unoptimized),
        built(network, feeds[0]) if network is not None and with_rtx else "-",
    )


def held(network: Network) -> str:
    """The types below FP32 that a file holds."""
    words = network.source_model.type_names if network.source_model is not None else []
    return " ".join(words) or "FP32"


def load_sets(network: Network, data: Path, samples: int) -> SampleSplit:
    return split_samples(load_samples(data, network.inputs, limit=samples))


def quantized(text: str, folder: Path, samples: int) -> Iterator[str]:
    """Files that ONNX Runtime's quantizer makes of an FP32 network, as arguments of this program."""
    path, data = map(Path, text.split("="))
    sets = load_sets(open_network(path), data, samples)
    prepared = folder / f"{path.stem}.prepared.onnx"
    model = onnx.load(path)
    if next(one.version for one in model.opset_import if not one.domain) < PER_CHANNEL_OPSET:
        model = version_converter.convert_version(model, 17)
    onnx.save(model, prepared)
    quant_pre_process(prepared, prepared, skip_symbolic_shape=True, skip_optimization=True)  # that merges equal biases
    for name, asked in STATIC.items():
        made = folder / f"{path.stem}.{name}.onnx"
        feeds = [sets.calibration_samples.read_feed(index) for index in range(len(sets.calibration_samples))]
        quantization.quantize_static(prepared, made, Handed(feeds), **asked)
        yield f"{made}={data}={path}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", metavar="FILE=DATA[=REFERENCE]")
    parser.add_argument("--quantize", type=Path, metavar="FOLDER")
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--no-rtx", action="store_true")
    arguments = parser.parse_args()
    files = arguments.files
    if arguments.quantize:
        files = [made for text in files for made in quantized(text, arguments.quantize, arguments.samples)]
    rows = [row(text, arguments.samples, not arguments.no_rtx) for text in files]
    print(f"{measure.machine()}\n")
    print(
        measure.table(
            [
                "file",
                "holds",
                "as written",
                "default",
                "simulated",
                "simulated : as written",
                "simulated : unoptimized",
                "unoptimized : as written",
                "TensorRT-RTX builds",
            ],
            rows,
        )
    )


if __name__ == "__main__":
    main()
