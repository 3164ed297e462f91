"""What makes files that the project ships: run from a checkout, no part of the wheel."""
