"""Text -> documents -> token ids -> blocks: readers, corpora on disk, streams, tokenizer training."""
