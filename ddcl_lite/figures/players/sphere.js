// Tokens on S^2 that attract each other, in the unit of ddcl_lite.meanfield: the same drift, the same Runge-Kutta step.
const NO_ENERGY = "rotary-qk";

/** The flow of s = {kernel, beta, offset, x, labels, time}; halfTurns are the diagonals of the four prompts' matrices. */
function flow(s, halfTurns) {
  const LONGEST = 1, MOVE = 0.05; // of a step: library time, radians

  // The frame: u_i = G_i x_i, where G_i turns the plane of the first two axes, or is one of the half-turns.
  const turns = () => s.kernel == "rotary" || s.kernel == "rotary-qk" || s.kernel == "prompts";
  function turn(x, back = false) {
    if (!turns()) return x;
    const u = new Float64Array(x.length);
    for (let i = 0, k = 0; k < x.length; i++, k += 3) {
      if (s.kernel == "prompts") {
        const signs = halfTurns[prompt(i)]; // its own inverse
        for (let c = 0; c < 3; c++) u[k + c] = signs[c] * x[k + c];
      } else {
        const cos = Math.cos(s.labels[i]), sin = back ? -Math.sin(s.labels[i]) : Math.sin(s.labels[i]);
        u[k] = cos * x[k] - sin * x[k + 1];
        u[k + 1] = sin * x[k] + cos * x[k + 1];
        u[k + 2] = x[k + 2];
      }
    }
    return u;
  }
  const prompt = (i) => Math.floor(s.labels[i] / (Math.PI / 2) + 1e-9) % 4;

  // w_ij = a_ij exp(beta (<u_i, u_j> - 1)), called for i <= j.
  function weigh(u, visit) {
    const n = u.length / 3, toeplitz = s.kernel == "toeplitz";
    for (let i = 0; i < n; i++) {
      for (let j = i; j < n; j++) {
        const dot = u[3 * i] * u[3 * j] + u[3 * i + 1] * u[3 * j + 1] + u[3 * i + 2] * u[3 * j + 2];
        const w = Math.exp(s.beta * (dot - 1));
        visit(i, j, toeplitz ? w * (s.offset + Math.cos(s.labels[i] - s.labels[j])) : w);
      }
    }
  }
  function drift(x) {
    const u = turn(x), values = s.kernel == "rotary-qk" ? x : u, n = x.length / 3;
    let sum = new Float64Array(x.length);
    weigh(u, (i, j, w) => {
      for (let c = 0; c < 3; c++) {
        sum[3 * i + c] += w * values[3 * j + c];
        if (i < j) sum[3 * j + c] += w * values[3 * i + c];
      }
    });
    if (values !== x) sum = turn(sum, true);
    for (let k = 0; k < sum.length; k++) sum[k] /= n;
    return tangent(x, sum);
  }
  function energy(x) {
    if (s.kernel == NO_ENERGY) return NaN;
    const n = x.length / 3;
    let sum = 0;
    weigh(turn(x), (i, j, w) => { sum += i < j ? 2 * w : w; });
    return sum / (2 * s.beta * n * n);
  }

  // The sphere: projection, exponential map, and velocities at exp_x(w) carried back to x.
  const each = (x, act) => {
    const out = new Float64Array(x.length);
    for (let k = 0; k < x.length; k += 3) act(k, out);
    return out;
  };
  const dot = (a, b, k) => a[k] * b[k] + a[k + 1] * b[k + 1] + a[k + 2] * b[k + 2];
  const sinc = (angle) => (angle ? Math.sin(angle) / angle : 1);
  const tangent = (x, v) => each(x, (k, out) => {
    const along = dot(x, v, k);
    for (let c = k; c < k + 3; c++) out[c] = v[c] - along * x[c];
  });
  const exponential = (x, w) => each(x, (k, out) => {
    const angle = Math.sqrt(dot(w, w, k)), cos = Math.cos(angle), sin = sinc(angle);
    for (let c = k; c < k + 3; c++) out[c] = cos * x[c] + sin * w[c];
    const length = Math.sqrt(dot(out, out, k));
    for (let c = k; c < k + 3; c++) out[c] /= length;
  });
  const pullBack = (x, w, v) => tangent(x, each(x, (k, out) => {
    const angle = Math.sqrt(dot(w, w, k)), cos = Math.cos(angle), sin = Math.sin(angle), shrink = sinc(angle);
    const ahead = [0, 1, 2].map((c) => (angle ? w[k + c] / angle : 0));
    const arrived = ahead.map((a, c) => cos * a - sin * x[k + c]);
    const along = arrived.reduce((sum, a, c) => sum + a * v[k + c], 0);
    for (let c = 0; c < 3; c++) out[k + c] = along * ahead[c] + (v[k + c] - along * arrived[c]) / shrink;
  }));
  const times = (h, v) => v.map((each) => h * each);

  /** One classical Runge-Kutta step in normal coordinates at x. */
  function advance(h, first = drift(s.x)) {
    const slopes = [first];
    for (const node of [0.5, 0.5, 1]) {
      const w = times(h * node, slopes.at(-1));
      slopes.push(pullBack(s.x, w, drift(exponential(s.x, w))));
    }
    const [a, b, c, d] = slopes;
    s.x = exponential(s.x, a.map((_, k) => (h * (a[k] + 2 * b[k] + 2 * c[k] + d[k])) / 6));
    s.time += h;
  }
  /** A step of at most MOVE; false at rest. */
  function step() {
    const first = drift(s.x);
    let fastest = 0;
    for (let k = 0; k < first.length; k += 3) fastest = Math.max(fastest, Math.sqrt(dot(first, first, k)));
    if (fastest < 1e-9) return false; // at rest
    advance(Math.min(LONGEST, MOVE / fastest), first);
    return true;
  }
  function resultant(x) {
    const mean = [0, 0, 0];
    x.forEach((value, k) => { mean[k % 3] += (3 * value) / x.length; });
    return Math.hypot(...mean);
  }
  /** Move every token by up to `size`. */
  function shake(noise, size) {
    s.x = exponential(s.x, tangent(s.x, times(size, Float64Array.from(noise))));
  }
  return { turns, turn, prompt, drift, energy, advance, step, resultant, shake };
}

function sphere(host, data) {
  const KERNELS = {
    usa: "plain attention (USA)",
    rotary: "rotary",
    "rotary-qk": "rotary, queries and keys only",
    toeplitz: "c + cos of the label difference",
    prompts: "four prompts (half-turns)",
  };
  const s = { kernel: data.kernel, beta: data.beta, offset: data.offset, time: 0, view: [-1.05, 0.44] };
  const moves = flow(s, data.halfTurns), { turns, turn, prompt, energy, resultant } = moves;
  const labelled = () => data.labelled || s.kernel != "usa";
  let history = [];

  function place(tokens, labels) {
    s.start = s.x = Float64Array.from(tokens);
    s.labels = Float64Array.from(labels);
    restart();
  }
  function restart() { // time and curves; the tokens stay
    s.time = 0;
    history = [];
    note();
  }
  function note() {
    const last = { time: s.time, energy: 2 * s.beta * energy(s.x), content: resultant(s.x), gauge: resultant(turn(s.x)) };
    history.push(last);
    if (history.length > 600) history = history.filter((_, i) => i % 2 == 0 || i == history.length - 1);
  }
  function step() {
    const more = moves.step();
    if (more) note();
    return more;
  }

  // Starts drawn here: uniform on the sphere. Labels: those given, in turn, where tokens share them; else a ring.
  const random = generator(1);
  function uniform(n) {
    return Array.from({ length: n }, () => {
      const z = 2 * random() - 1, angle = 2 * Math.PI * random(), r = Math.sqrt(1 - z * z);
      return [r * Math.cos(angle), r * Math.sin(angle), z];
    }).flat();
  }
  const distinct = [...new Set(data.labels)];
  function labels(n) {
    const shared = distinct.length < data.labels.length;
    return Array.from({ length: n }, (_, i) => (shared ? distinct[i % distinct.length] : (2 * Math.PI * i) / n));
  }
  function resize(n) {
    n == data.labels.length ? place(data.tokens, data.labels) : place(uniform(n), labels(n));
  }

  // Colours: a closed wheel for labels on a ring, one colour for each prompt; one colour where there are no labels.
  const channels = data.colours.map((one) => [1, 3, 5].map((at) => parseInt(one.slice(at, at + 2), 16)));
  function colour(i) {
    if (!labelled()) return data.colours[0];
    if (s.kernel == "prompts") return data.colours[prompt(i)];
    const place = ((s.labels[i] / (2 * Math.PI)) % 1 + 1) % 1 * 4, first = Math.floor(place) % 4, part = place % 1;
    const mix = channels[first].map((c, at) => Math.round(c + part * (channels[(first + 1) % 4][at] - c)));
    return `rgb(${mix})`;
  }

  function paint(pen, width, height) {
    const pair = turns(), below = 64, size = Math.min((height - below - 24) / 2, width / (pair ? 4 : 2)) - 8;
    const places = pair ? [0.25, 0.75] : [0.5];
    [s.x, turn(s.x)].slice(0, places.length).forEach((x, frame) => {
      const cx = places[frame] * width, cy = 20 + size + 4;
      pen.textAlign = "center";
      pen.fillStyle = player.ink;
      pen.fillText(pair ? ["content x", "gauge frame G x"][frame] : "tokens x", cx, 13);
      ball(pen, x, cx, cy, size);
    });
    curves(pen, 0, height - below, width, below);
    const last = history.at(-1), round = (value) => value.toFixed(3);
    return `time ${last.time < 100 ? last.time.toPrecision(3) : last.time.toFixed(0)}; resultant length ${round(last.content)}` +
      (pair ? `, in the gauge frame ${round(last.gauge)}` : "") +
      (s.kernel == NO_ENERGY ? "; this kernel has no energy" : `; energy ${round(last.energy)} of 1/(2 beta)`);
  }
  function ball(pen, x, cx, cy, size) {
    const [azimuth, elevation] = s.view, [ca, sa, ce, se] =
      [Math.cos(azimuth), Math.sin(azimuth), Math.cos(elevation), Math.sin(elevation)];
    const project = (a, b, c) =>
      [cx + size * (-sa * a + ca * b), cy - size * (-se * ca * a - se * sa * b + ce * c), ce * ca * a + ce * sa * b + se * c];
    pen.strokeStyle = player.ink;
    pen.lineWidth = 0.8;
    pen.beginPath();
    pen.arc(cx, cy, size, 0, 7);
    pen.stroke();
    for (const front of [false, true]) {
      pen.setLineDash(front ? [] : [2, 3]);
      pen.beginPath();
      for (let i = 0, on = false; i <= 90; i++) {
        const [px, py, depth] = project(Math.cos((i * Math.PI) / 45), Math.sin((i * Math.PI) / 45), 0);
        const here = depth >= 0 == front;
        here && on ? pen.lineTo(px, py) : pen.moveTo(px, py);
        on = here;
      }
      pen.stroke();
      pen.setLineDash([]);
      for (let k = 0; k < x.length; k += 3) {
        const [px, py, depth] = project(x[k], x[k + 1], x[k + 2]);
        if (depth >= 0 != front) continue;
        pen.beginPath();
        pen.arc(px, py, 3.5, 0, 7);
        pen.fillStyle = pen.strokeStyle = colour(k / 3);
        front ? pen.fill() : pen.stroke();
      }
      pen.strokeStyle = player.ink;
    }
    const [ax, ay] = project(0, 0, 1.15), [bx, by] = project(0, 0, -1.15);
    pen.setLineDash([2, 3]);
    pen.beginPath();
    pen.moveTo(ax, ay);
    pen.lineTo(bx, by);
    pen.stroke();
    pen.setLineDash([]);
  }
  function curves(pen, left, top, width, height) {
    const content = turns() ? "resultant, x" : "resultant length";
    const rows = { energy: ["energy", 3], content: [content, 0], gauge: ["resultant, G x", 1] };
    if (!turns()) delete rows.gauge;
    if (s.kernel == NO_ENERGY) delete rows.energy;
    const names = Object.keys(rows), end = history.at(-1).time || 1, base = top + height - 6, tall = height - 26;
    const low = Math.min(0, ...history.map((one) => one.energy || 0));
    const room = names.map((name) => 25 + pen.measureText(rows[name][0]).width); // of the legend
    const gap = (width - room.reduce((sum, one) => sum + one)) / names.length;
    let from = left;
    pen.lineWidth = 0.6;
    pen.strokeRect(left + 0.5, base - tall, width - 1, tall);
    names.forEach((name, at) => {
      pen.strokeStyle = pen.fillStyle = data.colours[rows[name][1]];
      pen.lineWidth = 1.8;
      pen.setLineDash([[], [6, 3], [2, 3]][at]);
      pen.beginPath();
      history.forEach((one, i) => {
        const px = left + (width * one.time) / end, py = base - (tall * (one[name] - low)) / (1 - low);
        i ? pen.lineTo(px, py) : pen.moveTo(px, py);
      });
      pen.stroke();
      pen.beginPath();
      pen.moveTo(from, top + 6);
      pen.lineTo(from + 20, top + 6);
      pen.stroke();
      pen.setLineDash([]);
      pen.fillStyle = player.ink;
      pen.textAlign = "left";
      pen.fillText(rows[name][0], from + 25, top + 10);
      from += room[at] + gap;
    });
    pen.strokeStyle = player.ink;
  }

  const rotate = (across, up) => {
    s.view[0] += across;
    s.view[1] = Math.max(-1.5, Math.min(1.5, s.view[1] + up));
  };
  const player = stage(host, {
    label: "Tokens on a sphere",
    help: () => "Drag a sphere, or use the arrow keys on it, to turn it. Hollow tokens lie on the far side." +
      (labelled() ? " Colours are labels." : ""),
    height: (width) => Math.min(width / (turns() ? 2 : 1), turns() ? 340 : 300) + 84,
    paint,
    step,
    keys: {
      ArrowLeft: () => rotate(0.1, 0), ArrowRight: () => rotate(-0.1, 0),
      ArrowUp: () => rotate(0, 0.1), ArrowDown: () => rotate(0, -0.1),
    },
    drag: {
      down: () => true,
      move: (_, [across, down]) => rotate(-across / 120, down / 120),
      cursor: (_, held) => (held ? "grabbing" : "grab"),
    },
  });
  player.button("Start again", () => { s.x = s.start; restart(); });
  player.button("New start", () => place(uniform(s.labels.length), s.labels));
  player.button("Shake", () => { moves.shake(uniform(s.labels.length), 0.02); note(); }, "moves every token by up to 0.02");
  player.choice("kernel", KERNELS, s.kernel, (kernel) => {
    s.kernel = kernel;
    offset.disabled = kernel != "toeplitz";
    restart();
  });
  player.slider("beta", { min: 0.5, max: 8, step: 0.5, value: s.beta }, (beta) => { s.beta = beta; restart(); });
  player.slider("tokens n", { min: 8, max: 256, step: 8, value: data.labels.length }, resize);
  const range = { min: -0.5, max: 1, step: 0.05, value: s.offset, format: (c) => c.toFixed(2) };
  const offset = player.slider("c", range, (c) => { s.offset = c; restart(); });
  offset.disabled = s.kernel != "toeplitz";
  place(data.tokens, data.labels);
  return Object.assign(player, { state: s, ...moves, step });
}
