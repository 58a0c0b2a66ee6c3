"""The command `doctor`, which lists the backends and the reasons why a backend does not work on this machine."""

import click

from trt_tui.cli.options import CONTEXT_SETTINGS, VERBOSE_OPTIONS, Command
from trt_tui.errors import ExitCode
from trt_tui.formatting import table_lines


@click.command(cls=Command, context_settings=CONTEXT_SETTINGS)
@VERBOSE_OPTIONS[0]
def doctor(verbose: bool) -> None:
    """List the backends that work on this machine.

    The list states the reason for each backend that does not work.
    """
    import platform

    import numpy
    import onnx
    import onnx_ir

    from trt_tui import __version__
    from trt_tui.backends.registry import diagnose_backends

    click.echo(f"trt-tui {__version__}, Python {platform.python_version()}, numpy {numpy.__version__}, "
               f"onnx {onnx.__version__}, onnx-ir {onnx_ir.__version__}")
    states = diagnose_backends()
    rows = []
    for state in states:
        rows.append(["yes" if state.works else "no", state.name, state.version or "", state.detail])
        rows += [["", "", "", text] for text in (state.remedy, state.raw_message if verbose else "") if text]
    for line in table_lines(rows, left_aligned_columns=4):
        click.echo(f"  {line}")
    if not any(state.works for state in states):
        raise SystemExit(int(ExitCode.BACKEND_UNAVAILABLE))
