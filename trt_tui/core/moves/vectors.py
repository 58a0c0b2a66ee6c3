"""The text form of float32 vectors, base64 of the little-endian bytes. Files and saved sessions store the numbers of
moves in this form."""

import base64
import binascii

import numpy as np


def encode_vector(vector: np.ndarray) -> str:
    """Returns a vector ``(n,)`` as base64 text."""
    return base64.b64encode(np.ascontiguousarray(vector, "<f4").tobytes()).decode("ascii")


def decode_vector(text: str) -> np.ndarray:
    """Returns the float32 vector ``(n,)`` of a base64 text.

    Raises:
        ValueError: The text is not base64 of whole float32 numbers, or a number is not finite.
    """
    try:
        vector = np.frombuffer(base64.b64decode(text, validate=True), "<f4").astype(np.float32)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
    if not np.isfinite(vector).all():
        raise ValueError("a number is not finite")
    return vector


def invalid_vector_reason(text: str, length: int, *, positive: bool = False) -> str:
    """Returns the reason why a base64 text is not a vector of ``length`` finite numbers; "" if it is.

    Args:
        positive: True if the numbers must be above 0.
    """
    try:
        vector = decode_vector(text)
    except ValueError as error:
        return f"its values are not base64 of float32 numbers: {error}"
    if len(vector) != length:
        return f"it has {len(vector)} values for {length} channels"
    return "a factor is a number above 0" if positive and not (vector > 0).all() else ""
