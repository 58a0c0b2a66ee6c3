"""The precisions: numeric formats that a layer can be requested to run in."""

from __future__ import annotations

from enum import StrEnum

FP16_MAX = 65504.0
"""The largest finite FP16 value."""

FP16_OVERFLOW = 65520.0
"""The smallest magnitude that FP16 rounds to infinity: half a step above `FP16_MAX`."""

FP16_MIN = 2.0**-24
"""The smallest FP16 magnitude above zero (subnormal)."""

FP16_MIN_NORMAL = 2.0**-14
"""The smallest FP16 magnitude with all bits of the mantissa."""

MIN_FP16_SCALE = 2.0**-17
"""The minimum scale of quantized values that is stored in FP16.

Smaller FP16 scales are subnormal and coarse (steps of 2**-24), so FP32 scales are used instead."""


class Precision(StrEnum):
    """A numeric format that can be requested for a layer. The members are in the order from fine to coarse.

    Files and the command line use the value of a member as its name. More members may be added later. BF16 comes before
    FP16: BF16 has coarser steps, but FP16 overflows earlier. ``fp16+`` is FP16 with an FP32 accumulator, because
    TensorRT's FP16 kernels may accumulate in FP16. ``file`` is the precision that each group has in a quantized or
    typed file.
    """

    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16_ACC_FP32 = "fp16+"
    FP16 = "fp16"
    MXFP8 = "mxfp8"
    FP8 = "fp8"
    INT8 = "int8"
    INT4 = "int4"
    NVFP4 = "nvfp4"
    FILE = "file"

    @property
    def label(self) -> str:
        """The name of the precision for users, such as ``FP16``."""
        return self.value.upper()

    @property
    def value_type(self) -> Precision:
        """The float or quantized type of the tensor values: FP16 for ``fp16+``, FP32 for TF32, and the precision itself
        for all others.
        """
        return _VALUE_TYPES.get(self, self)

    @property
    def letter(self) -> str:
        """The key that selects the precision in the user interface; "" for TF32, which cannot be selected."""
        return _LETTERS_AND_BYTES[self][0]

    @property
    def value_bytes(self) -> float:
        """The size of one value in bytes; 4 (as for FP32) for the precision ``file``.

        Larger values cause more memory traffic and a lower peak rate of tensor cores. INT8 and FP8 have twice the peak
        rate of FP16, and FP16 has twice that of TF32 (NVIDIA H100 data sheet). INT4 is used for weights only. The block
        scales of MXFP8 and NVFP4 are not counted.
        """
        return _LETTERS_AND_BYTES[self][1]


_LETTERS_AND_BYTES = {
    Precision.FP32: ("3", 4.0),
    Precision.TF32: ("", 4.0),
    Precision.BF16: ("b", 2.0),
    Precision.FP16_ACC_FP32: ("s", 2.0),
    Precision.FP16: ("6", 2.0),
    Precision.MXFP8: ("m", 1.0),
    Precision.FP8: ("e", 1.0),
    Precision.INT8: ("8", 1.0),
    Precision.INT4: ("4", 0.5),
    Precision.NVFP4: ("n", 0.5),
    Precision.FILE: ("f", 4.0),
}

_VALUE_TYPES = {Precision.FP16_ACC_FP32: Precision.FP16, Precision.TF32: Precision.FP32}

REQUESTABLE = tuple(precision for precision in Precision if precision is not Precision.TF32)
"""The precisions that a config or a group can request. TF32 is a property of the whole config."""

ASSIGNABLE = tuple(precision for precision in REQUESTABLE if precision is not Precision.FILE)
"""The precisions that any group can be given. The file precision is offered only if the network's file has
precisions."""

FLOAT_PRECISIONS = (Precision.FP32, Precision.BF16, Precision.FP16)
"""The precisions of layers that cannot be quantized."""

MIN_OPSETS = {Precision.FP32: 17, Precision.FP16: 19, Precision.BF16: 22}
"""The lowest opset in which networks with layers in a float precision are written.

Opset 19 introduced FP16 Q and DQ, opset 22 a BF16 Conv. Only BF16 needs an opset from `MIN_UNSAFE_OPSET` on."""

MIN_UNSAFE_OPSET = 21
"""The lowest opset in which ONNX Runtime (observed in 1.31) can refuse networks with INT8 MatMuls under its default
options.

ONNX Runtime rewrites a MatMul and its bias, which adds a Reshape. Behind this Reshape it inserts a Q with an
``output_dtype``, which its own type inference refuses beside an INT8 zero point."""

_RANK_BY_PRECISION = {precision: -index for index, precision in enumerate(Precision)}
_RANK_BY_PRECISION[Precision.FILE] = _RANK_BY_PRECISION[Precision.INT8]


def precision_rank(precision: Precision) -> int:
    """Returns the rank of a precision. A finer precision has a higher rank.

    The file precision has the rank of INT8.
    """
    return _RANK_BY_PRECISION[precision]


DEFAULT_STEPS = (Precision.INT8, Precision.FP16, Precision.FP32)
"""The precisions that one key press up or down steps through by default."""
