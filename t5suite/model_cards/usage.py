"""How a fine-tuned model is used with transformers alone, for its card.

>>> print("\\n".join(usage_lines(eval_set)))
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
...
>>> pipeline_tag(eval_set.encoding)
'text-generation'
"""

from t5suite.data.encodings import PromptEncoding, SegmentEncoding, TextEncoding, segments

SHOWN = 300  # characters of an example


def pipeline_tag(encoding: TextEncoding | None) -> str:
    """The hub's word for what such a model does."""
    return _kind(encoding)["tag"]


def usage_lines(eval_set, is_adapter: bool = False) -> list[str]:
    """Python that answers the first row of an evaluated split; without one, of a text called '...'."""
    encoding = eval_set.encoding if eval_set else None
    kind = _kind(encoding)
    if is_adapter:
        return _adapter_lines(eval_set, encoding, kind)
    return [
        f"from transformers import {kind['class']}, AutoTokenizer", "",
        f'model = {kind["class"]}.from_pretrained(".")', 'tokenizer = AutoTokenizer.from_pretrained(".")',
        *kind["lines"](eval_set, encoding),
    ]  # fmt: skip


def own_class_lines(model_class: str) -> list[str]:
    """Python that loads a model whose class is the user's own (`--model_class`)."""
    return [
        "from t5suite.models.loading import load_model, load_tokenizer", "",
        'tokenizer = load_tokenizer(".")',
        f'model = load_model(".", tokenizer=tokenizer, model_class="{model_class}")  # a plain module is model.module',
    ]  # fmt: skip


def _adapter_lines(eval_set, encoding, kind) -> list[str]:
    """PEFT finds the base model by the name that the adapter stores; it does not know the words of a head's labels."""
    name = kind["class"].replace("AutoModel", "AutoPeftModel")
    words = getattr(encoding, "words", ()) or ()
    labels = f", num_labels={max(1, len(words))}" if isinstance(encoding, SegmentEncoding) else ""
    lines = kind["lines"](eval_set, encoding)
    return [
        f"from peft import {name}", "from transformers import AutoTokenizer", "",
        f'model = {name}.from_pretrained("."{labels})', 'tokenizer = AutoTokenizer.from_pretrained(".")',
        *[line.replace("model.config.id2label", str(list(words))) for line in lines],
    ]  # fmt: skip


def _kind(encoding) -> dict:
    return next(kind for made, kind in KINDS.items() if isinstance(encoding, made))


def _shown(text: str) -> str:
    return repr(text.replace("`", "'")[:SHOWN])


def _inputs(eval_set) -> str:
    return eval_set.examples[0].inputs if eval_set and eval_set.examples else "..."


def _called(eval_set) -> str:
    """What `generate` is given: without a number of its own it stops after 20 tokens."""
    return f"**inputs, max_new_tokens={eval_set.max_target_tokens}" if eval_set else "**inputs"


def _text_lines(eval_set, encoding) -> list[str]:
    return [
        f'inputs = tokenizer({_shown(_inputs(eval_set))}, return_tensors="pt")',
        f"print(tokenizer.decode(model.generate({_called(eval_set)})[0], skip_special_tokens=True))",
    ]


def _prompt_lines(eval_set, encoding: PromptEncoding) -> list[str]:
    special = "" if encoding.lead else ", add_special_tokens=False"
    return [
        f"prompt = {_shown(_inputs(eval_set))} + {encoding.separator.rstrip(' ')!r}",
        f'inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False{special})',
        f'answer = model.generate({_called(eval_set)})[0, inputs["input_ids"].shape[1] :]',
        "print(tokenizer.decode(answer, skip_special_tokens=True).strip())",
    ]


def _segment_lines(eval_set, encoding: SegmentEncoding) -> list[str]:
    texts = segments(eval_set.rows[0], eval_set.task, eval_set.role) if eval_set.rows else ("...",)
    called = f'inputs = tokenizer({", ".join(map(_shown, texts))}, return_tensors="pt")'
    if encoding.words is None:
        return [called, "print(float(model(**inputs).logits))"]
    return [called, "print(model.config.id2label[int(model(**inputs).logits.argmax())])"]


# By the encoding of the family; the first that fits counts.
KINDS = {
    PromptEncoding: {"tag": "text-generation", "class": "AutoModelForCausalLM", "lines": _prompt_lines},
    SegmentEncoding: {
        "tag": "text-classification",
        "class": "AutoModelForSequenceClassification",
        "lines": _segment_lines,
    },
    object: {"tag": "text-generation", "class": "AutoModelForSeq2SeqLM", "lines": _text_lines},
}
