"""Any file that ``--config`` takes: a precision.json, or what another tool was told, known by its content."""

import json
from pathlib import Path
from typing import Any

from trt_tui.core.importers.asked import placed
from trt_tui.core.importers.modelopt import is_modelopt, is_modelopt_command, read_command, read_record
from trt_tui.core.importers.polygraphy import read_script
from trt_tui.core.importers.trtexec import is_command, read_commands
from trt_tui.core.moves.file import LoadedConfig, read_config
from trt_tui.core.network.network import Network
from trt_tui.errors import InputError
from trt_tui.files.budget import file_budget
from trt_tui.files.limited_yaml import read_yaml
from trt_tui.files.reading import SCRIPT_BYTES, read_text

TAKEN = "a precision.json, a trtexec line or script, a Polygraphy postprocess script, or ModelOpt's exclusions"


def read_any(path: Path | str, network: Network, *, force: bool = False, sha256: str | None = None) -> LoadedConfig:
    """Reads a config for a network. Arguments and errors as `trt_tui.core.moves.file.read_config`; of another tool's
    file the warnings list what could not be read.

    Raises:
        InputError: as there; or the file is none that is taken, or takes too much time or memory to read.
    """
    with file_budget(path):
        return _read(Path(path), network, force, sha256)


def _read(path: Path, network: Network, force: bool, sha256: str | None) -> LoadedConfig:
    if path.suffix.lower() == ".py":
        return placed(read_script(read_text(path, most=SCRIPT_BYTES), network, path), network, path.name, force=force)
    text = read_text(path)
    if not text.lstrip().startswith("{"):
        if is_modelopt_command(text):
            return placed(read_command(text, network, path), network, path.name, force=force)
        if is_command(text):
            return placed(read_commands(text, network, path), network, path.name, force=force)
    record = _record(text, path)
    if is_modelopt(record):
        return placed(read_record(record, network, path), network, path.name, force=force)
    if path.suffix.lower() in (".yaml", ".yml", ".sh", ".txt"):
        raise InputError(f"{path.name} is none of the files that --config takes", f"it takes {TAKEN}",
                         "Name one of them.")
    return read_config(path, network, force=force, sha256=sha256)


def _record(text: str, path: Path) -> Any:
    """What a JSON or YAML file holds; None for text that is no JSON.

    Raises:
        InputError: it is named as YAML and is none that can be read.
    """
    if path.suffix.lower() in (".yaml", ".yml"):
        return read_yaml(text, path.name)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # the reader of precision.json says what is wrong with it
        return None
