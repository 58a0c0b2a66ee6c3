"""The configs that a search offers, with their values, and the changes that each of them would make."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trt_tui.core.lowering.network_rewrite import reduces_precision
from trt_tui.core.measure.results import Accuracy, RunKind
from trt_tui.core.measure.target import Outcome, Target, TargetOutcome
from trt_tui.core.moves.config import (
    ConfigDifference,
    PrecisionConfig,
    list_config_differences,
)
from trt_tui.core.precision import Precision
from trt_tui.core.search import Evaluation
from trt_tui.formatting import (
    NOT_MEASURED,
    SIMULATED_MARK,
    counted_noun_text,
    duration_text,
    elapsed_text,
    milliseconds_text,
)
from trt_tui.session.results import find_decisive_outcome
from trt_tui.session.search_report import search_evidence_lines, search_method_text
from trt_tui.session.search_status import SearchStatus
from trt_tui.session.session import Session
from trt_tui.tui.spans import Line, Span
from trt_tui.tui.state.config_status import config_name, search_start_name, target_value_span, value_margin_text
from trt_tui.tui.state.marks import CLOSED_MARK, CURSOR_MARK, MARGIN_MARK
from trt_tui.tui.state.rows import TreeModel
from trt_tui.tui.state.status import waiting_text
from trt_tui.tui.table import Column, fit_table

CURRENT, EARLIER, BEST_SO_FAR, RESULT = "current", "earlier", "best so far", "result"
CHEAPER, MORE_ACCURATE = "cheaper", "more accurate"
"""The relations of the offered configs to the result of the search."""


@dataclass(frozen=True)
class SearchOption:
    """A config that a search offers, or the current config beside them.

    Attributes:
        relation: The relation to the result, such as `CHEAPER`.
        evaluation: The evaluation of the search; None if the search has not evaluated the config.
        accuracy: The simulated accuracy on the samples of the search; None if it is unknown.
        outcome: The outcome against the tolerances of the search; None if it is unknown.
        simulated_outcome: The outcome of the simulation if ``outcome`` is that of a missed check; else None.
    """

    config: PrecisionConfig
    relation: str
    evaluation: Evaluation | None
    accuracy: Accuracy | None
    outcome: TargetOutcome | None
    simulated_outcome: TargetOutcome | None = None


def list_search_options(session: Session, search_status: SearchStatus) -> tuple[SearchOption, ...]:
    """Returns the current config and the configs that a search offers, by increasing score.

    A running search offers its best config so far. A search that ended offers its result and all other configs of its
    Pareto front. If the result fails, less accurate configs are left out: they were not judged on held-out samples. If
    the result is no certain PASS, a config that is stays on offer: of the search, or of the session.
    """
    best, best_config, end_event = search_status.best_evaluation, search_status.best_config, search_status.end_event
    if best is None or best_config is None:
        return ()
    current_option = _make_named_option(session, search_status, session.config, CURRENT)
    outline, certain = session.opened_network.outline, search_status.certain_evaluation
    if end_event is None:
        options = [_make_search_option(BEST_SO_FAR, best)]
        if certain is not None and certain.config != best_config and reduces_precision(outline, certain.config):
            options.append(_make_search_option(MORE_ACCURATE, certain))
    else:
        outcome = end_event.target_outcome or best.target_result.target_outcome
        relation = RESULT if search_status.is_finished else BEST_SO_FAR
        options = [SearchOption(best_config, relation, best, best.target_result.accuracy, outcome)]
        options += [
            _make_search_option(MORE_ACCURATE if evaluation.score > best.score else CHEAPER, evaluation)
            for index in end_event.pareto_front
            if (evaluation := end_event.evaluations[index]).config != best_config
            and (evaluation.score > best.score or outcome is None or outcome.passes)
        ]
        current_option = _doubt_option(session, search_status, current_option)
        options.sort(key=lambda option: option.evaluation.score if option.evaluation is not None else 0.0)
    options = [_doubt_option(session, search_status, option) for option in options]
    if not any(option.relation in (RESULT, BEST_SO_FAR) and _is_certain(option) for option in options):
        offered_configs = {option.config for option in options}
        named_options = [
            _doubt_option(session, search_status, _make_named_option(session, search_status, config, EARLIER))
            for config in session.config_names
            if config not in offered_configs
        ]
        named_options.sort(key=lambda option: len(option.config.find_raised_groups(outline)))
        options += [*filter(_is_certain, named_options)][:1]
    return (
        current_option,
        *(option for option in options if option.config != session.config or option.relation in (RESULT, BEST_SO_FAR)),
    )


def _is_certain(option: SearchOption) -> bool:
    return option.outcome is not None and option.outcome.outcome is Outcome.PASS


def _make_search_option(relation: str, evaluation: Evaluation) -> SearchOption:
    result = evaluation.target_result
    return SearchOption(evaluation.config, relation, evaluation, result.accuracy, result.target_outcome)


def _doubt_option(session: Session, search_status: SearchStatus, option: SearchOption) -> SearchOption:
    """Returns an option, marked as failed if its exported network or its engine misses the target here or in the
    search. A pass that was only simulated is in doubt if other exported networks or engines were worse than simulated."""
    if option.outcome is None or not option.outcome.passes:
        return option
    if (missed_outcome := _find_missed_outcome(session, search_status, option.config)) is not None:
        return replace(option, outcome=missed_outcome, simulated_outcome=option.outcome)
    if option.accuracy is None or option.relation == RESULT:  # the search has executed the export of its result
        return option
    gap_text = session.find_simulation_gap_text(option.accuracy, session.targets)
    return replace(option, outcome=option.outcome.with_missed_check(gap_text, Outcome.UNCERTAIN_PASS))


def _find_missed_outcome(
    session: Session, search_status: SearchStatus, config: PrecisionConfig
) -> TargetOutcome | None:
    """Returns the outcome of the exported network or the engine of a config if it missed the target; None if not.

    The first reason gives the value with its samples.
    """
    end_event = search_status.end_event
    if end_event is not None and (text := end_event.missed_runs_text(config)):
        return TargetOutcome(Outcome.FAIL, (f"{text} on the samples of the search",))
    if {target.text for target in session.targets} != set(search_status.request.tolerances):
        return None
    for kind, name in ((RunKind.BUILT_ENGINE, "the engine"), (RunKind.EXPORTED_FILE, "the exported network")):
        run = session.results.get_results_or_empty(config).runs.get(kind)
        outcome = session.target_outcome(run.accuracy) if run is not None else None
        if run is not None and run.accuracy is not None and outcome is not None and not outcome.passes:
            reason = (
                f"{name} yields {target_value_span(session, run.accuracy, is_simulated=False)[0]} on the "
                f"{counted_noun_text(run.accuracy.samples, 'sample')} of the main screen"
            )
            return replace(outcome, reasons=(reason, *outcome.reasons))
    return None


def _make_named_option(
    session: Session, search_status: SearchStatus, config: PrecisionConfig, relation: str
) -> SearchOption:
    """Returns the option of a config of the session.

    Its values are from the search if the search evaluated the config. Of values on other samples, only the outcome is
    given. On the same samples, the outcome is that of the main screen, which knows the confidence interval of the
    metric, if both pass or both fail. An outcome for another target than that of the search is not given.
    """
    end_event = search_status.end_event
    has_same_targets = {target.text for target in session.targets} == set(search_status.request.tolerances)
    session_outcome = find_decisive_outcome(session.config_target_outcomes(config)) if has_same_targets else None
    if end_event is not None:
        evaluation = next((other for other in end_event.evaluations if other.config == config), None)
        if evaluation is not None:
            option = _make_search_option(relation, evaluation)
            if config == end_event.result.config:
                return replace(option, outcome=end_event.target_outcome or option.outcome)
            is_firmer = (
                not end_event.has_other_samples
                and session_outcome is not None
                and option.outcome is not None
                and session_outcome.passes == option.outcome.passes
            )
            return replace(option, outcome=session_outcome) if is_firmer else option
    elif config == search_status.best_config and search_status.best_evaluation is not None:
        return _make_search_option(relation, search_status.best_evaluation)
    if _search_samples_text(session, search_status):
        return SearchOption(config, relation, None, None, session_outcome)
    return SearchOption(config, relation, None, session.results.get_results_or_empty(config).accuracy, session_outcome)


def _search_samples_text(session: Session, search_status: SearchStatus) -> str:
    """Returns the samples of the search, as in "24 of 48 samples"; "" if the main screen shows values on the same
    samples.

    A search uses all samples, or holds some out for its check. The main screen uses those of ``--whatif-samples``.
    """
    count, data = search_status.sample_count, session.data_summary
    if count is None or data is None:
        return ""
    text, is_part = f"{count} of {counted_noun_text(data.judged_count, 'sample')}", count < data.judged_count
    if count == session.count_judging_samples(session.config):
        return f"other {text}" if is_part and search_status.has_other_samples else ""
    return text if is_part else f"all {counted_noun_text(count, 'sample')}"


def search_page_title(session: Session, search_status: SearchStatus) -> str:
    """Returns the title of the page: the start config, the state, the samples of the values, and the target."""
    start_name = search_start_name(session, search_status.request.config)
    target, count = " and ".join(search_status.request.tolerances), search_status.sample_count
    samples_text = _search_samples_text(session, search_status) or (
        counted_noun_text(count, "sample") if count is not None else ""
    )
    jobs = [job for job in session.pending_requests.values() if job.request is search_status.request]
    if search_status.end_event is None and jobs:
        state, duration = waiting_text(jobs[0]) or "running", f"{elapsed_text(jobs[0].duration_s)} so far"
    else:
        state = "" if search_status.is_finished else "stopped"
        duration = f"took {duration_text(search_status.duration_s)}" if search_status.end_event is not None else ""
    return ", ".join(filter(None, (f"Search from {start_name}", state, duration, samples_text, target)))


def search_option_lines(
    session: Session,
    tree_model: TreeModel,
    search_status: SearchStatus,
    options: Sequence[SearchOption],
    cursor: int,
    width: int,
    max_rows: int,
) -> list[Line]:
    """Returns the table of the offered configs: a header, the current config, and the rows around the cursor.

    Args:
        max_rows: The maximum number of rows without the header.
    """
    value_title = session.target.column_title if session.target is not None else "SQNR"
    samples_text = _search_samples_text(session, search_status)  # the title of the page has it at every width
    columns = [
        Column(""),
        Column("raised", True),
        Column("FP32 MACs", True, rank=1),
        Column("kernels", True, rank=2),
        Column("ms", True),
        Column(value_title, True, long_title=f"{value_title}, {samples_text}" if samples_text else ""),
        Column(MARGIN_MARK, True),
        Column(""),
    ]
    rows = [_option_cells(session, tree_model, option, index == cursor) for index, option in enumerate(options)]
    kept = [
        index
        for index, column in enumerate(columns)
        if column.title not in ("FP32 MACs", "kernels", "ms", MARGIN_MARK)
        or any(row[index][0] not in ("", NOT_MEASURED) for row in rows)
    ]
    top = max(1, min(cursor - (max_rows - 1) // 2, len(options) - max_rows + 1))
    header, *lines = fit_table(
        [columns[index] for index in kept], [[row[index] for index in kept] for row in rows], width
    )
    return [header, lines[0], *lines[top : top + max_rows - 1]]


def _option_cells(session: Session, tree_model: TreeModel, option: SearchOption, has_cursor: bool) -> list[Span]:
    """Returns the cells of a config that a search offers, for all columns of the table."""
    results = session.results.get_results_or_empty(option.config)
    engine, preview = results.engine_result, results.preview
    estimate = option.evaluation.estimated_latency if option.evaluation is not None else None
    latency = (
        milliseconds_text(engine.latency_ms[0])
        if engine is not None and engine.latency_ms
        else (f"{SIMULATED_MARK}{milliseconds_text(estimate)}" if estimate is not None else NOT_MEASURED)
    )
    fp32_macs = sum(
        tree_model.group_macs[group.name] or 0
        for group in tree_model.outline.groups
        if group.resolve_file_precision(option.config.precision_of(group)) is Precision.FP32
    )
    name = session.config_names.get(option.config, "")
    relation = (
        option.relation if reduces_precision(tree_model.outline, option.config) else (f"{option.relation}, all in FP32")
    )
    value, value_style = (
        (option.evaluation.target_result.value_text, "")
        if option.accuracy is None and option.evaluation is not None
        else target_value_span(session, option.accuracy)
    )
    margin = value_margin_text(session.target or Target("sqnr", 0.0), option.accuracy) if option.accuracy else ""
    addition = (
        f" {SIMULATED_MARK}{option.simulated_outcome.outcome.value}" if option.simulated_outcome is not None else ""
    )
    if option.accuracy is None and option.evaluation is None:
        addition += f" on the main screen's {counted_noun_text(session.count_judging_samples(option.config), 'sample')}"
    return [
        (
            f"{CURSOR_MARK if has_cursor else ' '} {f'{name} ' if name else ''}{relation}",
            "strong" if has_cursor else "",
        ),
        (str(len(option.config.find_raised_groups(tree_model.outline))), ""),
        (f"{100 * fp32_macs / tree_model.total_macs:.0f}%" if tree_model.total_macs else "", ""),
        (str(len(preview.kernels)) if preview is not None and preview.kernels else NOT_MEASURED, "dim"),
        (latency, ""),
        (value or NOT_MEASURED, value_style),
        (margin or NOT_MEASURED, "dim"),
        (f"{option.outcome.outcome.value}{addition}", "good" if option.outcome.passes else "bad")
        if option.outcome is not None
        else ("", ""),
    ]


def search_check_texts(session: Session, search_status: SearchStatus, option: SearchOption) -> list[str]:
    """Returns the evidence for a config that a search offers. Each clause outside parentheses is a text of its own."""
    end_event = search_status.end_event
    if option.relation in (CURRENT, EARLIER) or search_status.report is None:
        return []
    if end_event is None:
        return [*reversed(search_status.report.remarks)]  # the newest one says why the search goes on
    missed_outcome = _find_missed_outcome(session, search_status, option.config)
    missed_text = missed_outcome.reasons[0] if missed_outcome is not None else ""
    if option.config == end_event.result.config:
        evidence = search_evidence_lines(session, end_event, search_status.request)
        texts = [part for text in evidence for part in re.split(r"; (?![^(]*\))", text)]
        return texts + ([missed_text] if missed_text and not end_event.missed_runs_text(option.config) else [])
    return [missed_text or "simulated on the samples of the search only"]


def search_change_lines(
    session: Session,
    tree_model: TreeModel,
    search_status: SearchStatus,
    option: SearchOption,
    width: int,
    is_opened: bool = False,
) -> list[Line]:
    """Returns the table of the changes that make an option out of its default precisions, and their effects.

    The first line is the header. What differs from the current config has its setting there in a column of its own. The
    table also has what only the current config changes.

    Args:
        is_opened: True for a line for each change; False for one line for changes that are alike and have no effect.
    """
    outline, config = tree_model.outline, option.config
    unchanged_config = PrecisionConfig(config.quantized, config.other, config.tf32)
    changes = list_config_differences(unchanged_config, config, outline)
    differences = list_config_differences(session.config, config, outline)
    current_texts = {(line.move_class, line.subject): line.first_text for line in differences}
    groups: dict[object, list[tuple[ConfigDifference, str, str]]] = {}
    for key, line in {(line.move_class, line.subject): line for line in (*changes, *differences)}.items():
        effect = _value_without_change_text(session, search_status, option, line)
        subject, current_text = line.subject if is_opened or effect else "", current_texts.get(key, "")
        groups.setdefault((line.move_class, subject, current_text, line.second_text), []).append(
            (line, current_text, effect)
        )
    rows = list[list[Span]]()
    for group in groups.values():
        (line, current_text, effect), count = group[0], len(group)
        subject = (
            tree_model.titles.get(line.subject, line.subject)
            if count == 1
            else counted_noun_text(count, line.move_class.subject_kind.noun)
        )
        rows.append(
            [
                (f"{CLOSED_MARK} " * (count > 1) + line.move_class.difference_title(subject), ""),
                (line.second_text, "strong"),
                (current_text, "dim"),
                (effect, ""),
            ]
        )
    columns = [
        Column(f"{unchanged_config.quantized.label} with {counted_noun_text(len(changes), 'change')}", min_width=32),
        Column(""),
        Column(f"{config_name(session)} has" if differences else "", rank=1),
        Column("without it" if any(row[-1][0] for row in rows) else ""),
    ]
    return [[(" ", ""), *line] for line in fit_table(columns, rows, width - 1)]


def search_note_texts(session: Session, search_status: SearchStatus) -> list[str]:
    """Returns the method and the remarks of a search that has ended."""
    end_event = search_status.end_event
    if end_event is None:
        return []
    has_other_targets = {target.text for target in session.targets} != set(search_status.request.tolerances)
    return [
        *["the target was changed after this search"] * has_other_targets,
        search_method_text(end_event),
        *end_event.remarks,
    ]


def _value_without_change_text(
    session: Session,
    search_status: SearchStatus,
    option: SearchOption,
    difference: ConfigDifference,
) -> str:
    """Returns the value and the outcome of an option without one of its changes.

    "" if the search has not evaluated exactly that config.
    """
    end_event, key = search_status.end_event, (difference.move_class.kind, difference.subject)
    config = option.config.with_move_of(search_status.request.config, key)
    evaluations = end_event.evaluations if end_event is not None else ()
    evaluation = next((other for other in evaluations if other.config == config), None)
    if end_event is None or evaluation is None or config == option.config:
        return ""
    lacks_margin = evaluation.passes and not evaluation.with_required_margins(end_event.margins).passes
    result = evaluation.target_result
    value_text = target_value_span(session, result.accuracy)[0] if result.accuracy is not None else result.value_text
    return f"{value_text} {result.target_outcome.outcome.value}{' without the margin' if lacks_margin else ''}"
