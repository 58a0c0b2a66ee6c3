"""Files that results depend on: which were replaced since they were read, and which no output may overwrite."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trt_tui.core.data.dumps import split_dump_spec
from trt_tui.core.data.userscript import find_annotations_path, split_script_spec
from trt_tui.errors import InputError
from trt_tui.files.reading import file_sha256

FileStamp = tuple[int, int, int, int]
"""Inode, size in bytes, and times of the last change of the content and of the inode, in ns.

Programs such as ``rsync --inplace -t`` write new content and set the time of the old one again. No program sets the
time of the inode, which every change of content or of that other time renews.
"""

MIN_SETTLED_AGE_S = 2.0
"""A younger file may change once more within one tick of its file system's clock, which leaves its stamp as it was."""

MAX_HASHED_BYTES = 512 << 20
"""Files of at most so many bytes together are hashed whenever they are opened: SHA-256 reads 1.7 GB/s on one core."""

_digest_cache: dict[tuple[str, FileStamp], str] = {}
"""SHA-256 of files by path and stamp, as far as this process has read them."""


def read_file_stamp(path: Path | str) -> FileStamp | None:
    """A file's stamp; None where there is no such file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def is_stamp_trustworthy(recorded_stamp: FileStamp | None) -> bool:
    """Returns True if a file with this stamp cannot change any more without another stamp."""
    return recorded_stamp is not None and max(recorded_stamp[2:]) < time.time_ns() - MIN_SETTLED_AGE_S * 1e9


def cached_file_sha256(path: Path | str) -> str:
    """The SHA-256 of a file; one whose stamp is known, and not too young to be trusted, is not read again."""
    current_stamp = read_file_stamp(path)
    if current_stamp is not None and (str(path), current_stamp) in _digest_cache:
        return _digest_cache[str(path), current_stamp]
    file_digest = file_sha256(path)
    if current_stamp is not None and is_stamp_trustworthy(current_stamp) and current_stamp == read_file_stamp(path):
        _digest_cache[str(path), current_stamp] = file_digest
    return file_digest


def _is_unchanged_file(path: str, recorded_stamp: FileStamp | None) -> bool:
    """Returns True if a file is what it was when its stamp was taken.

    Permissions, attributes and links change the time of the inode alone: then the content decides, if it was hashed.
    """
    current_stamp = read_file_stamp(path)
    if current_stamp == recorded_stamp:
        return True
    return (current_stamp is not None and recorded_stamp is not None and current_stamp[:3] == recorded_stamp[:3]
            and _digest_cache.get((path, recorded_stamp)) == cached_file_sha256(path))


@dataclass(frozen=True)
class FileStamps:
    """Files and folders with their stamps, by path."""

    stamps: tuple[tuple[str, FileStamp | None], ...] = ()

    @classmethod
    def from_paths(cls, paths: Iterable[Path | str]) -> FileStamps:
        """The stamps of files as they are now."""
        return cls(tuple((path, read_file_stamp(path)) for path in dict.fromkeys(map(str, paths))))

    def __or__(self, other: FileStamps) -> FileStamps:
        """Both; a file that is in both keeps its earlier stamp, which is that of ``self``."""
        return FileStamps(tuple({**dict(other.stamps), **dict(self.stamps)}.items()))

    def hash_files(self) -> None:
        """Reads the files, `MAX_HASHED_BYTES` of them at most, so that `find_replaced_files` can compare their content.
        """
        remaining_bytes = MAX_HASHED_BYTES
        for path, recorded_stamp in self.stamps:
            if recorded_stamp is not None and (remaining_bytes := remaining_bytes - recorded_stamp[1]) >= 0:
                cached_file_sha256(path)

    def find_replaced_files(self) -> tuple[str, ...]:
        """The files that are others now, or are gone."""
        return tuple(path for path, recorded_stamp in self.stamps if not _is_unchanged_file(path, recorded_stamp))

    def find_files_changed_since(self, earlier_file_stamps: FileStamps) -> tuple[str, ...]:
        """The files that were others when ``earlier_file_stamps`` was taken."""
        earlier_stamps = dict(earlier_file_stamps.stamps)
        return tuple(path for path, current_stamp in self.stamps
                     if path in earlier_stamps and earlier_stamps[path] != current_stamp)


@dataclass(frozen=True)
class Fingerprint:
    """What figures are of: the network, the data, and the files that were read for them."""

    sha256: str
    data_sha256: str
    files: FileStamps


def list_data_files(spec: str | None) -> tuple[str, ...]:
    """The files that a specification of samples names: a file, or what of a folder is read; none without one."""
    if spec is None:
        return ()
    path = Path(spec)
    if path.is_dir():
        return tuple(str(file) for file in sorted(path.iterdir()) if file.suffix in (".npz", ".json"))
    return (spec if path.exists() else spec.rpartition(":")[0] or spec,)


def list_input_files(model_path: str, *specs: str | None) -> list[Path]:
    """The files behind a network and what else is read: files, folders of data, ``FILE.py:FUNCTION``; without the
    network's external data, which are known once it is open."""
    paths = [Path(model_path)]
    for spec in filter(None, specs):
        spec = str(find_annotations_path(spec) or split_dump_spec(spec)[0])
        script = split_script_spec(spec)
        path = script[0] if script is not None and not Path(spec).exists() else Path(spec)
        paths += _list_data_files_in(path) if path.is_dir() else [path]
    return [path for path in paths if path.is_file()]


def _list_data_files_in(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.suffix in (".npz", ".json")]
    except OSError:  # who reads it says so
        return []


def refuse_overwriting_inputs(output_paths: Iterable[Path | str], input_paths: Iterable[Path]) -> None:
    """Refuses to overwrite files that are read.

    Args:
        output_paths: Places that are to be written; a network may be written with its weights beside it.
        input_paths: Files that are read, under whatever names.

    Raises:
        InputError: one of the places is one of the files.
    """
    outputs = [Path(path) for path in output_paths]
    outputs += [path.with_name(f"{path.name}.data") for path in outputs if path.suffix.lower() == ".onnx"]
    existing_outputs = [path for path in outputs if os.path.isfile(path)]
    for path, input_path in ((path, input_path) for path in existing_outputs for input_path in input_paths):
        if _is_same_file(path, input_path):
            raise _overwrite_error(path, input_path)


def _is_same_file(first_path: Path, second_path: Path) -> bool:
    try:
        return os.path.samefile(first_path, second_path)
    except OSError:  # one of them is not there
        return False


def _overwrite_error(output_path: Path, input_path: Path) -> InputError:
    return InputError(f"{output_path} is an input file", f"writing it would lose {input_path}", "Choose another name.")
