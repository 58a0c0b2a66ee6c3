"""Random small networks and configs: what the two lowerings must agree on."""

from dataclasses import dataclass
from random import Random

import numpy as np
import onnx

from trt_tui.core.moves.config import PrecisionConfig, RangeMove
from trt_tui.core.network.network import Network
from trt_tui.core.precision import ASSIGNABLE, FLOAT_PRECISIONS
from trt_tui.core.quantized_types import QUANTIZED_TYPES

from .build import Builder, floats

ACTIVATIONS = ("Relu", "Celu", "Sigmoid", "Tanh", "LeakyRelu", "Elu", "Abs", "Neg", "Clip")
GAINS = (0.25, 1.0, 1.0, 1.0, 40.0, 2000.0)
ROWS, SIDE = 48, 8


@dataclass
class _Tensor:
    name: str
    channels: int


class _Drawing:
    """A network that grows layer by layer; vectors are ``(ROWS, channels)``, images ``(2, channels, SIDE, SIDE)``."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.images = random.random() < 0.4
        self.build = Builder(random.randrange(1 << 16))
        self.sizes = (4, 8) if self.images else (4, 8, 64, 128)  # blocks of INT4 take a multiple of 64
        self.tensors = [_Tensor("x", random.choice(self.sizes))]
        self.count = 0

    def model(self) -> onnx.ModelProto:
        first = self.tensors[0]
        for _ in range(self.random.randint(2, 7)):
            self.tensors.append(self._layer())
        last = self.tensors[-1]
        self.build.nodes[-1].output[0] = "y"
        shape = (2, last.channels, SIDE, SIDE) if self.images else (ROWS, last.channels)
        given = (2, first.channels, SIDE, SIDE) if self.images else (ROWS, first.channels)
        return self.build.model([floats("x", *given)], [floats("y", *shape)])

    def _layer(self) -> _Tensor:
        self.count += 1
        kinds = ["multiply"] * 4 + ["activate"] * 3 + ["scale", "join", "join", "concat", "move"]
        kinds += ["pool", "norm"] if self.images else ["attend"]
        source = self.tensors[-1] if self.random.random() < 0.8 else self.random.choice(self.tensors)
        return getattr(self, f"_{self.random.choice(kinds)}")(source)

    def _node(self, operator: str, inputs: list[str], channels: int, **attributes) -> _Tensor:
        return _Tensor(self.build.node(operator, inputs, f"/{self.count}", **attributes), channels)

    def _weight(self, shape: tuple[int, ...], fan_in: int, axis: int) -> str:
        """A weight with, now and then, one channel that is tiny, zero or huge."""
        values = self.build.rng.standard_normal(shape).astype(np.float32) / np.float32(np.sqrt(fan_in))
        values *= np.float32(self.random.choice(GAINS))
        channel = [slice(None)] * len(shape)
        channel[axis] = self.random.randrange(shape[axis])
        values[tuple(channel)] *= np.float32(self.random.choice((1, 1, 1, 1e-4, 0, 30)))
        return self.build.weight(f"w{self.count}", values)

    def _multiply(self, source: _Tensor) -> _Tensor:
        out, bias = self.random.choice(self.sizes), []
        if self.random.random() < 0.5:
            bias = [self.build.vector(f"b{self.count}", out)]
        if self.images:
            weight = self._weight((out, source.channels, 3, 3), 9 * source.channels, 0)
            return self._node("Conv", [source.name, weight, *bias], out, kernel_shape=[3, 3], pads=[1] * 4)
        if bias:
            transposed = self.random.randrange(2)
            shape = (out, source.channels) if transposed else (source.channels, out)
            weight = self._weight(shape, source.channels, 1 - transposed)
            return self._node("Gemm", [source.name, weight, *bias], out, transB=transposed)
        return self._node("MatMul", [source.name, self._weight((source.channels, out), source.channels, 1)], out)

    def _activate(self, source: _Tensor) -> _Tensor:
        operator, inputs = self.random.choice(ACTIVATIONS), [source.name]
        if operator == "Clip":
            bounds = np.float32([-0.3, 0.7]) * np.float32(self.random.choice((1, 10)))
            inputs += [self.build.weight(f"bound{self.count}{i}", np.array(v)) for i, v in enumerate(bounds)]
        return self._node(operator, inputs, source.channels)

    def _scale(self, source: _Tensor) -> _Tensor:
        shape = (source.channels, 1, 1) if self.images else (source.channels,)
        factor = self.build.rng.standard_normal(shape).astype(np.float32) * np.float32(self.random.choice(GAINS))
        constant = self.build.weight(f"c{self.count}", factor)
        return self._node(self.random.choice(("Mul", "Add", "Sub")), [source.name, constant], source.channels)

    def _join(self, source: _Tensor) -> _Tensor:
        other = self.random.choice([one for one in self.tensors if one.channels == source.channels])
        return self._node(self.random.choice(("Add", "Add", "Mul", "Max")), [source.name, other.name], source.channels)

    def _concat(self, source: _Tensor) -> _Tensor:
        other = self.random.choice(self.tensors)
        return self._node("Concat", [source.name, other.name], source.channels + other.channels, axis=1)

    def _move(self, source: _Tensor) -> _Tensor:
        return self._node("Identity", [source.name], source.channels)

    def _pool(self, source: _Tensor) -> _Tensor:
        return self._node("MaxPool", [source.name], source.channels, kernel_shape=[3, 3], pads=[1] * 4)

    def _norm(self, source: _Tensor) -> _Tensor:
        return _Tensor(self.build.batch_norm(source.name, source.channels, f"/{self.count}"), source.channels)

    def _attend(self, source: _Tensor) -> _Tensor:
        """Two tensors multiplied: ``a @ (bᵀ @ a)``."""
        other = self.random.choice([one for one in self.tensors if one.channels == source.channels])
        turned = self._node("Transpose", [other.name], ROWS, perm=[1, 0])
        mixed = _Tensor(self.build.node("MatMul", [turned.name, source.name], f"/{self.count}/mix"), source.channels)
        return _Tensor(self.build.node("MatMul", [source.name, mixed.name], f"/{self.count}/back"), source.channels)


def drawn_network(random: Random) -> onnx.ModelProto:
    """A network of Conv, Gemm, MatMul, elementwise operators, pools and copies, from ``x`` to ``y``."""
    return _Drawing(random).model()


def drawn_config(random: Random, network: Network) -> PrecisionConfig:
    """Any mix of precisions, typed by group, over any default, with a range of its own now and then."""
    floats_, every = sorted(FLOAT_PRECISIONS), sorted(ASSIGNABLE)
    config = PrecisionConfig(random.choice([*QUANTIZED_TYPES, *every]), random.choice(floats_))
    for group in network.groups:
        if random.random() < 0.5:
            config = config.with_group_precision([group], random.choice(sorted(group.allowed_precisions)))
    for tensor in network.calibrated_tensors:
        if random.random() < 0.1:
            config = config.with_range(tensor, RangeMove(random.choice((1e-4, 0.5, 20.0))))
    return config
