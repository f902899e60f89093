"""The adapter gives lm-evaluation-harness the numbers of this package."""

import dataclasses
import importlib.machinery
import importlib.util
import json
import sys
import types

import keras
import keras_hub
import numpy as np
import pytest
import tiny_models

from keras_sa import hub
from keras_sa.evaluation import evaluate_documents
from keras_sa.evaluation import evaluate_last_words

lm_eval = pytest.importorskip("lm_eval", reason="lm_eval is not installed")

from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

from keras_sa.evaluation.harness import KerasHubLM  # noqa: E402
from keras_sa.patterns import Full  # noqa: E402
from keras_sa.patterns import SlidingWindow  # noqa: E402

END = 256  # beside the bytes
VOCABULARY_SIZE = 257
MAX_LENGTH = 24
NEW = 8
TEXTS = [
    "a window, a gate and a token",
    "gate",
    "Tokens of a layer see all tokens; each layer has its own permutation.",
]
# Context and continuation: short, without context, with a space at the end,
# too long for the model.
PAIRS = [
    ("a window", " and a gate"),
    ("", "a window"),
    ("the layer ", "is"),
    (TEXTS[2], " or not"),
    ("a window", " and a layer"),
]
PROMPTS = ["a window and", "one layer of", "the gate", TEXTS[2]]
SWAP = {"pattern": SlidingWindow(4)}


def encode(text):
    return list(text.encode())


def decode(tokens):
    """Without the end token, as transformers decodes."""
    return bytes(x for x in tokens if x != END).decode(errors="replace")


def adapter(causal_lm, **options):
    arguments = {
        "tokenizer": (encode, decode),
        "batch_size": 3,
        "max_length": MAX_LENGTH,
        "max_gen_toks": NEW,
        "prefix_token_id": END,
        **options,
    }
    return KerasHubLM(causal_lm, **arguments)


def requests(kind, arguments):
    return [
        Instance(request_type=kind, doc={}, arguments=x, idx=index)
        for index, x in enumerate(arguments)
    ]


def loglikelihood(lm, pairs):
    return lm.loglikelihood(requests("loglikelihood", pairs), disable_tqdm=True)


def rolling(lm, texts):
    return lm.loglikelihood_rolling(
        requests("loglikelihood_rolling", [(text,) for text in texts]),
        disable_tqdm=True,
    )


def generate(lm, prompts, **options):
    options = {"until": [], **options}
    return lm.generate_until(
        requests("generate_until", [(x, options) for x in prompts]),
        disable_tqdm=True,
    )


@pytest.fixture(scope="module")
def causal_lm():
    return tiny_models.build("qwen3", vocabulary_size=VOCABULARY_SIZE)


@pytest.fixture(scope="module")
def lm(causal_lm):
    return adapter(causal_lm)


def assert_same(received, expected):
    for (total, greedy), (other, is_greedy) in zip(
        received, expected, strict=True
    ):
        assert total == pytest.approx(other, rel=1e-5)
        assert greedy == is_greedy


@pytest.mark.parametrize(
    "swap", [{"pattern": Full()}, SWAP], ids=lambda swap: repr(swap["pattern"])
)
def test_rolling_is_the_loss_of_documents(causal_lm, lm, swap):
    with hub.swap_attention(causal_lm, **swap):
        received = rolling(lm, TEXTS)
        expected = [
            -evaluate_documents(
                lm.scorer, [encode(text)], MAX_LENGTH, start_token_id=END
            ).total_loss
            for text in TEXTS
        ]
    assert received == pytest.approx(expected, rel=1e-6)
    assert rolling(lm, [""]) == [0]


def test_last_words_are_those_of_this_package(lm):
    passages = ["a window and a gate", "one token and another"]
    pairs = [(x.rsplit(" ", 1)[0], " " + x.rsplit(" ", 1)[1]) for x in passages]
    words = loglikelihood(lm, pairs)
    result = evaluate_last_words(
        lm.scorer, passages, tokenizer=(encode, decode)
    )
    assert -result.total_loss == pytest.approx(sum(x for x, _ in words))
    assert result.num_correct == sum(greedy for _, greedy in words)


def test_order_and_batch_change_nothing(causal_lm, lm):
    expected = loglikelihood(lm, PAIRS)
    assert_same(loglikelihood(lm, PAIRS[::-1])[::-1], expected)
    one_by_one = adapter(causal_lm, batch_size="1")
    assert one_by_one.batch_size == 1
    assert_same(loglikelihood(one_by_one, PAIRS), expected)
    assert rolling(one_by_one, TEXTS) == pytest.approx(
        rolling(lm, TEXTS), rel=1e-5
    )


def test_texts_stop_at_strings(lm):
    whole = generate(lm, PROMPTS)
    stop = whole[0][2:4]
    received = generate(lm, PROMPTS, until=[stop, "", "never written"])
    assert received == [text.split(stop)[0] for text in whole]
    assert received[0] == whole[0][: whole[0].index(stop)]
    assert generate(lm, PROMPTS[:1], until=stop) == received[:1]


def test_requests_may_differ_in_their_options(lm):
    short = {"until": [], "max_gen_toks": 2}
    drawn = {"until": [], "do_sample": True, "temperature": 1e-4}
    greedy = {"until": [], "do_sample": False, "temperature": 9.0, "top_k": 3}
    arguments = [
        (PROMPTS[0], short),
        (PROMPTS[1], drawn),
        (PROMPTS[2], greedy),
        (PROMPTS[0], drawn),
    ]
    received = lm.generate_until(requests("generate_until", arguments))
    whole = generate(lm, PROMPTS)
    assert received[0] == decode(encode_back(lm, PROMPTS[0])[:2])
    assert received[1:] == [whole[1], whole[2], whole[0]]


def encode_back(lm, prompt):
    """The tokens that are written after a prompt."""
    return lm._generator.generate([encode(prompt)], NEW)[0]


class Cache:
    def __init__(self):
        self.seen = []

    def add_partial(self, kind, arguments, result):
        self.seen.append((kind, tuple(arguments), result))


def test_results_are_handed_to_the_cache(causal_lm):
    lm = adapter(causal_lm)
    lm.set_cache_hook(Cache())
    results = loglikelihood(lm, PAIRS[:2])
    assert lm.cache_hook.seen == [
        ("loglikelihood", pair, result) for pair, result in zip(PAIRS, results)
    ]
    (result,) = rolling(lm, TEXTS[:1])
    kind, arguments, cached = lm.cache_hook.seen[-1]
    assert (kind, arguments) == ("loglikelihood_rolling", (TEXTS[0],))
    assert cached == result


@pytest.fixture(scope="module")
def local_tasks(tmp_path_factory):
    """Tasks of the harness over local files: one of each kind of request."""
    folder = tmp_path_factory.mktemp("tasks")
    docs = [
        {"text": text, "question": "a window", "choices": [" gate", " token"]}
        for text in TEXTS
    ]
    data = folder / "docs.jsonl"
    data.write_text("".join(json.dumps(doc) + "\n" for doc in docs))
    common = {
        "dataset_path": "json",
        "dataset_kwargs": {
            "data_files": {"test": str(data)},
            "cache_dir": str(folder / "cache"),
        },
        "test_split": "test",
    }
    tasks = {
        "rolling": {
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{text}}",
            "metric_list": [{"metric": "bits_per_byte"}],
        },
        "choice": {
            "output_type": "multiple_choice",
            "doc_to_text": "{{question}}",
            "doc_to_target": 0,
            "doc_to_choice": "{{choices}}",
            "target_delimiter": "",
            "metric_list": [{"metric": "acc"}],
        },
        "writing": {
            "output_type": "generate_until",
            "doc_to_text": "{{question}}",
            "doc_to_target": "{{question}}",
            "generation_kwargs": {"until": ["\n"], "max_gen_toks": 4},
            "metric_list": [{"metric": "exact_match"}],
        },
    }
    for name, task in tasks.items():
        # JSON is YAML.
        text = json.dumps({"task": name, **common, **task})
        (folder / f"{name}.yaml").write_text(text)
    return folder


def test_tasks_of_the_harness_run(lm, local_tasks):
    results = lm_eval.simple_evaluate(
        lm,
        tasks=["rolling", "choice", "writing"],
        task_manager=TaskManager(
            include_path=str(local_tasks), include_defaults=False
        ),
        bootstrap_iters=0,
    )["results"]
    total = sum(rolling(lm, TEXTS))
    num_bytes = len("".join(TEXTS).encode())
    assert results["rolling"]["bits_per_byte,none"] == pytest.approx(
        -total / num_bytes / np.log(2), rel=1e-6
    )
    gate, token = loglikelihood(
        lm, [("a window", " gate"), ("a window", " token")]
    )
    assert results["choice"]["acc,none"] == float(gate > token)
    assert results["writing"]["exact_match,none"] == 0


def test_the_harness_makes_it_from_a_string(causal_lm, lm, tmp_path):
    """With a swap of the preset, and with one of the string."""
    causal_lm.save_to_preset(str(tmp_path / "model"))
    with hub.swap_attention(causal_lm, **SWAP):
        hub.save_to_preset(causal_lm, tmp_path / "swapped")
        expected = rolling(lm, TEXTS[:1])
    common = f"tokenizer=bytes,max_length={MAX_LENGTH},prefix_token_id={END}"
    for folder, swap in [
        ("swapped", ""),
        ("model", ",pattern=SlidingWindow(4)"),
    ]:
        made = lm_eval.api.registry.get_model("keras_hub")
        made = made.create_from_arg_string(
            f"preset={tmp_path / folder},{common},dtype=float32{swap}",
            {"batch_size": "2", "max_batch_size": 4, "device": "cuda:0"},
        )
        assert hub.current_swap(made.causal_lm).patterns[0] == SlidingWindow(4)
        assert rolling(made, TEXTS[:1]) == pytest.approx(expected, rel=1e-6)


def test_defaults_of_the_model(causal_lm):
    assert adapter(causal_lm, max_length=None).max_length == 2048
    model = tiny_models.build("gpt2", max_sequence_length=8)
    assert KerasHubLM(model, tokenizer="bytes").max_length == 8


def test_start_and_end_tokens_of_a_preprocessor():
    """The start token is in front of contexts, and never twice."""
    special = ["begin_of_text", "end_of_text", "eot_id"]
    special += ["start_header_id", "end_header_id"]
    characters = {chr(index): index for index in range(33, 123)}
    characters |= {f"<|{x}|>": i for i, x in enumerate(special, start=1)}
    tokenizer = keras_hub.models.Llama3Tokenizer(
        vocabulary={**characters, "xy": 123}, merges=["x y"]
    )
    model = tiny_models.build(
        "llama3",
        vocabulary_size=128,
        preprocessor=keras_hub.models.Llama3CausalLMPreprocessor(tokenizer),
    )
    lm = KerasHubLM(model, max_length=MAX_LENGTH)
    assert (lm.prefix_token_id, lm.eot_token_id) == (1, 2)
    assert lm.tokenization.end_token_ids == (2, 3)
    assert lm.tok_encode("ab") == [1, 97, 98]
    assert lm.tok_encode("ab", add_special_tokens=False) == [97, 98]
    pairs = [("", "ab"), ("a", "b")]
    (total, _), (last, _) = loglikelihood(lm, pairs)
    first, second = lm.scorer([[1, 97, 98]]).log_probabilities[0]
    assert total == pytest.approx(first + second, rel=1e-5)
    assert last == pytest.approx(second, rel=1e-5)
    assert rolling(lm, ["ab"]) == pytest.approx([total], rel=1e-5)
    assert KerasHubLM(model, prefix_token_id=5).prefix_token_id == 5
    without = KerasHubLM(model, add_start_token=False)
    assert without.tok_encode("ab") == [97, 98]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"preset": "some"}, "Either `causal_lm` or `preset`"),
        ({"batch_size": "auto"}, "batch_size='auto'"),
        ({"max_gen_toks": 0}, "max_gen_toks=0"),
        ({"seed": 0.5}, "seed=0.5"),
        ({"tokenizer": None}, "tokenizer=None"),
        ({"pattern": "windows"}, "windows"),
        ({"decode": "full"}, "\\['decode'\\] alone"),
    ],
)
def test_bad_options(causal_lm, options, message):
    with pytest.raises(ValueError, match=message):
        adapter(causal_lm, **options)


def test_bad_requests(causal_lm, lm):
    with pytest.raises(ValueError, match="Received: \\['num_beams'\\]"):
        generate(lm, PROMPTS[:1], num_beams=2)
    with pytest.raises(ValueError, match="max_length`, 24. Received: 24 new"):
        generate(lm, PROMPTS[:1], max_gen_toks=24)
    with pytest.raises(ValueError, match="temperature=0"):
        generate(lm, PROMPTS[:1], do_sample=True, temperature=0.0)
    without = adapter(causal_lm, prefix_token_id=None)
    with pytest.raises(ValueError, match="prefix_token_id=None"):
        rolling(without, TEXTS)


@pytest.fixture(scope="module")
def hugging_face(tmp_path_factory):
    """The harness's own adapter of a model, and this one of the same."""
    if keras.config.backend() != "torch":
        pytest.skip("transformers runs on torch")
    test_transformers = pytest.importorskip("test_transformers")
    families = {family.name: family for family in test_transformers.FAMILIES}
    family = dataclasses.replace(
        families["Llama"], config={"vocab_size": VOCABULARY_SIZE}
    )
    folder = tmp_path_factory.mktemp("llama")
    reference = test_transformers.new_model(family)
    test_transformers.save(reference, folder)
    theirs = hflm_class()(
        pretrained=reference,
        tokenizer=byte_tokenizer(),
        max_length=MAX_LENGTH,
        batch_size=2,
    )
    return theirs, adapter(test_transformers.load(family, folder))


def hflm_class():
    """The harness's adapter. For a model that is there already it needs
    `accelerate` to be importable, and nothing of it."""
    import transformers.models.auto.modeling_auto  # noqa: F401

    if importlib.util.find_spec("accelerate") is None:
        names = {
            "accelerate": (
                "Accelerator",
                "InitProcessGroupKwargs",
                "find_executable_batch_size",
            ),
            "accelerate.utils": ("get_max_memory",),
        }
        for name, members in names.items():
            module = types.ModuleType(name)
            module.__spec__ = importlib.machinery.ModuleSpec(name, None)
            vars(module).update(dict.fromkeys(members))
            sys.modules[name] = module
    try:
        from lm_eval.models.huggingface import HFLM
    finally:
        for name in ("accelerate", "accelerate.utils"):
            if getattr(sys.modules.get(name), "__file__", None) is None:
                sys.modules.pop(name, None)
    return HFLM


def byte_tokenizer():
    """A tokenizer of transformers whose tokens are bytes."""
    import tokenizers
    import transformers

    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [byte for byte in range(256) if byte not in shown]
    characters = {chr(byte): byte for byte in shown}
    characters |= {chr(256 + i): byte for i, byte in enumerate(hidden)}
    vocabulary = {**characters, "<end>": END}
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab=vocabulary, merges=[])
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
        add_prefix_space=False
    )
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>"
    )


def test_same_log_likelihoods_as_hugging_face(hugging_face):
    theirs, ours = hugging_face
    expected = loglikelihood(theirs, PAIRS)
    assert_same(loglikelihood(ours, PAIRS), expected)
    assert rolling(ours, TEXTS) == pytest.approx(
        rolling(theirs, TEXTS), rel=1e-5
    )
    with hub.swap_attention(ours.causal_lm, **SWAP):
        swapped = loglikelihood(ours, PAIRS)
    assert swapped[0][0] != pytest.approx(expected[0][0], rel=1e-3)


def test_same_texts_as_hugging_face(hugging_face):
    theirs, ours = hugging_face
    # It pads prompts on the left, which moves positions: one by one.
    expected = [
        generate(theirs, [prompt], max_gen_toks=NEW)[0] for prompt in PROMPTS
    ]
    assert generate(ours, PROMPTS, max_gen_toks=NEW) == expected
    stop = expected[0][1:3]
    assert generate(ours, PROMPTS[:1], until=[stop]) == generate(
        theirs, PROMPTS[:1], until=[stop], max_gen_toks=NEW
    )
