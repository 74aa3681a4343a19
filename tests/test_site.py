"""The built site in a real browser. Every check reads every page, and every check is seen to fail on planted faults."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import nbformat
import pytest
import yaml
from browser import find_browser
from playwright.sync_api import Browser, Page

from ddcl_lite.claims import CLAIMS

pytestmark = pytest.mark.site

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "_build" / "html"
PAGES = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html") if "_static" not in path.parts)
CHAPTERS = [name for name in PAGES if name.startswith("chapters/")]
COLAB = "https://colab.research.google.com"


@dataclass
class Visit:
    """A page as a reader has it open; `noise` is what the browser complained about."""

    page: Page
    base: str
    root: Path
    name: str
    noise: list[str] = field(default_factory=list)


# The checks: each takes a visit and returns the faults it found.


def sets_its_math(visit: Visit) -> list[str]:
    """Every formula is set by MathJax, and no TeX is left in the text around it."""
    unset, wrong, prose = visit.page.evaluate("""() => {
        const texts = (selector) => [...document.querySelectorAll(selector)].map(one => one.textContent);
        const body = document.body.cloneNode(true);
        const notProse = "script, style, noscript, pre, code, svg, mjx-container";
        body.querySelectorAll(notProse).forEach(one => one.remove());
        return [texts(".math:not(:has(mjx-container))"), texts("mjx-merror, [data-mjx-error]"), body.textContent];
    }""")
    return unset + wrong + re.findall(r"\\[(\[].{0,40}|\\begin\b.{0,40}|\$[^$]*\$", prose)


def has_alt_texts(visit: Visit) -> list[str]:
    """Every image says what is seen; a file name is the mark of a plot that did not go through `show`."""
    return visit.page.evaluate(r"""() => [...document.images]
        .filter(one => !one.alt.trim() || /\.(png|svg|jpe?g|gif|webp)$/.test(one.alt)
            || one.matches(".cell_output [src*='_images/']"))
        .map(one => one.outerHTML.slice(0, 200))""")


def describes_its_figures(visit: Visit) -> list[str]:
    """Every figure has a caption, and its picture has a description for those who do not see it."""
    return visit.page.evaluate("""() => [
        ...[...document.querySelectorAll("figure")].filter(one => !one.querySelector("figcaption")?.innerText.trim()),
        ...[...document.querySelectorAll("figure.ddcl-figure svg")].filter(
            one => one.getAttribute("role") != "img" || !one.getAttribute("aria-label")?.trim()),
    ].map(one => one.outerHTML.slice(0, 200))""")


def has_no_dead_link(visit: Visit) -> list[str]:
    """Every link, picture, script and glyph that lies on this site is there, and so is every anchor."""
    links = visit.page.evaluate("""() => [...document.querySelectorAll("[src], [*|href]")].map(
        one => one.getAttribute("src") ?? one.getAttribute("href") ?? one.getAttribute("xlink:href"))""")
    return sorted(link for link in set(links) if not resolves(visit, urljoin(visit.page.url, link)))


def resolves(visit: Visit, url: str) -> bool:
    if not url.startswith(visit.base):
        return True  # another site's
    address, anchor = urldefrag(url)
    path = visit.root / unquote(urlsplit(address).path).strip("/")
    path = path / "index.html" if path.is_dir() else path
    return path.is_file() and (not anchor or unquote(anchor) in anchors(path))


@cache
def anchors(path: Path) -> set[str]:
    return set(re.findall(r'\sid="([^"]*)"', path.read_text(encoding="utf-8")))


def introduces_itself(visit: Visit) -> list[str]:
    """A language for screen readers, one title, and an icon, which a browser else asks the server for in vain."""
    return visit.page.evaluate("""() => {
        const titles = [...document.querySelectorAll("h1")].filter(one => one.checkVisibility());
        return [
            ...(document.documentElement.lang ? [] : ["no lang"]),
            ...(titles.length == 1 && titles[0].innerText.trim() ? [] : [`${titles.length} titles`]),
            ...(document.querySelector("link[rel~=icon]") ? [] : ["no icon"]),
        ];
    }""")


def is_light(visit: Visit) -> list[str]:
    """At most 2 MB, and no script from elsewhere or for widgets, which need a kernel."""
    size = (visit.root / visit.name).stat().st_size
    scripts = visit.page.evaluate(r"""() => [...document.scripts].map(one => one.src + one.type).filter(one =>
        /^https?:/.test(one) && !one.startsWith(location.origin) || /require(\.min)?\.js|html-manager|widget/.test(one))
    """)
    return scripts + [f"{size} bytes"] * (size > 2_000_000)


def launches(visit: Visit) -> list[str]:
    """A chapter opens in Colab and downloads as the very notebook of the repository. No other page offers this."""
    buttons = visit.page.eval_on_selector_all(".article-header-buttons a", "all => all.map(one => one.href)")
    colab = [url for url in buttons if url.startswith(COLAB)]
    download = [url for url in buttons if url.startswith(visit.base) and url.endswith(".ipynb")]
    if not visit.name.startswith("chapters/"):
        return colab + download + ["launch buttons"] * visit.page.locator(".dropdown-launch-buttons").count()
    notebook = visit.name.removesuffix(".html") + ".ipynb"
    ours, theirs = ROOT / notebook, visit.root / notebook
    nbformat.validate(nbformat.read(ours, as_version=4))
    repository = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["repository"]
    target = f"{COLAB}/github{urlsplit(repository['url']).path}/blob/{repository['branch']}/{notebook}"
    return (
        [f"Colab button: {colab}, not {target}"] * (colab != [target])
        + [f"download button: {download}"] * (download != [visit.base + notebook])
        + [f"not the repository's: {notebook}"] * (not theirs.is_file() or theirs.read_bytes() != ours.read_bytes())
    )


def is_readable(visit: Visit) -> list[str]:
    """Light or dark, text stands out from what lies behind it, and the text of figures has the page's colour."""
    papers, faults = [], []
    for scheme in ("light", "dark"):
        visit.page.emulate_media(color_scheme=scheme)
        paper, found = visit.page.evaluate(CONTRAST)
        papers.append(paper)
        faults += [f"{scheme}: {fault}" for fault in found]
    return faults + ["dark is not darker than light"] * (papers[1] >= papers[0])


# Every element that can hold text, those in the shadow roots of players included.
EVERYTHING = """const everything = (root) => [...root.querySelectorAll(
    ":not(style, script, noscript, title, option, mjx-container *, svg :not(text, tspan, g[id*=text_] > g))"
    )].flatMap(one => one.shadowRoot ? [one, ...everything(one.shadowRoot)] : [one]);"""

FRAMES = "async () => { for (const frame of [1, 2]) await new Promise(requestAnimationFrame); }"  # the theme follows

# Contrast as WCAG defines it. Returns the luminance of the page and the texts below 4.5.
CONTRAST = (
    f"async () => {{ {EVERYTHING}"
    + """
    for (const frame of [1, 2]) await new Promise(requestAnimationFrame);  // the theme follows the scheme
    const brush = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
    const luminance = (layers) => {  // of these colours, painted one over the other, each as opaque as it says
        for (const [colour, opacity] of layers) {
            brush.globalAlpha = opacity; brush.fillStyle = colour; brush.fillRect(0, 0, 1, 1);
        }
        const [r, g, b] = [...brush.getImageData(0, 0, 1, 1).data].map(v => v / 255)
            .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const layers = new Map([[null, [["white", 1]]]]);  // what lies behind an element's text
    const behind = (one) => {
        if (!layers.has(one)) {
            const below = behind(one.parentElement ?? one.getRootNode().host ?? null);
            const style = getComputedStyle(one), opacity = (below.opacity ?? 1) * style.opacity;
            const painted = !/^rgba.*, 0\\)$/.test(style.backgroundColor);
            const mine = painted ? [...below, [style.backgroundColor, opacity]] : [...below];
            layers.set(one, Object.assign(mine, {opacity}));
        }
        return layers.get(one);
    };
    const hasText = (one) => [...one.childNodes].some(node => node.nodeType == 3 && node.data.trim());
    const words = (style) => /^"[^"]*[a-z]{2}/i.test(style.content);
    const figure = "figure.ddcl-figure svg :is(text, g[id*=text_] > g)";  // glyphs are paths in a group
    const page = getComputedStyle(document.body).color, known = {}, faults = new Set();
    const judge = (one, ink, where) => {
        const under = behind(one), key = [ink, under.opacity ?? 1, under.join(";")].join("|");
        known[key] ??= ratio(luminance(under), luminance([...under, [ink, under.opacity ?? 1]]));
        if (known[key] < 4.5) faults.add(`contrast ${known[key].toFixed(2)}: ${where}`);
    };
    for (const one of everything(document.body)) {
        const drawn = one instanceof SVGElement && one.tagName != "svg";
        const typed = drawn || hasText(one) || one.matches("mjx-container");
        const folds = one.matches("button, summary, label, a, .admonition-title");
        if (!typed && !folds && !one.placeholder) continue;
        if (!one.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
        const where = one.matches("g") ? one.parentElement.id
            : `${one.tagName}.${one.getAttribute("class")}, ${one.textContent.trim().slice(0, 40)}`;
        const ink = getComputedStyle(one)[drawn ? "fill" : "color"];
        if (typed) judge(one, ink, where);
        const own = one.closest(".ddcl-player") ? "rgb(0, 0, 0)" : page;  // a player, on paper
        if (drawn && one.matches(figure) && ink != own) faults.add(`${ink}, not the page's ${own}: ${where}`);
        if (one.placeholder) judge(one, getComputedStyle(one, "::placeholder").color, `placeholder ${one.placeholder}`);
        for (const part of folds ? ["::before", "::after"] : []) {
            const style = getComputedStyle(one, part);
            if (words(style)) judge(one, style.color, `${where} ${part} ${style.content}`);
        }
    }
    return [luminance(behind(document.body)), [...faults]];
}"""
)


def prints(visit: Visit) -> list[str]:
    """On paper there is the text alone, light also for who reads dark, nothing folded, and no figure cut in two."""
    visit.page.evaluate("() => document.querySelectorAll('details').forEach(one => one.open = false)")
    visit.page.emulate_media(color_scheme="dark")
    visit.page.evaluate(FRAMES)
    visit.page.emulate_media(media="print", color_scheme="dark")
    paper, faults = visit.page.evaluate(CONTRAST)
    faults += visit.page.evaluate("""() => {
        const all = (selector) => [...document.querySelectorAll(selector)];
        const name = (one) => `${one.tagName}.${one.getAttribute("class")}`;
        const off = "nav, header, footer, .bd-sidebar, button, .prev-next-footer";
        const folded = "article details > :not(summary), article .solution > *, article .proof > *";
        return [
            ...all(off).filter(one => one.checkVisibility() && !one.closest("article > section"))
                .map(one => `${name(one)} is printed`),
            ...all(folded).filter(one => !one.checkVisibility({opacityProperty: true, visibilityProperty: true})
                && getComputedStyle(one).display != "none").map(one => `${name(one)} stays folded`),
            ...all("figure, figure svg").filter(one => getComputedStyle(one).breakInside != "avoid")
                .map(one => `${name(one)} may be cut`),
        ];
    }""")
    visit.page.emulate_media(media="screen", color_scheme="light")
    visit.page.evaluate(UNFOLD)
    return faults + ["not on white"] * (paper < 0.9)


def fits_a_phone(visit: Visit) -> list[str]:
    """At 390 px figures fit and nothing makes the page scroll sideways; other wide things scroll in their own boxes."""
    visit.page.set_viewport_size({"width": 390, "height": 844})
    return visit.page.evaluate("""() => {
        const width = document.documentElement.scrollWidth;
        const right = (one) => one.getBoundingClientRect().right;
        const boxed = (one) => one && (getComputedStyle(one).overflowX != "visible" || boxed(one.parentElement));
        const wide = [...document.querySelectorAll("body *")].filter(one => right(one) > 391
            && (one.matches("figure :is(svg, img, canvas)") || width > 391 && !boxed(one)));
        return [...(width > 391 ? [`${width} px`] : []), ...wide.slice(0, 5).map(one =>
            `${one.tagName}.${one.getAttribute("class")} ends at ${right(one)}: ${one.textContent.slice(0, 40)}`)];
    }""")


def is_quiet(visit: Visit) -> list[str]:
    """No error in the console, nothing missing, and nothing asked of another server."""
    return visit.noise


UNFOLD = """() => {
    document.querySelectorAll("details").forEach(one => one.open = true);
    document.querySelectorAll(".toggle-hidden").forEach(one => one.classList.remove("toggle-hidden"));
    const still = "<style id=still>* {transition: none !important; animation: none !important}</style>";
    document.head.insertAdjacentHTML("beforeend", still);
}"""


CHECKS = [
    *(sets_its_math, has_alt_texts, describes_its_figures, has_no_dead_link, introduces_itself, is_light, launches),
    *(is_readable, prints, fits_a_phone, is_quiet),  # the last hears what the others stirred up
]


# The browser, and a visit to a page.


@pytest.fixture(scope="module")
def site() -> Path:
    if not (SITE / "index.html").exists():
        pytest.fail("no site in _build/html: run make book")
    return SITE


@pytest.fixture(scope="module", params=PAGES or ["index.html"])
def visit(request, site, browser) -> Iterator[Visit]:
    with visiting(browser, site, request.param) as visit:
        yield visit


class Server(SimpleHTTPRequestHandler):
    def log_message(self, *message):
        pass


@contextmanager
def visiting(browser: Browser, root: Path, name: str, query: str = "") -> Iterator[Visit]:
    """Serve the folder, open the page, follow a redirect, let MathJax finish, and unfold what is folded."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Server, directory=root))
    Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    with browser.new_page() as page:
        visit = Visit(page, f"http://127.0.0.1:{server.server_port}/", root, name)
        complain = visit.noise.append
        page.on("console", lambda one: one.type == "error" and complain(f"{one.text} {one.location['url']}"))
        page.on("pageerror", lambda one: complain(f"script: {one}"))
        page.on(
            "request", lambda one: one.url.startswith((visit.base, "data:", "blob:")) or complain(f"asks {one.url}")
        )
        page.on("requestfailed", lambda one: complain(f"no answer: {one.url}"))
        page.on("response", lambda one: one.status >= 400 and complain(f"{one.status}: {one.url}"))
        page.goto(visit.base + name + query)
        if target := re.search(r'"Refresh" content="0; url=([^"]+)"', (root / name).read_text(encoding="utf-8")):
            page.wait_for_url(visit.base + target[1])
        page.evaluate("async () => { await window.MathJax?.startup?.promise; }")
        page.evaluate(UNFOLD)
        yield visit
    server.shutdown()
    server.server_close()


# The site.


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_page(visit, check):
    assert check(visit) == []


def test_every_page_of_the_contents_is_published(site):
    contents = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    files = [chapter["file"] for part in contents["parts"] for chapter in part["chapters"]]
    assert {f"{name}.html" for name in [contents["root"], *files]} <= set(PAGES)
    assert (site / ".nojekyll").exists()  # else GitHub Pages drops every folder that begins with an underscore


def test_the_landing_page_has_the_verdicts_of_the_ledger():
    told = re.findall(r"\b([DU]\d+): (\w+)", (ROOT / "book" / "index.md").read_text(encoding="utf-8"))
    assert told and dict(told) == {id: CLAIMS[id].verdict for id, _ in told}


def test_every_term_of_the_glossary_has_an_anchor_and_says_where_it_comes_from(site, browser):
    with visiting(browser, site, "book/glossary.html") as visit:
        terms = visit.page.eval_on_selector_all("dl.glossary dt", "all => all.map(one => [one.innerText, one.id])")
        unsourced = "all => all.filter(one => !one.querySelector('a.internal')).map(one => one.innerText)"
        assert visit.page.eval_on_selector_all("dl.glossary dd", unsourced) == []
    assert len(terms) >= 35 and all(anchor.startswith("term-") for _, anchor in terms)
    assert len({text.lower() for text, _ in terms}) == len(terms)


def test_the_provenance_page_times_every_chapter(site, browser):
    with visiting(browser, site, "book/provenance.html") as visit:
        assert visit.page.locator("[data-provenance]").count() == 0  # all filled
        rows = visit.page.eval_on_selector_all("#run-times tr", "all => all.map(one => one.innerText)")
        links = visit.page.eval_on_selector_all("#run-times a", "all => all.map(one => one.href)")
    assert {visit.base + name for name in CHAPTERS} <= set(links)
    assert not [row for row in rows if "not " in row or "failed" in row]


def test_paper_gives_back_what_it_changed(site, browser):
    state = """async () => {
        for (const frame of [1, 2]) await new Promise(requestAnimationFrame);
        const seen = (part) => !matchMedia("print").matches || getComputedStyle(part).opacity == 1;
        const open = [...document.querySelectorAll("details[open]")].filter(one => [...one.children].every(seen));
        return [document.documentElement.dataset.theme, open.length];
    }"""
    with visiting(browser, site, CHAPTERS[0]) as visit:
        visit.page.evaluate("document.getElementById('still').remove()")  # what fades in would not be on paper
        visit.page.evaluate("document.querySelectorAll('details').forEach((one, i) => one.open = i % 2)")
        states = []
        for media in ("screen", "print", "screen"):
            visit.page.emulate_media(media=media, color_scheme="dark")
            states.append(visit.page.evaluate(state))
        count = visit.page.locator("details").count()
    assert states[1] == ["light", count] and states[0] == states[2] == ["dark", count // 2]


@pytest.mark.parametrize("term, found", [("prototype", True), ("xylophone", False)])
def test_search_finds_what_is_there(site, browser, term, found):
    with visiting(browser, site, "search.html", f"?q={term}") as visit:
        visit.page.wait_for_function("/finished|did not match/.test(document.body.innerText)")
        links = visit.page.eval_on_selector_all("#search-results li a", "all => all.map(one => one.href)")
        assert any("/chapters/" in link for link in links) == found
        assert all(resolves(visit, link) for link in links)


# The checks can fail.

SOUND = """<!doctype html><html lang="en"><head><meta charset="utf-8"><link rel="icon" href="data:,">
<style>:root {color-scheme: light dark; background: Canvas; color: CanvasText}
svg {max-width: 100%} figure, svg {break-inside: avoid} @media print {:root {color-scheme: light}}</style></head>
<body><article><h1 id="top">Sound</h1><a href="#top">Top</a><code>$x$</code>BODY</article></body></html>"""
FIGURE = """<figure class="ddcl-figure"><figcaption>What is it?</figcaption>
<svg role="img" aria-label="a letter"><text fill="currentColor">A</text></svg></figure>"""
BOX = "<div style='overflow-x: auto'><div style='width: 500px'>wide, in a box</div></div>"


def each(pattern: str, *parts: str) -> list[str]:
    return [pattern.replace("...", part) for part in parts]


FAULTS = {
    sets_its_math: ["$x$", r"\(x\)", "<i class='math'>x</i>", "<mjx-merror>x</mjx-merror>"],
    has_alt_texts: each("<p class='cell_output'><img ...></p>", "", "alt='1.png'", "alt='x' src='_images/1.png'"),
    describes_its_figures: [FIGURE.replace(text, " ") for text in ("What is it?", "a letter", 'role="img"')],
    has_no_dead_link: each("<svg><use xlink:href='...'></use></svg>", "gone.html", "page.html#gone", "#gone"),
    introduces_itself: [
        *each("<script>document.querySelector('...').remove()</script>", "h1", "link"),
        *("<h1>Another title</h1>", "<script>document.documentElement.lang = ''</script>"),
    ],
    is_light: [
        *each("<script src='...'></script>", "https://cdn.example.org/x.js", "require.min.js"),
        *("<script type='application/vnd.jupyter.widget-state+json'>{}</script>", "x" * 2_000_000),
    ],
    launches: [
        *each("<p class='article-header-buttons'><a href='...'>x</a></p>", "x.ipynb", f"{COLAB}/github/x.ipynb"),
        "<p class='dropdown-launch-buttons'></p>",
    ],
    is_readable: [
        *each("<p style='...'>x</p>", "color: #888", "background: white", "color: black"),
        *("<style>:root {color-scheme: light}</style>", FIGURE.replace("currentColor", "#323232")),
        *("<p style='opacity: 0.4'>x</p>", "<input placeholder='x'><style>::placeholder {color: #999}</style>"),
        "<button></button><style>button::before {content: 'fold'; color: #888}</style>",
        "<p id='host'></p><script>host.attachShadow({mode: 'open'}).innerHTML = '<b style=color:#888>x</b>'</script>",
    ],
    prints: [
        *each("<...>x</...>", "nav", "button"),
        *("<details><summary>Proof</summary><p>x</p></details>", FIGURE + "<style>svg {break-inside: auto}</style>"),
        *("<style>@media print {:root {color-scheme: dark}}</style>", "<p style='color: #999'>x</p>"),
        "<div class='solution'><p class='admonition-title'>x</p><p style='visibility: hidden'>x</p></div>",
    ],
    fits_a_phone: [
        BOX.replace("auto", "visible"),
        FIGURE.replace("<svg", "<svg style='width: 500px; max-width: none'"),
    ],
    is_quiet: [
        *each("<script>...</script>", "console.error('x')", "throw Error('x')"),
        *each("<img alt='x' src='...'>", "https://example.org/x.png", "missing.png"),
    ],
}


@contextmanager
def planted(browser, folder, body):
    (folder / "page.html").write_text(SOUND.replace("BODY", body), encoding="utf-8")
    with visiting(browser, folder, "page.html") as visit:
        yield visit


def test_a_sound_page_passes(browser, tmp_path):
    with planted(browser, tmp_path, FIGURE + BOX) as visit:
        assert {check.__name__: check(visit) for check in CHECKS} == {check.__name__: [] for check in CHECKS}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_planted_fault_is_found(browser, tmp_path, check):
    for body in FAULTS[check]:
        with planted(browser, tmp_path, body) as visit:
            assert check(visit), body[:200]


@pytest.mark.parametrize("fault", ["Colab button", "download button", "not the repository's"])
def test_a_planted_fault_of_a_chapter_is_found(site, browser, tmp_path, fault):
    page, stem = CHAPTERS[0], Path(CHAPTERS[0]).stem
    shutil.copytree(site / "chapters", tmp_path / "chapters")
    changes = {"Colab button": (f"/{stem}.ipynb", f"/{stem}.md"), "download button": (f'"{stem}.ipynb"', '"old.ipynb"')}
    html = (site / page).read_text(encoding="utf-8").replace(*changes.get(fault, ("", "")))
    (tmp_path / page).write_text(html, encoding="utf-8")
    if fault == "not the repository's":
        (tmp_path / page).with_suffix(".ipynb").write_text("{}", encoding="utf-8")
    with visiting(browser, tmp_path, page) as visit:
        assert [one for one in launches(visit) if one.startswith(fault)]


def test_a_missing_browser_is_a_skip_unless_it_is_needed(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delenv("DDCL_LITE_NEED_BROWSER", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no Chromium"):
        find_browser()
    monkeypatch.setenv("DDCL_LITE_NEED_BROWSER", "1")
    with pytest.raises(pytest.fail.Exception, match="no Chromium"):
        find_browser()
