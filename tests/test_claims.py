"""Every claim over five seeds, and the machinery that registers, measures and shows them."""

import json
import subprocess
import sys

import pytest
import torch

from ddcl_lite import claims
from ddcl_lite.claims import CLAIMS, Evidence, Result, cards, find, sorted_ids
from ddcl_lite.claims.__main__ import main
from ddcl_lite.claims.registry import Claim, claim


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("id", sorted_ids())
def test_the_evidence_supports_the_verdict(id, seed):
    result = find(id).measure(seed)
    missed = [item for item in result.evidence if not item.supports]
    assert result.supported, missed
    assert any(item.needed for item in result.evidence), "a claim must be able to fail"


@pytest.mark.gpu
@pytest.mark.parametrize("id", sorted_ids())
def test_the_evidence_supports_the_verdict_on_a_gpu(id):
    assert find(id).measure(0, "cuda").supported


@pytest.mark.parametrize("id", ["D1", "D2", "D3", "D15", "D18", "D23"])
def test_the_same_seed_gives_the_same_numbers_and_another_seed_others(id):
    first, again, other = (find(id).measure(seed).evidence for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_the_verdicts_and_chapters_of_the_ledger():
    assert {id: CLAIMS[id].verdict for id in sorted_ids()} == {
        "D1": "holds",
        "D2": "holds",
        "D3": "holds",
        "D4": "fails",
        "D5": "holds",
        "D6": "conditional",
        "D7": "holds",
        "D8": "holds",
        "D9": "conditional",
        "D10": "conditional",
        "D11": "conditional",
        "D12": "conditional",
        "D13": "conditional",
        "D14": "fails",
        "D15": "conditional",
        "D16": "measured",
        "D17": "measured",
        "D18": "holds",
        "D19": "holds",
        "D20": "measured",
        "D21": "measured",
        "D22": "measured",
        "D23": "conditional",
        "U1": "holds",
        "U2": "conditional",
        "U3": "conditional",
        "U4": "fails",
        "U5": "holds",
        "U6": "holds",
        "U7": "holds",
        "U8": "holds",
        "U9": "fails",
        "U10": "holds",
        "U11": "conditional",
        "U12": "conditional",
        "U13": "holds",
        "U14": "measured",
        "U15": "measured",
        "U16": "holds",
    }


@pytest.mark.parametrize("id", sorted_ids())
def test_measuring_leaves_no_trace_in_the_random_state_that_a_chapter_sees(id):
    torch.manual_seed(3)
    find(id).measure(0)
    after = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(after, torch.rand(1))


def test_evidence_supports_within_its_bounds_only():
    assert Evidence("x", 1.0, at_least=1.0, at_most=2.0).supports
    assert not Evidence("x", 0.9, at_least=1.0).supports
    assert not Evidence("x", 2.1, at_most=2.0).supports
    assert not Evidence("x", float("nan"), at_most=2.0).supports
    assert Evidence("x", -5.0).supports and Evidence("x", -5.0).needed == ""


def failing():
    body = lambda seed, device: [Evidence("a < b & c", 3.0, at_most=2.0)]  # noqa: E731
    return Claim("D99", "a statement <b>", "fails", "a reading", 1, body)


def test_a_claim_without_evidence_is_not_supported():
    assert not Result(failing(), []).supported


def test_an_unsupported_claim_stops_the_chapter_and_the_ledger(monkeypatch, capsys):
    monkeypatch.setitem(CLAIMS, "D99", failing())
    with pytest.raises(AssertionError, match="D99.*a < b"):
        cards.card("D99")
    monkeypatch.setattr(cards, "sorted_ids", lambda: ["D1", "D99"])
    with pytest.raises(AssertionError, match="D99"):
        cards.ledger()
    assert main(["D1", "D99"]) == 1
    assert "D99 fails (NOT SUPPORTED)" in capsys.readouterr().out


def test_a_card_is_escaped_and_says_whether_the_bound_was_met():
    shown = cards.card_html(failing().measure())
    assert "a &lt; b &amp; c: 3 <small>(needed: at most 2; MISSED)</small>" in shown
    assert "a statement &lt;b&gt;" in shown
    assert "met" in cards.card_html(find("D2").measure())


def test_registering_twice_or_with_an_unknown_verdict_is_refused():
    with pytest.raises(ValueError, match="verdict: expected one of holds, .* got 'true'"):
        claim("D98", "s", "true", "r", 1)
    with pytest.raises(ValueError, match="id: D1 is registered already"):
        claim("D1", "s", "holds", "r", 1)


def test_ids_are_sorted_by_number():
    assert sorted_ids()[:4] == ["D1", "D2", "D3", "D4"]


def test_an_unknown_id_lists_the_known_ones(capsys):
    with pytest.raises(ValueError, match="unknown claim 'X9'; known: D1, D2, D3, D4, D5, .*, U16"):
        claims.card("X9")
    with pytest.raises(SystemExit) as stop:
        main(["X9"])
    assert stop.value.code == 2 and "known: D1, D2" in capsys.readouterr().err


def test_the_command_line_prints_json():
    command = [sys.executable, "-m", "ddcl_lite.claims", "D1", "D18", "--seed", "2", "--json"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    records = json.loads(out)
    assert [record["id"] for record in records] == ["D1", "D18"]
    assert set(records[0]) == {"id", "statement", "verdict", "reading", "chapter", "supported", "evidence"}
    assert records[0]["supported"] is True
    assert records[0]["evidence"] == find("D1").measure(2).as_dict()["evidence"]
