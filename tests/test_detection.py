"""trt_tui.core.measure.detection: mAP of cases computed by hand, in every form that boxes and scores come in."""

import json
import shutil

import numpy as np
import pytest

from tests.refusals import refused
from trt_tui.core.data.userscript import find_annotations_path
from trt_tui.core.measure.detection import DetectionMetric, DetectionSettings, parse_detection_spec
from trt_tui.core.measure.user_metric import load_metric
from trt_tui.errors import InputError

pytest.importorskip("pycocotools", reason="pycocotools is not installed")

# A small object that is found, one of 100x100 of which 62 % are found, and between their scores one that is not there.
FOUND = [((10, 10, 20, 20), 0.9), ((0, 120, 120, 80), 0.8), ((60, 10, 62, 100), 0.7)]
TRUE = [(10, 10, 20, 20), (60, 10, 100, 100)]
AFTER_MISS = (51 + 50 * 2 / 3) / 101  # precision 1 up to a recall of 0.5 (51 of 101 points), then 2/3
EXPECTED = {"mAP": (3 * AFTER_MISS + 7 * 51 / 101) / 10, "mAP50": AFTER_MISS, "mAP75": 51 / 101, "small": 1.0,
            "large": 3 * 0.5 / 10}
IDS = (3, 7)


@pytest.fixture
def annotations(tmp_path):
    """COCO annotations of one image, numbered 42, for objects of category 7."""
    def write(boxes=TRUE, size=(200, 200), **changes):
        record = {"images": [{"id": 42, "width": size[0], "height": size[1], "file_name": "a.jpg"}],
                  "categories": [{"id": number, "name": str(number)} for number in IDS],
                  "annotations": [{"id": i, "image_id": 42, "category_id": 7, "bbox": list(box)}
                                  for i, box in enumerate(boxes)], **changes}
        path = tmp_path / "instances.json"
        path.write_text(json.dumps(record))
        return path

    return write


def arrays(found=FOUND, classes=2, label=1):
    """Centres with sizes (1, boxes, 4) and scores (1, boxes, classes); duplicates of each with lower scores."""
    boxes = np.array([[x + w / 2, y + h / 2, w, h] for (x, y, w, h), _ in found for _ in range(3)], np.float32)
    scores = np.zeros((len(boxes), classes), np.float32)
    scores[:, label] = [score * part for _, score in found for part in (1, 0.5, 0.25)]
    return boxes[None], scores[None]


def logits(scores):
    return np.log(np.maximum(scores, 1e-6) / (1 - np.maximum(scores, 1e-6)))


def corners(boxes):
    return np.concatenate([boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], -1)


def detr(scores):
    """Logits whose softmax, the last class being none, is the scores."""
    return np.log(np.concatenate([np.maximum(scores, 1e-7), 1 - scores.sum(-1, keepdims=True)], -1))


BOXES, SCORES = arrays()
FORMS = {
    "apart": ("", {"boxes": BOXES, "scores": SCORES}),
    "corners": (",boxes=xyxy", {"boxes": corners(BOXES), "scores": logits(SCORES)}),
    "relative": ("", {"pred_boxes": BOXES / 200, "logits": detr(SCORES)}),
    "yolov8": ("", {"out": np.concatenate([BOXES, SCORES], -1).transpose(0, 2, 1), "proto": np.zeros((1, 8, 5, 5))}),
    "yolov5": ("", {"out": np.concatenate([BOXES, SCORES.max(-1, keepdims=True), SCORES > 0], -1).astype(np.float32)}),
    "by category": ("", {"boxes": BOXES, "logits": detr(np.insert(np.zeros((1, 9, 7)), 7, SCORES[..., 1], -1))}),
}


@pytest.mark.parametrize("form", FORMS)
def test_map_is_what_it_is_by_hand(annotations, form):
    settings, outputs = FORMS[form]
    metric = load_metric(f"detection:map={annotations()}{settings}", (200, 200))
    result = metric(outputs, {"image_id": np.array([42])})
    assert result.parts == pytest.approx(EXPECTED, abs=1e-6) and result.value == result.parts["mAP"]
    assert metric.name == "detection:map=instances.json" and metric.needs_inner_tensors


def test_draws_of_samples_have_the_value_that_they_have_when_evaluated_anew(annotations):
    path = annotations()
    record = json.loads(path.read_text())
    record["images"] = [{**record["images"][0], "id": number} for number in (42, 43, 44)]
    record["annotations"].append({"id": 9, "image_id": 43, "category_id": 3, "bbox": [10, 10, 40, 40]})
    path.write_text(json.dumps(record))
    rng = np.random.default_rng(0)
    outputs = {"boxes": np.repeat(BOXES, 3, 0) + rng.normal(0, 4, (3, *BOXES.shape[1:])).astype(np.float32),
               "scores": np.repeat(SCORES, 3, 0) * rng.uniform(0.5, 1, (3, *SCORES.shape[1:])).astype(np.float32)}
    labels = {"image_id": np.array([42, 43, 44])}
    metric = load_metric(f"detection:map={path}", (200, 200))
    draws = np.array([[0, 1, 2], [0, 0, 1], [2, 2, 2], [1, 1, 2], [0, 2, 0]])
    values = list(metric.resample_metric(outputs, labels, draws))
    for samples, value in zip(draws, values, strict=True):
        if set(samples) == {2}:
            assert value is None, "an image without objects has no mAP"
            continue
        anew = metric({name: array[samples] for name, array in outputs.items()},
                      {"image_id": labels["image_id"][samples]})
        assert value.parts == pytest.approx(anew.parts, abs=1e-12) and value.value == value.parts["mAP"]
    assert len({value.value for value in values if value is not None}) > 2


@pytest.mark.parametrize(("fit", "change"), [("letterbox", (0.5, 0.5, 50, 0)), ("stretch", (1.0, 0.5, 0, 0))])
def test_boxes_are_brought_back_to_the_image(annotations, fit, change):
    wide, high, right, down = change  # an image of 200 x 400 in an input of 200 x 200
    moved = [((x * wide + right, y * high + down, w * wide, h * high), score) for (x, y, w, h), score in FOUND]
    boxes, scores = arrays(moved)
    metric = load_metric(f"detection:map={annotations(size=(200, 400))},fit={fit}", (200, 200))
    assert metric({"b": boxes, "s": scores}, {"image_id": np.array([42])}).parts == pytest.approx(EXPECTED, abs=1e-6)


def test_a_sample_drawn_twice_counts_twice_and_nothing_found_is_nothing(annotations):
    metric = load_metric(f"detection:map={annotations()}", (200, 200))
    twice = metric({"b": np.repeat(BOXES, 2, 0), "s": np.repeat(SCORES, 2, 0)}, {"image_id": np.array([42, 42])})
    assert twice.parts["small"] == 1.0 and 0.5 < twice.value < 1
    assert metric({"b": BOXES, "s": SCORES * 0}, {"image_id": np.array([42])}).value == 0.0
    assert metric({"b": BOXES * np.nan, "s": SCORES}, {"image_id": np.array([42])}).value == 0.0


@pytest.mark.parametrize(("outputs", "labels", "said"), [
    ({"x": np.zeros((1, 8, 3))}, {"image_id": np.array([42])}, "no output holds boxes and scores of 2 categories"),
    ({"b": BOXES, "s": SCORES}, {"image_id": np.array([41])}, "has no image 41"),
    ({"b": BOXES, "s": SCORES}, {}, "needs the array image_id")])
def test_what_cannot_be_scored_says_why(annotations, outputs, labels, said):
    with refused(title=said):
        DetectionMetric(f"detection:map={annotations()}", (200, 200))(outputs, labels)


@pytest.mark.parametrize("name", ["a,b.json", ",iou=0.5,.json", "a b=c,d", "x.json,fit=stretch", "ä;$(x)'\",{}.JSON",
                                  "line\nbreak,.json"])
def test_a_path_of_annotations_may_hold_any_character(annotations, tmp_path, name):
    path = (tmp_path / "fo,lder" / name)
    path.parent.mkdir()
    shutil.copy(annotations(), path)
    spec = f"detection:map={path}"
    for settings, iou in (("", None), (",iou=0.25", 0.25), (",fit=letterbox,iou=0.25", 0.25)):
        found, given = parse_detection_spec(spec + settings)
        assert found == find_annotations_path(spec + settings) == path
        assert iou is None or given.iou == iou
    assert load_metric(spec + ",iou=0.25", (200, 200)).name == f"detection:map={name}"
    path.unlink()
    with refused(title="fo,lder"):
        load_metric(spec + ",iou=0.25", (200, 200))


@pytest.mark.parametrize("text", ["boxes=yolo", "iou=2", "iou=", "nms=0.5", "fit"])
def test_settings_that_make_no_sense_are_refused(text):
    with pytest.raises(InputError, match="is not a valid option"):
        parse_detection_spec(f"detection:map=a.json,{text}")
    assert parse_detection_spec("detection:map=a.json,boxes=xyxy,iou=0.5")[1] == DetectionSettings("xyxy", iou=0.5)


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"images": [], "categories": [], "annotations": [{"bbox": 1}]}'])
def test_a_file_that_holds_no_annotations_is_refused(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(InputError, match="holds no COCO annotations"):
        load_metric(f"detection:map={tmp_path / 'a.json'}", (8, 8))
    with pytest.raises(InputError, match="no image input"):
        load_metric(f"detection:map={tmp_path / 'a.json'}")
