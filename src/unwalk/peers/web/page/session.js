// Signing in with the access token, asking with it, and asking again while somebody looks.
// The token is kept in this tab only; in the address it is removed at once.

import { by, put } from "./table.js";

const EVERY = 2000;
const SLOWEST = 15000;
const KEY = "unwalk access token";

let page = null;           // whose it is, what it looks at, what it forgets on leaving
let token = null;
let timer = null;
let failures = 0;
let seen = {};             // path -> { tag, value }

export class Refused extends Error {
  constructor(code, record) {
    super(record.error || `the answer was ${code}.`);
    this.code = code;
    this.unknown = record.unknown || [];
  }
}

export async function ask(path, options = {}) {
  const headers = { Authorization: `Bearer ${token}`, ...options.headers };
  const answer = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
  if (answer.status === 304) return answer;
  if (!answer.ok) throw new Refused(answer.status, await answer.json().catch(() => ({})));
  return answer;
}

// The value at a path, and whether it differs from the last one seen.
export async function look(path) {
  const known = seen[path];
  const answer = await ask(path, { headers: known ? { "If-None-Match": known.tag } : {} });
  if (answer.status === 304) return [known.value, false];
  const value = await answer.json();
  seen[path] = { tag: answer.headers.get("ETag"), value };
  return [value, true];
}

// Look at everything once, and show it: page.look gets what is there and returns what shows it.
export async function refresh() {
  const asked = token;
  const show = await page.look();
  if (asked !== token) return;
  const fresh = by("dashboard").hidden;
  by("dashboard").hidden = by("leave").hidden = false;
  by("enter").hidden = true;
  show(fresh);
  by("link").className = "link live";
  put(by("link"), "live");
}

export async function tick() {
  clearTimeout(timer);
  if (token === null || document.hidden) return;
  try {
    await refresh();
    failures = 0;
  } catch (error) {
    if (error instanceof Refused && error.code === 401) return leave(`This is not the access token of ${page.whose}.`);
    failures += 1;
    by("link").className = "link lost";
    put(by("link"), error instanceof Refused ? error.message : `no answer from ${page.answers}; trying again`);
  }
  timer = setTimeout(tick, Math.min(SLOWEST, EVERY * (1 + failures)));
}

function enter(given) {
  token = given;
  sessionStorage.setItem(KEY, given);
  put(by("enter-problem"), "");
  return tick();
}

export function leave(words) {
  clearTimeout(timer);
  [token, seen, failures] = [null, {}, 0];
  sessionStorage.removeItem(KEY);
  by("dashboard").hidden = by("leave").hidden = true;
  by("enter").hidden = false;
  by("link").className = "link";
  put(by("link"), "");
  page.forget();
  put(by("enter-problem"), words);
  by("token").value = "";
  by("token").focus();
}

export function begin(given) {
  page = given;
  by("enter").addEventListener("submit", (event) => {
    event.preventDefault();
    const typed = by("token").value.trim();
    if (typed) enter(typed);
    else put(by("enter-problem"), "Enter the access token first.");
  });
  by("leave").addEventListener("click", () => leave(""));
  document.addEventListener("visibilitychange", tick);
  const sent = new URLSearchParams(location.hash.slice(1)).get("token");
  if (location.hash) history.replaceState(null, "", location.pathname);
  const kept = sent || sessionStorage.getItem(KEY);
  if (kept) enter(kept);
  else leave("");
}
