// A bank of prototypes p_k reads tokens z_n in the plane: the loss of ddcl_lite.prototypes, its two parts, their forces, their steps.
const TERMS = ["V", "L_OLS", "L_q"]; // in the order of the colours

// The plane.
const minus = (a, b) => [a[0] - b[0], a[1] - b[1]];
const dot = (a, b) => a[0] * b[0] + a[1] * b[1];
const square = (a) => dot(a, a);
const copy = (points) => points.map((point) => [...point]);
const mean = (points) => [0, 1].map((axis) => points.reduce((sum, point) => sum + point[axis] / points.length, 0));
const weighted = (weights, values) => weights.reduce((sum, weight, k) => sum + weight * values[k], 0);

/** The bank of s = {tokens, bank, ratio, held, term}, T_c being `units` largest eigenvalues of the tokens' covariance. */
function descent(s, units) {
  const RATE = 0.5; // P <- P + RATE * force
  const COINCIDE = 0.02; // token sd: one prototype or two

  // The tokens' covariance C = (1/N) sum_n y_n y_n^T, y_n = z_n - mean: its trace, and its largest eigenvalue.
  function cloud() {
    const centre = mean(s.tokens), n = s.tokens.length;
    let a = 0, b = 0, c = 0;
    for (const [x, y] of s.tokens.map((token) => minus(token, centre))) {
      a += (x * x) / n;
      b += (x * y) / n;
      c += (y * y) / n;
    }
    const largest = (a + c) / 2 + Math.hypot((a - c) / 2, b);
    return { centre, variance: a + c, sd: Math.sqrt(a + c) || 1e-12, critical: units * largest };
  }

  // d_nk = |z_n - p_k|^2, q_nk = softmax_k(-d_nk / T), mu_n = sum_k q_nk p_k. Minus the gradient of a term, at p_k, is
  //   -(2/N) sum_n q_nk [a_nk + c_nk (p_k - z_n)],
  // with c = 0 where q is held fixed. Attached, dq_nj / dd_nk = -q_nj (1_jk - q_nk) / T gives
  //   V      a = p_k - mu_n    c = (V_n - |p_k - mu_n|^2) / T
  //   L_OLS  a = mu_n - z_n    c = 2 (z_n - mu_n).(p_k - mu_n) / T
  //   L_q    a = p_k - z_n     c = (L_n - d_nk) / T
  function read() {
    const { bank, tokens } = s, n = tokens.length, T = Math.max(s.ratio * cloud().critical, 1e-12);
    const loss = {}, force = {};
    for (const term of TERMS) {
      loss[term] = 0;
      force[term] = bank.map(() => [0, 0]);
    }
    for (const z of tokens) {
      const away = bank.map((p) => minus(p, z)), d = away.map(square), least = Math.min(...d);
      const heat = d.map((one) => Math.exp((least - one) / T)), sum = heat.reduce((a, b) => a + b);
      const q = heat.map((one) => one / sum);
      const mu = [0, 1].map((axis) => weighted(q, bank.map((p) => p[axis])));
      const off = bank.map((p) => minus(p, mu)), blur = off.map(square), rest = minus(z, mu);
      const each = { V: weighted(q, blur), L_OLS: square(rest), L_q: weighted(q, d) };
      for (const term of TERMS) loss[term] += each[term] / n;
      for (let k = 0; k < bank.length; k++) {
        const a = { V: off[k], L_OLS: [-rest[0], -rest[1]], L_q: away[k] };
        const c = { V: each.V - blur[k], L_OLS: 2 * dot(rest, off[k]), L_q: each.L_q - d[k] };
        for (const term of TERMS) {
          const through = s.held ? 0 : c[term] / T;
          for (const axis of [0, 1]) force[term][k][axis] -= (2 / n) * q[k] * (a[term][axis] + through * away[k][axis]);
        }
      }
    }
    return { loss, force };
  }

  /** The term's step: P <- P + RATE * force; the one that a finger holds, number `kept`, stays. Returns the longest move. */
  function advance(kept) {
    const force = read().force[s.term];
    let longest = 0;
    s.bank = s.bank.map((p, k) => {
      const [x, y] = force[k].map((f) => (k == kept ? 0 : RATE * f));
      longest = Math.max(longest, Math.hypot(x, y));
      return [p[0] + x, p[1] + y];
    });
    return longest;
  }

  // What the bank looks like: its size, and how many of it are apart (a chain of short steps joins).
  function spread() {
    const centre = mean(s.bank);
    return Math.sqrt(s.bank.reduce((sum, p) => sum + square(minus(p, centre)) / s.bank.length, 0)) / cloud().sd;
  }
  function distinct() {
    const reach = COINCIDE * cloud().sd, group = s.bank.map((_, k) => k);
    s.bank.forEach((p, j) => s.bank.slice(0, j).forEach((other, k) => {
      const [old, fresh] = [group[j], group[k]];
      if (Math.sqrt(square(minus(p, other))) <= reach) group.forEach((g, i) => { if (g == old) group[i] = fresh; });
    }));
    return new Set(group).size;
  }
  /** d log(spread) / dt under each force: above 0 apart, below 0 together; NaN where the bank is one point, to rounding. */
  function rates(force) {
    const centre = mean(s.bank), open = s.bank.map((p) => minus(p, centre));
    const size = open.reduce((sum, one) => sum + square(one), 0);
    const rounding = 1e-12 * Math.max(cloud().sd, ...s.bank.flat().map(Math.abs));
    const point = Math.sqrt(size / s.bank.length) <= rounding;
    const along = (term) => open.reduce((sum, one, k) => sum + dot(one, force[term][k]), 0);
    return Object.fromEntries(TERMS.map((term) => [term, point ? NaN : along(term) / size]));
  }
  return { cloud, read, advance, spread, distinct, rates };
}

function prototypes(host, data) {
  const NEAR = 0.5, NUDGE = 0.05; // token sd: what moves along; one press of a key
  const DRAGS = { one: "one token", near: "tokens near it", all: "all tokens" };
  const s = { ratio: data.ratio, held: data.held, term: data.term, arrows: "all", drags: "near", chosen: null };
  const { cloud, read, advance, spread, distinct, rates } = descent(s, data.critical);
  let trail = [], grip = null, scale = 1; // banks passed through; where a finger holds what is chosen; pixels for one unit of distance

  function step() {
    trail.push(s.bank);
    if (trail.length > 600) trail = trail.filter((_, i) => i % 2 == 0);
    const kept = grip && s.chosen.kind == "prototype" ? s.chosen.index : -1;
    return advance(kept) >= 1e-9 * cloud().sd || grip != null; // else at rest
  }

  // Starts.
  const random = generator(1);
  function near(size) { // normal, about the tokens' mean
    const { centre, sd } = cloud(), r = Math.sqrt(-2 * Math.log(1 - random())), angle = 2 * Math.PI * random();
    return [centre[0] + size * sd * r * Math.cos(angle), centre[1] + size * sd * r * Math.sin(angle)];
  }
  function restart() {
    letGo();
    s.tokens = copy(data.tokens);
    s.bank = copy(data.prototypes);
    trail = [];
  }
  function resize(count) {
    if (s.chosen?.kind == "prototype" && s.chosen.index >= count) letGo();
    s.bank = s.bank.slice(0, count);
    while (s.bank.length < count) s.bank.push(near(0.1));
    trail = [];
  }
  function collapse() {
    s.bank = s.bank.map(() => near(1e-3));
    trail = [];
  }

  // Choosing and moving, by finger, mouse or key. `along`: the points that move, as they were chosen.
  function letGo() {
    player.release();
    s.chosen = null;
  }
  function choose(kind, index) {
    const points = kind == "token" ? s.tokens : s.bank, reach = s.drags == "near" ? NEAR * cloud().sd : 0;
    const joins = (point, i) => i == index || (kind == "token" &&
      (s.drags == "all" || Math.sqrt(square(minus(point, points[index]))) < reach));
    s.chosen = { kind, index, along: points.map((point, i) => (joins(point, i) ? i : -1)).filter((i) => i >= 0) };
  }
  const chosen = () => (s.chosen.kind == "token" ? s.tokens : s.bank);
  function move(across, up) {
    for (const i of s.chosen.along) chosen()[i] = [chosen()[i][0] + across, chosen()[i][1] + up];
    trail = [];
  }
  function cycle(kind, by) {
    const count = (kind == "token" ? s.tokens : s.bank).length;
    const from = s.chosen?.kind == kind ? s.chosen.index : by > 0 ? -1 : 0;
    choose(kind, (from + by + count) % count);
  }
  function press(across, up) {
    if (!s.chosen) choose("prototype", 0);
    const size = NUDGE * cloud().sd;
    move(across * size, up * size);
  }

  // Where things are on the canvas. Everything fits, the start at most at its own size; still while a finger drags.
  const BELOW = 164;
  const middle = [0, 1].map((axis) => {
    const line = [...data.tokens, ...data.prototypes].map((point) => point[axis]);
    return (Math.min(...line) + Math.max(...line)) / 2;
  });
  function fit(points, width, height) {
    return Math.min(...points.map((point) => {
      const [x, y] = minus(point, middle).map(Math.abs);
      return Math.min((width / 2 - 14) / x, (height / 2 - 14) / y);
    }));
  }
  const size = { width: 1, height: 1 };
  const there = (point) => [size.width / 2 + scale * (point[0] - middle[0]), size.height / 2 - scale * (point[1] - middle[1])];
  function lay(width, height) {
    Object.assign(size, { width, height });
    if (grip) return;
    scale = Math.min(fit([...data.tokens, ...data.prototypes], width, height) / 1.12, fit([...s.tokens, ...s.bank], width, height));
  }

  function disc(pen, [x, y], radius, hollow = false) {
    pen.beginPath();
    pen.arc(x, y, radius, 0, 7);
    hollow ? pen.stroke() : pen.fill();
  }
  function line(pen, points) {
    pen.beginPath();
    points.forEach(([x, y], i) => (i ? pen.lineTo(x, y) : pen.moveTo(x, y)));
    pen.stroke();
  }
  function arrow(pen, [x, y], [across, down], term) {
    const length = Math.hypot(across, down);
    if (length < 2) return;
    const head = Math.min(9, 0.6 * length), [ux, uy] = [across / length, down / length];
    const base = [x + across - head * ux, y + down - head * uy];
    pen.strokeStyle = pen.fillStyle = data.colours[TERMS.indexOf(term)];
    pen.lineWidth = 2.2;
    pen.setLineDash({ V: [5, 3], L_OLS: [2, 2] }[term] ?? []);
    line(pen, [[x, y], base]);
    pen.setLineDash([]);
    pen.beginPath();
    pen.moveTo(x + across, y + down);
    pen.lineTo(base[0] - 0.5 * head * uy, base[1] + 0.5 * head * ux);
    pen.lineTo(base[0] + 0.5 * head * uy, base[1] - 0.5 * head * ux);
    pen.fill();
  }
  /** Text in which _word is a subscript; returns where it ends. */
  function write(pen, text, x, y) {
    const usual = pen.font;
    pen.textAlign = "left";
    for (const part of text.split(/(_\w+)/)) {
      const low = part[0] == "_";
      pen.font = low ? usual.replace("13px", "10px") : usual;
      pen.fillText(low ? part.slice(1) : part, x, y + (low ? 3 : 0));
      x += pen.measureText(low ? part.slice(1) : part).width;
    }
    pen.font = usual;
    return x;
  }

  const fixed = (value) => value.toFixed(3).replace(/^-(0\.0+)$/, "$1");
  function paint(pen, width, height) {
    const now = read(), { critical, sd, variance } = cloud(), rate = rates(now.force);
    lay(width, height - BELOW);
    scene(pen, now.force);
    pen.fillStyle = pen.strokeStyle = player.ink;
    pen.lineWidth = 1;
    const top = height - BELOW, unit = scale * sd;
    line(pen, [[1, top + 9], [1, top + 17], [1, top + 13], [1 + unit, top + 13], [1 + unit, top + 9], [1 + unit, top + 17]]);
    write(pen, "1 token sd", unit + 9, top + 18);
    legend(pen, top + 40, rate);
    bars(pen, top + 82, now.loss, variance);
    const part = (term) => fixed(now.loss[term] / variance);
    const apart = `${distinct()} of ${s.bank.length}`;
    pen.fillStyle = player.ink;
    write(pen, `spread of the bank ${fixed(spread())} token sd, ${apart} distinct`, 0, top + 160);
    return `T = ${s.ratio.toFixed(2)} T_c, T_c = ${data.critical} lambda_max = ${critical.toPrecision(4)}; ` +
      `q ${s.held ? "held fixed" : "attached"}. Loss L_q ${part("L_q")} = L_OLS ${part("L_OLS")} + V ${part("V")} token variances. ` +
      `Spread ${fixed(spread())} token sd, ${apart} prototypes distinct. ` +
      (isNaN(rate.V) ? "All coincide." : `Rate of opening: ${TERMS.map((term) => `${term} ${fixed(rate[term])}`).join(", ")}.`) + told();
  }
  function told() {
    if (!s.chosen) return "";
    const { kind, index, along } = s.chosen, where = chosen()[index].map((x) => x.toFixed(2)).join(", ");
    return ` Chosen: ${kind} ${index + 1} at (${where})${along.length > 1 ? `, with ${along.length - 1} more` : ""}.`;
  }
  function scene(pen, force) {
    pen.save();
    pen.strokeStyle = player.ink;
    pen.lineWidth = 0.8;
    pen.strokeRect(0.5, 0.5, size.width - 1, size.height - 1);
    pen.beginPath();
    pen.rect(0, 0, size.width, size.height);
    pen.clip();
    pen.fillStyle = data.colours[4];
    s.tokens.forEach((token) => disc(pen, there(token), 2));
    const [x, y] = there(cloud().centre);
    line(pen, [[x - 6, y], [x + 6, y]]);
    line(pen, [[x, y - 6], [x, y + 6]]);
    pen.globalAlpha = 0.5;
    if (trail.length) s.bank.forEach((p, k) => line(pen, [...trail.map((bank) => there(bank[k])), there(p)]));
    pen.globalAlpha = 1;
    const shown = TERMS.filter((term) => s.arrows == "all" || s.arrows == term).reverse(); // dashes over the line of L_q
    const longest = Math.max(0, ...shown.flatMap((term) => force[term].map((f) => Math.hypot(...f))));
    const stretch = Math.min(2 * scale, (0.3 * size.height) / (longest || 1)); // pixels for one unit of force
    for (const term of shown) s.bank.forEach((p, k) => arrow(pen, there(p), [stretch * force[term][k][0], -stretch * force[term][k][1]], term));
    pen.fillStyle = pen.strokeStyle = player.ink;
    s.bank.forEach((p) => disc(pen, there(p), 4.5));
    pen.lineWidth = 1.5;
    if (s.chosen) {
      disc(pen, there(chosen()[s.chosen.index]), 9, true);
      pen.lineWidth = 0.7;
      if (s.chosen.kind == "token") s.chosen.along.forEach((i) => disc(pen, there(s.tokens[i]), 4, true));
    }
    pen.restore();
  }
  function legend(pen, top, rate) {
    TERMS.forEach((term, at) => {
      const x = (at * size.width) / 3;
      arrow(pen, [x, top], [26, 0], term);
      pen.fillStyle = player.ink;
      write(pen, `\u2212\u2207${term}`, x + 32, top + 4);
      const speed = Math.abs(rate[term]).toFixed(3), does = speed == 0 ? "rate" : rate[term] < 0 ? "closes at" : "opens at";
      write(pen, isNaN(rate[term]) ? "no size, no rate" : `${does} ${speed}`, x, top + 22);
    });
  }
  function bars(pen, top, loss, variance) {
    const parts = { L_OLS: loss.L_OLS / variance, V: loss.V / variance }, total = loss.L_q / variance;
    const unit = size.width / Math.max(1.25, 1.05 * total);
    pen.fillStyle = player.ink;
    let x = write(pen, `L_q ${total.toFixed(3)} =`, 0, top + 10), left = 0;
    for (const [term, value] of Object.entries(parts)) {
      pen.fillStyle = data.colours[TERMS.indexOf(term)];
      pen.fillRect(x + 6, top, 10, 10);
      pen.fillRect(left, top + 18, unit * value, 16);
      pen.fillStyle = player.ink;
      x = write(pen, `${term} ${value.toFixed(3)}${term == "V" ? "" : " +"}`, x + 20, top + 10);
      left += unit * value;
    }
    const words = " token variances"; // where they fit
    if (x + pen.measureText(words).width <= size.width) write(pen, words, x, top + 10);
    pen.strokeStyle = player.ink;
    pen.lineWidth = 1.2;
    line(pen, [[unit, top + 15], [unit, top + 40]]);
    pen.textAlign = "center";
    pen.fillText("1: the mean alone", Math.max(56, Math.min(size.width - 56, unit)), top + 53);
  }

  const arrows = { all: "all", ...Object.fromEntries(TERMS.map((term) => [term, `\u2212\u2207${term}`])), none: "none" };
  const digits = Object.fromEntries([1, 2, 3, 4, 5, 6, 7, 8, 9].map((k) => [k, () => k <= s.bank.length && choose("prototype", k - 1)]));
  const REACH = { touch: 22, mouse: 12 }; // fingers reach farther than a mouse
  function find(place, reach) {
    for (const [kind, points] of [["prototype", s.bank], ["token", s.tokens]]) {
      const far = points.map((point) => square(minus(there(point), place))), least = Math.min(...far);
      if (least <= reach * reach) return [kind, far.indexOf(least)];
    }
    return null;
  }
  const drag = {
    down(place, pointer) {
      const found = find(place, REACH[pointer] ?? REACH.mouse);
      s.chosen = null;
      if (!found) return false;
      choose(...found);
      grip = place;
    },
    move(place) { // not beyond the picture
      const kept = [size.width, size.height].map((most, axis) => Math.max(8, Math.min(most - 8, place[axis])));
      const [across, down] = minus(kept, grip);
      move(across / scale, -down / scale);
      grip = kept;
    },
    up() { grip = null; },
    cursor: (place, held) => (held ? "grabbing" : find(place, REACH.mouse) ? "grab" : ""),
  };
  const player = stage(host, {
    label: "Tokens and prototypes",
    help: () => "Drag prototypes (large) and tokens (small); the cross is the tokens' mean. Below it, how fast each force alone would open or close the bank. " +
      (s.held ? "With q held fixed, descending L_q lowers the free energy; L_q itself may rise a little. " : "") +
      "By keyboard, on the picture: 1 to 9 choose a prototype, n and p the next and the previous one, t and T a token; the arrow keys move it; Escape lets go.",
    height: (width) => Math.min(0.72 * width, 420) + BELOW,
    paint,
    step,
    keys: {
      ArrowLeft: () => press(-1, 0), ArrowRight: () => press(1, 0), ArrowUp: () => press(0, 1), ArrowDown: () => press(0, -1),
      n: () => cycle("prototype", 1), p: () => cycle("prototype", -1), t: () => cycle("token", 1), T: () => cycle("token", -1),
      Escape: letGo, ...digits,
    },
    drag,
  });

  restart();
  player.canvas.addEventListener("touchstart", (event) => { // a finger that meets nothing scrolls the page
    if (event.touches.length == 1 && find(player.at(event.touches[0]), REACH.touch)) event.preventDefault();
  }, { passive: false });

  player.button("Start again", () => { restart(); count.put(s.bank.length); });
  player.button("Collapse", collapse, "All prototypes to the tokens' mean, up to a thousandth of a token sd");
  player.slider("T / T_c", { min: 0.05, max: 3, step: 0.05, value: s.ratio, format: (ratio) => ratio.toFixed(2) }, (ratio) => { s.ratio = ratio; });
  const count = player.slider("prototypes K", { min: 1, max: 12, step: 1, value: data.prototypes.length }, resize);
  player.toggle("q held fixed", s.held, (held) => { s.held = held; });
  player.choice("descend", { L_q: "L_q", L_OLS: "L_OLS", V: "V" }, s.term, (term) => { s.term = term; });
  player.choice("arrows", arrows, s.arrows, (which) => { s.arrows = which; });
  player.choice("dragging moves", DRAGS, s.drags, (drags) => {
    s.drags = drags;
    if (s.chosen) choose(s.chosen.kind, s.chosen.index);
  });
  return Object.assign(player, { state: s, cloud, read, step, spread, distinct, rates, choose, move, there });
}
