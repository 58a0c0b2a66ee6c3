"""A folder that carries a config into production: everything that a build machine needs, and what checks its engine.

`verify.sh` holds the engine against the FP32 outputs of a few samples by the mean absolute error of each output, which
Polygraphy (``--check-error-stat mean``) and trtexec of 11.1 and later (``--accuracyAlgorithm=l1``) both compute. The
tolerance is twice what the simulation of the config has on the same samples (engines in FP16 came out up to 1.4 dB
below their simulation, a factor of 1.2), and what FP32 itself may differ by.
"""

import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from trt_tui.core.calibration.cache import algorithm_of, write_cache
from trt_tui.core.calibration.statistics import TensorStats
from trt_tui.core.data.runresults import ResultsWriter, write_inputs
from trt_tui.core.data.shapes import ShapeRange, further_profiles
from trt_tui.core.exporters.cpp import builder_fragment
from trt_tui.core.exporters.figures import figures
from trt_tui.core.exporters.left_out import left_out_weak
from trt_tui.core.exporters.markdown import code_cell, comparison_markdown, markdown_table, text_cell
from trt_tui.core.exporters.onnx import export_typed, loading_note
from trt_tui.core.exporters.polygraphy import polygraphy_command, tolerance_lines, write_polygraphy_script
from trt_tui.core.exporters.trtexec import Files, command_lines, quoted_lines
from trt_tui.core.lowering.applied import hidden_note
from trt_tui.core.lowering.lowered import told_as
from trt_tui.core.lowering.releases import refuse_cubic_grids
from trt_tui.core.lowering.scales import activation_ranges
from trt_tui.core.lowering.strong import lower_strong
from trt_tui.core.lowering.told import lower_told
from trt_tui.core.lowering.typed import Typed
from trt_tui.core.lowering.weak import Weak
from trt_tui.core.moves.barrier import Barrier
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.smooth import Smooth
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.core.production import Production
from trt_tui.core.runner import TensorInfo
from trt_tui.errors import InputError
from trt_tui.files.reading import regular
from trt_tui.files.writing import atomic, write_atomic
from trt_tui.words import number, plural, visible

RELEASES = {"8.6": "TensorRT 8.6", "10": "TensorRT 10, strongly typed",
            "11": "TensorRT 11, where every network is strongly typed", "rtx": "TensorRT-RTX"}
"""What a bundle can be for, in words."""

MOST_SAMPLE_BYTES = 64 << 20
"""Inputs and reference outputs of a bundle take at most so many bytes, but for those of the first feed."""

MOST_FEEDS = 4

SLACK, FP32_SHARE, INTEGER_SHARE = 2.0, 1e-4, 1e-2
"""An output may be off by so many times the simulated error, and by these shares of its mean magnitude."""

CLEARING, NO_TF32 = "no_tf32.py", '''\
"""Clears TF32 in TensorRT-RTX, called by Polygraphy."""

import tensorrt_rtx as trt


def postprocess_config(builder, network, config):
    config.clear_flag(trt.BuilderFlag.TF32)
'''
NETWORK, ENGINE, TIMINGS, SCRIPT = "network.onnx", "model.engine", "timing.cache", "precisions.py"
INPUTS, REFERENCE = "inputs.json", "reference.json"


@dataclass(frozen=True)
class Iteration:
    """One run: what goes in, and what FP32 and the simulation of the config make of it."""

    inputs: Mapping[str, np.ndarray]
    reference: Mapping[str, np.ndarray]
    simulated: Mapping[str, np.ndarray]

    @property
    def size(self) -> int:
        """Bytes that it takes in a bundle."""
        return sum(array.nbytes for array in (*self.inputs.values(), *self.reference.values()))


@dataclass(frozen=True)
class Bundle:
    """What goes into a folder.

    Attributes:
        release: A name of `RELEASES`.
        ranges: Calibrated amax by tensor name, in the tensors' own units.
        config_text: The config as precision.json.
        method: How the ranges were measured; "" where nobody knows.
        shapes: The optimization profile by input name.
        production: How the builder is to work; its files are copied into the folder.
        source: What the samples are, in words.
        iterations: The samples, by which the tolerance is set.
        with_samples: Whether inputs and outputs go into the folder.
        comparison: What was measured, as `compare --json` writes it.
        histograms: Tensors of layers that lose, with their statistics and ranges.
    """

    release: str
    network: Network
    config: PrecisionConfig
    ranges: Mapping[str, float]
    config_text: str
    method: str = ""
    shapes: Mapping[str, ShapeRange] = field(default_factory=dict)
    production: Production = field(default_factory=Production)
    source: str = ""
    iterations: Sequence[Iteration] = ()
    with_samples: bool = True
    comparison: Mapping[str, Any] = field(default_factory=dict)
    histograms: Sequence[tuple[str, TensorStats, float | None]] = ()


def tolerances(iterations: Sequence[Iteration], masked: Mapping[str, float] | None = None
               ) -> tuple[dict[str, float], list[str]]:
    """The mean absolute error that an engine may have at each output, and the outputs that cannot be judged so.

    Args:
        masked: From what magnitude values of an output are masks, where there are any: no mean is taken with them.

    Returns:
        Tolerances in the outputs' units, the largest of all iterations; names of outputs whose reference has NaN,
        infinities or masks, or cannot be known.
    """
    allowed: dict[str, float] = {}
    unjudged: dict[str, None] = {}
    for one in iterations:
        for name, reference in one.reference.items():
            wide = reference.astype(np.float64)
            least = (masked or {}).get(name) or np.inf
            if not (np.abs(wide) < least).all() or name not in one.simulated:
                unjudged[name] = None
                continue
            error = float(np.abs(wide - one.simulated[name].astype(np.float64)).mean()) if wide.size else 0.0
            share = FP32_SHARE if reference.dtype.kind == "f" else INTEGER_SHARE
            floor = share * float(np.abs(wide).mean()) if wide.size else 0.0
            found = (SLACK * error if np.isfinite(error) else 0.0) + floor
            allowed[name] = max(allowed.get(name, 0.0), found)
    # An output that is 0 throughout has no floor: what is left of it is the least that a float32 tells.
    return ({name: value or 1e-12 for name, value in allowed.items() if name not in unjudged}, list(unjudged))


def write_bundle(folder: Path, bundle: Bundle) -> list[Path]:
    """Writes a bundle into a folder that is there and empty; returns its files.

    Raises:
        InputError: the release cannot take the config or lacks what production asks for, a range is missing, or a file
            cannot be written.
    """
    network, config, release = bundle.network, bundle.config, bundle.release
    bundle.production.refuse_for(release, RELEASES[release])
    if bundle.production.strip_plan:
        raise InputError("a bundle's engine has its weights", "verify.sh judges it, and one without them yields zeros "
                         "until it is refitted", "Leave out --strip-plan; production gives it to build.sh when it is "
                         "verified: sh build.sh --stripWeights.")
    if strings := [info.name for info in network.inputs if info.dtype.hasobject]:
        raise InputError(f"no TensorRT takes input {visible(strings[0])}", "it holds strings",
                         "Export the network without the part that reads them.")
    typed, told = _lowered(bundle)
    production = _carried(folder, bundle.production)
    export_typed(typed.model, network, folder / NETWORK)
    write_atomic(folder / "precision.json", bundle.config_text)
    asked = told_as(network, config)
    if used := activation_ranges(network, bundle.ranges, asked.without(Smooth)):
        write_cache(folder / "ranges.cache", used, algorithm_of(bundle.method))
    title = f"Builds {network.name} in the precisions of its config."
    profile = {info.name: bundle.shapes[info.name] for info in network.inputs
               if info.name in bundle.shapes and _dynamic(info)}
    further = further_profiles(production.profiles, network.inputs, profile)
    if told is not None and told.obey:
        command = polygraphy_command(told, SCRIPT, Files(base=NETWORK, engine=ENGINE), shapes=profile,
                                     further=further, production=production)
        write_polygraphy_script(folder / SCRIPT, told, title, command,
                                left_out_weak(network, config, NETWORK, told, used))
    if release == "rtx" and not config.tf32:
        write_atomic(folder / CLEARING, NO_TF32)
    write_atomic(folder / "build.sh", _build_script(bundle, told, profile, production, title))
    write_atomic(folder / "build.cpp", builder_fragment(
        release, RELEASES[release], title, told, tf32=config.tf32, shapes=profile, further=further,
        production=production, network=NETWORK, engine=ENGINE))
    allowed, unjudged = tolerances(bundle.iterations, {one.name: network.hidden_from(one.name)
                                                       for one in network.outputs})
    kept = [Iteration(one.inputs, {name: one.reference[name] for name in allowed}, {}) for one in bundle.iterations]
    if bundle.with_samples and allowed:
        _write_samples(folder, kept, raw=release == "11")
    if allowed:
        write_atomic(folder / "verify.sh", _verify_script(bundle, kept, allowed))
    notes = [*hidden_note(Barrier.subject.ordered(network, config.of(Barrier))), loading_note(typed.model)]
    write_atomic(folder / "report.md", _report(folder, bundle, allowed, unjudged, notes))
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _lowered(bundle: Bundle) -> tuple[Typed, Weak | None]:
    """The network, and what 8.6 is told beside it.

    Raises:
        InputError: the release cannot take the config.
    """
    network, config, ranges = bundle.network, bundle.config, bundle.ranges
    if bundle.release != "rtx":
        refuse_cubic_grids(network, RELEASES[bundle.release])
    if bundle.release != "8.6":
        return lower_strong(network, config, ranges), None
    if Precision.BF16 in {*config.assignment(network).values()}:
        raise InputError("this config asks for BF16", "TensorRT 8.6 has no BF16",
                         "Use FP16 or FP32 for those layers, or make a bundle for 10 or 11.")
    typed, told = lower_told(network, config, ranges)
    return typed, Weak(told.precisions, told.output_types, {}, told.flags, names=told.names, model=typed.model,
                       stand_ins=(), tf32=config.tf32, left_alone={}, notes=tuple(typed.notes))


def _carried(folder: Path, production: Production) -> Production:
    """What production asks for, with its files in the folder."""
    if production.timing_cache and Path(production.timing_cache).is_file():
        shutil.copyfile(production.timing_cache, folder / TIMINGS)
    plugins = _named(production)
    for place, path in zip(plugins, production.plugins, strict=True):
        regular(Path(path))
        (folder / "plugins").mkdir(exist_ok=True)
        shutil.copyfile(path, folder / place)
    return replace(production, timing_cache=TIMINGS, plugins=plugins)


def _named(production: Production) -> tuple[str, ...]:
    """The libraries of plugins as the folder has them."""
    return tuple(f"./plugins/{at}-{Path(path).name}" for at, path in enumerate(production.plugins))


def _dynamic(info: TensorInfo) -> bool:
    return info.shape is None or any(not isinstance(size, int) for size in info.shape)


# -- scripts --------------------------------------------------------------------------------------------------------

_TOP = """\
#!/bin/sh
# {title}
# For {release}. Made by trt-tui.
{usage}
set -eu
cd -- "$(dirname -- "$0")"
"""


def _build_script(bundle: Bundle, told: Weak | None, shapes: Mapping[str, ShapeRange], production: Production,
                  title: str) -> str:
    """How the engine is built: by trtexec on 10 and 11, by Polygraphy on 8.6 and TensorRT-RTX."""
    release = bundle.release
    text = _TOP.format(title=visible(title), release=RELEASES[release], usage="#\n#   sh build.sh [more options]")
    if release in ("10", "11"):
        lines = command_lines(bundle.network, bundle.config, files=Files(typed=NETWORK, engine=ENGINE), shapes=shapes,
                              production=production)
        line = next(one for one in lines if one.name == release)
        comments = "".join(f"# {visible(comment)}\n" for comment in line.comments)
        return (f"{text}\n{comments}# TRTEXEC names another trtexec.\n" + '"${TRTEXEC:-trtexec}" '
                + quoted_lines(line.argv[1:]) + ' "$@"\n')
    plain = Weak({}, {}, {}, frozenset(), model=bundle.network.model, stand_ins=(), tf32=bundle.config.tf32,
                 left_alone={})
    tells = told if told is not None and told.obey else None
    argv = polygraphy_command(tells or plain, SCRIPT if tells else "", Files(base=NETWORK, engine=ENGINE),
                              shapes=shapes, production=replace(production, timing_cache=""),
                              further=further_profiles(production.profiles, bundle.network.inputs, shapes))
    if release == "rtx":
        cleared = () if bundle.config.tf32 else ("--trt-config-postprocess-script", CLEARING)
        note = f"# TF32 is on by default, and Polygraphy leaves it: {CLEARING} clears it.\n" if cleared else ""
        return (f"{text}\n{note}export POLYGRAPHY_USE_TENSORRT_RTX=1\npolygraphy convert "
                + quoted_lines((*argv[2:], *cleared)) + ' "$@"\n')
    text += "\n# Polygraphy clears TF32 unless it is given --tf32.\n"
    # Polygraphy refuses to load a timing cache that is not there yet.
    return (f"{text}timings=\n[ ! -f {TIMINGS} ] || timings='--load-timing-cache {TIMINGS}'\npolygraphy convert "
            + quoted_lines((*argv[2:], "--save-timing-cache", TIMINGS)) + ' $timings "$@"\n')


def _verify_script(bundle: Bundle, iterations: Sequence[Iteration], allowed: Mapping[str, float]) -> str:
    """What holds the engine against the reference; its exit code says whether that is within the tolerance."""
    usage = """\
#
#   sh verify.sh             the engine that build.sh has made, with Polygraphy
#   sh verify.sh --onnxrt    network.onnx on ONNX Runtime: whether these files are whole
{more}#
# Exit code 0: each output is within its tolerance, in mean absolute error against FP32, on every sample.
# 1: it is not, or nothing could be run. 2: there is nothing to verify with."""
    more = "#   sh verify.sh --trtexec   with trtexec alone, 11.1 or later; done where there is no polygraphy, too\n"
    eleven = bundle.release == "11"
    text = _TOP.format(title=f"Verifies the engine of {visible(bundle.network.name)}.",
                       release=RELEASES[bundle.release], usage=usage.format(more=more if eleven else ""))
    needed = "samples" if eleven else INPUTS
    text += f"""
if [ ! -e {INPUTS} ] || [ ! -e {REFERENCE} ]; then
    cat >&2 <<'END'
{_ways_to_samples(bundle, allowed)}
END
    exit 2
fi
check() {{
    polygraphy run "$@" --load-inputs {INPUTS} --load-outputs {REFERENCE} \\
        --check-error-stat mean --rtol 0 --atol \\
        {tolerance_lines(allowed)}
}}
mode=${{1:---engine}}
"""
    if eleven:
        text += '[ "$mode" != --engine ] || command -v polygraphy >/dev/null || mode=--trtexec\n'
    rtx = "    export POLYGRAPHY_USE_TENSORRT_RTX=1\n" if bundle.release == "rtx" else ""
    plugins = "".join(f" --plugins {shlex.quote(path)}" for path in _named(bundle.production))
    text += f"""\
case "$mode" in
--engine)
{rtx}    check {ENGINE} --model-type engine --trt{plugins}
    ;;
--onnxrt)
    # Its optimizer would compute Q and DQ otherwise than TensorRT does.
    check {NETWORK} --onnxrt --graph-optimization-level ORT_DISABLE_ALL
    ;;
"""
    if eleven:
        text += "--trtexec)\n" + _trtexec_checks(bundle, iterations, allowed, needed) + "    ;;\n"
    return text + """*)
    echo "usage: sh $0 [--engine|--onnxrt]" >&2
    exit 2
    ;;
esac
"""


def _ways_to_samples(bundle: Bundle, allowed: Mapping[str, float]) -> str:
    """What `verify.sh` says if the folder has no samples: the commands that make some. A good engine passes on both."""
    raw = " and the folder whole/samples" if bundle.release == "11" else ""
    outputs = " ".join(shlex.quote(visible(name)) for name in allowed)
    return f"""\
There are no samples in this folder. MODEL is {visible(bundle.network.name)} in FP32. In this folder, make
the samples of the export again, from its data D, and copy {INPUTS}, {REFERENCE}{raw} here:

    trt-tui export MODEL --config precision.json --data D --format bundle --for {bundle.release} -o whole

Or put other inputs of the same kind here as {INPUTS}, as polygraphy run --save-inputs writes it, and compute:

    polygraphy run MODEL --onnxrt --onnx-outputs {outputs} --load-inputs {INPUTS} --save-outputs {REFERENCE}"""


def _trtexec_checks(bundle: Bundle, iterations: Sequence[Iteration], allowed: Mapping[str, float], folder: str) -> str:
    """A run of trtexec for each sample and output: it takes one threshold, which counts for all that it is given."""
    names = {*allowed, *(name for one in iterations for name in one.inputs)}
    if any(character in name for name in names for character in ",:'"):
        return ('    echo "trtexec splits the names of this network\'s inputs and outputs: use Polygraphy" >&2\n'
                "    exit 2\n")
    lines = [f'    [ -d {folder} ] || {{ echo "no folder {folder}: an export with samples has it" >&2; exit 2; }}']
    common = [f"--loadEngine={ENGINE}", "--iterations=1", "--duration=0", "--warmUp=0", "--accuracyAlgorithm=l1"]
    common += [f"--staticPlugins={path}" for path in _named(bundle.production)]
    for at, one in enumerate(iterations):
        given = ",".join(f"{name}:{folder}/{at}.in{i}.bin" for i, name in enumerate(one.inputs))
        shapes = ",".join(f"{info.name}:{'x'.join(map(str, one.inputs[info.name].shape))}"
                          for info in bundle.network.inputs if _dynamic(info) and one.inputs[info.name].ndim)
        for i, (name, value) in enumerate(allowed.items()):
            argv = [*common, f"--loadInputs={given}", *([f"--shapes={shapes}"] if shapes else []),
                    f"--loadRefOutputs={name}:{folder}/{at}.out{i}.bin", f"--accuracyThreshold={value:.6g}"]
            lines.append('    "${TRTEXEC:-trtexec}" ' + quoted_lines(argv))
    return "\n".join(lines) + "\n"


# -- samples --------------------------------------------------------------------------------------------------------


def _write_samples(folder: Path, iterations: Sequence[Iteration], raw: bool) -> None:
    """Inputs and FP32 outputs for Polygraphy.

    Args:
        raw: For trtexec, too: each array as its bytes.
    """
    with atomic(folder / INPUTS) as stream:
        write_inputs(stream, [one.inputs for one in iterations])
    with atomic(folder / REFERENCE) as stream, ResultsWriter(stream) as writer:
        writer.begin("fp32")
        for one in iterations:
            writer.add(one.reference)
    if raw:
        (folder / "samples").mkdir()
        for at, one in enumerate(iterations):
            for word, arrays in (("in", one.inputs), ("out", one.reference)):
                for i, array in enumerate(arrays.values()):
                    write_atomic(folder / "samples" / f"{at}.{word}{i}.bin", np.ascontiguousarray(array).tobytes())


# -- the report -----------------------------------------------------------------------------------------------------

_ABOUT = {
    NETWORK: "the network to build from", "precision.json": "the config, for trt-tui",
    "ranges.cache": "the ranges as a calibration cache, to read; Q and DQ in the network hold them",
    TIMINGS: "tactics measured before; of one GPU and release", SCRIPT: "what TensorRT 8.6 is told layer by layer",
    CLEARING: "what clears TF32",
    "build.sh": "builds model.engine", "build.cpp": "the same in C++, to take over",
    INPUTS: "samples, as Polygraphy reads them", REFERENCE: "what FP32 makes of them", "verify.sh": "checks the engine",
    "samples": "the same as raw files, for trtexec", "plugins": "libraries of plugins"}


def _report(folder: Path, bundle: Bundle, allowed: Mapping[str, float], unjudged: Sequence[str], notes: Sequence[str]
            ) -> str:
    """The comparison with figures, what is in the folder, and what the engine may be off by."""
    drawn = figures(bundle.comparison, "config", bundle.histograms)
    for name, (_, svg) in drawn.items():
        (folder / "figures").mkdir(exist_ok=True)
        write_atomic(folder / "figures" / name, svg)
    lines = [comparison_markdown(bundle.comparison, bundle.network, bundle.config).rstrip(), ""]
    for name, (title, _) in drawn.items():
        lines += [f"## {text_cell(title)}", "", f"![{text_cell(title)}](figures/{name})", ""]
    there = {path.name for path in folder.iterdir()} | {"report.md"}
    rows = [(f"`{name}`", what) for name, what in _ABOUT.items() if name in there]
    lines += [f"## This folder, for {RELEASES[bundle.release]}", "",
              f"`sh build.sh` builds the engine, {'`sh verify.sh` checks it' if allowed else 'nothing checks it'}.",
              "",
              *markdown_table(("file", "what"), rows), ""]
    if allowed:
        samples = f"{plural(len(bundle.iterations), 'feed')} of {text_cell(bundle.source)}"
        lines += ["## What verify.sh allows", "",
                  f"Mean absolute error against FP32 on {samples}: {number(SLACK)} times that of the simulation, and a "
                  f"share of the output's mean magnitude ({FP32_SHARE:g}, for integers {INTEGER_SHARE:g}).", "",
                  *markdown_table(("output", "at most"),
                                  [(code_cell(name), f"{value:.4g}") for name, value in allowed.items()]), ""]
    if unjudged:
        lines += [f"Not verified, since FP32 itself has NaN, infinities or masks there: "
                  f"{', '.join(map(code_cell, unjudged))}. `trt-tui compare --engines` judges what is not masked.", ""]
    for note in filter(None, notes):
        lines += [text_cell(note), ""]
    return "\n".join(lines).rstrip() + "\n"
