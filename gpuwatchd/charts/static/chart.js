"use strict";
/* gpuwatchdChart(element, picture, options) -> {update(picture), destroy()}
 *
 * Draws a picture (as `gpuwatchctl plot --json` has it) into an element. Options: `height` in
 * pixels, `zones` as rows of [from, seconds ahead of UTC, name] instead of the browser's own time,
 * `sentence` for those who hear it. Foreign text only ever becomes a text node.
 */

const gpuwatchdChart = (() => {
  const HINT =
    "Arrow keys read values, with Shift they move; + and - zoom, Escape shows all, " +
    "n and p go to marks, c looks closer.";
  let count = 0;

  function make(tag, name, text) {
    const element = document.createElement(tag);
    if (name) element.className = name;
    if (text !== undefined) element.textContent = text;
    return element;
  }

  function shell(element) {
    count += 1;
    const ui = {
      bar: make("div", "chart-bar"),
      legend: make("ul", "chart-legend"),
      tools: make("div", "chart-tools"),
      close: make("button", "", "Close up"),
      reset: make("button", "", "Show all"),
      host: make("div", "chart-plot"),
      foot: make("div", "chart-foot"),
      hint: make("p", "chart-hint", HINT),
      empty: make("p", "chart-empty", "No data for this time."),
      tip: make("div", "chart-tip"),
      line: make("div", "chart-cursor"),
      dot: make("div", "chart-dot"),
      zone: make("p", "chart-zone"),
    };
    ui.close.type = ui.reset.type = "button";
    ui.close.setAttribute("aria-pressed", "false");
    ui.close.title = "Fit the scale to what is shown";
    ui.reset.title = "Back to the whole time";
    ui.reset.hidden = true;
    ui.hint.id = `chart-hint-${count}`;
    for (const part of [ui.tip, ui.line, ui.dot]) part.hidden = true;
    ui.tip.setAttribute("aria-hidden", "true");
    ui.tools.append(ui.close, ui.reset);
    ui.bar.append(ui.legend, ui.tools);
    // What was drawn for those without scripts is sharper on paper than a canvas.
    const drawn = element.querySelector("svg.drawn");
    ui.foot.append(ui.hint, ui.zone);
    element.replaceChildren(ui.bar, ui.host, ui.foot);
    if (drawn) {
      const paper = make("div", "chart-paper");
      paper.append(drawn);
      element.append(paper);
      element.classList.add("chart-printable");
    }
    element.classList.add("chart", "chart-live");
    return ui;
  }

  function legend(list, parts) {
    if (list.dataset.parts === parts.join()) return;
    list.dataset.parts = parts.join();
    list.replaceChildren(
      ...parts.map((part) => {
        const item = make("li");
        item.append(make("span", `key key-${part}`), GPUWATCHD_DESIGN.legend[part]);
        return item;
      }),
    );
  }

  function options(chart, width, height) {
    const axis = { stroke: () => chart.colour("faint"), font: "12px system-ui, sans-serif", size: 46 };
    const grid = { stroke: () => chart.colour("grid"), width: 1 };
    const ticks = { show: true, stroke: () => chart.colour("grid"), width: 1, size: 5 };
    let step = 0;
    return {
      width,
      height,
      legend: { show: false },
      padding: [24, 24, 0, 4],
      cursor: {
        x: false,
        y: false,
        points: { show: false },
        drag: { x: true, y: false, setScale: false, dist: 4 },
        bind: { dblclick: () => null },
      },
      scales: {
        x: { time: false, range: () => chart.shown() },
        y: { range: () => chart.scale() },
      },
      axes: [
        {
          ...axis, grid: { show: false }, ticks,
          splits: (plot, _, low, high) => {
            let found = chart.clock.ticks(low, high, (plot.width - 96) / 72);
            if (found.step >= 86400) found = chart.clock.ticks(low, high, (plot.width - 96) / 92);
            step = found.step;
            return found.found;
          },
          values: (_, found) => chart.clock.labels(found, step),
        },
        {
          ...axis, size: 68, grid, ticks: { ...ticks, show: false },
          splits: (plot, _, low, high) => {
            const found = GpuwatchdWords.levels(low, high, Math.min(5, (plot.height - 70) / 44));
            chart.levelStep = found.step;
            return found.found;
          },
          values: (_, found) => found.map((bytes) => GpuwatchdWords.level(bytes, chart.levelStep)),
        },
      ],
      series: [
        {},
        { stroke: "transparent", points: { show: false } },
        { stroke: "transparent", points: { show: false } },
        { stroke: () => chart.colour("curve"), width: 2, points: { show: false } },
      ],
      bands: [{ series: [2, 1], fill: () => chart.colour("range") }],
      hooks: {
        drawAxes: [() => GpuwatchdPaint.below(chart)],
        // Only then places are known.
        draw: [() => GpuwatchdPaint.above(chart), () => chart.show(chart.at)],
        setCursor: [(plot) => chart.hover(plot)],
        setSelect: [(plot) => chart.selected(plot)],
      },
    };
  }

  class Chart {
    constructor(element, picture, wanted) {
      this.element = element;
      this.height = wanted.height || 300;
      this.clock = GpuwatchdWords.clockOf(wanted.zones);
      this.sentence = wanted.sentence;
      this.window = null;
      this.close = false;
      this.at = null;
      this.clusters = [];
      this.colour = GpuwatchdPaint.colours(element);
      this.ui = shell(element);
      this.take(picture);
      const { host } = this.ui;
      host.style.height = `${this.height}px`;
      this.plot = new uPlot(options(this, Math.max(host.clientWidth, 200), this.height), this.data(), host);
      this.plot.over.append(this.ui.line, this.ui.dot, this.ui.tip, this.ui.empty);
      this.wire();
      this.announce();
    }

    wire() {
      const { host, reset, close } = this.ui;
      host.tabIndex = 0;
      host.setAttribute("role", "slider");
      host.setAttribute("aria-label", "Values over time");
      host.setAttribute("aria-describedby", this.ui.hint.id);
      reset.addEventListener("click", () => {
        this.reset();
        host.focus();
      });
      close.addEventListener("click", () => this.closeUp());
      const letGo = GpuwatchdHands.hold(this, host);
      const sizes = new ResizeObserver(() => {
        const width = host.clientWidth;
        if (width > 0 && width !== this.plot.width) this.plot.setSize({ width, height: this.height });
      });
      sizes.observe(host);
      const look = () => {
        this.colour = GpuwatchdPaint.colours(this.element);
        this.plot.redraw(false);
      };
      const dark = matchMedia("(prefers-color-scheme: dark)");
      const paper = matchMedia("print");
      dark.addEventListener("change", look);
      paper.addEventListener("change", look);
      const theme = new MutationObserver(look);
      theme.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
      this.letGo = () => {
        letGo();
        sizes.disconnect();
        theme.disconnect();
        dark.removeEventListener("change", look);
        paper.removeEventListener("change", look);
      };
    }

    take(picture) {
      this.facts = GpuwatchdFacts.of(picture);
      const said = picture.sentence || this.sentence || `${picture.title}: ${picture.verdict}`;
      this.element.setAttribute("role", this.element.closest("figure") ? "group" : "figure");
      this.element.setAttribute("aria-label", said);
      legend(this.ui.legend, GpuwatchdFacts.parts(this.facts));
      this.ui.empty.hidden = this.facts.at.length > 0;
      this.ui.close.disabled = !this.facts.at.length;
      this.ui.zone.textContent = `time in ${this.clock.zone(this.facts.now)}`;
    }

    data() {
      const { at, low, high, used } = this.facts;
      return [at, low, high, used];
    }

    whole() {
      return [this.facts.begin, this.facts.last];
    }

    shown() {
      return this.window || this.whole();
    }

    zoomed() {
      return this.window !== null;
    }

    scale() {
      const [begin, end] = this.shown();
      return GpuwatchdFacts.scale(this.facts, begin, end, this.close);
    }

    zoom(low, high) {
      const [first, last] = this.whole();
      const least = Math.min(Math.max(10, 4 * this.facts.width), last - first);
      if (high - low < least) {
        const middle = (low + high) / 2;
        [low, high] = [middle - least / 2, middle + least / 2];
      }
      if (high - low >= 0.999 * (last - first)) this.window = null;
      else {
        const by = Math.max(first - low, 0) || Math.min(last - high, 0);
        this.window = [low + by, high + by];
      }
      this.draw();
    }

    reset() {
      this.window = null;
      this.draw();
    }

    closeUp() {
      this.close = !this.close;
      this.ui.close.setAttribute("aria-pressed", String(this.close));
      this.draw();
    }

    draw() {
      this.ui.reset.hidden = !this.zoomed();
      this.plot.setData(this.data());
    }

    selected(plot) {
      const { left, width } = plot.select;
      if (width < 4) return;
      plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      this.zoom(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
    }

    hover(plot) {
      const { left } = plot.cursor;
      if (left === undefined || left === null) return;
      if (left < 0) {
        if (!this.byKey) this.show(null);
        return;
      }
      this.byKey = false;
      this.show(plot.posToVal(left, "x"));
    }

    pointed() {
      return this.at;
    }

    /* By key or finger: the mouse has its own way, `hover`. */
    point(at) {
      this.byKey = at !== null;
      this.show(at);
      this.announce();
    }

    step(by) {
      const { at, used } = this.facts;
      const places = at.filter((_, n) => used[n] !== null);
      if (!places.length) return;
      const high = this.shown()[1];
      let place = GpuwatchdFacts.nearest(this.facts, this.at === null ? Math.min(high, this.facts.now) : this.at);
      place = this.at === null ? places.indexOf(at[place]) : places.indexOf(at[place]) + by;
      this.reveal(places[Math.max(0, Math.min(places.length - 1, place))]);
    }

    /* Points at an instant, and moves there when it is not shown. */
    reveal(at) {
      const [low, high] = this.shown();
      const half = (high - low) / 2;
      if (this.window && (at < low || at > high)) this.zoom(at - half, at + half);
      this.point(at);
    }

    mark(by) {
      const marks = by > 0 ? this.facts.marks : [...this.facts.marks].reverse();
      const from = this.at === null ? -by * Infinity : this.at;
      const next = marks.find((mark) => (mark.at - from) * by > 0.5);
      if (next) this.reveal(next.at);
    }

    /* Whoever looks at a part of the past keeps it; whoever sees now goes along with it. */
    update(picture) {
      const before = this.facts.now;
      this.take(picture);
      const { now } = this.facts;
      const [first, last] = this.whole();
      if (this.window) {
        const by = this.window[1] >= before ? Math.max(0, now - before) : 0;
        const [low, high] = this.window.map((at) => at + by);
        this.window = high - low < last - first && low < last && high > first ? [low, high] : null;
      }
      this.draw();
      this.announce();
    }

    announce() {
      const { host } = this.ui;
      const { begin, now } = this.facts;
      const at = this.at === null ? now : this.at;
      host.setAttribute("aria-valuemin", String(Math.round(begin)));
      host.setAttribute("aria-valuemax", String(Math.round(this.facts.last)));
      host.setAttribute("aria-valuenow", String(Math.round(Math.min(Math.max(at, begin), this.facts.last))));
      const said = GpuwatchdTip.lines(this, at).map((line) => line.text).join(", ");
      host.setAttribute("aria-valuetext", said);
    }

    show(at) {
      this.at = at;
      GpuwatchdTip.show(this, at);
    }

    destroy() {
      this.letGo();
      this.plot.destroy();
      this.element.replaceChildren();
      this.element.classList.remove("chart-live");
    }
  }

  return (element, picture, wanted) => {
    const chart = new Chart(element, picture, wanted || {});
    return { update: (next) => chart.update(next), destroy: () => chart.destroy() };
  };
})();
