"""Names that steer terminals, wide and long ones: what the app draws and copies of them."""

from functools import partial

import numpy as np
import onnx
import pytest
from rich.cells import cell_len
from textual.content import Content
from textual.widgets import Static

from tests.cli.test_hostile_names import CLIPBOARD, NAMES, TITLE, hostile_mlp, is_clean
from tests.local import H200, NullSession
from tests.screen import LARGE, SMALL, answered, opened, settle
from trt_tui.errors import TrtTuiError
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.options import Options
from trt_tui.tui import spans
from trt_tui.tui.app import TrtTuiApp
from trt_tui.tui.state.rows import LayerListView

pytestmark = pytest.mark.usefixtures("quick")
LONG = "/很长的名字/" * 4000


def options(folder) -> Options:
    """Writes a network and samples, all of hostile names."""
    model = hostile_mlp()
    model.graph.node[2].name = LONG
    path, data = folder / f"net{TITLE}.onnx", folder / f"samples{CLIPBOARD}.npz"
    onnx.save(model, path)
    shapes = {one.name: [dim.dim_value or 8 for dim in one.type.tensor_type.shape.dim] for one in model.graph.input}
    rng = np.random.default_rng(0)
    np.savez(data, **{name: rng.standard_normal((8, *shape[1:]), dtype=np.float32) for name, shape in shapes.items()})
    return Options(str(path), str(data), batch=4)


def drawn(app) -> list[str]:
    """The lines that the terminal is sent, without styles."""
    width, height = app.size
    lines = app.screen._compositor.render_strips(app.size)
    assert len(lines) == height and all(strip.cell_length == width for strip in lines)
    texts = ["".join(segment.text for segment in strip if not segment.control) for strip in lines]
    assert all(cell_len(text) == width for text in texts), [text for text in texts if cell_len(text) != width]
    return texts


@pytest.mark.parametrize("size", [SMALL, LARGE])
async def test_hostile_names_are_drawn_where_they_belong(tmp_path, monkeypatch, size):
    monkeypatch.chdir(tmp_path)
    app = TrtTuiApp(
        options(tmp_path),
        partial(NullSession, folder=tmp_path, builder=H200, sweeps=False),
        target="sqnr>=20",
        resume=False,
    )
    seen, copied = [], []
    async with app.run_test(size=size) as pilot:
        await settle(pilot)

        async def look(*keys):
            await answered(pilot, *keys)
            seen.extend(drawn(app))

        app.session.log += [f"verbose: {name}" for name in NAMES]
        app.session.warnings.append(f"warned {NAMES[3]}")
        await look()
        for keys in (
            "down",
            "down",
            "down",
            "b",
            "i",
            "escape",
            "o",
            "escape",
            "p",
            "escape",
            "e",
            "escape",
            "space",
            "c",
            "escape",
            "d",
            "escape",
            "t",
            "slash 漢 enter",
            "escape",
            "2",
            "y",
        ):
            await look(*keys.split())
        app.post_session_event(ev.JobFailed(1, TrtTuiError(f"title {NAMES[0]}", "\n".join(NAMES), NAMES[3])))
        await settle(pilot)
        await look()
        await look("o")
        assert r"\x1b]0;owned\x07one" in "".join(seen) and "\x1b" not in app.clipboard
        await look("y")
        copied.append(app.clipboard)
        await look("escape")
        assert app.main_screen.layer_list.view is not LayerListView.BLOCKS
        assert app.session.get_run_results("int8").accuracy is not None
        assert "�" not in "".join(seen), "the net is for what no one thought of"
        assert is_clean("".join(seen)) and all(map(is_clean, copied)) and "[bold red]four[/]" in "".join(seen)
        assert "title" in copied[0]


async def test_the_net_catches_what_a_widget_does_not_write_out(tmp_path):
    async with opened(tmp_path, held=(rq.OpenNetwork,)) as (app, main, pilot):
        await main.mount(Static(Content(f"raw {TITLE} {CLIPBOARD} \u202e\ud800\x9b end"), markup=False))
        await settle(pilot)
        assert is_clean("".join(drawn(app)))


@pytest.mark.parametrize(
    "text",
    ["plain words", "漢字かな交じり文", "e\u0301" * 30, "🙂" * 20, "a\x1b\u202eb" * 9, pytest.param(LONG, id="long")],
)
@pytest.mark.parametrize("width", [0, 1, 2, 7, 40])
def test_texts_are_cut_by_cells(text, width):
    assert cell_len(spans.shorten_middle(text, width)) <= width
    assert spans.line_width(spans.clip_line([(text, ""), (text, "dim")], width)) <= max(width, 1)
    assert width < 2 or all(cell_len(line) <= width for line in spans.wrap_text(text, width))
    if width:
        assert spans.line_width(spans.justify_line([(text, "")], width, [(text, "")])) == width
