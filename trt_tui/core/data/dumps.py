"""Dumps: files of tensors that another program computed, by name and iteration.

The formats are Polygraphy's RunResults (``polygraphy run --save-outputs``; a file, or a folder with one file per
iteration), Polygraphy's inputs JSON, the outputs of ``trtexec --exportOutput``, and ``.npz``. Types and shapes are read
when a dump is opened. Values stay in their file until they are needed, except those of trtexec, which are text.
"""

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trt_tui.core.data.array_files import StoredArray, check_array_file, convert_damaged_file_errors, open_npz
from trt_tui.core.data.polygraphy_json import (
    InMemoryArray,
    json_kind_text,
    open_polygraphy_array,
    polygraphy_object_kind,
)
from trt_tui.errors import InputError
from trt_tui.files.lazy_json import read_lazy_json
from trt_tui.formatting import counted_noun_text, name_list_text

DUMP_FORMATS = ("Polygraphy's RunResults (polygraphy run --save-outputs OUT.json), outputs of trtexec (trtexec "
                "--exportOutput=OUT.json), or an .npz of arrays by tensor name")
DUMP_SUFFIXES = (".json", ".npz")
MAX_DUMP_FILES = 1 << 16
"""Maximum number of files in a folder."""

Iteration = Mapping[str, StoredArray]
"""The tensors of one execution by name, in the order of the file."""


@dataclass(frozen=True)
class Dump:
    """The tensors of a dump by iteration.

    Attributes:
        source: The title in messages: the file, with the runner if the file holds several.
        runner: The Polygraphy runner that computed the tensors; "" in a file without runners.
        files: The files that were read.
    """

    source: str
    iterations: tuple[Iteration, ...]
    runner: str
    files: tuple[Path, ...]

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """Names of the tensors in the order of the first iteration. All iterations have the same tensors."""
        return tuple(self.iterations[0])


def split_dump_spec(spec: str) -> tuple[Path, str]:
    """Splits ``FILE[:RUNNER]`` into the file and the runner; the runner is "" if none is named."""
    path, colon, runner = spec.rpartition(":")
    if colon and not Path(spec).exists() and Path(path).suffix.lower() in DUMP_SUFFIXES:
        return Path(path), runner
    return Path(spec), ""


def list_dump_files(spec: str) -> tuple[Path, ...]:
    """Lists the files of a dump in the order of their iterations.

    Raises:
        InputError: The dump is a folder without JSON files, or with too many.
    """
    path, _ = split_dump_spec(spec)
    if not path.is_dir():
        return (path,)
    files = sorted((file for file in path.iterdir() if file.suffix == ".json"), key=_file_number_sort_key)
    if not files or len(files) > MAX_DUMP_FILES:
        raise InputError(f"folder {path} is not a dump", f"it holds {counted_noun_text(len(files), '.json file')}",
                         f"Give {DUMP_FORMATS}, or a folder of such JSON files, one an iteration.")
    return tuple(files)


def _file_number_sort_key(path: Path) -> tuple[int, str]:
    """Returns a key that sorts files by the number in their names."""
    digits = "".join(character for character in path.stem if character.isdigit())
    return (int(digits[-15:]) if digits else 0, path.name)


def open_dump(spec: str) -> Dump:
    """Opens a dump and reads the types and shapes of its tensors, but not their values.

    Args:
        spec: ``FILE`` or ``FILE:RUNNER``. The default is the first runner.

    Raises:
        InputError: The file cannot be read, is not a dump, lacks the runner, or has iterations with different tensors.
    """
    path, requested_runner = split_dump_spec(spec)
    files = list_dump_files(spec)
    iterations: list[Iteration] = []
    runners: list[str] = []
    runner = requested_runner
    for file in files:
        iterations_by_runner = _read_iterations_by_runner(file,
                                                          file.name if len(files) == 1 else f"{path.name}/{file.name}")
        runners += [name for name in iterations_by_runner if name not in runners]
        if not requested_runner and not iterations:
            runner = next(iter(iterations_by_runner))
        if runner not in iterations_by_runner:
            near = difflib.get_close_matches(runner, runners, 1, 0.3) or runners
            raise InputError(f"{path.name} holds no runner {runner}", f"it holds {name_list_text(runners)}",
                             f"Name one of them: {path.name}:{near[0]}.")
        iterations += iterations_by_runner[runner]
    if not iterations or not iterations[0]:
        raise InputError(f"{path.name} holds no tensors", f"runner {runner} has none" if runner else "",
                         f"Give {DUMP_FORMATS}.")
    for number, iteration in enumerate(iterations):
        if set(iteration) != set(iterations[0]):
            raise InputError(f"iterations 0 and {number} of {path.name} hold different tensors",
                             f"only one of them has {name_list_text(sorted(set(iteration) ^ set(iterations[0])))}",
                             "Save the outputs of runs of one network.")
    return Dump(f"{path.name}:{runner}" if len(runners) > 1 else path.name, tuple(iterations), runner, files)


def _read_iterations_by_runner(file: Path, source_title: str) -> dict[str, list[Iteration]]:
    """Reads the iterations of each runner in a file; those of a file without runners have the key ""."""
    if check_array_file(file, source_title) == 0:
        raise InputError(f"{source_title} is empty", "", f"Give {DUMP_FORMATS}.")
    if file.suffix.lower() == ".npz":
        return {"": [open_npz(file, source_title).arrays]}
    if file.suffix.lower() != ".json":
        raise InputError(f"{source_title} is not a dump of tensors", f"its name ends in {file.suffix or 'nothing'}",
                         f"Give {DUMP_FORMATS}.")
    with convert_damaged_file_errors(source_title):
        value = read_lazy_json(file, source_title)
    runs = value.get("lst") if isinstance(value, dict) and polygraphy_object_kind(value) == "RunResults" else None
    if isinstance(runs, list):
        iterations_by_runner: dict[str, list[Iteration]] = {}
        for item in runs:
            if not (isinstance(item, list) and len(item) == 2 and isinstance(item[0], str)
                    and isinstance(item[1], list)):
                raise _not_a_dump_error(source_title, "a runner is a name with a list of iterations")
            iterations_by_runner[item[0]] = [
                _parse_iteration(iteration, f"{source_title}, {item[0]}, iteration {number}")
                for number, iteration in enumerate(item[1])
            ]
        if not iterations_by_runner:
            raise InputError(f"{source_title} holds no runs", "", f"Give {DUMP_FORMATS}.")
        return iterations_by_runner
    if _is_trtexec_output_list(value):
        return {"": [_parse_trtexec_outputs(value, source_title)]}
    inputs_list = value if isinstance(value, list) else [value]
    if not inputs_list or not all(isinstance(item, dict)
                                  for item in inputs_list) or polygraphy_object_kind(inputs_list[0]) is not None:
        object_kind = polygraphy_object_kind(value) if isinstance(value, dict) else None
        raise _not_a_dump_error(
            source_title, f"it holds {'Polygraphy’s ' + object_kind if object_kind else json_kind_text(value)}")
    return {
        "": [_parse_iteration(item, f"{source_title}, iteration {number}") for number, item in enumerate(inputs_list)]
    }


def _not_a_dump_error(source_title: str, reason: str) -> InputError:
    return InputError(f"{source_title} is not a dump of tensors", reason, f"Give {DUMP_FORMATS}.")


def _is_trtexec_output_list(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(
        isinstance(item, dict) and item.keys() == {"name", "dimensions", "values"}
        and isinstance(item["name"], str) and isinstance(item["dimensions"], str) for item in value)


def _parse_trtexec_outputs(outputs: Sequence[Mapping[str, Any]], source_title: str) -> dict[str, StoredArray]:
    """Parses the outputs of one execution: name, dimensions such as ``1x10``, and values with six significant digits.

    The source of the format is ``exportJSONOutput`` in TensorRT's ``sampleReporting.cpp``. No type is written. Whole
    numbers get the smallest signed integer type, which is castable to float types too. All other tensors are FP32.
    """
    arrays: dict[str, StoredArray] = {}
    for output in outputs:
        name, dimensions, values = output["name"], output["dimensions"], output["values"]
        title = f"{source_title}: {name}"
        if isinstance(values, list) and not values:
            values = np.zeros(0)
        if not isinstance(values, np.ndarray) or re.fullmatch(r"(\d{1,12}(x\d{1,12}){0,31})?", dimensions) is None:
            raise _not_a_dump_error(title, "an output of trtexec has dimensions such as 1x10, and a list of numbers")
        shape = tuple(map(int, dimensions.split("x"))) if dimensions else ()
        if math.prod(shape) != values.size or name in arrays:
            cause = (f"{dimensions or 'a single value'} are {math.prod(shape):,} values, {values.size:,} are present"
                     if name not in arrays else "the name occurs twice")
            raise InputError(f"{title} is damaged", cause, "Let trtexec write the file again.")
        with np.errstate(over="ignore"):
            arrays[name] = InMemoryArray(values.astype(_find_smallest_type(values)).reshape(shape))
    return arrays


def _find_smallest_type(values: np.ndarray) -> np.dtype:
    """Returns the smallest signed integer type that holds all values, or FP32 if a value is not a whole number."""
    with np.errstate(invalid="ignore"):
        for integer_type in (np.int8, np.int16, np.int32, np.int64):
            if np.array_equal(values.astype(integer_type), values):
                return np.dtype(integer_type)
    return np.dtype(np.float32)


def _parse_iteration(value: Any, source_title: str) -> dict[str, StoredArray]:
    """Parses the arrays of one iteration: an IterationResult of Polygraphy, or a plain object of arrays by name."""
    outputs = value.get("outputs") if isinstance(value,
                                                 dict) and polygraphy_object_kind(value) == "IterationResult" else value
    if not isinstance(outputs, dict):
        raise _not_a_dump_error(source_title, "an iteration is an object of arrays by name")
    return {name: _open_number_array(array_value, f"{source_title}: {name}") for name, array_value in outputs.items()}


def _open_number_array(value: Any, title: str) -> StoredArray:
    member = open_polygraphy_array(value, title)
    if member.dtype.kind not in "biufUS":
        raise InputError(f"{title} holds {member.dtype}", "only numbers can be compared",
                         "Save it as float32; numpy has no built-in BF16 and FP8.")
    return member


def count_tensor_rows(iterations: Sequence[Iteration], tensor_name: str) -> int | None:
    """Counts the rows of a tensor's first axis over all iterations; None if it has no axis or the other axes differ."""
    shapes = [iteration[tensor_name].shape for iteration in iterations]
    if any(not shape or shape[1:] != shapes[0][1:] for shape in shapes):
        return None
    return sum(shape[0] for shape in shapes)


class DumpTensor:
    """One tensor of a dump over all iterations, read by rows. The iteration that was read last stays loaded."""

    def __init__(self, dump: Dump, name: str) -> None:
        self._arrays = [iteration[name] for iteration in dump.iterations]
        self._source = dump.source
        self._open_iteration: tuple[int, np.ndarray] | None = None

    def read_iteration(self, iteration_index: int) -> np.ndarray:
        """Reads the whole tensor of one iteration. Raises the errors of `convert_damaged_file_errors`."""
        if self._open_iteration is None or self._open_iteration[0] != iteration_index:
            self._open_iteration = None
            with convert_damaged_file_errors(self._source):
                self._open_iteration = (iteration_index, self._arrays[iteration_index].load())
        return self._open_iteration[1]

    def read_rows(self, start: int, stop: int) -> np.ndarray:
        """Reads a range of the tensor's rows, numbered over all iterations.

        Raises the errors of `convert_damaged_file_errors`.
        """
        pieces, first_row = [], 0
        for number, member in enumerate(self._arrays):
            rows = member.shape[0]
            if first_row < stop and start < first_row + rows:
                pieces.append(self.read_iteration(number)[max(0, start - first_row):stop - first_row])
            first_row += rows
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
