"""The matrix view of networks that repeat a block: roles as rows, blocks as columns."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trt_tui.core.network.hierarchy import GroupRow, Row, Scope, walk_rows

_MAX_ROLES = 200
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True)
class BlockMatrix:
    """The fusion groups of a network with repeated blocks, as a matrix.

    Attributes:
        roles: The roles of groups within a block, such as ``mlp/fc2``.
        columns: The blocks, such as ``0`` to ``11``.
        cells: ``cells[role][column]``: names of the groups there; empty if a block lacks the role.
    """

    roles: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[tuple[str, ...], ...], ...]


def find_repeated_blocks(scope_tree: Scope) -> BlockMatrix | None:
    """Returns the matrix of roles and blocks of a repetitive network; None if no scope occurs three times or more.

    Blocks are scopes whose paths differ only in numbers and that share at least half of their roles. There may be
    several such families (stages and the blocks in them). The result is the family that covers most groups most
    densely, then the family with the fewest rows and columns.
    """
    families: dict[str, list[Scope]] = {}
    for _, row in walk_rows(scope_tree):
        if isinstance(row, Scope) and 1 < len(row.groups) <= _MAX_ROLES:
            pattern = _DIGITS.sub("#", row.path)
            if pattern != row.path:
                families.setdefault(pattern, []).append(row)
    best_score: tuple[float, int] | None = None
    best_family: tuple[list[Scope], dict[str, str], list[dict[str, str]]] | None = None
    for scopes in families.values():
        if len(scopes) < 3:
            continue
        roles, columns = _align_block_roles(scopes)
        cells = sum(map(len, columns))
        filled_share = cells / (len(roles) * len(scopes))
        size = len(roles) + len(scopes)
        if len(roles) > _MAX_ROLES or filled_share < 0.5:
            continue
        if best_score is None or cells * filled_share > best_score[0] * 1.01 or (cells * filled_share > best_score[0]
                                                                                 * 0.99 and size < best_score[1]):
            best_score, best_family = (cells * filled_share, size), (scopes, roles, columns)
    if best_family is None:
        return None
    scopes, roles, columns = best_family
    return BlockMatrix(tuple(roles.values()), _block_column_names(scopes),
                       tuple(tuple((column[role],) if role in column else () for column in columns) for role in roles))


def _align_block_roles(block_scopes: Sequence[Scope]) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Returns all roles in an order that fits every block, and the groups of each block by role.

    The roles map the path below the block to the label.
    """
    order: list[str] = []
    labels: dict[str, str] = {}
    columns: list[dict[str, str]] = []
    for scope in block_scopes:
        column: dict[str, str] = {}
        index = 0
        for role, label, group in _iterate_block_roles(scope):
            column[role] = group
            if role not in labels:
                labels[role] = label
                order.insert(index, role)
            index = order.index(role) + 1
        columns.append(column)
        if len(order) > _MAX_ROLES:
            break
    return {role: labels[role] for role in order}, columns


def _iterate_block_roles(block_scope: Scope) -> Iterator[tuple[str, str, str]]:
    """Yields the path below a block scope, the display label and the name of each group in the block."""
    prefix_length = len(block_scope.path) + 1
    is_structural = block_scope.path.startswith("block ")
    stack: list[tuple[str, Row]] = [("", row) for row in reversed(block_scope.children)]
    while stack:
        label_prefix, row = stack.pop()
        if isinstance(row, Scope):
            stack.extend((f"{label_prefix}{row.label}/", child) for child in reversed(row.children))
        elif isinstance(row, GroupRow):
            role = row.path[prefix_length:]
            yield role, role if is_structural else label_prefix + row.label, row.group.name


def _block_column_names(block_scopes: Sequence[Scope]) -> tuple[str, ...]:
    """Returns the names of the block columns: the numbers in which the paths differ, joined by "." """
    numbers = [_DIGITS.findall(scope.path) for scope in block_scopes]
    varying_columns = [i for i in range(len(numbers[0])) if len({path_numbers[i] for path_numbers in numbers}) > 1]
    return tuple(".".join(path_numbers[i] for i in varying_columns) for path_numbers in numbers)
