"""Optimizers and schedules that Hugging Face's trainer does not offer."""
