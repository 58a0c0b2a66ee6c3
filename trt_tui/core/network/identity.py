"""Which network it is: hashes of its structure, layer by layer and as a whole, and of its files."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import onnx_ir as ir

from trt_tui.core.network.graph import LayerGraph
from trt_tui.core.network.layers import Layer


def layer_hashes(graph: LayerGraph) -> dict[str, bytes]:
    """A SHA-256 of each layer, by name: of all of it but the weights' values."""
    return {layer.name: _layer_hash(graph, layer) for layer in graph.layers}


def _layer_hash(graph: LayerGraph, layer: Layer) -> bytes:
    digest = hashlib.sha256(repr((layer.name, layer.domain, layer.op_type, layer.inputs, layer.outputs)).encode())
    for tensor in layer.inputs:
        if tensor in graph.constants:
            digest.update(repr(graph.shape(tensor)).encode())
    for key, attr in sorted(graph.node(layer.name).attributes.items()):
        what: tuple[int, tuple[int, ...]] | list[_Subgraph] | list[list[_Subgraph]] | str
        if attr.type == ir.AttributeType.TENSOR:
            what = (int(attr.value.dtype), tuple(attr.value.shape))
        elif attr.type == ir.AttributeType.GRAPH:
            what = _subgraph(attr.value)
        elif attr.type == ir.AttributeType.GRAPHS:
            what = [_subgraph(graph) for graph in attr.value]
        else:
            what = str(attr.value)
        digest.update(repr((key, what)).encode())
    return digest.digest()


_Subgraph = tuple[str | None, str, str, list[str | None], list[str | None], list[tuple[str, str]]]


def _subgraph(graph: ir.Graph) -> list[_Subgraph]:
    """A subgraph without its weights' values."""
    nodes: list[_Subgraph] = []
    for node in graph.all_nodes():
        attributes = [(name, str(attr.value)) for name, attr in sorted(node.attributes.items())
                      if attr.type not in (ir.AttributeType.TENSOR, ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)]
        nodes.append((node.name, node.domain, node.op_type, [v.name if v is not None else "" for v in node.inputs],
                      [v.name for v in node.outputs], attributes))
    return nodes


def structure_sha256(graph: LayerGraph, weights: Mapping[str, ir.Value], hashes: Mapping[str, bytes]) -> str:
    """Hash of everything but the weights' values: nodes, attributes, tensor names, types and shapes.

    Args:
        weights: All that the file stores, by name, also what nothing reads.
        hashes: From `layer_hashes`.
    """
    digest = hashlib.sha256()
    for info in (*graph.inputs, *graph.outputs):
        digest.update(repr((info.name, str(info.dtype), info.shape)).encode())
    for name in sorted(weights):
        tensor = weights[name].const_value
        if tensor is not None:
            digest.update(repr((name, int(tensor.dtype), tuple(tensor.shape))).encode())
    for layer in graph.layers:
        digest.update(hashes[layer.name])
    return digest.hexdigest()


def sha256(files: Iterable[Path]) -> str:
    """Hash of files, one after the other, read in pieces."""
    digest = hashlib.sha256()
    for file in files:
        with open(file, "rb") as stream:
            while piece := stream.read(1 << 22):
                digest.update(piece)
    return digest.hexdigest()
