"""Configurations and checkpoints to modules."""
