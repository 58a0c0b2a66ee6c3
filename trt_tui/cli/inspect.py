"""The command `inspect`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from trt_tui.cli.options import (
    CONFIG,
    CONTEXT,
    DATA,
    LIBRARIES,
    REFERENCE,
    Command,
    config_or_precision,
    file_option,
    option,
    options_of,
    takes,
)
from trt_tui.cli.places import check_places, write_outputs
from trt_tui.cli.usage import check_usage, one_on_stdout, stdout_for
from trt_tui.errors import BackendUnavailableError, ExitCode, InputError
from trt_tui.words import visible

if TYPE_CHECKING:
    from trt_tui.cli.headless import Writer


@click.command(cls=Command, context_settings=CONTEXT)
@takes(*DATA, *REFERENCE, *CONFIG, *LIBRARIES)
@config_or_precision
@option("Output", "--nodes", is_flag=True, help="Also show the nodes of each group.")
@file_option("TensorRT", "--engine", metavar="E", help="Show what this engine made of the groups: an engine file, or "
             "the JSON of trtexec --exportLayerInfo.")
@option("TensorRT", "--backend", default="auto", show_default=True, help="What loads the engine.",
        type=click.Choice(["auto", "tensorrt", "tensorrt-rtx"]))
@option("TensorRT", "--preview", is_flag=True, help="Show what TensorRT-RTX would make of each group, without a GPU; "
        "exit code 1 if a group would not run as asked. Without a config: of all INT8.")
@option("TensorRT", "--compute-capability", metavar="8.9", help="The GPU to preview for. Without: the one here, or the "
        "nearest that TensorRT-RTX knows.")
@option("Output", "--scheme", is_flag=True, help="Show what the config asks for: groups by operator and precision, "
        "what is left out and why, and its share of the MACs.")
@file_option("Output", "--json", "json_path", metavar="[OUT]", is_flag=False, flag_value="-",
             help="Write preview and scheme as JSON; to stdout where no file is named.")
@file_option("Output", "--markdown", "markdown_path", metavar="[OUT]", is_flag=False, flag_value="-",
             help="Write them as Markdown; to stdout where no file is named.")
def inspect(model: str, nodes: bool, engine: str | None, preview: bool, scheme: bool, config_path: str | None,
            force: bool, precision: str | None, json_path: str | None, markdown_path: str | None,
            **arguments: Any) -> None:
    """Print the layer tree, and what each layer can run in.

    Rows have operator and shape, and say what can run in FP16, INT8, FP8 and INT4, or why not.

    With --preview: what the builder would make of a config.
    """
    from trt_tui.cli.headless import Writer
    from trt_tui.core.network.hierarchy import build_tree
    from trt_tui.core.network.tree_text import render_tree

    check_usage()
    if config_path is not None and precision is not None:
        raise InputError("a config and a precision are two things", "at most one of --config and --precision is taken",
                         "Leave out one of them.")
    json_path, markdown_path = stdout_for(json_path), stdout_for(markdown_path)
    one_on_stdout({"--json": json_path, "--markdown": markdown_path})
    places = check_places(model, arguments, config_path, json_path, markdown_path)
    options = options_of(model, 0, arguments)
    with Writer(options, config_path, precision, force, writes=places) as session:
        if preview or scheme:
            code = _about_config(session, preview, scheme, json_path, markdown_path)
            sys.exit(int(code))
        network = session.outline
        layers = session.read_engine(engine) if engine is not None else None
    click.echo(f"{visible(network.name)}: {len(network.layers)} nodes in {len(network.groups)} groups, "
               f"opset {network.opset}")
    for note in network.notes:
        click.echo(f"  {visible(note)}")
    if layers is not None:
        from trt_tui.cli.made import engine_table

        click.echo(engine_table(network, layers))
        return
    click.echo(render_tree(build_tree(network.layers, network.groups), network.shape, nodes=nodes))


def _about_config(session: Writer, preview: bool, scheme: bool, json_path: str | None, markdown_path: str | None
                  ) -> ExitCode:
    """Tells what a config asks for and what the builder would make of it."""
    from trt_tui.core.exporters.previewed import (
        HEADER,
        preview_markdown,
        preview_record,
        preview_rows,
        preview_summary,
        scheme_lines,
        scheme_record,
    )
    from trt_tui.core.network.hierarchy import build_tree, titles
    from trt_tui.words import table

    network, config = session.outline, session.config
    made = session.previewed() if preview else None
    if made is not None and (refused := made.refused) is not None:
        if refused.absent:
            raise BackendUnavailableError(refused.title, refused.cause, refused.next_step)
        raise InputError(refused.title, refused.cause, refused.next_step)
    asked = scheme_record(network, config, made) if scheme else None
    places = titles(build_tree(network.layers, network.groups))
    record = {**(preview_record(network, config, made) if made is not None else {}),
              **({"scheme": asked} if asked is not None else {})}
    write_outputs([(json_path, lambda _: json.dumps(record, indent=1) + "\n"),
                   (markdown_path, lambda _: preview_markdown(network, config, made, places, asked))], session)
    if "-" not in (json_path, markdown_path):
        lines = [f"{network.name}: {config.defaults_said}", ""]
        if made is not None:
            lines += [*table([HEADER, *preview_rows(network, config, made, places)], flush_left=7), "",
                      *preview_summary(network, config, made)]
        if asked is not None:
            lines += [*([""] if made is not None else []), *scheme_lines(asked)]
        click.echo("\n".join(map(visible, lines)))
    if made is not None and made.otherwise(network, config):
        return ExitCode.TOLERANCE_NOT_MET
    return ExitCode.DONE
