// The dashboard: asks this peer every two seconds while somebody looks, and shows what changed.
// It asks nobody else. Everything it shows is set as text, never as markup.

import { chapters, drawAccuracy, drawGraph, element } from "./draw.js";
import { ask, begin, leave, look, refresh, tick } from "./session.js";
import { by, count, figure, put, rich, rows, tiles } from "./table.js";

const PAGE = 25;
const ENDED = new Set(["done", "refused"]);
const STAGES = {
  received: "received", waiting: "waits for its turn", walking: "the token walks",
  committed: "committed", erasing: "being erased everywhere", done: "done", refused: "refused",
};
const STATES = { up: "up", silent: "silent", left: "has left", unknown: "not heard of" };
const GRADES = { exact: "= exact", certified: "✓ certified", rehearsal: "▷ rehearsal: would be certified",
  nominal: "~ nominal", refused: "✗ refused", nothing: "– nothing to claim" };

let before = [];           // "after" values of the pages of requests that were turned over
let older = null;
let status = null;
let stages = new Map();    // request -> stage, to say what changed
let held = null;

// Words

function share(value) { return `${(100 * value).toFixed(1)}\u00a0%`; }

function sentence(words) {
  const text = words.charAt(0).toUpperCase() + words.slice(1);
  return /[.!?]$/.test(text) ? text : `${text}.`;
}

function small(value) {
  if (value === 0) return "0";
  const words = String(Number(value.toPrecision(3)));
  return Math.abs(value) >= 0.001 ? words : Number(value.toPrecision(3)).toExponential();
}

function budget(item) {
  if (item.epsilon === 0 && item.delta === 0) return "nothing";
  return item.epsilon === null ? "none" : `ε\u00a0${small(item.epsilon)}, δ\u00a0${small(item.delta)}`;
}

function walkName(chapter) {
  if (chapter.kind === "train") return "The training walk";
  return `Chapter ${chapter.number}, which forgets records of ${chapter.peer || "a peer"},`;
}

function story(now) {
  const full = "The disk of this peer is full: it takes no token and no request until there is room. ";
  return (now.disk === "full" ? full : "") + tokenSentence(now);
}

function tokenSentence({ token: where, chapter, peer }) {
  if (chapter.stage === "committed") {
    const over = chapter.kind === "train" ? "Training is over" : `Chapter ${chapter.number} is committed`;
    return `${over}: the peers agree on its final model, after ${count(where.hops, "hop")}.`;
  }
  const done = `${walkName(chapter)} has done ${where.hop.toLocaleString("en")} of `
    + `${count(where.hops, "hop")}.`;
  if (where.peer === peer) return `The token is here. ${done}`;
  if (where.peer === null) return `Where the token is now is not known here. ${done}`;
  return `The token was last heard of at ${where.peer}. ${done}`;
}

function graphSentence({ peers, edges, token: where, peer, chapter }) {
  const silent = peers.filter((p) => p.state === "silent").map((p) => p.name);
  const left = peers.filter((p) => p.state === "left").map((p) => p.name);
  return [
    `${count(peers.length, "peer")}, ${count(edges.length, "connection")}; this one is ${peer}.`,
    chapter.stage === "committed" ? "The walk is over: the peers agree on the final model."
      : where.peer ? `The token is at ${where.peer}${where.certain ? "" : ", as far as is known here"}.`
      : "Nobody is known to have the token.",
    silent.length ? `Silent: ${silent.join(", ")}.` : "",
    left.length ? `Left: ${left.join(", ")}.` : "",
  ].filter(Boolean).join(" ");
}

function accuracySentence(points) {
  if (!points.length) return "Nothing was measured yet: a point comes with every visit of the token.";
  const [first, last] = [points[0], points.at(-1)];
  if (points.length === 1) {
    return `The model gets ${share(last.accuracy)} of this peer's own `
      + `${count(last.records, "hold-out record")} right; a curve comes with further visits.`;
  }
  const acts = chapters(points).length;
  const also = acts > 1 ? ` over ${acts} chapters` : "";
  return `Share of this peer's own ${count(last.records, "hold-out record")} that the model gets right, `
    + `at each visit since this peer was last started: from ${share(first.accuracy)} to ${share(last.accuracy)}${also}.`;
}

// Parts of the page

function spentWords({ epsilon, delta, parts }) {
  if (!parts.length) return ["none", "no certificate yet"];
  if (epsilon === 0 && delta === 0) return ["none", "exact certificates only"];
  return [`ε ${small(epsilon)}`, `δ ${small(delta)}`];
}

function showTiles(now) {
  const open = Object.entries(now.queue).filter(([stage]) => !ENDED.has(stage))
    .reduce((sum, [, n]) => sum + n, 0);
  const last = now.accuracy.at(-1);
  const over = now.chapter.stage === "committed";
  const shown = [
    ["Token", now.token.peer === now.peer ? "here" : now.token.peer || "unknown",
      now.token.certain ? "certain" : "as last heard of"],
    ["Hop", now.token.hop.toLocaleString("en"), `of ${now.token.hops.toLocaleString("en")}, `
      + (now.chapter.kind === "train" ? "training" : `forgetting in chapter ${now.chapter.number}`)],
    ["Accuracy here", last ? share(last.accuracy) : "–",
      last ? `on ${count(last.records, "hold-out record")}` : "not measured yet"],
    ["Open requests", open.toLocaleString("en"), `${(now.queue.done || 0).toLocaleString("en")} done`],
    ["Privacy spent", ...spentWords(now.privacy)],
  ];
  if (over) shown[0][1] = "at rest", shown[0][2] = "the final model is agreed on";
  tiles(by("tiles"), shown);
}

function showPeers(now) {
  const near = now.peers.map(() => []);
  for (const [a, b] of now.edges) {
    near[a].push(now.peers[b].name);
    near[b].push(now.peers[a].name);
  }
  const places = new Map(now.peers.map((peer, i) => [peer.name, i]));
  rows(by("peers"), now.peers, (peer) => peer.name, (peer) => [
    rich([peer.name, peer.address, peer.name === now.peer], () => [peer.name,
      peer.name === now.peer ? element("span", { class: "mark" }, "this peer") : "",
      element("small", {}, peer.address)]),
    rich([peer.state, peer.name === now.token.peer, now.token.certain], () => [
      element("span", { class: `state ${peer.state}` }, STATES[peer.state] || peer.state),
      peer.name !== now.token.peer ? "" : element("span", { class: "mark held" },
        now.token.certain ? "has the token" : "had the token last")]),
    rich(near[places.get(peer.name)], () => near[places.get(peer.name)].flatMap((name, i) => [
      i ? ", " : "", element("span", { class: "whole" }, name)])),
  ]);
}

function showPrivacy(now) {
  const { epsilon, delta, rule, parts } = now.privacy;
  const [formula, ...remarks] = rule.split("; ");
  put(by("privacy-total"), parts.length
    ? [`All certificates about this peer's records together spend epsilon ${small(epsilon)} and delta ${small(delta)}.`,
      ...remarks.map(sentence)].join(" ")
    : "Nothing was spent: no certificate has been issued for this peer's records.");
  put(by("privacy-rule"), sentence(formula));
  by("privacy-how").hidden = !parts.length;
  by("privacy-table").parentElement.hidden = !parts.length;
  rows(by("privacy"), parts, (part) => part.certificate, (part) => [
    rich(part.certificate, () => [part.certificate], "whole"), GRADES[part.badge] || part.badge, figure(small(part.epsilon)),
    figure(small(part.delta)), allowance(part)]);
}

function allowance(part) {
  if (!part.epsilon_allowed) return part.grade === "exact" ? "exact: nothing is spent" : "no budget was named";
  const words = `${small(part.epsilon)} of ${small(part.epsilon_allowed)}`;
  return rich(words, () => [element("meter", { min: 0, max: part.epsilon_allowed, value: part.epsilon,
    "aria-label": `epsilon: ${words}` }), ` ${words}`]);
}

function showPictures() {
  if (!status) return;
  drawGraph(by("graph"), status, graphSentence(status));
  by("accuracy-numbers").hidden = !status.accuracy.length;
  by("accuracy").hidden = status.accuracy.length < 2;
  if (status.accuracy.length > 1) drawAccuracy(by("accuracy"), status.accuracy, accuracySentence(status.accuracy));
}

function showStatus(now) {
  status = now;
  put(by("title"), `${now.peer} in ${now.network}`);
  document.title = `${now.peer}: hop ${now.token.hop} of ${now.token.hops} · unwalk`;
  put(by("story"), story(now));
  put(by("run"), `· run ${now.run.slice(0, 12)}`);
  put(by("graph-note"), graphSentence(now));
  put(by("accuracy-note"), accuracySentence(now.accuracy));
  const kept = now.records === null ? "" : `It trains on ${count(now.records, "record")} of its own. `;
  put(by("requests-note"), `${kept}From the moment a request is taken in, its records are no longer `
    + "trained on; they leave the store once the model that forgot them is committed.");
  showTiles(now);
  showPeers(now);
  showPrivacy(now);
  rows(by("accuracy-rows"), [...now.accuracy].reverse(), (p) => `${p.chapter}/${p.hop}`, (p) => [
    p.chapter === 0 ? "training" : `chapter ${p.chapter}`, figure(String(p.hop)),
    figure(share(p.accuracy)), figure(String(p.records))]);
  showPictures();
  if (held !== null && held !== now.token.peer && now.token.peer === now.peer) say("The token is here.");
  held = now.token.peer;
}

function showRequests({ requests, next }) {
  older = next;
  by("requests-table").parentElement.hidden = !requests.length;
  by("requests-none").hidden = requests.length > 0 || before.length > 0;
  rows(by("requests"), requests, (item) => item.id, (item) => [
    rich([item.id, item.reason], () => [element("code", {}, item.id),
      item.reason ? element("small", {}, item.reason) : ""]),
    rich([item.stage, item.chapter], () => [element("span", { class: `stage ${item.stage}` },
      STAGES[item.stage] || item.stage),
    item.chapter === null ? "" : element("small", {}, `chapter ${item.chapter}`)]),
    figure(item.records.toLocaleString("en")),
    item.grade + (item.method ? ` by ${item.method}` : ""), budget(item), moment(item.received),
    item.certificate ? rich(item.certificate, () => [item.certificate], "whole") : "–",
  ]);
  by("requests-pages").hidden = !next && !before.length;
  by("newer").disabled = !before.length;
  by("older").disabled = !next;
  for (const item of requests) {
    const was = stages.get(item.id);
    if (was && was !== item.stage) say(`Request ${item.id}: ${STAGES[item.stage] || item.stage}.`);
    stages.set(item.id, item.stage);
  }
}

function moment(iso) {
  const when = new Date(iso);
  if (Number.isNaN(when.getTime())) return iso;
  const words = when.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
  return rich(iso, () => [element("time", { datetime: iso }, words)], "whole");
}

function showCertificates({ certificates }) {
  by("certificates-table").parentElement.hidden = !certificates.length;
  by("certificates-none").hidden = certificates.length > 0;
  rows(by("certificates"), certificates, (item) => item.name, (item) => [
    rich([item.name, item.version], () => [element("code", {}, item.name),
      element("small", {}, `chapter ${item.chapter}, version ${item.version}`)]),
    rich(item.badge, () => [element("span", { class: `badge ${item.badge}` },
      GRADES[item.badge] || item.badge)]),
    budget(item),
    item.requests.length > 3 ? count(item.requests.length, "request") : item.requests.join(", "),
    rich([item.complete, item.pending], () => item.complete ? ["by every peer"]
      : ["not yet by all", element("small", {}, `waits for ${item.pending.join(", ")}`)]),
    rich([item.name, item.version, "buttons"], () => [element("div", { class: "actions" },
      action("Page", item.name, page), action("Download", item.name, download),
      action("Verify", item.name, verify))]),
  ]);
}

function action(word, name, does) {
  const made = element("button", { type: "button", "aria-label": `${word} ${name}` }, word);
  made.addEventListener("click", () => does(name).catch((error) => verdict(name, [error.message], true)));
  return made;
}

const pathOf = (name) => `/v1/certificates/${encodeURIComponent(name)}`;

const page = (name) => saved(name, "page", "html");
const download = (name) => saved(name, "files", "zip");

async function saved(name, part, ending) {
  const address = URL.createObjectURL(await (await ask(`${pathOf(name)}/${part}`)).blob());
  const file = `${name.replace(/[.]json$/, "")}.${ending}`;
  const link = element("a", { href: address, download: file });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

async function verify(name) {
  verdict(name, ["is being checked …"], false);
  const said = await (await ask(`${pathOf(name)}/verify`)).json();
  verdict(name, [said.verdict, ...said.problems.map((problem) => `changed: ${problem}`),
    ...(said.checked || []).map((words) => `checked: ${words}`),
    ...(said.not_checked || []).map((words) => `not checked: ${words}`),
    ...(said.stated || []).map((words) => `stated: ${words}`), ...(said.words || [])], said.problems.length > 0);
}

function verdict(name, lines, wrong) {
  by("verdict").className = wrong ? "verdict wrong" : "verdict";
  by("verdict").replaceChildren(element("h3", {}, `${name}: ${lines[0]}`),
    element("ul", {}, ...lines.slice(1).map((line) => element("li", {}, line))));
}

function say(words) { put(by("news"), words); }

// Asking to forget

function formRecord() {
  const grade = document.querySelector("input[name=grade]:checked").value;
  const record = { grade, records: by("records").value.split("\n").map((l) => l.trim()).filter(Boolean) };
  if (grade === "certified") {
    for (const name of ["epsilon", "delta"]) {
      const value = Number(by(name).value);
      if (!by(name).value.trim() || !Number.isFinite(value)) throw new Error(`${name} is no number.`);
      record[name] = value;
    }
  }
  if (by("method").value) record.method = by("method").value;
  const made = new Uint8Array(8);
  crypto.getRandomValues(made);
  record.id = by("request-id").value.trim()
    || [...made].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return record;
}

function sure(record) {
  put(by("sure-text"), `${count(record.records.length, "record")}, ${record.grade}`
    + (record.grade === "certified" ? ` within epsilon ${record.epsilon} and delta ${record.delta}` : "")
    + ". They are no longer trained on from now on and are erased when the model has forgotten them. "
    + "This cannot be taken back.");
  by("sure").returnValue = "no";
  by("sure").showModal();
  return new Promise((done) => asked.push(done));
}

// One answer for each closing, in order: news of a closing may come when it is open again.
const asked = [];
by("sure").addEventListener("close", () => asked.shift()?.(by("sure").returnValue === "yes"));

async function submit(event) {
  event.preventDefault();
  put(by("form-problem"), "");
  try {
    const record = formRecord();
    if (!record.records.length) throw new Error("Name at least one record.");
    if (!await sure(record)) return;
    const answer = await ask("/v1/requests", { method: "POST", body: JSON.stringify(record),
      headers: { "Content-Type": "application/json" } });
    const made = await answer.json();
    by("form").reset();
    showBudget();
    say(`Request ${made.id} was taken in.`);
    before = [];
    await refresh();
  } catch (error) {
    if (error.code === 401) leave(error.message);
    else put(by("form-problem"), error.message);
  }
}

function showBudget() {
  const grade = document.querySelector("input[name=grade]:checked").value;
  by("budget").hidden = grade !== "certified";
  for (const way of by("method").options) {
    way.hidden = way.disabled = Boolean(way.dataset.grade) && way.dataset.grade !== grade;
    if (way.selected && way.disabled) by("method").value = "";
  }
}

// Coming, staying, going

async function lookAtAll() {
  const after = before.length ? `&after=${encodeURIComponent(before.at(-1))}` : "";
  const [now, requests, certificates] = await Promise.all([look("/v1/status"),
    look(`/v1/requests?limit=${PAGE}${after}`), look("/v1/certificates")]);
  return (fresh) => {
    if (fresh || now[1]) showStatus(now[0]);
    showRequests(requests[0]);
    if (fresh || certificates[1]) showCertificates(certificates[0]);
  };
}

function forget() {
  [status, held, before, stages] = [null, null, [], new Map()];
  put(by("title"), "A peer's dashboard");
  put(by("story"), "Sign in to see how this peer is.");
  put(by("run"), "");
  document.title = "unwalk peer";
}

by("form").addEventListener("submit", submit);
by("form").addEventListener("change", showBudget);
showBudget();
by("file").addEventListener("change", async () => {
  const [file] = by("file").files;
  if (file) by("records").value = await file.text();
});
by("older").addEventListener("click", () => { if (older) { before.push(older); tick(); } });
by("newer").addEventListener("click", () => { before.pop(); tick(); });
new ResizeObserver(showPictures).observe(by("graph").parentElement);
begin({ whose: "this peer", answers: "the peer", look: lookAtAll, forget });
