// Processes, those that grow fastest first; those that fit a word, and all of them if asked.

import { h } from "./dom.js";
import { badge } from "./frame.js";
import { processLink } from "./parts.js";

const WAIT_MS = 200;
const HEADS = ["Process", "GPU", "Memory", "Growth", "Full in", "Verdict"];

/** What of the query belongs to the table; it is asked for together with the view. */
export function wishes(page) {
  const asked = new URLSearchParams();
  if (page.memory.filter) asked.set("filter", page.memory.filter);
  if (page.memory.all) asked.set("all", "1");
  return asked;
}

export function processes(answer, page, { alone = false } = {}) {
  if (!answer.count) return null;
  return h("section", { class: "processes", key: "processes" },
    h("div", { class: "over" }, h("h2", {}, "Processes"), filter(page), counted(answer)),
    answer.processes.length ? table(answer.processes, alone) : h("p", { class: "faint" }, "No process fits."),
    rest(answer, page));
}

function counted(answer) {
  const some = answer.fitting === answer.count ? `${answer.count}` : `${answer.fitting} of ${answer.count}`;
  return h("p", { class: "faint counted", role: "status" }, `${some}, fastest growing first`);
}

let wait = 0;

function filter(page) {
  const typed = (event) => {
    page.memory.filter = event.target.value;
    page.memory.all = false;
    window.clearTimeout(wait);
    wait = window.setTimeout(page.refresh, WAIT_MS);
  };
  return h("label", { class: "filter" }, h("span", {}, "Filter"), " ",
    h("input", {
      type: "search", placeholder: "name, user, verdict, job", spellcheck: "false", autocomplete: "off",
      oninput: typed, once: (input) => { input.value = page.memory.filter || ""; },
    }));
}

// Roles are said again because a narrow window lays rows out as cards.
function table(rows, alone) {
  const heads = alone ? HEADS.filter((one) => one !== "GPU") : HEADS;
  return h("div", { class: "scroll" }, h("table", { role: "table", class: "stack" },
    h("caption", { class: "hidden" }, "Processes on the GPUs"),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads.map((one) =>
      h("th", { key: one, scope: "col", role: "columnheader" }, one)))),
    h("tbody", { role: "rowgroup" }, rows.map((one) => row(one, alone)))));
}

function row(one, alone) {
  const cell = (name, ...inside) => h("td", { key: name, role: "cell", "data-label": name }, inside);
  return h("tr", { key: one.key, role: "row" },
    h("th", { scope: "row", role: "rowheader" },
      processLink(one.key, one.who), one.runs ? h("span", { class: "runs" }, one.runs) : null,
      one.host ? h("span", { class: "host" }, one.host) : null),
    alone ? null : cell("GPU", one.gpu),
    cell("Memory", one.held),
    cell("Growth", one.rate || "-"),
    cell("Full in", one.full || "-"),
    h("td", { key: "Verdict", role: "cell", "data-label": "Verdict", title: one.badge.words }, badge(one.badge)));
}

function rest(answer, page) {
  const hidden = answer.fitting - answer.processes.length;
  if (hidden <= 0) return null;
  const all = () => {
    page.memory.all = true;
    page.refresh();
  };
  return h("p", { key: "rest" }, h("button", { type: "button", onclick: all }, `Show all ${answer.fitting}`));
}
