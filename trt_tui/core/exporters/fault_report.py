"""The folder of a bug report: the smallest piece that an engine computes wrongly, with all that shows it.

It contains the piece, its inputs, its FP64 outputs, scripts for Polygraphy and trtexec, and the versions.
"""

import json
import platform
import shlex
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from trt_tui import __version__
from trt_tui.core.builder_options import BuilderOptions
from trt_tui.core.exporters.bundle import SampleRun, compute_tolerances
from trt_tui.core.exporters.markdown import code_cell, markdown_table, text_cell
from trt_tui.core.exporters.polygraphy import write_polygraphy_script
from trt_tui.core.exporters.subgraph import FP32_FILE, REFERENCE_FILE, TYPED_FILE, write_subgraph
from trt_tui.core.exporters.trtexec import list_precision_arguments, quote_command
from trt_tui.core.lowering.implicit_quantization import ImplicitQuantizationConstraints
from trt_tui.core.measure.fault_location import FaultReport
from trt_tui.core.network.network import Network
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.files.writing import write_file_atomically
from trt_tui.formatting import escape_hidden_characters

PRECISIONS_FILE = "precisions.py"
"""The Polygraphy script that sets the precisions of the layers of a weakly typed piece."""

_TRTEXEC_SCRIPT = """\
#!/bin/sh
# Builds the piece with trtexec, executes it on inputs/, and writes its outputs. Made by trt-tui.
# TRTEXEC names another trtexec. Compare outputs.json with the FP64 results:
#   trt-tui compare {reference} outputs.json
set -eu
cd -- "$(dirname -- "$0")"
"${{TRTEXEC:-trtexec}}" {arguments} "$@"
"""


def write_fault_report(folder: Path, network: Network, typed_model: ir.Model, sample_run: SampleRun,
                       report: FaultReport, is_strongly_typed: bool, precisions: Collection[Precision],
                       builder_options: BuilderOptions, release: str,
                       constraints: ImplicitQuantizationConstraints | None = None) -> list[Path]:
    """Writes the bug report into an existing empty folder and returns the paths of its files.

    Args:
        network: The piece.
        typed_model: The piece in the precisions of the engine.
        sample_run: The inputs, the FP64 results, and the results of the simulation.
        is_strongly_typed: True if the types of the graph decide the precisions of the engine.
        precisions: The precisions in the piece.
        builder_options: The builder options of production. The timing cache is left out.
        release: The release of the builder: "8.6", "10", "11" or "rtx".
        constraints: The precisions of the layers of a weakly typed piece without quantized types; None for other ones.
    """
    builder_options = replace(builder_options, timing_cache="", profiles=())
    model_file = TYPED_FILE if is_strongly_typed or QUANTIZED_TYPES.keys() & set(precisions) else FP32_FILE
    flags = [flag for precision, flag in ((Precision.FP16, "fp16"), (Precision.BF16, "bf16"), (Precision.INT8, "int8"))
             if precision in precisions]
    tf32_flags = ["--tf32"] if Precision.TF32 in precisions else []
    polygraphy_flags = [*tf32_flags, *(["--strongly-typed"] if is_strongly_typed else [f"--{flag}" for flag in flags]),
                        *map(shlex.quote, builder_options.polygraphy_arguments())]
    precision_arguments: list[str] = []
    if constraints is not None and constraints.needs_obey_constraints_flag:
        polygraphy_flags += ["--precision-constraints", "obey", "--trt-network-postprocess-script", PRECISIONS_FILE]
        precision_arguments, _ = list_precision_arguments(network, constraints)
        write_polygraphy_script(folder / PRECISIONS_FILE, constraints, "Precisions of the piece", ("sh", "run.sh"))
    inputs, outputs = tuple(sample_run.inputs), tuple(sample_run.reference)
    write_subgraph(folder, network, {FP32_FILE: network.model, TYPED_FILE: typed_model}, inputs, outputs, [sample_run],
                   engine_model=model_file, engine_flags=polygraphy_flags)
    (folder / "inputs").mkdir()
    for index, array in enumerate(sample_run.inputs.values()):
        write_file_atomically(folder / "inputs" / f"{index}.bin", np.ascontiguousarray(array).tobytes())
    shapes = ",".join(f"{info.name}:{'x'.join(map(str, sample_run.inputs[info.name].shape))}"
                      for info in network.inputs if info.shape is None or any(not isinstance(size, int)
                                                                              for size in info.shape))
    arguments = [
        f"--onnx={model_file}", *([] if release == "11" else ["--stronglyTyped"] if is_strongly_typed else
                                 [f"--{flag}" for flag in flags]), *precision_arguments,
        *([] if Precision.TF32 in precisions else ["--noTF32"]),
        *([f"--shapes={shapes}"] if shapes else []),
        *builder_options.trtexec_arguments("11" if release == "11" else "10"),
        "--loadInputs=" + ",".join(f"{name}:inputs/{index}.bin" for index, name in enumerate(inputs)),
        "--exportOutput=outputs.json", "--exportLayerInfo=layers.json", "--profilingVerbosity=detailed",
        "--iterations=1", "--duration=0", "--warmUp=0"
    ]
    write_file_atomically(folder / "trtexec.sh", _TRTEXEC_SCRIPT.format(
        reference=REFERENCE_FILE, arguments=quote_command(arguments)))
    write_file_atomically(folder / "report.md", _report_text(report, sample_run))
    write_file_atomically(folder / "result.json", json.dumps({**report.to_record(), "versions": list_versions(report)},
                                                             indent=1) + "\n")
    return sorted(path for path in folder.rglob("*") if path.is_file())


def list_versions(report: FaultReport) -> dict[str, str]:
    """Returns the versions that a bug report names, by component."""
    return {"builder": report.builder_text, "GPU": report.device, "trt-tui": __version__, "onnx": onnx.__version__,
            "numpy": np.__version__, "Python": platform.python_version(), "system": platform.platform()}


def _report_text(report: FaultReport, sample_run: SampleRun) -> str:
    """Returns the text of `report.md`."""
    compute_rows = [(code_cell(name), role, "x".join(map(str, array.shape)), str(array.dtype))
                    for role, arrays in (("input", sample_run.inputs), ("output", sample_run.reference))
                    for name, array in arrays.items()]
    tolerances, _ = compute_tolerances([sample_run])
    lines = [
        "# Wrong result of an engine", "", *(f"- {escape_hidden_characters(text_cell(line))}" for line in report.lines),
        "", "## Tensors", "", *markdown_table(("tensor", "role", "shape", "type"), compute_rows), "",
        "## Versions", "", *markdown_table(("component", "version"), [(text_cell(name), text_cell(value))
                                                                      for name, value in
                                                                      list_versions(report).items()]), "",
        "## Files", "",
        f"`sh run.sh` shows the fault with Polygraphy (tolerated mean error: "
        f"{', '.join(f'{value:.3g}' for value in tolerances.values())}), `sh trtexec.sh` executes the piece with "
        f"trtexec. `{REFERENCE_FILE}` has the FP64 results, rounded to the type of each output."
    ]
    return "\n".join(lines) + "\n"
