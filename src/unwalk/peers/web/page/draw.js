// Pictures: the graph and the chart, drawn at the size they are shown at.
// Colours come from the style sheet by class; nothing here knows light from dark.

const SVG = "http://www.w3.org/2000/svg";
const MOST_NAMED = 24;

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  return filled(made, attributes, children);
}

export function shape(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  return filled(made, attributes, children);
}

function filled(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) {
      made.setAttribute(key, value === true ? "" : String(value));
    }
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

function picture(name, width, height, title, description, parts) {
  return shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
    "aria-labelledby": `${name}-svg-title ${name}-svg-text` },
  shape("title", { id: `${name}-svg-title` }, title),
  shape("desc", { id: `${name}-svg-text` }, description), ...parts);
}

const round = (value) => Math.round(value * 10) / 10;

function text(words, x, y, kind, anchor = "start") {
  return shape("text", { x: round(x), y: round(y), class: kind, "text-anchor": anchor }, words);
}

// The peers on a circle; who has the token is larger, marked and named. Where there are too many for
// their names, `short` gives a few letters for each.
export function drawGraph(place, status, description, short = null) {
  const width = Math.max(240, place.clientWidth);
  const height = Math.round(Math.min(short ? 460 : 390, Math.max(270, width * 0.78)));
  const { peers, edges, token } = status;
  const named = peers.length <= MOST_NAMED;
  const longest = Math.max(...peers.map((peer) => peer.name.length));
  const side = named ? Math.min(width * 0.24, 22 + 7.2 * longest) : 46;
  const across = Math.max(60, width / 2 - side);
  const few = named || !short;
  const down = height / 2 - (few ? 48 : 30);
  const angle = (i) => (2 * Math.PI * i) / peers.length - Math.PI / 2;
  const at = peers.map((_, i) => [width / 2 + across * Math.cos(angle(i)),
    height / 2 + down * Math.sin(angle(i))]);
  const size = named ? 8 : Math.max(2.5, (few ? 90 : 180) / peers.length);
  const parts = edges.map(([a, b]) => shape("line", { class: few ? "edge" : "edge many", x1: round(at[a][0]),
    y1: round(at[a][1]), x2: round(at[b][0]), y2: round(at[b][1]) }));
  peers.forEach((peer, i) => {
    const [x, y] = at[i];
    const holds = peer.name === token.peer;
    const here = peer.name === status.peer;
    if (holds) parts.push(shape("circle", { class: "halo", cx: round(x), cy: round(y), r: size + 8 }));
    parts.push(shape("circle", { class: `peer ${peer.state}${holds ? " token" : ""}`,
      cx: round(x), cy: round(y), r: holds ? size + 3 : size }));
    if (peer.state === "left") {
      parts.push(shape("path", { class: "cross",
        d: `M${round(x - 6)} ${round(y - 6)}l12 12m0 -12l-12 12` }));
    }
    if (few && (named || holds || here)) {
      parts.push(...label(peer, holds, here, x, y, width, height, size));
    } else if (!few) {
      const away = size + (holds ? 18 : 11);
      parts.push(text(short(peer), x + away * Math.cos(angle(i)), y + 4.5 + away * Math.sin(angle(i)),
        holds ? "second held" : "second", "middle"));
    }
  });
  place.replaceChildren(picture("graph", width, height, "The graph of the peers", description,
    parts));
}

function label(peer, holds, here, x, y, width, height, size) {
  const right = x - width / 2;
  const away = size + (holds ? 14 : 8);
  let anchor = "middle";
  let [tx, ty] = [x, y < height / 2 ? y - away - 3 : y + away + 10];
  if (Math.abs(right) > width * 0.09) {
    anchor = right > 0 ? "start" : "end";
    [tx, ty] = [x + (right > 0 ? away : -away), y + 4.5];
  }
  const second = [holds ? "token" : "", here ? "this peer" : "", notes[peer.state]]
    .filter(Boolean).join(", ");
  const above = anchor === "middle" && y < height / 2 && second ? 14 : 0;
  const parts = [text(peer.name, tx, ty - above, here ? "name here" : "name", anchor)];
  if (second) parts.push(text(second, tx, ty - above + 14, holds ? "second held" : "second", anchor));
  return parts;
}

const notes = { silent: "silent", left: "has left", restarting: "restarting", stopped: "stopped" };

// Round numbers between low and high.
export function ticks(low, high, most) {
  if (!(high > low)) return [low];
  let step = 10 ** Math.floor(Math.log10((high - low) / most));
  for (const factor of [1, 2, 5, 10, 20]) {
    if (Math.floor(high / (step * factor)) - Math.ceil(low / (step * factor)) < most) {
      step *= factor;
      break;
    }
  }
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-6; i += 1) {
    found.push(Number((i * step).toPrecision(12)));
  }
  return found;
}

// Chapters one after the other: where each begins, in hops since the start.
export function chapters(points) {
  const found = [];
  for (const point of points) {
    const last = found.at(-1);
    if (!last || last.number !== point.chapter) {
      found.push({ number: point.chapter, start: last ? last.start + last.most : 0, most: 0,
        points: [] });
    }
    found.at(-1).points.push(point);
    found.at(-1).most = Math.max(found.at(-1).most, point.hop);
  }
  return found;
}

export function drawAccuracy(place, points, description) {
  const width = Math.max(240, place.clientWidth);
  const height = Math.round(Math.min(300, Math.max(210, width * 0.42)));
  const [left, right, top, bottom] = [46, 72, 32, 34];
  const parts = [];
  const acts = chapters(points);
  const end = Math.max(1, ...acts.map((act) => act.start + act.most));
  const lowest = Math.min(...points.map((point) => point.accuracy));
  const floor = lowest > 0.5 ? Math.floor(lowest * 10 - 0.5) / 10 : 0;
  const x = (hop) => left + ((width - left - right) * hop) / end;
  const y = (share) => height - bottom - ((height - top - bottom) * (share - floor)) / (1 - floor);
  for (const share of ticks(floor, 1, 6)) {
    parts.push(shape("line", { class: "grid", x1: left, x2: width - right, y1: round(y(share)),
      y2: round(y(share)) }));
    parts.push(text(`${Math.round(share * 100)}\u00a0%`, left - 8, y(share) + 4, "tick", "end"));
  }
  for (const hop of ticks(0, end, Math.max(3, Math.floor(width / 110)))) {
    parts.push(text(hop.toLocaleString("en"), x(hop), height - bottom + 17, "tick", "middle"));
  }
  parts.push(text("hops", width - 4, height - bottom + 17, "tick", "end"));
  acts.forEach((act, i) => {
    const begin = x(act.start);
    const room = x(act.start + act.most) - begin;
    if (i) parts.push(shape("line", { class: "turn", x1: round(begin), x2: round(begin), y1: top - 22,
      y2: height - bottom }));
    const name = act.number === 0 ? "training" : `chapter ${act.number}`;
    if (room > 8 * name.length) parts.push(text(name, begin + 5, top - 12, "tick"));
    const line = act.points.map((p) => `${round(x(act.start + p.hop))},${round(y(p.accuracy))}`);
    parts.push(shape("polyline", { class: act.number ? "curve forget" : "curve",
      points: line.join(" ") }));
    if (act.points.length <= 60) {
      for (const p of act.points) {
        parts.push(shape("circle", { class: act.number ? "dot forget" : "dot",
          cx: round(x(act.start + p.hop)), cy: round(y(p.accuracy)), r: 2.6 }));
      }
    }
  });
  const last = points.at(-1);
  const [lx, ly] = [x(acts.at(-1).start + last.hop), y(last.accuracy)];
  parts.push(shape("circle", { class: last.chapter ? "dot forget" : "dot", cx: round(lx),
    cy: round(ly), r: 4.5 }));
  parts.push(text(`${(100 * last.accuracy).toFixed(1)}\u00a0%`, lx + 8, ly + 4.5, "last"));
  place.replaceChildren(picture("accuracy", width, height, "Accuracy on this peer's hold-out",
    description, parts));
}
