"""From a toggle to the marks of the builder, beside the what-if of the same toggle with and without a preview running.

    python -m tests.benchmarks.preview MODEL.onnx[=DATA.npz] ... [--toggles N]

A toggle raises another group of all INT8 to FP32. As in the app, the what-if and the preview are asked together; the
what-if is also asked alone, in turns: what it takes beside is held against what it takes alone right after. Processor
seconds are those of the process that builds, per toggle: on a machine that does other things they tell what the wall
clock would say on an idle one.
"""

from __future__ import annotations

import argparse
import os
import queue
import statistics
import tempfile
import time
from pathlib import Path

from tests.benchmarks import measure
from trt_tui.core.engines.preview import Preview
from trt_tui.core.exporters.previewed import made_word
from trt_tui.core.precision import Precision
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.options import Options
from trt_tui.session.session import Session


class Asking:
    """A session that is asked by hand."""

    def __init__(self, model: str, data: str | None) -> None:
        self.events: queue.Queue[ev.Event] = queue.Queue()
        self.session = Session(Options(model, data), self.events.put, resume=False, automatic=False)
        self.session.start()
        self.until()

    def until(self) -> dict[str, float]:
        """Takes events until nothing is under way; returns when what was heard first, by the event's name."""
        heard: dict[str, float] = {}
        while self.session.busy:
            event = self.events.get()
            if isinstance(event, ev.Failed | ev.Died):
                raise SystemExit(str(event))
            if not isinstance(event, ev.VerdictMeasured) or event.final:
                heard.setdefault(type(event).__name__, time.perf_counter())
            self.session.apply(event)
        return heard

    def timed(self, *requests: rq.Request) -> dict[str, float]:
        """Asks, and returns the seconds until each kind of answer."""
        since = time.perf_counter()
        for request in requests:
            self.session.ask(request)
        return {name: at - since for name, at in self.until().items()}

    def builder_s(self) -> float:
        """Processor seconds that the process that builds has used."""
        ticks = 0
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if b"trt_tui.jobs.previewer" in (path / "cmdline").read_bytes():
                    fields = (path / "stat").read_text().rpartition(")")[2].split()
                    if int(fields[1]) == self.session._client._child.process.pid:
                        ticks += int(fields[11]) + int(fields[12])
            except OSError:
                continue
        return ticks / os.sysconf("SC_CLK_TCK")


def row(model: str, data: str | None, toggles: int) -> list[str]:
    """What is measured of one network."""
    asking = Asking(model, data)
    session, outline = asking.session, asking.session.opened.outline
    start = session.config
    # Ranges, sessions, and the start of what builds.
    asking.timed(rq.WhatIf(start), rq.PreviewEngine(start, effects=False, background=True))
    preview = session.results.of(start).preview
    assert isinstance(preview, Preview) and preview.refused is None, preview
    able = [group for group in outline.groups if Precision.INT8 in group.allowed]
    chosen = able[::max(1, len(able) // (2 * toggles))][:2 * toggles]
    alone, beside, marks, seconds, before = [], [], [], [], asking.builder_s()
    for place, group in enumerate(chosen):
        config = start.with_groups([group], Precision.FP32)
        if place % 2:
            alone.append(asking.timed(rq.WhatIf(config))["VerdictMeasured"])
            continue
        heard = asking.timed(rq.PreviewEngine(config, effects=False, background=True), rq.WhatIf(config))
        beside.append(heard["VerdictMeasured"])
        marks.append(heard["EnginePreviewed"])
        found = session.results.of(config).preview
        seconds.append(found.seconds if found is not None else 0.0)
    used = (asking.builder_s() - before) / len(marks)
    session.close()
    words = [made_word(preview.made.get(group.name), group, start.precision_of(group)) for group in outline.groups]
    others, told = len(preview.otherwise(outline, start)), sum(word not in ("", "fused") for word in words)
    shared = sum(bool(made.shares) for made in preview.made.values())
    middle = [statistics.median(times) for times in (seconds, marks, alone, beside)]
    ratios = sorted(one / other for one, other in zip(beside, alone, strict=True))
    spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}, {len(ratios)})"
    return [Path(model).stem, f"{len(outline.groups)}", f"{len(preview.kernels)}", f"{shared}", f"{told - others}",
            f"{others}", *(f"{one:.1f}" for one in middle[:2]), f"{used:.1f}", *(f"{one:.2f}" for one in middle[2:]),
            spread]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--toggles", type=int, default=4)
    arguments = parser.parse_args()
    print(measure.machine())
    rows = []
    with tempfile.TemporaryDirectory() as folder:  # nothing that was measured before
        os.environ["XDG_CACHE_HOME"] = folder
        for text in arguments.models:
            model, _, data = text.partition("=")
            rows.append(row(model, data or None, arguments.toggles))
            print(rows[-1], flush=True)
    print(measure.table(["", "groups", "kernels", "share one", "as asked", "otherwise", "preview s", "to marks s",
                         "processor s", "what-if alone s", "beside s", "beside / alone (range, pairs)"], rows))
    print(f"load {os.getloadavg()[0]:.1f} in the last minute")


if __name__ == "__main__":
    main()
