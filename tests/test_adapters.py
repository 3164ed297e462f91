"""Adapters over plain models: what is trained, what is saved, and that they answer like any other model."""

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from absl.testing import parameterized
from law_worker import tiny_model
from transformers import AutoModelForSeq2SeqLM, BertConfig, GPT2Config, GPT2LMHeadModel, set_seed

from t5suite.data.batches.collators import shift_right
from t5suite.models.adapter_files import save_adapter
from t5suite.models.adapters import ADAPTERS, adapted, adapter_of, fingerprint, inner_model, merged
from t5suite.models.answering import answerer_for
from t5suite.models.families import Head, give_head
from t5suite.models.loading import describe, load_adapter, load_model
from t5suite.optim.optimizers import make_optimizer
from t5suite.testing import exits_with, tiny_tokenizer
from t5suite.training.flags.model import AdapterArguments

TOLERANCE = 1e-5
TOKENIZER = tiny_tokenizer()
PROMPTS = [[21, 7, 30, 1], [9, 1], [40, 41, 42, 43, 44, 1]]
CANDIDATES = [[[50, 1], [51, 52, 1]]] * 3
MERGING = [name for name, kind in ADAPTERS.items() if kind.merges]


@functools.cache
def base_folder(tied: bool) -> str:
    folder = tempfile.mkdtemp()
    if tied:
        model = tiny_model(TOKENIZER)
    else:
        set_seed(0)
        shape = "d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2,tie_word_embeddings=False"
        model = load_model(tokenizer=TOKENIZER, config_overrides=shape)
    model.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


def plain_model(tied: bool = True):
    return load_model(base_folder(tied), tokenizer=TOKENIZER)


def new_adapter(kind: str, tied: bool = True, given=None, noise: float = 0.1, args=None):
    """An adapter whose weights are not what they begin as, so that it changes the model."""
    set_seed(1)
    defaults = {"num_virtual_tokens": 3} if "num_virtual_tokens" in ADAPTERS[kind].flags else {}
    model = adapted(
        plain_model(tied), TOKENIZER, kind, {**defaults, **(given or {})}, args, base_name=base_folder(tied)
    )
    return shaken(model, noise)


def shaken(model, noise: float = 0.1):
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(noise * torch.randn_like(parameter))
    return model.eval()


def batch_of(model, rows=PROMPTS, targets=((50, 1), (51, 52, 1), (53, 1))):
    collator = answerer_for(model, TOKENIZER).collator
    features = [{"input_ids": row, "labels": list(target)} for row, target in zip(rows, targets)]
    return collator(features)


def logits_of(model, batch):
    with torch.no_grad():
        return model(**{name: value for name, value in batch.items() if name != "labels"}).logits


def base_tensors(model):
    """The tensors of the model below an adapter, as they are now."""
    return {name: tensor.detach().clone() for name, tensor in model.t5suite_base.parameters.items()}


def a_few_updates(model, optimizer_name: str, steps: int = 2):
    optimizer = make_optimizer(optimizer_name, model, 1e-2, None, {})
    model.train()
    batch = batch_of(model)
    for _ in range(steps):
        logits = model(**{name: value for name, value in batch.items() if name != "labels"}).logits
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    return optimizer


# In a process of its own: a model is loaded and answers, without an adapter.
PLAIN_ANSWER = """
import sys
import t5suite.export.sources
from t5suite.inference.predictor import Predictor
from t5suite.models.loading import load_model, load_tokenizer
tokenizer = load_tokenizer(None)
model = load_model(None, tokenizer=tokenizer).eval()
print(tokenizer.decode(model.generate(**tokenizer("sentiment: good", return_tensors="pt"), max_new_tokens=2)[0]))
print("peft" in sys.modules)
"""


@pytest.mark.slow
class ImportTest(parameterized.TestCase):
    def test_a_model_without_adapters_answers_without_peft(self):
        """Only transformers' own trainer loads PEFT wherever it is installed (`transformers.trainer_utils`)."""
        root = Path(__file__).parent.parent
        environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'tests'}"}
        done = subprocess.run([sys.executable, "-c", PLAIN_ANSWER], env=environment, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.splitlines()[-1], "False")


class TrainingTest(parameterized.TestCase):
    @parameterized.parameters(*ADAPTERS)
    def test_the_adapter_alone_is_trained_and_the_model_keeps_its_bits(self, kind):
        model = new_adapter(kind)
        if kind == "prompt_tuning":  # PEFT would make twice the rows and use the first half
            self.assertEqual(adapter_of(model)["trained"], 3 * model.config.d_model)
        before, batch = base_tensors(model), batch_of(model)
        logits = logits_of(model, batch)
        found = model(**{name: value for name, value in batch.items() if name != "labels"}).logits
        torch.nn.functional.cross_entropy(found.flatten(0, 1), batch["labels"].flatten()).backward()
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                self.assertGreater(parameter.grad.abs().sum().item(), 0, name)
        a_few_updates(model, "adamw")
        self.assertTrue(all(torch.equal(before[name], tensor) for name, tensor in base_tensors(model).items()))
        self.assertFalse(torch.equal(logits, logits_of(model, batch)))

    @parameterized.product(kind=("lora", "prompt_tuning"), optimizer=("adamw", "adamw_rms"))
    def test_no_optimizer_state_for_the_embedding_matrix_nor_for_anything_frozen(self, kind, optimizer):
        model = new_adapter(kind)
        found = a_few_updates(model, optimizer)
        trained = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
        kept = {id(parameter) for parameter in found.state if isinstance(parameter, torch.Tensor)}
        grouped = {id(parameter) for group in found.param_groups for parameter in group["params"]}
        self.assertEqual(grouped, trained)
        self.assertLessEqual(kept, trained)
        self.assertNotIn(id(model.get_input_embeddings().weight), kept)
        rows = plain_model().get_input_embeddings().weight.shape
        self.assertEqual(inner_model(model).get_input_embeddings().weight.shape, rows)
        self.assertEqual(inner_model(model).config.vocab_size, rows[0])


class FilesTest(parameterized.TestCase):
    def saved(self, model) -> Path:
        folder = Path(tempfile.mkdtemp())
        save_adapter(model, folder)
        TOKENIZER.save_pretrained(folder)
        return folder

    @parameterized.parameters(*ADAPTERS)
    def test_loaded_again_it_has_the_same_logits_and_can_be_trained_further(self, kind):
        model = new_adapter(kind)
        folder = self.saved(model)
        weights = sorted(file.name for file in folder.glob("*.safetensors"))
        self.assertEqual(weights, ["adapter_model.safetensors"])  # no whole model
        batch = batch_of(model)
        loaded = load_model(str(folder), tokenizer=TOKENIZER).eval()
        self.assertTrue(torch.equal(logits_of(model, batch), logits_of(loaded, batch)))
        self.assertEqual(adapter_of(loaded), adapter_of(model))
        for optimizer_model in (model, loaded):
            a_few_updates(optimizer_model, "adamw")
        self.assertTrue(torch.equal(logits_of(model, batch), logits_of(loaded, batch)))

    @parameterized.parameters("lora", "prompt_tuning", "ia3")
    def test_peft_itself_loads_it(self, kind):
        from peft import PeftModel

        model = new_adapter(kind)
        theirs = AutoModelForSeq2SeqLM.from_pretrained(base_folder(True), dtype=torch.float32)
        theirs = PeftModel.from_pretrained(theirs, self.saved(model)).eval()
        batch = batch_of(model)
        torch.testing.assert_close(logits_of(theirs, batch), logits_of(model, batch), atol=1e-6, rtol=0)

    def test_a_model_that_no_name_brings_back_is_kept_once_beside_its_adapters(self):
        run = Path(tempfile.mkdtemp())
        model = shaken(adapted(tiny_model(TOKENIZER, seed=5), TOKENIZER, "lora", base_name=None))
        batch, before = batch_of(model), base_tensors(model)
        for folder in (run / "checkpoint-2", run):
            save_adapter(model, folder, run_folder=run)
        kept = load_model(str(run / "base"), tokenizer=TOKENIZER)
        self.assertTrue(all(torch.equal(before[name], tensor) for name, tensor in kept.state_dict().items()))
        self.assertFalse((run / "checkpoint-2" / "base").exists())
        moved = Path(tempfile.mkdtemp()) / "elsewhere"
        shutil.move(run, moved)
        for folder in (moved, moved / "checkpoint-2"):
            loaded = load_adapter(folder, tokenizer=TOKENIZER).eval()
            self.assertTrue(torch.equal(logits_of(loaded, batch), logits_of(model, batch)))

    def test_a_base_that_is_gone_or_another_one_is_said_with_the_flag_that_names_it(self):
        base = Path(tempfile.mkdtemp()) / "base-model"
        shutil.copytree(base_folder(True), base)
        model = adapted(load_model(str(base), tokenizer=TOKENIZER), TOKENIZER, "lora", base_name=str(base))
        folder = self.saved(shaken(model))
        shutil.rmtree(base)
        with exits_with(78, "base-model'?, is not there; name it with --adapter_base"):
            load_model(str(folder), tokenizer=TOKENIZER)
        loaded = load_model(str(folder), tokenizer=TOKENIZER, adapter_base=base_folder(True)).eval()
        self.assertTrue(torch.equal(logits_of(loaded, batch_of(model)), logits_of(model.eval(), batch_of(model))))
        other = tempfile.mkdtemp()
        tiny_model(TOKENIZER, seed=9).save_pretrained(other)
        with exits_with(78, "is not the model that this adapter was trained over"):
            load_model(str(folder), tokenizer=TOKENIZER, adapter_base=other)

    def test_torn_or_foreign_weights_are_refused_and_pickles_are_not_read(self):
        folder = self.saved(new_adapter("lora"))
        whole = (folder / "adapter_model.safetensors").read_bytes()
        (folder / "adapter_model.safetensors").write_bytes(whole[: len(whole) // 2])
        with exits_with(78, "truncated"):
            load_adapter(folder, tokenizer=TOKENIZER)
        (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
        with exits_with(78, "from safetensors only"):
            load_adapter(folder, tokenizer=TOKENIZER)
        shutil.copy(self.saved(new_adapter("ia3")) / "adapter_model.safetensors", folder)
        with exits_with(78, "its adapter does not match"):
            load_adapter(folder, tokenizer=TOKENIZER)


class MergingTest(parameterized.TestCase):
    @parameterized.product(kind=MERGING, tied=(True, False))
    def test_merged_logits_equal_unmerged_ones_and_the_head_is_as_before(self, kind, tied):
        model = new_adapter(kind, tied)
        batch = batch_of(model)
        unmerged = logits_of(model, batch)
        plain = merged(model)
        self.assertIs(type(plain).__name__, "T5ForConditionalGeneration")
        torch.testing.assert_close(logits_of(plain, batch), unmerged, atol=TOLERANCE, rtol=TOLERANCE)
        self.assertGreater((unmerged - logits_of(plain_model(tied), batch)).abs().max().item(), 100 * TOLERANCE)
        self.assertEqual(plain.lm_head.weight is plain.shared.weight, tied)
        self.assertTrue(all(parameter.requires_grad for parameter in plain.parameters()))
        folder = tempfile.mkdtemp()
        plain.save_pretrained(folder)
        loaded = load_model(folder, tokenizer=TOKENIZER).eval()
        self.assertTrue(torch.equal(logits_of(loaded, batch), logits_of(plain, batch)))
        self.assertEqual(loaded.lm_head.weight is loaded.shared.weight, tied)

    def test_virtual_tokens_cannot_be_merged(self):
        with exits_with(78, "prefix cannot be merged into the model.*lora, dora, ia3 can"):
            merged(new_adapter("prefix"))

    def test_rows_of_single_tokens_are_trained_in_all_places_of_the_matrix(self):
        """`--adapter_args trainable_token_indices=(50,51)`: label words that the model has never seen."""
        model = new_adapter("lora", args={"trainable_token_indices": [50, 51]})
        self.assertEqual(adapter_of(model)["trained"] - adapter_of(new_adapter("lora"))["trained"], 2 * 32)
        batch, folder = batch_of(model), tempfile.mkdtemp()
        unmerged = logits_of(model, batch)
        save_adapter(model, folder)
        self.assertTrue(torch.equal(logits_of(load_adapter(folder, tokenizer=TOKENIZER).eval(), batch), unmerged))
        plain = merged(model)
        torch.testing.assert_close(logits_of(plain, batch), unmerged, atol=TOLERANCE, rtol=TOLERANCE)
        self.assertIs(plain.lm_head.weight, plain.shared.weight)
        rows = plain.shared.weight - plain_model().shared.weight
        self.assertEqual(rows.abs().sum(dim=1).nonzero().flatten().tolist(), [50, 51])
        with exits_with(78, "trainable_token_indices: .* with all embeddings tied support this"):
            new_adapter("lora", tied=False, args={"trainable_token_indices": [50, 51]})


class AnsweringTest(parameterized.TestCase):
    """Encoder-decoder models with adapters answer over encoder states that are there, as plain ones do."""

    @parameterized.parameters(*ADAPTERS)
    def test_answers_equal_those_of_the_whole_input_alone_and_in_a_batch(self, kind):
        from transformers import GenerationConfig

        model = new_adapter(kind, noise=0.5)
        answerer, batch = answerer_for(model, TOKENIZER), batch_of(model)
        config = dict(max_new_tokens=6, num_beams=2, do_sample=False)
        greedy = GenerationConfig(max_new_tokens=6, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)
        with torch.no_grad():
            hidden = model(**{n: v for n, v in batch.items() if n != "labels"}).encoder_last_hidden_state
            mask = batch["attention_mask"]
            over_states = model.generate(encoder_outputs=_states(hidden), attention_mask=mask, **config)
            whole = model.generate(input_ids=batch["input_ids"], attention_mask=mask, **config)
            self.assertEqual(over_states.tolist(), whole.tolist())
            self.assertEqual(hidden.shape[1] - batch["input_ids"].shape[1], 3 if kind == "prompt_tuning" else 0)
            together = answerer.generate(PROMPTS, greedy)
            apart = [answerer.generate([prompt], greedy)[0] for prompt in PROMPTS]
            self.assertEqual([_stripped(a[0][0]) for a in together], [_stripped(a[0][0]) for a in apart])
            found = answerer.candidate_scores(PROMPTS, CANDIDATES)
            for prompt, of_row in zip(PROMPTS, found):
                for candidate, score in zip(CANDIDATES[0], of_row):
                    labels = torch.tensor([candidate])
                    logits = model(
                        input_ids=torch.tensor([prompt]),
                        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                        decoder_input_ids=shift_right(labels, 0, 0),
                    ).logits
                    expected = logits.log_softmax(-1).gather(2, labels[..., None]).sum().item()
                    self.assertAlmostEqual(score, expected, delta=1e-4)


def _states(hidden):
    from transformers.modeling_outputs import BaseModelOutput

    return BaseModelOutput(last_hidden_state=hidden)


def _stripped(ids):
    return ids[: ids.index(1) + 1] if 1 in ids else ids


class CausalTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        set_seed(3)
        config = GPT2Config(
            vocab_size=64, n_embd=16, n_layer=2, n_head=2, n_positions=64, pad_token_id=0, eos_token_id=1
        )
        model = GPT2LMHeadModel(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(4)
        self.folder = tempfile.mkdtemp()
        model.eval().save_pretrained(self.folder)
        self.model = model

    def adapter(self, kind):
        given = {"num_virtual_tokens": 3} if "num_virtual_tokens" in ADAPTERS[kind].flags else {}
        how = {"prompt_tuning_init": "random"} if kind == "prompt_tuning" else {}
        model = adapted(self.model, TOKENIZER, kind, {**given, **how}, base_name=self.folder)
        return shaken(model, 0.3)

    @parameterized.parameters(*ADAPTERS)
    def test_the_same_answers_alone_and_in_a_batch(self, kind):
        from transformers import GenerationConfig

        answerer = answerer_for(self.adapter(kind), TOKENIZER)
        config = GenerationConfig(max_new_tokens=5, pad_token_id=0, eos_token_id=1, do_sample=False)
        with torch.no_grad():
            together = answerer.generate(PROMPTS, config)
            apart = [answerer.generate([prompt], config)[0] for prompt in PROMPTS]
            scores = answerer.candidate_scores(PROMPTS, CANDIDATES)
            alone = [answerer.candidate_scores([prompt], CANDIDATES[:1])[0] for prompt in PROMPTS]
        self.assertEqual([_stripped(a[0][0]) for a in together], [_stripped(a[0][0]) for a in apart])
        torch.testing.assert_close(torch.tensor(scores), torch.tensor(alone), atol=1e-4, rtol=0)


class HeadTest(parameterized.TestCase):
    """Encoder-only models with a head for classes: the head is trained and saved with the adapter."""

    @parameterized.parameters("lora", "ia3", "prompt_tuning")
    def test_the_head_is_saved_with_the_adapter(self, kind):
        from t5suite.models.adapter_files import restore_adapter
        from t5suite.models.families import HEAD_CLASSES

        config = BertConfig(
            vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24
        )
        give_head(config, Head(("no", "yes")), HEAD_CLASSES["masked", False])

        def make(seed):
            set_seed(seed)
            how = {"prompt_tuning_init": "random"} if kind == "prompt_tuning" else {}
            return adapted(HEAD_CLASSES["masked", False].from_config(config), TOKENIZER, kind, how, base_name="bert")

        model, folder = shaken(make(0)), tempfile.mkdtemp()
        save_adapter(model, folder)
        other = make(0)
        with torch.no_grad():
            inner_model(other).classifier.modules_to_save["default"].weight.add_(1)
        restore_adapter(other, folder)
        batch = {"input_ids": torch.tensor([[5, 6, 7]]), "attention_mask": torch.ones(1, 3, dtype=torch.long)}
        self.assertTrue(torch.equal(logits_of(model, batch), logits_of(other.eval(), batch)))


class FlagsTest(parameterized.TestCase):
    @parameterized.parameters(
        ({"lora_r": 4}, "--lora_r has no effect without --adapter"),
        ({"adapter_args": "use_rslora=true"}, "--adapter_args has no effect without --adapter"),
        ({"adapter": "loar"}, "--adapter: unknown adapter 'loar'; did you mean lora"),
        ({"adapter": "ia3", "lora_r": 4}, "--lora_r: ia3 .--adapter. has no such setting; lora, dora have"),
        ({"adapter": "lora", "num_virtual_tokens": 4}, "--num_virtual_tokens: lora .* prompt_tuning, prefix"),
        ({"adapter": "prompt_tuning", "prompt_tuning_init": "words"}, "unknown initialisation 'words'"),
        ({"adapter": "prompt_tuning", "prompt_tuning_init": "text"}, "--prompt_tuning_init_text belong together"),
        ({"adapter": "prompt_tuning", "prompt_tuning_init_text": "x"}, "belong together"),
        ({"adapter": "prefix", "merge_adapter": True}, "--merge_adapter: prefix changes no weights"),
    )  # fmt: skip
    def test_a_flag_that_is_not_heeded_is_refused_by_name(self, flags, message):
        with exits_with(78, message):
            AdapterArguments(**flags)

    @parameterized.parameters(
        ({"use_rslor": True}, "lora has no setting 'use_rslor'; did you mean use_rslora"),
        ({"use_rslora": "maybe"}, "use_rslora=maybe: expected bool"),
        ({"r": 4}, "give it as --lora_r"),
        ({"init_lora_weights": "pissa"}, "would change the base model"),
    )
    def test_settings_of_pefts_are_checked(self, args, message):
        with exits_with(78, message):
            new_adapter("lora", args=args)

    def test_lora_s_rank_scale_and_dropout_are_those_of_the_flags(self):
        config = new_adapter("lora", given={"lora_r": 3, "lora_alpha": 5, "lora_dropout": 0.25}).peft_config["default"]
        self.assertEqual((config.r, config.lora_alpha, config.lora_dropout), (3, 5, 0.25))

    @parameterized.parameters("shared", "lm_head")
    def test_a_tied_matrix_cannot_have_an_adapter_in_one_of_its_places(self, target):
        with exits_with(78, f"{target}.* is one matrix with others"):
            new_adapter("lora", given={"target_modules": f"q,{target}"})
        if target == "lm_head":
            self.assertGreater(adapter_of(new_adapter("lora", False, {"target_modules": "lm_head"}))["trained"], 0)

    @parameterized.parameters(("all-linear", "wi"), ("regex:.*decoder.*\\.wo", "wo"), ("k", "k"))
    def test_targets_by_name_pattern_and_all(self, targets, expected):
        model = new_adapter("lora", given={"target_modules": targets})
        found = {name.split(".lora_")[0].split(".")[-1] for name, p in model.named_parameters() if p.requires_grad}
        self.assertIn(expected, found)
        self.assertEqual(targets == "all-linear", len(found) > 1)


class PromptTest(parameterized.TestCase):
    def rows(self, model):
        return model.prompt_encoder["default"].embedding.weight.detach()

    def test_a_text_is_repeated_to_the_number_of_virtual_tokens(self):
        given = {"num_virtual_tokens": 7, "prompt_tuning_init": "text", "prompt_tuning_init_text": "good or bad"}
        model = new_adapter("prompt_tuning", given=given, noise=0.0)
        ids = TOKENIZER("good or bad", add_special_tokens=False)["input_ids"]
        expected = model.get_input_embeddings().weight[torch.tensor((ids * 7)[:7])]
        self.assertTrue(torch.equal(self.rows(model), expected))

    def test_prefixes_have_the_decoders_shape(self):
        """T5 v1.1 small: 6 heads of 64 in a model 512 wide; the decoder may have other layers than the encoder."""
        shape = "d_model=40,d_kv=8,d_ff=48,num_layers=1,num_decoder_layers=2,num_heads=3,tie_word_embeddings=False"
        set_seed(0)
        model = load_model(tokenizer=TOKENIZER, config_overrides=shape)
        model = adapted(model, TOKENIZER, "prefix", {"num_virtual_tokens": 5}, base_name="x")
        self.assertEqual(adapter_of(model)["trained"], 5 * 2 * 2 * 3 * 8)
        self.assertEqual(logits_of(model.eval(), batch_of(model)).shape[0], 3)


class DescribingTest(parameterized.TestCase):
    def test_manifests_name_the_model_and_the_adapter(self):
        found = describe(new_adapter("lora"))
        self.assertEqual((found["class"], found["adapter"]), ("T5ForConditionalGeneration", "lora"))
        self.assertEqual((found["base"], found["trainable"]), (base_folder(True), found["trained"]))

    def test_the_fingerprint_tells_models_apart_and_knows_one_again(self):
        self.assertEqual(fingerprint(plain_model()), fingerprint(plain_model()))
        other = plain_model()
        with torch.no_grad():
            other.decoder.final_layer_norm.weight[0] += 1e-3
        self.assertNotEqual(fingerprint(other), fingerprint(plain_model()))
