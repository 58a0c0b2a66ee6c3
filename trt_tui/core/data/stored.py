"""Arrays in files: their types and shapes are known and held against the file before a value of them is read.

Nothing is held in memory but what is asked for: uncompressed members of an npz are memory-mapped in place, compressed
ones are unpacked when they are loaded, into an unnamed temporary file where they exceed `IN_MEMORY` together.
"""

import contextlib
import errno
import io
import math
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, Protocol

import numpy as np

from trt_tui.errors import InputError, TrtTuiError, text_of
from trt_tui.files.reading import open_regular

DATA_FORMATS = ("an .npz, a folder of .npz, a Polygraphy inputs .json, "
                "or a script with load_data() (FILE.py or FILE.py:NAME)")

IN_MEMORY = 64 << 20
"""Bytes of one file's compressed arrays that are unpacked into memory; more goes to a temporary file."""
MOST_UNPACKED = 1 << 30
"""Bytes that a file may unpack to whatever its own size."""
MOST_RATIO = 100
"""How many times its own size a file may unpack to beyond that."""
SPARE_DISK = 256 << 20
"""Bytes that unpacking leaves free."""

FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
"""What the system says of a disk that takes no more."""

_HEADER_BYTES = 16 << 10
"""More than the longest header that numpy reads."""
_LOCAL_HEADER_BYTES = 30
_PACKED = {zipfile.ZIP_BZIP2: "bzip2", zipfile.ZIP_LZMA: "lzma"}


class Member(Protocol):
    """One array on disk: its type and shape are known, its values are read by `load`."""

    @property
    def dtype(self) -> np.dtype:
        """The type of its values."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""

    def load(self) -> np.ndarray:
        """The values, not to be written to; raises what a damaged file makes numpy and zipfile raise, see `reading`."""


@dataclass(frozen=True)
class Header:
    """What the header of an ``.npy`` says, and where the values begin."""

    dtype: np.dtype
    shape: tuple[int, ...]
    fortran: bool
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of its values."""
        return self.dtype.itemsize * math.prod(self.shape)

    def array(self, values: bytes) -> np.ndarray:
        """The array of the values' bytes, read-only."""
        return np.frombuffer(values, self.dtype, math.prod(self.shape)).reshape(
            self.shape, order="F" if self.fortran else "C")


@dataclass(frozen=True)
class Mapped:
    """Raw values in a file, memory-mapped on `load`."""

    file: Path | BinaryIO
    offset: int
    dtype: np.dtype
    shape: tuple[int, ...]
    fortran: bool = False

    def load(self) -> np.ndarray:
        """The values, mapped."""
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype)
        mapped: np.ndarray = np.memmap(self.file, self.dtype, "r", self.offset, self.shape or (1,),
                                       "F" if self.fortran else "C")
        return mapped.reshape(self.shape)


@dataclass(frozen=True)
class Headed:
    """What a header was read of."""

    header: Header

    @property
    def dtype(self) -> np.dtype:
        """By the header."""
        return self.header.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """By the header."""
        return self.header.shape


@dataclass(frozen=True)
class Compressed(Headed):
    """A compressed member of an npz file."""

    path: Path
    name: str
    in_memory: bool

    def load(self) -> np.ndarray:
        """The values, unpacked."""
        header = self.header
        with open_regular(self.path) as file, zipfile.ZipFile(file) as archive, archive.open(self.name) as stream:
            stream.read(header.offset)
            if not self.in_memory:
                return Spool().copy(stream, header).load()
            values = stream.read(header.nbytes)
            if stream.read(1):  # at the end of a member its checksum is checked
                raise ValueError(f"member {self.name} is longer than its array")
            return header.array(values)


class Spool:
    """An unnamed temporary file that arrays are appended to; it goes when the last reference goes."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="trt-tui-")

    def put(self, array: np.ndarray) -> Mapped:
        """Appends an array of any shape and fixed-size type; returns where it lies, raises as `copy`."""
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return self.copy(io.BytesIO(raw.data), Header(array.dtype, array.shape, False, 0))

    def copy(self, stream: IO[bytes], header: Header) -> Mapped:
        """Appends what a stream holds from its place on, the values of an array; returns where they lie, raises as
        `append`."""
        return self.append(iter(lambda: stream.read(1 << 20), b""), header)

    def append(self, pieces: Iterator[bytes], header: Header) -> Mapped:
        """Appends the values of an array, piece by piece; returns where they lie.

        Raises:
            InputError: the disk has no room for it.
            ValueError: the pieces are not as long as the header says.
        """
        free = shutil.disk_usage(tempfile.gettempdir()).free
        if header.nbytes > free - SPARE_DISK and header.nbytes > IN_MEMORY:
            raise InputError(f"an array of {header.nbytes:,} bytes does not fit in {tempfile.gettempdir()}",
                             f"{free:,} bytes are free there, and arrays are unpacked there",
                             "Free some space, set TMPDIR to another place, or save the array with numpy.savez.")
        offset = self._file.seek(0, io.SEEK_END)
        for block in pieces:
            self._file.write(block)
        self._file.flush()
        if self._file.tell() - offset != header.nbytes:
            raise ValueError("an array is not as long as its header says")
        return Mapped(self._file, offset, header.dtype, header.shape, header.fortran)


@dataclass(frozen=True)
class Part:
    """Arrays that belong together: one npz file, or one feed of a JSON file or a script."""

    source: str
    members: dict[str, Member]

    def load(self) -> dict[str, np.ndarray]:
        """All arrays by name; errors as `reading`."""
        with reading(self.source):
            return {name: member.load() for name, member in self.members.items()}


@contextlib.contextmanager
def reading(source: str) -> Iterator[None]:
    """Turns whatever reading a damaged or unreadable file raises into an `InputError` that names the file."""
    try:
        yield
    except TrtTuiError:
        raise
    except MemoryError as error:
        raise InputError(f"{source} does not fit in memory", text_of(error), "Give fewer or smaller arrays.") from error
    except OSError as error:
        if error.errno in FULL:
            raise InputError(f"{source} does not fit in {tempfile.gettempdir()}",
                             f"{error.strerror}; arrays are unpacked there",
                             "Free some space, or set TMPDIR to another place.") from error
        raise InputError(f"{source} cannot be read", error.strerror or text_of(error),
                         f"Give {DATA_FORMATS}.") from error
    except Exception as error:  # numpy's, zipfile's, the codecs' and Python's own parsers, each with errors of its own
        cause = text_of(error) or type(error).__name__
        raise InputError(f"{source} cannot be read", cause, f"Give {DATA_FORMATS}.") from error


# ------------------------------------------------------------------------------------------------------- npy and npz


def npy_header(stream: IO[bytes], size: int, name: str) -> Header:
    """Reads the header of an ``.npy`` of ``size`` bytes and checks it against them.

    Raises:
        InputError: it holds pickled objects, has an impossible shape, or says another length than the bytes have.
        Exception: whatever numpy raises for what is no header; see `reading`.
    """
    head = io.BytesIO(stream.read(min(size, _HEADER_BYTES)))
    version = np.lib.format.read_magic(head)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(head)
    if dtype.hasobject:
        raise InputError(
            f"{_called(name)} holds pickled Python objects",
            "They are refused, since loading them can run any code.",
            "Save plain numeric arrays with numpy.savez.",
        )
    header = Header(dtype, shape, fortran, head.tell())
    if any(type(length) is not int or length < 0 for length in shape) or len(shape) > 32 or not dtype.itemsize:
        raise _damaged(name, f"its header says shape {shape} of {dtype}")
    if header.offset + header.nbytes != size:
        raise _damaged(name, f"its header promises {header.nbytes:,} bytes, {size - header.offset:,} are there")
    return header


def _damaged(name: str, cause: str) -> InputError:
    return InputError(f"{_called(name)} is damaged", cause, "Save the arrays again with numpy.savez.")


def _called(name: str) -> str:
    return f"array '{name}'" if name else "an array"


def npy_array(data: bytes) -> np.ndarray:
    """The array of an ``.npy`` in memory. Raises as `npy_header`."""
    header = npy_header(io.BytesIO(data), len(data), "")
    return header.array(data[header.offset:])


def npz_part(path: Path, source: str) -> Part:
    """The arrays of an npz file.

    Raises:
        InputError: it cannot be read, is damaged, or would unpack to far more than it has.
    """
    members: dict[str, Member] = {}
    with reading(source), open_regular(path) as file, zipfile.ZipFile(file) as archive:
        infos = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        unpacked = sum(info.file_size for info in infos)
        size = path.stat().st_size
        if unpacked > max(MOST_UNPACKED, MOST_RATIO * size):
            raise InputError(f"{source} would unpack to {unpacked:,} bytes",
                             f"it has {size:,}: over {MOST_RATIO} times that is taken for a zip bomb",
                             "If it is none, save it without compression, with numpy.savez.")
        for info in infos:
            name = info.filename[: -len(".npy")]
            if name in members:
                raise InputError(f"{source} holds array '{name}' twice", "only one of them could count",
                                 "Give each array a name of its own.")
            try:
                members[name] = _member(path, file, archive, info, name, unpacked <= IN_MEMORY)
            except TrtTuiError as error:
                raise InputError(f"{source}: {error.title}", error.cause, error.next_step) from error
    if not members:
        raise InputError(f"{source} holds no arrays", next_step=f"Give {DATA_FORMATS}.")
    return Part(source, members)


def _member(path: Path, file: IO[bytes], archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str,
            in_memory: bool) -> Member:
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise InputError(f"array '{name}' is packed in a way that numpy does not write",
                         f"method {_PACKED.get(info.compress_type, info.compress_type)}",
                         "Save the arrays with numpy.savez or numpy.savez_compressed.")
    with archive.open(info) as stream:
        header = npy_header(stream, info.file_size, name)
    if info.compress_type != zipfile.ZIP_STORED:
        return Compressed(header, path, info.filename, in_memory)
    # A local file header is 30 bytes, then name and extra field, whose lengths stand at 26 and 28.
    place = file.tell()
    file.seek(info.header_offset + 26)
    lengths = file.read(4)
    start = info.header_offset + _LOCAL_HEADER_BYTES + int.from_bytes(lengths[:2], "little") + int.from_bytes(
        lengths[2:], "little")
    end = file.seek(0, io.SEEK_END)
    file.seek(place)
    if info.compress_size != info.file_size or start + info.file_size > end:
        there = min(info.compress_size, end - start)
        raise _damaged(name, f"{info.file_size:,} bytes are promised, {there:,} are there")
    return Mapped(path, start + header.offset, header.dtype, header.shape, header.fortran)


# ------------------------------------------------------------------------------------------------------ feeds in memory


def spooled_part(feed: Any, source: str, spool: Spool) -> Part:
    """A feed that a script or a JSON file gave, kept in a temporary file.

    Raises:
        InputError: it is no dictionary of numeric arrays, or raises while it is read.
    """
    with reading(source):
        named = dict(feed) if isinstance(feed, Mapping) else None
    if not named or not all(isinstance(name, str) for name in named):
        what = "an empty dictionary" if named == {} else type(feed).__name__
        raise InputError(
            f"{source} is no feed: {what}",
            "A feed is a dictionary of arrays by name.",
            "Give one dictionary {input name: array} per feed.",
        )
    members: dict[str, Member] = {}
    for name, value in named.items():
        try:
            array = np.asarray(value)
        except Exception as error:  # what an object's __array__ raises is the object's own affair
            raise InputError(f"{source}: '{name}' is no array", f"{type(error).__name__}: {text_of(error)}") from error
        if array.dtype.hasobject:
            raise InputError(
                f"{source}: '{name}' is no numeric array but {type(value).__name__}",
                next_step="Give numpy arrays.",
            )
        with reading(source):
            members[name] = spool.put(array)
    return Part(source, members)
