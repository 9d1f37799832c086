/* The interactive page: a start point on an energy, a flow, a method, a step size; the path and its energy.
 *
 * The first half is the mathematics, in pure functions that do what `lyapflow` and `solvers` do in float64;
 * tests/docs/test_interactive.py runs them under node and compares. The second half is the page.
 */
"use strict";

const LyapflowInteractive = (() => {
  const EPSILON = Number.EPSILON;

  // -- energies: as lyapflow.Quadratic, DoubleWell, Rosenbrock, Himmelblau ------------------------------------------

  const ENERGIES = {
    double_well: {
      label: "double well",
      formula: "V = (x² − 1)² + y² / 2",
      value: ([x, y]) => (x * x - 1) ** 2 + (y * y) / 2,
      gradient: ([x, y]) => [4 * x * (x * x - 1), y],
      view: { x: [-2, 2], y: [-1.5, 1.5] },
      start: [-0.3, 1.2],
      time: 6,
      step: 0.2,
      beta: 1,
    },
    bowl: {
      label: "narrow bowl",
      formula: "V = (x² + 50 y²) / 2",
      value: ([x, y]) => (x * x + y * (50 * y)) / 2,
      gradient: ([x, y]) => [x, 50 * y],
      view: { x: [-2, 2], y: [-1.5, 1.5] },
      start: [-1.6, 0.7],
      time: 4,
      step: 0.041,
      beta: 0.2,
    },
    rosenbrock: {
      label: "Rosenbrock's valley",
      formula: "V = 100 (y − x²)² + (1 − x)²",
      value: ([x, y]) => 100 * (y - x * x) ** 2 + (1 - x) ** 2,
      gradient: ([x, y]) => [-400 * x * (y - x * x) - 2 * (1 - x), 200 * (y - x * x)],
      view: { x: [-2, 2], y: [-0.8, 2.2] },
      start: [-1.2, 1.0],
      time: 4,
      step: 0.002,
      beta: 1,
    },
    himmelblau: {
      label: "Himmelblau's four wells",
      formula: "V = (x² + y − 11)² + (x + y² − 7)²",
      value: ([x, y]) => (x * x + y - 11) ** 2 + (x + y * y - 7) ** 2,
      gradient: ([x, y]) => [
        4 * x * (x * x + y - 11) + 2 * (x + y * y - 7),
        2 * (x * x + y - 11) + 4 * y * (x + y * y - 7),
      ],
      view: { x: [-6, 6], y: [-4.5, 4.5] },
      start: [0.2, 3.9],
      time: 0.5,
      step: 0.02,
      beta: 1,
    },
  };

  // -- the field ----------------------------------------------------------------------------------------------------

  const dot = (a, b) => a[0] * b[0] + a[1] * b[1];
  const along = (y, h, f) => [y[0] + f[0] * h, y[1] + f[1] * h];
  const finite = (y) => Number.isFinite(y[0]) && Number.isFinite(y[1]);

  /** alpha and beta of a flow: one of them is zero unless both parts are wanted. */
  function coefficients(flow, alpha, beta) {
    if (flow === "gradient") return [alpha, 0];
    if (flow === "tangential") return [0, beta];
    return [alpha, beta];
  }

  /** dh/dt = -alpha g + beta T, where T is g turned by a right angle, and so orthogonal to it. */
  function velocity(gradient, alpha, beta) {
    return [-alpha * gradient[0] - beta * gradient[1], -alpha * gradient[1] + beta * gradient[0]];
  }

  // -- methods: as solvers.methods()["euler"] and ["armijo_euler"] -----------------------------------------------------

  const ROUNDINGS = 16;
  const MAX_TRIES = 80;
  const SMALLEST_FRACTION = 1e-3;
  const SUFFICIENT = 1e-4;

  /** What is known at the start of a step. */
  function begin(energy, alpha, beta, t, y) {
    const value = energy.value(y);
    const g = energy.gradient(y);
    const f = velocity(g, alpha, beta);
    const slope = Math.min(dot(g, f), 0);
    const rounding = ROUNDINGS * EPSILON * (Math.abs(value) + Math.abs(g[0] * y[0]) + Math.abs(g[1] * y[1]));
    return { t, y, f, g, value, slope, rounding };
  }

  function eulerStep(start, energy, t1) {
    const y = along(start.y, t1 - start.t, start.f);
    return { t: t1, y, value: energy.value(y), shortened: false };
  }

  /** Euler's step, shortened until the energy falls by a share of what its slope promises. */
  function armijoStep(start, energy, t1) {
    const asked = t1 - start.t;
    let fraction = 1;
    let plainly = false; // along the descent part alone, where the tangential part spins too fast
    let proposal = carryOut();
    let good = judge();
    let tries = 0;
    for (; !good && tries < MAX_TRIES; tries++) {
      // The minimum of the parabola through the energy and its slope at the start and the energy at the end.
      const slope = start.slope * asked * fraction;
      const bend = proposal.value - start.value - slope;
      const guess = Number.isFinite(bend) && bend > 0 ? -slope / (2 * bend) : 0.1;
      fraction *= Math.min(Math.max(guess, 0.1), 0.5);
      if (!plainly && fraction < SMALLEST_FRACTION) {
        plainly = true;
        fraction = 1;
      }
      proposal = carryOut();
      good = judge();
    }
    const stuck = plainly && start.t + fraction * asked <= start.t;
    if (!good || stuck) return { t: t1, y: start.y, value: start.value, shortened: true, plainly: false, rested: true };
    return { ...proposal, shortened: tries > 0, plainly, rested: false };

    function carryOut() {
      const t = fraction === 1 ? t1 : start.t + fraction * asked;
      const reached = plainly ? start.t + fraction * asked : t;
      const y = along(start.y, reached - start.t, plainly ? descentPart(start) : start.f);
      return { t: reached, y, value: energy.value(y) };
    }

    function judge() {
      const due = (proposal.t - start.t) * start.slope;
      const allowed = -due > 4 * start.rounding ? SUFFICIENT * due : start.rounding;
      return proposal.value <= start.value + allowed || !finite(start.f) || !Number.isFinite(start.value);
    }
  }

  function descentPart(start) {
    const square = dot(start.g, start.g);
    const share = Math.min(dot(start.f, start.g) / (square > 0 ? square : 1), 0);
    return [share * start.g[0], share * start.g[1]];
  }

  const METHODS = { euler: eulerStep, armijo_euler: armijoStep };
  const SLIVER = 1e-6; // a step that would leave less than this part of itself goes to the end at once

  /**
   * Follow a flow from `start` at time 0 to time `time`.
   *
   * Returns the times, states and energies of all steps, and which of them raised the energy beyond rounding.
   */
  function solve({ energy: name, flow, alpha, beta, method, step, start, time, maxSteps = 20000 }) {
    const energy = ENERGIES[name];
    const [a, b] = coefficients(flow, alpha, beta);
    const result = { t: [0], y: [start], energy: [energy.value(start)], rises: [], status: "" };
    Object.assign(result, { shortened: 0, shortest: step, plainly: 0, rested: 0 });
    let t = 0;
    let y = start;
    let size = step;
    while (t < time) {
      if (result.t.length > maxSteps) return { ...result, status: "step limit" };
      const t1 = size * (1 + SLIVER) >= time - t ? time : t + size;
      const from = begin(energy, a, b, t, y);
      const to = METHODS[method](from, energy, t1);
      if (!finite(to.y)) return { ...result, status: "not finite" };
      if (!(to.value <= from.value + from.rounding)) result.rises.push(result.t.length);
      if (to.rested) result.rested++;
      else if (to.plainly) result.plainly++;
      else if (to.shortened) {
        result.shortened++;
        result.shortest = Math.min(result.shortest, to.t - t);
      }
      // After a shortened step the next is about as short, and they grow back in steps of two, as with solvers.Fixed.
      size = Math.max(Math.min(2 * (to.shortened ? to.t - t : size), step), step / 32);
      t = to.t;
      y = to.y;
      result.t.push(t);
      result.y.push(y);
      result.energy.push(to.value);
    }
    return { ...result, status: "success" };
  }

  // -- words ----------------------------------------------------------------------------------------------------------

  /** A number for a reader: three digits. */
  function round(x) {
    if (x === 0) return "0";
    if (!Number.isFinite(x)) return "∞";
    const size = Math.abs(x);
    if (size >= 1e-3 && size < 1e5) return String(Number(x.toPrecision(3)));
    const [digits, exponent] = x.toExponential(1).split("e");
    return `${digits} · 10${superscript(Number(exponent))}`;
  }

  const superscript = (n) => [...String(n)].map((c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(c)])).join("");

  /** What happened to the energy, in words. */
  function describe(result, setting) {
    const steps = result.t.length - 1;
    const [first, last] = [result.energy[0], result.energy[steps]];
    const count = (n) => (n === 1 ? "1 step" : `${n} steps`);
    const said = [];
    if (result.rises.length) {
      const k = result.rises[0];
      const change = `from ${round(result.energy[k - 1])} to ${round(result.energy[k])}`;
      said.push(
        result.rises.length === steps
          ? `${setting.method} raises the energy in each of its ${count(steps)}, in the first ${change}.`
          : `${setting.method} raises the energy in ${result.rises.length} of its ${count(steps)}, ` +
              `for the first time at t = ${round(result.t[k - 1])}: ${change}.`
      );
    } else {
      said.push(`${setting.method} raises the energy in none of its ${count(steps)}: it goes from ${round(first)} to ${round(last)}.`);
    }
    if (result.status === "not finite") said.push("Then the numbers overflow.");
    if (result.status === "step limit") said.push("That is as many steps as this page takes.");
    if (result.shortened) said.push(`It shortened ${count(result.shortened)}, the most to ${round(result.shortest)}.`);
    if (result.plainly) {
      const kept = setting.flow === "tangential" ? "it stayed where it was" : "it followed the descent part alone";
      said.push(`In ${count(result.plainly)} the energy would have risen even on a thousandth of the way, so ${kept}.`);
    }
    if (result.rested) said.push(`In ${count(result.rested)} it rested, at a minimum to within rounding.`);
    return said.join(" ");
  }

  return { ENERGIES, METHODS, coefficients, velocity, solve, describe, round };
})();

if (typeof module !== "undefined" && module.exports) module.exports = LyapflowInteractive;

// -- the page -----------------------------------------------------------------------------------------------------------

if (typeof document !== "undefined") {
  document.addEventListener("DOMContentLoaded", () => {
    const root = document.getElementById("lyapflow-interactive");
    if (root) startPage(root, LyapflowInteractive);
  });
}

function startPage(root, { ENERGIES, coefficients, velocity, solve, describe, round }) {
  const SVG = "http://www.w3.org/2000/svg";
  const find = (selector) => root.querySelector(selector);
  const stage = find(".lf-stage svg");
  const chart = find(".lf-chart svg");
  const shade = find(".lf-stage canvas");
  const STAGE = { width: 640, height: 480 };
  const CHART = { width: 640, height: 240, left: 62, right: 12, top: 30, bottom: 40 };
  const MAX_DRAWN = 3000;

  const state = {
    energy: Object.keys(ENERGIES)[0],
    flow: "combined",
    method: "euler",
    alpha: 1,
  };
  const OTHER = { euler: "armijo_euler", armijo_euler: "euler" };

  // -- between the energy's plane and the picture

  const view = () => ENERGIES[state.energy].view;
  const toStage = ([x, y]) => {
    const { x: xs, y: ys } = view();
    return [((x - xs[0]) / (xs[1] - xs[0])) * STAGE.width, ((ys[1] - y) / (ys[1] - ys[0])) * STAGE.height];
  };
  const fromPointer = (event) => {
    const box = stage.getBoundingClientRect();
    const { x: xs, y: ys } = view();
    return [
      xs[0] + ((event.clientX - box.left) / box.width) * (xs[1] - xs[0]),
      ys[1] - ((event.clientY - box.top) / box.height) * (ys[1] - ys[0]),
    ];
  };
  const inside = ([x, y]) => {
    const { x: xs, y: ys } = view();
    const clamp = (v, [low, high]) => Math.min(Math.max(v, low), high);
    return [clamp(x, xs), clamp(y, ys)];
  };

  function element(parent, name, attributes, text) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    parent.appendChild(made);
    return made;
  }

  // -- level sets: marching squares on a grid, and a shade that is the deeper the higher the energy

  function drawLandscape() {
    const energy = ENERGIES[state.energy];
    const [nx, ny] = [128, 96];
    const { x: xs, y: ys } = energy.view;
    const values = [];
    for (let j = 0; j <= ny; j++) {
      const row = [];
      for (let i = 0; i <= nx; i++) {
        row.push(energy.value([xs[0] + (i / nx) * (xs[1] - xs[0]), ys[1] - (j / ny) * (ys[1] - ys[0])]));
      }
      values.push(row);
    }
    const sorted = values.flat().sort((a, b) => a - b);
    const quantile = (q) => sorted[Math.floor(q * (sorted.length - 1))];
    const levels = Array.from({ length: 13 }, (_, k) => quantile(0.012 + (0.97 * (k + 0.3)) / 13));
    const cell = [STAGE.width / nx, STAGE.height / ny];
    const group = find(".lf-levels");
    group.replaceChildren();
    for (const level of levels) element(group, "path", { d: contour(values, level, cell) });

    shade.width = nx;
    shade.height = ny;
    const context = shade.getContext("2d");
    const image = context.createImageData(nx, ny);
    for (let j = 0; j < ny; j++) {
      for (let i = 0; i < nx; i++) {
        const value = (values[j][i] + values[j + 1][i + 1]) / 2;
        const rank = levels.filter((level) => level < value).length / levels.length;
        const at = 4 * (j * nx + i);
        image.data.set([110, 125, 145, 14 + 105 * rank], at);
      }
    }
    context.putImageData(image, 0, 0);
  }

  function contour(values, level, [cx, cy]) {
    const parts = [];
    const cut = (a, b) => (level - a) / (b - a);
    for (let j = 0; j + 1 < values.length; j++) {
      for (let i = 0; i + 1 < values[j].length; i++) {
        const [a, b, c, d] = [values[j][i], values[j][i + 1], values[j + 1][i + 1], values[j + 1][i]];
        const points = [];
        if (a < level !== b < level) points.push([i + cut(a, b), j]);
        if (b < level !== c < level) points.push([i + 1, j + cut(b, c)]);
        if (d < level !== c < level) points.push([i + cut(d, c), j + 1]);
        if (a < level !== d < level) points.push([i, j + cut(a, d)]);
        for (let k = 0; k + 1 < points.length; k += 2) {
          const [p, q] = [points[k], points[k + 1]];
          parts.push(`M${(p[0] * cx).toFixed(1)} ${(p[1] * cy).toFixed(1)}L${(q[0] * cx).toFixed(1)} ${(q[1] * cy).toFixed(1)}`);
        }
      }
    }
    return parts.join("");
  }

  // -- the path and its energy

  const drawn = (v) => Math.min(Math.max(v, -1e5), 1e5).toFixed(1); // an exploding path leaves the picture, no more

  function polyline(points) {
    const stride = Math.ceil(points.length / MAX_DRAWN);
    const kept = points.filter((_, k) => k % stride === 0 || k === points.length - 1);
    return kept.map(([x, y], k) => `${k ? "L" : "M"}${drawn(x)} ${drawn(y)}`).join("");
  }

  function segments(points, ends) {
    const stride = Math.ceil(ends.length / MAX_DRAWN);
    return ends
      .filter((_, k) => k % stride === 0)
      .map((k) => `M${points[k - 1].map(drawn).join(" ")}L${points[k].map(drawn).join(" ")}`)
      .join("");
  }

  /** A path that leaves the picture for good is drawn until it is far outside. */
  function whileNear(points) {
    const far = ([x, y]) => Math.abs(x / STAGE.width - 0.5) > 1.5 || Math.abs(y / STAGE.height - 0.5) > 1.5;
    if (!far(points.at(-1))) return points;
    return points.slice(0, points.findIndex(far) + 1);
  }

  function drawPath(result, other) {
    const points = whileNear(result.y.map(toStage));
    const rises = result.rises.filter((k) => k < points.length);
    find(".lf-path").setAttribute("d", polyline(points));
    find(".lf-path").setAttribute("class", `lf-path lf-${state.flow}`);
    find(".lf-rising").setAttribute("d", segments(points, rises));
    find(".lf-other").setAttribute("d", polyline(whileNear(other.y.map(toStage))));
    const dots = find(".lf-dots");
    dots.replaceChildren();
    if (points.length <= 120) {
      for (const [x, y] of points) element(dots, "circle", { cx: drawn(x), cy: drawn(y), r: 2.4 });
    }
    const [x, y] = toStage(state.start);
    find(".lf-start").setAttribute("transform", `translate(${x.toFixed(1)} ${y.toFixed(1)})`);
    drawArrows(x, y);
  }

  function drawArrows(x, y) {
    const g = ENERGIES[state.energy].gradient(state.start);
    const [alpha, beta] = coefficients(state.flow, state.alpha, state.beta);
    const arrows = {
      descent: velocity(g, alpha, 0),
      tangential: velocity(g, 0, beta),
      combined: velocity(g, alpha, beta),
    };
    const longest = Math.max(...Object.values(arrows).map(([u, v]) => Math.hypot(u, v)));
    const group = find(".lf-arrows");
    group.replaceChildren();
    if (!(longest > 0)) return;
    const shown = state.flow === "gradient" ? ["descent"] : state.flow === "tangential" ? ["tangential"] : Object.keys(arrows);
    for (const name of shown) {
      const [u, v] = arrows[name].map((entry) => (entry / longest) * 66);
      const length = Math.hypot(u, v);
      if (length < 4) continue;
      const [dx, dy] = [u / length, -v / length];
      const [tx, ty] = [x + u, y - v];
      const head = `M${tx - 9 * dx - 5 * dy} ${ty - 9 * dy + 5 * dx}L${tx} ${ty}L${tx - 9 * dx + 5 * dy} ${ty - 9 * dy - 5 * dx}`;
      element(group, "path", { d: `M${x} ${y}L${tx} ${ty}${head}`, class: `lf-arrow lf-${name === "descent" ? "gradient" : name}` });
    }
  }

  function drawEnergy(result, other) {
    const time = ENERGIES[state.energy].time;
    const first = Math.max(result.energy[0], 1e-12);
    const all = [...result.energy, ...other.energy].filter((v) => Number.isFinite(v) && v > 0);
    const low = Math.floor(Math.log10(Math.max(Math.min(...bounds(all)), first * 1e-8)));
    const high = Math.max(Math.ceil(Math.log10(Math.min(Math.max(...bounds(all)), first * 1e4))), low + 1);
    const place = (t, v) => {
      const rank = (Math.log10(Math.max(v, 1e-300)) - low) / (high - low);
      const inner = CHART.height - CHART.top - CHART.bottom;
      return [
        CHART.left + (t / time) * (CHART.width - CHART.left - CHART.right),
        CHART.top + (1 - Math.min(Math.max(rank, -0.02), 1.5)) * inner,
      ];
    };
    const points = result.t.map((t, k) => place(t, result.energy[k]));
    find(".lf-energy").setAttribute("d", polyline(points));
    find(".lf-energy").setAttribute("class", `lf-energy lf-${state.flow}`);
    find(".lf-energy-rising").setAttribute("d", segments(points, result.rises));
    find(".lf-energy-other").setAttribute("d", polyline(other.t.map((t, k) => place(t, other.energy[k]))));
    drawAxes(place, low, high, time);
  }

  function bounds(values) {
    let [low, high] = [Infinity, -Infinity];
    for (const v of values) {
      low = Math.min(low, v);
      high = Math.max(high, v);
    }
    return [low, high];
  }

  function drawAxes(place, low, high, time) {
    const group = find(".lf-axes");
    group.replaceChildren();
    const every = Math.max(1, Math.ceil((high - low) / 5));
    for (let k = low; k <= high; k += every) {
      const [x, y] = place(0, 10 ** k);
      element(group, "line", { x1: x, x2: CHART.width - CHART.right, y1: y, y2: y });
      const label = element(group, "text", { x: x - 8, y: y + 4, "text-anchor": "end" }, k === 0 ? "1" : k === 1 ? "10" : "10");
      if (k !== 0 && k !== 1) element(label, "tspan", { dy: -5, "font-size": 10 }, String(k).replace("-", "−"));
    }
    for (let k = 0; k <= 4; k++) {
      const [x] = place((time * k) / 4, 1);
      element(group, "text", { x, y: CHART.height - CHART.bottom + 18, "text-anchor": k === 4 ? "end" : "middle" }, round((time * k) / 4));
    }
    const middle = (CHART.left + CHART.width - CHART.right) / 2;
    element(group, "text", { x: middle, y: CHART.height - 5, "text-anchor": "middle" }, "time");
    element(group, "text", { x: CHART.left, y: 14 }, "energy V");
  }

  // -- everything together

  function settings(method) {
    return { ...state, method, time: ENERGIES[state.energy].time };
  }

  function update() {
    const setting = settings(state.method);
    const result = solve(setting);
    const other = solve(settings(OTHER[state.method]));
    drawPath(result, other);
    drawEnergy(result, other);
    find(".lf-words").textContent = describe(result, setting);
    find(".lf-words").classList.toggle("lf-raised", result.rises.length > 0);
    const at = state.start.map((v) => v.toFixed(2).replace("-", "−"));
    find(".lf-start").setAttribute("aria-valuetext", `x ${at[0]}, y ${at[1]}`);
    find("[data-show=start]").textContent = `(${at.join(", ")})`;
    find("[data-show=step]").textContent = round(state.step);
    find("[data-show=alpha]").textContent = state.alpha.toFixed(2);
    find("[data-show=beta]").textContent = state.beta.toFixed(2);
    find("[data-show=from]").textContent = round(result.energy[0]);
    find("[data-show=to]").textContent = round(result.energy.at(-1));
    find("[data-show=formula]").textContent = ENERGIES[state.energy].formula;
    for (const name of ["alpha", "beta"]) {
      find(`[name=${name}]`).disabled = state.flow === (name === "alpha" ? "tangential" : "gradient");
    }
    // For tests: what is shown, unrounded.
    root.dataset.setting = JSON.stringify(setting);
    root.dataset.energies = JSON.stringify([result.energy[0], result.energy.at(-1)]);
    root.dataset.steps = String(result.t.length - 1);
    root.dataset.rises = String(result.rises.length);
  }

  const range = () => {
    const { time } = ENERGIES[state.energy];
    return [Math.log10(time / 5000), Math.log10(time / 4)];
  };

  function showStep() {
    const [low, high] = range();
    find("[name=step]").value = String(Math.round((1000 * (Math.log10(state.step) - low)) / (high - low)));
  }

  function chooseEnergy(name) {
    const { start, step, beta } = ENERGIES[name];
    Object.assign(state, { energy: name, alpha: 1, start, step, beta });
    for (const key of ["alpha", "beta"]) find(`[name=${key}]`).value = String(state[key]);
    showStep();
    drawLandscape();
    update();
  }

  for (const [name, { label }] of Object.entries(ENERGIES)) {
    const option = document.createElement("option");
    option.value = name;
    option.textContent = label;
    find("[name=energy]").appendChild(option);
  }
  find("[name=energy]").addEventListener("change", (event) => chooseEnergy(event.target.value));
  for (const name of ["flow", "method"]) {
    root.querySelectorAll(`[name=${name}]`).forEach((input) =>
      input.addEventListener("change", () => {
        state[name] = input.value;
        update();
      })
    );
  }
  for (const name of ["alpha", "beta"]) {
    find(`[name=${name}]`).addEventListener("input", (event) => {
      state[name] = Number(event.target.value);
      update();
    });
  }
  find("[name=step]").addEventListener("input", (event) => {
    const [low, high] = range();
    state.step = 10 ** (low + (Number(event.target.value) / 1000) * (high - low));
    update();
  });
  find("[name=reset]").addEventListener("click", () => chooseEnergy(state.energy));

  // Dragging, with a mouse, a pen or a finger; a tap puts the start there; arrow keys move it.
  const handle = find(".lf-start");
  let dragging = false;
  const move = (point) => {
    state.start = inside(point);
    update();
  };
  handle.addEventListener("pointerdown", (event) => {
    dragging = true;
    handle.setPointerCapture(event.pointerId);
    handle.focus({ preventScroll: true });
    event.preventDefault();
  });
  // The finger moves the point and does not scroll the page; inside of an SVG, touch-action alone does not say so.
  handle.addEventListener("touchstart", (event) => event.preventDefault(), { passive: false });
  handle.addEventListener("pointermove", (event) => dragging && move(fromPointer(event)));
  for (const name of ["pointerup", "pointercancel"]) handle.addEventListener(name, () => (dragging = false));
  stage.addEventListener("click", (event) => {
    if (!handle.contains(event.target)) move(fromPointer(event));
  });
  handle.addEventListener("keydown", (event) => {
    const directions = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
    const direction = directions[event.key];
    if (!direction) return;
    event.preventDefault();
    const { x: xs } = view();
    const by = (xs[1] - xs[0]) * (event.shiftKey ? 0.0025 : 0.02);
    move([state.start[0] + by * direction[0], state.start[1] + by * direction[1]]);
  });

  chooseEnergy(state.energy);
  root.classList.add("lf-ready");
}
