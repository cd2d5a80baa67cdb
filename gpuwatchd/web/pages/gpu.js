// One GPU: its chart, what is foreseen, what happened, who is on it.

import { chartBox, foresee } from "./chart_box.js";
import { h } from "./dom.js";
import { badge } from "./frame.js";
import { bar, facts, strip, subjects } from "./parts.js";
import { processes, wishes } from "./table.js";

export function path(route, page) {
  const asked = wishes(page);
  asked.set("gpu", route.parts[0] || "");
  return `gpu?${asked}`;
}

function what(route) {
  return new URLSearchParams({ gpu: route.parts[0] || "" }).toString();
}

/** What can be asked for at once. */
export function begin(route) {
  foresee(what(route), route);
}

export function title(answer) {
  return answer ? `${answer.device.label} ${answer.device.name}` : "GPU";
}

export function tree(answer, route, page) {
  const one = answer.device;
  return [
    h("div", { class: "summary", key: "summary" },
      h("p", { class: "used" }, badge(one.badge), " ", h("strong", {}, one.used), " ", one.percent,
        one.memory ? h("span", { class: "faint" }, ` ${one.memory}`) : null,
        one.facts.length ? h("span", { class: "faint" }, ` · ${one.facts.join(" · ")}`) : null),
      bar(one.share),
      one.verdict.length ? h("p", { class: "verdict" }, one.verdict.join(", ")) : null,
      one.notes.map((words) => h("p", { class: "note", key: words }, words))),
    strip(answer.alerts, "Open on this GPU"),
    chartBox(what(route), route),
    answer.foreseen.length ? h("section", { key: "foreseen" },
      h("h2", {}, "Judged"), h("div", { class: "subjects" }, subjects(answer.foreseen))) : null,
    processes(answer, page, { alone: true }),
    answer.events.length ? h("section", { key: "events" }, h("h2", {}, "Events of the hardware"),
      h("ul", { class: "marks" }, answer.events.map((words) => h("li", { key: words }, words)))) : null,
    h("section", { key: "card" }, h("h2", {}, "The card"), facts(answer.facts, "card")),
  ];
}
