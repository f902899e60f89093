"""Llama and Llama 3."""

from keras_sa.hub.families.family import Family

LLAMA = Family("LlamaTransformerDecoder")
