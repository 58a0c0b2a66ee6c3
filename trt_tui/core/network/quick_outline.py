"""A preliminary outline of a big network: its layers by name, before types, shapes and fusion groups are known."""

from collections.abc import Iterator
from pathlib import Path

import onnx

from trt_tui.core.network.layers import FusionGroup, Layer, LayerKind, NetworkOutline
from trt_tui.core.network.scopes import read_scope_from_metadata
from trt_tui.files.reading import check_regular_file

MIN_NODES = 1000
"""The minimum number of nodes for a preliminary outline; smaller networks open at once."""

FIRST_LAYER_COUNT = 400
"""The number of layers in the first outline: more than a screen shows, and drawn as fast as a small network."""

MAX_FILE_BYTES = 512 << 20
"""The maximum size of a file for a preliminary outline, which reads the file a second time."""

_FOLDED_OPERATORS = frozenset("Constant Shape Size Cast QuantizeLinear DequantizeLinear".split())


def iterate_preliminary_outlines(path: Path | str) -> Iterator[NetworkOutline]:
    """Yields two outlines of a big network, first with its first layers and then with all; each layer forms one group.

    Yields nothing for small networks and for unreadable files. External data are not read. Errors in a file are
    reported by `trt_tui.core.network.opening.open_model`.
    """
    path = Path(path)
    try:
        check_regular_file(path, max_bytes=MAX_FILE_BYTES)
        graph = onnx.load(path, load_external_data=False).graph
    except Exception:  # `open_model` reports the error
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
