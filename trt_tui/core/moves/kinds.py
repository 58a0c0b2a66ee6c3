"""The kinds of move, by the word for each in files. A new kind is a module of its own and one entry here."""

from trt_tui.core.moves.barrier import Barrier
from trt_tui.core.moves.bias_correction import BiasCorrection
from trt_tui.core.moves.choice import Choice
from trt_tui.core.moves.keep import Keep
from trt_tui.core.moves.move import Move
from trt_tui.core.moves.range_choice import RangeChoice
from trt_tui.core.moves.rewrite import Rewrite
from trt_tui.core.moves.smooth import Smooth

KINDS: dict[str, type[Move]] = {
    kind.kind: kind for kind in (Keep, Choice, Rewrite, Smooth, RangeChoice, BiasCorrection, Barrier)}
"""In the order in which files and reports show them; where several say what a group runs in, the first counts."""
