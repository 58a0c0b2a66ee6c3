"""Arrays stored in files: types and shapes are checked against the file before any value is read.

Only requested arrays are in memory. Uncompressed members of an npz are memory-mapped in place. Compressed members are
unpacked when they are loaded. If together they exceed `MAX_IN_MEMORY_BYTES`, they go into an unnamed temporary file.
"""

import contextlib
import errno
import io
import math
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal

import numpy as np

from trt_tui.errors import InputError, TrtTuiError, exception_text
from trt_tui.files.reading import open_regular_file

DATA_FORMATS = (
    "an .npz, a folder of .npz, a Polygraphy inputs .json, or a script with load_data() (FILE.py or FILE.py:NAME)"
)

PICKLE_SUFFIXES = (".pkl", ".pickle", ".pt", ".pth")
_PICKLE_START = tuple(bytes((0x80, protocol)) for protocol in range(2, 6))

MAX_IN_MEMORY_BYTES = 64 << 20
"""Maximum size in bytes of one file's compressed arrays that are unpacked into memory. More goes to a temporary file.
"""
MAX_UNPACKED_BYTES = 1 << 30
"""Size in bytes to which any file may unpack, regardless of its own size."""
MAX_UNPACKED_RATIO = 100
"""Maximum ratio of unpacked size to file size above `MAX_UNPACKED_BYTES`."""
MIN_FREE_DISK_BYTES = 256 << 20
"""Free disk space in bytes that remains after unpacking."""

DISK_FULL_ERRORS = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
"""Error numbers of the operating system for a full disk."""

_MAX_HEADER_BYTES = 16 << 10
"""A size in bytes above that of the longest header that numpy reads."""
_ZIP_LOCAL_HEADER_BYTES = 30
_UNSUPPORTED_COMPRESSIONS = {zipfile.ZIP_BZIP2: "bzip2", zipfile.ZIP_LZMA: "lzma"}


@dataclass(frozen=True)
class StoredArray:
    """An array on disk with a known type and shape.

    Attributes:
        load: Reads the values, which must not be changed. For a damaged file it raises the exceptions of numpy and
            zipfile; see `convert_damaged_file_errors`.
    """

    dtype: np.dtype
    shape: tuple[int, ...]
    load: Callable[[], np.ndarray]


@dataclass(frozen=True)
class NpyHeader:
    """The header of an ``.npy`` file: type, shape and memory order of the array, and the offset of its values in bytes."""

    dtype: np.dtype
    shape: tuple[int, ...]
    is_fortran_order: bool
    offset: int

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def memory_order(self) -> Literal["C", "F"]:
        return "F" if self.is_fortran_order else "C"

    def make_stored_array(self, load: Callable[[], np.ndarray]) -> StoredArray:
        return StoredArray(self.dtype, self.shape, load)

    def build_array(self, value_bytes: bytes) -> np.ndarray:
        """Builds a read-only array from the bytes of its values."""
        return np.frombuffer(value_bytes, self.dtype, math.prod(self.shape)).reshape(
            self.shape, order=self.memory_order
        )


def _memory_map_array(file: Path | BinaryIO, offset: int, header: NpyHeader) -> np.ndarray:
    """Returns an array of raw values in a file, memory-mapped."""
    if 0 in header.shape:
        return np.empty(header.shape, header.dtype)
    mapped: np.ndarray = np.memmap(file, header.dtype, "r", offset, header.shape or (1,), header.memory_order)
    return mapped.reshape(header.shape)


def _decompress_array(path: Path, name: str, header: NpyHeader, fits_in_memory: bool) -> np.ndarray:
    """Returns the array of a compressed member of an npz file."""
    with open_regular_file(path) as file, zipfile.ZipFile(file) as archive, archive.open(name) as stream:
        stream.read(header.offset)
        if not fits_in_memory:
            return ArraySpool().append_byte_pieces(iter(lambda: stream.read(1 << 20), b""), header).load()
        values = stream.read(header.nbytes)
        if stream.read(1):  # zipfile checks the checksum at the end of a member
            raise ValueError(f"member {name} is longer than its array")
        return header.build_array(values)


class ArraySpool:
    """An unnamed temporary file to which arrays are appended. It is removed with the last reference to it."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="trt-tui-")

    def append_array(self, array: np.ndarray) -> StoredArray:
        """Appends an array of any shape and fixed-size type to the temporary file, and returns it as a mapped array.

        Raises the errors of `append_byte_pieces`.
        """
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return self.append_byte_pieces([raw.data], NpyHeader(array.dtype, array.shape, False, 0))

    def append_byte_pieces(self, byte_pieces: Iterable[bytes | memoryview], header: NpyHeader) -> StoredArray:
        """Appends the values of an array in pieces of bytes to the temporary file, and returns a mapped array.

        Raises:
            InputError: The disk has too little free space.
            ValueError: The pieces together have another length than the header states.
        """
        free = shutil.disk_usage(tempfile.gettempdir()).free
        if header.nbytes > free - MIN_FREE_DISK_BYTES and header.nbytes > MAX_IN_MEMORY_BYTES:
            raise InputError(
                f"an array of {header.nbytes:,} bytes does not fit in {tempfile.gettempdir()}",
                f"{free:,} bytes are free there, and arrays are unpacked to that folder",
                "Free some space, set TMPDIR to another place, or save the array with numpy.savez.",
            )
        offset = self._file.seek(0, io.SEEK_END)
        for block in byte_pieces:
            self._file.write(block)
        self._file.flush()
        if self._file.tell() - offset != header.nbytes:
            raise ValueError("an array is not as long as its header says")
        return header.make_stored_array(partial(_memory_map_array, self._file, offset, header))


@dataclass(frozen=True)
class DataPart:
    """Arrays that belong together: one npz file, or one feed of a JSON file or a script.

    Attributes:
        file: The name of the file; "" unless the data are several files.
    """

    source: str
    arrays: dict[str, StoredArray]
    file: str = ""

    def load_arrays(self) -> dict[str, np.ndarray]:
        """Reads all arrays of this part of the data, by name. Raises the errors of `convert_damaged_file_errors`."""
        with convert_damaged_file_errors(self.source):
            return {name: member.load() for name, member in self.arrays.items()}


@contextlib.contextmanager
def convert_damaged_file_errors(source_title: str) -> Iterator[None]:
    """Converts every exception from reading a damaged or unreadable file into an `InputError` that names the file."""
    try:
        yield
    except TrtTuiError:
        raise
    except MemoryError as error:
        raise InputError(
            f"{source_title} does not fit in memory", exception_text(error), "Give fewer or smaller arrays."
        ) from error
    except OSError as error:
        if error.errno in DISK_FULL_ERRORS:
            raise InputError(
                f"{source_title} does not fit in {tempfile.gettempdir()}",
                f"{error.strerror}; arrays are unpacked there",
                "Free some space, or set TMPDIR to another place.",
            ) from error
        raise InputError(
            f"{source_title} cannot be read", error.strerror or exception_text(error), f"Give {DATA_FORMATS}."
        ) from error
    except Exception as error:  # numpy, zipfile, the codecs and Python's parsers raise errors of many types
        cause = exception_text(error) or type(error).__name__
        raise InputError(f"{source_title} cannot be read", cause, f"Give {DATA_FORMATS}.") from error


# ------------------------------------------------------------------------------------------------------- npy and npz


def read_npy_header(stream: IO[bytes], size: int, name: str) -> NpyHeader:
    """Reads the header of an ``.npy`` and checks it against the length of the file (``size`` in bytes).

    Raises:
        InputError: The array holds pickled objects, has an impossible shape, or has another length than the file.
        Exception: Any exception of numpy for an invalid header; see `convert_damaged_file_errors`.
    """
    head = io.BytesIO(stream.read(min(size, _MAX_HEADER_BYTES)))
    version = np.lib.format.read_magic(head)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, is_fortran_order, dtype = read(head)
    if dtype.hasobject:
        raise InputError(
            f"{_array_title(name)} holds pickled Python objects",
            "They are refused, because loading them can execute arbitrary code.",
            "Save plain numeric arrays with numpy.savez.",
        )
    header = NpyHeader(dtype, shape, is_fortran_order, head.tell())
    if any(type(length) is not int or length < 0 for length in shape) or len(shape) > 32 or not dtype.itemsize:
        raise _damaged_array_error(name, f"its header says shape {shape} of {dtype}")
    if header.offset + header.nbytes != size:
        raise _damaged_array_error(
            name, f"its header declares {header.nbytes:,} bytes, {size - header.offset:,} are present"
        )
    return header


def _damaged_array_error(name: str, cause: str) -> InputError:
    return InputError(f"{_array_title(name)} is damaged", cause, "Save the arrays again with numpy.savez.")


def measure_array_file(file: Path, source_title: str) -> int:
    """Returns the size of a file of arrays in bytes, after a check that the file is not a pickle.

    Raises:
        InputError: The file cannot be read, or is a pickle.
    """
    with convert_damaged_file_errors(source_title), open_regular_file(file) as stream:
        is_pickle = file.suffix.lower() in PICKLE_SUFFIXES or stream.read(2) in _PICKLE_START
        size = stream.seek(0, io.SEEK_END)
    if is_pickle:
        raise InputError(
            f"{source_title} is a pickle",
            "loading one can execute arbitrary code",
            "Convert a dictionary of arrays: numpy.savez('arrays.npz', "
            f"**pickle.load(open({file.name!r}, 'rb'))). Results of Polygraphy have a method: "
            "pickle.load(...).save('outputs.json').",
        )
    return size


def _array_title(name: str) -> str:
    return f"array '{name}'" if name else "an array"


def read_npy_bytes(npy_bytes: bytes) -> np.ndarray:
    """Reads an array from the bytes of an ``.npy``. Raises the errors of `read_npy_header`."""
    header = read_npy_header(io.BytesIO(npy_bytes), len(npy_bytes), "")
    return header.build_array(npy_bytes[header.offset :])


def open_npz(path: Path, source_title: str) -> DataPart:
    """Opens the arrays of an npz file without reading their values.

    Raises:
        InputError: The file cannot be read, is damaged, or would unpack to many times its size.
    """
    arrays: dict[str, StoredArray] = {}
    with convert_damaged_file_errors(source_title), open_regular_file(path) as file, zipfile.ZipFile(file) as archive:
        infos = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        unpacked = sum(info.file_size for info in infos)
        size = path.stat().st_size
        if unpacked > max(MAX_UNPACKED_BYTES, MAX_UNPACKED_RATIO * size):
            raise InputError(
                f"{source_title} would unpack to {unpacked:,} bytes",
                f"it has {size:,}: over {MAX_UNPACKED_RATIO} times that size is treated as a zip bomb",
                "If the file is valid, save it without compression, with numpy.savez.",
            )
        for info in infos:
            name = info.filename[: -len(".npy")]
            if name in arrays:
                raise InputError(
                    f"{source_title} holds array '{name}' twice",
                    "a name can occur only once",
                    "Give each array a different name.",
                )
            try:
                arrays[name] = _open_npz_member(path, file, archive, info, name, unpacked <= MAX_IN_MEMORY_BYTES)
            except TrtTuiError as error:
                raise InputError(f"{source_title}: {error.title}", error.cause, error.next_step) from error
    if not arrays:
        raise InputError(f"{source_title} holds no arrays", next_step=f"Give {DATA_FORMATS}.")
    return DataPart(source_title, arrays)


def _open_npz_member(
    path: Path,
    file: IO[bytes],
    archive: zipfile.ZipFile,
    member_info: zipfile.ZipInfo,
    array_name: str,
    fits_in_memory: bool,
) -> StoredArray:
    if member_info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise InputError(
            f"array '{array_name}' is packed in a way that numpy does not write",
            f"method {_UNSUPPORTED_COMPRESSIONS.get(member_info.compress_type, member_info.compress_type)}",
            "Save the arrays with numpy.savez or numpy.savez_compressed.",
        )
    with archive.open(member_info) as stream:
        header = read_npy_header(stream, member_info.file_size, array_name)
    if member_info.compress_type != zipfile.ZIP_STORED:
        return header.make_stored_array(partial(_decompress_array, path, member_info.filename, header, fits_in_memory))
    # A local file header has 30 bytes. Name and extra field follow; their lengths are at offsets 26 and 28.
    position = file.tell()
    file.seek(member_info.header_offset + 26)
    lengths = file.read(4)
    start = (
        member_info.header_offset
        + _ZIP_LOCAL_HEADER_BYTES
        + int.from_bytes(lengths[:2], "little")
        + int.from_bytes(lengths[2:], "little")
    )
    end = file.seek(0, io.SEEK_END)
    file.seek(position)
    if member_info.compress_size != member_info.file_size or start + member_info.file_size > end:
        available_bytes = min(member_info.compress_size, end - start)
        raise _damaged_array_error(
            array_name, f"{member_info.file_size:,} bytes are declared, {available_bytes:,} are present"
        )
    return header.make_stored_array(partial(_memory_map_array, path, start + header.offset, header))


# ------------------------------------------------------------------------------------------------------ feeds in memory


def spool_feed(feed: Any, source_title: str, spool: ArraySpool) -> DataPart:
    """Writes a feed from a script or a JSON file into a temporary file and returns its arrays.

    Raises:
        InputError: The feed is not a dictionary of numeric arrays, or reading it raises an exception.
    """
    with convert_damaged_file_errors(source_title):
        arrays_in_feed = dict(feed) if isinstance(feed, Mapping) else None
    if not arrays_in_feed or not all(isinstance(name, str) for name in arrays_in_feed):
        feed_kind = "an empty dictionary" if arrays_in_feed == {} else type(feed).__name__
        raise InputError(
            f"{source_title} is not a feed: {feed_kind}",
            "A feed is a dictionary of arrays by name.",
            "Give one dictionary {input name: array} per feed.",
        )
    arrays: dict[str, StoredArray] = {}
    for name, value in arrays_in_feed.items():
        try:
            array = np.asarray(value)
        except Exception as error:  # what an object's __array__ raises is the object's own affair
            raise InputError(
                f"{source_title}: '{name}' is not an array", f"{type(error).__name__}: {exception_text(error)}"
            ) from error
        if array.dtype.hasobject:
            raise InputError(
                f"{source_title}: '{name}' is not a numeric array but {type(value).__name__}",
                next_step="Give numpy arrays.",
            )
        with convert_damaged_file_errors(source_title):
            arrays[name] = spool.append_array(array)
    return DataPart(source_title, arrays)
