"""Configs as other tools read them."""
