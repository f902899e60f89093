"""The pattern that each layer bears, within a budget of the loss."""

import itertools

import numpy as np
import pytest

from keras_sa import hub
from keras_sa.evaluation import ChosenPatterns
from keras_sa.evaluation import TokenScorer
from keras_sa.evaluation import choose_patterns
from keras_sa.evaluation import choosing
from keras_sa.patterns import Full
from keras_sa.patterns import GlobalKeys
from keras_sa.patterns import SlidingWindow
from keras_sa.patterns import Stochastic
from tests.hub import models

pytest.importorskip("scipy")

LENGTH, SEED, NUM_LAYERS = 20, 3, 3
NARROW, WIDE = SlidingWindow(2), SlidingWindow(8) | GlobalKeys(first=1)
RANDOM = np.random.default_rng(0)
DOCUMENTS = RANDOM.integers(1, models.VOCABULARY_SIZE, (4, LENGTH + 3)).tolist()


@pytest.fixture(scope="module")
def model():
    return models.build("llama", num_layers=NUM_LAYERS)


def choose(model, **options):
    options = {
        "documents": DOCUMENTS,
        "length": LENGTH,
        # Not in the order of their keys.
        "candidates": [WIDE, NARROW],
        "max_loss_increase": 0.1,
        "seed": SEED,
        "last_tokens": 5,
        "verbose": False,
        **options,
    }
    return choose_patterns(model, **options)


@pytest.fixture
def made_up(monkeypatch):
    """Losses that a function of the plan makes up; the plans that were read."""

    def install(loss):
        plans = []

        def measure(trials, plan, documents):
            plans.append(plan)
            return [2.0 + loss(plan)] * len(documents)

        monkeypatch.setattr(choosing._Trials, "measure", measure)
        return plans

    return install


# What each layer loses with the narrow and with the wide window.
ADDED = {0: (0.5, 0.02), 1: (0.04, 0.03), 2: (0.2, 0.01)}


def sum_of_layers(plan):
    return sum(ADDED[k][(NARROW, WIDE).index(x)] for k, x in plan.items())


def visible_keys(plan):
    full = (LENGTH + 1) / 2
    keys = [
        plan[layer].keys_per_token(LENGTH, is_causal=True)
        if layer in plan
        else full
        for layer in range(NUM_LAYERS)
    ]
    return np.mean(keys)


@pytest.mark.parametrize("budget", [0.015, 0.035, 0.06, 0.08, 0.3, 2.0])
def test_losses_that_add_up(budget, made_up, model):
    made_up(sum_of_layers)
    chosen = choose(model, max_loss_increase=budget)
    assert chosen.increase.mean == pytest.approx(sum_of_layers(chosen.patterns))
    assert chosen.increase.mean <= budget
    assert chosen.visible_keys == pytest.approx(visible_keys(chosen.patterns))
    plans = [
        {k: x for k, x in enumerate(plan) if x is not None}
        for plan in itertools.product((NARROW, WIDE, None), repeat=NUM_LAYERS)
    ]
    best = min(
        visible_keys(plan) for plan in plans if sum_of_layers(plan) <= budget
    )
    # The steps are greedy: at most one layer away from the best.
    step = (visible_keys({}) - visible_keys({0: NARROW})) * 1.001
    assert chosen.visible_keys <= best + step
    for layer, rises in chosen.alone.items():
        np.testing.assert_allclose(rises, ADDED[layer], atol=1e-9)
    for layer, fall in chosen.kept.items():
        assert fall == pytest.approx(ADDED[layer][0])
    assert chosen.candidates == (NARROW, WIDE)


def test_a_layer_that_all_others_need(made_up, model):
    """Alone, no layer seems to matter; one has to stay full."""

    def loss(plan):
        return 0.01 * len(plan) + (len(plan) > 1 and 1 in plan)

    made_up(loss)
    chosen = choose(model, candidates=[NARROW], max_loss_increase=0.05)
    assert chosen.patterns == {0: NARROW, 2: NARROW}
    assert max(chosen.kept, key=chosen.kept.get) == 1


def test_each_plan_is_read_once(made_up, model):
    plans = made_up(sum_of_layers)
    choose(model, held_out=DOCUMENTS[:1])
    of_held_out = plans[-2:]
    read = [tuple(sorted(plan.items())) for plan in plans[:-2]]
    assert len(set(read)) == len(read)
    assert of_held_out[1] == {} and of_held_out[0]


def losses_of(model, plan, documents):
    scorer = TokenScorer(model, batch_size=1, max_length=LENGTH)
    rows = [row[: LENGTH + 1] for row in documents]
    with hub.swap_attention(model, plan or Full(), seed=SEED):
        scores = scorer.score_sequences(rows)
    return np.array([-x.log_probabilities.mean() for x in scores])


def test_a_model(model, tmp_path):
    chosen = choose(
        model,
        candidates=[NARROW | Stochastic(4), WIDE],
        max_loss_increase=0.3,
        path=tmp_path / "trials.json",
    )
    assert hub.current_swap(model) is None
    first, others = DOCUMENTS[:2], DOCUMENTS[2:]
    full = losses_of(model, {}, first)
    plan = chosen.patterns
    assert plan and chosen.increase.mean <= 0.3
    np.testing.assert_allclose(
        chosen.losses, losses_of(model, plan, first), rtol=1e-5
    )
    np.testing.assert_allclose(
        chosen.held_out_losses, losses_of(model, plan, others), rtol=1e-5
    )
    np.testing.assert_allclose(
        chosen.held_out_full_losses, losses_of(model, {}, others), rtol=1e-5
    )
    of_layer = losses_of(model, {1: chosen.candidates[0]}, first)
    assert chosen.alone[1][0] == pytest.approx(
        (of_layer - full).mean(), abs=1e-5
    )
    chosen.save(tmp_path / "chosen.json")
    loaded = ChosenPatterns.load(tmp_path / "chosen.json")
    assert loaded == chosen and str(loaded) == str(chosen)
    with hub.swap_attention(model, loaded.patterns, seed=SEED) as swap:
        assert swap.patterns == plan


def test_it_goes_on_after_an_interruption(made_up, model, tmp_path):
    path = tmp_path / "trials.json"

    def stop(plan):
        if len(plans) > 5:
            raise KeyboardInterrupt
        return 0.0 if not plan else sum_of_layers(plan)

    def same_weights(reader, documents, losses, path, part):
        assert losses == [2.0, 2.0]

    plans = made_up(stop)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            choosing.measuring.Reader, "check_same_weights", same_weights
        )
        with pytest.raises(KeyboardInterrupt):
            choose(model, path=path)
        read = plans[:5]
        plans = made_up(sum_of_layers)
        chosen = choose(model, path=path)
    assert not [plan for plan in plans[:-2] if plan in read]
    assert chosen == choose(model)


def test_a_file_of_other_settings_or_weights(model, tmp_path):
    models.skip_where_compiled("other files")
    path = tmp_path / "trials.json"
    options = {"candidates": [WIDE], "max_loss_increase": 9.0, "path": path}
    choose(model, **options)
    with pytest.raises(ValueError, match="part: 'all' there, 'last' here"):
        choose(model, **options, part="last")
    other = models.build("llama", num_layers=NUM_LAYERS)
    models.draw_weights(other, seed=5)
    with pytest.raises(ValueError, match="(?s)same weights.*Received"):
        choose(other, **options)


def test_the_table_and_the_plot(made_up, model, tmp_path):
    made_up(sum_of_layers)
    chosen = choose(model, max_loss_increase=0.08)
    lines = str(chosen).splitlines()
    assert len(lines) == 2 + NUM_LAYERS + 2
    assert r"SlidingWindow(8) \| GlobalKeys(first=1)" in lines[0]
    cells = lines[2].strip("|").split(" | ")
    cells = [cell.strip() for cell in cells]
    assert cells[:4] == ["0", "+0.5000", "+0.0200", "-0.5000"]
    assert "of full attention's" in lines[-1]
    pytest.importorskip("matplotlib")
    chosen.plot(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_the_cost_is_said_before(made_up, model, capsys):
    plans = made_up(sum_of_layers)
    choose(model, verbose=True)
    first, second, *_ = capsys.readouterr().out.splitlines()
    total = int(first.split()[1])
    assert "2 documents of 20 tokens" in first
    assert second.startswith(f"[1/{total} ") and "left]" in second
    assert abs(len(plans) - 2 - total) <= 4


def test_default_candidates():
    small, middle, large = choosing.default_candidates(256)
    for pattern, keys in zip((small, middle, large), (16, 32, 64)):
        received = pattern.keys_per_token(256, is_causal=True)
        assert 0.75 * keys < received < 1.25 * keys + 4
        assert pattern.parts[-1] == GlobalKeys(first=4)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"max_loss_increase": 0}, "above 0"),
        ({"max_loss_increase": "low"}, "above 0"),
        ({"documents": DOCUMENTS[:1]}, "held_out"),
        ({"documents": [[1] * 9] * 2}, "at least 21 tokens"),
        ({"candidates": []}, "`candidates`"),
        ({"candidates": [Full()]}, "other than `Full"),
        ({"candidates": [[NARROW, WIDE]]}, "lists and dicts"),
        ({"candidates": [NARROW + WIDE]}, "no training"),
        ({"candidates": ["stochastic"]}, r"Stochastic\(window_size\)"),
        ({"part": "first"}, "part"),
        ({"seed": None}, "seed"),
        ({"layers": [7]}, "layers"),
    ],
    ids=str,
)
def test_bad_input(changes, words, model, made_up):
    plans = made_up(sum_of_layers)
    with pytest.raises(ValueError, match=f"(?s){words}.*Received: "):
        choose(model, **changes)
    assert not plans and hub.current_swap(model) is None


def test_a_budget_that_no_plan_meets(made_up, model):
    made_up(sum_of_layers)
    with pytest.raises(ValueError, match="(?s)some plan meets.*Received") as e:
        choose(model, max_loss_increase=0.001)
    assert "0.0100: {2: SlidingWindow(8) | GlobalKeys(first=1)}" in str(e.value)
