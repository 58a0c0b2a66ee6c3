"""The commands `export`, `bundle` and `subgraph`, which write a config in the format of another tool, everything that
production needs, and a part of the network."""

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
from trt_tui.cli.output_files import check_output_folder
from trt_tui.cli.streams import print_messages
from trt_tui.cli.usage import replace_stdout_alias, warn_of_unread_data_options
from trt_tui.core.exporters.registry import EXPORT_FORMATS
from trt_tui.errors import InputError

_FILE_FORMATS = {name: export_format for name, export_format in EXPORT_FORMATS.items() if not export_format.is_folder}
_EXPORT_OPTIONS = (*DATA_OPTIONS, *REFERENCE_OPTIONS, *CONFIG_OPTIONS, *LIBRARY_OPTIONS, *VERBOSE_OPTIONS,
                   precision_option)
_folder_option = file_path_option(FREQUENT, "-o", "--output", "folder", required=True, metavar="OUT",
                                  help="The folder to write, which does not exist yet or is empty.")


@click.command(cls=Command, context_settings=CONTEXT_SETTINGS)
@add_model_and_options(*_EXPORT_OPTIONS, *PRODUCTION_OPTIONS)
@option_under_heading(
    FREQUENT, "--format", "kind", required=True, metavar="FORMAT", type=click.Choice(list(_FILE_FORMATS)),
    help=f"{'; '.join(f'{name}: {export_format.description}' for name, export_format in _FILE_FORMATS.items())}.")
@file_path_option(
    FREQUENT, "-o", "--output", required=True, metavar="OUT", help="The file to write; the formats trtexec and "
                                                                   "polygraphy write their networks and cache beside "
                                                                   "it.")
@make_release_option(
    "The TensorRT release that builds it, like 10.14, 10.14.1.48, rtx or rtx1.5: its known defects are named. Without: "
    "the release that is installed here.")
def export(config_path: str | None, force: bool, precision: str | None, kind: str, output: str,
           **arguments: Any) -> None:
    """Write a config as precision.json or in the format of another tool."""
    from trt_tui.cli.headless_session import open_config_writer
    from trt_tui.core.report.config_report import config_markdown

    require_config_or_precision("export", config_path, precision)
    if replace_stdout_alias(output) == "-":
        raise InputError("an export goes to a file", "stdout lists the files that were written", "Name a file with -o.")
    with open_config_writer(collect_options(arguments), config_path, precision, force) as writer:
        if kind == "markdown":
            name = Path(config_path or "").name
            written = writer.write_text(config_markdown(writer.outline, writer.config, name, writer.setup_text), output)
        else:
            written = writer.export_config(kind, output)
    warn_of_unread_data_options(written.no_data_reason, reads_shapes=EXPORT_FORMATS[kind].has_build_commands)
    print_messages(*written.info_lines)
    click.echo("\n".join(written.paths))


@click.command(cls=Command, context_settings=CONTEXT_SETTINGS)
@add_model_and_options(*_EXPORT_OPTIONS, *PRODUCTION_OPTIONS)
@_folder_option
@make_release_option("The TensorRT release that builds it: 8.6, 10, 11 or rtx, or a release of these.", required=True)
def bundle(config_path: str | None, force: bool, precision: str | None, folder: str, **arguments: Any) -> None:
    """Write everything that production needs for a config and one release.

    The folder contains the typed network, config, ranges, timing cache, build script, samples with their FP32 outputs,
    verify.sh and a report with results.
    """
    from trt_tui.cli.headless_session import export_bundle
    from trt_tui.core.network.known_defects import parse_release

    require_config_or_precision("bundle", config_path, precision)
    release = parse_release(arguments["tensorrt_release"]).family
    if not release:
        raise InputError("a bundle needs one release", f"{arguments['tensorrt_release']} is another one",
                         "Add --for 8.6, 10, 11 or rtx.")
    check_output_folder(folder)
    written = export_bundle(collect_options(arguments), config_path, precision, force, folder, release)
    click.echo("\n".join(written.paths[1:]))


@click.command(cls=Command, context_settings=CONTEXT_SETTINGS)
@add_model_and_options(*_EXPORT_OPTIONS)
@_folder_option
@option_under_heading(FREQUENT, "--from", "start", required=True, metavar="T[,T]", help="The tensors that it reads.")
@option_under_heading(FREQUENT, "--to", "stop", required=True, metavar="T[,T]", help="The tensors that it computes.")
def subgraph(config_path: str | None, force: bool, precision: str | None, folder: str, start: str, stop: str,
             **arguments: Any) -> None:
    """Write a part of the network between some tensors, for a bug report.

    The folder holds it in FP32 and in the precisions of the config, its inputs, its outputs in FP32, and the Polygraphy
    commands that show the fault.
    """
    from trt_tui.cli.headless_session import open_config_writer

    require_config_or_precision("subgraph", config_path, precision)
    check_output_folder(folder)
    with open_config_writer(collect_options(arguments), config_path, precision, force) as writer:
        written = writer.export_subgraph(folder, tuple(start.split(",")), tuple(stop.split(",")))
    click.echo("\n".join(written.paths[1:]))
