"""trt_tui.core.moves: what a kind of move must bring along, shown by one that is made up here"""

import json
from dataclasses import dataclass
from types import SimpleNamespace

import onnx
import onnx_ir as ir
import pytest

from tests import networks
from tests.refusals import refused
from trt_tui.backends.registry import get_backend
from trt_tui.core.exporters.markdown import moves_markdown
from trt_tui.core.lowering.strong import lower_strong
from trt_tui.core.lowering.typed import lower_typed
from trt_tui.core.lowering.weak import lower_weak
from trt_tui.core.moves.barrier import Barrier
from trt_tui.core.moves.choice import Choice
from trt_tui.core.moves.config import Compared, PrecisionConfig, compared, distance
from trt_tui.core.moves.file import config_text, read_config
from trt_tui.core.moves.kinds import KINDS
from trt_tui.core.moves.move import GROUPS, Move
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.session.history import ConfigNames, History
from trt_tui.session.saved import Saved, SavedSessions
from trt_tui.tui.state.detail import other_moves

FC1, FC2 = "/fc1/Gemm", "/fc2/MatMul"
FILE = PrecisionConfig(Precision.FILE, Precision.FILE)


@dataclass(frozen=True)
class Kept(Move):
    """Keeps a group in FP32 by a rule; none is kept that does not multiply."""

    kind, subject, column, absent = "kept", GROUPS, "rule", "no rule"

    rule: str
    above: float = 1.0

    @property
    def decides(self):
        return self.rule, self.above

    def refused(self, network, target):
        return "" if network.group(target).weights() else "it multiplies nothing"

    @property
    def runs_in(self):
        return Precision.FP32

    @property
    def label(self):
        return f"{self.rule} > {self.above:g}"

    @property
    def set_by(self):
        return "a rule"

    @property
    def infinitive(self):
        return "be kept by a rule"


@pytest.fixture
def network(tmp_path, monkeypatch):
    monkeypatch.setitem(KINDS, Kept.kind, Kept)
    onnx.save(networks.mlp(), tmp_path / "mlp.onnx")
    return open_network(tmp_path / "mlp.onnx")


@pytest.fixture
def config():
    return PrecisionConfig().with_moves({FC1: Choice(Precision.FP16)}).with_moves({FC2: Kept("range", 3.0)})


def test_a_new_kind_goes_through_the_file_and_is_refused_where_nobody_knows_it(network, config, tmp_path, monkeypatch):
    file = tmp_path / "precision.json"
    file.write_text(config_text(network, config))
    assert json.loads(file.read_text())["moves"][1] == {
        "kind": "kept", "layers": [FC2, "/fc2/Add", "/act2/Relu"], "rule": "range", "above": 3.0}
    loaded = read_config(file, network)
    assert loaded.config == config and loaded.config.moves == config.moves and not loaded.warnings
    record = json.loads(file.read_text())
    record["moves"][1]["above"] = "much"
    file.write_text(json.dumps(record))
    with pytest.raises(InputError, match="moves\\[1\\].above is \"much\""):
        read_config(file, network)
    file.write_text(config_text(network, config))
    monkeypatch.delitem(KINDS, Kept.kind)
    with refused(cause='"kept"'):
        read_config(file, network)


def test_a_new_kind_is_kept_in_saved_sessions(network, config, tmp_path, monkeypatch):
    history = History(PrecisionConfig())
    history.apply(config)
    store = SavedSessions(tmp_path / "sessions")
    names = ConfigNames([(config, "c1")])
    names.rename(config, "kept")
    names.say(config, "the one that ships")
    assert names.pin(config) and list(names.copy().newest_first()) == [(config, "kept")]
    store.save("a" * 64, Saved.of(network.outline(), history, names, ""))
    store.release()
    saved = store.load("a" * 64, network.outline().path, network.outline())
    store.release()
    assert saved.history().current.moves == config.moves
    assert saved.names() == {config: "kept"} and saved.names().notes == names.notes
    monkeypatch.delitem(KINDS, Kept.kind)
    assert store.load("a" * 64, network.outline().path, network.outline()) is None and '"kept"' in store.lost[0]


def test_a_new_kind_is_undone_and_taken_back(config):
    history = History(PrecisionConfig())
    history.apply(config)
    more = config.with_moves({FC1: Kept("size")})
    history.apply(more)
    assert distance(more, config) == 1 and more.key() != config.key() and more.groups == config.groups
    assert history.undo() and history.current == config and history.redo() and history.current == more
    assert more.without(Kept, [FC1]) == config and config.without(Kept) == config.with_moves({}).without(Kept, [FC2])
    other = config.with_moves({FC2: Kept("range", 4.0)})
    assert other != config and distance(other, config) == 1


def test_a_new_kind_has_its_words_in_comparisons_rows_and_reports(network, config):
    group = network.group(FC2)
    assert compared(config, PrecisionConfig(), network) == [
        Compared(Choice, FC1, "FP16", "INT8"), Compared(Kept, FC2, "range > 3", "no rule")]
    assert Kept.about("fc2") == "rule of fc2"
    assert [move.note for _, move in config.moves_on(group)] == ["rule range > 3 by a rule"]
    session = SimpleNamespace(why={}, outline=network, opened=SimpleNamespace(outline=network))
    assert other_moves(session, config, group) == "; rule range > 3 by a rule"
    report = moves_markdown(config, network)
    assert "| layer | operator | rule | set by |" in report
    assert f"| `{FC2}` | MatMul | range \\> 3 | a rule |" in report


def test_lowerings_read_a_new_kind_and_refuse_it_where_it_does_not_apply(network, config, tmp_path):
    ranges = dict.fromkeys(network.activations, 1.0)
    assert config.precision_of(network.group(FC2)) is Precision.FP32 and FC2 in config.raised(network)
    assert lower_typed(network, config, ranges).became[FC2] == "FP32"
    assert lower_weak(network, config, ranges).precisions[FC2] is Precision.FP32
    onnx.save(networks.small_resnet(), tmp_path / "resnet.onnx")
    other = open_network(tmp_path / "resnet.onnx")
    pool = next(group.name for group in other.groups if not group.weights())
    file = tmp_path / "precision.json"
    file.write_text(config_text(other, PrecisionConfig().with_moves({pool: Kept("range")})))
    with pytest.raises(InputError, match="cannot be kept by a rule") as raised:
        read_config(file, other)
    assert raised.value.cause == "it multiplies nothing"


@pytest.mark.parametrize(("quantized", "kept"), [(Precision.INT8, "FLOAT16"), (Precision.FP32, "FLOAT"),
                                                 (Precision.BF16, "FLOAT")])
def test_a_fusion_barrier_is_an_output_of_every_lowering_and_changes_nothing_else(tmp_path, quantized, kept):
    """Of a strongly typed one in FP16 where that is what it has, so that nothing is computed for it."""
    onnx.save(networks.mlp(), tmp_path / "mlp.onnx")
    network = open_network(tmp_path / "mlp.onnx", get_backend)
    tail, ranges = network.group(FC1).tail, dict.fromkeys(network.activations, 1.0)
    plain = PrecisionConfig.uniform(quantized)
    config = plain.with_moves({tail: Barrier()})
    outputs = [info.name for info in network.outputs]
    typed, before = lower_typed(network, config, ranges), lower_typed(network, plain, ranges).model
    assert [(value.name, value.dtype.name) for value in typed.model.graph.outputs] == [
        *((name, "FLOAT") for name in outputs), (tail, kept)]
    assert len(typed.model.graph) - len(before.graph) == (quantized is Precision.BF16)
    assert "1 hidden output" in typed.notes[-1] and tail in typed.notes[-1]
    weak = lower_weak(network, config, ranges)
    assert [value.name for value in weak.model.graph.outputs] == [*outputs, tail] and weak.notes[-1] == typed.notes[-1]
    file = tmp_path / "precision.json"
    file.write_text(config_text(network, config))
    assert read_config(file, network).config == config != plain
    file.write_text(config_text(network, plain.with_moves({outputs[0]: Barrier()})))
    with pytest.raises(InputError, match="cannot be a hidden output"):
        read_config(file, network)


def test_a_fusion_barrier_in_a_file_of_its_own_precisions(opened):
    """What is as in the file stays so; a result in FP16 is an output in FP16."""
    base = opened(networks.mlp())
    half = lower_typed(base, PrecisionConfig.uniform(Precision.FP16), {}).model
    network = opened(ir.to_proto(half))
    tail = network.group(FC1).tail
    for config in (FILE, FILE.with_groups([network.group(FC2)], Precision.FP32),
                   FILE.with_groups([network.group(FC1)], Precision.FP32)):
        model = lower_strong(network, config.with_moves({tail: Barrier()}), {}).model
        found = {value.name: value.dtype.name for value in model.graph.outputs}
        assert list(found) == [*(info.name for info in network.outputs), tail]
        assert found[tail] == ("FLOAT" if network.group(FC1).name in config.groups else "FLOAT16")
