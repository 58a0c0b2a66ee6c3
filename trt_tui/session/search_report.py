"""The report of a search as text and Markdown."""

from collections.abc import Mapping

from trt_tui import formatting
from trt_tui.core.guards.guards import warning_lines
from trt_tui.core.measure.causes import cause_lines
from trt_tui.core.measure.results import RunKind
from trt_tui.core.measure.user_metric import metric_part_rows
from trt_tui.core.moves.config import move_tables
from trt_tui.core.network.layer_tree import group_titles
from trt_tui.core.report.document import Section, Table, report_markdown, report_text
from trt_tui.core.report.run_columns import RunRow, list_run_columns
from trt_tui.core.search import SearchOutcome
from trt_tui.core.search.search import pareto_front
from trt_tui.formatting import NOT_MEASURED, SIMULATED_MARK
from trt_tui.jobs.events import SearchEnded
from trt_tui.jobs.requests import FindMixedPrecisionConfig
from trt_tui.session.loss_causes import find_raise_causes
from trt_tui.session.search_status import evaluation_table, held_out_result_text, reduction_table
from trt_tui.session.session import Session


def search_text(session: Session) -> str:
    """Returns the report of a search for a terminal."""
    return report_text(_search_sections(session, with_times=True))


def search_markdown(session: Session) -> str:
    """Returns the report of a search in Markdown, with setup and warnings. Equal searches give the same text."""
    return report_markdown(
        f"Fix for {session.opened_network.outline.name}",
        [
            *_search_sections(session, with_times=False),
            Section("Setup", [[session.setup_text]]),
            Section("Warnings", list(map(warning_lines, session.guard_warnings))),
        ],
    )


def _search_sections(session: Session, with_times: bool) -> list[Section]:
    """Returns the report of a search: the evidence, all evaluations, the config with reasons, the parts of the metric,
    and the built engines.

    Args:
        with_times: True adds the time that zero-cost changes took.
    """
    status, outline = session.search_status, session.opened_network.outline
    assert status is not None and status.end_event is not None, "a search is reported when it has ended"
    ended, result, request = status.end_event, status.end_event.result, status.request
    head = [*filter(None, [session.fp32_miss_text]), _search_headline(ended, request)]
    head += [
        f"  {line}"
        for line in (
            search_method_text(ended),
            *search_evidence_lines(session, ended, request),
            *(line for remark in ended.remarks for line in remark.splitlines()),
        )
    ]
    if effort_text := ended.zero_cost_effort.text:
        seconds = formatting.duration_text(ended.zero_cost_effort.seconds)
        head.append(f"  {effort_text}{f' ({seconds} with the measurement of the changes)' if with_times else ''}")
    titles_by_group = group_titles(outline)
    causes = cause_lines(
        {titles_by_group.get(name, name): causes for name, causes in find_raise_causes(session, result.config).items()}
    )
    reductions = reduction_table(result.reduction_steps, outline, request)
    evaluations = evaluation_table(ended, outline, request, session.results.reference_metric)
    return [
        Section("", [head]),
        Section("Evaluations", [Table(reductions, 3) if reductions else Table(evaluations, 4)]),
        Section(
            "Config",
            [
                Table(
                    [
                        (*header, "why"),
                        *(
                            (titles_by_group.get(row[0], row[0]), *row[1:], result.raise_reasons.get(row[0], ""))
                            for row in rows
                        ),
                    ],
                    len(header) + 1,
                )
                for header, rows in move_tables(result.config, outline)
            ],
        ),
        Section("Causes", [["causes of the losses for which layers are raised", *causes] if causes else []]),
        Section("Metric", [Table(_metric_rows(ended, session.results.reference_metric))]),
        Section("Engines", [Table(built_config_table(session))]),
    ]


def search_method_text(ended: SearchEnded) -> str:
    """Returns the method of a search with the number of its evaluations."""
    method = f"{ended.description}; " if ended.used_method else ""
    return method + formatting.counted_noun_text(len(ended.evaluations), "evaluation")


def _search_headline(ended: SearchEnded, request: FindMixedPrecisionConfig) -> str:
    """Returns the outcome of a search in one line."""
    result, description = ended.result, ended.result.summary
    if result.outcome is SearchOutcome.NOTHING_TO_DO and result.is_met and result.best_evaluation is not None:
        start = result.config
        lost_qdq = any(not removal.rejection for removal in ended.qdq_removals)
        name = (
            "the config without its unused Q/DQ"
            if lost_qdq
            else "the file"
            if start.uses_only_file_precisions
            else "the config"
            if start.moves
            else start.quantized.label
        )
        description = (
            f"{name} meets it already: nothing to {'raise' if lost_qdq else 'do'} "
            f"({formatting.mark_figures_as_simulated(result.best_evaluation.target_result.value_text)})"
        )
    tolerances = " and ".join(
        (*request.tolerances, *([f"check {request.check_command!r}"] if request.check_command is not None else []))
    )
    return f"{tolerances}: {description}"


def search_evidence_lines(session: Session, ended: SearchEnded, request: FindMixedPrecisionConfig) -> list[str]:
    """Returns lines about the evidence of a search: the reference, the results, and their confirmation.

    The results are those of the simulation, of the executed export, and on held-out samples. The last line states
    whether an engine confirmed the result.
    """
    held_out, result, exported = ended.held_out, ended.target_outcome, ended.exported
    texts = (
        f"against {session.reference_name}" if session.opened_network.reference is not None else "",
        session.opened_network.outline.reference_weights_text,
        f"simulated: {result.text}" if result is not None else "",
        exported.exported_result_text
        if exported is not None and (result is None or exported.exported_result_text not in result.reasons)
        else "",
        held_out_result_text(held_out) if held_out is not None else "",
        _engine_confirmation_text(session, ended, request),
    )
    return [text for text in texts if text]


def _engine_confirmation_text(session: Session, ended: SearchEnded, request: FindMixedPrecisionConfig) -> str:
    builder, best = session.builder, ended.result.best_evaluation
    if ended.confirmed is None:
        return (
            "simulated only: no TensorRT runs here to confirm it"
            if builder is None or not builder.can_run
            else "simulated only: no engine of the requested config was measured"
        )
    outcome_text = (
        "does NOT meet it"
        if not ended.confirmed
        else "meets it nevertheless"
        if best is None or not best.with_required_margins(ended.margins).passes
        else "meets it too"
        if request.check_command is None
        else "meets the tolerance too; --check has tested the simulation only"
    )
    result = session.config_target_outcomes(ended.result.config).get(RunKind.BUILT_ENGINE)
    title = formatting.builder_title(builder.name, builder.version) if builder is not None else ""
    builder_text = formatting.builder_device_text(title, builder.device) if builder is not None else ""
    return f"its engine{f' ({builder_text})' if builder_text else ''} {outcome_text}" + (
        f": {result.text}" if result is not None and result.reasons else ""
    )


def _metric_rows(ended: SearchEnded, reference_metric: Mapping[str, float]) -> list[list[str]]:
    """Returns a table of the metric's parts in FP32, in the start config and in the result, by decreasing drop."""
    assert ended.result.best_evaluation is not None, "a search that has a result has evaluated it"
    found_metric, start_metric = (
        accuracy.metric if (accuracy := item.target_result.accuracy) is not None else {}
        for item in (ended.result.best_evaluation, ended.evaluations[0])
    )
    return [
        ["metric", "FP32", "start", "found"],
        *(
            [
                row.part_name,
                *(
                    formatting.metric_text(item)
                    for item in (row.reference_value, start_metric.get(row.part_name), *row.run_values)
                ),
            ]
            for row in metric_part_rows(reference_metric, [found_metric])
        ),
    ]


def built_config_table(session: Session) -> list[list[str]]:
    """Returns the table of the configs with a measured engine, the fastest first.

    The table marks the configs that no other config beats in both latency and accuracy.
    """
    target, columns, built = session.target, list_run_columns("search"), list[tuple[tuple[float, float], list[str]]]()
    for config, results in session.results.items() if target is not None else ():
        engine = results.engine_result
        if (
            target is None
            or engine is None
            or not engine.is_built_as_requested
            or engine.accuracy is None
            or engine.latency_ms is None
            or (value := target.measured_value(engine.accuracy)) is None
        ):
            continue
        simulated = (
            f"{SIMULATED_MARK}{target.measured_value_text(results.accuracy)}"
            if results.accuracy is not None
            else NOT_MEASURED
        )
        built.append(
            (
                (engine.latency_ms[0], value if target.is_higher_better else -value),
                [
                    session.config_names.get(config, ""),
                    str(len(config.find_raised_groups(session.opened_network.outline))),
                    simulated,
                    target.measured_value_text(engine.accuracy),
                    *(column.text(RunRow(engine=engine)) or NOT_MEASURED for column in columns),
                ],
            )
        )
    built.sort(key=lambda entry: (entry[0][0], -entry[0][1]))
    front = pareto_front([point for point, _ in built])
    return [
        ["built", "raised", "simulated", "engine", *(column.title for column in columns), ""],
        *([*cells, "front" if index in front else ""] for index, (_, cells) in enumerate(built)),
    ]
