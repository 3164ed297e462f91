"""NEFTune (arXiv:2310.05914): noise on the input's embeddings while training.

>>> trainer.add_callback(NeftuneCallback(5.0))                      # --neftune_noise_alpha 5
"""

from torch import nn
from transformers.integrations.neftune import neftune_post_forward_hook

from t5suite.models.adapters import inner_model
from t5suite.training.callback import Callback


class NeftuneCallback(Callback):
    """Adds uniform noise of up to alpha / sqrt(tokens x width) to each embedding that the encoder, or a model's only
    stack, gets.

    The noise is Hugging Face's, but their trainer hooks the module that `get_input_embeddings` returns, which no T5 or
    BART of transformers 5.23 ever calls (`test_the_stock_hook_still_misses_t5` fails once it does).
    """

    def __init__(self, alpha: float):
        self.alpha = alpha
        self.hooks = []

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        """Hooks the embeddings, in place of hooks of an earlier training."""
        self.on_train_end(args, state, control)
        for module in input_embeddings(model):
            module.neftune_noise_alpha = self.alpha
            self.hooks.append(module.register_forward_hook(neftune_post_forward_hook))

    def on_train_end(self, args, state, control, **kwargs):
        """Removes the hooks."""
        for hook in self.hooks:
            hook.remove()
        self.hooks = []


def input_embeddings(model) -> list[nn.Module]:
    """The modules that turn a model's input tokens into vectors.

    >>> input_embeddings(t5) == [t5.encoder.embed_tokens], input_embeddings(gpt2) == [gpt2.transformer.wte]
    (True, True)
    """
    inner = inner_model(model)
    matrix = inner.get_input_embeddings().weight
    stack = inner.get_encoder() if inner.config.is_encoder_decoder else inner
    return [module for module in stack.modules() if isinstance(module, nn.Embedding) and module.weight is matrix]
