"""Saved sessions of one network that several programs have open, and the page of sessions:
trt_tui.session.session_owner, session_folder, screens.sessions."""

import json
import os
import socket
import subprocess
import sys
import time

import msgspec
import pytest

from tests import local
from tests.screen import answered, make_app, opened, press, screen_text, settle, status
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.session import session_owner
from trt_tui.session.session_folder import SessionFolder
from trt_tui.session.session_owner import MAX_FRESH_AGE_S, SessionOwner, find_live_owner
from trt_tui.tui.screens.dialogs import ConfirmDialog, ErrorDialog, KeyHints
from trt_tui.tui.screens.sessions import SessionList, SessionsPage

pytestmark = pytest.mark.usefixtures("quick")


def opened_session(folder, wanted="", options=None):
    """A session of the small residual network that goes on from what is saved in a folder."""
    session = local.NullSession(options or local.options(folder, "small_resnet", False, False), folder=folder)
    session.session_folder.requested_name = wanted
    session.start()
    return session.rest()


def change(session, index):
    session.set_precision([session.outline.groups[index]], Precision.FP32)
    session.rest().session_writer.flush()
    return session.config


def session_files(folder):
    return {path.stem: path.read_bytes() for path in (folder / "sessions").glob("*.json")}


def owner_of(folder, name):
    return folder / "sessions" / f"{name}.owner"


def test_two_programs_tell_each_other_and_are_saved_apart(tmp_path):
    first = opened_session(tmp_path)
    assert not first.warnings, "nobody else is here"
    second = opened_session(tmp_path)
    note, = (text for text in second.warnings if "another terminal" in text)
    assert f"process {os.getpid()} on {socket.gethostname()}, since {time.strftime('%H:')}" in note
    assert not first.take_session_notices()
    first.session_folder._owner_file.refresh()  # as its thread does
    assert first.take_session_notices() and "saved apart" in first.warnings[-1]
    first.session_folder._owner_file.refresh()
    assert not first.take_session_notices(), "it is told once"
    configs = [change(first, 0), change(second, 1)]
    names = [session.session_folder.name for session in (first, second)]
    for session in (first, second):
        session.close()
    assert len({*names}) == 2 and not list((tmp_path / "sessions").glob("*.owner"))
    for name, config in zip(names, configs, strict=True):
        again = opened_session(tmp_path, name)
        assert again.config == config and not any("another terminal" in text for text in again.warnings)
        again.close()


@pytest.mark.parametrize(("host", "pid", "age_s", "is_alive"), [
    ("here", "dead", 0, False), ("here", "mine", 0, True), ("here", "mine", MAX_FRESH_AGE_S + 60, False),
    ("node7", "dead", 0, True), ("node7", "dead", MAX_FRESH_AGE_S + 60, False)])
def test_only_programs_that_run_are_owners(tmp_path, host, pid, age_s, is_alive):
    path = tmp_path / "a.owner"
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    owner = SessionOwner(int(ended.stdout) if pid == "dead" else os.getpid(),
                         socket.gethostname() if host == "here" else host, "net.onnx", time.time())
    path.write_text(json.dumps(msgspec.to_builtins(owner)))
    os.utime(path, (time.time() - age_s,) * 2)
    assert (find_live_owner(path) == owner) is is_alive


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"pid": "x"}', b"[" * 5000, b"x" * 20_000, b"\xff\xfe"])
def test_a_damaged_file_names_nobody(tmp_path, content):
    (tmp_path / "a.owner").write_bytes(content)
    assert find_live_owner(tmp_path / "a.owner") is None and find_live_owner(tmp_path / "none.owner") is None


def test_a_hostile_owner_is_shown_without_control_characters():
    owner = SessionOwner(1, "x\x1b[2J", "n", 1e300)
    assert "\x1b" not in owner.description and "process 1" in owner.description


@pytest.mark.parametrize("age_s", [0.0, MAX_FRESH_AGE_S + 60])
def test_a_program_on_another_host_whose_lock_is_not_seen_is_not_overwritten(tmp_path, age_s):
    """The lock of the other host is free here, as on a shared home without locks."""
    first = opened_session(tmp_path)
    config = change(first, 0)
    name = first.session_folder.name
    first.close()
    path = owner_of(tmp_path, name)
    path.write_text(json.dumps({"pid": 1, "host": "node7", "network": first.options.model, "since": time.time()}))
    os.utime(path, (time.time() - age_s,) * 2)
    before = session_files(tmp_path)[name]
    second = opened_session(tmp_path)
    told = [text for text in second.warnings if "process 1 on node7" in text]
    assert second.config == config and len(told) == (age_s == 0)
    change(second, 1)
    assert (session_files(tmp_path)[name] == before) is (age_s == 0)
    second.close()


def test_a_file_that_another_program_changed_is_left_as_it_is(tmp_path):
    session = opened_session(tmp_path)
    change(session, 0)
    name = session.session_folder.name
    path = tmp_path / "sessions" / f"{name}.json"
    theirs = path.read_bytes() + b" "
    path.unlink()
    path.write_bytes(theirs)
    config = change(session, 1)
    assert path.read_bytes() == theirs and session.session_folder.name != name
    assert session.take_session_notices() and f"Another program has changed the session {name}" in session.warnings[-1]
    change(session, 2)
    assert len(session_files(tmp_path)) == 2 and not session.take_session_notices()
    name = session.session_folder.name
    session.undo()
    session.close()
    assert opened_session(tmp_path, name).config == config


def test_the_thread_of_an_owner_keeps_its_file_fresh_and_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(session_owner, "REFRESH_INTERVAL_S", 0.01)
    session = opened_session(tmp_path)
    path = session.session_folder._owner_file.path
    path.unlink()
    for _ in range(500):
        if path.exists():
            break
        time.sleep(0.01)
    assert find_live_owner(path) is not None and path.stat().st_mode & 0o777 == 0o600
    session.close()
    time.sleep(0.05)
    assert not path.exists()


def test_a_session_that_does_not_exist_is_named(tmp_path):
    session = opened_session(tmp_path, "nobody")
    assert "This network has no saved session nobody: none is resumed." in session.warnings
    session.close()


def test_sessions_are_listed_opened_and_deleted(tmp_path):
    first = opened_session(tmp_path)
    first.set_target("sqnr>=12")
    config = change(first, 0)
    name = first.session_folder.name
    first.close()
    second = local.NullSession(first.options, folder=tmp_path, resume=False)
    second.start()
    second.rest()
    other_config = change(second, 1)
    own, saved = second.list_saved_sessions()
    assert own.is_own and saved.name == name and saved.saved_session.target == "sqnr>=12"
    assert saved.saved_session.outcome in ("PASS", "FAIL", "PASS?", "FAIL?") and " of " in saved.saved_session.samples
    second.resume_session(name)
    second.rest()
    assert second.config == config and second.target.text == "sqnr>=12" and second.session_folder.name == name
    assert second.undo() and second.config != config and second.redo()
    second.resume_session(own.name)
    second.rest()
    assert second.config == other_config and second.target.text != "sqnr>=12"
    third = opened_session(tmp_path, name, first.options)
    with pytest.raises(InputError, match="cannot be deleted") as error:
        second.session_folder.delete_session(name)
    assert f"process {os.getpid()}" in error.value.cause
    second.resume_session(name)
    second.rest()
    assert second.config == config and second.session_folder.name not in (name, own.name), "a copy of what is open"
    assert any("another terminal" in text for text in second.warnings)
    third.close()
    second.session_folder.delete_session(name)
    assert name not in session_files(tmp_path)
    with pytest.raises(InputError, match="cannot be opened"):
        second.resume_session(name)
    with pytest.raises(InputError, match="cannot be deleted"):
        second.session_folder.delete_session(second.session_folder.name)
    assert second.config == config
    second.close()


@pytest.mark.parametrize("size", [(60, 15), (120, 40)])
async def test_the_page_of_sessions(tmp_path, monkeypatch, size):
    monkeypatch.chdir(tmp_path)  # where files are written
    saved = opened_session(tmp_path)
    config = change(saved, 0)
    saved.close()
    async with opened(tmp_path, size=size, network="small_resnet", metric=False) as (app, main, pilot):
        session = app.session
        await answered(pilot, "space", "S")
        page = app.screen
        assert isinstance(page, SessionsPage) and len(page.query_one(SessionList).values) == 2
        own, other = page.text.splitlines()
        assert "current" in own and ">" in own[:4] and "1 raised" in other
        assert all(len(line) <= size[0] for line in screen_text(app).splitlines())
        if size[0] > 60:
            assert f"--session {saved.session_folder.name[:20]}" in str(page.query_one(KeyHints).render())
        await answered(pilot, "Y", "enter", "enter")
        written = (tmp_path / "small_resnet-sessions.txt").read_text()
        assert app.screen is page and "1 raised" in written and "current, " in written
        await press(pilot, "d")
        assert isinstance(app.screen, ErrorDialog)
        await answered(pilot, "escape", "down", "enter")
        assert app.screen is main and session.config == config and "Resumed" in status(main)
        await answered(pilot, "S", "down", "d")
        assert isinstance(app.screen, ConfirmDialog)
        await answered(pilot, "n")
        assert len(app.screen.query_one(SessionList).values) == 2
        await answered(pilot, "d", "y")
        assert len(app.screen.query_one(SessionList).values) == 1 and len(session_files(tmp_path)) == 1


async def test_a_second_app_says_who_has_the_network_open(tmp_path):
    first = opened_session(tmp_path)
    app = make_app(tmp_path, "small_resnet", metric=False)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        app.main_screen._update_elapsed_times()
        note = f"This network is open in another terminal too: process {os.getpid()} on"
        assert note in status(app.main_screen), "whatever other warning the rule above has"
        await answered(pilot, "down")
        assert note not in status(app.main_screen)
        first.session_folder._owner_file.refresh()
        assert first.take_session_notices()
    first.close()


def test_a_folder_that_cannot_be_written_says_so(tmp_path, monkeypatch):
    first = opened_session(tmp_path)
    change(first, 0)
    first.close()

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("trt_tui.session.session_folder.FileLock.acquire", refuse)
    second = opened_session(tmp_path)
    assert second.config == first.config
    assert any("Sessions cannot be saved in" in text and "Permission denied" in text for text in second.warnings)
    assert not any("another terminal" in text for text in second.warnings)
    assert SessionFolder(tmp_path / "sessions").take_notices() == []
