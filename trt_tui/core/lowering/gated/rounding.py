"""Roundings of tensors to lower precisions, in FP32 arithmetic: Cast pairs, Q and DQ, masks that are clamped."""

import numpy as np
import onnx_ir as ir

from trt_tui.core.codes import CODES, CodeType
from trt_tui.core.lowering import rules
from trt_tui.core.lowering.gated.emitter import Emitter, Nodes
from trt_tui.core.lowering.rules import TYPES
from trt_tui.core.network.layers import Layer
from trt_tui.core.precision import Precision

_FINITE = float(np.finfo(np.float32).max)
_STATIC_BYTES = 1 << 20
"""Constants up to this size are held a second time, rounded to each lower precision."""


class Rounding:
    """Emits roundings."""

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter

    def rounded(self, value: ir.Value, precision: Precision, nodes: Nodes) -> ir.Value:
        """A value rounded to a float precision."""
        add = self._emitter.add
        low = add(nodes, "Cast", [value], "low", to=int(TYPES[precision]))
        return add(nodes, "Cast", [low], "rounded", to=int(ir.DataType.FLOAT))

    def summed(self, value: ir.Value, factor: ir.Value, nodes: Nodes) -> ir.Value:
        """A sum of products as a kernel that accumulates in FP16 yields it: split by a factor of
        `trt_tui.core.lowering.accumulation.splitter`. What is infinite stays so, as in any kernel, and NaN too: the
        product alone is finite, so that nothing is subtracted from its like."""
        add = self._emitter.add
        product = self.clamped(add(nodes, "Mul", [value, factor], "split"), _FINITE, nodes)
        return add(nodes, "Sub", [product, add(nodes, "Sub", [product, value], "rest")], "summed")

    def biased(self, layer: Layer, value: ir.Value, bias: ir.Value, nodes: Nodes) -> ir.Value:
        """A layer's sum with its bias, that of a Conv along the channels."""
        rank = len(self._emitter.network.shape(layer.inputs[1]) or ())
        if layer.op_type != "Gemm":
            shape = self._emitter.array(np.array([-1, *[1] * (rank - 2)], np.int64), f"channels/{rank}")
            bias = self._emitter.add(nodes, "Reshape", [bias, shape], "bias")
        return self._emitter.add(nodes, "Add", [value, bias], "biased")

    def read(self, value: ir.Value, tensor: str, precision: Precision, nodes: Nodes) -> ir.Value:
        """A tensor from outside a group rounded to a float precision; a mask that it cannot hold is clamped first."""
        network = self._emitter.network
        if tensor in network.constants:
            sizes = value.shape.numpy() if value.shape is not None and value.shape.is_static() else None
            if sizes is not None and 4 * int(np.prod(sizes)) <= _STATIC_BYTES:
                name = f"{precision.value}/{tensor}"
                if name not in self._emitter.initializers:
                    self._emitter.held(rules.rounded_constant(network, tensor, precision), name)
                return self._emitter.initializers[name]
            limit = rules.clamped_at(network, tensor, precision)
            if limit is not None:
                value = self.clamped(value, limit, nodes)
        return self.rounded(value, precision, nodes)

    def scaled(self, operator: str, value: ir.Value, factors: ir.Value | None, nodes: Nodes) -> ir.Value:
        """A value whose channels, its last axis, are divided ("Div") or multiplied ("Mul") by factors, if any."""
        if factors is None:
            return value
        result = self._emitter.add(nodes, operator, [value, factors], "scaled")
        result.type, result.shape = value.type, value.shape
        return result

    def clamped(self, value: ir.Value, limit: float, nodes: Nodes) -> ir.Value:
        """A value between ``-limit`` and ``limit``."""
        low, high = self._emitter.scalar(-limit), self._emitter.scalar(limit)
        return self._emitter.add(nodes, "Clip", [value, low, high], "clamped")

    def quantized(self, value: ir.Value, scale: ir.Value, code: CodeType, nodes: Nodes) -> ir.Value:
        """A value rounded to codes with a scale that is fed, and back."""
        if code.precision is Precision.FP8:
            return self._rounded_to_e4m3(value, scale, code, nodes)
        pair = [scale, self._emitter.array(np.zeros((), np.int8), "zero")]
        codes = self._emitter.add(nodes, "QuantizeLinear", [value, *pair], "codes")
        return self._emitter.add(nodes, "DequantizeLinear", [codes, *pair], "dequantized")

    def read_as(self, precision: Precision, value: ir.Value, scale: ir.Value | None, nodes: Nodes) -> ir.Value:
        """A value as a product reads it in one of `rules.READ_AS`; TF32 has no scale."""
        if precision is Precision.TF32 or scale is None:
            return self.to_tf32(value, nodes)
        return self.quantized(value, scale, CODES[precision], nodes)

    def to_tf32(self, value: ir.Value, nodes: Nodes) -> ir.Value:
        """A value rounded to TF32; see `rules.TF32_SPLIT`."""
        add, number = self._emitter.add, self._emitter.scalar
        split = add(nodes, "Mul", [value, number(rules.TF32_SPLIT)], "split")
        rounded = add(nodes, "Sub", [split, add(nodes, "Sub", [split, value], "rest")], "tf32")
        fits = add(nodes, "Less", [add(nodes, "Abs", [value], "size"), number(rules.TF32_BOUND)], "fits")
        return add(nodes, "Where", [fits, rounded, value], "rounded")

    def _rounded_to_e4m3(self, value: ir.Value, scale: ir.Value, code: CodeType, nodes: Nodes) -> ir.Value:
        """FP8 in FP32 arithmetic, to the bit, for any opset and provider: opsets before 19 have no FP8.

        The power of two at or below a number ``c`` is ``|q - (1 - u) q|`` with ``q = (2**23 + 1) c`` and ``u = 2**-24``
        (Rump, "Error estimation of floating-point summation and dot product", 2012, `ufp`). E4M3's steps are an eighth
        of it, and 2**-9 below 2**-6. Adding and subtracting 1.5 * 2**23 steps rounds to them, ties to even.
        """
        add, number = self._emitter.add, self._emitter.scalar
        ratio = add(nodes, "Div", [value, scale], "ratio")
        codes = add(nodes, "Clip", [ratio, number(code.least), number(code.greatest)], "clipped")
        product = add(nodes, "Mul", [codes, number(2.0**23 + 1)], "product")
        less = add(nodes, "Mul", [product, number(1 - 2.0**-24)], "less")
        power = add(nodes, "Abs", [add(nodes, "Sub", [product, less], "signed")], "power")
        power = add(nodes, "Max", [power, number(2.0**-6)], "normal")
        steps = add(nodes, "Mul", [power, number(1.5 * 2.0**20)], "steps")
        raised = add(nodes, "Add", [codes, steps], "raised")
        return add(nodes, "Mul", [add(nodes, "Sub", [raised, steps], "codes"), scale], "dequantized")
