"""The registry of the kinds of move, by their words in files. A new kind has its own module and one entry in the
registry."""

from trt_tui.core.moves.attention_scale_move import AttentionScaleMove
from trt_tui.core.moves.barrier_move import BarrierMove
from trt_tui.core.moves.bias_correction_move import BiasCorrectionMove
from trt_tui.core.moves.equalization_move import EqualizationMove
from trt_tui.core.moves.keep_move import KeepMove
from trt_tui.core.moves.move import Move
from trt_tui.core.moves.precision_move import PrecisionMove
from trt_tui.core.moves.range_move import RangeMove
from trt_tui.core.moves.rewrite_move import RewriteMove
from trt_tui.core.moves.rounding_move import RoundingMove
from trt_tui.core.moves.smoothquant_move import SmoothQuantMove

MOVE_KINDS: dict[str, type[Move]] = {
    kind.kind: kind
    for kind in (KeepMove, PrecisionMove, RewriteMove, AttentionScaleMove, SmoothQuantMove,
                 EqualizationMove, RangeMove, RoundingMove, BiasCorrectionMove, BarrierMove)
}
"""The kinds of move in the order of files and reports. If several moves set the precision of a group, the first kind in
this order decides. Edits of one constant apply in this order: a rounding is behind all other edits of weights."""
