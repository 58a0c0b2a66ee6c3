"""Writes bert.onnx and vit.onnx beside this file: encoders exported from torch, without their weights.

Run by hand from the repository root: ``python -m tests.networks.export``. Needs torch and onnxscript.

A weight stays in the file as a graph input of fixed shape whose doc_string is `WEIGHT_MARK`;
``tests.networks.bert()`` and ``vit()`` turn those into seeded initializers.
"""

import math
from pathlib import Path

import onnx
import torch
from torch import nn

from .encoders import WEIGHT_MARK
from .torch_modules import Bert, Vit, export_bert, export_image_network

_HERE = Path(__file__).parent


def randomize(module: nn.Module) -> None:
    """Makes all parameters differ: the exporter would share those that are equal (the ones and zeros of norms)."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()


def strip_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Turns every float initializer of more than one element into a marked graph input, in place."""
    kept = []
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and math.prod(tensor.dims) > 1:
            value = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            value.doc_string = WEIGHT_MARK
            model.graph.input.append(value)
        else:
            kept.append(tensor)
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    return model


def main() -> None:
    torch.manual_seed(0)
    bert = Bert(layers=3, width=64, heads=4, hidden=256, vocabulary=1000, positions=64, classes=8)
    vit = Vit(layers=3, width=64, heads=4, hidden=128, classes=10)
    randomize(bert)
    randomize(vit)
    for name, model in (("bert", export_bert(bert)), ("vit", export_image_network(vit, (3, 32, 32)))):
        path = _HERE / f"{name}.onnx"
        onnx.save(strip_weights(model), path)
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
