"""Predictions for rows: read in order, answered in batches, written so that a stopped run can resume."""
