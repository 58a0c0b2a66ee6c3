"""The command `build`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trt_tui.cli.options import (
    BUILDER,
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
from trt_tui.cli.usage import check_usage, without_idle_data
from trt_tui.errors import BackendUnavailableError, ExitCode, InputError
from trt_tui.words import visible

if TYPE_CHECKING:
    from trt_tui.core.moves.config import PrecisionConfig
    from trt_tui.core.network.network import Network
    from trt_tui.jobs.messages import Prepared
    from trt_tui.options import Options


@click.command(cls=Command, context_settings=CONTEXT)
@takes(*DATA, *CONFIG, *BUILDER, *EFFORT)
@config_or_precision
@option("TensorRT", "--quick", is_flag=True, help="Build with the lowest effort: a preview, not for production.")
@file_option("Output", "-o", "--output", required=True, metavar="OUT",
              help="model.engine: built with TensorRT. typed.onnx: the strongly typed network.")
def build(model: str, config_path: str | None, force: bool, precision: str | None, quick: bool, output: str,
          **arguments: Any) -> None:
    """Build a production engine in a config's precisions, or write the network that one is built from.

    Exit code 1: the engine could not be built as asked, and what was written is another one (see --strict).
    """
    from trt_tui.cli.headless import load_config, prepared, write_engine
    from trt_tui.core.data.watched import Inputs, data_files
    from trt_tui.jobs.engines import QUICK_LEVEL
    from trt_tui.jobs.judging import write_typed
    from trt_tui.jobs.messages import Prepare

    check_usage()
    check_config_or_precision("build", config_path, precision)
    suffix = Path(output).suffix.lower()
    if suffix not in (".onnx", *_ENGINES):
        raise InputError(f"{output} is neither an engine nor a network", f"its suffix is {suffix or 'missing'}",
                         f"Name it typed.onnx, or with one of {', '.join(_ENGINES)}.")
    check_places(model, arguments, config_path, output)
    options = options_of(model, 0, arguments)
    if suffix in _ENGINES:
        from trt_tui.backends.registry import get_builder

        # Whether it works is found out before the network is read and calibrated; the child process does it again.
        if get_builder(options.backend) is None:
            raise BackendUnavailableError(
                "no TensorRT works here to build an engine",
                "ONNX Runtime builds none" if options.backend == "onnxruntime" else "trt-tui doctor says why",
                "Write -o typed.onnx instead, or build with --backend tensorrt-rtx, which needs no GPU.")
    read = Inputs.of((model, *data_files(options.data), *data_files(options.calib_data)))
    network, config, ranges, warnings = load_config(options, config_path, precision, force)
    for warning in warnings:
        click.echo(f"Warning: {visible(warning)}", err=True)
    ready = prepared(network, without_idle_data(Prepare(options, config, ranges, shapes=suffix in _ENGINES), network))
    if suffix in _ENGINES:
        lines, otherwise = write_engine(options, config, ready.ranges, Path(output), quick, read)
        if quick:
            lines.append("A quick preview, built with the lowest effort: not for production.")
            options = replace(options, optimization_level=QUICK_LEVEL)
        lines += _trtexec_lines(network, config, ready, options, Path(output))
        written = Path(output)
    else:
        written, lines = write_typed(network, config, ready.ranges, Path(output))
    for line in lines:
        click.echo(line, err=True)
    click.echo(str(written))
    if suffix in _ENGINES and otherwise:
        click.echo("Not the engine of this config: TensorRT refuses it as asked, and built it with "
                   f"{visible(otherwise)}", err=True)
        sys.exit(int(ExitCode.TOLERANCE_NOT_MET))


_ENGINES = (".engine", ".plan", ".trt")


def _trtexec_lines(network: Network, config: PrecisionConfig, ready: Prepared, options: Options,
                   output: Path) -> list[str]:
    """The trtexec command lines that build the same."""
    import shlex

    from trt_tui.core.exporters.production import files_beside, trtexec_lines

    script = f"{output.name}.sh"
    told = [f"The same config with trtexec (`trt-tui export --format trtexec -o {script}` writes the files it names):"]
    try:
        files = replace(files_beside("trtexec", output.with_name(script)), engine=output.name)
        lines = trtexec_lines(network, config, ready.ranges, files, ready.shapes, options.effort)
    except InputError as error:
        return [f"trtexec cannot be told the same: {error.title}"]
    for line in lines:
        told += [f"  # {line.release}", f"  {shlex.join(line.argv) if line.argv else '# ' + line.refused}"]
    return told
