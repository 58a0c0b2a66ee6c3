"""What a run must reach: the user's metric, argmax agreement, or a figure of one or of the worst judged output."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trt_tui.core.measure.bootstrap import Interval
from trt_tui.core.measure.comparison import Errors, Verdict
from trt_tui.core.measure.failed_runs import failure_of
from trt_tui.core.measure.judge import FLOAT, INTEGER, Judged, class_scores
from trt_tui.core.network.layers import Outline
from trt_tui.errors import InputError
from trt_tui.words import cosine, decibels, first_few, metric_figure, number, plural, rate, with_unit

DEFAULT_SQNR_DB = 20.0
DEFAULT_AGREEMENT = 0.99
FEWEST_CLASSES = 10
"""With fewer classes the agreement is too coarse a default."""

DEFAULT_METRIC_LOSS = 0.01
"""The default target allows 1 % of the FP32 network's metric to be lost."""

UPPER = ("max_abs", "mean_abs", "mse", "mismatch")
"""Kinds that are bounded from above."""

PER_OUTPUT = ("sqnr", "cosine", *UPPER)
"""Kinds that can be asked of one judged output."""

KINDS = ("metric", "agreement", *PER_OUTPUT)
"""All kinds; another word is the metric's own name, or the name of a part of it."""

EVERY = "*"
"""Stands for each part of a metric."""

SHARES = ("cosine", "agreement", "mismatch")
"""Kinds from 0 to 1, which may be written in percent."""

_TEXT = re.compile(
    r"\s*(?:(?P<output>\S.*):)?\s*(?P<kind>[^\W\d][^\s<>=:\[\]]*)(?:\[(?P<part>[^\[\]]+)\])?\s*(?P<sign>[<>]=)"
    r"\s*(?P<base>base\s*(?P<step>[-+])\s*)?(?P<number>[0-9.eE+-]+)(?P<percent>\s*%)?\s*$")


@dataclass(frozen=True)
class Target:
    """A bound on one figure: a lower one, or an upper one for the kinds in `UPPER`.

    Attributes:
        kind: "sqnr" (dB), "cosine", "max_abs" and "mean_abs" (the tensor's units), "mse" (their square), "mismatch"
            (the share of an integer output that differs), each of the worst judged output or of ``output``; "metric" or
            "agreement" (0 to 1).
        value: The bound; for "metric" with ``relative`` the distance from the FP32 network's own metric.
        relative: ``value`` is added to the base; with ``percent`` as a share of its size.
        base: The FP32 network's metric and its parts, the headline first; empty until it is measured.
        output: The judged output that is bounded, None for the worst one.
        part: Which part of the metric is bounded; None for the headline, `EVERY` for each.
    """

    kind: str
    value: float
    relative: bool = False
    percent: bool = False
    base: Mapping[str, float] = field(default_factory=dict)
    source: str = ""
    output: str | None = None
    part: str | None = None

    @property
    def bound(self) -> float | None:
        """The value to reach; None until the base is known, and where each part has its own."""
        if not self.relative:
            return self.value
        base = next(iter(self.base.values()), None) if self.part is None else self.base.get(self.part)
        if base is None:
            return None
        return base + (abs(base) * self.value / 100 if self.percent else self.value)

    def each(self, verdict: Verdict) -> list[Target]:
        """A target for each part of a verdict's metric where it bounds each; else itself."""
        if self.part != EVERY:
            return [self]
        return [replace(self, part=name, source="") for name in verdict.metric if name in self.base or not self.relative
                ] or [self]

    def _at(self, verdict: Verdict) -> Target:
        """The target of the one part of a verdict that is worst off, where it bounds each part."""
        figures = [(one, verdict.metric[one.part or ""] - bound) for one in self.each(verdict)
                   if one.part in verdict.metric and (bound := one.bound) is not None]
        if self.part != EVERY:
            return self
        return min(figures, key=lambda pair: pair[1])[0] if figures else self

    @property
    def text(self) -> str:
        """The target as it is written on the command line."""
        if self.source:
            return self.source
        kind = self.kind if self.part is None else f"{self.kind}[{self.part}]"
        if self.relative:
            return f"{kind}>=base{self.value:+g}{'%' if self.percent else ''}"
        if self.part is not None:
            return f"{kind}>={self.value:g}"
        where = f"{self.output}:" if self.output is not None else ""
        return f"{where}{self.kind}{'<=' if self.kind in UPPER else '>='}{self.value:g}"

    @property
    def title(self) -> str:
        """What its figure is called, as the head of a column: ``SQNR``, ``top-1``, a metric's or a part's own name."""
        if self.kind == "metric":
            name = next(iter(self.base), "metric") if self.part is None else self.part
            return "worst part" if self.part == EVERY else name.rpartition(".py:")[2]
        return {"sqnr": "SQNR", "agreement": "top-1", "max_abs": "max error", "mean_abs": "mean error",
                "mse": "MSE", "mismatch": "differing"}.get(self.kind, self.kind)

    @property
    def shown(self) -> str:
        """The target in words."""
        bound, of = self.bound, f" of {self.output}" if self.output else ""
        if self.kind == "sqnr":
            return f"SQNR{of} ≥ {self.value:g} dB"
        if self.kind in UPPER:
            words = {"max_abs": "largest error", "mean_abs": "mean error", "mismatch": "share that differs"}
            return f"{words.get(self.kind, 'MSE')}{of} ≤ {self.value:g}"
        if self.kind == "cosine":
            return f"cosine{of} ≥ {self.value:g}"
        if self.kind == "agreement":
            return f"top-1 agreement ≥ {100 * self.value:g}%"
        if self.part == EVERY and self.relative:
            return f"each part ≥ FP32{self.value:+g}{' %' if self.percent else ''}"
        name = "each part" if self.part == EVERY else self.title
        return f"{name} ≥ {metric_figure(bound)}" if bound is not None else self.text

    def with_base(self, base: Mapping[str, float], whole: bool = True) -> Target:
        """The same target, with the FP32 network's metric and its parts as its base.

        Args:
            whole: Whether that is of all samples, so that a part that is not in it is none.

        Raises:
            InputError: there is no such part.
        """
        part = self.part
        headline = next(iter(base), "")
        if part in (headline, headline.rpartition(":")[2]):
            part = None
        elif part is not None and part not in (EVERY, *base) and base and whole:
            near = difflib.get_close_matches(part, (*base, *KINDS), 3, 0.3) or list(base)[:3]
            raise InputError(f"{self.text}: the metric has no part {part}",
                             f"It has {plural(len(base), 'part')}: {first_few(list(base), 6)}.",
                             f"Did you mean {' or '.join(near)}? metric[*] bounds each part.")
        return replace(self, base=dict(base), part=part)

    def figure(self, verdict: Verdict) -> float | None:
        """The figure of a verdict that the target bounds; None if it was not measured or is not finite."""
        if self.kind == "metric":
            part = self._at(verdict).part
            return verdict.headline if part is None else verdict.metric.get(part)
        if self.kind == "agreement":
            return verdict.agreement
        if self.output is not None:
            one = verdict.outputs.get(self.output)
            return None if one is None else self._of(one.errors)
        if self.kind in UPPER:
            figures = [self._of(one.errors) for one in verdict.outputs.values()
                       if (one.errors.mismatch is None) is (self.kind != "mismatch")]
            return _all_of(figures, max)
        if self.kind == "cosine":  # the output with the worst SQNR need not have the worst cosine
            figures = [self._of(one.errors) for one in verdict.outputs.values() if one.errors.mismatch is None]
            return _all_of(figures, min)
        worst = verdict.worst
        return None if worst is None else self._of(worst[1].errors)

    def _of(self, errors: Errors) -> float | None:
        if errors.exact:
            return {"sqnr": math.inf, "cosine": 1.0}.get(self.kind, 0.0)
        return errors.sqnr_db if self.kind == "sqnr" else getattr(errors, self.kind)

    def reached(self, verdict: Verdict) -> bool | None:
        """Whether a verdict meets the target; None where what it needs was not measured. NaN and Inf never pass."""
        if verdict.bad or verdict.failed:
            return False
        figure, bound = self.figure(verdict), self._at(verdict).bound
        if bound is None:
            return None
        if figure is None:
            return None if self._unmeasured(verdict) else False
        return figure <= bound if self.kind in UPPER else figure >= bound

    def interval(self, verdict: Verdict) -> Interval | None:
        """The interval in which the figure lies, in its own unit; None if it is unknown, as for a maximum.

        For a distance from FP32's metric both metrics are computed on the same samples, draw by draw.
        """
        spread = verdict.spread
        if spread is None or verdict.bad:
            return None
        if self.kind == "metric":
            part = self._at(verdict).part
            if part is not None and part != next(iter(verdict.metric), None):
                metric, gain, base = spread.parts.get(part), spread.part_gains.get(part), self.base.get(part)
            else:
                metric, gain, base = spread.metric, spread.gain, next(iter(self.base.values()), None)
            if not self.relative:
                return metric
            if gain is None or base is None:
                return None
            return Interval(base + gain.low, base + gain.high)
        if self.kind == "agreement":
            return spread.agreement
        return (spread.worst if self.output is None else spread.outputs.get(self.output, {})).get(self.kind)

    def between(self, verdict: Verdict) -> str:
        """The interval of the figure in words: "19.2 to 20.6 dB"; "" where there is none."""
        interval = self.interval(verdict)
        if interval is None:
            return ""
        if self.kind == "sqnr":
            low, high = (decibels(end, exact=math.isinf(end), mark="") for end in (interval.low, interval.high))
            return f"{low} to {with_unit(high)}"
        shown = {"metric": metric_figure, "cosine": cosine, "agreement": rate, "mismatch": rate}.get(self.kind, number)
        return f"{shown(interval.low)} to {shown(interval.high)}"

    def side(self, verdict: Verdict) -> bool | None:
        """Whether the whole interval of the figure meets the bound; None if it spans the bound or there is none."""
        between, bound = self.interval(verdict), self._at(verdict).bound
        if between is None or bound is None:
            return None
        ends = [end <= bound if self.kind in UPPER else end >= bound for end in (between.low, between.high)]
        return ends[0] if ends[0] is ends[1] else None

    def _unmeasured(self, verdict: Verdict) -> bool:
        if self.output is not None:
            one = verdict.outputs.get(self.output)
            return one is None or self.kind in UPPER or one.errors.mismatch is not None  # an integer output
        return self.kind in ("metric", "agreement", "mismatch") or verdict.worst is None

    def margin(self, verdict: Verdict) -> float | None:
        """By how much a verdict is better than the bound, in the figure's own unit; negative if it falls short.

        None if it was not measured. NaN and Inf fall short by infinity.
        """
        figure, bound = self.figure(verdict), self._at(verdict).bound
        if bound is None or self.reached(verdict) is None:
            return None
        if verdict.bad or verdict.failed or figure is None:
            return -math.inf
        return bound - figure if self.kind in UPPER else figure - bound

    def noise(self, verdict: Verdict) -> float | None:
        """The error's energy in units of what the target allows: 1 is just enough, 0 is exact, lower is better.

        The energy is Σ(test-ref)² / Σref² for SQNR; 1 - cosine, which is half of that for small errors; the MSE; the
        square of an absolute error. None for "metric", "agreement" and "mismatch", which are no energies, and if
        nothing was measured.
        """
        figure, bound = self.figure(verdict), self.bound
        if self.kind in ("metric", "agreement", "mismatch") or bound is None or self.reached(verdict) is None:
            return None
        if verdict.bad or verdict.failed or figure is None:
            return math.inf
        if self.kind == "sqnr":
            return 10 ** ((bound - figure) / 10)
        if self.kind == "cosine":
            figure, bound = 1 - figure, 1 - bound
        if figure == 0:
            return 0.0
        if bound <= 0:
            return math.inf
        return figure / bound if self.kind in ("cosine", "mse") else (figure / bound) ** 2

    def score(self, verdict: Verdict) -> float | None:
        """The margin in a unit that can be compared across kinds of targets; None if it was not measured.

        It is in dB of noise; for figures that are no noise in percentage points (for a metric, of the bound).
        """
        margin, noise = self.margin(verdict), self.noise(verdict)
        if margin is None:
            return None
        if noise is not None:
            return math.inf if noise == 0 else -10 * math.log10(noise) if math.isfinite(noise) else -math.inf
        return 100 * margin / (abs(self._at(verdict).bound or 0.0) or 1.0) if self.kind == "metric" else 100 * margin

    def measured(self, verdict: Verdict) -> str:
        """The figure of a verdict in words."""
        figure = self.figure(verdict)
        if verdict.bad:
            return "no outputs, as its run fails" if failure_of(verdict) else f"{verdict.bad} NaN or Inf"
        if figure is None:
            return f"no {self.kind if self.part is None else self.title}"
        if self.kind == "sqnr":
            return with_unit(decibels(figure, exact=math.isinf(figure), mark=""))
        if self.kind == "agreement":
            return f"top-1 agreement {rate(figure)}"
        shown = {"metric": metric_figure, "cosine": cosine}.get(self.kind, number)
        part = self._at(verdict).part
        name = self.kind if self.kind != "metric" else self.title if part is None else part
        return f"{name} {shown(figure)}"

    def require_measurable(self, judged: Sequence[Judged], network: Outline, metric: str | None) -> None:
        """Refuses a target whose figure is not measured on these judged outputs.

        Raises:
            InputError: the output that it names is not among ``judged``, or is none that has this figure; there is no
                metric, or nothing that agrees or differs.
        """
        named = {one.name: one for one in judged}
        if self.output is not None and self.output not in named:
            near = difflib.get_close_matches(self.output, named, 3, 0.3)
            raise InputError(f"{self.text}: {self.output} is not a judged output",
                             f"Judged: {', '.join(near or list(named)[:3])}.",
                             "Name one of them, or add it with --judge.")
        kinds = {named[self.output].kind} if self.output is not None else {one.kind for one in judged}
        if self.kind == "metric" and metric is None:
            if self.part is not None and not self.text.startswith("metric"):
                near = difflib.get_close_matches(self.part, KINDS, 1, 0.6)
                raise InputError(f"{self.text} bounds nothing that is measured",
                                 f"there are {', '.join(KINDS)}, and a metric's own name where --metric gives one",
                                 f"Did you mean {near[0]}?" if near else "Bound one of them, or name a metric.")
            raise InputError(f"{self.text} needs a metric", "there is none",
                             "Name one with --metric, with labels in the data, or bound another figure.")
        if self.kind == "agreement" and class_scores(network, judged) is None:
            raise InputError(f"{self.text} needs a classifier", "no judged output holds the scores of classes",
                             "Bound another figure, such as sqnr>=20, or a metric of yours with --metric.")
        if self.kind in PER_OUTPUT and (INTEGER if self.kind == "mismatch" else FLOAT) not in kinds:
            has = "whole numbers" if FLOAT not in kinds else "floats"
            other = "mismatch<=0.01" if FLOAT not in kinds else "sqnr>=20"
            raise InputError(f"{self.text} bounds a figure that is not measured",
                             f"{self.output or 'what is judged'} holds {has}",
                             f"Bound another figure, such as {other}.")


def parse_target(text: str) -> Target:
    """Reads "metric>=base-0.01", "metric>=base-1%", "metric[f1/8]>=base-1%" of a part, "metric[*]>=base-2%" of each,
    "f1>=93" by the name of the metric or of a part, "sqnr>=20", "cosine>=0.999", "agreement>=0.99" or "max_abs<=1e-2";
    "OUTPUT:sqnr>=20" asks it of one judged output.

    Raises:
        InputError: it is none of these.
    """
    match = _TEXT.match(text)
    number = _number(match["number"]) if match is not None else None
    if match is None or number is None:
        raise InputError(f"{text!r} is no target", "a target bounds one figure",
                         "Write metric>=base-0.01, metric>=base-1%, sqnr>=20, cosine>=0.999, agreement>=0.99 or "
                         "max_abs<=1e-2.")
    kind, output, relative, percent = match["kind"], match["output"], bool(match["base"]), bool(match["percent"])
    part = match["part"]
    if kind not in KINDS:
        kind, part = "metric", part if part is not None else kind
    elif part is not None and kind != "metric":
        raise InputError(f"{text!r} is no target", f"{kind} has no parts: a metric has",
                         f"Write {kind}>=NUMBER, or OUTPUT:{kind}>=NUMBER for one output.")
    if relative and match["number"][0] in "+-":
        raise InputError(f"{text!r} is no target", f"{match['step']} and {match['number']} are two signs",
                         f"Write {kind}>=base-{abs(number):g}{'%' if percent else ''}.")
    value = -number if match["step"] == "-" else number
    if (match["sign"] == "<=") is not (kind in UPPER):
        raise InputError(f"{text!r} is no target",
                         f"{kind} is better the {'lower' if kind in UPPER else 'higher'} it is",
                         f"Write {kind}{'<=' if kind in UPPER else '>='}{value:g}.")
    if relative and kind != "metric":
        raise InputError(f"{text!r} is no target", f"{kind} has no base: it already compares with FP32",
                         f"Write {kind}>=NUMBER.")
    if percent and not relative:
        if kind not in SHARES:
            raise InputError(f"{text!r} is no target", f"{kind} is no share of something",
                             "Write metric>=base-1%." if kind == "metric" else f"Write {kind} without %.")
        value, percent = value / 100, False
    if not math.isfinite(value):
        raise InputError(f"{text!r} is no target", "its bound is infinite",
                         f"Write {kind}{'<=' if kind in UPPER else '>='}NUMBER.")
    if kind in UPPER and value < 0:
        raise InputError(f"{text!r} is no target", f"{kind} is an error, which is never below 0",
                         f"Write {kind}<={abs(value):g}.")
    if kind in SHARES and not 0 <= value <= 1:
        raise InputError(f"{text!r} is no target", f"{kind} lies between 0 and 1", f"Write {kind}>=0.99.")
    if output is not None and kind not in PER_OUTPUT:
        raise InputError(f"{text!r} is no target", f"{kind} is one figure of all outputs", f"Write {kind}>=NUMBER.")
    return Target(kind, value, relative, percent, source=text.strip(), output=output, part=part)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _all_of(figures: Sequence[float | None], worst: Callable[[Iterable[float]], float]) -> float | None:
    """The worst of some figures; None if there are none, or one of them is unknown."""
    known = [figure for figure in figures if figure is not None]
    return worst(known) if known and len(known) == len(figures) else None


def default_target(metric: str | None, judged: Sequence[Judged], outline: Outline, labels: bool) -> Target:
    """The default: the metric if there are one and labels, else argmax agreement for a classifier, else the SQNR."""
    if metric is not None and labels:
        return Target("metric", -100 * DEFAULT_METRIC_LOSS, relative=True, percent=True)
    scores = class_scores(outline, judged)
    classes = (outline.shape(scores.tensor) or ())[1:2] if scores is not None else ()
    if classes and isinstance(classes[0], int) and classes[0] >= FEWEST_CLASSES:
        return Target("agreement", DEFAULT_AGREEMENT)
    return Target("sqnr", DEFAULT_SQNR_DB)
