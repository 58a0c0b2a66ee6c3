"""Rules that name layers by what they do: these keep a float precision whatever else is decided.

Sources: TensorRT's builder, which warns of LayerNorm in FP16 (its sums of squares overflow) and asks for FP32 there;
the practice of quantizing neither the first nor the last layer (Zhou et al., "DoReFa-Net", 2016). The others go by what
is computed: a look-up multiplies nothing, so that its codes only lose; an error of a head reaches the output as it is;
one in attention's scores goes through an exponential. A float that becomes an index has no small error (see
`trt_tui.core.network.index_paths`); its rule, `indices`, is applied where nobody turns it off.
"""

import re
from collections.abc import Callable, Collection, Iterable
from typing import TypeAlias

from trt_tui.core.moves.config import PrecisionConfig
from trt_tui.core.moves.keep import KEPT_IN, Keep
from trt_tui.core.network.hierarchy import build_tree, titles
from trt_tui.core.network.layers import Group, Outline
from trt_tui.core.precision import Precision, rank
from trt_tui.errors import InputError
from trt_tui.files.budget import reading_budget
from trt_tui.words import did_you_mean, first_few, near_names, plural

Named: TypeAlias = Outline

_NORMS = frozenset("LayerNorm RMSNorm GroupNorm L2Norm LayerNormalization RMSNormalization GroupNormalization "
                   "InstanceNormalization LpNormalization".split())

_RULE = re.compile(r"/(?:[^/\\]|\\.)*/(?=[=,]|$)(?:=\w+)?|[^,]+")
"""A pattern, with a precision behind it or without, or anything else up to a comma."""

_LONGEST = 500
"""A pattern longer than this is refused."""


def _by_operator(*operators: str) -> Callable[[Named], list[str]]:
    return lambda network: [group.name for group in network.groups if group.operator in operators]


def _ends(network: Named) -> list[str]:
    quantizable = [group.name for group in network.groups if group.quantizable]
    return [*quantizable[:1], *quantizable[1:][-1:]]


def _embeddings(network: Named) -> list[str]:
    return [group.name for group in network.groups if group.operator == "Gather" and not group.inputs]


def _attention(network: Named) -> list[str]:
    return [group.name for group in network.groups if group.core]


def _head(network: Named) -> list[str]:
    """From each output back to the first groups that can be quantized, these included."""
    makers = {tensor: group for group in network.groups for tensor in group.outputs}
    copied = {tensor: layer.inputs for layer in network.layers if network.group_of(layer.name) is None
              for tensor in layer.outputs}
    found: set[str] = set()
    seen: set[str] = set()
    waiting = [info.name for info in network.outputs]
    while waiting:
        tensor = waiting.pop()
        if tensor in seen:
            continue
        seen.add(tensor)
        group = makers.get(tensor)
        if group is None:
            waiting.extend(one for one in copied.get(tensor, ()) if one)
            continue
        found.add(group.name)
        if not group.quantizable:
            waiting.extend(group.inputs)
    return list(found)


RULES: dict[str, Callable[[Named], list[str]]] = {
    "layernorm": _by_operator(*_NORMS),
    "softmax": _by_operator("Softmax", "LogSoftmax"),
    "embeddings": _embeddings,
    "attention": _attention,
    "head": _head,
    "ends": _ends,
    "indices": lambda network: list(network.index_groups),
}
"""What each rule names: normalisations; softmax; look-ups in a constant table; scores, Softmax and values of each
attention; the last layers that can be INT8 before each output, with what follows them; the first and the last layer
that can be INT8; floats that become integers or positions."""

RULE_TEXTS = {
    "layernorm": "normalisations",
    "softmax": "softmax",
    "embeddings": "look-ups in a constant table",
    "attention": "QK, softmax and PV of each attention",
    "head": "the last products before the outputs",
    "ends": "first and last layer that can be INT8",
    "indices": "values that become integers, indices or sizes",
}
"""What each of `RULES` names, in a few words."""

DEFAULT_RULES = ("indices",)
"""The rules of `RULES` that are applied to a config that begins with uniform precisions, unless they are turned off. A
config of a file or of a saved session has the rules that it was written with, and no others."""


def groups_named(network: Named, names: Iterable[str]) -> tuple[str, ...]:
    """The groups of the layers that a user names, by node or as tables and the tree show them, each once.

    Raises:
        InputError: the network has no such layer, or the layer has no float precision of its own.
    """
    found: dict[str, None] = {}
    shown = {title: name for name, title in titles(build_tree(network.layers, network.groups)).items()}
    for name in names:
        group = network.group_of(name) or network.group_of(shown.get(name, name))
        if group is None and network.has_layer(name):
            raise InputError(f"layer {name} takes no precision", network.layer(name).note or "it is folded away",
                             "Name a layer that computes floats; trt-tui inspect lists them.")
        if group is None:
            near = near_names(name, [*(layer.name for layer in network.layers), *RULES])
            raise InputError(f"{network.name} has no layer {name}, and no rule has that name", did_you_mean(near),
                             f"`trt-tui inspect {network.name}` lists the layers; the rules are {', '.join(RULES)}.")
        found.setdefault(group.name)
    return tuple(found)


def matched(network: Named, rule: str) -> list[Group]:
    """The groups that a rule names, in network order.

    Args:
        rule: One of `RULES`, unless a layer has that name; ``/REGEX/``, which is searched for in the names of layers
            and in the rows' titles; or a layer as `groups_named` takes it.

    Raises:
        InputError: it is no rule and no layer, no regular expression, or names nothing here.
    """
    if network.has_layer(rule):
        names = set(groups_named(network, [rule]))
    elif rule in RULES:
        names = set(RULES[rule](network))
        if not names:
            raise InputError(f"rule {rule} keeps nothing in {network.name}",
                             f"it names {RULE_TEXTS[rule]}, and there are none", "Leave it out.")
    elif len(rule) > 1 and rule.startswith("/") and rule.endswith("/"):
        names = _by_pattern(network, rule[1:-1])
    else:
        names = set(groups_named(network, [rule]))
    return [group for group in network.groups if group.name in names]


def _by_pattern(network: Named, text: str) -> set[str]:
    if len(text) > _LONGEST:
        raise InputError("a pattern is too long", f"it has {len(text)} characters, and {_LONGEST} are taken",
                         "Give several shorter ones.")
    shown = titles(build_tree(network.layers, network.groups))
    with reading_budget(f"the pattern /{text}/", next_step="Give a simpler pattern, or name the layers."):
        try:
            pattern = re.compile(text)
        except re.error as error:
            raise InputError(f"/{text}/ is no regular expression", str(error),
                             "Escape what is meant as it stands with \\.") from None
        found = {group.name for group in network.groups
                 if any(pattern.search(name) for name in (*group.layers, shown.get(group.name, "")))}
    if not found:
        raise InputError(f"/{text}/ keeps nothing in {network.name}", "it is found in no name of a layer",
                         "trt-tui inspect lists the layers.")
    return found


def _split(network: Named, texts: Iterable[str]) -> tuple[str, ...]:
    """Rules, of which each text holds one or, separated by commas, several; a pattern and a layer keep their commas."""
    found: list[str] = []
    for text in texts:
        parts = [text] if network.has_layer(text) else _RULE.findall(text)
        found += [one for part in parts if (one := part.strip())]
    return tuple(dict.fromkeys(found))


def _precision(rule: str) -> tuple[str, Precision]:
    """A rule without the precision that it ends in, as in ``head=fp16``, and that precision.

    Raises:
        InputError: it ends in a precision that nothing is kept in.
    """
    start, equals, word = rule.rpartition("=")
    kept = {one.value: one for one in KEPT_IN}
    if equals and word.lower() in {one.value for one in Precision} - {*kept}:
        raise InputError(f"a rule keeps nothing in {word}", f"{start} can be kept in {', '.join(kept)}",
                         "Name one of them behind =; what is to be lowered is set in the config.")
    return (start, kept[word.lower()]) if equals and word.lower() in kept else (rule, Precision.FP32)


def with_kept(network: Named, config: PrecisionConfig, rules: Iterable[str]) -> PrecisionConfig:
    """A config with what rules name kept in FP32, or in the precision behind ``=``.

    A text may hold several rules, separated by commas.
    Groups that cannot run in it are left as they are. What was chosen for the others, by a search for example, goes;
    what the user has set lower by hand contradicts the rule.

    Raises:
        InputError: see `matched`; or a rule and the config, or two rules, contradict each other.
    """
    for text in _split(network, rules):
        rule, precision = _precision(text) if not network.has_layer(text) else (text, Precision.FP32)
        groups = [group for group in matched(network, rule) if precision in group.allowed]
        already = config.of(Keep)
        for group in groups:
            other = already.get(group.name)
            if other is not None and other.precision is not precision:
                raise InputError(f"two rules contradict each other on {group.name}",
                                 f"{other.set_by} keeps it in {other.label}, rule {rule} in {precision.label}",
                                 "Leave out one of them, or give both the same precision.")
            chosen = config.groups.get(group.name)
            if chosen is not None and chosen.reason == "user" and group.rank(chosen.precision) < rank(precision):
                raise InputError(f"rule {rule} and the config contradict each other",
                                 f"the rule keeps {group.name} in {precision.label}, and the config sets it to "
                                 f"{group.label(chosen.precision)}", "Leave out the rule, or the entry of the config.")
        config = config.without_groups(groups).with_moves({
            group.name: Keep(rule, precision) for group in groups if group.name not in already})
    return config


def with_default_rules(network: Named, config: PrecisionConfig, off: Collection[str] = ()) -> PrecisionConfig:
    """Returns a config of uniform precisions with the groups kept in FP32 that `DEFAULT_RULES` name.

    A group that is kept by another rule or set by the user stays as it is. A config as in the file, or in FP32
    throughout, is returned unchanged.

    Args:
        off: Rules that are turned off.
    """
    if config.quantized in (Precision.FILE, Precision.FP32) and config.other in (Precision.FILE, Precision.FP32):
        return config
    for rule in DEFAULT_RULES:
        if rule in off or not (names := RULES[rule](network)):
            continue
        free = [group for group in map(network.group, names) if len(group.allowed) > 1
                and group.name not in config.held
                and (group.name not in config.groups or config.groups[group.name].reason != "user")]
        config = config.without_groups(free).with_moves({group.name: Keep(rule) for group in free})
    return config


def default_rules_note(network: Named, config: PrecisionConfig) -> str:
    """Returns which groups the default rules keep in a config, why, and the option that turns them off; "" for none."""
    kept = {target: move.rule for target, move in config.of(Keep).items() if move.rule in DEFAULT_RULES}
    rules = dict.fromkeys(kept.values())
    if not rules:
        return ""
    named = titles(build_tree(network.layers, network.groups))
    rows = [named.get(group.name, group.name) for group in network.groups if group.name in kept]
    reasons = " and ".join(RULE_TEXTS[rule] for rule in rules)
    return (f"{plural(len(rows), 'fused layer')} kept in FP32 by rule {', '.join(rules)} ({reasons}): "
            f"{first_few(rows)}. --no-keep {','.join(rules)} turns it off.")


def rules_in(config: PrecisionConfig) -> dict[str, int]:
    """The rules that a config has, and how many groups each keeps, in the order of the groups."""
    counts: dict[str, int] = {}
    for move in config.of(Keep).values():
        counts[move.rule] = counts.get(move.rule, 0) + 1
    return counts


def kept_words(config: PrecisionConfig) -> str:
    """What rules keep, in words: "9 groups kept by rule layernorm, 1 by head"; "" where there is none."""
    counts = list(rules_in(config).items())
    words = [f"{plural(count, 'group') if not place else count}{' kept' if not place else ''} by {rule}"
             for place, (rule, count) in enumerate(counts)]
    return first_few(words) if words else ""
