
// A trace in a notebook: the strip of one layer at a time, and a slider over the layers.
function layerData(data, row) {
  const { legend, drawn, groups, weights, margins, reads } = data.layers[row];
  const listed = groups.length / margins.length;
  let place = 0;
  const cells = data.cells.map((cell) => {
    const tokens = cell.k.map((facts) => {
      const from = place * listed;
      const pairs = groups.slice(from, from + listed).map((group, i) => [group, weights[from + i] / 1000]);
      const margin = margins[place] === null ? null : margins[place] / 1000;
      const said = [...facts, pairs, margin, reads?.[place]];
      place += 1;
      return said;
    });
    if (!tokens.length) return { t: cell.t, k: tokens };
    const own = tokens.at(-1)[6].slice(0, drawn).map(([group]) => group);
    return { t: cell.t, k: tokens, g: own, l: String(own[0]) };
  });
  return { cells, groups: legend, joins: drawn, selected: null, sinks: data.sinks, by: data.by };
}

function drawTrace(host, data, style) {
  if (host.shadowRoot) return;  // another copy of this output has drawn it
  const shadow = host.attachShadow({ mode: "open" });
  const head = element("div", "head");
  const root = element("div", "root");
  const label = element("label", "", "Layer ");
  const slider = element("input");
  const shown = element("output");
  Object.assign(slider, { type: "range", min: 0, max: data.layers.length - 1, value: data.row });
  slider.setAttribute("aria-label", "layer");
  const [lowest, highest] = [data.layers[0].layer, data.layers.at(-1).layer];
  label.append(slider, shown);
  head.append(label, element("span", "note", data.about));
  shadow.append(element("style", "", style), head);
  if (data.untrained) shadow.append(element("div", "warning", "These routers are UNTRAINED: their groups mean nothing."));
  shadow.append(root);
  if (data.part) shadow.append(element("div", "note", data.part));
  const striped = data.layers.some(({ drawn }) => drawn > 1);
  shadow.append(element("div", "note", `The number under a token is its ${striped ? "first group, the stripe its second" : "group"}. Point at a token for its card, or walk with the arrow keys; click a group to see only its tokens.`));
  const draw = () => {
    const row = Number(slider.value);
    const top = root.querySelector(".text")?.scrollTop ?? 0;
    shown.textContent = `${data.layers[row].layer} (${lowest}–${highest})`;
    slider.setAttribute("aria-valuetext", `layer ${data.layers[row].layer}`);
    drawStrip(root, layerData(data, row));
    root.querySelector(".text").scrollTop = top;
  };
  slider.oninput = draw;
  draw();
}
