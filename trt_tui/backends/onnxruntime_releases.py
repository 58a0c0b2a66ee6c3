"""The rewrite of networks for releases of ONNX Runtime that truncate FP16 values in a QuantizeLinear (1.24.1).

The ONNX standard rounds them.
"""

import functools

import numpy as np
import onnx
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


_ONE_IN_FP16 = 0x3C00
"""The bits of the number 1 in FP16, by which the text of a network gives it."""


@functools.cache
def truncates_fp16_quantization() -> bool:
    """Returns True if the installed ONNX Runtime truncates FP16 values in a QuantizeLinear (observed: 1.23.2, 1.24.1).
    """
    import onnxruntime

    model = onnx.parser.parse_model(f"""<ir_version: {MAX_IR_VERSION}, opset_import: ["" : 19]>
        probe (float16[1] x) => (int8[1] y)
        <float16 scale = {{{_ONE_IN_FP16}}}, int8 zero_point = {{0}}> {{ y = QuantizeLinear(x, scale, zero_point) }}""")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=[CPU_PROVIDER])
    (quantized,) = session.run(None, {"x": np.array([0.75], np.float16)})
    return int(quantized[0]) == 0
