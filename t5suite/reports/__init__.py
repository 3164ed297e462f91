"""Reports, cards, tables and plots: renderings of one dict of results (`results.py`)."""
