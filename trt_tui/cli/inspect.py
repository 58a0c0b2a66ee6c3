"""The command `inspect`, which prints the layer tree of a network, a config, or a preview of its engine."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from trt_tui.cli.options import (
    CONFIG_OPTIONS,
    CONTEXT_SETTINGS,
    DATA_OPTIONS,
    LIBRARY_OPTIONS,
    REFERENCE_OPTIONS,
    VERBOSE_OPTIONS,
    Command,
    add_model_and_options,
    collect_options,
    file_path_option,
    option_under_heading,
    precision_option,
    release_option,
)
from trt_tui.cli.output_files import check_output_paths, json_text, write_text_outputs
from trt_tui.cli.usage import refuse_ineffective_options, resolve_output_paths
from trt_tui.errors import BackendUnavailableError, ExitCode, InputError
from trt_tui.formatting import escape_hidden_characters

if TYPE_CHECKING:
    from trt_tui.cli.headless_session import ConfigWriter


@click.command(cls=Command, context_settings=CONTEXT_SETTINGS)
@add_model_and_options(*DATA_OPTIONS, *REFERENCE_OPTIONS, *CONFIG_OPTIONS, *LIBRARY_OPTIONS, *VERBOSE_OPTIONS)
@precision_option
@option_under_heading("Output", "--nodes", is_flag=True, help="Also show the nodes of each fused layer.")
@file_path_option(
    "TensorRT", "--engine", metavar="E", help="Show how this engine runs each fused layer: an engine file, or the "
                                              "JSON of trtexec --exportLayerInfo or --exportProfile. With --lint: also "
                                              "report forms of Q/DQ nodes that it converts.")
@option_under_heading("TensorRT", "--backend", default="auto", show_default=True,
                      help="The backend that loads the engine.",
                      type=click.Choice(["auto", "tensorrt", "tensorrt-rtx"]))
@option_under_heading(
    "TensorRT", "--preview", is_flag=True, help="Show how TensorRT-RTX would run each fused layer, without a GPU; "
                                                "exit code 1 if one would not run as requested. Without a config: "
                                                "all INT8.")
@option_under_heading("TensorRT", "--compute-capability", metavar="8.9",
                      help="The GPU to preview for. Without: the one here, or the "
                      "nearest that TensorRT-RTX knows.")
@option_under_heading(
    "Output", "--scheme", is_flag=True, help="Show the requested precisions: fused layers by operator and "
                                             "precision, those left out with the reason, and the share of the MACs.")
@option_under_heading(
    "Output", "--lint", is_flag=True, help="Check the Q/DQ nodes of the file, with consequence and repair; exit code 1 "
                                           "if the check finds anything.")
@release_option
@file_path_option("Output", "--json", "json_path", metavar="[OUT]", is_flag=False, flag_value="-",
                  help="Write preview, scheme and known defects, or the findings of --lint, as JSON; to stdout if no "
                       "file is named.")
@file_path_option("Output", "--markdown", "markdown_path", metavar="[OUT]", is_flag=False, flag_value="-",
                  help="Write preview and scheme as Markdown; to stdout if no file is named.")
def inspect(model: str, nodes: bool, engine: str | None, preview: bool, scheme: bool, lint: bool,
            config_path: str | None, force: bool, precision: str | None, json_path: str | None,
            markdown_path: str | None, **arguments: Any) -> None:
    """Print the layer tree and the precisions that each layer can run in.

    Each row has the operator, the shape, and the possible precisions or the reason why there are none. Below stand the
    known accuracy defects of the TensorRT release that concern the network, or the config if one is named.

    With --preview: how the builder would run each layer of a config. With --lint: forms of Q/DQ nodes that cost
    accuracy or speed in TensorRT, or that TensorRT refuses.
    """
    from trt_tui.cli.headless_session import open_config_writer
    from trt_tui.core.network.hierarchy import build_scope_tree
    from trt_tui.core.network.known_defects import known_defects_record, known_defects_table
    from trt_tui.core.network.tree_text import render_tree

    refuse_ineffective_options()
    if config_path is not None and precision is not None:
        raise InputError("--config and --precision exclude each other", "at most one of them can be used",
                         "Leave out one of them.")
    json_path, markdown_path = resolve_output_paths({"--json": json_path, "--markdown": markdown_path})
    written_paths = check_output_paths(model, arguments, config_path, json_path, markdown_path)
    options = collect_options(model, 0, arguments)
    with open_config_writer(options, config_path, precision, force, written_paths=written_paths) as writer:
        if lint:
            sys.exit(int(_print_qdq_check(writer, engine, json_path)))
        network = writer.outline
        has_config = config_path is not None or precision is not None or preview or scheme
        target, defect_matches = writer.match_known_defects(in_any_precision=not has_config)
        defect_lines = known_defects_table(network, target, defect_matches,
                                           "this config" if has_config else "this network")
        record = {"known_defects": known_defects_record(target, defect_matches)}
        if preview or scheme:
            sys.exit(int(_print_config(writer, preview, scheme, defect_lines, record if defect_lines else {}, json_path,
                                       markdown_path)))
        write_text_outputs([(json_path, lambda _: json_text(record))], writer)
        if json_path == "-":
            return
        engine_report = writer.read_engine(engine) if engine is not None else None
    click.echo(
        f"{escape_hidden_characters(network.name)}: {len(network.layers)} nodes in {len(network.groups)} groups, "
        f"opset {network.opset}")
    for note in network.notes:
        click.echo(f"  {escape_hidden_characters(note)}")
    if engine_report is not None:
        from trt_tui.core.report.document import Section, report_text
        from trt_tui.session.engine_report import engine_blocks

        click.echo(report_text([Section("", engine_blocks(network, engine_report))]))
        return
    click.echo(render_tree(build_scope_tree(network.layers, network.groups), network.shape, show_nodes=nodes))
    for line in defect_lines:
        click.echo(escape_hidden_characters(line))


def _print_qdq_check(writer: ConfigWriter, engine_path: str | None, json_path: str | None) -> ExitCode:
    """Prints the findings of the check of Q/DQ nodes; the exit code tells whether there are any."""
    from trt_tui.core.engines.group_implementations import find_converted_findings
    from trt_tui.core.exporters.qdq_report import qdq_check_lines, qdq_check_record

    network = writer.outline
    findings = network.qdq_findings
    if findings is not None and engine_path is not None:
        findings = (*findings, *find_converted_findings(network, writer.read_engine(engine_path)))
    write_text_outputs([(json_path, lambda _: json_text(qdq_check_record(network, findings)))], writer)
    if json_path != "-":
        click.echo("\n".join(map(escape_hidden_characters, qdq_check_lines(network, findings))))
    return ExitCode.TOLERANCE_NOT_MET if findings else ExitCode.DONE


def _print_config(writer: ConfigWriter, shows_preview: bool, shows_scheme: bool, defect_lines: list[str],
                  defects: Mapping[str, Any], json_path: str | None, markdown_path: str | None) -> ExitCode:
    """Prints the requested precisions of a config and the preview of its engine.

    Args:
        defect_lines: The known defects of the release that concern the config.
        defects: Their JSON record.
    """
    from trt_tui.core.exporters.preview_report import (
        config_preview_sections,
        preview_record,
        quantization_scheme_record,
    )
    from trt_tui.core.report.document import Section, report_markdown, report_text

    network, config = writer.outline, writer.config
    engine_preview = writer.preview_engine() if shows_preview else None
    if engine_preview is not None and (refusal := engine_preview.refusal) is not None:
        if refusal.is_rtx_missing:
            raise BackendUnavailableError(refusal.title, refusal.cause, refusal.next_step)
        raise InputError(refusal.title, refusal.cause, refusal.next_step)
    requested_scheme = quantization_scheme_record(network, config, engine_preview) if shows_scheme else None
    record = {**(preview_record(network, config, engine_preview) if engine_preview is not None else {}),
              **({"scheme": requested_scheme} if requested_scheme is not None else {}), **defects}
    sections = [*config_preview_sections(network, config, engine_preview, requested_scheme),
                Section("Known defects", [defect_lines])]
    write_text_outputs([(json_path, lambda _: json_text(record)),
                        (markdown_path, lambda _: report_markdown(f"Config of {network.name}", sections))], writer)
    if "-" not in (json_path, markdown_path):
        click.echo(report_text(sections))
    if engine_preview is not None and engine_preview.find_groups_in_unrequested_precision(network, config):
        return ExitCode.TOLERANCE_NOT_MET
    return ExitCode.DONE
