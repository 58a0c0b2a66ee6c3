"""The command `search`, which finds a config with few raised layers that meets a tolerance."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import click

from trt_tui.cli.options import (
    CONTEXT_SETTINGS,
    FREQUENT,
    MAX_SAMPLES,
    PREVIEW_OPTIONS,
    SESSION_OPTIONS,
    Command,
    add_options,
    collect_options,
    file_path_option,
    make_option_check_callback,
    model_argument,
    option_under_heading,
    release_option,
    validate_target_text,
)
from trt_tui.cli.output_files import write_text_outputs
from trt_tui.cli.streams import print_report
from trt_tui.core.precision import ASSIGNABLE, FLOAT_PRECISIONS, REQUESTABLE, Precision, precision_rank
from trt_tui.errors import ExitCode, InputError


def _complete_search_methods(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from trt_tui.core.search import SEARCH_METHODS

    return [method for method in SEARCH_METHODS if method.startswith(incomplete)]


def _parse_search_precisions(
    text: str | None, has_config: bool
) -> tuple[Precision | None, tuple[Precision, ...], Precision | None]:
    """Returns the lowest precision of ``--rungs`` (None with a config), the intermediate precisions, and the highest.

    If the text is None, all are empty.

    Raises:
        InputError: A name is not a valid precision, or the precisions are not in order.
    """
    if text is None:
        return None, (), None
    precisions_by_name = {precision.value: precision for precision in (*ASSIGNABLE, Precision.TF32)}
    names = [word.strip().lower() for word in text.split(",")]
    if unknown := [word for word in names if word not in precisions_by_name]:
        raise InputError(
            f"--rungs: {unknown[0] or 'nothing'} is not a precision",
            f"available: {', '.join(precisions_by_name)}",
            "Name them lowest first, like int8,fp8,fp16,fp32.",
        )
    precisions = [precisions_by_name[word] for word in names]
    if len(precisions) < 2 or any(
        precision_rank(precision) >= precision_rank(next_precision)
        for precision, next_precision in zip(precisions, precisions[1:], strict=False)
    ):
        order = ", ".join(precision.value for precision in sorted(precisions_by_name.values(), key=precision_rank))
        raise InputError(
            f"--rungs {text}: two or more precisions are needed",
            f"the option lists them, lowest first: {order}",
            "Name them like int8,fp8,fp16,fp32.",
        )
    if Precision.TF32 in (precisions[0], precisions[-1]):
        raise InputError(
            f"--rungs {text}: no layer can be in TF32 alone",
            "TF32 is a setting for all layers in FP32, in every release",
            "Name it between others, like int8,fp16,tf32,fp32.",
        )
    if precisions[-1] not in FLOAT_PRECISIONS:
        raise InputError(
            f"--rungs {text} ends in {precisions[-1].label}",
            "layers outside of Conv, Gemm and MatMul cannot be raised to it",
            "End with fp16 or fp32.",
        )
    return (
        (None, tuple(precisions[:-1]), precisions[-1])
        if has_config
        else (precisions[0], tuple(precisions[1:-1]), precisions[-1])
    )


def _validate_sample_text(text: str) -> None:
    """Raises an `InputError` if a text is neither the name of a sample nor ``worst``."""
    from trt_tui.core.data.batches import SampleName

    if text != "worst" and SampleName.from_text(text) is None:
        raise InputError(
            f"--sample {text} is not a sample",
            "a sample is a number from 0 (of several files: FILE#N), or worst",
            "Name one of them.",
        )


@click.command(cls=Command, context_settings=CONTEXT_SETTINGS)
@add_options(model_argument, *SESSION_OPTIONS, release_option, *PREVIEW_OPTIONS)
@option_under_heading(
    FREQUENT,
    "--precision",
    metavar="PRECISION",
    type=click.Choice([precision.value for precision in REQUESTABLE[1:]]),
    help=f"The start in place of a config: {', '.join(precision.value for precision in REQUESTABLE[1:])}. "
    "Without: int8, or file.",
)
@option_under_heading(
    FREQUENT,
    "--tolerance",
    "tolerances",
    multiple=True,
    metavar="TEXT",
    help="A further target, like scores:cosine>=0.999 or max_abs<=1e-2.",
    callback=make_option_check_callback(validate_target_text),
)
@option_under_heading(
    FREQUENT,
    "--check",
    metavar="CMD",
    help="A shell command whose exit code 0 accepts $TRT_TUI_MODEL, $TRT_TUI_OUTPUTS and $TRT_TUI_CONFIG.",
)
@option_under_heading(
    "Search",
    "--method",
    default="auto",
    show_default=True,
    metavar="NAME",
    shell_complete=_complete_search_methods,
    help="auto, greedy, bisect, bisect-reverse, linear, linear-reverse, worst-first, scoped or lower.",
)
@option_under_heading(
    "Search",
    "--sample",
    metavar="[FILE#]N|worst",
    callback=make_option_check_callback(_validate_sample_text),
    help="Search on this sample only.",
)
@option_under_heading(
    "Search",
    "--higher",
    metavar="PRECISION",
    default="fp32",
    show_default=True,
    type=click.Choice(["fp32", "fp16", "bf16"]),
    help="Raise to fp32, fp16 or bf16.",
)
@option_under_heading(
    "Search",
    "--rungs",
    metavar="A,B,...",
    callback=make_option_check_callback(lambda text: _parse_search_precisions(text, True)),
    help="Candidate precisions, lowest first, like int8,fp8,fp16,fp16+,bf16,tf32,fp32.",
)
@option_under_heading("Search", "--free/--no-free", default=None, help="Whether to try zero-cost changes first.")
@option_under_heading("Search", "--ranges/--no-ranges", default=None, help="Whether to try other ranges first.")
@option_under_heading("Search", "--no-hold-out", is_flag=True, help="Search on all samples.")
@option_under_heading(
    "Search",
    "--max-fp32",
    "max_raised",
    type=click.IntRange(0, MAX_SAMPLES),
    metavar="N",
    help="Raise at most N fused layers.",
)
@option_under_heading(
    "Search", "--max-latency", type=click.FloatRange(min=0), metavar="MS", help="Stay within this estimated latency."
)
@option_under_heading(
    "Search",
    "--max-builds",
    metavar="N",
    default=3,
    show_default=True,
    type=click.IntRange(0, 1000),
    help="Build at most N engines.",
)
@file_path_option(
    FREQUENT, "--markdown", "markdown_path", metavar="OUT", help="Write a report with the evidence; - for stdout."
)
@file_path_option(FREQUENT, "-o", "--output", required=True, metavar="OUT", help="precision.json; - for stdout.")
def search(
    config_path: str | None,
    force: bool,
    target: str | None,
    tolerances: tuple[str, ...],
    method: str,
    precision: str | None,
    higher: str,
    rungs: str | None,
    free: bool | None,
    ranges: bool | None,
    sample: str | None,
    max_raised: int | None,
    max_latency: float | None,
    max_builds: int,
    no_hold_out: bool,
    check: str | None,
    markdown_path: str | None,
    output: str,
    **arguments: Any,
) -> None:
    """Find the fewest layers to raise so that the tolerances are met.

    Exit code 0: the tolerance is met. 1: it is not met, and the best config found is written.
    """
    from trt_tui.cli.headless_session import open_session, run_search
    from trt_tui.core.moves.config import PrecisionConfig
    from trt_tui.session.comparison_report import precision_json_text
    from trt_tui.session.search_report import search_markdown, search_text
    from trt_tui.session.search_status import best_evaluation_text, make_search_request
    from trt_tui.session.state import TOLERANCE_SEPARATOR

    tolerances = (*tolerances, *([target] if target is not None else []))
    if not tolerances and check is None:
        raise InputError(
            "a search needs a tolerance", "none is named", "Give --tolerance 'sqnr>=20', or a command with --check."
        )
    lowest, intermediate, highest = _parse_search_precisions(rungs, config_path is not None)
    request = make_search_request(
        PrecisionConfig(),
        tolerances,
        method=method,
        higher_precision=highest or Precision(higher),
        intermediate_precisions=intermediate,
        try_ranges=ranges,
        try_zero_cost=free,
        max_raised=max_raised,
        max_latency=max_latency,
        max_builds=max_builds,
        check_command=check,
        sample=sample or "",
        hold_out=not no_hold_out,
    )
    options = collect_options(arguments | {"hold_out": request.hold_out})
    search_from_start = partial(run_search, precision=Precision(precision) if precision else lowest, request=request)
    with open_session(
        options,
        search_from_start,
        config_path=config_path,
        target=TOLERANCE_SEPARATOR.join(tolerances) or None,
        force=force,
    ) as session:
        search_status = session.search_status
        assert search_status is not None and search_status.best_config is not None, "else the session is not handed on"
        # The report needs the end event.
        report_path = markdown_path if search_status.end_event is not None else None
        write_text_outputs(
            [(output, lambda: precision_json_text(session)), (report_path, lambda: search_markdown(session))]
        )
        if session.error is not None:
            click.echo(
                f"Ended early; {best_evaluation_text(search_status)}. The same command goes on from here.", err=True
            )
            raise session.error.error
        if search_status.end_event is None or not search_status.is_finished:
            click.echo(f"Stopped; {best_evaluation_text(search_status)}. The same command goes on from here.", err=True)
            sys.exit(int(ExitCode.CANCELLED))
        if "-" not in (output, markdown_path):
            print_report(search_text(session))
        if not search_status.is_target_met:
            click.echo(f"Tolerance not met: {search_status.end_event.result.summary}", err=True)
            sys.exit(int(ExitCode.TOLERANCE_NOT_MET))
