"""Seeded random inputs for any network."""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import onnx
from onnx import helper
from onnxruntime.quantization import CalibrationDataReader

_UNBOUNDED_INTEGERS = 10


class Handed(CalibrationDataReader):
    """Hands feeds to ONNX Runtime's quantizer."""

    def __init__(self, feeds: Iterable[Mapping[str, np.ndarray]]) -> None:
        self._left = iter(feeds)

    def get_next(self) -> dict[str, np.ndarray] | None:
        feed = next(self._left, None)
        return dict(feed) if feed is not None else None


def feeds(model: onnx.ModelProto, seed: int = 0, n: int = 1, **dims: int) -> dict[str, np.ndarray]:
    """Random inputs of the declared types and shapes, the same for the same arguments.

    Floats of 4-D shapes of at least 8 by 8 are `random_images`, whose coarse patches make pooled features differ
    between samples; other floats are standard normal. Integers that index a Gather stay within its table; inputs
    whose name contains ``mask`` are a `random_mask`.

    Args:
        model: The network; graph inputs that have an initializer are left out.
        seed: Of ``numpy.random.default_rng``.
        n: Size of a first dimension that is symbolic or unknown.
        dims: Sizes of symbolic dimensions by name; these win over ``n``. Any other unknown dimension is 1.
    """
    rng = np.random.default_rng(seed)
    weights = {tensor.name for tensor in model.graph.initializer}
    limits = dict(_index_limits(model.graph))
    fed = {}
    for value in model.graph.input:
        if value.name in weights or not value.type.HasField("tensor_type"):
            continue
        declared = value.type.tensor_type
        shape = [
            dim.dim_value if dim.HasField("dim_value") else dims.get(dim.dim_param, n if axis == 0 else 1)
            for axis, dim in enumerate(declared.shape.dim)
        ]
        dtype = helper.tensor_dtype_to_np_dtype(declared.elem_type)
        limit = limits.get(value.name, _UNBOUNDED_INTEGERS)
        fed[value.name] = _random(rng, value.name, tuple(shape), np.dtype(dtype), limit)
    return fed


def random_images(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Float32 noise over 8×8 coarse patches, mean 0 and variance 1; ``shape`` is (count, channels, height, width)."""
    patches = rng.standard_normal((*shape[:2], 8, 8), dtype=np.float32)
    rows, columns = (np.arange(size) * 8 // size for size in shape[2:])
    noise = rng.standard_normal(shape, dtype=np.float32)
    return np.float32(0.6) * noise + np.float32(0.8) * patches[:, :, rows[:, None], columns]


def random_mask(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Int64 ones with up to a third zeros at the end of the last axis, another number in each row."""
    length = shape[-1]
    kept = length - rng.integers(0, length // 3 + 1, size=shape[:-1] + (1,))
    return (np.arange(length) < kept).astype(np.int64)


def _random(rng: np.random.Generator, name: str, shape: tuple[int, ...], dtype: np.dtype, limit: int) -> np.ndarray:
    if "mask" in name.lower() and shape:
        return random_mask(rng, shape).astype(dtype)
    if dtype == np.bool_:
        return rng.integers(0, 2, size=shape).astype(np.bool_)
    if np.issubdtype(dtype, np.integer):
        return rng.integers(0, limit, size=shape).astype(dtype)
    if len(shape) == 4 and min(shape[2:]) >= 8:
        return random_images(rng, shape).astype(dtype)
    return np.asarray(rng.standard_normal(shape)).astype(dtype)


def _index_limits(graph: onnx.GraphProto) -> Iterator[tuple[str, int]]:
    """Graph inputs that index a Gather along axis 0, with the size of its table."""
    sizes = {tensor.name: tensor.dims[0] for tensor in graph.initializer if tensor.dims}
    origin = {value.name: value.name for value in graph.input}
    for node in graph.node:
        if node.op_type in ("Cast", "Identity") and node.input[0] in origin:
            origin[node.output[0]] = origin[node.input[0]]
        elif node.op_type == "Gather" and node.input[0] in sizes and node.input[1] in origin:
            yield origin[node.input[1]], sizes[node.input[0]]
