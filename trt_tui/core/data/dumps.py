"""Dumps: tensors that something else has computed, by name and iteration.

Polygraphy's RunResults (``polygraphy run --save-outputs``; a file, or a folder of one file an iteration), its inputs
JSON, or an ``.npz``. Types and shapes are known at once; values stay in their file until they are asked for.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trt_tui.core.data.encoded import array_member, kind_of
from trt_tui.core.data.stored import Member, npz_part, reading
from trt_tui.errors import InputError
from trt_tui.files.reading import regular
from trt_tui.files.spans import Span, read_spans
from trt_tui.words import first_few, plural

DUMP_FORMATS = "Polygraphy's RunResults (polygraphy run --save-outputs OUT.json) or an .npz of arrays by tensor name"
DUMP_SUFFIXES = (".json", ".npz")
MOST_FILES = 1 << 16
"""Most files of a folder."""

Iteration = Mapping[str, Member]
"""Tensors of one run, by name, in the order of the file."""


@dataclass(frozen=True)
class Dump:
    """Tensors by iteration.

    Attributes:
        source: What to show: the file, with the runner where it holds several.
        runner: The runner whose tensors these are, "" in a file without runners.
        runners: All of the file.
        files: What was read.
    """

    source: str
    iterations: tuple[Iteration, ...]
    runner: str
    runners: tuple[str, ...]
    files: tuple[Path, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors of the first iteration, in its order; all others have the same."""
        return tuple(self.iterations[0])


def split_dump(spec: str) -> tuple[Path, str]:
    """The file and the runner of ``FILE[:RUNNER]``; "" for none."""
    path, colon, runner = spec.rpartition(":")
    if colon and not Path(spec).exists() and Path(path).suffix.lower() in DUMP_SUFFIXES:
        return Path(path), runner
    return Path(spec), ""


def dump_files(spec: str) -> tuple[Path, ...]:
    """The files that are read of a dump, in order.

    Raises:
        InputError: it is a folder without dumps.
    """
    path, _ = split_dump(spec)
    if not path.is_dir():
        return (path,)
    files = sorted((one for one in path.iterdir() if one.suffix == ".json"), key=_numbered)
    if not files or len(files) > MOST_FILES:
        raise InputError(f"folder {path} is no dump", f"it holds {plural(len(files), '.json file')}",
                         f"Give {DUMP_FORMATS}, or a folder of such JSON files, one an iteration.")
    return tuple(files)


def _numbered(path: Path) -> tuple[int, str]:
    """Files in the order of the numbers that they are called by."""
    digits = "".join(one for one in path.stem if one.isdigit())
    return (int(digits[-15:]) if digits else 0, path.name)


def open_dump(spec: str) -> Dump:
    """Reads what a dump holds, without values.

    Args:
        spec: ``FILE`` or ``FILE:RUNNER``; without a runner the first one counts.

    Raises:
        InputError: it cannot be read, is none, lacks the runner, or its iterations hold different tensors.
    """
    path, wanted = split_dump(spec)
    files = dump_files(spec)
    iterations: list[Iteration] = []
    runners: list[str] = []
    runner = wanted
    for file in files:
        found = _read(file, file.name if len(files) == 1 else f"{path.name}/{file.name}")
        runners += [name for name in found if name not in runners]
        if not wanted and not iterations:
            runner = next(iter(found))
        if runner not in found:
            near = difflib.get_close_matches(runner, runners, 1, 0.3) or runners
            raise InputError(f"{path.name} holds no runner {runner}", f"it holds {first_few(runners)}",
                             f"Name one of them: {path.name}:{near[0]}.")
        iterations += found[runner]
    if not iterations or not iterations[0]:
        raise InputError(f"{path.name} holds no tensors", f"runner {runner} has none" if runner else "",
                         f"Give {DUMP_FORMATS}.")
    for number, one in enumerate(iterations):
        if set(one) != set(iterations[0]):
            raise InputError(f"iterations 0 and {number} of {path.name} hold different tensors",
                             f"only one of them has {first_few(sorted(set(one) ^ set(iterations[0])))}",
                             "Save the outputs of runs of one network.")
    return Dump(f"{path.name}:{runner}" if len(runners) > 1 else path.name, tuple(iterations), runner,
                tuple(runners), files)


def _read(file: Path, source: str) -> dict[str, list[Iteration]]:
    """The iterations of each runner of a file; of a file without runners under ""."""
    with reading(source):
        size = regular(file).st_size
    if size == 0:
        raise InputError(f"{source} is empty", "", f"Give {DUMP_FORMATS}.")
    if file.suffix.lower() == ".npz":
        return {"": [npz_part(file, source).members]}
    if file.suffix.lower() != ".json":
        raise InputError(f"{source} is no dump of tensors", f"its name ends in {file.suffix or 'nothing'}",
                         f"Give {DUMP_FORMATS}.")
    with reading(source):
        value = read_spans(file, source)
    runs = value.get("lst") if isinstance(value, dict) and kind_of(value) == "RunResults" else None
    if isinstance(runs, list):
        found: dict[str, list[Iteration]] = {}
        for one in runs:
            if not (isinstance(one, list) and len(one) == 2 and isinstance(one[0], str) and isinstance(one[1], list)):
                raise _unlike(source, "a runner is a name with a list of iterations")
            found[one[0]] = [_tensors(each, f"{source}, {one[0]}, iteration {number}")
                             for number, each in enumerate(one[1])]
        if not found:
            raise InputError(f"{source} holds no runs", "", f"Give {DUMP_FORMATS}.")
        return found
    feeds = value if isinstance(value, list) else [value]
    if not feeds or not all(isinstance(one, dict) for one in feeds) or kind_of(feeds[0]) is not None:
        what = kind_of(value) if isinstance(value, dict) else None
        raise _unlike(source, f"it holds {'Polygraphy’s ' + what if what else type(value).__name__}")
    return {"": [_tensors(one, f"{source}, iteration {number}") for number, one in enumerate(feeds)]}


def _unlike(source: str, why: str) -> InputError:
    return InputError(f"{source} is no dump of tensors", why, f"Give {DUMP_FORMATS}.")


def _tensors(value: Any, source: str) -> dict[str, Member]:
    """The arrays of one iteration: an IterationResult, or a plain object of arrays by name."""
    outputs = value.get("outputs") if isinstance(value, dict) and kind_of(value) == "IterationResult" else value
    if not isinstance(outputs, dict):
        raise _unlike(source, "an iteration is an object of arrays by name")
    return {name: _array(one, f"{source}: {name}") for name, one in outputs.items()}


def _array(value: Any, source: str) -> Member:
    if isinstance(value, dict) and kind_of(value) in ("LazyArray", "LazyNumpyArray"):
        value = value.get("values")
    kind = kind_of(value) if isinstance(value, dict) else None
    if kind == "Tensor" or isinstance(value, dict) and "tensor" in value:
        raise InputError(f"{source} is a pickled torch tensor",
                         "those are refused, since loading them can run any code",
                         "Save numpy arrays: tensor.cpu().numpy().")
    if kind != "ndarray" or not isinstance(value.get("array"), str | Span):
        raise _unlike(source, f"it is {kind or type(value).__name__}, no numpy array")
    member = array_member(value["array"], source)
    if member.dtype.kind not in "biufUS":
        raise InputError(f"{source} holds {member.dtype}", "numbers are compared",
                         "Save it as float32; numpy has no BF16 and FP8 of its own.")
    return member


def rows_of(iterations: Sequence[Iteration], name: str) -> int | None:
    """Rows of a tensor's first axis over all iterations; None where it has none, or its other axes differ."""
    shapes = [one[name].shape for one in iterations]
    if any(not shape or shape[1:] != shapes[0][1:] for shape in shapes):
        return None
    return sum(shape[0] for shape in shapes)


class Rows:
    """A tensor over all iterations of a dump, by its rows; the iteration that was read last stays open."""

    def __init__(self, dump: Dump, name: str) -> None:
        self._members = [one[name] for one in dump.iterations]
        self._source = dump.source
        self._open: tuple[int, np.ndarray] | None = None

    def iteration(self, number: int) -> np.ndarray:
        """All of one iteration; raises as `reading`."""
        if self._open is None or self._open[0] != number:
            self._open = None
            with reading(self._source):
                self._open = (number, self._members[number].load())
        return self._open[1]

    def take(self, start: int, stop: int) -> np.ndarray:
        """Rows of all iterations laid end to end; raises as `reading`."""
        found, first = [], 0
        for number, member in enumerate(self._members):
            rows = member.shape[0]
            if first < stop and start < first + rows:
                found.append(self.iteration(number)[max(0, start - first):stop - first])
            first += rows
        return found[0] if len(found) == 1 else np.concatenate(found)
