"""Training that cuts a model into pieces: DeepSpeed's ZeRO and torch's FSDP2."""
