"""Code types: formats that a tensor is held in as codes and a scale, ``value = code * scale``; one table for all.

TensorRT quantizes symmetrically: ``code = round(clip(x / scale, least, greatest))``, ties to even, zero point 0
(TensorRT's documentation, "Quantization schemes"; block sizes of INT4 and weights only: there too).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trt_tui.core.precision import Precision

MAX_AMAX = float(np.finfo(np.float32).max)
"""The largest amax: scales are computed in FP32, where a larger one is infinite."""


@dataclass(frozen=True)
class CodeType:
    """How values are held as codes.

    Attributes:
        precision: The precision of the layers that read such codes.
        onnx: The codes' element type.
        least: The lowest code.
        greatest: The code that a range's end has: scale = amax / greatest.
        opset: The first opset in which Q and DQ hold it as the lowerings write them.
        activations: Whether the layer reads all operands as codes and multiplies these; else weights alone are held
            so, and the layer multiplies in the float type around it.
        per_channel: Whether a weight has a scale for each channel; else one for all of it, or one for each block.
        blocks: How many values of a weight along its reduced dimension (K) share a scale, the preferred size first;
            empty where they all do. The dimension is a multiple of one of them.
        skips: Whether the skip of a residual Add carries Q/DQ: TensorRT fuses it into an INT8 Conv by that alone.
        compute_capability: The least GPU that computes in it, as (major, minor); None for every one that is supported.
        tensorrt: The first TensorRT release that takes it; TensorRT-RTX 1.7 takes them all.
    """

    precision: Precision
    onnx: ir.DataType
    least: float
    greatest: float
    opset: int
    activations: bool
    per_channel: bool
    blocks: tuple[int, ...] = ()
    skips: bool = False
    compute_capability: tuple[int, int] | None = None
    tensorrt: str = "8.6"

    @property
    def needs(self) -> str:
        """The releases and GPUs that take it, in words; "" where all that are supported do."""
        if self.compute_capability is None:
            return ""
        major, minor = self.compute_capability
        return f"TensorRT {self.tensorrt} or later, SM{major}{minor} or later"

    def block(self, reduced: int) -> int | None:
        """The size of the blocks along a reduced dimension; None where there are none, or none that divides it."""
        return next((size for size in self.blocks if reduced % size == 0), None)

    def rounded(self, values: np.ndarray) -> np.ndarray:
        """Values that were divided by their scale as codes, float32; changes the array where that needs no other."""
        np.clip(values, self.least, self.greatest, out=values)
        if self.precision is Precision.FP8:
            return values.astype(ir.DataType.FLOAT8E4M3FN.numpy()).astype(np.float32)
        np.rint(values, out=values)
        return values


INT8 = CodeType(Precision.INT8, ir.DataType.INT8, -128, 127, opset=17, activations=True, per_channel=True, skips=True)
FP8 = CodeType(Precision.FP8, ir.DataType.FLOAT8E4M3FN, -448, 448, opset=21, activations=True, per_channel=False,
               compute_capability=(8, 9), tensorrt="10")
"""E4M3: 4 bits of exponent, 3 of mantissa. One scale for a weight: with one for each channel TensorRT-RTX 1.7 scales
the results in a kernel of its own, and a format with an exponent gains little by it."""
INT4 = CodeType(Precision.INT4, ir.DataType.INT4, -8, 7, opset=21, activations=False, per_channel=False,
                blocks=(128, 64), compute_capability=(8, 0), tensorrt="10")

CODES: Mapping[Precision, CodeType] = {code.precision: code for code in (INT8, FP8, INT4)}
"""Code types by the precision of the layers that read them."""
