import math

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests import networks
from tests.networks import feeds
from tests.texts import numbers
from trt_tui.backends import onnxruntime
from trt_tui.backends.onnxruntime import OnnxRuntimeBackend
from trt_tui.core.calibration import calibration, tensor_collection
from trt_tui.core.calibration.cache import read_calibration_cache, select_network_ranges, write_calibration_cache
from trt_tui.core.calibration.calibration import (
    RANGE_METHODS,
    Histogram,
    StatsReducer,
    calibrate,
    choose_amax,
    collect_tensor_stats,
    select_ranges_for_type,
)
from trt_tui.core.calibration.tensor_collection import NetworkProbe
from trt_tui.core.data.samples import load_samples
from trt_tui.core.network.model_editing import add_outputs
from trt_tui.core.quantized_types import FP8, INT8
from trt_tui.core.runner import TensorInfo
from trt_tui.errors import InputError

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
ARRAYS = hnp.arrays(np.float32, hnp.array_shapes(max_dims=3, max_side=20), elements=FINITE)


def histogram(*arrays):
    result = Histogram()
    for array in arrays:
        result.add_values(array)
    return result


def ranges_of(hist):
    return {method: choose_amax(hist, method) for method in RANGE_METHODS}


@settings(deadline=None, max_examples=60)
@given(st.lists(ARRAYS, min_size=1, max_size=4), st.randoms())
def test_histogram_does_not_depend_on_order_or_cutting(arrays, random):
    whole = histogram(np.concatenate([array.ravel() for array in arrays]))
    random.shuffle(arrays)
    merged = histogram(arrays[0])
    merged.merge_values(histogram(*arrays[1:]))
    for parts in (histogram(*arrays), merged):
        assert whole.amax == parts.amax == max(float(np.abs(array).max()) for array in arrays)
        np.testing.assert_array_equal(whole.counts, parts.counts)
        assert parts.value_count == sum(array.size for array in arrays)


@settings(deadline=None, max_examples=60)
@given(ARRAYS)
def test_every_range_is_positive_and_at_most_minmax(array):
    hist = histogram(array)
    for method in RANGE_METHODS:
        amax = choose_amax(hist, method)
        assert amax <= hist.amax
        assert amax > 0 or hist.amax == 0
    assert hist.magnitude_percentile(100) == hist.amax


@settings(deadline=None, max_examples=60)
@given(ARRAYS, st.floats(1, 99))
def test_percentile_is_within_a_bin_of_the_exact_one(array, percent):
    hist = histogram(array)
    exact = np.percentile(np.abs(array).astype(np.float64), percent, method="inverted_cdf")
    assert exact <= hist.magnitude_percentile(percent) <= exact + hist.bin_width


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_bins_agree_with_numpy(dtype):
    array = np.random.default_rng(0).standard_normal(600_000).astype(dtype)
    hist = histogram(array)
    expected, _ = np.histogram(np.abs(array.astype(np.float32)), Histogram.BINS, (0, Histogram.BINS * hist.bin_width))
    np.testing.assert_array_equal(hist.counts, expected)


def kl_divergence(counts, kept):
    """The definition of the GTC 2017 talk, in plain loops."""
    p = counts[:kept].astype(float)
    p[-1] += counts[kept:].sum()
    q = np.zeros(kept)
    edges = [kept * level // 128 for level in range(129)]
    for low, high in zip(edges, edges[1:], strict=False):
        filled = counts[low:high] > 0
        if filled.any():
            q[low:high][filled] = counts[low:high].sum() / filled.sum()
    p, q = p / p.sum(), q / q.sum()
    if np.any((p > 0) & (q == 0)):
        return np.inf
    return float((p[p > 0] * np.log(p[p > 0] / q[p > 0])).sum())


def test_divergence_is_that_of_its_definition():
    rng = np.random.default_rng(1)
    counts = rng.poisson(20 * np.exp(-np.arange(700) / 90.0)).astype(float)
    counts[-1] = 3
    kept = np.array([128, 129, 200, 255, 256, 413, 650, 699, 700])
    expected = [kl_divergence(counts, number) for number in kept]
    np.testing.assert_allclose(calibration._kl_divergence(counts, kept), expected, atol=1e-12)


def test_entropy_and_mse_clip_outliers_and_minmax_does_not():
    rng = np.random.default_rng(2)
    array = np.concatenate([rng.standard_normal(200_000), [60.0, -80.0]]).astype(np.float32)
    ranges = ranges_of(histogram(array))
    assert ranges["minmax"] == 80
    assert 2 < ranges["entropy"] < 20 and 3 < ranges["percentile"] < 5

    def error(amax):
        scale = amax / 127
        return np.mean((array - np.clip(np.rint(array / scale), -127, 127) * scale) ** 2)

    assert error(ranges["mse"]) < 0.8 * error(80.0)
    assert error(ranges["mse"]) <= 1.05 * min(error(amax) for amax in np.linspace(2.5, 80, 300))
    uniform = histogram(np.linspace(-5, 5, 400_001, dtype=np.float32))
    assert calibration.find_entropy_threshold(uniform) > 4.9 and calibration.find_mse_threshold(uniform) > 4.9


@pytest.mark.parametrize(("values", "count"), [("pooled features", 16_384), ("attention", 240_000)])
def test_entropy_clips_few_values_of_a_tensor_without_values_near_zero(values, count):
    rng = np.random.default_rng(3)
    array = (
        {
            "pooled features": 0.4 + 0.1 * rng.standard_normal(count),
            "attention": 0.02 * np.exp(0.25 * rng.standard_normal(count)),
        }[values]
        .clip(1e-3)
        .astype(np.float32)
    )
    hist = histogram(array)
    lowest = int(np.flatnonzero(hist.counts)[0])
    assert kl_divergence(hist.counts, max(lowest + 1, 128)) == 0, "all values share one bin"
    threshold = calibration.find_entropy_threshold(hist)
    assert np.mean(array > threshold) < 1e-3 and threshold > 0.6 * hist.amax


def test_mse_minimises_the_error_of_the_code_type_and_entropy_is_for_equal_steps_alone():
    rng = np.random.default_rng(4)
    array = np.concatenate([rng.standard_normal(100_000), rng.uniform(25, 30, 3)]).astype(np.float32)
    hist = histogram(array)

    def error(amax, code):
        scale = np.float32(amax / code.max_value)
        return float(np.mean(np.square(array - code.quantize(array / scale) * scale, dtype=np.float64)))

    ranges = {code.precision: choose_amax(hist, "mse", quantized_type=code) for code in (INT8, FP8)}
    for code, other in ((INT8, FP8), (FP8, INT8)):
        best = min(error(amax, code) for amax in np.linspace(2, hist.amax, 100))
        assert error(ranges[code.precision], code) <= 1.01 * best
        assert 1.2 * error(ranges[code.precision], code) < error(ranges[other.precision], code)
    assert (
        calibration.list_range_methods(FP8) == ("minmax", "percentile", "mse")
        and calibration.list_range_methods(INT8) == RANGE_METHODS
    )
    assert choose_amax(hist, "entropy", quantized_type=FP8) == hist.amax > 2 * choose_amax(hist, "entropy")


@pytest.mark.parametrize("value", [0.0, 1.0, -3e38, 1e-45])
def test_constants(value):
    for method, amax in ranges_of(histogram(np.full((3, 5), value, np.float32))).items():
        assert amax == abs(np.float32(value)), method
    empty = histogram(np.zeros((0, 3), np.float32))
    assert empty.value_count == 0 and set(ranges_of(empty).values()) == {0.0}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_histogram_refuses_what_is_not_finite(bad):
    with pytest.raises(ValueError):
        histogram(np.array([1, bad, 2], np.float32))


class OrtBackend(OnnxRuntimeBackend):
    """Counts what it loads."""

    def __init__(self):
        super().__init__("cpu", threads=2)
        self.output_counts = []

    def load(self, model, **options):
        self.output_counts.append(len(model.graph.outputs))
        return super().load(model, **options)


NETWORK = """
<ir_version: 8, opset_import: ["" : %d]>
agraph (float[N, 4, 3, 3] x) => (float[N, 4, 3, 3] z)
{
   k = Constant <value = float {-2.0}> ()
   a = Mul (x, k)
   h = Cast <to = 10> (a)
   n = Shape (a)
   b = Relu (a)
   l = Log (b)
   z = Add (b, x)
}
"""
INPUTS = [TensorInfo("x", np.dtype("float32"), ("N", 4, 3, 3))]
TENSORS = ["x", "a", "h", "b", "z"]


@pytest.fixture(params=[13, 18])
def model(request):
    return ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(NETWORK % request.param)))


def make_samples(tmp_path, count=10):
    data = np.random.default_rng(3).standard_normal((count, 4, 3, 3)).astype(np.float32)
    data[:, 2] *= 50
    np.savez(tmp_path / "a.npz", x=data)
    return load_samples(tmp_path / "a.npz", INPUTS, batch=4), data


def expected_tensors(data):
    a = data * np.float32(-2)
    b = np.maximum(a, 0)
    return {"x": data, "a": a, "h": a.astype(np.float16).astype(np.float32), "b": b, "z": b + data}


def test_minmax_is_computed_in_the_graph(tmp_path, model):
    samples, data = make_samples(tmp_path)
    backend, seen = OrtBackend(), []
    before = ir.to_proto(model).SerializeToString()
    result = calibrate(model, TENSORS, samples, backend, progress=lambda *at: seen.append(at))
    assert (result.method, result.samples, result.data_sha256) == ("minmax", 10, samples.hash_inputs())
    assert result.ranges == {name: float(np.abs(array).max()) for name, array in expected_tensors(data).items()}
    assert backend.output_counts == [3 * len(TENSORS)]
    assert [*dict.fromkeys(seen)] == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert ir.to_proto(model).SerializeToString() == before


@pytest.mark.parametrize("method", ["percentile", "entropy", "mse"])
@pytest.mark.parametrize(("memory_limit", "passes"), [(1 << 20, 1), (2 * 4 * 4 * 36, 3), (1, 5)])
def test_histogram_methods_in_chunks_and_slices(tmp_path, model, monkeypatch, memory_limit, passes, method):
    monkeypatch.setattr(tensor_collection, "MAX_SLICES", 2)  # of one feed and of two
    monkeypatch.setattr(tensor_collection, "MEMORY_LIMIT_BYTES", memory_limit)
    samples, data = make_samples(tmp_path)
    backend, seen = OrtBackend(), []
    calibration = calibrate(model, TENSORS, samples, backend, method=method, progress=lambda *at: seen.append(at))
    assert len(backend.output_counts) == passes + 1 and seen[-1] == (3 * passes, 3 * passes)
    for name, array in expected_tensors(data).items():
        assert calibration.ranges[name] == choose_amax(histogram(array), method)
        read = select_ranges_for_type(calibration.range_table, FP8)
        assert read[name] == choose_amax(histogram(array), method, quantized_type=FP8)


@pytest.mark.parametrize(
    ("model", "tensor"),
    [(networks.attention_operator(has_past=True), "attended"), (networks.with_if(), "/before/Conv_output_0")],
)
def test_a_part_of_a_network_is_executed_as_the_whole(opened, tmp_path, monkeypatch, backend, model, tensor):
    """A node keeps the outputs that its operator needs, and a removed If takes the weights of its branches along."""
    monkeypatch.setattr(onnxruntime, "_MIN_SHARED_WEIGHT_BYTES", 64)
    network = opened(model)
    arrays = feeds(model, n=2, batch=2)
    np.savez(tmp_path / "a.npz", **arrays)
    result = calibrate(network.model, [tensor], load_samples(tmp_path / "a.npz", network.inputs, batch=2), backend)
    with backend.load(add_outputs(network.model, [tensor])) as runner:
        expected = runner.run(arrays)[tensor]
    assert result.ranges[tensor] == pytest.approx(np.abs(expected).max())


@pytest.mark.parametrize("method", RANGE_METHODS)
def test_one_method_alone(tmp_path, model, method):
    samples, data = make_samples(tmp_path)
    result = calibrate(model, ["b"], samples, OrtBackend(), method=method)
    assert result.ranges == {"b": choose_amax(histogram(expected_tensors(data)["b"]), method)}
    assert calibrate(model, [], samples, OrtBackend(), method=method).ranges == {}


@pytest.mark.parametrize("method", RANGE_METHODS)
def test_what_is_not_finite_is_named(tmp_path, model, method):
    samples, _ = make_samples(tmp_path)
    with pytest.raises(InputError, match="Tensor 'l' holds an infinity"):  # log(0)
        calibrate(model, ["b", "l"], samples, OrtBackend(), method=method)
    nan = ir.from_onnx_text((NETWORK % 18).replace("Log (b)", "Log (a)"))
    with pytest.raises(InputError, match="Tensor 'l' holds NaN"):
        calibrate(nan, ["b", "l"], samples, OrtBackend(), method=method)


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        ("none", "no tensor 'none'"),
        ("n", "'n' is INT64"),
    ],
)
def test_bad_requests(tmp_path, model, tensor, expected):
    samples, _ = make_samples(tmp_path)
    with pytest.raises(InputError, match=expected):
        calibrate(model, [tensor], samples, OrtBackend())


def test_weights_are_shared(model):
    weight = ir.tensor(np.ones((4, 4, 1, 1), np.float32), name="w")
    model.graph.register_initializer(ir.Value(name="w", const_value=weight))
    assert NetworkProbe(model).model.graph.initializers["w"].const_value is weight


def test_stats(tmp_path, model):
    samples, data = make_samples(tmp_path)
    stats = collect_tensor_stats(model, ["x", "b"], samples, OrtBackend())
    for name in ("x", "b"):
        array = expected_tensors(data)[name].astype(np.float64)
        magnitudes = np.abs(array)
        found = stats[name]
        assert found.amax == magnitudes.max() and found.count == array.size
        assert found.rms == pytest.approx(np.sqrt(np.mean(array**2)))
        exponents = np.floor(np.log2(magnitudes[magnitudes > 0])).astype(int) + 40
        assert list(found.log_histogram) == np.bincount(exponents, minlength=64).tolist()
        assert found.ranges == ranges_of(histogram(array))
    top = stats["x"].dominant_channels
    assert (top.axis, top.channel_count, top.indices) == (1, 4, (2,))


def test_values_beyond_the_bins_are_in_the_end_bins():
    values = np.array([0, 2**-24, 2**-25, -(2**-30), 2**-14, 2**-15, 65504, -65505, 1e30, 1e-42], np.float32)
    accumulator = StatsReducer(None)
    accumulator.add_values(values)
    stats = accumulator.compute_stats()
    assert stats.log_histogram[0] == 1 and stats.log_histogram[63] == 1 and sum(stats.log_histogram) == 9
    assert stats.dominant_channels is None


def test_channels_of_changing_number_are_not_reported():
    accumulator = StatsReducer(None)
    accumulator.add_values(np.ones((2, 3), np.float32))
    accumulator.add_values(np.ones((2, 5), np.float32))
    assert accumulator.compute_stats().dominant_channels is None


@settings(deadline=None, max_examples=40)
@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs", "C", "Z"]), min_size=1), st.floats(1e-30, 1e30), max_size=5
    )
)
def test_cache_round_trip(tmp_path_factory, ranges):
    path = tmp_path_factory.mktemp("cache") / "c.cache"
    write_calibration_cache(path, ranges, "MinMaxCalibration")
    assert path.read_text(encoding="utf-8").splitlines()[0] == "TRT-8601-MinMaxCalibration"
    assert read_calibration_cache(path) == pytest.approx(ranges, rel=1e-6)


def test_cache_as_tensorrt_writes_it(tmp_path):
    (tmp_path / "c").write_text("TRT-8601-EntropyCalibration2\ninput: 3c010a14\n(Unnamed Layer* 3) [x]: y: 3f800000\n")
    ranges = read_calibration_cache(tmp_path / "c")
    assert ranges["input"] == pytest.approx(1.000244, rel=1e-6) and ranges["(Unnamed Layer* 3) [x]: y"] == 127
    write_calibration_cache(tmp_path / "d", {"input": 1.0, "zero": 0.0})
    assert (tmp_path / "d").read_text() == "TRT-8601-EntropyCalibration2\ninput: 3c010204\nzero: 3f800000\n"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "line 1"),
        (b"hello\n", "line 1"),
        (b"TRT-8601-MinMaxCalibration\na: 3c010204\nb 3c010204\n", "line 3"),
        (b"TRT-8601-MinMaxCalibration\na: 3c01020400\n", "line 2"),
        (b"TRT-8601-MinMaxCalibration\na: 7fc00000\n", "line 2"),
        (b"\xff\xfe\x00", "cannot be read"),
    ],
)
def test_bad_cache(tmp_path, content, expected):
    (tmp_path / "c").write_bytes(content)
    with pytest.raises(InputError, match=expected):
        read_calibration_cache(tmp_path / "c")


def test_cache_that_cannot_be_read_or_written(tmp_path):
    with pytest.raises(InputError, match="absent does not exist"):
        read_calibration_cache(tmp_path / "absent")
    with pytest.raises(InputError, match="cannot be written"):
        write_calibration_cache(tmp_path / "absent" / "c", {"a": 1.0})
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        write_calibration_cache(tmp_path / "folder", {"a": 1.0})
    for ranges in ({"a\nb": 1.0}, {"a": math.inf}, {"a": -1.0}):
        with pytest.raises(InputError):
            write_calibration_cache(tmp_path / "c", ranges)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder"]


def test_match_cache():
    fitting, warnings = select_network_ranges({"a": 1.0, "old": 2.0}, ["a", "b"])
    assert fitting == {"a": 1.0}
    assert numbers(warnings[0]) == [1, 2] and "old" in warnings[0]
    assert "1 of 2 tensors" in warnings[1] and "b" in warnings[1]
    assert select_network_ranges({"a": 1.0}, ["a"]) == ({"a": 1.0}, ())
