"""The command `export`."""

from typing import Any

import click

from trt_tui.cli.options import (
    CONFIG,
    CONTEXT,
    DATA,
    LIBRARIES,
    PRODUCTION,
    REFERENCE,
    Command,
    check_config_or_precision,
    config_or_precision,
    file_option,
    option,
    options_of,
    takes,
)
from trt_tui.cli.places import check_folder, check_places
from trt_tui.cli.usage import check_usage, stdout_for, warn_of_idle_data
from trt_tui.errors import InputError
from trt_tui.words import visible


@click.command(cls=Command, context_settings=CONTEXT)
@takes(*DATA, *REFERENCE, *CONFIG, *PRODUCTION, *LIBRARIES)
@config_or_precision
@option("Output", "--format", "kind", required=True, metavar="FORMAT", help="onnx, trtexec, polygraphy, modelopt, "
        "calibration-cache, markdown, bundle or subgraph.", type=click.Choice(
    ["onnx", "trtexec", "polygraphy", "modelopt", "calibration-cache", "markdown", "bundle",
     "subgraph"]))
@file_option("Output", "-o", "--output", required=True, metavar="OUT", help="The file; trtexec and polygraphy write "
             "the networks and the cache that they need beside it. For a bundle and a subgraph a new folder.")
@option("Output", "--for", "release", type=click.Choice(["8.6", "10", "11", "rtx"]), help="bundle: the TensorRT that "
        "builds it. The folder holds the typed network, config, ranges, timing cache, build script, C++, samples with "
        "their FP32 outputs, verify.sh and a report with figures.")
@option("Output", "--from", "start", metavar="T[,T]", help="subgraph: the tensors that it reads. The folder holds it "
        "in FP32 and in the config's precisions, what really goes in, what FP32 makes of it, and Polygraphy's commands "
        "that show the fault.")
@option("Output", "--to", "stop", metavar="T[,T]", help="subgraph: the tensors that it makes.")
@option("Output", "--no-samples", is_flag=True, help="bundle: leave samples and their outputs out.")
def export(model: str, config_path: str | None, force: bool, precision: str | None, kind: str, output: str,
           release: str | None, no_samples: bool, start: str | None, stop: str | None, **arguments: Any) -> None:
    """Write a config in another tool's format."""
    from trt_tui.cli.headless import Writer, bundled
    from trt_tui.cli.report import config_markdown
    from trt_tui.jobs.exporting import WITH_SHAPES

    check_usage()
    check_config_or_precision("export", config_path, precision)
    if stdout_for(output) == "-":
        raise InputError("an export goes to a file", "stdout lists the files that were written", "Name a file with -o.")
    options = options_of(model, 0, arguments)
    if kind == "bundle":
        if release is None:
            raise InputError("a bundle is for one release", "it is not said which", "Add --for 8.6, 10, 11 or rtx.")
        check_folder(output)
        written = bundled(options, config_path, precision, force, output, release, samples=not no_samples)
        for path in written.paths[1:]:
            click.echo(path)
        return
    if kind == "subgraph":
        if start is None or stop is None:
            raise InputError("a subgraph lies between tensors", "it is not said which", "Add --from T and --to T.")
        check_folder(output)
        with Writer(options, config_path, precision, force) as writer:
            written = writer.subgraph(output, tuple(start.split(",")), tuple(stop.split(",")))
        for path in written.paths[1:]:
            click.echo(path)
        return
    places = check_places(model, arguments, config_path, output, kind=kind)
    with Writer(options, config_path, precision, force, writes=places) as writer:
        if kind == "markdown":
            written = writer.text(config_markdown(writer.outline, writer.config, config_path or ""), output)
        else:
            written = writer.export(kind, output)
    warn_of_idle_data(written.needless, shapes=kind in WITH_SHAPES)
    for line in written.lines:
        click.echo(visible(line), err=True)
    for path in written.paths:
        click.echo(path)
