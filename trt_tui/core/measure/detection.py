"""The object detection metric ``--metric detection:map=FILE.json``: mAP by the definition of COCO.

Boxes and scores are decoded from the outputs, and overlapping boxes are dropped. mAP is computed by pycocotools (Lin et
al., Microsoft COCO, 2014). It is the mean of the average precision over categories and over IoU 0.50 to 0.95. The same
is computed for small, medium and large objects: areas below 32², between, and above 96², in pixels of the image.
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

from trt_tui.core.data.userscript import DETECTION_PREFIX, split_annotations_spec
from trt_tui.errors import InputError
from trt_tui.files.read_budget import limit_file_reading
from trt_tui.files.reading import read_bytes

if TYPE_CHECKING:
    from pycocotools.cocoeval import COCOeval

IMAGE_ID = "image_id"
"""The array of the data with the id of the annotated image that each sample is."""

MAX_BOXES_PER_IMAGE = 300
"""The maximum number of detections of an image after overlapping boxes were dropped."""
_MAX_CANDIDATES = 3000
_METRIC_PARTS = ("mAP", "mAP50", "mAP75", "small", "medium", "large")


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


class _CocoFile(msgspec.Struct):
    images: list[_Image]
    categories: list[_Category]
    annotations: list[_Annotation]


@dataclass(frozen=True)
class DetectionSettings:
    """The settings by which boxes and scores are read from the outputs of a detector.

    Attributes:
        boxes: "cxcywh" (centre and size, as in YOLO and DETR) or "xyxy" (two corners).
        fit: The way in which images were fitted to the input size: "letterbox" (one scale, equal padding on both sides)
            or "stretch".
        iou: The IoU above which the box with the lower score is dropped, of two boxes of one class; 1 drops no box.
        score: The score below which a box is dropped.
    """

    boxes: str = "cxcywh"
    fit: str = "letterbox"
    iou: float = 0.7
    score: float = 0.001


_SETTING_VALUES = {"boxes": ("cxcywh", "xyxy"), "fit": ("letterbox", "stretch")}


def parse_detection_spec(metric_spec: str) -> tuple[Path, DetectionSettings]:
    """Parses the detection option ``detection:map=FILE.json[,boxes=xyxy][,fit=stretch][,iou=0.7][,score=0.001]``.

    Raises:
        InputError: a setting is not one of `DetectionSettings`, or its value is invalid.
    """
    path, setting_texts = split_annotations_spec(metric_spec)
    settings: dict[str, Any] = {}
    for text in setting_texts:
        name, _, value = text.partition("=")
        if value in _SETTING_VALUES.get(name, ()):
            settings[name] = value
            continue
        try:
            number = float(value) if name in ("iou", "score") else -1.0
        except ValueError:
            number = -1.0
        if not 0 <= number <= 1:
            raise InputError(f"--metric {metric_spec}: {text!r} is not a valid option", "there are boxes=cxcywh|xyxy, "
                             "fit=letterbox|stretch, iou=0..1 and score=0..1", "Correct it, or leave it out.")
        settings[name] = number
    return path, DetectionSettings(**settings)


@dataclass
class DetectionMetric:
    """The object detection metric, called with outputs and labels like a metric function of the user.

    Args:
        spec: The metric option, see `parse_detection_spec`.
        input_size: Height and width of the network's image input; None if it has no image input.

    Raises:
        InputError: the file cannot be read or has no COCO annotations, or pycocotools is not installed.
    """

    spec: str
    input_size: tuple[int, int] | None
    path: Path = field(init=False)
    _has_logits: bool | None = field(default=None, init=False)
    _has_relative_boxes: bool | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.path, self.settings = parse_detection_spec(self.spec)
        if self.input_size is None:
            raise InputError(f"--metric {self.spec}: the network has no image input",
                             "boxes are in the pixels of an input of four axes", "Write your own metric.")
        try:
            import pycocotools  # noqa: F401
        except ImportError:
            raise InputError(f"--metric {DETECTION_PREFIX}... needs pycocotools", "it is not installed",
                             "pip install 'trt-tui[detection]'") from None
        try:
            with limit_file_reading(self.path):
                self.annotation_file = msgspec.json.decode(read_bytes(self.path), type=_CocoFile)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InputError(f"{self.path} holds no COCO annotations", str(error),
                             "It is a JSON object with images, categories and annotations.") from None
        self._images_by_id = {image.id: image for image in self.annotation_file.images}
        self._annotations_by_image: dict[int, list[_Annotation]] = {}
        for record in self.annotation_file.annotations:
            self._annotations_by_image.setdefault(record.image_id, []).append(record)
        self._category_ids = sorted({record.id for record in self.annotation_file.categories})

    def __str__(self) -> str:
        return f"{DETECTION_PREFIX}{self.path.name}"

    def __call__(self, outputs: Mapping[str, np.ndarray], labels: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Returns mAP and its parts, between 0 and 1. A part is absent if no object belongs to it.

        Args:
            outputs: Output arrays by name, first axis samples. Boxes and scores may be separate or joined, see
                `decode_boxes_and_scores`.
            labels: Label arrays by name. The array `IMAGE_ID` has the annotated image of each sample.

        Raises:
            InputError: an image has no annotations in the file, or the form of the outputs is unknown.
        """
        evaluation = self._evaluate_detections(outputs, labels)
        return dict.fromkeys(_METRIC_PARTS[:3], 0.0) if evaluation is None else _summarize_evaluation(evaluation)

    def resample_metric(self, outputs: Mapping[str, np.ndarray], labels: Mapping[str, np.ndarray],
                        resamples: Iterable[np.ndarray]) -> Iterator[dict[str, float]]:
        """Yields mAP and its parts on each bootstrap draw of the samples. Boxes are matched with objects only once for
        each image.

        Args:
            resamples: For each draw, as many sample indices as there are samples, with repetitions.
        """
        evaluation = self._evaluate_detections(outputs, labels)
        if evaluation is None:
            yield from (dict.fromkeys(_METRIC_PARTS[:3], 0.0) for _ in resamples)
            return
        images = len(evaluation.params.imgIds)
        matches = [evaluation.evalImgs[start:start + images] for start in range(0, len(evaluation.evalImgs), images)]
        for samples in resamples:
            evaluation.evalImgs = [of_images[index] for of_images in matches for index in samples]
            yield _summarize_evaluation(evaluation)

    def _evaluate_detections(self, outputs: Mapping[str, np.ndarray], labels: Mapping[str,
                                                                                      np.ndarray]) -> COCOeval | None:
        """Returns the COCO evaluation with the matches of each image; None if no box was detected."""
        if IMAGE_ID not in labels:
            raise InputError(f"--metric {self} needs the array {IMAGE_ID} in the data",
                             "it maps each sample to an image of the annotations", "Add it to the .npz.")
        boxes, scores, ids = self.decode_boxes_and_scores(outputs)
        detections: list[list[float]] = []
        images = [self._find_image(int(number)) for number in labels[IMAGE_ID].reshape(-1)]
        for index, image in enumerate(images):
            selected_boxes, selected_scores, class_indices = self.suppress_overlapping_boxes(
                boxes[index], scores[index])
            selected_boxes = self._convert_to_image_boxes(selected_boxes, image)
            detections += [[index + 1, *box, score, ids[number]]
                           for box, score, number in zip(selected_boxes, selected_scores, class_indices, strict=True)]
        return self._match_detections_with_objects(images, detections)

    def _find_image(self, image_id: int) -> _Image:
        if image_id not in self._images_by_id:
            raise InputError(f"{self.path.name} has no image {image_id}", f"{IMAGE_ID} of the data names it",
                             "Give the annotations of these images.")
        return self._images_by_id[image_id]

    # -- boxes and scores -----------------------------------------------------------------------------------------

    def decode_boxes_and_scores(self, outputs: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, list[int]]:
        """Returns the boxes and class scores in the outputs of a detector, with the category of each class.

        Boxes are corners in input pixels, ``(samples, boxes, 4)``. Scores are between 0 and 1, ``(samples, boxes,
        classes)``. Two forms of outputs are known. Boxes and scores may be separate outputs (as the inputs of
        EfficientNMS_TRT, and in DETR). One output may join both, with an objectness behind the boxes (YOLOv5) or
        without (YOLOv8), along either axis. The first decoded values, which are those of the FP32 network, decide two
        things: whether scores are logits, and whether boxes are relative to the input size.

        Raises:
            InputError: the outputs have neither form.
        """
        arrays = {
            name: array.reshape(array.shape[0], array.shape[1], -1)
            if array.ndim == 4 and 1 in array.shape[2:] else array
            for name, array in outputs.items()
            if array.dtype.kind == "f"
        }
        arrays = {name: array.astype(np.float64) for name, array in arrays.items() if array.ndim == 3}
        count, top = len(self._category_ids), max(self._category_ids, default=0)
        pairs = [(first, second) for first, boxes in arrays.items() for second, scores in arrays.items()
                 if first != second and boxes.shape[2] == 4 and boxes.shape[1] == scores.shape[1]
                 and (scores.shape[2] in (count, count + 1) or scores.shape[2] == top + 2)]
        pairs = [pair for pair in pairs if "box" in pair[0].lower()] or pairs
        if len(pairs) == 1:
            boxes, scores = (arrays[name] for name in pairs[0])
            ids = self._category_ids if scores.shape[2] <= count + 1 else list(range(top + 1))
            scores = self._compute_probabilities(scores, has_no_object_class=scores.shape[2] > count)
            return self._convert_to_corners(boxes), scores[..., :len(ids)], ids
        joined = [(name, size) for size in (4 + count, 5 + count) for name, array in arrays.items()
                  if size in array.shape[1:]]
        if pairs or len(joined) != 1:
            shapes = ", ".join(f"{name} {'x'.join(map(str, array.shape))}" for name, array in outputs.items())
            several = f"several outputs could hold boxes and scores of {count} categories"
            none = f"no output holds boxes and scores of {count} categories"
            raise InputError(f"--metric {self}: {several if pairs or joined else none}", shapes,
                             "Judge the tensors before NMS with --judge, or write your own metric.")
        (name, size), = joined
        array = arrays[name] if arrays[name].shape[2] == size else arrays[name].transpose(0, 2, 1)
        objectness = size - 4 - count
        scores = self._compute_probabilities(array[..., 4 + objectness:], has_no_object_class=False)
        return self._convert_to_corners(
            array[..., :4]), scores * array[..., 4:5] if objectness else scores, self._category_ids

    def _compute_probabilities(self, scores: np.ndarray, *, has_no_object_class: bool) -> np.ndarray:
        """Returns class scores between 0 and 1, from logits if the detector yields logits.

        Args:
            has_no_object_class: True if the last class means "no object", as in DETR. Logits then go through a softmax,
                and through a sigmoid if not.
        """
        if self._has_logits is None:
            self._has_logits = bool((scores < 0).any() or (scores > 1.001).any())
        if not self._has_logits:
            return scores
        with np.errstate(over="ignore"):
            if has_no_object_class:
                powers = np.exp(scores - scores.max(-1, keepdims=True))
                return np.asarray(powers / powers.sum(-1, keepdims=True))
            return np.asarray(1 / (1 + np.exp(-scores)))

    def _convert_to_corners(self, boxes: np.ndarray) -> np.ndarray:
        assert self.input_size is not None
        height, width = self.input_size
        if self._has_relative_boxes is None:
            self._has_relative_boxes = bool(np.abs(boxes).max(initial=0) <= 2)
        if self._has_relative_boxes:
            boxes = boxes * (width, height, width, height)
        if self.settings.boxes == "xyxy":
            return boxes
        half = boxes[..., 2:] / 2
        return np.concatenate([boxes[..., :2] - half, boxes[..., :2] + half], -1)

    def suppress_overlapping_boxes(self, boxes: np.ndarray,
                                   scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns boxes, scores and class indices of one image after non-maximum suppression, greedy by score within
        each class."""
        scores = np.where(np.isfinite(scores) & np.isfinite(boxes).all(-1, keepdims=True), scores, -1)
        places, classes = np.nonzero(scores >= self.settings.score)
        values = scores[places, classes]
        order = np.argsort(-values, kind="stable")[:_MAX_CANDIDATES]
        boxes, values, classes = boxes[places[order]], values[order], classes[order]
        areas = np.prod(np.maximum(boxes[:, 2:] - boxes[:, :2], 0), 1)
        is_remaining = np.ones(len(values), bool)
        chosen: list[int] = []
        for index in range(len(values)):
            if not is_remaining[index]:
                continue
            chosen.append(index)
            if len(chosen) == MAX_BOXES_PER_IMAGE:
                break
            sides = np.minimum(boxes[index, 2:], boxes[:, 2:]) - np.maximum(boxes[index, :2], boxes[:, :2])
            shared = np.prod(np.maximum(sides, 0), 1)
            union = np.maximum(areas[index] + areas - shared, 1e-12)
            is_remaining &= (classes != classes[index]) | (shared / union <= self.settings.iou)
        return boxes[chosen], values[chosen], classes[chosen]

    def _convert_to_image_boxes(self, boxes: np.ndarray, image: _Image) -> np.ndarray:
        """Returns boxes as x, y, width and height in image pixels, from corners in input pixels."""
        assert self.input_size is not None
        height, width = self.input_size
        scale = np.array([width / image.width, height / image.height])
        if self.settings.fit == "letterbox":
            scale[:] = scale.min()
        room = np.array([width, height]) - scale * (image.width, image.height)
        corners = (boxes.reshape(-1, 2, 2) - room / 2) / scale
        corners = np.clip(corners, 0, (image.width, image.height))
        return np.concatenate([corners[:, 0], corners[:, 1] - corners[:, 0]], 1)

    # -- COCO's definition ------------------------------------------------------------------------------------------

    def _match_detections_with_objects(self, images: list[_Image], detections: list[list[float]]) -> COCOeval | None:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval

        truth = [{
            "id": 0, "image_id": index, "category_id": annotation.category_id, "bbox": list(annotation.bbox),
            "area": annotation.area if annotation.area is not None else annotation.bbox[2] * annotation.bbox[3],
            "iscrowd": annotation.iscrowd
        } for index, image in enumerate(images, 1) for annotation in self._annotations_by_image.get(image.id, ())]
        for number, annotation in enumerate(truth, 1):
            annotation["id"] = number
        if not truth:
            raise InputError(f"--metric {self}: the images have no objects", "", "Give images with annotations.")
        with contextlib.redirect_stdout(io.StringIO()):
            ground_truth = COCO()
            ground_truth.dataset = {
                "images": [{"id": index} for index in range(1,
                                                            len(images) + 1)], "annotations": truth,
                "categories": [{"id": number} for number in self._category_ids]
            }
            ground_truth.createIndex()
            if not detections:
                return None
            evaluation = COCOeval(ground_truth, ground_truth.loadRes(np.array(detections, np.float64)), "bbox")
            evaluation.evaluate()
        return evaluation


def _summarize_evaluation(evaluation: COCOeval) -> dict[str, float]:
    """Returns mAP and its parts from the matches of a COCO evaluation. A part is absent if no object belongs to it."""
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation.accumulate()
        evaluation.summarize()
    return {name: float(value) for name, value in zip(_METRIC_PARTS, evaluation.stats, strict=False) if value >= 0}
