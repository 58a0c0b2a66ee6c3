"""Networks of very many small layers: their sessions are made small, with the same results."""

from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from tests import networks
from trt_tui.backends.onnxruntime import OnnxRuntimeBackend
from trt_tui.core.data.samples import load_samples
from trt_tui.core.lowering.gated.assembly import build_gated_graph
from trt_tui.core.lowering.gated.pieces import split_into_pieces
from trt_tui.core.measure import simulation
from trt_tui.core.measure.analysis import Analysis
from trt_tui.core.measure.group_errors import measure_group_errors
from trt_tui.core.measure.judged_outputs import select_judged_outputs
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network import small_layers
from trt_tui.core.network.constants import ConstantValues
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision

CONFIGS = [PrecisionConfig.from_precision(Precision.FP16), PrecisionConfig.from_precision(Precision.INT8)]


def test_gates_of_many_small_layers_are_data_with_the_same_results(tmp_path, monkeypatch):
    model = networks.small_resnet(size=8)
    path, data = tmp_path / "network.onnx", tmp_path / "samples.npz"
    onnx.save(model, path)
    np.savez(data, **networks.feeds(model, n=6))
    graphs, lower = [], simulation.build_gated_graph

    def lowered(network, **options):
        gated = lower(network, **options)
        graphs.append({node.op_type for node in gated.model.graph.all_nodes()})
        return gated

    monkeypatch.setattr(simulation, "build_gated_graph", lowered)
    found = []
    for least in (small_layers.MIN_LAYERS, 1):
        monkeypatch.setattr(small_layers, "MIN_LAYERS", least)
        monkeypatch.setattr(small_layers, "MAX_MEAN_ELEMENTS", 1 << 20)
        network = open_network(path)
        samples = load_samples(str(data), network.inputs, batch=2)
        ranges = dict.fromkeys(network.calibrated_tensors, 4.0)
        with Analysis(network, OnnxRuntimeBackend(threads=2), samples, select_judged_outputs(network, (),
                                                                                             ())) as analysis:
            verdicts = [[*analysis.measure_accuracy(config, ranges)][-1].value for config in CONFIGS]
            groups = [*measure_group_errors(analysis, {"fp16": CONFIGS[0]}, ranges)][-1].value["fp16"]
        found.append((verdicts, groups))
    assert "If" in graphs[0] and "If" not in graphs[-1]
    (flow, flow_groups), (as_data, data_groups) = found
    for expected, verdict in zip(flow, as_data, strict=True):
        assert verdict.caveats == expected.caveats and verdict.samples == expected.samples
        for output, accuracy in expected.outputs.items():
            assert verdict.outputs[output].errors.sqnr_db == pytest.approx(accuracy.errors.sqnr_db, abs=0.02)
    for group, errors in flow_groups.items():
        assert data_groups[group].ref_max == pytest.approx(errors.ref_max, rel=1e-5)


def test_large_results_and_few_layers_keep_the_form_that_computes_less(monkeypatch, named_network):
    graph = named_network("mlp").model.graph
    assert not small_layers.has_many_small_layers(graph)
    monkeypatch.setattr(small_layers, "MIN_LAYERS", 1)
    assert small_layers.has_many_small_layers(graph)
    monkeypatch.setattr(small_layers, "MAX_MEAN_ELEMENTS", 1)
    assert not small_layers.has_many_small_layers(graph)


def test_a_piece_is_copied_only_when_it_is_asked_for(named_network):
    pieces = split_into_pieces(build_gated_graph(named_network("small_resnet"), gates_as_data=True))
    assert next(pieces) is not None and pieces.gi_frame is not None


def test_the_readers_of_a_constant_within_fp16_are_not_listed():
    """Listed for each of its readers again, the time would grow with the square of the layers."""
    graph = SimpleNamespace(is_fp32=lambda tensor: True)
    constants = object.__new__(ConstantValues)
    constants._graph, constants.constant_amax = graph, lambda tensor: np.float32(0.7)
    assert not constants.is_mask("factor")
