"""Documents that are tokenized beside training."""
