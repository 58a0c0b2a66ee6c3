"""FP32 of Q/DQ files of ONNX Runtime's quantizer, with and without the original network as reference.

    python -m tests.benchmarks.original_weights FOLDER [NAME ...]

FOLDER holds networks NAME.onnx with samples NAME.npz. Each becomes files quantized per tensor and per channel, with and
without ``quant_pre_process``, one in which a third of the layers stay in floats, one whose weights were trained further
(noise of 3 %), and one rounded by GPTQ if it has a MatMul or Gemm with a stored weight. For each file
with and without the original as reference the program prints the SQNR of FP32 against the original, and that of ONNX
Runtime on the file without its Q/DQ pairs. They must agree to 0.1 dB unless FP32 means the weights of the reference,
which must then be reproduced to 90 dB.
"""

import logging
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper, version_converter
from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from tests import networks
from tests.benchmarks.as_given import PER_CHANNEL_OPSET
from tests.networks.qdq import without_pairs
from trt_tui.core.measure.weight_rounding import round_by_output_error
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.options import Options
from trt_tui.workspace import Workspace

Feeds = list[dict[str, np.ndarray]]


def run(model: onnx.ModelProto, feeds: Feeds, names: list[str] | None = None) -> dict[str, np.ndarray]:
    """Executes a network as it is written; returns its outputs over all feeds."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    names = names or [output.name for output in session.get_outputs()]
    return {
        name: np.concatenate(arrays)
        for name, arrays in zip(names, zip(*(session.run(names, feed) for feed in feeds), strict=True), strict=True)
    }


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    return onnx.ModelProto.FromString(model.SerializeToString())


def worst_sqnr_db(reference: dict[str, np.ndarray], test: dict[str, np.ndarray]) -> float:
    ratios = [
        np.sum(np.square(np.subtract(test[name], array, dtype=np.float64))) / np.sum(np.square(array, dtype=np.float64))
        for name, array in reference.items()
    ]
    return float(-10 * np.log10(max(max(ratios), 1e-30)))


def trained_further(model: onnx.ModelProto) -> onnx.ModelProto:
    model, rng = _copy(model), np.random.default_rng(0)
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.float32 and array.size > 16:
            noise = 0.03 * array.std() * rng.standard_normal(array.shape)
            tensor.CopyFrom(numpy_helper.from_array((array + noise).astype(np.float32), tensor.name))
    return model


def rounded_by_gptq(file: onnx.ModelProto, original: onnx.ModelProto, feeds: Feeds) -> onnx.ModelProto | None:
    """The file with weights of MatMul and Gemm rounded by GPTQ with their inputs; None if there are none."""
    stored = {tensor.name: tensor for tensor in file.graph.initializer}
    exact = {tensor.name: numpy_helper.to_array(tensor) for tensor in original.graph.initializer}
    probed = _copy(original)
    fed = {value.name for value in original.graph.input}
    layers = [
        node
        for node in original.graph.node
        if node.op_type in ("MatMul", "Gemm")
        and node.input[1] in exact
        and f"{node.input[1]}_quantized" in stored
        and node.input[0] not in fed
    ]
    if not layers:
        return None
    names = list(dict.fromkeys(node.input[0] for node in layers))
    probed.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names)
    inputs = run(probed, feeds, names)
    for node in layers:
        transposed = any(item.name == "transB" and item.i for item in node.attribute)
        weight = exact[node.input[1]] if transposed else exact[node.input[1]].T
        scale = np.broadcast_to(numpy_helper.to_array(stored[f"{node.input[1]}_scale"]).reshape(-1, 1), weight.shape)
        rows = inputs[node.input[0]].reshape(-1, weight.shape[1]).astype(np.float64)
        values = round_by_output_error(
            weight[None], scale[None].astype(np.float32), (rows.T @ rows)[None], QUANTIZED_TYPES[Precision.INT8]
        )[0]
        values = np.ascontiguousarray(values if transposed else values.T).clip(-127, 127).astype(np.int8)
        name = f"{node.input[1]}_quantized"
        stored[name].CopyFrom(numpy_helper.from_array(values, name))
    return file


def quantized_files(model: onnx.ModelProto, feeds: Feeds, folder: Path) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yields the files with a description each; a file that the quantizer refuses is left out."""

    def quantize(source: onnx.ModelProto, *, per_channel: bool = True, **options: object) -> onnx.ModelProto:
        quantize_static(
            _copy(source),
            folder / "quantized.onnx",
            networks.Handed(feeds),
            quant_format=QuantFormat.QDQ,
            per_channel=per_channel,
            activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8,
            extra_options={"ActivationSymmetric": True},
            **options,
        )
        return onnx.load(folder / "quantized.onnx")

    onnx.save(model, folder / "original.onnx")
    paths = str(folder / "original.onnx"), str(folder / "prepared.onnx")
    try:
        quant_pre_process(*paths)
    except Exception:  # its symbolic shapes fail at operators that it does not know
        quant_pre_process(*paths, skip_symbolic_shape=True)
    prepared = onnx.load(folder / "prepared.onnx")
    for source_name, source in (("as exported", model), ("pre-processed", prepared)):
        for per_channel in (False, True):
            yield (
                f"{source_name}, per {'channel' if per_channel else 'tensor'}",
                quantize(source, per_channel=per_channel),
            )
    layers = [node.name for node in model.graph.node if node.op_type in ("Conv", "MatMul", "Gemm")]
    yield "partly quantized", quantize(model, nodes_to_exclude=layers[::3])
    yield "trained further", quantize(trained_further(model))
    if (rounded := rounded_by_gptq(quantize(model), model, feeds)) is not None:
        yield "rounded by GPTQ", rounded


def main(folder: Path, names: list[str]) -> None:
    logging.disable(logging.WARNING)
    count = failures = 0
    print(f"{'network':26} {'file':26} {'reference':10} {'weights':10} {'FP32':>7} {'no Q/DQ':>8}")
    for path in sorted(folder.glob("*.onnx")):
        if names and path.stem not in names:
            continue
        model, data = onnx.load(path), dict(np.load(path.with_suffix(".npz")))
        if model.opset_import[0].version < PER_CHANNEL_OPSET:
            model = version_converter.convert_version(model, PER_CHANNEL_OPSET)
        shape = model.graph.input[0].type.tensor_type.shape.dim
        batch = shape[0].dim_value or 2
        feeds = [
            {name: array[index : index + batch] for name, array in data.items()}
            for index in range(0, len(next(iter(data.values()))), batch)
        ]
        expected = run(model, feeds)
        with tempfile.TemporaryDirectory() as name:
            for title, file in quantized_files(model, feeds, Path(name)):
                count += 1
                onnx.save(file, Path(name) / "file.onnx")
                stripped_db = worst_sqnr_db(expected, run(without_pairs(file), feeds))
                for reference in (None, str(Path(name) / "original.onnx")):
                    workspace = Workspace(
                        Options(
                            str(Path(name) / "file.onnx"),
                            str(path.with_suffix(".npz")),
                            reference=reference,
                            batch=batch,
                            threads=1,
                            calib_data=str(path.with_suffix(".npz")),
                        )
                    )
                    for _ in workspace.check_reference_weights():
                        pass
                    outputs = [workspace.analysis.get_fp32_outputs(index) for index in workspace.feeds]
                    found = {
                        tensor: np.concatenate([item[tensor] for item in outputs])
                        for tensor in expected
                        if tensor in outputs[0]
                    }
                    fp32_db = worst_sqnr_db({tensor: expected[tensor] for tensor in found}, found)
                    is_used = bool(workspace.network.weights_source_name)
                    is_right = bool(found) and (fp32_db >= 90 if is_used else abs(fp32_db - stripped_db) <= 0.1)
                    failures += not is_right
                    print(
                        f"{path.stem:26} {title:26} {'original' if reference else 'none':10} "
                        f"{'original' if is_used else 'file':10} {fp32_db:7.1f} {stripped_db:8.1f}"
                        f"{'' if is_right else '  WRONG'}",
                        flush=True,
                    )
                    workspace.close()
    print(f"{count} files, {failures} wrong values")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
