"""A piece of a network as a folder that shows a fault by itself: what one attaches to a bug report.

It holds the piece in FP32 and in the precisions of a config, what really goes into it, what FP32 makes of that, and the
Polygraphy commands that show the fault and make the piece smaller. Both networks take and yield FP32, so that one set
of inputs serves both.
"""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx_ir as ir
from onnx_ir.convenience import extract

from trt_tui.core.data.runresults import ResultsWriter, write_inputs
from trt_tui.core.exporters.bundle import Iteration, tolerances
from trt_tui.core.exporters.onnx import export_typed
from trt_tui.core.exporters.polygraphy import tolerance_lines
from trt_tui.core.network.layers import Group
from trt_tui.core.network.network import Network
from trt_tui.errors import InputError
from trt_tui.files.writing import atomic, write_atomic
from trt_tui.words import first_few, visible

FP32, TYPED, INPUTS, REFERENCE = "fp32.onnx", "typed.onnx", "inputs.json", "reference.json"

_SCRIPT = """\
#!/bin/sh
# From {start}
# to {stop}
# of {network}. Made by trt-tui.
#
#   sh run.sh             typed.onnx in TensorRT against what fp32.onnx yields
#   sh run.sh --onnxrt    the same on ONNX Runtime: what rounding alone does
#   sh run.sh --reduce    reduced.onnx: the smallest piece that TensorRT and ONNX Runtime compute differently
#                         (needs onnx_graphsurgeon)
set -eu
cd -- "$(dirname -- "$0")"
judge() {{
    polygraphy run "$@" --check-error-stat mean --rtol 0 --atol {atol}
}}
case "${{1:-}}" in
"")
    judge typed.onnx --trt --strongly-typed --load-inputs inputs.json --load-outputs reference.json
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
        polygraphy run polygraphy_debug.onnx --trt --strongly-typed --load-inputs layers-in.json \\
        --load-outputs layers.json --check-error-stat mean --rtol 0 --atol {largest}
    ;;
*)
    echo "usage: sh $0 [--onnxrt|--reduce]" >&2
    exit 2
    ;;
esac
"""


def check_tensors(network: Network, named: Sequence[str]) -> None:
    """Checks that a network has some tensors.

    Raises:
        InputError: it lacks one; names those nearest to it.
    """
    known = _computed(network)
    for name in named:
        if name not in known:
            near = difflib.get_close_matches(name, known, 3, 0.5) or [one for one in known if name in one][:3]
            raise InputError(f"{network.name} has no tensor {name}",
                             f"Did you mean {', '.join(near)}?" if near else "its layers make others",
                             "Name inputs of the network, or what layers make: trt-tui inspect --nodes lists layers.")


def around(network: Network, group: Group) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What the layers of a group read of others, and the last tensor that they make."""
    inside = {tensor for name in group.layers for tensor in network.layer(name).outputs}
    known = set(_computed(network))
    read = dict.fromkeys(tensor for name in group.layers for tensor in network.layer(name).inputs
                         if tensor in known and tensor not in inside)
    return tuple(read), (group.tail,)


def _computed(network: Network) -> list[str]:
    return [*(info.name for info in network.inputs), *(tensor for layer in network.layers for tensor in layer.outputs
                                                       if tensor)]


def piece(model: ir.Model, start: Sequence[str], stop: Sequence[str]) -> ir.Model:
    """The part of a model between some tensors; its inputs and outputs are FP32 where they are FP16 or BF16.

    Raises:
        InputError: what lies between needs other tensors too.
    """
    try:
        graph = extract(model.graph, list(start), list(stop))
    except ValueError as error:
        raise InputError(f"{first_few(list(stop))} cannot be had from {first_few(list(start))} alone", str(error),
                         "Name every tensor that what lies between reads, with commas behind --from.") from None
    low = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    for index, value in enumerate(graph.inputs):
        if value.dtype in low:
            given = ir.Value(name=value.name, type=ir.TensorType(ir.DataType.FLOAT), shape=value.shape)
            graph.inputs[index] = given
            cast = ir.node("Cast", [given], {"to": int(value.dtype)}, outputs=[
                ir.Value(name=f"{value.name}_lowered", type=value.type, shape=value.shape)])
            cast.name = f"{value.name}_lowered"
            value.replace_all_uses_with(cast.outputs[0])
            graph.insert_before(graph[0], cast)
    for index, value in enumerate(graph.outputs):
        if value.dtype in low:
            name, value.name = value.name, f"{value.name}_lowered"
            cast = ir.node("Cast", [value], {"to": int(ir.DataType.FLOAT)}, outputs=[
                ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=value.shape)])
            cast.name = f"{name}_raised"
            graph.append(cast)
            graph.outputs[index] = cast.outputs[0]
    graph.opset_imports.update(model.opset_imports)
    return ir.Model(graph, ir_version=model.ir_version, functions=list(model.functions.values()))


def write_subgraph(folder: Path, network: Network, models: Mapping[str, ir.Model], start: Sequence[str],
                   stop: Sequence[str], iterations: Sequence[Iteration]) -> list[Path]:
    """Writes the folder, which is there and empty; returns its files.

    Args:
        models: The whole network by file name: `FP32` and `TYPED`.
        iterations: What goes into the piece, and what FP32 and the typed piece make of it.

    Raises:
        InputError: see `piece`.
    """
    for name, model in models.items():
        export_typed(piece(model, start, stop), network, folder / name)
    with atomic(folder / INPUTS) as stream:
        write_inputs(stream, [one.inputs for one in iterations])
    with atomic(folder / REFERENCE) as stream, ResultsWriter(stream) as writer:
        writer.begin("fp32")
        for one in iterations:
            writer.add(one.reference)
    allowed, _ = tolerances(iterations)
    largest = max(allowed.values(), default=1e-3)
    write_atomic(folder / "run.sh", _SCRIPT.format(
        start=visible(", ".join(start)), stop=visible(", ".join(stop)), network=visible(network.name),
        atol=tolerance_lines(allowed) or "0", largest=f"{largest:.6g}"))
    return sorted(folder.iterdir())
