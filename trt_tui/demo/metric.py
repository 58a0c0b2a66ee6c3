"""The metric of the bundled network: per-pixel F1, as a function for ``--metric FILE.py:FUNCTION``."""

from collections.abc import Mapping

import numpy as np

CLASS_NAMES = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "background")


def f1(outputs: Mapping[str, np.ndarray], labels: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Computes the F1 of the pixels over all samples together, in percent.

    Args:
        outputs: ``logits``, float (N, 11, H, W). The class of a pixel is the class with the highest logit.
        labels: ``labels``, integer (N, H, W), the true class of each pixel.

    Returns:
        ``f1/<class>`` for each class in the labels or outputs, 2 TP / (2 TP + FP + FN), and first their mean as ``f1``.
    """
    truth = np.asarray(labels["labels"]).astype(np.int64)
    predicted = _find_highest(np.asarray(outputs["logits"]))
    count = len(CLASS_NAMES)
    confusion = np.bincount((truth * count + predicted).ravel(), minlength=count * count).reshape(count, count)
    hits = confusion.diagonal()
    class_pixels = confusion.sum(axis=0) + confusion.sum(axis=1)
    scores = {
        f"f1/{name}": 200.0 * float(hit) / float(total)
        for name, hit, total in zip(CLASS_NAMES, hits, class_pixels, strict=True)
        if total
    }
    return {"f1": sum(scores.values()) / len(scores), **scores}


def _find_highest(logits: np.ndarray) -> np.ndarray:
    """Returns the first class with the highest logit, as `numpy.argmax` does, which is several times slower here."""
    highest = logits.max(axis=1, keepdims=True)
    classes: np.ndarray
    if np.isnan(highest).any():
        classes = logits.argmax(axis=1)
    else:
        count = logits.shape[1]
        places_from_end = np.arange(count, 0, -1, dtype=np.uint8)[:, None, None]
        classes = count - ((logits == highest) * places_from_end).max(axis=1).astype(np.int64)
    return classes
