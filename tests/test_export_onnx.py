"""ONNX files compute what their model computes, at any length and batch size, and are read as the model is."""

import functools
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import onnxruntime
import pytest
import torch
from absl.testing import parameterized
from transformers import BertConfig, BertForSequenceClassification, GenerationConfig, set_seed

import fine_tune_t5
from t5suite import load_task
from t5suite.data.batches.encodings import LabelsEncoding, PromptEncoding, SegmentEncoding, TextEncoding
from t5suite.export.onnx_checks import NEW_TOKENS, TOLERANCE, check_onnx, compare_onnx, ordinary_ids
from t5suite.export.onnx_files import quantize, write_graphs
from t5suite.export.onnx_graphs import GRAPHS as GRAPHS_BY_FAMILY
from t5suite.export.onnx_graphs import why_no_graphs
from t5suite.export.onnx_runtime import OnnxModel
from t5suite.inference.decoding_settings import DecodingSettings
from t5suite.inference.exported import ExportedPredictor, exported_kind
from t5suite.inference.exported_files import CTranslate2Files
from t5suite.tasks.tokenization import Lengths
from t5suite.testing import (
    bundled_model,
    exits_with,
    read_rows,
    run_cli,
    save_model,
    tiny_model,
    tiny_rows,
    tiny_tokenizer,
    write_rows,
)

TOKENIZER = tiny_tokenizer()
GRAPHS = ("encoder_model.onnx", "decoder_model.onnx", "decoder_with_past_model.onnx")
# Traced are 7 source, 3 target and 5 past tokens: these are fewer and more. T5's buckets end at a distance of 128.
LENGTHS = (1, 2, 7, 40, 160)
T5 = "d_model=32,d_ff=64,d_kv=8,num_heads=2,num_layers=1,num_decoder_layers=1"


def t5(preset=None, changed=""):
    """A tiny T5 whose position bias is large enough to be seen, and whose answers are not all one token."""
    model = tiny_model(preset, T5 + changed, scale=1.0)
    for name, parameter in model.named_parameters():
        if "relative_attention_bias" in name:
            parameter.data.normal_(std=2.0)
    return model.eval()


def source_of(model, family: str = "seq2seq") -> SimpleNamespace:
    """A model as the export hands it to its writers."""
    return SimpleNamespace(model=model, tokenizer=TOKENIZER, folder=None, dtype=torch.float32, family=family)


@functools.cache
def exported(kind: str) -> tuple[SimpleNamespace, str]:
    """`(source, folder with its ONNX files)`, the model with random weights."""
    make, family = KINDS[kind]
    folder = tempfile.mkdtemp()
    set_seed(0)
    source = source_of(make().eval(), family)
    write_graphs(source, folder)
    return source, folder


class TorchSession:
    """A graph as ONNX Runtime answers it, computed by the module that is exported: milliseconds in place of seconds."""

    def __init__(self, graph):
        self.graph = graph

    def get_inputs(self):
        return [SimpleNamespace(name=name) for name in self.graph.inputs]

    def get_outputs(self):
        return [SimpleNamespace(name=name) for name in self.graph.outputs]

    def run(self, _, values):
        for name, value in values.items():
            fixed = [axis for axis in range(value.ndim) if axis not in self.graph.axes[name]]
            for axis in fixed:  # ONNX takes no other size where none was said to vary
                if value.shape[axis] != self.graph.inputs[name].shape[axis]:
                    raise ValueError(f"{self.graph.name}: {name} {value.shape} on axis {axis}")
        with torch.no_grad():
            outputs = self.graph.module({name: torch.as_tensor(value) for name, value in values.items()})
        return [output.numpy() for output in outputs]


class TestCase(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.enter_context(tempfile.TemporaryDirectory()))

    def assert_equal_answers(self, found: dict, prompts: int):
        self.assertEqual(found["answers_equal"], found["answers"])
        self.assertEqual(found["answers"], 2 * prompts)
        self.assertEqual(found["tokens"], NEW_TOKENS * prompts)

    def assert_rounding(self, found: dict):
        relative = {name: value for name, value in found.items() if name.endswith("_relative")}
        self.assertNotEmpty(relative)
        for name, value in relative.items():
            self.assertLess(value, 1e-5, name)


@pytest.mark.slow
class T5Test(TestCase):
    """One export serves all of these; it takes most of their time."""

    def test_states_logits_and_whole_answers_are_the_models_at_lengths_that_were_not_traced(self):
        source, folder = exported("tied T5")
        found = compare_onnx(source.model, OnnxModel(folder, num_threads=1), LENGTHS)
        self.assertContainsSubset(["first_step_logits", "cached_step_logits"], found)
        self.assert_rounding(found)
        self.assert_equal_answers(found, len(LENGTHS))

    def test_another_model_is_refused_by_the_check(self):
        _, folder = exported("tied T5")
        with exits_with(74, "ONNX files differ from the model: .*first_step_logits_relative"):
            check_onnx(t5(changed=",dense_act_fn=gelu"), OnnxModel(folder, num_threads=1))

    def test_answers_end_with_end_of_sequence_as_transformers_ends_them(self):
        source, folder = exported("tied T5")
        model, runtime = source.model, OnnxModel(folder, num_threads=1)
        prompts = [[21, 7, 30, 1], [9, 1], list(range(40, 70))]
        endless = runtime.generate(prompts, 12, ends=frozenset())
        end = endless[0][3]  # a token that one of the answers has: from now on it ends them
        with mock.patch.object(OnnxModel, "eos", frozenset([end])):
            found = OnnxModel(folder, num_threads=1).generate(prompts, 12)
        ids, mask = map(torch.as_tensor, runtime.padded(prompts))
        config = GenerationConfig(max_new_tokens=12, eos_token_id=end, pad_token_id=0, decoder_start_token_id=0)
        own = model.generate(input_ids=ids, attention_mask=mask, generation_config=config)[:, 1:].tolist()
        self.assertEqual(found, [ids[: ids.index(end) + 1] if end in ids else ids for ids in own])
        self.assertIn(end, found[0])

    def test_inputs_and_outputs_have_optimums_names_and_any_size_and_no_path_is_told(self):
        _, folder = exported("tied T5")
        for file in Path(folder).iterdir():
            for path in ("site-packages", str(Path(torch.__file__).parent), str(Path.cwd())):
                self.assertFalse(path.encode() in file.read_bytes(), f"{file.name} tells {path}")
        session = onnxruntime.InferenceSession(str(Path(folder) / GRAPHS[2]))
        inputs = {node.name: node.shape for node in session.get_inputs()}
        self.assertEqual(inputs["input_ids"], ["batch", 1])
        self.assertEqual(inputs["encoder_attention_mask"], ["batch", "source"])
        self.assertEqual(inputs["past_key_values.0.decoder.key"], ["batch", 2, "past", 8])
        self.assertEqual(inputs["past_key_values.0.encoder.value"], ["batch", 2, "source", 8])
        self.assertLen(inputs, 6)
        outputs = ["logits", "present.0.decoder.key", "present.0.decoder.value"]
        self.assertEqual([node.name for node in session.get_outputs()], outputs)

    def test_quantized_files_are_smaller_near_and_answer(self):
        source, folder = exported("tied T5")
        folder = Path(shutil.copytree(folder, self.folder / "copy"))
        said = quantize(folder, list(GRAPHS))
        self.assertEqual(said["bytes_after"], sum((folder / name).stat().st_size for name in GRAPHS))
        self.assertLess(said["bytes_after"], 0.6 * said["bytes_before"])
        found = compare_onnx(source.model, OnnxModel(folder, num_threads=1), LENGTHS)
        self.assertBetween(found["first_step_logits_relative"], TOLERANCE, 0.2)
        self.assertEqual({path.suffix for path in folder.iterdir()} & {".data"}, set())

    def test_the_flag_quantizes_the_files_and_settings_of_generation_are_carried(self):
        model, sizes = save_model(self.folder / "model", t5()), {}
        settings = json.loads((model / "generation_config.json").read_text()) | {"length_penalty": 2.0}
        (model / "generation_config.json").write_text(json.dumps(settings))
        for words in ((), ("--quantize", "int8")):
            output = self.folder / f"files{len(words)}"
            run_cli("export", "--format", "onnx", "--model_name_or_path", model, "--output_dir", output, *words)
            sizes[words] = sum((output / name).stat().st_size for name in GRAPHS)
            self.assertEqual(json.loads((output / "generation_config.json").read_text()), settings)
        card = json.loads((output / "export.json").read_text())
        self.assertEqual((card["dtype"], card["quantized"]["bytes_after"]), ("int8", sizes["--quantize", "int8"]))
        self.assertLess(sizes["--quantize", "int8"], 0.6 * sizes[()])


class RuntimeTest(TestCase):
    def runtime(self) -> OnnxModel:
        (self.folder / "model.onnx").touch()
        (self.folder / "config.json").write_text(json.dumps({"pad_token_id": 5, "eos_token_id": [1, 2]}))
        return OnnxModel(self.folder)

    def test_rows_are_padded_on_either_side(self):
        for left, ids, mask in ((False, [9, 5], [1, 0]), (True, [5, 9], [0, 1])):
            found = self.runtime().padded([[7, 8], [9]], on_the_left=left)
            np.testing.assert_array_equal(found, [[[7, 8], ids], [[1, 1], mask]])
        self.assertEqual(self.runtime().eos, {1, 2})

    def test_what_a_model_cannot_do_is_refused(self):
        with exits_with(78, "holds no exported model"):
            OnnxModel(self.folder)
        with exits_with(65, "every prompt needs at least one"):
            self.runtime().padded([[7], []])
        with exits_with(78, "an encoder alone generates no text"):
            self.runtime().generate([[7]])


class PreparationTest(TestCase):
    def test_a_model_with_several_end_tokens_is_compared_on_other_tokens(self):
        config = SimpleNamespace(pad_token_id=0, eos_token_id=[1, 3], vocab_size=6)
        config.get_text_config = lambda: config
        self.assertEqual(ordinary_ids(config), [2, 4, 5])

    def test_the_configuration_names_the_class_that_is_exported(self):
        make, family = KINDS["BERT classifier"]
        source = source_of(make(), family)
        source.model.config.architectures = ["BertForMaskedLM"]  # its base's, where an adapter was merged
        with mock.patch("t5suite.export.onnx_files._write_graph"):
            write_graphs(source, self.folder)
        config = json.loads((self.folder / "config.json").read_text())
        self.assertEqual(config["architectures"], ["BertForSequenceClassification"])

    def test_an_encoder_is_not_refused_for_its_whole_model(self):
        self.assertEqual(why_no_graphs("t5gemma", "seq2seq"), "torch cannot trace it")
        self.assertIsNone(why_no_graphs("t5gemma", "classification"))
        self.assertEqual(why_no_graphs("mixtral", "classification"), "torch cannot trace it")


LENGTHS_OF_TEXTS = Lengths(64, 6)
WRITTEN = [[30, 31, 32, 33], [40, 1], [50, 51, 1]]  # of four tokens at most; the first has no end


class AnswersTest(TestCase):
    """What is made of the files' outputs."""

    def predictor(self, encoding=None, settings=None, **outputs) -> ExportedPredictor:
        encoding = encoding or TextEncoding(TOKENIZER, LENGTHS_OF_TEXTS)
        files = SimpleNamespace(ends=frozenset(), **outputs)
        return ExportedPredictor(files, encoding, batch_size=2, generation_settings=settings)

    def written(self, settings=None, plain=False, **decoding) -> tuple[list, set]:
        """The answers to three prompts, the longest last, and with which settings the files were asked."""
        asked = set()

        def write(prompts, *settings_of_batch):
            asked.add(settings_of_batch)
            return [WRITTEN[len(prompt) - 1] for prompt in prompts]

        predictor = self.predictor(settings=settings, write=write)
        answers = predictor.answers([[7], [7, 8], [7, 8, 9]], DecodingSettings(**decoding), 4, plain=plain)
        return [answer for (answer,) in answers], asked

    def test_an_answer_without_its_end_is_cut_off_also_where_the_model_would_end_it_by_force(self):
        answers, asked = self.written()
        self.assertEqual([answer.truncated for answer in answers], [True, False, False])
        self.assertEqual([answer.num_tokens for answer in answers], [4, 2, 3])
        self.assertEqual(
            [answer.text for answer in answers], [TOKENIZER.decode(ids).removesuffix("</s>") for ids in WRITTEN]
        )
        self.assertEqual(asked, {(4, 1, 1, 1.0)})
        self.assertEqual(self.written({"forced_eos_token_id": 1})[0], answers)

    def test_beams_and_their_penalty_are_the_command_s(self):
        _, asked = self.written(num_beams=3, length_penalty=0.0)
        self.assertEqual(asked, {(4, 1, 3, 0.0)})

    def test_without_a_flag_the_penalty_of_beams_is_the_model_s_for_free_text_alone(self):
        for flags, is_label, expected in (({}, False, 2.0), ({"length_penalty": 0.5}, False, 0.5), ({}, True, 1.0)):
            _, asked = self.written({"length_penalty": 2.0}, plain=is_label, num_beams=3, **flags)
            self.assertEqual(asked, {(4, 1, 3, expected)})

    def test_settings_that_files_do_not_heed_are_refused_for_free_text_alone(self):
        without_effect = {
            "num_beams": 4,
            "max_length": 20,
            "eos_token_id": 1,
            "no_repeat_ngram_size": 0,
            "do_sample": True,
            "top_k": 64,
            "cache_implementation": "hybrid",
            "early_stopping": True,
            "return_dict_in_generate": True,
        }
        for settings in ({}, without_effect, {"forced_eos_token_id": 1}):
            self.written(settings)
        for settings in ({"no_repeat_ngram_size": 3}, {"suppress_tokens": [5]}, {"min_length": 3}):
            (name, value), *_ = settings.items()
            with exits_with(78, re.escape(f"has {name} {value}, which exported files ignore")):
                self.written({**without_effect, **settings})
            self.written(settings, plain=True)
        behind_prompts = PromptEncoding(TOKENIZER, LENGTHS_OF_TEXTS, " ")
        self.assertEqual(self.predictor(behind_prompts, {"min_length": 3}).ignored_settings, {})

    def test_a_number_keeps_to_its_range_and_every_word_has_a_label(self):
        features = [{"input_ids": [7] * count} for count in (3, 1, 2)]
        logits = {1: [2.25], 2: [-3.0], 3: [9.0]}
        numbers = SegmentEncoding(TOKENIZER, LENGTHS_OF_TEXTS, None)
        model = SimpleNamespace(logits=lambda rows, types: np.array([logits[len(row)] for row in rows]))
        choices = self.predictor(numbers, model=model).classes(features, (0.0, 5.0))
        self.assertEqual([choice.text for choice in choices], ["5.0", "2.25", "0.0"])
        words = LabelsEncoding(TOKENIZER, LENGTHS_OF_TEXTS, ("O", "B", "I"))
        features = [
            {"input_ids": [7, 8, 9], "labels": [0, -100, -101]},
            {"input_ids": [7, 8, 9], "labels": [-100, 0, 0]},
        ]
        scores_TV = np.eye(3)[[2, 0, 1]]  # the best label of each token
        model = SimpleNamespace(logits=lambda rows, types: [scores_TV] * len(rows))
        choices = self.predictor(words, model=model).classes(features)
        self.assertEqual([choice.text for choice in choices], ["I B", "O B"])

    def test_ctranslate2_ends_answers_at_each_end_of_the_folder_and_returns_it(self):
        asked = {}
        (self.folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 4]}))

        def translate_batch(prompts, **settings):
            asked.update(settings, prompts=prompts)
            return [SimpleNamespace(hypotheses=[pieces, ["never"]]) for pieces in (["a", "q"], ["a", "b", "c"])]

        def score_batch(prompts, answers, max_input_length):
            asked.update(answers=answers, scored=prompts, max_input_length=max_input_length)
            return [SimpleNamespace(log_probs=[-0.5, -0.25]), SimpleNamespace(log_probs=[-2.0])]

        model = SimpleNamespace(translate_batch=translate_batch, score_batch=score_batch)
        tokenizer = SimpleNamespace(
            convert_ids_to_tokens=lambda ids: ["pqabc"[number] for number in ids],
            convert_tokens_to_ids=lambda pieces: ["pqabc".index(piece) for piece in pieces],
        )
        with mock.patch.dict(sys.modules, ctranslate2=SimpleNamespace(Translator=lambda *place, **settings: model)):
            files = CTranslate2Files(self.folder, tokenizer, use_cpu=True)
        self.assertEqual(files.write([[2, 1], [3, 1]], 3, 1, 4, 0.5), [[2, 1], [2, 3, 4]])
        self.assertEqual(asked, {"prompts": [["a", "q"], ["b", "q"]], "beam_size": 4, "max_decoding_length": 3,
                                 "min_decoding_length": 0, "max_input_length": 0, "length_penalty": 0.5,
                                 "end_token": [1, 4], "return_end_token": True})  # fmt: skip
        self.assertEqual(files.log_probabilities([([2, 1], [3, 4, 1]), ([2, 1], [1])]), [-0.75, -2.0])
        self.assertEqual((asked["answers"], asked["max_input_length"]), ([["b", "c"], []], 0))

    def test_a_folder_s_kind_is_that_of_its_files_and_weights_come_first(self):
        self.assertIsNone(exported_kind(self.folder))
        for file, kind in (("model.bin", "CTranslate2's files"), ("decoder_model.onnx", "ONNX files")):
            folder = self.folder / file.partition(".")[0]
            folder.mkdir()
            (folder / file).touch()
            self.assertEqual(exported_kind(folder), kind)
            (folder / "model.safetensors").touch()
            self.assertIsNone(exported_kind(folder))


class GraphsTest(TestCase):
    """What is exported computes what the model computes; that ONNX Runtime does, too, is for the slow tests."""

    def graphs_in_torch(self, source, reads_segments: bool = False) -> OnnxModel:
        graphs = list(GRAPHS_BY_FAMILY[source.family](source.model.eval(), reads_segments))
        for graph in graphs:
            (self.folder / f"{graph.name}.onnx").touch()
        source.model.config.save_pretrained(self.folder)
        exported_model = OnnxModel(self.folder)
        exported_model.sessions = {graph.name: TorchSession(graph) for graph in graphs}
        return exported_model

    @parameterized.parameters("tied T5", "untied gated T5", "Mistral")
    @pytest.mark.quick_cases(1)
    def test_models_that_write(self, kind):
        make, family = KINDS[kind]
        source = source_of(make(), family)
        source.model.set_attn_implementation("eager")
        exported_model = self.graphs_in_torch(source)
        self.assertEqual(exported_model.family, family)
        facts = check_onnx(source.model, exported_model)
        self.assert_rounding(facts)
        self.assert_equal_answers(facts, facts["answers"] // 2)

    @parameterized.parameters("BERT", "BERT classifier")
    def test_encoders(self, kind):
        make, family = KINDS[kind]
        source = source_of(make(), family)
        exported_model = self.graphs_in_torch(source, reads_segments=True)
        self.assertEqual([node.name for node in exported_model.sessions["model"].get_inputs()][2:], ["token_type_ids"])
        facts = check_onnx(source.model, exported_model)
        self.assert_rounding(facts)
        self.assertEqual(facts["rows"], 6)
        ids = [[7, 8, 9, 21], [30, 31]]
        segments = [[0, 0, 1, 1], [0, 1]]
        exported_logits = exported_model.logits(ids, segments)
        for row, (tokens, numbers) in enumerate(zip(ids, segments, strict=True)):
            inputs = {"input_ids": torch.tensor([tokens]), "token_type_ids": torch.tensor([numbers])}
            logits = source.model(**inputs).logits[0].detach().numpy()
            np.testing.assert_allclose(exported_logits[row][: len(logits)], logits, atol=1e-5)

    def test_answers_that_are_no_numbers_are_refused(self):
        make, family = KINDS["BERT classifier"]
        source, broken = source_of(make(), family), source_of(make(), family)
        broken.model.classifier.bias.data.fill_(float("nan"))
        with exits_with(74, "ONNX files differ from the model: logits_relative nan"):
            check_onnx(source.model.eval(), self.graphs_in_torch(broken))

    @pytest.mark.slow
    def test_another_model_is_refused(self):
        source = source_of(t5())
        exported_model = self.graphs_in_torch(source)
        with exits_with(74, "ONNX files differ from the model: .*first_step_logits_relative .*cached_step"):
            check_onnx(t5(changed=",dense_act_fn=gelu"), exported_model)

    def test_a_graph_that_cannot_be_computed_is_named(self):
        exported_model = self.graphs_in_torch(source_of(t5()))
        exported_model.sessions["decoder_model"].graph.axes["input_ids"].clear()
        with exits_with(74, "decoder_model.onnx: ONNX Runtime cannot compute it: decoder_model: input_ids"):
            exported_model.generate([[7, 1]])


@pytest.mark.slow
class FamiliesTest(TestCase):
    @parameterized.parameters("untied gated T5", "Mistral")  # others: tests/test_matrix.py
    def test_models_that_write(self, kind):
        source, folder = exported(kind)
        found = compare_onnx(source.model, OnnxModel(folder, num_threads=1))
        self.assert_rounding(found)
        self.assert_equal_answers(found, found["answers"] // 2)
        self.assertGreaterEqual(found["answers"], 10)

    def test_encoders(self):
        for kind in ("BERT", "BERT classifier"):
            source, folder = exported(kind)
            self.assert_rounding(compare_onnx(source.model, OnnxModel(folder, num_threads=1)))

    def test_a_large_models_weights_lie_beside_its_graphs_and_may_be_quantized(self):
        model = t5()
        self.enter_context(mock.patch("t5suite.export.onnx_files.LARGEST_FILE", 0))
        files = write_graphs(source_of(model), self.folder)
        self.assertLess((self.folder / files[0]).stat().st_size, (self.folder / f"{files[0]}.data").stat().st_size)
        self.assert_rounding(compare_onnx(model, OnnxModel(self.folder, num_threads=1)))
        said = quantize(self.folder, files)
        self.assertLess(said["bytes_after"], 0.6 * said["bytes_before"])
        found = compare_onnx(model, OnnxModel(self.folder, num_threads=1))
        self.assertLess(found["first_step_logits_relative"], 0.2)

    @parameterized.parameters(
        ("t5", "d_model=32,d_ff=64,d_kv=8,num_heads=2,num_layers=1"),
        ("gpt2", "n_embd=32,n_layer=1,n_head=2"),
        ("bert", "hidden_size=32,intermediate_size=64,num_hidden_layers=1,num_attention_heads=2"),
    )
    def test_the_score_of_the_files_is_that_of_the_trained_model(self, config_name, overrides):
        run = self.folder / "run"
        flags = (
            f"--benchmark mini --dataset_name sentiment --config_name {config_name} --config_overrides {overrides} "
            f"--max_steps 60 --learning_rate 1e-2 --per_device_train_batch_size 16 --max_eval_samples 50 --use_cpu True "
            f"--eval_strategy no --save_strategy no --disable_tqdm True --output_dir {run}"
        )
        fine_tune_t5.main([*flags.split(), "--tokenizer_name", bundled_model()])
        scored = f"--eval_only --benchmark mini --dataset_name sentiment --model_name_or_path {run} --use_cpu True "
        results = fine_tune_t5.main(f"{scored} --output_dir {self.folder / 'scored'}".split())
        words = ["--format", "onnx", "--check", "--model_name_or_path", run, "--output_dir", self.folder / "onnx"]
        run_cli("export", *words)
        task, rows = load_task("mini", "sentiment"), tiny_rows("sentiment")
        write_rows(self.folder / "rows.jsonl", rows)
        files = ["--input", str(self.folder / "rows.jsonl"), "--output", str(self.folder / "answers.jsonl")]
        run_cli("predict", "--model_name_or_path", str(self.folder / "onnx"), *files)
        found = task.score(rows, [line["prediction"] for line in read_rows(self.folder / "answers.jsonl")])
        self.assertEqual(found["accuracy"], results["tasks"]["sentiment"]["accuracy"])


BERT = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
LAYERS = ",".join(f"{name}={value}" for name, value in BERT.items())
# A function that makes the model, and its family.
KINDS = {
    "tied T5": (t5, "seq2seq"),
    "untied gated T5": (lambda: t5("t5-v1_1-small"), "seq2seq"),
    # Its window of 8 tokens is shorter than what was traced and most prompts.
    "Mistral": (lambda: tiny_model("mistral", f"{LAYERS},num_key_value_heads=1,sliding_window=8", scale=1.0), "causal"),
    "BERT": (lambda: tiny_model("bert", LAYERS, family="masked", scale=1.0), "masked"),
    "BERT classifier": (
        lambda: BertForSequenceClassification(BertConfig(vocab_size=640, num_labels=3, **BERT)), "classification",
    ),
}  # fmt: skip
