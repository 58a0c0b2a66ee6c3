"""The command `preflight`."""

import json
import sys
from typing import Any

import click

from trt_tui.cli.options import (
    CONFIG,
    CONTEXT,
    DATA,
    JUDGING,
    LIBRARIES,
    REFERENCE,
    SEED,
    Command,
    file_option,
    option,
    options_of,
    takes,
)
from trt_tui.cli.places import check_places, write_outputs
from trt_tui.cli.usage import check_usage, one_on_stdout, stdout_for
from trt_tui.errors import ExitCode


@click.command(cls=Command, context_settings=CONTEXT)
@takes(*DATA, *REFERENCE, *SEED, *CONFIG, *JUDGING, *LIBRARIES)
@option("Judging", "--strict", is_flag=True, help="Exit code 1 if a guard warns.")
@file_option("Output", "--json", "json_path", metavar="OUT", help="Write what the guards say as JSON; - for stdout.")
@file_option("Output", "--markdown", "markdown_path", metavar="OUT", help="Write it as Markdown; - for stdout.")
def preflight(model: str, config_path: str | None, force: bool, target: str | None, strict: bool,
              json_path: str | None, markdown_path: str | None, **arguments: Any) -> None:
    """Look for what makes figures say less than they seem to.

    Other commands do so too as far as that costs no runs of its own; here every guard looks.
    """
    from trt_tui.cli.guard_report import preflight_markdown, preflight_record, preflight_table
    from trt_tui.cli.headless import preflight_session

    check_usage()
    json_path, markdown_path = stdout_for(json_path), stdout_for(markdown_path)
    one_on_stdout({"--json": json_path, "--markdown": markdown_path})
    places = check_places(model, arguments, config_path, json_path, markdown_path)
    with preflight_session(options_of(model, 0, arguments), config_path, target, force, places) as session:
        write_outputs([(json_path, lambda session: json.dumps(preflight_record(session), indent=1) + "\n"),
                       (markdown_path, preflight_markdown)], session)
        if "-" not in (json_path, markdown_path):
            click.echo(preflight_table(session))
        if strict and session.alarms:
            sys.exit(int(ExitCode.TOLERANCE_NOT_MET))
