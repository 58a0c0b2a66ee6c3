"""A search, and what it has found so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.search import Evaluation, Outcome
from trt_tui.jobs import messages as m

SEARCHING = "the search"
"""The phase of a search that evaluates configs."""


@dataclass
class Finding:
    """A search, and what it has found so far."""

    request: m.FindConfig
    progress: m.SearchProgress | None = None
    ended: m.SearchEnded | None = None
    taken: PrecisionConfig | None = None

    @property
    def best(self) -> Evaluation | None:
        """The evaluation of the best config so far; None while nothing is evaluated."""
        if self.ended is not None:
            return self.ended.result.best
        return self.progress.best if self.progress is not None else None

    @property
    def config(self) -> PrecisionConfig | None:
        """The best config so far; None while nothing is evaluated."""
        if self.best is None:
            return None
        if self.ended is not None:
            return self.ended.result.config
        return self.progress.config if self.progress is not None else None

    @property
    def met(self) -> bool:
        """Whether the best config meets the tolerance, as built too where its engine was judged."""
        if self.ended is not None:
            confirmed = self.ended.confirmed
            return self.ended.result.met if confirmed is None else confirmed
        return self.progress is not None and self.progress.met

    @property
    def why(self) -> dict[str, str]:
        """Why each group is raised, and who set each range, by the name of the group or the tensor."""
        ranges = self.best.ranges if self.best is not None else {}
        reasons = self.ended.result.why if self.ended is not None else {}
        return {**dict.fromkeys(ranges, f"search:{self.request.method}"), **reasons}

    @property
    def finished(self) -> bool:
        """Whether it came to its end by itself."""
        return (self.ended is not None and not self.ended.stopped
                and self.ended.result.outcome is not Outcome.SEARCHING)

    def record(self) -> dict[str, Any]:
        """How the config was found, as precision.json holds it; empty while the search goes on."""
        if self.ended is None:
            return {}
        result = self.ended.result
        record: dict[str, Any] = {
            "method": self.request.method, "how": self.ended.how, "met": self.met, "said": result.said,
            "evaluations": result.evaluations, "candidates": self.ended.candidates, "why": dict(result.why),
            "remarks": list(self.ended.remarks)}
        if self.ended.confirmed is not None:
            record["confirmed_by_engine"] = self.ended.confirmed
        if self.request.check is not None:
            record["check"] = self.request.check
        return record


def found_so_far(finding: Finding, mark: str = "~") -> str:
    """The best of a search in words: "3 in FP32, 2 other ranges: met, ~20.4 dB"."""
    best = finding.best
    if best is None:
        return "nothing yet"
    changed = [f"{len(best.raised)} in {finding.request.higher.label}"]
    if best.ranges:
        changed.append(f"{len(best.ranges)} other range{'s' * (len(best.ranges) != 1)}")
    figure = best.judgement.figure
    return (f"{', '.join(changed)}: {'met' if finding.met else 'not met'}, "
            f"{mark if figure[:1].isdigit() else ''}{figure}")
