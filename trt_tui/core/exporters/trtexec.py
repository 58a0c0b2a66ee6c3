"""trtexec command lines that build a config, and a shell script that holds them.

What trtexec takes follows NVIDIA/TensorRT ``samples/common/sampleOptions.cpp`` and ``sampleEngines.cpp`` of 8.6 and 10:

- ``--layerPrecisions`` and the shape options are split at every comma; a name cannot hold one, quoted or not. An entry
  is split at its last colon, so names may hold colons; a name may hold no ``'``, and no ``*``, which is a wildcard.
- A static network takes no shape option. With dynamic inputs and ``--calib``, every input needs one.
- ``--int8`` without ``--calib`` makes up ranges; with it, the calibrator is IInt8EntropyCalibrator2 and reads the
  cache.
- A precision for a name that no layer has is ignored without a word: the ONNX file has to be the one that bears the
  config's names. Layers that the parser adds to a node it decomposes have other names and are not told anything.
- From TensorRT 11 on the precision options are gone and networks are always strongly typed (NVIDIA's guide "Migrating
  trtexec Usage from TensorRT 10.x to 11.x"). TF32 is on by default in all of them.
"""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trt_tui.core.data.shapes import ShapeRange, further_profiles
from trt_tui.core.lowering.weak import Weak
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.core.production import NOT_TOLD, Production, file_argument
from trt_tui.errors import InputError
from trt_tui.files.writing import write_atomic
from trt_tui.words import visible

LONGEST_ARGUMENT = (1 << 17) - 1
"""Bytes of one argument that Linux takes (MAX_ARG_STRLEN, its ending zero left out)."""

_ESCAPED = 40


CALIBRATOR = "EntropyCalibration2"
"""The calibrator that ``--calib`` hands a cache to; it takes no cache that names another, however it was made."""


@dataclass(frozen=True)
class Files:
    """Names of the files that the lines read and write, as trtexec is to be given them.

    Attributes:
        typed: The strongly typed network.
        base: The FP32 network with the config's node names; see `Weak.model`.
        cache: The calibration cache of `Weak.cache_ranges`.
        engine: Where the engine goes.
    """

    typed: str = "typed.onnx"
    base: str = "base.onnx"
    cache: str = "calibration.cache"
    engine: str = "model.engine"


@dataclass(frozen=True)
class CommandLine:
    """One trtexec command line.

    Attributes:
        name: "10", "10-weak" or "11": what a script is called with to run it.
        release: The releases it is for, in words.
        argv: The command and its arguments; empty where trtexec cannot be told this config.
        comments: What to know of it, one sentence each.
        refused: Why there is no such line, "" if there is.
    """

    name: str
    release: str
    argv: tuple[str, ...]
    comments: tuple[str, ...] = ()
    refused: str = ""


def command_lines(
    network: Network,
    config: PrecisionConfig,
    weak: Weak | None = None,
    files: Files | None = None,
    *,
    shapes: Mapping[str, ShapeRange] | None = None,
    production: Production | None = None,
    no_weak: str = "",
) -> tuple[CommandLine, ...]:
    """The lines for TensorRT 10 strongly typed, 10 weakly typed (where ``weak`` is given), and 11.

    Args:
        weak: What `trt_tui.core.lowering.weak.lower_weak` says of the config.
        files: Names of the files; those of `Files` by default.
        shapes: The optimization profile by input name; needed for inputs with dynamic dimensions. Inputs that have no
            entry stay at trtexec's default, which takes 1 for every open dimension.
        production: How the builder is to work; by its own defaults when None.
        no_weak: Why there is no ``weak``, for the script to say.

    Raises:
        InputError: an input's name or the shapes cannot be told.
    """
    files, production = files or Files(), production or Production()
    common = ["--noTF32"] if not config.tf32 else []
    further = further_profiles(production.profiles, network.inputs, shapes or {})
    profile = _profiles(network, shapes or {}, further, every=False)
    rest = [f"--saveEngine={files.engine}", "--skipInference"]
    ten, eleven = ([*rest, *production.trtexec(release)] for release in ("10", "11"))
    tf32 = ("TF32 is left on, as the config has it.",) if config.tf32 else ("TF32 is cleared: --noTF32.",)
    lines = [CommandLine("10", "TensorRT 10, strongly typed",
                  ("trtexec", f"--onnx={files.typed}", "--stronglyTyped", *common, *profile, *ten), tf32)]
    if weak is not None:
        every = _profiles(network, shapes or {}, further, every=bool(weak.ranges))
        lines.append(_weak_line(network, weak, files, [*common, *every, *ten], tf32))
    elif no_weak:
        lines.append(CommandLine("10-weak", "TensorRT 8.6 to 10, weakly typed", (), (), no_weak))
    lines.append(CommandLine("11", "TensorRT 11, where every network is strongly typed",
                      ("trtexec", f"--onnx={files.typed}", *common, *profile, *eleven),
                      (*tf32, *(("Tactic sources are left out: trtexec 11 throws on their names.",)
                                if production.tactic_sources else ()))))
    return tuple(lines)


def _weak_line(network: Network, weak: Weak, files: Files, rest: list[str], comments: tuple[str, ...]) -> CommandLine:
    releases = "TensorRT 10" if Precision.BF16 in weak.flags else "TensorRT 8.6 to 10"
    name, release = "10-weak", f"{releases}, weakly typed with implicit quantization"
    argv = ["trtexec", f"--onnx={files.base}"]
    argv += [f"--{one.value}" for one in (Precision.FP16, Precision.BF16, Precision.INT8) if one in weak.flags]
    if weak.ranges:
        argv.append(f"--calib={files.cache}")
        comments += (f"The cache's first line names {CALIBRATOR}, the one calibrator that trtexec has, however its "
                     "ranges were measured.",)
        comments += ("Should TensorRT not take the cache, its first line names the release: "
                     "TRT-8601-EntropyCalibration2 for 8.6.1, TRT-101601-... for 10.16.1.",)
    if weak.obey:
        bad = sorted(layer for layer in {*weak.precisions, *weak.output_types} if _why_not(layer))
        bad = [layer for layer in bad if _why_not(layer) == _why_not(bad[0])]
        if bad:
            return CommandLine(name, release, (), comments,
                               f"trtexec cannot be told of {_shown(bad)}: {_why_not(bad[0])}")
        types, mixed = {}, []
        for layer, precision in weak.output_types.items():
            floats = [network.is_float(tensor) for tensor in network.layer(layer).outputs if tensor]
            # One type stands for all outputs of a layer, so one with an integer output takes none.
            if all(floats):
                types[layer] = precision
            else:
                mixed.append(layer)
        argv.append("--precisionConstraints=obey")
        argv += _listed("--layerPrecisions", weak.precisions) + _listed("--layerOutputTypes", types)
        if mixed:
            comments += (f"Output types are not told, for outputs of different types: {_shown(mixed)}.",)
        comments += ("Layers that TensorRT's parser adds to a node are not told anything; the Polygraphy script tells "
                     "them too.",)
    long = next((argument for argument in argv if len(argument.encode()) > LONGEST_ARGUMENT), None)
    if long is not None:
        return CommandLine(name, release, (), comments,
                    f"{long.partition('=')[0]} takes {len(long.encode())} bytes and an argument ends at "
                    f"{LONGEST_ARGUMENT}; use the Polygraphy script")
    return CommandLine(name, release, (*argv, *rest), comments + weak.notes)


def _listed(option: str, precisions: Mapping[str, Precision]) -> list[str]:
    if not precisions:
        return []
    return [f"{option}=" + ",".join(f"{name}:{precision.value}" for name, precision in precisions.items())]


def _why_not(name: str) -> str:
    """Why trtexec cannot be told something of a name, "" if it can."""
    for character, reason in ((",", "it splits its lists at every comma"), ("'", "it drops single quotes"),
                              ("*", "it takes * for any text")):
        if character in name:
            return reason
    return "" if name else "it has no name"


def _shown(names: Iterable[str]) -> str:
    names = sorted(names)
    shown = ", ".join(repr(name if len(name) <= _ESCAPED else name[:_ESCAPED] + "...") for name in names[:3])
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _profiles(network: Network, shapes: Mapping[str, ShapeRange],
              further: Sequence[Mapping[str, ShapeRange]], *, every: bool) -> list[str]:
    """The options of all profiles; their numbers stand in front of each where there are several."""
    if not further:
        return _shape_options(network, shapes, every=every)
    return [word for place, one in enumerate((shapes, *further))
            for word in (f"--profile={place}", *_shape_options(network, one, every=every))]


def _shape_options(network: Network, shapes: Mapping[str, ShapeRange], *, every: bool) -> list[str]:
    """The profile's options; none for a static network, whatever ``shapes`` says.

    Args:
        every: Static inputs too, as calibration wants it.
    """
    dynamic = {info.name for info in network.inputs
               if info.shape is None or any(not isinstance(size, int) for size in info.shape)}
    if not shapes.keys() & dynamic:
        return []
    entries: dict[str, list[str]] = {"min": [], "opt": [], "max": []}
    for info in network.inputs:
        one = shapes.get(info.name) if info.name in dynamic else None
        if one is None and not every:
            continue
        sizes = [one.min, one.opt, one.max] if one is not None else [_ones(info.shape)] * 3
        if _why_not(info.name):
            raise InputError(f"trtexec cannot be told the shape of input {info.name!r}", _why_not(info.name),
                             "Rename the input, or build with trt-tui build.")
        for key, size in zip(entries, sizes, strict=True):
            # Quotes keep the name of a scalar apart from its empty shape.
            name = info.name if size else f"'{info.name}'"
            entries[key].append(f"{name}:{'x'.join(map(str, size))}")
    return [f"--{key}Shapes={','.join(values)}" for key, values in entries.items()]


def _ones(shape: tuple[int | str | None, ...] | None) -> tuple[int, ...]:
    """A shape with 1 for every open dimension."""
    return tuple(size if isinstance(size, int) else 1 for size in shape or ())


# -- the script -------------------------------------------------------------------------------------------------------


def script(lines: Iterable[CommandLine], title: str, name: str = "build.sh",
           left_out: Mapping[str, Any] | None = None) -> str:
    """A POSIX shell script that runs the line it is asked for: ``sh NAME 10|10-weak|11 [more trtexec options]``.

    It runs in its own folder, where the files that the lines name are expected, and takes ``$TRTEXEC`` for trtexec.

    Args:
        lines: See `command_lines`.
        title: What is built, for the heading.
        name: The script's file name.
        left_out: What the lines lack of the config, see `trt_tui.core.exporters.left_out`.
    """
    lines = tuple(lines)
    names = "|".join(line.name for line in lines)
    text = ["#!/bin/sh", f"# {visible(title)}", "# Made by trt-tui. Usage:", "#"]
    width = max(len(line.name) for line in lines)
    name = visible(shlex.quote(file_argument(name)))
    text += [f"#   sh {name} {line.name:<{width}}   {line.release}" for line in lines]
    text += ["#", "# Further arguments are passed on to trtexec. TRTEXEC names another trtexec.",
             *([f"# {NOT_TOLD} = {json.dumps(left_out)}"] if left_out else []), "set -eu",
             'cd -- "$(dirname -- "$0")"', "trtexec=${TRTEXEC:-trtexec}",
             'release=${1:-}', '[ "$#" -eq 0 ] || shift', "", 'case "$release" in']
    for line in lines:
        text.append(f"{line.name})")
        text += [f"    # {visible(comment)}" for comment in (f"{line.release}.", *line.comments)]
        if line.argv:
            words = ['"$trtexec"', *(shlex.quote(word) for word in line.argv[1:]), '"$@"']
            text += ["    " + " \\\n        ".join(words), "    ;;"]
        else:
            text += [f"    printf '%s\\n' {shlex.quote(visible(line.refused))} >&2", "    exit 2", "    ;;"]
    text += ["*)", f"    echo \"usage: sh $0 {names} [more trtexec options]\" >&2", "    exit 2", "    ;;", "esac", ""]
    return "\n".join(text)


def quoted_lines(words: Iterable[str]) -> str:
    """Words of a command as a shell takes them, one a line."""
    return " \\\n        ".join(map(shlex.quote, words))


def write_script(path: Path | str, lines: Iterable[CommandLine], title: str,
                 left_out: Mapping[str, Any] | None = None) -> None:
    """Writes `script`; the file is whole or not there.

    Raises:
        InputError: the file cannot be written.
    """
    write_atomic(path, script(lines, title, Path(path).name, left_out))
