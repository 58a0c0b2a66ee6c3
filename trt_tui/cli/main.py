"""The command line. Data goes to stdout, messages go to stderr; the app is only imported when it is opened."""

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
from trt_tui.cli.build import build
from trt_tui.cli.compare import compare
from trt_tui.cli.doctor import doctor
from trt_tui.cli.export import export
from trt_tui.cli.inspect import inspect
from trt_tui.cli.options import CONTEXT
from trt_tui.cli.preflight import preflight
from trt_tui.cli.search import search
from trt_tui.cli.streams import guarded
from trt_tui.errors import ExitCode, InputError, TrtTuiError, memory_error, system_error
from trt_tui.files.reading import missing_file, near_files
from trt_tui.words import VisibleStream, did_you_mean, near_names, visible


class _Commands(click.Group):
    """A first argument that is no command is a network to open."""

    def resolve_command(self, ctx: click.Context, args: list[str]
                        ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None:
            if not ctx.resilient_parsing and not os.path.exists(args[0]):
                raise self._unknown(args[0])
            return "open", self.commands["open"], args
        return super().resolve_command(ctx, args)

    def _unknown(self, word: str) -> InputError:
        """Returns the error of a first argument that is neither a command nor a file, with what is most likely meant.

        A word with a suffix or a folder is a file; any other is rather a command.
        """
        if Path(word).suffix or os.path.basename(word) != word:
            return missing_file(f"{word} does not exist", word)
        near = [*near_names(word, self.commands, 1), *near_files(word)]
        return InputError(f"{word} is neither a command nor a file", did_you_mean(near[:2]),
                          "`trt-tui --help` lists the commands.")

    def list_commands(self, ctx: click.Context) -> list[str]:
        return ["open", "demo", "preflight", "compare", "search", "build", "export", "inspect", "doctor"]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and os.isatty(0) and os.isatty(1):
            from trt_tui.cli.recent import offer, recent

            if sessions := recent():
                offer(sessions)
                ctx.exit()
        # Options before the network belong to `open`.
        if args and args[0].startswith("-") and args[0] not in ("--help", "--version", "-h"):
            args = ["open", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        # Files first: where one is named, bash forgets what came before.
        return [CompletionItem(incomplete, type="file"), *super().shell_complete(ctx, incomplete)]

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a command and exits with its code. Whatever it prints passes through a `VisibleStream`."""
        kwargs["standalone_mode"] = False
        with guarded(), redirect_stdout(VisibleStream(sys.stdout)), redirect_stderr(VisibleStream(sys.stderr)):
            code = self._exit_code(*args, **kwargs)
            interrupts.leave(code)
            sys.exit(code)

    def _exit_code(self, *args: Any, **kwargs: Any) -> int:
        """Runs a command; an error that ends it is printed on stderr."""
        try:
            with interrupts.raising():
                _check_here()
                code = super().main(*args, **kwargs)
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
        except MemoryError as error:
            _print_error(memory_error(error))
            return int(ExitCode.BAD_INPUT)
        except OSError as error:
            _print_error(system_error(error))
            return int(ExitCode.BAD_INPUT)
        except Exception:
            traceback.print_exc()
            click.echo("Error: this is a defect of trt-tui, please report it with the lines above.", err=True)
            return int(ExitCode.BAD_INPUT)
        return code if isinstance(code, int) else 0


def _check_here() -> None:
    """Refuses to start in a folder that no longer exists, where relative paths mean nothing."""
    try:
        os.getcwd()
    except OSError as error:
        raise InputError("the current folder no longer exists", error.strerror or str(error),
                         "Change to another folder (cd) and run it again.") from None


def _print_error(error: TrtTuiError) -> None:
    click.echo(f"Error: {visible(error.title)}", err=True)
    for label, text in (("Why", error.cause), ("Next", error.next_step)):
        if text:
            # No line of a library's message can be taken for one of ours.
            said = visible(text, lines=True).replace("\n", "\n       ")
            click.echo(f"  {label}: {said}", err=True)


@click.group(cls=_Commands, context_settings=CONTEXT, no_args_is_help=True)
@click.version_option(__version__, "--version")
def main() -> None:
    """See which layers of a network lose accuracy in FP16 or INT8, raise them, and export the precision config.

    `trt-tui MODEL --data D` opens the app on a network; `trt-tui demo` opens it on the bundled one.
    """


for _command in (open_, demo, preflight, compare, search, build, export, inspect, doctor):
    main.add_command(_command)
