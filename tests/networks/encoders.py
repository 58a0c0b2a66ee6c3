"""A BERT-like encoder and a vision transformer: graphs from files without weights, given seeded ones."""

from pathlib import Path

import onnx

from .seeding import fill_weights

WEIGHT_MARK = "weight"
"""The doc_string of a graph input that stands for a weight."""


def bert(seed: int = 0) -> onnx.ModelProto:
    """A post-norm encoder: 3 layers, width 64, 4 heads, vocabulary 1000, at most 64 positions; opset 14.

    Inputs ``input_ids`` and ``attention_mask``, int64 (batch, sequence); outputs ``last_hidden_state`` float32
    (batch, sequence, 64) and ``logits`` float32 (batch, 8). From PyTorch's TorchScript exporter (node names such as
    ``/layers.0/attention/query/MatMul``): LayerNorm and erf GELU as elementary operators, the mask added to the
    scores as ``(1 - mask) * -3.4e38``.
    """
    return _seeded("bert", seed)


def vit(seed: int = 0) -> onnx.ModelProto:
    """A pre-norm vision transformer: 3 blocks, width 64, 4 heads, class token; opset 20.

    Input ``image`` float32 (batch, 3, 32, 32), output ``logits`` float32 (batch, 10). From torch's default exporter
    (node names such as ``node_linear_3``, scopes in ``metadata_props`` only): LayerNormalization and Gelu (tanh)
    operators, query, key and value from one MatMul.
    """
    return _seeded("vit", seed)


def bert_block(seed: int = 0) -> onnx.ModelProto:
    """`bert` with the first of its layers alone."""
    return _shortened(bert(seed), "/layers.0/norm/Add_1_output_0", "last_hidden_state")


def vit_block(seed: int = 0) -> onnx.ModelProto:
    """`vit` with the first of its blocks alone."""
    return _shortened(vit(seed), "add_120", "add_326")


def _shortened(model: onnx.ModelProto, first: str, last: str) -> onnx.ModelProto:
    """Leaves out the layers that compute a tensor from an earlier one of its shape."""
    graph, needed, kept = model.graph, {value.name for value in model.graph.output}, []
    for node in reversed(graph.node):
        node.input[:] = [last if name == first else name for name in node.input]
        if last not in node.output and not needed.isdisjoint(last if name == first else name for name in node.output):
            node.output[:] = [last if name == first else name for name in node.output]
            needed |= {*node.input}
            kept.insert(0, node)
    weights = [tensor for tensor in graph.initializer if tensor.name in needed]
    for field, values in (("node", kept), ("initializer", weights), ("value_info", [])):
        copies = [type(value)() for value in values]
        for copy, value in zip(copies, values, strict=True):
            copy.CopyFrom(value)
        graph.ClearField(field)
        getattr(graph, field).extend(copies)
    return model


def _seeded(name: str, seed: int) -> onnx.ModelProto:
    model = onnx.load(Path(__file__).with_name(f"{name}.onnx"))
    shapes, data = {}, []
    for value in model.graph.input:
        if value.doc_string == WEIGHT_MARK:
            shapes[value.name] = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        else:
            data.append(value)
    del model.graph.input[:]
    model.graph.input.extend(data)
    fill_weights(model, shapes, seed)
    return model
