"""NEFTune: the noise lies on what the encoder reads, in training alone, and a resumed run draws the same."""

import tempfile

import torch
from absl.testing import absltest, parameterized
from safetensors.torch import load_file
from test_freezing import model_of, run
from transformers.integrations.neftune import activate_neftune

from t5suite.base.errors import Preempted
from t5suite.training.callbacks import NeftuneCallback, input_embeddings

NOISE = ["--neftune_noise_alpha", "5", "--dropout_rate", "0"]


def inputs_of(model) -> dict:
    ids = torch.tensor([[5, 6, 7, 1]])
    return {"input_ids": ids, "decoder_input_ids": ids} if model.config.is_encoder_decoder else {"input_ids": ids}


def logits(model):
    with torch.no_grad():
        return model(**inputs_of(model)).logits


class NeftuneTest(parameterized.TestCase):
    @parameterized.parameters("t5", "t5_v1_1", "bart", "gpt2", "bert")
    def test_noise_of_the_stated_size_reaches_the_stack_in_training_alone(self, name):
        model = model_of(name, dropout_rate=0.0)
        plain = logits(model.eval())
        callback = NeftuneCallback(5.0)
        callback.on_train_begin(None, None, None, model=model)
        [module] = input_embeddings(model)
        self.assertTrue(torch.equal(logits(model.eval()), plain))
        callback.on_train_end(None, None, None)
        self.assertTrue(torch.equal(logits(model.train()), plain))
        callback.on_train_begin(None, None, None, model=model)
        self.assertFalse(torch.equal(logits(model.train()), plain))
        ids_S = torch.tensor([[5, 6, 7, 1]])
        noise = module(ids_S) - module.weight[ids_S] * getattr(module, "embed_scale", 1.0)
        bound = 5.0 / (4 * noise.shape[-1]) ** 0.5
        self.assertBetween(float(noise.abs().max().detach()), 0.5 * bound, bound)
        callback.on_train_end(None, None, None)
        self.assertEqual(len(module._forward_hooks), 0)

    def test_the_stock_hook_still_misses_t5(self):
        model = model_of("t5", dropout_rate=0.0).train()
        plain = logits(model)
        activate_neftune(model, 5.0)
        self.assertTrue(torch.equal(logits(model), plain))

    def test_the_flag_changes_training_and_a_resumed_run_equals_the_unbroken_one_to_the_bit(self):
        without, whole, broken = run("--dropout_rate", "0"), run(*NOISE), tempfile.mkdtemp()
        with self.assertRaises(Preempted):
            run(*NOISE, out=broken, stop_requested=lambda trainer: trainer.state.global_step + 1 == 3)
        run(*NOISE, out=broken)
        weights = [load_file(f"{out}/model.safetensors") for out in (without, whole, broken)]
        for name, tensor in weights[1].items():
            self.assertTrue(torch.equal(tensor, weights[2][name]), name)
        self.assertFalse(torch.equal(weights[0]["shared.weight"], weights[1]["shared.weight"]))


if __name__ == "__main__":
    absltest.main()
