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
class QuantizedType:
    """How values are held as codes.

    Attributes:
        precision: The precision of the layers that read such codes.
        operators: The operators that read such codes.
        onnx_type: The codes' element type.
        min_value: The lowest code.
        max_value: The code that a range's end has: scale = amax / greatest.
        min_opset: The first opset in which Q and DQ hold it as the lowerings write them.
        quantizes_activations: Whether the layer reads all operands as codes and multiplies these; else weights alone
            are held so, and the layer multiplies in the float type around it.
        per_channel: Whether a weight has a scale for each channel; else one for all of it, or one for each block.
        block_sizes: How many values of a weight along its reduced dimension (K) share a scale, the preferred size
            first; empty where they all do. The dimension is a multiple of one of them.
        quantizes_skips: Whether the skip of a residual Add carries Q/DQ: TensorRT fuses it into an INT8 Conv by that
        alone.
        min_compute_capability: The least GPU that computes in it, as (major, minor); None for every one that is
        supported.
        min_tensorrt_release: The first TensorRT release that takes it; TensorRT-RTX 1.7 takes them all.
    """

    precision: Precision
    operators: frozenset[str]
    onnx_type: ir.DataType
    min_value: float
    max_value: float
    min_opset: int
    quantizes_activations: bool
    per_channel: bool
    block_sizes: tuple[int, ...] = ()
    quantizes_skips: bool = False
    min_compute_capability: tuple[int, int] | None = None
    min_tensorrt_release: str = "8.6"

    @property
    def is_float(self) -> bool:
        """Whether its steps grow with the values, since codes have an exponent."""
        return self.onnx_type.is_floating_point()

    @property
    def needs_ranges(self) -> bool:
        """Whether the scales of activations come from calibrated ranges."""
        return self.quantizes_activations

    @property
    def requirements_text(self) -> str:
        """The releases and GPUs that take it, in words; "" where all that are supported do."""
        if self.min_compute_capability is None:
            return ""
        major, minor = self.min_compute_capability
        return f"TensorRT {self.min_tensorrt_release} or later, SM{major}{minor} or later"

    def find_block_size(self, dimension_size: int) -> int | None:
        """The size of the blocks along a reduced dimension; None where there are none, or none that divides it."""
        return next((size for size in self.block_sizes if dimension_size % size == 0), None)

    def quantize(self, values: np.ndarray) -> np.ndarray:
        """Values that were divided by their scale as codes, float32; changes the array where that needs no other."""
        np.clip(values, self.min_value, self.max_value, out=values)
        if self.is_float:
            return values.astype(self.onnx_type.numpy()).astype(np.float32)
        np.rint(values, out=values)
        return values


INT8 = QuantizedType(Precision.INT8, frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul")), ir.DataType.INT8, -128,
                     127, min_opset=17, quantizes_activations=True, per_channel=True, quantizes_skips=True)
FP8 = QuantizedType(Precision.FP8, INT8.operators - {"ConvTranspose"}, ir.DataType.FLOAT8E4M3FN, -448, 448,
                    min_opset=21, quantizes_activations=True, per_channel=False, min_compute_capability=(8, 9),
                    min_tensorrt_release="10")
"""E4M3: 4 bits of exponent, 3 of mantissa. One scale for a weight: with one for each channel TensorRT-RTX 1.7 scales
the results in a kernel of its own, and a format with an exponent gains little by it. TensorRT-RTX 1.7 computes an FP8
ConvTranspose in 16 bits."""
INT4 = QuantizedType(Precision.INT4, frozenset(("Gemm", "MatMul")), ir.DataType.INT4, -8, 7, min_opset=21,
                     quantizes_activations=False, per_channel=False, block_sizes=(128, 64),
                     min_compute_capability=(8, 0), min_tensorrt_release="10")

QUANTIZED_TYPES: Mapping[Precision, QuantizedType] = {code.precision: code for code in (INT8, FP8, INT4)}
"""Code types by the precision of the layers that read them."""

TYPES_WITH_RANGES = tuple(code for code in QUANTIZED_TYPES.values() if code.needs_ranges)
TYPES_WITH_RANGES_TEXT = " or ".join(code.precision.label for code in TYPES_WITH_RANGES)
"""Those whose ranges decide scales of activations: ``INT8 or FP8``."""
