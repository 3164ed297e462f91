"""Law 9: whatever loads weights loads all of them, or stops; and a tokenizer that is really there."""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from absl.testing import absltest, parameterized
from law_worker import trainer_of
from safetensors.torch import load_file, save_file
from support import later_wins
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    set_seed,
)
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import revert_weight_conversion
from transformers.modeling_utils import remove_tied_weights_from_state_dict
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

import fine_tune_t5
import pre_train_t5
from t5suite import cli
from t5suite.base.errors import ConfigError, DataError, UserError
from t5suite.data.batches.training_data import tokenize_split
from t5suite.data.rows.sources import DataOptions, load_split
from t5suite.fine_tuner import FineTuner
from t5suite.models.configs import check_resumes, load_config
from t5suite.models.families import check_reads_text
from t5suite.models.loading import BUNDLED_MODEL, encoding_for, load_model, load_tokenizer
from t5suite.models.weights import fitted, load_weights
from t5suite.tasks.registry import Lengths, load_task
from t5suite.training.flags.fine_tuning import SuiteTrainingArguments

_WIDTH = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
_DECODER = {**_WIDTH, "num_key_value_heads": 2, "vocab_size": 1152}
_GEMMA = {**_DECODER, "head_dim": 16}
_T5 = {
    "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 2, "vocab_size": 1152,
    "decoder_start_token_id": 0,
}  # fmt: skip
_BART = {
    "vocab_size": 1152, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 128,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1, "decoder_start_token_id": 0, "forced_eos_token_id": None,
}  # fmt: skip
_BERT = {**_WIDTH, "vocab_size": 1152}
_VISION = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip

TYPES = {
    "t5": _T5,
    "t5gemma": {"encoder": _GEMMA, "decoder": _GEMMA, "vocab_size": 1152},
    "t5gemma2": {
        "encoder": {"text_config": _GEMMA, "vision_config": _VISION, "mm_tokens_per_image": 4},
        "decoder": _GEMMA,
        "vocab_size": 1152,
    },
    "bart": _BART,
    "m2m_100": _BART,
    "switch_transformers": {
        **_T5, "num_experts": 4, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "expert_capacity": 64,
    },
    "nllb-moe": {
        **_BART, "num_experts": 4, "encoder_sparse_step": 2, "decoder_sparse_step": 2, "expert_capacity": 64,
        "moe_eval_capacity_token_fraction": -1.0,
    },
    "gpt_neox": _BERT,
    "mixtral": {**_DECODER, "num_local_experts": 4, "num_experts_per_tok": 2},
    "olmoe": {**_DECODER, "num_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {
        **_DECODER, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "decoder_sparse_step": 1,
    },
    "deepseek_v3": {
        **_BERT, "num_key_value_heads": 2, "moe_intermediate_size": 16, "n_routed_experts": 4, "n_group": 1,
        "topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "q_lora_rank": 16, "kv_lora_rank": 16,
        "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16, "n_shared_experts": 1,
    },
    "gemma3_text": _GEMMA,
    "granitemoe": {**_DECODER, "num_local_experts": 4, "num_experts_per_tok": 2},
    "bert": _BERT,
    "nomic_bert": _BERT,
    "gte": _BERT,
    "modernbert": _BERT,
    "big_bird": {**_BERT, "block_size": 8, "num_random_blocks": 1, "attention_type": "original_full"},
}  # fmt: skip


def configured(model_type: str, **changes) -> str:
    """A folder with a config.json and nothing else.

    >>> configured("mixtral", num_hidden_layers=1)
    """
    folder = Path(tempfile.mkdtemp())
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, **TYPES[model_type], **changes}))
    return str(folder)


AUTO_CLASSES = {"seq2seq": AutoModelForSeq2SeqLM, "causal": AutoModelForCausalLM, "masked": AutoModelForMaskedLM}
# transformers 5.23 renames, splits or merges tensors of these on saving.
CONVERTED = ("t5gemma2", "gpt_neox", "mixtral", "olmoe", "granitemoe", "nomic_bert", "gte")


def new_model(model_type: str, seed: int):
    set_seed(seed)
    return load_model(config_name=configured(model_type), tokenizer=load_tokenizer(None))


def saved(model) -> Path:
    folder = Path(tempfile.mkdtemp())
    model.save_pretrained(folder)
    return folder


def values(model) -> dict:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def changed(folder: Path, change) -> Path:
    """A copy of a folder with other tensors in its file."""
    copy = Path(tempfile.mkdtemp()) / "copy"
    shutil.copytree(folder, copy)
    tensors = load_file(copy / "model.safetensors")
    change(tensors)
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    return copy


def halved(tensors: dict, name: str) -> None:
    tensors[name] = tensors[name][: len(tensors[name]) // 2].clone()


class LoadWeightsTest(parameterized.TestCase):
    def assert_equal(self, found: dict, expected: dict):
        self.assertEqual(found.keys(), expected.keys())
        for name, tensor in expected.items():
            self.assertTrue(torch.equal(found[name], tensor), name)

    @parameterized.parameters(*CONVERTED, "t5", "bart", "bert")
    def test_every_tensor_of_a_saved_model_is_loaded_into_another(self, model_type):
        source, target = new_model(model_type, 0), new_model(model_type, 1)
        parameters = [id(parameter) for parameter in target.parameters()]
        expected, folder = values(source), saved(source)
        load_weights(target, folder)
        self.assert_equal(target.state_dict(), expected)
        self.assertEqual([id(parameter) for parameter in target.parameters()], parameters)  # the optimizer's
        # What we save, plain transformers loads, under its published names.
        self.assert_equal(type(source).from_pretrained(folder).state_dict(), expected)

    def test_saved_names_are_the_published_ones(self):
        names = load_file(saved(new_model("mixtral", 0)) / "model.safetensors").keys()
        self.assertIn("model.layers.0.block_sparse_moe.experts.3.w1.weight", names)
        self.assertIn("embed_out.weight", load_file(saved(new_model("gpt_neox", 0)) / "model.safetensors"))

    @parameterized.parameters(
        (lambda tensors: tensors.pop("embed_out.weight"), "missing (1): lm_head.weight"),
        (lambda tensors: tensors.update(other=torch.ones(2)), "unknown (1): other"),
        (lambda tensors: halved(tensors, "embed_out.weight"), "lm_head.weight (320x32, not 640x32)"),
    )
    def test_an_incomplete_file_stops_and_names_the_tensor(self, change, named):
        source = new_model("gpt_neox", 0)
        folder = changed(saved(source), change)
        before = values(source)
        with self.assertRaises(DataError) as raised:
            load_weights(source, folder)
        self.assertIn(named, str(raised.exception))
        self.assertIn(str(folder), str(raised.exception))
        self.assertEqual(raised.exception.exit_code, 65)
        self.assert_equal(source.state_dict(), before)  # nothing was loaded in part
        with self.assertRaises(DataError) as raised:
            load_model(str(folder), tokenizer=load_tokenizer(None))
        self.assertIn(named, str(raised.exception))

    def test_tied_tensors_that_are_stored_with_other_values_are_refused(self):
        model = new_model("t5", 0)
        tensors = {**model.state_dict(), "lm_head.weight": model.shared.weight.detach() + 1}
        _, mismatch = fitted(model, tensors)
        self.assertIn("shared.weight", str(mismatch))
        self.assertFalse(fitted(model, dict(model.state_dict()))[1])

    def test_a_truncated_file_is_refused(self):
        folder = saved(new_model("t5", 0))
        content = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(content[: len(content) // 2])
        with self.assertRaisesRegex(DataError, str(folder)):
            load_model(str(folder), tokenizer=load_tokenizer(None))

    def test_allow_missing_keys_loads_the_rest(self):
        source = new_model("gpt_neox", 0)
        folder = changed(saved(source), lambda tensors: tensors.pop("embed_out.weight"))
        model = load_model(str(folder), tokenizer=load_tokenizer(None), allow_missing_keys=True)
        self.assertTrue(torch.equal(model.gpt_neox.embed_in.weight, source.gpt_neox.embed_in.weight))

    def test_heads_of_pre_training_may_be_left_over_and_a_new_head_may_be_missing(self):
        config = BertConfig(
            vocab_size=1152, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
        )
        published = saved(BertForPreTraining(config))  # with a pooler and a next-sentence head
        tokenizer = load_tokenizer(None)
        with self.assertLogs("t5suite.models.weights", "INFO") as logged:
            load_model(str(published), tokenizer=tokenizer, family="masked")
        self.assertIn("cls.seq_relationship.weight", logged.output[0])
        tasks = [load_task("mini", "sentiment")]
        load_model(str(saved(BertForMaskedLM(config))), tokenizer=tokenizer, family="masked", tasks=tasks)
        broken = changed(published, lambda t: t.pop("bert.encoder.layer.0.output.dense.weight"))
        with self.assertRaisesRegex(DataError, "bert.encoder.layer.0.output.dense.weight"):
            load_model(str(broken), tokenizer=tokenizer, family="masked", tasks=tasks)


class RefusalTest(parameterized.TestCase):
    @parameterized.parameters("t5", "bert", "gpt_neox")
    def test_a_folder_without_a_tokenizer_is_refused_with_the_flag_that_cures_it(self, model_type):
        folder = saved(new_model(model_type, 0))
        with self.assertRaisesRegex(ConfigError, f"{folder}.*--tokenizer_name"):
            load_tokenizer(str(folder), flag="--model_name_or_path")
        self.assertGreater(len(load_tokenizer(BUNDLED_MODEL)), 600)

    @parameterized.parameters(
        ("qwen2_audio", "seq2seq", "audio"), ("voxtral", "seq2seq", "audio"), ("granite_speech", "seq2seq", "audio"),
        ("whisper", "causal", "audio"), ("trocr", "causal", "vision"), ("musicgen", "causal", "music"),
    )  # fmt: skip
    def test_types_of_other_media_are_refused_by_name(self, model_type, family, medium):
        with self.assertRaisesRegex(ConfigError, f"'{model_type}'.*{medium}"):
            check_reads_text(AutoConfig.for_model(model_type), family)

    @parameterized.parameters(
        ("bert", {"sparse_attention": True}, "sparse_attention"),
        ("bert", {"position_embedding_type": "rotary"}, "position_embedding_type"),
        ("bert", {"num_hidden_layer": 2}, "did you mean num_hidden_layers"),
        ("t5gemma", {"decoder": {**TYPES["t5gemma"]["decoder"], "sparse": 1}}, "'sparse'"),
    )
    def test_a_configuration_file_with_an_unknown_key_makes_no_weights(self, model_type, changes, named):
        folder = configured(model_type, **changes)
        other = Path(folder) / "weights_beside" / "other.json"
        other.parent.mkdir()
        other.write_text(Path(folder, "config.json").read_text())
        (other.parent / "model.safetensors").write_bytes(b"")
        for name in (folder, f"{folder}/config.json", str(other)):
            with self.assertRaises(ConfigError) as raised:
                load_config(name, from_scratch=True)
            self.assertIn(named, str(raised.exception))

    def test_configurations_of_named_models_pass_as_does_what_the_modeling_code_reads(self):
        folder = saved(new_model("t5", 0))
        settings = json.loads((folder / "config.json").read_text())
        published = {**settings, "n_positions": 512, "output_past": True, "task_specific_params": {}}
        (folder / "config.json").write_text(json.dumps(published))
        self.assertEqual(load_config(str(folder), from_scratch=True).d_model, 32)
        self.assertEqual(load_config(configured("qwen3_moe"), from_scratch=True).head_dim, 16)

    def test_what_changes_as_it_runs_is_refused_before_training(self):
        sparse = AutoConfig.for_model("big_bird", block_size=8, num_random_blocks=1)  # 56 tokens are attended to
        with self.assertRaisesRegex(ConfigError, "attention_type=original_full"):
            check_resumes(sparse, 56)
        check_resumes(sparse, 57)
        check_resumes(AutoConfig.for_model("big_bird", attention_type="original_full"), 1)
        with self.assertRaisesRegex(ConfigError, "moe_eval_capacity_token_fraction=-1"):
            check_resumes(AutoConfig.for_model("nllb-moe"), 1)


def without_a_tokenizer(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "spiece.model"):
        (folder / name).unlink(missing_ok=True)


def truncated(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


def rewritten(change):
    def damage(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return damage


QUERY = "decoder.block.0.layer.0.SelfAttention.q.weight"
DAMAGES = {
    "no tokenizer": (without_a_tokenizer, 78, "--tokenizer_name"),
    "one missing": (rewritten(lambda tensors: tensors.pop(QUERY)), 65, QUERY),
    "one too many": (rewritten(lambda tensors: tensors.update(surplus=torch.ones(2))), 65, "surplus"),
    "another shape": (rewritten(lambda tensors: halved(tensors, QUERY)), 65, QUERY),
    "truncated": (truncated, 65, ""),
}


def fine_tune(folder: Path) -> None:
    flags = f"--model_name_or_path={folder} --benchmark=mini --dataset_name=sentiment --max_steps=1 --use_cpu"
    fine_tune_t5.main([*flags.split(), f"--output_dir={folder.parent / 'run'}"])


def predict(folder: Path) -> None:
    texts = folder.parent / "texts.txt"
    texts.write_text("sentiment sentence: Good.\n")
    cli.main(["predict", f"--model_name_or_path={folder}", f"--input={texts}", f"--output={folder.parent / 'out.txt'}"])


def export(folder: Path) -> None:
    cli.main(["export", f"--model_name_or_path={folder}", f"--output_dir={folder.parent / 'exported'}"])


def tuner(folder: Path) -> None:
    FineTuner(str(folder), "mini/sentiment", output_dir=str(folder.parent / "run"), use_cpu=True).train()


class DoorsTest(parameterized.TestCase):
    @parameterized.product(door=(fine_tune, predict, export, tuner), damage=sorted(DAMAGES))
    def test_a_model_that_is_not_whole_is_refused_at_every_door(self, door, damage):
        folder = Path(tempfile.mkdtemp()) / "model"
        shutil.copytree(BUNDLED_MODEL, folder)
        new_model("t5", 0).save_pretrained(folder)
        change, code, named = DAMAGES[damage]
        change(folder)
        with self.assertRaises(UserError) as raised:
            door(folder)
        self.assertEqual(raised.exception.exit_code, code, raised.exception)
        self.assertIn(named, str(raised.exception))
        self.assertIn(str(folder), str(raised.exception))
        self.assertEmpty([path for path in folder.parent.iterdir() if path.name in ("run", "out.txt", "exported")])


# What transformers 5.23 itself cannot make of its default configuration, or of these settings.
SETTINGS = {
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32}, "hunyuan_v1_dense": {"head_dim": 64},
    "hunyuan_v1_moe": {"head_dim": 64}, "ministral": {"head_dim": 64}, "nemotron": {"num_key_value_heads": 16},
    "reformer": {"is_decoder": True},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(1800)
class EveryTypeTest(absltest.TestCase):
    def test_what_is_saved_is_loaded_tensor_by_tensor_or_the_type_is_refused(self):
        whole, refused, stock_fails = [], [], []
        for model_type in CONFIG_MAPPING_NAMES:
            try:
                config = CONFIG_MAPPING[model_type](**SETTINGS.get(model_type, {}))
            except Exception:
                continue
            for family, auto_class in AUTO_CLASSES.items():
                if type(config) not in auto_class._model_mapping:
                    continue
                try:
                    check_reads_text(config, family)
                except ConfigError:
                    refused.append((model_type, family))
                    continue
                try:
                    with torch.device("meta"):
                        model = auto_class.from_config(config)
                except Exception:
                    stock_fails.append((model_type, family))
                    continue
                tensors = remove_tied_weights_from_state_dict(model.state_dict(), model)
                for name in model._keys_to_ignore_on_save or ():
                    tensors.pop(name, None)
                published = revert_weight_conversion(model, tensors)
                found, mismatch = fitted(model, published)
                self.assertFalse(mismatch, f"{model_type}: {mismatch}")
                own = model.state_dict()
                self.assertEqual({n: t.shape for n, t in found.items()}, {n: own[n].shape for n in found}, model_type)
                whole.append((model_type, bool(get_model_conversion_mapping(model, add_legacy=False))))
        print(f"{len(whole)} types load whole, {sum(c for _, c in whole)} of them converted")
        print(f"refused: {refused}\nfail in stock transformers: {stock_fails}")
        self.assertGreater(len(whole), 230)
        self.assertLess(len(stock_fails), 20)
        self.assertFalse({name for name, _ in [*refused, *stock_fails]} & TYPES.keys())


MODEL_SETTINGS = [
    "--per_device_train_batch_size=4", "--max_train_samples=40", "--max_steps=8", "--eval_strategy=steps",
    "--eval_steps=2", "--save_steps=2", "--save_total_limit=8", "--logging_steps=1", "--load_best_model_at_end=True",
]  # fmt: skip
DATA = [
    "--max_eval_samples=16", "--disable_tqdm=True", "--use_cpu", "--max_source_length=48", "--max_target_length=8",
    "--benchmark=mini", "--dataset_name=sentiment", "--seed=3",
]  # fmt: skip
SCRIPT = [str(Path(fine_tune_t5.__file__))]
# A rate at which the last step is not the best.
RATES = {"m2m_100": 0.05, "gpt_neox": 0.05, "gemma3_text": 0.3}


def train(folder: Path, model_type: str, *flags) -> dict:
    rate = RATES.get(model_type, 3e-3)
    config = folder.parent / "config"
    if not config.exists():
        shutil.copytree(configured(model_type), config)
    flags = later_wins(MODEL_SETTINGS, DATA, [f"--config_name={config}", f"--learning_rate={rate}"], flags)
    return fine_tune_t5.main([*flags, f"--output_dir={folder}"])


def weights(folder: Path) -> dict:
    return load_file(folder / "model.safetensors")


def losses(folder: Path) -> list:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["train/loss"]) for line in lines if "train/loss" in line]


LATER = ("checkpoint-6", "checkpoint-8", "model.safetensors", "results.json", "predictions", "README.md")


class ModelTypeTest(parameterized.TestCase):
    def assert_equal(self, found: dict, expected: dict):
        self.assertEqual(found.keys(), expected.keys())
        for name, tensor in expected.items():
            self.assertTrue(torch.equal(found[name], tensor), name)

    def check_run(self, run) -> Path:
        """`run(folder)` ends with its best weights, which are not the last, and goes on exactly once it was killed."""
        place = Path(tempfile.mkdtemp())
        whole, resumed = place / "whole", place / "resumed"
        results = run(whole)
        best = json.loads((whole / "checkpoint-8" / "trainer_state.json").read_text())["best_global_step"]
        self.assertLess(best, 8, "the last step is the best: nothing is loaded at the end")
        self.assert_equal(weights(whole), weights(whole / f"checkpoint-{best}"))
        # Killed between two checkpoints: later lines of its metrics stay behind.
        left = lambda folder, names: [name for name in names if folder == str(whole) and name in LATER]
        shutil.copytree(whole, resumed, ignore=left)
        self.assertEqual(run(resumed), results)
        self.assert_equal(weights(resumed / "checkpoint-8"), weights(whole / "checkpoint-8"))
        self.assert_equal(weights(resumed), weights(whole))
        self.assertEqual(losses(resumed), losses(whole))
        return whole

    def check(self, model_type: str, *flags):
        whole = self.check_run(lambda folder: train(folder, model_type, *flags))
        alone = [
            *DATA, *flags, "--eval_only", f"--model_name_or_path={whole}", f"--output_dir={whole.parent / 'alone'}",
        ]  # fmt: skip
        results = json.loads((whole / "results.json").read_text())
        self.assertEqual(fine_tune_t5.main(alone)["tasks"], results["tasks"])

    @parameterized.parameters(*sorted(TYPES))
    @pytest.mark.slow
    @pytest.mark.resume
    def test_the_final_model_is_the_best_and_a_resumed_run_equals_the_unbroken_one(self, model_type):
        self.check(model_type)

    @pytest.mark.slow
    def test_scores_of_each_task_are_those_of_its_own_best_weights(self):
        place = Path(tempfile.mkdtemp())
        flags = ["--dataset_name=sentiment,entailment", "--select=per_task", "--eval_method=score"]
        results = train(place / "run", "t5gemma2", *flags)
        for task in ("sentiment", "entailment"):
            best = place / "run" / "best" / task
            data = later_wins(DATA, ["--eval_method=score", f"--dataset_name={task}", "--eval_only"])
            alone = fine_tune_t5.main([*data, f"--model_name_or_path={best}", f"--output_dir={place / task}"])
            self.assertEqual(alone["tasks"][task], results["tasks"][task])

    @pytest.mark.slow
    def test_a_pre_training_run_ends_with_its_best_and_resumes(self):
        text = Path(tempfile.mkdtemp()) / "text.txt"
        stories = (f"Story {i} is about number {i}, who walks along river {i + 1}." for i in range(400))
        text.write_text("\n\n".join(stories))
        flags = [*MODEL_SETTINGS, "--use_cpu", "--disable_tqdm=True", f"--train_file={text}", "--inputs_length=48"]
        flags = [flag for flag in flags if "max_train_samples" not in flag]
        flags += [
            f"--config_name={configured('t5gemma2')}",
            f"--tokenizer_name={BUNDLED_MODEL}",
            "--learning_rate=1.0",
            "--schedule=constant",
        ]
        self.check_run(lambda folder: pre_train_t5.main([*flags, f"--output_dir={folder}"]))

    @pytest.mark.slow
    @pytest.mark.ranks
    def test_two_ranks_end_with_their_best_and_resume(self):
        flags = [*MODEL_SETTINGS, *DATA, f"--config_name={configured('t5gemma2')}", "--learning_rate=0.05"]
        flags += ["--ddp_find_unused_parameters=True"]  # nothing reads its vision tower
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", *SCRIPT, *flags]

        def run(folder):
            subprocess.run([*command, f"--output_dir={folder}"], check=True, timeout=600, capture_output=True)
            return json.loads((folder / "results.json").read_text())

        self.check_run(run)

    def test_a_rollback_takes_every_weight_of_the_checkpoint(self):
        tokenizer, task = load_tokenizer(None), load_task("mini", "sentiment")
        set_seed(0)
        model = load_model(config_name=configured("t5gemma2"), tokenizer=tokenizer)
        rows = load_split(task, "validation", "validation", DataOptions()).rows.select(range(8))
        encoding = encoding_for(model, tokenizer, Lengths(32, 8))
        args = SuiteTrainingArguments(
            output_dir=tempfile.mkdtemp(), per_device_train_batch_size=4, max_steps=2, save_steps=2, learning_rate=1e-2,
            disable_tqdm=True, use_cpu=True, loss_spikes="rollback", eval_strategy="no",
        )  # fmt: skip
        features = tokenize_split(rows, task, encoding, "train")
        trainer = trainer_of(model, args, features, tokenizer)
        trainer.train()
        expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)
        self.assertEqual(trainer.checkpoints.roll_back(trainer.model, trainer.optimizer), "checkpoint-2")
        self.assert_equal(model.state_dict(), expected)
