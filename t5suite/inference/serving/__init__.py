"""`t5suite serve`: a model behind HTTP, with rows of several clients answered together."""
