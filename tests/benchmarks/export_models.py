"""Exports networks that need torch alone, for machines where neither this project nor onnxscript is installed.

    python3 tests/benchmarks/export_models.py OUT [resnet50] [vit]

Writes OUT/<name>.onnx by torch's TorchScript exporter at opset 17, and OUT/<name>.npz with 40 samples. Weights are
seeded: He-normal kernels, batch-norm statistics settled on random images.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

SAMPLES = 40


def images(count: int, seed: int) -> np.ndarray:
    """Smooth random images, float32 ``(count, 3, 224, 224)``."""
    rng = np.random.default_rng(seed)
    coarse = torch.from_numpy(rng.standard_normal((count, 3, 14, 14)).astype(np.float32))
    fine = torch.from_numpy(rng.standard_normal((count, 3, 224, 224)).astype(np.float32))
    smooth = torch.nn.functional.interpolate(coarse, size=(224, 224), mode="bicubic")
    return (smooth + 0.3 * fine).numpy()


def resnet50() -> torch.nn.Module:
    import torchvision

    module = torchvision.models.resnet50(weights=None)
    for part in module.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.momentum = None  # a plain mean over the batches
    module.train()
    with torch.no_grad():
        for seed in range(2):
            module(torch.from_numpy(images(8, 1000 + seed)))
    return module


def vit() -> torch.nn.Module:
    import timm

    module = timm.create_model("vit_small_patch16_224", pretrained=False)
    for part in module.modules():
        if hasattr(part, "fused_attn"):
            part.fused_attn = False
    return module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", default=["resnet50", "vit"])
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.names:
        torch.manual_seed(0)
        module = {"resnet50": resnet50, "vit": vit}[name]().eval()
        torch.onnx.export(
            module,
            (torch.from_numpy(images(2, 7)),),
            str(arguments.out / f"{name}.onnx"),
            input_names=["image"],
            output_names=["logits"],
            opset_version=17,
            dynamo=False,
            dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}},
        )
        np.savez(arguments.out / f"{name}.npz", image=images(SAMPLES, 1))
        print(f"{name}: {(arguments.out / f'{name}.onnx').stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
