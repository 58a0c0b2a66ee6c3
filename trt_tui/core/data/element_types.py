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


def castable(source: np.dtype, target: np.dtype) -> bool:
    """Whether arrays of one type are taken for an input of another; values are checked by `cast`."""
    if target.kind in "OUST":  # string tensors
        return source.kind in "US"
    both_float = is_float(source) and is_float(target)
    both_integer = source.kind in "iu" and target.kind in "iu"
    return both_float or both_integer or np.can_cast(source, target, "safe")


def cast(array: np.ndarray, info: TensorInfo, source: str, first_sample: int) -> np.ndarray:
    """A fresh contiguous array of the input's type.

    Raises:
        InputError: the array holds NaN or an infinity, or an integer that the type cannot hold.
    """
    with np.errstate(over="ignore"):
        result = np.array(array, dtype=info.dtype, order="C", subok=False)
    bad = None
    if is_float(info.dtype):
        bad = ~np.isfinite(result)
    elif info.dtype.kind in "iu" and array.dtype != info.dtype:
        bad = result != array
    if bad is not None and bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        value = array[where]
        sample = first_sample + (where[0] if where else 0)
        finite = bool(np.isfinite(np.asarray(value, np.float64)))
        raise InputError(
            f"{source}: input '{info.name}' holds {value} at sample {sample}",
            f"{info.dtype} cannot hold it." if finite else "Errors cannot be measured on data that are not finite.",
            "Correct or remove that sample.",
        )
    return result
