// One token of a real text: what full attention reads, then what routing keeps. Text is set as textContent only.
export default function ({ data, parentElement }) {
  if (!data) return;
  const root = parentElement.querySelector(".figure");
  if (root.dataset.drawn) return;
  root.dataset.drawn = "1";
  const passage = root.querySelector(".passage");
  const says = root.querySelector(".says");
  data.pieces.forEach((piece, place) => {
    const last = place >= data.pieces.length - data.asking;
    const span = document.createElement("span");
    span.textContent = piece;
    span.className = last ? "asks" : data.kept[place] ? "kept" : "dropped";
    span.style.setProperty("--late", `${Math.round((600 * place) / data.pieces.length)}ms`);
    passage.append(span);
  });
  const buttons = [...root.querySelectorAll("button[data-state]")];
  const pause = root.querySelector(".pause");
  let timer = null;
  const show = (state) => {
    root.classList.toggle("routed", state === "routed");
    says.textContent = data[state];
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.state === state));
  };
  const stop = () => { clearInterval(timer); timer = null; pause.textContent = "Play"; };
  const play = () => {
    timer = setInterval(() => show(root.classList.contains("routed") ? "full" : "routed"), 4000);
    pause.textContent = "Pause";
  };
  for (const button of buttons) button.onclick = () => { stop(); show(button.dataset.state); };
  pause.onclick = () => (timer ? stop() : play());
  show("full");
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) stop(); else play();
  return () => clearInterval(timer);
}
