"""The command `compare`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from trt_tui.cli.options import (
    CONFIG,
    CONTEXT,
    EVERYTHING,
    MOST_SAMPLES,
    PREVIEW,
    STAGES,
    Command,
    file_option,
    files,
    option,
    options_of,
    takes,
)
from trt_tui.cli.places import check_evidence, check_places, write_outputs
from trt_tui.cli.streams import print_table
from trt_tui.cli.usage import check_usage, one_on_stdout, stdout_for
from trt_tui.errors import ExitCode, InputError
from trt_tui.words import visible

if TYPE_CHECKING:
    from trt_tui.options import Options


@click.command(cls=Command, context_settings=CONTEXT)
@takes(*(one for one in EVERYTHING if one is not CONFIG[0]), *PREVIEW, *STAGES)
@option("TensorRT", "--engines", is_flag=True, help="Also build each run's engine, and judge it as built. "
        "Where no TensorRT works, each run's exported network is executed by ONNX Runtime.")
@option("TensorRT", "--marked", is_flag=True, help="With --engines: errors inside each engine, layer by layer, "
        "of a second one with every group's result as an output, which is not the engine as built. TensorRT 10.16 and "
        "later tell them of the engine as built, and need no option.")
@option("Output", "--layers", default="shares", show_default=True, type=click.Choice(["shares", "errors", "none"]),
        help="What is measured at the layers: their errors and shares, their errors alone (much faster), or nothing.")
@option("Output", "--no-layers", "layers", flag_value="none", hidden=True)
@file_option("Config", "--config", "config_paths", multiple=True, metavar="FILE", help="Start from a precision.json; "
             "two or more are held beside each other: figures, and the layers in which they differ.")
@option("Output", "--calib-methods", metavar="all|A,B", help="Compare calibration methods in place of runs: what the "
        "config, or INT8, yields with the ranges of each, and the seconds that calibrating takes.")
@file_option("Output", "--json", "json_path", metavar="OUT",
             help="Write the comparison as JSON (schema v1); - for stdout.")
@file_option("Output", "--markdown", "markdown_path", metavar="OUT", help="Write it as Markdown; - for stdout.")
@file_option("Output", "--junit", "junit_path", metavar="OUT.xml", help="Write it as JUnit's XML, a case for each run, "
             "stage and engine; what the exit code counts as missing the target is a failure.")
@file_option("Output", "--save-outputs", "outputs_path", metavar="OUT.json[:RUN,..]", help="Write the outputs "
             "of FP32 and of each run, for all samples of --data, as Polygraphy's RunResults; behind a colon of some "
             "runs alone (fp32, fp16, int8, config), like OUT.json:fp32.")
@option("Two dumps", "--threshold", default=0.1, show_default=True, type=click.FloatRange(min=0, min_open=True),
        help="Exit code 1 where the error of a tensor, the norm of the difference by the norm of the first, is over "
        "this: 0.1 is 20 dB.")
@option("Two dumps", "--top-k", default=10, show_default=True, type=click.IntRange(1, MOST_SAMPLES), metavar="N",
        help="List so many tensors, the worst ones, in network order.")
@file_option("Two dumps", "--model", "network", metavar="MODEL", help="The network that both are of: brings its "
             "order, and the layers that make a tensor.")
@file_option("Two dumps", "--script", metavar="FIX", help="Write what builds the engine with the layers where errors "
             "begin in FP32, and all else as --config has it, or in FP16; needs --model. FIX.py is a Polygraphy script "
             "(TensorRT 8.6 to 10), FIX.sh one for trtexec; the networks and the cache that it needs lie beside it.")
@file_option("Two dumps", "-o", "--output", metavar="OUT", help="Write a precision.json of the same; needs --model.")
@click.argument("against", required=False, metavar="[DUMP]", shell_complete=files)
def compare(model: str, against: str | None, config_paths: tuple[str, ...], force: bool, target: str | None,
            json_path: str | None, markdown_path: str | None, junit_path: str | None, outputs_path: str | None,
            layers: str, engines: bool, marked: bool, threshold: float, top_k: int, network: str | None,
            script: str | None, output: str | None, calib_methods: str | None, **arguments: Any) -> None:
    """Compare FP16, INT8 and the config with FP32.

    Figures are taken at the outputs and per layer.

    Exit code 1: INT8, or the config if one is given, misses the target that is given or its own (FAIL or FAIL?).

    An engine that cannot be built is listed with the reason; exit code 1 if some were built, 2 if none was.

    With two dumps of tensors in place of MODEL (`compare A.json B.json`: Polygraphy's RunResults, or .npz) the second
    is held against the first, tensor by tensor.
    """
    from trt_tui.cli.configs import check_lowered, require_results
    from trt_tui.cli.dumps import Asked, check_sides, compare_dumps, split_runs
    from trt_tui.cli.headless import compare_session
    from trt_tui.cli.junit_report import junit_text
    from trt_tui.cli.report import comparison_table
    from trt_tui.cli.stage_report import stage_lines
    from trt_tui.core.exporters.markdown import comparison_markdown
    from trt_tui.session.config_results import SUFFIXES

    config_path = config_paths[0] if config_paths else None
    if check_sides(model, against, config_paths):
        options = options_of(network, 0, arguments) if network is not None else None
        compare_dumps(Asked(model, str(against), threshold, top_k, stdout_for(json_path), stdout_for(script),
                            stdout_for(output), config_path, force, options))
        return
    check_usage()
    json_path, markdown_path, junit_path = map(stdout_for, (json_path, markdown_path, junit_path))
    one_on_stdout({"--json": json_path, "--markdown": markdown_path, "--junit": junit_path})
    outputs_path, saved_runs = split_runs(outputs_path)
    check_evidence(arguments)
    places = check_places(model, arguments, config_path, json_path, markdown_path, junit_path, outputs_path)
    if calib_methods is not None:
        _compare_methods(options_of(model, 0, arguments), config_path, target, force, calib_methods, json_path,
                         markdown_path, places)
        return
    if len(config_paths) > 1:
        from trt_tui.cli.configs import compare_configs

        for other in config_paths[1:]:
            check_places(model, arguments, other, json_path, markdown_path)
        sys.exit(int(compare_configs(options_of(model, 0, arguments), config_paths, target, force, engines=engines,
                                     json_path=json_path, markdown_path=markdown_path, junit_path=junit_path,
                                     places=places)))
    with compare_session(options_of(model, 0, arguments), config_path, target, force, layers=layers,
                         engines=engines, marked=marked, writes=places, outputs_path=outputs_path,
                         saved_runs=saved_runs) as session:
        record = session.record()
        if outputs_path is not None and not session.stopped:
            click.echo(f"Wrote {visible(outputs_path)}", err=True)
        quiet = "-" in (json_path, markdown_path, junit_path)
        stopped = session.stopped
        given = config_path or arguments["keep"] or session.opened.outline.has_own_precisions
        run = "config" if given else "int8"
        write_outputs([(json_path, lambda session: json.dumps(record, indent=1) + "\n"),
                (junit_path, lambda session: junit_text(session, record, run)),
                (markdown_path, lambda session: comparison_markdown(record, session.outline, session.config))],
               session, over=not stopped)
        if not quiet:
            print_table("\n".join([comparison_table(session), *map(visible, stage_lines(session))]))
        if stopped:
            click.echo("Stopped; shows what was measured so far. The same command goes on from here.", err=True)
            sys.exit(int(ExitCode.CANCELLED))
        missing = session.unbuilt()
        for line in missing:
            click.echo(visible(line), err=True)
        config = session.run_configs()[run]
        if target is not None:
            check_lowered(session, run, target)
            require_results(session, config, target)
        missed = session.missed_by(config)
        for kind, why in missed.items():
            click.echo(f"Target not met by {run}{SUFFIXES[kind]}: {visible(why)}", err=True)
        missing_stages = session.stage_misses()
        for name, why in missing_stages.items():
            click.echo(f"Target not met by stage {visible(name)}: {visible(why)}", err=True)
        if missed or missing_stages:
            sys.exit(int(ExitCode.TOLERANCE_NOT_MET))
        failed = [stage for stage, _ in session.stage_rows() if stage.failed]
        for stage in failed:
            click.echo(f"Stage {visible(stage.name)} not built: {visible(stage.failed)}", err=True)
        if failed or session.production is not None and not session.production[0]:
            sys.exit(int(ExitCode.TOLERANCE_NOT_MET))
        if missing:
            runs = [session.measured(run) for run in session.run_configs()]
            had = any(one.engine is not None and not one.engine.failed
                      or one.executed is not None and not one.executed.missing for one in runs)
            sys.exit(int(ExitCode.TOLERANCE_NOT_MET if had else ExitCode.BAD_INPUT))


def _compare_methods(options: Options, config_path: str | None, target: str | None, force: bool, text: str,
                     json_path: str | None, markdown_path: str | None, places: Iterable[str]) -> None:
    """Prints and writes the table of calibration methods."""
    from trt_tui.cli.headless import methods_session
    from trt_tui.core.calibration.methods import RANGE_METHODS
    from trt_tui.core.exporters.markdown import markdown_table, text_cell
    from trt_tui.session.methods import best_method, method_rows, methods_miss, methods_record, ranked_by
    from trt_tui.words import table

    methods = RANGE_METHODS if text == "all" else tuple(dict.fromkeys(one.strip() for one in text.split(",")))
    if unknown := [one for one in methods if one not in RANGE_METHODS]:
        raise InputError(f"--calib-methods: {unknown[0] or 'nothing'} is no calibration method",
                         f"there are {', '.join(RANGE_METHODS)}", "Name some of them with commas, or all.")
    with methods_session(options, config_path, target, force, methods, writes=places) as session:
        rows = method_rows(session)
        write_outputs([
            (json_path, lambda session: json.dumps(methods_record(session), indent=1) + "\n"),
            (markdown_path, lambda session: "\n".join(markdown_table(
                [text_cell(cell) for cell in rows[0]], [[*map(text_cell, row)] for row in rows[1:]])) + "\n")],
            session)
        if "-" not in (json_path, markdown_path):
            print_table("\n".join(table(rows)))
            best = best_method(session)
            click.echo(f"The best is {best}, by {visible(ranked_by(session))}: --calib-method {best} takes it.",
                       err=True)
        if misses := methods_miss(session):
            click.echo(f"Target not met by any method: {visible(misses)}", err=True)
            sys.exit(int(ExitCode.TOLERANCE_NOT_MET))
