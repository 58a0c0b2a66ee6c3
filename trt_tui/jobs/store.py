"""Results and engines on disk, by all that they depend on: what was made once need not be made again."""

import contextlib
import hashlib
import os
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import platformdirs

import trt_tui
from trt_tui.core.calibration.ranges import stamp as ranges_stamp
from trt_tui.core.data.watched import stamp
from trt_tui.core.lowering.lowered import quantizes
from trt_tui.core.lowering.rules import ARITHMETIC
from trt_tui.core.measure.comparison import EngineResult
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import Network
from trt_tui.errors import InputError
from trt_tui.files.reading import read_bytes
from trt_tui.files.scratch import remove_stale
from trt_tui.files.writing import write_atomic
from trt_tui.workspace import Workspace

T = TypeVar("T")

RESULTS_BYTES = 128 << 20
ENGINES_BYTES = 4 << 30


class FileCache:
    """A folder of files by content hash; above a total size the least recently used are dropped.

    A file that cannot be read or written counts as missing and is no error: the cache only saves time.

    Args:
        folder: Where.
        limit_bytes: The total size that `trim` leaves.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes

    @staticmethod
    def key(*parts: object) -> str:
        """A key that differs if the ``repr`` of any part differs."""
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def read(self, key: str) -> bytes | None:
        """What is stored under a key, or None."""
        path = self._path(key)
        try:
            data = read_bytes(path)
            os.utime(path)
            return data
        except (OSError, InputError):  # it is measured again
            return None

    def write(self, key: str, data: bytes) -> None:
        """Stores bytes under a key."""
        path = self._path(key)
        with contextlib.suppress(OSError, InputError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, data)

    def trim(self) -> None:
        """Drops the least recently used files above the size limit, and what killed writers have left."""
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
        """The file for tactics of some GPU, release, flags and so on; its folder exists if it can be made."""
        path = self.folder.parent / "timing" / f"{self.key(*bound_to)[:16]}.cache"
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
        return path


def cache_folder() -> Path:
    """This program's part of the user's cache folder."""
    return Path(platformdirs.user_cache_dir("trt-tui"))


class Store:
    """What was measured of a workspace, by all that it depends on, and engines.

    Args:
        results: Where results lie; the user's cache folder by default.
        engines: Where engines lie; the user's cache folder by default.
    """

    def __init__(self, results: ResultCache | None = None, engines: EngineCache | None = None) -> None:
        self.results = results or ResultCache()
        self.engines = engines or EngineCache()

    def trim(self) -> None:
        """Drops the least recently used files above the size limits."""
        self.results.trim()
        self.engines.trim()

    def known(self, workspace: Workspace, kind: str, config: PrecisionConfig, type_: type[T]) -> T | None:
        """A result of a config, or None."""
        return self.results.get(self.key(workspace, kind, config), type_)

    def keep(self, workspace: Workspace, kind: str, config: PrecisionConfig, value: Any) -> None:
        """Stores a result of a config."""
        self.results.put(self.key(workspace, kind, config), value)

    def engine(self, workspace: Workspace, config: PrecisionConfig) -> EngineResult | None:
        """What is known of a config's engine."""
        return self.results.get(self._engine_key(workspace, config), EngineResult)

    def keep_engine(self, workspace: Workspace, config: PrecisionConfig, result: EngineResult) -> None:
        """Stores what was judged of a config's engine."""
        self.results.put(self._engine_key(workspace, config), result)

    def network_sha256(self, network: Network) -> str:
        """The SHA-256 of a network with its external data; a file whose stamp is known is not read again."""
        files = (network.path, *network.external_files)
        key = FileCache.key("sha256", [(str(file.resolve()), stamp(file)) for file in files])
        known = self.results.get(key, str)
        if known is None:
            known = network.sha256()
            self.results.put(key, known)
        return known

    def key(self, workspace: Workspace, kind: str, config: PrecisionConfig, *more: object) -> str:
        """The name under which a result is kept: all that it depends on."""
        backend, source = workspace.backend, workspace.source
        ranges = ranges_stamp(workspace.ranges) if quantizes(workspace.network, config) else ()
        sha256, data_sha256 = (source.sha256, source.data_sha256) if source is not None else ("", "")
        return FileCache.key(trt_tui.__version__, ARITHMETIC, kind, sha256, data_sha256,
                             [one.name for one in workspace.judged], workspace.metric_stamp(), backend.name,
                             backend.version, backend.provider, ranges, config.key(), more, *workspace.operators,
                             *workspace.against_sha256)

    def _engine_key(self, workspace: Workspace, config: PrecisionConfig) -> str:
        plan, stamp_of = workspace.plan, workspace.builder.stamp if workspace.builder is not None else ()
        settings = plan.settings
        return self.key(workspace, "engine", config, stamp_of, sorted(settings.profile.items()),
                        settings.production.judged.key, settings.compute_capability, plan.weak, plan.strict,
                        sorted(plan.others), *[plan.builds] * (plan.builds > 1))
