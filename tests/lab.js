// What tests/lab.py asks of JupyterLab's page. `expose_app_in_browser` gives us window.jupyterapp.
window.mpLab = {
  panel() {
    return [...window.jupyterapp.shell.widgets("main")].find((widget) => widget.sessionContext);
  },

  // The notebook is there and its kernel waits for work; the file browser makes room for it.
  async ready() {
    await window.jupyterapp.restored;
    const panel = this.panel();
    await panel.revealed;
    await panel.sessionContext.ready;
    window.jupyterapp.shell.collapseLeft();
    return panel.sessionContext.session?.kernel?.status === "idle";
  },

  // Another notebook in the same JupyterLab: the present one and its kernel go first.
  async open(path) {
    const before = this.panel();
    await before.sessionContext.shutdown();
    before.dispose();
    await window.jupyterapp.commands.execute("docmanager:open", { path });
  },

  // Code cells with something in them: [execution count or null, text of its error or ""].
  cells() {
    return [...this.panel().content.model.cells]
      .filter((cell) => cell.type === "code" && cell.sharedModel.getSource().trim())
      .map((cell) => {
        const outputs = cell.outputs.toJSON();
        const error = outputs.find((output) => output.output_type === "error");
        return [cell.executionCount, error ? error.traceback.join("\n") || error.evalue : ""];
      });
  },

  async runAll() {
    await window.jupyterapp.commands.execute("notebook:run-all-cells");
  },

  // All cells have run, or one has failed; and the kernel has nothing left to do.
  finished() {
    const cells = this.cells();
    const over = cells.some(([, error]) => error) || cells.every(([count]) => count !== null);
    return over && this.panel().sessionContext.session.kernel.status === "idle";
  },

  async theme(name) {
    await window.jupyterapp.commands.execute("apputils:change-theme", { theme: name });
  },

  async shutDown() {
    await this.panel()?.sessionContext.shutdown();
  },

  shown(explorer) {
    const pictures = [...explorer.querySelectorAll(".mp-picture")];
    return Math.max(...pictures.map((picture) => Number(picture.dataset.shown)));
  },

  // Called right before a move. `this.move` then becomes the milliseconds from the first event
  // of a control to the first new picture: at least what a person waits for, never less.
  arm(explorer, patience) {
    const before = this.shown(explorer);
    const kinds = ["keydown", "input", "change", "click"];
    let start = null, observer, timer;
    const note = (event) => {
      if (!explorer.contains(event.target)) return;
      // A text is taken over by Enter: what was typed before is not waiting.
      const enters = event.key === "Enter" && event.target.type === "text";
      if (start === null || enters) start = performance.now();
    };
    kinds.forEach((kind) => window.addEventListener(kind, note, true));
    const move = new Promise((resolve, reject) => {
      observer = new MutationObserver(() => {
        if (this.shown(explorer) <= before) return;
        if (start === null) reject(new Error("a new picture came before any event"));
        resolve(performance.now() - start);
      });
      observer.observe(explorer, {
        subtree: true, childList: true, attributes: true, attributeFilter: ["data-shown"],
      });
      timer = setTimeout(() => reject(new Error(
        start === null ? "no event reached the control" : "no new picture was shown")), patience);
    }).finally(() => {
      observer.disconnect();
      clearTimeout(timer);
      kinds.forEach((kind) => window.removeEventListener(kind, note, true));
    });
    move.catch(() => {});  // it is awaited later
    this.move = move;
  },

  // Until nothing is on its way, the kernel has nothing to do and no new picture has come for
  // `quiet` milliseconds: a drag sends more than one value.
  settled(explorer, quiet, patience) {
    return new Promise((resolve, reject) => {
      const start = performance.now();
      const { kernel } = this.panel().sessionContext.session;
      let last = this.shown(explorer), since = start;
      const look = () => {
        const now = this.shown(explorer), time = performance.now();
        const busy = explorer.getAttribute("aria-busy") === "true" || kernel.status !== "idle";
        if (now !== last || busy) { last = now; since = time; }
        if (time - since >= quiet) resolve();
        else if (time - start >= patience) reject(new Error("the explorer does not come to rest"));
        else setTimeout(look, quiet / 5);
      };
      look();
    });
  },

  // The controls of an explorer in their order: [kind, name, CSS selector].
  controls(explorer, kinds) {
    const quoted = (name, value) => `[${name}=${JSON.stringify(value)}]`;
    return [...explorer.querySelectorAll(Object.values(kinds).join(","))].map((node) => {
      const [kind, base] = Object.entries(kinds).find(([, selector]) => node.matches(selector));
      const { name, key } = node.dataset;
      let selector = base;
      if (name !== undefined) selector += quoted("data-name", name);
      if (key !== undefined) selector += quoted("data-key", key);
      if (kind === "radio") selector += quoted("value", node.value);
      return [kind, [...new Set([name, key])].filter(Boolean).join(":"), selector]; // a button has one for both
    });
  },
};
