"""From a toggle to the marks of the builder, and what a what-if takes beside a preview and in the middle of another's.

    python -m tests.benchmarks.preview MODEL.onnx[=DATA.npz] ... [--toggles N]

A toggle raises another group of all INT8 to FP32. As in the app, its what-if, with what each group owns behind it, and
its preview are asked together, and the what-if is also asked while the preview of another toggle is half built; right
after each it is asked in the same way without a preview, of another group, and what it takes is divided by what it
takes there. Processor seconds are those of the process that builds, per toggle: on a machine that does other things
they tell what the clock would say on an idle one. Three networks of the size of ResNet-50 take three minutes on two
idle cores.
"""

import argparse
import itertools
import os
import queue
import statistics
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from tests.benchmarks import measure
from trt_tui.core.engines.group_implementations import Preview
from trt_tui.core.exporters.preview_report import group_precision_text
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.options import Options
from trt_tui.session.session import Session

VERDICT, MARKS = "AccuracyMeasured", "EnginePreviewed"


class Asking:
    """A session that is asked by hand."""

    def __init__(self, model: str, data: str | None) -> None:
        self.events: queue.Queue[ev.Event] = queue.Queue()
        self.session = Session(Options(model, data), self.events.put, resume=False, automatic=False)
        self.session.start()
        self.until()

    def until(self, wanted: Collection[str] = ()) -> dict[str, float]:
        """Takes events until all that are wanted were heard, then stops what goes on, and until nothing is under way;
        returns when what was heard first, by the event's name."""
        heard: dict[str, float] = {}
        while self.session.is_busy:
            event = self.events.get()
            if isinstance(event, ev.JobFailed | ev.ChildProcessDied):
                raise SystemExit(str(event))
            if not isinstance(event, ev.AccuracyMeasured) or event.final:
                heard.setdefault(type(event).__name__, time.perf_counter())
            self.session.apply_event(event)
            if wanted and heard.keys() >= set(wanted):
                self.session.stop_jobs()
                wanted = ()
        return heard

    def timed(self, wanted: Collection[str], *requests: rq.Request) -> list[float]:
        """Asks, and returns the seconds until each kind of answer that is wanted."""
        since = time.perf_counter()
        for request in requests:
            self.session.send_request(request)
        heard = self.until(wanted)
        return [heard[name] - since for name in wanted]

    def builder_s(self) -> float:
        """Processor seconds that the process that builds has used."""
        ticks = 0
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if b"trt_tui.jobs.preview_server" in (path / "cmdline").read_bytes():
                    fields = (path / "stat").read_text().rpartition(")")[2].split()
                    if int(fields[1]) == self.session._client._child.process.pid:
                        ticks += int(fields[11]) + int(fields[12])
            except OSError:
                continue
        return ticks / os.sysconf("SC_CLK_TCK")


def row(model: str, data: str | None, toggles: int) -> list[str]:
    """What is measured of one network."""
    asking = Asking(model, data)
    session, outline = asking.session, asking.session.opened_network.outline
    start = session.config
    # Ranges, sessions, and the start of what builds.
    asking.timed([MARKS], rq.MeasureWhatIf(start), rq.PreviewEngine(start, with_effects=False, low_priority=True))
    preview = session.results.get_results_or_empty(start).preview
    assert isinstance(preview, Preview) and preview.refusal is None, preview

    def configs() -> Iterator[PrecisionConfig]:
        able = [group for group in outline.groups if Precision.INT8 in group.allowed_precisions]
        for length in range(1, len(able)):
            yield from (
                start.with_group_precision(groups, Precision.FP32) for groups in itertools.combinations(able, length)
            )

    fresh = configs()
    marks, verdicts, seconds, used = [], [], [], []
    ratios: dict[str, list[float]] = {"beside": [], "amid": []}
    alone: list[float] = []

    def beside_alone(kind: str, taken: float, shares: bool) -> None:
        alone.extend(asking.timed([VERDICT], rq.MeasureWhatIf(next(fresh), with_shares=shares)))
        ratios[kind].append(taken / alone[-1])

    for _ in range(toggles):
        config, before = next(fresh), asking.builder_s()
        verdict, marked = asking.timed(
            [VERDICT, MARKS],
            rq.MeasureWhatIf(config, with_shares=True),
            rq.PreviewEngine(config, with_effects=False, low_priority=True),
        )
        used.append(asking.builder_s() - before)
        found = session.results.get_results_or_empty(config).preview
        marks.append(marked)
        verdicts.append(verdict)
        seconds.append(found.preview_s if found is not None else 0.0)
        beside_alone("beside", verdict, shares=True)
        session.send_request(rq.PreviewEngine(next(fresh), with_effects=False, low_priority=True))
        time.sleep(statistics.median(seconds) / 2)
        beside_alone("amid", asking.timed([VERDICT, MARKS], rq.MeasureWhatIf(next(fresh)))[0], shares=False)
    session.close()
    words = [
        group_precision_text(preview.implementations.get(group.name), group, start.precision_of(group))
        for group in outline.groups
    ]
    others, told = (
        len(preview.find_groups_in_unrequested_precision(outline, start)),
        sum(word not in ("", "fused") for word in words),
    )
    shared = sum(bool(made.sharing_groups) for made in preview.implementations.values())
    middle = [statistics.median(times) for times in (marks, verdicts, seconds, used)]
    return [
        Path(model).stem,
        f"{len(outline.groups)}",
        f"{len(preview.kernels)}",
        f"{shared}",
        f"{told - others}",
        f"{others}",
        *(f"{one:.1f}" for one in middle),
        f"{statistics.median(alone):.2f}",
        *map(spread, ratios.values()),
    ]


def spread(ratios: list[float]) -> str:
    """The median, and least and most."""
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--toggles", type=int, default=5)
    arguments = parser.parse_args()
    print(measure.machine())
    rows = []
    with tempfile.TemporaryDirectory() as folder:  # nothing that was measured before
        os.environ["XDG_CACHE_HOME"] = folder
        for text in arguments.models:
            model, _, data = text.partition("=")
            rows.append(row(model, data or None, arguments.toggles))
            print(rows[-1], flush=True)
    print(
        measure.table(
            [
                "",
                "groups",
                "kernels",
                "share one",
                "as requested",
                "other precision",
                "to marks s",
                "of it what-if",
                "preview",
                "processor s",
                "what-if alone s",
                f"beside / alone ({arguments.toggles} pairs)",
                "amid another's build / alone",
            ],
            rows,
        )
    )
    print(f"load {os.getloadavg()[0]:.1f} in the last minute")


if __name__ == "__main__":
    main()
