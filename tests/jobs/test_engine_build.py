"""trt_tui.jobs.engine: following a build in a thread, and what tells cached engines apart."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import trt_tui
from tests.driven import run_to_end
from tests.refusals import refused
from trt_tui.core.builder_options import BuilderOptions
from trt_tui.core.engines.fallback_ladder import BuildError, NetworkParseError
from trt_tui.core.measure.simulation import PartialResult
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.precision import Precision
from trt_tui.core.runner import BackendCapabilities, BuildSettings
from trt_tui.errors import InputError, TrtTuiError
from trt_tui.jobs.engine_build import BuiltEngine, EngineBuilder, lower_for_builder
from trt_tui.jobs.scheduler import Progress, ProgressSteps, Reporter, Steps, Urgency, WaitStep, run_to_last_value
from trt_tui.jobs.store import EngineCache
from trt_tui.workspace import BuildPlan

FP32 = PrecisionConfig.from_precision(Precision.FP32)


class Backend:
    """Builds at once, once it ``may_end``, and says one line; ``fails`` is raised in place of a result."""

    name, version, device = "fake", "1", "it"
    cache_identity = ("stand-in", "0", "it")
    capabilities = BackendCapabilities(can_execute=False, computes_in_fp16=True)

    def __init__(self, fails: Exception | None = None) -> None:
        self.fails, self.built = fails, 0
        self.may_end = threading.Event()
        self.may_end.set()

    def build(self, model: Path, settings: BuildSettings, told=None, *, on_step, on_message) -> bytes:
        self.built += 1
        on_message("info", "building")
        on_step("phase", 1, 2)
        assert self.may_end.wait(5)
        if self.fails is not None:
            raise self.fails
        return b"engine"


class Told(Reporter):
    """Keeps what it is told."""

    def __init__(self, wake=None) -> None:
        super().__init__(wake)
        self.sent, self.progress = [], []
        self.send = lambda event: self.sent.append(event.text)

    def send_progress(self, phase: str, done: int, total: int) -> None:
        self.progress.append((phase, done, total))


def following(
    backend: Backend,
    network,
    wake=None,
    cache: EngineCache | None = None,
    settings: BuildSettings | None = None,
    config: PrecisionConfig = FP32,
    told: Reporter | None = None,
    **plan,
) -> Steps[BuiltEngine]:
    workspace = SimpleNamespace(network=network, builder=backend, ranges={})
    builder = EngineBuilder(workspace, cache, told or Reporter(wake))
    return builder.build(config, BuildPlan(settings or BuildSettings(), **plan))


@pytest.mark.parametrize(
    ("code", "codes", "gpu", "says"),
    [
        ("fp8", {"int8"}, None, "fake 1 has no FP8"),
        ("fp8", {"int8", "fp8"}, (8, 6), "8.6 has no FP8"),
        ("int4", {"int8", "int4"}, (7, 5), "7.5 has no INT4"),
        ("fp8", {"int8", "fp8"}, (8, 9), ""),
        ("int4", {"int8", "int4"}, (8, 0), ""),
        ("int8", {"int8"}, (7, 5), ""),
        ("fp16+", {"int8"}, None, ""),
    ],
)
def test_codes_that_a_release_or_gpu_lacks_are_refused_by_name(encoder, code, codes, gpu, says):
    capabilities = replace(Backend.capabilities, quantized_types=frozenset(map(Precision, codes)))
    arguments = (
        encoder,
        PrecisionConfig.from_precision(Precision(code)),
        dict.fromkeys(encoder.calibrated_tensors, 4.0),
        capabilities,
    )
    if not says:
        assert lower_for_builder(*arguments, "fake 1", compute_capability=gpu).model is not None
    if code == "fp16+":
        arguments, says = (*arguments[:3], replace(capabilities, strongly_typed=False)), r"fake 1 has no FP16\+"
    if not says:
        return
    with refused(says, cause=f"in {code.upper()}, ", next_step="FP16"):
        lower_for_builder(*arguments, "fake 1", compute_capability=gpu)


@pytest.fixture
def encoder(named_network):
    return named_network("bert")


@pytest.fixture
def resnet(named_network):
    return named_network("small_resnet")


@pytest.mark.parametrize("fails", [None, TrtTuiError("it failed")])
def test_the_last_wake_is_enough(resnet, fails) -> None:
    woke, backend, made = threading.Event(), Backend(fails), []
    backend.may_end.clear()
    told = Told(woke.set)
    making = following(backend, resnet, told=told)

    def take() -> Iterator[Urgency | WaitStep]:
        made.append((yield from making))

    with contextlib.closing(making), contextlib.suppress(TrtTuiError):
        for one in take():
            if isinstance(one, WaitStep):
                backend.may_end.set()
                while not one.ready():
                    assert woke.wait(5), "nobody wakes it any more"
                    woke.clear()
    assert told.sent == ["info: building"] and ("building: phase", 1, 2) in told.progress
    assert [type(one) for one in made] == [BuiltEngine] * (fails is None)


def test_a_build_of_another_version_of_this_program_is_not_taken(resnet, tmp_path, monkeypatch) -> None:
    backend, cache = Backend(), EngineCache(tmp_path / "engines")

    def origin() -> str:
        return run_to_end(following(backend, resnet, cache=cache)).origin

    assert [origin(), origin()] == ["cold", "engine cache"] and backend.built == 1
    monkeypatch.setattr(trt_tui, "__version__", "99.0")
    assert [origin(), origin()] == ["cold", "engine cache"] and backend.built == 2


class Refusing(Backend):
    """Is told precisions, and refuses them in the words of ``says`` while they are of a kind."""

    cache_identity = ("stand-in", "0", "it")
    capabilities = BackendCapabilities(can_execute=False, computes_in_fp16=True, strongly_typed=False)

    def __init__(self, says: str, obeys: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.says, self.obeys, self.told = says, obeys, []

    def build(self, model: Path, settings: BuildSettings, told=None, *, on_step, on_message) -> bytes:
        self.told.append(told)
        if told.constraint_mode not in self.obeys:
            raise BuildError("it failed", self.says)
        return super().build(model, settings, told, on_step=on_step, on_message=on_message)


FP16 = PrecisionConfig.from_precision(Precision.FP16)


def built(backend: Backend, network, **more) -> BuiltEngine:
    return run_to_end(following(backend, network, config=FP16, **more))


def test_a_build_goes_down_the_rungs_and_says_which(resnet) -> None:
    backend = Refusing("no implementation for node /fc/Gemm.", ("",))
    made = built(backend, resnet)
    assert [rung.name for rung in made.attempts] == ["asked", "named", "prefer", "free"]
    assert [bool(rung.failure_reason) for rung in made.attempts] == [True, True, True, False]
    assert [told.constraint_mode for told in backend.told] == ["obey", "obey", "prefer", ""]
    layers = resnet.find_group("/fc/Gemm").layers
    asked, named, preferred, free = (told.precisions for told in backend.told)
    assert asked == preferred and asked.keys() - named.keys() == set(layers) and free == {}
    assert not backend.told[-1].output_types and backend.told[-1].precision_flags == {Precision.FP16}


def test_a_builder_that_fails_of_itself_is_asked_for_less_effort_first(resnet) -> None:
    backend, levels = Refusing("Assertion engine failed.", ("obey",)), []
    build = backend.build

    def at_level_0(model, settings, told=None, **more) -> bytes:
        levels.append(settings.builder_options.optimization_level)
        if levels[-1] is None:
            raise BuildError("it failed", backend.says)
        return build(model, settings, told, **more)

    backend.build = at_level_0
    made = built(backend, resnet)
    assert (
        levels == [None, 0]
        and [rung.name for rung in made.attempts] == ["asked", "eased"]
        and made.attempts[-1].has_requested_precisions
    )
    assert backend.told[-1].constraint_mode == "obey" and backend.told[-1].precisions


def test_what_fails_on_every_rung_is_told_with_each_and_strict_tries_one(resnet) -> None:
    with pytest.raises(BuildError, match=r"it failed at /fc/Gemm \(Gemm\)") as raised:
        built(Refusing("no implementation for node /fc/Gemm."), resnet)
    assert [rung.name for rung in raised.value.attempts] == ["asked", "named", "prefer", "free"]
    assert raised.value.cause.count("also failed, with") == 3
    assert "--builderOptimizationLevel=0" in raised.value.next_step
    with pytest.raises(BuildError) as raised:
        built(Refusing("Assertion engine failed."), resnet)
    assert "eased" in [rung.name for rung in raised.value.attempts] and "--builderOptim" not in raised.value.next_step
    backend = Refusing("no implementation for node /fc/Gemm.", ("",))
    with pytest.raises(BuildError) as raised:
        built(backend, resnet, strict=True)
    assert len(backend.told) == len(raised.value.attempts) == 1 and "also" not in raised.value.cause


@pytest.mark.parametrize(
    "fails",
    [
        BuildError("no memory", "for node /fc/Gemm", is_refused=False),
        NetworkParseError("not taken", "unknown operator", node="/fc/Gemm"),
        InputError("no profile"),
    ],
)
def test_what_other_precisions_cannot_help_is_tried_once(resnet, fails) -> None:
    backend = Refusing("")
    backend.build = lambda *given, **more: backend.told.append(1) or (_ for _ in ()).throw(fails)
    with pytest.raises(type(fails)):
        built(backend, resnet)
    assert len(backend.told) == 1


def test_a_strongly_typed_release_raises_the_node_at_which_its_parser_stops(resnet) -> None:
    backend = Backend()
    seen = []

    def build(model, settings, told=None, *, on_step, on_message) -> bytes:
        seen.append(told)
        if len(seen) == 1:
            raise NetworkParseError("not taken", "mixed types", node="/fc/Gemm")
        return b"engine"

    backend.build = build
    made = built(backend, resnet)
    assert made.attempts[-1].raised_groups == {"/fc/Gemm": Precision.FP32} and seen == [None, None]


def test_no_effort_is_tried_for_what_a_parser_does_not_read(resnet) -> None:
    backend, tried = Backend(), []

    def build(*given, **more) -> bytes:
        tried.append(given)
        raise NetworkParseError("not taken", "false", node="of no group")

    backend.build = build
    with pytest.raises(NetworkParseError):
        built(backend, resnet)
    assert len(tried) == 1


def test_a_timing_cache_in_a_folder_that_cannot_be_searched_is_none(resnet, monkeypatch) -> None:
    def refused(path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", refused)
    settings = BuildSettings(builder_options=BuilderOptions(timing_cache="/nowhere/at/all"))
    assert run_to_end(following(Backend(), resnet, settings=settings)).origin == "cold"


def test_progress_is_reported_with_its_phase_and_steps_end_with_their_result() -> None:
    told, ended = Told(), []
    wait = WaitStep(lambda: True)

    def measure() -> ProgressSteps[str]:
        try:
            yield Progress("timing", 1, 2)
            yield wait
            yield Progress("")
            return "the result"
        finally:
            ended.append(True)

    steps = told.run_steps(measure(), Urgency.SEARCH, "build 2: ")
    assert [next(steps), next(steps), next(steps)] == [Urgency.SEARCH, wait, Urgency.SEARCH]
    assert run_to_end(steps) == "the result" and told.progress == [("build 2: timing", 1, 2)] and len(ended) == 1
    stopped = told.run_steps(measure())
    assert next(stopped) is Urgency.BUILD
    stopped.close()
    assert len(ended) == 2, "who stops the steps stops what they follow"


def test_a_measurement_yields_its_progress_and_waits_and_returns_its_last_value() -> None:
    wait = WaitStep(lambda: True)
    steps = run_to_last_value([PartialResult("a", 1, 2), wait, PartialResult("b", 2, 2)], "judging")
    assert [next(steps), next(steps), next(steps)] == [Progress("judging", 1, 2), wait, Progress("judging", 2, 2)]
    assert run_to_end(steps) == "b"
