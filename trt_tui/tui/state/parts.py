"""The page of the metric's parts."""

from trt_tui.formatting import table_lines
from trt_tui.session.parts import metric_part_table
from trt_tui.session.session import Session
from trt_tui.tui.keys import shown_key
from trt_tui.tui.spans import Line, clip_line, wrap_text


def metric_part_lines(session: Session, width: int) -> list[Line]:
    """A line for each part, the worst drop first; where a table is too wide its middle columns are left out."""
    rows = metric_part_table(session)
    if not rows:
        return [[("the metric has no parts", "dim")]]
    rows[0][0] = "part"
    while len(rows[0]) > 4 and max(map(len, table_lines(rows))) > width:
        rows = [[*row[:2], *row[3:]] for row in rows]
    header, headline, *parts = table_lines(rows)
    lines: list[Line] = [clip_line([(header, "dim")], width), clip_line([(headline, "strong")], width)]
    lines += [clip_line([(text, "bad" if number == 0 else "")], width) for number, text in enumerate(parts)]
    note = (f"drop: how far the worst of the runs is below FP32. {shown_key('target')} takes metric[PART]>=base-1% and "
            "metric[*]>=base-2%.")
    return [*lines, [], *([(text, "dim")] for text in wrap_text(note, width))]
