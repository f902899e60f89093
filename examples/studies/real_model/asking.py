"""Prompts with short answers, under each pattern."""

import dataclasses
import json

import numpy as np

from examples.shared import byte_text
from examples.shared import language_model
from examples.shared.reports import tabulate
from examples.studies.real_model.patterns import layers_of
from examples.studies.real_model.patterns import patterns_at
from keras_sa import evaluation
from keras_sa import hub
from keras_sa.evaluation import measuring
from keras_sa.patterns import Full

NUM_SHOTS = {
    "capitals": 16,
    "antonyms": 20,
    "past_tenses": 16,
    "successors": 16,
}
HIDING = {
    "passkey": evaluation.passkey,
    "needles": evaluation.needles,
    "values": lambda *x, **options: evaluation.needles(
        *x, num_needles=2, num_values=3, **options
    ),
    "variables": evaluation.variable_tracking,
}
_MOST_TEXT = 40  # letters of the haystack for each token of a prompt


@dataclasses.dataclass
class Answers:
    """How well a model answered under each pattern.

    Attributes:
        settings: dict: what all of it was measured with.
        rows: dict of names to dicts: visible keys, and a `PromptResult`.
    """

    settings: dict
    rows: dict

    def __str__(self):
        columns = ["pattern", "visible keys", "right", "interval"]
        columns += ["tokens right", "loss"]
        return tabulate(columns, [self._row(name) for name in self.rows])

    def _row(self, name):
        result = self.result(name)
        low, high = result.interval
        return [
            name,
            f"{self.rows[name]['visible_keys']:.1f}",
            f"{result.accuracy:.0%}",
            f"{low:.0%} - {high:.0%}",
            f"{result.token_accuracy:.0%}",
            f"{result.loss:.3f}",
        ]

    def result(self, name):
        """`PromptResult` under a pattern."""
        values = dict(self.rows[name])
        del values["visible_keys"]
        return evaluation.PromptResult(**values)

    def save(self, path):
        measuring.write_json(path, dataclasses.asdict(self))

    @classmethod
    def load(cls, path):
        return cls(**json.loads(path.read_text()))


def side_by_side(answers):
    """A table of how many are right.

    Args:
        answers: dict of tasks to `Answers` under the same patterns.
    """

    def row(name):
        return [name, *(f"{x.result(name).accuracy:.0%}" for x in columns)]

    columns = answers.values()
    names = next(iter(columns)).rows
    return tabulate(["pattern", *answers], [row(name) for name in names])


def ask(arguments, model, task):
    """Asks under full attention and under each pattern; kept as it goes."""
    coder = tokenizer_of(model)
    prompts = make_prompts(arguments, task, coder)
    encode, _ = coder
    length = max(len(encode(x.context + x.answer)) for x in prompts)
    causal_lm = model.causal_lm
    reader = measuring.Reader(causal_lm, length, last_tokens=1)
    scorer = evaluation.TokenScorer(causal_lm, arguments.batch_size)
    settings = {
        "task": task,
        "prompts": len(prompts),
        "longest": length,
        "end": prompts[0].context[-100:],
        "parameters": int(causal_lm.count_params()),
        "seed": arguments.seed,
        "first": arguments.first,
        "last": arguments.last,
        "full_layers": arguments.full_layers,
        "layers": arguments.layers,
        "dtype": causal_lm.dtype_policy.name,
    }
    path = arguments.output / f"{task}_measured.json"
    kept = measuring.read_json(path, settings) or {"rows": {}}
    measured = Answers(settings, kept["rows"])  # under other patterns too
    layers = layers_of(arguments, causal_lm)
    wanted = {"full": Full(), **patterns_at(arguments, layers, length)}
    for name, pattern in wanted.items():
        row = measured.rows.get(name)
        if row is None:
            row = measure(arguments, reader, scorer, pattern, prompts, coder)
            measured.rows[name] = row
            measured.save(path)
        print(
            f"  {task}: {name}: {row['num_correct']} of {len(prompts)} right",
            flush=True,
        )
    return Answers(settings, {name: measured.rows[name] for name in wanted})


def measure(arguments, reader, scorer, pattern, prompts, coder):
    options = {"seed": arguments.seed}
    if not isinstance(pattern, dict):  # which names its layers
        options["layers"] = arguments.layers
    with hub.swap_attention(reader.model, pattern, **options) as swap:
        result = evaluation.evaluate_prompts(scorer, prompts, tokenizer=coder)
    return {
        "visible_keys": reader.visible_keys(swap.patterns),
        **dataclasses.asdict(result),
    }


def tokenizer_of(model):
    """The functions that make tokens of a string, and a string of tokens."""
    if model.preprocessor is None:  # a model of bytes
        return lambda text: [*text.encode()], lambda tokens: ""
    tokenizer = model.preprocessor.tokenizer
    return lambda text: np.asarray(tokenizer(text)).tolist(), str


def make_prompts(arguments, task, coder):
    options = {"seed": arguments.seed}
    if task in NUM_SHOTS:
        return evaluation.few_shot(
            arguments.prompts,
            kind=task,
            num_shots=arguments.shots or NUM_SHOTS[task],
            **options,
        )
    options["tokenizer"] = coder
    if task == "words":
        return evaluation.frequent_words(
            arguments.prompts, arguments.length, **options
        )
    return HIDING[task](
        arguments.prompts,
        arguments.length,
        haystack=read_haystack(arguments),
        **options,
    )


def read_haystack(arguments):
    """As many files as it takes."""
    texts, size = [], 0
    for path in byte_text.text_files(language_model.text_folder(arguments)):
        if size > _MOST_TEXT * arguments.length:
            break
        texts.append(path.read_text("utf-8", errors="replace"))
        size += len(texts[-1])
    return "\n".join(texts)
