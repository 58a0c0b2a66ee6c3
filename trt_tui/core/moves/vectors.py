"""A float32 vector as text: base64 of its little-endian bytes, as files and saved sessions hold a move's figures."""

import base64
import binascii

import numpy as np


def encode_vector(vector: np.ndarray) -> str:
    """The text of a vector ``(n,)``."""
    return base64.b64encode(np.ascontiguousarray(vector, "<f4").tobytes()).decode("ascii")


def decode_vector(text: str) -> np.ndarray:
    """The vector of a text, float32 ``(n,)``.

    Raises:
        ValueError: the text is no base64 of whole float32 numbers, or one of them is not finite.
    """
    try:
        vector = np.frombuffer(base64.b64decode(text, validate=True), "<f4").astype(np.float32)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
    if not np.isfinite(vector).all():
        raise ValueError("a number is not finite")
    return vector


def invalid_vector_reason(text: str, length: int, *, positive: bool = False) -> str:
    """Why a text is not a vector of this length, "" where it is."""
    try:
        vector = decode_vector(text)
    except ValueError as error:
        return f"its values are not base64 of float32 numbers: {error}"
    if len(vector) != length:
        return f"it has {len(vector)} values for {length} channels"
    return "a factor is a number above 0" if positive and not (vector > 0).all() else ""
