"""`t5suite adapt`: a decoder's tensors in an encoder-decoder, each in its place; what nothing has trained is labelled."""

import collections
import contextlib
import functools
import io
import json
import re
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from absl.testing import parameterized
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from benchmarks.gemma_form import CONFIGS, gemma_decoder, gemma_tokenizer
from t5suite import load_task
from t5suite.testing import cli_output, encode_rows, exits_with, run_cli, tiny_rows, tiny_run

KINDS = tuple(CONFIGS)
MINI = "mini/sentiment"
# Two layers, one of them with a window; every tensor holds numbers that matter.
SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 16,
    "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
BF16 = torch.bfloat16
EMBEDDINGS = "model.embed_tokens.weight"
UNTRAINED = ("model.encoder.vision_tower.", "model.encoder.multi_modal_projector.")
FOR_IMAGES = (*UNTRAINED, "model.encoder.text_model.embed_tokens.eoi_embedding")
# transformers stores T5Gemma 2's encoder without the name of its text model.
STORED_FOR_IMAGES = (*UNTRAINED, "model.encoder.embed_tokens.eoi_embedding")


@functools.cache
def tokenizer():
    return gemma_tokenizer([row["sentence"] for row in tiny_rows()], vocab_size=320)


@functools.cache
def decoder_folder(kind: str, **settings) -> Path:
    """A decoder with its tokenizer, in the published form."""
    folder = Path(tempfile.mkdtemp())
    model = gemma_decoder(kind, vocab_size=len(tokenizer()), **{**SIZES, **settings})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@functools.cache
def adapted_folder(kind: str) -> Path:
    folder = Path(tempfile.mkdtemp()) / "adapted"
    adapt(decoder_folder(kind), folder)
    return folder


def adapt(source, output, *words) -> dict:
    """What the command prints as JSON."""
    with contextlib.redirect_stderr(io.StringIO()):
        return json.loads(cli_output("adapt", "--model_name_or_path", source, "--output_dir", output, "--json", *words))


def check_again(kind: str, output) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        run_cli("adapt", "--model_name_or_path", decoder_folder(kind), "--output_dir", output, "--check")


class TestCase(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.enter_context(tempfile.TemporaryDirectory()))
        self.output = self.folder / "adapted"

    def copied(self, folder, name: str) -> Path:
        return Path(shutil.copytree(folder, self.folder / name))


class OriginsTest(TestCase):
    @parameterized.parameters(*KINDS)
    @pytest.mark.slow
    def test_a_dry_run_lists_every_tensor_and_writes_nothing(self, kind):
        source = decoder_folder(kind)
        before = sorted(source.iterdir())
        record = json.loads(cli_output("adapt", "--model_name_or_path", source, "--dry_run", "--json"))
        self.assertEqual(sorted(source.iterdir()), before)
        model = AutoModelForSeq2SeqLM.from_pretrained(adapted_folder(kind))
        listed = {line["name"].partition("[")[0] for line in record["tensors"]}
        self.assertEqual(listed, {name for name, _ in model.named_parameters(remove_duplicate=False)})
        self.assertEqual(sum(record["parameters"].values()), sum(p.numel() for p in model.parameters()))
        origins = {line["origin"] for line in record["tensors"]}
        decoder = AutoModelForCausalLM.from_pretrained(source)
        self.assertContainsSubset({name for name, _ in decoder.named_parameters()}, origins)
        self.assertEqual(record["tensors"], json.loads((adapted_folder(kind) / "adapt.json").read_text())["tensors"])

    @parameterized.parameters(*KINDS)
    def test_what_is_printed_are_the_record_s_numbers(self, kind):
        with contextlib.redirect_stderr(io.StringIO()):
            shown = cli_output("adapt", "--model_name_or_path", decoder_folder(kind), "--dry_run")
        record = json.loads((adapted_folder(kind) / "adapt.json").read_text())
        lines, summary = (part.splitlines() for part in shown.split("\n\n"))
        cells = [line.split(maxsplit=2) for line in lines]
        expected = [[row["name"], "x".join(map(str, row["shape"])), row["origin"]] for row in record["tensors"]]
        self.assertEqual(cells, expected)
        sizes = {name: size for name, size in record["parameters"].items() if size}
        printed = [int(line.split()[0].replace(",", "")) for line in summary[1:]]
        self.assertEqual(printed, [sizes[name] for name in ("copied", "new", "untrained") if name in sizes])
        self.assertIn(f"new: {record['new_rows']} rows, for 100 sentinels", summary[2])

    @parameterized.parameters(*KINDS)
    @pytest.mark.quick_cases(1)
    def test_every_copied_tensor_is_stored_bit_for_bit(self, kind):
        source = self.copied(decoder_folder(kind), "source")
        model = AutoModelForCausalLM.from_pretrained(source, dtype=BF16)
        model.save_pretrained(source)
        record = adapt(source, self.output)
        expected = load_file(source / "model.safetensors")
        stored = AutoModelForSeq2SeqLM.from_pretrained(self.output, dtype=BF16).state_dict()
        self.assertEqual({tensor.dtype for tensor in load_file(self.output / "model.safetensors").values()}, {BF16})
        compared = set()
        for line in record["tensors"]:
            name = line["name"].partition("[")[0]
            if line["origin"] in expected:
                tensor = expected[line["origin"]]
                self.assertTrue(torch.equal(stored[name][: len(tensor)], tensor), line)
                compared.add(line["origin"])
        self.assertEqual(compared, set(expected))

    @parameterized.parameters(*KINDS)
    @pytest.mark.quick_cases(1)
    def test_sentinels_are_rows_that_begin_as_the_mean(self, kind):
        record = adapt(decoder_folder(kind), self.output, "--num_sentinels", 20)
        self.assertEqual((record["num_sentinels"], record["new_rows"]), (20, 64))  # 320 pieces, 384 rows
        pieces = AutoTokenizer.from_pretrained(self.output)
        self.assertEqual(pieces.convert_tokens_to_ids([f"<extra_id_{n}>" for n in range(20)]), [*range(320, 340)])
        mean = load_file(decoder_folder(kind) / "model.safetensors")[EMBEDDINGS].mean(0)
        model = AutoModelForSeq2SeqLM.from_pretrained(self.output)
        for matrix in (model.get_input_embeddings().weight, model.get_output_embeddings().weight):
            self.assertTrue(torch.allclose(matrix[320:], mean.expand(64, -1), atol=1e-6))

    def test_texts_end_and_begin_as_t5s_do(self):
        self.assertEqual(tokenizer()("a").input_ids[0], 2)  # the decoder's begin with <bos>
        rows = [{"sentence": "Fine.", "label": 1}]
        (example,) = encode_rows(rows, load_task("mini", "sentiment"), tokenizer=str(adapted_folder("gemma3_text")))
        for ids in (example["input_ids"], example["labels"]):
            self.assertEqual((ids[0] == 2, ids[-1]), (False, 1))

    @parameterized.parameters(*KINDS)
    def test_plain_transformers_loads_it_and_starts_answers_as_the_decoder_does(self, kind):
        model, report = AutoModelForSeq2SeqLM.from_pretrained(adapted_folder(kind), output_loading_info=True)
        self.assertFalse(report["missing_keys"] or report["unexpected_keys"] or report["mismatched_keys"])
        answer = model.generate(input_ids=torch.tensor([[2, 9, 8]]), max_new_tokens=3)
        self.assertEqual(int(answer[0, 0]), tokenizer().bos_token_id)


def perturbable(kind: str) -> list[str]:
    """The names of the stored tensors that text reaches."""
    names = load_file(adapted_folder(kind) / "model.safetensors")
    return [name for name in sorted(names) if not name.startswith(STORED_FOR_IMAGES)]


def expected_failures(kind: str, name: str) -> set[str]:
    """Which comparisons a wrong tensor must fail."""
    if "encoder" not in name and "cross_attn" in name:
        return {"numpy_forward"}
    is_shared = kind == "gemma3_text" and "embed_tokens" in name
    failures = {"numpy_forward"}
    if "encoder" in name:
        failures.add("encoder_as_decoder")
    if "decoder" in name or is_shared:
        failures.add("decoder_without_source")
    return failures


def one_of_each_group(kind: str) -> list[str]:
    """Of the tensors that take part in the same comparisons, one."""
    groups = collections.defaultdict(list)
    for name in perturbable(kind):
        groups[frozenset(expected_failures(kind, name))].append(name)
    return [names[len(names) // 2] for names in groups.values()]


class CheckTest(TestCase):
    @parameterized.parameters(*KINDS)
    def test_what_is_written_computes_what_the_decoder_computes(self, kind):
        comparison = adapt(decoder_folder(kind), self.output, "--check")["check"]
        for name in ("decoder_without_source", "encoder_as_decoder", "numpy_forward"):
            self.assertLess(comparison[name], 2e-5, name)

    def fails_if_perturbed(self, kind: str, name: str, names_of_failures) -> None:
        folder = self.copied(adapted_folder(kind), name)
        tensors = load_file(folder / "model.safetensors")
        generator = torch.Generator().manual_seed(1)
        tensors[name] += 0.1 * tensors[name].std() * torch.randn(tensors[name].shape, generator=generator)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        with exits_with(74, "does not compute") as failure:
            check_again(kind, folder)
        for comparison in ("decoder_without_source", "encoder_as_decoder", "numpy_forward"):
            self.assertEqual(comparison in failure.message, comparison in names_of_failures, (name, failure.message))

    @parameterized.parameters(*KINDS)
    @pytest.mark.quick_cases(1)
    def test_a_wrong_tensor_fails_each_comparison_that_it_takes_part_in(self, kind):
        for name in one_of_each_group(kind):
            self.fails_if_perturbed(kind, name, expected_failures(kind, name))

    @parameterized.parameters(*KINDS)
    @pytest.mark.slow
    def test_every_tensor_of_every_layer_is_compared(self, kind):
        for name in perturbable(kind):
            self.fails_if_perturbed(kind, name, expected_failures(kind, name))

    @parameterized.parameters(
        ("sliding_window", 9), ("query_pre_attn_scalar", 9), ("rms_norm_eps", 1e-3), ("final_logit_softcapping", 9.0)
    )
    @pytest.mark.quick_cases(1)
    def test_a_wrong_setting_is_named(self, name, setting):
        for stack in ("encoder", "decoder"):
            folder = self.copied(adapted_folder("gemma2"), f"{stack}_{name}")
            settings = json.loads((folder / "config.json").read_text())
            settings[stack][name] = setting
            (folder / "config.json").write_text(json.dumps(settings))
            with exits_with(74, rf"{stack}\.{name} \({setting}, not"):
                check_again("gemma2", folder)

    def test_weights_that_are_not_whole_are_named(self):
        folder = self.copied(adapted_folder("gemma3_text"), "incomplete")
        tensors = load_file(folder / "model.safetensors")
        del tensors["model.decoder.layers.1.mlp.up_proj.weight"]
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        with exits_with(65, "--output_dir .*missing.*model.decoder.layers.1.mlp.up_proj"):
            check_again("gemma3_text", folder)

    def test_layers_in_another_order_fail(self):
        folder = self.copied(adapted_folder("gemma3_text"), "swapped")
        tensors = load_file(folder / "model.safetensors")
        other_layer = {"0": "1", "1": "0"}
        swapped = {}
        for name, tensor in tensors.items():
            swapped[re.sub(r"(?<=layers\.)\d", lambda number: other_layer[number[0]], name)] = tensor
        save_file(swapped, folder / "model.safetensors", {"format": "pt"})
        with exits_with(74, "encoder_as_decoder"):
            check_again("gemma3_text", folder)


class VisionTowerTest(TestCase):
    """T5Gemma 2 is always built with a vision tower."""

    def test_images_are_refused_here_and_in_plain_transformers(self):
        text = {"input_ids": torch.tensor([[2, 9]]), "decoder_input_ids": torch.tensor([[2]])}
        images = torch.zeros(1, 1, 1, 1)
        plain = AutoModelForSeq2SeqLM.from_pretrained(adapted_folder("gemma3_text"))
        with self.assertRaisesRegex(ValueError, "Image features and image tokens do not match"):
            plain(pixel_values=images, **text)
        model = tuner("gemma3_text").model
        model(**text)
        with exits_with(78, "pixel_values: the vision tower of this model is a placeholder that nothing has trained"):
            model(pixel_values=images, **text)

    @pytest.mark.slow
    def test_it_is_counted_apart_and_frozen(self):
        words = ["summary", "--model_name_or_path", adapted_folder("gemma3_text"), "--batch_size", 1]
        words += ["--source_length", 8, "--target_length", 8]
        record = json.loads(cli_output(*words, "--json"))
        width = SIZES["hidden_size"]
        self.assertEqual((record["untrained"], record["frozen"]), (6 + 2 * width, 6 + 2 * width))
        self.assertIn("70 frozen, 70 of them untrained: a vision tower", cli_output(*words))
        (row,) = [row for row in record["modules"] if row["name"] == "vision_tower"]
        self.assertEqual((row["parameters"], row["trained"]), (5, 0))
        words[2] = adapted_folder("gemma2")
        self.assertEqual(json.loads(cli_output(*words, "--json"))["untrained"], 0)

    @pytest.mark.slow
    def test_training_changes_text_alone_and_keeps_the_label(self):
        run = tiny_run(
            str(adapted_folder("gemma3_text")), MINI, max_eval_samples=2, weight_decay=0.1, learning_rate=1e-2
        )
        before = load_file(adapted_folder("gemma3_text") / "model.safetensors")
        after = load_file(run.directory / "model.safetensors")
        same = {name for name in before if torch.equal(before[name], after[name])}
        self.assertEqual(same, {name for name in before if name.startswith(STORED_FOR_IMAGES)})
        settings = json.loads((run.directory / "config.json").read_text())
        self.assertEqual(settings["untrained_parts"], [*FOR_IMAGES])


def tuner(kind: str):
    from t5suite import FineTuner

    return FineTuner(str(adapted_folder(kind)))


class TermsTest(TestCase):
    def card(self) -> str:
        return (self.output / "README.md").read_text()

    @pytest.mark.slow
    def test_gemmas_terms_go_with_the_weights(self):
        source = self.copied(decoder_folder("gemma3_text"), "source")
        (source / "README.md").write_text("---\nlicense: gemma\n---\n# Gemma\n")
        (source / "LICENSE.md").write_text("the terms")
        adapt(source, self.output)
        self.assertEqual((self.output / "LICENSE.md").read_text(), "the terms")
        notice = (self.output / "NOTICE").read_text()
        sentence = "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms"
        self.assertTrue(notice.startswith(f"{sentence}.\n"))
        self.assertIn("files of this folder were modified", notice)
        self.assertIn("\nlicense: gemma\n", self.card())
        self.assertIn(sentence, self.card())
        run = tiny_run(str(self.output), MINI, max_steps=1, max_eval_samples=2)
        self.assertIn("\nlicense: gemma\n", (run.directory / "README.md").read_text())

    def test_no_licence_is_made_up(self):
        adapt(decoder_folder("gemma3_text"), self.output)
        self.assertIn("\nlicense: unknown\n", self.card())
        self.assertIn("states a licence. If its weights are Google's Gemma", self.card())
        self.assertNotIn("Gemma is provided", (self.output / "NOTICE").read_text())

    def test_another_licence_is_kept(self):
        source = self.copied(decoder_folder("gemma3_text"), "source")
        (source / "README.md").write_text("---\nlicense: other\nlicense_name: mine\nlicense_link: LICENSE\n---\n")
        (source / "NOTICE").write_text("Mine.\n")
        adapt(source, self.output)
        self.assertIn("license: other\nlicense_name: mine\nlicense_link: LICENSE\n", self.card())
        self.assertTrue((self.output / "NOTICE").read_text().startswith("Mine.\n\nThe files of this folder"))


class TrainingTest(TestCase):
    @parameterized.parameters(*((kind, objective) for kind in KINDS for objective in ("ul2", "prefix_lm")))
    @pytest.mark.slow
    def test_it_is_pre_trained_then_fine_tuned(self, kind, objective):
        text = self.folder / "text.txt"
        text.write_text("".join(f"{row['sentence']}\n" for row in tiny_rows()))
        words = ["--use_cpu", "--max_steps", 2, "--per_device_train_batch_size", 2, "--max_eval_samples", 4]
        pre_trained = self.folder / "pre_trained"
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            run_cli(
                "pre_train", "--model_name_or_path", adapted_folder(kind), "--objective", objective,
                "--train_file", text, "--inputs_length", 32, "--output_dir", pre_trained, *words,
            )  # fmt: skip
        self.assertIn("pre_train", json.loads((pre_trained / "results.json").read_text())["tasks"])
        run = tiny_run(str(pre_trained), MINI, max_steps=2)
        settings = json.loads((run.directory / "config.json").read_text())
        self.assertEqual(settings["architectures"], [type(tuner(kind).model).__name__])


class RefusalTest(TestCase):
    def refused(self, code, pattern, source, *words):
        with contextlib.redirect_stdout(io.StringIO()), exits_with(code, pattern):
            run_cli("adapt", "--model_name_or_path", source, *words)
        self.assertFalse(self.output.exists())

    def source(self, **settings) -> Path:
        """A Gemma 3 with other settings in its configuration."""
        folder = self.copied(decoder_folder("gemma3_text"), "source")
        stored = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**stored, **settings}))
        return folder

    def test_flags_that_do_not_go_together(self):
        folder = decoder_folder("gemma3_text")
        self.refused(78, "give --output_dir, or --dry_run", folder)
        self.refused(78, "--check has no effect with --dry_run", folder, "--dry_run", "--check")
        self.refused(78, "--num_sentinels 0: must be at least 1", folder, "--dry_run", "--num_sentinels", 0)

    def test_no_such_folder(self):
        self.refused(78, "no such folder", self.folder / "absent", "--dry_run")

    def test_a_folder_that_is_not_empty(self):
        words = ["--output_dir", decoder_folder("gemma2")]
        self.refused(78, "not empty", decoder_folder("gemma3_text"), *words)
        self.refused(78, "not empty", decoder_folder("gemma3_text"), *words, "--check")

    @parameterized.parameters(
        ("t5", r"type 't5' cannot be adapted; these can: gemma3_text, gemma2"),
        ("gemma3", r"type 'gemma3' cannot be adapted \(it reads images, too"),
        ("t5gemma2", r"is an encoder-decoder already"),
    )
    def test_another_type(self, model_type, pattern):
        folder = self.folder / "other"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
        (folder / "model.safetensors").write_bytes(b"")
        self.refused(78, pattern, folder, "--dry_run")

    @parameterized.parameters(
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention is set: it is an encoder"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is false, and an adapted model has one matrix"),
        ({"bos_token_id": None}, "bos_token_id is not set; a decoder starts with"),
    )
    def test_a_setting_that_no_encoder_decoder_has(self, settings, pattern):
        self.refused(78, f"config.json: {pattern}", self.source(**settings), "--output_dir", self.output)

    def test_another_tokenizer(self):
        folder = self.copied(decoder_folder("gemma3_text"), "source")
        gemma_tokenizer([row["sentence"] for row in tiny_rows()], vocab_size=330).save_pretrained(folder)
        self.refused(78, "embeddings for 320 pieces, and this tokenizer has 330", folder, "--output_dir", self.output)

    def test_fewer_sentinels_than_there_are(self):
        folder = self.copied(decoder_folder("gemma3_text"), "source")
        pieces = AutoTokenizer.from_pretrained(folder)
        pieces.add_tokens(["<extra_id_0>", "<extra_id_1>"], special_tokens=True)
        pieces.save_pretrained(folder)
        words = ["--output_dir", self.output, "--num_sentinels", 1]
        self.refused(78, "--num_sentinels 1: the tokenizer has 2", folder, *words)

    def test_weights_that_are_not_whole(self):
        folder = self.copied(decoder_folder("gemma3_text"), "source")
        tensors = load_file(folder / "model.safetensors")
        del tensors["model.layers.1.mlp.up_proj.weight"]
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        self.refused(65, "missing.*layers.1.mlp.up_proj", folder, "--output_dir", self.output)

    def test_an_adapter(self):
        folder = self.folder / "adapter"
        folder.mkdir()
        (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "x"}')
        (folder / "adapter_model.safetensors").write_bytes(b"")
        self.refused(78, "an adapter; merge it first: t5suite export", folder, "--dry_run")

    def test_rotary_positions_that_cannot_be_checked(self):
        rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
        ropes = {"full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}
        words = ["--output_dir", self.output, "--check"]
        self.refused(78, "rope_type is 'dynamic'.*default and linear", self.source(rope_parameters=ropes), *words)
