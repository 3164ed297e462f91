"""Rows to text, text to scores."""
