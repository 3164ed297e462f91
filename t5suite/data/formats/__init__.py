"""A user's own rows, in whatever form they come: files of many kinds, hub data sets, classes, made-up rows."""
