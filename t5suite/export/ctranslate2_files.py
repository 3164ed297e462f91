"""T5 models -> CTranslate2 files, by its own converter.

    >>> write_files(source, "exported")
    ['config.json', 'model.bin', 'shared_vocabulary.json']

The converter gets the loaded model, not a folder: CTranslate2 4.8 scales a T5's outputs by `tie_word_embeddings`, which
transformers 5 sets for every T5 that it reads, even if the output layer has its own weights (v1.1, FLAN), and which an
untied umT5 of transformers 5.24 has not set though it scales. So the converter's copy has there whether the model
scales (`SCALE_FIELDS`); tests/test_export_ctranslate2.py checks it.
"""

import copy
import shutil
from pathlib import Path

import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from t5suite.base.errors import ConfigError
from t5suite.base.libraries import require_proved
from t5suite.export.sources import ExportSource
from t5suite.models.t5.decoder import scales_outputs

# Types with a loader in CTranslate2 4.8 whose files score and answer as the model. It cannot read a BART's
# configuration of transformers 5, and with a workaround its scores differ.
MODEL_TYPES = ("mt5", "t5", "umt5")


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
    names = {kind: name for kind, name in CONFIG_MAPPING_NAMES.items() if kind in MODEL_TYPES}
    return {kind: table[name] for kind, name in sorted(names.items()) if name in table}


def write_files(source: ExportSource, folder, quantize: str | None = None) -> list[str]:
    """Writes CTranslate2's files; `quantize` is int8, or None for float32.

    Raises:
      ConfigError: a model type that is not supported.
    """
    loader_by_type = loaders()
    model_type = source.model.config.model_type
    if source.family != "seq2seq" or model_type not in loader_by_type:
        raise ConfigError(
            f"--format ctranslate2: models of type {model_type!r} are not written; these are: "
            f"{', '.join(loader_by_type)}"
        )
    if source.tokenizer.unk_token is None:
        raise ConfigError("--format ctranslate2: the tokenizer has no unknown token, which CTranslate2 needs")
    model = copy.deepcopy(source.model)  # 4.8 quantizes the tensors that it is given, in place
    model.config.tie_word_embeddings = scales_outputs(model)  # what 4.8 scales the outputs by

    class Loaded(require_ctranslate2().converters.Converter):
        def _load(self):
            with torch.no_grad():
                return loader_by_type[model_type](model, source.tokenizer)

    new_folder = Path(folder) / "ctranslate2.new"
    Loaded().convert(str(new_folder), quantization=quantize)
    names = sorted(path.name for path in new_folder.iterdir())
    for name in names:
        (new_folder / name).replace(Path(folder) / name)
    shutil.rmtree(new_folder)
    return names
