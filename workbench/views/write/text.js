// The tokens that one model wrote, tinted by the change of their log-probability. Text is set as textContent only.
export default function ({ data, parentElement, setTriggerValue }) {
  if (!data) return;
  const root = parentElement.querySelector(".written");
  root.replaceChildren();
  data.tokens.forEach((token, place) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = token.text === "" ? "∅" : token.text;
    if (token.fill) button.style.background = token.fill;
    if (token.ink) button.style.color = token.ink;
    button.classList.toggle("first", place === data.difference);
    button.setAttribute("aria-pressed", String(place === data.selected));
    button.title = token.says;
    button.setAttribute("aria-label", `token ${place + 1}: ${token.text.trim() || "blank"}. ${token.says}`);
    button.tabIndex = place === (data.selected ?? 0) ? 0 : -1;
    button.onclick = () => setTriggerValue("picked", place);
    root.append(button);
  });
  root.onkeydown = (event) => {
    const all = [...root.children];
    const at = all.indexOf(parentElement.activeElement ?? event.target);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (to === undefined || !all[to]) return;
    all[at].tabIndex = -1;
    all[to].tabIndex = 0;
    all[to].focus();
    event.preventDefault();
  };
}
