"""What became of a network's groups in an engine, or would become of them, as text for a terminal."""

from collections.abc import Mapping, Sequence

from trt_tui.core.engines.inspector import IDLE, EngineReport
from trt_tui.core.engines.made import made_of
from trt_tui.core.exporters.markdown import preview_words
from trt_tui.core.measure.record import preview_record
from trt_tui.core.network.hierarchy import build_tree, titles
from trt_tui.core.network.layers import Outline
from trt_tui.session.session import Session
from trt_tui.words import plural, table

REMARKS = 5
"""Warnings of parser and builder that are listed of a run."""


def warned(remarks: Mapping[str, Sequence[str]]) -> list[str]:
    """The first warnings of parser and builder, by the group that they are about."""
    told = [f"  {name}: {text}" for name, said in remarks.items() for text in said]
    more = len(told) - REMARKS
    return told[:REMARKS] + ([f"  and {plural(more, 'more warning')}"] if more > 0 else [])


def engine_table(network: Outline, report: EngineReport) -> str:
    """What an engine made of a network's groups, and its layers counted by what they compute in."""
    counts = ", ".join(f"{count} {word}" for word, (count, _) in report.shares().items())
    made = made_of(report, network)
    places = titles(build_tree(network.layers, network.groups))
    rows = [["layer", "operator", "engine", "engine layers"]]
    for group in network.groups:
        found = made.get(group.name)
        if found is None:
            cells = ["", "not named: folded, or part of another layer"]
        else:
            precision = found.precision.label if found.precision is not None else "fused" if found.region else "?"
            cells = [precision, "; ".join(found.layers)]
        rows.append([places.get(group.name, group.name), group.operator, *cells])
    idle = sum(layer.kind == IDLE for layer in report.layers)
    return "\n".join([f"{len(report.layers)} engine layers: {counts}" + (f", {idle} idle" if idle else ""), "",
                      *table(rows, flush_left=4)])


def preview_lines(session: Session, runs: Mapping[str, str]) -> list[str]:
    """How many groups of each run a builder would not run as asked and what it warns of, or why that is not known.

    Args:
        runs: What the runs are called, by run.
    """
    lines, configs = [], session.run_configs()
    for run, title in runs.items():
        preview = session.measured(run).preview
        if preview is None or preview.refused is not None and preview.refused.absent:
            continue
        if preview.refused is not None:
            lines.append(f"{title}: no preview of its engine: {preview.refused.said}")
            continue
        lines.append(f"{title}: "
                     f"{preview_words(preview_record(session.opened.outline, configs[run], preview))}")
        lines += warned(preview.remarks)
    return lines and ["", *lines]
