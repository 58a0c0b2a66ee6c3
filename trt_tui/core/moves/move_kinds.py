"""The kinds of move, by the word for each in files. A new kind is a module of its own and one entry here."""

from trt_tui.core.moves.barrier_move import BarrierMove
from trt_tui.core.moves.bias_correction_move import BiasCorrectionMove
from trt_tui.core.moves.keep_move import KeepMove
from trt_tui.core.moves.move import Move
from trt_tui.core.moves.precision_move import PrecisionMove
from trt_tui.core.moves.range_move import RangeMove
from trt_tui.core.moves.rewrite_move import RewriteMove
from trt_tui.core.moves.smoothquant_move import SmoothQuantMove

MOVE_KINDS: dict[str, type[Move]] = {
    kind.kind: kind
    for kind in (KeepMove, PrecisionMove, RewriteMove, SmoothQuantMove, RangeMove, BiasCorrectionMove, BarrierMove)
}
"""In the order in which files and reports show them; where several say what a group runs in, the first counts."""
