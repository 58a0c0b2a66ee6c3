"""The networks that benchmarks measure, exported from torch with seeded weights, and their data.

Networks are made once per directory and found there afterwards; delete the directory to make them anew.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

from tests.networks import random_images, random_mask
from trt_tui.errors import BackendUnavailableError

DEFAULT_DIRECTORY = Path(tempfile.gettempdir()) / "trt-tui-benchmarks"
VOCABULARY = 30522
POSITIONS = 512

Feeds = dict[str, np.ndarray]


def resnet50(directory: Path = DEFAULT_DIRECTORY, seed: int = 0) -> Path:
    """ResNet-50 version 1.5 by torch's default exporter: ``image`` (batch, 3, 224, 224) to ``logits`` (batch, 1000).

    Kernels are He-normal; batch-norm statistics are those of two batches of 8 random images.

    Raises:
        BackendUnavailableError: torch or onnxscript is not installed and the network is not in ``directory`` yet.
    """

    def make() -> onnx.ModelProto:
        import torch

        from tests.networks.torch_modules import ResNet50, export_image_network, initialize, settle

        module = ResNet50()
        initialize(module, seed)
        settle(module, [torch.from_numpy(feeds["image"]) for feeds in resnet50_batches(2, 8, seed + 1000)])
        return export_image_network(module, (3, 224, 224))

    return _cached(Path(directory) / f"resnet50-seed{seed}.onnx", make)


def bert6(directory: Path = DEFAULT_DIRECTORY, seed: int = 0) -> Path:
    """A BERT encoder of 6 layers, 384 wide, 12 heads, 1536 hidden, by torch's TorchScript exporter at opset 14.

    Inputs ``input_ids`` and ``attention_mask`` int64 (batch, sequence), outputs ``last_hidden_state`` float32
    (batch, sequence, 384) and ``logits`` float32 (batch, 2).

    Raises:
        BackendUnavailableError: torch or onnxscript is not installed and the network is not in ``directory`` yet.
    """

    def make() -> onnx.ModelProto:
        from tests.networks.torch_modules import Bert, export_bert, initialize

        module = Bert(layers=6, width=384, heads=12, hidden=1536, vocabulary=VOCABULARY, positions=POSITIONS, classes=2)
        initialize(module, seed)
        return export_bert(module)

    return _cached(Path(directory) / f"bert6-seed{seed}.onnx", make)


def resnet50_batches(count: int = 4, size: int = 8, seed: int = 0) -> list[Feeds]:
    """``count`` batches of ``size`` random images for `resnet50`; ``(8, 8)`` or ``(64, 1)`` are 64 samples."""
    rng = np.random.default_rng(seed)
    return [{"image": random_images(rng, (size, 3, 224, 224))} for _ in range(count)]


def bert6_batches(count: int = 4, size: int = 8, length: int = 64, seed: int = 0) -> list[Feeds]:
    """``count`` batches of ``size`` random token sequences of ``length`` for `bert6`, padded by up to a third."""
    rng = np.random.default_rng(seed)
    shape = (size, length)
    return [
        {"input_ids": rng.integers(0, VOCABULARY, size=shape), "attention_mask": random_mask(rng, shape)}
        for _ in range(count)
    ]


def save_batches(batches: list[Feeds], path: Path) -> Path:
    """Writes the samples of all batches, concatenated along the first axis, to one npz file; returns its path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{name: np.concatenate([feeds[name] for feeds in batches]) for name in batches[0]})
    return path


def _cached(path: Path, make: Callable[[], onnx.ModelProto]) -> Path:
    if not path.exists():
        try:
            model = make()
        except ModuleNotFoundError as error:
            if error.name not in ("torch", "onnxscript"):
                raise
            raise BackendUnavailableError(
                f"cannot make {path.name}",
                f"{error.name} is not installed, and the benchmark networks are exported from torch",
                'Install it with: pip install "trt-tui[train]"',
            ) from error
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        onnx.save_model(model, partial)
        os.replace(partial, path)
    return path
