"use strict";
// Every text from the data goes in as a text node or an attribute's value, never as markup.
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const set = (node, attributes) => Object.entries(attributes).forEach(([name, value]) => node.setAttribute(name, value));
const maker = (namespace) => (tag, attributes = {}, ...children) => {
  const node = document.createElementNS(namespace, tag);
  set(node, attributes);
  node.append(...children.flat());
  return node;
};
const html = maker("http://www.w3.org/1999/xhtml"), svg = maker("http://www.w3.org/2000/svg");
const label = (x, y, text, anchor) => svg("text", { x, y, "text-anchor": anchor }, text);
const color = (i) => `--color: var(--c${i % 8})`;
const swatch = (i) => html("i", { class: "swatch", style: color(i) });
const max = (values) => values.reduce((a, b) => Math.max(a, b ?? -Infinity), -Infinity);
const min = (values) => values.reduce((a, b) => Math.min(a, b ?? Infinity), Infinity);
const sum = (values) => values.reduce((a, b) => a + (b ?? 0), 0);

function show(value) {
  if (value == null) return "–";
  const size = Math.abs(value), digits = size >= 100 ? 0 : size >= 10 ? 1 : 3;
  return Number.isInteger(value) ? String(value) : size < 0.001 ? value.toExponential(0) : value.toFixed(digits);
}

// what tells runs apart: as much of the end of their paths as is needed
function ends(paths) {
  for (let parts = 1; ; parts++) {
    const short = paths.map((path) => path.split("/").slice(-parts).join("/"));
    if (new Set(short).size === paths.length || parts > 50) return short;
  }
}
const titles = ends(data.runs.map((run) => run.name));

// ---- charts: the same frame for all; x is the training step ----

const LEFT = 40, RIGHT = 8, BOTTOM = 18;

function ticks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const places = [];
  for (let i = Math.floor(low / step + 1e-9); (i - 1) * step < high - step * 1e-6; i++)
    places.push(Number((i * step).toPrecision(12)));
  return places;
}

// calls redraw(width) when the width of a node on the page changes, and once when it is laid out
function fit(node, redraw) {
  let width = 0;
  new ResizeObserver(() => {
    if (node.clientWidth === width || !node.clientWidth) return;
    redraw(width = node.clientWidth);
  }).observe(node);
}

// steps: where the cursor can stand; draw(drawing, x, width) adds to an svg; read(step) gives the nodes of the read-out
function chart(parent, { title, note = "", height, steps, end, draw, read, legend = [] }) {
  const out = html("div", { class: "read" }), plot = html("div");
  const caption = html("figcaption", {}, html("h3", {}, title), html("small", {}, note));
  parent.append(html("figure", { class: "card" }, caption, out, plot, html("div", { class: "legend" }, legend)));
  const last = steps.length - 1;
  let cursor = null, place = last, width = 0;
  const x = (step) => LEFT + (step / end) * (width - LEFT - RIGHT);
  const move = (index, visible = true) => {
    place = Math.min(Math.max(index, 0), last);
    const at = x(steps[place]);
    set(cursor, { x1: at, x2: at, visibility: visible ? "visible" : "hidden" });
    out.replaceChildren(html("span", {}, `step ${steps[place]}`), ...read(steps[place]).map((nodes) => html("span", {}, nodes)));
  };
  const nearest = (step) => steps.reduce((best, s, i) => (Math.abs(s - step) < Math.abs(steps[best] - step) ? i : best), 0);
  fit(plot, (wide) => {
    width = wide;
    const name = `${title}, ${note}; arrow keys read values`;
    const drawing = svg("svg", { width, height, tabindex: 0, role: "img", "aria-label": name });
    for (const t of ticks(0, end, width / 90).filter((t) => t <= end && Number.isInteger(t)))
      drawing.append(label(x(t), height - 3, String(t), t ? "middle" : "start"));
    draw(drawing, x, width);
    cursor = svg("line", { class: "cursor", y1: 0, y2: height - BOTTOM });
    drawing.append(cursor);
    drawing.addEventListener("pointermove", (e) => move(nearest((e.offsetX - LEFT) / (width - LEFT - RIGHT) * end)));
    drawing.addEventListener("pointerleave", () => move(last, false));
    drawing.addEventListener("blur", () => move(last, false));
    drawing.addEventListener("keydown", (e) => {
      const by = { ArrowLeft: -1, ArrowRight: 1, PageDown: 10, PageUp: -10 }[e.key];
      if (by) { e.preventDefault(); move(place + by); }
    });
    plot.replaceChildren(drawing);
    move(last, false);
  });
}

// horizontal lines with their numbers; returns y(value)
function axis(drawing, low, high, top, bottom, width) {
  const places = ticks(low, high, 3), [from, to] = [places[0], places.at(-1)];
  const y = (value) => bottom - ((value - from) / (to - from)) * (bottom - top);
  for (const t of places)
    drawing.append(svg("line", { class: "rule", x1: LEFT, x2: width - RIGHT, y1: y(t), y2: y(t) }),
      label(LEFT - 6, y(t) + 4, t >= 10000 ? `${t / 1000}k` : String(t), "end"));
  return y;
}

// ---- runs and curves ----

const metric = (run, name) => run.metrics[name] ?? [];
const points = (run, name) => metric(run, name).map((v, i) => [run.step[i], v]).filter((p) => p[1] !== null);
const names = [...new Set(data.runs.flatMap((run) => Object.keys(run.metrics)))].sort();
const sources = names.filter((n) => n.startsWith("val/pass_at_1/")).map((n) => n.slice("val/pass_at_1/".length));

// share: a number from 0 to 1, beyond which the axis does not go
function curve({ title, name, dashed, note, share }) {
  const shown = data.runs.map((run, i) => ({ i, lines: [name, dashed].filter(Boolean).map((n) => points(run, n)) }));
  const values = shown.flatMap((s) => s.lines.flatMap((line) => line.map((p) => p[1])));
  if (!values.length) return;
  let [low, high] = [min(values), max(values)];
  if (low === high) [low, high] = [low - Math.max(Math.abs(low), 1) / 10, high + Math.max(Math.abs(high), 1) / 10];
  if (share) [low, high] = [Math.max(low, 0), Math.min(high, 1)];
  const steps = [...new Set(shown.flatMap((s) => s.lines.flatMap((line) => line.map((p) => p[0]))))].sort((a, b) => a - b);
  const draw = (drawing, x, width) => {
    const y = axis(drawing, low, high, 8, 160 - BOTTOM, width);
    for (const { i, lines } of shown) lines.forEach((line, j) => {
      drawing.append(svg("path", { class: j ? "line dashed" : "line", style: color(i),
        d: line.map((p, n) => `${n ? "L" : "M"}${x(p[0]).toFixed(1)} ${y(p[1]).toFixed(1)}`).join("") }));
      if (line.length > 12) return;
      const dot = { class: j ? "ring" : "fill", style: color(i), r: 2.5 };
      line.forEach((p) => drawing.append(svg("circle", { ...dot, cx: x(p[0]), cy: y(p[1]) })));
    });
  };
  const there = shown.filter((s) => s.lines.some((line) => line.length));
  const read = (step) => there.map(({ i, lines }) =>
    [swatch(i), lines.map((line) => show(line.find((p) => p[0] === step)?.[1])).join(" / ")]);
  const legend = data.runs.length > 1 ? there.map(({ i }) => html("span", {}, swatch(i), titles[i])) : [];
  const end = Math.max(1, max(data.runs.map((r) => max(r.step))));
  chart($("curves"), { title, note, height: 160, steps, end, draw, read, legend });
}

function overview() {
  $("about").textContent = `${data.runs.length === 1 ? "One run" : `${data.runs.length} runs`}, written ${data.written}. ` +
    "Hover over a chart, or focus it and press the arrow keys, to read its values.";
  const median = (values) => values.sort((a, b) => a - b)[values.length >> 1];
  const score = (run, source) => {
    const all = points(run, `val/pass_at_1/${source}`).map((p) => show(p[1]));
    return all.length > 1 ? `${all[0]} → ${all.at(-1)}` : all[0] ?? "–";
  };
  const head = ["run", "steps", ...sources.map((source) => `Pass@1, ${source}`), "seconds a step"];
  $("runs").append(html("tr", {}, head.map((text) => html("th", {}, text))), ...data.runs.map((run, i) => {
    const last = run.step.at(-1), steps = run.planned > last ? `${last} of ${run.planned}` : `${last}`;
    const seconds = median(points(run, "time/step").map((p) => p[1]));
    const cells = [steps, ...sources.map((source) => score(run, source)), show(seconds)];
    return html("tr", {}, html("td", {}, swatch(i), run.name), cells.map((text) => html("td", {}, text)));
  }));
  const box = $("runs").parentElement;
  fit(box, () => { box.nextElementSibling.hidden = box.scrollWidth <= box.clientWidth; });
}

function differ() {
  $("differ").hidden = data.runs.length === 1;
  const head = html("tr", {}, html("th", {}, "knob"), titles.map((title, i) => html("th", {}, swatch(i), title)));
  $("differing").append(head, ...data.differing.map((row) => html("tr", {}, row.map((text) => html("td", {}, text)))));
  const unknown = titles.filter((_, i) => !data.runs[i].known);
  const none = data.differing.length ? "" : "In no knob that is known. ";
  $("unknown").textContent = none + (unknown.length ? `Not known before the first checkpoint: ${unknown.join(", ")}.` : "");
}

function curves() {
  const validation = sources.map((source) => {
    const dashed = names.includes(`val/valid/${source}`) ? `val/valid/${source}` : undefined;
    const note = dashed ? "Pass@1; dashed: flawless chains" : "Pass@1";
    return { title: `Validation, ${source}`, name: `val/pass_at_1/${source}`, dashed, note, share: true };
  });
  const usual = ["pass_at_1", "pass_at_1_fresh", "mean", "none_right", "timeouts"];
  const isShare = (name) => data.runs.every((run) => points(run, name).every(([, v]) => v >= 0 && v <= 1));
  const isCount = (name) => name.endsWith("/count") && names.includes(name.slice(0, -"/count".length));
  const named = names.filter((n) => n.startsWith("reward/") && !usual.includes(n.slice("reward/".length)) && !isCount(n));
  // mean rewards say more than Pass@1 where some are not 0 or 1
  const isNews = (a, b) => data.runs.some((run) => metric(run, a).some((v, i) => Math.abs(v - (metric(run, b)[i] ?? v)) > 1e-6));
  const means = [["reward/mean", "reward/pass_at_1", "mean over the batch, o* included"],
    ...sources.map((s) => [`val/reward/${s}`, `val/pass_at_1/${s}`, "mean over the validation questions"])]
    .filter(([name, passAt1]) => isNews(name, passAt1));
  [
    { title: "Pass@1 of the batch", name: "reward/pass_at_1", note: "o* included", share: true },
    ...validation,
    ...means.map(([name, , note]) => ({ title: name, name, note, share: isShare(name) })),
    ...named.map((name) => ({ title: name, name, note: "mean over the new responses", share: isShare(name) })),
    { title: "Silent groups", name: "fresh/silent", dashed: "replay/silent",
      note: "silent groups (all rewards equal), of fresh questions; dashed: of replayed ones", share: true },
    { title: "Entropy", name: "loss/entropy", note: "nats a token" },
    { title: "Length of a response", name: "rollout/length", note: "tokens" },
    { title: "w*", name: "replay/ratio", note: "mean over replayed tokens" },
    { title: "Share of replay", name: "replay/gradient_share", dashed: "replay/token_share",
      note: "gradient; dashed: tokens", share: true },
  ].forEach(curve);
}

// ---- one run: buckets and time ----

// rows 1.. of a run in at most `count` runs of neighbours: [[first index, last index], ...]
function bins(run, count) {
  const rows = run.step.map((s, i) => i).filter((i) => run.step[i] > 0);
  const size = Math.ceil(rows.length / Math.max(1, Math.floor(count)));
  return rows.filter((_, n) => n % size === 0).map((first, n) => [first, rows[Math.min((n + 1) * size, rows.length) - 1]]);
}

// the k of the metrics `${prefix}<k>` of a run, ascending
const counts = (run, prefix) => Object.keys(run.metrics)
  .filter((n) => n.startsWith(prefix) && /^\d+$/.test(n.slice(prefix.length)))
  .map((n) => Number(n.slice(prefix.length))).sort((a, b) => a - b);

// a row of cells for each k, the largest on top, and above them bars of the metric `above`
function heat(run, { title, note, prefix, unit, above }) {
  const ks = counts(run, prefix).reverse(), rows = run.step.filter((s) => s > 0);
  const most = max(ks.map((k) => max(metric(run, `${prefix}${k}`))));
  const bars = above ? metric(run, `buckets/${above}`) : [], all = Math.max(1, max(bars));
  if (!rows.length || Math.max(most, max(bars)) <= 0) return; // on-policy runs have no buckets
  const top = above ? 46 : 0, cell = 22, end = max(run.step);
  const place = (row) => top + 6 + cell * row, height = place(ks.length) + BOTTOM;
  const draw = (drawing, x, width) => {
    const start = (i) => x(i ? run.step[i - 1] : 0), band = top - 10;
    const mean = (values, [first, last]) => sum(values.slice(first, last + 1)) / (last - first + 1);
    if (above)
      drawing.append(label(0, 12, above, "start"), label(LEFT - 6, 26, show(max(bars)), "end"),
        svg("line", { class: "rule", x1: LEFT, x2: width - RIGHT, y1: top, y2: top }));
    ks.forEach((k, row) => drawing.append(label(LEFT - 6, place(row) + 15, `k=${k}`, "end")));
    for (const [first, last] of bins(run, (width - LEFT - RIGHT) / 3)) {
      const box = { x: start(first).toFixed(1), width: Math.max(2, x(run.step[last]) - start(first)).toFixed(1) };
      const h = above ? band * mean(bars, [first, last]) / all : 0;
      if (h) drawing.append(svg("rect", { ...box, y: top - h, height: h, fill: "var(--retired)" }));
      ks.forEach((k, row) => {
        const share = mean(metric(run, `${prefix}${k}`), [first, last]) / Math.max(1, most);
        const paint = { fill: "var(--accent)", "fill-opacity": share.toFixed(3) };
        if (share) drawing.append(svg("rect", { ...box, y: place(row), height: cell - 1, ...paint }));
      });
    }
  };
  const read = (step) => {
    const i = run.step.indexOf(step);
    const values = ks.map((k) => [`k=${k}: ${show(metric(run, `${prefix}${k}`)[i])}`]);
    return above ? [[`${above} ${show(bars[i])}`], ...values] : values;
  };
  const legend = ["0", html("i", { class: "scale", style: "--color: var(--accent)" }), `${show(most)} ${unit}`];
  chart($("parts"), { title, note, height, steps: rows, end, draw, read, legend });
}

function heats(run) {
  heat(run, { title: "Buckets", note: "buffered questions by their latest k, the retired set on top",
    prefix: "buckets/k=", unit: "questions", above: "retired" });
  heat(run, { title: "Fresh groups", note: "by their number of successes k", prefix: "fresh/k=", unit: "groups" });
  heat(run, { title: "Replayed groups", note: "by k, o* included", prefix: "replay/k=", unit: "groups" });
}

function times(run) {
  const order = ["plan", "rollout", "collect", "update", "sync", "validate", "save"].filter((p) => run.metrics[`time/${p}`]);
  const rows = run.step.filter((s) => s > 0);
  if (!order.length || !rows.length) return;
  const total = order.map((p) => sum(metric(run, `time/${p}`))), height = 224, bottom = height - BOTTOM;
  const draw = (drawing, x, width) => {
    const groups = bins(run, (width - LEFT - RIGHT) / 4);
    const mean = (p, [first, last]) => sum(metric(run, `time/${p}`).slice(first, last + 1)) / (last - first + 1);
    const y = axis(drawing, 0, max(groups.map((g) => sum(order.map((p) => mean(p, g))))) || 1, 8, bottom, width);
    for (const group of groups) {
      const from = x(group[0] ? run.step[group[0] - 1] : 0), wide = x(run.step[group[1]]) - from;
      let below = 0;
      order.forEach((p, i) => {
        const value = mean(p, group);
        const box = { x: from.toFixed(1), width: Math.max(1, wide - (wide > 5)).toFixed(1) };
        const at = { y: y(below + value).toFixed(1), height: (y(below) - y(below + value)).toFixed(1) };
        drawing.append(svg("rect", { class: "fill", style: color(i), ...box, ...at }));
        below += value;
      });
    }
  };
  const read = (step) => order.map((p, i) => [swatch(i), show(metric(run, `time/${p}`)[run.step.indexOf(step)])]);
  chart($("parts"), { title: "Time", note: "seconds a step, by phase", height, steps: rows, end: max(run.step), draw, read,
    legend: order.map((p, i) => html("span", {}, swatch(i), `${p} ${Math.round(100 * total[i] / (sum(total) || 1))} %`)) });
}

// ---- a slider: an input, and an output that shows its value ----

// to, from: between the input's place and the value; changed() is called when somebody moves it
function slider(id, value, { to = (x) => x, from = (x) => x, text = String, ...attributes }, changed) {
  const input = $(id);
  set(input, attributes);
  input.value = from(value);
  const knob = { value };
  const write = () => { input.nextElementSibling.textContent = text(knob.value); };
  input.oninput = () => { knob.value = to(Number(input.value)); write(); changed(); };
  write();
  return knob;
}

// ---- what replay draws ----

// sampler.py:bucket_weights
function bucketWeights(ks, K, mu, sigma) {
  const squared = ks.map((k) => (k - mu * K) ** 2), least = min(squared);
  const weights = squared.map((d) => Math.exp(-0.5 * ((d - least) / sigma) / sigma));
  return weights.map((w) => w / sum(weights));
}

const whose = (run) => (run.known ? "The run:" : "Defaults (the run’s own are not known before its first checkpoint):");

function draws(run) {
  const all = counts(run, "buckets/k="), rows = run.step.map((s, i) => i).filter((i) => run.step[i] > 0);
  $("draws").hidden = !all.length || !rows.length;
  if ($("draws").hidden) return;
  const { mu, sigma, question_selection } = run.knobs, K = max(counts(run, "fresh/k=")); // a group has 0 to K successes
  const draw = () => {
    const i = rows[at.value], next = run.step.indexOf(run.step[i] + 1);
    const size = (k) => metric(run, `buckets/k=${k}`)[i] ?? 0, ks = all.filter(size);
    const p = bucketWeights(ks, K, centre.value, width.value), most = max(p);
    const took = (k) => (next < 0 ? "" : `, drawn ${show(metric(run, `replay/from_k=${k}`)[next])}`);
    $("p-bars").replaceChildren(...ks.flatMap((k, n) => [
      html("span", {}, `k=${k}`),
      html("i", { "data-k": k, "data-p": p[n], style: `width: ${100 * p[n] / most}%` }),
      html("span", {}, `${p[n].toFixed(3)}, of ${size(k)}${took(k)}`),
    ]));
    const uniform = question_selection === "uniform" ? "; it draws uniformly, whatever p_k" : "";
    $("p-note").textContent = (ks.length ? "" : "No question is in the buffer at this step. ") +
      `${whose(run)} μ ${mu}, σ ${sigma}, K ${K}${uniform}.`;
  };
  const hundredths = (x) => Math.round(100 * x) / 100;
  const at = slider("p-step", rows.length - 1, { min: 0, max: rows.length - 1, step: 1, text: (n) => run.step[rows[n]] }, draw);
  const centre = slider("p-mu", mu, { to: hundredths }, draw);
  const width = slider("p-sigma", sigma, { to: (x) => Math.max(0.01, hundredths(x)), max: Math.max(8, sigma) }, draw);
  draw();
}

// ---- what a replayed token weighs ----

const shape = (w, beta) => w / (w + beta), weight = (w, beta) => beta * w / (w + beta) ** 2; // loss.py:shape
const ratio = (r, i) => Math.exp(Math.min(20, Math.max(-20, (r.now[i] ?? -20) - (r.past[i] ?? 0)))); // w*
let beta = { value: 0.1 };

function shaping(run, wide) {
  const all = (run.browser.questions ?? []).flatMap((q) => q.responses.flatMap((r) => r.past.map((_, i) => ratio(r, i))));
  const LOW = -4, HIGH = 4, BIN = 0.25, height = 190, bottom = height - BOTTOM;
  const heights = Array((HIGH - LOW) / BIN + 1).fill(0); // tokens by log10 w*, a bar around 1, ends and beyond
  for (const w of all) {
    const bin = Math.round((Math.log10(w) - LOW) / BIN);
    heights[Math.min(Math.max(bin, 0), heights.length - 1)]++;
  }
  const draw = () => {
    const x = (log) => LEFT + ((log - LOW) / (HIGH - LOW)) * (wide - LEFT - RIGHT);
    const about = "f and the weight of a replayed token by its w*, with a histogram of w*";
    const drawing = svg("svg", { width: wide, height, role: "img", "aria-label": about });
    heights.forEach((n, i) => {
      const h = (bottom - 8) * n / Math.max(1, max(heights));
      const box = { x: x(LOW + (i - 0.5) * BIN) + 0.5, width: x(LOW + BIN) - x(LOW) - 1, y: bottom - h, height: h };
      if (n) drawing.append(svg("rect", { ...box, fill: "var(--retired)", "fill-opacity": 0.45, "data-tokens": n }));
    });
    const y = axis(drawing, 0, 1, 8, bottom, wide);
    for (let log = LOW; log <= HIGH; log += wide < 500 ? 2 : 1)
      drawing.append(label(x(log), height - 3, String(10 ** log), log < HIGH ? "middle" : "end"));
    const logs = Array.from({ length: 161 }, (_, i) => LOW + i * (HIGH - LOW) / 160);
    [shape, weight].forEach((f, i) => drawing.append(svg("path", { class: "line", style: color(i),
      d: logs.map((log, n) => `${n ? "L" : "M"}${x(log).toFixed(1)} ${y(f(10 ** log, beta.value)).toFixed(1)}`).join("") })));
    $("f-plot").replaceChildren(drawing);
    const mean = sum(all.map((w) => weight(w, beta.value))) / all.length;
    const here = all.length ? ` Over the ${all.length} stored tokens its mean is ${show(mean)}, of w* ${show(sum(all) / all.length)}.` : "";
    const plain = run.knobs.shaping ? "" : " This run does not shape: the weight is w* itself.";
    $("f-note").textContent = `${whose(run)} β ${run.knobs.beta}. At w = 1 f is ${show(shape(1, beta.value))} and the weight ` +
      `${show(weight(1, beta.value))}; it is largest, 0.25, at w = β.${here}${plain}`;
    set($("f-note"), { "data-mean": all.length ? mean : "" });
  };
  const two = (x) => Number((10 ** x).toPrecision(2));
  beta = slider("beta", beta.value, { to: two, from: Math.log10 }, draw);
  draw();
}

// ---- what the model said ----

function says(run) {
  const steps = [...new Set(run.said.map((s) => s.step))];
  $("said-pick").hidden = !steps.length;
  $("said").replaceChildren();
  $("said-note").textContent = steps.length ? "Responses of a step in full, right ones first. A reward that is talked " +
    "into a yes shows here and in no curve: is what was called right an answer?" : "The run has no samples.jsonl.";
  if (!steps.length) return;
  const draw = () => $("said").replaceChildren(...run.said.filter((s) => s.step === steps[at.value]).map((s) => {
    const facts = Object.entries(s.rewards).map(([name, value]) => `${name} ${show(value)}`);
    const kind = html("b", {}, s.kind === "o*" ? "replayed, o*" : `new, ${s.kind}`);
    const spans = [...facts, ...(s.finished ? [] : ["cut at the limit"])].map((text) => html("span", {}, text));
    return html("article", { class: "card response" }, html("header", {}, kind, spans),
      html("div", { class: "question said" }, s.text),
      html("div", { class: "said" }, s.gold == null ? "" : `right: ${s.gold}`), html("div", { class: "said text" }, s.response));
  }));
  const last = steps.length - 1;
  const at = slider("said-step", last, { min: 0, max: last, step: 1, text: (n) => steps[n] }, draw);
  draw();
}

// ---- stored responses ----

const RULES = {
  entropy: "The chosen one, o*, has the lowest mean entropy of its question’s, EOS included.",
  nll: "The chosen one, o*, has the lowest mean NLL of its question’s, EOS included.",
  highest_entropy: "The chosen one, o*, has the highest mean entropy of its question’s (an ablation).",
  official: "The chosen one, o*, has the lowest sum of entropies of its question’s (the official code’s rule).",
  random: "This run draws o* at random at every replay (an ablation), so none is marked.",
};

function tokens(r, scale) {
  const token = (i) => html("span", { class: r.special.includes(i) ? "token special" : "token", "data-token": i,
    style: `--share: ${Math.min((r.entropies[i] ?? 0) / scale, 1)}` }, r.tokens[i]);
  const body = html("p", { class: "tokens" }), steps = [...r.steps];
  for (let i = 0; i < r.tokens.length; ) {
    if (steps[0]?.[0] !== i) { body.append(token(i++)); continue; }
    const [, after, ok] = steps.shift(), step = html("span", { class: ok ? "step valid" : "step flawed" });
    while (i < after) step.append(token(i++));
    body.append(step);
  }
  const point = (event) => {
    const node = event.target.closest("[data-token]");
    if (!node) return;
    const i = Number(node.dataset.token), text = JSON.stringify(r.tokens[i]);
    document.querySelector(".picked")?.classList.remove("picked");
    node.classList.add("picked");
    const w = ratio(r, i), b = beta.value;
    $("token").textContent =
      `token ${i + 1} of ${r.tokens.length}, ${text}: entropy ${show(r.entropies[i])} nats, log π_past ${show(r.past[i])}, ` +
      `log π_θ ${show(r.now[i])}, w* ${show(w)}, f ${show(shape(w, b))}, weight ${show(weight(w, b))} (β ${b})`;
  };
  body.addEventListener("pointerover", point);
  body.addEventListener("click", point);
  return body;
}

function response(r, now, scale) {
  const facts = [`made in step ${r.step}, ${now - r.step} steps ago`, `${r.tokens.length} tokens`,
    `mean entropy ${show(r.entropy)}`, `NLL ${show(r.nll_then)} then, ${show(r.nll_now)} now`, `mean w* ${show(r.ratio)}`];
  const star = r.chosen ? [html("b", {}, "chosen, o*")] : [];
  const verdict = r.verdict ? [html("span", { class: r.verdict === "flawless chain" ? "valid" : "flawed" }, r.verdict)] : [];
  const head = html("header", {}, star, verdict, facts.map((text) => html("span", {}, text)));
  return html("article", { class: r.chosen ? "card response chosen" : "card response" }, head, tokens(r, scale));
}

function browse({ missing, step, rule, buffered, K, questions }) {
  $("browser").hidden = Boolean(missing);
  $("rule").textContent = missing ?? `${questions.length} of the ${buffered} questions in the buffer after step ${step}: of ` +
    `every bucket those with the most stored responses. Scores are of the policy of that step. ${RULES[rule] ?? `The chosen one, o*, is that of the rule ${rule}.`}`;
  if (missing) return;
  const all = questions.flatMap((q) => q.responses), entropies = all.flatMap((r) => r.entropies).sort((a, b) => a - b);
  const scale = Number(Math.max(0.1, entropies[Math.floor(0.99 * entropies.length)] ?? 0).toPrecision(1));
  const bar = html("i", { class: "scale", style: "--color: var(--entropy)" });
  const marks = all.some((r) => r.verdict) ? ["✓ valid step", "✗ flawed step"].map((text) => html("span", {}, text)) : [];
  $("legend").replaceChildren(html("span", {}, "entropy 0", bar, `${scale} nats or more`), ...marks);
  const groups = new Map([...new Set(questions.map((q) => q.k))].sort((a, b) => a - b)
    .map((k) => [k, html("optgroup", { label: `k = ${k} of ${K}` })]));
  const brief = (text) => (text.length <= 80 ? text : `${text.slice(0, 40)} … ${text.slice(-36)}`);
  questions.forEach((q, i) => groups.get(q.k).append(
    html("option", { value: i }, `${q.id}: ${brief(q.text)}  (${q.responses.length} stored)`)));
  $("question").replaceChildren(...groups.values());
  const pick = () => {
    const q = questions[$("question").value];
    const about = `answer ${q.answer} · ${q.source} · k = ${q.k} of ${K} · stored responses: ${q.responses.length}`;
    $("asked").replaceChildren(html("div", { class: "question" }, q.text), html("small", {}, about));
    $("token").textContent = "Hover over a token, or tap it, for its numbers.";
    $("responses").replaceChildren(...q.responses.map((r) => response(r, step, scale)));
  };
  $("question").onchange = pick;
  pick();
}

function choose() {
  const run = data.runs[$("run").value];
  $("parts").replaceChildren();
  heats(run);
  times(run);
  says(run);
  for (const node of document.querySelectorAll(".replay")) node.hidden = run.knobs.rho === 0;
  if (run.knobs.rho === 0) return;
  draws(run);
  beta.value = run.knobs.beta;
  if ($("f-plot").clientWidth) shaping(run, $("f-plot").clientWidth);
  browse(run.browser);
}

differ();
overview();
curves();
data.runs.forEach((run, i) => $("run").append(html("option", { value: i }, run.name)));
$("one").textContent = data.runs.length === 1 ? data.runs[0].name : "One run";
$("pick-run").hidden = data.runs.length === 1;
$("run").onchange = choose;
choose();
fit($("f-plot"), (width) => shaping(data.runs[$("run").value], width));
