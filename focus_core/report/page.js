"use strict";
/* Search, folds and links of a report. In a large report the cards of a fold wait as text until it is opened.
   User text reaches the page as text alone, but for those cards, which the template has escaped. */
(() => {
  const SHOWN = 40;
  const find = (id) => document.getElementById(id);
  const made = (name, text, kind) => {
    const element = document.createElement(name);
    element.textContent = text;
    if (kind) element.className = kind;
    return element;
  };
  const percent = (share) => `${(100 * share).toFixed(1)}%`;
  const index = JSON.parse(find("index").textContent);
  const groups = index.groups.map(
    ([id, title, layer, head, group, share, count, name, note, guess, tokens, tags]) => ({
      id, title, layer, head, group, share, count, name, guess, tags,
      label: name || guess,
      own: `${name}\n${note}`.toLowerCase(),
      guessed: guess.toLowerCase(),
      tokens: tokens.map(([text, times]) => [text, text.replaceAll("·", "").toLowerCase(), times]),
    }));
  const folds = [...document.querySelectorAll("details.fold")];

  /* Folds */
  const fill = (fold) => {
    const kept = fold.querySelector("script");
    if (!kept) return;
    const cards = made("div", "", "cards");
    cards.innerHTML = kept.textContent;
    kept.replaceWith(cards);
  };
  document.addEventListener("toggle", (event) => { if (event.target.open) fill(event.target); }, true);
  folds.forEach((fold) => { if (fold.open) fill(fold); });
  const holders = new Map();
  for (const fold of folds) for (const id of fold.dataset.holds.split(" ")) holders.set(id, fold);
  find("open-all").addEventListener("click", () => folds.forEach((fold) => { fold.open = true; }));
  find("close-all").addEventListener("click", () => folds.forEach((fold) => { fold.open = false; }));
  let printed = [];
  addEventListener("beforeprint", () => {
    if (find("open-all").disabled) return;
    printed = [...folds, ...document.querySelectorAll(".facts")].filter((fold) => !fold.open);
    printed.forEach((fold) => { fold.open = true; });
  });
  addEventListener("afterprint", () => printed.forEach((fold) => { fold.open = false; }));

  /* Links */
  const show = () => {
    const id = decodeURIComponent(location.hash.slice(1));
    const fold = holders.get(id) ?? folds.find((each) => each.id === id || each.id.startsWith(`${id}-head-`));
    if (!fold) return;
    fold.open = true;
    fill(fold);
    const target = holders.has(id) ? find(id) : fold.querySelector("summary");
    document.querySelector(".shown")?.classList.remove("shown");
    if (holders.has(id)) target.classList.add("shown");
    target.scrollIntoView({ block: "start" });
    target.focus({ preventScroll: true });
  };
  addEventListener("hashchange", show);
  document.addEventListener("click", async (event) => {
    const same = event.target.closest("a[href^='#']");
    if (same && same.hash === location.hash) show();  // no change of the address, so no event
    const button = event.target.closest("button[data-copy]");
    if (!button) return;
    const link = `${location.href.split("#")[0]}#${button.dataset.copy}`;
    try {
      await navigator.clipboard.writeText(link);
      button.textContent = "Copied";
      find("said").textContent = "Link copied.";
      setTimeout(() => { button.textContent = "Copy link"; look(); }, 2000);
    } catch {  // a browser that does not allow it
      window.prompt("Copy this link:", link);
    }
  });

  /* Search */
  const box = find("search"), list = find("found"), said = find("said");
  const isTag = (tag, word) => {
    const plain = index.tags[tag][0];
    return tag.toLowerCase() === word || plain === word || plain === `${word}s`;
  };
  const matched = (group, word) => {  // [score, reason] of one word, or null
    const reasons = [];
    if (String(group.group) === word) reasons.push([4, ""]);
    for (const [text, plain, times] of group.tokens) {
      if (plain === word) reasons.push([3 + times / group.count, `“${text}”: ${times} of its ${group.count} tokens`]);
      else if (word.length > 1 && plain.includes(word)) {
        reasons.push([1 + times / group.count, `“${text}”: ${times} of its ${group.count} tokens`]);
      }
    }
    for (const [tag, share] of group.tags) {
      const reason = `${tag}: ${percent(share)} of its words, ${percent(index.tags[tag][1])} of all`;
      if (isTag(tag, word)) reasons.push([2 + share, reason]);
    }
    if (group.own.includes(word)) reasons.push([5, "your own words"]);
    if (group.guessed.includes(word)) reasons.push([1.5, ""]);
    return reasons.length ? reasons.reduce((best, each) => (each[0] > best[0] ? each : best)) : null;
  };
  const search = (query) => {
    const wanted = {};
    const words = query.toLowerCase().replace(/\b(layer|head|group)\s*(\d+)\b/g, (all, name, number) => {
      wanted[name] = Number(number);
      return " ";
    }).split(/[\s,]+/).filter(Boolean);
    const found = [];
    for (const group of groups) {
      if (Object.entries(wanted).some(([name, number]) => group[name] !== number)) continue;
      const each = words.map((word) => matched(group, word));
      if (each.includes(null)) continue;
      const reasons = each.map(([, reason]) => reason).filter(Boolean);
      found.push({ group, reasons, score: each.reduce((sum, [score]) => sum + score, 0) });
    }
    return found.sort((a, b) => b.score - a.score || b.group.count - a.group.count);
  };
  const row = ({ group, reasons }) => {
    const line = document.createElement("li"), link = made("a", group.title);
    link.href = `#${group.id}`;
    line.append(link, made("span", ` ${percent(group.share)}`, "soft"));
    if (group.label) line.append(" ", made("bdi", group.label));
    if (reasons.length) line.append(" ", made("bdi", reasons.join("; "), "why"));
    return line;
  };
  const look = () => {
    const query = box.value.trim();
    const found = query ? search(query) : [];
    list.replaceChildren(...found.slice(0, SHOWN).map(row));
    list.scrollTop = 0;
    const all = `${found.length.toLocaleString("en")} of ${groups.length.toLocaleString("en")} groups`;
    const most = found.length > SHOWN ? `; the first ${SHOWN} are listed` : "";
    said.textContent = !query ? "" : found.length ? `${all}${most}.` : "No group: try a token, a label, a number or NOUN.";
  };
  box.addEventListener("input", look);
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && list.firstChild) list.querySelector("a").click();
    if (event.key === "Escape") { box.value = ""; look(); }
  });
  find("bar").addEventListener("keydown", (event) => {
    const links = [box, ...list.querySelectorAll("a")];
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const place = links.indexOf(document.activeElement);
    if (!step || place < 0 || !links[place + step]) return;
    event.preventDefault();
    links[place + step].focus();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.target === box) return;
    event.preventDefault();
    box.focus();
    box.select();
  });

  document.documentElement.classList.add("alive");
  show();
})();
