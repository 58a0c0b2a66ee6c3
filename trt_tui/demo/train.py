"""Make the bundled network and its samples: ``python -m trt_tui.demo.train --out DIR``.

The script trains a small attention U-Net on the scenes of ``trt_tui.demo.scenes``. It writes ``scenes.onnx`` (opset
17), ``samples.npz`` (held-out scenes with labels) and ``calibration.npz`` (other scenes, no labels). No digit occurs in
two of training, calibration and samples. The script needs the ``train`` extra and takes about five minutes on
two cores.

The same seed, versions and machine give the same files, byte for byte. The bundled files were made with torch 2.13.0,
scikit-learn 1.9.1, scipy 1.17.1 and numpy 2.4.6.
"""

import argparse
import io
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from trt_tui.demo.scenes import BACKGROUND_CLASS, CLASS_COUNT, SCENE_SIZE, DigitImages, compose_scenes, split_digits

SAMPLE_COUNT = 96
CALIBRATION_COUNT = 48
TRAINING_STEPS = 1000
BATCH_SIZE = 16
THREAD_COUNT = 2


def make_conv_block(inputs: int, outputs: int, groups: int = 1) -> nn.Sequential:
    """Returns a block of 3x3 convolution, batch normalisation and ReLU."""
    conv = nn.Conv2d(inputs, outputs, 3, padding=1, groups=groups, bias=False)
    return nn.Sequential(OrderedDict(conv=conv, norm=nn.BatchNorm2d(outputs), act=nn.ReLU()))


class ResidualBlock(nn.Module):
    """A block of a depthwise and a pointwise convolution, whose result is added to its input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = make_conv_block(channels, channels, groups=channels)
        self.pointwise = nn.Conv2d(channels, channels, 1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Maps (N, channels, H, W) to the same shape."""
        return self.act(x + self.norm(self.pointwise(self.depthwise(x))))


def make_encoder_block(inputs: int, outputs: int) -> nn.Sequential:
    """Returns one level of the U-Net's encoder: a convolution and a residual block."""
    return nn.Sequential(OrderedDict(widen=make_conv_block(inputs, outputs), residual=ResidualBlock(outputs)))


class AttentionGate(nn.Module):
    """An attention gate, which weights each pixel of a skip connection by a sigmoid (Oktay et al. 2018,
    https://arxiv.org/abs/1804.03999)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.query = nn.Conv2d(channels, channels // 2, 1)
        self.key = nn.Conv2d(channels, channels // 2, 1, bias=False)
        self.score = nn.Conv2d(channels // 2, 1, 1)
        self.act = nn.ReLU()

    def forward(self, skip: Tensor, below: Tensor) -> Tensor:
        """Returns the skip connection (N, channels, H, W), weighted by the tensor of the level below, which has the
        same shape."""
        return skip * torch.sigmoid(self.score(self.act(self.query(below) + self.key(skip))))


class DecoderBlock(nn.Module):
    """One level of the U-Net's decoder: upsampling, the gated skip connection, a convolution."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(inputs, outputs, 2, stride=2)
        self.gate = AttentionGate(outputs)
        self.merge = make_conv_block(2 * outputs, outputs)

    def forward(self, below: Tensor, skip: Tensor) -> Tensor:
        """Maps (N, inputs, H, W) of the level below and the skip connection (N, outputs, 2H, 2W) to the latter's
        shape."""
        below = self.up(below)
        return self.merge(torch.cat([below, self.gate(skip, below)], dim=1))


class SceneUNet(nn.Module):
    """The attention U-Net: images, float32 (N, 1, SCENE_SIZE, SCENE_SIZE), to the class logits of each pixel, float32
    (N, CLASS_COUNT, SCENE_SIZE, SCENE_SIZE)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc1 = make_encoder_block(1, 12)
        self.enc2 = make_encoder_block(12, 24)
        self.enc3 = make_encoder_block(24, 48)
        self.pool1, self.pool2, self.pool3 = nn.MaxPool2d(2), nn.MaxPool2d(2), nn.MaxPool2d(2)
        self.bottom = make_encoder_block(48, 72)
        self.dec3 = DecoderBlock(72, 48)
        self.dec2 = DecoderBlock(48, 24)
        self.dec1 = DecoderBlock(24, 12)
        self.head = nn.Conv2d(12, CLASS_COUNT, 1)

    def forward(self, image: Tensor) -> Tensor:
        """Maps images to the class logits of each pixel."""
        skip1 = self.enc1(image)
        skip2 = self.enc2(self.pool1(skip1))
        skip3 = self.enc3(self.pool2(skip2))
        x = self.bottom(self.pool3(skip3))
        x = self.dec3(x, skip3)
        x = self.dec2(x, skip2)
        x = self.dec1(x, skip1)
        return self.head(x)


def train_network(digits: DigitImages, seed: int, steps: int = TRAINING_STEPS) -> SceneUNet:
    """Trains the network on generated scenes for ``steps`` batches, and prints the loss every 50 batches."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    model = SceneUNet()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=8e-3, total_steps=steps, pct_start=0.2)
    weights = torch.ones(CLASS_COUNT)
    weights[BACKGROUND_CLASS] = 0.4
    criterion = nn.CrossEntropyLoss(weights)
    losses: list[float] = []
    model.train()
    for step in range(steps):
        images, labels = compose_scenes(digits, rng, BATCH_SIZE)
        loss = criterion(model(torch.from_numpy(images)), torch.from_numpy(labels).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % 50 == 49:
            print(f"step {step + 1}/{steps}  loss {np.mean(losses[-50:]):.3f}", flush=True)
    model.eval()
    return model


def export_onnx(model: SceneUNet, path: Path) -> None:
    """Writes the network with torch's scoped node names (``/enc1/widen/conv/Conv``) and a dynamic batch size."""
    torch.onnx.export(
        model,
        (torch.zeros(1, 1, SCENE_SIZE, SCENE_SIZE),),
        path,
        input_names=["image"],
        output_names=["logits"],
        dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}},
        opset_version=17,
        dynamo=False,
    )
    onnx.checker.check_model(onnx.load(path), full_check=True)


def save_arrays(path: Path, **arrays: np.ndarray) -> None:
    """Writes arrays like ``numpy.savez_compressed``, but with fixed times in the archive: equal arrays give equal
    bytes."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, np.ascontiguousarray(array), allow_pickle=False)
            entry = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
            archive.writestr(entry, buffer.getvalue(), zipfile.ZIP_DEFLATED, 9)


def main() -> None:
    """Writes the network, the samples and the calibration scenes to a folder."""
    parser = argparse.ArgumentParser(prog="python -m trt_tui.demo.train", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write the three files to")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=TRAINING_STEPS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(THREAD_COUNT)
    torch.use_deterministic_algorithms(True)

    for_training, for_calibration, held_out = split_digits(options.seed)
    images, labels = compose_scenes(held_out, np.random.default_rng(options.seed + 1), SAMPLE_COUNT)
    save_arrays(options.out / "samples.npz", image=images, labels=labels)
    images, _ = compose_scenes(for_calibration, np.random.default_rng(options.seed + 2), CALIBRATION_COUNT)
    save_arrays(options.out / "calibration.npz", image=images)
    export_onnx(train_network(for_training, options.seed, options.steps), options.out / "scenes.onnx")


if __name__ == "__main__":
    main()
