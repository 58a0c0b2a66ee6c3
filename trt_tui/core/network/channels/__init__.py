"""Channels of tensors: their ids, the sets of channels that factors can scale, normalisations, and scales of
attentions.
"""
