"""Data and dumps in files: the parts of the input data, and the tensors that another program computed.

Types and shapes of arrays are checked against the file before any value is read, and only requested arrays are in
memory. Uncompressed members of an npz are memory-mapped in place. Compressed members are unpacked when they are loaded.
If together they exceed `MAX_IN_MEMORY_BYTES`, they go into an unnamed temporary file.

Input data are an ``.npz``, a folder, an inputs JSON of Polygraphy or a script. A dump holds tensors by name and
iteration, as Polygraphy's RunResults (``polygraphy run --save-outputs``; a file, or a folder with one file per
iteration), Polygraphy's inputs JSON, the outputs of ``trtexec --exportOutput``, or an ``.npz``. Values stay in their
file until they are needed, except those of trtexec, which are text.
"""

import base64
import binascii
import contextlib
import difflib
import errno
import io
import json
import math
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal

import numpy as np

from trt_tui.core.data.userscript import UserFunction, split_script_spec
from trt_tui.errors import InputError, TrtTuiError, exception_text
from trt_tui.files.lazy_json import read_lazy_json
from trt_tui.files.reading import missing_file_error, open_regular_file
from trt_tui.formatting import counted_noun_text, name_list_text

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
    memory_order: Literal["C", "F"]
    offset: int

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)

    def build_array(self, value_bytes: bytes | memoryview) -> np.ndarray:
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
        return self.append_byte_pieces([raw.data], NpyHeader(array.dtype, array.shape, "C", 0))

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
        return StoredArray(header.dtype, header.shape, partial(_memory_map_array, self._file, offset, header))


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
    header = NpyHeader(dtype, shape, "F" if is_fortran_order else "C", head.tell())
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
        return StoredArray(
            header.dtype, header.shape, partial(_decompress_array, path, member_info.filename, header, fits_in_memory)
        )
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
    return StoredArray(header.dtype, header.shape, partial(_memory_map_array, path, start + header.offset, header))


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


_HEADER_CHARACTERS = 4 * 16384 // 3 // 4 * 4
_PIECE_BYTES = 3 << 18
"""Number of bytes that are encoded at a time, a multiple of three."""


def _make_in_memory_array(array: np.ndarray) -> StoredArray:
    """Returns a `StoredArray` of values in memory, for a file format that cannot be read in pieces."""
    return StoredArray(array.dtype, array.shape, lambda: array)


def _load_base64_array(base64_text: bytes | memoryview, header: NpyHeader) -> np.ndarray:
    return header.build_array(memoryview(binascii.a2b_base64(base64_text, strict_mode=True))[header.offset :])


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
        raise InputError(
            f"{title} is a pickled torch tensor",
            "they are refused, because loading them can execute arbitrary code",
            "Save numpy arrays: tensor.cpu().numpy().",
        )
    if kind != "ndarray" or not isinstance(value.get("array"), str | memoryview):
        raise InputError(
            f"{title} is not an array of Polygraphy",
            f"it is {kind or json_kind_text(value)}",
            "Save numpy arrays with Polygraphy, or as .npz.",
        )
    return _open_base64_array(value["array"], title)


def json_kind_text(value: object) -> str:
    return "a list of numbers" if isinstance(value, np.ndarray) else type(value).__name__


def _open_base64_array(base64_text: str | memoryview, title: str) -> StoredArray:
    """Opens an array that Polygraphy's JSON holds as a string.

    Raises:
        InputError: The array holds pickled objects, is damaged, or was written by Polygraphy before 0.38.
    """
    try:
        text = base64_text.encode("ascii") if isinstance(base64_text, str) else base64_text
        if len(text) % 4:
            raise binascii.Error("its length is not a multiple of 4")
        head = binascii.a2b_base64(text[:_HEADER_CHARACTERS], strict_mode=True)
        header = read_npy_header(io.BytesIO(head), len(text) // 4 * 3 - bytes(text[-2:]).count(b"="), "")
        return StoredArray(header.dtype, header.shape, partial(_load_base64_array, text, header))
    except InputError as error:
        raise InputError(f"{title}: {error.title}", error.cause, error.next_step) from None
    except Exception as error:  # numpy's and the codec's own
        raise InputError(
            f"{title} is not an array", str(error), "Save it with Polygraphy 0.38 or later, or as .npz."
        ) from None


def polygraphy_object_kind(json_object: dict[str, Any]) -> str | None:
    """Returns the Polygraphy class of a JSON object, such as ``ndarray`` or ``RunResults``; None for a plain object."""
    kind = json_object.get("polygraphy_class")
    return kind if isinstance(kind, str) else None


def write_run_results(
    stream: BinaryIO, runs: Iterable[tuple[str, Iterable[Mapping[str, np.ndarray]]]]
) -> Iterator[None]:
    """Writes Polygraphy's RunResults. Yields after each iteration.

    Args:
        runs: The name of each runner, with the outputs of its iterations.
    """
    stream.write(b'{"lst": [')
    for run_index, (runner_name, iterations) in enumerate(runs):
        stream.write(f"{', ' if run_index else ''}[{json.dumps(runner_name)}, [".encode())
        for iteration_index, outputs in enumerate(iterations):
            stream.write((b", " if iteration_index else b"") + b'{"outputs": {')
            for number, (name, array) in enumerate(outputs.items()):
                stream.write(f'{", " if number else ""}{json.dumps(name)}: {{"values": '.encode())
                _write_array(stream, array)
                stream.write(b', "polygraphy_class": "LazyArray"}')
            stream.write(
                f'}}, "runtime": null, "runner_name": {json.dumps(runner_name)}, '
                '"polygraphy_class": "IterationResult"}'.encode()
            )
            yield
        stream.write(b"]]")
    stream.write(b'], "polygraphy_class": "RunResults"}\n')


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
    """Writes an array as an ``.npy`` in base64, in pieces."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.ascontiguousarray(array) if array.ndim else array, allow_pickle=False)
    data = buffer.getbuffer()
    stream.write(b'{"array": "')
    for start in range(0, len(data), _PIECE_BYTES):
        stream.write(base64.b64encode(data[start : start + _PIECE_BYTES]))
    stream.write(b'", "polygraphy_class": "ndarray"}')


DUMP_FORMATS = (
    "Polygraphy's RunResults (polygraphy run --save-outputs OUT.json), outputs of trtexec (trtexec "
    "--exportOutput=OUT.json), or an .npz of arrays by tensor name"
)
DUMP_SUFFIXES = (".json", ".npz")
MAX_DUMP_FILES = 1 << 16
"""Maximum number of files in a folder."""

Iteration = Mapping[str, StoredArray]
"""The tensors of one execution by name, in the order of the file."""


@dataclass(frozen=True)
class Dump:
    """The tensors of a dump by iteration.

    Attributes:
        source: The title in messages: the file, with the runner if the file holds several.
        files: The files that were read.
    """

    source: str
    iterations: tuple[Iteration, ...]
    files: tuple[Path, ...]

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """Names of the tensors in the order of the first iteration. All iterations have the same tensors."""
        return tuple(self.iterations[0])


def split_dump_spec(spec: str) -> tuple[Path, str]:
    """Splits ``FILE[:RUNNER]`` into the file and the runner; the runner is "" if none is named."""
    path, colon, runner = spec.rpartition(":")
    if colon and not Path(spec).exists() and Path(path).suffix.lower() in DUMP_SUFFIXES:
        return Path(path), runner
    return Path(spec), ""


def list_dump_files(spec: str) -> tuple[Path, ...]:
    """Lists the files of a dump in the order of their iterations.

    Raises:
        InputError: The dump is a folder without JSON files, or with too many.
    """
    path, _ = split_dump_spec(spec)
    if not path.is_dir():
        return (path,)
    files = sorted((file for file in path.iterdir() if file.suffix == ".json"), key=_file_number_sort_key)
    if not files or len(files) > MAX_DUMP_FILES:
        raise InputError(
            f"folder {path} is not a dump",
            f"it holds {counted_noun_text(len(files), '.json file')}",
            f"Give {DUMP_FORMATS}, or a folder of such JSON files, one an iteration.",
        )
    return tuple(files)


def _file_number_sort_key(path: Path) -> tuple[int, str]:
    """Returns a key that sorts files by the number in their names."""
    digits = "".join(character for character in path.stem if character.isdigit())
    return (int(digits[-15:]) if digits else 0, path.name)


def open_dump(spec: str) -> Dump:
    """Opens a dump and reads the types and shapes of its tensors, but not their values.

    Args:
        spec: ``FILE`` or ``FILE:RUNNER``. The default is the first runner.

    Raises:
        InputError: The file cannot be read, is not a dump, lacks the runner, or has iterations with different tensors.
    """
    path, requested_runner = split_dump_spec(spec)
    files = list_dump_files(spec)
    iterations: list[Iteration] = []
    runners: list[str] = []
    runner = requested_runner
    for file in files:
        iterations_by_runner = _read_iterations_by_runner(
            file, file.name if len(files) == 1 else f"{path.name}/{file.name}"
        )
        runners += [name for name in iterations_by_runner if name not in runners]
        if not requested_runner and not iterations:
            runner = next(iter(iterations_by_runner))
        if runner not in iterations_by_runner:
            near = difflib.get_close_matches(runner, runners, 1, 0.3) or runners
            raise InputError(
                f"{path.name} holds no runner {runner}",
                f"it holds {name_list_text(runners)}",
                f"Name one of them: {path.name}:{near[0]}.",
            )
        iterations += iterations_by_runner[runner]
    if not iterations or not iterations[0]:
        raise InputError(
            f"{path.name} holds no tensors", f"runner {runner} has none" if runner else "", f"Give {DUMP_FORMATS}."
        )
    for number, iteration in enumerate(iterations):
        if set(iteration) != set(iterations[0]):
            raise InputError(
                f"iterations 0 and {number} of {path.name} hold different tensors",
                f"only one of them has {name_list_text(sorted(set(iteration) ^ set(iterations[0])))}",
                "Save the outputs of runs of one network.",
            )
    return Dump(f"{path.name}:{runner}" if len(runners) > 1 else path.name, tuple(iterations), files)


def _read_iterations_by_runner(file: Path, source_title: str) -> dict[str, list[Iteration]]:
    """Reads the iterations of each runner in a file; those of a file without runners have the key ""."""
    if measure_array_file(file, source_title) == 0:
        raise InputError(f"{source_title} is empty", "", f"Give {DUMP_FORMATS}.")
    if file.suffix.lower() == ".npz":
        return {"": [open_npz(file, source_title).arrays]}
    if file.suffix.lower() != ".json":
        raise _not_a_dump_error(source_title, f"its name ends in {file.suffix or 'nothing'}")
    with convert_damaged_file_errors(source_title):
        value = read_lazy_json(file, source_title)
    runs = value.get("lst") if isinstance(value, dict) and polygraphy_object_kind(value) == "RunResults" else None
    if isinstance(runs, list):
        iterations_by_runner: dict[str, list[Iteration]] = {}
        for item in runs:
            if not (
                isinstance(item, list) and len(item) == 2 and isinstance(item[0], str) and isinstance(item[1], list)
            ):
                raise _not_a_dump_error(source_title, "a runner is a name with a list of iterations")
            iterations_by_runner[item[0]] = [
                _parse_iteration(iteration, f"{source_title}, {item[0]}, iteration {number}")
                for number, iteration in enumerate(item[1])
            ]
        if not iterations_by_runner:
            raise InputError(f"{source_title} holds no runs", "", f"Give {DUMP_FORMATS}.")
        return iterations_by_runner
    if _is_trtexec_output_list(value):
        return {"": [_parse_trtexec_outputs(value, source_title)]}
    inputs_list = value if isinstance(value, list) else [value]
    if (
        not inputs_list
        or not all(isinstance(item, dict) for item in inputs_list)
        or polygraphy_object_kind(inputs_list[0]) is not None
    ):
        object_kind = polygraphy_object_kind(value) if isinstance(value, dict) else None
        raise _not_a_dump_error(
            source_title, f"it holds {'Polygraphy’s ' + object_kind if object_kind else json_kind_text(value)}"
        )
    return {
        "": [_parse_iteration(item, f"{source_title}, iteration {number}") for number, item in enumerate(inputs_list)]
    }


def _not_a_dump_error(source_title: str, reason: str) -> InputError:
    return InputError(f"{source_title} is not a dump of tensors", reason, f"Give {DUMP_FORMATS}.")


def _is_trtexec_output_list(value: object) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(item, dict)
            and item.keys() == {"name", "dimensions", "values"}
            and isinstance(item["name"], str)
            and isinstance(item["dimensions"], str)
            for item in value
        )
    )


def _parse_trtexec_outputs(outputs: Sequence[Mapping[str, Any]], source_title: str) -> dict[str, StoredArray]:
    """Parses the outputs of one execution: name, dimensions such as ``1x10``, and values with six significant digits.

    The source of the format is ``exportJSONOutput`` in TensorRT's ``sampleReporting.cpp``. No type is written. Whole
    numbers get the smallest signed integer type, which is castable to float types too. All other tensors are FP32.
    """
    arrays: dict[str, StoredArray] = {}
    for output in outputs:
        name, dimensions, values = output["name"], output["dimensions"], output["values"]
        title = f"{source_title}: {name}"
        if isinstance(values, list) and not values:
            values = np.zeros(0)
        if not isinstance(values, np.ndarray) or re.fullmatch(r"(\d{1,12}(x\d{1,12}){0,31})?", dimensions) is None:
            raise _not_a_dump_error(title, "an output of trtexec has dimensions such as 1x10, and a list of numbers")
        shape = tuple(map(int, dimensions.split("x"))) if dimensions else ()
        if math.prod(shape) != values.size or name in arrays:
            cause = (
                f"{dimensions or 'a single value'} are {math.prod(shape):,} values, {values.size:,} are present"
                if name not in arrays
                else "the name occurs twice"
            )
            raise InputError(f"{title} is damaged", cause, "Let trtexec write the file again.")
        with np.errstate(over="ignore"):
            arrays[name] = _make_in_memory_array(values.astype(_choose_number_type(values)).reshape(shape))
    return arrays


def _choose_number_type(values: np.ndarray) -> np.dtype:
    """Returns a signed integer type for some numbers; FP32 if a number is not whole.

    Text does not tell quantized values from ids, so the type is never that of quantized values.
    """
    with np.errstate(invalid="ignore"):
        for integer_type in (np.int16, np.int32, np.int64):
            if np.array_equal(values.astype(integer_type), values):
                return np.dtype(integer_type)
    return np.dtype(np.float32)


def _parse_iteration(value: Any, source_title: str) -> dict[str, StoredArray]:
    """Parses the arrays of one iteration: an IterationResult of Polygraphy, or a plain object of arrays by name."""
    outputs = (
        value.get("outputs")
        if isinstance(value, dict) and polygraphy_object_kind(value) == "IterationResult"
        else value
    )
    if not isinstance(outputs, dict):
        raise _not_a_dump_error(source_title, "an iteration is an object of arrays by name")
    return {name: _open_number_array(array_value, f"{source_title}: {name}") for name, array_value in outputs.items()}


def _open_number_array(value: Any, title: str) -> StoredArray:
    member = open_polygraphy_array(value, title)
    if member.dtype.kind not in "biufUS":
        raise InputError(
            f"{title} holds {member.dtype}",
            "only numbers can be compared",
            "Save it as float32; numpy has no built-in BF16 and FP8.",
        )
    return member


def count_tensor_rows(iterations: Sequence[Iteration], tensor_name: str) -> int | None:
    """Counts the rows of a tensor's first axis over all iterations; None if it has no axis or the other axes differ."""
    shapes = [iteration[tensor_name].shape for iteration in iterations]
    if any(not shape or shape[1:] != shapes[0][1:] for shape in shapes):
        return None
    return sum(shape[0] for shape in shapes)


class DumpTensor:
    """One tensor of a dump over all iterations, read by rows. The iteration that was read last stays loaded."""

    def __init__(self, dump: Dump, name: str) -> None:
        self._arrays = [iteration[name] for iteration in dump.iterations]
        self._source = dump.source
        self._open_iteration: tuple[int, np.ndarray] | None = None

    def read_iteration(self, iteration_index: int) -> np.ndarray:
        """Reads the whole tensor of one iteration. Raises the errors of `convert_damaged_file_errors`."""
        if self._open_iteration is None or self._open_iteration[0] != iteration_index:
            self._open_iteration = None
            with convert_damaged_file_errors(self._source):
                self._open_iteration = (iteration_index, self._arrays[iteration_index].load())
        return self._open_iteration[1]

    def read_rows(self, start: int, stop: int) -> np.ndarray:
        """Reads a range of the tensor's rows, numbered over all iterations.

        Raises the errors of `convert_damaged_file_errors`.
        """
        pieces, first_row = [], 0
        for number, member in enumerate(self._arrays):
            rows = member.shape[0]
            if first_row < stop and start < first_row + rows:
                pieces.append(self.read_iteration(number)[max(0, start - first_row) : stop - first_row])
            first_row += rows
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


MAX_SCRIPT_FEEDS = 1024
"""Maximum number of feeds from a script if no number of samples is requested."""


def read_data_parts(spec: str, sample_limit: int | None, warnings: list[str]) -> Iterator[DataPart]:
    """Yields the data parts (files or single feeds) of a ``--data`` specification, each when it is requested.

    A script with a limit on the samples may yield parts without end.

    Args:
        sample_limit: Maximum number of samples that are used; None for all.
        warnings: A list to which warnings for the user are appended.

    Raises:
        InputError: The data cannot be read. `UserFunction` can raise other errors.
    """
    script = split_script_spec(spec)
    if script is not None and not Path(spec).is_dir():
        yield from _read_script_parts(UserFunction(script[0], script[1] or "load_data"), sample_limit, warnings)
        return
    path = Path(spec)
    if path.is_dir():
        files = list_folder_files(path)
        if not files:
            raise InputError(f"Folder {path} holds no .npz file", next_step=f"Give {DATA_FORMATS}.")
        for file in files:
            for part in _read_file_parts(file, f"{path.name}/{file.name}"):
                yield replace(part, file=file.name if len(files) > 1 else "")
    elif path.exists():
        yield from _read_file_parts(path, path.name)
    else:
        raise missing_file_error(f"Data not found: {spec}", path, f"Give {DATA_FORMATS}.")


def list_folder_files(folder: Path) -> list[Path]:
    """Returns the data files of a folder, sorted."""
    return sorted(file for file in folder.iterdir() if file.suffix in (".npz", ".json"))


def _read_file_parts(path: Path, source_title: str) -> Iterator[DataPart]:
    empty = measure_array_file(path, source_title) == 0
    with convert_damaged_file_errors(source_title):
        archive = zipfile.is_zipfile(path)
    if empty:
        raise InputError(f"{source_title} is empty", next_step=f"Give {DATA_FORMATS}.")
    if archive or path.suffix == ".npz":
        yield open_npz(path, source_title)
    elif path.suffix == ".json":
        spool, value = ArraySpool(), read_lazy_json(path, source_title)
        for index, feed in enumerate(value if isinstance(value, list | np.ndarray) else [value]):
            title = f"{source_title}, feed {index}"
            if isinstance(feed, dict):
                feed = _load_polygraphy_arrays(feed, title)
            yield spool_feed(feed, title, spool)
    else:
        hint = "A single .npy has no input name: save it with numpy.savez. " if path.suffix == ".npy" else ""
        raise InputError(f"{source_title} is not a readable data file", next_step=f"{hint}Give {DATA_FORMATS}.")


def _load_polygraphy_arrays(feed: dict[str, Any], title: str) -> dict[str, Any]:
    """Returns a feed with the arrays of Polygraphy in it loaded; lists of numbers stay as they are."""
    if kind := polygraphy_object_kind(feed):
        raise InputError(
            f"{title} holds Polygraphy's {kind}, not feeds of numpy arrays",
            "",
            "Save the inputs with polygraphy run --save-inputs, or as .npz.",
        )
    with convert_damaged_file_errors(title):
        return {
            name: open_polygraphy_array(value, f"{title}: {name}").load() if isinstance(value, dict) else value
            for name, value in feed.items()
        }


def _read_script_parts(
    user_function: UserFunction, sample_limit: int | None, warnings: list[str]
) -> Iterator[DataPart]:
    spool = ArraySpool()
    for feed_index, feed in enumerate(user_function.iterate_results()):
        if sample_limit is None and feed_index == MAX_SCRIPT_FEEDS:
            warnings.append(f"{user_function} gave over {MAX_SCRIPT_FEEDS} feeds; the rest is ignored")
            return
        yield spool_feed(feed, f"{user_function}, feed {feed_index}", spool)
