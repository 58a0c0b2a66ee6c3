"""Workers of a Dask cluster: the same results, whatever becomes of workers and of the scheduler."""

import asyncio
import operator
import os
import re
import shutil
import signal
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import dask
import numpy as np
import onnx
import pytest
from distributed import Client

from tests import networks, nursery
from tests.driven import run_to_end
from tests.networks.odd import conv_net
from tests.standins import dask_host
from trt_tui.cluster import cluster as clusters
from trt_tui.cluster.cluster import ClusterSpec, ClusterWorkerPool
from trt_tui.core.calibration.calibration import Calibration, calibrate, collect_tensor_stats
from trt_tui.core.measure.group_errors import measure_group_errors
from trt_tui.core.measure.group_sweep import GroupSweep
from trt_tui.core.measure.results import Accuracy
from trt_tui.core.measure.target import parse_target
from trt_tui.core.measure.zero_cost_kinds import measure_bias_corrections
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.errors import TrtTuiError
from trt_tui.jobs import requests as rq
from trt_tui.jobs import search_job
from trt_tui.jobs.engine import BuildOutput, BuildTask
from trt_tui.jobs.store import ResultCache, ResultStore
from trt_tui.options import Options
from trt_tui.workspace import Workspace

INT8 = PrecisionConfig.from_precision(Precision.INT8)


class Errand:
    """What a worker does with an item: "kill", "once" (kill the first time), "last" (end after the result, the first
    time), "slow", "nap"; then it says who it is."""

    item_text = "item {}"

    def __init__(self, folder):
        self.folder, self.home = folder, os.getpid()

    def run_item(self, context, item):
        yield
        mark = self.folder / item
        assert os.getpid() != self.home or item not in ("kill", "once")
        if item == "kill" or item == "once" and not mark.exists():
            mark.write_text("")
            os.kill(os.getpid(), signal.SIGKILL)
        if item.startswith("last") and not mark.exists():
            mark.write_text(str(os.getpid()))
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
        while item == "slow":
            mark.write_text(str(time.monotonic()))
            time.sleep(0.02)
            yield
        time.sleep(0.05 * item.startswith("nap"))
        return item, os.getpid()


class WeightsErrand(Errand):
    """The file whose weights FP32 means on a worker."""

    def run_item(self, context, item):
        yield
        return context.network.weights_source_name


class Running:
    """A cluster, and what is open here and there."""

    def __init__(self, workspace, hiring):
        self.workspace, self.woken = workspace, threading.Event()
        self.hired = ClusterWorkerPool(hiring)
        self.hired.make_executor(workspace, self.woken.set)

    def until(self, true, seconds=90):
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, [*self.hired.take_new_messages()]
            time.sleep(0.01)

    def serving(self, count):
        self.until(lambda: self.hired.count_workers() == count)
        return self

    def hands(self):
        return self.hired.make_executor(self.workspace, self.woken.set)

    def steps(self, hands, steps):
        """Takes steps as a job does: it waits while there is nothing to go on with."""
        for step in steps:
            yield step
            while not hands.is_ready():
                assert self.woken.wait(90)
                self.woken.clear()

    def done(self, errand, items):
        hands = self.hands()
        return [one for one in self.steps(hands, hands.map(errand, items)) if one is not None]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("opened")
    model = networks.chain(2)
    onnx.save(model, folder / "network.onnx")
    np.savez(folder / "data.npz", **networks.feeds(model, n=32))
    opened = Workspace(Options(str(folder / "network.onnx"), data=str(folder / "data.npz"), batch=4, threads=1))
    opened.set_fingerprint(opened.network.sha256())
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def running(workspace):
    with mock.patch.object(clusters, "_PRELOADED_MODULES", nursery.PRELOADED):
        made = Running(workspace, ClusterSpec(workers=2)).serving(2)
        yield made
        made.hired.close()


def ranges_of(workspace, **options):
    return calibrate(
        workspace.network.model,
        workspace.network.calibrated_tensors,
        workspace.calibration_samples,
        workspace.backend,
        **options,
    ).ranges


@pytest.mark.parametrize("method", ["minmax", "entropy"])
def test_ranges_are_equal_to_the_last_bit(workspace, running, method):
    ranges, before = ranges_of(workspace, method=method), running.hired.transfer_counts["results"]
    assert ranges_of(workspace, method=method, executor=running.hands()) == ranges
    assert running.hired.transfer_counts["results"] > before


def test_statistics_and_corrections_are_equal_to_the_last_bit(workspace, running):
    network, found = workspace.network, []
    given = network.model, network.calibrated_tensors, workspace.calibration_samples, workspace.backend
    for hands in (None, running.hands()):
        stats = collect_tensor_stats(*given, executor=hands)
        moves = measure_bias_corrections(
            network, INT8, ranges_of(workspace), network.groups, *given[2:], executor=hands
        )
        found.append(({name: replace(one, histogram=None) for name, one in stats.items()}, moves))
    assert found[0] == found[1] and all(found[0]) and len(workspace.calibration_samples) > 1


@pytest.mark.parametrize("lowered", [False, True])
@pytest.mark.parametrize("exact", [False, True])
def test_sweeps_are_equal_to_the_last_bit(workspace, running, lowered, exact):
    ranges, found = ranges_of(workspace), []
    for hands in (None, running.hands()):
        sweep = GroupSweep(
            workspace.analysis,
            INT8,
            ranges,
            feed_indices=workspace.feeds,
            reduces_groups=lowered,
            measures_all_samples=exact,
            executor=hands,
        )
        list(sweep.measure_groups() if hands is None else running.steps(hands, sweep.measure_groups()))
        found.append(
            (
                sweep.state,
                {name: sweep.estimate_error_share(name) for name in sweep.measured_groups},
                sweep.planner.measured_count,
            )
        )
    assert found[0] == found[1] and found[0][1] and found[0][0].by_sample is not exact


def test_errors_at_the_groups_are_equal_to_the_last_bit(workspace, running):
    configs, ranges = {"int8": INT8, "fp16": PrecisionConfig.from_precision(Precision.FP16)}, ranges_of(workspace)
    found = []
    for hands in (None, running.hands()):
        steps = measure_group_errors(workspace.analysis, configs, ranges, feed_indices=workspace.feeds, executor=hands)
        *_, last = steps if hands is None else running.steps(hands, steps)
        found.append((last.value, last.done_count, workspace.analysis.get_magnitudes(workspace.feeds)))
        workspace.analysis._magnitudes.clear()
    assert found[0] == found[1] and found[0][1] == 2 * len(workspace.feeds)


def test_candidates_of_a_search_are_judged_at_once_and_to_the_last_bit(workspace, running, tmp_path):
    groups, store = workspace.network.groups, ResultStore(ResultCache(tmp_path))
    configs = [INT8, *(INT8.with_group_precision(groups[:count], Precision.FP32) for count in range(1, len(groups)))]
    workspace.calibration = Calibration("minmax", 8, "", ranges_of(workspace))
    request, report = rq.FindMixedPrecisionConfig(INT8, ("sqnr>=40",)), SimpleNamespace(wake=running.woken.set)
    with (
        mock.patch.object(workspace, "worker_pool", running.hired),
        mock.patch.object(search_job, "MIN_PARALLEL_S", 0.0),
    ):
        run_to_end(
            search_job.SearchJob(
                workspace, store, report, request, [parse_target("sqnr>=40")]
            ).measure_accuracies_in_parallel(lambda count: configs[:count])
        )
    found = [store.load_result(workspace, "verdict", config, Accuracy) for config in configs]
    assert all(found[:2]) and not any(found[2:])  # one for each worker
    for config, verdict in zip(configs, found[:2], strict=False):
        *_, last = workspace.analysis.measure_accuracy(config, workspace.ranges, workspace.feeds)
        assert verdict == last.value and verdict.samples == workspace.judged_sample_count


@pytest.mark.parametrize("used", [True, False])
def test_workers_use_the_weights_of_a_reference_as_the_program_does(used, running, tmp_path):
    onnx.save(networks.quantized(), tmp_path / "q.onnx")
    onnx.save(conv_net(0 if used else 5), tmp_path / "fp32.onnx")
    options = Options(str(tmp_path / "q.onnx"), reference=str(tmp_path / "fp32.onnx"), samples=8, threads=1)
    other = Running.__new__(Running)
    other.__dict__.update(running.__dict__, workspace=Workspace(options))
    for _ in other.workspace.check_reference_weights():
        pass
    other.workspace.set_fingerprint(other.workspace.network.sha256())
    assert other.done(WeightsErrand(tmp_path), ["worker"]) == [("worker", "fp32.onnx" if used else "")]
    running.hands()
    running.serving(2)


@pytest.mark.rtx
def test_engines_are_built_at_once(workspace, running, tmp_path):
    options = replace(workspace.options, backend="tensorrt-rtx", compute_capability=(8, 9))
    other = Running.__new__(Running)
    other.__dict__.update(running.__dict__, workspace=Workspace(options))
    other.workspace.set_fingerprint(other.workspace.network.sha256())
    hands = other.hands()
    other.serving(2)
    fp32, fp16 = map(PrecisionConfig.from_precision, (Precision.FP32, Precision.FP16))
    items = [(fp32, 0), (fp16, 0), (fp16, 1)]
    task = BuildTask({}, {config: workspace.feeds for config, _ in items})
    made = dict(one for one in other.steps(hands, hands.map(task, items)) if one is not None)
    assert (
        all(isinstance(made[item], BuildOutput) and made[item].result.engine_bytes > 0 for item in items)
        and len(made) == 3
    )
    again = made[items[2]]  # the engine of a further build comes along, with its timings
    assert again.result.engine_bytes < max(map(len, again.files.values())) and not made[items[1]].files
    assert other.workspace.builder is None  # nothing was built here
    running.hands()
    running.serving(2)


def test_a_killed_worker_is_replaced_and_nothing_counts_twice(running, tmp_path):
    before = running.hired.transfer_counts["files"]
    items = [*map(str, range(30)), "once", *map(str, range(30, 40))]
    found = running.done(Errand(tmp_path), items)
    assert Counter(item for item, _ in found) == Counter(items) and all(came[0] == item for item, came in found)
    assert len({pid for _, (_, pid) in found}) >= 2 and os.getpid() not in {pid for _, (_, pid) in found}
    running.until(lambda: running.hired.last_lost_address)  # the list of workers is read at intervals
    running.serving(2)
    (told,) = [text for _, text in running.hired.take_new_messages() if "is lost" in text]
    assert (
        "ended by signal 9: other workers continue its work" in told and "(1 lost)" in running.hired.worker_count_text
    )
    assert running.hired.transfer_counts["files"] == before == 0  # workers of this host read the same files


def test_what_ends_two_workers_fails_as_its_own_job(running, tmp_path):
    with pytest.raises(TrtTuiError) as failed:
        running.done(Errand(tmp_path), ["1", "kill", "2"])
    # One more has ended if the item was in a batch with others at first.
    assert re.fullmatch("item kill: [23] workers ended while they measured it", failed.value.title)
    assert "ended by signal 9" in failed.value.cause
    running.serving(2)
    assert len(running.done(Errand(tmp_path), ["1", "2"])) == 2


def test_results_lost_before_they_are_fetched_are_measured_again(running, tmp_path):
    gather = Client._gather_remote

    async def gather_from_ended_workers(self, *arguments):
        for mark in tmp_path.glob("last*"):
            with suppress(ProcessLookupError):
                while True:
                    os.kill(int(mark.read_text()), 0)
                    await asyncio.sleep(0.01)
        return await gather(self, *arguments)

    with mock.patch.object(Client, "_gather_remote", gather_from_ended_workers):
        found = running.done(Errand(tmp_path), ["last1", "last2", "3"])
    assert sorted(item for item, _ in found) == ["3", "last1", "last2"]
    ended = {int(mark.read_text()) for mark in tmp_path.glob("last*")}
    assert len(ended) == 2 and not ended & {pid for item, (_, pid) in found if item != "3"}
    running.serving(2)


def test_what_is_stopped_ends_in_the_workers(running, tmp_path):
    work = running.hands().map(Errand(tmp_path), ["slow"] * 4)
    next(work)
    running.until((tmp_path / "slow").exists)
    since = time.monotonic()
    work.close()
    assert time.monotonic() - since < 0.5 and len(running.done(Errand(tmp_path), ["1", "2", "3"])) == 3
    assert time.monotonic() - since < 2 + 3
    last = (tmp_path / "slow").read_text()
    time.sleep(0.1)
    assert (tmp_path / "slow").read_text() == last and float(last) - since < 2


@pytest.fixture
def other(workspace, running):
    """A program that uses the cluster of another one."""
    made = []

    def make(serving=2):
        made.append(Running(workspace, ClusterSpec(running.hired.local_cluster.scheduler_address)))
        return made[-1].serving(serving)

    yield make
    for one in made:
        one.hired.close()


def test_files_go_by_content_and_nothing_is_left(workspace, running, other, tmp_path):
    """As to hosts that do not see them: with other stamps."""
    parcel_of, tasks = clusters.build_manifest, running.hired.local_cluster.scheduler.tasks

    def unseen(*arguments):
        parcel = parcel_of(*arguments)
        return replace(parcel, files=tuple((path, (0, stamp[1], 0)) for path, stamp in parcel.files))

    with mock.patch.object(clusters, "build_manifest", unseen), mock.patch.object(clusters, "PIECE_BYTES", 1000):
        far = other()
    assert far.hired.transfer_counts["files"] == sum(
        os.path.getsize(path) for path, _ in workspace.stamped_files.stamps
    )
    assert len(far.done(Errand(tmp_path), ["1", "2"])) == 2
    client = far.hired._client.id
    own = {key for key, task in dict(tasks).items() if {one.client_key for one in task.who_wants} == {client}}
    assert own
    far.hired.close()
    running.until(lambda: not own & set(tasks))  # a worker that is replaced meanwhile gets tasks of its own


@pytest.mark.parametrize("word", ["trt-tui", "ONNX Runtime"])
def test_workers_of_another_version_are_refused_by_name(workspace, other, tmp_path, word):
    kind_of = clusters.get_worker_environment
    with mock.patch.object(clusters, "get_worker_environment", lambda backend: {**kind_of(backend), word: "0.0"}):
        alone = other(serving=0)
        alone.until(lambda: len(alone.hired.messages) == 2)
    for _, text in alone.hired.take_new_messages():
        assert text.startswith("Worker tcp://127.0.0.1:") and f"is not used: it has {word} " in text
    assert alone.done(Errand(tmp_path), ["1"]) == [("1", ("1", os.getpid()))]


class AnswerOfAnotherRelease:
    """What this release cannot read."""

    def __reduce__(self):
        return operator.attrgetter("gone"), (0,)


def test_workers_of_a_release_with_other_answers_are_refused_by_name(other):
    with mock.patch.object(clusters, "get_own_worker_environment", AnswerOfAnotherRelease):
        alone = other(serving=0)
        alone.until(lambda: len(alone.hired.messages) == 2)
    assert all("it has another release of trt-tui" in text for _, text in alone.hired.take_new_messages())


def test_another_gpu_or_builder_matters_to_engines_alone(workspace, other, tmp_path):
    kind_of = clusters.get_worker_environment
    with mock.patch.object(
        clusters, "get_worker_environment", lambda backend: {**kind_of(backend), "GPU": "NVIDIA Other"}
    ):
        one = other()
    assert one.hired.count_workers(for_engines=True) == 0
    for _ in range(2):
        one.hired.make_executor(workspace, one.woken.set, for_engines=True)
    said = [text for _, text in one.hired.take_new_messages() if "builds no engines: it has GPU " in text]
    assert len(said) == 2 and all(text.startswith("Worker tcp://127.0.0.1:") for text in said)  # each of them once
    assert one.done(Errand(tmp_path), ["1"])[0][1][1] != os.getpid()


def test_a_scheduler_that_is_named_has_to_answer(workspace):
    with mock.patch.object(clusters, "CONNECT_TIMEOUT_S", 0.3):
        hired = ClusterWorkerPool(ClusterSpec("tcp://127.0.0.1:9"))
        with pytest.raises(TrtTuiError, match="no Dask scheduler answers"):
            hired.open_workspace_on_workers(workspace)
        hired.close()


def test_workers_that_come_and_go_are_known(running, other, tmp_path):
    alone = other()
    before = set(alone.hired._workers)
    os.kill(running.done(Errand(tmp_path), ["1"])[0][1][1], signal.SIGKILL)
    alone.until(lambda: alone.hired.count_workers() == 2 and len(set(alone.hired._workers) & before) == 1)
    assert len(alone.done(Errand(tmp_path), ["1", "2", "3"])) == 3


def test_a_scheduler_that_gives_no_list_does_not_hold_up_the_end(other):
    async def never(**arguments):
        await asyncio.sleep(60)

    alone = other()
    with mock.patch.object(alone.hired._client, "scheduler", SimpleNamespace(identity=never)):
        time.sleep(2 * clusters.POLL_INTERVAL_S)
        since = time.monotonic()
        alone.hired.close()
    assert time.monotonic() - since < 2 + clusters.LIST_TIMEOUT_S


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_with_tls_and_without_the_scheduler_the_work_goes_on_here(workspace, tmp_path):
    """The scheduler is killed: what the worker had not given back is done here, and nothing twice."""
    tls = dask_host.certificate(tmp_path)
    address, processes = dask_host.start(tls, tmp_path)
    assert address.startswith("tls://")
    with dask.config.set({f"distributed.comm.tls.{name}": path for name, path in tls.items()}):
        far = Running(workspace, ClusterSpec(address)).serving(1)
    hands = far.hands()
    work = far.steps(hands, hands.map(Errand(tmp_path), [f"nap {number}" for number in range(20)]))
    found = [next(one for one in work if one is not None)]
    processes[0].kill()
    since = time.monotonic()
    found += [one for one in work if one is not None]
    assert Counter(item for item, _ in found) == Counter(f"nap {number}" for number in range(20))
    assert found[0][1][1] == processes[1].pid and found[-1][1][1] == os.getpid() and time.monotonic() - since < 30
    assert any("The Dask scheduler is lost" in text for _, text in far.hired.take_new_messages())
    far.hired.close()
    for process in processes:  # the worker ends with its scheduler
        process.join(10)
        assert process.exitcode is not None


def test_with_tls_alone_a_certificate_is_needed(workspace):
    with mock.patch.object(clusters, "CONNECT_TIMEOUT_S", 0.3):
        hired = ClusterWorkerPool(ClusterSpec("tls://127.0.0.1:9"))
        with pytest.raises(TrtTuiError) as refused:
            hired.open_workspace_on_workers(workspace)
        hired.close()
    assert "TLS" in refused.value.cause and "tls" in refused.value.next_step
