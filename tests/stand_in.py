"""A small explorer that keeps the promises in tests/lab.py and has one control of every kind."""

from __future__ import annotations

import anywidget
import traitlets

CONTROLS = ("select", "range", "number", "text", "checkbox", "radio", "button", "part")


class StandIn(anywidget.AnyWidget):
    """Shows what was last moved; Python answers every message with a new text."""

    moved = traitlets.Unicode("").tag(sync=True)
    answer = traitlets.Unicode("nothing yet").tag(sync=True)

    _esm = """
    function render({ model, el }) {
      el.innerHTML = `<section class="mp-explorer">
        <select data-name="select"><option>a<option>b<option>c</select>
        <input type="range" data-name="range" min="0" max="10" value="10" aria-label="range">
        <input type="number" data-name="number" max="7" value="7">
        <input type="text" data-name="text" value="old">
        <input type="checkbox" data-name="checkbox">
        <input type="radio" name="r" data-name="radio" value="1" checked>
        <input type="radio" name="r" data-name="radio" value="2">
        <button data-name="button" data-key="b">press</button>
        <div class="mp-picture" data-shown="0"></div></section>`;
      const picture = el.querySelector(".mp-picture");
      const say = (name, value) => {
        model.set("moved", `${name}=${value} ${picture.dataset.shown}`);
        model.save_changes();
      };
      const isKey = (event) => event.type === "click" || ["Enter", " "].includes(event.key);
      const press = (event) => {
        const part = event.target.closest("[data-key]");
        if (part && isKey(event)) { event.preventDefault(); say("part", part.dataset.key); }
      };
      picture.addEventListener("click", press);
      picture.addEventListener("keydown", press);
      for (const node of el.querySelectorAll("select, input")) {
        // Without it JupyterLab takes the arrows; on an ancestor it would have no effect.
        node.dataset.lmSuppressShortcuts = "true";
        const value = () => node.type === "checkbox" ? node.checked : node.value;
        const kind = { range: "input", number: "input", text: "keydown" }[node.type] ?? "change";
        node.addEventListener(kind, (event) => {
          if (kind !== "keydown" || event.key === "Enter") say(node.dataset.name, value());
        });
      }
      el.querySelector("button").addEventListener("click", () => say("button", "b"));
      const show = () => {
        picture.innerHTML = `<svg width="200" height="40"><title>answer</title>
          <rect width="200" height="40" fill="none" stroke="currentColor" tabindex="0"
           role="button" data-key="p" pointer-events="all"></rect>
          <text x="4" y="24" fill="currentColor" pointer-events="none"></text></svg>`;
        picture.querySelector("text").textContent = model.get("answer");
        picture.dataset.shown = Number(picture.dataset.shown) + 1;
      };
      model.on("change:answer", show);
      show();
    }
    export default { render };
    """

    @traitlets.observe("moved")
    def _answer(self, change) -> None:
        self.answer = f"seen {change.new}"
