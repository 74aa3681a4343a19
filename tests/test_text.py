"""Chapter 7 at reduced size: budgets of labels, partitions and their scores, token banks, and the stored runs."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch

from ddcl_lite import assign
from ddcl_lite.experiments import partitions, results, text, topics
from ddcl_lite.experiments.readouts import split_by_film


@pytest.fixture(scope="module")
def sequences():
    """Texts whose class is the sign of one feature of every token, 8 to a film."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(2, (320,), generator=generator)
    tokens = torch.randn(320, 6, 8, generator=generator)
    tokens[..., 0] += 1.5 * (2 * labels[:, None] - 1)
    labels = torch.where(torch.rand(320, generator=generator) < 0.1, 1 - labels, labels)  # or training never ends
    mask = torch.arange(6) < torch.randint(3, 7, (320, 1), generator=generator)
    return tokens * mask[..., None], mask, labels, torch.arange(320) // 8


@pytest.fixture(scope="module")
def posts():
    """Six posts of each of 20 groups, 5 tokens each: a group's tokens lie around one place."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(20).repeat_interleave(6)
    tokens = 3 * torch.randn(20, 1, 70, generator=generator)[labels] + torch.randn(120, 5, 70, generator=generator)
    mask = torch.ones(120, 5, dtype=torch.bool)
    mask[::2, 4] = False
    tokens = tokens * mask[..., None]
    pieces = [[f"w{int(i)}"] * int(m.sum()) for i, m in zip(labels, mask)]
    names = [f"group {i}" for i in range(20)]
    return topics.Posts([f"re text {i} here" for i in range(120)], labels, names, tokens.half(), mask, pieces)


@pytest.fixture(scope="module")
def crowd():
    """Few vectors for their dimension, no clear groups: where K-means rests early."""
    return torch.nn.functional.normalize(torch.randn(80, 40, generator=torch.Generator().manual_seed(2)), dim=-1)


def test_budgets_are_nested_of_the_right_size_and_split_by_film(sequences):
    films = sequences[3]
    rows, _ = split_by_film(films, 0.3, 0)
    before = set()
    for budget in (10, 40, 160):
        train, validation = text.draw_budget(rows, films, budget, 3)
        drawn = {*train.tolist(), *validation.tolist()}
        assert len(drawn) == len(train) + len(validation) == budget and drawn <= set(rows.tolist()) and before <= drawn
        assert not set(films[train].tolist()) & set(films[validation].tolist())
        before = drawn
    share = len(set(films[validation].tolist())) / len(set(films[torch.tensor(sorted(drawn))].tolist()))
    assert share == pytest.approx(text.VALIDATION, abs=0.03)
    for wrong in (7, len(rows) + 1, True, 20.0):
        with pytest.raises(ValueError, match=f"budget: expected an integer from 8 to {len(rows)}, .* got {wrong}"):
            text.draw_budget(rows, films, wrong, 0)


def test_histograms_average_the_weights_of_real_tokens(sequences):
    tokens, mask, *_ = sequences
    bank = torch.randn(5, 8)
    counts = text.histograms(tokens, mask, bank, 2.0)
    for i in (0, 7):
        torch.testing.assert_close(counts[i], assign(tokens[i][mask[i]], bank, 2.0).mean(0))
    torch.testing.assert_close(counts.sum(-1), torch.ones(len(tokens)))
    poisoned = torch.where(mask[..., None], tokens, torch.nan)
    torch.testing.assert_close(text.histograms(poisoned, mask, bank, 2.0), counts)


def test_a_soft_bank_rests_repeats_and_leaves_the_random_state_alone(sequences):
    real = sequences[0][sequences[1]]
    torch.manual_seed(5)
    bank, temperature = text.soft_bank(real, 4, 0.3, 1, steps=200)
    after = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(after, torch.rand(1))
    weights = torch.softmax(-torch.cdist(real, bank).square() / temperature, -1)
    torch.testing.assert_close(weights.T @ real / weights.sum(0)[:, None], bank, atol=2e-2, rtol=0)
    largest = torch.linalg.eigvalsh(torch.cov(real.T, correction=0))[-1].item()
    assert temperature == pytest.approx(0.3 * 2 * largest, rel=1e-4)
    assert torch.equal(bank, text.soft_bank(real, 4, 0.3, 1, steps=200)[0])


def test_a_regression_chooses_by_validation():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(2, (300,), generator=generator)
    noise, signal = torch.randn(300, 4, generator=generator), torch.randn(300, 4, generator=generator)
    signal[:, 0] += 2.0 * labels
    rows = torch.arange(300).split(100)
    score, choice = text.fit_regression({"bad": noise, "good": signal}, labels, *rows)
    assert "good" in choice and score > 0.75
    assert text.fit_regression({"bad": noise}, labels, *rows)[0] < 0.65
    torch.testing.assert_close(text.fit_regression({"": 1e4 * signal}, labels, *rows)[0], score)


def test_the_readout_kept_is_the_best_on_validation(sequences, monkeypatch):
    tokens, mask, labels, films = sequences
    train, validation = ((tokens[rows], mask[rows], labels[rows]) for rows in torch.arange(320).split(240))
    seen = []
    measure = text.cross_entropy

    def watch(*arguments):
        seen.append(measure(*arguments))
        return seen[-1]

    monkeypatch.setattr(text, "cross_entropy", watch)
    model, chosen = text.fit_readout("prototypes", train, validation, 0, patience=8)
    assert measure(model, *validation) == pytest.approx(min(seen), rel=1e-5)
    assert chosen["choice"].endswith(" T_c") and chosen["updates"] >= 4
    assert text.accuracy(model, *validation) > 0.75
    _, cut = text.fit_readout("mean", train, validation, 0, candidates=1, limit=8)
    assert cut["updates"] <= 8


def test_compare_budgets_at_reduced_size(sequences):
    tokens, mask, labels, films = sequences
    vectors = text.pool(tokens, mask)
    arguments = {
        "budgets": (40, 160),
        "seeds": [0, 1],
        "methods": ("attention pooling", *text.REGRESSIONS),
        "candidates": 1,
    }
    table = text.compare_budgets(tokens, mask, labels, films, vectors, **arguments)
    assert len(table) == 16 and set(table["budget"]) == {40, 160}
    again = text.compare_budgets(tokens, mask, labels, films, vectors, **{**arguments, "seeds": [0], "budgets": (40,)})
    first = table[(table["seed"] == 0) & (table["budget"] == 40)].reset_index(drop=True)
    pd.testing.assert_frame_equal(first.drop(columns="seconds"), again.drop(columns="seconds"))
    summary = text.gains(table)
    assert summary.loc[(160, "regression on the mean"), "accuracy"] > 0.75
    same = summary["accuracy"].unstack("budget")
    assert same.loc["regression on the mean"].equals(same.loc["the same, all features"])  # the same features here
    with pytest.raises(ValueError, match="methods: expected some of mean, .*, got 'median'"):
        text.compare_budgets(tokens, mask, labels, films, vectors, (40,), methods=("median",))


def test_scores_against_all_matchings():
    generator = torch.Generator().manual_seed(0)
    labels, clusters = torch.randint(4, (2, 30), generator=generator)
    best = max((torch.tensor(p)[clusters] == labels).float().mean().item() for p in itertools.permutations(range(4)))
    assert partitions.scores(labels, clusters)["accuracy"] == pytest.approx(best)
    perfect = partitions.scores(labels, (labels + 1) % 4)
    assert all(value == pytest.approx(1) for value in perfect.values())
    with pytest.raises(ValueError, match=r"clusters: expected one for each of \(30,\) labels, got shape \(29,\)"):
        partitions.scores(labels, clusters[1:])


def test_gains_of_single_moves_are_differences_of_the_cost(crowd):
    vectors = crowd.double()
    clusters = torch.arange(80) % 6
    clusters[clusters == 5] = 4
    clusters[0] = 5  # alone: it may not leave
    gains = partitions.move_gains(vectors, *partitions.cluster_sums(vectors, clusters, 6), clusters)
    total = len(vectors) * (vectors - vectors.mean(0)).square().sum(-1).mean()
    for i, k in ((3, 0), (17, 2), (40, 5)):
        moved = clusters.clone()
        moved[i] = k
        change = total * (partitions.cost(vectors, clusters) - partitions.cost(vectors, moved))
        assert gains[i, k].item() == pytest.approx(change.item(), abs=1e-9)
    assert (gains[0] == 0).all() and (gains.gather(1, clusters[:, None]) == 0).all()


def test_single_moves_end_where_none_is_left(crowd):
    first = torch.from_numpy(partitions.k_means(crowd, 8, 1, 0).labels_)
    moved = partitions.single_moves(crowd, first, 8)
    assert partitions.improvable(crowd, first, 8) > 0.1 and partitions.improvable(crowd, moved, 8) == 0
    assert partitions.cost(crowd, moved) < partitions.cost(crowd, first) - 0.01
    assert len(moved.unique()) == 8


def test_annealed_and_descended_banks_and_the_sphere_find_clear_groups(posts):
    for method in ("annealed prototypes, mean", "descent on L_q, mean", "spherical K-means, mean"):
        found = topics.cluster(method, posts, 5, 0, 0.1)
        assert partitions.scores(posts.labels, found)["NMI"] > 0.95, method
    with pytest.raises(ValueError, match="method: expected one of K-means, .*, got 'magic'"):
        topics.cluster("magic", posts, 1, 0)


def test_the_table_of_clusterings(posts):
    choices = {"Gaussian mixture, mean": "spherical", "descent on L_q, mean": 0.1, "token bank": 0.1}
    parts = [posts, posts]
    table = topics.compare_clusterings(parts, choices, 2)
    assert list(table["method"]) == [*topics.METHODS] * 2 and list(table["seed"].unique()) == [0, 1]
    assert (table["posts"] == 120).all() and table["NMI"].min() > 0.5
    assert (table.loc[table["method"] == "K-means and single moves", "improvable"] == 0).all()
    assert len(topics.COMPARISON.summarise(table)) == len(topics.METHODS)
    log = topics.start_spread(posts, choices, 3)
    costs = log.groupby("method")["cost"]
    assert (costs.max() - costs.min())["annealed prototypes, mean"] < 1e-6 and (costs.count() == 3).all()


def test_choices_are_made_by_quality_on_the_posts_given(posts, monkeypatch):
    monkeypatch.setattr(topics, "CHOICES", {"descent on L_q, mean": (50.0, 0.1)})  # the first collapses
    assert topics.choose(posts, 2) == {"descent on L_q, mean": 0.1}


def test_samples_are_disjoint(posts):
    some = topics.samples(posts, 4)
    seen = [one for part in some for one in part.texts]
    assert [len(part.texts) for part in some] == [30] * 4 and len(set(seen)) == 120
    assert some[1].labels.tolist() == posts.labels[30:60].tolist() and some[1].pieces == posts.pieces[30:60]


def test_a_hot_histogram_is_the_mean_to_first_order(posts):
    """The proposition of chapter 7, with its bound."""
    tokens, mask, bank = posts.tokens.double(), posts.mask, torch.randn(6, 70, dtype=torch.float64)
    mean = text.pool(tokens, mask)
    for temperature in (3e3, 3e4):
        counts = torch.stack([torch.softmax(-torch.cdist(z[m], bank) ** 2 / temperature, -1).mean(0)
                              for z, m in zip(tokens, mask)])  # fmt: skip
        a = (2 * tokens[mask] @ bank.T - bank.square().sum(-1)) / temperature
        s = (2 * mean @ bank.T - bank.square().sum(-1)) / temperature
        error = (counts - (1 + s - s.mean(-1, keepdim=True)) / 6).abs().max()
        assert error <= 0.5 * (a.amax(-1) - a.amin(-1)).max() ** 2
        assert error < 0.05 * (counts - counts.mean(0)).abs().max()


def test_the_mean_explains_hot_histograms_only(posts):
    table = topics.what_the_mean_explains(posts, (0.02, 1000.0), count=8).set_index("T / T_c")
    assert table.loc[0.02, "largest weight"] > 0.9 and table.loc[1000.0, "largest weight"] < 0.13
    assert table.loc[1000.0, "explained by the mean"] > 0.99
    assert table.loc[1000.0, "error of first order"] < 0.1 < table.loc[0.02, "error of first order"]


def test_prototypes_are_shown_by_words_and_posts(posts):
    bank = torch.stack([posts.tokens[posts.labels == k].float()[:, :4].mean((0, 1)) for k in range(20)])
    table = topics.explain(posts, posts.tokens.float(), bank, 1.0)
    assert sorted(table.index) == list(range(20))
    for k, row in table.iterrows():
        assert row["nearest real tokens"].split(", ")[0] == f"w{k}" and row["groups"] == f"group {k}"


def test_openings_stop_before_mail_addresses():
    assert topics.opening("re dos in article apr ucsu colorado edu writes") == "re dos"
    assert topics.opening("re faith and dogma someone cs toronto edu hello") == "re faith and"
    assert topics.opening("one two three four five six seven") == "one two three four five six"
    assert topics.opening("edu") == "edu" and topics.opening("hello there", 1) == "hello"


def test_the_stored_runs_are_complete():
    record = results.stored("text")
    table, settings = record["table"], record["settings"]
    assert settings["snippets"] == 12808 and record["command"] == "python -m ddcl_lite.experiments.text"
    keys = set(zip(table["method"], table["seed"], table["budget"]))
    assert keys == set(itertools.product(text.METHODS, range(5), text.FULL_SCALE["budgets"])) and len(table) == len(
        keys
    )
    record = results.stored("topics")
    table, settings = record["table"], record["settings"]
    keys = set(zip(table["method"], table["seed"], table["posts"]))
    wanted = set(itertools.product(topics.METHODS, range(5), topics.FULL_SCALE["sizes"]))
    assert keys == wanted | {(topics.MANY, seed, 250) for seed in range(5)} and len(table) == len(keys)
    assert set(settings["choices"]) == set(topics.CHOICES) and settings["restarts"] == 10
    starts = results.stored("topics_starts")["table"]
    assert set(starts["method"]) == set(topics.STARTS) and len(starts) == 10 * len(topics.STARTS)
    assert np.isfinite(starts["cost"]).all()


def told_apart(comparison, table):
    """The methods that are better, and those that are worse, than the baseline."""
    lines = comparison.verdicts(table)
    return tuple({name for name, line in lines.items() if line.startswith(word)} for word in ("better", "worse"))


def test_what_chapter_7_says_of_labels():
    budgets = dict(list(results.stored("text")["table"].groupby("budget")))
    found = {budget: told_apart(text.COMPARISON, part) for budget, part in budgets.items()}
    assert all(not better for budget, (better, _) in found.items() if budget <= 1500)
    assert found[5000][0] == {"attention pooling"}
    assert [budget for budget, (_, worse) in found.items() if "[CLS]" in worse] == [500, 1500, 5000]
    assert [budget for budget, (_, worse) in found.items() if "regression on the histogram" in worse] == [1500, 5000]
    assert set().union(*(worse for _, worse in found.values())) == {"[CLS]", "regression on the histogram"}
    bank = text.COMPARISON._replace(baseline="prototypes")
    assert [budget for budget, part in budgets.items() if "[CLS]" in told_apart(bank, part)[1]] == [1500, 5000]
    assert told_apart(bank, budgets[5000])[0] == set()
    for budget in (50, 150):
        spread = budgets[budget].groupby("method")["accuracy"].std()
        assert spread["prototypes"] > 3 * spread["regression on the mean"]
        assert set(spread.nlargest(3).index) >= {"prototypes"}
        for other in ("attention pooling", "Perceiver latents"):  # with more parameters
            assert spread[other] < 0.5 * spread["prototypes"]
        mean = budgets[budget].groupby("method")["accuracy"].mean()
        assert mean["prototypes"] < mean["regression on the mean"]
    level = 1 - 0.05 / (len(text.METHODS) - 1)
    gain = "gain over regression on the mean"
    for budget, low, high in ((50, (-0.33, -0.27), (0.17, 0.25)), (5000, (-0.03, -0.01), (0.02, 0.03))):
        bank_row = text.COMPARISON.summarise(budgets[budget], level).loc["prototypes"]
        assert low[0] < bank_row[gain] - bank_row["+- (gain)"] < low[1]
        assert high[0] < bank_row[gain] + bank_row["+- (gain)"] < high[1]


def test_attention_pooling_and_latents_have_more_parameters_than_the_bank(sequences):
    def count(name):
        model = text.make_classifier(name, torch.randn(20, 6, 64), torch.ones(20, 6, dtype=torch.bool), 0)
        return sum(values.numel() for values in model.parameters())

    assert 6000 < count("prototypes") < 6500 < min(count("attention pooling"), count("Perceiver latents"))
    assert count("mean") == 65


def test_what_chapter_7_says_of_topics():
    small, large = (part for _, part in results.stored("topics")["table"].groupby("posts"))
    pairs = topics.COMPARISON._replace(score="NMI")
    moves = pairs._replace(baseline="K-means and single moves")
    bank, descent = "annealed prototypes, mean", "descent on L_q, mean"
    plain, single, many = "K-means, mean", "K-means and single moves", topics.MANY
    assert told_apart(pairs, small) == ({single, bank, descent, many}, set())
    assert told_apart(pairs, large) == ({descent}, {"K-means token codebook", "token bank"})
    assert told_apart(topics.COMPARISON, small) == ({single}, set())  # by matched accuracy
    assert told_apart(topics.COMPARISON, large)[0] == set()
    assert bank not in set().union(*told_apart(moves, small)) and descent not in set().union(*told_apart(moves, large))
    sphere = pairs._replace(baseline="spherical K-means, mean")
    assert descent not in set().union(*told_apart(sphere, large))
    for part in (small, large):
        assert "K-means, [CLS]" in told_apart(pairs._replace(baseline=bank), part)[1]
        assert part[part["method"] != many].groupby("method")["seconds"].mean().idxmax() == descent
        costs = part.pivot(index="seed", columns="method", values="cost")
        assert (costs[bank] < costs[plain]).all()
    assert small.groupby("method")["seconds"].mean().idxmax() == many
    assert told_apart(pairs._replace(baseline=many), small)[0] == {single, bank}
    cost, quality = (small.pivot(index="seed", columns="method", values=value) for value in ("cost", "NMI"))
    assert (cost[many] > cost[bank]).all() and (quality[many] < quality[bank]).all()
    assert (cost.idxmin(axis=1) == single).all() and (quality.idxmax(axis=1) == single).all()
    assert pairs.summarise(large, 1 - 0.05 / 9).loc[bank, "+- (gain)"] > 0.04  # "several points"
    assert results.stored("topics")["settings"]["choices"][descent] == 0.25
