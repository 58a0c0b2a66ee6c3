"""Files that are damaged on purpose, by seed, and programs that open them by the thousand."""
