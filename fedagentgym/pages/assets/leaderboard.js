/* The leaderboard: tabs, tables that can be sorted, filtered and searched, and the choice of episodes. */
(() => {
  "use strict";

  const { make, visible, select } = window.pages;
  const FEW = 5;
  const STEPS = "optimizer_steps";  // always a column, since methods with unequal numbers of steps are compared with care

  /* ---- numbers ---- */

  /* as base/rounding.py: halves are rounded up, and zero has no sign */
  const fixed = (value, digits, plus = "") => {
    const scaled = Math.floor(Math.abs(value) * 10 ** digits + 0.5 + 1e-9);
    return (!scaled ? "" : value < 0 ? "\u2212" : plus) + (scaled / 10 ** digits).toFixed(digits);
  };
  const format = (value, unit) => {
    if (unit === "share") return fixed(100 * value, 1) + "\u00a0%";
    if (unit === "points") return fixed(100 * value, 1, "+");
    if (unit === "bytes") {
      const units = [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["B", 1]];
      const [name, size] = units.find(([, size]) => value / size >= 0.9995) ?? units[4];
      const amount = value / size;
      return Number(fixed(amount, amount < 9.995 ? 2 : amount < 99.95 ? 1 : 0)) + "\u00a0" + name;
    }
    if (unit === "score") return fixed(value, 3);
    return Number(value.toPrecision(4)).toLocaleString("en");
  };

  /* ---- the table of a suite ---- */

  class Board {
    constructor(section, data) {
      this.section = section;
      this.data = data;
      this.measures = new Map(data.measures.map((one) => [one.name, one]));
      this.state = { scenario: "", sort: "rank", down: false, query: "", kind: "", status: "", all: false };
      this.opened = new Set();
      this.addReruns();
      this.build();
      this.refresh();
      new EpisodeChoice(section, data);
    }

    /* Adds the results of maintainers who ran an entry again to the table, as two more measures over all scenarios. */
    addReruns() {
      const ranked = this.measures.get(this.data.ranked);
      for (const [name, title] of [["secret", "run again, unpublished tasks"], ["public", "run again, same tasks"]]) {
        const found = this.data.entries.filter((one) => one.rerun && one.rerun[name] && !one.part);
        if (!found.length) continue;
        const measure = { ...ranked, name: "rerun " + name, title, about: ranked.title + " as the maintainers found it" };
        this.measures.set(measure.name, measure);
        this.data.measures.splice(1, 0, measure);
        for (const entry of found) entry.measures[""][measure.name] = entry.rerun[name];
      }
    }

    build() {
      const set = (name) => (event) => { this.state[name] = event.target.value; this.refresh(); };
      const filter = (name, label, all, values) => values.length > 1
        ? select(label, [["", all], ...values.map((one) => [one, one])], { onchange: set(name) }) : null;
      const kinds = [...new Set(this.data.entries.flatMap((one) => this.tellKinds(one)))].sort();
      const statuses = [...new Set(this.data.entries.map((one) => one.status))].sort();
      this.count = make("span", { class: "count", role: "status" });
      this.head = make("thead");
      this.body = make("tbody");
      const more = make("input", { type: "checkbox", onchange: (event) => { this.state.all = event.target.checked; this.refresh(); } });
      const board = this.section.querySelector(".board");
      board.replaceChildren(
        make("div", { class: "filters" },
          filter("scenario", "Scenario", "all scenarios", this.data.scenarios),
          filter("kind", "Kind", "all kinds", kinds),
          filter("status", "Status", "any status", statuses),
          make("input", { type: "search", placeholder: "search entries", "aria-label": "Search entries", oninput: set("query") }),
          make("label", { class: "more-columns" }, more, " all measures"),
          this.count),
        make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of results" },
          make("table", { class: "results" }, this.head, this.body)));
    }

    tellKinds(entry) { return [entry.baseline ? "baseline" : "submission", entry.method || entry.kind]; }

    get(entry, name) { return (entry.measures[this.state.scenario] || {})[name]; }

    place(entry) { return entry.places[this.state.scenario]; }

    /* The measures that some entry has in this scenario, the ranked one first. */
    listColumns() {
      const there = this.data.measures.filter((one) => one.name !== this.data.ranked && this.data.entries.some((entry) => this.get(entry, one.name)));
      const few = there.filter((one) => !one.name.startsWith("reward/") && one.name !== STEPS).slice(0, FEW);
      const others = this.state.all ? there : [...few, ...there.filter((one) => one.name === STEPS)];
      return [this.measures.get(this.data.ranked), ...others];
    }

    matches(entry) {
      const { query, kind, status } = this.state;
      if (kind && !this.tellKinds(entry).includes(kind)) return false;
      if (status && entry.status !== status) return false;
      const text = [entry.title, entry.name, entry.agent, entry.method, entry.by, entry.note, ...entry.changes].join(" ").toLowerCase();
      return query.toLowerCase().split(/\s+/).every((word) => text.includes(word));
    }

    order(entries) {
      const { sort, down } = this.state;
      const value = (entry) => {
        if (sort === "rank") return this.place(entry) ? this.place(entry)[0] : Infinity;
        if (sort === "entry") return entry.title.toLowerCase();
        const found = this.get(entry, sort);
        return found ? found[0] : null;
      };
      const sign = down ? -1 : 1;
      return [...entries].sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x === y) return 0;
        if (x === null || x === Infinity) return 1;
        if (y === null || y === Infinity) return -1;
        return x < y ? -sign : sign;
      });
    }

    sortBy(name, downFirst) {
      if (this.state.sort === name) this.state.down = !this.state.down;
      else Object.assign(this.state, { sort: name, down: downFirst });
      this.refresh();
      const button = [...this.head.querySelectorAll("button")].find((one) => one.dataset.sort === name);
      if (button) button.focus({ preventScroll: true });
    }

    refresh() {
      const columns = this.listColumns();
      const head = (name, title, about, downFirst, numeric) => {
        const current = this.state.sort === name;
        return make("th", { scope: "col", class: (numeric ? "n " : "") + "head-" + (name === "rank" || name === "entry" ? name : "measure"), "aria-sort": current ? (this.state.down ? "descending" : "ascending") : null },
          make("button", { type: "button", title: about, "data-sort": name, onclick: () => this.sortBy(name, downFirst) },
            title, make("span", { class: "arrow", "aria-hidden": "true" }, current ? (this.state.down ? " \u2193" : " \u2191") : "")));
      };
      this.head.replaceChildren(make("tr", {},
        head("rank", "rank", "rank, and bands over all scenarios: two entries share a band if their difference is not significant", false, false),
        head("entry", "entry", "who played", false, false),
        ...columns.map((one) => head(one.name, one.title, one.about, one.better !== "lower", true))));
      const shown = this.order(this.data.entries.filter((one) => this.matches(one)));
      const drawn = this.state.scenario + "|" + this.state.all;
      if (this.drawn !== drawn) {
        this.scale = this.findScale(columns[0]);
        this.rows = new Map();
        this.drawn = drawn;
      }
      let bands = null;
      this.body.replaceChildren(...shown.flatMap((entry) => {
        const place = this.place(entry);
        const rows = this.getRows(entry, columns, place);
        rows[0].classList.toggle("band-begins", Boolean(this.state.sort === "rank" && place && bands && place[1].length && !place[1].some((one) => bands.includes(one))));
        if (place) bands = place[1];
        return rows;
      }));
      this.count.textContent = shown.length + " of " + this.data.entries.length;
    }

    /* The rows of an entry are made once; sorting and filtering only move them. */
    getRows(entry, columns, place) {
      if (!this.rows.has(entry.name)) this.rows.set(entry.name, this.makeRows(entry, columns, place));
      return this.rows.get(entry.name);
    }

    /* The axis of the bars: shares from 0 to 1, everything else from the least to the greatest end of an interval. */
    findScale(measure) {
      if (measure.unit === "share") return [0, 1];
      const found = this.data.entries.map((entry) => this.get(entry, measure.name)).filter(Boolean);
      const ends = found.flatMap(([mean, low, high, runs]) => [mean, low ?? mean, high ?? mean, ...(runs || [])]);
      const [low, high] = [Math.min(...ends), Math.max(...ends)];
      return high > low ? [low, high] : [low - 0.5, low + 0.5];
    }

    makeRows(entry, columns, place) {
      const opened = this.opened.has(entry.name);
      const toggle = make("button", { type: "button", class: "entry", "aria-expanded": String(opened), onclick: () => this.toggle(entry) }, visible(entry.title));
      const row = make("tr", { "data-entry": entry.name,
        onmouseenter: () => this.highlight(entry.name), onmouseleave: () => this.highlight(null),
        onfocusin: () => this.highlight(entry.name), onfocusout: () => this.highlight(null) },
        make("td", { class: "place" }, entry.reference ? make("small", { title: "not a model, but an end of the scale" }, "reference") : place
          ? place[1].length
            ? make("span", { class: "band band-" + (place[1][0] % 2), title: place[2] ? "rank " + place[2] : "too few runs for ranks" }, place[2] ? String(place[2]) : "", make("small", {}, " band " + place[1].join(", ")))
            : make("small", { title: "place by the mean of this scenario; ranks and bands are over all scenarios" }, String(place[0]))
          : make("small", { title: "has not played the whole suite" }, "not ranked")),
        make("td", { class: "who-played" }, toggle, this.makeLabels(entry)),
        ...columns.map((one, column) => this.makeCell(entry, one, column === 0)));
      return opened ? [row, this.makeDetail(entry, columns.length + 2)] : [row];
    }

    makeLabels(entry) {
      const who = entry.method && entry.method !== entry.title ? entry.method : entry.agent !== entry.title ? entry.agent : "";
      return make("div", { class: "labels" },
        make("small", {}, visible([who, entry.by].filter(Boolean).join(" \u00b7 "))),
        entry.baseline ? make("span", { class: "badge" }, "baseline") : null,
        make("span", { class: "badge " + (entry.status.includes("replayed") ? "good" : entry.status.startsWith("refuted") ? "bad" : "") }, entry.status.split(", ")[0]),
        entry.part ? make("span", { class: "badge" }, entry.part) : null,
        entry.rerun ? make("span", { class: "badge good" }, "run again") : null);
    }

    makeCell(entry, measure, ranked) {
      const found = this.get(entry, measure.name);
      if (!found) return make("td", { class: "n" });
      const [mean, low, high, runs] = found;
      const interval = this.tellSpread(found, measure.unit);
      if (!ranked) return make("td", { class: "n", title: interval }, format(mean, measure.unit));
      const share = (value) => 100 * (value - this.scale[0]) / (this.scale[1] - this.scale[0]);
      return make("td", { class: "n ranked" },
        make("div", { class: "value" }, make("b", {}, format(mean, measure.unit)), " ", make("small", {}, interval)),
        make("div", { class: "track", "aria-hidden": "true" },
          ...(low === null ? runs || [] : []).map((run) => make("i", { class: "run", style: "left:" + share(run) + "%" })),
          ...(low === null ? [] : [make("i", { class: "interval", style: "left:" + share(low) + "%;width:" + (share(high) - share(low)) + "%" })]),
          make("i", { class: "after", style: "left:" + share(mean) + "%" })));
    }

    /* The interval, or the values of all runs if they are too few for an interval. */
    tellSpread([, low, high, runs], unit) {
      if (low !== null) return low === high ? "" : "[" + format(low, unit) + ", " + format(high, unit) + "]";
      const own = (runs || []).map((one) => format(one, unit));
      return new Set(own).size > 1 ? "(" + own.join(", ") + ")" : "";
    }

    toggle(entry) {
      if (!this.opened.delete(entry.name)) this.opened.add(entry.name);
      this.rows.delete(entry.name);
      this.refresh();
      const row = [...this.body.children].find((one) => one.dataset.entry === entry.name);
      if (row) row.querySelector("button.entry").focus({ preventScroll: true });
    }

    highlight(name) {
      this.drawings = this.drawings || [...this.section.querySelectorAll("[data-key]:not(.tasks *)")];
      for (const one of this.drawings) {
        one.classList.toggle("chosen", one.dataset.key === name);
        one.classList.toggle("faded", name !== null && one.dataset.key !== name);
      }
    }

    makeDetail(entry, width) {
      const line = (name, ...value) => value.some((one) => one) ? make("div", {}, make("dt", {}, name), make("dd", {}, ...value)) : null;
      const claims = entry.claims.map(([name, status, about]) =>
        make("li", {}, make("b", { class: { proven: "good", refuted: "bad" }[status] || "" }, status), " ", visible(name) + ": " + visible(about)));
      return make("tr", { class: "detail" }, make("td", { colspan: String(width) },
        make("dl", { class: "about-entry" },
          line("agent", visible(entry.agent)), line("method", visible(entry.method)), line("settings", entry.changes.length ? make("code", {}, visible(entry.changes.join("  "))) : ""),
          line("plugins", visible(entry.plugins.join(", "))),
          line("submitted by", entry.link ? make("a", { href: entry.link, rel: "nofollow noopener noreferrer" }, visible(entry.by || entry.link)) : visible(entry.by)),
          line("note", visible(entry.note)), line("seeds", entry.seeds.join(", ")), line("episodes", entry.episodes.toLocaleString("en")),
          line("made", visible(entry.date.slice(0, 10) + (entry.version ? ", version " + entry.version : "") + (entry.machine ? ", " + entry.machine : ""))),
          line("run again", entry.rerun ? visible(entry.rerun.date.slice(0, 10)) + this.tellRerun(entry) : ""),
          line("played", entry.part),
          make("div", { class: "wide-line" }, make("dt", {}, "archive"), make("dd", {}, make("a", { href: entry.files }, entry.files.split("/").pop())))),
        claims.length ? make("ul", { class: "claims" }, ...claims) : null,
        this.makeScenarioTable(entry), this.makeCategories(entry)));
    }

    tellRerun(entry) {
      const unit = this.measures.get(this.data.ranked).unit;
      return [["public", "same tasks"], ["secret", "unpublished tasks"]].filter(([name]) => entry.rerun[name])
        .map(([name, title]) => ", " + title + " " + format(entry.rerun[name][0], unit)).join("");
    }

    makeScenarioTable(entry) {
      const scenarios = this.data.scenarios.filter((one) => entry.measures[one]);
      const measures = this.data.measures.filter((one) => scenarios.some((scenario) => entry.measures[scenario][one.name]));
      const cell = (scenario, one) => {
        const found = entry.measures[scenario][one.name];
        return make("td", { class: "n" }, found ? format(found[0], one.unit) : "", found ? make("small", {}, " " + this.tellSpread(found, one.unit)) : null);
      };
      return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "All measures of " + visible(entry.title) },
        make("table", {}, make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "scenario"), ...measures.map((one) => make("th", { scope: "col", class: "n", title: one.about }, one.title)))),
          make("tbody", {}, ...scenarios.map((scenario) => make("tr", {}, make("td", {}, scenario), ...measures.map((one) => cell(scenario, one)))))));
    }

    makeCategories(entry) {
      const parts = Object.entries(entry.categories).filter(([, below]) => below.length > 1).map(([scenario, below]) =>
        make("li", {}, make("b", {}, scenario), ": " + below.map(([category, share]) => visible(category) + " " + fixed(100 * share, 0) + " %").join(", ")));
      return parts.length ? make("ul", { class: "categories" }, ...parts) : null;
    }
  }

  /* ---- episodes: two entries on the same tasks ---- */

  const waiting = new Map();
  const arrived = new Map();
  const unpack = (packed) => {
    const bytes = Uint8Array.from(atob(packed), (one) => one.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
  };
  window.receiveEpisodes = (sent) => {
    const key = sent.suite + "/" + sent.entry;
    arrived.set(key, unpack(sent.packed));
    (waiting.get(key) || (() => {}))(arrived.get(key));
  };

  /* Loads the script of an entry, since a page from disk can read other files only as scripts. */
  const load = (suite, entry) => new Promise((resolve, reject) => {
    const key = suite + "/" + entry;
    if (arrived.has(key)) { resolve(arrived.get(key)); return; }
    waiting.set(key, resolve);
    document.head.append(make("script", { src: "episodes/" + suite + "/" + entry + ".js", onerror: () => reject(new Error("episodes/" + key + ".js is not there")) }));
  });

  /* Merges the episodes of several entries into one set of data. */
  const merge = (parts) => {
    const merged = { sources: [], texts: [], episodes: [], tasks: 0, all_tasks: 0 };
    const places = new Map();
    const add = (text) => {
      if (!places.has(text)) { places.set(text, merged.texts.length); merged.texts.push(text); }
      return places.get(text);
    };
    parts.forEach((part, source) => {
      const at = (index) => add(part.texts[index]);
      merged.sources.push(part.sources[0]);
      merged.tasks = Math.max(merged.tasks, part.tasks);
      merged.all_tasks = Math.max(merged.all_tasks, part.all_tasks);
      for (const one of part.episodes)
        merged.episodes.push({ ...one, source, task: at(one.task), category: at(one.category), last: at(one.last),
          turns: one.turns.map(([seen, reply, did, reward, valid, form, listed]) => [at(seen), at(reply), at(did), reward, valid, form, listed.map(at)]) });
    });
    return merged;
  };

  class EpisodeChoice {
    constructor(section, data) {
      this.data = data;
      this.root = section.querySelector(".episode-place");
      const entries = data.entries.map((one) => [one.name, visible(one.title)]);
      this.scenario = select("Scenario of the episodes", data.scenarios.map((one) => [one, one]));
      this.first = select("First entry", entries);
      this.second = select("Second entry, side by side", [["", "alone"], ...entries]);
      this.second.selectedIndex = entries.length > 1 ? 2 : 0;
      section.querySelector(".episode-choice").append(
        make("div", { class: "filters" }, data.scenarios.length > 1 ? this.scenario : null, this.first, make("span", {}, "beside"), this.second,
          make("button", { type: "button", class: "show", onclick: () => this.show() }, "Show episodes")));
    }

    async show() {
      const names = [this.first.value, this.second.value].filter((name, place, all) => name && all.indexOf(name) === place);
      const scenario = this.scenario.value;
      try {
        const cells = await Promise.all(names.map((name) => load(this.data.key, name)));
        const parts = cells.map((one) => one[scenario]).filter(Boolean);
        const place = make("div", { class: "episode-browser" });
        this.root.replaceChildren(place);
        if (parts.length) window.showEpisodes(place, merge(parts));
        else place.append(make("p", { class: "none" }, "Neither has played this scenario."));
      } catch (error) {
        this.root.replaceChildren(make("p", { class: "note", role: "alert" }, String(error.message)));
      }
    }
  }

  /* ---- tabs ---- */

  const tabs = [...document.querySelectorAll("[role=tab]")];
  const panels = tabs.map((tab) => document.getElementById(tab.getAttribute("aria-controls")));

  /* Shows one suite of a part with several suites. The table of a suite is made when the suite is first opened. */
  const openSuite = (panel, key) => {
    const sections = [...panel.querySelectorAll("section[data-suite]")];
    const chosen = sections.find((one) => one.dataset.suite === key) ?? sections.find((one) => !one.hidden && one.dataset.open) ?? sections[0];
    for (const one of sections) one.hidden = one !== chosen;
    for (const link of panel.querySelectorAll("nav.suites a"))
      link.setAttribute("aria-current", String(Boolean(chosen) && link.getAttribute("href") === "#" + chosen.dataset.suite));
    if (chosen && !chosen.dataset.open) {
      chosen.dataset.open = "yes";
      new Board(chosen, JSON.parse(document.getElementById("data-" + chosen.dataset.suite).textContent));
    }
  };

  const openPanel = (place, key = "") => {
    tabs.forEach((tab, number) => {
      tab.setAttribute("aria-selected", String(number === place));
      tab.tabIndex = number === place ? 0 : -1;
      panels[number].hidden = number !== place;
    });
    openSuite(panels[place], key);
  };

  /* Opens the tab or the suite that the fragment of the page's address names. */
  const openNamed = () => {
    const named = decodeURIComponent(location.hash.slice(1));
    const suite = document.getElementById("suite-" + named);
    const place = suite ? panels.findIndex((panel) => panel.contains(suite)) : tabs.findIndex((tab) => tab.id === "tab-" + named);
    openPanel(Math.max(0, place), named);
  };
  tabs.forEach((tab, place) => {
    tab.addEventListener("click", () => { openPanel(place); history.replaceState(null, "", "#" + tab.id.slice(4)); });
    tab.addEventListener("keydown", (event) => {
      const to = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: tabs.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      const target = (to + tabs.length) % tabs.length;
      tabs[target].click();
      tabs[target].focus();
    });
  });
  window.addEventListener("hashchange", openNamed);
  openNamed();
})();
