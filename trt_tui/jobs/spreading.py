"""Who does a job's errands: this process, or the workers of the cluster that was asked for."""

import importlib.util

from trt_tui.core.hands import Hands, Here
from trt_tui.errors import BackendUnavailableError
from trt_tui.jobs.scheduler import Report
from trt_tui.jobs.steps import Urgency, Wait
from trt_tui.options import Options
from trt_tui.workspace import Others, Workspace


def hired(options: Options, before: Others | None) -> Others | None:
    """The cluster that the options ask for: that of before where there is one; None for none.

    Raises:
        InputError: there is no such GPU.
        BackendUnavailableError: Dask is not installed.
    """
    asked = [f"--{name}" for name, value in (("gpus", options.gpus), ("workers", options.workers),
                                             ("scheduler", options.scheduler)) if value is not None]
    if not asked or before is not None and not before.lost:
        return before
    if importlib.util.find_spec("distributed") is None:
        raise BackendUnavailableError(f"{asked[0]} needs Dask, which is not installed", "",
                                      "pip install 'trt-tui[cluster]'")
    from trt_tui.cluster.crew import Hired
    from trt_tui.cluster.hiring import hiring_of

    hiring = hiring_of(options)
    return Hired(hiring) if hiring is not None else None


def hands_of(workspace: Workspace, report: Report, *, engines: bool = False) -> Hands[Workspace]:
    """Who does errands for a job; ``engines`` for those whose results depend on the builder and the GPU."""
    if workspace.others is None:
        return Here(workspace)
    return workspace.others.hands(workspace, report.wake, engines)


def following(hands: Hands[Workspace], urgency: Urgency) -> Urgency | Wait:
    """What a job yields whose errand is being done."""
    return urgency if hands.ready() else Wait(hands.ready)
