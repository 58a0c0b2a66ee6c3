"""Opening the network, the data and the backends."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from trt_tui.backends.registry import get_builder
from trt_tui.core.data.places import refuse_over
from trt_tui.core.importers.reading import read_any
from trt_tui.core.lowering.lowered import cannot_lower
from trt_tui.core.measure.judge import left_out
from trt_tui.core.measure.reference import named, reference_notes
from trt_tui.core.network.preview import previews
from trt_tui.core.runner import EngineBackend
from trt_tui.errors import BackendUnavailableError, CancelledError, InputError, TrtTuiError
from trt_tui.jobs import events as ev
from trt_tui.jobs import requests as rq
from trt_tui.jobs.guarding import facts_of_data
from trt_tui.jobs.scheduler import Report
from trt_tui.jobs.spreading import hired
from trt_tui.jobs.steps import Steps, Urgency
from trt_tui.jobs.store import Store
from trt_tui.jobs.summaries import BackendSummary, BuilderSummary, DataSummary
from trt_tui.options import Options
from trt_tui.workspace import Others, Workspace, runs_here


@dataclass
class Place:
    """Holds the workspace of the process, or the reason why there is none, and the other processes that do errands."""

    workspace: Workspace | None = None
    failure: TrtTuiError | None = None
    others: Others | None = None

    def opened(self) -> Workspace:
        """The workspace.

        Raises:
            TrtTuiError: there is none; says why.
        """
        if self.workspace is None:
            raise self.failure or InputError("no network is open", "opening it was stopped", "Open it again.")
        return self.workspace


def run(place: Place, store: Store, report: Report, request: rq.Open) -> Steps[None]:
    """Puts a new workspace in the place of the one before, once all of it is read."""
    try:
        yield from _open(place, store, report, request)
    except CancelledError:
        raise
    except TrtTuiError as error:
        place.failure = error
        raise


def _open(place: Place, store: Store, report: Report, request: rq.Open) -> Steps[None]:
    options, before = request.options, place.workspace
    note = partial(_note, report)
    builder = found_builder(options, note) if request.builds else None
    place.others = hired(options, place.others)
    report.send(ev.Progress(report.job, "reading the network", 0, 0))
    for first_look in previews(options.model) if before is None and not request.lean else ():
        report.send(ev.Previewed(report.job, first_look))
        yield Urgency.OPENING
    workspace = Workspace(options)
    refuse_over(request.writes, workspace.network.external_files)
    if request.structure and workspace.network.structure_sha256 != request.structure:
        if before is not None:
            before.close()
        place.workspace = None
        raise InputError(f"{options.model} is another network now", "its structure changed since it was opened",
                         "Quit and open it again; the figures on screen are those of the network as it was.")
    if request.lean:
        place.workspace, place.failure = workspace, None
        workspace.builder = builder
        report.send(ev.Previewed(report.job, workspace.network.outline()))
        _read_config(workspace, report, request)
        return
    yield Urgency.OPENING
    for _ in workspace.read():
        yield Urgency.OPENING
    workspace.expected, workspace.others = request.known, place.others
    workspace.watch()
    if before is not None:
        before.close()
    place.workspace, place.failure = workspace, None
    report.send(_opened(report.job, workspace))
    yield Urgency.OPENING
    builder = workspace.builder = builder or get_builder(options.backend, note, plugins=options.production.plugins)
    if builder is not None:
        report.send(ev.BuilderReady(report.job, BuilderSummary(
            builder.name, builder.version, builder.device, runs_here(builder, workspace.plan.settings))))
    yield from identify(workspace, store, report)
    if place.others is not None:
        place.others.share(workspace)
    report.send(ev.FactsMeasured(report.job, facts_of_data(workspace)))
    _read_config(workspace, report, request)


def found_builder(options: Options, note: Callable[[str], None]) -> EngineBackend:
    """What builds engines here.

    Raises:
        BackendUnavailableError: nothing does.
    """
    builder = get_builder(options.backend, note, plugins=options.production.plugins)
    if builder is None:
        raise BackendUnavailableError(
            "no TensorRT works here to build an engine",
            "ONNX Runtime builds none" if options.backend == "onnxruntime" else "trt-tui doctor says why",
            "Write -o typed.onnx instead, or build with --backend tensorrt-rtx, which needs no GPU.")
    return builder


def _note(report: Report, text: str) -> None:
    report.send(ev.Note(report.job, text))


def _read_config(workspace: Workspace, report: Report, request: rq.Open) -> None:
    if request.config is not None:
        sha256 = workspace.source.sha256 if workspace.source is not None else None
        report.send(ev.ConfigRead(report.job, read_any(request.config, workspace.network, force=request.force,
                                                          sha256=sha256)))


def identify(workspace: Workspace, store: Store, report: Report) -> Steps[None]:
    """Hashes the network, and the samples and labels in use."""
    report.send(ev.Progress(report.job, "hashing the network and the data", 0, 0))
    sha256 = store.network_sha256(workspace.network)
    yield Urgency.OPENING
    report.send(ev.Hashed(report.job, workspace.identify(sha256)))
    yield Urgency.OPENING


def _opened(job: int, workspace: Workspace) -> ev.Opened:
    network, data, samples, backend = workspace.network, workspace.data, workspace.samples, workspace.backend
    warnings = [*network.notes, *data.warnings, *samples.warnings]
    masks = {one.mask for one in workspace.judged}
    idle = [name for name in samples.label_names if name not in masks]
    if idle and workspace.metric is None:
        warnings.append(f"The data hold labels ({', '.join(idle)}), but no --metric uses them.")
    warnings += [f"{one.name}: {one.note}" for one in workspace.judged if "judged" in one.note]
    warnings += [*left_out(network), *filter(None, [cannot_lower(network)])]
    reference = None
    if workspace.against is not None:
        scored = workspace.analysis.scored
        reference = named(workspace.against, network, scored, workspace.judgeable)
        warnings += reference_notes(reference, network.name, bool(scored))
    return ev.Opened(
        job, workspace.outline, workspace.judged,
        DataSummary(samples.source, data.judged.count, data.calibration.count, workspace.judged_count,
                    samples.random, tuple(samples.label_names), tuple(dict.fromkeys(warnings)), workspace.profile),
        BackendSummary("ONNX Runtime", backend.version, backend.provider.upper(), backend.capabilities.real_fp16),
        workspace.metric.name if workspace.metric is not None else None, reference)
