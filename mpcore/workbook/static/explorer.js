// The front end of every explorer: native form controls, and a picture that Python has drawn.
//
// It decides nothing. `controls` says which controls there are, each for one trait of the model;
// pressing a button, or a part of the picture with `data-press`, sends {press: key}. Python answers
// with a new picture and raises `drawn`; until then at most one change is on its way, so that
// dragging a slider never queues up more pictures than can be drawn.

const PATIENCE_MS = 3000;
const PLAY = "▶ Play", PAUSE = "❚❚ Pause";

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

// One change on its way at a time; what comes meanwhile is merged, and goes when the answer is in.
// `busy` is told whether the picture is behind the controls.
function sender(model, busy) {
  let waiting = null, later = {};
  const flush = () => {
    if (waiting) return;
    // What was moved and moved back is no change: nothing would be sent, and no answer come.
    const changes = Object.entries(later).filter(([name, value]) => !same(model.get(name), value));
    later = {};
    busy(changes.length > 0);
    if (!changes.length) return;
    for (const [name, value] of changes) model.set(name, value);
    waiting = setTimeout(answered, PATIENCE_MS); // a kernel that was restarted does not answer
    model.save_changes();
  };
  const answered = () => { clearTimeout(waiting); waiting = null; flush(); };
  return {
    answered,
    set(name, value) {
      if (!(name in later) && model.get(name) === value) return;
      later[name] = value;
      flush();
    },
    press(key) { model.send({ press: key }); },
  };
}

const builders = {
  select(model, control, send) {
    const node = element("select", {}, ...control.options.map(
      ([value, label]) => element("option", { value }, label)));
    node.addEventListener("change", () => send.set(control.name, node.value));
    const show = () => {
      node.value = model.get(control.name);
    };
    return { nodes: [node], show };
  },
  range(model, control, send) {
    const node = element("input", { type: "range", step: control.step ?? 1 });
    node.addEventListener("input", () => send.set(control.name, Number(node.value)));
    const show = () => {
      const limits = model.get("limits")[control.name] ?? [control.min, control.max];
      [node.min, node.max] = limits;
      node.value = model.get(control.name);
      node.setAttribute("aria-valuetext", model.get("notes")[control.name] ?? node.value);
    };
    return { nodes: [node], show };
  },
  text(model, control, send) {
    const node = element("input", { type: "text", spellcheck: "false", autocomplete: "off" });
    node.addEventListener("change", () => send.set(control.name, node.value));
    node.addEventListener("keydown", (event) => {
      // JupyterLab takes Enter for itself: it would run the cell
      event.stopPropagation();
      if (event.key === "Enter") send.set(control.name, node.value);
    });
    return {
      nodes: [node],
      show: () => {
        // what was typed stays while it is refused
        if (node !== document.activeElement || !model.get("problem")) node.value = model.get(control.name);
      },
    };
  },
  checkbox(model, control, send) {
    const node = element("input", { type: "checkbox" });
    node.addEventListener("change", () => send.set(control.name, node.checked));
    return { nodes: [node], show: () => { node.checked = model.get(control.name); } };
  },
  // The values of a list, a tick for each that is in it.
  checkboxes(model, control, send) {
    const inputs = control.options.map(([value]) =>
      element("input", { type: "checkbox", value, "data-key": value }));
    for (const input of inputs) {
      input.addEventListener("change", () =>
        send.set(control.name, inputs.filter((one) => one.checked).map((one) => one.value)));
    }
    const nodes = inputs.map((input, i) =>
      element("label", { class: "mp-option" }, input, control.options[i][1]));
    const show = () => inputs.forEach((input) => {
      input.checked = model.get(control.name).includes(input.value);
    });
    return { nodes, show };
  },
  buttons(model, control, send) {
    const nodes = control.options.map(([key, label, spoken]) => {
      const node = element("button", { type: "button", "data-key": key, "aria-label": spoken }, label);
      node.addEventListener("click", () => send.press(key));
      return node;
    });
    return { nodes, show: () => {} };
  },
  radio(model, control, send) {
    const group = `mp-${Math.random().toString(36).slice(2)}`;
    const nodes = control.options.map(([value, label]) => {
      const input = element("input", { type: "radio", name: group, value });
      input.addEventListener("change", () => send.set(control.name, value));
      return element("label", { class: "mp-option" }, input, label);
    });
    const show = () => nodes.forEach((label) => {
      const input = label.querySelector("input");
      input.checked = input.value === model.get(control.name);
    });
    return { nodes, show };
  },
  // Steps a range of the model through its limits, a picture at a time.
  play(model, control, send) {
    const node = element("button", { type: "button" }, PLAY);
    let timer = null;
    // a screen reader would read out every picture of a film
    const speak = (on) => node.closest(".mp-explorer")?.querySelector(".mp-spoken")
      ?.setAttribute("aria-live", on ? "polite" : "off");
    const stop = () => { clearTimeout(timer); timer = null; node.textContent = PLAY; speak(true); };
    const limits = () => model.get("limits")[control.of];
    const next = () => {
      const [, last] = limits();
      const at = model.get(control.of);
      if (at >= last || !node.isConnected) { stop(); return; }
      send.set(control.of, Math.min(last, at + (model.get("strides")[control.of] ?? 1)));
      timer = setTimeout(next, control.every_ms);
    };
    node.addEventListener("click", () => {
      if (timer) { stop(); return; }
      const [first, last] = limits();
      node.textContent = PAUSE;
      speak(false);
      if (model.get(control.of) >= last) send.set(control.of, first);
      timer = setTimeout(next, control.every_ms);
    });
    return { nodes: [node], show: () => {}, stop };
  },
};

function controlsOf(model, send) {
  const row = element("div", { class: "mp-controls" });
  const parts = model.get("controls").map((control) => {
    const built = builders[control.kind](model, control, send);
    const note = element("span", { class: "mp-note", "aria-hidden": "true" }); // aria-valuetext says it
    const single = ["select", "range", "text", "checkbox"].includes(control.kind);
    const head = element("span", { class: "mp-head" }, element("span", { class: "mp-label" }, control.label));
    if (control.kind === "range") head.append(note);
    const box = single
      ? element("label", { class: `mp-control mp-${control.kind}` }, head)
      : element("div", { class: `mp-control mp-${control.kind}`, role: control.kind === "radio" ? "radiogroup" : "group", "aria-label": control.label });
    if (control.kind === "checkboxes") {
      box.append(element("span", { class: "mp-help", "aria-hidden": "true" }, control.label)); // said by the group
    }
    const targets = built.nodes.map((node) => node.querySelector("input") ?? node);
    targets.forEach((target, i) => {
      target.dataset.name = control.name ?? target.dataset.key ?? control.of;
      target.dataset.lmSuppressShortcuts = "true"; // else JupyterLab takes arrows and letters
      box.append(built.nodes[i]);
    });
    // a button that moves a slider stays beside it, where the row is broken
    if (control.kind === "play") row.append(element("div", { class: "mp-pair" }, row.lastElementChild, box));
    else row.append(box);
    const show = () => {
      built.show();
      note.textContent = model.get("notes")[control.name] ?? "";
      const off = model.get("off"); // names of controls, keys of buttons
      const held = targets.find((target) => target === document.activeElement);
      targets.forEach((target) => {
        target.disabled = off.includes(target.dataset.key) || off.includes(target.dataset.name);
      });
      // who pressed the last step by keyboard finds the next one under the same key
      if (held?.disabled) targets.find((target) => !target.disabled)?.focus();
    };
    return { ...built, show };
  });
  return { row, parts };
}

function render({ model, el }) {
  const explorer = element("section", { class: "mp-explorer", "aria-label": model.get("title") });
  const send = sender(model, (on) => explorer.setAttribute("aria-busy", String(on)));
  const { row, parts } = controlsOf(model, send);
  const problem = element("p", { class: "mp-problem", role: "alert" });
  const picture = element("div", { class: "mp-picture", "data-shown": "0" });
  const spoken = element("p", { class: "mp-spoken", "aria-live": "polite" });
  const result = element("div", { class: "mp-result" });
  explorer.append(element("p", { class: "mp-title" }, model.get("title")), row, problem, picture, spoken, result);
  el.append(explorer);

  const press = (event) => {
    const part = event.target.closest?.("[data-press]");
    if (!part || !picture.contains(part)) return;
    if (event.type === "keydown" && !["Enter", " "].includes(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
    send.press(part.dataset.press);
  };
  picture.addEventListener("click", press);
  picture.addEventListener("keydown", press);

  let shown = 0;
  const show = () => {
    send.answered(); // first: what goes now is where the controls stand
    parts.forEach((part) => part.show());
    problem.textContent = model.get("problem");
    spoken.textContent = model.get("spoken");
    const held = picture.contains(document.activeElement) && document.activeElement.dataset.key;
    if (picture.mpSvg !== model.get("picture")) {
      picture.mpSvg = model.get("picture");
      picture.innerHTML = picture.mpSvg;
    }
    if (held) picture.querySelector(`[data-key="${CSS.escape(held)}"]`)?.focus();
    if (result.mpHtml !== model.get("result")) {
      result.mpHtml = model.get("result");
      result.replaceChildren();
      if (result.mpHtml) result.append(element("iframe", { sandbox: "", title: "result", srcdoc: result.mpHtml }));
    }
    picture.dataset.shown = String(++shown);
  };
  model.on("change:drawn", show);
  show();
  return () => {
    model.off("change:drawn", show);
    parts.forEach((part) => part.stop?.());
  };
}

export default { render };
