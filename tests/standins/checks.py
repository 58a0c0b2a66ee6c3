"""What `tests.test_standins` runs in a process of each release: ``python -m tests.standins.checks CHECK ARGUMENTS``.

The environment is that of `tests.standins.environment`; a check prints one JSON object in its last line.
"""

from __future__ import annotations

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


class Log(trt.ILogger):
    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self.errors: list[str] = []

    def log(self, severity: object, msg: str) -> None:
        if severity <= trt.ILogger.ERROR:
            self.errors.append(msg)


LOG = Log()


def model(nodes: list[onnx.NodeProto], x: list, y: list, domain: str = "", kind: int = TensorProto.FLOAT,
          **weights: np.ndarray) -> bytes:
    """A network from ``x`` to ``y``, which have these shapes and type."""
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", kind, x)],
                              [helper.make_tensor_value_info("y", kind, y)],
                              [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()])
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def seeded(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def cnn() -> bytes:
    node = helper.make_node
    return model([node("Conv", ["x", "w", "b"], ["c"], "conv1", pads=[1] * 4), node("Relu", ["c"], ["r"], "relu1"),
                  node("Flatten", ["r"], ["f"], "flat"), node("Gemm", ["f", "gw", "gb"], ["y"], "fc", transB=1)],
                 ["N", 3, 4, 4], ["N", 10], w=seeded(8, 3, 3, 3), b=seeded(8), gw=seeded(10, 128), gb=seeded(10))


def quantized() -> bytes:
    """A Conv in INT8 and an attention-like tail."""
    node = helper.make_node
    scale, zero = {"s": np.float32(0.05)}, {"z": np.int8(0)}
    return model([node("QuantizeLinear", ["x", "s", "z"], ["xq"], "x_q"),
                  node("DequantizeLinear", ["xq", "s", "z"], ["xd"], "x_dq"),
                  node("QuantizeLinear", ["w", "s", "z"], ["wq"], "w_q"),
                  node("DequantizeLinear", ["wq", "s", "z"], ["wd"], "w_dq"),
                  node("Conv", ["xd", "wd"], ["c"], "conv1", pads=[1] * 4), node("Relu", ["c"], ["r"], "relu1"),
                  node("MaxPool", ["r"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
                  node("MatMul", ["p", "m"], ["a"], "mm"), node("Softmax", ["a"], ["t"], "soft"),
                  node("MatMul", ["t", "m"], ["y"], "mm2")],
                 ["N", 3, 4, 4], ["N", 8, 2, 2], w=seeded(8, 3, 3, 3), m=seeded(2, 2), **scale, **zero)


def parsed(data: bytes, flags: int | None = None) -> tuple:
    builder = trt.Builder(LOG)
    batch = getattr(trt.NetworkDefinitionCreationFlag, "EXPLICIT_BATCH", None)
    strong = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    if flags is None:
        flags = 1 << int(batch) if batch is not None else 0
    network = builder.create_network(flags | (1 << int(strong) if strong is not None and flags == 0 else 0))
    parser = trt.OnnxParser(network, LOG)
    return builder, network, parser, parser.parse(data)


def profiled(builder: object, network: object) -> object:
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    profile = builder.create_optimization_profile()
    profile.set_shape("x", (1, 3, 4, 4), (2, 3, 4, 4), (4, 3, 4, 4))
    assert profile and config.add_optimization_profile(profile) == 0
    return config


def members() -> dict:
    path = Path(standins.__file__).parent / "api" / f"{RELEASE}.json"
    api = json.loads(path.read_text())
    extra, lacking = [], []
    for name, listed in api.items():
        if not name:
            lacking += [one for one in listed if not hasattr(trt, one.partition("=")[0])]
            continue
        wanted = {one.removesuffix("()") for one in listed}
        have = {one for one in dir(getattr(trt, name)) if not one.startswith("_")} - {
            one for one in dir(bytes) if name == "IHostMemory"}
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

    unknown = {"module": lambda: trt.nothing, "class": lambda: trt.BuilderFlag.NOTHING, "instance": lambda: network.foo,
               "set": lambda: setattr(builder, "foo", 1), "method set": lambda: setattr(network, "get_layer", 1),
               "constructor": lambda: trt.IBuilderConfig(), "monitor": lambda: (trt.IProgressMonitor, Monitor())}
    return {"extra": extra, "lacking": lacking, "unknown": {name: raised(one) for name, one in unknown.items()}}


def inspect() -> dict:
    builder, network, _, _ = parsed(quantized(), None if RELEASE != "10.16.1" else 1 << int(
        trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH))
    config = profiled(builder, network)
    for name in ("FP16", "INT8"):
        if hasattr(trt.BuilderFlag, name):
            config.set_flag(getattr(trt.BuilderFlag, name))
    engine = trt.Runtime(LOG).deserialize_cuda_engine(builder.build_serialized_network(network, config))
    inspector = engine.create_engine_inspector()
    return {"information": inspector.get_engine_information(trt.LayerInformationFormat.JSON)}


def refused() -> dict:
    node = helper.make_node
    networks = {
        "foreign": model([node("Relu", ["x"], ["c"], "relu1"), node("MyOp", ["c"], ["y"], "plug", domain="my.domain")],
                         [1, 8], [1, 8], "my.domain"),
        "bias": model([node("DequantizeLinear", ["bq", "s"], ["b"], "b_dq"), node("Add", ["x", "b"], ["y"], "add")],
                      [1, 8], [1, 8], bq=np.ones(8, np.int32), s=np.float32(0.1)),
        "mixed": model([node("Conv", ["x", "w"], ["y"], "conv1")], [1, 3, 4, 4], [1, 8, 2, 2],
                       kind=TensorProto.FLOAT16, w=seeded(8, 3, 3, 3)),
        "garbage": b"garbage"}
    found = {}
    for name, data in networks.items():
        _, _, parser, taken = parsed(data, 0 if RELEASE != "8.6.1" else None)
        if taken:
            continue
        error = parser.get_error(0)
        named = hasattr(error, "node_name")
        found[name] = {"node": error.node(), "desc": error.desc(), "name": error.node_name() if named else "",
                       "operator": error.node_operator() if named else "", "code": error.code().name}
    return found


def layers() -> dict:
    """Type and metadata of each layer that has metadata, and the networks."""
    models = {"cnn": cnn(), "quantized": quantized()}
    found = {}
    for name, data in models.items():
        _, network, _, _ = parsed(data, 0)
        found[name] = [[layer.type.name, layer.metadata] for layer in network if layer.metadata]
    return {"layers": found, "models": {name: data.hex() for name, data in models.items()}}


def told() -> dict:
    """Implicit quantization: INT8 for the Conv, FP32 for the Gemm; without the INT8 flag; without ranges."""
    results = []
    for flags, layers in (({"FP16", "INT8"}, {"conv1": trt.int8, "fc": trt.float32}), ({"FP16"}, {"conv1": trt.int8}),
                          ({"INT8"}, {"fc": trt.int8})):
        builder, network, _, _ = parsed(cnn(), 1 << int(trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH))
        config = profiled(builder, network)
        for flag in (*flags, "OBEY_PRECISION_CONSTRAINTS"):
            config.set_flag(getattr(trt.BuilderFlag, flag))
        for layer in network:
            if layer.name in layers:
                layer.precision = layers[layer.name]
            if layer.name == "conv1":
                for tensor in (layer.get_input(0), layer.get_output(0)):
                    assert tensor.set_dynamic_range(-4, 4)
        engine = builder.build_serialized_network(network, config)
        results.append(LOG.errors[-1] if engine is None else {
            layer["name"]: layer["precision"] for layer in standins.header(engine)["layers"] if layer["nodes"]})
    precisions = {name: kind for name, kind in results[0].items() if name != "flat"}
    return {"precisions": precisions, "refused": results[1], "no range": results[2]}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
