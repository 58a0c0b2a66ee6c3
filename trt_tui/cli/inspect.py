"""The command `inspect`."""

from __future__ import annotations

import click

from trt_tui.cli.options import CONTEXT, LIBRARIES, Command, file_option, option, takes
from trt_tui.cli.usage import check_usage
from trt_tui.words import visible


@click.command(cls=Command, context_settings=CONTEXT)
@takes(*LIBRARIES)
@option("Output", "--nodes", is_flag=True, help="Also show the nodes of each group.")
@file_option("TensorRT", "--engine", metavar="E", help="Show what this engine made of the groups: an engine file, or "
             "the JSON of trtexec --exportLayerInfo.")
@option("TensorRT", "--backend", default="auto", show_default=True, help="What loads the engine.",
        type=click.Choice(["auto", "tensorrt", "tensorrt-rtx"]))
def inspect(model: str, nodes: bool, engine: str | None, backend: str, plugins: tuple[str, ...],
            ort_ops: tuple[str, ...]) -> None:
    """Print the layer tree: operator, shape, group, and what can run in FP16, INT8, FP8 and INT4, or why not."""
    from trt_tui.cli.headless import Writer
    from trt_tui.core.network.hierarchy import build_tree
    from trt_tui.core.network.tree_text import render_tree
    from trt_tui.options import Options

    check_usage()
    with Writer(Options(model, backend=backend, plugins=plugins, ort_ops=ort_ops)) as session:
        network = session.outline
        layers = session.read_engine(engine) if engine is not None else None
    click.echo(f"{visible(network.name)}: {len(network.layers)} nodes in {len(network.groups)} groups, "
               f"opset {network.opset}")
    for note in network.notes:
        click.echo(f"  {visible(note)}")
    if layers is not None:
        from trt_tui.cli.report import engine_table

        click.echo(engine_table(network, layers))
        return
    click.echo(render_tree(build_tree(network.layers, network.groups), network.shape, nodes=nodes))
