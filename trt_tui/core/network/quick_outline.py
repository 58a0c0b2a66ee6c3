"""A first look at a big network: its layers by name, before types, shapes and fusion groups are worked out."""

from collections.abc import Iterator
from pathlib import Path

import onnx

from trt_tui.core.network.layers import FusionGroup, Layer, LayerKind, NetworkOutline
from trt_tui.core.network.scopes import read_scope_from_metadata
from trt_tui.files.reading import check_regular_file

MIN_NODES = 1000
"""Smaller networks open at once and need no preview."""

FIRST_LAYER_COUNT = 400
"""How many layers are told before the others: more than a screen shows, and drawn as fast as a small network."""

MAX_FILE_BYTES = 512 << 20
"""Files beyond this many bytes are not read twice."""

_FOLDED_OPERATORS = frozenset("Constant Shape Size Cast QuantizeLinear DequantizeLinear".split())


def iterate_preliminary_outlines(path: Path | str) -> Iterator[NetworkOutline]:
    """The layers of a network, each as a group of its own: the first ones, then all; nothing for small networks and for
    what cannot be read.

    External data are not touched. What is wrong with a file is for `trt_tui.core.network.opening.open_model` to say.
    """
    path = Path(path)
    try:
        check_regular_file(path, max_bytes=MAX_FILE_BYTES)
        graph = onnx.load(path, load_external_data=False).graph
    except Exception:  # `open_model` says it
        return
    if len(graph.node) < MIN_NODES:
        return
    layers, groups = [], []
    names: set[str] = set()
    for index, node in enumerate(graph.node):
        name = node.name or f"node_of_{node.output[0] if node.output else index}"
        if name in names:
            name = f"{name}_{index}"
        names.add(name)
        scope = read_scope_from_metadata({entry.key: entry.value for entry in node.metadata_props})
        kind = LayerKind.SHAPE if node.op_type in _FOLDED_OPERATORS else LayerKind.COMPUTE
        layer = Layer(name, node.op_type, node.domain, index, (), (), kind, scope)
        layers.append(layer)
        if kind is LayerKind.COMPUTE:
            groups.append(FusionGroup(name, node.op_type, (name,), (), (), ""))
        if len(layers) == FIRST_LAYER_COUNT:
            yield NetworkOutline(path.name, path, tuple(layers), tuple(groups))
    yield NetworkOutline(path.name, path, tuple(layers), tuple(groups))
