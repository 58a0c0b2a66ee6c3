"""Rewrites of networks so that every release of ONNX Runtime computes the results that the ONNX standard defines.

Release 1.23, the newest for Python 3.10, truncates FP16 values in a QuantizeLinear. It has no kernel for QuantizeLinear
at opset 23, and does not execute reductions without axes that reduce nothing.
"""

import functools
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

CPU_PROVIDER = "CPUExecutionProvider"

MAX_IR_VERSION = 10
"""The newest version of the ONNX file format that all supported releases read. Later versions do not change the
computation."""

_REDUCTIONS_OF_NOTHING = {
    **dict.fromkeys("ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum".split(), "Identity"),
    "ReduceL1": "Abs", "ReduceL2": "Abs", "ReduceLogSum": "Log", "ReduceSumSquare": "Mul"}
"""The element-wise operators that replace reductions without axes, by the type of the reduction."""

_OWN_DOMAIN = "com.microsoft"
"""The domain of ONNX Runtime's own operators. The QuantizeLinear of this domain has no opset, and reads only FP32."""

_OWN_TYPES = (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16, ir.DataType.INT4,
              ir.DataType.UINT4)
"""The output types of the QuantizeLinear of ONNX Runtime's own domain."""

_Rewrites = dict[Callable[[ir.Node], bool], Callable[[ir.Node], None]]
"""The functions that rewrite a node, each by the condition under which a node is rewritten."""


def adapt_to_release(model: ir.Model) -> ir.Model:
    """Returns an equivalent model that the installed release of ONNX Runtime computes correctly.

    The result is ``model`` itself if no node needs a change.
    """
    rewrites: _Rewrites = {_is_reduction_of_nothing: _compute_each_element}
    if truncates_fp16_quantization():
        rewrites[_quantizes_fp16] = _cast_to_fp32
    if model.opset_imports.get("", 1) >= 23 and _lacks_quantization_at_opset_23():
        rewrites[_quantizes_to_integers] = _move_to_own_domain
    return _rewrite(model, rewrites)


def quantize_in_fp32(model: ir.Model) -> ir.Model:
    """Returns a model whose QuantizeLinear nodes read FP32 in place of FP16; ``model`` itself if there are no such
    nodes."""
    return _rewrite(model, {_quantizes_fp16: _cast_to_fp32})


def _rewrite(model: ir.Model, rewrites: _Rewrites) -> ir.Model:
    """Returns a copy of a model with every node rewritten that meets a condition; ``model`` itself if no node does."""
    if not any(condition(node) for node in model.graph.all_nodes() for condition in rewrites):
        return model
    model = model.clone()
    model.opset_imports.setdefault(_OWN_DOMAIN, 1)
    for node in list(model.graph.all_nodes()):
        for condition, rewrite in rewrites.items():
            if condition(node):
                rewrite(node)
    return model


def _is_reduction_of_nothing(node: ir.Node) -> bool:
    """Returns True if a node is a reduction that reduces no axis (``noop_with_empty_axes`` without axes)."""
    if (node.op_type not in _REDUCTIONS_OF_NOTHING or node.domain
            or not node.attributes.get_int("noop_with_empty_axes", 0)):
        return False
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    return axes is None or axes.const_value is not None and axes.const_value.size == 0


def _compute_each_element(node: ir.Node) -> None:
    node.op_type = _REDUCTIONS_OF_NOTHING[node.op_type]
    node.attributes.clear()
    node.resize_inputs(1)
    if node.op_type == "Mul":
        node.resize_inputs(2)
        node.replace_input_with(1, node.inputs[0])


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


def _quantizes_to_integers(node: ir.Node) -> bool:
    """Returns True if the QuantizeLinear of ONNX Runtime's own domain computes the same result as a node."""
    return (node.op_type == "QuantizeLinear" and not node.domain and len(node.inputs) == 3
            and node.inputs[2] is not None and node.inputs[2].dtype in _OWN_TYPES
            and not node.attributes.get_int("block_size", 0))


def _move_to_own_domain(node: ir.Node) -> None:
    node.domain = _OWN_DOMAIN
    for name in node.attributes.keys() - {"axis"}:
        del node.attributes[name]


@functools.cache
def truncates_fp16_quantization() -> bool:
    """Returns True if the installed ONNX Runtime truncates FP16 values in a QuantizeLinear (observed: 1.23.2)."""
    return _quantize_three_quarters(np.float16, opset=19) == 0


@functools.cache
def _lacks_quantization_at_opset_23() -> bool:
    """Returns True if the installed ONNX Runtime executes QuantizeLinear at opset 21 but not at opset 23 (observed:
    1.23.2)."""
    return _quantize_three_quarters(np.float32, opset=21) is not None \
        and _quantize_three_quarters(np.float32, opset=23) is None


def _quantize_three_quarters(float_type: type[np.floating], opset: int) -> int | None:
    """Returns the quantized value of 0.75 at a scale of 1; None if the installed release refuses the operator."""
    import onnxruntime

    value = ir.Value(name="x", type=ir.TensorType(ir.DataType.from_numpy(np.dtype(float_type))), shape=ir.Shape([1]))
    constants = [ir.Value(name=name, const_value=ir.tensor(array, name=name))
                 for name, array in (("scale", np.array(1, float_type)), ("zero_point", np.array(0, np.int8)))]
    node = ir.node("QuantizeLinear", [value, *constants])
    node.outputs[0].name = "y"
    graph = ir.Graph([value], node.outputs, nodes=[node], initializers=constants, opset_imports={"": opset},
                     name="probe")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            ir.to_proto(ir.Model(graph, ir_version=MAX_IR_VERSION)).SerializeToString(), options,
            providers=[CPU_PROVIDER])
        (quantized,) = session.run(None, {"x": np.array([0.75], float_type)})
    except Exception:
        return None
    return int(quantized[0])
