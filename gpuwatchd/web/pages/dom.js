// What is to be seen as plain values, and the fewest changes that make a place show it: an element
// that stays keeps its focus, its scroll, its selection and whatever was typed into it.

const SVG = "http://www.w3.org/2000/svg";
const KEY = Symbol("key");
const GIVEN = Symbol("given");
const ISLAND = Symbol("island");

/**
 * One element. Attributes: `key` tells it from its siblings, `on...` are handlers, `vars` are CSS
 * variables, `once` is called with the new element; null and false are left out.
 */
export function h(tag, attrs, ...children) {
  return { tag, attrs: attrs || {}, children: flat(children) };
}

/**
 * An element whose inside is somebody else's.
 * `make(element, given)` returns {update(given), destroy()}.
 */
export function island(tag, attrs, make, given) {
  return { tag, attrs: attrs || {}, children: [], make, given };
}

function flat(children) {
  return children.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false && one !== "");
}

/** Let an element show these children. */
export function show(place, ...children) {
  const held = document.activeElement;
  patch(place, flat(children), place.namespaceURI === SVG);
  // A row that has moved loses the focus in browsers that cannot move it as it is.
  if (held && held !== document.activeElement && held.isConnected && place.contains(held)) {
    held.focus({ preventScroll: true });
  }
}

function patch(place, wanted, drawn) {
  const [named, loose] = sorted(place);
  const nodes = wanted.map((one) => fitting(one, named, loose, drawn));
  for (const node of [...named.values(), ...loose]) forget(node);
  let next = place.firstChild;
  for (const node of nodes) {
    if (node === next) next = next.nextSibling;
    else if (node.parentNode === place && place.moveBefore) place.moveBefore(node, next);
    else place.insertBefore(node, next);
  }
}

/** What stands in a place: by key, and the rest in order. */
function sorted(place) {
  const named = new Map();
  const loose = [];
  for (const node of place.childNodes) {
    if (node[KEY] === undefined || named.has(node[KEY])) loose.push(node);
    else named.set(node[KEY], node);
  }
  return [named, loose];
}

function fitting(one, named, loose, drawn) {
  if (typeof one !== "object") return words(String(one), loose);
  const inside = drawn || one.tag === "svg";
  const key = one.attrs.key;
  let node;
  if (key !== undefined) {
    node = named.get(key);
    if (node && node.localName !== one.tag) node = undefined;
    else named.delete(key);
  } else {
    const at = loose.findIndex((other) => other.localName === one.tag);
    if (at >= 0) [node] = loose.splice(at, 1);
  }
  const fresh = !node;
  if (fresh) node = inside ? document.createElementNS(SVG, one.tag) : document.createElement(one.tag);
  if (key !== undefined) node[KEY] = key;
  dress(node, one.attrs);
  if (one.make) settle(node, one);
  else patch(node, one.children, inside);
  if (fresh && one.attrs.once) one.attrs.once(node);
  return node;
}

function words(text, loose) {
  const at = loose.findIndex((other) => other.nodeType === Node.TEXT_NODE);
  if (at < 0) return document.createTextNode(text);
  const [node] = loose.splice(at, 1);
  if (node.data !== text) node.data = text;
  return node;
}

function dress(node, attrs) {
  const before = node[GIVEN] || {};
  for (const name of Object.keys(before)) {
    if (!(name in attrs) && !name.startsWith("on") && name !== "vars") node.removeAttribute(name);
  }
  for (const [name, value] of Object.entries(attrs)) {
    if (name === "key" || name === "once") continue;
    if (name.startsWith("on")) node[name] = value;
    else if (name === "vars") dye(node, value, before.vars || {});
    else if (before[name] === value) continue;
    else if (value === null || value === undefined || value === false) node.removeAttribute(name);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node[GIVEN] = attrs;
}

/** Set CSS variables one by one: a style attribute is forbidden here. */
function dye(node, vars, before) {
  for (const [name, value] of Object.entries(vars)) {
    if (before[name] !== value) node.style.setProperty(name, value);
  }
}

function settle(node, one) {
  if (node[ISLAND]) node[ISLAND].update(one.given);
  else node[ISLAND] = one.make(node, one.given);
}

/** Take an element away, and tell what lives inside it. */
function forget(node) {
  for (const one of [node, ...(node.querySelectorAll ? node.querySelectorAll("*") : [])]) {
    if (one[ISLAND]) one[ISLAND].destroy();
    one[ISLAND] = null;
  }
  node.remove();
}
