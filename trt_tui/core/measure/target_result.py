"""Whether an accuracy meets its targets: the one rule for PASS, PASS?, FAIL? and FAIL.

- PASS: every value lies on the passing side with its whole confidence interval, and no caveat counts.
- PASS?: every value passes, but that is not certain for one of them, or a caveat counts.
- FAIL?: a value fails, but that is not certain.
- FAIL: a value fails with certainty, or a caveat that fails the run is present.

A value is certain if its 95 % interval lies on one side of the bound. There is no interval while samples are still to
be measured, and with fewer samples than `trt_tui.core.measure.bootstrap.FEWEST`. NaN and Inf fail with certainty.

A maximum has no interval: samples that were not measured may be larger by any amount. Two statements hold all the same.
A maximum beyond its bound stays beyond it whatever is measured in addition, so that it fails with certainty. And the
next sample exceeds the largest of n with a probability of 1/(n + 1) at most, so that a maximum within its bound passes
with certainty from `MAXIMUM_SAMPLES` samples on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from trt_tui.core.measure.bootstrap import FEWEST
from trt_tui.core.measure.comparison import Caveat, Verdict
from trt_tui.core.measure.scoring import SCRAMBLED, SHUFFLED
from trt_tui.core.measure.target import Target
from trt_tui.words import plural, visible

MAXIMUM_SAMPLES = 19
"""With so many samples the next one exceeds their largest error with a probability of 5 % at most."""

MEANINGLESS = {SHUFFLED: "each sample is given the reference's outputs of another sample",
               SCRAMBLED: "the values of the reference's outputs are put in any order"}
"""What was done to the outputs of runs that mean nothing."""

MAX_REASONS = 6
"""Reasons that are told of a result."""


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
    """The outcome of a run against its targets, with the reasons for a question mark or a failure.

    A failure whose value says enough, since it lies beyond the bound with certainty, has none.
    """

    outcome: Outcome
    reasons: tuple[str, ...] = ()

    @property
    def passes(self) -> bool:
        """True for PASS and PASS?."""
        return self.outcome.passes

    @property
    def text(self) -> str:
        """The outcome with its reasons: "PASS?: 5 samples are too few for a confidence interval (8 are needed)"."""
        return ": ".join(filter(None, (self.outcome.value, "; ".join(self.reasons))))


def judge_accuracy(targets: Sequence[Target], accuracy: Verdict) -> TargetResult | None:
    """Returns the outcome of an accuracy against targets that must all be met.

    None if no target is given, or if a value that a target needs was not measured.
    """
    targets = [each for target in targets for each in target.each(accuracy)]
    reached = [target.reached(accuracy) for target in targets]
    if not targets or None in reached:
        return None
    several = len(targets) > 1
    failing = [caveat.text for caveat in accuracy.caveats if caveat.fails]
    if failing:
        values = replace(accuracy, caveats=())  # such a run reaches no target, and only its values tell which it misses
        misses = [_miss(target, accuracy, True) for target in targets if target.reached(values) is False]
        return TargetResult(Outcome.FAIL, _unique([*failing, *filter(None, misses)]))
    doubts = [_doubts(target, accuracy, several) for target in targets]
    missed = [(target, doubt) for target, met, doubt in zip(targets, reached, doubts, strict=True) if not met]
    if any(not doubt for _, doubt in missed):
        misses = [_miss(target, accuracy, False) for target, _ in missed]
        return TargetResult(Outcome.FAIL, _unique([*filter(None, misses)]))
    reasons = [reason for doubt in doubts for reason in doubt]
    if missed:
        return TargetResult(Outcome.UNCERTAIN_FAIL, _unique(reasons))
    reasons += [caveat.text for caveat in accuracy.caveats if _counts(caveat, targets, accuracy)]
    reasons += [caveat.text for target in targets if (caveat := _triviality(target, accuracy)) is not None]
    return TargetResult(Outcome.UNCERTAIN_PASS if reasons else Outcome.PASS, _unique(reasons))


def _miss(target: Target, accuracy: Verdict, besides: bool) -> str:
    """Why a target is missed; "" if its value alone says so, unless it is missed besides something else."""
    if accuracy.bad:
        return target.measured(accuracy)
    if target.figure(accuracy) is None:
        return f"{visible(target.shown)} is not defined: the outputs of the run or the reference are zero throughout"
    return f"{target.measured(accuracy)} misses {visible(target.shown)}" if besides else ""


def _doubts(target: Target, accuracy: Verdict, several: bool) -> tuple[str, ...]:
    """Why other samples could change whether a target is met; () if that is certain.

    Args:
        several: Name the target, since there are others.
    """
    met = target.reached(accuracy)
    if accuracy.bad or target.figure(accuracy) is None or target.kind == "max_abs" and not met:
        return ()
    if accuracy.samples < accuracy.total:
        return (f"measured on {accuracy.samples} of {plural(accuracy.total, 'sample')}",)
    about = f"{visible(target.shown)}: " if several else ""
    if target.kind == "max_abs":
        count = accuracy.samples
        return () if count >= MAXIMUM_SAMPLES else (
            f"{about}another sample exceeds the largest error of {plural(count, 'sample')} with a probability of up to "
            f"{100 / (count + 1):.0f} % ({MAXIMUM_SAMPLES} samples are needed)",)
    if accuracy.samples < FEWEST:
        verb = "is" if accuracy.samples == 1 else "are"
        return (f"{plural(accuracy.samples, 'sample')} {verb} too few for a confidence interval ({FEWEST} are needed)",)
    if target.interval(accuracy) is None:
        return (about + _without_interval(target, accuracy),)
    if target.side(accuracy) is met:
        return ()
    return (f"{about}the 95 % interval {target.between(accuracy)} spans the target",)


def _without_interval(target: Target, accuracy: Verdict) -> str:
    """Why a value has no interval although there are enough samples."""
    spread = accuracy.spread
    if target.kind == "metric" and spread is not None and spread.draws is None:
        return "the confidence interval of the metric is not measured"
    if target.kind == "metric" and spread is not None and spread.draws:
        return "the metric has no confidence interval: it fails, or never changes, on resamples"
    return f"fewer than {FEWEST} batches are too few for a confidence interval, since samples cannot be told apart"


def _counts(caveat: Caveat, targets: Sequence[Target], accuracy: Verdict) -> bool:
    """Returns True if a caveat applies at the margin of an accuracy.

    A gap in dB says nothing of values that are no noise, so it always counts where one of them is bounded.
    """
    if caveat.gap_db is None:
        return True
    return any(target.noise(accuracy) is None or (score := target.score(accuracy)) is None or score < caveat.gap_db
               for target in targets)


def _triviality(target: Target, accuracy: Verdict) -> Caveat | None:
    """A caveat if a run meets the target whose outputs mean nothing."""
    for kind, done in MEANINGLESS.items():
        run = accuracy.meaningless.get(kind)
        if run is not None and target.reached(run):
            return Caveat("trivial target", f"{visible(target.shown)} is met even if {done} ({target.measured(run)})")
    return None


def _unique(reasons: Sequence[str]) -> tuple[str, ...]:
    """The reasons, each once; of many, such as one for each part of a metric, the first ones."""
    found = tuple(dict.fromkeys(reasons))
    return found if len(found) <= MAX_REASONS else (
        *found[:MAX_REASONS - 1], f"{len(found) - MAX_REASONS + 1} more reasons")
