"""The command `export`, which writes a config in the format of another tool."""

from pathlib import Path
from typing import Any

import click

from trt_tui.cli.options import (
    CONFIG_OPTIONS,
    CONTEXT_SETTINGS,
    DATA_OPTIONS,
    FREQUENT,
    LIBRARY_OPTIONS,
    PRODUCTION_OPTIONS,
    REFERENCE_OPTIONS,
    VERBOSE_OPTIONS,
    Command,
    add_model_and_options,
    collect_options,
    file_path_option,
    make_release_option,
    option_under_heading,
    precision_option,
    require_config_or_precision,
)
from trt_tui.cli.output_files import check_output_folder, check_output_paths
from trt_tui.cli.streams import print_messages
from trt_tui.cli.usage import refuse_ineffective_options, replace_stdout_alias, warn_of_unread_data_options
from trt_tui.core.exporters.registry import EXPORT_FORMATS
from trt_tui.errors import InputError


@click.command(cls=Command, context_settings=CONTEXT_SETTINGS)
@add_model_and_options(*DATA_OPTIONS, *REFERENCE_OPTIONS, *CONFIG_OPTIONS, *PRODUCTION_OPTIONS, *LIBRARY_OPTIONS,
                       *VERBOSE_OPTIONS)
@precision_option
@option_under_heading(
    FREQUENT, "--format", "kind", required=True, metavar="FORMAT", type=click.Choice(list(EXPORT_FORMATS)),
    help=f"{'; '.join(f'{name}: {export_format.description}' for name, export_format in EXPORT_FORMATS.items())}.")
@file_path_option(
    FREQUENT, "-o", "--output", required=True, metavar="OUT", help="The file to write; the formats trtexec and "
                                                                   "polygraphy write their networks and cache beside "
                                                                   "it. For bundle and subgraph: a new folder.")
@make_release_option(
    "The TensorRT release that builds it, like 10.14, 10.14.1.48, rtx or rtx1.5: its known defects are named. Without: "
    "the release that is installed here. bundle: 8.6, 10, 11 or rtx, or a release of these. The folder contains the "
    "typed network, config, ranges, timing cache, build script, samples with their FP32 outputs, verify.sh and a "
    "report with results.")
@option_under_heading(
    "Output", "--from", "start", metavar="T[,T]", help="subgraph: the tensors that it reads. The folder holds it "
    "in FP32 and in the precisions of the config, its inputs, its outputs in FP32, and the Polygraphy commands that "
    "show the fault.")
@option_under_heading("Output", "--to", "stop", metavar="T[,T]", help="subgraph: the tensors that it computes.")
def export(model: str, config_path: str | None, force: bool, precision: str | None, kind: str, output: str,
           start: str | None, stop: str | None, **arguments: Any) -> None:
    """Write a config as precision.json or in the format of another tool."""
    from trt_tui.cli.headless_session import export_bundle, open_config_writer
    from trt_tui.core.network.target_release import parse_release
    from trt_tui.core.report.config_report import config_markdown

    refuse_ineffective_options()
    require_config_or_precision("export", config_path, precision)
    if replace_stdout_alias(output) == "-":
        raise InputError("an export goes to a file", "stdout lists the files that were written", "Name a file with -o.")
    options = collect_options(model, 0, arguments)
    if kind == "bundle":
        release_text = arguments["tensorrt_release"]
        release = parse_release(release_text).family if release_text is not None else ""
        if not release:
            raise InputError("a bundle needs one release",
                             "none is named" if release_text is None else f"{release_text} is another one",
                             "Add --for 8.6, 10, 11 or rtx.")
        check_output_folder(output)
        written = export_bundle(options, config_path, precision, force, output, release)
        for path in written.paths[1:]:
            click.echo(path)
        return
    if kind == "subgraph":
        if start is None or stop is None:
            raise InputError("a subgraph needs its first and last tensors", "none is named", "Add --from T and --to T.")
        check_output_folder(output)
        with open_config_writer(options, config_path, precision, force) as writer:
            written = writer.export_subgraph(output, tuple(start.split(",")), tuple(stop.split(",")))
        for path in written.paths[1:]:
            click.echo(path)
        return
    written_paths = check_output_paths(model, arguments, config_path, output, export_format=kind)
    with open_config_writer(options, config_path, precision, force, written_paths=written_paths) as writer:
        if kind == "markdown":
            name = Path(config_path or "").name
            written = writer.write_text(config_markdown(writer.outline, writer.config, name, writer.setup_text), output)
        else:
            written = writer.export_config(kind, output)
    warn_of_unread_data_options(written.no_data_reason, reads_shapes=EXPORT_FORMATS[kind].has_build_commands)
    print_messages(*written.info_lines)
    for path in written.paths:
        click.echo(path)
