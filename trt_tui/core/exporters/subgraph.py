"""The export of a subgraph as a folder that reproduces a fault by itself, to be attached to a bug report.

The folder contains the subgraph in FP32 and in the precisions of a config, its actual inputs, and the outputs of FP32.
A script contains the Polygraphy commands that show the fault and reduce the subgraph. Both networks have FP32 inputs
and outputs, so that the same input files work for both.
"""

import difflib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx_ir.convenience import extract

from trt_tui.core.exporters.build_commands import tolerance_lines
from trt_tui.core.exporters.bundle import SampleRun, compute_tolerances, write_samples
from trt_tui.core.exporters.onnx import export_typed_network
from trt_tui.core.network.layers import FusionGroup
from trt_tui.core.network.network import Network
from trt_tui.errors import InputError
from trt_tui.files.writing import write_file_atomically
from trt_tui.formatting import escape_hidden_characters, name_list_text

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
            similar_names = difflib.get_close_matches(
                name, tensor_names, 3, 0.5) or [tensor_name for tensor_name in tensor_names if name in tensor_name][:3]
            raise InputError(f"{network.name} has no tensor {name}",
                             f"Did you mean {', '.join(similar_names)}?"
                             if similar_names else "its layers have other outputs",
                             "Name inputs of the network or outputs of layers: trt-tui inspect --nodes lists layers.")


def find_group_boundary(network: Network, group: FusionGroup) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Finds the tensors that a group reads from other layers, and the last tensor that it computes."""
    group_tensors = {tensor for name in group.layers for tensor in network.get_layer(name).outputs}
    tensor_names = set(_list_tensors(network))
    input_tensors = dict.fromkeys(tensor for name in group.layers for tensor in network.get_layer(name).inputs
                                  if tensor in tensor_names and tensor not in group_tensors)
    return tuple(input_tensors), (group.final_tensor,)


def _list_tensors(network: Network) -> list[str]:
    return [*(info.name for info in network.inputs), *(tensor for layer in network.layers for tensor in layer.outputs
                                                       if tensor)]


def extract_subgraph(model: ir.Model, start_tensors: Sequence[str], end_tensors: Sequence[str]) -> ir.Model:
    """Extracts the part of a model between the given tensors. Inputs and outputs in FP16 or BF16 become FP32.

    Raises:
        InputError: The part needs other tensors too.
    """
    try:
        graph = extract(model.graph, list(start_tensors), list(end_tensors))
    except ValueError as error:
        raise InputError(
            f"{name_list_text(list(end_tensors))} cannot be computed from {name_list_text(list(start_tensors))} alone",
            str(error), "Name every tensor that the subgraph reads, separated by commas, with --from.") from None
    half_types = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    for index, value in enumerate(graph.inputs):
        if value.dtype in half_types:
            fp32_input = ir.Value(name=value.name, type=ir.TensorType(ir.DataType.FLOAT), shape=value.shape)
            graph.inputs[index] = fp32_input
            cast = ir.node("Cast", [fp32_input], {"to": int(value.dtype)}, outputs=[
                ir.Value(name=f"{value.name}_lowered", type=value.type, shape=value.shape)])
            cast.name = f"{value.name}_lowered"
            value.replace_all_uses_with(cast.outputs[0])
            graph.insert_before(graph[0], cast)
    for index, value in enumerate(graph.outputs):
        if value.dtype in half_types:
            name, value.name = value.name, f"{value.name}_lowered"
            cast = ir.node("Cast", [value], {"to": int(ir.DataType.FLOAT)}, outputs=[
                ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=value.shape)])
            cast.name = f"{name}_raised"
            graph.append(cast)
            graph.outputs[index] = cast.outputs[0]
    graph.opset_imports.update(model.opset_imports)
    return ir.Model(graph, ir_version=model.ir_version, functions=list(model.functions.values()))


def write_subgraph(folder: Path, network: Network, models: Mapping[str, ir.Model], start_tensors: Sequence[str],
                   end_tensors: Sequence[str], sample_runs: Sequence[SampleRun]) -> list[Path]:
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
            value.name or "" for value in subgraph.graph.inputs
            if value.shape is None or not all(isinstance(size, int) for size in value.shape))
        export_typed_network(subgraph, network, folder / name)
    write_samples(folder, sample_runs)
    tolerances, _ = compute_tolerances(sample_runs)
    largest = max(tolerances.values(), default=1e-3)
    write_file_atomically(
        folder / "run.sh",
        _SCRIPT_TEMPLATE.format(start=escape_hidden_characters(", ".join(start_tensors)),
                                stop=escape_hidden_characters(", ".join(end_tensors)),
                                network=escape_hidden_characters(network.name),
                                profile="".join(f" {flag}" for flag in _profile_arguments(dynamic_inputs,
                                                                                          sample_runs)),
                                atol=tolerance_lines(tolerances) or "0",
                                largest=f"{largest:.6g}"))
    return sorted(folder.iterdir())


def _profile_arguments(names: Iterable[str], sample_runs: Sequence[SampleRun]) -> list[str]:
    """Returns the arguments of Polygraphy for the shapes that the samples have at some inputs, quoted for a shell.

    Without them Polygraphy builds a profile of size 1, which refuses the samples.
    """
    shapes = {name: [np.shape(sample_run.inputs[name]) for sample_run in sample_runs if name in sample_run.inputs]
              for name in names}
    arguments = []
    for option, choose in (("min", np.min), ("opt", lambda sizes, axis: sizes[0]), ("max", np.max)):
        words = [shlex.quote(f"{name}:[{','.join(map(str, choose(np.array(sizes), axis=0)))}]")
                 for name, sizes in shapes.items() if sizes]
        arguments += [f"--trt-{option}-shapes", *words] if words else []
    return arguments
