"""Text -> tokenizers of T5's, BERT's and GPT-2's kind."""
