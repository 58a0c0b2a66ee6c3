"""The store of results and engines on disk. The key of each entry depends on everything that affects its value."""

import contextlib
import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import platformdirs

import trt_tui
from trt_tui.core.calibration.calibration import ranges_comparison_key as ranges_stamp
from trt_tui.core.data.input_files import MAX_HASHED_BYTES, cached_file_sha256, is_stamp_trustworthy, read_file_stamp
from trt_tui.core.lowering.network_rewrite import quantizes_activations
from trt_tui.core.lowering.rulebook import ARITHMETIC_VERSION
from trt_tui.core.measure.results import EngineResult
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import Network
from trt_tui.core.source_hash import source_sha256
from trt_tui.errors import InputError
from trt_tui.files.reading import MAX_BINARY_BYTES, open_regular_file, sampled_file_sha256
from trt_tui.files.writing import (
    open_atomic_writer,
    remove_stale_path,
    write_file_atomically,
)
from trt_tui.workspace import Workspace

T = TypeVar("T")

MAX_RESULTS_BYTES = 128 << 20
MAX_ENGINES_BYTES = 4 << 30

_CHECKSUM_BYTES = hashlib.sha256().digest_size


class FileCache:
    """A folder of files by cache key. Above a total size, the least recently used files are removed.

    A file that cannot be read or written counts as missing and raises no error, since the cache only saves time. Each
    file begins with a checksum of its key and its content. A file with a wrong checksum counts as missing too, and the
    log reports it.

    Args:
        folder: The path of the folder.
        limit_bytes: The total size that `trim_to_size_limit` keeps.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes

    @staticmethod
    def make_key(*parts: object) -> str:
        """Returns a cache key. It depends on the ``repr`` of each part, and on the version and source of this
        program."""
        return _hash_key_parts(trt_tui.__version__, ARITHMETIC_VERSION, source_sha256(), parts)

    def read(self, key: str) -> bytes | None:
        """Returns the bytes stored under a key; None if there are none."""
        path = self._stored_file_path(key)
        try:
            with open_regular_file(path, max_bytes=MAX_BINARY_BYTES) as stream:
                checksum, data = stream.read(_CHECKSUM_BYTES), stream.read()
        except (OSError, InputError, MemoryError):  # the value is measured again
            return None
        if checksum != _stored_file_checksum(key, data):
            print(
                f"The stored record {path} is damaged: its checksum does not match. It is measured again.",
                file=sys.stderr,
                flush=True,
            )
            return None
        with contextlib.suppress(OSError):  # a shared cache may be read-only
            os.utime(path)
        return data

    def write(self, key: str, data: bytes) -> None:
        path = self._stored_file_path(key)
        with contextlib.suppress(OSError, InputError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with open_atomic_writer(path) as stream:
                stream.write(_stored_file_checksum(key, data))
                stream.write(data)

    def trim_to_size_limit(self) -> None:
        """Removes the least recently used files above the size limit, and temporary files of killed processes."""
        files, paths = [], []
        with contextlib.suppress(OSError):
            paths = list(self.folder.glob("*/*"))
        for path in paths:
            with contextlib.suppress(OSError):  # another process may remove the file at the same time
                if not remove_stale_path(path):
                    file_stat = path.stat()
                    files.append((file_stat.st_atime_ns, file_stat.st_size, path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self.limit_bytes:
                return
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size

    def _stored_file_path(self, key: str) -> Path:
        return self.folder / key[:2] / key


class ResultCache(FileCache):
    """A cache of small results in msgpack. By default, it is in the user's cache folder."""

    def __init__(self, folder: Path | None = None, limit_bytes: int = MAX_RESULTS_BYTES) -> None:
        super().__init__(folder or user_cache_folder() / "results", limit_bytes)

    def get(self, key: str, result_type: type[T]) -> T | None:
        """Returns the result stored under a key; None if there is none."""
        data = self.read(key)
        try:
            return msgspec.msgpack.decode(data, type=result_type) if data is not None else None
        except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
            return None

    def put(self, key: str, value: Any) -> None:
        self.write(key, msgspec.msgpack.encode(value))


class EngineCache(FileCache):
    """A cache of engines, with the timing caches of their builds in a folder beside them.

    A timing cache is a file of kernel timings that a builder reads and extends.
    """

    def __init__(self, folder: Path | None = None, limit_bytes: int = MAX_ENGINES_BYTES) -> None:
        super().__init__(folder or user_cache_folder() / "engines", limit_bytes)

    def timing_cache_path(self, *key_parts: object) -> Path:
        """Returns the path of the timing cache for a GPU, release and builder flags. The folder is created if possible.

        Kernel timings do not depend on this program, so its version is not part of the name.
        """
        path = self._timing_cache_folder / f"{_hash_key_parts(key_parts)[:16]}.cache"
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def read_all_files(self) -> dict[str, bytes]:
        """Returns the files of all engines and timing caches, by their paths from the folder of the engines."""
        paths = (*self.folder.glob("*/*"), *self._timing_cache_folder.glob("*"))
        return {os.path.relpath(path, self.folder): path.read_bytes() for path in paths}

    def write_files(self, files: Mapping[str, bytes]) -> None:
        """Writes the files of another engine cache in place of existing ones."""
        with contextlib.suppress(OSError, InputError):
            for name, data in files.items():
                path = Path(os.path.normpath(self.folder / name))  # the folder can be a link to another disk
                path.parent.mkdir(parents=True, exist_ok=True)
                write_file_atomically(path, data)

    @property
    def _timing_cache_folder(self) -> Path:
        return self.folder.parent / "timing"


def _hash_key_parts(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _stored_file_checksum(key: str, data: bytes) -> bytes:
    """Returns the checksum of a stored file. The checksum covers the key, so that a renamed file is detected."""
    total = hashlib.sha256(key.encode())
    total.update(data)
    return total.digest()


def user_cache_folder() -> Path:
    return Path(platformdirs.user_cache_dir("trt-tui"))


class ResultStore:
    """The store of the measured results and engines of workspaces.

    Args:
        results: The cache of results; by default in the user's cache folder.
        engines: The cache of engines; by default in the user's cache folder.
    """

    def __init__(self, results: ResultCache | None = None, engines: EngineCache | None = None) -> None:
        self.results = results or ResultCache()
        self.engines = engines or EngineCache()

    def trim_to_size_limit(self) -> None:
        self.results.trim_to_size_limit()
        self.engines.trim_to_size_limit()

    def load_result(
        self, workspace: Workspace, result_kind: str, config: PrecisionConfig, result_type: type[T], *more: object
    ) -> T | None:
        """Returns a stored result of a config; None if there is none.

        Args:
            more: The further parts of the cache key.
        """
        return self.results.get(self.make_result_key(workspace, result_kind, config, *more), result_type)

    def save_result(
        self, workspace: Workspace, result_kind: str, config: PrecisionConfig, result: Any, *more: object
    ) -> None:
        """Stores a result of a config. The argument ``more`` is that of `load_result`.

        Raises:
            FileReplacedError: An input file was replaced after it was read, so that the measured content is unknown.
        """
        workspace.require_unchanged_files()
        self.results.put(self.make_result_key(workspace, result_kind, config, *more), result)

    def load_engine_result(self, workspace: Workspace, config: PrecisionConfig) -> EngineResult | None:
        return self.load_result(workspace, "engine", config, EngineResult, *engine_key_parts(workspace))

    def save_engine_result(self, workspace: Workspace, config: PrecisionConfig, result: EngineResult) -> None:
        """Stores the result of a config's engine. Raises the errors of `save_result`."""
        self.save_result(workspace, "engine", config, result, *engine_key_parts(workspace))

    def network_sha256(self, network: Network) -> str:
        """Returns the SHA-256 of a network with its external data.

        Files of more than `MAX_HASHED_BYTES` in total are not read again if a hash is stored for their stamps and for
        samples of their content.
        """
        files = (network.path, *network.external_files)
        stamps = [read_file_stamp(file) for file in files]
        if sum(current_stamp[1] for current_stamp in stamps if current_stamp is not None) <= MAX_HASHED_BYTES:
            return (cached_file_sha256(network.path) if len(files) == 1 else "") or network.sha256()
        key = FileCache.make_key(
            "sha256",
            [
                (str(file.resolve()), current_stamp, sampled_file_sha256(file))
                for file, current_stamp in zip(files, stamps, strict=True)
            ],
        )
        stored_hash = self.results.get(key, str)
        if stored_hash is None:
            stored_hash = network.sha256()
            if all(map(is_stamp_trustworthy, stamps)):
                self.results.put(key, stored_hash)
        return stored_hash

    def make_result_key(self, workspace: Workspace, result_kind: str, config: PrecisionConfig, *more: object) -> str:
        """Returns the cache key of a result, which depends on everything that the result depends on."""
        backend, source = workspace.backend, workspace.fingerprint
        ranges = ranges_stamp(workspace.ranges) if quantizes_activations(workspace.network, config) else ()
        sha256, data_sha256 = (source.sha256, source.data_sha256) if source is not None else ("", "")
        return FileCache.make_key(
            result_kind,
            sha256,
            data_sha256,
            workspace.find_judged_feeds(config).cache_key,
            [output.name for output in workspace.judged_outputs],
            workspace.metric_cache_key(),
            backend.name,
            backend.version,
            backend.provider,
            ranges,
            config.comparison_key,
            more,
            *workspace.operator_and_reference_hashes,
        )


def engine_key_parts(workspace: Workspace) -> tuple[object, ...]:
    """Returns the parts of the cache key that only results of engines have."""
    plan, settings, builder = workspace.build_plan, workspace.build_plan.settings, workspace.builder
    return (
        builder.cache_identity if builder is not None else (),
        sorted(settings.profile.items()),
        settings.builder_options.comparison_key,
        settings.compute_capability,
        plan.weakly_typed,
        plan.strict,
        sorted(plan.other_shapes),
        *[plan.builds_per_config] * (plan.builds_per_config > 1),
    )
