"""The files that figures depend on, as they were when they were read, and which of them were replaced since."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trt_tui.files.reading import digest

Stamp = tuple[int, int, int]
"""Inode, size in bytes and time of the last change of the content in ns: another one means another content."""


def stamp(path: Path | str) -> Stamp | None:
    """A file's stamp; None where there is no such file."""
    try:
        known = os.stat(path)
    except (OSError, ValueError):
        return None
    return known.st_ino, known.st_size, known.st_mtime_ns


def known_digest(path: Path | str) -> str:
    """The SHA-256 of a file; one whose stamp is known is not read again."""
    return _digest(str(path), stamp(path))


@functools.lru_cache(maxsize=64)
def _digest(path: str, known: Stamp | None) -> str:
    return digest(path)


@dataclass(frozen=True)
class StampedFiles:
    """Files and folders with their stamps, by path."""

    stamps: tuple[tuple[str, Stamp | None], ...] = ()

    @classmethod
    def of(cls, paths: Iterable[Path | str]) -> StampedFiles:
        """The stamps of files as they are now."""
        return cls(tuple((path, stamp(path)) for path in dict.fromkeys(map(str, paths))))

    def __or__(self, other: StampedFiles) -> StampedFiles:
        """Both; a file that is in both keeps its earlier stamp, which is that of ``self``."""
        return StampedFiles(tuple({**dict(other.stamps), **dict(self.stamps)}.items()))

    def replaced(self) -> tuple[str, ...]:
        """The files that are others now, or are gone."""
        return tuple(path for path, known in self.stamps if stamp(path) != known)

    def differing(self, earlier: StampedFiles) -> tuple[str, ...]:
        """The files that were others when ``earlier`` was taken."""
        known = dict(earlier.stamps)
        return tuple(path for path, now in self.stamps if path in known and known[path] != now)


@dataclass(frozen=True)
class Source:
    """What figures are of: the network, the data, and the files that were read for them."""

    sha256: str
    data_sha256: str
    files: StampedFiles


def data_files(spec: str | None) -> tuple[str, ...]:
    """The files that a specification of samples names: a file, or what of a folder is read; none without one."""
    if spec is None:
        return ()
    path = Path(spec)
    if path.is_dir():
        return tuple(str(file) for file in sorted(path.iterdir()) if file.suffix in (".npz", ".json"))
    return (spec if path.exists() else spec.rpartition(":")[0] or spec,)
