"""The bundled network: a small attention U-Net that assigns each pixel of a scene to a handwritten digit or the
background.

The scenes contain digits of "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, UCI Machine
Learning Repository, https://doi.org/10.24432/C50P49, CC BY 4.0), as scikit-learn ships them. Half of the scenes have
hot pixels, up to 32 times as bright as paper. The brightest hot pixel sets the min-max range of the first layers, whose
INT8 steps are then coarser than the strokes of a dim digit. ``train.py`` creates the files again from a seed.
"""

from pathlib import Path

_DEMO_FOLDER = Path(__file__).resolve().parent


def network_path() -> Path:
    """Returns the path of the bundled ONNX file.

    The input is ``image``, float32 (batch, 1, 96, 96), and the output is ``logits``, float32 (batch, 11, 96, 96).
    """
    return _DEMO_FOLDER / "scenes.onnx"


def samples_path() -> Path:
    """Returns the path of the held-out scenes, an npz file with ``image`` and ``labels``, uint8 (N, 96, 96)."""
    return _DEMO_FOLDER / "samples.npz"


def calibration_path() -> Path:
    """Returns the path of the calibration scenes, an npz file with ``image``. No digit occurs in the samples or in
    training."""
    return _DEMO_FOLDER / "calibration.npz"


def metric_spec() -> str:
    """Returns the metric in the form of ``--metric``: per-pixel F1, macro over classes, in percent."""
    return f"{_DEMO_FOLDER / 'metric.py'}:f1"
