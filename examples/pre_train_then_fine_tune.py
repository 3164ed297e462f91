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
# `mini/sentiment` comes with the package; `glue/sst2` and the others are named in the same way.

# %%
accuracy = {}
for name, model in {"random weights": None, "pre-trained": CHECKPOINT}.items():
    tuner = FineTuner(
        model,
        "mini/sentiment",
        optimizer="adamw",
        learning_rate=1e-3,
        schedule="linear",
        warmup_steps=0.1,
        max_steps=STEPS,
        eval_strategy="steps",
        eval_steps=max(1, STEPS // 2),
        eval_method="score",
        train_sampling_strategy="random",
        output_dir=RUNS / f"sentiment, {name}".replace(", ", "-").replace(" ", "-"),
        quiet=True,
    )
    accuracy[name] = tuner.train()["tasks"]["sentiment"]["accuracy"]
    losses = [line["train/loss"] for line in tuner.history if "train/loss" in line]
    print(f"{name}: accuracy {accuracy[name]:.1f}, training loss at the end {losses[-1]:.3f}")

# %%
print(f"pre-training is worth {accuracy['pre-trained'] - accuracy['random weights']:+.1f} points")
print(tuner.predict(["The garden was very pleasant.", "The soup was horrible."]))
