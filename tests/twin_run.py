"""A process with two made devices: `twin_run.py train KIND` for a few steps, or `twin_run.py SCRIPT FLAG ...`."""

import importlib
import json
import sys

import torch

from t5suite.models.loading import load_model, load_tokenizer
from t5suite.models.placement import by_device, place_model

SOURCES_BS = torch.arange(12).reshape(2, 6) + 3
TARGETS_BT = torch.arange(8).reshape(2, 4)
STEPS = 3


def make_model(tied: bool):
    torch.manual_seed(0)
    overrides = None if tied else "tie_word_embeddings=False"
    return load_model(None, tokenizer=load_tokenizer(None), dropout_rate=0.0, config_overrides=overrides).train()


def losses_of(model, device) -> list[float]:
    """The losses of a few updates, batches on `device`."""
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-3), []
    for _ in range(STEPS):
        batch = {
            "input_ids": SOURCES_BS,
            "attention_mask": torch.ones_like(SOURCES_BS),
            "decoder_input_ids": TARGETS_BT,
        }
        logits_BTV = model(**{name: tensor.to(device) for name, tensor in batch.items()}).logits
        targets = TARGETS_BT.flatten().to(device)
        loss = torch.nn.functional.cross_entropy(logits_BTV.flatten(0, 1), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def compare(tied: bool, **flags) -> dict:
    """A model on two devices beside the same one in one piece."""
    from twin_devices import Twin, twin_devices

    whole, spread = make_model(tied), make_model(tied)
    expected = losses_of(whole, "cpu")
    with twin_devices():
        place_model(spread, device=torch.device("twin:0"), **flags)
        losses = losses_of(spread, "twin:0")
        places = {name: str(parameter.device) for name, parameter in spread.named_parameters()}
        text = spread.generate(input_ids=SOURCES_BS.to("twin:0"), max_new_tokens=4).tolist()
        held = [p.held if isinstance(p, Twin) else p for p in spread.parameters()]
    differences = [(a - b).abs().max().item() for a, b in zip(whole.parameters(), held)]
    same = text == whole.generate(input_ids=SOURCES_BS, max_new_tokens=4).tolist()
    return {
        "expected": expected, "losses": losses, "places": places, "difference": max(differences), "same_text": same,
        "by_device": by_device(spread),
    }  # fmt: skip


def trial() -> dict:
    size = sum(4 * parameter.numel() for parameter in make_model(tied=False).parameters())
    memory = f"0={int(0.7 * size)},1={int(0.7 * size)}"
    return {
        "tied": compare(True, device_map="balanced", max_memory=memory),
        "untied": compare(False, device_map="sequential", max_memory=memory),
        "embedding": compare(False, embedding_on_cpu=True),
    }


if __name__ == "__main__":
    if sys.argv[1] == "trial":
        print(json.dumps(trial()))
    else:
        from twin_devices import twin_devices

        script = importlib.import_module(sys.argv[1])
        with twin_devices():
            script.main(sys.argv[2:])
