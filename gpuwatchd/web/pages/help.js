// What the marks, colours and lines mean.

import { h } from "./dom.js";
import { badge } from "./frame.js";

/** Not asked for more often: it does not change. */
export const LEAST_S = 30;

export function path() {
  return "help";
}

export function title() {
  return "Help";
}

export function tree(answer) {
  return [
    h("section", { key: "kinds" }, h("h2", {}, "Verdicts"),
      h("dl", { class: "legend" }, answer.kinds.map((one) => [
        h("dt", { key: `${one.badge.kind}-` }, badge(one.badge)), h("dd", { key: one.badge.kind }, one.means)]))),
    h("section", { key: "parts" }, h("h2", {}, "Charts"),
      h("dl", { class: "legend" }, answer.parts.map(([part, words, means]) => [
        h("dt", { key: `${part}-` }, h("span", { class: `key key-${part}`, "aria-hidden": "true" }), words),
        h("dd", { key: part }, means)])),
      h("p", { class: "flags" }, "Marks: ", answer.marks.map(([sign, words, colour]) =>
        h("span", { key: words, class: "flag" }, h("span", { class: `ink-${colour}`, "aria-hidden": "true" }, sign), ` ${words}`)))),
    h("section", { key: "how" }, h("h2", {}, "How to use a chart"),
      h("ul", {},
        h("li", {}, "Point at it, or focus it and use the arrow keys: it shows the values there."),
        h("li", {}, "Drag over a stretch to zoom; double click or Escape shows all of it again; + and - zoom by keys."),
        h("li", {}, "A gap is time without data; it is never bridged."))),
    h("section", { key: "more" }, h("h2", {}, "The same in a terminal"),
      h("p", {}, h("code", { class: "command" }, "gpuwatchctl top")),
      h("p", {}, h("code", { class: "command" }, "gpuwatchctl explain"))),
  ];
}
