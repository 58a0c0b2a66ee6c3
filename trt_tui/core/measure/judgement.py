"""Whether a config meets its tolerances, and by how much: what a search goes by."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trt_tui.core.measure.comparison import Verdict
from trt_tui.core.measure.target import Target
from trt_tui.core.measure.target_result import Outcome, TargetResult, judge_accuracy
from trt_tui.errors import InputError


@dataclass(frozen=True)
class Judgement:
    """What the caller says of one config.

    Attributes:
        passed: Whether it meets every tolerance, which PASS and PASS? do.
        score: Higher is better; the signed margin to the tolerance if there is one (0 is just enough).
        verdict: What was judged.
        loss: Lower is better; falls when groups are raised, by amounts that nearly add up. The verdict's energy by
            default, or else the negative score.
        figure: What was measured, in words with its unit ("18.3 dB at logits").
        scores: One for each tolerance if there are several; the least is ``score``.
        result: By the tolerances and the user's command; None where ``passed`` alone is known.
    """

    passed: bool
    score: float
    verdict: Verdict | None = None
    loss: float | None = None
    figure: str = ""
    scores: tuple[float, ...] = ()
    result: TargetResult | None = None

    @property
    def target_result(self) -> TargetResult:
        """The outcome with its reasons."""
        return self.result or TargetResult(Outcome.PASS if self.passed else Outcome.FAIL)

    @property
    def error(self) -> float:
        """The loss as strategies use it; infinite where it is not a number."""
        loss = self.loss
        if loss is None and self.verdict is not None:
            loss = self.verdict.energy
        if loss is None:
            loss = -self.score
        return math.inf if math.isnan(loss) else loss


@dataclass(frozen=True)
class HeldOut:
    """The simulation of the config that was found, on samples that the search has not used.

    Attributes:
        judgement: By the tolerances; a metric is compared with FP32's on these samples.
        samples: How many samples these are.
        chosen_on: On how many samples the config was chosen.
    """

    judgement: Judgement
    samples: int
    chosen_on: int


def judge(targets: Sequence[Target], verdict: Verdict) -> Judgement:
    """Judges a verdict by targets that must all be met; the score is the lowest of them, the loss the largest noise.

    A run that fails whatever its values are has the score and the loss of one with NaN.

    Raises:
        InputError: what a target needs was not measured.
    """
    result = judge_accuracy(targets, verdict)
    if result is None:
        unknown = next(target for target in targets if target.reached(verdict) is None)
        raise InputError(f"it is not known whether {unknown.text} is met", f"no {unknown.kind} was measured",
                         "Give labels and --metric, judge that output, or bound another figure.")
    noises = [noise for target in targets if (noise := target.noise(verdict)) is not None]
    loss = max(noises) if noises else None
    scores = tuple(score for target in targets if (score := target.score(verdict)) is not None)
    if any(caveat.fails for caveat in verdict.caveats):
        scores, loss = (-math.inf,) * len(scores), math.inf
    figure = ", ".join(target.measured(verdict) + (f" at {target.output}" if target.output is not None else "")
                       for target in targets)
    return Judgement(result.outcome.passes, min(scores), verdict, loss, figure, scores, result)
