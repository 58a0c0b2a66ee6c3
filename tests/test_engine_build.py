"""trt_tui.jobs.engines: how a build in a thread is followed, and what tells one engine in the cache from another."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from trt_tui.core.precision import Precision, PrecisionConfig
from trt_tui.core.runner import BuildSettings, Capabilities
from trt_tui.errors import TrtTuiError
from trt_tui.jobs import engines
from trt_tui.jobs.cache import EngineCache
from trt_tui.jobs.engines import Engine, Said, Step, Wait, build_engine

FP32 = PrecisionConfig.uniform(Precision.FP32)


class Backend:
    """Builds at once, once it ``may_end``, and says one line; ``fails`` is raised in place of a result."""

    name, version, device = "fake", "1", "it"
    capabilities = Capabilities(runs=False, builds=True, simulates=False, real_fp16=True)

    def __init__(self, fails: Exception | None = None) -> None:
        self.fails, self.built = fails, 0
        self.may_end = threading.Event()
        self.may_end.set()

    def build(self, model: Path, settings: BuildSettings, told=None, *, step, message) -> bytes:
        self.built += 1
        message("info", "building")
        step("phase", 1, 2)
        assert self.may_end.wait(5)
        if self.fails is not None:
            raise self.fails
        return b"engine"


def following(backend: Backend, network, wake, cache: EngineCache | None = None,
              settings: BuildSettings | None = None) -> Iterator[Step | Said | Wait | Engine]:
    return build_engine(backend, network, FP32, {}, settings or BuildSettings(), cache=cache, wake=wake)


@pytest.fixture
def resnet(named_network):
    return named_network("small_resnet")


@pytest.fixture
def lingering(monkeypatch):
    """Build threads live on after their last wake until this event is set."""
    go_on = threading.Event()
    run = engines._Build.run

    def lives_on(build) -> None:
        run(build)
        go_on.wait(20)

    monkeypatch.setattr(engines._Build, "run", lives_on)
    yield go_on
    go_on.set()


@pytest.mark.parametrize("fails", [None, TrtTuiError("it failed")])
def test_the_last_wake_is_enough_though_the_thread_lives_on(resnet, lingering, fails) -> None:
    woke, backend, made = threading.Event(), Backend(fails), []
    backend.may_end.clear()
    making = following(backend, resnet, woke.set)
    with contextlib.closing(making), contextlib.suppress(TrtTuiError):
        for one in making:
            made.append(one)
            if isinstance(one, Wait):
                backend.may_end.set()
                while not one.ready():
                    assert woke.wait(5), "nobody wakes it any more"
                    woke.clear()
                if one.ready.__self__.ended:
                    threading.Timer(0.2, lingering.set).start()  # the end waits for the thread itself
    assert Said("info", "building") in made and Step("building: phase", 1, 2) in made
    assert isinstance(made[-1], Engine) == (fails is None)


def test_the_worker_that_takes_the_last_news_early_does_not_wait_for_ever(resnet, lingering) -> None:
    """What the build said is taken between its last wake and its thread's end: no wake follows."""
    woke, backend = threading.Event(), Backend()
    backend.may_end.clear()
    making = following(backend, resnet, woke.set)
    waits = next(one for one in making if isinstance(one, Wait))
    build = waits.ready.__self__
    backend.may_end.set()
    while not build.ended:
        assert woke.wait(5)
        woke.clear()
    build.taken()
    assert build.is_alive() and waits.ready()
    lingering.set()
    assert isinstance(list(making)[-1], Engine)


def test_a_build_of_another_version_of_this_program_is_not_taken(resnet, tmp_path, monkeypatch) -> None:
    backend, cache = Backend(), EngineCache(tmp_path / "engines")

    def origin() -> str:
        return list(following(backend, resnet, lambda: None, cache))[-1].origin

    assert [origin(), origin()] == ["cold", "engine cache"] and backend.built == 1
    monkeypatch.setattr(engines, "__version__", "99.0")
    assert [origin(), origin()] == ["cold", "engine cache"] and backend.built == 2


def test_a_timing_cache_in_a_folder_that_cannot_be_searched_is_none(resnet, monkeypatch) -> None:
    def refused(path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", refused)
    settings = BuildSettings(timing_cache=Path("/nowhere/at/all"))
    assert list(following(Backend(), resnet, lambda: None, settings=settings))[-1].origin == "cold"
