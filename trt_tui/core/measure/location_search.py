"""The search for the smallest piece of a network that shows the fault of an engine.

`plan_fault_location` is a generator. It yields pieces, which are sets of cells
(`trt_tui.core.engines.engine_cells`), and receives a verdict on each. It executes nothing.
"""

import heapq
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from trt_tui.core.builder_options import MAX_LOCATION_BUILDS
from trt_tui.core.measure.fault_location import (
    REBUILD_COUNT,
    LocationOutcome,
    LocationResult,
    Piece,
    PieceState,
    PieceVerdict,
)

LocationSteps = Generator[Piece, PieceVerdict, LocationResult]
"""The steps of a location: each yields a piece and receives its verdict."""

MAX_RATIO_BUILDS = 30
"""The maximum number of builds that search the largest ratio of an engine without a fault."""

MAX_SUSPECTS, MAX_SUSPECT_WIDTH = 2, 2
"""The maximum number of cells that a marked engine names as the first ones to try, and of neighbours on each side."""

_JUDGED_STATES = (PieceState.FAULTY, PieceState.SOUND)


def plan_fault_location(cell_count: int, max_builds: int = MAX_LOCATION_BUILDS, *, reads_cells: bool = False,
                        finds_largest_ratio: bool = True, has_time: Callable[[], bool] = lambda: True
                        ) -> LocationSteps:
    """Searches the smallest set of cells that shows the fault of an engine.

    The engine itself is judged first. If the simulation explains its NaN or Inf, the search ends. A faulty engine is
    built again, to see whether all builds agree. A marked engine then shows the cells that are tried first. After them
    prefix and suffix are tried, in halves. If neither or both show the fault, sets of cells are removed as in delta
    debugging (Zeller and Hildebrandt, 2002).

    For an engine without a fault, the cell with the largest ratio is searched.

    Args:
        cell_count: The number of cells of the whole engine.
        max_builds: The maximum number of builds, those of the whole network included; 0 judges the engine only.
        reads_cells: True if the values between the kernels can be read, so that a single cell needs no build.
        finds_largest_ratio: False to end with the verdict on the whole engine if that has no fault.
        has_time: A function that returns False once no further build may begin.
    """
    search = _PieceSearch(cell_count, max_builds, has_time)
    whole = tuple(range(cell_count))
    verdict = yield from search.try_piece(Piece(whole))
    if verdict.state in (PieceState.NOT_JUDGED, PieceState.NOT_BUILT):
        return search.make_result(_OUTCOMES[verdict.state], whole)
    is_faulty = verdict.state is PieceState.FAULTY
    if is_faulty and verdict.explanation and verdict.suspects:
        cells = verdict.suspects[:1]
        search.verdicts.append((Piece(cells, is_simulated=True), PieceVerdict(
            PieceState.FAULTY, verdict.explanation, verdict.faults)))
        return search.make_result(LocationOutcome.FOUND, cells)
    if not is_faulty and (not finds_largest_ratio or cell_count == 1 or not max_builds):
        return search.make_result(LocationOutcome.NO_FAULT, whole)
    for rebuild in range(1, REBUILD_COUNT + 1) if is_faulty else (1,) if reads_cells else ():
        if not search.can_build():
            break
        verdict = yield from search.try_piece(Piece(whole, rebuild))
        if verdict.state in (PieceState.NOT_JUDGED, PieceState.NOT_BUILT):
            return search.make_result(_OUTCOMES[verdict.state], whole)
    if len({verdict.state for _, verdict in search.verdicts}) > 1:
        return search.make_result(LocationOutcome.UNSTABLE, whole)
    if not is_faulty:
        largest = yield from (search.read_largest_ratio(whole) if reads_cells else search.build_largest_ratio(whole))
        return search.make_result(LocationOutcome.NO_FAULT, whole, largest)
    for cell in whole if reads_cells and cell_count > 1 and not search.is_limit_reached else ():
        verdict = yield from search.try_piece(Piece((cell,), is_read=True))
        if verdict.state is PieceState.FAULTY:
            return search.make_result(LocationOutcome.FOUND, (cell,))
    cells = whole
    if not reads_cells and cell_count > 1 and search.can_build():
        verdict = yield from search.try_piece(Piece(whole, is_marked=True))
        cells = yield from search.widen_suspects(whole, verdict.suspects)
    if not search.is_limit_reached:
        cells = (yield from search.halve(whole)) if cells == whole else cells
        cells = yield from search.remove_sets(cells)
    if len(cells) == 1:
        return search.make_result(LocationOutcome.FOUND, cells)
    if search.is_limit_reached:
        return search.make_result(LocationOutcome.UNFINISHED, cells)
    return search.make_result(LocationOutcome.VANISHES if cells == whole else LocationOutcome.SPREAD, cells)


_OUTCOMES = {PieceState.NOT_JUDGED: LocationOutcome.NOT_JUDGED, PieceState.NOT_BUILT: LocationOutcome.NOT_BUILT}

_CellSteps = Generator[Piece, PieceVerdict, tuple[int, ...]]


@dataclass
class _PieceSearch:
    """The pieces tried so far, and the steps that find smaller ones."""

    cell_count: int
    max_builds: int
    has_time: Callable[[], bool]
    verdicts: list[tuple[Piece, PieceVerdict]] = field(default_factory=list)
    is_limit_reached: bool = False

    def make_result(self, outcome: LocationOutcome, cells: tuple[int, ...],
                    largest: tuple[int, ...] = ()) -> LocationResult:
        return LocationResult(outcome, Piece(cells), tuple(self.verdicts), self.is_limit_reached,
                              Piece(largest) if largest else None)

    def can_build(self) -> bool:
        """Returns True if a further build is within the limits. The engine itself is not counted."""
        builds = sum(not piece.is_read for piece, _ in self.verdicts) - 1
        self.is_limit_reached = self.is_limit_reached or builds >= self.max_builds or not self.has_time()
        return not self.is_limit_reached

    def try_piece(self, piece: Piece) -> Generator[Piece, PieceVerdict, PieceVerdict]:
        verdict = yield piece
        self.verdicts.append((piece, verdict))
        return verdict

    def judge_cells(self, cells: tuple[int, ...]) -> Generator[Piece, PieceVerdict, PieceVerdict | None]:
        """Returns the verdict on a piece, which is tried once; None if no builds are left."""
        known = next((verdict for piece, verdict in self.verdicts if piece.cells == cells and not (
            piece.is_marked or piece.is_read and verdict.state is PieceState.NOT_COMPARABLE)), None)
        if known is None and self.can_build():
            known = yield from self.try_piece(Piece(cells))
        return known

    def shows_fault(self, cells: tuple[int, ...]) -> Generator[Piece, PieceVerdict, bool]:
        """Returns True if a piece shows the fault."""
        return (yield from self.rate_evidence(cells)) > 0

    def rate_evidence(self, cells: tuple[int, ...]) -> Generator[Piece, PieceVerdict, int]:
        """Returns 2 if a piece shows the fault with the kernels of the whole engine, 1 with other kernels, else 0."""
        verdict = yield from self.judge_cells(cells)
        if verdict is None or verdict.state is not PieceState.FAULTY:
            return 0
        return 1 if verdict.has_fault_with_other_kernels else 2

    def widen_suspects(self, whole: tuple[int, ...], suspects: tuple[int, ...]) -> _CellSteps:
        """Returns the first suspect that shows the fault, with the neighbours that it needs; all cells if none does."""
        for width in range(MAX_SUSPECT_WIDTH + 1):
            for cell in suspects[:MAX_SUSPECTS]:
                cells = whole[max(cell - width, 0):cell + width + 1]
                if len(cells) < len(whole) and (yield from self.shows_fault(cells)):
                    return cells
        return whole

    def halve(self, cells: tuple[int, ...]) -> _CellSteps:
        """Returns the smallest piece after repeated halving, as long as exactly one half shows the fault.

        If both halves show it, the half with the kernels of the whole engine is taken. Halving ends if both have them.
        """
        while len(cells) > 1:
            prefix, suffix = _split(cells)
            prefix_evidence = yield from self.rate_evidence(prefix)
            suffix_evidence = yield from self.rate_evidence(suffix)
            if prefix_evidence == suffix_evidence:
                break
            cells = prefix if prefix_evidence > suffix_evidence else suffix
        return cells

    def remove_sets(self, cells: tuple[int, ...]) -> _CellSteps:
        """Returns a subset of cells from which no set can be removed without losing the fault."""
        count = 2
        while len(cells) > 1 and not self.is_limit_reached:
            bounds = [len(cells) * index // count for index in range(count + 1)]
            sets = [cells[start:stop] for start, stop in zip(bounds, bounds[1:], strict=False)]
            candidates = [*((part, 2) for part in sets),
                          *((tuple(cell for cell in cells if cell not in part), max(count - 1, 2)) for part in sets
                            if count > 2)]
            for candidate, next_count in candidates:
                if (yield from self.shows_fault(candidate)):
                    cells, count = candidate, min(next_count, len(candidate))
                    break
            else:
                if count >= len(cells):
                    break
                count = min(2 * count, len(cells))
        return cells

    def read_largest_ratio(self, whole: tuple[int, ...]) -> _CellSteps:
        """Returns the first cell whose reading exceeds the bound, or else the cell with the largest ratio."""
        largest: tuple[float, tuple[int, ...]] = (-1.0, ())
        for cell in whole if not self.is_limit_reached else ():
            verdict = yield from self.try_piece(Piece((cell,), is_read=True))
            if verdict.state is PieceState.FAULTY:
                return (cell,)
            if verdict.state is PieceState.SOUND and verdict.faults:
                largest = max(largest, (verdict.faults[0].ratio, (cell,)), key=lambda item: item[0])
        return largest[1]

    def build_largest_ratio(self, whole: tuple[int, ...]) -> _CellSteps:
        """Returns the cell of the largest ratio, as far as the limits allow.

        The piece with the largest ratio is halved first. A half that is not comparable has the ratio of the piece from
        which it comes. If the parts of a piece cannot be judged, the piece that was judged last is returned.
        """
        self.max_builds = min(self.max_builds, MAX_RATIO_BUILDS)
        waiting: list[tuple[float, tuple[int, ...]]] = [(-self._find_ratio(whole), whole)]
        judged = [whole]
        while len(waiting[0][1]) > 1 and not self.is_limit_reached:
            key, cells = heapq.heappop(waiting)
            for part in _split(cells):
                verdict = yield from self.judge_cells(part)
                is_judged = (verdict is not None and verdict.state in _JUDGED_STATES
                             and not verdict.different_kernel)
                judged += [part] if is_judged else []
                heapq.heappush(waiting, (-self._find_ratio(part) if is_judged else key, part))
        return min((cells for cells in judged if set(waiting[0][1]) <= set(cells)), key=len)

    def _find_ratio(self, cells: tuple[int, ...]) -> float:
        faults = next(verdict.faults for piece, verdict in reversed(self.verdicts) if piece.cells == cells)
        return faults[0].ratio if faults else 0.0


def _split(cells: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the first and the second half of some cells."""
    middle = len(cells) // 2
    return cells[:middle], cells[middle:]
