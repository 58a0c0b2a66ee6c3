"""Operators whose results differ between two executions: random numbers, and Dropout in training mode.

Sources: ONNX's operators, and onnx-tensorrt's importers, which read RandomNormal, RandomUniform and their `Like`, and
refuse a Dropout in training mode.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from trt_tui.formatting import name_list_text

RANDOM_OPERATORS = frozenset(("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli",
                              "Multinomial"))
"""The ONNX operators whose results are random."""


def is_random(node: ir.Node) -> bool:
    """Returns True if two executions of a node on the same inputs can differ."""
    return node.domain in ("", "ai.onnx") and (node.op_type in RANDOM_OPERATORS
                                               or node.op_type == "Dropout" and _is_active_dropout(node))


def _is_active_dropout(node: ir.Node) -> bool:
    """Returns True if a Dropout is in training mode, or if its mode is computed."""
    training_input = node.inputs[2] if len(node.inputs) > 2 else None
    constant = training_input.const_value if training_input is not None else None
    return training_input is not None and (constant is None or bool(constant.numpy().any()))


def randomness_notes(nodes: Iterable[ir.Node]) -> list[str]:
    """Returns the notes for the user on nodes with random results: random numbers, random choices and active Dropout.
    """
    random_nodes = [node for node in nodes if is_random(node)]
    multinomial_names = [node.name or "" for node in random_nodes if node.op_type == "Multinomial"]
    random_nodes = [node for node in random_nodes if node.op_type != "Multinomial"]
    random_names = [node.name or "" for node in random_nodes if node.op_type != "Dropout"]
    dropout_names = [node.name or "" for node in random_nodes if node.op_type == "Dropout"]
    notes = []
    if random_names:
        notes.append(
            f"Random numbers are drawn in {name_list_text(random_names, max_count=2)}: every simulated run gets the "
            "same numbers, so runs differ by precision only. An engine draws other numbers, and its values contain "
            "that noise: make them an input to measure engines.")
        sequences = {(node.op_type, *sorted(f"{name}={attribute.value}" for name, attribute in node.attributes.items()))
                     for node in random_nodes}
        if len(sequences) < len(random_nodes):
            notes.append("Random operators with the same attributes get the same numbers, but differ in an engine: "
                         "give them different seeds.")
    if multinomial_names:
        notes.append(
            f"Random choices differ from run to run in {name_list_text(multinomial_names, max_count=2)}: later tensors "
            "differ by chance too. Judge a tensor before them (--judge).")
    if dropout_names:
        notes.append(
            f"Dropout is in training mode in "
            f"{name_list_text(dropout_names, max_count=2)}: every simulated run drops the "
            "same values, and TensorRT refuses it. Export the network in evaluation mode.")
    return notes
