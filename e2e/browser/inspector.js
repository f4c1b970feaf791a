// Evaluated in the page; see inspector_test.go.
window.inspector = (() => {
  const root = document.documentElement;
  const frame = () => new Promise((done) => requestAnimationFrame(() => done()));
  const visible = (e) => e !== null && e.checkVisibility() && e.getClientRects().length > 0;
  const text = (selector) => {
    const e = document.querySelector(selector);
    return visible(e) ? e.innerText.trim() : "";
  };
  const view = () => window.loadplane.view();

  // colour returns the parts of a colour of the theme.
  const colour = (name) => {
    const c = new OffscreenCanvas(1, 1).getContext("2d");
    c.fillStyle = getComputedStyle(root).getPropertyValue(name).trim();
    c.fillRect(0, 0, 1, 1);
    return c.getImageData(0, 0, 1, 1).data.join();
  };

  // pixel returns what the heatmap's canvas has at a point of the window.
  const pixel = (x, y) => {
    const canvas = document.getElementById("heat-canvas");
    const box = canvas.getBoundingClientRect();
    const ratio = canvas.width / box.width;
    return canvas.getContext("2d").getImageData(Math.floor((x - box.left) * ratio), Math.floor((y - box.top) * ratio), 1, 1).data.join();
  };

  // painted says how the cells of a worker look on the canvas: "grey" if all
  // are, "fresh" if none is; "" if there are none.
  const painted = (id) => {
    const grey = colour("--cell-grey");
    const cells = window.loadplane.cells().filter((c) => c.worker === id);
    const n = cells.filter((c) => pixel(c.x, c.y) === grey).length;
    return cells.length === 0 ? "" : n === 0 ? "fresh" : n === cells.length ? "grey" : "some are grey";
  };

  // end is what noteEnd found: milliseconds until all were grey.
  let end = null;

  // noteEnd watches until all cells of some workers are grey.
  const noteEnd = (ids) => {
    const began = performance.now();
    const timer = setInterval(() => {
      if (ids.every((id) => painted(id) === "grey")) {
        end = performance.now() - began;
        clearInterval(timer);
      }
    }, 50);
  };

  // taken are what the page showed, by version.
  const taken = new Map();

  // gridCells returns something of every cell of the table.
  const gridCells = (get) => {
    const all = {};
    for (const c of document.querySelectorAll("#grid-body [data-worker][data-field]")) {
      (all[c.dataset.worker] ??= {})[c.dataset.field] = get(c);
    }
    return all;
  };

  // record takes a sample of every version from now on.
  const record = () => {
    const take = () => {
      const ranks = {}, totals = {};
      for (const w of view().workers) {
        totals[w.worker_id] = w.aggregate ?? {};
        ranks[w.worker_id] = Object.fromEntries(w.ranks.map((r) => [r.dp_rank, r]));
      }
      taken.set(root.dataset.version, {
        version: Number(root.dataset.version), lineage: root.dataset.lineage, ranks, totals,
        cells: gridCells((c) => c.textContent), exact: gridCells((c) => c.dataset.value ?? null), heat: window.loadplane.cells(),
      });
      if (taken.size > 100) {
        taken.delete(taken.keys().next().value);
      }
    };
    new MutationObserver(take).observe(root, { attributeFilter: ["data-version"] });
    take();
  };

  // names returns the text of every name in the table, by worker.
  const names = async () => {
    const grid = document.getElementById("grid");
    const all = {};
    for (let top = 0; ; top += Math.max(30, grid.clientHeight - 90)) {
      grid.scrollTop = top;
      await frame();
      await frame();
      for (const line of document.querySelectorAll("#grid-body [data-index]")) {
        all[line.dataset.worker] = [...line.querySelectorAll("[data-field]")].map((c) => c.textContent).join("|");
      }
      if (top + grid.clientHeight >= grid.scrollHeight) {
        grid.scrollTop = 0;
        return all;
      }
    }
  };

  // visit opens the view of every worker, and returns what it says.
  const visit = async (ids) => {
    const all = {};
    for (const id of ids) {
      location.hash = "#/worker/" + encodeURIComponent(id);
      await frame();
      await frame();
      const e = document.getElementById("worker");
      all[id] = visible(e) ? e.textContent : "";
    }
    return all;
  };

  // frames returns the times between frames while the element of an id is
  // scrolled, or nothing is.
  const frames = async (what, limit) => {
    const [heat, grid] = [document.getElementById("heat"), document.getElementById("grid")];
    const gaps = [], versions = new Set();
    const began = performance.now();
    let last = began, now = began;
    for (let n = 0; now - began < limit; n++) {
      for (const [e, by] of [[heat, 40], [grid, 90]]) {
        if (e.id === what) {
          e.scrollTop = (n * by) % Math.max(1, e.scrollHeight - e.clientHeight);
        }
      }
      await frame();
      now = performance.now();
      gaps.push(now - last);
      last = now;
      versions.add(root.dataset.version);
    }
    gaps.sort((a, b) => a - b);
    const at = (share) => Math.round(gaps[Math.min(gaps.length - 1, Math.floor(share * gaps.length))] * 10) / 10;
    return { count: gaps.length, p50_ms: at(0.5), p95_ms: at(0.95), p99_ms: at(0.99), max_ms: at(1), versions: versions.size };
  };

  // focusShows says that what has the focus looks as if it had.
  const focusShows = () => {
    const e = document.activeElement;
    if (e === document.body) {
      return true;
    }
    const s = getComputedStyle(e);
    return visible(e) && (s.outlineStyle !== "none" && parseFloat(s.outlineWidth) > 0 || s.boxShadow !== "none");
  };

  const hottest = () => view().workers.filter((w) => w.freshness === "fresh" && w.ranks.length > 1)
    .sort((a, b) => (b.aggregate?.weighted_token_usage ?? 0) - (a.aggregate?.weighted_token_usage ?? 0))[0];

  return {
    painted, noteEnd, record, names, visit, frames, focusShows,
    ended: () => end,
    count: (freshness) => (window.loadplane ? view().workers.filter((w) => freshness === "" || w.freshness === freshness).length : -1),
    sample: (version) => taken.get(version) ?? null,
    banner: () => text("#banner"),
    lastMessage: () => text("#fact-message"),
    // pools returns the values of a column of the pools.
    pools: (field) => [...document.querySelectorAll(`.pools [data-field="${field}"]`)].map((c) => c.dataset.value),
    // tooWide returns what long names made wider or higher than it may be.
    tooWide: () => [["label:has(#filter-model)", 300, 100], [".pools td.text", 300, 60], [".scroll.low", innerWidth, 270]].filter(([selector, width, height]) => {
      const e = document.querySelector(selector);
      return !visible(e) || e.offsetWidth > width || e.offsetHeight > height;
    }).map(([selector]) => selector),
    dialog: () => text("dialog[open]"),
    workerShown: () => text("#worker"),
    focusedCell: () => document.getElementById("heat-cell").textContent,
    openHottest: () => { location.hash = "#/worker/" + encodeURIComponent(hottest().worker_id); },
  };
})();
true;
