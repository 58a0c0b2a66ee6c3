"""Files that results depend on: detection of replaced files, and protection of input files from being overwritten."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trt_tui.core.data.tensor_files import list_folder_files, split_dump_spec
from trt_tui.core.data.userscript import split_script_spec
from trt_tui.errors import InputError
from trt_tui.files.reading import file_sha256

FileStamp = tuple[int, int, int, int]
"""Inode, size in bytes, and the times in ns at which the content and the inode last changed.

Programs such as ``rsync --inplace -t`` write new content and restore the time of the old content. No program sets the
time of the inode, which changes with the content and with the other time.
"""

MIN_SETTLED_AGE_S = 2.0
"""Age in seconds from which a stamp is trusted. A younger file can change within one tick of the file system's clock,
and keep its stamp."""

MAX_HASHED_BYTES = 512 << 20
"""Maximum total size in bytes of files that are hashed whenever they are opened. SHA-256 reads 1.7 GB/s on one core."""

_digest_cache: dict[tuple[str, FileStamp], str] = {}
"""SHA-256 of the files that this process has read, by path and stamp."""


def read_file_stamp(path: Path | str) -> FileStamp | None:
    """Returns the stamp of a file (inode, size and times); None if the file does not exist."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def is_stamp_trustworthy(recorded_stamp: FileStamp | None) -> bool:
    """Returns True if a file stamp is so old that each later change of the file gives another stamp."""
    return recorded_stamp is not None and max(recorded_stamp[2:]) < time.time_ns() - MIN_SETTLED_AGE_S * 1e9


def cached_file_sha256(path: Path | str) -> str:
    """Returns the SHA-256 of a file.

    A file is not read again if its stamp is in the cache. Stamps of files that changed just now are not cached.
    """
    current_stamp = read_file_stamp(path)
    if current_stamp is not None and (str(path), current_stamp) in _digest_cache:
        return _digest_cache[str(path), current_stamp]
    file_digest = file_sha256(path)
    if current_stamp is not None and is_stamp_trustworthy(current_stamp) and current_stamp == read_file_stamp(path):
        _digest_cache[str(path), current_stamp] = file_digest
    return file_digest


def _is_unchanged_file(path: str, recorded_stamp: FileStamp | None) -> bool:
    """Returns True if a file has the same content as when its stamp was taken.

    Changes of permissions, attributes and links affect only the time of the inode. The hash of the content decides
    then, if it was computed earlier.
    """
    current_stamp = read_file_stamp(path)
    return current_stamp == recorded_stamp or (
        current_stamp is not None
        and recorded_stamp is not None
        and current_stamp[:3] == recorded_stamp[:3]
        and _digest_cache.get((path, recorded_stamp)) == cached_file_sha256(path)
    )


@dataclass(frozen=True)
class FileStamps:
    """The stamps (inode, size and times) of files and folders at one moment, by path."""

    stamps: tuple[tuple[str, FileStamp | None], ...] = ()

    @classmethod
    def from_paths(cls, paths: Iterable[Path | str]) -> FileStamps:
        return cls(tuple((path, read_file_stamp(path)) for path in dict.fromkeys(map(str, paths))))

    def __or__(self, other: FileStamps) -> FileStamps:
        """Merges two sets of file stamps. For a file in both, the stamp of ``self`` is kept, which is the earlier one."""
        return FileStamps(tuple({**dict(other.stamps), **dict(self.stamps)}.items()))

    def hash_files(self) -> None:
        """Hashes the files, up to `MAX_HASHED_BYTES` in total. `find_replaced_files` compares these hashes."""
        remaining_bytes = MAX_HASHED_BYTES
        for path, recorded_stamp in self.stamps:
            if recorded_stamp is not None and (remaining_bytes := remaining_bytes - recorded_stamp[1]) >= 0:
                cached_file_sha256(path)

    def find_replaced_files(self) -> tuple[str, ...]:
        """Returns the paths of files that were changed or deleted since their stamps were taken."""
        return tuple(path for path, recorded_stamp in self.stamps if not _is_unchanged_file(path, recorded_stamp))

    def find_files_changed_since(self, earlier_file_stamps: FileStamps) -> tuple[str, ...]:
        """Returns the paths of files whose stamps differ from an earlier set of stamps."""
        earlier_stamps = dict(earlier_file_stamps.stamps)
        return tuple(
            path
            for path, current_stamp in self.stamps
            if path in earlier_stamps and earlier_stamps[path] != current_stamp
        )


@dataclass(frozen=True)
class Fingerprint:
    """The inputs that results belong to: hashes of the network and the data, and the files read for them."""

    sha256: str
    data_sha256: str
    files: FileStamps


def list_data_files(spec: str | None) -> tuple[str, ...]:
    """Lists the files that a ``--data`` specification names: a file, or the files of a folder that are read.

    The list is empty if the specification is None.
    """
    if spec is None:
        return ()
    if Path(spec).is_dir():
        return tuple(map(str, list_folder_files(Path(spec))))
    return (spec if Path(spec).exists() else spec.rpartition(":")[0] or spec,)


def list_input_files(model_path: str, *specs: str | None) -> list[Path]:
    """Lists the input files behind a network path and other specifications, such as folders of data and
    ``FILE.py:FUNCTION``.

    The network's external data files are not included, because they are known only after it is opened.
    """
    paths = [Path(model_path)]
    for spec in filter(None, specs):
        spec = str(split_dump_spec(spec)[0])
        script = split_script_spec(spec)
        path = script[0] if script is not None and not Path(spec).exists() else Path(spec)
        with contextlib.suppress(OSError):  # the reader of the folder reports the error
            paths += list_folder_files(path) if path.is_dir() else [path]
    return [path for path in paths if path.is_file()]


def refuse_overwriting_inputs(output_paths: Iterable[Path | str], input_paths: Iterable[Path]) -> None:
    """Raises an error if an output would overwrite a file that is an input.

    Args:
        output_paths: The paths that will be written. A network can be written with a weights file beside it.
        input_paths: The files that are read, under any names.

    Raises:
        InputError: An output is the same file as an input.
    """
    outputs = [Path(path) for path in output_paths]
    outputs += [path.with_name(f"{path.name}.data") for path in outputs if path.suffix.lower() == ".onnx"]
    existing_outputs = [path for path in outputs if os.path.isfile(path)]
    for path, input_path in ((path, input_path) for path in existing_outputs for input_path in input_paths):
        with contextlib.suppress(OSError):  # one of the files does not exist
            if os.path.samefile(path, input_path):
                raise InputError(
                    f"{path} is an input file", f"writing it would lose {input_path}", "Choose another name."
                )
