"""`swap_attention`: one call gives a decoder another attention."""

import collections.abc
import contextlib

import keras

from keras_sa import _validation
from keras_sa.hub import _patching
from keras_sa.hub import decode as decoding
from keras_sa.hub import gates as gating
from keras_sa.hub import seeds as seeding
from keras_sa.hub import verification
from keras_sa.hub._patching import current_swap
from keras_sa.hub.attention import Plan
from keras_sa.hub.attention import SwappedAttention
from keras_sa.hub.families import registry
from keras_sa.hub.inspect import patterns_of_layers
from keras_sa.ops.attention import check_implementation
from keras_sa.patterns import patterns_by_layer
from keras_sa.patterns.per_layer import is_index

DECODE = ("full", "pattern")
RESAMPLE = ("training", "never")


def swap_attention(
    model,
    pattern,
    *,
    layers="global",
    decode=None,
    resample="training",
    seed=None,
    gate_bias=None,
    implementation=None,
    verify=False,
):
    """Gives the decoder layers of a KerasHub model another attention, in place.

    No weight of the model changes, nor its path. Queries and keys keep the
    position encodings of their original positions, sinks, soft caps, scales
    and dropout of the family stay. What was compiled before is compiled anew.
    Swapping again replaces, and starts with new gates. A swap that fails
    leaves the one that was there, its gates included.

    Args:
        model: a `keras_hub.models.CausalLM`, or another task or a `Backbone`
            with decoder layers of a known family. If there is a task, swap
            the task: only then does the padding of prompts of `generate` take
            no place in the patterns.
        pattern: a `keras_sa.patterns.Pattern` for all swapped layers, such as
            `SlidingWindow(256) | Stochastic(256) | GlobalKeys(first=4)`, which
            needs no training, or a gated sum, such as `Stochastic(256) +
            SlidingWindow(256)`, whose gates are new variables and have to be
            trained. A list is interleaved along the swapped layers; a dict
            of index to pattern names the layers itself. `Full()` leaves a
            layer as it is.
        layers: `"global"` (default): layers that have no sliding window of
            their own; `"all"`: every layer that has attention; or indices
            into `backbone.transformer_layers`.
        decode: what new tokens attend to in `generate`. `"full"`: the cache,
            as in the model itself, which suits weights that were trained with
            full attention; `"pattern"`: the keys of the pattern only, at a
            cost that does not depend on the length, for models that were
            trained with it. Permutations are then laid over the whole cache,
            so that a step computes what the forward pass over a sequence of
            the cache's length does. Default: `"full"`; with gates `"pattern"`,
            where the pattern can.
        resample: of random patterns: `"training"` (default): new permutations
            at every training call, fixed ones from the seed otherwise;
            `"never"`: the fixed ones.
        seed: int of at most 32 bits. Every layer draws its own permutations
            from it. Default: drawn, governed by
            `keras.utils.set_random_seed`.
        gate_bias: of gated sums: where the biases of the gates start, one
            number for each term. By default one gate starts at 0.88, that of
            the last term which is not random (of the last one if all are),
            and the others at 0.12, biases of 2 and -2: pretrained weights
            suffer from a mean of all. 0 is a gate of 1/2.
        implementation: `None` for the best one, or a name as in
            `keras_sa.ops.attention`, which never falls back. Steps of
            decoding have their own.
        verify: whether to check, with a pattern that covers everything, that
            the swapped model computes what the model itself does: that this
            version of KerasHub is understood. It costs a few forward passes
            over 16 tokens.

    Returns:
        An `AttentionSwap`: `restore()` undoes the swap; as a context manager
        it brings back, at the end, what was before. `reseed(seed)` draws
        other permutations.

    Raises:
        ValueError: for a model without decoder layers of a known family, for
            what is no pattern or does not fit it, or if `verify` fails.

    Example:

    >>> import keras_hub
    >>> from keras_sa import hub
    >>> from keras_sa.patterns import GlobalKeys, SlidingWindow, Stochastic
    >>> backbone = keras_hub.models.Qwen3Backbone(
    ...     vocabulary_size=32, num_layers=2, num_query_heads=4,
    ...     num_key_value_heads=2, head_dim=8, hidden_dim=32,
    ...     intermediate_dim=64,
    ... )
    >>> pattern = SlidingWindow(8) | Stochastic(8) | GlobalKeys(first=2)
    >>> with hub.swap_attention(backbone, pattern):
    ...     output = backbone({
    ...         "token_ids": keras.ops.ones((1, 100), "int32"),
    ...         "padding_mask": keras.ops.ones((1, 100), "int32"),
    ...     })
    >>> output.shape
    (1, 100, 32)

    Reference:
        Stochastic Attention, https://arxiv.org/abs/2604.00754
    """
    backbone = _patching.backbone_of(model)
    found = _find_layers(backbone)
    patterns = _patterns_of(pattern, layers, found, type(backbone).__name__)
    _validation.check_one_of("resample", resample, RESAMPLE)
    check_implementation(implementation)
    gated = [x for x in patterns.values() if "gates" in x.needs()]
    gate_bias = gating.check_gate_bias(gate_bias, gated)
    plans = [
        Plan(
            index,
            *found[index],
            pattern,
            decode=_check_decode(decode, pattern),
            resamples=pattern.is_random and resample != "never",
            implementation=implementation,
        )
        for index, pattern in patterns.items()
    ]
    if seed is None:
        seed = int(keras.random.randint((), 0, 2**31 - 1))
    options = {"decode": decode, "resample": resample, "gate_bias": gate_bias}
    swap = AttentionSwap(model, plans, _validation.check_seed(seed), options)
    swap._replace_current(verify)
    return swap


# What is to be swapped.


def _find_layers(backbone):
    """`{index: (decoder layer, family)}` of the layers with attention."""
    found = {}
    for index, decoder in enumerate(_patching.decoder_layers(backbone)):
        family = registry.family_of(decoder)
        if family.find_attention(decoder) is not None:
            registry.check_hooks(decoder, family)
            found[index] = decoder, family
    return found


def _patterns_of(pattern, layers, found, name):
    """`{index: pattern}` of the layers to swap."""
    if not isinstance(pattern, collections.abc.Mapping):
        return patterns_by_layer(pattern, _choose_layers(layers, found, name))
    if isinstance(layers, str) and layers == "global":
        return patterns_by_layer(pattern, found)
    raise ValueError(
        "A dict of patterns names the layers itself and expects no `layers`. "
        f"Received: layers={layers!r} with patterns of layers {list(pattern)}"
    )


def _choose_layers(layers, found, name):
    """Indices of the layers that `layers` says."""
    is_word = isinstance(layers, str)
    if is_word and layers == "all":
        return list(found)
    if not is_word or layers != "global":
        return _indices(layers, found)
    chosen = [i for i, layer in found.items() if not _has_window(*layer)]
    if not chosen:
        raise ValueError(
            "layers='global' expects layers without a sliding window of "
            "their own; this model has none. Pass layers='all' to replace "
            f"them. Received: {name} with {len(found)} sliding layers"
        )
    return chosen


def _has_window(decoder, family):
    attention = family.find_attention(decoder)
    return family.native_window(decoder, attention) is not None


def _indices(layers, found):
    wrong = isinstance(layers, str) or not hasattr(layers, "__iter__")
    indices = [] if wrong else list(layers)
    if (
        not indices
        or not all(is_index(index) and index in found for index in indices)
        or len(set(indices)) != len(indices)
    ):
        raise ValueError(
            "`layers` is expected to be 'global', 'all', or different indices "
            f"of layers that have attention: {sorted(found)}. "
            f"Received: layers={layers!r}"
        )
    return sorted(int(index) for index in indices)


def _check_decode(decode, pattern):
    """`decode` with its default filled in."""
    _validation.check_one_of("decode", decode, (None, *DECODE))
    objection = pattern.why_not_decode()
    if decode == "pattern" and objection is not None:
        raise ValueError(
            f"decode='pattern' is not for this pattern: {objection}. "
            f"Received: decode='pattern' with {pattern!r}"
        )
    if decode is None:
        # The gates belong to the terms: full attention has none.
        in_pattern = "gates" in pattern.needs() and objection is None
        return "pattern" if in_pattern else "full"
    return decode


class AttentionSwap:
    """A swap that was made. Made by `swap_attention`.

    In a `with` statement, leaving the block brings back what the model was
    under before: the outer swap, with its seeds and what its gates learned,
    or the model's own attention; also if something else was swapped in
    meanwhile. Outside of one, a swap that is replaced is gone, and
    `restore()` gives the model's own attention back.

    Attributes:
        model: the model that was given.
        patterns: dict of the index of each swapped layer to its pattern.
        layers: indices of the swapped layers.
        gates: the gates' layers, in the order of `gated_layers`; empty
            without gates.
        gated_layers: indices of the layers that have gates.
        seed: int: the seed of the swap.
    """

    def __init__(self, model, plans, seed, options):
        self.model = model
        self.patterns = {plan.index: plan.pattern for plan in plans}
        self.layers = list(self.patterns)
        self.seed = seed
        self._options = options
        self._backbone = _patching.backbone_of(model)
        self._plans = plans
        self._generation = decoding.Generation()
        self._attentions = self._make_attentions()
        self.gates = [x.gate for x in self._attentions if x.gate is not None]
        self.gated_layers = [
            x.plan.index for x in self._attentions if x.gate is not None
        ]
        self._installed = contextlib.ExitStack()
        self._replaced = None
        self._is_scope = False

    def restore(self):
        """Gives the model its own attention back; gates are dropped.

        Within a `with` statement of this swap, gives back what was before it.
        Nothing happens if the swap was replaced.
        """
        if current_swap(self.model) is self:
            self._give_back()

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
        >>> from keras_sa.patterns import Stochastic
        >>> backbone = keras_hub.models.Qwen3Backbone(
        ...     vocabulary_size=32, num_layers=2, num_query_heads=4,
        ...     num_key_value_heads=2, head_dim=8, hidden_dim=32,
        ...     intermediate_dim=64,
        ... )
        >>> swap = hub.swap_attention(backbone, Stochastic(8), seed=1)
        >>> swap.reseed(2)
        >>> swap
        AttentionSwap(Stochastic(8), layers=[0, 1], seed=2)
        """
        _validation.check_seed(seed)
        self._check_current("reseed")
        self.seed = seed
        seeds = self._layer_seeds()
        for swapped in self._attentions:
            if swapped.seeds is not None:
                swapped.seeds.reseed(seeds[swapped.plan.index])

    def attention_patterns(self, inputs=None):
        """What each layer attends to, as `hub.attention_patterns` says.

        While the swap lasts, the model and its backbone have this method, too:
        `keras_sa.analysis` finds it there.

        Args:
            inputs: as in `hub.attention_patterns`.

        Raises:
            ValueError: as there, or after the end of the swap.
        """
        self._check_current("attention_patterns")
        return patterns_of_layers(self._backbone, self._attentions, inputs)

    def get_config(self):
        """The arguments that make the same swap again, but for the model and
        the implementation; patterns as Keras serialises them."""
        serialize = keras.saving.serialize_keras_object
        patterns = {str(i): serialize(x) for i, x in self.patterns.items()}
        return {"pattern": patterns, "seed": self.seed, **self._options}

    def __enter__(self):
        self._check_current("with")
        self._is_scope = True
        return self

    def __exit__(self, *exception):
        if self._is_scope:  # not restored by hand
            self._give_back()

    def __repr__(self):
        different = set(self.patterns.values())
        what = repr(self.patterns)
        if len(different) == 1:
            what = f"{different.pop()!r}, layers={self.layers}"
        return f"AttentionSwap({what}, seed={self.seed})"

    def _check_current(self, use):
        if current_swap(self.model) is not self:
            raise ValueError(
                f"`{use}` is expected while the model is under this swap. "
                f"Received: {self}, which was restored or replaced"
            )

    # Coming and going.

    def _replace_current(self, verify):
        replaced = current_swap(self.model)

        def check():
            if verify:
                verification.verify(self._backbone, self._plans)

        _switch(replaced, self, check)
        self._replaced = replaced
        if replaced is not None and not replaced._is_scope:
            replaced._replaced = None  # it never comes back

    def _give_back(self):
        outer = self._replaced if self._is_scope else None
        self._replaced, self._is_scope = None, False
        _switch(current_swap(self.model), outer)

    @contextlib.contextmanager
    def suspended(self):
        """The model as it is without the swap."""
        self._leave()
        try:
            yield
        finally:
            self._enter()

    def _enter(self):
        """Puts methods and variables in place; all of them or none."""
        backbone = self._backbone
        with contextlib.ExitStack() as stack:
            _patching.attach(stack, backbone, gating.GATES, self.gates)
            _patching.attach(
                stack,
                backbone,
                seeding.SEED_GENERATORS,
                self._seed_generators(),
            )
            for swapped in self._attentions:
                swapped.install(stack)
            for instance, members in self._attributes():
                _patching.set_attributes(stack, instance, members)
            _patching.set_current_swap(stack, backbone, self)
            self._installed = stack.pop_all()

    def _leave(self):
        """Takes methods and variables out."""
        self._installed.close()

    def _attributes(self):
        """`(model or layer, {name: value})` of what is set on them."""
        in_pattern = [x for x in self._attentions if x.decodes_in_pattern]
        yield (
            self.model,
            decoding.generating(self.model, self._generation, in_pattern),
        )
        if self.gates and hasattr(self._backbone, "enable_lora"):
            enable_lora = gating.enable_lora_beside(
                self._backbone, self.gates, self._models()
            )
            yield self._backbone, {"enable_lora": enable_lora}
        for model in self._models():
            yield model, {"attention_patterns": self.attention_patterns}
        for layer, inside in self._rematerialized():
            yield layer, seeding.drawing_first(layer, inside)

    def _refresh(self):
        """Makes a change take effect at once."""
        for model in self._models():
            _patching.forget_compiled(model)
            _patching.refresh_parameters(model)
            if self.gates:
                _patching.refresh_optimizer(model)

    # What it is made of.

    def _make_attentions(self):
        seeds = self._layer_seeds()
        return [
            SwappedAttention(
                plan,
                self._make_seeds(plan, seeds[plan.index]),
                self._generation,
                self._make_gate(plan),
            )
            for plan in self._plans
        ]

    def _layer_seeds(self):
        num_layers = len(_patching.decoder_layers(self._backbone))
        return seeding.layer_seeds(self.seed, num_layers)

    def _make_seeds(self, plan, seed):
        if not plan.pattern.is_random:
            return None
        return seeding.LayerSeeds(plan.index, seed, plan.resamples)

    def _make_gate(self, plan):
        if "gates" not in plan.pattern.needs():
            return None
        starts = self._options["gate_bias"]
        if starts is None:
            starts = gating.default_starts(plan.pattern.terms)
        return gating.make_gate(plan, self._backbone.hidden_dim, starts)

    def _seed_generators(self):
        """The variables that decide on permutations."""
        seeds = [x.seeds for x in self._attentions if x.seeds is not None]
        return [variable for x in seeds for variable in x.variables()]

    def _rematerialized(self):
        """What Keras may rematerialise, and the attentions that draw in it."""
        drawing = [x for x in self._attentions if x.plan.resamples]
        if drawing:
            for model in self._models():
                yield model, drawing
        for swapped in drawing:
            yield swapped.decoder, [swapped]
            yield swapped.attention, [swapped]

    def _models(self):
        """The model and its backbone, once if they are the same."""
        return list({id(m): m for m in (self.model, self._backbone)}.values())


def _switch(current, other, prepare=None):
    """Leaves one swap and enters another; either may be `None`.

    Args:
        current: the `AttentionSwap` that is in place.
        other: the one to put in place.
        prepare: function to call between. If it or entering fails, the first
            swap is in place again.
    """
    if current is not None:
        current._leave()
    try:
        if prepare is not None:
            prepare()
        if other is not None:
            other._enter()
    except BaseException:
        if current is not None:
            current._enter()
        raise
    for swap in (current, other):
        if swap is not None:
            swap._refresh()
