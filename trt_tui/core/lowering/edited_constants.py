"""The constants of a network with the edits of a config, such as scaled channels and corrected biases."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, MutableMapping, Sequence

import numpy as np

from trt_tui.core.moves.config import MOVE_KINDS, MoveKey, PrecisionConfig
from trt_tui.core.moves.constant_moves import RoundingMove, digest_weight_edits
from trt_tui.core.moves.move import MOVE_TEXTS, ConstantEdit
from trt_tui.core.moves.zero_cost_checks import replace_file_precision_of_groups
from trt_tui.core.network.constants import largest_magnitude
from trt_tui.core.network.layers import FusionGroup, NetworkOutline, QdqSite
from trt_tui.core.network.network import Network
from trt_tui.core.network.zero_cost_support import Port
from trt_tui.core.precision import Precision
from trt_tui.errors import InputError
from trt_tui.formatting import name_list_text

_KeyedEdit = tuple[tuple[str, str, Hashable], ConstantEdit]
"""An edit of a constant, with the kind, the subject and the effect of its move, which are equal for equal edits."""


class EditedConstants:
    """The constants of a network after the edits by the moves of a config. Each constant is computed on request.

    Args:
        config: The config; None for the constants of the network without edits.
        amax_cache: A cache of the largest magnitudes, by constant and edits, which several configs share.
    """

    def __init__(
        self,
        network: Network,
        config: PrecisionConfig | None = None,
        amax_cache: MutableMapping[Hashable, np.ndarray] | None = None,
    ) -> None:
        self.network = network
        self._amax_cache = {} if amax_cache is None else amax_cache
        self._edits = {} if config is None else _collect_constant_edits(network, config)
        if stale := _list_groups_with_stale_roundings(self._edits):
            raise InputError(
                f"the rounding of {name_list_text(stale)} belongs to another weight",
                "another change of the config has edited the weight since it was measured",
                "Undo the rounding, or measure it again.",
            )

    @property
    def changed_layer_inputs(self) -> tuple[Port, ...]:
        return tuple(self._edits)

    def constant_edit_key(self, layer_input: Port) -> Hashable:
        """Returns a cache key for the edits of the constant at a layer input; None if it is not edited."""
        return tuple(key for key, _ in self._edits[layer_input]) if layer_input in self._edits else None

    def compute_constant(self, layer_input: Port, *, with_rounding: bool = True) -> np.ndarray | None:
        """Returns the constant at a layer input with all edits, float32; None if the layer has no such input.

        Args:
            with_rounding: False to leave out the edits that only round a weight.
        """
        layer, index = layer_input
        input_names = self.network.get_layer(layer).inputs
        array = (
            self.network.constant_value(input_names[index]) if index < len(input_names) and input_names[index] else None
        )
        for _, change in self._edits.get(layer_input, ()):
            if with_rounding or change.weight_edits is None:
                array = change.edit_constant(array)
        return array

    def weight_amax(self, qdq_site: QdqSite, axis: int | None, block_size: int | None) -> np.ndarray:
        """Returns the largest magnitude of a weight with all edits, float32: per tensor, channel or block.

        The arguments are those of `trt_tui.core.network.constants.ConstantValues.constant_amax`.
        """
        port = qdq_site.layer, qdq_site.index
        if port not in self._edits:
            return self.network.constant_amax(qdq_site.tensor, axis, block_size)
        key = (port, axis, block_size, self.constant_edit_key(port))
        if key not in self._amax_cache:
            array = self.compute_constant(port)
            assert array is not None  # the input is a weight
            self._amax_cache[key] = largest_magnitude(array, axis, block_size)
        return self._amax_cache[key]


def _collect_constant_edits(network: NetworkOutline, config: PrecisionConfig) -> dict[Port, list[_KeyedEdit]]:
    """Returns the edits of each constant, in the order of their application."""
    edits: dict[Port, list[_KeyedEdit]] = {}
    for kind, move_class in MOVE_KINDS.items():
        for subject, move in config.get_moves(move_class).items() if move_class.edits_constants else ():
            for port, change in move.find_constant_edits(network, subject, config).items():
                edits.setdefault(port, []).append(((kind, subject, move.equivalence_key), change))
    return edits


def _list_groups_with_stale_roundings(edits: Mapping[Port, Sequence[_KeyedEdit]]) -> list[str]:
    """Returns the groups with stale roundings. A rounding is stale if other moves edited the weight after its
    measurement."""
    stale = []
    for edits_of_port in edits.values():
        for index, ((_, subject, _), change) in enumerate(edits_of_port):
            if change.weight_edits not in (None, digest_weight_edits(tuple(key for key, _ in edits_of_port[:index]))):
                stale.append(subject)
    return stale


def without_stale_roundings(network: NetworkOutline, config: PrecisionConfig) -> PrecisionConfig:
    """Returns a config without roundings of weights that other moves have edited since; the same config if there are
    none.

    A rounding for another precision than the present one of its group is kept, because it has no effect.
    """
    if not config.get_moves(RoundingMove):
        return config
    stale = _list_groups_with_stale_roundings(_collect_constant_edits(network, config))
    return config.without_moves(RoundingMove, stale) if stale else config


def compute_weight_edits_digest(network: NetworkOutline, config: PrecisionConfig, port: Port) -> str:
    """Returns the digest of the edits of a weight other than its rounding; "" if there are none."""
    edits = _collect_constant_edits(network, config).get(port, ())
    return digest_weight_edits(tuple(key for key, change in edits if change.weight_edits is None))


def _list_edited_layers(network: NetworkOutline, config: PrecisionConfig) -> Iterator[tuple[MoveKey, str]]:
    """Yields each layer that a move edits, with the key of the move."""
    for (kind, subject), move in config.moves.items():
        if move.is_normalisation_rewrite:
            yield (kind, subject), subject
        elif move.edits_constants:
            for layer, _ in move.find_constant_edits(network, subject, config):
                yield (kind, subject), layer


def refuse_edits_under_file_precision(network: Network, config: PrecisionConfig) -> None:
    """Refuses a config with moves that edit layers in file precision.

    Raises:
        InputError: a move edits such a layer; the error names both.
    """
    for (kind, subject), layer in _list_edited_layers(network, config):
        group = network.find_group(layer)
        if group is not None and config.precision_of(group) is Precision.FILE and group.file_precision is not None:
            nearest = group.file_precision.nearest_precision.label
            raise InputError(
                f"{group.name} has file precision, and {MOVE_TEXTS[kind].column} on {subject} changes it",
                "layers in file precision are written back unchanged",
                f"Give it {nearest}, the precision nearest to the file, or undo that change.",
            )


def replace_edited_file_precisions(
    network: NetworkOutline, config: PrecisionConfig, groups: Iterable[FusionGroup]
) -> PrecisionConfig:
    """Returns a config in which edited groups have the nearest precision instead of their file precision.

    Only the given groups change. `refuse_edits_under_file_precision` would refuse edits in file precision.
    """
    groups = [group for group in groups if config.precision_of(group) is Precision.FILE]
    if not groups or not (has_constant_edits(config) or list_normalisation_rewrites(config)):
        return config
    edited_layers = {layer for _, layer in _list_edited_layers(network, config)}
    return replace_file_precision_of_groups(
        config, (group for group in groups if not edited_layers.isdisjoint(group.layers))
    )


def toggle_fp32(network: NetworkOutline, config: PrecisionConfig, groups: Iterable[FusionGroup]) -> PrecisionConfig:
    """Returns a config that can be lowered, with some groups toggled between FP32 and their default precisions.

    Groups whose default is the file precision get the nearest precision if moves edit them.
    """
    groups = list(groups)
    return replace_edited_file_precisions(network, config.with_toggled_fp32(groups), groups)


def has_constant_edits(config: PrecisionConfig) -> bool:
    return any(move.edits_constants for move in config.moves.values())


def list_normalisation_rewrites(config: PrecisionConfig) -> frozenset[str]:
    return frozenset(subject for (_, subject), move in config.moves.items() if move.is_normalisation_rewrite)
