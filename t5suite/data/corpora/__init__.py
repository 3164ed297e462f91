"""Text -> documents -> token ids -> blocks: readers, and corpora on disk."""
