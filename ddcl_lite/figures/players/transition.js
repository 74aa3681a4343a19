// A recorded descent of ddcl_lite.experiments.transition, replayed: prototypes against temperature, moment by moment.
function transition(host, data) {
  const { steps, ratios, runs, colours } = data;
  const R = ratios.length, LAST = steps.length - 1, K = runs[0].heights.length / (R * (LAST + 1));
  const FRAMES = 12; // of the clock from one recorded moment to the next
  const s = { run: 0, moment: 0, at: middle() };

  function middle() { // the first temperature to read out: well below T_c, so that something opens
    return Math.max(0, ratios.findLastIndex((ratio) => ratio <= 0.7 * runs[0].critical));
  }

  // Moment m of a recording, m between 0 and LAST; between two recorded ones, the straight line.
  function between(list, size, index) {
    const early = Math.floor(s.moment), part = s.moment - early, late = Math.min(early + 1, LAST);
    return 1e-7 * ((1 - part) * list[early * size + index] + part * list[late * size + index]);
  }
  const height = (r, k) => between(runs[s.run].heights, R * K, r * K + k);
  const spread = (r) => between(runs[s.run].spreads, R, r);
  const values = () => ratios.map((_, r) => Array.from({ length: K }, (_, k) => height(r, k)));
  const taken = (moment) => { // steps of descent; between two recorded moments, a part of the way
    const early = Math.floor(moment), late = Math.min(early + 1, LAST);
    return Math.round(steps[early] + (moment - early) * (steps[late] - steps[early]));
  };

  function go(moment) {
    s.moment = Math.max(0, Math.min(LAST, moment));
    time.put(s.moment);
    return s.moment < LAST;
  }
  function step() {
    if (s.moment >= LAST) return false;
    go(Math.floor(s.moment) + 1);
    return true;
  }
  const tick = () => go(Math.round(FRAMES * s.moment + 1) / FRAMES);
  const starting = () => { if (s.moment >= LAST) go(0); };

  // The picture's frame: temperatures from 0 to a little more than the last, heights of all recordings at all moments.
  const top = 1e-7 * Math.max(...runs.flatMap((run) => run.heights.map(Math.abs))) * 1.08;
  const end = ratios[R - 1] * 1.04;
  const LEFT = 60, RIGHT = 10, ABOVE = 10 + 16 * runs.length, BELOW = 40;
  let across, up, back; // ratio -> px, height -> px, px -> ratio
  function measure(width, tall) {
    const wide = width - LEFT - RIGHT, high = tall - ABOVE - BELOW;
    across = (ratio) => LEFT + (wide * ratio) / end;
    up = (value) => ABOVE + (high * (1 - value / top)) / 2;
    back = (px) => ((px - LEFT) / wide) * end;
  }

  function paint(pen, width, tall) {
    measure(width, tall);
    axes(pen, width, tall);
    runs.forEach((run, at) => critical(pen, run, at, tall));
    cursor(pen, tall);
    bank(pen);
    return words();
  }
  function line(pen, x, y, x2, y2) {
    pen.beginPath();
    pen.moveTo(x, y);
    pen.lineTo(x2, y2);
    pen.stroke();
  }
  function axes(pen, width, tall) {
    const floor = tall - BELOW;
    pen.strokeStyle = pen.fillStyle = player.ink;
    pen.lineWidth = 1;
    line(pen, LEFT, ABOVE, LEFT, floor);
    line(pen, LEFT, floor, width - RIGHT, floor);
    pen.textAlign = "center";
    for (let i = 0; i * 0.25 <= end; i++) {
      const x = across(i * 0.25);
      line(pen, x, floor, x, floor + 4);
      pen.fillText(String(i * 0.25), x, floor + 17);
    }
    pen.fillText("T / T_c (q attached)", (LEFT + width - RIGHT) / 2, tall - 5);
    pen.textAlign = "right";
    const each = top > 2.2 ? 1 : 0.5;
    for (let value = -Math.floor(top / each) * each; value <= top; value += each) {
      line(pen, LEFT - 4, up(value), LEFT, up(value));
      pen.fillText(value.toFixed(1).replace("-", "−"), LEFT - 8, up(value) + 4);
    }
    pen.save();
    pen.translate(11, (ABOVE + floor) / 2);
    pen.rotate(-Math.PI / 2);
    pen.textAlign = "center";
    pen.fillText("leading direction (token sd)", 0, 0);
    pen.restore();
  }
  // The T_c of the recording on show is drawn through, the others' are marked above.
  function critical(pen, run, at, tall) {
    const x = across(run.critical), chosen = at == s.run;
    if (run.critical > end) return;
    pen.strokeStyle = pen.fillStyle = player.ink;
    pen.lineWidth = chosen ? 1.6 : 0.8;
    pen.setLineDash(chosen ? [6, 4] : [1, 4]);
    line(pen, x, ABOVE - 5, x, tall - BELOW);
    pen.setLineDash([]);
    const text = `T_c, ${run.name}`, room = pen.measureText(text).width / 2 + 4;
    pen.textAlign = "center";
    pen.fillText(text, Math.max(room, Math.min(pen.canvas.clientWidth - room, x)), 13 + 16 * (runs.length - 1 - at)); // a row each
  }
  function cursor(pen, tall) {
    const x = across(ratios[s.at]);
    pen.fillStyle = player.ink;
    pen.globalAlpha = 0.12;
    pen.fillRect(x - 6, ABOVE, 12, tall - ABOVE - BELOW);
    pen.globalAlpha = 1;
  }
  function bank(pen) {
    const now = values();
    for (let k = 0; k < K; k++) {
      pen.strokeStyle = pen.fillStyle = colours[k % colours.length];
      pen.lineWidth = 1;
      pen.beginPath();
      ratios.forEach((ratio, r) => pen.lineTo(across(ratio), up(now[r][k])));
      pen.stroke();
      ratios.forEach((ratio, r) => {
        pen.beginPath();
        pen.arc(across(ratio), up(now[r][k]), (r == s.at ? 6 : 4) - 2.5 * (k / K), 0, 7); // the last of a group on top
        pen.fill();
      });
    }
  }
  function words() {
    const places = values()[s.at].sort((a, b) => a - b).map((place) => place.toFixed(2).replace("-0.00", "0.00"));
    return `${runs[s.run].name}, step ${taken(s.moment)} of ${steps[LAST]}. At T = ${ratios[s.at].toFixed(2)} T_c (q attached): ` +
      `spread of the bank ${short(spread(s.at))} token sd; ` +
      `prototypes at ${[...new Set(places)].join(", ")}`; // those that read alike, once
  }

  const short = (value) => (value < 1e-6 ? "below 1e-6" : value < 1e-3 ? value.toExponential(1) : value.toFixed(3));
  function choose(at) {
    s.at = Math.max(0, Math.min(R - 1, at));
    temperature.put(s.at);
  }
  function point([x]) {
    const far = ratios.map((ratio) => Math.abs(ratio - back(x)));
    choose(far.indexOf(Math.min(...far)));
  }
  const player = stage(host, {
    label: "Prototypes against temperature",
    help: () => "Tap a temperature, or use the slider or the left and right arrow keys on the picture, to read it out.",
    height: (width) => Math.min(0.8 * width, 400),
    paint, step, tick, starting,
    keys: {
      ArrowLeft: () => choose(s.at - 1), ArrowRight: () => choose(s.at + 1), Home: () => choose(0), End: () => choose(R - 1),
    },
    drag: { down: point, move: point },
  });
  player.button("Start again", () => go(0));
  const time = player.slider("moment", { min: 0, max: LAST, step: 1, value: 0, format: (m) => `step ${taken(m)}` }, (moment) => {
    player.clock(false);
    go(moment);
  });
  const read = { min: 0, max: R - 1, step: 1, value: s.at, format: (r) => `${ratios[r].toFixed(2)} T_c` };
  const temperature = player.slider("temperature", read, choose);
  const names = Object.fromEntries(runs.map((run, at) => [at, run.name]));
  player.choice("recording", names, "0", (at) => { s.run = +at; });
  return Object.assign(player, { state: s, ratios, runs, values, spread, step, go });
}
