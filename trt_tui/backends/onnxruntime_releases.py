"""The rewrite of networks for releases of ONNX Runtime that truncate FP16 values in a QuantizeLinear (1.24.1).

The ONNX standard rounds them.
"""

import functools

import numpy as np
import onnx_ir as ir

CPU_PROVIDER = "CPUExecutionProvider"

MAX_IR_VERSION = 10
"""The newest version of the ONNX file format that all supported releases read. Later versions do not change the
computation."""


def quantize_in_fp32(model: ir.Model) -> ir.Model:
    """Returns a model whose QuantizeLinear nodes read FP32 in place of FP16; ``model`` itself if there are no such
    nodes."""
    if not any(map(_quantizes_fp16, model.graph.all_nodes())):
        return model
    model = model.clone()
    for node in list(model.graph.all_nodes()):
        if _quantizes_fp16(node):
            _cast_to_fp32(node)
    return model


def _quantizes_fp16(node: ir.Node) -> bool:
    """Returns True if a node is a QuantizeLinear that reads FP16 or an undeclared type."""
    return (node.op_type == "QuantizeLinear" and not node.domain and node.inputs[1] is not None
            and node.inputs[1].dtype is not ir.DataType.FLOAT)


def _cast_to_fp32(node: ir.Node) -> None:
    """Inserts Casts to FP32 before the value and the scale of a QuantizeLinear."""
    assert node.graph is not None
    for index in range(2):
        cast = ir.node("Cast", [node.inputs[index]], {"to": ir.DataType.FLOAT})
        cast.outputs[0].name = f"{node.outputs[0].name}__fp32_input_{index}"
        node.graph.insert_before(node, cast)
        node.replace_input_with(index, cast.outputs[0])


@functools.cache
def truncates_fp16_quantization() -> bool:
    """Returns True if the installed ONNX Runtime truncates FP16 values in a QuantizeLinear (observed: 1.23.2, 1.24.1).
    """
    import onnxruntime

    value = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT16), shape=ir.Shape([1]))
    constants = [ir.Value(name=name, const_value=ir.tensor(array, name=name))
                 for name, array in (("scale", np.array(1, np.float16)), ("zero_point", np.array(0, np.int8)))]
    node = ir.node("QuantizeLinear", [value, *constants])
    node.outputs[0].name = "y"
    graph = ir.Graph([value], node.outputs, nodes=[node], initializers=constants, opset_imports={"": 19}, name="probe")
    session = onnxruntime.InferenceSession(
        ir.to_proto(ir.Model(graph, ir_version=MAX_IR_VERSION)).SerializeToString(), providers=[CPU_PROVIDER])
    (quantized,) = session.run(None, {"x": np.array([0.75], np.float16)})
    return int(quantized[0]) == 0
