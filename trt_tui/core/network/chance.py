"""Operators whose results differ from run to run: random numbers, and Dropout that still drops.

Sources: ONNX's operators, and onnx-tensorrt's importers, which read RandomNormal, RandomUniform and their `Like`, and
refuse a Dropout in training mode.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from trt_tui.words import first_few

RANDOM = frozenset(("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli",
                    "Multinomial"))
"""Operators of ONNX whose results are random."""


def draws(node: ir.Node) -> bool:
    """Whether two runs of a node on the same inputs differ."""
    return node.domain in ("", "ai.onnx") and (node.op_type in RANDOM or node.op_type == "Dropout" and _drops(node))


def _drops(node: ir.Node) -> bool:
    """Whether a Dropout is in training mode, or may be."""
    training = node.inputs[2] if len(node.inputs) > 2 else None
    held = training.const_value if training is not None else None
    return training is not None and (held is None or bool(held.numpy().any()))


def _attributes(node: ir.Node) -> tuple[str, ...]:
    """What decides the numbers that a node is given."""
    return node.op_type, *sorted(f"{name}={one.value}" for name, one in node.attributes.items())


def chance_notes(nodes: Iterable[ir.Node]) -> list[str]:
    """What to know of nodes that draw: of random numbers, of choices, of values that are dropped."""
    found = [node for node in nodes if draws(node)]
    choosing = [node.name or "" for node in found if node.op_type == "Multinomial"]
    found = [node for node in found if node.op_type != "Multinomial"]
    random = [node.name or "" for node in found if node.op_type != "Dropout"]
    dropping = [node.name or "" for node in found if node.op_type == "Dropout"]
    notes = []
    if random:
        notes.append(f"Random numbers are drawn in {first_few(random, most=2)}: every simulated run is given the same "
                     "ones, so that runs differ by precision alone. An engine draws its own, and its figures hold that "
                     "noise too: make it an input to judge engines.")
        if len({_attributes(node) for node in found}) < len(found):
            notes.append("Random operators with the same attributes are given the same numbers too, where an engine's "
                         "differ: other seeds tell them apart.")
    if choosing:
        notes.append(f"Choices are drawn anew in every run in {first_few(choosing, most=2)}: what lies behind differs "
                     "by chance too. Judge what is read there (--judge).")
    if dropping:
        notes.append(f"Dropout is in training mode in {first_few(dropping, most=2)}: every simulated run drops the "
                     "same values, and TensorRT refuses it. Export the network in evaluation mode.")
    return notes
