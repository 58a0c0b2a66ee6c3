"""The command `build`."""

import sys
from pathlib import Path
from typing import Any

import click

from trt_tui.cli.options import (
    BUILDER,
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
from trt_tui.cli.places import check_places
from trt_tui.cli.usage import check_usage, warn_of_idle_data
from trt_tui.errors import ExitCode, InputError
from trt_tui.words import visible


@click.command(cls=Command, context_settings=CONTEXT)
@takes(*DATA, *REFERENCE, *CONFIG, *BUILDER, *PRODUCTION, *LIBRARIES)
@config_or_precision
@option("TensorRT", "--quick", is_flag=True, help="Build with the lowest effort: not for production.")
@file_option("Output", "-o", "--output", required=True, metavar="OUT",
              help="model.engine: built with TensorRT. typed.onnx: the strongly typed network.")
def build(model: str, config_path: str | None, force: bool, precision: str | None, quick: bool, output: str,
          **arguments: Any) -> None:
    """Build an engine in a config's precisions, or write its network.

    Exit code 1: the engine could not be built as asked, and the one that was written differs (see --strict).
    """
    from trt_tui.cli.headless import Writer
    from trt_tui.jobs.events import EngineWritten

    check_usage()
    check_config_or_precision("build", config_path, precision)
    suffix = Path(output).suffix.lower()
    if suffix not in (".onnx", *_ENGINES):
        raise InputError(f"{output} is neither an engine nor a network", f"its suffix is {suffix or 'missing'}",
                         f"Name it typed.onnx, or with one of {', '.join(_ENGINES)}.")
    places = check_places(model, arguments, config_path, output)
    options = options_of(model, 0, arguments)
    builds = suffix in _ENGINES
    with Writer(options, config_path, precision, force, writes=places, builds=builds) as writer:
        made = writer.engine(output, quick) if builds else writer.export("onnx", output)
    warn_of_idle_data(made.needless, shapes=builds)
    for line in made.lines:
        click.echo(line, err=True)
    click.echo(output)
    if isinstance(made, EngineWritten) and made.otherwise:
        click.echo("Not the engine of this config: TensorRT refuses it as asked, and built it with "
                   f"{visible(made.otherwise)}", err=True)
        sys.exit(int(ExitCode.TOLERANCE_NOT_MET))


_ENGINES = (".engine", ".plan", ".trt")
