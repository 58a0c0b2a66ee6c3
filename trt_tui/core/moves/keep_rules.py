"""The keep rules. A rule names layers by their function and keeps them in a float precision.

Sources: the builder of TensorRT warns of LayerNorm in FP16, in which sums of squares overflow, and recommends FP32. The
first and the last layer are often left unquantized (Zhou et al., "DoReFa-Net", 2016).

The other rules follow from the computation of the layer. A look-up multiplies nothing, so quantized values only lose
accuracy. An error of a head reaches the output unchanged. An error in attention scores passes through an exponential.
The error of a float that becomes an index is never small (see `trt_tui.core.network.graph`). Therefore the rule
`indices` applies unless the user disables it.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable

from trt_tui.core.moves.config import KEEP_PRECISIONS, KeepRuleMove, PrecisionConfig
from trt_tui.core.network.layer_tree import group_titles
from trt_tui.core.network.layers import FusionGroup, NetworkOutline
from trt_tui.core.network.model_editing import iterate_reachable
from trt_tui.core.precision import Precision, precision_rank
from trt_tui.errors import InputError
from trt_tui.files.reading import limit_reading_resources
from trt_tui.formatting import counted_noun_text, find_similar_names, name_list_text, suggestion_question

_NORM_OPERATORS = frozenset(
    "LayerNorm RMSNorm GroupNorm L2Norm LayerNormalization RMSNormalization GroupNormalization "
    "InstanceNormalization LpNormalization".split()
)

_RULE_PATTERN = re.compile(r"/(?:[^/\\]|\\.)*/(?=[=,]|$)(?:=\w+)?|[^,]+")
"""A regular expression between slashes with an optional precision behind it, or any other text up to a comma."""

_MAX_PATTERN_CHARACTERS = 500
"""The maximum length of a regular expression in a keep rule; longer expressions are refused."""


def _build_group_matcher(matches_group: Callable[[FusionGroup], object]) -> Callable[[NetworkOutline], list[str]]:
    return lambda network: [group.name for group in network.groups if matches_group(group)]


def _find_first_and_last_groups(network: NetworkOutline) -> list[str]:
    quantizable = [group.name for group in network.groups if group.is_quantizable]
    return [*quantizable[:1], *quantizable[1:][-1:]]


def _find_head_groups(network: NetworkOutline) -> list[str]:
    """Returns the fusion groups from the last quantizable groups (included) to the network outputs."""
    producers = {tensor: group for group in network.groups for tensor in group.outputs}
    copied_inputs = {
        tensor: layer.inputs
        for layer in network.layers
        if network.find_group(layer.name) is None
        for tensor in layer.outputs
    }

    def list_earlier_tensors(tensor: str) -> Iterable[str]:
        group = producers.get(tensor)
        if group is None:
            return filter(None, copied_inputs.get(tensor, ()))
        return () if group.is_quantizable else group.inputs

    tensors = iterate_reachable((info.name for info in network.outputs), list_earlier_tensors)
    return [producers[tensor].name for tensor in tensors if tensor in producers]


KEEP_RULES: dict[str, Callable[[NetworkOutline], list[str]]] = {
    "layernorm": _build_group_matcher(lambda group: group.operator in _NORM_OPERATORS),
    "softmax": _build_group_matcher(lambda group: group.operator in ("Softmax", "LogSoftmax")),
    "embeddings": _build_group_matcher(lambda group: group.operator == "Gather" and not group.inputs),
    "attention": _build_group_matcher(lambda group: group.attention),
    "head": _find_head_groups,
    "ends": _find_first_and_last_groups,
    "indices": lambda network: list(network.index_groups),
}
"""The function of each keep rule, which returns the names of its fusion groups.

- layernorm: normalisations
- softmax: softmax
- embeddings: look-ups in a constant table
- attention: scores, Softmax and values of each attention
- head: the last layers before each output that can be INT8, and the layers behind them
- ends: the first and the last layer that can be INT8
- indices: floats that become integers or positions"""

KEEP_RULE_TEXTS = {
    "layernorm": "normalisations",
    "softmax": "softmax",
    "embeddings": "look-ups in a constant table",
    "attention": "QK, softmax and PV of each attention",
    "head": "the last products before the outputs",
    "ends": "first and last layer that can be INT8",
    "indices": "values that become integers, indices or sizes",
}
"""A short text for users about the layers of each rule in `KEEP_RULES`."""

DEFAULT_KEEP_RULES = ("indices",)
"""The rules of `KEEP_RULES` that apply to a config with uniform precisions, unless the user disables them. A config
from a file or a saved session has only the rules with which it was written."""


def find_named_groups(network: NetworkOutline, names: Iterable[str]) -> tuple[str, ...]:
    """Returns the fusion groups of the layers that a user names, without duplicates.

    The name of a layer is that of its node, or its title in tables and in the layer tree.

    Raises:
        InputError: The network has no such layer, or the layer has no float precision.
    """
    group_names: dict[str, None] = {}
    name_by_title = {title: name for name, title in group_titles(network).items()}
    for name in names:
        group = network.find_group(name) or network.find_group(name_by_title.get(name, name))
        if group is None and network.has_layer(name):
            raise InputError(
                f"layer {name} has no selectable precision",
                network.get_layer(name).refusal_reason or "it is folded away",
                "Name a layer that computes floats; trt-tui inspect lists them.",
            )
        if group is None:
            near = find_similar_names(name, [*(layer.name for layer in network.layers), *KEEP_RULES])
            raise InputError(
                f"{network.name} has no layer {name}, and no rule has that name",
                suggestion_question(near),
                f"`trt-tui inspect {network.name}` lists the layers; the rules are {', '.join(KEEP_RULES)}.",
            )
        group_names.setdefault(group.name)
    return tuple(group_names)


def find_groups_of_rule(network: NetworkOutline, rule: str) -> list[FusionGroup]:
    """Returns the fusion groups to which a keep rule applies, in network order.

    Args:
        rule: A name in `KEEP_RULES`, unless a layer has that name. Or ``/REGEX/`` for layer names and row titles that
            contain a match. Or a layer name for `find_named_groups`.

    Raises:
        InputError: The text is neither a rule nor a layer, is not a valid regular expression, or matches no group.
    """
    if network.has_layer(rule):
        names = set(find_named_groups(network, [rule]))
    elif rule in KEEP_RULES:
        names = set(KEEP_RULES[rule](network))
        if not names:
            raise InputError(
                f"rule {rule} keeps nothing in {network.name}",
                f"the network has none of its layers: {KEEP_RULE_TEXTS[rule]}",
                "Leave it out.",
            )
    elif len(rule) > 1 and rule.startswith("/") and rule.endswith("/"):
        names = _find_groups_by_pattern(network, rule[1:-1])
    else:
        names = set(find_named_groups(network, [rule]))
    return [group for group in network.groups if group.name in names]


def _find_groups_by_pattern(network: NetworkOutline, pattern_text: str) -> set[str]:
    if len(pattern_text) > _MAX_PATTERN_CHARACTERS:
        raise InputError(
            "a pattern is too long",
            f"it has {len(pattern_text)} characters, and at most {_MAX_PATTERN_CHARACTERS} are allowed",
            "Give several shorter ones.",
        )
    title_by_group = group_titles(network)
    with limit_reading_resources(
        f"the pattern /{pattern_text}/", next_step="Give a simpler pattern, or name the layers."
    ):
        try:
            pattern = re.compile(pattern_text)
        except re.error as error:
            raise InputError(
                f"/{pattern_text}/ is not a regular expression", str(error), "Escape literal characters with \\."
            ) from None
        group_names = {
            group.name
            for group in network.groups
            if any(pattern.search(name) for name in (*group.layers, title_by_group.get(group.name, "")))
        }
    if not group_names:
        raise InputError(
            f"/{pattern_text}/ keeps nothing in {network.name}",
            "no layer name matches",
            "trt-tui inspect lists the layers.",
        )
    return group_names


def _split_rule_texts(network: NetworkOutline, rule_texts: Iterable[str]) -> tuple[str, ...]:
    """Splits texts with one or several keep rules at commas, and returns all rules.

    Commas inside a regular expression or a layer name do not separate rules.
    """
    rules: list[str] = []
    for text in rule_texts:
        parts = [text] if network.has_layer(text) else _RULE_PATTERN.findall(text)
        rules += [rule for part in parts if (rule := part.strip())]
    return tuple(dict.fromkeys(rules))


def _split_rule_precision(rule: str) -> tuple[str, Precision]:
    """Splits a keep rule such as ``head=fp16`` into the rule and its precision; FP32 if it has none.

    Raises:
        InputError: The rule ends in a precision that keep rules cannot fix.
    """
    rule_name, equals, precision_name = rule.rpartition("=")
    keep_precisions = {precision.value: precision for precision in KEEP_PRECISIONS}
    if equals and precision_name.lower() in {precision.value for precision in Precision} - {*keep_precisions}:
        raise InputError(
            f"a rule keeps nothing in {precision_name}",
            f"{rule_name} can be kept in {', '.join(keep_precisions)}",
            "Write one of them after =; lower precisions are set in the config.",
        )
    return (
        (rule_name, keep_precisions[precision_name.lower()])
        if equals and precision_name.lower() in keep_precisions
        else (rule, Precision.FP32)
    )


def apply_keep_rules(network: NetworkOutline, config: PrecisionConfig, rule_texts: Iterable[str]) -> PrecisionConfig:
    """Returns a config in which keep rules fix groups in FP32, or in another precision for rules such as ``norm=fp16``.

    A text may contain several rules, separated by commas. Groups that cannot run in the precision are left unchanged. A
    rule replaces the precision that a search has set. It contradicts a lower precision that the user has set.

    Raises:
        InputError: The errors of `find_groups_of_rule`; or a rule contradicts the config or another rule.
    """
    for text in _split_rule_texts(network, rule_texts):
        rule, precision = _split_rule_precision(text) if not network.has_layer(text) else (text, Precision.FP32)
        groups = [group for group in find_groups_of_rule(network, rule) if precision in group.allowed_precisions]
        existing_moves = config.get_moves(KeepRuleMove)
        for group in groups:
            existing = existing_moves.get(group.name)
            if existing is not None and existing.precision is not precision:
                raise InputError(
                    f"two rules contradict each other on {group.name}",
                    f"{existing.origin_text} keeps it in {existing.label}, rule {rule} in {precision.label}",
                    "Leave out one of them, or give both the same precision.",
                )
            precision_move = config.precision_moves.get(group.name)
            if (
                precision_move is not None
                and precision_move.reason == "user"
                and group.precision_rank(precision_move.precision) < precision_rank(precision)
            ):
                raise InputError(
                    f"rule {rule} and the config contradict each other",
                    f"the rule keeps {group.name} in {precision.label}, and the config sets it to "
                    f"{group.precision_label(precision_move.precision)}",
                    "Leave out the rule, or the entry of the config.",
                )
        config = config.without_group_precision(groups).with_moves(
            {group.name: KeepRuleMove(rule, precision) for group in groups if group.name not in existing_moves}
        )
    return config


def apply_default_keep_rules(network: NetworkOutline, config: PrecisionConfig) -> PrecisionConfig:
    """Returns a config in which the fusion groups of `DEFAULT_KEEP_RULES` are kept in FP32.

    Groups that another rule keeps, and groups that the user set, are left unchanged. A config with only file
    precisions, or only FP32, is returned unchanged.
    """
    if config.quantized in (Precision.FILE, Precision.FP32) and config.other in (Precision.FILE, Precision.FP32):
        return config
    for rule in DEFAULT_KEEP_RULES:
        if not (names := KEEP_RULES[rule](network)):
            continue
        changeable = [
            group
            for group in map(network.get_group, names)
            if len(group.allowed_precisions) > 1
            and group.name not in config.groups_fixed_by_rule
            and (group.name not in config.precision_moves or config.precision_moves[group.name].reason != "user")
        ]
        config = config.without_group_precision(changeable).with_moves(
            {group.name: KeepRuleMove(rule) for group in changeable}
        )
    return config


def default_keep_rules_note(network: NetworkOutline, config: PrecisionConfig) -> str:
    """Returns a note for users about the groups that default keep rules fix; "" if there are none.

    The note gives the reason and the option to disable the rules.
    """
    rule_by_group = {
        subject: move.rule
        for subject, move in config.get_moves(KeepRuleMove).items()
        if move.rule in DEFAULT_KEEP_RULES
    }
    rules = dict.fromkeys(rule_by_group.values())
    if not rules:
        return ""
    title_by_group = group_titles(network)
    rows = [title_by_group.get(group.name, group.name) for group in network.groups if group.name in rule_by_group]
    reasons = " and ".join(KEEP_RULE_TEXTS[rule] for rule in rules)
    return (
        f"{counted_noun_text(len(rows), 'fused layer')} kept in FP32 by rule {', '.join(rules)} ({reasons}): "
        f"{name_list_text(rows)}. A config without these entries turns it off."
    )


def count_groups_by_keep_rule(config: PrecisionConfig) -> dict[str, int]:
    """Returns the number of fusion groups that each keep rule of a config fixes."""
    return Counter(move.rule for move in config.get_moves(KeepRuleMove).values())


def keep_rules_text(config: PrecisionConfig) -> str:
    """Returns a summary of a config's keep rules, such as "9 fused layers kept by layernorm, 1 by head"; "" if there are
    none.
    """
    counts = list(count_groups_by_keep_rule(config).items())
    texts = [
        f"{counted_noun_text(count, 'fused layer') if not index else count}{' kept' if not index else ''} by {rule}"
        for index, (rule, count) in enumerate(counts)
    ]
    return name_list_text(texts) if texts else ""
