"""docs/reproducing.md: the shipped recipes with the targets that their first lines give.

>>> recipe_facts(Path("recipes/mini_pre_train.yaml"))["target"]
'held-out NLL 1.97, excluding sentinels 2.52; a unigram model of the same targets would have 4.27 and 4.59 (the text of before 2026-11-28; not measured since).'
"""

from pathlib import Path

from docs.builders.markdown import MADE, code, table
from t5suite.base.files import shipped_folder


def page() -> str:
    """The page's text."""
    rows = []
    for path in sorted(shipped_folder("recipes").glob("*.yaml")):
        facts = recipe_facts(path)
        rows.append([code(facts["command"]), facts["what"], facts["target"]])
    recipes = table(["command", "what it is", "target"], rows)
    return "\n\n".join([MADE.format(sources="recipes/*.yaml"), INTRODUCTION, recipes, REST]) + "\n"


def recipe_facts(path: Path) -> dict[str, str]:
    """A recipe's command, what it is, and its target, from the comment at its top.

    Raises:
      ValueError: the comment lacks one of them.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = [line.removeprefix("#").strip() for line in lines if line.startswith("# ")]
    comment = [line for line in comment if not line.startswith("yaml-language-server")]
    command, text = comment[0], " ".join(comment[1:])
    what, _, target = text.partition("Target")
    if not (command.startswith("python ") and what and target):
        raise ValueError(f"{path}: the comment at the top must hold a command, what it is, and `Target: ...`")
    return {"command": command, "what": what.strip(), "target": target.lstrip(":, ")}


INTRODUCTION = """# Reproducing

What this suite promises about a number: a record of where it came from, and the same number from the same command.

## Recipes

A recipe is a configuration file that ships with the suite and is found by its name; its first lines hold its command
and the published figure that it aims at, with the source. The table is generated from these lines. Targets are others'
figures, not our results: those are, with their commands, in the README and in [log.md](log.md)."""

REST = """`t5_single_task.yaml` takes any task: `--benchmark super_glue --dataset_name cb`. Published scores of T5, all sizes,
are next to yours in `t5suite report RUN --size base` ([results](results.md#a-report)).

## The same run again

* **Seeds.** `--seed` decides weights, dropout, which rows a subset keeps, and the order of batches (`--data_seed` only
  the order). An example's randomness depends on (seed, index) alone: workers, ranks and restarts do not change it.
* **Bits.** On the same hardware, number of processes and versions, a run gives the same bytes: `results.json` has no
  timings and no paths in it, so two runs can be compared with `cmp`. This includes a run that was stopped and resumed.
* **Numbers.** Another number of processes, or batch 8x1 instead of 4x2, gives the same loss and gradient up to 2e-6
  (float32, dropout 0); over a whole training such differences grow, as they do between two GPUs.

```console
$ python fine_tune_t5.py recipes/mini.yaml --max_steps 20 --eval_steps 10 --seed 7 --output_dir runs/once
...accuracy...
$ python fine_tune_t5.py recipes/mini.yaml --max_steps 20 --eval_steps 10 --seed 7 --output_dir runs/again
...accuracy...
$ cmp runs/once/results.json runs/again/results.json && cmp runs/once/model.safetensors runs/again/model.safetensors && echo the same bytes
the same bytes
```

## The manifest

`manifest.json` in every run's folder holds all resolved flags, the command, versions of the libraries, which code ran,
the commits of what came from the hub, the task's entry verbatim, origin, number and SHA-256 of the rows, the hardware,
and the timings. It answers the questions of a reproducibility checklist.

```console
$ python -c "import json; m = json.load(open('runs/once/manifest.json')); print(m['status'], m['settings']['seed'], sorted(m['versions'])[:2])"
finished 7 ...
```

**Which code.** `code_sha256` is a hash of the suite's modules as they ran; it is the same for a checkout and what is
installed from it. `commit`, and the diff of a tree that was not clean (`diff.patch`), are those of the git repository
that tracks these modules: a checkout that is used in place (`pip install -e .`). A package that was installed from a git
address has the commit that was installed. Other installations have no commit, whatever repository they are in.
`t5suite --version` and `t5suite doctor` show the same.

## Versions of libraries

Some of the suite's code stands on the inside of transformers, accelerate, PEFT or DeepSpeed. A run compares that inside
with the versions that were tested, in a hundredth of a second and without trusting a version's name:

* A fast path that was not tested with what is installed is off, and one line says which and why. Results are those of
  the library's own code.
* What has no plain way (training itself, whole models, packed rows, ...) is refused with exit code 78, the definition
  that changed, and the line that installs a tested version. `--allow_untested_libraries` goes on at your own risk; manifest
  and card name what was used so.

`t5suite doctor` shows both before a run. `libraries` in the manifest holds what was off; a run that resumes with other
libraries says so, because a fast path and plain code agree up to rounding only.

```console
$ python -c "import json; print(json.load(open('runs/once/manifest.json'))['libraries'])"
{'off': [], 'untested': {}}
```

## The hub's commits

A run looks up once which commit of a model, tokenizer or data set its revision names, and reads every file from that
commit, on all ranks. `hub` in the manifest has the revision that was asked for and the commit that was read:

```json
{
  "models": {"google/t5-v1_1-small": {"revision": null, "commit": "MODEL_COMMIT"}},
  "datasets": {
    "aps/super_glue": {"revision": null, "commit": "DATA_COMMIT"},
    "community-datasets/definite_pronoun_resolution": {"revision": null, "commit": "DPR_COMMIT"}
  }
}
```

Given back, they repeat the run, however far the hub has moved; the model card has the flags to copy:

```
t5suite fine_tune --model_name_or_path google/t5-v1_1-small \
    --benchmark super_glue --dataset_name all \
    --model_revision MODEL_COMMIT \
    --data_revision aps/super_glue=DATA_COMMIT,community-datasets/definite_pronoun_resolution=DPR_COMMIT
```

One revision is that of the only repository that the run reads, or a branch or tag that all of them have; a list names
repositories, and one that the run does not read is refused (78). A run that resumes reads the commits of its first
start. Without a network a revision is the commit that the local cache has for it, and a commit that the cache lacks is
refused. Texts of pre-training have their revision in their name, `hub:allenai/c4@COMMIT:en:train`. Folders and files
have no commit: for rows, the manifest has their hashes.

## Several seeds, and whether a difference is one

```console
$ t5suite sweep --grid learning_rate=1.5e-2,5e-3 --seeds 1,2 --workers 1 --sweep_dir runs/sweeps/seeds -- python fine_tune_t5.py recipes/mini.yaml --max_steps 8 --eval_steps 8 --max_eval_samples 40 --use_cpu
...mean...
$ t5suite compare runs/sweeps/seeds/trials/0000 runs/sweeps/seeds/trials/0002
...
```

The grid's table has means and sample standard deviations over the seeds; `t5suite compare` compares two runs
on the same rows, with a paired bootstrap or McNemar's test and the examples that flipped. On a validation split of
RTE's size (277 rows) one row is 0.36 points, and one seed is weak evidence.

## What decides a published score

Scores of the same model in two papers often differ for these reasons; here each is a named setting.

| what | here |
|---|---|
| validation or test server; which split chose the checkpoint | `chosen on these rows` in the table; `--selection_split`; `t5suite submit` |
| each task's best checkpoint, or one for all | `--select per_task` |
| generated answers or candidates compared | `--eval_method` |
| MRPC and QQP by F1, accuracy or their mean; STS-B likewise | `metric_to_optimize` of the entry, `--metric_for_best_model` |
| GLUE's average with or without WNLI | without, as published; `results.json` names an average that lacks members |
| one task alone, or the whole suite as a mixture | `--dataset_name rte`, `--dataset_name all` |
| T5 1.0 has seen GLUE and SuperGLUE in pre-training, v1.1 has not; Flan-T5 has in tuning | `--model_name_or_path t5-base`, `google/t5-v1_1-base` |
| ROUGE with or without stemming, BLEU's tokenizer | [metrics](tasks.md#metrics) |"""
