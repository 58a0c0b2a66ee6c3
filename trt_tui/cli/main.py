"""The command line. Data goes to stdout, messages to stderr; the app is imported only when it opens."""

from __future__ import annotations

import difflib
import errno
import gc
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from trt_tui.cli import interrupts
from trt_tui.cli.streams import guarded
from trt_tui.cli.usage import check_usage, one_on_stdout, stdout_for, unread_data
from trt_tui.errors import BackendUnavailableError, ExitCode, InputError, TrtTuiError, memory_error, system_error
from trt_tui.words import VisibleStream, visible


class _Commands(click.Group):
    """A first argument that is no command is a network to open."""

    def resolve_command(self, ctx: click.Context, args: list[str]):
        if args and self.get_command(ctx, args[0]) is None:
            return "open", self.commands["open"], args
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return ["open", "demo", "compare", "search", "build", "export", "inspect", "doctor"]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Options before the network belong to `open`.
        if args and args[0].startswith("-") and args[0] not in ("--help", "--version", "-h"):
            args = ["open", *args]
        return super().parse_args(ctx, args)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a command and exits with its code. Whatever it prints passes through a `VisibleStream`."""
        kwargs["standalone_mode"] = False
        with guarded(), redirect_stdout(VisibleStream(sys.stdout)), redirect_stderr(VisibleStream(sys.stderr)):
            code = self._exit_code(*args, **kwargs)
            interrupts.leave(code)
            sys.exit(code)

    def _exit_code(self, *args: Any, **kwargs: Any) -> int:
        """Runs a command; whatever ends it is told on stderr."""
        try:
            with interrupts.raising():
                _check_here()
                code = super().main(*args, **kwargs)
                sys.stdout.flush()
        except TrtTuiError as error:
            _print_error(error)
            return int(error.exit_code)
        except click.exceptions.Exit as stop:
            return stop.exit_code
        except SystemExit as stop:
            return stop.code if isinstance(stop.code, int) else 0
        except (click.Abort, KeyboardInterrupt):
            click.echo("Stopped.", err=True)
            return int(ExitCode.CANCELLED)
        except click.ClickException as error:
            error.show()
            return int(ExitCode.BAD_INPUT)
        except MemoryError as error:
            _print_error(memory_error(error))
            return int(ExitCode.BAD_INPUT)
        except OSError as error:
            _print_error(system_error(error))
            return int(ExitCode.BAD_INPUT)
        except Exception:
            traceback.print_exc()
            click.echo("Error: this is a defect of trt-tui, please report it with the lines above.", err=True)
            return int(ExitCode.BAD_INPUT)
        return code if isinstance(code, int) else 0


def _check_here() -> None:
    """Refuses to start in a folder that is gone: no relative path means anything there."""
    try:
        os.getcwd()
    except OSError as error:
        raise InputError("the current folder is gone", error.strerror or str(error),
                         "Change to another folder (cd) and run it again.") from None


def _print_error(error: TrtTuiError) -> None:
    click.echo(f"Error: {visible(error.title)}", err=True)
    for label, text in (("Why", error.cause), ("Next", error.next_step)):
        if text:
            # No line of a library's message can pass for one of ours.
            said = visible(text, lines=True).replace("\n", "\n       ")
            click.echo(f"  {label}: {said}", err=True)


_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(cls=_Commands, context_settings=_CONTEXT, no_args_is_help=True)
@click.version_option(None, "--version", package_name="trt-tui")
def main() -> None:
    """See which layers of a network lose accuracy in FP16 or INT8, put them back, export the precision config.

    `trt-tui MODEL --data D` opens the app on a network; `trt-tui demo` opens it on the bundled one.
    """


_OF_JUDGING = ("judge", "metric", "target", "judge_at", "seed")
"""Options that say how figures are taken: of commands that take some."""


def _data_options(command: Callable, without: tuple[str, ...] = ()) -> Callable:
    """Adds the options that commands share, those ``without`` left out."""
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
        click.option("--weak", is_flag=True, help="TensorRT up to 10: precisions layer by layer and implicit "
                     "quantization, for a production that builds so."),
        click.option("--strict", is_flag=True, help="Build engines as asked or not at all. Without: where TensorRT "
                     "refuses, layers that it names are let go or raised one step, then precisions are preferred and "
                     "not obeyed, then none is told (8.6 and --weak; a strongly typed release has the first of these); "
                     "what was asked and what was made is said."),
        click.option("--judge-at", multiple=True, type=click.Choice(["min", "max"]),
                     help="Judge engines at this shape of the profile too; may be repeated."),
        click.option("--timing-cache", metavar="FILE", help="Read and extend this timing cache. Without: one in the "
                     "cache folder, by GPU and release."),
        click.option("--optimization-level", type=click.IntRange(0, 5), help="The builder's effort; its own default "
                     "where not given."),
        click.option("--tactic-sources", metavar="A,B", help="Tactic sources that the builder may use."),
        click.option("--compute-capability", metavar="8.9", help="TensorRT-RTX: the GPU to build for."),
    ]
    for option in reversed(options):
        command = option(command)
    command.__click_params__ = [one for one in command.__click_params__ if one.name not in without]
    return command


def _options(model: str, whatif_samples: int, arguments: dict[str, Any]):
    from trt_tui.core.precision import Precision
    from trt_tui.options import Options

    return Options(
        model, arguments["data"], arguments["calib_data"], tuple(arguments.get("judge", ())), arguments.get("metric"),
        tuple(arguments["shapes"]), arguments.get("backend", "auto"), arguments["calib_method"], arguments["samples"],
        whatif_samples, arguments["batch"], arguments.get("seed", 0), Precision(arguments["other"]),
        arguments["calib_cache"], arguments.get("weak", False), _names(arguments["tactic_sources"]),
        arguments["timing_cache"], _compute_capability(arguments.get("compute_capability")),
        tuple(arguments.get("judge_at", ())), arguments["optimization_level"], arguments.get("strict", False))


def _names(text: str | None) -> tuple[str, ...] | None:
    return tuple(name.strip() for name in text.split(",") if name.strip()) if text is not None else None


def _compute_capability(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    major, dot, minor = text.lower().removeprefix("sm").partition(".")
    if not dot:
        major, minor = major[:-1], major[-1:]
    if not (major.isdigit() and minor.isdigit()):
        raise InputError(f"{text} is no compute capability", "", "Give it like 8.9 or SM89.")
    return int(major), int(minor)


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
    check_usage()
    _run_app(_options(model, whatif_samples, arguments), config_path, target, force, new)


@main.command(context_settings=_CONTEXT)
@click.option("--new", is_flag=True, help="Do not take up the saved session.")
@click.option("--whatif-samples", default=32, show_default=True, type=click.IntRange(min=1))
def demo(new: bool, whatif_samples: int) -> None:
    """Open the app on the bundled network: a segmentation network that INT8 breaks."""
    from trt_tui import demo as bundled
    from trt_tui.options import Options

    options = Options(str(bundled.network_path()), str(bundled.samples_path()), str(bundled.calibration_path()),
                      metric=bundled.metric_spec(), whatif_samples=whatif_samples)
    _run_app(options, None, None, False, new)


def _run_app(options, config_path: str | None, target: str | None, force: bool, new: bool) -> None:
    from trt_tui.core.measure.target import parse_target

    if target:
        parse_target(target)
    from trt_tui.tui.app import TrtTuiApp
    from trt_tui.tui.terminal import check_terminal

    check_terminal()

    gc.set_threshold(100_000, 20, 50)  # a big network is many small objects that all stay
    interrupts.release()
    app = TrtTuiApp(options, config_path=config_path, target=target, force=force, resume=not new)
    app.run()
    if app.return_code:
        sys.exit(app.return_code)


@main.command(context_settings=_CONTEXT)
@_data_options
@click.option("--json", "json_path", metavar="OUT", help="Write the comparison as JSON (schema v1); - for stdout.")
@click.option("--markdown", "markdown_path", metavar="OUT", help="Write it as Markdown; - for stdout.")
@click.option("--no-layers", is_flag=True, help="Leave out errors at the groups and shares.")
@click.option("--engines", is_flag=True, help="Build each run's engine too, and judge it as built.")
def compare(model: str, config_path: str | None, force: bool, target: str | None, json_path: str | None,
            markdown_path: str | None, no_layers: bool, engines: bool, **arguments: Any) -> None:
    """FP16, INT8 and the config against FP32, at the outputs and per layer.

    An engine that cannot be built is a row with its reason; exit code 1 where some were built, 2 where none was.
    """
    from trt_tui.cli.headless import compare_session
    from trt_tui.cli.report import comparison_table
    from trt_tui.core.exporters.markdown import comparison_markdown
    from trt_tui.core.lowering.lowered import cannot_lower, lowers
    from trt_tui.core.measure.target import parse_target

    check_usage()
    json_path, markdown_path = stdout_for(json_path), stdout_for(markdown_path)
    one_on_stdout({"--json": json_path, "--markdown": markdown_path})
    if target is not None:
        parse_target(target)
    _check_places(model, arguments, config_path, json_path, markdown_path)
    with compare_session(_options(model, 0, arguments), config_path, target, force, layers=not no_layers,
                         engines=engines) as session:
        record = session.record()
        quiet = "-" in (json_path, markdown_path)
        stopped = session.stopped
        _write([(json_path, lambda session: json.dumps(record, indent=1) + "\n"),
                (markdown_path, lambda session: comparison_markdown(record, session.outline, session.config))],
               session, over=not stopped)
        if not quiet:
            click.echo(comparison_table(session))
        if stopped:
            click.echo("Stopped; what was measured until then is shown. The same command goes on from here.", err=True)
            sys.exit(int(ExitCode.CANCELLED))
        missing = session.unbuilt()
        for run, engine in missing.items():
            click.echo(f"Engine of {run} not built: {visible(engine.failed)}", err=True)
        if target is not None:
            run = "config" if config_path else "int8"
            if not lowers(session.outline, session.run_configs()[run]):
                why = cannot_lower(session.outline) or "every layer of the config is in FP32"
                raise InputError(f"{run} meets {target} for lack of anything lowered", why,
                                 "No figure here tells what precision costs.")
            reached = session.target.reached(session.measured(run).verdict)
            if reached is None:
                raise InputError(f"whether {target} is met is not known", f"no {session.target.kind} was measured",
                                 "A metric needs --metric and labels, agreement a classifier; sqnr and cosine a float.")
            if not reached:
                click.echo(f"Target not met by {run}: {session.target.shown}", err=True)
                sys.exit(int(ExitCode.TOLERANCE_NOT_MET))
        if missing:
            engines_had = [session.measured(run).engine for run in session.run_configs()]
            had = any(engine is not None and not engine.failed for engine in engines_had)
            sys.exit(int(ExitCode.TOLERANCE_NOT_MET if had else ExitCode.BAD_INPUT))


@main.command(context_settings=_CONTEXT)
@_data_options
@click.option("--tolerance", "tolerances", multiple=True, metavar="TEXT", help="What the result must meet, like "
              "sqnr>=20, scores:cosine>=0.999, max_abs<=1e-2 or metric>=base-0.01; may be repeated.")
@click.option("--method", default="auto", show_default=True, metavar="NAME", help="auto, greedy, bisect, "
              "bisect-reverse, linear, linear-reverse, worst-first or scoped.")
@click.option("--precision", type=click.Choice(["bf16", "fp16", "int8"]), help="Begin with everything in it, in place "
              "of a config.  [default: int8]")
@click.option("--higher", default="fp32", show_default=True, type=click.Choice(["fp32", "fp16", "bf16"]),
              help="What layers are raised to.")
@click.option("--preset", "presets", multiple=True, metavar="NAME", help="Layers to begin with: layernorm, softmax, "
              "ends or embeddings; may be repeated.")
@click.option("--sticky", multiple=True, metavar="LAYER", help="A layer to raise for good; may be repeated.")
@click.option("--no-ranges", is_flag=True, help="Do not try other ranges before layers are raised.")
@click.option("--max-fp32", "max_raised", type=click.IntRange(min=0), metavar="N", help="Raise at most so many layers "
              "(groups); the best reachable is written.")
@click.option("--max-latency", type=click.FloatRange(min=0), metavar="MS", help="Stay within this latency, as "
              "estimated from two engines.")
@click.option("--max-builds", default=3, show_default=True, type=click.IntRange(min=0), help="Build at most so many "
              "engines in all, where engines can run: to confirm the result, and two for --max-latency.")
@click.option("--check", metavar="CMD", help="A command that passes a config by exit code 0; {model} in it is the "
              "lowered ONNX, {outputs} an .npz of the simulated outputs.")
@click.option("--markdown", "markdown_path", metavar="OUT", help="Write a report with the evidence; - for stdout.")
@click.option("-o", "--output", required=True, metavar="OUT", help="precision.json; - for stdout.")
def search(model: str, config_path: str | None, force: bool, target: str | None, tolerances: tuple[str, ...],
           method: str, precision: str | None, higher: str, presets: tuple[str, ...], sticky: tuple[str, ...],
           no_ranges: bool, max_raised: int | None, max_latency: float | None, max_builds: int, check: str | None,
           markdown_path: str | None, output: str, **arguments: Any) -> None:
    """Find the fewest layers to raise so that a tolerance is met.

    Exit code 0: it is met. 1: it is not; the best reachable is written.
    """
    from trt_tui.cli.headless import search_session
    from trt_tui.cli.report import search_report, search_table
    from trt_tui.core.measure.target import parse_target
    from trt_tui.core.moves.config import PrecisionConfig
    from trt_tui.core.precision import Precision
    from trt_tui.jobs.messages import Search
    from trt_tui.session.finding import found_so_far
    from trt_tui.session.session import Session

    tolerances = (*tolerances, *([target] if target is not None else []))
    if not tolerances and check is None:
        raise InputError("a search needs a tolerance", "none was given",
                         "Give --tolerance 'sqnr>=20', or a command with --check.")
    if precision is not None and config_path is not None:
        raise InputError("a search begins with one thing", "both --config and --precision are given",
                         "Leave out one of them.")
    check_usage()
    output, markdown_path = stdout_for(output), stdout_for(markdown_path)
    one_on_stdout({"-o": output, "--markdown": markdown_path})
    for text in tolerances:
        parse_target(text)
    _check_places(model, arguments, config_path, output, markdown_path, config_to=output)
    request = Search(PrecisionConfig(), tolerances, method, Precision(higher), presets, sticky, not no_ranges,
                     max_raised, max_latency, max_builds, check)
    with search_session(_options(model, 0, arguments), config_path, force,
                        Precision(precision) if precision else None, request) as session:
        finding = session.finding
        session.history.apply(finding.config)
        reports = [(markdown_path, search_report)] if finding.ended is not None else []  # it says how the search ended
        _write([(output, Session.precision_json), *reports], session)
        if session.error is not None:
            click.echo(f"Ended early; {found_so_far(finding)}. The same command goes on from here.", err=True)
            return
        if not finding.finished:
            click.echo(f"Stopped; {found_so_far(finding)}. The same command goes on from here.", err=True)
            sys.exit(int(ExitCode.CANCELLED))
        if "-" not in (output, markdown_path):
            click.echo(search_table(session))
        if not finding.met:
            what = "Tolerance not met by the engine" if finding.ended.result.met else "Tolerance not met"
            click.echo(f"{what}: {finding.ended.result.said}", err=True)
            sys.exit(int(ExitCode.TOLERANCE_NOT_MET))


def _write(texts: Sequence[tuple[str | None, Callable]], session, over: bool = True) -> None:
    """Writes what was asked for to its places, - for stdout, which comes last: a fault of it loses no file.

    Args:
        texts: Paths, None where nothing is asked for, and what gives the text of a session.
        over: Write over files that exist; a part does not take the place of a whole.
    """
    from trt_tui.files.writing import write_atomic

    for path, text in sorted(texts, key=lambda one: one[0] == "-"):
        if path == "-":
            click.echo(text(session), nl=False)
        elif path is not None and not over and os.path.isfile(path):
            click.echo(f"{visible(path)} stands as it was", err=True)
        elif path is not None:
            write_atomic(Path(path), text(session))
            click.echo(f"Wrote {visible(path)}", err=True)


def _check_places(model: str, arguments: dict[str, Any], config_path: str | None, *paths: str | None,
                  kind: str = "", config_to: str | None = None) -> None:
    """Refuses places that cannot be written, or hold what is read, before anything is measured for them.

    Args:
        paths: What is written; None and - are no files.
        kind: The format that the first of them is written in: it may consist of files beside it too.
        config_to: The one of them that takes a config: it may be the one that is read.
    """
    from trt_tui.core.data.places import files_read, refuse_over
    from trt_tui.files.writing import is_special

    read = files_read(model, arguments.get("data"), arguments.get("calib_data"), arguments.get("calib_cache"),
                      arguments.get("metric"))
    config = files_read(model, config_path)
    written = [path for path in paths if path not in (None, "-")]
    beside = _beside(kind, written[0]) if kind and written else []
    timings = [arguments["timing_cache"]] if arguments.get("timing_cache") else []
    refuse_over([*written, *beside, *timings], read, model)
    refuse_over([path for path in (*written, *beside, *timings) if path != config_to], config)
    everything = (*written, *beside, *timings)
    places = [os.path.realpath(path) for path in everything if not is_special(path)]
    if len(set(places)) < len(places):
        raise InputError("one file cannot hold two things", f"{', '.join(everything)} are asked for",
                         "Give each a name of its own.")
    for path in (*written, *beside):
        _check_place(path)


def _beside(kind: str, path: str) -> list[str]:
    from trt_tui.core.exporters import production

    return [str(one) for one in production.companions(kind, Path(path)).values()]


def _check_place(path: str) -> None:
    """Refuses a place that cannot be written before anything is measured for it."""
    from trt_tui.files.writing import cannot_write, is_special

    place = Path(path)
    with cannot_write(place):
        if is_special(place):
            if not os.access(place, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        folder = Path(os.path.realpath(place)).parent
        if not folder.is_dir():
            raise FileNotFoundError
        if place.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with suppress(FileNotFoundError):
            os.stat(place)  # a circle of links leads nowhere
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, f"folder {folder} is read-only")


@main.command(context_settings=_CONTEXT)
@partial(_data_options, without=_OF_JUDGING)
@click.option("--precision", type=click.Choice(["fp32", "bf16", "fp16", "int8"]), help="In place of a config.")
@click.option("--quick", is_flag=True, help="Build with the lowest effort: a preview, not for production.")
@click.option("-o", "--output", required=True, metavar="OUT",
              help="model.engine: built with TensorRT. typed.onnx: the strongly typed network.")
def build(model: str, config_path: str | None, force: bool, precision: str | None, quick: bool, output: str,
          **arguments: Any) -> None:
    """Build a production engine in a config's precisions, or write the network that one is built from.

    Exit code 1: the engine could not be built as asked, and what was written is another one (see --strict).
    """
    from trt_tui.cli.headless import load_config, prepared, write_engine
    from trt_tui.core.data.watched import Inputs, data_files
    from trt_tui.jobs.building import write_typed
    from trt_tui.jobs.engines import QUICK_LEVEL
    from trt_tui.jobs.messages import Prepare

    check_usage()
    _check_one("build", config_path, precision)
    suffix = Path(output).suffix.lower()
    if suffix not in (".onnx", *_ENGINES):
        raise InputError(f"{output} is neither an engine nor a network", f"its suffix is {suffix or 'missing'}",
                         f"Name it typed.onnx, or with one of {', '.join(_ENGINES)}.")
    _check_places(model, arguments, config_path, output)
    options = _options(model, 0, arguments)
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
    ready = prepared(network, _told(Prepare(options, config, ranges, shapes=suffix in _ENGINES), network))
    ranges = ready.ranges
    if suffix in _ENGINES:
        lines, otherwise = write_engine(options, config, ranges, Path(output), quick, read)
        if quick:
            lines.append("A quick preview, built with the lowest effort: not for production.")
            options = replace(options, optimization_level=QUICK_LEVEL)
        lines += _trtexec_lines(network, config, ready, options, Path(output))
        written = Path(output)
    else:
        written, lines = write_typed(network, config, ranges, Path(output))
    for line in lines:
        click.echo(line, err=True)
    click.echo(str(written))
    if suffix in _ENGINES and otherwise:
        click.echo("Not the engine of this config: TensorRT refuses it as asked, and built it with "
                   f"{visible(otherwise)}", err=True)
        sys.exit(int(ExitCode.TOLERANCE_NOT_MET))


def _told(request, network):
    """The request; where it needs nothing measured, says which options about data are not read."""
    from trt_tui.jobs.prepare import known_ranges

    if request.quantizes and not known_ranges(network, request)[1] and (idle := unread_data(request.shapes)):
        why = "the ranges are known" if request.ranges or request.options.calib_cache else "nothing runs in INT8"
        click.echo(f"Warning: {', '.join(idle)}: not read, since {why}.", err=True)
    return request


def _check_one(what: str, config_path: str | None, precision: str | None) -> None:
    if (config_path is None) == (precision is None):
        raise InputError(f"{what} needs a config or a precision", "exactly one of --config and --precision is taken",
                         "Give --config precision.json, or --precision fp16.")


_ENGINES = (".engine", ".plan", ".trt")


def _trtexec_lines(network, config, ready, options, output: Path) -> list[str]:
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


@main.command(context_settings=_CONTEXT)
@partial(_data_options, without=(*_OF_JUDGING, "backend", "weak", "strict", "compute_capability"))
@click.option("--format", "kind", required=True, type=click.Choice(
    ["onnx", "trtexec", "polygraphy", "modelopt", "calibration-cache", "markdown"]))
@click.option("--precision", type=click.Choice(["fp32", "bf16", "fp16", "int8"]), help="In place of a config.")
@click.option("-o", "--output", required=True, metavar="OUT", help="The file; trtexec and polygraphy write the "
              "networks and the cache that they need beside it.")
def export(model: str, config_path: str | None, force: bool, precision: str | None, kind: str, output: str,
           **arguments: Any) -> None:
    """Write a config in another tool's format."""
    from trt_tui.cli.headless import load_config, prepared
    from trt_tui.cli.report import config_markdown
    from trt_tui.core.exporters import production
    from trt_tui.files.writing import write_atomic
    from trt_tui.jobs.messages import Prepare

    check_usage()
    _check_one("export", config_path, precision)
    if stdout_for(output) == "-":
        raise InputError("an export goes to a file", "stdout tells which files were written", "Give -o a file's name.")
    _check_places(model, arguments, config_path, output, kind=kind)
    options = _options(model, 0, arguments)
    network, config, ranges, warnings = load_config(options, config_path, precision, force)
    for warning in warnings:
        click.echo(f"Warning: {visible(warning)}", err=True)
    if kind == "markdown":
        write_atomic(Path(output), config_markdown(network, config, config_path or ""))
        click.echo(output)
        return
    request = Prepare(options, config, ranges, quantizes=kind != "modelopt", every=kind == "calibration-cache",
                      shapes=kind in ("trtexec", "polygraphy"))
    ready = prepared(network, _told(request, network))
    for written in production.write(kind, Path(output), network, config, ready.ranges, shapes=ready.shapes,
                                    effort=options.effort):
        click.echo(str(written))


@main.command(context_settings=_CONTEXT)
@click.argument("model")
@click.option("--nodes", is_flag=True, help="Show the nodes of each group too.")
@click.option("--engine", metavar="E", help="Show what this engine made of the groups: an engine file, or the JSON of "
              "trtexec --exportLayerInfo.")
@click.option("--backend", default="auto", show_default=True, type=click.Choice(["auto", "tensorrt", "tensorrt-rtx"]),
              help="What loads the engine.")
def inspect(model: str, nodes: bool, engine: str | None, backend: str) -> None:
    """The layer tree as text: operator, shape, group, and what can run in FP16 and INT8, or why not."""
    from trt_tui.core.network.hierarchy import build_tree
    from trt_tui.core.network.network import open_network
    from trt_tui.core.network.tree_text import render_tree

    check_usage()
    network = open_network(model)
    layers = _layer_information(engine, backend, network) if engine is not None else None
    click.echo(f"{visible(network.name)}: {len(network.layers)} nodes in {len(network.groups)} groups, "
               f"opset {network.opset}")
    for note in network.notes:
        click.echo(f"  {visible(note)}")
    if layers is not None:
        from trt_tui.cli.report import engine_table

        click.echo(engine_table(network, layers))
        return
    click.echo(render_tree(build_tree(network.layers, network.groups), network.shape, nodes=nodes))


def _layer_information(path: str, backend: str, network):
    """The layers of an engine file, or of a JSON file that tells them."""
    from trt_tui.backends.registry import get_builder
    from trt_tui.core.engines.made import read_inspector
    from trt_tui.files.reading import read_bytes

    file = Path(path)
    data = read_bytes(file)
    if file.suffix.lower() == ".json" or data[:1] == b"{" and b'"Layers"' in data[:4096]:
        return read_inspector(data.decode("utf-8", "replace"), network)
    builder = get_builder(backend)
    if builder is None:
        raise BackendUnavailableError("no TensorRT works here to load an engine", "trt-tui doctor says why",
                                      "Give the JSON of trtexec --exportLayerInfo in place of the engine.")
    with builder.load_engine(data) as runner:
        return read_inspector(runner.inspect(), network)


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
