"""Engine layers of a stand-in: which nodes are one layer, which precision it gets, and the engine inspector's JSON.

Only what both kinds of release do for certain is made up: a product takes the Q/DQ of its inputs and weights, and the
BatchNormalization, activation and Add behind it; every other node is a layer of its own. What real builders make of
networks is read from what they said: ``inspector/`` and `tests.rtx.layers`.
"""

from collections.abc import Callable

import onnx

from tests.standins import Bound, Release
from tests.standins.network import _TYPES, WEIGHTED

WORDS = {
    "FLOAT": "Float",
    "HALF": "Half",
    "BF16": "BFloat16",
    "INT8": "Int8",
    "UINT8": "UInt8",
    "INT32": "Int32",
    "INT64": "Int64",
    "BOOL": "Bool",
}
_FLOATS = ("Float", "Half", "BFloat16")
_FUSED = ("Relu", "BatchNormalization", "LeakyRelu", "Clip")


class Fusion:
    """The layers of one network.

    Args:
        precision: What a node computes in: "Float", "Half", "BFloat16" or "Int8"; asked of float nodes alone.
        base: What an INT8 node gives in a weakly typed network.
    """

    def __init__(self, network: Bound, precision: Callable[[onnx.NodeProto], str], base: str) -> None:
        self.strong, self.precision, self.base = network._strong, precision, base
        graph = network._model.graph
        self.constants = {one.name for one in graph.initializer}
        self.nodes = [node for node in graph.node if node.op_type != "Constant"]
        self.constants |= {
            node.output[0] for node in graph.node if node.op_type == "Constant" or self._quantizes_a_constant(node)
        }
        self.place = {name: number for number, node in enumerate(self.nodes) for name in node.output}
        self.consumers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            for name in node.input:
                self.consumers.setdefault(name, []).append(node)
        self.outputs = {tensor.name for tensor in network._outputs}
        self.types = {name: WORDS.get(_TYPES.get(kind, ""), "Float") for name, (kind, _) in network._values.items()}

    def run(self) -> list[dict]:
        """The layers in order of execution, as JSON takes them."""
        layers, taken = [], set()
        for node in self.nodes:
            if not self._folded(node) and node.output[0] not in taken:
                members = self._chain(node)
                layers.append(self._layer(members))
                taken.update(one.output[0] for one in members)
        return layers

    def _quantizes_a_constant(self, node: onnx.NodeProto) -> bool:
        return node.op_type == "QuantizeLinear" and node.input[0] in self.constants

    def _folded(self, node: onnx.NodeProto) -> bool:
        """Whether a node is part of products: Q of a weight, and DQ that nothing else reads."""
        if node.op_type != "DequantizeLinear" or node.output[0] in self.outputs:
            return self._quantizes_a_constant(node)
        return all(one.op_type in WEIGHTED for one in self.consumers.get(node.output[0], []))

    def _parts(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """The folded nodes in front of a node: of its weights first."""
        parts = []
        for name in reversed(node.input):
            made = self.nodes[self.place[name]] if name in self.place else None
            if made is not None and self._folded(made):
                parts += [*self._parts(made), made]
        return parts

    def _chain(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """A product with what follows it in one layer."""
        members = [node]
        while node.op_type in WEIGHTED and members[-1].output[0] not in self.outputs:
            following = self.consumers.get(members[-1].output[0], [])
            if len(following) != 1 or following[0].op_type not in (*_FUSED, "Add"):
                break
            others = [name for name in following[0].input if name != members[-1].output[0]]
            if any(self.place.get(name, -1) > self.place[node.output[0]] for name in others):
                break
            members.append(following[0])
        return members

    def _layer(self, members: list[onnx.NodeProto]) -> dict:
        made = {output for node in members for output in node.output}
        parts = [part for node in members for part in self._parts(node)]
        sources = {part.output[0]: part.input[0] for part in parts}
        read = [sources.get(name, name) for node in members for name in node.input]
        inputs = [name for name in dict.fromkeys(read) if name and name not in made and name not in self.constants]
        outputs = [
            one
            for one in made
            if one in self.outputs or any(user not in members for user in self.consumers.get(one, []))
        ]
        precision = self.types.get(outputs[0], "Float") if outputs else "Float"
        if any(self.types.get(one) in _FLOATS for one in outputs):
            precision = self.precision(next((node for node in members if node.op_type in WEIGHTED), members[0]))
        result = precision if precision in _FLOATS else self.base
        for one in outputs:
            if self.types.get(one) in _FLOATS and one not in self.outputs and not self.strong:
                self.types[one] = result

        def read_as(name: str) -> str:
            kind = self.types.get(name, "Float")
            return precision if kind in _FLOATS and not self.strong else kind

        return {
            "name": " + ".join(node.name for node in members),
            "type": members[0].op_type.removesuffix("Linear"),
            "precision": precision,
            "inputs": [[name, read_as(name)] for name in inputs],
            "nodes": list(dict.fromkeys(one.name for one in (*parts, *members))),
            "outputs": [[one, self.types.get(one, "Float")] for one in outputs],
        }


def information(layer: dict, release: Release, shapes: dict[str, list[int]]) -> dict:
    """What the engine inspector says of a layer, in the release's words; ``shapes`` by tensor, -1 for open sizes."""

    def tensor(name: str, kind: str) -> dict:
        about = {"Name": name, "Dimensions": shapes.get(name, [])}
        if release.major >= 11:
            return {**about, "Datatype": kind, "Format": "(Linear) Row major linear format"}
        return {**about, "Location": "Device", "Format/Datatype": kind}

    said = {
        "Name": layer["name"],
        "LayerType": layer["type"],
        "Inputs": [tensor(*one) for one in layer["inputs"]],
        "Outputs": [tensor(*one) for one in layer["outputs"]],
        "TacticName": layer.get("tactic", ""),
        "TacticValue": "0x1",
    }
    metadata = "\x1e".join(f"[ONNX Layer: {node}]" for node in layer["nodes"])
    return said if release.major < 10 else {**said, "StreamId": 0, "Metadata": metadata}
