// Idle memory, and what would free it.

import { h } from "./dom.js";
import { badge } from "./frame.js";
import { processLink } from "./parts.js";
import { ask } from "./server.js";

const AGAIN_MS = 2000;

/** Not asked for more often: every process of the machine is looked at for it. */
export const LEAST_S = 10;

export function path() {
  return "held";
}

export function title() {
  return "Idle memory";
}

export function tree(answer, route, page) {
  const ended = page.memory.ended || new Map();
  return [
    [...ended].map(([pid, words]) => h("p", { class: "note", key: `ended-${pid}` }, words)),
    answer.unknown ? h("p", { class: "note", key: "unknown" }, answer.unknown) : null,
    answer.holdings.length
      ? h("section", { class: "cards", key: "held", "aria-label": "Idle memory" }, answer.holdings.map((one) => card(one, page)))
      : h("p", { class: "fine", key: "none" }, `No idle memory: ${answer.checked}.`),
    answer.holdings.length ? h("p", { class: "faint", key: "checked" }, answer.checked) : null,
    answer.prices.map((words) => h("p", { class: "faint small", key: words }, words)),
    answer.openers.length ? h("section", { key: "openers" }, h("h2", {}, "Open device files"),
      h("ul", { class: "plain" }, answer.openers.map(([depth, words], at) =>
        h("li", { key: at, class: `depth-${Math.min(depth, 2)}` }, words)))) : null,
  ];
}

function card(one, page) {
  return h("article", { class: `card edge-${one.badge.kind}`, key: one.key },
    h("div", { class: "head" }, h("h2", {}, one.gpu), badge(one.badge)),
    h("p", { class: "used" }, h("strong", {}, one.held), ` since ${one.since} (${one.lasts})`),
    h("p", {}, processLink(one.process, one.who), one.context ? h("span", { class: "faint" }, `, ${one.context}`) : null),
    h("p", { class: "verdict" }, one.evidence),
    h("ul", { class: "advice" }, one.advice.map((words) => h("li", { key: words }, words))),
    h("p", { class: "faint small" }, `${one.hours} GiB hours`, one.cost === "?" ? null : ` · ${one.cost}`),
    one.pid ? ending(one, page) : null);
}

/** End its process: first what would be sent is shown, then it is asked. */
function ending(one, page) {
  const now = (page.memory.reaps || {})[one.pid];
  const button = (words, onclick) => h("button", { type: "button", onclick, key: words }, words);
  const place = { class: "doing", "data-reap": one.pid };
  if (!now) return h("div", place, button("Free it ...", () => look(one, page)));
  return h("div", { ...place, role: "group", "aria-label": `End ${one.who}` },
    h("p", { class: now.failed ? "notice" : "note", role: now.failed ? "alert" : "status" }, now.words),
    now.hint ? h("p", {}, h("code", { class: "command" }, now.hint)) : null,
    now.process ? button(`End ${one.who}`, () => end(one, page, now.process)) : null,
    now.waits ? null : button("Close", () => put(page, one, null)));
}

function put(page, one, now, memory = page.memory) {
  memory.reaps = { ...memory.reaps, [one.pid]: now };
  if (memory !== page.memory) return;
  if (now) document.getElementById("heard").textContent = now.words;
  page.draw();
  if (document.activeElement !== document.body) return;
  // The button pressed is gone. Not to the one that ends: a key pressed twice must not confirm.
  const next = document.querySelector(`[data-reap="${one.pid}"] button:last-of-type`);
  (next || document.querySelector("h1")).focus({ preventScroll: true });
}

function failed(page, one, error, memory) {
  put(page, one, { failed: true, words: error.message, hint: error.hint }, memory);
}

async function look(one, page) {
  const { memory } = page;
  try {
    const { data } = await ask(`/api/v1/reaps/${one.pid}?anew=true`);
    if (data.result) wait(one, page, memory, data);
    else put(page, one, { words: data.text, process: data.process }, memory);
  } catch (error) {
    failed(page, one, error, memory);
  }
}

async function end(one, page, process) {
  const { memory } = page;
  put(page, one, { words: "asking ...", waits: true }, memory);
  const error = await page.send("/api/v1/reaps", { method: "POST", body: process });
  if (error) failed(page, one, error, memory);
  else again(one, page, memory);
}

async function again(one, page, memory) {
  try {
    wait(one, page, memory, (await ask(`/api/v1/reaps/${one.pid}`)).data);
  } catch (error) {
    failed(page, one, error, memory);
  }
}

function wait(one, page, memory, data) {
  const waits = data.result === "under-way";
  if (waits) window.setTimeout(again, AGAIN_MS, one, page, memory);
  else memory.ended = new Map(memory.ended).set(one.pid, data.text);
  put(page, one, { words: data.text, waits }, memory);
  if (!waits && memory === page.memory) page.refresh();
}
