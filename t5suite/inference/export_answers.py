"""Answers of an exported model (ONNX, CTranslate2) to rows that a run has evaluated, for `t5suite verify`.

>>> answers_of_export("exported/sst2", record.settings, Answering.of(record)).answer(eval_set)[:2]
['negative', 'positive']
"""

from types import SimpleNamespace

from t5suite.inference.decoding_settings import DecodingSettings
from t5suite.inference.exported import MODEL_FLAGS, WRITING_FLAGS, EncodingSettings, exported_kind, load_exported
from t5suite.reports.answering_again import Answering, OtherAnswers
from t5suite.tasks.templates import OUTPUT, fill
from t5suite.tasks.tokenization import Lengths
from t5suite.training.eval_sets import EvalSet
from t5suite.training.evaluation import number_range

# Flags of `t5suite predict` that exported files do not support, all as they are by default.
UNUSED_FLAGS = (*MODEL_FLAGS, *WRITING_FLAGS, "num_return_sequences", "scores", "length_penalty")


def answers_of_export(folder: str, settings: dict, answering: Answering) -> OtherAnswers:
    """What answers an evaluated set as the folder's files do; a batch has 16 rows.

    Args:
      settings: the run's flags by name.
      answering: how the run answered, of which beams, lengths and `use_cpu` hold here, too.

    Raises:
      ConfigError: the files cannot answer so.
    """
    flags = dict.fromkeys(UNUSED_FLAGS) | {"model_name_or_path": folder, "tokenizer_name": None}
    flags |= {"use_cpu": answering.use_cpu, "num_beams": answering.num_beams}
    lengths = Lengths(settings["max_source_length"], settings["max_target_length"])
    encoding = EncodingSettings(lengths, settings.get("answer_separator"))
    predictor = load_exported(SimpleNamespace(**flags), encoding, batch_size=16)

    def answers(eval_set: EvalSet) -> list[str]:
        features = eval_set.features.__getitems__(list(range(len(eval_set.examples))))
        prompts = [list(feature["input_ids"]) for feature in features]
        if eval_set.method == "classify":
            form = eval_set.task.entry.get("output_format")
            choices = predictor.classes(features, number_range(eval_set.task))
            return [fill(form, OUTPUT, choice.text) for choice in choices]
        if eval_set.method == "score":
            candidates = [eval_set.candidates[row][0] for row in eval_set.row_of_example]
            return [choice.text for choice in predictor.choices(prompts, candidates)]
        decoding = DecodingSettings(num_beams=answering.num_beams)
        max_tokens = answering.max_length or eval_set.max_target_tokens
        written = predictor.answers(prompts, decoding, max_tokens, plain=eval_set.task.writes_plainly)
        return [answers_of_text[0].text for answers_of_text in written]

    return OtherAnswers(f"{exported_kind(folder)} in {folder}", answers)
