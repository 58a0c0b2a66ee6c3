"""Where a layer belongs in the tree.

A scope comes from the first of these that says something:

1. what the file states, `stated_scope`: metadata of torch's default exporter, the calls of inlined functions;
2. node names: ``/layer1/0/conv/Conv`` (PyTorch's older exporter), ``a/b/c`` (TensorFlow), ``layer1.0.conv``;
3. structure, where no layer's name carries a scope: the groups in network order are cut wherever a single tensor is
   alive, and what lies between two cuts is a block (a residual block, a fire or inception module, half an encoder
   layer). Tensors that reach over half of the network and are read three times or more (attention masks) do not count
   as alive. A network that is one plain chain is cut behind its pools.
"""

import ast
import re
from collections.abc import Iterable, Mapping, Sequence

from trt_tui.core.network.layers import Group, Layer

_NAME_SCOPES = "pkg.torch.onnx.name_scopes"
_NAMESPACE = "namespace"
_NO_MODULE = "_empty_nn_module_stack_from_metadata_hook"

_POOLS = frozenset(("MaxPool", "AveragePool", "LpPool"))
_LONG_CHAIN = 8


def stated_scope(metadata: Mapping[str, str], calls: Iterable[str] = ()) -> tuple[str, ...]:
    """The scope that the file states for a node, outermost part first; () where it states none.

    Reads ``pkg.torch.onnx.name_scopes`` (the repr of a list of module paths, each with those around it, the last one
    the node's own name), else ``namespace`` (``path: class/path: class/name: operator``).

    Args:
        metadata: The node's `metadata_props`.
        calls: Names of the function calls that the node was inlined from.
    """
    return (*_module_parts(_modules(metadata)), *(part for call in calls for part in _split(call)))


def _modules(metadata: Mapping[str, str]) -> list[str]:
    text = metadata.get(_NAME_SCOPES)
    if text:
        try:
            modules = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            modules = None
        if isinstance(modules, (list, tuple)) and all(isinstance(module, str) for module in modules):
            return list(modules[:-1])
    text = metadata.get(_NAMESPACE, "")
    if ": " in text:
        return [part.partition(": ")[0] for part in text.split("/")][:-1]
    return []


def _module_parts(modules: Iterable[str]) -> list[str]:
    parts: list[str] = []
    outer = ""
    for module in modules:
        if not module or module == _NO_MODULE:
            continue
        inner = module[len(outer) + 1:] if outer and module.startswith(outer + ".") else module
        if module != outer:
            parts.extend(part for part in inner.split(".") if part)
        outer = module
    return parts


def _split(name: str) -> list[str]:
    return [part for part in name.replace("/", ".").split(".") if part]


def _from_name(name: str) -> tuple[tuple[str, ...], str]:
    """Scope and own part of a node name."""
    if name.startswith("node_of_"):  # named after its first output
        name = name[len("node_of_"):].removesuffix("_output_0")
    if "/" in name:
        scope, _, own = name.rstrip("/").rpartition("/")
        return tuple(_split(scope)), own or name
    *scope_parts, own = [part for part in name.split(".") if part] or [name]
    if any(part.isidentifier() for part in scope_parts):
        return tuple(scope_parts), own
    return (), name


def place(layer: Layer) -> tuple[tuple[str, ...], str]:
    """Scope and own part of a layer."""
    scope, own = _from_name(layer.name)
    if not layer.scope:
        return scope, own
    if own.startswith("node_"):  # torch's default exporter numbers its nodes through the whole network
        own = re.sub(r"_\d+$", "", own[len("node_"):])
    return tuple(part for stated in layer.scope for part in _split(stated)), own


# -- structure ------------------------------------------------------------------------------------------------------


def places_by_structure(groups: Sequence[Group], by_name: Mapping[str, Layer]) -> list[tuple[tuple[str, ...], str]]:
    """Scope and role of each group, by where a single tensor is alive. A role is the operator, ``+Add`` for a join."""
    segments = _segments(groups)
    if len(groups) > _LONG_CHAIN and all(len(segment) == 1 for segment in segments):
        segments = _cut_behind_pools(groups)
    result: list[tuple[tuple[str, ...], str]] = []
    block = 0
    for segment in segments:
        scope: tuple[str, ...] = ()
        if len(segment) > 1:
            scope = (f"block {block}",)
            block += 1
        for index in segment:
            group = groups[index]
            joins = any(by_name[name].op_type in ("Add", "Sum") and sum(map(bool, by_name[name].inputs)) > 1
                        and len(group.inputs) > 1 for name in group.layers[1:])
            result.append((scope, f"{group.operator}+Add" if joins else group.operator))
    return result


def _segments(groups: Sequence[Group]) -> list[list[int]]:
    made = {tensor: index for index, group in enumerate(groups) for tensor in group.outputs}
    last: dict[str, int] = {}
    readers: dict[str, int] = {}
    for index, group in enumerate(groups):
        for tensor in group.inputs:
            if tensor in made:
                last[tensor] = index
                readers[tensor] = readers.get(tensor, 0) + 1
    ending: list[int] = [0] * len(groups)
    counted = {tensor for tensor, end in last.items()
               if readers[tensor] < 3 or end - made[tensor] <= len(groups) / 2}
    for tensor in counted:
        ending[last[tensor]] += 1
    alive, segments, current = 0, [], []
    for index, group in enumerate(groups):
        current.append(index)
        alive += sum(tensor in counted for tensor in group.outputs) - ending[index]
        if alive <= 1:
            segments.append(current)
            current = []
    if current:
        segments.append(current)
    return segments


def _cut_behind_pools(groups: Sequence[Group]) -> list[list[int]]:
    segments: list[list[int]] = [[]]
    for index, group in enumerate(groups):
        segments[-1].append(index)
        if group.operator in _POOLS:
            segments.append([])
    return [segment for segment in segments if segment]
