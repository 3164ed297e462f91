"""Guards each weight update against NaN or non-finite numbers, spikes and out-of-memory errors."""
