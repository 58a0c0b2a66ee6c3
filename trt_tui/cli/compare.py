"""The commands that compare without the app: `compare` FP16, INT8 and configs with FP32, `methods` calibration methods,
and `dumps` two dumps of tensors. `preflight` runs all guards."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from trt_tui.cli.options import (
    BUILDER_OPTIONS,
    CALIB_CACHE_OPTION,
    CLUSTER_OPTIONS,
    CONFIG_OPTION,
    CONFIG_OPTIONS,
    CONTEXT_SETTINGS,
    DATA_OPTIONS,
    FORCE_OPTION,
    FREQUENT,
    LIBRARY_OPTIONS,
    ORT_OPERATOR_OPTIONS,
    PREVIEW_OPTIONS,
    REFERENCE_OPTIONS,
    SEED_OPTIONS,
    SESSION_OPTIONS,
    STAGE_OPTIONS,
    TARGET_OPTIONS,
    VERBOSE_OPTIONS,
    Command,
    add_options,
    collect_options,
    complete_files,
    file_path_option,
    make_option_check_callback,
    model_argument,
    option_under_heading,
    require_model_file,
)
from trt_tui.cli.output_files import (
    json_text,
    parse_outputs_spec,
    write_report,
    write_text_outputs,
)
from trt_tui.cli.streams import print_messages, print_report
from trt_tui.core.report.document import Section, Table
from trt_tui.errors import ExitCode, InputError
from trt_tui.formatting import NOT_MEASURED, counted_noun_text, escape_hidden_characters

if TYPE_CHECKING:
    from trt_tui.session.session import Session


@click.command(cls=Command, context_settings=CONTEXT_SETTINGS)
@add_options(
    model_argument,
    *(item for item in SESSION_OPTIONS if item is not CONFIG_OPTIONS[0]),
    *PREVIEW_OPTIONS,
    *STAGE_OPTIONS,
)
@option_under_heading(
    FREQUENT,
    "--engines",
    is_flag=True,
    help="Build and measure the engine of each run; without TensorRT, execute its export.",
)
@option_under_heading("TensorRT", "--marked", is_flag=True, help="Errors inside each engine, from a second one.")
@option_under_heading(
    "Output",
    "--layers",
    metavar="VALUES",
    default="shares",
    show_default=True,
    type=click.Choice(["shares", "errors", "none"]),
    help="shares, errors (faster) or none.",
)
@file_path_option(
    FREQUENT,
    "--config",
    "config_paths",
    multiple=True,
    metavar="FILE",
    help="Start from a precision.json. Repeated: compare configs.",
)
@file_path_option("Output", "--json", "json_path", metavar="OUT", help="Write JSON (schema v1); - for stdout.")
@file_path_option(FREQUENT, "--markdown", "markdown_path", metavar="OUT", help="Write a report; - for stdout.")
@file_path_option(
    "Output",
    "--save-outputs",
    "saved_outputs",
    metavar="OUT[:RUN,..]",
    callback=parse_outputs_spec,
    help="Write outputs of FP32 and the runs as RunResults.",
)
def compare(
    config_paths: tuple[str, ...],
    force: bool,
    target: str | None,
    json_path: str | None,
    markdown_path: str | None,
    saved_outputs: tuple[str | None, tuple[str, ...]],
    layers: str,
    engines: bool,
    marked: bool,
    **arguments: Any,
) -> None:
    """Compare FP16, INT8 and the config with FP32.

    Exit code 1: INT8 (with --runs: the last of them), or the config if one is given, misses the given target or its
    own (FAIL or FAIL?); or an engine could not be built. 2: no engine could be built.
    """
    from trt_tui.cli.config_comparison import require_measurable_target, require_reduced_precision
    from trt_tui.cli.headless_session import measure_comparison, open_session
    from trt_tui.session.comparison_report import (
        accumulated_error_text,
        comparison_markdown,
        comparison_record,
        comparison_text,
        unbuilt_run_lines,
    )
    from trt_tui.session.results import RESULT_SUFFIXES

    config_path = config_paths[0] if config_paths else None
    options = collect_options(arguments)
    if len(config_paths) > 1:
        from trt_tui.cli.config_comparison import compare_configs

        sys.exit(
            int(
                compare_configs(
                    options,
                    config_paths,
                    target,
                    force,
                    build_engines=engines,
                    json_path=json_path,
                    markdown_path=markdown_path,
                )
            )
        )
    quiet = "-" in (json_path, markdown_path)

    def print_first_errors(session: Session, run: str) -> None:
        if not quiet and (table := accumulated_error_text(session, run)):
            print_report("\n".join(filter(None, (escape_hidden_characters(session.fp32_miss_text), f"{table}\n"))))

    measure = partial(
        measure_comparison,
        target=target,
        layer_detail=layers,
        build_engines=engines,
        marked_engines=marked,
        saved_outputs=saved_outputs,
        print_first_errors=print_first_errors,
    )
    with open_session(options, measure, config_path=config_path, target=target, force=force) as session:
        if saved_outputs[0] is not None and not session.was_interrupted:
            print_messages(f"Wrote {saved_outputs[0]}")
        stopped = session.was_interrupted
        run = session.exit_code_run
        write_text_outputs(
            [
                (json_path, lambda: json_text(comparison_record(session))),
                (markdown_path, lambda: comparison_markdown(session)),
            ],
            overwrite=not stopped,
        )
        if not quiet:
            print_report(comparison_text(session))
        if stopped:
            print_messages("Stopped; shows what was measured so far. The same command goes on from here.")
            sys.exit(int(ExitCode.CANCELLED))
        missing_engines = unbuilt_run_lines(session)
        print_messages(*missing_engines)
        config = session.get_run_config(run)
        if target is not None:
            require_reduced_precision(session, run, target)
            require_measurable_target(session, config, target)
        target_misses = session.missed_target_reasons(config)
        missing_stages = session.stage_missed_target_reasons()
        print_messages(
            *(f"Target not met by {run}{RESULT_SUFFIXES[kind]}: {reason}" for kind, reason in target_misses.items()),
            *(f"Target not met by stage {name}: {reason}" for name, reason in missing_stages.items()),
        )
        if target_misses or missing_stages:
            sys.exit(int(ExitCode.TOLERANCE_NOT_MET))
        failed = [stage.run for stage, _ in session.list_stage_accuracies() if stage.run.unavailable_reason]
        print_messages(*(f"Stage {stage_run.name} not built: {stage_run.unavailable_reason}" for stage_run in failed))
        if failed or session.production_agreement is not None and not session.production_agreement[0]:
            sys.exit(int(ExitCode.TOLERANCE_NOT_MET))
        if missing_engines:
            runs = [session.get_run_results(run) for run in session.list_run_configs()]
            any_built = any(
                results.engine_result is not None
                and not results.engine_result.failure_reason
                or results.exported_run is not None
                and not results.exported_run.missing_reason
                for results in runs
            )
            sys.exit(int(ExitCode.TOLERANCE_NOT_MET if any_built else ExitCode.BAD_INPUT))


@click.command(cls=Command, context_settings=CONTEXT_SETTINGS)
@add_options(
    model_argument,
    *DATA_OPTIONS,
    *REFERENCE_OPTIONS,
    *SEED_OPTIONS,
    *CONFIG_OPTIONS,
    *TARGET_OPTIONS,
    BUILDER_OPTIONS[0],
    *ORT_OPERATOR_OPTIONS,
    *CLUSTER_OPTIONS,
    *VERBOSE_OPTIONS,
)
@option_under_heading(
    FREQUENT, "--calib-methods", metavar="all|A,B", default="all", show_default=True, help="The methods to compare."
)
@file_path_option("Output", "--json", "json_path", metavar="OUT", help="Write JSON; - for stdout.")
@file_path_option("Output", "--markdown", "markdown_path", metavar="OUT", help="Write a report; - for stdout.")
@click.option("--layers", type=click.Choice(["none"]), hidden=True, expose_value=False)  # of `compare`, up to 0.3
def methods(
    calib_methods: str,
    config_path: str | None,
    force: bool,
    target: str | None,
    json_path: str | None,
    markdown_path: str | None,
    **arguments: Any,
) -> None:
    """Compare the accuracy of a config with the ranges of each calibration method.

    Exit code 1: no method meets the given target.
    """
    from trt_tui.cli.headless_session import measure_range_methods, open_session
    from trt_tui.core.calibration.calibration import RANGE_METHODS
    from trt_tui.session.comparison_report import (
        best_method_missed_target_reason,
        find_best_range_method,
        method_comparison_record,
        method_comparison_table,
    )

    names = (
        RANGE_METHODS
        if calib_methods == "all"
        else tuple(dict.fromkeys(name.strip() for name in calib_methods.split(",")))
    )
    if unknown := [name for name in names if name not in RANGE_METHODS]:
        raise InputError(
            f"--calib-methods: {unknown[0] or 'nothing'} is not a calibration method",
            f"available: {', '.join(RANGE_METHODS)}",
            "Name some of them with commas, or all.",
        )
    with open_session(
        collect_options(arguments),
        partial(measure_range_methods, methods=names),
        config_path=config_path,
        target=target,
        force=force,
    ) as session:
        opened, miss_text, record = session.opened_network, session.fp32_miss_text, method_comparison_record(session)
        setup = [
            f"{counted_noun_text(opened.data.what_if_count, 'sample')} of {opened.data.source}",
            f"calibrated on {record['calibration_methods'][0]['calibration_samples']}",
            session.setup_text,
        ]
        write_report(
            f"Calibration methods of {opened.outline.name}",
            setup,
            [Section("", [list(filter(None, [miss_text])), Table(method_comparison_table(session))])],
            record,
            json_path,
            markdown_path,
        )
        if "-" not in (json_path, markdown_path) and not miss_text:
            best, title = find_best_range_method(session)
            print_messages(f"The best is {best.method}, by {title}: select it with --calib-method {best.method}.")
        if target_miss := best_method_missed_target_reason(session):
            print_messages(f"Target not met by any method: {target_miss}")
            sys.exit(int(ExitCode.TOLERANCE_NOT_MET))


@click.command(cls=Command, context_settings=CONTEXT_SETTINGS)
@add_options(
    model_argument,
    *DATA_OPTIONS,
    *REFERENCE_OPTIONS,
    *SEED_OPTIONS,
    *CONFIG_OPTIONS,
    *TARGET_OPTIONS,
    *LIBRARY_OPTIONS,
    *VERBOSE_OPTIONS,
)
@option_under_heading("Judging", "--strict", is_flag=True, help="Exit code 1 if a guard warns.")
@file_path_option(
    "Output", "--json", "json_path", metavar="OUT", help="Write the results of the guards as JSON; - for stdout."
)
@file_path_option(
    "Output", "--markdown", "markdown_path", metavar="OUT", help="Write the result as Markdown; - for stdout."
)
def preflight(
    config_path: str | None,
    force: bool,
    target: str | None,
    strict: bool,
    json_path: str | None,
    markdown_path: str | None,
    **arguments: Any,
) -> None:
    """Check whether the results can mislead.

    Other commands run only the guards that need no additional runs; this command runs every guard.
    """
    from trt_tui.cli.headless_session import measure_preflight, open_session
    from trt_tui.core.guards.guards import run_guards, warning_lines, warning_record

    with open_session(
        collect_options(arguments),
        partial(measure_preflight, target=target),
        config_path=config_path,
        target=target,
        force=force,
        quiet=True,
    ) as session:
        outline, checks = session.opened_network.outline, run_guards(session.collect_guard_facts())
        rows = [
            ["guard", "says", "looks at"],
            *(
                [
                    check.guard.name,
                    "warns" if check.alarms else NOT_MEASURED if check.missing_facts_reason else "ok",
                    check.missing_facts_reason or check.guard.description,
                ]
                for check in checks
            ),
        ]
        record = {
            "format": "trt-tui/preflight",
            "version": 1,
            "model": {
                "name": outline.name,
                "structure_sha256": outline.structure_sha256,
                "sha256": session.network_sha256,
            },
            "guards": {
                check.guard.name: {
                    "looks_at": check.guard.description,
                    **({"not_checked": check.missing_facts_reason} if check.missing_facts_reason else {}),
                    "warnings": [warning_record(alarm) for alarm in check.alarms],
                }
                for check in checks
            },
        }
        write_report(
            f"Before precision of {outline.name}",
            [session.setup_text],
            [
                Section("Guards", [Table(rows, 3)]),
                Section("Warnings", [warning_lines(alarm) for check in checks for alarm in check.alarms]),
            ],
            record,
            json_path,
            markdown_path,
        )
        if strict and session.guard_warnings:
            sys.exit(int(ExitCode.TOLERANCE_NOT_MET))


@click.command(cls=Command, context_settings=CONTEXT_SETTINGS)
@click.argument(
    "first",
    metavar="DUMP",
    is_eager=True,
    shell_complete=complete_files,
    callback=make_option_check_callback(require_model_file),
)
@click.argument("second", metavar="[DUMP]", required=False, shell_complete=complete_files)
@option_under_heading(
    FREQUENT,
    "--threshold",
    metavar="X",
    default=0.1,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    help="Relative error of a tensor for exit code 1.",
)
@file_path_option(FREQUENT, "--model", "network", metavar="MODEL", help="The network of both dumps.")
@file_path_option(FREQUENT, "-o", "--output", metavar="OUT", help="Write a config with the layers at fault in FP32.")
@CONFIG_OPTION
@FORCE_OPTION
@CALIB_CACHE_OPTION
@file_path_option("Output", "--json", "json_path", metavar="OUT", help="Write JSON (schema v1); - for stdout.")
@VERBOSE_OPTIONS[0]
def dumps(
    first: str,
    second: str | None,
    threshold: float,
    network: str | None,
    output: str | None,
    config_path: str | None,
    force: bool,
    json_path: str | None,
    **arguments: Any,
) -> None:
    """Compare the tensors of two dumps (RunResults or .npz), the second with the first.

    Exit code 1: a tensor is over the threshold.

    With one dump: the shape, range, mean, NaN and Inf of each tensor.
    """
    from trt_tui.cli.dump_comparison import compare_dumps, print_dump
    from trt_tui.options import Options

    if second is None:
        print_dump(first)
        return
    if first == second:
        raise InputError(f"{first} is compared with itself", "", f"Name two runners of the file: {first}:RUNNER.")
    options = collect_options(arguments | {"model": network}) if network is not None else Options("")
    sys.exit(int(compare_dumps(first, second, threshold, options, config_path, force, json_path, output)))
