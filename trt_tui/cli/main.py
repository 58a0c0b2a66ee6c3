"""The entry point of the command line. Data go to stdout, messages to stderr. The app is imported only if it is
opened."""

import os
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from trt_tui import __version__
from trt_tui.cli import interrupts
from trt_tui.cli.app import demo, open_
from trt_tui.cli.compare import compare, dumps, methods, preflight
from trt_tui.cli.export import build, bundle, export, subgraph
from trt_tui.cli.inspect import doctor, inspect, lint, preview, scheme
from trt_tui.cli.options import CONTEXT_SETTINGS
from trt_tui.cli.search import search
from trt_tui.cli.streams import protect_standard_streams
from trt_tui.cli.usage import replace_old_command_name
from trt_tui.errors import ExitCode, InputError, TrtTuiError, convert_memory_error, convert_os_error
from trt_tui.files.reading import find_similar_files, missing_file_error
from trt_tui.formatting import EscapingTextStream, escape_hidden_characters, find_similar_names, suggestion_question


class _CommandGroup(click.Group):
    """The group of all commands. If the first argument is not a command, it is the path of a network to open."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        args = args if ctx.resilient_parsing else replace_old_command_name(args)
        if args and self.get_command(ctx, args[0]) is None:
            if not ctx.resilient_parsing and not os.path.exists(args[0]):
                raise self._unknown_command_error(args[0])
            return "open", self.commands["open"], args
        return super().resolve_command(ctx, args)

    def _unknown_command_error(self, argument: str) -> InputError:
        """Returns the error for a first argument that is neither a command nor a file, with the most likely meaning.

        A word with a suffix or a folder is treated as a file, any other word as a command.
        """
        if Path(argument).suffix or os.path.basename(argument) != argument:
            return missing_file_error(f"{argument} does not exist", argument)
        similar_names = [*find_similar_names(argument, self.commands, 1), *find_similar_files(argument)]
        return InputError(
            f"{argument} is neither a command nor a file",
            suggestion_question(similar_names[:2]),
            "`trt-tui --help` lists the commands.",
        )

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Options before the network belong to `open`.
        if args and args[0].startswith("-") and args[0] not in ("--help", "--version", "-h"):
            args = ["open", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        # Files come first, because bash drops all completions before a file entry.
        return [CompletionItem(incomplete, type="file"), *super().shell_complete(ctx, incomplete)]

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a command and exits with its exit code. All printed text passes through an `EscapingTextStream`."""
        kwargs["standalone_mode"] = False
        with (
            protect_standard_streams(),
            redirect_stdout(EscapingTextStream(sys.stdout)),
            redirect_stderr(EscapingTextStream(sys.stderr)),
        ):
            exit_code = self._run_command(*args, **kwargs)
            interrupts.exit_now(exit_code)
            sys.exit(exit_code)

    def _run_command(self, *args: Any, **kwargs: Any) -> int:
        """Runs a command and returns its exit code. An error that ends the command is printed on stderr."""
        try:
            with interrupts.raise_signals_as_interrupts():
                _check_current_folder()
                exit_code = super().main(*args, **kwargs)
                sys.stdout.flush()
        except TrtTuiError as error:
            _print_error(error)
            return int(error.exit_code)
        except click.exceptions.Exit as stop:
            return stop.exit_code
        except SystemExit as stop:
            return stop.code if isinstance(stop.code, int) else 0
        except (click.Abort, KeyboardInterrupt):
            click.echo("Stopped.", err=True)
            return int(ExitCode.CANCELLED)
        except click.ClickException as error:
            error.show()
            return int(ExitCode.BAD_INPUT)
        except (MemoryError, OSError) as error:
            _print_error(convert_os_error(error) if isinstance(error, OSError) else convert_memory_error(error))
            return int(ExitCode.BAD_INPUT)
        except Exception:
            traceback.print_exc()
            click.echo("Error: this is a defect of trt-tui, please report it with the lines above.", err=True)
            return int(ExitCode.BAD_INPUT)
        return exit_code if isinstance(exit_code, int) else 0


def _check_current_folder() -> None:
    """Refuses to start in a folder that no longer exists, in which relative paths have no meaning."""
    try:
        os.getcwd()
    except OSError as error:
        raise InputError(
            "the current folder no longer exists",
            error.strerror or str(error),
            "Change to another folder (cd) and run it again.",
        ) from None


def _print_error(error: TrtTuiError) -> None:
    click.echo(f"Error: {escape_hidden_characters(error.title)}", err=True)
    for label, text in (("Why", error.cause), ("Next", error.next_step)):
        if text:
            # The indentation shows that a line belongs to a library's message.
            indented_text = escape_hidden_characters(text, keep_line_breaks=True).replace("\n", "\n       ")
            click.echo(f"  {label}: {indented_text}", err=True)


@click.group(cls=_CommandGroup, context_settings=CONTEXT_SETTINGS, no_args_is_help=True)
@click.version_option(__version__, "--version")
def main() -> None:
    """Find the layers of a network that lose accuracy in FP16 or INT8, raise them, and export the config.

    `trt-tui MODEL --data D` opens the app on a network. `trt-tui demo` opens it on the bundled network.
    """


for _command in (
    open_,
    demo,
    preflight,
    compare,
    methods,
    dumps,
    search,
    build,
    export,
    bundle,
    subgraph,
    inspect,
    lint,
    scheme,
    preview,
    doctor,
):
    main.add_command(_command)
