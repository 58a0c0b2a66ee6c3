"""How small the sets are that searches find, how many evaluations they take, and which ranking tells the true effect.

    python -m tests.benchmarks.search [demo] [vit] [bert6] [resnet50] [--tables brute,greedy,...] [--db 3,6,10]

All figures come from the simulation, INT8 with FP32 around it, judged by the SQNR of the worst output (the encoder,
bert6, by its hidden states); a tolerance is the start's SQNR and so many dB more. An evaluation is one config on all
samples; the impacts of all groups count as the runs they take over the feeds of an evaluation. Baselines:

- brute force: all sets of groups, smallest first;
- greedy leave-one-out: of all groups left the one that brings most, until the tolerance is met;
- bisect: Polygraphy's, first or last layers of the network, each evaluation an engine build there.

The true effect of a group is its Shapley value: how much the error's energy falls when it is raised, over random orders
of raising all groups, each order taken forwards and backwards.
"""

import itertools
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from tests import networks
from tests.benchmarks import measure
from tests.benchmarks import networks as big
from tests.measuring import measure_impacts, measure_shares
from trt_tui import demo
from trt_tui.backends.onnxruntime import OnnxRuntimeBackend
from trt_tui.core.calibration.calibration import calibrate
from trt_tui.core.data.samples import load_samples
from trt_tui.core.measure.group_errors import measure_group_errors
from trt_tui.core.measure.group_sweep import GroupSweep, sensitivity_from_sweep
from trt_tui.core.measure.judged_outputs import select_judged_outputs
from trt_tui.core.measure.results import Accuracy, GroupErrors
from trt_tui.core.measure.simulation import Analysis
from trt_tui.core.measure.target import Target, TargetResult, check_targets
from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.network.network import open_network
from trt_tui.core.precision import Precision
from trt_tui.core.search import Search, SearchSpace
from trt_tui.core.search.search import loss_shares

START = PrecisionConfig.from_precision(Precision.INT8, Precision.FP32)
NAMES = ("demo", "vit", "bert6", "resnet50")
TABLES = ("brute", "greedy", "rankings")
PERMUTATIONS = 4
"""Random orders for the true effect; each is walked in both directions."""


class Simulated:
    """A network, its impacts, and verdicts of configs that are measured once."""

    def __init__(
        self, path: Path, arrays: dict[str, np.ndarray], folder: Path, batch: int, judge_by: Sequence[str] = ()
    ) -> None:
        np.savez(folder / "samples.npz", **arrays)
        self.path = path
        self.network = open_network(path)
        self.samples = load_samples(str(folder / "samples.npz"), self.network.inputs, batch=batch)
        backend = OnnxRuntimeBackend("cpu")
        self.ranges = calibrate(self.network.model, self.network.calibrated_tensors, self.samples, backend).ranges
        self.analysis = Analysis(
            self.network,
            backend,
            self.samples,
            select_judged_outputs(self.network, judge_by),
            boundary_type=Precision.FP32,
        )
        self.space = SearchSpace(self.network, START)
        self.known: dict[PrecisionConfig, Accuracy] = {}
        self.start_db = self.verdict(START).worst_output[1].errors.sqnr_db

    def verdict(self, config: PrecisionConfig) -> Accuracy:
        key = PrecisionConfig(config.quantized, config.other).with_moves(config.precision_moves)
        if key.comparison_key not in self.known:
            *_, partial = self.analysis.measure_accuracy(config, self.ranges)
            self.known[key.comparison_key] = partial.value
        return self.known[key.comparison_key]

    def of(self, raised: Sequence[str]) -> Accuracy:
        return self.verdict(
            self.space.build_config(self.space.sort_candidates_in_network_order(raised), reason="benchmark")
        )

    def impacts(self) -> tuple[dict[str, float], float, float]:
        """Impacts by group, what they cost in evaluations, and in seconds."""
        since = time.perf_counter()
        sweep = GroupSweep(self.analysis, START, self.ranges, reduces_groups=True)
        *_, (runs, _) = sweep.measure_groups()
        names = [group.name for group in self.network.groups]
        found = {name: sensitivity_from_sweep(sweep, name) for name in names}
        return found, runs / self.samples.count, time.perf_counter() - since

    def plain_s(self, rounds: int = 3) -> float:
        """Seconds of one plain FP32 run of one feed, the median of ``rounds`` over all feeds."""
        session = onnxruntime.InferenceSession(str(self.path), providers=["CPUExecutionProvider"])
        taken = []
        for index in [0, *range(len(self.samples))] * rounds:
            feed = self.samples.read_feed(index)
            since = time.perf_counter()
            session.run(None, feed)
            taken.append(time.perf_counter() - since)
        return statistics.median(taken)

    def judged_by(self, target: Target) -> Callable[[PrecisionConfig], TargetResult]:
        return lambda config: check_targets([target], self.verdict(config))

    def search(self, target: Target, method: str, **options) -> Search:
        search = Search(self.space, method_name=method, **options)
        judged = self.judged_by(target)
        while (config := search.propose_config()) is not None:
            search.record_target_result(judged(config))
        if not search.result.is_met:
            raise RuntimeError(search.result.summary)
        return search

    def smallest(self, target: Target) -> int:
        """By brute force."""
        for count in itertools.count():
            for names in itertools.combinations(self.space.candidates, count):
                if target.is_met_by(self.of(names)):
                    return count

    def leave_one_out(self, target: Target) -> tuple[int, int]:
        """Groups that greedy leave-one-out raises, and its evaluations."""
        raised: set[str] = set()
        evaluations = 0
        while not target.is_met_by(self.of(raised)):
            tried = {
                name: target.margin_to_bound(self.of({*raised, name}))
                for name in self.space.candidates
                if name not in raised
            }
            evaluations += len(tried)
            raised.add(max(tried, key=lambda name: tried[name]))
        return len(raised), evaluations

    def target(self, more: float) -> Target:
        return Target("sqnr", round(self.start_db + more, 3))


def simulated(name: str, directory: Path, folder: Path) -> Simulated:
    rng = np.random.default_rng(0)
    if name == "demo":
        with np.load(demo.samples_path()) as data:
            return Simulated(demo.network_path(), {"image": data["image"][:16]}, folder, 4)
    if name == "vit":
        onnx.save(networks.vit(), folder / "vit.onnx")
        return Simulated(folder / "vit.onnx", {"image": networks.random_images(rng, (64, 3, 32, 32))}, folder, 16)
    batches, count, size = {"bert6": (big.bert6_batches, 4, 4), "resnet50": (big.resnet50_batches, 4, 1)}[name]
    feeds = batches(count, size)
    arrays = {key: np.concatenate([feed[key] for feed in feeds]) for key in feeds[0]}
    judge_by = ("last_hidden_state",) if name == "bert6" else ()
    return Simulated(getattr(big, name)(directory), arrays, folder, size, judge_by)


def small_networks(seeds: int) -> Iterator[Simulated]:
    """Networks of 7 to 11 groups."""
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as text:
            folder, rng = Path(text), np.random.default_rng(seed)
            if seed % 4 == 3:
                model, arrays = networks.small_resnet(seed), {"image": networks.random_images(rng, (8, 3, 32, 32))}
            else:
                model = networks.chain(seed, 6 + seed % 5, 24)
                arrays = {"x": rng.standard_normal((32, 24), dtype=np.float32)}
            onnx.save(model, folder / "network.onnx")
            one = Simulated(folder / "network.onnx", arrays, folder, 32)
            yield one
            one.analysis.close()


def brute_force(seeds: int, decibels: Sequence[float]) -> None:
    """Sizes against the smallest passing set."""
    over: dict[str, list[int]] = {}
    taken: dict[str, list[int]] = {}
    for one in small_networks(seeds):
        impacts, _, _ = one.impacts()
        for more in decibels:
            target = one.target(more)
            smallest = one.smallest(target)
            for method in ("auto", "greedy", "worst-first", "scoped", "bisect", "bisect-reverse"):
                search = one.search(target, method, sensitivities=impacts)
                over.setdefault(method, []).append(len(search.result.best_evaluation.raised_groups) - smallest)
                taken.setdefault(method, []).append(len(search.evaluations))
    rows = [
        (
            method,
            *(sum(extra == n for extra in extras) for n in (0, 1)),
            sum(extra > 1 for extra in extras),
            max(extras),
            float(np.mean(taken[method])),
        )
        for method, extras in over.items()
    ]
    print(f"\n### brute force: {seeds} networks, {len(decibels)} tolerances each (every method with its revert pass)\n")
    print(measure.table(["method", "smallest", "+1", "more", "worst", "evaluations"], rows))


def smallest_prefix(search: Search) -> int:
    """Groups that a method of prefixes raises, without the passes after it."""
    return min(
        len(one.raised_groups)
        for one in search.evaluations
        if one.passes and one.step_name in (search.method_name, "all raised")
    )


def greedy_and_bisect(name: str, one: Simulated, decibels: Sequence[float]) -> None:
    """Sizes and evaluations beside greedy leave-one-out and Polygraphy's bisect."""
    impacts, cost, seconds = one.impacts()
    each = seconds / (cost * len(one.samples)) / one.plain_s()
    rows = []
    for more in decibels:
        target = one.target(more)
        since = time.perf_counter()
        auto = one.search(target, "auto", sensitivities=impacts)
        took = time.perf_counter() - since
        size, evaluations = one.leave_one_out(target)
        halves = [one.search(target, method) for method in ("bisect", "bisect-reverse")]
        total = len(auto.evaluations) + cost
        found = len(auto.result.best_evaluation.raised_groups)
        rows.append(
            (
                f"+{more:g} dB",
                found,
                round(total),
                f"{took:.0f}",
                size,
                evaluations,
                found / size,
                total / evaluations,
                *(
                    f"{smallest_prefix(half)} in {sum(tried.step_name == half.method_name for tried in half.evaluations)}"
                    for half in halves
                ),
            )
        )
    print(
        f"\n### {name}: {len(one.space.candidates)} candidates, start {one.start_db:.1f} dB, impacts in "
        f"{seconds:.0f} s (the work of {cost:.0f} evaluations; {each:.1f} plain runs for each group)\n"
    )
    print(
        measure.table(
            [
                "tolerance",
                "auto",
                "evaluations",
                "s",
                "leave-one-out",
                "evaluations",
                "size /",
                "evaluations /",
                "bisect first",
                "bisect last",
            ],
            rows,
        )
    )


def shapley(one: Simulated, permutations: int) -> dict[str, float]:
    """The true effect of every candidate."""
    rng, names = np.random.default_rng(0), list(one.space.candidates)
    effect = dict.fromkeys(names, 0.0)
    for _ in range(permutations):
        forward = [names[i] for i in rng.permutation(len(names))]
        for order in (forward, forward[::-1]):
            before, raised = one.of(()).judged_error, set()
            for name in order:
                raised.add(name)
                after = one.of(raised).judged_error
                effect[name] += (before - after) / (2 * permutations)
                before = after
    return effect


def places(values: Sequence[float]) -> np.ndarray:
    """Ranks from 0, ties by their mean."""
    array = np.asarray(values)
    return np.array([np.count_nonzero(array < value) + (np.count_nonzero(array == value) - 1) / 2 for value in array])


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    return float(np.corrcoef(places(one), places(other))[0, 1])


def kendall(one: Sequence[float], other: Sequence[float]) -> float:
    """Kendall's tau-b."""
    a, b = (np.sign(np.subtract.outer(x, x))[np.triu_indices(len(x), 1)] for x in map(np.asarray, (one, other)))
    return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))


def noise_to_signal(errors: Mapping[str, GroupErrors], kind: str) -> dict[str, float]:
    """Σ(test-ref)² / Σref² at the result of each group; ``kind`` is "isolated" or "accumulated"."""
    return {
        name: 10 ** (-getattr(one, kind).comparable_sqnr_db / 10)
        for name, one in errors.items()
        if getattr(one, kind) is not None
    }


def both_ways(impacts: Mapping[str, float], last: Mapping[str, float]) -> dict[str, float]:
    """The mean of only-this and all-but-this: the first and last marginal contribution of a group, the ends that the
    Shapley value averages over (Shapley, "A value for n-person games", 1953)."""
    first = loss_shares(impacts)
    total = sum(max(0.0, share) for share in last.values()) or 1.0
    return {name: (first[name] + last[name] / total) / 2 for name in first if name in last}


def rankings(name: str, one: Simulated, more: float) -> Iterator[tuple[object, ...]]:
    """Correlations of each ranking with the true effect, and the set that lazy greedy finds with it."""
    impacts = measure_impacts(one.analysis, START, one.ranges, measures_all_samples=True)
    measured = measure_shares(one.analysis, START, one.ranges, measures_all_samples=True)
    shares = {name: share.fraction for name, share in measured.items() if not math.isnan(share.fraction)}
    *_, partial = measure_group_errors(one.analysis, {"int8": START}, one.ranges)
    errors = partial.value["int8"]
    effect = shapley(one, PERMUTATIONS)
    names = one.space.candidates
    for label, badness in (
        ("only-this", loss_shares(impacts)),
        ("all-but-this", shares),
        ("both ways", both_ways(impacts, shares)),
        ("isolated", noise_to_signal(errors, "isolated")),
        ("accumulated", noise_to_signal(errors, "accumulated")),
    ):
        found = one.search(one.target(more), "worst-first", sensitivities=badness)
        guess, truth = [badness[n] for n in names], [effect[n] for n in names]
        yield (
            f"{name}, {label}",
            spearman(guess, truth),
            kendall(guess, truth),
            smallest_prefix(found),
            len(found.result.best_evaluation.raised_groups),
        )


def main() -> None:
    parser = measure.parser(__doc__, NAMES)
    parser.add_argument("--tables", default=",".join(TABLES), help=f"some of {', '.join(TABLES)}")
    parser.add_argument("--db", default="3,6,10", help="tolerances, in dB above the start")
    parser.add_argument("--seeds", type=int, default=20, help="networks for brute force")
    arguments = parser.parse_args()
    tables, decibels = arguments.tables.split(","), [float(text) for text in arguments.db.split(",")]
    print(measure.machine())
    if "brute" in tables:
        brute_force(arguments.seeds, decibels)
    ranks: list[tuple[object, ...]] = []
    for name in arguments.networks:
        if not {"greedy", "rankings"} & set(tables):
            break
        with tempfile.TemporaryDirectory() as folder:
            one = simulated(name, arguments.directory, Path(folder))
            if "greedy" in tables:
                greedy_and_bisect(name, one, decibels)
            if "rankings" in tables:
                ranks.extend(rankings(name, one, decibels[0]))
            one.analysis.close()
    if ranks:
        print(f"\n### rankings against the true effect, and groups raised worst first for +{decibels[0]:g} dB\n")
        print(measure.table(["ranking", "Spearman", "Kendall", "prefix", "after revert"], ranks))


if __name__ == "__main__":
    main()
