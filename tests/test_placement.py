"""Models on several devices: what lies where, that they compute what whole ones compute, and what is refused.

CPU and disk stand for two devices: accelerate's hooks are the same.
"""

import copy
import gc
import json
import logging
import multiprocessing
import tempfile
import time
from pathlib import Path
from unittest import mock

import pytest
import torch
from absl.testing import parameterized
from accelerate.utils import find_tied_parameters

import fine_tune_t5
from t5suite import FineTuner
from t5suite.models import placement
from t5suite.testing import exits_with, save_model, tiny_model, tiny_tuner

CPU = torch.device("cpu")
SOURCES_BS = torch.arange(12).reshape(2, 6) + 3
TARGETS_BT = torch.arange(8).reshape(2, 4)
STEPS = 3
FOUR_LAYERS = "num_layers=4,num_decoder_layers=4"
BART = "d_model=64,encoder_layers=4,decoder_layers=4,vocab_size=4000,encoder_ffn_dim=256,decoder_ffn_dim=256"
MODELS = {
    "tied T5": {"config_overrides": FOUR_LAYERS},
    "T5 v1.1": {"config_overrides": f"{FOUR_LAYERS},tie_word_embeddings=False,feed_forward_proj=gated-gelu"},
    "BART": {"config_name": "bart", "config_overrides": BART},
}


def make_model(tied: bool):
    return tiny_model(config_overrides=f"dropout_rate=0,tie_word_embeddings={tied}", scale=1.0).train()


def losses_of(model, device) -> list[float]:
    """The losses of a few updates, batches on `device`."""
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-3), []
    for _ in range(STEPS):
        batch = {
            "input_ids": SOURCES_BS,
            "attention_mask": torch.ones_like(SOURCES_BS),
            "decoder_input_ids": TARGETS_BT,
        }
        logits_BTV = model(**{name: tensor.to(device) for name, tensor in batch.items()}).logits
        targets = TARGETS_BT.flatten().to(device)
        loss = torch.nn.functional.cross_entropy(logits_BTV.flatten(0, 1), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def size_of(model) -> int:
    return sum(4 * parameter.numel() for parameter in model.parameters())


def half(model) -> dict:
    """Two devices, neither of which holds the model."""
    return {number: int(0.7 * size_of(model)) for number in (0, 1)}


def outputs(model):
    model.eval()
    with torch.no_grad():
        logits = model(input_ids=SOURCES_BS, decoder_input_ids=TARGETS_BT).logits
    return logits, model.generate(input_ids=SOURCES_BS, max_new_tokens=5).tolist()


def device_of(name: str, placed: dict):
    """That of the closest module above the weight that the map names."""
    while name and name not in placed:
        name = name.rpartition(".")[0]
    return placed[name]


class DeviceMapTest(parameterized.TestCase):
    @parameterized.product(name=list(MODELS), device_map=["balanced", "sequential"])
    def test_every_layer_has_one_device_and_no_device_more_than_it_may_hold(self, name, device_map):
        model = tiny_model(**MODELS[name])
        placed = placement.device_map_for(model, device_map, half(model))
        devices = {weight: device_of(weight, placed) for weight, _ in model.named_parameters()}
        self.assertEqual(set(devices.values()), {0, 1})
        for device, limit in half(model).items():
            placed_bytes = sum(4 * p.numel() for weight, p in model.named_parameters() if devices[weight] == device)
            self.assertLessEqual(placed_bytes, limit)
        for block, module in model.named_modules():
            if type(module).__name__ in model._no_split_modules:
                self.assertLen({devices[f"{block}.{weight}"] for weight, _ in module.named_parameters()}, 1, block)
        for names in find_tied_parameters(model):
            self.assertLen({device_of(weight, placed) for weight in names}, 1, names)


class FlagsTest(parameterized.TestCase):
    def test_sizes_are_read_and_flags_that_exclude_each_other_refused(self):
        self.assertEqual(placement.parse_max_memory("0=10GiB, cpu=1.5GB,1=4096"), {0: "10GiB", "cpu": "1.5GB", 1: 4096})
        sizes = ("10GiB", "0:10GiB", "0=", "gpu=1GiB", "0=1GiB,", "0=-1GiB", "0=lots")
        for device_map, max_memory, embedding_on_cpu, message in (
            *(("balanced", size, False, "--max_memory .* is not DEVICE=SIZE") for size in sizes),
            (None, "0=1GiB", False, "no effect"),
            ("balanced", None, True, "--embedding_on_cpu and --device_map"),
        ):
            with self.subTest(message, size=max_memory), exits_with(78, message):
                placement.check_placement_flags(device_map, max_memory, embedding_on_cpu)

    @parameterized.parameters((2, None, "2 processes"), (1, "DeepSpeed", "DeepSpeed"), (2, "FSDP", "FSDP"))
    def test_several_processes_and_sharding_are_refused(self, world_size, sharded, cause):
        with exits_with(78, f"--device_map auto.*{cause}"):
            placement.check_alone("--device_map auto", world_size, sharded)

    def test_a_device_that_is_not_there_is_named(self):
        with exits_with(78, "device 7 is not there; this machine has"):
            model = make_model(tied=True)
            memory = f"0=0GiB,7={size_of(model) * 2}"
            placement.place_model(model, device_map="sequential", max_memory=memory, device=CPU)

    def test_apples_gpu_which_was_never_tested_gets_no_layers(self):
        with mock.patch("torch.backends.mps.is_available", return_value=True), exits_with(78, "balanced: Apple's GPU"):
            placement.place_model(make_model(tied=True), device_map="balanced", device=CPU)

    def test_a_model_that_one_device_holds_is_not_spread(self):
        model = make_model(tied=True)
        with self.assertLogs("t5suite", "WARNING") as log:
            placement.place_model(model, device_map="sequential", max_memory="cpu=1GiB", device=CPU)
        self.assertIn("--device_map sequential has no effect: the whole model fits cpu", log.output[0])
        self.assertEqual(placement.by_device(model), {})
        with exits_with(78, "puts the whole model on cpu, but batches are on cuda:0"):
            gpu = torch.device("cuda:0")
            placement.place_model(model, device_map="sequential", max_memory="cpu=1GiB", device=gpu)


class OffloadTest(parameterized.TestCase):
    def place(self, model, folder, trains=False):
        memory = f"cpu={int(0.6 * size_of(model))}"
        placement.place_model(
            model, device_map="sequential", max_memory=memory, device=CPU, trains=trains, folder=folder
        )

    @parameterized.parameters(True, False)
    @pytest.mark.quick_cases(1)
    def test_an_offloaded_model_computes_what_the_whole_one_does(self, tied):
        whole, folder = make_model(tied), tempfile.mkdtemp()
        offloaded = copy.deepcopy(whole)
        self.place(offloaded, folder)
        self.assertEqual(set(placement.by_device(offloaded)), {"cpu", "disk"})
        self.assertTrue(any(parameter.is_meta for parameter in offloaded.parameters()))
        (expected, text), (logits, offloaded_text) = outputs(whole), outputs(offloaded)
        self.assertTrue(torch.equal(logits, expected))
        self.assertEqual(offloaded_text, text)

    def test_models_in_one_folder_answer_with_their_own_weights_whichever_ends_first(self):
        folder, models = Path(tempfile.mkdtemp()), [make_model(True), make_model(True)]
        torch.nn.init.normal_(models[1].decoder.block[-1].layer[0].SelfAttention.q.weight)
        expected = [outputs(copy.deepcopy(model))[0] for model in models]
        self.place(models[0], folder)
        (first_folder,) = folder.iterdir()
        with self.assertNoLogs("t5suite", "WARNING"):
            self.place(models[1], folder)
        for model, logits in zip(models, expected, strict=True):
            self.assertTrue(torch.equal(outputs(model)[0], logits))
        del model, models[1]
        gc.collect()
        self.assertEqual(list(folder.iterdir()), [first_folder])
        self.assertTrue(torch.equal(outputs(models[0])[0], expected[0]))
        models.clear()
        gc.collect()
        self.assertEmpty(list(folder.iterdir()))

    def test_the_weights_of_a_process_that_was_killed_go_and_those_of_a_living_one_stay(self):
        folder, models = Path(tempfile.mkdtemp()), [make_model(True) for _ in range(3)]
        context = multiprocessing.get_context("fork")
        placed = context.Event()

        def place_and_wait():
            self.place(models[0], folder)
            placed.set()
            time.sleep(600)

        process = context.Process(target=place_and_wait, daemon=True)
        process.start()
        self.assertTrue(placed.wait(60))
        (its_folder,) = folder.iterdir()
        self.place(models[1], folder)
        self.assertIn(its_folder, folder.iterdir())
        process.kill()
        process.join()
        self.place(models[2], folder)
        self.assertNotIn(its_folder, folder.iterdir())
        self.assertLen(list(folder.iterdir()), 2)

    def test_training_is_refused_before_anything_is_written(self):
        folder = Path(tempfile.mkdtemp())
        with exits_with(78, "decoder.* do not fit .* not trained"):
            self.place(make_model(True), folder, trains=True)
        self.assertEmpty(list(folder.iterdir()))


class EmbeddingOnCpuTest(parameterized.TestCase):
    def test_the_hooked_model_trains_to_the_same_bits(self):
        whole, hooked = make_model(False), make_model(False)
        placement.keep_embedding_on_cpu(hooked, CPU)
        places = ("", "shared", "encoder.embed_tokens", "decoder.embed_tokens")
        self.assertEqual(hooked.hf_device_map, dict.fromkeys(places, CPU))
        self.assertEqual(losses_of(hooked, CPU), losses_of(whole, CPU))
        for (name, expected), weight in zip(whole.named_parameters(), hooked.parameters(), strict=True):
            self.assertTrue(torch.equal(expected, weight), name)

    def test_of_the_trainer_s_messages_only_that_of_several_devices_is_left_out(self):
        placement.keep_embedding_on_cpu(make_model(False), CPU)
        logger = logging.getLogger("transformers.trainer")
        with self.assertLogs(logger, "INFO") as logs:
            logger.info("The model is already on multiple devices. Skipping the move to device specified in `args`.")
            logger.info("The main process is restored.")
        self.assertEqual([record.getMessage() for record in logs.records], ["The main process is restored."])

    def test_a_tied_output_layer_is_refused(self):
        with exits_with(78, "--embedding_on_cpu: .* output layer is the embedding"):
            placement.keep_embedding_on_cpu(make_model(True), CPU)


class ScriptsTest(parameterized.TestCase):
    @pytest.mark.slow
    def test_an_evaluation_from_the_disk_equals_the_whole_model_s(self):
        folder = Path(tempfile.mkdtemp())
        save_model(folder / "model", make_model(True))
        flags = ["--model_name_or_path", str(folder / "model"), "--eval_only", "--max_eval_samples=16", "--use_cpu"]
        whole = fine_tune_t5.main([*flags, "--output_dir", str(folder / "whole")])
        memory = ["--device_map=sequential", f"--max_memory=cpu={int(0.6 * size_of(make_model(True)))}"]
        offloaded = fine_tune_t5.main([*flags, *memory, "--output_dir", str(folder / "offloaded")])
        self.assertEqual(offloaded, whole)
        manifest = json.loads((folder / "offloaded" / "manifest.json").read_text())
        self.assertEqual(set(manifest["model"]["placement"]), {"cpu", "disk"})
        predictions = [next((folder / run / "predictions").iterdir()).read_text() for run in ("whole", "offloaded")]
        self.assertEqual(*predictions)

    def test_from_python_a_model_on_the_disk_answers_texts_of_any_length(self):
        folder = save_model(tempfile.mkdtemp(), make_model(True))
        texts = ["sentiment sentence: good", "sentiment sentence: a long and most unpleasant evening"]
        memory = {"device_map": "sequential", "max_memory": "cpu=0KiB"}
        whole, offloaded = (tiny_tuner(str(folder), eval_only=True, **flags) for flags in ({}, memory))
        self.assertEqual(offloaded.model.device, torch.device("meta"))
        expected = whole.predict(texts, max_new_tokens=4)
        self.assertEqual(offloaded.predict(texts, max_new_tokens=4), expected)

    def test_from_python_the_flags_count_as_well(self):
        tuner = FineTuner(embedding_on_cpu=True, use_cpu=True, config_overrides="tie_word_embeddings=False")
        self.assertEqual(placement.by_device(tuner.model)["cpu"][0], "shared")
        self.assertLen(tuner.predict(["sentiment sentence: good"], max_new_tokens=2), 1)
