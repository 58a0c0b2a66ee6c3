"""trtexec command lines, read as text.

The options are those of NVIDIA/TensorRT ``samples/common/sampleOptions.cpp`` of 8.6 and 10: ``--layerPrecisions`` and
``--layerOutputTypes`` are lists of ``name:type`` with commas between, split at the last colon; types of several outputs
are joined by ``+``; ``*`` stands for the layers that are not named, and in a name for any text. Without
``--precisionConstraints`` they have no effect. TF32 is on without ``--noTF32``. With ``--int8`` and no ``--calib``
trtexec gives all tensors of a network without Q/DQ the same made-up range.
"""

from collections.abc import Sequence
from pathlib import Path

from trt_tui.core.importers.asked import Asked
from trt_tui.core.importers.command_lines import TYPES, Command, quantized_model, refuse_typed, typed_words
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.words import first_few

PRECISION_OPTIONS = ("fp16", "bf16", "int8", "fp8", "int4", "best", "stronglyTyped", "layerPrecisions",
                     "layerOutputTypes", "calib")
_READ = (*PRECISION_OPTIONS, "precisionConstraints", "noTF32", "onnx")


def read_trtexec(command: Command, network: Network, file: Path) -> Asked:
    """Reads the precisions of a trtexec command.

    Raises:
        InputError: it builds a strongly typed network.
    """
    asked = Asked("a command of trtexec")
    if command.has("stronglyTyped"):
        refuse_typed(file)
    best = command.has("best")
    take_flags(asked, [word for word in ("fp16", "bf16") if command.has(word) or best and word == "fp16"],
               [word for word in ("int8", "fp8", "int4") if command.has(word) or best and word == "int8"])
    asked.tf32 = not command.has("noTF32")
    if asked.tf32:
        asked.notes.append("FP32 layers may use TF32, as trtexec has it without --noTF32")
    _listed(command, "layerPrecisions", network, asked.layers, asked.unread)
    _listed(command, "layerOutputTypes", network, asked.outputs, asked.unread)
    if asked.layers and not command.has("precisionConstraints"):
        asked.notes.append("trtexec heeds --layerPrecisions only with --precisionConstraints=obey or prefer, which it "
                           "lacks; here they count")
    if cache := command.value("calib"):
        asked.cache = file.parent / cache
    if asked.quantized is Precision.INT8:
        if quantized_model(command, network, file):
            if network.given is None:
                asked.unread.append(f"{Path(command.model).name} has Q/DQ nodes of its own, which decide what runs in "
                                    "INT8 and with which ranges; open it in place of this network")
        elif not cache:
            option = "--best" if best else "--int8"
            asked.notes.append(f"trtexec makes up the INT8 ranges for {option} without --calib: an engine of that "
                               "command is good for timing alone. Here ranges are measured on the data")
    others = [f"--{option}" for option in command.options if option not in _READ]
    if others:
        asked.unread.append(f"{first_few(others, 8)}: not about precisions")
    return asked


def take_flags(asked: Asked, floats: Sequence[str], quantized: Sequence[str]) -> None:
    """Sets the defaults from a builder's flags, which are words of `TYPES`."""
    kinds, lower = [TYPES[word] for word in floats], [TYPES[word] for word in quantized]
    asked.other = kinds[0] if kinds else Precision.FP32
    asked.quantized = lower[0] if lower else asked.other
    if len(kinds) + bool(lower) > 1:
        labels = " and ".join(one.label for one in (*lower[:1], *kinds[:1]))
        asked.notes.append(f"TensorRT chooses between {labels} where nothing is told; here what can runs in "
                           f"{(lower or kinds)[0].label}, the rest in {asked.other.label}")
    asked.unread += [f"--{one.value}: {lower[0].label} is taken" for one in lower[1:]]


def _fits(name: str, pattern: str) -> bool:
    """Returns True if a name fits a pattern in which each ``*`` stands for any text, in linear time."""
    first, *between, last = pattern.split("*")
    place, end = len(first), len(name) - len(last)
    if place > end or not (name.startswith(first) and name.endswith(last)):
        return False
    for part in between:  # the first place where a part fits leaves most to those behind it
        if (place := name.find(part, place, end)) < 0:
            return False
        place += len(part)
    return True


def _listed(command: Command, option: str, network: Network, into: dict[str, Precision], unread: list[str]) -> None:
    """Takes a list of ``name:type`` apart."""
    names = [layer.name for layer in network.layers]
    rest: Precision | None = None
    text = ",".join(command.options.get(option, ()))
    for entry in filter(None, (part.strip().strip("'\"") for part in text.split(","))):
        name, kind, integers = typed_words(entry)
        if kind is None:
            if not integers:
                unread.append(f"--{option} {entry!r}: no name:type, with a type of {', '.join(TYPES)}")
        elif name == "*":
            rest = kind
        elif "*" in name and name not in names and "(Unnamed Layer*" not in name:
            matched = [one for one in names if _fits(one, name)]
            into.update(dict.fromkeys(matched, kind))
            if not matched:
                unread.append(f"--{option} {entry!r}: no layer matches")
        else:
            into[name] = kind
    if rest is not None:
        into.update({name: rest for name in names if name not in into})
