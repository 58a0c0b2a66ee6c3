"""Hash of the program's own source code, which stored results depend on.

A changed rule of fusion or lowering gives the same config other figures. A hand-written version is easily forgotten, so
the source itself is part of every key.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Traversable

_EXCLUDED_PACKAGES = frozenset({"cli", "demo", "session", "tui"})
"""Packages that show, store and ask, and compute no figure."""


@functools.cache
def source_sha256() -> str:
    """Returns the hash of the source that this process runs, as it is installed: in folders, or in a zip file."""
    return hash_source(files("trt_tui"))


def hash_source(package: Traversable) -> str:
    """Returns the SHA-256 of all modules that decide a figure, with their paths.

    Args:
        package: The folder of the package `trt_tui`.
    """
    digest = hashlib.sha256()
    for path, module in sorted(_iterate_modules(package, "", _EXCLUDED_PACKAGES),
                               key=lambda path_and_module: path_and_module[0]):
        source = module.read_bytes()
        digest.update(f"{path}\0{len(source)}\0".encode() + source)
    return digest.hexdigest()


def _iterate_modules(folder: Traversable, prefix: str, skipped_names: frozenset[str] = frozenset({"__pycache__"}),
                     ) -> Iterator[tuple[str, Traversable]]:
    """Yields each module below a folder with its path; a package without sources has its compiled modules there."""
    for entry in folder.iterdir():
        if entry.name in skipped_names or entry.name == "__pycache__":
            continue
        path = f"{prefix}{entry.name}"
        if entry.is_dir():
            yield from _iterate_modules(entry, f"{path}/")
        elif path.endswith((".py", ".pyc")):
            yield path, entry
