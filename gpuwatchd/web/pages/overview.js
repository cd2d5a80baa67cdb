// Everything at a glance: a card for each GPU, what is open, who grows.

import { h } from "./dom.js";
import { badge } from "./frame.js";
import { bar, gpuLink, spark, strip } from "./parts.js";
import { processes, wishes } from "./table.js";

export function path(route, page) {
  return `overview?${wishes(page)}`;
}

export function title() {
  return "Overview";
}

export function tree(answer, route, page) {
  return [
    strip(answer.alerts, `Open: ${answer.page.counted}`),
    answer.held ? h("p", { class: "held", key: "held" }, h("a", { href: "#/held" }, answer.held)) : null,
    h("section", { class: "cards", key: "cards", "aria-label": "GPUs" }, answer.devices.map(card)),
    processes(answer, page),
  ];
}

function card(one) {
  return h("article", { class: `card edge-${one.badge.kind}`, key: one.uid },
    h("div", { class: "head" },
      h("h2", {}, gpuLink(one.uid, one.label)), badge(one.badge)),
    h("p", { class: "name" }, one.name),
    h("p", { class: "used" }, h("strong", {}, one.used), " ", one.percent,
      one.memory ? h("span", { class: "faint" }, ` ${one.memory}`) : null),
    bar(one.share),
    spark(one.spark),
    verdict(one.verdict),
    one.notes.map((words) => h("p", { class: "note", key: words }, words)),
    h("p", { class: "faint small" }, [...one.facts, counted(one.processes)].join(" · ")));
}

function verdict(parts) {
  if (!parts.length) return null;
  return h("ul", { class: "verdict" }, parts.map((words, at) =>
    h("li", { key: at, class: words.startsWith("full in") ? "full" : null }, words)));
}

function counted(count) {
  if (count === null) return "processes unknown";
  return count === 1 ? "1 process" : `${count} processes`;
}
