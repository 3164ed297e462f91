"""Model cards: the `README.md` of a run with a model, in the hub's format."""
