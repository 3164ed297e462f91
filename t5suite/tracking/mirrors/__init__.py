"""Trackers in processes of their own, that follow `metrics.jsonl` and cannot hold up training."""
