"""Memory: what the estimator says is what the allocator saw, for every optimizer, family and way of saving."""

import contextlib
import io
import json
from types import SimpleNamespace

import pytest
import torch
import transformers
from absl.testing import parameterized

from benchmarks import memory as benchmark
from t5suite import load_task
from t5suite.data.batches.features import RaggedColumn, TokenArrays
from t5suite.models.config_limits import check_length
from t5suite.models.memory import Sharding, estimate
from t5suite.models.rehearsal import LiveBytes, RehearsedStep, rehearse
from t5suite.testing import bundled_model, cli_output, exits_with, tiny_model, tiny_tokenizer, tiny_tuner
from t5suite.training.fine_tuning_trainer import check_positions
from t5suite.training.memory_summary import print_summary, summary_by_flags

ROWS = 640
T5 = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 1, "num_heads": 4}
BART = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
        "encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 128}  # fmt: skip
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 128}
BERT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
SMALL = {"batch_size": 4, "source_length": 48, "target_length": 16}
# By name: a model, and flags of `t5suite summary`.
CASES = {"plain": ("mini", T5, {}), "frozen": ("mini", T5, {"freeze": "encoder,embeddings"})}
MORE_CASES = {
    "checkpointing": ("mini", T5, {"gradient_checkpointing": True}),
    "bf16": ("mini", T5, {"bf16": True}),
    "adafactor": ("mini", T5, {"optimizer": "adafactor"}),
    "accumulated": ("mini", T5, {"batch_size": 2, "gradient_accumulation_steps": 3}),
    "untied": ("mini", {**T5, "tie_word_embeddings": False}, {}),
    "bart": ("bart", BART, {}),
    "gpt2": ("gpt2", GPT2, {}),
    "bert": ("bert", BERT, {}),
    "roberta": ("roberta", BERT, {}),
}
OPTIMIZERS = ("adamw", "adafactor")
OTHER_OPTIMIZERS = (
    "adamw_torch", "adamw_torch_fused", "adamw_bnb_8bit", "adamw_8bit", "lion_8bit", "lion_32bit", "sgd", "adagrad",
    "rmsprop",
)  # fmt: skip
IDS = torch.tensor([[5, 6, 7]])
SHARDINGS = ("zero1", "zero2", "zero3_offload")
OTHER_SHARDINGS = ("zero2_offload", "zero3")


def summary(*argv, **flags) -> dict:
    words = [f"--{name}" if value is True else f"--{name}={value}" for name, value in flags.items()]
    return json.loads(cli_output("summary", "--json", *argv, *words))


def memory_of(config="mini", overrides=T5, **flags) -> dict:
    """The memory that `t5suite summary` says of a step of a small model on the CPU."""
    return memory_table(config, overrides, **flags)["memory"]


def memory_table(config="mini", overrides=T5, **flags) -> dict:
    """All that it says of it."""
    changes = ",".join(f"{name}={value}" for name, value in {**overrides, "vocab_size": ROWS}.items())
    settings = {"config_name": config, "config_overrides": changes, "use_cpu": True, **SMALL, **flags}
    return summary(**{name: value for name, value in settings.items() if value is not False})


def measured(config, overrides, flags) -> int:
    """What the allocator saw of the same step."""
    load = benchmark.Load(
        flags.get("batch_size", SMALL["batch_size"]),
        SMALL["source_length"],
        SMALL["target_length"],
        flags.get("bf16", False),
        flags.get("gradient_checkpointing", False),
        flags.get("gradient_accumulation_steps", 1),
    )
    optimizer, frozen = flags.get("optimizer", "adamw"), flags.get("freeze")
    return benchmark.measure(benchmark.Case(config, load, optimizer, frozen, overrides, ROWS))


class LiveBytesTest(parameterized.TestCase):
    def test_a_storage_counts_once_until_the_last_of_its_views_is_gone(self):
        with LiveBytes() as count:
            numbers = torch.ones(1000)
            halves = numbers.split(500)
            self.assertEqual(count.live, 4000)
            del numbers
            self.assertEqual(count.live, 4000)
            del halves
            self.assertEqual((count.live, count.peak), (0, 4000))

    def test_every_tensor_that_an_operator_returns_is_counted(self):
        with LiveBytes() as count:
            largest, places = torch.ones(1000).max(dim=0, keepdim=True)
            self.assertEqual(count.live, largest.nbytes + places.nbytes)
            copies = torch.split_copy(torch.ones(1000), 250)
            self.assertEqual(count.live, largest.nbytes + places.nbytes + sum(copy.nbytes for copy in copies))


class RehearsalTest(parameterized.TestCase):
    @pytest.mark.slow
    def test_rehearsing_allocates_nothing(self):
        model = transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=ROWS, **T5))
        ids = torch.zeros(1, 1, dtype=torch.long)

        def step(model):
            rows = ids.to(next(model.parameters()).device).expand(4096, 512)
            return model(input_ids=rows, decoder_input_ids=rows).logits.sum()

        self.assertGreater(rehearse(model, step).peak, 10**11)  # more than the machine has

    def test_gradients_of_the_first_micro_batch_are_there_in_the_second_and_may_be_released_at_once(self):
        """Two matrices of 4 MB; the activations of one row are some KB."""
        matrix, row = 4_000_000, torch.ones(1, 1000)

        def rehearsed(**settings):
            layers = torch.nn.Sequential(*(torch.nn.Linear(1000, 1000, bias=False) for _ in range(2)))
            return rehearse(layers, lambda model: model(row.to(next(model.parameters()).dtype)).sum(), **settings)

        for settings, matrices in (({}, 4), ({"steps": 2}, 5), ({"keep_gradients": False}, 3)):
            step = rehearsed(**settings)
            self.assertEqual((step.weights, step.gradients), (2 * matrix, 2 * matrix))
            self.assertAlmostEqual(step.peak, matrices * matrix, delta=50_000)
            self.assertLess(step.activations, 20_000)
        halved = rehearsed(dtype=torch.bfloat16)
        self.assertEqual((halved.weights, halved.gradients), (matrix, matrix))
        self.assertAlmostEqual(halved.peak, 2 * matrix, delta=50_000)


class Sizes(torch.nn.Module):
    """A table, a layer of two matrices, and a vector."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(300, 256)
        matrices = torch.nn.Linear(256, 128, bias=False), torch.nn.Linear(100, 256, bias=False)
        self.layers = torch.nn.ModuleList([torch.nn.Sequential(*matrices)])
        self.vector = torch.nn.Parameter(torch.ones(10))
        self.frozen = torch.nn.Parameter(torch.ones(5), requires_grad=False)


TABLE, FIRST, SECOND, VECTOR = 300 * 256, 128 * 256, 256 * 100, 10
TRAINED = TABLE + FIRST + SECOND + VECTOR


class SumsTest(parameterized.TestCase):
    """What is a sum over parameters, with a step that was rehearsed before."""

    @parameterized.parameters(
        *((name, 8 * TRAINED) for name in ("adamw", "adamw_rms", "adamw_torch", "adamw_torch_fused")),
        *((name, 2 * (TRAINED + 3 * TABLE)) for name in ("adamw_8bit", "adamw_bnb_8bit")),
        *((name, 4 * TRAINED) for name in ("lion_32bit", "adagrad", "rmsprop")),
        ("lion_8bit", TRAINED + 3 * TABLE),
        ("sgd", 0),
        # Rows and columns of what has 128 of both or more.
        ("adafactor", 4 * (300 + 256 + 128 + 256 + SECOND + VECTOR)),
    )
    def test_an_optimizer_s_states_are_of_what_is_trained(self, name, expected):
        step = RehearsedStep(weights=700, activations=50, peak=1000, gradients=600)
        memory = estimate(Sizes(), None, optimizer=name, rehearsed=step)
        sums = {"weights": 700, "gradients": 600, "optimizer": expected, "activations": 50, "host": 0}
        self.assertEqual(memory, {**sums, "peak": expected + 1000})

    @parameterized.parameters(
        # weights, gradients, optimizer states, host: of the whole model's W, G and S, a bucket B, the largest layer L
        ("zero1", lambda W, G, S, B, L: (W, G, S // 4, 0)),
        ("zero2", lambda W, G, S, B, L: (W, G // 4 + B, S // 4, 0)),
        ("zero2_offload", lambda W, G, S, B, L: (W, B, 0, S // 4 + G // 4)),
        ("zero3", lambda W, G, S, B, L: (W // 4 + 2 * L, G // 4 + B, S // 4, 0)),
        ("zero3_offload", lambda W, G, S, B, L: (2 * L, B, 0, S // 4 + G // 4 + W // 4)),
    )
    def test_a_rank_of_four_has_a_fourth_of_what_is_sharded(self, name, expected):
        whole, gradients, peak = 4 * 10**9, 3 * 10**9, 5 * 10**9
        step = RehearsedStep(weights=whole, activations=10**9, peak=peak, gradients=gradients)
        largest = 4 * max(TABLE, FIRST + SECOND)
        for dtype, states, bucket in ((None, 8 * TRAINED, 2 * 10**8), (torch.bfloat16, 12 * TRAINED, 10**8)):
            memory = estimate(Sizes(), None, dtype=dtype, sharding=Sharding(name, 4), rehearsed=step)
            weights, kept_gradients, optimizer, host = expected(whole, gradients, states, bucket, largest)
            sums = {"weights": weights, "gradients": kept_gradients, "optimizer": optimizer, "host": host}
            passes = peak - whole + kept_gradients
            self.assertEqual(memory, {**sums, "activations": 10**9, "peak": weights + optimizer + passes})

    def test_a_bucket_and_gathered_layers_are_no_larger_than_the_model(self):
        step = RehearsedStep(weights=400, activations=0, peak=400, gradients=300)
        memory = estimate(Sizes(), None, optimizer="sgd", sharding=Sharding("zero3_offload", 2), rehearsed=step)
        self.assertEqual((memory["weights"], memory["gradients"], memory["host"]), (400, 300, 350))


class EstimateTest(parameterized.TestCase):
    @parameterized.named_parameters((name, *case) for name, case in CASES.items())
    @pytest.mark.slow
    def test_the_estimate_is_within_15_percent_of_what_the_allocator_saw(self, config, overrides, flags):
        peak = memory_of(config, overrides, **flags)["peak"]
        self.assertBetween(peak / measured(config, overrides, flags), 0.85, 1.15)

    @parameterized.named_parameters((name, *case) for name, case in MORE_CASES.items())
    @pytest.mark.slow
    def test_the_estimate_holds_in_other_families(self, config, overrides, flags):
        peak = memory_of(config, overrides, **flags)["peak"]
        self.assertBetween(peak / measured(config, overrides, flags), 0.85, 1.15)

    @parameterized.parameters(*OPTIMIZERS)
    @pytest.mark.slow
    def test_an_optimizer_s_states_are_those_that_it_makes(self, name):
        self.check_states(name)

    @pytest.mark.slow
    def test_so_are_those_of_another_adamw(self):
        self.check_states("adamw_rms")

    def check_states(self, name):
        overrides = ",".join(f"{key}={value}" for key, value in T5.items())
        sizes = {"max_source_length": 8, "max_target_length": 4, "max_train_samples": 2, "max_steps": 1}
        tuner = tiny_tuner(
            config_name="mini", config_overrides=overrides, data="mini/sentiment", optimizer=name, **sizes
        )
        tuner.train(valid=False)
        states = [value for state in tuner.trainer.optimizer.state.values() for value in state.values()]
        made_bytes = sum(value.nbytes for value in states if torch.is_tensor(value) and value.ndim)
        estimated = memory_of(optimizer=name, batch_size=1, source_length=4, target_length=4)["optimizer"]
        self.assertAlmostEqual(estimated, made_bytes, delta=0.001 * made_bytes)

    def test_moments_in_8_bits_are_in_32_for_embeddings(self):
        """Of each table of an embedding and of its positions, as bitsandbytes' authors advise."""
        model = transformers.T5ForConditionalGeneration(transformers.T5Config(**T5, vocab_size=ROWS))
        tables = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
        expected = sum(each.numel() * (4 if id(each) in tables else 1) for each in model.parameters())
        overrides = {**T5, "num_decoder_layers": 1, "feed_forward_proj": "relu", "tie_word_embeddings": True}
        self.assertEqual(memory_of(overrides=overrides, optimizer="lion_8bit")["optimizer"], expected)

    @pytest.mark.slow
    def test_every_optimizer_s_states_are_known(self):
        weights = memory_of()["weights"]
        for name in OTHER_OPTIMIZERS:
            self.assertBetween(memory_of(optimizer=name)["optimizer"], 0, 2 * weights)

    @pytest.mark.slow
    def test_checkpointing_and_the_attention_of_gpus_keep_less(self):
        rows = {"source_length": 128, "target_length": 128}
        plain = memory_of(**rows)["activations"]
        efficient = memory_of(**rows, use_cpu=False)["activations"]
        checkpointed = memory_of(**rows, use_cpu=False, gradient_checkpointing=True)["activations"]
        self.assertLess(efficient, 0.9 * plain)
        self.assertLess(checkpointed, 0.5 * efficient)

    @parameterized.parameters(*SHARDINGS)
    @pytest.mark.slow
    def test_more_ranks_take_less_of_what_is_sharded(self, name):
        self.check_sharding(name)

    @parameterized.parameters(*OTHER_SHARDINGS)
    @pytest.mark.slow
    def test_so_they_do_in_other_shardings(self, name):
        self.check_sharding(name)

    def check_sharding(self, name):
        one, many = (memory_of(use_cpu=False, deepspeed=name, num_gpus=count) for count in (1, 8))
        self.assertEqual(many["optimizer"], one["optimizer"] // 8)
        self.assertLess(many["peak"] + many["host"], one["peak"] + one["host"])
        self.assertEqual(many["host"] > 0, name.endswith("offload"))
        if "zero3" not in name:
            self.assertEqual(many["weights"], one["weights"])
        if name == "zero1":  # stage 1 shards the optimizer's states alone, stage 2 gradients, too
            self.assertEqual(many["gradients"], one["gradients"])
        elif not name.endswith("offload"):
            self.assertLess(many["gradients"], one["gradients"])

    @parameterized.parameters(*OPTIMIZERS, "lion_32bit", "adagrad")
    @pytest.mark.slow
    def test_a_rehearsal_that_has_cast_the_model_changes_no_estimate(self, optimizer):
        step = lambda model: model(input_ids=IDS, labels=IDS).loss
        settings = {"optimizer": optimizer, "dtype": torch.bfloat16, "sharding": Sharding("zero3", num_gpus=8)}
        changes = "num_layers=1"
        expected = estimate(tiny_model(config_overrides=changes), step, **settings)
        model = tiny_model(config_overrides=changes)
        rehearsed = rehearse(model, step, gpu=True, dtype=torch.bfloat16, keep_gradients=False)
        self.assertEqual(estimate(model, step, rehearsed=rehearsed, **settings), expected)

    def test_a_model_in_memory_stays_as_it_was(self):
        self.check_model_in_memory(tied=True)

    @pytest.mark.slow
    def test_so_does_one_with_a_head_of_its_own(self):
        self.check_model_in_memory(tied=False)

    def check_model_in_memory(self, tied):
        model = tiny_model(config_overrides=f"d_model=32,d_kv=8,d_ff=48,num_layers=1,tie_word_embeddings={tied}")
        model.encoder.requires_grad_(False)
        kinds = {name: (weight.clone(), weight.requires_grad) for name, weight in model.named_parameters()}
        table = tiny_tuner(model, "mini/sentiment", tokenizer=tiny_tokenizer()).summary()
        self.assertEqual(table["parameters"], sum(weight.numel() for weight in model.parameters()))
        self.assertEqual(table["memory"]["weights"], sum(weight.nbytes for weight in model.parameters()))
        self.assertEqual(model.lm_head.weight is model.shared.weight, tied)
        self.assertIs(model.encoder.embed_tokens.weight, model.shared.weight)
        for name, weight in model.named_parameters():
            self.assertTrue(torch.equal(weight, kinds[name][0]))
            self.assertEqual(weight.requires_grad, kinds[name][1])

    def test_what_cannot_be_estimated_is_refused(self):
        with exits_with(78, "unknown name 'adamv'; did you mean adamw"):
            memory_of(optimizer="adamv")
        with exits_with(78, "every parameter"):
            memory_of(freeze="encoder,decoder,embeddings,head")


class SummaryTest(parameterized.TestCase):
    @pytest.mark.slow
    def test_parameters_are_counted_without_weights_and_add_up(self):
        """T5 v1.1 small with one layer a stack: 2,360,320 in the encoder's, 3,147,264 in the decoder's, two matrices of
        32,128 words of 512, two of 32 buckets of 6 heads, two norms of 512.
        """
        count = 2_360_320 + 3_147_264 + 2 * 32_128 * 512 + 2 * 32 * 6 + 2 * 512
        layers = "num_layers=1,num_decoder_layers=1"
        self.check_count({"config_name": "t5-v1_1-small", "config_overrides": layers}, count)

    @parameterized.parameters(("t5-v1_1-small", 76_961_152), ("gpt2", 124_439_808))  # mt5-small: test_models.py
    @pytest.mark.slow
    def test_so_are_those_of_whole_models(self, config, count):
        self.check_count({"model_name_or_path" if config.startswith("t5") else "config_name": config}, count)

    def check_count(self, name, count):
        table = summary(**name, freeze="embeddings", batch_size=1, source_length=2, target_length=2)
        self.assertEqual(table["parameters"], count)
        top = [row for row in table["modules"] if row["depth"] == 0]
        self.assertEqual(sum(row["parameters"] for row in top), count)
        self.assertEqual(sum(row["trained"] for row in top), table["trainable"])
        self.assertEqual(table["trainable"] + table["frozen"], count)

    def test_the_flop_of_an_update_are_those_of_its_matrix_products(self):
        inputs, targets = 8, 4
        table = summary(
            config_name="t5-small", config_overrides="num_layers=1,num_decoder_layers=1", batch_size=2,
            gradient_accumulation_steps=3, source_length=8, target_length=4,
        )  # fmt: skip
        width, inner, hidden, layers, rows = 512, 512, 2048, 1, 32128
        layer = 4 * width * inner + 2 * width * hidden
        encoder = layers * (2 * inputs * layer + 4 * inputs**2 * inner)
        cross = 2 * width * inner
        decoder = layers * (
            2 * targets * (layer + cross) + 2 * inputs * cross + 4 * targets**2 * inner + 4 * targets * inputs * inner
        )
        head = 2 * targets * width * rows
        self.assertEqual(table["flops"], 2 * 3 * 3 * (encoder + decoder + head))  # rows, and three passes

    @pytest.mark.slow
    def test_an_adapter_s_weights_alone_are_trained(self):
        sizes = {"config_name": "mini", "config_overrides": "num_layers=1", "batch_size": 2}
        table = summary(**sizes, adapter="lora", source_length=16, target_length=8)
        self.assertLess(table["trainable"], 0.05 * table["parameters"])
        self.assertEqual(table["memory"]["optimizer"], 8 * table["trainable"])

    def test_python_s_summary_counts_sharding_and_names_what_it_does_not_count(self):
        config = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
        args = SimpleNamespace(
            per_device_train_batch_size=1, gradient_accumulation_steps=1, bf16=False, activation_checkpointing=False,
            optimizer="adamw", device=torch.device("cpu"), world_size=4, fsdp=None, deepspeed=config,
        )  # fmt: skip
        placed = {"load_in_8bit": False, "load_in_4bit": True, "device_map": "balanced", "embedding_on_cpu": True}
        model_args = SimpleNamespace(**placed)
        lengths = SimpleNamespace(max_source_length=3, max_target_length=2)
        distillation = SimpleNamespace(teacher="runs/teacher")
        arguments = SimpleNamespace(training=args, data=lengths, model=model_args, distillation=distillation)
        table = summary_by_flags(tiny_model(), arguments)
        self.assertEqual((table["deepspeed"], table["num_gpus"]), ("zero2_offload", 4))
        self.assertEqual(table["not_counted"], ["load_in_4bit", "device_map", "embedding_on_cpu", "teacher"])
        self.assertEqual(table["memory"]["host"], (8 + 4) * table["trainable"] // 4)
        shown = io.StringIO()
        print_summary(table, shown)
        self.assertIn("\nnot counted: load_in_4bit, device_map, embedding_on_cpu, teacher\n", shown.getvalue())

    def test_modules_and_a_step_of_the_flags_are_shown(self):
        words = ["summary", "--config_name=mini", "--config_overrides=num_layers=1,vocab_size=512", "--use_cpu"]
        words += ["--model_name_or_path=google/t5-v1_1-base"]  # the configuration is that of its own flag
        words += ["--batch_size=3", "--source_length=5", "--target_length=7", "--freeze=encoder", "--bf16"]
        shown = cli_output(*words)
        self.assertIn(": 459,904 parameters, 295,552 trained, 164,352 frozen\n", shown)
        for row in ("shared +65,536   trained", "encoder +164,352   frozen", "lm_head +0   is shared"):
            self.assertRegex(shown, rf"(?m)^{row}$")
        self.assertIn("\nmemory of one CPU in a step of 3 x (5 -> 7 tokens), bf16 autocast, adamw\n", shown)
        self.assertRegex(shown, r"(?m)^weights +0\.002 GiB$")

    @parameterized.parameters(([], "bf16 autocast"), (["--deepspeed=zero2", "--num_gpus=2"], "bf16 weights"))
    def test_the_step_names_the_precision_that_is_counted(self, sharding, precision):
        """Half of the bytes of float32's weights where DeepSpeed keeps them in bfloat16."""
        words = ["summary", "--config_name=mini", "--config_overrides=num_layers=1,vocab_size=512", "--bf16"]
        words += ["--batch_size=3", "--source_length=5", "--target_length=7", *sharding]
        self.assertIn(f" (5 -> 7 tokens), {precision}, adamw", cli_output(*words))
        table = json.loads(cli_output(*words, "--json"))
        weight_bytes = {"bf16 autocast": 4, "bf16 weights": 2}[precision]
        self.assertEqual(table["memory"]["weights"], weight_bytes * table["parameters"])

    @pytest.mark.slow
    def test_virtual_tokens_of_a_text_are_counted_without_a_tokenizer(self):
        text = "num_virtual_tokens=3,prompt_tuning_init=text,prompt_tuning_init_text=good"
        table = memory_table(adapter="prompt_tuning", adapter_args=text)
        self.assertEqual(table["trainable"], 3 * T5["d_model"])

    @parameterized.parameters("--add_tokens=x", "--num_sentinels=128")
    def test_tokens_are_added_to_the_vocabulary_of_the_model_that_is_named(self, flag):
        with exits_with(78, "--tokenizer_name: .google/t5-v1_1-base. is no folder, the hub cannot be reached"):
            summary("--model_name_or_path=google/t5-v1_1-base", flag)

    def test_a_configuration_of_its_own_flag_has_the_vocabulary_of_the_model_that_is_named(self):
        """Of 621 pieces, rounded up to a multiple of 128, as a training makes it."""
        sizes = {"config_name": "t5-v1_1-small", "config_overrides": "num_layers=1", **SMALL}
        (shared,) = [
            row for row in summary(model_name_or_path=bundled_model(), **sizes)["modules"] if row["name"] == "shared"
        ]
        self.assertEqual(shared["parameters"], 640 * 512)

    @pytest.mark.slow
    def test_a_step_is_that_of_the_flags(self):
        lengths = {"batch_size": 3, "source_length": 5, "target_length": 7}
        sizes = {"config_name": "mini", "config_overrides": "num_layers=1,vocab_size=512", "use_cpu": True}
        sizes["gradient_accumulation_steps"] = 2
        load = summary(**sizes, **lengths, bf16=True)["load"]
        self.assertEqual(load, {**lengths, "micro_batches": 2, "bf16": True, "gradient_checkpointing": False})

    @parameterized.parameters(
        (["--config_name", "t5-smal"], "t5-small"),
        (["--batch_size", "0"], "--batch_size 0: must be at least 1"),
        (["--num_gpus", "2"], "without --deepspeed"),
        (["--deepspeed", "zero7"], "--deepspeed: unknown name 'zero7'; did you mean zero"),
        (["--freeze", "encodr"], "did you mean encoder"),
        (
            ["--config_name", "bert", "--source_length", "500", "--target_length", "20"],
            "--source_length and --target_length 520: a model of type 'bert' has positions for 512 tokens",
        ),
        (
            ["--config_name", "bart", "--source_length", "1025"],
            "--source_length 1025: .* has positions for 1024 tokens",
        ),
        (
            ["--config_name", "led", "--source_length", "8", "--target_length", "8"],
            "LEDForConditionalGeneration cannot be estimated: .* fails on tensors without values \\(DataDependent",
        ),
    )
    def test_bad_flags_are_named(self, argv, message):
        with exits_with(78, message):
            summary("--config_name", "mini", *argv) if "--config_name" not in argv else summary(*argv)


class PositionsTest(parameterized.TestCase):
    def test_an_xlnet_has_no_limit(self):
        check_length(transformers.XLNetConfig(), 100_000, "--max_source_length")

    def test_each_stack_of_an_led_has_its_own_limit(self):
        config = transformers.LEDConfig(max_encoder_position_embeddings=20, max_decoder_position_embeddings=12)
        check_length(config, 20, "--max_source_length")
        check_length(config, 12, "--max_target_length", "decoder")
        with exits_with(78, r"--max_source_length 21: .* 20 tokens \(max_encoder_position_embeddings=20\)"):
            check_length(config, 21, "--max_source_length")
        with exits_with(78, r"--max_target_length 13: .* 12 tokens \(max_decoder_position_embeddings=12\)"):
            check_length(config, 13, "--max_target_length", "decoder")

    def test_targets_and_answers_have_as_many_tokens_as_the_decoder_can_read(self):
        model = tiny_model("bart", ",".join(f"{name}={value}" for name, value in BART.items()))

        def check(num_tokens, max_target_tokens=1, generation_max_length=None):
            rows = TokenArrays(RaggedColumn.from_rows([[5, 1]]), RaggedColumn.from_rows([[5] * num_tokens]))
            eval_set = SimpleNamespace(features=rows, max_target_tokens=max_target_tokens, method="generate")
            data = SimpleNamespace(features=[rows], scored=[eval_set], selecting=[])
            check_positions(model, data, generation_max_length)

        check(128, 128, 128)
        for lengths, flag in (((129,), "target"), ((1, 129), "target"), ((1, 1, 129), "generation_max")):
            with exits_with(78, f"--.*{flag}.* 129: .*has positions for 128 tokens"):
                check(*lengths)

    @parameterized.parameters(
        ("bert", BERT, "prompt_tuning", 17, None), ("gpt2", GPT2, "prompt_tuning", 17, None),
        ("gpt2", GPT2, "prefix", 17, None), ("bart", BART, "prompt_tuning", 17, 20), ("bart", BART, "prefix", 20, 17),
    )  # fmt: skip
    @pytest.mark.quick_cases(1)
    def test_virtual_tokens_have_positions_too(self, model_type, sizes, kind, longest, longest_target):
        limit = "n_positions" if model_type == "gpt2" else "max_position_embeddings"
        overrides = ",".join(f"{name}={value}" for name, value in {**sizes, limit: 20}.items())
        plain_model = tiny_model(model_type, overrides, tasks=[load_task("mini", "sentiment")])
        model = tiny_tuner(
            plain_model, tokenizer=tiny_tokenizer(), adapter=kind, adapter_args="num_virtual_tokens=3"
        ).model.eval()

        def read(length, target_length):
            inputs = {
                "input_ids": torch.full((1, length), 5),
                "attention_mask": torch.ones(1, length, dtype=torch.long),
            }
            if longest_target is not None:
                inputs["decoder_input_ids"] = torch.full((1, target_length), 5)
            with torch.no_grad():
                model(**inputs)

        def check(length, target_length):
            num_labels = target_length if longest_target is not None else 0
            rows = TokenArrays(RaggedColumn.from_rows([[5] * length]), RaggedColumn.from_rows([[5] * num_labels]))
            check_positions(model, SimpleNamespace(features=[rows], scored=[], selecting=[]))

        longest_lengths = (longest, longest_target or 0)
        read(*longest_lengths)
        check(*longest_lengths)
        too_long = [(longest + 1, longest_target or 0)]
        if longest_target is not None:
            too_long.append((longest, longest_target + 1))
        for lengths in too_long:
            with self.assertRaises((IndexError, RuntimeError)):
                read(*lengths)
            with exits_with(78, "has positions for 20 tokens"):
                check(*lengths)

    @parameterized.parameters(
        ("mpnet", {"pad_token_id": 0}, 18), ("camembert", {}, 18), ("bert", {}, 20), ("data2vec-text", {}, 18),
        ("esm", {"pad_token_id": 1}, 18), ("ibert", {}, 18), ("lilt", {"hidden_size": 48}, 19),
        ("longformer", {"attention_window": 4}, 18), ("luke", {"entity_vocab_size": 4}, 18), ("markuplm", {}, 19),
        ("roberta", {}, 18), ("xmod", {"default_language": "en_XX"}, 18),
    )  # fmt: skip
    @pytest.mark.quick_cases(1)
    def test_a_text_has_as_many_tokens_as_the_model_can_read(self, model_type, settings, longest):
        """Some types count positions from the id after the padding id."""
        config = transformers.AutoConfig.for_model(
            model_type, **{**BERT, "vocab_size": 16, "max_position_embeddings": 20, **settings}
        )
        model = transformers.AutoModel.from_config(config).eval()
        for length, is_read in ((longest, True), (longest + 1, False)):
            ids = torch.full((1, length), 5)
            with (
                torch.no_grad(),
                contextlib.nullcontext() if is_read else self.assertRaises((IndexError, RuntimeError)),
            ):
                model(input_ids=ids)
            with contextlib.nullcontext() if is_read else exits_with(78, f"has positions for {longest} tokens"):
                check_length(config, length, "--inputs_length")
