"""The main screen of networks with names at random, at widths at random, with figures of few and of many digits.

    python -m tests.fuzz.widths --cases 50 --seed 1

Each case is an app on a network of its own, at several sizes. At each of them no line is wider than its room, every
number is one of the whole figures or a rounding of it, and rows of one depth with different names show different texts.
A screen of less than 60×15 asks for room and shows nothing else.
"""

import argparse
import asyncio
import collections
import os
import random
import re
import sys
import tempfile
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from textual.pilot import Pilot

from tests import local
from tests.networks import Builder, floats
from tests.screen import answered, screen_text, settle, taken_in
from trt_tui.core.data.batches import SampleName
from trt_tui.core.measure.results import ErrorMetrics, OutputErrors
from trt_tui.formatting import duration_text, escape_hidden_characters
from trt_tui.options import Options
from trt_tui.session.session import Session
from trt_tui.tui import main_screen, spans
from trt_tui.tui.app import TrtTuiApp
from trt_tui.tui.controllers import presenter
from trt_tui.tui.state import summary
from trt_tui.tui.state.columns import PrecisionCell, RowCells, ShareCell, build_row_cells
from trt_tui.tui.state.config_list import ToggleResult, config_table
from trt_tui.tui.state.rows import SmallSharesRow
from trt_tui.tui.state.status import Hint, StatusLines, status_lines

WIDTHS, HEIGHTS, LEAST = (40, 220), (12, 60), (60, 15)
PARTS = (
    "model encoder decoder block residual depthwise_separable attention conv norm projection 漢字 layer a größe "
    "Q stage_of_the_backbone 🙂 e"
).split()
JOINTS = ("", ".", "_", "-", "[", "/", "x", "e", ".0.", "~")
NUMBER = re.compile(r"(?<![\d.])-?(?:\d+(?:\.\d+)?|\.\d+)(?:e-?\d+)?")
SIZE = 4


@dataclass
class Result:
    """How many lines and names were looked at, and what did not hold: the seed, and what was seen."""

    looks: collections.Counter = field(default_factory=collections.Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)


def names(rng: random.Random, count: int) -> list[str]:
    """Paths that are alike but for a part, with numbers in them."""

    def part() -> str:
        number = str(rng.randrange(rng.choice((3, 30, 2000)))) if rng.random() < 0.7 else ""
        return f"{rng.choice(PARTS)}{rng.choice(JOINTS) if number else ''}{number}"

    made: dict[str, None] = {}
    stem = [part() for _ in range(rng.randint(1, 9))]
    while len(made) < count:
        changed = [part() if rng.random() < 0.25 else one for one in stem]
        made["/".join(changed[: rng.randint(1, len(stem))] + [part()] * (rng.random() < 0.6))] = None
    return list(made)


def network(rng: random.Random) -> onnx.ModelProto:
    """A chain of products and activations with names at random."""
    b, x = Builder(rng.randrange(1000)), "given"
    every = names(rng, rng.randint(3, 20))
    for place, name in enumerate(every):
        last = place == len(every) - 1
        weight = b.kernel(f"weight {place}", (SIZE, SIZE), SIZE)
        x = b.node("MatMul", [x, weight], name=name, output="result" if last else "")
        if not last and rng.random() < 0.5:
            x = b.node("Relu", [x], name=f"{name}{rng.choice(('/', '_'))}act{place}")
    return b.model([floats("given", "batch", SIZE)], [floats("result", "batch", SIZE)])


def figure(rng: random.Random) -> float:
    """A figure of any size."""
    return rng.choice((1, 1, 1, -1)) * rng.uniform(1, 10) * 10.0 ** rng.randint(-7, 6)


def upset(session: Session, rng: random.Random) -> list[float]:
    """Gives the runs of a session figures of any size; returns them."""
    given = []
    for config in session.list_run_configs().values():
        known = session.results.get_or_create_results(config)
        if known.accuracy is None:
            continue
        name, _ = known.accuracy.worst_output
        sqnr, worst, index, samples = figure(rng), figure(rng), rng.randrange(10**6), rng.randrange(1, 10**5)
        given += [sqnr, worst, index, samples, 2 * samples]
        known.store_accuracy(
            replace(
                known.accuracy,
                outputs={
                    name: OutputErrors(
                        ErrorMetrics(sqnr, abs(figure(rng))), worst_sample=SampleName(index), worst_sqnr_db=worst
                    )
                },
                total=2 * samples,
                samples=samples if rng.random() < 0.3 else 2 * samples,
            )
        )
        known.shares = {
            one: replace(share, fraction=rng.choice((share.fraction, figure(rng), figure(rng) / 1e6)))
            for one, share in known.shares.items()
        }
    return given


def cut(shown: str, whole: Iterable[str | float]) -> list[str]:
    """The numbers of a text that are neither some whole one nor a rounding of it, be it in two steps."""
    known = {
        abs(Decimal(one)) for text in whole for one in (NUMBER.findall(text) if isinstance(text, str) else [str(text)])
    }
    return [
        one
        for one in NUMBER.findall(shown)
        if not any(
            abs(abs(Decimal(one)) - other) <= Decimal("0.56").scaleb(int(Decimal(one).as_tuple().exponent))
            for other in known
        )
    ]


def cell_texts(row_cells: RowCells) -> list[str]:
    """The texts in the cells of a row, whole."""
    texts: list[str] = []
    for cell in row_cells.cells.values():
        match cell:
            case str():
                texts.append(cell)
            case ShareCell():
                texts += [cell.text, cell.replacement]
            case PrecisionCell():
                texts += [cell.text, cell.marks]
            case ToggleResult():
                texts += [cell.value_text, cell.outcome_text]
            case _:
                texts.append(cell[0])
    return texts


class Case:
    """One app on a network of its own."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng = random.Random(seed)
        self.looks: collections.Counter = collections.Counter()
        model, data = folder / "net.onnx", folder / "data.npz"
        onnx.save(network(self.rng), model)
        np.savez(data, given=np.random.default_rng(seed).standard_normal((8, SIZE)).astype(np.float32))
        target = self.rng.choice((None, "sqnr>=20", "sqnr>=60", "agreement>=0.9", "max_abs<=0.00123"))
        self.app = TrtTuiApp(
            Options(str(model), str(data), batch=8, whatif_samples=8),
            partial(local.NullSession, folder=folder, builder=self.rng.choice((None, local.H200))),
            target=target,
            resume=False,
        )

    async def run(self) -> None:
        """Looks at several sizes.

        Raises:
            AssertionError: a line is too wide, a number is cut, or two rows look alike.
        """
        async with self.app.run_test(size=(120, 40)) as pilot:
            await settle(pilot)
            await answered(
                pilot,
                *(
                    self.rng.choice(("t", "s", "v", "down", "enter", "space", "end", "right"))
                    for _ in range(self.rng.randrange(8))
                ),
            )
            while self.app.screen is not self.app.main_screen:
                await answered(pilot, "escape")
            for _ in range(8):
                await self.look(pilot, self.rng.randint(*WIDTHS), self.rng.randint(*HEIGHTS))
            self.header()

    async def look(self, pilot: Pilot, width: int, height: int) -> None:
        await pilot.resize_terminal(width, height)
        await taken_in(pilot)
        panes = self.app.main_screen
        if width < LEAST[0] or height < LEAST[1]:
            self.looks["screens without room"] += 1
            assert screen_text(self.app).split() == f"trt-tui needs 60×15, this is {width}×{height}".split()
            return
        tree, figures, full = panes.layer_tree, panes.layer_list.row_values, panes.layer_tree._shows_full_names
        shown: dict[int, dict[str, str]] = {}
        for index, row in enumerate(tree.rows):
            line, name = tree.get_line(index), figures.model.get_row_name(row, full)
            text = spans.line_text(line).rstrip()
            assert spans.line_width(line) <= tree.row_width, f"{width} cells: {text!r} is wider"
            one = build_row_cells(figures, row, full)
            whole = [name, escape_hidden_characters(name), one.reason, *cell_texts(one)]
            label = line[3][0].strip() if len(line) > 3 else line[-1][0].strip()
            behind = "".join(part for part, _ in line[4:]).replace("<0", "")
            wrong = cut(re.sub(r"#\d+$", "", label), [name, escape_hidden_characters(name)]) + cut(behind, whole)
            assert not wrong, f"{width} cells: {wrong} in {text!r} are none of {whole}"
            self.looks["rows"] += 1
            if not isinstance(row.row, SmallSharesRow):
                other = shown.setdefault(row.depth, {}).setdefault(label, name)
                assert other == name, f"{width} cells: {name!r} and {other!r} are both {label!r}"

    def header(self) -> None:
        """What stands above and below the rows, of figures of any size."""
        session, rng = self.app.session, self.rng
        outline = session.outline
        for _ in range(3):
            given: list[str | float] = [*upset(session, rng), outline.name, len(outline.layers), len(outline.groups)]
            given += [duration_text(one.duration_s) for one in session.pending_requests.jobs]
            hint = Hint(
                (
                    f"next: a finds a fix, or w, space raises {rng.choice(outline.groups).name} → "
                    f"SQNR ~{figure(rng):.1f}; {rng.randrange(999)} rows to FP32 meet the target",
                    f"next: w, space raises {spans.shorten_path(rng.choice(outline.groups).name, 24)}",
                )
            )
            wide = self.lines(400, 60, hint)
            for line in (line for each in (36, 30, 20) for line in summary.summary_lines(session, 120, each)):
                given.append("".join(map(escape_hidden_characters, (text for text, _ in line))))
            given += ["".join(text for text, _ in line) for line in wide]
            given += [*hint.forms, *(one.text for one in session.targets)]
            for _ in range(30):
                width, height = rng.randint(LEAST[0], WIDTHS[1]), rng.randint(LEAST[1], HEIGHTS[1])
                for line in self.lines(width, height, hint):
                    text = "".join(escape_hidden_characters(part) for part, _ in line)
                    assert spans.line_width(line) <= width, f"{width} cells: {text!r} is wider"
                    wrong = cut(text, given)
                    assert not wrong, f"{width} cells: {wrong} in {text!r} are cut"
                    self.looks["lines above and below"] += 1

    def lines(self, width: int, height: int, hint: Hint) -> list[spans.Line]:
        session = self.app.session
        return [
            summary.header_line(session, width),
            *summary.summary_lines(session, width, height),
            *(line for _, line in config_table(session, width)[1]),
            *status_lines(session, StatusLines(), hint, width, width >= 120),
        ]


async def look(seed: int, folder: Path, result: Result) -> None:
    """One case; what does not hold in it goes to ``result``."""
    case = Case(seed, folder)
    try:
        await case.run()
    except Exception as error:
        where = traceback.format_exc(limit=-3) if not isinstance(error, AssertionError) else ""
        result.failures.append((seed, f"{error}\n{where}".strip()))
    result.looks += case.looks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    result = Result()
    main_screen.MIN_DRAW_INTERVAL_S, presenter.MIN_CURSOR_REST_S = 0.002, 0.005
    with tempfile.TemporaryDirectory(prefix="trt-tui-widths-") as base:
        os.environ.update(XDG_STATE_HOME=f"{base}/state", XDG_CACHE_HOME=f"{base}/cache")
        for seed in range(arguments.seed, arguments.seed + arguments.cases):
            folder = Path(base) / str(seed)
            folder.mkdir()
            local.NullSession.measured_before = folder / "measured"
            found = len(result.failures)
            asyncio.run(look(seed, folder, result))
            for one, what in result.failures[found:]:
                print(f"seed {one}: {what}", flush=True)
    counts = ", ".join(f"{count} {what}" for what, count in sorted(result.looks.items()))
    print(f"{arguments.cases} cases: {counts}; {len(result.failures)} failures")
    sys.exit(bool(result.failures))


if __name__ == "__main__":
    main()
