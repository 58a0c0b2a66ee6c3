"""A search, and what it has found so far."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trt_tui.core.measure.judgement import HeldOut
from trt_tui.core.measure.target import parse_target
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.hierarchy import build_tree, titles
from trt_tui.core.network.layers import Outline
from trt_tui.core.precision import Precision
from trt_tui.core.search import DOWNWARDS, Evaluation, LoweredLayer, Outcome
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.words import plural, simulated

FEW = 2
"""Layers that a row of the iterations names; of more it gives the number."""

SEARCHING = "the search"
"""The phase of a search that evaluates configs."""


MAX_BUILDS = 3
"""Engines that a search builds by default, where engines can run."""


def search_request(config: PrecisionConfig, tolerances: Sequence[str], *, method: str = "auto",
                   higher: Precision = Precision.FP32, rungs: Sequence[Precision] = (), ranges: bool | None = None,
                   free: bool | None = None, max_raised: int | None = None, max_latency: float | None = None,
                   max_builds: int = MAX_BUILDS, check: str | None = None, sample: str = "", hold_out: bool = True
                   ) -> rq.FindConfig:
    """Returns the request of a search, for the app and the commands alike; see `trt_tui.jobs.requests.FindConfig`.

    Args:
        ranges: Try other ranges; by default in searches that raise layers, not in those that lower them.
        free: Try what costs nothing at run time; the same default.
    """
    raises = method not in DOWNWARDS
    return rq.FindConfig(config, tuple(tolerances), method, higher, raises if ranges is None else ranges, max_raised,
                         max_latency, max_builds, check, tuple(rungs), raises if free is None else free, sample=sample,
                         hold_out=hold_out and not sample)


@dataclass
class Finding:
    """A search, and what it has found so far."""

    request: rq.FindConfig
    progress: ev.SearchProgress | None = None
    ended: ev.SearchEnded | None = None
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
        """Whether the best config meets the tolerance.

        It must do so as built if its engine was judged, as exported if that was executed, and on the held-out samples
        if there are any.
        """
        if self.ended is not None:
            confirmed, held_out = self.ended.confirmed, self.ended.held_out
            met = self.ended.result.met if confirmed is None else confirmed
            exported = self.ended.exported
            met = met and (exported is None or exported.met is not False)
            return met and (held_out is None or held_out.judgement.passed)
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

    def record(self, outline: Outline) -> dict[str, Any]:
        """How the config was found, as precision.json holds it; empty while the search goes on."""
        if self.ended is None:
            return {}
        result = self.ended.result
        record: dict[str, Any] = {
            "method": self.request.method, "how": self.ended.how, "met": self.met, "said": result.said,
            "evaluations": result.evaluations, "candidates": self.ended.candidates, "why": dict(result.why),
            "remarks": list(self.ended.remarks)}
        if rows := lowered_table(result.rows, outline, self.request):
            header, *parts = rows
            record["lowered"] = [{**dict(zip(header, row, strict=True)), "layer": one.layer}
                                 for one, row in zip(result.rows, parts, strict=True)]
        if (told := self.ended.target_result) is not None:
            record["result"] = {"outcome": told.outcome.value, "reasons": list(told.reasons)}
        if self.ended.confirmed is not None:
            record["confirmed_by_engine"] = self.ended.confirmed
        if (held_out := self.ended.held_out) is not None:
            record["held_out"] = {"samples": held_out.samples, "chosen_on": held_out.chosen_on,
                                  "met": held_out.judgement.passed, "figure": held_out.judgement.figure}
        if (exported := self.ended.exported) is not None:
            record["exported_network"] = {"executor": exported.executor, "met": exported.met, "said": exported.text}
        if self.request.check is not None:
            record["check"] = self.request.check
        return record


def lowered_table(rows: Sequence[LoweredLayer], outline: Outline, request: rq.FindConfig) -> list[list[str]]:
    """What a strategy that goes downwards has tried, with a header; [] where it tried nothing.

    The columns are those of the published procedure: place, layer, shape of its result, similarity at the judged
    outputs when it is lowered, the threshold, why it is chosen for the higher precision, and whether it sticks to it.
    """
    if not rows:
        return []
    places = titles(build_tree(outline.layers, outline.groups))
    threshold, higher = " and ".join(request.tolerances) or "check", request.higher.label
    table = [["index", "layer", "shape", "similarity", "threshold", "choose this layer because", "sticks"]]
    for place, row in enumerate(rows):
        shape = outline.shape(outline.group(row.layer).tail)
        sizes = "x".join("?" if size is None else str(size) for size in shape) if shape is not None else ""
        similarity = simulated(row.similarity)
        because = f"lowered, it misses the threshold with {similarity}" if row.sticks else ""
        table.append([str(place), places.get(row.layer, row.layer), sizes, similarity, threshold, because,
                      higher if row.sticks else ""])
    return table


def iteration_table(evaluations: Sequence[Evaluation], built: Mapping[int, str], outline: Outline,
                    request: rq.FindConfig, base: Mapping[str, float]) -> list[list[str]]:
    """Every config that a search has tried, with a header: which step asked, about what, how it differs from the start,
    each tolerance's figure, and what its engine yields.

    Args:
        built: What engines yield, by the number of the evaluation; see `trt_tui.jobs.events.SearchEnded`.
        base: The metric of the reference and its parts, {} without one.
    """
    targets = [target.with_base(base, whole=False) if target.kind == "metric" else target
               for target in map(parse_target, request.tolerances)]
    places = titles(build_tree(outline.layers, outline.groups))
    rows = [["", "step", "about", "config", *(request.tolerances or ["check"]), "", "engine"]]
    for number, one in enumerate(evaluations):
        verdict = one.judgement.verdict
        figures = [simulated(target.measured(verdict)) if verdict is not None else "" for target in targets]
        rows.append([str(number + 1), one.step, places.get(one.about, one.about), _changes(one, request, places),
                     *(figures or [one.judgement.figure]), one.judgement.target_result.outcome.value,
                     built.get(number, "")])
    return rows if built else [row[:-1] for row in rows]


def _changes(one: Evaluation, request: rq.FindConfig, places: Mapping[str, str]) -> str:
    """How a config that was tried differs from the start: "o_proj in FP32, SmoothQuant, 2 ranges by entropy"."""
    if 0 < len(one.raised) <= FEW:
        said = [f"{places.get(name, name)} in {one.rungs.get(name, request.higher).label}" for name in one.raised]
    else:
        said = [one.in_words(request.higher)] if one.raised else []
    counts = Counter(choice.method for choice in one.ranges.values())
    said += [*one.free, *(f"{plural(count, 'range')} by {method}" for method, count in counts.items())]
    return ", ".join(said) or "the start"


def held_out_words(held_out: HeldOut) -> str:
    """The result of a search on samples that it has not used, in words.

    For example "chosen on 64 samples; on 32 held out ~19.8 dB: FAIL?: the 95 % interval 19.2 to 20.6 dB spans the
    target".
    """
    told = held_out.judgement
    return (f"chosen on {held_out.chosen_on} samples; on {held_out.samples} held out {simulated(told.figure)}: "
            f"{told.target_result.text}")


def found_so_far(finding: Finding) -> str:
    """The best of a search in words: "3 in FP32, 2 other ranges: met, ~20.4 dB"."""
    best = finding.best
    if best is None:
        return "nothing yet"
    changed = [best.in_words(finding.request.higher)]
    changed += best.free
    if best.ranges:
        changed.append(f"{plural(len(best.ranges), 'other range')}")
    return f"{', '.join(changed)}: {'met' if finding.met else 'not met'}, {simulated(best.judgement.figure)}"
