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

from trt_tui.core.data.stored import IN_MEMORY, Headed, Member, Spool, npy_array, npy_header
from trt_tui.errors import InputError
from trt_tui.files.spans import Span

WHOLE_BYTES = 256 << 20
"""Most bytes of an array that can only be read in one piece: an ``.npz``, or bytes as Latin-1."""

_HEAD_CHARACTERS = 4 * 16384 // 3 // 4 * 4
_PIECE = 4 << 18
"""Characters that are decoded at a time: whole groups of four."""


@dataclass(frozen=True)
class InMemory:
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
class Encoded(Headed):
    """An ``.npy`` in base64 in a file; its header was read and held against its length."""

    span: Span

    def raw(self) -> Iterator[bytes]:
        """The bytes of its values, in pieces of under a megabyte; raises binascii's errors (`reading`)."""
        skip = self.header.offset
        for piece in self.span.pieces(_PIECE):
            data = base64.b64decode(piece, validate=True)
            yield data[skip:]
            skip = max(0, skip - len(data))

    def load(self) -> np.ndarray:
        """The values, from a temporary file where they are many."""
        if self.header.nbytes <= IN_MEMORY:
            return self.header.array(b"".join(self.raw()))
        return Spool().append(self.raw(), self.header).load()


def array_member(text: str | Span, what: str) -> Member:
    """The array that a string of Polygraphy's JSON holds.

    Args:
        what: What messages call it.

    Raises:
        InputError: it holds pickled objects, is damaged, or is too large for its form.
    """
    if isinstance(text, str):
        return InMemory(_decoded(text, what))
    start = next(text.pieces(_HEAD_CHARACTERS))
    if not text.escaped and start[:4] != b"UEsD":  # "PK", the head of an npz, in base64
        try:
            head = base64.b64decode(start[:len(start) // 4 * 4], validate=True)
            ending = b"".join(Span(text.path, text.start + text.length - 4, 4, False).pieces())
            size = text.length // 4 * 3 - ending.count(b"=")
            if text.length % 4:
                raise binascii.Error("its length is no multiple of 4")
            return Encoded(npy_header(io.BytesIO(head), size, ""), text)
        except (binascii.Error, ValueError) as error:
            raise InputError(f"{what} is no array", str(error), "Save it again with Polygraphy.") from None
        except InputError as error:
            raise InputError(f"{what}: {error.title}", error.cause, error.next_step) from None
    if text.length > WHOLE_BYTES:
        raise InputError(f"{what} is too large in this form", f"{text.length:,} bytes as an old Polygraphy wrote them; "
                         f"up to {WHOLE_BYTES:,} are read", "Save it with Polygraphy 0.38 or later, or as .npz.")
    return InMemory(_decoded(str(json.loads(b'"' + b"".join(text.pieces()) + b'"', strict=False)), what))


def _decoded(text: str, what: str) -> np.ndarray:
    try:
        try:
            data = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            data = text.encode("latin-1")
        return npy_array(first_member(data) if data[:2] == b"PK" else data)
    except InputError as error:
        raise InputError(f"{what}: {error.title}", error.cause, error.next_step) from None
    except Exception as error:  # numpy's, zipfile's and the codecs' own
        raise InputError(f"{what} is no array", str(error), "Save it again with Polygraphy, or as .npz.") from None


def first_member(data: bytes) -> bytes:
    """The first array of an npz in memory, as an ``.npy``."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        info = archive.infolist()[0]
        if info.file_size > max(IN_MEMORY, 2 * len(data)):
            raise ValueError(f"an array would unpack to {info.file_size:,} bytes")
        return archive.read(info)


def kind_of(value: dict[str, Any]) -> str | None:
    """What an object of Polygraphy's JSON is: ``ndarray``, ``RunResults`` …; None for a plain one."""
    kind = value.get("polygraphy_class")
    if isinstance(kind, str):
        return kind
    for key, item in value.items():  # how older releases mark the type
        if isinstance(item, str) and item == "polygraphy_serialized_json_type":
            return key.replace("__polygraphy_encoded_", "")
    return None
