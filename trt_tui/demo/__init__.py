"""The bundled network: a small attention U-Net that says which handwritten digit each pixel of a scene belongs to.

Its scenes hold digits of "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, UCI Machine
Learning Repository, https://doi.org/10.24432/C50P49, CC BY 4.0), as scikit-learn ships them. Half of the
scenes have hot pixels, up to 32 times as bright as paper; the largest of them sets the min-max range of the first
layers, whose INT8 steps are then coarser than the strokes of a dim digit. ``train.py`` makes the files again from a
seed.
"""

from pathlib import Path

_DEMO_FOLDER = Path(__file__).resolve().parent


def network_path() -> Path:
    """The ONNX file: input ``image``, float32 (batch, 1, 96, 96); output ``logits``, float32 (batch, 11, 96, 96)."""
    return _DEMO_FOLDER / "scenes.onnx"


def samples_path() -> Path:
    """Held-out scenes, npz: ``image`` and ``labels``, uint8 (N, 96, 96)."""
    return _DEMO_FOLDER / "samples.npz"


def calibration_path() -> Path:
    """Scenes to calibrate on, npz: ``image``. They share no digit with the samples or with training."""
    return _DEMO_FOLDER / "calibration.npz"


def metric_spec() -> str:
    """The metric as ``--metric`` takes it: per-pixel F1, macro over classes, in percent."""
    return f"{_DEMO_FOLDER / 'metric.py'}:f1"
