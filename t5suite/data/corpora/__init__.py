"""Documents -> corpora of tokens on disk, built once and memory-mapped."""
