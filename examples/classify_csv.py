# %% [markdown]
# # Rows of a CSV file into classes
#
# `reviews.csv` has 3,000 short reviews with a verdict. A tiny T5 with random weights learns them in a minute or two on
# two cores; with a network, `model="google/t5-v1_1-small"` takes a trained one.

# %%
import os
from pathlib import Path

from t5suite import FineTuner

HERE = Path(__file__).parent if "__file__" in globals() else Path()
RUNS = Path(os.environ.get("T5SUITE_EXAMPLE_RUNS", "runs/examples"))
STEPS = int(os.environ.get("T5SUITE_EXAMPLE_STEPS", "1200"))

print(*(HERE / "reviews.csv").read_text(encoding="utf-8").splitlines()[:3], sep="\n")

# %% [markdown]
# Columns are named, label words listed; a tenth of the rows is held out and never trained on. Every flag of
# `fine_tune_t5.py` is a keyword.

# %%
tuner = FineTuner(
    data=HERE / "reviews.csv",
    text_column="review",
    target_column="verdict",
    labels=["negative", "positive"],
    validation_split=0.1,
    optimizer="adafactor",
    learning_rate=1.5e-2,
    schedule="linear",
    warmup_steps=0.05,
    max_steps=STEPS,
    eval_strategy="steps",
    eval_steps=STEPS // 4,
    train_sampling_strategy="random",
    output_dir=RUNS / "classify_csv",
    quiet=True,
)
print(tuner)

# %%
results = tuner.train()
for line in tuner.history:
    if "eval/accuracy" in line:
        print(f"step {line['step']}: accuracy {line['eval/accuracy']:.1f}")
print(f"held-out reviews: accuracy {results['tasks']['reviews']['accuracy']:.1f}")

# %% [markdown]
# The model is asked with texts as they stand in the column, and says how sure it is.

# %%
NEW = ["The lamp was very pleasant.", "All in all, the parcel was horrible.", "The shop was not bad."]
for text, shares in zip(NEW, tuner.predict_labels(NEW), strict=True):
    verdict = max(shares, key=shares.get)
    print(f"{text} -> {verdict} ({100 * shares[verdict]:.0f}%)")

# %% [markdown]
# What is saved knows its task: a folder is all that is needed to ask it again, here or with `t5suite predict`.

# %%
folder = tuner.save(RUNS / "reviews_model")
again = FineTuner(folder)
assert again.predict(NEW) == tuner.predict(NEW)
print(f"{folder.name}: {', '.join(again.predict(NEW))}")
