"""Sessions on disk: config history by network, so that opening a network again goes on where it was.

A session is one JSON file in the user's state folder, named after the network's structure. A lock held by the program
that writes it keeps two terminals apart: the second one starts from a copy and writes a file of its own.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
import platformdirs

from trt_tui.core.files import write_atomic
from trt_tui.core.network import Outline
from trt_tui.core.precision import Choice, History, Precision, PrecisionConfig, RangeChoice
from trt_tui.errors import InputError

FORMAT = "trt-tui/session"
VERSION = 1
HISTORY_LIMIT = 200
"""Undo steps that are kept."""


class StoredConfig(msgspec.Struct, omit_defaults=True):
    """One precision config as the session file holds it."""

    quantized: Precision
    other: Precision
    tf32: bool = False
    groups: dict[str, Choice] = {}
    ranges: dict[str, RangeChoice] = {}
    name: str = ""

    @classmethod
    def of(cls, config: PrecisionConfig, name: str = "") -> StoredConfig:
        return cls(config.quantized, config.other, config.tf32, dict(config.groups), dict(config.ranges), name)

    def config(self) -> PrecisionConfig:
        return PrecisionConfig(self.quantized, self.other, self.tf32, self.groups, self.ranges)


class Saved(msgspec.Struct):
    """A saved session."""

    format: str
    version: int
    network: str
    past: list[StoredConfig]
    current: StoredConfig
    future: list[StoredConfig]
    named_configs: list[StoredConfig]
    target: str = ""
    note: str = ""

    @classmethod
    def of(cls, outline: Outline, history: History, names: Mapping[PrecisionConfig, str], target: str) -> Saved:
        past, current, future = history.snapshot()
        return cls(FORMAT, VERSION, outline.path, [StoredConfig.of(c) for c in past[-HISTORY_LIMIT:]],
                   StoredConfig.of(current), [StoredConfig.of(c) for c in future[-HISTORY_LIMIT:]],
                   [StoredConfig.of(c, name) for c, name in names.items()], target)

    def history(self) -> History:
        return History.restored([c.config() for c in self.past], self.current.config(),
                                [c.config() for c in self.future])

    def named(self) -> list[tuple[PrecisionConfig, str]]:
        return [(one.config(), one.name) for one in self.named_configs]


class Store:
    """The folder of saved sessions.

    Args:
        folder: Where; the user's state folder by default.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or Path(platformdirs.user_state_dir("trt-tui")) / "sessions"
        self._path: Path | None = None
        self._lock = None

    def load(self, structure: str, data: str) -> Saved | None:
        """The saved session of a network and its data, newest first; takes the file to write for this program."""
        base = self._base(structure, data)
        note = ""
        candidates = sorted(self.folder.glob(f"{base}*.json"), key=lambda p: p.stat().st_mtime_ns, reverse=True)
        self._take(base)
        if self._path is not None and self._path.name != f"{base}.json":
            note = "This network is open in another terminal too; the two sessions are saved apart."
        for path in candidates:
            try:
                saved = msgspec.json.decode(path.read_bytes(), type=Saved)
            except (OSError, msgspec.DecodeError):
                continue
            if saved.format == FORMAT and saved.version == VERSION:
                saved.note = note
                return saved
        return None

    def save(self, structure: str, data: str, saved: Saved) -> None:
        """Writes the session; a full or read-only disk is no reason to stop the work."""
        if self._path is None:
            self._take(self._base(structure, data))
        if self._path is None:
            return
        try:
            write_atomic(self._path, msgspec.json.format(msgspec.json.encode(saved), indent=1))
        except InputError:
            return

    def release(self) -> None:
        """Lets other programs write the session."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        self._path = None

    def _base(self, structure: str, data: str) -> str:
        return f"{structure[:20]}-{hashlib.sha256(data.encode()).hexdigest()[:8]}"

    def _take(self, base: str) -> None:
        """Finds the first session file that no other program holds, and locks it."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            return
        for number in range(1, 100):
            name = base if number == 1 else f"{base}-{number}"
            try:
                lock = open(self.folder / f"{name}.lock", "a")
            except OSError:
                return
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.close()
                continue
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            self._lock, self._path = lock, self.folder / f"{name}.json"
            return
