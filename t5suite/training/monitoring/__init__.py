"""Monitoring of a training run: rates, norms, profiles, progress bars."""
