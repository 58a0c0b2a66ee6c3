"""The command `preflight`, which runs all guards and prints their warnings."""

import sys
from typing import Any

import click

from trt_tui.cli.options import (
    CONFIG_OPTIONS,
    CONTEXT_SETTINGS,
    DATA_OPTIONS,
    JUDGING_OPTIONS,
    LIBRARY_OPTIONS,
    REFERENCE_OPTIONS,
    SEED_OPTIONS,
    VERBOSE_OPTIONS,
    Command,
    add_model_and_options,
    collect_options,
    file_path_option,
    option_under_heading,
)
from trt_tui.cli.output_files import write_report
from trt_tui.errors import ExitCode


@click.command(cls=Command, context_settings=CONTEXT_SETTINGS)
@add_model_and_options(*DATA_OPTIONS, *REFERENCE_OPTIONS, *SEED_OPTIONS, *CONFIG_OPTIONS, *JUDGING_OPTIONS,
                       *LIBRARY_OPTIONS, *VERBOSE_OPTIONS)
@option_under_heading("Judging", "--strict", is_flag=True, help="Exit code 1 if a guard warns.")
@file_path_option("Output", "--json", "json_path", metavar="OUT",
                  help="Write the results of the guards as JSON; - for stdout.")
@file_path_option("Output", "--markdown", "markdown_path", metavar="OUT",
                  help="Write the result as Markdown; - for stdout.")
def preflight(config_path: str | None, force: bool, target: str | None, strict: bool, json_path: str | None,
              markdown_path: str | None, **arguments: Any) -> None:
    """Check whether the results can mislead.

    Other commands run only the guards that need no additional runs; this command runs every guard.
    """
    from trt_tui.cli.guard_report import preflight_record, preflight_sections
    from trt_tui.cli.headless_session import open_preflight_session

    with open_preflight_session(collect_options(arguments), config_path, target, force) as session:
        write_report(f"Before precision of {session.opened_network.outline.name}", [session.setup_text],
                     preflight_sections(session), preflight_record(session), json_path, markdown_path)
        if strict and session.guard_warnings:
            sys.exit(int(ExitCode.TOLERANCE_NOT_MET))
