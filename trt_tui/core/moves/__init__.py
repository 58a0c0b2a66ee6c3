"""The precision config: its moves, its keep rules and its file, precision.json."""
