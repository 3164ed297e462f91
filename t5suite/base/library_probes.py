"""Probes: tests of milliseconds for private parts of libraries whose source says little, or changes often.

    >>> probe_schedulers()                       # None: as our code needs it

Each returns what is wrong, as the end of a sentence that begins with the library's name and version.
"""


def probe_schedulers() -> str | None:
    """The counters of torch's schedulers, which a restart with another schedule sets."""
    import torch

    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
    optimizer.step()
    scheduler.step()
    state = scheduler.state_dict()
    expected = {"last_epoch": 1, "_last_lr": [0.5], "_step_count": 2}
    if {name: state.get(name) for name in expected} != expected:
        return f"torch {torch.__version__}: a scheduler's state is {state}, without {expected}"
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


def probe_fused_updates() -> str | None:
    """torch's operations on lists of tensors, and its fused AdamW: one update against plain arithmetic."""
    import torch

    weights = [torch.tensor([1.0, 2.0])]
    gradients = [torch.tensor([0.5, -0.25])]
    torch._foreach_mul_(weights, 2.0)
    torch._foreach_add_(weights, gradients, alpha=-1.0)
    torch._foreach_lerp_(gradients, weights, 0.5)
    norms = torch._foreach_norm(weights)
    results = [*weights[0].tolist(), *gradients[0].tolist(), norms[0].item()]
    expected = [1.5, 4.25, 1.0, 2.0, (1.5**2 + 4.25**2) ** 0.5]
    if any(abs(result - value) > 1e-6 for result, value in zip(results, expected, strict=True)):
        return f"torch {torch.__version__}: operations on lists of tensors give {results}, not {expected}"
    weight = [torch.tensor([1.0])]
    first = [torch.zeros(1)]
    second = [torch.zeros(1)]
    torch._fused_adamw_(
        weight,
        [torch.tensor([0.5])],
        first,
        second,
        [],
        [torch.tensor(1.0)],
        lr=0.1,
        beta1=0.9,
        beta2=0.999,
        weight_decay=0.0,
        eps=0.0,
        amsgrad=False,
        maximize=False,
    )
    if abs(weight[0].item() - 0.9) > 1e-6:  # the first step of Adam is the learning rate
        return f"torch {torch.__version__}: a step of its fused AdamW gives {weight[0].item()}, not 0.9"
    return None


def probe_row_fingerprints() -> str | None:
    """The fingerprint that `datasets` keeps of a data set: another one for other rows."""
    import datasets

    rows = datasets.Dataset.from_dict({"text": ["a", "b"]})
    fingerprints = [getattr(part, "_fingerprint", None) for part in (rows, rows.select([1]), rows.select([0]))]
    texts = {text for text in fingerprints if isinstance(text, str)}
    if len(texts) != 3:
        return f"datasets {datasets.__version__}: the fingerprints of three data sets are {fingerprints}"
    return None


def probe_fake_tensors() -> str | None:
    """Tensors without values, whose storages the estimate of memory counts."""
    import torch
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        values = torch.ones(1000)
        total = values + values
    if total.shape != (1000,) or total.untyped_storage().nbytes() != 4000:
        return f"torch {torch.__version__}: 1000 numbers take {total.untyped_storage().nbytes()} bytes, not 4000"
    return None
