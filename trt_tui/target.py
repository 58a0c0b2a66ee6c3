"""What a run must reach: the user's metric, argmax agreement, or the SQNR of the worst judged output."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trt_tui.core.comparison import Verdict
from trt_tui.core.judge import Judged, class_scores
from trt_tui.core.network import Outline
from trt_tui.errors import InputError

DEFAULT_SQNR_DB = 20.0
DEFAULT_AGREEMENT = 0.99
FEWEST_CLASSES = 10
"""With fewer classes the agreement is too coarse a default."""

DEFAULT_METRIC_LOSS = 0.01
"""The default target allows 1 % of the FP32 network's metric to be lost."""

_TEXT = re.compile(r"\s*(metric|sqnr|cosine|agreement)\s*>=\s*(base\s*([-+])\s*)?([0-9.eE+-]+)(\s*%)?\s*$")


@dataclass(frozen=True)
class Target:
    """A lower bound on one figure.

    Attributes:
        kind: "sqnr" (dB, worst judged output), "cosine" (worst judged output), "metric" or "agreement" (0 to 1).
        value: The bound; for "metric" with ``relative`` the distance from the FP32 network's own metric.
        relative: ``value`` is added to the base; with ``percent`` as a share of it.
        base: The FP32 network's metric, None until measured.
    """

    kind: str
    value: float
    relative: bool = False
    percent: bool = False
    base: float | None = None
    source: str = ""

    @property
    def bound(self) -> float | None:
        """The value to reach, None until the base is known."""
        if not self.relative:
            return self.value
        if self.base is None:
            return None
        return self.base * (1 + self.value / 100) if self.percent else self.base + self.value

    @property
    def text(self) -> str:
        """The target as it is written on the command line."""
        if self.source:
            return self.source
        if self.relative:
            return f"{self.kind}>=base{self.value:+g}{'%' if self.percent else ''}"
        return f"{self.kind}>={self.value:g}"

    @property
    def shown(self) -> str:
        """The target in words."""
        bound = self.bound
        if self.kind == "sqnr":
            return f"worst output ≥ {self.value:g} dB"
        if self.kind == "cosine":
            return f"worst cosine ≥ {self.value:g}"
        if self.kind == "agreement":
            return f"same top class ≥ {100 * self.value:g} %"
        return f"metric ≥ {bound:.4g}" if bound is not None else self.text

    def with_base(self, base: float | None) -> Target:
        return replace(self, base=base)

    def figure(self, verdict: Verdict) -> float | None:
        """What a verdict says of the figure that the target bounds."""
        if self.kind == "metric":
            return verdict.headline
        if self.kind == "agreement":
            return verdict.agreement
        worst = verdict.worst
        if worst is None:
            return None
        errors = worst[1].errors
        if errors.exact:
            return float("inf") if self.kind == "sqnr" else 1.0
        return errors.sqnr_db if self.kind == "sqnr" else errors.cosine

    def reached(self, verdict: Verdict) -> bool | None:
        """Whether a verdict meets the target; None where what it needs was not measured. NaN and Inf never pass."""
        if verdict.bad:
            return False
        figure, bound = self.figure(verdict), self.bound
        if bound is None:
            return None
        if figure is None:
            worst = verdict.worst
            unmeasured = self.kind in ("metric", "agreement") or worst is None
            return None if unmeasured else False
        return figure >= bound


def parse_target(text: str) -> Target:
    """Reads "metric>=base-0.01", "metric>=base-1%", "sqnr>=20", "cosine>=0.999" or "agreement>=0.99".

    Raises:
        InputError: it is none of these.
    """
    match = _TEXT.match(text)
    try:
        kind, relative, sign, number, percent = match.groups()
        value = float(number) * (-1 if sign == "-" else 1)
    except (AttributeError, ValueError):
        raise InputError(f"{text!r} is no target", "a target bounds one figure from below",
                         "Write metric>=base-0.01, metric>=base-1%, sqnr>=20, cosine>=0.999 or agreement>=0.99."
                         ) from None
    if relative and kind != "metric":
        raise InputError(f"{text!r} is no target", f"{kind} has no base: it is measured against FP32 already",
                         f"Write {kind}>=NUMBER.")
    return Target(kind, value, bool(relative), bool(percent), source=text.strip())


def default_target(metric: str | None, judged: Sequence[Judged], outline: Outline, labels: bool) -> Target:
    """The metric if there is one with labels, else argmax agreement for a classifier, else the worst output's SQNR."""
    if metric is not None and labels:
        return Target("metric", -100 * DEFAULT_METRIC_LOSS, relative=True, percent=True)
    scores = class_scores(outline, judged)
    if scores is not None and outline.shape(scores.tensor)[1] >= FEWEST_CLASSES:
        return Target("agreement", DEFAULT_AGREEMENT)
    return Target("sqnr", DEFAULT_SQNR_DB)
