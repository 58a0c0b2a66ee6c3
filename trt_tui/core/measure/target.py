"""Targets: bounds on the user's metric, on top-1 agreement, or on an error metric of one or the worst judged output."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from trt_tui.core.measure.bootstrap import ConfidenceInterval
from trt_tui.core.measure.error_metrics import ERROR_METRICS, BoundedValue, ErrorMetric
from trt_tui.core.measure.failed_runs import find_failure_reason
from trt_tui.core.measure.judged_outputs import FLOAT_KIND, INTEGER_KIND, JudgedOutput, find_class_score_output
from trt_tui.core.measure.results import Accuracy
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.errors import InputError
from trt_tui.formatting import (
    agreement_text,
    counted_noun_text,
    escape_hidden_characters,
    metric_text,
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
AGREEMENT = BoundedValue(name="agreement", title="top-1", description="top-1 agreement", is_share=True,
                         format_value=agreement_text)

ALL_PARTS = "*"
"""The part name that stands for each part of a metric."""

_TARGET_PATTERN = re.compile(
    r"\s*(?:(?P<output>\S.*):)?\s*(?P<kind>[^\W\d][^\s<>=:\[\]]*)(?:\[(?P<part>[^\[\]]+)\])?\s*(?P<sign>[<>]=)"
    r"\s*(?P<base>base\s*(?P<step>[-+])\s*)?(?P<number>[0-9.eE+-]+)(?P<percent>\s*%)?\s*$")


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
        """The value to reach; None until the FP32 baseline is known, and if each part of the metric has another bound.
        """
        if not self.is_relative:
            return self.value
        base = next(iter(self.base_values.values()), None) if self.part_name is None else self.base_values.get(
            self.part_name)
        if base is None:
            return None
        return base + (abs(base) * self.value / 100 if self.is_percent else self.value)

    def split_into_part_targets(self, accuracy: Accuracy) -> list[Target]:
        """Returns one target for each part of the metric if this target bounds each part, and only this target if not.
        """
        target = self.for_samples_of(accuracy)
        if self.part_name != ALL_PARTS:
            return [target]
        return [
            replace(target, part_name=name, source="")
            for name in accuracy.metric
            if name in target.base_values or not self.is_relative
        ] or [target]

    def for_samples_of(self, accuracy: Accuracy) -> Target:
        """Returns this target with the baseline on the samples of an accuracy, if the accuracy has one."""
        return replace(self, base_values=dict(accuracy.reference_metric)
                       ) if self.is_relative and accuracy.reference_metric else self

    def _find_worst_part_target(self, accuracy: Accuracy) -> Target:
        """Returns the target of the worst part of the metric if this target bounds each part, and this target if not.
        """
        margins = [(part_target, accuracy.metric[part_target.part_name or ""] - part_bound)
                   for part_target in self.split_into_part_targets(accuracy)
                   if part_target.part_name in accuracy.metric and (part_bound := part_target.bound) is not None]
        if self.part_name != ALL_PARTS or not margins:
            return self.for_samples_of(accuracy)
        return min(margins, key=lambda pair: pair[1])[0]

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
                f"Did you mean {' or '.join(near)}? metric[*] bounds each part.")
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
        if accuracy.nonfinite_count or accuracy.fails_every_target:
            return False
        value, bound_value = self.measured_value(accuracy), self._find_worst_part_target(accuracy).bound
        if bound_value is None:
            return None
        if value is None:
            return None if self._is_value_missing(accuracy) else False
        return value >= bound_value if self.is_higher_better else value <= bound_value

    def confidence_interval(self, accuracy: Accuracy) -> ConfidenceInterval | None:
        """Returns the confidence interval of the bounded value in its unit; None if it is unknown, as for a maximum.

        For a bound relative to FP32, both metrics are computed on the same samples, draw by draw.
        """
        spread = accuracy.intervals
        if spread is None or accuracy.nonfinite_count:
            return None
        if self.kind == "metric":
            target = self._find_worst_part_target(accuracy)
            part, base_values = target.part_name, target.base_values
            if part is not None and part != next(iter(accuracy.metric), None):
                metric, gain, base = spread.metric_parts.get(part), spread.metric_part_gains.get(
                    part), base_values.get(part)
            else:
                metric, gain, base = spread.metric, spread.metric_gain, next(iter(base_values.values()), None)
            if not self.is_relative:
                return metric
            if gain is None or base is None:
                return None
            return ConfidenceInterval(base + gain.low, base + gain.high)
        if self.kind == "agreement":
            return spread.agreement_interval
        return (spread.worst_output if self.output_name is None else spread.outputs.get(self.output_name, {})).get(
            self.kind)

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
            end >= bound_value if self.is_higher_better else end <= bound_value
            for end in (interval.low, interval.high)
        ]
        return ends[0] if ends[0] is ends[1] else None

    def _is_value_missing(self, accuracy: Accuracy) -> bool:
        if self.output_name is not None:
            output_errors = accuracy.outputs.get(self.output_name)
            return (output_errors is None or not self.is_higher_better
                    or output_errors.errors.mismatch is not None)  # an integer output
        if self.error_metric is None or self.error_metric.is_of_integers or accuracy.worst_output is None:
            return True
        return accuracy.worst_output[1].errors.mismatch is not None  # no output of floats was measured

    def margin_to_bound(self, accuracy: Accuracy) -> float | None:
        """Returns by how much an accuracy is better than the bound, in the unit of the value; negative if it misses the
        bound.

        None if it was not measured. The margin of NaN and Inf is minus infinity.
        """
        value, bound_value = self.measured_value(accuracy), self._find_worst_part_target(accuracy).bound
        if bound_value is None or self.is_met_by(accuracy) is None:
            return None
        if accuracy.nonfinite_count or accuracy.fails_every_target or value is None:
            return -math.inf
        return value - bound_value if self.is_higher_better else bound_value - value

    def normalized_loss(self, accuracy: Accuracy) -> float | None:
        """Returns the energy of the error relative to the energy that the target allows: 1 just meets the bound, lower
        is better.

        The energy is Σ(test-ref)² / Σref² for SQNR; 1 - cosine, which is half of that for small errors; the MSE; the
        square of an absolute error. None for values that are not an error energy, and if nothing was measured.
        """
        value, bound_value = self.measured_value(accuracy), self.bound
        noise_ratio = self.error_metric.noise_ratio if self.error_metric is not None else None
        if noise_ratio is None or bound_value is None or self.is_met_by(accuracy) is None:
            return None
        if accuracy.nonfinite_count or accuracy.fails_every_target or value is None:
            return math.inf
        return noise_ratio(value, bound_value)

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
        return 100 * margin / (abs(self._find_worst_part_target(accuracy).bound or 0.0)
                               or 1.0) if self.kind == "metric" else 100 * margin

    def measured_value_text(self, accuracy: Accuracy) -> str:
        """Returns the bounded value of an accuracy as a text, with its output if there are several."""
        value = self.measured_value(accuracy)
        if accuracy.nonfinite_count:
            return "no outputs, as its run fails" if find_failure_reason(
                accuracy) else f"{accuracy.nonfinite_count} NaN or Inf"
        if value is None:
            return f"no {self.kind if self.part_name is None else self.column_title}"
        output = self.output_name or (
            accuracy.find_output_of_worst_value(self.error_metric) if self.error_metric is not None else "")
        output_text = f" at {escape_hidden_characters(output)}" if output else ""
        if not self.is_higher_better:
            return f"{self.kind} {number_text(value)}{output_text}"
        value_text = self.bounded_value.value_with_unit_text(value)
        part = self._find_worst_part_target(accuracy).part_name
        name = {"metric": self.column_title if part is None else part, "agreement": AGREEMENT.description,
                "sqnr": ""}.get(self.kind, self.kind)
        return f"{name} {value_text}{output_text}".lstrip()

    def refuse_if_unmeasurable(self, judged_outputs: Sequence[JudgedOutput], network: NetworkOutline,
                               metric_name: str | None) -> None:
        """Raises an error if the judged outputs or the metric cannot provide the bounded value.

        Raises:
            InputError: the named output is not among ``judged_outputs``, or does not have this value. Or there is no
                metric, no classifier, or no output of the required type.
        """
        outputs_by_name = {judged_output.name: judged_output for judged_output in judged_outputs}
        if self.output_name is not None and self.output_name not in outputs_by_name:
            near = difflib.get_close_matches(self.output_name, outputs_by_name, 3, 0.3)
            raise InputError(f"{self.text}: {self.output_name} is not a judged output",
                             f"Judged: {', '.join(near or list(outputs_by_name)[:3])}.",
                             "Name one of them, or add it with --judge.")
        kinds = {outputs_by_name[self.output_name].kind
                 } if self.output_name is not None else {judged_output.kind
                                                         for judged_output in judged_outputs}
        if self.kind == "metric" and metric_name is None:
            if self.part_name is not None and not self.text.startswith("metric"):
                near = difflib.get_close_matches(self.part_name, list_bounded_values(), 1, 0.6)
                raise InputError(
                    f"{self.text}: {self.part_name} is not a known value",
                    f"available: {', '.join(list_bounded_values())}, and the name of a metric that --metric provides",
                    f"Did you mean {near[0]}?" if near else "Bound one of them, or name a metric.")
            raise InputError(f"{self.text} needs a metric", "none is named",
                             "Name one with --metric, with labels in the data, or bound another value.")
        if self.kind == "agreement" and find_class_score_output(network, judged_outputs) is None:
            raise InputError(f"{self.text} needs a classifier", "no judged output holds the scores of classes",
                             "Bound another value, such as sqnr>=20, or a metric of yours with --metric.")
        metric = self.error_metric
        if metric is not None and (INTEGER_KIND if metric.is_of_integers else FLOAT_KIND) not in kinds:
            has = "whole numbers" if FLOAT_KIND not in kinds else "floats"
            suggestion = "mismatch<=0.01" if FLOAT_KIND not in kinds else "sqnr>=20"
            raise InputError(f"{self.text} bounds a value that is not measured here",
                             f"{self.output_name or 'what is judged'} holds {has}",
                             f"Bound another value, such as {suggestion}.")


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
    number = _parse_number(match["number"]) if match is not None else None
    if match is None or number is None:
        suggestion = _suggest_target_text(target_text)
        raise InputError(f"{target_text!r} is not a valid target", "a target is a name, >= or <=, and a number",
                         f"Write {suggestion}." if suggestion else
                         "Write metric>=base-0.01, metric>=base-1%, sqnr>=20, cosine>=0.999, agreement>=0.99 or "
                         "max_abs<=1e-2.")
    kind, output, relative, percent = match["kind"], match["output"], bool(match["base"]), bool(match["percent"])
    part = match["part"]
    if kind not in list_bounded_values():
        kind, part = "metric", part if part is not None else kind
    bounded_value = list_bounded_values()[kind]
    sign = _bound_sign(bounded_value)
    signed_number = -number if match["step"] == "-" else number
    value = signed_number / 100 if percent and not relative else signed_number
    faults = (
        (part is not None and kind != "metric", f"{kind} has no parts, only a metric has",
         f"Write {kind}>=NUMBER, or OUTPUT:{kind}>=NUMBER for one output."),
        (relative and match["number"][0] in "+-", f"{match['step']} and {match['number']} contain two signs",
         f"Write {kind}>=base-{abs(number):g}{'%' if percent else ''}."),
        (match["sign"] != sign, f"{kind} is better the {'higher' if bounded_value.is_higher_better else 'lower'} it is",
         f"Write {kind}{sign}{signed_number:g}."),
        (relative and kind != "metric", f"{kind} has no baseline: it already compares with FP32",
         f"Write {kind}>=NUMBER."),
        (percent and not relative and not bounded_value.is_share, f"{kind} cannot be a percentage",
         "Write metric>=base-1%." if kind == "metric" else f"Write {kind} without %."),
        (not math.isfinite(value), "its bound is infinite", f"Write {kind}{sign}NUMBER."),
        (not bounded_value.is_higher_better and value < 0, f"{kind} is an error, which is never below 0",
         f"Write {kind}<={abs(value):g}."),
        (bounded_value.is_share and not 0 <= value <= 1, f"{kind} is between 0 and 1", f"Write {kind}>=0.99."),
        (output is not None and kind not in ERROR_METRICS, f"{kind} is one value for all outputs",
         f"Write {kind}>=NUMBER."),
    )
    for is_wrong, cause, next_step in faults:
        if is_wrong:
            raise InputError(f"{target_text!r} is not a valid target", cause, next_step)
    return Target(kind, value, relative, percent and relative, source=target_text.strip(), output_name=output,
                  part_name=part)


def _bound_sign(bounded_value: BoundedValue) -> str:
    return ">=" if bounded_value.is_higher_better else "<="


def _parse_number(number_text: str) -> float | None:
    try:
        return float(number_text)
    except ValueError:
        return None


def choose_default_target(metric_name: str | None, judged_outputs: Sequence[JudgedOutput], network: NetworkOutline,
                          has_labels: bool) -> Target:
    """Returns the default target: the metric if there are a metric and labels, top-1 agreement for a classifier, else
    SQNR."""
    if metric_name is not None and has_labels:
        return Target("metric", -100 * DEFAULT_METRIC_LOSS, is_relative=True, is_percent=True)
    scores = find_class_score_output(network, judged_outputs)
    classes = (network.shape(scores.tensor) or ())[1:2] if scores is not None else ()
    if classes and isinstance(classes[0], int) and classes[0] >= MIN_AGREEMENT_CLASSES:
        return Target("agreement", DEFAULT_AGREEMENT)
    return Target("sqnr", DEFAULT_SQNR_DB)
