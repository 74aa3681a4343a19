// What the players share: a shadow root over the static figure, a canvas, controls, a clock, and the page's colours.
// A player gives, in `options`:
//   label            what it is, in a few words
//   help()           -> the text below the controls
//   height(width)    -> the canvas's, in pixels
//   paint(pen, width, height)  -> the sentence below the canvas
//   step()           -> false at rest
//   tick()           a step of the clock, if it is another one
//   starting()       called as the clock starts
//   keys             {key: act}, on the canvas
//   drag             {down(place, pointerType) -> false if nothing is there, move(place, change), up(), cursor(place, held)}
// It gets back the canvas, its controls (button, slider, choice, toggle), draw(), clock(on), release(), which ends a drag,
// at(event), a place on the canvas, and the page's ink.
function stage(host, { label, help, height, paint, step, tick = step, starting = () => {}, keys, drag }) {
  const make = (tag, props = {}, ...children) => {
    const one = Object.assign(document.createElement(tag), props);
    one.append(...children);
    return one;
  };
  const canvas = make("canvas", { tabIndex: 0 });
  const pen = canvas.getContext("2d");
  if (!pen) throw new Error("no canvas to draw on: the still figure stays");
  const root = host.attachShadow({ mode: "open" });
  host.dataset.lmSuppressShortcuts = "true"; // JupyterLab leaves the keys to us
  root.append(make("style", { textContent: STYLE }));
  canvas.setAttribute("role", "application"); // it has keys of its own
  canvas.setAttribute("aria-roledescription", "figure");
  const bar = make("div", { className: "bar" });
  const status = make("output", { className: "status" });
  const live = make("div", { className: "live" }, canvas, bar, status);
  live.setAttribute("role", "group");
  live.setAttribute("aria-label", label);
  const caption = host.querySelector("figcaption")?.textContent ?? "";
  const below = make("p", { className: "help" });
  live.append(below);
  root.append(live, make("div", { className: "still" }, make("slot")));

  const quiet = matchMedia("(prefers-reduced-motion: reduce)");
  const many = 30, pause = 500; // ticks at once and ms between pictures, with reduced motion
  let asked = 0, timer = 0, running = false, seen = true;

  function draw() {
    if (!asked) asked = requestAnimationFrame(frame);
  }
  function frame() {
    asked = 0;
    if (!host.isConnected) return;
    if (running && seen && !quiet.matches) advance(1);
    show();
    if (!running || !seen) return;
    // Reduced motion: no animation, but the same steps, many at a time.
    quiet.matches ? timer ||= setTimeout(() => { timer = 0; if (running && seen) advance(many); draw(); }, pause) : draw();
  }
  function advance(ticks) {
    let more = true;
    for (; ticks && more; ticks--) more = tick();
    player.frames += 1;
    if (!more) clock(false);
  }
  function show() {
    const width = live.clientWidth || 640, tall = Math.round(height(width)), ratio = window.devicePixelRatio || 1;
    if (canvas.width != Math.round(width * ratio) || canvas.height != Math.round(tall * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(tall * ratio);
      canvas.style.height = `${tall}px`;
    }
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, tall);
    const page = getComputedStyle(host);
    player.ink = page.color;
    pen.font = `13px ${page.fontFamily}`;
    pen.strokeStyle = pen.fillStyle = player.ink;
    const words = paint(pen, width, tall);
    put(status, words);
    put(below, `${caption} ${help()}`);
    if (!running) canvas.setAttribute("aria-label", `${label}: ${words}`);
  }
  function put(one, text) { // what is written anew is read out anew
    if (one.textContent != text) one.textContent = text;
  }
  function clock(on) {
    if (on) starting();
    running = on;
    clearTimeout(timer);
    timer = 0;
    put(run, on ? "Pause" : "Run");
    status.setAttribute("aria-live", on ? "off" : "polite"); // a running clock is not read out
    draw();
  }

  const button = (text, act, title = "") => {
    const one = make("button", { type: "button", textContent: text, title, onclick: () => { act(); draw(); } });
    bar.append(one);
    return one;
  };
  const labelled = (text, control, ...more) => {
    bar.append(make("label", {}, make("span", { textContent: text }), control, ...more));
    return control;
  };
  // A slider counts its stops: those of the grid, and the value that it begins with.
  const slider = (text, { min, max, step: by, value, format = String }, act) => {
    const grid = Array.from({ length: Math.round((max - min) / by) + 1 }, (_, i) => +(min + i * by).toFixed(9));
    const stops = [...new Set([...grid, value])].sort((a, b) => a - b);
    const shown = make("span", { className: "value" });
    shown.setAttribute("aria-hidden", true); // the slider says it already
    const one = labelled(text, make("input", { type: "range", min: 0, max: stops.length - 1, step: 1 }), shown);
    one.put = (number) => { // without acting on it
      const far = stops.map((stop) => Math.abs(stop - number));
      one.value = far.indexOf(Math.min(...far));
      put(shown, format(number));
      one.setAttribute("aria-valuetext", format(number));
    };
    one.put(value);
    one.oninput = () => {
      const number = stops[+one.value];
      one.put(number);
      act(number);
      draw();
    };
    return one;
  };
  const choice = (text, options, value, act) => {
    const entries = Object.entries(options).map(([key, name]) => make("option", { value: key, textContent: name }));
    const one = labelled(text, make("select", {}, ...entries));
    one.value = value;
    one.onchange = () => { act(one.value); draw(); };
    return one;
  };
  const toggle = (text, checked, act) => {
    const one = labelled(text, make("input", { type: "checkbox", checked }));
    one.onchange = () => { act(one.checked); draw(); };
    return one;
  };

  // One pointer at a time drags, from where it went down on the canvas; not every browser knows movementX here.
  let held = null;
  const at = ({ clientX, clientY }) => {
    const box = canvas.getBoundingClientRect();
    return [clientX - box.left, clientY - box.top];
  };
  const point = (place) => { canvas.style.cursor = drag.cursor?.(place, !!held) ?? ""; };
  function release() {
    if (!held) return;
    held = null;
    drag.up?.();
  }
  canvas.onpointerdown = (event) => {
    if (event.button != 0 || (held && held.id != event.pointerId)) return;
    release();
    const place = at(event);
    if (drag.down(place, event.pointerType) !== false) {
      held = { id: event.pointerId, place };
      canvas.setPointerCapture(event.pointerId);
    }
    point(place);
    draw();
  };
  canvas.onpointermove = (event) => {
    const place = at(event);
    if (held?.id == event.pointerId && !(event.buttons & 1)) release();
    point(place);
    if (held?.id != event.pointerId) return;
    drag.move(place, [place[0] - held.place[0], place[1] - held.place[1]]);
    held.place = place;
    draw();
  };
  canvas.onpointerup = canvas.onpointercancel = (event) => {
    if (held?.id != event.pointerId) return;
    release();
    point(at(event));
    draw();
  };
  canvas.addEventListener("keydown", (event) => {
    const act = keys[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act(event);
    draw();
  });

  const run = button("Run", () => clock(!running));
  button("Step", () => { clock(false); step(); });
  new ResizeObserver(draw).observe(live);
  new IntersectionObserver((entries) => { seen = entries.at(-1).isIntersecting; if (seen) draw(); }).observe(live);
  follow(new WeakRef(host));
  const player = { canvas, button, slider, choice, toggle, draw, clock, release, at, ink: "", frames: 0, running: () => running };
  clock(false);
  return player;
}

// Draw again as the page changes its colours. The page keeps this for good, so this must not keep the host.
function follow(weak) {
  const dark = matchMedia("(prefers-color-scheme: dark)"), marks = new MutationObserver(changed);
  const attributeFilter = ["class", "style", "theme", "data-theme", "data-jp-theme-light", "data-vscode-theme-kind"];
  for (const one of [document.documentElement, document.body]) marks.observe(one, { attributeFilter });
  dark.addEventListener("change", changed);
  document.addEventListener("transitionend", faded);
  function faded({ propertyName }) {
    if (propertyName == "color") changed();
  }
  function changed() {
    const host = weak.deref();
    if (host?.isConnected) host.player?.draw();
    if (host) return;
    marks.disconnect();
    dark.removeEventListener("change", changed);
    document.removeEventListener("transitionend", faded);
  }
}

/** A function that returns numbers between 0 and 1, the same ones for the same seed. */
function generator(seed) {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

const STYLE = `
:host { display: block; margin: 1em 0; }
.live { color: inherit; font: inherit; }
canvas { display: block; width: 100%; touch-action: pan-y pinch-zoom; border-radius: 4px; }
.bar { display: flex; flex-wrap: wrap; gap: .4em 1em; align-items: center; margin: .5em 0; }
.bar label { display: inline-flex; align-items: center; gap: .4em; min-height: 2.2em; max-width: 100%; }
.bar select { min-width: 0; }
.value { min-width: 2.5em; font-variant-numeric: tabular-nums; }
button, select { font: inherit; color: inherit; background: transparent; border: 1px solid currentColor;
  border-radius: 4px; padding: .3em .8em; min-height: 2.2em; cursor: pointer; }
option { color: #111; background: #fff; }
button:hover { background: color-mix(in srgb, currentColor 12%, transparent); }
input[type=range] { width: 8.5em; accent-color: #1f77b4; }
input[type=checkbox] { width: 1.2em; height: 1.2em; accent-color: #1f77b4; }
:focus-visible { outline: 2px solid #1f77b4; outline-offset: 2px; }
.status { display: block; font-variant-numeric: tabular-nums; min-height: 1.5em; }
.help { margin: .2em 0 0; font-size: .9em; }
.still { display: none; }
@media print { .live { display: none; } .still { display: block; color: #000; background: #fff; } }
`;
