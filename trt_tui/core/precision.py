"""Precisions: the numeric formats that a layer can be asked to run in."""

from __future__ import annotations

from enum import Enum

FP16_MAX = 65504.0
"""The largest finite FP16 value."""

FP16_OVERFLOW = 65520.0
"""The least magnitude that FP16 rounds to infinity: half a step above `FP16_MAX`."""

FP16_MIN = 2.0**-24
"""The least FP16 magnitude above zero (subnormal)."""

FP16_MIN_NORMAL = 2.0**-14
"""The least FP16 magnitude that has all bits of its mantissa."""

class Precision(str, Enum):
    """A numeric format that a layer can be asked to run in, from fine to coarse.

    The list is open: the value is the word used in files and on the command line. BF16 stands above FP16, which has
    finer steps but closer limits. ``fp16+`` is FP16 with products that are summed in FP32: TensorRT's kernels for FP16
    sum in FP16 where that is faster. ``file`` is what a quantized or typed network has in its own file, group by group.
    """

    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16_ACC_FP32 = "fp16+"
    FP16 = "fp16"
    FP8 = "fp8"
    INT8 = "int8"
    INT4 = "int4"
    FILE = "file"

    @property
    def label(self) -> str:
        """As people read it: ``FP16``."""
        return self.value.upper()

    @property
    def value_type(self) -> Precision:
        """The precision whose values tensors have in it: FP16 for ``fp16+``, FP32 for TF32."""
        return _VALUE_TYPES.get(self, self)

    @property
    def letter(self) -> str:
        """The key that chooses it in lists; "" for TF32, which no list offers."""
        return _LETTERS_AND_BYTES[self][0]

    @property
    def value_bytes(self) -> float:
        """Bytes of a value, those of FP32 where a file decides.

        Memory traffic grows with them, and the peak rates of tensor cores fall with them: INT8 and FP8 have twice those
        of FP16, and that twice those of TF32 (NVIDIA H100 data sheet; INT4 holds weights alone).
        """
        return _LETTERS_AND_BYTES[self][1]

    def __str__(self) -> str:
        return self.value


_LETTERS_AND_BYTES = {Precision.FP32: ("3", 4.0), Precision.TF32: ("", 4.0), Precision.BF16: ("b", 2.0),
                      Precision.FP16_ACC_FP32: ("s", 2.0), Precision.FP16: ("6", 2.0), Precision.FP8: ("e", 1.0),
                      Precision.INT8: ("8", 1.0), Precision.INT4: ("4", 0.5), Precision.FILE: ("f", 4.0)}

_VALUE_TYPES = {Precision.FP16_ACC_FP32: Precision.FP16, Precision.TF32: Precision.FP32}

REQUESTABLE = tuple(precision for precision in Precision if precision is not Precision.TF32)
"""The precisions that a config or a group can have; TF32 is a property of the whole config."""

ASSIGNABLE = tuple(precision for precision in REQUESTABLE if precision is not Precision.FILE)
"""The precisions any group can be given; what a file has of its own is offered where it has any."""

FLOAT_PRECISIONS = (Precision.FP32, Precision.BF16, Precision.FP16)
"""The precisions that a layer outside the quantizable ones can run in."""

MIN_OPSETS = {Precision.FP32: 17, Precision.FP16: 19, Precision.BF16: 22}
"""The lowest opset that networks with layers in a float precision are written in: FP16 Q and DQ came with 19, a BF16
Conv with 22. None lies needlessly at `MIN_UNSAFE_OPSET` or above."""

MIN_UNSAFE_OPSET = 21
"""From here on ONNX Runtime (seen: 1.31) can refuse networks with INT8 MatMuls under its default options: behind a
Reshape that it makes of a MatMul and its bias it adds a Q with an ``output_dtype``, which its own type inference
refuses beside an INT8 zero point."""

_RANK_BY_PRECISION = {precision: -index for index, precision in enumerate(Precision)}
_RANK_BY_PRECISION[Precision.FILE] = _RANK_BY_PRECISION[Precision.INT8]


def precision_rank(precision: Precision) -> int:
    """The place of a precision in the order from coarse to fine; what a file has ranks as INT8."""
    return _RANK_BY_PRECISION[precision]


DEFAULT_STEPS = (Precision.INT8, Precision.FP16, Precision.FP32)
"""The steps that one key press up or down takes."""
