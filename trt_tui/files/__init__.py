"""Files: reading them with limits, writing them whole or not at all, and removing temporary ones."""
