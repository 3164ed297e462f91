"""What pre-training has of its own: text, collators, evaluation, and its steps."""
