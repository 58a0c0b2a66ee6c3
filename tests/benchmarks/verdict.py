"""Time from the command to the first simulated verdict and to the shares of all groups.

Run as ``python -m tests.benchmarks.verdict [resnet50] [bert6]``. Each network is opened with 64 samples in a fresh
process with an empty cache, whose start and whose child's start are counted. Figures are seconds, and multiples of one
plain FP32 run of the same samples by ONNX Runtime in this program. Shares that are not all measured within ``--limit``
are reported as such.
"""

import argparse
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import onnxruntime

from tests.benchmarks import measure, networks, prepared

CALIBRATING = 16
BATCH = 8

BATCHES = {"resnet50": networks.resnet50_batches, "bert6": networks.bert6_batches}


def drive(model: str, data: str, calibration: str, limit_s: float) -> None:
    """Opens a network as the app does and prints a line, with the time of the monotonic clock, at each moment."""
    from trt_tui.jobs import events as ev
    from trt_tui.options import Options
    from trt_tui.session.history import SessionFolder
    from trt_tui.session.session import Session

    events: queue.Queue[ev.Event] = queue.Queue()
    options = Options(model, data, calibration, batch=BATCH, whatif_samples=0)
    started, seen, latest = time.monotonic(), set(), "no shares yet"

    def say(moment: str) -> None:
        if moment not in seen:
            seen.add(moment)
            print(time.monotonic(), moment, flush=True)

    with tempfile.TemporaryDirectory() as folder:
        session = Session(options, events.put, session_folder=SessionFolder(Path(folder)))
        session.start()
        while time.monotonic() - started < limit_s:
            try:
                event = events.get(timeout=1)
            except queue.Empty:
                continue
            session.apply_event(event)
            if session.error is not None:
                sys.exit(f"{session.error}")
            match event:
                case ev.NetworkOpened():
                    say("opened")
                case ev.CalibrationReady():
                    say("calibrated")
                case ev.AccuracyMeasured(run="int8", final=final):
                    say("int8 verdict, all samples" if final else "int8 verdict, first samples")
                case ev.AccuracyMeasured():
                    say("first verdict")
                case ev.GroupErrorsMeasured(run="int8", final=True):
                    say("errors at all groups")
                case ev.ErrorSharesMeasured(run="int8", done=done, total=total):
                    if done == total:
                        say(f"shares of all {total} groups")
                        break
                    latest = f"shares of {done} of {total} groups"
        else:
            say(f"limit of {limit_s:g} s reached: {latest}")
        session.close()


def plain_run_s(model: Path, feeds: list[networks.Feeds]) -> float:
    """Seconds of one plain FP32 run of all feeds: the median of three, after one that warms up."""
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    times = []
    for _ in range(4):
        since = time.perf_counter()
        for feed in feeds:
            session.run(None, feed)
        times.append(time.perf_counter() - since)
    return statistics.median(times[1:])


def rows_of(name: str, samples: int, limit_s: float, directory: Path) -> list[tuple[str, float, float]]:
    """Rows of the table for one network: moment, seconds, plain runs."""
    model, batches = prepared.model_path(name, directory), BATCHES[name]
    judged = batches(samples // BATCH, BATCH, seed=1)
    plain = plain_run_s(model, judged)
    rows = [(f"{name}, plain FP32 run of {samples} samples", plain, 1.0)]
    with tempfile.TemporaryDirectory() as folder:
        data = networks.save_batches(judged, Path(folder) / "judged.npz")
        calibration = networks.save_batches(batches(CALIBRATING // BATCH, BATCH, seed=2), Path(folder) / "calib.npz")
        environment = {**os.environ, "XDG_CACHE_HOME": f"{folder}/cache", "XDG_STATE_HOME": f"{folder}/state"}
        command = [
            sys.executable,
            "-m",
            "tests.benchmarks.verdict",
            "--drive",
            str(model),
            str(data),
            str(calibration),
            "--limit",
            str(limit_s),
        ]
        started = time.monotonic()
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as program:
            for line in program.stdout:
                at, moment = line.rstrip("\n").split(" ", 1)
                spent = float(at) - started
                rows.append((f"{name}, {moment}", spent, spent / plain))
                print(f"  {name}, {moment}: {spent:.1f} s", file=sys.stderr, flush=True)
    return rows


def main() -> None:
    parser = measure.parser(__doc__, tuple(BATCHES))
    parser.add_argument("--samples", type=int, default=64, help="a multiple of 8")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds to wait for the shares of a network")
    parser.add_argument("--drive", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.drive:
        model, data, calibration = arguments.drive
        drive(model, data, calibration, arguments.limit)
        return
    print(f"{measure.machine()}\n")
    print(
        measure.table(
            ["from the command to", "seconds", "plain runs"],
            [
                row
                for name in arguments.networks
                for row in rows_of(name, arguments.samples, arguments.limit, arguments.directory)
            ],
        )
    )


if __name__ == "__main__":
    main()
