"""Files, folders and hub data sets -> documents -> token ids."""
