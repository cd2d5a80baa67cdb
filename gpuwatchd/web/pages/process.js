// One process: who it is, its chart, why it is judged so, what to do, what it did before.

import { chartBox, foresee } from "./chart_box.js";
import { h, island, show } from "./dom.js";
import { badge } from "./frame.js";
import { gpuLink, strip, subjects } from "./parts.js";
import { Failed, ask } from "./server.js";

const AGAIN_S = 30;

function query(route) {
  const [uid, pid, began] = route.parts;
  return new URLSearchParams({ gpu: uid || "", pid: pid || "", began: began || "-" }).toString();
}

export function path(route) {
  return `process?${query(route)}`;
}

/** What can be asked for at once. */
export function begin(route) {
  foresee(query(route), route);
}

export function title(answer) {
  return answer ? answer.who : "Process";
}

export function tree(answer, route) {
  const what = query(route);
  return [
    h("div", { class: "summary", key: "summary" },
      h("p", { class: "used" }, answer.badge ? [badge(answer.badge), " "] : null,
        answer.held ? [h("strong", {}, answer.held), " "] : null,
        "on ", gpuLink(answer.device.uid, answer.device.label),
        answer.pace.length ? ` · ${answer.pace.join(", full in ")}` : null,
        answer.runs ? h("span", { class: "faint" }, ` · ${answer.runs}`) : null),
      answer.over ? h("p", { class: "notice" }, answer.over) : null,
      answer.badge && answer.badge.rest ? h("p", { class: "verdict" }, answer.badge.rest) : null),
    strip(answer.alerts, "Open of this process"),
    chartBox(what, route),
    answer.foreseen.length ? h("section", { key: "foreseen" },
      h("h2", {}, "Judged"), h("div", { class: "subjects" }, subjects(answer.foreseen))) : null,
    h("section", { key: "who" }, h("h2", {}, "Who"), who(answer.facts)),
    answer.over ? null : island("div", { class: "evidence", key: "evidence" }, mount, what),
  ];
}

function who(found) {
  if (!found.length) return h("p", { class: "faint" }, "No further data.");
  return plain(found);
}

function plain(found) {
  return h("ul", { class: "plain" }, found.map((words, at) => h("li", { key: at }, words)));
}

/** The reasoning takes longer than the numbers: it is asked for by itself, and less often. */
function mount(element, what) {
  const own = { element, what, timer: 0, over: false };
  reason(own);
  return {
    update(now) {
      if (now === own.what) return;
      own.what = now;
      reason(own);
    },
    destroy() {
      own.over = true;
      window.clearTimeout(own.timer);
    },
  };
}

async function reason(own) {
  window.clearTimeout(own.timer);
  if (!document.hidden) {
    try {
      const answer = await ask(`/api/v1/page/evidence?${own.what}`);
      if (!own.over) show(own.element, told(answer));
    } catch (error) {
      if (!own.over && error instanceof Failed) show(own.element, h("p", { class: "notice" }, error.message));
    }
  }
  if (!own.over) own.timer = window.setTimeout(reason, AGAIN_S * 1000, own);
}

function told(answer) {
  return [
    h("section", { key: "todo" }, h("h2", {}, "What to do"), h("ol", { class: "todo" }, answer.next_steps.map((one) =>
      h("li", { key: one.text }, one.text, one.command ? h("code", { class: "command" }, one.command) : null)))),
    h("section", { key: "why" }, h("h2", {}, "Why"),
      answer.missing.map((words) => h("p", { class: "note", key: words }, words)),
      h("div", { class: "reasons" }, answer.sections.map((one) => h("div", { key: one.title },
        h("h3", {}, one.title), h("ul", {}, one.lines.map((words, at) => h("li", { key: at }, words))))))),
    answer.cost.length ? h("section", { key: "cost" }, h("h2", {}, "Cost"), plain(answer.cost)) : null,
    answer.past.length ? h("section", { key: "past" }, h("h2", {}, "Its past alerts"),
      h("ul", { class: "alerts" }, answer.past.map((one) => h("li", { key: one.key + one.opened },
        h("div", { class: "what" }, badge(one.badge), " ", h("a", { href: `#/alerts/${one.id}` }, one.title),
          h("p", { class: "line" }, `${one.when}, ${one.line}`)))))) : null,
    h("section", { key: "runs" }, h("h2", {}, "Earlier runs of the same program"), runs(answer.runs)),
  ];
}

function runs(found) {
  if (!found.length) return h("p", { class: "faint" }, "None is known.");
  const heads = ["Began", "Ran for", "Base", "Most", "What became of it"];
  return h("div", { class: "scroll" }, h("table", { role: "table", class: "stack" },
    h("caption", { class: "hidden" }, "Earlier runs"),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads.map((one) =>
      h("th", { key: one, scope: "col", role: "columnheader" }, one)))),
    h("tbody", { role: "rowgroup" }, found.map((row, at) => h("tr", { key: at, role: "row" }, row.map((words, column) =>
      h("td", { key: column, role: "cell", "data-label": heads[column] }, words)))))));
}
