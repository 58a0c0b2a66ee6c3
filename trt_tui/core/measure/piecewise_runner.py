"""A runner for a graph that is cut into pieces, so that pieces with the same result for several configs run only once.

A search tries one group after the other, and so does the measurement of error shares. All configs of such a step are
equal before the first group that differs. Each piece keeps its results for two configs of a feed, one of them the last
used.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trt_tui.core.lowering.gated.gated_graph import GatedGraph
from trt_tui.core.lowering.gated.pieces import split_into_pieces
from trt_tui.core.runner import Backend, Runner, TensorInfo

MAX_CACHED_BYTES = 1 << 28
"""The maximum size of all cached results. A feed beyond this size is executed from the start."""

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
    values: dict[str, np.ndarray]
    last_use: int = 0

    @property
    def size_bytes(self) -> int:
        return sum(array.nbytes for array in self.values.values())

    def is_result_of_inputs(self, input_arrays: Sequence[np.ndarray], input_run_numbers: Sequence[int]) -> bool:
        return self.input_stamps == input_run_numbers and all(
            ref() is array for ref, array in zip(self.input_arrays, input_arrays, strict=True))


@dataclass(eq=False)
class _CachedFeedResults:
    """The cached results of all pieces of a graph for one feed.

    Attributes:
        last_run: The number of the last execution of this feed.
    """

    pieces_by_index: list[list[_CachedPieceResult]]
    last_run: int = 0
    size_bytes: int = 0


class PiecewiseRunner:
    """A runner that executes a gated graph in pieces and caches the results of each piece.

    Arrays that are fed beside the inputs of the network must not change, because the cache compares them by identity.
    `trt_tui.core.lowering.gated.gated_graph.GatedGraph` feeds such arrays. The inputs of the network are compared by
    their content.

    Args:
        runners: One runner for each piece, in order.

    Attributes:
        computed_pieces: Number of executions of single pieces so far.
    """

    def __init__(self, gated_graph: GatedGraph, runners: Sequence[Runner]) -> None:
        self._runners = tuple(runners)
        self._network_inputs = [info.name for info in gated_graph.network.inputs]
        computed_names: set[str] = set()
        self._inner_inputs: list[list[str]] = []  # results of earlier pieces
        self._external_inputs: list[list[str]] = []
        for runner in runners:
            names = [info.name for info in runner.inputs]
            self._inner_inputs.append([name for name in names if name in computed_names])
            self._external_inputs.append(
                [name for name in names if name not in computed_names and name not in self._network_inputs])
            computed_names.update(info.name for info in runner.outputs)
        self._piece_inputs = [[info.name for info in runner.inputs] for runner in runners]
        self._piece_outputs = [[info.name for info in runner.outputs] for runner in runners]
        own = {name for names in self._external_inputs for name in names} | set(self._network_inputs)
        self.inputs = tuple({info.name: info for runner in runners for info in runner.inputs if info.name in own
                             }.values())
        self.outputs: tuple[TensorInfo, ...] = tuple(
            info for runner in runners for info in runner.outputs)
        self._cached_feeds: dict[bytes, _CachedFeedResults] = {}
        self._cached_bytes = self._run_count = self.computed_pieces = 0

    @classmethod
    def load_in_pieces(cls, backend: Backend, gated_graph: GatedGraph, *, optimize: bool = True) -> Runner:
        """Loads a gated graph, in pieces if it can be cut.

        Args:
            optimize: Argument of `Backend.load`.
        """
        runners: list[Runner] = []
        try:
            runners.extend(
                backend.load(model, low_memory=True, optimize=optimize) for model in split_into_pieces(gated_graph))
        except BaseException:
            for runner in runners:
                runner.close()
            raise
        return cls(gated_graph, runners) if len(runners) > 1 else runners[0]

    def estimate_recomputed_fraction(self, changed_inputs: Collection[str]) -> float:
        """Returns the fraction of an execution that must be computed again if only some inputs changed since a cached
        execution.

        All pieces are assumed to cost the same.
        """
        first_changed = next((index for index, external_inputs in enumerate(self._external_inputs)
                              if not set(external_inputs).isdisjoint(changed_inputs)), 0)
        return 1 - first_changed / len(self._runners)

    def run(self, feeds: Mapping[str, np.ndarray], fetch: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Implements `trt_tui.core.runner.Runner.run` with cached results of pieces."""
        fetched_names = list(fetch) if fetch is not None else [info.name for info in self.outputs]
        self._run_count += 1
        cached_feed = self._find_or_add_cached_feed(feeds)
        values: dict[str, np.ndarray] = {}
        stamps: dict[str, int] = {}
        last = len(self._runners) - 1
        for index, runner in enumerate(self._runners):
            input_arrays = [feeds[name] for name in self._external_inputs[index]]
            input_stamps = [stamps[name] for name in self._inner_inputs[index]]
            cached_piece = next((piece for piece in cached_feed.pieces_by_index[index]
                                 if piece.is_result_of_inputs(input_arrays, input_stamps)), None)
            if cached_piece is None:
                self.computed_pieces += 1
                output_names = self._piece_outputs[index]
                piece_feed = {
                    name: values[name] if name in values else feeds[name]
                    for name in self._piece_inputs[index]
                }
                outputs = runner.run(piece_feed, [name for name in output_names
                                                  if name in fetched_names] if index == last else output_names)
                cached_piece = _CachedPieceResult(list(map(weakref.ref, input_arrays)), input_stamps, self._run_count,
                                                  outputs)
                if index < last:
                    self._cache_piece(cached_feed, cached_feed.pieces_by_index[index], cached_piece)
            else:
                cached_piece.last_use = self._run_count
            values.update(cached_piece.values)
            stamps.update(dict.fromkeys(cached_piece.values, cached_piece.stamp))
        return {name: values[name] for name in fetched_names}

    def _find_or_add_cached_feed(self, feeds: Mapping[str, np.ndarray]) -> _CachedFeedResults:
        """Returns the cached results of a feed, and drops the results of feeds that were not executed for long."""
        digest = hashlib.blake2b(digest_size=16)
        for name in self._network_inputs:
            array = feeds[name]
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")
        oldest = self._run_count - _MAX_AGE_ROUNDS * max(_MAX_AGE_ROUNDS, len(self._cached_feeds))
        for key in [key for key, entry in self._cached_feeds.items() if entry.last_run < oldest]:
            self._cached_bytes -= self._cached_feeds.pop(key).size_bytes
        cached_feed = self._cached_feeds.setdefault(digest.digest(), _CachedFeedResults([[] for _ in self._runners]))
        cached_feed.last_run = self._run_count
        return cached_feed

    def _cache_piece(self, cached_feed: _CachedFeedResults, cached_pieces: list[_CachedPieceResult],
                     piece: _CachedPieceResult) -> None:
        """Caches the result of a piece. If the cache is full, the result replaces the one that was read longest ago."""
        is_full = self._cached_bytes + piece.size_bytes > MAX_CACHED_BYTES
        replaced = None
        if cached_pieces and (is_full or len(cached_pieces) == _MAX_CONFIGS_PER_FEED):
            replaced = min(cached_pieces, key=lambda cached: (cached.last_use, -cached.stamp))
        added_bytes = piece.size_bytes - (replaced.size_bytes if replaced is not None else 0)
        was_used_lately = replaced is not None and replaced.last_use > self._run_count - _MAX_AGE_ROUNDS * len(
            self._cached_feeds)
        if self._cached_bytes + added_bytes > MAX_CACHED_BYTES or is_full and was_used_lately:
            return
        if replaced is not None:
            cached_pieces.remove(replaced)
        cached_pieces.append(piece)
        cached_feed.size_bytes += added_bytes
        self._cached_bytes += added_bytes

    def close(self) -> None:
        for runner in self._runners:
            runner.close()
        self._cached_feeds.clear()

    def __enter__(self) -> PiecewiseRunner:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
