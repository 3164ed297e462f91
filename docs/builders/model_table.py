"""The model types that the suite is tested with, and what each of them can do.

    >>> MATRIX["NLLB"].model_type, MATRIX["NLLB"].family, "onnx" in MATRIX["NLLB"].lacks
    ('m2m_100', 'seq2seq', True)

The table of docs/models.md is generated from `MATRIX`, and tests/test_matrix.py runs every cell: eight updates with an
evaluation after every second, the best weights loaded at the end, the same run killed and resumed; its folder loaded
again, evaluated by generation and by scoring, exported; pre-training; LoRA.
"""

from dataclasses import dataclass, field

from t5suite.export.ctranslate2_files import MODEL_TYPES
from t5suite.export.onnx_graphs import why_no_graphs

# What a model can do, in the order of the table's columns, with their headings.
WORK = {
    "fine_tune": "fine-tune", "resume": "resume", "generate": "generate", "score": "score", "pre_train": "pre-train",
    "lora": "LoRA", "hf": "export", "onnx": "ONNX", "ctranslate2": "CTranslate2",
}  # fmt: skip
HEAD_ANSWERS = "a head answers"
WHOLE_MODEL = "the whole model is"


@dataclass(frozen=True)
class ModelType:
    """A row of the table.

    Attributes:
      model_type: transformers' name of the configuration's type.
      family: seq2seq, causal, masked or encoder.
      example: a checkpoint on the hub.
      lacks: what it cannot do, by the keys of `WORK`, and why.
      needs: settings without which it is refused.
    """

    model_type: str
    family: str
    example: str
    lacks: dict[str, str] = field(default_factory=dict)
    needs: str = ""

    def cell(self, work: str) -> str:
        """What the table says: yes, or why not.

        >>> MATRIX["BERT"].cell("generate"), MATRIX["BERT"].cell("resume")
        ('a head answers', 'yes')
        """
        return self.lacks.get(work, "yes")


def lacks_of_exports(model_type: str, family: str) -> dict[str, str]:
    """Why `t5suite export` writes no ONNX or CTranslate2 files of such a model, as it says itself."""
    lacks = {}
    no_graphs = why_no_graphs(model_type, family)
    if no_graphs is not None:
        lacks["onnx"] = no_graphs
    if family != "seq2seq" or model_type not in MODEL_TYPES:
        lacks["ctranslate2"] = "no"
    return lacks


def seq2seq(model_type: str, example: str, needs: str = "", **lacks) -> ModelType:
    """An encoder-decoder."""
    return ModelType(model_type, "seq2seq", example, {**lacks_of_exports(model_type, "seq2seq"), **lacks}, needs)


def causal(model_type: str, example: str) -> ModelType:
    """A decoder alone."""
    return ModelType(model_type, "causal", example, lacks_of_exports(model_type, "causal"))


def masked(model_type: str, example: str, needs: str = "") -> ModelType:
    """An encoder alone; its head answers, whatever the method."""
    lacks = {"generate": HEAD_ANSWERS, "score": HEAD_ANSWERS}
    return ModelType(model_type, "masked", example, lacks | lacks_of_exports(model_type, "masked"), needs)


def encoder(model_type: str, example: str) -> ModelType:
    """An encoder-decoder's encoder by itself, with a head."""
    lacks = {"generate": HEAD_ANSWERS, "score": HEAD_ANSWERS, "pre_train": WHOLE_MODEL}
    return ModelType(model_type, "encoder", example, lacks | lacks_of_exports(model_type, "encoder"))


MATRIX = {
    "T5": seq2seq("t5", "google-t5/t5-base"),
    "T5 v1.1": seq2seq("t5", "google/t5-v1_1-base"),
    "FLAN-T5": seq2seq("t5", "google/flan-t5-base"),
    "ByT5": seq2seq("t5", "google/byt5-base"),
    "CodeT5+": seq2seq("t5", "Salesforce/codet5p-220m"),
    "mT5": seq2seq("mt5", "google/mt5-base"),
    "umT5": seq2seq("umt5", "google/umt5-base"),
    "LongT5, local": seq2seq("longt5", "google/long-t5-local-base"),
    "LongT5, global": seq2seq("longt5", "google/long-t5-tglobal-base", onnx="fails at other lengths"),
    "Switch": seq2seq("switch_transformers", "google/switch-base-8"),
    "T5Gemma": seq2seq("t5gemma", "google/t5gemma-b-b-ul2"),
    "T5Gemma 2": seq2seq(
        "t5gemma2", "google/t5gemma-2-270m-270m", "`--ddp_find_unused_parameters True` on several GPUs"
    ),
    "BART": seq2seq("bart", "facebook/bart-base"),
    "mBART": seq2seq("mbart", "facebook/mbart-large-50"),
    "Pegasus": seq2seq("pegasus", "google/pegasus-large"),
    "Marian": seq2seq("marian", "Helsinki-NLP/opus-mt-en-de"),
    "M2M100": seq2seq("m2m_100", "facebook/m2m100_418M"),
    "NLLB": seq2seq("m2m_100", "facebook/nllb-200-distilled-600M"),
    "NLLB-MoE": seq2seq("nllb-moe", "facebook/nllb-moe-54b", "`moe_eval_capacity_token_fraction=-1.0`"),
    "Blenderbot": seq2seq("blenderbot", "facebook/blenderbot-400M-distill"),
    "ProphetNet": seq2seq("prophetnet", "microsoft/prophetnet-large-uncased"),
    "LED": seq2seq("led", "allenai/led-base-16384"),
    "GPT-2": causal("gpt2", "openai-community/gpt2"),
    "OPT": causal("opt", "facebook/opt-350m"),
    "BLOOM": causal("bloom", "bigscience/bloom-560m"),
    "GPT-NeoX": causal("gpt_neox", "EleutherAI/pythia-410m"),
    "Llama": causal("llama", "meta-llama/Llama-3.2-1B"),
    "Gemma 3": causal("gemma3_text", "google/gemma-3-1b-pt"),
    "Mixtral": causal("mixtral", "mistralai/Mixtral-8x7B-v0.1"),
    "OLMoE": causal("olmoe", "allenai/OLMoE-1B-7B-0924"),
    "Qwen3 MoE": causal("qwen3_moe", "Qwen/Qwen3-30B-A3B-Base"),
    "DeepSeek V3": causal("deepseek_v3", "deepseek-ai/DeepSeek-V3-Base"),
    "Granite MoE": causal("granitemoe", "ibm-granite/granite-3.0-1b-a400m-base"),
    "BERT": masked("bert", "google-bert/bert-base-uncased"),
    "RoBERTa": masked("roberta", "FacebookAI/roberta-base"),
    "RoBERTa, norms first": masked("roberta-prelayernorm", "andreasmadsen/efficient_mlm_m0.40"),
    "RoFormer": masked("roformer", "junnyu/roformer_chinese_base"),
    "BigBird": masked(
        "big_bird", "google/bigbird-roberta-base", "`attention_type=original_full`, or inputs longer than its blocks"
    ),
    "DistilBERT": masked("distilbert", "distilbert/distilbert-base-uncased"),
    "ModernBERT": masked("modernbert", "answerdotai/ModernBERT-base"),
    "NomicBERT": masked("nomic_bert", "nomic-ai/nomic-embed-text-v1.5"),
    "GTE": masked("gte", "Alibaba-NLP/gte-multilingual-base"),
    "T5's encoder": encoder("t5", "google/t5-v1_1-base"),
    "ByT5's encoder": encoder("t5", "google/byt5-base"),
    "mT5's encoder": encoder("mt5", "google/mt5-base"),
    "umT5's encoder": encoder("umt5", "google/umt5-base"),
    "LongT5's encoder": encoder("longt5", "google/long-t5-local-base"),
    "T5Gemma's encoder": encoder("t5gemma", "google/t5gemma-b-b-ul2"),
}
