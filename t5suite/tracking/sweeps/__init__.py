"""What is told of a sweep: its trials' records, plots, the importance of its parameters."""
