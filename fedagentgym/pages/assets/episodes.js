/* The episode browser. It reads the data in the page, and inserts everything as text.
   `window.pages` holds functions for the page's other scripts: to make elements, and to show invisible characters. */
(() => {
  "use strict";

  const LONG = 1500;
  const INVISIBLE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

  /* Invisible characters, and those that change the direction of text, are shown by their numbers. */
  const visible = (text) =>
    String(text).replace(INVISIBLE, (mark) => "\u27e8U+" + mark.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0") + "\u27e9");

  const make = (tag, attributes, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
    return element;
  };

  /* A drop-down list of values with their labels. */
  const select = (label, options, attributes) => make("select", { "aria-label": label, ...attributes },
    ...options.map(([value, text]) => make("option", { value }, text)));

  window.pages = { make, visible, select };

  const number = (value) => String(Math.round(value * 1000) / 1000);

  class EpisodeBrowser {
    constructor(root, data) {
      this.root = root;
      this.data = data;
      this.text = (index) => visible(data.texts[index] || "");
      this.rows = this.makeRows();
      this.paired = data.sources.length > 1 && this.rows.some((row) => row.episodes.filter(Boolean).length > 1);
      this.state = { outcome: "all", category: "", client: "", query: "", row: null };
      this.build();
      this.refresh();
    }

    /* One row for each task and copy (in training also for each client and round), with the episode of each source. */
    makeRows() {
      const rows = new Map();
      for (const episode of this.data.episodes) {
        const key = [episode.task, episode.category, episode.sample, episode.client ?? "", episode.round ?? ""].join("|");
        if (!rows.has(key)) rows.set(key, { key, episodes: [] });
        rows.get(key).episodes[episode.source] = episode;
      }
      return [...rows.values()].map((row) => {
        const first = row.episodes.find(Boolean);
        return { ...row, first, task: this.text(first.task), category: this.text(first.category), client: first.client };
      });
    }

    build() {
      const choose = (name) => (event) => { this.state[name] = event.target.value; this.refresh(); };
      const outcomes = [["all", "all outcomes"], ["failed", "failed"], ["solved", "solved"], ["invalid", "with invalid actions"]];
      if (this.paired) outcomes.push(["gained", "failed, then solved"], ["lost", "solved, then failed"]);
      const categories = [...new Set(this.rows.map((row) => row.category))].filter(Boolean).sort();
      const clients = [...new Set(this.rows.map((row) => row.client))].filter((one) => one !== undefined).sort((a, b) => a - b);
      const filter = (name, label, all, values, tell = (one) => one) => values.length
        ? select(label, [["", all], ...values.map((one) => [String(one), tell(one)])], { onchange: choose(name) }) : null;
      this.count = make("span", { class: "count", role: "status" });
      this.list = make("ul", { class: "tasks", onkeydown: (event) => this.move(event) });
      this.panes = make("div", { class: "panes" });
      const controls = make("div", { class: "filters" },
        select("Outcome", outcomes, { onchange: choose("outcome") }),
        categories.length > 1 ? filter("category", "Category", "all categories", categories) : null,
        filter("client", "Client", "all clients", clients, (one) => "client " + one),
        make("input", { type: "search", placeholder: "search text", "aria-label": "Search the text of episodes", oninput: choose("query") }),
        this.count);
      this.root.replaceChildren(controls, make("div", { class: "columns" }, this.list, this.panes));
    }

    matches(row) {
      const { outcome, category, client, query } = this.state;
      const episodes = row.episodes.filter(Boolean);
      const last = episodes[episodes.length - 1];
      const first = episodes[0];
      if (category && row.category !== category) return false;
      if (client && String(row.client) !== client) return false;
      if (outcome === "failed" && last.success) return false;
      if (outcome === "solved" && !last.success) return false;
      if (outcome === "invalid" && !episodes.some((one) => one.turns.some((turn) => !turn[4]))) return false;
      if (outcome === "gained" && !(episodes.length > 1 && !first.success && last.success)) return false;
      if (outcome === "lost" && !(episodes.length > 1 && first.success && !last.success)) return false;
      return !query || this.says(row, query.toLowerCase());
    }

    says(row, query) {
      if (row.task.toLowerCase().includes(query)) return true;
      return row.episodes.some((episode) => episode && [episode.last, ...episode.turns.flatMap((turn) => turn.slice(0, 3))]
        .some((index) => this.data.texts[index].toLowerCase().includes(query)));
    }

    refresh() {
      this.shown = this.rows.filter((row) => this.matches(row));
      const left = this.data.all_tasks - this.data.tasks;
      this.count.textContent = this.shown.length + " of " + this.rows.length + " episodes" +
        (this.paired ? " side by side" : "") + (left > 0 ? "; " + left + " more tasks are only in the files" : "");
      this.list.replaceChildren(...this.shown.map((row) => make("li", {}, this.makeEntry(row))));
      if (!this.shown.includes(this.state.row)) this.state.row = this.shown[0] || null;
      this.select(this.state.row);
    }

    makeEntry(row) {
      const marks = row.episodes.map((episode) => episode
        ? make("i", { class: episode.success ? "good" : "bad", "aria-hidden": "true" }, episode.success ? "\u2713" : "\u2717") : null);
      const outcome = row.episodes.filter(Boolean).map((one) => one.success ? "solved" : "failed").join(", then ");
      const about = [row.category, row.client === undefined ? "" : "client " + row.client, row.first.round ? "round " + row.first.round : "",
        row.first.sample ? "copy " + row.first.sample : ""].filter(Boolean).join(" \u00b7 ");
      return make("button", { type: "button", "data-key": row.key, onclick: () => this.select(row) },
        make("span", { class: "marks" }, ...marks, make("span", { class: "spoken" }, outcome + " ")),
        make("span", { class: "task" }, row.task), make("small", {}, about));
    }

    select(row) {
      this.state.row = row;
      for (const entry of this.list.querySelectorAll("button")) {
        const chosen = row !== null && entry.dataset.key === row.key;
        entry.toggleAttribute("aria-current", chosen);
        if (chosen) entry.setAttribute("aria-current", "true");
      }
      this.panes.replaceChildren(...(row === null
        ? [make("p", { class: "none" }, "No episode matches.")]
        : row.episodes.map((episode, source) => episode ? this.makePane(episode, source) : null).filter(Boolean)));
      this.panes.dataset.count = this.panes.children.length;
    }

    /* Arrow keys move through the list. */
    move(event) {
      const step = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1 }[event.key];
      if (!step || !this.shown.length) return;
      event.preventDefault();
      const place = Math.min(Math.max(this.shown.indexOf(this.state.row) + step, 0), this.shown.length - 1);
      this.select(this.shown[place]);
      const entry = this.list.children[place].firstChild;
      entry.focus({ preventScroll: true });
      const top = entry.parentElement.offsetTop - this.list.offsetTop;
      if (top < this.list.scrollTop || top + entry.offsetHeight > this.list.scrollTop + this.list.clientHeight)
        this.list.scrollTop = top - this.list.clientHeight / 2;
    }

    makePane(episode, source) {
      const outcome = episode.success ? "solved" : episode.truncated ? "out of turns" : "failed";
      const turns = episode.turns.length;
      const heading = make("header", { title: "seed " + episode.seed },
        make("b", {}, this.data.sources[source]),
        make("span", { class: "badge " + (episode.success ? "good" : "bad") }, outcome),
        make("small", {}, turns + (turns === 1 ? " turn" : " turns") + ", score " + number(episode.score)));
      const steps = episode.turns.map((turn, place) => this.makeTurn(turn, place + 1));
      const end = this.data.texts[episode.last]
        ? make("li", { class: "end" }, make("div", { class: "world" }, ...this.makeText(episode.last))) : null;
      return make("article", { class: "pane" }, heading, make("ol", {}, ...steps, ...(end ? [end] : [])));
    }

    makeTurn([observation, reply, action, reward, valid, format, listed], place) {
      const text = this.data.texts[reply] || "";
      const thought = /<think>([\s\S]*?)<\/think>/.exec(text);
      const taken = (this.data.texts[action] || "").trim();
      const left = text.replace(/<think>[\s\S]*?<\/think>/, "").trim();
      const rest = left === taken || left === "<action>" + taken + "</action>" ? "" : left;
      const chips = [];
      if (!valid) chips.push(make("span", { class: "badge bad" }, "invalid action"));
      if (!format) chips.push(make("span", { class: "badge bad" }, "broken format"));
      if (reward) chips.push(make("span", { class: "badge " + (reward > 0 ? "good" : "bad") }, "reward " + number(reward)));
      return make("li", {},
        make("div", { class: "world" }, ...this.makeText(observation)),
        listed.length ? make("details", { class: "listed" }, make("summary", {}, listed.length + " admissible actions"),
          make("ul", {}, ...listed.map((one) => make("li", one === action ? { class: "taken" } : {}, this.text(one))))) : null,
        thought && thought[1].trim() ? make("div", { class: "thought" }, visible(thought[1].trim())) : null,
        rest ? make("div", { class: "thought" }, ...this.shorten(visible(rest))) : null,
        make("div", { class: "action" }, make("span", { class: "number" }, String(place)),
          make("code", {}, this.text(action) || "(nothing)"), ...chips));
    }

    makeText(index) { return this.shorten(this.text(index)); }

    /* Only the beginning of a long text is shown at first. */
    shorten(text) {
      if (text.length <= LONG) return [text];
      const rest = make("span", { hidden: true }, text.slice(LONG));
      const button = make("button", { type: "button", class: "more", onclick: () => { rest.hidden = false; button.remove(); } },
        "\u2026 show " + (text.length - LONG).toLocaleString("en") + " more characters");
      return [text.slice(0, LONG), rest, button];
    }
  }

  window.showEpisodes = (root, data) => new EpisodeBrowser(root, data);

  const openAll = () => {
    for (const root of document.querySelectorAll(".episode-browser[data-episodes]"))
      window.showEpisodes(root, JSON.parse(document.getElementById(root.dataset.episodes).textContent));
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", openAll);
  else openAll();
})();
