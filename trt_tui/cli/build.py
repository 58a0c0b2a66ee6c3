"""The command `build`, which builds an engine of a config, or writes the strongly typed network for it."""

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
    add_model_and_options,
    collect_options,
    file_path_option,
    make_release_option,
    precision_option,
    require_config_or_precision,
)
from trt_tui.cli.streams import print_messages
from trt_tui.cli.usage import warn_of_unread_data_options
from trt_tui.errors import ExitCode, InputError


@click.command(cls=Command, context_settings=CONTEXT_SETTINGS)
@add_model_and_options(*DATA_OPTIONS, *REFERENCE_OPTIONS, *CONFIG_OPTIONS, *BUILDER_OPTIONS, *PRODUCTION_OPTIONS,
                       *LIBRARY_OPTIONS, *VERBOSE_OPTIONS)
@precision_option
@make_release_option(
    "The TensorRT release that the typed network is built with, like 10.14, 10.14.1.48, rtx or rtx1.5. A warning names "
    "each of its known defects. Without, and for an engine: the release that is installed here.")
@file_path_option(FREQUENT, "-o", "--output", required=True, metavar="OUT",
              help="model.engine: built with TensorRT. typed.onnx: the typed network. precision.json: the config.")
def build(config_path: str | None, force: bool, precision: str | None, output: str, **arguments: Any) -> None:
    """Build an engine of a config, or write its typed network or the config itself.

    A warning names each known accuracy defect of the TensorRT release that the config has.

    Exit code 1: the engine could not be built as requested, and the written engine differs (see --strict).
    """
    from trt_tui.cli.headless_session import open_config_writer
    from trt_tui.jobs.events import EngineWritten

    require_config_or_precision("build", config_path, precision)
    suffix = Path(output).suffix.lower()
    if suffix not in (*_EXPORT_FORMATS, *_ENGINE_SUFFIXES):
        raise InputError(f"{output} is not an engine, a network or a config", f"its suffix is {suffix or 'missing'}",
                         f"Name it typed.onnx, precision.json, or with one of {', '.join(_ENGINE_SUFFIXES)}.")
    builds_engine = suffix in _ENGINE_SUFFIXES
    with open_config_writer(collect_options(arguments), config_path, precision, force,
                            builds_engine=builds_engine) as writer:
        written = writer.build_engine(output) if builds_engine else writer.export_config(
            _EXPORT_FORMATS[suffix], output)
    warn_of_unread_data_options(written.no_data_reason, reads_shapes=builds_engine)
    print_messages(*written.info_lines)
    click.echo(output)
    if isinstance(written, EngineWritten) and written.deviation:
        print_messages("Not the engine of this config: TensorRT refuses it as requested, and built it with "
                       f"{written.deviation}")
        sys.exit(int(ExitCode.TOLERANCE_NOT_MET))


_ENGINE_SUFFIXES = (".engine", ".plan", ".trt")
_EXPORT_FORMATS = {".onnx": "onnx", ".json": "json"}
