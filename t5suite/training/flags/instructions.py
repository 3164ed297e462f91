"""The flags of Super-NaturalInstructions: which instances are read, and how an instruction is written.

    >>> arguments = InstructionArguments(num_pos_examples=1, add_explanation=True)
    >>> plan = arguments.applied(plan_tasks("super_ni", "english"), seed=42)
    >>> plan.train[0].entry["instruction"]["num_pos_examples"]
    1

Names and meanings are Tk-Instruct's. What is given goes into the task's entry, so that manifest, caches and task card
tell the whole form; what is not keeps the entry's own value.
"""

from dataclasses import dataclass, fields, replace

from t5suite.base.errors import ConfigError
from t5suite.training.flags.fields import flag


@dataclass
class InstructionArguments:
    """How instances and instructions of `--benchmark super_ni` are chosen and written."""

    _theme = "instructions"

    task_lists: str | None = flag(None, "The folder below DIR/splits whose lists of tasks are used (default).")
    max_num_instances_per_task: int | None = flag(
        None, "At most this many instances of each training task (100); 0: all.", bounds="[0, inf) rows or examples"
    )
    max_num_instances_per_eval_task: int | None = flag(
        None, "At most this many of each test task, the first ones (100).", bounds="[1, inf) rows or blocks"
    )
    add_task_definition: bool | None = flag(None, "Begin with the task's definition (yes).")
    num_pos_examples: int | None = flag(None, "Positive examples shown (2).", bounds="[0, inf) rows or examples")
    num_neg_examples: int | None = flag(None, "Negative examples shown (0).", bounds="[0, inf) rows or examples")
    add_explanation: bool | None = flag(None, "Explain the examples (no).")
    add_task_name: bool | None = flag(None, "Begin with the task's name (no).")
    tk_instruct: bool | None = flag(None, "Draw each row's form from Tk-Instruct's five, in place of the flags before.")

    def __post_init__(self):
        forms = ("add_task_definition", "num_pos_examples", "num_neg_examples", "add_explanation", "add_task_name")
        idle = [name for name in forms if getattr(self, name) is not None]
        if self.tk_instruct and idle:
            raise ConfigError(f"--tk_instruct draws the form of every row; --{idle[0]} has no place beside it")

    @property
    def given(self) -> dict:
        """The flags that were given, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}

    def applied(self, plan, seed: int):
        """The plan, the settings and the seed in the entries of its tasks that have instructions.

        Raises:
          ConfigError: flags were given, and no task has instructions.
        """
        if not any(task.entry.get("instruction") for task in plan.tasks):
            if self.given:
                raise ConfigError(
                    f"--{next(iter(self.given))} is for tasks with instructions (--benchmark super_ni), "
                    f"not for {plan.benchmark}/{plan.dataset_name}"
                )
            return plan
        changes = {**self.given, "seed": seed}
        if self.max_num_instances_per_task == 0:
            changes["max_num_instances_per_task"] = None
        return replace(
            plan,
            train=[with_instruction(task, changes) for task in plan.train],
            evaluate=[with_instruction(task, changes) for task in plan.evaluate],
        )


def with_instruction(task, changes: dict):
    """The task with some of its instruction's settings changed; one without instructions as it is."""
    settings = task.entry.get("instruction")
    return task if not settings else replace(task, entry={**task.entry, "instruction": {**settings, **changes}})
