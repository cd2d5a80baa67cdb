"use strict";
/* A picture as `plot --json` has it -> what is drawn, with every instant in epoch seconds. */

const GpuwatchdFacts = (() => {
  const seconds = (at) => (at === null || at === undefined ? null : Date.parse(at) / 1000);
  const known = (value) => (value === undefined ? null : value);

  function line(curve) {
    if (!curve || !curve.at_s.length) return null;
    return { at: curve.at_s, used: curve.used_bytes };
  }

  function forecast(told) {
    if (!told) return null;
    return {
      judged: seconds(told.judged_at),
      level: told.level_bytes,
      rate: told.rate_bytes_per_s,
      onset: seconds(told.onset_at),
      limit: known(told.limit_bytes),
      low: known(told.low_s),
      mid: known(told.mid_s),
      high: known(told.high_s),
    };
  }

  function mark(told) {
    const look = GPUWATCHD_DESIGN.marks[told.kind] || GPUWATCHD_DESIGN.marks.event;
    return {
      at: seconds(told.at),
      text: told.text,
      glyph: look.glyph,
      colour: look.colour,
      weight: GPUWATCHD_DESIGN.weights.indexOf(told.kind),
    };
  }

  /* The past, and as much of the future as leaves the past a fifth of the width. */
  function ahead(facts) {
    const told = facts.forecast;
    if (!told || told.mid === null) return facts.end;
    const past = Math.max(facts.end - facts.begin, 60);
    const wanted = told.high !== null && told.high < 2.5 * told.mid ? 1.06 * told.high : 1.35 * told.mid;
    return Math.max(facts.end, told.judged + Math.min(Math.max(wanted, 0.15 * past), 4 * past));
  }

  function of(picture) {
    const curve = picture.curve;
    const facts = {
      begin: seconds(picture.begin_at),
      end: seconds(picture.end_at),
      now: seconds(picture.now_at),
      at: curve.at_s,
      used: curve.used_bytes,
      low: curve.low_bytes,
      high: curve.high_bytes,
      width: curve.width_s || 0,
      floor: line(picture.floor),
      limit: known(picture.limit_bytes),
      forecast: forecast(picture.forecast),
      marks: (picture.marks || []).map(mark).sort((one, other) => one.at - other.at),
      gaps: (picture.gaps || []).map((gap) => ({
        begin: seconds(gap.begin_at), end: seconds(gap.end_at), why: gap.why,
      })),
    };
    facts.last = ahead(facts);
    if (facts.last <= facts.begin) facts.last = facts.begin + 60;
    return facts;
  }

  /* Which parts there are, for the legend. */
  function parts(facts) {
    const told = facts.forecast;
    const thick = facts.high.some((high, n) => high !== null && high > facts.low[n]);
    return [
      facts.at.length && "curve",
      thick && "range",
      facts.floor && "floor",
      told && "fit",
      told && told.low !== null && told.limit !== null && "band",
      facts.limit !== null && "limit",
      facts.gaps.length && "gap",
    ].filter(Boolean);
  }

  /* Index of the point nearest to an instant at which something is known; -1: none. */
  function nearest(facts, at) {
    let low = 0;
    let high = facts.at.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (facts.at[middle] < at) low = middle + 1;
      else high = middle;
    }
    let found = -1;
    for (let n = Math.max(0, low - 2); n <= Math.min(facts.at.length - 1, low + 2); n += 1) {
      if (facts.used[n] === null) continue;
      if (found < 0 || Math.abs(facts.at[n] - at) < Math.abs(facts.at[found] - at)) found = n;
    }
    return found;
  }

  function gapAt(facts, at) {
    return facts.gaps.find((gap) => gap.begin <= at && at <= gap.end) || null;
  }

  /* Lowest, middle and highest level that is foreseen for an instant; null: none is. */
  function foreseen(facts, at) {
    const told = facts.forecast;
    if (!told || told.mid === null || told.low === null || told.limit === null || at <= told.judged) return null;
    const after = at - told.judged;
    const level = (end) => (end === null ? told.level : Math.min(told.limit, told.level + (told.limit - told.level) * (after / end)));
    return { low: level(told.high), mid: level(told.mid), high: level(told.low) };
  }

  /* Bytes at the bottom and the top of the scale, for what is shown of the time. */
  function scale(facts, begin, end, close) {
    let low = Infinity;
    let high = 0;
    facts.at.forEach((at, n) => {
      if (facts.used[n] === null || at < begin - facts.width || at > end + facts.width) return;
      low = Math.min(low, facts.low[n]);
      high = Math.max(high, facts.high[n]);
    });
    if (low === Infinity) return [0, facts.limit ? 1.12 * facts.limit : 1024 ** 3];
    if (close) {
      const room = Math.max(0.08 * (high - low), 8 * 1024 ** 2);
      return [Math.max(0, low - room), high + room];
    }
    const told = facts.forecast;
    const full = facts.limit !== null && (high > 0.15 * facts.limit || (told && told.mid !== null));
    return [0, full ? 1.12 * Math.max(high, facts.limit) : 1.25 * Math.max(high, 64 * 1024 ** 2)];
  }

  return { of, parts, nearest, gapAt, foreseen, scale };
})();
