"""Screens that open over the main one; Esc closes each of them."""
