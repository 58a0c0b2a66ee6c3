"""What a precision config is made of, and its file."""
