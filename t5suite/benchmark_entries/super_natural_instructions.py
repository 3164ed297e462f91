"""Super-NaturalInstructions (arXiv:2204.07705): train on many tasks' instructions, be scored on tasks never seen.

    >>> SUPER_NATURAL_INSTRUCTIONS["super_ni"]["english"]["instruction"]["num_pos_examples"]
    2

`instruction` says which instances are read and how an instruction is written; its keys are the flags' names, which are
Tk-Instruct's own. The values are Tk-Instruct's recipe: the definition, two positive examples, at most 100 instances of
a training task, and the first 100 of a test task, which are its official test instances.
"""

SUPER_NATURAL_INSTRUCTIONS = {
    "super_ni": {
        "english": {
            "source": "super_ni",
            "splits": {"train": "train", "test": "test"},
            "formatter": "super_ni",
            "instruction": {
                "task_lists": "default",
                "max_num_instances_per_task": 100,
                "max_num_instances_per_eval_task": 100,
                "add_task_definition": True,
                "num_pos_examples": 2,
                "num_neg_examples": 0,
                "add_explanation": False,
                "add_task_name": False,
                "tk_instruct": False,
                "seed": 42,
            },
            "prefix": "",
            "text_column_name": "input",
            "label_column_name": "output",
            "labels": None,
            "metric_names": ["rougeL", "exact_match"],
            "metric_functions": {"rougeL": "instruction_rougeL", "exact_match": "instruction_exact_match"},
            "metric_to_optimize": "rougeL",
            "report_by": ["category", "task"],
        },
    },
}
