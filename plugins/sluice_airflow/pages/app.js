/** Sluice's pages: which one a person sees, and in which theme. */

import { useEffect, useRef } from "./vendor/preact-hooks.js";
import { render } from "./vendor/preact.js";
import { pathOf, useResource } from "./api.js";
import { Actions } from "./actions.js";
import { html } from "./html.js";
import { Badge, Empty, Link, Loading, ProblemNote } from "./parts.js";
import { useRoute } from "./route.js";
import { Configuration } from "./views/configuration.js";
import { Detail } from "./views/detail.js";
import { Exceptions } from "./views/exceptions.js";
import { Graph } from "./views/graph.js";
import { History } from "./views/history.js";
import { Journal } from "./views/journal.js";
import { Overview } from "./views/overview.js";
import { Pipelines, listed } from "./views/pipelines.js";
import { Reason } from "./views/reasons.js";
import { Skew } from "./views/skew.js";
import { Snapshots } from "./views/snapshots.js";
import { State } from "./views/state.js";
import { Summary } from "./views/summary.js";

const PAGES = [
  ["overview", "Overview", Overview],
  ["history", "History", History],
  ["exceptions", "Exceptions", Exceptions],
  ["summary", "Summary", Summary],
  ["skew", "Skew", Skew],
  ["configuration", "Configuration", Configuration],
  ["journal", "Journal", Journal],
  ["graph", "Graph", Graph],
  ["state", "State", State],
  ["snapshots", "Snapshots", Snapshots],
];
const SHOWN = { ...Object.fromEntries(PAGES.map(([name, , page]) => [name, page])), checkpoints: Detail };

function App({ dagId, place }) {
  const { names, query } = useRoute();
  useFocus(place, names.join("/"));
  if (names[0] === "reasons") return html`<${General}><${Reason} name=${names[1]} /><//>`;
  if (names[0] === "p") return html`<${Pipeline} uid=${names[1]} names=${names.slice(2)} query=${query} isInDag=${Boolean(dagId)} />`;
  return dagId ? html`<${PipelineOfDag} dagId=${dagId} query=${query} />` : html`<${General}><${Pipelines} /><//>`;
}

/** A page that is of no single pipeline. */
const General = ({ children }) => html`<main><h1 class="unseen">Checkpoints</h1>${children}</main>`;

/** The DAG's pipeline: it has the DAG's name, or the name before `__restore`, `__savepoint`, `__cancel`. */
function PipelineOfDag({ dagId, query }) {
  const { data, problem } = useResource("pipelines", { everyMs: 0 });
  const uid = dagId.replace(/__[a-z]+$/, "");
  if (problem) return html`<main><${ProblemNote} problem=${problem} /></main>`;
  if (!data) return html`<main><${Loading} /></main>`;
  const found = listed(data).find((one) => one.uid === dagId || one.uid === uid);
  return found
    ? html`<${Pipeline} uid=${found.uid} names=${[]} query=${query} isInDag />`
    : html`<main><${Empty} title="This DAG is not a pipeline of Sluice">
        <p>Its runs take no checkpoints. <${Link} to=${["p"]}>All pipelines<//> are in the navigation, under Checkpoints.</p><//></main>`;
}

function Pipeline({ uid, names, query, isInDag }) {
  const pipeline = useResource(uid ? pathOf("pipelines", uid) : null, { everyMs: 5_000 });
  if (!uid) return html`<${General}><${Pipelines} /><//>`;
  const page = SHOWN[names[0]] ? names[0] : "overview";
  const View = SHOWN[page];
  const path = (...rest) => pathOf("pipelines", uid, ...rest);
  return html`
    <header><${Title} uid=${uid} path=${path} pipeline=${pipeline} isInDag=${isInDag} isFirst=${page === "overview"} />
      <nav aria-label="Pages of ${uid}"><ul>${PAGES.map(([name, title]) => html`<li>
        <${Link} to=${["p", uid, name]} aria-current=${isOn(page, name) ? "page" : undefined}>${title}<//></li>`)}</ul></nav>
    </header>
    <main><${View} key=${uid} uid=${uid} path=${path} pipeline=${pipeline.data} names=${names.slice(1)} query=${query} /></main>`;
}

const isOn = (page, name) => page === name || (page === "checkpoints" && name === "history");

/** On the overview what matters first says the problem, and the next step with it. */
function Title({ uid, path, pipeline: { data, reload }, isInDag, isFirst }) {
  return html`<div class="title">
    ${isInDag ? null : html`<${Link} to=${[]}>Pipelines<//><span aria-hidden="true"> / </span>`}
    <h1 class=${isInDag ? "unseen" : ""}>${uid}</h1>
    <span role="status">${data?.status ? html`<${Badge} status=${data.status} />` : null}
      ${data?.paused ? html` <span class="badge warn">paused</span>` : null}
      ${data?.failing ? html` <span class="badge bad">failing</span>` : null}</span>
    ${data?.dag && !isInDag ? html`<a href=${data.dag}>DAG</a>` : null}
    ${data?.status ? html`<${Actions} path=${path} pipeline=${data} onDone=${reload} />` : null}
    ${data?.problem && !isFirst ? html`<p class="reason">${data.problem}</p>` : null}
    <${Notice} path=${path} />
  </div>`;
}

/** What a run under way waits for in vain. Airflow alone is asked, so it is seen without the store. */
function Notice({ path }) {
  const { data } = useResource(path("notice"));
  return html`<div role="alert">${data?.notice
    ? html`<p class="reason">${data.notice} <a href=${data.run}>The run</a></p>`
    : null}</div>`;
}

/** A new page is announced: its heading takes the focus, but for the very first one. */
function useFocus(place, address) {
  const isFirst = useRef(true);
  useEffect(() => {
    if (!isFirst.current) place.querySelector("h2")?.focus({ preventScroll: false });
    isFirst.current = false;
  }, [address]);
}

/** Airflow marks its theme at the document's root; without Airflow the system's is taken. */
function followTheme(host) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const apply = () => {
    const said = ["dark", "light"].find((name) => root.classList.contains(name));
    host.dataset.theme = said ?? (system.matches ? "dark" : "light");
    host.dispatchEvent(new Event("theme"));
  };
  const watcher = new MutationObserver(apply);
  watcher.observe(root, { attributes: true, attributeFilter: ["class"] });
  system.addEventListener("change", apply);
  apply();
  return () => {
    watcher.disconnect();
    system.removeEventListener("change", apply);
  };
}

/** Draw the pages into *host*, behind a shadow root, so that neither style reaches the other. */
export function mount(host, { dagId } = {}) {
  const shadow = host.shadowRoot ?? host.attachShadow({ mode: "open" });
  const place = document.createElement("div");
  place.className = "sluice";
  const styles = ["style.css", "vendor/uplot.css"].map((name) =>
    Object.assign(document.createElement("link"), { rel: "stylesheet", href: new URL(name, import.meta.url) }));
  shadow.replaceChildren(...styles, place);
  const unfollow = followTheme(host);
  render(html`<${App} dagId=${dagId} place=${place} />`, place);
  return () => {
    unfollow();
    render(null, place);
  };
}
