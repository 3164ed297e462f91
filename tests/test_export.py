"""Plain exports: the source's weights bit by bit, whatever the source is; nothing half written, nothing run."""

import contextlib
import functools
import json
import os
import shutil
import subprocess
import tempfile
import unittest
from collections import OrderedDict
from pathlib import Path
from unittest import mock

import peft
import pytest
import shared_data
import torch
import transformers
from absl.testing import parameterized
from safetensors.torch import load_file, save_file
from sentencepiece import SentencePieceProcessor
from test_sharded_training import HAS_COMPILER, NEEDS_COMPILER, ROOT, environment, torchrun
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, PreTrainedModel, set_seed

from t5suite import load_task
from t5suite.testing import bundled_model, exits_with, run_cli, save_model, tiny_model, tiny_run, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
T5 = "d_model=32,d_kv=8,d_ff=48,num_layers=1,num_decoder_layers=1,num_heads=2"
# Makes `torch.load` refuse everything but tensors; here, because an export must not leave it set.
WEIGHTS_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
PROMPTS = torch.tensor([[21, 7, 30, 1], [9, 1, 0, 0]])
RUN = {"value": 0}  # what a pickle would change that runs code


class Runs:
    def __reduce__(self):
        return (RUN.update, ({"value": 1},))


def make(kind: str):
    """A model with random weights that are not what they begin as."""
    set_seed(0)
    if kind == "classifier":
        return BertForSequenceClassification(BertConfig(**BERT))
    return tiny_model(*KINDS[kind], scale=1.0)


BERT = dict(vocab_size=640, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48)
BERT |= dict(num_labels=3, problem_type="single_label_classification")
BART = "d_model=32,encoder_layers=1,decoder_layers=1,encoder_attention_heads=2,decoder_attention_heads=2,"
KINDS = {
    "tied T5": (None, T5),
    "untied T5": ("t5-v1_1-small", T5),
    "BART": ("bart", BART + "encoder_ffn_dim=48,decoder_ffn_dim=48,max_position_embeddings=64"),
    "GPT-2": ("gpt2", "n_embd=32,n_layer=1,n_head=2,n_positions=64"),
    "classifier": None,
}


@functools.cache
def source_folder(kind: str = "tied T5") -> str:
    """A saved model with its tokenizer, and with T5's SentencePiece model."""
    folder = tempfile.mkdtemp()
    make(kind).save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    shutil.copy(Path(bundled_model()) / "spiece.model", folder)
    return folder


def logits_of(folder) -> torch.Tensor:
    """A folder's model as plain transformers loads it and runs it."""
    (architecture,) = json.loads((Path(folder) / "config.json").read_text())["architectures"]
    return logits_of_model(getattr(transformers, architecture).from_pretrained(folder))


@torch.no_grad()
def logits_of_model(model) -> torch.Tensor:
    starts = torch.tensor([[0, 8], [0, 9]])
    decoder = {"decoder_input_ids": starts} if model.config.is_encoder_decoder else {}
    return model.eval()(input_ids=PROMPTS, attention_mask=PROMPTS.ne(0), **decoder).logits


@functools.cache
def exported_folder(kind: str) -> Path:
    """The checked export of `source_folder(kind)`; only read it."""
    folder = Path(tempfile.mkdtemp()) / "exported"
    run_cli("export", "--model_name_or_path", source_folder(kind), "--output_dir", folder, "--check")
    return folder


@functools.cache
def source_without_spiece() -> Path:
    folder = Path(shutil.copytree(source_folder(), Path(tempfile.mkdtemp()) / "source"))
    (folder / "spiece.model").unlink()
    return folder


@functools.cache
def run_with_checkpoints() -> Path:
    """A run of twelve steps with checkpoints of steps 6 and 12."""
    sizes = {"max_steps": 12, "per_device_train_batch_size": 2, "max_eval_samples": 2}
    return tiny_run(save_strategy="steps", save_steps=6, eval_strategy="no", **sizes).directory


class TestCase(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.enter_context(tempfile.TemporaryDirectory()))
        self.output = self.folder / "exported"

    def export(self, source, *words, output=None) -> dict:
        """What the command writes into `export.json`."""
        output = self.output if output is None else output
        run_cli("export", "--model_name_or_path", source, "--output_dir", output, *words)
        return json.loads((output / "export.json").read_text())


class PlainTest(TestCase):
    @parameterized.parameters(*KINDS)
    @pytest.mark.quick_cases(1)
    def test_the_export_computes_the_sources_logits_bitwise(self, kind):
        exported = exported_folder(kind)
        self.assertTrue(torch.equal(logits_of(exported), logits_of(source_folder(kind))))
        self.assertEqual(json.loads((exported / "export.json").read_text())["check"], {"weights_that_differ": 0})
        if kind in ("tied T5", "untied T5"):  # a matrix with a row a piece is stored once
            rows = [len(tensor) for tensor in load_file(exported / "model.safetensors").values()]
            self.assertEqual(sum(size in (621, 640) for size in rows), 1 + (kind == "untied T5"))

    @parameterized.parameters("bfloat16", "float16")
    @pytest.mark.quick_cases(1)
    def test_another_precision_is_the_rounded_weights(self, dtype):
        whole = load_file(Path(source_folder()) / "model.safetensors")
        self.export(source_folder(), "--dtype", dtype, "--check")
        stored = load_file(self.output / "model.safetensors")
        self.assertEqual(stored.keys(), whole.keys())
        for name, tensor in whole.items():
            self.assertTrue(torch.equal(stored[name], tensor.to(getattr(torch, dtype))), name)
        again = self.export(self.output, output=self.folder / "again")  # stays in the precision that it has
        self.assertEqual(again["dtype"], dtype)

    def test_a_weight_that_float16_cannot_hold_is_named(self):
        model = make("tied T5")
        model.decoder.final_layer_norm.weight.data[0] = 1e6
        large = self.folder / "large"
        model.save_pretrained(large)
        TOKENIZER.save_pretrained(large)
        with exits_with(74, "decoder.final_layer_norm.weight .* bfloat16"):
            self.export(large, "--dtype", "float16")
        self.assertEqual(os.listdir(self.folder), ["large"])

    @parameterized.parameters(1e-6, 1.0)
    @pytest.mark.quick_cases(1)
    def test_weights_that_change_on_their_way_to_the_disk_fail_the_check(self, change):
        save_pretrained = PreTrainedModel.save_pretrained

        def damaging(model, folder, **settings):
            save_pretrained(model, folder, **settings)
            file = Path(folder) / "model.safetensors"
            weights = load_file(file)
            weights["decoder.final_layer_norm.weight"][0] += change
            save_file(weights, file, metadata={"format": "pt"})

        source = source_folder()  # before the library is moved under it: it may have to be made
        refused = exits_with(74, "1 weights .*: decoder.final_layer_norm.weight")
        with mock.patch.object(PreTrainedModel, "save_pretrained", damaging), refused:
            self.export(source, "--check", "--allow_untested_libraries")
        self.assertFalse(self.output.exists())

    def test_the_tokenizer_is_the_same_and_readable_before_transformers_5(self):
        exported = exported_folder("tied T5")
        tokenizer = AutoTokenizer.from_pretrained(exported)
        text = "<extra_id_3> the film was good.</s>"
        self.assertEqual(tokenizer(text)["input_ids"], TOKENIZER(text)["input_ids"])
        self.assertEqual(tokenizer.all_special_ids, TOKENIZER.all_special_ids)
        settings = json.loads((exported / "tokenizer_config.json").read_text())
        # transformers 4.57 takes a list of this name for a table, and stops.
        self.assertNotIsInstance(settings.get("extra_special_tokens"), list)
        original, copy = (Path(place) / "spiece.model" for place in (source_folder(), exported))
        self.assertEqual(copy.read_bytes(), original.read_bytes())

    @parameterized.parameters(bundled_model(), str(shared_data.SHARED_DATA / "tokenizer/t5"))
    @pytest.mark.quick_cases(1)
    def test_a_spiece_model_is_made_of_the_tokenizer_piece_by_piece(self, place):
        if place != bundled_model() and not shared_data.has("tokenizer/t5/spiece.model"):
            self.skipTest(shared_data.MISSING)
        sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "vocab_size": 32128}
        config = transformers.T5Config(**sizes, decoder_start_token_id=0)
        transformers.T5ForConditionalGeneration(config).save_pretrained(self.folder / "source")
        self.export(self.folder / "source", "--tokenizer_name", place)
        made, original = SentencePieceProcessor(), SentencePieceProcessor()
        made.Load(str(self.output / "spiece.model"))
        original.Load(str(Path(place) / "spiece.model"))
        pieces = lambda m: [(m.id_to_piece(i), m.get_score(i), m.is_control(i), m.is_unknown(i)) for i in range(len(m))]
        self.assertEqual(pieces(made), pieces(original))
        for text in ("the film was good.", "\ta  b\n", "naïve ½ ﬁne <b>", "１２３ 你好"):
            self.assertEqual(made.encode(text), original.encode(text))

    def test_a_tokenizer_that_reads_otherwise_gets_no_spiece_model(self):
        tokenizer = tiny_tokenizer()
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        with mock.patch.object(AutoTokenizer, "from_pretrained", return_value=tokenizer):
            self.export(source_without_spiece(), "--allow_untested_libraries")
        self.assertFalse((self.output / "spiece.model").exists())
        self.export(source_without_spiece(), output=self.folder / "usual")
        self.assertTrue((self.folder / "usual" / "spiece.model").exists())

    def test_what_says_the_task_goes_along_and_training_state_does_not(self):
        run = self.folder / "run"
        shutil.copytree(source_folder(), run)
        (run / "task.json").write_text('{"format": 1}')
        for name in ("optimizer.pt", "trainer_state.json", "manifest.json"):
            (run / name).write_text("{}")
        self.export(run)
        self.assertEqual((self.output / "task.json").read_text(), '{"format": 1}')
        self.assertEmpty({"optimizer.pt", "trainer_state.json", "manifest.json"} & set(os.listdir(self.output)))


class SourceTest(TestCase):
    def run_that_has_not_ended(self) -> Path:
        """A run directory with checkpoints of steps 6 and 12 and no model of its own."""
        run = Path(shutil.copytree(run_with_checkpoints(), self.folder / "run"))
        (run / "model.safetensors").unlink()
        return run

    def test_what_is_not_there_is_refused(self):
        empty = self.folder / "run"
        empty.mkdir()
        for source, words, message in (
            ("./nowhere", (), "--model_name_or_path ./nowhere: no such folder"),
            (empty, (), "--model_name_or_path .*run: no model in this folder"),
            (
                source_folder(),
                ("--adapter_base", source_folder()),
                "--adapter_base has no effect: --model_name_or_path .* is not an adapter",
            ),
        ):
            with exits_with(78, message):
                self.export(source, *words)

    @pytest.mark.slow
    def test_a_run_that_has_not_ended_gives_its_newest_checkpoint(self):
        run = self.run_that_has_not_ended()
        self.export(run)
        stored, newest, older = (
            load_file(folder / "model.safetensors")["shared.weight"]
            for folder in (self.output, run / "checkpoint-12", run / "checkpoint-6")
        )
        self.assertTrue(torch.equal(stored, newest))
        self.assertFalse(torch.equal(stored, older))

    @pytest.mark.slow
    def test_a_damaged_checkpoint_is_refused_and_left_where_it_is(self):
        checkpoint = self.run_that_has_not_ended() / "checkpoint-12"
        with open(checkpoint / "model.safetensors", "r+b") as file:
            file.seek(5000)
            file.write(b"damage")
        for name in (checkpoint.parent, checkpoint):
            with exits_with(74, "model.safetensors: SHA-256"):
                self.export(name)
        self.assertTrue(checkpoint.is_dir())

    def adapter_folder(self, settings) -> tuple:
        """`(folder as PEFT saves it, the adapted model)`, the adapter's weights random."""
        set_seed(1)
        base = transformers.T5ForConditionalGeneration.from_pretrained(source_folder())
        model = peft.get_peft_model(base, settings)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data += 0.1 * torch.randn_like(parameter)
        model.save_pretrained(self.folder / "adapter")
        TOKENIZER.save_pretrained(self.folder / "adapter")
        return self.folder / "adapter", model

    @parameterized.parameters(
        peft.IA3Config(task_type="SEQ_2_SEQ_LM", target_modules=["k", "v", "wo"], feedforward_modules=["wo"]),
        peft.LoraConfig(task_type="SEQ_2_SEQ_LM", target_modules=["q", "v"]),
    )
    @pytest.mark.quick_cases(1)
    def test_an_adapter_is_merged(self, settings):
        folder, model = self.adapter_folder(settings)
        self.export(folder)
        expected = logits_of_model(model)
        self.assertLess((logits_of(self.output) - expected).abs().max(), 1e-5 * expected.abs().max())
        self.assertGreater((logits_of(source_folder()) - expected).abs().max(), 1e-2)
        self.assertNotIn("adapter_config.json", os.listdir(self.output))

    def test_an_adapter_is_merged_without_the_functions_of_its_task(self):
        folder, model = self.adapter_folder(peft.LoraConfig(task_type="SEQ_2_SEQ_LM", target_modules=["q"]))
        entry = {**load_task("mini", "sentiment").entry, "formatter": "shout", "metric_names": ["loudness"]}
        card = json.loads(
            (save_model(self.folder / "model", tasks=[load_task("mini", "sentiment")]) / "task.json").read_text()
        )
        (folder / "task.json").write_text(json.dumps({**card, "tasks": {"sentiment": entry}}))
        self.export(folder)
        expected = logits_of_model(model)
        self.assertLess((logits_of(self.output) - expected).abs().max(), 1e-5 * expected.abs().max())
        self.assertEqual((self.output / "task.json").read_text(), (folder / "task.json").read_text())

    def test_an_adapter_that_no_weights_can_hold_is_refused(self):
        folder, _ = self.adapter_folder(peft.PromptTuningConfig(task_type="SEQ_2_SEQ_LM", num_virtual_tokens=3))
        with exits_with(78, "prompt_tuning cannot be merged"):
            self.export(folder)

    @pytest.mark.slow
    def test_bare_weights_become_a_model_of_their_configuration(self):
        # As nanoT5's compact T5 saves them: the shared embedding spelled out, an output layer of its own.
        weights = {f"module.{name}": tensor for name, tensor in make("untied T5").state_dict().items()}
        torch.save({"model_state_dict": weights, "step": 5}, self.folder / "bare.pt")
        bare, encoder = self.folder / "bare.pt", self.folder / "encoder"
        words = ["export", "--init_checkpoint", bare, "--config_name", "t5-v1_1-small", "--config_overrides", T5]
        words += ["--tokenizer_name", bundled_model()]
        run_cli(*words, "--output_dir", self.output)
        self.assertTrue(torch.equal(logits_of(self.output), logits_of(source_folder("untied T5"))))
        self.assertEqual(json.loads((self.output / "export.json").read_text())["source"], str(bare))
        run_cli(*words, "--encoder_only", "--output_dir", encoder)
        stored = load_file(encoder / "model.safetensors")
        self.assertEqual({name.split(".")[0] for name in stored}, {"shared", "encoder"})


class FlagsTest(TestCase):
    def test_a_folder_is_written_as_a_whole_or_not_at_all(self):
        tokenizer = type(TOKENIZER)
        broken = mock.patch.object(tokenizer, "save_pretrained", side_effect=ZeroDivisionError)
        with broken, self.assertRaises(ZeroDivisionError):
            self.export(source_folder())
        self.assertEqual(os.listdir(self.folder), [])
        self.output.mkdir()
        self.addCleanup(os.umask, os.umask(0o027))
        self.export(source_folder())  # an empty one is filled
        self.assertEqual({path.stat().st_mode & 0o777 for path in self.output.iterdir()}, {0o640})
        before = {path.name: path.read_bytes() for path in self.output.iterdir()}
        with exits_with(78, "--output_dir .*exported' is not empty"):
            self.export(source_folder("untied T5"))
        self.assertEqual({path.name: path.read_bytes() for path in self.output.iterdir()}, before)
        self.output = self.folder / "empty"
        self.output.mkdir()
        with contextlib.chdir(self.output), exits_with(78, "--output_dir .*empty' is the current directory"):
            self.export(source_folder())
        with (
            mock.patch.object(os.path, "ismount", return_value=True),
            exits_with(78, "--output_dir .*empty' is a mount point"),
        ):
            self.export(source_folder())

    def test_a_link_to_an_empty_folder_is_followed(self):
        there = self.folder / "other disk" / "empty"
        there.mkdir(parents=True)
        self.output.symlink_to(there)
        self.export(source_folder())
        self.assertTrue(self.output.is_symlink())
        self.assertTrue(torch.equal(logits_of(there), logits_of(source_folder())))
        self.assertEqual(os.listdir(there.parent), ["empty"])

    @parameterized.parameters(
        ("--init_checkpoint w.pt", "give --model_name_or_path, or --init_checkpoint with --config_name"),
        ("--config_name mini", "--init_checkpoint and --config_name go together"), ("--quantize int8", "add --format onnx"),
        ("--config_overrides d_model=8", "--config_overrides has no effect with --model_name_or_path"),
        ("--format onx", "unknown format 'onx'; did you mean onnx"), ("--dtype bfloat1", "'bfloat1'; did you mean bfloat16"),
        ("--format onnx --quantize int4", "--quantize int4: only int8 is supported"),
        ("--format onnx --dtype bfloat16", "such files hold float32"),
        ("--format ctranslate2 --encoder_only", "--format ctranslate2: a bare encoder is written only as hf"),
    )  # fmt: skip
    def test_flags_that_do_not_go_together_are_refused(self, flags, message):
        with exits_with(78, message):
            self.export(source_folder(), *flags.split())
        self.assertFalse(self.output.exists())


class ShardsTest(TestCase):
    """Shards as DeepSpeed 0.19 writes them, made here, so that nothing has to be compiled."""

    def checkpoint(self, stage: int = 3, step: int = 7, **more) -> tuple[Path, dict]:
        """`(checkpoint of two ranks, the whole weights)`: a half each of every tensor (ZeRO-3) or of them all (ZeRO-2)."""
        model, folder = make("tied T5"), self.folder / "run"
        shutil.copytree(source_folder(), folder)
        (folder / "model.safetensors").unlink()
        shards = folder / f"global_step{step}"
        shards.mkdir()
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        shapes = OrderedDict((name, p.shape) for name, p in model.named_parameters())
        every = [(name, names[id(p)]) for name, p in model.named_parameters(remove_duplicate=False)]
        shared = {name: first for name, first in every if name != first}
        halves_of = lambda tensor, fill: torch.nn.functional.pad(tensor, (0, fill)).chunk(2)
        flat = [parameter.detach().reshape(-1) for parameter in model.parameters()]
        parts = halves_of(torch.cat(flat), -sum(map(len, flat)) % 4)
        if stage == 3:
            parts = map(torch.cat, zip(*(halves_of(tensor, len(tensor) % 2) for tensor in flat)))
        facts = {"buffer_names": [], "module": {}, "param_shapes": [shapes], "shared_params": shared, **more}
        for rank, part in enumerate(parts):
            key = "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"
            state = {"zero_stage": stage, "partition_count": 2, key: [part]}
            start = f"zero_pp_rank_{rank}_mp_rank_00"
            torch.save({"optimizer_state_dict": state}, shards / f"{start}_optim_states.pt")
            if stage == 3 or rank == 0:
                torch.save(facts, shards / f"{start if stage == 3 else 'mp_rank_00'}_model_states.pt")
        return folder, dict(model.named_parameters())

    @parameterized.parameters(2, 3)
    @pytest.mark.quick_cases(1)
    def test_shards_become_the_whole_weights_tied_ones_once(self, stage):
        folder, weights = self.checkpoint(stage)
        self.export(folder)
        stored = load_file(self.output / "model.safetensors")
        self.assertEqual(stored.keys(), weights.keys())
        for name, tensor in stored.items():
            self.assertTrue(torch.equal(tensor, weights[name]), name)

    def test_shards_are_found_by_their_step(self):
        folder, weights = self.checkpoint(step=10)
        for name in ("global_step9", "global_stepx"):  # without shards
            (folder / name).mkdir()
        self.export(folder)
        stored = load_file(self.output / "model.safetensors")
        self.assertTrue(torch.equal(stored["shared.weight"], weights["shared.weight"]))

    def test_a_shard_that_would_run_code_is_refused_and_runs_nothing(self):
        folder, _ = self.checkpoint(ds_config=Runs())
        with exits_with(74, "could run code"):
            self.export(folder)
        self.assertEqual(RUN["value"], 0)
        self.assertNotIn(WEIGHTS_ONLY, os.environ)
        self.assertFalse(self.output.exists())

    def test_a_missing_rank_or_configuration_is_named(self):
        folder, _ = self.checkpoint()
        (folder / "global_step7" / "zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
        with exits_with(74, "cannot be put together .*Expected 2"):
            self.export(folder)
        (folder / "config.json").unlink()
        with exits_with(78, "run' holds shards but no config.json"):
            self.export(folder)


@pytest.mark.slow
class RealShardsTest(TestCase):
    """Shards that DeepSpeed has written on two ranks."""

    @parameterized.parameters("zero1", "zero2", "zero3")
    @unittest.skipUnless(HAS_COMPILER, NEEDS_COMPILER)
    def test_shards_of_a_run_give_the_weights_that_it_saved(self, stage):
        run = self.folder / "run"
        flags = (
            f"mini.yaml --deepspeed {stage} --max_steps 2 --max_train_samples 32 --max_eval_samples 4 --use_cpu True "
            f"--save_steps 2 --eval_strategy no --optimizer adamw --per_device_train_batch_size 4 --output_dir {run}"
        )
        command = torchrun(2, str(ROOT / "fine_tune_t5.py"), *flags.split())
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=900)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        checkpoint = run / "checkpoint-2"
        saved = load_file(checkpoint / "model.safetensors")
        for name in ("model.safetensors", "checkpoint.json"):
            (checkpoint / name).unlink()
        self.export(checkpoint)
        stored = load_file(self.output / "model.safetensors")
        self.assertEqual(stored.keys(), saved.keys())
        for name, tensor in stored.items():
            self.assertTrue(torch.equal(tensor, saved[name]), name)
