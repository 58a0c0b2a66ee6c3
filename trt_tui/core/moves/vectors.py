"""The text forms of arrays in moves: base64 of float32 bytes, and base64 of compressed small integers.

Files and saved sessions store the numbers of moves in these forms.
"""

import base64
import binascii
import zlib

import numpy as np

MAX_INTEGERS = 1 << 30
"""The maximum number of integers in one text. A damaged file cannot fill the memory."""

_COMPRESSION_LEVEL = 6


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


def invalid_vector_reason(text: str, length: int | None, *, positive: bool = False, noun: str = "factor") -> str:
    """Returns the reason why a base64 text is not a vector of ``length`` finite numbers; "" if it is.

    Args:
        length: The number of channels; None for any length above 0.
        positive: True if the numbers must be above 0.
        noun: The word for one number.
    """
    try:
        vector = decode_vector(text)
    except ValueError as error:
        return f"its values are not base64 of float32 numbers: {error}"
    if length is not None and len(vector) != length:
        return f"it has {len(vector)} values for {length} channels"
    if not len(vector):
        return "it has no values"
    return f"a {noun} is a number above 0" if positive and not (vector > 0).all() else ""


def encode_integers(integers: np.ndarray) -> str:
    """Returns integers from -128 to 127 as base64 of compressed bytes. Many equal numbers take little room."""
    data = np.ascontiguousarray(integers, np.int8).tobytes()
    return base64.b64encode(zlib.compress(data, _COMPRESSION_LEVEL)).decode("ascii")


def decode_integers(text: str) -> np.ndarray:
    """Returns the int8 vector ``(n,)`` of a text from `encode_integers`.

    Raises:
        ValueError: The text is not base64 of compressed bytes, or has more than `MAX_INTEGERS` integers.
    """
    try:
        decompressor = zlib.decompressobj()
        data = decompressor.decompress(base64.b64decode(text, validate=True), MAX_INTEGERS)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(str(error)) from None
    if not decompressor.eof:
        raise ValueError("the compressed numbers are incomplete, or there are too many")
    return np.frombuffer(data, np.int8)
