"use strict";
/* Sizes and times as people write them. Sizes are those of gpuwatchd/core/units.py, which a test compares. */

const GpuwatchdWords = (() => {
  const MIB = 1024 ** 2;
  const GIB = 1024 ** 3;
  const TIB = 1024 ** 4;
  const DAY = 86400;
  const STEPS = [
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200,
    DAY, 2 * DAY, 7 * DAY, 14 * DAY, 28 * DAY, 91 * DAY, 182 * DAY, 364 * DAY,
  ];
  const HALVES = [1 / 4, 1 / 2, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512];
  const ROUND = [1, 2, 4, 5, 8, 10, 16, 20, 32, 40, 64, 80, 100, 128, 160, 200, 256, 512];
  const WEEKDAYS = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
  const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

  /* Like Python: what is exactly between two numbers goes to the even one. */
  function fixed(value, digits) {
    const scale = 10 ** digits;
    const tie = Number.isInteger(value * 2 ** (digits + 1)) && Math.abs((value * scale) % 1) === 0.5;
    if (!tie) return value.toFixed(digits);
    const below = Math.floor(value * scale);
    return ((below % 2 === 0 ? below : below + 1) / scale).toFixed(digits);
  }

  function size(bytes) {
    if (bytes === null || bytes === undefined || !Number.isFinite(bytes)) return "?";
    const magnitude = Math.abs(bytes);
    if (magnitude >= TIB) return `${fixed(bytes / TIB, 2)} TiB`;
    if (magnitude >= GIB) return `${fixed(bytes / GIB, 1)} GiB`;
    return `${fixed(bytes / MIB, 0)} MiB`;
  }

  /* Of an axis whose marks lie `step` apart: as `size`, with as many digits as tell them apart. */
  function level(bytes, step) {
    if (bytes === 0) return "0";
    if (bytes >= TIB) return `${plain(bytes / TIB, step / TIB)} TiB`;
    return bytes >= GIB ? `${plain(bytes / GIB, step / GIB)} GiB` : `${plain(bytes / MIB, step / MIB)} MiB`;
  }

  function plain(value, step) {
    for (let digits = 0; digits < 3; digits += 1) {
      if (Number.isInteger(value * 10 ** digits) && Number.isInteger(step * 10 ** digits)) {
        return value.toFixed(digits);
      }
    }
    return fixed(value, 3).replace(/0+$/, "").replace(/\.$/, "");
  }

  function levels(low, high, most) {
    const wanted = (high - low) / Math.max(most, 1);
    let step = MIB / 4;
    for (const unit of [MIB, GIB, TIB]) {
      for (const factor of unit === MIB ? HALVES : ROUND) {
        step = factor * unit;
        if (step >= wanted) return steps(low, high, step);
      }
    }
    return steps(low, high, 2 ** Math.ceil(Math.log2(wanted)));
  }

  function steps(low, high, step) {
    const found = [];
    for (let n = Math.ceil(low / step); n * step <= high; n += 1) found.push(n * step);
    return { step, found };
  }

  const two = (number) => String(number).padStart(2, "0");

  /* `zones`: rows of [from, seconds ahead of UTC, name], oldest first; without them the browser's. */
  function clockOf(zones) {
    function offset(at) {
      if (!zones || !zones.length) return -60 * new Date(at * 1000).getTimezoneOffset();
      return row(at)[1];
    }
    function row(at) {
      let found = zones[0];
      for (const each of zones) if (each[0] <= at) found = each;
      return found;
    }
    function zone(at) {
      if (zones && zones.length) return row(at)[2];
      const format = new Intl.DateTimeFormat("en-GB", { timeZoneName: "short" });
      const part = format.formatToParts(new Date(at * 1000)).find((each) => each.type === "timeZoneName");
      return part ? part.value : "";
    }
    /* Its UTC fields are those of the clock on the wall. */
    const wall = (at) => new Date((at + offset(at)) * 1000);
    const date = (at) => {
      const when = wall(at);
      return `${WEEKDAYS[when.getUTCDay()]} ${when.getUTCDate()} ${MONTHS[when.getUTCMonth()]}`;
    };
    const time = (at, seconds) => {
      const when = wall(at);
      const minutes = `${two(when.getUTCHours())}:${two(when.getUTCMinutes())}`;
      return seconds ? `${minutes}:${two(when.getUTCSeconds())}` : minutes;
    };
    function ticks(low, high, most) {
      const wanted = (high - low) / Math.max(most, 1);
      const step = STEPS.find((each) => each >= wanted) || STEPS[STEPS.length - 1] * Math.ceil(wanted / STEPS[STEPS.length - 1]);
      const found = [];
      // The first day of all was a Thursday; weeks begin on Mondays.
      const shift = step % (7 * DAY) === 0 ? 4 * DAY : 0;
      const first = Math.ceil((low + offset(low) - shift) / step);
      for (let n = first; found.length < 60; n += 1) {
        // Midnight stays midnight when the clocks change within the span.
        const local = n * step + shift;
        const at = local - offset(local - offset(low));
        if (at > high) break;
        if (at >= low && at !== found[found.length - 1]) found.push(at);
      }
      return { step, found };
    }
    /* A label for each tick; the first, and each first of a day, has the date in a second line. */
    function labels(found, step) {
      let before = "";
      return found.map((at) => {
        const day = date(at);
        if (step >= DAY) return day;
        const label = time(at, step < 60);
        const fresh = day !== before;
        before = day;
        return fresh ? `${label}\n${day}` : label;
      });
    }
    /* As units.moment: the weekday when it is another day, the date beyond six. */
    function near(at, now) {
      const day = (when) => Math.floor(wall(when).getTime() / 86400000);
      const days = Math.abs(day(at) - day(now));
      const iso = days > 6 ? `${wall(at).toISOString().slice(0, 10)} ` : "";
      return days ? `${WEEKDAYS[wall(at).getUTCDay()]} ${iso}${time(at, false)}` : time(at, false);
    }
    return { near, date, time, zone, ticks, labels, moment: (at, seconds) => `${date(at)} ${time(at, seconds)}` };
  }

  return { size, level, levels, clockOf };
})();
