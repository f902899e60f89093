"""Keeping a swap: presets that bring it back, and files of gates.

A preset of a swapped model is the preset of the model itself, which KerasHub
loads as ever, beside two files: the swap, and its gates.
"""

import json
import pathlib

import keras
import keras_hub

from keras_sa import _version
from keras_sa.hub import gates
from keras_sa.hub import swap as swaps
from keras_sa.hub._patching import complete_config
from keras_sa.hub._patching import current_swap
from keras_sa.patterns import Full

CONFIG_FILE = "keras_sa.json"
GATES_FILE = "keras_sa_gates.weights.h5"


def save_to_preset(model, preset_dir, **kwargs):
    """Saves a swapped model so that `from_preset` brings it back.

    KerasHub's own `from_preset` loads the same folder as the model without
    the swap.

    Args:
        model: a KerasHub task or backbone under `swap_attention`.
        preset_dir: path of a folder.
        **kwargs: to the model's `save_to_preset`.

    Raises:
        ValueError: if the model is not swapped.

    Example:

    >>> import tempfile
    >>> import keras_hub
    >>> from keras_sa import hub
    >>> from keras_sa.patterns import Stochastic
    >>> backbone = keras_hub.models.Qwen3Backbone(
    ...     vocabulary_size=32, num_layers=2, num_query_heads=4,
    ...     num_key_value_heads=2, head_dim=8, hidden_dim=32,
    ...     intermediate_dim=64,
    ... )
    >>> swap = hub.swap_attention(backbone, Stochastic(8), seed=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     hub.save_to_preset(backbone, folder)
    ...     loaded = hub.from_preset(folder)
    >>> hub.current_swap(loaded)
    AttentionSwap(Stochastic(8), layers=[0, 1], seed=1)
    """
    swap = _swap_of(model)
    with swap.suspended(), complete_config(model):
        model.save_to_preset(str(preset_dir), **kwargs)
    folder = pathlib.Path(preset_dir)
    config = {
        "keras_sa": _version.__version__,
        "model": type(model).__name__,
        "swap": swap.get_config(),
    }
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")
    (folder / GATES_FILE).unlink(missing_ok=True)
    if swap.gates:
        save_gates(model, folder / GATES_FILE)


def from_preset(preset_dir, cls=None, **kwargs):
    """Loads what `save_to_preset` saved: model, swap, seeds and gates.

    Not the `implementation` of the swap, which belongs to a machine.

    Args:
        preset_dir: path of a folder.
        cls: class to load as, if the model was of one that is not in
            `keras_hub.models`.
        **kwargs: to the class's `from_preset`, such as `dtype`.

    Returns:
        The swapped model; `current_swap(model)` is its swap.

    Raises:
        ValueError: if the folder holds no swap, `cls` is needed, or a pattern
            of one's own is not registered.
    """
    path = pathlib.Path(preset_dir) / CONFIG_FILE
    if not path.is_file():
        raise ValueError(
            f"`preset_dir` is expected to be a folder with a {CONFIG_FILE}, "
            "as `keras_sa.hub.save_to_preset` writes. For any other preset "
            "take `keras_hub.models.CausalLM.from_preset` and then "
            f"`swap_attention`. Received: preset_dir={str(preset_dir)!r}"
        )
    config = json.loads(path.read_text())
    if cls is None:
        cls = getattr(keras_hub.models, config["model"], None)
    if cls is None:
        raise ValueError(
            f"`cls` is expected: the preset was saved from a model of class "
            f"{config['model']!r}, which is not in `keras_hub.models`. "
            "Received: cls=None"
        )
    arguments = _swap_arguments(config["swap"])
    model = cls.from_preset(str(preset_dir), **kwargs)
    swaps.swap_attention(model, **arguments)
    gates_path = path.parent / GATES_FILE
    if gates_path.is_file() and kwargs.get("load_weights", True):
        load_gates(model, gates_path)
    return model


def _swap_arguments(config):
    """Those of `swap_attention`, from `AttentionSwap.get_config`."""
    patterns = {int(k): _pattern(x) for k, x in config["pattern"].items()}
    return {**config, "pattern": patterns or Full()}


def _pattern(config):
    try:
        return keras.saving.deserialize_keras_object(config)
    except (TypeError, ImportError) as error:
        raise ValueError(
            "Patterns of your own in a preset are expected to be registered "
            "before it is loaded: decorate their class with "
            "`@keras.saving.register_keras_serializable(...)` and import its "
            f"module. Received: {', '.join(_unknown_classes(config))}"
        ) from error


def _unknown_classes(config):
    """Names of the classes in a config that nobody registered."""
    if isinstance(config, (list, tuple)):
        for item in config:
            yield from _unknown_classes(item)
    elif isinstance(config, dict):
        name = config.get("registered_name")
        known = name and keras.saving.get_registered_object(name) is not None
        if "class_name" in config and not known:
            yield config["class_name"]
        yield from _unknown_classes(list(config.values()))


def save_gates(model, filepath):
    """Saves the gates of a swapped model, without the model.

    Args:
        model: a model with a gated sum of patterns swapped in.
        filepath: path that ends in `.weights.h5`.

    Raises:
        ValueError: if the model has no gates.
    """
    _check_filepath(filepath)
    keras.saving.save_weights(_Gates(gates.gates_of(model)), str(filepath))


def load_gates(model, filepath):
    """Loads gates that `save_gates` saved.

    Args:
        model: a model with as many gates of the same shape.
        filepath: path that ends in `.weights.h5`.

    Raises:
        ValueError: if the model has no gates, or others.
    """
    _check_filepath(filepath)
    keras.saving.load_weights(_Gates(gates.gates_of(model)), str(filepath))


def _check_filepath(filepath):
    if not str(filepath).endswith(".weights.h5"):
        raise ValueError(
            "`filepath` is expected to end in '.weights.h5'. "
            f"Received: filepath={str(filepath)!r}"
        )


class _Gates(keras.layers.Layer):
    """The gates of a model as one object to save."""

    def __init__(self, gate_layers):
        super().__init__()
        self.attention_gates = gate_layers
        self.built = True


def _swap_of(model):
    swap = current_swap(model)
    if swap is None:
        raise ValueError(
            "`model` is expected to be under `swap_attention`; save any other "
            "with its own `save_to_preset`. "
            f"Received: {model!r}, not swapped"
        )
    return swap
