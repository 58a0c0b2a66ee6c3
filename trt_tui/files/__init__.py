"""File access: reading with limits, atomic writing, and the removal of temporary files."""
