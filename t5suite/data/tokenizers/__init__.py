"""Texts -> the files of a new tokenizer, and its statistics."""
