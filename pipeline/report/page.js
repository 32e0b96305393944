"use strict";
// Links the points of a word or view with the rows of its table: pointing at one highlights it in every layer.
const tip = document.getElementById("tip");
for (const linked of document.querySelectorAll(".linked")) {
  const prefix = linked.dataset.rows, points = new Map();
  for (const group of linked.querySelectorAll(".points")) {
    const rows = group.dataset.rows.split(" "), drawn = group.querySelectorAll("use");
    rows.forEach((row, i) => points.set(row, [...(points.get(row) || []), drawn[i]]));
  }
  const rowOf = (number) => document.getElementById(`${prefix}-${number}`);
  const unfold = (row) => {
    const details = row.closest("details");
    if (details) details.open = true;
  };
  let shown = null;
  const mark = (number) => {
    if (number === shown) return;
    for (const [old, on] of [[shown, false], [number, true]]) {
      if (old === null) continue;
      rowOf(old).classList.toggle("on", on);
      for (const point of points.get(old) || []) point.classList.toggle("on", on);
    }
    shown = number;
  };
  const nearest = (svg, event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    let best = null, least = 12;
    for (const group of svg.querySelectorAll(".points")) {
      const rows = group.dataset.rows.split(" ");
      group.querySelectorAll("use").forEach((use, i) => {
        const away = Math.hypot(use.x.baseVal.value - at.x, use.y.baseVal.value - at.y);
        if (away < least) [best, least] = [rows[i], away];
      });
    }
    return best;
  };
  for (const svg of linked.querySelectorAll("svg:has(.points)")) {
    const point = (event) => {
      const number = nearest(svg, event);
      mark(number);
      tip.hidden = number === null;
      if (number === null) return;
      tip.replaceChildren(...[...rowOf(number).cells].map((cell) => {
        const line = document.createElement("div");
        line.append(...[...cell.childNodes].map((node) => node.cloneNode(true)));
        return line;
      }));
      const box = tip.getBoundingClientRect();
      tip.style.left = `${Math.max(8, Math.min(event.clientX + 14, innerWidth - box.width - 8))}px`;
      tip.style.top = `${event.clientY + box.height + 24 > innerHeight ? Math.max(8, event.clientY - box.height - 14) : event.clientY + 14}px`;
    };
    svg.addEventListener("pointermove", point);
    svg.addEventListener("pointerdown", point);
    svg.addEventListener("pointerleave", () => { tip.hidden = true; mark(null); });
    svg.addEventListener("click", (event) => {
      const number = nearest(svg, event);
      if (number === null) return;
      const row = rowOf(number);
      unfold(row);
      row.scrollIntoView({ block: "center" });
      row.focus({ preventScroll: true });
    });
  }
  for (const type of ["pointerover", "focusin"]) {
    linked.addEventListener(type, (event) => {
      const row = event.target.closest("tr[id]");
      if (row) mark(row.id.slice(prefix.length + 1));
    });
  }
  linked.addEventListener("keydown", (event) => {
    const row = event.target.closest("tr[id]");
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const next = row && step && rowOf(Number(row.id.slice(prefix.length + 1)) + step);
    if (!next) return;
    event.preventDefault();
    unfold(next);
    next.focus();
  });
}
