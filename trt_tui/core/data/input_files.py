"""Which files a command reads, so that nothing it writes takes the place of one of them."""

import os
from collections.abc import Iterable
from pathlib import Path

from trt_tui.core.data.dumps import split_dump_spec
from trt_tui.core.data.userscript import find_annotations_path, split_script_spec
from trt_tui.errors import InputError


def list_input_files(model_path: str, *specs: str | None) -> list[Path]:
    """The files behind a network and what else is read: files, folders of data, ``FILE.py:FUNCTION``; without the
    network's external data, which are known once it is open."""
    paths = [Path(model_path)]
    for spec in filter(None, specs):
        spec = str(find_annotations_path(spec) or split_dump_spec(spec)[0])
        script = split_script_spec(spec)
        path = script[0] if script is not None and not Path(spec).exists() else Path(spec)
        paths += _list_data_files_in(path) if path.is_dir() else [path]
    return [path for path in paths if path.is_file()]


def _list_data_files_in(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.suffix in (".npz", ".json")]
    except OSError:  # who reads it says so
        return []


def refuse_overwriting_inputs(output_paths: Iterable[Path | str], input_paths: Iterable[Path]) -> None:
    """Refuses to overwrite files that are read.

    Args:
        output_paths: Places that are to be written; a network may be written with its weights beside it.
        input_paths: Files that are read, under whatever names.

    Raises:
        InputError: one of the places is one of the files.
    """
    outputs = [Path(path) for path in output_paths]
    outputs += [path.with_name(f"{path.name}.data") for path in outputs if path.suffix.lower() == ".onnx"]
    existing_outputs = [path for path in outputs if os.path.isfile(path)]
    for path, input_path in ((path, input_path) for path in existing_outputs for input_path in input_paths):
        if _is_same_file(path, input_path):
            raise _overwrite_error(path, input_path)


def _is_same_file(first_path: Path, second_path: Path) -> bool:
    try:
        return os.path.samefile(first_path, second_path)
    except OSError:  # one of them is not there
        return False


def _overwrite_error(output_path: Path, input_path: Path) -> InputError:
    return InputError(f"{output_path} is read from", f"writing it would lose {input_path}", "Choose another name.")
