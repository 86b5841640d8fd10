// All peers of a network on this machine. It asks the process that started them, and nobody else.

import { drawGraph, element } from "./draw.js";
import { begin, look } from "./session.js";
import { by, count, figure, put, rich, rows, tiles } from "./table.js";

const NOTHING = rich("–", () => ["–"], "nothing");
const STATES = { starting: "starting", up: "up", restarting: "restarting", stopped: "stopped",
  left: "has left" };
const STAGES = ["received", "waiting", "walking", "committed", "erasing", "done", "refused"];
const CLOSED = new Set(["done", "refused"]);

let now = null;

const sum = (list, value) => list.reduce((total, item) => total + value(item), 0);
const here = () => now.peers.filter((peer) => !["left", "stopped"].includes(peer.state));

function number(value, words) {
  return value === null ? rich("–", () => ["–"], "number nothing") : figure(words(value));
}

function size(bytes) {
  const megabytes = bytes / 1e6;
  return megabytes < 1000 ? `${megabytes.toFixed(0)}\u00a0MB` : `${(megabytes / 1000).toFixed(2)}\u00a0GB`;
}

const walk = () => now.chapter === 0 ? "Training" : `Chapter ${now.chapter}`;
const finished = () => here().length > 0
  && here().every((peer) => peer.finished && peer.chapter === now.chapter);

function story() {
  const about = now.forgets ? `, which forgets records of ${now.forgets},` : "";
  if (finished()) return `${walk()}${about} is finished: all peers have the model.`;
  const done = now.hop >= now.hops && now.hops > 0 ? "has done all hops; the peers agree on its end."
    : `has done ${now.hop.toLocaleString("en")} of ${count(now.hops, "hop")}.`;
  return `${walk()}${about} ${done}`;
}

function graphSentence() {
  const away = now.peers.filter((peer) => peer.state !== "up" && peer.state !== "left");
  return [
    `${count(now.peers.length, "peer")}, ${count(now.edges.length, "connection")}.`,
    now.token ? `The token is at ${now.token}.`
      : finished() ? "The walk is over: nobody needs the token." : "The token is on its way.",
    away.length ? `Not up: ${away.map((peer) => peer.name).join(", ")}.` : "",
  ].filter(Boolean).join(" ");
}

function requestWords(peer) {
  const found = STAGES.filter((stage) => peer.requests[stage]);
  if (!found.length) return NOTHING;
  return rich(found.map((stage) => [stage, peer.requests[stage]]), () => [element("span", {},
    ...found.flatMap((stage, i) => [i ? ", " : "",
      element("span", { class: `stage ${stage}` }, `${peer.requests[stage]} ${stage}`)]))]);
}

function showTiles() {
  const up = now.peers.filter((peer) => peer.state === "up").length;
  const open = sum(now.peers, (peer) => sum(Object.entries(peer.requests),
    ([stage, n]) => CLOSED.has(stage) ? 0 : n));
  const done = sum(now.peers, (peer) => peer.requests.done || 0);
  const again = sum(now.peers, (peer) => peer.restarts);
  tiles(by("tiles"), [
    ["Peers up", `${up} of ${here().length}`, again ? `${count(again, "restart")} so far` : "none had to be restarted"],
    ["Hop", now.hop.toLocaleString("en"), `of ${now.hops.toLocaleString("en")}, `
      + (now.chapter ? `forgetting in chapter ${now.chapter}` : "training")],
    ["Chapters", now.chapter.toLocaleString("en"), "after training"],
    ["Certificates", sum(now.peers, (peer) => peer.certificates).toLocaleString("en"),
      `${count(open, "request")} open, ${done.toLocaleString("en")} done`],
    ["Memory together", now.memory === null ? "–" : size(now.memory), "what they share counts once"],
  ]);
}

function showPeers() {
  rows(by("peers"), now.peers, (peer) => peer.name, (peer) => [
    rich([peer.name, peer.address], () => [peer.name, element("small", {}, peer.address)]),
    rich([peer.state, peer.note, peer.restarts, peer.name === now.token], () => [
      element("span", { class: `state ${peer.state}` }, STATES[peer.state]),
      peer.name === now.token ? element("span", { class: "mark held" }, "has the token") : "",
      peer.note ? element("small", {}, peer.note) : "",
      peer.restarts ? element("small", {}, `restarted ${count(peer.restarts, "time")}`) : ""]),
    rich([peer.chapter, peer.hop, peer.finished], () => [peer.hop.toLocaleString("en"),
      element("small", {}, (peer.chapter ? `chapter ${peer.chapter}` : "training")
        + (peer.finished ? ", finished" : ""))], "number"),
    number(peer.records, (n) => n.toLocaleString("en")),
    requestWords(peer),
    number(peer.certificates || null, (n) => n.toLocaleString("en")),
    number(peer.memory, size),
    peer.page ? rich(peer.page, () => [element("a", { href: peer.page, target: "_blank",
      rel: "noopener noreferrer", "aria-label": `Open the page of ${peer.name}` }, "open")]) : NOTHING,
  ]);
}

function showPicture() {
  if (!now) return;
  drawGraph(by("graph"), { peers: now.peers, edges: now.edges, token: { peer: now.token } },
    graphSentence(), (peer) => peer.name.replace(/^.*-/, ""));
}

async function lookAtAll() {
  const [found, changed] = await look("/v1/network");
  return (fresh) => {
    if (!fresh && !changed) return;
    now = found;
    put(by("title"), `${count(now.peers.length, "peer")} on this machine`);
    document.title = `${now.network}: hop ${now.hop} of ${now.hops} · unwalk`;
    put(by("story"), story());
    put(by("graph-note"), graphSentence());
    put(by("folder"), `Network ${now.network} in ${now.folder}`);
    showTiles();
    showPeers();
    showPicture();
  };
}

function forget() {
  now = null;
  put(by("title"), "A network on this machine");
  put(by("story"), "Sign in to see how its peers are.");
  put(by("folder"), "");
  document.title = "unwalk network";
}

new ResizeObserver(showPicture).observe(by("graph").parentElement);
begin({ whose: "this network", answers: "unwalk net up", look: lookAtAll, forget });
