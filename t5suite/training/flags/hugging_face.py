"""Facts about Hugging Face's own flags, as defined in `t5suite.training.flags.fields`; this is the only list of them.

    >>> FACTS["fsdp_config"]
    {'help': 'Its settings: JSON, or a file.', 'theme': 'devices', 'needs': 'training'}

A help text here replaces Hugging Face's, which is often paragraphs long and rarely names the unit.
"""

from collections.abc import Mapping

from transformers.trainer_utils import IntervalStrategy

from t5suite.base.script_flags import flags_of
from t5suite.tracking.trackers import tracker_names
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
        "label_smoothing_factor": facts("Share of probability spread over all tokens or classes, the right one too.",
            "report", bounds="[0, 1] a share", needs="training, a loss of tokens"),
        "neftune_noise_alpha": facts("NEFTune's noise on input embeddings (5 is usual).", bounds="(0, inf) a number"),
        "data_seed": facts("Seed of the examples' order. Default: --seed.", bounds="[0, 4294967295] a whole number"),
    },
    "evaluation": {
        "eval_steps": facts("Of --eval_strategy steps: updates between evaluations, or a share of all. "
            "Default: --logging_steps.", "common", bounds="(0, inf) updates or a share",
            needs="training, evaluations by steps"),
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
        "hub_model_id": facts("Its repository there, USER/NAME. Default: the name of --output_dir.", change="nothing",
            needs="an upload"),
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
        "auto_find_batch_size": facts("No effect: a batch that does not fit is halved without it.", change="layout"),
        "torch_compile": facts("Compile the model: minutes at the start, faster steps."),
        "torch_compile_mode": facts("How: default, or max-autotune-no-cudagraphs."),
        "eval_accumulation_steps": facts("No effect: no results stay on the device.", bounds="[1, inf) batches",
            needs="Hugging Face's evaluation"),
        "dataloader_num_workers": facts("Processes for batches.", bounds="[0, workers] processes", change="nothing"),
        "use_cpu": facts("Use no GPU.", "common device"),
    },
    "devices": {
        "fsdp": facts("Shard with PyTorch's FSDP.", "common report", needs="training"),
        "fsdp_config": facts("Its settings: JSON, or a file.", needs="training"),
        "ddp_backend": facts("nccl, gloo, ... Default: nccl on GPUs, gloo on CPUs.", "device"),
        "ddp_timeout": facts("Timeout of collectives, in seconds; none while rank 0 tokenizes.",
                             bounds="[1, 31536000] seconds", change="nothing"),
    },
}  # fmt: skip
# Another value of these does not make a different run.
HARMLESS = (
    "dataloader_persistent_workers", "dataloader_pin_memory", "hub_token", "log_level_replica", "log_on_each_node",
    "logging_first_step", "resume_from_checkpoint", "trackio_space_id",
)  # fmt: skip
# How an upload is made.
OF_UPLOADS = ("hub_always_push", "hub_private_repo", "hub_revision", "hub_strategy")
# Flags of parts of Hugging Face's trainer that the suite has its own for.
OF_EVALUATION = (
    "sortish_sampler", "batch_eval_metrics", "prediction_loss_only", "label_names", "include_for_metrics",
    "eval_do_concat_batches", "eval_use_gather_object", "bf16_full_eval", "fp16_full_eval",
)  # fmt: skip
OF_BATCHES = (
    "dataloader_drop_last", "dataloader_multiprocessing_context", "dataloader_in_order", "length_column_name",
    "remove_unused_columns",
)  # fmt: skip
# Settings of `--accelerator_config` for Hugging Face's batches.
OF_ACCELERATOR_BATCHES = ("split_batches", "dispatch_batches", "even_batches", "use_seedable_sampler")
# What a flag may need of Hugging Face's, and no run has, with the reason.
MISSING_PARTS = {
    "projected gradients": "the optimizers that project gradients (GaLore, APOLLO) are refused",
    "Hugging Face's batches": "batches are made by our own loop, each row once an epoch",
    "Hugging Face's losses": "a loss that is not finite is always reported",
    "Hugging Face's project": "the project is that of --wandb_project",
    "Hugging Face's signals": "SIGTERM writes a checkpoint without it",
    "Hugging Face's Trackio": "a run is sent to --trackio_space_id, or stays in its own directory",
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
    "optim_target_modules": facts(needs="projected gradients"),
    "ddp_bucket_cap_mb": facts(bounds="[1, inf) MB"),
    "local_rank": facts(bounds="[0, inf) a rank; -1: not distributed", also=-1, change="nothing"),
    "predict_with_generate": facts(marks="generates", needs="Hugging Face's evaluation"),
    "generation_config": facts(marks="generates"),
    "enable_jit_checkpoint": facts(change="nothing", needs="Hugging Face's signals"),
    "project": facts(change="nothing", needs="Hugging Face's project"),
    "trackio_bucket_id": facts(change="nothing", needs="Hugging Face's Trackio"),
    "trackio_static_space_id": facts(change="nothing", needs="Hugging Face's Trackio"),
    **dict.fromkeys(HARMLESS, facts(change="nothing")),
    **dict.fromkeys(OF_UPLOADS, facts(change="nothing", needs="an upload")),
    **dict.fromkeys(OF_EVALUATION, facts(needs="Hugging Face's evaluation")),
    **dict.fromkeys(OF_BATCHES, facts(needs="Hugging Face's batches")),
}


def missing_parts(script: str, changed: Mapping) -> dict[str, str]:
    """What flags of both scripts need (their field's `needs`) and a run lacks, with the reason.

    >>> missing_parts("fine_tune_t5", {"report_to": ["wandb"]})["evaluations by steps"]
    'it belongs to --eval_strategy steps, and this is epoch'

    Args:
      changed: the flags whose value differs from the default.
    """
    missing = dict(MISSING_PARTS)
    if not changed.get("push_to_hub"):
        missing["an upload"] = "there is no --push_to_hub"
    trackers = tracker_names(changed.get("report_to"))
    if not trackers:
        missing["a tracker"] = "--report_to names no tracker"
    if "aim" not in trackers:
        missing["Aim"] = "--report_to does not name aim"
    evaluations = interval_of("eval_strategy", script, changed)
    if evaluations != "steps":
        missing["evaluations by steps"] = f"it belongs to --eval_strategy steps, and this is {evaluations}"
    logs = interval_of("logging_strategy", script, changed)
    # transformers evaluates every --logging_steps where no --eval_steps are given.
    is_of_evaluations = evaluations == "steps" and changed.get("eval_steps") == changed.get("logging_steps")
    if logs != "steps" and not is_of_evaluations:
        missing["logs by steps"] = f"it belongs to --logging_strategy steps, and this is {logs}"
    return missing


def interval_of(flag: str, script: str, changed: Mapping) -> str:
    """The value of a flag that is no, steps or epoch.

    >>> interval_of("eval_strategy", "pre_train_t5", {})
    'steps'
    """
    return IntervalStrategy(changed.get(flag, flags_of(script)[flag]["default"])).value


def idle_accelerator_settings(changed: Mapping) -> dict[str, str]:
    """`--accelerator_config`, with the reason why it has no effect, if it has settings of Hugging Face's batches."""
    config = changed.get("accelerator_config")
    if config is None:
        return {}
    defaults = type(config)()
    idle_names = [name for name in OF_ACCELERATOR_BATCHES if getattr(config, name) != getattr(defaults, name)]
    if not idle_names:
        return {}
    reason = MISSING_PARTS["Hugging Face's batches"]
    return {"accelerator_config": f"{', '.join(idle_names)}: {reason}"}
