"""Tries other ranges before higher precisions, since a range costs nothing at run time.

Source: setting ranges by the error that they cause (Nagel et al., "A White Paper on Neural Network Quantization",
2021), here the error at the judged outputs. It is a coordinate descent over groups, the most suspicious first, among
the ranges that the calibration methods propose.
"""

from collections.abc import Generator, Mapping

from trt_tui.core.moves.range_choice import RangeChoice
from trt_tui.core.search.board import Board
from trt_tui.core.search.evaluation import Evaluation, Trial
from trt_tui.core.search.space import Space

LEAST_GAIN = 0.01
"""Groups that own less of the error than this are skipped."""


def improve_ranges(board: Board, space: Space, trying: Mapping[str, Mapping[str, float]]
                   ) -> Generator[Trial, Evaluation, None]:
    """Sets ``board.ranges`` to what lowers the loss, with one evaluation for each method and group that reads codes.

    Args:
        trying: amax by tensor and method.
    """
    best = yield Trial(frozenset())
    for name in board.suspects():
        if best.passed:
            return
        group = space.network.group(name)
        read = group.ranged(space.start.precision_of(group))
        if not read:
            continue
        if board.ranking.shares and board.ranking.shares.get(name, 0.0) < LEAST_GAIN:
            continue
        tensors = dict.fromkeys(site.tensor for site in read)
        methods = dict.fromkeys(method for tensor in tensors for method in trying.get(tensor, ()))
        for method in methods:
            choices = {tensor: RangeChoice(trying[tensor][method], method)
                       for tensor in tensors if method in trying.get(tensor, ())}
            tried = yield Trial(frozenset(), {**board.ranges, **choices}, about=name)
            if tried.error < best.error or tried.passed:
                best = tried
        board.ranges = dict(best.ranges)
