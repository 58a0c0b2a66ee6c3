"""Makes the file beside it with PyTorch 2.13 and torchao 0.18, in an environment of its own.

pip install torch torchao onnx onnxscript
python make.py
"""

from pathlib import Path

import torch
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (
    X86InductorQuantizer,
    get_default_x86_inductor_quantization_config,
)

HERE = Path(__file__).parent


class Residual(nn.Module):
    """Three Convs with a skip, a mean and a Linear; ``image`` (2, 3, 8, 8)."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.one = nn.Conv2d(16, 16, 3, padding=1)
        self.two = nn.Conv2d(16, 16, 3, padding=1)
        self.fc = nn.Linear(16, 10)

    def forward(self, image):
        x = torch.relu(self.stem(image))
        x = torch.relu(self.two(torch.relu(self.one(x))) + x)
        return self.fc(x.mean((2, 3)))


if __name__ == "__main__":
    torch.manual_seed(0)
    example = (torch.randn(2, 3, 8, 8),)
    quantizer = X86InductorQuantizer()
    quantizer.set_global(get_default_x86_inductor_quantization_config())
    prepared = prepare_pt2e(torch.export.export(Residual().eval(), example).module(), quantizer)
    for _ in range(3):
        prepared(torch.randn(2, 3, 8, 8))
    torch.onnx.export(convert_pt2e(prepared), example, dynamo=True).save(HERE / "x86_int8.onnx")
