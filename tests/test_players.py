"""The players, in a real browser: they compute what the library computes, and serve every reader."""

import re
from contextlib import contextmanager

import pytest
import torch

import ddcl_lite as dl
from ddcl_lite.figures import Sphere
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


PLAYERS = {"sphere": a_sphere}


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
