"""Codes of long documents: the data, the levels' account, the probes, and what chapter 9 says of the stored run."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ddcl_lite as dl
from ddcl_lite.experiments import documents, levels, probes, results
from ddcl_lite.prototypes import dense


@pytest.fixture(scope="module")
def docs():
    """24 made-up documents of twelve presidents in turn, whose first feature drifts with the years."""
    generator = torch.Generator().manual_seed(0)
    years = torch.arange(1900, 1996, 4)
    presidents = torch.arange(24) // 2
    parties = ["Democratic" if row // 2 % 2 else "Republican" for row in range(24)]
    tokens = []
    for year in years.tolist():
        cloud = torch.randn(int(torch.randint(300, 700, (1,), generator=generator)), 6, generator=generator)
        cloud[:, 0] += (year - 1950) / 10
        tokens.append(cloud)
    wide = torch.stack([document.mean(0) for document in tokens])
    head = torch.stack([document[:512].mean(0) for document in tokens])
    return documents.Documents(tokens, wide, head, years, presidents, parties, [str(year) for year in years])


def test_chosen_rows_span_the_presidents_and_hold_the_longest():
    presidents = [f"president {row // 3}" for row in range(60)]  # three messages each
    words = [100 + (row * 37) % 91 for row in range(60)]
    words[31] = 10_000
    rows = documents.choose(words, presidents)
    assert rows == sorted(set(rows)) and 31 in rows and len(rows) == 4 * 2 * 2 + 1
    for five in range(4):  # of each five in office, the two whose two shortest have the fewest words
        pairs = [sorted(words[3 * p : 3 * p + 3])[:2] for p in range(5 * five, 5 * five + 5)]
        taken = [words[row] for row in rows if row // 15 == five and row != 31]
        assert sum(taken) == sum(sorted(map(sum, pairs))[:2])


def test_presidents_do_not_cross_a_split_and_parties_are_on_both_sides(docs):
    for seed in range(5):
        known, test = documents.split(docs, 0.3, seed)
        assert not set(docs.presidents[known].tolist()) & set(docs.presidents[test].tolist())
        assert torch.equal(torch.cat([known, test]).sort().values, torch.arange(24))
        assert {docs.parties[row] for row in test.tolist()} == {"Democratic", "Republican"}
    train, validation = documents.split(docs, 0.25, 0, known)
    assert torch.equal(torch.cat([train, validation]).sort().values, known)


def test_reading_all_rows_as_one_document_is_a_step_of_em(docs):
    rows = torch.cat(docs.tokens)
    mass = torch.full((len(rows),), 1 / len(rows))
    start, _ = documents.train_level(rows, mass, 5, 0.3, 0, steps=0)
    after, temperature = documents.train_level(rows, mass, 5, 0.3, 0, steps=1)
    critical = float(dl.critical_temperature(rows, detach_assignment=True))
    assert float(temperature) == pytest.approx(0.3 * critical, rel=1e-4)
    torch.testing.assert_close(after, dl.em_step(rows, start, float(temperature)), atol=1e-4, rtol=1e-4)
    assert (after - start).abs().max() > 1e-2


def test_a_trained_hierarchy_reads_as_the_library_does_and_repeats(docs):
    first, again, other = (documents.train_hierarchy(docs.tokens[:8], (6, 3), 0.3, seed) for seed in (0, 0, 1))
    assert torch.equal(first.banks[1], again.banks[1]) and not torch.equal(first.banks[1], other.banks[1])
    vectors, masses = documents.read_all(first, docs.tokens[:3])
    for document, found, mass in zip(docs.tokens, vectors, masses):
        last = first.levels(document)[-1]
        torch.testing.assert_close(found, last.vectors)
        torch.testing.assert_close(mass, last.mass)
        torch.testing.assert_close((mass[:, None] * found).sum(0), document.mean(0), atol=1e-5, rtol=1e-4)


def test_the_second_bank_is_trained_on_what_the_first_hands_up(docs):
    readout = documents.train_hierarchy(docs.tokens[:8], (6, 3), 0.3)
    handed = [readout.levels(document)[0] for document in docs.tokens[:8]]
    rows, mass = torch.cat([level.vectors for level in handed]), torch.cat([level.mass for level in handed]) / 8
    bank, temperature = documents.train_level(rows, mass, 3, 0.3, 0)
    torch.testing.assert_close(readout.banks[1].data, bank, atol=1e-4, rtol=1e-4)
    assert float(temperature) == pytest.approx(float(readout.temperature[1]), rel=1e-4)


def test_an_account_balances_and_its_loss_is_the_one_of_the_dense_form(docs):
    readout = documents.train_hierarchy(docs.tokens[:8], (6, 3), 0.3)
    document = docs.tokens[0].double()
    table = levels.account(readout, document)
    torch.testing.assert_close(table["comes in"].tolist(), (table["kept"] + table["lost"]).tolist())
    torch.testing.assert_close(table["L_q"].tolist(), (table["lost"] + table["off"]).tolist())
    assert table["comes in"][0] == 1 and table["comes in"][1] == pytest.approx(table["kept"][0])
    parts = dense.decompose(document, readout.banks[0].double(), float(readout.temperature[0]))
    assert table["L_q"][0] == pytest.approx(parts.total.item() / dl.token_variance(document))
    vectors = readout.double().levels(document)[0].vectors
    by_hand = (
        (dl.assign(document, readout.banks[0], float(readout.temperature[0])).mean(0)[:, None])
        * (vectors - document.mean(0)).square()
    )
    assert table["kept"][0] == pytest.approx(by_hand.sum().item() / dl.token_variance(document))


def test_where_each_prototype_is_its_own_vector_the_loss_is_what_is_lost(docs):
    document, bank = docs.tokens[0].double(), docs.tokens[0][:5].double()
    for _ in range(400):
        bank = dl.em_step(document, bank, 1.0)
    readout = dl.HierarchicalReadout(6, [5], 1.0).double().requires_grad_(False)
    readout.banks[0].copy_(bank)
    table = levels.account(readout, document)
    assert table["off"][0] < 1e-6 and table["L_q"][0] == pytest.approx(table["lost"][0])


def test_codes_of_a_kind_have_the_same_size_and_sums_add_up_to_the_mean(docs):
    fixed = documents.fixed_codes(docs)
    learned = documents.learned_codes(docs, torch.arange(16), [0.3], 0)
    sizes = {name: next(iter(variants.values())).shape for name, variants in {**fixed, **learned}.items()}
    assert sizes.pop("mean") == sizes.pop("first 512 tokens") == sizes.pop("mean, 48 features") == (24, 6)
    assert sizes.pop("48 components of means") == (24, 5)  # a third of 16 rows
    assert sizes.pop("the year itself") == (24, 1) and set(sizes.values()) == {(24, 48)}
    for name in ("hierarchy", "one bank of 8", "hard hierarchy", "hard one bank of 8"):
        (sums,) = (code for variant, code in learned[name].items() if variant.startswith("sums"))
        torch.testing.assert_close(sums.unflatten(1, (8, 6)).sum(1), docs.wide, atol=1e-4, rtol=1e-4)
    chunks = fixed["8 chunk means"][""].unflatten(1, (8, 6))
    torch.testing.assert_close(chunks[0, 0], docs.tokens[0].tensor_split(8)[0].mean(0))
    statistics = fixed["mean and 7 quantiles"][""].unflatten(1, (8, 6))
    torch.testing.assert_close(statistics[0, 4], docs.tokens[0].quantile(0.5, 0, interpolation="nearest"))
    shares = learned["bag of 384 codes"]["shares"]
    torch.testing.assert_close(shares.sum(1), torch.ones(24))


def test_compare_codes_finds_what_is_there(docs, monkeypatch):
    split, seen = documents.split, []
    monkeypatch.setattr(documents, "split", lambda *args: seen.append(args[1:3]) or split(*args))
    table = documents.compare_codes(docs, seeds=[0, 1], ratios=[0.3])
    assert len(table) == 2 * 13 and not table.duplicated(["code", "seed"]).any()
    years = documents.YEAR.summarise(table)["years off"]
    assert years["mean"] < 3 and years["the year itself"] < 1 < 8 < years["first 8 tokens"]
    assert (table.loc[table["code"] == "the year itself", "same president"] == 0.0).sum() == 0
    assert table["party"].between(0, 1).all() and table["within 25 years"].between(0, 1).all()
    again = documents.compare_codes(docs, seeds=[1], ratios=[0.3])
    assert seen[:4] == [(0.3, 0), (0.25, 0), (0.3, 1), (0.25, 1)]  # a seed is another split
    later = table[table["seed"] == 1].drop(columns="seconds").reset_index(drop=True)
    assert later.equals(again.drop(columns="seconds"))


def test_the_ridge_is_the_one_of_the_normal_equations():
    generator = torch.Generator().manual_seed(0)
    codes, fit = torch.randn(30, 4, generator=generator), torch.arange(20)
    codes = torch.cat([codes, torch.full((30, 1), 7.0)], 1)  # a number that never varies
    targets = codes[:, 0] * 2 + torch.randn(30, generator=generator)
    found = probes.ridge(codes, fit, targets)
    x, y = probes.standardise(codes, fit), targets.double()
    assert (x[:, 4] == 0).all() and x[fit].square().sum(1).mean() == pytest.approx(1)
    for strength, predictions in zip(probes.STRENGTHS, found):
        matrix = x[fit].T @ x[fit] + 20 * strength * torch.eye(5)
        weights = torch.linalg.solve(matrix, x[fit].T @ (y[fit] - y[fit].mean()))
        torch.testing.assert_close(predictions, x @ weights + y[fit].mean())


def test_a_probe_is_chosen_on_validation_rows_and_never_sees_test_targets():
    generator = torch.Generator().manual_seed(1)
    good, bad = torch.randn(60, 3, generator=generator), torch.randn(60, 3, generator=generator)
    targets = good.sum(1)
    everyone = torch.ones(60, dtype=torch.bool)
    rows = torch.arange(30), torch.arange(30, 45), torch.arange(45, 60)

    def task(targets):
        return probes.Task(targets, everyone, lambda p, at, level: -(p[at] - targets[at]).abs().mean().item())

    score, predictions, name = probes.try_ridge({"bad": bad, "good": good}, task(targets), *rows)
    assert name == "good" and score > -0.1
    other = torch.where(torch.arange(60) < 45, targets, 100.0)
    torch.testing.assert_close(probes.try_ridge({"bad": bad, "good": good}, task(other), *rows)[1], predictions)


def test_scores_by_hand():
    says, truth = torch.tensor([True, True, False, False, False]), torch.tensor([True, False, False, False, True])
    assert probes.balanced_accuracy(says, truth) == pytest.approx((1 / 2 + 2 / 3) / 2)
    scores, years = torch.tensor([3.0, 1.0, 2.0, 2.0, 0.0]), torch.tensor([0, 10, 90, 100, 105])
    assert probes.concordance(scores, truth, years, 25) == pytest.approx(1 / 3)  # 3 > 1; 0 < 2 twice
    assert torch.tensor(probes.concordance(scores, truth, years, 4)).isnan()
    places = torch.tensor([[0.0], [1.0], [1.5], [9.0], [9.1], [50.0]])
    groups = torch.tensor([0, 0, 1, 1, 1, 2])
    everyone = torch.arange(6)
    hits = probes.nearest_is_of_the_same_group(places, groups, everyone, everyone)
    assert hits == pytest.approx(3 / 5)  # 0, 3 and 4; the last is alone in its group


def test_whitened_components_have_unit_variance_and_no_more_than_there_are():
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(3, 10, generator=generator, dtype=torch.float64)
    codes = torch.randn(40, 3, generator=generator, dtype=torch.float64) @ directions
    white = probes.whiten(codes, torch.arange(30), 8)
    assert white.shape == (40, 3)
    torch.testing.assert_close(white[:30].mT @ white[:30], torch.eye(3, dtype=torch.float64))


def test_a_metric_is_chosen_on_validation_rows_and_never_by_test_rows():
    generator = torch.Generator().manual_seed(2)
    groups = torch.arange(48) // 4
    good = torch.randn(12, 5, generator=generator)[groups] + 0.1 * torch.randn(48, 5, generator=generator)
    train, validation, test = torch.arange(16), torch.arange(16, 32), torch.arange(32, 48)
    misled = good.clone()
    misled[validation] = torch.randn(16, 5, generator=generator)  # good everywhere but where it is validated
    noise = torch.randn(48, 5, generator=generator)
    noise[validation] = good[validation]
    share, chosen = probes.try_neighbours({"a": misled, "b": noise}, groups, train, validation, test, ["distance"])
    assert chosen == "b, distance" and share < 0.5
    share, chosen = probes.try_neighbours({"a": misled, "b": good}, groups, train, validation, test, ["cosine"])
    assert share == 1 and chosen == "b, cosine"
    found, lengths = probes.components(good, train, 3)
    torch.testing.assert_close(found[train].norm(dim=0), lengths)
    assert (lengths.diff() < 0).all()


def test_a_loss_let_through_is_lowered_by_making_vectors_alike(docs):
    readout = documents.train_hierarchy(docs.tokens, (12, 3), 0.2)
    batch = torch.stack([documents.spaced(document, 100) for document in docs.tokens])
    cut, through = (levels.train_together(readout, batch, 3, held, 40) for held in (True, False))
    assert cut.iloc[0].tolist() == pytest.approx(through.iloc[0].tolist(), rel=1e-5)
    last = cut.iloc[-1], through.iloc[-1]
    assert last[1]["L_q, level 2"] < last[0]["L_q, level 2"] and last[1]["kept, level 1"] < last[0]["kept, level 1"]
    assert min(table["V, level 2"].min() for table in (cut, through)) >= 0
    by_library = readout.levels(batch)
    unit = sum(dl.token_variance(z) for z in batch) / len(batch)
    assert cut["L_q, level 2"][0] == pytest.approx(by_library[1].parts.total.item() / unit, rel=1e-5)


def test_more_vectors_keep_more_and_a_documents_own_means_the_most(docs):
    readout = documents.train_hierarchy(docs.tokens, (12, 8), 0.1)
    table = levels.variance_kept(docs.tokens[:6], {"a": readout})
    kept = table.pivot(index="document", columns="code", values="kept")
    assert (kept["a, level 1"] > kept["a, level 2"]).all()
    assert (kept["8 K-means of its own"] > kept["a, level 2"]).all()
    assert kept.min(axis=None) > 0 and kept.max(axis=None) < 1
    parts, mass = levels.chunks(docs.tokens[0], 8)
    torch.testing.assert_close((mass[:, None] * parts).sum(0), docs.tokens[0].mean(0))


PEAKS = """
import torch, ddcl_lite as dl
readout = dl.HierarchicalReadout({dim}, {sizes}).requires_grad_(False)
for length in ({first}, 2 * {first}):
    readout(torch.ones(length, {dim}))
    print(1024 * int(open("/proc/self/status", encoding="utf-8").read().split("VmHWM:")[1].split()[0]))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak where Linux keeps it")
@pytest.mark.parametrize(("dim", "sizes", "first"), [(48, [64, 8], 300_000), (384, [8], 100_000)])
def test_the_peak_of_a_process_grows_by_about_the_bytes_that_were_counted(dim, sizes, first):
    code = PEAKS.format(dim=dim, sizes=sizes, first=first)
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    before, after = map(int, out.split())
    assert after - before == pytest.approx(levels.stored_bytes(first, sizes, dim), rel=0.2)


def test_lengths_are_halves():
    assert levels.halves(torch.zeros(800, 2), 4) == [100, 200, 400, 800]


def test_what_chapter_9_says_of_the_stored_run():
    record = results.stored("documents")
    table, settings = record["table"], record["settings"]
    assert settings["documents"] == 249 and len(table) == documents.SPLITS * 13
    assert set(table["seed"]) == set(range(documents.SPLITS))
    assert record["command"] == "python -m ddcl_lite.experiments.documents"
    codes = [name for name in table["code"].unique() if name != "the year itself"]

    contest = table[table["code"].isin(codes)]
    years = documents.YEAR.summarise(contest)
    assert years["years off"].idxmin() == "mean"
    banks = ["hierarchy", "one bank of 8", "hard hierarchy", "hard one bank of 8"]
    worse = years.index[years["gain over mean"] > years["+- (gain)"]]
    assert set(codes) - set(worse) == {"mean", *banks, "48 components of means", "bag of 384 codes"}
    together = {name for name, line in documents.YEAR.verdicts(contest).items() if line.startswith("worse")}
    assert together == {"mean and 7 quantiles", "first 512 tokens", "first 8 tokens"}
    assert years.loc["48 components of means", "years off"] < years.loc[banks, "years off"].min()
    assert years.loc[banks, "years off"].max() - years.loc[banks, "years off"].min() < 0.5

    rivals = table[table["code"].isin([*banks, "mean and 7 quantiles", "8 chunk means"])]
    against = documents.YEAR._replace(baseline="hierarchy")
    gains = against.summarise(rivals)
    apart = gains.index[gains["gain over hierarchy"].abs() > gains["+- (gain)"]]
    assert list(apart) == ["mean and 7 quantiles"] and gains.loc[apart[0], "gain over hierarchy"] > 0
    assert all(line.startswith("not told apart") for line in against.verdicts(rivals).values())

    same = documents.NEIGHBOUR.summarise(table)
    assert same["same president"].idxmax() == "the year itself"
    for score, apart in (("party", []), ("within 25 years", ["8 chunk means"])):
        task, some = documents.PARTY._replace(score=score), table.dropna(subset=[score])
        party, corrected = task.summarise(some), task.summarise(some, 1 - 0.05 / len(codes))
        assert list(party.index[(party[score] - 0.5).abs() > party["+-"]]) == apart
        assert ((corrected[score] - 0.5).abs() < corrected["+-"]).all()

    kept = settings["kept"]["mean"]
    stack, alone = kept["T = 0.2 T_c, level 2"], kept["one bank of 8, T = 0.2 T_c, level 1"]
    assert kept["8 chunk means"] < stack / 3 and stack < alone
    assert kept["8 chunk means"] < kept["hard, level 2"] / 3
    assert kept["hard, level 2"] < kept["one bank of 8, hard, level 1"] < kept["8 K-means of its own"]
    assert kept["T = 0.8 T_c, level 2"] < kept["T = 0.05 T_c, level 2"] < stack
    assert alone < kept["8 K-means of its own"] < kept["T = 0.8 T_c, level 1"] < kept["T = 0.05 T_c, level 1"]
    assert settings["growth"] == pytest.approx(1, abs=0.1)
