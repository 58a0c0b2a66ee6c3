"""Polygraphy's JSON files of arrays, inputs and RunResults, read and written one array at a time."""

from __future__ import annotations

import base64
import binascii
import io
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

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
"""Maximum size in bytes of an array that can only be read in one piece: an ``.npz``, or bytes as Latin-1."""

_HEADER_CHARACTERS = 4 * 16384 // 3 // 4 * 4
_PIECE_CHARACTERS = 4 << 18
"""Number of base64 characters that are decoded at a time, a multiple of four."""

_PIECE_BYTES = 3 << 18
"""Number of bytes that are encoded at a time, a multiple of three."""


@dataclass(frozen=True)
class InMemoryArray:
    """A stored array whose values are already in memory, because its form cannot be read in pieces.

    Older releases of Polygraphy wrote an ``.npz`` of one array, or bytes as Latin-1. Both forms are read. Nothing is
    unpickled.
    """

    array: np.ndarray

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def load(self) -> np.ndarray:
        return self.array


@dataclass(frozen=True)
class Base64Array(ArrayWithHeader):
    """An ``.npy`` in base64 inside a JSON file, with a header that was checked against its length."""

    span: FileSpan

    def read_byte_pieces(self) -> Iterator[bytes]:
        """Yields the bytes of the array's values in pieces of less than 1 MiB.

        Raises:
            binascii.Error: The text is not valid base64.
        """
        skip = self.header.offset
        for piece in self.span.iterate_blocks(_PIECE_CHARACTERS):
            data = base64.b64decode(piece, validate=True)
            yield data[skip:]
            skip = max(0, skip - len(data))

    def load(self) -> np.ndarray:
        """Reads the values of the array. A large array goes through a temporary file."""
        if self.header.nbytes <= MAX_IN_MEMORY_BYTES:
            return self.header.build_array(b"".join(self.read_byte_pieces()))
        return ArraySpool().append_byte_pieces(self.read_byte_pieces(), self.header).load()


def open_polygraphy_array(value: Any, title: str) -> StoredArray:
    """Opens an array that Polygraphy has written to a JSON file.

    Args:
        value: The value that `trt_tui.files.lazy_json.read_lazy_json` returns for the array.
        title: The title of the array in messages.

    Raises:
        InputError: The value is no array, or `_open_base64_array` raises it.
    """
    if isinstance(value, dict) and polygraphy_object_kind(value) in ("LazyArray", "LazyNumpyArray"):
        value = value.get("values")
    kind = polygraphy_object_kind(value) if isinstance(value, dict) else None
    if kind == "Tensor" or isinstance(value, dict) and "tensor" in value:
        raise InputError(f"{title} is a pickled torch tensor",
                         "they are refused, because loading them can execute arbitrary code",
                         "Save numpy arrays: tensor.cpu().numpy().")
    if kind != "ndarray" or not isinstance(value.get("array"), str | FileSpan):
        raise InputError(f"{title} is not an array of Polygraphy", f"it is {kind or json_kind_text(value)}",
                         "Save numpy arrays with Polygraphy, or as .npz.")
    return _open_base64_array(value["array"], title)


def json_kind_text(value: object) -> str:
    return "a list of numbers" if isinstance(value, np.ndarray) else type(value).__name__


def _open_base64_array(base64_text: str | FileSpan, title: str) -> StoredArray:
    """Opens an array that Polygraphy's JSON holds as a string.

    Raises:
        InputError: The array holds pickled objects, is damaged, or is too large for its form.
    """
    if isinstance(base64_text, str):
        return InMemoryArray(_decode_base64_array(base64_text, title))
    start = next(base64_text.iterate_blocks(_HEADER_CHARACTERS))
    if not base64_text.has_escapes and start[:4] != b"UEsD":  # "PK", the first bytes of an npz, in base64
        try:
            head = base64.b64decode(start[:len(start) // 4 * 4], validate=True)
            ending = b"".join(
                FileSpan(base64_text.path, base64_text.start + base64_text.length - 4, 4, False).iterate_blocks())
            size = base64_text.length // 4 * 3 - ending.count(b"=")
            if base64_text.length % 4:
                raise binascii.Error("its length is not a multiple of 4")
            return Base64Array(read_npy_header(io.BytesIO(head), size, ""), base64_text)
        except (binascii.Error, ValueError) as error:
            raise InputError(f"{title} is not an array", str(error), "Save it again with Polygraphy.") from None
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
        raise InputError(f"{title} is not an array", str(error), "Save it again with Polygraphy, or as .npz.") from None


def read_first_npz_array(npz_bytes: bytes) -> bytes:
    """Returns the first array of an npz in memory as the bytes of an ``.npy``."""
    with zipfile.ZipFile(io.BytesIO(npz_bytes)) as archive:
        info = archive.infolist()[0]
        if info.file_size > max(MAX_IN_MEMORY_BYTES, 2 * len(npz_bytes)):
            raise ValueError(f"an array would unpack to {info.file_size:,} bytes")
        return archive.read(info)


def polygraphy_object_kind(json_object: dict[str, Any]) -> str | None:
    """Returns the Polygraphy class of a JSON object, such as ``ndarray`` or ``RunResults``; None for a plain object."""
    kind = json_object.get("polygraphy_class")
    if isinstance(kind, str):
        return kind
    for key, item in json_object.items():  # the type mark of older releases
        if isinstance(item, str) and item == "polygraphy_serialized_json_type":
            return key.replace("__polygraphy_encoded_", "")
    return None


class RunResultsWriter:
    """A writer of Polygraphy's RunResults, used as a context manager.

    Runners are written one after another, and each runner iteration by iteration.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._runner: str | None = None
        self._is_first_iteration = True

    def __enter__(self) -> RunResultsWriter:
        self._stream.write(b'{"lst": [')
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is None:
            self._stream.write((b"]]" if self._runner is not None else b"") + b'], "polygraphy_class": "RunResults"}\n')

    def begin_runner(self, runner_name: str) -> None:
        """Begins the next runner of the file. Iterations added after this call belong to it."""
        self._stream.write(b"]], " if self._runner is not None else b"")
        self._stream.write(f"[{json.dumps(runner_name)}, [".encode())
        self._runner, self._is_first_iteration = runner_name, True

    def add_iteration(self, outputs: Mapping[str, np.ndarray]) -> None:
        """Writes the outputs of one iteration of the current runner."""
        self._stream.write((b"" if self._is_first_iteration else b", ") + b'{"outputs": {')
        self._is_first_iteration = False
        for number, (name, array) in enumerate(outputs.items()):
            self._stream.write(f"{', ' if number else ''}{json.dumps(name)}: {{\"values\": ".encode())
            _write_array(self._stream, array)
            self._stream.write(b', "polygraphy_class": "LazyArray"}')
        self._stream.write(f'}}, "runtime": null, "runner_name": {json.dumps(self._runner)}, '
                           '"polygraphy_class": "IterationResult"}'.encode())


def write_polygraphy_inputs(stream: BinaryIO, feeds: Iterable[Mapping[str, np.ndarray]]) -> None:
    """Writes feeds in the form that ``polygraphy run --load-inputs`` reads, one iteration per feed."""
    stream.write(b"[")
    for feed_index, feed in enumerate(feeds):
        stream.write(b", {" if feed_index else b"{")
        for array_index, (name, array) in enumerate(feed.items()):
            stream.write(f"{', ' if array_index else ''}{json.dumps(name)}: ".encode())
            _write_array(stream, array)
        stream.write(b"}")
    stream.write(b"]\n")


def _write_array(stream: BinaryIO, array: np.ndarray) -> None:
    stream.write(b'{"array": "')
    for piece in _encode_base64(array):
        stream.write(piece)
    stream.write(b'", "polygraphy_class": "ndarray"}')


def _encode_base64(array: np.ndarray) -> Iterator[bytes]:
    """Yields an array as an ``.npy`` in base64, in pieces."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.ascontiguousarray(array) if array.ndim else array, allow_pickle=False)
    data = buffer.getbuffer()
    for start in range(0, len(data), _PIECE_BYTES):
        yield base64.b64encode(data[start:start + _PIECE_BYTES])
