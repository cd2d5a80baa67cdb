// Alerts, open, past and snoozed; and all about one.

import { h } from "./dom.js";
import { badge } from "./frame.js";
import { facts, gpuLink, processLink } from "./parts.js";

const BACK = [["1d", "a day"], ["7d", "7 days"], ["30d", "30 days"]];

/** Not asked for more often: the history is read for it. */
export const LEAST_S = 3;

export function path(route) {
  if (route.parts[0]) return `alert?${new URLSearchParams({ id: route.parts[0] })}`;
  return `alerts?${new URLSearchParams({ since: route.query.get("since") || "7d" })}`;
}

export function title(answer) {
  return answer && answer.alert ? answer.alert.title : "Alerts";
}

export function tree(answer, route, page) {
  return answer.alert ? single(answer, page) : list(answer, page);
}

function list(answer, page) {
  return [
    answer.missing.map((words) => h("p", { class: "note", key: words }, words)),
    h("section", { key: "open" }, h("h2", {}, "Open"),
      answer.open.length ? rows(answer.open, answer, page) : h("p", { class: "fine" }, "No open alerts.")),
    h("section", { key: "silences" }, h("h2", {}, "Snoozed"), silences(answer.silences, page)),
    h("section", { key: "past" },
      h("div", { class: "over" }, h("h2", {}, "Resolved"),
        h("nav", { class: "spans", "aria-label": "How far back" }, BACK.map(([value, words]) =>
          h("a", { key: value, href: `#/alerts?since=${value}`, "aria-current": value === answer.since ? "true" : null }, words)))),
      answer.past.length ? rows(answer.past, answer, page) : h("p", { class: "faint" }, "No alert was resolved in that time."),
      answer.more ? h("p", { class: "faint" }, `and ${answer.more} more: gpuwatchctl alerts --all`) : null),
  ];
}

function rows(found, answer, page) {
  return h("ul", { class: "alerts" }, found.map((one) => h("li", {
    key: one.key + one.opened, class: one.silence ? "silent" : null, "data-alert": one.id,
  },
    h("div", { class: "what" }, badge(one.badge), " ", h("a", { href: `#/alerts/${one.id}` }, one.title),
      h("p", { class: "line" }, `${one.when}, ${one.line}`)),
    one.open && answer.can ? doing(one, answer, page) : null)));
}

function single(answer, page) {
  const one = answer.alert;
  const about = answer.about;
  return [
    h("div", { class: "summary", key: "summary" },
      h("p", { class: "used" }, badge(one.badge), ` ${one.state} ${one.when}`),
      about.gpu ? h("p", {}, gpuLink(about.gpu, about.label),
        about.process ? [" · ", processLink(about.process, about.who)] : null) : null,
      one.silence ? h("p", { class: "note" }, `Silenced ${one.silence.line}.`) : null),
    one.open && answer.can ? h("div", { key: "do", "data-alert": one.id }, doing(one, answer, page)) : null,
    h("section", { key: "story" }, h("h2", {}, "What is known of it"), facts(answer.lines, "story")),
    h("p", { key: "back" }, h("a", { href: "#/alerts" }, "All alerts")),
  ];
}

/** What can be done about an open alert: snooze it, or end that. */
function doing(one, answer, page) {
  if (one.silence && one.silence.of_alert) return h("div", { class: "doing" }, back(one.silence, one.title, one.id, page));
  const failed = page.memory[`failed-${one.key}`];
  return h("details", { class: "doing", key: "doing" },
    h("summary", { "aria-label": `Snooze ${one.title}` }, "Snooze"),
    h("form", { onsubmit: (event) => snooze(event, one, page) },
      h("label", {}, h("span", {}, "Silence"), " ",
        h("select", { name: "term" }, answer.terms.map(([value, words]) => h("option", { key: value, value }, words)))),
      h("label", {}, h("span", {}, "Why"), " ",
        h("input", { name: "why", maxlength: "200", placeholder: "for those who ask later", autocomplete: "off" })),
      h("button", { type: "submit" }, "Snooze"),
      h("p", { class: "faint small" }, one.after),
      failed ? h("p", { class: "notice", role: "alert" }, failed) : null));
}

async function snooze(event, one, page) {
  event.preventDefault();
  const { term, why, button } = event.target.elements;
  const pressed = event.submitter || button;
  if (pressed) pressed.disabled = true;
  const body = { alert: one.id, for: term.value, why: why.value };
  const error = await page.send("/api/v1/snoozes", { method: "POST", body });
  if (pressed) pressed.disabled = false;
  said(page, one.key, error, `Snoozed: ${one.title}`, one.id);
}

function back(silence, named, id, page) {
  const take = async () => {
    const error = await page.send(`/api/v1/snoozes/${silence.id}`, { method: "DELETE" });
    said(page, silence.id, error, `Messages about ${named} are sent again`, id);
  };
  return h("button", { type: "button", onclick: take, "aria-label": `Unsnooze ${named}` }, "Unsnooze");
}

/** Say what has become of it, and put the focus where one goes on: the button pressed is gone. */
function said(page, key, error, words, id) {
  page.memory[`failed-${key}`] = error ? [error.message, error.hint].filter(Boolean).join(" - ") : null;
  document.getElementById("heard").textContent = error ? error.message : words;
  page.draw();
  if (error) return;
  const next = id && document.querySelector(`[data-alert="${CSS.escape(id)}"] .doing :is(button, summary)`);
  (next || document.querySelector("h1")).focus({ preventScroll: true });
}

function silences(found, page) {
  if (!found.length) return h("p", { class: "faint" }, "No silences.");
  return h("ul", { class: "alerts" }, found.map((one) => h("li", { key: one.id },
    h("div", { class: "what" }, one.about, h("p", { class: "line" }, one.line)),
    h("div", { class: "doing" }, back(one, one.about, "", page)),
    page.memory[`failed-${one.id}`] ? h("p", { class: "notice", role: "alert" }, page.memory[`failed-${one.id}`]) : null)));
}
