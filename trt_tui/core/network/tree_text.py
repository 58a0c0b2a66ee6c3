"""The layer tree as plain text."""

from collections.abc import Callable

from trt_tui.core.network.hierarchy import GroupRow, Scope, UngroupedRow, walk_rows
from trt_tui.core.network.layers import Shape
from trt_tui.core.precision import Precision
from trt_tui.core.quantized_types import QUANTIZED_TYPES
from trt_tui.formatting import table_lines

_INVENTED_PREFIX = "unk__"  # the prefix of the names that onnx's shape inference gives to unknown sizes
_PRECISIONS = (Precision.FP16, *QUANTIZED_TYPES)
_COLUMNS = ("operator", "shape", "nodes", *(item.label for item in _PRECISIONS), "why not")


def render_tree(scope_tree: Scope, find_shape: Callable[[str], Shape | None], *,
                show_nodes: bool = False) -> str:
    """Returns the layer tree as indented text with one line per row and aligned columns.

    Args:
        scope_tree: The result of `build_scope_tree`.
        find_shape: Returns the shape of a tensor by name; None if unknown.
        show_nodes: True if the nodes of each group are listed below it.
    """
    rows = list(walk_rows(scope_tree))
    has_file_precision = any(isinstance(row, GroupRow) and row.group.file_precision is not None for _, row in rows)
    columns = (*_COLUMNS[:-1], "in the file", _COLUMNS[-1]) if has_file_precision else _COLUMNS
    lines: list[tuple[str, ...]] = [("layer", *columns)]
    for depth, row in rows:
        label = "  " * depth + row.label
        if isinstance(row, GroupRow):
            group = row.group
            lines.append(
                (label, group.operator, tensor_shape_text(find_shape(group.final_tensor)), str(len(group.layers)),
                 *("yes" if precision in group.allowed_precisions else "no" for precision in _PRECISIONS),
                 *((group.file_precision.label, ) if group.file_precision is not None else ()), row.refusal_reason))
            if show_nodes and len(group.layers) > 1:
                lines.extend((f"{'  ' * depth}  · {name}",) for name in group.layers)
            if show_nodes and group.file_precision is not None:
                lines.extend((f"{'  ' * depth}  ! TensorRT refuses {reason} at {name}",)
                             for name, reason in group.file_precision.refused_nodes)
        elif isinstance(row, UngroupedRow):
            output = next((name for name in row.layer.outputs if name), "")
            lines.append((label, row.layer.op_type, tensor_shape_text(find_shape(output)), "1",
                          *("no" for _ in _PRECISIONS), *(("", ) if has_file_precision else ()), row.refusal_reason))
        else:
            lines.append((label,))
    return "\n".join(table_lines(lines, left_aligned_columns=1 + len(columns)))


def tensor_shape_text(shape: Shape | None) -> str:
    """Returns a shape as text, such as ``batch×64×56×56``, with ``?`` for an unknown size."""
    if shape is None:
        return "?"
    return "×".join("?" if size is None or str(size).startswith(_INVENTED_PREFIX) else str(size)
                    for size in shape) or "scalar"
