"""The processes of a run: agreement between ranks, launchers, signals, lost ranks, weights that differ."""
