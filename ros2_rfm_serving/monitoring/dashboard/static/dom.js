// Elements from data. Foreign texts reach the page only as text nodes and as values of attributes that run nothing.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick" || name === "oninput" || name === "onsubmit") element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export function text(element, words) {
  const shown = words ?? "";
  if (element.textContent !== shown) element.textContent = shown;
}

export function attribute(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

// Keep one child per item of `items` ([key, value]), in their order. make(key) returns {root, update(value)}.
export function keyed(parent, items, make) {
  const kept = parent.kept ?? (parent.kept = new Map());
  const wanted = new Set(items.map(([key]) => key));
  for (const [key, part] of kept) if (!wanted.has(key)) { part.root.remove(); part.gone?.(); kept.delete(key); }
  let next = parent.firstChild;
  for (const [key, value] of items) {
    let part = kept.get(key);
    if (!part) { part = make(key); part.root.dataset.key = key; kept.set(key, part); }
    if (part.root === next) next = next.nextSibling; else parent.insertBefore(part.root, next);
    part.update(value);
  }
}

// Return a text whose `commands` are code elements.
export function prose(words) { return (words ?? "").split("`").map((part, i) => (i % 2 ? h("code", {}, part) : part)); }

export function helpLink(key, label) { return h("a", { href: `#/help/${encodeURIComponent(key)}`, title: "What it means, and what to do" }, label); }

export function link(kind, name, label = name) { return h("a", { href: `#/${kind}/${encodeURIComponent(name)}` }, label); }

export function section(title, ...children) { return h("section", {}, h("h2", {}, title), ...children); }

// Table with keyed rows. columns: [title, class]. make(key) returns cells as functions of the row's value.
export function table(columns, label) {
  const body = h("tbody");
  const root = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    h("table", {}, h("thead", {}, h("tr", {}, columns.map(([title, kind]) => h("th", { scope: "col", class: kind }, title)))), body));
  return { root, body };
}
