"""Results and engines on disk by content hash, so that what was made once is there at once the next time."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import platformdirs

from trt_tui.errors import InputError
from trt_tui.files.reading import read_bytes
from trt_tui.files.scratch import remove_stale
from trt_tui.files.writing import write_atomic

T = TypeVar("T")

RESULTS_BYTES = 128 << 20
ENGINES_BYTES = 4 << 30


class FileCache:
    """A folder of files by content hash, the least recently used dropped beyond a size.

    A file that cannot be read or written is no result and no error: the cache only saves time.

    Args:
        folder: Where.
        limit_bytes: Size that `trim` cuts it down to.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes

    @staticmethod
    def key(*parts: object) -> str:
        """A key that differs where any part's ``repr`` does."""
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def read(self, key: str) -> bytes | None:
        """What is stored under a key, or None."""
        path = self._path(key)
        try:
            data = read_bytes(path)
            os.utime(path)
            return data
        except (OSError, InputError):
            return None

    def write(self, key: str, data: bytes) -> None:
        """Stores bytes under a key."""
        path = self._path(key)
        with contextlib.suppress(OSError, InputError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, data)

    def trim(self) -> None:
        """Drops the least recently used files beyond the size limit, and what writers that were killed have left."""
        files, paths = [], []
        with contextlib.suppress(OSError):
            paths = list(self.folder.glob("*/*"))
        for path in paths:
            with contextlib.suppress(OSError):  # another program may drop it at the same time
                if not remove_stale(path):
                    found = path.stat()
                    files.append((found.st_atime_ns, found.st_size, path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self.limit_bytes:
                return
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / key


class ResultCache(FileCache):
    """Small results as msgpack, in the user's cache folder by default."""

    def __init__(self, folder: Path | None = None, limit_bytes: int = RESULTS_BYTES) -> None:
        super().__init__(folder or cache_folder() / "results", limit_bytes)

    def get(self, key: str, kind: type[T]) -> T | None:
        """The result stored under a key, or None."""
        data = self.read(key)
        try:
            return msgspec.msgpack.decode(data, type=kind) if data is not None else None
        except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
            return None

    def put(self, key: str, value: Any) -> None:
        """Stores a result under a key."""
        self.write(key, msgspec.msgpack.encode(value))


class EngineCache(FileCache):
    """Engines, and beside them the timing caches: files of measured tactics that a builder reads and extends."""

    def __init__(self, folder: Path | None = None, limit_bytes: int = ENGINES_BYTES) -> None:
        super().__init__(folder or cache_folder() / "engines", limit_bytes)

    def timing_cache(self, *bound_to: object) -> Path:
        """The file for what tactics are bound to (GPU, release, flags, ...); its folder exists if it can be made."""
        path = self.folder.parent / "timing" / f"{self.key(*bound_to)[:16]}.cache"
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
        return path


def cache_folder() -> Path:
    """This program's part of the user's cache folder."""
    return Path(platformdirs.user_cache_dir("trt-tui"))
