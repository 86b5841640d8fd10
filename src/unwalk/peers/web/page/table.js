// Tables that keep what did not change in place, so that focus and selection stay.
// Everything is set as text, never as markup.

import { element } from "./draw.js";

export const by = (id) => document.getElementById(id);
export const count = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;

export function put(node, words) {
  const text = words === null || words === undefined ? "" : String(words);
  if (node.textContent !== text) node.textContent = text;
}

export function rows(body, list, key, cells) {
  const known = new Map([...body.children].map((row) => [row.dataset.key, row]));
  const heads = [...body.parentElement.querySelectorAll("thead th")].map((th) => th.textContent);
  const wanted = list.map((item, i) => {
    const name = String(key(item, i));
    const row = known.get(name) || element("tr", { "data-key": name, role: "row" });
    cells(item).forEach((part, place) => {
      const told = JSON.stringify(part.told ?? part);
      const old = row.children[place];
      if (old && old.dataset.told === told) return;
      const fresh = cell(part, place, heads[place]);
      fresh.dataset.told = told;
      if (old) old.replaceWith(fresh);
      else row.append(fresh);
    });
    return row;
  });
  const kept = new Set(wanted);
  for (const row of [...body.children]) if (!kept.has(row)) row.remove();
  wanted.forEach((row, i) => {
    if (body.children[i] !== row) body.insertBefore(row, body.children[i] || null);
  });
}

// Roles are said outright: on a narrow screen rows are blocks, and would not be a table any more.
function cell(part, place, head) {
  const plain = typeof part !== "object";
  const attributes = place === 0 ? { scope: "row", role: "rowheader" } : { role: "cell" };
  attributes["data-head"] = head;
  if (!plain && part.kind) attributes.class = part.kind;
  const made = element(place === 0 ? "th" : "td", attributes);
  made.append(...(plain ? [String(part)] : part.nodes()));
  return made;
}

export const rich = (told, nodes, kind) => ({ told, nodes, kind });
export const figure = (words) => rich(words, () => [words], "number");

// Tiles of [name, value, what stands beside it].
export function tiles(list, wanted) {
  while (list.children.length < wanted.length) {
    list.append(element("div", {}, element("dt"), element("dd", { class: "value" }),
      element("dd", { class: "beside" })));
  }
  wanted.forEach((words, i) => words.forEach((word, k) => put(list.children[i].children[k], word)));
}
