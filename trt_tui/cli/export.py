"""The commands that write files of a config: `build` an engine, `export` the format of another tool, `bundle`
everything that production needs, and `subgraph` a part of the network."""

import sys
from pathlib import Path
from typing import Any

import click

from trt_tui.cli.options import (
    BUILDER_OPTIONS,
    CONFIG_OPTIONS,
    CONTEXT_SETTINGS,
    DATA_OPTIONS,
    FREQUENT,
    LIBRARY_OPTIONS,
    PRODUCTION_OPTIONS,
    REFERENCE_OPTIONS,
    VERBOSE_OPTIONS,
    Command,
    add_options,
    collect_options,
    file_path_option,
    make_release_option,
    model_argument,
    option_under_heading,
    precision_option,
    require_config_or_precision,
)
from trt_tui.cli.output_files import check_output_folder
from trt_tui.cli.streams import print_messages
from trt_tui.cli.usage import replace_stdout_alias, warn_of_unread_data_options
from trt_tui.core.exporters.registry import EXPORT_FORMATS
from trt_tui.errors import ExitCode, InputError

_FILE_FORMATS = {name: export_format for name, export_format in EXPORT_FORMATS.items() if not export_format.is_folder}
_EXPORT_OPTIONS = (
    *DATA_OPTIONS,
    *REFERENCE_OPTIONS,
    *CONFIG_OPTIONS,
    *LIBRARY_OPTIONS,
    *VERBOSE_OPTIONS,
    precision_option,
)
_folder_option = file_path_option(
    FREQUENT,
    "-o",
    "--output",
    "folder",
    required=True,
    metavar="OUT",
    help="The folder to write, which does not exist yet or is empty.",
)


@click.command(cls=Command, context_settings=CONTEXT_SETTINGS)
@add_options(model_argument, *_EXPORT_OPTIONS, *PRODUCTION_OPTIONS)
@option_under_heading(
    FREQUENT,
    "--format",
    "kind",
    required=True,
    metavar="FORMAT",
    type=click.Choice(list(_FILE_FORMATS)),
    help=f"{'; '.join(f'{name}: {export_format.description}' for name, export_format in _FILE_FORMATS.items())}.",
)
@file_path_option(
    FREQUENT,
    "-o",
    "--output",
    required=True,
    metavar="OUT",
    help="The file to write; the formats trtexec and polygraphy write their networks and cache beside it.",
)
@make_release_option(
    "The TensorRT release that builds it, like 10.14, 10.14.1.48, rtx or rtx1.5: its known defects are named. Without: "
    "the release that is installed here."
)
def export(
    config_path: str | None, force: bool, precision: str | None, kind: str, output: str, **arguments: Any
) -> None:
    """Write a config as precision.json or in the format of another tool."""
    from trt_tui.cli.headless_session import open_config_session
    from trt_tui.core.report.config_report import config_markdown
    from trt_tui.jobs.events import ConfigExported
    from trt_tui.jobs.requests import WriteTextFile

    require_config_or_precision("export", config_path, precision)
    if replace_stdout_alias(output) == "-":
        raise InputError("an export goes to a file", "stdout lists the files that were written", "Name a file with -o.")
    with open_config_session(collect_options(arguments), config_path, precision, force) as session:
        if kind == "markdown":
            text = config_markdown(
                session.network_outline, session.config, Path(config_path or "").name, session.setup_text
            )
            written = session.request_answer(WriteTextFile(output, text), ConfigExported)
        else:
            written = session.write_export(kind, output)
    warn_of_unread_data_options(written.no_data_reason, reads_shapes=EXPORT_FORMATS[kind].has_build_commands)
    print_messages(*written.info_lines)
    click.echo("\n".join(written.paths))


@click.command(cls=Command, context_settings=CONTEXT_SETTINGS)
@add_options(model_argument, *_EXPORT_OPTIONS, *PRODUCTION_OPTIONS)
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
        raise InputError(
            "a bundle needs one release",
            f"{arguments['tensorrt_release']} is another one",
            "Add --for 8.6, 10, 11 or rtx.",
        )
    check_output_folder(folder)
    written = export_bundle(collect_options(arguments), config_path, precision, force, folder, release)
    click.echo("\n".join(written.paths[1:]))


@click.command(cls=Command, context_settings=CONTEXT_SETTINGS)
@add_options(model_argument, *_EXPORT_OPTIONS)
@_folder_option
@option_under_heading(FREQUENT, "--from", "start", required=True, metavar="T[,T]", help="The tensors that it reads.")
@option_under_heading(FREQUENT, "--to", "stop", required=True, metavar="T[,T]", help="The tensors that it computes.")
def subgraph(
    config_path: str | None, force: bool, precision: str | None, folder: str, start: str, stop: str, **arguments: Any
) -> None:
    """Write a part of the network between some tensors, for a bug report.

    The folder holds it in FP32 and in the precisions of the config, its inputs, its outputs in FP32, and the Polygraphy
    commands that show the fault.
    """
    from trt_tui.cli.headless_session import open_config_session
    from trt_tui.jobs.requests import WriteSubgraph

    require_config_or_precision("subgraph", config_path, precision)
    check_output_folder(folder)
    with open_config_session(collect_options(arguments), config_path, precision, force) as session:
        written = session.write_config(
            WriteSubgraph,
            path=folder,
            start_tensors=tuple(start.split(",")),
            stop_tensors=tuple(stop.split(",")),
        )
    click.echo("\n".join(written.paths[1:]))


@click.command(cls=Command, context_settings=CONTEXT_SETTINGS)
@add_options(model_argument, *_EXPORT_OPTIONS, *BUILDER_OPTIONS, *PRODUCTION_OPTIONS)
@make_release_option(
    "The TensorRT release that the typed network is built with, like 10.14, 10.14.1.48, rtx or rtx1.5. A warning names "
    "each of its known defects. Without, and for an engine: the release that is installed here."
)
@file_path_option(
    FREQUENT,
    "-o",
    "--output",
    required=True,
    metavar="OUT",
    help="model.engine: built with TensorRT. typed.onnx: the typed network. precision.json: the config.",
)
def build(config_path: str | None, force: bool, precision: str | None, output: str, **arguments: Any) -> None:
    """Build an engine of a config, or write its typed network or the config itself.

    A warning names each known accuracy defect of the TensorRT release that the config has.

    Exit code 1: the engine could not be built as requested, and the written engine differs (see --strict).
    """
    from trt_tui.cli.headless_session import open_config_session
    from trt_tui.jobs.requests import WriteEngine

    require_config_or_precision("build", config_path, precision)
    suffix = Path(output).suffix.lower()
    if suffix not in (*_EXPORT_FORMATS, *_ENGINE_SUFFIXES):
        raise InputError(
            f"{output} is not an engine, a network or a config",
            f"its suffix is {suffix or 'missing'}",
            f"Name it typed.onnx, precision.json, or with one of {', '.join(_ENGINE_SUFFIXES)}.",
        )
    builds_engine = suffix in _ENGINE_SUFFIXES
    with open_config_session(
        collect_options(arguments), config_path, precision, force, builds_engine=builds_engine
    ) as session:
        written = (
            session.write_config(WriteEngine, path=output)
            if builds_engine
            else session.write_export(_EXPORT_FORMATS[suffix], output)
        )
    warn_of_unread_data_options(written.no_data_reason, reads_shapes=builds_engine)
    print_messages(*written.info_lines)
    click.echo(output)
    if written.deviation:
        print_messages(
            f"Not the engine of this config: TensorRT refuses it as requested, and built it with {written.deviation}"
        )
        sys.exit(int(ExitCode.TOLERANCE_NOT_MET))


_ENGINE_SUFFIXES = (".engine", ".plan", ".trt")
_EXPORT_FORMATS = {".onnx": "onnx", ".json": "json"}
