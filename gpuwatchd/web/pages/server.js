// Asking the server: the token, and what can go wrong.

const KEEP = "gpuwatchd-token";
const PATIENCE_MS = 10000;
let held = null;

/** The server wants a token, or another one. */
export class Refused extends Error {}

/** Nobody answers. */
export class Gone extends Error {}

/** It answered that it cannot. */
export class Failed extends Error {
  constructor(error) {
    super(error.message);
    this.hint = error.hint || "";
  }
}

/** Take the token out of the address, so that no screen shot, bookmark or "back" has it. */
export function takeToken() {
  const said = location.hash.slice(1);
  if (!said.startsWith("token=")) return false;
  const given = new URLSearchParams(said);
  keepToken(given.get("token"));
  history.replaceState(null, "", `${location.pathname}#${given.get("view") || "/"}`);
  return true;
}

export function keepToken(token) {
  held = token;
  try {
    if (token) sessionStorage.setItem(KEEP, token);
    else sessionStorage.removeItem(KEEP);
  } catch {
    // It is kept as long as the page is open.
  }
}

export function hasToken() {
  return Boolean(token());
}

function token() {
  if (held) return held;
  try {
    return sessionStorage.getItem(KEEP);
  } catch {
    return null;
  }
}

function either(one, other) {
  if (!one) return other;
  return AbortSignal.any ? AbortSignal.any([one, other]) : one;
}

/** Ask for JSON. Throws Refused, Gone or Failed. */
export async function ask(path, { method = "GET", body = null, signal = null } = {}) {
  const headers = { Authorization: `Bearer ${token() || ""}` };
  if (body) headers["Content-Type"] = "application/json";
  let answer;
  let said;
  try {
    answer = await fetch(path, {
      method,
      headers,
      body: body && JSON.stringify(body),
      cache: "no-store",
      signal: either(signal, AbortSignal.timeout(PATIENCE_MS)),
    });
    said = await answer.json();
  } catch (error) {
    if (signal && signal.aborted) throw error;
    throw new Gone("the server does not answer");
  }
  if (answer.status === 401) throw new Refused("this token is not the right one");
  if (said.error) throw new Failed(said.error);
  if (!answer.ok) throw new Failed({ message: `the server answers ${answer.status}` });
  return said;
}
