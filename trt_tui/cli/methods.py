"""The command `methods`, which compares calibration methods."""

import sys
from typing import Any

import click

from trt_tui.cli.options import (
    BUILDER_OPTIONS,
    CLUSTER_OPTIONS,
    CONFIG_OPTIONS,
    CONTEXT_SETTINGS,
    DATA_OPTIONS,
    FREQUENT,
    ORT_OPERATOR_OPTIONS,
    REFERENCE_OPTIONS,
    SEED_OPTIONS,
    TARGET_OPTIONS,
    VERBOSE_OPTIONS,
    Command,
    add_model_and_options,
    collect_options,
    file_path_option,
    option_under_heading,
)
from trt_tui.cli.output_files import write_report
from trt_tui.cli.streams import print_messages
from trt_tui.errors import ExitCode, InputError


@click.command(cls=Command, context_settings=CONTEXT_SETTINGS)
@add_model_and_options(*DATA_OPTIONS, *REFERENCE_OPTIONS, *SEED_OPTIONS, *CONFIG_OPTIONS, *TARGET_OPTIONS,
                       BUILDER_OPTIONS[0], *ORT_OPERATOR_OPTIONS, *CLUSTER_OPTIONS, *VERBOSE_OPTIONS)
@option_under_heading(FREQUENT, "--calib-methods", metavar="all|A,B", default="all", show_default=True,
                      help="The methods to compare.")
@file_path_option("Output", "--json", "json_path", metavar="OUT", help="Write JSON; - for stdout.")
@file_path_option("Output", "--markdown", "markdown_path", metavar="OUT", help="Write a report; - for stdout.")
def methods(calib_methods: str, config_path: str | None, force: bool, target: str | None, json_path: str | None,
            markdown_path: str | None, **arguments: Any) -> None:
    """Compare the accuracy of a config with the ranges of each calibration method.

    Exit code 1: no method meets the given target.
    """
    from trt_tui.cli.headless_session import open_method_comparison_session
    from trt_tui.core.calibration.range_methods import RANGE_METHODS
    from trt_tui.core.report.document import Section, Table
    from trt_tui.formatting import counted_noun_text
    from trt_tui.session.result_tables import (
        find_best_range_method,
        method_comparison_record,
        method_comparison_table,
        method_missed_target_reason,
        ranking_column_title,
    )

    names = RANGE_METHODS if calib_methods == "all" else tuple(
        dict.fromkeys(name.strip() for name in calib_methods.split(",")))
    if unknown := [name for name in names if name not in RANGE_METHODS]:
        raise InputError(f"--calib-methods: {unknown[0] or 'nothing'} is not a calibration method",
                         f"available: {', '.join(RANGE_METHODS)}", "Name some of them with commas, or all.")
    with open_method_comparison_session(collect_options(arguments), config_path, target, force, names) as session:
        opened, miss_text, record = session.opened_network, session.fp32_miss_text, method_comparison_record(session)
        setup = [f"{counted_noun_text(opened.data.what_if_count, 'sample')} of {opened.data.source}",
                 f"calibrated on {record['calibration_methods'][0]['calibration_samples']}", session.setup_text]
        write_report(f"Calibration methods of {opened.outline.name}", setup,
                     [Section("", [list(filter(None, [miss_text])), Table(method_comparison_table(session))])], record,
                     json_path, markdown_path)
        if "-" not in (json_path, markdown_path) and not miss_text:
            best = find_best_range_method(session)
            print_messages(f"The best is {best}, by {ranking_column_title(session)}: select it with --calib-method "
                           f"{best}.")
        if target_miss := method_missed_target_reason(session):
            print_messages(f"Target not met by any method: {target_miss}")
            sys.exit(int(ExitCode.TOLERANCE_NOT_MET))
