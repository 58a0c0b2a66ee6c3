"""Tables of what was measured, as plain data: commands, files and the app draw them."""
