"""A runner for a graph that is cut into pieces, so that pieces with the same result for several configs run only once.

A search tries one group after the other, and so does the measurement of error shares. All configs of such a step are
equal before the first group that differs. Each piece keeps its results for two configs of a feed, one of them the last
used. On a device the results between pieces stay there.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np

from trt_tui.core.lowering.gated.assembly import DEFAULT_PIECES, split_graph_into_pieces
from trt_tui.core.lowering.gated.gated_graph import GatedGraph
from trt_tui.core.runner import Backend, ClosingContext, DeviceTensor, ExecutionMode, PieceRunner, Runner, TensorInfo
from trt_tui.errors import OutOfMemoryError

MAX_CACHED_BYTES, MAX_CACHED_DEVICE_BYTES = 1 << 28, 1 << 29
"""The maximum size of all cached results on the host and on a device. A feed beyond this size is executed from the
start."""

DEVICE_PIECES = 4
"""The number of pieces on a device. Each has memory of its own there: 8 are as fast and need twice as much."""

_MAX_CONFIGS_PER_FEED, _MAX_AGE_ROUNDS = 2, 4
"""The maximum number of configs that are cached for a feed, and the maximum age of a cached feed. A feed is dropped
after this number of rounds through all cached feeds without a new execution."""


@dataclass(eq=False)
class _CachedPieceResult:
    """The cached result of one piece of a gated graph.

    Attributes:
        input_arrays: Weak references to the arrays fed to the piece, so that the cache does not keep weights alive.
        input_stamps: The stamps of the results of earlier pieces that this result was computed from.
        stamp: The number of the execution that computed the result.
        last_use: The number of the last execution that read the result; 0 if none did.
    """

    input_arrays: list[weakref.ref[np.ndarray]]
    input_stamps: list[int]
    stamp: int
    values: dict[str, np.ndarray | DeviceTensor]
    last_use: int = 0

    @property
    def size_bytes(self) -> int:
        return sum(array.nbytes for array in self.values.values())

    def can_inputs_recur(self, stamps: Collection[int]) -> bool:
        """Returns False if an input cannot occur again. ``stamps`` are the stamps of the cached results of earlier
        pieces."""
        return all(stamp in stamps for stamp in self.input_stamps) and all(
            ref() is not None for ref in self.input_arrays
        )

    def is_result_of_inputs(self, input_arrays: Sequence[np.ndarray], input_stamps: Sequence[int]) -> bool:
        return self.input_stamps == input_stamps and all(
            ref() is array for ref, array in zip(self.input_arrays, input_arrays, strict=True)
        )


@dataclass(eq=False)
class _CachedFeedResults:
    """The cached results of all pieces of a graph for one feed.

    Attributes:
        last_run: The number of the last execution of this feed.
    """

    pieces_by_index: list[list[_CachedPieceResult]]
    last_run: int = 0
    size_bytes: int = 0


class PiecewiseRunner(ClosingContext):
    """A runner that executes a gated graph in pieces and caches the results of each piece.

    Arrays that are fed beside the inputs of the network must not change, because the cache compares them by identity.
    `trt_tui.core.lowering.gated.gated_graph.GatedGraph` feeds such arrays. The inputs of the network are compared by
    their content.

    Args:
        runners: One runner for each piece, in order.
        on_device: True if the runners keep results on a device. The inputs of the network must not change either.

    Attributes:
        computed_pieces: Number of executions of single pieces so far.
    """

    def __init__(self, gated_graph: GatedGraph, runners: Sequence[Runner], *, on_device: bool = False) -> None:
        self._runners = tuple(runners)
        self._on_device = on_device
        self._max_cached_bytes = MAX_CACHED_DEVICE_BYTES if on_device else MAX_CACHED_BYTES
        self._has_outdated_results = False
        self._digests: dict[int, tuple[weakref.ref[np.ndarray], bytes]] = {}
        self._network_inputs = [info.name for info in gated_graph.network.inputs]
        computed_names: set[str] = set()
        self._inner_inputs: list[list[str]] = []  # results of earlier pieces
        self._external_inputs: list[list[str]] = []
        for runner in runners:
            names = [info.name for info in runner.inputs]
            self._inner_inputs.append([name for name in names if name in computed_names])
            self._external_inputs.append(
                [name for name in names if name not in computed_names and name not in self._network_inputs]
            )
            computed_names.update(info.name for info in runner.outputs)
        self._piece_inputs = [[info.name for info in runner.inputs] for runner in runners]
        own = {name for names in self._external_inputs for name in names} | set(self._network_inputs)
        self.inputs = tuple(
            {info.name: info for runner in runners for info in runner.inputs if info.name in own}.values()
        )
        self.outputs: tuple[TensorInfo, ...] = tuple(info for runner in runners for info in runner.outputs)
        self._cached_feeds: dict[bytes, _CachedFeedResults] = {}
        self._cached_bytes = self._run_count = self.computed_pieces = 0

    @classmethod
    def load_in_pieces(
        cls,
        backend: Backend,
        gated_graph: GatedGraph,
        *,
        optimize: bool = True,
        on_mode_change: Callable[[ExecutionMode], None] | None = None,
    ) -> Runner:
        """Loads a gated graph, in pieces if it can be cut.

        Args:
            optimize: Argument of `Backend.load`.
            on_mode_change: Argument of `Backend.load`, called with the slowest mode of the pieces. If present, results
                between pieces stay on the device.
        """
        on_device = on_mode_change is not None
        modes: dict[int, ExecutionMode] = {}

        def report_mode(index: int, mode: ExecutionMode) -> None:
            modes[index] = mode
            for piecewise_runner in piecewise_runners:  # another mode may round differently
                piecewise_runner._has_outdated_results = True
            assert on_mode_change is not None
            on_mode_change(next((entry for entry in modes.values() if entry.reason), mode))

        runners: list[Runner] = []
        piecewise_runners: list[PiecewiseRunner] = []
        try:
            for index, model in enumerate(
                split_graph_into_pieces(
                    gated_graph, DEVICE_PIECES if on_device else DEFAULT_PIECES, for_device=on_device
                )
            ):
                runners.append(
                    backend.load(
                        model,
                        low_memory=True,
                        optimize=optimize,
                        on_mode_change=partial(report_mode, index) if on_device else None,
                        first_piece=runners[0] if runners else None,
                    )
                )
        except BaseException:
            for runner in runners:
                runner.close()
            raise
        if len(runners) == 1:
            return runners[0]
        piecewise_runners.append(cls(gated_graph, runners, on_device=on_device))
        return piecewise_runners[0]

    def run(self, feeds: Mapping[str, np.ndarray], fetch: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Implements `trt_tui.core.runner.Runner.run` with cached results of pieces.

        If memory runs out, all cached results are freed, and the feed is executed again. From then on, none are cached.
        """
        fetched_names = list(fetch) if fetch is not None else [info.name for info in self.outputs]
        try:
            return self._run_without_retry(feeds, fetched_names)
        except OutOfMemoryError:
            if not self._cached_bytes:
                raise
        self._has_outdated_results, self._max_cached_bytes = True, 0
        return self._run_without_retry(feeds, fetched_names)

    def _run_without_retry(
        self, feeds: Mapping[str, np.ndarray], fetched_names: Sequence[str]
    ) -> dict[str, np.ndarray]:
        if self._has_outdated_results:
            self._cached_feeds.clear()
            self._cached_bytes, self._has_outdated_results = 0, False
        self._run_count += 1
        cached_feed = self._find_or_add_cached_feed(feeds)
        values: dict[str, np.ndarray | DeviceTensor] = {}
        stamps: dict[str, int] = {}
        last = len(self._runners) - 1
        for index, runner in enumerate(self._runners):
            input_arrays = [feeds[name] for name in self._external_inputs[index]]
            input_stamps = [stamps[name] for name in self._inner_inputs[index]]
            cached_piece = next(
                (
                    piece
                    for piece in cached_feed.pieces_by_index[index]
                    if piece.is_result_of_inputs(input_arrays, input_stamps)
                ),
                None,
            )
            if cached_piece is None:
                self.computed_pieces += 1
                piece_feed = {
                    name: values[name] if name in values else feeds[name] for name in self._piece_inputs[index]
                }
                outputs = self._run_piece(runner, piece_feed, index == last, fetched_names)
                cached_piece = _CachedPieceResult(
                    list(map(weakref.ref, input_arrays)), input_stamps, self._run_count, outputs
                )
                if index < last:
                    self._cache_piece(cached_feed, index, cached_piece)
            else:
                cached_piece.last_use = self._run_count
            values.update(cached_piece.values)
            stamps.update(dict.fromkeys(cached_piece.values, cached_piece.stamp))
        return {
            name: value if isinstance(value := values[name], np.ndarray) else value.to_host() for name in fetched_names
        }

    def _run_piece(
        self, runner: Runner, piece_feed: Mapping[str, Any], is_last: bool, fetched_names: Collection[str]
    ) -> dict[str, np.ndarray | DeviceTensor]:
        """Executes one piece. Returns all its outputs, or the fetched ones of the last piece."""
        if self._on_device and not is_last:
            return cast(PieceRunner, runner).run_keeping_results(piece_feed)
        names = [info.name for info in runner.outputs if not is_last or info.name in fetched_names]
        return {**runner.run(piece_feed, names)}

    def _find_or_add_cached_feed(self, feeds: Mapping[str, np.ndarray]) -> _CachedFeedResults:
        """Returns the cached results of a feed, and drops the results of feeds that were not executed for long."""
        key_of_feed = b"".join(self._compute_digest(feeds[name]) for name in self._network_inputs)
        oldest = self._run_count - _MAX_AGE_ROUNDS * max(_MAX_AGE_ROUNDS, len(self._cached_feeds))
        for key in [key for key, entry in self._cached_feeds.items() if entry.last_run < oldest]:
            self._cached_bytes -= self._cached_feeds.pop(key).size_bytes
        cached_feed = self._cached_feeds.setdefault(key_of_feed, _CachedFeedResults([[] for _ in self._runners]))
        cached_feed.last_run = self._run_count
        return cached_feed

    def _compute_digest(self, array: np.ndarray) -> bytes:
        """Returns a hash of an array. For arrays that do not change, the hash is computed once."""
        known = self._digests.get(id(array))
        if known is not None and known[0]() is array:
            return known[1]
        digest = hashlib.blake2b(f"{array.dtype}{array.shape}".encode(), digest_size=16)
        digest.update(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")
        if self._on_device:
            key = id(array)
            self._digests[key] = weakref.ref(array, lambda _: self._digests.pop(key, None)), digest.digest()
        return digest.digest()

    def _cache_piece(self, cached_feed: _CachedFeedResults, index: int, piece: _CachedPieceResult) -> None:
        """Caches the result of a piece. A full cache drops a result that cannot recur, or the one read longest ago."""
        is_full = self._cached_bytes + piece.size_bytes > self._max_cached_bytes
        replaced = None
        cached_pieces = cached_feed.pieces_by_index[index]
        stamps = {cached.stamp for pieces in cached_feed.pieces_by_index[:index] for cached in pieces}
        if cached_pieces and (is_full or len(cached_pieces) == _MAX_CONFIGS_PER_FEED):
            replaced = min(
                cached_pieces, key=lambda cached: (cached.can_inputs_recur(stamps), cached.last_use, -cached.stamp)
            )
        added_bytes = piece.size_bytes - (replaced.size_bytes if replaced is not None else 0)
        oldest = self._run_count - _MAX_AGE_ROUNDS * len(self._cached_feeds)
        if self._cached_bytes + added_bytes > self._max_cached_bytes or (
            is_full and replaced is not None and replaced.last_use > oldest and replaced.can_inputs_recur(stamps)
        ):
            return
        if replaced is not None:
            cached_pieces.remove(replaced)
        cached_pieces.append(piece)
        cached_feed.size_bytes += added_bytes
        self._cached_bytes += added_bytes

    def close(self) -> None:
        self._cached_feeds.clear()
        for runner in self._runners:
            runner.close()
