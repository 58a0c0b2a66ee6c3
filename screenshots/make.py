"""Takes the screenshots of the README from the real app on the bundled network.

    python screenshots/make.py [NAME ...]

It writes SVG and, with cairosvg and the font DejaVu Sans Mono installed, PNG beside this file.

Figures are measured on the machine that runs this; nothing is staged but the size of the terminal.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime

_STATE = tempfile.TemporaryDirectory()
os.environ["XDG_STATE_HOME"] = os.environ["XDG_CACHE_HOME"] = _STATE.name

from trt_tui import demo  # noqa: E402
from trt_tui.options import Options  # noqa: E402
from trt_tui.tui.app import TrtTuiApp  # noqa: E402

HERE = Path(__file__).resolve().parent
os.chdir(tempfile.gettempdir())  # a dialog that proposes a path shows the current folder

SHOTS: dict[str, tuple[tuple[int, int], Sequence[str]]] = {
    "tree": ((120, 40), ("wait",)),
    "tree-80x24": ((80, 24), ("wait",)),
    "worst-first": ((120, 40), ("wait", "t", "wait")),
    "after-two-toggles": ((120, 40), ("wait", "t", "space", "wait", "n", "space", "wait", "b", "wait")),
    "wide": ((140, 40), ("wait", "t", "space", "wait", "n", "space", "wait", "b", "wait")),
    "configs": ((120, 40), ("wait", "t", "space", "wait", "c", "pause")),
    "export": ((120, 40), ("wait", "e", "pause")),
    "classes": ((100, 30), ("wait", "8", "3", "pause")),
    "help": ((120, 40), ("wait", "question_mark", "pause")),
    "light": ((120, 40), ("wait", "t", "wait", "theme")),
    "loading": ((80, 24), ()),
    "stages": ((120, 40), ("wait",)),
}


def options(name: str = "") -> Options:
    """The bundled demo, with all of its data; for the picture of stages with stages of its own."""
    found = Options(
        str(demo.network_path()), str(demo.samples_path()), str(demo.calibration_path()), metric=demo.metric_spec()
    )
    return replace(found, stages=stages(Path(_STATE.name))) if name == "stages" else found


def stages(folder: Path) -> tuple[str, ...]:
    """ONNX Runtime's outputs, the exported INT8 network as ONNX Runtime runs it, and INT8 as simulated."""
    runtime, typed = folder / "runtime.npz", folder / "qdq.onnx"
    session = onnxruntime.InferenceSession(str(demo.network_path()))
    with np.load(demo.samples_path()) as data:
        feed = {one.name: data[one.name] for one in session.get_inputs()}
    names = [one.name for one in session.get_outputs()]
    np.savez(runtime, **dict(zip(names, session.run(names, feed), strict=True)))
    subprocess.run(
        [
            sys.executable,
            "-m",
            "trt_tui",
            "export",
            str(demo.network_path()),
            "--precision",
            "int8",
            "--calib-data",
            str(demo.calibration_path()),
            "--format",
            "onnx",
            "-o",
            str(typed),
        ],
        check=True,
    )
    return f"runtime={runtime}", f"qdq={typed}", "int8"


async def shoot(name: str, size: tuple[int, int], steps: Sequence[str]) -> None:
    """Takes one screenshot after some steps: keys, or "wait", "pause" and "theme"."""
    app = TrtTuiApp(options(name), resume=False)
    async with app.run_test(size=size) as pilot:
        for step in steps:
            if step == "wait":
                for _ in range(1200):
                    await pilot.pause(0.1)
                    if app.session.outline is not None and not app.session.is_busy:
                        break
                await pilot.pause(0.6)
                while app.session.is_busy:
                    await pilot.pause(0.1)
                await pilot.pause(0.3)
            elif step == "pause":
                await pilot.pause(0.4)
            elif step == "theme":
                app.theme = "trt-light"
                await pilot.pause(0.3)
            else:
                await pilot.press(step)
                await pilot.pause(0.2)
        svg = app.export_screenshot(title=f"trt-tui {app.session.outline.name if app.session.outline else ''}".strip())
    (HERE / f"{name}.svg").write_text(svg)
    try:
        import cairosvg
    except ImportError:
        return
    drawn = re.sub(r"font-family: ?[^;]+;", "font-family: DejaVu Sans Mono;", svg)
    cairosvg.svg2png(bytestring=drawn.encode(), write_to=str(HERE / f"{name}.png"), output_width=1400)


async def main(names: Sequence[str]) -> None:
    """Takes the screenshots of some names, all by default."""
    for name in names or SHOTS:
        await shoot(name, *SHOTS[name])
        print(name)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
