"""Makes the files beside it with ModelOpt 0.47, in an environment of its own (it pins other versions than ours).

    pip install nvidia-modelopt onnx==1.21 onnxruntime==1.24 torch onnxscript onnxslim lief onnx-graphsurgeon \
        onnxconverter-common polygraphy cppimport
    python make.py
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HERE = Path(__file__).parent
MODES = {
    "int8_fp16": ("int8", "fp16"),
    "int8_fp32": ("int8", "fp32"),
    "fp8_fp16": ("fp8", "fp16"),
    "int4_fp16": ("int4", "fp16"),
}


def plain():
    """MatMul with bias, Relu, MatMul, a skip from the first one's input, LayerNormalization; ``x`` (batch, 8, 128)."""
    drawn = np.random.default_rng(0)
    weights = {"w1": (128, 64), "b1": (64,), "w2": (64, 128), "scale": (128,), "bias": (128,)}
    arrays = {
        name: (drawn.standard_normal(shape) / 8 + (name == "scale")).astype(np.float32)
        for name, shape in weights.items()
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["m1"], "first"),
        helper.make_node("Add", ["m1", "b1"], ["a1"], "biased"),
        helper.make_node("Relu", ["a1"], ["r1"], "relu"),
        helper.make_node("MatMul", ["r1", "w2"], ["m2"], "second"),
        helper.make_node("Add", ["m2", "x"], ["a2"], "skip"),
        helper.make_node("LayerNormalization", ["a2", "scale", "bias"], ["y"], "norm", axis=-1),
    ]
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 8, 128]) for name in "xy"]
    graph = helper.make_graph(
        nodes, "block", info[:1], info[1:], [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


if __name__ == "__main__":
    onnx.save(plain(), HERE / "plain.onnx")
    np.savez(HERE / "data.npz", x=np.random.default_rng(1).standard_normal((16, 8, 128)).astype(np.float32))
    for name, (mode, floats) in MODES.items():
        subprocess.run(
            [
                sys.executable,
                "-m",
                "modelopt.onnx.quantization",
                "--onnx_path",
                HERE / "plain.onnx",
                "--calibration_data_path",
                HERE / "data.npz",
                "--quantize_mode",
                mode,
                "--high_precision_dtype",
                floats,
                "--calibration_eps",
                "cpu",
                "--output_path",
                HERE / f"{name}.onnx",
            ],
            check=True,
        )
    subprocess.run(
        [
            sys.executable,
            "-m",
            "modelopt.onnx.autocast",
            "--onnx_path",
            HERE / "plain.onnx",
            "--calibration_data",
            HERE / "data.npz",
            "--low_precision_type",
            "fp16",
            "--output_path",
            HERE / "autocast.onnx",
        ],
        check=True,
    )
    for left in ("plain.onnx", "data.npz"):
        (HERE / left).unlink()
