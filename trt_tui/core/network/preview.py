"""A first look at a big network: its layers by name, before types, shapes and fusion groups are worked out."""

from collections.abc import Iterator
from pathlib import Path

import onnx

from trt_tui.core.network.layers import Group, Kind, Layer, Outline
from trt_tui.core.network.scopes import stated_scope
from trt_tui.files.reading import regular

FEWEST_NODES = 1000
"""Smaller networks open at once and need no preview."""

FIRST_LAYERS = 400
"""How many layers are told before the others: more than a screen shows, and drawn as fast as a small network."""

LARGEST_FILE = 512 << 20
"""Files beyond this many bytes are not read twice."""

_FOLDED = frozenset("Constant Shape Size Cast QuantizeLinear DequantizeLinear".split())


def previews(path: Path | str) -> Iterator[Outline]:
    """The layers of a network, each as a group of its own: the first ones, then all; nothing for small networks and for
    what cannot be read.

    External data are not touched. What is wrong with a file is for `trt_tui.core.network.opening.open_model` to say.
    """
    path = Path(path)
    try:
        regular(path, most=LARGEST_FILE)
        graph = onnx.load(path, load_external_data=False).graph
    except Exception:  # `open_model` says it
        return
    if len(graph.node) < FEWEST_NODES:
        return
    layers, groups = [], []
    names: set[str] = set()
    for index, node in enumerate(graph.node):
        name = node.name or f"node_of_{node.output[0] if node.output else index}"
        if name in names:
            name = f"{name}_{index}"
        names.add(name)
        scope = stated_scope({one.key: one.value for one in node.metadata_props})
        kind = Kind.SHAPE if node.op_type in _FOLDED else Kind.COMPUTE
        layer = Layer(name, node.op_type, node.domain, index, (), (), kind, scope)
        layers.append(layer)
        if kind is Kind.COMPUTE:
            groups.append(Group(name, node.op_type, (name,), (), (), ""))
        if len(layers) == FIRST_LAYERS:
            yield Outline(path.name, path, tuple(layers), tuple(groups))
    yield Outline(path.name, path, tuple(layers), tuple(groups))
