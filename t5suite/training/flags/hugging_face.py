"""Facts about Hugging Face's own flags, in the words of `t5suite.training.flags.fields`; this is the one list of them.

    >>> FACTS["fsdp_config"]
    {'help': 'Its settings: JSON, or a file.', 'theme': 'devices', 'needs': 'training'}

Those that stand here with a text have theirs replaced by it: theirs run to paragraphs and seldom name the unit. A flag
that transformers 5 removed has what serves instead.
"""

from t5suite.training.flags.fields import facts

REST = "rest"
FACTS = {
    "max_steps": facts(
        "Updates to train for, in place of --num_train_epochs (-1: as many as the epochs have).",
        "common report",
        theme="training",
        bounds="[1, inf) updates; -1: --num_train_epochs counts",
        also=-1,
        needs="training",
        change="length",
    ),
    "gradient_accumulation_steps": facts(
        "Batches of each device that make one update.",
        "common report",
        theme="training",
        bounds="[1, inf) batches",
        needs="training",
        change="layout",
    ),
    "num_train_epochs": facts(
        "Passes over the training rows.",
        "common report",
        theme="training",
        bounds="(0, inf) passes over the training rows",
        needs="training",
        change="length",
    ),
    "warmup_steps": facts(
        "Updates until the full learning rate; below 1: the share of all updates.",
        "common report",
        theme="training",
        bounds="[0, inf) updates, or below 1 the share of all",
        needs="training",
    ),
    "eval_steps": facts(
        "Updates between evaluations (--eval_strategy steps); below 1: the share of all updates. Default: "
        "--logging_steps.",
        "common",
        theme="evaluation",
        bounds="(0, inf) updates, or below 1 the share of all",
        needs="training",
    ),
    "save_steps": facts(
        "Updates between checkpoints (--save_strategy steps); below 1: the share of all updates.",
        theme="output",
        bounds="(0, inf) updates, or below 1 the share of all",
        needs="training",
    ),
    "optim_args": facts(
        "Settings of --optimizer or --optim: 'betas=(0.9,0.95),eps=1e-6'.", "pairs", theme="training", needs="training"
    ),
    "optim": facts(
        "Hugging Face's optimizer, where --optimizer is not given.", "report", theme="training", needs="training"
    ),
    "lr_scheduler_kwargs": facts(
        "Settings of --schedule or --lr_scheduler_type: 'min_lr=1e-5'.", theme="training", needs="training"
    ),
    "lr_scheduler_type": facts(
        "Hugging Face's schedule, where --schedule is not given.", "report", theme="training", needs="training"
    ),
    "weight_decay": facts(
        "How much weights shrink per update, times the learning rate; biases and norms do not.",
        "common report",
        theme="training",
        bounds="[0, inf) a small number",
    ),
    "max_grad_norm": facts(
        "The gradient's norm is clipped to this (0: it is not).",
        "report",
        theme="training",
        bounds="[0, inf] a norm; 0: no clipping, inf: it is measured alone",
        needs="training",
    ),
    "label_smoothing_factor": facts(
        "Share of the target's probability that goes to all other tokens, 0 to 1.",
        "report",
        theme="training",
        bounds="[0, 1] a share",
        needs="training, a loss of tokens",
    ),
    "neftune_noise_alpha": facts(
        "Noise on the input's embeddings in training (NEFTune; 5 is usual).",
        theme="training",
        bounds="(0, inf) a number",
        needs="training",
    ),
    "data_seed": facts(
        "Decides the order of examples alone. Default: --seed.",
        theme="training",
        bounds="[0, 4294967295] a whole number",
    ),
    "eval_on_start": facts("Evaluate before the first update, too.", theme="evaluation"),
    "generation_num_beams": facts(
        "Beams of generated answers. Default: 1, greedy.",
        "generates",
        theme="evaluation",
        bounds="[1, inf) beams",
        needs="evaluation, writing",
    ),
    "generation_max_length": facts(
        "Longest generated answer in tokens. Default: the longest target of the task.",
        "generates",
        theme="evaluation",
        bounds="[2, inf) tokens: one, and the end of the sequence",
        needs="evaluation, writing",
    ),
    "do_predict": facts(
        "Predict the test splits, too, once training has ended.", "common generates", theme="evaluation"
    ),
    "push_to_hub": facts(
        "Upload the model to the hub with every checkpoint.", theme="output", needs="training", change="nothing"
    ),
    "hub_model_id": facts(
        "Its repository there, USER/NAME. Default: the name of --output_dir.", theme="output", change="nothing"
    ),
    "report_to": facts(
        "Trackers that mirror metrics.jsonl: wandb, tensorboard, ..., several, all or none.",
        "common",
        theme="tracking",
        change="nothing",
    ),
    "run_name": facts(
        "The run's name in trackers. Default: that of --output_dir.", "common", theme="tracking", change="nothing"
    ),
    "logging_strategy": facts("When a line is logged: no, steps or epoch.", theme="tracking", change="nothing"),
    "disable_tqdm": facts("No progress bars. Default: bars on a terminal.", theme="tracking", change="nothing"),
    "bf16": facts(
        "Compute in bfloat16, with weights in float32: the choice on Ampere and newer.", "common report", theme="speed"
    ),
    "fp16": facts(
        "Compute in float16, with weights in float32; T5's own checkpoints overflow in it.", "report", theme="speed"
    ),
    "tf32": facts("Multiply float32 matrices in TF32 (Ampere and newer).", "report", theme="speed"),
    "activation_checkpointing": facts(
        "Compute activations again instead of keeping them: less memory, slower steps.", "common", theme="speed"
    ),
    "gradient_checkpointing": facts("An older name of --activation_checkpointing.", "report", theme="speed"),
    "auto_find_batch_size": facts(
        "Halve a device's batch when memory runs out, with the update's batch unchanged.",
        theme="speed",
        change="layout",
    ),
    "torch_compile": facts("Compile the model: minutes at the start, faster steps.", "common", theme="speed"),
    "torch_compile_mode": facts("How: default, or max-autotune-no-cudagraphs.", theme="speed"),
    "eval_accumulation_steps": facts(
        "Evaluation batches whose results stay on the device before they move to the CPU.",
        theme="speed",
        bounds="[1, inf) batches",
        needs="Hugging Face's evaluation",
    ),
    "dataloader_num_workers": facts(
        "Processes that prepare batches beside training.",
        theme="speed",
        bounds="[0, workers] processes",
        change="nothing",
    ),
    "use_cpu": facts("Use no GPU.", "device", theme="speed"),
    "fsdp": facts("Shard with PyTorch's FSDP.", "common report", theme="devices", needs="training"),
    "fsdp_config": facts("Its settings: JSON, or a file.", theme="devices", needs="training"),
    "ddp_backend": facts(
        "How ranks talk to one another: nccl, gloo, ... Default: nccl on GPUs, gloo on CPUs.", "device", theme="devices"
    ),
    "ddp_timeout": facts(
        "Seconds that a rank waits for the others.", theme="devices", bounds="[1, 31536000] seconds", change="nothing"
    ),
    "dataloader_prefetch_factor": facts(bounds="[1, inf) batches", change="nothing"),
    "eval_delay": facts(bounds="[0, inf) epochs or updates, as --eval_strategy says"),
    "torch_empty_cache_steps": facts(bounds="[1, inf) updates"),
    "adam_epsilon": facts(bounds="[0, inf) a small number", needs="Adam"),
    "adam_beta1": facts(bounds="[0, 1) a share", needs="Adam"),
    "adam_beta2": facts(bounds="[0, 1) a share", needs="Adam"),
    "ddp_bucket_cap_mb": facts(bounds="[1, inf) MB"),
    "local_rank": facts(bounds="[0, inf) a rank; -1: not distributed", also=-1, change="nothing"),
    "dataloader_persistent_workers": facts(change="nothing"),
    "dataloader_pin_memory": facts(change="nothing"),
    "hub_always_push": facts(change="nothing"),
    "hub_private_repo": facts(change="nothing"),
    "hub_revision": facts(change="nothing"),
    "hub_strategy": facts(change="nothing"),
    "hub_token": facts(change="nothing"),
    "log_level": facts(change="nothing"),
    "log_level_replica": facts(change="nothing"),
    "log_on_each_node": facts(change="nothing"),
    "logging_first_step": facts(change="nothing"),
    "project": facts(change="nothing"),
    "resume_from_checkpoint": facts(change="nothing"),
    "trackio_space_id": facts(change="nothing"),
    "predict_with_generate": facts(marks="generates", needs="Hugging Face's evaluation"),
    "sortish_sampler": facts(needs="Hugging Face's evaluation"),
    "batch_eval_metrics": facts(needs="Hugging Face's evaluation"),
    "prediction_loss_only": facts(needs="Hugging Face's evaluation"),
    "generation_config": facts(marks="generates"),
    "adafactor": facts(removed="--optim adafactor"),
    "warmup_ratio": facts(removed="--warmup_steps with a value below 1, the share of all steps (--warmup_steps 0.1)"),
    "group_by_length": facts(removed="--train_sampling_strategy group_by_length (the default here)"),
    "overwrite_output_dir": facts(removed="a new --output_dir, or --resume auto to go on in an old one"),
    "logging_dir": facts(removed="--output_dir (trackers write below it)"),
    "no_cuda": facts(removed="--use_cpu"),
    "evaluation_strategy": facts(removed="--eval_strategy"),
    "save_safetensors": facts(removed="nothing: safetensors is the only format"),
    "per_gpu_train_batch_size": facts(removed="--per_device_train_batch_size"),
    "per_gpu_eval_batch_size": facts(removed="--per_device_eval_batch_size"),
    "half_precision_backend": facts(removed="--bf16"),
    "fp16_backend": facts(removed="--bf16"),
    "tpu_num_cores": facts(removed="nothing"),
    "past_index": facts(removed="nothing"),
    "torchdynamo": facts(removed="--torch_compile"),
    "use_mps_device": facts(removed="nothing: the device is found"),
    "push_to_hub_model_id": facts(removed="--hub_model_id"),
    "push_to_hub_organization": facts(removed="--hub_model_id"),
    "push_to_hub_token": facts(removed="--hub_token"),
    "include_inputs_for_metrics": facts(removed="nothing"),
    "jit_mode_eval": facts(removed="nothing"),
    "predict_with_generate_max_length": facts(removed="--generation_max_length"),
}
