"""Seeded weights for networks whose files hold none, and batch-norm statistics that fit them."""

from collections.abc import Iterable, Mapping

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from .feeding import feeds

_PASS_THROUGH = {"Unsqueeze", "Squeeze", "Reshape", "Identity", "Cast"}
_NORMALIZATIONS = {"BatchNormalization", "LayerNormalization", "InstanceNormalization"}


def quiet_session(model: onnx.ModelProto, has_exact_sums: bool = False) -> onnxruntime.InferenceSession:
    """A session of ONNX Runtime's CPU provider on two threads that prints errors only.

    Args:
        has_exact_sums: Q/DQ pairs stay, since INT8 kernels saturate their sums on processors without VNNI.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    options.log_severity_level = 3
    options.add_session_config_entry("session.disable_quant_qdq", str(int(has_exact_sums)))
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def fill_weights(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]], seed: int) -> None:
    """Gives every named weight a seeded float32 initializer, in place, drawn by what its first consumer does with it.

    Kernels and matrices are He-normal (std ``sqrt(2 / fan_in)``, He et al. 2015, "Delving Deep into Rectifiers");
    scales lie around 1, biases and shifts around 0, embeddings and tokens are normal.

    Args:
        model: The network; initializers of these names are replaced.
        shapes: Weight name to shape, in the order in which the values are drawn.
        seed: Of ``numpy.random.default_rng``.

    Raises:
        ValueError: a weight that nothing in the graph consumes.
    """
    rng = np.random.default_rng(seed)
    consumers = _first_consumers(model.graph.node)
    kept = [tensor for tensor in model.graph.initializer if tensor.name not in shapes]
    given = [numpy_helper.from_array(_draw(consumers, name, shape, rng), name) for name, shape in shapes.items()]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept + given)


def settle_batch_norms(model: onnx.ModelProto, seed: int) -> None:
    """Sets the mean and variance of every BatchNormalization of 4-D tensors to what one random batch has there.

    One run of a copy in which each BatchNormalization computes its batch statistics, each thus seeing normalized
    predecessors, as in training.
    """
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    nodes, names = [], {}
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            epsilon = next((a.f for a in node.attribute if a.name == "epsilon"), 1e-5)
            nodes += _batch_statistics(node, epsilon, probe)
            names[node.input[3]], names[node.input[4]] = f"{node.output[0]}:mean", f"{node.output[0]}:var"
        else:
            nodes.append(node)
    if not names:
        return
    del probe.graph.node[:]
    probe.graph.node.extend(nodes)
    del probe.graph.output[:]
    probe.graph.output.extend(
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names.values()
    )
    del probe.graph.value_info[:]
    values = quiet_session(probe).run(list(names.values()), feeds(model, seed))
    settled = dict(zip(names, values, strict=True))
    for tensor in model.graph.initializer:
        if tensor.name in settled:
            tensor.CopyFrom(numpy_helper.from_array(settled[tensor.name].reshape(-1), tensor.name))


def _first_consumers(nodes: Iterable[onnx.NodeProto]) -> dict[str, tuple[onnx.NodeProto, int]]:
    consumers: dict[str, tuple[onnx.NodeProto, int]] = {}
    for node in nodes:
        for index, name in enumerate(node.input):
            consumers.setdefault(name, (node, index))
    return consumers


def _draw(
    consumers: Mapping[str, tuple[onnx.NodeProto, int]], name: str, shape: tuple[int, ...], rng: np.random.Generator
) -> np.ndarray:
    tensor = name
    while True:
        if tensor not in consumers:
            raise ValueError(f"no node consumes weight {name!r}")
        node, index = consumers[tensor]
        if node.op_type not in _PASS_THROUGH:
            break
        tensor = node.output[0]
    normal = rng.standard_normal(shape, dtype=np.float32)
    operator = node.op_type
    if index == 1 and operator in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
        return normal * np.float32(np.sqrt(2.0 / _fan_in(node, shape)))
    if operator in _NORMALIZATIONS and index == 4:
        return np.exp(np.float32(0.2) * normal)
    if (operator in _NORMALIZATIONS and index == 1) or operator == "Mul":
        return 1 + np.float32(0.1) * normal
    is_matrix = sum(size > 1 for size in shape) > 1
    if operator in ("Gather", "Concat", "Expand") or is_matrix:
        return np.float32(0.5) * normal
    return np.float32(0.05) * normal


def _fan_in(node: onnx.NodeProto, shape: tuple[int, ...]) -> int:
    if node.op_type == "Conv":
        return int(np.prod(shape[1:]))
    if node.op_type == "ConvTranspose":
        strides = next((list(a.ints) for a in node.attribute if a.name == "strides"), [1])
        return max(1, shape[0] * int(np.prod(shape[2:])) // int(np.prod(strides)))
    if node.op_type == "Gemm":
        transposed = any(a.name == "transB" and a.i for a in node.attribute)
        # A weight that reaches the Gemm through a Reshape keeps its last dimension.
        return shape[-1] if transposed else int(np.prod(shape[:-1]))
    return shape[-2]


def _batch_statistics(node: onnx.NodeProto, epsilon: float, probe: onnx.ModelProto) -> list[onnx.NodeProto]:
    source, scale, bias = node.input[:3]
    out = node.output[0]
    opset = next(o.version for o in probe.opset_import if o.domain in ("", "ai.onnx"))
    constants = {"epsilon": np.array([epsilon], np.float32)}
    for key, name in (("scale", scale), ("bias", bias)):
        vector = next(t for t in probe.graph.initializer if t.name == name)
        constants[key] = numpy_helper.to_array(vector).reshape(1, -1, 1, 1)
    reduce_inputs, reduce_attributes = [], {"axes": [0, 2, 3]}
    if opset >= 18:
        constants["axes"] = np.array([0, 2, 3], np.int64)
        reduce_inputs, reduce_attributes = [f"{out}:axes"], {}
    probe.graph.initializer.extend(numpy_helper.from_array(v, f"{out}:{key}") for key, v in constants.items())
    steps = [
        ("ReduceMean", [source, *reduce_inputs], f"{out}:mean"),
        ("Sub", [source, f"{out}:mean"], f"{out}:centred"),
        ("Mul", [f"{out}:centred", f"{out}:centred"], f"{out}:square"),
        ("ReduceMean", [f"{out}:square", *reduce_inputs], f"{out}:var"),
        ("Add", [f"{out}:var", f"{out}:epsilon"], f"{out}:positive"),
        ("Sqrt", [f"{out}:positive"], f"{out}:std"),
        ("Div", [f"{out}:centred", f"{out}:std"], f"{out}:unit"),
        ("Mul", [f"{out}:unit", f"{out}:scale"], f"{out}:scaled"),
        ("Add", [f"{out}:scaled", f"{out}:bias"], out),
    ]
    return [
        helper.make_node(op, inputs, [output], **(reduce_attributes if op == "ReduceMean" else {}))
        for op, inputs, output in steps
    ]
