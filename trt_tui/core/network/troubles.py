"""Layers that are known to gain little or to lose much in codes, each with where that is known from."""

from collections.abc import Iterable, Mapping

from trt_tui.core.network.graph import LayerGraph
from trt_tui.core.network.layers import Group, Layer, Trouble
from trt_tui.words import plural

LEAST_CHANNELS = 16
"""ModelOpt leaves out Convs with fewer channels, and MatMuls and Gemms with a smaller K or N."""

MODELOPT = "ModelOpt 0.47"
RTX = "TensorRT-RTX 1.7"
FQ_VIT = "Lin et al., FQ-ViT, 2022"
DOREFA = "Zhou et al., DoReFa-Net, 2016"


def narrow(network: LayerGraph, layers: Iterable[Layer]) -> dict[str, str]:
    """Which of some Convs ModelOpt leaves out by rules of its own, whatever it is told, and why.

    The rules are those of ModelOpt 0.47, ``find_nodes_from_convs_to_exclude`` in
    ``modelopt/onnx/quantization/graph_utils.py``.
    """
    inputs = {info.name for info in network.inputs}
    reasons = {}
    for layer in layers:
        if layer.op_type != "Conv":
            continue
        weight = network.shape(layer.inputs[1])
        if layer.inputs[1] not in network.constants or weight is None or not all(isinstance(n, int) for n in weight):
            reasons[layer.name] = "its weight is computed"
            continue
        made, read, *kernel = (int(size) for size in weight if isinstance(size, int))
        shape = network.shape(layer.inputs[0])
        channels = shape[1] if shape is not None and len(shape) > 1 else None
        grouped = isinstance(channels, int) and channels != read
        wide = made >= LEAST_CHANNELS or read >= LEAST_CHANNELS
        if min(made, read) >= LEAST_CHANNELS:
            continue
        if grouped:
            taken = made % 8 == 0 and all(size >= 3 for size in kernel)
        else:
            first = not inputs.isdisjoint(layer.inputs)
            taken = (made % 8 == 0 or read % 8 == 0) and (first or wide) and len(set(kernel)) == 1
        if not taken:
            reasons[layer.name] = f"{plural(read, 'channel')} in, {made} out"
    return reasons


def troubles_of(network: LayerGraph, layers: Mapping[str, Layer], groups: Iterable[Group]
                ) -> dict[str, tuple[Trouble, ...]]:
    """The troubles of each group that can be quantized, by its name; groups without any are left out."""
    quantizable = [group for group in groups if group.quantizable]
    found: dict[str, tuple[Trouble, ...]] = {}
    for group in quantizable:
        known = list(_of_layers(network, group, layers))
        for place, which in ((0, "first"), (-1, "last")):
            if len(quantizable) > 2 and group is quantizable[place]:
                known.append(Trouble(f"the {which} layer that can be quantized: often left in a float type", DOREFA))
        if known:
            found[group.name] = tuple(dict.fromkeys(known))
    return found


def _of_layers(network: LayerGraph, group: Group, layers: Mapping[str, Layer]) -> Iterable[Trouble]:
    for layer in (layers[name] for name in sorted(group.anchors)):
        for why in narrow(network, [layer]).values():
            yield Trouble(f"a Conv with {why}: ModelOpt leaves it out, as quantization saves no time there", MODELOPT)
        if layer.op_type == "ConvTranspose":
            yield Trouble("a ConvTranspose: asked INT8 it is made Half or Float, a loss without speed", RTX)
        if layer.op_type in ("MatMul", "Gemm") and (why := _small(network, layer)):
            yield Trouble(f"{why}: ModelOpt leaves it out, as quantization saves no time there", MODELOPT)
        if group.role == "PV":
            yield Trouble("it reads a Softmax: most values are near 0, where a scale up to 1 leaves few codes", FQ_VIT)


def _small(network: LayerGraph, layer: Layer) -> str:
    """Why a MatMul or Gemm is too small for codes, "" where it is not or sizes are open.

    The rules are those of ``find_nodes_from_matmul_to_exclude`` in ``modelopt/onnx/quantization/graph_utils.py``: M or
    N of 1 (GEMV), K or N below 16.
    """
    made, read = network.shape(layer.outputs[0]), network.shape(layer.inputs[0])
    if made is None or read is None or len(made) < 2 or len(read) < 2:
        return ""
    rows, columns, inner = made[-2], made[-1], read[-1]
    if rows == 1 or columns == 1:
        return f"a product of {'one row' if rows == 1 else 'one column'}"
    for size, what in ((inner, "K"), (columns, "N")):
        if isinstance(size, int) and size < LEAST_CHANNELS:
            return f"a product with {what} = {size}"
    return ""


def troubles_in(troubles: Mapping[str, tuple[Trouble, ...]], group: Group, coded: bool) -> list[str]:
    """What is said of a group that runs in codes; nothing of any other."""
    return [one.said for one in troubles.get(group.name, ())] if coded else []
