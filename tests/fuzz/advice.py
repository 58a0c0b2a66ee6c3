"""Advice, focus and verdicts of the main screen, with keys at random before and jobs that end at random.

    python -m tests.fuzz.advice --cases 100 --seed 1

Each case is one app, answered in this process by the null backend. From wherever random keys lead:

- the keys that a hint names change the row that it names, and nothing else;
- a job that ends well, badly or stopped opens, closes and moves nothing;
- an outcome or a row to raise that stands while values are measured still stands once they all are there;
- an undo after a change of calibration restores the config and its figures.

What is otherwise is printed with the seed and the keys before it.
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
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from textual.pilot import Pilot

from tests import local
from tests.screen import LARGE, SMALL, answered, make_app, press, settle, status, taken_in, verdict
from trt_tui.core.moves.network_method import list_range_tensors
from trt_tui.core.precision import Precision
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.tui import main_screen
from trt_tui.tui.controllers import presenter
from trt_tui.tui.keys import get_action_keys
from trt_tui.tui.state.hint import next_step_hint

TARGETS = {"vit": ("sqnr>=10", "sqnr>=20", "sqnr>=40"), "overflowing": ("sqnr>=20",),
           "small_resnet": ("sqnr>=30", "sqnr>=60", "metric>=0.99", None)}
"""Targets of networks: some are met in INT8, some after a few rows, some never."""

MOVES = ["up", "down", "pagedown", "home", "end", "left", "right", "enter", "t", "s", "v", "n", "4", "2", "m"]
CHANGES = ["space", "3", "6", "8", "z"]
PLACES = [("end", "up"), ("p",), ("g",), ("c",), ("f9",), ("4",), ("slash", "c"), ("e",), ("question_mark",), ("o",)]
MEASURED = (rq.OpenNetwork, rq.CalibrateRanges, rq.SetRanges, rq.CompareRuns, rq.MeasureWhatIf)
ASKED = (rq.CompareRangeMethods, rq.BuildEngine, rq.WriteTextFile, rq.SetRanges)
LIMIT_S = 180.0


@dataclass
class Result:
    """How often each property was looked at, and what did not hold: the seed, the keys before, what was seen."""

    looks: collections.Counter = field(default_factory=collections.Counter)
    failures: list[tuple[int, list[str], str]] = field(default_factory=list)


class Case:
    """One app and what was done to it."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng, self.folder = random.Random(seed), folder
        self.pressed: list[str] = []
        self.looks: collections.Counter = collections.Counter()
        network = self.rng.choice(list(TARGETS))
        target = self.rng.choice(TARGETS[network])
        self.app = make_app(folder, network, target, metric=target is not None and target.startswith("metric"),
                            held=[one for one in MEASURED[2:] if self.rng.random() < 0.3],
                            builder=self.rng.choice((None, local.H200)))
        self.size = self.rng.choice((SMALL, LARGE))
        self.pressed.append(f"{network} {target} {self.size}")

    async def run(self) -> None:
        """Looks at each property from several places.

        Raises:
            AssertionError: one does not hold.
        """
        async with self.app.run_test(size=self.size) as pilot:
            await self.watch(pilot)
            for _ in range(3):
                await self.wander(pilot, self.rng.randrange(6), (*MOVES, *CHANGES))
                await self.watch(pilot)
                await self.wander(pilot, self.rng.randrange(5), MOVES)
                await self.follow(pilot)
            await self.interrupt(pilot)
            await self.recalibrate(pilot)

    async def wander(self, pilot: Pilot, count: int, choices: tuple[str, ...] | list[str]) -> None:
        """Presses keys without waiting for what they ask."""
        for _ in range(count):
            key = self.rng.choice(choices)
            self.pressed.append(key)
            await press(pilot, key)

    async def to_main(self, pilot: Pilot) -> None:
        for _ in range(20):
            if self.app.screen is self.app.main_screen:
                return
            await press(pilot, "escape")
        raise AssertionError(f"no escape from {self.app.screen}")

    async def rest(self, pilot: Pilot) -> None:
        """Everything that was asked is answered."""
        self.app.session.child.release()
        await settle(pilot)

    # -- the properties -----------------------------------------------------------------------------------------

    async def watch(self, pilot: Pilot) -> None:
        """Lets what is measured come in bit by bit: what is said of a config on the way is true of it at the end."""
        session, said = self.app.session, []
        while not session.child.idle:
            session.child.work(self.rng.choice((1, 1, 2, 5, 20, 100)))
            await taken_in(pilot)
            said += self.told()
        await self.rest(pilot)
        at_end = dict(self.told())
        for about, what in said:
            if about in at_end:
                self.looks["verdicts on the way"] += 1
                assert what == at_end[about], f"{about[0]} was {what}, and is {at_end[about]} with all values"

    def told(self) -> Iterator[tuple[tuple, str]]:
        """What the screen tells as final, and of what."""
        session, main = self.app.session, self.app.main_screen
        if session.outline is None or self.app.screen is not main or not main.presenter.layer_list.has_row_values:
            return
        targets = tuple(one.text for one in session.targets)
        configs = session.list_run_configs()
        for title, run in (("FP16", "fp16"), ("INT8", "int8"), ("c", "config")):
            for line in verdict(main):
                if re.match(rf" {title}\d*\b", line) and (found := re.search(r"\b(PASS|FAIL)\b\??", line)):
                    built = session.get_run_results(run).engine_result is not None, session.get_run_results(
                        run).exported_run is not None
                    yield (run, configs[run], targets, built), found[0]
        if raised := re.search(r"([^ ,]+, )?\S+ raises (?P<row>\S+( one)?)", status(main)):
            group = main.presenter.current_group
            row = group.name if raised["row"] == "this one" and group is not None else raised["row"]
            hint = next_step_hint(session, main.presenter.layer_list.row_values,
                                  group.name if group is not None else "")
            yield ("the row to raise", session.config, targets, hint.forms if row == raised["row"] else ()), row

    async def follow(self, pilot: Pilot) -> None:
        """Presses the keys of a hint that names a row."""
        app, main, session = self.app, self.app.main_screen, self.app.session
        await self.to_main(pilot)
        await self.rest(pilot)
        here = main.presenter
        here.draw_status_lines()
        text, group = status(main), here.current_group
        cursor = group.name if group is not None and here.shown_row_pane.has_focus else ""
        hint = next_step_hint(session, here.layer_list.row_values, cursor, here.filter_input.has_focus)
        if not (hint.group and any(form in text for form in hint.forms)):
            return
        self.looks["hints followed"] += 1
        named = re.search(r"(?:(\S+), )?(\S+) raises (.+?)( →|;| *$|\n)", text)
        assert named is not None, text
        wanted = [get_action_keys(one)[0] for one in hint.actions]
        assert len(wanted) == 2 - (named[1] is None or named[1] == "fix"), f"{text!r} names other keys than {wanted}"
        if named[3] == "this one":
            assert here.current_group is not None and here.current_group.name == hint.group, text
        before, moves = self.precisions(), session.config.moves
        self.pressed += ["follow:", *wanted]
        await answered(pilot, *wanted)
        after = self.precisions()
        changed = {name: precision for name, precision in after.items() if before[name] is not precision}
        assert app.screen is main, f"{text!r} led to {app.screen}"
        assert changed == {hint.group: Precision.FP32}, f"{text!r} changed {changed}"
        assert abs(len(session.config.moves) - len(moves)) <= 1, f"{text!r} made other moves too"

    def precisions(self) -> dict[str, Precision]:
        config = self.app.session.config
        return {group.name: config.precision_of(group) for group in self.app.session.outline.groups}

    def place(self) -> tuple:
        """What has the keys, and where its cursor stands."""
        line = self.app.main_screen.presenter.layer_tree.current_row
        return self.app.screen, self.app.focused, line.key if line is not None else None, len(self.app.screen_stack)

    async def interrupt(self, pilot: Pilot) -> None:
        """Jobs end while the keys are somewhere."""
        session, rng = self.app.session, self.rng
        await self.to_main(pilot)
        session.child.held.update(ASKED)
        for job in rng.sample((session.compare_range_methods, session.request_build, session.request_comparison,
                               lambda: session.set_ranges(list_range_tensors(session.outline)[:1], "2.5"),
                               lambda: session.export_config("json", self.folder / "c.json", True)), 3):
            job()
        going = rng.choice(PLACES)
        self.pressed += ["interrupt:", "down", *going]
        await press(pilot, "down", *going)
        before = self.place()
        for event in rng.sample(
            (ev.JobFailed(99, "out of memory", "it is full", "Free some."), ev.ChildProcessDied(
                99, -9, "Killed"), ev.JobCancelled(99), None), 3):
            if event is None:
                await self.rest(pilot)
            else:
                self.app.post_session_event(event)
                await taken_in(pilot)
            self.looks["jobs that ended"] += 1
            assert self.place() == before, f"{event or 'what was asked'} moved {before} to {self.place()}"
        await self.rest(pilot)
        assert self.place() == before, f"what was asked moved {before} to {self.place()}"
        await self.to_main(pilot)

    async def recalibrate(self, pilot: Pilot) -> None:
        """Another method of calibration for the whole network, and back."""
        session = self.app.session
        self.app.main_screen.presenter.layer_tree.focus()
        await self.rest(pilot)
        before, figures = session.config, session.get_run_results("config").accuracy
        method = self.rng.choice("12345")
        self.pressed += ["7", "7", method, "z"]
        await answered(pilot, "7", "7", method)
        await self.to_main(pilot)
        if session.config == before:
            return
        self.looks["calibrations undone"] += 1
        await answered(pilot, "z")
        assert session.config == before, "z does not undo a change of calibration"
        assert session.get_run_results("config").accuracy == figures, "figures are others after z"


async def look(seed: int, folder: Path, result: Result) -> None:
    """One case; what does not hold in it goes to ``result``."""
    case = Case(seed, folder)
    try:
        await asyncio.wait_for(case.run(), LIMIT_S)
    except Exception as error:
        where = traceback.format_exc(limit=-3) if not isinstance(error, AssertionError) else ""
        result.failures.append((seed, case.pressed, f"{error or type(error).__name__}\n{where}".strip()))
    result.looks += case.looks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    result = Result()
    with tempfile.TemporaryDirectory(prefix="trt-tui-advice-") as base:
        os.chdir(base)
        local.NullSession.measured_before = Path(base) / "measured"
        main_screen.MIN_DRAW_INTERVAL_S, presenter.MIN_CURSOR_REST_S = 0.002, 0.005
        os.environ.update(XDG_STATE_HOME=f"{base}/state", XDG_CACHE_HOME=f"{base}/cache")
        for seed in range(arguments.seed, arguments.seed + arguments.cases):
            folder = Path(base) / str(seed)
            folder.mkdir()
            found = len(result.failures)
            asyncio.run(look(seed, folder, result))
            for one, pressed, what in result.failures[found:]:
                print(f"seed {one}: {what}\n  after {' '.join(pressed)}", flush=True)
    counts = ", ".join(f"{count} {what}" for what, count in sorted(result.looks.items()))
    print(f"{arguments.cases} cases: {counts}; {len(result.failures)} failures")
    sys.exit(bool(result.failures))


if __name__ == "__main__":
    main()
