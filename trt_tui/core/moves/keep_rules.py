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
from trt_tui.core.moves.keep_move import KEEP_PRECISIONS, KeepMove
from trt_tui.core.network.hierarchy import build_scope_tree, group_titles
from trt_tui.core.network.layers import FusionGroup, NetworkOutline
from trt_tui.core.precision import Precision, precision_rank
from trt_tui.errors import InputError
from trt_tui.files.read_budget import limit_reading_resources
from trt_tui.formatting import counted_noun_text, find_similar_names, name_list_text, suggestion_question

NamedNetwork: TypeAlias = NetworkOutline

_NORM_OPERATORS = frozenset("LayerNorm RMSNorm GroupNorm L2Norm LayerNormalization RMSNormalization GroupNormalization "
                            "InstanceNormalization LpNormalization".split())

_RULE_PATTERN = re.compile(r"/(?:[^/\\]|\\.)*/(?=[=,]|$)(?:=\w+)?|[^,]+")
"""A pattern, with a precision behind it or without, or anything else up to a comma."""

_MAX_PATTERN_CHARACTERS = 500
"""A pattern longer than this is refused."""


def _build_operator_matcher(*operators: str) -> Callable[[NamedNetwork], list[str]]:
    return lambda network: [group.name for group in network.groups if group.operator in operators]


def _find_first_and_last_groups(network: NamedNetwork) -> list[str]:
    quantizable = [group.name for group in network.groups if group.is_quantizable]
    return [*quantizable[:1], *quantizable[1:][-1:]]


def _find_embedding_groups(network: NamedNetwork) -> list[str]:
    return [group.name for group in network.groups if group.operator == "Gather" and not group.inputs]


def _find_attention_groups(network: NamedNetwork) -> list[str]:
    return [group.name for group in network.groups if group.attention]


def _find_head_groups(network: NamedNetwork) -> list[str]:
    """From each output back to the first groups that can be quantized, these included."""
    producers = {tensor: group for group in network.groups for tensor in group.outputs}
    copied_inputs = {tensor: layer.inputs for layer in network.layers if network.find_group(layer.name) is None
                     for tensor in layer.outputs}
    head_groups: set[str] = set()
    visited: set[str] = set()
    pending = [info.name for info in network.outputs]
    while pending:
        tensor = pending.pop()
        if tensor in visited:
            continue
        visited.add(tensor)
        group = producers.get(tensor)
        if group is None:
            pending.extend(input_tensor for input_tensor in copied_inputs.get(tensor, ()) if input_tensor)
            continue
        head_groups.add(group.name)
        if not group.is_quantizable:
            pending.extend(group.inputs)
    return list(head_groups)


KEEP_RULES: dict[str, Callable[[NamedNetwork], list[str]]] = {
    "layernorm": _build_operator_matcher(*_NORM_OPERATORS),
    "softmax": _build_operator_matcher("Softmax", "LogSoftmax"),
    "embeddings": _find_embedding_groups,
    "attention": _find_attention_groups,
    "head": _find_head_groups,
    "ends": _find_first_and_last_groups,
    "indices": lambda network: list(network.index_groups),
}
"""What each rule names: normalisations; softmax; look-ups in a constant table; scores, Softmax and values of each
attention; the last layers that can be INT8 before each output, with what follows them; the first and the last layer
that can be INT8; floats that become integers or positions."""

KEEP_RULE_TEXTS = {
    "layernorm": "normalisations",
    "softmax": "softmax",
    "embeddings": "look-ups in a constant table",
    "attention": "QK, softmax and PV of each attention",
    "head": "the last products before the outputs",
    "ends": "first and last layer that can be INT8",
    "indices": "values that become integers, indices or sizes",
}
"""What each of `KEEP_RULES` names, in a few words."""

DEFAULT_KEEP_RULES = ("indices",)
"""The rules of `KEEP_RULES` that are applied to a config that begins with uniform precisions, unless they are turned
off. A config of a file or of a saved session has the rules that it was written with, and no others."""


def find_named_groups(network: NamedNetwork, names: Iterable[str]) -> tuple[str, ...]:
    """The groups of the layers that a user names, by node or as tables and the tree show them, each once.

    Raises:
        InputError: the network has no such layer, or the layer has no float precision of its own.
    """
    group_names: dict[str, None] = {}
    name_by_title = {
        title: name
        for name, title in group_titles(build_scope_tree(network.layers, network.groups)).items()
    }
    for name in names:
        group = network.find_group(name) or network.find_group(name_by_title.get(name, name))
        if group is None and network.has_layer(name):
            raise InputError(f"layer {name} has no selectable precision",
                             network.get_layer(name).refusal_reason or "it is folded away",
                             "Name a layer that computes floats; trt-tui inspect lists them.")
        if group is None:
            near = find_similar_names(name, [*(layer.name for layer in network.layers), *KEEP_RULES])
            raise InputError(
                f"{network.name} has no layer {name}, and no rule has that name", suggestion_question(near),
                f"`trt-tui inspect {network.name}` lists the layers; the rules are {', '.join(KEEP_RULES)}.")
        group_names.setdefault(group.name)
    return tuple(group_names)


def find_groups_of_rule(network: NamedNetwork, rule: str) -> list[FusionGroup]:
    """The groups that a rule names, in network order.

    Args:
        rule: One of `KEEP_RULES`, unless a layer has that name; ``/REGEX/``, which is searched for in the names of
            layers and in the rows' titles; or a layer as `find_named_groups` takes it.

    Raises:
        InputError: it is no rule and no layer, no regular expression, or names nothing here.
    """
    if network.has_layer(rule):
        names = set(find_named_groups(network, [rule]))
    elif rule in KEEP_RULES:
        names = set(KEEP_RULES[rule](network))
        if not names:
            raise InputError(f"rule {rule} keeps nothing in {network.name}",
                             f"the network has none of its layers: {KEEP_RULE_TEXTS[rule]}", "Leave it out.")
    elif len(rule) > 1 and rule.startswith("/") and rule.endswith("/"):
        names = _find_groups_by_pattern(network, rule[1:-1])
    else:
        names = set(find_named_groups(network, [rule]))
    return [group for group in network.groups if group.name in names]


def _find_groups_by_pattern(network: NamedNetwork, pattern_text: str) -> set[str]:
    if len(pattern_text) > _MAX_PATTERN_CHARACTERS:
        raise InputError("a pattern is too long",
                         f"it has {len(pattern_text)} characters, and at most {_MAX_PATTERN_CHARACTERS} are allowed",
                         "Give several shorter ones.")
    title_by_group = group_titles(build_scope_tree(network.layers, network.groups))
    with limit_reading_resources(f"the pattern /{pattern_text}/",
                                 next_step="Give a simpler pattern, or name the layers."):
        try:
            pattern = re.compile(pattern_text)
        except re.error as error:
            raise InputError(f"/{pattern_text}/ is not a regular expression", str(error),
                             "Escape literal characters with \\.") from None
        group_names = {group.name for group in network.groups
                       if any(pattern.search(name) for name in (*group.layers, title_by_group.get(group.name, "")))}
    if not group_names:
        raise InputError(f"/{pattern_text}/ keeps nothing in {network.name}", "no layer name matches",
                         "trt-tui inspect lists the layers.")
    return group_names


def _split_rule_texts(network: NamedNetwork, rule_texts: Iterable[str]) -> tuple[str, ...]:
    """Rules, of which each text holds one or, separated by commas, several; a pattern and a layer keep their commas."""
    rules: list[str] = []
    for text in rule_texts:
        parts = [text] if network.has_layer(text) else _RULE_PATTERN.findall(text)
        rules += [rule for part in parts if (rule := part.strip())]
    return tuple(dict.fromkeys(rules))


def _split_rule_precision(rule: str) -> tuple[str, Precision]:
    """A rule without the precision that it ends in, as in ``head=fp16``, and that precision.

    Raises:
        InputError: it ends in a precision that nothing is kept in.
    """
    rule_name, equals, precision_name = rule.rpartition("=")
    keep_precisions = {precision.value: precision for precision in KEEP_PRECISIONS}
    if equals and precision_name.lower() in {precision.value for precision in Precision} - {*keep_precisions}:
        raise InputError(f"a rule keeps nothing in {precision_name}",
                         f"{rule_name} can be kept in {', '.join(keep_precisions)}",
                         "Write one of them after =; lower precisions are set in the config.")
    return (rule_name,
            keep_precisions[precision_name.lower()]) if equals and precision_name.lower() in keep_precisions else (
                rule, Precision.FP32)


def apply_keep_rules(network: NamedNetwork, config: PrecisionConfig, rule_texts: Iterable[str]) -> PrecisionConfig:
    """A config with what rules name kept in FP32, or in the precision behind ``=``.

    A text may hold several rules, separated by commas.
    Groups that cannot run in it are left as they are. What was chosen for the others, by a search for example, goes;
    what the user has set lower by hand contradicts the rule.

    Raises:
        InputError: see `find_groups_of_rule`; or a rule and the config, or two rules, contradict each other.
    """
    for text in _split_rule_texts(network, rule_texts):
        rule, precision = _split_rule_precision(text) if not network.has_layer(text) else (text, Precision.FP32)
        groups = [group for group in find_groups_of_rule(network, rule) if precision in group.allowed_precisions]
        existing_moves = config.get_moves(KeepMove)
        for group in groups:
            existing = existing_moves.get(group.name)
            if existing is not None and existing.precision is not precision:
                raise InputError(
                    f"two rules contradict each other on {group.name}",
                    f"{existing.origin_text} keeps it in {existing.label}, rule {rule} in {precision.label}",
                    "Leave out one of them, or give both the same precision.")
            precision_move = config.precision_moves.get(group.name)
            if precision_move is not None and precision_move.reason == "user" and group.precision_rank(
                    precision_move.precision) < precision_rank(precision):
                raise InputError(
                    f"rule {rule} and the config contradict each other",
                    f"the rule keeps {group.name} in {precision.label}, and the config sets it to "
                    f"{group.precision_label(precision_move.precision)}",
                    "Leave out the rule, or the entry of the config.")
        config = config.without_group_precision(groups).with_moves({
            group.name: KeepMove(rule, precision) for group in groups if group.name not in existing_moves})
    return config


def apply_default_keep_rules(network: NamedNetwork, config: PrecisionConfig,
                             disabled_rules: Collection[str] = ()) -> PrecisionConfig:
    """Returns a config of uniform precisions with the groups kept in FP32 that `DEFAULT_KEEP_RULES` name.

    A group that is kept by another rule or set by the user stays as it is. A config as in the file, or in FP32
    throughout, is returned unchanged.

    Args:
        disabled_rules: Rules that are turned off.
    """
    if config.quantized in (Precision.FILE, Precision.FP32) and config.other in (Precision.FILE, Precision.FP32):
        return config
    for rule in DEFAULT_KEEP_RULES:
        if rule in disabled_rules or not (names := KEEP_RULES[rule](network)):
            continue
        changeable = [
            group for group in map(network.get_group, names)
            if len(group.allowed_precisions) > 1 and group.name not in config.groups_kept_by_rule and (
                group.name not in config.precision_moves or config.precision_moves[group.name].reason != "user")
        ]
        config = config.without_group_precision(changeable).with_moves(
            {group.name: KeepMove(rule)
             for group in changeable})
    return config


def default_keep_rules_note(network: NamedNetwork, config: PrecisionConfig) -> str:
    """Returns which groups the default rules keep in a config, why, and the option that turns them off; "" for none."""
    rule_by_group = {
        subject: move.rule
        for subject, move in config.get_moves(KeepMove).items()
        if move.rule in DEFAULT_KEEP_RULES
    }
    rules = dict.fromkeys(rule_by_group.values())
    if not rules:
        return ""
    title_by_group = group_titles(build_scope_tree(network.layers, network.groups))
    rows = [title_by_group.get(group.name, group.name) for group in network.groups if group.name in rule_by_group]
    reasons = " and ".join(KEEP_RULE_TEXTS[rule] for rule in rules)
    return (f"{counted_noun_text(len(rows), 'fused layer')} kept in FP32 by rule {', '.join(rules)} ({reasons}): "
            f"{name_list_text(rows)}. --no-keep {','.join(rules)} turns it off.")


def count_groups_by_keep_rule(config: PrecisionConfig) -> dict[str, int]:
    """The rules that a config has, and how many groups each keeps, in the order of the groups."""
    counts: dict[str, int] = {}
    for move in config.get_moves(KeepMove).values():
        counts[move.rule] = counts.get(move.rule, 0) + 1
    return counts


def keep_rules_text(config: PrecisionConfig) -> str:
    """What rules keep, in words: "9 groups kept by rule layernorm, 1 by head"; "" where there is none."""
    counts = list(count_groups_by_keep_rule(config).items())
    texts = [f"{counted_noun_text(count, 'group') if not index else count}{' kept' if not index else ''} by {rule}"
             for index, (rule, count) in enumerate(counts)]
    return name_list_text(texts) if texts else ""
