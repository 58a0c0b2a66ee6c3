import math
from dataclasses import replace
from functools import partial

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from tests import networks
from tests.lowered import fake_quantized
from tests.measuring import errors_between, measure_shares
from tests.networks import Builder, floats
from tests.texts import lacking
from trt_tui.backends.onnxruntime import OnnxRuntimeBackend, OnnxRuntimeRunner
from trt_tui.core.data.samples import JudgedFeeds, load_samples
from trt_tui.core.lowering.gated.assembly import build_gated_graph
from trt_tui.core.measure import group_errors as layers_module
from trt_tui.core.measure import run_sources
from trt_tui.core.measure import simulation as simulation_module
from trt_tui.core.measure.error_metrics import ERROR_METRICS, compute_error_sums_by_name, compute_sqnr_db_by_sample
from trt_tui.core.measure.group_errors import measure_group_errors
from trt_tui.core.measure.group_sweep import measure_accuracy_per_raised_group
from trt_tui.core.measure.judged_outputs import select_judged_outputs
from trt_tui.core.measure.run_sources import AccuracyReducer
from trt_tui.core.measure.simulation import Analysis
from trt_tui.core.measure.user_metric import load_metric
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError

FP32 = PrecisionConfig.from_precision(Precision.FP32)
FP16 = PrecisionConfig.from_precision(Precision.FP16)
INT8 = PrecisionConfig.from_precision(Precision.INT8)
INT8_IN_FP32 = PrecisionConfig.from_precision(Precision.INT8, Precision.FP32)


@pytest.fixture
def analysed(tmp_path):
    """Makes an `Analysis` of a network on samples that are given as arrays."""
    made = []

    def analyse(model, arrays, *, batch=4, judge=(), metric=None, **options):
        path, data = tmp_path / "network.onnx", tmp_path / "samples.npz"
        onnx.save(model, path)
        np.savez(data, **arrays)
        network = open_network(path)
        samples = load_samples(str(data), network.inputs, batch=batch)
        judged = select_judged_outputs(network, judge, samples.label_names)
        made.append(Analysis(network, OnnxRuntimeBackend(threads=2), samples, judged, metric=metric, **options))
        return made[-1]

    yield analyse
    for one in made:
        one.close()


def last(generator):
    *_, partial = generator
    return partial.value


def images(count=10, seed=0):
    return {"image": networks.random_images(np.random.default_rng(seed), (count, 3, 8, 8))}


def vectors(count=10, size=16, seed=0):
    return {"x": np.random.default_rng(seed).standard_normal((count, size), dtype=np.float32)}


def single(operator, weight_scale=1.0, **attributes):
    """x (batch, 16) to y through MatMul and one more operator."""
    b = Builder()
    kernel = b.weight("w", np.eye(16, dtype=np.float32) * np.float32(weight_scale))
    b.node(operator, [b.node("MatMul", ["x", kernel], "/fc")], "/last", output="y", **attributes)
    return b.model([floats("x", "batch", 16)], [floats("y", "batch", 16)])


class GroupByGroup:
    """Runs each group of a network as a network of its own, with numpy rounding between them."""

    def __init__(self, network, feed):
        self.network, self.feed = network, feed
        self.proto = ir.to_proto(network.model)
        self.weights = {t.name: onnx.numpy_helper.to_array(t) for t in self.proto.graph.initializer}
        self.nodes = {node.name: node for node in self.proto.graph.node}
        self.sessions = {}
        self.reference = self.run(set())
        self.ranges = {tensor: float(np.abs(self.reference[tensor]).max()) for tensor in network.calibrated_tensors}

    def group(self, group, values, int8):
        """What a group yields; in INT8 its sites are fed with rounded copies of what they read."""
        rounded = {}
        for number, site in enumerate((*group.activation_qdq_sites(), *group.weight_qdq_sites()) if int8 else ()):
            rounded[site.layer, site.index] = f"{site.tensor}#{number}", site
        nodes, fed = [], {}
        for name in group.layers:
            node = onnx.NodeProto()
            node.CopyFrom(self.nodes[name])
            for index in range(len(node.input)):
                if (name, index) in rounded:
                    node.input[index], site = rounded[name, index]
                    fed[node.input[index]] = self.rounded(site, values)
            nodes.append(node)
        produced = {output for node in nodes for output in node.output}
        for node in nodes:
            for tensor in node.input:
                if tensor and tensor not in produced and tensor not in fed:
                    fed[tensor] = values.get(tensor, self.weights.get(tensor))
        key, names = (group.name, int8), list(dict.fromkeys((*group.outputs, group.final_tensor)))
        if key not in self.sessions:
            graph = helper.make_graph(
                nodes,
                "group",
                [
                    floats(n, *a.shape)
                    if a.dtype == np.float32
                    else helper.make_tensor_value_info(n, TensorProto.INT64, a.shape)
                    for n, a in fed.items()
                ],
                [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in names],
            )
            model = helper.make_model(graph, opset_imports=self.proto.opset_import, ir_version=9)
            self.sessions[key] = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        return dict(zip(names, self.sessions[key].run(names, fed), strict=True))

    def rounded(self, site, values):
        if site.tensor in self.weights:
            weight = self.weights[site.tensor]
            axes = tuple(axis for axis in range(weight.ndim) if axis != site.axis)
            return fake_quantized(weight, np.float32(np.abs(weight).max(axes, keepdims=True) / 127))
        return fake_quantized(values[site.tensor], np.float32(self.ranges[site.tensor] / 127))

    def run(self, int8):
        """What all groups yield, with the named ones in INT8."""
        values = dict(self.feed)
        for group in sorted(
            self.network.groups, key=lambda g: self.network.get_layer(self.network.producer[g.final_tensor]).index
        ):
            values |= self.group(group, values, group.name in int8)
        return values

    def energy(self, int8):
        reference, test = (v["logits"].astype(np.float64) for v in (self.reference, self.run(int8)))
        return ((reference - test) ** 2).sum() / (reference**2).sum()


@pytest.fixture
def resnet(analysed):
    feed = images(8)
    analysis = analysed(networks.small_resnet(size=8), feed, batch=3, boundary_type=Precision.FP32)
    return analysis, GroupByGroup(analysis.network, feed)


def test_errors_at_the_groups_are_those_of_networks_run_group_by_group(resnet):
    analysis, plain = resnet
    int8 = {group.name for group in analysis.network.groups if group.is_quantizable}
    whole = plain.run(int8)
    found = last(measure_group_errors(analysis, {"int8": INT8_IN_FP32}, plain.ranges))["int8"]
    assert len(int8) >= 6
    for group in analysis.network.groups:
        reference = plain.reference[group.final_tensor]
        accumulated = errors_between(reference, whole[group.final_tensor])
        isolated = errors_between(
            reference, plain.group(group, plain.reference, group.name in int8)[group.final_tensor]
        )
        assert found[group.name].accumulated.sqnr_db == pytest.approx(accumulated.sqnr_db, abs=0.3)
        assert found[group.name].accumulated.cosine == pytest.approx(accumulated.cosine, abs=1e-3)
        assert found[group.name].ref_max == pytest.approx(np.abs(reference).max(), rel=1e-5)
        if group.name in int8:
            assert found[group.name].isolated.sqnr_db == pytest.approx(isolated.sqnr_db, abs=0.3)
            assert found[group.name].isolated.mse == pytest.approx(isolated.mse, rel=0.1)
        else:
            assert found[group.name].isolated.exact and found[group.name].precision is Precision.FP32


def test_shares_are_what_goes_when_one_group_is_raised(resnet):
    analysis, plain = resnet
    int8 = {group.name for group in analysis.network.groups if group.is_quantizable}
    base = plain.energy(int8)
    found = measure_shares(analysis, INT8_IN_FP32, plain.ranges)
    assert set(found) == {group.name for group in analysis.network.groups}
    for name, share in found.items():
        if name not in int8:
            assert share.fraction == 0
            continue
        energy = plain.energy(int8 - {name})
        assert share.fraction == pytest.approx((base - energy) / base, abs=0.03)
        assert share.sqnr_if_raised_db == pytest.approx(-10 * math.log10(energy), abs=0.3)


def test_raised_adds_one_group_after_the_other(resnet):
    analysis, plain = resnet
    order = [group.name for group in analysis.network.groups if group.is_quantizable]
    verdicts = last(measure_accuracy_per_raised_group(analysis, INT8_IN_FP32, plain.ranges, order))
    assert len(verdicts) == len(order)
    for count, verdict in enumerate(verdicts[:-1], 1):
        assert verdict.worst_output[1].errors.sqnr_db == pytest.approx(
            -10 * math.log10(plain.energy(set(order[count:]))), abs=0.3
        )
    # All in FP32: what is left is the order of FP32 sums.
    assert verdicts[-1].worst_output[1].errors.exact or verdicts[-1].worst_output[1].errors.sqnr_db > 100


def test_shares_are_measured_in_the_order_asked_for(analysed):
    analysis = analysed(networks.mlp(), vectors())
    ranges = dict.fromkeys(analysis.network.calibrated_tensors, 4.0)
    order = [group.name for group in reversed(analysis.network.groups)]
    assert list(measure_shares(analysis, INT8, ranges, group_order=order)) == order


def test_verdicts_are_pooled_over_uneven_batches_and_name_the_worst_sample(analysed):
    inputs = vectors(11)
    inputs["x"][6] *= 1e-3  # a small sample: INT8 steps are coarse for it
    analysis = analysed(networks.mlp(), inputs, batch=4)
    ranges = dict.fromkeys(analysis.network.calibrated_tensors, 4.0)
    assert [analysis.samples.count_samples_of_feed(i) for i in range(len(analysis.samples))] == [4, 4, 3]
    partials = list(analysis.measure_accuracy(INT8, ranges))
    assert (
        [p.value.samples for p in partials] == [4, 8, 11]
        and partials[-1].is_final_result
        and not partials[0].is_final_result
    )
    verdict = partials[-1].value
    reference = np.concatenate([analysis.get_reference_outputs(i)["y"] for i in range(3)])
    test = np.concatenate([one["y"] for one in analysis.execute_config(INT8, ranges)])
    each = compute_sqnr_db_by_sample(compute_error_sums_by_name(reference, test, len(reference)))
    for metric in ERROR_METRICS.values():
        found, pooled = (
            errors.value(metric) for errors in (verdict.outputs["y"].errors, errors_between(reference, test))
        )
        assert found == pytest.approx(pooled, rel=1e-12)
    assert verdict.outputs["y"].worst_sample.index == int(each.argmin())
    assert verdict.outputs["y"].worst_sqnr_db == pytest.approx(each.min())
    assert verdict.judged_error == pytest.approx(10 ** (-verdict.outputs["y"].errors.sqnr_db / 10))
    assert verdict.agreement == (reference.argmax(1) == test.argmax(1)).mean()


def test_fp32_is_exact(analysed):
    verdict = last(analysed(networks.mlp(), vectors()).measure_accuracy(FP32, {}))
    assert verdict.outputs["y"].errors.exact and verdict.outputs["y"].worst_sqnr_db is None
    assert verdict.outputs["y"].worst_sample is None and verdict.judged_error == 0 and verdict.agreement == 1.0


def test_a_sample_that_is_not_finite_is_the_worst_and_one_without_signal_is_not(analysed):
    analysis = analysed(networks.mlp(), vectors())
    outputs = dict(analysis.get_reference_outputs(0))
    reference = {"y": outputs["y"] * np.array([[0], [1], [1], [1]], np.float32)}
    tally = AccuracyReducer(analysis.samples, [0], analysis.judged_outputs, lambda index: reference)
    tally.add_feed_outputs(0, {"y": outputs["y"] + np.float32(1e-3)})
    assert tally.compute_accuracy().outputs["y"].worst_sample.index in (1, 2, 3)
    broken = outputs["y"].copy()
    broken[2, 0] = np.nan
    tally.add_feed_outputs(0, {"y": broken})
    one = tally.compute_accuracy().outputs["y"]
    assert one.worst_sample.index == 2 and one.worst_sqnr_db is None and one.errors.nan == 1


def test_a_sample_with_nan_agrees_in_no_class(analysed):
    """The position of a NaN is that of the largest score for argmax."""
    analysis = analysed(networks.mlp(), vectors())
    reference = analysis.get_reference_outputs(0)
    (output,) = analysis.judged_outputs
    reducer = AccuracyReducer(
        analysis.samples, [0], (output,), analysis.get_reference_outputs, classifier_output=output
    )
    broken = reference["y"].copy()
    broken[2, broken[2].argmax()] = np.nan
    reducer.add_feed_outputs(0, {"y": broken})
    assert reducer.compute_accuracy().agreement == 0.75


def test_agreement_is_for_class_scores_alone(analysed):
    assert analysed(networks.mlp(), vectors()).classifier_output.name == "y"
    assert analysed(networks.unet_small(), {"image": np.zeros((4, 1, 32, 32), np.float32)}).classifier_output is None
    assert analysed(networks.mlp(), vectors(), judge=["y[:, 1:]"]).classifier_output is None


def test_the_last_figures_of_the_layers_are_those_of_the_verdict(analysed):
    analysis = analysed(networks.small_resnet(size=8), images())
    ranges = dict.fromkeys(analysis.network.calibrated_tensors, 5.0)
    group = analysis.network.find_group(analysis.network.producer["logits"]).name
    layers = last(measure_group_errors(analysis, {"fp16": FP16, "int8": INT8}, ranges))
    for run, config in (("fp16", FP16), ("int8", INT8)):
        verdict = last(analysis.measure_accuracy(config, ranges))
        pooled, fetched = layers[run][group].accumulated, verdict.outputs["logits"].errors
        assert pooled.sqnr_db == pytest.approx(fetched.sqnr_db, abs=1e-2)  # a rounded sum may flip between two graphs
        assert pooled.mean_abs == pytest.approx(fetched.mean_abs, rel=1e-3)
        assert pooled.max_abs == pytest.approx(fetched.max_abs, rel=1e-3)


def test_integer_outputs_are_judged_by_what_differs_and_by_what_decided(analysed):
    b = Builder()
    scores = b.gemm("x", (16, 12), "/head", output="scores")
    b.node("ArgMax", [scores], "/pick", output="class", axis=1, keepdims=0)
    model = b.model([floats("x", "batch", 16)], [helper.make_tensor_value_info("class", TensorProto.INT64, ["batch"])])
    analysis = analysed(model, vectors(40))
    ranges = {"x": 0.5}
    verdict = last(analysis.measure_accuracy(INT8, ranges))
    assert set(verdict.outputs) == {"class", "scores"}
    indices = range(len(analysis.samples))
    picked, expected = (
        np.concatenate([one["class"] for one in runs])
        for runs in (list(analysis.execute_config(INT8, ranges)), [analysis.get_reference_outputs(i) for i in indices])
    )
    assert 0 < verdict.outputs["class"].errors.mismatch == (picked != expected).mean()
    assert verdict.worst_output[0] == "scores" and verdict.judged_error == pytest.approx(
        10 ** (-verdict.outputs["scores"].errors.sqnr_db / 10)
    )


def test_shares_of_a_network_judged_by_integers_alone(analysed):
    b = Builder()
    b.node(
        "Cast", [b.node("MatMul", ["x", b.kernel("w", (16, 16), 16)], "/fc")], "/cast", output="y", to=TensorProto.INT32
    )
    model = b.model([floats("x", "batch", 16)], [helper.make_tensor_value_info("y", TensorProto.INT32, ["batch", 16])])
    analysis = analysed(model, vectors(8))
    analysis.judged_outputs = tuple(one for one in analysis.judged_outputs if one.kind == "integer")
    shares = measure_shares(analysis, INT8, {"x": 0.5})
    assert max(share.fraction for share in shares.values()) == pytest.approx(1.0)


def yolo():
    """Boxes in pixels beside scores under one Concat."""
    b = Builder()
    boxes = b.node("Mul", [b.gemm("x", (16, 4), "/boxes"), b.weight("stride", np.float32([64.0]))], "/boxes")
    scores = b.node("Sigmoid", [b.gemm("x", (16, 20), "/scores")], "/scores")
    b.node("Concat", [boxes, scores], "/join", output="detections", axis=1)
    return b.model([floats("x", "batch", 16)], [floats("detections", "batch", 24)])


def test_a_dead_part_shows_beside_a_loud_one(analysed):
    analysis = analysed(yolo(), vectors(12))
    boxes, scores = (one.name for one in analysis.judged_outputs)
    assert (boxes, scores) == ("detections[:, 0:4]", "detections[:, 4:24]")
    verdict = last(analysis.measure_accuracy(INT8, {"x": 0.05}))
    reference = np.concatenate([analysis.get_reference_outputs(i)["detections"] for i in range(len(analysis.samples))])
    test = np.concatenate([one["detections"] for one in analysis.execute_config(INT8, {"x": 0.05})])
    for name, part in ((boxes, np.s_[:, :4]), (scores, np.s_[:, 4:])):
        measured, expected = verdict.outputs[name].errors, errors_between(reference[part], test[part])
        for figure in ("sqnr_db", "cosine", "mse", "max_abs", "mean_abs"):
            assert getattr(measured, figure) == pytest.approx(getattr(expected, figure), rel=1e-12)


@pytest.mark.parametrize("network", ["unet_small", "mlp"])
def test_what_any_group_yields_can_be_judged(analysed, network):
    model = getattr(networks, network)()
    inputs = networks.feeds(model, n=4)
    names = [group.final_tensor for group in analysed(model, inputs).network.groups]
    analysis = analysed(model, inputs, judge=names)
    ranges = dict.fromkeys(analysis.network.calibrated_tensors, 5.0)
    for config in (FP32, FP16, INT8):
        verdict = last(analysis.measure_accuracy(config, ranges))
        assert set(verdict.outputs) == set(names)
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    del plain.graph.output[:]
    plain.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names)
    session = ort.InferenceSession(plain.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = dict(zip(names, session.run(names, inputs), strict=True))
    for name, array in analysis.get_reference_outputs(0).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-3, atol=1e-4)


def metric_file(tmp_path, body):
    path = tmp_path / "metric.py"
    path.write_text(f"import numpy as np\n\ndef score(outputs, labels):\n    {body}\n")
    return load_metric(f"{path}:score")


def test_a_metric_sees_all_samples_and_their_labels(analysed, tmp_path):
    metric = metric_file(
        tmp_path, "hits = outputs['y'].argmax(1) == labels['label']\n    return {'hits': hits.mean(), 'n': len(hits)}"
    )
    inputs = vectors(10)
    analysis = analysed(networks.mlp(), inputs, metric=metric)
    labels = np.concatenate([analysis.get_reference_outputs(i)["y"] for i in range(len(analysis.samples))]).argmax(1)
    labels[3] += 1
    analysis = analysed(networks.mlp(), {**inputs, "label": labels}, metric=metric)
    partials = list(analysis.measure_accuracy(FP32, {}))
    assert partials[0].value.metric["n"] == 4 and partials[-1].value.metric == {"hits": 0.9, "n": 10}
    assert partials[1].value.metric == {} and partials[-1].value.headline_metric == 0.9
    assert analysis.measure_reference_metric() == {"hits": 0.9, "n": 10}
    assert analysis.measure_reference_metric([0])["n"] == 4


def test_a_metric_may_fail_on_the_first_feed(analysed, tmp_path):
    body = "assert len(outputs['y']) > 4\n    return 1.0"
    analysis = analysed(networks.mlp(), {**vectors(), "label": np.zeros(10)}, metric=metric_file(tmp_path, body))
    first, *_, final = [partial.value.metric for partial in analysis.measure_accuracy(FP16, {})]
    assert first == {} and final == {"metric.py:score": 1.0}


def test_there_is_no_metric_without_labels(analysed, tmp_path):
    analysis = analysed(networks.mlp(), vectors(), metric=metric_file(tmp_path, "return 1.0"))
    assert analysis.metric is None and analysis.measure_reference_metric() == {}
    assert last(analysis.measure_accuracy(FP16, {})).metric == {}


def test_a_metric_that_fails_is_an_error_but_not_where_the_run_is_not_finite(analysed, tmp_path):
    body = "return float(np.mean(outputs['y'] - labels['y']))"
    inputs = vectors(8)
    inputs["x"] = np.abs(inputs["x"]) + 100
    analysis = analysed(
        single("Identity", 1e3),
        {**inputs, "label": np.zeros(8)},
        metric=metric_file(tmp_path, body.replace("labels['y']", "labels['label'][0]")),
    )
    assert last(analysis.measure_accuracy(FP32, {})).metric
    verdict = last(analysis.measure_accuracy(FP16, {}))
    assert verdict.nonfinite_count and verdict.metric == {}
    feeds = JudgedFeeds.from_indices([0, 1], compared=[1])
    compared = last(analysis.measure_accuracy(FP16, {}, feeds))
    assert compared.compared_outputs["y"].errors.inf and compared.compared_metric == {}
    broken = analysed(networks.mlp(), {**inputs, "label": np.zeros(8)}, metric=metric_file(tmp_path, "return 'none'"))
    with pytest.raises(InputError, match="metric.py"):
        last(broken.measure_accuracy(FP16, {}))


def tokens_network(tokens):
    """x (batch, tokens, 8) to y through a MatMul and a Softmax over each token, beside scores between all tokens."""
    b = Builder()
    rng = np.random.default_rng(3)
    first = b.node("MatMul", ["x", b.weight("w", rng.standard_normal((8, 8)).astype(np.float32))], "/fc")
    turned = b.node("Transpose", [first], "/turn", perm=[0, 2, 1])
    b.node("Exp", [b.node("MatMul", [first, turned], "/scores")], "/exp", output="s")
    b.node("Softmax", [first], "/last", output="y", axis=-1)
    sizes = ("batch", tokens)
    return b.model(
        [floats("x", *sizes, 8), floats("keep", *sizes)], [floats("y", *sizes, 8), floats("s", *sizes, tokens)]
    )


@pytest.mark.parametrize(("tokens", "mask"), [("tokens", "keep"), (6, "keep"), (6, "labels")])
def test_what_the_judged_outputs_mask_leaves_out_counts_at_no_group_with_its_axes(analysed, tokens, mask):
    x = np.random.default_rng(4).standard_normal((8, 6, 8)).astype(np.float32) / 4
    keep = np.ones((8, 6), np.float32)
    keep[:, 4:] = 0
    noisy = x.copy()
    noisy[:, 4:] = 3e5  # padding holds what FP16 cannot
    labels = {"labels": keep} if mask == "labels" else {}

    def measured(arrays, judge, size):
        analysis = analysed(tokens_network(size), arrays, judge=judge, batch=8)
        return last(measure_group_errors(analysis, {"fp16": FP16}, {}))["fp16"]

    cut = measured({"x": x[:, :4], "keep": keep[:, :4]}, ["y"], "tokens")
    masked = measured({"x": noisy, "keep": keep, **labels}, [f"y@{mask}"], tokens)
    whole = measured({"x": noisy, "keep": keep}, ["y"], tokens)
    for name in ("/fc/MatMul", "/last/Softmax"):
        for kind in ("accumulated", "isolated"):
            one, other = (
                {"mse": e.mse, "nan": e.nan, "inf": e.inf, "sqnr": e.sqnr_db}
                for e in (getattr(masked[name], kind), getattr(cut[name], kind))
            )
            assert one == pytest.approx(other, rel=1e-3) and one["sqnr"] is not None
        assert masked[name].fp16_over == 0
    assert whole["/fc/MatMul"].fp16_over > 0 and whole["/fc/MatMul"].accumulated.nonfinite_count
    assert masked["/scores/MatMul"] == whole["/scores/MatMul"]  # two of its axes have that size


@pytest.mark.parametrize(("operator", "kind"), [("ReduceSum", TensorProto.INT64), ("If", TensorProto.FLOAT)])
def test_where_no_layer_holds_floats_of_its_own_nothing_is_lost(analysed, operator, kind):
    b, y = Builder(), helper.make_tensor_value_info("y", kind, None)
    if operator == "If":  # the whole network lies in its branches
        data = {"x": np.ones((4, 3), np.float32), "flag": np.array(True)}
        more = {
            f"{name}_branch": helper.make_graph(
                [helper.make_node(name, ["x"], [name])], name, [], [helper.make_tensor_value_info(name, kind, None)]
            )
            for name in ("then", "else")
        }
        for branch, node in zip(more.values(), ("Relu", "Neg"), strict=True):
            branch.node[0].op_type = node
        b.node("If", ["flag"], output="y", **more)
        inputs = [floats("x", "n", 3), helper.make_tensor_value_info("flag", TensorProto.BOOL, [])]
    else:
        data, inputs = {"x": np.ones((4, 3), np.int64)}, [helper.make_tensor_value_info("x", kind, ["n", 3])]
        b.node(operator, ["x"], output="y")
    analysis = analysed(b.model(inputs, [y]), data)
    assert all(
        errors.accumulated.exact
        for partial in measure_group_errors(analysis, {"fp16": FP16}, {})
        for errors in partial.value.get("fp16", {}).values()
    )


@pytest.mark.parametrize("data", [False, True])
def test_errors_are_taken_behind_a_selection_that_keeps_other_values(analysed, monkeypatch, data):
    b = Builder()
    scores = b.node("Sigmoid", [b.gemm("x", (16, 8), "/fc")], "/score")
    chosen = b.node("Greater", [scores, b.weight("least", np.float32(0.5))], "/greater")
    places = b.node("Transpose", [b.node("NonZero", [chosen], "/nonzero")], "/turn", perm=[1, 0])
    kept = b.node("GatherND", [scores, places], "/kept")
    b.node("Mul", [kept, b.weight("two", np.float32(2))], "/twice", output="y")
    b.node(
        "Range",
        [
            b.weight("zero", np.float32(0)),
            b.node("ReduceSum", [kept], "/sum", keepdims=0),
            b.weight("one", np.float32(1)),
        ],
        "/range",
        output="long",
    )
    model = b.model([floats("x", "n", 16)], [floats("y", "kept"), floats("long", "length")])
    analysis = analysed(model, vectors(40), batch=20, judge=[scores])
    assert {"y", "long"} <= analysis.network.value_sized_tensors and scores not in analysis.network.value_sized_tensors
    monkeypatch.setattr(
        layers_module,
        "build_gated_graph",
        lambda *given, **more: build_gated_graph(*given, **{**more, "gates_as_data": data}),
    )
    coarse = {"x": 6.0}  # so that other values are selected
    found = last(measure_group_errors(analysis, {"int8": INT8}, coarse))["int8"]
    assert found["/twice/Mul"].accumulated.sqnr_db < 30 < found["/twice/Mul"].isolated.sqnr_db


def test_fp16_overflow_is_counted_and_named(analysed):
    inputs = {"x": np.ones((4, 16), np.float32)}
    inputs["x"][:, 0] = 120
    analysis = analysed(single("Relu", 1e3), inputs, batch=2)
    group = analysis.network.groups[0]
    found = last(measure_group_errors(analysis, {"fp16": FP16, "fp32": FP32}, {}))
    errors_ = found["fp16"][group.name]
    assert not lacking(errors_.warning_text, "reaches 1.2e5", "FP16's 65504", "arise here")
    assert errors_.accumulated.inf == 4 and errors_.accumulated.sqnr_db is None
    assert found["fp32"][group.name].warning_text == ""
    verdict = last(analysis.measure_accuracy(FP16, {}))
    assert (
        verdict.nonfinite_count == 4
        and verdict.outputs["y"].worst_sample.index == 0
        and math.isinf(verdict.judged_error)
    )
    assert sum(share.fraction for share in measure_shares(analysis, FP16, {}).values()) == 1.0


@pytest.mark.parametrize(
    ("largest", "over", "said"),
    [(1.0, 0, ""), (1e5, 4, "0 NaN and 4 Inf arise here: Where /last/Where reaches 1e5, beyond FP16's 65504")],
)
def test_infinities_of_a_mask_exceed_nothing(analysed, largest, over, said):
    b = Builder()
    hidden = b.node("Less", ["x", b.weight("least", np.float32(-1e6))], "/hidden")
    b.node("Where", [hidden, b.weight("none", np.float32(-np.inf)), "x"], "/last", output="y")
    x = np.full((4, 16), 0.3, np.float32)
    x[:, 0], x[:, 1] = -2e6, largest
    analysis = analysed(b.model([floats("x", "batch", 16)], [floats("y", "batch", 16)]), {"x": x})
    layers = last(
        measure_group_errors(analysis, {"fp16": FP16, "fp32": PrecisionConfig.from_precision(Precision.FP32)}, {})
    )
    *_, found = layers["fp16"].values()
    *_, exact = layers["fp32"].values()
    assert exact.accumulated.exact and exact.isolated.exact
    if not over:
        assert 60 < found.accumulated.sqnr_db < 90
        assert found.isolated.sqnr_db == pytest.approx(found.accumulated.sqnr_db)
    assert found.warning_text.startswith(said) and bool(found.warning_text) is bool(said) and found.fp16_over == over
    assert found.fp16_state == ("overflows" if over else "overflows without effect")
    if not over:
        assert not lacking(found.fp16_finding, "input x reaches 2e6", "65504; ", "no judged output")


def test_values_that_fp16_cannot_hold_are_counted_in_every_run(analysed):
    inputs = {"x": np.ones((4, 16), np.float32)}
    inputs["x"][:, 0] = 1e5
    inputs["x"][:, 1:3] = 1e-9
    analysis = analysed(single("Relu", 1.0), inputs)
    found = last(measure_group_errors(analysis, {"fp16": FP16, "fp32": FP32}, {}))
    group = analysis.network.groups[0].name
    for run in ("fp16", "fp32"):
        assert (found[run][group].fp16_over, found[run][group].fp16_under) == (4, 8)
    inputs["x"][:, 0] = 1
    for scale, ones, said in (
        (1.0, inputs, "12% underflow: below FP16's smallest value 6e-8"),
        (1e-5, {"x": np.ones((4, 16), np.float32)}, "max 1e-5 is below FP16's smallest normal 6.1e-5"),
    ):
        found = last(measure_group_errors(analysed(single("Relu", scale), ones), {"fp16": FP16}, {}))["fp16"]
        assert found[group].warning_text.startswith(f"{said}; BF16")


def test_a_reference_with_nan_is_an_error(analysed):
    analysis = analysed(single("Sqrt"), {"x": -np.ones((4, 16), np.float32)})
    with pytest.raises(InputError, match="yields NaN at y"):
        last(analysis.measure_accuracy(FP16, {}))


def test_an_int8_layer_without_a_range_is_an_error(analysed):
    analysis = analysed(networks.mlp(), vectors())
    with pytest.raises(InputError, match="range"):
        last(analysis.measure_accuracy(INT8, {}))


def test_what_ifs_share_one_session(analysed):
    analysis = analysed(networks.mlp(), vectors())
    ranges = dict.fromkeys(analysis.network.calibrated_tensors, 4.0)
    for config in (FP32, FP16, INT8, INT8.with_group_precision(analysis.network.groups[:1], Precision.FP32)):
        last(analysis.measure_accuracy(config, ranges))
    assert analysis.session_count == 1
    analysis.close()
    assert last(analysis.measure_accuracy(FP16, {})).samples == 10 and analysis.session_count == 2


def test_a_reference_that_does_not_fit_memory_is_kept_in_a_file(analysed, monkeypatch):
    analysis = analysed(networks.mlp(), vectors())
    expected = last(analysis.measure_accuracy(FP16, {}))
    monkeypatch.setattr(run_sources, "TENSOR_CACHE_BYTES", 90)  # one feed has 64 bytes
    spilling = analysed(networks.mlp(), vectors())
    assert last(spilling.measure_accuracy(FP16, {})) == expected == last(spilling.measure_accuracy(FP16, {}))
    assert len(spilling._fp32_cache._arrays) == 1 and len(spilling._fp32_cache._spooled) == 2
    spilling.close()
    assert last(spilling.measure_accuracy(FP16, {})) == expected


def test_feeds_can_be_chosen(analysed):
    analysis = analysed(networks.mlp(), vectors(12))
    assert last(analysis.measure_accuracy(FP16, {}, feed_indices=[1])).samples == 4
    assert replace(last(analysis.measure_accuracy(FP16, {}, feed_indices=[0, 1, 2])), total=0) == replace(
        last(analysis.measure_accuracy(FP16, {})), total=0
    )


@pytest.mark.parametrize("judge", [(), ("logits[:, :3]", "logits[:, 3:]")])
def test_a_device_compares_in_the_graph_and_says_the_same(analysed, monkeypatch, judge):
    """Gates are data there, and the judged tensors stay; a run whose sums are not finite is looked at on the host."""
    monkeypatch.setattr(simulation_module, "MIN_COMPARED_ELEMENTS", 1)
    fetched, verdicts, run = [], [], OnnxRuntimeRunner.run

    def watched(self, feeds, fetch=None):
        fetched.append(tuple(fetch or ()))
        return run(self, feeds, fetch)

    monkeypatch.setattr(OnnxRuntimeRunner, "run", watched)
    for device in (False, True):
        analysis = analysed(networks.small_resnet(size=8), images(), judge=judge)
        analysis.classifier_output = None  # its scores are fetched for the classes
        analysis.backend.capabilities = replace(analysis.backend.capabilities, has_device=device)
        ranges = dict.fromkeys(analysis.network.calibrated_tensors, 4.0)
        verdicts.append(
            [last(analysis.measure_accuracy(config, ranges)) for config in (INT8_IN_FP32, INT8, FP16, FP32)]
        )
    host, device = verdicts
    assert any(name.startswith("compared/") for names in fetched for name in names)
    for expected, found in zip(host, device, strict=True):
        assert found.outputs.keys() == expected.outputs.keys() and found.samples == expected.samples
        for name, one in expected.outputs.items():
            other = found.outputs[name]
            assert (other.errors.exact, other.worst_sample) == (one.errors.exact, one.worst_sample)
            for kind in ("sqnr_db", "cosine", "mse", "max_abs", "mean_abs"):
                assert getattr(other.errors, kind) == pytest.approx(getattr(one.errors, kind), rel=1e-3), kind
        assert found.judged_error == pytest.approx(expected.judged_error, rel=1e-3)
        if expected.intervals.worst_output:
            assert found.intervals.worst_output["mse"].high == pytest.approx(
                expected.intervals.worst_output["mse"].high, rel=1e-3
            )


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (partial(networks.small_resnet, size=8), [False, True]),
        (networks.decoder, [False, True]),
        (lambda: single("Relu", 1e5), [False, True, False]),
    ],
    ids=["small_resnet", "masked", "overflows"],
)
def test_a_device_takes_the_same_errors_at_the_groups(analysed, monkeypatch, make, expected):
    """With no control flow, unless sums are not finite: then that tells what is."""
    model = make()
    arrays = networks.feeds(model, n=6)
    forms, lower = [], layers_module.build_gated_graph

    def lowered(network, **options):
        forms.append(options["gates_as_data"])
        return lower(network, **options)

    monkeypatch.setattr(layers_module, "build_gated_graph", lowered)
    found = []
    for device in (False, True):
        analysis = analysed(model, arrays)
        analysis.backend.capabilities = replace(analysis.backend.capabilities, has_device=device)
        ranges = dict.fromkeys(analysis.network.calibrated_tensors, 4.0)
        mixed = INT8.with_group_precision(analysis.network.groups[::3], Precision.FP32)
        found.append(last(measure_group_errors(analysis, {"fp16": FP16, "mixed": mixed}, ranges)))
    host, device = found
    assert forms == expected
    for run, groups in host.items():
        for name, one in groups.items():
            other = device[run][name]
            assert (other.ref_max, other.fp16_over, other.fp16_under) == (
                pytest.approx(one.ref_max, rel=1e-5),
                one.fp16_over,
                pytest.approx(one.fp16_under, abs=2),
            )
            assert other.warning_text == one.warning_text
            for kind in ("accumulated", "isolated"):
                flow, data = getattr(one, kind), getattr(other, kind)
                assert (data.nan, data.inf) == (flow.nan, flow.inf)
                if flow.sqnr_db is not None and flow.sqnr_db < 100:
                    assert data.sqnr_db == pytest.approx(flow.sqnr_db, abs=0.3), (run, name, kind)
                    assert data.mean_abs == pytest.approx(flow.mean_abs, rel=0.1)
                    assert data.max_abs == pytest.approx(flow.max_abs, rel=0.5)


def test_a_device_counts_what_is_not_finite(analysed, monkeypatch):
    monkeypatch.setattr(simulation_module, "MIN_COMPARED_ELEMENTS", 1)
    analysis = analysed(single("Relu", 1e5), vectors())
    analysis.classifier_output = None
    analysis.backend.capabilities = replace(analysis.backend.capabilities, has_device=True)
    assert last(analysis.measure_accuracy(FP16, {})).outputs["y"].errors.inf > 0


@pytest.mark.parametrize("name", ["small_resnet", "bert_block"])
def test_magnitudes_come_from_the_executions_that_measure_errors(name, tmp_path, named_network, monkeypatch):
    """The extremes are those of the graph of magnitudes alone, padding and values inside operators included."""
    network, data = named_network(name), tmp_path / "data.npz"
    feeds = networks.feeds(onnx.load(network.path), seed=3, n=4, **({"sequence": 16} if name == "bert_block" else {}))
    np.savez(data, **feeds)
    samples = load_samples(data, network.inputs, batch=2)
    judged = select_judged_outputs(network, ("last_hidden_state@attention_mask",) if name == "bert_block" else ())
    backend = OnnxRuntimeBackend(threads=2)
    with Analysis(network, backend, samples, judged) as alone, Analysis(network, backend, samples, judged) as joint:
        for _ in alone.measure_magnitudes():
            pass
        source = layers_module.ConfigWithGroupErrors(joint, FP16, {}, "FP16")
        monkeypatch.setattr(simulation_module, "MagnitudeTask", None)  # no other execution measures magnitudes
        accuracy = last(joint.compare(source))
        expected, measured = alone.get_magnitudes(), joint.get_magnitudes()
    assert accuracy.outputs and set(source.group_errors) == {group.name for group in network.groups}
    assert measured.tensor_magnitudes == pytest.approx(expected.tensor_magnitudes, rel=1e-4)
    assert measured.inner_magnitudes == pytest.approx(expected.inner_magnitudes, rel=1e-4)
    assert len(measured.tensor_magnitudes) > len(network.groups)
