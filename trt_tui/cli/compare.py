"""The command `compare`, which compares FP16, INT8 and configs with FP32."""

from __future__ import annotations

import sys
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
    json_text,
    parse_outputs_spec,
    write_text_outputs,
)
from trt_tui.cli.streams import print_messages, print_table
from trt_tui.errors import ExitCode
from trt_tui.formatting import escape_hidden_characters

if TYPE_CHECKING:
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
@file_path_option("Output", "--json", "json_path", metavar="OUT", help="Write JSON (schema v1); - for stdout.")
@file_path_option(FREQUENT, "--markdown", "markdown_path", metavar="OUT", help="Write a report; - for stdout.")
@file_path_option("Output", "--save-outputs", "saved_outputs", metavar="OUT[:RUN,..]", callback=parse_outputs_spec,
                  help="Write outputs of FP32 and the runs as RunResults.")
def compare(config_paths: tuple[str, ...], force: bool, target: str | None, json_path: str | None,
            markdown_path: str | None, saved_outputs: tuple[str | None, tuple[str, ...]], layers: str, engines: bool,
            marked: bool, **arguments: Any) -> None:
    """Compare FP16, INT8 and the config with FP32.

    Exit code 1: INT8 (with --runs: the last of them), or the config if one is given, misses the given target or its
    own (FAIL or FAIL?); or an engine could not be built. 2: no engine could be built.
    """
    from trt_tui.cli.config_comparison import require_measurable_target, require_reduced_precision
    from trt_tui.cli.headless_session import open_comparison_session
    from trt_tui.session.comparison_report import accumulated_error_text, comparison_markdown, comparison_text
    from trt_tui.session.results import RESULT_SUFFIXES

    config_path = config_paths[0] if config_paths else None
    outputs_path, saved_runs = saved_outputs
    options = collect_options(arguments)
    if len(config_paths) > 1:
        from trt_tui.cli.config_comparison import compare_configs

        sys.exit(int(compare_configs(options, config_paths, target, force, build_engines=engines, json_path=json_path,
                                     markdown_path=markdown_path)))
    quiet = "-" in (json_path, markdown_path)

    def print_first_errors(session: Session, run: str) -> None:
        if not quiet and (table := accumulated_error_text(session, run)):
            print_table("\n".join(filter(None, (escape_hidden_characters(session.fp32_miss_text), f"{table}\n"))))

    with open_comparison_session(options, config_path, target, force, layer_detail=layers, build_engines=engines,
                                 marked_engines=marked, saved_outputs_path=outputs_path, saved_runs=saved_runs,
                                 print_first_errors=print_first_errors) as session:
        if outputs_path is not None and not session.was_interrupted:
            print_messages(f"Wrote {outputs_path}")
        stopped = session.was_interrupted
        run = session.judged_run
        write_text_outputs([(json_path, lambda: json_text(session.comparison_record())),
                            (markdown_path, lambda: comparison_markdown(session))], overwrite=not stopped)
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
