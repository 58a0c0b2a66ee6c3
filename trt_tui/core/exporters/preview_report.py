"""Reports as text, Markdown and JSON: on a preview and the requested precisions, and on the check of Q/DQ nodes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from trt_tui.core.engines.group_implementations import (
    STANDALONE_QDQ,
    GroupImplementation,
    Preview,
    has_unrequested_precision,
)
from trt_tui.core.measure.engine_agreement import find_unused_quantization, unused_qdq_record
from trt_tui.core.moves.config import KeepRuleMove, PrecisionConfig
from trt_tui.core.network.layer_tree import group_titles
from trt_tui.core.network.layers import FusionGroup, NetworkOutline, QdqFinding
from trt_tui.core.network.qdq.check import QDQ_RULES
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.core.report.document import Block, Section, Table
from trt_tui.formatting import counted_noun_text, name_list_text, percent_text

PREVIEW_FORMAT, PREVIEW_VERSION = "trt-tui/preview", 1

_MAX_NAMES = 3

PREVIEW_HEADER = ("layer", "op", "asked", "made", "kernel", "around it", "")


# -- requested precisions ---------------------------------------------------------------------------------------------


def quantization_scheme_record(
    network: NetworkOutline, config: PrecisionConfig, preview: Preview | None = None
) -> dict[str, Any]:
    """Returns a JSON record of the quantization that a config requests.

    The record counts groups by operator and precision. It lists the groups that do not run in the quantized precision,
    with the reason and their MACs. MACs are the multiply-accumulate operations of one execution, if known. If the
    config has the file precision, any quantized type of the file counts as quantized. The quantized precision is then
    the lowest one in the file.

    Args:
        preview: A preview, from which the record adds the MACs that the builder runs in the quantized precision.
    """
    operators: dict[str, dict[str, int]] = {}
    skipped: dict[str, list[str]] = {}
    uses_file_precision = config.quantized is Precision.FILE
    quantized = config.find_main_low_precision(network) if uses_file_precision else config.quantized
    macs_by_group: dict[str, int] = {}
    for group in network.groups:
        requested = config.precision_of(group)
        counts = operators.setdefault(group.operator, {})
        counts[group.precision_label(requested)] = counts.get(group.precision_label(requested), 0) + 1
        macs = [item for name in group.layers if (item := network.get_layer(name).macs) is not None]
        macs_by_group[group.name] = sum(macs)
        if _runs_in_quantized_precision(group, requested, quantized, uses_file_precision):
            continue
        precision_move = config.precision_moves.get(group.name)
        reason = group.refusal_reasons.get(quantized, "") if quantized in group.refusal_reasons else ""
        if precision_move is not None and not reason:
            reason = (
                f"set to "
                f"{group.precision_label(requested)} by "
                f"{'you' if precision_move.reason == 'user' else precision_move.reason}"
            )
        if not reason and (keep_move := config.get_moves(KeepRuleMove).get(group.name)) is not None:
            reason = keep_move.row_note
        if not reason and group.file_precision is not None and requested is Precision.FILE:
            reason = f"{group.file_precision.label} in the file"
        skipped.setdefault(reason or f"another precision than {quantized.label} is requested", []).append(group.name)
    record: dict[str, Any] = {
        "quantized": quantized.value,
        "other": config.other.value,
        "as_in_file": uses_file_precision,
        "operators": operators,
        "skipped": [
            {"why": reason, "groups": names, "macs": sum(macs_by_group[name] for name in names)}
            for reason, names in skipped.items()
        ],
    }
    record["skipped"].sort(key=lambda item: -item["macs"])
    if total_macs := sum(macs_by_group.values()):
        skipped_macs = sum(item["macs"] for item in record["skipped"])
        record["macs"] = {"all": total_macs, "asked": total_macs - skipped_macs}
        if preview is not None and preview.refusal is None:
            record["macs"]["made"] = sum(
                macs_by_group[name]
                for name, implementation in preview.implementations.items()
                if implementation.precision is quantized
            )
    return record


def _runs_in_quantized_precision(
    group: FusionGroup, requested_precision: Precision, quantized_precision: Precision, uses_file_precision: bool
) -> bool:
    """Returns True if a group runs in the quantized precision of the config.

    If the config has the file precision, any quantized type counts.
    """
    nearest = group.resolve_file_precision(requested_precision)
    return (
        nearest is quantized_precision
        or uses_file_precision
        and quantized_precision in QUANTIZED_TYPES
        and nearest in QUANTIZED_TYPES
    )


def quantization_scheme_blocks(scheme_record: Mapping[str, Any]) -> list[Block]:
    """Returns the report blocks of a `quantization_scheme_record`: a table by operator, and lines."""
    columns = list(dict.fromkeys(label for counts in scheme_record["operators"].values() for label in counts))
    rows = [["operator", *columns]]
    rows += [
        [operator, *(str(counts.get(label, "")) for label in columns)]
        for operator, counts in scheme_record["operators"].items()
    ]
    quantized_label = scheme_record["quantized"].upper()
    lines = _skipped_group_lines(scheme_record)
    if "macs" in scheme_record:
        macs = scheme_record["macs"]
        builder_text = (
            f"; the builder computes {percent_text(macs['made'] / macs['all'])} in it" if "made" in macs else ""
        )
        share = percent_text(macs["asked"] / macs["all"])
        verb = "in the file" if scheme_record["as_in_file"] else "asked"
        lines.insert(0, f"{share} of {macs['all'] / 1e6:.4g} million MACs {verb} in {quantized_label}{builder_text}")
    return [Table(rows), lines]


def _skipped_group_lines(scheme_record: Mapping[str, Any]) -> list[str]:
    """Returns one line for each reason why groups do not run in the quantized precision, with the groups."""
    quantized_label, lines = scheme_record["quantized"].upper(), []
    for skipped in scheme_record["skipped"]:
        share = (
            f", {percent_text(skipped['macs'] / scheme_record['macs']['all'])} of the MACs" if skipped["macs"] else ""
        )
        lines += [
            f"not "
            f"{quantized_label}: "
            f"{counted_noun_text(len(skipped['groups']), 'fused layer')} "
            f"({name_list_text(skipped['groups'], _MAX_NAMES)}){share}: "
            f"{skipped['why']}"
        ]
    return lines


# -- precisions in the engine -----------------------------------------------------------------------------------------


def preview_record(network: NetworkOutline, config: PrecisionConfig, preview: Preview) -> dict[str, Any]:
    """Returns the JSON record of a preview: the implementation of each group, and the groups in unrequested precisions."""
    record: dict[str, Any] = {
        "format": PREVIEW_FORMAT,
        "version": PREVIEW_VERSION,
        "model": {"name": network.name, "structure_sha256": network.structure_sha256},
        "builder": "TensorRT-RTX",
        "release": preview.builder_release,
        "gpu": f"SM{preview.compute_capability[0]}{preview.compute_capability[1]}",
        "gpu_here": preview.is_gpu_present,
        "seconds": round(preview.preview_s, 3),
        "kernels": len(preview.kernels),
        "stand_alone_qdq": preview.qdq_count,
        "not_as_asked": list(preview.find_groups_in_unrequested_precision(network, config)),
        **unused_qdq_record(network, config, preview),
        "groups": {},
    }
    for group in network.groups:
        requested, implementation = config.precision_of(group), preview.implementations.get(group.name)
        entry: dict[str, Any] = {"operator": group.operator, "asked": requested.value}
        if implementation is not None:
            precision = implementation.implemented_precision(group.precision_shown_by_engine(requested))
            entry |= {"made": precision.value} if precision is not None else {}
            entry |= {
                "as_asked": not has_unrequested_precision(group, config, preview.implementations),
                "shares_kernel_with": list(implementation.sharing_groups),
                "attention_kernel": implementation.in_mha,
                "reformats": implementation.reformat_count,
                "casts": implementation.cast_count,
                "stand_alone_qdq": implementation.qdq_count,
            }
        marks = [mark for mark in preview.list_group_remarks(group, config) if mark != STANDALONE_QDQ]
        record["groups"][group.name] = entry | ({"marks": marks} if marks else {})
    return record


def preview_rows(
    network: NetworkOutline, config: PrecisionConfig, preview: Preview, titles_by_group: Mapping[str, str]
) -> list[list[str]]:
    """Returns one table row per group, with the columns of `PREVIEW_HEADER`."""
    return [
        [
            titles_by_group.get(group.name, group.name),
            group.operator,
            group.precision_label(requested),
            group_precision_text(implementation, group, requested),
            kernel_sharing_text(implementation, group, titles_by_group),
            adjacent_layers_text(implementation),
            ", ".join(preview.list_group_remarks(group, config)),
        ]
        for group in network.groups
        for requested, implementation in [(config.precision_of(group), preview.implementations.get(group.name))]
    ]


def group_precision_text(
    implementation: GroupImplementation | None, group: FusionGroup, requested_precision: Precision
) -> str:
    """Returns the precision of a group in the engine as text.

    It is "fused" if the kernel does not report a precision, and "" if no engine layer names the group.
    """
    if implementation is None:
        return ""
    precision = implementation.implemented_precision(group.precision_shown_by_engine(requested_precision))
    return precision.label if precision is not None else "fused"


def groups_in_kernel_text(
    implementation: GroupImplementation, group: FusionGroup, titles_by_group: Mapping[str, str]
) -> str:
    """Returns a text with the other groups in the kernel of a group. Names within the scope of the group are shortened."""
    scope_prefix = titles_by_group.get(group.name, "").rpartition("/")[0] + "/"
    names = [titles_by_group.get(name, name).removeprefix(scope_prefix) for name in implementation.sharing_groups]
    return name_list_text(names, _MAX_NAMES)


def kernel_sharing_text(
    implementation: GroupImplementation | None, group: FusionGroup, titles_by_group: Mapping[str, str]
) -> str:
    """Returns a text with the groups that share a kernel with a group: "alone", "with q, k", "in MHA with Softmax, PV"."""
    if implementation is None:
        return "no kernel is named after it"
    mates_text = groups_in_kernel_text(implementation, group, titles_by_group)
    if implementation.in_mha:
        return f"in MHA with {mates_text}" if mates_text else "in MHA"
    return f"with {mates_text}" if mates_text else "alone"


def adjacent_layers_text(implementation: GroupImplementation | None) -> str:
    """Returns a text that counts the casts, reformats and unfused Q/DQ around the kernel of a group."""
    if implementation is None:
        return ""
    counts = (
        (implementation.cast_count, "cast"),
        (implementation.reformat_count - implementation.cast_count, "reformat"),
        (implementation.qdq_count, "unfused Q/DQ"),
    )
    return ", ".join(
        f"{count} {noun}" if "/" in noun else counted_noun_text(count, noun) for count, noun in counts if count
    )


def preview_summary_lines(network: NetworkOutline, config: PrecisionConfig, preview: Preview) -> list[str]:
    """Returns the summary of a preview as lines of text.

    The lines count kernels and groups, and list groups in unrequested precisions and the warnings of the builder.
    """
    other_groups = preview.find_groups_in_unrequested_precision(network, config)
    shared_count = sum(bool(implementation.sharing_groups) for implementation in preview.implementations.values())
    groups = len(network.groups)
    gpu_text = "the GPU here" if preview.is_gpu_present else "no such GPU is here; nothing was executed"
    lines = [
        f"preview: "
        f"{preview.builder_text} "
        f"({gpu_text}), in {preview.preview_s:.1f} s: {counted_noun_text(len(preview.kernels), 'kernel')} "
        f"for {counted_noun_text(groups, 'fused layer')}, {shared_count} of which share one"
    ]
    reported = sum(
        group_precision_text(preview.implementations.get(group.name), group, config.precision_of(group))
        not in ("", "fused")
        for group in network.groups
    )
    lines.append(
        f"{reported - len(other_groups)} run as requested, {len(other_groups)} in another precision"
        + (f"; {groups - reported} not reported" if reported < groups else "")
    )
    if preview.qdq_count:
        lines.append(f"{preview.qdq_count} unfused Q/DQ: a fusion did not happen")
    lines += (
        f"{unused.group_name}: {unused.finding_text}" for unused in find_unused_quantization(network, config, preview)
    )
    for title, names in (
        ("no effect on the engine", preview.ineffective_groups),
        ("splits a fused attention", preview.mha_breakers),
    ):
        if names:
            lines.append(f"{title}: {name_list_text(names)}")
    return [*lines, *preview.builder_warnings]


def unbuilt_engine_lines(network: NetworkOutline, config: PrecisionConfig, preview: Preview) -> list[str]:
    """Returns lines on an engine that cannot be built here: its preview, its kernels by precision, and its unquantized
    groups."""
    if preview.refusal is not None:
        return [
            f"no preview: {preview.refusal.refusal_text}"
            + (f"; {preview.refusal.next_step}" if preview.refusal.is_rtx_missing else "")
        ]
    kernel_precisions: dict[frozenset[str], str] = {}
    for name, implementation in preview.implementations.items():
        group = network.get_group(name)
        precision_text = group_precision_text(implementation, group, config.precision_of(group))
        kernel_precisions.setdefault(frozenset((name, *implementation.sharing_groups)), precision_text)
    counts = Counter(kernel_precisions.values())
    texts = [
        f"{count} in {text}" if text != "fused" else f"{count} fused, of unknown precision"
        for text, count in counts.most_common()
    ]
    if (other_count := len(preview.kernels) - len(kernel_precisions)) > 0:
        texts.append(f"{other_count} for reformats, Q/DQ and other nodes")
    scheme = quantization_scheme_record(network, config, preview)
    quantized_label = str(scheme["quantized"]).upper()
    lines = [
        *preview_summary_lines(network, config, preview),
        f"kernels: {', '.join(texts)}",
        *_skipped_group_lines(scheme),
    ]
    if other_groups := [
        name
        for name in preview.find_groups_in_unrequested_precision(network, config)
        if config.precision_of(network.get_group(name)).value == scheme["quantized"]
    ]:
        lines.append(
            f"requested in {quantized_label}, and in another precision in the preview: "
            f"{name_list_text(other_groups, _MAX_NAMES)}"
        )
    return lines


def config_preview_sections(
    network: NetworkOutline, config: PrecisionConfig, preview: Preview | None, scheme: Mapping[str, Any] | None
) -> list[Section]:
    """Returns the sections of the report on a preview and on the requested precisions. Without a preview or a scheme,
    its section is empty.
    """
    preview_blocks: list[Block] = []
    if preview is not None:
        titles_by_group = group_titles(network)
        preview_blocks = [
            Table([PREVIEW_HEADER, *preview_rows(network, config, preview, titles_by_group)], 7),
            preview_summary_lines(network, config, preview),
        ]
    return [
        Section("", [[f"{network.name}: {config.defaults_text}"]]),
        Section("Engine preview", preview_blocks),
        Section("Requested precisions", quantization_scheme_blocks(scheme) if scheme is not None else []),
    ]


LINT_FORMAT, LINT_VERSION = "trt-tui/lint", 1


def qdq_check_lines(network: NetworkOutline, findings: Sequence[QdqFinding] | None) -> list[str]:
    """Returns the findings of the check of Q/DQ nodes as text: by rule, with the consequence and the repair.

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
    """Returns the JSON record of the check of Q/DQ nodes, which follows ``lint-v1.json``.

    Args:
        findings: None if the file has no Q/DQ nodes.
    """
    rule_by_name = {rule.name: rule for rule in QDQ_RULES}
    return {
        "format": LINT_FORMAT,
        "version": LINT_VERSION,
        "model": {"name": network.name, "structure_sha256": network.structure_sha256},
        "has_qdq": findings is not None,
        "findings": [
            {
                "rule": finding.rule,
                "node": finding.node,
                **({"group": finding.group} if finding.group else {}),
                "title": rule_by_name[finding.rule].title,
                "detail": finding.detail,
                "effects": list(rule_by_name[finding.rule].effects),
                "consequence": rule_by_name[finding.rule].consequence,
                "repair": rule_by_name[finding.rule].repair,
                **(
                    {"repair_precision": finding.repair_precision.value} if finding.repair_precision is not None else {}
                ),
                **(
                    {
                        "conversions": [
                            {"engine_layer": name, **({"ms": ms} if ms is not None else {})}
                            for name, ms in finding.conversions
                        ]
                    }
                    if finding.conversions
                    else {}
                ),
                "sources": list(rule_by_name[finding.rule].sources),
            }
            for finding in findings or ()
        ],
    }
