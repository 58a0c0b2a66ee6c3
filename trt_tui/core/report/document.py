"""Reports as documents of sections, which are written as text for a terminal and as Markdown. `trt_tui.tui.table` draws
their blocks on pages of the app."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from trt_tui.formatting import drop_empty_columns, escape_hidden_characters, table_lines


@dataclass(frozen=True)
class Table:
    """A table of texts.

    Attributes:
        rows: The header and the rows. A row may have fewer cells than the header.
        left_aligned_columns: The number of the first columns that are aligned to the left on a terminal.
    """

    rows: Sequence[Sequence[str]]
    left_aligned_columns: int = 1


Block: TypeAlias = Table | Sequence[str]
"""A table, or a list of lines. Two blanks before a line put it below the line before."""


@dataclass(frozen=True)
class Section:
    """A part of a report.

    Attributes:
        title: The heading in Markdown; "" for none. A terminal shows no headings.
        blocks: The contents. Tables without rows and empty lists are left out.
    """

    title: str
    blocks: Sequence[Block]


def report_text(sections: Iterable[Section]) -> str:
    """Returns a report as text for a terminal, with an empty line between two blocks."""
    return "\n\n".join(
        "\n".join(_text_lines(block)) for section in sections for block in nonempty_blocks(section.blocks)
    )


def report_markdown(title: str, sections: Iterable[Section]) -> str:
    """Returns a report in Markdown, with its title as the heading."""
    return "\n".join([f"# {markdown_text(title)}", "", *sections_markdown(sections)]).rstrip() + "\n"


def sections_markdown(sections: Iterable[Section]) -> list[str]:
    """Returns sections as lines of Markdown, each block with an empty line behind it."""
    lines = []
    for section in sections:
        blocks = nonempty_blocks(section.blocks)
        lines += [f"## {markdown_text(section.title)}", ""] if section.title and blocks else []
        for block in blocks:
            lines += [*_markdown_lines(block), ""]
    return lines


def markdown_text(text: Any) -> str:
    """Returns a text with Markdown's special characters escaped, in one line."""
    return "".join(
        f"\\{character}" if character in "\\|`*_<>[]&" else character for character in escape_hidden_characters(text)
    )


def nonempty_blocks(blocks: Iterable[Block]) -> list[Block]:
    """Returns the report blocks that are not empty."""
    return [block for block in blocks if (len(block.rows) > 1 if isinstance(block, Table) else block)]


def _text_lines(block: Block) -> list[str]:
    if isinstance(block, Table):
        return table_lines(drop_empty_columns(block.rows), block.left_aligned_columns)
    return [escape_hidden_characters(line) for line in block]


def _markdown_lines(block: Block) -> list[str]:
    if not isinstance(block, Table):
        return [f"{'  ' * line.startswith('  ')}- {markdown_text(line.strip())}" for line in block]
    header, *rows = [[markdown_text(cell) for cell in row] for row in drop_empty_columns(block.rows)]
    return [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)]
