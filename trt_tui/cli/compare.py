"""The command `compare`, which compares FP16, INT8 and configs with FP32."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from trt_tui.cli.options import (
    CONFIG_OPTIONS,
    CONTEXT_SETTINGS,
    FREQUENT,
    PREVIEW_OPTIONS,
    SESSION_OPTIONS,
    STAGE_OPTIONS,
    Command,
    add_model_and_options,
    collect_options,
    file_path_option,
    option_under_heading,
)
from trt_tui.cli.output_files import (
    check_input_files,
    check_output_paths,
    json_text,
    parse_outputs_spec,
    write_text_outputs,
)
from trt_tui.cli.streams import print_messages, print_table
from trt_tui.cli.usage import refuse_ineffective_options, resolve_output_paths
from trt_tui.errors import ExitCode, InputError
from trt_tui.formatting import escape_hidden_characters

if TYPE_CHECKING:
    from trt_tui.options import Options
    from trt_tui.session.session import Session


@click.command(cls=Command, context_settings=CONTEXT_SETTINGS)
@add_model_and_options(*(item for item in SESSION_OPTIONS if item is not CONFIG_OPTIONS[0]), *PREVIEW_OPTIONS,
                       *STAGE_OPTIONS)
@option_under_heading(FREQUENT, "--engines", is_flag=True,
                      help="Build and measure the engine of each run; without TensorRT, execute its export.")
@option_under_heading("TensorRT", "--marked", is_flag=True,
                      help="Errors inside each engine, from a second one.")
@option_under_heading("Output", "--layers", metavar="VALUES", default="shares", show_default=True,
                      type=click.Choice(["shares", "errors", "none"]), help="shares, errors (faster) or none.")
@file_path_option(FREQUENT, "--config", "config_paths", multiple=True, metavar="FILE",
                  help="Start from a precision.json. Repeated: compare configs.")
@option_under_heading("Output", "--calib-methods", metavar="all|A,B",
                      help="Compare calibration methods instead of runs.")
@file_path_option("Output", "--json", "json_path", metavar="OUT", help="Write JSON (schema v1); - for stdout.")
@file_path_option(FREQUENT, "--markdown", "markdown_path", metavar="OUT", help="Write a report; - for stdout.")
@file_path_option("Output", "--save-outputs", "outputs_path", metavar="OUT[:RUN,..]",
                  help="Write outputs of FP32 and the runs as RunResults.")
def compare(model: str, config_paths: tuple[str, ...], force: bool, target: str | None,
            json_path: str | None, markdown_path: str | None, outputs_path: str | None,
            layers: str, engines: bool, marked: bool, calib_methods: str | None, **arguments: Any) -> None:
    """Compare FP16, INT8 and the config with FP32.

    Exit code 1: INT8 (with --runs: the last of them), or the config if one is given, misses the given target or its
    own (FAIL or FAIL?); or an engine could not be built. 2: no engine could be built.
    """
    from trt_tui.cli.config_comparison import require_measurable_target, require_reduced_precision
    from trt_tui.cli.headless_session import open_comparison_session
    from trt_tui.session.comparison_report import accumulated_error_text, comparison_markdown, comparison_text
    from trt_tui.session.results import RESULT_SUFFIXES

    config_path = config_paths[0] if config_paths else None
    refuse_ineffective_options()
    json_path, markdown_path = resolve_output_paths({"--json": json_path, "--markdown": markdown_path})
    outputs_path, saved_runs = parse_outputs_spec(outputs_path)
    check_input_files(arguments)
    written_paths = check_output_paths(model, arguments, config_path, json_path, markdown_path, outputs_path)
    if calib_methods is not None:
        _write_calibration_comparison(collect_options(model, 0, arguments), config_path, target, force, calib_methods,
                                      json_path, markdown_path, written_paths)
        return
    if len(config_paths) > 1:
        from trt_tui.cli.config_comparison import compare_configs

        for path in config_paths[1:]:
            check_output_paths(model, arguments, path, json_path, markdown_path)
        sys.exit(
            int(
                compare_configs(collect_options(model, 0, arguments), config_paths, target, force,
                                build_engines=engines, json_path=json_path, markdown_path=markdown_path,
                                written_paths=written_paths)))
    quiet = "-" in (json_path, markdown_path)

    def print_first_errors(session: Session, run: str) -> None:
        if not quiet and (table := accumulated_error_text(session, run)):
            print_table("\n".join(filter(None, (escape_hidden_characters(session.fp32_miss_text), f"{table}\n"))))

    with open_comparison_session(collect_options(model, 0, arguments), config_path, target, force, layer_detail=layers,
                                 build_engines=engines, marked_engines=marked, written_paths=written_paths,
                                 saved_outputs_path=outputs_path, saved_runs=saved_runs,
                                 print_first_errors=print_first_errors) as session:
        if outputs_path is not None and not session.was_interrupted:
            print_messages(f"Wrote {outputs_path}")
        stopped = session.was_interrupted
        run = session.judged_run
        write_text_outputs([(json_path, lambda session: json_text(session.comparison_record())),
                            (markdown_path, comparison_markdown)], session, overwrite=not stopped)
        if not quiet:
            print_table(comparison_text(session))
        if stopped:
            print_messages("Stopped; shows what was measured so far. The same command goes on from here.")
            sys.exit(int(ExitCode.CANCELLED))
        missing_engines = session.unbuilt_engine_lines()
        print_messages(*missing_engines)
        config = session.get_run_config(run)
        if target is not None:
            require_reduced_precision(session, run, target)
            require_measurable_target(session, config, target)
        target_misses = session.missed_target_reasons(config)
        missing_stages = session.stage_missed_target_reasons()
        print_messages(
            *(f"Target not met by {run}{RESULT_SUFFIXES[kind]}: {reason}" for kind, reason in target_misses.items()),
            *(f"Target not met by stage {name}: {reason}" for name, reason in missing_stages.items()))
        if target_misses or missing_stages:
            sys.exit(int(ExitCode.TOLERANCE_NOT_MET))
        failed = [stage.run for stage, _ in session.list_stage_accuracies() if stage.run.unavailable_reason]
        print_messages(*(f"Stage {stage_run.name} not built: {stage_run.unavailable_reason}" for stage_run in failed))
        if failed or session.production_agreement is not None and not session.production_agreement[0]:
            sys.exit(int(ExitCode.TOLERANCE_NOT_MET))
        if missing_engines:
            runs = [session.get_run_results(run) for run in session.list_run_configs()]
            any_built = any(results.engine_result is not None and not results.engine_result.failure_reason
                            or results.exported_run is not None and not results.exported_run.missing_reason
                            for results in runs)
            sys.exit(int(ExitCode.TOLERANCE_NOT_MET if any_built else ExitCode.BAD_INPUT))


def _write_calibration_comparison(options: Options, config_path: str | None, target: str | None, force: bool,
                                  method_names: str, json_path: str | None, markdown_path: str | None,
                                  written_paths: Iterable[str]) -> None:
    """Prints and writes the table of calibration methods."""
    from trt_tui.cli.headless_session import open_method_comparison_session
    from trt_tui.core.calibration.range_methods import RANGE_METHODS
    from trt_tui.core.report.document import Section, Table, report_markdown, report_text
    from trt_tui.formatting import counted_noun_text
    from trt_tui.session.result_tables import (
        find_best_range_method,
        method_comparison_record,
        method_comparison_table,
        method_missed_target_reason,
        ranking_column_title,
    )

    methods = RANGE_METHODS if method_names == "all" else tuple(
        dict.fromkeys(name.strip() for name in method_names.split(",")))
    if unknown := [name for name in methods if name not in RANGE_METHODS]:
        raise InputError(f"--calib-methods: {unknown[0] or 'nothing'} is not a calibration method",
                         f"available: {', '.join(RANGE_METHODS)}", "Name some of them with commas, or all.")
    with open_method_comparison_session(options, config_path, target, force, methods,
                                        written_paths=written_paths) as session:
        opened, miss_text = session.opened_network, session.fp32_miss_text
        sections = [Section("", [list(filter(None, [miss_text])), Table(method_comparison_table(session))])]
        setup = [f"{counted_noun_text(opened.data.what_if_count, 'sample')} of {opened.data.source}",
                 f"calibrated on {method_comparison_record(session)['calibration_methods'][0]['calibration_samples']}",
                 session.setup_text]
        write_text_outputs([
            (json_path, lambda session: json_text(method_comparison_record(session))),
            (markdown_path, lambda _: report_markdown(f"Calibration methods of {opened.outline.name}",
                                                      [Section("", [setup]), *sections]))], session)
        if "-" not in (json_path, markdown_path):
            print_table(report_text(sections))
            best = find_best_range_method(session)
            if not miss_text:
                print_messages(f"The best is {best}, by {ranking_column_title(session)}: select it with --calib-method "
                               f"{best}.")
        if target_miss := method_missed_target_reason(session):
            print_messages(f"Target not met by any method: {target_miss}")
            sys.exit(int(ExitCode.TOLERANCE_NOT_MET))
