"""The trainer and what it needs: arguments, loss, evaluation, checkpoints."""
