"""How `--help` groups the flags: themes in their order, and what it says of Hugging Face's that people use.

    >>> theme_of("max_steps", {"type": "int"})
    'training'
    >>> theme_of("ddp_bucket_cap_mb", {"type": "int"})       # Hugging Face's, and rarely used
    "Hugging Face's other flags"

A flag of ours is in the theme of its dataclass (the table's "group"), behind those that stand here for being asked for
first, unless it stands below another theme. Of Hugging Face's flags those that stand here are in `--help`, with the
text beside them: theirs run to paragraphs and seldom name the unit. A new flag of ours needs no entry.
"""

REST = "Hugging Face's other flags"


def theme_of(name: str, entry: dict) -> str:
    """The heading that a flag stands below; REST if it is one of those that only `--help_all` shows."""
    group = entry.get("group", REST)
    if name in THEMES.get(group, {}):
        return group
    return next((theme for theme, texts in THEMES.items() if name in texts), group)


def text_of(name: str, entry: dict) -> str:
    """What the help says of a flag, its default aside."""
    return next((texts[name] for texts in THEMES.values() if texts.get(name)), entry.get("help", ""))


# {theme: {flag: text}}; without a text, the flag's own is shown. A theme without flags here is a dataclass of ours.
THEMES = {
    "task and data": {
        "benchmark": None,
        "dataset_name": None,
        "task_file": None,
        "data_dir": None,
        "train_file": None,
        "validation_file": None,
        "test_file": None,
        "max_source_length": None,
        "max_target_length": None,
        "max_train_samples": None,
        "max_eval_samples": None,
        "max_predict_samples": None,
    },
    "rows of one's own": {
        "data_format": None,
        "train_dir": None,
        "text_column": None,
        "target_column": None,
        "prefix": None,
        "labels": None,
        "metrics": None,
        "validation_split": None,
        "no_eval": None,
        "hub_path": None,
        "hub_name": None,
    },
    "instructions (--benchmark super_ni)": {},
    "text": {"train_file": None, "validation_file": None, "max_eval_samples": None, "streaming": None},
    "objective": {"objective": None, "inputs_length": None, "targets_length": None},
    "model": {
        "model_name_or_path": None,
        "tokenizer_name": None,
        "config_name": None,
        "from_scratch": None,
        "config_overrides": None,
        "dropout_rate": None,
    },
    "adapters": {"adapter": None},
    "training": {
        "num_train_epochs": "Passes over the training rows.",
        "max_steps": "Updates to train for, in place of --num_train_epochs (-1: as many as the epochs have).",
        "learning_rate": None,
        "per_device_train_batch_size": None,
        "gradient_accumulation_steps": "Batches of each device that make one update.",
        "optimizer": None,
        "optim_args": "Settings of --optimizer or --optim: 'betas=(0.9,0.95),eps=1e-6'.",
        "optim": "Hugging Face's optimizer, where --optimizer is not given.",
        "schedule": None,
        "lr_scheduler_kwargs": "Settings of --schedule or --lr_scheduler_type: 'min_lr=1e-5'.",
        "lr_scheduler_type": "Hugging Face's schedule, where --schedule is not given.",
        "warmup_steps": "Updates until the full learning rate; below 1: the share of all updates.",
        "weight_decay": "How much weights shrink per update, times the learning rate; biases and norms do not.",
        "max_grad_norm": "The gradient's norm is clipped to this (0: it is not).",
        "clip_grad_value": None,
        "label_smoothing_factor": "Share of the target's probability that goes to all other tokens, 0 to 1.",
        "z_loss": None,
        "neftune_noise_alpha": "Noise on the input's embeddings in training (NEFTune; 5 is usual).",
        "train_sampling_strategy": None,
        "seed": None,
        "data_seed": "Decides the order of examples alone. Default: --seed.",
        "max_minutes": None,
        "max_skipped_updates": None,
        "loss_spikes": None,
    },
    "evaluation, selection and modes": {
        "eval_method": None,
        "eval_strategy": None,
        "eval_steps": "Updates between evaluations (--eval_strategy steps); below 1: the share of all updates. "
        "Default: --logging_steps.",
        "per_device_eval_batch_size": None,
        "eval_batch_tokens": None,
        "reference_code": None,
        "eval_loss": None,
        "eval_on_start": "Evaluate before the first update, too.",
        "generation_num_beams": "Beams of generated answers. Default: 1, greedy.",
        "generation_max_length": "Longest generated answer in tokens. Default: the longest target of the task.",
        "metric_for_best_model": None,
        "load_best_model_at_end": None,
        "do_predict": "Predict the test splits, too, once training has ended.",
        "eval_only": None,
    },
    "plug-ins": {"batch_transform": None, "transform_evaluation": None, "batch_metrics": None, "callbacks": None},
    "output and checkpoints": {
        "output_dir": None,
        "save_strategy": None,
        "save_steps": "Updates between checkpoints (--save_strategy steps); below 1: the share of all updates.",
        "save_total_limit": None,
        "keep_every": None,
        "print_summary": None,
        "push_to_hub": "Upload the model to the hub with every checkpoint.",
        "hub_model_id": "Its repository there, USER/NAME. Default: the name of --output_dir.",
    },
    "resuming": {
        "resume": None,
        "reset": None,
        "extend": None,
        "allow_changed": None,
        "trust_checkpoint": None,
    },
    "tracking": {
        "report_to": "Trackers that mirror metrics.jsonl: wandb, tensorboard, ..., several, all or none.",
        "run_name": "The run's name in trackers. Default: that of --output_dir.",
        "logging_steps": None,
        "logging_strategy": "When a line is logged: no, steps or epoch.",
        "disable_tqdm": "No progress bars. Default: bars on a terminal.",
    },
    "precision, memory and speed": {
        "bf16": "Compute in bfloat16, with weights in float32: the choice on Ampere and newer.",
        "fp16": "Compute in float16, with weights in float32; T5's own checkpoints overflow in it.",
        "tf32": "Multiply float32 matrices in TF32 (Ampere and newer).",
        "activation_checkpointing": "Compute activations again instead of keeping them: less memory, slower steps.",
        "gradient_checkpointing": "An older name of --activation_checkpointing.",
        "auto_find_batch_size": "Halve a device's batch when memory runs out, with the update's batch unchanged.",
        "attn_implementation": None,
        "cudnn_attention": None,
        "torch_compile": "Compile the model: minutes at the start, faster steps.",
        "torch_compile_mode": "How: default, or max-autotune-no-cudagraphs.",
        "compile_cache": None,
        "length_buckets": None,
        "pack_rows": None,
        "tokenizer_engine": None,
        "token_cache": None,
        "loss_chunk_tokens": None,
        "device_map": None,
        "max_memory": None,
        "embedding_on_cpu": None,
        "load_in_8bit": None,
        "load_in_4bit": None,
        "eval_accumulation_steps": "Evaluation batches whose results stay on the device before they move to the CPU.",
        "dataloader_num_workers": "Processes that prepare batches beside training.",
        "use_cpu": "Use no GPU.",
    },
    "several devices": {
        "deepspeed": None,
        "deepspeed_overrides": None,
        "fsdp": "Shard with PyTorch's FSDP.",
        "fsdp_config": "Its settings: JSON, or a file.",
        "ddp_backend": "How ranks talk to one another: nccl, gloo, ... Default: nccl on GPUs, gloo on CPUs.",
        "ddp_timeout": "Seconds that a rank waits for the others.",
        "ddp_find_unused_parameters": None,
    },
    # Ours by their defaults alone.
    REST: {"logging_nan_inf_filter": None, "restore_callback_states_from_checkpoint": None},
}
