// What the players share: a shadow root over the static figure, a canvas, controls, a clock, and the page's colours.
// label, help: texts; height(width): of the canvas; paint(pen, width, height) -> the sentence below; step() -> false at rest;
// tick(): a step of the clock, if it is another one; begin(): called as the clock starts; keys: what they do on the canvas. Returns {canvas, button, slider, choice, toggle, draw, clock, ...}.
function stage(host, { label, help, height, paint, step, tick = step, begin = () => {}, keys }) {
  const make = (tag, props = {}, ...children) => {
    const one = Object.assign(document.createElement(tag), props);
    one.append(...children);
    return one;
  };
  const root = host.attachShadow({ mode: "open" });
  root.append(make("style", { textContent: STYLE }));
  const canvas = make("canvas", { tabIndex: 0 });
  canvas.setAttribute("role", "img");
  const bar = make("div", { className: "bar" });
  const status = make("output", { className: "status" });
  status.setAttribute("aria-live", "off"); // a running clock is not read out
  const live = make("div", { className: "live" }, canvas, bar, status);
  live.setAttribute("role", "group");
  live.setAttribute("aria-label", label);
  const caption = host.querySelector("figcaption")?.textContent ?? "";
  live.append(make("p", { className: "help", textContent: `${caption} ${help}` }));
  root.append(live, make("div", { className: "still" }, make("slot")));

  const pen = canvas.getContext("2d");
  const quiet = matchMedia("(prefers-reduced-motion: reduce)");
  let asked = 0, running = false, seen = true, width = 0;

  function draw() {
    if (!asked) asked = requestAnimationFrame(frame);
  }
  function frame() {
    asked = 0;
    if (running && seen) {
      // Reduced motion: no animation, but the same steps, many at a time, and one picture twice a second.
      let more = true;
      for (let i = quiet.matches ? 30 : 1; i && more; i--) more = tick();
      self.frames += 1;
      if (!more) clock(false);
    }
    show();
    if (running && seen) quiet.matches ? setTimeout(draw, 500) : draw();
  }
  function show() {
    width = live.clientWidth || 640;
    const tall = Math.round(height(width)), ratio = window.devicePixelRatio || 1;
    if (canvas.width != Math.round(width * ratio) || canvas.height != Math.round(tall * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(tall * ratio);
      canvas.style.height = `${tall}px`;
    }
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, tall);
    const page = getComputedStyle(host);
    self.ink = page.color;
    pen.font = `13px ${page.fontFamily}`;
    pen.strokeStyle = pen.fillStyle = self.ink;
    const words = paint(pen, width, tall);
    status.textContent = words;
    canvas.setAttribute("aria-label", `${label}: ${words}`);
  }
  function clock(on) {
    if (on) begin();
    running = on;
    run.textContent = on ? "Pause" : "Run";
    run.setAttribute("aria-pressed", on);
    status.setAttribute("aria-live", on ? "off" : "polite");
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
  const slider = (text, { min, max, step: by, value, format = String }, act) => {
    const shown = make("output");
    const one = labelled(text, make("input", { type: "range", min, max, step: by }), shown);
    one.put = (number) => { // without acting on it
      one.value = number;
      shown.textContent = format(number);
      one.setAttribute("aria-valuetext", format(number));
    };
    one.put(value);
    one.oninput = () => { one.put(+one.value); act(+one.value); draw(); };
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
  new MutationObserver(draw).observe(document.documentElement, { attributeFilter: ["data-theme", "class", "style", "theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  const self = { canvas, button, slider, choice, toggle, draw, clock, ink: "", frames: 0, running: () => running };
  draw();
  return self;
}

const STYLE = `
:host { display: block; margin: 1em 0; }
.live { color: inherit; font: inherit; }
canvas { display: block; width: 100%; touch-action: pan-y; border-radius: 4px; }
.bar { display: flex; flex-wrap: wrap; gap: .4em 1em; align-items: center; margin: .5em 0; }
.bar label { display: inline-flex; align-items: center; gap: .4em; min-height: 2.2em; }
.bar output { min-width: 2.5em; font-variant-numeric: tabular-nums; }
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
@media print { .live { display: none; } .still { display: block; } }
`;
