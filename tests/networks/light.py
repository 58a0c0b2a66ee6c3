"""The light networks that come with the ``onnx`` package, given seeded weights."""

from pathlib import Path

import onnx
from onnx import numpy_helper

from .seeding import fill_weights, settle_batch_norms

LIGHT_NAMES = tuple(
    "bvlc_alexnet densenet121 inception_v1 inception_v2 resnet50 shufflenet squeezenet vgg19 zfnet512".split()
)


def light(name: str, seed: int = 0, *, until: str = "", weights_as_inputs: bool = False) -> onnx.ModelProto:
    """A light network of the ``onnx`` package (opset 9, input 1×3×224×224), every weight a seeded initializer.

    The files make their weights with ConstantOfShape, all 0.02; those nodes go. Batch-norm statistics are those of one
    random image.

    Args:
        name: One of `LIGHT_NAMES`.
        seed: Of the weights.
        until: A tensor that becomes the output in place of the network's own; what comes after it goes.
        weights_as_inputs: Keep IR version 3, where each initializer is a graph input too; without it the image is the
            only input (IR version 8).
    """
    path = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / f"light_{name}.onnx"
    model = onnx.load(path)
    graph = model.graph
    initializers = {tensor.name: tensor for tensor in graph.initializer}
    makers = [node for node in graph.node if node.op_type == "ConstantOfShape"]
    shapes = {
        tensor.name: tuple(tensor.dims)
        for tensor in graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT and tensor.dims
    }
    for node in makers:
        shapes[node.output[0]] = tuple(int(size) for size in numpy_helper.to_array(initializers[node.input[0]]))
        graph.node.remove(node)
    if until:
        del graph.node[1 + next(i for i, node in enumerate(graph.node) if until in node.output) :]
        graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info(until, onnx.TensorProto.FLOAT, None))
    used = {name for node in graph.node for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    data = [value for value in graph.input if value.name not in initializers]
    del graph.input[:]
    graph.input.extend(data)
    del graph.value_info[:]
    model.ir_version = 8

    fill_weights(model, {name: shapes[name] for name in sorted(shapes) if name in used}, seed)
    settle_batch_norms(model, seed)

    if weights_as_inputs:
        model.ir_version = 3
        graph.input.extend(
            onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            for tensor in graph.initializer
        )
    return model
