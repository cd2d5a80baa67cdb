// Idle memory, and what would free it.

import { h } from "./dom.js";
import { badge } from "./frame.js";
import { processLink } from "./parts.js";

/** Not asked for more often: every process of the machine is looked at for it. */
export const LEAST_S = 10;

export function path() {
  return "held";
}

export function title() {
  return "Idle memory";
}

export function tree(answer) {
  return [
    answer.unknown ? h("p", { class: "note", key: "unknown" }, answer.unknown) : null,
    answer.holdings.length
      ? h("section", { class: "cards", key: "held", "aria-label": "Idle memory" }, answer.holdings.map(card))
      : h("p", { class: "fine", key: "none" }, `No idle memory: ${answer.checked}.`),
    answer.holdings.length ? h("p", { class: "faint", key: "checked" }, answer.checked) : null,
    answer.prices.map((words) => h("p", { class: "faint small", key: words }, words)),
    answer.openers.length ? h("section", { key: "openers" }, h("h2", {}, "Open device files"),
      h("ul", { class: "plain" }, answer.openers.map(([depth, words], at) =>
        h("li", { key: at, class: `depth-${Math.min(depth, 2)}` }, words)))) : null,
  ];
}

function card(one) {
  return h("article", { class: `card edge-${one.badge.kind}`, key: one.key },
    h("div", { class: "head" }, h("h2", {}, one.gpu), badge(one.badge)),
    h("p", { class: "used" }, h("strong", {}, one.held), ` since ${one.since} (${one.lasts})`),
    h("p", {}, processLink(one.process, one.who), one.context ? h("span", { class: "faint" }, `, ${one.context}`) : null),
    h("p", { class: "verdict" }, one.evidence),
    h("ul", { class: "advice" }, one.advice.map((words) => h("li", { key: words }, words))),
    h("p", { class: "faint small" }, `${one.hours} GiB hours`, one.cost === "?" ? null : ` · ${one.cost}`));
}
