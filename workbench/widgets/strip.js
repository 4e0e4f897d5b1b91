// The card of a token in plain words; it takes the place of the one that notebooks have.
describe = (tip, cell, data) => {
  tip.replaceChildren();
  const scored = data.by === "score";  // narrow groups: the best score decides, and queries read pages
  const name = (group) => (data.groups[group]?.name ? `${group}: ${data.groups[group].name}` : String(group));
  const line = (text, className) => tip.append(element("div", className ?? "", text));
  if (cell.k.length > 1) line(`${cell.k.length} tokens make this one character`);
  cell.k.forEach((token, position) => {
    const [index, text, id, hex, start, end, groups, margin, reads] = token;
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
};

export default function ({ data, parentElement, setTriggerValue }) {
  if (!data) return;
  const pick = (token) => setTriggerValue("picked", token);
  const root = parentElement.querySelector(".root");
  drawStrip(root, data, { pick, host: parentElement.host });
  for (const button of root.querySelectorAll("button[data-group]")) {
    const { name } = data.groups[Number(button.dataset.group)];
    if (!name) continue;
    const label = element("span", "name", name);
    button.children[0].after(label);
    button.title = `Group ${button.dataset.group}: ${name}. Click to show only its tokens`;
  }
}
