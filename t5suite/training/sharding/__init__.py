"""Sharded training: DeepSpeed's ZeRO and torch's FSDP2."""
