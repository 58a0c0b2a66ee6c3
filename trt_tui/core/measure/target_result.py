"""Whether an accuracy meets its targets: the one rule for PASS, PASS?, FAIL? and FAIL.

- PASS: every value lies on the passing side with its whole confidence interval, and no caveat counts.
- PASS?: every value passes, but an interval spans its bound or a caveat counts.
- FAIL?: a value fails, and its interval spans the bound.
- FAIL: a value fails with its whole interval, or a caveat that fails the run is present.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from trt_tui.core.measure.comparison import Caveat, Verdict
from trt_tui.core.measure.judgement import Judgement
from trt_tui.core.measure.target import Target


class Outcome(str, Enum):
    """The result of a run against its targets."""

    PASS = "PASS"
    UNCERTAIN_PASS = "PASS?"
    UNCERTAIN_FAIL = "FAIL?"
    FAIL = "FAIL"

    @property
    def passes(self) -> bool:
        """True for PASS and PASS?; the exit code is 0 for these alone."""
        return self in (Outcome.PASS, Outcome.UNCERTAIN_PASS)


@dataclass(frozen=True)
class TargetResult:
    """The outcome of a run against its targets, with the reasons for a question mark or a failure."""

    outcome: Outcome
    reasons: tuple[str, ...] = ()


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


def judge_accuracy(targets: Sequence[Target], accuracy: Verdict) -> TargetResult | None:
    """Returns the outcome of an accuracy against targets that must all be met.

    None if no target is given, or if a value that a target needs was not measured.
    """
    if not targets or any(target.reached(accuracy) is None for target in targets):
        return None
    failing = [caveat for caveat in accuracy.caveats if caveat.fails]
    missed = [target for target in targets if not target.reached(accuracy)]
    unsettled = [target for target in targets if not target.settled(accuracy)]
    if failing or any(target not in unsettled for target in missed):
        return TargetResult(Outcome.FAIL, tuple(caveat.text for caveat in failing))
    reasons = [f"the interval {target.between(accuracy)} spans the bound" for target in unsettled]
    if missed:
        return TargetResult(Outcome.UNCERTAIN_FAIL, tuple(reasons))
    reasons += [caveat.text for caveat in accuracy.caveats if _counts(caveat, targets, accuracy)]
    return TargetResult(Outcome.UNCERTAIN_PASS if reasons else Outcome.PASS, tuple(reasons))


def _counts(caveat: Caveat, targets: Sequence[Target], accuracy: Verdict) -> bool:
    """Returns True if a caveat applies at the margin of an accuracy."""
    if caveat.gap_db is None:
        return True
    scores = [score for target in targets if (score := target.score(accuracy)) is not None]
    return not scores or min(scores) < caveat.gap_db
