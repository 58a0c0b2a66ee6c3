"""The command `search`."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from trt_tui.cli.options import (
    CONTEXT,
    EVERYTHING,
    MOST_SAMPLES,
    PREVIEW,
    Command,
    check_target,
    checked,
    file_option,
    option,
    options_of,
    takes,
)
from trt_tui.cli.places import check_places, write_outputs
from trt_tui.cli.streams import print_table
from trt_tui.cli.usage import check_usage, one_on_stdout, stdout_for
from trt_tui.errors import ExitCode, InputError

if TYPE_CHECKING:
    from trt_tui.core.precision import Precision


def _methods(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from trt_tui.core.search import SEARCH_METHODS

    return [method for method in SEARCH_METHODS if method.startswith(incomplete)]


def _rungs(text: str | None, config: bool) -> tuple[Precision | None, tuple[Precision, ...], Precision | None]:
    """The lowest of the rungs named (None with a config), those between, and the highest; nothing where none is named.

    Raises:
        InputError: they are no precisions, or not in order.
    """
    from trt_tui.core.precision import FLOATS, OFFERED, Precision, rank

    if text is None:
        return None, (), None
    known = {one.value: one for one in (*OFFERED, Precision.TF32)}
    words = [word.strip().lower() for word in text.split(",")]
    if unknown := [word for word in words if word not in known]:
        raise InputError(f"--rungs: {unknown[0] or 'nothing'} is no precision", f"there are {', '.join(known)}",
                         "Name them lowest first, like int8,fp8,fp16,fp32.")
    rungs = [known[word] for word in words]
    if len(rungs) < 2 or any(rank(one) >= rank(other) for one, other in zip(rungs, rungs[1:], strict=False)):
        order = ", ".join(one.value for one in sorted(known.values(), key=rank))
        raise InputError(f"--rungs {text} is no ladder", f"it takes two precisions or more, lowest first: {order}",
                         "Name them like int8,fp8,fp16,fp32.")
    if Precision.TF32 in (rungs[0], rungs[-1]):
        raise InputError(f"--rungs {text}: no layer can be in TF32 alone", "it is a setting of all layers in FP32, in "
                         "every release", "Name it between others, like int8,fp16,tf32,fp32.")
    if rungs[-1] not in FLOATS:
        raise InputError(f"--rungs {text} ends in {rungs[-1].label}", "layers outside of Conv, Gemm and MatMul cannot "
                         "be raised to it", "End with fp16 or fp32.")
    return (None, tuple(rungs[:-1]), rungs[-1]) if config else (rungs[0], tuple(rungs[1:-1]), rungs[-1])


def _check_sample(text: str) -> None:
    """Raises an `InputError` if a text is neither the number of a sample nor ``worst``."""
    if text != "worst" and not text.isdecimal():
        raise InputError(f"--sample {text} is no sample", "it takes a number from 0, or worst", "Name one of them.")


@click.command(cls=Command, context_settings=CONTEXT)
@takes(*EVERYTHING, *PREVIEW)
@option("Config", "--precision", type=click.Choice(["bf16", "fp16+", "fp16", "fp8", "int8", "int4", "file"]),
        help="Start with everything in this precision, in place of a config. Without: int8; for a network that has "
             "precisions of its own, what its file has.")
@option("Judging", "--tolerance", "tolerances", multiple=True, metavar="TEXT", help="What the result must meet, like "
        "sqnr>=20, scores:cosine>=0.999, max_abs<=1e-2 or metric>=base-0.01; may be repeated.",
        callback=checked(check_target))
@option("Judging", "--check", metavar="CMD", help="A command that passes a config by exit code 0; {model} in it is the "
        "lowered ONNX, {outputs} an .npz of the simulated outputs.")
@option("Search", "--method", default="auto", show_default=True, metavar="NAME", shell_complete=_methods,
        help="auto, greedy, bisect, bisect-reverse, linear, linear-reverse, worst-first, scoped or lower.")
@option("Search", "--lower", is_flag=True, help="The same as --method lower: begin with everything in FP32 (see "
        "--from) and lower what may be lowered at all, what saves most time first. What a --config has lowered stays.")
@option("Search", "--from", "higher_from", type=click.Choice(["fp32", "fp16", "bf16"]),
        help="What --lower and --method scoped begin with: the same as --higher.")
@option("Search", "--sample", metavar="N|worst", callback=checked(_check_sample),
        help="Judge on the batch that holds this sample alone (with --batch 1 "
        "that sample), then the result on all others.")
@option("Search", "--higher", default="fp32", show_default=True, type=click.Choice(["fp32", "fp16", "bf16"]),
        help="What layers are raised to.")
@option("Search", "--rungs", metavar="A,B,...", callback=checked(lambda text: _rungs(text, True)),
        help="Precisions that layers may end in, lowest first, like "
        "int8,fp8,fp16,fp16+,bf16,tf32,fp32 (fp16+: FP16 with products summed in FP32): the search begins with the "
        "first, in place of --precision, or with a --config, raises to the last, in place of --higher, and then gives "
        "what it raised the lowest of those between that does; tf32 is given to all layers in FP32 or none.")
@option("Search", "--preset", "presets", multiple=True, hidden=True)
@option("Search", "--sticky", multiple=True, hidden=True)
@option("Search", "--free/--no-free", default=None, help="Try operators for decomposed norms, SmoothQuant and bias "
        "correction before layers are raised, or do not. Without: only scoped and lower do not.")
@option("Search", "--ranges/--no-ranges", default=None, help="Try other ranges before layers are raised, or do not. "
        "Without: only scoped and lower do not.")
@option("Judging", "--no-hold-out", is_flag=True, help="Search on all samples. By default every third batch is held "
        "out if there are enough, and the exit code depends on the result on these too.")
@option("Search", "--max-fp32", "max_raised", type=click.IntRange(0, MOST_SAMPLES), metavar="N",
        help="Raise at most so many layers (groups); writes the best config within this budget.")
@option("Search", "--max-latency", type=click.FloatRange(min=0), metavar="MS",
        help="Stay within this latency, as estimated from two engines.")
@option("Search", "--max-builds", default=3, show_default=True, type=click.IntRange(0, 1000),
        help="Build at most so many engines in all, if engines can run here: to confirm the result, and two for "
        "--max-latency.")
@file_option("Output", "--markdown", "markdown_path", metavar="OUT",
             help="Write a report with the evidence; - for stdout.")
@file_option("Output", "-o", "--output", required=True, metavar="OUT", help="precision.json; - for stdout.")
def search(model: str, config_path: str | None, force: bool, target: str | None, tolerances: tuple[str, ...],
           method: str, precision: str | None, higher: str, rungs: str | None,
           presets: tuple[str, ...], sticky: tuple[str, ...], free: bool | None, ranges: bool | None, lower: bool,
           higher_from: str | None, sample: str | None,
           max_raised: int | None, max_latency: float | None, max_builds: int, no_hold_out: bool, check: str | None,
           markdown_path: str | None, output: str, **arguments: Any) -> None:
    """Find the fewest layers to raise so that a tolerance is met.

    Exit code 0: it is met. 1: it is not, and the best config that was found is written.
    """
    from trt_tui.cli.headless import search_session
    from trt_tui.cli.search_report import search_report, search_table
    from trt_tui.core.moves.config import PrecisionConfig
    from trt_tui.core.precision import Precision
    from trt_tui.session.finding import found_so_far, held_out_words, search_request
    from trt_tui.session.session import Session

    tolerances = (*tolerances, *([target] if target is not None else []))
    if not tolerances and check is None:
        raise InputError("a search needs a tolerance", "none was given",
                         "Give --tolerance 'sqnr>=20', or a command with --check.")
    if precision is not None and config_path is not None:
        raise InputError("a search has one start", "both --config and --precision are given",
                         "Leave out one of them.")
    check_usage()
    method, higher = ("lower" if lower else method), higher_from or higher
    first, between, highest = _rungs(rungs, config_path is not None)
    output, markdown_path = stdout_for(output) or output, stdout_for(markdown_path)
    one_on_stdout({"-o": output, "--markdown": markdown_path})
    places = check_places(model, arguments, config_path, output, markdown_path, config_to=output)
    request = search_request(PrecisionConfig(), tolerances, method=method, higher=highest or Precision(higher),
                             rungs=between, ranges=ranges, free=free, max_raised=max_raised, max_latency=max_latency,
                             max_builds=max_builds, check=check, sample=sample or "", hold_out=not no_hold_out)
    arguments["keep"] = (*arguments["keep"], *presets, *sticky)
    options = replace(options_of(model, 0, arguments), hold_out=request.hold_out)
    with search_session(options, config_path, force,
                        Precision(precision) if precision else first, request, places) as session:
        finding = session.finding
        assert finding is not None and finding.config is not None, "else the session is not handed on"
        reports = [(markdown_path, search_report)] if finding.ended is not None else []  # it says how the search ended
        write_outputs([(output, Session.precision_json), *reports], session)
        if session.error is not None:
            click.echo(f"Ended early; {found_so_far(finding)}. The same command goes on from here.", err=True)
            return
        if finding.ended is None or not finding.finished:
            click.echo(f"Stopped; {found_so_far(finding)}. The same command goes on from here.", err=True)
            sys.exit(int(ExitCode.CANCELLED))
        if "-" not in (output, markdown_path):
            print_table(search_table(session))
        if not finding.met:
            held_out, said = finding.ended.held_out, finding.ended.result.said
            what = "Tolerance not met"
            exported = finding.ended.exported
            if finding.ended.confirmed is False:
                what += " by the engine"
            elif exported is not None and exported.met is False:
                what, said = "Tolerance", exported.text
            elif finding.ended.result.met and held_out is not None:
                what += " on samples held out"
                said = held_out_words(held_out)
            click.echo(f"{what}: {said}", err=True)
            sys.exit(int(ExitCode.TOLERANCE_NOT_MET))
