"""The commands that open the app: `demo`, and `open`, which also runs if a network is named without a command."""

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
from trt_tui.cli.options import (
    CONTEXT_SETTINGS,
    MAX_SAMPLES,
    PREVIEW_OPTIONS,
    SESSION_OPTIONS,
    STAGE_OPTIONS,
    VERBOSE_OPTIONS,
    Command,
    add_options,
    collect_options,
    model_argument,
    option_under_heading,
    release_option,
)
from trt_tui.errors import InputError
from trt_tui.formatting import escape_hidden_characters, take_first_cells

if TYPE_CHECKING:
    from trt_tui.options import Options

_APP_OPTIONS = (
    option_under_heading(
        "Data",
        "--whatif-samples",
        default=32,
        show_default=True,
        type=click.IntRange(1, MAX_SAMPLES),
        help="Measure every value in the app on the first N judged samples.",
    ),
    option_under_heading("Config", "--new", is_flag=True, help="Do not resume the saved session of this network."),
    option_under_heading(
        "Config", "--session", default="", metavar="NAME", help="Resume the saved session of this name."
    ),
    option_under_heading(
        "Output", "--no-mouse", is_flag=True, help="Leave the mouse to the terminal, for selecting text."
    ),
)
"""The options of the app itself."""

_UNSUPPORTED_TERMINALS = ("dumb", "unknown")
"""Values of TERM of terminals whose cursor cannot be moved."""


@click.command("open", cls=Command, context_settings=CONTEXT_SETTINGS)
@add_options(model_argument, *SESSION_OPTIONS, release_option, *PREVIEW_OPTIONS, *STAGE_OPTIONS, *_APP_OPTIONS)
def open_(
    new: bool, session: str, no_mouse: bool, config_path: str | None, force: bool, target: str | None, **arguments: Any
) -> None:
    """Open the app on MODEL (the same as `trt-tui MODEL`)."""
    _run_app(collect_options(arguments), config_path, target, force, new, not no_mouse, session)


@click.command(cls=Command, context_settings=CONTEXT_SETTINGS)
@add_options(*PREVIEW_OPTIONS, *_APP_OPTIONS, *VERBOSE_OPTIONS)
def demo(new: bool, session: str, no_mouse: bool, whatif_samples: int, no_preview: bool, verbose: bool) -> None:
    """Open the app on the bundled network.

    It segments images, and loses accuracy in INT8.
    """
    from trt_tui import demo as bundled
    from trt_tui.options import Options

    options = Options(
        str(bundled.network_path()),
        str(bundled.samples_path()),
        str(bundled.calibration_path()),
        metric=bundled.metric_spec(),
        whatif_samples=whatif_samples,
        preview=not no_preview,
        verbose=verbose,
    )
    _run_app(options, None, None, False, new, not no_mouse, session)


def _require_terminal() -> None:
    """Checks that the app can be displayed and operated in the terminal.

    Raises:
        InputError: stdin or stdout is not a terminal, or the terminal cannot draw the app.
    """
    instead = "Use `trt-tui compare` for results without the app."
    for number, name in enumerate(("stdin", "stdout")):
        if not os.isatty(number):
            raise InputError("the app needs a terminal", f"{name} is not a terminal", instead)
    if (term := os.environ.get("TERM", "")) in _UNSUPPORTED_TERMINALS:
        raise InputError(
            "this terminal cannot show the app",
            f"TERM is {term}",
            f"Set TERM to what the terminal is, such as xterm-256color. {instead}",
        )


@contextmanager
def _temporary_message(text: str) -> Iterator[None]:
    """Shows a message on a line of the terminal during a block, because the app takes a second to load."""
    stream = sys.__stderr__
    if stream is None or not stream.isatty():
        yield
        return
    print(
        take_first_cells(escape_hidden_characters(text), shutil.get_terminal_size().columns - 1),
        end="\r",
        file=stream,
        flush=True,
    )
    try:
        yield
    finally:
        print(end="\x1b[K", file=stream, flush=True)


def _run_app(
    options: Options,
    config_path: str | None,
    target: str | None,
    force: bool,
    new_session: bool,
    mouse: bool,
    session_name: str,
) -> None:
    _require_terminal()
    gc.set_threshold(100_000, 20, 50)  # imported modules and the objects of a big network live long
    with _temporary_message(f"opening {Path(options.model).name} …"):
        from trt_tui.session.history import SessionFolder
        from trt_tui.tui.app import TrtTuiApp

    interrupts.restore_signal_handlers()
    app = TrtTuiApp(
        options,
        config_path=config_path,
        target=target,
        force=force,
        resume=not new_session,
        session_folder=SessionFolder(requested_name=session_name),
    )
    app.run(mouse=mouse)
    if app.return_code:
        sys.exit(app.return_code)
