"""Starting runs: sweeps and batch jobs. Only ground modules below, and no torch."""
