// The strip as a component of Streamlit; labels of groups stand in the legend.
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
