"""The command `inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trt_tui.cli.options import CONTEXT, Command, file_option, model_argument, option
from trt_tui.cli.usage import check_usage
from trt_tui.errors import BackendUnavailableError
from trt_tui.words import visible

if TYPE_CHECKING:
    from trt_tui.core.engines.inspector import EngineReport
    from trt_tui.core.network.network import Network


@click.command(cls=Command, context_settings=CONTEXT)
@model_argument
@option("Output", "--nodes", is_flag=True, help="Show the nodes of each group too.")
@file_option("TensorRT", "--engine", metavar="E", help="Show what this engine made of the groups: an engine file, or "
             "the JSON of trtexec --exportLayerInfo.")
@option("TensorRT", "--backend", default="auto", show_default=True, help="What loads the engine.",
        type=click.Choice(["auto", "tensorrt", "tensorrt-rtx"]))
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


def _layer_information(path: str, backend: str, network: Network) -> EngineReport:
    """The layers of an engine file, or of a JSON file that tells them."""
    from trt_tui.backends.registry import get_builder
    from trt_tui.core.engines.inspector import read_inspector
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
