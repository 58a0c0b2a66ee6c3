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
