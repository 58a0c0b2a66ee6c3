"""search --costs: profiles of engines, times of fused layers, predicted latencies, searches that minimise them"""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests import networks
from tests.driven import save_resnet
from tests.schemas import mismatches
from tests.test_layer_files import RECORDED
from tests.test_search import Noise, finish, toy
from tests.test_search_networks import INT8 as SIMULATED_INT8
from tests.test_search_networks import Simulated, vectors
from trt_tui import demo
from trt_tui.core.engines.group_times import GroupTimes, read_group_times
from trt_tui.core.engines.trex import layer_profile_text, read_layer_profile
from trt_tui.core.measure.target import parse_target
from trt_tui.core.measure.target_outcome import check_targets
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.core.search import SEARCH_METHODS, TOP_DOWN_METHODS, Search, SearchOutcome, SearchSpace
from trt_tui.core.search.latency_prediction import LatencyPrediction
from trt_tui.errors import InputError

INT8 = PrecisionConfig.from_precision(Precision.INT8)
FP16, FP32 = Precision.FP16, Precision.FP32

RESNET_LAYERS = {
    "Reformatting CopyNode for Input Tensor 0 to /conv1/Conv + /relu/Relu": 0.05,
    "/conv1/Conv + /relu/Relu": 0.1,
    "/layer1/conv1/Conv + /layer1/relu1/Relu": 0.2,
    "/layer1/conv2/Conv + /layer1/Add + /layer1/relu2/Relu": 0.4,
    "/layer2/conv1/Conv + /layer2/relu1/Relu": 0.3,
    "/layer2/conv2/Conv": 0.1,
    "/layer2/downsample.0/Conv + /layer2/Add + /layer2/relu2/Relu": 0.5,
    "/avgpool/GlobalAveragePool": 0.02,
    "/fc/Gemm": 0.03,
}
"""Milliseconds of the engine layers of `networks.small_resnet`, named as TensorRT 8.6 names them."""


def as_trtexec(ms_by_layer, has_median=True):
    """The text that `Profiler::exportJSONProfile` of trtexec writes, in release 10 and 8.6 or before."""
    total = sum(ms_by_layer.values())
    text = '[\n  { "count" : 10 }\n'
    for name, ms in ms_by_layer.items():
        median = f', "medianMs" : {ms:g}' if has_median else ""
        text += (f', {{ "name" : "{name}", "timeMs" : {ms * 10:g}, "averageMs" : {ms:g}{median}, '
                 f'"percentage" : {100 * ms / total:g} }}\n')
    return text + "]\n"


def write_profile(path, ms_by_layer, **form):
    path.write_text(as_trtexec(ms_by_layer, **form))
    return path


@pytest.fixture
def resnet(tmp_path):
    onnx.save(networks.small_resnet(), tmp_path / "resnet.onnx")
    return open_network(tmp_path / "resnet.onnx").build_outline()


# -- profiles ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [as_trtexec({"a + b": 0.625, "c\x1e": 0.375}),
                                  as_trtexec({"a + b": 0.625, "c\x1e": 0.375}, has_median=False),
                                  layer_profile_text({"a + b": 0.625, "c\x1e": 0.375}, 4)])
def test_profiles_of_every_release_are_read(tmp_path, text):
    path = tmp_path / "p.json"
    path.write_text(text)
    assert read_layer_profile(path) == {"a + b": 0.625, "c\x1e": 0.375}


def test_times_of_one_name_are_added(tmp_path):
    path = tmp_path / "p.json"
    path.write_text('[{"count": 1}, {"name": "a", "averageMs": 1}, {"name": "a", "averageMs": 2.5}]')
    assert read_layer_profile(path) == {"a": 3.5}


@pytest.mark.parametrize(("text", "cause"), [
    ("", "Expecting value"), ("{}", "not a list"), ('{"Layers": []}', "not a list"), ("[1]", "not an object"),
    ("[" * 5000 + "]" * 5000, "too deep"), ("[]", "no engine layer takes any time"),
    ('[{"count": 3}]', "no engine layer takes any time"), ('[{"averageMs": 1}]', "entry 0 has no name"),
    ('[{"count": 3}, {"count": 3}]', "entry 1 has no name"), ('[{"name": 1, "averageMs": 1}]', "has no name"),
    ('[{"name": "a", "averageMs": 0}]', "no engine layer takes any time"),
    *((f'[{{"name": "a", "averageMs": {value}}}]', "not a time in milliseconds")
      for value in ("NaN", "Infinity", "-0.1", "1e300", "true", '"1"', "null", "[]", "1" + "0" * 400)),
    ('[{"name": "a"}]', "not a time in milliseconds"), ("1" * 5000, "Exceeds the limit"), ("\xff", "")])
def test_what_is_no_profile_is_refused(tmp_path, text, cause):
    path = tmp_path / "p.json"
    path.write_bytes(text.encode("latin1"))
    with pytest.raises(InputError) as error:
        read_layer_profile(path)
    assert cause in error.value.cause and "p.json" in error.value.title and error.value.next_step


# -- times of groups ---------------------------------------------------------------------------------------------------


def test_each_fused_layer_gets_the_time_of_its_engine_layers(resnet, tmp_path):
    times = read_group_times(write_profile(tmp_path / "p.json", RESNET_LAYERS), resnet)
    assert times.ms_by_group == {name.partition(" ")[0]: pytest.approx(ms) for name, ms in RESNET_LAYERS.items()
                                 if not name.startswith("Reformatting")}
    assert (times.total_ms, times.matched_ms, times.reformat_ms) == pytest.approx((1.7, 1.65, 0.05))
    assert times.match_text == "p.json: 97% of 1.70 ms is matched to 8 of 8 fused layers; reformats take 3%"


def test_a_fused_region_is_divided_by_multiply_accumulates(resnet, tmp_path):
    region = {"/conv1/Conv + /relu/Relu": 1.0, "{ForeignNode[/layer1/conv1/Conv.../layer1/relu2/Relu]}": 2.0,
              "/layer2/conv1/Conv || /layer2/downsample.0/Conv": 1.1, "/layer2/Add + /avgpool/GlobalAveragePool": 0.5}
    times = read_group_times(write_profile(tmp_path / "p.json", region), resnet)
    assert times.ms_by_group == pytest.approx({
        "/conv1/Conv": 1.0, "/layer1/conv1/Conv": 1.0, "/layer1/conv2/Conv": 1.0, "/layer2/conv1/Conv": 0.99,
        "/layer2/downsample.0/Conv": 0.11 + 0.25, "/avgpool/GlobalAveragePool": 0.25, "/layer2/conv2/Conv": 0.0,
        "/fc/Gemm": 0.0})
    assert times.matched_group_count == 6, "the last two have no engine layer, and no time is left for them"


def test_unmatched_time_belongs_to_the_layers_that_no_name_shows(resnet, tmp_path):
    hidden = {name: ms for name, ms in RESNET_LAYERS.items() if "/fc/" not in name and "/layer2/conv2" not in name}
    times = read_group_times(write_profile(tmp_path / "p.json", {**hidden, "__myl_FcAdd_myl0_1": 0.5}), resnet)
    assert times.match_text.startswith("p.json: 73% of 2.07 ms is matched to 6 of 8 fused layers")
    macs = {"/layer2/conv2/Conv": 2359296, "/fc/Gemm": 320}
    assert {name: times.ms_by_group[name] for name in macs} == pytest.approx(
        {name: 0.5 * count / sum(macs.values()) for name, count in macs.items()})
    assert math.fsum(times.ms_by_group.values()) + times.reformat_ms == pytest.approx(times.total_ms)


@pytest.mark.parametrize("layers", [{"backbone.conv + backbone.relu": 3.0},
                                    {"{ForeignNode[/embeddings/Gather.../pooler/Tanh]}": 3.0},
                                    {"/conv1/Conv": 0.1, "__myl_Fc_myl0_1": 2.0}])
def test_the_profile_of_another_network_is_refused(resnet, tmp_path, layers):
    with pytest.raises(InputError) as error:
        read_group_times(write_profile(tmp_path / "p.json", layers), resnet)
    assert "p.json matches too little of" in error.value.title
    assert "is matched to" in error.value.cause and "--exportLayerInfo" in error.value.next_step


def test_the_graph_beside_a_profile_tells_the_nodes(resnet, tmp_path):
    profile = write_profile(tmp_path / "e.profile.json", {"__myl_a_myl0_0": 1.0, "__myl_b_myl0_1": 3.0, "copy": 0.5})
    with pytest.raises(InputError, match="matches too little"):
        read_group_times(profile, resnet)
    tensor = {"Name": "image", "Format/Datatype": "Row major linear FP32"}
    nodes = {"__myl_a_myl0_0": "/conv1/Conv", "__myl_b_myl0_1": "/layer1/conv1/Conv"}
    (tmp_path / "e.graph.json").write_text(json.dumps({"Layers": [
        {"Name": name, "LayerType": "CaskConvolution", "Inputs": [tensor], "Outputs": [tensor],
         "Metadata": f"[ONNX Layer: {node}]"} for name, node in nodes.items()]}))
    times = read_group_times(profile, resnet)
    assert times.matched_ms == 4.0 and times.graph_name == "e.graph.json"
    assert (times.ms_by_group["/conv1/Conv"], times.ms_by_group["/layer1/conv1/Conv"]) == (1.0, 3.0)
    assert times.implementations["/conv1/Conv"].precision is FP32
    (tmp_path / "e.graph.json").write_text("[]")
    with pytest.raises(InputError, match="not the layer information"):
        read_group_times(profile, resnet)


def test_a_recorded_engine_of_8_6_is_matched_by_name_and_by_its_graph(tmp_path):
    network = open_network(Path(demo.__file__).parent / "scenes.onnx").build_outline()
    layers = json.loads(RECORDED.read_text(), strict=False)["Layers"]
    ms_by_layer = {layer["Name"]: 0.01 * (layer["LayerType"] != "NoOp") for layer in layers}
    profile = write_profile(tmp_path / "scenes.profile.json", ms_by_layer)
    by_name = read_group_times(profile, network)
    (tmp_path / "scenes.graph.json").write_text(RECORDED.read_text())
    by_graph = read_group_times(profile, network)
    # Without the graph nothing shows that "... copy" computes a Concat.
    assert (by_name.matched_group_count, by_graph.matched_group_count, len(network.groups)) == (34, 37, 37)
    concats = {group.name for group in network.groups if group.operator == "Concat"}
    assert len(concats) == 3 and all(
        by_graph.ms_by_group[name] == pytest.approx(0.01 if name in concats else by_name.ms_by_group[name])
        for name in by_graph.ms_by_group)
    for times in (by_name, by_graph):
        assert math.fsum(times.ms_by_group.values()) == pytest.approx(times.matched_ms)
    assert by_graph.matched_ms + by_graph.reformat_ms == pytest.approx(by_graph.total_ms)


# -- predictions -------------------------------------------------------------------------------------------------------


def times_of(ms_by_group, rest=0.0, **graph):
    total = math.fsum(ms_by_group.values())
    return GroupTimes("p.json", total + rest, total, rest, len(ms_by_group), ms_by_group, **graph)


def test_one_profile_scales_with_the_bytes_of_a_value():
    network = toy(3)
    start = times_of({"g0": 1.0, "g1": 2.0, "g2": 0.0}, rest=0.5)
    for higher, factor in ((FP16, 2), (FP32, 4)):
        prediction = LatencyPrediction(network, [start], INT8, higher)
        space = SearchSpace(network, INT8, higher)
        assert prediction.predict_raise_costs(space) == {"g0": factor - 1.0, "g1": 2.0 * (factor - 1), "g2": 0.0}
        assert prediction.predict_ms(INT8) == 3.5
        assert prediction.predict_ms(space.build_config(["g1"])) == 3.5 + 2.0 * (factor - 1)
    prediction = LatencyPrediction(network, [start], INT8, FP32)
    space = SearchSpace(network, INT8, FP32, (Precision.FP8, FP16))
    assert prediction.predict_ms(space.build_config(["g0", "g1"], precisions={"g0": FP16})) == 3.5 + 1.0 + 6.0
    assert prediction.predict_ms(space.build_config(["g0"], precisions={"g0": Precision.FP8})) == 3.5
    fp32 = PrecisionConfig.from_precision(FP32)  # the profiled engine is that of the start, whatever it is
    assert LatencyPrediction(network, [start], fp32, FP32).predict_ms(INT8) == 0.5 + 3.0 / 4


def test_two_profiles_give_measured_differences():
    network = toy(3)
    profiles = [times_of({"g0": 1.0, "g1": 2.0, "g2": 1.0}, rest=0.5), times_of({"g0": 1.5, "g1": 5.0, "g2": 0.25})]
    prediction = LatencyPrediction(network, profiles, INT8, FP32)
    space = SearchSpace(network, INT8, FP32, (FP16,))
    assert prediction.predict_raise_costs(space) == {"g0": 0.5, "g1": 3.0, "g2": 0.0}, "no raise saves time"
    assert prediction.predict_ms(space.build_config(["g0", "g1"])) == 4.5 + 0.5 + 3.0
    half = space.build_config(["g1"], precisions={"g1": FP16})
    assert prediction.predict_ms(half) == pytest.approx(4.5 + 3.0 / 3), "2 of 1 to 4 bytes"


def test_profiles_in_the_wrong_order_are_noticed():
    profiles = [times_of({"g0": 4.0}), replace(times_of({"g0": 1.0}), profile_name="q.json")]
    swapped, right = (LatencyPrediction(toy(1), some, INT8, FP32).basis_texts() for some in (profiles, profiles[::-1]))
    assert swapped[2] == ("q.json takes less time than p.json: check their order; the profile of the start comes first")
    assert len(right) == 2 and "all layers in FP32" in right[1]


def test_a_layer_that_cannot_be_raised_has_one_time():
    network = toy(2, operators=["Gemm", "Softmax"])
    profiles = [times_of({"g0": 1.0, "g1": 2.0}), times_of({"g0": 3.0, "g1": 9.0})]
    prediction = LatencyPrediction(network, profiles, INT8, FP16)
    space = SearchSpace(network, INT8, FP16)
    assert space.candidates == ("g0",) and prediction.predict_raise_costs(space) == {"g0": 2.0}
    assert prediction.predict_ms(space.build_config(["g0"])) == 5.0


def test_the_graph_shows_which_precision_was_profiled(resnet, tmp_path):
    profile = write_profile(tmp_path / "e.profile.json", RESNET_LAYERS)
    plain = LatencyPrediction(resnet, [read_group_times(profile, resnet)], INT8, FP32)
    tensors = {"Inputs": [{"Name": "image", "Datatype": "FP32"}], "Outputs": [{"Name": "image", "Datatype": "FP32"}]}
    (tmp_path / "e.graph.json").write_text(json.dumps({"Layers": [
        {"Name": name, "LayerType": "CaskConvolution", **tensors} for name in RESNET_LAYERS
        if not name.startswith("Reformatting")]}))
    shown = LatencyPrediction(resnet, [read_group_times(profile, resnet)], INT8, FP32)
    space = SearchSpace(resnet, INT8)
    all_raised = space.build_config(space.candidates)
    convs = [group.name for group in resnet.groups if group.is_quantizable]
    assert plain.predict_ms(INT8) == pytest.approx(1.7) and shown.predict_ms(all_raised) == pytest.approx(1.7)
    costs, shown_costs = (prediction.predict_raise_costs(space) for prediction in (plain, shown))
    assert {name: costs[name] / shown_costs[name] for name in convs} == pytest.approx(dict.fromkeys(convs, 4.0))
    assert shown.basis_texts()[0].endswith("taken as the engine of the start, except where e.graph.json shows another "
                                           "precision") and plain.basis_texts()[0].endswith("engine of the start")


# -- searches ----------------------------------------------------------------------------------------------------------


class Priced(Noise):
    """`Noise` whose groups take milliseconds of their own; a raise makes a group 4 times as slow."""

    def __init__(self, count, seed, *arguments):
        super().__init__(count, seed, *arguments)
        rng = np.random.default_rng(seed + 1000)
        self.times = times_of({name: float(ms) for name, ms in zip(self.names, np.exp(rng.normal(0, 1, count)),
                                                                  strict=True)})
        self.prediction = LatencyPrediction(self.network, [self.times], INT8, FP32)

    def cost(self, raised):
        return math.fsum(3 * self.times.ms_by_group[name] for name in raised)

    def cheapest(self):
        """The cost of the cheapest set that passes, by brute force."""
        return min(self.cost(some) for count in range(len(self.names) + 1)
                   for some in itertools.combinations(self.names, count) if self.energy(some) <= self.bound)

    def priced_search(self, method="auto", **options):
        space = SearchSpace(self.network, INT8, FP32)
        return self.search(method, costs=self.prediction.predict_raise_costs(space), minimizes_cost=True,
                           estimate_latency=self.prediction.predict_ms, **options)


def test_auto_with_costs_against_brute_force():
    ratios, plain_ratios = [], []
    for together, seed, allowed in itertools.product((0.1, 0.4), range(10), (0.4, 0.1)):
        noise = Priced(8, seed, allowed, together)
        found = finish(noise.priced_search(), noise).best_evaluation
        plain = finish(noise.search(), noise).best_evaluation
        cheapest = noise.cheapest()
        assert noise.energy(found.raised_groups) <= noise.bound
        assert found.estimated_latency == pytest.approx(noise.times.total_ms + noise.cost(found.raised_groups))
        ratios.append(noise.cost(found.raised_groups) / cheapest)
        plain_ratios.append(noise.cost(plain.raised_groups) / cheapest)
    assert np.mean(np.isclose(ratios, 1)) >= 0.9 and max(ratios) < 1.25
    assert np.mean(np.isclose(plain_ratios, 1)) < 0.7 and max(plain_ratios) > 2


@pytest.mark.parametrize("method", SEARCH_METHODS)
def test_no_method_costs_more_with_costs_than_without(method):
    cheaper = 0
    for seed, allowed in itertools.product(range(8), (0.4, 0.1)):
        noise = Priced(9, seed, allowed, 0.3)
        priced, plain = finish(noise.priced_search(method), noise), finish(noise.search(method), noise)
        costs = [noise.cost(result.best_evaluation.raised_groups) for result in (priced, plain)]
        assert priced.is_met and plain.is_met
        assert method in TOP_DOWN_METHODS or costs[0] <= costs[1] + 1e-9
        cheaper += costs[0] < costs[1] - 1e-9
    assert cheaper > 0 or method not in ("auto", "greedy", "worst-first")


@pytest.mark.parametrize("seed", range(3))
def test_the_cheapest_set_of_a_network_is_found(tmp_path, backend, seed):
    one = Simulated(tmp_path, networks.chain(seed), vectors(8, seed), backend)
    try:
        space = SearchSpace(one.network, SIMULATED_INT8)
        rng = np.random.default_rng(seed)
        times = times_of({group.name: float(np.exp(rng.normal())) for group in one.network.groups})
        prediction = LatencyPrediction(one.network, [times], SIMULATED_INT8, FP32)
        target = parse_target(f"sqnr>={one.decibels(SIMULATED_INT8) + 6:.2f}")
        impacts, verdicts = one.impacts(), {}

        def judged(config):
            names = frozenset(config.precision_moves)
            verdicts[names] = verdicts.get(names) or check_targets([target], one.verdict(config))
            return verdicts[names]

        def found(**options):
            return finish(Search(space, sensitivities=impacts, **options), judged)

        plain = found()
        priced = found(costs=prediction.predict_raise_costs(space), minimizes_cost=True,
                       estimate_latency=prediction.predict_ms)
        sets = [some for count in range(len(space.candidates) + 1)
                for some in itertools.combinations(space.candidates, count)]
        cheapest = min(prediction.predict_ms(config) for config in map(space.build_config, sets)
                       if judged(config).passes)
        assert priced.is_met and priced.best_evaluation.estimated_latency == pytest.approx(cheapest)
        assert cheapest <= prediction.predict_ms(plain.config) + 1e-9
    finally:
        one.analysis.close()


def test_the_most_expensive_layer_is_reverted_first():
    noise = Priced(3, 0)
    noise.energy = lambda raised: float(2 > len(set(raised)))  # any two of them suffice
    noise.bound = 0.5
    dear = max(noise.names, key=lambda name: noise.times.ms_by_group[name])
    for method in ("linear", "auto", "bisect"):
        found = finish(noise.priced_search(method), noise).best_evaluation
        assert set(found.raised_groups) == {*noise.names} - {dear}


def test_a_cheap_pair_replaces_a_dear_layer():
    noise = Priced(3, 0)
    noise.energy = lambda raised: sum({"g0": 4.0, "g1": 2.1, "g2": 2.0}[name] for name in {*noise.names} - {*raised})
    noise.bound = 4.1
    noise.times = times_of({"g0": 9.0, "g1": 1.0, "g2": 1.0})
    noise.prediction = LatencyPrediction(noise.network, [noise.times], INT8, FP32)
    assert finish(noise.search(), noise).best_evaluation.raised_groups == ("g0",)
    result = finish(noise.priced_search(), noise)
    assert result.best_evaluation.raised_groups == ("g1", "g2")
    assert "2 of 3 groups in FP32 meet the tolerance" in result.summary
    assert result.summary.endswith("predicted 17.0 ms (start: 11.0 ms)")
    assert all(reason.endswith("predicted to cost 3.00 ms") for reason in result.raise_reasons.values())


def test_lower_begins_with_what_is_predicted_to_save_most():
    noise = Priced(5, 3)
    steps = finish(noise.priced_search("lower"), noise).reduction_steps
    assert [step.layer_name for step in steps] == sorted(noise.names, key=lambda name: -noise.times.ms_by_group[name])


def test_rungs_are_predicted_too():
    noise = Priced(6, 1, 0.2, 0.0)
    space = SearchSpace(noise.network, INT8, FP32, (FP16,))
    search = Search(space, sensitivities=noise.impacts(), costs=noise.prediction.predict_raise_costs(space),
                    minimizes_cost=True, estimate_latency=noise.prediction.predict_ms)
    result = finish(search, noise)  # a raised group has no noise left in FP16 either
    raised = result.best_evaluation.raised_groups
    assert result.best_evaluation.precisions == dict.fromkeys(raised, FP16)
    assert result.best_evaluation.estimated_latency == pytest.approx(noise.times.total_ms + noise.cost(raised) / 3)


def test_a_search_with_costs_goes_on_from_its_list_of_evaluations():
    noise = Priced(8, 3)
    whole = noise.priced_search()
    expected = finish(whole, noise)
    for done in range(0, len(whole.evaluations), 3):
        again = Priced(8, 3)
        resumed = again.priced_search(earlier_evaluations=whole.evaluations[:done])
        assert finish(resumed, again).config == expected.config and len(again.counts) == len(whole.evaluations) - done


def test_costs_that_are_all_zero_leave_the_smallest_set():
    noise = Priced(7, 2)
    noise.times = times_of(dict.fromkeys(noise.names, 0.0), rest=1.0)
    noise.prediction = LatencyPrediction(noise.network, [noise.times], INT8, FP32)
    result, plain = finish(noise.priced_search(), noise), finish(noise.search(), noise)
    assert len(result.best_evaluation.raised_groups) <= len(plain.best_evaluation.raised_groups)
    assert result.best_evaluation.estimated_latency == 1.0 and result.outcome is SearchOutcome.MET


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path):
    options = save_resnet(tmp_path, samples=12)
    return [options.model, "--data", options.data, "--batch", "4", "--tolerance", "sqnr>=40", "--no-free",
            "--no-ranges"]


def searched(run, tmp_path, *arguments):
    code, shown, told = run("search", *arguments, "-o", tmp_path / "out.json", "--markdown", tmp_path / "out.md")
    assert code == 0, told
    record = json.loads((tmp_path / "out.json").read_text())
    assert not mismatches(record)
    return shown, record["evidence"]["search"], (tmp_path / "out.md").read_text()


def test_the_command_reports_layers_and_predicted_milliseconds(run, files, tmp_path):
    _, plain, _ = searched(run, tmp_path, *files)
    assert "costs" not in plain
    first = write_profile(tmp_path / "int8.json", RESNET_LAYERS)
    shown, found, markdown = searched(run, tmp_path, *files, "--costs", first)
    costs = found["costs"]
    assert costs["profiles"] == [str(first)] and costs["predicted_ms_of_start"] == pytest.approx(1.7)
    resnet = open_network(files[0])
    ms = {group.name: times for group in resnet.groups for name, times in RESNET_LAYERS.items()
          if name.startswith(group.name)}

    def cost(names):
        return sum(ms[name] * (3 if resnet.get_group(name).is_quantizable else 1) for name in names)

    assert costs["raised_layers"] == len(found["why"])
    assert costs["predicted_ms"] == pytest.approx(1.7 + cost(found["why"])) and cost(found["why"]) <= cost(plain["why"])
    assert "int8.json: 97% of 1.70 ms is matched to 8 of 8 fused layers" in shown
    headline = shown.splitlines()[0]
    assert f"{len(found['why'])} of 8 groups in FP32 meet" in headline and ", predicted " in headline
    assert "(start: 1.70 ms)" in headline and "predicted to cost " in shown
    header = next(line for line in shown.splitlines() if line.lstrip().startswith("step"))
    assert header.split()[-1] == "predicted"
    assert "predicted |" in markdown and "97% of 1.70 ms" in markdown and "(start: 1.70 ms)" in markdown


def test_the_content_of_the_profile_decides_not_what_was_stored(run, files, tmp_path):
    profile, chosen = tmp_path / "p.json", []
    for dear in ("/conv1/Conv + /relu/Relu", "/layer1/conv1/Conv + /layer1/relu1/Relu"):
        write_profile(profile, {**RESNET_LAYERS, dear: 50.0})
        found = searched(run, tmp_path, *files, "--costs", profile)[1]
        chosen.append(found["costs"]["predicted_ms"])
        assert found["costs"]["predicted_ms_of_start"] == pytest.approx(1.7 + 50 - RESNET_LAYERS[dear])
    assert chosen[0] != chosen[1]


def test_two_profiles_are_the_start_and_all_raised(run, files, tmp_path):
    first = write_profile(tmp_path / "int8.json", RESNET_LAYERS)
    second = write_profile(tmp_path / "fp32.json", {name: ms + 0.25 for name, ms in RESNET_LAYERS.items()})
    shown, found, _ = searched(run, tmp_path, *files, "--costs", first, "--costs", second)
    costs = found["costs"]
    assert costs["predicted_ms"] == pytest.approx(1.7 + 0.25 * costs["raised_layers"])
    assert "int8.json: 97% of 1.70 ms" in shown and "fp32.json: " in shown
    assert "taken as the engine of all layers in FP32" in shown


def test_bad_profiles_are_refused_by_the_command(run, files, tmp_path):
    profile, out = write_profile(tmp_path / "p.json", RESNET_LAYERS), tmp_path / "out.json"
    other = write_profile(tmp_path / "other.json", {"backbone.conv": 1.0})
    cases = [(["--costs", tmp_path / "none.json"], "none.json does not exist"),
             (["--costs", tmp_path], "it is a folder"),
             (["--costs", other], "other.json matches too little"),
             (["--costs", files[2]], "cannot be read"),
             (["--costs", profile] * 3, "--costs is given 3 times"),
             (["--costs", profile, "--max-latency", "1"], "--costs has no effect here")]
    for arguments, message in cases:
        code, _, told = run("search", *files, *arguments, "-o", out)
        assert code == 2 and message in told and "Next: " in told, told
        assert not out.exists()
    code, _, told = run("search", *files, "--costs", profile, "-o", profile)
    assert code == 2 and "p.json" in told and profile.read_text() == as_trtexec(RESNET_LAYERS)


@pytest.mark.parametrize("release", ["8.6.1", "10.16.1"])
def test_what_build_writes_is_read_with_its_graph(run, standin, mlp, tmp_path, release):
    engine, out = tmp_path / "model.engine", tmp_path / "out.json"
    standin(release)
    options = [mlp.model, "--data", mlp.data, "--batch", "4", "--backend", "tensorrt"]
    code, _, told = run("build", *options, "--precision", "int8", "-o", engine)
    assert code == 0, told
    times = read_group_times(tmp_path / "model.engine.profile.json", open_network(mlp.model))
    assert times.graph_name == "model.engine.graph.json" and times.matched_group_count == len(times.ms_by_group)
    code, shown, told = run("search", *options, "--tolerance", "sqnr>=35", "--max-builds", "0", "--no-free",
                            "--no-ranges", "--costs", f"{engine}.profile.json", "-o", out)
    assert code in (0, 1), told
    costs = json.loads(out.read_text())["evidence"]["search"]["costs"]
    assert costs["predicted_ms_of_start"] == pytest.approx(times.total_ms)
    assert "except where model.engine.graph.json shows another precision" in shown
