"""The output files of commands: checks before anything is measured, and writes at the end."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from trt_tui.cli.streams import print_report
from trt_tui.core.exporters.registry import find_companion_files
from trt_tui.core.report.document import Section, report_markdown, report_text
from trt_tui.errors import InputError
from trt_tui.files.reading import check_regular_file
from trt_tui.files.writing import convert_write_errors, is_special_file, require_empty_folder, write_file_atomically
from trt_tui.formatting import RUN_TITLES, escape_hidden_characters

OUTPUT_PARAMETERS = ("output", "json_path", "markdown_path")
"""The parameters of commands that name a file to write; the companions of an export stand beside the first."""

_INPUT_PARAMETERS = (
    "reference",
    "data",
    "calib_data",
    "calib_cache",
    "metric",
    "engine",
    "outputs",
    "inputs",
    "first",
    "second",
)
"""The parameters of commands that name something to read, apart from the network and configs."""


def json_text(record: object) -> str:
    return json.dumps(record, indent=1) + "\n"


def check_command_files(command: str, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Refuses output files that cannot be written or are inputs as well, and stages whose files are missing.

    Returns the files that will be written. Whether the weights of the network are in one of them is checked when it is
    open. A config that a search or a comparison of dumps writes may replace the config that is read.
    """
    from trt_tui.core.data.input_files import list_input_files, refuse_overwriting_inputs

    if "stages" in arguments:
        _check_stage_files(arguments)
    model = arguments.get("model") or arguments.get("network") or ""
    read_paths = list_input_files(
        model,
        *(arguments.get(name) for name in _INPUT_PARAMETERS),
        *arguments.get("engine_files", ()),
        *(text.partition("=")[2] for text in arguments.get("stages", ())),
    )
    config_paths = list_input_files("", arguments.get("config_path"), *arguments.get("config_paths", ()))
    paths = (*(arguments.get(name) for name in OUTPUT_PARAMETERS), *arguments.get("saved_outputs", ())[:1])
    output_paths = [path for path in paths if path not in (None, "-")]
    companion_paths = (
        [*map(str, find_companion_files(arguments["kind"], Path(output_paths[0])).values())]
        if arguments.get("kind") and output_paths
        else []
    )
    caches = [path] if "production" in arguments and (path := arguments["production"].timing_cache) else []
    caches += [arguments["calib_cache"]] if writes_calib_cache(arguments) else []
    written_paths = [*output_paths, *companion_paths, *caches]
    replaceable_path = arguments["output"] if command in ("search", "dumps") else None
    refuse_overwriting_inputs(written_paths, read_paths)
    refuse_overwriting_inputs([path for path in written_paths if path != replaceable_path], config_paths)
    real_paths = [os.path.realpath(path) for path in written_paths if not is_special_file(path)]
    if len(set(real_paths)) < len(real_paths):
        raise InputError(
            "two outputs have the same file", f"{', '.join(written_paths)} are requested", "Give each a different name."
        )
    for path in (*output_paths, *companion_paths):
        _check_output_path(path)
    return tuple(written_paths)


def writes_calib_cache(arguments: Mapping[str, Any]) -> bool:
    """Returns True if the file of ``--calib-cache`` does not exist, so that it is written after calibration."""
    return arguments.get("calib_cache") is not None and not os.path.exists(arguments["calib_cache"])


def check_new_calib_cache(arguments: Mapping[str, Any]) -> None:
    """Refuses a new calibration cache that could not be written, before anything is measured.

    Raises:
        InputError: The folder of the file does not exist or is read-only, the path is ``-``, or no data is named.
            Ranges of random inputs are not written, because later runs would take them for measured ranges.
    """
    path = arguments["calib_cache"]
    if path == "-":
        raise InputError(
            "--calib-cache - is not a file", "a calibration cache is read and written as a file", "Name a file."
        )
    if not (arguments.get("data") or arguments.get("calib_data")):
        raise InputError(
            f"{path} does not exist",
            "a new calibration cache is written after calibration, and no data is named to calibrate on",
            "Correct the name of the cache, or give --calib-data or --data.",
        )
    _check_output_path(path)


def parse_outputs_spec(
    ctx: click.Context, parameter: click.Parameter, outputs_spec: str | None
) -> tuple[str | None, tuple[str, ...]]:
    """Returns the file and the runs of ``FILE.json[:RUN,...]``, without duplicates. No runs mean all runs.

    Raises:
        InputError: A run does not exist.
    """
    from trt_tui.core.data.tensor_files import split_dump_spec

    if outputs_spec is None or ctx.resilient_parsing:
        return None, ()
    path, names = split_dump_spec(outputs_spec)
    if not names and not outputs_spec.endswith(":"):
        return outputs_spec, ()
    runs = tuple(dict.fromkeys(name.strip() for name in names.split(",")))
    if unknown := [name for name in runs if name not in ("fp32", *RUN_TITLES)]:
        raise InputError(
            f"there is no run {unknown[0] or 'without a name'} to save",
            f"available: {', '.join(('fp32', *RUN_TITLES))}",
            f"Name some of them with commas: --save-outputs {path}:fp32.",
        )
    return str(path), runs


def _check_stage_files(arguments: Mapping[str, Any]) -> None:
    """Refuses missing files of references, stages and production inputs. Their contents are read later.

    Raises:
        InputError: An option of stages is invalid, or a file does not exist.
    """
    from trt_tui.core.data.tensor_files import split_dump_spec
    from trt_tui.core.measure.stages import list_requested_stages

    named_files = [arguments["reference"], arguments["inputs"]]
    named_files += [
        run.file_path
        for run in list_requested_stages(arguments["stages"], arguments["engine_files"], arguments["outputs"])
    ]
    for path in (split_dump_spec(source)[0] for source in named_files if source):
        if not path.is_dir():
            check_regular_file(path)


def check_output_folder(folder_path: str) -> None:
    """Refuses an output folder that has content, or cannot be created or written, before anything is measured."""
    folder = Path(os.path.realpath(folder_path))
    require_empty_folder(folder)
    with convert_write_errors(folder):
        written_folder = folder.parent
        if not written_folder.exists():
            raise FileNotFoundError
        if not written_folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"{written_folder} is not a folder")
        if not os.access(written_folder, os.W_OK):
            raise PermissionError(errno.EACCES, f"folder {written_folder} is read-only")


def _check_output_path(path: str) -> None:
    """Refuses an output file that cannot be written, before anything is measured."""
    file = Path(path)
    with convert_write_errors(file):
        if is_special_file(file):
            if not os.access(file, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        folder = Path(os.path.realpath(file)).parent
        if not folder.is_dir():
            raise FileNotFoundError
        if file.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with suppress(FileNotFoundError):
            os.stat(file)  # raises OSError for a circle of links
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, f"folder {folder} is read-only")


def write_text_outputs(text_outputs: Sequence[tuple[str | None, Callable[[], str]]], overwrite: bool = True) -> None:
    """Writes the requested texts to their files, and then the text for stdout. All files are complete even if stdout
    fails.

    Args:
        text_outputs: Pairs of path (None if not requested) and function that builds the text.
        overwrite: False keeps existing files, so that an incomplete report does not replace a complete report.
    """
    for path, format_text in sorted(text_outputs, key=lambda output: output[0] == "-"):
        if path == "-":
            click.echo(format_text(), nl=False)
        elif path is not None and not overwrite and os.path.isfile(path):
            click.echo(f"{escape_hidden_characters(path)} is left as it was", err=True)
        elif path is not None:
            write_file_atomically(Path(path), format_text())
            click.echo(f"Wrote {escape_hidden_characters(path)}", err=True)


def write_report(
    title: str,
    setup_lines: Sequence[str],
    sections: Sequence[Section],
    record: object,
    json_path: str | None,
    markdown_path: str | None,
) -> None:
    """Writes the requested forms of a report, JSON and Markdown. If neither goes to stdout, the report is printed.

    Args:
        setup_lines: The lines that only Markdown has, below the title.
        record: The JSON record of the report.
    """
    write_text_outputs(
        [
            (json_path, lambda: json_text(record)),
            (markdown_path, lambda: report_markdown(title, [Section("", [setup_lines]), *sections])),
        ]
    )
    if "-" not in (json_path, markdown_path):
        print_report(report_text(sections))
