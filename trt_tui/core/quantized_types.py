"""The quantized types. A tensor in such a type is stored as quantized values and scales: ``value = quantized * scale``.

TensorRT quantizes symmetrically, with ties to even and zero point 0: ``quantized = round(clip(x / scale, min_value,
max_value))``. The source is TensorRT's documentation, "Quantization schemes", which also gives the block sizes of INT4
and its restriction to weights. One table holds the properties of all quantized types.

**MXFP8 and NVFP4** have a scale for each block along the summed dimension of a product, for weights and activations.
With the largest magnitude ``amax`` of a block, and the scale ``t`` of the tensor (1 in MXFP8)::

    scale = t * round_scale(amax / (max_value * t))
    value = scale * round(clip(x / scale, -max_value, max_value))

- MXFP8: blocks of 32, E4M3 values, E8M0 scales. ``round_scale`` returns the next power of two that is not smaller:
  ``2**ceil(log2(amax / 448))``. Sources: cuDNN, "Block Scaling" (``quantize_round_up(amax / vmax)``), and ModelOpt,
  ``compute_e8m0``. The OCP specification of microscaling formats suggests ``2**(floor(log2(amax)) - 8)`` and leaves the
  choice open. NVIDIA's libraries do not use that form: it clips values above 448/512 of a power of two.
- NVFP4: blocks of 16, E2M1 values, E4M3 scales. ``round_scale`` rounds to the nearest E4M3 value, with ties to even,
  and saturates at 448. ``t`` is the calibrated amax of the tensor, divided by 6 * 448. Sources: TensorRT's
  ``DynamicQuantize`` operator (a constant ``double_quant_scale``), and ModelOpt, ``get_weights_scaling_factor``. Values
  are divided by the rounded scale, the scale of TensorRT's ``quantize``. ModelOpt 0.47 divides weights by the scale
  before its rounding; the weights that are written here do not come from it.

Zeros in a block stay zeros. A scale is at least 2**-126 in MXFP8, the smallest normal FP32 number. In NVFP4 the scale
of an activation can be 0, and all values of the block are then 0, whatever they are divided by. The scale of a weight
is at least 2**-9, because TensorRT refuses a scale of 0. TensorRT does not document blocks with a NaN or an infinity:
here all values of such a block are NaN. The number of values must be a multiple of the block size. TensorRT-RTX 1.7
refuses inputs with other than 2 or 3 dimensions. Products are summed in FP32.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx_ir as ir

from trt_tui.core.precision import Precision

MAX_AMAX = float(np.finfo(np.float32).max)
"""The largest valid amax. Scales are computed in FP32, in which a larger amax is infinite."""


MAX_E4M3, MIN_E4M3 = 448.0, 2.0**-9
"""The largest finite E4M3 value and the smallest above zero."""


@dataclass(frozen=True)
class QuantizedType:
    """A quantized type: its operators, its values, its scales, and the releases and GPUs that support it.

    Attributes:
        precision: The precision of layers that read quantized values of the type.
        operators: The operators that can read quantized values of the type.
        onnx_type: The element type of the quantized values.
        min_value: The lowest quantized value.
        max_value: The quantized value at the end of a range: scale = amax / max_value.
        min_opset: The first opset whose Q and DQ support the type as the lowerings use it.
        quantizes_activations: True if the layer reads all operands as quantized values and multiplies these. If False,
            only weights are quantized, and the layer multiplies in the float type around it.
        per_channel: True if a weight has a scale for each channel. If False, a weight has one scale, or one for each
            block.
        block_sizes: Number of values along the reduced dimension (K) that share a scale, the preferred size first. The
            dimension must be a multiple of one of the sizes. Empty if all values share a scale.
        block_scale_type: The type of the scales of blocks of activations, which TensorRT computes at run time: "E8M0"
            or "E4M3". "" if activations have no blocks.
        needs_ranges: True if the scales of activations come from calibrated ranges. In NVFP4, the range of a tensor
            gives the scale that multiplies its block scales.
        quantizes_skips: True if the skip connection of a residual Add gets Q/DQ. Without Q/DQ, TensorRT does not fuse
            the Add into an INT8 Conv.
        min_compute_capability: The oldest GPU generation that computes in the type, as (major, minor). None if all
            supported GPUs do.
        min_tensorrt_release: The first TensorRT release that supports the type; TensorRT-RTX 1.7 supports all types.
        tensorrt_type: The name of the data type in TensorRT's API. A release with this name supports the type.
    """

    precision: Precision
    operators: frozenset[str]
    onnx_type: ir.DataType
    min_value: float
    max_value: float
    min_opset: int
    quantizes_activations: bool
    per_channel: bool
    tensorrt_type: str
    needs_ranges: bool = False
    block_sizes: tuple[int, ...] = ()
    block_scale_type: str = ""
    quantizes_skips: bool = False
    min_compute_capability: tuple[int, int] | None = None
    min_tensorrt_release: str = "8.6"

    @property
    def is_float(self) -> bool:
        """True if the quantized values are floating-point numbers, so that large values have large steps."""
        return self.onnx_type.is_floating_point()

    @property
    def max_tensor_value(self) -> float:
        """The largest value of a tensor that the type represents, in units of the tensor's scale."""
        return self.max_value * (MAX_E4M3 if self.block_scale_type == "E4M3" else 1)

    @property
    def requirements_text(self) -> str:
        """A text with the TensorRT releases and GPUs that support the type; "" if all supported GPUs do."""
        if self.min_compute_capability is None:
            return ""
        major, minor = self.min_compute_capability
        return f"TensorRT {self.min_tensorrt_release} or later, SM{major}{minor} or later"

    def find_block_size(self, dimension_size: int) -> int | None:
        """Returns the block size for a reduced dimension of a given size; None without blocks, or if no block size
        divides it.

        A block is the values of a weight that share a scale.
        """
        return next((size for size in self.block_sizes if dimension_size % size == 0), None)

    def compute_block_scales(self, amax: np.ndarray, tensor_scale: np.ndarray) -> np.ndarray:
        """Returns the scales of the blocks of a weight, float32, by the formulas of this module's docstring.

        Args:
            amax: The largest finite magnitude of each block.
            tensor_scale: The scale of the tensor; 1 in MXFP8.
        """
        ratios = np.asarray(amax, np.float32) / (np.float32(self.max_value) * np.float32(tensor_scale))
        if self.block_scale_type == "E4M3":
            scales = np.minimum(ratios, np.float32(MAX_E4M3)).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
            return np.asarray(np.maximum(scales, np.float32(MIN_E4M3)) * np.float32(tensor_scale))
        mantissas, exponents = np.frexp(np.maximum(ratios, np.finfo(np.float32).tiny))
        return np.asarray(np.ldexp(np.float32(1), exponents - (mantissas == np.float32(0.5))))

    def find_weight_scale_layout(
        self, shape: Sequence[int | None], channel_axis: int | None
    ) -> tuple[int | None, int | None]:
        """Returns the axis along which the scales of a weight differ, and the number of values along it that share a
        scale.

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
        """Returns the quantized values, as float32, of values that were already divided by their scale.

        The argument is modified in place, and the result may be the argument itself.
        """
        np.clip(values, self.min_value, self.max_value, out=values)
        if self.is_float:
            return values.astype(self.onnx_type.numpy()).astype(np.float32)
        np.rint(values, out=values)
        return values


def broadcast_scales(
    scales: np.ndarray, shape: Sequence[int], axis: int | None, block_size: int | None = None
) -> np.ndarray:
    """Returns scales or zero points in a form that broadcasts to the shape of their tensor.

    Args:
        scales: The scales in their layout, or flat.
        axis: The axis along which the scales differ; None for a single one.
        block_size: The number of values along the axis that share a scale; the last block may be smaller. 0 or None for
            one scale per index.
    """
    if axis is None or scales.size == 1 and not block_size:
        return scales.reshape(())
    axis %= len(shape)
    if block_size:
        blocks = [-(-size // block_size) if index == axis else size for index, size in enumerate(shape)]
        scales = scales if scales.ndim == len(shape) else scales.reshape(blocks)
        return np.repeat(scales, block_size, axis)[tuple(map(slice, shape))]
    return scales.reshape([-1 if index == axis else 1 for index in range(len(shape))])


INT8 = QuantizedType(
    Precision.INT8,
    frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul")),
    ir.DataType.INT8,
    -128,
    127,
    min_opset=17,
    quantizes_activations=True,
    per_channel=True,
    tensorrt_type="INT8",
    needs_ranges=True,
    quantizes_skips=True,
)
FP8 = QuantizedType(
    Precision.FP8,
    INT8.operators - {"ConvTranspose"},
    ir.DataType.FLOAT8E4M3FN,
    -MAX_E4M3,
    MAX_E4M3,
    min_opset=21,
    quantizes_activations=True,
    per_channel=False,
    tensorrt_type="FP8",
    needs_ranges=True,
    min_compute_capability=(8, 9),
    min_tensorrt_release="10",
)
"""E4M3: 4 bits of exponent, 3 bits of mantissa. A weight has one scale. With a scale for each channel, TensorRT-RTX 1.7
scales the results in a separate kernel, and a format with an exponent gains little accuracy. TensorRT-RTX 1.7 computes
an FP8 ConvTranspose in 16 bits."""
INT4 = QuantizedType(
    Precision.INT4,
    frozenset(("Gemm", "MatMul")),
    ir.DataType.INT4,
    -8,
    7,
    min_opset=21,
    quantizes_activations=False,
    per_channel=False,
    tensorrt_type="INT4",
    block_sizes=(128, 64),
    min_compute_capability=(8, 0),
    min_tensorrt_release="10",
)
MXFP8 = QuantizedType(
    Precision.MXFP8,
    INT4.operators,
    ir.DataType.FLOAT8E4M3FN,
    -MAX_E4M3,
    MAX_E4M3,
    min_opset=21,
    quantizes_activations=True,
    per_channel=False,
    tensorrt_type="E8M0",
    block_sizes=(32,),
    block_scale_type="E8M0",
    min_compute_capability=(10, 0),
    min_tensorrt_release="10.12",
)
"""TensorRT 10.12 introduced MXFP8 (release notes). Products of MXFP8 values need a GPU of compute capability 10.0
(Transformer Engine, "Datatype and hardware support matrix"). TensorRT-RTX 1.7 builds it for 8.9 and later, and
multiplies the dequantized values in the float type around the layer."""
NVFP4 = QuantizedType(
    Precision.NVFP4,
    INT4.operators,
    ir.DataType.FLOAT4E2M1,
    -6,
    6,
    min_opset=23,
    quantizes_activations=True,
    per_channel=False,
    tensorrt_type="FP4",
    needs_ranges=True,
    block_sizes=(16,),
    block_scale_type="E4M3",
    min_compute_capability=(10, 0),
    min_tensorrt_release="10.8",
)
"""TensorRT 10.8 introduced FP4 on Blackwell GPUs (release notes). Opset 23 introduced its Q and DQ."""

QUANTIZED_TYPES: Mapping[Precision, QuantizedType] = {code.precision: code for code in (INT8, FP8, INT4, MXFP8, NVFP4)}
"""The quantized types by the precision of the layers that read their values."""

BLOCK_PRECISIONS = frozenset(code.precision for code in QUANTIZED_TYPES.values() if code.block_scale_type)
"""The precisions whose activations have scales for blocks: MXFP8 and NVFP4."""

TYPES_WITH_RANGES = tuple(code for code in QUANTIZED_TYPES.values() if code.needs_ranges)
TYPES_WITH_RANGES_TEXT = " or ".join(
    (", ".join(code.precision.label for code in TYPES_WITH_RANGES[:-1]), TYPES_WITH_RANGES[-1].precision.label)
)
"""The names of the quantized types whose activation scales come from ranges: ``INT8, FP8 or NVFP4``."""
