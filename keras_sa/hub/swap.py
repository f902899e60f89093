"""`swap_attention`: one call gives a decoder another attention."""

import contextlib
import itertools

import keras
import numpy as np

from keras_sa import _validation
from keras_sa.hub import _patching
from keras_sa.hub import decode as decoding
from keras_sa.hub import gates
from keras_sa.hub import seeds as drawing
from keras_sa.hub import verification
from keras_sa.hub._patching import backbone_of
from keras_sa.hub._patching import current_swap
from keras_sa.hub.attention import SwappedAttention
from keras_sa.hub.families import registry
from keras_sa.hub.inspect import patterns_of_layers
from keras_sa.hub.pattern import make_patterns


def swap_attention(
    model,
    mode,
    *,
    window_size=None,
    local_window_size=None,
    neighborhood=None,
    merge=None,
    decode=None,
    permute=None,
    order=None,
    resample=None,
    block_size=None,
    top_k=None,
    layers="global",
    seed=None,
    gate_bias=(-2.0, 2.0),
    verify=False,
):
    """Gives the decoder layers of a KerasHub model another attention, in place.

    No weight of the model changes, nor its path. Queries and keys keep the
    position encodings of their original positions, sinks, soft caps, scales
    and dropout of the family stay. What was compiled before is compiled anew.
    Swapping again replaces; `restore()` gives the original model back.

    Args:
        model: a `keras_hub.models.CausalLM`, or another task or a `Backbone`
            with decoder layers of a known family. If there is a task, swap
            the task: only then do prompts of `generate` keep their padding
            out of the windows.
        mode: `"full"`: the model's own attention; `"sliding_window"`;
            `"stochastic"`; `"small_world"`: both; `"block_routed"`: mixture of
            block attention. Several take turns along the swapped layers: a
            list of modes, which share the options that belong to them, or of
            dicts such as `{"mode": "stochastic", "window_size": 64}`, whose
            options come first.
        window_size: tokens in a window, the token's own included.
        local_window_size: tokens in the sliding window of `"small_world"`.
            Default: `window_size`.
        neighborhood: `"window"` (default) or `"block"`, as in
            `keras_sa.StochasticAttention`.
        merge: how `"small_world"` merges its paths: `"gate"` (default): by
            gates, which are new variables and have to be trained;
            `"softmax"`: in one softmax, without parameters. `"gate"` gives
            `"sliding_window"` a gate as well.
        decode: what new tokens attend to in `generate`. `"full"`: the cache,
            as in the model itself, which suits weights that were trained with
            full attention; `"window"`: the keys of the pattern only, at a
            cost that does not depend on the length, for models that were
            trained with it. The order of tokens is then laid over the whole
            cache, so that a step computes what the forward pass over a
            sequence of the cache's length does. Default: `"full"`; with
            gates, `"window"`.
        permute: `"layer"` (default): one permutation for all heads of a
            layer; `"head"`: one for every key/value head, which reaches more
            tokens at the same cost and can't decode in a window.
        order: `"random"` (default), or `"identity"`: the tokens stay where
            they are, and the stochastic window is a sliding one of
            `window_size // 2 + 1` tokens. It tells what the random order
            adds to what else there is.
        resample: `"training"` (default): a new permutation at every training
            call, a fixed one from the seed otherwise; `"never"`: the fixed
            one.
        block_size: tokens in a block of `"block_routed"`.
        top_k: blocks that a token reads, its own included.
        layers: `"global"` (default): layers that have no sliding window of
            their own; `"all"`: every layer that has attention; or indices
            into `backbone.transformer_layers`.
        seed: int of at most 32 bits. Every layer draws its own permutation
            from it. Default: drawn, governed by
            `keras.utils.set_random_seed`.
        gate_bias: where the biases of the stochastic and of the local gate
            start. By default the sum starts near the sliding window, with
            gates of 0.12 and 0.88: pretrained weights suffer from a mean of
            both. 0 is a gate of 1/2. The gate of a sliding window alone takes
            the second.
        verify: whether to check, with windows that cover everything, that the
            swapped model computes what the model itself does: that this
            version of KerasHub is understood. It costs a few forward passes
            over 16 tokens.

    Returns:
        An `AttentionSwap`: `restore()` undoes the swap; as a context manager
        it does so at the end. `reseed(seed)` draws other permutations.

    Raises:
        ValueError: for a model without decoder layers of a known family, for
            options that do not belong to the mode, or if `verify` fails.

    Example:

    >>> import keras_hub
    >>> from keras_sa import hub
    >>> backbone = keras_hub.models.Qwen3Backbone(
    ...     vocabulary_size=32, num_layers=2, num_query_heads=4,
    ...     num_key_value_heads=2, head_dim=8, hidden_dim=32,
    ...     intermediate_dim=64,
    ... )
    >>> with hub.swap_attention(backbone, "stochastic", window_size=8):
    ...     output = backbone({
    ...         "token_ids": keras.ops.ones((1, 100), "int32"),
    ...         "padding_mask": keras.ops.ones((1, 100), "int32"),
    ...     })
    >>> output.shape
    (1, 100, 32)

    Reference:
        Stochastic Attention, https://arxiv.org/abs/2604.00754
    """
    patterns = make_patterns(
        mode,
        window_size=window_size,
        local_window_size=local_window_size,
        neighborhood=neighborhood,
        merge=merge,
        decode=decode,
        permute=permute,
        order=order,
        resample=resample,
        block_size=block_size,
        top_k=top_k,
    )
    backbone = backbone_of(model)
    chosen = _choose_layers(backbone, layers)
    if seed is None:
        seed = int(keras.random.randint((), 0, 2**31 - 1))
    _validation.check_seed(seed)
    _check_gate_bias(gate_bias)
    if len(patterns) > len(chosen):
        raise ValueError(
            f"`mode` is expected to list no more than the {len(chosen)} layers "
            f"that are swapped. Received: mode={mode!r}"
        )
    previous = current_swap(model)
    with contextlib.nullcontext() if previous is None else previous.suspended():
        if verify:
            verification.verify(backbone, take_turns(patterns, chosen))
    if previous is not None:
        previous.restore()
    swap = AttentionSwap(model, patterns, chosen, seed, gate_bias)
    swap._install()
    return swap


def _check_gate_bias(gate_bias):
    if np.shape(gate_bias) != (2,) or not np.isfinite(gate_bias).all():
        raise ValueError(
            "`gate_bias` is expected to be two finite numbers: for the "
            "stochastic and for the local gate. "
            f"Received: gate_bias={gate_bias!r}"
        )


def _choose_layers(backbone, layers):
    """`[(index, decoder layer, family)]` of the layers to swap."""
    candidates, own_window = {}, set()
    for index, decoder in enumerate(_patching.decoder_layers(backbone)):
        family = registry.family_of(decoder)
        attention = family.find_attention(decoder)
        if attention is None:
            continue
        registry.check_hooks(decoder, family)
        candidates[index] = (index, decoder, family)
        if family.native_window(decoder, attention) is not None:
            own_window.add(index)
    if layers == "all":
        return list(candidates.values())
    if layers == "global":
        chosen = [c for i, c in candidates.items() if i not in own_window]
        if not chosen:
            raise ValueError(
                "layers='global' expects layers without a sliding window of "
                "their own; this model has none. Pass layers='all' to replace "
                f"them. Received: {type(backbone).__name__} with "
                f"{len(own_window)} sliding layers"
            )
        return chosen
    return [candidates[index] for index in _indices(layers, candidates)]


def _indices(layers, candidates):
    wrong = isinstance(layers, str) or not hasattr(layers, "__iter__")
    indices = [] if wrong else list(layers)
    if (
        not indices
        or len(set(indices)) != len(indices)
        or any(index not in candidates for index in indices)
    ):
        raise ValueError(
            "`layers` is expected to be 'global', 'all', or different indices "
            "of layers that have attention: "
            f"{sorted(candidates)}. Received: layers={layers!r}"
        )
    return sorted(int(index) for index in indices)


def take_turns(patterns, chosen):
    """`[(pattern, layer)]` of the layers that get another attention."""
    turns = zip(itertools.cycle(patterns), chosen)
    return [turn for turn in turns if turn[0].mode != "full"]


class AttentionSwap:
    """A swap that was made. Made by `swap_attention`.

    Attributes:
        model: the model that was given.
        patterns: the attentions that were put in, which take turns along
            `layers`.
        seed: int: the seed of the swap.
        layers: indices of the swapped layers.
        gates: the gates' layers, in the order of `layers`; empty without
            gates.
    """

    def __init__(self, model, patterns, chosen, seed, gate_bias):
        self.model = model
        self.patterns = patterns
        self.seed = seed
        self.layers = [index for index, _, _ in chosen]
        self.gates = []
        self.gate_bias = tuple(float(bias) for bias in gate_bias)
        self._backbone = backbone_of(model)
        self._turns = take_turns(patterns, chosen)
        self._swapped = []
        self._patches = _patching.Patches()

    @property
    def gated_layers(self):
        """Indices of the layers that `gates` are of."""
        return [index for x, (index, _, _) in self._turns if x.has_gates]

    def restore(self):
        """Gives the model its own attention back; gates are dropped."""
        if current_swap(self.model) is not self:
            return
        self._leave()
        _patching.set_current_swap(self._backbone, None)
        self._refresh(variables_changed=bool(self.gates))

    def reseed(self, seed):
        """Draws other permutations: those of a new swap with this seed.

        Nothing is compiled anew and gates keep what they learned: compiled
        functions read the seeds as variables of the model.

        Args:
            seed: int of at most 32 bits.

        Raises:
            ValueError: for another seed, or after the end of the swap.

        Example:

        >>> import keras_hub
        >>> from keras_sa import hub
        >>> backbone = keras_hub.models.Qwen3Backbone(
        ...     vocabulary_size=32, num_layers=2, num_query_heads=4,
        ...     num_key_value_heads=2, head_dim=8, hidden_dim=32,
        ...     intermediate_dim=64,
        ... )
        >>> swap = hub.swap_attention(
        ...     backbone, "stochastic", window_size=8, seed=1
        ... )
        >>> swap.reseed(2)
        >>> swap
        AttentionSwap(mode='stochastic', window_size=8, ..., seed=2)
        """
        _validation.check_seed(seed)
        self._check_current("reseed")
        self.seed = seed
        seeds = self._layer_seeds()
        for swapped, (_, (index, _, _)) in zip(self._swapped, self._turns):
            if swapped.seeds is not None:
                swapped.seeds.reseed(seeds[index])

    def _layer_seeds(self):
        num_layers = len(_patching.decoder_layers(self._backbone))
        return drawing.layer_seeds(self.seed, num_layers)

    def attention_patterns(self, inputs=None):
        """Who sees whom in each layer, as `hub.attention_patterns` says.

        While the swap lasts, the model and its backbone have this method, too:
        `keras_sa.analysis` finds it there.

        Args:
            inputs: as in `hub.attention_patterns`.

        Raises:
            ValueError: as there, or after the end of the swap.
        """
        self._check_current("attention_patterns")
        return patterns_of_layers(self._backbone, self._swapped, inputs)

    def _check_current(self, method):
        if current_swap(self.model) is not self:
            raise ValueError(
                f"`{method}` is expected while the model is under this swap. "
                f"Received: {self}, which was restored or replaced"
            )

    @contextlib.contextmanager
    def suspended(self):
        """The model as it is without the swap."""
        self._leave()
        try:
            yield
        finally:
            self._enter()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.restore()

    def __repr__(self):
        return (
            f"AttentionSwap({', then '.join(map(repr, self.patterns))}, "
            f"layers={self.layers}, seed={self.seed})"
        )

    def get_config(self):
        """The arguments that make the same swap again."""
        return {
            "mode": [pattern.options() for pattern in self.patterns],
            "layers": self.layers,
            "seed": self.seed,
            "gate_bias": list(self.gate_bias),
        }

    def _install(self):
        seeds = self._layer_seeds()
        self._generation = decoding.Generation()
        for pattern, (index, decoder, family) in self._turns:
            self._swapped.append(
                SwappedAttention(
                    decoder,
                    family,
                    pattern,
                    make_seeds(pattern, index, seeds[index]),
                    self._generation,
                    self._make_gate(pattern, index, decoder, family),
                )
            )
        _patching.set_current_swap(self._backbone, self)
        self._enter()
        self._refresh(variables_changed=bool(self.gates))

    def _make_gate(self, pattern, index, decoder, family):
        if not pattern.has_gates:
            return None
        attention = family.find_attention(decoder)
        gate = gates.make_gate(
            attention,
            family.num_query_heads(attention),
            self._backbone.hidden_dim,
            index,
            self.gate_bias[-pattern.gated_paths :],
        )
        self.gates.append(gate)
        return gate

    def _enter(self):
        """Puts methods and variables in place."""
        _patching.attach(self._backbone, gates.GATES, self.gates)
        _patching.attach(
            self._backbone, drawing.SEED_GENERATORS, self._seed_generators()
        )
        for swapped in self._swapped:
            swapped.install()
        step = decoding.generating(
            self.model, self._generation, self._seeds_of_steps()
        )
        self._patches.set(self.model, step)
        if self.gates and hasattr(self._backbone, "enable_lora"):
            enable_lora = gates.enable_lora_beside(
                self._backbone, self.gates, self._models()
            )
            self._patches.set(self._backbone, {"enable_lora": enable_lora})
        found = {"attention_patterns": self.attention_patterns}
        for model in self._models():
            self._patches.set(model, found)
        for layer, inside in self._rematerialized():
            self._patches.set(layer, drawing.drawing_first(layer, inside))

    def _seed_generators(self):
        """Of both kinds: variables that decide on permutations."""
        seeds = [x.seeds for x in self._swapped if x.seeds is not None]
        return [x for layer in seeds for x in layer.variables()]

    def _seeds_of_steps(self):
        """Of the orders that decoding steps look up."""
        return [
            swapped.seeds.fixed
            for swapped in self._swapped
            if swapped.seeds is not None and swapped.pattern.decodes_in_window
        ]

    def _rematerialized(self):
        """What Keras may rematerialise, and the attentions that draw in it."""
        drawing = [x for x in self._swapped if x.pattern.resamples]
        if drawing:
            for model in self._models():
                yield model, drawing
        for swapped in drawing:
            yield swapped.decoder, [swapped]
            yield swapped.attention, [swapped]

    def _models(self):
        """The model and its backbone, once if they are the same."""
        return list({id(m): m for m in (self.model, self._backbone)}.values())

    def _leave(self):
        """Takes methods and variables out."""
        _patching.detach(self._backbone, gates.GATES)
        _patching.detach(self._backbone, drawing.SEED_GENERATORS)
        for swapped in self._swapped:
            swapped.remove()
        self._patches.undo()

    def _refresh(self, variables_changed):
        """Makes the change take effect at once."""
        for model in self._models():
            _patching.forget_compiled(model)
            _patching.refresh_parameters(model)
            if variables_changed:
                _patching.refresh_optimizer(model)


def make_seeds(pattern, index, seed):
    """The `LayerSeeds` of a layer, or `None` where nothing is drawn."""
    if not pattern.has_random_order:
        return None
    return drawing.LayerSeeds(index, seed, pattern.resamples)
