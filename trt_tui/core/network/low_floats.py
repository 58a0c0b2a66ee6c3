"""Networks typed in 16 bits: the FP32 networks that they were made from."""

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from trt_tui.core.network.naming import FreshNames, name_of

_LOW_FLOATS = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_TYPE_ATTRIBUTES = ("dtype", "output_dtype", "output_datatype", "softmax_precision", "stash_type")


@dataclass
class Raised:
    """What raising a network did.

    Attributes:
        found: Whether there was anything to raise.
        stands_for: Tensors that are new, by name, and the tensor of the file that each stands for.
        made: Names of nodes that are new.
    """

    found: bool = False
    stands_for: dict[str, str] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)


def has_low_floats(graph: ir.Graph) -> bool:
    """Whether anything of a network is typed in FP16 or BF16."""
    stored = [v.const_value for one in (graph, *graph.subgraphs()) for v in one.initializers.values()]
    return any(v.dtype in _LOW_FLOATS for v in graph.inputs) or any(
        tensor is not None and tensor.dtype in _LOW_FLOATS for tensor in stored) or any(
        attr.type == ir.AttributeType.INT and attr.value in _LOW_FLOATS and (
            node.op_type == "Cast" or attr.name in _TYPE_ATTRIBUTES)
        or attr.type == ir.AttributeType.TENSOR and attr.value.dtype in _LOW_FLOATS
        for node in graph.all_nodes() for attr in node.attributes.values())


def raise_to_fp32(graph: ir.Graph) -> Raised:
    """Turns a network typed in FP16 or BF16 into the FP32 network it was made from; inputs and outputs keep types."""
    subgraphs = list(graph.subgraphs())
    stored = [(v, v.const_value) for one in (graph, *subgraphs) for v in one.initializers.values()
              if v.const_value is not None and v.const_value.dtype in _LOW_FLOATS]
    inputs = [v for v in graph.inputs if v.dtype in _LOW_FLOATS]
    casts = [n for n in graph.all_nodes()
             if n.op_type == "Cast" and n.domain == "" and n.attributes["to"].as_int() in _LOW_FLOATS]
    constants = [n for n in graph.all_nodes() for a in n.attributes.values()
                 if a.type == ir.AttributeType.TENSOR and a.value.dtype in _LOW_FLOATS]
    if not (stored or inputs or casts or constants):
        return Raised()
    raised, names = Raised(found=True), FreshNames(graph)
    nodes = FreshNames(graph, taken=(node.name for node in graph if node.name))
    for value, tensor in stored:
        value.const_value = _as_float32(tensor)
        value.dtype = ir.DataType.FLOAT
    for node in constants:
        for attr in list(node.attributes.values()):
            if attr.type == ir.AttributeType.TENSOR and attr.value.dtype in _LOW_FLOATS:
                node.attributes[attr.name] = ir.AttrTensor(attr.name, _as_float32(attr.value))
    for node in casts:
        node.attributes["to"] = ir.AttrInt64("to", int(ir.DataType.FLOAT))
    outputs = {id(v): v.dtype for v in graph.outputs if v.dtype in _LOW_FLOATS}
    for node in graph.all_nodes():
        for attr in list(node.attributes.values()):
            if attr.name in _TYPE_ATTRIBUTES and attr.type == ir.AttributeType.INT and attr.value in _LOW_FLOATS:
                node.attributes[attr.name] = ir.AttrInt64(attr.name, int(ir.DataType.FLOAT))
        for output in node.outputs:
            if output.dtype in _LOW_FLOATS:
                output.dtype = ir.DataType.FLOAT
    for value in (v for one in subgraphs for v in (*one.inputs, *one.outputs)):
        if value.dtype in _LOW_FLOATS:
            value.dtype = ir.DataType.FLOAT
    for value in inputs:
        cast = ir.Node("", "Cast", [value], {"to": ir.AttrInt64("to", int(ir.DataType.FLOAT))},
                       name=nodes.new(f"{value.name}__to_fp32"))
        cast.outputs[0].name = names.new(f"{value.name}__fp32")
        raised.made.add(cast.name or "")
        raised.stands_for[cast.outputs[0].name] = value.name or ""
        cast.outputs[0].dtype, cast.outputs[0].shape = ir.DataType.FLOAT, value.shape
        for use in list(value.uses()):
            use.node.replace_input_with(use.idx, cast.outputs[0])
        cast.replace_input_with(0, value)
        graph.insert_before(graph[0], cast)
    for index, value in enumerate(list(graph.outputs)):
        dtype = outputs.get(id(value))
        if dtype is None or value in inputs:
            continue
        name = value.name
        value.name = names.new(f"{name}__fp32")
        raised.stands_for[value.name] = name or ""
        cast = ir.Node("", "Cast", [value], {"to": ir.AttrInt64("to", int(dtype))},
                       name=nodes.new(f"{name}__to_output_type"))
        raised.made.add(cast.name or "")
        cast.outputs[0].name = name
        cast.outputs[0].dtype, cast.outputs[0].shape = dtype, value.shape
        graph.append(cast)
        graph.outputs[index] = cast.outputs[0]
    return raised


def drop_idle_casts(graph: ir.Graph) -> dict[str, str]:
    """Takes out Casts from FP32 to FP32: what is left of Casts between 16 bits and 32, and what `x.float()` leaves.

    Returns:
        The tensor that is read in place of each result that is gone, by its name.
    """
    gone: dict[str, str] = {}
    for node in list(graph):
        if node.op_type == "Cast" and node.domain == "" and not node.outputs[0].is_graph_output() \
                and (source := node.inputs[0]) is not None \
                and source.dtype == node.outputs[0].dtype == ir.DataType.FLOAT:
            gone[name_of(node.outputs[0])] = name_of(source)
            node.outputs[0].replace_all_uses_with(source)
            graph.remove(node, safe=True)
    return gone


def _as_float32(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.LazyTensor(lambda: ir.tensor(tensor.numpy().astype(np.float32)), dtype=ir.DataType.FLOAT,
                         shape=ir.Shape(tensor.shape.numpy()), cache=True, name=tensor.name)
