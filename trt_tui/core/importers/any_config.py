"""The reader of all files that ``--config`` accepts: precision.json, and files of other tools, recognised by their
content.
"""

import json
import re
from pathlib import Path
from typing import Any

from trt_tui.core.builder_options import OMISSION_MARKER
from trt_tui.core.importers.commands import (
    COMMAND_FORMS,
    SCRIPT_OPTIONS,
    CommandLine,
    adjacent_config_text,
    has_command_line,
    is_tensorrt_script,
    parse_commands,
    read_command_settings,
    read_tensorrt_script,
)
from trt_tui.core.importers.imported_settings import ImportedSettings, build_config
from trt_tui.core.importers.modelopt import (
    find_modelopt_calls,
    find_modelopt_commands,
    is_modelopt_record,
    read_modelopt_calls,
    read_modelopt_record,
)
from trt_tui.core.moves.config_file import LoadedConfig, read_config
from trt_tui.core.network.network import Network
from trt_tui.errors import InputError
from trt_tui.files.limited_yaml import read_yaml
from trt_tui.files.reading import MAX_SCRIPT_BYTES, limit_file_reading, read_text
from trt_tui.formatting import name_list_text

SUPPORTED_FILES_TEXT = (
    "a precision.json, a trtexec or Polygraphy command, Python that sets layer.precision of listed layers, or a call, "
    "command or lists of ModelOpt"
)


def read_any_config(
    path: Path | str, network: Network, *, force: bool = False, sha256: str | None = None
) -> LoadedConfig:
    """Reads a config for a network from precision.json or from a file of another tool.

    The arguments are those of `trt_tui.core.moves.config_file.read_config`. For a file of another tool, the warnings
    list the parts that could not be read. The content determines the kind of file. The file name is used only if the
    content cannot be read.

    Raises:
        InputError: The errors of `read_config`; or the file is of an unsupported kind, or takes too much time or memory
            to read.
    """
    path = Path(path)
    _refuse_folder_or_network(path)
    with limit_file_reading(path):
        text = read_text(path, max_bytes=MAX_SCRIPT_BYTES) if path.suffix.lower() == ".py" else read_text(path)
        settings: ImportedSettings | None = None
        if text.lstrip().startswith("{"):
            record = _parse_json_or_yaml(text, path)
            settings = read_modelopt_record(record, network, path) if is_modelopt_record(record) else None
        elif modelopt_calls := find_modelopt_calls(text, path):
            settings = read_modelopt_calls(modelopt_calls, network, path)
        elif is_tensorrt_script(text):
            settings = read_tensorrt_script(text, network, path)
        elif path.suffix.lower() in _CPP_SUFFIXES or _CPP_PATTERN.search(text):
            raise InputError(
                f"{path.name} is C++, which is not read",
                f"supported files: {SUPPORTED_FILES_TEXT}",
                adjacent_config_text(path, "Name one of them, such as a trtexec line with --layerPrecisions."),
            )
        elif modelopt_commands := find_modelopt_commands(text, path):
            settings = read_modelopt_calls(modelopt_commands, network, path)
        elif has_command_line(text):
            settings = read_command_script(text, network, path)
        elif is_modelopt_record(record := _parse_json_or_yaml(text, path)):
            settings = read_modelopt_record(record, network, path)
        elif _CACHE_HEADER.match(text):
            raise InputError(
                f"{path.name} is a calibration cache, not a config",
                "it contains ranges but no precisions",
                "Name it with --calib-cache.",
            )
        elif path.suffix.lower() == ".py":
            settings = read_tensorrt_script(text, network, path)
        if settings is not None:
            return build_config(settings, network, path.name, force=force)
        if path.suffix.lower() in (".yaml", ".yml", ".sh", ".txt", ".md") and not text.lstrip().startswith("{"):
            raise InputError(
                f"{path.name} is not a file that --config can read",
                f"supported files: {SUPPORTED_FILES_TEXT}",
                "Name one of them.",
            )
        return read_config(path, network, force=force, sha256=sha256)


_MAX_YAML_CHARACTERS = 1 << 20
"""Maximum number of characters of a text that is tried as YAML without a YAML file name. Parsing takes seconds per
megabyte."""

_CPP_SUFFIXES = (".cpp", ".cc", ".cxx", ".cu", ".h", ".hpp", ".cuh")
_CPP_PATTERN = re.compile(r"^[ \t]*#include[ \t]*[<\"]|->setPrecision\(", re.MULTILINE)
_CACHE_HEADER = re.compile(r"TRT-\d+-\w+\s*$", re.MULTILINE)
_OMISSIONS_PATTERN = re.compile(rf"^\s*# {OMISSION_MARKER} = (\{{.*\}})\s*$", re.MULTILINE)


def _refuse_folder_or_network(path: Path) -> None:
    """Refuses a folder with a precision.json, and an ONNX file.

    Raises:
        InputError: The path is one of them.
    """
    if path.suffix.lower() == ".onnx" and path.is_file():
        raise InputError(
            f"{path.name} is a network, not a config",
            "its precisions are in its nodes",
            "Open it as MODEL: --precision file uses its own precisions.",
        )
    if path.is_dir() and (path / "precision.json").is_file():
        raise InputError(f"{path} is a folder", "its config is in precision.json", f"Name {path / 'precision.json'}.")


def read_command_script(text: str, network: Network, file: Path) -> ImportedSettings:
    """Reads the precisions that trtexec or Polygraphy commands in a script set.

    If several commands set precisions, the most detailed one is used.

    Raises:
        InputError: No command sets a precision, or a command cannot be parsed.
    """
    command_lines = list(parse_commands(text, file.name))
    precision_commands = [
        candidate for candidate in command_lines if _precision_sort_key(candidate)[1] or candidate.uses_rtx
    ]
    if not precision_commands:
        raise InputError(
            f"{file.name} sets no precisions",
            f"it holds {len(command_lines)} commands of trtexec or Polygraphy, and none has any of "
            "--fp16, --int8, --layerPrecisions",
            adjacent_config_text(file, "Name a config, or a line that has one of them."),
        )
    command = max(precision_commands, key=_precision_sort_key)
    settings = read_command_settings(command, network, file)
    if other_lines := [str(candidate.line_number) for candidate in precision_commands if candidate is not command]:
        settings.notes.append(
            f"line {name_list_text(other_lines)} is another command; line {command.line_number} is used"
        )
    for match in _OMISSIONS_PATTERN.finditer(text):
        settings.restore_omitted_settings(_parse_json_or_yaml(match[1], file))
    return settings


def _precision_sort_key(command: CommandLine) -> tuple[int, int]:
    """Returns a sort key for commands: the length of their lists of layers, then the number of their precision
    options."""
    options = COMMAND_FORMS[command.tool].precision_options
    list_length = sum(
        len(entry)
        for name in ("layerPrecisions", "layer-precisions", *SCRIPT_OPTIONS)
        for entry in command.options.get(name, ())
    )
    return list_length, sum(name in options for name in command.options)


def _parse_json_or_yaml(text: str, path: Path) -> Any:
    """Parses a JSON or YAML text; None if it is neither.

    Raises:
        InputError: The file name ends in .yaml or .yml, but the text is not valid YAML.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    is_yaml = path.suffix.lower() in (".yaml", ".yml")
    if not is_yaml and (text.lstrip().startswith("{") or len(text) > _MAX_YAML_CHARACTERS):
        return None
    try:
        return read_yaml(text, path.name)
    except InputError:
        if is_yaml:
            raise
        return None  # the reader of precision.json tries the file next
