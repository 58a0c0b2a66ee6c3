"""The export of a Polygraphy script that sets precisions and ranges in a weakly typed TensorRT network (8.6 to 10).

Polygraphy calls ``postprocess(network=...)`` of a ``--trt-network-postprocess-script`` after its parser. The script is
self-contained: it contains the layer constraints as JSON and the source of
`trt_tui.core.lowering.implicit_quantization.apply_constraints`, and imports tensorrt.
"""

import inspect
import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from trt_tui.core.builder_options import OMISSION_MARKER, BuilderOptions, escape_path_argument
from trt_tui.core.calibration.cache import calibration_algorithm
from trt_tui.core.data.shapes import ShapeRange, parse_additional_profiles
from trt_tui.core.exporters.formats import ExportContext, WrittenExport
from trt_tui.core.exporters.omissions import implicit_omission_record
from trt_tui.core.exporters.trtexec import (
    TrtexecFiles,
    command_file_names,
    quote_command,
    write_fp32_network_and_cache,
)
from trt_tui.core.lowering.implicit_quantization import (
    ImplicitQuantizationConstraints,
    apply_constraints,
    find_source_layer,
    lower_to_implicit_quantization,
)
from trt_tui.core.lowering.lowering_checks import weak_typing_notes
from trt_tui.core.lowering.network_rewrite import config_barrier_notes
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.files.writing import write_file_atomically
from trt_tui.formatting import escape_hidden_characters

_SCRIPT_TEMPLATE = '''\
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
                         "build the typed network (--format onnx) instead.")
    if "bf16" in FLAGS and not hasattr(trt, "bfloat16"):
        raise SystemExit(f"TensorRT {{trt.__version__}} has no BF16, which this config asks for.")
    missing = apply_constraints(trt, network, **TOLD)
    if missing:
        raise SystemExit(f"{{len(missing)}} layers that this script sets are not in the network, for example "
                         f"{{', '.join(missing[:3])}}: it was made for another one, or for other node names.")


{functions}
'''


CALIBRATORS = {"minmax": "IInt8MinMaxCalibrator", "entropy": "IInt8EntropyCalibrator2"}
"""TensorRT's calibrators that need no settings, by range method."""


def format_named_values(values: Mapping[str, str]) -> list[str]:
    """Returns the arguments ``NAME:VALUE`` that pass Polygraphy a value for each of several tensors.

    Raises:
        InputError: A name begins with "-". Polygraphy would read it as an option, and could run a file that the option
            names.
    """
    for name in values:
        if name.startswith("-"):
            raise InputError(f"Polygraphy cannot receive the name of tensor {escape_hidden_characters(name)}",
                             "it reads a name that begins with - as an option",
                             "Rename the tensor in the network. trt-tui compare --engine measures an engine without a "
                             "script.")
    return [f"{name}:{value}" for name, value in values.items()]


def tolerance_lines(tolerances: Mapping[str, float]) -> str:
    """Returns the values of Polygraphy's ``--atol``, quoted for a shell, one per line.

    Raises the errors of `format_named_values`.
    """
    return quote_command(format_named_values({name: f"{value:.6g}" for name, value in tolerances.items()}))


def polygraphy_command(
    constraints: ImplicitQuantizationConstraints,
    script_file: str = "polygraphy_script.py",
    files: TrtexecFiles | None = None,
    *,
    shapes: Mapping[str, ShapeRange] | None = None,
    more_profiles: Sequence[Mapping[str, ShapeRange]] = (),
    builder_options: BuilderOptions | None = None,
    range_method: str = "",
) -> tuple[str, ...]:
    """Returns the ``polygraphy convert`` command that builds an engine with the exported script.

    TF32 is off in Polygraphy unless ``--tf32`` is given.

    Args:
        script_file: File name of the script; "" for none.
        files: Names of the files; ``typed`` is not used.
        shapes: The optimization profile by input name; needed for inputs with dynamic dimensions.
        more_profiles: Additional optimization profiles.
        builder_options: The options of the builder; the builder's defaults if None.
        range_method: The method of the ranges. The command names the calibrator that reads their cache unless it is
            Polygraphy's default, the entropy calibrator.

    Raises:
        InputError: The errors of `format_named_values`.
    """
    files = files or TrtexecFiles()
    command = ["polygraphy", "convert", escape_path_argument(files.base), "-o", escape_path_argument(files.engine)]
    if script_file:  # Polygraphy reads the part after the last colon as the name of the function
        function = ":postprocess" if ":" in script_file else ""
        command += ["--trt-network-postprocess-script", f"{escape_path_argument(script_file)}{function}"]
    if constraints.needs_obey_constraints_flag:
        command += ["--precision-constraints", "obey"]
    command += [
        f"--{item.value}" for item in (Precision.FP16, Precision.BF16, Precision.INT8)
        if item in constraints.precision_flags
    ]
    if constraints.allows_tf32:
        command.append("--tf32")
    if constraints.ranges:
        # Polygraphy always sets a calibrator with INT8. With a cache it skips the calibration.
        command += ["--calibration-cache", escape_path_argument(files.cache)]
        if range_method in CALIBRATORS and range_method != "entropy":
            command += ["--calibration-base-class", CALIBRATORS[range_method]]
    for profile in (shapes or {}, *more_profiles):
        for bound in ("min", "opt", "max"):
            entries = format_named_values({name: f"[{','.join(map(str, getattr(item, bound)))}]"
                                           for name, item in profile.items()})
            command += [f"--trt-{bound}-shapes", *entries] if entries else []
    return (*command, *(builder_options or BuilderOptions()).polygraphy_arguments())


def polygraphy_script(constraints: ImplicitQuantizationConstraints, title: str, command: tuple[str, ...],
                      omissions: Mapping[str, Any] | None = None) -> str:
    """Returns the text of the Polygraphy script.

    Args:
        constraints: The constraints from `trt_tui.core.lowering.implicit_quantization.lower_to_implicit_quantization`.
        title: The description of the engine, for the heading.
        command: The command from `polygraphy_command`.
        omissions: The parts of the config that the script lacks; see `trt_tui.core.exporters.omissions`.

    Raises:
        InputError: All layers are in FP32, so that there are no constraints.
    """
    if not constraints.needs_obey_constraints_flag:
        raise InputError("this config has no Polygraphy script", "all layers run in FP32, so the script would be empty",
                         "Build the ONNX file as it is, without --fp16 and --int8.")
    tf32_note = ("TF32 is on, as in the config."
                 if constraints.allows_tf32 else "TF32 is off: Polygraphy clears it without --tf32.")
    quantization_text = ", with implicit quantization" if constraints.ranges else ""
    notes = [f"Made by trt-tui for TensorRT 8.6 to 10, weakly typed{quantization_text}.", tf32_note, *constraints.notes]
    return _SCRIPT_TEMPLATE.format(
        title=_escape_docstring(title), command=_escape_docstring("    " + _wrap_command(command)),
        notes=_escape_docstring("\n".join(notes)),
        flags=repr(sorted(precision.value for precision in constraints.precision_flags)),
        left_out=f"{OMISSION_MARKER} = json.loads(\n    {_python_literal(json.dumps(omissions))}\n)\n"
        if omissions else "", table=_python_literal(json.dumps(constraints.constraint_arguments())),
        functions="\n\n".join(inspect.getsource(function)
                              for function in (find_source_layer, apply_constraints)).rstrip())


def write_polygraphy_export(context: ExportContext) -> WrittenExport:
    """Writes the Polygraphy script, the FP32 network and the calibration cache."""
    path, network, config, method = context.path, context.network, context.config, context.calibration.method
    constraints = lower_to_implicit_quantization(network, config, context.ranges)
    more_profiles = parse_additional_profiles(context.builder_options.profiles, network.inputs, context.shapes)
    command = polygraphy_command(constraints, path.name, command_file_names("polygraphy", path), shapes=context.shapes,
                                 more_profiles=more_profiles, builder_options=context.builder_options,
                                 range_method=method)
    omissions = implicit_omission_record(network, config, context.companion_paths["base"].name, constraints)
    write_file_atomically(path, polygraphy_script(constraints, f"Precisions of {network.name}", command, omissions))
    algorithm = calibration_algorithm(method if method in CALIBRATORS else "")
    return WrittenExport([path, *write_fp32_network_and_cache(context, constraints, algorithm)],
                         (*config_barrier_notes(network, config),
                          *weak_typing_notes(network, constraints.precision_flags)))


def _python_literal(text: str, width: int = 110) -> str:
    """Returns a Python expression for an ASCII text, in lines of about the given width."""
    return "\n    ".join(repr(text[start:start + width]) for start in range(0, len(text), width))


def _wrap_command(command: tuple[str, ...]) -> str:
    lines = [""]
    for word in map(shlex.quote, command):
        if word.startswith("-") and len(lines[-1]) + len(word) > 80:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return " \\\n        ".join(lines)


def _escape_docstring(text: str) -> str:
    return escape_hidden_characters(text, keep_line_breaks=True).replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
