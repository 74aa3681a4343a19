"""Orbits: their names and laws, clusterings from many starts, classifiers split by launch, and what chapter 10 says."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from ddcl_lite import decompose
from ddcl_lite.data import orbit_features, satellites
from ddcl_lite.experiments import debris, debris_types, results
from ddcl_lite.experiments.annealing import anneal, hard_cost


@pytest.fixture(scope="module")
def catalogue():
    return satellites()


@pytest.fixture(scope="module")
def sample(catalogue):
    return catalogue.iloc[::30].reset_index(drop=True)


def orbits(*rows):
    return pd.DataFrame(rows, columns=debris.ORBIT, dtype=float)


def test_keplers_law_of_orbits_that_everyone_knows():
    assert debris.kepler_period(35786, 35786) == pytest.approx(1436.07, abs=0.1)  # the sidereal day
    assert debris.kepler_period(410, 414) == pytest.approx(92.8, abs=0.1)  # the space station
    axis = debris.EARTH + 1000.0
    assert debris.kepler_period(0, 2000) == pytest.approx(2 * math.pi * math.sqrt(axis**3 / debris.GRAVITY) / 60)


def test_the_catalogue_obeys_keplers_law(catalogue):
    error = np.log(catalogue["period_min"] / debris.kepler_period(catalogue["perigee_km"], catalogue["apogee_km"]))
    assert 1e-5 < error.abs().median() < 4e-5 and (error.abs() > 1e-3).sum() == 19


def test_names_of_orbits_that_everyone_knows():
    known = {
        "geosynchronous": (1436.1, 35780, 35793, 0.1),
        "Molniya": (717.7, 1000, 39360, 63.4),
        "geostationary transfer": (631.0, 250, 35800, 7.0),
        "navigation": (718.0, 20150, 20200, 55.0),
        "low, sun-synchronous": (101.4, 820, 830, 98.7),
        "low, polar": (100.5, 770, 790, 90.0),
        "low, equatorial": (97.0, 600, 620, 5.0),
        "low, inclined": (92.8, 410, 420, 51.6),
        "low, retrograde": (97.0, 600, 620, 144.6),
        "beyond geosynchronous": (3800.0, 10000, 118000, 76.0),
        "elliptical": (330.0, 500, 17500, 30.0),
        "medium": (115.0 + 60, 3000, 4000, 60.0),
    }
    assert debris.orbit_name(orbits(*known.values())).tolist() == list(known)


def test_names_agree_with_the_catalogues_classes(catalogue):
    names, low = debris.orbit_name(catalogue), catalogue["orbit_class"].str.startswith("LEO")
    assert (low == np.char.startswith(names.astype(str), "low")).mean() > 0.999
    for theirs, ours in (("LEO/S", "low, sun-synchronous"), ("LEO/I", "low, inclined"), ("GEO/NS", "geosynchronous")):
        agreed = ((catalogue["orbit_class"] == theirs) & (names == ours)).sum()
        assert agreed > 0.98 * ((catalogue["orbit_class"] == theirs) | (names == ours)).sum()


def test_to_orbits_undoes_the_features(sample):
    back = debris.to_orbits(orbit_features(sample), sample)
    np.testing.assert_allclose(back.to_numpy(), sample[debris.ORBIT].to_numpy(), rtol=1e-9, atol=1e-9)


def test_no_prototype_is_an_orbit_unless_all_its_objects_share_it(sample):
    bank = anneal(orbit_features(sample), 6)
    table = debris.families(sample, bank)
    assert (table["excess"] > 0).all() and table["objects"].sum() == len(sample)
    assert (table["period_min"].diff().dropna() >= 0).all()
    np.testing.assert_allclose(table[["debris", "payload", "rocket body"]].sum(axis=1), 1)
    pair = sample.iloc[[0, 1]].reset_index(drop=True)
    alone = debris.families(pair, orbit_features(pair))
    assert (alone["excess"].abs() < 1e-3).all() and (alone["so named"] == 1).all()
    assert set(alone["launch"]) == set(pair["launch_id"]) and (alone["its share"] == 1).all()


def test_a_prototype_without_objects_has_no_launch(sample):
    far = torch.full((1, 4), 50.0, dtype=torch.float64)
    table = debris.families(sample, torch.cat([orbit_features(sample)[:1], far]))
    assert sorted(table["objects"]) == [0, len(sample)] and table["launch"].isna().sum() == 1


def test_matched_accuracy_ignores_what_clusters_are_called():
    types = np.array(["a", "a", "b", "b", "c"])
    assert debris.matched_accuracy(types, np.array([2, 2, 0, 0, 1])) == 1
    assert debris.matched_accuracy(types, np.array([2, 2, 2, 0, 1])) == pytest.approx(0.8)
    assert debris.matched_accuracy(types, np.zeros(5, dtype=int)) == pytest.approx(0.4)
    assert debris.matched_accuracy(types, np.array([0, 1, 2, 3, 4])) == pytest.approx(0.6)  # each type one cluster only


def test_clusterings_repeat_and_say_what_they_found(sample):
    names = ["annealed prototypes", "K-means", "K-means, best of ten", "Gaussian mixture"]
    first, second = (debris.compare_clusterings(sample, 4, 2, 1, names).drop(columns="seconds") for _ in range(2))
    pd.testing.assert_frame_equal(first, second)
    assert list(first["method"]) == [name for name in names for _ in range(2)]
    summary = debris.summarise_clusterings(first.assign(seconds=1.0)).loc[4]
    assert summary.loc["annealed prototypes", "agreement"] == pytest.approx(1)
    assert summary.loc["K-means, best of ten", "cost"] <= summary.loc["K-means", "cost"] + 1e-9
    assert (first["purity"] >= first["accuracy"] - 1e-12).all() and first["cost"].between(0, 1).all()
    bank = anneal(orbit_features(sample), 4, end=debris.COLDEST)
    assert first["cost"][0] == pytest.approx(hard_cost(orbit_features(sample), bank[None]).item(), rel=1e-4)


def test_more_starts_of_k_means_cost_no_more(sample):
    names = ["K-means, best of ten", "K-means, best of 100"]
    costs = debris.compare_clusterings(sample, 12, 2, 0, names).groupby("method")["cost"].max()
    assert costs[names[1]] < costs[names[0]]


def test_accuracy_is_shown_only_for_as_many_clusters_as_types(sample):
    tables = [debris.compare_clusterings(sample, count, 2, 0, ["K-means"]) for count in (3, 4)]
    summary = debris.summarise_clusterings(pd.concat(tables))
    accuracy = summary["accuracy"].tolist()
    assert accuracy[0] == pytest.approx(tables[0]["accuracy"].mean()) and math.isnan(accuracy[1])
    assert summary["accuracy range"].isna().tolist() == [False, True]


def test_descent_lowers_the_cost(sample):
    table = debris.compare_clusterings(sample, 4, 2, 0, ["prototypes by descent", "K-means"])
    costs = table.groupby("method")["cost"].max()
    assert costs["prototypes by descent"] < 2.5 * costs["K-means"]


def test_bad_comparisons_are_refused(sample):
    with pytest.raises(ValueError, match="starts: expected 2 or more, .* got 1"):
        debris.compare_clusterings(sample, 3, 1)
    with pytest.raises(ValueError, match="methods: expected some of annealed .* got .'k-means'"):
        debris.compare_clusterings(sample, 3, 2, methods=["k-means"])


def test_votes_learn_what_a_bank_can_tell_and_no_more():
    generator = torch.Generator().manual_seed(0)
    tokens = torch.rand(600, 2, generator=generator) * 2 - 1
    labels = np.where((tokens[:, 0] * tokens[:, 1] > 0).numpy(), "same", "other")  # not linear
    few, many = (debris_types.PrototypeVotes(k, ratio=0.02, steps=300).fit(tokens, labels) for k in (1, 16))
    right = [(model.predict(tokens) == labels).mean() for model in (few, many)]
    assert right[0] < 0.65 and right[1] > 0.93
    torch.testing.assert_close(many(tokens).exp().sum(-1), torch.ones(600))


def test_the_loss_of_votes_is_cross_entropy_and_a_little_l_q():
    tokens = torch.randn(50, 3, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(50) % 2
    model = debris_types.PrototypeVotes(5, steps=1, loss_weight=0.3).fit(tokens, labels.numpy())
    by_hand = torch.nn.functional.nll_loss(model(tokens), labels)
    by_hand = by_hand + 0.3 * decompose(tokens, model.prototypes, model.temperature).total / 3
    torch.testing.assert_close(model.loss(tokens, labels), by_hand)


def test_weighing_classes_alike_finds_the_rare_one():
    tokens = torch.randn(2000, 1, generator=torch.Generator().manual_seed(2))
    rare = (torch.arange(2000) % 20 == 0).numpy()
    tokens[torch.from_numpy(rare)] += 1.0
    answers = [debris_types.PrototypeVotes(8, balanced=b).fit(tokens, rare).predict(tokens) for b in (False, True)]
    assert answers[0].sum() < 0.2 * answers[1].sum()


def test_votes_repeat_and_leave_the_random_state_alone(sample):
    x, y = orbit_features(sample), sample["type"].to_numpy()
    torch.manual_seed(0)
    first = debris_types.PrototypeVotes(8, steps=20, seed=3).fit(x, y).predict(x)
    after = torch.rand(1)
    torch.manual_seed(0)
    assert torch.equal(after, torch.rand(1))
    assert (debris_types.PrototypeVotes(8, steps=20, seed=3).fit(x, y).predict(x) == first).all()


def test_no_launch_is_on_two_sides(sample, monkeypatch):
    seen, make = [], debris_types.split_by_launch
    monkeypatch.setitem(
        debris_types.SPLITS, "by launch", lambda *args: seen.append((args[0], make(*args))) or seen[-1][1]
    )
    debris_types.score_split(sample, "nearest neighbours", "by launch", 0, candidates=2)
    (whole, (train, test)), (part, (inner, validation)) = seen
    assert len(part) == len(train) and set(part["norad"]) == set(whole["norad"].iloc[train.numpy()])
    sides = [set(f["launch_id"].iloc[i.numpy()]) for f, i in ((part, inner), (part, validation), (whole, test))]
    assert sum(map(len, sides)) == len(set.union(*sides)) == whole["launch_id"].nunique()


def test_the_candidate_is_chosen_on_validation_data_alone(sample, monkeypatch):
    class Fixed:
        def __init__(self, answer):
            self.answer = answer

        def fit(self, x, labels):
            self.labels = labels
            return self

        def predict(self, x):
            return np.full(len(x), self.answer)

    choices = [lambda seed, a=a: Fixed(a) for a in ("ROCKET BODY", "DEBRIS")]
    monkeypatch.setitem(debris_types.CANDIDATES, "fixed", choices)
    row = debris_types.score_split(sample, "fixed", "random", 0, candidates=2)
    assert row["chosen"] == 1 and row["test_share"] == pytest.approx(0.3, abs=0.01)
    assert debris_types.score_split(sample, "fixed", "random", 0)["chosen"] == 0


def test_classifiers_at_reduced_size(sample):
    methods = ["majority", "prototypes", "nearest neighbours"]
    table = debris_types.compare_classifiers(sample, [0, 1], methods=methods)
    assert len(table) == 2 * 2 * 3
    summary = debris_types.summarise_splits(table)
    assert list(summary.index) == methods
    assert summary.loc["majority", "by launch"] < 0.3 < summary.loc["prototypes", "random"]
    by_hand = table[table["split"] == "random"].groupby("method")["macro_f1"].mean()
    by_hand = by_hand - table[table["split"] == "by launch"].groupby("method")["macro_f1"].mean()
    np.testing.assert_allclose(summary["flattered by"], by_hand[methods])
    pairs = table.pivot(index="seed", columns=["split", "method"], values="macro_f1")
    spread = (pairs["random"] - pairs["by launch"]).std()[methods]
    width = 12.706204736 * math.sqrt(1 / 2 + 3 / 7) * spread  # t of one degree of freedom
    np.testing.assert_allclose(summary["+- (added)"], width)


def test_a_larger_bank_is_one_more_candidate_by_launch(sample, monkeypatch):
    small = debris_types.partial(debris_types.PrototypeVotes, num_prototypes=4, steps=5)
    monkeypatch.setitem(debris_types.EXTRA, debris_types.LARGER, [small, *debris_types.CANDIDATES["majority"]])
    larger = debris_types.compare_classifiers(sample, [0, 1], 2, [debris_types.LARGER], ["by launch"])
    assert set(larger["split"]) == {"by launch"} and len(larger) == 2
    table = debris_types.compare_classifiers(sample, [0, 1], methods=["majority", "nearest neighbours"])
    summary = debris_types.summarise_larger(table, larger)
    known = table[(table["split"] == "by launch") & (table["method"] == "nearest neighbours")]["macro_f1"]
    gain = larger["macro_f1"].mean() - known.mean()
    assert list(summary.index) == ["nearest neighbours", debris_types.LARGER]
    assert summary.loc["nearest neighbours", "gain of larger"] == pytest.approx(gain)
    assert debris_types.EXTRA.keys().isdisjoint(debris_types.CANDIDATES)


def test_the_score_without_low_orbits_leaves_them_out(sample, monkeypatch):
    monkeypatch.setattr(debris_types, "LEAK", 0.0)
    row = debris_types.score_split(sample, "nearest neighbours", "by launch", 0)
    assert row["f1_without_low"] == row["macro_f1"]
    monkeypatch.setattr(debris_types, "LEAK", 92.0)
    assert debris_types.score_split(sample, "nearest neighbours", "by launch", 0)["f1_without_low"] < row["macro_f1"]


def test_the_chance_of_a_sibling_by_counting():
    launches, tested = np.array(list("aaabbc")), 3
    found = debris_types.sibling_chance(launches, tested)
    alone = [1 - (2 / 5) * (1 / 4), 1 - 2 / 5, 0]  # the product of the chapter, for m = 3, 2, 1
    np.testing.assert_allclose(found, [alone[0]] * 3 + [alone[1]] * 2 + [alone[2]], atol=1e-12)
    assert (debris_types.sibling_chance(launches, 2)[:3] == 1).all()  # three cannot all be among two
    bound = 1 - (tested / 6) ** (np.array([3, 3, 3, 2, 2, 1]) - 1)
    assert (found >= bound - 1e-12).all()


def test_whom_one_neighbour_asks(sample):
    table = debris_types.compare_siblings(sample, range(3))
    assert table.loc["by launch", ["has sibling", "expected", "asks sibling"]].eq(0).all()
    row = table.loc["random"]
    assert row["has sibling"] == pytest.approx(row["expected"], abs=0.05) and row["asks sibling"] > 0
    total = row["asks sibling"] * row["right then"] + (1 - row["asks sibling"]) * row["right else"]
    assert row["accuracy"] == pytest.approx(total, abs=0.01)


def test_agreement_is_with_the_other_starts(sample):
    table = debris.compare_clusterings(sample, 12, 2, 3, ["K-means"])
    tokens = orbit_features(sample).numpy()
    runs = [KMeans(12, n_init=1, random_state=300 + i).fit(tokens).labels_ for i in range(2)]
    between = adjusted_rand_score(*runs)
    assert between < 0.99 and table["agreement"].tolist() == pytest.approx([between] * 2)


def test_the_stored_runs_are_complete():
    clusters, types, larger = (results.stored(f"debris{name}") for name in ("_clusters", "", "_larger"))
    assert len(clusters["table"]) == 2 * 6 * 10 and set(clusters["table"]["K"]) == {3, 12}
    assert len(types["table"]) == 2 * 10 * len(debris_types.CANDIDATES)
    assert len(larger["table"]) == 10 and set(larger["table"]["method"]) == {debris_types.LARGER}
    for record in (clusters, types, larger):
        assert record["settings"]["objects"] == 18048 and record["date"] and record["device"]
        assert record["command"] == "python -m ddcl_lite.experiments.debris"


def test_what_chapter_10_says_of_the_stored_clusterings():
    table = results.stored("debris_clusters")["table"]
    summary, three = debris.summarise_clusterings(table), table[table["K"] == 3]
    for count in (3, 12):
        annealed, best = (summary.loc[(count, name)] for name in ("annealed prototypes", "K-means, best of ten"))
        assert (
            annealed["agreement"] > 0.999 and annealed["cost"] > best["cost"] and annealed["seconds"] > best["seconds"]
        )
        assert summary.loc[(count, "K-means"), "agreement"] < 0.99
        hundred = summary.loc[(count, "K-means, best of 100")]
        assert hundred["highest cost"] < annealed["cost"]
        assert hundred["seconds"] < {3: 1.1, 12: 0.9}[count] * annealed["seconds"]  # close for three clusters
    hundred = table[table["method"] == "K-means, best of 100"].groupby("K")
    assert hundred["agreement"].mean()[3] > 0.999 > hundred["agreement"].mean()[12] > 0.95
    assert (hundred["cost"].get_group(12).round(5).value_counts() == [9, 1]).all()
    gain = summary["accuracy"][3] - 10964 / 18048
    assert gain["annealed prototypes"] < -0.05 < 0.02 < gain["K-means, best of ten"] < 0.04
    assert (summary["purity"][3] > 10964 / 18048).all()
    assert summary.loc[(3, "prototypes by descent"), "accuracy"] > summary.loc[(3, "K-means, best of ten"), "accuracy"]
    assert summary.loc[(3, "annealed prototypes"), "accuracy"] < 10964 / 18048
    ends = three[three["method"] == "K-means"].round({"cost": 3, "accuracy": 2})
    ends = ends[["cost", "accuracy"]].drop_duplicates().sort_values("cost")
    assert (
        len(ends) == 3 and ends["accuracy"].idxmax() == ends["cost"].idxmax() and np.ptp(ends["accuracy"]) > 5 * 0.016
    )


def test_what_chapter_10_says_of_larger_banks():
    scores, larger = (results.stored(name)["table"] for name in ("debris", "debris_larger"))
    summary = debris_types.summarise_larger(scores, larger)
    gain, width = summary["gain of larger"], summary["+- (gain)"]
    assert abs(gain["prototypes"]) < 0.01 and gain["prototypes"] + width["prototypes"] < 0.03
    assert (gain < -width)[["boosting", "random forest"]].all()
    assert gain["logistic regression"] < width["logistic regression"] and set(larger["chosen"]) == {0, 1, 2, 3}


def test_what_chapter_10_says_of_the_stored_classifiers():
    table = results.stored("debris")["table"]
    summary = debris_types.summarise_splits(table)
    flattered = summary["flattered by"]
    assert summary["by launch"].sort_values().index.tolist() == [
        *("majority", "logistic regression", "prototypes", "nearest neighbours", "boosting", "random forest")
    ]
    memory = ["boosting", "nearest neighbours", "prototypes", "random forest"]
    added, gains = summary["+- (added)"], debris_types.flattery(table)
    assert (flattered > added)[memory].all() and flattered["logistic regression"] < 0
    for name in memory:
        pairs = debris_types.FLATTERY._replace(baseline=name).summarise(gains[gains["method"].isin(memory)])
        assert (pairs[f"gain over {name}"].abs() <= pairs["+- (gain)"]).all()  # not told apart, even singly
    known, random = (debris_types.COMPARISON.verdicts(table[table["split"] == split]) for split in debris_types.SPLITS)
    assert [name for name, line in known.items() if line.startswith("better")] == ["boosting", "random forest"]
    alone = debris_types.COMPARISON.summarise(table[table["split"] == "by launch"]).loc["nearest neighbours"]
    assert alone["gain over prototypes"] > alone["+- (gain)"] and known["nearest neighbours"].startswith("not told")
    assert known["logistic regression"].startswith("not told") and random["logistic regression"].startswith("worse")
    share = table[table["split"] == "by launch"]["test_share"]
    assert share.min() < 0.25 and share.max() > 0.5
    assert (summary["without low"] < summary["by launch"]).drop("majority").all()
    assert summary.loc["random forest", "by launch"] < 0.75
