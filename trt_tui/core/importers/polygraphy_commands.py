"""Polygraphy command lines, read as text, with the postprocess scripts that they name.

The options and defaults are those of Polygraphy 0.53 (``tools/args/backend/trt/config.py`` and ``loader.py``,
``backend/trt/config.py``): TF32 is cleared without ``--tf32``; precisions of layers have no effect without
``--precision-constraints``; with ``--int8`` and no cache TensorRT calibrates on random inputs unless a data loader is
named; ``--layer-precisions`` takes ``name:type`` with spaces between and no wildcards. With TensorRT-RTX it passes on
no flag of a precision.
"""

from pathlib import Path

from trt_tui.core.importers.asked import Asked
from trt_tui.core.importers.command_lines import TYPES, Command, quantized_model, refuse_typed, typed_words
from trt_tui.core.importers.polygraphy import read_script
from trt_tui.core.importers.trtexec import take_flags
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.files.reading import SCRIPT_BYTES, read_text
from trt_tui.words import first_few

SCRIPTS = ("trt-network-postprocess-script", "trt-npps")
PRECISION_OPTIONS = ("fp16", "bf16", "int8", "fp8", "strongly-typed", "layer-precisions", "calibration-cache", *SCRIPTS)
_LOADERS = ("data-loader-script", "load-inputs", "load-input-data", "data-loader-backend-module")
_SETTINGS = ("trt-config-script", "trt-config-postprocess-script", "trt-config-func-name")
_READ = (*PRECISION_OPTIONS, *_LOADERS, "precision-constraints", "tf32", "calib-base-cls", "calibration-base-class")


def read_polygraphy(command: Command, network: Network, file: Path) -> Asked:
    """Reads the precisions of a Polygraphy command and of the scripts that it names.

    Raises:
        InputError: it builds a strongly typed network, or a script cannot be read.
    """
    asked = Asked("a command of Polygraphy")
    if command.has("strongly-typed"):
        refuse_typed(file)
    if command.rtx:
        refuse_typed(file, "TensorRT-RTX knows no other, and Polygraphy passes on no precision to it")
    take_flags(asked, [word for word in ("fp16", "bf16") if command.has(word)],
               [word for word in ("int8", "fp8") if command.has(word)])
    asked.tf32 = command.has("tf32")
    for entry in command.options.get("layer-precisions", ()):
        name, kind, integers = typed_words(entry)
        if kind is not None:
            asked.layers[name] = kind
        elif not integers:
            asked.unread.append(f"--layer-precisions {entry!r}: no name:type, with a type of {', '.join(TYPES)}")
    scripts = [text for option in SCRIPTS for text in command.options.get(option, ())]
    for text in scripts:
        _add_script(asked, text, network, file)
    if asked.layers and command.value("precision-constraints") not in ("obey", "prefer"):
        asked.notes.append("Polygraphy heeds precisions of layers only with --precision-constraints obey or prefer, "
                           "which it lacks; here they count")
    if cache := command.value("calibration-cache"):
        asked.cache = file.parent / cache
    if asked.quantized is Precision.INT8:
        _tell_of_ranges(asked, command, network, file)
    if command.has(*_SETTINGS):
        asked.unread.append("a script that changes the builder's settings: what it sets is not known")
    others = [f"--{option}" for option in command.options if option not in (*_READ, *_SETTINGS)]
    if others:
        asked.unread.append(f"{first_few(others, 8)}: not about precisions")
    return asked


def _add_script(asked: Asked, text: str, network: Network, file: Path) -> None:
    """Adds what a postprocess script sets.

    Args:
        text: The path as the command has it, with the function behind a colon or without.

    Raises:
        InputError: it cannot be read, or it is not there.
    """
    name, _, function = text.rpartition(":") if not text.endswith(".py") else (text, "", "")
    path = file.parent / (name or text)
    if not path.is_file():
        raise InputError(f"{file.name} names the script {name or text}, which is not there",
                         "the precisions of layers are in that script",
                         f"Put it beside {file.name}, or name the script itself with --config.")
    found = read_script(read_text(path, most=SCRIPT_BYTES), network, path, function or "postprocess",
                        must_set=False)
    asked.layers.update(found.layers)
    asked.outputs.update(found.outputs)
    asked.ranges.update(found.ranges)
    asked.unread += [f"{path.name}: {line}" for line in found.unread]
    asked.left_out |= found.left_out


def _tell_of_ranges(asked: Asked, command: Command, network: Network, file: Path) -> None:
    """Says where the ranges of an INT8 build come from, if they are not those of a cache."""
    if quantized_model(command, network, file):
        if network.given is None:
            asked.unread.append(f"{Path(command.model).name} has Q/DQ nodes of its own, which decide what runs in INT8 "
                                "and with which ranges; open it in place of this network")
    elif asked.cache is None and not asked.ranges:
        how = "on the samples of its data loader" if command.has(*_LOADERS) else \
            "on random inputs, for it names no --calibration-cache and no data loader"
        asked.notes.append(f"Polygraphy calibrates INT8 {how}. Here ranges are measured on the data")
