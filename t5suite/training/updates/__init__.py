"""What stands between a batch and the weights: numbers that are not finite, spikes, memory."""
