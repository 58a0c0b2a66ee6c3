"""Normalisations and biases of a network: where a LayerNorm or RMSNorm stands, taken apart or not, what it feeds."""

import math
from collections.abc import Iterator, Mapping, Sequence

from trt_tui.core.network.constants import constant_tensor
from trt_tui.core.network.free import Bias, Free, Norm, Port, Read
from trt_tui.core.network.graph import LayerGraph
from trt_tui.core.network.layers import Group, Kind, Layer

_OPERATORS = frozenset(("LayerNormalization", "RMSNormalization"))

_WALK_LIMIT = 64
"""The most copies that are followed between a normalisation and what multiplies its result."""


def find_free(graph: LayerGraph, groups: Sequence[Group]) -> Free:
    """The normalisations and biases of a network, by group."""
    group_of = {layer: group for group in groups for layer in group.layers}
    norms = {}
    for layer in graph.layers:
        norm = _operator(graph, layer) or _Decomposed(graph).match(layer)
        group = group_of.get(norm.layers[-1]) if norm is not None else None
        if norm is None or group is None or group.name in norms:
            continue
        norms[group.name] = _completed(graph, norm, group, {name: one.name for name, one in group_of.items()})
    return Free(norms, {group.name: _bias(graph, group) for group in groups if group.sites})


def _completed(graph: LayerGraph, norm: Norm, group: Group, group_of: Mapping[str, str]) -> Norm:
    """A normalisation with what can be done to it, and why not."""
    no_rewrite = norm.no_rewrite
    if len(norm.layers) == 1:
        no_rewrite = f"it is the operator {norm.operator} already"
    elif any(group_of.get(name) != group.name for name in norm.layers):
        no_rewrite = "its layers lie in several groups, which take a precision each"
    elif norm.scale is None and not norm.channels:
        no_rewrite = "it has no scale, and the size of its last axis is not known"
    reads: tuple[Read, ...] = ()
    scaled: set[str] = set()
    no_smooth = ""
    if norm.scale is None:
        no_smooth = "it has no scale of its own to divide by the factors"
    elif norm.axis != -1:
        no_smooth = "it normalises over several axes, not over channels alone"
    elif not norm.channels:
        no_smooth = "the size of its last axis is not known"
    elif not all(math.prod(size for size in _sizes(graph, port)) == norm.channels
                 for port in (norm.scale, norm.bias) if port is not None):
        no_smooth = "its scale is not one value for each channel"
    else:
        found = list(_reads(graph, norm, scaled))
        refused = [one for one in found if isinstance(one, str)]
        reads = tuple(one for one in found if isinstance(one, Read))
        no_smooth = refused[0] if refused else "" if reads else "no layer multiplies its result"
    return Norm(norm.operator, norm.layers, norm.source, norm.result, norm.axis, norm.epsilon, norm.scale, norm.bias,
                norm.channels, no_rewrite, () if no_smooth else reads, no_smooth,
                () if no_smooth else tuple(sorted(scaled)))


# -- the operator, and the decomposed form ----------------------------------------------------------------------------


def _operator(graph: LayerGraph, layer: Layer) -> Norm | None:
    """The normalisation that one layer computes."""
    if layer.op_type not in _OPERATORS or layer.kind is not Kind.COMPUTE or len(layer.outputs) > 1:
        return None
    attributes = graph.node(layer.name).attributes
    axis, rank = attributes.get_int("axis", -1), len(graph.shape(layer.inputs[0]) or ())
    axis = axis - rank if axis >= 0 else axis
    ports: list[Port | None] = [(layer.name, index) if len(layer.inputs) > index and layer.inputs[index] else None
                                for index in (1, 2)]
    constant = [port if port is not None and layer.inputs[port[1]] in graph.constants else None for port in ports]
    if constant != ports:
        return None  # its affine is computed
    scale, bias = constant
    return Norm(layer.op_type, (layer.name,), layer.inputs[0], layer.outputs[0], axis,
                float(attributes.get_float("epsilon", 1e-5)), scale, bias, _channels(graph, layer.inputs[0]))


class _Decomposed:
    """Matches what exporters make of a LayerNorm below opset 17, and of an RMSNorm below opset 23.

    ``(x - mean(x)) / sqrt(mean((x - mean(x))²) + epsilon) * scale + bias``; an RMSNorm has neither mean nor bias. The
    square is a Pow or a Mul, the division a Div by the root, or a Mul by its reciprocal.
    """

    def __init__(self, graph: LayerGraph) -> None:
        self.graph = graph
        self.layers: list[Layer] = []

    def match(self, first: Layer) -> Norm | None:
        """The normalisation whose first layer is ``first``."""
        self.layers = []
        if first.kind is not Kind.COMPUTE or first.op_type not in ("ReduceMean", "Pow", "Mul"):
            return None
        source = first.inputs[0]
        centred = source
        mean_axes: tuple[int, ...] | None = None
        operator = "RMSNormalization"
        square: Layer | None = first
        if first.op_type == "ReduceMean":
            operator, mean_axes = "LayerNormalization", self._mean(first)
            centring = self._only(first.outputs[0], "Sub")
            if mean_axes is None or centring is None or centring.inputs != (source, first.outputs[0]):
                return None
            centred = centring.outputs[0]
            self.layers += [first, centring]
            users = self._users(centred)
            square = next((one for one in users if self._is_square(one, centred)), None)
        if square is None or not self._is_square(square, centred):
            return None
        mean = self._only(square.outputs[0], "ReduceMean")
        axes = self._mean(mean) if mean is not None else None
        if mean is None or axes is None or mean_axes not in (None, axes):
            return None
        added = self._only(mean.outputs[0], "Add")
        epsilon = self._other_scalar(added, mean.outputs[0])
        if added is None or epsilon is None:
            return None
        self.layers += [square, mean, added]
        divided = self._divided(added.outputs[0], centred)
        if divided is None:
            return None
        return self._with_affine(operator, source, centred, axes, epsilon, divided)

    def _with_affine(self, operator: str, source: str, centred: str, axes: tuple[int, ...], epsilon: float,
                     divided: Layer) -> Norm | None:
        """The normalisation that ends in ``divided``, or in the scale and bias behind it."""
        last, ports = divided, []
        sizes = (self.graph.shape(source) or ())[min(axes):]
        for operators in (("Mul",), ("Add",)) if operator == "LayerNormalization" else (("Mul",),):
            following = self._only(last.outputs[0], *operators)
            index = self._constant_index(following, sizes) if following is not None else None
            if following is None or index is None:
                break
            ports.append((following.name, index))
            last = following
            self.layers.append(following)
        if operator == "LayerNormalization" and centred != source and len(self._users(centred)) != 2:
            return None
        if any(not self._within(layer.outputs[0]) for layer in self.layers if layer is not last):
            return None
        rank = len(self.graph.shape(source) or ())
        trailing = tuple(range(-len(axes), 0))
        refused = "" if axes == trailing else "it normalises over an axis that is not the last: the operator would " \
                                              "need Transposes around it"
        if not rank:
            refused = "the rank of what it normalises is not known"
        scale, bias = (*ports, None, None)[:2]
        return Norm(operator, tuple(one.name for one in sorted(self.layers, key=lambda one: one.index)), source,
                    last.outputs[0], min(axes), epsilon, scale, bias, _channels(self.graph, source), refused)

    def _divided(self, variance: str, centred: str) -> Layer | None:
        """The layer that divides by the root of the variance."""
        root = self._only(variance, "Sqrt", "Pow")
        if root is None or root.op_type == "Pow" and self._other_scalar(root, variance) not in (0.5, -0.5):
            return None
        self.layers.append(root)
        inverted = root.op_type == "Pow" and self._other_scalar(root, variance) == -0.5
        divisor = root.outputs[0]
        reciprocal = None if inverted else self._only(divisor, "Reciprocal", "Div")
        if reciprocal is not None and (reciprocal.op_type == "Reciprocal" or reciprocal.inputs[1] == divisor
                                       and _scalar(self.graph, reciprocal.inputs[0]) == 1.0):
            self.layers.append(reciprocal)
            divisor, inverted = reciprocal.outputs[0], True
        divided = self._only(divisor, "Mul" if inverted else "Div")
        if divided is None or centred not in divided.inputs or not inverted and divided.inputs[0] != centred:
            return None
        self.layers.append(divided)
        return divided

    # -- pieces --

    def _users(self, tensor: str) -> list[Layer]:
        return [self.graph.by_name[name] for name in self.graph.consumers.get(tensor, ())]

    def _only(self, tensor: str, *operators: str) -> Layer | None:
        """The only layer that reads a tensor, where it is one of some operators."""
        users = self._users(tensor)
        is_output = any(info.name == tensor for info in self.graph.outputs)
        found = users[0] if len(users) == 1 and not is_output else None
        return found if found is not None and found.op_type in operators and found.kind is Kind.COMPUTE else None

    def _within(self, tensor: str) -> bool:
        inside = {layer.name for layer in self.layers}
        is_output = any(info.name == tensor for info in self.graph.outputs)
        return not is_output and inside.issuperset(self.graph.consumers.get(tensor, ()))

    def _is_square(self, layer: Layer, tensor: str) -> bool:
        if layer.op_type == "Mul":
            return layer.inputs == (tensor, tensor)
        return layer.op_type == "Pow" and layer.inputs[0] == tensor and _scalar(self.graph, layer.inputs[1]) == 2.0

    def _mean(self, layer: Layer) -> tuple[int, ...] | None:
        """The axes of a mean that keeps them, counted from the end and in order; None for another one."""
        attributes = self.graph.node(layer.name).attributes
        rank = len(self.graph.shape(layer.inputs[0]) or ())
        axes = list(attributes.get_ints("axes", ())) if "axes" in attributes else []
        if len(layer.inputs) > 1 and layer.inputs[1]:
            stored = constant_tensor(self.graph.value(layer.inputs[1]))
            axes = [] if stored is None else [int(axis) for axis in stored.numpy().reshape(-1)]
        if not axes or not attributes.get_int("keepdims", 1) or not rank and any(axis >= 0 for axis in axes):
            return None
        return tuple(sorted(axis - rank if axis >= 0 else axis for axis in axes))

    def _other_scalar(self, layer: Layer | None, tensor: str) -> float | None:
        """The number beside a tensor that a layer reads."""
        others = [name for name in layer.inputs if name != tensor] if layer is not None else []
        return _scalar(self.graph, others[0]) if len(others) == 1 else None

    def _constant_index(self, layer: Layer, sizes: Sequence[object]) -> int | None:
        """Which input of a layer holds one value for each element that is normalised over."""
        for index, name in enumerate(layer.inputs):
            shape = self.graph.shape(name)
            if name not in self.graph.constants or shape is None:
                continue
            known = [size for size in shape if isinstance(size, int)]
            trimmed = known[-len(sizes):] if sizes else known[-1:]
            if len(known) == len(shape) and math.prod(known) == math.prod(trimmed) \
                    and (list(trimmed) == list(sizes) or len(sizes) == 1 and not isinstance(sizes[0], int)):
                return index
        return None


def _scalar(graph: LayerGraph, name: str) -> float | None:
    """The value of a stored constant of one element."""
    stored = constant_tensor(graph.value(name)) if name in graph.constants else None
    return float(stored.numpy().reshape(-1)[0]) if stored is not None and stored.size == 1 else None


def _channels(graph: LayerGraph, tensor: str) -> int:
    shape = graph.shape(tensor)
    return shape[-1] if shape and isinstance(shape[-1], int) else 0


def _sizes(graph: LayerGraph, port: Port) -> list[int]:
    layer, index = port
    return [size if isinstance(size, int) else 0 for size in graph.shape(graph.by_name[layer].inputs[index]) or (0,)]


# -- what a normalisation feeds ---------------------------------------------------------------------------------------


def _reads(graph: LayerGraph, norm: Norm, made: set[str]) -> Iterator[Read | str]:
    """What multiplies a normalisation's result, copies on the way followed, and why its channels cannot be scaled.

    Args:
        made: Takes the result and its copies.
    """
    outputs = {info.name for info in graph.outputs}
    seen: set[str] = set()
    stack = [norm.result]
    joined: list[Layer] = []
    while stack:
        tensor = stack.pop()
        if tensor in outputs:
            yield f"{tensor} is an output of the network"
            return
        for name in graph.consumers.get(tensor, ()):
            layer = graph.by_name[name]
            if layer.kind is Kind.SHAPE or layer.op_type in ("Shape", "Size"):
                continue
            read = _read(graph, layer, tensor, norm.channels)
            if read is not None:
                yield read
            elif layer.kind is Kind.COPY and _keeps_channels(graph, layer, tensor, norm.channels):
                if name in seen:
                    continue
                seen.add(name)
                if layer.op_type == "Concat":
                    joined.append(layer)
                stack.extend(output for output in layer.outputs if output)
                if len(seen) > _WALK_LIMIT:
                    yield "too many layers read it to be followed"
                    return
            else:
                yield f"{name} ({layer.op_type}) reads it too, and would see the scaled channels"
                return
    made.update((norm.result, *(output for name in seen for output in graph.by_name[name].outputs if output)))
    for layer in joined:
        if not made.issuperset(layer.inputs):
            yield f"{layer.name} joins it with what is not scaled"
            return


def _read(graph: LayerGraph, layer: Layer, tensor: str, channels: int) -> Read | None:
    """A MatMul or Gemm of a tensor, its channels last, by a stored weight."""
    if layer.op_type not in ("MatMul", "Gemm") or layer.kind is not Kind.COMPUTE or len(layer.inputs) < 2:
        return None
    weight, attributes = layer.inputs[1], graph.node(layer.name).attributes
    shape = graph.shape(weight)
    if layer.inputs[0] != tensor or weight not in graph.constants or shape is None or len(shape) != 2 \
            or not graph.is_float(weight) or attributes.get_int("transA", False):
        return None
    axis = 1 if layer.op_type == "Gemm" and attributes.get_int("transB", False) else 0
    return Read((layer.name, 1), weight, axis, tensor) if shape[axis] == channels else None


def _keeps_channels(graph: LayerGraph, layer: Layer, tensor: str, channels: int) -> bool:
    """Whether a copy keeps the channels, the last axis of its input, last and whole."""
    attributes = graph.node(layer.name).attributes
    before, after = graph.shape(tensor), graph.shape(layer.outputs[0])
    if before is None or after is None or before[-1:] != (channels,) or after[-1:] != (channels,):
        return False
    rank = len(before)
    if layer.op_type in ("Identity", "Dropout"):
        return True
    if layer.op_type in ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Tile", "Expand"):
        # rows stay rows where the last axis keeps its size
        return layer.inputs[0] == tensor
    if layer.op_type == "Transpose":
        order = attributes.get_ints("perm", ()) if "perm" in attributes else ()
        return len(order) == rank and order[-1] == rank - 1
    if layer.op_type in ("Concat", "Split", "Gather"):
        axis = attributes.get_int("axis", 0)
        return axis not in (-1, rank - 1) and (layer.inputs[0] == tensor or layer.op_type == "Concat")
    if layer.op_type == "Slice":
        return layer.inputs[0] == tensor and _slices_whole_rows(graph, layer, rank)
    return layer.op_type == "Pad" and layer.inputs[0] == tensor and _pads_with_zeros(graph, layer)


def _slices_whole_rows(graph: LayerGraph, layer: Layer, rank: int) -> bool:
    if len(layer.inputs) < 4 or not layer.inputs[3]:
        return False
    axes = constant_tensor(graph.value(layer.inputs[3])) if layer.inputs[3] in graph.constants else None
    return axes is not None and not {-1, rank - 1} & {int(axis) for axis in axes.numpy().reshape(-1)}


def _pads_with_zeros(graph: LayerGraph, layer: Layer) -> bool:
    constant = graph.node(layer.name).attributes.get_string("mode", "constant") == "constant"
    value = layer.inputs[2] if len(layer.inputs) > 2 else ""
    return constant and (not value or _scalar(graph, value) == 0.0)


# -- biases -----------------------------------------------------------------------------------------------------------


def _bias(graph: LayerGraph, group: Group) -> Bias:
    """Where a shift of what a group multiplies can be folded in."""
    weights, first = group.weights(), graph.by_name[group.name]
    if len(weights) != 1:
        return Bias(first.name, None, refused="it multiplies two tensors that are computed: there is no weight whose "
                                              "error a bias could make up for")
    site = weights[0]
    layer = graph.by_name[site.layer]
    shape = graph.shape(site.tensor) or ()
    channels = shape[site.axis] if site.index == 1 and site.axis is not None else None
    if not isinstance(channels, int):
        return Bias(layer.name, None, refused="its weight has no axis of output channels")
    if layer.op_type == "ConvTranspose":
        return Bias(layer.name, None, refused="what a ConvTranspose adds up differs from place to place")
    if layer.op_type == "MatMul":
        return _added(graph, group, layer, channels)
    attributes = graph.node(layer.name).attributes
    if layer.op_type == "Gemm" and any(attributes.get_float(factor, 1.0) != 1.0 for factor in ("alpha", "beta")):
        return Bias(layer.name, None, refused="it scales its product or its bias (alpha, beta)")
    bias = layer.inputs[2] if len(layer.inputs) > 2 else ""
    if bias and (bias not in graph.constants or math.prod(_sizes(graph, (layer.name, 2))) != channels):
        return Bias(layer.name, None, refused="its bias is no constant of one value for each channel")
    return Bias(layer.name, (layer.name, 2), channels)


def _added(graph: LayerGraph, group: Group, layer: Layer, channels: int) -> Bias:
    """The Add of a constant behind a MatMul, as far as it belongs to the group."""
    users = graph.consumers.get(layer.outputs[0], ())
    behind = graph.by_name[users[0]] if len(users) == 1 else None
    if behind is not None and behind.op_type == "Add" and behind.name in group.layers:
        for index, name in enumerate(behind.inputs):
            if name in graph.constants and math.prod(_sizes(graph, (behind.name, index))) == channels \
                    and _sizes(graph, (behind.name, index))[-1] == channels:
                return Bias(layer.name, (behind.name, index), channels)
    return Bias(layer.name, None, refused="no Add of a constant follows the MatMul: a bias would be one more operator")
