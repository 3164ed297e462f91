"""All that knows transformers' T5 from inside: attention, decoder, fused loss."""
