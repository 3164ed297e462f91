"""Exported files against the model that they came from, over rows of many lengths.

    >>> compare(source.model, "seq2seq", OnnxModel("exported"))
    {'encoder_states': 1.2e-06, 'first_step_logits': 1.9e-06, 'cached_step_logits': 2.1e-06, 'answers_equal': 12, ...}

Differences are the largest absolute ones, over tokens that are not padding. Greedy answers are compared token by token,
in one batch and one by one; end-of-sequence does not end them, so that every one has `NEW_TOKENS`.
"""

from types import SimpleNamespace

import numpy as np
import torch
from transformers import GenerationConfig

from t5suite.base.errors import CheckpointError, ConfigError, DataError
from t5suite.data.rows.formats import format_source, rows_stay
from t5suite.data.rows.sources import DataOptions
from t5suite.export.onnx_runtime import OnnxModel
from t5suite.models.loading import encoding_for
from t5suite.reports.evaluations import FILES, settings_by_place
from t5suite.runs.directory import MANIFEST, read_json
from t5suite.tasks.registry import Lengths
from t5suite.tasks.task_card import read_task_card
from t5suite.training.eval_sets import EvalSet, load_eval_sets
from t5suite.training.evaluation import batches_by_length, number_range
from t5suite.training.plans import plan_tasks

# None of them is the length that was traced; beyond 128 tokens T5's distances share their last bucket.
LENGTHS = (1, 2, 9, 31, 64, 150)
NEW_TOKENS = 24
# Of the largest value compared. Float32 sums in another order differ by about 1e-6 of it.
TOLERANCE = 1e-4


def compare(model, family: str, exported: OnnxModel, lengths=LENGTHS) -> dict:
    """The largest differences between a model and its exported files, over prompts of these lengths."""
    prompts = prompts_for(model, lengths)
    with torch.no_grad():
        return COMPARISONS[family](model, exported, prompts)


def check(model, family: str, exported: OnnxModel) -> dict:
    """What `compare` finds, plus an error where it is more than rounding.

    Raises:
      CheckpointError: the files are not the model.
    """
    found = compare(model, family, exported)
    wrong = [name for name, value in found.items() if name.endswith("_relative") and not value <= TOLERANCE]
    if wrong:
        raise CheckpointError(f"the ONNX files are not the model: {', '.join(f'{n} {found[n]:.2g}' for n in wrong)}")
    return found


def prompts_for(model, lengths=LENGTHS) -> list[list[int]]:
    """Rows of tokens of these lengths, as far as the model has positions for them and an answer."""
    config = model.config.get_text_config()
    room = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or max(lengths) * 9
    lengths = [length for length in lengths if length + NEW_TOKENS <= room] or [max(1, room - NEW_TOKENS)]
    draw = np.random.default_rng(0)
    return [draw.choice(plain_tokens(model), length).tolist() for length in lengths]


def plain_tokens(model) -> list[int]:
    """All tokens but those that pad, begin or end rows."""
    names = ("pad", "eos", "bos", "decoder_start")
    special = {getattr(model.config, f"{name}_token_id", None) for name in names}
    return [token for token in range(model.config.get_text_config().vocab_size) if token not in special]


def _compare_seq2seq(model, exported: OnnxModel, prompts) -> dict:
    states_BSD, mask_BS = exported.encode(prompts)
    batch = {"input_ids": torch.as_tensor(exported.padded(prompts)[0]), "attention_mask": torch.as_tensor(mask_BS)}
    own_BSD = model.get_encoder()(**batch).last_hidden_state.numpy()
    real_BS = mask_BS.astype(bool)
    answers_BT = _answers_for(model, prompts)
    start_B1 = torch.full((len(prompts), 1), model.config.decoder_start_token_id)
    read_BT = torch.cat([start_B1, answers_BT[:, :-1]], dim=1)
    return {
        **_difference("encoder_states", states_BSD[real_BS], own_BSD[real_BS]),
        **_compare_steps(exported, prompts, answers_BT, model(**batch, decoder_input_ids=read_BT).logits.numpy()),
        **_compare_answers(model, exported, prompts, batch, 1),
    }


def _compare_causal(model, exported: OnnxModel, prompts) -> dict:
    ids_BT, mask_BT = map(torch.as_tensor, exported.padded(prompts, left=True))
    answers_BT = _answers_for(model, prompts)
    alone = []
    for prompt, answer in zip(prompts, answers_BT, strict=True):
        row_1T = torch.cat([torch.tensor(prompt), answer[:-1]])[None]
        alone.append(model(input_ids=row_1T).logits[0, len(prompt) - 1 :].numpy())
    batch = {"input_ids": ids_BT, "attention_mask": mask_BT}
    return {
        **_compare_steps(exported, prompts, answers_BT, np.stack(alone)),
        **_compare_answers(model, exported, prompts, batch, ids_BT.shape[1]),
    }


def _compare_steps(exported: OnnxModel, prompts, answers_BT, own_BTV) -> dict:
    """Logits of given answers: those of the first token, and of the others, which are made from what is kept."""
    found_BTV = exported.step_logits(prompts, answers_BT.numpy())
    return {
        **_difference("first_step_logits", found_BTV[:, 0], own_BTV[:, 0]),
        **_difference("cached_step_logits", found_BTV[:, 1:], own_BTV[:, 1:]),
    }


def _answers_for(model, prompts) -> torch.Tensor:
    """Any tokens, [B, `NEW_TOKENS`]: a model with random weights would write the same one again and again."""
    return torch.tensor(np.random.default_rng(1).choice(plain_tokens(model), (len(prompts), NEW_TOKENS)))


def _compare_encoder(model, exported: OnnxModel, prompts) -> dict:
    ids_BS, mask_BS = exported.padded(prompts)
    own = model(input_ids=torch.as_tensor(ids_BS), attention_mask=torch.as_tensor(mask_BS)).logits.numpy()
    found = exported.logits(prompts)
    if own.ndim == 3:
        found, own = found[mask_BS.astype(bool)], own[mask_BS.astype(bool)]
    return {**_difference("logits", found, own), "rows": len(prompts)}


def _compare_answers(model, exported: OnnxModel, prompts, batch, start: int) -> dict:
    """Greedy answers, all rows in one batch, and each row alone."""
    own = [ids[start:] for ids in _generate(model, batch, exported).tolist()]
    together = exported.generate(prompts, NEW_TOKENS, ends=frozenset())
    alone = [exported.generate([prompt], NEW_TOKENS, ends=frozenset())[0] for prompt in prompts]
    equal = sum(a == b for answers in (together, alone) for a, b in zip(answers, own, strict=True))
    return {"answers_equal": equal, "answers": 2 * len(own), "tokens": sum(map(len, own))}


def _generate(model, batch, exported: OnnxModel) -> torch.Tensor:
    """transformers' own greedy answers; a model's own generation settings (beams, penalties) are left aside."""
    before = model.generation_config
    plain = GenerationConfig(
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        num_beams=1,
        pad_token_id=exported.pad,
        decoder_start_token_id=model.config.decoder_start_token_id if model.config.is_encoder_decoder else None,
    )
    model.generation_config = plain
    try:
        return model.generate(**batch, generation_config=plain)
    finally:
        model.generation_config = before


def _difference(name: str, found: np.ndarray, own: np.ndarray) -> dict:
    largest = float(np.abs(found - own).max())
    return {name: largest, f"{name}_relative": largest / max(float(np.abs(own).max()), 1e-30)}


COMPARISONS = {
    "seq2seq": _compare_seq2seq,
    "causal": _compare_causal,
    "masked": _compare_encoder,
    "classification": _compare_encoder,
}


BATCH_SIZE = 16
INSTEAD = "name a task by --benchmark and --dataset_name"
# Where no task.json says how long the model's texts were: fine-tuning's own defaults.
DEFAULT_LENGTHS = Lengths(512, 512)


def eval_sets_for(source, benchmark: str, dataset_name: str, task_file=None, data_dir=None, limit=None):
    """The rows that a model is scored on, tokenized as it reads them.

    Raises:
      ConfigError: an unknown task; a model that cannot answer it.
      DataError: a split is missing.
    """
    tasks = plan_tasks(benchmark, dataset_name, task_file).evaluate
    return _loaded(source, tasks, DataOptions(data_dir=data_dir), limit)[0]


def eval_sets_of_run(source, data_dir=None, limit=None):
    """The rows that a run was evaluated on, read again from where it read them (or from `data_dir`).

    Raises:
      ConfigError: the model is no run's, or its rows are not to be had again; the message says why.
    """
    manifest, card = _manifest(source.folder), read_task_card(source.folder) if source.folder else None
    if manifest is None or card is None:
        raise ConfigError(f"--score: {source.folder or 'the model'} is no run of fine_tune_t5.py; {INSTEAD}")
    if not rows_stay(manifest["settings"]):
        raise ConfigError(f"--score: the run's rows were in memory or made by a class, and are not kept; {INSTEAD}")
    reasons = []
    for settings in settings_by_place(manifest, data_dir):
        try:
            sets, told = _sets_by_settings(source, list(card.tasks.values()), settings, limit)
        except (DataError, ConfigError, OSError) as error:
            reasons.append(str(error))
            continue
        changed = [name for name, facts in told.items() if _differs(facts, (manifest.get("data") or {}).get(name))]
        if not changed:
            return sets
        reasons.append(f"{', '.join(changed)}: not the rows that the run was evaluated on, they have changed since")
    raise ConfigError(f"--score: {reasons[0]}; name the place they are in now by --data_dir, or {INSTEAD}")


def _manifest(folder) -> dict | None:
    """That of a run, also for one of its checkpoints."""
    places = (folder, folder.parent) if folder is not None else ()
    found = next((place / MANIFEST for place in places if (place / MANIFEST).is_file()), None)
    content = {} if found is None else read_json(found)
    return content if "settings" in content else None


def _sets_by_settings(source, tasks: list, settings: dict, limit: int | None):
    own = {task.name: format_source(settings) for task in tasks} if settings.get("data_format") else {}
    files = {name: settings.get(name) for name in FILES}
    options = DataOptions(settings.get("data_dir"), data_revision=settings.get("data_revision"), own=own, **files)
    sets, told, _ = _loaded(source, tasks, options, limit or settings.get("max_eval_samples"), settings["seed"])
    return sets, told


def _differs(facts: dict, before: dict | None) -> bool:
    """Whether rows are others; the hub's fingerprint says how a data set was loaded, too, and is passed over."""
    known = (before or {}).get("fingerprint")
    return known not in (None, facts["fingerprint"]) and not known.startswith("datasets:")


def _loaded(source, tasks: list, options: DataOptions, limit: int | None, seed: int = 42):
    """`load_eval_sets` of tasks, tokenized as the model reads them."""
    card = read_task_card(source.folder) if source.folder else None
    encoding = encoding_for(source.model, source.tokenizer, card.lengths if card else DEFAULT_LENGTHS)
    method = "classify" if source.family == "classification" else "generate"
    return load_eval_sets(
        tasks, "validation", options, source.tokenizer, encoding.lengths, method, limit, seed, encoding=encoding
    )


def score(exported: OnnxModel, eval_sets: list[EvalSet]) -> dict[str, dict[str, float]]:
    """The metrics of each split that has labels."""
    answer = _chosen if exported.family == "encoder" else _written
    found = {}
    for eval_set in eval_sets:
        texts = {}
        for positions in batches_by_length(eval_set.features.input_ids.lengths, BATCH_SIZE):
            texts |= dict(zip(positions, answer(exported, eval_set, positions), strict=True))
        predictions = [texts[position] for position in range(len(eval_set.examples))]
        found[eval_set.name] = eval_set.compute_metrics(SimpleNamespace(predictions=predictions, label_ids=None))
    return found


def changes(before: dict, after: dict | None) -> dict[str, dict[str, float]]:
    """Metrics of float32 files, beside those of quantized ones where there are any."""
    lines = {}
    for name, metrics in before.items():
        for metric, value in metrics.items():
            lines[f"{name} {metric}"] = {"float32": value}
            if after is not None:
                new = after[name][metric]
                lines[f"{name} {metric}"] |= {"int8": new, "change": new - value}
    return lines


def _written(exported: OnnxModel, eval_set: EvalSet, positions) -> list[str]:
    prompts = [eval_set.features[position]["input_ids"].tolist() for position in positions]
    return eval_set.encoding.texts(exported.generate(prompts, eval_set.max_target_tokens))


def _chosen(exported: OnnxModel, eval_set: EvalSet, positions) -> list[str]:
    features = [eval_set.features[position] for position in positions]
    rows = [feature["input_ids"].tolist() for feature in features]
    segments = [feature["token_type_ids"].tolist() for feature in features if "token_type_ids" in feature]
    limits = number_range(eval_set.task)
    return [eval_set.encoding.word(scores, *limits) for scores in exported.logits(rows, segments or None).tolist()]
