"""The choice of the executor of a job: this process, or the workers of the requested cluster."""

import importlib.util

from trt_tui.core.execution import Executor, LocalExecutor
from trt_tui.errors import BackendUnavailableError
from trt_tui.jobs.scheduler import JobReporter
from trt_tui.jobs.steps import Urgency, Wait
from trt_tui.options import Options
from trt_tui.workspace import WorkerPool, Workspace


def open_worker_pool(options: Options, previous_pool: WorkerPool | None) -> WorkerPool | None:
    """Returns the worker pool of the cluster that the options request: the previous pool if it still works, a new one
    if not.

    Returns None if the options request no cluster.

    Raises:
        InputError: A requested GPU does not exist.
        BackendUnavailableError: Dask is not installed.
    """
    cluster_options = [f"--{name}" for name, value in (("gpus", options.gpus), ("workers", options.workers),
                                                       ("scheduler", options.scheduler)) if value is not None]
    if not cluster_options or previous_pool is not None and not previous_pool.failure_reason:
        return previous_pool
    if importlib.util.find_spec("distributed") is None:
        raise BackendUnavailableError(f"{cluster_options[0]} needs Dask, which is not installed", "",
                                      "pip install 'trt-tui[cluster]'")
    from trt_tui.cluster.executor import ClusterWorkerPool
    from trt_tui.cluster.launch import parse_cluster_options

    cluster_spec = parse_cluster_options(options)
    return ClusterWorkerPool(cluster_spec) if cluster_spec is not None else None


def get_executor(workspace: Workspace, reporter: JobReporter, *, for_engines: bool = False) -> Executor[Workspace]:
    """Returns the executor of a job's tasks.

    Args:
        for_engines: True for tasks whose results depend on the builder and the GPU.
    """
    if workspace.worker_pool is None:
        return LocalExecutor(workspace)
    return workspace.worker_pool.make_executor(workspace, reporter.wake, for_engines)


def choose_next_job_step(executor: Executor[Workspace], urgency: Urgency) -> Urgency | Wait:
    """Returns the next step of a job with a running task: the urgency if a result is ready, or a wait for a result."""
    return urgency if executor.is_ready() else Wait(executor.is_ready)
