"""PEFT's models with virtual tokens, changed so that they train and generate like plain ones.

    >>> outputs = model(input_ids=ids_BS, attention_mask=mask_BS, decoder_input_ids=ids_BT)
    >>> outputs.encoder_last_hidden_state.shape         # 20 virtual tokens and S of the input
    torch.Size([4, 52, 512])
    >>> model.generate(encoder_outputs=BaseModelOutput(outputs.encoder_last_hidden_state), attention_mask=mask_BS)

PEFT 0.21 encodes the input again for every answer (`generate` drops `encoder_outputs`), cannot score answers over
existing encoder states, embeds the input without the factor by which Pegasus and Falcon-H1 multiply embeddings,
returns a causal model's logits for the virtual tokens too (and those of a head for every word), and has no positions
for padded inputs. Here an encoder-decoder model takes states with virtual tokens and the mask of the input only, and
the other two return the input's logits only. Shapes: B examples, N virtual tokens, S source and T target tokens.
"""

import torch
from peft import PeftModelForCausalLM, PeftModelForSeq2SeqLM, PeftModelForTokenClassification, PeftType

from t5suite.models.caches import CACHE, OLD_NAME, renamed_argument

# By type, the factor of an encoder, or of a decoder alone, that multiplies embeddings of ids, but not embeddings that
# are passed (5.24).
FACTORS_OF_ENCODERS = dict.fromkeys(("blenderbot-small", "marian", "mvp", "pegasus"), "embed_scale")
FACTORS_OF_DECODERS = {"falcon_h1": "embedding_multiplier", "mvp": "embed_scale"}


class CacheByOldName:
    """PEFT 0.21 reads and writes the cache of `generate` as `past_key_values`, whatever transformers calls it."""

    def prepare_inputs_for_generation(self, *args, **kwargs) -> dict:
        """As PEFT's: the model's inputs of one step, the prefixes in their cache."""
        prepare = self.base_model_prepare_inputs_for_generation

        def prepare_by_old_name(*args, **kwargs):
            return renamed_argument(prepare(*args, **kwargs), CACHE, OLD_NAME)

        self.base_model_prepare_inputs_for_generation = prepare_by_old_name
        try:
            inputs = super().prepare_inputs_for_generation(*args, **kwargs)
        finally:
            self.base_model_prepare_inputs_for_generation = prepare
        return renamed_argument(inputs, OLD_NAME, CACHE)

    @property
    def has_prefixes(self) -> bool:
        """Whether the virtual tokens are prefixes of keys and values, not embeddings before the input."""
        return self.active_peft_config.peft_type == PeftType.PREFIX_TUNING


class PromptedSeq2Seq(CacheByOldName, PeftModelForSeq2SeqLM):
    """An encoder-decoder model with virtual tokens before its input, or prefixes before its decoder's keys."""

    def forward(self, input_ids=None, attention_mask=None, encoder_outputs=None, **kwargs):
        """As of the plain model; with `encoder_outputs`, only the decoder runs."""
        if encoder_outputs is None:
            if not self.has_prefixes and input_ids is not None:
                kwargs["inputs_embeds"] = embed_ids(self, input_ids)
                input_ids = None
            return super().forward(input_ids=input_ids, attention_mask=attention_mask, **kwargs)
        states_BSD = encoder_outputs[0]
        if self.has_prefixes:
            kwargs[CACHE] = self.get_prompt(len(states_BSD))
        mask_BS = pad_mask_left(attention_mask, states_BSD.shape[1])
        return self.base_model(encoder_outputs=encoder_outputs, attention_mask=mask_BS, **kwargs)

    def generate(self, encoder_outputs=None, attention_mask=None, **kwargs):
        """As of the plain model; encoder states are used if they are passed."""
        if encoder_outputs is None:
            if attention_mask is not None:
                kwargs["attention_mask"] = attention_mask
            if self.has_prefixes:
                return super().generate(**kwargs)
            return self._generate_from_ids(**kwargs)
        states_BSD = encoder_outputs[0]
        kwargs["attention_mask"] = pad_mask_left(attention_mask, states_BSD.shape[1])
        if not self.has_prefixes:
            return self.base_model.generate(encoder_outputs=encoder_outputs, **kwargs)
        if "input_ids" not in kwargs:
            # PEFT requires the input's ids; these are dummies, because the input is encoded already.
            kwargs["input_ids"] = torch.zeros(states_BSD.shape[:2], dtype=torch.long, device=states_BSD.device)
        return super().generate(encoder_outputs=encoder_outputs, **kwargs)

    def _generate_from_ids(self, input_ids, attention_mask=None, **kwargs):
        """Answers to inputs whose encoder states are not computed yet."""
        embeds_BSD = embed_with_prompt(self, input_ids)
        mask_BS = pad_mask_left(attention_mask, embeds_BSD.shape[1])
        return self.base_model.generate(inputs_embeds=embeds_BSD, attention_mask=mask_BS, **kwargs)


class PromptedCausal(CacheByOldName, PeftModelForCausalLM):
    """A causal model with virtual tokens before its input; PEFT itself handles prefixes."""

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, **kwargs):
        """As of the plain model: logits of the input's tokens, [B, S, V]."""
        if self.has_prefixes:
            return self._forward_with_prefixes(input_ids, attention_mask, position_ids, kwargs)
        num_virtual = self.active_peft_config.num_virtual_tokens
        if attention_mask is not None:
            attention_mask = pad_mask_left(attention_mask, attention_mask.shape[1] + num_virtual)
        cache = kwargs.get(CACHE)
        prompt_is_cached = cache is not None and cache.get_seq_length() > 0
        if position_ids is not None:
            position_ids = position_ids + num_virtual
        if prompt_is_cached:
            inputs = {"input_ids": input_ids}
        else:
            inputs = {"inputs_embeds": embed_with_prompt(self, input_ids)}
            position_ids = _with_prompt_positions(position_ids, num_virtual)
        outputs = self.base_model(**inputs, attention_mask=attention_mask, position_ids=position_ids, **kwargs)
        outputs.logits = outputs.logits[:, -input_ids.shape[1] :]
        return outputs

    def _forward_with_prefixes(self, input_ids, attention_mask, position_ids, kwargs: dict):
        if kwargs.pop(CACHE, None) is not None:
            raise ValueError(f"{CACHE}: the prefixes are the cache of this model; it takes no other")
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, **kwargs)

    def generate(self, input_ids=None, attention_mask=None, **kwargs):
        """As of the plain model: the input's ids, then the answer's."""
        if self.has_prefixes:
            return super().generate(input_ids=input_ids, attention_mask=attention_mask, **kwargs)
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        embeds = embed_with_prompt(self, input_ids)
        mask = pad_mask_left(attention_mask, embeds.shape[1])
        generated = self.base_model.generate(inputs_embeds=embeds, attention_mask=mask, **kwargs)
        if torch.is_tensor(generated):
            return _with_inputs(input_ids, generated)
        generated.sequences = _with_inputs(input_ids, generated.sequences)
        return generated


class PromptedWords(PeftModelForTokenClassification):
    """A model with a head for every word, and virtual tokens before its input."""

    def forward(self, input_ids=None, **kwargs):
        """As of the plain model: logits of the input's tokens, [B, S, C]."""
        outputs = super().forward(input_ids=input_ids, **kwargs)
        outputs.logits = outputs.logits[:, -input_ids.shape[1] :]
        return outputs


def embed_ids(model, ids):
    """Embeddings of ids as the model below the virtual tokens makes them, scaled if it scales them."""
    embeds = model.word_embeddings(ids)
    plain_model = model.get_base_model()
    model_type = plain_model.config.model_type
    if isinstance(model, PromptedCausal):
        if model_type in FACTORS_OF_DECODERS:
            embeds = embeds * getattr(plain_model.get_decoder(), FACTORS_OF_DECODERS[model_type])
    elif model_type in FACTORS_OF_ENCODERS:
        embeds = embeds * getattr(plain_model.get_encoder(), FACTORS_OF_ENCODERS[model_type])
    return embeds


def embed_with_prompt(model, ids_BS):
    """Embeddings of the virtual tokens, and after them those of the input, [B, N + S, D]."""
    embeds_BSD = embed_ids(model, ids_BS)
    prompts_BND = model.get_prompt(batch_size=len(ids_BS)).to(embeds_BSD.dtype)
    return torch.cat([prompts_BND, embeds_BSD], dim=1)


def _with_prompt_positions(position_ids, num_virtual: int):
    """Positions of the virtual tokens before those of the input, [B, N + S]."""
    if position_ids is None:
        return None
    virtual_N = torch.arange(num_virtual, device=position_ids.device)
    return torch.cat([virtual_N.expand(len(position_ids), -1), position_ids], dim=1)


def _with_inputs(input_ids, answers):
    """Answers, each after the ids of its input; an input may have several answers."""
    answers_per_input = len(answers) // len(input_ids)
    return torch.cat([input_ids.repeat_interleave(answers_per_input, dim=0), answers], dim=1)


def pad_mask_left(mask_BS, length: int):
    """A mask padded to a length with ones on the left.

    >>> pad_mask_left(torch.tensor([[1, 0]]), 4)
    tensor([[1, 1, 1, 0]])
    """
    if mask_BS is None:
        return None
    return torch.cat([mask_BS.new_ones(len(mask_BS), length - mask_BS.shape[1]), mask_BS], dim=1)


PROMPTED = {"SEQ_2_SEQ_LM": PromptedSeq2Seq, "CAUSAL_LM": PromptedCausal, "TOKEN_CLS": PromptedWords}
