"""Whether a config meets its tolerances, and by how much: what a search goes by."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trt_tui.core.measure.results import Accuracy
from trt_tui.core.measure.target import Target
from trt_tui.core.measure.target_outcome import Outcome, TargetOutcome, judge_accuracy
from trt_tui.errors import InputError


@dataclass(frozen=True)
class TargetResult:
    """What the caller says of one config.

    Attributes:
        passes: Whether it meets every tolerance, which PASS and PASS? do.
        lowest_score: Higher is better; the signed margin to the tolerance if there is one (0 is just enough).
        accuracy: What was judged.
        loss: Lower is better; falls when groups are raised, by amounts that nearly add up. The verdict's energy by
            default, or else the negative score.
        value_text: What was measured, in words with its unit ("18.3 dB at logits").
        target_scores: One for each tolerance if there are several; the least is ``lowest_score``.
        measured_outcome: By the tolerances and the user's command; None where ``passes`` alone is known.
    """

    passes: bool
    lowest_score: float
    accuracy: Accuracy | None = None
    loss: float | None = None
    value_text: str = ""
    target_scores: tuple[float, ...] = ()
    measured_outcome: TargetOutcome | None = None

    @property
    def target_outcome(self) -> TargetOutcome:
        """The outcome with its reasons."""
        return self.measured_outcome or TargetOutcome(Outcome.PASS if self.passes else Outcome.FAIL)

    @property
    def comparable_loss(self) -> float:
        """The loss as strategies use it; infinite where it is not a number."""
        loss = self.loss
        if loss is None and self.accuracy is not None:
            loss = self.accuracy.judged_error
        if loss is None:
            loss = -self.lowest_score
        return math.inf if math.isnan(loss) else loss


@dataclass(frozen=True)
class HeldOutResult:
    """The simulation of the config that was found, on samples that the search has not used.

    Attributes:
        target_result: By the tolerances; a metric is compared with FP32's on these samples.
        sample_count: How many samples these are.
        search_samples: On how many samples the config was chosen.
    """

    target_result: TargetResult
    sample_count: int
    search_samples: int


def check_targets(targets: Sequence[Target], accuracy: Accuracy) -> TargetResult:
    """Judges a verdict by targets that must all be met; the score is the lowest of them, the loss the largest noise.

    A run that fails whatever its values are has the score and the loss of one with NaN.

    Raises:
        InputError: what a target needs was not measured.
    """
    result = judge_accuracy(targets, accuracy)
    if result is None:
        unknown = next(bound_target for bound_target in targets if bound_target.is_met_by(accuracy) is None)
        raise InputError(f"it is not known whether {unknown.text} is met", f"no {unknown.kind} was measured",
                         "Give labels and --metric, judge that output, or bound another figure.")
    noises = [noise for bound_target in targets if (noise := bound_target.normalized_loss(accuracy)) is not None]
    loss = max(noises) if noises else None
    scores = tuple(score for bound_target in targets if (score := bound_target.margin_score(accuracy)) is not None)
    if any(caveat.fails_run for caveat in accuracy.caveats):
        scores, loss = (-math.inf,) * len(scores), math.inf
    figure = ", ".join(
        bound_target.measured_value_text(accuracy)
        + (f" at {bound_target.output_name}" if bound_target.output_name is not None else "")
        for bound_target in targets)
    return TargetResult(result.outcome.passes, min(scores), accuracy, loss, figure, scores, result)
