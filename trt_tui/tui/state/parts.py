"""The page of the metric's parts."""

from trt_tui.session.parts import parts_table
from trt_tui.session.session import Session
from trt_tui.tui.keys import key
from trt_tui.tui.spans import Line, clip, wrap
from trt_tui.words import table


def page_lines(session: Session, width: int) -> list[Line]:
    """A line for each part, the worst drop first; where a table is too wide its middle columns are left out."""
    rows = parts_table(session)
    if not rows:
        return [[("the metric has no parts", "dim")]]
    rows[0][0] = "part"
    while len(rows[0]) > 4 and max(map(len, table(rows))) > width:
        rows = [[*row[:2], *row[3:]] for row in rows]
    header, headline, *parts = table(rows)
    lines: list[Line] = [clip([(header, "dim")], width), clip([(headline, "strong")], width)]
    lines += [clip([(text, "bad" if number == 0 else "")], width) for number, text in enumerate(parts)]
    note = (f"drop: how far the worst of the runs is below FP32. {key('target')} takes metric[PART]>=base-1% and "
            "metric[*]>=base-2%.")
    return [*lines, [], *([(text, "dim")] for text in wrap(note, width))]
