"""Where measurements go: trackers, tables, model cards."""
