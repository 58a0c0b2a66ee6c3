"""trt_tui.core.measure.fault_location: the search over pieces, driven by planted faults."""

import time

import numpy as np
import pytest

from trt_tui.core.measure.fault_location import (
    FAULT_FACTOR,
    LocationOutcome,
    LocationResult,
    OutputFault,
    Piece,
    PieceState,
    PieceVerdict,
    find_unequal_rows,
    judge_outputs,
    measure_output_fault,
)
from trt_tui.core.measure.location_search import MAX_RATIO_BUILDS, plan_fault_location
from trt_tui.core.precision import Precision
from trt_tui.jobs.piece_probe import TimeLimit

FAULTY, SOUND, OTHER = PieceState.FAULTY, PieceState.SOUND, PieceState.NOT_COMPARABLE


def located(cell_count: int, state_of, **options) -> LocationResult:
    """Drives a location with a function from a piece to its state."""
    steps, answer = plan_fault_location(cell_count, **options), None
    while True:
        try:
            piece = steps.send(answer)
        except StopIteration as stop:
            return stop.value
        state = state_of(piece)
        answer = state if isinstance(state, PieceVerdict) else PieceVerdict(state)


def shown_by(*cells: int):
    """The fault needs all these cells."""
    return lambda piece: FAULTY if set(cells) <= set(piece.cells) else SOUND


@pytest.mark.parametrize("cell", [0, 5, 8, 15])
def test_a_single_kernel_in_prefix_or_suffix_is_found_by_halves(cell) -> None:
    result = located(16, shown_by(cell))
    assert result.outcome is LocationOutcome.FOUND and result.piece == Piece((cell,))
    assert len(result.verdicts) == 4 + 1 + 2 * 4 and not result.is_limit_reached
    assert [piece.rebuild for piece, _ in result.verdicts[:5]] == [0, 1, 2, 3, 0]
    assert [piece.is_marked for piece, _ in result.verdicts[:6]] == [False] * 4 + [True, False]


def test_a_fault_that_needs_two_distant_kernels_is_spread_over_them() -> None:
    result = located(16, shown_by(2, 13))
    assert result.outcome is LocationOutcome.SPREAD and result.piece.cells == (2, 13)
    assert "spread over 2 fused layers" in result.describe_outcome([f"k{index}" for index in range(16)])


def test_of_two_faults_the_first_is_found() -> None:
    result = located(16, lambda piece: FAULTY if {3, 12} & set(piece.cells) else SOUND)
    assert result.outcome is LocationOutcome.FOUND and result.piece.cells == (3,)


def test_a_fault_that_no_piece_shows_is_said_to_vanish() -> None:
    result = located(8, lambda piece: FAULTY if len(piece.cells) == 8 else OTHER)
    assert result.outcome is LocationOutcome.VANISHES and result.piece.cells == tuple(range(8))
    text = result.describe_outcome(["k"] * 8)
    assert "disappears when the network is cut" in text and "got other kernels" in text


def test_a_piece_that_is_not_comparable_decides_nothing() -> None:
    """The fault is in cell 6, but pieces that begin right at it get another kernel."""
    result = located(8, lambda piece: OTHER if piece.cells[0] == 6 else shown_by(6)(piece))
    assert result.outcome is LocationOutcome.SPREAD and 6 in result.piece.cells and len(result.piece.cells) == 2


def test_the_cells_that_a_marked_engine_names_are_tried_first() -> None:
    """Cell 9 alone gets another kernel and is sound: its neighbour is needed."""
    def verdict_of(piece: Piece) -> PieceVerdict:
        if piece.is_marked:
            return PieceVerdict(FAULTY, suspects=(9, 12))
        return PieceVerdict(OTHER if piece.cells == (9,) else shown_by(9)(piece))

    result = located(16, verdict_of)
    assert [piece.cells for piece, _ in result.verdicts[5:8]] == [(9,), (12,), (8, 9, 10)]
    assert 9 in result.piece.cells and len(result.piece.cells) == 2
    direct = located(16, lambda piece: PieceVerdict(FAULTY, suspects=(9,)) if piece.is_marked else shown_by(9)(piece))
    assert direct.outcome is LocationOutcome.FOUND and len(direct.verdicts) == 6


def test_a_fault_with_other_kernels_counts_less_than_one_with_the_same() -> None:
    def verdict_of(piece: Piece) -> PieceVerdict:
        other = "kernel_1 of /a" if max(piece.cells) < 8 else ""
        return PieceVerdict(shown_by(12)(piece) if not other else FAULTY).apply_kernel_difference(other)

    result = located(16, verdict_of)
    assert result.outcome is LocationOutcome.FOUND and result.piece.cells == (12,)
    assert PieceVerdict(SOUND).apply_kernel_difference("kernel_1 of /a").state is OTHER
    only = located(16, lambda piece: PieceVerdict(shown_by(3)(piece)).apply_kernel_difference(
        "k" if len(piece.cells) < 16 else ""))
    assert only.piece.cells == (3,) and "with other kernels: the whole engine has no k" in only.describe_outcome(
        ["c"] * 16)


def test_an_overflow_that_the_simulation_explains_ends_the_search() -> None:
    result = located(16, lambda piece: PieceVerdict(FAULTY, suspects=(4, 5), explanation="n overflows FP16"))
    assert result.outcome is LocationOutcome.FOUND and result.piece.cells == (4,) and len(result.verdicts) == 2
    assert "n overflows FP16" in result.describe_outcome(["c"] * 16) and result.explanation


def test_builds_that_disagree_end_the_search() -> None:
    result = located(8, lambda piece: SOUND if piece.rebuild == 2 else FAULTY)
    assert result.outcome is LocationOutcome.UNSTABLE and len(result.verdicts) == 4
    assert "2 of 3 agree" in result.describe_outcome([])


def test_a_sound_engine_is_not_cut() -> None:
    for options in ({"max_builds": 0}, {"finds_largest_ratio": False}):
        result = located(8, lambda piece: SOUND, **options)
        assert result.outcome is LocationOutcome.NO_FAULT and len(result.verdicts) == 1 and result.largest_piece is None


@pytest.mark.parametrize(("state", "outcome"), [(PieceState.NOT_JUDGED, LocationOutcome.NOT_JUDGED),
                                                (PieceState.NOT_BUILT, LocationOutcome.NOT_BUILT)])
def test_what_cannot_be_judged_or_built_ends_the_search_with_its_reason(state, outcome) -> None:
    result = located(8, lambda piece: PieceVerdict(state, "GroupNormalization of n has no reference"))
    assert result.outcome is outcome and len(result.verdicts) == 1
    assert "GroupNormalization of n" in result.describe_outcome([])


def test_the_limit_of_builds_is_kept_and_said() -> None:
    result = located(64, shown_by(2, 40, 61), max_builds=12)
    assert len(result.verdicts) == 13 and result.is_limit_reached
    assert result.outcome is LocationOutcome.UNFINISHED
    assert "limit of builds" in result.describe_outcome(["k"] * 64)


@pytest.mark.parametrize(("builds", "text"), [(0, "no smaller piece"), (2, "no smaller piece"), (3, "no smaller piece"),
                                              (5, "within 32 of 64 fused layers"), (7, "within 16 of 64")])
def test_a_search_that_its_limit_ends_says_what_it_knows(builds, text) -> None:
    result = located(64, shown_by(5), max_builds=builds)
    assert result.outcome is LocationOutcome.UNFINISHED and 5 in result.piece.cells
    assert len(result.verdicts) <= builds + 1 and text in result.describe_outcome(["k"] * 64)
    clock = iter(range(100))
    timed = located(64, shown_by(5), has_time=lambda: next(clock) < builds)
    assert timed.outcome is LocationOutcome.UNFINISHED and timed.piece == result.piece


def with_ratios(*ratios: float):
    """Verdicts of cells whose errors add up: the ratio of a piece is the largest of its cells."""

    def verdict_of(piece: Piece) -> PieceVerdict:
        ratio = max(ratios[cell] for cell in piece.cells)
        is_faulty = ratio > FAULT_FACTOR and len(piece.cells) < len(ratios)
        return PieceVerdict(FAULTY if is_faulty else SOUND, "", (OutputFault("t", (4,), ratio, 1.0),))

    return verdict_of


@pytest.mark.parametrize("reads_cells", [False, True])
@pytest.mark.parametrize("largest", [2.9, 7.0])
def test_the_cell_with_the_largest_ratio_of_a_sound_engine_is_named(reads_cells, largest) -> None:
    ratios = [1.0] * 5 + [largest] + [1.1] * 10
    result = located(16, with_ratios(*ratios), reads_cells=reads_cells)
    assert result.outcome is LocationOutcome.NO_FAULT and result.largest_piece.cells == (5,)
    text = result.describe_largest_ratio([f"k{index}" for index in range(16)])
    assert "k5" in text and ("exceeds the bound" if largest > FAULT_FACTOR else "within the bound") in text
    assert sum(not piece.is_read for piece, _ in result.verdicts) <= 1 + (1 if reads_cells else MAX_RATIO_BUILDS)


def test_the_largest_ratio_is_that_of_a_larger_piece_where_its_parts_are_not_comparable() -> None:
    verdict_of = with_ratios(*[1.0] * 5, 2.9, *[1.0] * 2)
    result = located(8, lambda piece: OTHER if 5 in piece.cells and len(piece.cells) < 4 else verdict_of(piece))
    assert result.largest_piece.cells == (4, 5, 6, 7)
    assert "smaller parts are not comparable" in result.describe_largest_ratio(["k"] * 8)
    limited = located(64, with_ratios(*[1.0] * 40, 2.9, *[1.0] * 23), max_builds=3)
    assert limited.is_limit_reached and 40 in limited.largest_piece.cells and len(limited.verdicts) == 4


def test_a_sound_engine_whose_rebuild_is_faulty_is_unstable() -> None:
    result = located(8, lambda piece: FAULTY if piece.rebuild else SOUND, reads_cells=True)
    assert result.outcome is LocationOutcome.UNSTABLE and "0 of 1 agree" in result.describe_outcome([])


def test_cells_that_can_be_read_need_no_halves() -> None:
    result = located(16, shown_by(4), reads_cells=True)
    assert result.piece.cells == (4,) and len(result.verdicts) == 4 + 5
    assert all(piece.is_read for piece, _ in result.verdicts[4:])


RNG = np.random.default_rng(0)
EXACT = RNG.standard_normal((4, 8, 16))


def fault(engine: np.ndarray, precision: Precision = Precision.FP16, simulated: np.ndarray | None = None):
    return measure_output_fault("y", EXACT, engine, EXACT.astype(np.float16) if simulated is None else simulated,
                                precision)


def test_rounding_is_no_fault_and_four_times_of_it_is_one() -> None:
    noise = RNG.standard_normal(EXACT.shape) * fault(EXACT.astype(np.float16)).predicted
    for factor, state in ((1.0, SOUND), (FAULT_FACTOR - 0.5, SOUND), (FAULT_FACTOR + 0.5, FAULTY)):
        assert judge_outputs([fault(EXACT + factor * noise)]).state is state


def test_a_result_as_exact_as_the_type_allows_is_sound_if_the_simulation_is_exact() -> None:
    assert judge_outputs([fault(EXACT.astype(np.float32), Precision.FP32, EXACT)]).state is SOUND
    assert judge_outputs([fault(EXACT.astype(np.float16), Precision.FP32, EXACT)]).state is FAULTY


def test_one_wrong_sample_of_a_batch_counts_and_is_named() -> None:
    engine = EXACT.copy()
    rounding = fault(EXACT.astype(np.float16)).predicted
    engine[2] += 6 * rounding
    item = fault(engine)
    assert item.actual / item.predicted < FAULT_FACTOR < item.by_row[2] and judge_outputs([item]).state is FAULTY
    assert int(np.argmax(item.by_row)) == 2 and len(item.by_channel) == 8


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_inf_are_faults_unless_fp64_has_them(value) -> None:
    engine = EXACT.astype(np.float16).astype(np.float64)
    engine[0, 0, 0] = value
    item = fault(engine)
    assert item.nonfinite_count == 1 and judge_outputs([item]).state is FAULTY and "NaN or Inf" in item.description
    overflow = fault(engine, simulated=engine)
    assert overflow.is_overflow and "range of the type" in overflow.description
    elsewhere = EXACT.copy()
    elsewhere[1, 0, 0] = value
    assert not fault(engine, simulated=elsewhere).is_overflow, "the simulation has it at another element"
    reference = EXACT.copy()
    reference[0, 0, 0] = value
    own = measure_output_fault("y", reference, engine, engine, Precision.FP16)
    assert not own.nonfinite_count and judge_outputs([own]).state is SOUND


def test_rows_differ_only_if_fp64_does_not() -> None:
    equal = np.repeat(EXACT[:1], 4, axis=0)
    unequal = equal.copy()
    unequal[3, 0, 0] = np.nextafter(unequal[3, 0, 0], 9)
    assert find_unequal_rows({"y": unequal}, {"y": equal}) == ["y"]
    assert find_unequal_rows({"y": equal}, {"y": equal}) == [] == find_unequal_rows({"y": unequal}, {"y": EXACT})


def test_cells_that_cannot_be_read_are_cut_out() -> None:
    result = located(16, lambda piece: OTHER if piece.is_read else shown_by(9)(piece), reads_cells=True)
    assert result.outcome is LocationOutcome.FOUND and result.piece.cells == (9,)


def test_an_engine_whose_rebuilds_are_sound_is_the_fault_of_that_build() -> None:
    result = located(8, lambda piece: SOUND if piece.rebuild else FAULTY)
    assert result.outcome is LocationOutcome.UNSTABLE and "0 of 3 agree" in result.describe_outcome([])


def test_no_build_begins_that_would_end_after_the_limit_of_time() -> None:
    limit = TimeLimit(100.0, time.monotonic() - 40.0)
    assert limit.has_time() and limit.can_build()
    limit.last_build_s = 70.0
    assert limit.has_time() and not limit.can_build()
    assert not TimeLimit(0.0).has_time() and TimeLimit(None, 0.0, 1e9).can_build()
