"""What one sees of a run while it goes on: rates, norms, energy, profiles, samples, bars."""
