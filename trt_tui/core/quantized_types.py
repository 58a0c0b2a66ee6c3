"""The quantized types INT8, FP8 and INT4: a tensor is stored as quantized values and a scale, ``value = quantized *
scale``.

TensorRT quantizes symmetrically, with ties to even and zero point 0: ``quantized = round(clip(x / scale, min_value,
max_value))``. The source is TensorRT's documentation, "Quantization schemes", which also gives the block sizes of INT4
and its restriction to weights. One table holds the properties of all quantized types.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trt_tui.core.precision import Precision

MAX_AMAX = float(np.finfo(np.float32).max)
"""The largest valid amax. Scales are computed in FP32, in which a larger amax is infinite."""


@dataclass(frozen=True)
class QuantizedType:
    """The properties of one quantized type (INT8, FP8 or INT4).

    Attributes:
        precision: The precision of the layers that read such quantized values.
        operators: The operators that can read such quantized values.
        onnx_type: The element type of the quantized values.
        min_value: The lowest quantized value.
        max_value: The quantized value at the end of a range: scale = amax / max_value.
        min_opset: The first opset in which Q and DQ support the type in the form that the lowerings write.
        quantizes_activations: True if the layer reads all operands as quantized values and multiplies these. If False,
            only weights are quantized, and the layer multiplies in the float type around it.
        per_channel: True if a weight has a scale for each channel. If False, a weight has one scale, or one for each
            block.
        block_sizes: Number of weight values along the reduced dimension (K) that share a scale, the preferred size
            first. The dimension must be a multiple of one of the sizes. Empty if all values share a scale.
        quantizes_skips: True if the skip connection of a residual Add gets Q/DQ. TensorRT fuses the Add into an INT8
            Conv only then.
        min_compute_capability: The oldest GPU generation that computes in the type, as (major, minor). None if all
            supported GPUs do.
        min_tensorrt_release: The first TensorRT release that supports the type; TensorRT-RTX 1.7 supports all types.
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
        """True if the quantized values have an exponent, so that the step between two values grows with the value."""
        return self.onnx_type.is_floating_point()

    @property
    def needs_ranges(self) -> bool:
        """True if the scales of activations come from calibrated ranges."""
        return self.quantizes_activations

    @property
    def requirements_text(self) -> str:
        """The text that names the TensorRT releases and GPUs that support the type; "" if all supported GPUs do."""
        if self.min_compute_capability is None:
            return ""
        major, minor = self.min_compute_capability
        return f"TensorRT {self.min_tensorrt_release} or later, SM{major}{minor} or later"

    def find_block_size(self, dimension_size: int) -> int | None:
        """Returns the number of weight values in one block, for a reduced dimension of a given size.

        None if the type has no blocks, or no block size divides the dimension.
        """
        return next((size for size in self.block_sizes if dimension_size % size == 0), None)

    def find_weight_scale_layout(self, shape: Sequence[int | None],
                                 channel_axis: int | None) -> tuple[int | None, int | None]:
        """Returns the axis along which the scales of a weight differ, and the number of values along it that share one.

        The axis is None for a single scale, and the number is None for one scale per index.

        Args:
            shape: The shape of the weight; None for an open size.
            channel_axis: The axis of the output channels; None if there is none.
        """
        if self.per_channel or channel_axis is None:
            return channel_axis, None
        if self.block_sizes and len(shape) == 2 and (reduced_size := shape[1 - channel_axis]) is not None:
            return 1 - channel_axis, self.find_block_size(reduced_size)
        return None, None

    def quantize(self, values: np.ndarray) -> np.ndarray:
        """Returns the quantized values, as float32, of values that are already divided by their scale.

        The argument is modified, and may be returned itself.
        """
        np.clip(values, self.min_value, self.max_value, out=values)
        if self.is_float:
            return values.astype(self.onnx_type.numpy()).astype(np.float32)
        np.rint(values, out=values)
        return values


def broadcast_weight_scales(scales: np.ndarray, shape: Sequence[int], axis: int | None,
                            block_size: int | None) -> np.ndarray:
    """Returns the scales of a weight in a form that broadcasts to the shape of the weight.

    Args:
        scales: The scales in their layout, or flat.
        axis: The axis along which the scales differ, and `block_size`: see `QuantizedType.find_weight_scale_layout`.
    """
    if axis is None:
        return scales.reshape(())
    if block_size is not None:
        blocks = [size // block_size if index == axis else size for index, size in enumerate(shape)]
        return np.repeat(scales.reshape(blocks), block_size, axis)
    return scales.reshape([-1 if index == axis else 1 for index in range(len(shape))])


INT8 = QuantizedType(Precision.INT8, frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul")), ir.DataType.INT8, -128,
                     127, min_opset=17, quantizes_activations=True, per_channel=True, quantizes_skips=True)
FP8 = QuantizedType(Precision.FP8, INT8.operators - {"ConvTranspose"}, ir.DataType.FLOAT8E4M3FN, -448, 448,
                    min_opset=21, quantizes_activations=True, per_channel=False, min_compute_capability=(8, 9),
                    min_tensorrt_release="10")
"""E4M3: 4 bits of exponent, 3 bits of mantissa. A weight has one scale. With a scale for each channel, TensorRT-RTX 1.7
scales the results in a separate kernel, and a format with an exponent gains little accuracy. TensorRT-RTX 1.7 computes
an FP8 ConvTranspose in 16 bits."""
INT4 = QuantizedType(Precision.INT4, frozenset(("Gemm", "MatMul")), ir.DataType.INT4, -8, 7, min_opset=21,
                     quantizes_activations=False, per_channel=False, block_sizes=(128, 64),
                     min_compute_capability=(8, 0), min_tensorrt_release="10")

QUANTIZED_TYPES: Mapping[Precision, QuantizedType] = {code.precision: code for code in (INT8, FP8, INT4)}
"""The quantized types by the precision of the layers that read their values."""

TYPES_WITH_RANGES = tuple(code for code in QUANTIZED_TYPES.values() if code.needs_ranges)
TYPES_WITH_RANGES_TEXT = " or ".join(code.precision.label for code in TYPES_WITH_RANGES)
"""The names of the quantized types whose activation scales come from ranges: ``INT8 or FP8``."""
