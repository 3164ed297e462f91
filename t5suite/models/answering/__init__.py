"""How models predict: they write, they score candidates, or they classify; one module for each way."""
