"""trt_tui.core.guards, trt_tui.jobs.opening, `preflight` and what other commands say."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import onnx
import pytest

from tests import local, networks
from tests.measuring import verdict
from tests.schemas import mismatches
from tests.texts import lacking
from trt_tui.backends.registry import get_simulation_backend
from trt_tui.core.calibration.cache import (
    CalibrationCacheHeader,
    read_calibration_cache,
    read_calibration_cache_header,
    write_calibration_cache,
)
from trt_tui.core.calibration.calibration import calibrate
from trt_tui.core.data.samples import load_samples
from trt_tui.core.guards.guards import (
    CACHE_SOURCE,
    CONFIG_SOURCE,
    GUARDS,
    MEASURED_SOURCE,
    CalibrationConvergencePoint,
    ClippedShare,
    FloatWorkShare,
    GuardFacts,
    LabelClassFacts,
    RangeFacts,
    UnfitLabels,
    find_scaled_inputs,
    measure_float_work_share,
    run_guards,
)
from trt_tui.core.guards.measurements import (
    count_samples_by_label_class,
    count_samples_if_all_equal,
    count_samples_with_byte_images,
    find_mismatched_ranges,
    find_unfit_labels,
    measure_batch_dependence,
    measure_clipped_shares,
    measure_input_stats,
)
from trt_tui.core.measure.judged_outputs import select_judged_outputs
from trt_tui.core.measure.results import Accuracy, ErrorMetrics, OutputErrors
from trt_tui.core.measure.simulation import Analysis
from trt_tui.core.measure.target import parse_target
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.core.runner import TensorInfo
from trt_tui.jobs.opening import measure_facts_for_data_guards
from trt_tui.options import Options
from trt_tui.workspace import Workspace

RNG = np.random.default_rng(0)


pytestmark = pytest.mark.shares_cache


FORTY = frozenset(map(str, range(40)))


def ranges(source=MEASURED_SOURCE, **more):
    return GuardFacts(range_facts=RangeFacts(source, "net.cache", **more))


def images(samples, *, mean=(0.5, 0.45, 0.4), times=1.0, order=(0, 1, 2), seed=0):
    """Figures of RGB images between 0 and 1: brightness differs by image, the channels by their means."""
    rng = np.random.default_rng(seed)
    light = rng.normal(0, 0.1, (samples, 1, 1, 1)) + np.array(mean)[None, :, None, None]
    array = np.clip(light + rng.normal(0, 0.2, (samples, 3, 8, 8)), 0, 1)[:, list(order)] * times
    return stats(array.astype(np.float32))


def stats(array):
    class Data:
        def __len__(self):
            return 1

        def count_samples_of_feed(self, index):
            return len(array)

        def read_feed(self, index):
            return {"x": array}

    return measure_input_stats(Data())["x"]


def inputs(calibrating, judged):
    return replace(ranges(), input_stats={"x": (calibrating, judged)})


def classes(calibrating, of=10, samples=64):
    return replace(
        ranges(),
        class_facts=(
            LabelClassFacts("label", dict.fromkeys(range(of), 10), 10 * of, dict.fromkeys(calibrating, 2), samples),
        ),
    )


def against(fp32, target="sqnr>=20"):
    """Facts with another reference, against which FP32 has this SQNR."""
    return GuardFacts(fp32_accuracy=verdict(fp32), reference_name="other.onnx", targets=(parse_target(target),))


def half(run, fp16, target="sqnr>=20", fp32=None):
    return GuardFacts(
        run_name="INT8",
        accuracy=verdict(run),
        fp16_accuracy=verdict(fp16),
        float_type="fp16",
        fp32_accuracy=verdict(fp32) if fp32 is not None else None,
        targets=(parse_target(target),),
        is_quantized=True,
        float_work=FloatWorkShare(0.0, False, 0, 9),
    )


def convergence(*values_db):
    return tuple(CalibrationConvergencePoint(8 * 2**index, value_db) for index, value_db in enumerate(values_db))


def half_by_metric(run, fp16):
    facts = half(15.0, 15.6, "f1>=0.9")
    return replace(
        facts,
        accuracy=replace(facts.accuracy, metric={"f1": run}),
        fp16_accuracy=replace(facts.fp16_accuracy, metric={"f1": fp16}),
    )


OFF = {f"t{index}": (8.0, 2.0) for index in range(5)}
ENTROPY = CalibrationCacheHeader("8.6.1", "EntropyCalibration2")
FEW, MANY = RNG.normal(size=(6, 3, 4, 4)), RNG.normal(size=(48, 3, 4, 4))


def converging(*errors) -> GuardFacts:
    """The facts of ranges that 8, 16 and 32 samples calibrate, with the error of each."""
    return GuardFacts(convergence=tuple(map(CalibrationConvergencePoint, (8, 16, 32), errors)))


CASES = [  # guard, what it warns of, what it does not
    ("unlike-inputs", inputs(images(48, times=255), images(64, seed=1)), inputs(images(48), images(64, seed=1))),
    ("unlike-inputs", inputs(images(48, order=(2, 1, 0)), images(64, seed=1)), inputs(images(3), images(5, seed=1))),
    ("unlike-inputs", inputs(images(48, mean=(0.9, 0.9, 0.9)), images(64, seed=1)), inputs(stats(FEW), stats(MANY))),
    (
        "unlike-inputs",
        inputs(stats(np.zeros((8, 3, 4, 4))), images(8)),
        inputs(stats(np.ones((8, 16))), stats(np.ones((9, 16)))),
    ),
    (
        "unlike-inputs",
        inputs(images(48, times=4), images(64, seed=1)),
        inputs(images(16, times=1.3), images(8, seed=1)),
    ),
    ("constant-inputs", GuardFacts(equal_sample_count=24), GuardFacts(equal_sample_count=0)),
    ("byte-images", GuardFacts(byte_inputs={"x": 24}), GuardFacts(byte_inputs={})),
    (
        "unfit-labels",
        GuardFacts(unfit_labels=(UnfitLabels("label", "y", 10, (10,), False),)),
        GuardFacts(unfit_labels=()),
    ),
    (
        "unfit-labels",
        GuardFacts(unfit_labels=(UnfitLabels("label", "y", 10, one_hot_size=11),)),
        GuardFacts(unfit_labels=()),
    ),
    (
        "batch-dependent",
        GuardFacts(batch_sqnr_db={"y": 35.0, "z": 130.0}, compared_batch="8 samples"),
        GuardFacts(batch_sqnr_db={"y": math.inf, "z": 110.0}),
    ),
    ("batch-dependent", GuardFacts(batch_sqnr_db={"y": -math.inf}), GuardFacts(batch_sqnr_db={"y": 80.1})),
    (
        "stale-ranges",
        ranges(CACHE_SOURCE, checked_samples=32, compared_tensors=FORTY, mismatches=OFF),
        ranges(CACHE_SOURCE, checked_samples=32, compared_tensors=FORTY, mismatches={"t": (8.0, 2.0)}),
    ),
    (
        "stale-ranges",
        ranges(CACHE_SOURCE, checked_samples=32, compared_tensors=FORTY, mismatches={"t": (20.0, 2.0)}),
        ranges(CACHE_SOURCE, checked_samples=32, compared_tensors=FORTY),
    ),
    (
        "foreign-cache",
        ranges(CACHE_SOURCE, cache_header=ENTROPY, builder_release="10.16.1.2"),
        ranges(CACHE_SOURCE, cache_header=ENTROPY, builder_release="8.6.1"),
    ),
    (
        "foreign-cache",
        ranges(CACHE_SOURCE, cache_header=CalibrationCacheHeader("7.1.3", "EntropyCalibration2")),
        ranges(CACHE_SOURCE, cache_header=ENTROPY),
    ),
    (
        "foreign-cache",
        ranges(CACHE_SOURCE, cache_header=ENTROPY, fallback_method="minmax"),
        ranges(CACHE_SOURCE, cache_header=ENTROPY, fallback_method="entropy"),
    ),
    (
        "foreign-cache",
        ranges(
            CACHE_SOURCE,
            cache_header=CalibrationCacheHeader("10.3.0", "MinMaxCalibration"),
            requested_method="percentile",
        ),
        ranges(
            CACHE_SOURCE, cache_header=CalibrationCacheHeader("10.3.0", "MinMaxCalibration"), requested_method="minmax"
        ),
    ),
    (
        "rejected-target",
        GuardFacts(
            rejected_target_reason="metric>=1 cannot be checked: no metric", targets=(parse_target("sqnr>=20"),)
        ),
        GuardFacts(rejected_target_reason=""),
    ),
    ("few-samples", ranges(calibration_samples=31), ranges(calibration_samples=32)),
    ("few-samples", ranges(CONFIG_SOURCE, calibration_samples=31), ranges(CONFIG_SOURCE, calibration_samples=32)),
    ("missing-classes", classes(range(9)), classes(range(10))),
    ("missing-classes", classes(range(30), of=100), classes(range(75), of=100)),  # 53 are to be expected
    ("more-samples", converging(10.0, 11.0, 12.5), converging(10.0, 11.0, 11.9)),
    ("more-samples", converging(28.0, 28.0, 11.0), converging(28.4, 30.0, 28.8)),
    (
        "beyond-range",
        replace(ranges(), clipped={"t": ClippedShare(0.004, 0.0)}),
        replace(ranges(), clipped={"t": ClippedShare(0.004, 0.002), "u": ClippedShare(0.0005, 0.0)}),
    ),
    (
        "beyond-range",
        replace(ranges(CACHE_SOURCE), clipped={"t": ClippedShare(0.02, 0.02)}),
        replace(ranges(), clipped={"t": ClippedShare(0.02, 0.02)}),
    ),
    (
        "beyond-range",  # stale-ranges warns of the same range
        replace(
            ranges(CACHE_SOURCE, checked_samples=32, compared_tensors=FORTY, mismatches={"t": (2.0, 26.0)}),
            clipped={"t": ClippedShare(0.0001, 0.0001)},
        ),
        replace(
            ranges(CACHE_SOURCE, checked_samples=32, compared_tensors=FORTY, mismatches={"t": (26.0, 2.0)}),
            clipped={"t": ClippedShare(0.0, 0.0)},
        ),
    ),
    (
        "framework",
        GuardFacts(framework_errors={"y": ErrorMetrics(59.0, 0.99)}),
        GuardFacts(framework_errors={"y": ErrorMetrics(61.0, 1.0), "z": ErrorMetrics(None, 1.0, exact=True)}),
    ),
    (
        "framework",
        GuardFacts(framework_errors={"y": ErrorMetrics(nan=2)}),
        GuardFacts(framework_errors={"y": ErrorMetrics(mismatch=0.5)}),
    ),
    ("fp16-floor", half(15.0, 15.6), half(15.0, 30.0)),
    ("fp16-floor", half(15.0, 15.6), half(25.0, 25.2)),  # the target is met
    ("fp16-floor", half(15.0, 15.6, fp32=25.0), half(15.0, 15.6, fp32=14.9)),  # FP32 misses the target too
    ("fp16-floor", half(19.0, 19.1, fp32=26.0), half(29.6, 29.9, "sqnr>=29.95", fp32=30.0)),  # as FP32, but for 0.1 dB
    ("framework", against(14.0), against(21.0)),
    (
        "more-samples",
        replace(against(30.0), convergence=convergence(27.0, 28.0, 28.9)),
        replace(against(14.0), convergence=convergence(14.3, 14.2, 15.4)),
    ),
    ("fp16-floor", half_by_metric(0.7, 0.7), half_by_metric(0.58, 0.75)),
    (
        "back-in-float",
        GuardFacts(float_work=FloatWorkShare(0.34, True, 3, 9)),
        GuardFacts(float_work=FloatWorkShare(0.3, True, 3, 9)),
    ),
]


@pytest.mark.parametrize(
    ("array", "equal"),
    [
        (np.ones((12, 3), np.float32), 12),
        (np.tile(RNG.integers(0, 9, (1, 3)), (12, 1)), 12),
        (np.eye(12, 3, dtype=np.float32), 0),
        (np.ones((1, 3), np.float32), 0),
    ],
)
def test_samples_that_are_all_the_same_are_found(tmp_path, array, equal):
    np.savez(tmp_path / "d.npz", x=array)
    kind = "float32" if array.dtype == np.float32 else "int64"
    samples = load_samples(str(tmp_path / "d.npz"), [TensorInfo("x", np.dtype(kind), ("n", 3))], batch=4)
    assert count_samples_if_all_equal(samples) == equal


IMAGE = TensorInfo("x", np.dtype(np.float32), ("n", 3, 16, 16))
BYTES = RNG.integers(0, 256, (12, 3, 16, 16))


@pytest.mark.parametrize(
    ("array", "kind", "count"),
    [
        (BYTES.astype(np.uint8), "float32", 12),
        (BYTES.astype(np.float32), "float32", 12),
        (np.moveaxis(BYTES, 1, 3).astype(np.float32), "float32", 12),
        (BYTES[:, :1].astype(np.uint8), "float16", 12),
        (BYTES / 255, "float32", 0),
        (BYTES - 128.0, "float32", 0),
        (BYTES // 128, "float32", 0),
        (BYTES, "int64", 0),
        (BYTES.astype(np.uint8), "uint8", 0),
        (BYTES * 2.0, "float32", 0),
        (BYTES[:, 0, 0, :4], "float32", 0),
        (BYTES[:, :, :2, 0], "float32", 0),
        (np.zeros((12, 3, 16, 16)), "float32", 0),
    ],
)
def test_images_of_bytes_are_found(tmp_path, array, kind, count):
    np.savez(tmp_path / "d.npz", x=array if array.dtype == np.uint8 else array.astype(kind))
    shape = ("n", *array.shape[1:])
    samples = load_samples(str(tmp_path / "d.npz"), [TensorInfo("x", np.dtype(kind), shape)], batch=4)
    assert count_samples_with_byte_images(samples) == ({"x": count} if count else {})


@pytest.mark.parametrize(
    ("operators", "scaled"),
    [
        ((), False),
        (("Transpose",), False),
        (("Div",), True),
        (("Transpose", "Sub"), True),
        (("Conv", "Mul"), False),
        (("Identity", "BatchNormalization"), True),
        (("Relu", "Div"), False),
        (("Cast", "Mul"), True),
    ],
)
def test_inputs_that_the_network_scales(tmp_path, operators, scaled):
    b = networks.Builder()
    value = "image"
    for index, operator in enumerate(operators):
        name = f"/{operator}{index}"
        if operator == "Conv":
            value = b.conv(value, (3, 3), name)
        elif operator == "BatchNormalization":
            value = b.batch_norm(value, 3, name)
        elif operator in ("Div", "Mul", "Sub"):
            value = b.node(operator, [value, b.weight(f"c{index}", np.float32(255))], name)
        else:
            more = {"Transpose": {"perm": [0, 1, 3, 2]}, "Cast": {"to": 1}}.get(operator, {})
            value = b.node(operator, [value], name, **more)
    b.node("Identity", [b.conv(value, (3, 4), "/last")], "/end", output="y")
    onnx.save(
        b.model([networks.floats("image", "n", 3, 16, 16)], [networks.floats("y", "n", 4, 16, 16)]), tmp_path / "n.onnx"
    )
    assert (find_scaled_inputs(open_network(tmp_path / "n.onnx")) == {"image"}) is scaled


NUMBERS = RNG.integers(0, 10, 60)


@pytest.mark.parametrize(
    ("labels", "outside"),
    [
        (NUMBERS, None),
        (NUMBERS + 1, (10,)),
        (np.where(NUMBERS == 3, -1, NUMBERS), None),
        (np.arange(60), None),
        (np.where(NUMBERS == 3, -7, NUMBERS), (-7,)),
        (np.where(NUMBERS == 3, -100, NUMBERS), None),
        (np.where(NUMBERS == 3, 255, NUMBERS), None),
        (RNG.integers(0, 360, 60), None),
        (NUMBERS.astype(np.float32), None),
        (NUMBERS[:, None] + 1, (10,)),
        (np.eye(10)[NUMBERS], None),
        (np.eye(11, dtype=np.int64)[NUMBERS], 11),
        (NUMBERS[:50], None),
        (np.array(["a"] * 60), None),
        (RNG.normal(size=(60, 4)), None),
    ],
)
def test_labels_that_do_not_fit_are_found(tmp_path, labels, outside):
    np.savez(tmp_path / "d.npz", x=np.zeros((60, 3, 16, 16), np.float32), label=labels)
    samples = load_samples(tmp_path / "d.npz", [IMAGE], reads_labels=False)
    found = find_unfit_labels(samples, "y", 10, per_pixel=False)
    if outside is None:
        assert found == ()
    else:
        (one,) = found
        assert (one.one_hot_size if isinstance(outside, int) else one.outside) == outside
    assert find_unfit_labels(samples, "y", 10, per_pixel=False, mask_names=["label"]) == ()


def test_labels_of_pixels(tmp_path):
    labels = RNG.integers(0, 4, (8, 6, 6)).astype(np.uint8)
    labels[:, 0] = 255
    for changed, outside in ((labels, None), (np.where(labels == 3, 4, labels), (4,)), (labels[:, None] + 0, None)):
        np.savez(tmp_path / "d.npz", x=np.zeros((8, 3, 16, 16), np.float32), mask=changed)
        found = find_unfit_labels(load_samples(tmp_path / "d.npz", [IMAGE]), "y", 4, per_pixel=True)
        assert [one.outside for one in found] == ([] if outside is None else [outside])


def centred(model, batch="batch"):
    """The network with the mean over the batch subtracted from its output."""
    output = model.graph.output[0]
    axis = onnx.numpy_helper.from_array(np.array([0], np.int64), "axis")
    mean = {"axes": [0]} if model.opset_import[0].version < 18 else {}
    model.graph.initializer.extend([] if mean else [axis])
    model.graph.node.append(
        onnx.helper.make_node(
            "ReduceMean", [output.name, *([] if mean else ["axis"])], ["mean"], name="mean", keepdims=1, **mean
        )
    )
    model.graph.node.append(onnx.helper.make_node("Sub", [output.name, "mean"], ["centred"], name="centre"))
    del model.graph.output[:]
    model.graph.output.append(onnx.helper.make_tensor_value_info("centred", 1, [batch, 10]))
    return model


@pytest.mark.parametrize("fixed", [False, True])
def test_outputs_that_depend_on_the_batch_are_found(tmp_path, fixed):
    for model, depends in ((networks.small_resnet(), False), (centred(networks.small_resnet()), True)):
        if fixed:
            for info in (*model.graph.input, *model.graph.output):
                info.type.tensor_type.shape.dim[0].dim_value = 4
        onnx.save(model, tmp_path / "net.onnx")
        network = open_network(tmp_path / "net.onnx")
        np.savez(tmp_path / "d.npz", image=networks.random_images(np.random.default_rng(0), (6, 3, 32, 32)))
        samples = load_samples(tmp_path / "d.npz", network.inputs, outputs=network.outputs, batch=4)
        with Analysis(network, get_simulation_backend(), samples, select_judged_outputs(network)) as analysis:
            steps = measure_batch_dependence(analysis, range(len(samples)))
            with pytest.raises(StopIteration) as end:
                while True:
                    next(steps)
        facts = end.value.value
        assert facts.compared_batch == "4 samples" and not facts.no_batch_reason
        assert bool(said("batch-dependent", facts).alarms) is depends, facts
    single = load_samples(tmp_path / "d.npz", network.inputs, outputs=network.outputs, batch=1) if not fixed else None
    if single is not None:
        with Analysis(network, get_simulation_backend(), single, select_judged_outputs(network)) as analysis:
            with pytest.raises(StopIteration) as end:
                next(measure_batch_dependence(analysis, [0]))
        assert "one sample" in end.value.value.no_batch_reason


def said(name, facts):
    return next(one for one in run_guards(facts) if one.guard.name == name)


def test_calibration_samples_are_not_examined_if_nothing_is_calibrated():
    for name, facts in (
        ("unlike-inputs", inputs(images(48, times=255), images(64, seed=1))),
        ("missing-classes", classes(range(5))),
    ):
        assert said(name, facts).alarms and not said(name, replace(facts, range_facts=None)).alarms


@pytest.mark.parametrize(("name", "warned", "quiet"), CASES, ids=[f"{case[0]}-{n}" for n, case in enumerate(CASES)])
def test_a_guard_warns_and_is_quiet(name, warned, quiet):
    alarms = said(name, warned).alarms
    assert alarms and all(
        one.guard_name == name and one.summary and one.reason and one.next_step.endswith(".") for one in alarms
    )
    assert said(name, quiet).alarms == () and not said(name, quiet).missing_facts_reason


def test_the_advice_to_calibrate_names_what_keeps_the_ranges_of_a_file_in_use():
    for source, removed in ((MEASURED_SOURCE, ""), (CACHE_SOURCE, "--calib-cache"), (CONFIG_SOURCE, "`calibration`")):
        facts = replace(ranges(source), clipped={"t": ClippedShare(0.02, 0.0)})
        (alarm,) = said("beyond-range", facts).alarms
        assert "--calib-data" in alarm.next_step and removed in alarm.next_step
        assert ("take" in alarm.next_step) is (source == CONFIG_SOURCE)
        (alarm,) = said("beyond-range", replace(facts, set_ranges=frozenset("t"))).alarms
        assert "sets 1 range" in alarm.next_step


def test_every_guard_has_such_cases_and_says_what_it_lacks():
    assert {case[0] for case in CASES} == {guard.name for guard in GUARDS}
    assert all(one.missing_facts_reason and not one.alarms for one in run_guards(GuardFacts()))


def test_what_a_warning_says():
    assert "divided by 255" in said("unlike-inputs", CASES[0][1]).alarms[0].reason
    uneven = MANY * np.geomspace(2, 8, len(MANY))[:, None, None, None]
    reason = said("unlike-inputs", inputs(stats(uneven), stats(MANY))).alarms[0].reason
    factor, first, second = map(float, re.findall(r"\d[\d.]*", reason.partition("(")[0]))
    assert factor == pytest.approx(first / second, rel=0.02), reason
    assert "order of x" in said("unlike-inputs", CASES[1][1]).alarms[0].summary
    builder = next(case[1] for case in CASES if case[0] == "foreign-cache")
    assert not lacking(said("foreign-cache", builder).alarms[0].summary, "TensorRT 8.6.1", "10.16.1.2")
    rising, falling, *_ = (
        said("more-samples", case[1]).alarms[0].summary for case in CASES if case[0] == "more-samples"
    )
    assert "would help" in rising and "falls" in falling
    overflow = Accuracy({"y": OutputErrors(ErrorMetrics(inf=3))})
    back = [
        said(
            "back-in-float",
            GuardFacts(float_work=FloatWorkShare(0.5, False, 3, 9), fp16_accuracy=half, float_type=floats),
        ).alarms[0]
        for half, floats in ((overflow, "fp16"), (overflow, "bf16"), (None, "fp16"))
    ]
    assert ["--other bf16" in one.next_step for one in back] == [True, False, False]


@pytest.mark.parametrize(
    ("line", "release", "method"),
    [
        ("TRT-8601-EntropyCalibration2", "8.6.1", "entropy"),
        ("TRT-101601-MinMaxCalibration", "10.16.1", "minmax"),
        ("TRT-7103-LegacyCalibration", "7.1.3", "percentile"),
        ("TRT-100300-Own", "10.3.0", ""),
    ],
)
def test_the_first_line_of_a_cache(tmp_path, line, release, method):
    (tmp_path / "c").write_text(line + "\n")
    header = read_calibration_cache_header(tmp_path / "c")
    assert (header.release, header.range_method) == (release, method)


@pytest.fixture(scope="module")
def resnet(tmp_path_factory):
    """A residual network, 48 images for it in two classes, and its ranges by min-max."""
    folder = tmp_path_factory.mktemp("guards")
    onnx.save(networks.small_resnet(), folder / "net.onnx")
    network = open_network(folder / "net.onnx")
    image = networks.random_images(np.random.default_rng(0), (48, 3, 32, 32))
    np.savez(folder / "judged.npz", image=image, label=np.arange(48) % 2, row=np.arange(48))
    np.savez(folder / "calib.npz", image=image[::-1][:40], label=np.zeros(40, np.int64))
    np.savez(folder / "times255.npz", image=image[:40] * 255)
    samples = load_samples(folder / "judged.npz", network.inputs)
    found = calibrate(network.model, network.calibrated_tensors, samples, get_simulation_backend()).ranges
    write_calibration_cache(folder / "net.cache", found, "MinMaxCalibration")
    write_calibration_cache(
        folder / "stale.cache", {tensor: amax * 5 for tensor, amax in found.items()}, "MinMaxCalibration"
    )
    return folder, network, samples, found


def test_ranges_are_held_against_samples(resnet):
    _, network, samples, found = resnet
    backend = get_simulation_backend()
    assert find_mismatched_ranges(network.model, found, samples, backend, method_clips=False)[0] == {}
    tensor = network.calibrated_tensors[1]
    for factor, clips, off in ((2.5, False, True), (0.4, False, True), (0.4, True, False), (0.05, True, True)):
        changed = {**found, tensor: found[tensor] * factor}
        apart, compared, count = find_mismatched_ranges(network.model, changed, samples, backend, method_clips=clips)
        assert (set(apart) == {tensor}) is off and compared == found.keys() and count == 32


def test_shares_beyond_a_range_are_those_of_numpy(resnet):
    _, network, samples, found = resnet
    name = network.inputs[0].name
    array = np.concatenate([feed[name] for feed in samples.iterate_feeds()])
    amax = float(np.quantile(np.abs(array), 0.9))
    *_, shares = measure_clipped_shares(network.model, {name: amax}, samples, get_simulation_backend())
    assert shares[name] == pytest.approx(np.mean(np.abs(array) > 1.1 * amax), abs=1e-5)


def test_labels_that_name_classes(resnet):
    folder, network, samples, _ = resnet
    calibrating = load_samples(folder / "calib.npz", network.inputs)
    (found,) = count_samples_by_label_class(calibrating, samples)
    assert found.label_array == "label" and set(found.judged_counts) == {0, 1} and set(found.calibration_counts) == {0}
    assert (found.judged_samples, found.calibration_samples) == (48, 40)
    options = Options(*(str(folder / name) for name in ("net.onnx", "judged.npz", "calib.npz")))
    assert measure_facts_for_data_guards(Workspace(options)).class_facts == (found,)
    assert (
        count_samples_by_label_class(samples, samples, mask_names=("label",)) == ()
    )  # rows that are numbered are no classes
    masks = load_samples(
        _saved(folder, mask=np.tile(np.array([[0, 3, 255, 255]], np.uint8), (8, 1))),
        [TensorInfo("image", np.dtype(np.float32), (None, 3, 32, 32))],
    )
    (found,) = count_samples_by_label_class(masks, masks)
    assert set(found.judged_counts) == {0, 3}


def _saved(folder, **labels):
    np.savez(folder / "masks.npz", image=np.zeros((8, 3, 32, 32), np.float32), **labels)
    return folder / "masks.npz"


def test_the_data_of_a_workspace_say_what_guards_ask(answered, tmp_path):
    options, x, _ = answered
    np.savez(tmp_path / "calib.npz", x=255 * x[:8])
    facts = measure_facts_for_data_guards(Workspace(replace(options, calib_data=str(tmp_path / "calib.npz"))))
    calibrating, judged = facts.input_stats["x"]
    assert (calibrating.sample_count, judged.sample_count) == (8, 16)
    assert calibrating.minimum.min() == pytest.approx(255 * x[:8].min())
    assert judged.maximum.max() == pytest.approx(x.max())
    assert (facts.judges_calibration_samples, facts.equal_sample_count, facts.has_random_inputs) == (False, 0, False)
    assert measure_facts_for_data_guards(Workspace(replace(options, data=None))).has_random_inputs


def test_preflight_has_every_guard_look(resnet, run, tmp_path):
    folder, *_ = resnet
    argv = ("preflight", folder / "net.onnx", "--data", folder / "judged.npz", "--strict")
    code, out, err = run(
        *argv, "--calib-data", folder / "times255.npz", "--json", tmp_path / "p.json", "--markdown", tmp_path / "p.md"
    )
    assert code == 1, err
    rows = {line.split()[0]: line.split()[1] for line in out.splitlines()[1 : 1 + len(GUARDS)]}
    assert list(rows) == [guard.name for guard in GUARDS]
    assert rows["unlike-inputs"] == "warns" and rows["more-samples"] == rows["beyond-range"] == "ok"
    assert "divided by 255" in out and "  Next: " in out and "unlike" not in err
    record = json.loads((tmp_path / "p.json").read_text())["guards"]
    assert record["unlike-inputs"]["warnings"] and record["stale-ranges"]["not_checked"]
    assert re.search(r"unlike-inputs \| +warns", (tmp_path / "p.md").read_text().replace("\\", ""))
    code, out, err = run(*argv, "--calib-cache", folder / "net.cache")
    assert code == 0 and " warns " not in out, out + err


@pytest.mark.parametrize(("options", "is_read"), [(("--keep", "/layer1/"), True), (("--keep", "/./"), False)])
def test_only_ranges_that_a_quantized_layer_reads_can_be_stale(resnet, run, options, is_read):
    folder, *_ = resnet
    argv = ("preflight", folder / "net.onnx", "--data", folder / "judged.npz", "--calib-cache", folder / "stale.cache")
    code, out, err = run(*argv, *options)
    assert code == 0 and ("contradict them" in out + err) is is_read, out + err


def test_other_commands_say_what_costs_nothing(resnet, run, tmp_path):
    folder, *_ = resnet
    model, data = folder / "net.onnx", ("--data", folder / "judged.npz")
    stale = "Warning: stale.cache: "
    code, _, err = run(
        "compare",
        model,
        *data,
        *f"--calib-cache {folder}/stale.cache --calib-data {folder}/calib.npz --layers none".split(),
        *f"--json {tmp_path}/c.json --markdown {tmp_path}/c.md".split(),
    )
    record = json.loads((tmp_path / "c.json").read_text())
    assert code == 0 and not lacking(err, stale, "\n  Next: Calibrate")
    assert [one["guard"] for one in record["guards"]] == ["stale-ranges", "missing-classes"]
    assert not mismatches(record, "comparison-v1")
    assert "## Warnings" in (tmp_path / "c.md").read_text() and "1 of 2 classes" in err
    for argv in (
        (
            "search",
            model,
            *data,
            *f"--calib-cache {folder}/stale.cache --tolerance sqnr>=-50 -o {tmp_path}/s.json --no-hold-out".split(),
        ),
        ("build", model, *data, *f"--calib-cache {folder}/stale.cache --precision int8 -o {tmp_path}/b.onnx".split()),
    ):
        code, _, err = run(*argv)
        assert code == 0 and stale in err, err


def test_a_cache_states_the_method_that_made_it(resnet, run, tmp_path):
    folder, *_ = resnet
    argv = ("export", folder / "net.onnx", "--data", folder / "judged.npz", "--precision", "int8")
    for options, kind, name, algorithm in (
        ((), "calibration-cache", "m.cache", "MinMaxCalibration"),
        (("--calib-method", "entropy"), "calibration-cache", "e.cache", "EntropyCalibration2"),
        ((), "polygraphy", "p.py", "MinMaxCalibration"),
        ((), "trtexec", "t.sh", "EntropyCalibration2"),
    ):
        code, out, err = run(*argv, *options, "--format", kind, "-o", tmp_path / name)
        assert code == 0, err
        cache = next(line for line in out.split() if line.endswith(".cache"))
        assert read_calibration_cache_header(cache).algorithm == algorithm and read_calibration_cache(cache)
    assert "--calibration-base-class IInt8MinMaxCalibrator" in (tmp_path / "p.py").read_text().replace("\\\n", "")


def test_a_share_of_the_work_needs_the_work_of_all():
    outline = local.outline()
    able = [group for group in outline.groups if group.is_quantizable]
    config = PrecisionConfig().with_group_precision(able[:1], Precision.FP32)
    known = measure_float_work_share(outline, config, None)
    assert 0 < known.float_share < 1 and (known.float_groups, known.total_groups) == (1, len(able))
    blind = replace(
        outline,
        layers=tuple(replace(layer, macs=None) if layer.name in able[-1].layers else layer for layer in outline.layers),
    )
    assert measure_float_work_share(blind, config, None) is None


def test_a_quantized_run_is_called_by_its_own_type(run, mlp, tmp_path):
    for guard, warned, _ in CASES:
        floats = warned.float_work and replace(warned.float_work, is_timed=False)
        facts = replace(warned, run_name="FP8", quantized_type="FP8", float_work=floats)
        assert not any("INT8" in alarm.warning_line for alarm in said(guard, facts).alarms), guard
    report = tmp_path / "report.md"
    code, out, err = run(
        *f"search {mlp.model} --data {mlp.data} --precision fp8 --tolerance sqnr>=40 -o {tmp_path}/p.json".split(),
        *f"--markdown {report}".split(),
    )
    assert code in (0, 1, None) and "FP8 looks better" in err
    assert "INT8" not in out + err + report.read_text(), err
