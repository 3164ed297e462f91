"""Sends measurements to trackers."""
