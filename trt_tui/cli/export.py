"""The command `export`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from trt_tui.cli.options import (
    CONFIG,
    CONTEXT,
    DATA,
    EFFORT,
    Command,
    check_config_or_precision,
    config_or_precision,
    file_option,
    option,
    options_of,
    takes,
)
from trt_tui.cli.places import check_places
from trt_tui.cli.usage import check_usage, stdout_for, without_idle_data
from trt_tui.errors import InputError
from trt_tui.words import visible


@click.command(cls=Command, context_settings=CONTEXT)
@takes(*DATA, *CONFIG, *EFFORT)
@config_or_precision
@option("Output", "--format", "kind", required=True, help="What for.", type=click.Choice(
    ["onnx", "trtexec", "polygraphy", "modelopt", "calibration-cache", "markdown"]))
@file_option("Output", "-o", "--output", required=True, metavar="OUT", help="The file; trtexec and polygraphy write "
             "the networks and the cache that they need beside it.")
def export(model: str, config_path: str | None, force: bool, precision: str | None, kind: str, output: str,
           **arguments: Any) -> None:
    """Write a config in another tool's format."""
    from trt_tui.cli.headless import load_config, prepared
    from trt_tui.cli.report import config_markdown
    from trt_tui.core.exporters import production
    from trt_tui.files.writing import write_atomic
    from trt_tui.jobs.messages import Prepare

    check_usage()
    check_config_or_precision("export", config_path, precision)
    if stdout_for(output) == "-":
        raise InputError("an export goes to a file", "stdout tells which files were written", "Give -o a file's name.")
    check_places(model, arguments, config_path, output, kind=kind)
    options = options_of(model, 0, arguments)
    network, config, ranges, warnings = load_config(options, config_path, precision, force)
    for warning in warnings:
        click.echo(f"Warning: {visible(warning)}", err=True)
    if kind == "markdown":
        write_atomic(Path(output), config_markdown(network, config, config_path or ""))
        click.echo(output)
        return
    request = Prepare(options, config, ranges, quantizes=kind != "modelopt", every=kind == "calibration-cache",
                      shapes=kind in ("trtexec", "polygraphy"))
    ready = prepared(network, without_idle_data(request, network))
    for written in production.write(kind, Path(output), network, config, ready.ranges, shapes=ready.shapes,
                                    effort=options.effort):
        click.echo(str(written))
