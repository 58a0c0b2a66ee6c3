"""``--metric detection:map=FILE.json``: boxes and scores decoded, overlapping ones dropped, mAP by COCO's definition.

mAP is pycocotools' (Lin et al., Microsoft COCO, 2014): the mean over categories and over IoU 0.50 to 0.95 of the
average precision, and the same for small, medium and large objects (areas below 32², 96² and above, in pixels of the
image).
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from trt_tui.core.data.userscript import DETECTION, split_annotations
from trt_tui.errors import InputError
from trt_tui.files.budget import file_budget
from trt_tui.files.reading import read_bytes

if TYPE_CHECKING:
    from pycocotools.cocoeval import COCOeval

IMAGE_ID = "image_id"
"""The array of the data that says which image of the annotations a sample is."""

MOST_BOXES = 300
"""Detections of an image that are kept after overlapping ones were dropped."""
_MOST_CANDIDATES = 3000
_PARTS = ("mAP", "mAP50", "mAP75", "small", "medium", "large")


class _Image(msgspec.Struct):
    id: int
    width: float
    height: float


class _Category(msgspec.Struct):
    id: int


class _Annotation(msgspec.Struct):
    image_id: int
    category_id: int
    bbox: tuple[float, float, float, float]
    area: float | None = None
    iscrowd: int = 0


class _Coco(msgspec.Struct):
    images: list[_Image]
    categories: list[_Category]
    annotations: list[_Annotation]


@dataclass(frozen=True)
class Settings:
    """How boxes are read.

    Attributes:
        boxes: "cxcywh" (centre and size, as YOLO and DETR have it) or "xyxy" (two corners).
        fit: How images were brought to the input's size: "letterbox" (one scale, the rest padded alike on both sides)
            or "stretch".
        iou: Of two boxes of a class that overlap by more, the one with the lower score is dropped; 1 drops none.
        score: Boxes with a lower one are dropped.
    """

    boxes: str = "cxcywh"
    fit: str = "letterbox"
    iou: float = 0.7
    score: float = 0.001


_CHOICES = {"boxes": ("cxcywh", "xyxy"), "fit": ("letterbox", "stretch")}


def parse_spec(spec: str) -> tuple[Path, Settings]:
    """Reads ``detection:map=FILE.json[,boxes=xyxy][,fit=stretch][,iou=0.7][,score=0.001]``.

    Raises:
        InputError: a setting is none of `Settings`, or its value makes no sense.
    """
    path, rest = split_annotations(spec)
    given: dict[str, Any] = {}
    for text in rest:
        name, _, value = text.partition("=")
        if value in _CHOICES.get(name, ()):
            given[name] = value
            continue
        try:
            number = float(value) if name in ("iou", "score") else -1.0
        except ValueError:
            number = -1.0
        if not 0 <= number <= 1:
            raise InputError(f"--metric {spec}: {text!r} makes no sense", "there are boxes=cxcywh|xyxy, "
                             "fit=letterbox|stretch, iou=0..1 and score=0..1", "Correct it, or leave it out.")
        given[name] = number
    return path, Settings(**given)


@dataclass
class Detection:
    """The metric: called with outputs and labels as a user's function is.

    Args:
        spec: See `parse_spec`.
        size: Height and width of the network's image input; None where it has none.

    Raises:
        InputError: the file cannot be read or holds no COCO annotations, or pycocotools is not installed.
    """

    spec: str
    size: tuple[int, int] | None
    path: Path = field(init=False)
    _logits: bool | None = field(default=None, init=False)
    _relative: bool | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.path, self.settings = parse_spec(self.spec)
        if self.size is None:
            raise InputError(f"--metric {self.spec}: the network has no image input",
                             "boxes are in the pixels of an input of four axes", "Give a metric of your own.")
        try:
            import pycocotools  # noqa: F401
        except ImportError:
            raise InputError(f"--metric {DETECTION}... needs pycocotools", "it is not installed",
                             "pip install 'trt-tui[detection]'") from None
        try:
            with file_budget(self.path):
                self.coco = msgspec.json.decode(read_bytes(self.path), type=_Coco)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InputError(f"{self.path} holds no COCO annotations", str(error),
                             "It is a JSON object with images, categories and annotations.") from None
        self._images = {image.id: image for image in self.coco.images}
        self._annotations: dict[int, list[_Annotation]] = {}
        for one in self.coco.annotations:
            self._annotations.setdefault(one.image_id, []).append(one)
        self._ids = sorted({one.id for one in self.coco.categories})

    def __str__(self) -> str:
        return f"{DETECTION}{self.path.name}"

    def __call__(self, outputs: Mapping[str, np.ndarray], labels: Mapping[str, np.ndarray]) -> dict[str, float]:
        """mAP and its parts, between 0 and 1; a part that no object falls into is absent.

        Args:
            outputs: By name, first axis samples: boxes and scores apart or joined, see `decode`.
            labels: `IMAGE_ID` says which image each sample is.

        Raises:
            InputError: an image is not among the annotations, or the outputs are of no known form.
        """
        evaluation = self._evaluation(outputs, labels)
        return dict.fromkeys(_PARTS[:3], 0.0) if evaluation is None else _summary(evaluation)

    def on_draws(self, outputs: Mapping[str, np.ndarray], labels: Mapping[str, np.ndarray],
                 draws: Iterable[np.ndarray]) -> Iterator[dict[str, float]]:
        """Yields the metric on each draw of the samples. Boxes are matched with objects only once, image by image.

        Args:
            draws: Indices of samples, as many as there are samples, with repetitions.
        """
        evaluation = self._evaluation(outputs, labels)
        if evaluation is None:
            yield from (dict.fromkeys(_PARTS[:3], 0.0) for _ in draws)
            return
        images = len(evaluation.params.imgIds)
        matches = [evaluation.evalImgs[start:start + images] for start in range(0, len(evaluation.evalImgs), images)]
        for samples in draws:
            evaluation.evalImgs = [of_images[index] for of_images in matches for index in samples]
            yield _summary(evaluation)

    def _evaluation(self, outputs: Mapping[str, np.ndarray], labels: Mapping[str, np.ndarray]) -> COCOeval | None:
        """Returns COCO's evaluation with the matches of each image, or None if no box was found."""
        if IMAGE_ID not in labels:
            raise InputError(f"--metric {self} needs the array {IMAGE_ID} in the data",
                             "it says which image of the annotations a sample is", "Add it to the .npz.")
        boxes, scores, ids = self.decode(outputs)
        found: list[list[float]] = []
        images = [self._image(int(number)) for number in labels[IMAGE_ID].reshape(-1)]
        for index, image in enumerate(images):
            kept, value, classes = self.select(boxes[index], scores[index])
            kept = self._on_image(kept, image)
            found += [[index + 1, *box, score, ids[number]]
                      for box, score, number in zip(kept, value, classes, strict=True)]
        return self._matched(images, found)

    def _image(self, number: int) -> _Image:
        if number not in self._images:
            raise InputError(f"{self.path.name} has no image {number}", f"{IMAGE_ID} of the data names it",
                             "Give the annotations of these images.")
        return self._images[number]

    # -- boxes and scores -----------------------------------------------------------------------------------------

    def decode(self, outputs: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, list[int]]:
        """Boxes ``(samples, boxes, 4)`` as corners in input pixels, scores ``(samples, boxes, classes)`` from 0 to 1,
        and the category of each class.

        Known are boxes beside scores (as EfficientNMS_TRT takes them, and DETR), and both joined, with an objectness
        behind the boxes (YOLOv5) or without (YOLOv8), boxes first along either axis. Whether scores are logits and
        boxes are relative to the input's size is decided by the first values seen, which are the FP32 network's.

        Raises:
            InputError: the outputs are of no such form.
        """
        arrays = {name: one.reshape(one.shape[0], one.shape[1], -1) if one.ndim == 4 and 1 in one.shape[2:] else one
                  for name, one in outputs.items() if one.dtype.kind == "f"}
        arrays = {name: one.astype(np.float64) for name, one in arrays.items() if one.ndim == 3}
        count, top = len(self._ids), max(self._ids, default=0)
        pairs = [(first, second) for first, boxes in arrays.items() for second, scores in arrays.items()
                 if first != second and boxes.shape[2] == 4 and boxes.shape[1] == scores.shape[1]
                 and (scores.shape[2] in (count, count + 1) or scores.shape[2] == top + 2)]
        pairs = [pair for pair in pairs if "box" in pair[0].lower()] or pairs
        if len(pairs) == 1:
            boxes, scores = (arrays[name] for name in pairs[0])
            ids = self._ids if scores.shape[2] <= count + 1 else list(range(top + 1))
            scores = self._probabilities(scores, none=scores.shape[2] > count)
            return self._corners(boxes), scores[..., :len(ids)], ids
        joined = [(name, size) for size in (4 + count, 5 + count) for name, one in arrays.items()
                  if size in one.shape[1:]]
        if pairs or len(joined) != 1:
            shapes = ", ".join(f"{name} {'x'.join(map(str, one.shape))}" for name, one in outputs.items())
            several = f"several outputs could hold boxes and scores of {count} categories"
            none = f"no output holds boxes and scores of {count} categories"
            raise InputError(f"--metric {self}: {several if pairs or joined else none}", shapes,
                             "Judge the tensors before NMS with --judge, or give a metric of your own.")
        (name, size), = joined
        one = arrays[name] if arrays[name].shape[2] == size else arrays[name].transpose(0, 2, 1)
        objectness = size - 4 - count
        scores = self._probabilities(one[..., 4 + objectness:], none=False)
        return self._corners(one[..., :4]), scores * one[..., 4:5] if objectness else scores, self._ids

    def _probabilities(self, scores: np.ndarray, *, none: bool) -> np.ndarray:
        """Scores from 0 to 1; ``none``: the last class stands for nothing there, as DETR's."""
        if self._logits is None:
            self._logits = bool((scores < 0).any() or (scores > 1.001).any())
        if not self._logits:
            return scores
        with np.errstate(over="ignore"):
            if none:
                powers = np.exp(scores - scores.max(-1, keepdims=True))
                return np.asarray(powers / powers.sum(-1, keepdims=True))
            return np.asarray(1 / (1 + np.exp(-scores)))

    def _corners(self, boxes: np.ndarray) -> np.ndarray:
        assert self.size is not None
        height, width = self.size
        if self._relative is None:
            self._relative = bool(np.abs(boxes).max(initial=0) <= 2)
        if self._relative:
            boxes = boxes * (width, height, width, height)
        if self.settings.boxes == "xyxy":
            return boxes
        half = boxes[..., 2:] / 2
        return np.concatenate([boxes[..., :2] - half, boxes[..., :2] + half], -1)

    def select(self, boxes: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The boxes of one image that stay, with score and class: greedy by score, class by class."""
        scores = np.where(np.isfinite(scores) & np.isfinite(boxes).all(-1, keepdims=True), scores, -1)
        places, classes = np.nonzero(scores >= self.settings.score)
        values = scores[places, classes]
        order = np.argsort(-values, kind="stable")[:_MOST_CANDIDATES]
        boxes, values, classes = boxes[places[order]], values[order], classes[order]
        areas = np.prod(np.maximum(boxes[:, 2:] - boxes[:, :2], 0), 1)
        left = np.ones(len(values), bool)
        chosen: list[int] = []
        for index in range(len(values)):
            if not left[index]:
                continue
            chosen.append(index)
            if len(chosen) == MOST_BOXES:
                break
            sides = np.minimum(boxes[index, 2:], boxes[:, 2:]) - np.maximum(boxes[index, :2], boxes[:, :2])
            shared = np.prod(np.maximum(sides, 0), 1)
            union = np.maximum(areas[index] + areas - shared, 1e-12)
            left &= (classes != classes[index]) | (shared / union <= self.settings.iou)
        return boxes[chosen], values[chosen], classes[chosen]

    def _on_image(self, boxes: np.ndarray, image: _Image) -> np.ndarray:
        """Corners in input pixels as x, y, width and height in those of the image."""
        assert self.size is not None
        height, width = self.size
        scale = np.array([width / image.width, height / image.height])
        if self.settings.fit == "letterbox":
            scale[:] = scale.min()
        room = np.array([width, height]) - scale * (image.width, image.height)
        corners = (boxes.reshape(-1, 2, 2) - room / 2) / scale
        corners = np.clip(corners, 0, (image.width, image.height))
        return np.concatenate([corners[:, 0], corners[:, 1] - corners[:, 0]], 1)

    # -- COCO's definition ------------------------------------------------------------------------------------------

    def _matched(self, images: list[_Image], found: list[list[float]]) -> COCOeval | None:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval

        truth = [{"id": 0, "image_id": index, "category_id": one.category_id, "bbox": list(one.bbox),
                  "area": one.area if one.area is not None else one.bbox[2] * one.bbox[3], "iscrowd": one.iscrowd}
                 for index, image in enumerate(images, 1) for one in self._annotations.get(image.id, ())]
        for number, one in enumerate(truth, 1):
            one["id"] = number
        if not truth:
            raise InputError(f"--metric {self}: the images have no objects", "", "Give images with annotations.")
        with contextlib.redirect_stdout(io.StringIO()):
            known = COCO()
            known.dataset = {"images": [{"id": index} for index in range(1, len(images) + 1)], "annotations": truth,
                             "categories": [{"id": number} for number in self._ids]}
            known.createIndex()
            if not found:
                return None
            evaluation = COCOeval(known, known.loadRes(np.array(found, np.float64)), "bbox")
            evaluation.evaluate()
        return evaluation


def _summary(evaluation: COCOeval) -> dict[str, float]:
    """Returns mAP and its parts of the matches of an evaluation; a part that no object falls into is absent."""
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation.accumulate()
        evaluation.summarize()
    return {name: float(value) for name, value in zip(_PARTS, evaluation.stats, strict=False) if value >= 0}
