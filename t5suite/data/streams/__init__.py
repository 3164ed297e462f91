"""Text tokenized during training: the virtual streams of a run, read from any position."""
