"""Two dumps of tensors: what `compare A.json B.json` does."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from trt_tui.cli.places import check_places, write_outputs
from trt_tui.cli.streams import print_table
from trt_tui.cli.usage import given, one_on_stdout
from trt_tui.errors import ExitCode, InputError

if TYPE_CHECKING:
    from trt_tui.cli.headless import Writer
    from trt_tui.core.measure.dumped import TensorErrors
    from trt_tui.core.network.layers import Outline
    from trt_tui.jobs.events import DumpsCompared
    from trt_tui.options import Options

OPTIONS = frozenset(("threshold", "top_k", "script", "network", "output"))
"""Options that are about two dumps alone, by parameter name."""

_OF_CONFIG = ("config_paths", "force", "calib_cache", "shapes")
"""Options of the config that a fix starts from, and of the engine that is built with it."""

_OF_FIX = frozenset(("calib_cache", "shapes"))
"""Those of them that say nothing of the comparison."""

_TAKEN = OPTIONS | {"json_path", *_OF_CONFIG}


@dataclass(frozen=True)
class Asked:
    """What is to be written and shown of two dumps.

    Attributes:
        top_k: How many tensors are listed.
        script: Where a script for Polygraphy goes, or for trtexec if its name ends in .sh.
        output: Where a precision.json goes.
        config_path: The config that a fix starts from; FP16 throughout without, or what a quantized file has.
        force: Take a config that was made for another structure.
        options: The network that both are of, with the options of the config; None if it is not named.
    """

    first: str
    second: str
    threshold: float
    top_k: int
    json_path: str | None
    script: str | None
    output: str | None
    config_path: str | None
    force: bool
    options: Options | None

    @property
    def kind(self) -> str:
        """The export format of the script."""
        return "trtexec" if self.script is not None and self.script.lower().endswith(".sh") else "polygraphy"


def is_dump(spec: str) -> bool:
    """Whether something is named as a dump, be it there or not."""
    from pathlib import Path

    from trt_tui.core.data.dumps import DUMP_SUFFIXES, split_dump

    return split_dump(spec)[0].suffix.lower() in DUMP_SUFFIXES or Path(spec).is_dir()


def split_runs(spec: str | None) -> tuple[str | None, tuple[str, ...]]:
    """The file and the runs of ``FILE.json[:RUN,...]``, each once; no runs stand for all.

    Raises:
        InputError: there is no such run.
    """
    from trt_tui.core.data.dumps import split_dump
    from trt_tui.session.state import SAVED_RUNS

    if spec is None:
        return None, ()
    path, names = split_dump(spec)
    if not names and not spec.endswith(":"):
        return spec, ()
    runs = tuple(dict.fromkeys(name.strip() for name in names.split(",")))
    if unknown := [name for name in runs if name not in SAVED_RUNS]:
        raise InputError(f"there is no run {unknown[0] or 'without a name'} to save",
                         f"there are {', '.join(SAVED_RUNS)}",
                         f"Name some of them with commas: --save-outputs {path}:fp32.")
    return str(path), runs


def check_sides(model: str, other: str | None, config_paths: Sequence[str]) -> bool:
    """Whether two dumps are compared; else a network.

    Raises:
        InputError: it is neither, or options of one stand with the other.
    """
    said = given()
    if other is None and not is_dump(model):
        if idle := [text for name, text in said.items() if name in OPTIONS]:
            raise InputError(f"{' and '.join(idle)} would do nothing here", "it is about two dumps of tensors",
                             "Name both: trt-tui compare A.json B.json.")
        return False
    if other is None:
        raise InputError(f"{model} is compared with nothing", "a dump is held against another one, or a network",
                         f"Give both dumps, or the network: trt-tui compare MODEL.onnx --reference {model}.")
    if not (is_dump(model) and is_dump(other)):
        raise InputError(f"{model} and {other} are not two dumps of tensors",
                         "two files that end in .json or .npz are compared, or one network",
                         "To hold a network against outputs, give --reference OUTPUTS.json.")
    if model == other:
        raise InputError(f"{model} is compared with itself", "", f"Name runners of it: {model}:RUNNER.")
    if len(config_paths) > 1:
        raise InputError("a fix starts from one config", f"{len(config_paths)} are named", "Name one with --config.")
    if idle := [text for name, text in said.items() if name not in _TAKEN]:
        raise InputError(f"{' and '.join(idle)} would do nothing here", "two dumps of tensors are compared, and "
                         "nothing is run", "Leave it out, or name a network.")
    about_fix = ("script", "output", *_OF_CONFIG)
    if "network" not in said and (lacking := [text for name, text in said.items() if name in about_fix]):
        raise InputError(f"{' and '.join(lacking)} needs a network", "a fix is made for one", "Name it with --model.")
    if "force" in said and not config_paths:
        raise InputError(f"{said['force']} would do nothing here", "it takes a config made for another structure, and "
                         "there is none", "Name one with --config, or leave it out.")
    idle = [text for name, text in said.items() if name in _OF_FIX]
    if idle and not {"script", "output"} & said.keys():
        raise InputError(f"{' and '.join(idle)} would do nothing here", "it is what --script and -o start from",
                         "Add -o precision.json, or leave it out.")
    return True


def compare_dumps(asked: Asked) -> None:
    """Compares, prints and writes; ends with exit code 1 if a tensor is over the threshold."""
    from trt_tui.cli.headless import Writer, compared_dumps
    from trt_tui.core.precision import Precision

    if asked.script == "-":
        raise InputError("the script goes to a file", "it has others beside it, which it names", "Name it: fix.py.")
    one_on_stdout({"--json": asked.json_path, "-o": asked.output})
    options = asked.options
    arguments = {"data": asked.first, "calib_data": asked.second,
                 "calib_cache": options.calib_cache if options is not None else None}
    places = check_places(options.model if options is not None else asked.first, arguments, asked.config_path,
                          *((asked.script,) if asked.script is not None else ()), asked.json_path, asked.output,
                          kind=asked.kind if asked.script is not None else "", config_to=asked.output)
    if options is None:
        with compared_dumps(asked.first, asked.second, asked.threshold, places) as found:
            _show(asked, found)
    else:
        with Writer(options, asked.config_path, force=asked.force, default=Precision.FP16, writes=places) as writer:
            found = writer.compare_dumps(asked.first, asked.second, asked.threshold)
            _show(asked, found)
            if asked.script is not None or asked.output is not None:
                _write_fix(asked, writer, found)
    if any(one.over for one in found.tensors):
        sys.exit(int(ExitCode.TOLERANCE_NOT_MET))


def _show(asked: Asked, found: DumpsCompared) -> None:
    """Writes the record and prints the table."""
    write_outputs([(asked.json_path, lambda _: _record(found, asked.threshold, asked.options is not None))], None)
    if "-" not in (asked.json_path, asked.output):
        print_table("\n".join(_table(found, asked)))


def _write_fix(asked: Asked, writer: Writer, found: DumpsCompared) -> None:
    """Writes the script and the precision.json that keep the layers at fault in FP32, and says how they are used.

    Raises:
        InputError: the script cannot be told the config, or ranges are missing; nothing is written then.
    """
    from trt_tui.core.measure.dumped import groups_to_raise
    from trt_tui.words import first_few, visible

    groups = groups_to_raise(found.tensors)
    if not groups:
        over = any(one.over for one in found.tensors)
        why = "No layer can be given a precision that makes a tensor over the threshold" if over \
            else "Nothing is over the threshold, so there is nothing to mend"
        click.echo(f"{why}: nothing was written for it.", err=True)
        return
    if not writer.raise_groups(groups):
        click.echo(f"The config keeps {visible(first_few(groups))} in FP32 already, so nothing was written. Was the "
                   "engine built with this config, and do both dumps come from the same inputs?", err=True)
        return
    writer.take_cache()
    lacking = writer.lacking_ranges()
    if asked.script is not None:
        if lacking:
            raise InputError(
                f"{asked.script} needs ranges of INT8 tensors",
                f"{len(lacking)} tensors have none, {visible(lacking[0])} among them",
                "Name the calibration cache that the engine was built with: --calib-cache FILE. Without a cache leave "
                "--script out: -o writes the config, and trt-tui export takes it with --data.")
        written = writer.export(asked.kind, asked.script)
        for line in (*written.lines, *(f"Wrote {path}" for path in written.paths)):
            click.echo(visible(line), err=True)
    write_outputs([(asked.output, lambda writer: writer.precision_text(found.sha256))], writer)
    for line in _next_steps(asked, writer.outline, bool(lacking)):
        click.echo(f"Next: {visible(line)}", err=True)


def _next_steps(asked: Asked, network: Outline, lacks_ranges: bool) -> list[str]:
    """Commands that build and check what was written."""
    lines = []
    if asked.script is not None:
        quoted = shlex.quote(asked.script)
        lines.append(f"sh {quoted} 10-weak builds an engine with TensorRT 8.6 to 10; without arguments it lists the "
                     "others." if asked.kind == "trtexec" else f"the command that builds an engine with TensorRT 8.6 "
                     f"to 10 stands at the top of {asked.script}.")
        open_sizes = [info.name for info in network.inputs if info.shape is None
                      or any(not isinstance(size, int) for size in info.shape)]
        if open_sizes and asked.options is not None and not asked.options.shapes:
            lines.append(f"add --shapes {open_sizes[0]}:MIN:OPT:MAX, since the network leaves sizes open and the "
                         "builder takes 1 for each.")
    if asked.output not in (None, "-"):
        command = f"trt-tui {{}} {shlex.quote(str(network.path))} --config {shlex.quote(str(asked.output))}"
        lines.append(f"{command.format('compare')} --data D shows what the config yields"
                     + (", and calibrates, since the config has no ranges." if lacks_ranges else "."))
        lines.append(f"{command.format('export')} --format onnx -o typed.onnx writes the network for TensorRT 10 and "
                     "later" + (", with --data D." if lacks_ranges else "."))
    return lines


def _table(found: DumpsCompared, asked: Asked) -> list[str]:
    """Both, the worst tensors in network order, and what to try."""
    from trt_tui import words

    over = sum(one.over for one in found.tensors)
    lines = [f"{found.second} against {found.first}: {words.plural(len(found.tensors), 'tensor')} of both, "
             f"{words.plural(found.iterations, 'iteration')}, {over} over a relative error of {asked.threshold:g}"]
    for where, names in ((found.first, found.only_first), (found.second, found.only_second)):
        if names:
            lines.append(f"only in {where}: {words.first_few(names)}")
    if foreign := [one.name for one in found.tensors if one.foreign]:
        lines.append(f"not in the network: {words.first_few(foreign)}")
    worst = sorted(range(len(found.tensors)), key=lambda index: -found.tensors[index].relative)[:asked.top_k]
    first = next((index for index, one in enumerate(found.tensors) if one.over), None)
    shown = sorted({*worst, *([first] if first is not None else [])})
    rows = [["tensor", "shape", "SQNR", "cosine", "max abs", "mean abs", "max rel", "mean rel", "NaN/Inf", ""]]
    for index in shown:
        one = found.tensors[index]
        errors = one.errors
        mark = _mark(one)
        rows.append([one.name, "x".join(map(str, one.shape)) or "1", one.figure, words.cosine(errors.cosine),
                     words.number(errors.max_abs), words.number(errors.mean_abs), words.number(one.max_relative),
                     words.number(one.mean_relative), str(one.bad), mark])
    if len(shown) < len(found.tensors):
        lines.append(f"the worst {len(shown)} of them, in network order (--top-k):")
    return [*lines, "", *words.table(rows, flush_left=2), "", *found.advice]


def _mark(one: TensorErrors) -> str:
    """What the last column says of a tensor."""
    if one.over:
        return "over, begins here" if one.begins else "over"
    return "scaled" if one.scaled else "NaN in both" if one.nan_in_both else ""


def _record(found: DumpsCompared, threshold: float, with_network: bool) -> str:
    """The comparison as schema ``dumps-v1``."""
    from trt_tui.core.measure.record import errors_record

    def finite(value: float | None) -> float | None:
        return value if value is not None and math.isfinite(value) else None

    tensors = {one.name: {**errors_record(one.errors), "shape": list(one.shape), "relative": finite(one.relative),
                          "max_relative": finite(one.max_relative), "mean_relative": finite(one.mean_relative),
                          "not_finite_in_first": one.first_bad, "nan_in_both": one.nan_in_both,
                          "masked": one.masked, **({"scaled": True} if one.scaled else {}),
                          "over": one.over, "begins": one.begins, **({"group": one.group} if one.group else {}),
                          **({"in_network": not one.foreign} if with_network else {})}
               for one in found.tensors}
    return json.dumps({
        "format": "trt-tui/dumps", "version": 1, "first": found.first, "second": found.second,
        "iterations": found.iterations, "threshold": threshold, "tensors": tensors,
        "first_over": next((one.name for one in found.tensors if one.over), None),
        "only_in_first": list(found.only_first), "only_in_second": list(found.only_second),
        "advice": list(found.advice)}, indent=1) + "\n"
