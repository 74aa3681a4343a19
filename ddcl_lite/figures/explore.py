"""A figure behind sliders: computed by the kernel where there is one, and in advance on the published page."""

import hashlib
import html
import inspect
import itertools
import json
import math
import os
import random
import re
import sys
from collections.abc import Callable, Sequence

import matplotlib.pyplot as plt
import numpy as np

STATIC = "DDCL_LITE_STATIC"  # set by book.build for the kernels that execute the chapters: a page without a kernel
MOST = 24  # pictures on a page


def explore(fn: Callable, **values: Sequence) -> None:
    """Display what fn displays at one of the listed values, and a slider for each parameter: the figure is replaced.

    `explore(fn, beta=[0.5, 1, 2])` begins in the middle of the list with fn(beta=1), and calls fn(beta=...) when the
    slider moves. fn shows one figure with `show`, may print, and takes one or two of its parameters from here. In the
    published book all values, 24 combinations at most, are computed in advance and lie behind plain HTML sliders.
    What fn draws from the global generators of random, NumPy and torch (on the CPU) does not depend on earlier moves:
    each picture begins at their state when explore was called, and leaves them as they were. Figures that fn leaves
    open are closed. Raises TypeError for an fn that cannot be called, ValueError naming a parameter that fn does not
    have, or one without values; ImportError where a kernel lacks ipywidgets. Chapters 3 and 12.
    """
    if not callable(fn):
        raise TypeError(f"fn: expected a function, got {fn!r:.60}")
    values = {name: listed(name, each) for name, each in values.items()}
    accepts(fn, values)
    if os.environ.get(STATIC):
        from IPython.display import HTML, display

        display(HTML(page(fn, values)))
    else:
        widgets(fn, values)


def listed(name: str, values) -> list:
    """The values as a list. Raises ValueError unless there are some, all different as they read on the page."""
    values = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(values, str) or not hasattr(values, "__iter__"):
        raise ValueError(f"{name}: expected a list of values, got {values!r}")
    result = list(values)
    if not result or len(set(map(text, result))) < len(result):
        raise ValueError(f"{name}: expected different values, at least one, got {result}")
    return result


def accepts(fn: Callable, values: dict) -> None:
    """Raise ValueError unless fn takes these one or two parameters, needs no other, and they are few enough."""
    if not 1 <= len(values) <= 2:
        raise ValueError(f"values: expected one or two parameters to move, got {len(values)}: {', '.join(values)}")
    known = inspect.signature(fn).parameters.values()
    named = {one.name for one in known if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
    takes_all = any(one.kind == one.VAR_KEYWORD for one in known)
    for name in values:
        if name not in named and not takes_all:
            raise ValueError(f"{name}: expected a parameter of {naming(fn)}, which has {', '.join(sorted(named))}")
    missing = {one.name for one in known if one.name in named and one.default is one.empty} - set(values)
    if missing:
        raise ValueError(f"{', '.join(sorted(missing))}: {naming(fn)} needs a value, got none")
    count = math.prod(map(len, values.values()))
    if count > MOST:
        raise ValueError(f"{', '.join(values)}: expected at most {MOST} combinations of values, got {count}")


def naming(fn: Callable) -> str:
    return getattr(fn, "__name__", repr(fn))


def text(value) -> str:
    """A value as the page writes it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def middle(values: Sequence) -> int:
    """The place at which a slider begins."""
    return (len(values) - 1) // 2


def dice() -> list[tuple[Callable, object]]:
    """The global generators' states, each after the function that sets it."""
    states = [(random.setstate, random.getstate()), (np.random.set_state, np.random.get_state())]
    torch = sys.modules.get("torch")
    return states + ([(torch.set_rng_state, torch.get_rng_state())] if torch else [])


def throw(states) -> None:
    """Set the generators to what `dice` returned."""
    for put, state in states:
        put(state)


def captured(fn: Callable, states, **chosen) -> str:
    """What fn displays and prints, as HTML, begun with these `dice`; the figures that it opened are closed."""
    from IPython.utils.capture import capture_output

    before, own = set(plt.get_fignums()), dice()
    throw(states)
    try:
        with capture_output() as seen:
            fn(**chosen)
    finally:
        throw(own)
        for number in set(plt.get_fignums()) - before:
            plt.close(number)
        sys.stderr.write(seen.stderr)  # warnings go where they would have gone
    parts = [f"<pre>{html.escape(seen.stdout)}</pre>"] if seen.stdout else []
    for output in seen.outputs:
        data = output.data
        parts.append(data.get("text/html") or f"<pre>{html.escape(data.get('text/plain', ''))}</pre>")
    return "".join(parts)


def page(fn: Callable, values: dict) -> str:
    """All pictures, that of the middle values visible, and a script that puts sliders above them."""
    names, states = list(values), dice()
    combinations = [dict(zip(names, each)) for each in itertools.product(*values.values())]
    titles = [", ".join(f"{name} = {text(value)}" for name, value in chosen.items()) for chosen in combinations]
    panels = [(title, captured(fn, states, **chosen)) for title, chosen in zip(titles, combinations)]
    mark = "x" + hashlib.sha256(repr(panels).encode()).hexdigest()[:11]
    first = titles.index(", ".join(f"{name} = {text(each[middle(each)])}" for name, each in values.items()))
    others = "; ".join(f"{name}: {', '.join(map(text, each))}" for name, each in values.items())
    sliders = "".join(slider(name, list(map(text, each)), middle(each)) for name, each in values.items())
    body = "".join(
        f'<div role="group" aria-label="{html.escape(title)}"{" hidden" if place != first else ""}>'
        f"{own_ids(each, f'{mark}-{place}-')}</div>"
        for place, (title, each) in enumerate(panels)
    )
    return (
        f'<div class="ddcl-explore" data-explore="{mark}" data-lm-suppress-shortcuts="true">'  # JupyterLab's arrow keys
        f'<div class="ddcl-sliders" hidden>{sliders}</div>'
        f"<p>This is {html.escape(titles[first])}. "
        f"With scripts a slider shows the other values, too ({html.escape(others)}).</p>"
        f"<div>{body}</div></div><script>{SCRIPT.replace('MARK', mark)}</script>"
    )


def slider(name: str, texts: list[str], place: int) -> str:
    """A labelled slider over the texts, as HTML; the one shown beside it is told by the slider itself, once."""
    now = html.escape(texts[place])
    return (
        f'<label style="{LABEL}"><span>{html.escape(name)}</span> '
        f'<input type="range" min="0" max="{len(texts) - 1}" step="1" value="{place}" '
        f'style="width:11em;accent-color:#1f77b4" '
        f'data-texts="{html.escape(json.dumps(texts))}" aria-valuetext="{now}"> '
        f'<span class="ddcl-value" aria-hidden="true">{now}</span></label>'
    )


LABEL = "display:inline-flex;align-items:center;gap:.5em;min-height:2.4em;margin-right:1.5em"
SCRIPT = """(() => {
for (const host of document.querySelectorAll('[data-explore="MARK"]')) {
  const [bar, note, panels] = host.children, inputs = [...bar.querySelectorAll("input")];
  const show = () => {
    let place = 0; // of the combination, the last parameter running fastest
    for (const input of inputs) {
      const texts = JSON.parse(input.dataset.texts), chosen = texts[+input.value];
      place = place * texts.length + +input.value;
      input.setAttribute("aria-valuetext", chosen);
      input.parentElement.querySelector(".ddcl-value").textContent = chosen;
    }
    [...panels.children].forEach((panel, at) => { panel.hidden = at != place; });
  };
  for (const input of inputs) input.oninput = show;
  bar.hidden = false;
  note.hidden = true;
  show();
}
})()"""


def own_ids(content: str, prefix: str) -> str:
    """The HTML with every id, and every reference to one, prefixed: the same figure may stand on a page many times."""
    content = re.sub(r'(?<=\s)id="', f'id="{prefix}', content)
    return re.sub(r'(href="|url\()#', rf"\1#{prefix}", content)


def widgets(fn: Callable, values: dict) -> None:
    """Sliders of ipywidgets above one box, whose content each move replaces."""
    try:
        import ipywidgets
    except ImportError:
        raise ImportError("explore: needs ipywidgets in the kernel; install it with: pip install ipywidgets") from None
    from IPython.display import display

    box, states = ipywidgets.HTML(), dice()
    sliders = {  # of places, as not every value can be a widget's
        name: ipywidgets.SelectionSlider(
            options=[(text(value), place) for place, value in enumerate(each)],
            value=middle(each),
            description=name,
            continuous_update=False,
        )
        for name, each in values.items()
    }

    def move(change=None):
        try:
            box.value = captured(fn, states, **{name: values[name][slider.value] for name, slider in sliders.items()})
        except Exception as error:  # a front end shows nothing of what fails in a callback
            box.value = f"<pre>{html.escape(f'{type(error).__name__}: {error}')}</pre>"
            if change is None:
                raise

    move()
    for slider in sliders.values():
        slider.observe(move, "value")
    display(ipywidgets.VBox([*sliders.values(), box]))
