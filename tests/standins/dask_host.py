"""A Dask scheduler and a worker in processes of their own, with TLS, as on other hosts."""

import asyncio
import multiprocessing
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from unittest import mock

from distributed import Scheduler, Worker
from distributed.security import Security

LOCAL = "127.0.0.1"
_FORKS = multiprocessing.get_context("forkserver")


def certificate(folder: Path) -> dict[str, str]:
    """Makes a certificate that is its own authority; returns its files as Dask's configuration names them."""
    key, own = str(folder / "key.pem"), str(folder / "own.pem")
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-subj",
            "/CN=tests",
            "-days",
            "1",
            "-keyout",
            key,
            "-out",
            own,
        ],
        check=True,
        capture_output=True,
    )
    return {
        "ca-file": own,
        **{
            f"{role}.{part}": {"cert": own, "key": key}[part]
            for role in ("client", "scheduler", "worker")
            for part in ("cert", "key")
        },
    }


def start(tls: dict[str, str], folder: Path) -> tuple[str, list[multiprocessing.Process]]:
    """The address of the scheduler; its process and that of the worker."""
    ours, theirs = _FORKS.Pipe()
    with mock.patch.dict(sys.modules, {"__main__": ModuleType("__main__")}):  # not to be run again
        scheduler = _FORKS.Process(target=_scheduler, args=(theirs, _security(tls)), daemon=True)
        scheduler.start()
        address = ours.recv()
        worker = _FORKS.Process(target=_worker, args=(address, _security(tls), str(folder)), daemon=True)
        worker.start()
    return address, [scheduler, worker]


def _security(tls: dict[str, str]) -> dict[str, object]:
    return {
        "require_encryption": True,
        "tls_ca_file": tls["ca-file"],
        **{f"tls_{name.replace('.', '_')}": path for name, path in tls.items() if "." in name},
    }


def _scheduler(pipe: Connection, security: dict[str, object]) -> None:
    async def serve() -> None:
        async with Scheduler(
            host=LOCAL, port=0, protocol="tls", dashboard=False, security=Security(**security)
        ) as scheduler:
            pipe.send(scheduler.address)
            await scheduler.finished()

    asyncio.run(serve())


def _worker(address: str, security: dict[str, object], folder: str) -> None:
    async def serve() -> None:
        async with Worker(
            address, nthreads=1, host=LOCAL, dashboard=False, local_directory=folder, security=Security(**security)
        ) as worker:
            await worker.finished()

    asyncio.run(serve())
