"""Probes: tests of milliseconds for private parts of libraries whose source says little, or changes often.

    >>> probe_schedulers()                       # None: as our code needs it

Each returns what is wrong, as a sentence that begins with the library's name and version. A probe that calls private
functions stands beside the code that calls them (`optim.adamw_rms`); `library_entries` names all of them.
"""


def probe_schedulers() -> str | None:
    """The counters of torch's schedulers, which a restart with another schedule sets, and what watchers have seen."""
    import torch
    import transformers

    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
    optimizer.step()
    scheduler.step()
    state = scheduler.state_dict()
    expected = {"last_epoch": 1, "_last_lr": [0.5], "_step_count": 2}
    if {name: state.get(name) for name in expected} != expected:
        return f"torch {torch.__version__}: a scheduler's state is {state}, without {expected}"
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    missing_names = {"last_epoch", "best", "num_bad_epochs", "cooldown_counter", "_last_lr"} - vars(plateau).keys()
    if missing_names:
        return f"torch {torch.__version__}: ReduceLROnPlateau has no {', '.join(sorted(missing_names))}"
    greedy_state = transformers.optimization.GreedyLR(optimizer, smooth=True).state_dict()
    seen_by_greedy = {"last_epoch", "best", "num_bad_epochs", "num_good_epochs", "_last_lr", "_streaming_avg"}
    missing_names = seen_by_greedy - greedy_state.keys()
    if missing_names:
        return f"transformers {transformers.__version__}: GreedyLR has no {', '.join(sorted(missing_names))}"
    return None


def probe_modules() -> str | None:
    """The tables of a torch module, from which a copy without weights is made."""
    import torch

    module = torch.nn.BatchNorm1d(2)
    module.register_buffer("unsaved", torch.zeros(1), persistent=False)
    tables = {
        "_parameters": {"weight", "bias"},
        "_buffers": {"running_mean", "running_var", "num_batches_tracked", "unsaved"},
        "_modules": set(),
        "_non_persistent_buffers_set": {"unsaved"},
        "_forward_hooks": set(),
        "_forward_pre_hooks": set(),
    }
    for name, keys in tables.items():
        if set(vars(module).get(name, ["missing"])) != keys:
            return f"torch {torch.__version__}: {name} of a module is {vars(module).get(name)!r:.80}"
    return None


def probe_special_tokens() -> str | None:
    """Where transformers has the special tokens of a class, and how it marks settings that it has copied from them."""
    import transformers

    library = f"transformers {transformers.__version__}"
    config = transformers.T5Config()
    if getattr(transformers.T5Config, "eos_token_id", None) != config.eos_token_id:
        return f"{library}: the class T5Config has another eos_token_id than its configurations"
    copied_settings = transformers.GenerationConfig.from_model_config(config).to_diff_dict()
    if copied_settings.get("_from_model_config") is not True:
        return f"{library}: settings of generation that are copied from a configuration are not marked"
    return None


def probe_background_uploads() -> str | None:
    """Whether the hub's client uploads in the background by its method `run_as_future`, which ours replaces."""
    import huggingface_hub

    class Client(huggingface_hub.HfApi):
        def run_as_future(self, *args, **kwargs):
            return "by its method"

    if Client().upload_folder(repo_id="owner/name", folder_path=".", run_as_future=True) != "by its method":
        return f"huggingface_hub {huggingface_hub.__version__}: upload_folder does not call run_as_future"
    return None


def probe_memory_snapshots() -> str | None:
    """The arguments of the functions that record what is allocated on a GPU, and write it down."""
    import inspect

    import torch

    memory = torch.cuda.memory
    expected = {
        "_record_memory_history": ({"enabled": None}, {"max_entries": 1}),
        "_dump_snapshot": ({"filename": ""},),
    }
    for name, calls in expected.items():
        function = getattr(memory, name, None)
        if function is None:
            return f"torch {torch.__version__}: torch.cuda.memory has no {name}"
        for arguments in calls:
            try:
                inspect.signature(function).bind(**arguments)
            except TypeError as error:
                return f"torch {torch.__version__}: {name}: {error}"
    return None
