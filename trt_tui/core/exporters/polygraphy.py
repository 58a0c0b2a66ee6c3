"""A Polygraphy script that sets a config's precisions and ranges in a weakly typed TensorRT network (8.6 to 10).

Polygraphy calls ``postprocess(network=...)`` of a ``--trt-network-postprocess-script`` after its parser. The script
stands alone: it holds what is told as JSON and the source of `trt_tui.core.lowering.weak.tell`, and imports tensorrt.
"""

import inspect
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trt_tui.core.data.shapes import ShapeRange
from trt_tui.core.exporters.trtexec import Files, quoted_lines
from trt_tui.core.lowering.weak import Weak, layer_of, tell
from trt_tui.core.precision import Precision
from trt_tui.core.production import NOT_TOLD, Production, file_argument
from trt_tui.errors import InputError
from trt_tui.files.writing import write_atomic
from trt_tui.words import visible

_SCRIPT = '''\
"""{title}

{command}

{notes}
"""

from __future__ import annotations

import json

import tensorrt as trt

FLAGS = {flags}
{left_out}TOLD = json.loads(
    {table}
)


def postprocess(network):
    """Sets precisions, output types and dynamic ranges; called by Polygraphy with the parsed network."""
    if not hasattr(trt.ILayer, "set_output_type"):
        raise SystemExit(f"TensorRT {{trt.__version__}} is strongly typed only and takes no layer precisions: "
                         "build the typed ONNX network instead.")
    if "bf16" in FLAGS and not hasattr(trt, "bfloat16"):
        raise SystemExit(f"TensorRT {{trt.__version__}} has no BF16, which this config asks for.")
    missing = tell(trt, network, **TOLD)
    if missing:
        raise SystemExit(f"{{len(missing)}} layers that this script sets are not in the network, for example "
                         f"{{', '.join(missing[:3])}}: it was made for another one, or for other node names.")


{functions}
'''


CALIBRATORS = {"minmax": "IInt8MinMaxCalibrator", "entropy": "IInt8EntropyCalibrator2"}
"""TensorRT's calibrators that need no settings, by method."""


def named_values(values: Mapping[str, str]) -> list[str]:
    """Returns the arguments ``NAME:VALUE`` that tell Polygraphy a value of each of some tensors.

    Raises:
        InputError: Polygraphy would read a name as an option, and run a file that the option names.
    """
    for name in values:
        if name.startswith("-"):
            raise InputError(f"Polygraphy cannot be told of tensor {visible(name)}",
                             "it reads a name that begins with - as an option",
                             "Rename the tensor in the network. trt-tui compare --engine judges an engine as it is.")
    return [f"{name}:{value}" for name, value in values.items()]


def tolerance_lines(tolerances: Mapping[str, float]) -> str:
    """Returns the values of Polygraphy's ``--atol`` as a shell takes them, one a line; raises as `named_values`."""
    return quoted_lines(named_values({name: f"{value:.6g}" for name, value in tolerances.items()}))


def polygraphy_command(
    weak: Weak,
    script: str = "polygraphy_script.py",
    files: Files | None = None,
    *,
    shapes: Mapping[str, ShapeRange] | None = None,
    further: Sequence[Mapping[str, ShapeRange]] = (),
    production: Production | None = None,
    method: str = "",
) -> tuple[str, ...]:
    """The ``polygraphy convert`` command that builds an engine with the script.

    TF32 is off in Polygraphy unless ``--tf32`` is given.

    Args:
        script: The script's file name; "" for none.
        files: Names of the files; ``typed`` is not used.
        shapes: The optimization profile by input name; needed for inputs with dynamic dimensions.
        further: More profiles.
        production: How the builder is to work; by its own defaults when None.
        method: How the ranges were measured; the calibrator that reads their cache is named where it is another one
            than Polygraphy's default, which is that of entropy.

    Raises:
        InputError: see `named_values`.
    """
    files = files or Files()
    command = ["polygraphy", "convert", file_argument(files.base), "-o", file_argument(files.engine)]
    if script:  # the part behind the last colon names the function
        function = ":postprocess" if ":" in script else ""
        command += ["--trt-network-postprocess-script", f"{file_argument(script)}{function}"]
    if weak.obey:
        command += ["--precision-constraints", "obey"]
    command += [f"--{one.value}" for one in (Precision.FP16, Precision.BF16, Precision.INT8) if one in weak.flags]
    if weak.tf32:
        command.append("--tf32")
    if weak.ranges:
        # Polygraphy always sets a calibrator with INT8; the cache spares it the calibration.
        command += ["--calibration-cache", file_argument(files.cache)]
        if method in CALIBRATORS and method != "entropy":
            command += ["--calibration-base-class", CALIBRATORS[method]]
    for profile in (shapes or {}, *further):
        for key in ("min", "opt", "max"):
            entries = named_values({name: f"[{','.join(map(str, getattr(one, key)))}]"
                                    for name, one in profile.items()})
            command += [f"--trt-{key}-shapes", *entries] if entries else []
    return (*command, *(production or Production()).polygraphy())


def polygraphy_script(weak: Weak, title: str, command: tuple[str, ...],
                      left_out: Mapping[str, Any] | None = None) -> str:
    """The script's text.

    Args:
        weak: What `trt_tui.core.lowering.weak.lower_weak` says of the config.
        title: What is built, for the heading.
        command: See `polygraphy_command`.
        left_out: What the script lacks of the config, see `trt_tui.core.exporters.left_out`.

    Raises:
        InputError: the config says nothing that could be told: it is FP32 throughout.
    """
    if not weak.obey:
        raise InputError("this config has no Polygraphy script", "all layers run in FP32, so nothing is told",
                         "Build the ONNX file as it is, without --fp16 and --int8.")
    tf32 = "TF32 is on, as the config has it." if weak.tf32 else "TF32 is off: Polygraphy clears it without --tf32."
    quantized = ", with implicit quantization" if weak.ranges else ""
    notes = [f"Made by trt-tui for TensorRT 8.6 to 10, weakly typed{quantized}.", tf32, *weak.notes]
    return _SCRIPT.format(
        title=_in_docstring(title), command=_in_docstring("    " + _wrapped(command)),
        notes=_in_docstring("\n".join(notes)),
        flags=repr(sorted(precision.value for precision in weak.flags)),
        left_out=f"{NOT_TOLD} = json.loads(\n    {_literal(json.dumps(left_out))}\n)\n" if left_out else "",
        table=_literal(json.dumps(weak.arguments())),
        functions="\n\n".join(inspect.getsource(function) for function in (layer_of, tell)).rstrip())


def write_polygraphy_script(path: Path | str, weak: Weak, title: str, command: tuple[str, ...],
                            left_out: Mapping[str, Any] | None = None) -> None:
    """Writes `polygraphy_script`; the file is whole or not there.

    Raises:
        InputError: there is nothing to tell, or the file cannot be written.
    """
    write_atomic(path, polygraphy_script(weak, title, command, left_out))


def _literal(text: str, width: int = 110) -> str:
    """A Python expression for an ASCII text, in lines of about a width."""
    return "\n    ".join(repr(text[start:start + width]) for start in range(0, len(text), width))


def _wrapped(command: tuple[str, ...]) -> str:
    lines = [""]
    for word in map(shlex.quote, command):
        if word.startswith("-") and len(lines[-1]) + len(word) > 80:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return " \\\n        ".join(lines)


def _in_docstring(text: str) -> str:
    return visible(text, lines=True).replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
