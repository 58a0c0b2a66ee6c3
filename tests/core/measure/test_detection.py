"""The script of the page on accuracy that computes the mAP of COCO: cases computed by hand, in each form of outputs."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import trt_tui
from tests.refusals import refused
from trt_tui.core.measure.user_metric import load_metric

pytest.importorskip("pycocotools", reason="pycocotools is not installed")

PAGE = Path(trt_tui.__file__).parent / "core" / "measure" / "README.md"
SCRIPT = re.search(r"```python\n(\"\"\"mAP by .*?)```", PAGE.read_text(), re.DOTALL)[1]

# A small object that is found, one of 100x100 of which 62 % are found, and between their scores one that is not there.
FOUND = [((10, 10, 20, 20), 0.9), ((0, 120, 120, 80), 0.8), ((60, 10, 62, 100), 0.7)]
TRUE = [(10, 10, 20, 20), (60, 10, 100, 100)]
AFTER_MISS = (51 + 50 * 2 / 3) / 101  # precision 1 up to a recall of 0.5 (51 of 101 points), then 2/3
EXPECTED = {
    "mAP": (3 * AFTER_MISS + 7 * 51 / 101) / 10,
    "mAP50": AFTER_MISS,
    "mAP75": 51 / 101,
    "small": 1.0,
    "large": 3 * 0.5 / 10,
}


def write_script(folder: Path, **constants: object) -> None:
    """Writes the script of the page, with other values of its constants."""
    script = SCRIPT
    for name, value in constants.items():
        script, count = re.subn(rf"^{name} = [^#\n]*", f"{name} = {value!r}  ", script, flags=re.MULTILINE)
        assert count == 1, name
    (folder / "coco_map.py").write_text(script)


@pytest.fixture
def metric(tmp_path):
    """Loads the metric for an image of some size in an input of 200x200, and an image without objects."""

    def load(size=(200, 200), **constants):
        width, height = size
        annotations = [
            {"id": number, "image_id": 42, "category_id": 7, "bbox": box, "area": box[2] * box[3], "iscrowd": 0}
            for number, box in enumerate(TRUE, 1)
        ]
        (tmp_path / "instances.json").write_text(
            json.dumps(
                {
                    "images": [{"id": number, "width": width, "height": height} for number in (42, 43)],
                    "annotations": annotations,
                    "categories": [{"id": 3}, {"id": 7}],
                }
            )
        )
        write_script(tmp_path, INPUT_SIZE=(200, 200), **constants)
        return load_metric(f"{tmp_path / 'coco_map.py'}:mean_ap")

    return load


def arrays(found=FOUND):
    """Centres with sizes (1, boxes, 4) and scores (1, boxes, 2); duplicates of each with lower scores."""
    boxes = np.array([[x + w / 2, y + h / 2, w, h] for (x, y, w, h), _ in found for _ in range(3)], np.float32)
    scores = np.zeros((len(boxes), 2), np.float32)
    scores[:, 1] = [score * part for _, score in found for part in (1, 0.5, 0.25)]
    return boxes[None], scores[None]


BOXES, SCORES = arrays()
CORNERS = np.concatenate([BOXES[..., :2] - BOXES[..., 2:] / 2, BOXES[..., :2] + BOXES[..., 2:] / 2], -1)
LOGITS = np.log(np.maximum(SCORES, 1e-6) / (1 - np.maximum(SCORES, 1e-6)))
DETR = np.log(np.concatenate([np.maximum(SCORES, 1e-7), 1 - SCORES.sum(-1, keepdims=True)], -1))
FORMS = {
    "apart": ({}, {"boxes": BOXES, "scores": SCORES}),
    "corners": ({"CENTRES": False, "SCORES": "logits"}, {"boxes": CORNERS, "scores": LOGITS}),
    "relative": ({"RELATIVE": True, "SCORES": "softmax"}, {"logits": DETR, "pred_boxes": BOXES / 200}),
    "yolov8": ({}, {"out": np.concatenate([BOXES, SCORES], -1).transpose(0, 2, 1), "proto": np.zeros((1, 8, 5, 5))}),
    "yolov5": ({}, {"out": np.concatenate([BOXES, SCORES.max(-1, keepdims=True), SCORES > 0], -1)}),
}


@pytest.mark.parametrize("form", FORMS)
def test_map_is_what_it_is_by_hand(metric, form):
    constants, outputs = FORMS[form]
    result = metric(**constants)(outputs, {"image_id": np.array([42])})
    assert result == pytest.approx(EXPECTED, abs=1e-6) and next(iter(result)) == "mAP"
    assert len(SCRIPT.splitlines()) <= 120


@pytest.mark.parametrize(("is_letterbox", "change"), [(True, (0.5, 0.5, 50, 0)), (False, (1.0, 0.5, 0, 0))])
def test_boxes_are_brought_back_to_the_image(metric, is_letterbox, change):
    wide, high, right, down = change  # an image of 200 x 400 in an input of 200 x 200
    boxes, scores = arrays(
        [((x * wide + right, y * high + down, w * wide, h * high), score) for (x, y, w, h), score in FOUND]
    )
    loaded = metric(size=(200, 400), LETTERBOX=is_letterbox)
    assert loaded({"b": boxes, "s": scores}, {"image_id": np.array([42])}) == pytest.approx(EXPECTED, abs=1e-6)


def test_draws_of_samples_have_the_value_that_they_have_when_matched_anew(metric):
    rng = np.random.default_rng(0)
    outputs = {
        "boxes": np.repeat(BOXES, 3, 0) + rng.normal(0, 4, (3, *BOXES.shape[1:])).astype(np.float32),
        "scores": np.repeat(SCORES, 3, 0) * rng.uniform(0.5, 1, (3, *SCORES.shape[1:])).astype(np.float32),
    }
    labels = {"image_id": np.array([42, 42, 43])}
    draws = np.array([[0, 1, 2], [0, 0, 1], [2, 2, 2], [1, 1, 2], [0, 2, 0]])
    loaded = metric()
    values = []
    for samples in draws:
        drawn = {name: array[samples] for name, array in outputs.items()}, {"image_id": labels["image_id"][samples]}
        if (samples == 2).all():
            with refused():  # an image without objects has no mAP
                loaded(*drawn)
            continue
        values.append(loaded(*drawn))
        assert values[-1] == pytest.approx(metric()(*drawn), abs=1e-12)
    assert len({value["mAP"] for value in values}) == 4


@pytest.mark.parametrize("outputs", [{"b": BOXES, "s": SCORES * 0}, {"b": BOXES * np.nan, "s": SCORES}])
def test_nothing_found_is_nothing(metric, outputs):
    assert metric()(outputs, {"image_id": np.array([42])})["mAP"] == 0.0
