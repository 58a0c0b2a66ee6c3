"""Reports of comparisons and searches in Markdown. The report of a comparison is a pure function of its JSON record."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trt_tui.core.engines.inspector import ENGINE_PRECISION_TITLES
from trt_tui.core.measure.bootstrap import MIN_SAMPLES
from trt_tui.core.measure.causes import NO_CAUSE_TEXT
from trt_tui.core.measure.engine_agreement import KERNEL_FAULT_TEXT
from trt_tui.core.measure.metric_scoring import metric_part_rows
from trt_tui.core.measure.results import Cause, profile_shapes_text
from trt_tui.core.moves.config import PrecisionConfig, move_tables
from trt_tui.core.network.layers import NetworkOutline
from trt_tui.core.report.json_record import read_error_metrics, read_run_row
from trt_tui.core.report.run_columns import RunColumn, RunRow, list_error_run_columns, list_run_columns
from trt_tui.core.search import SearchResult
from trt_tui.formatting import (
    NOT_MEASURED,
    SIMULATED_MARK,
    add_decibel_unit,
    builder_device_text,
    byte_size_text,
    counted_noun_text,
    drop_empty_columns,
    duration_text,
    engine_title,
    escape_hidden_characters,
    executed_run_key,
    layer_share_text,
    metric_text,
    name_list_text,
    number_text,
    percent_text,
    percent_with_margin_text,
    run_name_in_sentence,
    run_title,
)

MAX_WORST_ROWS = 15
"""Maximum number of layers listed for a run."""

_ENGINE_SUFFIX = "-engine"


def comparison_markdown(comparison: Mapping[str, Any], network: NetworkOutline | None = None,
                        config: PrecisionConfig | None = None) -> str:
    """Returns the report of a comparison: accuracy, judged outputs, engines, layers with the largest errors, and the
    config.

    Args:
        comparison: A record of schema ``comparison-v1``. Missing keys are left out of the report.
        network: The network, from which the report takes the operator of each layer.
        config: The config, whose moves the report lists; needs ``network``.
    """
    model = comparison.get("model", {})
    reference = comparison.get("reference", {})
    runs: Mapping[str, Mapping[str, Any]] = comparison.get("runs", {})
    backend_text = " ".join(str(reference[key]) for key in ("backend", "provider") if reference.get(key))
    samples = comparison.get("samples", 0)
    reference_text = f"FP32{f' on {backend_text}' if backend_text else ''}"
    if "source" in reference:
        reference_text = f"{text_cell(reference['source'])}; errors at layers against {reference_text}"
    options = [f" ({run['backend']})" for run in runs.values() if "options" in run]
    lines = [f"# Precision of {text_cell(model.get('name', 'the network'))}", "",
             f"{counted_noun_text(samples, 'sample')}, against {reference_text}. "
             "`~` marks a simulated value; engine values are those of the engine as built. "
             "An exported network is the exported file, executed by ONNX Runtime with "
             f"{f'other than default options{text_cell(options[0])}' if options else 'default options'}.", ""]
    if "setup" in comparison:
        lines += [f"{text_cell(setup_text(comparison['setup']))}.", ""]
    if "weights" in reference:
        lines += [text_cell(reference["weights"]["text"]), ""]
    if (simulation := comparison.get("simulation", {})).get("reason"):
        lines += [f"Simulated: {text_cell(simulation['level'])}; {text_cell(simulation['reason'])}.", ""]
    if "metric" in reference:
        metric_source = text_cell(reference["source"]) if "source" in reference else "FP32"
        values = {reference.get("metric_samples", samples): reference["metric"]}
        values |= {run["samples"]: run["reference_metric"] for run in runs.values() if "reference_metric" in run}
        texts = [metric_text(value) + (f" on {counted_noun_text(count, 'sample')}" if [*values] != [samples] else "")
                 for count, value in values.items()]
        lines += [f"Metric in {metric_source}: {', '.join(texts)}.", ""]
    lines += guard_warnings_markdown(comparison.get("guards", ()))
    if "target" in comparison:
        lines += [f"Target: {text_cell(comparison['target'])}.", ""]
    lines += ["## Accuracy", "", *_accuracy_table(runs, samples), ""]
    if reasons := _result_reason_lines(runs):
        lines += [*reasons, ""]
    if parts := _metric_parts_table(reference.get("metric_parts", {}), runs):
        lines += ["## Metric by part", "", *parts, ""]
    lines += ["## Judged outputs", "", *_judged_output_table(runs), ""]
    if previews := {name: run["preview"] for name, run in runs.items() if "preview" in run}:
        lines += ["## Engine preview", ""]
        for name, preview in previews.items():
            lines.append(f"- {_run_title_text(runs, name)}: {text_cell(preview_text(preview))}")
            lines += (f"  - {text_cell(group)}: {text_cell(text)}"
                      for group, text in preview.get("unused_qdq", {}).items())
            lines += (f"  - {text_cell(text)}" for text in preview.get("remarks", ()))
        lines.append("")
    if stages := comparison.get("stages", ()):
        lines += ["## Stages", "", *_stage_table(stages), "", *map(text_cell, comparison.get("stages_say", ())), ""]
    engines = {name: run for name, run in runs.items() if run.get("source") == "engine"}
    if engines:
        lines += ["## Engines", "", *_engine_lines(runs, engines), ""]
    failed_exports = {name: run["failed"] for name, run in runs.items()
                      if run.get("source", "").startswith("onnxruntime") and run.get("failed")}
    if failed_exports:
        lines += [
            "## Exported networks that were not executed", "",
            *(f"- {_run_title_text(runs, name)}: {text_cell(reason)}" for name, reason in failed_exports.items()), ""
        ]
    for name, run in engines.items():
        if run.get("profiles"):
            lines += [f"## Profiles of the {_run_title_text(runs, name)}", "", *_profile_table(run["profiles"]), ""]
        if build_lines := _repeated_build_lines(run):
            lines += [f"## Builds of the {_run_title_text(runs, name)}", "", *build_lines, ""]
    for name, run in engines.items():
        if run.get("as_asked") is False:
            lines += [f"## How the {_run_title_text(runs, name)} was built", "", *_build_attempt_lines(run), ""]
    for name, run in engines.items():
        if run.get("to_check"):
            lines += [f"## What to check in the {_run_title_text(runs, name)}", ""]
            lines += [*(f"- {text_cell(line)}" for line in run["to_check"]), ""]
    for name, run in runs.items():
        rows = [*_engine_inner_error_lines(run), *_worst_layer_lines(run, network), *_cause_lines(run)]
        if rows:
            lines += [f"## Where {_run_title_text(runs, name, run_name_in_sentence)} loses", "", *rows, ""]
    if config is not None and network is not None:
        lines += ["## Config", "", *_config_lines(config, network), ""]
    return "\n".join(lines).rstrip() + "\n"


def setup_text(setup: Mapping[str, str]) -> str:
    """Returns the ranges and the flags of builds as a text.

    Args:
        setup: ``setup`` of a record of schema ``comparison-v1``.
    """
    return ". ".join(f"{title}: {setup[key]}" for key, title in (("ranges", "Ranges"), ("build", "Build flags"))
                     if key in setup)


def guard_warnings_markdown(guards: Sequence[Mapping[str, str]]) -> list[str]:
    """Returns a table of guard warnings with a heading; no lines if there are no warnings.

    Args:
        guards: Records from `trt_tui.core.guards.guard.warning_record`.
    """
    rows = [tuple(text_cell(guard[key]) for key in ("guard", "what", "why", "next")) for guard in guards]
    return ["## Warnings", "", *markdown_table(("guard", "what", "why", "next"), rows), ""] if rows else []


def preview_text(preview: Mapping[str, Any]) -> str:
    """Returns a sentence with the number and names of the groups that a preview shows in a precision other than
    requested."""
    release = ".".join(preview["release"].split(".")[:2])
    other_groups = preview["not_as_asked"]
    group_names = f": {name_list_text(other_groups)}" if other_groups else ""
    return (
        f"{len(other_groups)} of {counted_noun_text(preview['groups'], 'group')} would not run as "
        f"requested{group_names} (preview, RTX {release}, {preview['gpu']}: "
        f"{counted_noun_text(preview['kernels'], 'kernel')})")


def _stage_table(stages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a table of the stages on the way to production, with the errors of each stage at its worst output.

    The errors are given against the reference and against the stage before.
    """
    columns, errors = list_run_columns("stage report"), list_error_run_columns("stage report")[:2]
    rows = []
    for stage in stages:
        run_row, engine = read_run_row(stage), stage.get("engine", {})
        previous = replace(read_run_row(stage.get("before", {})), mark=run_row.mark)
        builder_text = f" ({builder_device_text(engine['backend'], engine.get('gpu', ''))})" if engine else ""
        rows.append((text_cell(stage["name"] + builder_text), *(column.text(run_row) for column in columns),
                     *(column.text(previous) for column in errors), stage.get("result", {}).get("outcome", ""),
                     text_cell(stage.get("failed", ""))))
        for name, entry in stage.get("beside", {}).items():
            other = replace(read_run_row({"outputs": entry.get("outputs", {})}), mark=run_row.mark)
            rows.append((f"against {text_cell(name)}", *(column.text(other) for column in columns), "", "", "", ""))
    header = ("stage", *(column.title for column in columns), "SQNR to the stage before", "cosine", "target", "")
    return markdown_table(header, rows)


def _run_title_text(runs: Mapping[str, Mapping[str, Any]], run_name: str,
                    format_title: Callable[[str, bool], str] = run_title) -> str:
    base_name = run_name.removesuffix(_ENGINE_SUFFIX)
    in_file = bool(runs.get(base_name.removesuffix(executed_run_key("")), {}).get("as_in_file"))
    return engine_title(base_name, in_file) if base_name != run_name else text_cell(format_title(run_name, in_file))


def _engine_lines(runs: Mapping[str, Mapping[str, Any]], engines: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns tables of the engines: the build of each engine, and the number and time share of its layers by
    precision."""
    rows, shares = [], []
    precision_words = [
        word for word in ENGINE_PRECISION_TITLES if any(word in run.get("computed_in", {}) for run in engines.values())
    ]
    columns = list_run_columns("engines")
    for name, run in engines.items():
        rows.append((_run_title_text(runs, name), *_run_cells(columns, read_run_row(run)), _engine_state_text(run)))
        if run.get("computed_in"):
            shares.append((_run_title_text(runs, name), *(_precision_share_text(run["computed_in"].get(word))
                                                          for word in precision_words)))
    header = ("engine", *(column.title for column in columns), "as requested")
    lines = markdown_table(header, rows)
    if shares:
        lines += ["", "Layers, and their share of the time:", "",
                  *markdown_table(("engine", *(ENGINE_PRECISION_TITLES[word] for word in precision_words)), shares)]
    return lines


def _profile_table(profiles: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a table of the speed of an engine in each of its optimization profiles."""
    rows = [(text_cell(", ".join(
        profile_shapes_text(name, *(shapes[bound]
                                    for bound in ("min", "opt", "max")))
        for name, shapes in profile["shapes"].items())), str(profile["samples"]),
             f"{round(profile['samples_per_s']):,}" if "samples_per_s" in profile else "",
             *(number_text(profile[key]["median"]) if key in profile else ""
               for key in ("latency_ms", "cuda_graph_ms")))
            for profile in profiles]
    return markdown_table(("profile, at its usual shapes", "samples", "samples/s", "ms", "ms, CUDA graph"), rows)


def _repeated_build_lines(run: Mapping[str, Any]) -> list[str]:
    """Returns a table of several builds of one config, and the outputs at which identical samples of one batch differ.
    """
    lines: list[str] = []
    if builds := run.get("builds"):
        rows = [(_sqnr_cell(build["errors"], "") if "errors" in build else "", number_text(build.get("latency_ms")),
                 duration_text(build["build_s"]) if "build_s" in build else "",
                 byte_size_text(build["engine_bytes"]) if "engine_bytes" in build else "") for build in builds]
        lines += ["The engine above is the worst of:", "",
                  *markdown_table(("dB at the worst output", "ms", "built in", "size"), rows)]
    if names := run.get("rows_differ"):
        lines += [*([""] if lines else []), f"Identical samples of one batch have different results at "
                  f"{', '.join(map(code_cell, names))}."]
    return lines


def _engine_state_text(run: Mapping[str, Any]) -> str:
    """Returns a short text if an engine was not built or executed, or has other precisions than requested; "" if
    neither."""
    if run.get("source", "").startswith("onnxruntime"):
        return "not executed" if run.get("failed") else ""
    return "not built" if run.get("failed") else "other precision" if run.get("as_asked") is False else ""


def _build_attempt_lines(run: Mapping[str, Any]) -> list[str]:
    """Returns the build attempts for an engine that was refused, and the groups that run in other precisions."""
    rows = [(text_cell(attempt["said"]), text_cell(attempt.get("failed", "built"))) for attempt in run.get("rungs", ())]
    lines = [*markdown_table(("told", "result"), rows), ""] if len(rows) > 1 else []
    if run.get("failed"):
        return lines[:-1] or [f"It was not built: {text_cell(run['failed'])}"]
    changed_layers = [(code_cell(name), str(precision).upper())
                      for name, precision in run.get("made_otherwise", {}).items()]
    lines.append("Its values are not those of the requested config." + (
        "" if changed_layers else " TensorRT reports no layer in another precision."))
    accuracy = read_run_row(run.get("made_simulated", {})).accuracy
    if accuracy is not None and (worst := accuracy.worst_output) is not None and worst[1].errors.mismatch is None:
        figure = add_decibel_unit(worst[1].errors.sqnr_text())
        lines += ["", f"Simulation of the built precisions: {figure} at {code_cell(worst[0])}."]
    if changed_layers:
        lines += ["", *markdown_table(("runs in another precision", "in"), changed_layers)]
    return lines


def _precision_share_text(entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return ""
    return layer_share_text(entry["layers"], entry.get("time"))


def _run_cells(columns: Sequence[RunColumn], run_row: RunRow) -> list[str]:
    """The cells of a run; a cell without a value is empty."""
    cells = [(code_cell if column.title == "output" else text_cell)(column.text(run_row)) for column in columns]
    return ["" if cell == NOT_MEASURED else cell for cell in cells]


def _accuracy_table(runs: Mapping[str, Mapping[str, Any]], sample_count: int) -> list[str]:
    """Returns the table of the runs, with their samples if a run has others than all ``sample_count``."""
    names_samples = any(run.get("samples", sample_count) != sample_count for run in runs.values())
    columns = list_run_columns("verdict", {} if names_samples else {"samples": ""})
    rows = [(", ".join(filter(None, (_run_title_text(runs, name), _engine_state_text(run)))), _value_source_text(run),
             *_run_cells(columns, read_run_row(run)), run.get("result", {}).get("outcome", ""))
            for name, run in runs.items()]
    return markdown_table(("run", "source", *(column.title for column in columns), "target"), rows)


def _result_reason_lines(runs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns one line for each run whose target result has stated reasons, such as the doubts behind PASS?."""
    results = [(name, run["result"]) for name, run in runs.items() if run.get("result", {}).get("reasons")]
    return [f"- {_run_title_text(runs, name)}: {result['outcome']}: {text_cell('; '.join(result['reasons']))}"
            for name, result in results]


def _value_source_text(run: Mapping[str, Any]) -> str:
    """Returns the source of a run's values, with builder and GPU for an engine, and the executor for an exported
    network."""
    executor = builder_device_text(run.get("backend", ""), run.get("gpu", ""))
    return text_cell(f"{run.get('source', '')} ({executor})" if executor else run.get("source", ""))


def _metric_parts_table(reference: Mapping[str, float], runs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns a table of the parts of the metric, the largest drop first; no lines for a metric without parts."""
    scored_runs = {name: run for name, run in runs.items() if run.get("metric_parts") and run.get("as_asked", True)}
    if len(reference) < 2 or not scored_runs:
        return []
    marks = [SIMULATED_MARK if run.get("source") == "simulated" else "" for run in scored_runs.values()]
    rows = [(text_cell(row.part_name), metric_text(row.reference_value),
             *("" if figure is None else metric_text(figure, mark)
               for figure, mark in zip(row.run_values, marks, strict=True)),
             "" if row.max_drop is None else metric_text(row.max_drop))
            for row in metric_part_rows(reference, [run.get("common_metric_parts", run["metric_parts"])
                                                    for run in scored_runs.values()])]
    return markdown_table(("part", "FP32", *(_run_title_text(runs, name) for name in scored_runs), "worst drop"), rows)


def _error_sort_key(errors: Mapping[str, Any]) -> float:
    """Returns a key that sorts errors, the worst first: NaN and Inf, then by increasing SQNR, exact results last."""
    if errors.get("nan") or errors.get("inf"):
        return float("-inf")
    sqnr = errors.get("sqnr_db")
    return float("inf") if sqnr is None else sqnr


def _judged_output_table(runs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    columns = list_run_columns("outputs")
    rows = [(_run_title_text(runs, name), code_cell(output), *_run_cells(columns, row))
            for name, run in runs.items() for output, row in read_run_row(run).split_by_output().items()]
    return markdown_table(("run", "output", *(column.title for column in columns)), rows)


def _engine_inner_error_lines(run: Mapping[str, Any]) -> list[str]:
    """Returns lines on the errors inside an engine: their source, and the group at which it departs from its
    simulation."""
    record = run.get("layers_read")
    if record is None:
        return []
    if "missing" in record:
        return [f"Unknown: {text_cell(record['missing'])}.", ""]
    source = "of a second engine with these results as outputs: marked, not the engine as built" \
        if record["how"] == "marked" else "of the debug tensors of the engine as built"
    hidden_text = f"; {counted_noun_text(len(record['hidden']), 'group')} inside kernels" if record["hidden"] else ""
    lines = [f"On {counted_noun_text(record['samples'], 'sample')}, {source}{hidden_text}.", ""]
    if (parts := record.get("parts_at")) is not None:
        lines += [f"{code_cell(parts['group'])}: {KERNEL_FAULT_TEXT}: {_sqnr_cell(parts['engine'], '')} dB for "
                  f"{_sqnr_cell(parts['simulated'], SIMULATED_MARK)} dB simulated.", ""]
    return lines


def _worst_layer_lines(run: Mapping[str, Any], network: NetworkOutline | None) -> list[str]:
    """Returns a table of the groups with the largest error shares.

    If no shares were measured, it lists the layers of lowest isolated SQNR.
    """
    layers: Mapping[str, Mapping[str, Any]] = run.get("layers", {})
    groups: Mapping[str, Mapping[str, Any]] = run.get("groups", {})
    shares = {name: group["owns"] for name, group in groups.items() if group.get("owns") is not None}
    unknown_names = [name for name, group in groups.items() if group.get("owns_unknown")]
    if shares or unknown_names:
        names = [*sorted(shares, key=lambda name: -shares[name]), *unknown_names]
    else:
        names = sorted(layers, key=lambda name: _error_sort_key(
            layers[name].get("isolated") or layers[name].get("accumulated") or {}))
    if not names:
        return []
    mark = "~" if run.get("source") == "simulated" else ""
    rows: list[tuple[str, ...]] = []
    for name in names[:MAX_WORST_ROWS]:
        layer, group = layers.get(name, {}), groups.get(name, {})
        raised_errors = group.get("impact_kept")
        non_finite_counts = [
            f"{count} {kind}" for kind in ("nan", "inf") for count in (layer.get("accumulated", {}).get(kind, 0), )
            if count
        ]
        rows.append(
            (code_cell(name), _operator_name(network, name), str(layer.get("precision", "")).upper(),
             percent_with_margin_text(shares[name], group.get("owns_margin"), mark,
                                      0 < group.get("samples", 0) < MIN_SAMPLES) if name in shares else "unknown" *
             (name in unknown_names), str(group.get("samples",
                                                    "")), *(_sqnr_cell(layer[kind], mark) if kind in layer else ""
                                                            for kind in ("isolated", "accumulated")),
             _sqnr_cell(raised_errors, mark) if raised_errors else "", ", ".join(non_finite_counts)))
    header: tuple[str, ...] = ("layer", "operator", "precision", "share", "samples", "isolated", "accumulated",
                               "SQNR if raised", "NaN/Inf")
    if not shares and not unknown_names:
        header, rows = (*header[:3], *header[5:]), [(*row[:3], *row[5:]) for row in rows]
    table = markdown_table(header, rows)
    rest = names[MAX_WORST_ROWS:]
    if rest:
        total_share = sum(shares.get(name, 0) for name in rest)
        table += ["", f"{len(rest)} more{f', together {percent_text(total_share, mark)}' if total_share > 0 else ''}."]
    return table


def _cause_lines(run: Mapping[str, Any]) -> list[str]:
    """Returns a table of the causes at the groups with the largest losses; no lines if they were not examined."""
    groups = run.get("causes", {})
    return ["", *cause_table([(name, [(cause["cause"], cause["evidence"], cause["remedy"]) for cause in causes])
                              for name, causes in groups.items()])] if groups else []


def cause_table(rows: Iterable[tuple[str, Sequence[tuple[str, str, str]]]]) -> list[str]:
    """Returns a table of causes, and a line with the groups without a known cause.

    Args:
        rows: The names of groups with their causes: sentence, evidence and next step.
    """
    rows = list(rows)
    cells = [(code_cell(name), *map(text_cell, cause)) for name, causes in rows for cause in causes]
    unexplained = ", ".join(code_cell(name) for name, causes in rows if not causes)
    lines = markdown_table(("layer", "cause", "evidence", "next step"), cells) if cells else []
    if unexplained:
        lines += [*([""] if cells else []), f"{unexplained}: {NO_CAUSE_TEXT}."]
    return lines


def _operator_name(network: NetworkOutline | None, group_name: str) -> str:
    if network is None or not network.has_layer(group_name):
        return ""
    group = network.find_group(group_name)
    return group.operator if group is not None and group.name == group_name else network.get_layer(group_name).op_type


def _config_lines(config: PrecisionConfig, network: NetworkOutline) -> list[str]:
    lines = [config.defaults_text + ("; FP32 layers may use TF32." if config.tf32 else ".")]
    moves = moves_markdown(config, network)
    return [*lines, "", *moves] if moves else lines


def moves_markdown(config: PrecisionConfig, network: NetworkOutline) -> list[str]:
    """Returns a table for each kind of move in a config."""
    lines: list[str] = []
    for header, rows in move_tables(config, network):
        lines += ["", *markdown_table(header, [(code_cell(row[0]), *map(text_cell, row[1:])) for row in rows])]
    return lines[1:]


def search_markdown(network: NetworkOutline, search_result: SearchResult, evaluation_rows: Sequence[Sequence[str]],
                    reduction_rows: Sequence[Sequence[str]], headline: str,
                    notes: Sequence[str], metric_rows: Sequence[Sequence[str]], engine_rows: Sequence[Sequence[str]],
                    plot_lines: Sequence[str], guards: Sequence[Mapping[str, str]] = (),
                    causes_by_group: Mapping[str, Sequence[Cause]] | None = None) -> str:
    """Returns the report of a search: the config with the reasons for its moves, and all evaluations.

    Args:
        evaluation_rows: Table rows of all evaluations, in their order, a header first.
        reduction_rows: Table rows of the changes that a top-down strategy tried, a header first; [] for other
            strategies.
        headline: The outcome in one line.
        notes: Lines on the strategy, the source of the values, and other facts.
        metric_rows: Table rows of the metric's parts, a header first.
        engine_rows: Table rows of the configs that were built, a header first.
        plot_lines: Lines of a plot of the engines.
        guards: Records for `guard_warnings_markdown`.
        causes_by_group: The causes of the losses for which groups are raised, by group name.
    """
    lines = [f"# Fix for {text_cell(network.name)}", "", f"{text_cell(headline)}.", ""]
    lines += [
        *(f"- {text_cell(note)}" for note in notes), "", "## Config", "", *_config_lines(search_result.config, network),
        ""
    ]
    lines += guard_warnings_markdown(guards)
    if search_result.raise_reasons:
        reason_rows = [(code_cell(name), text_cell(reason)) for name, reason in search_result.raise_reasons.items()]
        lines += ["## Why", "", *markdown_table(("layer", "reason"), reason_rows), ""]
    if causes_by_group:
        rows = [(name, [(cause.sentence, cause.evidence, cause.remedy) for cause in causes])
                for name, causes in causes_by_group.items()]
        lines += ["## Causes", "", *cause_table(rows), ""]
    for title, (header, *table_rows) in (("Metric", metric_rows or [()]), ("Engines", engine_rows or [()])):
        if table_rows:
            lines += [
                f"## {title}", "", *markdown_table(header, [tuple(map(text_cell, row)) for row in table_rows]), ""
            ]
    if plot_lines:
        lines += ["```text", *map(escape_hidden_characters, plot_lines), "```", ""]
    if reduction_rows:
        header, *table_rows = reduction_rows
        cells = [tuple(map(text_cell, row)) for row in table_rows]
        lines += ["## Reduced layer by layer", "", *markdown_table(header, cells), ""]
    header, *table_rows = evaluation_rows
    lines += ["## Evaluations", "", "All values are simulated, on the same samples.", "",
              *markdown_table(tuple(map(text_cell, header)), [tuple(map(text_cell, row)) for row in table_rows])]
    return "\n".join(lines).rstrip() + "\n"


# -- cells ----------------------------------------------------------------------------------------------------------


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a Markdown table without its empty columns."""
    if not rows:
        return ["Nothing was measured."]

    def format_row(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cells)} |"

    titles, *filled_rows = drop_empty_columns([header, *rows])
    return [format_row(titles), format_row("---" for _ in titles), *map(format_row, filled_rows)]


def text_cell(text: Any) -> str:
    """Returns a text with Markdown's special characters escaped, in one line."""
    return "".join(f"\\{character}" if character in "\\|`*_<>[]&" else character
                   for character in escape_hidden_characters(text))


def code_cell(name: str | None) -> str:
    """Returns a name as inline code, with a longer fence if the name itself contains backticks."""
    if not name:
        return ""
    name = escape_hidden_characters(name).replace("|", "\\|")
    if "`" not in name:
        return f"`{name}`"
    fence = "`" * (1 + max(map(len, re.findall("`+", name))))
    return f"{fence} {name} {fence}"


def _sqnr_cell(errors: Mapping[str, Any], simulated_mark: str) -> str:
    return read_error_metrics(errors).sqnr_text(simulated_mark)
