"""Element types: the casts from the type of an array to that of a network input.

An array is cast if numpy calls the cast safe (``uint8`` to ``float32``, ``int32`` to ``int64``). Casts between
floating-point types are allowed too, and casts between integer types if the values fit. Other casts are errors.
"""

import numpy as np

from trt_tui.core.runner import TensorInfo
from trt_tui.errors import InputError


def is_float(dtype: np.dtype) -> bool:
    """Returns True if an element type is floating-point, including the types of ml_dtypes."""
    return dtype.kind == "f" or dtype.name.startswith(("bfloat16", "float8", "float4"))


def is_castable(source_type: np.dtype, target_type: np.dtype) -> bool:
    """Returns True if arrays of one type are accepted for an input of another type.

    Values are checked later, by `cast_to_input_type`.
    """
    if target_type.kind in "OUST":  # string tensors
        return source_type.kind in "US"
    both_float = is_float(source_type) and is_float(target_type)
    both_integer = source_type.kind in "iu" and target_type.kind in "iu"
    return both_float or both_integer or np.can_cast(source_type, target_type, "safe")


def cast_to_input_type(array: np.ndarray, input_info: TensorInfo, source_title: str,
                       first_sample_index: int) -> np.ndarray:
    """Returns a new contiguous copy of an array in the type of a network input.

    Raises:
        InputError: The array contains NaN, an infinity, or an integer outside the range of the type.
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
