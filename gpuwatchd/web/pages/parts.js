// Pieces that several views are made of.

import { h } from "./dom.js";
import { badge } from "./frame.js";

export function gpuLink(uid, words) {
  return h("a", { href: `#/gpu/${encodeURIComponent(uid)}` }, words);
}

/** An address as the server gives it: GPU, pid and when it began. */
export function processLink(address, words) {
  if (!address) return words;
  const [uid, pid, began] = split(address);
  return h("a", { href: `#/process/${encodeURIComponent(uid)}/${pid}/${began}` }, words);
}

function split(address) {
  const parts = address.split("/");
  const [pid, began] = parts.slice(-2);
  return [parts.slice(0, -2).join("/"), pid, began];
}

/** Labels with their words; a label that repeats is said once. */
export function facts(rows, name) {
  if (!rows.length) return null;
  const groups = [];
  for (const [label, words] of rows) {
    const last = groups[groups.length - 1];
    if (last && (last.label === label || !label)) last.words.push(words);
    else groups.push({ label, words: [words] });
  }
  return h("dl", { class: "facts", key: name }, groups.map((one) => [
    h("dt", { key: `${one.label}-` }, one.label), one.words.map((words, at) => h("dd", { key: `${one.label}${at}` }, words)),
  ]));
}

/** Values over time, small: the words beside it say what matters. */
export function spark(values) {
  if (!values.length) return null;
  const step = 100 / Math.max(1, values.length - 1);
  let path = "";
  let pen = "M";
  values.forEach((value, at) => {
    if (value === null) {
      pen = "M";
      return;
    }
    path += `${pen}${(at * step).toFixed(1)} ${(22 - value * 20).toFixed(1)}`;
    pen = "L";
  });
  return h("svg", { class: "spark", viewBox: "0 0 100 24", preserveAspectRatio: "none", "aria-hidden": "true" },
    h("path", { d: path }));
}

/** How much of a GPU's memory is used; the words beside it say it too. */
export function bar(share) {
  return h("div", { class: share === null ? "bar unknown" : "bar", "aria-hidden": "true" },
    share === null ? null : h("span", { vars: { width: `${(share * 100).toFixed(1)}%` } }));
}

/** Open alerts, each in a line that leads to all that is known of it. */
export function strip(alerts, title) {
  if (!alerts.length) return null;
  return h("section", { class: "strip", key: "strip", "aria-label": title },
    h("h2", {}, title),
    h("ul", {}, alerts.map((one) => h("li", { key: one.key, class: one.silent ? "silent" : null },
      badge(one.badge), " ",
      h("a", { href: `#/alerts/${one.id}` }, one.title), " ",
      h("span", { class: "line" }, [one.when, one.line].filter(Boolean).join(", "))))));
}

/** Figures of each judged subject, as `gpuwatchctl predict` labels them; `place`: where several GPUs have some. */
export function subjects(found, place = "") {
  return found.map((one) => h("section", { class: "subject", key: one.key, "aria-label": place ? `${place}: ${one.who}` : one.who },
    h("h3", {}, processLink(one.process, one.who)),
    h("p", { class: "verdict" }, badge(one.badge), " ", one.badge.rest),
    one.reason && one.reason !== one.badge.words ? h("p", { class: "faint" }, one.reason) : null,
    facts(one.facts, "facts")));
}
