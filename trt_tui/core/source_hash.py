"""The hash of the program's source files, which is part of every cache key.

After a change of the fusion rules or lowerings, the same config gives other results. A version number is easily
forgotten, so the hash covers the source itself.
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
"""Packages that compute no measured value: they show or store values, or send requests."""


@functools.cache
def source_sha256() -> str:
    """Returns the hash of the source files of this process, which may be in folders or in a zip file."""
    return hash_source(files("trt_tui"))


def hash_source(package: Traversable) -> str:
    """Returns the SHA-256 over the paths and contents of all modules that can change a measured value.

    Args:
        package: The folder of the package `trt_tui`.
    """
    digest = hashlib.sha256()
    for path, module in sorted(
        _iterate_modules(package, "", _EXCLUDED_PACKAGES), key=lambda path_and_module: path_and_module[0]
    ):
        source = module.read_bytes()
        digest.update(f"{path}\0{len(source)}\0".encode() + source)
    return digest.hexdigest()


def _iterate_modules(
    folder: Traversable,
    prefix: str,
    skipped_names: frozenset[str] = frozenset({"__pycache__"}),
) -> Iterator[tuple[str, Traversable]]:
    """Yields each module below a folder with its path.

    In a package without sources, these are compiled modules.
    """
    for entry in folder.iterdir():
        if entry.name in skipped_names or entry.name == "__pycache__":
            continue
        path = f"{prefix}{entry.name}"
        if entry.is_dir():
            yield from _iterate_modules(entry, f"{path}/")
        elif path.endswith((".py", ".pyc")):
            yield path, entry
