"""The trees of real exports, row by row.

tests/trees holds networks of Hugging Face, torchvision and ultralytics with small widths, as PyTorch's TorchScript
(``ts``) and default (``dy``) exporters wrote them at the opset in their name. They are packed without weights: what has
more elements than `_MAX_CONFIGS_PER_FEED` is an input whose doc_string is its mark (`stripped`). Beside each stand its
rows: the label, the operator, and the operators of its layers; a block that repeats an earlier one names it. Beside
them are the rows of networks that tests make: with names, with metadata alone, with functions, or with none (cut at
joins, pools, repeats).
"""

import gzip
from dataclasses import replace
from functools import partial

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests import TESTS, networks
from tests.core.network.test_hierarchy import light, scope_of
from tests.networks.encoders import WEIGHT_MARK
from trt_tui.core.network.layer_tree import GroupRow, Row, Scope, UngroupedRow, build_scope_tree
from trt_tui.core.network.network import Network

_HERE = TESTS / "trees"
_KEPT = 32
_SCOPES = "pkg.torch.onnx.name_scopes"


def stripped(model: onnx.ModelProto) -> onnx.ModelProto:
    """Leaves a network's layers and small constants, in place; each file of tests/trees is made by it."""
    graph = model.graph
    kept = [tensor for tensor in graph.initializer if numpy_helper.to_array(tensor).size <= _KEPT]
    for tensor in graph.initializer:
        if tensor not in kept:
            value = helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            value.doc_string = WEIGHT_MARK
            graph.input.append(value)
    del graph.initializer[:], graph.value_info[:]
    graph.initializer.extend(kept)
    for node in graph.node:
        scopes = [entry for entry in node.metadata_props if entry.key == _SCOPES]
        del node.metadata_props[:]
        node.metadata_props.extend(scopes)
        node.doc_string = ""
        for attribute in node.attribute:
            if attribute.HasField("t") and (array := numpy_helper.to_array(attribute.t)).size > _KEPT:
                attribute.t.CopyFrom(numpy_helper.from_array(np.zeros_like(array), attribute.t.name))
    return model


def filled(model: onnx.ModelProto) -> onnx.ModelProto:
    """The network with zeros for its weights, in place."""
    weights = [value for value in model.graph.input if value.doc_string == WEIGHT_MARK]
    for value in weights:
        model.graph.input.remove(value)
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        model.graph.initializer.append(numpy_helper.from_array(np.zeros(shape, dtype), value.name))
    return model


def rows(network: Network, scope: Scope) -> list[str]:
    """The rows below a scope as text."""
    lines: list[str] = []
    seen: dict[tuple[str, ...], str] = {}
    for row in scope.children:
        if isinstance(row, Scope):
            below = rows(network, row)
            earlier = seen.setdefault(tuple(below), row.label)
            again = earlier != row.label
            lines += [f"{row.label} = {earlier}"] if again else [row.label, *("  " + line for line in below)]
        else:
            lines.append(" | ".join((row.label, *_layers(network, row))))
    return lines


def _layers(network: Network, row: Row) -> list[str]:
    if isinstance(row, GroupRow):
        return [row.group.operator, " ".join(network.get_layer(name).op_type for name in row.group.layers)]
    return [row.layer.op_type, row.refusal_reason] if isinstance(row, UngroupedRow) else []


def nameless(model: onnx.ModelProto) -> onnx.ModelProto:
    for index, node in enumerate(model.graph.node):
        node.name = f"n{index}"
    return model


MADE = {
    **{
        name: getattr(networks, name)
        for name in ("bert", "vit", "small_resnet", "badly_named", "with_local_function", "with_if")
    },
    "bert_nameless": lambda: nameless(networks.bert()),
    **{f"light_{name}": partial(light, name) for name in ("resnet50", "inception_v1", "vgg19")},
}


@pytest.mark.parametrize("name", MADE)
def test_rows_of_networks_that_are_made_here(name, opened):
    network = opened(MADE[name]())
    layers = [replace(layer, scope=scope_of(network.node(layer.name))) for layer in network.layers]
    assert rows(network, build_scope_tree(layers, network.groups)) == (_HERE / f"{name}.txt").read_text().splitlines()


@pytest.mark.parametrize("name", sorted(path.name.removesuffix(".onnx.gz") for path in _HERE.glob("*.onnx.gz")))
def test_rows_are_those_that_a_user_would_know(name, opened):
    network = opened(filled(onnx.load_from_string(gzip.decompress((_HERE / f"{name}.onnx.gz").read_bytes()))))
    found = rows(network, build_scope_tree(network.layers, network.groups))
    assert found == (_HERE / f"{name}.txt").read_text().splitlines()
