import itertools
import json
import os
import tempfile
import threading
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import TESTS, networks
from tests.driven import LocalSession, save_mlp
from trt_tui.core.moves.config import PrecisionConfig, PrecisionMove, RangeMove
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.jobs import client
from trt_tui.jobs.client import child_log_path
from trt_tui.session.history import (
    MAX_STORED_CONFIGS,
    ChangeHistory,
    ConfigNames,
    SavedSession,
    SessionFolder,
    SessionWriter,
    UserState,
)

STRUCTURE = "a" * 64
CHOICES = st.builds(
    PrecisionMove, st.sampled_from([Precision.FP32, Precision.FP16, Precision.INT8]), st.text(max_size=8)
)
RANGES = st.builds(RangeMove, st.floats(0, 1e6), st.text(max_size=8))
CONFIGS = st.builds(
    lambda other, tf32, *moves: PrecisionConfig(Precision.INT8, other, tf32).with_moves(moves[0]).with_moves(moves[1]),
    st.sampled_from([Precision.FP16, Precision.FP32]),
    st.booleans(),
    st.dictionaries(st.text(max_size=8), CHOICES, max_size=4),
    st.dictionaries(st.text(max_size=8), RANGES, max_size=4),
)


def outline(path="/models/net.onnx"):
    return SimpleNamespace(path=path)


def config(*names):
    return PrecisionConfig().with_moves({name: PrecisionMove(Precision.FP32) for name in names})


def history(*configs):
    made = ChangeHistory(PrecisionConfig())
    for one in configs:
        made.push_config(one)
    return made


def configs_of(changes):
    """The configs of the past, the present and what was undone."""
    past, current, future = changes.snapshot()
    return [one.config for one in past], current.config, [one.config for one in future]


@pytest.fixture
def store(tmp_path):
    stores = []

    def make():
        stores.append(SessionFolder(tmp_path / "sessions"))
        return stores[-1]

    yield make
    for one in stores:
        one.release_session_lock()


def test_history_names_and_target_come_back(store):
    past = history(config("a"), config("a", "b"), PrecisionConfig().with_moves({"t": RangeMove(1.5, "mse")}))
    past.undo()
    names = {PrecisionConfig(): "c0", config("a"): "best"}
    first = store()
    first.save_session(
        STRUCTURE,
        SavedSession.from_state(
            outline(), past, ConfigNames(names.items(), exported_configs=[config("a")]), "sqnr>=20"
        ),
    )
    first.release_session_lock()
    saved = store().load_session(STRUCTURE, "/models/net.onnx")
    back = saved.to_change_history()
    assert configs_of(back) == configs_of(past) and back.state.target_text == "sqnr>=20"
    assert saved.to_config_names().exported_configs == {config("a")}
    assert saved.to_config_names() == names and saved.target == "sqnr>=20" and saved.note == ""


def distinct(configs):
    """All but the last one, without those that the next one repeats."""
    return [one for one, following in itertools.pairwise(configs) if one != following]


@given(st.lists(CONFIGS, max_size=4), CONFIGS, st.lists(CONFIGS, max_size=4))
def test_any_history_survives_its_file(past, current, future):
    import msgspec

    changes = ChangeHistory.from_snapshot([*map(UserState, past)], UserState(current), [*map(UserState, future)])
    saved = SavedSession.from_state(outline(), changes, ConfigNames([(current, "now")]), "")
    back = msgspec.json.decode(msgspec.json.encode(saved), type=SavedSession)
    earlier, now, undone = back.to_change_history().snapshot()
    assert [one.config for one in earlier] == distinct([*past, current])
    assert [one.config for one in undone] == distinct([*future, current])
    assert now.config == current and back.to_config_names() == {current: "now"}


@pytest.mark.parametrize(
    ("damage", "cause"),
    [
        (lambda text: text[: text.index("sqnr") + 2], "Unterminated"),
        (lambda text: "[" * 100_000, ""),
        (lambda text: "", "damaged"),
        (lambda text: "[]", "damaged"),
        (lambda text: '{"format": "trt-tui/session"}', ""),
        (lambda text: '{"format": "trt-tui/session", "version": 1, "network": 3}', "damaged"),
        (lambda text: text.replace("sqnr", "\ud800"), "utf-8"),
        (lambda text: text.replace('"version":2', '"version":7'), "it is version 7"),
        (lambda text: text.replace('"int8"', '"tf32"', 1), "default is TF32"),
        (lambda text: text.replace('"other":"fp16"', '"other":"int8"', 1), "default is INT8 and INT8"),
        (lambda text: text.replace('"precision":"fp32"', '"precision":"tf32"'), "/fc1/Gemm cannot run in TF32"),
        (lambda text: text.replace('"/fc1/Gemm"', '"/fc9/Gemm"'), "the network has no fused layer /fc9/Gemm"),
        (lambda text: text.replace('"target":"x"', '"target":"z"'), "the network has no tensor z"),
        (lambda text: text.replace("2.5", "-2.5"), "x cannot have the range -2.5"),
        (lambda text: text.replace("2.5", "1e300"), "to the largest FP32 value"),
        (lambda text: text.replace("2.5", "1e999"), ""),
        (lambda text: text.replace("2.5", "NaN"), ""),
        (lambda text: text.replace('"reason":"user"', '"reason":' + "[" * 900 + "]" * 900), "Expected `str`"),
        (lambda text: text.replace('"kind":"range"', '"kind":"detour"'), 'kind "detour"'),
        (lambda text: text.replace('"kind":"range"', '"kind":"insert_mul"'), 'it has an inserted Mul at "x"'),
        (lambda text: text.replace('"amax":2.5', '"amax":"x"'), "Expected `float`"),
    ],
)
def test_a_session_that_cannot_be_one_of_the_network_is_lost_with_a_word(store, tmp_path, damage, cause):
    onnx.save(networks.mlp(), tmp_path / "net.onnx")
    here = open_network(tmp_path / "net.onnx").build_outline()
    kept = PrecisionConfig().with_moves({"/fc1/Gemm": PrecisionMove(Precision.FP32)}).with_range("x", RangeMove(2.5))
    first = store()
    first.save_session(STRUCTURE, SavedSession.from_state(here, history(kept), ConfigNames(), "sqnr>=20"))
    first.release_session_lock()
    (path,) = first.folder.glob("*.json")
    assert store().load_session(STRUCTURE, here.path, here).to_change_history().state.config == kept
    content = damage(path.read_text()).encode(errors="surrogatepass")
    path.write_bytes(content)
    second = store()
    assert second.load_session(STRUCTURE, here.path, here) is None
    assert (
        len(second.load_failures) == 1 and str(path) in second.load_failures[0] and cause in second.load_failures[0]
    ), second.load_failures
    (kept_as,) = first.folder.glob("*.json*")
    assert kept_as.read_bytes() == content


def test_half_a_character_in_a_path_does_not_stop_a_start(store, tmp_path):
    first = store()
    first.save_session(STRUCTURE, SavedSession.from_state(outline(), history(config("a")), ConfigNames(), ""))
    first.release_session_lock()
    (path,) = first.folder.glob("*.json")
    path.write_text(path.read_text().replace("/models/net.onnx", "\\ud800"))
    again = store()
    assert (
        again.load_session(STRUCTURE, "/models/net.onnx").current.to_precision_config() == config("a")
        and not again.load_failures
    )


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["\ud800", 1e300, -1, "int8", "fp32", "precision", "range", "x", "/fc1/Gemm"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["target", "kind", "amax", "precision", "reason", "method", "quantized", "moves"])
            | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(
    st.sampled_from(["network", "past", "current", "future", "named_configs", "target", "note", "sha256", "version"]),
    JSON,
    st.booleans(),
)
def test_any_state_is_taken_up_or_lost_with_a_word(tmp_path_factory, key, value, within):
    folder = tmp_path_factory.mktemp("state")
    here = _mlp_outline()
    first = SessionFolder(folder / "sessions")
    first.save_session(
        STRUCTURE, SavedSession.from_state(here, history(config("/fc1/Gemm")), ConfigNames(), "sqnr>=20")
    )
    first.release_session_lock()
    (saved,) = first.folder.glob("*.json")
    record = json.loads(saved.read_bytes())
    if within:
        record["current"]["moves"] = [value]
    else:
        record[key] = value
    saved.write_text(json.dumps(record))
    second = SessionFolder(folder / "sessions")
    taken = second.load_session(STRUCTURE, here.path, here)
    second.release_session_lock()
    if taken is None:
        assert len(second.load_failures) == 1
    else:
        SavedSession.from_state(here, taken.to_change_history(), taken.to_config_names(), taken.target)


@cache
def _mlp_outline():
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(networks.mlp(), Path(folder) / "net.onnx")
        return open_network(Path(folder) / "net.onnx").build_outline()


def test_a_long_history_keeps_its_newest_steps():
    configs = [config(str(i)) for i in range(MAX_STORED_CONFIGS + 50)]
    saved = SavedSession.from_state(
        outline(), history(*configs), ConfigNames((c, f"c{i}") for i, c in enumerate(configs)), ""
    )
    assert len(saved.past) == len(saved.named_configs) == MAX_STORED_CONFIGS
    assert (
        configs_of(saved.to_change_history())[0][-1] == configs[-2] and list(saved.to_config_names())[-1] == configs[-1]
    )


def test_the_same_file_is_written_again_after_loading(store):
    assert store().load_session(STRUCTURE, "/models/net.onnx") is None
    first = store()
    for name in "ab":
        first.save_session(STRUCTURE, SavedSession.from_state(outline(), history(config(name)), ConfigNames(), ""))
    first.release_session_lock()
    again = store()
    assert again.load_session(STRUCTURE, "/models/net.onnx").current.to_precision_config() == config("b")
    again.save_session(STRUCTURE, SavedSession.from_state(outline(), history(config("c")), ConfigNames(), ""))
    assert len(list(again.folder.glob("*.json"))) == 1


def test_only_the_owner_reads_what_is_kept_of_sessions(tmp_path):
    """Sessions with their locks, the log of the background process."""
    before = os.umask(0)
    try:
        session = LocalSession(save_mlp(tmp_path), tmp_path).settled()
        session.close()
        with client._open_log_file() as log:
            log.write(b"printed")
    finally:
        os.umask(before)
    state = tmp_path / "state" / "trt-tui"
    kept = [tmp_path / "sessions", *(tmp_path / "sessions").iterdir(), state, *state.rglob("*")]
    assert {path.name for path in kept} >= {"logs", child_log_path().name}
    assert {path.suffix for path in kept} >= {".json", ".lock", ".log"}
    assert [path for path in kept if path.stat().st_mode & 0o077] == []


def test_the_session_of_the_network_file_itself_is_preferred(store):
    first, second = store(), store()
    first.save_session(
        STRUCTURE, SavedSession.from_state(outline("/models/one.onnx"), history(config("one")), ConfigNames(), "")
    )
    second.save_session(
        STRUCTURE, SavedSession.from_state(outline("/models/two.onnx"), history(config("two")), ConfigNames(), "")
    )
    first.release_session_lock()
    second.release_session_lock()
    for name in ("one", "two"):
        assert store().load_session(STRUCTURE, f"/models/{name}.onnx").current.to_precision_config() == config(name)
    other = store().load_session(STRUCTURE, "/models/three.onnx")
    assert other.current.to_precision_config() == config("two") and "two.onnx" in other.note
    assert store().load_session("b" * 64, "/models/one.onnx") is None


@pytest.mark.parametrize("way", ["relative", "symlink", "hard link"])
def test_one_network_under_two_paths_is_one(tmp_path, monkeypatch, way):
    made = save_mlp(tmp_path)
    first = LocalSession(made, tmp_path).settled()
    for group in first.opened_network.outline.groups[:2]:
        first.toggle_fp32([group])
        first.until_idle()
    first.close()
    real, other = Path(made.model), tmp_path / "other.onnx"
    if way == "relative":
        monkeypatch.chdir(tmp_path)
        other = Path(real.name)
    else:
        {"symlink": other.symlink_to, "hard link": other.hardlink_to}[way](real)
    second = LocalSession(replace(made, model=str(other)), tmp_path).settled()
    assert [second.results[one].accuracy for one in first.config_names] == [
        first.results[one].accuracy for one in first.config_names
    ]
    assert second.config == first.config and not [text for text in second.warnings if "same structure" in text]
    second.close()
    assert len(list((tmp_path / "sessions").glob("*.json"))) == 1


def test_a_second_program_starts_from_a_copy_and_writes_apart(store):
    first, second = store(), store()
    first.save_session(STRUCTURE, SavedSession.from_state(outline(), history(config("a")), ConfigNames(), ""))
    copy = second.load_session(STRUCTURE, "/models/net.onnx")
    assert copy.current.to_precision_config() == config("a") and copy.note == ""
    second.save_session(STRUCTURE, SavedSession.from_state(outline(), history(config("b")), ConfigNames(), ""))
    first.save_session(STRUCTURE, SavedSession.from_state(outline(), history(config("c")), ConfigNames(), ""))
    assert len(list(first.folder.glob("*.json"))) == 2
    first.release_session_lock()
    os.utime(second._path, ns=(1, 1))
    assert store().load_session(STRUCTURE, "/models/net.onnx").current.to_precision_config() == config("c")


def test_saving_is_done_elsewhere_in_order_and_nothing_is_lost_at_the_end(store):
    saver, made = SessionWriter(store()), []

    def saved(name):
        made.append((name, threading.current_thread()))
        return SavedSession.from_state(outline(), history(config(name)), ConfigNames(), "")

    for name in "abcdef":
        saver.save_session(STRUCTURE, partial(saved, name))
    saver.close()
    assert [name for name, _ in made] == sorted({name for name, _ in made}) and made[-1][0] == "f"
    assert threading.current_thread() not in [thread for _, thread in made]
    assert store().load_session(STRUCTURE, "/models/net.onnx").current.to_precision_config() == config("f")
    saver.save_session(STRUCTURE, lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        saver.close()


def test_a_folder_that_cannot_be_written_is_no_error(store, tmp_path):
    (tmp_path / "sessions").write_text("a file where the folder should be")
    one = store()
    one.save_session(STRUCTURE, SavedSession.from_state(outline(), history(), ConfigNames(), ""))
    assert one.load_session(STRUCTURE, "/models/net.onnx") is None


SURROGATES = ChangeHistory(
    PrecisionConfig()
    .with_moves({"a\ud800": PrecisionMove(Precision.FP32, "\udcff why")})
    .with_range("t\udfff", RangeMove(1.0, "\ud800"))
)


def test_names_of_broken_utf8_are_saved_and_come_back(store):
    first = store()
    names = ConfigNames([(PrecisionConfig(), "\ud800")])
    first.save_session(STRUCTURE, SavedSession.from_state(outline("/models/\udcff.onnx"), SURROGATES, names, "\ud800"))
    first.release_session_lock()
    again = store()
    saved = again.load_session(STRUCTURE, "/models/\udcff.onnx")
    assert saved.to_change_history().state.config == SURROGATES.state.config and saved.target == "\ud800"
    assert saved.to_config_names() == {PrecisionConfig(): "\ud800"} and saved.note == "" and not again.load_failures


def test_a_session_of_version_1_goes_on(store, tmp_path):
    onnx.save(networks.mlp(), tmp_path / "mlp.onnx")
    outline = open_network(tmp_path / "mlp.onnx").build_outline()
    first = store()
    first.folder.mkdir(parents=True)
    path = first.folder / f"{STRUCTURE[:20]}.json"
    path.write_bytes((TESTS / "version1" / "session.json").read_bytes())
    saved = first.load_session(STRUCTURE, "/models/mlp.onnx", outline)
    assert not first.load_failures and (saved.target, saved.sha256, saved.note) == ("sqnr>=20", "f" * 64, "")
    base = PrecisionConfig(Precision.INT8, Precision.BF16, True)
    raised = base.with_moves({"/fc2/MatMul": PrecisionMove(Precision.FP32)})
    found = raised.with_moves(
        {
            "/fc1/Gemm": PrecisionMove(Precision.FP16),
            "x": RangeMove(2.5),
            "/act1/Relu_output_0": RangeMove(1 / 3, "percentile"),
        }
    )
    assert configs_of(saved.to_change_history()) == ([base, raised], found, [base])
    assert saved.current.to_precision_config().precision_moves["/fc2/MatMul"].reason == "search:auto"
    assert list(saved.to_config_names().items()) == [(base, "c0"), (found, "found")]
    first.save_session(
        STRUCTURE, SavedSession.from_state(outline, saved.to_change_history(), ConfigNames(), saved.target)
    )
    first.release_session_lock()
    again = store().load_session(STRUCTURE, "/models/mlp.onnx", outline)
    assert configs_of(again.to_change_history()) == configs_of(saved.to_change_history())
    assert '"version":2' in path.read_text()


def test_a_session_of_another_version_is_left_alone(store):
    one = store()
    one.folder.mkdir(parents=True)
    path = one.folder / f"{STRUCTURE[:20]}.json"
    path.write_text('{"format": "trt-tui/session", "version": 3, "other": []}')
    assert one.load_session(STRUCTURE, "/models/net.onnx") is None and "version 3" in one.load_failures[0]
    one.save_session(STRUCTURE, SavedSession.from_state(outline(), history(config("b")), ConfigNames(), ""))
    assert '"version": 3' in path.read_text()
