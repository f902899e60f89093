"""Runs a model on held-out text and tells what its heads do."""

import pathlib

import keras
import numpy as np

from examples.shared import byte_text
from examples.shared import language_model
from examples.shared import reports
from examples.shared.command_line import announce
from examples.shared.command_line import announce_end
from keras_sa import analysis
from keras_sa import hub
from keras_sa.hub.preset import CONFIG_FILE

STAGES = 4
MEASURES = {
    "entropy": "{:.2f}",
    "evenness": "{:.2f}",
    "mean_distance": "{:.1f}",
    "local_mass": "{:.3f}",
    "total": "{:.2f}",
}
ALIKE = "all keys alike"


def main(arguments):
    keras.utils.set_random_seed(arguments.seed)
    announce(1, STAGES, "Loading the model")
    model = load_model(arguments)
    swap = hub.current_swap(model.causal_lm)
    print(f"  {swap or 'its own attention'}")

    announce(2, STAGES, "Reading the text")
    inputs = read_inputs(arguments, model)

    announce(3, STAGES, "Measuring its attention, layer by layer")
    profiles = measure(arguments, model.causal_lm, inputs)
    gates = {}
    if swap is not None and swap.gates:
        values = hub.gate_values(model.causal_lm, inputs)
        gates = dict(zip(swap.gated_layers, values))

    announce(4, STAGES, "Writing the report")
    paths = [
        reports.write_table(
            arguments.output, report(arguments, profiles, gates)
        )
    ]
    if reports.can_plot():
        paths += draw(arguments, profiles, gates)
    announce_end(paths)


def load_model(arguments):
    """With the attention and the gates that the preset was saved with."""
    preset = arguments.preset
    if preset and (pathlib.Path(preset) / CONFIG_FILE).is_file():
        causal_lm = hub.from_preset(preset, dtype=arguments.dtype)
        return language_model.LanguageModel(causal_lm)
    return language_model.load(arguments)


def read_inputs(arguments, model):
    """Held-out text, as the backbone takes it."""
    _, held_out = byte_text.read_texts(language_model.text_folder(arguments))
    num_tokens = arguments.sequences * arguments.length + 1
    rng = np.random.default_rng(arguments.seed)
    tokens = model.encode_some(held_out, num_tokens)
    inputs, _ = model.draw(tokens, arguments.sequences, arguments.length, rng)
    return inputs


def measure(arguments, causal_lm, inputs):
    """The `AttentionProfile` of each layer that has attention, by index."""

    def profile(weights):
        return analysis.attention_profile(weights, arguments.window)

    profiles = hub.measure_attention(causal_lm, inputs, profile)
    return dict(zip(hub.layers_with_attention(causal_lm), profiles))


def report(arguments, profiles, gates):
    return f"""\
Means over heads (lowest and highest head) and over {arguments.sequences} \
sequences of {arguments.length} tokens. Entropy in nats, distance in tokens; \
local mass: the fraction of weight on the {arguments.window} tokens up to a \
token itself; total: what the weights of a token sum to; gates: of the terms \
of a gated sum, in their order.

{tabulate(arguments, profiles, gates)}

Fractions of weight by distance in tokens, means over heads:

{tabulate_distances(arguments, profiles)}"""


def tabulate(arguments, profiles, gates):
    """What heads do in each layer, and what they would if all were alike."""
    num_gates = max(map(len, gates.values()), default=0)
    names = [f"gate {term}" for term in range(1, num_gates + 1)]
    columns = ["layer", *(name.replace("_", " ") for name in MEASURES), *names]
    rows = []
    for layer, profile in profiles.items():
        told = [tell(heads, "{:.3f}") for heads in gates.get(layer, ())]
        missing = [""] * (num_gates - len(told))
        rows.append([str(layer), *tell_measures(profile), *told, *missing])
    keys = np.tri(arguments.length)
    alike = keys / keys.sum(axis=1, keepdims=True)
    alike = analysis.attention_profile(alike[None, None], arguments.window)
    rows.append(
        [ALIKE, *tell_measures(alike, "{0}"), *[""] * num_gates],
    )
    return reports.tabulate(columns, rows)


def tabulate_distances(arguments, profiles):
    starts = next(iter(profiles.values())).distances
    ends = [*(starts[1:] - 1), arguments.length - 1]
    columns = ["layer"]
    columns += [
        f"{a} to {b}" if a < b else f"{a}" for a, b in zip(starts, ends)
    ]
    rows = [
        [
            str(layer),
            *(f"{x:.3f}" for x in profile.mass_by_distance.mean(axis=0)),
        ]
        for layer, profile in profiles.items()
    ]
    return reports.tabulate(columns, rows)


def tell_measures(profile, form="{0} ({1} to {2})"):
    return [
        tell(getattr(profile, name), digits, form)
        for name, digits in MEASURES.items()
    ]


def tell(heads, digits, form="{0} ({1} to {2})"):
    numbers = (np.mean(heads), np.min(heads), np.max(heads))
    return form.format(*map(digits.format, numbers))


def draw(arguments, profiles, gates):
    """Figures of layers and heads; returns their paths."""
    from keras_sa.analysis import plots  # imports matplotlib

    figures = {"profile": plots.plot_attention_profile(list(profiles.values()))}
    if gates:
        figures["gates"] = plots.plot_gates(list(gates.values()))
    return [
        plots.save(figure, arguments.output / f"{name}.png")
        for name, figure in figures.items()
    ]
