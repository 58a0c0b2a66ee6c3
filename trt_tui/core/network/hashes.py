"""The hashes that identify a network: of each layer, of the whole structure, and of its files."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import onnx_ir as ir

from trt_tui.core.network.graph import LayerGraph
from trt_tui.core.network.layers import Layer


def hash_layers(graph: LayerGraph) -> dict[str, bytes]:
    """Returns a SHA-256 hash of each layer by name. The hash covers everything except the values of the weights."""
    return {layer.name: _hash_layer(graph, layer) for layer in graph.layers}


def _hash_layer(graph: LayerGraph, layer: Layer) -> bytes:
    digest = hashlib.sha256(repr((layer.name, layer.domain, layer.op_type, layer.inputs, layer.outputs)).encode())
    for tensor in layer.inputs:
        if tensor in graph.constant_tensors:
            digest.update(repr(graph.shape(tensor)).encode())
    for key, attr in sorted(graph.node(layer.name).attributes.items()):
        content: tuple[int, tuple[int, ...]] | list[_SubgraphNode] | list[list[_SubgraphNode]] | str
        if attr.type == ir.AttributeType.TENSOR:
            content = (int(attr.value.dtype), tuple(attr.value.shape))
        elif attr.type == ir.AttributeType.GRAPH:
            content = _subgraph_record(attr.value)
        elif attr.type == ir.AttributeType.GRAPHS:
            content = [_subgraph_record(graph) for graph in attr.value]
        else:
            content = str(attr.value)
        digest.update(repr((key, content)).encode())
    return digest.digest()


_SubgraphNode = tuple[str | None, str, str, list[str | None], list[str | None], list[tuple[str, str]]]


def _subgraph_record(graph: ir.Graph) -> list[_SubgraphNode]:
    """Returns the nodes of a subgraph as plain data, without the values of its weights."""
    return [
        (
            node.name,
            node.domain,
            node.op_type,
            [value.name if value is not None else "" for value in node.inputs],
            [value.name for value in node.outputs],
            [
                (name, str(attr.value))
                for name, attr in sorted(node.attributes.items())
                if attr.type not in (ir.AttributeType.TENSOR, ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
            ],
        )
        for node in graph.all_nodes()
    ]


def hash_structure(graph: LayerGraph, weights: Mapping[str, ir.Value], hash_by_layer: Mapping[str, bytes]) -> str:
    """Returns the hash of a network over its nodes, attributes, tensor names, types and shapes, without the values of
    weights.

    Args:
        weights: All tensors that the file stores, by name, including unused tensors.
        hash_by_layer: The result of `hash_layers`.
    """
    digest = hashlib.sha256()
    for info in (*graph.inputs, *graph.outputs):
        digest.update(repr((info.name, str(info.dtype), info.shape)).encode())
    for name in sorted(weights):
        tensor = weights[name].const_value
        if tensor is not None:
            digest.update(repr((name, int(tensor.dtype), tuple(tensor.shape))).encode())
    for layer in graph.layers:
        digest.update(hash_by_layer[layer.name])
    return digest.hexdigest()


def hash_files(files: Iterable[Path]) -> str:
    """Returns the hash of the contents of several files, in the given order. Files are read in pieces."""
    digest = hashlib.sha256()
    for file in files:
        with open(file, "rb") as stream:
            while piece := stream.read(1 << 22):
                digest.update(piece)
    return digest.hexdigest()
