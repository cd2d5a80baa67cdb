// What stands around every view: where one is, whether it is live, and the way to the others.

import { h } from "./dom.js";

const PLACES = [
  ["", "Overview"],
  ["predict", "Predict"],
  ["alerts", "Alerts"],
  ["held", "Held"],
  ["help", "Help"],
];
const OF = { gpu: "", process: "" };

export function frame(page, title, inside) {
  return [
    h("a", { class: "skip", href: "#main", onclick: toMain }, "To the content"),
    h("header", { class: "top" },
      h("a", { class: "brand", href: "#/" }, "gpuwatchd"),
      page.head && h("span", { class: "host" }, page.head.host),
      h("nav", { "aria-label": "Views" }, h("ul", {}, PLACES.map((one) => place(one, page)))),
      theme()),
    state(page),
    h("main", { id: "main", tabindex: "-1" },
      h("h1", { tabindex: "-1", class: title ? null : "hidden" }, title || "gpuwatchd"),
      inside),
    foot(page),
  ];
}

function toMain(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

function place([name, words], page) {
  const here = (OF[page.route.name] ?? page.route.name) === name;
  const open = name === "alerts" && page.head ? page.head.open : [];
  return h("li", { key: name },
    h("a", { href: `#/${name}`, "aria-current": here ? "page" : null },
      words, counts(open)));
}

/** How many alerts are open, and how many watches: they are not the same. */
function counts(open) {
  const watched = open.filter((one) => one.watched).length;
  const firing = open.length - watched;
  return [
    firing ? h("span", { class: "count", key: "firing" }, h("span", { class: "hidden" }, ", open: "), `${firing}`) : null,
    watched ? h("span", { class: "count watched", key: "watched" }, h("span", { class: "hidden" }, ", "),
      `${watched} ${watched === 1 ? "watch" : "watches"}`) : null,
  ];
}

/** Whether what is seen is of now, and what is missing. */
function state(page) {
  const head = page.head;
  const lines = [];
  if (page.gone) {
    const since = head ? `not live since ${head.clock}: ` : "";
    lines.push(notice("gone", "dead", [mark("trouble", "✕"), `${since}${page.gone.message}; trying again`]));
  } else if (head && !head.live) {
    const since = head.seen ? `not live since ${head.seen}` : "not live";
    lines.push(notice("dead", "dead", [mark("trouble", "✕"), since]));
  }
  for (const one of head ? head.warnings : []) {
    lines.push(notice(one.code + one.text, one.bad ? "bad" : "mild", one.text));
  }
  return h("div", { class: "state", role: "status", hidden: lines.length === 0 }, lines);
}

function notice(key, name, said) {
  return h("div", { class: name, key }, said);
}

/** A mark of a kind of verdict; its word stands beside it. */
export function mark(kind, sign) {
  return h("span", { class: `mark ink-${kind}`, "aria-hidden": "true" }, sign);
}

/** A verdict at a glance: colour, mark and word. */
export function badge(one) {
  return h("span", { class: `badge badge-${one.kind}` }, h("span", { "aria-hidden": "true" }, one.mark), " ", one.word);
}

function foot(page) {
  const head = page.head;
  if (!head) return h("footer", {});
  return h("footer", {},
    h("p", {}, head.daemon, h("span", { class: "clock" }, ` Seen ${head.seen || "never"}, times are ${head.zone}.`)),
    h("p", { class: "faint" }, `gpuwatchctl ${head.version} on ${head.host}. `,
      h("a", { href: "#/help" }, "What the marks mean")));
}

function theme() {
  const chosen = document.documentElement.dataset.theme || "";
  const choices = [["", "as the system"], ["light", "light"], ["dark", "dark"]];
  return h("label", { class: "theme" }, h("span", {}, "Colours"), " ",
    h("select", { onchange: choose }, choices.map(([value, words]) =>
      h("option", { value, selected: value === chosen }, words))));
}

function choose(event) {
  const value = event.target.value;
  if (value) document.documentElement.dataset.theme = value;
  else delete document.documentElement.dataset.theme;
  try {
    if (value) localStorage.setItem("gpuwatchd-theme", value);
    else localStorage.removeItem("gpuwatchd-theme");
  } catch {
    // Then it is chosen for now only.
  }
}

export function tokenForm(said, take) {
  const wanted = (event) => {
    event.preventDefault();
    const typed = event.target.elements.token.value.trim();
    const at = typed.indexOf("#token=");
    if (typed) take(at < 0 ? typed : new URLSearchParams(typed.slice(at + 1)).get("token"));
  };
  return h("main", { id: "main", class: "door" },
    h("h1", {}, "gpuwatchd"),
    said ? h("p", { class: "notice", role: "alert" }, `${said[0].toUpperCase()}${said.slice(1)}.`) : null,
    h("p", {}, "This page shows what runs on this machine, so it wants its token. Print it with"),
    h("p", {}, h("code", { class: "command" }, "gpuwatchctl web --token")),
    h("form", { onsubmit: wanted },
      h("label", { for: "token" }, "Token"),
      h("input", { id: "token", name: "token", type: "password", autocomplete: "off", required: true, spellcheck: "false" }),
      h("button", { type: "submit" }, "Open")),
    h("p", { class: "faint" }, "It is kept in this tab only, until the tab is closed."));
}
