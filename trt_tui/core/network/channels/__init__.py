"""Channels of tensors: their numbers, the sets that factors can scale, and spellings of norms and attention scales."""
