"""Networks as torch modules, and their export. The only modules here that need torch are this one and ``export``."""

import io
import math
import warnings
from collections.abc import Iterable

import onnx
import torch
from torch import Tensor, nn


class BertAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.dense = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, -1).permute(0, 2, 1, 3)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(query.shape[-1]) + bias
        context = torch.matmul(scores.softmax(-1), value).permute(0, 2, 1, 3)
        return self.norm(self.dense(context.reshape(x.shape)) + x)


class BertLayer(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.attention = BertAttention(width, heads)
        self.intermediate = nn.Linear(width, hidden)
        self.activation = nn.GELU()
        self.output = nn.Linear(hidden, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        x = self.attention(x, bias)
        return self.norm(self.output(self.activation(self.intermediate(x))) + x)


class Embeddings(nn.Module):
    def __init__(self, width: int, vocabulary: int, positions: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(positions, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)[None]
        return self.norm(self.words(ids) + self.positions(places))


class Bert(nn.Module):
    """A post-norm encoder with Hugging Face's additive mask, and a classifier on the first token."""

    def __init__(
        self, layers: int, width: int, heads: int, hidden: int, vocabulary: int, positions: int, classes: int
    ) -> None:
        super().__init__()
        self.embeddings = Embeddings(width, vocabulary, positions)
        self.layers = nn.ModuleList(BertLayer(width, heads, hidden) for _ in range(layers))
        self.pooler = nn.Linear(width, width)
        self.classifier = nn.Linear(width, classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        mask = attention_mask[:, None, None, :].to(torch.float32)
        bias = (1.0 - mask) * torch.finfo(torch.float32).min
        x = self.embeddings(input_ids)
        for layer in self.layers:
            x = layer(x, bias)
        return x, self.classifier(torch.tanh(self.pooler(x[:, 0])))


class VitAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = qkv[0], qkv[1], qkv[2]
        weights = ((query * self.scale) @ key.transpose(-2, -1)).softmax(-1)
        return self.proj((weights @ value).transpose(1, 2).reshape(batch, tokens, width))


class VitBlock(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = VitAttention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(approximate="tanh"), nn.Linear(hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Vit(nn.Module):
    """A pre-norm vision transformer on 3×32×32 images in patches of 8, with a class token."""

    def __init__(self, layers: int, width: int, heads: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, width, 8, stride=8)
        self.cls_token = nn.Parameter(torch.randn(1, 1, width))
        self.pos_embed = nn.Parameter(torch.randn(1, 17, width))
        self.blocks = nn.ModuleList(VitBlock(width, heads, hidden) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patch_embed(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 Conv with a skip; the stride sits on the 3×3 (version 1.5 of ResNet)."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.conv1 = nn.Conv2d(before, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, after, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(after)
        self.relu = nn.ReLU()
        self.downsample = None
        if stride > 1 or before != after:
            self.downsample = nn.Sequential(
                nn.Conv2d(before, after, 1, stride=stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet50(nn.Module):
    """ResNet-50 version 1.5: (batch, 3, 224, 224) to 1000 logits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        before = 64
        for index, (width, depth) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), start=1):
            blocks = []
            for place in range(depth):
                blocks.append(Bottleneck(before, width, stride=2 if place == 0 and index > 1 else 1))
                before = 4 * width
            setattr(self, f"layer{index}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(2048, 1000)

    def forward(self, image: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(image))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def initialize(module: nn.Module, seed: int) -> None:
    """Seeded weights that keep activations near unit size, in place: He-normal kernels, normal matrices of std
    ``1 / sqrt(fan_in)``, embeddings of std 0.5, scales around 1, shifts around 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for part in module.modules():
            weight, bias = getattr(part, "weight", None), getattr(part, "bias", None)
            if isinstance(part, nn.Conv2d):
                weight.normal_(0, math.sqrt(2 / weight[0].numel()), generator=generator)
            elif isinstance(part, nn.Linear):
                weight.normal_(0, weight.shape[1] ** -0.5, generator=generator)
            elif isinstance(part, nn.Embedding):
                weight.normal_(0, 0.5, generator=generator)
            elif isinstance(weight, Tensor):
                weight.normal_(1, 0.1, generator=generator)
            if isinstance(bias, Tensor):
                bias.normal_(0, 0.05, generator=generator)


def settle(module: nn.Module, batches: Iterable[Tensor]) -> None:
    """Sets the running statistics of every batch norm to the mean over these batches, in place."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.reset_running_stats()
            part.momentum = None
    module.train()
    with torch.no_grad():
        for batch in batches:
            module(batch)
    module.eval()


def export_bert(module: Bert) -> onnx.ModelProto:
    """By torch's TorchScript exporter at opset 14, which writes LayerNorm and GELU as elementary operators."""
    buffer = io.BytesIO()
    example = (torch.randint(0, 100, (2, 7)), torch.ones(2, 7, dtype=torch.int64))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(),
            example,
            buffer,
            dynamo=False,
            opset_version=14,
            input_names=["input_ids", "attention_mask"],
            output_names=["last_hidden_state", "logits"],
            dynamic_axes={
                "input_ids": {0: "batch", 1: "sequence"},
                "attention_mask": {0: "batch", 1: "sequence"},
                "last_hidden_state": {0: "batch", 1: "sequence"},
                "logits": {0: "batch"},
            },
        )
    return onnx.load_from_string(buffer.getvalue())


def export_image_network(module: nn.Module, shape: tuple[int, ...]) -> onnx.ModelProto:
    """By torch's default exporter, which keeps module scopes in ``metadata_props``.

    Input ``image`` of (batch, *shape), output ``logits``. Stack traces, which hold paths of this machine, are left out.
    """
    batch = torch.export.Dim("batch", min=1, max=1024)
    program = torch.onnx.export(
        module.eval(),
        (torch.randn(2, *shape),),
        input_names=["image"],
        output_names=["logits"],
        dynamic_shapes=({0: batch},),
        verbose=False,
    )
    model = program.model_proto
    for node in model.graph.node:
        kept = [entry for entry in node.metadata_props if "stack_trace" not in entry.key]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    return model
