"""The registry of the kinds of move, by their words in files. A new kind is a class and one entry in the
registry."""

from trt_tui.core.moves.constant_moves import BiasCorrectionMove, RoundingMove
from trt_tui.core.moves.layer_moves import BarrierMove, KeepMove, PrecisionMove, RangeMove, RewriteMove
from trt_tui.core.moves.move import Move
from trt_tui.core.moves.scaling_moves import AttentionScaleMove, EqualizationMove, SmoothQuantMove

MOVE_KINDS: dict[str, type[Move]] = {
    kind.kind: kind
    for kind in (KeepMove, PrecisionMove, RewriteMove, AttentionScaleMove, SmoothQuantMove,
                 EqualizationMove, RangeMove, RoundingMove, BiasCorrectionMove, BarrierMove)
}
"""The kinds of move in the order of files and reports. If several moves set the precision of a group, the first kind in
this order decides. Edits of one constant apply in this order: a rounding is behind all other edits of weights."""
