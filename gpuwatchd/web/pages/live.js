// The page: which view the address names, asking for it again and again, and what frames it.

import * as alerts from "./alerts.js";
import * as gpu from "./gpu.js";
import * as held from "./idle_memory.js";
import * as help from "./help.js";
import * as overview from "./overview.js";
import * as predict from "./predict.js";
import * as process from "./process.js";
import { h, show } from "./dom.js";
import { frame, tokenForm } from "./frame.js";
import { Failed, Gone, Refused, ask, hasToken, keepToken, takeToken } from "./server.js";

const VIEWS = { "": overview, predict, gpu, process, alerts, held, help };
/** An address that nothing answers to: mistyped, or of another version. */
const lost = {
  path: help.path,
  title: () => "No such view",
  tree: () => [h("div", { class: "notice", role: "alert", key: "lost" },
    h("p", {}, "This page has no view of that name."),
    h("p", {}, h("a", { href: "#/" }, "Go to the overview"), ", or choose one above."))],
};
const FASTEST_S = 1;
/** After a failure, and where no daemon keeps fresh what is seen. */
const AGAIN_S = 2;
const CALM_S = 5;
const SOON_MS = 250;
const MOST_KEPT = 20;

const page = {
  route: null,
  answer: null,
  /** Of the last answer of any view: who watches, how often, what is open. */
  head: null,
  gone: null,
  failed: null,
  refused: null,
  /** What a view remembers while its address stays, such as a filter. */
  memory: {},
  refresh: () => poll(),
  draw,
  send,
};
const kept = new Map();
const heard = new Set();
let timer = 0;
let asking = null;

function route() {
  const [path, query] = location.hash.slice(1).split("?");
  const parts = path.split("/").slice(1).map(decoded);
  return { hash: location.hash, name: parts[0] || "", parts: parts.slice(1), query: new URLSearchParams(query) };
}

function decoded(word) {
  try {
    return decodeURIComponent(word);
  } catch {
    return word;
  }
}

/** Show what the address names now. */
function turn(first) {
  const before = page.route;
  const went = takeToken();
  if (went) page.refused = null;
  page.route = route();
  const same = before && before.name === page.route.name && before.parts.join() === page.route.parts.join();
  if (!same) page.memory = {};
  page.failed = null;
  const known = kept.get(page.route.hash);
  if (known) page.answer = known.answer;
  else if (!same) window.setTimeout(reading, SOON_MS, page.route);
  page.fresh = Boolean(known) || same;
  if (page.fresh) draw();
  if (!same && view().begin && hasToken()) view().begin(page.route);
  if (!same && !first) page.arrive = known ? known.top : 0;
  poll();
}

function reading(asked) {
  if (page.route !== asked || page.fresh) return;
  page.answer = null;
  page.fresh = true;
  draw();
}

function view() {
  return Object.hasOwn(VIEWS, page.route.name) ? VIEWS[page.route.name] : lost;
}

async function poll() {
  window.clearTimeout(timer);
  if (asking) asking.abort();
  if (!hasToken()) {
    page.refused = page.refused || "";
    draw();
    return;
  }
  const mine = new AbortController();
  asking = mine;
  const asked = page.route;
  let next = AGAIN_S;
  try {
    const answer = await ask(`/api/v1/page/${view().path(asked, page)}`, { signal: mine.signal });
    if (asked !== page.route) return;
    took(answer, asked);
    next = Math.max(FASTEST_S, answer.page.live ? answer.page.interval_s : CALM_S, view().LEAST_S || 0);
  } catch (error) {
    if (mine.signal.aborted) return;
    stumbled(error);
  } finally {
    if (asking === mine) asking = null;
  }
  draw();
  if (!document.hidden && page.refused === null) timer = window.setTimeout(poll, next * 1000);
}

function took(answer, asked) {
  page.answer = answer;
  page.head = answer.page;
  page.gone = page.failed = page.refused = null;
  page.fresh = true;
  kept.delete(asked.hash);
  kept.set(asked.hash, { answer, top: window.scrollY });
  if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
  announce(answer.page.open);
}

function stumbled(error) {
  // What is known is of the view before: this one cannot draw it.
  if (!page.fresh) page.answer = null;
  page.fresh = true;
  if (error instanceof Refused) {
    keepToken(null);
    kept.clear();
    page.answer = page.head = null;
    page.refused = error.message;
  } else if (error instanceof Failed) {
    page.failed = error;
    page.gone = null;
  } else if (error instanceof Gone) {
    page.gone = error;
  } else {
    page.failed = new Failed({ message: "this page has a fault; reload it", hint: "" });
    console.error(error);
  }
}

/** Say alerts that are new to those who do not see the page. */
function announce(open) {
  const first = heard.size === 0;
  const fresh = open.filter((one) => !heard.has(one.key));
  heard.clear();
  heard.add("");
  for (const one of open) heard.add(one.key);
  if (first || !fresh.length) return;
  document.getElementById("heard").textContent = fresh.map((one) => `New ${one.watched ? "watch" : "alert"}: ${one.said}`).join(". ");
}

/** Do something through the server, then show what has become of it. */
async function send(path, options) {
  try {
    await ask(path, options);
  } catch (error) {
    if (error instanceof Refused) stumbled(error);
    else return error;
  }
  await poll();
  return null;
}

function draw() {
  const place = document.getElementById("page");
  if (page.refused !== null) {
    document.title = "gpuwatchd";
    show(place, tokenForm(page.refused, (token) => {
      keepToken(token);
      page.refused = null;
      poll();
    }));
    return;
  }
  const now = view();
  const title = (page.fresh && now.title(page.answer, page.route)) || "";
  document.title = title ? `${title} - gpuwatchd` : "gpuwatchd";
  show(place, frame(page, title, inside(now)));
  arrive();
}

function inside(now) {
  if (page.failed && !page.answer) return [failure(page.failed)];
  if (!page.answer) return [h("p", { class: "faint" }, page.gone ? "" : "reading ...")];
  return [page.failed ? failure(page.failed) : null, ...now.tree(page.answer, page.route, page)];
}

function failure(error) {
  return h("div", { class: "notice", role: "alert", key: "failure" },
    h("p", {}, error.message), error.hint && h("p", {}, "What to do: ", h("code", {}, error.hint)));
}

/** After going to another view: begin at its heading, or where it was left. */
function arrive() {
  if (page.arrive === undefined || !page.fresh || !page.answer) return;
  const head = document.querySelector("h1");
  if (head) head.focus({ preventScroll: true });
  window.scrollTo(0, page.arrive);
  page.arrive = undefined;
}

history.scrollRestoration = "manual";
window.addEventListener("scroll", () => {
  const known = page.route && kept.get(page.route.hash);
  if (known && page.arrive === undefined) known.top = window.scrollY;
}, { passive: true });
window.addEventListener("hashchange", () => turn(false));
document.addEventListener("visibilitychange", () => {
  if (document.hidden) window.clearTimeout(timer);
  else poll();
});
turn(true);
