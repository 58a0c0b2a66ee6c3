"""The rounding of tensors to lower precisions in FP32 arithmetic: Cast pairs, Q and DQ, and clamped masks."""

import numpy as np
import onnx_ir as ir

from trt_tui.core.lowering import rulebook
from trt_tui.core.lowering.gated.emitter import NodeEmitter, Nodes
from trt_tui.core.lowering.rulebook import ONNX_TYPES
from trt_tui.core.network.layers import Layer
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES, QuantizedType

_MAX_FLOAT32 = float(np.finfo(np.float32).max)
_MAX_ROUNDED_CONSTANT_BYTES = 1 << 20
"""The maximum size of constants that are stored again, rounded to each lower precision."""


class RoundingEmitter:
    """An emitter of nodes that round values to lower precisions."""

    def __init__(self, emitter: NodeEmitter) -> None:
        self._emitter = emitter

    def round_to_precision(self, value: ir.Value, precision: Precision, nodes: Nodes) -> ir.Value:
        """Returns a value rounded to a float precision by a pair of Casts."""
        add = self._emitter.add_operator
        low = add(nodes, "Cast", [value], "low", to=int(ONNX_TYPES[precision]))
        return add(nodes, "Cast", [low], "rounded", to=int(ir.DataType.FLOAT))

    def round_fp16_sum(self, value: ir.Value, split_factor: ir.Value, nodes: Nodes) -> ir.Value:
        """Returns a sum of products with the rounding error of a kernel that accumulates in FP16.

        The sum is split by a factor of `trt_tui.core.lowering.fp16_accumulation.veltkamp_split_factor`. Infinities and
        NaN do not change, as in any kernel: the product is clamped to finite values, so that no infinity is subtracted
        from another.
        """
        add = self._emitter.add_operator
        product = self.clamp(add(nodes, "Mul", [value, split_factor], "split"), _MAX_FLOAT32, nodes)
        return add(nodes, "Sub", [product, add(nodes, "Sub", [product, value], "rest")], "summed")

    def add_bias(self, layer: Layer, value: ir.Value, bias: ir.Value, nodes: Nodes) -> ir.Value:
        """Returns the sum of a layer with its bias added; the bias of a Conv is added along the channels."""
        rank = len(self._emitter.network.shape(layer.inputs[1]) or ())
        if layer.op_type != "Gemm":
            shape = self._emitter.get_array_constant(np.array([-1, *[1] * (rank - 2)], np.int64), f"channels/{rank}")
            bias = self._emitter.add_operator(nodes, "Reshape", [bias, shape], "bias")
        return self._emitter.add_operator(nodes, "Add", [value, bias], "biased")

    def round_input(self, value: ir.Value, tensor: str, precision: Precision, nodes: Nodes) -> ir.Value:
        """Returns a tensor from outside a group rounded to a float precision; a mask that it cannot represent is
        clamped first."""
        network = self._emitter.network
        if tensor in network.constant_tensors:
            sizes = value.shape.numpy() if value.shape is not None and value.shape.is_static() else None
            if sizes is not None and 4 * int(np.prod(sizes)) <= _MAX_ROUNDED_CONSTANT_BYTES:
                name = f"{precision.value}/{tensor}"
                if name not in self._emitter.initializers:
                    self._emitter.add_constant(rulebook.round_constant(network, tensor, precision), name)
                return self._emitter.initializers[name]
            limit = rulebook.mask_clamp_limit(network, tensor, precision)
            if limit is not None:
                value = self.clamp(value, limit, nodes)
        return self.round_to_precision(value, precision, nodes)

    def scale_channels(self, operator: str, value: ir.Value, factors: ir.Value | None, nodes: Nodes) -> ir.Value:
        """Returns a value that is divided ("Div") or multiplied ("Mul") by factors that broadcast to it, if any.
        """
        if factors is None:
            return value
        result = self._emitter.add_operator(nodes, operator, [value, factors], "scaled")
        result.type, result.shape = value.type, value.shape
        return result

    def clamp(self, value: ir.Value, limit: float, nodes: Nodes) -> ir.Value:
        """Returns a value clamped to the interval from ``-limit`` to ``limit``."""
        low, high = self._emitter.get_scalar_constant(-limit), self._emitter.get_scalar_constant(limit)
        return self._emitter.add_operator(nodes, "Clip", [value, low, high], "clamped")

    def quantize_dequantize(self, value: ir.Value, scale: ir.Value, quantized_type: QuantizedType,
                            nodes: Nodes) -> ir.Value:
        """Returns a value quantized with a scale that is an input of the graph, and dequantized again."""
        if quantized_type.is_float:
            return self._round_to_e4m3(value, scale, quantized_type, nodes)
        pair = [scale, self._emitter.get_array_constant(np.zeros((), np.int8), "zero")]
        quantized = self._emitter.add_operator(nodes, "QuantizeLinear", [value, *pair], "codes")
        return self._emitter.add_operator(nodes, "DequantizeLinear", [quantized, *pair], "dequantized")

    def convert_operand(self, precision: Precision, value: ir.Value, scale: ir.Value | None, nodes: Nodes) -> ir.Value:
        """Returns the value of an operand of a product in a quantized type or TF32; TF32 has no scale."""
        if precision is Precision.TF32 or scale is None:
            return self.round_to_tf32(value, nodes)
        return self.quantize_dequantize(value, scale, QUANTIZED_TYPES[precision], nodes)

    def round_to_tf32(self, value: ir.Value, nodes: Nodes) -> ir.Value:
        """Returns a value rounded to TF32 by the splitting that `rulebook.TF32_SPLIT` describes."""
        add, number = self._emitter.add_operator, self._emitter.get_scalar_constant
        split = add(nodes, "Mul", [value, number(rulebook.TF32_SPLIT)], "split")
        rounded = add(nodes, "Sub", [split, add(nodes, "Sub", [split, value], "rest")], "tf32")
        fits = add(nodes, "Less", [add(nodes, "Abs", [value], "size"), number(rulebook.TF32_BOUND)], "fits")
        return add(nodes, "Where", [fits, rounded, value], "rounded")

    def _round_to_e4m3(self, value: ir.Value, scale: ir.Value, quantized_type: QuantizedType, nodes: Nodes) -> ir.Value:
        """Returns a value rounded to FP8 (E4M3) in FP32 arithmetic, bit-exact for any opset and provider.

        Opsets before 19 have no FP8. The power of two at or below a number ``c`` is ``|q - (1 - u) q|`` with ``q =
        (2**23 + 1) c`` and ``u = 2**-24`` (Rump, "Error estimation of floating-point summation and dot product", 2012,
        `ufp`). The step of E4M3 is an eighth of this power, and 2**-9 below 2**-6. Adding and subtracting 1.5 * 2**23
        steps rounds to a multiple of the step, ties to even.
        """
        add, number = self._emitter.add_operator, self._emitter.get_scalar_constant
        ratio = add(nodes, "Div", [value, scale], "ratio")
        clipped = add(nodes, "Clip", [ratio, number(quantized_type.min_value),
                                      number(quantized_type.max_value)], "clipped")
        product = add(nodes, "Mul", [clipped, number(2.0**23 + 1)], "product")
        less = add(nodes, "Mul", [product, number(1 - 2.0**-24)], "less")
        power = add(nodes, "Abs", [add(nodes, "Sub", [product, less], "signed")], "power")
        power = add(nodes, "Max", [power, number(2.0**-6)], "normal")
        steps = add(nodes, "Mul", [power, number(1.5 * 2.0**20)], "steps")
        raised = add(nodes, "Add", [clipped, steps], "raised")
        return add(nodes, "Mul", [add(nodes, "Sub", [raised, steps], "codes"), scale], "dequantized")
