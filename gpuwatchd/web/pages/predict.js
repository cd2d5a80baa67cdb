// What is foreseen of each GPU: how fast, how sure, until when, by whom.

import { chart, spans } from "./chart_box.js";
import { h } from "./dom.js";
import { badge } from "./frame.js";
import { gpuLink, subjects } from "./parts.js";

const HEIGHT = 280;

export function path() {
  return "predict";
}

export function title() {
  return "Predict";
}

export function tree(answer, route) {
  return [
    h("div", { class: "over", key: "spans" }, h("span", { class: "faint" }, "Charts of the last"), spans(route, "Span of the charts")),
    answer.devices.map((one) => device(one, route)),
  ];
}

function device(one, route) {
  const what = new URLSearchParams({ gpu: one.uid }).toString();
  return h("section", { class: "predict", key: one.uid, "aria-label": one.label },
    h("div", { class: "over" },
      h("h2", {}, gpuLink(one.uid, one.label), " ", h("span", { class: "name" }, one.name)), badge(one.badge),
      h("span", {}, h("strong", {}, one.used), " ", one.percent)),
    one.notes.map((words) => h("p", { class: "note", key: words }, words)),
    h("div", { class: "beside" },
      chart(what, route, HEIGHT),
      h("div", { class: "subjects" }, one.subjects.length ? subjects(one.subjects, one.label) : h("p", { class: "faint" }, one.none))));
}
