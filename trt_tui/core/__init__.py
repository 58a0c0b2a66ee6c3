"""What is computed, and on what: no backend and no user interface in it."""
