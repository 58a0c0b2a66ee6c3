"""Explanations of values, columns, marks and words: what each is, how it came about, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trt_tui.core.measure.error_metrics import CONFIDENCE
from trt_tui.core.measure.results import Accuracy, EngineResult, ExportedRun
from trt_tui.core.measure.target import Target, TargetOutcome
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layer_tree import GroupRow, OtherNodesRow, Row, Scope, tensor_shape_text
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.precision import Precision
from trt_tui.core.report.glossary import Term, explain_word, find_marks, find_term, list_marks, list_words
from trt_tui.formatting import (
    EXPORTED,
    FP32_TITLE,
    MIN_SHOWN_SHARE,
    NOT_MEASURED,
    RUN_TITLES,
    SIMULATED_MARK,
    counted_noun_text,
    number_text,
    run_title,
    take_first_cells,
)
from trt_tui.session.comparison_report import quiet_part_text
from trt_tui.session.results import RESULT_SUFFIXES, find_decisive_outcome, outcome_texts
from trt_tui.session.search_status import SearchStatus
from trt_tui.session.session import Session
from trt_tui.tui.keys import shown_key
from trt_tui.tui.spans import Line, find_span, labelled_lines, shorten_path, wrap_text
from trt_tui.tui.state import detail, engine_texts
from trt_tui.tui.state.columns import LAYER_COLUMNS, NAME_COLUMN, LayerColumn, build_row_cells
from trt_tui.tui.state.config_list import find_toggled_accuracy, find_toggled_config
from trt_tui.tui.state.config_status import config_name, config_title, find_displayed_target
from trt_tui.tui.state.marks import MARGIN_MARK
from trt_tui.tui.state.rows import ColourMeasure, RowValues, SmallSharesRow, VisibleRow
from trt_tui.tui.state.search_result import SearchOption, search_check_texts
from trt_tui.tui.state.summary import SummaryColumn, SummaryRow
from trt_tui.tui.state.text_plots import BAR_BLOCKS

_VALUE_CELLS = 24
"""The width in which the value of a cell is drawn, wider than in the list, so that it is not shortened."""


@dataclass(frozen=True)
class Explanation:
    """The explanation of a value or a word.

    Attributes:
        title: The column or the word.
        subject: The row that the value belongs to; "" if there is none.
        value: The explained value as the screen shows it; "" if there is none.
        texts: Paragraphs, each with a label of at most 6 cells or without one.
    """

    title: str
    texts: tuple[tuple[str, str], ...]
    subject: str = ""
    value: str = ""

    def heading(self, width: int) -> str:
        """Returns the heading of the dialog. A long row name is shortened to the width."""
        if not self.subject:
            return self.title
        return f"{self.title} · {shorten_path(self.subject, max(8, width - len(self.title) - 3))}"

    def build_lines(self, width: int) -> list[Line]:
        """Returns the wrapped texts. Labels stand in a column of their own."""
        lines: list[Line] = [[(part, "strong")] for part in wrap_text(self.value, width)]
        label_width = 7 if any(label for label, _ in self.texts) else 0
        for label, text in self.texts:
            lines += labelled_lines(label, text, width, "", label_width, "dim" if label == "next" else "key")
        return lines


def value_origin_text(
    config: str, source: str = "", samples: str = "", interval: str = "", doubts: Sequence[str] = ()
) -> str:
    """Returns where a value comes from as a sentence, with a sentence for each doubt.

    Args:
        config: The config of the value.
        source: The origin of the value, such as a simulation or an engine.
        samples: The samples that it was measured on; "" if it was measured on none.
        interval: The confidence interval of the value; "" if there is none.
        doubts: Reasons to doubt the value, and its outcome. Empty texts do not count.
    """
    parts = (
        f"of {config}",
        source,
        samples and f"measured on {samples}",
        interval and f"{CONFIDENCE:.0%} confidence interval {interval}",
    )
    return " ".join(_make_sentence(text) for text in (", ".join(filter(None, parts)), *doubts) if text)


def _make_sentence(text: str) -> str:
    """Returns a text with a full stop and a capital letter, unless its first word is a name such as "c0"."""
    is_word = text.partition(" ")[0].rstrip(",:").isalpha()
    return f"{text[:1].upper() if is_word else text[:1]}{text[1:].rstrip('.')}." if text else ""


def explain_term(term: Term) -> Explanation:
    """Returns the explanation of a word or a mark."""
    other_names = [("", f"Also: {', '.join(term.other_names)}.")] if term.other_names else []
    return Explanation(f"{term.name} {term.place}".rstrip(), (("", term.explanation), *other_names))


def list_explained_terms() -> dict[str, list[Term]]:
    """Returns all words, columns and marks that are explained, by the heading of the help page."""
    columns = [
        Term(column.names[0], column.full_explanation, (*column.names[1:], column.order_title))
        for column in LAYER_COLUMNS
    ]
    words = sorted(list_words(), key=lambda term: term.name.lower())
    return {"Columns of the list": columns, "Marks": list_marks(), "Words": words}


# -- the layer list -------------------------------------------------------------------------------------------------


def list_explained_columns(row_values: RowValues, visible_row: VisibleRow) -> list[LayerColumn]:
    """Returns the columns of a row, including columns that the screen has no room for."""
    if isinstance(visible_row.row, (SmallSharesRow, OtherNodesRow)):
        return [NAME_COLUMN]
    return [column for column in LAYER_COLUMNS if row_values.has_engines or not column.needs_engines]


def explain_column(row_values: RowValues, column: LayerColumn) -> Explanation:
    """Returns the explanation of a column."""
    title = column.title_text(row_values, _VALUE_CELLS).strip()
    return Explanation(
        title,
        (
            ("what", _column_text(row_values, column)),
            ("sort", f"A click on the title sorts by it: {column.order_title}."),
        ),
    )


def explain_cell(
    session: Session,
    row_values: RowValues,
    visible_row: VisibleRow,
    column: LayerColumn,
    disabled_reason: Callable[[str], str] = lambda action: "",
) -> Explanation:
    """Returns the explanation of the value of a row in a column.

    Args:
        disabled_reason: Returns the reason why an action is impossible on the row, by the id of the action; "" if it
            is possible.
    """
    row_cells = build_row_cells(row_values, visible_row, full_names=True)
    row, reason = visible_row.row, row_cells.reason if column.yields_to_reason else ""
    group = row.group if isinstance(row, GroupRow) else None
    value = row_cells.name
    marks = [
        *find_marks(row_cells.glyph.strip(), "before a name", row_cells.glyph),
        *find_marks(row_cells.mark, "before a name"),
    ]
    if column is not NAME_COLUMN:
        cell = row_cells.cells.get(column.id)
        spans = column.draw(cell, _VALUE_CELLS) if cell is not None else []
        value = reason or " ".join("".join(text for text, _ in spans).strip(f"█{BAR_BLOCKS}").split())
        marks = _find_cell_marks(row_values, column, group, "" if reason else value, row_cells.glyph)
    text = (
        f"No value: this row cannot run in a lower precision, because {reason}."
        if reason
        else _CELL_TEXTS[column.id](session, row_values, row)
        if value
        else _make_sentence(
            _missing_value_text(session, group is not None or column.id not in ("operator", "precision"))
        )
    )
    effects = {
        action: effect or _ROW_EFFECTS[action](session, row_values, group)
        for action, effect in column.next_steps.items()
        if group is not None and not disabled_reason(action)
    }  # without impossible or useless actions
    next_texts = [f"{shown_key(action)} {effect}" for action, effect in effects.items() if effect]
    return Explanation(
        column.title_text(row_values, _VALUE_CELLS).strip(),
        (
            ("how", text),
            ("what", _column_text(row_values, column)),
            *((mark.name, mark.explanation) for mark in marks),
            *([("next", f"{', '.join(next_texts)}.")] if next_texts else []),
        ),
        "" if column is NAME_COLUMN else row_cells.name,
        value,
    )


def _toggle_effect(session: Session, row_values: RowValues, group: FusionGroup) -> str:
    """Returns the effect of the toggle key on a row; "" if it has none, or if a negative share shows that it does harm."""
    toggled_config = find_toggled_config(session, [group])
    if toggled_config == session.config:
        return ""
    precision = toggled_config.precision_of(group)
    if precision is not Precision.FP32:
        return f"returns the row to {group.precision_label(precision)}"
    share = row_values.shares.get(group.name)
    return "" if share is not None and share.fraction <= -MIN_SHOWN_SHARE else "raises the row to FP32"


def _build_effect(session: Session, row_values: RowValues, group: FusionGroup) -> str:
    """Returns the effect of the build key on the current config; "" if it was built or executed already."""
    results, name = session.get_run_results("config"), config_name(session)
    if session.builder is None:
        return f"executes the exported network of {name}" if results.exported_run is None else ""
    return f"builds the engine of {name}" if results.engine_result is None else ""


_ROW_EFFECTS = {"toggle": _toggle_effect, "build": _build_effect}
"""The functions that return the effect of an action for a row, by the id of the action."""


def _column_text(row_values: RowValues, column: LayerColumn) -> str:
    if column.id == "share" and row_values.measure is not ColourMeasure.SHARE:
        return f"{explain_word(f'{row_values.measure.value} error')} SQNR in dB, of {row_values.config_name}."
    return column.full_explanation


def _find_cell_marks(
    row_values: RowValues, column: LayerColumn, group: FusionGroup | None, value: str, glyph: str
) -> list[Term]:
    if column.id == "precision":
        return find_marks(value.partition(" ")[2] if group is not None else value, "behind a precision")
    if column.id == "engine":
        return find_marks(value, "in the engine column")
    marks = find_marks(value, "at a value", f"{SIMULATED_MARK}{NOT_MEASURED}·?") if column.id != "operator" else []
    return [*marks, *find_marks(glyph.strip(), "before a name", glyph)] if column.id == "share" else marks


def _name_text(session: Session, row_values: RowValues, row: Row | SmallSharesRow | None) -> str:
    outline = row_values.model.outline
    if row is None or isinstance(row, Scope):
        return explain_word("node" if row is None else "scope")
    if not isinstance(row, GroupRow):
        return _make_sentence(detail.row_note(row))
    shape = outline.shapes.get(row.group.final_tensor)
    texts = (
        f"{counted_noun_text(len(row.group.layers), 'node')}: "
        f"{' + '.join(outline.layer_by_name[name].op_type for name in row.group.layers)}",
        f"its output is {tensor_shape_text(shape)}" if shape is not None else "",
        *(f"cannot run in {precision.label}: {reason}" for precision, reason in row.group.refusal_reasons.items()),
        *outline.known_issues.get(row.group.name, ()),
    )
    return " ".join(map(_make_sentence, texts))


def _precision_text(session: Session, row_values: RowValues, row: object) -> str:
    """Returns the origin of a requested precision, and its implementation in the preview or the engine."""
    source = detail.group_settings_text(session, row_values.config, row.group) if isinstance(row, GroupRow) else ""
    texts, engine = detail.row_implementation_texts(row_values, row), row_values.shown_engine
    if row_values.preview is None:
        texts.append(
            _built_origin(engine.result, engine.name)
            if engine is not None
            else engine_texts.preview_refusal_text(session)
        )
    return value_origin_text(row_values.config_name, source if row_values.run == "config" else "", doubts=texts)


def _share_text(session: Session, row_values: RowValues, row: object) -> str:
    config, results = row_values.config_name, session.get_run_results(row_values.run)
    is_share = row_values.measure is ColourMeasure.SHARE
    if not isinstance(row, GroupRow):
        rule = "the sum" if is_share else "the worst"
        doubts = detail.scope_share_texts(row_values, row) if isinstance(row, Scope) else []
        if isinstance(row, Scope) and row.path in row_values.partial_scopes:
            doubts = ["not all of them are measured"]
        return value_origin_text(config, f"{rule} of the fused layers in it", doubts=doubts)
    if replacement := row_values.share_replacement_text(row.group):
        return value_origin_text(
            row_values.config_name, f"{replacement}: the row runs in FP32, so it causes none of the error"
        )
    if row_values.measure is ColourMeasure.ENGINE and results.engine_result is not None:
        return _built_origin(results.engine_result, config)
    share = row_values.shares.get(row.group.name)
    if not is_share or share is None:
        return _simulation_origin(session, config, None if is_share else results.accuracy)
    points = f"±{number_text(100 * share.half_width, 2)} points" if share.half_width is not None else ""
    return value_origin_text(
        config,
        "simulated",
        _sample_count_text(session, share.samples),
        points,
        [share.unknown_reason or detail.share_doubt_text(row_values, row.group.name)],
    )


def _toggle_text(session: Session, row_values: RowValues, row: Row) -> str:
    groups = row_values.model.list_groups_of_row(row)
    toggled_config = find_toggled_config(session, groups)
    precision = groups[0].precision_label(toggled_config.precision_of(groups[0]))
    config = f"{row_values.config_name} with this row in {precision}"
    accuracy = find_toggled_accuracy(session, groups)
    if accuracy is not None and accuracy.samples < accuracy.total:
        samples_text = _sample_count_text(session, accuracy.samples)
        return value_origin_text(config, f"estimated for all samples from the error share on {samples_text}")
    return _simulation_origin(session, config, accuracy, session.target or Target("sqnr", 0.0))


def _cost_text(session: Session, row_values: RowValues, row: object) -> str:
    if row_values.group_times and (engine := row_values.shown_engine) is not None:
        return _built_origin(engine.result, engine.name)
    return f"{number_text(row_values.model.total_macs / 1e6)} million MACs are 100%, counted from the shapes."


_CELL_TEXTS: Mapping[str, Callable[[Session, RowValues, Any], str]] = {
    "layer": _name_text,
    "operator": _name_text,
    "precision": _precision_text,
    "engine": _precision_text,
    "share": _share_text,
    "toggle": _toggle_text,
    "cost": _cost_text,
}
"""The functions that return the origin of a value, by column."""


# -- the header and the summary table -------------------------------------------------------------------------------


def explain_header(session: Session) -> list[Explanation]:
    """Returns the explanations of the values in the top line, from left to right."""
    outline, builder, backend, data = (
        session.opened_network.outline,
        session.builder,
        session.opened_network.backend,
        session.opened_network.data,
    )
    used = min(data.what_if_count, data.judged_count)
    limit_text = "" if session.get_run_results("config").accuracy is not None else "at most "
    source = "" if session.has_explicit_target else "Nobody has set it: it is the default. "
    fp16_text = "" if backend.real_fp16 else "FP16 as FP32"
    mode = session.execution_mode.name if session.execution_mode is not None else ""
    entries = {
        "network": (
            outline.name,
            f"{counted_noun_text(len(outline.groups), 'fused layer')} of {counted_noun_text(len(outline.layers), 'node')}.",
        ),
        "target": (
            " and ".join(session.target_descriptions),
            f"{source}{explain_word('target')} {shown_key('target')} changes it.",
        ),
        "samples": (
            f"{used} of {data.judged_count}",
            f"{config_name(session)} is measured on {limit_text}{session.count_judging_samples(session.config)} of "
            f"{counted_noun_text(data.judged_count, 'sample')}; --whatif-samples sets how many. "
            f"{_make_sentence(session.ranges_source_text)}",
        ),
        "builder": (
            engine_texts.builder_texts(builder)[0] if builder is not None else "",
            "Engines run here." if builder is not None and builder.can_run else "Its engines cannot run here.",
        ),
        "simulation": (
            " · ".join(filter(None, (backend.name, backend.version, backend.device, fp16_text, mode))),
            explain_word("simulation"),
        ),
        "config": (config_title(session), explain_word("config")),
    }
    return [Explanation(title, (("", text),), value=value) for title, (value, text) in entries.items() if value]


def explain_summary_cell(session: Session, row: SummaryRow, column: SummaryColumn) -> Explanation:
    """Returns the explanation of a value in the summary table."""
    value = (find_span(row.line, column.start) or ("", ""))[0].strip(" │")
    if column.title == "output" and row.values.accuracy is not None and row.values.accuracy.worst_output is not None:
        value = row.values.accuracy.worst_output[0]
    config = session.last_built_config if row.kind == "engine" else session.get_run_config(row.run or "config")
    title = run_title(row.run) if row.run else FP32_TITLE
    row_name = config_name(session, config) if row.run == "config" else title
    built_words = ("exported network", EXPORTED) if session.builder is None else ("as built", "built")
    word, kind = built_words if column.kind == "built" else ("metric", column.kind)
    words = [column.title if find_term(column.title) is not None else word]
    if column.kind == "run":
        words, origin = ["run"], ""
    elif column.kind == "outcome":
        words = [value.split(" ")[0], "outcome"]
        origin = _outcome_text(session, row.values.accuracy, config if row.run else None, row_name)
    elif column.kind == "built" and row.kind != "exported":
        result = row.values.engine or row.values.exported_run
        origin = (
            _built_origin(result, row_name, _find_column_target(session, column))
            if result is not None
            else f"Not measured: {shown_key('build')} does it for the current config."
        )
    elif row.kind == "fp32" and row.values.accuracy is None:
        origin = "The reference has no error."
    else:
        origin = _simulation_origin(
            session, row_name, row.values.accuracy, _find_column_target(session, column), config if row.run else None
        )
    if column.title == "output":
        quiet_text = _make_sentence(quiet_part_text(session, row.values.accuracy))
        words, origin = ["judged output"], f"{origin} {quiet_text}".rstrip()
    terms = [term for term in map(find_term, words) if term is not None][:1]
    return Explanation(
        column.title if kind in column.title else f"{column.title}, {kind}",
        (
            *([("how", origin)] if origin else []),
            *(("what", term.explanation) for term in terms),
            ("run", _run_text(session, row)),
            *(
                (mark.name, mark.explanation)
                for mark in find_marks("" if column.kind == "run" else value, "at a value")
            ),
        ),
        row_name,
        value,
    )


def _find_column_target(session: Session, column: SummaryColumn) -> Target | None:
    """Returns a target that bounds the value in a column of the summary table; None if the value has no confidence
    interval."""
    metric_titles = [name.rpartition(":")[2][:7] for name in list(session.results.reference_metric)[:1]]
    kinds = {
        "SQNR": "sqnr",
        engine_texts.built_column_title(session): "sqnr",
        f"{EXPORTED} SQNR": "sqnr",
        "top-1": "agreement",
        MARGIN_MARK: find_displayed_target(session).kind,
        **dict.fromkeys(metric_titles, "metric"),
    }
    return Target(kinds[column.title], 0.0) if column.title in kinds else None


def _run_text(session: Session, row: SummaryRow) -> str:
    """Returns a sentence about the run of a row in the summary table."""
    if row.kind == "fp32":
        weights_text = session.opened_network.outline.reference_weights_text
        return f"The network in FP32. Errors are measured against {session.reference_name}. {weights_text}".rstrip()
    if row.kind not in RUN_TITLES or not row.run:
        return explain_word("as exported" if row.kind == "exported" else "engine")
    if row.run == "config":
        return f"Your current config, {config_title(session)}."
    return f"{run_title(row.run)}: {session.get_run_config(row.run).defaults_text}. Your changes do not count here."


def explain_config(session: Session, config: PrecisionConfig) -> Explanation:
    """Returns the explanation of a config in the list of configs."""
    name, accuracy = config_name(session, config), session.results.get_results_or_empty(config).accuracy
    texts = (
        ("how", _simulation_origin(session, name, accuracy)),
        ("", _outcome_text(session, accuracy, config, name)),
        ("what", explain_word("config")),
    )
    return Explanation("config", texts, name)


def _outcome_text(session: Session, accuracy: Accuracy | None, config: PrecisionConfig | None, name: str) -> str:
    """Returns the outcomes of a run with their reasons: as simulated, as exported and as built. The simulated value of
    each target has its confidence interval."""
    outcomes = session.config_target_outcomes(config) if config is not None else {}
    outcome = session.target_outcome(accuracy)
    texts = [f"{name}{RESULT_SUFFIXES[kind]}: {outcome.text}" for kind, outcome in outcomes.items()]
    intervals = [
        f"{CONFIDENCE:.0%} confidence interval of {target.column_title}, simulated: {interval}"
        for target in session.targets
        if (interval := _interval_text(accuracy, target)) and not any(interval in text for text in texts)
    ]
    texts = texts or [outcome.text if outcome is not None else "there is no outcome"]
    if len(outcome_texts(outcomes)) > 1:
        counted = find_decisive_outcome(outcomes)
        run_name = next(
            RESULT_SUFFIXES[kind].strip(", ") or "simulation" for kind in outcomes if outcomes[kind] is counted
        )
        texts.insert(0, _counted_outcome_text(counted, f"the {run_name}"))
    return " ".join(map(_make_sentence, [*texts, *intervals]))


def _counted_outcome_text(outcome: TargetOutcome | None, run_name: str) -> str:
    """Returns which of several outcomes counts; "" without an outcome."""
    return f"{outcome.outcome.value} counts, that of {run_name}; one behind it is for comparison" if outcome else ""


def _interval_text(accuracy: Accuracy | None, target: Target | None) -> str:
    """Returns the confidence interval of the value that a target bounds; "" if there is none."""
    return target.confidence_interval_text(accuracy) if accuracy is not None and target is not None else ""


def _simulation_origin(
    session: Session,
    title: str,
    accuracy: Accuracy | None,
    target: Target | None = None,
    config: PrecisionConfig | None = None,
) -> str:
    if accuracy is None:
        return value_origin_text(title, _missing_value_text(session))
    backend = session.backend_summary.name if session.backend_summary is not None else "ONNX Runtime"
    outcome = session.target_outcome(accuracy, config) if target is not None else None
    return value_origin_text(
        title,
        f"simulated in {backend} against {session.reference_name}",
        _sample_count_text(session, accuracy.samples),
        _interval_text(accuracy, target),
        [outcome.text] if outcome is not None else [],
    )


def _built_origin(result: EngineResult | ExportedRun, config: str, target: Target | None = None) -> str:
    """Returns the origin of a value of an engine or of an executed export."""
    samples = counted_noun_text(result.accuracy.samples, "sample") if result.accuracy else ""
    interval = _interval_text(result.accuracy, target)
    if isinstance(result, ExportedRun):
        return value_origin_text(
            config,
            f"the exported file, executed by {result.executor_name}",
            samples,
            interval,
            [result.missing_reason or "Its kernels round at other places than the simulation, which ± leaves out"],
        )
    return value_origin_text(config, f"from the engine, built by {result.builder_text}", samples, interval)


def _sample_count_text(session: Session, count: int) -> str:
    total = session.data_summary.judged_count if session.data_summary is not None else count
    return f"{count} of {counted_noun_text(total, 'sample')}"


def _missing_value_text(session: Session, is_measured: bool = True) -> str:
    """Returns the reason why a value is missing.

    Args:
        is_measured: False for a value that no job measures.
    """
    if session.data_summary is None:
        return "no value: there are no samples; reopen with --data"
    return (
        "no value yet: a job is running" if is_measured and session.pending_requests else "there is no such value here"
    )


def explain_search_option(session: Session, search_status: SearchStatus, option: SearchOption) -> Explanation:
    """Returns the explanation of a config that a search offers."""
    name = session.config_names.get(option.config, "the config")
    texts = search_check_texts(session, search_status, option)
    if option.outcome is not None and not any(option.outcome.text in text for text in texts):
        texts.insert(0, option.outcome.text)
    if option.simulated_outcome is not None:
        texts.insert(0, _counted_outcome_text(option.outcome, "the exported network or the engine"))
    origin = _simulation_origin(session, name, option.accuracy)
    return Explanation(option.relation, (("how", origin), *(("", _make_sentence(text)) for text in texts)), name)


# -- words on the screen --------------------------------------------------------------------------------------------


def find_term_at(text: str, x: int) -> Term | None:
    """Returns the term at a cell of a text: of all terms that cover the cell, the longest. None if there is none."""
    index = len(take_first_cells(text, x))
    words = [match.span() for match in re.finditer("[^ ]+", text)]
    at = next((number for number, (start, end) in enumerate(words) if start <= index < end), -1)
    for length in (3, 2, 1):
        for first in range(max(0, at - length + 1), min(at, len(words) - length) + 1):
            phrase = text[words[first][0] : words[first + length - 1][1]]
            if (term := find_term(phrase) or find_term(phrase.strip(",.;:()~·─ "))) is not None:
                return term
    return None


def explain_line_labels(texts: Sequence[str]) -> Explanation:
    """Returns the explanation of the detail pane: of the label of each line."""
    terms = [
        (label, term) for label in dict.fromkeys(map(_line_label, texts)) if (term := find_term(label)) is not None
    ]
    return Explanation("detail", tuple((label, term.explanation) for label, term in terms))


def find_line_label(texts: Sequence[str], y: int) -> Term | None:
    """Returns the term of the label of a line in the detail pane; a line without one continues the line above it."""
    labels = filter(None, map(_line_label, reversed(texts[: y + 1])))
    return find_term(next(labels, ""))


def _line_label(text: str) -> str:
    return text[:9].strip().partition(" ")[0]
