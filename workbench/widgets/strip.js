export default function ({ data, parentElement, setTriggerValue }) {
  if (!data) return;
  const pick = (token) => setTriggerValue("picked", token);
  drawStrip(parentElement.querySelector(".root"), data, { pick, host: parentElement.host });
}
