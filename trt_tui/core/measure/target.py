"""Targets: bounds on the user's metric, on top-1 agreement, or on an error metric of one or the worst judged output.

An accuracy is compared with its targets here, by the only rule for PASS, PASS?, FAIL? and FAIL.

- PASS: every value passes with its whole confidence interval, and no caveat counts.
- PASS?: every value passes, but one of them without certainty, or a caveat counts.
- FAIL?: a value fails, but without certainty.
- FAIL: a value fails with certainty, or there is a caveat that fails the run.

A value is certain if its 95 % interval is on one side of the bound. There is no interval while samples are still to be
measured, and with fewer samples than `trt_tui.core.measure.error_metrics.MIN_SAMPLES`. NaN and Inf fail with certainty.

A maximum has no interval, because a sample that was not measured may be larger by any amount. Two statements hold
nevertheless. A maximum beyond its bound stays beyond it with any further sample, so it fails with certainty. The next
sample exceeds the largest of n with a probability of at most 1/(n + 1). So a maximum within its bound passes with
certainty from `MIN_SAMPLES_OF_MAXIMUM` samples on.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from trt_tui.core.measure.error_metrics import (
    ERROR_METRICS,
    MIN_SAMPLES,
    BoundedValue,
    ConfidenceInterval,
    ErrorMetric,
    ErrorMetrics,
)
from trt_tui.core.measure.judged_outputs import FLOAT_KIND, INTEGER_KIND, JudgedOutput, find_class_score_output
from trt_tui.core.measure.results import (
    DECISIVE_SAMPLES,
    PARTLY_JUDGED_OUTPUT,
    SIMULATION_GAP,
    STEADY_OUTPUT,
    Accuracy,
    Caveat,
)
from trt_tui.core.measure.simulation_limits import find_simulation_failure_reason
from trt_tui.core.measure.user_metric import SCRAMBLED, SHUFFLED
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.errors import InputError
from trt_tui.formatting import (
    agreement_text,
    counted_noun_text,
    escape_hidden_characters,
    mark_figures_as_simulated,
    metric_text,
    mismatch_text,
    name_list_text,
    number_text,
)

DEFAULT_SQNR_DB = 20.0
DEFAULT_AGREEMENT = 0.99
MIN_AGREEMENT_CLASSES = 10
"""The minimum number of classes for agreement as the default. With fewer classes it is too coarse."""

DEFAULT_METRIC_LOSS = 0.01
"""The loss of the FP32 network's metric that the default target allows, as a fraction."""

METRIC = BoundedValue(name="metric", title="metric", format_value=metric_text)
AGREEMENT = BoundedValue(
    name="agreement", title="top-1", description="top-1 agreement", is_share=True, format_value=agreement_text
)

ALL_PARTS = "*"
"""The part name that stands for each part of a metric."""

_TARGET_PATTERN = re.compile(
    r"\s*(?:(?P<output>\S.*):)?\s*(?P<kind>[^\W\d][^\s<>=:\[\]]*)(?:\[(?P<part>[^\[\]]+)\])?\s*(?P<sign>[<>]=)"
    r"\s*(?P<base>base\s*(?P<step>[-+])\s*)?(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?P<percent>\s*%)?\s*$"
)


def _suggest_target_text(target_text: str) -> str:
    """Returns the target without a unit and with >= or <= in place of another sign; "" if that is not a target."""
    text = re.sub(r"(?<=[0-9.])\s*[A-Za-z]+\s*$", "", re.sub(r"([<>])(?!=)|=([<>])", r"\1\2=", target_text)).strip()
    return text if text != target_text and _TARGET_PATTERN.match(text) else ""


def list_bounded_values() -> dict[str, BoundedValue]:
    """Returns all values that a target can bound, by name, except the names of a metric and its parts."""
    return {METRIC.name: METRIC, AGREEMENT.name: AGREEMENT, **ERROR_METRICS}


@dataclass(frozen=True)
class Target:
    """A bound on one value of an accuracy: an upper bound if lower is better, a lower bound if not.

    Attributes:
        kind: A name of `list_bounded_values`. An error metric of `ERROR_METRICS` is bounded at the worst judged output,
            or at ``output_name``.
        value: The bound; for "metric" with ``is_relative`` the difference from the metric of the FP32 network.
        is_relative: True if ``value`` is added to the baseline; with ``is_percent`` in percent of the baseline.
        base_values: The metric of the FP32 network and its parts, headline first; empty before it is measured.
        source: The text that the target was parsed from; "" if there is none.
        output_name: The judged output that is bounded; None for the worst one.
        part_name: The part of the metric that is bounded; None for the headline, `ALL_PARTS` for each part.
    """

    kind: str
    value: float
    is_relative: bool = False
    is_percent: bool = False
    base_values: Mapping[str, float] = field(default_factory=dict)
    source: str = ""
    output_name: str | None = None
    part_name: str | None = None

    @property
    def bounded_value(self) -> BoundedValue:
        return list_bounded_values()[self.kind]

    @property
    def error_metric(self) -> ErrorMetric | None:
        """The error metric that is bounded; None for "metric" and "agreement"."""
        return ERROR_METRICS.get(self.kind)

    @property
    def is_higher_better(self) -> bool:
        return self.bounded_value.is_higher_better

    @property
    def bound(self) -> float | None:
        """The value to reach; None until the FP32 baseline is known, and if each part of the metric has another bound."""
        if not self.is_relative:
            return self.value
        base = self.base_value
        if base is None:
            return None
        return base + (abs(base) * self.value / 100 if self.is_percent else self.value)

    @property
    def base_value(self) -> float | None:
        """The bounded value of the FP32 network; None until it is known."""
        return (
            next(iter(self.base_values.values()), None)
            if self.part_name is None
            else self.base_values.get(self.part_name)
        )

    def is_as_strict_as(self, other: Target) -> bool:
        """Returns True if the bound is at least as strict as that of another target of the same value."""
        difference = self.value - other.value
        is_same_value = replace(self, value=other.value, base_values={}, source=other.source) == replace(
            other, base_values={}
        )
        return is_same_value and (difference >= 0 if self.is_higher_better else difference <= 0)

    def split_into_part_targets(self, accuracy: Accuracy) -> list[Target]:
        """Returns one target for each part of the metric if this target bounds each part, and only this target if not."""
        target = self.with_baseline_of_samples(accuracy)
        if self.part_name != ALL_PARTS:
            return [target]
        return [
            replace(target, part_name=name, source="")
            for name in dict.fromkeys((*accuracy.metric, *accuracy.reference_metric) if accuracy.metric else ())
            if name in target.base_values or not self.is_relative
        ] or [target]

    def with_baseline_of_samples(self, accuracy: Accuracy) -> Target:
        """Returns this target with the baseline of the samples of an accuracy; this target if the accuracy has no
        baseline."""
        return (
            replace(self, base_values=dict(accuracy.reference_metric))
            if self.is_relative and accuracy.reference_metric
            else self
        )

    def _find_worst_part_target(self, accuracy: Accuracy) -> Target:
        """Returns the target of the worst part of the metric if this target bounds each part, and this target if not."""

        def margin(target: Target) -> float:
            value, bound_value = accuracy.metric.get(target.part_name or "", -math.inf), target.bound
            return value - bound_value if bound_value is not None else math.inf

        return min(self.split_into_part_targets(accuracy), key=margin)

    @property
    def text(self) -> str:
        """The target as written on the command line."""
        if self.source:
            return self.source
        kind = self.kind if self.part_name is None else f"{self.kind}[{self.part_name}]"
        if self.is_relative:
            return f"{kind}>=base{self.value:+g}{'%' if self.is_percent else ''}"
        if self.part_name is not None:
            return f"{kind}>={self.value:g}"
        output_prefix = f"{self.output_name}:" if self.output_name is not None else ""
        return f"{output_prefix}{self.kind}{_bound_sign(self.bounded_value)}{self.value:g}"

    @property
    def column_title(self) -> str:
        """The title of a column of the bounded value: ``SQNR``, ``top-1``, or the name of a metric or part."""
        if self.kind == "metric":
            name = next(iter(self.base_values), "metric") if self.part_name is None else self.part_name
            return "worst part" if self.part_name == ALL_PARTS else name.rpartition(".py:")[2]
        return self.bounded_value.title

    @property
    def description(self) -> str:
        """The target in words, such as "SQNR ≥ 20 dB"."""
        bound_value, output_text = self.bound, f" of {self.output_name}" if self.output_name else ""
        if (metric := self.error_metric) is not None:
            unit_text = f" {metric.unit}" if metric.unit else ""
            sign = "≥" if metric.is_higher_better else "≤"
            return f"{metric.description or metric.title}{output_text} {sign} {self.value:g}{unit_text}"
        if self.kind == "agreement":
            return f"{AGREEMENT.description} ≥ {100 * self.value:g}%"
        if self.part_name == ALL_PARTS and self.is_relative:
            return self.relative_description
        name = "each part" if self.part_name == ALL_PARTS else self.column_title
        return f"{name} ≥ {metric_text(bound_value)}" if bound_value is not None else self.text

    @property
    def relative_description(self) -> str:
        """The target in words; if it is relative to FP32, as the distance from FP32 instead of the bound."""
        if not self.is_relative:
            return self.description
        name = "each part" if self.part_name == ALL_PARTS else self.column_title
        return f"{name} ≥ FP32{self.value:+g}{' %' if self.is_percent else ''}"

    def with_base_values(self, base_values: Mapping[str, float], covers_all_samples: bool = True) -> Target:
        """Returns this target with the metric of the FP32 network and its parts as the baseline.

        Args:
            covers_all_samples: True if the values are those of all samples. A part that is absent then does not exist.

        Raises:
            InputError: the metric has no such part.
        """
        part = self.part_name
        headline = next(iter(base_values), "")
        if part in (headline, headline.rpartition(":")[2]):
            part = None
        elif part is not None and part not in (ALL_PARTS, *base_values) and base_values and covers_all_samples:
            names = (*base_values, *list_bounded_values())
            near = difflib.get_close_matches(part, names, 3, 0.3) or list(base_values)[:3]
            raise InputError(
                f"{self.text}: the metric has no part {part}",
                f"It has {counted_noun_text(len(base_values), 'part')}: {name_list_text(list(base_values), 6)}.",
                f"Did you mean {' or '.join(near)}? metric[*] bounds each part.",
            )
        return replace(self, base_values=dict(base_values), part_name=part)

    def measured_value(self, accuracy: Accuracy) -> float | None:
        """Returns the value of an accuracy that the target bounds; None if it was not measured or is not finite."""
        if self.kind == "metric":
            part = self._find_worst_part_target(accuracy).part_name
            return accuracy.headline_metric if part is None else accuracy.metric.get(part)
        if self.error_metric is None:
            return accuracy.agreement
        return accuracy.find_worst_value(self.error_metric, self.output_name)

    def is_met_by(self, accuracy: Accuracy) -> bool | None:
        """Returns True if an accuracy meets the target; None if the bounded value was not measured. NaN and Inf never
        pass."""
        margin = self.margin_to_bound(accuracy)
        return None if margin is None else margin >= 0

    def confidence_interval(self, accuracy: Accuracy) -> ConfidenceInterval | None:
        """Returns the confidence interval of the bounded value in its unit; None if it is unknown, as for a maximum.

        For a bound relative to FP32, both metrics are computed on the same samples, draw by draw.
        """
        spread = accuracy.intervals
        if spread is None or accuracy.nonfinite_count:
            return None
        if self.kind == "metric":
            target = self._find_worst_part_target(accuracy)
            part = target.part_name if target.part_name is not None else next(iter(accuracy.metric), "")
            if not self.is_relative:
                return spread.metric.get(part)
            gain, base = spread.metric_gains.get(part), target.base_value
            return (
                ConfidenceInterval(base + gain.low, base + gain.high) if gain is not None and base is not None else None
            )
        if self.kind == "agreement":
            return spread.agreement_interval
        return (spread.worst_output if self.output_name is None else spread.outputs.get(self.output_name, {})).get(
            self.kind
        )

    def confidence_interval_text(self, accuracy: Accuracy) -> str:
        """Returns the confidence interval of the bounded value as a text: "19.2 to 20.6 dB"; "" if there is none."""
        interval = self.confidence_interval(accuracy)
        if interval is None:
            return ""
        bounded_value = self.bounded_value
        return f"{bounded_value.value_text(interval.low)} to {bounded_value.value_with_unit_text(interval.high)}"

    def is_met_by_whole_interval(self, accuracy: Accuracy) -> bool | None:
        """Returns True if the whole confidence interval meets the bound, and False if none of it does.

        None if the interval contains the bound, or if there is no interval.
        """
        interval, bound_value = self.confidence_interval(accuracy), self._find_worst_part_target(accuracy).bound
        if interval is None or bound_value is None:
            return None
        ends = [
            end >= bound_value if self.is_higher_better else end <= bound_value for end in (interval.low, interval.high)
        ]
        return ends[0] if ends[0] is ends[1] else None

    def _is_value_missing(self, accuracy: Accuracy) -> bool:
        if self.kind == "metric":  # a run can lose a part of the metric that FP32 has on the same samples
            return (
                not accuracy.metric or self._find_worst_part_target(accuracy).part_name not in accuracy.reference_metric
            )
        if self.output_name is not None:
            output_errors = accuracy.outputs.get(self.output_name)
            return (
                output_errors is None or not self.is_higher_better or output_errors.errors.mismatch is not None
            )  # an integer output
        return (
            self.error_metric is None
            or self.error_metric.is_for_integers_only
            or accuracy.worst_output is None
            or accuracy.worst_output[1].errors.mismatch is not None  # no output of floats was measured
        )

    def margin_to_bound(self, accuracy: Accuracy) -> float | None:
        """Returns by how much an accuracy is better than the bound, in the unit of the value; negative if it misses the
        bound.

        None if it was not measured. The margin of NaN and Inf is minus infinity.
        """
        if accuracy.nonfinite_count or accuracy.fails_every_target:
            return -math.inf
        value, bound_value = self.measured_value(accuracy), self._find_worst_part_target(accuracy).bound
        if bound_value is None:
            return None
        if value is None:
            return None if self._is_value_missing(accuracy) else -math.inf
        return value - bound_value if self.is_higher_better else bound_value - value

    def normalized_loss(self, accuracy: Accuracy) -> float | None:
        """Returns the energy of the error relative to the energy that the target allows: 1 just meets the bound, lower
        is better.

        The energy is Σ(test-ref)² / Σref² for SQNR; 1 - cosine, which is half of that for small errors; the MSE; the
        square of an absolute error. None for values that are not an error energy, and if nothing was measured.
        """
        value, bound_value, margin = self.measured_value(accuracy), self.bound, self.margin_to_bound(accuracy)
        noise_ratio = self.error_metric.noise_ratio if self.error_metric is not None else None
        if noise_ratio is None or bound_value is None or margin is None:
            return None
        return math.inf if value is None or margin == -math.inf else noise_ratio(value, bound_value)

    def margin_score(self, accuracy: Accuracy) -> float | None:
        """Returns the margin in a unit that can be compared across kinds of targets; None if it was not measured.

        The unit is dB of noise. For values that are not noise it is percentage points (for a metric, percent of the
        bound).
        """
        margin, noise = self.margin_to_bound(accuracy), self.normalized_loss(accuracy)
        if margin is None:
            return None
        if noise is not None:
            return math.inf if noise == 0 else -10 * math.log10(noise) if math.isfinite(noise) else -math.inf
        return (
            100 * margin / (abs(self._find_worst_part_target(accuracy).bound or 0.0) or 1.0)
            if self.kind == "metric"
            else 100 * margin
        )

    def measured_value_text(self, accuracy: Accuracy) -> str:
        """Returns the bounded value of an accuracy as a text, with its output if there are several."""
        value = self.measured_value(accuracy)
        if accuracy.nonfinite_count:
            return (
                "no outputs, as its run fails"
                if find_simulation_failure_reason(accuracy)
                else f"{accuracy.nonfinite_count} NaN or Inf"
            )
        if value is None:
            return f"no {self.kind if self.part_name is None else self._find_worst_part_target(accuracy).column_title}"
        output = self.output_name or (
            accuracy.find_output_of_worst_value(self.error_metric) if self.error_metric is not None else ""
        )
        output_text = f" at {escape_hidden_characters(output)}" if output else ""
        if not self.is_higher_better:
            return f"{self.kind} {number_text(value)}{output_text}"
        value_text = self.bounded_value.value_with_unit_text(value)
        part = self._find_worst_part_target(accuracy).part_name
        name = {
            "metric": self.column_title if part is None else part,
            "agreement": AGREEMENT.description,
            "sqnr": "",
        }.get(self.kind, self.kind)
        return f"{name} {value_text}{output_text}".lstrip()

    def refuse_if_unmeasurable(
        self, judged_outputs: Sequence[JudgedOutput], network: NetworkOutline, metric_name: str | None
    ) -> None:
        """Raises an error if the value that the target bounds cannot be measured on the judged outputs or with the metric.

        Raises:
            InputError: the named output is not among ``judged_outputs``, or does not have this value. Or there is no
                metric, no classifier, or no output of the required type.
        """
        outputs_by_name = {judged_output.name: judged_output for judged_output in judged_outputs}
        if self.output_name is not None and self.output_name not in outputs_by_name:
            near = difflib.get_close_matches(self.output_name, outputs_by_name, 3, 0.3)
            raise InputError(
                f"{self.text}: {self.output_name} is not a judged output",
                f"Judged: {', '.join(near or list(outputs_by_name)[:3])}.",
                "Name one of them, or add it with --judge.",
            )
        kinds = (
            {outputs_by_name[self.output_name].kind}
            if self.output_name is not None
            else {judged_output.kind for judged_output in judged_outputs}
        )
        if self.kind == "metric" and metric_name is None:
            if self.part_name is not None and not self.text.startswith("metric"):
                near = difflib.get_close_matches(self.part_name, list_bounded_values(), 1, 0.6)
                raise InputError(
                    f"{self.text}: {self.part_name} is not a known value",
                    f"available: {', '.join(list_bounded_values())}, and the name of a metric that --metric provides",
                    f"Did you mean {near[0]}?" if near else "Bound one of them, or name a metric.",
                )
            raise InputError(
                f"{self.text} needs a metric",
                "none is named",
                "Name one with --metric, with labels in the data, or bound another value.",
            )
        if self.kind == "agreement" and find_class_score_output(network, judged_outputs) is None:
            raise InputError(
                f"{self.text} needs a classifier",
                "no judged output holds the scores of classes",
                f"Bound another value, such as {'mismatch<=0.01' if INTEGER_KIND in kinds else 'sqnr>=20'}, "
                "or a metric of yours with --metric.",
            )
        metric = self.error_metric
        if metric is not None and (INTEGER_KIND if metric.is_for_integers_only else FLOAT_KIND) not in kinds:
            has = "whole numbers" if FLOAT_KIND not in kinds else "floats"
            suggestion = "mismatch<=0.01" if FLOAT_KIND not in kinds else "sqnr>=20"
            raise InputError(
                f"{self.text} bounds a value that is not measured here",
                f"{self.output_name or 'what is judged'} holds {has}",
                f"Bound another value, such as {suggestion}.",
            )


def parse_target(target_text: str) -> Target:
    """Parses the text of a target, such as "sqnr>=20" or "metric>=base-1%".

    - "metric>=base-0.01", "metric>=base-1%": the metric, relative to FP32.
    - "metric[f1/8]>=base-1%": one part of the metric; "metric[*]>=base-2%": each part.
    - "f1>=93": the metric or a part by its name.
    - "sqnr>=20", "cosine>=0.999", "agreement>=0.99", "max_abs<=1e-2": an error metric or the top-1 agreement.
    - "OUTPUT:sqnr>=20": an error metric at one judged output.

    Raises:
        InputError: the text has another form.
    """
    match = _TARGET_PATTERN.match(target_text)
    if match is None:
        suggestion = _suggest_target_text(target_text)
        raise InputError(
            f"{target_text!r} is not a valid target",
            "a target is one name, >= or <=, and one number",
            f"Write {suggestion}."
            if suggestion
            else "Write metric>=base-0.01, metric>=base-1%, sqnr>=20, cosine>=0.999, agreement>=0.99 or max_abs<=1e-2.",
        )
    kind, output, relative, percent = match["kind"], match["output"], bool(match["base"]), bool(match["percent"])
    part, number = match["part"], float(match["number"])
    if kind not in list_bounded_values():
        kind, part = "metric", part if part is not None else kind
    bounded_value = list_bounded_values()[kind]
    sign = _bound_sign(bounded_value)
    signed_number = -number if match["step"] == "-" else number
    value = signed_number / 100 if percent and not relative else signed_number
    faults = (
        (
            part is not None and kind != "metric",
            f"{kind} has no parts, only a metric has",
            f"Write {kind}>=NUMBER, or OUTPUT:{kind}>=NUMBER for one output.",
        ),
        (
            relative and match["number"][0] in "+-",
            f"{match['step']} and {match['number']} contain two signs",
            f"Write {kind}>=base-{abs(number):g}{'%' if percent else ''}.",
        ),
        (
            match["sign"] != sign,
            f"{kind} is better the {'higher' if bounded_value.is_higher_better else 'lower'} it is",
            f"Write {kind}{sign}{signed_number:g}.",
        ),
        (
            relative and kind != "metric",
            f"{kind} has no baseline: it already compares with FP32",
            f"Write {kind}>=NUMBER.",
        ),
        (
            percent and not relative and not bounded_value.is_share,
            f"{kind} cannot be a percentage",
            "Write metric>=base-1%." if kind == "metric" else f"Write {kind} without %.",
        ),
        (not math.isfinite(value), "its bound is infinite", f"Write {kind}{sign}NUMBER."),
        (
            not bounded_value.is_higher_better and value < 0,
            f"{kind} is an error, which is never below 0",
            f"Write {kind}<={abs(value):g}.",
        ),
        (bounded_value.is_share and not 0 <= value <= 1, f"{kind} is between 0 and 1", f"Write {kind}>=0.99."),
        (
            output is not None and kind not in ERROR_METRICS,
            f"{kind} is one value for all outputs",
            f"Write {kind}>=NUMBER.",
        ),
    )
    for is_wrong, cause, next_step in faults:
        if is_wrong:
            raise InputError(f"{target_text!r} is not a valid target", cause, next_step)
    return Target(
        kind, value, relative, percent and relative, source=target_text.strip(), output_name=output, part_name=part
    )


def _bound_sign(bounded_value: BoundedValue) -> str:
    return ">=" if bounded_value.is_higher_better else "<="


def choose_default_target(
    metric_name: str | None, judged_outputs: Sequence[JudgedOutput], network: NetworkOutline, has_labels: bool
) -> Target:
    """Returns the default target: the metric if there are a metric and labels, top-1 agreement for a classifier, else
    SQNR."""
    if metric_name is not None and has_labels:
        return Target("metric", -100 * DEFAULT_METRIC_LOSS, is_relative=True, is_percent=True)
    scores = find_class_score_output(network, judged_outputs)
    classes = (network.shape(scores.tensor) or ())[1:2] if scores is not None else ()
    if classes and isinstance(classes[0], int) and classes[0] >= MIN_AGREEMENT_CLASSES:
        return Target("agreement", DEFAULT_AGREEMENT)
    return Target("sqnr", DEFAULT_SQNR_DB)


MIN_SAMPLES_OF_MAXIMUM = 19
"""The number of samples from which on the next one exceeds their largest error with a probability of at most 5 %."""

MEANINGLESS_OUTPUT_CHANGES = {
    SHUFFLED: "each sample is given the reference's outputs of another sample",
    SCRAMBLED: "the values of the reference's outputs are put in any order",
}
"""The changes that make the outputs of the reference meaningless, in words."""

MIN_RESEMBLING_COSINE = 0.9
"""The cosine to FP32 below which an output no longer resembles that of FP32. At this cosine, the energy of the error is
about a fifth of the energy of the output."""

MAX_UNBOUNDED_MISMATCH = 0.5
"""The share of differing values above which an integer output no longer resembles that of FP32. A lower share can be
that of rounded indices with almost equal scores."""

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

    def with_missed_check(self, reason: str, outcome: Outcome = Outcome.UNCERTAIN_FAIL) -> TargetOutcome:
        """Returns a pass that something else contradicts with that reason; any other outcome, or the reason "",
        unchanged.

        Args:
            outcome: FAIL if the exported network or the engine missed the target; PASS? if it is only in doubt.
        """
        if not reason or not self.passes:
            return self
        return TargetOutcome(outcome, tuple(dict.fromkeys((reason, *self.reasons))))

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
        return TargetOutcome(Outcome.FAIL, _select_distinct_reasons([*failing, *filter(None, misses)]))
    doubts = [_uncertainty_reasons(bounding_target, accuracy, several) for bounding_target in targets]
    missed = [
        (bounding_target, doubt)
        for bounding_target, met, doubt in zip(targets, met_flags, doubts, strict=True)
        if not met
    ]
    if any(not doubt for _, doubt in missed):
        misses = [_missed_target_reason(bounding_target, accuracy, False) for bounding_target, _ in missed]
        return TargetOutcome(Outcome.FAIL, _select_distinct_reasons([*filter(None, misses)]))
    reasons = [reason for doubt in doubts for reason in doubt]
    if missed:
        return TargetOutcome(Outcome.UNCERTAIN_FAIL, _select_distinct_reasons(reasons))
    reasons += [caveat.text for caveat in accuracy.caveats if _is_caveat_relevant(caveat, targets, accuracy)]
    reasons += filter(None, (_trivial_target_reason(bounding_target, accuracy) for bounding_target in targets))
    reasons += filter(None, (_lost_resemblance_reason(bounding_target, accuracy) for bounding_target in targets))
    reasons += _unbounded_mismatch_reasons(targets, accuracy)
    return TargetOutcome(Outcome.UNCERTAIN_PASS if reasons else Outcome.PASS, _select_distinct_reasons(reasons))


def _missed_target_reason(target: Target, accuracy: Accuracy, has_other_failure: bool) -> str:
    """Returns the reason why a target is missed; "" if the measured value says enough.

    Args:
        has_other_failure: True if the run also fails for another reason. The value is then named too.
    """
    if accuracy.nonfinite_count:
        return target.measured_value_text(accuracy)
    if target.measured_value(accuracy) is None:
        cause = (
            "the metric has no such part for the run, only for FP32"
            if target.kind == "metric"
            else "the reference has infinities that the run does not have"
            if any(output.errors == ErrorMetrics() for output in accuracy.outputs.values())
            else "the outputs of the run or the reference are zero throughout"
        )
        return f"{escape_hidden_characters(target.description)} is not defined: {cause}"
    return (
        f"{target.measured_value_text(accuracy)} misses {escape_hidden_characters(target.description)}"
        if has_other_failure
        else ""
    )


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
        return (
            ()
            if count >= MIN_SAMPLES_OF_MAXIMUM
            else (
                f"{about}another sample exceeds the largest error of "
                f"{counted_noun_text(count, 'sample')} with a probability of up to "
                f"{100 / (count + 1):.0f} % ({MIN_SAMPLES_OF_MAXIMUM} samples are needed)",
            )
        )
    if accuracy.samples < MIN_SAMPLES:
        verb = "is" if accuracy.samples == 1 else "are"
        return (
            f"{counted_noun_text(accuracy.samples, 'sample')} "
            f"{verb} too few for a confidence interval ({MIN_SAMPLES} are needed)",
        )
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


_TARGET_KINDS_OF_CAVEATS = {
    STEADY_OUTPUT: ("sqnr", "cosine"),
    DECISIVE_SAMPLES: ("sqnr", "cosine"),
    SIMULATION_GAP: ("sqnr", "cosine", "mse"),
}
"""The kinds of targets that caveats of some kinds count for."""


def _is_caveat_relevant(caveat: Caveat, targets: Sequence[Target], accuracy: Accuracy) -> bool:
    """Returns True if a caveat makes the outcome of an accuracy uncertain at its margin to the targets.

    A gap in dB cannot be compared with values that are not noise, so a caveat always counts if a target bounds one.
    """
    if caveat.kind == PARTLY_JUDGED_OUTPUT and all(target.kind == METRIC.name for target in targets):
        return False
    if caveat.gap_db is None:
        return True
    if (kinds := _TARGET_KINDS_OF_CAVEATS.get(caveat.kind)) is not None:
        targets = [target for target in targets if target.kind in kinds]
    return any(
        bounding_target.normalized_loss(accuracy) is None
        or (score := bounding_target.margin_score(accuracy)) is None
        or score < caveat.gap_db
        for bounding_target in targets
    )


def _trivial_target_reason(target: Target, accuracy: Accuracy) -> str:
    """Returns the reason for doubt if even meaningless outputs, such as those of other samples, meet the target; "" if
    not."""
    for kind, done in MEANINGLESS_OUTPUT_CHANGES.items():
        run = accuracy.meaningless_accuracies.get(kind)
        if run is not None and target.is_met_by(run):
            description = escape_hidden_characters(target.description)
            return f"{description} is met even if {done} ({target.measured_value_text(run)})"
    return ""


def _lost_resemblance_reason(target: Target, accuracy: Accuracy) -> str:
    """Returns the reason for doubt if a metric or agreement passes with outputs unlike those of FP32; "" if there is
    none."""
    cosines = [
        (output.errors.cosine, name) for name, output in accuracy.outputs.items() if output.errors.cosine is not None
    ]
    lowest_cosine, name = min(cosines, default=(1.0, ""))
    if target.error_metric is not None or lowest_cosine >= MIN_RESEMBLING_COSINE:
        return ""
    return (
        f"{escape_hidden_characters(name)} no longer resembles the output of FP32 (cosine {lowest_cosine:.2f}), "
        "although the metric passes"
    )


def _unbounded_mismatch_reasons(targets: Sequence[Target], accuracy: Accuracy) -> list[str]:
    """Returns the reasons for doubt in integer outputs, most of whose values differ, and which no target bounds."""
    bounded_outputs = {target.output_name for target in targets if target.kind == "mismatch"}
    if None in bounded_outputs or all(target.kind == METRIC.name for target in targets):
        return []
    return [
        f"{escape_hidden_characters(name)} differs in {mismatch_text(share)} of its values"
        for name, output in accuracy.outputs.items()
        if (share := output.errors.mismatch) is not None
        and share > MAX_UNBOUNDED_MISMATCH
        and name not in bounded_outputs
    ]


def _select_distinct_reasons(reasons: Sequence[str]) -> tuple[str, ...]:
    """Returns the first `MAX_REASONS` distinct reasons."""
    unique_reasons = tuple(dict.fromkeys(reasons))
    return (
        unique_reasons
        if len(unique_reasons) <= MAX_REASONS
        else (*unique_reasons[: MAX_REASONS - 1], f"{len(unique_reasons) - MAX_REASONS + 1} more reasons")
    )


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
        """The miss of the target on held-out samples as text; "" if the target is met."""
        if self.target_result.passes:
            return ""
        values = ", ".join(
            mark_figures_as_simulated(value.held_out)
            + (f" ({value.held_out_interval})" if value.held_out_interval else "")
            for value in self.values
        ) or mark_figures_as_simulated(self.target_result.value_text)
        return (
            f"not met on {counted_noun_text(self.sample_count, 'held-out sample')}, which the search has not used: "
            f"{values}"
        )


def check_targets(targets: Sequence[Target], accuracy: Accuracy) -> TargetResult:
    """Judges an accuracy by targets that must all be met. The score is the lowest of all targets, the loss the largest.

    A run that fails whatever its values are has the score and the loss of a run with NaN.

    Raises:
        InputError: a value that a target needs was not measured.
    """
    result = judge_accuracy(targets, accuracy)
    if result is None:
        unknown = next(bound_target for bound_target in targets if bound_target.is_met_by(accuracy) is None)
        raise InputError(
            f"{unknown.text} cannot be checked",
            f"{unknown.kind} was not measured",
            "Give labels and --metric, judge that output, or bound another value.",
        )
    noises = [noise for bound_target in targets if (noise := bound_target.normalized_loss(accuracy)) is not None]
    loss = max(noises) if noises else None
    scores = tuple(score for bound_target in targets if (score := bound_target.margin_score(accuracy)) is not None)
    if any(caveat.fails_run for caveat in accuracy.caveats):
        scores, loss = (-math.inf,) * len(scores), math.inf
    figure = ", ".join(bound_target.measured_value_text(accuracy) for bound_target in targets)
    return TargetResult(result.outcome.passes, min(scores), accuracy, loss, figure, scores, result)
