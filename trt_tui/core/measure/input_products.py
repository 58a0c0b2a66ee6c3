"""The sums of products of a layer's inputs over samples, from which the error at its output follows for any weight.

A Conv is a product of a matrix with the patches of its input (im2col). The rows of a layer are a fixed random choice of
its patches, or of its input vectors, because a few rows for each column suffice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from trt_tui.core.network.layers import Layer, QdqSite
from trt_tui.core.network.network import Network
from trt_tui.core.quantized_types import QuantizedType

MIN_ROWS = 4096
ROWS_PER_COLUMN = 4
"""The rows that are read of a layer: this number for each column, and at least `MIN_ROWS`."""

_SEED = 0


@dataclass(frozen=True)
class MatrixForm:
    """A weight as matrices ``(groups, rows, columns)``, whose rows are output channels, and its input as rows of them.

    Attributes:
        shape: The shape of the weight.
        groups: The number of groups of a grouped Conv; 1 for other layers.
        is_conv: True for a Conv.
        channel_axis: The axis of the output channels in the weight.
        transposes_input: True for a Gemm with ``transA``.
        strides, dilations: Of a Conv, one for each spatial axis.
        pads: The padding of a Conv before and behind each spatial axis.
        auto_pad: The attribute of a Conv.
    """

    shape: tuple[int, ...]
    groups: int = 1
    is_conv: bool = False
    channel_axis: int = 0
    transposes_input: bool = False
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    pads: tuple[tuple[int, int], ...] = ()
    auto_pad: str = "NOTSET"

    @property
    def columns(self) -> int:
        return math.prod(self.shape[1:]) if self.is_conv else self.shape[1 - self.channel_axis]

    @property
    def product_bytes(self) -> int:
        """The size of the sums of products in bytes, as float32."""
        return 4 * self.groups * self.columns**2

    def convert_to_matrices(self, weight: np.ndarray) -> np.ndarray:
        """Returns a weight, or an array of its shape, as ``(groups, rows, columns)``."""
        if self.is_conv:
            return weight.reshape(self.groups, self.shape[0] // self.groups, -1)
        return (weight if self.channel_axis == 0 else weight.T)[None]

    def convert_from_matrices(self, matrices: np.ndarray) -> np.ndarray:
        """Returns matrices ``(groups, rows, columns)`` in the shape of the weight."""
        if self.is_conv:
            return matrices.reshape(self.shape)
        matrix: np.ndarray = matrices[0]
        return matrix if self.channel_axis == 0 else matrix.T

    def select_input_rows(self, array: np.ndarray, count: int) -> np.ndarray:
        """Returns at most ``count`` rows of a layer's input, float32 ``(groups, rows, columns)``.

        The rows are the same ones for inputs of the same shape.
        """
        if not self.is_conv:
            matrix = array.T if self.transposes_input else array.reshape(-1, array.shape[-1])
            return np.ascontiguousarray(matrix[_choose_rows(len(matrix), count)], np.float32)[None]
        patches = self._view_patches(array)
        spatial = patches.shape[2:2 + len(self.strides)]
        positions = np.unravel_index(_choose_rows(math.prod((len(array), *spatial)), count), (len(array), *spatial))
        rows = patches.transpose(0, *range(2, 2 + len(spatial)), 1, *range(2 + len(spatial), patches.ndim))[positions]
        return np.ascontiguousarray(rows.reshape(len(rows), self.groups, self.columns).swapaxes(0, 1), np.float32)

    def _view_patches(self, array: np.ndarray) -> np.ndarray:
        """Returns a view of the patches of a Conv's input: ``(batch, channels, *positions, *kernel)``."""
        kernel, axes = self.shape[2:], tuple(range(2, array.ndim))
        extents = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, self.dilations, strict=True)]
        padded = np.pad(array, [(0, 0), (0, 0), *self._find_pads(array.shape[2:], extents)])
        windows = np.lib.stride_tricks.sliding_window_view(padded, extents, axes)
        steps = [slice(None, None, stride) for stride in self.strides]
        taps = [slice(None, None, dilation) for dilation in self.dilations]
        view: np.ndarray = windows[(slice(None), slice(None), *steps, *taps)]
        return view

    def _find_pads(self, sizes: tuple[int, ...], extents: list[int]) -> list[tuple[int, int]]:
        if not self.auto_pad.startswith("SAME"):
            return list(self.pads)
        totals = [max((-(-size // stride) - 1) * stride + extent - size, 0)
                  for size, stride, extent in zip(sizes, self.strides, extents, strict=True)]
        pads = [(total // 2, total - total // 2) for total in totals]
        return pads if self.auto_pad == "SAME_UPPER" else [(behind, before) for before, behind in pads]


def _choose_rows(total: int, count: int) -> np.ndarray:
    """Returns the indices of at most ``count`` of ``total`` rows in order; the same ones each time."""
    if total <= count:
        return np.arange(total)
    return np.sort(np.random.default_rng(_SEED).choice(total, count, replace=False, shuffle=False))


def find_matrix_form(network: Network, layer: Layer, site: QdqSite) -> MatrixForm | None:
    """Returns the weight of a layer as matrices; None if it is not a kernel or a matrix behind the input."""
    shape = tuple(size for size in network.shape(site.tensor) or () if isinstance(size, int))
    node = network.node(layer.name)
    if layer.op_type == "Conv" and site.axis == 0 and site.index == 1:
        spatial = len(shape) - 2
        pads = node.attributes.get_ints("pads", [0] * 2 * spatial)
        auto_pad = node.attributes.get_string("auto_pad", "NOTSET")
        return MatrixForm(shape, node.attributes.get_int("group", 1), True, 0, False,
                          tuple(node.attributes.get_ints("strides", [1] * spatial)),
                          tuple(node.attributes.get_ints("dilations", [1] * spatial)),
                          tuple((0, 0) if auto_pad == "VALID" else (pads[axis], pads[axis + spatial])
                                for axis in range(spatial)), auto_pad)
    if layer.op_type in ("Gemm", "MatMul") and site.index == 1 and len(shape) == 2 and site.axis in (0, 1):
        return MatrixForm(shape, channel_axis=site.axis, transposes_input=layer.op_type == "Gemm"
                          and bool(node.attributes.get_int("transA", 0)))
    return None


@dataclass
class InputProductCollector:
    """A collector of the sums of products of two inputs of a layer.

    Attributes:
        form: The form of the layer.
        rows_per_feed: The number of rows that are read of one feed.
        quantized_type: The type to which the input is rounded first; None if the layer reads floats.
        scale: The scale of the input in that type.
        products: The sums, float32 ``(groups, columns, columns)``.
    """

    form: MatrixForm
    rows_per_feed: int
    quantized_type: QuantizedType | None = None
    scale: float = 1.0
    products: np.ndarray = field(default_factory=lambda: np.zeros(()))

    def add_values(self, array: np.ndarray) -> None:
        """Adds rows of a float array to the sums.

        Raises:
            ValueError: The rows contain NaN or an infinity.
        """
        rows = self.form.select_input_rows(array, self.rows_per_feed)
        if not np.isfinite(rows).all():
            raise ValueError("NaN or an infinity")
        if self.quantized_type is not None:
            rows = self.quantized_type.quantize(rows / np.float32(self.scale)) * np.float32(self.scale)
        self.products = self.products + rows.swapaxes(1, 2) @ rows

    def merge_values(self, later_collector: InputProductCollector) -> None:
        """Adds the sums of another collector, which has seen later feeds."""
        self.products = self.products + later_collector.products
