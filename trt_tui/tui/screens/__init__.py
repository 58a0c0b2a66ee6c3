"""Pages and dialogs that open over the main screen. Esc closes each of them."""
