"""Element types: what of an array's can become an input's.

An array is cast to its input's type where numpy calls that safe (``uint8`` to ``float32``, ``int32`` to ``int64``),
between floating-point types, and between integer types if the values fit. Other casts are errors.
"""

import numpy as np

from trt_tui.core.runner import TensorInfo
from trt_tui.errors import InputError


def is_float(dtype: np.dtype) -> bool:
    """Whether a type is floating-point, those of ml_dtypes included."""
    return dtype.kind == "f" or dtype.name.startswith(("bfloat16", "float8", "float4"))


def is_castable(source_type: np.dtype, target_type: np.dtype) -> bool:
    """Whether arrays of one type are taken for an input of another; values are checked by `cast_to_input_type`."""
    if target_type.kind in "OUST":  # string tensors
        return source_type.kind in "US"
    both_float = is_float(source_type) and is_float(target_type)
    both_integer = source_type.kind in "iu" and target_type.kind in "iu"
    return both_float or both_integer or np.can_cast(source_type, target_type, "safe")


def cast_to_input_type(array: np.ndarray, input_info: TensorInfo, source_title: str,
                       first_sample_index: int) -> np.ndarray:
    """A fresh contiguous array of the input's type.

    Raises:
        InputError: the array holds NaN or an infinity, or an integer that the type cannot hold.
    """
    with np.errstate(over="ignore"):
        result = np.array(array, dtype=input_info.dtype, order="C", subok=False)
    is_invalid = None
    if is_float(input_info.dtype):
        is_invalid = ~np.isfinite(result)
    elif input_info.dtype.kind in "iu" and array.dtype != input_info.dtype:
        is_invalid = result != array
    if is_invalid is not None and is_invalid.any():
        position = tuple(int(i) for i in np.argwhere(is_invalid)[0])
        value = array[position]
        sample = first_sample_index + (position[0] if position else 0)
        finite = bool(np.isfinite(np.asarray(value, np.float64)))
        raise InputError(
            f"{source_title}: input '{input_info.name}' holds {value} at sample {sample}",
            f"{input_info.dtype} cannot hold it."
            if finite else "Errors cannot be measured on data that are not finite.",
            "Correct or remove that sample.",
        )
    return result
