/* global gpuwatchdChart */
// A chart of the page: asks for its picture over the chosen span, and again when it is worth it.

import { h, island, show } from "./dom.js";
import { Failed, Gone, Refused, ask } from "./server.js";

const SPANS = ["1h", "6h", "24h", "7d", "30d"];
const USUAL = "1h";
const HEIGHT = 320;
const AGAIN_S = 5;
/** So long after it was put there a chart that nobody has scrolled to is drawn too: paper has all of them. */
const AHEAD_MS = 1500;
let queue = Promise.resolve();

/** The span that the address names; "" for the usual one, which begins no earlier than the record does. */
function spanOf(route) {
  const wish = route.query.get("span");
  return SPANS.includes(wish) ? wish : "";
}

/** The choice of a span, which is part of the address. */
export function spans(route, title) {
  const here = route.hash.split("?")[0];
  const span = spanOf(route) || USUAL;
  return h("nav", { class: "spans", "aria-label": title }, SPANS.map((one) =>
    h("a", { key: one, href: `${here}?span=${one}`, "aria-current": one === span ? "true" : null }, one)));
}

/** A chart; `what` is the query that names its subject. */
export function chart(what, route, height = HEIGHT) {
  return island("div", { class: "drawn", key: `chart-${what}` }, mount, { what, span: spanOf(route), height });
}

/** The chart of one GPU or process, with its heading. */
export function chartBox(what, route) {
  return h("section", { class: "chart-box", key: "chart" },
    h("div", { class: "over" }, h("h2", {}, "Memory"), spans(route, "Span of the chart")),
    chart(what, route));
}

let early = { path: "", answer: null };

/** Ask for a chart's picture already, while what stands around it is still being asked for. */
export function foresee(what, route) {
  const wanted = address(what, spanOf(route));
  early = { path: wanted, answer: ask(wanted) };
  early.answer.catch(() => null); // whoever wants it is told
}

function address(what, span) {
  return `/api/v1/page/picture?${what}&span=${span || `${USUAL}&tight=1`}`;
}

function pictured(path, signal) {
  const [known, { answer }] = [early.path === path, early];
  early = { path: "", answer: null };
  return known ? answer : ask(path, { signal });
}

function mount(element, given) {
  const place = document.createElement("div");
  const below = document.createElement("div");
  place.className = "chart-place";
  element.append(place, below);
  const own = { place, below, given, drawn: null, span: null, timer: 0, asking: null, near: false };
  const turned = () => (document.hidden ? window.clearTimeout(own.timer) : fetchIt(own, !own.drawn));
  document.addEventListener("visibilitychange", turned);
  const sight = new IntersectionObserver((found) => {
    own.near = found[found.length - 1].isIntersecting;
    if (own.near) fetchIt(own);
  }, { rootMargin: "300px" });
  sight.observe(element);
  own.ahead = window.setTimeout(() => {
    queue = queue.then(() => (own.over || own.drawn || own.asking ? null : fetchIt(own, true)));
  }, AHEAD_MS);
  return {
    update(now) {
      if (now.what === own.given.what && now.span === own.given.span) return;
      own.given = now;
      fetchIt(own);
    },
    destroy() {
      sight.disconnect();
      document.removeEventListener("visibilitychange", turned);
      window.clearTimeout(own.timer);
      window.clearTimeout(own.ahead);
      if (own.asking) own.asking.abort();
      if (own.drawn) own.drawn.destroy();
      own.over = true;
    },
  };
}

/** Ask and draw, again and again while it is in sight; `once` also where it is not. */
async function fetchIt(own, once = false) {
  window.clearTimeout(own.timer);
  if (!(own.near || once) || document.hidden) return;
  if (own.asking) own.asking.abort();
  const mine = new AbortController();
  own.asking = mine;
  const { what, span } = own.given;
  let next = AGAIN_S;
  try {
    const answer = await pictured(address(what, span), mine.signal);
    if (own.over || mine.signal.aborted) return;
    draw(own, answer, span);
    next = answer.next_s;
  } catch (error) {
    if (mine.signal.aborted || own.over) return;
    if (error instanceof Failed) show(own.below, h("p", { class: "notice" }, error.message));
    else if (!(error instanceof Gone || error instanceof Refused)) throw error;
  }
  own.timer = window.setTimeout(fetchIt, next * 1000, own);
}

function draw(own, answer, span) {
  if (own.drawn && own.span !== span) {
    own.drawn.destroy();
    own.drawn = null;
  }
  own.span = span;
  if (own.drawn) own.drawn.update(answer.picture);
  else own.drawn = gpuwatchdChart(own.place, answer.picture, { height: own.given.height, zones: answer.zones });
  show(own.below,
    answer.empty ? h("p", { class: "notice" }, "No data in this span.") : null,
    answer.notes.map((words) => h("p", { class: "faint small", key: words }, words)),
    marks(answer.marks));
}

function marks(found) {
  if (!found.length) return null;
  return h("details", { class: "fold", key: "marks" },
    h("summary", {}, `What happened (${found.length})`),
    h("ul", { class: "marks" }, found.map((one, at) =>
      h("li", { key: `${one.when}${one.text}${at}` }, h("span", { class: "when" }, one.when), " ", one.text))));
}
