"""trt_tui.cli.recent_sessions and trt_tui.session.saved_sessions: what two programs on one network leave for
`trt-tui` to open again."""

import json
import sys

import pytest

from tests import local
from trt_tui.cli import recent_sessions
from trt_tui.core.precision import Precision
from trt_tui.session.saved_sessions import SessionFolder

pytestmark = pytest.mark.usefixtures("quick")


def opened(folder, wanted=""):
    """A session of the small residual network that goes on from what is saved in a folder."""
    session = local.NullSession(local.options(folder, "tiny_resnet", False, False), folder=folder)
    session.session_folder.requested_name = wanted
    session.start()
    return session.rest()


def change(session, *places):
    for place in places:
        session.set_precision([session.outline.groups[place]], Precision.FP32)
        session.rest()
    return session.config


@pytest.mark.parametrize("first", [0, 1])
def test_two_sessions_of_one_network_are_both_listed_and_resumed(tmp_path, monkeypatch, first):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    both = [opened(tmp_path), opened(tmp_path)]
    configs = [change(both[0], 0, 1), change(both[1], 2)]
    for place in (first, 1 - first):
        both[place].close()
        recent_sessions.record_recent_session(both[place], ["net.onnx"])
    listed = recent_sessions.load_recent_sessions()
    assert len(listed) == 2 and {one.session for one in listed} == {one.session_folder.name for one in both}
    assert sorted(one.config for one in listed) == ["c1 · 1 FP32", "c2 · 2 FP32"]
    lines = recent_sessions.recent_session_lines(listed, listed[0].when)
    assert all(f"trt-tui net.onnx --session {one.session}" in lines[2 * place + 1] for place, one in enumerate(listed))
    for place, session in enumerate(both):
        again = opened(tmp_path, session.session_folder.name)
        assert again.config == configs[place] and set(again.config_names) >= set(session.config_names)
        again.close()
        recent_sessions.record_recent_session(again, ["net.onnx", "--session", session.session_folder.name])
    assert len(recent_sessions.load_recent_sessions()) == 2, "a session that is resumed takes the place of its entry"
    assert all(one.arguments == ["net.onnx"] for one in recent_sessions.load_recent_sessions())


def test_a_session_that_goes_on_takes_the_place_of_its_entry(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    for place in range(2):
        session = opened(tmp_path)
        change(session, place)
        session.close()
        recent_sessions.record_recent_session(session, ["net.onnx"])
    one, = recent_sessions.load_recent_sessions()
    assert one.config == "c2 · 2 FP32" and one.resume_arguments == ["net.onnx", "--session", one.session]


def test_what_is_opened_again_names_its_session(tmp_path, monkeypatch):
    one = recent_sessions.RecentSession(str(tmp_path), ["demo"], "scenes.onnx", "c1", "PASS", 0.0, "abc-2")
    started = []
    monkeypatch.setattr(recent_sessions.os, "execv", lambda program, arguments: started.append(arguments))
    monkeypatch.setattr(recent_sessions.click, "prompt", lambda *_, **__: "1")
    monkeypatch.chdir(tmp_path)
    recent_sessions.offer_recent_sessions([one])
    assert started[0][0] == sys.executable and started[0][-3:] == ["demo", "--session", "abc-2"]
    assert SessionFolder(tmp_path, "abc-2").requested_name == "abc-2"


def test_an_entry_has_no_argument_that_opens_another_session(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    session = opened(tmp_path)
    change(session, 0)
    session.close()
    for typed in (["--session", "abc-2"], ["--session=abc-2"], ["--new"], ["--session"]):
        recent_sessions.record_recent_session(session, ["net.onnx", "--samples", "4", *typed])
        one, = recent_sessions.load_recent_sessions()
        assert one.arguments == ["net.onnx", "--samples", "4"]


@pytest.mark.parametrize("damaged", [{"folder": "/a\0b"}, {"arguments": ["a\0b"]}, {"session": "a\0b"}])
def test_a_list_with_a_path_that_no_system_takes_is_damaged(tmp_path, monkeypatch, capsys, damaged):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    place = tmp_path / "trt-tui" / "recent.json"
    place.parent.mkdir()
    one = {"folder": "/", "arguments": [], "network": "n", "config": "c", "outcome": "o", "when": 0.0, **damaged}
    place.write_text(json.dumps([one]))
    assert recent_sessions.load_recent_sessions(
    ) == [] and not place.exists() and "is damaged; it is kept as" in capsys.readouterr().err
