"""Keys at random, in bursts as a slow line or an impatient hand sends them, with resizes and failing jobs between.

    python -m tests.fuzz.keys --keys 50000 --seed 1 [--real]

Nothing but the key that quits may end the app, and escapes lead back to the main screen from wherever it is. What ends
it is printed with the seed and the keys before it. With ``--real`` the bundled network is open in a child process; else
it is answered in this process by the null backend, which is quicker and reaches more.
"""

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests import local
from tests.screen import key_event
from trt_tui.errors import TrtTuiError
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.options import Options
from trt_tui.tui.app import TrtTuiApp
from trt_tui.tui.keys import ACTIONS

SIZES = ((80, 24), (120, 40))
ODD_SIZES = (*SIZES, (20, 5), (3, 2), (79, 12), (200, 60))
EPISODE = 250
"""Keys of one app."""

PRESSES = sorted({key for action in ACTIONS for key in action.keys.split(",")} - {"q"})
INSIDE = (
    "enter escape tab shift+tab space backspace delete home end left right up down y n ctrl+a ctrl+u "
    "ctrl+w 3 6 8 x ctrl+c"
).split()
TYPED = [">=", "sqnr>=30", "metric", "[b", "\x1b", "é", "漢", "🙂", "\u202e", "/tmp/../", "1e400", "8 layers"]


@dataclass
class Result:
    """What was pressed, and what ended an app: its seed, the keys before and the exception."""

    keys: int = 0
    bursts: int = 0
    resizes: int = 0
    failures: list[tuple[int, list[str], BaseException | str]] = field(default_factory=list)


def burst(rng: random.Random) -> list[str]:
    """Keys that arrive at once: mostly a few, now and then a text that is typed."""
    if rng.random() < 0.1:
        return [*rng.choice(TYPED), rng.choice(("enter", "escape"))]
    keys = []
    for _ in range(rng.choice((1, 1, 2, 3, 3, 5, 12))):
        keys.append(rng.choice(INSIDE if rng.random() < 0.5 else PRESSES))
        if rng.random() < 0.2:
            keys += [keys[-1]] * rng.choice((1, 2))
    return keys


def upset(app: TrtTuiApp, rng: random.Random) -> None:
    """An event of the child process that may come at any time."""
    session = app.session
    job = len(session.child.sent) if isinstance(session, local.NullSession) else 1
    late = next(((config, one.accuracy) for config, one in session.results.items() if one.accuracy is not None), None)
    app.post_session_event(
        rng.choice(
            (
                ev.JobFailed(job, TrtTuiError("a job failed\x1b[2J", "because\nof [this]", "press on")),
                ev.ChildProcessDied(job, -9, "Killed"),
                ev.JobDone(job),
                ev.JobCancelled(job),
                ev.JobProgress(job, "measuring", 3, 7),
                ev.LogMessage(job, "b\x1b]0;t\x07"),
                ev.AccuracyMeasured(job, "int8", *late, True) if late is not None else ev.JobDone(job),
            )
        )
    )


async def episode(seed: int, make: Callable[[random.Random], TrtTuiApp], result: Result, keys: int = EPISODE) -> None:
    """One app driven by keys; what ends it goes to ``result``."""
    rng = random.Random(seed)
    app = make(rng)
    desk = app.main_screen
    quit_, app.quit = app.quit, lambda: None  # by the palette, too
    desk.quit_app = app.quit
    pressed: list[str] = []
    try:
        async with app.run_test(size=rng.choice(SIZES)) as pilot:
            count = 0
            while count < keys:
                now = burst(rng)
                pressed += [*now, "|"]
                count += len(now)
                result.bursts += 1
                for key in now:
                    app.post_message(key_event(key))
                chance = rng.random()
                if chance < 0.05:
                    size = rng.choice(ODD_SIZES)
                    pressed.append(f"resize {size}")
                    await pilot.resize_terminal(*size)
                    result.resizes += 1
                elif chance < 0.1:
                    upset(app, rng)
                elif chance < 0.3:
                    await pilot.pause()
                elif chance < 0.4:
                    await asyncio.sleep(rng.choice((0.0, 0.01, 0.05)))
                if isinstance(app.session, local.NullSession):
                    app.session.child.work(rng.randrange(20))
                if app._exit:
                    break
            result.keys += count
            if not app._exit:
                await _lead_back(app, pilot, result, seed, pressed)
            app.quit = desk.quit_app = quit_
            await _leave(app, result, rng, seed, pressed)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        result.failures.append((seed, pressed[-40:], app._exception or error))
    else:
        if app._exception is not None or app.return_code and app.main_screen.status.failure is None:
            result.failures.append((seed, pressed[-40:], app._exception or f"it ended with {app.return_code}"))


async def _leave(app: TrtTuiApp, result: Result, rng: random.Random, seed: int, pressed: list[str]) -> None:
    """The key that quits has to, whatever was typed after it."""
    for _ in range(20):
        for now in (["escape"], ["escape"], ["q", *burst(rng), *burst(rng)]):  # a filter takes letters
            for key in now:
                app.post_message(key_event(key))
            await asyncio.sleep(0.1)
            if app._exit:
                return
    result.failures.append((seed, pressed[-40:], f"q does not quit {app.screen}"))


async def _lead_back(app: TrtTuiApp, pilot, result: Result, seed: int, pressed: list[str]) -> None:
    """After all keys are done escapes have to reach the main screen."""
    for _ in range(200):
        await pilot.pause()
        if app.screen is app.main_screen:
            return
        app.post_message(key_event("escape"))
    result.failures.append((seed, pressed[-40:], f"no escape from {app.screen}"))


def local_apps(folder: Path) -> Callable[[random.Random], TrtTuiApp]:
    """Makes apps that are answered in this process, mostly; exports go to ``folder``."""

    def make(rng: random.Random) -> TrtTuiApp:
        held = tuple(
            kind
            for kind in (rq.CompareRuns, rq.MeasureWhatIf, rq.MeasureRemedies, rq.MeasureTensorStats, rq.BuildEngine)
            if rng.random() < 0.15
        )
        options = local.options(
            folder,
            rng.choice(("vit", "vit", "overflowing", "small_resnet")),
            metric=rng.random() < 0.5,
            random=rng.random() < 0.2,
        )
        return TrtTuiApp(
            options,
            partial(local.NullSession, folder=folder, held=held, builder=rng.choice((None, local.H200))),
            resume=rng.random() < 0.5,
            target=rng.choice((None, "sqnr>=20")),
        )

    return make


def real_apps() -> Callable[[random.Random], TrtTuiApp]:
    """Makes apps on the bundled network, each with a child process."""
    from trt_tui import demo

    options = Options(
        str(demo.network_path()),
        str(demo.samples_path()),
        str(demo.calibration_path()),
        metric=demo.metric_spec(),
        whatif_samples=4,
    )
    return lambda rng: TrtTuiApp(options, resume=rng.random() < 0.5)


def run(make: Callable[[random.Random], TrtTuiApp], seed: int, keys: int, say: Callable[[str], None] = print) -> Result:
    """Episode after episode until so many keys were pressed."""
    result, told = Result(), 0
    while result.keys < keys:
        asyncio.run(episode(seed, make, result))
        seed += 1
        for one, pressed, error in result.failures[told:]:
            say(f"seed {one}: {error!r} at {_where(error)} after {' '.join(pressed)}")
        told = len(result.failures)
    return result


def _where(error: BaseException | str) -> str:
    frames = traceback.extract_tb(error.__traceback__) if isinstance(error, BaseException) else []
    ours = [frame for frame in frames if "trt_tui" in frame.filename] or frames
    return ", ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in ours[-3:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--real", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trt-tui-keys-") as folder:
        os.chdir(folder)
        local.NullSession.measured_before = Path(folder) / "measured"
        os.environ.update(XDG_STATE_HOME=f"{folder}/state", XDG_CACHE_HOME=f"{folder}/cache")
        started = time.monotonic()
        result = run(real_apps() if arguments.real else local_apps(Path(folder)), arguments.seed, arguments.keys)
        print(
            f"{result.keys} keys in {result.bursts} bursts, {result.resizes} resizes, "
            f"{time.monotonic() - started:.0f} s: {len(result.failures)} failures"
        )
    sys.exit(bool(result.failures))


if __name__ == "__main__":
    main()
