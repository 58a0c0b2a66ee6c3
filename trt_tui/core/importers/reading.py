"""Any file that ``--config`` takes: a precision.json, or what another tool was told, known by its content."""

import json
import re
from pathlib import Path
from typing import Any

from trt_tui.core.importers import polygraphy_commands, trtexec
from trt_tui.core.importers.asked import Asked, placed
from trt_tui.core.importers.command_lines import POLYGRAPHY, Command, commands, is_command
from trt_tui.core.importers.modelopt import is_modelopt, is_modelopt_command, read_command, read_record
from trt_tui.core.importers.polygraphy import is_script, read_script
from trt_tui.core.moves.file import LoadedConfig, read_config
from trt_tui.core.network.network import Network
from trt_tui.core.production import NOT_TOLD
from trt_tui.errors import InputError
from trt_tui.files.budget import file_budget
from trt_tui.files.limited_yaml import read_yaml
from trt_tui.files.reading import SCRIPT_BYTES, read_text
from trt_tui.words import first_few

TAKEN = "a precision.json, a trtexec or Polygraphy command or script, a Polygraphy postprocess script, or ModelOpt's " \
        "exclusions"


def read_any(path: Path | str, network: Network, *, force: bool = False, sha256: str | None = None) -> LoadedConfig:
    """Reads a config for a network. Arguments and errors as `trt_tui.core.moves.file.read_config`; of another tool's
    file the warnings list what could not be read.

    The content decides what a file is. Its name counts only where the content cannot be read.

    Raises:
        InputError: as there; or the file is none that is taken, or takes too much time or memory to read.
    """
    path = Path(path)
    _refuse_others(path)
    with file_budget(path):
        return _read(path, network, force, sha256)


def _read(path: Path, network: Network, force: bool, sha256: str | None) -> LoadedConfig:
    text = read_text(path, most=SCRIPT_BYTES) if path.suffix.lower() == ".py" else read_text(path)
    asked: Asked | None = None
    if text.lstrip().startswith("{"):
        record = _record(text, path)
        asked = read_record(record, network, path) if is_modelopt(record) else None
    elif is_script(text):
        asked = read_script(text, network, path)
    elif is_modelopt_command(text):
        asked = read_command(text, network, path)
    elif is_command(text):
        asked = read_commands(text, network, path)
    elif is_modelopt(record := _record(text, path)):
        asked = read_record(record, network, path)
    elif _CACHE.match(text):
        raise InputError(f"{path.name} is a calibration cache, not a config", "it holds ranges and no precisions",
                         "Name it with --calib-cache.")
    elif path.suffix.lower() == ".py":
        asked = read_script(text, network, path)
    if asked is not None:
        return placed(asked, network, path.name, force=force)
    if path.suffix.lower() in (".yaml", ".yml", ".sh", ".txt", ".md") and not text.lstrip().startswith("{"):
        raise InputError(f"{path.name} is none of the files that --config takes", f"it takes {TAKEN}",
                         "Name one of them.")
    return read_config(path, network, force=force, sha256=sha256)


_YAML_CHARACTERS = 1 << 20
"""The length above which a text that is not named as YAML is not read as YAML: that takes seconds a megabyte."""

_CACHE = re.compile(r"TRT-\d+-\w+\s*$", re.MULTILINE)
_LEFT_OUT = re.compile(rf"^\s*# {NOT_TOLD} = (\{{.*\}})\s*$", re.MULTILINE)


def _refuse_others(path: Path) -> None:
    """Refuses what holds a config elsewhere: a folder, and an ONNX file.

    Raises:
        InputError: it is one of them.
    """
    if path.suffix.lower() == ".onnx" and path.is_file():
        raise InputError(f"{path.name} is a network, not a config", "its precisions are in its nodes",
                         "Open it as MODEL: --precision file takes the precisions that it has.")
    if path.is_dir() and (path / "precision.json").is_file():
        raise InputError(f"{path} is a folder", "its config is in precision.json", f"Name {path / 'precision.json'}.")


def read_commands(text: str, network: Network, file: Path) -> Asked:
    """Reads the command lines of a script; of several the one that says most of precisions counts.

    Raises:
        InputError: it holds no command that says anything of precisions, or one that cannot be taken apart.
    """
    found = list(commands(text, file.name))
    telling = [one for one in found if _says(one)[1] or one.rtx]
    if not telling:
        beside = file.parent / "precision.json"
        raise InputError(f"{file.name} says nothing of precisions",
                         f"it holds {len(found)} commands of trtexec or Polygraphy, and none has any of "
                         "--fp16, --int8, --layerPrecisions",
                         f"Name {beside}, which is in the same folder." if beside.is_file() else
                         "Name a config, or a line that has one of them.")
    command = max(telling, key=_says)
    read = polygraphy_commands.read_polygraphy if command.tool == POLYGRAPHY else trtexec.read_trtexec
    asked = read(command, network, file)
    if others := [str(one.line) for one in telling if one is not command]:
        asked.notes.append(f"line {first_few(others)} is another command; line {command.line} is taken")
    for match in _LEFT_OUT.finditer(text):
        asked.take_left_out(_record(match[1], file))
    return asked


def _says(command: Command) -> tuple[int, int]:
    """Returns how much a command says of single layers, and how many of its options are about precisions."""
    options = polygraphy_commands.PRECISION_OPTIONS if command.tool == POLYGRAPHY else trtexec.PRECISION_OPTIONS
    lists = sum(len(word) for name in ("layerPrecisions", "layer-precisions", *polygraphy_commands.SCRIPTS)
                for word in command.options.get(name, ()))
    return lists, sum(name in options for name in command.options)


def _record(text: str, path: Path) -> Any:
    """Returns what a JSON or YAML file holds; None for a text that is neither.

    Raises:
        InputError: it is named as YAML and cannot be read as that.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    is_yaml = path.suffix.lower() in (".yaml", ".yml")
    if not is_yaml and (text.lstrip().startswith("{") or len(text) > _YAML_CHARACTERS):
        return None
    try:
        return read_yaml(text, path.name)
    except InputError:
        if is_yaml:
            raise
        return None  # other readers try the file next
