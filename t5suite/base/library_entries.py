"""The parts of libraries that our code stands on: one entry for each piece of code of ours.

    >>> ENTRIES["diverse_beams"].otherwise
    'refuse'

An entry lists the functions, classes and values by name, with their direct callers and the functions that they call,
one level deep. `t5suite.base.libraries` compares them with those of tested versions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

STOCK, REFUSE = "stock", "refuse"


@dataclass(frozen=True)
class Entry:
    """One piece of our code, and what it stands on.

    Attributes:
      purpose: what a user loses without it, as the subject of a message: "beams in groups".
      otherwise: STOCK or REFUSE.
      sources: `{module: names}`, the names separated by blanks: `{"transformers.trainer": "Trainer._run_epoch"}`.
      probe: `module:function`; it returns what is wrong, or None; for what has no source to compare.
      library: the library of a probe, where there are no sources.
      attributes: private attributes of the libraries' objects that our code reads or writes, which `sources` and
        `probe` cover; a test finds those that no entry lists.
    """

    purpose: str
    otherwise: str
    sources: Mapping[str, str] = field(default_factory=dict)
    probe: str | None = None
    attributes: str = ""
    library: str = "torch"

    @property
    def names(self) -> dict[str, list[str]]:
        """`{module: names}`."""
        return {module: names.split() for module, names in self.sources.items()}


def _of_each_t5(*names: str, families=("t5", "mt5", "umt5")) -> dict[str, str]:
    """The same classes in the modules of T5, mT5 and umT5.

    >>> _of_each_t5("Stack.forward", families=("mt5",))
    {'transformers.models.mt5.modeling_mt5': 'MT5Stack.forward'}
    """
    return {
        f"transformers.models.{family}.modeling_{family}": " ".join(f"{family.upper()}{name}" for name in names)
        for family in families
    }


CONFIGURATIONS = {
    f"transformers.models.{family}.configuration_{family}": f"{family.upper()}Config"
    for family in ("t5", "mt5", "umt5")
}
HOOKS = {"accelerate.hooks": "add_hook_to_module remove_hook_from_module"}
MASKS = {"transformers.masking_utils": "create_causal_mask create_bidirectional_mask _preprocess_mask_arguments"}
BLOCKS = ("Attention", "LayerSelfAttention", "LayerCrossAttention", "Block", "Stack.forward")
DECODER = (*BLOCKS, "LayerNorm", "LayerFF", "ForConditionalGeneration.forward")

TRAINER = """Trainer.__init__ Trainer.create_accelerator_and_postprocess Trainer.train Trainer._inner_training_loop
    Trainer._init_training_state Trainer._prepare_for_training Trainer._run_epoch Trainer._finalize_training
    Trainer.training_step Trainer.compute_loss Trainer._maybe_log_save_evaluate Trainer.get_batch_samples
    Trainer._get_num_items_in_batch Trainer._get_grad_norm Trainer._clip_grad_norm Trainer._evaluate
    Trainer._save_checkpoint Trainer._determine_best_metric Trainer._save_optimizer_and_scheduler
    Trainer._load_best_model Trainer._load_rng_state Trainer.save_model Trainer.log
    Trainer.store_flos Trainer.create_optimizer Trainer.create_scheduler Trainer.init_hf_repo Trainer.push_to_hub
    Trainer._finish_current_push"""

# By name. Those with the names of `reference_code.FAST_PATHS` are STOCK (`libraries.unproved_paths`).
ENTRIES = {
    "quick_attention": Entry(
        "the quick attention of T5",
        STOCK,
        {
            **_of_each_t5(*BLOCKS, families=("t5", "mt5")),
            **MASKS,
            "transformers.integrations.sdpa_attention": "sdpa_attention_forward",
        },
    ),
    "quick_decoding": Entry(
        "T5's own greedy decoder",
        STOCK,
        {
            **_of_each_t5(*DECODER),
            **CONFIGURATIONS,
            **MASKS,
            **HOOKS,
            "transformers.generation.utils": "GenerationMixin._sample GenerationMixin.prepare_inputs_for_generation",
        },
        attributes="_hf_hook",
    ),
    "candidate_trees": Entry(
        "candidates as one tree",
        STOCK,
        {**_of_each_t5(*DECODER), **CONFIGURATIONS, **MASKS, **HOOKS},
        attributes="_hf_hook",
    ),
    "loss_chunks": Entry(
        "the loss in chunks",
        STOCK,
        {**_of_each_t5("ForConditionalGeneration.forward", "Stack.forward"), **CONFIGURATIONS, **HOOKS},
        attributes="_hf_hook",
    ),
    "quick_dropout": Entry("quick dropout on CPUs", STOCK, {"torch.nn.modules.dropout": "_DropoutNd Dropout"}),
    "flag_parsing": Entry(
        "parsing of flags",
        REFUSE,
        {
            "transformers.hf_argparser": """HfArgumentParser._parse_dataclass_field
                HfArgumentParser._add_dataclass_arguments"""
        },
    ),
    "process_state": Entry(
        "several runs in one process",
        REFUSE,
        {
            "accelerate.state": "SharedDict PartialState.__init__ AcceleratorState.__init__",
            "transformers.integrations.deepspeed": """_hf_deepspeed_config_weak_ref set_hf_deepspeed_config
                unset_hf_deepspeed_config is_deepspeed_zero3_enabled""",
            "transformers.training_args": "TrainingArguments.n_gpu TrainingArguments._setup_devices",
            "huggingface_hub.constants": """HF_HUB_OFFLINE is_offline_mode HF_HUB_ETAG_TIMEOUT
                HF_HUB_DOWNLOAD_TIMEOUT""",
            "datasets.config": "HF_HUB_OFFLINE",
        },
        attributes="_shared_state",
    ),
    "model_loading": Entry(
        "loading and saving of whole models",
        REFUSE,
        {
            "transformers.conversion_mapping": """get_model_conversion_mapping extract_weight_conversions_for_model
                get_checkpoint_conversion_mapping""",
            "transformers.core_model_loading": """convert_and_load_state_dict_in_model revert_weight_conversion
                rename_source_key WeightTransform WeightRenaming WeightConverter set_param_for_module""",
            "transformers.modeling_utils": """LoadStateDictConfig PreTrainedModel.from_pretrained
                PreTrainedModel.save_pretrained PreTrainedModel._from_config PreTrainedModel.tie_weights
                PreTrainedModel.get_expanded_tied_weights_keys PreTrainedModel.post_init PreTrainedModel._init_weights
                PreTrainedModel._initialize_weights PreTrainedModel._initialize_missing_keys
                PreTrainedModel._adjust_missing_and_unexpected_keys PreTrainedModel.resize_token_embeddings
                PreTrainedModel._no_split_modules PreTrainedModel._keys_to_ignore_on_load_unexpected""",
            "transformers.configuration_utils": "PreTrainedConfig._attn_implementation",
            "transformers.models.auto.auto_factory": "_BaseAutoModelClass _LazyAutoMapping",
            **_of_each_t5("PreTrainedModel._init_weights", "ForConditionalGeneration._tied_weights_keys"),
        },
        "t5suite.base.library_probes:probe_modules",
        "_is_hf_initialized _modules _forward_hooks _forward_pre_hooks",
    ),
    "training_loop": Entry(
        "training with transformers' Trainer",
        REFUSE,
        {
            "transformers.trainer": TRAINER,
            "transformers.trainer_seq2seq": "Seq2SeqTrainer.__init__",
            "transformers.trainer_callback": "ExportableState CallbackHandler.call_event",
            "transformers.integrations.neftune": "neftune_post_forward_hook",
            "accelerate.accelerator": "Accelerator.clip_grad_norm_ Accelerator.backward Accelerator.no_sync",
        },
        "t5suite.base.library_probes:probe_schedulers",
        "_tr_loss _last_lr _streaming_avg _initial_global_step _loss_shifts_labels _created_lr_scheduler "
        "_globalstep_last_logged _total_loss_scalar",
    ),
    "row_fingerprints": Entry(
        "the fingerprints of rows (datasets)",
        REFUSE,
        {},
        "t5suite.data.rows.fingerprints:probe_fingerprints",
        "_fingerprint",
        library="datasets",
    ),
    "packed_rows": Entry(
        "training on packed rows",
        REFUSE,
        {
            **_of_each_t5("Attention.forward", "Stack.forward", "ForConditionalGeneration.forward"),
            "transformers.masking_utils": f"{MASKS['transformers.masking_utils']} sdpa_mask eager_mask",
        },
    ),
    "fused_updates": Entry(
        "the optimizer adamw_rms",
        REFUSE,
        {},
        "t5suite.optim.adamw_rms:probe_updates",
        """_foreach_add_ _foreach_addcmul_ _foreach_clamp_min_ _foreach_div _foreach_lerp_ _foreach_mul_ _foreach_norm
        _foreach_sqrt _foreach_sub_ _fused_adamw_""",
    ),
    "listed_updates": Entry(
        "the optimizer adafactor",
        REFUSE,
        {},
        "t5suite.optim.adafactor:probe_updates",
        """_foreach_add_ _foreach_addcmul_ _foreach_clamp_min_ _foreach_div_ _foreach_mul _foreach_mul_ _foreach_norm
        _foreach_rsqrt _foreach_sub_""",
    ),
    "fsdp": Entry(
        "training under FSDP",
        REFUSE,
        {
            "accelerate.utils.fsdp_utils": """fsdp2_prepare_model fsdp2_prepare_auto_wrap_policy
                fsdp2_load_full_state_dict""",
            "accelerate.accelerator": "Accelerator._prepare_fsdp2 Accelerator.get_state_dict",
        },
    ),
    "cpu_sharding": Entry(
        "FSDP or DeepSpeed on CPUs", REFUSE, {"accelerate.state": "PartialState.__init__ AcceleratorState.__init__"}
    ),
    "deepspeed": Entry(
        "training under DeepSpeed",
        REFUSE,
        {
            "deepspeed.runtime.engine": "DeepSpeedEngine._take_model_step DeepSpeedEngine.step",
            "deepspeed.runtime.bf16_optimizer": "BF16_Optimizer.step",
            "deepspeed.runtime.zero.stage_1_and_2": "DeepSpeedZeroOptimizer.step DeepSpeedZeroOptimizer._update_scale",
            "deepspeed.runtime.zero.stage3": "DeepSpeedZeroOptimizer_Stage3.step",
            "deepspeed.runtime.fp16.loss_scaler": "DynamicLossScaler",
            "deepspeed.runtime.zero.partition_parameters": "GatheredParameters Init._convert_to_deepspeed_param",
            "accelerate.utils.deepspeed": "DeepSpeedEngineWrapper DeepSpeedOptimizerWrapper",
            "transformers.integrations.deepspeed": "deepspeed_init deepspeed_load_checkpoint",
        },
    ),
    "adapters": Entry(
        "adapters (PEFT)",
        REFUSE,
        {
            "peft.auto": "MODEL_TYPE_TO_PEFT_MODEL_MAPPING",
            "peft.tuners.tuners_utils": "BaseTunerLayer",
            "peft.utils.other": "AuxiliaryTrainingWrapper TrainableTokensWrapper",
            "peft.utils.constants": """TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
                TRANSFORMERS_MODELS_TO_IA3_TARGET_MODULES_MAPPING""",
            "peft.utils.save_and_load": "get_peft_model_state_dict set_peft_model_state_dict",
        },
    ),
    "prompts": Entry(
        "adapters of virtual tokens and prefixes (PEFT)",
        REFUSE,
        {
            "peft.peft_model": """PeftModel.get_prompt PeftModel._adjust_prompt_learning_kwargs
                PeftModelForSeq2SeqLM.forward PeftModelForSeq2SeqLM.generate
                PeftModelForSeq2SeqLM.prepare_inputs_for_generation PeftModelForCausalLM.forward
                PeftModelForCausalLM.generate PeftModelForCausalLM.prepare_inputs_for_generation""",
            "transformers.generation.utils": "GenerationMixin.generate GenerationMixin.prepare_inputs_for_generation",
        },
    ),
    "merging": Entry(
        "merging of an adapter into its model (PEFT)",
        REFUSE,
        {
            "peft.tuners.tuners_utils": "BaseTuner.merge_and_unload BaseTuner._unload_and_optionally_merge",
            "peft.tuners.lora.layer": "Linear.merge Linear.get_delta_weight Embedding.merge Embedding.get_delta_weight",
            "peft.tuners.lora.variants": "DoraLinearVariant.merge_safe",
            "peft.tuners.ia3.layer": "Linear.merge",
        },
    ),
    "diverse_beams": Entry(
        "beams in groups (--num_beam_groups)",
        REFUSE,
        {
            "transformers.generation.utils": """GenerationMixin.generate GenerationMixin.prepare_inputs_for_generation
                GenerationMixin._update_model_kwargs_for_generation GenerationMixin._expand_inputs_for_generation
                GenerationMixin._prepare_special_tokens"""
        },
    ),
    "tracker_callbacks": Entry(
        "trackers through transformers' callbacks",
        REFUSE,
        {
            "transformers.integrations.integration_utils": """rewrite_logs INTEGRATION_TO_CALLBACK CometCallback
                MLflowCallback DagsHubCallback NeptuneCallback ClearMLCallback DVCLiveCallback SwanLabCallback"""
        },
        attributes="_async_log _experiment",
    ),
    "ctranslate2_export": Entry(
        "export to CTranslate2",
        REFUSE,
        {
            "ctranslate2.converters.transformers": "_MODEL_LOADERS ModelLoader T5Loader BartLoader",
            "ctranslate2.converters.converter": "Converter.convert",
        },
    ),
    "memory_estimate": Entry(
        "the estimate of memory",
        REFUSE,
        {},
        "t5suite.models.rehearsal:probe_live_bytes",
        "_subclasses _python_dispatch",
    ),
    "special_tokens": Entry(
        "the tokens with which answers start and end",
        REFUSE,
        {},
        "t5suite.base.library_probes:probe_special_tokens",
        "_from_model_config",
        library="transformers",
    ),
    "background_uploads": Entry(
        "uploads during training (--push_to_hub)",
        REFUSE,
        {},
        "t5suite.base.library_probes:probe_background_uploads",
        library="huggingface_hub",
    ),
    "memory_snapshots": Entry(
        "the snapshot of a GPU's memory (--profile)",
        REFUSE,
        {},
        "t5suite.base.library_probes:probe_memory_snapshots",
        "_record_memory_history _dump_snapshot",
    ),
}
