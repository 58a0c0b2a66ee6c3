"""The bundle: a folder with all files to build a config on another machine, and a script that verifies the engine.

`verify.sh` compares the engine with the FP32 outputs of a few samples. It uses the mean absolute error of each output,
which Polygraphy (``--check-error-stat mean``) and trtexec 11.1 and later (``--accuracyAlgorithm=l1``) both compute. The
tolerance is twice the error of the simulated config on the same samples, plus a margin for FP32 itself. FP16 engines
had up to 1.4 dB lower SQNR than their simulation, a factor of 1.2.

A small change of a file, such as one weight, would stay within this tolerance. Therefore the script first compares the
checksums of all exported files.

The subgraph export: a folder that reproduces a fault of a part of the network, to be attached to a bug report.

The folder contains the subgraph in FP32 and in the precisions of a config, its actual inputs, and the outputs of FP32.
A script contains the Polygraphy commands that show the fault and reduce the subgraph. Both networks have FP32 inputs
and outputs, so that the same input files work for both.
"""

import difflib
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx_ir.convenience import extract

from trt_tui.core.builder_options import BuilderOptions
from trt_tui.core.calibration.cache import calibration_algorithm, write_calibration_cache
from trt_tui.core.data.batches import ShapeRange, parse_additional_profiles
from trt_tui.core.data.tensor_files import write_polygraphy_inputs, write_run_results
from trt_tui.core.engines.inspector import GRAPH_SUFFIX
from trt_tui.core.exporters.build_commands import (
    LAYERS_COMMENT,
    TrtexecFiles,
    build_command_lines_for_constraints,
    polygraphy_command,
    polygraphy_script,
    quote_command,
    tolerance_lines,
)
from trt_tui.core.exporters.formats import implicit_omission_record
from trt_tui.core.exporters.onnx import export_typed_network, onnxruntime_loading_note
from trt_tui.core.lowering.network_rewrite import (
    config_barrier_notes,
    refuse_cubic_grid_samples,
    replace_all_file_precisions,
)
from trt_tui.core.lowering.rulebook import compute_activation_ranges
from trt_tui.core.lowering.typed_network import TypedNetwork, lower_from_source_model
from trt_tui.core.lowering.weak_typing import ImplicitQuantizationConstraints, lower_to_explicit_quantization
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.core.report.document import Section, Table, sections_markdown
from trt_tui.errors import InputError
from trt_tui.files.reading import check_regular_file, file_sha256
from trt_tui.files.writing import open_atomic_writer, write_file_atomically
from trt_tui.formatting import counted_noun_text, escape_hidden_characters, name_list_text, number_text

_PYTHON_HINT = "PYTHON names the interpreter in which Polygraphy is installed."
"""The next step where a script of the bundle fails because python3 lacks Polygraphy."""

RELEASE_TITLES = {
    "8.6": "TensorRT 8.6",
    "10": "TensorRT 10, strongly typed",
    "11": "TensorRT 11, where every network is strongly typed",
    "rtx": "TensorRT-RTX",
}
"""Titles of the releases for which a bundle can be made."""

MAX_SAMPLE_BYTES = 64 << 20
"""Maximum size in bytes of the inputs and reference outputs in a bundle. The first feed is always included."""

MAX_FEEDS = 4

TOLERANCE_FACTOR, FLOAT_TOLERANCE_SHARE, INTEGER_TOLERANCE_SHARE = 2.0, 1e-4, 1e-2
"""Terms of the tolerance of an output: a multiple of the simulated error, plus a share of the mean magnitude for floats
or for integers."""

TF32_SCRIPT_FILE, TF32_SCRIPT = (
    "no_tf32.py",
    '''\
"""Clears TF32 in TensorRT-RTX, called by Polygraphy."""

import tensorrt_rtx as trt


def postprocess_config(builder, network, config):
    config.clear_flag(trt.BuilderFlag.TF32)
''',
)
LAYER_SCRIPT_FILE, LAYER_SCRIPT = (
    "layers.py",
    '''\
"""Writes the layers of an engine as JSON: python3 layers.py ENGINE OUT [PLUGINS...]"""

import ctypes
import sys

import {module} as trt

for library in sys.argv[3:]:
    ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
logger = trt.Logger(trt.Logger.ERROR)
{plugins}runtime = trt.Runtime(logger)
with open(sys.argv[1], "rb") as stream:
    engine = runtime.deserialize_cuda_engine(stream.read())
if engine is None:
    sys.exit(f"{{sys.argv[1]}} cannot be loaded here")
inspector, context = engine.create_engine_inspector(), engine.create_execution_context()
for index in range(engine.num_io_tensors):
    name = engine.get_tensor_name(index)
    if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT and -1 in tuple(engine.get_tensor_shape(name)):
        context.set_input_shape(name, engine.get_tensor_profile_shape(name, 0)[1])
inspector.execution_context = context  # types of dynamic networks are known only in a context with shapes
text = inspector.get_engine_information(trt.LayerInformationFormat.JSON)
with open(sys.argv[2], "w", encoding="utf-8") as stream:
    stream.write(text)
''',
)
NETWORK_FILE, ENGINE_FILE, TIMING_CACHE_FILE, PRECISION_SCRIPT_FILE = (
    "network.onnx",
    "model.engine",
    "timing.cache",
    "precisions.py",
)
INPUTS_FILE, REFERENCE_FILE = "inputs.json", "reference.json"
CHECKSUM_FILE = "SHA256SUMS"
"""Checksums of the other files in the form of sha256sum, without `TIMING_CACHE_FILE`, which each build extends."""


@dataclass(frozen=True)
class SampleRun:
    """The inputs of one feed in a bundle, with the outputs of FP32 and of the simulated config."""

    inputs: Mapping[str, np.ndarray]
    reference: Mapping[str, np.ndarray]
    simulated: Mapping[str, np.ndarray]

    @property
    def size_bytes(self) -> int:
        """The size in bytes of the inputs and reference outputs."""
        return sum(array.nbytes for array in (*self.inputs.values(), *self.reference.values()))


@dataclass(frozen=True)
class BundleContents:
    """The config, ranges, options and samples from which a bundle is written.

    Attributes:
        release: A name of `RELEASE_TITLES`.
        ranges: Calibrated amax by tensor name, in the tensors' own units.
        config_text: The config as precision.json.
        range_method: The method of the ranges; "" if unknown.
        profile: The optimization profile by input name.
        builder_options: The options of the builder. Their files are copied into the folder.
        sample_source: The source of the samples, as text.
        sample_runs: The samples from which the tolerance is computed.
        includes_samples: True if inputs and reference outputs are written into the folder.
        comparison_report: The report of the measured results in Markdown.
    """

    release: str
    network: Network
    config: PrecisionConfig
    ranges: Mapping[str, float]
    config_text: str
    range_method: str = ""
    profile: Mapping[str, ShapeRange] = field(default_factory=dict)
    builder_options: BuilderOptions = field(default_factory=BuilderOptions)
    sample_source: str = ""
    sample_runs: Sequence[SampleRun] = ()
    includes_samples: bool = True
    comparison_report: str = ""


def compute_tolerances(
    sample_runs: Sequence[SampleRun], mask_magnitudes: Mapping[str, float] | None = None
) -> tuple[dict[str, float], list[str]]:
    """Returns the tolerated mean absolute error of an engine at each output, and the outputs that cannot be verified.

    Args:
        mask_magnitudes: The magnitude from which values count as masks, by output. Masks are excluded from means.

    Returns:
        The tolerances in the outputs' units, the largest over all iterations. Then the names of outputs whose reference
            contains NaN, infinities or masks, or which were not simulated.
    """
    tolerance_by_output: dict[str, float] = {}
    unjudged_outputs: dict[str, None] = {}
    for sample_run in sample_runs:
        for name, reference in sample_run.reference.items():
            wide_reference = reference.astype(np.float64)
            mask_magnitude = (mask_magnitudes or {}).get(name) or np.inf
            if not (np.abs(wide_reference) < mask_magnitude).all() or name not in sample_run.simulated:
                unjudged_outputs[name] = None
                continue
            error = (
                float(np.abs(wide_reference - sample_run.simulated[name].astype(np.float64)).mean())
                if wide_reference.size
                else 0.0
            )
            share = FLOAT_TOLERANCE_SHARE if reference.dtype.kind == "f" else INTEGER_TOLERANCE_SHARE
            floor = share * float(np.abs(wide_reference).mean()) if wide_reference.size else 0.0
            tolerance = (TOLERANCE_FACTOR * error if np.isfinite(error) else 0.0) + floor
            tolerance_by_output[name] = max(tolerance_by_output.get(name, 0.0), tolerance)
    # An output that is 0 everywhere has no floor. Its tolerance is a tiny positive number instead of 0.
    return (
        {name: value or 1e-12 for name, value in tolerance_by_output.items() if name not in unjudged_outputs},
        list(unjudged_outputs),
    )


def write_bundle(folder: Path, bundle: BundleContents) -> list[Path]:
    """Writes a bundle into an existing empty folder and returns the paths of its files.

    Raises:
        InputError: The release does not support the config or a builder option, a range is missing, or a file cannot be
            written.
    """
    network, config, release = bundle.network, bundle.config, bundle.release
    bundle.builder_options.check_release_support(release, RELEASE_TITLES[release])
    if bundle.builder_options.strip_plan:
        raise InputError(
            "a bundle's engine has its weights",
            "verify.sh checks it, and an engine without weights yields zeros until it is refitted",
            "Leave out --stripWeights; production gives it to "
            "build.sh when it is verified: sh build.sh "
            "--stripWeights.",
        )
    if string_inputs := [info.name for info in network.inputs if info.dtype.hasobject]:
        raise InputError(
            f"no TensorRT takes input {escape_hidden_characters(string_inputs[0])}",
            "it holds strings",
            "Export the network without the part that reads them.",
        )
    typed_network, constraints = _lower_network(bundle)
    builder_options = _copy_builder_files(folder, bundle.builder_options)
    export_typed_network(typed_network.model, network, folder / NETWORK_FILE)
    write_file_atomically(folder / "precision.json", bundle.config_text)
    requested_config = replace_all_file_precisions(network, config)
    if used_ranges := compute_activation_ranges(network, bundle.ranges, requested_config.without_fixed_ranges()):
        write_calibration_cache(folder / "ranges.cache", used_ranges, calibration_algorithm(bundle.range_method))
    title = f"Builds {network.name} in the precisions of its config."
    profile = {
        info.name: bundle.profile[info.name]
        for info in network.inputs
        if info.name in bundle.profile and info.has_open_size
    }
    more_profiles = parse_additional_profiles(builder_options.profiles, network.inputs, profile)
    if constraints is not None and constraints.needs_obey_constraints_flag:
        command = polygraphy_command(
            constraints,
            PRECISION_SCRIPT_FILE,
            TrtexecFiles(base=NETWORK_FILE, engine=ENGINE_FILE),
            shapes=profile,
            more_profiles=more_profiles,
            builder_options=builder_options,
        )
        omissions = implicit_omission_record(network, config, NETWORK_FILE, constraints, used_ranges)
        write_file_atomically(folder / PRECISION_SCRIPT_FILE, polygraphy_script(constraints, title, command, omissions))
    if release == "rtx" and not config.tf32:
        write_file_atomically(folder / TF32_SCRIPT_FILE, TF32_SCRIPT)
    if release in ("8.6", "rtx"):
        write_file_atomically(
            folder / LAYER_SCRIPT_FILE,
            LAYER_SCRIPT.format(
                module="tensorrt_rtx" if release == "rtx" else "tensorrt",
                plugins="" if release == "rtx" else 'trt.init_libnvinfer_plugins(logger, "")\n',
            ),
        )
    write_file_atomically(folder / "build.sh", _build_script_text(bundle, constraints, profile, builder_options, title))
    tolerances, unjudged_outputs = compute_tolerances(
        bundle.sample_runs, {item.name: network.mask_magnitude_threshold(item.name) for item in network.outputs}
    )
    judged_runs = [
        SampleRun(item.inputs, {name: item.reference[name] for name in tolerances}, {}) for item in bundle.sample_runs
    ]
    if bundle.includes_samples and tolerances:
        write_samples(folder, judged_runs, writes_raw_files=release == "11")
    if tolerances:
        write_file_atomically(folder / "verify.sh", _verify_script_text(bundle, judged_runs, tolerances))
    notes = [*config_barrier_notes(network, config), onnxruntime_loading_note(typed_network.model)]
    write_file_atomically(folder / "report.md", _report_text(folder, bundle, tolerances, unjudged_outputs, notes))
    if tolerances:
        write_file_atomically(folder / CHECKSUM_FILE, checksum_text(folder))
    return sorted(path for path in folder.rglob("*") if path.is_file())


def checksum_text(folder: Path) -> str:
    """Returns the text of `CHECKSUM_FILE`. A line begins with a backslash if characters of its file name are escaped."""
    lines = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != TIMING_CACHE_FILE):
        name = path.relative_to(folder).as_posix()
        escaped_name = name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
        lines.append(f"{'' if escaped_name == name else chr(92)}{file_sha256(path)}  {escaped_name}\n")
    return "".join(lines)


def _lower_network(bundle: BundleContents) -> tuple[TypedNetwork, ImplicitQuantizationConstraints | None]:
    """Lowers the config of a bundle; returns the typed network, and the layer constraints for TensorRT 8.6 or None.

    Raises:
        InputError: The release does not support the config.
    """
    network, config, ranges = bundle.network, bundle.config, bundle.ranges
    if bundle.release != "rtx":
        refuse_cubic_grid_samples(network, RELEASE_TITLES[bundle.release])
    if bundle.release != "8.6":
        return lower_from_source_model(network, config, ranges), None
    if Precision.BF16 in {*config.precision_by_group(network).values()}:
        raise InputError(
            "this config contains BF16",
            "TensorRT 8.6 has no BF16",
            "Use FP16 or FP32 for those layers, or make a bundle for 10 or 11.",
        )
    typed_network, constraints = lower_to_explicit_quantization(network, config, ranges)
    return typed_network, ImplicitQuantizationConstraints(
        constraints.precisions,
        constraints.output_types,
        {},
        constraints.precision_flags,
        layer_names=constraints.layer_names,
        model=typed_network.model,
        estimated_ranges=(),
        allows_tf32=config.tf32,
        refused_layers={},
        notes=tuple(typed_network.notes),
    )


def _copy_builder_files(folder: Path, builder_options: BuilderOptions) -> BuilderOptions:
    """Copies the timing cache and the plugins into the folder; returns builder options with the new paths."""
    if builder_options.timing_cache and Path(builder_options.timing_cache).is_file():
        shutil.copyfile(builder_options.timing_cache, folder / TIMING_CACHE_FILE)
    plugin_paths = _bundled_plugin_paths(builder_options)
    for plugin_path, path in zip(plugin_paths, builder_options.plugins, strict=True):
        check_regular_file(Path(path))
        (folder / "plugins").mkdir(exist_ok=True)
        shutil.copyfile(path, folder / plugin_path)
    return replace(builder_options, timing_cache=TIMING_CACHE_FILE, plugins=plugin_paths)


def _bundled_plugin_paths(builder_options: BuilderOptions) -> tuple[str, ...]:
    """Returns the paths of the plugin libraries relative to the folder of the bundle."""
    return tuple(f"./plugins/{index}-{Path(path).name}" for index, path in enumerate(builder_options.plugins))


# -- scripts --------------------------------------------------------------------------------------------------------

_SCRIPT_HEADER = """\
#!/bin/sh
# {title}
# For {release}. Made by trt-tui.
{usage}
set -eu
cd -- "$(dirname -- "$0")"
"""


def _build_script_text(
    bundle: BundleContents,
    constraints: ImplicitQuantizationConstraints | None,
    shapes: Mapping[str, ShapeRange],
    builder_options: BuilderOptions,
    title: str,
) -> str:
    """Returns the text of `build.sh`, which builds the engine.

    The script calls trtexec for TensorRT 10 and 11, and Polygraphy for TensorRT 8.6 and TensorRT-RTX. It also writes
    the layers of the engine.
    """
    release = bundle.release
    text = _SCRIPT_HEADER.format(
        title=escape_hidden_characters(title),
        release=RELEASE_TITLES[release],
        usage="#\n#   sh build.sh [more options]",
    )
    if release in ("10", "11"):
        lines = build_command_lines_for_constraints(
            bundle.network,
            bundle.config,
            files=TrtexecFiles(typed=NETWORK_FILE, engine=ENGINE_FILE),
            shapes=shapes,
            builder_options=builder_options,
        )
        command_line_10 = next(command_line for command_line in lines if command_line.name == release)
        comments = "".join(f"# {escape_hidden_characters(comment)}\n" for comment in command_line_10.comments)
        comments += f"{LAYERS_COMMENT}\n"
        return (
            f"{text}\n{comments}# TRTEXEC names another trtexec.\n"
            + '"${TRTEXEC:-trtexec}" '
            + quote_command(command_line_10.argv[1:])
            + ' "$@"\n'
        )
    empty_constraints = ImplicitQuantizationConstraints(
        {},
        {},
        {},
        frozenset(),
        model=bundle.network.model,
        estimated_ranges=(),
        allows_tf32=bundle.config.tf32,
        refused_layers={},
    )
    active_constraints = constraints if constraints is not None and constraints.needs_obey_constraints_flag else None
    argv = polygraphy_command(
        active_constraints or empty_constraints,
        PRECISION_SCRIPT_FILE if active_constraints else "",
        TrtexecFiles(base=NETWORK_FILE, engine=ENGINE_FILE),
        shapes=shapes,
        builder_options=replace(builder_options, timing_cache=""),
        more_profiles=parse_additional_profiles(builder_options.profiles, bundle.network.inputs, shapes),
    )
    argv = (*argv, "--profiling-verbosity", "detailed")
    graph_file = f"{ENGINE_FILE}{GRAPH_SUFFIX}"
    layer_command = shlex.join([LAYER_SCRIPT_FILE, ENGINE_FILE, graph_file, *builder_options.plugins])
    layers_text = (
        "# The layers of the engine, for trt-tui inspect --engine. PYTHON is the Python of Polygraphy.\n"
        f'"${{PYTHON:-python3}}" {layer_command} ||\n'
        f'    echo "{graph_file} is not written; the engine is. {_PYTHON_HINT}" >&2\n'
    )
    if release == "rtx":
        clear_options = () if bundle.config.tf32 else ("--trt-config-postprocess-script", TF32_SCRIPT_FILE)
        note = (
            f"# TF32 is on by default, and Polygraphy leaves it: {TF32_SCRIPT_FILE} clears it.\n"
            if clear_options
            else ""
        )
        return (
            f"{text}\n{note}export POLYGRAPHY_USE_TENSORRT_RTX=1\npolygraphy convert "
            + quote_command((*argv[2:], *clear_options))
            + f' "$@"\n{layers_text}'
        )
    text += "\n# Polygraphy clears TF32 unless it is given --tf32.\n"
    # Polygraphy refuses to load a timing cache that does not exist yet.
    return (
        f"{text}timings=\n[ ! -f "
        f"{TIMING_CACHE_FILE} ] || timings='--load-timing-cache {TIMING_CACHE_FILE}'\npolygraphy convert "
        + quote_command((*argv[2:], "--save-timing-cache", TIMING_CACHE_FILE))
        + f' $timings "$@"\n{layers_text}'
    )


def _verify_script_text(
    bundle: BundleContents, sample_runs: Sequence[SampleRun], tolerances: Mapping[str, float]
) -> str:
    """Returns the text of `verify.sh`, which compares the engine with the reference outputs.

    The exit code of the script shows whether the errors are within the tolerances.
    """
    usage = """\
#
#   sh verify.sh             the engine that build.sh has made, with Polygraphy
#   sh verify.sh --onnxrt    network.onnx on ONNX Runtime: whether these files are whole
#                            (its release 1.24.1 truncates what it quantizes from FP16 and may fail them)
{more}#
# Exit code 0: each output is within its tolerance, in mean absolute error against FP32, on every sample.
# 1: it is not, nothing could be run, or a file is not as exported. 2: there is nothing to verify with."""
    trtexec_usage = (
        "#   sh verify.sh --trtexec   with trtexec alone, 11.1 or later; done where there is no polygraphy, too\n"
    )
    is_release_11 = bundle.release == "11"
    text = _SCRIPT_HEADER.format(
        title=f"Verifies the engine of {escape_hidden_characters(bundle.network.name)}.",
        release=RELEASE_TITLES[bundle.release],
        usage=usage.format(more=trtexec_usage if is_release_11 else ""),
    )
    samples_folder = "samples" if is_release_11 else INPUTS_FILE
    text += f"""
if [ ! -e {INPUTS_FILE} ] || [ ! -e {REFERENCE_FILE} ]; then
    cat >&2 <<'END'
{_missing_samples_text(bundle, tolerances)}
END
    exit 2
fi
if ! command -v sha256sum >/dev/null; then
    echo "sha256sum is missing: the files are not compared with the export" >&2
elif [ -e {CHECKSUM_FILE} ] && ! sha256sum --check --quiet {CHECKSUM_FILE} >&2; then
    echo "A file is not as exported. Export the bundle again, or remove {CHECKSUM_FILE} if the change is intended." >&2
    exit 1
fi
check() {{
    polygraphy run "$@" --load-inputs {INPUTS_FILE} --load-outputs {REFERENCE_FILE} \\
        --check-error-stat mean --rtol 0 --atol \\
        {tolerance_lines(tolerances)} || exit 1
}}
mode=${{1:---engine}}
"""
    if is_release_11:
        text += '[ "$mode" != --engine ] || command -v polygraphy >/dev/null || mode=--trtexec\n'
    rtx = "    export POLYGRAPHY_USE_TENSORRT_RTX=1\n" if bundle.release == "rtx" else ""
    plugins = "".join(f" --plugins {shlex.quote(path)}" for path in _bundled_plugin_paths(bundle.builder_options))
    text += f"""\
case "$mode" in
--engine)
{rtx}    check {ENGINE_FILE} --model-type engine --trt{plugins}
    ;;
--onnxrt)
    # Its optimizer would compute Q and DQ differently from TensorRT.
    check {NETWORK_FILE} --onnxrt --graph-optimization-level ORT_DISABLE_ALL
    ;;
"""
    if is_release_11:
        text += "--trtexec)\n" + _trtexec_check_text(bundle, sample_runs, tolerances, samples_folder) + "    ;;\n"
    return (
        text
        + """*)
    echo "usage: sh $0 [--engine|--onnxrt]" >&2
    exit 2
    ;;
esac
"""
    )


def _missing_samples_text(bundle: BundleContents, tolerances: Mapping[str, float]) -> str:
    """Returns the message of `verify.sh` for a folder without samples, with commands that create samples.

    A good engine passes with either command.
    """
    raw_samples = " and the folder whole/samples" if bundle.release == "11" else ""
    outputs = " ".join(shlex.quote(escape_hidden_characters(name)) for name in tolerances)
    return f"""\
There are no samples in this folder. MODEL is {escape_hidden_characters(bundle.network.name)} in FP32. In this folder, make
the samples of the export again, from its data D, and copy {INPUTS_FILE}, {REFERENCE_FILE}{raw_samples} here:

    trt-tui bundle MODEL --config precision.json --data D --for {bundle.release} -o whole

Or put other inputs of the same kind here as {INPUTS_FILE}, as polygraphy run --save-inputs writes it, and compute:

    polygraphy run MODEL --onnxrt --onnx-outputs {outputs} --load-inputs {INPUTS_FILE} --save-outputs {REFERENCE_FILE}"""  # noqa: E501


def _trtexec_check_text(
    bundle: BundleContents, sample_runs: Sequence[SampleRun], tolerances: Mapping[str, float], samples_folder: str
) -> str:
    """Returns one trtexec command for each sample and output, because trtexec has one threshold for all outputs."""
    names = {*tolerances, *(name for sample_run in sample_runs for name in sample_run.inputs)}
    if any(character in name for name in names for character in ",:'"):
        return (
            '    echo "trtexec splits the names of this network\'s inputs and outputs: use Polygraphy" >&2\n'
            "    exit 2\n"
        )
    lines = [
        f"    [ -d "
        f'{samples_folder} ] || {{ echo "no folder {samples_folder}: an export with samples has it" >&2; exit 2; }}'
    ]
    common = [f"--loadEngine={ENGINE_FILE}", "--iterations=1", "--duration=0", "--warmUp=0", "--accuracyAlgorithm=l1"]
    common += [f"--staticPlugins={path}" for path in _bundled_plugin_paths(bundle.builder_options)]
    for run_index, sample_run in enumerate(sample_runs):
        input_files = ",".join(
            f"{name}:{samples_folder}/{run_index}.in{tensor_index}.bin"
            for tensor_index, name in enumerate(sample_run.inputs)
        )
        shapes = ",".join(
            f"{info.name}:{'x'.join(map(str, sample_run.inputs[info.name].shape))}"
            for info in bundle.network.inputs
            if info.has_open_size and sample_run.inputs[info.name].ndim
        )
        for tensor_index, (name, value) in enumerate(tolerances.items()):
            argv = [
                *common,
                f"--loadInputs={input_files}",
                *([f"--shapes={shapes}"] if shapes else []),
                f"--loadRefOutputs={name}:{samples_folder}/{run_index}.out{tensor_index}.bin",
                f"--accuracyThreshold={value:.6g}",
            ]
            lines.append('    "${TRTEXEC:-trtexec}" ' + quote_command(argv))
    return "\n".join(lines) + "\n"


# -- samples --------------------------------------------------------------------------------------------------------


def write_samples(folder: Path, sample_runs: Sequence[SampleRun], writes_raw_files: bool = False) -> None:
    """Writes inputs and FP32 outputs in the format that Polygraphy reads.

    Args:
        writes_raw_files: True to write each array also as raw bytes, which trtexec reads.
    """
    with open_atomic_writer(folder / INPUTS_FILE) as stream:
        write_polygraphy_inputs(stream, [sample_run.inputs for sample_run in sample_runs])
    with open_atomic_writer(folder / REFERENCE_FILE) as stream:
        list(write_run_results(stream, [("fp32", [sample_run.reference for sample_run in sample_runs])]))
    if writes_raw_files:
        (folder / "samples").mkdir()
        for run_index, sample_run in enumerate(sample_runs):
            for role, arrays in (("in", sample_run.inputs), ("out", sample_run.reference)):
                for tensor_index, array in enumerate(arrays.values()):
                    write_file_atomically(
                        folder / "samples" / f"{run_index}.{role}{tensor_index}.bin",
                        np.ascontiguousarray(array).tobytes(),
                    )


# -- the report -----------------------------------------------------------------------------------------------------

_FILE_DESCRIPTIONS = {
    NETWORK_FILE: "the network to build from",
    "precision.json": "the config, for trt-tui",
    "ranges.cache": "the ranges as a calibration cache, for information; Q and DQ nodes in the network contain them",
    TIMING_CACHE_FILE: "measured tactics, valid for one GPU and release",
    PRECISION_SCRIPT_FILE: "layer constraints for TensorRT 8.6",
    TF32_SCRIPT_FILE: "clears TF32",
    "build.sh": "builds model.engine",
    INPUTS_FILE: "samples, as Polygraphy reads them",
    REFERENCE_FILE: "their outputs in FP32",
    "verify.sh": "checks the engine",
    CHECKSUM_FILE: "checksums of the files, which verify.sh compares",
    "samples": "the same as raw files, for trtexec",
    "plugins": "libraries of plugins",
}


def _report_text(
    folder: Path,
    bundle: BundleContents,
    tolerances: Mapping[str, float],
    unjudged_outputs: Sequence[str],
    notes: Sequence[str],
) -> str:
    """Returns the text of `report.md`: the comparison, the list of files, and the tolerances of `verify.sh`."""
    file_names = {path.name for path in folder.iterdir()} | {"report.md", *([CHECKSUM_FILE] if tolerances else [])}
    unverified_lines = (
        [
            f"Not verified, since FP32 itself has NaN, infinities or masks there: {', '.join(unjudged_outputs)}. "
            "trt-tui compare --engines measures the values that are not masked."
        ]
        if unjudged_outputs
        else []
    )
    sections = [
        Section(
            f"This folder, for {RELEASE_TITLES[bundle.release]}",
            [
                [f"sh build.sh builds the engine, {'sh verify.sh checks it' if tolerances else 'there is no check'}."],
                Table([("file", "what"), *(row for row in _FILE_DESCRIPTIONS.items() if row[0] in file_names)]),
            ],
        ),
        Section(
            "Tolerances of verify.sh",
            [
                [
                    f"Mean absolute error against FP32 on {counted_noun_text(len(bundle.sample_runs), 'feed')} of "
                    f"{bundle.sample_source}: {number_text(TOLERANCE_FACTOR)} times that of the simulation, and a share of "
                    f"the output's mean magnitude ({FLOAT_TOLERANCE_SHARE:g}, for integers {INTEGER_TOLERANCE_SHARE:g})."
                ],
                Table([("output", "at most"), *((name, f"{value:.4g}") for name, value in tolerances.items())]),
            ]
            if tolerances
            else [],
        ),
        Section("Notes", [[*unverified_lines, *filter(None, notes)]]),
    ]
    return "\n".join([bundle.comparison_report, *sections_markdown(sections)]).rstrip() + "\n"


FP32_FILE, TYPED_FILE = "fp32.onnx", "typed.onnx"

_SCRIPT_TEMPLATE = """\
#!/bin/sh
# From {start}
# to {stop}
# of {network}. Made by trt-tui.
#
#   sh run.sh             typed.onnx in TensorRT against the expected outputs
#   sh run.sh --onnxrt    the same on ONNX Runtime: what rounding alone does
#                         (its release 1.24.1 truncates what it quantizes from FP16, which adds errors)
#   sh run.sh --reduce    reduced.onnx: the smallest piece that TensorRT and ONNX Runtime compute differently
#                         (needs onnx_graphsurgeon)
set -eu
cd -- "$(dirname -- "$0")"
judge() {{
    polygraphy run "$@" --check-error-stat mean --rtol 0 --atol {atol}
}}
case "${{1:-}}" in
"")
    judge typed.onnx --trt --strongly-typed{profile} --load-inputs inputs.json --load-outputs reference.json
    ;;
--onnxrt)
    # Its optimizer would compute Q and DQ otherwise than TensorRT does.
    judge typed.onnx --onnxrt --graph-optimization-level ORT_DISABLE_ALL --load-inputs inputs.json \\
        --load-outputs reference.json
    ;;
--reduce)
    dump() {{
        polygraphy run typed.onnx --onnxrt --graph-optimization-level ORT_DISABLE_ALL --load-inputs inputs.json \\
            --save-outputs layers.json --onnx-outputs "$@"
    }}
    dump '*' || dump mark all  # as releases before 0.50 call it
    polygraphy data merge inputs.json layers.json -o layers-in.json ||
        polygraphy data to-input inputs.json layers.json -o layers-in.json  # as older releases call it
    polygraphy debug reduce typed.onnx -o reduced.onnx --mode=bisect --load-inputs layers-in.json --check \\
        polygraphy run polygraphy_debug.onnx --trt --strongly-typed{profile} --load-inputs layers-in.json \\
        --load-outputs layers.json --check-error-stat mean --rtol 0 --atol {largest}
    ;;
*)
    echo "usage: sh $0 [--onnxrt|--reduce]" >&2
    exit 2
    ;;
esac
"""


def check_tensor_names(network: Network, names: Sequence[str]) -> None:
    """Checks that a network contains the named tensors.

    Raises:
        InputError: A tensor does not exist. The error lists similar names.
    """
    tensor_names = _list_tensors(network)
    for name in names:
        if name not in tensor_names:
            similar_names = (
                difflib.get_close_matches(name, tensor_names, 3, 0.5)
                or [tensor_name for tensor_name in tensor_names if name in tensor_name][:3]
            )
            raise InputError(
                f"{network.name} has no tensor {name}",
                f"Did you mean {', '.join(similar_names)}?" if similar_names else "its nodes have other outputs",
                "Name inputs of the network or outputs of nodes: trt-tui inspect --nodes lists nodes.",
            )


def find_group_boundary_tensors(network: Network, group: FusionGroup) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Finds the tensors that a group reads from other layers, and its final tensor."""
    group_tensors = {tensor for name in group.layers for tensor in network.get_layer(name).outputs}
    tensor_names = set(_list_tensors(network))
    input_tensors = dict.fromkeys(
        tensor
        for name in group.layers
        for tensor in network.get_layer(name).inputs
        if tensor in tensor_names and tensor not in group_tensors
    )
    return tuple(input_tensors), (group.final_tensor,)


def _list_tensors(network: Network) -> list[str]:
    return [
        *(info.name for info in network.inputs),
        *(tensor for layer in network.layers for tensor in layer.outputs if tensor),
    ]


def extract_subgraph(model: ir.Model, start_tensors: Sequence[str], end_tensors: Sequence[str]) -> ir.Model:
    """Extracts the part of a model between the given tensors. FP16 and BF16 inputs and outputs become FP32.

    Raises:
        InputError: The part needs further tensors.
    """
    try:
        graph = extract(model.graph, list(start_tensors), list(end_tensors))
    except ValueError as error:
        raise InputError(
            f"{name_list_text(list(end_tensors))} cannot be computed from {name_list_text(list(start_tensors))} alone",
            str(error),
            "Name every tensor that the subgraph reads, separated by commas, with --from.",
        ) from None
    half_types = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    for index, value in enumerate(graph.inputs):
        if value.dtype in half_types:
            fp32_input = ir.Value(name=value.name, type=ir.TensorType(ir.DataType.FLOAT), shape=value.shape)
            graph.inputs[index] = fp32_input
            cast = ir.node(
                "Cast",
                [fp32_input],
                {"to": int(value.dtype)},
                outputs=[ir.Value(name=f"{value.name}_lowered", type=value.type, shape=value.shape)],
            )
            cast.name = f"{value.name}_lowered"
            value.replace_all_uses_with(cast.outputs[0])
            graph.insert_before(graph[0], cast)
    for index, value in enumerate(graph.outputs):
        if value.dtype in half_types:
            name, value.name = value.name, f"{value.name}_lowered"
            cast = ir.node(
                "Cast",
                [value],
                {"to": int(ir.DataType.FLOAT)},
                outputs=[ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=value.shape)],
            )
            cast.name = f"{name}_raised"
            graph.append(cast)
            graph.outputs[index] = cast.outputs[0]
    graph.opset_imports.update(model.opset_imports)
    return ir.Model(graph, ir_version=model.ir_version, functions=list(model.functions.values()))


def write_subgraph(
    folder: Path,
    network: Network,
    models: Mapping[str, ir.Model],
    start_tensors: Sequence[str],
    end_tensors: Sequence[str],
    sample_runs: Sequence[SampleRun],
) -> list[Path]:
    """Writes the subgraph export into an existing empty folder and returns the paths of its files.

    Args:
        models: The whole network by file name: `FP32_FILE` and `TYPED_FILE`.
        sample_runs: Inputs of the subgraph, with the expected outputs and those of the typed subgraph.

    Raises:
        InputError: The errors of `extract_subgraph`.
    """
    dynamic_inputs: dict[str, None] = {}
    for name, model in models.items():
        subgraph = extract_subgraph(model, start_tensors, end_tensors)
        dynamic_inputs |= dict.fromkeys(
            value.name or ""
            for value in subgraph.graph.inputs
            if value.shape is None or not all(isinstance(size, int) for size in value.shape)
        )
        export_typed_network(subgraph, network, folder / name)
    write_samples(folder, sample_runs)
    tolerances, _ = compute_tolerances(sample_runs)
    largest = max(tolerances.values(), default=1e-3)
    write_file_atomically(
        folder / "run.sh",
        _SCRIPT_TEMPLATE.format(
            start=escape_hidden_characters(", ".join(start_tensors)),
            stop=escape_hidden_characters(", ".join(end_tensors)),
            network=escape_hidden_characters(network.name),
            profile="".join(f" {flag}" for flag in _shape_profile_arguments(dynamic_inputs, sample_runs)),
            atol=tolerance_lines(tolerances) or "0",
            largest=f"{largest:.6g}",
        ),
    )
    return sorted(folder.iterdir())


def _shape_profile_arguments(names: Iterable[str], sample_runs: Sequence[SampleRun]) -> list[str]:
    """Returns Polygraphy arguments for the shapes of inputs in the samples, quoted for a shell.

    Without them Polygraphy builds a profile of size 1, with which the samples cannot be executed.
    """
    shapes = {
        name: [np.shape(sample_run.inputs[name]) for sample_run in sample_runs if name in sample_run.inputs]
        for name in names
    }
    return [
        argument
        for option, choose in (("min", np.min), ("opt", lambda sizes, axis: sizes[0]), ("max", np.max))
        if any(shapes.values())
        for argument in (
            f"--trt-{option}-shapes",
            *(
                shlex.quote(f"{name}:[{','.join(map(str, choose(np.array(sizes), axis=0)))}]")
                for name, sizes in shapes.items()
                if sizes
            ),
        )
    ]
