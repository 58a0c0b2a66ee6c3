"""What a config asks for and what a builder would make of it, as text, Markdown and JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

from trt_tui.core.codes import CODES
from trt_tui.core.engines.made import Made, differs
from trt_tui.core.engines.preview import ALONE, Preview
from trt_tui.core.exporters.markdown import markdown_table, text_cell
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.keep import Keep
from trt_tui.core.network.layers import Group, Outline
from trt_tui.core.precision import Precision
from trt_tui.words import first_few, percent, plural, table

FORMAT, VERSION = "trt-tui/preview", 1

_MOST = 3

HEADER = ("layer", "op", "asked", "made", "kernel", "around it", "")


# -- what is asked ----------------------------------------------------------------------------------------------------


def scheme_record(network: Outline, config: PrecisionConfig, preview: Preview | None = None) -> dict[str, Any]:
    """Groups by operator and precision, what is left out of the quantized precision, why, and its share of the work.

    MACs are multiply-accumulates of one run, of the groups of which they are known. Of a config as in the file, the
    quantized precision is the lowest one that the file uses; any quantized type in it counts.

    Args:
        preview: Adds the share that the builder computes in it.
    """
    operators: dict[str, dict[str, int]] = {}
    skipped: dict[str, list[str]] = {}
    as_in_file = config.quantized is Precision.FILE
    low = config.lowest_in_use(network) if as_in_file else config.quantized
    work: dict[str, int] = {}
    for group in network.groups:
        asked = config.precision_of(group)
        counts = operators.setdefault(group.operator, {})
        counts[group.label(asked)] = counts.get(group.label(asked), 0) + 1
        macs = [one for name in group.layers if (one := network.layer(name).macs) is not None]
        work[group.name] = sum(macs)
        if _is_low(group, asked, low, as_in_file):
            continue
        choice = config.groups.get(group.name)
        why = group.refusals.get(low, "") if low in group.refusals else ""
        if choice is not None and not why:
            why = f"set to {group.label(asked)} by {'you' if choice.reason == 'user' else choice.reason}"
        if not why and (kept := config.of(Keep).get(group.name)) is not None:
            why = kept.note
        if not why and group.given is not None and asked is Precision.FILE:
            why = f"{group.given.label} in the file"
        skipped.setdefault(why or f"{low.label} is not what it was given", []).append(group.name)
    record: dict[str, Any] = {
        "quantized": low.value, "other": config.other.value, "as_in_file": as_in_file, "operators": operators,
        "skipped": [{"why": why, "groups": names, "macs": sum(work[name] for name in names)}
                    for why, names in skipped.items()]}
    record["skipped"].sort(key=lambda one: -one["macs"])
    if everything := sum(work.values()):
        rest = sum(one["macs"] for one in record["skipped"])
        record["macs"] = {"all": everything, "asked": everything - rest}
        if preview is not None and preview.refused is None:
            record["macs"]["made"] = sum(work[name] for name, made in preview.made.items() if made.precision is low)
    return record


def _is_low(group: Group, asked: Precision, low: Precision, as_in_file: bool) -> bool:
    """Returns True if a group runs in the quantized precision; as in a file in any quantized type, if that is one."""
    stands_for = group.stands_for(asked)
    return stands_for is low or as_in_file and low in CODES and stands_for in CODES


def scheme_lines(record: Mapping[str, Any]) -> list[str]:
    """A record of `scheme_record` in words."""
    columns = list(dict.fromkeys(label for counts in record["operators"].values() for label in counts))
    rows = [["operator", *columns]]
    rows += [[operator, *(str(counts.get(label, "")) for label in columns)]
             for operator, counts in record["operators"].items()]
    low = record["quantized"].upper()
    lines = [*table(rows), ""]
    if "macs" in record:
        macs = record["macs"]
        made = f"; the builder computes {percent(macs['made'] / macs['all'])} in it" if "made" in macs else ""
        share = percent(macs["asked"] / macs["all"])
        verb = "in the file" if record["as_in_file"] else "asked"
        lines += [f"{share} of {macs['all'] / 1e6:.4g} million MACs {verb} in {low}{made}"]
    for one in record["skipped"]:
        share = f", {percent(one['macs'] / record['macs']['all'])} of the MACs" if one["macs"] else ""
        lines += [f"not {low}: {plural(len(one['groups']), 'group')} ({first_few(one['groups'], _MOST)}){share}: "
                  f"{one['why']}"]
    return lines


# -- what is made of it -----------------------------------------------------------------------------------------------


def preview_record(network: Outline, config: PrecisionConfig, preview: Preview) -> dict[str, Any]:
    """What became of each group, and of how many as asked."""
    record: dict[str, Any] = {
        "format": FORMAT, "version": VERSION,
        "model": {"name": network.name, "structure_sha256": network.structure_sha256},
        "builder": "TensorRT-RTX", "release": preview.release, "gpu": f"SM{preview.target[0]}{preview.target[1]}",
        "gpu_here": preview.here, "seconds": round(preview.seconds, 3), "kernels": len(preview.kernels),
        "stand_alone_qdq": preview.qdq, "not_as_asked": list(preview.otherwise(network, config)), "groups": {}}
    for group in network.groups:
        asked, made = config.precision_of(group), preview.made.get(group.name)
        entry: dict[str, Any] = {"operator": group.operator, "asked": asked.value}
        if made is not None:
            seen = made.seen(group.seen_as(asked))
            entry |= {"made": seen.value} if seen is not None else {}
            entry |= {"as_asked": not differs(group, config, preview.made), "shares_kernel_with": list(made.shares),
                      "attention_kernel": made.mha, "reformats": made.reformats, "casts": made.casts,
                      "stand_alone_qdq": made.qdq}
            entry |= {"summed_in": made.sums.value} if made.sums is not None else {}
        if told := preview.remarks.get(group.name):
            entry["remarks"] = list(told)
        marks = [mark for mark in preview.marks(group, config) if mark != ALONE]
        record["groups"][group.name] = entry | ({"marks": marks} if marks else {})
    return record


def preview_rows(network: Outline, config: PrecisionConfig, preview: Preview, titles: Mapping[str, str]
                 ) -> list[list[str]]:
    """One row per group, under `HEADER`."""
    rows = []
    for group in network.groups:
        asked, made = config.precision_of(group), preview.made.get(group.name)
        rows.append([titles.get(group.name, group.name), group.operator, group.label(asked),
                     made_word(made, group, asked), kernel_words(made, group, titles), around_words(made),
                     ", ".join(preview.marks(group, config))])
    return rows


def made_word(made: Made | None, group: Group, asked: Precision) -> str:
    """What a group computes in: a precision, "fused" where its kernel does not tell, "" where none names it."""
    if made is None:
        return ""
    seen = made.seen(group.seen_as(asked))
    return seen.label if seen is not None else "fused"


def shared_with(made: Made, group: Group, titles: Mapping[str, str]) -> str:
    """The groups in a group's kernel; those beside it in the tree without their scope, which is its own."""
    beside = titles.get(group.name, "").rpartition("/")[0] + "/"
    return first_few([titles.get(name, name).removeprefix(beside) for name in made.shares], _MOST)


def kernel_words(made: Made | None, group: Group, titles: Mapping[str, str]) -> str:
    """What a group shares its kernel with: "alone", "with q, k", "in MHA with Softmax, PV"."""
    if made is None:
        return "none has its name"
    others = shared_with(made, group, titles)
    sums = f", summed in {made.sums.label}" if made.sums is not None else ""
    if made.mha:
        return (f"in MHA with {others}" if others else "in MHA") + sums
    return (f"with {others}" if others else "alone") + sums


def around_words(made: Made | None) -> str:
    """What is in front of a group's kernel and behind it."""
    if made is None:
        return ""
    counts = ((made.casts, "cast"), (made.reformats - made.casts, "reformat"), (made.qdq, "Q/DQ alone"))
    return ", ".join(f"{count} {word}" if "/" in word else plural(count, word) for count, word in counts if count)


def preview_summary(network: Outline, config: PrecisionConfig, preview: Preview) -> list[str]:
    """How many kernels there are for how many groups, how many groups run as asked, and what the builder warns of."""
    others = preview.otherwise(network, config)
    shared = sum(bool(made.shares) for made in preview.made.values())
    groups = len(network.groups)
    where = "the GPU here" if preview.here else "no GPU of that kind is here; nothing was run"
    lines = [f"preview: {preview.name} ({where}), in {preview.seconds:.1f} s: {plural(len(preview.kernels), 'kernel')} "
             f"for {plural(groups, 'group')}, {shared} of which share one"]
    told = sum(made_word(preview.made.get(group.name), group, config.precision_of(group)) not in ("", "fused")
               for group in network.groups)
    lines.append(f"{told - len(others)} run as asked, {len(others)} otherwise" + (
        f"; of {groups - told} no kernel tells" if told < groups else ""))
    if preview.qdq:
        lines.append(f"{preview.qdq} Q/DQ stand alone: a fusion did not happen")
    for what, names in (("no effect on the engine", preview.no_effect), ("takes a fused attention apart",
                                                                         preview.breaks_mha)):
        if names:
            lines.append(f"{what}: {first_few(names)}")
    lines += (f"fusion barrier {tensor}: {one.said}" for tensor, one in preview.barred.items())
    return [*lines, *(f"{name}: {text}" for name, told in preview.remarks.items() for text in told)]


def preview_markdown(network: Outline, config: PrecisionConfig, preview: Preview | None, titles: Mapping[str, str],
                     scheme: Mapping[str, Any] | None = None) -> str:
    """The same as a report."""
    lines = [f"# What the builder makes of {text_cell(network.name)}", ""]
    if preview is not None:
        lines += [f"- {text_cell(line)}" for line in preview_summary(network, config, preview)]
        rows = [list(map(text_cell, row)) for row in preview_rows(network, config, preview, titles)]
        lines += ["", *markdown_table(HEADER, rows), ""]
    if scheme is not None:
        lines += ["## What is asked", "", *_scheme_markdown(scheme), ""]
    return "\n".join(lines)


def _scheme_markdown(record: Mapping[str, Any]) -> list[str]:
    columns = list(dict.fromkeys(label for counts in record["operators"].values() for label in counts))
    rows: Sequence[Sequence[str]] = [[text_cell(operator), *(str(counts.get(label, "")) for label in columns)]
                                     for operator, counts in record["operators"].items()]
    said = scheme_lines(record)[len(rows) + 2:]
    return [*markdown_table(("operator", *columns), rows), "", *(f"- {text_cell(line)}" for line in said)]
