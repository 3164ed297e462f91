"""Run directories read once into plain data, and that data shown: terminal, Markdown, one HTML page, plots."""
