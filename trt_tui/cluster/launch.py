"""The choice and the start of a cluster: a local cluster of this program, or a running scheduler of the user."""

import logging
import multiprocessing
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
from distributed import Nanny, Scheduler, SpecCluster

from trt_tui.backends.cuda import count_devices
from trt_tui.errors import InputError
from trt_tui.options import Options

LOCAL_HOST = "127.0.0.1"
"""The address at which a local cluster listens."""

DEFAULT_WORKER_THREADS = 4
"""The number of threads of a worker if the user has not set the number of workers."""

_PRELOADED_MODULES = ("distributed", "distributed.nanny", "onnxruntime", "trt_tui.cluster.worker")
"""The modules imported by the process that local workers are forked from. That process has no threads and uses no GPU.
"""

_DASK_CONFIG = {
    "distributed.worker.multiprocessing-method": "forkserver",
    "distributed.nanny.pre-spawn-environ": {},
    "distributed.admin.tick.limit": "1h",
    "distributed.scheduler.allowed-failures": 1,
    "distributed.scheduler.work-stealing": False,
    "distributed.comm.timeouts.connect": "5s",
}


@dataclass(frozen=True)
class ClusterSpec:
    """The cluster that the options request.

    Attributes:
        scheduler: The address of a running scheduler; "" for a local cluster.
        gpus: The value of CUDA_VISIBLE_DEVICES for each worker; empty for workers on processor cores.
        workers: The number of workers.
        threads: The number of threads that each worker runs an operator on.
    """

    scheduler: str = ""
    gpus: tuple[str, ...] = ()
    workers: int = 0
    threads: int = 1


def parse_cluster_options(options: Options) -> ClusterSpec | None:
    """Returns the cluster that the options request; None if they request none.

    Raises:
        InputError: A requested GPU does not exist.
    """
    if options.scheduler is not None:
        return ClusterSpec(options.scheduler)
    if options.gpus is not None:
        gpus = _list_visible_gpus(options.gpus)
        return ClusterSpec(gpus=gpus, workers=len(gpus))
    if options.workers is None:
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if options.workers == "auto":
        return ClusterSpec(workers=max(1, cores // DEFAULT_WORKER_THREADS), threads=min(DEFAULT_WORKER_THREADS, cores))
    return ClusterSpec(workers=int(options.workers), threads=max(1, cores // int(options.workers)))


def _list_visible_gpus(requested_gpus: str) -> tuple[str, ...]:
    """Returns for each requested GPU the value of CUDA_VISIBLE_DEVICES that makes only this GPU visible."""
    visible_setting = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = [entry.strip() for entry in visible_setting.split(",")
               ] if visible_setting else [str(entry) for entry in range(count_devices())]
    if requested_gpus == "all":
        numbers = list(range(len(visible)))
    else:
        numbers = list(dict.fromkeys(int(entry) for entry in requested_gpus.split(",")))
    if not visible or any(number >= len(visible) for number in numbers):
        raise InputError(f"--gpus {requested_gpus}: no such GPU", f"{len(visible)} are visible",
                         "Name them by their numbers from 0, or use --workers for processor cores.")
    return tuple(visible[number] for number in numbers)


def configure_dask(folder: Path) -> None:
    """Configures Dask in this process, and the process that local workers are forked from.

    Args:
        folder: The folder for files of Dask.
    """
    dask.config.set({**_DASK_CONFIG, "temporary-directory": str(folder)})
    logging.getLogger("distributed").setLevel(logging.ERROR)
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(_PRELOADED_MODULES))


class _MonitoredNanny(Nanny):
    """A Dask nanny that reports the exit code of its worker's process."""

    def __init__(self, *args: Any, ended: Callable[[str, int], None], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._report_exit = ended

    def _on_worker_exit_sync(self, exitcode: int) -> None:
        if self.process is not None and self.process.worker_address:
            self._report_exit(self.process.worker_address, exitcode)
        super()._on_worker_exit_sync(exitcode)  # type: ignore[no-untyped-call]


def launch_local_cluster(spec: ClusterSpec, folder: Path, on_worker_exit: Callable[[str, int], None]) -> SpecCluster:
    """Returns a cluster of processes on this host, as a context manager. Waits until they have started.

    Args:
        folder: The folder for files of the workers.
        on_worker_exit: A function that is called with the address and the exit code of each ended worker process. Dask
            restarts the process.
    """
    shared_options = {
        "host": LOCAL_HOST, "dashboard_address": f"{LOCAL_HOST}:0", "nthreads": spec.threads, "memory_limit": 0,
        "local_directory": str(folder), "ended": on_worker_exit, "silence_logs": "ERROR"
    }
    gpu_settings: list[dict[str, str]] = [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in spec.gpus] or [{}] * spec.workers
    workers = {
        number: {"cls": _MonitoredNanny, "options": {**shared_options, "env": {"ORT_DISABLE_TELEMETRY": "1", **pin}}}
        for number, pin in enumerate(gpu_settings)
    }
    options = {"host": LOCAL_HOST, "port": 0, "dashboard_address": f"{LOCAL_HOST}:0"}
    return SpecCluster(workers, {"cls": Scheduler, "options": options}, name="trt-tui")
