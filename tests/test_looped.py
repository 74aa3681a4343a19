"""Looped layers: the loop, its measures, what theory says next to consensus, and what the chapter says of the run."""

import copy
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from ddcl_lite import cluster_count, effective_rank, mean_cosine
from ddcl_lite.data import load_encoder
from ddcl_lite.data.minilm import Layer
from ddcl_lite.experiments import looped, looped_bank
from ddcl_lite.experiments.looped import VARIANTS, Sentences, fate, loop, loop_layers, measure, relative_spread, step
from ddcl_lite.experiments.results import stored


@pytest.fixture(scope="module")
def model():
    return load_encoder()


@pytest.fixture(scope="module")
def chosen(model):
    return looped.sentences(model, 6, seed=1, pool=400)


@pytest.fixture
def layer():
    """A small random layer in float64, strong enough to have an attention that matters."""
    small = Layer(dim=12, hidden=24, heads=3).double().requires_grad_(False)
    for weight in small.parameters():
        if weight.dim() == 2:
            weight.mul_(2)
    return small


def halving():
    """A layer without attention that halves every token."""
    zero = lambda x, mask=None: torch.zeros_like(x)  # noqa: E731
    return SimpleNamespace(attention=zero, norm1=lambda x: x / 2, mlp=zero, norm2=lambda x: x)


def test_sentences_fill_the_classes_and_see_what_each_layer_sees(model, chosen):
    lengths = chosen.mask.sum(1).tolist()
    assert lengths == sorted(lengths)
    assert all(low <= n < high for n, low, high in zip(lengths, looped.CLASSES, looped.CLASSES[1:]))
    real = chosen.mask[0]
    after = model.layers[2](chosen.states[2][:1, real])
    torch.testing.assert_close(after, chosen.states[3][:1, real], atol=1e-4, rtol=0)
    again = looped.sentences(model, 6, seed=1, pool=400)
    assert torch.equal(again.ids, chosen.ids)
    assert not torch.equal(looped.sentences(model, 6, seed=2, pool=400).ids[-1][:4], chosen.ids[-1][:4])


@pytest.mark.parametrize("count", [0, 7, -6])
def test_sentences_refuses_a_count_that_fills_no_classes(model, count):
    with pytest.raises(ValueError, match=f"count: expected a positive multiple of 6, got {count}"):
        looped.sentences(model, count)
    with pytest.raises(ValueError, match="pool: 20 snippets hold"):
        looped.sentences(model, 60, pool=20)


def test_bare_takes_out_the_first_and_the_last_token(chosen):
    bare = chosen.bare()
    assert bare.mask.sum(1).tolist() == [n - 2 for n in chosen.mask.sum(1)]
    for ids, inner, mask in zip(chosen.ids, bare.ids, bare.mask):
        assert torch.equal(inner[mask], ids[ids != 0][1:-1])
    assert torch.equal(bare.states[3][0, 0], chosen.states[3][0, 1])


def test_the_variants_are_what_they_say(layer):
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    a = layer.attention(x)
    y = layer.norm1(x + a)
    torch.testing.assert_close(step(layer, x), layer(x))
    torch.testing.assert_close(step(layer, x, None, VARIANTS["no MLP"]), y)
    torch.testing.assert_close(step(layer, x, None, VARIANTS["attention alone"]), layer.norm1(a))
    bare = layer.norm2(layer.mlp(layer.norm1(a)))
    torch.testing.assert_close(step(layer, x, None, VARIANTS["no residual"]), bare)


@pytest.mark.parametrize(("index", "loops"), [(2, 12), (4, 80)])
def test_the_shortcuts_of_the_loop_change_nothing(model, chosen, index, loops):
    *_, end = loop(model.layers[index], chosen.states[index], chosen.mask, loops)
    for row in (0, 3):
        real = chosen.mask[row]
        x = chosen.states[index][row, real][None]
        for _ in range(loops):
            x = model.layers[index](x)
        torch.testing.assert_close(end[row, real], x[0], atol=2e-4, rtol=0)


def test_the_loop_adds_the_labels_and_leaves_its_input_alone(layer):
    x, labels = torch.randn(2, 2, 4, 12, dtype=torch.float64)
    mask, kept = torch.ones(2, 4, dtype=torch.bool), x.clone()
    states = list(loop(layer, x, mask, 2, labels=labels))
    torch.testing.assert_close(states[2], layer(layer(x + labels) + labels))
    assert len(states) == 3 and torch.equal(x, kept)


def test_measures_of_a_padded_batch_are_those_of_each_sentence(chosen):
    found = measure(chosen.states[4], chosen.mask)
    z = chosen.states[4][1, chosen.mask[1]]
    assert found["cosine"][1] == pytest.approx(mean_cosine(z))
    assert found["rank"][1] == pytest.approx(effective_rank(z))
    assert found["clusters"][1] == cluster_count(z)
    variance = (z - z.mean(0)).square().sum(-1).mean()
    assert found["spread"][1] == pytest.approx(float((variance / z.square().sum(-1).mean()).sqrt()), rel=1e-5)


def test_the_first_token_is_apart_or_not():
    x = torch.tensor([[[0.0, 1], [1, 0], [1, 0]], [[1, 0], [0, 1], [1, 0]], [[0, 1], [1, 0], [0, 1]]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 1], [1, 1, 0]], dtype=torch.bool)
    found = measure(x, mask)
    assert found["first apart"] == [True, False, True]  # the third: its equal is padding
    assert found["clusters"] == [2, 2, 2]


@pytest.mark.parametrize(
    ("clusters", "motion", "motion2", "words"),
    [
        (1, 0.0, 0.0, "point, at rest"),
        (1, 2.0, 1e-5, "point, two-cycle"),
        (2, 0.1, 0.1, "two points, moving"),
        (7, 1e-4, 1.0, "more, at rest"),
    ],
)
def test_fates(clusters, motion, motion2, words):
    assert fate(clusters, motion, motion2) == words


def test_motion_looks_one_and_two_loops_ahead():
    flip = halving()
    flip.norm1 = lambda x: -x
    x, mask = torch.randn(2, 5, 3), torch.ones(2, 5, dtype=torch.bool)
    table, end = looped.path(flip, x, mask, [0, 3])
    assert table["loop"].tolist() == [0, 0, 3, 3] and torch.equal(end, -x)
    assert table["motion"].tolist() == pytest.approx([2] * 4) and table["motion2"].max() == 0
    assert all(words.endswith("two-cycle") for words in table["fate"])


def test_loop_layers_starts_where_the_variant_says(model, chosen):
    usual, _ = loop_layers(model, chosen, [0, 1], layers=[1])
    assert usual["cosine"][0] == pytest.approx(mean_cosine(chosen.states[1][0, chosen.mask[0]]))
    early, _ = loop_layers(model, chosen, [0, 1], "from embeddings", layers=[1])
    assert early["cosine"][0] == pytest.approx(mean_cosine(chosen.states[0][0, chosen.mask[0]]))
    bare, _ = loop_layers(model, chosen, [0, 1], "no [CLS], [SEP]", layers=[1])
    assert (usual["tokens"] - bare["tokens"]).eq(2).all() and "content cosine" not in bare
    counts = looped.count_fates(usual)
    assert counts.to_numpy().sum() == 6  # the last loop only
    with pytest.raises(ValueError, match="variant: expected one of full, .*, got 'no norm'"):
        loop_layers(model, chosen, [1], "no norm")


def test_the_derivative_at_consensus_has_no_attention_in_it(layer):
    c = torch.randn(12, dtype=torch.float64)
    n = 4
    flat = lambda x: layer(x.unflatten(0, (n, 12)))  # noqa: E731
    D = torch.autograd.functional.jacobian(flat, c.repeat(n)).reshape(n, 12, n, 12)
    J = looped_bank.jacobian(layer, c)
    torch.testing.assert_close(looped_bank.jacobian(layer, c, shared=True), D.sum(2)[0])
    shaken = torch.randn(n, 12, dtype=torch.float64)
    shaken -= shaken.mean(0)
    torch.testing.assert_close(torch.einsum("idje,je->id", D, shaken), shaken @ J.T)
    DL = torch.autograd.functional.jacobian(lambda x: layer(x[None])[0], c)
    both = torch.cat([torch.linalg.eigvals(DL), *[torch.linalg.eigvals(J)] * (n - 1)])
    found = torch.linalg.eigvals(D.reshape(n * 12, n * 12))
    gaps = (both[:, None] - found).abs()
    assert gaps.amin(0).max() < 1e-4 and gaps.amin(1).max() < 1e-4  # multiple eigenvalues are ill-conditioned
    assert (J - D[0, :, 0]).abs().max() > 1e-3  # the part that a token shares with all


def test_growth_is_the_spectral_radius_at_rest_and_labels_come_back_linearly(model, chosen):
    layer = copy.deepcopy(model.layers[1]).double()
    found = looped_bank.consensus(layer, chosen.states[1][:1, 1].double(), 200, 50)
    point = found.points[0]
    assert found.motion[0] < 1e-9
    radius = torch.linalg.eigvals(looped_bank.jacobian(layer, point)).abs().max().item()
    assert found.growth[0].item() == pytest.approx(radius, rel=0.03)
    labels = 1e-4 * point.norm() * looped_bank.random_labels(7, 384).double()
    end = point.expand(1, 7, -1)
    for _ in range(60):
        end = layer(end + labels)
    content = end[0] - end[0].mean(0)
    predicted = looped_bank.response(layer, point, labels)
    assert (content - predicted).norm() < 1e-3 * content.norm()
    assert (end[0].mean(0) - point).norm() < 1e-2 * content.norm()  # the mean answers in second order only


def test_the_tables_of_theory_at_reduced_size(model, chosen):
    near = looped_bank.near_consensus(model, chosen, 2, 150, layers=(1,))
    assert near["least growth"][0] <= near["largest growth"][0] < 1 and near["error"][0] < 0.02
    assert near["radius"][0] < 1
    both = looped_bank.growth_check(model, chosen, 1, 40, layers=(2, 3))
    assert both["measured"].tolist() == pytest.approx(both["predicted"].tolist(), rel=0.05)
    fall = looped_bank.shrinking(model, chosen, layers=(5,), loops=60)
    assert (fall["measured"] / fall["predicted"]).median() == pytest.approx(1, abs=0.1)
    basin = looped_bank.basin(model, chosen, (0.03, 1.0), 30, layers=(2,))
    assert basin["point"].tolist()[1] == 0 < basin["point"].tolist()[0]


@pytest.mark.parametrize("kind", looped_bank.KINDS)
def test_labels_tell_tokens_apart_and_nothing_else(model, chosen, kind):
    labels = looped_bank.make_labels(model, chosen, kind)
    real = chosen.mask[..., None]
    assert labels.masked_select(~real).abs().sum() == 0
    assert (labels * real).sum(1).abs().max() < 1e-3
    torch.testing.assert_close(looped.length(labels, chosen.mask), torch.ones(6))
    same = torch.equal(labels[-1, 0], labels[-1, 2]), torch.equal(labels[-1, 0], labels[-1, 3])
    assert same == ((True, False) if kind == "threes" else (False, False))


def test_an_unknown_kind_of_label_is_refused(model, chosen):
    with pytest.raises(ValueError, match="kind: expected one of positions, .*, got 'prompt'"):
        looped_bank.make_labels(model, chosen, "prompt")


def test_injected_labels_are_measured_within_labels(model, chosen):
    table = looped_bank.inject(model, chosen, ("random", "threes"), (0.1,), 20, layers=(5,))
    assert len(table) == 12 and table[table["kind"] == "random"]["within"].isna().all()
    assert table[table["kind"] == "threes"]["within"].median() < 0.05
    quartiles = looped.summary(table, ["layer", "kind", "alpha"], ["spread", "within"])
    rows = table[table["kind"] == "threes"]["spread"]
    assert quartiles.set_index("kind")["spread q3"]["threes"] == pytest.approx(rows.quantile(0.75))


def test_a_bank_reads_tokens_that_shrink():
    x = torch.randn(3, 40, 4) + torch.tensor([10.0, 0, 0, 0])
    mask = torch.ones(3, 40, dtype=torch.bool)
    table = looped_bank.read_loops(halving(), x, mask, (0, 1, 2), ratio=0.2)
    assert table["all: T_c"].tolist() == pytest.approx([1, 1 / 4, 1 / 16], rel=1e-4)
    assert table["one: T_c"].tolist() == pytest.approx([1, 1 / 4, 1 / 16], rel=1e-4)
    assert table["one: share above"].tolist() == [0, 0, 1]  # 0.2 T_c against T_c / 4 and T_c / 16
    assert table["one: spread"][0] > 0.3 and table["one: spread"][2] < 0.01
    assert table["all: usage"][2] < table["all: usage"][0]  # held where the tokens were
    assert table["all: settled usage"][0] == table["all: usage"][0]
    assert table["all: settled usage"][1] > table["all: usage"][1]


def test_reading_with_labels_keeps_the_bank_apart(model, chosen):
    table = looped_bank.read_layers(model, chosen, (0, 40), alphas=(0.0, 0.5), layers=(4,)).set_index(["alpha", "loop"])
    assert table["one: share above"][0.0, 40] == 1 > table["one: share above"][0.5, 40]
    assert table["one: spread"][0.5, 40] > 0.1 > table["one: spread"][0.0, 40]


def test_precision_counts_agreement(model, chosen):
    table = looped.precision(model, chosen.first(2), [3], layers=[1, 2])
    assert table["clusters"].tolist() == [2] * 2 and table["sentences"].tolist() == [2] * 2


def test_exact_loops_take_no_shortcut():
    seen, halve = [], halving()
    halve.attention = lambda x, mask=None: seen.append(x.shape[1]) or torch.zeros_like(x)
    x, mask = torch.ones(1, 3, 2), torch.ones(1, 3, dtype=torch.bool)
    for exact, shapes in ((False, [3, 1, 1]), (True, [3, 3, 3])):
        list(loop(halve, x, mask, 3, exact=exact))
        assert seen == shapes
        seen.clear()


def test_the_stack_is_measured_at_every_depth(chosen):
    table = looped.stack(chosen)
    assert table["depth"].value_counts().to_dict() == dict.fromkeys(range(7), 6)
    summary = looped.summary(table, ["depth"], ["spread"])
    median = table[table["depth"] == 6]["spread"].median()
    assert summary.set_index("depth")["spread median"][6] == pytest.approx(median)
    assert isinstance(chosen.first(2), Sentences)


def test_what_the_chapter_says_of_the_stored_runs():
    run = stored("looped")
    table = run["table"]
    assert run["settings"]["sentences"] == 216 and run["settings"]["loops"] == 300 and len(table) == 6 * 216
    assert table["tokens"].min() >= 4 and table["tokens"].max() <= 80
    point = (table["clusters"] == 1).groupby(table["layer"]).mean()
    assert point[4] == point[5] == 1 and point[0] > 0.5 > point[[1, 2, 3]].max()
    near = stored("looped_consensus")["table"]
    assert near["largest growth"].max() < 1 and near["error"].max() < 0.02
    assert near["radius"].max() < 1
    growth = stored("looped_growth")["table"]
    assert set(growth["layer"]) == set(range(6))
    assert (growth["measured"] / growth["predicted"] - 1).abs().max() < 0.02
    basin = stored("looped_basin")["table"].set_index(["layer", "shrink"])["point"] / 24
    assert basin[:, 0.01].min() > 0.9 and basin[:, 1.0][[1, 2, 3]].max() < 0.5
    labels = stored("looped_labels")["table"].set_index(["layer", "kind", "alpha"])
    assert labels.drop(index=0.0, level="alpha")["spread q1"].min() > 0.03
    assert labels["within median"][:, "threes", 0.0].min() > 0.5 and labels["within q3"][4, "threes", 0.1] < 0.01
    none = stored("looped_paths")["table"].set_index(["layer", "loop"])["spread median"]
    for layer in (1, 3):
        assert labels["spread median"][layer, "positions", 0.5] < none[layer, 30]
    read = stored("looped_read")["table"].set_index(["layer", "alpha", "loop"])
    assert read["one: T_c"][4, 0.0, 100] < 1e-3 and read["all: T_c"][4, 0.0, 100] > 1
    assert read["all: settled usage"][4, 0.0, 30] > 0.9 > 0.5 > read["all: usage"][4, 0.0, 30]
    assert read["all: settled usage"][4, 0.0, 100] < 0.25
    assert read["one: share above"][4, 0.0, 100] == 1 and read["one: T_c"][4, 0.5, 100] > 0.2
    variants = stored("looped_variants")["table"]
    place = variants["fate"].str.startswith("point")
    share = variants[place].groupby(["variant", "layer"])["sentences"].sum() / 216
    assert share["no residual"].min() == share["no MLP"][0] == 1 and 4 not in share["no MLP"]
    rest = variants[variants["fate"].str.endswith("at rest")].groupby("variant")["sentences"].sum()
    assert rest["no MLP"] == 6 * 216 and rest["no residual"] == 216
    assert share["no [CLS], [SEP]"][2] > 0.8 and share["no [CLS], [SEP]"][[1, 3]].max() < 0.5
    assert variants.groupby(["variant", "layer"])["sentences"].sum().eq(216).all()
    full = variants[variants["variant"] == "full"].set_index(["layer", "fate"])["sentences"]
    assert full.to_dict() == table.groupby(["layer", "fate"]).size().to_dict()
    assert stored("looped_variants")["settings"]["loops"] == 300


def test_rounding_does_not_decide_the_fates():
    table = stored("looped_precision")["table"]
    assert isinstance(table, pd.DataFrame) and table["loop"].tolist() == [300] * 4
    assert (table[["clusters", "fate"]].min(axis=1) / table["sentences"]).min() == 1
    assert relative_spread(torch.ones(1, 3, 2), torch.ones(1, 3)) < 1e-6
