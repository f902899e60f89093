"""A KerasHub language model of tokens, beside what makes tokens of text.

Letters: `N` sequences, `n` tokens of a sequence.
"""

import pathlib

import keras
import keras_hub
import numpy as np

from examples.shared import byte_text
from examples.shared import small_model
from examples.shared import smollm2

MAX_BYTES_PER_TOKEN = 8  # of text that is worth turning into tokens


def load(arguments):
    """The preset that the command line asks for, or the small model."""
    if not arguments.preset:
        return LanguageModel(small_model.load(arguments.dtype))
    preset = arguments.preset
    if preset == "smollm2":
        preset = str(smollm2.preset())
    causal_lm = keras_hub.models.CausalLM.from_preset(
        preset, dtype=arguments.dtype
    )
    return LanguageModel(causal_lm)


def text_folder(arguments):
    return pathlib.Path(arguments.text or byte_text.standard_library())


class LanguageModel:
    """A `CausalLM` that is given tokens.

    Args:
        causal_lm: a `keras_hub.models.CausalLM`. Its preprocessor is taken
            off and kept here; without one a token is a byte.
    """

    def __init__(self, causal_lm):
        self.causal_lm = causal_lm
        self.preprocessor = causal_lm.preprocessor
        causal_lm.preprocessor = None
        vocabulary_size = causal_lm.backbone.vocabulary_size
        if self.preprocessor is None and vocabulary_size != 256:
            raise ValueError(
                "A model without a preprocessor is expected to be one of "
                "bytes, with a vocabulary of 256. Received: "
                f"{causal_lm.name} with a vocabulary of {vocabulary_size}"
            )

    def compile(self, seed):
        """For `loss` and `generate`; the same draws in each text it writes."""
        self.causal_lm.compile(
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            weighted_metrics=[],  # `None` would keep those of before
            sampler=keras_hub.samplers.TopKSampler(
                k=10, temperature=0.5, seed=seed
            ),
        )

    def encode_some(self, text, num_tokens):
        """int32 `[n]` of bytes `[b]`: `num_tokens` or more, if there are.

        A tokenizer may be slow, so it gets no more than the beginning.
        """
        if self.preprocessor is not None:
            text = text[: MAX_BYTES_PER_TOKEN * num_tokens]
        return self.encode(text.tobytes())

    def encode(self, text):
        """int32 `[n]` of bytes of text."""
        if self.preprocessor is None:
            return np.frombuffer(text, "uint8").astype("int32")
        string = text.decode("utf-8", errors="replace")
        return np.asarray(self.preprocessor.tokenizer(string), dtype="int32")

    def decode(self, tokens):
        """Tokens `[n]` as a string."""
        if self.preprocessor is None:
            return byte_text.as_text(tokens)
        return str(self.preprocessor.tokenizer.detokenize(tokens))

    @property
    def start_tokens(self):
        """What a sequence has to begin with, int32 `[0]` or `[1]`."""
        start = []
        if getattr(self.preprocessor, "add_start_token", False):
            start = [self.preprocessor.tokenizer.start_token_id]
        return np.array([t for t in start if t is not None], dtype="int32")

    def cut(self, tokens, length):
        """Inputs and targets `[N, n]` that follow one another in a text.

        A token is a target once at most: their losses are the text's.
        """
        num_new = self._num_new(tokens, length)
        starts = range(0, len(tokens) - num_new + 1, length)
        return self._examples_at(tokens, starts, num_new)

    def spread(self, tokens, num_sequences, length):
        """Inputs and targets `[N, n]`, evenly from all of a text.

        As many as asked for, or as fit: a token is a target once at most.
        """
        num_new = self._num_new(tokens, length)
        most = (len(tokens) - num_new) // length + 1
        starts = np.linspace(
            0, len(tokens) - num_new, min(num_sequences, most), dtype=int
        )
        return self._examples_at(tokens, starts, num_new)

    def _num_new(self, tokens, length):
        """The tokens of text in a sequence and its targets."""
        num_new = length + 1 - len(self.start_tokens)
        if len(tokens) < num_new:
            raise SystemExit(
                f"The text is expected to have at least {num_new} tokens. "
                f"Received: {len(tokens)} tokens"
            )
        return num_new

    def _examples_at(self, tokens, starts, num_new):
        sequences = [tokens[start : start + num_new] for start in starts]
        return self._as_examples(np.stack(sequences))

    def draw(self, tokens, num_sequences, length, rng):
        """Inputs and targets `[N, n]` from random places of a text."""
        sequences = byte_text.cut_sequences(
            tokens, num_sequences, length + 1 - len(self.start_tokens), rng
        )
        return self._as_examples(sequences)

    def _as_examples(self, sequences):
        start = np.tile(self.start_tokens, (len(sequences), 1))
        return byte_text.as_examples(np.concatenate([start, sequences], axis=1))

    def loss(self, examples, batch_size=1):
        """Nats per token: total negative log likelihood over all tokens."""
        logs = self.causal_lm.evaluate(
            *examples, batch_size=batch_size, verbose=0, return_dict=True
        )
        return float(logs["loss"])

    def generate(self, tokens, num_new, length):
        """New tokens `[num_new]` that follow a prompt.

        Args:
            tokens: int32: the text; its end is the prompt.
            num_new: how many to write.
            length: of prompt and new tokens together.
        """
        start = self.start_tokens
        num_old = length - num_new - len(start)
        prompt = np.concatenate([start, tokens[-num_old:]])
        room = length - len(prompt)
        inputs = {
            "token_ids": np.pad(prompt, (0, room))[None],
            "padding_mask": np.pad(np.ones_like(prompt), (0, room))[None],
        }
        output = self.causal_lm.generate(inputs, stop_token_ids=None)
        return np.asarray(output["token_ids"])[0, len(prompt) :][:num_new]
