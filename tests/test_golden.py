"""What commands print and write of six networks, and the screens of three, against ``tests/golden``.

Texts and structure are compared exactly, values within a tolerance where FP32 sums have the order that the files were
made with. ``TRT_TUI_GOLDEN=write`` writes the files anew.
"""

import os
from functools import partial
from typing import Any

import pytest

from tests import TESTS
from tests.golden_cases import CASES, differences, normalise, sum_order
from tests.local import NullSession
from tests.screen import answered, screen_text, settle
from trt_tui.options import Options
from trt_tui.tui.app import TrtTuiApp

pytestmark = pytest.mark.onnxruntime("1.31")  # texts name what the constrained releases say

GOLDEN = TESTS / "golden"
SUM_ORDER = GOLDEN / "sum_order.txt"
WRITE = os.environ.get("TRT_TUI_GOLDEN") == "write"
BINARY = (".npz", ".onnx")
SIZE = (120, 40)


def check(case: str, texts: dict[str, str]) -> None:
    """Compares texts with the golden files of a case, or writes these."""
    folder, wrong = GOLDEN / case, []
    for name, text in texts.items():
        path, text = folder / f"{name}.golden", normalise(text)
        if WRITE:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            SUM_ORDER.write_text(f"{sum_order()}\n")
        lines = differences(path.read_text(), text, SUM_ORDER.read_text().strip() == sum_order())
        wrong += [f"{case}/{name}:", *lines] if lines else []
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("case", CASES)
def test_commands(case, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    CASES[case].write_files(tmp_path)
    before, printed = {path.name for path in tmp_path.iterdir()}, []
    for command in CASES[case].command_lines():
        code, out, err = run(*command)
        printed.append(f"$ trt-tui {' '.join(command)}\n{out}{err}exit code {code}\n")
    texts = {
        path.name: path.read_text()
        for path in tmp_path.iterdir()
        if path.name not in before and path.is_file() and path.suffix not in BINARY
    }
    check(case, {"commands.txt": "\n".join(printed), **texts})


class MeasuredSession(NullSession):
    """A session that is answered in the test's process, with the real arithmetic and without TensorRT."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.child._stand_ins = {"get_engine_builder": lambda *_, **__: None}


@pytest.mark.parametrize("case", ["float", "quantized", "plugin"])
async def test_screens(case, quick, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(MeasuredSession, "measured_before", tmp_path / "measured")
    CASES[case].write_files(tmp_path)
    options = Options("model.onnx", "data.npz")
    app, screens = TrtTuiApp(options, partial(MeasuredSession, folder=tmp_path), target="sqnr>=30", resume=False), []
    async with app.run_test(size=SIZE) as pilot:
        await settle(pilot)
        for keys in CASES[case].keys:
            await answered(pilot, *keys.split())
            screens.append(f"keys: {keys}\n{screen_text(app)}")
    check(case, {"screens.txt": "\n".join(screens)})
