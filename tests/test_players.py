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


def slider(page, name):
    return page.get_by_role("slider", name=name, exact=True)


def put(page, label, value):
    """Move a slider to this value, which must be one of its stops."""
    one = slider(page, label)
    one.evaluate("(one, value) => { one.put(value); one.oninput(); }", value)
    assert float(one.get_attribute("aria-valuetext")) == value


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
    """Output is parsed, its scripts are made anew, and then both come into the page; a cell may be run twice.

    What is taken out of the page for good goes; what is put back (in windows of a long notebook) lives on.
    """
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
        page.evaluate("""() => {
            document.activeElement.blur();
            const hosts = [...document.querySelectorAll(".ddcl-player")];
            window.old = new WeakRef(hosts[0]);
            hosts[0].parentElement.remove();
            hosts[1].parentElement.remove();
            document.body.style.color = "rgb(1, 2, 3)";
            setTimeout(() => { document.body.append(hosts[1].parentElement); }, 300);
        }""")
        page.wait_for_function("document.querySelector('.ddcl-player')?.player.ink == 'rgb(1, 2, 3)'")
        page.context.new_cdp_session(page).send("HeapProfiler.collectGarbage")
        assert page.evaluate("!old.deref()")


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


@pytest.mark.parametrize(
    "fault", ["HTMLCanvasElement.prototype.getContext = () => null", "window.ResizeObserver = undefined"]
)
def test_a_player_that_fails_leaves_the_still_figure(browser, fault):
    with browser.new_context() as tab:
        page, said = tab.new_page(), []
        page.on("console", lambda message: said.append((message.type, message.text)))
        page.set_content(f"<!doctype html><body><script>{fault}</script>{a_bank()._repr_html_()}")
        assert page.locator("figure svg").is_visible() and page.locator("canvas").count() == 0
        assert [kind for kind, _ in said] == ["error"] and "Error" in said[0][1]


def test_two_players_with_one_caption_share_no_ids():
    ids = [re.findall(r'\sid="([^"]+)"', player._repr_html_()) for player in (a_bank(0), a_bank(1))]
    assert all(ids) and not set(ids[0]) & set(ids[1])


@pytest.mark.parametrize("name", PLAYERS)
def test_every_control_has_a_name_and_a_size_for_fingers(browser, name):
    """On the narrowest screen, on which nothing that is written on the canvas may be cut, either."""
    watch = """<script>
        const usual = CanvasRenderingContext2D.prototype.fillText;
        window.cut = [];
        CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {{
            const wide = this.measureText(text).width, side = {{left: 0, center: .5, right: 1}}[this.textAlign];
            const left = x - wide * side;
            const upright = this.getTransform().b == 0;
            if (upright && (left < -.5 || left + wide > this.canvas.clientWidth + .5)) cut.push(text);
            usual.call(this, text, x, y);
        }};
    </script>"""
    narrow = {"viewport": {"width": 320, "height": 800}, "has_touch": True}
    with opened(
        browser, PLAYERS[name](), f"<body style='font-family: sans-serif; margin: 12px'>{watch}{{}}", **narrow
    ) as page:
        controls = page.evaluate("""() => [...document.querySelector('.ddcl-player').shadowRoot
            .querySelectorAll('button, input, select')].map(one => [
                (one.labels?.[0]?.innerText ?? one.innerText).trim(),
                (one.labels?.[0] ?? one).getBoundingClientRect().height])""")
        assert len(controls) >= 4 and all(text and height >= 24 for text, height in controls)
        assert len({text for text, _ in controls}) == len(controls)
        page.wait_for_function("document.querySelector('.ddcl-player').player.ink")
        assert page.locator("canvas").get_attribute("aria-label")
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth") and page.evaluate("cut") == []


@pytest.mark.parametrize("name", PLAYERS)
def test_it_speaks_when_something_changed_and_leaves_keys_to_their_control(browser, name):
    with opened(browser, PLAYERS[name]()) as page:
        page.wait_for_function("document.querySelector('.ddcl-player').player.ink")
        inside = page.locator(".live")
        assert inside.locator("output").count() == 1 and inside.locator("[aria-pressed]").count() == 0
        assert inside.locator(".value:not([aria-hidden=true])").count() == 0 and inside.locator(".value").count() >= 2
        assert page.locator("canvas").get_attribute("role") == "application"
        assert page.locator(".ddcl-player").get_attribute("data-lm-suppress-shortcuts") == "true"
        live = page.locator(".status")
        assert live.get_attribute("aria-live") == "polite"
        changes = live.evaluate("""async (one) => {
            let changes = 0;
            new MutationObserver((all) => { changes += all.length; }).observe(one, {childList: true});
            const { player } = document.querySelector(".ddcl-player");
            const wait = () => new Promise((done) => setTimeout(done, 60));
            player.draw();
            await wait();
            const before = changes;
            player.step();
            player.draw();
            await wait();
            return [before, changes];
        }""")
        assert changes == [0, 1]
        page.get_by_role("button", name="Run").click()
        assert live.get_attribute("aria-live") == "off"


@pytest.mark.parametrize("name", PLAYERS)
def test_it_takes_the_pages_colours_and_follows_them(browser, name):
    """Wherever the page marks its theme, also if its colours fade; on paper, black on white."""
    style = """body {{ color: #111 }} [data-theme=dark] body {{ color: #eee }}
        body[data-jp-theme-light=false] {{ color: #ccc }}
        body[data-vscode-theme-kind=vscode-dark], body[data-vscode-theme-kind=vscode-dark] .ddcl-player {{
            color: #ddd; transition: color .3s }}"""
    ink = "document.querySelector('.ddcl-player').player.ink == 'rgb({0}, {0}, {0})'"
    with opened(browser, PLAYERS[name](), f"<style>{style}</style><body>{{}}</body>") as page:
        page.wait_for_function(ink.format(17))
        page.evaluate("document.documentElement.dataset.theme = 'dark'")
        page.wait_for_function(ink.format(238))
        page.evaluate("document.body.dataset.jpThemeLight = 'false'")
        page.wait_for_function(ink.format(204), timeout=5000)
        page.evaluate("document.body.dataset.vscodeThemeKind = 'vscode-dark'")
        page.wait_for_function(ink.format(221))
        page.emulate_media(media="print")
        assert page.locator("figure svg").evaluate("one => getComputedStyle(one).color") == "rgb(0, 0, 0)"


@pytest.mark.parametrize("name", PLAYERS)
def test_reduced_motion_gets_few_pictures_of_the_same_flow(browser, name):
    """Twice a second, also while keys ask for more."""
    with opened(browser, PLAYERS[name](), reduced_motion="reduce") as page:
        page.get_by_role("button", name="Run").click()
        page.locator("canvas").focus()
        for _ in range(8):
            page.keyboard.press("ArrowRight")
            page.wait_for_timeout(100)
        page.wait_for_timeout(400)
        assert 1 <= call(page, "player.frames") <= 4


def drag(page, across, down, start=(200, 150), button="left", end=True):
    """From a place on the canvas; the pointer goes up only at an end."""
    box = page.locator("canvas").bounding_box()
    x, y = box["x"] + start[0], box["y"] + start[1]
    page.mouse.move(x, y)
    page.mouse.down(button=button)
    page.mouse.move(x + across, y + down, steps=3)
    if end:
        page.mouse.up(button=button)


def test_the_sphere_turns_by_keyboard_and_by_dragging(browser):
    """In browsers without movementX, too; not if the drag began elsewhere, and not by the right button."""
    old = "<body style='margin:40px'><script>delete MouseEvent.prototype.movementX</script>{}"
    with opened(browser, a_sphere(), old) as page:
        views = [call(page, "[...player.state.view]")]
        page.locator("canvas").focus()
        page.keyboard.press("ArrowLeft")
        views.append(call(page, "[...player.state.view]"))
        drag(page, 60, 0)
        views.append(call(page, "[...player.state.view]"))
        drag(page, 60, 40, button="right")
        drag(page, 300, 40, start=(-30, 100))
        views.append(call(page, "[...player.state.view]"))
    assert views[0] != views[1]
    assert views[2] == pytest.approx([views[1][0] - 0.5, views[1][1]])
    assert views[3] == views[2]


def test_the_sphere_goes_on_from_where_it_is_and_starts_again_at_its_start(browser):
    """Whatever beta and kernel were in between; numbers off the sliders' grids can be come back to."""
    labels = ring(5).repeat_interleave(10)
    path = dl.integrate(dl.Rotary(1.2, [1.0]), uniform(50, 3), labels, time=200.0, states=2)
    player = Sphere(path._replace(times=10 * path.times), "rotary", 1.2, "Do the tokens meet?")
    assert "time 2000," in player._repr_html_()
    with opened(browser, player) as page:

        def press(name):
            page.get_by_role("button", name=name).click()
            return call(page, "[[...player.state.x], player.state.time]")

        texts = [slider(page, name).get_attribute("aria-valuetext") for name in ("beta", "tokens n")]
        assert texts == ["1.2", "50"]
        start, _ = press("Start again")
        for _ in range(3):
            moved, time = press("Step")
        assert moved != start and time > 0
        page.get_by_role("combobox", name="kernel").select_option("rotary-qk")
        assert call(page, "[[...player.state.x], player.state.time]") == [moved, 0]
        put(page, "beta", 6)
        assert call(page, "[[...player.state.x], player.state.time]") == [moved, 0]
        assert press("Start again") == [start, 0]
        other, _ = press("New start")
        assert other != start and press("Step")[0] != other and press("Start again") == [other, 0]
        put(page, "tokens n", 16)
        assert call(page, "[...player.state.labels]") == pytest.approx(labels.unique().tolist() * 3 + [0])
        put(page, "tokens n", 50)
        put(page, "beta", 1.2)
        assert call(page, "[[...player.state.x], player.state.beta]") == [start, 1.2]
        call(page, "(player.state.time = 5986.4, player.advance(0), player.step(), player.draw())")
        page.wait_for_function(
            "s => document.querySelector('.ddcl-player').shadowRoot.textContent.includes(s)", arg="time 598"
        )


def number_of_colours(page):
    """On the canvas, where it is opaque."""
    code = """(() => {
        const { width, height } = player.canvas, found = new Set();
        const pen = new OffscreenCanvas(width, height).getContext("2d");
        pen.drawImage(player.canvas, 0, 0);
        const { data } = pen.getImageData(0, 0, width, height);
        for (let i = 0; i < data.length; i += 4) if (data[i + 3] == 255) found.add(String(data.slice(i, i + 3)));
        return found.size;
    })()"""
    return call(page, code)


def test_the_sphere_says_nothing_of_labels_where_there_are_none(browser):
    path = dl.integrate(LIBRARY["usa"], uniform(24, 3), time=2.0, states=3)
    with opened(browser, Sphere(path, "usa", BETA, "A caption.")) as page:
        page.wait_for_function("document.querySelector('.ddcl-player').player.ink")
        assert "label" not in page.locator(".help").inner_text()
        few = number_of_colours(page)
        page.get_by_role("combobox", name="kernel").select_option("toeplitz")
        page.wait_for_timeout(60)
        assert "Colours are labels." in page.locator(".help").inner_text()
        assert number_of_colours(page) > few + 4  # the filled ones


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
                put(page, "T / T_c", ratio)
                page.get_by_role("button", name="Collapse").click()
                assert call(page, "player.spread()") < 0.01 and call(page, "player.distinct()") == 1
                spreads[ratio] = call(
                    page, "(() => { for (let i = 0; i < 9000 && player.step(); i++); return player.spread(); })()"
                )
            assert spreads[0.9] > 0.05 and spreads[1.1] < 1e-6
            assert call(page, "player.step()") is False


def test_a_bank_of_one_or_on_one_point_has_values_and_no_rates(browser):
    thirds, tenths = (
        torch.tensor([[1 / 3, 0.7]] * 7, dtype=torch.float64),
        torch.tensor([[0.1, 0.7]] * 3, dtype=torch.float64),
    )
    for bank in (torch.zeros(1, 2), torch.ones(3, 2), thirds, tenths):  # the last two have a size by rounding
        player = Prototypes(four_blobs(8), bank, 0.5, "One point.")
        with opened(browser, player) as page:
            page.wait_for_function("document.querySelector('.ddcl-player').player.ink")
            words = page.locator(".status").inner_text()
        fig, alt = player.picture()
        plt.close(fig)
        for said in (words, alt):
            assert "All coincide." in said and "V 0.000" in said and "nan" not in said.lower()


def test_a_bank_is_dragged_by_mouse_and_moved_by_keys(browser):
    with opened(browser, a_bank()) as page:
        canvas = page.locator("canvas")
        start = call(page, "[player.state.tokens, player.state.bank, player.cloud().critical]")

        def dragged(kind, index, across, up):
            drag(page, across, -up, call(page, f"player.there(player.state.{kind}[{index}])"))
            return call(page, "[player.state.tokens, player.state.bank, player.cloud().critical]")

        tokens, bank, critical = dragged("bank", 2, 60, 30)
        assert tokens == start[0] and [a != b for a, b in zip(bank, start[1])] == [False, False, True, False]
        assert bank[2][0] - start[1][2][0] == pytest.approx(2 * (bank[2][1] - start[1][2][1]))
        page.get_by_label("dragging moves").select_option("one")
        far = max(range(60), key=lambda n: start[0][n][0])
        tokens, bank, critical = dragged("tokens", far, 40, 0)
        assert sum(a != b for a, b in zip(tokens, start[0])) == 1 and critical > start[2]
        page.get_by_label("dragging moves").select_option("all")
        tokens, _, shifted = dragged("tokens", far, -30, 10)
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
        put(page, "prototypes K", 12)
        assert len(call(page, "player.state.bank")) == 12
        page.get_by_role("button", name="Start again").click()
        assert call(page, "[player.state.tokens, player.state.bank, player.cloud().critical]") == start
        assert slider(page, "prototypes K").get_attribute("aria-valuetext") == "4"


def test_a_drag_of_a_bank_may_end_in_the_middle(browser):
    """By Escape, by fewer prototypes, by a new start: the pointer goes on, and nothing follows it, or fails."""
    with opened(browser, a_bank()) as page:
        page.wait_for_function("document.querySelector('.ddcl-player').player.ink")
        for way in ("Escape", "fewer", "Start again", "none"):
            at = call(page, "player.there(player.state.bank[3])")
            drag(page, 30, 20, at, end=False)
            assert call(page, "player.state.chosen.index") == 3
            if way == "Escape":
                page.keyboard.press("Escape")
            elif way == "fewer":
                put(page, "prototypes K", 2)
            elif way == "Start again":
                page.get_by_role("button", name="Start again").evaluate("one => one.click()")
            before = call(page, "player.state.bank")
            page.mouse.move(400, 90, steps=3)
            page.mouse.up()
            assert (call(page, "player.state.bank") == before) == (way != "none")
            assert call(page, "player.step() && player.state.bank") != before
            page.get_by_role("button", name="Start again").click()
        before = call(page, "player.state.bank")
        drag(page, 30, 20, call(page, "player.there(player.state.bank[3])"), button="right")
        assert call(page, "player.state.bank") == before and call(page, "player.state.chosen") is None


def test_a_bank_says_what_is_descended_and_a_rate_of_zero(browser):
    written = """<body><script>
        window.written = [];
        const usual = CanvasRenderingContext2D.prototype.fillText;
        CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {{
            written.push(text);
            usual.call(this, text, ...place);
        }};
    </script>{}"""
    with opened(browser, a_bank(held=True), written) as page:
        assert call(page, "player.ink") is not None
        page.wait_for_function("written.some((text) => text.startsWith('closes at '))")
        assert "free energy" in page.locator(".help").inner_text()
        page.get_by_role("checkbox", name="q held fixed").uncheck()
        call(
            page, "(player.state.bank = [[0, 0], [1e4, 0]], written.length = 0, player.draw())"
        )  # V is 0: all read one
        page.wait_for_function("written.includes('rate 0.000')")
        assert "free energy" not in page.locator(".help").inner_text()
        assert not page.evaluate("written.some((text) => text.endsWith('s at 0.000'))")


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
        moment = slider(page, "moment")
        page.get_by_role("button", name="Run").click()
        page.wait_for_function("!document.querySelector('.ddcl-player').player.running()")
        assert call(page, "player.state.moment") == len(a_recording().steps) - 1 == float(moment.input_value())
        assert moment.get_attribute("aria-valuetext") == "step 60"
        page.get_by_role("button", name="Run").click()  # and once more, from the start
        assert call(page, "player.running() && player.state.moment < 1")
        moment.fill("2")
        assert call(page, "[player.running(), player.state.moment]") == [False, 2]
        page.get_by_role("button", name="Step").click()
        assert call(page, "player.state.moment") == 3
        page.get_by_role("button", name="Start again").click()
        assert call(page, "player.state.moment") == 0 and moment.get_attribute("aria-valuetext") == "step 0"


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
        assert canvas.evaluate("one => getComputedStyle(one).touchAction") == "pan-y pinch-zoom"
        box, at = canvas.bounding_box(), call(page, "player.state.at")
        page.mouse.move(box["x"] + 100, box["y"] + box["height"] + 200)
        page.mouse.down()  # elsewhere
        page.mouse.move(box["x"] + 250, box["y"] + 150, steps=3)
        assert call(page, "player.state.at") == at
        page.mouse.up()
        drag(page, 50, 0, (150, 150))
        assert call(page, "player.state.at") > at
        control = slider(page, "temperature")
        assert float(control.input_value()) == call(page, "player.state.at")
        control.fill("0")
        assert call(page, "player.state.at") == 0 and control.get_attribute("aria-valuetext") == "0.05 T_c"


def test_prototypes_that_read_alike_are_read_out_once(browser):
    record = a_recording()
    places = torch.tensor([-0.0062, -0.0004, 0.0048, 0.0099])  # token sd
    lead = torch.tensor([1.0, 0.0])
    tokens = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    banks = {"one": (places[:, None] * lead).expand(2, len(record.ratios), 4, 2)}
    player = Transition([0, 1], record.ratios, banks, tokens, {"one": 1.0}, "A caption.")
    with opened(browser, player) as page:
        page.wait_for_function("document.querySelector('.ddcl-player').player.ink")
        assert page.locator(".status").inner_text().endswith("prototypes at -0.01, 0.00, 0.01")


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
