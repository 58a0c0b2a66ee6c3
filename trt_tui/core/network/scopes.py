"""The scope of each layer in the layer tree.

A scope comes from the first of these sources that provides one:

1. the file, by `read_scope_from_metadata`: metadata of torch's default exporter, the calls of inlined functions;
2. node names: ``/layer1/0/conv/Conv`` (PyTorch's older exporter), ``a/b/c`` (TensorFlow), ``layer1.0.conv``;
3. structure, if no node name contains a scope. The groups in network order are cut wherever a single tensor is alive,
  and each part between two cuts is a block (a residual block, a fire or inception module, half an encoder layer).
  Tensors that reach over half of the network and are read three times or more (attention masks) do not count as alive.
  A network that is one plain chain is cut behind its pools.
"""

import ast
import re
from collections.abc import Iterable, Mapping, Sequence

from trt_tui.core.network.layers import FusionGroup, Layer

_NAME_SCOPES = "pkg.torch.onnx.name_scopes"
_NAMESPACE = "namespace"
_NO_MODULE = "_empty_nn_module_stack_from_metadata_hook"

_POOLING_OPERATORS = frozenset(("MaxPool", "AveragePool", "LpPool"))
_MAX_CHAIN_GROUPS = 8


def read_scope_from_metadata(metadata: Mapping[str, str], function_calls: Iterable[str] = ()) -> tuple[str, ...]:
    """Returns the scope that the file states for a node, outermost part first; () if there is none.

    Reads ``pkg.torch.onnx.name_scopes``, or else ``namespace`` (``path: class/path: class/name: operator``). The former
    contains the repr of a list of module paths, outermost first, which ends with the name of the node.

    Args:
        metadata: The node's `metadata_props`.
        function_calls: Names of the function calls that the node was inlined from.
    """
    return (*_split_module_paths(_read_module_paths(metadata)), *(part for call in function_calls
                                                                  for part in _split_name_into_parts(call)))


def _read_module_paths(metadata: Mapping[str, str]) -> list[str]:
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


def _split_module_paths(module_paths: Iterable[str]) -> list[str]:
    parts: list[str] = []
    outer = ""
    for module in module_paths:
        if not module or module == _NO_MODULE:
            continue
        inner = module[len(outer) + 1:] if outer and module.startswith(outer + ".") else module
        if module != outer:
            parts.extend(part for part in inner.split(".") if part)
        outer = module
    return parts


def _split_name_into_parts(name: str) -> list[str]:
    return [part for part in name.replace("/", ".").split(".") if part]


def _parse_node_name(node_name: str) -> tuple[tuple[str, ...], str]:
    """Returns the scope in a node name and the part of the name behind it."""
    if node_name.startswith("node_of_"):  # the node is named after its first output
        node_name = node_name[len("node_of_"):].removesuffix("_output_0")
    if "/" in node_name:
        scope, _, own_part = node_name.rstrip("/").rpartition("/")
        return tuple(_split_name_into_parts(scope)), own_part or node_name
    *scope_parts, own_part = [part for part in node_name.split(".") if part] or [node_name]
    if any(part.isidentifier() for part in scope_parts):
        return tuple(scope_parts), own_part
    return (), node_name


def find_layer_scope(layer: Layer) -> tuple[tuple[str, ...], str]:
    """Returns the scope of a layer, from the file or else from its name, and the layer's own part of the name."""
    scope, own_part = _parse_node_name(layer.name)
    if not layer.scope:
        return scope, own_part
    if own_part.startswith("node_"):  # torch's default exporter numbers the nodes of the whole network
        own_part = re.sub(r"_\d+$", "", own_part[len("node_"):])
    return tuple(part for scope_name in layer.scope for part in _split_name_into_parts(scope_name)), own_part


# -- structure ------------------------------------------------------------------------------------------------------


def find_scopes_by_structure(groups: Sequence[FusionGroup],
                             layer_by_name: Mapping[str, Layer]) -> list[tuple[tuple[str, ...], str]]:
    """Returns a scope and a role for each group of a network without names, from the tensors alive between groups.

    A role is the operator, with the suffix ``+Add`` for a join.
    """
    segments = _split_groups_at_single_tensors(groups)
    if len(groups) > _MAX_CHAIN_GROUPS and all(len(segment) == 1 for segment in segments):
        segments = _split_groups_after_pooling(groups)
    scopes_and_roles: list[tuple[tuple[str, ...], str]] = []
    block = 0
    for segment in segments:
        scope: tuple[str, ...] = ()
        if len(segment) > 1:
            scope = (f"block {block}",)
            block += 1
        for index in segment:
            group = groups[index]
            has_join = any(layer_by_name[name].op_type in (
                "Add", "Sum") and sum(map(bool, layer_by_name[name].inputs)) > 1 and len(group.inputs) > 1
                           for name in group.layers[1:])
            scopes_and_roles.append((scope, f"{group.operator}+Add" if has_join else group.operator))
    return scopes_and_roles


def _split_groups_at_single_tensors(groups: Sequence[FusionGroup]) -> list[list[int]]:
    producer_index = {tensor: index for index, group in enumerate(groups) for tensor in group.outputs}
    last_reader_index: dict[str, int] = {}
    readers: dict[str, int] = {}
    for index, group in enumerate(groups):
        for tensor in group.inputs:
            if tensor in producer_index:
                last_reader_index[tensor] = index
                readers[tensor] = readers.get(tensor, 0) + 1
    ending_counts: list[int] = [0] * len(groups)
    counted_tensors = {tensor for tensor, last_index in last_reader_index.items()
                       if readers[tensor] < 3 or last_index - producer_index[tensor] <= len(groups) / 2}
    for tensor in counted_tensors:
        ending_counts[last_reader_index[tensor]] += 1
    alive_count, segments, current_segment = 0, [], []
    for index, group in enumerate(groups):
        current_segment.append(index)
        alive_count += sum(tensor in counted_tensors for tensor in group.outputs) - ending_counts[index]
        if alive_count <= 1:
            segments.append(current_segment)
            current_segment = []
    if current_segment:
        segments.append(current_segment)
    return segments


def _split_groups_after_pooling(groups: Sequence[FusionGroup]) -> list[list[int]]:
    segments: list[list[int]] = [[]]
    for index, group in enumerate(groups):
        segments[-1].append(index)
        if group.operator in _POOLING_OPERATORS:
            segments.append([])
    return [segment for segment in segments if segment]
