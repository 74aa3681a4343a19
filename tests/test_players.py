"""The players, in a real browser: they compute what the library computes, and serve every reader."""

import functools
import json
import re
from contextlib import contextmanager

import matplotlib.pyplot as plt
import pytest
import torch

import ddcl_lite as dl
from ddcl_lite.experiments.forces import TERMS, expansion, follow, forces
from ddcl_lite.experiments.transition import four_blobs, groups, recording
from ddcl_lite.figures import Prototypes, Sphere, Transition
from ddcl_lite.figures.players.player import script
from ddcl_lite.figures.players.sphere import KERNELS, half_turns
from ddcl_lite.meanfield.sphere import ring, uniform

BETA, OFFSET = 2.0, 0.3
LIBRARY = {
    "usa": dl.Exponential(BETA),
    "rotary": dl.Rotary(BETA, [1.0]),
    "rotary-qk": dl.RotaryQueriesKeys(BETA, [1.0]),
    "toeplitz": dl.Toeplitz(BETA, lambda difference: OFFSET + torch.cos(difference)),
    "prompts": dl.Gauge(BETA, half_turns),
}


def a_sphere(kernel="rotary", n=24):
    path = dl.integrate(LIBRARY[kernel], uniform(n, 3), ring(n), time=2.0, states=3)
    return Sphere(path, kernel, BETA, "Do the tokens meet?", OFFSET)


def a_bank(seed=0, held=False, ratio=0.3, term="L_q", critical=4, k=4):
    bank = torch.randn(k, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Prototypes(four_blobs(60, seed), bank, ratio, "Which way does each term push?", held, term, critical)


@functools.cache
def a_recording():
    return recording(four_blobs(60), num_prototypes=3, steps=60, moments=12)


def a_transition(**change):
    return Transition(**(a_recording()._asdict() | change), caption="How does a bank leave collapse?")


PLAYERS = {"sphere": a_sphere, "prototypes": a_bank, "transition": a_transition}


@contextmanager
def opened(browser, player, page_html="<body>{}</body>", **context):
    """The player on a page; at the end, nothing may have been complained about or asked for."""
    with browser.new_context(**({"viewport": {"width": 900, "height": 800}} | context)) as tab:
        page, noise = tab.new_page(), []
        page.on("console", lambda message: noise.append(message.text))
        page.on("pageerror", lambda error: noise.append(str(error)))
        page.on("request", lambda request: noise.append(request.url))
        page.set_content("<!doctype html><html lang=en>" + page_html.format(player._repr_html_()))
        yield page
        assert not noise


def call(page, code):
    """Evaluate JavaScript with `player`, the object that a player leaves on its element."""
    return page.evaluate(f"() => {{ const player = document.querySelector('.ddcl-player').player; return {code}; }}")


@pytest.mark.parametrize("name", PLAYERS)
def test_a_script_is_small(name):
    assert len(script(name).encode()) < 30_000
    assert "http" not in script(name)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_step_on_the_sphere_is_the_librarys(browser, kernel):
    player = a_sphere(kernel)
    with opened(browser, player) as page:
        energy, drift = call(page, "[player.energy(player.state.x), [...player.drift(player.state.x)]]")
        tokens = call(page, "(player.advance(0.2), [...player.state.x])")
    start, labels = torch.from_numpy(player.tokens[0]), torch.from_numpy(player.labels)
    expected = dl.integrate(LIBRARY[kernel], start, labels, time=[0.2], step=0.2)
    for got, wanted in ((tokens, expected.tokens[-1]), (drift, LIBRARY[kernel].drift(start, labels))):
        torch.testing.assert_close(torch.tensor(got, dtype=torch.float64).view(-1, 3), wanted, rtol=0, atol=1e-6)
    if expected.energy is not None:
        assert energy == pytest.approx(float(expected.energy[0]), abs=1e-6)


def test_a_long_run_on_the_sphere_ends_where_the_librarys_does(browser):
    with opened(browser, a_sphere("usa")) as page:
        length = call(page, "(() => { while (player.step()); return player.resultant(player.state.x); })()")
    assert length == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("name", PLAYERS)
def test_it_runs_pauses_and_steps(browser, name):
    with opened(browser, PLAYERS[name]()) as page:
        before = page.locator(".status").inner_text()
        page.get_by_role("button", name="Step").click()
        page.wait_for_timeout(200)
        assert page.locator(".status").inner_text() != before
        page.get_by_role("button", name="Run").click()
        assert call(page, "player.running()")
        page.get_by_role("button", name="Pause").click()
        assert not call(page, "player.running()")


@pytest.mark.parametrize("name", PLAYERS)
def test_it_works_in_a_sandboxed_frame(browser, name):
    """As in Colab: scripts run, nothing else is allowed."""
    frame = '<iframe sandbox="allow-scripts" width=700 height=700 srcdoc="{}"></iframe>'
    player = PLAYERS[name]()
    source = player._repr_html_().replace("&", "&amp;").replace('"', "&quot;")
    player._repr_html_ = lambda: source
    with opened(browser, player, frame) as page:
        inside = page.frame_locator("iframe")
        inside.get_by_role("button", name="Step").click()
        assert inside.locator(".status").inner_text()


@pytest.mark.parametrize("name", PLAYERS)
def test_it_works_as_jupyter_inserts_it(browser, name):
    """Output is parsed, its scripts are made anew, and then both come into the page; a cell may be run twice."""
    with opened(browser, PLAYERS[name](), "<body><template>{}</template>") as page:
        page.evaluate("""() => {
            for (let run = 0; run < 2; run++) {
                const output = document.createElement("div");
                output.innerHTML = document.querySelector("template").innerHTML;
                for (const old of output.querySelectorAll("script")) {
                    const script = document.createElement("script");
                    script.textContent = old.textContent;
                    old.replaceWith(script);
                }
                document.body.append(output);
            }
        }""")
        assert page.get_by_role("button", name="Step").count() == 2


@pytest.mark.parametrize("name", PLAYERS)
def test_without_scripts_and_on_paper_there_is_a_figure_with_values(browser, name):
    with opened(browser, PLAYERS[name](), java_script_enabled=False) as page:
        picture = page.locator("figure svg")
        assert picture.is_visible() and re.search(r"\d\.\d", picture.get_attribute("aria-label"))
        assert page.locator("figcaption").is_visible()
        assert page.locator(".ddcl-player > p").inner_text() == picture.get_attribute("aria-label")
    with opened(browser, PLAYERS[name]()) as page:
        assert not page.locator("figure svg").is_visible()
        page.emulate_media(media="print")
        assert page.locator("figure svg").is_visible() and not page.locator("canvas").is_visible()


@pytest.mark.parametrize("name", PLAYERS)
def test_every_control_has_a_name_and_a_size_for_fingers(browser, name):
    with opened(browser, PLAYERS[name](), viewport={"width": 390, "height": 800}, has_touch=True) as page:
        controls = page.evaluate("""() => [...document.querySelector('.ddcl-player').shadowRoot
            .querySelectorAll('button, input, select')].map(one => [
                (one.labels?.[0]?.innerText ?? one.innerText).trim(),
                (one.labels?.[0] ?? one).getBoundingClientRect().height])""")
        assert len(controls) >= 4 and all(text and height >= 24 for text, height in controls)
        assert len({text for text, _ in controls}) == len(controls)
        assert page.locator("canvas").get_attribute("aria-label")
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("name", PLAYERS)
def test_it_takes_the_pages_colours_and_follows_them(browser, name):
    style = "body {{ color: #111 }} [data-theme=dark] body {{ color: #eee }}"
    page_html = f"<style>{style}</style><body>{{}}</body>"
    with opened(browser, PLAYERS[name](), page_html) as page:
        page.wait_for_function("document.querySelector('.ddcl-player').player.ink == 'rgb(17, 17, 17)'")
        page.evaluate("document.documentElement.dataset.theme = 'dark'")
        page.wait_for_function("document.querySelector('.ddcl-player').player.ink == 'rgb(238, 238, 238)'")


@pytest.mark.parametrize("name", PLAYERS)
def test_reduced_motion_gets_few_pictures_of_the_same_flow(browser, name):
    with opened(browser, PLAYERS[name](), reduced_motion="reduce") as page:
        page.get_by_role("button", name="Run").click()
        page.wait_for_timeout(700)
        assert 1 <= call(page, "player.frames") <= 3


def test_the_sphere_turns_by_keyboard_and_by_dragging(browser):
    with opened(browser, a_sphere()) as page:
        canvas = page.locator("canvas")
        views = [call(page, "[...player.state.view]")]
        canvas.focus()
        page.keyboard.press("ArrowLeft")
        views.append(call(page, "[...player.state.view]"))
        box = canvas.bounding_box()
        page.mouse.move(box["x"] + 200, box["y"] + 150)
        page.mouse.down()
        page.mouse.move(box["x"] + 260, box["y"] + 150, steps=4)
        page.mouse.up()
        views.append(call(page, "[...player.state.view]"))
    assert views[0] != views[1] != views[2]


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda path: path._replace(tokens=path.tokens.clone().fill_(float("nan"))), "tokens: expected finite"),
        (lambda path: path._replace(tokens=path.tokens[-1]), "tokens: expected shape"),
        (lambda path: path._replace(tokens=2 * path.tokens), "tokens: expected unit vectors"),
        (lambda path: path._replace(times=path.times[:1]), "times: expected shape"),
        (lambda path: path._replace(labels=path.labels[1:]), "labels: expected shape"),
        (lambda path: path._replace(labels=path.labels + 7), "labels: expected angles"),
        (lambda path: path._replace(tokens=path.tokens.repeat(1, 20, 1), labels=None), "at most 256"),
    ],
)
def test_the_sphere_refuses_what_it_cannot_show(change, message):
    path = dl.integrate(LIBRARY["usa"], uniform(24, 3), ring(24), time=2.0, states=3)
    with pytest.raises(ValueError, match=message):
        Sphere(change(path), "usa", BETA, "A caption.")


def test_the_sphere_refuses_unknown_kernels_and_numbers():
    path = dl.integrate(LIBRARY["usa"], uniform(24, 3), time=2.0, states=3)
    for arguments, message in [
        (("plain", BETA, "A caption."), "kernel: expected one of"),
        (("usa", 0, "A caption."), "beta: expected a number from"),
        (("usa", float("nan"), "A caption."), "beta"),
        (("usa", BETA, " "), "caption: expected a sentence"),
        (("usa", BETA, "A caption.", 2), "offset"),
    ]:
        with pytest.raises(ValueError, match=message):
            Sphere(path, *arguments)


def plane(points):
    return torch.tensor(points, dtype=torch.float64).view(-1, 2)


@pytest.mark.parametrize(
    "seed, held, ratio, critical", [(0, False, 0.3, 4), (1, True, 0.3, 4), (2, True, 1.2, 2), (3, False, 0.05, 2)]
)
def test_a_bank_in_the_plane_is_moved_as_by_the_library(browser, seed, held, ratio, critical):
    """T_c, the loss and its parts, the forces, their rates, a step of each term; also after dragging."""
    read = """({tokens: player.state.tokens, bank: player.state.bank, T_c: player.cloud().critical,
        spread: player.spread(), distinct: player.distinct(), ...player.read(),
        rates: player.rates(player.read().force)})"""
    with opened(browser, a_bank(seed, held, ratio, critical=critical)) as page:
        states = [call(page, read)]
        call(page, "(player.choose('token', 7), player.move(-2.5, 1.25))")
        call(page, "(player.choose('prototype', 1), player.move(0.4, 0.3))")
        states.append(call(page, read))
        stepped = {}
        for term in TERMS:
            page.get_by_label("descend").select_option(term)
            before = call(page, "player.state.bank")
            stepped[term] = before, call(page, "(player.step(), player.state.bank)")
        call(page, "(player.state.bank = [[0, 0], [0, 0.08], [0, 0.04], [1, 1]], 0)")  # a chain
        chained = call(page, read)
    moved = plane(states[1]["tokens"]) - plane(states[0]["tokens"])
    assert 1 < moved.any(-1).sum() < 60  # some tokens near the one that was chosen, not all
    assert plane(states[0]["tokens"]).allclose(four_blobs(60, seed), atol=1e-9)
    for state in (*states, chained):
        tokens, bank = plane(state["tokens"]), plane(state["bank"])
        unit = critical / 4 * float(dl.critical_temperature(tokens))
        assert state["T_c"] == pytest.approx(unit, abs=1e-6)
        assert state["spread"] == pytest.approx(dl.spread(bank, tokens), abs=1e-6)
        assert state["distinct"] == 1 + int(groups(tokens, bank).max())
        loss = dl.decompose(tokens, bank, ratio * unit)
        wanted = forces(tokens, bank, ratio * unit, detach_assignment=held)
        for term in TERMS:
            assert state["loss"][term] == pytest.approx(float(getattr(loss, TERMS[term])), abs=1e-6)
            torch.testing.assert_close(plane(state["force"][term]), wanted[term], rtol=0, atol=1e-6)
            assert state["rates"][term] == pytest.approx(float(expansion(wanted[term], bank)), abs=1e-6)
    tokens, unit = plane(states[1]["tokens"]), critical / 4 * float(dl.critical_temperature(plane(states[1]["tokens"])))
    for term, (before, after) in stepped.items():
        wanted = follow(tokens, plane(before), ratio * unit, term, held, rate=0.5, steps=1)[-1]
        torch.testing.assert_close(plane(after), wanted, rtol=0, atol=1e-6)
    assert chained["distinct"] == 2


@pytest.mark.parametrize("held", [False, True])
def test_the_still_of_a_bank_says_what_the_library_measures(held):
    player = a_bank(1, held)
    tokens, bank = torch.from_numpy(player.tokens), torch.from_numpy(player.prototypes)
    unit, found = float(dl.critical_temperature(tokens)), player.measured()
    loss, size = dl.decompose(tokens, bank, 0.3 * unit), dl.token_variance(tokens)
    assert found["T_c"] == pytest.approx(unit) and found["spread"] == pytest.approx(dl.spread(bank, tokens))
    for term, wanted in forces(tokens, bank, 0.3 * unit, held).items():
        torch.testing.assert_close(torch.from_numpy(found["force"][term]), wanted)
        assert found["rate"][term] == pytest.approx(float(expansion(wanted, bank)))
        assert found["loss"][term] == pytest.approx(float(getattr(loss, TERMS[term])) / size)
    fig, alt = player.picture()
    plt.close(fig)
    assert f"L_OLS {float(loss.reconstruction) / size:.3f} + V {float(loss.variance) / size:.3f}" in alt
    assert f"{dl.spread(bank, tokens):.3f} token sd" in alt and ("held fixed" if held else "attached") in alt


def test_a_bank_comes_to_rest_and_opens_below_its_critical_temperature(browser):
    """Collapse, run: K = 3 at 0.9 and 1.1 T_c, for both kinds of T_c; a bank at rest does not step."""
    for held, critical in ((True, 2), (False, 4)):
        with opened(browser, a_bank(held=held, critical=critical, k=3)) as page:
            spreads = {}
            for ratio in (0.9, 1.1):
                page.get_by_label("T / T_c").fill(str(ratio))
                page.get_by_role("button", name="Collapse").click()
                assert call(page, "player.spread()") < 0.01 and call(page, "player.distinct()") == 1
                spreads[ratio] = call(
                    page, "(() => { for (let i = 0; i < 9000 && player.step(); i++); return player.spread(); })()"
                )
            assert spreads[0.9] > 0.05 and spreads[1.1] < 1e-6
            assert call(page, "player.step()") is False


def test_a_bank_of_one_or_on_one_point_has_values_and_no_rates(browser):
    for bank in (torch.zeros(1, 2), torch.ones(3, 2)):
        player = Prototypes(four_blobs(8), bank, 0.5, "One point.")
        with opened(browser, player) as page:
            words = page.locator(".status").inner_text()
        fig, alt = player.picture()
        plt.close(fig)
        for said in (words, alt):
            assert "All coincide." in said and "V 0.000" in said and "nan" not in said.lower()


def test_a_bank_is_dragged_by_mouse_and_moved_by_keys(browser):
    with opened(browser, a_bank()) as page:
        canvas = page.locator("canvas")
        box = canvas.bounding_box()
        start = call(page, "[player.state.tokens, player.state.bank, player.cloud().critical]")

        def drag(kind, index, across, up):
            x, y = call(page, f"player.there(player.state.{kind}[{index}])")
            page.mouse.move(box["x"] + x, box["y"] + y)
            page.mouse.down()
            page.mouse.move(box["x"] + x + across, box["y"] + y - up, steps=3)
            page.mouse.up()
            return call(page, "[player.state.tokens, player.state.bank, player.cloud().critical]")

        tokens, bank, critical = drag("bank", 2, 60, 30)
        assert tokens == start[0] and [a != b for a, b in zip(bank, start[1])] == [False, False, True, False]
        assert bank[2][0] - start[1][2][0] == pytest.approx(2 * (bank[2][1] - start[1][2][1]))
        page.get_by_label("dragging moves").select_option("one")
        far = max(range(60), key=lambda n: start[0][n][0])
        tokens, bank, critical = drag("tokens", far, 40, 0)
        assert sum(a != b for a, b in zip(tokens, start[0])) == 1 and critical > start[2]
        page.get_by_label("dragging moves").select_option("all")
        tokens, _, shifted = drag("tokens", far, -30, 10)
        assert all(a != b for a, b in zip(tokens, start[0])) and shifted == pytest.approx(critical)
        canvas.focus()
        page.keyboard.press("2")
        before = call(page, "player.state.bank[1]")
        page.keyboard.press("ArrowUp")
        after = call(page, "player.state.bank[1]")
        assert after[0] == before[0] and after[1] > before[1]
        page.keyboard.press("n")
        assert call(page, "[player.state.chosen.kind, player.state.chosen.index]") == ["prototype", 2]
        page.keyboard.press("t")
        page.keyboard.press("ArrowLeft")
        assert call(page, "player.state.tokens[0][0]") < tokens[0][0]
        page.keyboard.press("Escape")
        assert call(page, "player.state.chosen") is None
        page.get_by_label("prototypes K").fill("12")
        assert len(call(page, "player.state.bank")) == 12
        page.get_by_role("button", name="Start again").click()
        assert call(page, "[player.state.tokens, player.state.bank, player.cloud().critical]") == start
        assert page.get_by_label("prototypes K").input_value() == "4"


def test_a_finger_drags_a_point_and_otherwise_scrolls(browser):
    tall = "<body style='margin:0'>{}<p style='height:2000px'></p>"
    with opened(browser, a_bank(), tall, viewport={"width": 390, "height": 700}, has_touch=True) as page:
        wire = page.context.new_cdp_session(page)

        def swipe(x, y):
            for kind, up in (("touchStart", 0), *(("touchMove", 10 * i) for i in range(1, 9)), ("touchEnd", None)):
                points = [] if up is None else [{"x": x, "y": y - up}]
                wire.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
            page.wait_for_timeout(300)
            return page.evaluate("scrollY"), call(page, "player.state.bank[0]")

        x, y = call(page, "player.there(player.state.bank[0])")
        before = call(page, "player.state.bank[0]")
        scrolled, dragged = swipe(x + 10, y + 10)
        assert scrolled == 0 and dragged[1] > before[1]
        scrolled, still = swipe(6, 230)
        assert scrolled > 20 and still == dragged


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"tokens": torch.full((4, 2), float("nan"))}, "tokens: expected finite"),
        ({"tokens": torch.randn(4, 3)}, "tokens: expected shape"),
        ({"tokens": torch.randn(401, 2)}, "tokens: expected at most 400"),
        ({"tokens": torch.ones(4, 2)}, "tokens: expected tokens that differ"),
        ({"prototypes": torch.randn(2)}, "prototypes: expected shape"),
        ({"prototypes": torch.randn(13, 2)}, "prototypes: expected at most 12"),
        ({"prototypes": torch.tensor([[0, float("inf")]])}, "prototypes: expected finite"),
        ({"ratio": 0}, "ratio: expected a number from 0.05 to 3"),
        ({"ratio": 3.1}, "ratio"),
        ({"ratio": "cold"}, "ratio: expected a number"),
        ({"caption": ""}, "caption: expected a sentence"),
        ({"detach_assignment": 1}, "detach_assignment: expected True or False, got 1"),
        ({"term": "F"}, "term: expected one of V, L_OLS, L_q, got 'F'"),
        ({"critical": 3}, "critical: expected 4 or 2"),
    ],
)
def test_the_bank_refuses_what_it_cannot_show(changed, message):
    arguments = {"tokens": four_blobs(8), "prototypes": torch.randn(3, 2), "ratio": 0.3, "caption": "A caption."}
    with pytest.raises(ValueError, match=message):
        Prototypes(**(arguments | changed))


# The transition player.


def test_the_transition_draws_the_recorded_banks_at_every_moment(browser):
    record, player = a_recording(), a_transition()
    centred = record.tokens - record.tokens.mean(0)
    lead = torch.linalg.eigh(torch.cov(centred.T)).eigenvectors[:, -1]
    lead = lead * lead[lead.abs().argmax()].sign()
    with opened(browser, player) as page:
        for run, banks in enumerate(record.banks.values()):
            page.get_by_label("recording").select_option(str(run))
            for moment, bank in enumerate(banks):
                heights, spreads = call(
                    page, f"(player.go({moment}), [player.values(), player.ratios.map((_, r) => player.spread(r))])"
                )
                expected = (bank - record.tokens.mean(0)) @ lead / dl.token_variance(record.tokens) ** 0.5
                torch.testing.assert_close(torch.tensor(heights, dtype=torch.float64), expected, rtol=0, atol=1e-6)
                assert spreads == pytest.approx([dl.spread(each, record.tokens) for each in bank], abs=1e-6)
            assert call(page, "player.step()") is False
        lines = call(page, "player.runs.map((run) => run.critical)")
    critical = [float(dl.critical_temperature(record.tokens, None, detach)) for detach in (False, True)]
    assert lines == pytest.approx([each / critical[0] for each in critical], abs=1e-9)


def test_the_transition_plays_to_its_end_and_steps_from_moment_to_moment(browser):
    with opened(browser, a_transition()) as page:
        slider = page.get_by_label("moment")
        page.get_by_role("button", name="Run").click()
        page.wait_for_function("!document.querySelector('.ddcl-player').player.running()")
        assert call(page, "player.state.moment") == len(a_recording().steps) - 1 == float(slider.input_value())
        assert slider.get_attribute("aria-valuetext") == "step 60"
        page.get_by_role("button", name="Run").click()  # and once more, from the start
        assert call(page, "player.running() && player.state.moment < 1")
        slider.fill("2")
        assert call(page, "[player.running(), player.state.moment]") == [False, 2]
        page.get_by_role("button", name="Step").click()
        assert call(page, "player.state.moment") == 3
        page.get_by_role("button", name="Start again").click()
        assert call(page, "player.state.moment") == 0 and slider.get_attribute("aria-valuetext") == "step 0"


def test_the_transition_reads_out_the_temperature_that_keys_or_fingers_choose(browser):
    with opened(browser, a_transition(), viewport={"width": 390, "height": 800}, has_touch=True) as page:
        canvas = page.locator("canvas")
        canvas.focus()
        for key, ratio in (("Home", "0.05"), ("ArrowRight", "0.10"), ("End", "1.20"), ("ArrowLeft", "1.15")):
            page.keyboard.press(key)
            page.wait_for_timeout(50)
            assert f"At T = {ratio} T_c" in canvas.get_attribute("aria-label")
        canvas.tap(position={"x": 100, "y": 100})
        page.wait_for_timeout(50)
        assert 0 < call(page, "player.ratios[player.state.at]") < 0.5
        assert canvas.evaluate("one => getComputedStyle(one).touchAction") == "pan-y"


def test_a_recording_is_small_and_begins_next_to_collapse():
    record = recording(four_blobs(60), steps=500)
    player = Transition(*record, "A caption.")
    assert len(json.dumps(player.data())) < 60_000
    assert record.steps[0] == 0 and record.steps[-1] == 500
    assert all(spread[0].max() < 2e-3 and spread[-1].max() > 0.5 for spread in player.spreads.values())


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda one: {"steps": one.steps[1:]}, "banks.*expected shape"),
        (lambda one: {"steps": one.steps[::-1]}, "steps: expected increasing"),
        (lambda one: {"ratios": one.ratios[::-1]}, "ratios: expected increasing"),
        (lambda one: {"ratios": [0.0, *one.ratios[1:]]}, "ratios: expected increasing numbers of at least"),
        (lambda one: {"banks": {"a": one.banks["q held fixed"]}}, "critical: expected one T_c for each of a"),
        (lambda one: {"banks": {7: one.banks["q held fixed"]}}, "banks: expected a dict from names"),
        (lambda one: {"banks": {}}, "banks: expected a dict from names"),
        (lambda one: {"banks": {name: bank * float("nan") for name, bank in one.banks.items()}}, "expected finite"),
        (lambda one: {"banks": {name: bank[..., :1] for name, bank in one.banks.items()}}, "expected shape"),
        (lambda one: {"banks": {name: bank.repeat(1, 1, 3, 1) for name, bank in one.banks.items()}}, "at most 6"),
        (lambda one: {"banks": {**one.banks, "q held fixed": one.banks["q held fixed"][:, :, :2]}}, "expected shape"),
        (lambda one: {"tokens": one.tokens[0]}, "tokens: expected shape"),
        (lambda one: {"tokens": one.tokens[:1]}, "tokens: expected tokens that differ"),
        (lambda one: {"critical": dict.fromkeys(one.banks, 0)}, "critical: expected a number"),
    ],
)
def test_the_transition_refuses_what_it_cannot_show(change, message):
    with pytest.raises(ValueError, match=message):
        a_transition(**change(a_recording()))
