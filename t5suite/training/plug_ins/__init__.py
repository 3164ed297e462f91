"""Functions, metrics and callbacks of the user's own that take part in training."""
