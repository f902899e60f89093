"""What `keras_sa.hub` knows of the insides of Keras and KerasHub.

None of these names is public there. They were seen in KerasHub 0.32 with
Keras 3.15. What differs between families stands in `families`.

Letters: `B` batch, `T` query tokens, `S` key tokens, `H` query heads, `K`
key/value heads, `D` head dim.
"""

import contextlib
import functools
import inspect

import keras

_LAYERS = "transformer_layers"  # of a backbone
COMPUTE_ATTENTION = "_compute_attention"
# KerasHub's route to vLLM goes around `_compute_attention`.
_COMPUTE_VLLM_ATTENTION = "_compute_vllm_attention"
# The two names of a decoder layer's method that makes its mask.
SELF_ATTENTION_MASK = "_compute_self_attention_mask"
ATTENTION_MASK = "_compute_attention_mask"
# What a model compiled, and would run on as it was.
_COMPILED = (
    "generate_function",
    "train_function",
    "test_function",
    "predict_function",
    "_cached_spec_sampler",  # Gemma 4's speculative decoding
)
_HANDLE = "_keras_sa_swap"


# A model and the swap it is under.


def backbone_of(model):
    """The backbone of a task, or the backbone itself.

    Raises:
        ValueError: if there are no decoder layers to be found.
    """
    backbone = getattr(model, "backbone", model)
    if getattr(backbone, _LAYERS, None):
        return backbone
    raise ValueError(
        "`model` is expected to be a KerasHub task or backbone of a decoder, "
        "with its layers in `backbone.transformer_layers`, such as "
        "`keras_hub.models.CausalLM.from_preset(...)`. "
        f"Received: {model!r} of class {type(model).__name__!r}"
    )


def decoder_layers(backbone):
    """The decoder layers of a backbone."""
    return getattr(backbone, _LAYERS)


def current_swap(model):
    """The `AttentionSwap` that a model or its backbone is under, or `None`."""
    return getattr(getattr(model, "backbone", model), _HANDLE, None)


def set_current_swap(stack, backbone, swap):
    """Keeps a swap with a backbone until an `ExitStack` is closed."""
    set_attributes(stack, backbone, {_HANDLE: swap})


# Methods of one layer's own.


def override_methods(layer, members):
    """Gives one layer its own methods and properties.

    It gets a class of its own, a subclass of its class under the same name,
    since names of classes are in checkpoints.
    """
    base = type(layer)
    namespace = {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        **members,
    }
    _set_class(layer, type(base)(base.__name__, (base,), namespace))


def restore_methods(layer):
    """Undoes `override_methods`."""
    _set_class(layer, type(layer).__bases__[0])


def overriding(stack, layer, members):
    """`override_methods` until an `ExitStack` is closed."""
    override_methods(layer, members)
    stack.callback(restore_methods, layer)


def _set_class(layer, cls):
    # Not `layer.__class__ =`: Keras layers track what is set on them.
    object.__setattr__(layer, "__class__", cls)


def set_attributes(stack, instance, members):
    """Sets attributes `{name: value}` until an `ExitStack` is closed.

    Models get attributes and no class of their own: Keras makes and looks up
    models by their class.
    """
    for name, value in members.items():
        # Not `setattr`: Keras tracks what is set on a layer.
        object.__setattr__(instance, name, value)
        stack.callback(object.__delattr__, instance, name)


# An attention layer.


class ComputeAttention:
    """The method of an attention layer's class that attends.

    It gets queries `[B, T, H, D]`, keys and values `[B, S, K or H, D]` that
    carry their position encodings, and the decoder layer's mask.
    """

    def __init__(self, attention):
        self.original = getattr(type(attention), COMPUTE_ATTENTION)
        self.signature = inspect.signature(self.original)

    def overriding(self, compute):
        """The method as `compute(call)`, for `override_methods`."""

        @functools.wraps(self.original)
        def compute_attention(attention, *args, **kwargs):
            bound = self.signature.bind(attention, *args, **kwargs)
            return compute(ComputeAttentionCall(self.original, bound))

        return {COMPUTE_ATTENTION: compute_attention}


class ComputeAttentionCall:
    """One call of it."""

    def __init__(self, original, bound):
        self.original = original
        self.bound = bound
        self.names = list(bound.arguments)[1:4]

    @property
    def tensors(self):
        """Query, key and value."""
        return tuple(self.bound.arguments[name] for name in self.names)

    @property
    def mask(self):
        return self.bound.arguments.get("attention_mask")

    def run(self, query, key, value):
        """What the layer itself computes from these."""
        self.bound.arguments.update(zip(self.names, (query, key, value)))
        return self.original(*self.bound.args, **self.bound.kwargs)


def refusing_vllm(refuse):
    """A member for `override_methods`: serving through vLLM is refused."""
    return {_COMPUTE_VLLM_ATTENTION: refuse}


@contextlib.contextmanager
def complete_config(model):
    """Adds what KerasHub 0.32 leaves out of a backbone's config: of the Llama
    family, that embeddings are tied. Without it, a preset has fewer weights
    than the model that it is loaded into."""
    backbone = backbone_of(model)
    get_config = backbone.get_config

    def complete():
        tied = getattr(backbone, "tie_word_embeddings", False)
        added = {"tie_word_embeddings": True} if tied else {}
        return {**added, **get_config()}

    with contextlib.ExitStack() as stack:
        set_attributes(stack, backbone, {"get_config": complete})
        yield


def by_name(signature, layer, args, kwargs):
    return signature.bind(layer, *args, **kwargs).arguments


def keras_mask_of(x):
    """The mask that Keras has of a tensor, or `None`."""
    return getattr(x, "_keras_mask", None)


# Running a model: compiled functions, generation, rematerialisation.


def forget_compiled(model):
    """Has a model compile anew what it runs."""
    for name in _COMPILED:
        if getattr(model, name, None) is not None:
            setattr(model, name, None)


def generate_step_within(causal_lm, scope):
    """`{name: function}`: the model's `generate_step` within a context.

    Args:
        causal_lm: a model; the dict is empty for one that can't generate.
        scope: function of the inputs, which returns the context.
    """
    name = "generate_step"
    original = getattr(causal_lm, name, None)
    if original is None:
        return {}

    def generate_step(inputs, *args, **kwargs):
        with scope(inputs):
            return original(inputs, *args, **kwargs)

    return {name: generate_step}


def rematerialized_call_within(layer, make_scope):
    """`{name: function}`: a layer's `rematerialized_call` within a context.

    Args:
        layer: a layer or a model.
        make_scope: function that is called once for a call and for its
            repetitions together. It returns a function that returns the
            context of each of them.
    """
    name = "rematerialized_call"
    original = getattr(layer, name)

    def rematerialized_call(layer_call, *args, **kwargs):
        scope = make_scope()

        def call(*args, **kwargs):
            with scope():
                return layer_call(*args, **kwargs)

        return original(call, *args, **kwargs)

    return {name: rematerialized_call}


# Variables that come and go.


def attach(stack, backbone, name, values):
    """Sets a tracked list on a built backbone until an `ExitStack` is closed:
    then its variables are no longer the backbone's."""
    if values:
        setattr(backbone, name, list(values))
        stack.callback(_detach, backbone, name)


def _detach(backbone, name):
    getattr(backbone, name).clear()
    delattr(backbone, name)


def refresh_parameters(model):
    """Shows torch the variables that a model has now.

    KerasHub 0.32 shows it none: its models' `parameters()` are empty.
    """
    if keras.config.backend() == "torch":
        model._track_variables()


def refresh_optimizer(model):
    """Gives a model whose variables changed an optimizer like its own."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and optimizer.built:
        model.optimizer = optimizer.from_config(optimizer.get_config())


def train_only(model, layers):
    """Freezes all of a model but these layers."""
    for layer in model._flatten_layers(include_self=False):
        layer.trainable = False
    # A frozen layer hides the variables of those in it.
    for outer in (model, getattr(model, "backbone", model)):
        outer._trainable = True
    for layer in layers:
        layer.trainable = True
    refresh_optimizer(model)
