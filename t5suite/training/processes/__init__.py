"""The processes of a run: ranks that agree, launchers, signals, lost ranks, weights that differ."""
