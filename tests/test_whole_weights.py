"""Law 9: whatever loads weights loads all of them, or stops; and a tokenizer that is really there."""

import contextlib
import io
import itertools
import json
import re
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from absl.testing import parameterized
from model_types import MODEL_TYPES, SETTINGS, configured
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
)
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import revert_weight_conversion
from transformers.modeling_utils import remove_tied_weights_from_state_dict
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

import fine_tune_t5
import pre_train_t5
from t5suite import FineTuner
from t5suite.models.families import FAMILIES
from t5suite.models.weights import fit_to_model, load_weights
from t5suite.testing import bundled_model, exits_with, run_cli, tiny_model, tiny_tokenizer, tiny_tuner, write_rows

AUTO_CLASSES = {"seq2seq": AutoModelForSeq2SeqLM, "causal": AutoModelForCausalLM, "masked": AutoModelForMaskedLM}
# transformers 5.23 renames, splits or merges tensors of these on saving.
CONVERTED = ("T5Gemma 2", "GPT-NeoX", "Mixtral", "OLMoE", "Granite MoE", "NomicBERT", "GTE")


def new_model(name: str, seed: int):
    return tiny_model(configured(name), "", seed=seed, scale=1.0)


def loaded(path, data=None, **flags):
    """The model of a folder as a run loads it, with the bundled tokenizer."""
    return tiny_tuner(str(path), data, tokenizer=tiny_tokenizer(), **flags).model


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
    def assert_equal(self, tensors: dict, expected: dict):
        self.assertEqual(tensors.keys(), expected.keys())
        for name, tensor in expected.items():
            self.assertTrue(torch.equal(tensors[name], tensor), name)

    @parameterized.parameters(*CONVERTED, "T5", "BART", "BERT")
    @pytest.mark.slow
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
        names = load_file(saved(new_model("Mixtral", 0)) / "model.safetensors").keys()
        self.assertIn("model.layers.0.block_sparse_moe.experts.3.w1.weight", names)
        self.assertIn("embed_out.weight", load_file(saved(new_model("GPT-NeoX", 0)) / "model.safetensors"))

    @parameterized.parameters(
        (lambda tensors: tensors.pop("embed_out.weight"), "missing (1): lm_head.weight"),
        (lambda tensors: tensors.update(other=torch.ones(2)), "unknown (1): other"),
        (lambda tensors: halved(tensors, "embed_out.weight"), "lm_head.weight (320x32, not 640x32)"),
    )
    def test_an_incomplete_file_stops_and_names_the_tensor(self, change, named):
        source = new_model("GPT-NeoX", 0)
        folder = changed(saved(source), change)
        before = values(source)
        with exits_with(65) as raised:
            load_weights(source, folder)
        self.assertIn(named, str(raised.exception))
        self.assertIn(str(folder), str(raised.exception))
        self.assert_equal(source.state_dict(), before)  # nothing was loaded in part
        with exits_with(65) as raised:
            loaded(folder)
        self.assertIn(named, str(raised.exception))

    def test_tied_tensors_that_are_stored_with_other_values_are_refused(self):
        model = new_model("T5", 0)
        tensors = {**model.state_dict(), "lm_head.weight": model.shared.weight.detach() + 1}
        _, mismatch = fit_to_model(model, tensors)
        self.assertIn("shared.weight", str(mismatch))
        self.assertFalse(fit_to_model(model, dict(model.state_dict()))[1])

    def test_a_truncated_file_is_refused(self):
        folder = saved(new_model("T5", 0))
        content = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(content[: len(content) // 2])
        with exits_with(65, str(folder)):
            loaded(folder)

    def test_allow_missing_keys_loads_the_rest(self):
        source = new_model("GPT-NeoX", 0)
        folder = changed(saved(source), lambda tensors: tensors.pop("embed_out.weight"))
        model = loaded(folder, allow_missing_keys=True)
        self.assertTrue(torch.equal(model.gpt_neox.embed_in.weight, source.gpt_neox.embed_in.weight))

    def test_heads_of_pre_training_may_be_left_over_and_a_new_head_may_be_missing(self):
        config = BertConfig(
            vocab_size=1152, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
        )
        published = saved(BertForPreTraining(config))  # with a pooler and a next-sentence head
        tokenizer, text = tiny_tokenizer(), Path(tempfile.mkdtemp()) / "text.txt"
        tokenizer.add_special_tokens({"mask_token": "[MASK]", "cls_token": "[CLS]", "sep_token": "[SEP]"})
        tokenizer.save_pretrained(published)
        text.write_text("\n\n".join(f"Story {number} ends well." for number in range(200)))
        flags = f"--model_name_or_path={published} --objective=masked_lm --inputs_length=32 --train_file={text}"
        output_dir = f"--output_dir={tempfile.mkdtemp()}/run"
        with contextlib.redirect_stderr(io.StringIO()) as log:
            pre_train_t5.main([*flags.split(), "--max_steps=1", "--use_cpu", output_dir])
        self.assertIn("cls.seq_relationship.weight", log.getvalue())
        loaded(published, "mini/sentiment")
        loaded(saved(BertForMaskedLM(config)), "mini/sentiment")
        broken = changed(published, lambda t: t.pop("bert.encoder.layer.0.output.dense.weight"))
        with exits_with(65, "bert.encoder.layer.0.output.dense.weight"):
            loaded(broken, "mini/sentiment")


class RefusalTest(parameterized.TestCase):
    @parameterized.parameters("T5", "BERT", "GPT-NeoX")
    def test_a_folder_without_a_tokenizer_is_refused_with_the_flag_that_cures_it(self, model_type):
        folder = saved(new_model(model_type, 0))
        with exits_with(78, f"{folder}.*--tokenizer_name"):
            tiny_tuner(str(folder))

    @parameterized.parameters(
        ("qwen2_audio", "seq2seq", "audio"), ("gemma3", "causal", "Gemma3ForCausalLM"), ("whisper", "causal", "audio"),
        ("trocr", "causal", "vision"), ("musicgen", "causal", "music"), ("voxtral", "seq2seq", "audio"),
        ("granite_speech", "seq2seq", "audio"), ("gemma3n", "causal", "Gemma3nForCausalLM"),
        ("llama4", "causal", "Llama4ForCausalLM"), ("qwen3_5", "causal", "Qwen3_5ForCausalLM"),
    )  # fmt: skip
    @pytest.mark.quick_cases(4)
    def test_types_of_other_media_are_refused_by_name(self, model_type, family, named):
        """With the medium, or with the class of the text model that is inside."""
        with exits_with(78, f"'{model_type}'.*{named}"):
            folder = tempfile.mkdtemp()
            AutoConfig.for_model(model_type).save_pretrained(folder)
            tiny_tuner(config_name=folder, model_family=family, from_scratch=True)

    def test_a_model_of_other_media_in_memory_is_refused_by_name(self):
        sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        text = {**sizes, "vocab_size": 640, "num_key_value_heads": 1, "head_dim": 8}
        config = AutoConfig.for_model("gemma3", text_config=text, vision_config={**sizes, "image_size": 28})
        with exits_with(78, "'gemma3'.*Gemma3ForCausalLM"):
            FineTuner(AutoModelForCausalLM.from_config(config), tokenizer=tiny_tokenizer())

    @parameterized.parameters(
        ("BERT", {"sparse_attention": True}, "sparse_attention"),
        ("BERT", {"position_embedding_type": "rotary"}, "position_embedding_type"),
        ("BERT", {"num_hidden_layer": 2}, "did you mean num_hidden_layers"),
        ("T5Gemma", {"decoder": {**SETTINGS["T5Gemma"]["decoder"], "sparse": 1}}, "'sparse'"),
    )
    def test_a_configuration_file_with_an_unknown_key_makes_no_weights(self, model_type, changes, named):
        folder = configured(model_type, **changes)
        other = Path(folder) / "weights_beside" / "other.json"
        other.parent.mkdir()
        other.write_text(Path(folder, "config.json").read_text())
        (other.parent / "model.safetensors").write_bytes(b"")
        for name in (folder, f"{folder}/config.json", str(other)):
            with exits_with(78) as raised:
                tiny_tuner(config_name=name, from_scratch=True)
            self.assertIn(named, str(raised.exception))

    def test_configurations_of_named_models_pass_as_does_what_the_modeling_code_reads(self):
        folder = saved(new_model("T5", 0))
        settings = json.loads((folder / "config.json").read_text())
        published = {**settings, "n_positions": 512, "output_past": True, "task_specific_params": {}}
        (folder / "config.json").write_text(json.dumps(published))
        for path in (str(folder), configured("Qwen3 MoE")):
            tiny_tuner(config_name=path, from_scratch=True)

    def refused_training(self, config_name: str, message: str, data="mini/sentiment", **flags) -> str:
        tuner = tiny_tuner(config_name=config_name, data=data, from_scratch=True, max_steps=1, **flags)
        with exits_with(78, message) as failure:
            tuner.train(valid=False)
        return failure.message

    def test_what_changes_as_it_runs_is_refused_before_training(self):
        self.refused_training(
            configured("NLLB-MoE", moe_eval_capacity_token_fraction=1.0), "moe_eval_capacity_token_fraction=-1"
        )
        sparse = configured("BigBird", attention_type="block_sparse")  # 56 tokens are attended to
        self.refused_training(sparse, "at most 56 tokens .*attention_type=original_full")

    @pytest.mark.slow
    def test_inputs_that_are_longer_than_what_sparse_attention_attends_to_are_trained_on(self):
        def rows_of(word_count):
            row = {"sentence": " ".join(["was"] * word_count), "label": 1}
            return write_rows(Path(tempfile.mkdtemp()) / "rows.jsonl", [row] * 4)

        sparse = {"config_name": configured("BigBird", attention_type="block_sparse"), "data": "mini/sentiment"}
        refusal = self.refused_training(**sparse, message="this data has", train_file=str(rows_of(40)))
        tokens = int(re.search(r"this data has (\d+)", refusal)[1])
        longest = 40 + 56 - tokens
        self.refused_training(**sparse, message="this data has 56", train_file=str(rows_of(longest)))
        longer = tiny_tuner(**sparse, from_scratch=True, max_steps=1, train_file=str(rows_of(longest + 1)))
        longer.train(valid=False)
        self.assertEqual(longer.trainer.state.global_step, 1)


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
    run_cli("predict", f"--model_name_or_path={folder}", f"--input={texts}", f"--output={folder.parent / 'out.txt'}")


def export(folder: Path) -> None:
    run_cli("export", f"--model_name_or_path={folder}", f"--output_dir={folder.parent / 'exported'}")


def tuner(folder: Path) -> None:
    FineTuner(str(folder), "mini/sentiment", output_dir=str(folder.parent / "run"), use_cpu=True).train()


DOORS = (fine_tune, predict, export, tuner)


class DoorsTest(parameterized.TestCase):
    @parameterized.parameters(*zip(itertools.cycle(DOORS), sorted(DAMAGES)), (predict, "one missing"))
    @pytest.mark.quick_cases(1)
    def test_a_model_that_is_not_whole_is_refused_at_every_door(self, door, damage):
        self.check(door, damage)

    @parameterized.product(door=DOORS, damage=sorted(DAMAGES))
    @pytest.mark.slow
    def test_so_is_every_such_model_at_each(self, door, damage):
        self.check(door, damage)

    def check(self, door, damage):
        folder = Path(tempfile.mkdtemp()) / "model"
        shutil.copytree(bundled_model(), folder)
        new_model("T5", 0).save_pretrained(folder)
        change, code, named = DAMAGES[damage]
        change(folder)
        with exits_with(code) as raised:
            door(folder)
        self.assertIn(named, str(raised.exception))
        self.assertIn(str(folder), str(raised.exception))
        self.assertEmpty([path for path in folder.parent.iterdir() if path.name in ("run", "out.txt", "exported")])


# What transformers 5.23 itself cannot make of its default configuration, or of these settings.
NEEDED = {
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32}, "hunyuan_v1_dense": {"head_dim": 64},
    "hunyuan_v1_moe": {"head_dim": 64}, "ministral": {"head_dim": 64}, "nemotron": {"num_key_value_heads": 16},
    "reformer": {"is_decoder": True},
}  # fmt: skip


GROUPS_OF_TYPES = 6


@pytest.mark.slow
@pytest.mark.timeout(1800)
class EveryTypeTest(parameterized.TestCase):
    @parameterized.parameters(*range(GROUPS_OF_TYPES))
    def test_what_is_saved_is_loaded_tensor_by_tensor_or_the_type_is_refused(self, group):
        whole, refused, stock_fails = [], [], []
        for model_type in list(CONFIG_MAPPING_NAMES)[group::GROUPS_OF_TYPES]:
            try:
                config = CONFIG_MAPPING[model_type](**NEEDED.get(model_type, {}))
            except Exception:
                continue
            for family, auto_class in AUTO_CLASSES.items():
                if type(config) not in auto_class._model_mapping:
                    continue
                try:
                    FAMILIES[family].check_reads_text(config)
                except ValueError:
                    refused.append((model_type, family))
                    continue
                try:
                    with torch.device("meta"):
                        model = auto_class.from_config(config)
                except Exception:
                    stock_fails.append((model_type, family))
                    continue
                self.check_published_weights(model, model_type)
                whole.append((model_type, bool(get_model_conversion_mapping(model, add_legacy=False))))
        print(f"{len(whole)} types load whole, {sum(c for _, c in whole)} of them converted")
        print(f"refused: {refused}\nfail in stock transformers: {stock_fails}")
        self.assertGreater(len(whole), 30)
        self.assertLess(len(stock_fails), 8)
        self.assertFalse(
            {name for name, _ in [*refused, *stock_fails]} & {row.model_type for row in MODEL_TYPES.values()}
        )

    def check_published_weights(self, model, model_type):
        """The weights as the type publishes them, fitted to the model, are the model's own, shape by shape."""
        tensors = remove_tied_weights_from_state_dict(model.state_dict(), model)
        for name in model._keys_to_ignore_on_save or ():
            tensors.pop(name, None)
        tensors, mismatch = fit_to_model(model, revert_weight_conversion(model, tensors))
        self.assertFalse(mismatch, f"{model_type}: {mismatch}")
        expected = {name: model.state_dict()[name].shape for name in tensors}
        self.assertEqual({name: tensor.shape for name, tensor in tensors.items()}, expected, model_type)
