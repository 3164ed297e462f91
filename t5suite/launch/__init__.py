"""Starting runs: sweeps and batch jobs. Imports low-level modules only, and no torch."""
