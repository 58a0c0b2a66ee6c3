"""Workers of a Dask cluster: the same results, whatever becomes of workers and of the scheduler."""

import os
import shutil
import signal
import threading
import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import dask
import numpy as np
import onnx
import pytest

from tests import networks, nursery
from tests.standins import dask_host
from trt_tui.cluster import cluster as clusters
from trt_tui.cluster import crew, hiring, settling
from trt_tui.cluster.crew import Hired
from trt_tui.cluster.hiring import Hiring
from trt_tui.core.calibration.calibrate import Calibration, calibrate
from trt_tui.core.calibration.statistics import collect_stats
from trt_tui.core.engines.preview import Preview
from trt_tui.core.measure.comparison import Verdict
from trt_tui.core.measure.free import corrections
from trt_tui.core.measure.group_sweep import GroupSweep
from trt_tui.core.measure.layers import measure_layers
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.errors import TrtTuiError
from trt_tui.jobs import bench
from trt_tui.jobs import requests as rq
from trt_tui.jobs.build import Building
from trt_tui.jobs.previewing import Asking, Previewing
from trt_tui.jobs.rebuilding import Made
from trt_tui.jobs.steps import Wait
from trt_tui.jobs.store import ResultCache, Store
from trt_tui.options import Options
from trt_tui.workspace import Workspace

INT8 = PrecisionConfig.uniform(Precision.INT8)


class Errand:
    """What a worker does with an item: "kill", "once" (kill the first time), "slow", "nap"; then it says who it is."""

    def __init__(self, folder):
        self.folder, self.home = folder, os.getpid()

    def words(self, item):
        return f"item {item}"

    def do(self, subject, item):
        yield
        mark = self.folder / item
        assert os.getpid() != self.home or item not in ("kill", "once")
        if item == "kill" or item == "once" and not mark.exists():
            mark.write_text("")
            os.kill(os.getpid(), signal.SIGKILL)
        while item == "slow":
            mark.write_text(str(time.monotonic()))
            time.sleep(0.02)
            yield
        time.sleep(0.05 * item.startswith("nap"))
        return item, os.getpid()


class Running:
    """A cluster, and what is open here and there."""

    def __init__(self, workspace, hiring):
        self.workspace, self.woken = workspace, threading.Event()
        self.hired = Hired(hiring)
        self.hired.hands(workspace, self.woken.set)

    def until(self, true, seconds=90):
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, [*self.hired.told()]
            time.sleep(0.01)

    def serving(self, count):
        self.until(lambda: self.hired.cluster.able() == count)
        return self

    def hands(self):
        return self.hired.hands(self.workspace, self.woken.set)

    def steps(self, hands, steps):
        """Takes steps as a job does: it waits while there is nothing to go on with."""
        for step in steps:
            yield step
            while not hands.ready():
                assert self.woken.wait(90)
                self.woken.clear()

    def done(self, errand, items):
        hands = self.hands()
        return [one for one in self.steps(hands, hands.work(errand, items)) if one is not None]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("opened")
    model = networks.chain(2)
    onnx.save(model, folder / "network.onnx")
    np.savez(folder / "data.npz", **networks.feeds(model, n=32))
    opened = Workspace(Options(str(folder / "network.onnx"), data=str(folder / "data.npz"), batch=4, threads=1))
    opened.identify(opened.network.sha256())
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def running(workspace):
    with mock.patch.object(hiring, "_PRELOADED", nursery.PRELOADED):
        made = Running(workspace, Hiring(workers=2)).serving(2)
        yield made
        made.hired.close()


def finished(steps):
    """What steps return that wait."""
    while True:
        try:
            waits = next(steps)
        except StopIteration as stop:
            return stop.value
        while isinstance(waits, Wait) and not waits.ready():
            time.sleep(0.01)


def ranges_of(workspace, **options):
    return calibrate(workspace.network.model, workspace.network.activations, workspace.calibrating,
                     workspace.backend, **options).ranges


@pytest.mark.parametrize("method", ["minmax", "entropy"])
def test_ranges_are_equal_to_the_last_bit(workspace, running, method):
    ranges, before = ranges_of(workspace, method=method), running.hired.cluster.traffic.results
    assert ranges_of(workspace, method=method, hands=running.hands()) == ranges
    assert running.hired.cluster.traffic.results > before


def test_statistics_and_corrections_are_equal_to_the_last_bit(workspace, running):
    network, found = workspace.network, []
    given = network.model, network.activations, workspace.calibrating, workspace.backend
    for hands in (None, running.hands()):
        stats = collect_stats(*given, hands=hands)
        moves = corrections(network, INT8, ranges_of(workspace), network.groups, *given[2:], hands=hands)
        found.append(({name: replace(one, histogram=None) for name, one in stats.items()}, moves))
    assert found[0] == found[1] and all(found[0]) and len(workspace.calibrating) > 1


@pytest.mark.parametrize("lowered", [False, True])
@pytest.mark.parametrize("exact", [False, True])
def test_sweeps_are_equal_to_the_last_bit(workspace, running, lowered, exact):
    ranges, found = ranges_of(workspace), []
    for hands in (None, running.hands()):
        sweep = GroupSweep(workspace.analysis, INT8, ranges, feeds=workspace.feeds, lowered=lowered, exact=exact,
                           hands=hands)
        list(sweep.steps() if hands is None else running.steps(hands, sweep.steps()))
        found.append((sweep.swept, {name: sweep.of(name) for name in sweep.active}, sweep.sweep.done))
    assert found[0] == found[1] and found[0][1] and found[0][0].apart is not exact


def test_errors_at_the_groups_are_equal_to_the_last_bit(workspace, running):
    configs, ranges = {"int8": INT8, "fp16": PrecisionConfig.uniform(Precision.FP16)}, ranges_of(workspace)
    found = []
    for hands in (None, running.hands()):
        steps = measure_layers(workspace.analysis, configs, ranges, feeds=workspace.feeds, hands=hands)
        *_, last = steps if hands is None else running.steps(hands, steps)
        found.append((last.value, last.done, workspace.analysis.magnitudes(workspace.feeds)))
        workspace.analysis._magnitudes.clear()
    assert found[0] == found[1] and found[0][1] == 2 * len(workspace.feeds)


def test_candidates_of_a_search_are_judged_at_once_and_to_the_last_bit(workspace, running, tmp_path):
    groups, store = workspace.network.groups, Store(ResultCache(tmp_path))
    configs = [INT8, *(INT8.with_groups(groups[:count], Precision.FP32) for count in range(1, len(groups)))]
    workspace.calibration = Calibration("minmax", 8, "", ranges_of(workspace))
    request, report = rq.FindConfig(INT8, ("sqnr>=40",)), SimpleNamespace(wake=running.woken.set)
    with mock.patch.object(workspace, "others", running.hired), mock.patch.object(bench, "WORTH_S", 0.0):
        finished(bench.WorkspaceBench(workspace, store, report, request).judge_ahead(lambda count, _: configs[:count]))
    found = [store.known(workspace, "verdict", config, Verdict) for config in configs]
    assert all(found[:2]) and not any(found[2:])  # one for each worker
    for config, verdict in zip(configs, found[:2], strict=False):
        *_, last = workspace.analysis.verdict(config, workspace.ranges, workspace.feeds)
        assert verdict == last.value and verdict.samples == workspace.judged_count


@pytest.mark.rtx
def test_engines_are_built_and_previewed_at_once(workspace, running, tmp_path):
    options = replace(workspace.options, backend="tensorrt-rtx", compute_capability=(8, 9))
    other = Running.__new__(Running)
    other.__dict__.update(running.__dict__, workspace=Workspace(options))
    other.workspace.identify(other.workspace.network.sha256())
    hands = other.hands()
    other.serving(2)
    fp32, fp16 = map(PrecisionConfig.uniform, (Precision.FP32, Precision.FP16))
    items = [(fp32, 0), (fp16, 0), (fp16, 1)]
    made = dict(one for one in other.steps(hands, hands.work(Building({}, workspace.feeds), items)) if one is not None)
    assert all(isinstance(made[item], Made) and made[item].result.bytes > 0 for item in items) and len(made) == 3
    again = made[items[2]]  # the engine of a further build comes along, with its timings
    assert [len(data) for data in again.engines.values()] == [again.result.bytes] and not made[items[1]].engines
    assert other.workspace.builder is None  # nothing was built here
    other.workspace.others = running.hired
    report, before = SimpleNamespace(wake=running.woken.set), running.hired.cluster.traffic.results
    asking = Asking(other.workspace, Store(ResultCache(tmp_path)), report, {})
    previews = finished(asking.previews([fp32, fp16, fp32]))
    for config, found in zip((fp32, fp16, fp32), previews, strict=True):
        here = finished(Previewing(asking._order(config)).do(other.workspace, config))
        assert replace(found, seconds=0) == replace(here, seconds=0) and here.made and here.refused is None
    assert running.hired.cluster.traffic.results > before and asking._store.results.get(asking._key(fp16), Preview)
    running.hands()
    running.serving(2)


def test_a_killed_worker_is_replaced_and_nothing_counts_twice(running, tmp_path):
    before = running.hired.cluster.traffic.files
    items = [*map(str, range(30)), "once", *map(str, range(30, 40))]
    found = running.done(Errand(tmp_path), items)
    assert Counter(item for item, _ in found) == Counter(items) and all(came[0] == item for item, came in found)
    assert len({pid for _, (_, pid) in found}) >= 2 and os.getpid() not in {pid for _, (_, pid) in found}
    (told,) = [text for _, text in running.hired.told() if "gone" in text]
    assert "ended by signal 9: others do what it was doing" in told and "(1 lost)" in running.hired.cluster.words
    running.serving(2)
    assert running.hired.cluster.traffic.files == before == 0  # workers of this host read the same files


def test_what_ends_two_workers_fails_as_its_own_job(running, tmp_path):
    with pytest.raises(TrtTuiError) as failed:
        running.done(Errand(tmp_path), ["1", "kill", "2"])
    assert failed.value.title == "item kill: it ended 2 workers" and "ended by signal 9" in failed.value.cause
    running.serving(2)
    assert len(running.done(Errand(tmp_path), ["1", "2"])) == 2


def test_what_is_stopped_ends_in_the_workers(running, tmp_path):
    work = running.hands().work(Errand(tmp_path), ["slow"] * 4)
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
        made.append(Running(workspace, Hiring(running.hired.cluster.own.scheduler_address)))
        return made[-1].serving(serving)

    yield make
    for one in made:
        one.hired.close()


def test_files_go_by_content_and_nothing_is_left(workspace, running, other, tmp_path):
    """As to hosts that do not see them: with other stamps."""
    parcel_of, tasks = crew.parcel_of, running.hired.cluster.own.scheduler.tasks
    before = set(tasks)

    def unseen(*arguments):
        parcel = parcel_of(*arguments)
        return replace(parcel, files=tuple(replace(file, stamp=(0, file.size, 0)) for file in parcel.files))

    with mock.patch.object(crew, "parcel_of", unseen), mock.patch.object(settling, "PIECE_BYTES", 1000):
        far = other()
    assert far.hired.cluster.traffic.files == sum(os.path.getsize(path) for path, _ in workspace.inputs.stamps)
    assert len(far.done(Errand(tmp_path), ["1", "2"])) == 2 and set(tasks) > before
    far.hired.close()
    running.until(lambda: set(tasks) == before)


@pytest.mark.parametrize(("field", "word"), [("program", "trt-tui"), ("runtime", "ONNX Runtime")])
def test_workers_of_another_version_are_refused_by_name(workspace, other, tmp_path, field, word):
    kind_of = crew.kind_of
    with mock.patch.object(crew, "kind_of", lambda backend: replace(kind_of(backend), **{field: "0.0"})):
        alone = other(serving=0)
        alone.until(lambda: len(alone.hired.cluster.news) == 2)
    for _, text in alone.hired.told():
        assert text.startswith("Worker tcp://127.0.0.1:") and f"takes no part: it has {word} " in text
    assert alone.done(Errand(tmp_path), ["1"]) == [("1", ("1", os.getpid()))]


def test_another_gpu_or_builder_matters_to_engines_alone(workspace, other, tmp_path):
    kind_of = crew.kind_of
    with mock.patch.object(crew, "kind_of", lambda backend: replace(kind_of(backend), gpu="NVIDIA Other")):
        one = other()
    assert one.hired.cluster.able(engines=True) == 0
    for _ in range(2):
        one.hired.hands(workspace, one.woken.set, engines=True)
    said = [text for _, text in one.hired.told() if "builds no engines: it has GPU " in text]
    assert len(said) == 2 and all(text.startswith("Worker tcp://127.0.0.1:") for text in said)  # each of them once
    assert one.done(Errand(tmp_path), ["1"])[0][1][1] != os.getpid()


def test_a_scheduler_that_is_named_has_to_answer(workspace):
    with mock.patch.object(clusters, "CONNECT_S", 0.3):
        hired = Hired(Hiring("tcp://127.0.0.1:9"))
        with pytest.raises(TrtTuiError, match="no Dask scheduler answers"):
            hired.share(workspace)
        hired.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_with_tls_and_without_the_scheduler_the_work_goes_on_here(workspace, tmp_path):
    """The scheduler is killed: what the worker had not given back is done here, and nothing twice."""
    tls = dask_host.certificate(tmp_path)
    address, processes = dask_host.start(tls, tmp_path)
    assert address.startswith("tls://")
    with dask.config.set({f"distributed.comm.tls.{name}": path for name, path in tls.items()}):
        far = Running(workspace, Hiring(address)).serving(1)
    hands = far.hands()
    work = far.steps(hands, hands.work(Errand(tmp_path), [f"nap {number}" for number in range(20)]))
    found = [next(one for one in work if one is not None)]
    processes[0].kill()
    since = time.monotonic()
    found += [one for one in work if one is not None]
    assert Counter(item for item, _ in found) == Counter(f"nap {number}" for number in range(20))
    assert found[0][1][1] == processes[1].pid and found[-1][1][1] == os.getpid() and time.monotonic() - since < 30
    assert any("The Dask scheduler is lost" in text for _, text in far.hired.told())
    far.hired.close()
    for process in processes:  # the worker ends with its scheduler
        process.join(10)
        assert process.exitcode is not None


def test_with_tls_alone_a_certificate_is_needed(workspace):
    with mock.patch.object(clusters, "CONNECT_S", 0.3):
        hired = Hired(Hiring("tls://127.0.0.1:9"))
        with pytest.raises(TrtTuiError) as refused:
            hired.share(workspace)
        hired.close()
    assert "TLS" in refused.value.cause and "tls" in refused.value.next_step
