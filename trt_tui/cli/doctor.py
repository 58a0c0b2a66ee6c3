"""The command `doctor`."""

from __future__ import annotations

import click

from trt_tui.cli.options import CONTEXT, Command
from trt_tui.errors import ExitCode


@click.command(cls=Command, context_settings=CONTEXT)
def doctor() -> None:
    """Which backends work here, and why the others do not."""
    import platform

    import numpy
    import onnx
    import onnx_ir

    from trt_tui import __version__
    from trt_tui.backends.registry import survey

    click.echo(f"trt-tui {__version__}, Python {platform.python_version()}, numpy {numpy.__version__}, "
               f"onnx {onnx.__version__}, onnx-ir {onnx_ir.__version__}")
    states = survey()
    width = max(len(state.name) for state in states)
    for state in states:
        mark = "yes" if state.works else "no "
        version = f" {state.version}" if state.version else ""
        click.echo(f"  {mark}  {state.name:<{width}} {version:<9} {state.detail}")
        if state.remedy:
            click.echo(f"       {'':<{width}} {'':<9} {state.remedy}")
    if not any(state.works for state in states):
        raise SystemExit(int(ExitCode.BACKEND_UNAVAILABLE))
