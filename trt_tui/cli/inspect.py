"""The commands that measure nothing: `inspect` prints the layer tree of a network, `lint` the check of its Q/DQ nodes,
`scheme` the precisions of a config, `preview` the engine of a config, and `doctor` the backends of this machine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from trt_tui.cli.options import (
    CONFIG_OPTIONS,
    CONTEXT_SETTINGS,
    DATA_OPTIONS,
    LIBRARY_OPTIONS,
    ORT_OPERATOR_OPTIONS,
    REFERENCE_OPTIONS,
    VERBOSE_OPTIONS,
    Command,
    add_options,
    collect_options,
    file_path_option,
    model_argument,
    option_under_heading,
    precision_option,
    release_option,
)
from trt_tui.cli.output_files import json_text, write_report, write_text_outputs
from trt_tui.core.report.document import Section, report_text
from trt_tui.errors import BackendUnavailableError, ExitCode, InputError
from trt_tui.formatting import counted_noun_text, escape_hidden_characters, table_lines

if TYPE_CHECKING:
    from trt_tui.cli.headless_session import HeadlessSession
    from trt_tui.core.engines.inspector import EngineReport

_compute_capability_option = option_under_heading(
    "TensorRT",
    "--compute-capability",
    metavar="8.9",
    help="The GPU of the preview and of known defects. Without: the one here, or the nearest that TensorRT-RTX knows.",
)
_json_option = file_path_option(
    "Output",
    "--json",
    "json_path",
    metavar="[OUT]",
    is_flag=False,
    flag_value="-",
    help="Write it as JSON; to stdout if no file is named.",
)
_markdown_option = file_path_option(
    "Output",
    "--markdown",
    "markdown_path",
    metavar="[OUT]",
    is_flag=False,
    flag_value="-",
    help="Write it as Markdown; to stdout if no file is named.",
)
_ENGINE_FILE_OPTIONS = (
    file_path_option(
        "TensorRT",
        "--engine",
        metavar="E",
        help="Read an engine file, or the JSON of trtexec --exportLayerInfo or --exportProfile.",
    ),
    option_under_heading(
        "TensorRT",
        "--backend",
        default="auto",
        show_default=True,
        help="The backend that loads the engine.",
        type=click.Choice(["auto", "tensorrt", "tensorrt-rtx"]),
    ),
)


@click.command(cls=Command, context_settings=CONTEXT_SETTINGS)
@add_options(
    model_argument,
    *CONFIG_OPTIONS,
    *LIBRARY_OPTIONS,
    *VERBOSE_OPTIONS,
    precision_option,
    *_ENGINE_FILE_OPTIONS,
    _compute_capability_option,
    release_option,
    _json_option,
)
@option_under_heading("Output", "--nodes", is_flag=True, help="Also show the nodes of each fused layer.")
def inspect(
    nodes: bool,
    engine: str | None,
    config_path: str | None,
    force: bool,
    precision: str | None,
    json_path: str | None,
    **arguments: Any,
) -> None:
    """Print the layer tree and the precisions that each layer can run in.

    Each row has the operator, the shape, and the possible precisions or the reason why there are none. Below stand the
    known accuracy defects of the TensorRT release that concern the network, or the config if one is named.

    With --engine: how this engine runs each fused layer.
    """
    from trt_tui.cli.headless_session import open_config_session
    from trt_tui.core.network.layer_tree import build_scope_tree, render_tree

    with open_config_session(collect_options(arguments), config_path, precision, force) as session:
        network = session.network_outline
        record, defect_lines = _known_defects_report(session, config_path is not None or precision is not None)
        write_text_outputs([(json_path, lambda: json_text(record))])
        if json_path == "-":
            return
        engine_report = _read_engine_report(session, engine) if engine is not None else None
    click.echo(
        f"{escape_hidden_characters(network.name)}: {counted_noun_text(len(network.layers), 'node')} in "
        f"{counted_noun_text(len(network.groups), 'fused layer')}, "
        f"opset {network.opset}"
    )
    for note in network.notes:
        click.echo(f"  {escape_hidden_characters(note)}")
    if engine_report is not None:
        from trt_tui.core.report.engine_blocks import engine_layer_blocks

        click.echo(report_text([Section("", engine_layer_blocks(network, engine_report))]))
        return
    click.echo(render_tree(build_scope_tree(network.layers, network.groups), network.shape, show_nodes=nodes))
    for line in defect_lines:
        click.echo(escape_hidden_characters(line))


@click.command(cls=Command, context_settings=CONTEXT_SETTINGS)
@add_options(model_argument, *LIBRARY_OPTIONS, *VERBOSE_OPTIONS, *_ENGINE_FILE_OPTIONS, _json_option)
def lint(engine: str | None, json_path: str | None, **arguments: Any) -> None:
    """Check the Q/DQ nodes of a file.

    The findings are forms of Q/DQ nodes that cost accuracy or speed in TensorRT, or that TensorRT refuses, with
    consequence and repair. With --engine: also forms that this engine converts.

    Exit code 1: the check finds anything.
    """
    from trt_tui.cli.headless_session import open_config_session
    from trt_tui.core.engines.group_implementations import find_confirmed_qdq_candidates
    from trt_tui.core.exporters.preview_report import qdq_check_lines, qdq_check_record

    with open_config_session(collect_options(arguments)) as session:
        network, findings = session.network_outline, session.network_outline.qdq_findings
        if findings is not None and engine is not None:
            findings = (*findings, *find_confirmed_qdq_candidates(network, _read_engine_report(session, engine)))
    write_text_outputs([(json_path, lambda: json_text(qdq_check_record(network, findings)))])
    if json_path != "-":
        click.echo("\n".join(map(escape_hidden_characters, qdq_check_lines(network, findings))))
    if findings:
        sys.exit(int(ExitCode.TOLERANCE_NOT_MET))


@click.command(cls=Command, context_settings=CONTEXT_SETTINGS)
@add_options(
    model_argument,
    *CONFIG_OPTIONS,
    *ORT_OPERATOR_OPTIONS,
    *VERBOSE_OPTIONS,
    precision_option,
    _compute_capability_option,
    release_option,
    _json_option,
    _markdown_option,
)
def scheme(**arguments: Any) -> None:
    """Show the precisions that a config requests.

    It shows the fused layers by operator and precision, those left out with the reason, and the share of the MACs.
    Below stand the known accuracy defects of the TensorRT release that concern the config. Without a config: all INT8.
    """
    _print_config(shows_preview=False, scheme=True, **arguments)


@click.command(cls=Command, context_settings=CONTEXT_SETTINGS)
@add_options(
    model_argument,
    *DATA_OPTIONS,
    *REFERENCE_OPTIONS,
    *CONFIG_OPTIONS,
    *LIBRARY_OPTIONS,
    *VERBOSE_OPTIONS,
    precision_option,
    _compute_capability_option,
    release_option,
    _json_option,
    _markdown_option,
)
@option_under_heading("Output", "--scheme", is_flag=True, help="Also show what the command scheme shows.")
def preview(**arguments: Any) -> None:
    """Show how TensorRT-RTX would run each fused layer of a config, without a GPU.

    Below stand the known accuracy defects of the TensorRT release that concern the config. Without a config: all INT8.

    Exit code 1: a layer would not run as requested.
    """
    _print_config(shows_preview=True, **arguments)


def _print_config(
    config_path: str | None,
    force: bool,
    precision: str | None,
    json_path: str | None,
    markdown_path: str | None,
    shows_preview: bool,
    scheme: bool,
    **arguments: Any,
) -> None:
    """Prints the preview of the engine of a config, and the requested precisions."""
    from trt_tui.cli.headless_session import open_config_session
    from trt_tui.core.exporters.preview_report import (
        config_preview_sections,
        preview_record,
        quantization_scheme_record,
    )
    from trt_tui.jobs.requests import PreviewEngine

    with open_config_session(collect_options(arguments), config_path, precision, force) as session:
        network, config = session.network_outline, session.config
        defects_record, defect_lines = _known_defects_report(session, of_config=True)
        if shows_preview:
            session.run_request(PreviewEngine(config, session.file_ranges))
        engine_preview = session.results.get_results_or_empty(config).preview
    if engine_preview is not None and (refusal := engine_preview.refusal) is not None:
        error_type = BackendUnavailableError if refusal.is_rtx_missing else InputError
        raise error_type(refusal.title, refusal.cause, refusal.next_step)
    requested_scheme = quantization_scheme_record(network, config, engine_preview) if scheme else None
    record = {
        **(preview_record(network, config, engine_preview) if engine_preview is not None else {}),
        **({"scheme": requested_scheme} if requested_scheme is not None else {}),
        **(defects_record if defect_lines else {}),
    }
    sections = [
        *config_preview_sections(network, config, engine_preview, requested_scheme),
        Section("Known defects", [defect_lines]),
    ]
    write_report(f"Config of {network.name}", [], sections, record, json_path, markdown_path)
    if engine_preview is not None and engine_preview.find_groups_in_unrequested_precision(network, config):
        sys.exit(int(ExitCode.TOLERANCE_NOT_MET))


def _known_defects_report(session: HeadlessSession, of_config: bool) -> tuple[dict[str, Any], list[str]]:
    """Returns the known TensorRT defects that affect the network, as a JSON record and as lines.

    Args:
        of_config: True for defects of the config, False for those of any precision.
    """
    from trt_tui.backends.registry import find_installed_version
    from trt_tui.core.network.known_defects import known_defect_table_lines, known_defects_record, match_known_defects

    network, target = (
        session.network_outline,
        session.options.make_build_target("tensorrt", find_installed_version("tensorrt")),
    )
    matches = match_known_defects(network, target, session.config.precision_of if of_config else None)
    return {"known_defects": known_defects_record(target, matches)}, known_defect_table_lines(
        network, target, matches, "this config" if of_config else "this network"
    )


def _read_engine_report(session: HeadlessSession, path: str) -> EngineReport:
    """Returns the implementation of each layer, from an engine or from the JSON of trtexec --exportLayerInfo."""
    from trt_tui.jobs.events import EngineFileRead
    from trt_tui.jobs.requests import ReadEngineFile

    return session.request_answer(ReadEngineFile(path), EngineFileRead).engine_report


@click.command(cls=Command, context_settings=CONTEXT_SETTINGS)
@VERBOSE_OPTIONS[0]
def doctor(verbose: bool) -> None:
    """List the backends that work on this machine.

    The list states the reason for each backend that does not work.
    """
    import platform

    import numpy
    import onnx
    import onnx_ir

    from trt_tui import __version__
    from trt_tui.backends.registry import diagnose_backends

    click.echo(
        f"trt-tui {__version__}, Python {platform.python_version()}, numpy {numpy.__version__}, "
        f"onnx {onnx.__version__}, onnx-ir {onnx_ir.__version__}"
    )
    states = diagnose_backends()
    rows = []
    for state in states:
        rows.append(["yes" if state.works else "no", state.name, state.version or "", state.detail])
        rows += [["", "", "", text] for text in (state.remedy, state.raw_message if verbose else "") if text]
    for line in table_lines(rows, left_aligned_columns=4):
        click.echo(f"  {line}")
    if not any(state.works for state in states):
        raise SystemExit(int(ExitCode.BACKEND_UNAVAILABLE))
