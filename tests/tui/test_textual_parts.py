"""trt_tui.tui.textual_internals: private parts of Textual stand in one module, and the app goes on without each of them"""

import ast
import functools
import gc
import importlib.util
import inspect
import os
import pkgutil
import re
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from textual.filter import Monochrome, NoColor
from textual.geometry import Region
from textual.screen import ModalScreen
from textual.strip import Strip

import trt_tui.tui
from trt_tui.options import Options
from trt_tui.tui import textual_internals
from trt_tui.tui.app import TrtTuiApp
from trt_tui.tui.terminal_output import ControlCharacterFilter, TerminalCells, TerminalUpdate

ROOT = Path(trt_tui.__file__).parent
OURS = "trt_tui.tui.textual_internals"
MODULE = "tui/textual_internals.py"


@functools.cache
def tree_of(thing: type) -> ast.AST:
    return ast.parse(textwrap.dedent(inspect.getsource(thing)))


@functools.cache
def names_of_textual(base: type) -> set[str]:
    return {name for name in vars(base) if is_private(name)} | private_names(tree_of(base), ast.Store)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_names(tree: ast.AST, context: type = ast.AST) -> set[str]:
    """Private attributes and methods that a class or a module names."""
    return {
        name
        for node in ast.walk(tree)
        for name in (
            [node.attr]
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, context)
            else [node.name]
            if isinstance(node, ast.FunctionDef)
            else []
        )
        if is_private(name)
    }


def test_private_parts_are_named_in_one_module_alone():
    used = {}
    for found in pkgutil.walk_packages(trt_tui.tui.__path__, "trt_tui.tui."):
        module = importlib.import_module(found.name)
        classes = [one for one in vars(module).values() if inspect.isclass(one) and one.__module__ == found.name]
        for one in classes:
            theirs = set().union(
                *(names_of_textual(base) for base in one.__mro__ if base.__module__.partition(".")[0] == "textual")
            )
            if named := private_names(tree_of(one)) & theirs:
                used.setdefault(found.name, set()).update(named)
    assert set(used) == {OURS}, "a private name of Textual is used, or overridden by chance"
    assert used[OURS] == {"_display", "_file", "_get_terminal_size"}


def test_no_module_imports_or_reaches_into_what_is_private_elsewhere():
    sources = {path.relative_to(ROOT).as_posix(): path.read_text() for path in ROOT.rglob("*.py")}
    own = {
        name
        for source in sources.values()
        for name in re.findall(r"(?:def |class |self\.|^(?:    )?)(_[a-z]\w*)(?=[ (:,])", source, re.M)
    }
    reached = {
        (place, name)
        for place, source in sources.items()
        for name in re.findall(r"(?<!self)(?<!cls)(?<!super\(\))\.(_[a-z]\w*)(?![\w\"'])", source)
        if name not in own or place.startswith("tui/")
    }
    assert {place for place, name in reached if name != "_exit"} == {MODULE}, "os._exit alone is public"


def test_a_timer_without_the_part_stays_as_it_is():
    timer = SimpleNamespace()
    textual_internals.allow_late_timer(timer)
    assert vars(timer) == {}


@pytest.fixture
def app(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    return TrtTuiApp(Options("none.onnx"), lambda *arguments, **options: Mock())


def test_every_line_is_drawn_without_hidden_characters_and_without_colours_if_asked(app):
    filters = app.get_line_filters()
    assert isinstance(filters[-1], ControlCharacterFilter) and any(isinstance(one, NoColor) for one in filters)
    assert not any(isinstance(one, Monochrome) for one in filters)


def test_an_update_that_is_not_known_is_written_by_textual_and_all_is_painted_anew(app):
    from textual._compositor import LayoutUpdate

    update = LayoutUpdate([[Strip.blank(4)]], Region(0, 0, 4, 1))
    assert (
        app.replace_screen_update(update) is update and app.replace_screen_update(None) is None
    )  # no terminal of ours
    app.terminal_cells = Mock(TerminalCells)
    assert (
        isinstance(app.replace_screen_update(update), TerminalUpdate)
        and app.replace_screen_update(None) is None
        and not app.terminal_cells.mock_calls
    )
    del update.strips  # a release that calls it otherwise
    for other in (update, "text", SimpleNamespace(spans=(), chops=(), chop_ends=())):
        app.terminal_cells.reset_mock()
        assert app.replace_screen_update(other) is other and app.terminal_cells.forget_cells.called


def test_the_app_is_imported_without_the_compositor(monkeypatch):
    monkeypatch.setitem(sys.modules, "textual._compositor", None)
    spec = importlib.util.spec_from_file_location("without_compositor", textual_internals.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.CompositorUpdate is object and not module.is_screen_update(SimpleNamespace(strips=[], region=None))


async def test_what_closed_dialogs_looked_like_is_forgotten():
    from textual._styles_cache import StylesCache

    def count() -> int:
        gc.collect()
        return sum(type(one) is StylesCache for one in gc.get_objects())

    app = textual_internals.DrawingApp()
    async with app.run_test() as pilot:
        counts = []
        for _ in range(3):
            await app.push_screen(ModalScreen())
            await pilot.pause()
            await app.pop_screen()
            await pilot.pause()
            counts.append(count())
    assert counts[0] == counts[-1]


def test_a_cache_of_another_shape_is_left_alone(monkeypatch):
    monkeypatch.setattr(textual_internals, "_styles_cache", None)
    textual_internals.clear_style_cache()


def test_a_driver_without_a_stream_of_its_own_has_standard_error_led_to_it(monkeypatch):
    led = []
    monkeypatch.setattr(os, "dup2", lambda *descriptors: led.append(descriptors))
    driver = object.__new__(textual_internals.DrawingDriver)
    for descriptor in (1, 2):
        driver.set_output_stream(SimpleNamespace(fileno=lambda number=descriptor: number))
    assert led == [(1, 2)]
    driver._file, stream = None, object()
    driver.set_output_stream(stream)
    assert driver._file is stream and led == [(1, 2)]
