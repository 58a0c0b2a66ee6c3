"""Wrong kernels of a stand-in: an engine whose network computes something else at one engine layer.

What is planted, of `tests.standins.building.fault`: ``wrong: NODE`` (the engine layer of that node gives a quarter
more), ``nan: NODE`` (NaN), ``wrong row: NODE`` (its last sample of a batch comes out otherwise), ``flaky: NODE`` (a
quarter more in every second build, with another kernel) and ``other tactic: NODE`` (that engine layer has another
kernel).
"""

import os
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_FLOATS = {TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16}


def plant_wrong_kernels(model: onnx.ModelProto, layers: list[dict], fault: str, major: int) -> None:
    """Changes the network of an engine, and names its kernels."""
    for one in fault.split(";"):
        kind, _, node = one.strip().partition(": ")
        layer = next((layer for layer in layers if node in layer["nodes"]), None)
        if layer is None or not layer["outputs"]:
            continue
        if kind == "other tactic":
            layer["tactic"] = "other_kernel"
        elif kind == "flaky":
            if _count_build() % 2:
                layer["tactic"] = "another_kernel"
                _replace_output(model, layer["outputs"][0][0], 1.25)
        elif kind in ("wrong", "nan"):
            _replace_output(model, layer["outputs"][0][0], np.nan if kind == "nan" else 1.25)
        elif kind == "wrong row":
            _replace_output(model, layer["outputs"][0][0], None)


def _count_build() -> int:
    """The number of builds so far, over processes."""
    counter = Path(os.environ["STANDIN_COUNTER"])
    counter.write_text(str(number := int(counter.read_text() or 0) + 1 if counter.exists() else 1))
    return number


def _replace_output(model: onnx.ModelProto, tensor: str, factor: float | None) -> None:
    """Multiplies a tensor; without a factor, adds 1 to its last sample."""
    graph = model.graph
    kinds = {
        value.name: value.type.tensor_type.elem_type
        for value in (*onnx.shape_inference.infer_shapes(model).graph.value_info, *graph.output)
    }
    dtype = _FLOATS[kinds.get(tensor, TensorProto.FLOAT)]
    place, producer = next((place, node) for place, node in enumerate(graph.node) if tensor in node.output)
    right = f"{tensor}/right"
    producer.output[list(producer.output).index(tensor)] = right
    if factor is not None:
        graph.initializer.append(numpy_helper.from_array(np.array(factor, dtype), f"{tensor}/factor"))
        graph.node.insert(place + 1, helper.make_node("Mul", [right, f"{tensor}/factor"], [tensor], f"{tensor}/wrong"))
        return
    graph.initializer.extend(
        numpy_helper.from_array(np.array(array, np.int64), f"{tensor}/{name}")
        for name, array in (("start", [-1]), ("zero", [0]), ("end", [2**31 - 1]))
    )
    graph.initializer.append(numpy_helper.from_array(np.array(1, dtype), f"{tensor}/one"))
    graph.node.insert(
        place + 1,
        helper.make_node("Concat", [f"{tensor}/first", f"{tensor}/added"], [tensor], f"{tensor}/wrong", axis=0),
    )
    graph.node.insert(place + 1, helper.make_node("Add", [f"{tensor}/last", f"{tensor}/one"], [f"{tensor}/added"]))
    for name, start, end in (("first", "zero", "start"), ("last", "start", "end")):
        graph.node.insert(
            place + 1,
            helper.make_node(
                "Slice", [right, f"{tensor}/{start}", f"{tensor}/{end}", f"{tensor}/zero"], [f"{tensor}/{name}"]
            ),
        )
