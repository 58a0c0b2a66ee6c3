"""Arrays as Polygraphy's JSON holds them: an ``.npy`` in base64, which stays in the file until it is asked for.

Older releases wrote an ``.npz`` of one array, and bytes as Latin-1; both are read. Nothing is ever unpickled.
"""

import base64
import binascii
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from trt_tui.core.data.array_files import (
    MAX_IN_MEMORY_BYTES,
    ArraySpool,
    ArrayWithHeader,
    StoredArray,
    read_npy_bytes,
    read_npy_header,
)
from trt_tui.errors import InputError
from trt_tui.files.lazy_json import FileSpan

MAX_WHOLE_BYTES = 256 << 20
"""Most bytes of an array that can only be read in one piece: an ``.npz``, or bytes as Latin-1."""

_HEADER_CHARACTERS = 4 * 16384 // 3 // 4 * 4
_PIECE_CHARACTERS = 4 << 18
"""Characters that are decoded at a time: whole groups of four."""


@dataclass(frozen=True)
class InMemoryArray:
    """An array that is small enough to be kept."""

    array: np.ndarray

    @property
    def dtype(self) -> np.dtype:
        """The type of its values."""
        return self.array.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        return self.array.shape

    def load(self) -> np.ndarray:
        """The values."""
        return self.array


@dataclass(frozen=True)
class Base64Array(ArrayWithHeader):
    """An ``.npy`` in base64 in a file; its header was read and held against its length."""

    span: FileSpan

    def read_byte_pieces(self) -> Iterator[bytes]:
        """The bytes of its values, in pieces of under a megabyte; raises binascii's errors (`reading`)."""
        skip = self.header.offset
        for piece in self.span.iterate_blocks(_PIECE_CHARACTERS):
            data = base64.b64decode(piece, validate=True)
            yield data[skip:]
            skip = max(0, skip - len(data))

    def load(self) -> np.ndarray:
        """The values, from a temporary file where they are many."""
        if self.header.nbytes <= MAX_IN_MEMORY_BYTES:
            return self.header.build_array(b"".join(self.read_byte_pieces()))
        return ArraySpool().append_byte_pieces(self.read_byte_pieces(), self.header).load()


def open_base64_array(base64_text: str | FileSpan, title: str) -> StoredArray:
    """The array that a string of Polygraphy's JSON holds.

    Args:
        title: What messages call it.

    Raises:
        InputError: it holds pickled objects, is damaged, or is too large for its form.
    """
    if isinstance(base64_text, str):
        return InMemoryArray(_decode_base64_array(base64_text, title))
    start = next(base64_text.iterate_blocks(_HEADER_CHARACTERS))
    if not base64_text.has_escapes and start[:4] != b"UEsD":  # "PK", the head of an npz, in base64
        try:
            head = base64.b64decode(start[:len(start) // 4 * 4], validate=True)
            ending = b"".join(
                FileSpan(base64_text.path, base64_text.start + base64_text.length - 4, 4, False).iterate_blocks())
            size = base64_text.length // 4 * 3 - ending.count(b"=")
            if base64_text.length % 4:
                raise binascii.Error("its length is no multiple of 4")
            return Base64Array(read_npy_header(io.BytesIO(head), size, ""), base64_text)
        except (binascii.Error, ValueError) as error:
            raise InputError(f"{title} is no array", str(error), "Save it again with Polygraphy.") from None
        except InputError as error:
            raise InputError(f"{title}: {error.title}", error.cause, error.next_step) from None
    if base64_text.length > MAX_WHOLE_BYTES:
        raise InputError(
            f"{title} is too large in this form", f"{base64_text.length:,} bytes as an old Polygraphy wrote them; "
            f"up to {MAX_WHOLE_BYTES:,} are read", "Save it with Polygraphy 0.38 or later, or as .npz.")
    return InMemoryArray(
        _decode_base64_array(str(json.loads(b'"' + b"".join(base64_text.iterate_blocks()) + b'"', strict=False)),
                             title))


def _decode_base64_array(base64_text: str, title: str) -> np.ndarray:
    try:
        try:
            data = base64.b64decode(base64_text, validate=True)
        except (binascii.Error, ValueError):
            data = base64_text.encode("latin-1")
        return read_npy_bytes(read_first_npz_array(data) if data[:2] == b"PK" else data)
    except InputError as error:
        raise InputError(f"{title}: {error.title}", error.cause, error.next_step) from None
    except Exception as error:  # numpy's, zipfile's and the codecs' own
        raise InputError(f"{title} is no array", str(error), "Save it again with Polygraphy, or as .npz.") from None


def read_first_npz_array(npz_bytes: bytes) -> bytes:
    """The first array of an npz in memory, as an ``.npy``."""
    with zipfile.ZipFile(io.BytesIO(npz_bytes)) as archive:
        info = archive.infolist()[0]
        if info.file_size > max(MAX_IN_MEMORY_BYTES, 2 * len(npz_bytes)):
            raise ValueError(f"an array would unpack to {info.file_size:,} bytes")
        return archive.read(info)


def polygraphy_object_kind(json_object: dict[str, Any]) -> str | None:
    """What an object of Polygraphy's JSON is: ``ndarray``, ``RunResults`` …; None for a plain one."""
    kind = json_object.get("polygraphy_class")
    if isinstance(kind, str):
        return kind
    for key, item in json_object.items():  # how older releases mark the type
        if isinstance(item, str) and item == "polygraphy_serialized_json_type":
            return key.replace("__polygraphy_encoded_", "")
    return None
