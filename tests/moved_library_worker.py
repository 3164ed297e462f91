"""Computes the same with the suite's code and with the libraries' own, whatever libraries come first on the path.

    $ python tests/moved_library_worker.py unchecked attention greedy_answers
    {"attention": {"ours": [2.1], "expected": [2.1]}, "greedy_answers": ...}

`unchecked` treats everything as proved. With `checked`, a job that the suite refuses gives
`{"exit": 78, "message": "..."}`. torchrun runs the job `sharding` on two ranks; the first one prints.
"""

import importlib.util
import json
import os
import sys
import tempfile

if importlib.util.find_spec("patching_library"):  # another library, which a test puts on the path
    import patching_library  # noqa: F401

import torch
from peft import PeftModelForCausalLM
from safetensors.torch import load_file, save_file
from sharded_worker import breaking, course
from sharded_worker import make_trainer as make_saving_trainer
from transformers import GenerationConfig, T5ForConditionalGeneration

from t5suite.base import libraries
from t5suite.base.errors import DataError, UserError
from t5suite.data.batches.encodings import TextEncoding
from t5suite.data.batches.pre_training_collator import T5DataCollator
from t5suite.inference.diverse_beams import diverse_beam_search
from t5suite.inference.predictor import Predictor
from t5suite.models.adapters import add_adapter, merge_adapter
from t5suite.models.weights import load_weights
from t5suite.tasks.tokenization import Lengths
from t5suite.testing import tiny_model, tiny_tokenizer, tiny_trainer

TENSOR = "encoder.block.0.layer.0.SelfAttention.q.weight"
CANDIDATES = [[21, 7, 1], [21, 9, 1], [40, 1]]
EOS, PAD, START = 1, 0, 0
NUM_BEAMS, NUM_NEW_TOKENS, NUM_VIRTUAL_TOKENS = 4, 6, 3


def a_model(seed: int = 0):
    """A one-layer T5 of the suite, in evaluation."""
    return tiny_model(seed=seed).eval()


def library_model(model):
    """transformers' own model with the same weights."""
    plain = T5ForConditionalGeneration(model.config).eval()
    plain.load_state_dict(model.state_dict())
    return plain


def prompts(count: int = 4, length: int = 9) -> torch.Tensor:
    return torch.randint(10, 580, (count, length), generator=torch.Generator().manual_seed(5))


def batch_of_prompts() -> dict[str, torch.Tensor]:
    """Four rows, one of them padded, and their targets."""
    input_ids = prompts()
    input_ids[1, 6:] = PAD
    return {"input_ids": input_ids, "attention_mask": input_ids.ne(PAD).long(), "labels": prompts(length=5)}


def total_of_weights(model) -> float:
    return sum(parameter.detach().double().abs().sum().item() for parameter in model.parameters())


def up_to_end(ids: list[int]) -> list[int]:
    return ids[: ids.index(EOS) + 1] if EOS in ids else ids


def attention() -> tuple:
    model, batch = a_model(), batch_of_prompts()
    return [model(**batch).loss.item()], [library_model(model)(**batch).loss.item()]


@torch.no_grad()
def greedy_answers() -> tuple:
    model = a_model()
    settings = GenerationConfig(
        max_new_tokens=NUM_NEW_TOKENS, pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=START
    )
    expected = library_model(model).generate(prompts(), generation_config=settings)
    answers = predictor_of(model).answerer.generate(prompts().tolist(), settings)
    return [ids for ((ids, _),) in answers], [up_to_end(ids[1:]) for ids in expected.tolist()]


@torch.no_grad()
def candidate_scores() -> tuple:
    model = a_model()
    plain = library_model(model)
    expected = [[log_probability(plain, prompt, ids) for ids in CANDIDATES] for prompt in prompts()]
    scores = predictor_of(model).answerer.candidate_scores(prompts().tolist(), [CANDIDATES] * len(prompts()))
    return scores, expected


def predictor_of(model) -> Predictor:
    return Predictor(
        model, TextEncoding(tiny_tokenizer(), Lengths(64, 16)), family="seq2seq", device=torch.device("cpu")
    )


def log_probability(plain, prompt: torch.Tensor, ids: list[int]) -> float:
    """Of an answer that the library's own model writes."""
    with torch.no_grad():
        logits = plain(input_ids=prompt[None], decoder_input_ids=torch.tensor([[START, *ids[:-1]]])).logits[0]
    return logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None]).sum().item()


def diverse_beams() -> tuple:
    """One group of beams without a penalty is plain beam search."""
    model = a_model()
    settings = GenerationConfig(
        max_new_tokens=NUM_NEW_TOKENS, num_beams=NUM_BEAMS, num_return_sequences=NUM_BEAMS, pad_token_id=PAD,
        eos_token_id=EOS, decoder_start_token_id=START,
    )  # fmt: skip
    expected = library_model(model).generate(prompts(), generation_config=settings)
    search = diverse_beam_search(1, 0.0)
    answers = model.generate(prompts(), generation_config=settings, custom_generate=search)
    return [up_to_end(ids[1:]) for ids in answers.tolist()], [up_to_end(ids[1:]) for ids in expected.tolist()]


def loss_in_chunks() -> tuple:
    """The loss of an update on all rows."""
    trainer = tiny_trainer(per_device_train_batch_size=21, optim="sgd")
    rows = trainer.train_dataset.__getitems__(list(range(21)))
    batch = {name: torch.as_tensor(value) for name, value in trainer.data_collator(rows).items()}
    expected = library_model(trainer.model)(**batch).loss.item()
    trainer.train()
    return [trainer.state.log_history[0]["loss"]], [expected]


def missing_tensors() -> tuple:
    """How many tensors of a file without one are reported."""
    folder = tempfile.mkdtemp()
    model = a_model()
    model.save_pretrained(folder)
    file = f"{folder}/model.safetensors"
    tensors = load_file(file)
    del tensors[TENSOR]
    save_file(tensors, file, metadata={"format": "pt"})
    report = T5ForConditionalGeneration.from_pretrained(folder, output_loading_info=True)[1]
    try:
        load_weights(model, folder)
        reported = 0
    except DataError as error:
        reported = str(error).count(TENSOR)
    except RuntimeError:  # torch's, of a tensor without values
        reported = 0
    return [reported], [len(report["missing_keys"])]


def saved_weights() -> tuple:
    folder = tempfile.mkdtemp()
    a_model().save_pretrained(folder)
    expected = total_of_weights(T5ForConditionalGeneration.from_pretrained(folder))
    model = a_model(seed=1)
    load_weights(model, folder)
    return [total_of_weights(model)], [expected]


def resumed_run() -> tuple:
    """The losses of the last two of four updates with dropout; ours goes on from the second one's checkpoint."""
    folder = tempfile.mkdtemp()
    whole, resumed = (dropping_trainer(f"{folder}/{name}") for name in ("whole", "resumed"))
    whole.train()
    resumed.train(resume_from_checkpoint=f"{folder}/whole/checkpoint-2")
    return course(resumed)["loss"][-2:], course(whole)["loss"][-2:]


def dropping_trainer(folder: str):
    trainer = make_saving_trainer("alone", folder, max_steps=4, save_steps=2)
    for module in trainer.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.3
    return trainer


def guarded_update() -> tuple:
    """Whether weights are finite after an update without a finite loss."""
    trainer = make_saving_trainer("alone", tempfile.mkdtemp(), save_strategy="no", max_steps=3)
    trainer.compute_loss_func = breaking(trainer, (2,))
    trainer.train()
    return [all(parameter.isfinite().all().item() for parameter in trainer.model.parameters())], [True]


def merged_adapter() -> tuple:
    model, batch = add_adapter(a_model(), tiny_tokenizer(), "lora", {"lora_r": 4}).eval(), batch_of_prompts()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.5)
    expected = model(**batch).loss.item()
    return [merge_adapter(model)(**batch).loss.item()], [expected]


def prompted_model() -> tuple:
    """Logits of a GPT-2 with virtual tokens."""
    model = tiny_model("gpt2", "n_embd=32,n_layer=1,n_head=2,n_positions=64", scale=1.0)
    model = add_adapter(model, tiny_tokenizer(), "prompt_tuning", {}, {"num_virtual_tokens": NUM_VIRTUAL_TOKENS}).eval()
    batch = {"input_ids": prompts(), "attention_mask": torch.ones_like(prompts())}
    expected = PeftModelForCausalLM.forward(model, **batch).logits[:, NUM_VIRTUAL_TOKENS:]
    return model(**batch).logits[:, -1, :4].tolist(), expected[:, -1, :4].tolist()


def packed_rows() -> tuple:
    """The loss of every token of packed rows, and of their examples one by one."""
    collator = T5DataCollator(
        sentinel_ids=list(range(620, 580, -1)), inputs_length=32, pack=True, row_inputs_length=128,
        row_targets_length=128, decoder_start_token_id=START, pad_token_id=PAD, eos_token_id=EOS,
    )  # fmt: skip
    blocks = torch.randint(10, 580, (6, collator.tokens_length), generator=torch.Generator().manual_seed(5))
    batch = collator([{"input_ids": block.numpy(), "index": index} for index, block in enumerate(blocks)])
    model = a_model()
    plain = library_model(model)
    logits = model(**{name: value for name, value in batch.items() if name != "labels"}).logits
    losses, expected = [], []
    for row, segments in enumerate(batch["decoder_segment_ids"]):
        for segment in range(1, int(segments.max()) + 1):
            inputs = batch["input_ids"][row][batch["encoder_segment_ids"][row] == segment]
            read, labels = (batch[name][row][segments == segment] for name in ("decoder_input_ids", "labels"))
            alone = plain(input_ids=inputs[None], decoder_input_ids=read[None]).logits[0]
            losses.append(torch.nn.functional.cross_entropy(logits[row][segments == segment], labels).item())
            expected.append(torch.nn.functional.cross_entropy(alone, labels).item())
    return losses, expected


def sharding() -> tuple:
    """Whether a model trains under FSDP; on two ranks."""
    try:
        make_saving_trainer("fsdp", tempfile.mkdtemp(), save_strategy="no", max_steps=2).train()
        return ["trained"], ["trained"]
    except UserError:
        raise
    except ValueError as error:  # torch's, of a weight in two groups
        return [str(error)], ["trained"]


def deepspeed() -> tuple:
    """Only whether a trainer is made: training needs a compiler."""
    make_saving_trainer("zero2", tempfile.mkdtemp(), save_strategy="no")
    return [], []


JOBS = (
    attention, greedy_answers, candidate_scores, diverse_beams, loss_in_chunks, missing_tensors, saved_weights,
    resumed_run, guarded_update, merged_adapter, prompted_model, packed_rows, sharding, deepspeed,
)  # fmt: skip


def report_of(job) -> dict:
    try:
        ours, expected = job()
    except UserError as error:
        return {"exit": error.exit_code, "message": str(error)}
    return {"ours": ours, "expected": expected}


def prove_everything() -> None:
    """Every entry counts as proved, for all modules that ask."""
    ask = libraries.unproved
    for module in list(sys.modules.values()):
        if getattr(module, "unproved", None) is ask:
            module.unproved = lambda names: {}


def main(checks: str, *names: str) -> None:
    if checks == "unchecked":
        prove_everything()
    jobs = {job.__name__: job for job in JOBS}
    reports = {name: report_of(jobs[name]) for name in names}
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(reports), flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
