"""The detail pane: its title, the causes of the error at the selected row, remedies, engine and changes."""

from collections import Counter
from collections.abc import Iterable, Sequence

from trt_tui.core.measure.causes import (
    GROUP_DETAILS,
    MIN_EXPLAINED_SHARE,
    NO_CAUSE_TEXT,
    CauseFacts,
    find_causes,
    find_worst_input,
    find_worst_range,
    find_worst_underflow,
    fp16_range_note,
    range_use_text,
)
from trt_tui.core.measure.engine_agreement import PREVIEW_REASON
from trt_tui.core.measure.results import restrict_to_common_samples
from trt_tui.core.measure.target import Target
from trt_tui.core.measure.zero_cost_kinds import list_zero_cost_moves
from trt_tui.core.moves.config import BarrierMove, KeepRuleMove, PrecisionConfig, PrecisionMove
from trt_tui.core.moves.keep_rules import KEEP_RULE_TEXTS
from trt_tui.core.network.known_defects import known_defect_lines
from trt_tui.core.network.layer_tree import GroupRow, OtherNodesRow, Scope, UngroupedRow
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.network.qdq.rewrites import refusal_workaround_text
from trt_tui.core.precision import FP16_MAX, Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.formatting import (
    NOT_MEASURED,
    SIMULATED_MARK,
    add_decibel_unit,
    cell_width,
    counted_noun_text,
    milliseconds_text,
    number_text,
    percent_text,
    percent_with_margin_text,
    run_title,
)
from trt_tui.jobs import events as ev
from trt_tui.jobs.events import Remedy
from trt_tui.jobs.requests import MeasureTensorStats
from trt_tui.session.loss_causes import collect_cause_facts, find_raised_group_causes, list_configs_before_raise
from trt_tui.session.session import Session
from trt_tui.tui.keys import find_current_key
from trt_tui.tui.spans import (
    Line,
    Span,
    choose_fitting_text,
    clip_line,
    labelled_lines,
    line_width,
    shorten_middle,
    shorten_path,
    sqnr_span,
)
from trt_tui.tui.state import engine_texts
from trt_tui.tui.state.config_status import (
    accuracy_sort_key,
    is_measuring_current_config,
    is_within_noise,
    meets_target,
    noise_distance_text,
    target_value_span,
    value_margin_text,
)
from trt_tui.tui.state.marks import OTHER_PRECISION_MARK, SAME_VALUE_MARK
from trt_tui.tui.state.rows import ColourMeasure, RowValues, SmallSharesRow, TreeModel, VisibleRow, find_engine_errors
from trt_tui.tui.state.text_plots import histogram_lines
from trt_tui.tui.table import Column, fit_table

_NARROW_CELLS = 48
"""The maximum width of a narrow pane, which has less on each line and fewer remedies."""

MEASURING_TEXT = "measuring …"
"""The text in place of values that are still to come."""

RAISING_HARMS_TEXT = "raising it makes it worse"
"""The meaning of a negative error share."""


def loss_reason_texts(session: Session, row_values: RowValues, group: FusionGroup) -> list[str]:
    """Returns the reasons for the error of a fusion group by decreasing importance.

    The known causes are those of `trt_tui.core.measure.causes`.
    """
    lines: list[str] = []
    if (
        group.name == row_values.divergence_group
        and (divergence := session.find_engine_divergence(row_values.run)) is not None
    ):
        lines.append(f"{divergence.divergence_description}{_fusion_barrier_text(row_values, group)}")
    errors = session.get_run_results(row_values.run).group_errors.get(group.name)
    accumulated = errors.accumulated if errors is not None else None
    if accumulated is not None and accumulated.nonfinite_count:
        counts = [f"{count} {word}" for count, word in ((accumulated.nan, "NaN"), (accumulated.inf, "Inf")) if count]
        lines.append(f"{' and '.join(counts)} at its output in {run_title(row_values.run)}")
    config, outline = row_values.run_config or row_values.config, row_values.model.outline
    facts = collect_cause_facts(session, config, group)
    causes = find_causes(facts)
    remedies = session.results.find_value(ev.REMEDIES, (group.name, session.config))
    lines += [cause.text if remedies and cause.kind == "range" else f"{cause.text}; {cause.remedy}" for cause in causes]
    raise_causes = find_raised_group_causes(session, list_configs_before_raise(session, config, group), group) or ()
    lines += [
        f"raised because in {group.precision_label(config.default_precision_of(group))} {cause.text}"
        for cause in raise_causes
    ]
    if (
        not causes
        and errors is not None
        and facts.reaches_output
        and (group.name in session.results.get_values(GROUP_DETAILS))
    ):
        lines.append(NO_CAUSE_TEXT)
    if errors is not None and (note := fp16_range_note(errors, causes)):
        lines.append(note)
    range_text = range_use_text(_cause_facts_if_quantized(session, row_values, group))
    if range_text and not any(cause.kind == "range" for cause in (*causes, *raise_causes)):
        lines.append(range_text)
    lines += known_defect_lines(outline, session.build_target, row_values.config.precision_of, group)
    if row_values.config.precision_of(group) is Precision.FILE and group.file_precision is not None:
        lines += [
            f"TensorRT refuses {operator} at {name}: {refusal_workaround_text(operator)}"
            for name, operator in group.file_precision.refused_nodes
        ]
    refused = [
        precision for precision in (Precision.FP16, row_values.lowest_precision) if precision in group.refusal_reasons
    ]
    return [*lines, *(f"cannot run {precision.label}: {group.refusal_reasons[precision]}" for precision in refused[:1])]


def _fusion_barrier_text(row_values: RowValues, group: FusionGroup) -> str:
    """Returns the advice to set a fusion barrier behind a group; "" if it has one or cannot have one."""
    if group.final_tensor in row_values.barrier_tensors or BarrierMove().refusal_reason(
        row_values.model.outline, group.final_tensor
    ):
        return ""
    return f"; a fusion barrier ({find_current_key('f')}) may keep it apart"


def _cause_facts_if_quantized(session: Session, row_values: RowValues, group: FusionGroup) -> CauseFacts:
    """Returns the facts of a group in its quantized type. For a group in a float type, it is the type after a
    reduction."""
    config = row_values.config
    if (
        group.resolve_file_precision(config.precision_of(group)) not in QUANTIZED_TYPES
        and row_values.quantized_type in group.allowed_precisions
    ):
        config = config.with_group_precision([group], row_values.quantized_type)
    return collect_cause_facts(session, config, group)


def split_off_best_remedies(session: Session, remedies: Sequence[Remedy]) -> tuple[list[Remedy], list[Remedy]]:
    """Returns two lists: the remedies that equal the best one within noise, and the other remedies.

    Remedies with the same displayed value are in the same list. Both keep the order of ``remedies``.

    Args:
        remedies: At least one remedy, the best first.
    """
    best = remedies[0]
    equals = [
        remedy is best or is_within_noise(session, best.shown_accuracy, remedy.shown_accuracy, both_ways=False)
        for remedy in remedies
    ]
    looks = [
        (target_value_span(session, remedy.shown_accuracy)[0], remedy.shown_accuracy.fails_every_target)
        for remedy in remedies
    ]
    equal_looks = {look for look, equals_best in zip(looks, equals, strict=True) if equals_best}
    is_equal = [
        equals_best or look in equal_looks and not remedy.shown_accuracy.nonfinite_count
        for remedy, look, equals_best in zip(remedies, looks, equals, strict=True)
    ]
    return (
        [remedy for remedy, equals_best in zip(remedies, is_equal, strict=True) if equals_best],
        [remedy for remedy, equals_best in zip(remedies, is_equal, strict=True) if not equals_best],
    )


def _split_remedies(
    session: Session, group: FusionGroup, remedies: Sequence[Remedy]
) -> tuple[Sequence[Remedy], Sequence[Remedy]]:
    """Returns the lists of `split_off_best_remedies`; before all remedies are measured, the second list has all."""
    return ((), remedies) if session.has_unfinished_remedies(group) else split_off_best_remedies(session, remedies)


_MARGIN_CELLS, _OTHER_REMEDY_CELLS = 5, 7
"""The width of a margin of error, and of all of a remedy but its name, value, margin and note."""


def list_improving_remedies(session: Session, group: FusionGroup, has_best_only: bool = False) -> list[Remedy]:
    """Returns the remedies for a fusion group whose values are better than that of the current config, the best first.

    Until all are measured, they stay in the order of their measurements, so that no line changes its place. A value
    that equals the current one within noise is no better, unless it alone meets the target. While the current value is
    unknown, all remedies are listed.

    Args:
        has_best_only: True if only the best other range and the best zero-cost move are listed.
    """
    measured = session.results.find_value(ev.REMEDIES, (group.name, session.config))
    current = session.get_run_results("config").accuracy

    def is_improvement(remedy: Remedy) -> bool:
        if current is None:
            return True
        changed, unchanged = (
            accuracy_sort_key(session, accuracy)
            for accuracy in restrict_to_common_samples([remedy.shown_accuracy, current])
        )
        return changed > unchanged and (
            not is_within_noise(session, remedy.shown_accuracy, current)
            or bool(meets_target(session, remedy.accuracy))
            and not meets_target(session, current)
        )

    remedies = list(filter(is_improvement, measured or ()))
    if not session.has_unfinished_remedies(group):
        remedies.sort(key=lambda remedy: accuracy_sort_key(session, remedy.shown_accuracy), reverse=True)
    return [
        remedy
        for index, remedy in enumerate(remedies)
        if not has_best_only or all(better.key != remedy.key for better in remedies[:index])
    ]


def _missing_improvement_text(session: Session, group: FusionGroup, width: int) -> str:
    """Returns a sentence about the remedies for a group of which none improves the value, or that they are measured; ""
    before that."""
    if session.is_measuring_remedies(group):
        return MEASURING_TEXT
    remedies = session.results.find_value(ev.REMEDIES, (group.name, session.config))
    count = len(remedies or ())
    value_text, _ = target_value_span(session, session.get_run_results("config").accuracy)
    texts = (
        f"no remedy of {count} improves {value_text} beyond noise",
        f"no remedy of {count} helps beyond noise",
        "no gain beyond noise",
    )
    return choose_fitting_text(texts, width) if count and not session.has_unfinished_remedies(group) else ""


def remedy_lines(session: Session, group: FusionGroup, width: int, has_best_only: bool = False) -> list[Line]:
    """Returns the improving remedies for a fusion group with their simulated accuracy, one line each.

    The remedies whose values equal the best value within noise come first, so that a pane with little room omits others.
    The last lines give their number, the distance that is noise, and whether further remedies are being measured. If no
    remedy improves the value, the only line says so.
    """
    remedies = list_improving_remedies(session, group, has_best_only)
    if not remedies:
        text = _missing_improvement_text(session, group, width)
        return [[(text, "dim")]] if text else []
    equal_remedies, other_remedies = _split_remedies(session, group, remedies)
    target = session.target or Target("sqnr", 0.0)
    rows: list[list[Span]] = []
    for remedy in (*equal_remedies, *other_remedies):
        text, style = target_value_span(session, remedy.shown_accuracy, False)
        is_met = bool(meets_target(session, remedy.accuracy))
        rows.append(
            [
                (find_current_key(remedy.key), "key"),
                (_short_remedy_label(remedy).ljust(8), ""),
                (text, "good" if is_met else style),
                (value_margin_text(target, remedy.shown_accuracy), "dim"),
                ("meets the target" if is_met else "", "good"),
            ]
        )
    name_cells, value_cells = (max(cell_width(row[index][0]) for row in rows) for index in (1, 2))
    if name_cells + value_cells + _OTHER_REMEDY_CELLS > width:  # a whole name needs the unit less
        rows = [[*row[:2], (row[2][0].removesuffix(" dB"), row[2][1]), *row[3:]] for row in rows]
    columns = [
        Column("", width=5),
        Column("", min_width=16),
        Column("", True),
        Column("", width=_MARGIN_CELLS, rank=2),
        Column("", rank=1),
    ]
    lines = fit_table(columns, rows, width, gap=1)[1:]
    if len(equal_remedies) > 1:
        noise, count = noise_distance_text(session, remedies[0].shown_accuracy), len(equal_remedies)
        texts = (
            f"the first {count} are equal within {noise}",
            f"first {count} equal within {noise}",
            f"{count} within {noise}",
        )
        lines.append([(choose_fitting_text(texts, width), "dim")])
    if len({remedy.accuracy.total for remedy in remedies}) > 1:
        samples_text = counted_noun_text(min(remedy.accuracy.total for remedy in remedies), "sample")
        lines.append(clip_line([(f"values on {samples_text}", "dim")], width))
    return [*lines, [(MEASURING_TEXT, "dim")]] if session.is_measuring_remedies(group) else lines


def _short_remedy_label(remedy: Remedy) -> str:
    return remedy.short_label or remedy.label.removesuffix(" range")


def _remedy_line(session: Session, group: FusionGroup, remedies: Sequence[Remedy], width: int) -> Line:
    """Returns all remedies in one line, in the longest form that fits; values that are equal within noise come first.

    If no form fits, the last remedies are omitted and counted, and the name of the first one is shortened.
    """
    equal_remedies, other_remedies = _split_remedies(session, group, remedies)
    ordered_remedies = [*equal_remedies, *other_remedies]

    def build_line(count: int, is_short: bool, name_width: int = 200) -> Line:
        line: Line = [(" try   ", "dim")]
        for index, remedy in enumerate(ordered_remedies[:count]):
            text, style = target_value_span(session, remedy.shown_accuracy)
            separator = " or " if index < len(equal_remedies) else " · "
            name = shorten_middle(_short_remedy_label(remedy) if is_short else remedy.label, name_width)
            line += [
                (f"{separator if index else ''}{find_current_key(remedy.key)}: ", "key"),
                (f"{name} ", ""),
                (
                    text.removesuffix(" dB") if is_short else text,
                    "good" if meets_target(session, remedy.accuracy) else style,
                ),
            ]
        line += [(f" +{len(remedies) - count}", "")] if count < len(remedies) else []
        return [*line, (" …", "dim")] if session.is_measuring_remedies(group) else line

    forms = [(len(remedies), False), *((count, True) for count in range(len(remedies), 0, -1))]
    first_cells = line_width(build_line(1, True)) - cell_width(_short_remedy_label(ordered_remedies[0]))
    return next(
        (line for form in forms if line_width(line := build_line(*form)) <= width),
        clip_line(build_line(1, True, max(4, width - first_cells)), width),
    )


def detail_lines(
    session: Session, row_values: RowValues, visible_row: VisibleRow | None, width: int, height: int
) -> list[Line]:
    """Returns the text of the detail pane for a row.

    If the pane has fewer than 8 lines, the reasons, the remedies and the origin of the precision have one line each.
    """
    if visible_row is None:
        return []
    row, model = visible_row.row, row_values.model
    if isinstance(row, Scope):
        return _scope_detail_lines(session, row_values, row, width, height)
    if isinstance(row, (UngroupedRow, SmallSharesRow, OtherNodesRow)):
        return [_labelled_line("why", row_note(row), width)]
    if row is None:
        layer = model.outline.layer_by_name[visible_row.node]
        group = model.outline.group_by_layer.get(visible_row.node)
        lines = [
            _labelled_line("in", ", ".join(name for name in layer.inputs if name) or "nothing", width),
            _labelled_line("out", ", ".join(name for name in layer.outputs if name) or "nothing", width),
        ]
        if group is not None:
            lines.append(_labelled_line("part", f"part of {group.name}: the fused layer has one precision", width))
        elif layer.refusal_reason:
            lines.append(_labelled_line("why", layer.refusal_reason, width))
        return lines
    if height < 8:
        return _short_detail_lines(session, row_values, row, width)[:height]
    return _long_detail_lines(session, row_values, row, width)


def row_note(row: UngroupedRow | SmallSharesRow | OtherNodesRow) -> str:
    """Returns a sentence about a row that has no precision, such as the row of very small shares."""
    if isinstance(row, UngroupedRow):
        return row.refusal_reason or "this row has no selectable precision"
    return (
        "each has less than 0.2% of the judged error; enter lists them"
        if isinstance(row, SmallSharesRow)
        else "constants, shapes, integers, casts and Q/DQ have no selectable precision"
    )


def worst_input_lines(
    session: Session, row_values: RowValues, group: FusionGroup, width: int, row_count: int
) -> list[Line]:
    """Returns a histogram of the group's worst input with its range; an empty list if no statistics are known."""
    facts = _cause_facts_if_quantized(session, row_values, group)
    if (worst_range := find_worst_range(facts)) is not None:
        tensor, tensor_stats, amax = worst_range
        return histogram_lines(tensor, tensor_stats, width, row_count, amax)
    worst_tensor = find_worst_input(group, facts.tensor_stats)
    return histogram_lines(*worst_tensor, width, row_count, None) if worst_tensor is not None else []


def _labelled_line(label: str, text: str, width: int, style: str = "") -> Line:
    return clip_line([(f" {label:<6}", "dim"), (text, style)], width)


def group_settings_text(session: Session, config: PrecisionConfig, group: FusionGroup) -> str:
    """Returns the source of a group's precision, and the other moves on the group."""
    return f"{_precision_source_text(session, config, group)}{other_moves_text(session, config, group)}"


def _precision_source_text(session: Session, config: PrecisionConfig, group: FusionGroup) -> str:
    choice = config.precision_moves.get(group.name)
    default = _default_precision_text(config, group)
    if (keep_move := config.get_moves(KeepRuleMove).get(group.name)) is not None:
        return f"{keep_move.row_note} ({KEEP_RULE_TEXTS.get(keep_move.rule, 'by name')}); {default}"
    if choice is None:
        return default
    source = {"user": "you", "file": "the file", PREVIEW_REASON: "the preview"}.get(choice.reason, choice.reason)
    has_reason = choice.reason == PREVIEW_REASON or choice.reason.startswith("search:")
    reason = session.history.state.choice_reasons.get(group.name, "") if has_reason else ""
    return f"{group.precision_label(choice.precision)} by {source}{': ' if reason else ''}{reason}; {default}"


def _default_precision_text(config: PrecisionConfig, group: FusionGroup) -> str:
    return f"default {group.precision_label(config.default_precision_of(group))}"


def other_moves_text(session: Session, config: PrecisionConfig, group: FusionGroup) -> str:
    """Returns a text about the moves on a group except those on its precision; "" if there are none."""
    moves = [
        (subject, move)
        for subject, move in config.find_moves_on_group(group)
        if not isinstance(move, (PrecisionMove, KeepRuleMove))
    ]
    config_subjects = {(move.kind, subject) for subject, move in moves}
    moves += [
        (subject, config.moves[kind.kind, subject])
        for kind, subject in list_zero_cost_moves(session.opened_network.outline, config, group)
        if (kind.kind, subject) not in config_subjects
    ]
    notes = "; ".join(dict.fromkeys(move.row_note for _, move in moves))
    reasons = session.history.state.choice_reasons  # those of raised groups say what raising them changes
    reasons_given = dict.fromkeys(
        reasons[subject] for subject, _ in moves if reasons.get(subject, "").startswith("search:")
    )
    return f"; {notes}{', set by ' if reasons_given else ''}{', '.join(reasons_given)}" if moves else ""


def share_doubt_text(row_values: RowValues, group_name: str) -> str:
    """Returns the doubts about an error share: its negative sign, its uncertain order among others; "" for none."""
    texts = [RAISING_HARMS_TEXT] * _raising_harms(row_values, group_name) + [row_values.order_doubt_text(group_name)]
    return "; ".join(filter(None, texts))


def scope_share_texts(row_values: RowValues, scope: Scope) -> list[str]:
    """Returns the reasons why the sum of the shares in a scope is no part of the error."""
    worse = sum(_raising_harms(row_values, name) for name in scope.groups)
    total = row_values.scope_values.get(scope.path, 0.0) if row_values.measure is ColourMeasure.SHARE else 0.0
    return [
        *[f"{worse} below zero: raising {'it' if worse == 1 else 'one of them'} alone increases the error"]
        * bool(worse),
        *[f"{percent_text(total)} in sum: each share is measured with one layer raised alone"] * (abs(total) > 1),
    ]


def _raising_harms(row_values: RowValues, group_name: str) -> bool:
    """Returns True if a share of the shown config is below zero with its whole interval by more than a share that is
    explained, and the value if raised is not the same."""
    share = row_values.shares.get(group_name)
    return (
        share is not None
        and not share.has_few_samples
        and share.fraction + (share.half_width or 0.0) <= -MIN_EXPLAINED_SHARE
        and row_values.find_toggle([row_values.model.outline.get_group(group_name)]).outcome_text != SAME_VALUE_MARK
    )


def _main_loss_reason(session: Session, group: FusionGroup, reason_texts: Sequence[str]) -> Span:
    """Returns the most important reason for the error of a group. If none is known, returns the reason for that."""
    if reason_texts:
        return reason_texts[0], ""
    if session.data_summary is None:
        return NOT_MEASURED, "dim"
    if group.name in session.results.get_values(GROUP_DETAILS):
        return NO_CAUSE_TEXT, "dim"
    is_awaited = is_measuring_current_config(session) or session.pending_requests.has_request(MeasureTensorStats)
    return MEASURING_TEXT if is_awaited else "not measured", "dim"


def _short_detail_lines(session: Session, row_values: RowValues, row: GroupRow, width: int) -> list[Line]:
    group = row.group
    reason_texts = loss_reason_texts(session, row_values, group)
    if _raising_harms(row_values, group.name) and not row_values.share_replacement_text(group):
        share_text = percent_text(row_values.shares[group.name].fraction, SIMULATED_MARK)
        reason_texts = [f"share {share_text}: {share_doubt_text(row_values, group.name)}", *reason_texts]
    text, style = _main_loss_reason(session, group, reason_texts)
    lines = [_labelled_line("why", text, width, style)]
    if remedies := list_improving_remedies(session, group, True):
        lines.append(_remedy_line(session, group, remedies, width))
    elif missing_text := _missing_improvement_text(session, group, width - 7):
        lines.append(_labelled_line("try", missing_text, width, "dim"))
    elif len(reason_texts) > 1:
        lines.append(_labelled_line("also", reason_texts[1], width))
    if sentences := row_implementation_texts(row_values, row):
        sentences = [*sentences[1:], sentences[0]] if row_values.preview is not None else sentences
        label = OTHER_PRECISION_MARK if row_values.has_unrequested_engine_precision(group) else "made"
        return [*lines, _labelled_line(label, "; ".join(sentences), width, row_values.implementation_style)]
    lines.append(_labelled_line("set", group_settings_text(session, row_values.config, group), width, "dim"))
    return lines


def _long_detail_lines(session: Session, row_values: RowValues, row: GroupRow, width: int) -> list[Line]:
    group = row.group
    reason_texts = loss_reason_texts(session, row_values, group)
    text, style = _main_loss_reason(session, group, reason_texts)
    lines = labelled_lines(" why", text, width, style)
    margin = 10 if width > _NARROW_CELLS else 7
    for index, remedy_line in enumerate(remedy_lines(session, group, max(10, width - margin), width <= _NARROW_CELLS)):
        lines.append([((f" try {SIMULATED_MARK}" if index == 0 else "").ljust(margin), "dim"), *remedy_line])
    lines += [
        *labelled_lines(" also", reason_texts[1:], width),  # behind the remedies, which have to be in view
        *_share_lines(session, row_values, group, width),
        *_group_error_lines(session, row_values, group, width),
        *_group_engine_lines(session, row_values, row, width),
    ]
    settings = group_settings_text(session, row_values.config, group)
    return (
        lines
        if settings == _default_precision_text(row_values.config, group)
        else [*lines, *labelled_lines(" set", settings, width)]
    )


def _share_lines(session: Session, row_values: RowValues, group: FusionGroup, width: int) -> list[Line]:
    """Returns the error share of a group with its samples and doubts."""
    share, replacement = row_values.shares.get(group.name), row_values.share_replacement_text(group)
    if replacement:
        return [[(" share    ", "dim"), (f"{replacement}: it has none", "dim")]]
    if share is None:
        return []
    all_samples = session.count_judging_samples(session.get_run_config(row_values.run))
    doubt_text = share_doubt_text(row_values, group.name)
    if share.samples >= all_samples and share.half_width is None and not share.unknown_reason and not doubt_text:
        return []  # the list has this value
    line: Line = [
        (" share    ", "dim"),
        (
            share.unknown_reason
            and f"unknown: {share.unknown_reason}"
            or percent_with_margin_text(share.fraction, share.half_width, SIMULATED_MARK, share.has_few_samples),
            "",
        ),
    ]
    if share.samples < all_samples:
        line.append((f" on {share.samples} of {counted_noun_text(all_samples, 'sample')}", "dim"))
    return [clip_line(line, width), *labelled_lines("", doubt_text, width, "dim")]


def _group_error_lines(session: Session, row_values: RowValues, group: FusionGroup, width: int) -> list[Line]:
    """Returns the errors at a group; a wide pane includes simulated ones. If FP16 is relevant, the distance to its
    limit follows."""
    lines: list[Line] = []
    errors = session.get_run_results(row_values.run).group_errors.get(group.name)
    if width > _NARROW_CELLS and errors is not None and (errors.isolated or errors.accumulated):
        (isolated_text, isolated_style), (accumulated_text, accumulated_style) = map(
            sqnr_span, (errors.isolated, errors.accumulated)
        )
        lines.append(
            clip_line(
                [
                    (" error    isolated ", "dim"),
                    (add_decibel_unit(isolated_text), isolated_style),
                    (" · accumulated ", "dim"),
                    (add_decibel_unit(accumulated_text), accumulated_style),
                    (f" in {row_values.config_name}" if width > 60 else "", "dim"),
                ],
                width,
            )
        )
    if (errors_inside := find_engine_errors(session, row_values.run).get(group.name)) is not None:
        text, style = sqnr_span(errors_inside, False)
        lines.append(
            clip_line(
                [
                    (" engine   ", "dim"),
                    ("accumulated ", "dim"),
                    (text, style),
                    (add_decibel_unit(text).removeprefix(text), "dim"),
                ],
                width,
            )
        )
    requested = group.resolve_file_precision(row_values.requested_precision(group))
    if (
        requested in (Precision.FP16, Precision.FP16_ACC_FP32)
        and errors is not None
        and errors.fp16_largest
        and find_worst_underflow(collect_cause_facts(session, row_values.run_config or row_values.config, group))
        is None
    ):
        room = (
            f"distance to FP16's limit ×{number_text(FP16_MAX / errors.fp16_largest, 2)}: "
            f"{errors.fp16_largest_layer} reaches"
        )
        lines += labelled_lines(" fp16", f"{room} {number_text(errors.fp16_largest, 2)}", width, "dim")
    return lines


def row_implementation_texts(row_values: RowValues, row: object) -> list[str]:
    """Returns sentences about a group or a scope in the preview, else in the engine; none if neither is known."""
    preview, shown_engine = row_values.preview, row_values.shown_engine
    if isinstance(row, Scope):
        text = _scope_implementation_text(row_values, row)
        return [text] if text else []
    if not isinstance(row, GroupRow):
        return []
    group, requested = row.group, row_values.requested_precision(row.group)
    return (
        engine_texts.preview_implementation_sentences(preview, group, requested, row_values.model.titles)
        if preview is not None
        else engine_texts.group_engine_sentences(shown_engine, group, requested)
        if shown_engine is not None
        else []
    )


def _scope_implementation_text(row_values: RowValues, scope: Scope) -> str:
    """Returns the number of a scope's fusion groups in each precision, from the preview or else the engine; "" if
    neither is known.

    The text also contains the number of groups in another precision than requested.
    """
    preview, shown_engine, words = row_values.preview, row_values.shown_engine, list[str]()
    implementations = (
        preview.implementations
        if preview is not None
        else shown_engine.result.implementations
        if shown_engine is not None
        else {}
    )
    for name in scope.groups:
        if (implementation := implementations.get(name)) is not None:
            group = row_values.model.outline.group_by_name[name]
            precision = (
                implementation.precision
                if preview is None
                else implementation.implemented_precision(
                    group.precision_shown_by_engine(row_values.requested_precision(group))
                )
            )
            words.append(
                precision.label
                if precision is not None
                else "fused"
                if preview is not None or implementation.in_fused_region
                else "unknown"
            )
    title = (
        f"preview {preview.builder_text}: "
        if preview is not None
        else f"{shown_engine.name}: "
        if shown_engine is not None and shown_engine.is_stale
        else ""
    )
    other_count = row_values.scope_other_counts.get(scope.path, 0)
    other_text = f" · {other_count} with {OTHER_PRECISION_MARK}" if other_count else ""
    return f"{title}{_word_counts_text(words)}{other_text}" if words else ""


def _word_counts_text(words: Iterable[str]) -> str:
    """Returns the number of occurrences of each word: ``3 FP16 · 2 INT8``."""
    return " · ".join(f"{count} {word}" for word, count in sorted(Counter(words).items()))


def _group_engine_lines(session: Session, row_values: RowValues, row: GroupRow, width: int) -> list[Line]:
    """Returns the implementation of a group in the engine or preview: precision, time, and names of engine layers."""
    shown_engine, texts = row_values.shown_engine, row_implementation_texts(row_values, row)
    style, names = row_values.implementation_style, tuple[str, ...]()
    if row_values.preview is not None:
        texts = texts if width > _NARROW_CELLS or row_values.differs_in_preview(row.group) else []
    elif shown_engine is None and session.preview_refusal is None and engine_texts.preview_refusal_text(session):
        texts, style = ["no preview of this config"], "dim"
    elif shown_engine is not None:
        mark = f"{OTHER_PRECISION_MARK} " * row_values.has_unrequested_engine_precision(row.group)
        name, _, version = shown_engine.result.builder_name.rpartition(" ")
        start = f"{mark}{name} {'.'.join(version.split('.')[:2])}{', ' if shown_engine.is_stale else ': '}"
        texts = [start + text if index == 0 else text for index, text in enumerate(texts)]
        implementation = shown_engine.result.implementations.get(row.group.name)
        names = implementation.engine_layers[:2] if implementation is not None else ()
    lines = [
        line
        for index, text in enumerate(texts)
        for line in labelled_lines("" if index else "engine", text, width, style)
    ]
    return [*lines, *([(" " * 10, ""), (shorten_middle(name, max(10, width - 10)), "dim")] for name in names)]


def _scope_detail_lines(session: Session, row_values: RowValues, scope: Scope, width: int, height: int) -> list[Line]:
    groups = row_values.model.list_groups_of_row(scope)
    detail_rows = [
        (
            "asked",
            _word_counts_text(group.precision_label(row_values.config.precision_of(group)) for group in groups),
            "",
        )
    ]
    for text in row_implementation_texts(row_values, scope):
        time_ms = row_values.scope_times.get(scope.path)
        detail_rows.append(
            (
                "made",
                text + (f" · {milliseconds_text(time_ms)}" if time_ms is not None else ""),
                row_values.implementation_style,
            )
        )
    values = row_values.group_values
    texts = {name: row_values.row_value_text(values[name]) for name in scope.groups if name in values}
    sort_values = row_values.worst_first_sort_values
    ranked = sorted(
        (name for name in texts if texts[name] != "·" and sort_values.get(name, 0.0) > 0),
        key=lambda name: -sort_values[name],
    )
    if ranked and not row_values.is_measuring_shares:
        detail_rows.append(
            (
                "worst",
                " · ".join(
                    f"{row_values.model.titles[name]} {texts[name]}" for name in ranked[: 1 if height < 8 else 3]
                )
                + (f", {doubt_text}" if (doubt_text := row_values.order_doubt_text(ranked[0], ranked)) else ""),
                "",
            )
        )
    detail_rows += [("share", text, "dim") for text in scope_share_texts(row_values, scope)]
    fixed = sum(row_values.lowest_precision not in group.allowed_precisions for group in groups)
    if fixed:
        detail_rows.append(("fixed", f"{fixed} of {len(groups)} cannot run {row_values.lowest_precision.label}", "dim"))
    return [
        line
        for label, text, style in detail_rows
        for line in (
            labelled_lines(f" {label}", text, width, style)
            if height >= 8
            else [_labelled_line(label, text, width, style)]
        )
    ][:height]


def detail_title(tree_model: TreeModel, visible_row: VisibleRow | None, width: int) -> str:
    """Returns the title of the detail pane for a row, in at most ``width`` cells.

    A long name is shortened in its middle, so that the end of the title stays.
    """
    if visible_row is None:
        return "Detail"
    row = visible_row.row
    if row is None:
        layer = tree_model.outline.layer_by_name[visible_row.node]
        name, end = layer.name, f" ─ {layer.op_type}"
    elif isinstance(row, GroupRow):
        name, end = tree_model.titles[row.group.name], f" ─ {row.group.operator}"
    elif isinstance(row, Scope):
        name, end = row.path, f" ─ {counted_noun_text(len(row.groups), 'fused layer')}"
    else:
        name, end = row.label, ""
    return f"{shorten_path(name, max(8, width - cell_width(end)))}{end}"
