"""The comparison of an accuracy with its targets: the only rule for PASS, PASS?, FAIL? and FAIL.

- PASS: every value passes with its whole confidence interval, and no caveat counts.
- PASS?: every value passes, but one of them without certainty, or a caveat counts.
- FAIL?: a value fails, but without certainty.
- FAIL: a value fails with certainty, or there is a caveat that fails the run.

A value is certain if its 95 % interval is on one side of the bound. There is no interval while samples are still to be
measured, and with fewer samples than `trt_tui.core.measure.bootstrap.MIN_SAMPLES`. NaN and Inf fail with certainty.

A maximum has no interval, because a sample that was not measured may be larger by any amount. Two statements hold
nevertheless. A maximum beyond its bound stays beyond it with any further sample, so it fails with certainty. The next
sample exceeds the largest of n with a probability of at most 1/(n + 1). So a maximum within its bound passes with
certainty from `MIN_SAMPLES_OF_MAXIMUM` samples on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from trt_tui.core.measure.bootstrap import MIN_SAMPLES
from trt_tui.core.measure.results import Accuracy, Caveat
from trt_tui.core.measure.target import Target
from trt_tui.core.measure.user_metric import SCRAMBLED, SHUFFLED
from trt_tui.errors import InputError
from trt_tui.formatting import counted_noun_text, escape_hidden_characters, mark_figures_as_simulated

MIN_SAMPLES_OF_MAXIMUM = 19
"""The number of samples from which on the next one exceeds their largest error with a probability of at most 5 %."""

MEANINGLESS_OUTPUT_CHANGES = {SHUFFLED: "each sample is given the reference's outputs of another sample",
                              SCRAMBLED: "the values of the reference's outputs are put in any order"}
"""The changes that make the outputs of the reference meaningless, in words."""

MIN_RESEMBLING_COSINE = 0.9
"""The cosine to FP32 below which an output no longer resembles that of FP32. At this cosine, the energy of the error is
about a fifth of the energy of the output."""

MAX_REASONS = 6
"""The maximum number of reasons in a result."""


class Outcome(StrEnum):
    """The outcome of a run against its targets: pass or fail, with or without certainty."""

    PASS = "PASS"
    UNCERTAIN_PASS = "PASS?"
    UNCERTAIN_FAIL = "FAIL?"
    FAIL = "FAIL"

    @property
    def passes(self) -> bool:
        """True for PASS and PASS?. Only these outcomes lead to exit code 0."""
        return self in (Outcome.PASS, Outcome.UNCERTAIN_PASS)


@dataclass(frozen=True)
class TargetOutcome:
    """The outcome of a run against its targets, with the reasons for a question mark or a failure.

    There are no reasons for a failure whose value is beyond the bound with certainty.
    """

    outcome: Outcome
    reasons: tuple[str, ...] = ()

    @property
    def passes(self) -> bool:
        return self.outcome.passes

    def with_doubt(self, reason: str) -> TargetOutcome:
        """Returns a pass with a reason for doubt as PASS?; any other outcome unchanged, and so with reason ""."""
        if not reason or not self.passes:
            return self
        return TargetOutcome(Outcome.UNCERTAIN_PASS, tuple(dict.fromkeys((*self.reasons, reason))))

    @property
    def text(self) -> str:
        """The outcome with its reasons: "PASS?: 5 samples are too few for a confidence interval (8 are needed)"."""
        return ": ".join(filter(None, (self.outcome.value, "; ".join(self.reasons))))


def judge_accuracy(targets: Sequence[Target], accuracy: Accuracy) -> TargetOutcome | None:
    """Returns the outcome of an accuracy against targets that must all be met.

    None if there is no target, or if a value that a target needs was not measured.
    """
    targets = [
        part_target for bounding_target in targets for part_target in bounding_target.split_into_part_targets(accuracy)
    ]
    met_flags = [bounding_target.is_met_by(accuracy) for bounding_target in targets]
    if not targets or None in met_flags:
        return None
    several = len(targets) > 1
    failing = [caveat.text for caveat in accuracy.caveats if caveat.fails_run]
    if failing:
        values = replace(accuracy, caveats=())  # this run misses every target; its values alone show which they miss
        misses = [
            _missed_target_reason(bounding_target, accuracy, True)
            for bounding_target in targets
            if bounding_target.is_met_by(values) is False
        ]
        return TargetOutcome(Outcome.FAIL, _limit_reason_count([*failing, *filter(None, misses)]))
    doubts = [_uncertainty_reasons(bounding_target, accuracy, several) for bounding_target in targets]
    missed = [(bounding_target, doubt)
              for bounding_target, met, doubt in zip(targets, met_flags, doubts, strict=True)
              if not met]
    if any(not doubt for _, doubt in missed):
        misses = [_missed_target_reason(bounding_target, accuracy, False) for bounding_target, _ in missed]
        return TargetOutcome(Outcome.FAIL, _limit_reason_count([*filter(None, misses)]))
    reasons = [reason for doubt in doubts for reason in doubt]
    if missed:
        return TargetOutcome(Outcome.UNCERTAIN_FAIL, _limit_reason_count(reasons))
    reasons += [caveat.text for caveat in accuracy.caveats if _is_caveat_relevant(caveat, targets, accuracy)]
    reasons += [
        caveat.text
        for bounding_target in targets
        if (caveat := _find_trivial_target_caveat(bounding_target, accuracy)) is not None
    ]
    reasons += filter(None, (_lost_resemblance_reason(bounding_target, accuracy) for bounding_target in targets))
    return TargetOutcome(Outcome.UNCERTAIN_PASS if reasons else Outcome.PASS, _limit_reason_count(reasons))


def _missed_target_reason(target: Target, accuracy: Accuracy, has_other_failure: bool) -> str:
    """Returns the reason why a target is missed; "" if the measured value says enough.

    Args:
        has_other_failure: True if the run also fails for another reason. The value is then named too.
    """
    if accuracy.nonfinite_count:
        return target.measured_value_text(accuracy)
    if target.measured_value(accuracy) is None:
        return (
            f"{escape_hidden_characters(target.description)} is not defined: the outputs of the run or the reference "
            f"are zero "
            f"throughout")
    return (f"{target.measured_value_text(accuracy)} misses {escape_hidden_characters(target.description)}"
            if has_other_failure else "")


def _uncertainty_reasons(target: Target, accuracy: Accuracy, has_several_targets: bool) -> tuple[str, ...]:
    """Returns the reasons why other samples could change the result of a target; () if the result is certain.

    Args:
        has_several_targets: True if there are other targets, so that the reasons name this one.
    """
    met = target.is_met_by(accuracy)
    is_maximum = target.error_metric is not None and target.error_metric.is_maximum
    if accuracy.nonfinite_count or target.measured_value(accuracy) is None or is_maximum and not met:
        return ()
    if accuracy.samples < accuracy.total:
        return (f"measured on {accuracy.samples} of {counted_noun_text(accuracy.total, 'sample')}",)
    about = f"{escape_hidden_characters(target.description)}: " if has_several_targets else ""
    if is_maximum:
        count = accuracy.samples
        return (() if count >= MIN_SAMPLES_OF_MAXIMUM else (
            f"{about}another sample exceeds the largest error of "
            f"{counted_noun_text(count, 'sample')} with a probability of up to "
            f"{100 / (count + 1):.0f} % ({MIN_SAMPLES_OF_MAXIMUM} samples are needed)", ))
    if accuracy.samples < MIN_SAMPLES:
        verb = "is" if accuracy.samples == 1 else "are"
        return ((
            f"{counted_noun_text(accuracy.samples, 'sample')} "
            f"{verb} too few for a confidence interval ({MIN_SAMPLES} are needed)",
        ))
    if target.confidence_interval(accuracy) is None:
        return (about + _missing_interval_reason(target, accuracy),)
    if target.is_met_by_whole_interval(accuracy) is met:
        return ()
    return (f"{about}the 95 % interval {target.confidence_interval_text(accuracy)} spans the target",)


def _missing_interval_reason(target: Target, accuracy: Accuracy) -> str:
    """Returns the reason why a value has no confidence interval although there are enough samples."""
    spread = accuracy.intervals
    if target.kind == "metric" and spread is not None and spread.metric_draws is None:
        return "the confidence interval of the metric is not measured"
    if target.kind == "metric" and spread is not None and spread.metric_draws:
        return "the metric has no confidence interval: it fails, or never changes, on resamples"
    return f"fewer than {MIN_SAMPLES} batches are too few for a confidence interval, since samples cannot be told apart"


def _is_caveat_relevant(caveat: Caveat, targets: Sequence[Target], accuracy: Accuracy) -> bool:
    """Returns True if a caveat makes the outcome of an accuracy uncertain at its margin to the targets.

    A gap in dB cannot be compared with values that are not noise, so a caveat always counts if a target bounds one.
    """
    if caveat.gap_db is None:
        return True
    return any(
        bounding_target.normalized_loss(accuracy) is None or (
            score := bounding_target.margin_score(accuracy)) is None or score < caveat.gap_db
        for bounding_target in targets)


def _find_trivial_target_caveat(target: Target, accuracy: Accuracy) -> Caveat | None:
    """Returns a caveat if even meaningless outputs, such as those of other samples, meet the target; None if not."""
    for kind, done in MEANINGLESS_OUTPUT_CHANGES.items():
        run = accuracy.meaningless_accuracies.get(kind)
        if run is not None and target.is_met_by(run):
            return (Caveat(
                "trivial target",
                f"{escape_hidden_characters(target.description)} is met even if "
                f"{done} ({target.measured_value_text(run)})"
            ))
    return None


def _lost_resemblance_reason(target: Target, accuracy: Accuracy) -> str:
    """Returns the reason for doubt in a metric or an agreement whose outputs no longer resemble those of FP32; "" if
    there is none."""
    cosines = [(output.errors.cosine, name) for name, output in accuracy.outputs.items()
               if output.errors.cosine is not None]
    lowest_cosine, name = min(cosines, default=(1.0, ""))
    if target.error_metric is not None or lowest_cosine >= MIN_RESEMBLING_COSINE:
        return ""
    return (f"{escape_hidden_characters(name)} no longer resembles the output of FP32 (cosine {lowest_cosine:.2f}), "
            "although the metric passes")


def _limit_reason_count(reasons: Sequence[str]) -> tuple[str, ...]:
    """Returns the distinct reasons, at most `MAX_REASONS` of them."""
    unique_reasons = tuple(dict.fromkeys(reasons))
    return unique_reasons if len(unique_reasons) <= MAX_REASONS else (
        *unique_reasons[:MAX_REASONS - 1], f"{len(unique_reasons) - MAX_REASONS + 1} more reasons")


@dataclass(frozen=True)
class TargetResult:
    """The result of one config against the targets, with the scores by which a search compares configs.

    Attributes:
        passes: True if the config meets every tolerance, as PASS and PASS? do.
        lowest_score: The signed margin to the tolerance if there is one (0 just meets it); higher is better.
        accuracy: The accuracy that was judged.
        loss: A value that falls when groups are raised, by amounts that nearly add up; lower is better. By default the
            judged error of the accuracy, or the negative score if there is none.
        value_text: The measured value as a text with its unit ("18.3 dB at logits").
        target_scores: The score of each tolerance if there are several; the lowest is ``lowest_score``.
        measured_outcome: The outcome by the tolerances and the user's command; None if only ``passes`` is known.
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
        return self.measured_outcome or TargetOutcome(Outcome.PASS if self.passes else Outcome.FAIL)

    @property
    def comparable_loss(self) -> float:
        """The loss that search strategies compare; infinite if it is NaN."""
        loss = self.loss
        if loss is None and self.accuracy is not None:
            loss = self.accuracy.judged_error
        if loss is None:
            loss = -self.lowest_score
        return math.inf if math.isnan(loss) else loss


@dataclass(frozen=True)
class HeldOutValue:
    """The value that one target bounds, on the samples of a search and on held-out samples.

    Attributes:
        target: The text of the target.
        searched: The value on the samples of the search as a text, ``held_out`` on the held-out samples.
        searched_interval: The 95 % confidence interval of a value as a text; "" if it is unknown.
    """

    target: str
    searched: str
    searched_interval: str
    held_out: str
    held_out_interval: str


@dataclass(frozen=True)
class HeldOutResult:
    """The simulated result of the config that a search found, on samples that the search has not used.

    Attributes:
        target_result: The result against the tolerances; a metric is compared with that of FP32 on these samples.
        sample_count: Number of these samples.
        search_samples: Number of samples on which the search chose the config.
        values: The values of the targets on both.
    """

    target_result: TargetResult
    sample_count: int
    search_samples: int
    values: tuple[HeldOutValue, ...] = ()

    @property
    def miss_text(self) -> str:
        """The reason for doubt in a result that misses the target on held-out samples; "" if it meets the target."""
        if self.target_result.passes:
            return ""
        values = ", ".join(
            mark_figures_as_simulated(value.held_out) + (f" ({value.held_out_interval})" if value.held_out_interval
                                                         else "")
            for value in self.values) or mark_figures_as_simulated(self.target_result.value_text)
        return (f"on {counted_noun_text(self.sample_count, 'held-out sample')}, which the search has not used, it "
                f"misses the target: {values}")


def check_targets(targets: Sequence[Target], accuracy: Accuracy) -> TargetResult:
    """Judges an accuracy by targets that must all be met. The score is the lowest of all targets, the loss the largest.

    A run that fails whatever its values are has the score and the loss of a run with NaN.

    Raises:
        InputError: a value that a target needs was not measured.
    """
    result = judge_accuracy(targets, accuracy)
    if result is None:
        unknown = next(bound_target for bound_target in targets if bound_target.is_met_by(accuracy) is None)
        raise InputError(f"{unknown.text} cannot be checked", f"{unknown.kind} was not measured",
                         "Give labels and --metric, judge that output, or bound another value.")
    noises = [noise for bound_target in targets if (noise := bound_target.normalized_loss(accuracy)) is not None]
    loss = max(noises) if noises else None
    scores = tuple(score for bound_target in targets if (score := bound_target.margin_score(accuracy)) is not None)
    if any(caveat.fails_run for caveat in accuracy.caveats):
        scores, loss = (-math.inf,) * len(scores), math.inf
    figure = ", ".join(bound_target.measured_value_text(accuracy) for bound_target in targets)
    return TargetResult(result.outcome.passes, min(scores), accuracy, loss, figure, scores, result)
