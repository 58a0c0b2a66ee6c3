"""The layer tree as text."""

from collections.abc import Callable

from trt_tui.core.network.hierarchy import GroupRow, LayerRow, Scope, walk
from trt_tui.core.network.layers import Shape
from trt_tui.core.precision import Precision
from trt_tui.words import table

_INVENTED = "unk__"  # how onnx's shape inference begins the names of sizes that it does not know
_PRECISIONS = (Precision.FP16, Precision.INT8, Precision.FP8, Precision.INT4)
_COLUMNS = ("operator", "shape", "nodes", *(one.label for one in _PRECISIONS), "why not")


def render_tree(tree: Scope, shape_of: Callable[[str], Shape | None], *,
                nodes: bool = False) -> str:
    """The tree as indented text, a line for each row, columns aligned.

    Args:
        tree: From `build_tree`.
        shape_of: Gives the shape of a tensor by name, None where it is not known.
        nodes: Whether the nodes of each group are listed below it.
    """
    rows = list(walk(tree))
    given = any(isinstance(row, GroupRow) and row.group.given is not None for _, row in rows)
    columns = (*_COLUMNS[:-1], "in the file", _COLUMNS[-1]) if given else _COLUMNS
    lines: list[tuple[str, ...]] = [("layer", *columns)]
    for depth, row in rows:
        label = "  " * depth + row.label
        if isinstance(row, GroupRow):
            group = row.group
            lines.append((label, group.operator, shape_text(shape_of(group.tail)), str(len(group.layers)),
                          *("yes" if one in group.allowed else "no" for one in _PRECISIONS),
                          *((group.given.label,) if group.given is not None else ()), row.refused))
            if nodes and len(group.layers) > 1:
                lines.extend((f"{'  ' * depth}  · {name}",) for name in group.layers)
            if nodes and group.given is not None:
                lines.extend((f"{'  ' * depth}  ! TensorRT refuses {what} at {name}",)
                             for name, what in group.given.refused)
        elif isinstance(row, LayerRow):
            output = next((name for name in row.layer.outputs if name), "")
            lines.append((label, row.layer.op_type, shape_text(shape_of(output)), "1", *("no" for _ in _PRECISIONS),
                          *(("",) if given else ()), row.refused))
        else:
            lines.append((label,))
    return "\n".join(table(lines, flush_left=1 + len(columns)))


def shape_text(shape: Shape | None) -> str:
    """A shape such as ``batch×64×56×56``; ``?`` stands for what is not known."""
    if shape is None:
        return "?"
    return "×".join("?" if size is None or str(size).startswith(_INVENTED) else str(size) for size in shape) or "scalar"
