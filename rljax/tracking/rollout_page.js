"use strict";
(() => {
const parse = id => JSON.parse(document.getElementById(id).textContent);
const byId = id => document.getElementById(id);
const index = parse("index"), scales = parse("scales");
const bodies = new Map();
const OUTCOMES = {right: "right", wrong: "wrong", unjudged: "not judged", failed: "failed", cut_off: "cut off", tool_error: "tool error"};
const MODES = {logp: "log-probability", advantage: "advantage", ratio: "ratio", mask: "mask", none: "none"};
const KINDS = {t: "trained on", s: "sampled, not trained on", o: "observed, not sampled"};
const state = {shown: [], at: 0, mode: "logp", token: -1};

function make(tag, options = {}, ...children) {
  const {text, title, ...rest} = options, element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (title !== undefined) element.title = title;
  for (const [name, value] of Object.entries(rest)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
function body(number) {
  if (!bodies.has(number)) bodies.set(number, parse("r" + number));
  return bodies.get(number);
}
const shown = value => value === null || value === undefined ? "unknown" : String(+Number(value).toPrecision(4)).replace("-", "−");
const rewardClass = entry => entry.outcomes.includes("right") ? "good" : entry.outcomes.includes("wrong") ? "bad" : "muted";
const rewardText = entry => entry.reward === null ? (entry.outcomes.includes("failed") ? "failed" : "not judged") : shown(entry.reward);
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

/* Color of a token: a color of the palette, and its strength from 0 to 1. */
function tint(row, place, mode) {
  const value = mode === "mask" || mode === "none" ? null : row[mode][place];
  if (mode === "mask") return {t: ["high", .55], s: ["grey", .6], o: null}[row.kinds[place]];
  if (value === null) return null;
  if (mode === "logp") return ["low", Math.min(1, -value / scales.logp)];
  const size = mode === "ratio" ? Math.log(Math.max(value, 1e-12)) / Math.log(scales.ratio) : value / scales.advantage;
  return [size >= 0 ? "high" : "low", Math.min(1, Math.abs(size))];
}
const css = color => color === null || color[1] < .01 ? "" : `rgb(var(--${color[0]}) / calc(var(--strength) * ${color[1].toFixed(3)}))`;

/* The list and its filters. */
function accepts(entry, number, wanted) {
  const within = (value, low, high) => (low === "" && high === "") ||
    (value !== null && (low === "" || value >= +low) && (high === "" || value <= +high));
  return (wanted.step === "" || entry.step === +wanted.step) && (wanted.outcome === "" || entry.outcomes.includes(wanted.outcome)) &&
    within(entry.reward, wanted.reward_low, wanted.reward_high) && within(entry.length, wanted.length_low, wanted.length_high) &&
    (wanted.text === "" || (body(number).prompt + "\n" + body(number).tokens.join("")).toLowerCase().includes(wanted.text.toLowerCase()));
}
const ORDERS = {
  step: (a, b) => a.step - b.step, newest: (a, b) => b.step - a.step, reward: (a, b) => (b.reward ?? -Infinity) - (a.reward ?? -Infinity),
  lowest: (a, b) => (a.reward ?? Infinity) - (b.reward ?? Infinity), length: (a, b) => (b.length ?? 0) - (a.length ?? 0),
  turns: (a, b) => b.turns - a.turns,
};
function filter() {
  const wanted = Object.fromEntries(new FormData(byId("filters"))), before = state.shown[state.at];
  const compare = ORDERS[wanted.order];
  state.shown = index.map((_, number) => number).filter(number => accepts(index[number], number, wanted))
    .sort((a, b) => compare(index[a], index[b]) || a - b);
  state.at = Math.max(0, state.shown.indexOf(before));
  byId("count").textContent = state.shown.length === index.length ? plural(index.length, "rollout") :
    `${state.shown.length} of ${plural(index.length, "rollout")}`;
  list();
  show();
}
const AT_ONCE = 200;
let listed = AT_ONCE;
function list() {
  listed = Math.max(AT_ONCE, state.at + 50);
  byId("list").replaceChildren(...state.shown.slice(0, listed).map(option));
  more();
}
function more() {
  byId("list").querySelector(".more")?.remove();
  if (state.shown.length <= listed) return;
  const item = make("li", {class: "more muted small", role: "presentation", text: `show ${state.shown.length - listed} more`});
  item.addEventListener("click", () => extend(state.shown.length));
  byId("list").append(item);
}
function extend(most) {
  const before = listed;
  listed = most;
  byId("list").querySelector(".more")?.remove();
  byId("list").append(...state.shown.slice(before, listed).map((number, place) => option(number, before + place)));
  more();
}
function option(number, place) {
  const entry = index[number];
  const facts = [entry.length === null ? null : `${entry.length} tok.`, entry.turns > 1 ? plural(entry.turns, "turn") : null,
    ...entry.outcomes.filter(name => ["cut_off", "tool_error"].includes(name)).map(name => OUTCOMES[name])];
  const item = make("li", {role: "option", id: "option" + place, "aria-selected": "false"},
    make("div", {class: "top"},
      make("span", {text: `step ${entry.step}`}), make("span", {class: "muted", text: facts.filter(Boolean).join(", ")}),
      make("b", {class: rewardClass(entry), text: rewardText(entry)})),
    make("div", {class: "text", text: entry.start}));
  item.addEventListener("click", () => go(place));
  return item;
}
function go(place) {
  if (place < 0 || place >= state.shown.length) return;
  state.at = place;
  if (place >= listed) extend(place + 50);
  show();
}

/* One rollout. */
function show() {
  const article = byId("rollout"), options = byId("list");
  options.querySelectorAll("[aria-selected=true]").forEach(item => item.setAttribute("aria-selected", "false"));
  state.token = -1;
  if (!state.shown.length) {
    article.replaceChildren(make("p", {class: "muted", text: "No rollout matches these filters."}));
    inspect();
    return;
  }
  const number = state.shown[state.at], entry = index[number], row = body(number), item = byId("option" + state.at);
  item.setAttribute("aria-selected", "true");
  options.setAttribute("aria-activedescendant", item.id);
  options.scrollTop = Math.max(Math.min(options.scrollTop, item.offsetTop - options.offsetTop - 8),
    item.offsetTop - options.offsetTop + item.offsetHeight - options.clientHeight + 8);
  remember(number);
  article.replaceChildren(heading(row, entry), badges(row, entry), ...facts(row), ...prompt(row), colors(), legend(), strip(), turns(row));
  paint();
  inspect();
}
/* The part of the address after "#" contains the filters, the rollout and the color, so a view can be reloaded and shared. */
function remember(number) {
  const fields = new URLSearchParams({rollout: number, color: state.mode});
  for (const [name, value] of new FormData(byId("filters"))) if (value !== "" && value !== "newest") fields.set(name, value);
  history.replaceState(null, "", "#" + fields);
}
function recall() {
  const fields = new URLSearchParams(location.hash.slice(1)), elements = byId("filters").elements;
  for (const [name, value] of fields) if (elements[name]) elements[name].value = value;
  if (fields.get("color") in MODES) state.mode = fields.get("color");
  state.shown = index.map((_, number) => number);
  state.at = fields.has("rollout") ? Number(fields.get("rollout")) : -1;
}
function heading(row, entry) {
  const before = make("button", {type: "button", "aria-label": "previous rollout"}, "‹", make("span", {class: "word", text: " previous"}));
  const after = make("button", {type: "button", "aria-label": "next rollout"}, make("span", {class: "word", text: "next "}), "›");
  before.disabled = state.at === 0;
  after.disabled = state.at === state.shown.length - 1;
  before.addEventListener("click", () => go(state.at - 1));
  after.addEventListener("click", () => go(state.at + 1));
  const name = row.problem === null ? `Step ${row.step}` : `Step ${row.step}, problem ${row.problem}, response ${row.member}`;
  return make("div", {class: "bar"}, make("h2", {class: "grow", text: name}), before, after);
}
function badges(row, entry) {
  const items = [[`reward ${rewardText(entry)}`, rewardClass(entry)], ...entry.outcomes.map(name => [OUTCOMES[name], ""])];
  if (row.failure !== null) items.push([row.failure.replaceAll("_", " "), "bad"]);
  if (row.remark !== null) items.push([row.remark === "unstated" ? "no answer stated" : row.remark.replaceAll("_", " "), ""]);
  if (row.length !== null) items.push([plural(row.length, "token"), ""], [plural(row.turns, "turn"), ""]);
  if (row.trained === false) items.push(["group not trained on", ""]);
  const versions = row.token_versions ?? [];
  if (versions.length > 1) items.push([`tokens by the policies of steps ${versions.map(([step, n]) => `${step} (${n})`).join(", ")}`, ""]);
  else if (row.sampled_at !== null) items.push([`sampled by the policy of step ${row.sampled_at}`, ""]);
  return make("ul", {class: "badges"}, ...items.filter(([text]) => text !== "failed" || row.failure === null)
    .map(([text, kind]) => make("li", {class: kind, text})));
}
function facts(row) {
  const rows = [...Object.entries(row.parts).map(([name, value]) => [`reward part ${name}`, value]),
    ...Object.entries(row.metrics).map(([name, value]) => [name.replaceAll("_", " "), value])];
  const others = state.shown.length ? index.map((entry, number) => [entry, number]).filter(([entry, number]) =>
    row.problem !== null && entry.step === row.step && entry.problem === row.problem && number !== state.shown[state.at]) : [];
  const found = [];
  if (others.length) found.push(make("p", {class: "small muted", text: "Same prompt: "}, ...others.map(([entry, number]) => {
    const link = make("button", {type: "button", text: `reward ${rewardText(entry)}`});
    link.addEventListener("click", () => {
      if (!state.shown.includes(number)) byId("filters").reset(), filter();
      go(state.shown.indexOf(number));
    });
    return link;
  })));
  if (rows.length) found.push(make("p", {class: "small muted", text: rows.map(([name, value]) => `${name} ${shown(value)}`).join(", ")}));
  return found;
}
const LONG_PROMPT = 400;
function prompt(row) {
  const isLong = row.prompt.length > LONG_PROMPT;
  const parts = [make("summary", {text: isLong ? "Prompt: " + row.question : "Prompt"}), make("pre", {text: row.prompt})];
  const answer = row.answer === null || row.answer === "" ? [] : [make("p", {class: "small muted", text: "Reference answer: "}, make("code", {text: row.answer}))];
  return [make("details", isLong ? {class: "prompt"} : {class: "prompt", open: ""}, ...parts), ...answer];
}
function colors() {
  const group = make("fieldset", {class: "modes", "aria-label": "Color of the tokens"});
  for (const [mode, name] of Object.entries(MODES)) {
    const input = make("input", {type: "radio", name: "mode", value: mode});
    input.checked = mode === state.mode;
    input.addEventListener("change", () => choose(mode));
    group.append(make("label", {}, input, name));
  }
  return make("section", {class: "bar"}, make("span", {class: "small muted", text: "Color by"}), group);
}
function choose(mode) {
  state.mode = mode;
  document.querySelectorAll("input[name=mode]").forEach(input => { input.checked = input.value === mode; });
  document.querySelector(".legend")?.replaceWith(legend());
  paint();
  if (state.shown.length) remember(state.shown[state.at]);
}
function legend() {
  const box = make("div", {class: "legend"});
  const scale = (low, ramp, high, text) => {
    const bar = make("span", {class: "ramp"});
    bar.style.background = ramp;
    box.append(make("div", {class: "scale"}, make("span", {text: low}), bar, make("span", {text: high})), make("div", {text}));
  };
  const full = name => `rgb(var(--${name}) / var(--strength))`, none = "transparent";
  if (state.mode === "logp") scale("0 nats (p = 1)", `linear-gradient(90deg, ${none}, ${full("low")})`,
    `${shown(-scales.logp)} nats or less (p ≤ ${+Math.exp(-scales.logp).toPrecision(2)})`,
    "Log-probability of the token under the policy before the updates of this step.");
  if (state.mode === "advantage") scale(`${shown(-scales.advantage)} or less`, `linear-gradient(90deg, ${full("low")}, ${none}, ${full("high")})`,
    `${shown(scales.advantage)} or more`, "Advantage of the token, as the algorithm scales it. Tokens that are not trained on have none.");
  if (state.mode === "ratio") scale(`× ${shown(1 / scales.ratio)} or less`, `linear-gradient(90deg, ${full("low")}, ${none}, ${full("high")})`,
    `× ${shown(scales.ratio)} or more`, "Probability of the token after the updates of this step, divided by its probability before them.");
  if (state.mode === "mask") box.append(make("div", {class: "swatches"}, ...Object.entries(KINDS).map(([kind, text]) => {
    const swatch = make("span", {class: "swatch", text});
    swatch.style.background = css(tint({kinds: kind}, 0, "mask"));
    return swatch;
  })));
  return box;
}
function strip() {
  const canvas = make("canvas", {id: "strip", title: "All tokens in order; click to find one", "aria-hidden": "true"});
  canvas.addEventListener("click", event => {
    const row = body(state.shown[state.at]), share = event.offsetX / canvas.clientWidth;
    pick(Math.min(row.tokens.length - 1, Math.floor(share * row.tokens.length)), true);
  });
  return canvas;
}
function turns(row) {
  const box = make("div", {id: "turns", tabindex: "0", role: "group", "aria-label": "Tokens; the left and right arrow keys move from token to token"});
  let turn = 0;
  for (const span of row.spans) {
    const isPolicy = span.role === "policy", head = make("div", {class: "head"});
    head.append(make("b", {text: isPolicy ? `policy, turn ${++turn}` : span.role}), make("span", {text: tokenCount(row, span)}), ...means(row, span, isPolicy));
    const tokens = make("div", {class: "tokens"});
    for (let place = span.start; place < span.end; place++) {
      if (row.left_out && place === row.left_out.at) tokens.append(make("p", {class: "gap", text: `… ${row.left_out.tokens} tokens omitted …`}));
      tokens.append(token(row.tokens[place], place));
    }
    box.append(make("div", {class: isPolicy ? "turn" : "turn observed"}, head, tokens, ...calls(span)));
  }
  box.addEventListener("click", event => { if (event.target.dataset.place) pick(+event.target.dataset.place); });
  box.addEventListener("mouseover", event => { if (event.target.dataset.place) inspect(+event.target.dataset.place); });
  box.addEventListener("mouseleave", () => inspect());
  return box;
}
const tokenCount = (row, span) => row.length === null ? "" : plural(span.end - span.start, "token");
function means(row, span, isPolicy) {
  const values = row.logp.slice(span.start, span.end).filter(value => value !== null);
  if (!isPolicy || !values.length) return [];
  return [make("span", {text: `mean log-probability ${shown(values.reduce((sum, value) => sum + value, 0) / values.length)} nats`})];
}
function calls(span) {
  return [...(span.calls ?? []).map(call => make("div", {class: "call"}, "calls ", make("span", {class: "name", text: call.name}), " " + call.arguments)),
    ...(span.malformed ?? []).map(text => make("div", {class: "call bad", text: "malformed call: " + text}))];
}
function token(text, place) {
  const kind = text === "" ? " part" : text.includes("\n") ? " nl" : /^(<[^<>\s]+>|\[[A-Z_/]+\])$/.test(text) ? " sp" : "";
  return make("span", {class: "t" + kind, "data-place": place, text});
}
function paint() {
  if (!state.shown.length) return;
  const row = body(state.shown[state.at]), canvas = byId("strip");
  document.querySelectorAll("#turns .t").forEach(element => { element.style.background = css(tint(row, +element.dataset.place, state.mode)); });
  const ratio = window.devicePixelRatio || 1, width = Math.round(canvas.clientWidth * ratio), height = Math.round(canvas.clientHeight * ratio);
  canvas.width = width;
  canvas.height = height;
  const pen = canvas.getContext("2d"), style = getComputedStyle(document.documentElement), count = row.tokens.length;
  for (let place = 0; place < count; place++) {
    const color = tint(row, place, state.mode);
    if (color === null) continue;
    pen.fillStyle = `rgb(${style.getPropertyValue("--" + color[0]).trim()} / ${Math.max(.04, color[1])})`;
    const left = Math.floor(place * width / count);
    pen.fillRect(left, 0, Math.max(1, Math.floor((place + 1) * width / count) - left), height);
  }
  let edge = 0;
  pen.fillStyle = style.getPropertyValue("--ink").trim();
  for (const span of row.spans.slice(1)) {
    edge = Math.floor(span.start * width / count);
    pen.fillRect(edge, 0, Math.max(1, ratio), height);
  }
}
function pick(place, scrolls) {
  document.querySelector(".t.at")?.classList.remove("at");
  state.token = place;
  const element = document.querySelector(`.t[data-place="${place}"]`);
  element?.classList.add("at");
  if (scrolls) element?.scrollIntoView({block: "center"});
  inspect();
}
function inspect(place = state.token) {
  const box = byId("values");
  if (!state.shown.length || place < 0) {
    box.replaceChildren(make("span", {class: "muted", text: "Point at a token, or select one with the arrow keys, to see its values."}));
    return;
  }
  const row = body(state.shown[state.at]), logp = row.logp[place];
  const fields = [["", KINDS[row.kinds[place]]], ["log-probability", logp === null ? "none" : `${shown(logp)} nats (p = ${shown(Math.exp(logp))})`],
    ["advantage", row.advantage[place] === null ? "none" : shown(row.advantage[place])],
    ["ratio", row.ratio[place] === null ? "none" : `× ${shown(row.ratio[place])}`]];
  box.replaceChildren(make("span", {}, `token ${place + 1} of ${row.tokens.length} `, make("code", {text: JSON.stringify(row.tokens[place])})),
    ...fields.map(([name, value]) => make("span", {}, make("span", {class: "muted", text: name && name + " "}), value)));
}

/* Start. */
for (const step of ["", ...new Set(index.map(entry => entry.step))]) {
  byId("filters").elements.step.append(make("option", {value: step, text: step === "" ? "all" : step}));
}
byId("filters").addEventListener("input", filter);
byId("filters").addEventListener("submit", event => event.preventDefault());
byId("filters").addEventListener("reset", () => setTimeout(filter));
document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input:not([type=radio]), select")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const isRadio = event.target.matches("input[type=radio]"), modes = Object.keys(MODES);
  const count = state.shown.length ? body(state.shown[state.at]).tokens.length : 0;
  if (event.key >= "1" && event.key <= String(modes.length)) choose(modes[+event.key - 1]);
  else if (event.key === "/") byId("choose").open = true, byId("filters").elements.text.focus();
  else if (isRadio) return;
  else if (event.key === "ArrowDown" || event.key === "j") go(state.at + 1);
  else if (event.key === "ArrowUp" || event.key === "k") go(state.at - 1);
  else if (event.key === "ArrowRight" && count) pick(Math.min(count - 1, state.token + 1), true);
  else if (event.key === "ArrowLeft" && count) pick(Math.max(0, state.token - 1), true);
  else return;
  event.preventDefault();
});
window.addEventListener("resize", paint);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
if (window.matchMedia("(max-width: 860px)").matches) byId("choose").open = false;
recall();
filter();
})();
