"""Two dumps of tensors: what `compare A.json B.json` does."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from trt_tui.cli.places import check_places, write_outputs
from trt_tui.cli.streams import print_table
from trt_tui.cli.usage import given
from trt_tui.errors import ExitCode, InputError

if TYPE_CHECKING:
    from trt_tui.core.measure.dumped import TensorErrors
    from trt_tui.core.network.layers import Outline
    from trt_tui.jobs.events import DumpsCompared

OPTIONS = frozenset(("threshold", "top_k", "script", "network", "output"))
"""Options that are about two dumps alone, by parameter name."""

_TAKEN = OPTIONS | {"json_path", "config_path", "force"}


@dataclass(frozen=True)
class Asked:
    """What is to be written and shown of two dumps.

    Attributes:
        top_k: How many tensors are listed.
        script: Where a Polygraphy script goes.
        network: The network that both are of.
        output: Where a precision.json goes.
        config_path: The config that it starts from; FP16 throughout without.
        force: Take a config that was made for another structure.
    """

    first: str
    second: str
    threshold: float
    top_k: int
    json_path: str | None
    script: str | None
    network: str | None
    output: str | None
    config_path: str | None
    force: bool


def is_dump(spec: str) -> bool:
    """Whether something is named as a dump, be it there or not."""
    from pathlib import Path

    from trt_tui.core.data.dumps import DUMP_SUFFIXES, split_dump

    return split_dump(spec)[0].suffix.lower() in DUMP_SUFFIXES or Path(spec).is_dir()


def check_sides(model: str, other: str | None) -> bool:
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
    if idle := [text for name, text in said.items() if name not in _TAKEN]:
        raise InputError(f"{' and '.join(idle)} would do nothing here", "two dumps of tensors are compared, and "
                         "nothing is run", "Leave it out, or name a network.")
    if "network" not in said and (lacking := [text for name, text in said.items()
                                              if name in ("output", "config_path", "force")]):
        raise InputError(f"{' and '.join(lacking)} needs a network", "a config is made for one",
                         "Name it with --model.")
    if "output" not in said and (idle := [text for name, text in said.items() if name in ("config_path", "force")]):
        raise InputError(f"{' and '.join(idle)} would do nothing here", "it is what -o starts from",
                         "Add -o precision.json, or leave it out.")
    return True


def compare_dumps(asked: Asked) -> None:
    """Compares, prints and writes; ends with exit code 1 if a tensor is over the threshold."""
    from trt_tui.cli.headless import compared_dumps
    from trt_tui.core.measure.dumped import to_raise

    arguments = {"data": asked.first, "calib_data": asked.second}
    places = check_places(asked.network or asked.first, arguments, asked.config_path, asked.json_path, asked.script,
                          asked.output, config_to=asked.output)
    with compared_dumps(asked.first, asked.second, asked.threshold, asked.network, asked.config_path, asked.force,
                        places) as (session, found):
        outline = session.preview
        raised = to_raise(found.tensors)
        texts: list[tuple[str | None, Any]] = [(asked.json_path, lambda _: _record(found, asked.threshold))]
        if raised:
            texts += [(asked.script, lambda _: _script(found, raised, outline, asked.script or "")),
                      (asked.output, lambda _: session.precision_text([one.group for one in raised if one.group]))]
        write_outputs(texts, session)
        if asked.json_path != "-":
            print_table("\n".join(_table(found, asked)))
        if not raised and (asked.script or asked.output):
            click.echo("Nothing is over the threshold, so there is nothing to mend and nothing was written for it.",
                       err=True)
    if raised:
        sys.exit(int(ExitCode.TOLERANCE_NOT_MET))


def _script(found: DumpsCompared, raised: list[TensorErrors], outline: Outline | None, path: str) -> str:
    from pathlib import Path

    from trt_tui.core.exporters.raising import raising_script

    tensors = dict.fromkeys(one.name for one in raised)
    if outline is not None:
        for one in raised:
            for layer in outline.group(one.group).layers if one.group else ():
                tensors |= dict.fromkeys(outline.layer(layer).outputs)
    return raising_script(list(tensors), f"Of {found.first} and {found.second}.", Path(path).name)


def _table(found: DumpsCompared, asked: Asked) -> list[str]:
    """Both, the worst tensors in network order, and what to try."""
    from trt_tui import words

    over = sum(one.over for one in found.tensors)
    lines = [f"{found.second} against {found.first}: {words.plural(len(found.tensors), 'tensor')} of both, "
             f"{words.plural(found.iterations, 'iteration')}, {over} over a relative error of {asked.threshold:g}"]
    for where, names in ((found.first, found.only_first), (found.second, found.only_second)):
        if names:
            lines.append(f"only in {where}: {words.first_few(names)}")
    worst = sorted(range(len(found.tensors)), key=lambda index: -found.tensors[index].relative)[:asked.top_k]
    first = next((index for index, one in enumerate(found.tensors) if one.over), None)
    shown = sorted({*worst, *([first] if first is not None else [])})
    rows = [["tensor", "shape", "SQNR", "cosine", "max abs", "mean abs", "max rel", "mean rel", "NaN/Inf", ""]]
    for index in shown:
        one = found.tensors[index]
        errors = one.errors
        mark = "over, begins here" if one.begins else "over" if one.over else ""
        rows.append([one.name, "x".join(map(str, one.shape)) or "1", errors.figure(""), words.cosine(errors.cosine),
                     words.number(errors.max_abs), words.number(errors.mean_abs), words.number(one.max_relative),
                     words.number(one.mean_relative), str(errors.bad), mark])
    if len(shown) < len(found.tensors):
        lines.append(f"the worst {len(shown)} of them, in network order (--top-k):")
    return [*lines, "", *words.table(rows, flush_left=2), "", *found.advice]


def _record(found: DumpsCompared, threshold: float) -> str:
    """The comparison as schema ``dumps-v1``."""
    from trt_tui.core.measure.record import errors_record

    def finite(value: float | None) -> float | None:
        return value if value is not None and math.isfinite(value) else None

    tensors = {one.name: {**errors_record(one.errors), "shape": list(one.shape), "relative": finite(one.relative),
                          "max_relative": finite(one.max_relative), "mean_relative": finite(one.mean_relative),
                          "over": one.over, "begins": one.begins, **({"group": one.group} if one.group else {})}
               for one in found.tensors}
    return json.dumps({
        "format": "trt-tui/dumps", "version": 1, "first": found.first, "second": found.second,
        "iterations": found.iterations, "threshold": threshold, "tensors": tensors,
        "first_over": next((one.name for one in found.tensors if one.over), None),
        "only_in_first": list(found.only_first), "only_in_second": list(found.only_second),
        "advice": list(found.advice)}, indent=1) + "\n"
