"""Fusion groups: which layers TensorRT runs as one kernel and that therefore take one precision. One function a rule.

A rule looks at a group that grows, or at a layer that could start one, and answers with a `FusionRuleMatch`: what it
takes in, or why it declines. `groups` applies the rules in order. Their source is the Layer Fusion Catalog of
TensorRT's documentation, which each rule names its entry of.
"""
