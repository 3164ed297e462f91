"""Where rows come from: benchmarks, files of many kinds, hub data sets, memory, classes, made-up rows."""
