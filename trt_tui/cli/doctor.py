"""The command `doctor`."""

import click

from trt_tui.cli.options import CONTEXT, Command
from trt_tui.errors import ExitCode
from trt_tui.words import table


@click.command(cls=Command, context_settings=CONTEXT)
def doctor() -> None:
    """Show which backends work here, and why the others do not."""
    import platform

    import numpy
    import onnx
    import onnx_ir

    from trt_tui import __version__
    from trt_tui.backends.registry import survey

    click.echo(f"trt-tui {__version__}, Python {platform.python_version()}, numpy {numpy.__version__}, "
               f"onnx {onnx.__version__}, onnx-ir {onnx_ir.__version__}")
    states = survey()
    rows = []
    for state in states:
        rows.append(["yes" if state.works else "no", state.name, state.version or "", state.detail])
        if state.remedy:
            rows.append(["", "", "", state.remedy])
    for line in table(rows, flush_left=4):
        click.echo(f"  {line}")
    if not any(state.works for state in states):
        raise SystemExit(int(ExitCode.BACKEND_UNAVAILABLE))
