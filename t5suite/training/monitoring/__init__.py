"""What one sees of a run while it goes on: rates, norms, profiles, bars."""
