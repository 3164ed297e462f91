"""The flags of both scripts about compiled code, beside Hugging Face's `--torch_compile`.

>>> SuiteTrainingArguments(compile_cache="/scratch/compiled").compile_cache
'/scratch/compiled'
"""

from dataclasses import dataclass

from t5suite.training.flags.fields import flag


@dataclass
class CompileArguments:
    """Without a heading of its own: `--help` has it below those of precision, memory and speed."""

    compile_cache: str | None = flag(
        None,
        "Where --torch_compile keeps code for other runs and ranks; none: torch's own place, a temporary "
        "one. Default: $TORCHINDUCTOR_CACHE_DIR, else $XDG_CACHE_HOME/t5suite/compiled.",
        theme="speed",
        change="nothing",
    )
