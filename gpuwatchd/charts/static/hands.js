"use strict";
/* Mouse, fingers and keys of a chart. All of them end in zoom, pan, point and reset. */

const GpuwatchdHands = (() => {
  const NEAR = 14;

  /* Zooms by `factor` (above 1: closer) around `at`. */
  function around(chart, at, factor) {
    const [low, high] = chart.shown();
    const width = (high - low) / factor;
    const share = (at - low) / (high - low || 1);
    chart.zoom(at - share * width, at + (1 - share) * width);
  }

  function pan(chart, share) {
    const [low, high] = chart.shown();
    const [first, last] = chart.whole();
    const by = Math.max(first - low, Math.min(last - high, share * (high - low)));
    if (chart.zoomed()) chart.zoom(low + by, high + by);
  }

  function keys(chart) {
    const step = (event, by) => {
      if (event.shiftKey) pan(chart, 0.2 * by);
      else chart.step(event.ctrlKey || event.metaKey ? 10 * by : by);
    };
    const middle = () => {
      const [low, high] = chart.shown();
      const at = chart.pointed();
      return at === null || at < low || at > high ? (low + high) / 2 : at;
    };
    const table = {
      ArrowLeft: (event) => step(event, -1),
      ArrowRight: (event) => step(event, 1),
      Home: () => chart.step(-Infinity),
      End: () => chart.step(Infinity),
      "+": () => around(chart, middle(), 1.6),
      "=": () => around(chart, middle(), 1.6),
      "-": () => around(chart, middle(), 1 / 1.6),
      n: () => chart.mark(1),
      p: () => chart.mark(-1),
      c: () => chart.closeUp(),
      0: () => chart.reset(),
    };
    return (event) => {
      if (event.altKey || ((event.ctrlKey || event.metaKey) && !event.key.startsWith("Arrow"))) return;
      if (event.key === "Escape") {
        if (!chart.zoomed() && chart.pointed() === null) return;
        chart.reset();
        chart.point(null);
      } else if (table[event.key]) table[event.key](event);
      else return;
      event.preventDefault();
      event.stopPropagation();
    };
  }

  /* A wheel scrolls the page, unless a hand has taken the chart first or pinches. */
  function wheel(chart, over, host) {
    return (event) => {
      const held = event.ctrlKey || event.metaKey || host.contains(document.activeElement);
      if (!held) return;
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        if (!chart.zoomed()) return;
        pan(chart, event.deltaX / over.clientWidth);
      } else if (event.deltaY < 0 || chart.zoomed()) {
        const at = chart.plot.posToVal(event.clientX - over.getBoundingClientRect().left, "x");
        around(chart, at, event.deltaY < 0 ? 1.25 : 1 / 1.25);
      } else return;
      event.preventDefault();
    };
  }

  /* One finger reads values, two zoom and move; up and down still scrolls the page. */
  function fingers(chart, over) {
    const down = new Map();
    let begun = null;
    const left = (event) => event.clientX - over.getBoundingClientRect().left;
    const spread = () => {
      const [one, other] = [...down.values()];
      return { middle: (one + other) / 2, width: Math.max(Math.abs(one - other), 20) };
    };
    function press(event) {
      if (event.pointerType !== "touch") return;
      down.set(event.pointerId, left(event));
      begun = down.size === 2 ? { ...spread(), shown: chart.shown() } : null;
      if (down.size === 1) chart.point(chart.plot.posToVal(left(event), "x"));
    }
    function move(event) {
      if (!down.has(event.pointerId)) return;
      down.set(event.pointerId, left(event));
      if (begun === null || down.size !== 2) {
        chart.point(chart.plot.posToVal(left(event), "x"));
        return;
      }
      const now = spread();
      const [low, high] = begun.shown;
      const each = (high - low) / over.clientWidth;
      const width = (high - low) * (begun.width / now.width);
      const at = low + begun.middle * each;
      const start = at - (now.middle / over.clientWidth) * width;
      chart.zoom(start, start + width);
    }
    function lift(event) {
      down.delete(event.pointerId);
      begun = null;
    }
    return { press, move, lift };
  }

  /* Returns what lets go of the chart again. */
  function hold(chart, host) {
    const over = chart.plot.over;
    const touch = fingers(chart, over);
    const list = [
      [host, "keydown", keys(chart)],
      [host, "blur", () => chart.point(null)],
      [over, "wheel", wheel(chart, over, host)],
      [over, "dblclick", () => chart.reset()],
      [over, "pointerdown", touch.press],
      [over, "pointermove", touch.move],
      [over, "pointerup", touch.lift],
      [over, "pointercancel", touch.lift],
    ];
    for (const [target, name, hand] of list) target.addEventListener(name, hand, { passive: false });
    return () => {
      for (const [target, name, hand] of list) target.removeEventListener(name, hand, { passive: false });
    };
  }

  return { hold, NEAR };
})();
