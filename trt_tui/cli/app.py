"""The commands that open the app: `open`, which is also meant by a network alone, and `demo`."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trt_tui.cli import interrupts
from trt_tui.cli.options import CONTEXT, EVERYTHING, MOST_SAMPLES, PREVIEW, STAGES, Command, option, options_of, takes
from trt_tui.cli.places import check_evidence
from trt_tui.cli.usage import check_usage
from trt_tui.errors import InputError
from trt_tui.words import first_cells, visible

if TYPE_CHECKING:
    from trt_tui.options import Options

_whatif_samples = option("Data", "--whatif-samples", default=32, show_default=True,
                         type=click.IntRange(1, MOST_SAMPLES),
                         help="Take every figure in the app on the first so many judged samples.")
_new = option("Config", "--new", is_flag=True, help="Do not resume the saved session of this network.")

_session = option("Config", "--session", hidden=True, default="", metavar="NAME", help="Resume the saved session "
                  "of this name, as the list of sessions does.")

_no_mouse = option("Output", "--no-mouse", is_flag=True, help="Leave the mouse to the terminal, for selecting text.")

_NO_SCREENS = ("dumb", "unknown")
"""Values of TERM of terminals whose cursor cannot be moved."""


@click.command("open", cls=Command, context_settings=CONTEXT)
@takes(*EVERYTHING, *PREVIEW, *STAGES)
@_whatif_samples
@_new
@_session
@_no_mouse
def open_(model: str, whatif_samples: int, new: bool, session: str, no_mouse: bool, config_path: str | None,
          force: bool, target: str | None, **arguments: Any) -> None:
    """Open the app on MODEL (the same as `trt-tui MODEL`)."""
    check_usage()
    check_evidence(arguments)
    _run_app(options_of(model, whatif_samples, arguments), config_path, target, force, new, not no_mouse, session)


@click.command(cls=Command, context_settings=CONTEXT)
@PREVIEW[0]
@_whatif_samples
@_new
@_session
@_no_mouse
def demo(new: bool, session: str, no_mouse: bool, whatif_samples: int, no_preview: bool) -> None:
    """Open the app on the bundled network.

    It segments images, and INT8 breaks it.
    """
    from trt_tui import demo as bundled
    from trt_tui.options import Options

    options = Options(str(bundled.network_path()), str(bundled.samples_path()), str(bundled.calibration_path()),
                      metric=bundled.metric_spec(), whatif_samples=whatif_samples, preview=not no_preview)
    _run_app(options, None, None, False, new, not no_mouse, session, walked=True)


def _check_terminal() -> None:
    """Refuses to open the app where it could not be seen or typed to.

    Raises:
        InputError: stdin or stdout is no terminal, or one that cannot be drawn on.
    """
    instead = "Use `trt-tui compare` for figures without the app."
    for number, name in enumerate(("stdin", "stdout")):
        if not os.isatty(number):
            raise InputError("the app needs a terminal", f"{name} is no terminal", instead)
    if (term := os.environ.get("TERM", "")) in _NO_SCREENS:
        raise InputError("the app needs a terminal that can be drawn on", f"TERM is {term}",
                         f"Set TERM to what the terminal is, such as xterm-256color. {instead}")


@contextmanager
def _saying(what: str) -> Iterator[None]:
    """Says on a line of the terminal what is done, and takes it back after that: the app takes a second to load."""
    stream = sys.__stderr__
    if stream is None or not stream.isatty():
        yield
        return
    print(first_cells(visible(what), shutil.get_terminal_size().columns - 1), end="\r", file=stream, flush=True)
    try:
        yield
    finally:
        print(end="\x1b[K", file=stream, flush=True)


def _run_app(options: Options, config_path: str | None, target: str | None, force: bool, new: bool,
             mouse: bool, session: str, walked: bool = False) -> None:
    _check_terminal()
    gc.set_threshold(100_000, 20, 50)  # what is imported stays, as do the many small objects of a big network
    with _saying(f"opening {Path(options.model).name} …"):
        from trt_tui.session.saved import SavedSessions
        from trt_tui.tui.app import TrtTuiApp
        from trt_tui.tui.walk import Walk

    interrupts.release()
    app = TrtTuiApp(options, config_path=config_path, target=target, force=force, resume=not new,
                    store=SavedSessions(wanted=session), walk=Walk() if walked else None)
    app.run(mouse=mouse)
    from trt_tui.cli.recent import remember

    remember(app.session, sys.argv[1:])
    if app.return_code:
        sys.exit(app.return_code)
