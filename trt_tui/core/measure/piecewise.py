"""A gated graph that runs in pieces: what the configs before have computed of the same feed is not computed again.

A search tries one group after the other, and so do shares: all configs of a step are the same before the first group
that differs. Each piece keeps what it yielded for two configs of a feed, of which one is that used last.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trt_tui.core.lowering.gated.gated import Gated
from trt_tui.core.lowering.gated.pieces import in_pieces
from trt_tui.core.runner import Backend, Runner, TensorInfo

KEPT_BYTES = 1 << 28
"""What pieces yielded is kept up to this size; feeds beyond are run from the start."""

_KEPT, _AGE = 2, 4
"""Configs kept of a feed, and for how many rounds through all feeds that are kept one stays that is not run again."""


@dataclass(eq=False)
class _Yielded:
    """What a piece yielded.

    Attributes:
        given: The arrays that it was fed; weights are not kept for it.
        before: The runs of other pieces whose results it read.
        stamp: Of this run of the piece.
        used: The run that read it last; 0 for none.
    """

    given: list[weakref.ref[np.ndarray]]
    before: list[int]
    stamp: int
    values: dict[str, np.ndarray]
    used: int = 0

    @property
    def size(self) -> int:
        return sum(array.nbytes for array in self.values.values())

    def of(self, given: Sequence[np.ndarray], before: Sequence[int]) -> bool:
        """Whether it is what the piece yields for this."""
        return self.before == before and all(ref() is one for ref, one in zip(self.given, given, strict=True))


@dataclass(eq=False)
class _Feed:
    """What is kept of a feed, by piece.

    Attributes:
        run: The last run of this feed.
    """

    pieces: list[list[_Yielded]]
    run: int = 0
    size: int = 0


class Piecewise:
    """Runs a gated graph in pieces.

    Arrays that are fed beside the network's own inputs must not change: they are known by their identity, as
    `trt_tui.core.lowering.gated.gated.Gated` feeds them. The network's inputs are known by what they hold.

    Args:
        runners: One for each piece, in order.

    Attributes:
        computed: How many pieces were run in all.
    """

    def __init__(self, gated: Gated, runners: Sequence[Runner]) -> None:
        self._runners = tuple(runners)
        self._data = [info.name for info in gated.network.inputs]
        made: set[str] = set()
        self._read: list[list[str]] = []  # of earlier pieces
        self._fed: list[list[str]] = []
        for runner in runners:
            names = [info.name for info in runner.inputs]
            self._read.append([name for name in names if name in made])
            self._fed.append([name for name in names if name not in made and name not in self._data])
            made.update(info.name for info in runner.outputs)
        self._given = [[info.name for info in runner.inputs] for runner in runners]
        self._makes = [[info.name for info in runner.outputs] for runner in runners]
        own = {name for names in self._fed for name in names} | set(self._data)
        self.inputs = tuple({info.name: info for runner in runners for info in runner.inputs if info.name in own
                             }.values())
        self.outputs: tuple[TensorInfo, ...] = tuple(
            info for runner in runners for info in runner.outputs)
        self._feeds: dict[bytes, _Feed] = {}
        self._size = self._runs = self.computed = 0

    @classmethod
    def load(cls, backend: Backend, gated: Gated, *, optimize: bool = True) -> Runner:
        """Loads a gated graph, in pieces if it can be cut; ``optimize`` as `Backend.load` takes it."""
        runners: list[Runner] = []
        try:
            runners.extend(backend.load(model, lean=True, optimize=optimize) for model in in_pieces(gated))
        except BaseException:
            for runner in runners:
                runner.close()
            raise
        return cls(gated, runners) if len(runners) > 1 else runners[0]

    def anew(self, inputs: Collection[str]) -> float:
        """Which part of a run is computed anew where only these inputs differ from a run that is kept: pieces cost
        about the same."""
        first = next((place for place, fed in enumerate(self._fed) if not set(fed).isdisjoint(inputs)), 0)
        return 1 - first / len(self._runners)

    def run(self, feeds: Mapping[str, np.ndarray], fetch: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Runs once; see `trt_tui.core.runner.Runner`."""
        wanted = list(fetch) if fetch is not None else [info.name for info in self.outputs]
        self._runs += 1
        feed = self._feed(feeds)
        values: dict[str, np.ndarray] = {}
        stamps: dict[str, int] = {}
        last = len(self._runners) - 1
        for place, runner in enumerate(self._runners):
            given = [feeds[name] for name in self._fed[place]]
            before = [stamps[name] for name in self._read[place]]
            found = next((one for one in feed.pieces[place] if one.of(given, before)), None)
            if found is None:
                self.computed += 1
                makes = self._makes[place]
                fed = {name: values[name] if name in values else feeds[name] for name in self._given[place]}
                outputs = runner.run(fed, [name for name in makes if name in wanted] if place == last else makes)
                found = _Yielded(list(map(weakref.ref, given)), before, self._runs, outputs)
                if place < last:
                    self._keep(feed, feed.pieces[place], found)
            else:
                found.used = self._runs
            values.update(found.values)
            stamps.update(dict.fromkeys(found.values, found.stamp))
        return {name: values[name] for name in wanted}

    def _feed(self, feeds: Mapping[str, np.ndarray]) -> _Feed:
        """What is kept of a feed; feeds that were not run for long are let go."""
        digest = hashlib.blake2b(digest_size=16)
        for name in self._data:
            array = feeds[name]
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")
        oldest = self._runs - _AGE * max(_AGE, len(self._feeds))
        for key in [key for key, one in self._feeds.items() if one.run < oldest]:
            self._size -= self._feeds.pop(key).size
        feed = self._feeds.setdefault(digest.digest(), _Feed([[] for _ in self._runners]))
        feed.run = self._runs
        return feed

    def _keep(self, feed: _Feed, kept: list[_Yielded], one: _Yielded) -> None:
        """Keeps what a piece yielded in place of what was read longest ago, where there is room."""
        full = self._size + one.size > KEPT_BYTES
        gone = None
        if kept and (full or len(kept) == _KEPT):
            gone = min(kept, key=lambda other: (other.used, -other.stamp))
        more = one.size - (gone.size if gone is not None else 0)
        lately = gone is not None and gone.used > self._runs - _AGE * len(self._feeds)
        if self._size + more > KEPT_BYTES or full and lately:
            return
        if gone is not None:
            kept.remove(gone)
        kept.append(one)
        feed.size += more
        self._size += more

    def close(self) -> None:
        """Frees the sessions and what is kept."""
        for runner in self._runners:
            runner.close()
        self._feeds.clear()

    def __enter__(self) -> Piecewise:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
