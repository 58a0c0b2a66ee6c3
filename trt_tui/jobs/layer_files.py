"""The files about the layers of a written engine, for ``inspect --engine`` and NVIDIA's TREx."""

from pathlib import Path

from trt_tui.core.engines.trex import engine_graph_text, layer_file_paths, layer_profile_text
from trt_tui.core.runner import EngineBackend
from trt_tui.errors import TrtTuiError
from trt_tui.files.writing import write_file_atomically
from trt_tui.jobs.engine_accuracy import PROFILING_RUNS
from trt_tui.workspace import Workspace, can_run_engines


def write_layer_files(workspace: Workspace, builder: EngineBackend, engine_bytes: bytes,
                      engine_path: Path) -> list[str]:
    """Writes the layers of an engine beside its file, and their times if there are data to execute it on.

    Returns a line for each file, or the reason why it was not written. Errors are such reasons, because the engine
    itself is written.
    """
    graph_path, profile_path = layer_file_paths(engine_path)
    if not can_run_engines(builder, workspace.plan.settings):
        return [_missing_file_text(path, "this machine cannot load the engine") for path in (graph_path, profile_path)]
    lines = []
    try:
        with builder.load_engine(engine_bytes) as runner:
            write_file_atomically(graph_path, engine_graph_text(runner.inspect()))
            lines.append(f"{graph_path.name}: its layers, for inspect --engine and NVIDIA's TREx")
            if workspace.options.data is None:
                return [*lines, _missing_file_text(profile_path, "the layers are timed on --data")]
            feed = workspace.data_sets.judged_samples.read_full_feed(workspace.feeds[0])
            times = runner.layer_times_ms(feed, PROFILING_RUNS)
        write_file_atomically(profile_path, layer_profile_text(times, PROFILING_RUNS))
        return [*lines, f"{profile_path.name}: the times of its layers, for TREx"]
    except TrtTuiError as error:
        missing_paths = (graph_path, profile_path) if not lines else (profile_path, )
        return [*lines, *(_missing_file_text(path, error.title) for path in missing_paths)]


def _missing_file_text(path: Path, reason: str) -> str:
    return f"{path.name} is not written: {reason}" + ("; the file there is of an earlier build" * path.exists())
