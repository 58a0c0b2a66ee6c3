"""The files that figures depend on, as they were when they were read, and which of them were replaced since."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trt_tui.files.reading import digest

Stamp = tuple[int, int, int, int]
"""Inode, size in bytes, and times of the last change of the content and of the inode, in ns.

Programs such as ``rsync --inplace -t`` write new content and set the time of the old one again. No program sets the
time of the inode, which every change of content or of that other time renews.
"""

SETTLED_S = 2.0
"""A younger file may change once more within one tick of its file system's clock, which leaves its stamp as it was."""

HASHED_BYTES = 512 << 20
"""Files of at most so many bytes together are hashed whenever they are opened: SHA-256 reads 1.7 GB/s on one core."""

_digests: dict[tuple[str, Stamp], str] = {}
"""SHA-256 of files by path and stamp, as far as this process has read them."""


def stamp(path: Path | str) -> Stamp | None:
    """A file's stamp; None where there is no such file."""
    try:
        known = os.stat(path)
    except (OSError, ValueError):
        return None
    return known.st_ino, known.st_size, known.st_mtime_ns, known.st_ctime_ns


def is_settled(known: Stamp | None) -> bool:
    """Returns True if a file with this stamp cannot change any more without another stamp."""
    return known is not None and max(known[2:]) < time.time_ns() - SETTLED_S * 1e9


def known_digest(path: Path | str) -> str:
    """The SHA-256 of a file; one whose stamp is known, and not too young to be trusted, is not read again."""
    found = stamp(path)
    if found is not None and (str(path), found) in _digests:
        return _digests[str(path), found]
    content = digest(path)
    if found is not None and is_settled(found) and found == stamp(path):
        _digests[str(path), found] = content
    return content


def _is_same(path: str, known: Stamp | None) -> bool:
    """Returns True if a file is what it was when its stamp was taken.

    Permissions, attributes and links change the time of the inode alone: then the content decides, if it was hashed.
    """
    now = stamp(path)
    if now == known:
        return True
    return (now is not None and known is not None and now[:3] == known[:3]
            and _digests.get((path, known)) == known_digest(path))


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

    def hash_contents(self) -> None:
        """Reads the files, `HASHED_BYTES` of them at most, so that `replaced` can compare their content."""
        room = HASHED_BYTES
        for path, known in self.stamps:
            if known is not None and (room := room - known[1]) >= 0:
                known_digest(path)

    def replaced(self) -> tuple[str, ...]:
        """The files that are others now, or are gone."""
        return tuple(path for path, known in self.stamps if not _is_same(path, known))

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
