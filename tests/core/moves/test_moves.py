"""trt_tui.core.moves: what a kind of move must bring along, shown by one that is made up here"""

import json
import re
from dataclasses import dataclass
from types import SimpleNamespace

import onnx
import onnx_ir as ir
import pytest

from tests import networks
from tests.refusals import refused
from tests.texts import lacking
from trt_tui.backends.registry import get_simulation_backend
from trt_tui.core.lowering.typed_network import lower_from_source_model, lower_to_typed_network
from trt_tui.core.lowering.weak_typing import lower_to_implicit_quantization
from trt_tui.core.moves.config import (
    MOVE_KINDS,
    BarrierMove,
    ConfigDifference,
    PrecisionConfig,
    PrecisionMove,
    list_config_differences,
)
from trt_tui.core.moves.config_file import config_text, read_config
from trt_tui.core.moves.move import GROUP_SUBJECTS, MOVE_TEXTS, Move, MoveTexts
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.core.report.config_report import config_markdown
from trt_tui.errors import InputError
from trt_tui.session.history import ChangeHistory, ConfigNames, SavedSession, SessionFolder
from trt_tui.tui.state.detail import other_moves_text

FC1, FC2 = "/fc1/Gemm", "/fc2/MatMul"
FILE = PrecisionConfig(Precision.FILE, Precision.FILE)


@dataclass(frozen=True)
class Kept(Move):
    """Keeps a group in FP32 by a rule; none is kept that does not multiply."""

    kind, subject_kind = "kept", GROUP_SUBJECTS

    rule: str
    above: float = 1.0

    @property
    def equivalence_key(self):
        return self.rule, self.above

    def refusal_reason(self, network, subject):
        return "" if network.get_group(subject).weight_qdq_sites() else "it multiplies nothing"

    @property
    def group_precision(self):
        return Precision.FP32


KEPT_TEXTS = MoveTexts(
    "rule",
    "{move.rule} > {move.above:g}",
    "be kept by a rule",
    "rule {move.label} by {move.origin_text}",
    "rule of {subject}",
    no_move="no rule",
    origin="a rule",
)


@pytest.fixture
def network(tmp_path, monkeypatch):
    monkeypatch.setitem(MOVE_KINDS, Kept.kind, Kept)
    monkeypatch.setitem(MOVE_TEXTS, Kept.kind, KEPT_TEXTS)
    onnx.save(networks.mlp(), tmp_path / "mlp.onnx")
    return open_network(tmp_path / "mlp.onnx")


@pytest.fixture
def config():
    return PrecisionConfig().with_moves({FC1: PrecisionMove(Precision.FP16)}).with_moves({FC2: Kept("range", 3.0)})


def test_a_new_kind_goes_through_the_file_and_is_refused_where_nobody_knows_it(network, config, tmp_path, monkeypatch):
    file = tmp_path / "precision.json"
    file.write_text(config_text(network, config))
    assert json.loads(file.read_text())["moves"][1] == {
        "kind": "kept",
        "layers": [FC2, "/fc2/Add", "/act2/Relu"],
        "rule": "range",
        "above": 3.0,
    }
    loaded = read_config(file, network)
    assert loaded.config == config and loaded.config.moves == config.moves and not loaded.warnings
    record = json.loads(file.read_text())
    record["moves"][1]["above"] = "much"
    file.write_text(json.dumps(record))
    with pytest.raises(InputError, match='moves\\[1\\].above is "much"'):
        read_config(file, network)
    file.write_text(config_text(network, config))
    monkeypatch.delitem(MOVE_KINDS, Kept.kind)
    with refused(cause='"kept"'):
        read_config(file, network)


def test_a_new_kind_is_kept_in_saved_sessions(network, config, tmp_path, monkeypatch):
    history = ChangeHistory(PrecisionConfig())
    history.push_config(config)
    store = SessionFolder(tmp_path / "sessions")
    names = ConfigNames([(config, "c1")])
    names.rename_config(config, "kept")
    store.save_session("a" * 64, SavedSession.from_state(network.build_outline(), history, names, ""))
    store.release_session_lock()
    saved = store.load_session("a" * 64, network.build_outline().path, network.build_outline())
    store.release_session_lock()
    assert saved.to_change_history().state.config.moves == config.moves
    assert saved.to_config_names() == {config: "kept"}
    monkeypatch.delitem(MOVE_KINDS, Kept.kind)
    assert (
        store.load_session("a" * 64, network.build_outline().path, network.build_outline()) is None
        and '"kept"' in store.load_failures[0]
    )


def test_a_new_kind_is_undone_and_taken_back(config):
    history = ChangeHistory(PrecisionConfig())
    history.push_config(config)
    more = config.with_moves({FC1: Kept("size")})
    history.push_config(more)
    assert (
        more != config
        and more.comparison_key != config.comparison_key
        and more.precision_moves == config.precision_moves
    )
    assert history.undo() and history.state.config == config and history.redo() and history.state.config == more
    assert more.without_moves(Kept, [FC1]) == config and config.without_moves(Kept) == config.with_moves(
        {}
    ).without_moves(Kept, [FC2])
    other = config.with_moves({FC2: Kept("range", 4.0)})
    assert other != config


def test_a_new_kind_has_its_words_in_comparisons_rows_and_reports(network, config):
    group = network.get_group(FC2)
    assert list_config_differences(config, PrecisionConfig(), network) == [
        ConfigDifference(PrecisionMove, FC1, "FP16", "INT8"),
        ConfigDifference(Kept, FC2, "range > 3", "no rule"),
    ]
    assert Kept.difference_title("fc2") == "rule of fc2"
    ((_, move),) = config.find_moves_on_group(group)
    assert "range > 3" in move.row_note
    session = SimpleNamespace(history=ChangeHistory(PrecisionConfig()), opened_network=SimpleNamespace(outline=network))
    assert other_moves_text(session, config, group) == f"; {move.row_note}"
    session.history.change_fields(choice_reasons={FC2: "without it ~9 dB (fails), with it ~12 dB"})
    assert other_moves_text(session, config, group) == f"; {move.row_note}", "that is the reason of its precision"
    rows = [line.strip("| ").split(" | ") for line in config_markdown(network, config, "", "").splitlines()]
    assert ["layer", "operator", "rule", "set by"] in rows and [FC2, "MatMul", "range \\> 3", "a rule"] in rows


def test_lowerings_read_a_new_kind_and_refuse_it_where_it_does_not_apply(network, config, tmp_path):
    ranges = dict.fromkeys(network.calibrated_tensors, 1.0)
    assert config.precision_of(network.get_group(FC2)) is Precision.FP32 and FC2 in config.find_raised_groups(network)
    assert lower_to_typed_network(network, config, ranges).layer_changes[FC2] == "FP32"
    assert lower_to_implicit_quantization(network, config, ranges).precisions[FC2] is Precision.FP32
    onnx.save(networks.small_resnet(), tmp_path / "resnet.onnx")
    other = open_network(tmp_path / "resnet.onnx")
    pool = next(group.name for group in other.groups if not group.weight_qdq_sites())
    file = tmp_path / "precision.json"
    file.write_text(config_text(other, PrecisionConfig().with_moves({pool: Kept("range")})))
    with pytest.raises(InputError, match="cannot be kept by a rule") as raised:
        read_config(file, other)
    assert raised.value.cause == "it multiplies nothing"


@pytest.mark.parametrize(
    ("quantized", "kept"), [(Precision.INT8, "FLOAT16"), (Precision.FP32, "FLOAT"), (Precision.BF16, "FLOAT")]
)
def test_a_fusion_barrier_is_an_output_of_every_lowering_and_changes_nothing_else(tmp_path, quantized, kept):
    """Of a strongly typed one in FP16 where that is what it has, so that nothing is computed for it."""
    onnx.save(networks.mlp(), tmp_path / "mlp.onnx")
    network = open_network(tmp_path / "mlp.onnx", get_simulation_backend)
    tail, ranges = network.get_group(FC1).final_tensor, dict.fromkeys(network.calibrated_tensors, 1.0)
    plain = PrecisionConfig.from_precision(quantized)
    config = plain.with_moves({tail: BarrierMove()})
    outputs = [info.name for info in network.outputs]
    typed, before = (
        lower_to_typed_network(network, config, ranges),
        lower_to_typed_network(network, plain, ranges).model,
    )
    assert [(value.name, value.dtype.name) for value in typed.model.graph.outputs] == [
        *((name, "FLOAT") for name in outputs),
        (tail, kept),
    ]
    assert len(typed.model.graph) - len(before.graph) == (quantized is Precision.BF16)
    assert not lacking(typed.notes[-1], "1 hidden output", tail)
    weak = lower_to_implicit_quantization(network, config, ranges)
    assert [value.name for value in weak.model.graph.outputs] == [*outputs, tail] and weak.notes[-1] == typed.notes[-1]
    file = tmp_path / "precision.json"
    file.write_text(config_text(network, config))
    assert read_config(file, network).config == config != plain
    file.write_text(config_text(network, plain.with_moves({outputs[0]: BarrierMove()})))
    with pytest.raises(InputError, match="cannot become a network output"):
        read_config(file, network)


def test_a_fusion_barrier_in_a_file_of_its_own_precisions(opened):
    """What is as in the file stays so; a result in FP16 is an output in FP16."""
    base = opened(networks.mlp())
    half = lower_to_typed_network(base, PrecisionConfig.from_precision(Precision.FP16), {}).model
    network = opened(ir.to_proto(half))
    tail = network.get_group(FC1).final_tensor
    for config in (
        FILE,
        FILE.with_group_precision([network.get_group(FC2)], Precision.FP32),
        FILE.with_group_precision([network.get_group(FC1)], Precision.FP32),
    ):
        model = lower_from_source_model(network, config.with_moves({tail: BarrierMove()}), {}).model
        found = {value.name: value.dtype.name for value in model.graph.outputs}
        assert list(found) == [*(info.name for info in network.outputs), tail]
        assert found[tail] == ("FLOAT" if network.get_group(FC1).name in config.precision_moves else "FLOAT16")


@pytest.mark.parametrize(("quantized", "labels"), [(Precision.INT8, ("INT8", "FP16")), (Precision.FP16, ("FP16",))])
def test_the_default_precisions_are_named_once(quantized, labels):
    text = PrecisionConfig.from_precision(quantized, Precision.FP16).defaults_text
    assert re.findall(r"[A-Z]+\d+", text) == [*labels]
