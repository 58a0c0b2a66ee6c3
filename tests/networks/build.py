"""Building networks node by node with onnx.helper."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper


class Builder:
    """Collects nodes and seeded weights; every node is named ``<scope>/<operator>`` unless told otherwise.

    Args:
        seed: Of the weights drawn by `kernel`, `vector` and `batch_norm`.
        opset: Version of the default operator set.
    """

    def __init__(self, seed: int = 0, opset: int = 17) -> None:
        self.rng = np.random.default_rng(seed)
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def node(
        self,
        operator: str,
        inputs: Sequence[str],
        scope: str = "",
        *,
        output: str = "",
        name: str | None = None,
        **attrs: Any,
    ) -> str:
        """Adds a node of one output; returns the output's name."""
        name = f"{scope}/{operator}" if name is None else name
        output = output or f"{name}_output_0"
        self.nodes.append(helper.make_node(operator, list(inputs), [output], name=name, **attrs))
        return output

    def weight(self, name: str, values: np.ndarray) -> str:
        """Adds an initializer; returns its name."""
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def kernel(self, name: str, shape: Sequence[int], fan_in: int, gain: float = 2.0) -> str:
        """Adds normal float32 values of std ``sqrt(gain / fan_in)`` (gain 2: He-normal)."""
        values = self.rng.standard_normal(shape, dtype=np.float32) * np.float32(np.sqrt(gain / fan_in))
        return self.weight(name, values)

    def vector(self, name: str, size: int, centre: float = 0.0, spread: float = 0.05) -> str:
        """Adds normal float32 values around ``centre``."""
        values = centre + spread * self.rng.standard_normal(size)
        return self.weight(name, values.astype(np.float32))

    def conv(
        self,
        source: str,
        channels: tuple[int, int],
        scope: str,
        *,
        size: int = 3,
        stride: int = 1,
        groups: int = 1,
        bias: bool = False,
        gain: float = 2.0,
    ) -> str:
        """Adds a square Conv with "same" padding (at stride 1) under ``<scope>/Conv``; channels are (in, out)."""
        prefix = scope.strip("/").replace("/", ".")
        fan_in = channels[0] // groups * size * size
        inputs = [
            source,
            self.kernel(f"{prefix}.weight", (channels[1], channels[0] // groups, size, size), fan_in, gain),
        ]
        if bias:
            inputs.append(self.vector(f"{prefix}.bias", channels[1]))
        return self.node(
            "Conv",
            inputs,
            scope,
            kernel_shape=[size, size],
            strides=[stride, stride],
            pads=[size // 2] * 4,
            group=groups,
        )

    def batch_norm(self, source: str, channels: int, scope: str, *, gamma: float = 1.0, variance: float = 1.0) -> str:
        """Adds a BatchNormalization with seeded scale, bias and statistics."""
        prefix = scope.strip("/").replace("/", ".")
        inputs = [
            source,
            self.vector(f"{prefix}.weight", channels, gamma, 0.1 * gamma),
            self.vector(f"{prefix}.bias", channels),
            self.vector(f"{prefix}.running_mean", channels),
            self.vector(f"{prefix}.running_var", channels, variance, 0.1 * variance),
        ]
        return self.node("BatchNormalization", inputs, scope, epsilon=1e-5)

    def gemm(self, source: str, features: tuple[int, int], scope: str, *, output: str = "") -> str:
        """Adds a Gemm with transB and bias; features are (in, out)."""
        prefix = scope.strip("/").replace("/", ".")
        weight = self.kernel(f"{prefix}.weight", features[::-1], features[0])
        inputs = [source, weight, self.vector(f"{prefix}.bias", features[1])]
        return self.node("Gemm", inputs, scope, output=output, transB=1)

    def model(
        self,
        inputs: Sequence[onnx.ValueInfoProto],
        outputs: Sequence[onnx.ValueInfoProto],
        *,
        name: str = "network",
        domains: Sequence[str] = (),
        functions: Sequence[onnx.FunctionProto] = (),
        ir_version: int = 8,
    ) -> onnx.ModelProto:
        """The finished network, with the default operator set and version 1 of each named domain."""
        graph = helper.make_graph(self.nodes, name, inputs, outputs, self.weights)
        imports = [helper.make_opsetid("", self.opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
        return helper.make_model(
            graph, opset_imports=imports, functions=functions, ir_version=ir_version, producer_name="trt-tui tests"
        )


def floats(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    """A float32 graph input or output."""
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
