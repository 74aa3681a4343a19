"""`setup` and `progress`."""

import random
import time

import numpy as np
import pytest
import torch

from ddcl_lite.notebook import _Display, progress, setup


def test_setup_seeds_everything_and_says_what_to_expect(capsys):
    draws = []
    for _ in range(2):
        device = setup(3, "quick")
        draws.append((random.random(), np.random.rand(), torch.rand(1).item()))
    assert draws[0] == draws[1]
    assert device.type == ("cuda" if torch.cuda.is_available() else "cpu")
    out = capsys.readouterr().out
    assert "seed 3" in out and "half a minute" in out and str(device) in out


def test_another_seed_draws_other_numbers():
    setup(0)
    first = torch.rand(1)
    setup(1)
    assert not torch.equal(first, torch.rand(1))


@pytest.mark.skipif(torch.cuda.is_available(), reason="only a machine without a GPU is warned")
def test_full_scale_on_a_cpu_warns():
    with pytest.warns(UserWarning, match="made for a GPU"):
        setup(0, "full")


@pytest.mark.parametrize(
    "name, arguments",
    [("scale", (0, "huge")), ("seed", (-1, "quick")), ("seed", (1.5, "quick")), ("seed", (True, "quick"))],
)
def test_bad_arguments_are_named(name, arguments):
    with pytest.raises(ValueError, match=f"^{name}: expected .* got"):
        setup(*arguments)


def test_progress_yields_everything_and_is_silent_when_fast(capsys):
    assert list(progress("fast")(range(5))) == [0, 1, 2, 3, 4]
    assert capsys.readouterr().err == ""


def test_progress_shows_itself_after_three_seconds_and_clears(capsys):
    for _ in progress("slow")(range(4)):
        time.sleep(0.9)
    err = capsys.readouterr().err
    assert "slow" in err and err.endswith("\r")


def test_in_a_notebook_a_finished_bar_leaves_an_empty_output(monkeypatch):
    shown = []

    class Handle:
        def update(self, content):
            shown.append(content.data)

    def display(content, display_id):
        shown.append(content.data)
        return Handle()

    monkeypatch.setattr("IPython.display.display", display)
    out = _Display()
    for text in ("", "\r 10%", "\r 90%", "\r      ", "\r"):
        out.write(text)
    assert shown == ["<pre>10%</pre>", "<pre>90%</pre>", "", ""]
