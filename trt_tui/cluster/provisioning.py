"""The opening of a workspace on a worker: a check of the worker, then the transfer of the files that the worker lacks.
"""

import asyncio
from typing import Any

from trt_tui.cluster import worker
from trt_tui.cluster.manifest import WorkspaceManifest
from trt_tui.cluster.task_run import TransferByteCounts
from trt_tui.cluster.worker_calls import WorkerCalls, WorkerHandle
from trt_tui.errors import TrtTuiError

PIECE_BYTES = 32 << 20
"""The size of the pieces in which files are sent to workers."""


class WorkerProvisioner:
    """Opens workspaces on workers. Only the thread of the event loop uses this object.

    Args:
        worker_calls: The calls of functions on workers.
        transfer_counts: The counts to which transferred bytes are added.
    """

    def __init__(self, worker_calls: WorkerCalls, transfer_counts: TransferByteCounts) -> None:
        self._worker_calls, self._transfer_counts = worker_calls, transfer_counts
        self._piece_futures: dict[tuple[str, int], asyncio.Future[Any]] = {}

    async def provision_worker(self, worker_handle: WorkerHandle, manifest: WorkspaceManifest,
                               required_environment: worker.WorkerEnvironment) -> None:
        """Checks a worker, sends the missing files of a manifest to it, and opens the workspace there.

        Args:
            required_environment: The versions and the GPU that the worker must have. Its builder and GPU only decide if
                the worker can build engines.

        Raises:
            TrtTuiError: The worker has other versions, or cannot open the workspace.
        """
        worker_handle.parcel, worker_handle.workspace, worker_handle.refusal_reason = manifest, None, ""
        call, submit = self._worker_calls.call_on_worker, self._worker_calls.submit_to_worker
        info = worker_handle.info = worker_handle.info or await call(worker_handle, worker.describe_worker)
        if different := required_environment.describe_differences(info.environment, False):
            raise TrtTuiError(f"it has {'; '.join(different)}")
        worker_handle.engine_refusal_reason = "; ".join(
            required_environment.describe_differences(info.environment, True))
        workspace = submit(worker_handle, worker.WorkerWorkspace, manifest)
        for number in await call(worker_handle, worker.list_missing_files, workspace):
            for position in range(-(-manifest.files[number].size_bytes // PIECE_BYTES) or 1):
                future = await self._send_file_piece(worker_handle, manifest, number, position)
                await call(worker_handle, worker.receive_file_piece, workspace, number, future)
        await call(worker_handle, worker.open_workspace, workspace)
        worker_handle.workspace = workspace

    def drop_file_pieces(self) -> None:
        self._piece_futures.clear()

    async def _send_file_piece(self, worker_handle: WorkerHandle, manifest: WorkspaceManifest, file_index: int,
                               piece_index: int) -> Any:
        key = manifest.files[file_index].path, piece_index
        future = self._piece_futures.get(key)
        if future is None or future.done() and (future.exception() or future.result().status != "finished"):
            piece = manifest.read_file_piece(file_index, piece_index * PIECE_BYTES, PIECE_BYTES)
            self._transfer_counts.files += len(piece)
            future = self._piece_futures[key] = asyncio.ensure_future(
                self._worker_calls.client.scatter(piece, workers=[worker_handle.address], hash=False))
        return await asyncio.shield(future)
