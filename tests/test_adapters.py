"""Adapters over plain models: what is trained, what is saved, and that they answer like any other model."""

import contextlib
import copy
import functools
import json
import math
import os
import shutil
import tempfile
from pathlib import Path
from unittest import mock

import pytest
import torch
from absl.testing import parameterized
from model_types import configured
from safetensors.torch import load_file, save_file
from support import folder, renamed_folders
from transformers import (
    AutoModelForSeq2SeqLM,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    DebertaV2Model,
    ModernBertModel,
    T5ForConditionalGeneration,
    set_seed,
)
from transformers.modeling_outputs import BaseModelOutput

from t5suite import load_task
from t5suite.testing import (
    TINY_T5,
    cli_output,
    exits_with,
    make_task,
    run_cli,
    save_model,
    tiny_model,
    tiny_tokenizer,
    tiny_trainer,
    tiny_tuner,
)

TOLERANCE = 1e-4  # rounding reaches 2e-5; what training changes is over 1e-2
MERGING = ("lora", "dora", "ia3")
PROMPTING = ("prompt_tuning", "prefix")
ADAPTERS = (*MERGING, *PROMPTING)
PROMPTS = [[21, 7, 30, 1], [9, 1], [40, 41, 42, 43, 44, 1]]
TARGETS = [[50, 1], [51, 52, 1], [53, 1]]
TEXTS = ["It was a good film.", "Bad.", "A long evening with fine music, dull food and very good friends."]
UNTIED = f"{TINY_T5},tie_word_embeddings=False"
BERT = "hidden_size=16,num_hidden_layers=1,num_attention_heads=2,intermediate_size=24"
# Virtual tokens that begin as a text.
PROMPT_TEXT = "good or bad"
PROMPT_IDS = tiny_tokenizer()(PROMPT_TEXT, add_special_tokens=False)["input_ids"]
TEXT_AS_PROMPT = {
    "prompt_tuning_init": "text",
    "prompt_tuning_init_text": PROMPT_TEXT,
    "num_virtual_tokens": len(PROMPT_IDS),
}


@functools.cache
def base_folder(tied: bool = True) -> str:
    return str(save_model(tempfile.mkdtemp(), tiny_model(config_overrides=TINY_T5 if tied else UNTIED)))


def plain_model(tied: bool = True):
    return tiny_tuner(base_folder(tied)).model.eval()


def new_tuner(kind: str, base=None, noise: float = 0.1, **flags):
    """A tuner with an adapter whose weights are not what they begin as, so that it changes the model."""
    defaults = {"adapter_args": {"num_virtual_tokens": 3}} if kind in PROMPTING else {}
    tuner = tiny_tuner(base or base_folder(), "mini/sentiment", adapter=kind, **(defaults | flags))
    shake(tuner.model, noise)
    return tuner


@functools.cache
def untrained_tuner(kind: str):
    """One that no test trains."""
    return new_tuner(kind)


@functools.cache
def untrained_folder(kind: str) -> Path:
    """Where it is saved; only read it."""
    return untrained_tuner(kind).save(folder())


@functools.cache
def shaken_tuner(kind: str):
    """One whose answers differ from the plain model's, which no test trains."""
    return new_tuner(kind, noise=0.5)


@functools.cache
def trained_tuner(kind: str, tied: bool = True, **flags):
    """One that has trained for two steps; its directory is only read."""
    sizes = {"max_train_samples": 16, "max_steps": 2, "learning_rate": 1e-1}
    tuner = tiny_tuner(base_folder(tied), "mini/sentiment", adapter=kind, **sizes, **flags)
    tuner.train(valid=False)
    tuner.model.eval()
    return tuner


def random_prompt(kind: str) -> dict:
    """Flags of a prompt that does not begin as pieces of the vocabulary."""
    return {"adapter_args": "num_virtual_tokens=3,prompt_tuning_init=random"} if kind == "prompt_tuning" else {}


def new_adapter(kind: str, base=None, noise: float = 0.1, **flags):
    return new_tuner(kind, base, noise, **flags).model


def shake(model, noise: float) -> None:
    set_seed(1)
    with torch.no_grad():
        for parameter in trained_parameters(model):
            parameter.add_(noise * torch.randn_like(parameter))
    model.eval()


def trained_parameters(model) -> list:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def trained_count(model) -> int:
    return sum(parameter.numel() for parameter in trained_parameters(model))


def frozen_tensors(model) -> dict:
    return {name: weight.detach().clone() for name, weight in model.named_parameters() if not weight.requires_grad}


def padded(rows, padding: int = 0) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [padding] * (width - len(row)) for row in rows])


def batch_of(rows=PROMPTS, targets=TARGETS) -> dict:
    """What a T5 reads."""
    input_ids = padded(rows)
    decoder_ids = padded([[0, *target[:-1]] for target in targets])
    return {"input_ids": input_ids, "attention_mask": input_ids.ne(0).long(), "decoder_input_ids": decoder_ids}


def after_prompt_text(batch: dict) -> dict:
    """The batch with PROMPT_TEXT before every input."""
    ids_BN = torch.tensor([PROMPT_IDS] * len(batch["input_ids"]))
    return {
        **batch,
        "input_ids": torch.cat([ids_BN, batch["input_ids"]], dim=1),
        "attention_mask": torch.cat([torch.ones_like(ids_BN), batch["attention_mask"]], dim=1),
    }


def logits_of(model, batch=None):
    with torch.no_grad():
        return model(**(batch or batch_of())).logits


def update(model, steps: int = 2) -> None:
    """A few updates by hand."""
    optimizer = torch.optim.AdamW(trained_parameters(model), lr=1e-2)
    model.train()
    for _ in range(steps):
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()


def loss_of(model):
    logits = model(**batch_of()).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), padded(TARGETS, -100).flatten())


class TrainingTest(parameterized.TestCase):
    @parameterized.parameters(*ADAPTERS)
    @pytest.mark.quick_cases(1)
    def test_the_adapter_alone_is_trained_and_the_model_keeps_its_bits(self, kind):
        model = copy.deepcopy(untrained_tuner(kind).model)
        if kind == "prompt_tuning":  # PEFT would make twice the rows and use the first half
            self.assertEqual(trained_count(model), 3 * model.config.d_model)
        before, logits = frozen_tensors(model), logits_of(model)
        loss_of(model).backward()
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                self.assertGreater(parameter.grad.abs().sum().item(), 0, name)
        update(model)
        self.assertTrue(all(torch.equal(before[name], tensor) for name, tensor in frozen_tensors(model).items()))
        self.assertFalse(torch.equal(logits, logits_of(model)))

    @parameterized.product(kind=["lora", "prompt_tuning"], optimizer=["adamw", "adamw_rms"])
    @pytest.mark.slow
    def test_no_optimizer_state_for_the_embedding_matrix_nor_for_anything_frozen(self, kind, optimizer):
        rows = plain_model().get_input_embeddings().weight.shape
        model = copy.deepcopy(untrained_tuner(kind).model)
        trainer = tiny_trainer(model=model, optimizer=optimizer, max_steps=2)
        trainer.train()
        trained = {id(parameter) for parameter in trained_parameters(model)}
        states = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
        with_state = {id(parameter) for parameter in states.state if isinstance(parameter, torch.Tensor)}
        grouped = {id(parameter) for group in states.param_groups for parameter in group["params"]}
        self.assertEqual(grouped, trained)
        self.assertLessEqual(with_state, trained)
        base = model.get_base_model()
        self.assertNotIn(id(base.get_input_embeddings().weight), with_state)
        self.assertEqual(base.get_input_embeddings().weight.shape, rows)
        self.assertEqual(base.config.vocab_size, rows[0])


class FilesTest(parameterized.TestCase):
    @parameterized.parameters(*ADAPTERS)
    @pytest.mark.quick_cases(1)
    def test_loaded_again_it_has_the_same_logits_and_can_be_trained_further(self, kind):
        model, path = copy.deepcopy(untrained_tuner(kind).model), untrained_folder(kind)
        weights = sorted(file.name for file in path.glob("*.safetensors"))
        self.assertEqual(weights, ["adapter_model.safetensors"])  # no whole model
        loaded = tiny_tuner(str(path)).model.eval()
        self.assertTrue(torch.equal(logits_of(model), logits_of(loaded)))
        self.assertEqual(trained_count(loaded), trained_count(model))
        for each in (model, loaded):
            update(each)
        self.assertTrue(torch.equal(logits_of(model), logits_of(loaded)))

    @parameterized.parameters("lora", "prompt_tuning", "ia3")
    def test_peft_itself_loads_it(self, kind):
        from peft import PeftModel

        theirs = AutoModelForSeq2SeqLM.from_pretrained(base_folder(), dtype=torch.float32)
        theirs = PeftModel.from_pretrained(theirs, untrained_folder(kind)).eval()
        torch.testing.assert_close(logits_of(theirs), logits_of(untrained_tuner(kind).model), atol=1e-6, rtol=0)

    def test_a_model_that_no_name_brings_back_is_kept_once_beside_its_adapters(self):
        from peft import AutoPeftModelForSeq2SeqLM

        in_memory, run = tiny_model(seed=5), folder() / "run"
        before = {name: tensor.clone() for name, tensor in in_memory.state_dict().items()}
        tuner = tiny_tuner(
            in_memory, "mini/sentiment", tokenizer=tiny_tokenizer(), adapter="lora", output_dir=str(run),
            max_train_samples=16, max_steps=2, save_strategy="steps", save_steps=2, learning_rate=1e-1,
        )  # fmt: skip
        tuner.train(valid=False)
        stored = load_file(run / "base" / "model.safetensors")
        self.assertNotEmpty(stored)
        self.assertTrue(all(torch.equal(before[name], tensor) for name, tensor in stored.items()))
        self.assertFalse((run / "checkpoint-2" / "base").exists())
        expected = logits_of(tuner.model.eval())
        moved = folder() / "elsewhere"
        shutil.move(run, moved)
        best_of_task = moved / "best" / "sentiment"  # where --select per_task keeps it
        shutil.copytree(moved / "checkpoint-2", best_of_task)
        another = folder()
        save_model(another / "base", tiny_model(seed=6))  # what the working directory calls so is another model
        with contextlib.chdir(another):
            for path in (moved, moved / "checkpoint-2", best_of_task):
                self.assertTrue(torch.equal(logits_of(tiny_tuner(str(path)).model.eval()), expected))
        with contextlib.chdir(moved):  # where PEFT itself finds it
            theirs = AutoPeftModelForSeq2SeqLM.from_pretrained(".").eval()
        torch.testing.assert_close(logits_of(theirs), expected, atol=1e-6, rtol=0)

    def test_a_kept_base_is_on_disk_before_it_has_its_name_and_readable_to_whom_the_umask_says(self):
        self.addCleanup(os.umask, os.umask(0o027))
        tuner = tiny_tuner(tiny_model(seed=5), tokenizer=tiny_tokenizer(), adapter="lora")
        with renamed_folders() as unsynced:
            base = tuner.save(folder()) / "base"
        self.assertEqual(unsynced, {str(base): []})
        for path in base.iterdir():
            self.assertEqual(oct(path.stat().st_mode & 0o777), "0o640", path.name)

    def test_a_base_that_is_rounded_below_its_adapter_is_loaded_as_it_was_trained_over(self):
        tuner = tiny_tuner(tiny_model(seed=5), tokenizer=tiny_tokenizer(), adapter="lora")
        for parameter in tuner.model.parameters():  # as DeepSpeed does it
            parameter.data = parameter.data.to(torch.bfloat16)
        expected = {name: tensor.float() for name, tensor in tuner.model.state_dict().items()}
        loaded = tiny_tuner(str(tuner.save(folder()))).model.state_dict()
        self.assertEqual(loaded.keys(), expected.keys())
        self.assertEmpty([name for name, tensor in loaded.items() if not torch.equal(tensor, expected[name])])

    def test_a_base_whose_missing_tensor_is_drawn_is_kept_beside_its_adapter(self):
        base = shutil.copytree(base_folder(), folder() / "base-model")
        tensors = load_file(base / "model.safetensors")
        del tensors["encoder.block.0.layer.1.DenseReluDense.wo.weight"]
        save_file(tensors, base / "model.safetensors", metadata={"format": "pt"})
        tuner = new_tuner("lora", str(base), allow_missing_keys=True)
        loaded = tiny_tuner(str(tuner.save(folder())), seed=7).model.eval()
        self.assertTrue(torch.equal(logits_of(loaded), logits_of(tuner.model)))

    def test_a_base_that_is_gone_or_another_one_is_said_with_the_flag_that_names_it(self):
        base = folder() / "base-model"
        shutil.copytree(base_folder(), base)
        tuner = new_tuner("lora", str(base))
        path = str(tuner.save(folder()))
        shutil.rmtree(base)
        with exits_with(78, "base-model'?, is not there; name it with --adapter_base"):
            tiny_tuner(path)
        with contextlib.chdir(Path(base_folder()).parent):
            loaded = tiny_tuner(path, adapter_base=Path(base_folder()).name).model.eval()
        self.assertTrue(torch.equal(logits_of(loaded), logits_of(tuner.model)))
        recorded = Path(loaded.peft_config["default"].base_model_name_or_path)
        self.assertEqual(recorded.resolve(), Path(base_folder()).resolve(), "what is saved is loaded from anywhere")
        nearly = folder() / "nearly"
        shutil.copytree(base_folder(), nearly)
        tensors = load_file(nearly / "model.safetensors")
        tensors["decoder.final_layer_norm.weight"][0] += 1e-3
        save_file(tensors, nearly / "model.safetensors", metadata={"format": "pt"})
        with exits_with(78, "is not the model that this adapter was trained over"):
            tiny_tuner(path, adapter_base=str(nearly))

    def test_a_folder_takes_models_of_one_kind_over_one_base(self):
        adapter = Path(shutil.copytree(untrained_folder("lora"), folder() / "adapter"))
        untrained_tuner("lora").save(adapter)  # the same kind may be saved again
        with exits_with(78, "adapter holds an adapter, and this is a whole model; give another folder"):
            tiny_tuner(base_folder()).save(adapter)
        whole = Path(shutil.copytree(base_folder(), folder() / "whole"))
        with exits_with(78, "whole holds a whole model, and this is an adapter; give another folder"):
            untrained_tuner("lora").save(whole)
        place = folder()
        flags = {"tokenizer": tiny_tokenizer(), "adapter": "lora"}
        tiny_tuner(tiny_model(seed=5), **flags).save(place)
        tiny_tuner(tiny_model(seed=5), **flags).save(place)
        with exits_with(78, "base is the base model of another adapter; give another folder"):
            tiny_tuner(tiny_model(seed=6), **flags).save(place)
        with exits_with(78, "base is the base model of another adapter; give another folder"):
            untrained_tuner("lora").save(place)
        loaded = tiny_tuner(str(place))
        loaded.save(place)  # over the base model that is there

    def test_a_folder_named_base_beside_no_adapter_is_nobodys_base_model(self):
        place = folder()
        (place / "base").mkdir()
        (place / "base" / "README").write_text("Notes.")
        tuner = untrained_tuner("lora")
        tuner.save(place)
        loaded = tiny_tuner(str(place)).model.eval()
        self.assertTrue(torch.equal(logits_of(loaded), logits_of(tuner.model.eval())))

    @pytest.mark.slow
    def test_torn_or_foreign_weights_are_refused_and_pickles_are_not_read(self):
        path = Path(shutil.copytree(untrained_folder("lora"), folder() / "torn"))
        whole = (path / "adapter_model.safetensors").read_bytes()
        (path / "adapter_model.safetensors").write_bytes(whole[: len(whole) // 2])
        with exits_with(78, "truncated"):
            tiny_tuner(str(path))
        (path / "adapter_model.safetensors").rename(path / "adapter_model.bin")
        with exits_with(78, "from safetensors only"):
            tiny_tuner(str(path))
        shutil.copy(untrained_folder("ia3") / "adapter_model.safetensors", path)
        with exits_with(78, "its adapter does not match"):
            tiny_tuner(str(path))


class MergingTest(parameterized.TestCase):
    def merged(self, tuner):
        """The model that `t5suite export` makes of a run."""
        directory, output = Path(tuner.args.output_dir), folder() / "merged"
        run_cli("export", "--model_name_or_path", directory, "--output_dir", output, "--check")
        self.assertNotIn("adapter", (output / "config.json").read_text())
        self.assertEqual((output / "task.json").read_text(), (directory / "task.json").read_text())
        return tiny_tuner(str(output)).model.eval()

    @parameterized.parameters(("lora", False), ("dora", True), ("ia3", False))  # lora, tied: single tokens, below
    @pytest.mark.slow
    def test_merged_logits_equal_unmerged_ones_and_the_head_is_as_before(self, kind, tied):
        self.check_merged(kind, tied)

    @parameterized.parameters(("lora", True), ("dora", False), ("ia3", True))
    @pytest.mark.slow
    def test_so_they_do_over_the_other_head(self, kind, tied):
        self.check_merged(kind, tied)

    def check_merged(self, kind, tied):
        tuner = trained_tuner(kind, tied)
        unmerged, merged = tuner.model, self.merged(tuner)
        self.assertEqual(type(merged).__name__, "T5ForConditionalGeneration")
        torch.testing.assert_close(logits_of(merged), logits_of(unmerged), atol=TOLERANCE, rtol=TOLERANCE)
        difference = (logits_of(unmerged) - logits_of(plain_model(tied))).abs().max().item()
        self.assertGreater(difference, 100 * TOLERANCE)
        self.assertEqual(merged.lm_head.weight is merged.shared.weight, tied)

    def test_virtual_tokens_cannot_be_merged(self):
        path = untrained_folder("prefix")
        with exits_with(78, "prefix cannot be merged into the model.*lora, dora, ia3 can"):
            run_cli("export", "--model_name_or_path", path, "--output_dir", folder() / "exported")

    def test_a_tuner_whose_adapter_was_merged_writes_no_empty_one(self):
        tuner = new_tuner("lora")
        merged = tuner.model.merge_and_unload()
        place = folder() / "saved"
        with exits_with(78, r"no adapter any more, .* merge_adapter\(model\).save_pretrained\(folder\)"):
            tuner.save(place)
        self.assertFalse(place.exists())
        merged.save_pretrained(place)
        self.assertTrue(torch.equal(logits_of(type(merged).from_pretrained(place)), logits_of(merged.eval())))

    def test_what_overflows_once_merged_is_refused(self):
        tuner = new_tuner("lora")
        with torch.no_grad():
            for parameter in trained_parameters(tuner.model):
                parameter.fill_(1e25)  # finite, as each is; the product of two is not
        path = tuner.save(folder())
        with exits_with(65, "cannot be merged"):
            run_cli("export", "--model_name_or_path", path, "--output_dir", folder() / "exported")

    @pytest.mark.slow
    def test_rows_of_single_tokens_are_trained_in_all_places_of_the_matrix(self):
        """`--adapter_args trainable_token_indices=(50,51)`: label words that the model has never seen."""
        rows = {"adapter_args": "trainable_token_indices=(50,51)"}
        tuner = trained_tuner("lora", **rows)
        unmerged, merged = tuner.model, self.merged(tuner)
        self.assertEqual(trained_count(unmerged) - trained_count(untrained_tuner("lora").model), 2 * 32)
        loaded = tiny_tuner(tuner.args.output_dir).model.eval()
        self.assertTrue(torch.equal(logits_of(loaded), logits_of(unmerged)))
        torch.testing.assert_close(logits_of(merged), logits_of(unmerged), atol=TOLERANCE, rtol=TOLERANCE)
        self.assertIs(merged.lm_head.weight, merged.shared.weight)
        changes = merged.shared.weight - plain_model().shared.weight
        self.assertEqual(changes.abs().sum(dim=1).nonzero().flatten().tolist(), [50, 51])
        with exits_with(78, "trainable_token_indices: .* with all embeddings tied support this"):
            new_adapter("lora", base_folder(tied=False), **rows)


def decoded_alone(tuner, **decoding) -> list[str]:
    return [tuner.predict(text, raw=True, **decoding) for text in TEXTS]


class AnsweringTest(parameterized.TestCase):
    """Encoder-decoder models with adapters answer over encoder states that are there, as plain ones do."""

    @parameterized.parameters("lora", *PROMPTING)
    def test_answers_equal_those_of_the_whole_input_alone_and_in_a_batch(self, kind):
        self.check_answers(kind)

    @parameterized.parameters("lora", *PROMPTING)
    def test_labels_are_scored_as_by_one_forward_each(self, kind):
        self.check_labels(kind)

    @parameterized.parameters("dora", "ia3")
    @pytest.mark.slow
    def test_so_it_is_with_others_that_can_be_merged(self, kind):
        self.check_answers(kind)
        self.check_labels(kind)

    @parameterized.parameters((None, True), (None, False), ("prompt_tuning", True))
    @pytest.mark.quick_cases(2)
    def test_a_decoder_may_be_deeper_than_its_encoder(self, kind, use_cache):
        """With the cache of keys and values that its settings of generation ask for, and without one."""
        sizes = "d_model=32,d_kv=8,d_ff=48,num_layers=1,num_decoder_layers=3,num_heads=2,dropout_rate=0"
        tokenizer = tiny_tokenizer()
        model = tiny_model(config_overrides=sizes, scale=4.0, seed=1)
        model.generation_config.use_cache = use_cache
        flags = {"adapter": kind, "adapter_args": TEXT_AS_PROMPT} if kind else {}
        tuner = tiny_tuner(model, tokenizer=tokenizer, **flags)
        answers = tuner.predict(TEXTS, raw=True, num_beams=2, max_new_tokens=5)
        batch = batch_of([tokenizer(text)["input_ids"] for text in TEXTS])
        del batch["decoder_input_ids"]
        settings = {"max_new_tokens": 5, "num_beams": 2, "do_sample": False}
        ids = tuner.model.eval().generate(**batch, **settings, use_cache=False)
        expected = tokenizer.batch_decode([[token for token in row if token > 1] for row in ids.tolist()])
        self.assertEqual([answer.strip() for answer in answers], [text.strip() for text in expected])

    def check_answers(self, kind):
        tuner, batch = shaken_tuner(kind), batch_of()
        model, mask = tuner.model, batch_of()["attention_mask"]
        settings = dict(max_new_tokens=6, num_beams=2, do_sample=False)
        with torch.no_grad():
            hidden = model(**batch).encoder_last_hidden_state
            states = BaseModelOutput(last_hidden_state=hidden)
            over_states = model.generate(encoder_outputs=states, attention_mask=mask, **settings)
            whole = model.generate(input_ids=batch["input_ids"], attention_mask=mask, **settings)
        self.assertEqual(over_states.tolist(), whole.tolist())
        self.assertEqual(hidden.shape[1] - batch["input_ids"].shape[1], 3 if kind == "prompt_tuning" else 0)
        self.assertEqual(tuner.predict(TEXTS, raw=True, max_new_tokens=6), decoded_alone(tuner, max_new_tokens=6))

    def check_labels(self, kind):
        tuner, tokenizer = shaken_tuner(kind), tiny_tokenizer()
        labels = ["good", "bad", "a cat"]
        for text, probabilities in zip(TEXTS, tuner.predict_labels(TEXTS, labels, raw=True), strict=True):
            scores = []
            for label in labels:
                ids = tokenizer(label)["input_ids"]
                logits = logits_of(tuner.model, batch_of([tokenizer(text)["input_ids"]], [ids]))
                scores.append(logits[0].log_softmax(-1)[range(len(ids)), ids].sum().item())
            expected = torch.tensor(scores).softmax(-1).tolist()
            for label, probability in zip(labels, expected, strict=True):
                self.assertAlmostEqual(probabilities[label], probability, delta=1e-4)


class CausalTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        model = tiny_model("gpt2", "n_embd=16,n_layer=2,n_head=2,n_positions=256", seed=3, scale=4.0)
        cls.base = str(save_model(folder(), model))

    @parameterized.parameters("lora", *PROMPTING)
    def test_the_same_answers_alone_and_in_a_batch(self, kind):
        self.check_answers(kind)

    @parameterized.parameters("dora", "ia3")
    @pytest.mark.slow
    def test_so_it_is_with_others_that_can_be_merged(self, kind):
        self.check_answers(kind)

    def check_answers(self, kind):
        tuner = new_tuner(kind, self.base, 0.3, **random_prompt(kind))
        self.assertEqual(tuner.predict(TEXTS, raw=True, max_new_tokens=5), decoded_alone(tuner, max_new_tokens=5))
        together = tuner.predict_labels(TEXTS, ["good", "bad"], raw=True)
        for text, probabilities in zip(TEXTS, together, strict=True):
            alone = tuner.predict_labels(text, ["good", "bad"], raw=True)
            self.assertAlmostEqual(math.log(probabilities["good"]), math.log(alone["good"]), delta=1e-3)


class HeadTest(parameterized.TestCase):
    """Encoder-only models with a head for classes: the head is trained and saved with the adapter."""

    @parameterized.parameters("ia3", "prompt_tuning")
    @pytest.mark.quick_cases(1)
    def test_the_head_is_saved_with_the_adapter(self, kind):
        self.check_head(kind)

    @pytest.mark.slow
    def test_so_it_is_with_lora(self):
        self.check_head("lora")

    def check_head(self, kind):
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
        config = BertConfig(vocab_size=640, max_position_embeddings=640, **sizes)
        base = str(save_model(folder(), BertForMaskedLM(config)))
        tuner = new_tuner(kind, base, **random_prompt(kind))
        classifiers = [name for name, weight in tuner.model.named_parameters() if "classifier" in name]
        self.assertNotEmpty([name for name in classifiers if tuner.model.get_parameter(name).requires_grad])
        loaded = tiny_tuner(str(tuner.save(folder())), seed=7).model.eval()
        batch = {"input_ids": torch.tensor([[5, 6, 7]]), "attention_mask": torch.ones(1, 3, dtype=torch.long)}
        torch.testing.assert_close(logits_of(loaded, batch), logits_of(tuner.model, batch), atol=1e-6, rtol=0)


WORDS = make_task(
    formatter="token_labels", text_column_name="tokens", label_column_name="tags", labels=["other", "name"], prefix="",
    metric_names=["token_accuracy"], metric_to_optimize="token_accuracy",
)  # fmt: skip


class WordHeadTest(parameterized.TestCase):
    """A head for a label at every word."""

    MODELS = {"BERT": {"config_name": "bert", "config_overrides": BERT}, "the encoder of a T5": {"family": "encoder"}}

    def adapted(self, model_name, **flags):
        model = tiny_model(**self.MODELS[model_name], tasks=[WORDS])
        return tiny_tuner(model.eval(), tokenizer=tiny_tokenizer(), **flags)

    @parameterized.parameters(*MODELS)
    @pytest.mark.quick_cases(1)
    def test_virtual_tokens_have_no_logits(self, model_name):
        model = self.adapted(model_name, adapter="prompt_tuning", adapter_args=TEXT_AS_PROMPT).model.eval()
        batch = {"input_ids": padded(PROMPTS), "attention_mask": padded(PROMPTS).ne(0).long()}
        expected = logits_of(model.get_base_model(), after_prompt_text(batch))[:, len(PROMPT_IDS) :]
        torch.testing.assert_close(logits_of(model, batch), expected)

    @parameterized.parameters("all-linear", "regex:.*(dense|classifier)")
    @pytest.mark.quick_cases(1)
    def test_the_head_is_trained_whole_whatever_the_targets_are(self, targets):
        tuner = self.adapted("BERT", adapter="lora", target_modules=targets)
        shake(tuner.model, 0.1)
        names = [name for name, weight in tuner.model.named_parameters() if weight.requires_grad]
        self.assertNotEmpty([name for name in names if "output.dense.lora_A" in name])
        of_head = {name.rpartition(".")[2] for name in names if "classifier" in name}
        self.assertEqual(of_head, {"weight", "bias"})
        saved = tuner.save(folder())
        config = json.loads((saved / "adapter_config.json").read_text())
        self.assertEqual(config["modules_to_save"], ["classifier", "score"])
        loaded = tiny_tuner(str(saved), seed=7).model.eval()
        batch = {"input_ids": padded(PROMPTS), "attention_mask": padded(PROMPTS).ne(0).long()}
        torch.testing.assert_close(logits_of(loaded, batch), logits_of(tuner.model, batch))


# As transformers marks a model that it has loaded in 8 or 4 bits.
IN_FEW_BITS = mock.patch.object(T5ForConditionalGeneration, "is_quantized", True, create=True)
HEADLESS = {"BERT": BertModel, "DeBERTa": DebertaV2Model, "ModernBERT": ModernBertModel}


class NewHeadTest(parameterized.TestCase):
    """An encoder that is named by its folder, with a head that its checkpoint does not have."""

    def headless(self, name: str) -> str:
        model_class = HEADLESS[name]
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
        ids = {f"{token}_token_id": 1 for token in ("pad", "bos", "eos", "cls", "sep")}
        config = model_class.config_class(vocab_size=640, max_position_embeddings=640, **sizes, **ids)
        return str(save_model(folder(), model_class(config)))

    @parameterized.parameters(("DeBERTa", True), ("BERT", False), ("ModernBERT", True))
    @pytest.mark.quick_cases(2)
    def test_what_is_loaded_and_what_is_exported_answers_as_the_adapted_model(self, name, keeps_base):
        self.check_files(new_tuner("lora", self.headless(name), target_modules="all-linear"), keeps_base)

    def test_so_it_does_over_the_encoder_of_a_t5(self):
        self.check_files(new_tuner("lora", base_folder(), model_family="encoder"), keeps_base=False)

    def check_files(self, tuner, keeps_base):
        saved = tuner.save(folder())
        self.assertEqual((saved / "base").exists(), keeps_base)
        loaded = tiny_tuner(str(saved), seed=7).model.eval()
        batch = {"input_ids": torch.tensor([[5, 6, 7]]), "attention_mask": torch.ones(1, 3, dtype=torch.long)}
        expected = logits_of(tuner.model, batch)
        torch.testing.assert_close(logits_of(loaded, batch), expected, atol=1e-6, rtol=0)
        exported = folder() / "exported"
        run_cli("export", "--model_name_or_path", saved, "--output_dir", exported)
        merged = tiny_tuner(str(exported), seed=7).model.eval()
        torch.testing.assert_close(logits_of(merged, batch), expected, atol=1e-5, rtol=0)


class FlagsTest(parameterized.TestCase):
    @parameterized.parameters(
        ({"lora_r": 4}, "--lora_r has no effect without --adapter"),
        ({"adapter_args": "use_rslora=true"}, "--adapter_args has no effect without --adapter"),
        ({"adapter": "loar"}, "--adapter: unknown adapter 'loar'; did you mean lora"),
        ({"adapter": "ia3", "lora_r": 4}, "--lora_r: ia3 .--adapter. has no such setting; lora, dora have"),
        ({"adapter": "lora", "adapter_args": "num_virtual_tokens=4"}, "lora has no setting 'num_virtual_tokens'"),
        (
            {"adapter": "prefix", "adapter_args": "prompt_tuning_init=random"},
            "prefix has no setting 'prompt_tuning_init'",
        ),
        ({"adapter": "prefix", "adapter_args": "num_virtual_tokens=0"}, "num_virtual_tokens=0: must be .* at least 1"),
        (
            {"adapter": "prefix", "adapter_args": "num_virtual_tokens=few"},
            "num_virtual_tokens=few: must be a whole number",
        ),
        ({"adapter": "prompt_tuning", "adapter_args": "prompt_tuning_init=words"}, "unknown initialisation 'words'"),
        (
            {"adapter": "prompt_tuning", "adapter_args": "prompt_tuning_init=text"},
            "prompt_tuning_init_text=.* belong together",
        ),
        ({"adapter": "prompt_tuning", "adapter_args": "prompt_tuning_init_text=x"}, "belong together"),
        (
            {"adapter": "prompt_tuning", "adapter_args": "prompt_tuning_init_text='a, b"},
            "quotation mark .* is not closed",
        ),
        ({"adapter": "lora", "adapter_args": "use_rslor=True"}, "no setting 'use_rslor'; did you mean use_rslora"),
        ({"adapter": "lora", "adapter_args": "use_rslora=maybe"}, "use_rslora=maybe: expected bool"),
        ({"adapter": "lora", "adapter_args": "r=4"}, "give it as --lora_r"),
        ({"adapter": "lora", "adapter_args": "init_lora_weights=pissa"}, "would change the base model"),
    )
    def test_a_flag_or_setting_that_is_not_heeded_is_refused_by_name(self, flags, message):
        with exits_with(78, message):
            tiny_tuner(base_folder(), **flags)

    @parameterized.parameters(
        ({"add_tokens": "<turn>"}, "--add_tokens <turn>: .* is an adapter, whose base model stays as it is; merge it"),
        ({"freeze": "embeddings"}, "--freeze embeddings: .* is an adapter, and all of its base model is frozen"),
        ({"freeze_regex": "lora"}, "--freeze_regex lora: .* is an adapter"),
    )
    def test_a_saved_adapter_s_base_is_not_changed(self, flags, message):
        with exits_with(78, message):
            tiny_tuner(str(untrained_folder("lora")), **flags)

    def test_saved_prefixes_are_not_trained_with_recomputed_activations_either(self):
        with exits_with(78, "prefix: .*--gradient_checkpointing turns off"):
            tiny_tuner(str(untrained_folder("prefix")), "mini/sentiment", gradient_checkpointing=True).model  # noqa: B018

    def test_prefixes_over_shared_keys_are_refused(self):
        with exits_with(78, "--adapter prefix: models of type 't5gemma' take no prefixes; take lora"):
            tiny_tuner(config_name=configured("T5Gemma"), adapter="prefix")

    @parameterized.parameters((("bert", BERT), None), ((), "encoder"))
    @pytest.mark.quick_cases(1)
    def test_prefixes_need_a_decoder(self, settings, family):
        model = tiny_model(*settings, family=family, tasks=[load_task("mini", "sentiment")])
        with exits_with(78, "--adapter prefix: .* has no decoder; take prompt_tuning or lora"):
            tiny_tuner(model, tokenizer=tiny_tokenizer(), adapter="prefix").model  # noqa: B018

    def test_lora_s_rank_scale_and_dropout_are_those_of_the_flags(self):
        config = new_adapter("lora", lora_r=3, lora_alpha=5, lora_dropout=0.25).peft_config["default"]
        self.assertEqual((config.r, config.lora_alpha, config.lora_dropout), (3, 5, 0.25))

    def test_without_training_an_adapter_has_no_effect_and_it_is_said(self):
        with self.assertLogs("t5suite", "WARNING") as logs:
            model = tiny_tuner(base_folder(), "mini/sentiment", adapter="lora", eval_only=True).model
        self.assertRegex("\n".join(logs.output), "--adapter lora has no effect: nothing is trained")
        self.assertEqual(set(model.state_dict()), set(plain_model().state_dict()))

    def test_matrices_in_few_bits_are_trained_by_an_adapter_alone(self):
        for adapter in (None, "lora"):
            refusal = exits_with(78, "cannot be trained; add --adapter lora")
            with IN_FEW_BITS, contextlib.nullcontext() if adapter else refusal:
                tiny_tuner(base_folder(), "mini/sentiment", adapter=adapter).model  # noqa: B018

    def test_matrices_in_few_bits_are_loaded_by_name(self):
        model = tiny_model()
        with (
            IN_FEW_BITS,
            exits_with(78, "quantized to 8 or 4 bits, .*; give the checkpoint's name and load_in_4bit=True"),
        ):
            tiny_tuner(model, "mini/sentiment", tokenizer=tiny_tokenizer(), adapter="lora")

    @parameterized.parameters(None, "lora")
    def test_matrices_in_few_bits_without_a_trained_adapter_are_not_scored(self, adapter):
        with IN_FEW_BITS, exits_with(78, "below a trained adapter, and this model has none; leave the flag out"):
            tiny_tuner(base_folder(), "mini/sentiment", adapter=adapter, eval_only=True).model  # noqa: B018

    @parameterized.parameters("lora", None)
    def test_a_model_in_memory_that_an_adapter_has_changed_is_refused(self, next_adapter):
        model = tiny_model()
        first = tiny_tuner(model, "mini/sentiment", tokenizer=tiny_tokenizer(), adapter="lora")
        with exits_with(78, "has the layers of an adapter, .*; load the model again, or give the adapted model itself"):
            tiny_tuner(model, "mini/sentiment", tokenizer=tiny_tokenizer(), adapter=next_adapter)
        self.assertIs(tiny_tuner(first.model, "mini/sentiment", tokenizer=tiny_tokenizer()).model, first.model)

    def test_a_model_that_peft_has_wrapped_is_refused_before_it_trains(self):
        from peft import LoraConfig, get_peft_model

        wrapped_model = get_peft_model(tiny_model(), LoraConfig(task_type="SEQ_2_SEQ_LM"))
        with exits_with(78, "PEFT has wrapped it already, .*; give that model, loaded again, and adapter='lora'"):
            tiny_tuner(wrapped_model, "mini/sentiment", tokenizer=tiny_tokenizer())

    def test_a_class_of_the_user_s_has_none(self):
        with exits_with(78, "--adapter lora: adapters are made for transformers' classes, not --model_class"):
            own = {"model_class": "plug_in_modules:OwnT5", "config_overrides": TINY_T5, "from_scratch": True}
            tiny_tuner(data="mini/sentiment", adapter="lora", **own).model  # noqa: B018

    @parameterized.parameters("shared", "lm_head")
    @pytest.mark.quick_cases(1)
    def test_a_tied_matrix_cannot_have_an_adapter_in_one_of_its_places(self, target):
        with exits_with(78, f"{target}.* is one matrix with others"):
            new_adapter("lora", target_modules=f"q,{target}")
        if target == "lm_head":
            self.assertGreater(trained_count(new_adapter("lora", base_folder(tied=False), target_modules=target)), 0)

    @parameterized.parameters(("all-linear", "wi"), ("regex:.*decoder.*\\.wo", "wo"), ("k", "k"))
    @pytest.mark.quick_cases(1)
    def test_targets_by_name_pattern_and_all(self, targets, expected):
        model = new_adapter("lora", target_modules=targets)
        names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        modules = {name.split(".lora_")[0].split(".")[-1] for name in names}
        self.assertIn(expected, modules)
        self.assertEqual(targets == "all-linear", len(modules) > 1)


class PromptTest(parameterized.TestCase):
    @parameterized.parameters(
        ("num_virtual_tokens=7,prompt_tuning_init=text,prompt_tuning_init_text=good or bad", "good or bad", 7),
        ("prompt_tuning_init=TEXT, prompt_tuning_init_text='good, (or bad',num_virtual_tokens=7", "good, (or bad", 7),
        ('prompt_tuning_init_text="it\'s, good",prompt_tuning_init=text', "it's, good", 20),
        ("prompt_tuning_init_text=it's,prompt_tuning_init=text", "it's", 20),
        ("prompt_tuning_init_text=12,prompt_tuning_init=text", "12", 20),
        ({"prompt_tuning_init": "text", "prompt_tuning_init_text": "it's (\"good\"), or bad"}, "it's (\"good\"), or bad", 20),
        ({"prompt_tuning_init": "text", "prompt_tuning_init_text": "none", "num_virtual_tokens": 2}, "none", 2),
    )  # fmt: skip
    @pytest.mark.quick_cases(2)
    def test_a_text_is_repeated_to_the_number_of_virtual_tokens(self, adapter_args, text, number):
        model = new_adapter("prompt_tuning", noise=0.0, adapter_args=adapter_args)
        ids = tiny_tokenizer()(text, add_special_tokens=False)["input_ids"]
        expected = model.get_input_embeddings().weight[torch.tensor((ids * number)[:number])]
        (rows,) = trained_parameters(model)
        self.assertTrue(torch.equal(rows, expected))

    @parameterized.parameters("Marian", "Pegasus", "mBART", "T5")
    @pytest.mark.quick_cases(1)
    def test_new_virtual_tokens_are_read_like_the_text_that_they_begin_as(self, name):
        scaled = None if name == "T5" else "scale_embedding=true"
        flags = {"config_name": configured(name), "config_overrides": scaled}
        model = tiny_tuner(adapter="prompt_tuning", adapter_args=TEXT_AS_PROMPT, **flags).model.eval()
        plain_model = model.get_base_model()
        alone = batch_of(PROMPTS[:1], TARGETS[1:2])
        after_text = after_prompt_text(alone)
        expected = logits_of(plain_model, after_text)
        torch.testing.assert_close(logits_of(model, alone), expected)
        without_text = logits_of(plain_model, alone)
        self.assertGreater((without_text - expected).abs().max().item(), 100 * torch.finfo(torch.float32).eps)
        decoding = {"max_new_tokens": 4, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
        answers = [
            each.generate(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], **decoding)
            for each, batch in ((model, alone), (plain_model, after_text))
        ]
        torch.testing.assert_close(torch.stack(answers[0].logits), torch.stack(answers[1].logits))

    @parameterized.parameters(
        ("falcon_h1", "hidden_size=16,num_hidden_layers=1,num_attention_heads=2,num_key_value_heads=2,intermediate_size=24,"
         "mamba_d_ssm=16,mamba_n_heads=2,mamba_d_head=8,mamba_d_state=4,embedding_multiplier=5.6"),
        ("mvp", "d_model=16,encoder_layers=1,decoder_layers=1,decoder_attention_heads=2,decoder_ffn_dim=24,"
         "scale_embedding=true,is_encoder_decoder=false"),
    )  # fmt: skip
    def test_a_decoder_reads_new_virtual_tokens_and_words_like_the_text_that_they_are(self, config_name, sizes):
        plain_model = tiny_model(config_name, sizes, family="causal").eval()
        batch = {"input_ids": padded(PROMPTS[:1]), "attention_mask": torch.ones(1, len(PROMPTS[0]), dtype=torch.long)}
        expected = logits_of(plain_model, after_prompt_text(batch))[:, len(PROMPT_IDS) :]
        model = tiny_tuner(
            plain_model, tokenizer=tiny_tokenizer(), adapter="prompt_tuning", adapter_args=TEXT_AS_PROMPT
        ).model.eval()
        torch.testing.assert_close(logits_of(model, batch), expected)

    @parameterized.parameters(
        ("albert", f"{BERT},embedding_size=8"),
        ("electra", f"{BERT},embedding_size=8"),
        ("distilbert", "dim=16,n_layers=1,n_heads=2,hidden_dim=24"),
    )
    @pytest.mark.quick_cases(1)
    def test_virtual_tokens_are_as_wide_as_the_embeddings(self, model_type, sizes):
        plain_model = tiny_model(model_type, sizes, tasks=[load_task("mini", "sentiment")]).eval()
        flags = {"adapter": "prompt_tuning", "adapter_args": TEXT_AS_PROMPT}
        model = tiny_tuner(plain_model, tokenizer=tiny_tokenizer(), **flags).model.eval()
        batch = {"input_ids": padded(PROMPTS), "attention_mask": padded(PROMPTS).ne(0).long()}
        expected = logits_of(model.get_base_model(), after_prompt_text(batch))
        torch.testing.assert_close(logits_of(model, batch), expected)

    @parameterized.parameters(
        ("modules_to_save=lm_head",), ({"modules_to_save": ["lm_head"]},),
        ("modules_to_save=(lm_head,final_layer_norm)",), ({"modules_to_save": ["lm_head", "final_layer_norm"]},),
        ({"modules_to_save": "lm_head,final_layer_norm"},),
    )  # fmt: skip
    def test_modules_are_trained_whole(self, adapter_args):
        config = new_adapter("lora", base_folder(tied=False), adapter_args=adapter_args).peft_config["default"]
        expected = {"lm_head", "final_layer_norm"} if "norm" in str(adapter_args) else {"lm_head"}
        self.assertEqual(set(config.modules_to_save), expected)

    @parameterized.parameters(
        ("ia3", "k,v,wo", "feedforward_modules=(wo)", {"wo"}), ("ia3", "k,v,wo", "feedforward_modules=wo", {"wo"}),
        ("ia3", "k,DenseReluDense.wo", None, {"DenseReluDense.wo"}),
        ("ia3", "k,v,wo", r"feedforward_modules=.*\.wo", r".*\.wo"),
    )  # fmt: skip
    def test_hidden_units_have_a_factor_each(self, kind, targets, adapter_args, expected):
        model = new_adapter(kind, target_modules=targets, adapter_args=adapter_args)
        self.assertEqual(model.peft_config["default"].feedforward_modules, expected)
        weights = dict(model.named_parameters())
        factors = [weights[name].numel() for name in weights if ".wo.ia3_l" in name]
        self.assertEqual(set(factors), {model.config.d_ff})

    def test_hidden_units_of_mt5_have_a_factor_each(self):
        shape = "d_model=16,d_kv=8,d_ff=24,num_layers=1,num_heads=2"
        model = tiny_tuner(config_name="mt5", config_overrides=shape, adapter="ia3", target_modules="k,v,wo").model
        factors = [weight.numel() for name, weight in model.named_parameters() if ".wo.ia3_l" in name]
        self.assertEqual(factors, [24, 24])

    @parameterized.parameters("(wi,wo)", "wi,wo", "['wi', 'wo']")
    @pytest.mark.quick_cases(1)
    def test_modules_are_left_out_by_their_names(self, names):
        arguments = {"exclude_modules": names} if names == "wi,wo" else f"exclude_modules={names}"
        model = new_adapter("lora", target_modules="q,wi,wo", adapter_args=arguments)
        modules = {name.split(".lora_")[0].split(".")[-1] for name in model.state_dict() if ".lora_" in name}
        self.assertEqual(modules, {"q"})

    def test_prefixes_have_the_decoders_shape(self):
        """T5 v1.1 small: 6 heads of 64 in a model 512 wide; the decoder may have other layers than the encoder."""
        shape = "d_model=40,d_kv=8,d_ff=48,num_layers=1,num_decoder_layers=2,num_heads=3,tie_word_embeddings=False"
        base = str(save_model(folder(), tiny_model(config_overrides=shape)))
        model = new_adapter("prefix", base, adapter_args="num_virtual_tokens=5")
        self.assertEqual(trained_count(model), 5 * 2 * 2 * 3 * 8)
        self.assertEqual(logits_of(model).shape[0], 3)


class DescribingTest(parameterized.TestCase):
    def test_a_saved_adapter_is_summed_up(self):
        lengths = ("--batch_size", "1", "--source_length", "2", "--target_length", "2", "--use_cpu")
        table = json.loads(
            cli_output("summary", "--json", "--model_name_or_path", str(untrained_folder("lora")), *lengths)
        )
        model = untrained_tuner("lora").model
        self.assertEqual(table["trainable"], trained_count(model))
        self.assertEqual(table["parameters"], sum(parameter.numel() for parameter in model.parameters()))

    @pytest.mark.slow
    def test_manifests_name_the_model_and_the_adapter(self):
        directory = Path(trained_tuner("lora", False).args.output_dir)
        model = json.loads((directory / "manifest.json").read_text())["model"]
        self.assertEqual((model["class"], model["adapter"]), ("T5ForConditionalGeneration", "lora"))
        self.assertEqual((model["base"], model["trainable"]), (base_folder(False), model["trained"]))
