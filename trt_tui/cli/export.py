"""The command `export`."""

from __future__ import annotations

from typing import Any

import click

from trt_tui.cli.options import (
    CONFIG,
    CONTEXT,
    DATA,
    EFFORT,
    LIBRARIES,
    REFERENCE,
    Command,
    check_config_or_precision,
    config_or_precision,
    file_option,
    option,
    options_of,
    takes,
)
from trt_tui.cli.places import check_places
from trt_tui.cli.usage import check_usage, stdout_for, warn_of_idle_data
from trt_tui.errors import InputError


@click.command(cls=Command, context_settings=CONTEXT)
@takes(*DATA, *REFERENCE, *CONFIG, *EFFORT, *LIBRARIES)
@config_or_precision
@option("Output", "--format", "kind", required=True, help="What for.", type=click.Choice(
    ["onnx", "trtexec", "polygraphy", "modelopt", "calibration-cache", "markdown"]))
@file_option("Output", "-o", "--output", required=True, metavar="OUT", help="The file; trtexec and polygraphy write "
             "the networks and the cache that they need beside it.")
def export(model: str, config_path: str | None, force: bool, precision: str | None, kind: str, output: str,
           **arguments: Any) -> None:
    """Write a config in another tool's format."""
    from trt_tui.cli.headless import Writer
    from trt_tui.cli.report import config_markdown
    from trt_tui.jobs.exporting import WITH_SHAPES

    check_usage()
    check_config_or_precision("export", config_path, precision)
    if stdout_for(output) == "-":
        raise InputError("an export goes to a file", "stdout lists the files that were written", "Name a file with -o.")
    places = check_places(model, arguments, config_path, output, kind=kind)
    options = options_of(model, 0, arguments)
    with Writer(options, config_path, precision, force, writes=places) as writer:
        if kind == "markdown":
            written = writer.text(config_markdown(writer.outline, writer.config, config_path or ""), output)
        else:
            written = writer.export(kind, output)
    warn_of_idle_data(written.needless, shapes=kind in WITH_SHAPES)
    for path in written.paths:
        click.echo(path)
