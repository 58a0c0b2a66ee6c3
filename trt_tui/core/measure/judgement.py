"""Whether a config meets its targets, and by how much."""

import math
from dataclasses import dataclass

from trt_tui.core.measure.comparison import Verdict


@dataclass(frozen=True)
class Judgement:
    """What the caller says of one config.

    Attributes:
        passed: Whether it meets every tolerance.
        score: Higher is better; the signed margin to the tolerance if there is one (0 is just enough).
        verdict: What was judged.
        loss: Lower is better; falls when groups are raised, by amounts that nearly add up. The verdict's energy by
            default, or else the negative score.
        figure: What was measured, in words with its unit ("18.3 dB at logits").
        scores: One for each tolerance if there are several; the least is ``score``.
    """

    passed: bool
    score: float
    verdict: Verdict | None = None
    loss: float | None = None
    figure: str = ""
    scores: tuple[float, ...] = ()

    @property
    def error(self) -> float:
        """The loss as strategies use it; infinite where it is not a number."""
        loss = self.loss
        if loss is None and self.verdict is not None:
            loss = self.verdict.energy
        if loss is None:
            loss = -self.score
        return math.inf if math.isnan(loss) else loss
