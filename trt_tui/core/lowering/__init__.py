"""Lowering: a network, a config and ranges become what one backend takes."""
