"""Reports of the check of Q/DQ nodes as text and JSON."""

from collections.abc import Sequence
from typing import Any

from trt_tui.core.network.layers import NetworkOutline, QdqFinding
from trt_tui.core.network.qdq_check import QDQ_RULES
from trt_tui.formatting import counted_noun_text

LINT_FORMAT, LINT_VERSION = "trt-tui/lint", 1


def qdq_check_lines(network: NetworkOutline, findings: Sequence[QdqFinding] | None) -> list[str]:
    """Returns the findings of the check as lines of text, by rule, with the consequence and the repair.

    Args:
        findings: None if the file has no Q/DQ nodes.
    """
    if findings is None:
        return [f"{network.name} has no Q/DQ nodes to check"]
    lines = [f"{network.name}: {counted_noun_text(len(findings), 'finding')} in its Q/DQ nodes"]
    for rule in QDQ_RULES:
        of_rule = [finding for finding in findings if finding.rule == rule.name]
        if not of_rule:
            continue
        lines += ["", f"{rule.title} ({' and '.join(rule.effects)}): {len(of_rule)}"]
        lines += [f"  {finding.node}: {finding.detail}" for finding in of_rule]
        lines += [f"  consequence: {rule.consequence}", f"  repair: {rule.repair}"]
        if any(finding.repair_precision is not None for finding in of_rule):
            lines.append("  in the app: the list of zero-cost changes of the layer offers this repair.")
        lines += [f"  source: {source}" for source in rule.sources]
    return lines


def qdq_check_record(network: NetworkOutline, findings: Sequence[QdqFinding] | None) -> dict[str, Any]:
    """Returns the JSON record of the check, which follows ``lint-v1.json``.

    Args:
        findings: None if the file has no Q/DQ nodes.
    """
    rule_by_name = {rule.name: rule for rule in QDQ_RULES}
    return {
        "format": LINT_FORMAT, "version": LINT_VERSION,
        "model": {"name": network.name, "structure_sha256": network.structure_sha256},
        "has_qdq": findings is not None,
        "findings": [{
            "rule": finding.rule, "node": finding.node, **({"group": finding.group} if finding.group else {}),
            "title": rule_by_name[finding.rule].title, "detail": finding.detail,
            "effects": list(rule_by_name[finding.rule].effects),
            "consequence": rule_by_name[finding.rule].consequence, "repair": rule_by_name[finding.rule].repair,
            **({"repair_precision": finding.repair_precision.value} if finding.repair_precision is not None else {}),
            **({"conversions": [{"engine_layer": name, **({"ms": ms} if ms is not None else {})}
                                for name, ms in finding.conversions]} if finding.conversions else {}),
            "sources": list(rule_by_name[finding.rule].sources)
        } for finding in findings or ()]
    }
