"""gpt-oss: learned sinks, and a window of its own in every other layer."""

import dataclasses

from keras_sa.hub.families.family import Family


@dataclasses.dataclass(frozen=True)
class GptOssFamily(Family):
    def sinks(self, attention):
        return attention.sinks

    def native_window(self, decoder, attention):
        # KerasHub 0.32 hides what is more than `sliding_window` back, which
        # leaves one key more than other families count.
        window = attention.sliding_window
        return window + 1 if window else None


GPT_OSS = GptOssFamily(
    "GptOssTransformerDecoder", attention="self_attention_layer"
)
