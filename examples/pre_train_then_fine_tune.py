# %% [markdown]
# # Pre-training, then fine-tuning
#
# The same tiny T5 is fine-tuned twice with the same rows, updates and seed: from random weights, and after a minute of
# span corruption on the bundled text. Both scripts are there as functions, and `FineTuner` takes any checkpoint.

# %%
import os
from pathlib import Path

import pre_train_t5
from t5suite import FineTuner

RUNS = Path(os.environ.get("T5SUITE_EXAMPLE_RUNS", "runs/examples"))
STEPS = int(os.environ.get("T5SUITE_EXAMPLE_STEPS", "500"))

# %%
CHECKPOINT = RUNS / "span_corruption"
pre_trained = pre_train_t5.main(
    ["mini_pre_train.yaml", f"--max_steps={STEPS}", "--eval_strategy=no", "--save_strategy=no", "--disable_tqdm=True",
     f"--output_dir={CHECKPOINT}"]
)  # fmt: skip
print(f"pre-trained: {pre_trained['tasks']['pre_train']['nll']:.2f} nats a token")

# %% [markdown]
# `mini/similarity` comes with the package: two sentences, and how alike they are, from 0.0 to 5.0. So few updates teach
# little of it, which the loss of the held-out rows shows sooner than their score; `glue/stsb` is named in the same way.

# %%
losses = {}
for name, model in {"random weights": None, "pre-trained": CHECKPOINT}.items():
    tuner = FineTuner(
        model,
        "mini/similarity",
        optimizer="adamw",
        learning_rate=2e-3,
        schedule="linear",
        warmup_steps=0.1,
        max_steps=STEPS // 2,
        eval_strategy="steps",
        eval_steps=max(1, STEPS // 8),
        metric_for_best_model="loss",
        max_eval_samples=200,
        train_sampling_strategy="random",
        output_dir=RUNS / f"similarity, {name}".replace(", ", "-").replace(" ", "-"),
        quiet=True,
    )
    tuner.train()
    losses[name] = [line["eval/loss"] for line in tuner.history if "eval/loss" in line]
    print(f"{name}: held-out loss {', '.join(f'{loss:.3f}' for loss in losses[name])} nats a token")

# %%
print(f"pre-training is worth {losses['random weights'][-1] - losses['pre-trained'][-1]:+.3f} nats a token")
sentences = {"sentence1": "My wife must return the red sofa.", "sentence2": "My spouse will return the red couch."}
print(f"as alike as {tuner.predict(sentences)}")
