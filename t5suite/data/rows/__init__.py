"""Where rows come from: benchmarks, files in many formats, hub data sets, memory, classes, generated rows."""
