"""Results on disk by content hash, so that what was measured once is known at once the next time."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import platformdirs

T = TypeVar("T")

LIMIT_BYTES = 128 << 20


class ResultCache:
    """A folder of small msgpack files, the least recently used dropped beyond a size.

    A file that cannot be read or written is no result and no error: the cache only saves time.

    Args:
        folder: Where; the user's cache folder by default.
    """

    def __init__(self, folder: Path | None = None, limit_bytes: int = LIMIT_BYTES) -> None:
        self.folder = folder or Path(platformdirs.user_cache_dir("trt-tui")) / "results"
        self.limit_bytes = limit_bytes

    @staticmethod
    def key(*parts: object) -> str:
        """A key that differs where any part's ``repr`` does."""
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def get(self, key: str, kind: type[T]) -> T | None:
        """The result stored under a key, or None."""
        path = self.folder / key[:2] / key
        try:
            data = path.read_bytes()
            os.utime(path)
            return msgspec.msgpack.decode(data, type=kind)
        except (OSError, msgspec.DecodeError):
            return None

    def put(self, key: str, value: Any) -> None:
        """Stores a result under a key."""
        path = self.folder / key[:2] / key
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as stream:
                stream.write(msgspec.msgpack.encode(value))
            os.replace(stream.name, path)
        except OSError:
            return

    def trim(self) -> None:
        """Drops the least recently used results beyond the size limit."""
        try:
            files = [(p.stat().st_atime_ns, p.stat().st_size, p) for p in self.folder.glob("*/*")]
        except OSError:
            return
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self.limit_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size
