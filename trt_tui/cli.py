"""The command line. Data goes to stdout, messages to stderr; the app is imported only when it opens."""

from __future__ import annotations

import difflib
import errno
import gc
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from trt_tui.errors import ExitCode, InputError, TrtTuiError


class _Commands(click.Group):
    """A first argument that is no command is a network to open."""

    def resolve_command(self, ctx: click.Context, args: list[str]):
        if args and self.get_command(ctx, args[0]) is None:
            return "open", self.commands["open"], args
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return ["open", "demo", "compare", "build", "export", "inspect", "doctor"]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Options before the network belong to `open`.
        if args and args[0].startswith("-") and args[0] not in ("--help", "--version", "-h"):
            args = ["open", *args]
        return super().parse_args(ctx, args)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["standalone_mode"] = False
        try:
            code = super().main(*args, **kwargs)
        except TrtTuiError as error:
            _print_error(error)
            sys.exit(int(error.exit_code))
        except click.exceptions.Exit as stop:
            sys.exit(stop.exit_code)
        except (click.Abort, KeyboardInterrupt):
            click.echo("Stopped.", err=True)
            sys.exit(int(ExitCode.CANCELLED))
        except click.ClickException as error:
            error.show()
            sys.exit(int(ExitCode.BAD_INPUT))
        except BrokenPipeError:
            sys.stderr.close()
            sys.exit(0)
        except Exception:
            traceback.print_exc()
            click.echo("Error: this is a defect of trt-tui, please report it with the lines above.", err=True)
            sys.exit(int(ExitCode.BAD_INPUT))
        sys.exit(code if isinstance(code, int) else 0)


def _print_error(error: TrtTuiError) -> None:
    click.echo(f"Error: {error.title}", err=True)
    if error.cause:
        click.echo(f"  Why: {error.cause}", err=True)
    if error.next_step:
        click.echo(f"  Next: {error.next_step}", err=True)


_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(cls=_Commands, context_settings=_CONTEXT, no_args_is_help=True)
@click.version_option(None, "--version", package_name="trt-tui")
def main() -> None:
    """See which layers of a network lose accuracy in FP16 or INT8, put them back, export the precision config.

    `trt-tui MODEL --data D` opens the app on a network; `trt-tui demo` opens it on the bundled one.
    """


def _data_options(command: Callable) -> Callable:
    options = [
        click.argument("model"),
        click.option("--data", metavar="D", help="Samples: .npz, a folder of them, Polygraphy inputs JSON, or a "
                     "script with load_data(). Arrays that are no input are labels. Without: seeded random inputs."),
        click.option("--calib-data", metavar="D",
                     help="Samples to calibrate on. Without: every fourth batch of --data."),
        click.option("--calib-method", default="minmax", show_default=True,
                     type=click.Choice(["minmax", "percentile", "entropy", "mse"])),
        click.option("--calib-cache", metavar="FILE", help="Take the ranges from a TensorRT calibration cache."),
        click.option("--config", "config_path", metavar="FILE", help="Start from a precision.json."),
        click.option("--force", is_flag=True, help="Take a config made for another structure."),
        click.option("--judge", multiple=True, metavar="TENSOR[SLICE]", help="What errors are taken at; may be "
                     "repeated. Without: the float outputs, a terminal Concat split into its parts."),
        click.option("--metric", metavar="FILE.py:FUNCTION", help="(outputs, labels) -> float or a mapping."),
        click.option("--target", metavar="TEXT", help="metric>=base-0.01, metric>=base-1%, sqnr>=20, cosine>=0.999 or "
                     "agreement>=0.99."),
        click.option("--other", default="fp16", show_default=True, type=click.Choice(["fp32", "fp16", "bf16"]),
                     help="What layers around INT8 ones run in."),
        click.option("--backend", default="auto", show_default=True,
                     type=click.Choice(["auto", "onnxruntime", "tensorrt", "tensorrt-rtx"])),
        click.option("--shapes", multiple=True, metavar="NAME:MIN:OPT:MAX", help="Shapes of a dynamic input, like "
                     "x:1x3x224x224:8x3x224x224:16x3x224x224; one shape stands for all three."),
        click.option("--samples", type=click.IntRange(min=1), help="Use at most so many samples."),
        click.option("--batch", type=click.IntRange(min=1), help="Batch size where the network leaves it open."),
        click.option("--seed", default=0, show_default=True, type=int),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _options(model: str, whatif_samples: int, arguments: dict[str, Any]):
    from trt_tui.core.precision import Precision
    from trt_tui.jobs.messages import Options

    return Options(
        model, arguments["data"], arguments["calib_data"], tuple(arguments["judge"]), arguments["metric"],
        tuple(arguments["shapes"]), arguments["backend"], arguments["calib_method"], arguments["samples"],
        whatif_samples, arguments["batch"], arguments["seed"], Precision(arguments["other"]), arguments["calib_cache"])


@main.command("open", context_settings=_CONTEXT)
@_data_options
@click.option("--whatif-samples", default=32, show_default=True, type=click.IntRange(min=1),
              help="Every figure of the app is taken on the first so many judged samples.")
@click.option("--new", is_flag=True, help="Do not take up the saved session of this network.")
def open_(model: str, whatif_samples: int, new: bool, config_path: str | None, force: bool, target: str | None,
          **arguments: Any) -> None:
    """Open the app on MODEL (the same as `trt-tui MODEL`)."""
    if not Path(model).exists():
        near = difflib.get_close_matches(model, main.list_commands(click.get_current_context()), 1)
        raise InputError(f"{model} is no command and no file", f"Near: {near[0]}." if near else "",
                         "See `trt-tui --help`, or check the path.")
    _run_app(_options(model, whatif_samples, arguments), config_path, target, force, new)


@main.command(context_settings=_CONTEXT)
@click.option("--new", is_flag=True, help="Do not take up the saved session.")
@click.option("--whatif-samples", default=32, show_default=True, type=click.IntRange(min=1))
def demo(new: bool, whatif_samples: int) -> None:
    """Open the app on the bundled network: a segmentation network that INT8 breaks."""
    from trt_tui import demo as bundled
    from trt_tui.jobs.messages import Options

    options = Options(str(bundled.network_path()), str(bundled.samples_path()), str(bundled.calibration_path()),
                      metric=bundled.metric_spec(), whatif_samples=whatif_samples)
    _run_app(options, None, None, False, new)


def _run_app(options, config_path: str | None, target: str | None, force: bool, new: bool) -> None:
    from trt_tui.target import parse_target

    if target:
        parse_target(target)
    if not sys.stdout.isatty():
        raise InputError("the app needs a terminal", "stdout is no terminal",
                         "Use `trt-tui compare` for figures without the app.")
    from trt_tui.tui.app import TrtTuiApp

    gc.set_threshold(100_000, 20, 50)  # a big network is many small objects that all stay
    app = TrtTuiApp(options, config_path=config_path, target=target, force=force, resume=not new)
    app.run()
    if app.return_code:
        sys.exit(app.return_code)


@main.command(context_settings=_CONTEXT)
@_data_options
@click.option("--json", "json_path", metavar="OUT", help="Write the comparison as JSON (schema v1); - for stdout.")
@click.option("--markdown", "markdown_path", metavar="OUT", help="Write it as Markdown; - for stdout.")
@click.option("--no-layers", is_flag=True, help="Leave out errors at the groups and shares.")
def compare(model: str, config_path: str | None, force: bool, target: str | None, json_path: str | None,
            markdown_path: str | None, no_layers: bool, **arguments: Any) -> None:
    """FP16, INT8 and the config against FP32, at the outputs and per layer."""
    from trt_tui.core.exporters.markdown import comparison_markdown
    from trt_tui.core.files import write_atomic
    from trt_tui.headless import compare_session
    from trt_tui.report import comparison_table
    from trt_tui.target import parse_target

    if target is not None:
        parse_target(target)
    for path in (json_path, markdown_path):
        _check_place(path)
    with compare_session(_options(model, 0, arguments), config_path, target, force, layers=not no_layers) as session:
        record = session.record()
        quiet = False
        for path, text in ((json_path, lambda: json.dumps(record, indent=1) + "\n"),
                           (markdown_path, lambda: comparison_markdown(record, session.outline, session.config))):
            if path == "-":
                click.echo(text(), nl=False)
                quiet = True
            elif path is not None:
                write_atomic(Path(path), text())
                click.echo(f"Wrote {path}", err=True)
        if not quiet:
            click.echo(comparison_table(session))
        if target is not None:
            run = "config" if config_path else "int8"
            reached = session.target.reached(session.runs[run].verdict)
            if reached is None:
                raise InputError(f"whether {target} is met is not known", f"no {session.target.kind} was measured",
                                 "A metric needs --metric and labels, agreement a classifier; sqnr and cosine a float.")
            if not reached:
                click.echo(f"Target not met by {run}: {session.target.shown}", err=True)
                sys.exit(int(ExitCode.TOLERANCE_NOT_MET))


def _check_place(path: str | None) -> None:
    """Refuses a place that cannot be written before anything is measured for it."""
    from trt_tui.core.files import cannot_write

    if path in (None, "-"):
        return
    place = Path(path)
    with cannot_write(place):
        folder = place.resolve().parent
        if not folder.is_dir():
            raise FileNotFoundError
        if place.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, f"folder {folder} is read-only")


@main.command(context_settings=_CONTEXT)
@_data_options
@click.option("--precision", type=click.Choice(["fp32", "bf16", "fp16", "int8"]), help="In place of a config.")
@click.option("-o", "--output", required=True, metavar="OUT", help="typed.onnx: the strongly typed network.")
def build(model: str, config_path: str | None, force: bool, precision: str | None, output: str,
          **arguments: Any) -> None:
    """Write the network that production builds from, in a config's precisions."""
    from trt_tui.headless import load_config, ranges_for
    from trt_tui.jobs.building import write_typed

    if (config_path is None) == (precision is None):
        raise InputError("build needs a config or a precision", "exactly one of --config and --precision is taken",
                         "Give --config precision.json, or --precision fp16.")
    if Path(output).suffix.lower() in (".engine", ".plan", ".trt") or arguments["backend"].startswith("tensorrt"):
        from trt_tui.errors import BackendUnavailableError

        raise BackendUnavailableError(
            f"{output} cannot be built here", "this version writes the typed network and builds no TensorRT engine",
            "Write -o typed.onnx, then build it: trtexec --onnx=typed.onnx --stronglyTyped --saveEngine=...")
    _check_place(output)
    options = _options(model, 0, arguments)
    network, config, ranges, warnings = load_config(options, config_path, precision, force)
    for warning in warnings:
        click.echo(f"Warning: {warning}", err=True)
    ranges = ranges_for(options, network, config, ranges)
    written, lines = write_typed(network, config, ranges, Path(output))
    for line in lines:
        click.echo(line, err=True)
    click.echo(str(written))


@main.command(context_settings=_CONTEXT)
@_data_options
@click.option("--format", "kind", required=True, type=click.Choice(["onnx", "calibration-cache", "markdown"]))
@click.option("-o", "--output", required=True, metavar="OUT")
def export(model: str, config_path: str | None, force: bool, kind: str, output: str, **arguments: Any) -> None:
    """Write a config in another tool's format."""
    from trt_tui.core.calibration import write_cache
    from trt_tui.core.files import write_atomic
    from trt_tui.headless import load_config, ranges_for
    from trt_tui.jobs.building import write_typed
    from trt_tui.report import config_markdown

    if config_path is None:
        raise InputError("export needs a config", "", "Give --config precision.json.")
    _check_place(output)
    options = _options(model, 0, arguments)
    network, config, ranges, warnings = load_config(options, config_path, None, force)
    for warning in warnings:
        click.echo(f"Warning: {warning}", err=True)
    if kind == "markdown":
        write_atomic(Path(output), config_markdown(network, config, config_path))
    elif kind == "onnx":
        write_typed(network, config, ranges_for(options, network, config, ranges), Path(output))
    else:
        from trt_tui.core.scales import activation_ranges

        measured = ranges_for(options, network, config, ranges, always=True)
        write_cache(output, {**measured, **activation_ranges(network, measured, config)})
    click.echo(output)


@main.command(context_settings=_CONTEXT)
@click.argument("model")
@click.option("--nodes", is_flag=True, help="Show the nodes of each group too.")
def inspect(model: str, nodes: bool) -> None:
    """The layer tree as text: operator, shape, group, and what can run in FP16 and INT8, or why not."""
    from trt_tui.core.hierarchy import build_tree, render_tree
    from trt_tui.core.network import open_network

    network = open_network(model)
    click.echo(f"{network.name}: {len(network.layers)} nodes in {len(network.groups)} groups, opset {network.opset}")
    for note in network.notes:
        click.echo(f"  {note}")
    click.echo(render_tree(build_tree(network.layers, network.groups), network.shape, nodes=nodes))


@main.command(context_settings=_CONTEXT)
def doctor() -> None:
    """Which backends work here, and why the others do not."""
    import platform

    import numpy
    import onnx
    import onnx_ir

    from trt_tui import __version__
    from trt_tui.backends.registry import survey

    click.echo(f"trt-tui {__version__}, Python {platform.python_version()}, numpy {numpy.__version__}, "
               f"onnx {onnx.__version__}, onnx-ir {onnx_ir.__version__}")
    states = survey()
    width = max(len(state.name) for state in states)
    for state in states:
        mark = "yes" if state.works else "no "
        version = f" {state.version}" if state.version else ""
        click.echo(f"  {mark}  {state.name:<{width}} {version:<9} {state.detail}")
        if state.remedy:
            click.echo(f"       {'':<{width}} {'':<9} {state.remedy}")
    if not any(state.works for state in states):
        raise SystemExit(int(ExitCode.BACKEND_UNAVAILABLE))
