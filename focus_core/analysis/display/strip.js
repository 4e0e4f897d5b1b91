// The token strip. All text arrives as data and is set as textContent: none of it is ever read as HTML.
const CONTROL = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/;
const SINGLE_COLORS = 16;  // up to so many groups have a colour each
const LISTED = 12;  // of more groups, the largest that the legend shows at once
// Scripts whose letters join or reorder: no gap between their cells.
const JOINED = /[\u0590-\u08ff\u0900-\u109f\u1780-\u17ff\u1800-\u18af\ufb1d-\ufdff\ufe70-\ufefc]/;

function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

// Characters as they are, with a mark over every blank and a code for what cannot be seen. Blanks before a word
// stay outside the coloured body, so that words look like words; the body carries the group number.
function drawText(cell, text, label) {
  let body = null;
  let plain = "";
  const flush = () => { if (plain) body.append(plain); plain = ""; };
  const open = () => {
    if (body) return;
    body = element("span", "body");
    if (label !== undefined) { body.dataset.label = label; label = undefined; }
    cell.append(body);
  };
  const blank = text.trim() === "";
  for (const character of text) {
    if (character === "\n") {
      open();
      flush();
      const mark = element("span", "mark wide");
      mark.dataset.mark = "⏎";
      body.append(mark);
      cell.append("\n");
      body = null;
    } else if (character === " " || character === "\t") {
      const mark = element("span", "mark", character);
      mark.dataset.mark = character === " " ? "·" : "⇥";
      if (blank) open();
      flush();
      (body ?? cell).append(mark);
    } else if (character === "\r" || CONTROL.test(character)) {
      open();
      flush();
      const code = "U+" + character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
      body.append(element("span", "code", code));
    } else {
      open();
      plain += character;
    }
  }
  if (plain) flush();
}

// The card of a token, in plain words.
function describe(tip, cell, data) {
  tip.replaceChildren();
  const scored = data.by === "score";  // narrow groups: the best score decides, and queries read pages
  const name = (group) => (data.groups[group]?.name ? `${group}: ${data.groups[group].name}` : String(group));
  const line = (text, className) => tip.append(element("div", className ?? "", text));
  if (cell.k.length > 1) line(`${cell.k.length} tokens make this one character`);
  cell.k.forEach((token, position) => {
    const [index, text, id, hex, start, end, groups, margin, reads] = token;
    if (text === undefined) {  // its layer has come before the rest is known
      line(`token ${index} in group ${name(cell.g[0])}`);
      return;
    }
    if (position) tip.append(element("hr"));
    const title = element("div");
    title.append(element("b", "", `“${text.replace(/^·+(?=.)/, "")}”`), ` in group ${name(groups[0][0])}`);
    tip.append(title);
    if (scored) {
      if (groups.length > 1) line(`next: group ${name(groups[1][0])}` + (margin === null ? "" : `, ${margin.toFixed(3)} less by score`));
    } else {
      const joined = groups.slice(0, data.joins).map(([g, w]) => `${g} (${w.toFixed(2)})`).join(", ");
      const others = groups.slice(data.joins).map(([g, w]) => `${g} (${w.toFixed(2)})`).join(", ");
      line(`groups and weights: ${joined}${others ? `; not joined: ${others}` : ""}`);
      line(margin === null ? "joins every group: no runner-up" : `margin to the runner-up ${margin.toFixed(3)}`);
    }
    if (reads) {
      const shown = reads.slice(0, 8).map(String).join(", ") + (reads.length > 8 ? ` and ${reads.length - 8} more` : "");
      const of = scored ? "pages of groups" : "groups";
      line(!reads.length ? "reads no group from afar" : reads.length === data.groups.length ? `reads ${of} of every number` : `reads ${of} ${shown}`);
    }
    if (index < data.sinks) line("a sink token: every later token reads it");
    line(`token ${index} · id ${id}${hex ? ` · bytes ${hex}` : ""} · characters ${start}–${end}`, "small");
  });
  if (!cell.k.length) tip.append(cell.g ? `group ${name(cell.g[0])}` : "no token covers these characters");
  if (cell.v) tip.append(element("hr"), element("div", "", cell.v));
  if (cell.r) tip.append(element("hr"), element("div", "", cell.r));
}

// Bring a node into view inside the box that scrolls, and leave the page where it is.
function reveal(node, host) {
  let box = host;
  while (box && !(box.scrollHeight > box.clientHeight && /auto|scroll/.test(getComputedStyle(box).overflowY)))
    box = box.parentElement;
  if (!box || box.matches("section")) return;
  const frame = box.getBoundingClientRect();
  const place = node.getBoundingClientRect();
  if (place.top < frame.top || place.bottom > frame.bottom)
    box.scrollTop += place.top - frame.top - frame.height / 3;
}

// The end of a legend with more groups than colours: a field that finds a group by its number, and a button for all.
function manyGroups(root, legend, count, find) {
  const field = element("input");
  Object.assign(field, { type: "search", placeholder: "group number", value: root.litGroup ?? "" });
  field.setAttribute("aria-label", "find a group by its number");
  field.oninput = () => find(/^\d+$/.test(field.value.trim()) && Number(field.value) < count ? Number(field.value) : null);
  const all = element("button", "all");
  const name = () => {
    legend.classList.toggle("whole", Boolean(root.allGroups));
    all.textContent = root.allGroups ? `largest ${LISTED} only` : `all ${count} groups`;
  };
  all.onclick = () => { root.allGroups = !root.allGroups; name(); };
  name();
  return [all, field, element("span", "note", "Groups of one colour are alike.")];
}

// The legend of a strip that values tint: what they are, and the colours of some.
function scaleLegend(legend, scale) {
  legend.append(element("span", "note", scale.title));
  for (const { fill, ink, text } of scale.steps) {
    const step = element("span", "step", text);
    step.style.background = fill;
    step.style.color = ink;
    legend.append(step);
  }
}

// The legend of a strip that groups colour: a button for each, which calls `light` with its number, or null to stop.
function groupLegend(root, legend, groups, light) {
  const many = groups.length > SINGLE_COLORS;
  const ordered = many ? [...groups].sort((a, b) => b.share - a.share || a.number - b.number) : groups;
  legend.append(element("span", "note", "Groups, share of tokens:"));
  ordered.forEach(({ number, fill, ink, share }, place) => {
    const button = element("button", "", "");
    button.append(element("b", "", String(number)), element("span", "", `${(100 * share).toFixed(1)}%`));
    button.style.background = fill;
    button.style.color = ink;
    button.dataset.group = number;
    button.title = `Group ${number}: click to show only its tokens`;
    button.onclick = () => light(root.litGroup === number ? null : number);
    if (place >= LISTED && many) button.classList.add("rare");
    legend.append(button);
  });
  if (many) legend.append(...manyGroups(root, legend, groups.length, light));
}

// Draw a strip into an element; `pick`, if given, is called with the token that is clicked, and `host` is the element
// from whose ancestors the box that scrolls is sought.
function drawStrip(root, data, { pick, host } = {}) {
  const legend = element("div", "legend");
  const text = element("div", "text");
  const tip = element("div", "tip");
  tip.setAttribute("role", "tooltip");
  tip.popover = "manual";  // above all else on the page, whatever scrolls or clips around it
  root.replaceChildren(legend, text, tip);

  const nodes = [];
  const light = (group) => {
    root.litGroup = group;
    const lit = data.scale ? null : group;
    nodes.forEach((node, position) => {
      const cell = data.cells[position];
      node.classList.toggle("faded", cell.f === 1 || (lit !== null && !(cell.g || []).includes(lit)));
    });
    for (const button of legend.querySelectorAll("button[data-group]"))
      button.setAttribute("aria-pressed", String(Number(button.dataset.group) === lit));
  };
  if (data.scale) scaleLegend(legend, data.scale);
  else groupLegend(root, legend, data.groups, light);

  // One block for each line of the text: the browser leaves out those that are scrolled away.
  let line = null;
  data.cells.forEach((cell) => {
    if (line === null) {
      line = element("div", "line");
      text.append(line);
    }
    const node = element("span", "cell");
    node.dataset.text = cell.t;
    node.dataset.tokens = cell.k.map((token) => token[0]).join(" ");
    if (cell.t) drawText(node, cell.t, cell.l);
    else if (cell.k.length) {
      const body = element("span", "body special", cell.k[0][1]);
      body.dataset.label = cell.l;
      node.append(body);
    }
    if (cell.l?.length > 1 && (cell.t.trim().length === 1 || cell.t === " ")) node.classList.add("short");
    if (JOINED.test(cell.t)) node.classList.add("joined");
    if (cell.g) {
      const [fill, ink] = cell.c ?? [data.groups[cell.g[0]].fill, data.groups[cell.g[0]].ink];
      node.style.setProperty("--fill", fill || "transparent");
      node.style.setProperty("--ink", ink || "inherit");
      if (cell.g.length > 1 && !cell.c) node.style.setProperty("--stripe", data.groups[cell.g[1]].fill);
      node.dataset.group = cell.g[0];
      node.setAttribute("role", pick ? "button" : "img");
      node.setAttribute("aria-label", `${cell.t.trim() || "blank"}, ${cell.k.length ? `token ${cell.k.at(-1)[0]}, ` : ""}group ${cell.g.join(" and ")}${cell.v ? `, ${cell.v}` : ""}`);
      node.tabIndex = -1;
      if (cell.k.some((token) => token[0] === data.selected)) node.classList.add("selected");
    } else node.classList.add("bare");
    nodes.push(node);
    line.append(node);
    if (node.lastChild?.nodeValue === "\n") {
      node.lastChild.remove();  // the end of the block breaks the line
      line = null;
    }
  });
  light(root.litGroup ?? null);

  const current = nodes.findIndex((node) => node.classList.contains("selected"));
  const first = nodes.findIndex((node) => node.tabIndex === -1 && node.dataset.group !== undefined);
  let active = current >= 0 ? current : first;
  if (active >= 0) nodes[active].tabIndex = 0;
  if (current >= 0 && root.revealed !== data.selected) reveal(nodes[current], host);
  root.revealed = data.selected;

  const position = (target) => nodes.indexOf(target.closest?.(".cell"));
  const show = (index) => {
    if (index < 0) return;
    describe(tip, data.cells[index], data);
    tip.togglePopover(true);
    const box = (nodes[index].querySelector(".body") ?? nodes[index]).getBoundingClientRect();
    const left = Math.max(0, Math.min(box.left, document.documentElement.clientWidth - tip.offsetWidth - 8));
    const room = window.innerHeight - box.bottom > tip.offsetHeight + 20 || box.top < tip.offsetHeight + 20;
    tip.style.left = `${left}px`;
    const top = room ? box.bottom + 14 : box.top - tip.offsetHeight - 6;
    // Where it fits neither below nor above, it covers the token rather than leave the window.
    tip.style.top = `${Math.max(8, Math.min(top, window.innerHeight - tip.offsetHeight - 8))}px`;
  };
  const hide = () => tip.togglePopover(false);
  const choose = (index) => {
    const tokens = index >= 0 ? data.cells[index].k : [];
    if (pick && tokens.length) pick(tokens.at(-1)[0]);
  };
  const move = (index) => {
    if (index < 0 || index >= nodes.length) return;
    nodes[active].tabIndex = -1;
    active = index;
    nodes[active].tabIndex = 0;
    nodes[active].focus();
  };
  text.onmouseover = (event) => show(position(event.target));
  text.onmouseleave = hide;
  text.addEventListener("focusin", (event) => show(position(event.target)));  // there is no property for these two
  text.addEventListener("focusout", hide);
  text.onwheel = hide;
  text.onclick = (event) => choose(position(event.target));
  text.onkeydown = (event) => {
    if (event.key === "ArrowRight") move(active + 1);
    else if (event.key === "ArrowLeft") move(active - 1);
    else if (event.key === "Home") move(0);
    else if (event.key === "End") move(nodes.length - 1);
    else if (event.key === "Enter" || event.key === " ") choose(active);
    else if (event.key === "Escape") hide();
    else return;
    event.preventDefault();
  };
}
