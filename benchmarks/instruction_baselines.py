"""What one scores on Super-NaturalInstructions without understanding an instruction.

    python -m benchmarks.instruction_baselines --data_dir natural-instructions --task_lists default

| baseline | what it answers |
|---|---|
| copy the input | the instance's input (Tk-Instruct's `copy_input`) |
| copy a demonstration | the first positive example's output (Tk-Instruct's `copy_demo`) |
| most frequent output | the same text everywhere: the commonest output of the training tasks |

Nothing is trained; the scores are those of `fine_tune_t5.py --benchmark super_ni`, over the same rows.
"""

import argparse
import collections
import json

from t5suite import load_task
from t5suite.data.rows.sources import DataOptions, load_split
from t5suite.training.flags.data import with_instruction


def baselines(data_dir: str, task_lists: str, per_task: int) -> dict:
    """`{baseline: {"english": {metric: points}, "category": {category: {metric: points}}}}`."""
    changes = {"task_lists": task_lists, "max_num_instances_per_eval_task": per_task}
    task = with_instruction(load_task("super_ni", "english"), changes)
    options = DataOptions(data_dir=data_dir)
    train = load_split(task, "train", "train", options).rows["output"]
    rows = load_split(task, "test", "test", options).rows.to_list()
    examples = task.example_set(rows, "test")
    commonest, _ = collections.Counter(text for outputs in train for text in outputs).most_common(1)[0]
    answers = {
        "copy the input": [row["input"] for row in rows],
        "copy a demonstration": [row["positive_examples"][0]["output"] for row in rows],
        f"most frequent output ({commonest!r})": [commonest] * len(rows),
    }
    return {
        name: {
            "english": task.score_examples(examples, texts),
            "category": task.score_groups(examples, texts)["category"],
        }
        for name, texts in answers.items()
    }


def main():
    """Prints one line of JSON a baseline."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", required=True, help="the folder that has tasks/ and splits/")
    parser.add_argument("--task_lists", default="default", help="the folder of lists below splits/")
    parser.add_argument("--max_num_instances_per_eval_task", type=int, default=100)
    arguments = parser.parse_args()
    found = baselines(arguments.data_dir, arguments.task_lists, arguments.max_num_instances_per_eval_task)
    for name, scores in found.items():
        print(json.dumps({"baseline": name, **scores}, ensure_ascii=False))


if __name__ == "__main__":
    main()
