"""The ranks of a run as processes: what they agree on, their signals, their losses."""
