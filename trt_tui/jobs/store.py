"""Results and engines on disk, by all that they depend on: what was made once need not be made again."""

import contextlib
import hashlib
import os
import sys
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import platformdirs
from filelock import Timeout

import trt_tui
from trt_tui.core.calibration.ranges import stamp as ranges_stamp
from trt_tui.core.data.watched import HASHED_BYTES, is_settled, known_digest, stamp
from trt_tui.core.lowering.lowered import quantizes
from trt_tui.core.lowering.rules import ARITHMETIC
from trt_tui.core.measure.comparison import EngineResult
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import Network
from trt_tui.core.source_hash import source_sha256
from trt_tui.errors import InputError
from trt_tui.files.locking import locked
from trt_tui.files.reading import BINARY_BYTES, open_regular, sample_digest
from trt_tui.files.scratch import remove_stale
from trt_tui.files.sealing import is_broken, seal
from trt_tui.files.writing import atomic, write_atomic
from trt_tui.workspace import Workspace

T = TypeVar("T")

RESULTS_BYTES = 128 << 20
ENGINES_BYTES = 4 << 30

_CHECKSUM_BYTES = hashlib.sha256().digest_size
_PATIENCE_S = 5.0
"""How long to wait for the lock of a timing cache."""


class FileCache:
    """A folder of files by content hash; above a total size the least recently used are dropped.

    A file that cannot be read or written counts as missing and is no error: the cache only saves time. Each begins with
    a checksum of its key and its content. One that fails it counts as missing too, and the log says so.

    Args:
        folder: Where.
        limit_bytes: The total size that `trim` leaves.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes

    @staticmethod
    def key(*parts: object) -> str:
        """A key that differs if the ``repr`` of any part differs, or what this program computes."""
        return _hashed(trt_tui.__version__, ARITHMETIC, source_sha256(), parts)

    def read(self, key: str) -> bytes | None:
        """What is stored under a key, or None."""
        path = self._path(key)
        try:
            with open_regular(path, most=BINARY_BYTES) as stream:
                checksum, data = stream.read(_CHECKSUM_BYTES), stream.read()
        except (OSError, InputError, MemoryError):  # it is measured again
            return None
        if checksum != _checksum(key, data):
            print(f"The stored record {path} is damaged: its checksum does not match. It is measured again.",
                  file=sys.stderr, flush=True)
            return None
        with contextlib.suppress(OSError):  # a shared cache may be read-only
            os.utime(path)
        return data

    def write(self, key: str, data: bytes) -> None:
        """Stores bytes under a key."""
        path = self._path(key)
        with contextlib.suppress(OSError, InputError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic(path) as stream:
                stream.write(_checksum(key, data))
                stream.write(data)

    def records(self) -> dict[str, bytes]:
        """All that is stored, by key."""
        keys = [path.name for path in self.folder.glob("*/*")]
        return {key: data for key in keys if (data := self.read(key)) is not None}

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
        """The file for tactics of some GPU, release, flags and so on; its folder exists if it can be made.

        What was measured does not depend on this program, so its version is no part of the name. A file that is not as
        it was sealed is removed: its times would choose other kernels.
        """
        path = self._timing_folder / f"{_hashed(bound_to)[:16]}.cache"
        with contextlib.suppress(OSError, Timeout):
            path.parent.mkdir(parents=True, exist_ok=True)
            with locked(path, _PATIENCE_S):
                if is_broken(path):
                    path.unlink()
                    print(f"The timing cache {path} is damaged: its checksum does not match. Tactics are measured "
                          f"again.", file=sys.stderr, flush=True)
        return path

    def timings(self) -> dict[str, bytes]:
        """All timing caches, by name."""
        return {path.name: path.read_bytes() for path in self._timing_folder.glob("*.cache")}

    def put_timings(self, name: str, data: bytes) -> None:
        """Stores a timing cache in place of the one of that name."""
        path = self._timing_folder / name
        with contextlib.suppress(OSError, InputError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, data)
            self.seal_timings(path)

    @property
    def _timing_folder(self) -> Path:
        return self.folder.parent / "timing"

    @staticmethod
    def seal_timings(path: Path) -> None:
        """Stores the checksum of a timing cache that a build has made; the backend renews it with the file."""
        with contextlib.suppress(OSError, Timeout), locked(path, _PATIENCE_S):
            seal(path)


def _hashed(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _checksum(key: str, data: bytes) -> bytes:
    """The checksum of a record: with the key, so that a file under another record's name fails it."""
    total = hashlib.sha256(key.encode())
    total.update(data)
    return total.digest()


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
        """Stores a result of a config.

        Raises:
            ReplacedError: a file was replaced since it was read, so that it is not known what was measured.
        """
        workspace.require_unchanged()
        self.results.put(self.key(workspace, kind, config), value)

    def engine(self, workspace: Workspace, config: PrecisionConfig) -> EngineResult | None:
        """What is known of a config's engine."""
        return self.results.get(self._engine_key(workspace, config), EngineResult)

    def keep_engine(self, workspace: Workspace, config: PrecisionConfig, result: EngineResult) -> None:
        """Stores what was judged of a config's engine. Raises as `keep`."""
        workspace.require_unchanged()
        self.results.put(self._engine_key(workspace, config), result)

    def network_sha256(self, network: Network) -> str:
        """The SHA-256 of a network with its external data.

        Files of more than `HASHED_BYTES` together are not read again if their stamps and samples of their content are
        those that a hash was stored for.
        """
        files = (network.path, *network.external_files)
        stamps = [stamp(file) for file in files]
        if sum(found[1] for found in stamps if found is not None) <= HASHED_BYTES:
            return (known_digest(network.path) if len(files) == 1 else "") or network.sha256()
        key = FileCache.key("sha256", [(str(file.resolve()), found, sample_digest(file))
                                       for file, found in zip(files, stamps, strict=True)])
        known = self.results.get(key, str)
        if known is None:
            known = network.sha256()
            if all(map(is_settled, stamps)):
                self.results.put(key, known)
        return known

    def key(self, workspace: Workspace, kind: str, config: PrecisionConfig, *more: object) -> str:
        """The name under which a result is kept: all that it depends on."""
        backend, source = workspace.backend, workspace.source
        ranges = ranges_stamp(workspace.ranges) if quantizes(workspace.network, config) else ()
        sha256, data_sha256 = (source.sha256, source.data_sha256) if source is not None else ("", "")
        return FileCache.key(kind, sha256, data_sha256, [one.name for one in workspace.judged],
                             workspace.metric_stamp(), backend.name, backend.version, backend.provider, ranges,
                             config.key(), more, *workspace.operators, *workspace.against_sha256)

    def _engine_key(self, workspace: Workspace, config: PrecisionConfig) -> str:
        plan, stamp_of = workspace.plan, workspace.builder.stamp if workspace.builder is not None else ()
        settings = plan.settings
        return self.key(workspace, "engine", config, stamp_of, sorted(settings.profile.items()),
                        settings.production.judged.key, settings.compute_capability, plan.weak, plan.strict,
                        sorted(plan.others), *[plan.builds] * (plan.builds > 1))
