"""What a run must reach: the user's metric, argmax agreement, or a figure of one or of the worst judged output."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trt_tui.core.measure.bootstrap import ConfidenceInterval
from trt_tui.core.measure.failed_runs import find_failure_reason
from trt_tui.core.measure.judged_outputs import FLOAT_KIND, INTEGER_KIND, JudgedOutput, find_class_score_output
from trt_tui.core.measure.results import Accuracy, ErrorMetrics
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.errors import InputError
from trt_tui.formatting import (
    add_decibel_unit,
    agreement_text,
    cosine_text,
    counted_noun_text,
    decibels_text,
    metric_text,
    name_list_text,
    number_text,
)

DEFAULT_SQNR_DB = 20.0
DEFAULT_AGREEMENT = 0.99
MIN_AGREEMENT_CLASSES = 10
"""With fewer classes the agreement is too coarse a default."""

DEFAULT_METRIC_LOSS = 0.01
"""The default target allows 1 % of the FP32 network's metric to be lost."""

UPPER_BOUND_KINDS = ("max_abs", "mean_abs", "mse", "mismatch")
"""Kinds that are bounded from above."""

OUTPUT_KINDS = ("sqnr", "cosine", *UPPER_BOUND_KINDS)
"""Kinds that can be asked of one judged output."""

TARGET_KINDS = ("metric", "agreement", *OUTPUT_KINDS)
"""All kinds; another word is the metric's own name, or the name of a part of it."""

ALL_PARTS = "*"
"""Stands for each part of a metric."""

FRACTION_KINDS = ("cosine", "agreement", "mismatch")
"""Kinds from 0 to 1, which may be written in percent."""

_TARGET_PATTERN = re.compile(
    r"\s*(?:(?P<output>\S.*):)?\s*(?P<kind>[^\W\d][^\s<>=:\[\]]*)(?:\[(?P<part>[^\[\]]+)\])?\s*(?P<sign>[<>]=)"
    r"\s*(?P<base>base\s*(?P<step>[-+])\s*)?(?P<number>[0-9.eE+-]+)(?P<percent>\s*%)?\s*$")


@dataclass(frozen=True)
class Target:
    """A bound on one figure: a lower one, or an upper one for the kinds in `UPPER_BOUND_KINDS`.

    Attributes:
        kind: "sqnr" (dB), "cosine", "max_abs" and "mean_abs" (the tensor's units), "mse" (their square), "mismatch"
            (the share of an integer output that differs), each of the worst judged output or of ``output_name``;
            "metric" or "agreement" (0 to 1).
        value: The bound; for "metric" with ``is_relative`` the distance from the FP32 network's own metric.
        is_relative: ``value`` is added to the base; with ``is_percent`` as a share of its size.
        base_values: The FP32 network's metric and its parts, the headline first; empty until it is measured.
        output_name: The judged output that is bounded, None for the worst one.
        part_name: Which part of the metric is bounded; None for the headline, `ALL_PARTS` for each.
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
    def bound(self) -> float | None:
        """The value to reach; None until the base is known, and where each part has its own."""
        if not self.is_relative:
            return self.value
        base = next(iter(self.base_values.values()), None) if self.part_name is None else self.base_values.get(
            self.part_name)
        if base is None:
            return None
        return base + (abs(base) * self.value / 100 if self.is_percent else self.value)

    def split_into_part_targets(self, accuracy: Accuracy) -> list[Target]:
        """A target for each part of a verdict's metric where it bounds each; else itself."""
        if self.part_name != ALL_PARTS:
            return [self]
        return [
            replace(self, part_name=name, source="")
            for name in accuracy.metric
            if name in self.base_values or not self.is_relative
        ] or [self]

    def _find_worst_part_target(self, accuracy: Accuracy) -> Target:
        """The target of the one part of a verdict that is worst off, where it bounds each part."""
        margins = [(part_target, accuracy.metric[part_target.part_name or ""] - part_bound)
                   for part_target in self.split_into_part_targets(accuracy)
                   if part_target.part_name in accuracy.metric and (part_bound := part_target.bound) is not None]
        if self.part_name != ALL_PARTS:
            return self
        return min(margins, key=lambda pair: pair[1])[0] if margins else self

    @property
    def text(self) -> str:
        """The target as it is written on the command line."""
        if self.source:
            return self.source
        kind = self.kind if self.part_name is None else f"{self.kind}[{self.part_name}]"
        if self.is_relative:
            return f"{kind}>=base{self.value:+g}{'%' if self.is_percent else ''}"
        if self.part_name is not None:
            return f"{kind}>={self.value:g}"
        output_prefix = f"{self.output_name}:" if self.output_name is not None else ""
        return f"{output_prefix}{self.kind}{'<=' if self.kind in UPPER_BOUND_KINDS else '>='}{self.value:g}"

    @property
    def column_title(self) -> str:
        """What its figure is called, as the head of a column: ``SQNR``, ``top-1``, a metric's or a part's own name."""
        if self.kind == "metric":
            name = next(iter(self.base_values), "metric") if self.part_name is None else self.part_name
            return "worst part" if self.part_name == ALL_PARTS else name.rpartition(".py:")[2]
        return {"sqnr": "SQNR", "agreement": "top-1", "max_abs": "max error", "mean_abs": "mean error",
                "mse": "MSE", "mismatch": "differing"}.get(self.kind, self.kind)

    @property
    def description(self) -> str:
        """The target in words."""
        bound_value, output_text = self.bound, f" of {self.output_name}" if self.output_name else ""
        if self.kind == "sqnr":
            return f"SQNR{output_text} ≥ {self.value:g} dB"
        if self.kind in UPPER_BOUND_KINDS:
            error_names = {"max_abs": "largest error", "mean_abs": "mean error", "mismatch": "share that differs"}
            return f"{error_names.get(self.kind, 'MSE')}{output_text} ≤ {self.value:g}"
        if self.kind == "cosine":
            return f"cosine{output_text} ≥ {self.value:g}"
        if self.kind == "agreement":
            return f"top-1 agreement ≥ {100 * self.value:g}%"
        if self.part_name == ALL_PARTS and self.is_relative:
            return f"each part ≥ FP32{self.value:+g}{' %' if self.is_percent else ''}"
        name = "each part" if self.part_name == ALL_PARTS else self.column_title
        return f"{name} ≥ {metric_text(bound_value)}" if bound_value is not None else self.text

    def with_base_values(self, base_values: Mapping[str, float], covers_all_samples: bool = True) -> Target:
        """The same target, with the FP32 network's metric and its parts as its base.

        Args:
            covers_all_samples: Whether that is of all samples, so that a part that is not in it is none.

        Raises:
            InputError: there is no such part.
        """
        part = self.part_name
        headline = next(iter(base_values), "")
        if part in (headline, headline.rpartition(":")[2]):
            part = None
        elif part is not None and part not in (ALL_PARTS, *base_values) and base_values and covers_all_samples:
            near = difflib.get_close_matches(part, (*base_values, *TARGET_KINDS), 3, 0.3) or list(base_values)[:3]
            raise InputError(
                f"{self.text}: the metric has no part {part}",
                f"It has {counted_noun_text(len(base_values), 'part')}: {name_list_text(list(base_values), 6)}.",
                f"Did you mean {' or '.join(near)}? metric[*] bounds each part.")
        return replace(self, base_values=dict(base_values), part_name=part)

    def measured_value(self, accuracy: Accuracy) -> float | None:
        """The figure of a verdict that the target bounds; None if it was not measured or is not finite."""
        if self.kind == "metric":
            part = self._find_worst_part_target(accuracy).part_name
            return accuracy.headline_metric if part is None else accuracy.metric.get(part)
        if self.kind == "agreement":
            return accuracy.agreement
        if self.output_name is not None:
            output_errors = accuracy.outputs.get(self.output_name)
            return None if output_errors is None else self._value_of_target_kind(output_errors.errors)
        if self.kind in UPPER_BOUND_KINDS:
            values = [self._value_of_target_kind(output_errors.errors) for output_errors in accuracy.outputs.values()
                      if (output_errors.errors.mismatch is None) is (self.kind != "mismatch")]
            return _worst_value_or_none(values, max)
        if self.kind == "cosine":  # the output with the worst SQNR need not have the worst cosine
            values = [
                self._value_of_target_kind(output_errors.errors)
                for output_errors in accuracy.outputs.values()
                if output_errors.errors.mismatch is None
            ]
            return _worst_value_or_none(values, min)
        worst = accuracy.worst_output
        return None if worst is None else self._value_of_target_kind(worst[1].errors)

    def _value_of_target_kind(self, error_metrics: ErrorMetrics) -> float | None:
        if error_metrics.exact:
            return {"sqnr": math.inf, "cosine": 1.0}.get(self.kind, 0.0)
        return error_metrics.sqnr_db if self.kind == "sqnr" else getattr(error_metrics, self.kind)

    def is_met_by(self, accuracy: Accuracy) -> bool | None:
        """Whether a verdict meets the target; None where what it needs was not measured. NaN and Inf never pass."""
        if accuracy.nonfinite_count or accuracy.fails_every_target:
            return False
        value, bound_value = self.measured_value(accuracy), self._find_worst_part_target(accuracy).bound
        if bound_value is None:
            return None
        if value is None:
            return None if self._is_value_missing(accuracy) else False
        return value <= bound_value if self.kind in UPPER_BOUND_KINDS else value >= bound_value

    def confidence_interval(self, accuracy: Accuracy) -> ConfidenceInterval | None:
        """The interval in which the figure lies, in its own unit; None if it is unknown, as for a maximum.

        For a distance from FP32's metric both metrics are computed on the same samples, draw by draw.
        """
        spread = accuracy.intervals
        if spread is None or accuracy.nonfinite_count:
            return None
        if self.kind == "metric":
            part = self._find_worst_part_target(accuracy).part_name
            if part is not None and part != next(iter(accuracy.metric), None):
                metric, gain, base = spread.metric_parts.get(part), spread.metric_part_gains.get(
                    part), self.base_values.get(part)
            else:
                metric, gain, base = spread.metric, spread.metric_gain, next(iter(self.base_values.values()), None)
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
        """The interval of the figure in words: "19.2 to 20.6 dB"; "" where there is none."""
        interval = self.confidence_interval(accuracy)
        if interval is None:
            return ""
        if self.kind == "sqnr":
            low, high = (decibels_text(end, exact=math.isinf(end), mark="") for end in (interval.low, interval.high))
            return f"{low} to {add_decibel_unit(high)}"
        format_value = {
            "metric": metric_text, "cosine": cosine_text, "agreement": agreement_text, "mismatch": agreement_text
        }.get(self.kind, number_text)
        return f"{format_value(interval.low)} to {format_value(interval.high)}"

    def is_met_by_whole_interval(self, accuracy: Accuracy) -> bool | None:
        """Whether the whole interval of the figure meets the bound; None if it spans the bound or there is none."""
        interval, bound_value = self.confidence_interval(accuracy), self._find_worst_part_target(accuracy).bound
        if interval is None or bound_value is None:
            return None
        ends = [
            end <= bound_value if self.kind in UPPER_BOUND_KINDS else end >= bound_value
            for end in (interval.low, interval.high)
        ]
        return ends[0] if ends[0] is ends[1] else None

    def _is_value_missing(self, accuracy: Accuracy) -> bool:
        if self.output_name is not None:
            output_errors = accuracy.outputs.get(self.output_name)
            return (output_errors is None or self.kind in UPPER_BOUND_KINDS
                    or output_errors.errors.mismatch is not None)  # an integer output
        return self.kind in ("metric", "agreement", "mismatch") or accuracy.worst_output is None

    def margin_to_bound(self, accuracy: Accuracy) -> float | None:
        """By how much a verdict is better than the bound, in the figure's own unit; negative if it falls short.

        None if it was not measured. NaN and Inf fall short by infinity.
        """
        value, bound_value = self.measured_value(accuracy), self._find_worst_part_target(accuracy).bound
        if bound_value is None or self.is_met_by(accuracy) is None:
            return None
        if accuracy.nonfinite_count or accuracy.fails_every_target or value is None:
            return -math.inf
        return bound_value - value if self.kind in UPPER_BOUND_KINDS else value - bound_value

    def normalized_loss(self, accuracy: Accuracy) -> float | None:
        """The error's energy in units of what the target allows: 1 is just enough, 0 is exact, lower is better.

        The energy is Σ(test-ref)² / Σref² for SQNR; 1 - cosine, which is half of that for small errors; the MSE; the
        square of an absolute error. None for "metric", "agreement" and "mismatch", which are no energies, and if
        nothing was measured.
        """
        value, bound_value = self.measured_value(accuracy), self.bound
        if self.kind in ("metric", "agreement", "mismatch") or bound_value is None or self.is_met_by(accuracy) is None:
            return None
        if accuracy.nonfinite_count or accuracy.fails_every_target or value is None:
            return math.inf
        if self.kind == "sqnr":
            return 10 ** ((bound_value - value) / 10)
        if self.kind == "cosine":
            value, bound_value = 1 - value, 1 - bound_value
        if value == 0:
            return 0.0
        if bound_value <= 0:
            return math.inf
        return value / bound_value if self.kind in ("cosine", "mse") else (value / bound_value) ** 2

    def margin_score(self, accuracy: Accuracy) -> float | None:
        """The margin in a unit that can be compared across kinds of targets; None if it was not measured.

        It is in dB of noise; for figures that are no noise in percentage points (for a metric, of the bound).
        """
        margin, noise = self.margin_to_bound(accuracy), self.normalized_loss(accuracy)
        if margin is None:
            return None
        if noise is not None:
            return math.inf if noise == 0 else -10 * math.log10(noise) if math.isfinite(noise) else -math.inf
        return 100 * margin / (abs(self._find_worst_part_target(accuracy).bound or 0.0)
                               or 1.0) if self.kind == "metric" else 100 * margin

    def measured_value_text(self, accuracy: Accuracy) -> str:
        """The figure of a verdict in words."""
        value = self.measured_value(accuracy)
        if accuracy.nonfinite_count:
            return "no outputs, as its run fails" if find_failure_reason(
                accuracy) else f"{accuracy.nonfinite_count} NaN or Inf"
        if value is None:
            return f"no {self.kind if self.part_name is None else self.column_title}"
        if self.kind == "sqnr":
            return add_decibel_unit(decibels_text(value, exact=math.isinf(value), mark=""))
        if self.kind == "agreement":
            return f"top-1 agreement {agreement_text(value)}"
        format_value = {"metric": metric_text, "cosine": cosine_text}.get(self.kind, number_text)
        part = self._find_worst_part_target(accuracy).part_name
        name = self.kind if self.kind != "metric" else self.column_title if part is None else part
        return f"{name} {format_value(value)}"

    def refuse_if_unmeasurable(self, judged_outputs: Sequence[JudgedOutput], network: NetworkOutline,
                               metric_name: str | None) -> None:
        """Refuses a target whose figure is not measured on these judged outputs.

        Raises:
            InputError: the output that it names is not among ``judged_outputs``, or is none that has this figure; there
                is no metric, or nothing that agrees or differs.
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
                near = difflib.get_close_matches(self.part_name, TARGET_KINDS, 1, 0.6)
                raise InputError(
                    f"{self.text} bounds nothing that is measured",
                    f"there are {', '.join(TARGET_KINDS)}, and a metric's own name where --metric gives one",
                    f"Did you mean {near[0]}?" if near else "Bound one of them, or name a metric.")
            raise InputError(f"{self.text} needs a metric", "there is none",
                             "Name one with --metric, with labels in the data, or bound another figure.")
        if self.kind == "agreement" and find_class_score_output(network, judged_outputs) is None:
            raise InputError(f"{self.text} needs a classifier", "no judged output holds the scores of classes",
                             "Bound another figure, such as sqnr>=20, or a metric of yours with --metric.")
        if self.kind in OUTPUT_KINDS and (INTEGER_KIND if self.kind == "mismatch" else FLOAT_KIND) not in kinds:
            has = "whole numbers" if FLOAT_KIND not in kinds else "floats"
            suggestion = "mismatch<=0.01" if FLOAT_KIND not in kinds else "sqnr>=20"
            raise InputError(f"{self.text} bounds a figure that is not measured",
                             f"{self.output_name or 'what is judged'} holds {has}",
                             f"Bound another figure, such as {suggestion}.")


def parse_target(target_text: str) -> Target:
    """Reads "metric>=base-0.01", "metric>=base-1%", "metric[f1/8]>=base-1%" of a part, "metric[*]>=base-2%" of each,
    "f1>=93" by the name of the metric or of a part, "sqnr>=20", "cosine>=0.999", "agreement>=0.99" or "max_abs<=1e-2";
    "OUTPUT:sqnr>=20" asks it of one judged output.

    Raises:
        InputError: it is none of these.
    """
    match = _TARGET_PATTERN.match(target_text)
    number = _parse_number(match["number"]) if match is not None else None
    if match is None or number is None:
        raise InputError(f"{target_text!r} is no target", "a target bounds one figure",
                         "Write metric>=base-0.01, metric>=base-1%, sqnr>=20, cosine>=0.999, agreement>=0.99 or "
                         "max_abs<=1e-2.")
    kind, output, relative, percent = match["kind"], match["output"], bool(match["base"]), bool(match["percent"])
    part = match["part"]
    if kind not in TARGET_KINDS:
        kind, part = "metric", part if part is not None else kind
    elif part is not None and kind != "metric":
        raise InputError(f"{target_text!r} is no target", f"{kind} has no parts: a metric has",
                         f"Write {kind}>=NUMBER, or OUTPUT:{kind}>=NUMBER for one output.")
    if relative and match["number"][0] in "+-":
        raise InputError(f"{target_text!r} is no target", f"{match['step']} and {match['number']} are two signs",
                         f"Write {kind}>=base-{abs(number):g}{'%' if percent else ''}.")
    value = -number if match["step"] == "-" else number
    if (match["sign"] == "<=") is not (kind in UPPER_BOUND_KINDS):
        raise InputError(f"{target_text!r} is no target",
                         f"{kind} is better the {'lower' if kind in UPPER_BOUND_KINDS else 'higher'} it is",
                         f"Write {kind}{'<=' if kind in UPPER_BOUND_KINDS else '>='}{value:g}.")
    if relative and kind != "metric":
        raise InputError(f"{target_text!r} is no target", f"{kind} has no base: it already compares with FP32",
                         f"Write {kind}>=NUMBER.")
    if percent and not relative:
        if kind not in FRACTION_KINDS:
            raise InputError(f"{target_text!r} is no target", f"{kind} is no share of something",
                             "Write metric>=base-1%." if kind == "metric" else f"Write {kind} without %.")
        value, percent = value / 100, False
    if not math.isfinite(value):
        raise InputError(f"{target_text!r} is no target", "its bound is infinite",
                         f"Write {kind}{'<=' if kind in UPPER_BOUND_KINDS else '>='}NUMBER.")
    if kind in UPPER_BOUND_KINDS and value < 0:
        raise InputError(f"{target_text!r} is no target", f"{kind} is an error, which is never below 0",
                         f"Write {kind}<={abs(value):g}.")
    if kind in FRACTION_KINDS and not 0 <= value <= 1:
        raise InputError(f"{target_text!r} is no target", f"{kind} lies between 0 and 1", f"Write {kind}>=0.99.")
    if output is not None and kind not in OUTPUT_KINDS:
        raise InputError(f"{target_text!r} is no target", f"{kind} is one figure of all outputs",
                         f"Write {kind}>=NUMBER.")
    return Target(kind, value, relative, percent, source=target_text.strip(), output_name=output, part_name=part)


def _parse_number(number_text: str) -> float | None:
    try:
        return float(number_text)
    except ValueError:
        return None


def _worst_value_or_none(values: Sequence[float | None], choose_worst: Callable[[Iterable[float]],
                                                                                float]) -> float | None:
    """The worst of some figures; None if there are none, or one of them is unknown."""
    known_values = [figure for figure in values if figure is not None]
    return choose_worst(known_values) if known_values and len(known_values) == len(values) else None


def choose_default_target(metric_name: str | None, judged_outputs: Sequence[JudgedOutput], network: NetworkOutline,
                          has_labels: bool) -> Target:
    """The default: the metric if there are one and labels, else argmax agreement for a classifier, else the SQNR."""
    if metric_name is not None and has_labels:
        return Target("metric", -100 * DEFAULT_METRIC_LOSS, is_relative=True, is_percent=True)
    scores = find_class_score_output(network, judged_outputs)
    classes = (network.shape(scores.tensor) or ())[1:2] if scores is not None else ()
    if classes and isinstance(classes[0], int) and classes[0] >= MIN_AGREEMENT_CLASSES:
        return Target("agreement", DEFAULT_AGREEMENT)
    return Target("sqnr", DEFAULT_SQNR_DB)
