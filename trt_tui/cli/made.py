"""What became of a network's groups in an engine, or would become of them, as text for a terminal."""

from collections.abc import Mapping, Sequence

from trt_tui.core.engines.group_implementations import find_group_implementations
from trt_tui.core.engines.inspector import IDLE, EngineReport
from trt_tui.core.exporters.markdown import preview_text
from trt_tui.core.measure.json_record import preview_record
from trt_tui.core.network.hierarchy import build_scope_tree, group_titles
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.formatting import counted_noun_text, table_lines
from trt_tui.session.session import Session

MAX_LISTED_WARNINGS = 5
"""Warnings of parser and builder that are listed of a run."""


def builder_warning_lines(warnings: Mapping[str, Sequence[str]]) -> list[str]:
    """The first warnings of parser and builder, by the group that they are about."""
    lines = [f"  {name}: {text}" for name, texts in warnings.items() for text in texts]
    more_count = len(lines) - MAX_LISTED_WARNINGS
    return lines[:MAX_LISTED_WARNINGS] + ([f"  and {counted_noun_text(more_count, 'more warning')}"]
                                          if more_count > 0 else [])


def engine_table(network: NetworkOutline, engine_report: EngineReport) -> str:
    """What an engine made of a network's groups, and its layers counted by what they compute in."""
    counts = ", ".join(f"{count} {word}" for word, (count, _) in engine_report.precision_shares().items())
    implementations = find_group_implementations(engine_report, network)
    titles_by_group = group_titles(build_scope_tree(network.layers, network.groups))
    rows = [["layer", "operator", "engine", "engine layers"]]
    for group in network.groups:
        implementation = implementations.get(group.name)
        if implementation is None:
            cells = ["", "not named: folded, or part of another layer"]
        else:
            precision = (implementation.precision.label if implementation.precision is not None else
                         "fused" if implementation.in_fused_region else "?")
            cells = [precision, "; ".join(implementation.engine_layers)]
        rows.append([titles_by_group.get(group.name, group.name), group.operator, *cells])
    idle = sum(layer.kind == IDLE for layer in engine_report.layers)
    return "\n".join([f"{len(engine_report.layers)} engine layers: {counts}" + (f", {idle} idle" if idle else ""), "",
                      *table_lines(rows, left_aligned_columns=4)])


def preview_lines(session: Session, run_titles: Mapping[str, str]) -> list[str]:
    """How many groups of each run a builder would not run as asked and what it warns of, or why that is not known.

    Args:
        run_titles: What the runs are called, by run.
    """
    lines, configs = [], session.list_run_configs()
    for run, title in run_titles.items():
        preview = session.get_run_results(run).preview
        if preview is None or preview.refusal is not None and preview.refusal.is_rtx_missing:
            continue
        if preview.refusal is not None:
            lines.append(f"{title}: no preview of its engine: {preview.refusal.description}")
            continue
        lines.append(f"{title}: "
                     f"{preview_text(preview_record(session.opened_network.outline, configs[run], preview))}")
        lines += builder_warning_lines(preview.builder_warnings)
    return lines and ["", *lines]
