"""What `tests.backends.test_standins` runs in a process of each release: ``python -m tests.standins.checks CHECK``.

The environment is that of `tests.standins.environment`, or STANDIN_RELEASE alone for the real package of that release;
a check prints one JSON object in its last line.
"""

import importlib
import json
import os
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests import standins

RELEASE = os.environ["STANDIN_RELEASE"]
trt = importlib.import_module("tensorrt_rtx" if RELEASE.startswith("rtx") else "tensorrt")
LOG = trt.Logger(trt.Logger.INTERNAL_ERROR)
node = helper.make_node


def model(
    nodes: list[onnx.NodeProto],
    x: list,
    y: list,
    domain: str = "",
    kind: int = TensorProto.FLOAT,
    **weights: np.ndarray,
) -> bytes:
    """A network from ``x`` to ``y``, which have these shapes and type."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, x)],
        [helper.make_tensor_value_info("y", kind, y)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def cnn() -> bytes:
    return model(
        [
            node("Conv", ["x", "w", "b"], ["c"], "conv1", pads=[1] * 4),
            node("Relu", ["c"], ["r"], "relu1"),
            node("Flatten", ["r"], ["f"], "flat"),
            node("Gemm", ["f", "gw", "gb"], ["y"], "fc", transB=1),
        ],
        ["N", 3, 4, 4],
        ["N", 10],
        w=np.ones((8, 3, 3, 3), np.float32),
        b=np.ones(8, np.float32),
        gw=np.ones((10, 128), np.float32),
        gb=np.ones(10, np.float32),
    )


def quantized() -> bytes:
    """A Conv in INT8 and an attention-like tail."""
    q, dq = "QuantizeLinear", "DequantizeLinear"
    return model(
        [
            node(q, ["x", "s", "z"], ["xq"], "x_q"),
            node(dq, ["xq", "s", "z"], ["xd"], "x_dq"),
            node(q, ["w", "s", "z"], ["wq"], "w_q"),
            node(dq, ["wq", "s", "z"], ["wd"], "w_dq"),
            node("Conv", ["xd", "wd"], ["c"], "conv1", pads=[1] * 4),
            node("Relu", ["c"], ["r"], "relu1"),
            node("MaxPool", ["r"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
            node("MatMul", ["p", "m"], ["a"], "mm"),
            node("Softmax", ["a"], ["t"], "soft"),
            node("MatMul", ["t", "m"], ["y"], "mm2"),
        ],
        ["N", 3, 4, 4],
        ["N", 8, 2, 2],
        w=np.ones((8, 3, 3, 3), np.float32),
        m=np.ones((2, 2), np.float32),
        s=np.float32(0.05),
        z=np.int8(0),
    )


def parsed(data: bytes) -> tuple:
    """A builder, an explicit, strongly typed network where there are some, its parser, and whether that took it."""
    builder, created = trt.Builder(LOG), trt.NetworkDefinitionCreationFlag
    wanted = [getattr(created, name, None) for name in ("STRONGLY_TYPED", "EXPLICIT_BATCH")]
    network = builder.create_network(next((1 << int(flag) for flag in wanted if flag is not None), 0))
    parser = trt.OnnxParser(network, LOG)
    return builder, network, parser, parser.parse(data)


def members() -> dict:
    """What the classes have beyond those of the release, and lack of them; what unknown names bring about."""
    path = Path(standins.__file__).parent / "api" / f"{RELEASE}.json"
    api = json.loads(path.read_text())
    extra, lacking = [], []
    for name, listed in api.items():
        if not name:
            lacking += [one for one in listed if not hasattr(trt, one.partition("=")[0])]
            continue
        wanted = {one.removesuffix("()") for one in listed}
        have = {one for one in dir(getattr(trt, name)) if not one.startswith("_")} - {
            one for one in dir(bytes) if name == "IHostMemory"
        }
        extra += [f"{name}.{one}" for one in have - wanted]
        lacking += [f"{name}.{one}" for one in wanted if not hasattr(getattr(trt, name), one)]
    builder, network, _, _ = parsed(cnn())

    class Monitor(getattr(trt, "IProgressMonitor", object)):
        def __init__(self) -> None:
            pass

    def raised(action: object) -> str:
        try:
            action()
        except (AttributeError, TypeError) as error:
            return type(error).__name__
        return ""

    unknown = {
        "module": lambda: trt.nothing,
        "class": lambda: trt.BuilderFlag.NOTHING,
        "instance": lambda: network.foo,
        "set": lambda: setattr(builder, "foo", 1),
        "method set": lambda: setattr(network, "get_layer", 1),
        "constructor": lambda: trt.IBuilderConfig(),
        "monitor": lambda: (trt.IProgressMonitor, Monitor()),
    }
    return {"extra": extra, "lacking": lacking, "unknown": {name: raised(one) for name, one in unknown.items()}}


def refused() -> dict:
    """What the parser says of networks that it does not take."""
    half, ones = TensorProto.FLOAT16, np.ones((8, 8), np.float32)
    networks = {
        "foreign": model(
            [node("Relu", ["x"], ["c"], "relu1"), node("MyOp", ["c"], ["y"], "plug", domain="my.domain")],
            [1, 8],
            [1, 8],
            "my.domain",
        ),
        "unknown": model([node("NoSuchOp", ["x"], ["y"], "unknown")], [1, 8], [1, 8]),
        "bias": model(
            [node("DequantizeLinear", ["bq", "s"], ["b"], "b_dq"), node("Add", ["x", "b"], ["y"], "add")],
            [1, 8],
            [1, 8],
            bq=np.ones(8, np.int32),
            s=np.float32(0.1),
        ),
        "shifted": model(
            [node("DequantizeLinear", ["q", "s", "z"], ["b"], "d"), node("Add", ["x", "b"], ["y"], "add")],
            [8, 8],
            [8, 8],
            q=np.ones((8, 8), np.int8),
            s=np.float32(0.1),
            z=np.int8(3),
        ),
        "garbage": b"garbage",
        "Conv": model(
            [node("Conv", ["x", "w"], ["y"], "Conv")],
            [1, 3, 4, 4],
            [1, 8, 2, 2],
            kind=half,
            w=np.ones((8, 3, 3, 3), np.float32),
        ),
        "ConvTranspose": model(
            [node("ConvTranspose", ["x", "w"], ["y"], "ConvTranspose")],
            [1, 3, 4, 4],
            [1, 8, 6, 6],
            kind=half,
            w=np.ones((3, 8, 3, 3), np.float32),
        ),
        **{
            name: model([node(name, ["x", "w"], ["y"], name)], [8, 8], [8, 8], kind=half, w=ones)
            for name in ("MatMul", "Gemm", "Add", "Sub", "Mul", "Div")
        },
    }
    found = {}
    for name, data in networks.items():
        _, _, parser, taken = parsed(data)
        if taken:
            continue
        error = parser.get_error(0)
        named = hasattr(error, "node_name")
        found[name] = {
            "node": error.node(),
            "desc": error.desc(),
            "name": error.node_name() if named else "",
            "operator": error.node_operator() if named else "",
            "code": error.code().name,
        }
    return found


def layers() -> dict:
    """Type and metadata of each layer that has metadata."""
    found = {}
    for name, data in {"cnn": cnn(), "quantized": quantized()}.items():
        made = parsed(data)
        network = made[1]
        found[name] = [
            [layer.type.name, layer.metadata]
            for layer in map(network.get_layer, range(network.num_layers))
            if layer.metadata
        ]
    return found


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
