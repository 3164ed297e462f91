"""Facts about Hugging Face's own flags, as defined in `t5suite.training.flags.fields`; this is the only list of them.

    >>> FACTS["fsdp_config"]
    {'help': 'Its settings: JSON, or a file.', 'theme': 'devices', 'needs': 'training'}

A help text here replaces Hugging Face's, which is often paragraphs long and rarely names the unit.
"""

from t5suite.training.flags.fields import facts

REST = "rest"
# Facts that all flags of a theme share.
GROUPS = {"training": {"needs": "training"}}
THEMED = {
    "training": {
        "max_steps": facts("Updates to train for, in place of --num_train_epochs.", "common report",
            bounds="[1, inf) updates", also=-1, change="length"),
        "gradient_accumulation_steps": facts("Batches of each device that make one update.", "common report",
            bounds="[1, inf) batches", change="layout"),
        "num_train_epochs": facts("Passes over the training rows.", "common report", bounds="(0, inf) epochs",
            change="length"),
        "warmup_steps": facts("Updates to the full learning rate, or below 1 a share of all.", "common report",
            bounds="[0, inf) updates or a share"),
        "optim_args": facts("Settings of the optimizer: 'betas=(0.9,0.95),eps=1e-6'.", "pairs"),
        "optim": facts("Hugging Face's optimizer, where --optimizer is not given.", "report"),
        "lr_scheduler_kwargs": facts("Settings of the schedule: 'min_lr=1e-5'."),
        "lr_scheduler_type": facts("Hugging Face's schedule, where --schedule is not given.", "report"),
        "weight_decay": facts("Weight decay; biases and norms have none.", "common report", bounds="[0, inf) a number"),
        "max_grad_norm": facts("Largest norm of the gradient (0: no clipping).", "report",
            bounds="[0, inf) a norm; 0: no clipping"),
        "label_smoothing_factor": facts("Share of probability spread over all other tokens.", "report",
            bounds="[0, 1] a share", needs="training, a loss of tokens"),
        "neftune_noise_alpha": facts("NEFTune's noise on input embeddings (5 is usual).", bounds="(0, inf) a number"),
        "data_seed": facts("Seed of the examples' order. Default: --seed.", bounds="[0, 4294967295] a whole number"),
    },
    "evaluation": {
        "eval_steps": facts("Updates between evaluations, or a share of all. Default: --logging_steps.", "common",
            bounds="(0, inf) updates or a share", needs="training"),
        "eval_on_start": facts("Evaluate before the first update, too."),
        "generation_num_beams": facts("Beams of answers. Default: 1, greedy.", "generates", bounds="[1, inf) beams",
            needs="evaluation, writing"),
        "generation_max_length": facts("Longest answer. Default: by the task.", "generates", bounds="[2, inf) tokens",
            needs="evaluation, writing"),
        "do_predict": facts("Predict the test splits, too, once training has ended.", "common generates"),
    },
    "output": {
        "save_steps": facts("Updates between checkpoints, or a share of all.", bounds="(0, inf) updates or a share",
            needs="training"),
        "push_to_hub": facts("Upload the model to the hub with every checkpoint.", needs="training", change="nothing"),
        "hub_model_id": facts("Its repository there, USER/NAME. Default: the name of --output_dir.", change="nothing"),
    },
    "tracking": {
        "report_to": facts("Trackers that mirror metrics.jsonl: wandb, tensorboard, ..., all or none.", "common"),
        "run_name": facts("The run's name in trackers. Default: that of --output_dir."),
        "logging_strategy": facts("When a line is logged: no, steps or epoch."),
        "disable_tqdm": facts("No progress bars. Default: bars on a terminal."),
        "log_level": facts("info or debug: show libraries' logs and bars. Default: warnings that matter."),
    },
    "speed": {
        "bf16": facts("Compute in bfloat16, with weights in float32 (Ampere and newer).", "common report"),
        "fp16": facts("Compute in float16, with weights in float32; T5's checkpoints overflow.", "report"),
        "tf32": facts("Multiply float32 matrices in TF32 (Ampere and newer).", "report"),
        "activation_checkpointing": facts("Compute activations again instead of keeping them.", "common"),
        "gradient_checkpointing": facts("An older name of --activation_checkpointing.", "report"),
        "auto_find_batch_size": facts("Halve a device's batch when memory runs out.", change="layout"),
        "torch_compile": facts("Compile the model: minutes at the start, faster steps."),
        "torch_compile_mode": facts("How: default, or max-autotune-no-cudagraphs."),
        "eval_accumulation_steps": facts("Batches whose results stay on the device.", bounds="[1, inf) batches",
            needs="Hugging Face's evaluation"),
        "dataloader_num_workers": facts("Processes for batches.", bounds="[0, workers] processes", change="nothing"),
        "use_cpu": facts("Use no GPU.", "common device"),
    },
    "devices": {
        "fsdp": facts("Shard with PyTorch's FSDP.", "common report", needs="training"),
        "fsdp_config": facts("Its settings: JSON, or a file.", needs="training"),
        "ddp_backend": facts("nccl, gloo, ... Default: nccl on GPUs, gloo on CPUs.", "device"),
        "ddp_timeout": facts("Seconds a rank waits for the others.", bounds="[1, 31536000] seconds", change="nothing"),
    },
}  # fmt: skip
# Another value of these does not make a different run.
HARMLESS = (
    "dataloader_persistent_workers", "dataloader_pin_memory", "hub_always_push", "hub_private_repo", "hub_revision",
    "hub_strategy", "hub_token", "log_level_replica", "log_on_each_node", "logging_first_step", "project",
    "resume_from_checkpoint", "trackio_space_id",
)  # fmt: skip
# Flags of parts of Hugging Face's trainer that the suite has its own for.
OF_EVALUATION = (
    "sortish_sampler", "batch_eval_metrics", "prediction_loss_only", "label_names", "include_for_metrics",
    "eval_do_concat_batches", "eval_use_gather_object", "bf16_full_eval", "fp16_full_eval",
)  # fmt: skip
OF_BATCHES = (
    "dataloader_drop_last", "dataloader_multiprocessing_context", "dataloader_in_order", "length_column_name",
    "remove_unused_columns",
)  # fmt: skip
# What a flag may need of Hugging Face's, and no run has, with the reason.
MISSING_PARTS = {
    "Hugging Face's batches": "batches are made by our own loop, each row once an epoch",
    "Hugging Face's scripts": "a run trains and evaluates; --eval_only scores without training",
}
FACTS = {
    **{
        name: {"theme": theme, **GROUPS.get(theme, {}), **facts_of_flag}
        for theme, group in THEMED.items()
        for name, facts_of_flag in group.items()
    },
    "dataloader_prefetch_factor": facts(bounds="[1, inf) batches", change="nothing", needs="Hugging Face's batches"),
    "include_num_input_tokens_seen": facts(needs="Hugging Face's count of tokens"),
    "eval_delay": facts(bounds="[0, inf) epochs or updates, as --eval_strategy says"),
    "torch_empty_cache_steps": facts(bounds="[1, inf) updates"),
    "adam_epsilon": facts(bounds="[0, inf) a number", needs="Adam"),
    "adam_beta1": facts(bounds="[0, 1) a share", needs="Adam"),
    "adam_beta2": facts(bounds="[0, 1) a share", needs="Adam"),
    "ddp_bucket_cap_mb": facts(bounds="[1, inf) MB"),
    "local_rank": facts(bounds="[0, inf) a rank; -1: not distributed", also=-1, change="nothing"),
    "predict_with_generate": facts(marks="generates", needs="Hugging Face's evaluation"),
    "generation_config": facts(marks="generates"),
    **dict.fromkeys(HARMLESS, facts(change="nothing")),
    **dict.fromkeys(OF_EVALUATION, facts(needs="Hugging Face's evaluation")),
    **dict.fromkeys(OF_BATCHES, facts(needs="Hugging Face's batches")),
}
