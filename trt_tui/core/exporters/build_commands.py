"""The exports of commands that build a config: a shell script with trtexec, and a script for Polygraphy.

The options of trtexec follow NVIDIA/TensorRT ``samples/common/sampleOptions.cpp`` and ``sampleEngines.cpp`` of 8.6 and
10:

- ``--layerPrecisions`` and the shape options are split at every comma, so a name cannot contain one, quoted or not. An
  entry is split at its last colon, so names may contain colons. A name may not contain ``'``, nor ``*``, which is a
  wildcard.
- A static network takes no shape option. With dynamic inputs and ``--calib``, every input needs one.
- ``--int8`` without ``--calib`` invents ranges. With it, the calibrator is IInt8EntropyCalibrator2 and reads the cache.
- A precision for an unknown layer name is ignored without a message, so the ONNX file must have the names in the
  config. Layers that the parser adds for a decomposed node have other names and receive no precision.
- From TensorRT 11 on there are no precision options, and networks are always strongly typed (NVIDIA's guide "Migrating
  trtexec Usage from TensorRT 10.x to 11.x"). TF32 is on by default in all releases.

The script of Polygraphy sets precisions and ranges in a weakly typed network (8.6 to 10). Polygraphy calls
``postprocess(network=...)`` of a ``--trt-network-postprocess-script`` after its parser. The script is self-contained:
it contains the layer constraints as JSON and the source of
`trt_tui.core.lowering.weak_typing.apply_constraints`, and imports tensorrt.
"""

import inspect
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trt_tui.core.builder_options import OMISSION_MARKER, BuilderOptions, escape_path_argument
from trt_tui.core.calibration.cache import calibration_algorithm, write_calibration_cache
from trt_tui.core.data.batches import ShapeRange, parse_additional_profiles
from trt_tui.core.engines.inspector import GRAPH_SUFFIX
from trt_tui.core.exporters.formats import ExportContext, WrittenExport, implicit_omission_record
from trt_tui.core.exporters.onnx import export_typed_network, write_onnx_export
from trt_tui.core.exporters.registry import find_companion_files
from trt_tui.core.lowering.network_rewrite import (
    WEAK_PRECISIONS,
    config_barrier_notes,
    groups_by_release_dependent_precision,
    replace_all_file_precisions,
    weak_typing_notes,
)
from trt_tui.core.lowering.weak_typing import (
    ImplicitQuantizationConstraints,
    apply_constraints,
    find_source_layer,
    lower_to_implicit_quantization,
)
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.core.runner import LayerConstraints
from trt_tui.errors import InputError
from trt_tui.files.writing import write_file_atomically
from trt_tui.formatting import escape_hidden_characters

MAX_ARGUMENT_BYTES = (1 << 17) - 1
"""Maximum size in bytes of one argument on Linux (MAX_ARG_STRLEN without its final zero)."""

_MAX_NAME_CHARACTERS = 40


LAYERS_COMMENT = f"# ENGINE{GRAPH_SUFFIX} gets the layers of the engine, for trt-tui inspect --engine."
"""The comment of scripts on the layers that trtexec writes."""

CALIBRATOR = "EntropyCalibration2"
"""The calibrator that reads the cache of ``--calib``. It refuses a cache that names another calibrator, whatever method
measured the ranges."""


@dataclass(frozen=True)
class TrtexecFiles:
    """The names of the files that the trtexec commands read and write.

    Attributes:
        typed: The strongly typed network.
        base: The FP32 network with the node names of the config; see `ImplicitQuantizationConstraints.model`.
        cache: The calibration cache of `ImplicitQuantizationConstraints.calibration_cache_ranges`.
        engine: The engine file.
    """

    typed: str = "typed.onnx"
    base: str = "base.onnx"
    cache: str = "calibration.cache"
    engine: str = "model.engine"


@dataclass(frozen=True)
class TrtexecCommandLine:
    """A trtexec command for one TensorRT release, or the reason why there is none.

    Attributes:
        name: "10", "10-weak" or "11": the argument of the script that selects this command.
        release: The releases for which the command is, as text.
        argv: The command and its arguments; empty if trtexec cannot build this config.
        comments: Notes on the command, one sentence each.
        refusal_reason: The reason why there is no such command; "" if there is one.
    """

    name: str
    release: str
    argv: tuple[str, ...]
    comments: tuple[str, ...] = ()
    refusal_reason: str = ""


def build_command_lines_for_constraints(
    network: Network,
    config: PrecisionConfig,
    constraints: ImplicitQuantizationConstraints | None = None,
    files: TrtexecFiles | None = None,
    *,
    shapes: Mapping[str, ShapeRange] | None = None,
    builder_options: BuilderOptions | None = None,
    refusal_reason: str = "",
) -> tuple[TrtexecCommandLine, ...]:
    """Builds the trtexec commands for TensorRT 10 strongly typed, 10 weakly typed, and 11.

    The weakly typed command needs ``constraints``.

    Args:
        constraints: The constraints from `trt_tui.core.lowering.weak_typing.lower_to_implicit_quantization`.
        files: Names of the files; the defaults of `TrtexecFiles` if None.
        shapes: The optimization profile by input name; needed for inputs with dynamic dimensions. For other inputs
            trtexec uses 1 for every dynamic dimension.
        builder_options: The options of the builder; the builder's defaults if None.
        refusal_reason: The reason why there are no ``constraints``, which the script prints.

    Raises:
        InputError: trtexec cannot represent the name of an input or the shapes.
    """
    files, builder_options = files or TrtexecFiles(), builder_options or BuilderOptions()
    common = ["--noTF32"] if not config.tf32 else []
    more_profiles = parse_additional_profiles(builder_options.profiles, network.inputs, shapes or {})
    profile = _shape_profile_arguments(network, shapes or {}, more_profiles, include_static=False)
    output_arguments = [
        f"--saveEngine={files.engine}",
        "--skipInference",
        f"--exportLayerInfo={files.engine}{GRAPH_SUFFIX}",
        "--profilingVerbosity=detailed",
    ]
    arguments_10, arguments_11 = (
        [*output_arguments, *builder_options.trtexec_arguments(release)] for release in ("10", "11")
    )
    tf32 = ("TF32 stays on, as in the config.",) if config.tf32 else ("TF32 is cleared: --noTF32.",)
    lines = [
        TrtexecCommandLine(
            "10",
            "TensorRT 10, strongly typed",
            ("trtexec", f"--onnx={files.typed}", "--stronglyTyped", *common, *profile, *arguments_10),
            tf32,
        )
    ]
    if constraints is not None:
        static_profile = _shape_profile_arguments(
            network, shapes or {}, more_profiles, include_static=bool(constraints.ranges)
        )
        lines.append(
            _weakly_typed_command_line(network, constraints, files, [*common, *static_profile, *arguments_10], tf32)
        )
    elif refusal_reason:
        lines.append(TrtexecCommandLine("10-weak", "TensorRT 8.6 to 10, weakly typed", (), (), refusal_reason))
    lines.append(
        TrtexecCommandLine(
            "11",
            "TensorRT 11, where every network is strongly typed",
            ("trtexec", f"--onnx={files.typed}", *common, *profile, *arguments_11),
            (
                *tf32,
                *(
                    ("Tactic sources are left out: trtexec 11 throws on their names.",)
                    if builder_options.tactic_sources
                    else ()
                ),
            ),
        )
    )
    return tuple(lines)


def _weakly_typed_command_line(
    network: Network,
    constraints: ImplicitQuantizationConstraints,
    files: TrtexecFiles,
    common_arguments: list[str],
    comments: tuple[str, ...],
) -> TrtexecCommandLine:
    releases = "TensorRT 10" if Precision.BF16 in constraints.precision_flags else "TensorRT 8.6 to 10"
    name, release = "10-weak", f"{releases}, weakly typed with implicit quantization"
    argv = ["trtexec", f"--onnx={files.base}"]
    argv += [
        f"--{flag.value}"
        for flag in (Precision.FP16, Precision.BF16, Precision.INT8)
        if flag in constraints.precision_flags
    ]
    if constraints.ranges:
        argv.append(f"--calib={files.cache}")
        comments += (
            f"The cache's first line names {CALIBRATOR}, the one calibrator that trtexec has, however its "
            "ranges were measured.",
        )
        comments += (
            "Should TensorRT not take the cache, its first line names the release: "
            "TRT-8601-EntropyCalibration2 for 8.6.1, TRT-101601-... for 10.16.1.",
        )
    if constraints.needs_obey_constraints_flag:
        refused_layers = sorted(
            layer for layer in {*constraints.precisions, *constraints.output_types} if _name_refusal_reason(layer)
        )
        refused_layers = [
            layer for layer in refused_layers if _name_refusal_reason(layer) == _name_refusal_reason(refused_layers[0])
        ]
        if refused_layers:
            return TrtexecCommandLine(
                name,
                release,
                (),
                comments,
                f"trtexec cannot set {_quoted_names_text(refused_layers)}: {_name_refusal_reason(refused_layers[0])}",
            )
        arguments, mixed_layers = list_precision_arguments(network, constraints)
        argv += arguments
        if mixed_layers:
            comments += (
                "Output types are not set for layers whose outputs differ in type: "
                f"{_quoted_names_text(mixed_layers)}.",
            )
        comments += (
            "Layers that TensorRT's parser adds to a node get no precision; the Polygraphy script sets them too.",
        )
    long_argument = next((argument for argument in argv if len(argument.encode()) > MAX_ARGUMENT_BYTES), None)
    if long_argument is not None:
        return TrtexecCommandLine(
            name,
            release,
            (),
            comments,
            f"{long_argument.partition('=')[0]} has {len(long_argument.encode())} bytes, and an argument has at most "
            f"{MAX_ARGUMENT_BYTES}; use the Polygraphy script",
        )
    return TrtexecCommandLine(name, release, (*argv, *common_arguments), comments + constraints.notes)


def list_precision_arguments(network: Network, constraints: LayerConstraints) -> tuple[list[str], list[str]]:
    """Returns the trtexec arguments for layer precisions, and the layers whose output types these arguments cannot set.

    Layers with names that trtexec cannot represent are left out.
    """
    type_by_layer, mixed_layers = {}, []
    for layer, precision in constraints.output_types.items():
        are_float = [network.is_fp32(tensor) for tensor in network.get_layer(layer).outputs if tensor]
        # One type applies to all outputs of a layer, so a layer with an integer output gets none.
        if all(are_float):
            type_by_layer[layer] = precision
        else:
            mixed_layers.append(layer)
    return [
        "--precisionConstraints=obey",
        *_precision_arguments("--layerPrecisions", constraints.precisions),
        *_precision_arguments("--layerOutputTypes", type_by_layer),
    ], mixed_layers


def _precision_arguments(option: str, precisions: Mapping[str, Precision]) -> list[str]:
    entries = [f"{name}:{precision.value}" for name, precision in precisions.items() if not _name_refusal_reason(name)]
    return [f"{option}=" + ",".join(entries)] if entries else []


def _name_refusal_reason(name: str) -> str:
    """Returns the reason why trtexec cannot represent a layer name; "" if it can."""
    for character, reason in (
        (",", "it splits its lists at every comma"),
        ("'", "it drops single quotes"),
        ("*", "it reads * as any text"),
    ):
        if character in name:
            return reason
    return "" if name else "it has no name"


def _quoted_names_text(names: Iterable[str]) -> str:
    names = sorted(names)
    text = ", ".join(
        repr(name if len(name) <= _MAX_NAME_CHARACTERS else name[:_MAX_NAME_CHARACTERS] + "...") for name in names[:3]
    )
    return text + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _shape_profile_arguments(
    network: Network,
    shapes: Mapping[str, ShapeRange],
    additional_profiles: Sequence[Mapping[str, ShapeRange]],
    *,
    include_static: bool,
) -> list[str]:
    """Returns the shape options of all optimization profiles. With several profiles, the number of each precedes its
    options.
    """
    if not additional_profiles:
        return _shape_arguments(network, shapes, include_static=include_static)
    return [
        argument
        for index, profile in enumerate((shapes, *additional_profiles))
        for argument in (f"--profile={index}", *_shape_arguments(network, profile, include_static=include_static))
    ]


def _shape_arguments(network: Network, shapes: Mapping[str, ShapeRange], *, include_static: bool) -> list[str]:
    """Returns the shape options of one optimization profile; [] for a static network.

    Args:
        include_static: True to include static inputs, as calibration requires.
    """
    dynamic_inputs = {
        info.name
        for info in network.inputs
        if info.shape is None or any(not isinstance(dimensions, int) for dimensions in info.shape)
    }
    if not shapes.keys() & dynamic_inputs:
        return []
    entries: dict[str, list[str]] = {"min": [], "opt": [], "max": []}
    for info in network.inputs:
        shape_range = shapes.get(info.name) if info.name in dynamic_inputs else None
        if shape_range is None and not include_static:
            continue
        sizes = (
            [shape_range.min, shape_range.opt, shape_range.max]
            if shape_range is not None
            else [tuple(size if isinstance(size, int) else 1 for size in info.shape or ())] * 3
        )
        if _name_refusal_reason(info.name):
            raise InputError(
                f"trtexec cannot set the shape of input {info.name!r}",
                _name_refusal_reason(info.name),
                "Rename the input, or build with trt-tui build.",
            )
        for bound, dimensions in zip(entries, sizes, strict=True):
            # Quotes separate the name of a scalar from its empty shape.
            name = info.name if dimensions else f"'{info.name}'"
            entries[bound].append(f"{name}:{'x'.join(map(str, dimensions))}")
    return [f"--{bound}Shapes={','.join(values)}" for bound, values in entries.items()]


# -- the format -------------------------------------------------------------------------------------------------------


def command_file_names(format_name: str, path: Path) -> TrtexecFiles:
    """Returns the names of the files beside ``path`` that the commands of an export format use."""
    names = {role: file_path.name for role, file_path in find_companion_files(format_name, path).items()}
    return TrtexecFiles(engine=f"{path.name}.engine", **names)


def build_trtexec_command_lines(
    network: Network,
    config: PrecisionConfig,
    ranges: Mapping[str, float],
    files: TrtexecFiles,
    shapes: Mapping[str, ShapeRange] | None = None,
    builder_options: BuilderOptions | None = None,
) -> tuple[TrtexecCommandLine, ...]:
    """Builds the trtexec commands for a config. The weakly typed command sets layer constraints if the config allows
    it."""
    config = replace_all_file_precisions(network, config)
    special_labels = _special_precision_labels(network, config)
    constraints = lower_to_implicit_quantization(network, config, ranges) if not special_labels else None
    refusal_reason = f"no weakly typed TensorRT has {' or '.join(special_labels)}" if special_labels else ""
    return build_command_lines_for_constraints(
        network,
        config,
        constraints,
        files,
        shapes=shapes,
        builder_options=builder_options,
        refusal_reason=refusal_reason,
    )


def _special_precision_labels(network: Network, config: PrecisionConfig) -> list[str]:
    """Returns the labels of the precisions in a config that no weakly typed TensorRT supports."""
    special_precisions = groups_by_release_dependent_precision(network, config).keys() - WEAK_PRECISIONS
    return sorted(precision.label for precision in special_precisions)


def write_trtexec_export(context: ExportContext) -> WrittenExport:
    """Writes the trtexec script, the typed network and, if weakly typed builds are possible, the FP32 network and its
    cache.
    """
    path, network, config, companion_paths = context.path, context.network, context.config, context.companion_paths
    lines = build_trtexec_command_lines(
        network, config, context.ranges, command_file_names("trtexec", path), context.shapes, context.builder_options
    )
    written_paths = write_onnx_export(replace(context, path=companion_paths["typed"])).paths
    omissions: Mapping[str, Any] = {}
    notes = config_barrier_notes(network, config)
    if not _special_precision_labels(network, replace_all_file_precisions(network, config)):
        constraints = lower_to_implicit_quantization(network, config, context.ranges)
        written_paths += write_fp32_network_and_cache(context, constraints, CALIBRATOR)
        omissions = implicit_omission_record(network, config, companion_paths["base"].name, constraints)
        notes = (*notes, *weak_typing_notes(network, constraints.precision_flags))
    title = f"Builds {network.name} in the precisions of its config."
    write_file_atomically(path, trtexec_script(lines, title, path.name, omissions))
    return WrittenExport([path, *written_paths], notes)


def write_fp32_network_and_cache(
    context: ExportContext, constraints: ImplicitQuantizationConstraints, calibration_algorithm: str
) -> list[Path]:
    """Writes the FP32 network with the node names of the config, and its calibration cache; returns their paths.

    Without ranges, no cache is written.

    Args:
        calibration_algorithm: The calibrator that will read the cache, whose header must name it.
    """
    base_path, cache_path = context.companion_paths["base"], context.companion_paths["cache"]
    written_model = export_typed_network(constraints.model, context.network, base_path)
    if not constraints.ranges:
        return [written_model.path, *written_model.data_files]
    write_calibration_cache(cache_path, constraints.calibration_cache_ranges(), calibration_algorithm)
    return [written_model.path, *written_model.data_files, cache_path]


# -- the script -------------------------------------------------------------------------------------------------------


def trtexec_script(
    command_lines: Iterable[TrtexecCommandLine],
    title: str,
    script_name: str = "build.sh",
    omissions: Mapping[str, Any] | None = None,
) -> str:
    """Returns the text of a POSIX shell script that runs one trtexec command: ``sh NAME 10|10-weak|11 [more trtexec
    options]``.

    The script runs in the folder that contains it and the files of the commands. It calls ``$TRTEXEC`` if that is set.

    Args:
        command_lines: The lines from `build_command_lines_for_constraints`.
        title: The description of the engine, for the heading.
        script_name: File name of the script.
        omissions: The parts of the config that the commands do not contain; see `trt_tui.core.exporters.formats`.
    """
    command_lines = tuple(command_lines)
    names = "|".join(line.name for line in command_lines)
    text = ["#!/bin/sh", f"# {escape_hidden_characters(title)}", "# Made by trt-tui. Usage:", "#"]
    width = max(len(line.name) for line in command_lines)
    script_name = escape_hidden_characters(shlex.quote(escape_path_argument(script_name)))
    text += [f"#   sh {script_name} {line.name:<{width}}   {line.release}" for line in command_lines]
    text += [
        "#",
        "# Further arguments are passed on to trtexec. TRTEXEC names another trtexec.",
        LAYERS_COMMENT,
        *([f"# {OMISSION_MARKER} = {json.dumps(omissions)}"] if omissions else []),
        "set -eu",
        'cd -- "$(dirname -- "$0")"',
        "trtexec=${TRTEXEC:-trtexec}",
        "release=${1:-}",
        '[ "$#" -eq 0 ] || shift',
        "",
        'case "$release" in',
    ]
    for line in command_lines:
        text.append(f"{line.name})")
        text += [f"    # {escape_hidden_characters(comment)}" for comment in (f"{line.release}.", *line.comments)]
        if line.argv:
            arguments = ['"$trtexec"', *(shlex.quote(argument) for argument in line.argv[1:]), '"$@"']
            text += ["    " + " \\\n        ".join(arguments), "    ;;"]
        else:
            text += [
                f"    printf '%s\\n' {shlex.quote(escape_hidden_characters(line.refusal_reason))} >&2",
                "    exit 2",
                "    ;;",
            ]
    text += ["*)", f'    echo "usage: sh $0 {names} [more trtexec options]" >&2', "    exit 2", "    ;;", "esac", ""]
    return "\n".join(text)


def quote_command(arguments: Iterable[str]) -> str:
    """Quotes the words of a command for a shell. Returns a text with one word per line."""
    return " \\\n        ".join(map(shlex.quote, arguments))


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
    """Returns Polygraphy arguments ``NAME:VALUE``, one for each tensor.

    Raises:
        InputError: A name begins with "-". Polygraphy would read it as an option, which could run a file.
    """
    for name in values:
        if name.startswith("-"):
            raise InputError(
                f"Polygraphy cannot receive the name of tensor {escape_hidden_characters(name)}",
                "it reads a name that begins with - as an option",
                "Rename the tensor in the network. trt-tui compare --engine measures an engine without a script.",
            )
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
        range_method: The method of the ranges. If its calibrator is not Polygraphy's default, the entropy calibrator,
            the command names it.

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
        f"--{item.value}"
        for item in (Precision.FP16, Precision.BF16, Precision.INT8)
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
            entries = format_named_values(
                {name: f"[{','.join(map(str, getattr(item, bound)))}]" for name, item in profile.items()}
            )
            command += [f"--trt-{bound}-shapes", *entries] if entries else []
    return (*command, *(builder_options or BuilderOptions()).polygraphy_arguments())


def polygraphy_script(
    constraints: ImplicitQuantizationConstraints,
    title: str,
    command: tuple[str, ...],
    omissions: Mapping[str, Any] | None = None,
) -> str:
    """Returns the text of the Polygraphy script that sets layer constraints.

    Args:
        constraints: The constraints from `trt_tui.core.lowering.weak_typing.lower_to_implicit_quantization`.
        title: The description of the engine, for the heading.
        command: The command from `polygraphy_command`.
        omissions: The parts of the config that the script does not contain; see `trt_tui.core.exporters.formats`.

    Raises:
        InputError: All layers are in FP32, so that there are no constraints.
    """
    if not constraints.needs_obey_constraints_flag:
        raise InputError(
            "this config has no Polygraphy script",
            "all layers run in FP32, so the script would be empty",
            "Build the ONNX file as it is, without --fp16 and --int8.",
        )
    tf32_note = (
        "TF32 is on, as in the config."
        if constraints.allows_tf32
        else "TF32 is off: Polygraphy clears it without --tf32."
    )
    quantization_text = ", with implicit quantization" if constraints.ranges else ""
    notes = [f"Made by trt-tui for TensorRT 8.6 to 10, weakly typed{quantization_text}.", tf32_note, *constraints.notes]
    return _SCRIPT_TEMPLATE.format(
        title=_escape_docstring(title),
        command=_escape_docstring("    " + _wrap_command(command)),
        notes=_escape_docstring("\n".join(notes)),
        flags=repr(sorted(precision.value for precision in constraints.precision_flags)),
        left_out=f"{OMISSION_MARKER} = json.loads(\n    {_python_literal(json.dumps(omissions))}\n)\n"
        if omissions
        else "",
        table=_python_literal(json.dumps(constraints.constraint_arguments())),
        functions="\n\n".join(
            inspect.getsource(function) for function in (find_source_layer, apply_constraints)
        ).rstrip(),
    )


def write_polygraphy_export(context: ExportContext) -> WrittenExport:
    """Writes the Polygraphy script, the FP32 network and the calibration cache."""
    path, network, config, method = context.path, context.network, context.config, context.calibration.method
    constraints = lower_to_implicit_quantization(network, config, context.ranges)
    more_profiles = parse_additional_profiles(context.builder_options.profiles, network.inputs, context.shapes)
    command = polygraphy_command(
        constraints,
        path.name,
        command_file_names("polygraphy", path),
        shapes=context.shapes,
        more_profiles=more_profiles,
        builder_options=context.builder_options,
        range_method=method,
    )
    omissions = implicit_omission_record(network, config, context.companion_paths["base"].name, constraints)
    write_file_atomically(path, polygraphy_script(constraints, f"Precisions of {network.name}", command, omissions))
    algorithm = calibration_algorithm(method if method in CALIBRATORS else "")
    return WrittenExport(
        [path, *write_fp32_network_and_cache(context, constraints, algorithm)],
        (*config_barrier_notes(network, config), *weak_typing_notes(network, constraints.precision_flags)),
    )


def _python_literal(text: str, width: int = 110) -> str:
    """Returns a Python expression for an ASCII text, in lines of about the given width."""
    return "\n    ".join(repr(text[start : start + width]) for start in range(0, len(text), width))


def _wrap_command(command: tuple[str, ...]) -> str:
    lines = [""]
    for word in map(shlex.quote, command):
        if word.startswith("-") and len(lines[-1]) + len(word) > 80:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return " \\\n        ".join(lines)


def _escape_docstring(text: str) -> str:
    return escape_hidden_characters(text, keep_line_breaks=True).replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
