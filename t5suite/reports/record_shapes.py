"""What the files of a record must look like, as JSON schemas: they may be a stranger's.

>>> first_problem({"tasks": {"rte": {"accuracy": "75"}}, "averages": {}}, RESULTS_SHAPE)
"'tasks.rte.accuracy' is '75', not a finite number or null"

Keys that no shape names may be anything.
"""

from t5suite.base.json_schemas import TABLE
from t5suite.base.script_flags import LIMIT, flags_of

# Methods by which a split can be answered.
METHODS = ("generate", "score", "classify", "loss")
# Flags of Hugging Face's arguments that verification reads; others may hold whatever these arguments make of them.
FLAGS_OF_ANSWERING = (
    "seed", "per_device_eval_batch_size", "generation_num_beams", "generation_max_length", "use_cache",
    "bf16", "fp16", "tf32",
)  # fmt: skip


def or_null(shape: dict) -> dict:
    """The shape, or null."""
    return {**shape, "type": [shape["type"], "null"]}


def table_of(shape: dict) -> dict:
    """A table whose entries have one shape."""
    return {**TABLE, "additionalProperties": shape}


def table_with(shapes: dict, needed: tuple[str, ...] = ()) -> dict:
    """A table with the shapes of some keys, which may be absent unless they are needed."""
    return {**TABLE, "required": needed, "properties": shapes}


def list_of(shape: dict) -> dict:
    """A list whose entries have one shape."""
    return {"type": "array", "description": "a list", "items": shape}


def settings_shape() -> dict:
    """The shapes of the suite's own flags, and of those of Hugging Face's that say how rows were answered, by type."""
    shapes = {}
    for name, flag in flags_of("fine_tune_t5.py").items():
        shape = SHAPES_OF_FLAGS.get(flag["type"])
        is_read = flag.get("ours") or name in FLAGS_OF_ANSWERING
        if is_read and shape is not None and not flag["list"]:
            shapes[name] = or_null(shape)
    plug_in = table_with({"name": TEXT}, needed=("name",))
    return table_with({**shapes, "plug_ins": or_null(table_of(list_of(plug_in)))})


TEXT = {"type": "string", "description": "a text"}
TRUTH = {"type": "boolean", "description": "true or false"}
WHOLE = {"type": "integer", "minimum": -LIMIT, "maximum": LIMIT - 1, "description": "a whole number"}
COUNT = {**WHOLE, "minimum": 0, "description": "a whole number of at least 0"}
FLOAT = {"type": "float number", "description": "a finite number"}
# Null stands for a score that is not defined.
SCORE = or_null({**FLOAT, "description": "a finite number or null"})
SHAPES_OF_FLAGS = {"str": TEXT, "int": WHOLE, "float": FLOAT, "bool": TRUTH}
HASHES = table_of(TEXT)
REPOSITORIES = table_of(table_with({"commit": TEXT}, needed=("commit",)))
SPLIT = table_with(
    {
        "n": COUNT,
        "method": {"enum": METHODS, "description": f"one of {', '.join(METHODS)}"},
        "max_answer_tokens": or_null(COUNT),
        "rows_sha256": or_null(TEXT),
    }
)
BENCHMARK_AND_TASKS = {
    "type": "array",
    "description": "a list of a benchmark and its tasks",
    "minItems": 2,
    "maxItems": 2,
    "items": TEXT,
}
# What the manifest and task.json say of a tokenizer.
TOKENIZER = table_with(
    {"pieces": COUNT, "vocabulary": TEXT, "special_tokens": TABLE},
    needed=("pieces", "vocabulary"),
)
MANIFEST_SHAPE = table_with(
    {
        "settings": settings_shape(),
        "working_directory": or_null(TEXT),
        "versions": table_of(or_null(TEXT)),
        "hardware": or_null(TABLE),
        "libraries": or_null(table_with({"off": or_null(list_of(TEXT))})),
        "hub": table_with({"models": REPOSITORIES, "datasets": REPOSITORIES}),
        # A split whose entry is no table has no files.
        "data": table_of({"properties": {"files": or_null(HASHES)}}),
        "trained_on": or_null(BENCHMARK_AND_TASKS),
        "tasks": or_null(table_of(TABLE)),
        "best_per_task": or_null(TABLE),
        "encoding": or_null(table_with({"source_lang_column": or_null(TEXT), "target_lang_column": or_null(TEXT)})),
        "answering": or_null(table_with({"dtype": TEXT, "autocast": TEXT, "tf32": TRUTH, "device": TEXT})),
        "tokenizer": or_null(TOKENIZER),
        "scored": or_null(table_of(SPLIT)),
        "files": or_null(HASHES),
        "model_files": or_null(HASHES),
        "withheld": or_null(list_of(TEXT)),
        "record_sha256": or_null(TEXT),
    }
)
RESULTS_SHAPE = table_with(
    {
        "tasks": table_of(table_of(SCORE)),
        "averages": table_of(SCORE),
        "groups": or_null(table_of(table_of(table_of(table_of(SCORE))))),
    },
    needed=("tasks", "averages"),
)
TASK_CARD_SHAPE = table_with({"tokenizer": or_null(TOKENIZER)})
CONFIGURATION_SHAPE = table_with(
    {
        "auto_map": or_null(TABLE),
        "dtype": or_null(TEXT),
        "torch_dtype": or_null(TEXT),
        "decoder_start_token_id": or_null(WHOLE),
        "pad_token_id": or_null(WHOLE),
    }
)
