"""What a run writes to go on from, and how it goes on: checkpoints, progress, resets, streams."""
