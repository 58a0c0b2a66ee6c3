"""Saved sessions of one network that several programs have open, and the page of sessions:
trt_tui.session.history, screens.sessions."""

import pytest

from tests import local
from tests.screen import answered, opened, page_text, press, screen_text, status
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.tui.screens.dialogs import ConfirmDialog, ErrorDialog, KeyHints
from trt_tui.tui.screens.pages import SessionsPage
from trt_tui.tui.widgets.inputs import ValueList

pytestmark = pytest.mark.usefixtures("quick")


def opened_session(folder, wanted="", options=None):
    """A session of the small residual network that goes on from what is saved in a folder."""
    session = local.NullSession(
        options or local.options(folder, "tiny_resnet", False, False), folder=folder, sweeps=False
    )
    session.session_folder.requested_name = wanted
    session.start()
    return session.rest()


def change(session, *indices):
    for index in indices:
        session.set_precision([session.outline.groups[index]], Precision.FP32)
        session.rest().session_writer.flush()
    return session.config


def session_files(folder):
    return {path.stem: path.read_bytes() for path in (folder / "sessions").glob("*.json")}


def test_two_programs_are_saved_apart(tmp_path):
    first, second = opened_session(tmp_path), opened_session(tmp_path)
    configs = [change(first, 0), change(second, 1)]
    names = [session.session_folder.name for session in (first, second)]
    assert len({*names}) == 2
    third = opened_session(tmp_path, names[0])
    assert third.config == configs[0] and not third.warnings, "a copy of what is open"
    change(third, 2)
    for session in (first, second, third):
        session.close()
    for name, config in zip(names, configs, strict=True):
        again = opened_session(tmp_path, name)
        assert again.config == config and again.session_folder.name == name
        again.close()


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
    change(session, 2)
    assert len(session_files(tmp_path)) == 2
    name = session.session_folder.name
    session.undo()
    session.close()
    assert opened_session(tmp_path, name).config == config


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
    second = local.NullSession(first.options, folder=tmp_path, resume=False, sweeps=False)
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
    with pytest.raises(InputError, match="cannot be deleted"):
        second.session_folder.delete_session(name)
    second.resume_session(name)
    second.rest()
    assert second.config == config and second.session_folder.name not in (name, own.name), "a copy of what is open"
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
async def test_the_page_of_sessions(tmp_path, size):
    saved = opened_session(tmp_path)
    config = change(saved, 0)
    saved.close()
    async with opened(tmp_path, size=size, network="tiny_resnet", metric=False) as (app, main, pilot):
        session = app.session
        await answered(pilot, "space", "S")
        page = app.screen
        assert isinstance(page, SessionsPage) and len(page.query_one(ValueList).values) == 2
        own, other = page_text(page).splitlines()
        assert "current" in own and ">" in own[:4] and "1 raised" in other
        assert all(len(line) <= size[0] for line in screen_text(app).splitlines())
        if size[0] > 60:
            assert f"--session {saved.session_folder.name[:20]}" in str(page.query_one(KeyHints).render())
        await press(pilot, "d")
        assert isinstance(app.screen, ErrorDialog)
        await answered(pilot, "escape", "down", "enter")
        assert app.screen is main and session.config == config and "Resumed" in status(main)
        await answered(pilot, "S", "down", "d")
        assert isinstance(app.screen, ConfirmDialog)
        await answered(pilot, "n")
        assert len(app.screen.query_one(ValueList).values) == 2
        await answered(pilot, "d", "y")
        assert len(app.screen.query_one(ValueList).values) == 1 and len(session_files(tmp_path)) == 1


def test_a_folder_that_cannot_be_written_says_so(tmp_path, monkeypatch):
    first = opened_session(tmp_path)
    change(first, 0)
    first.close()

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("trt_tui.session.history.FileLock.acquire", refuse)
    second = opened_session(tmp_path)
    assert second.config == first.config
    assert any("Sessions cannot be saved in" in text and "Permission denied" in text for text in second.warnings)


@pytest.mark.parametrize("first", [0, 1])
def test_two_sessions_of_one_network_are_both_listed_and_resumed(tmp_path, monkeypatch, first):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    both = [opened_session(tmp_path), opened_session(tmp_path)]
    configs = [change(both[0], 0, 1), change(both[1], 2)]
    for place in (first, 1 - first):
        both[place].close()
    for place, session in enumerate(both):
        again = opened_session(tmp_path, session.session_folder.name)
        assert again.config == configs[place] and set(again.config_names) >= set(session.config_names)
        again.close()
