"""Lowering: the conversion of a network, a config and ranges into the input of one backend."""
