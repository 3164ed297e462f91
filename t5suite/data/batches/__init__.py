"""Rows and blocks -> ids -> batches of tensors: encodings, order, collators."""
