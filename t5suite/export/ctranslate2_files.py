"""T5 models -> CTranslate2 files, by its own converter; and a comparison of the files with the model.

    >>> write_files(source, "exported")
    ['config.json', 'model.bin', 'shared_vocabulary.json']
    >>> compare(source.model, source.tokenizer, "exported")
    {'score_difference': 4.8e-06, 'greedy_equal': 6, 'beams_equal': 6, 'prompts': 6}

The converter gets the loaded model, not a folder: CTranslate2 4.8 scales a T5's outputs by `tie_word_embeddings`, which
transformers 5 sets for every T5 that it reads, even if the output layer has its own weights (v1.1, FLAN), and which an
untied umT5 of transformers 5.24 has not set though it scales. So the converter's copy has there whether the model
scales (`SCALE_FIELDS`); tests/test_export_ctranslate2.py checks it.
"""

import copy
import shutil
from pathlib import Path

import numpy as np
import torch
from transformers import GenerationConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from t5suite.base.errors import CheckpointError, ConfigError
from t5suite.base.libraries import require_proved
from t5suite.export.sources import Source
from t5suite.models.matrix import CTRANSLATE2
from t5suite.models.t5.decoder import scales_outputs

# The largest difference of an answer's log-probability, in nats, that counts as rounding (float32).
TOLERANCE = 1e-3
PROMPT_LENGTHS, NEW_TOKENS, BEAMS = (1, 3, 7, 16, 29, 50), 8, 4


def require_ctranslate2():
    """The library.

    Raises:
      ConfigError: it is not installed; the message has the command that installs it.
    """
    try:
        import ctranslate2.converters.transformers
    except ImportError as error:
        raise ConfigError(f"--format ctranslate2: {error}; pip install 't5suite[ctranslate2]'") from None
    return ctranslate2


def loaders() -> dict[str, type]:
    """Converters by transformers' model type; only of encoder-decoders."""
    require_proved("ctranslate2_export")
    table = require_ctranslate2().converters.transformers._MODEL_LOADERS  # 4.8 has no public name for it
    names = {kind: config.__name__ for kind, config in CONFIG_MAPPING.items()}
    return {kind: table[name] for kind, name in sorted(names.items()) if name in table and kind in CTRANSLATE2}


def write_files(source: Source, folder, quantize: str | None = None) -> list[str]:
    """Writes CTranslate2's files; `quantize` is int8, or None for float32.

    Raises:
      ConfigError: a model type that is not supported.
    """
    known, kind = loaders(), source.model.config.model_type
    if source.family != "seq2seq" or kind not in known:
        raise ConfigError(
            f"--format ctranslate2: models of type {kind!r} are not written; these are: {', '.join(known)}"
        )
    if source.tokenizer.unk_token is None:
        raise ConfigError("--format ctranslate2: the tokenizer has no unknown token, which CTranslate2 needs")
    model = copy.deepcopy(source.model)  # 4.8 quantizes the tensors that it is given, in place
    model.config.tie_word_embeddings = scales_outputs(model)  # what 4.8 scales the outputs by

    class Loaded(require_ctranslate2().converters.Converter):
        def _load(self):
            with torch.no_grad():
                return known[kind](model, source.tokenizer)

    made = Path(folder) / "ctranslate2.new"
    Loaded().convert(str(made), quantization=quantize)
    files = sorted(path.name for path in made.iterdir())
    for name in files:
        (made / name).replace(Path(folder) / name)
    shutil.rmtree(made)
    return files


def check(model, tokenizer, folder) -> dict:
    """The result of `compare`.

    Raises:
      CheckpointError: the differences exceed rounding.
    """
    found = compare(model, tokenizer, folder)
    if not found["score_difference"] <= TOLERANCE:
        raise CheckpointError(
            f"the files differ from the model: an answer's score differs by {found['score_difference']:.3g}"
        )
    return found


@torch.no_grad()
def compare(model, tokenizer, folder) -> dict:
    """The largest difference of a given answer's log-probability, and how many written answers are equal.

    Answers have at most eight tokens: greedy, and the best of four beams; each side uses its own search.
    """
    translator = require_ctranslate2().Translator(str(folder), compute_type="default")
    draw, special = np.random.default_rng(0), set(tokenizer.all_special_ids)
    tokens = [token for token in range(len(tokenizer)) if token not in special]
    prompts = [[*draw.choice(tokens, length).tolist(), tokenizer.eos_token_id] for length in PROMPT_LENGTHS]
    answers = [draw.choice(tokens, 4).tolist() for _ in prompts]
    texts, given = ([tokenizer.convert_ids_to_tokens(ids) for ids in rows] for rows in (prompts, answers))
    scored = [sum(result.log_probs) for result in translator.score_batch(texts, given)]
    start, eos = model.config.decoder_start_token_id, tokenizer.eos_token_id
    settings = GenerationConfig(
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=eos,
        decoder_start_token_id=start,
    )
    own, found = [], {"greedy_equal": 0, "beams_equal": 0}
    for prompt, answer, text in zip(prompts, answers, texts, strict=True):
        ids = {"input_ids": torch.tensor([prompt])}
        logits = model(**ids, decoder_input_ids=torch.tensor([[start, *answer]])).logits[0].log_softmax(-1)
        own.append(float(logits.gather(1, torch.tensor([*answer, eos])[:, None]).sum()))
        for name, beams in (("greedy_equal", 1), ("beams_equal", BEAMS)):
            theirs = translator.translate_batch([text], beam_size=beams, max_decoding_length=NEW_TOKENS)
            written = model.generate(**ids, generation_config=settings, num_beams=beams)[0, 1:].tolist()
            written = written[: written.index(eos)] if eos in written else written
            found[name] += tokenizer.convert_tokens_to_ids(theirs[0].hypotheses[0]) == written
    difference = max(abs(a - b) for a, b in zip(scored, own, strict=True))
    return {"score_difference": difference, **found, "prompts": len(prompts)}
